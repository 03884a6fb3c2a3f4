package delayq

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
)

// largest is what the topic has noted of its largest record, "" for nothing, beside the largest
// that there is.
func (h *Hand) largest() (noted string, there int) {
	h.t.Helper()
	noted = h.rdb.HGet(h.t.Context(), h.keys.sizes, "largest").Val()
	for _, record := range h.rdb.HGetAll(h.t.Context(), h.keys.pool).Val() {
		there = max(there, len(record))
	}
	return noted, there
}

// requireNoted holds what is noted to the records that there are.
func (h *Hand) requireNoted() {
	h.t.Helper()
	noted, there := h.largest()
	require.Greater(h.t, there, 2000)
	require.Equal(h.t, strconv.Itoa(there), noted)
}

// Whatever stores a record notes how large the largest one is, and only if it is large.
func TestSizesOfRecordsAreNoted(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx, c := t.Context(), h.client()
		enqueue := func(id string, payload int, opts ...JobOption) {
			t.Helper()
			_, err := c.Enqueue(ctx, "topic", id, make([]byte, payload), opts...)
			require.NoError(t, err)
		}
		enqueue("small", 1900)
		require.False(t, h.rdb.Exists(ctx, h.keys.sizes).Val() == 1, "nothing is noted of small ones")
		enqueue("a", 3000)
		h.requireNoted()
		enqueue("b", 2500, ProcessIn(time.Hour))
		h.requireNoted()
		enqueue("b", 5000, Replace())
		h.requireNoted()
		enqueue("b", 6000, Replace(), ProcessIn(time.Hour))
		h.requireNoted()
		_, err := c.EnqueueBatch(ctx, []NewJob{
			{Topic: "topic", ID: "1"}, {Topic: "topic", ID: "2", Payload: make([]byte, 9000)}, {Topic: "topic", ID: "3"},
		})
		require.NoError(t, err)
		h.requireNoted()
		held := h.TakeOne("small")
		h.renewals = map[string]*renewal{}
		for id, when := range map[string]string{"small": "+0", "b": "+1000"} {
			n, err := (&run{said: defaultJob.Options}).renew(&againError{payload: make([]byte, 9500+10*len(id))}, time.Now())
			require.NoError(t, err)
			n.when, h.renewals[id] = when, n
		}
		require.Equal(t, "o", h.Again(0, held))
		h.requireNoted()
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(10*365*24*time.Hour), make([]byte, 10_000)))
		_, err = c.Trigger(ctx, "topic", "s")
		require.NoError(t, err)
		h.requireNoted()
	})
}

// The note goes when the topic is empty, and not before.
func TestSizesGoWithTheLastRecord(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		_, err := h.client().Enqueue(t.Context(), "topic", "a", make([]byte, 3000))
		require.NoError(t, err)
		held := h.TakeOne("a")
		_, err = h.tryPrune(9, time.Hour, 500)
		require.NoError(t, err)
		h.requireNoted()
		require.Equal(t, "o", h.Ack(held))
		_, err = h.tryPrune(9, time.Hour, 500)
		require.NoError(t, err)
		require.Equal(t, []string{h.keys.stats}, keysOf(Dump(t, h.rdb, h.prefix())))
	})
}

// A check notes the size again if the note was lost, and otherwise leaves it alone: it may be that
// of a record that is gone.
func TestCheckNotesTheLargestRecord(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		c := h.client()
		_, err := c.Enqueue(t.Context(), "topic", "a", make([]byte, 3000))
		require.NoError(t, err)
		h.put("+0", "b")
		require.NoError(t, h.rdb.Del(t.Context(), h.keys.sizes).Err())
		report, err := c.Check(t.Context(), "topic")
		require.NoError(t, err)
		require.Empty(t, report.Findings)
		require.Zero(t, h.rdb.Exists(t.Context(), h.keys.sizes).Val(), "it was only to look")
		for range 2 {
			_, err = c.Repair(t.Context(), "topic")
			require.NoError(t, err)
			h.requireNoted()
		}
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		before, _ := h.largest()
		_, err = c.Repair(t.Context(), "topic")
		require.NoError(t, err)
		after, _ := h.largest()
		require.Equal(t, before, after)
	})
}

// The note decides nothing about a job.
func TestSizesOfAWrongTypeLoseNoJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.deface("sizes")
		job, err := h.client().Enqueue(t.Context(), "topic", "a", make([]byte, 3000))
		require.NoError(t, err)
		require.Equal(t, job.Nonce(), h.info("a").Nonce())
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
	})
}

// Looking for duplicates reads no payloads but where all of them together are small, or as long as
// those of the call.
func TestDuplicatesAreNotRead(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	rdb := rs.Client(t)
	for _, s := range allScripts {
		require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(s.text)).Err())
	}
	client := NewClient(rdb)
	enqueue := func(jobs, payload int, opts ...JobOption) {
		list := make([]NewJob, jobs)
		for i := range list {
			list[i] = NewJob{Topic: "topic", ID: fmt.Sprint(i), Payload: make([]byte, payload), Options: opts}
		}
		_, _ = client.EnqueueBatch(t.Context(), list) // most are duplicates
	}
	reads := func(enqueue func()) (hmget, hget int) {
		seen := watchCommands(t, rdb, rs.Addr())
		enqueue()
		for _, command := range seen() {
			switch command.name {
			case "hmget":
				hmget++
			case "hget":
				hget++
			}
		}
		return hmget, hget
	}
	type calls struct{ hmget, hget int }
	as := func(hmget, hget int) calls { return calls{hmget, hget} }
	enqueue(8, 100)
	require.Equal(t, calls{1, 1}, as(reads(func() { enqueue(8, 0) })), "small ones in one go")
	require.Equal(t, calls{0, 0}, as(reads(func() { enqueue(3, 0) })), "few")
	enqueue(8, 200_000, Replace())
	for _, opts := range [][]JobOption{nil, {Replace()}} {
		require.Equal(t, calls{0, 1}, as(reads(func() { enqueue(8, 0, opts...) })), "only their number")
		require.Equal(t, calls{0, 0}, as(reads(func() { enqueue(1, 9, opts...) })))
		enqueue(8, 200_000, Replace())
		hmget, hget := reads(func() { enqueue(8, 200_000) })
		require.Equal(t, 0, hmget)
		require.GreaterOrEqual(t, hget, 8, "as long as what was sent")
	}
}

// A call whose receipt is lost finds its own records, however it looks for them.
func TestEnqueueFindsItsOwnRecords(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, jobs := range []int{1, 3, 4, 9} {
			for _, payload := range []int{0, 300_000} {
				for _, replace := range []bool{false, true} {
					var args []any
					for i := range jobs {
						head, tail, err := record.Encode(record.Nonce{byte(i), byte(jobs)}, &defaultJob.Options, make([]byte, payload))
						require.NoError(t, err)
						args = append(args, fmt.Sprint(jobs, replace, payload, i), head, tail, "+0")
					}
					_, err := h.trySend(replace, args)
					require.NoError(t, err)
					before := Dump(t, h.rdb, h.prefix())
					r, err := NewHand(t, h.rdb, h.prefix(), "topic").trySend(replace, args)
					require.NoError(t, err)
					require.Empty(t, r.text(2), "all are stored")
					require.Equal(t, before, Dump(t, h.rdb, h.prefix()))
				}
			}
		}
	})
}
