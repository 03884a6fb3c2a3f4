package serve

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
	"github.com/delayq/delayq/internal/workers"
)

// freed notes that there may be room for more jobs.
func (t *Topic) freed() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.freedLocked()
}

func (t *Topic) freedLocked() {
	if t.latches.room.give() {
		t.Loops.take.Wake()
	}
}

// expectRoom reports whether there may be room for jobs. Otherwise freed wakes the first taker.
func (t *Topic) expectRoom() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.latches.room.expect()
}

// waitsForRoom reports whether the first taker waits for room, and not for a job or for the end of
// a pause.
func (t *Topic) waitsForRoom() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.latches.room.waited
}

// rested notes that the first taker takes. What happens from now on can be news to it.
func (t *Topic) rested() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.latches.resumed, t.latches.place = latch{}, latch{}
}

// noteTook is Workers.Took.
func (t *Topic) noteTook(d time.Duration, n int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Workers.Took(d, n)
}

// patience is Workers.Patience.
func (t *Topic) patience() time.Duration {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Workers.Patience()
}

// delay is Workers.Delay. With a clock of Redis that does not move by itself, no job may wait: its
// start would be counted for a time that does not come.
func (t *Topic) delay() time.Duration {
	if t.Server.Config.Stepped {
		return 0
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Workers.Delay()
}

// resume notes that the topic may have been resumed, or that its limits have changed; or only, with
// place, that another server has left a place free.
func (t *Topic) resume(place bool) {
	t.Mu.Lock()
	came := false
	if !place {
		t.doubtLimitsLocked()
		came = t.comeNearLocked(0)
	}
	if t.latches.resumed.give() {
		t.Loops.take.Wake()
	}
	t.Mu.Unlock()
	if came {
		t.GiveBack(errBounded)
	}
}

// expectChange reports whether jobs may have become able to start since the first taker has sent
// its take: because the topic was resumed, or with places because a running job has ended.
// Otherwise that wakes the taker.
func (t *Topic) expectChange(places bool) bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	freed := places && t.latches.place.expect()
	return t.latches.resumed.expect() || freed
}

// waitsForResume reports whether the first taker waits for the end of a pause or for other limits,
// and neither has come.
func (t *Topic) waitsForResume() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.latches.resumed.waited
}

// turn notes that a loop has started another iteration.
func (t *Topic) turn(loop int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.vital.turns.last[loop] = time.Now()
}

// roomLocked returns how many jobs to take now; 0: none.
func (t *Topic) roomLocked() int { return t.Workers.Room(len(t.owned.Runs)) }

// hasIdleWorker reports whether there is an idle worker that no requested or taken job will use. In
// a pool it reports whether the topic may have another worker: the wait for a job needs none.
func (t *Topic) hasIdleWorker() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if t.Workers.Member != nil {
		return !t.Workers.AtCount()
	}
	return t.Workers.Unclaimed() > 0
}

// reserve is Workers.Reserve. In a pool, it first claims workers. If there are none, the topic
// waits for one.
func (t *Topic) reserve(full bool) (n, free int) {
	t.Mu.Lock()
	defer t.unlock()
	w := &t.Workers
	t.adjustToLocked(w.Count, 0)
	n, free = w.Reserve(full, len(t.owned.Runs))
	if !full && n == 0 {
		w.Keen = free == 0 // until a take finds no more: others must not overtake it meanwhile
	}
	t.adjustLocked(0)
	return n, free
}

// expect is Workers.Expect. It wakes the second taker if that can take many more at the same time.
func (t *Topic) expect(reserved, got int, many bool) {
	t.Mu.Lock()
	defer t.unlock()
	t.Workers.Expect(reserved, got, many)
	t.adjustLocked(0)
	t.startWorkerLocked() // for a batch that waited for these
	if t.Workers.RoomForTwo(len(t.owned.Runs)) {
		t.Loops.takeMore.Wake()
	}
}

// admit accepts a taken job. The job starts as soon as a worker is idle; if it is refused, the
// refusal is reported to Redis.
func (t *Topic) admit(r *run.Run, refused *settle.Row) {
	t.Mu.Lock()
	defer t.unlock()
	t.owned.Add(r, time.Now())
	t.Workers.Arrived(r)
	if refused != nil {
		t.adjustLocked(0)
		t.Outcomes.Add(*refused)
	} else {
		t.Workers.Queue(r, time.Now())
	}
	t.adjustLocked(0)
	t.ripenLocked()
	t.startWorkerLocked()
}

// startWorkerLocked starts a worker if one is idle and there is a job for it.
func (t *Topic) startWorkerLocked() {
	switch {
	case t.Workers.ToStart():
		t.launch(t.startWorker)
	case t.Workers.gather == nil && t.Workers.WaitsForBatch():
		t.gatherLocked()
	}
}

// startWorker is the goroutine of a worker: it runs jobs until none is left.
func (t *Topic) startWorker() {
	t.Mu.Lock()
	t.Workers.Starting = false
	var r *run.Run
	if t.Workers.Idle() > 0 { // otherwise another topic of the pool has the worker
		r = t.popLocked(time.Now())
	}
	if r != nil {
		t.Workers.Busy++
	}
	t.adjustLocked(0) // next has fewer jobs
	t.startWorkerLocked()
	// no room as long as next has jobs for idle workers
	if !t.Workers.Starting && t.roomLocked() > 0 {
		t.freedLocked()
	}
	t.unlock()
	t.work(r)
}

// stop prevents any more handlers from starting.
func (t *Topic) stop() {
	t.Mu.Lock()
	defer t.unlock()
	t.Workers.Stopping = true
	t.endGatherLocked()
	t.adjustLocked(0)
}

// popLocked removes the first job that this server still owns from the queue, and marks it as
// running. With a batch handler, it does the same with the other jobs of a batch.
func (t *Topic) popLocked(now time.Time) *run.Run {
	for r := t.Workers.Pop(); r != nil; r = t.Workers.Pop() {
		switch {
		case !t.keepsLocked(r, now):
			continue
		case t.Workers.PerCall > 0:
			t.startBatchLocked(r, now)
		default:
			r.Begin(t.stay.base, &t.Mu, t.Keys, now, t.clock.At(now))
		}
		return r
	}
	return nil
}

// keepsLocked reports whether this server still owns a job that is about to start, and may start
// it. One whose start was counted for an earlier time goes back.
func (t *Topic) keepsLocked(r *run.Run, now time.Time) bool {
	if t.owned.Expire(r, now); r.Lost == nil {
		if r.By.IsZero() || !now.After(r.By) {
			return true
		}
		t.Outcomes.Add(settle.Row{Run: r, Verb: settle.Return, Err: errSlow})
		t.Workers.HandlerTime = workers.AheadUnknown // as Spill: the next jobs may be late, too
		return false
	}
	t.launch(func() { t.reportLost(r) }) // concurrently: the next job must not wait for hooks
	return false
}

// GiveBack returns the jobs that wait for a worker to become idle. On shutdown it also returns
// those that a worker is being started for.
func (t *Topic) GiveBack(why error) {
	t.Mu.Lock()
	lost, rest := t.Workers.Spill(errors.Is(why, run.ErrShutdown))
	for _, r := range rest {
		t.Outcomes.Add(settle.Row{Run: r, Verb: settle.Return, Err: why})
	}
	t.adjustLocked(0)
	t.unlock()
	for _, r := range lost {
		t.reportLost(r)
	}
}

// launch starts a goroutine for running handlers. A handler that calls runtime.Goexit ends the
// goroutine, after execute has settled its job.
func (t *Topic) launch(f func()) {
	s := t.Server
	contain.Launch(&s.ending.running, f, func(c *contain.Crash) {
		if c.Kind == contain.Panic {
			s.loops.Crashed("run", c)
		}
	})
}

// work runs r and then further jobs until none is left.
func (t *Topic) work(r *run.Run) {
	for r != nil {
		r = t.execute(r)
	}
}

// execute calls the handler, settles the job by the handler's result, and returns the next job for
// this worker.
func (t *Topic) execute(r *run.Run) (next *run.Run) {
	if r.Batch != nil {
		return t.executeBatch(r.Batch)
	}
	var ctx context.Context = &r.Ctx
	defer r.Cancel(nil)
	if !r.Deadline.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, r.Deadline, run.ErrTimeout)
		defer stop()
	}
	return t.handle(func() error { return t.config.Task.Run(t.Server.Config.Observer.Begun(ctx, r), r) }, func(err error) *run.Run {
		return t.finish(r, context.Cause(ctx), err, time.Now())
	})
}

// handle calls a handler, and then finish with what it returns. A panic or runtime.Goexit counts as
// an error. It returns the next job for this worker.
func (t *Topic) handle(handler func() error, finish func(err error) *run.Run) (next *run.Run) {
	var err error
	returned := false
	defer func() {
		gone := false
		if p := recover(); p != nil {
			err = &contain.Crash{Kind: contain.Panic, Value: p, Stack: debug.Stack()}
		} else if !returned {
			gone = true
			err = &contain.Crash{Kind: contain.Goexit, Value: "handler called runtime.Goexit", Stack: debug.Stack()}
		}
		next = finish(err)
		if gone && next != nil { // this goroutine ends here
			t.launch(func() { t.work(next) })
		}
	}()
	err = handler()
	returned = true
	return nil
}

// finish decides the outcome of a job whose handler has ended. It returns the next job for the
// worker, or nil if there is none.
func (t *Topic) finish(r *run.Run, cause, err error, now time.Time) (next *run.Run) {
	ran := now.Sub(r.Began)
	settled := t.Server.Config.Judge.Verdict(r, cause, err, ran)
	settled.Cause, settled.Output, settled.Parcels = cause, r.Output.End(), r.Hands.End()
	r.Noted.End()
	t.Mu.Lock()
	abandoned, lost := t.endLocked(settled)
	next = t.nextLocked(ran, now, !abandoned && lost == nil)
	t.unlock()
	t.reportEnd(settled, abandoned, lost)
	return next
}

// endLocked notes that the handler of a run has returned, and queues the outcome. That is dropped
// if the run has lost its job, or if abandonAll has already given the job back.
func (t *Topic) endLocked(settled settle.Row) (abandoned bool, lost error) {
	r := settled.Run
	abandoned = r.Returned
	r.Returned = true
	delete(t.owned.Apart, r)
	switch {
	case r.Lost == nil && !abandoned:
		t.Outcomes.Add(settled)
	case r.Lost == nil && !r.GivenBack:
		r.Over = true // noteEnds tells it: Redis has yet to hear that the handler may still run
	default:
		t.noteStragglerLocked(r)
		t.tellEndsLocked()
	}
	return abandoned, r.Lost
}

// nextLocked returns the next job for a worker whose handler has returned after d, or nil if there
// is none, or if the pool gives the worker to another topic. settles says that an outcome is on its
// way to Redis. Until it is there, a limit of running jobs counts the job that has ended: a take
// before that could be refused, or use the place of another server. It does neither if limits are
// far away, and workers with short handlers need their jobs sooner.
func (t *Topic) nextLocked(d time.Duration, now time.Time, settles bool) (next *run.Run) {
	t.Workers.Ran(d)
	t.Workers.Ended()
	t.adjustLocked(1)
	if t.Workers.Idle() > 0 {
		if next = t.popLocked(now); next != nil {
			t.Workers.Busy++
		}
		t.adjustLocked(0) // next may have had lost jobs
	}
	if next == nil {
		t.startWorkerLocked() // not this worker: its jobs may wait for others of their batch
	}
	soon := t.Workers.Far && t.Workers.Ahead() >= t.Workers.Count
	if t.roomLocked() > 0 && (soon || !settles || !t.Workers.Places) {
		t.freedLocked()
		if t.Workers.RoomForTwo(len(t.owned.Runs)) {
			t.Loops.takeMore.Wake()
		}
	}
	return next
}

// reportEnd reports a run whose outcome was dropped.
func (t *Topic) reportEnd(settled settle.Row, abandoned bool, lost error) {
	switch {
	case abandoned:
		t.reportLate(settled)
	case lost != nil:
		t.reportOutcome(settled.As(lost))
	}
}
