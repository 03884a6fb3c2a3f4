package delayq

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
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
	waits       atomic.Bool // at the last promote a slot of some schedule waited for the end of a run

	wake   chan struct{} // cuts the sleep of the promote loop short
	resume chan struct{} // cuts the sleep of the take loop short
	unsure chan struct{} // a cancel may have gone unheard
	freed  chan struct{} // there may be room for more jobs
	plenty chan struct{} // there are more jobs than one taker can take, and room for them

	mu       sync.Mutex
	busy     int             // slots in use
	starting bool            // a slot is being started for the head of next
	takes    int64           // how many jobs have been taken from the topic, at least: by this server, or as Redis has counted
	coming   int             // how many jobs have been asked for, or taken and not admitted yet
	many     bool            // there is more to take than the last take has brought
	batch    int             // how many jobs such a take brings
	size     int             // about how large the record of a job is
	next     []*run          // taken, in the order in which they are to be started
	pace     time.Duration   // about how long a handler takes
	limited  bool            // the last job that was taken has limited retries
	stopping bool            // no more handlers are to be started
	unheard  []loss          // cancels of the last second whose runs were not found: their takes may still be on the way
	leases   map[string]*run // by job ID: what belongs to this server and is not settled
	apart    map[*run]bool   // runs whose handlers have replaced their own jobs and go on
	rows     []row           // what Redis is to be told
	ended    []string        // schedules whose runs have ended since the last promote
	settle   chan struct{}   // there are rows
	pile     chan struct{}   // there are so many rows that a second call is worth it
	proposed int64           // a lease end in ms that Redis has been told and has not confirmed; 0: none
	waiting  []chan struct{} // closed when leases becomes empty
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
	t.settle, t.pile = make(chan struct{}, 1), make(chan struct{}, 1)
	t.leases = make(map[string]*run)
	t.pace = aheadUnknown
	t.firer.plans, t.firer.bad, t.firer.missed = make(map[string]plan), make(map[string]string), make(map[string]int64)
}

// note tells of the outcome of a call, unless the call was cut off by the end of ctx.
func (t *topicServer) note(ctx context.Context, call string, err error) {
	if err == nil || ctx.Err() == nil {
		t.trouble.note(call, err)
	}
}

// nudge puts a token into a channel of one, if it is empty.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A run is one taken job, from the take until Redis knows how it ended.
type run struct {
	id      string // the job's own fields belong to the handler, which may change them
	nonce   string
	job     *Job
	own     Job        // what job points to
	opts    jobOptions // zero if the record cannot be read
	said    jobOptions // the same without the Defaults of the handler
	expires int64      // Redis's time from which the job is dropped instead of started; 0: never
	size    int        // of the payload
	stored  int        // bytes of the record
	attempt int        // from 1
	past    tally
	lease   atomic.Int64 // the fence that the handler sees, in µs

	scheduled bool // the job is one of a schedule

	ctx    runContext // of the handler
	cancel context.CancelCauseFunc

	// What follows is guarded by topicServer.mu.
	fence    string    // the end of the lease in ms that Redis has; several, with spaces between, while it is not known which of them
	extended string    // the end that an extension without an answer yet may have set
	until    time.Time // our own clock: from here on the lease may be over
	ends     int64     // the latest end in µs that Redis is known to have given the lease
	sets     int       // how often Redis's clock had been set back by then
	deadline time.Time // our own clock: the end of Timeout; the lease is not extended beyond it
	taken    time.Time // when the lease was given, by Redis's clock
	start    time.Time // when the handler was called, by Redis's clock; zero: not yet
	began    time.Time // the same by our own clock
	ended    bool      // the handler has returned, or will not be waited for
	telling  bool      // a call that settles the job is under way
	bereft   bool      // Redis has lost data of the topic since the take
	lost     error     // why the job no longer belongs to this server

	replacing int  // calls of the handler that replace its own job, under way or of unknown outcome
	replaced  bool // one of them was carried out
}

// A runContext is the context of a handler. It says whose it is.
type runContext struct {
	context.Context
	topic *topicServer
	run   *run
}

type runKey struct{}

func (c *runContext) Value(key any) any {
	if key == (runKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// String keeps fmt from looking into the run.
func (c *runContext) String() string { return fmt.Sprintf("%v.Handler", c.Context) }

// ownRun gives the context of the handler that calls if the job of that ID is its own, else nil.
func ownRun(ctx context.Context, prefix, topic, id string) *runContext {
	c, _ := ctx.Value(runKey{}).(*runContext)
	if c == nil || c.run.id != id || c.topic.keys.topic != topic || c.topic.server.o.prefix != prefix {
		return nil
	}
	return c
}

// replace notes that a call that replaces the handler's own job is under way: it is not to end the
// handler's context.
func (c *runContext) replace() {
	if c == nil {
		return
	}
	c.topic.mu.Lock()
	defer c.topic.mu.Unlock()
	c.run.replacing++
}

// stored notes how that call has ended. One of unknown outcome counts as under way for good.
func (c *runContext) stored(err error) {
	if c == nil || errors.Is(err, ErrUnknownOutcome) {
		return
	}
	c.topic.mu.Lock()
	defer c.topic.mu.Unlock()
	c.run.replacing--
	c.run.replaced = c.run.replaced || maybeStored(err)
}

// ownDoing reports whether the handler itself has replaced the job, if that has a new owner. With
// an outcome that is not known, a lease that may be over counts as lost.
func (r *run) ownDoing(now time.Time) bool {
	return r.replaced || r.replacing > 0 && now.Before(r.until)
}

// why is the reason why a job that is gone (letter g) or has another lease or none (l) no longer
// belongs to its run. Without an announcement, Redis does not tell a job that was replaced by
// somebody else from one whose lease was over.
func (r *run) why(letter byte, now time.Time) error {
	switch {
	case r.ownDoing(now):
		return ErrReplaced
	case letter == 'g' && now.Before(r.until) && !r.bereft:
		return ErrCancelled
	}
	return ErrLeaseLost
}

// running tells whether the handler has been called and is waited for.
func (r *run) running() bool { return !r.start.IsZero() && !r.ended }

// fences is what a settling script may find as the end of the lease.
func (r *run) fences() string {
	if r.extended != "" {
		return r.fence + " " + r.extended
	}
	return r.fence
}

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
	if t.limited || t.defaults.retry >= 0 || t.pace == aheadUnknown {
		return 0
	}
	most := min(aheadLimit, aheadBytes/max(t.size, 1))
	if t.pace <= aheadTime/aheadLimit {
		return most
	}
	return min(int(int64(aheadTime)*int64(t.concurrency)/int64(t.pace)), most)
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
func (t *topicServer) idle() bool {
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
		nudge(t.plenty)
	}
}

// turn notes that a loop has come round.
func (t *topicServer) turn(loop int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turns.last[loop] = time.Now()
}

func (t *topicServer) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.leases)
}

// holdLocked notes a taken job as ours.
func (t *topicServer) holdLocked(r *run) {
	t.coming--
	if old := t.leases[r.id]; old != nil { // the same job again: the older lease must be over
		now := time.Now()
		cause := old.why('l', now)
		if r.nonce != old.nonce && now.Before(old.until) {
			cause = ErrReplaced // the announcement is on its way
		}
		t.loseLocked(old, cause)
	}
	t.leases[r.id] = r
	t.takes++
	t.limited = r.opts.retry >= 0
	t.size += (r.stored - t.size) / 8
	for _, m := range t.unheard {
		if m.id == r.id && m.names(r) {
			t.loseLocked(r, m.cause)
		}
	}
}

// A loss says that the run of a job has lost its lease.
type loss struct {
	id, fence string
	cause     error
	at        time.Time
}

// names tells whether the loss is that of this run and no other one of the job.
func (m loss) names(r *run) bool {
	return slices.ContainsFunc(strings.Fields(r.fences()), func(end string) bool { return parseEnd(end) == parseEnd(m.fence) })
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
	t.startSlotLocked()
}

// startSlotLocked starts a slot if one is free and there is a job for it. One at a time, each by the one before: while handlers are short, a few slots do
// all the work, and no others are started that would find it done.
func (t *topicServer) startSlotLocked() {
	if t.starting || t.stopping || t.busy == t.concurrency || len(t.next) == 0 {
		return
	}
	t.starting = true
	t.launch(t.slot)
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

// slot is a slot in use: it runs one job after the other until there is none left.
func (t *topicServer) slot() {
	t.mu.Lock()
	t.starting = false
	r := t.popLocked(time.Now())
	if r != nil {
		t.busy++
		t.startSlotLocked()
	}
	if !t.starting && t.roomLocked() > 0 { // none, as long as next has jobs for free slots
		nudge(t.freed)
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

// A crash is a panic or a Goexit of a handler.
type crash struct {
	kind  ErrorKind
	value any
	stack []byte
}

func (c *crash) Error() string { return fmt.Sprintf("%s: %v", c.kind, c.value) }

func (c *crash) Unwrap() error {
	err, _ := c.value.(error)
	return err
}

// finish decides what becomes of the job of a handler that has ended, and gives its slot to the next job, if there is one.
func (t *topicServer) finish(r *run, cause, err error, now time.Time) (next *run) {
	ran := now.Sub(r.began)
	told := t.verdict(r, cause, err, ran)
	told.cause = cause
	t.mu.Lock()
	t.pace += (ran - t.pace) / 8
	abandoned := r.ended // by abandonAll: it has been given back already
	r.ended = true
	delete(t.apart, r)
	lost := r.lost
	if lost == nil && !abandoned {
		t.tellLocked(told)
	}
	if next = t.popLocked(now); next == nil {
		t.busy--
	}
	if n := t.roomLocked(); n > 0 {
		nudge(t.freed)
		if t.many && n >= t.batch {
			nudge(t.plenty)
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

// lookLocked notes that the lease of a job that is to be started is over by our own clock: this process has stood still, and another server may
// have the job. It would be found out by the next extension, but by then many more would have been started.
func (t *topicServer) lookLocked(r *run, now time.Time) {
	if r.lost == nil && !now.Before(r.until) {
		t.loseLocked(r, ErrLeaseLost)
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
	t.pace = aheadUnknown
	t.mu.Unlock()
	for _, r := range lost {
		t.tellLost(r)
	}
}

// tellLost tells of a run that was lost before it was started.
func (t *topicServer) tellLost(r *run) {
	t.outcome(row{run: r}.as(r.lost))
}

// lostOutcome is what has become of a run whose job was taken from it.
func lostOutcome(lost error) Outcome {
	switch {
	case errors.Is(lost, ErrCancelled):
		return OutcomeCancelled
	case errors.Is(lost, ErrReplaced):
		return OutcomeReplaced
	}
	return OutcomeLeaseLost
}

// verdict turns what a handler returned into what Redis is to be told.
func (t *topicServer) verdict(r *run, cause, err error, ran time.Duration) row {
	end := r.start.Add(ran)
	if err == nil {
		return row{run: r, verb: verbAck, end: end}
	}
	var c *crash
	var want wish
	if !as(err, &c) { // a panic with such a value asks for nothing
		want = wishOf(err)
	}
	if want.again != nil {
		renewal, bad := r.renew(want.again, end)
		if bad == nil {
			return row{run: r, verb: verbAgain, end: end, renewal: renewal, err: err}
		}
		err = badAgain(err, bad)
	}
	permanent := want.permanent
	if want.snooze != nil {
		past := r.past.snoozed(r.attempt - 1)
		return row{run: r, verb: verbSnooze, end: end, delay: want.snooze.delay(), past: past, err: err}
	}
	if errors.Is(cause, ErrShutdown) && c == nil && permanent == nil {
		return row{run: r, verb: verbReturn, end: end, err: err}
	}
	entry := AttemptError{
		Attempt: r.attempt, At: end, Ran: ran, Server: t.server.id, Kind: KindError,
		Type: fmt.Sprintf("%T", err), Message: message(err), Trace: r.job.Headers["traceparent"],
	}
	switch {
	case c != nil:
		entry.Kind, entry.Type, entry.Stack = c.kind, fmt.Sprintf("%T", c.value), string(c.stack)
	case errors.Is(cause, ErrTimeout):
		entry.Kind = KindTimeout
	}
	tries := r.attempt - r.past.spent
	switch {
	case permanent != nil:
		entry.Type = fmt.Sprintf("%T", permanent.err)
	case want.retry != nil:
		entry.Type = fmt.Sprintf("%T", want.retry.err)
	}
	if permanent != nil || r.opts.retry >= 0 && tries > r.opts.retry {
		return row{run: r, verb: verbBury, end: end, entry: entry.encode(), attempts: 1, err: err}
	}
	delay := backoff(tries, r.opts.backoffMin, r.opts.backoffMax)
	if want.retry != nil {
		delay = want.retry.delay()
	}
	entry.NextDue = end.Add(delay)
	return row{run: r, verb: verbRetry, end: end, delay: delay, past: r.past, entry: entry.encode(), err: err}
}

// as is errors.As, also for an error whose methods panic: a nil pointer in an error is a common slip.
func as(err error, target any) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return errors.As(err, target)
}

// message is the text of an error, also of one whose Error method panics.
func message(err error) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("%T, whose Error method panics", err)
		}
	}()
	return err.Error()
}

// event is what the hooks are told of a run.
func (r *run) event(outcome Outcome, err error) RunEvent {
	return RunEvent{
		Topic: r.job.Topic, ID: r.id, Attempt: r.attempt, EnqueuedAt: r.job.EnqueuedAt, Due: r.job.Due,
		Start: r.start, Outcome: outcome, Err: err, PayloadSize: r.size, Headers: r.job.Headers,
	}
}

// loseLocked notes that a job no longer belongs to this server and ends its handler's context,
// unless the handler has replaced the job itself.
func (t *topicServer) loseLocked(r *run, cause error) {
	if r.telling || t.leases[r.id] != r {
		return
	}
	r.lost = cause
	t.dropLocked(r)
	switch {
	case r.cancel == nil: // not started
	case errors.Is(cause, ErrReplaced) && r.ownDoing(time.Now()):
		if t.apart == nil {
			t.apart = make(map[*run]bool)
		}
		t.apart[r] = true
	default:
		r.cancel(cause)
	}
}

// dropLocked forgets a job.
func (t *topicServer) dropLocked(r *run) {
	if t.leases[r.id] == r {
		delete(t.leases, r.id)
	}
	if len(t.leases) == 0 {
		for _, c := range t.waiting {
			close(c)
		}
		t.waiting = nil
	}
	nudge(t.freed)
}

// cancelRun ends the run of a job that a nudge says is cancelled or replaced, if it is the run of that lease.
func (t *topicServer) cancelRun(id, fence string, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := loss{id, fence, cause, time.Now()}
	if r := t.leases[id]; r != nil && m.names(r) {
		t.loseLocked(r, cause)
		return
	}
	t.unheard = slices.DeleteFunc(t.unheard, func(old loss) bool { return m.at.Sub(old.at) > time.Second })
	if len(t.unheard) < takeLimit { // more would cost more than the next extension, which finds out by itself
		t.unheard = append(t.unheard, m)
	}
}

// cancelAll ends the contexts of all running handlers.
func (t *topicServer) cancelAll(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.leases {
		if r.running() {
			r.cancel(cause)
		}
	}
	for r := range t.apart {
		r.cancel(cause)
	}
}

// abandonAll gives back the jobs of handlers that do not end, and tells how many those are.
func (t *topicServer) abandonAll() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.leases {
		if r.running() {
			n++
			t.tellLocked(row{run: r, verb: verbReturn, err: ErrShutdown, cause: ErrShutdown})
		}
	}
	return n
}

// settled gives a channel that is closed once nothing belongs to this server any more.
func (t *topicServer) settled() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := make(chan struct{})
	if len(t.leases) == 0 {
		close(c)
	} else {
		t.waiting = append(t.waiting, c)
	}
	return c
}

// newRun makes a run of what take answered. The error says why the record cannot be read; the run can be settled all the same.
func (t *topicServer) newRun(id, raw, fence string, leaseEnd int64, until time.Time, tried, changed string) (*run, error) {
	r := &run{id: id, attempt: 1, stored: len(raw), fence: fence, until: until, ends: leaseEnd, sets: t.clock.sets()}
	if tried != "" {
		finished, _ := strconv.Atoi(tried) // HINCRBY wrote it
		r.attempt += finished
	}
	r.job = &r.own
	r.nonce = nonceOf(raw)
	r.job.Topic, r.job.ID, r.job.Attempt, r.job.nonce = t.keys.topic, id, r.attempt, r.nonce
	r.lease.Store(leaseEnd)
	r.job.fence = &r.lease
	m, known := parseMoved(changed)
	if known { // also if the record cannot be read: it may be put back
		r.past = m.tally
		r.job.Snoozes, r.job.spent = m.snoozes, m.spent
	}
	rec, err := decodeRecord(raw)
	if err != nil {
		return r, err
	}
	r.opts, r.said, r.size = rec.opts, rec.opts, rec.size
	if r.scheduled = ofSchedule(raw); r.scheduled {
		r.job.scheduledFor(id)
	}
	r.opts.fill(&t.defaults)
	r.job.Payload, r.job.Headers, r.job.Retries = rec.payload, rec.opts.headers, r.opts.retries()
	r.job.EnqueuedAt, r.job.Due = msTime(rec.enqueuedAt), msTime(rec.due)
	r.expires = rec.expires()
	if known {
		r.job.Due = msTime(m.due)
	}
	if m.revived {
		r.expires = 0 // who revives a job means it to run
	}
	return r, nil
}
