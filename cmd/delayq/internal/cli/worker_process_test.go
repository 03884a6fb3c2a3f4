package cli

import (
	"bufio"
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
)

// The secrets of the workers in the tests, which must be nowhere but where they are used.
const (
	hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	envSecret  = "s3cret-of-the-environment"
	smtpSecret = "s3cret-of-smtp"
	urlSecret  = "s3cret-in-a-url"
)

// requireNoSecret fails if a text has a secret in it.
func requireNoSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{hookSecret, strings.TrimPrefix(hookSecret, "whsec_"), envSecret, smtpSecret, urlSecret} {
		require.NotContains(t, text, secret)
	}
}

// A bench is a worker as a process, with its file in a folder.
type bench struct {
	*tool
	t      *testing.T
	client *delayq.Client
	insp   *delayq.Inspector
	dir    string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has closed its stderr
	mu   sync.Mutex
	log  strings.Builder
}

// newBench returns a worker that has not been started.
func newBench(t *testing.T, file string) *bench {
	rdb, prefix := redistest.Shared(t), delayq.Prefix(redistest.Prefix(t))
	b := &bench{
		tool: newTool(t, rdb.Options().Addr, string(prefix)), t: t, client: delayq.NewClient(rdb, prefix), insp: delayq.NewInspector(rdb, prefix), dir: t.TempDir(),
	}
	b.env = append(b.env, "HOOK_SECRET="+hookSecret, "TOKEN="+envSecret, "PATH="+os.Getenv("PATH"))
	b.write("smtp-password", smtpSecret+"\n")
	b.write("worker.yaml", file)
	return b
}

// write writes a file in the folder, and replaces DIR in it by the name of the folder.
func (b *bench) write(name, text string) {
	b.t.Helper()
	text = strings.ReplaceAll(text, "DIR", b.dir)
	require.NoError(b.t, os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600))
}

// path returns the path of the file.
func (b *bench) path() string { return filepath.Join(b.dir, "worker.yaml") }

// start starts the worker, and waits until it serves its topics.
func (b *bench) start() {
	b.t.Helper()
	b.cmd, b.done = b.command("worker", "--config", b.path()), make(chan struct{})
	errs, err := b.cmd.StderrPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, b.cmd.Start())
	go func() {
		defer close(b.done)
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			b.mu.Lock()
			b.log.WriteString(lines.Text() + "\n")
			b.mu.Unlock()
		}
	}()
	b.await("the schedules are those of the file", 1)
}

func (b *bench) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

// await waits until the log has had a text n times.
func (b *bench) await(text string, n int) {
	b.t.Helper()
	queuetest.Until(b.t, func() bool { return strings.Count(b.logged(), text) >= n }, "%q in %s", text, b.logged())
}

// stop asks the worker to end, and waits for that.
func (b *bench) stop() {
	b.t.Helper()
	require.NoError(b.t, b.cmd.Process.Signal(syscall.SIGTERM))
	b.ended()
}

// ended waits until the worker has ended well.
func (b *bench) ended() {
	b.t.Helper()
	queuetest.Receive(b.t, b.done)
	require.NoError(b.t, b.cmd.Wait(), b.logged())
	requireNoSecret(b.t, b.logged())
}

// job returns what is known about a job once it is in a state. No secret is in that.
func (b *bench) job(topic, id string, state delayq.State) *delayq.JobInfo {
	b.t.Helper()
	var info *delayq.JobInfo
	queuetest.Until(b.t, func() bool {
		var err error
		info, err = b.client.Get(b.t.Context(), topic, id)
		return err == nil && info.State == state
	}, "%s %s in %s", topic, id, b.logged())
	requireNoSecret(b.t, fmt.Sprintf("%s %v %v", info.Payload, info.Headers, info.Errors))
	return info
}

// failed returns the last error of a job that is dead, or is retried.
func (b *bench) failed(topic, id string, state delayq.State) string {
	b.t.Helper()
	var text string
	queuetest.Until(b.t, func() bool {
		info := b.job(topic, id, state)
		if len(info.Errors) == 0 {
			return false
		}
		text = info.Errors[len(info.Errors)-1].Message
		return true
	})
	return text
}

const checkedFile = `server: {drain: 5s}
topics:
  hook:
    webhook:
      url: {from_env: HOOK_URL}
      secrets: [{from_env: HOOK_SECRET}, literal-s3cret]
    concurency: 7
    timeout: 0s
`

// Every mistake has its line, and no secret is shown. Redis is not asked.
func TestWorkerCheck(t *testing.T) {
	t.Parallel()
	b := newBench(t, checkedFile)
	b.env = append(b.env, "DELAYQ_REDIS=redis://127.0.0.1:1", "HOOK_URL=https://"+urlSecret+"@x.example/"+urlSecret)
	r := b.do("", "worker", "--config", b.path(), "--check")
	require.Equal(t, exitConfig, r.code)
	require.Equal(t, "error: "+b.path()+" has 4 mistakes\n", r.err)
	require.Equal(t, []string{
		"5:12: URL of x.example: must have no user",
		"6:42: secrets: is a secret, which does not belong into this file; expected {from_env: NAME} or {from_file: PATH}",
		`7:5: unknown field "concurency"; did you mean concurrency?`,
		"8:14: timeout: 0s; expected 1ms to 100 years",
	}, strings.Split(strings.TrimSuffix(strings.ReplaceAll(r.out, b.path()+":", ""), "\n"), "\n"))
	require.NotContains(t, r.out, "literal-s3cret")
	started := b.do("", "worker", "--config", b.path())
	require.Equal(t, exitConfig, started.code)
	require.Equal(t, r.out+r.err, started.err)
	requireNoSecret(t, r.out+r.err)

	b.write("worker.yaml", "topics: {backup: {command: {argv: [cat]}, concurrency: 3, schedules: {s: {every: 1h}}}}")
	r = b.do("", "worker", "--config", b.path(), "--check")
	require.Equal(t, result{"backup: command, cat, concurrency 3, 1 schedule\n", b.path() + " has no mistakes: 1 topic, 1 schedule\n", 0}, r)
	for want, args := range map[string][]string{
		"--config is needed": {"worker"}, "no such file": {"worker", "--config", "/nothing.yaml"}, "has no output": {"worker", "--config", b.path(), "-o", "json"},
	} {
		r := b.do("", args...)
		require.Equal(t, map[bool]int{true: exitConfig, false: exitUsage}[want == "no such file"], r.code)
		require.Contains(t, r.err, want)
	}
}

// The file says how to reach Redis, unless a flag or the environment does.
func TestWorkerConnectsAsTheFileSays(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	var own []string
	url, prefix := "", ""
	for _, v := range b.env {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case "DELAYQ_REDIS":
			url = value
		case "DELAYQ_PREFIX":
			prefix = value
		default:
			own = append(own, v)
		}
	}
	all := b.env
	b.env = own
	b.write("worker.yaml", fmt.Sprintf("redis: {url: %s, prefix: %q}\ntopics: {backup: {command: {argv: [cat]}}}", url, prefix))
	b.start()
	b.stop()
	require.Contains(t, b.logged(), fmt.Sprintf("prefix %q", prefix))

	b.env = all // which wins
	b.write("worker.yaml", "redis: {url: 'redis://127.0.0.1:1', prefix: other, password: {from_file: smtp-password}}\ntopics: {backup: {command: {argv: [cat]}}}")
	r := b.do("", "worker", "--config", b.path(), "--check")
	require.Zero(t, r.code, r.out)
}

const hookFile = `topics:
  webhook:
    webhook:
      receivers:
        shop: {url: {from_env: HOOK_URL}, secrets: [{from_env: HOOK_SECRET}]}
      hosts: [127.0.0.1]
      secrets: [{from_env: HOOK_SECRET}]
      allow: [127.0.0.1]
      plain_http: true
      delays: [1h]
    retention: 1h
  guarded:
    webhook:
      hosts: ["*"]
      secrets: [{from_env: HOOK_SECRET}]
      plain_http: true
`

// Each class of status has its outcome. Redirects are not followed, and addresses of this machine
// are refused unless the file allows them.
func TestWorkerPostsWebhooks(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var bodies []string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		bodies = append(bodies, r.URL.Path+" "+string(body))
		mu.Unlock()
		switch status, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/")); status {
		case 0:
		case http.StatusFound:
			http.Redirect(w, r, "/followed", status)
		case http.StatusTooManyRequests:
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(status)
		default:
			w.WriteHeader(status)
		}
	}))
	defer receiver.Close()
	b := newBench(t, hookFile)
	b.env = append(b.env, "HOOK_URL="+receiver.URL+"/status?token="+urlSecret)
	b.start()
	add := func(name, to string, args ...string) {
		b.ok(append([]string{"task", "add", name, "--in", "0s", "--webhook", to, "--config", b.path()}, args...)...)
	}
	add("shop", "shop", "--data", `{"n": 1}`)
	b.job("webhook", "shop", delayq.StateDone)
	mu.Lock()
	require.Equal(t, []string{`/status {"n":1}`}, bodies)
	mu.Unlock()

	for status, want := range map[int]delayq.State{
		200: delayq.StateDone, 204: delayq.StateDone, 302: delayq.StateScheduled, 400: delayq.StateScheduled, 404: delayq.StateScheduled,
		410: delayq.StateDead, 500: delayq.StateScheduled,
	} {
		name := fmt.Sprint("s", status)
		payload := fmt.Sprintf(`{"url": "%s/%d", "body": {}}`, receiver.URL, status)
		_, err := b.client.Enqueue(t.Context(), "webhook", name, []byte(payload))
		require.NoError(t, err)
		if want == delayq.StateDone {
			b.job("webhook", name, want)
			continue
		}
		var info *delayq.JobInfo
		queuetest.Until(t, func() bool {
			var err error
			info, err = b.client.Get(t.Context(), "webhook", name)
			return err == nil && info.State == want && len(info.Errors) > 0
		})
		require.Contains(t, info.Errors[0].Message, fmt.Sprint("answered ", status))
		requireNoSecret(t, info.Errors[0].Message)
	}
	add("busy", receiver.URL+"/429")
	host := strings.TrimPrefix(receiver.URL, "http://")
	queuetest.Until(t, func() bool {
		info, err := b.insp.Key(t.Context(), "webhook", host)
		return err == nil && !info.HeldUntil.IsZero()
	})
	mu.Lock()
	require.NotContains(t, strings.Join(bodies, "\n"), "/followed")
	mu.Unlock()

	// The address is refused however it is written, and so is a host that the file does not list.
	for name, address := range map[string]string{"local": receiver.URL, "name": "http://localhost:1", "mapped": "http://[::ffff:127.0.0.1]:1", "cloud": "http://169.254.169.254/"} {
		b.ok("task", "add", name, "--in", "0s", "--topic", "guarded", "--webhook", address)
		require.Contains(t, b.failed("guarded", name, delayq.StateDead), "address", name)
	}
	b.ok("task", "add", "other", "--in", "0s", "--webhook", "http://other.example/")
	require.Contains(t, b.failed("webhook", "other", delayq.StateDead), `the host "other.example" of the url is not allowed`)
	require.Contains(t, b.do("", "task", "add", "x", "--every", "1h", "--webhook", "none", "--config", b.path()).err, `there is no receiver "none"`)
	b.stop()
}

const commandFile = `topics:
  command:
    command:
      commands:
        fails: {argv: [/bin/sh, -c, 'cat; echo "to $TOKEN" >&2; exit 1'], env: {TOKEN: {from_env: TOKEN}}}
        says: {argv: [/bin/sh, -c, 'echo one; echo "two $TOKEN"'], env: {TOKEN: {from_env: TOKEN}}}
        usage: {argv: [/bin/sh, -c, 'exit 64']}
        stubborn: {argv: [/bin/sh, -c, 'trap "" TERM; echo started; while :; do sleep 1; done'], grace: 10ms}
        prints: {argv: [/bin/sh, -c, 'head -c 100000000 /dev/zero | tr "\0" x; echo the end; exit 1']}
        environment: {argv: [/usr/bin/env], env: {A: b}}
        waits: {argv: [/bin/sh, -c, 'echo > DIR/started; cat DIR/go; cat > DIR/done']}
    retry: 0
    retention: 1h
  backup:
    command: {argv: [/bin/sh, -c, 'cat > DIR/backup']}
    retention: 1h
`

// Commands run as the file says.
func TestWorkerRunsCommands(t *testing.T) {
	t.Parallel()
	b := newBench(t, commandFile)
	b.start()
	run := func(command string, args ...string) {
		b.ok(append([]string{"task", "add", command, "--in", "0s", "--command", command}, args...)...)
	}
	run("fails", "--data", "hello, ")
	require.Equal(t, "command: sh: exit status 1; its output ends with:\nhello, to …", b.failed("command", "fails", delayq.StateDead))
	run("says")
	require.Equal(t, "one\ntwo …\n", string(b.job("command", "says", delayq.StateDone).Output()))
	b.ok("task", "add", "said", "--every", "1h", "--command", "says")
	b.ok("schedule", "trigger", "command", "said")
	queuetest.Until(t, func() bool {
		info, err := b.insp.Schedule(t.Context(), "command", "said")
		return err == nil && info.LastRun != nil
	})
	for _, args := range [][]string{{"task", "list"}, {"task", "list", "-o", "json"}, {"schedule", "show", "command", "said"}, {"schedule", "runs", "command", "said"}} {
		text := b.ok(args...)
		require.Contains(t, text, "two …", args)
		requireNoSecret(t, text)
	}
	run("usage")
	require.Equal(t, "command: sh: exit status 64, no output", b.failed("command", "usage", delayq.StateDead))
	run("stubborn", "--job-timeout", "100ms")
	require.Regexp(t, `(?s)ended by signal 9 .killed.; .*started$`, b.failed("command", "stubborn", delayq.StateDead))
	run("prints")
	text := b.failed("command", "prints", delayq.StateDead)
	require.Less(t, len(text), 1024)
	require.Regexp(t, `(?s)xxx.*the end$`, text)
	run("environment")
	b.job("command", "environment", delayq.StateDone)
	b.ok("enqueue", "command", "--id", "bad", "--payload", `{"command": "rm", "argv": ["-rf"]}`)
	require.Contains(t, b.failed("command", "bad", delayq.StateDead), `unknown field "argv"`)
	b.ok("task", "add", "raw", "--in", "0s", "--topic", "backup", "--data", `{"raw": true}`, "--config", b.path())
	b.job("backup", "raw", delayq.StateDone)
	text2, err := os.ReadFile(filepath.Join(b.dir, "backup"))
	require.NoError(t, err)
	require.Equal(t, `{"raw": true}`, string(text2))
	b.stop()
}

// awaitFile waits for a file.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	queuetest.Until(t, func() bool {
		_, err := os.Stat(path)
		return err == nil
	}, path)
}

// SIGTERM lets a running command end.
func TestWorkerDrains(t *testing.T) {
	t.Parallel()
	b := newBench(t, commandFile)
	require.NoError(t, syscall.Mkfifo(filepath.Join(b.dir, "go"), 0o600))
	b.start()
	b.ok("task", "add", "waits", "--in", "0s", "--command", "waits", "--data", "input")
	awaitFile(t, filepath.Join(b.dir, "started"))
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	b.await("server draining", 1)
	gate, err := os.OpenFile(filepath.Join(b.dir, "go"), os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, gate.Close())
	b.ended()
	b.job("command", "waits", delayq.StateDone)
	text, err := os.ReadFile(filepath.Join(b.dir, "done"))
	require.NoError(t, err)
	require.Equal(t, "input", string(text))
}

// SIGHUP loads the file anew: a running command keeps what it had, topics come and go, and a bad
// file changes nothing.
func TestWorkerLoadsItsFileAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t, commandFile+"    schedules: {daily: {every: 24h, payload: x}}\n")
	require.NoError(t, syscall.Mkfifo(filepath.Join(b.dir, "go"), 0o600))
	b.start()
	b.ok("task", "add", "waits", "--in", "0s", "--command", "waits", "--data", "input")
	awaitFile(t, filepath.Join(b.dir, "started"))

	b.write("worker.yaml", commandFile+"    concurrency: many\n    schedules: {hourly: {every: 0h}}\n")
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGHUP))
	b.await("everything goes on as before", 1)
	after := strings.Count(commandFile, "\n")
	require.Contains(t, b.logged(), fmt.Sprintf(`%s:%d:18: concurrency: \"many\"; expected a number from 1 to 10000`, b.path(), after+1))
	require.Contains(t, b.logged(), fmt.Sprintf(`%s:%d:33: every: 0h; expected 1ms to 100 years`, b.path(), after+2))
	require.Equal(t, "daily\n", b.ok("schedules", "backup", "-o", "id"))

	b.write("worker.yaml", `topics:
  command:
    command:
      commands:
        waits: {argv: [/bin/sh, -c, 'cat > DIR/other']}
    retry: 0
    retention: 1h
  new:
    command: {argv: [/bin/cat]}
    retention: 1h
    schedules: {hourly: {every: 1h}}
`)
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGHUP))
	b.await("the file was loaded", 1)
	b.await("the schedules are those of the file", 2)
	require.Empty(t, b.ok("schedules", "backup", "-o", "id"))
	require.Equal(t, "hourly\n", b.ok("schedules", "new", "-o", "id"))
	b.ok("task", "add", "again", "--in", "0s", "--command", "waits", "--data", "second")
	b.job("command", "again", delayq.StateDone)
	b.ok("enqueue", "new", "--id", "n")
	b.job("new", "n", delayq.StateDone)
	b.ok("enqueue", "backup", "--id", "nobody")
	require.Equal(t, delayq.StateRunning, queuetest.StateOf(t, b.client, "command", "waits"))

	gate, err := os.OpenFile(filepath.Join(b.dir, "go"), os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, gate.Close())
	b.job("command", "waits", delayq.StateDone)
	for name, want := range map[string]string{"done": "input", "other": "second"} {
		text, err := os.ReadFile(filepath.Join(b.dir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	require.Equal(t, delayq.StateReady, queuetest.StateOf(t, b.client, "backup", "nobody"))
	b.stop()
}

const sqlFile = `databases:
  shop: {dsn: "sqlite://DIR/shop.db", migrate: true}
topics:
  sql:
    sql:
      database: shop
      statements:
        create: CREATE TABLE IF NOT EXISTS sessions (id TEXT, seen INTEGER)
        add: INSERT INTO sessions (id, seen) VALUES (:id, :seen)
        clean: DELETE FROM sessions WHERE seen < :before
        missing: DELETE FROM absent
    retention: 1h
    schedules:
      clean: {every: 1h, payload: {statement: clean, arguments: {before: 5}}}
`

// Statements are executed, and a task shows its outcome.
func TestWorkerExecutesStatements(t *testing.T) {
	t.Parallel()
	b := newBench(t, sqlFile)
	b.start()
	once := func(id, statement, data string) {
		b.ok("task", "add", id, "--in", "0s", "--sql", statement, "--data", data, "--config", b.path())
	}
	once("create", "create", "{}")
	b.job("sql", "create", delayq.StateDone)
	for seen := range 10 {
		id := fmt.Sprint("add-", seen)
		payload := fmt.Sprintf(`{"statement": "add", "arguments": {"id": "'); DROP TABLE sessions; --", "seen": %d}}`, seen)
		_, err := b.client.Enqueue(t.Context(), "sql", id, []byte(payload), delayq.Retention(time.Hour))
		require.NoError(t, err)
		b.job("sql", id, delayq.StateDone)
	}
	b.ok("schedule", "trigger", "sql", "clean")
	db, err := sql.Open("sqlite", "file:"+b.dir+"/shop.db?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	queuetest.Until(t, func() bool {
		var n int
		return db.QueryRow("SELECT count(*) FROM sessions").Scan(&n) == nil && n == 5
	})
	once("missing", "missing", "{}")
	require.Contains(t, b.failed("sql", "missing", delayq.StateDead), "no such table: absent")
	once("short", "add", `{"id": "x"}`)
	require.Contains(t, b.failed("sql", "short", delayq.StateDead), `arguments ["id"]; expected exactly ["id" "seen"]`)

	b.ok("task", "add", "zombies", "--every", "1h", "--sql", "missing", "--config", b.path())
	b.ok("schedule", "trigger", "sql", "zombies")
	var list struct{ Tasks []taskRecord }
	for _, name := range []string{"clean", "zombies"} {
		queuetest.Until(t, func() bool {
			info, err := b.insp.Schedule(t.Context(), "sql", name)
			return err == nil && info.LastRun != nil
		})
	}
	require.NoError(t, json.Unmarshal([]byte(b.ok("task", "list", "-o", "json")), &list))
	require.Len(t, list.Tasks, 2)
	clean, zombies := list.Tasks[0], list.Tasks[1]
	require.Equal(t, []string{"clean", "sql clean", "file", "every 1h0m0s", "waiting", "acked"},
		[]string{clean.Name, clean.Task, clean.From, clean.Spec, string(clean.State), string(clean.LastRun.Outcome)})
	require.Equal(t, []string{"zombies", "sql missing", "command", "buried"}, []string{zombies.Name, zombies.Task, zombies.From, string(zombies.LastRun.Outcome)})
	require.Contains(t, zombies.LastRun.Error, "no such table")
	require.Contains(t, b.ok("schedules"), "sql missing")

	require.Equal(t, exitConflict, b.do("", "task", "add", "zombies", "--every", "2h", "--sql", "clean").code)
	b.ok("task", "add", "zombies", "--every", "2h", "--sql", "clean", "--replace")
	require.Contains(t, b.ok("task", "list"), "every 2h")
	b.ok("task", "remove", "zombies")
	require.Equal(t, exitNotFound, b.do("", "task", "remove", "zombies").code)
	b.stop()
}

// Statements are executed in PostgreSQL and MariaDB as in SQLite. The tables of the inbox are made
// at the start.
func TestWorkerExecutesStatementsOnServers(t *testing.T) {
	t.Parallel()
	for _, server := range []struct {
		dialect, driver, name string
		start                 func() (dsn string, stop func(), err error)
	}{{"postgres", "pgx", "postgres", sqltest.Postgres}, {"mariadb", "mysql", "mysql", sqltest.MariaDB}} {
		t.Run(server.dialect, func(t *testing.T) {
			dsn, stop, err := server.start()
			if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
				t.Skip(err)
			}
			require.NoError(t, err)
			defer stop()
			dsn = fmt.Sprintf(dsn, server.name)
			db, err := sql.Open(server.driver, dsn)
			require.NoError(t, err)
			defer func() { require.NoError(t, db.Close()) }()
			_, err = db.Exec("CREATE TABLE orders (id INTEGER, price NUMERIC(10, 2))")
			require.NoError(t, err)

			b := newBench(t, `databases: {shop: {dsn: {from_env: SHOP_DSN}, dialect: `+server.dialect+`, migrate: true}}
topics:
  sql:
    sql:
      database: shop
      isolation: serializable
      statements:
        add: ["INSERT INTO orders (id, price) VALUES (:id, 0)", "UPDATE orders SET price = :price WHERE id = :id"]
        broken: SELECT 1 FROM nowhere
    retention: 1h
`)
			b.env = append(b.env, "SHOP_DSN="+dsn)
			b.start()
			b.ok("task", "add", "a", "--in", "0s", "--sql", "add", "--data", `{"id": 7, "price": "12.50"}`)
			b.job("sql", "a", delayq.StateDone)
			var price string
			require.NoError(t, db.QueryRow("SELECT price FROM orders WHERE id = 7").Scan(&price))
			require.Equal(t, "12.50", price)
			b.ok("task", "add", "b", "--in", "0s", "--sql", "broken")
			require.Contains(t, b.failed("sql", "b", delayq.StateDead), "nowhere")
			b.stop()
			require.NotContains(t, b.logged(), dsn)
		})
	}
}

// A worker needs the rights of the role worker, and no others.
func TestWorkerInItsRole(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	server := redistest.Start(t, redistest.NoRoles...)
	set := []any{"ACL", "SETUSER"}
	for _, word := range strings.Fields(newTool(t, server.Addr(), "shop").ok("acl", "worker"))[1:] {
		set = append(set, strings.Replace(word, ">change-me-worker", ">"+envSecret, 1))
	}
	require.NoError(t, server.Client(t).Do(t.Context(), set...).Err())

	const file = "topics: {backup: {command: {argv: [cat]}, limits: {running: 3}, retention: 1h, schedules: {SCHEDULE: {every: 1h}}}}\n"
	b := newBench(t, strings.ReplaceAll(file, "SCHEDULE", "one"))
	b.client = delayq.NewClient(server.Client(t), delayq.Prefix("shop"))
	b.env = append(newTool(t, "delayq-worker@"+server.Addr(), "shop").env, "DELAYQ_PASSWORD="+envSecret, "PATH="+os.Getenv("PATH"))
	b.start()
	_, err := b.client.Enqueue(t.Context(), "backup", "x", nil)
	require.NoError(t, err)
	b.job("backup", "x", delayq.StateDone)
	b.write("worker.yaml", strings.ReplaceAll(strings.ReplaceAll(file, "SCHEDULE", "two"), "running: 3", "running: 5"))
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGHUP))
	b.await("schedule removed", 1)
	b.await("the schedules are those of the file", 2)
	b.await("others were set before", 1)
	b.stop()
	require.NotContains(t, b.logged(), "NOPERM")
}

const mailFile = `smtp:
  main: {host: 127.0.0.1, port: PORT, encryption: tls, username: shop, password: {from_file: smtp-password}, tls_ca: ca.pem}
topics:
  mail:
    mail:
      server: main
      from: Shop <shop@shop.example>
      templates:
        welcome: {subject: "Welcome, {{.name}}", text: welcome.txt}
    retention: 1h
`

// A mailSession is a session with a mail server that keeps mails, and refuses some recipients.
type mailSession struct{ mails chan<- string }

func (s *mailSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *mailSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != "shop" || password != smtpSecret {
			return errors.New("wrong password")
		}
		return nil
	}), nil
}

func (s *mailSession) Mail(string, *smtp.MailOptions) error { return nil }

func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	switch {
	case strings.HasPrefix(to, "nobody"):
		return &smtp.SMTPError{Code: 550, Message: "no such mailbox"}
	case strings.HasPrefix(to, "busy"):
		return &smtp.SMTPError{Code: 451, Message: "later"}
	}
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	s.mails <- string(text)
	return err
}

func (s *mailSession) Reset()        {}
func (s *mailSession) Logout() error { return nil }

// Mails are sent by TLS with a password.
func TestWorkerSendsMails(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(nil) // for its certificate
	certified.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	mails := make(chan string, 10)
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &mailSession{mails}, nil }))
	server.Domain, server.ErrorLog = "localhost", log.New(io.Discard, "", 0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(tls.NewListener(l, &tls.Config{Certificates: certified.TLS.Certificates}))
	}()
	defer func() {
		_ = server.Close()
		<-ended
	}()

	b := newBench(t, strings.ReplaceAll(mailFile, "PORT", fmt.Sprint(l.Addr().(*net.TCPAddr).Port)))
	b.write("welcome.txt", "Dear {{.name}}\n")
	b.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certified.Certificate().Raw})))
	b.start()
	send := func(name, to string) {
		b.ok("task", "add", name, "--in", "0s", "--mail", "welcome", "--to", to, "--data", `{"name": "Ann"}`, "--config", b.path())
	}
	send("w", "ann@customer.example")
	text := queuetest.Receive(t, mails)
	require.Contains(t, text, "Dear Ann")
	require.Contains(t, text, "Subject: Welcome, Ann")
	b.job("mail", "w", delayq.StateDone)
	send("n", "nobody@customer.example")
	require.Contains(t, b.failed("mail", "n", delayq.StateDead), "550")
	send("busy", "busy@customer.example")
	require.Contains(t, b.failed("mail", "busy", delayq.StateScheduled), "451")
	b.write("smtp-password", smtpSecret+"-that-is-wrong")
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGHUP))
	b.await("the file was loaded", 1)
	send("late", "ann@customer.example")
	require.Contains(t, b.failed("mail", "late", delayq.StateScheduled), "before the mail")
	b.stop()
}

// A worker says whether it is healthy, and what it has done.
func TestWorkerListens(t *testing.T) {
	t.Parallel()
	b := newBench(t, "server: {listen: '127.0.0.1:0'}\ntopics: {backup: {command: {argv: [cat]}, retention: 1h}}\n")
	b.start()
	address := regexp.MustCompile(`on (http://127\.0\.0\.1:\d+)/`).FindStringSubmatch(b.logged())[1]
	require.Contains(t, b.ok("health", address+"/readyz"), "ok")
	require.Contains(t, b.ok("health", address+"/healthz"), "backup")
	b.ok("enqueue", "backup", "--id", "x")
	b.job("backup", "x", delayq.StateDone)
	queuetest.Until(t, func() bool {
		return regexp.MustCompile(`delayq_runs_total\{[^}]*topic="backup"[^}]*\} 1`).MatchString(get(t, address+"/metrics"))
	})
	http.DefaultClient.CloseIdleConnections()
	b.stop()
}

// What task add refuses.
func TestTaskUsage(t *testing.T) {
	cli := newTool(t, "127.0.0.1:1", "shop")
	for want, args := range map[string][]string{
		"exactly one of --every, --cron, --at and --in":    {"--sql", "x"},
		"exactly one of --every, --cron, --at and --in is": {"--sql", "x", "--every", "1h", "--at", "now"},
		"one of --sql, --command, --mail and --webhook":    {"--every", "1h"},
		"--sql and --mail: only one of them":               {"--every", "1h", "--sql", "x", "--mail", "y"},
		"--sql is empty":                                   {"--every", "1h", "--sql", ""},
		"--data: the text is no JSON":                      {"--every", "1h", "--sql", "x", "--data", "{"},
		"--data and --data-file: only one of them":         {"--every", "1h", "--sql", "x", "--data", "1", "--data-file", "-"},
		"--mail needs an address":                          {"--every", "1h", "--mail", "x"},
		"--to is for --mail":                               {"--every", "1h", "--sql", "x", "--to", "a@b.example"},
		"--zone is for cron rules":                         {"--every", "1h", "--sql", "x", "--zone", "UTC"},
		"--overlap is for tasks that run more than once":   {"--in", "1h", "--sql", "x", "--overlap", "skip"},
		`--overlap "x": allowed are skip, allow`:           {"--every", "1h", "--sql", "x", "--overlap", "x"},
		`--missed "x": allowed are run_once, skip`:         {"--every", "1h", "--sql", "x", "--missed", "x"},
		"no such file or directory":                        {"--every", "1h", "--sql", "x", "--config", "/nothing"},
	} {
		r := cli.do("", append([]string{"task", "add", "t"}, args...)...)
		require.Equal(t, exitUsage, r.code, args)
		require.Contains(t, r.err, want, args)
	}
	require.Equal(t, exitUnreachable, cli.do("", "task", "list", "--timeout", "1s").code)
}
