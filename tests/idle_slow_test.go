package tests

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// An answer of the watch that was long on its way does not put off what the topic knew before.
func TestSlowWatchPutsNothingOff(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var starts queuetest.Recorder
		b.Serve("t", starts.Then(nil), delayq.Hooks(slow("watch", 80*time.Millisecond)))
		for i := range 10 {
			id := fmt.Sprint(i)
			due := b.Enqueue("t", id, delayq.ProcessIn(2*time.Second+time.Duration(i)*77*time.Millisecond)).Due
			require.NoError(b, b.RDB.Publish(b.Context(), script.ControlChannel(queuetest.Prefix), "wake 0 1 t").Err()) // it knows
			b.Pass(4 * time.Second)
			require.Len(b, starts.Of(id), 1)
			require.Equal(b, due.Sub(b.Began), starts.Of(id)[0].At.Sub(b.Began))
		}
	})
}

// A head that is no longer there wakes nobody.
func TestWatchPutsOffWhatHasMoved(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var calls queuetest.HookLog
		b.Serve("t", queuetest.Nothing, delayq.Hooks(&calls))
		b.Enqueue("t", "a", delayq.ProcessIn(10*time.Second))
		b.Pass(5 * time.Second)
		promotes := calls.Calls("promote")
		require.NoError(b, b.Client.Reschedule(b.Context(), "t", "a", delayq.ProcessIn(time.Hour)))
		b.Pass(20 * time.Second)
		require.Equal(b, promotes, calls.Calls("promote"))
	})
}

// However long the answers of the watch are on their way, and however many there are, topics with
// nothing to do rely on it.
func TestSlowWatchOfManyTopicsIsRegular(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var calls queuetest.HookLog
		serveTopics(b, 201, queuetest.Nothing, delayq.Hooks(&calls, slow("watch", 150*time.Millisecond)))
		b.Pass(2 * time.Second)
		promotes := calls.Calls("promote")
		b.Pass(8 * time.Second)
		require.Equal(b, promotes, calls.Calls("promote"))
	})
}

// A topic whose jobs are far away prunes all that is to go, in one call after the other.
func TestSleepingTopicPrunesAll(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var prunes []time.Time
		b.Serve("t", queuetest.Nothing, delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name == "prune" {
				mu.Lock()
				prunes = append(prunes, time.Now())
				mu.Unlock()
			}
		})))
		b.Enqueue("t", "far", delayq.ProcessIn(time.Hour))
		b.Pass(20 * time.Second)
		var done []redis.Z
		var results []any
		for i := range 2600 {
			done = append(done, queuetest.ZMember(fmt.Sprint(i), time.Now()))
			results = append(results, fmt.Sprint(i), "result")
		}
		require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{t}:done", done...).Err())
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":{t}:results", results...).Err())
		mu.Lock()
		prunes = nil
		mu.Unlock()
		b.Pass(12 * time.Second)
		require.Zero(b, b.RDB.ZCard(b.Context(), queuetest.Prefix+":{t}:done").Val())
		mu.Lock()
		defer mu.Unlock()
		require.GreaterOrEqual(b, len(prunes), 6)
		require.Equal(b, prunes[0], prunes[5])
	})
}
