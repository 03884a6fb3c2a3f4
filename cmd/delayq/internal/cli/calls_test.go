package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// An interruption cancels a context after the first reply to an act, as Ctrl-C does.
type interruption struct {
	act    func(cmd redis.Cmder) bool
	cancel context.CancelFunc
}

func (i *interruption) DialHook(next redis.DialHook) redis.DialHook { return next }
func (i *interruption) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			i.after(cmd, cmd.Err())
		}
		return err
	}
}
func (i *interruption) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		i.after(cmd, err)
		return err
	}
}
func (i *interruption) after(cmd redis.Cmder, err error) {
	if err == nil && i.act(cmd) {
		i.cancel()
	}
}

// A move that is interrupted between its two steps says that the job is in both topics.
func TestInterruptedMoveSaysWhereTheJobIs(t *testing.T) {
	for _, format := range []string{"table", "json", "jsonl", "id"} {
		t.Run(format, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.Enqueue("from", "job", delayq.ProcessIn(time.Hour))
				ctx, cancel := context.WithCancel(w.ctx)
				defer cancel()
				var out, errs bytes.Buffer
				p := w.process([]string{"move", "from", "job", "to", "-o", format}, &out, &errs)
				digests := delayq.Scripts()
				p.dial = func(c *connection) (redis.UniversalClient, error) {
					rdb, err := w.dial(c)
					rdb.AddHook(&interruption{func(cmd redis.Cmder) bool {
						script := ""
						if len(cmd.Args()) > 1 {
							script = fmt.Sprint(cmd.Args()[1])
						}
						return slices.ContainsFunc([]string{"enqueue", "enqueue_later", "enqueue_now"}, func(name string) bool {
							return digests[name] == script || strings.Contains(script, "-- "+name+": ")
						})
					}, cancel})
					return rdb, err
				}
				require.Equal(w, exitInterrupted, run(ctx, p), format)
				require.Contains(w, errs.String(), "job: the job is in both topics: ", format)
				require.Contains(w, errs.String(), "interrupted after 0 jobs\n", format)
				w.Get("from", "job")
				w.Get("to", "job")
			})
		})
	}
}

// A command that acts on one thing after the other and is interrupted says how far it came. What is
// done has a row, and what comes after it is unchanged.
func TestInterruptedActsSayHowFarTheyCame(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, name := range []string{"one", "two"} {
			require.NoError(w, w.Client.Schedule(w.Context(), "t", name, delayq.Every(time.Hour), nil))
			w.ok("task", "add", "task-"+name, "--every", "1h", "--command", "report")
			w.Enqueue("from", "job-"+name, delayq.ProcessIn(time.Hour))
			require.NoError(w, w.Client.Pause(w.Context(), "topic-"+name, delayq.Pause{}))
			w.Enqueue("topic-"+name, "x")
			_, err := w.Client.Dequeue(w.Context(), "topic-"+name, "x")
			require.NoError(w, err)
		}
		digests := delayq.Scripts()
		for _, test := range []struct {
			args   []string
			script string // of the act
			noun   string
		}{
			{[]string{"schedule", "pause", "t", "one", "two"}, "schedule_pause", "schedule"},
			{[]string{"schedule", "trigger", "t", "one", "two"}, "schedule_trigger", "schedule"},
			{[]string{"schedule", "remove", "t", "one", "two"}, "schedule_remove", "schedule"},
			{[]string{"task", "remove", "task-one", "task-two"}, "schedule_remove", "task"},
			{[]string{"move", "from", "job-one", "job-two", "to"}, "cancel", "job"},
			{[]string{"remove", "topic-one", "topic-two"}, "remove_topic", "topic"},
		} {
			ctx, cancel := context.WithCancel(w.ctx)
			var out, errs bytes.Buffer
			p := w.process(test.args, &out, &errs)
			p.dial = func(c *connection) (redis.UniversalClient, error) {
				rdb, err := w.dial(c)
				rdb.AddHook(&interruption{func(cmd redis.Cmder) bool {
					return len(cmd.Args()) > 1 && (cmd.Args()[1] == digests[test.script] || strings.Contains(fmt.Sprint(cmd.Args()[1]), "-- "+test.script+": "))
				}, cancel})
				return rdb, err
			}
			code := run(ctx, p)
			cancel()
			require.Equal(w, exitInterrupted, code, test.args)
			require.Equal(w, "interrupted after 1 "+test.noun+"\n", errs.String(), test.args)
			require.Contains(w, out.String(), "one", test.args)
			require.NotContains(w, out.String(), "two", test.args)
			require.NotContains(w, out.String(), "failed", test.args)
			if test.script != "schedule_trigger" && !strings.HasPrefix(test.args[1], "pause") { // the next one goes on
				r := w.do(append(test.args[:len(test.args):len(test.args)], "-o", "jsonl")...)
				require.Contains(w, r.out, `"done":true`, "the second one was there: %s%s", r.out, r.err)
			}
		}
	})
}
