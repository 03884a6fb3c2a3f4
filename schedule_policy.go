package delayq

import (
	"cmp"
	"time"
)

// scheduleState is what the hash fired holds of a schedule, as JSON. The scripts write it.
type scheduleState struct {
	Nonce    string `json:"nonce"`    // of the definition, hexadecimal
	Made     int64  `json:"made"`     // when the schedule was created
	Changed  int64  `json:"changed"`  // when it was changed last
	Fired    int64  `json:"fired"`    // jobs
	Since    int64  `json:"since"`    // how many those were at the last change
	From     int64  `json:"from"`     // after which time slots count: that of the last change or resume
	Skipped  int64  `json:"skipped"`  // slots
	Missed   int64  `json:"missed"`   // slots
	Slot     int64  `json:"slot"`     // the last one that was fired
	At       int64  `json:"at"`       // when that was
	Job      string `json:"job"`      // of that slot
	Paused   int64  `json:"paused"`   // since when
	Ended    bool   `json:"ended"`    // there is no further slot
	Catching int64  `json:"catching"` // the slot that waits was missed, and this is the last one of that gap; 0: it was not
}

// decide is the policy: given the slot that is due and Redis's time, it says which slots to fire, which were missed and when the next one is.
func (d *definition) decide(place string, from, now int64, state *scheduleState) (f firing, err error) {
	f.overlap = overlapWords[d.overlap]
	if from == 0 { // nobody has worked it out yet
		f.after, err = d.next(cmp.Or(state.From, now))
		return f, err
	}
	if place == placeWaiting && state.Catching > 0 {
		return d.catchUp(f, from, now, state)
	}
	wanted := 1
	if d.missed.kind() == catchUp {
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
	case d.missed.kind() == catchUp && (n > 1 || late):
		most := d.missed.most()
		if !late {
			most++ // the latest one is not missed
		}
		keep := latest[max(0, len(latest)-most):]
		f.missed = n - int64(len(keep))
		switch {
		case d.overlap == Allow && len(keep) > d.mostAtOnce():
			f.slots, f.after = keep[:d.mostAtOnce()], keep[d.mostAtOnce()]
		case d.overlap == Allow:
			f.slots = keep
		case d.overlap == CancelPrevious:
			f.slots, f.missed = latest[last:], n-1
		default:
			f.slots, f.overlap, f.gap = keep[:1], overlapWords[QueueOne], latest[last]
			if len(keep) > 1 {
				f.rest = keep[1]
			}
		}
	case d.missed == Skip && late:
		f.missed = n
	default:
		f.slots, f.missed = latest[last:], n-1
	}
	d.limit(&f, state)
	return f, nil
}

// catchUp fires the slot of a gap whose turn it is. Those that came after the gap, while its jobs were going, are up to the overlap policy: skipped,
// or with QueueOne the first of them waits and the others are skipped when it is fired.
func (d *definition) catchUp(f firing, from, now int64, state *scheduleState) (firing, error) {
	next, err := d.next(from)
	f.overlap, f.slots = overlapWords[QueueOne], []int64{from}
	switch {
	case err != nil:
		return f, err
	case next > 0 && next <= state.Catching:
		f.rest, f.gap = next, state.Catching
	case next == 0 || next > now:
		f.after = next
	case d.overlap == QueueOne:
		f.rest = next
	default:
		_, f.skipped, f.after, err = d.due(next, now, 1)
	}
	d.limit(&f, state)
	return f, err
}

// limit leaves out the slots beyond MaxRuns.
func (d *definition) limit(f *firing, state *scheduleState) {
	if d.most > 0 {
		left := max(0, d.most-(state.Fired-state.Since))
		f.slots = f.slots[:min(int64(len(f.slots)), left)]
	}
}

// mostAtOnce is how many jobs of the schedule go in one call.
func (d *definition) mostAtOnce() int { return max(1, min(catchUpJobs, fireBytes/(len(d.payload)+1))) }

// due lists the latest slots from one that is due until now, as many as are wanted. It also tells how many there are, and which is the next.
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
	if from > now { // it was due: Redis's clock has been set back since
		next, err = d.next(from)
		return []int64{from}, 1, next, err
	}
	if d.spec.kind == specInterval && from < now {
		// Any number of slots is as quick as one.
		steps := (min(now, cmp.Or(d.last, now)) - from) / d.spec.every
		skip := max(0, steps-int64(wanted))
		latest, n, next, err = walk(from+skip*d.spec.every, endCount)
		return latest, n + skip, next, err
	}
	latest, n, next, err = walk(from, missedCount)
	if err != nil || next == 0 || next > now {
		return latest, n, next, err
	}
	// The gap is too long to be walked through: the end of it will do, as much as it takes to find enough slots there.
	for back := time.Minute.Milliseconds(); ; back *= 2 {
		begin, err := d.next(max(from, now-back))
		if err != nil {
			return nil, 0, 0, err
		}
		if begin == 0 || begin > now {
			if now-back <= from { // a calendar that changes its mind
				return latest, n, next, nil
			}
			continue
		}
		latest, some, next, err := walk(begin, endCount)
		if err != nil || next > 0 && next <= now {
			return latest, n, next, err // even the end is too long: what is left comes with the next look
		}
		if some >= int64(wanted) || now-back <= from {
			return latest, max(n, some), next, nil
		}
	}
}
