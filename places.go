package delayq

import (
	"context"
	"errors"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// setDefaultLimits stores the limits that the topic gets if it has none. It reports false if that
// failed and must be repeated before the first take. Only the take loop calls it.
func (t *topicServer) setDefaultLimits(ctx context.Context) bool {
	if t.limits == "" {
		return true
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := t.server.calls.HSetNX(call, t.keys.Meta, "flow", t.limits).Err()
	t.trouble.note("default limits", err)
	if err != nil && script.Away(err) {
		return false
	}
	t.limits = "" // after another error, which is in the log, the topic has no limits
	return true
}

// setBounded notes whether the topic has limits. When it gets some, jobs taken ahead go back.
func (t *topicServer) setBounded(bounded bool) {
	t.mu.Lock()
	before := t.workers.Bounded
	t.workers.Bounded = bounded
	t.mu.Unlock()
	if bounded && !before {
		t.giveBack(errBounded)
	}
}

// errBounded is the reason why a job taken ahead is given back when its topic gets limits.
var errBounded = errors.New("the topic has limits")

// placeFreed makes a taker that waits for the limits of the topic ask again, because a job has
// ended.
func (t *topicServer) placeFreed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.workers.Bounded && t.resumed.give() {
		t.loops.take.Wake()
	}
}

// passPlaces is placeFreed for a server that takes no more jobs: it wakes the others. It reports
// whether it has done so.
func (t *topicServer) passPlaces(ctx context.Context) bool {
	t.mu.Lock()
	pass := t.workers.Bounded && t.workers.Stopping
	t.mu.Unlock()
	if pass {
		t.tellPlaces(ctx)
	}
	return pass
}

// placesReclaimed wakes all servers after leases have lapsed. Those that had them take no more
// jobs, and this one may have no idle worker.
func (t *topicServer) placesReclaimed(ctx context.Context) {
	t.mu.Lock()
	bounded := t.workers.Bounded
	t.mu.Unlock()
	if bounded {
		t.tellPlaces(ctx)
	}
}

// tellPlaces makes all takers of the topic ask again, those of this server too. A lost message
// costs them a tick.
func (t *topicServer) tellPlaces(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_ = t.server.calls.Publish(call, script.ControlChannel(t.keys.Prefix()), record.Message{Verb: "resume", Topic: t.keys.Topic}.Encode()).Err()
}
