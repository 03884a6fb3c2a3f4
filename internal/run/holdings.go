package run

import (
	"errors"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// TakeLimit is the most jobs that one call takes.
const TakeLimit = 500

// Holdings are the runs of a topic that belong to this server: from the take of a job until Redis
// has its outcome, or until the lease is lost. It makes no calls. The mutex of the topic guards it.
type Holdings struct {
	Runs  map[string]*Run // by job ID
	Apart map[*Run]bool   // lost runs whose handlers replaced their own jobs and go on
	// control messages of the last second that named no run of this server; the take may still be
	// in flight
	Unheard []Loss
	// lower bound of the jobs taken from the topic, by this server or by Redis's own count
	Taken    int64
	Added    int64      // jobs that this server has taken
	Proposed int64      // proposed end in ms that Redis has not answered; 0: none
	Freed    func()     // called when a run is dropped; may be nil
	Lost     func(*Run) // called when a run loses its job; may be nil
}

// A Loss says that the run of a job has lost its lease.
type Loss struct {
	ID    string
	End   record.LeaseEnd
	Cause error
	At    time.Time
}

// Add records that this server owns a taken job.
func (h *Holdings) Add(r *Run, now time.Time) {
	// The same job again: the older lease must be over.
	if old := h.Runs[r.ID]; old != nil {
		cause := old.Why(script.LetterLost, now)
		if r.Nonce != old.Nonce && now.Before(old.Until) {
			cause = ErrReplaced // the control message has not arrived yet
		}
		h.Lose(old, cause, now)
	}
	if h.Runs == nil {
		h.Runs = make(map[string]*Run)
	}
	h.Runs[r.ID] = r
	h.Taken++
	h.Added++
	for _, m := range h.Unheard {
		if m.ID == r.ID && r.Fence.Has(m.End) {
			h.Lose(r, m.Cause, now)
		}
	}
}

// Expire marks a job as lost if its lease is over by the local clock before the job starts. Then
// this process has been suspended, and another server may have the job. The next extension would
// detect it, but by then many more would have started.
func (h *Holdings) Expire(r *Run, now time.Time) {
	if r.Lost == nil && !now.Before(r.Until) {
		h.Lose(r, ErrLeaseLost, now)
	}
}

// Lose marks a job as lost and cancels its handler's context, unless the handler itself replaced
// the job.
func (h *Holdings) Lose(r *Run, cause error, now time.Time) {
	if r.Settling || h.Runs[r.ID] != r {
		return
	}
	r.Lost = cause
	if h.Lost != nil {
		h.Lost(r)
	}
	h.Drop(r)
	switch {
	case r.Cancel == nil: // not started
	case errors.Is(cause, ErrReplaced) && r.ownDoing(now):
		if h.Apart == nil {
			h.Apart = make(map[*Run]bool)
		}
		h.Apart[r] = true
	default:
		r.Cancel(cause)
	}
}

// Drop removes a job.
func (h *Holdings) Drop(r *Run) {
	if h.Runs[r.ID] == r {
		delete(h.Runs, r.ID)
	}
	if h.Freed != nil {
		h.Freed()
	}
}

// Hear ends the run of a job that a control message reports as cancelled or replaced, if the run
// has that lease. It reports whether it has found the run.
func (h *Holdings) Hear(m Loss) (found bool) {
	if r := h.Runs[m.ID]; r != nil && r.Fence.Has(m.End) {
		h.Lose(r, m.Cause, m.At)
		return true
	}
	h.Unheard = slices.DeleteFunc(h.Unheard, func(old Loss) bool { return m.At.Sub(old.At) > time.Second })
	// More would cost more than the next extension, which detects lost leases itself.
	if len(h.Unheard) < TakeLimit {
		h.Unheard = append(h.Unheard, m)
	}
	return false
}

// Extendable lists the runs whose leases can be extended. A lease that is over by the local clock
// is lost, because another server may have the job by now. If the handler has returned, only Redis
// knows whether the lease is lost. The lease of a handler past its Timeout is not extended.
func (h *Holdings) Extendable(now time.Time) (list []*Run) {
	for _, r := range h.Runs {
		switch {
		case r.Settling, r.Returned && !now.Before(r.Until):
		case !r.Returned && !now.Before(r.Until):
			h.Lose(r, r.Why(script.LetterLost, now), now)
		case !r.Returned && !r.Deadline.IsZero() && now.After(r.Deadline):
		default:
			list = append(list, r)
		}
	}
	return list
}

// An Extension is a new end of leases: the end by Redis's clock, and the local time until which
// such a lease is certainly not over.
type Extension struct {
	End      record.LeaseEnd
	Until    time.Time
	SetBacks int // how often Redis's clock had been set back
}

// Propose chooses the end of the next extension in ms, when Redis's clock shows at least now. An
// unanswered end is chosen again as long as it is useful. So Redis can hold only a few different
// ends, however long it is unreachable.
func (h *Holdings) Propose(now, lease int64) (end int64) {
	if h.Proposed < now+2*lease/3 || h.Proposed > now+lease {
		h.Proposed = now + lease
	}
	return h.Proposed
}

// Ask proposes an extension to the runs that gain from it. It returns these with their fences
// before that, and the others. A run whose outcome is on its way to Redis is in neither list: that
// call names the present end only, and would find the lease lost if the extension overtook it.
func Ask(list []*Run, e Extension) (asked, rest []*Run, fences []string) {
	for _, r := range list {
		switch {
		case r.Settling:
		case r.Needs(e):
			asked, fences = append(asked, r), append(fences, r.Fence.String())
			r.Fence.Propose(e.End)
		default:
			rest = append(rest, r)
		}
	}
	return asked, rest, fences
}

// Needs reports whether a run gains from an extension. A lease that already ends as late is left
// alone, unless Redis's clock was set back since the lease was given.
func (r *Run) Needs(e Extension) bool {
	end := r.Fence.Confirmed()
	return (e.End.Micros() > end.Micros() || r.sets != e.SetBacks) && r.Until.Before(e.Until)
}

// Confirm notes that Redis has extended the lease of a run.
func (r *Run) Confirm(e Extension) {
	r.Fence.Confirm(e.End)
	r.Until, r.sets = e.Until, e.SetBacks
	r.Lease.Store(e.End.Micros())
}

// CancelAll cancels the contexts of all running handlers.
func (h *Holdings) CancelAll(cause error) {
	for r := range h.Running {
		r.Cancel(cause)
	}
	for r := range h.Apart {
		r.Cancel(cause)
	}
}

// Running yields the runs whose handlers have been called and are waited for.
func (h *Holdings) Running(yield func(*Run) bool) {
	for _, r := range h.Runs {
		if r.running() && !yield(r) {
			return
		}
	}
}
