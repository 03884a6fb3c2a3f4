package delayq_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// Nothing on the way reads a payload, least of all as numbers: what the handler gets, also after a
// failure and a snooze, is what was enqueued. (I7)
func TestPayloadIsNeverRead(t *testing.T) {
	inBubble(t, func(b *bubble) {
		payloads := map[string]string{
			"integers":  `{"max":9223372036854775807,"id":130775545883395173,"u":18446744073709551615}`,
			"floats":    `[1e400,0.1,-0.0,2.2250738585072014e-308]`,
			"deep":      strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000),
			"no UTF-8":  "\xff\xfe\x00\xc3\x28",
			"none":      "",
			"one byte":  "\x00",
			"64 KiB":    strings.Repeat("\x00\xff", 32<<10),
			"16 MiB":    strings.Repeat("0123456789abcdef", 1<<20),
			"a record":  "\x01\x02\x03\x04\x05\x06\x07\x08\x01\x00\x9d\xadpayload",
			"a counter": "99999999999999999999",
		}
		var rec recorder
		client := delayq.NewClient(b.rdb, delayq.Prefix(bubblePrefix), delayq.MaxPayload(16<<20))
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			switch len(rec.of(job.ID)) {
			case 1:
				return errTest
			case 2:
				return delayq.Snooze(time.Second)
			}
			return nil
		}), delayq.Concurrency(2))
		for name, payload := range payloads {
			_, err := client.Enqueue(b.Context(), "a", name, []byte(payload), delayq.ProcessIn(time.Second))
			require.NoError(b, err)
			require.NoError(b, client.Reschedule(b.Context(), "a", name, delayq.ProcessIn(2*time.Second)))
		}
		b.pass(10 * time.Second)
		for name, payload := range payloads {
			require.Len(b, rec.of(name), 3, name)
			for _, s := range rec.of(name) {
				require.Equal(b, sha256.Sum256([]byte(payload)), sha256.Sum256([]byte(s.payload)), name)
			}
		}
	})
}

// Braces in IDs move no key to another slot of a cluster, on no path: retry, crash and its rescue,
// burial, revival. (I9)
func TestClusterWithBracesInIDs(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	f := newFixture(t, rdb)
	for _, topic := range []string{"topic 1", "topic 2", "topic 3", "a:b"} {
		hand := delayq.NewHand(t, rdb, f.prefix, topic)
		for _, id := range []string{"{x}", "}{", "{", "a{b}c", "{}", ":{" + topic + "}:pool"} {
			_, err := f.client.Enqueue(t.Context(), topic, id, nil)
			require.NoError(t, err)
			require.Equal(t, id, hand.Take(1, 0)[0].ID) // its server dies
			_, reclaimed := hand.Promote()
			require.Equal(t, 1, reclaimed)
			require.Equal(t, "o", hand.Retry(time.Hour, hand.TakeOne(id)))
			require.NoError(t, f.client.Reschedule(t.Context(), topic, id, delayq.ProcessIn(0)))
			require.Equal(t, "o", hand.Snooze(time.Hour, hand.TakeOne(id)))
			hand.Hasten(2 * time.Hour)
			moved, _ := hand.Promote()
			require.Equal(t, 1, moved)
			require.Equal(t, "o", hand.Return(hand.TakeOne(id)))
			require.Equal(t, "o", hand.Bury(hand.TakeOne(id)))
			require.NoError(t, f.client.Revive(t.Context(), topic, id))
			require.Equal(t, "o", hand.Ack(hand.TakeOne(id)))
			require.Empty(t, hand.Traces(id))
		}
	}
}

// On a cluster too, and where a WAIT travels behind the script in a pipeline, a script that is
// unknown is sent once more. (J1)
func TestClusterForgetsItsScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	f := newFixture(t, rdb, delayq.WaitReplicas(1, time.Millisecond))
	for i, topic := range topicsOnAllNodes() {
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		_, err := f.client.Enqueue(t.Context(), topic, fmt.Sprint(i), nil)
		require.ErrorIs(t, err, delayq.ErrNotReplicated) // these masters have no replicas
		require.NotContains(t, err.Error(), "NOSCRIPT")
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		state, err := f.client.Dequeue(t.Context(), topic, fmt.Sprint(i))
		require.NoError(t, err)
		require.Equal(t, delayq.StateReady, state)
	}
}
