package tests

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

func TestHeartbeats(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		hold := func(ctx context.Context, _ *delayq.Job) error { <-ctx.Done(); return ctx.Err() }
		first := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("a", hold)
			s.HandlerFunc("b", hold, delayq.Concurrency(3))
		}, delayq.Concurrency(5))
		synctest.Wait()
		w := queuetest.NewWire(b.Redis)
		second := b.ServeOn(w, "c", hold, delayq.Drain(10*time.Second))
		b.Pass(time.Second)
		for i := range 4 {
			b.Enqueue("a", fmt.Sprint(i))
			b.Pass(time.Second)
		}
		b.Pass(12 * time.Second) // a heartbeat at 15 s
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		require.Len(b, servers, 2)
		byID := map[string]delayq.ServerInfo{servers[0].ID: servers[0], servers[1].ID: servers[1]}
		info := byID[first.ID()]
		require.Equal(b, os.Getpid(), info.PID)
		host, _ := os.Hostname()
		require.Equal(b, host, info.Host)
		require.Equal(b, delayq.ServerRunning, info.State)
		require.True(b, info.StartedAt.Equal(b.Began))
		require.WithinDuration(b, b.Began.Add(15*time.Second), info.SeenAt, 0)
		require.Len(b, info.Topics, 2)
		require.Equal(b, 5, info.Topics["a"].Workers)
		require.Equal(b, 3, info.Topics["b"].Workers)
		require.Equal(b, 4, info.Topics["a"].Running)
		require.Zero(b, info.Topics["b"].Running)
		require.Len(b, info.Topics["a"].Longest, 3)
		require.Equal(b, "0", info.Topics["a"].Longest[0].ID)
		require.InDelta(b, 14*time.Second, info.Topics["a"].Longest[0].Running, float64(2*time.Millisecond))
		for _, loop := range []string{"promote", "take", "extend"} {
			age, ok := info.Topics["b"].Loops[loop]
			require.True(b, ok, loop)
			require.LessOrEqual(b, age, 10*time.Second, loop)
		}

		// One that drains says so, one that has stopped in good order is gone at once.
		b.Enqueue("c", "1")
		synctest.Wait()
		second.End()
		b.Pass(6 * time.Second)
		servers, err = b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		require.Len(b, servers, 2)
		for _, info := range servers {
			require.Equal(b, info.ID == second.ID(), info.State == "draining")
		}
		require.NoError(b, second.Stop())
		servers, err = b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		require.Len(b, servers, 1)
		require.Equal(b, first.ID(), servers[0].ID)

		// One that dies is not seen any more after half a minute, and later the others remove what
		// it left.
		third := b.ServeOn(w, "c", queuetest.Nothing, delayq.Drain(0))
		w.Cut()
		require.NoError(b, third.Stop())
		b.Pass(29 * time.Second)
		servers, err = b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		require.Len(b, servers, 2)
		b.Pass(2 * time.Second)
		servers, err = b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		require.Len(b, servers, 1)
		b.Pass(2 * time.Minute)
		left, err := b.RDB.HKeys(b.Context(), queuetest.Prefix+":servers").Result()
		require.NoError(b, err)
		require.Equal(b, []string{first.ID()}, left)
	})
}

// Trouble with Redis is logged when it begins and when it ends, whatever the number of topics and
// however long it takes, and meanwhile the server does not try more than about once a second in
// each loop. (C13)
func TestOutageIsLoggedOnce(t *testing.T) {
	for _, kind := range []string{"cut", "freeze"} {
		t.Run(kind, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const topics, length = 5, 3 * time.Minute
				var log queuetest.Logbook
				var rec queuetest.Recorder
				w := queuetest.NewWire(b.Redis)
				queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
					for i := range topics {
						s.HandlerFunc(fmt.Sprint(i), rec.Then(nil))
					}
				}, log.To(), delayq.Lease(5*time.Second)) // a call from before the thaw may have taken the jobs
				b.Pass(5 * time.Second)
				for outage := 1; outage <= 2; outage++ {
					for i := range topics {
						b.Enqueue(fmt.Sprint(i), fmt.Sprint("during-", outage), delayq.ProcessIn(time.Minute))
					}
					tries := w.Requests() + w.Dials()
					if kind == "cut" {
						w.Cut()
					} else {
						w.Freeze()
					}
					b.Pass(length)
					require.Len(b, log.With("level=ERROR", `msg="redis away"`), outage)
					require.Len(b, log.With(`msg="redis back"`), outage-1)
					require.Less(b, w.Requests()+w.Dials()-tries, 3*(4*topics+3)*int(length/time.Second), "a hot loop")
					w.Thaw()
					w.Mend()
					b.Pass(10 * time.Second)
					require.Len(b, rec.Of(fmt.Sprint("during-", outage)), topics, "it goes on by itself, and what fell due meanwhile has run")
					b.Pass(time.Minute)
					require.Len(b, log.With("level=ERROR", `msg="redis away"`), outage)
					require.Len(b, log.With("level=INFO", `msg="redis back"`), outage)
				}
				require.Len(b, log.With("level=ERROR"), 2, "nothing else is an error")
			})
		})
	}
}

// TestNothingIsSilent: whatever goes wrong, a caller gets an error or the log has a line, and the
// process lives. (B16, K6)
func TestNothingIsSilent(t *testing.T) {
	queuetest.NeedsPop(t)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		w := queuetest.NewWire(b.Redis)
		rdb := w.Client(b.T)
		client := delayq.NewClient(rdb, delayq.Prefix(queuetest.Prefix))
		insp := delayq.NewInspector(rdb, delayq.Prefix(queuetest.Prefix))
		s := queuetest.Serve(b.T, rdb, queuetest.Prefix, "a", func(ctx context.Context, job *delayq.Job) error {
			switch {
			case job.ID == "panic":
				panic("at the disco")
			case job.ID == "bury":
				return delayq.Permanent(queuetest.ErrTest)
			case strings.HasPrefix(job.ID, "long"):
				<-ctx.Done()
				time.Sleep(20 * time.Second)
			}
			return nil
		}, log.To(), delayq.Lease(2*time.Second), delayq.Drain(0), delayq.Hooks(panickyHook{}))
		says := func(parts ...string) {
			b.Helper()
			require.NotEmpty(b, log.With(parts...), "%v", parts)
		}
		for _, id := range []string{"panic", "bury", "long-1"} {
			b.Enqueue("a", id)
		}
		synctest.Wait()
		says("level=WARN", `msg="job retried"`, "job=panic", "attempt=1", "at the disco", "delay=2")
		says("level=ERROR", `msg="job buried"`, "job=bury", queuetest.ErrTest.Error())
		says("level=ERROR", `msg="hook crashed"`, "panic: started")

		w.Cut()
		_, err := client.Enqueue(b.Context(), "a", "2", nil)
		require.ErrorContains(b, err, "no route to host")
		require.NotErrorIs(b, err, delayq.ErrUnknownOutcome)
		_, err = client.Dequeue(b.Context(), "a", "bury")
		require.ErrorContains(b, err, "no route to host")
		_, err = client.Get(b.Context(), "a", "bury")
		require.Error(b, err)
		_, err = insp.Stats(b.Context(), "a")
		require.Error(b, err)
		b.Pass(30 * time.Second)
		says("level=ERROR", `msg="redis away"`)
		says("level=WARN", `msg="lease lost"`, "job=long-1")
		w.Mend()
		b.Pass(5 * time.Second)
		says("level=INFO", `msg="redis back"`)
		says("level=WARN", `msg="leases reclaimed"`, "count=1")

		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("a"), "garbage", "garbage").Err())
		require.NoError(b, b.RDB.RPush(b.Context(), queuetest.Prefix+":{a}:ready", "garbage").Err())
		synctest.Wait()
		says("level=ERROR", `msg="job buried"`, "job=garbage")

		require.Equal(b, delayq.StateRunning, b.State("a", "long-1"))
		require.NoError(b, s.Stop())
		says("level=INFO", `msg="server draining"`)
		says("level=WARN", `msg="handlers abandoned"`, "did not return")
		require.Equal(b, delayq.StateReady, b.State("a", "long-1"))
		b.Pass(time.Minute)
	})
}

// Redis refuses one command that only one of the loops needs. That loop says so once, names itself,
// and says when it works again. (J10)
func TestLoopThatIsRefusedSaysSo(t *testing.T) {
	t.Parallel()
	for call, command := range map[string]string{"promote": "zrangebyscore", "take": "ltrim", "wait": "blmove", "ack": "hdel", "heartbeat": "hset"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			if call == "wait" {
				queuetest.NeedsPop(t)
			}
			own := redistest.Start(t, redistest.NoRoles...)
			rdb := own.Client(t)
			var log queuetest.Logbook
			require.NoError(t, rdb.Do(t.Context(), "ACL", "SETUSER", "default", "-"+command).Err())
			queuetest.Serve(t, rdb, "delayq", "a", func(context.Context, *delayq.Job) error { return nil }, log.To(), delayq.Drain(0))
			enqueue := func() bool {
				_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "a", "", nil)
				return err == nil || command == "hset"
			}
			queuetest.Until(t, func() bool { return enqueue() && len(log.With("level=ERROR", `msg="`+call+` failed"`)) > 0 })
			require.Len(t, log.With("level=ERROR", `msg="`+call+` failed"`, "err="), 1)
			require.NoError(t, rdb.Do(t.Context(), "ACL", "SETUSER", "default", "+"+command).Err())
			queuetest.Until(t, func() bool { return enqueue() && len(log.With("level=INFO", call+" works again")) > 0 })
		})
	}
}

// (J5, J13)
func TestRedisThatEvictsIsWarnedOf(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	var log queuetest.Logbook
	var rec queuetest.Recorder
	rdb := own.Client(t)
	queuetest.Serve(t, rdb, "delayq", "a", rec.Then(nil), log.To())
	_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "a", "1", nil)
	require.NoError(t, err)
	queuetest.Until(t, func() bool { return len(rec.All()) == 1 })
	require.Len(t, log.With("level=ERROR", "noeviction", "allkeys-lru"), 1)
	require.Len(t, log.With("level=WARN", "append-only"), 1)
}
