package schedule

import (
	"cmp"
	"time"

	"github.com/delayq/delayq/internal/record"
)

// MissedAfter is how late the latest slot of a schedule can be before it counts as missed.
const MissedAfter = time.Minute

// A Schedule is a definition with its rhythm.
type Schedule struct {
	*record.Definition
	Next Rhythm

	walked int // how many slots Decide has computed
}

// A Look is what a server knows about a schedule when it decides.
type Look struct {
	Slot  int64 // the slot of the schedule; 0 or, after a manual edit, less: not computed yet
	Waits bool  // Slot waits for the end of the last run, and that has ended
	Now   int64
	State *record.ScheduleState
	Batch int // maximum number of slots that the server fires in one call
}

// A Decision is what happens to the slots of a schedule that are due.
type Decision struct {
	Slots   []int64        // slots to fire
	Overlap record.Overlap // what happens to Slots while the last job is unfinished
	Missed  int64          // slots not fired because of the missed policy
	Skipped int64          // slots not fired because of the overlap policy
	After   int64          // the next slot; 0: there is none
	Rest    int64          // the slot that waits for the jobs of Slots; 0: none
	// Gap is the last slot of the gap that is caught up on one by one, while one of its slots
	// waits. 0: none.
	Gap    int64
	Walked int // how many slots were computed to decide
}

// Decide applies the policies. From the slot that is due and Redis's time it decides which slots
// are fired, which were missed and when the next one is. With n slots due, the latest of which is
// late if it is more than [MissedAfter] old:
//
//	missed policy      n = 1, not late   n > 1, not late          late
//	MissedRunOnce      fire it           fire the latest          fire the latest
//	MissedSkip         fire it           fire the latest          fire none
//	MissedCatchUp(k)   fire it           catch up on k and it     catch up on k
//
// The other slots are missed. The overlap policy decides how to catch up:
//
//	OverlapAllow            fire all of them, Batch in each call
//	OverlapSkip             fire the first one; the others follow one by one, as runs end
//	OverlapQueueOne         the same
//	OverlapCancelPrevious   fire the latest; each would only cancel the one before
//
// A slot that waits is fired in any case. The slots since then are skipped, unless it was one of a
// gap: see catchUp. [record.Definition.Most] limits the jobs of all.
func (s *Schedule) Decide(l Look) (d Decision, err error) {
	s.walked = 0
	switch {
	case l.Slot <= 0:
		d.Overlap = s.Overlap
		d.After, err = s.Next(cmp.Or(l.State.From, l.Now))
	case l.Waits && l.State.Catching > 0:
		d, err = s.catchUp(l)
	default:
		d, err = s.fire(l)
	}
	if s.Most > 0 {
		left := max(0, s.Most-(l.State.Fired-l.State.Since))
		d.Slots = d.Slots[:min(int64(len(d.Slots)), left)]
	}
	d.Walked = s.walked
	return d, err
}

// fire decides about a slot that was not missed before.
func (s *Schedule) fire(l Look) (Decision, error) {
	most, catchUp := s.Missed.CatchUp()
	wanted := 1
	if catchUp {
		wanted += most
	}
	g, err := s.gapFrom(l.Slot, l.Now, wanted)
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Overlap: s.Overlap, After: g.next}
	latest := g.latest[len(g.latest)-1:]
	late := l.Now-latest[0] > MissedAfter.Milliseconds()
	switch {
	case l.Waits:
		d.Slots, d.Skipped = []int64{l.Slot}, g.count-1
	case catchUp && (g.count > 1 || late):
		if !late {
			most++ // the latest one is not missed
		}
		s.beginGap(&d, g, g.latest[max(0, len(g.latest)-most):], l.Batch)
	case s.Missed == record.MissedSkip && late:
		d.Missed = g.count
	default:
		d.Slots, d.Missed = latest, g.count-1
	}
	return d, nil
}

// beginGap begins to catch up on the last slots of a gap.
func (s *Schedule) beginGap(d *Decision, g gap, slots []int64, batch int) {
	last := len(slots) - 1
	d.Missed = g.count - int64(len(slots))
	switch {
	case s.Overlap == record.OverlapAllow && len(slots) > batch:
		d.Slots, d.After = slots[:batch], slots[batch]
	case s.Overlap == record.OverlapAllow:
		d.Slots = slots
	case s.Overlap == record.OverlapCancelPrevious:
		d.Slots, d.Missed = slots[last:], g.count-1
	default:
		d.Slots, d.Overlap, d.Gap = slots[:1], record.OverlapQueueOne, slots[last]
		if last > 0 {
			d.Rest = slots[1]
		}
	}
}

// catchUp fires the slot of a gap whose turn it is. The overlap policy decides about slots that
// came after the gap, while the jobs of the gap ran. They are skipped, except that with
// OverlapQueueOne the first of them waits, and the others are skipped when it is fired.
func (s *Schedule) catchUp(l Look) (Decision, error) {
	d := Decision{Overlap: record.OverlapQueueOne, Slots: []int64{l.Slot}}
	next, err := s.Next(l.Slot)
	switch {
	case err != nil:
	case next > 0 && next <= l.State.Catching:
		d.Rest, d.Gap = next, l.State.Catching
	case next == 0 || next > l.Now:
		d.After = next
	case s.Overlap == record.OverlapQueueOne:
		d.Rest = next
	default:
		var g gap
		g, err = s.gapFrom(next, l.Now, 1)
		d.Skipped, d.After = g.count, g.next
	}
	return d, err
}
