package serve

import (
	"context"
	"errors"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// setDefaultLimits stores the limits that the topic gets if it has none. It reports false if that
// failed and must be repeated before the first take. Only the take loop calls it.
func (t *Topic) setDefaultLimits(ctx context.Context) bool {
	if t.taking.limits == "" {
		return true
	}
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	err := t.Server.Calls.HSetNX(call, t.Keys.Meta, "flow", t.taking.limits).Err()
	t.trouble.note("default limits", err)
	if err != nil && script.Away(err) {
		return false
	}
	t.taking.limits = "" // after another error, which is in the log, the topic has no limits
	return true
}

// setBounded notes whether the topic has limits. When it gets some, jobs taken ahead go back.
func (t *Topic) setBounded(bounded bool) {
	t.Mu.Lock()
	before := t.Workers.Bounded
	t.Workers.Bounded = bounded
	t.Mu.Unlock()
	if bounded && !before {
		t.GiveBack(errBounded)
	}
}

// errBounded is the reason why a job taken ahead is given back when its topic gets limits.
var errBounded = errors.New("the topic has limits")

// placeFreed makes a taker that waits for the limits of the topic ask again, because a job has
// ended.
func (t *Topic) placeFreed() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if t.Workers.Bounded && t.latches.resumed.give() {
		t.Loops.take.Wake()
	}
}

// passPlaces is placeFreed for a server that takes no more jobs: it wakes the others. It reports
// whether it has done so.
func (t *Topic) passPlaces(ctx context.Context) bool {
	t.Mu.Lock()
	pass := t.Workers.Bounded && t.Workers.Stopping
	t.Mu.Unlock()
	if pass {
		t.tellPlaces(ctx)
	}
	return pass
}

// placesReclaimed wakes all servers after leases have lapsed. Those that had them take no more
// jobs, and this one may have no idle worker.
func (t *Topic) placesReclaimed(ctx context.Context) {
	t.Mu.Lock()
	bounded := t.Workers.Bounded
	t.Mu.Unlock()
	if bounded {
		t.tellPlaces(ctx)
	}
}

// tellPlaces makes all takers of the topic ask again, those of this server too. A lost message
// costs them a tick.
func (t *Topic) tellPlaces(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	_ = t.Server.Calls.Publish(call, script.ControlChannel(t.Keys.Prefix()), record.Message{Verb: "resume", Topic: t.Keys.Topic}.Encode()).Err()
}
