package delayq_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
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
	for name, afterwards := range map[string]func(b *bubble){
		"nobody comes":            func(*bubble) {},
		"others use it at once":   func(b *bubble) { b.enqueue("a", "new"); b.enqueue("a", "1") },
		"while it is looked into": func(b *bubble) { b.pass(7 * time.Second); b.enqueue("a", "1") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var log logbook
				var hooks told
				causes := make(chan error, 100)
				s := serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
					s.HandlerFunc("a", waitsForItsEnd(causes))
					s.HandlerFunc("b", nothing)
					s.HandlerFunc("idle", nothing)
				}, log.to(), delayq.Hooks(&hooks), delayq.Lease(30*time.Second))
				synctest.Wait()
				for i := range 3 {
					b.enqueue("a", fmt.Sprint(i))
				}
				b.enqueue("b", "done")
				b.pass(12 * time.Second)
				require.Len(b, hooks.of("Started"), 4)
				require.NoError(b, b.rdb.FlushDB(b.Context()).Err())
				afterwards(b)
				b.pass(6 * time.Second)
				topics, err := b.client.Topics(b.Context())
				require.NoError(b, err)
				require.Equal(b, []string{"a", "b", "idle"}, topics)
				require.Len(b, log.with("level=ERROR", `msg="topic lost data"`, "topic=a", "Redis has lost jobs"), 1)
				require.Len(b, log.with("level=ERROR", `msg="topic lost data"`, "topic=b"), 1)
				require.Len(b, log.with("level=ERROR"), 2)
				b.pass(12 * time.Second)
				for range 3 {
					require.ErrorIs(b, <-causes, delayq.ErrLeaseLost) // one of them was enqueued anew
				}
				require.Empty(b, log.with(`msg="job cancelled"`))
				require.Len(b, append(hooks.of("LeaseLost"), hooks.of("Replaced")...), 3)
				require.Empty(b, hooks.of("Cancelled"))

				// A cancel is one again, and what is lost a second time is said a second time.
				b.enqueue("b", "again")
				b.enqueue("a", "cancelled")
				b.pass(time.Minute)
				require.NoError(b, b.rdb.HDel(b.Context(), bubblePrefix+":{a}:pool", "cancelled").Err())
				require.NoError(b, b.rdb.ZRem(b.Context(), bubblePrefix+":{a}:leases", "cancelled").Err())
				b.pass(11 * time.Second)
				require.Contains(b, drain(causes), delayq.ErrCancelled)
				require.NoError(b, b.rdb.FlushDB(b.Context()).Err())
				b.pass(6 * time.Second)
				require.Len(b, log.with("level=ERROR", `msg="topic lost data"`, "topic=b"), 2)
				require.NoError(b, s.stop())
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
	inBubble(t, func(b *bubble) {
		var hooks told
		var log logbook
		b.serve("a", func(context.Context, *delayq.Job) error { time.Sleep(2 * time.Second); return errTest }, delayq.Hooks(&hooks), log.to())
		b.enqueue("a", "1")
		b.pass(time.Second)
		require.NoError(b, b.rdb.FlushDB(b.Context()).Err())
		b.pass(2 * time.Second)
		require.Len(b, hooks.of("LeaseLost", "1"), 1)
		require.Len(b, log.with("level=ERROR", `msg="topic lost data"`), 1)
		require.Empty(b, log.with(`msg="job cancelled"`))
	})
}

// The start of a server, and the beginning and the end of a pause that it comes across, are in its
// log.
func TestStartAndPausesAreLogged(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var log logbook
		s := b.serve("a", nothing, log.to())
		require.Len(b, log.with("level=INFO", `msg="server started"`, "server="+s.ID(), "count=1"), 1)
		for _, by := range []string{"anna", "worker"} {
			require.NoError(b, b.client.Pause(b.Context(), "a", delayq.Pause{By: by, Reason: "because of " + by}))
		}
		for i := range 3 {
			b.enqueue("a", fmt.Sprint(i))
			b.pass(3 * time.Second)
		}
		require.Len(b, log.with("level=INFO", `msg="topic paused"`, "topic=a", "anna: because of anna", "worker: because of worker"), 1)
		require.Empty(b, log.with(`msg="topic resumed"`))
		require.NoError(b, b.client.ResumeAll(b.Context(), "a"))
		b.pass(time.Second)
		require.Len(b, log.with("level=INFO", `msg="topic resumed"`, "topic=a"), 1)
		require.Empty(b, b.state("a", "2"))
	})
}

// Who looks at the servers sees at once that one drains.
func TestDrainIsSeenAtOnce(t *testing.T) {
	inBubble(t, func(b *bubble) {
		leave := make(chan struct{})
		s := b.serve("a", func(context.Context, *delayq.Job) error { <-leave; return nil }, delayq.Drain(4*time.Second))
		b.enqueue("a", "1")
		b.pass(1300 * time.Millisecond)
		s.end()
		synctest.Wait()
		servers, err := b.client.Servers(b.Context())
		require.NoError(b, err)
		require.Len(b, servers, 1)
		require.Equal(b, delayq.ServerDraining, servers[0].State)
		require.Equal(b, 1, servers[0].Topics["a"].Running)
		b.pass(4*time.Second - time.Millisecond)
		close(leave)
		require.NoError(b, s.stop())
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
	until(t, func() bool { return len(r.log.with(`msg="subscribe failed"`)) > 0 })
	before := attempts(t, r)
	until(t, func() bool { return attempts(t, r) >= before+4 })
	require.Len(t, r.log.with("level=ERROR", `msg="subscribe failed"`, "NOPERM"), 1)
	require.Len(t, r.log.with("level=ERROR"), 1)
	require.NoError(t, r.rdb.Do(ctx, "ACL", "SETUSER", "app", "allchannels").Err())
	until(t, func() bool { return len(r.log.with("level=INFO", `msg="subscribe works again"`)) == 1 })
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
			until(t, func() bool { return len(r.log.with("redis away")) > 0 })
			before := attempts(t, r)
			until(t, func() bool { return attempts(t, r) >= before+10 })
			lines := r.log.with("level=ERROR")
			require.Len(t, lines, 1)
			if !right {
				require.Contains(t, lines[0], "WRONGPASS")
			}
			set("right")
			until(t, func() bool { return len(r.log.with("level=INFO", `msg="redis back"`)) == 1 })
			r.enqueue("second")
			r.requireOnce("second")
			require.Len(t, r.log.with("level=ERROR"), 1)
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

// The first cause of an outage is the one that is logged, and not the closing of connections that
// it led to.
func TestFirstCauseOfAnOutage(t *testing.T) {
	t.Parallel()
	var log logbook
	closed := fmt.Errorf("read tcp: %w", net.ErrClosed)
	o := delayq.NewOutage(&log, nil)
	o.Failed("take", errTest)
	o.Failed("promote", closed)
	o.Ended("take")
	o.Ended("promote")
	require.Len(t, log.with("redis back"), 1)
	o.Failed("extend", closed) // what was closed then is met only now
	require.Len(t, log.with("redis away"), 2)
	require.Len(t, log.with("redis away", errTest.Error()), 2)
	o.Ended("extend")

	// The line is there before connections are closed.
	o = delayq.NewOutage(&log, func() { require.Len(t, log.with("redis away"), 3) })
	o.Failed("take", errTest)
}
