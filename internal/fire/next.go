package fire

import (
	"context"
	"strconv"
	"time"

	"github.com/delayq/delayq/internal/script"
)

const (
	// gather is by how much the slots that are fired in one call differ at most, and so by how much
	// a slot can be late because of others.
	gather = 3 * time.Millisecond

	// ahead is how far ahead a call that fires reads the next slots. A schedule that is changed,
	// removed or paused meanwhile costs a call, and one that is new is not missed.
	ahead = time.Second

	// longest bounds what is believed of how long nothing comes, in µs.
	longest = int64(time.Hour / time.Microsecond)
)

// A next is what a call that has fired slots says of those that follow. The zero next says nothing.
type next struct {
	list []found   // they are fired together
	now  int64     // Redis's clock in ms, in the reply
	last int64     // the last slot of list
	read time.Time // when the reply arrived
	// wait is how long after read they all have come, or the first slot if list is empty. Negative:
	// there is none.
	wait time.Duration
}

// A found is a schedule as a call has read it.
type found struct{ name, slot, definition, state string }

// readNext reads the next slots from the reply of the schedule_fire script.
func readNext(r script.Reply) next {
	n := next{now: r.Now(), read: time.Now(), wait: time.Duration(min(r.Number(3), longest)) * time.Microsecond}
	names, slots, definitions, states := r.List(5), r.List(6), r.List(7), r.List(8)
	for i := range names {
		n.list = append(n.list, found{names.Text(i), slots.Text(i), definitions.Text(i), states.Text(i)})
		at, _ := strconv.ParseFloat(slots.Text(i), 64) // Plan returns the error
		n.last = max(n.last, int64(at))
	}
	return n
}

// Next returns when slots are to be fired next, and reports whether FireNext can fire them. If not,
// a promote at that time finds out which they are. A zero time means that none is known.
func (f *Firer) Next() (at time.Time, known bool) {
	if f.next.read.IsZero() || f.next.wait < 0 {
		return time.Time{}, false
	}
	return f.next.read.Add(f.next.wait), len(f.next.list) > 0
}

// Knows reports whether the last call of Fire or FireNext has found out what is to be fired next,
// so that no promote is needed for that.
func (f *Firer) Knows() bool { return f.knows }

// Forget makes the next slots unknown, because there may be earlier ones.
func (f *Firer) Forget() { f.next = next{} }

// expected reports whether the known next slots account for all that are due, so that these can
// wait for the rest of them. Once a tick a whole look follows if some cannot be fired here.
func (f *Firer) expected(due int, now time.Time) bool {
	at, known := f.Next()
	return known && f.next.wait > 0 && now.Sub(at) < gather &&
		due <= f.stuck+len(f.next.list) && (f.stuck == 0 || now.Sub(f.Last) < f.tick)
}

// FireNext fires the slots that an earlier call has read, and reads those that follow, all in one
// call. Call it at the time of Next. again reports whether a promote must find out what is to be
// done.
func (f *Firer) FireNext(ctx context.Context) (again bool) {
	g := f.next
	f.next, f.knows, f.delayed = next{}, false, false
	if time.Now().Before(f.until) {
		return true
	}
	defer func() { f.Warn(again || time.Since(f.warned) < MissedEvery) }()
	now, walked, bad := max(g.last, g.now+time.Since(g.read).Milliseconds()), 0, 0
	var list []Firing
	for _, d := range g.list {
		one, err := f.Plan(PlaceSlots, d.name, d.slot, d.definition, d.state, now)
		f.complain(d.name, err)
		if err != nil {
			bad++
			continue
		}
		list = append(list, one)
		if walked += one.Walked; walked >= PageSlots {
			break // the call reads the others again
		}
	}
	f.stuck = max(f.stuck, bad)
	for len(list) > 0 {
		n, _, err := f.FireSome(ctx, list)
		if err != nil {
			return f.failed()
		}
		list = list[n:]
	}
	if len(f.Ended) > 0 || f.Waits.Load() {
		more, err := f.release(ctx)
		if err != nil {
			return f.failed()
		}
		again = more
	}
	f.slow.Reset()
	again = f.promoteAfter(again)
	f.knows = !again && !f.next.read.IsZero()
	return !f.knows
}
