package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// TestNothingStaysInRedis lets jobs end in every way there is and looks at what keys are left: the
// documented ones. (L3)
func TestNothingStaysInRedis(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		t.Parallel()
		ctx, prefix := t.Context(), redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
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
		queuetest.Until(t, func() bool { // so that those that expire have
			later, err := rdb.Time(ctx).Result()
			return err == nil && later.Sub(now) > 2*time.Millisecond
		})
		var hooks queuetest.HookLog
		running := make(chan string, each)
		s := queuetest.Serve(t, rdb, prefix, "a", func(ctx context.Context, job *delayq.Job) error {
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
			_, err := client.Dequeue(ctx, "a", queuetest.Receive(t, running))
			require.NoError(t, err)
		}
		queuetest.Until(t, func() bool {
			return len(hooks.Of("Done"))+len(hooks.Of("Buried"))+len(hooks.Of("Expired"))+len(hooks.Of("Cancelled")) == (len(kinds)-1)*each
		})
		require.NoError(t, s.Stop())
		require.Len(t, hooks.Of("Buried"), each)
		require.Len(t, hooks.Of("Expired"), each)
		require.Len(t, hooks.Of("Cancelled"), each)

		// The dead are kept with their errors, until somebody removes them.
		info := queuetest.StatsOf(t, insp, "a")
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
			if rest := strings.TrimPrefix(key, prefix+":{a}:"); strings.HasPrefix(rest, "receipt:") || strings.HasPrefix(rest, "taken:") || rest == "minutes" || rest == "hours" {
				ttl, err := rdb.PTTL(ctx, key).Result()
				require.NoError(t, err)
				require.NotEqual(t, time.Duration(-1), ttl, "%s does not expire", key)
				delete(keys, key)
			}
		}
		delete(keys, prefix+":{a}:stats")
		require.Empty(t, keys)
	})
}
