package delayq

import (
	"context"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// promoteLimit is the most jobs that one call promotes. With a higher limit, other calls slow
	// down when a million jobs fall due together.
	promoteLimit = 250

	// pruneEvery is how often a server looks for dead and done jobs that are past their retention.
	// pruneLimit is the most jobs that one call removes.
	pruneEvery = 10 * time.Second
	pruneLimit = 500

	// prunedEvery is the shortest time between two log lines about removed dead jobs.
	prunedEvery = time.Minute

	// nothingDue is the wait of a topic without due times, leases and slots.
	nothingDue = time.Duration(math.MaxInt64)
)

// promoteLoop is the timer of a topic. It promotes due jobs and sleeps until the next due time or
// lease end, at most for one tick. An earlier job wakes it. Every server runs this loop; a server
// finds the work of another one done. A tick is shortened by up to a tenth, so that servers that
// started together, or were woken by the same job, do not stay in step.
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
			healed = time.Time{} // an ID in handoff may have ended the sleep
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

// promote is one call of the promote script. It returns the number of jobs moved, of the kind with
// more, and how long until there is work again. due is the number of schedules with a due slot, and
// held the number of those with a waiting slot.
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
		t.trouble.log.Warn("leases reclaimed", "count", n)
	}
	return int(max(r.number(2), r.number(3))), waitOf(r.number(4)), int(r.number(5)), int(r.number(6)), nil
}

// waitOf reads a wait in µs from a script's reply. A wait of more than 292 years counts as none,
// because only a manual edit can have caused it.
func waitOf(us int64) time.Duration {
	if us < 0 || us > int64(nothingDue/time.Microsecond) {
		return nothingDue
	}
	return time.Duration(us) * time.Microsecond
}
