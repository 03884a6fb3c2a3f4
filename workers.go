package delayq

import (
	"context"
	"errors"
	"time"
)

// Taking ahead. A handler that is much shorter than a round trip to Redis would leave its slot empty until the next take is answered. So
// a server takes as many jobs more than it has free slots as will be started within aheadTime, going by what handlers of the topic took
// lately: none at all when they take longer than that times the number of slots. Should they turn out slower, the jobs are given back
// after aheadPatience. Of large jobs fewer are taken ahead: about aheadBytes in all.
const (
	aheadTime     = 2 * time.Millisecond
	aheadLimit    = 4 * takeLimit // the jobs of two calls, and while they are got ready those of the next two
	aheadPatience = 20 * time.Millisecond
	aheadUnknown  = time.Second // what a handler is taken to need until some have ended
	aheadBytes    = 4 * callBytes
)

// ahead is how many jobs may be held beyond those that run. After a crash a job that was taken has had an attempt, whether it was
// started or not: so jobs of limited retries are not taken ahead. What a job does not say take.lua does not know: if the
// Defaults of the handler limit the retries, nothing is.
func (t *topicServer) ahead() int {
	if t.limited || t.defaults.retry >= 0 || t.handlerTime == aheadUnknown {
		return 0
	}
	most := min(aheadLimit, aheadBytes/max(t.size, 1))
	if t.handlerTime <= aheadTime/aheadLimit {
		return most
	}
	return min(int(int64(aheadTime)*int64(t.concurrency)/int64(t.handlerTime)), most)
}

// roomLocked tells how many jobs to take now; 0: none.
func (t *topicServer) roomLocked() int {
	free, ahead, held := t.concurrency-t.busy, t.ahead(), len(t.next)+t.coming
	if held > ahead/2 && held >= free {
		return 0
	}
	// Handlers may have ended whose outcomes Redis does not take: then there is a limit.
	most := 2*t.concurrency + 2*aheadLimit - len(t.leases) - t.coming
	fit := callBytes / max(t.size, 1) // more will not come, and the room is one for the other taker
	return max(0, min(free+ahead-held, most, takeLimit, fit+fit/8+1))
}

// idle tells whether there is a free slot that no job that was asked for, or has been taken, may fill.
func (t *topicServer) hasIdleWorker() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unclaimedLocked() > 0
}

// unclaimedLocked is how many slots no job is meant for yet.
func (t *topicServer) unclaimedLocked() int {
	return max(0, t.concurrency-t.busy-len(t.next)-t.coming)
}

// reserve keeps room for the jobs of a take and tells for how many, and how many of them can be started
// at once. There must be room for one job, or for a full take.
func (t *topicServer) reserve(full bool) (n, free int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free = t.unclaimedLocked()
	if n = t.roomLocked(); n < 1 || full && n < t.batch {
		return 0, free
	}
	t.coming += n
	return n, free
}

// expect notes how many jobs have been got of those that room was reserved for, and whether there are
// many more that a second taker can take at the same time.
func (t *topicServer) expect(reserved, got int, many bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.coming += got - reserved
	t.many = many && t.concurrency > 1 // a single slot takes its jobs in their order
	t.batch = max(1, got)
	if t.many && t.roomLocked() >= t.batch {
		signal(t.plenty)
	}
}

// admit takes a job over that was taken: it is started as soon as there is a slot for it, or if it is refused, Redis is told that.
func (t *topicServer) admit(r *run, refused *row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holdLocked(r)
	if refused != nil {
		t.tellLocked(*refused)
		return
	}
	t.next = append(t.next, r)
	t.startWorkerLocked()
}

// startSlotLocked starts a slot if one is free and there is a job for it. One at a time, each by the one before: while handlers are short, a few slots do
// all the work, and no others are started that would find it done.
func (t *topicServer) startWorkerLocked() {
	if t.starting || t.stopping || t.busy == t.concurrency || len(t.next) == 0 {
		return
	}
	t.starting = true
	t.launch(t.startWorker)
}

// slot is a slot in use: it runs one job after the other until there is none left.
func (t *topicServer) startWorker() {
	t.mu.Lock()
	t.starting = false
	r := t.popLocked(time.Now())
	if r != nil {
		t.busy++
		t.startWorkerLocked()
	}
	if !t.starting && t.roomLocked() > 0 { // none, as long as next has jobs for free slots
		signal(t.freed)
	}
	t.mu.Unlock()
	t.work(r)
}

// stop says that no more handlers are to be started.
func (t *topicServer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
}

// startLocked makes a run a running one.
func (t *topicServer) startLocked(r *run, now time.Time) {
	r.ctx = runContext{topic: t, run: r}
	r.ctx.Context, r.cancel = context.WithCancelCause(t.base)
	r.began, r.start = now, t.clock.at(now)
	if r.start.Before(r.taken) {
		r.start = r.taken // an older answer of Redis has been read since
	}
	r.job.Started = r.start
	if limit := r.opts.timeout; limit > 0 {
		r.deadline = now.Add(time.Duration(limit) * time.Millisecond)
	}
}

// popLocked takes the next job that is still ours out of next, and makes it a running one.
func (t *topicServer) popLocked(now time.Time) *run {
	for len(t.next) > 0 && !t.stopping {
		r := t.next[0]
		t.next[0] = nil
		t.next = t.next[1:]
		if t.lookLocked(r, now); r.lost == nil {
			t.startLocked(r, now)
			return r
		}
		t.launch(func() { t.tellLost(r) }) // beside the job behind it, which is not to wait for hooks
	}
	return nil
}

// giveBack returns the jobs that wait for a slot to become free; at the end of a server also those that a free slot is being started for.
func (t *topicServer) giveBack(why error) {
	t.mu.Lock()
	free := 0
	if !errors.Is(why, ErrShutdown) {
		free = t.concurrency - t.busy
	}
	kept := t.next[:0]
	var lost []*run
	for _, r := range t.next {
		switch {
		case r.lost != nil:
			lost = append(lost, r)
		case len(kept) < free:
			kept = append(kept, r)
		default:
			t.tellLocked(row{run: r, verb: verbReturn, err: why})
		}
	}
	clear(t.next[len(kept):])
	t.next = kept
	t.handlerTime = aheadUnknown
	t.mu.Unlock()
	for _, r := range lost {
		t.tellLost(r)
	}
}
