package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// enqueue makes a job with a payload of so many bytes. It is due in an hour.
func enqueue(h *hand.Hand, id string, size int) {
	h.T.Helper()
	o := record.Options{Retry: record.NotSet, DueIn: time.Hour.Milliseconds()}
	head, tail, err := record.Encode(record.NewNonce(), &o, make([]byte, size))
	require.NoError(h.T, err)
	_, err = h.TrySend(false, []any{id, head, tail, hand.When(time.Hour)})
	require.NoError(h.T, err)
}

// The mend script has the last word: whatever has happened to a job since it was looked up, it is
// left alone.
func TestMendLeavesAloneWhatHasMoved(t *testing.T) {
	change := map[string]func(t *testing.T, h *hand.Hand){
		"cancelled": func(t *testing.T, h *hand.Hand) { _, err := h.TryCancel("x"); require.NoError(t, err) },
		"cancelled, enqueued anew": func(t *testing.T, h *hand.Hand) {
			_, err := h.TryCancel("x")
			require.NoError(t, err)
			h.Put("+0", "x")
			require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
		},
		"taken": func(t *testing.T, h *hand.Hand) { h.Push(h.Keys.Ready, "x"); h.TakeOne("x") },
		"buried": func(t *testing.T, h *hand.Hand) {
			h.Push(h.Keys.Ready, "x")
			require.Equal(t, "o", h.Bury(h.TakeOne("x")))
		},
		"rescheduled": func(t *testing.T, h *hand.Hand) { _, err := h.TryReschedule("x", "+1000"); require.NoError(t, err) },
		"rescheduled, and lost again": func(t *testing.T, h *hand.Hand) {
			_, err := h.TryReschedule("x", "+1000")
			require.NoError(t, err)
			require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Bucket).Err())
		},
		"run, and back": func(t *testing.T, h *hand.Hand) {
			h.Push(h.Keys.Ready, "x")
			require.Len(t, h.Take(1, 0), 1)
			h.Promote()
			require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
		},
		"at the head of ready": func(t *testing.T, h *hand.Hand) {
			h.Push(h.Keys.Ready, append(hand.Numbered("b", 999), "x")...)
			h.Push(h.Keys.Ready, hand.Numbered("a", 2000)...)
		},
		"at the tail of ready": func(t *testing.T, h *hand.Hand) {
			h.Push(h.Keys.Ready, hand.Numbered("b", 2000)...)
			h.Push(h.Keys.Ready, append([]string{"x"}, hand.Numbered("a", 999)...)...)
		},
		"in handoff": func(t *testing.T, h *hand.Hand) { h.Push(h.Keys.Handoff, "x") },
	}
	for name, change := range change {
		t.Run(name, func(t *testing.T) {
			hand.Each(t, func(t *testing.T, h *hand.Hand) {
				h.Put("+0", "x", "y")
				require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
				d := New(script.Caller{RDB: h.RDB}, h.RDB, h.Keys, true)
				r, err := script.LookUp(t.Context(), d.Scripts, h.Keys, script.CallBytes, -1, []string{"x", "y"})
				require.NoError(t, err)
				var list []*stray
				for i, id := range []string{"x", "y"} {
					list = append(list, d.diagnose(id, func(column int) string { return r.List(2 + column).Text(i) }))
				}
				change(t, h)
				before := h.Traces("x")
				require.NoError(t, d.mend(t.Context(), list))
				require.Equal(t, before, h.Traces("x"))
				require.Len(t, d.Report.Findings, 1)
				require.Equal(t, "y", d.Report.Findings[0].ID)
				require.Contains(t, h.List(h.Keys.Ready), "y")
			})
		})
	}
}

// A walk through ready meets every ID that stays there, whatever comes and goes meanwhile.
func TestWalkMissesNothingThatStays(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ids := hand.Numbered("id", 6*WalkLimit+500)
		h.Push(h.Keys.Ready, ids...)
		d := New(script.Caller{RDB: h.RDB}, h.RDB, h.Keys, true)
		steps := 0
		d.Pause = func(ctx context.Context, _ time.Duration) error {
			steps++
			h.Push(h.Keys.Ready, hand.Numbered("new", 1500)...) // jobs fall due
			require.NoError(t, h.RDB.LTrim(ctx, h.Keys.Ready, 1550, -1).Err())
			require.NoError(t, h.RDB.LPush(ctx, h.Keys.Ready, "returned").Err())
			return nil
		}
		seen := map[string]bool{}
		require.NoError(t, d.walk(t.Context(), func(id string) { seen[id] = true }))
		require.Greater(t, steps, 6)
		stay := 0
		for _, id := range h.List(h.Keys.Ready) {
			if strings.HasPrefix(id, "id") {
				require.True(t, seen[id], id)
				stay++
			}
		}
		require.Greater(t, stay, 1000)
	})
}

// A walk that is outrun ends.
func TestWalkHasAnEnd(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := hand.New(t, rdb, redistest.Prefix(t), "topic")
	h.Push(h.Keys.Ready, hand.Numbered("id", 2*WalkLimit)...)
	d := New(script.Caller{RDB: rdb}, rdb, h.Keys, true)
	more := hand.Numbered("more", 2*WalkLimit)
	d.Pause = func(context.Context, time.Duration) error {
		h.Push(h.Keys.Ready, more...)
		return nil
	}
	require.ErrorIs(t, d.walk(t.Context(), func(string) {}), ErrGrowing)
	require.NoError(t, rdb.Del(t.Context(), h.Keys.Ready).Err())
}

// heavy notes the size of the largest answer.
type heavy struct {
	redis.UniversalClient
	most, calls int
}

func (w *heavy) Process(ctx context.Context, cmd redis.Cmder) error {
	err := w.UniversalClient.Process(ctx, cmd)
	if c, ok := cmd.(*redis.Cmd); ok && err == nil {
		w.most = max(w.most, len(fmt.Sprint(c.Val())))
		w.calls++
	}
	return err
}

// Jobs that have lost their places are looked up by a few if they are large, whatever the others
// are.
func TestCheckLooksUpLargeStraysByTheBytes(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		const n = 40
		h.Put("+3600000", hand.Numbered("small", 200)...)
		for _, id := range hand.Numbered("large", n) {
			enqueue(h, id, 60<<10)
			require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Bucket, id).Err())
		}
		w := &heavy{UniversalClient: redistest.As(t, h.RDB, "worker", h.Prefix(), false)}
		d := New(script.Caller{RDB: w}, w, h.Keys, true)
		d.strays = append(hand.Numbered("large", n), hand.Numbered("small", 200)...)
		require.NoError(t, d.resolve(t.Context()))
		require.Equal(t, n, d.Report.Mended)
		require.Less(t, w.most, SliceBytes*5/4)
		require.Greater(t, w.calls, 10)
	})
}

// A check looks through large records, results and error logs by the bytes, also where the first or
// most of them are small.
func TestCheckReadsLargeValuesByTheBytes(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Shared(t)
	h := hand.New(t, rdb, redistest.Prefix(t), "topic")
	ctx := t.Context()
	const n, size = 30, 200 << 10 // one and a half of them are as much as a call looks at
	h.Put("+3600000", hand.Numbered("small", 2000)...)
	for _, id := range hand.Numbered("large", n) {
		enqueue(h, id, size)
		require.NoError(t, rdb.HSet(ctx, h.Keys.Results, id, make([]byte, size)).Err())
		require.NoError(t, rdb.ZAdd(ctx, h.Keys.Done, redis.Z{Score: 9e12, Member: id}).Err())
		require.NoError(t, rdb.HSet(ctx, h.Keys.Errors, id, make([]byte, size)).Err())
	}
	// Redis returns all entries of a place of a hash together. Among many small ones, hardly any
	// place has several large ones.
	for _, id := range hand.Numbered("small", 2000) {
		require.NoError(t, rdb.HSet(ctx, h.Keys.Results, id, "x").Err())
		require.NoError(t, rdb.ZAdd(ctx, h.Keys.Done, redis.Z{Score: 9e12, Member: id}).Err())
		require.NoError(t, rdb.HSet(ctx, h.Keys.Errors, id, "x").Err())
	}
	for _, key := range []string{h.Keys.Pool, h.Keys.Results, h.Keys.Errors} {
		d := New(script.Caller{RDB: rdb}, rdb, h.Keys, false)
		seen, calls := int64(0), 0
		for cursor := "0"; calls == 0 || cursor != "0"; calls++ {
			r, err := d.ask(ctx, 1, h.Keys.Name(key), cursor, SliceWork, SliceBytes, 0)
			require.NoError(t, err)
			cursor = r.Text(2)
			require.LessOrEqual(t, r.Number(3), int64(SliceWork+SliceBytes/2000))
			seen += r.Number(3)
		}
		require.GreaterOrEqual(t, seen, int64(n))
		// Two of them are more than a call looks at, and a place of the hash can have some.
		require.GreaterOrEqual(t, calls, n/3, key)
	}
	d := New(script.Caller{RDB: rdb}, rdb, h.Keys, true)
	require.NoError(t, d.Check(ctx))
	require.Empty(t, d.Report.Found)
	require.GreaterOrEqual(t, d.Report.Jobs, int64(n+2000))
}

// IDs of ready are read by the bytes too, all of them, and in the right number.
func TestCheckReadsLongIDsByTheBytes(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		const n = 3000
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprintf("%01000d", i)
		}
		h.Put("+0", ids...)
		w := &heavy{UniversalClient: redistest.As(t, h.RDB, "worker", h.Prefix(), false)}
		d := New(script.Caller{RDB: w}, w, h.Keys, false)
		var seen []string
		require.NoError(t, d.walk(t.Context(), func(id string) { seen = append(seen, id) }))
		require.ElementsMatch(t, ids, seen)
		require.Less(t, w.most, script.CallBytes)
		require.GreaterOrEqual(t, w.calls, n/1000)
	})
}
