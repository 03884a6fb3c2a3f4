package tests

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
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
			reply := a.ready
			if cmd.Args()[1] == script.Enqueue.Digest {
				reply = a.stored
			}
			cmd.(*redis.Cmd).SetVal(reply)
		}
		return nil
	}
}

// What a lone caller allocates for a call, without what go-redis needs for the connection and for
// reading the reply.
func TestAllocationsOfALoneCall(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer func() { require.NoError(t, rdb.Close()) }()
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
		"enqueue":    {func() error { _, err := client.Enqueue(ctx, "topic", "", payload, opts...); return err }, 13},
		"given ID":   {func() error { _, err := client.Enqueue(ctx, "topic", "x", payload, opts...); return err }, 12},
		"cancel":     {func() error { _, err := client.Dequeue(ctx, "topic", "x"); return err }, 7},
		"reschedule": {func() error { return client.Reschedule(ctx, "topic", "x", delayq.ProcessIn(time.Hour)) }, 12},
	} {
		require.NoError(t, c.call())
		allocs := testing.AllocsPerRun(1000, func() { _ = c.call() })
		require.LessOrEqual(t, allocs, c.allocs+2, name) // the race detector needs up to two more
	}
}
