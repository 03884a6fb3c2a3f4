package delayq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
)

// Whatever the hashes of a topic hold for a job, Get makes something of it and does not panic. (I2)
func FuzzJobInfo(f *testing.F) {
	head, tail, err := record.Encode(record.Nonce{1}, &defaultJob.Options, []byte("payload"))
	require.NoError(f, err)
	good := record.Join(head, 1_700_000_000_001, tail)
	for _, seed := range []string{"", good, good[:20], good + "x", record.Netstring(byHand) + good, "1 retry 3 4 0", "1e3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, e := range attemptErrors(raw) {
			_ = e.encode()
		}
		for _, cut := range []int{-1, 0, len(raw), recordHead} {
			readJobInfo("topic", "id", cut, func(int) string { return raw })
			readJobInfo("topic", "id", cut, func(column int) string {
				if column == columnRecord {
					return ""
				}
				return raw
			})
		}
		if rec, err := record.Decode(raw); err == nil {
			rec.Options.Fill(&defaultRun)
			for _, attempt := range []int{1, 2, 70, math.MaxInt} {
				require.Positive(t, backoff(attempt, rec.Options.BackoffMin, rec.Options.BackoffMax))
			}
		}
	})
}

func TestAttemptErrorRoundTrip(t *testing.T) {
	t.Parallel()
	want := []AttemptError{
		{
			Attempt: 1, At: msTime(1_700_000_000_000), Duration: 1500 * time.Millisecond, Server: "s", Kind: KindPanic, Type: "*errors.errorString",
			Message: "mess\"age\n🐢", Stack: "goroutine 1", NextDue: msTime(1_700_000_002_000), TraceParent: "00-1-2-3",
		},
		{Attempt: 2, At: msTime(1_700_000_002_000), Kind: KindTimeout},
	}
	require.Equal(t, want, attemptErrors(record.Netstring(want[0].encode())+record.Netstring(want[1].encode())))
}

// Any bytes are an ID and a payload. (B16, I8)
func FuzzID(f *testing.F) {
	r := embedded.New()
	f.Cleanup(r.Close)
	rdb := r.Client()
	f.Cleanup(func() { _ = rdb.Close() })
	client := NewClient(rdb)
	every := make([]byte, 256)
	binary.BigEndian.PutUint64(every[8:], math.MaxUint64)
	for i := range every {
		every[i] = byte(i)
	}
	for _, seed := range []string{
		"", "x", ":", "{}", "a{b}c", "a\nb", "\x00", "\xff\xfe", "🐢", string(every), strings.Repeat("-", 1024), strings.Repeat("i", 1025), "none", " 1 ",
	} {
		f.Add(seed, []byte(seed))
		f.Add(seed, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, id string, payload []byte) {
		ctx := context.Background()
		const topic = "fuzz"
		job, err := client.Enqueue(ctx, topic, id, payload, ProcessIn(time.Hour), Header(id, string(payload[:min(len(payload), 1000)])))
		if len(id) > maxIDLen {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.NoError(t, err)
		if id != "" {
			require.Equal(t, id, job.ID)
		}
		id = job.ID
		_, err = client.Enqueue(ctx, topic, id, nil)
		require.ErrorIs(t, err, ErrDuplicate)
		info, err := client.Get(ctx, topic, id)
		require.NoError(t, err)
		require.NoError(t, info.Undecodable)
		require.Equal(t, id, info.ID)
		require.True(t, bytes.Equal(payload, info.Payload))
		require.Equal(t, job.Due, info.Due)
		require.NoError(t, client.Reschedule(ctx, topic, id, ProcessIn(0)))
		h := NewHand(t, rdb, defaultPrefix, topic)
		held := h.TakeOne(id)
		require.Equal(t, "o", h.Return(held))
		state, err := client.Dequeue(ctx, topic, id)
		require.NoError(t, err)
		require.Equal(t, StateReady, state)
		require.Empty(t, h.Take(1, time.Minute), "it is cancelled")
		_, err = client.Dequeue(ctx, topic, id)
		require.True(t, errors.Is(err, ErrNotFound), err)
		for _, key := range []string{"pool", "bucket", "ready", "leases", "moved", "attempts"} {
			require.False(t, r.Exists(h.Key(key)), key)
		}
	})
}
