package delayq_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// An answer of the watch that was long on its way does not put off what the topic knew before.
func TestSlowWatchPutsNothingOff(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var starts recorder
		b.serve("t", starts.then(nil), delayq.Hooks(slow("watch", 80*time.Millisecond)))
		for i := range 10 {
			id := fmt.Sprint(i)
			due := b.enqueue("t", id, delayq.ProcessIn(2*time.Second+time.Duration(i)*77*time.Millisecond)).Due
			require.NoError(b, b.rdb.Publish(b.Context(), delayq.ControlChannel(bubblePrefix), "wake 0 1 t").Err()) // it knows
			b.pass(4 * time.Second)
			require.Len(b, starts.of(id), 1)
			require.Equal(b, due.Sub(b.began), starts.of(id)[0].at.Sub(b.began))
		}
	})
}

// A head that is no longer there wakes nobody.
func TestWatchPutsOffWhatHasMoved(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var calls told
		b.serve("t", nothing, delayq.Hooks(&calls))
		b.enqueue("t", "a", delayq.ProcessIn(10*time.Second))
		b.pass(5 * time.Second)
		promotes := calls.calls("promote")
		require.NoError(b, b.client.Reschedule(b.Context(), "t", "a", delayq.ProcessIn(time.Hour)))
		b.pass(20 * time.Second)
		require.Equal(b, promotes, calls.calls("promote"))
	})
}

// However long the answers of the watch are on their way, and however many there are, topics with
// nothing to do rely on it.
func TestSlowWatchOfManyTopicsIsRegular(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var calls told
		b.serveTopics(201, nothing, delayq.Hooks(&calls, slow("watch", 150*time.Millisecond)))
		b.pass(2 * time.Second)
		promotes := calls.calls("promote")
		b.pass(8 * time.Second)
		require.Equal(b, promotes, calls.calls("promote"))
	})
}

// A topic whose jobs are far away prunes all that is to go, in one call after the other.
func TestSleepingTopicPrunesAll(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var mu sync.Mutex
		var prunes []time.Time
		b.serve("t", nothing, delayq.Hooks(onScript(func(e delayq.ScriptEvent) {
			if e.Name == "prune" {
				mu.Lock()
				prunes = append(prunes, time.Now())
				mu.Unlock()
			}
		})))
		b.enqueue("t", "far", delayq.ProcessIn(time.Hour))
		b.pass(20 * time.Second)
		var done []redis.Z
		var results []any
		for i := range 2600 {
			done = append(done, zsetMember(fmt.Sprint(i), time.Now()))
			results = append(results, fmt.Sprint(i), "result")
		}
		require.NoError(b, b.rdb.ZAdd(b.Context(), bubblePrefix+":{t}:done", done...).Err())
		require.NoError(b, b.rdb.HSet(b.Context(), bubblePrefix+":{t}:results", results...).Err())
		mu.Lock()
		prunes = nil
		mu.Unlock()
		b.pass(12 * time.Second)
		require.Zero(b, b.rdb.ZCard(b.Context(), bubblePrefix+":{t}:done").Val())
		mu.Lock()
		defer mu.Unlock()
		require.GreaterOrEqual(b, len(prunes), 6)
		require.Equal(b, prunes[0], prunes[5])
	})
}
