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
	if rest := t.Server.watch.left(t); rest > 0 && !woken {
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
	return loop.RestFor(min(wait, max(time.Millisecond, t.tick()-time.Since(at.healed))))
}

// wake makes the topic promote, because a job may be due earlier than is known.
func (t *Topic) wake() {
	t.promoting.timer.woken.Store(true)
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
	healed time.Time   // the last promote that looked at everything
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
	t.Mu.Lock()
	// Before promote counts the waiting slots: if it counts none, none waits for one of these runs.
	t.promoting.Firer.Remember(t.ended.schedules.Take())
	t.Mu.Unlock()
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
	fire := func() { again = t.promoting.Firer.Fire(ctx, p.Due, p.Waiting) || again }
	if len(t.Server.Config.Calendars) > 0 {
		t.outside(t.Loops.promote, fire)
	} else {
		fire()
	}
	if t.pruneDue(ctx) || again {
		answer(asked, sight{busy: true})
		return 0, false, nil
	}
	answer(asked, p.sight())
	alone = p.Due+p.Waiting == 0 && t.promoting.Firer.Quiet()
	return max(1, p.wait-time.Since(p.replied)), alone, nil
}

// promoted is the reply of the promote script.
type promoted struct {
	moved   int           // number of jobs moved, of the kind with more
	wait    time.Duration // how long after the reply there is work again
	replied time.Time     // when the reply arrived
	Due     int           // schedules with a due slot
	Waiting int           // schedules with a waiting slot
	now     int64         // Redis's clock in ms
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
	return promoted{int(max(r.Number(2), r.Number(3))), waitOf(r.Number(4)), replied, int(r.Number(5)), int(r.Number(6)), r.Now()}, nil
}

// waitOf reads a wait in µs from a script's reply. A wait of more than 292 years counts as none,
// because only a manual edit can have caused it.
func waitOf(us int64) time.Duration {
	if us < 0 || us > int64(nothingDue/time.Microsecond) {
		return nothingDue
	}
	return time.Duration(us) * time.Microsecond
}
