package delayq

import (
	"cmp"
	"time"

	"github.com/delayq/delayq/internal/record"
)

// decide applies the policies. From the slot that is due and Redis's time it decides which slots
// are fired, which were missed and when the next one is.
func (d *definition) decide(place string, from, now int64, state *record.ScheduleState) (f firing, err error) {
	f.overlap = overlapWords[d.Overlap]
	if from == 0 { // the first slot is not computed yet
		f.after, err = d.next(cmp.Or(state.From, now))
		return f, err
	}
	if place == placeWaiting && state.Catching > 0 {
		return d.catchUp(f, from, now, state)
	}
	wanted := 1
	most, catchUp := d.Missed.CatchUp()
	if catchUp {
		wanted += most
	}
	latest, n, next, err := d.due(from, now, wanted)
	if err != nil {
		return f, err
	}
	f.after = next
	last := len(latest) - 1
	late := now-latest[last] > missedAfter.Milliseconds()
	switch {
	case place == placeWaiting:
		f.slots, f.skipped = []int64{from}, n-1
	case catchUp && (n > 1 || late):
		if !late {
			most++ // the latest one is not missed
		}
		keep := latest[max(0, len(latest)-most):]
		f.missed = n - int64(len(keep))
		switch {
		case d.Overlap == record.OverlapAllow && len(keep) > d.mostAtOnce():
			f.slots, f.after = keep[:d.mostAtOnce()], keep[d.mostAtOnce()]
		case d.Overlap == record.OverlapAllow:
			f.slots = keep
		case d.Overlap == record.OverlapCancelPrevious:
			f.slots, f.missed = latest[last:], n-1
		default:
			f.slots, f.overlap, f.gap = keep[:1], overlapWords[record.OverlapQueueOne], latest[last]
			if len(keep) > 1 {
				f.rest = keep[1]
			}
		}
	case d.Missed == record.MissedSkip && late:
		f.missed = n
	default:
		f.slots, f.missed = latest[last:], n-1
	}
	d.limit(&f, state)
	return f, nil
}

// catchUp fires the slot of a gap whose turn it is. The overlap policy decides about slots that
// came after the gap, while the jobs of the gap ran. They are skipped, except that with
// OverlapQueueOne the first of them waits, and the others are skipped when it is fired.
func (d *definition) catchUp(f firing, from, now int64, state *record.ScheduleState) (firing, error) {
	next, err := d.next(from)
	f.overlap, f.slots = overlapWords[record.OverlapQueueOne], []int64{from}
	switch {
	case err != nil:
		return f, err
	case next > 0 && next <= state.Catching:
		f.rest, f.gap = next, state.Catching
	case next == 0 || next > now:
		f.after = next
	case d.Overlap == record.OverlapQueueOne:
		f.rest = next
	default:
		_, f.skipped, f.after, err = d.due(next, now, 1)
	}
	d.limit(&f, state)
	return f, err
}

// limit drops the slots beyond MaxRuns.
func (d *definition) limit(f *firing, state *record.ScheduleState) {
	if d.Most > 0 {
		left := max(0, d.Most-(state.Fired-state.Since))
		f.slots = f.slots[:min(int64(len(f.slots)), left)]
	}
}

// mostAtOnce returns the maximum number of jobs of the schedule in one call.
func (d *definition) mostAtOnce() int { return max(1, min(catchUpJobs, fireBytes/(len(d.Payload)+1))) }

// due lists the latest slots from a due slot until now, up to the wanted number. It also returns
// how many there are in all, and the next slot.
func (d *definition) due(from, now int64, wanted int) (latest []int64, n, next int64, err error) {
	walk := func(at, most int64) (list []int64, n, next int64, err error) {
		for next = at; next > 0 && next <= now && n < most; n++ {
			d.walked++
			if list = append(list, next); len(list) > 2*wanted {
				list = append(list[:0], list[len(list)-wanted:]...)
			}
			if next, err = d.next(next); err != nil {
				return nil, 0, 0, err
			}
		}
		return list[max(0, len(list)-wanted):], n, next, nil
	}
	if from > now { // it was due, but Redis's clock has been set back since
		next, err = d.next(from)
		return []int64{from}, 1, next, err
	}
	if d.Spec.Kind == record.Interval && from < now {
		// Any number of slots is as fast as one.
		steps := (min(now, cmp.Or(d.Last, now)) - from) / d.Spec.Every
		skip := max(0, steps-int64(wanted))
		latest, n, next, err = walk(from+skip*d.Spec.Every, endCount)
		return latest, n + skip, next, err
	}
	latest, n, next, err = walk(from, missedCount)
	if err != nil || next == 0 || next > now {
		return latest, n, next, err
	}
	// The gap is too long to walk through. Its end is enough: as much of it as has enough slots.
	for back := time.Minute.Milliseconds(); ; back *= 2 {
		begin, err := d.next(max(from, now-back))
		if err != nil {
			return nil, 0, 0, err
		}
		if begin == 0 || begin > now {
			if now-back <= from { // a calendar that contradicts itself
				return latest, n, next, nil
			}
			continue
		}
		latest, some, next, err := walk(begin, endCount)
		if err != nil || next > 0 && next <= now {
			return latest, n, next, err // even the end is too long: the next look finds the rest
		}
		if some >= int64(wanted) || now-back <= from {
			return latest, max(n, some), next, nil
		}
	}
}
