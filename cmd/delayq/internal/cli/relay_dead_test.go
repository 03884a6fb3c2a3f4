package cli

import (
	"database/sql"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// Dead rows are listed, revived and discarded, one or all, and what users have written does not
// reach the terminal as it is.
func TestRelayDeadRows(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+file)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	box, err := outbox.New(outbox.SQLite)
	require.NoError(t, err)
	require.NoError(t, box.Migrate(t.Context(), db))
	_, err = box.Enqueue(t.Context(), outbox.Autocommit(db), "mail", "a\x1b[2J", nil, delayq.Key("k"))
	require.NoError(t, err)
	for range 1100 {
		_, err := db.Exec("INSERT INTO delayq_outbox_dead (seq, shard, kind, topic, id, replaces, due_at, delay_ms, made, record, reason, refused) " +
			"SELECT (SELECT COALESCE(MAX(seq), 0) + 1 FROM delayq_outbox_dead), shard, kind, topic, id, replaces, due_at, delay_ms, made, record, 'because' || char(27), made FROM delayq_outbox LIMIT 1")
		require.NoError(t, err)
	}
	cli := newTool(t, "127.0.0.1:1", "shop", "DELAYQ_DSN=sqlite://"+file)
	left := func() (rows, dead int) {
		require.NoError(t, db.QueryRow("SELECT (SELECT COUNT(*) FROM delayq_outbox), (SELECT COUNT(*) FROM delayq_outbox_dead)").Scan(&rows, &dead))
		return rows, dead
	}
	r := cli.do("", "relay", "--dead")
	require.Zero(t, r.code, r.err)
	require.Equal(t, 1101, strings.Count(r.out, "\n"))
	require.NotContains(t, r.out, "\x1b")
	require.Contains(t, r.out, "because")

	require.Zero(t, cli.do("", "relay", "--discard", "7").code)
	require.Equal(t, exitNotFound, cli.do("", "relay", "--discard", "7").code)
	require.Zero(t, cli.do("", "relay", "--revive", "8").code)
	rows, dead := left()
	require.Equal(t, []int{2, 1098}, []int{rows, dead})
	for _, bad := range [][]string{{"--revive", "x"}, {"--revive", "0"}, {"--revive", "all", "--dead"}, {"--revive", "1", "--discard", "1"}} {
		require.Equal(t, exitUsage, cli.do("", append([]string{"relay"}, bad...)...).code, bad)
	}
	require.Zero(t, cli.do("", "relay", "--revive", "all").code)
	rows, dead = left()
	require.Equal(t, []int{1100, 0}, []int{rows, dead})
	require.Zero(t, cli.do("", "relay", "--discard", "all").code)
}

// With --drop-duplicates the second row of an ID is deleted, and without it the row is dead.
func TestRelayDropsDuplicates(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	for dead, flags := range [][]string{{"--drop-duplicates"}, nil} {
		file := filepath.Join(t.TempDir(), "shop.db")
		db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		box, err := outbox.New(outbox.SQLite)
		require.NoError(t, err)
		require.NoError(t, box.Migrate(t.Context(), db))
		topic := "mail" + strings.Join(flags, "")
		for range 2 {
			_, err := box.Enqueue(t.Context(), outbox.Autocommit(db), topic, "twin", nil, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
		}
		cmd := cli.command(append([]string{"relay"}, flags...)...)
		cmd.Env = append(cmd.Env, "DELAYQ_DSN=sqlite://"+file)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test has failed
		require.Eventually(t, func() bool {
			s, err := box.Stats(t.Context(), db)
			return err == nil && s.Rows == 0 && s.Dead == int64(dead)
		}, time.Minute, time.Millisecond, flags)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
		_, err = client.Get(t.Context(), topic, "twin")
		require.NoError(t, err)
	}
}

// A relay deletes dead rows over --dead-rows.
func TestRelayDeletesDeadRows(t *testing.T) {
	t.Parallel()
	cli, _ := onRealRedis(t)
	file := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	box, err := outbox.New(outbox.SQLite)
	require.NoError(t, err)
	require.NoError(t, box.Migrate(t.Context(), db))
	_, err = db.Exec("INSERT INTO delayq_outbox_dead (seq, shard, kind, topic, id, replaces, due_at, delay_ms, made, record, reason, refused) " +
		"VALUES (1, 0, 1, 'mail', x'31', '', 0, 0, 0, x'', 'because', 0), (2, 0, 1, 'mail', x'32', '', 0, 0, 0, x'', 'because', 9000000000000)")
	require.NoError(t, err)
	left := func(flags ...string) func(want int64) {
		cmd := cli.command(append([]string{"relay"}, flags...)...)
		cmd.Env = append(cmd.Env, "DELAYQ_DSN=sqlite://"+file)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test has failed
		return func(want int64) {
			require.Eventually(t, func() bool {
				s, err := box.Stats(t.Context(), db)
				return err == nil && s.Dead == want
			}, time.Minute, time.Millisecond, flags)
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait())
		}
	}
	left("--dead-age", "2h")(1)
	left("--dead-rows", "0")(0)
	for _, bad := range [][]string{{"--dead-rows", "-1"}, {"--dead-age", "1s"}} {
		r := cli.do("", append([]string{"relay", "--dsn", "sqlite://" + file}, bad...)...)
		require.Equal(t, exitUsage, r.code, r.err)
		require.Contains(t, r.err, "DeadLimit")
	}
}
