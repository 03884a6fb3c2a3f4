package loop

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/contain"
)

// A Loop is work that recurs: a topic promotes, takes, settles and extends in loops. A loop has no
// goroutine of its own, because a server can have thousands. The goroutines of its pool call step.
// No two calls of one loop overlap.
type Loop struct {
	of   *Group
	Name string
	ctx  context.Context
	step func() Next
	end  func() // called once, when step has returned over
	sign *Sign  // of the present step, or of the wait for one

	// Another step follows. It is set by the first of several wake-ups, and cleared when the step
	// begins.
	woken atomic.Bool

	// The following fields are guarded by of.mu.

	pool   *Pool
	on     *Pool // the pool in whose queue the loop is, or whose goroutine runs its step
	state  loopState
	roused bool      // during the present step
	at     time.Time // of the next step, unless a wake-up comes first
	index  int       // in loops.timers; -1: not in it
	slow   Pace      // after crashes
}

type loopState int

const (
	loopRests  loopState = iota // until at, or a wake-up
	loopPauses                  // until at, whatever wakes it
	loopQueued                  // a goroutine of its pool will call step
	loopRuns                    // step is running
	loopIsOver                  // step will not be called again
)

// Next says when the next step follows.
type Next struct {
	in   time.Duration
	firm bool // a wake-up does not shorten it
	Over bool // there is no next step
}

// Forever is a rest that only a wake-up ends.
const Forever = time.Duration(math.MaxInt64)

var (
	Again = Next{}
	Woken = Next{in: Forever}
	Over  = Next{Over: true}
)

func RestFor(d time.Duration) Next  { return Next{in: d} }
func PauseFor(d time.Duration) Next { return Next{in: d, firm: true} }

// Group are the loops of a server, and the timer that they share.
type Group struct {
	keeper

	mu     sync.Mutex
	timers loopTimers
	timer  *time.Timer // for the head of timers
	due    time.Time   // when it fires
}

// Add returns a loop that rests until it is woken. When ctx is done, it is woken, even from a
// pause, and its step should return over as soon as it can. The loop belongs to the groups until
// then. Its sign is that of ctx, if ctx has one.
func (ls *Group) Add(ctx context.Context, p *Pool, name string, step func() Next, groups ...*sync.WaitGroup) *Loop {
	l := &Loop{of: ls, Name: name, ctx: ctx, step: step, sign: SignOf(ctx), pool: p, index: -1}
	if l.sign == nil {
		l.sign = new(Sign)
	}
	for _, g := range groups {
		g.Add(1)
	}
	ls.mu.Lock() // ctx may be done already
	defer ls.mu.Unlock()
	stop := context.AfterFunc(ctx, l.rouse)
	l.end = func() {
		stop()
		for _, g := range groups {
			g.Done()
		}
	}
	return l
}

// Wake makes a step follow: now, or after the present step or pause. It does nothing for a nil
// loop.
func (l *Loop) Wake() {
	if l == nil || l.woken.Swap(true) {
		return
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.state == loopRests {
		l.enqueueLocked()
	}
}

// rouse is like wake, but ends a pause too.
func (l *Loop) rouse() {
	l.woken.Store(true)
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	switch l.state {
	case loopRests, loopPauses:
		l.enqueueLocked()
	case loopRuns:
		l.roused = true
	}
}

// Freeze makes the next steps hang until thaw is called. It is for tests of what watches loops.
func (l *Loop) Freeze() (thaw func()) {
	hold := make(chan struct{})
	l.of.mu.Lock()
	step := l.step
	l.step = func() Next { <-hold; return Again }
	l.of.mu.Unlock()
	l.rouse()
	return func() {
		l.of.mu.Lock()
		l.step = step
		l.of.mu.Unlock()
		close(hold)
	}
}

// Rests reports whether the loop rests and nothing has woken it.
func (l *Loop) Rests() bool {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.state == loopRests && !l.woken.Load()
}

// RestUntil moves the end of a rest. During a step it makes another one follow, because the step
// can have computed its rest before. It does nothing during a pause.
func (l *Loop) RestUntil(at time.Time) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	switch {
	case l.state == loopRuns:
		l.woken.Store(true)
	case l.state == loopRests && !l.woken.Load():
		l.restLocked(at)
	}
}

// Move makes the goroutines of another pool call the next steps.
func (l *Loop) Move(p *Pool) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.pool = p
}

func (l *Loop) enqueueLocked() {
	l.of.timers.drop(l)
	l.state, l.on = loopQueued, l.pool
	l.sign.by.Store(Nanos())
	l.pool.pushLocked(l)
}

func (l *Loop) restLocked(at time.Time) {
	l.at = at
	l.of.timers.put(l)
	l.of.setTimerLocked()
}

// stepped follows up a step.
func (l *Loop) stepped(n Next) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.steppedLocked(n)
}

func (l *Loop) steppedLocked(n Next) {
	roused := l.roused
	l.roused = false
	switch now := time.Now(); {
	case n.Over:
		l.state = loopIsOver
		l.end()
	case n.firm && n.in > 0 && !roused:
		l.state = loopPauses
		l.restLocked(now.Add(n.in))
	case l.woken.Load() || n.in <= 0:
		l.woken.Store(true)
		l.enqueueLocked()
	default:
		l.state = loopRests
		if n.in != Forever {
			l.restLocked(now.Add(n.in))
		}
	}
}

// setTimerLocked makes the timer fire for the head of timers.
func (ls *Group) setTimerLocked() {
	if len(ls.timers) == 0 {
		return
	}
	at := ls.timers[0].at
	switch {
	case ls.timer == nil:
		ls.timer = time.AfterFunc(time.Until(at), ls.timeUp)
	case at.Before(ls.due) || ls.due.IsZero():
		ls.timer.Reset(time.Until(at))
	default:
		return
	}
	ls.due = at
}

// timeUp queues the loops whose rest or pause is over.
func (ls *Group) timeUp() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.due = time.Time{}
	for now := time.Now(); len(ls.timers) > 0 && !ls.timers[0].at.After(now); {
		l := ls.timers[0]
		l.woken.Store(true)
		l.enqueueLocked()
	}
	ls.setTimerLocked()
}

// A Pool calls the steps of loops, in the order in which they became due, on a bounded number
// of goroutines. It starts them when they are needed and keeps them until it is closed.
type Pool struct {
	of *Group

	// The following fields are guarded by of.mu.

	limit   int // most goroutines
	count   int // goroutines
	idle    int // of them, waiting
	queue   []*Loop
	popped  int64 // in nanos: when a loop last left the queue
	ready   sync.Cond
	closed  bool
	Running sync.WaitGroup
}

func (ls *Group) NewPool(limit int) *Pool {
	p := &Pool{of: ls, limit: limit}
	p.ready.L = &ls.mu
	return p
}

// Resize changes the most goroutines. Those that exist are kept.
func (p *Pool) Resize(limit int) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.limit = max(limit, p.limit)
}

// Close ends the goroutines that have nothing to do. The pool must get no other loop.
func (p *Pool) Close() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.closed = true
	p.ready.Broadcast()
}

// Outside calls f, which is code of the user that may take long, from a step. Meanwhile the pool
// may have another goroutine, so that the loops of other topics do not wait.
func (l *Loop) Outside(f func()) {
	l.of.mu.Lock()
	p := l.pool
	p.limit++
	if len(p.queue) > 0 && p.idle == 0 {
		p.startLocked()
	}
	p.of.mu.Unlock()
	defer func() {
		p.of.mu.Lock()
		defer p.of.mu.Unlock()
		p.limit--
	}()
	f()
}

func (p *Pool) pushLocked(l *Loop) {
	p.queue = append(p.queue, l)
	switch {
	case p.idle > 0:
		p.idle-- // the one that wakes up
		p.ready.Signal()
	case p.count < p.limit:
		p.startLocked()
	}
}

func (p *Pool) startLocked() {
	p.count++
	var l *Loop
	contain.Launch(&p.Running, func() {
		for l = p.pop(); l != nil; l = p.pop() {
			l.stepped(l.step())
		}
	}, func(c *contain.Crash) {
		p.of.Crashed(l.Name, c)
		p.of.mu.Lock()
		defer p.of.mu.Unlock()
		p.count--
		if time.Duration(Nanos()-l.sign.turned.Load()) > crashEvery {
			l.slow.Reset()
		}
		n := PauseFor(l.slow.Next())
		n.Over = l.ctx.Err() != nil
		l.steppedLocked(n)
		if len(p.queue) > 0 && p.count < p.limit {
			p.startLocked()
		}
	})
}

// pop returns the next loop to step. It returns nil when the pool is closed, or has more goroutines
// than it may have.
func (p *Pool) pop() *Loop {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.count > p.limit {
		p.count--
		return nil
	}
	for len(p.queue) == 0 {
		if p.closed {
			p.count--
			return nil
		}
		p.idle++
		p.ready.Wait()
	}
	l := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	l.state = loopRuns
	p.popped = Nanos()
	l.sign.turnAt(p.popped)
	l.woken.Store(false)
	return l
}

// loopTimers is a heap of the loops that rest or pause, by the end of that.
type loopTimers []*Loop

func (h loopTimers) Len() int           { return len(h) }
func (h loopTimers) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h loopTimers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push and Pop implement [heap.Interface].
func (h *loopTimers) Push(x any) {
	l := x.(*Loop)
	l.index = len(*h)
	*h = append(*h, l)
}

func (h *loopTimers) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.index = -1
	return l
}

// put adds a loop, or moves it after its time has changed.
func (h *loopTimers) put(l *Loop) {
	if l.index < 0 {
		heap.Push(h, l)
	} else {
		heap.Fix(h, l.index)
	}
}

func (h *loopTimers) drop(l *Loop) {
	if l.index >= 0 {
		heap.Remove(h, l.index)
	}
}
