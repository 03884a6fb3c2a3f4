package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A noAudit answers calls that write to the audit with an error.
type noAudit struct {
	key   string
	cause error
}

func (n *noAudit) DialHook(next redis.DialHook) redis.DialHook { return next }
func (n *noAudit) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (n *noAudit) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") && !strings.HasSuffix(cmd.Name(), "_ro") && len(cmd.Args()) > 3 && fmt.Sprint(cmd.Args()[3]) == n.key {
			cmd.SetErr(n.cause)
			return n.cause
		}
		return next(ctx, cmd)
	}
}

// A reply is an error that Redis has answered with.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// auditCauses are why the audit is not written: one for each exit code that its cause would have
// alone.
var auditCauses = map[int]error{
	exitError:       reply("WRONGTYPE Operation against a key holding the wrong kind of value"),
	exitRefused:     reply("NOPERM this user has no permissions to access one of the keys used as arguments"),
	exitUnreachable: &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")},
}

// actingLines returns command lines, at least one for each command that acts, in an order in which
// each finds something to act on.
func actingLines(folder string) [][]string {
	return [][]string{
		{"enqueue", "order:cancel", "--id", "keyed-1", "--key", "t", "--in", "1h"},
		{"enqueue", "order:cancel", "--id", "keyed-2", "--key", "t", "--in", "1h"},
		{"enqueue", "gone", "--id", "x"},
		{"cancel", "gone", "x"},
		{"remove", "gone", "nothing"},
		{"priority", "order:cancel", "keyed-1", "--ahead", "1h"},
		{"cancel", "order:cancel", "order-1", "--state", "scheduled"},
		{"cancel", "order:cancel", "keyed-2", "nobody"},
		{"reschedule", "order:cancel", "order-2", "訂單-3", "--in", "3h"},
		{"reschedule", "order:cancel", "order-2", "訂單-3", "--by", "1h"},
		{"reschedule", "order:cancel", "--all", "--by", "1h", "--yes", "--pace", "2"},
		{"reschedule", "order:cancel", "--all", "--in", "5h", "--yes", "--at-most", "1"},
		{"reschedule", "--all-topics", "--id-prefix", "order", "--in", "4h", "--yes"},
		{"run", "order:cancel", "order-2"},
		{"bury", "refund:poll", "refund-9", "--because", "a trap"},
		{"revive", "refund:poll", "refund-9"},
		{"move", "refund:poll", "refund-9", "other"},
		{"purge", "mail:welcome", "dead-1"},
		{"purge", "mail:welcome", "--state", "dead", "--all", "--yes"},
		{"pause", "order:cancel", "other"},
		{"resume", "order:cancel", "other"},
		{"hold", "order:cancel", "other", "--for", "10m"},
		{"hold", "order:cancel", "other", "--end"},
		{"limits", "order:cancel", "--running", "5"},
		{"partition", "report:daily", "3", "--by-key"},
		{"key", "order:cancel", "t", "--weight", "3", "--hold", "10m"},
		{"key", "order:cancel", "t", "--pause"},
		{"key", "order:cancel", "t", "--resume"},
		{"schedule", "pause", "report:weekly", "tick", "tenant-7"},
		{"schedule", "resume", "report:weekly", "tick"},
		{"schedule", "trigger", "report:weekly", "tick"},
		{"schedule", "edit", "report:weekly", "tenant-7", "--max-runs", "5"},
		{"schedule", "remove", "report:weekly", "tick"},
		{"schedule", "sync", filepath.Join(folder, "schedules.yaml"), "--yes"},
		{"task", "add", "backup", "--every", "1h", "--command", "report"},
		{"task", "add", "backup", "--every", "2h", "--command", "report", "--replace"},
		{"task", "add", "once", "--in", "1h", "--command", "report"},
		{"task", "remove", "backup"},
		{"import", filepath.Join(folder, "jobs.jsonl")},
		{"doctor", "order:cancel", "--repair"},
	}
}

// readingCommands are the commands that change nothing in Redis that the audit is about, and those
// that act in another way, with the reason.
var readingCommands = map[string]string{
	"top":     "TestTopSaysWhatTheAuditLacks",
	"relay":   "a relay is no person",
	"worker":  "a worker is no person",
	"web":     "the module web has a test of its own",
	"gateway": "its acts are those of tokens: TestGatewayWithoutAudit of the package gateway",
	"demo":    "it has its own Redis",

	"import asynq": "TestImportAsynqWithoutAudit: it needs the tasks of asynq",

	"exporter": "it reads", "acl": "it reads", "audit": "it reads", "check": "it reads", "completion": "it reads", "explain": "it reads",
	"export": "it reads", "failures": "it reads", "find": "it reads", "health": "it reads", "help": "it reads", "job": "it reads", "jobs": "it reads",
	"keys": "it reads", "memory": "it reads", "schedules": "it reads", "server": "it reads", "servers": "it reads", "stats": "it reads", "undelivered": "it reads", "flow": "it reads",
	"topic": "it reads", "topics": "it reads", "version": "it reads", "wait": "it changes no job", "schedule show": "it reads", "schedule runs": "it reads",
	"task list": "it reads",
}

// acting carries out the lines, and calls a function with what each has written.
func (w *world) acting(folder string, each func(args []string, r result)) {
	for _, args := range actingLines(folder) {
		if args[0] == "doctor" { // a scheduled job loses its place
			require.NoError(w, w.Redis.Client().ZRem(w.Context(), queuetest.Prefix+":{order:cancel}:bucket", "訂單-3").Err())
		}
		each(args, w.do(args...))
	}
}

// If the audit is not written, each command does and shows what it does otherwise. It says that the
// audit lacks it, and has the exit code 5.
func TestWhatTheAuditLacksIsDone(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	write("schedules.yaml", "topic: report:weekly\nschedules:\n- {name: new, every: 1h}\n")
	write("jobs.jsonl", `{"schema":"delayq.export/1","topic":"imported","id":"i","state":"ready","payload":"x"}`+"\n")
	var want []result
	inWorld(t, func(w *world) {
		newest := func() time.Time {
			list, err := w.Inspector.Audit(w.Context(), 1)
			require.NoError(w, err)
			if len(list) == 0 {
				return time.Time{}
			}
			return list[0].At
		}
		at := newest()
		w.acting(folder, func(args []string, r result) {
			require.NotEqual(w, at, newest(), "%v is not in the audit: %s%s", args, r.out, r.err)
			at = newest()
			r.out = w.clean(r.out)
			want = append(want, r)
			w.Pass(time.Second)
		})
	})
	for code, cause := range auditCauses {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.deafAudit(cause)
				n := 0
				w.acting(folder, func(args []string, r result) {
					require.Equal(w, want[n].out, w.clean(r.out), "%v: %s", args, r.err)
					stored := strings.HasPrefix(strings.Join(args, " "), "enqueue") || args[0] == "import" || slices.Contains(args, "once")
					switch {
					case stored && code == exitRefused: // who may only store jobs has no right to the audit
						require.Contains(w, r.err, "it is not in the audit: this user of Redis has no right to that", args)
						require.Zero(w, r.code, args)
					default:
						require.Contains(w, r.err, "done, but not recorded in the audit: audit: "+cause.Error(), args)
						require.Equal(w, exitPartly, r.code, "%v: %s", args, r.err)
					}
					n++
					w.Pass(time.Second)
				})
				list, err := w.Inspector.Audit(w.Context(), 1)
				require.NoError(w, err)
				require.Empty(w, list)
			})
		})
	}
}

// deafAudit makes the audit answer the command line with an error.
func (w *world) deafAudit(cause error) {
	w.dialer = func(c *connection) (redis.UniversalClient, error) {
		rdb := w.Redis.Client()
		rdb.AddHook(&noAudit{queuetest.Prefix + ":audit", cause})
		return rdb, nil
	}
}

// Each command is either among the lines of actingLines, or has a reason not to be.
func TestActingLinesHaveEveryCommand(t *testing.T) {
	a := &app{process: &process{name: "delayqd", in: &input{Reader: strings.NewReader("")}, out: &output{Writer: io.Discard}, err: &output{Writer: io.Discard}, getenv: func(string) string { return "" }}}
	known := make(map[string]bool)
	var walk func(cmd *cobra.Command, path string)
	walk = func(cmd *cobra.Command, path string) {
		for _, child := range cmd.Commands() {
			name := strings.TrimSpace(path + " " + child.Name())
			if child.HasSubCommands() && readingCommands[name] == "" {
				walk(child, name)
				continue
			}
			if child.Hidden {
				continue
			}
			acts := slices.ContainsFunc(actingLines(""), func(args []string) bool { return strings.HasPrefix(strings.Join(args, " ")+" ", name+" ") })
			require.NotEqual(t, acts, readingCommands[name] != "", "%s: has to be in one of the two lists", name)
			known[name] = true
		}
	}
	walk(a.root(), "")
	for name := range readingCommands {
		require.True(t, known[name] || name == "help" || name == "completion", "there is no command %s", name)
	}
}

// A move that the audit lacks is done. So is taking back the copy of a job that changes in between.
func TestMoveSaysWhereTheJobIsWithoutAudit(t *testing.T) {
	inWorld(t, func(w *world) {
		w.deafAudit(auditCauses[exitRefused])
		w.Enqueue("from", "job", delayq.ProcessIn(time.Hour))
		r := w.do("move", "from", "job", "to", "-o", "jsonl")
		require.Contains(w, r.out, `"done":true`)
		require.NotContains(w, r.out+r.err, "both topics")
		require.Equal(w, exitPartly, r.code)
		_, err := w.Client.Get(w.Context(), "from", "job")
		require.ErrorIs(w, err, delayq.ErrNotFound)
		w.Get("to", "job")

		// It changes between the two steps, and the copy is taken back.
		w.Enqueue("from", "other", delayq.ProcessIn(time.Hour))
		quiet := w.dialer
		w.dialer = func(c *connection) (redis.UniversalClient, error) {
			rdb, err := quiet(c)
			rdb.AddHook(&interruption{isScript("enqueue", "enqueue_later", "enqueue_now"), func() {
				require.NoError(w, w.Client.Reschedule(context.Background(), "from", "other", delayq.ProcessIn(2*time.Hour)))
			}})
			return rdb, err
		}
		r = w.do("move", "from", "other", "to")
		require.Contains(w, r.out, "the job started or changed before it was moved")
		require.NotContains(w, r.out+r.err, "remains")
		require.Contains(w, r.err, "not recorded in the audit")
		require.Equal(w, exitConflict, r.code)
		w.Get("from", "other")
		_, err = w.Client.Get(w.Context(), "to", "other")
		require.ErrorIs(w, err, delayq.ErrNotFound)
	})
}

// isScript reports whether a command calls one of these scripts.
func isScript(names ...string) func(cmd redis.Cmder) bool {
	digests := delayq.Scripts()
	return func(cmd redis.Cmder) bool {
		if len(cmd.Args()) < 2 {
			return false
		}
		called := fmt.Sprint(cmd.Args()[1])
		return slices.ContainsFunc(names, func(name string) bool { return called == digests[name] || strings.Contains(called, "-- "+name+": ") })
	}
}

// A lost answer leaves open where a moved job is.
func TestMoveWithoutAnswerSaysWhatIsUnknown(t *testing.T) {
	for script, text := range map[string]string{"enqueue": "the job may be in both topics: ", "cancel": "the job may be in both topics: "} {
		t.Run(script, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.Enqueue("from", "job", delayq.ProcessIn(time.Hour))
				w.dialer = func(*connection) (redis.UniversalClient, error) {
					rdb := w.Redis.Client()
					rdb.AddHook(&lostAnswer{isScript(script, "enqueue")})
					if script == "cancel" {
						rdb = w.Redis.Client()
						rdb.AddHook(&lostAnswer{isScript(script)})
					}
					return rdb, nil
				}
				r := w.do("move", "from", "job", "to", "-o", "jsonl")
				require.Contains(w, r.out+r.err, text)
				require.NotContains(w, r.out+r.err, "is in both")
				require.Equal(w, exitUnreachable, r.code, r.err)
			})
		})
	}
}

// A lostAnswer executes a command and loses its answer.
type lostAnswer struct{ is func(cmd redis.Cmder) bool }

func (l *lostAnswer) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *lostAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (l *lostAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && l.is(cmd) {
			err = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
			cmd.SetErr(err)
		}
		return err
	}
}

// The live view says that an act is done, and goes on to offer acts.
func TestTopSaysWhatTheAuditLacks(t *testing.T) {
	m := snapshot(t, 100, 30)
	silent := fmt.Errorf("pause topic %q: %w: %w", "a", delayq.ErrNotAudited, auditCauses[exitRefused])
	m.Update(topActed{"a: paused", errors.Join(nil, silent)})
	require.Equal(t, "a: paused, but not recorded in the audit: "+auditCauses[exitRefused].Error(), m.said)
	require.False(t, m.readOnly)
	m.Update(topActed{"a: 3 jobs revived", errors.Join(delayq.ErrUnknownOutcome, silent)})
	require.Contains(t, m.said, errorText(delayq.ErrUnknownOutcome)+", but not recorded in the audit: ")
	m.Update(topActed{"a: paused", auditCauses[exitRefused]})
	require.True(t, m.readOnly)
}

// What has failed is told apart from what the audit lacks.
func TestUnrecorded(t *testing.T) {
	silent := fmt.Errorf("cancel job %q: %w: %w", "a", delayq.ErrNotAudited, io.EOF)
	for name, test := range map[string]struct{ err, failed, silent error }{
		"nothing": {},
		"failed":  {delayq.ErrNotFound, delayq.ErrNotFound, nil},
		"silent":  {silent, nil, silent},
		"one":     {errors.Join(silent), nil, silent},
		"both":    {errors.Join(delayq.ErrNotFound, silent), delayq.ErrNotFound, silent},
		"deep":    {fmt.Errorf("more: %w", errors.Join(silent)), nil, silent},
	} {
		failed, about := unrecorded(test.err)
		for _, pair := range [][2]error{{test.failed, failed}, {test.silent, about}} {
			if pair[0] == nil {
				require.NoError(t, pair[1], name)
				continue
			}
			require.ErrorIs(t, pair[1], pair[0], name)
		}
		if failed != nil {
			require.NotErrorIs(t, failed, delayq.ErrNotAudited, name)
		}
	}
	var errs bytes.Buffer
	a := &app{process: &process{err: &output{Writer: &errs}}}
	require.NoError(t, a.acted(silent))
	require.NoError(t, a.acted(errors.Join(silent)))
	require.Equal(t, exitPartly, codeOf(a.ended(nil)))
	require.Equal(t, "error: cancel job \"a\": done, but not recorded in the audit: EOF; 1 more not recorded\n", errs.String())
}
