package schedule

import (
	"cmp"
	"time"

	"github.com/delayq/delayq/internal/record"
)

const (
	// MissedCount is how many slots of one gap are counted one by one. After a longer gap the
	// number of missed slots is too low.
	MissedCount = 1000

	// endCount is how many slots at the end of a longer gap are examined to find the latest ones.
	endCount = 10_000
)

// A gap is a row of slots that are due. It begins with the slot that the schedule has and ends now.
type gap struct {
	latest []int64 // the latest slots, up to the wanted number
	count  int64   // number of all slots
	next   int64   // the slot after them; 0: there is none
}

// gapFrom returns the gap that begins with the slot from. It has at least this one.
func (s *Schedule) gapFrom(from, now int64, wanted int) (gap, error) {
	if from > now { // it was due, but Redis's clock has been set back since
		next, err := s.Next(from)
		return gap{[]int64{from}, 1, next}, err
	}
	if s.Spec.Kind == record.Interval && from < now {
		return s.intervalGap(from, now, wanted)
	}
	g, err := s.walk(from, now, wanted, MissedCount)
	if err != nil || g.next == 0 || g.next > now {
		return g, err
	}
	return s.longGap(g, from, now, wanted)
}

// walk computes the slots from one slot on, up to most slots.
func (s *Schedule) walk(from, now int64, wanted, most int) (g gap, err error) {
	for g.next = from; g.next > 0 && g.next <= now && g.count < int64(most); g.count++ {
		s.walked++
		if g.latest = append(g.latest, g.next); len(g.latest) > 2*wanted {
			g.latest = append(g.latest[:0], g.latest[len(g.latest)-wanted:]...)
		}
		if g.next, err = s.Next(g.next); err != nil {
			return gap{}, err
		}
	}
	g.latest = g.latest[max(0, len(g.latest)-wanted):]
	return g, nil
}

// intervalGap computes the gap of an interval, for which any number of slots is as fast as one.
func (s *Schedule) intervalGap(from, now int64, wanted int) (gap, error) {
	steps := (min(now, cmp.Or(s.Last, now)) - from) / s.Spec.Every
	skip := max(0, steps-int64(wanted))
	g, err := s.walk(from+skip*s.Spec.Every, now, wanted, endCount)
	g.count += skip
	return g, err
}

// longGap computes a gap that is too long to walk through. begin is its beginning. The end is
// enough: as much of it as has the wanted number of slots.
func (s *Schedule) longGap(begin gap, from, now int64, wanted int) (gap, error) {
	for back := time.Minute.Milliseconds(); ; back *= 2 {
		all := now-back <= from
		first, err := s.Next(max(from, now-back))
		if err != nil {
			return gap{}, err
		}
		if first == 0 || first > now {
			if all { // a calendar that contradicts itself
				return begin, nil
			}
			continue
		}
		end, err := s.walk(first, now, wanted, endCount)
		if err != nil || end.next > 0 && end.next <= now {
			return end, err // even the end is too long: the next look finds the rest
		}
		if end.count >= int64(wanted) || all {
			end.count = max(begin.count, end.count)
			return end, nil
		}
	}
}
