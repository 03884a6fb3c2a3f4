package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// TestMain runs the tests, or the worker that some of them start as a process of its own. A
// goroutine that is left in the end fails the whole: tests close what they open.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		workerMain()
		return
	}
	redis.SetLogger(noLog{}) // go-redis reports every connection that fails
	slog.SetDefault(slog.New(slog.NewTextHandler(&defaultLog, nil)))
	debug.SetGCPercent(400) // the embedded Redis makes a Lua state for every call
	redistest.SideBySide()
	code := m.Run()
	if redistest.Roles() {
		if err := delayq.RolesError(); err != nil {
			fmt.Fprintf(os.Stderr, "as the users of the ACL file:\n%v\n", err)
			code = 1
		}
	}
	if left := leftGoroutines(patience); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines are left after all tests:\n\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// defaultLog has what is logged without a Logger.
var defaultLog logbook

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// leftGoroutines waits until only goroutines are there that may stay, and returns the stacks of the
// others.
func leftGoroutines(limit time.Duration) string {
	mayStay := []string{
		"delayq_test.leftGoroutines",
		"internal/redistest.", // the servers that all tests share end with the process
		"os/signal.", "os/exec.(*Cmd)", "testing.(*F).", "runtime.ReadTrace",
	}
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 16<<20)
		stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
		stacks = slices.DeleteFunc(stacks, func(stack string) bool {
			return slices.ContainsFunc(mayStay, func(name string) bool { return strings.Contains(stack, name) })
		})
		if len(stacks) == 0 || time.Now().After(deadline) {
			return strings.Join(stacks, "\n\n")
		}
	}
}

func TestLeftGoroutinesSeesALeak(t *testing.T) {
	// Not parallel: the goroutines of other tests would be seen as well, which does no harm but
	// proves nothing.
	leak := make(chan struct{})
	go func() { <-leak }()
	defer close(leak)
	require.Contains(t, leftGoroutines(0), "TestLeftGoroutinesSeesALeak.func1")
}

// TestNothingStaysInRedis lets jobs end in every way there is and looks at what keys are left: the
// documented ones. (L3)
func TestNothingStaysInRedis(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		t.Parallel()
		ctx, prefix := t.Context(), redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		enqueue := func(id string, opts ...delayq.JobOption) {
			t.Helper()
			_, err := client.Enqueue(ctx, "a", id, []byte("payload"), append(opts, delayq.Backoff(time.Millisecond, 2*time.Millisecond))...)
			require.NoError(t, err)
		}
		const each = 20
		kinds := []string{"plain", "late", "fail", "snooze", "panic", "goexit", "timeout", "dead", "expired", "cancelled", "replaced", "running"}
		for i := range each {
			for _, kind := range kinds {
				id := fmt.Sprintf("%s-%d", kind, i)
				switch kind {
				case "late":
					enqueue(id, delayq.ProcessIn(time.Duration(i)*time.Millisecond))
				case "timeout":
					enqueue(id, delayq.Timeout(time.Millisecond))
				case "dead":
					enqueue(id, delayq.Retry(1))
				case "expired":
					enqueue(id, delayq.ExpireIn(time.Millisecond))
				case "cancelled":
					enqueue(id, delayq.ProcessIn(time.Duration(i%2)*time.Hour))
					_, err := client.Dequeue(ctx, "a", id)
					require.NoError(t, err)
				case "replaced":
					enqueue(id, delayq.ProcessIn(time.Hour))
					enqueue(id, delayq.Replace())
				default:
					enqueue(id)
				}
			}
		}
		now, err := rdb.Time(ctx).Result()
		require.NoError(t, err)
		until(t, func() bool { // so that those that expire have
			later, err := rdb.Time(ctx).Result()
			return err == nil && later.Sub(now) > 2*time.Millisecond
		})
		var hooks told
		running := make(chan string, each)
		s := serve(t, rdb, prefix, "a", func(ctx context.Context, job *delayq.Job) error {
			kind, _, _ := strings.Cut(job.ID, "-")
			first := job.Attempt == 1
			switch {
			case kind == "dead", kind == "fail" && first:
				return errors.New("no")
			case kind == "snooze" && job.Due.Equal(job.EnqueuedAt):
				return delayq.Snooze(time.Millisecond)
			case kind == "panic" && first:
				panic("at the disco")
			case kind == "goexit" && first:
				runtime.Goexit()
			case kind == "timeout" && first:
				<-ctx.Done()
				return ctx.Err()
			case kind == "running":
				running <- job.ID
				<-ctx.Done()
			}
			return nil
		}, delayq.Concurrency(5), delayq.Hooks(&hooks), delayq.Tick(20*time.Millisecond))
		for range each {
			_, err := client.Dequeue(ctx, "a", receive(t, running))
			require.NoError(t, err)
		}
		until(t, func() bool {
			return len(hooks.of("Done"))+len(hooks.of("Buried"))+len(hooks.of("Expired"))+len(hooks.of("Cancelled")) == (len(kinds)-1)*each
		})
		require.NoError(t, s.stop())
		require.Len(t, hooks.of("Buried"), each)
		require.Len(t, hooks.of("Expired"), each)
		require.Len(t, hooks.of("Cancelled"), each)

		// The dead are kept with their errors, until somebody removes them.
		info, err := client.Inspect(ctx, "a")
		require.NoError(t, err)
		require.EqualValues(t, each, info.Dead)
		require.Zero(t, info.Scheduled+info.Ready+info.Running+info.Done)
		for i := range each {
			_, err := client.Dequeue(ctx, "a", fmt.Sprintf("dead-%d", i))
			require.NoError(t, err)
		}
		keys, err := redistest.Census(ctx, rdb, prefix+":*")
		require.NoError(t, err)
		delete(keys, prefix+":topics")
		require.Contains(t, keys, prefix+":{a}:stats")
		for key := range keys {
			if rest := strings.TrimPrefix(key, prefix+":{a}:"); strings.HasPrefix(rest, "receipt:") || strings.HasPrefix(rest, "taken:") {
				require.Positive(t, rdb.PTTL(ctx, key).Val(), "%s does not expire", key)
				delete(keys, key)
			}
		}
		delete(keys, prefix+":{a}:stats")
		require.Empty(t, keys)
	})
}
