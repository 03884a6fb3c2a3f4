package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// waitsForItsEnd is a handler that runs until its context ends, and notes why it did.
func waitsForItsEnd(causes chan<- error) delayq.HandlerFunc {
	return func(ctx context.Context, _ *delayq.Job) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	}
}

// Redis comes back without its data. Handlers hear that their leases are lost and not that somebody
// has cancelled their jobs; the log has one error for each topic that had jobs, however often it
// happens; Topics heals.
func TestRedisComesBackEmpty(t *testing.T) {
	for name, afterwards := range map[string]func(b *queuetest.Bubble){
		"nobody comes":            func(*queuetest.Bubble) {},
		"others use it at once":   func(b *queuetest.Bubble) { b.Enqueue("a", "new"); b.Enqueue("a", "1") },
		"while it is looked into": func(b *queuetest.Bubble) { b.Pass(7 * time.Second); b.Enqueue("a", "1") },
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var log queuetest.Logbook
				var hooks queuetest.HookLog
				causes := make(chan error, 100)
				s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					s.HandlerFunc("a", waitsForItsEnd(causes))
					s.HandlerFunc("b", queuetest.Nothing)
					s.HandlerFunc("idle", queuetest.Nothing)
				}, log.To(), delayq.Hooks(&hooks), delayq.Lease(30*time.Second))
				synctest.Wait()
				for i := range 3 {
					b.Enqueue("a", fmt.Sprint(i))
				}
				b.Enqueue("b", "done")
				b.Pass(12 * time.Second)
				require.Len(b, hooks.Of("Started"), 4)
				require.NoError(b, b.RDB.FlushDB(b.Context()).Err())
				afterwards(b)
				b.Pass(6 * time.Second)
				topics, err := b.Inspector.Topics(b.Context())
				require.NoError(b, err)
				require.Equal(b, []string{"a", "b", "idle"}, topics)
				require.Len(b, log.With("level=ERROR", `msg="topic lost data"`, "topic=a", "Redis has lost jobs"), 1)
				require.Len(b, log.With("level=ERROR", `msg="topic lost data"`, "topic=b"), 1)
				require.Len(b, log.With("level=ERROR"), 2)
				b.Pass(12 * time.Second)
				for range 3 {
					require.ErrorIs(b, <-causes, delayq.ErrLeaseLost) // one of them was enqueued anew
				}
				require.Empty(b, log.With(`msg="job cancelled"`))
				require.Len(b, append(hooks.Of("LeaseLost"), hooks.Of("Replaced")...), 3)
				require.Empty(b, hooks.Of("Cancelled"))

				// A cancel is one again, and what is lost a second time is said a second time.
				b.Enqueue("b", "again")
				b.Enqueue("a", "cancelled")
				b.Pass(time.Minute)
				require.NoError(b, b.RDB.HDel(b.Context(), queuetest.Prefix+":{a}:pool", "cancelled").Err())
				require.NoError(b, b.RDB.ZRem(b.Context(), queuetest.Prefix+":{a}:leases", "cancelled").Err())
				b.Pass(11 * time.Second)
				require.Contains(b, drain(causes), delayq.ErrCancelled)
				require.NoError(b, b.RDB.FlushDB(b.Context()).Err())
				b.Pass(6 * time.Second)
				require.Len(b, log.With("level=ERROR", `msg="topic lost data"`, "topic=b"), 2)
				require.NoError(b, s.Stop())
			})
		})
	}
}

func drain[T any](c <-chan T) (list []T) {
	for {
		select {
		case v := <-c:
			list = append(list, v)
		default:
			return list
		}
	}
}

// A handler that ends when its job is lost already: what it returns counts for nothing, and nobody
// has cancelled it.
func TestJobThatIsLostBeforeItsEnd(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		var log queuetest.Logbook
		b.Serve("a", func(context.Context, *delayq.Job) error { time.Sleep(2 * time.Second); return queuetest.ErrTest }, delayq.Hooks(&hooks), log.To())
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.NoError(b, b.RDB.FlushDB(b.Context()).Err())
		b.Pass(2 * time.Second)
		require.Len(b, hooks.Of("LeaseLost", "1"), 1)
		require.Len(b, log.With("level=ERROR", `msg="topic lost data"`), 1)
		require.Empty(b, log.With(`msg="job cancelled"`))
	})
}

// The start of a server, and the beginning and the end of a pause that it comes across, are in its
// log.
func TestStartAndPausesAreLogged(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		s := b.Serve("a", queuetest.Nothing, log.To())
		require.Len(b, log.With("level=INFO", `msg="server started"`, "server="+s.ID(), "count=1"), 1)
		for _, by := range []string{"anna", "worker"} {
			require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{By: by, Reason: "because of " + by}))
		}
		for i := range 3 {
			b.Enqueue("a", fmt.Sprint(i))
			b.Pass(3 * time.Second)
		}
		require.Len(b, log.With("level=INFO", `msg="topic paused"`, "topic=a", "anna: because of anna", "worker: because of worker"), 1)
		require.Empty(b, log.With(`msg="topic resumed"`))
		require.NoError(b, b.Client.ResumeAll(b.Context(), "a"))
		b.Pass(time.Second)
		require.Len(b, log.With("level=INFO", `msg="topic resumed"`, "topic=a"), 1)
		require.Empty(b, b.State("a", "2"))
	})
}

// Who looks at the servers sees at once that one drains.
func TestDrainIsSeenAtOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		leave := make(chan struct{})
		s := b.Serve("a", func(context.Context, *delayq.Job) error { <-leave; return nil }, delayq.Drain(4*time.Second))
		b.Enqueue("a", "1")
		b.Pass(1300 * time.Millisecond)
		s.End()
		synctest.Wait()
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		require.Len(b, servers, 1)
		require.Equal(b, delayq.ServerDraining, servers[0].State)
		require.Equal(b, 1, servers[0].Topics["a"].Running)
		b.Pass(4*time.Second - time.Millisecond)
		close(leave)
		require.NoError(b, s.Stop())
	})
}

// A right that is missing is logged once for each kind of call, also when it is that to listen; and
// once when it is back.
func TestMissingRightsAreLoggedOnce(t *testing.T) {
	r := onRedis(t, redistest.NoRoles...)
	ctx := t.Context()
	require.NoError(t, r.rdb.Do(ctx, "ACL", "SETUSER", "app", "on", ">right", "~*", "resetchannels", "+@all").Err())
	opts := r.redis.Options()
	opts.Username, opts.Password = "app", "right"
	rdb := clientOf(t, opts)
	r.serve(rdb)
	queuetest.Until(t, func() bool { return len(r.log.With(`msg="subscribe failed"`)) > 0 })
	before := attempts(t, r)
	queuetest.Until(t, func() bool { return attempts(t, r) >= before+4 })
	require.Len(t, r.log.With("level=ERROR", `msg="subscribe failed"`, "NOPERM"), 1)
	require.Len(t, r.log.With("level=ERROR"), 1)
	require.NoError(t, r.rdb.Do(ctx, "ACL", "SETUSER", "app", "allchannels").Err())
	queuetest.Until(t, func() bool { return len(r.log.With("level=INFO", `msg="subscribe works again"`)) == 1 })
}

// With a wrong password the log has one line, which says so, and one when it is right again.
func TestWrongPasswordIsLoggedOnce(t *testing.T) {
	for name, right := range map[string]bool{"from the start": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			r := onRedis(t, redistest.NoRoles...)
			ctx := t.Context()
			set := func(password string) {
				require.NoError(t, r.rdb.Do(ctx, "ACL", "SETUSER", "app", "reset", "on", ">"+password, "~*", "&*", "+@all").Err())
			}
			set(map[bool]string{true: "right", false: "other"}[right])
			opts := r.redis.Options()
			opts.Username, opts.Password = "app", "right"
			r.serve(clientOf(t, opts))
			if right {
				r.enqueue("first")
				r.requireOnce("first")
				set("other")
				require.NoError(t, r.rdb.Do(ctx, "CLIENT", "KILL", "USER", "app").Err())
			}
			queuetest.Until(t, func() bool { return len(r.log.With("redis away")) > 0 })
			before := attempts(t, r)
			queuetest.Until(t, func() bool { return attempts(t, r) >= before+10 })
			lines := r.log.With("level=ERROR")
			require.Len(t, lines, 1)
			if !right {
				require.Contains(t, lines[0], "WRONGPASS")
			}
			set("right")
			queuetest.Until(t, func() bool { return len(r.log.With("level=INFO", `msg="redis back"`)) == 1 })
			r.enqueue("second")
			r.requireOnce("second")
			require.Len(t, r.log.With("level=ERROR"), 1)
		})
	}
}

// clientOf makes a client that lives as long as the test.
func clientOf(t *testing.T, opts *redis.Options) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// attempts is how many commands Redis has been given, and with a wrong password how many tries to
// log in.
func attempts(t *testing.T, r *real) int {
	t.Helper()
	for _, line := range strings.Split(r.rdb.Info(t.Context(), "stats").Val(), "\r\n") {
		var n int
		if _, err := fmt.Sscanf(line, "total_commands_processed:%d", &n); err == nil {
			return n
		}
	}
	t.Fatal("Redis does not say how many commands there were")
	return 0
}
