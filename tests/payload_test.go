package tests

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// Nothing on the way reads a payload, least of all as numbers: what the handler gets, also after a
// failure and a snooze, is what was enqueued. (I7)
func TestPayloadIsNeverRead(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
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
		var rec queuetest.Recorder
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.MaxPayload(16<<20))
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			switch len(rec.Of(job.ID)) {
			case 1:
				return queuetest.ErrTest
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
		b.Pass(10 * time.Second)
		for name, payload := range payloads {
			require.Len(b, rec.Of(name), 3, name)
			for _, s := range rec.Of(name) {
				require.Equal(b, sha256.Sum256([]byte(payload)), sha256.Sum256([]byte(s.Payload)), name)
			}
		}
	})
}

// On a cluster too, and where a WAIT travels behind the script in a pipeline, a script that is
// unknown is sent once more. (J1)
func TestClusterForgetsItsScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	f := queuetest.NewFixture(t, rdb, delayq.WaitReplicas(1, time.Millisecond))
	for i, topic := range queuetest.TopicsOnAllNodes() {
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		_, err := f.Client.Enqueue(t.Context(), topic, fmt.Sprint(i), nil)
		require.ErrorIs(t, err, delayq.ErrNotReplicated) // these masters have no replicas
		require.NotContains(t, err.Error(), "NOSCRIPT")
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		state, err := f.Client.Dequeue(t.Context(), topic, fmt.Sprint(i))
		require.NoError(t, err)
		require.Equal(t, delayq.StateReady, state)
	}
}
