package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// promoteLimit is the most jobs that one call promotes: with more, others feel it when a million fall due at once.
	promoteLimit = 250

	// pruneEvery is how often a server looks for dead and done jobs that have been kept long enough, and pruneLimit the most it
	// removes in one call.
	pruneEvery = 10 * time.Second
	pruneLimit = 500

	// prunedEvery is the shortest time between two lines in the log about dead jobs that were removed.
	prunedEvery = time.Minute

	// nothingDue is how long a topic without due times, leases and slots may wait.
	nothingDue = time.Duration(math.MaxInt64)
)

// promoteLoop is the timer of a topic: it promotes what is due, sleeps until the next due time or lease end, at most for a tick, and is
// woken when a job comes that is due earlier. Every server runs it; what one has promoted the others find done. A tick is cut short by up to a
// tenth, so that servers that were started together, or woken by the same job, do not go on in step.
func (t *topicServer) promoteLoop(ctx context.Context) {
	defer func() { t.firer.warn(t.trouble.log, false) }()
	defer func() { t.pruner.warn(t.trouble.log) }()
	var slow pace
	var healed, pruned time.Time
	tick := t.server.o.tick
	for ctx.Err() == nil {
		t.turn(loopPromote)
		t.noteEnded()
		heal := time.Since(healed) >= tick-tick/10
		moved, wait, due, held, err := t.promote(ctx, heal)
		if err != nil {
			sleep(ctx, slow.next())
			continue
		}
		slow.reset()
		if heal {
			healed = time.Now()
		}
		again := t.fire(ctx, due, held) || moved >= promoteLimit
		began := time.Now()
		if t.pruneDue(ctx, &pruned) || again {
			continue
		}
		wait -= time.Since(began)
		if wait > tick && due+held == 0 && len(t.firer.missed) == 0 && t.server.watches() {
			t.sleepWatched(ctx, wait, &pruned)
			healed = time.Time{} // it may be a handoff that has woken us
			continue
		}
		t.sleepUntilDue(ctx, min(wait, tick-rand.N(tick/10).Truncate(time.Millisecond)))
	}
}

// pruneDue prunes if it is time to, and reports whether there is more to be pruned.
func (t *topicServer) pruneDue(ctx context.Context, pruned *time.Time) (more bool) {
	now := t.clock.at(time.Now())
	if now.Sub(*pruned).Abs() < pruneEvery {
		return false
	}
	dead, full, err := t.prune(ctx)
	if more = err == nil && full; !more {
		*pruned = now // a failure is in the log; the next turn is soon enough
	}
	t.pruner.note(t.trouble.log, dead, more)
	return more
}

// A pruner is what a topic remembers from one call of the prune script to the next. Only the promote loop uses it.
type pruner struct {
	lane   *lane
	number string // of a call whose answer has not come: it is made again until it has, for the dead that it may have removed

	dead   int       // jobs removed that are not in the log yet
	since  time.Time // when the first of them was
	warned time.Time // the last line in the log
}

// note takes how many dead jobs a call has removed, and logs their number: one line for all that go in one turn, and one a
// minute at most.
func (p *pruner) note(log *slog.Logger, dead int, more bool) {
	now := time.Now()
	if dead > 0 && p.dead == 0 {
		p.since = now
	}
	p.dead += dead
	if now.Sub(p.warned) >= prunedEvery && (!more || now.Sub(p.since) >= prunedEvery) {
		p.warn(log)
	}
}

// warn logs how many dead jobs have been removed since the last line.
func (p *pruner) warn(log *slog.Logger) {
	if p.dead > 0 {
		log.Warn("prune", "count", p.dead)
		p.dead, p.warned = 0, time.Now()
	}
}

func (t *topicServer) sleepUntilDue(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.wake:
	case <-ctx.Done():
	}
}

// promote is one call of the promote script: how many jobs of one kind it moved at most, how long until it has something to do again, how many
// schedules have a slot that is due, and how many have one that waits.
func (t *topicServer) promote(ctx context.Context, heal bool) (moved int, wait time.Duration, due, held int, err error) {
	call, cancel := context.WithTimeout(t.base, callTimeout)
	defer cancel()
	k := t.keys
	flag := 0
	if heal {
		flag = 1
	}
	sent := time.Now()
	r, err := t.server.call.call(call, promoteScript, k.topic, promoteLimit, names(
		k.bucket, k.ready, k.leases, k.pool, k.attempts, k.errors, k.moved, k.handoff, k.stats, k.slots, k.waiting, k.runs,
	), promoteLimit, flag)
	if ctx.Err() != nil {
		return 0, 0, 0, 0, ctx.Err()
	}
	t.trouble.note("promote", err)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	t.clock.read(r.now(), sent, time.Now())
	if n := r.number(3); n > 0 {
		t.trouble.log.Warn("reclaim", "count", n)
	}
	return int(max(r.number(2), r.number(3))), waitOf(r.number(4)), int(r.number(5)), int(r.number(6)), nil
}

// waitOf reads a wait in µs that a script has answered. One of more than 292 years, until a time that only a hand can have written, is as good as none.
func waitOf(us int64) time.Duration {
	if us < 0 || us > int64(nothingDue/time.Microsecond) {
		return nothingDue
	}
	return time.Duration(us) * time.Microsecond
}

// prune is one call of the prune script: how many dead jobs it removed, and whether it removed as many of one kind as a call may.
func (t *topicServer) prune(ctx context.Context) (dead int, full bool, err error) {
	call, cancel := context.WithTimeout(t.base, callTimeout)
	defer cancel()
	k, o, p := t.keys, &t.server.o, &t.pruner
	if p.lane == nil {
		p.lane = newLane()
	}
	if p.number == "" {
		p.number = p.lane.next()
	}
	sent := time.Now()
	r, err := t.server.call.call(call, pruneScript, k.topic, pruneLimit, append(names(
		k.pool, k.dead, k.attempts, k.errors, k.moved, k.done, k.results, k.stats, k.bucket, k.leases, k.ready, k.handoff, k.sizes,
	), p.lane.receipt(k)), p.number, o.deadCount, o.deadAge.Milliseconds(), pruneLimit)
	if err == nil || certain(err) {
		p.number = ""
	}
	dead = int(r.number(2))
	done := int(r.number(3))
	if dead+done > 0 {
		t.server.o.hooks.firePruned(PruneEvent{Topic: k.topic, Dead: dead, Done: done})
	}
	full = max(dead, done, int(r.number(6))) >= pruneLimit
	if ctx.Err() != nil {
		return dead, full, ctx.Err()
	}
	if wrong := r.list(5).texts(); err == nil && len(wrong) > 0 {
		t.trouble.note("prune", fmt.Errorf("prune topic %q: %w", k.topic, t.server.call.blame(call, wrongKeys(wrong), names(wrong...)...)))
	} else {
		t.trouble.note("prune", err)
	}
	if err == nil {
		t.clock.read(r.now(), sent, time.Now())
	}
	if missing := r.number(4); missing > 0 {
		t.server.alarm(t)
	}
	return dead, full, err
}
