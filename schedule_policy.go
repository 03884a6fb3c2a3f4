package delayq

import (
	"cmp"
	"time"
)

// scheduleState is the state of a schedule in the hash fired, as JSON. The scripts write it.
type scheduleState struct {
	Nonce   string `json:"nonce"`   // of the definition, hexadecimal
	Made    int64  `json:"made"`    // when the schedule was created
	Changed int64  `json:"changed"` // when it was last changed
	Fired   int64  `json:"fired"`   // number of jobs
	Since   int64  `json:"since"`   // Fired at the last change
	From    int64  `json:"from"`    // time of the last change or resume; only later slots count
	Skipped int64  `json:"skipped"` // number of slots
	Missed  int64  `json:"missed"`  // number of slots
	Slot    int64  `json:"slot"`    // the last slot that was fired
	At      int64  `json:"at"`      // when Slot was fired
	Job     string `json:"job"`     // ID of the job of Slot
	Paused  int64  `json:"paused"`  // when it was paused; 0: it is not
	Ended   bool   `json:"ended"`   // there are no further slots
	// Catching is set while a missed slot waits: the last slot of its gap. 0: the slot that waits
	// was not missed.
	Catching int64 `json:"catching"`
}

// decide applies the policies. From the slot that is due and Redis's time it decides which slots
// are fired, which were missed and when the next one is.
func (d *definition) decide(place string, from, now int64, state *scheduleState) (f firing, err error) {
	f.overlap = overlapWords[d.overlap]
	if from == 0 { // the first slot is not computed yet
		f.after, err = d.next(cmp.Or(state.From, now))
		return f, err
	}
	if place == placeWaiting && state.Catching > 0 {
		return d.catchUp(f, from, now, state)
	}
	wanted := 1
	if d.missed.kind() == missedCatchUp {
		wanted += d.missed.most()
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
	case d.missed.kind() == missedCatchUp && (n > 1 || late):
		most := d.missed.most()
		if !late {
			most++ // the latest one is not missed
		}
		keep := latest[max(0, len(latest)-most):]
		f.missed = n - int64(len(keep))
		switch {
		case d.overlap == OverlapAllow && len(keep) > d.mostAtOnce():
			f.slots, f.after = keep[:d.mostAtOnce()], keep[d.mostAtOnce()]
		case d.overlap == OverlapAllow:
			f.slots = keep
		case d.overlap == OverlapCancelPrevious:
			f.slots, f.missed = latest[last:], n-1
		default:
			f.slots, f.overlap, f.gap = keep[:1], overlapWords[OverlapQueueOne], latest[last]
			if len(keep) > 1 {
				f.rest = keep[1]
			}
		}
	case d.missed == MissedSkip && late:
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
func (d *definition) catchUp(f firing, from, now int64, state *scheduleState) (firing, error) {
	next, err := d.next(from)
	f.overlap, f.slots = overlapWords[OverlapQueueOne], []int64{from}
	switch {
	case err != nil:
		return f, err
	case next > 0 && next <= state.Catching:
		f.rest, f.gap = next, state.Catching
	case next == 0 || next > now:
		f.after = next
	case d.overlap == OverlapQueueOne:
		f.rest = next
	default:
		_, f.skipped, f.after, err = d.due(next, now, 1)
	}
	d.limit(&f, state)
	return f, err
}

// limit drops the slots beyond MaxRuns.
func (d *definition) limit(f *firing, state *scheduleState) {
	if d.most > 0 {
		left := max(0, d.most-(state.Fired-state.Since))
		f.slots = f.slots[:min(int64(len(f.slots)), left)]
	}
}

// mostAtOnce returns the maximum number of jobs of the schedule in one call.
func (d *definition) mostAtOnce() int { return max(1, min(catchUpJobs, fireBytes/(len(d.payload)+1))) }

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
	if d.spec.kind == specInterval && from < now {
		// Any number of slots is as fast as one.
		steps := (min(now, cmp.Or(d.last, now)) - from) / d.spec.every
		skip := max(0, steps-int64(wanted))
		latest, n, next, err = walk(from+skip*d.spec.every, endCount)
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
