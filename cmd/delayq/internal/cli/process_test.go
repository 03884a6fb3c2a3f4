package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// The tests in this file run the command line as a process, on a real Redis.

// processEnv makes the test binary the command line.
const processEnv = "DELAYQ_TEST_PROCESS"

// A tool is the command line as a process.
type tool struct {
	t   *testing.T
	env []string
}

// newTool returns the command line for the Redis at an address.
func newTool(t *testing.T, addr, prefix string, env ...string) *tool {
	env = append(env, processEnv+"=1", "DELAYQ_REDIS=redis://"+addr, "DELAYQ_PREFIX="+prefix, "DELAYQ_TIME=utc", "USER=alice")
	return &tool{t, append(env, "HOME="+t.TempDir())}
}

func (c *tool) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), os.Args[0], args...)
	cmd.Env = c.env
	return cmd
}

// do runs a command line to its end.
func (c *tool) do(stdin string, args ...string) result {
	c.t.Helper()
	var out, errs bytes.Buffer
	cmd := c.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		require.NoError(c.t, err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// ok is do for a command that is expected to succeed.
func (c *tool) ok(args ...string) string {
	c.t.Helper()
	r := c.do("", args...)
	require.Zero(c.t, r.code, "%v: %s", args, r.err)
	return r.out
}

// onRealRedis returns the command line for the shared real Redis.
func onRealRedis(t *testing.T) (*tool, *delayq.Client) {
	rdb := redistest.Shared(t)
	prefix := redistest.Prefix(t)
	return newTool(t, rdb.Options().Addr, prefix), delayq.NewClient(rdb, delayq.Prefix(prefix))
}

// fill stores n ready jobs.
func fill(t *testing.T, client *delayq.Client, topic string, n int) {
	t.Helper()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: topic, ID: fmt.Sprintf("job-%05d", i)}
	}
	_, err := client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
}

// A day of an operator on a real Redis.
func TestRealRedis(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	require.Equal(t, "order-1\n", cli.ok("enqueue", "order:cancel", "--id", "order-1", "--in", "1h", "--payload", "x", "-o", "id"))
	fill(t, client, "many", 2500)
	require.Contains(t, cli.ok("topics"), "NO SERVER")
	require.Equal(t, 2500, strings.Count(cli.ok("jobs", "many", "--state", "ready", "--all", "-o", "id"), "\n"))

	// Pages by cursor.
	seen := map[string]bool{}
	cursor := regexp.MustCompile(`--cursor (\S+)\n`)
	for args := []string{}; ; {
		r := cli.do("", append([]string{"jobs", "many", "--state", "ready", "--limit", "1000", "-o", "id"}, args...)...)
		require.Zero(t, r.code, r.err)
		for id := range strings.Lines(r.out) {
			require.False(t, seen[id], id)
			seen[id] = true
		}
		m := cursor.FindStringSubmatch(r.err)
		if m == nil {
			break
		}
		args = []string{"--cursor", m[1]}
	}
	require.Len(t, seen, 2500)

	// What is exported can be imported.
	binary := "\xff\x00"
	_, err := client.Enqueue(t.Context(), "order:cancel", binary, []byte(binary), delayq.Header(binary, binary), delayq.ProcessIn(2*time.Hour), delayq.Retry(3),
		delayq.Backoff(time.Second, time.Minute), delayq.Timeout(time.Minute), delayq.Retention(time.Hour), delayq.ExpireIn(3*time.Hour))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "jobs.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(cli.ok("export", "order:cancel")), 0o600))
	require.Contains(t, cli.ok("import", file, "--topic", "copy"), "2 jobs stored")
	require.Contains(t, cli.ok("import", file, "--topic", "copy"), "0 jobs stored, 2 duplicates")
	for _, id := range []string{"order-1", binary} {
		want, err := client.Get(t.Context(), "order:cancel", id)
		require.NoError(t, err)
		got, err := client.Get(t.Context(), "copy", id)
		require.NoError(t, err)
		require.Equal(t, want.Payload, got.Payload)
		require.Equal(t, want.Headers, got.Headers)
		require.Equal(t, want.Due, got.Due)
		require.Equal(t, want.ExpireAt, got.ExpireAt)
		require.Equal(t, want.Retries, got.Retries)
		require.Equal(t, want.BackoffLimit, got.BackoffLimit)
		require.Equal(t, want.Timeout, got.Timeout)
		require.Equal(t, want.Retention, got.Retention)
	}
}

// A thousand schedules of tenants are made, compared and removed in few calls.
func TestSyncOfAThousandSchedules(t *testing.T) {
	t.Parallel()
	cli, _ := onRealRedis(t)
	var file strings.Builder
	file.WriteString("topic: report\nschedules:\n")
	for i := range 1000 {
		fmt.Fprintf(&file, "- {name: tenant-%04d, cron: '%d 9 * * 1', zone: Europe/Berlin, payload: '%d'}\n", i, i%60, i)
	}
	r := cli.do(file.String(), "schedule", "sync", "-", "--yes", "-o", "jsonl")
	require.Zero(t, r.code, r.err)
	require.Equal(t, 1000, strings.Count(r.out, `"step":"add"`))
	require.Equal(t, 1000, strings.Count(r.out, `"done":true`))
	r = cli.do(file.String(), "schedule", "sync", "-", "--yes")
	require.Equal(t, "add 0, change 0, remove 0, and leave 1,000 as they are\n", r.err)
	r = cli.do("topics: [report]", "schedule", "sync", "-", "--yes", "-o", "id")
	require.Equal(t, 1000, strings.Count(r.out, "\n"))
	require.Empty(t, cli.ok("schedules", "report", "-o", "id"))
}

// The reader of a pipe goes away: the process ends at once and says nothing.
func TestProcessPipeClosedEarly(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "many", 5000)
	var errs bytes.Buffer
	cmd := cli.command("jobs", "many", "--state", "ready", "--all", "-o", "jsonl")
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, out.Close())
	_ = cmd.Wait() // it may have been ended by SIGPIPE
	require.Empty(t, errs.String())
}

// The scripts of completion work in the shells that are installed.
func TestCompletionInShells(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "order:cancel", 3)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(os.Args[0], filepath.Join(dir, "delayq")))
	for shell, script := range map[string]string{
		"bash": `_get_comp_words_by_ref() { # of the package bash-completion
				words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
			}
			__ltrim_colon_completions() { :; }
			compopt() { :; }
			source <(delayq completion bash)
			COMP_WORDS=(delayq jobs ord) COMP_CWORD=2 COMP_LINE="delayq jobs ord" COMP_POINT=15 COMP_TYPE=9
			__start_delayq
			echo "${COMPREPLY[@]}"`,
		"zsh": `autoload -U compinit; compinit -u; source <(delayq completion zsh)
			whence _delayq >/dev/null && delayq __complete jobs ord 2>/dev/null | head -1`,
	} {
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("%s is not installed", shell)
			continue
		}
		cmd := exec.CommandContext(t.Context(), path, "-c", script)
		cmd.Env = append(cli.env, "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
		require.Contains(t, string(out), "order:cancel", shell)
	}
}

// readers are the command lines that need no right to write. T is a topic with a job j, and F one
// with a flow f.
var readers = [][]string{
	{"topics"}, {"topic", "T", "--over", "0s"}, {"jobs", "T"}, {"jobs", "T", "--state", "ready"}, {"jobs", "T", "--error", "x", "--state", "dead"}, {"job", "T", "j"},
	{"find", "j"}, {"explain", "T", "j"}, {"failures", "T"}, {"keys", "T"}, {"undelivered", "T"}, {"flow", "F", "f"}, {"key", "T", "k"}, {"limits", "T"}, {"partition", "T"}, {"servers"}, {"stats"}, {"check", "--max-lateness", "1d"}, {"schedules"}, {"schedule", "show", "T", "s"},
	{"schedule", "runs", "T", "s"}, {"task", "list"}, {"doctor"}, {"audit"}, {"export", "T"}, {"schedule", "sync", "-", "--dry-run"},
}

// startF starts the flow f.
func startF(t *testing.T, client *delayq.Client) {
	t.Helper()
	f := delayq.NewFlow("F", "f", nil).Deadline(time.Hour)
	f.AddJob("F", "first", nil)
	_, err := client.Start(t.Context(), f)
	require.NoError(t, err)
}

// writers are command lines that change something.
var writers = [][]string{
	{"enqueue", "T"}, {"wait", "T", "j", "--for", "1s"}, {"move", "T", "j", "U"}, {"pause", "T"}, {"resume", "T"}, {"hold", "T", "--for", "1m"}, {"hold", "T", "--end"},
	{"limits", "T", "--running", "1"}, {"limits", "T", "--none"}, {"partition", "T", "2"}, {"key", "T", "k", "--pause"}, {"priority", "T", "j", "--ahead", "1m"}, {"remove", "U"}, {"schedule", "pause", "T", "s"},
	{"schedule", "resume", "T", "s"}, {"schedule", "trigger", "T", "s"}, {"schedule", "remove", "T", "s"}, {"schedule", "edit", "T", "s", "--every", "2h"},
	{"import", "-"}, {"task", "add", "u", "--every", "1h", "--sql", "x"}, {"task", "remove", "t"},
}

// Every command that reads works as the read-only user of the ACL file, with its password from the
// environment. Every command that writes is refused and changes nothing. The operator may set
// limits and holds, of a key too, and divide a topic. The lines are those of the command acl.
func TestReadOnlyUser(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	server := redistest.Start(t, redistest.NoRoles...)
	rdb := server.Client(t)
	client := delayq.NewClient(rdb, delayq.Prefix("shop"))
	_, err := client.Enqueue(t.Context(), "T", "j", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, client.Schedule(t.Context(), "T", "s", delayq.Every(time.Hour), nil))
	require.NoError(t, client.Schedule(t.Context(), "T", "t", delayq.Every(time.Hour), nil, delayq.Header("task", "sql x")))
	_, err = client.Enqueue(t.Context(), "T", "d", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, client.Bury(t.Context(), "T", "d", "dead"))
	startF(t, client)

	for _, role := range []string{"inspector", "operator"} {
		set := []any{"ACL", "SETUSER"}
		for _, word := range strings.Fields(newTool(t, server.Addr(), "shop").ok("acl", role))[1:] {
			set = append(set, strings.Replace(word, ">change-me-"+role, ">s3cret", 1))
		}
		require.NoError(t, rdb.Do(t.Context(), set...).Err())
	}

	reader := newTool(t, "delayq-inspector@"+server.Addr(), "shop", "DELAYQ_PASSWORD=s3cret")
	exported := reader.ok("export", "T")
	before := redistest.Dump(t, rdb, "shop")
	for _, args := range readers {
		r := reader.do("topics: [T]", args...)
		require.Zero(t, r.code, "%v: %s", args, r.err)
	}
	for _, args := range writers {
		r := reader.do(strings.ReplaceAll(exported, `"j"`, `"k"`), args...)
		require.Equal(t, exitRefused, r.code, "%v: %s%s", args, r.out, r.err)
		require.NotContains(t, r.err, "s3cret")
	}
	require.Equal(t, before, redistest.Dump(t, rdb, "shop"))

	operator := newTool(t, "delayq-operator@"+server.Addr(), "shop", "DELAYQ_PASSWORD=s3cret")
	for _, args := range writers {
		if args[0] == "limits" || args[0] == "hold" || args[0] == "partition" || args[0] == "key" {
			operator.ok(args...)
		}
	}

	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("wrong\n"), 0o600))
	r := reader.do("", "topics", "--password-file", file)
	require.Equal(t, exitRefused, r.code, r.err)
	require.NotContains(t, r.err, "wrong\n")
}

// Every command is in one of the lists above, or in this one, because it does not need Redis or
// runs until it is left.
func TestReadersAndWritersAreAllCommands(t *testing.T) {
	var out bytes.Buffer
	root := newApp(&out).root()
	listed := []string{"delayq", "delayq schedule", "delayq acl", "delayq version", "delayq server", "delayq top", "delayq demo", "delayq exporter", "delayq gateway", "delayq import asynq", "delayq web", "delayq relay", "delayq memory", "delayq health", "delayq worker", "delayq task"}
	for _, args := range slices.Concat(readers, writers) {
		cmd, _, err := root.Find(args)
		require.NoError(t, err)
		listed = append(listed, cmd.CommandPath())
	}
	walk(root, func(cmd *cobra.Command) { require.Contains(t, listed, cmd.CommandPath()) })
}
