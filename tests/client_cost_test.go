package tests

import (
	"context"
	"crypto/rand"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// answering is a hook of go-redis that answers the calls of scripts in place of Redis.
type answering struct{ stored, ready []any }

func (answering) DialHook(next redis.DialHook) redis.DialHook { return next }
func (answering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a answering) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			reply := any(a.ready)
			switch cmd.Args()[1] {
			case script.Enqueue.Digest:
				a.stored[1] = time.Now().UnixMilli()
				reply = a.stored
			case script.EnqueueLater.Digest:
				a.stored[1] = time.Now().UnixMilli()
				reply = a.stored[1]
			}
			cmd.(*redis.Cmd).SetVal(reply)
		}
		return nil
	}
}

// What a lone caller allocates for a call, without what go-redis needs for the connection and for
// reading the reply.
func TestAllocationsOfALoneCall(t *testing.T) {
	rdb := redistest.Unused(t)
	rdb.AddHook(answering{stored: []any{"ok", int64(1_764_000_000_000), "", "", ""}, ready: []any{"ok", int64(1_764_000_000_000), "r", []any{}}})
	client, ctx, payload := delayq.NewClient(rdb), t.Context(), make([]byte, 100)
	opts := []delayq.JobOption{delayq.ProcessIn(time.Hour)}
	for range 100 { // the numbers of later calls of the series have three digits, which is one more
		require.NoError(t, client.Delete(ctx, "topic", "x"))
	}
	for name, c := range map[string]struct {
		call   func() error
		allocs float64
	}{
		// one of these is the clock of the hook
		"enqueue":    {func() error { _, err := client.Enqueue(ctx, "topic", "", payload, opts...); return err }, 16},
		"given ID":   {func() error { _, err := client.Enqueue(ctx, "topic", "x", payload, opts...); return err }, 13},
		"cancel":     {func() error { _, err := client.Dequeue(ctx, "topic", "x"); return err }, 7},
		"reschedule": {func() error { return client.Reschedule(ctx, "topic", "x", delayq.ProcessIn(time.Hour)) }, 12},
	} {
		for began := time.Now(); time.Since(began) < 200*time.Millisecond; { // until Redis's clock is known
			require.NoError(t, c.call())
		}
		allocs := testing.AllocsPerRun(1000, func() { _ = c.call() })
		require.LessOrEqual(t, allocs, c.allocs+2, name) // the race detector needs up to two more
	}
}

// What a lone caller and Redis say to each other about a job with a payload of 100 bytes.
func TestBytesOfALoneCall(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		single, ok := rdb.(*redis.Client)
		require.True(t, ok)
		opt := *single.Options()
		var bytes atomic.Int64
		opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := single.Options().Dialer(ctx, network, addr)
			return &weighed{conn, &bytes}, err
		}
		counted := redis.NewClient(&opt)
		defer func() { require.NoError(t, counted.Close()) }()
		redistest.InRoles(t, counted)
		client := delayq.NewClient(counted, delayq.Prefix("bench"))
		topic := rand.Text()[:5] // as long as that of the row enqueue/1
		enqueue := func() int64 {
			before := bytes.Load()
			_, err := client.Enqueue(t.Context(), topic, "", make([]byte, 100), delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
			return bytes.Load() - before
		}
		// The first calls are longer, until replies have shown that Redis's clock runs.
		for began := time.Now(); enqueue() > 480; {
			require.Less(t, time.Since(began), time.Minute)
		}
	})
}

// A weighed connection counts the bytes in both directions.
type weighed struct {
	net.Conn
	bytes *atomic.Int64
}

func (w *weighed) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.bytes.Add(int64(n))
	return n, err
}

func (w *weighed) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.bytes.Add(int64(n))
	return n, err
}
