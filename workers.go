package delayq

import (
	"context"
	"errors"
	"time"
)

// Taking ahead. A handler that is much shorter than a round trip to Redis would leave its worker
// idle until the next take is answered. So a server takes more jobs than it has idle workers: as
// many as will start within aheadTime, judging by the recent handler durations of the topic. It
// takes none ahead when handlers take longer than aheadTime times the number of workers. If
// handlers turn out slower, the jobs are given back after aheadPatience. Fewer large jobs are taken
// ahead: about aheadBytes in total.
const (
	aheadTime = 2 * time.Millisecond
	// the jobs of two calls, and those of the next two, which arrive while the first are admitted
	aheadLimit    = 4 * takeLimit
	aheadPatience = 20 * time.Millisecond
	aheadUnknown  = time.Second // assumed handler duration until some have finished
	aheadBytes    = 4 * callBytes
)

// ahead returns how many jobs may be held beyond those that are running. After a crash, every taken
// job has used an attempt, even if its handler was never called. So jobs with limited retries are
// not taken ahead. take.lua knows only what a job's record says, so nothing is taken ahead if the
// Defaults of the handler limit the retries.
func (t *topicServer) ahead() int {
	if t.limited || t.defaults.Retry >= 0 || t.handlerTime == aheadUnknown {
		return 0
	}
	most := min(aheadLimit, aheadBytes/max(t.size, 1))
	if t.handlerTime <= aheadTime/aheadLimit {
		return most
	}
	return min(int(int64(aheadTime)*int64(t.concurrency)/int64(t.handlerTime)), most)
}

// roomLocked returns how many jobs to take now; 0: none.
func (t *topicServer) roomLocked() int {
	free, ahead, held := t.concurrency-t.busy, t.ahead(), len(t.next)+t.coming
	if held > ahead/2 && held >= free {
		return 0
	}
	// Redis may be rejecting the outcomes of finished handlers, so the total is limited.
	most := 2*t.concurrency + 2*aheadLimit - len(t.leases) - t.coming
	// one take returns no more; the other taker gets the rest of the room
	fit := callBytes / max(t.size, 1)
	return max(0, min(free+ahead-held, most, takeLimit, fit+fit/8+1))
}

// hasIdleWorker reports whether there is an idle worker that no requested or taken job will use.
func (t *topicServer) hasIdleWorker() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unclaimedLocked() > 0
}

// unclaimedLocked returns the number of idle workers that no job is intended for yet.
func (t *topicServer) unclaimedLocked() int {
	return max(0, t.concurrency-t.busy-len(t.next)-t.coming)
}

// reserve keeps room for the jobs of a take. It returns how many jobs that is, and how many of them
// can start immediately. There must be room for one job, or with full for a full take.
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

// expect notes how many jobs arrived out of those reserved, and whether a second taker can take
// many more at the same time.
func (t *topicServer) expect(reserved, got int, many bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.coming += got - reserved
	t.many = many && t.concurrency > 1 // a single worker takes its jobs in their order
	t.batch = max(1, got)
	if t.many && t.roomLocked() >= t.batch {
		signal(t.plenty)
	}
}

// admit accepts a taken job. The job starts as soon as a worker is idle; if it is refused, the
// refusal is reported to Redis.
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

// startWorkerLocked starts a worker if one is idle and there is a job for it. Workers start one at
// a time, each by the one before. While handlers are short, a few workers do all the work, and no
// others are started only to find it done.
func (t *topicServer) startWorkerLocked() {
	if t.starting || t.stopping || t.busy == t.concurrency || len(t.next) == 0 {
		return
	}
	t.starting = true
	t.launch(t.startWorker)
}

// startWorker is the goroutine of a worker: it runs jobs until none is left.
func (t *topicServer) startWorker() {
	t.mu.Lock()
	t.starting = false
	r := t.popLocked(time.Now())
	if r != nil {
		t.busy++
		t.startWorkerLocked()
	}
	if !t.starting && t.roomLocked() > 0 { // no room as long as next has jobs for idle workers
		signal(t.freed)
	}
	t.mu.Unlock()
	t.work(r)
}

// stop prevents any more handlers from starting.
func (t *topicServer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
}

// startLocked marks a run as running.
func (t *topicServer) startLocked(r *run, now time.Time) {
	r.ctx = runContext{topic: t, run: r}
	r.ctx.Context, r.cancel = context.WithCancelCause(t.base)
	r.began, r.start = now, t.clock.at(now)
	if r.start.Before(r.taken) {
		r.start = r.taken // an older reply of Redis has been read since
	}
	r.job.StartedAt = r.start
	if limit := r.opts.Timeout; limit > 0 {
		r.deadline = now.Add(time.Duration(limit) * time.Millisecond)
	}
}

// popLocked removes the first job that this server still owns from next, and marks it as running.
func (t *topicServer) popLocked(now time.Time) *run {
	for len(t.next) > 0 && !t.stopping {
		r := t.next[0]
		t.next[0] = nil
		t.next = t.next[1:]
		if t.lookLocked(r, now); r.lost == nil {
			t.startLocked(r, now)
			return r
		}
		t.launch(func() { t.tellLost(r) }) // concurrently: the next job must not wait for hooks
	}
	return nil
}

// giveBack returns the jobs that wait for a worker to become idle. On shutdown it also returns
// those that a worker is being started for.
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
