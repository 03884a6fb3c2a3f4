package delayq

import (
	"cmp"
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/record"
)

// A topicServer is the part of a server that serves one topic. It has a loop that promotes jobs
// (bucket.go), two loops that take them (ready.go), the running handlers (here and in workers.go),
// a loop that extends leases (lease.go) and two loops that report outcomes to Redis (settle.go).
type topicServer struct {
	server      *Server
	keys        *keys
	handler     Handler
	concurrency int
	defaults    record.Options  // defaults of what the job's record leaves open
	base        context.Context // parent of the handlers' contexts
	clock       clock
	trouble     trouble
	turns       turns // guarded by mu
	firer       firer
	pruner      pruner
	paused      bool // the take loop has found the topic paused
	// at the last promote, a slot of some schedule waited for a run to finish
	slotWaits atomic.Bool

	wake   chan struct{} // interrupts the sleep of the promote loop
	resume chan struct{} // interrupts the sleep of the take loop
	unsure chan struct{} // a cancel message may have been missed
	freed  chan struct{} // there may be room for more jobs
	plenty chan struct{} // there is more to take than one taker can, and room for it

	mu       sync.Mutex
	busy     int  // workers that are running a handler
	starting bool // a worker is being started for the head of next
	// lower bound of the jobs taken from the topic, by this server or by Redis's own count
	takes       int64
	coming      int           // jobs requested, or taken and not yet admitted
	many        bool          // there is more to take than the last take returned
	batch       int           // jobs that such a take returns
	size        int           // running mean of the size of a job's record, in bytes
	next        []*run        // taken, in the order in which they start
	handlerTime time.Duration // running mean of the duration of a handler
	limited     bool          // the last job taken has limited retries
	stopping    bool          // no more handlers may start
	// cancels of the last second whose runs were not found: their takes may still be in flight
	unheard        []loss
	leases         map[string]*run // by job ID: what this server owns and has not settled
	apart          map[*run]bool   // runs whose handlers replaced their own jobs and go on
	rows           []row           // outcomes that Redis has not received yet
	endedSchedules []string        // schedules whose runs have finished since the last promote
	settleReady    chan struct{}   // there are rows
	pile           chan struct{}   // there are enough rows for a second call
	proposed       int64           // proposed lease end in ms that Redis has not confirmed; 0: none
	drained        []chan struct{} // closed when leases becomes empty
}

func (t *topicServer) init() {
	s := t.server
	t.defaults.Fill(&defaultRun)
	if t.concurrency == 0 {
		t.concurrency = s.o.concurrency
	}
	t.trouble = trouble{name: t.keys.topic, log: s.log.With("topic", t.keys.topic), outage: s.outage}
	t.wake, t.resume = make(chan struct{}, 1), make(chan struct{}, 1)
	t.unsure = make(chan struct{}, 1)
	t.freed, t.plenty = make(chan struct{}, 1), make(chan struct{}, 1)
	t.settleReady, t.pile = make(chan struct{}, 1), make(chan struct{}, 1)
	t.leases = make(map[string]*run)
	t.handlerTime = aheadUnknown
	t.firer.plans, t.firer.bad, t.firer.missed = make(map[string]plan), make(map[string]string), make(map[string]int64)
}

// A topicCall is one call of a script of the topic.
type topicCall struct {
	script  *script
	jobs    int           // number reported to the script hooks
	receipt string        // key of the receipt, if the script leaves one
	timeout time.Duration // default: callTimeout
	caller  *caller       // default: the server's
	// The call goes on after its loop is stopped; its result is then ignored.
	outlives bool
	// within returns the trouble that a successful reply reports.
	within func(ctx context.Context, c caller, topic string, r reply) error
}

// exec makes a call. It bounds the time, notes when trouble begins and ends, and reads Redis's
// clock from the reply. ctx is the context of the calling loop.
func (t *topicServer) exec(ctx context.Context, c topicCall, args ...any) (reply, error) {
	whole := ctx
	if c.outlives {
		whole = t.base
	}
	call, cancel := context.WithTimeout(whole, cmp.Or(c.timeout, callTimeout))
	defer cancel()
	scripts := t.server.scripts
	if c.caller != nil {
		scripts = *c.caller
	}
	sent := time.Now()
	r, err := scripts.exec(call, c.script, t.keys, c.receipt, c.jobs, args...)
	if err == nil {
		t.clock.read(r.now(), sent, time.Now())
	}
	switch stopped := ctx.Err(); {
	case stopped != nil && c.outlives:
		return r, stopped
	case stopped != nil && err != nil: // interrupted
	case err == nil && c.within != nil:
		t.trouble.note(c.script.name, c.within(call, scripts, t.keys.topic, r))
	default:
		t.trouble.note(c.script.name, err)
	}
	return r, err
}

// signal puts a token into a channel of capacity 1, unless it already holds one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// turn notes that a loop has started another iteration.
func (t *topicServer) turn(loop int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turns.last[loop] = time.Now()
}

// launch starts a goroutine for running handlers. A handler that calls runtime.Goexit ends the
// goroutine, after execute has settled its job.
func (t *topicServer) launch(f func()) {
	s := t.server
	launch(&s.running, f, func(c *crash) {
		if c.kind == KindPanic {
			s.loops.crashed("run", c)
		}
	})
}

// work runs r and then further jobs until none is left.
func (t *topicServer) work(r *run) {
	for r != nil {
		r = t.execute(r)
	}
}

// execute calls the handler, settles the job by the handler's result, and returns the next job for
// this worker.
func (t *topicServer) execute(r *run) (next *run) {
	var ctx context.Context = &r.ctx
	defer r.cancel(nil)
	if !r.deadline.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, r.deadline, ErrTimeout)
		defer stop()
	}
	var err error
	returned := false
	defer func() {
		gone := false
		if p := recover(); p != nil {
			err = &crash{kind: KindPanic, value: p, stack: debug.Stack()}
		} else if !returned {
			gone = true
			err = &crash{kind: KindGoexit, value: "handler called runtime.Goexit", stack: debug.Stack()}
		}
		next = t.finish(r, context.Cause(ctx), err, time.Now())
		if gone && next != nil { // this goroutine ends here
			t.launch(func() { t.work(next) })
		}
	}()
	if len(t.server.o.hooks.started) > 0 {
		t.server.o.hooks.fireStarted(r.event("", nil))
	}
	err = t.handler.Handle(ctx, r.job)
	returned = true
	return nil
}

// finish decides the outcome of a job whose handler has ended. It returns the next job for the
// worker, or nil if there is none.
func (t *topicServer) finish(r *run, cause, err error, now time.Time) (next *run) {
	ran := now.Sub(r.began)
	told := t.verdict(r, cause, err, ran)
	told.cause = cause
	t.mu.Lock()
	t.handlerTime += (ran - t.handlerTime) / 8
	abandoned := r.returned // by abandonAll, which has already given the job back
	r.returned = true
	delete(t.apart, r)
	lost := r.lost
	if lost == nil && !abandoned {
		t.tellLocked(told)
	}
	if next = t.popLocked(now); next == nil {
		t.busy--
	}
	if n := t.roomLocked(); n > 0 {
		signal(t.freed)
		if t.many && n >= t.batch {
			signal(t.plenty)
		}
	}
	t.mu.Unlock()
	switch {
	case abandoned:
		t.late(told)
	case lost != nil:
		t.outcome(told.as(lost))
	}
	return next
}
