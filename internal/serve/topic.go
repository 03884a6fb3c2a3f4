package serve

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
	"github.com/delayq/delayq/internal/workers"
)

// A Topic is the part of a server that serves one topic. It has a loop that promotes jobs
// (promote.go), two loops that take them (take.go), the running handlers (worker.go), a loop that
// extends leases (extend.go), two loops that report outcomes to Redis (settle.go), and
// one that tells it what runs note (notes.go).
//
// Its state is in small parts, which make no calls: Workers (who may start), owned (which jobs are
// this server's), Outcomes (what Redis must be told), and the firer, which belongs to the promote
// loop.
type Topic struct {
	Server    *Server
	Keys      *script.Keys
	config    TopicConfig
	stay      stay
	node      atomic.Pointer[Node] // that serves the topic
	clock     link.Clock
	trouble   trouble
	Loops     topicLoops
	promoting promoting
	taking    taking
	extender  extender

	Mu       sync.Mutex // guards the rest
	Workers  crew
	owned    run.Holdings
	Outcomes settle.Queue
	History  chronicle
	noting   noting
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
	look   lookout
	Firer  *fire.Firer
	pruner pruner
}

// taking is what the first take loop remembers.
type taking struct {
	ring   ringing
	wait   waiting
	limits string // that the topic gets if it has none; empty: none, or they are set
	paused bool   // the loop has found the topic paused
	look   lookout
	later  laterJobs // guarded by Topic.Mu
}

// endedRuns are runs that have ended, for those that wait for that.
type endedRuns struct {
	runs      []runEnd      // for the unpark script
	telling   int           // how many of them are in calls in flight
	schedules fire.Ended    // for the firer
	settling  int           // how many rows are in calls in flight
	settled   []settledWait // see Topic.settled
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
	later  *time.Timer       // starts the jobs in Later; nil: there were none yet
	near   time.Time         // no take that is sent before then says that limits are far away
	passed time.Time         // when the other servers were last told of a place
	given  []*workers.Member // have been given workers of the pool, and are not yet told
	shared *workers.Pool     // of the topic and its partitions; nil: it has none
}

// latches are what the first take loop waits for.
type latches struct {
	room    latch // there may be room for more jobs
	resumed latch // the topic may have been resumed
	place   latch // a running job of the topic may have ended
}

// topicLoops are the loops of a topic. They are nil until the topic is started.
type topicLoops struct {
	promote, take, takeMore, extend, settle, settleMore, note, relay *loop.Loop
	relaying                                                         relaying // what the last of them remembers
	guarding                                                         guarding // what the server's loop for flows remembers
	parts                                                            family   // what the server's loop for partitions remembers
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
	t.Mu.Lock() // jobs can be demanded before Run
	defer t.Mu.Unlock()
	s := t.Server
	log := s.Log.With("topic", t.called())
	if t.config.home != nil {
		log = log.With("partition", t.Keys.Topic)
	} else {
		t.sizeLocked()
	}
	t.Workers.Cautious = t.config.OnDemand || t.config.Defaults.Retry >= 0
	t.Workers.HandlerTime = workers.AheadUnknown
	t.trouble = trouble{name: t.Keys.Topic, log: log, outage: s.outage}
	t.owned.Freed = func() {
		t.freedLocked()
		t.closeSettledLocked()
	}
	t.owned.Lost = t.lostLocked
	t.Outcomes.Ready = func() { t.Loops.settle.Wake() }
	t.Outcomes.Pile = func() { t.Loops.settleMore.Wake() }
	t.promoting.Firer = fire.New(t.Keys, s.Config.Tick, s.Config.Calendars, t.trouble.log, t.execOn)
}

// sizeLocked says how many workers the topic has, or can have at most in its pool.
func (t *Topic) sizeLocked() {
	s := t.Server
	if m := t.Workers.Member; m != nil && t.Workers.Count == 0 && !s.Config.Own {
		t.Workers.Count = m.Pool.Size
	}
	if t.Workers.Count == 0 && !t.config.OnDemand { // of which some may have been asked for before Run
		t.Workers.Count = s.Config.Concurrency
	}
	if m := t.Workers.Member; m != nil {
		t.Workers.Count = min(t.Workers.Count, m.Pool.Size)
	}
}

// build makes the loops of a topic. They rest until begin. The client is that of its node; nil: it
// is not known yet.
func (t *Topic) build(as *lifetime, client redis.UniversalClient) {
	fetch, endFetch := context.WithCancel(as.fetch)
	work, endWork := context.WithCancel(as.work)
	t.stay.base, t.stay.endFetch, t.stay.endWork = work, endFetch, endWork
	n := t.Server.nodeOf(client, as)
	t.node.Store(n)
	ls, l := &t.Server.loops, &t.Loops
	id := t.Server.Topics.takerName(t.Server.Config.ID)
	first, second := t.newTaker(t.Keys.Taken(id)), t.newTaker(t.Keys.Taken(id+"+"))
	one, more := &settler{series: script.NewSeries()}, &settler{series: script.NewSeries()}
	t.taking.wait.sign.Wait()
	loopOf := func(ctx context.Context) context.Context { return loop.Signed(ctx, new(loop.Sign)) }
	promote, take, takeMore := loopOf(fetch), loopOf(fetch), loopOf(fetch)
	takeCalls, takeMoreCalls := loop.Signed(work, loop.SignOf(take)), loop.Signed(work, loop.SignOf(takeMore))
	ends, endsMore, extend, note, relay := loopOf(work), loopOf(work), loopOf(work), loopOf(work), loopOf(work)
	l.promote = ls.Add(promote, n.promotes, "promote", func() loop.Next { return t.promoteStep(promote) }, as.fetching, &t.stay.fetching)
	l.take = ls.Add(take, n.takes, "take", func() loop.Next { return t.takeStep(take, takeCalls, first) }, as.taking, &t.stay.fetching)
	l.takeMore = ls.Add(takeMore, n.takes, "take", func() loop.Next { return t.takeMoreStep(takeMore, takeMoreCalls, second) }, as.taking, &t.stay.fetching)
	l.settle = ls.Add(ends, n.settles, "settle", func() loop.Next { return t.settleStep(ends, one, 1) }, as.working, &t.stay.working)
	l.settleMore = ls.Add(endsMore, n.settles, "settle", func() loop.Next { return t.settleStep(endsMore, more, settle.Pile) }, as.working, &t.stay.working)
	l.relay = ls.Add(relay, n.relays, "relay", func() loop.Next { return t.relayStep(relay) }, as.working, &t.stay.working)
	l.extend = ls.Add(extend, n.extends, "extend", func() loop.Next { return t.extendStep(extend) }, as.working, &t.stay.working)
	l.note = ls.Add(note, n.notes, "note", func() loop.Next { return t.noteStep(note) }, as.working, &t.stay.working)
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
	timeout time.Duration  // default: CallTimeout
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
