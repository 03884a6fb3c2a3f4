package delayq

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
	"github.com/delayq/delayq/internal/workers"
)

// A topicServer is the part of a server that serves one topic. It has a loop that promotes jobs
// (bucket.go), two loops that take them (ready.go), the running handlers (here), a loop that
// extends leases (lease.go) and two loops that report outcomes to Redis (settle.go).
//
// Its state is in small parts, which make no calls: workers (who may start), holdings (which jobs
// are this server's), outcomes (what Redis must be told), and the firer, which belongs to the
// promote loop.
type topicServer struct {
	server   *engine
	keys     *script.Keys
	task     task
	defaults record.Options  // defaults of what the job's record leaves open
	base     context.Context // parent of the handlers' contexts
	clock    clock
	trouble  trouble
	loops    topicLoops
	timer    timer
	firer    *fire.Firer
	pruner   pruner
	paused   bool                      // the first taker has found the topic paused
	removeBy atomic.Pointer[time.Time] // see leaveBy; nil: the topic is not being removed

	endFetch, endWork context.CancelFunc
	fetching, working sync.WaitGroup // the loops that end with these
	late              bool           // added after Run began, and not yet recorded in topics
	leaving           bool           // being removed; guarded by Server.mu
	found             bool           // by a pattern

	node    atomic.Pointer[node] // that serves the topic
	rings   atomic.Bool          // the first taker waits for rings, and not by a blocking pop
	popping atomic.Bool          // a blocking pop is in flight
	listed  atomic.Bool          // the server waits for a ring, as far as is known
	rung    atomic.Bool          // the topic was rung, and no take has followed
	sought  atomic.Bool          // the watch found jobs although the server waited

	audited int64 // takes at the last audit of restore, which alone uses it

	// bypassed is the latest time when the watch found jobs that nobody had rung for. Only the take
	// loop uses it.
	bypassed time.Time

	waits     sync.WaitGroup // blocking pops
	waitSign  loop.Sign      // of the goroutine that makes them
	slowWait  loop.Pace      // of the pop
	unsure    atomic.Bool    // a cancel message may have been missed
	limits    string         // that the topic gets if it has none; empty: none, or they are set
	prunes    atomic.Bool    // the topic needs a prune
	pruneOpen atomic.Bool    // the last prune had no reply
	woken     atomic.Bool    // a job may be due earlier than is known

	mu       sync.Mutex
	workers  workers.Workers
	gather   *time.Timer       // ends the wait for a batch to be full; nil: nothing waits
	given    []*workers.Member // have been given workers of the pool, and are not yet told
	owned    run.Holdings
	outcomes settle.Queue
	history  chronicle
	ends     []keyEnd   // jobs that are no longer running, for the unpark script
	ended    fire.Ended // runs of schedules
	turns    turns
	pace     pace  // of takes
	room     latch // there may be room for more jobs
	resumed  latch // the topic may have been resumed
}

// topicLoops are the loops of a topic. They are nil until the topic is started.
type topicLoops struct {
	promote, take, takeMore, extend, settle, settleMore *loop.Loop
}

// A latch says that something may have happened that a loop waits for. It stays set until the loop
// looks. topicServer.mu guards it.
type latch struct {
	set    bool
	waited bool // the loop waits for it
}

// give sets the latch. It reports whether the loop waits for it, and must be woken.
func (l *latch) give() (waited bool) {
	waited = l.waited
	l.set, l.waited = !waited, false
	return waited
}

// expect reports whether the latch was set already. Otherwise the loop waits for it.
func (l *latch) expect() (set bool) {
	set = l.set
	l.set, l.waited = false, !set
	return set
}

func (t *topicServer) init() {
	s := t.server
	if m := t.workers.Member; m != nil && t.workers.Count == 0 && !s.config.own {
		t.workers.Count = m.Pool.Size
	}
	if t.workers.Count == 0 {
		t.workers.Count = s.config.concurrency
	}
	if m := t.workers.Member; m != nil {
		t.workers.Count = min(t.workers.Count, m.Pool.Size)
	}
	t.workers.Cautious = t.defaults.Retry >= 0
	t.workers.HandlerTime = workers.AheadUnknown
	t.trouble = trouble{name: t.keys.Topic, log: s.log.With("topic", t.keys.Topic), outage: s.outage}
	t.owned.Freed = t.freedLocked
	t.owned.Lost = func(r *run.Run) {
		if t.noteEndLocked(r); len(t.ends) > 0 {
			t.loops.settle.Wake()
		}
	}
	t.outcomes.Ready = func() { t.loops.settle.Wake() }
	t.outcomes.Pile = func() { t.loops.settleMore.Wake() }
	t.firer = fire.New(t.keys, s.config.tick, s.config.calendars, t.trouble.log, t.execOn)
}

// build makes the loops of a topic. They rest until begin.
func (t *topicServer) build(as *lifetime) {
	fetch, endFetch := context.WithCancel(as.fetch)
	work, endWork := context.WithCancel(as.work)
	t.base, t.endFetch, t.endWork = work, endFetch, endWork
	n := t.server.nodeOf(fetch, t.keys, as)
	t.node.Store(n)
	ls, l := &t.server.loops, &t.loops
	id := t.server.config.id
	first, second := t.newTaker(t.keys.Taken(id)), t.newTaker(t.keys.Taken(id+"+"))
	one, more := &settler{series: script.NewSeries()}, &settler{series: script.NewSeries()}
	held := &extender{}
	t.waitSign.Wait()
	loopOf := func(ctx context.Context) context.Context { return loop.Signed(ctx, new(loop.Sign)) }
	promote, take, takeMore := loopOf(fetch), loopOf(fetch), loopOf(fetch)
	takeCalls, takeMoreCalls := loop.Signed(work, loop.SignOf(take)), loop.Signed(work, loop.SignOf(takeMore))
	ends, endsMore, extend := loopOf(work), loopOf(work), loopOf(work)
	l.promote = ls.Add(promote, n.promotes, "promote", func() loop.Next { return t.promoteStep(promote) }, as.fetching, &t.fetching)
	l.take = ls.Add(take, n.takes, "take", func() loop.Next { return t.takeStep(take, takeCalls, first) }, as.taking, &t.fetching)
	l.takeMore = ls.Add(takeMore, n.takes, "take", func() loop.Next { return t.takeMoreStep(takeMore, takeMoreCalls, second) }, as.taking, &t.fetching)
	l.settle = ls.Add(ends, n.settles, "settle", func() loop.Next { return t.settleStep(ends, one, 1) }, as.working, &t.working)
	l.settleMore = ls.Add(endsMore, n.settles, "settle", func() loop.Next { return t.settleStep(endsMore, more, settle.Pile) }, as.working, &t.working)
	l.extend = ls.Add(extend, n.extends, "extend", func() loop.Next { return t.extendStep(extend, held) }, as.working, &t.working)
}

// begin starts the loops. They wake each other, so none begins before all of them are known.
func (t *topicServer) begin() {
	l := &t.loops
	for _, one := range []*loop.Loop{l.promote, l.take, l.extend} {
		one.Wake()
	}
}

// outside calls code of the user from a step of a loop. The loops of other topics do not wait for
// it.
func (t *topicServer) outside(l *loop.Loop, f func()) {
	if l == nil {
		f()
		return
	}
	l.Outside(f)
}

// leaveBy returns when takes without a reply are given up, once the topic is stopped.
func (t *topicServer) leaveBy() time.Time {
	if by := t.removeBy.Load(); by != nil {
		return *by
	}
	return t.server.leaveBy()
}

// A topicCall is one call of a script of the topic.
type topicCall struct {
	script  *script.Script
	jobs    int            // number reported to the script hooks
	receipt string         // key of the receipt, if the script leaves one
	timeout time.Duration  // default: callTimeout
	caller  *script.Caller // default: the server's
	// The call goes on after its loop is stopped; its result is then ignored.
	outlives bool
	// within returns the trouble that a successful reply reports.
	within func(ctx context.Context, c script.Caller, topic string, r script.Reply) error
}

// exec makes a call. It bounds the time, notes when trouble begins and ends, and reads Redis's
// clock from the reply. ctx is the context of the calling loop.
func (t *topicServer) exec(ctx context.Context, c topicCall, args ...any) (script.Reply, error) {
	whole := ctx
	if c.outlives {
		whole = loop.Signed(t.base, loop.SignOf(ctx))
	}
	call, cancel := context.WithTimeout(whole, cmp.Or(c.timeout, callTimeout))
	defer cancel()
	scripts := t.server.scripts
	if c.caller != nil {
		scripts = *c.caller
	}
	sent := time.Now()
	r, err := scripts.Exec(call, c.script, t.keys, c.receipt, c.jobs, args...)
	if err == nil {
		t.clock.read(r.Now(), sent, time.Now())
	}
	switch stopped := ctx.Err(); {
	case stopped != nil && c.outlives:
		return r, stopped
	case stopped != nil && err != nil: // interrupted
	case err == nil && c.within != nil:
		t.trouble.note(c.script.Name, c.within(call, scripts, t.keys.Topic, r))
	default:
		t.trouble.note(c.script.Name, err)
	}
	return r, err
}

// execOn is exec for a call that goes on after its loop is stopped.
func (t *topicServer) execOn(ctx context.Context, s *script.Script, jobs int, args ...any) (script.Reply, error) {
	return t.exec(ctx, topicCall{script: s, jobs: jobs, outlives: true}, args...)
}

// freed notes that there may be room for more jobs.
func (t *topicServer) freed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.freedLocked()
}

func (t *topicServer) freedLocked() {
	if t.room.give() {
		t.loops.take.Wake()
	}
}

// expectRoom reports whether there may be room for jobs. Otherwise freed wakes the first taker.
func (t *topicServer) expectRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.room.expect()
}

// waitsForRoom reports whether the first taker waits for room, and not for a job or for the end of
// a pause.
func (t *topicServer) waitsForRoom() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.room.waited
}

// rested notes that the first taker no longer waits for the end of a pause.
func (t *topicServer) rested() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resumed.waited = false
}

// noteTook is workers.took.
func (t *topicServer) noteTook(d time.Duration, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers.Took(d, n)
}

// patience is workers.patience.
func (t *topicServer) patience() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.workers.Patience()
}

// resume notes that the topic may have been resumed, or that its limits have changed.
func (t *topicServer) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers.KeysLimited = true // until the next reply
	if t.resumed.give() {
		t.loops.take.Wake()
	}
}

// expectResume reports whether the topic may have been resumed. Otherwise resume wakes the first
// taker.
func (t *topicServer) expectResume() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.resumed.expect()
}

// turn notes that a loop has started another iteration.
func (t *topicServer) turn(loop int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turns.last[loop] = time.Now()
}

// roomLocked returns how many jobs to take now; 0: none.
func (t *topicServer) roomLocked() int { return t.workers.Room(len(t.owned.Runs)) }

// hasIdleWorker reports whether there is an idle worker that no requested or taken job will use. In
// a pool it reports whether the topic may have another worker: the wait for a job needs none.
func (t *topicServer) hasIdleWorker() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.workers.Member != nil {
		return !t.workers.AtCount()
	}
	return t.workers.Unclaimed() > 0
}

// reserve is workers.reserve. In a pool, it first claims workers. If there are none, the topic
// waits for one.
func (t *topicServer) reserve(full bool) (n, free int) {
	t.mu.Lock()
	defer t.unlock()
	w := &t.workers
	t.adjustToLocked(w.Count, 0)
	n, free = w.Reserve(full, len(t.owned.Runs))
	if !full && n == 0 {
		w.Keen = free == 0 // until a take finds no more: others must not overtake it meanwhile
	}
	t.adjustLocked(0)
	return n, free
}

// expect is workers.expect. It wakes the second taker if that can take many more at the same time.
func (t *topicServer) expect(reserved, got int, many bool) {
	t.mu.Lock()
	defer t.unlock()
	t.workers.Expect(reserved, got, many)
	t.adjustLocked(0)
	t.startWorkerLocked() // for a batch that waited for these
	if t.workers.RoomForTwo(len(t.owned.Runs)) {
		t.loops.takeMore.Wake()
	}
}

// admit accepts a taken job. The job starts as soon as a worker is idle; if it is refused, the
// refusal is reported to Redis.
func (t *topicServer) admit(r *run.Run, refused *settle.Row) {
	t.mu.Lock()
	defer t.unlock()
	t.owned.Add(r, time.Now())
	t.workers.Arrived(r)
	if refused != nil {
		t.adjustLocked(0)
		t.outcomes.Add(*refused)
	} else {
		t.workers.Queue(r)
	}
	t.adjustLocked(0)
	t.startWorkerLocked()
}

// startWorkerLocked starts a worker if one is idle and there is a job for it.
func (t *topicServer) startWorkerLocked() {
	switch {
	case t.workers.ToStart():
		t.launch(t.startWorker)
	case t.gather == nil && t.workers.WaitsForBatch():
		t.gatherLocked()
	}
}

// startWorker is the goroutine of a worker: it runs jobs until none is left.
func (t *topicServer) startWorker() {
	t.mu.Lock()
	t.workers.Starting = false
	var r *run.Run
	if t.workers.Idle() > 0 { // otherwise another topic of the pool has the worker
		r = t.popLocked(time.Now())
	}
	if r != nil {
		t.workers.Busy++
	}
	t.adjustLocked(0) // next has fewer jobs
	t.startWorkerLocked()
	// no room as long as next has jobs for idle workers
	if !t.workers.Starting && t.roomLocked() > 0 {
		t.freedLocked()
	}
	t.unlock()
	t.work(r)
}

// stop prevents any more handlers from starting.
func (t *topicServer) stop() {
	t.mu.Lock()
	defer t.unlock()
	t.workers.Stopping = true
	t.endGatherLocked()
	t.adjustLocked(0)
}

// popLocked removes the first job that this server still owns from the queue, and marks it as
// running. With a batch handler, it does the same with the other jobs of a batch.
func (t *topicServer) popLocked(now time.Time) *run.Run {
	for r := t.workers.Pop(); r != nil; r = t.workers.Pop() {
		switch {
		case !t.keepsLocked(r, now):
			continue
		case t.workers.PerCall > 0:
			t.startBatchLocked(r, now)
		default:
			r.Begin(t.base, &t.mu, t.keys, now, t.clock.at(now))
		}
		return r
	}
	return nil
}

// keepsLocked reports whether this server still owns a job that is about to start.
func (t *topicServer) keepsLocked(r *run.Run, now time.Time) bool {
	if t.owned.Expire(r, now); r.Lost == nil {
		return true
	}
	t.launch(func() { t.reportLost(r) }) // concurrently: the next job must not wait for hooks
	return false
}

// giveBack returns the jobs that wait for a worker to become idle. On shutdown it also returns
// those that a worker is being started for.
func (t *topicServer) giveBack(why error) {
	t.mu.Lock()
	lost, rest := t.workers.Spill(errors.Is(why, run.ErrShutdown))
	for _, r := range rest {
		t.outcomes.Add(settle.Row{Run: r, Verb: settle.Return, Err: why})
	}
	t.adjustLocked(0)
	t.unlock()
	for _, r := range lost {
		t.reportLost(r)
	}
}

// launch starts a goroutine for running handlers. A handler that calls runtime.Goexit ends the
// goroutine, after execute has settled its job.
func (t *topicServer) launch(f func()) {
	s := t.server
	contain.Launch(&s.running, f, func(c *contain.Crash) {
		if c.Kind == contain.Panic {
			s.loops.Crashed("run", c)
		}
	})
}

// work runs r and then further jobs until none is left.
func (t *topicServer) work(r *run.Run) {
	for r != nil {
		r = t.execute(r)
	}
}

// execute calls the handler, settles the job by the handler's result, and returns the next job for
// this worker.
func (t *topicServer) execute(r *run.Run) (next *run.Run) {
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
	return t.handle(func() error { return t.task.Run(t.server.config.observer.Begun(ctx, r), r) }, func(err error) *run.Run {
		return t.finish(r, context.Cause(ctx), err, time.Now())
	})
}

// handle calls a handler, and then finish with what it returns. A panic or runtime.Goexit counts as
// an error. It returns the next job for this worker.
func (t *topicServer) handle(handler func() error, finish func(err error) *run.Run) (next *run.Run) {
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
func (t *topicServer) finish(r *run.Run, cause, err error, now time.Time) (next *run.Run) {
	ran := now.Sub(r.Began)
	settled := t.server.config.judge.Verdict(r, cause, err, ran)
	settled.Cause, settled.Output = cause, r.Output.End()
	t.mu.Lock()
	abandoned, lost := t.endLocked(settled)
	next = t.nextLocked(ran, now)
	t.unlock()
	t.reportEnd(settled, abandoned, lost)
	return next
}

// endLocked notes that the handler of a run has returned, and queues the outcome. That is dropped
// if the run has lost its job, or if abandonAll has already given the job back.
func (t *topicServer) endLocked(settled settle.Row) (abandoned bool, lost error) {
	r := settled.Run
	abandoned = r.Returned
	r.Returned = true
	delete(t.owned.Apart, r)
	if r.Lost == nil && !abandoned {
		t.outcomes.Add(settled)
	}
	return abandoned, r.Lost
}

// nextLocked returns the next job for a worker whose handler has returned after d, or nil if there
// is none, or if the pool gives the worker to another topic.
func (t *topicServer) nextLocked(d time.Duration, now time.Time) (next *run.Run) {
	t.workers.Ran(d)
	t.workers.Busy--
	t.adjustLocked(1)
	if t.workers.Idle() > 0 {
		if next = t.popLocked(now); next != nil {
			t.workers.Busy++
		}
		t.adjustLocked(0) // next may have had lost jobs
	}
	if next == nil {
		t.startWorkerLocked() // not this worker: its jobs may wait for others of their batch
	}
	if t.roomLocked() > 0 {
		t.freedLocked()
		if t.workers.RoomForTwo(len(t.owned.Runs)) {
			t.loops.takeMore.Wake()
		}
	}
	return next
}

// reportEnd reports a run whose outcome was dropped.
func (t *topicServer) reportEnd(settled settle.Row, abandoned bool, lost error) {
	switch {
	case abandoned:
		t.reportLate(settled)
	case lost != nil:
		t.reportOutcome(settled.As(lost))
	}
}
