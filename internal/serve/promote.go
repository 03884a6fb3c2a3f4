package serve

import (
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

const (
	// promoteLimit is the most jobs that one call promotes. With a higher limit, other calls slow
	// down when a million jobs fall due together.
	promoteLimit = 250

	// PruneEvery is how often a server looks for dead and done jobs that are past their retention.
	// PruneLimit is the most jobs that one call removes. A server of many topics only looks which
	// of them need that, and prunes all of them once an hour.
	PruneEvery = 10 * time.Second
	PruneAll   = time.Hour
	PruneLimit = 500

	// prunedInVain is the most prunes in a row that find only dead jobs of a later release. Each
	// may read 1 MiB of records.
	prunedInVain = 20

	// prunedEvery is the shortest time between two log lines about removed dead jobs.
	prunedEvery = time.Minute

	// endedPatience is how long a slot that waits for a run may go unnoticed after that has ended.
	endedPatience = 5 * time.Millisecond

	// nothingDue is the wait of a topic without due times, leases and slots.
	nothingDue = time.Duration(math.MaxInt64)
)

// promoteStep is a step of the loop that is the timer of a topic. It promotes due jobs, and rests
// until the next due time or lease end, at most for one tick. An earlier job wakes it. Every server
// has this loop, and another server may have promoted the jobs already. A tick is shortened by up
// to a tenth, so that servers that started together, or were woken by the same job, do not stay in
// step.
func (t *Topic) promoteStep(ctx context.Context) loop.Next {
	at := &t.promoting.timer
	if ctx.Err() != nil {
		t.Server.watch.remove(t)
		t.promoting.Firer.Warn(false)
		t.promoting.pruner.warn(t.trouble.log)
		return loop.Over
	}
	woken := t.promoting.timer.woken.Swap(false)
	if rest := t.Server.watch.left(t); rest > 0 && !woken && !at.ended.Load() {
		// the survey has woken the topic
		if t.pruneDue(ctx) {
			return loop.Again
		}
		return loop.RestFor(rest)
	}
	if t.Server.watch.remove(t) {
		at.healed = time.Time{} // an ID in handoff may have ended the rest
	}
	if t.stay.late && !t.stay.found {
		t.stay.late = t.Server.noteLate(ctx, t) != nil
	}
	asked := t.promoting.look.take()
	if len(asked) == 0 && !woken && t.firesAlone(at) {
		return t.fireNext(ctx, at)
	}
	if _, known := t.promoting.Firer.Next(); woken || !known {
		t.promoting.Firer.Forget() // there may be earlier slots
	}
	wait, alone, err := t.promoteOnce(ctx, at, asked)
	if err != nil {
		t.promoting.look.keep(asked)
		return loop.PauseFor(at.slow.Next())
	}
	at.slow.Reset()
	switch {
	case wait <= 0:
		return loop.Again
	case alone && wait > t.Server.Config.Tick && t.Server.sharesTick():
		return loop.RestFor(t.Server.watch.add(t, wait))
	}
	// Measured from the last promote that looked at everything, so that wake-ups do not put off the
	// next one.
	at.next = time.Now().Add(min(wait, max(time.Millisecond, t.tick()-time.Since(at.healed))))
	return t.restOfTimer(at)
}

// restOfTimer is the rest until the next promote, or until the firer fires slots before it.
func (t *Topic) restOfTimer(at *timer) loop.Next {
	next := at.next
	if fires, known := t.promoting.Firer.Next(); known && fires.Before(next) {
		next = fires
	}
	return loop.RestFor(max(0, time.Until(next)))
}

// firesAlone reports whether a step has nothing to do but to fire slots that are known. After runs
// of schedules have ended, a slot can wait for that. Then the step promotes, unless it fires soon
// anyway: that finds the slot too.
func (t *Topic) firesAlone(at *timer) bool {
	now := time.Now()
	fires, known := t.promoting.Firer.Next()
	if !known || !now.Before(at.next) {
		return false
	}
	return !at.ended.Swap(false) || !t.promoting.Firer.Waits.Load() && fires.Sub(now) <= endedPatience
}

// fireNext is a step of the loop that only fires slots.
func (t *Topic) fireNext(ctx context.Context, at *timer) loop.Next {
	f := t.promoting.Firer
	if fires, _ := f.Next(); time.Now().Before(fires) {
		return t.restOfTimer(at)
	}
	t.turn(TurnPromote)
	t.rememberEnded()
	again := false
	t.firing(func() { again = f.FireNext(ctx) })
	if again {
		at.next = time.Now()
	} else if next, known := f.Next(); !known && !next.IsZero() && next.Before(at.next) {
		at.next = next
	}
	return t.restOfTimer(at)
}

// firing calls f, which fires slots and so can call calendars.
func (t *Topic) firing(f func()) {
	if len(t.Server.Config.Calendars) > 0 {
		t.outside(t.Loops.promote, f)
	} else {
		f()
	}
}

// rememberEnded tells the firer which runs of schedules have ended. It comes before the call that
// counts the waiting slots: if that counts none, none waits for one of these runs.
func (t *Topic) rememberEnded() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.promoting.Firer.Remember(t.ended.schedules.Take())
}

// wake makes the topic promote, because a job may be due earlier than is known.
func (t *Topic) wake() {
	t.promoting.timer.woken.Store(true)
	t.Loops.promote.Wake()
}

// wakeForEnded makes the topic look whether slots wait for runs that have ended.
func (t *Topic) wakeForEnded() {
	t.promoting.timer.ended.Store(true)
	t.Loops.promote.Wake()
}

// noteSlotOf notes that a job which did not end on this server no longer keeps a slot of its
// schedule waiting. An empty ID is that of no job.
func (t *Topic) noteSlotOf(id string) {
	if id == "" {
		return
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.ended.schedules.Note(id)
}

// A timer is what that loop remembers from one step to the next.
type timer struct {
	woken  atomic.Bool // a job may be due earlier than is known
	ended  atomic.Bool // runs of schedules have ended
	healed time.Time   // the last promote that looked at everything
	next   time.Time   // of the next promote
	slow   loop.Pace
}

// tick returns the longest rest of the loop.
func (t *Topic) tick() time.Duration {
	tick := t.Server.Config.Tick
	return tick - rand.N(tick/10).Truncate(time.Millisecond)
}

// promoteOnce promotes, fires and prunes once. It returns how long the topic has nothing to do; 0
// if there may be more to do now. alone reports whether no schedule needs the topic before then, so
// that the watch can take over the ticks. If somebody has asked, it looks at everything.
func (t *Topic) promoteOnce(ctx context.Context, at *timer, asked []chan sight) (wait time.Duration, alone bool, err error) {
	t.turn(TurnPromote)
	at.next = time.Time{}
	at.ended.Store(false)
	t.rememberEnded()
	tick := t.Server.Config.Tick
	heal := time.Since(at.healed) >= tick-tick/10 || len(asked) > 0
	if len(asked) > 0 {
		t.promoting.Firer.LookAgain()
		t.promoting.pruner.due.Store(true)
	}
	p, err := t.Promote(ctx, heal)
	if err != nil {
		return 0, false, err
	}
	if heal {
		at.healed = time.Now()
	}
	again := p.moved >= promoteLimit
	f := t.promoting.Firer
	t.firing(func() { again = f.Fire(ctx, p.Due, p.Waiting) && !f.Knows() || again })
	if t.pruneDue(ctx) || again {
		answer(asked, sight{busy: true})
		return 0, false, nil
	}
	answer(asked, p.sight())
	fires, known := f.Next()
	alone = p.Due+p.Waiting == 0 && f.Quiet() && !known
	wait = p.wait
	if known {
		wait = p.rest // the firer knows of the slots
	} else if !fires.IsZero() {
		wait = min(wait, fires.Sub(p.replied))
	}
	return max(1, wait-time.Since(p.replied)), alone, nil
}

// promoted is the reply of the promote script.
type promoted struct {
	moved   int           // number of jobs moved, of the kind with more
	wait    time.Duration // how long after the reply there is work again
	replied time.Time     // when the reply arrived
	Due     int           // schedules with a due slot
	Waiting int           // schedules with a waiting slot
	now     int64         // Redis's clock in ms
	rest    time.Duration // wait without the slots
}

// sight returns what a promote has seen.
func (p promoted) sight() sight {
	s := sight{busy: p.moved+p.Due > 0}
	if p.wait < nothingDue {
		s.next = time.UnixMilli(p.now).Add(p.wait).UnixMicro()
	}
	return s
}

// Promote is one call of the promote script.
func (t *Topic) Promote(ctx context.Context, heal bool) (promoted, error) {
	flag := 0
	if heal {
		flag = 1
	}
	r, err := t.exec(ctx, topicCall{script: script.Promote, jobs: promoteLimit, outlives: true}, promoteLimit, flag, script.ControlChannel(t.Keys.Prefix()), t.Keys.Topic)
	if err != nil {
		return promoted{}, err
	}
	replied := time.Now()
	if n := r.Number(3); n > 0 {
		t.trouble.log.Warn("leases reclaimed", "count", n)
		t.tellPlaces(ctx) // those that had them take no more jobs, and this server may have no worker
	}
	if r.Number(8) > 0 {
		t.wakeRelay()
	}
	return promoted{int(max(r.Number(2), r.Number(3))), waitOf(r.Number(4)), replied, int(r.Number(5)), int(r.Number(6)), r.Now(), waitOf(r.Number(7))}, nil
}

// waitOf reads a wait in µs from a script's reply. A wait of more than 292 years counts as none,
// because only a manual edit can have caused it.
func waitOf(us int64) time.Duration {
	if us < 0 || us > int64(nothingDue/time.Microsecond) {
		return nothingDue
	}
	return time.Duration(us) * time.Microsecond
}
