package cli

import (
	"bufio"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// A relay makes the tables, sends rows until it is asked to end, and sends them again after a loss.
func TestRelay(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	file := filepath.Join(t.TempDir(), "shop.db")
	box, err := outbox.New(outbox.SQLite)
	require.NoError(t, err)

	// run starts a relay and reads its lines up to one with a text.
	var url string
	run := func(until string, args ...string) (stop func()) {
		cmd := cli.command(append([]string{"relay", "--keep", "1h", "--horizon", "24h"}, args...)...)
		cmd.Env = append(cmd.Env, "DELAYQ_DSN=sqlite://"+file)
		errs, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(errs)
		for lines.Scan() && !strings.Contains(lines.Text(), until) {
			if _, on, found := strings.Cut(lines.Text(), " on http"); found {
				url = "http" + strings.TrimSuffix(on, "/metrics")
			}
		}
		require.Contains(t, lines.Text(), until)
		return func() {
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			for lines.Scan() {
			}
			require.NoError(t, cmd.Wait())
		}
	}
	there := func(id string, is bool) {
		require.Eventually(t, func() bool {
			_, err := client.Get(t.Context(), "mail", id)
			return (err == nil) == is
		}, time.Minute, time.Millisecond)
	}

	golden := ""
	check := func(args ...string) {
		cli := newTool(t, "127.0.0.1:1", "shop", "DELAYQ_DSN=sqlite://"+file)
		r := cli.do("", append([]string{"relay", "--check"}, args...)...)
		out := regexp.MustCompile(`\d[.\d]*(ms|s)\b`).ReplaceAllString(r.out+"! "+r.err, "SPAN")
		golden += fmt.Sprintf("$ delayq %s\n%sexit %d\n\n", strings.Join(append([]string{"relay", "--check"}, args...), " "), out, r.code)
	}

	stop := run("relay of table delayq_outbox (sqlite)", "--migrate", "--metrics", "127.0.0.1:0")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for id, in := range map[string]time.Duration{"soon": time.Hour, "far": 1000 * time.Hour} {
		_, err := box.Enqueue(t.Context(), outbox.Autocommit(db), "mail", id, nil, delayq.ProcessIn(in))
		require.NoError(t, err)
	}
	there("soon", true)
	require.Eventually(t, func() bool {
		s, err := box.Stats(t.Context(), db)
		return err == nil && s.Rows == 0 && s.Later == 1
	}, time.Minute, time.Millisecond)
	there("far", false)
	body := get(t, url+"/metrics")
	require.Contains(t, body, "\ndelayq_outbox_up{outbox=\"delayq_outbox\"} 1\n")
	require.Contains(t, body, "\ndelayq_outbox_rows{outbox=\"delayq_outbox\"} 0\n")
	require.Contains(t, body, "\ndelayq_outbox_deleted_rows_total{outbox=\"delayq_outbox\"} 0\n")
	require.Contains(t, body, "\ndelayq_outbox_later_rows{outbox=\"delayq_outbox\"} 1\n")
	require.Regexp(t, `(?m)^delayq_jobs\{prefix="\S+",state="scheduled",topic="mail"\} 1$`, body)
	lint(t, body)
	check()
	stop()

	// The topic is all that this prefix has, with the receipts.
	cli.ok("cancel", "mail", "soon")
	stop = run("outbox rows are sent again", "--since", "1h")
	there("soon", false)
	stop()
	_, err = box.Enqueue(t.Context(), outbox.Autocommit(db), "mail", "x", nil)
	require.NoError(t, err)
	for _, change := range []string{
		"UPDATE delayq_outbox SET made = made - 61000", "DROP TABLE delayq_outbox_inbox", "UPDATE delayq_outbox_shards SET version = 9",
		"INSERT INTO delayq_outbox_dead SELECT seq, shard, kind, topic, id, replaces, due_at, delay_ms, made, record, 'why', 0 FROM delayq_outbox",
	} {
		_, err = db.Exec(change)
		require.NoError(t, err)
	}
	check()
	check("--oldest", "2h")
	compare(t, filepath.Join("testdata", "relay_check.txt"), golden)
	for _, change := range []string{"DELETE FROM delayq_outbox", "DELETE FROM delayq_outbox_dead", "UPDATE delayq_outbox_shards SET version = 1"} {
		_, err = db.Exec(change)
		require.NoError(t, err)
	}
	_, err = db.Exec("UPDATE delayq_outbox_sent SET slot = slot + 3") // a receipt that Redis does not have
	require.NoError(t, err)
	stop = run("outbox rows are sent again", "--since", "1h")
	there("soon", true)
	stop()
}

func TestRelayWithoutTables(t *testing.T) {
	t.Parallel()
	cli, _ := onRealRedis(t)
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte("sqlite://"+filepath.Join(t.TempDir(), "empty.db")+"\n"), 0o600))
	r := cli.do("", "relay", "--dsn-file", file)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.err, "the tables are missing")
	require.NotContains(t, r.err, "empty.db")
	require.NotContains(t, r.err, "Redis")
}

func TestRelaySchema(t *testing.T) {
	cli := newTool(t, "127.0.0.1:1", "shop")
	for dialect, want := range map[string]string{"postgres": "GENERATED ALWAYS", "mariadb": "ENGINE=InnoDB", "sqlite": "AUTOINCREMENT"} {
		text := cli.ok("relay", "--schema", "--dialect", dialect, "--table", "box")
		require.Contains(t, text, "CREATE TABLE IF NOT EXISTS box (")
		require.Contains(t, text, want)
	}
	require.Contains(t, cli.ok("relay", "--schema", "--dsn", "postgresql://db/shop"), "bytea")
}

// The address of a database is never shown, because it can have a password in it.
func TestRelayUsage(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, args := range [][]string{
		{}, {"--schema"}, {"--dsn", "shop.db"}, {"--dialect", "oracle", "--dsn", "x"}, {"--dsn", "s3cret://x"}, {"--dialect", "sqlite"},
		{"--dsn", "postgres://u:s3cret@h/d"}, {"--dialect", "postgres", "--dsn", "host=h password=s3cret"}, {"--dialect", "mysql", "--dsn", "u:s3cret@tcp(h)/d"},
		{"--dsn", "sqlite://x", "--dsn-file", empty}, {"--dsn-file", empty}, {"--dsn-file", "/nothing"},
		{"--dsn", "sqlite://x", "--table", "a b"}, {"--dsn", "sqlite://x", "--shards", "0"}, {"--dsn", "sqlite://x", "--horizon", "1s"}, {"--dsn", "sqlite://x", "--keep", "7d"},
		{"--dsn", "sqlite://x", "--since", "1h"}, {"--dsn", "sqlite://x", "--keep", "-1h"}, {"--dsn", "sqlite://x", "-o", "json"}, {"--dsn", "sqlite://x", "--metrics", "nonsense"}, {"--dsn", "sqlite://x", "--check", "--oldest", "0s"}, {"x"},
	} {
		r := newTool(t, "127.0.0.1:1", "shop").do("", append([]string{"relay"}, args...)...)
		require.Equal(t, exitUsage, r.code, "%v: %s", args, r.err)
		require.NotContains(t, r.err, "s3cret")
	}
	for _, dsn := range []string{"postgres://u:s3cret@127.0.0.1:1/d", "mysql://u:s3cret@tcp(127.0.0.1:1)/d", "mysql://u:s3cret@nonsense", "postgres://u:s3cret@h:port/d", "s3cret"} {
		r := newTool(t, "127.0.0.1:1", "shop", "DELAYQ_DSN="+dsn).do("", "relay")
		require.NotZero(t, r.code, dsn)
		require.NotEmpty(t, r.err, dsn)
		require.NotContains(t, r.err, "s3cret")
	}
}
