package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// everywhere runs a test in a synctest bubble and outside of one.
func everywhere(t *testing.T, test func(t *testing.T, r *Redis, rdb *redis.Client)) {
	t.Helper()
	run := func(t *testing.T) {
		r := New()
		t.Cleanup(r.Close)
		rdb := r.Client()
		t.Cleanup(func() { _ = rdb.Close() })
		test(t, r, rdb)
	}
	t.Run("bubble", func(t *testing.T) { synctest.Test(t, run) })
	t.Run("outside", run)
}

// until waits for a condition that other goroutines are about to fulfil.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 s", what)
		}
		runtime.Gosched()
	}
}

func TestCommandsAndScriptsWork(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *Redis, rdb *redis.Client) {
		ctx := t.Context()
		require.NoError(t, rdb.Ping(ctx).Err())
		require.NoError(t, rdb.RPush(ctx, "ready", "a", "b").Err())
		popped, err := redis.NewScript(`return redis.call("RPOP", KEYS[1])`).Run(ctx, rdb, []string{"ready"}).Text()
		require.NoError(t, err)
		require.Equal(t, "b", popped)
	})
}

func TestRedisFollowsTheClockOfTheBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		defer r.Close()
		rdb := r.Client()
		defer func() { require.NoError(t, rdb.Close()) }()
		ctx := t.Context()

		require.NoError(t, rdb.Set(ctx, "k", "v", time.Minute).Err())
		time.Sleep(59 * time.Second)
		require.Equal(t, "v", rdb.Get(ctx, "k").Val())
		time.Sleep(2 * time.Second)
		require.ErrorIs(t, rdb.Get(ctx, "k").Err(), redis.Nil)

		at, err := rdb.Time(ctx).Result()
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, 0)
		inScript, err := rdb.Eval(ctx, `return redis.call("TIME")[1]`, nil).Int64()
		require.NoError(t, err)
		require.Equal(t, time.Now().Unix(), inScript)
	})
}

func TestBlockingMoveTimesOutOnFakeTime(t *testing.T) {
	wall := time.Now()
	synctest.Test(t, func(t *testing.T) {
		r := New()
		defer r.Close()
		rdb := r.Client()
		defer func() { require.NoError(t, rdb.Close()) }()

		begin := time.Now()
		err := rdb.BLMove(t.Context(), "ready", "handoff", "LEFT", "RIGHT", time.Hour).Err()
		require.ErrorIs(t, err, redis.Nil)
		require.Equal(t, time.Hour, time.Since(begin))
	})
	require.Less(t, time.Since(wall), time.Minute)
}

func TestBlockingMoveGetsWhatIsPushed(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *Redis, rdb *redis.Client) {
		ctx := t.Context()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			id, err := rdb.BLMove(ctx, "ready", "handoff", "LEFT", "RIGHT", time.Minute).Result()
			if err != nil || id != "job" {
				t.Errorf("BLMOVE: %q, %v", id, err)
			}
		})
		require.NoError(t, rdb.RPush(ctx, "ready", "job").Err())
	})
}

func TestPublishReachesEverySubscriber(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *Redis, rdb *redis.Client) {
		ctx := t.Context()
		var subs []*redis.PubSub
		for range 3 {
			sub := rdb.Subscribe(ctx, "control")
			defer func() { _ = sub.Close() }()
			_, err := sub.Receive(ctx)
			require.NoError(t, err)
			subs = append(subs, sub)
		}
		for i := range 10 {
			n, err := rdb.Publish(ctx, "control", fmt.Sprint(i)).Result()
			require.NoError(t, err)
			require.EqualValues(t, 3, n)
		}
		for _, sub := range subs {
			for i := range 10 {
				msg, err := sub.ReceiveMessage(ctx)
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(i), msg.Payload)
			}
		}
	})
}

// Both block forever on net.Pipe.
func TestWritesNeedNoReader(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *Redis, rdb *redis.Client) {
		ctx := t.Context()
		silent := rdb.Subscribe(ctx, "control") // does not read its messages
		defer func() { _ = silent.Close() }()
		_, err := silent.Receive(ctx)
		require.NoError(t, err)

		payload := strings.Repeat("x", 1000)
		_, err = rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 1000 {
				p.Set(ctx, fmt.Sprint("k", i), payload, 0)
				p.Publish(ctx, "control", payload)
			}
			return nil
		})
		require.NoError(t, err)
		require.EqualValues(t, 1000, rdb.DBSize(ctx).Val())
	})
}

func TestClientsDoNotWaitForConnections(t *testing.T) {
	// Twice, because the second bubble would meet the timers of the first.
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			r := New()
			defer r.Close()
			rdb := r.Client()
			defer func() { require.NoError(t, rdb.Close()) }()
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					err := rdb.BLMove(t.Context(), fmt.Sprint(i), "handoff", "LEFT", "RIGHT", time.Second).Err()
					if !errors.Is(err, redis.Nil) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// In the bubble, a leaked goroutine fails the test by itself.
func TestCloseEndsWhatWaits(t *testing.T) {
	everywhere(t, func(t *testing.T, r *Redis, rdb *redis.Client) {
		before := runtime.NumGoroutine()
		const blocked = 20
		var wg sync.WaitGroup
		for i := range blocked {
			conn, err := r.Dial()
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			command := "BLMOVE ready handoff LEFT RIGHT 0\r\n"
			if i%2 == 1 {
				command = "BLMOVE ready handoff LEFT RIGHT 3600\r\n"
			}
			if i%4 == 3 {
				command = "SUBSCRIBE control\r\nPSUBSCRIBE *\r\n"
			}
			_, err = conn.Write(inline(command))
			require.NoError(t, err)
			wg.Go(func() {
				for buf := make([]byte, 100); err == nil; {
					_, err = conn.Read(buf)
				}
			})
		}
		sub := rdb.Subscribe(t.Context(), "control")
		messages := sub.Channel()
		wg.Go(func() {
			for range messages {
			}
		})
		until(t, "20 subscriptions", func() bool { return rdb.PubSubNumSub(t.Context(), "control").Val()["control"] == blocked/4+1 })
		until(t, "commands", func() bool { return r.CommandCount() > blocked })

		begin := time.Now()
		require.NoError(t, sub.Close())
		require.NoError(t, rdb.Close())
		r.Close()
		wg.Wait()
		require.Less(t, time.Since(begin), 5*time.Second)
		until(t, "goroutines ended", func() bool { return runtime.NumGoroutine() <= before })
	})
}

// inline converts a line to the array form that miniredis reads.
func inline(lines string) []byte {
	var out []byte
	for line := range strings.SplitSeq(strings.TrimSuffix(lines, "\r\n"), "\r\n") {
		words := strings.Fields(line)
		out = fmt.Appendf(out, "*%d\r\n", len(words))
		for _, word := range words {
			out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	return out
}

func TestCloseWhileInUse(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			r := New()
			rdb := r.Client()
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					for ctx.Err() == nil {
						switch i {
						case 0:
							rdb.Eval(ctx, `for i = 1, 20 do redis.call("RPUSH", KEYS[1], i) end`, []string{"ready"})
						case 1:
							rdb.BLMove(ctx, "ready", "handoff", "LEFT", "RIGHT", time.Second)
						case 2:
							rdb.Publish(ctx, "control", "wake")
						case 3:
							sub := rdb.Subscribe(ctx, "control")
							_, _ = sub.Receive(ctx)
							_ = sub.Close()
						}
					}
				})
			}
			until(t, "commands", func() bool { return r.CommandCount() > 20 })
			r.Close()
			stop()
			wg.Wait()
			require.NoError(t, rdb.Close())
		})
	}
}

func TestNothingAnswersAfterClose(t *testing.T) {
	everywhere(t, func(t *testing.T, r *Redis, rdb *redis.Client) {
		require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
		r.Close()
		r.Close()
		err := rdb.Ping(t.Context()).Err()
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		_, err = r.Dial()
		require.ErrorIs(t, err, net.ErrClosed)
		v, err := r.Get("k")
		require.NoError(t, err)
		require.Equal(t, "v", v)
	})
}
