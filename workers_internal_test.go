package delayq

import (
	"testing"
	"time"

	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/stretchr/testify/require"
)

// A topic takes as many jobs as it has idle workers, and some ahead while handlers are short. It
// takes fewer large ones, and none while Redis does not accept the outcomes of those it has.
func TestWorkersRoom(t *testing.T) {
	const short = aheadTime / aheadLimit
	waiting := func(n int) []*run.Run { return make([]*run.Run, n) }
	for name, c := range map[string]struct {
		w     workers
		owned int
		want  int
	}{
		"idle":                        {workers{count: 10, handlerTime: aheadUnknown}, 0, 10},
		"some busy":                   {workers{count: 10, busy: 4, handlerTime: aheadUnknown}, 4, 6},
		"all busy":                    {workers{count: 10, busy: 10, handlerTime: aheadUnknown}, 10, 0},
		"jobs are coming":             {workers{count: 10, coming: 7, handlerTime: aheadUnknown}, 0, 3},
		"jobs wait":                   {workers{count: 10, next: waiting(9), handlerTime: aheadUnknown}, 9, 1},
		"short handlers, all busy":    {workers{count: 10, busy: 10, handlerTime: short}, 10, run.TakeLimit},
		"half of those ahead wait":    {workers{count: 10, busy: 10, handlerTime: short, next: waiting(aheadLimit / 2)}, 0, run.TakeLimit},
		"more than half wait":         {workers{count: 10, busy: 10, handlerTime: short, next: waiting(aheadLimit/2 + 1)}, 0, 0},
		"handlers of one ms":          {workers{count: 10, busy: 10, handlerTime: time.Millisecond}, 10, 20},
		"handlers of an hour":         {workers{count: 10, busy: 9, handlerTime: time.Hour}, 9, 1},
		"limited retries":             {workers{count: 10, busy: 10, handlerTime: short, limited: true}, 10, 0},
		"Defaults that limit retries": {workers{count: 10, busy: 10, handlerTime: short, cautious: true}, 10, 0},
		"large records":               {workers{count: 100, handlerTime: aheadUnknown, size: script.CallBytes / 8}, 0, 10},
		"records of a whole call":     {workers{count: 100, handlerTime: aheadUnknown, size: 64 << 20}, 0, 1},
		"outcomes that pile up":       {workers{count: 10, handlerTime: aheadUnknown}, 2*10 + 2*aheadLimit, 0},
		"outcomes that nearly do":     {workers{count: 10, handlerTime: aheadUnknown}, 2*10 + 2*aheadLimit - 1, 1},
	} {
		require.Equal(t, c.want, c.w.room(c.owned), name)
	}
}

// With a batch handler, a worker has room for a batch. A batch that starts although it is not full
// leaves its other places empty. Only whole batches are taken ahead.
func TestWorkersOfBatches(t *testing.T) {
	waiting := func(n int) []*run.Run { return make([]*run.Run, n) }
	for name, c := range map[string]struct {
		w          workers
		room, free int
		starts     bool
	}{
		"idle":                   {workers{count: 4, perCall: 10}, 40, 40, false},
		"some busy":              {workers{count: 4, perCall: 10, busy: 3}, 10, 10, false},
		"all busy":               {workers{count: 4, perCall: 10, busy: 4}, 0, 0, false},
		"a lone job":             {workers{count: 4, perCall: 10, next: waiting(1)}, 30, 30, true},
		"a full batch":           {workers{count: 4, perCall: 10, next: waiting(10)}, 30, 30, true},
		"a part, others come":    {workers{count: 4, perCall: 10, next: waiting(7), coming: 5}, 28, 28, false},
		"a part, there are more": {workers{count: 4, perCall: 10, next: waiting(7), more: true}, 33, 33, false},
		"a part, long enough":    {workers{count: 4, perCall: 10, next: waiting(7), more: true, hasty: true}, 30, 30, true},
		"a batch and a part":     {workers{count: 4, perCall: 10, next: waiting(17), more: true}, 20, 20, true},
		"more than the idle run": {workers{count: 4, perCall: 10, busy: 3, next: waiting(13)}, 0, 0, true},
		"more than a take":       {workers{count: 4, perCall: 1000}, run.TakeLimit, 4000, false},
		"a worker starts":        {workers{count: 4, perCall: 10, next: waiting(10), starting: true}, 30, 30, false},
	} {
		c.w.handlerTime = aheadUnknown
		require.Equal(t, c.room, c.w.room(0), name)
		require.Equal(t, c.free, c.w.unclaimed(), name)
		require.Equal(t, c.starts, c.w.toStart(), name)
	}
	w := workers{count: 4, perCall: 10, busy: 4, handlerTime: 4 * time.Millisecond} // two calls within the horizon
	require.Equal(t, 20, w.ahead())
	w.handlerTime = 9 * time.Millisecond
	require.Zero(t, w.ahead(), "not a part of a batch")
	w.handlerTime = 0
	require.Equal(t, aheadLimit, w.ahead())

	w = workers{count: 1, perCall: 10, handlerTime: aheadUnknown}
	w.expect(0, 0, false)
	require.False(t, w.more)
	n, _ := w.reserve(false, 0)
	w.expect(n, n, false)
	require.True(t, w.more, "all it asked for")
	n, _ = w.reserve(false, 0)
	require.Zero(t, n)
	w.expect(0, 0, false)
	require.False(t, w.more, "the topic is empty")
}

// The horizon contains the round trip of a take, so that a worker far from Redis does not wait for
// the next one. A single slow take moves it little, and Redis's work on many jobs does not count.
func TestWorkersHorizon(t *testing.T) {
	w := workers{count: 10, busy: 10, handlerTime: time.Millisecond}
	require.Equal(t, aheadTime, w.horizon())
	require.Equal(t, aheadPatience, w.patience())
	for range 500 {
		w.took(10*time.Millisecond, 0)
	}
	require.InDelta(t, aheadTime+25*time.Millisecond, w.horizon(), float64(time.Microsecond))
	require.InDelta(t, 3*(aheadTime+25*time.Millisecond), w.patience(), float64(time.Microsecond))
	require.InDelta(t, 270, w.room(10), 1)
	before := w.horizon()
	w.took(time.Second, 0)
	require.Less(t, w.horizon()-before, 25*time.Millisecond)
	for range 100 {
		w.took(2*time.Millisecond, 500)
	}
	require.InDelta(t, aheadTime, w.horizon(), float64(time.Microsecond))
	for range 1000 {
		w.took(time.Hour, 0)
	}
	require.LessOrEqual(t, w.horizon(), aheadTime+2*aheadTrip+aheadTrip/2)
}

// Room is kept for the jobs of a take until they are admitted or did not come.
func TestWorkersReserve(t *testing.T) {
	w := workers{count: 10, handlerTime: aheadUnknown}
	n, free := w.reserve(false, 0)
	require.Equal(t, []int{10, 10}, []int{n, free})
	n, free = w.reserve(false, 0)
	require.Equal(t, []int{0, 0}, []int{n, free}, "the room is taken")
	w.expect(10, 4, false)
	require.Equal(t, 4, w.coming)
	require.Equal(t, 6, w.unclaimed())
	for range 4 {
		w.arrived(&run.Run{})
	}
	require.Zero(t, w.coming)
	require.True(t, w.limited, "the retries of the last one are limited: 0")

	w = workers{count: 10, handlerTime: aheadUnknown, batch: 11}
	n, free = w.reserve(true, 0)
	require.Equal(t, []int{0, 10}, []int{n, free}, "no room for a full take")
	w.batch = 10
	n, _ = w.reserve(true, 0)
	require.Equal(t, 10, n)
}

// A second taker helps if there is more, and room for as much as the last take has returned. With
// one worker it never does, because that takes its jobs in their order.
func TestWorkersRoomForTwo(t *testing.T) {
	w := workers{count: 10, handlerTime: aheadUnknown}
	w.expect(0, 5, true)
	require.True(t, w.roomForTwo(0))
	w.expect(5, 5, false)
	require.False(t, w.roomForTwo(0), "there is no more")
	w.coming = 6
	w.expect(0, 0, true)
	require.True(t, w.roomForTwo(0), "an empty take counts as one job")
	w.batch = 5
	require.False(t, w.roomForTwo(0), "no room for five")
	one := workers{count: 1, handlerTime: aheadUnknown}
	one.expect(0, 1, true)
	require.False(t, one.roomForTwo(0))
}

// Workers start one at a time, as long as one is idle and a job waits, and none after a stop.
func TestWorkersStart(t *testing.T) {
	w := workers{count: 2}
	require.False(t, w.toStart(), "no job")
	a, b, c := &run.Run{ID: "a"}, &run.Run{ID: "b"}, &run.Run{ID: "c"}
	for _, r := range []*run.Run{a, b, c} {
		w.queue(r)
	}
	require.True(t, w.toStart())
	require.False(t, w.toStart(), "one is being started")
	w.starting = false
	require.Same(t, a, w.pop())
	w.busy++
	require.True(t, w.toStart())
	w.starting = false
	require.Same(t, b, w.pop())
	w.busy++
	require.False(t, w.toStart(), "all are busy")
	w.stopping = true
	require.Nil(t, w.pop(), "stopped")
	w.busy--
	require.False(t, w.toStart(), "stopped")
	w.stopping = false
	require.Same(t, c, w.pop())
	require.Nil(t, w.pop())
}

// Jobs without an idle worker go back, and lost ones are reported. On a stop all go back.
func TestWorkersSpill(t *testing.T) {
	fill := func() workers {
		w := workers{count: 3, busy: 1, handlerTime: time.Millisecond}
		for i := range 6 {
			r := &run.Run{ID: string(rune('a' + i))}
			if i == 1 {
				r.Lost = ErrCancelled
			}
			w.queue(r)
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
	lost, rest := w.spill(false)
	require.Equal(t, []string{"b", "def", "ac"}, []string{ids(lost), ids(rest), ids(w.next)})
	require.Equal(t, aheadUnknown, w.handlerTime, "nothing more is taken ahead for now")
	w = fill()
	lost, rest = w.spill(true)
	require.Equal(t, []string{"b", "acdef", ""}, []string{ids(lost), ids(rest), ids(w.next)})
}
