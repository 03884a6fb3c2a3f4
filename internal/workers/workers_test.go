package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// A topic takes as many jobs as it has idle workers, and some ahead while handlers are short. It
// takes fewer large ones, and none while Redis does not accept the outcomes of those it has.
func TestWorkersRoom(t *testing.T) {
	const short = AheadTime / aheadLimit
	waiting := func(n int) []*run.Run { return make([]*run.Run, n) }
	for name, c := range map[string]struct {
		w     Workers
		owned int
		want  int
	}{
		"idle":                        {Workers{Count: 10, HandlerTime: AheadUnknown}, 0, 10},
		"some busy":                   {Workers{Count: 10, Busy: 4, HandlerTime: AheadUnknown}, 4, 6},
		"all busy":                    {Workers{Count: 10, Busy: 10, HandlerTime: AheadUnknown}, 10, 0},
		"jobs are coming":             {Workers{Count: 10, Coming: 7, HandlerTime: AheadUnknown}, 0, 3},
		"jobs wait":                   {Workers{Count: 10, Next: waiting(9), HandlerTime: AheadUnknown}, 9, 1},
		"short handlers, all busy":    {Workers{Count: 10, Busy: 10, HandlerTime: short}, 10, run.TakeLimit},
		"half of those ahead wait":    {Workers{Count: 10, Busy: 10, HandlerTime: short, Next: waiting(aheadLimit / 2)}, 0, run.TakeLimit},
		"more than half wait":         {Workers{Count: 10, Busy: 10, HandlerTime: short, Next: waiting(aheadLimit/2 + 1)}, 0, 0},
		"handlers of one ms":          {Workers{Count: 10, Busy: 10, HandlerTime: time.Millisecond}, 10, 20},
		"handlers of an hour":         {Workers{Count: 10, Busy: 9, HandlerTime: time.Hour}, 9, 1},
		"limited retries":             {Workers{Count: 10, Busy: 10, HandlerTime: short, limited: true}, 10, 0},
		"Defaults that limit retries": {Workers{Count: 10, Busy: 10, HandlerTime: short, Cautious: true}, 10, 0},
		"large records":               {Workers{Count: 100, HandlerTime: AheadUnknown, size: script.CallBytes / 8}, 0, 10},
		"records of a whole call":     {Workers{Count: 100, HandlerTime: AheadUnknown, size: 64 << 20}, 0, 1},
		"outcomes that pile up":       {Workers{Count: 10, HandlerTime: AheadUnknown}, 2*10 + 2*aheadLimit, 0},
		"outcomes that nearly do":     {Workers{Count: 10, HandlerTime: AheadUnknown}, 2*10 + 2*aheadLimit - 1, 1},
	} {
		require.Equal(t, c.want, c.w.Room(c.owned), name)
	}
}

// With a batch handler, a worker has room for a batch. A batch that starts although it is not full
// leaves its other places empty. Only whole batches are taken ahead.
func TestWorkersOfBatches(t *testing.T) {
	waiting := func(n int) []*run.Run { return make([]*run.Run, n) }
	for name, c := range map[string]struct {
		w          Workers
		room, free int
		starts     bool
	}{
		"idle":                   {Workers{Count: 4, PerCall: 10}, 40, 40, false},
		"some busy":              {Workers{Count: 4, PerCall: 10, Busy: 3}, 10, 10, false},
		"all busy":               {Workers{Count: 4, PerCall: 10, Busy: 4}, 0, 0, false},
		"a lone job":             {Workers{Count: 4, PerCall: 10, Next: waiting(1)}, 30, 30, true},
		"a full batch":           {Workers{Count: 4, PerCall: 10, Next: waiting(10)}, 30, 30, true},
		"a part, others come":    {Workers{Count: 4, PerCall: 10, Next: waiting(7), Coming: 5}, 28, 28, false},
		"a part, there are more": {Workers{Count: 4, PerCall: 10, Next: waiting(7), more: true}, 33, 33, false},
		"a part, long enough":    {Workers{Count: 4, PerCall: 10, Next: waiting(7), more: true, Hasty: true}, 30, 30, true},
		"a batch and a part":     {Workers{Count: 4, PerCall: 10, Next: waiting(17), more: true}, 20, 20, true},
		"more than the idle run": {Workers{Count: 4, PerCall: 10, Busy: 3, Next: waiting(13)}, 0, 0, true},
		"more than a take":       {Workers{Count: 4, PerCall: 1000}, run.TakeLimit, 4000, false},
		"a worker starts":        {Workers{Count: 4, PerCall: 10, Next: waiting(10), Starting: true}, 30, 30, false},
	} {
		c.w.HandlerTime = AheadUnknown
		require.Equal(t, c.room, c.w.Room(0), name)
		require.Equal(t, c.free, c.w.Unclaimed(), name)
		require.Equal(t, c.starts, c.w.ToStart(), name)
	}
	w := Workers{Count: 4, PerCall: 10, Busy: 4, HandlerTime: 4 * time.Millisecond} // two calls within the horizon
	require.Equal(t, 20, w.Ahead())
	w.HandlerTime = 9 * time.Millisecond
	require.Zero(t, w.Ahead(), "not a part of a batch")
	w.HandlerTime = 0
	require.Equal(t, aheadLimit, w.Ahead())

	w = Workers{Count: 1, PerCall: 10, HandlerTime: AheadUnknown}
	w.Expect(0, 0, false)
	require.False(t, w.more)
	n, _ := w.Reserve(false, 0)
	w.Expect(n, n, false)
	require.True(t, w.more, "all it asked for")
	n, _ = w.Reserve(false, 0)
	require.Zero(t, n)
	w.Expect(0, 0, false)
	require.False(t, w.more, "the topic is empty")
}

// The horizon contains the round trip of a take, so that a worker far from Redis does not wait for
// the next one. A single slow take moves it little, and Redis's work on many jobs does not count.
func TestWorkersHorizon(t *testing.T) {
	w := Workers{Count: 10, Busy: 10, HandlerTime: time.Millisecond}
	require.Equal(t, AheadTime, w.horizon())
	require.Equal(t, AheadPatience, w.Patience())
	for range 500 {
		w.Took(10*time.Millisecond, 0)
	}
	require.InDelta(t, AheadTime+25*time.Millisecond, w.horizon(), float64(time.Microsecond))
	require.InDelta(t, 3*(AheadTime+25*time.Millisecond), w.Patience(), float64(time.Microsecond))
	require.InDelta(t, 270, w.Room(10), 1)
	before := w.horizon()
	w.Took(time.Second, 0)
	require.Less(t, w.horizon()-before, 25*time.Millisecond)
	for range 100 {
		w.Took(2*time.Millisecond, 500)
	}
	require.InDelta(t, AheadTime, w.horizon(), float64(time.Microsecond))
	for range 1000 {
		w.Took(time.Hour, 0)
	}
	require.LessOrEqual(t, w.horizon(), AheadTime+2*aheadTrip+aheadTrip/2)
}

// Room is kept for the jobs of a take until they are admitted or did not come.
func TestWorkersReserve(t *testing.T) {
	w := Workers{Count: 10, HandlerTime: AheadUnknown}
	n, free := w.Reserve(false, 0)
	require.Equal(t, []int{10, 10}, []int{n, free})
	n, free = w.Reserve(false, 0)
	require.Equal(t, []int{0, 0}, []int{n, free}, "the room is taken")
	w.Expect(10, 4, false)
	require.Equal(t, 4, w.Coming)
	require.Equal(t, 6, w.Unclaimed())
	for range 4 {
		w.Arrived(&run.Run{})
	}
	require.Zero(t, w.Coming)
	require.True(t, w.limited, "the retries of the last one are limited: 0")

	w = Workers{Count: 10, HandlerTime: AheadUnknown, batch: 11}
	n, free = w.Reserve(true, 0)
	require.Equal(t, []int{0, 10}, []int{n, free}, "no room for a full take")
	w.batch = 10
	n, _ = w.Reserve(true, 0)
	require.Equal(t, 10, n)
}

// A second taker helps if there is more, and room for as much as the last take has returned. With
// one worker it never does, because that takes its jobs in their order.
func TestWorkersRoomForTwo(t *testing.T) {
	w := Workers{Count: 10, HandlerTime: AheadUnknown}
	w.Expect(0, 5, true)
	require.True(t, w.RoomForTwo(0))
	w.Expect(5, 5, false)
	require.False(t, w.RoomForTwo(0), "there is no more")
	w.Coming = 6
	w.Expect(0, 0, true)
	require.True(t, w.RoomForTwo(0), "an empty take counts as one job")
	w.batch = 5
	require.False(t, w.RoomForTwo(0), "no room for five")
	one := Workers{Count: 1, HandlerTime: AheadUnknown}
	one.Expect(0, 1, true)
	require.False(t, one.RoomForTwo(0))
}

// Workers start one at a time, as long as one is idle and a job waits, and none after a stop.
func TestWorkersStart(t *testing.T) {
	w := Workers{Count: 2}
	require.False(t, w.ToStart(), "no job")
	a, b, c := &run.Run{ID: "a"}, &run.Run{ID: "b"}, &run.Run{ID: "c"}
	for _, r := range []*run.Run{a, b, c} {
		w.Queue(r, time.Now())
	}
	require.True(t, w.ToStart())
	require.False(t, w.ToStart(), "one is being started")
	w.Starting = false
	require.Same(t, a, w.Pop())
	w.Busy++
	require.True(t, w.ToStart())
	w.Starting = false
	require.Same(t, b, w.Pop())
	w.Busy++
	require.False(t, w.ToStart(), "all are busy")
	w.Stopping = true
	require.Nil(t, w.Pop(), "stopped")
	w.Busy--
	require.False(t, w.ToStart(), "stopped")
	w.Stopping = false
	require.Same(t, c, w.Pop())
	require.Nil(t, w.Pop())
}

// A job whose rates let it start later only has a worker until then, and none other is taken for
// it. Such jobs start in the order of their times, and go back behind the others on a stop.
func TestWorkersStartLater(t *testing.T) {
	now := time.Now()
	w := Workers{Count: 5, Bounded: true, HandlerTime: time.Microsecond}
	for i, ms := range []time.Duration{0, 3, 1, 2, 3} {
		w.Queue(&run.Run{ID: string(rune('a' + i)), From: now.Add(ms * time.Millisecond)}, now)
	}
	require.Zero(t, w.Unclaimed())
	require.Zero(t, w.Room(5))
	require.True(t, w.AtCount())
	require.Equal(t, now.Add(time.Millisecond), w.Ripen(now))
	require.Equal(t, "a", w.Pop().ID)
	require.Nil(t, w.Pop())
	require.Equal(t, 1, w.Unclaimed())
	lost, rest := w.Spill(false)
	require.Empty(t, append(lost, rest...), "they have workers")
	require.Equal(t, now.Add(3*time.Millisecond), w.Ripen(now.Add(2*time.Millisecond)))
	require.Equal(t, "c", w.Pop().ID)
	_, rest = w.Spill(true)
	var ids string
	for _, r := range rest {
		ids += r.ID
	}
	require.Equal(t, "dbe", ids)
	require.True(t, w.Ripen(now.Add(time.Hour)).IsZero())
	require.Nil(t, w.Pop())
}

// Jobs without an idle worker go back, and lost ones are reported. On a stop all go back.
func TestWorkersSpill(t *testing.T) {
	fill := func() Workers {
		w := Workers{Count: 3, Busy: 1, HandlerTime: time.Millisecond}
		for i := range 6 {
			r := &run.Run{ID: string(rune('a' + i))}
			if i == 1 {
				r.Lost = run.ErrCancelled
			}
			w.Queue(r, time.Now())
		}
		return w
	}
	ids := func(list []*run.Run) (s string) {
		for _, r := range list {
			s += r.ID
		}
		return s
	}
	w := fill()
	lost, rest := w.Spill(false)
	require.Equal(t, []string{"b", "def", "ac"}, []string{ids(lost), ids(rest), ids(w.Next)})
	require.Equal(t, AheadUnknown, w.HandlerTime, "nothing more is taken ahead for now")
	w = fill()
	lost, rest = w.Spill(true)
	require.Equal(t, []string{"b", "acdef", ""}, []string{ids(lost), ids(rest), ids(w.Next)})
}

// A topic on demand takes as many jobs as somebody waits for, and none ahead. A run that has ended
// leaves no room for another.
func TestWorkersOnDemand(t *testing.T) {
	w := Workers{OnDemand: true, Cautious: true}
	room := func(want int) {
		t.Helper()
		require.Equal(t, want, w.Room(w.Busy))
		require.Equal(t, want, w.Unclaimed())
	}
	room(0)
	w.Count += 3
	room(3)
	w.Busy++
	w.Ran(0) // as short as can be
	w.Ended()
	room(2)
	w.Busy++
	w.Count-- // who waited for the other has gone
	room(0)
	w.Count-- // and for the running one, too
	room(0)
	w.Count++ // which its handler finds out
	w.Ended()
	room(0)
	require.Zero(t, w.Count)
	own := Workers{Count: 3, Busy: 1}
	own.Ended()
	require.Equal(t, 3, own.Idle())
}
