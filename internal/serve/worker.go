package serve

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
type Topic struct {
	Server    *Server
	Keys      *script.Keys
	config    TopicConfig
	stay      stay
	node      atomic.Pointer[Node] // that serves the topic
	clock     Clock
	trouble   trouble
	audited   int64 // takes at the last audit of restore, which alone uses it
	Loops     topicLoops
	promoting promoting
	taking    taking
	extender  extender

	Mu       sync.Mutex // guards the rest
	Workers  crew
	owned    run.Holdings
	Outcomes settle.Queue
	History  chronicle
	ended    endedRuns
	vital    vital
	latches  latches
}

// A stay is how long a topic belongs to its server, from the start of its loops to their end.
type stay struct {
	base              context.Context // parent of the handlers' contexts
	endFetch, endWork context.CancelFunc
	fetching, working sync.WaitGroup            // the loops that end with these
	late              bool                      // added after run began, and not yet recorded in topics
	found             bool                      // by a pattern
	leaving           bool                      // being removed; guarded by Server.mu
	by                atomic.Pointer[time.Time] // see leaveBy; nil: the topic is not being removed
}

// promoting is what the promote loop remembers.
type promoting struct {
	timer  timer
	Firer  *fire.Firer
	pruner pruner
}

// taking is what the first take loop remembers.
type taking struct {
	ring   ringing
	wait   waiting
	limits string // that the topic gets if it has none; empty: none, or they are set
	paused bool   // the loop has found the topic paused
}

// endedRuns are runs that have ended, for those that wait for that.
type endedRuns struct {
	keys      []KeyEnd   // for the unpark script
	schedules fire.Ended // for the firer
}

// vital is what a heartbeat says of the loops.
type vital struct {
	turns turns
	pace  pace // of takes
}

// A crew is the workers of a topic, and what they wait for.
type crew struct {
	workers.Workers
	gather *time.Timer       // ends the wait for a batch to be full; nil: nothing waits
	given  []*workers.Member // have been given workers of the pool, and are not yet told
}

// latches are what the first take loop waits for.
type latches struct {
	room    latch // there may be room for more jobs
	resumed latch // the topic may have been resumed
}

// topicLoops are the loops of a topic. They are nil until the topic is started.
type topicLoops struct {
	promote, take, takeMore, extend, settle, settleMore *loop.Loop
}

// A latch says that something may have happened that a loop waits for. It stays set until the loop
// looks. Topic.Mu guards it.
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

func (t *Topic) init() {
	s := t.Server
	if m := t.Workers.Member; m != nil && t.Workers.Count == 0 && !s.Config.Own {
		t.Workers.Count = m.Pool.Size
	}
	if t.Workers.Count == 0 {
		t.Workers.Count = s.Config.Concurrency
	}
	if m := t.Workers.Member; m != nil {
		t.Workers.Count = min(t.Workers.Count, m.Pool.Size)
	}
	t.Workers.Cautious = t.config.Defaults.Retry >= 0
	t.Workers.HandlerTime = workers.AheadUnknown
	t.trouble = trouble{name: t.Keys.Topic, log: s.Log.With("topic", t.Keys.Topic), outage: s.outage}
	t.owned.Freed = t.freedLocked
	t.owned.Lost = func(r *run.Run) {
		if t.noteEndLocked(r); len(t.ended.keys) > 0 {
			t.Loops.settle.Wake()
		}
	}
	t.Outcomes.Ready = func() { t.Loops.settle.Wake() }
	t.Outcomes.Pile = func() { t.Loops.settleMore.Wake() }
	t.promoting.Firer = fire.New(t.Keys, s.Config.Tick, s.Config.Calendars, t.trouble.log, t.execOn)
}

// build makes the loops of a topic. They rest until begin.
func (t *Topic) build(as *lifetime) {
	fetch, endFetch := context.WithCancel(as.fetch)
	work, endWork := context.WithCancel(as.work)
	t.stay.base, t.stay.endFetch, t.stay.endWork = work, endFetch, endWork
	n := t.Server.nodeOf(fetch, t.Keys, as)
	t.node.Store(n)
	ls, l := &t.Server.loops, &t.Loops
	id := t.Server.Config.ID
	first, second := t.NewTaker(t.Keys.Taken(id)), t.NewTaker(t.Keys.Taken(id+"+"))
	one, more := &settler{series: script.NewSeries()}, &settler{series: script.NewSeries()}
	t.taking.wait.sign.Wait()
	loopOf := func(ctx context.Context) context.Context { return loop.Signed(ctx, new(loop.Sign)) }
	promote, take, takeMore := loopOf(fetch), loopOf(fetch), loopOf(fetch)
	takeCalls, takeMoreCalls := loop.Signed(work, loop.SignOf(take)), loop.Signed(work, loop.SignOf(takeMore))
	ends, endsMore, extend := loopOf(work), loopOf(work), loopOf(work)
	l.promote = ls.Add(promote, n.promotes, "promote", func() loop.Next { return t.promoteStep(promote) }, as.fetching, &t.stay.fetching)
	l.take = ls.Add(take, n.takes, "take", func() loop.Next { return t.takeStep(take, takeCalls, first) }, as.taking, &t.stay.fetching)
	l.takeMore = ls.Add(takeMore, n.takes, "take", func() loop.Next { return t.takeMoreStep(takeMore, takeMoreCalls, second) }, as.taking, &t.stay.fetching)
	l.settle = ls.Add(ends, n.settles, "settle", func() loop.Next { return t.settleStep(ends, one, 1) }, as.working, &t.stay.working)
	l.settleMore = ls.Add(endsMore, n.settles, "settle", func() loop.Next { return t.settleStep(endsMore, more, settle.Pile) }, as.working, &t.stay.working)
	l.extend = ls.Add(extend, n.extends, "extend", func() loop.Next { return t.extendStep(extend) }, as.working, &t.stay.working)
}

// begin starts the loops. They wake each other, so none begins before all of them are known.
func (t *Topic) begin() {
	l := &t.Loops
	for _, one := range []*loop.Loop{l.promote, l.take, l.extend} {
		one.Wake()
	}
}

// outside calls code of the user from a step of a loop. The loops of other topics do not wait for
// it.
func (t *Topic) outside(l *loop.Loop, f func()) {
	if l == nil {
		f()
		return
	}
	l.Outside(f)
}

// leaveBy returns when takes without a reply are given up, once the topic is stopped.
func (t *Topic) leaveBy() time.Time {
	if by := t.stay.by.Load(); by != nil {
		return *by
	}
	return t.Server.ending.leaveBy()
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
func (t *Topic) exec(ctx context.Context, c topicCall, args ...any) (script.Reply, error) {
	whole := ctx
	if c.outlives {
		whole = loop.Signed(t.stay.base, loop.SignOf(ctx))
	}
	call, cancel := context.WithTimeout(whole, cmp.Or(c.timeout, CallTimeout))
	defer cancel()
	scripts := t.Server.Scripts
	if c.caller != nil {
		scripts = *c.caller
	}
	sent := time.Now()
	r, err := scripts.Exec(call, c.script, t.Keys, c.receipt, c.jobs, args...)
	if err == nil {
		t.clock.Read(r.Now(), sent, time.Now())
	}
	switch stopped := ctx.Err(); {
	case stopped != nil && c.outlives:
		return r, stopped
	case stopped != nil && err != nil: // interrupted
	case err == nil && c.within != nil:
		t.trouble.note(c.script.Name, c.within(call, scripts, t.Keys.Topic, r))
	default:
		t.trouble.note(c.script.Name, err)
	}
	return r, err
}

// execOn is exec for a call that goes on after its loop is stopped.
func (t *Topic) execOn(ctx context.Context, s *script.Script, jobs int, args ...any) (script.Reply, error) {
	return t.exec(ctx, topicCall{script: s, jobs: jobs, outlives: true}, args...)
}

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

// ExpectRoom reports whether there may be room for jobs. Otherwise freed wakes the first taker.
func (t *Topic) ExpectRoom() bool {
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

// rested notes that the first taker no longer waits for the end of a pause.
func (t *Topic) rested() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.latches.resumed.waited = false
}

// noteTook is workers.took.
func (t *Topic) noteTook(d time.Duration, n int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Workers.Took(d, n)
}

// patience is workers.patience.
func (t *Topic) patience() time.Duration {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Workers.Patience()
}

// resume notes that the topic may have been resumed, or that its limits have changed.
func (t *Topic) resume() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Workers.KeysLimited = true // until the next reply
	if t.latches.resumed.give() {
		t.Loops.take.Wake()
	}
}

// expectResume reports whether the topic may have been resumed. Otherwise resume wakes the first
// taker.
func (t *Topic) expectResume() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.latches.resumed.expect()
}

// turn notes that a loop has started another iteration.
func (t *Topic) turn(loop int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.vital.turns.last[loop] = time.Now()
}

// RoomLocked returns how many jobs to take now; 0: none.
func (t *Topic) RoomLocked() int { return t.Workers.Room(len(t.owned.Runs)) }

// HasIdleWorker reports whether there is an idle worker that no requested or taken job will use. In
// a pool it reports whether the topic may have another worker: the wait for a job needs none.
func (t *Topic) HasIdleWorker() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if t.Workers.Member != nil {
		return !t.Workers.AtCount()
	}
	return t.Workers.Unclaimed() > 0
}

// reserve is workers.reserve. In a pool, it first claims workers. If there are none, the topic
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

// expect is workers.expect. It wakes the second taker if that can take many more at the same time.
func (t *Topic) expect(reserved, got int, many bool) {
	t.Mu.Lock()
	defer t.unlock()
	t.Workers.Expect(reserved, got, many)
	t.adjustLocked(0)
	t.StartWorkerLocked() // for a batch that waited for these
	if t.Workers.RoomForTwo(len(t.owned.Runs)) {
		t.Loops.takeMore.Wake()
	}
}

// Admit accepts a taken job. The job starts as soon as a worker is idle; if it is refused, the
// refusal is reported to Redis.
func (t *Topic) Admit(r *run.Run, refused *settle.Row) {
	t.Mu.Lock()
	defer t.unlock()
	t.owned.Add(r, time.Now())
	t.Workers.Arrived(r)
	if refused != nil {
		t.adjustLocked(0)
		t.Outcomes.Add(*refused)
	} else {
		t.Workers.Queue(r)
	}
	t.adjustLocked(0)
	t.StartWorkerLocked()
}

// StartWorkerLocked starts a worker if one is idle and there is a job for it.
func (t *Topic) StartWorkerLocked() {
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
	t.StartWorkerLocked()
	// no room as long as next has jobs for idle workers
	if !t.Workers.Starting && t.RoomLocked() > 0 {
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

// keepsLocked reports whether this server still owns a job that is about to start.
func (t *Topic) keepsLocked(r *run.Run, now time.Time) bool {
	if t.owned.Expire(r, now); r.Lost == nil {
		return true
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
	settled.Cause, settled.Output = cause, r.Output.End()
	t.Mu.Lock()
	abandoned, lost := t.endLocked(settled)
	next = t.nextLocked(ran, now)
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
	if r.Lost == nil && !abandoned {
		t.Outcomes.Add(settled)
	}
	return abandoned, r.Lost
}

// nextLocked returns the next job for a worker whose handler has returned after d, or nil if there
// is none, or if the pool gives the worker to another topic.
func (t *Topic) nextLocked(d time.Duration, now time.Time) (next *run.Run) {
	t.Workers.Ran(d)
	t.Workers.Busy--
	t.adjustLocked(1)
	if t.Workers.Idle() > 0 {
		if next = t.popLocked(now); next != nil {
			t.Workers.Busy++
		}
		t.adjustLocked(0) // next may have had lost jobs
	}
	if next == nil {
		t.StartWorkerLocked() // not this worker: its jobs may wait for others of their batch
	}
	if t.RoomLocked() > 0 {
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
