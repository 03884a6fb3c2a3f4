package delayq

import (
	"cmp"
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// A topicServer is the part of a server that serves one topic: a loop that promotes (bucket.go), two that take (ready.go), the running
// handlers (here), and two that tell Redis how they ended (settle.go).
type topicServer struct {
	server      *Server
	keys        *keys
	handler     Handler
	concurrency int
	defaults    jobOptions      // what a run is to know and its job does not say
	base        context.Context // what handlers' contexts are made of
	clock       clock
	trouble     trouble
	turns       turns // guarded by mu
	firer       firer
	pruner      pruner
	paused      bool        // the take loop has found the topic paused
	slotWaits   atomic.Bool // at the last promote a slot of some schedule waited for the end of a run

	wake   chan struct{} // cuts the sleep of the promote loop short
	resume chan struct{} // cuts the sleep of the take loop short
	unsure chan struct{} // a cancel may have gone unheard
	freed  chan struct{} // there may be room for more jobs
	plenty chan struct{} // there are more jobs than one taker can take, and room for them

	mu             sync.Mutex
	busy           int             // slots in use
	starting       bool            // a slot is being started for the head of next
	takes          int64           // how many jobs have been taken from the topic, at least: by this server, or as Redis has counted
	coming         int             // how many jobs have been asked for, or taken and not admitted yet
	many           bool            // there is more to take than the last take has brought
	batch          int             // how many jobs such a take brings
	size           int             // about how large the record of a job is
	next           []*run          // taken, in the order in which they are to be started
	handlerTime    time.Duration   // about how long a handler takes
	limited        bool            // the last job that was taken has limited retries
	stopping       bool            // no more handlers are to be started
	unheard        []loss          // cancels of the last second whose runs were not found: their takes may still be on the way
	leases         map[string]*run // by job ID: what belongs to this server and is not settled
	apart          map[*run]bool   // runs whose handlers have replaced their own jobs and go on
	rows           []row           // what Redis is to be told
	endedSchedules []string        // schedules whose runs have ended since the last promote
	settleReady    chan struct{}   // there are rows
	pile           chan struct{}   // there are so many rows that a second call is worth it
	proposed       int64           // a lease end in ms that Redis has been told and has not confirmed; 0: none
	drained        []chan struct{} // closed when leases becomes empty
}

func (t *topicServer) init() {
	s := t.server
	t.defaults.fill(&defaultRun)
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
	script   *script
	jobs     int                                                              // for the script hooks
	receipt  string                                                           // its key, if the script leaves one
	timeout  time.Duration                                                    // default: callTimeout
	caller   *caller                                                          // default: the server's
	outlives bool                                                             // the call goes on when its loop is stopped, and is then of no interest any more
	within   func(ctx context.Context, c caller, topic string, r reply) error // trouble that the reply reports
}

// run makes a call: it bounds the time, notes trouble when it begins and when it ends, and reads Redis's
// clock from the answer. ctx is that of the loop that makes the call.
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
	case stopped != nil && err != nil: // cut off
	case err == nil && c.within != nil:
		t.trouble.note(c.script.name, c.within(call, scripts, t.keys.topic, r))
	default:
		t.trouble.note(c.script.name, err)
	}
	return r, err
}

// nudge puts a token into a channel of one, if it is empty.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// turn notes that a loop has come round.
func (t *topicServer) turn(loop int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turns.last[loop] = time.Now()
}

// launch starts a goroutine of the running handlers. A handler that calls runtime.Goexit ends it, which
// execute has dealt with.
func (t *topicServer) launch(f func()) {
	s := t.server
	launch(&s.running, f, func(c *crash) {
		if c.kind == KindPanic {
			s.loops.crashed("run", c)
		}
	})
}

// work runs r, and then one job after the other until there is none left.
func (t *topicServer) work(r *run) {
	for r != nil {
		r = t.execute(r)
	}
}

// execute calls the handler, settles the job by what it returns, and gives the next job for this slot.
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

// finish decides what becomes of the job of a handler that has ended, and gives its slot to the next job, if there is one.
func (t *topicServer) finish(r *run, cause, err error, now time.Time) (next *run) {
	ran := now.Sub(r.began)
	told := t.verdict(r, cause, err, ran)
	told.cause = cause
	t.mu.Lock()
	t.handlerTime += (ran - t.handlerTime) / 8
	abandoned := r.returned // by abandonAll: it has been given back already
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
