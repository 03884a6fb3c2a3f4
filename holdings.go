package delayq

import (
	"errors"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// takeLimit is the most jobs that one call takes.
const takeLimit = 500

// holdings are the runs of a topic that belong to this server: from the take of a job until Redis
// has its outcome, or until the lease is lost. It makes no calls. topicServer.mu guards it.
type holdings struct {
	runs  map[string]*run // by job ID
	apart map[*run]bool   // lost runs whose handlers replaced their own jobs and go on
	// losses of the last second whose runs were not found: their takes may still be in flight
	unheard []loss
	// lower bound of the jobs taken from the topic, by this server or by Redis's own count
	taken    int64
	added    int64           // jobs that this server has taken
	proposed int64           // proposed end in ms that Redis has not answered; 0: none
	drained  []chan struct{} // closed when runs becomes empty
	freed    func()          // called when a run is dropped; may be nil
	lost     func(*run)      // called when a run loses its job; may be nil
}

// A loss says that the run of a job has lost its lease.
type loss struct {
	id    string
	end   record.LeaseEnd
	cause error
	at    time.Time
}

// add records that this server owns a taken job.
func (h *holdings) add(r *run, now time.Time) {
	// The same job again: the older lease must be over.
	if old := h.runs[r.id]; old != nil {
		cause := old.why(script.LetterLost, now)
		if r.nonce != old.nonce && now.Before(old.until) {
			cause = errReplaced // the control message has not arrived yet
		}
		h.lose(old, cause, now)
	}
	if h.runs == nil {
		h.runs = make(map[string]*run)
	}
	h.runs[r.id] = r
	h.taken++
	h.added++
	for _, m := range h.unheard {
		if m.id == r.id && r.fence.Has(m.end) {
			h.lose(r, m.cause, now)
		}
	}
}

// expire marks a job as lost if its lease is over by the local clock before the job starts. Then
// this process has been suspended, and another server may have the job. The next extension would
// detect it, but by then many more would have started.
func (h *holdings) expire(r *run, now time.Time) {
	if r.lost == nil && !now.Before(r.until) {
		h.lose(r, errLeaseLost, now)
	}
}

// lose marks a job as lost and cancels its handler's context, unless the handler itself replaced
// the job.
func (h *holdings) lose(r *run, cause error, now time.Time) {
	if r.settling || h.runs[r.id] != r {
		return
	}
	r.lost = cause
	if h.lost != nil {
		h.lost(r)
	}
	h.drop(r)
	switch {
	case r.cancel == nil: // not started
	case errors.Is(cause, errReplaced) && r.ownDoing(now):
		if h.apart == nil {
			h.apart = make(map[*run]bool)
		}
		h.apart[r] = true
	default:
		r.cancel(cause)
	}
}

// drop removes a job.
func (h *holdings) drop(r *run) {
	if h.runs[r.id] == r {
		delete(h.runs, r.id)
	}
	if len(h.runs) == 0 {
		for _, c := range h.drained {
			close(c)
		}
		h.drained = nil
	}
	if h.freed != nil {
		h.freed()
	}
}

// hear ends the run of a job that a control message reports as cancelled or replaced, if the run
// has that lease. It reports whether it has found the run.
func (h *holdings) hear(m loss) (found bool) {
	if r := h.runs[m.id]; r != nil && r.fence.Has(m.end) {
		h.lose(r, m.cause, m.at)
		return true
	}
	h.unheard = slices.DeleteFunc(h.unheard, func(old loss) bool { return m.at.Sub(old.at) > time.Second })
	// More would cost more than the next extension, which detects lost leases itself.
	if len(h.unheard) < takeLimit {
		h.unheard = append(h.unheard, m)
	}
	return false
}

// extendable lists the runs whose leases can be extended. A lease that is over by the local clock
// is lost, because another server may have the job by now. If the handler has returned, only Redis
// knows whether the lease is lost. The lease of a handler past its Timeout is not extended.
func (h *holdings) extendable(now time.Time) (list []*run) {
	for _, r := range h.runs {
		switch {
		case r.settling, r.returned && !now.Before(r.until):
		case !r.returned && !now.Before(r.until):
			h.lose(r, r.why(script.LetterLost, now), now)
		case !r.returned && !r.deadline.IsZero() && now.After(r.deadline):
		default:
			list = append(list, r)
		}
	}
	return list
}

// An extension is a new end of leases: the end by Redis's clock, and the local time until which
// such a lease is certainly not over.
type extension struct {
	end   record.LeaseEnd
	until time.Time
	sets  int // how often Redis's clock had been set back
}

// propose chooses the end of the next extension in ms, when Redis's clock shows at least now. An
// unanswered end is chosen again as long as it is useful. So Redis can hold only a few different
// ends, however long it is unreachable.
func (h *holdings) propose(now, lease int64) (end int64) {
	if h.proposed < now+2*lease/3 || h.proposed > now+lease {
		h.proposed = now + lease
	}
	return h.proposed
}

// ask proposes an extension to the runs that gain from it. It returns these with their fences
// before that, and the others. A run whose outcome is on its way to Redis is in neither list: that
// call names the present end only, and would find the lease lost if the extension overtook it.
func ask(list []*run, e extension) (asked, rest []*run, fences []string) {
	for _, r := range list {
		switch {
		case r.settling:
		case r.needs(e):
			asked, fences = append(asked, r), append(fences, r.fence.String())
			r.fence.Propose(e.end)
		default:
			rest = append(rest, r)
		}
	}
	return asked, rest, fences
}

// needs reports whether a run gains from an extension. A lease that already ends as late is left
// alone, unless Redis's clock was set back since the lease was given.
func (r *run) needs(e extension) bool {
	end := r.fence.Confirmed()
	return (e.end.Micros() > end.Micros() || r.sets != e.sets) && r.until.Before(e.until)
}

// confirm notes that Redis has extended the lease of a run.
func (r *run) confirm(e extension) {
	r.fence.Confirm(e.end)
	r.until, r.sets = e.until, e.sets
	r.lease.Store(e.end.Micros())
}

// cancelAll cancels the contexts of all running handlers.
func (h *holdings) cancelAll(cause error) {
	for r := range h.running {
		r.cancel(cause)
	}
	for r := range h.apart {
		r.cancel(cause)
	}
}

// running yields the runs whose handlers have been called and are waited for.
func (h *holdings) running(yield func(*run) bool) {
	for _, r := range h.runs {
		if r.running() && !yield(r) {
			return
		}
	}
}

// empty returns a channel that is closed once no run is left.
func (h *holdings) empty() <-chan struct{} {
	c := make(chan struct{})
	if len(h.runs) == 0 {
		close(c)
	} else {
		h.drained = append(h.drained, c)
	}
	return c
}
