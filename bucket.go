package delayq

import (
	"context"
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
	var slow retryPace
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
	flag := 0
	if heal {
		flag = 1
	}
	r, err := t.exec(ctx, topicCall{script: promoteScript, jobs: promoteLimit, outlives: true}, promoteLimit, flag)
	if err != nil {
		return 0, 0, 0, 0, err
	}
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
