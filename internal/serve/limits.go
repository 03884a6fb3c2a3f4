package serve

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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
	err := t.giveDefaultLimits(call)
	t.trouble.note("default limits", err)
	if err != nil && script.Away(err) {
		return false
	}
	t.taking.limits = "" // after another error, which is in the log, the topic has no limits
	return true
}

// giveDefaultLimits gives the topic the limits that it has by default, if it has none. They are
// those of the home: a partition gets its share of what the home has.
func (t *Topic) giveDefaultLimits(ctx context.Context) error {
	home := cmp.Or(t.config.home, t)
	// As the limits script does. The note comes first, because without it the places of cancelled
	// jobs are not kept. It must not stand beside limits that somebody has taken away.
	whole, _, err := home.limitsNow(ctx)
	if err != nil || whole != "" && !limits(whole) {
		return err
	}
	if err := t.Server.Calls.HSet(ctx, home.Keys.Sizes, "limits", 1).Err(); err != nil {
		return err
	}
	if whole == "" {
		if _, err = t.Server.Calls.HSetNX(ctx, home.Keys.Meta, "flow", t.taking.limits).Result(); err != nil {
			return err
		}
		if home.Loops.parts.have() != nil {
			home.askParts() // they are to be divided
		}
	}
	if t.config.home == nil {
		return nil
	}
	return t.takeShare(ctx)
}

// setBounded notes whether the topic has limits. When it gets some, jobs taken ahead go back.
func (t *Topic) setBounded(bounded bool) {
	t.Mu.Lock()
	w := &t.Workers
	before := w.Bounded
	if w.Bounded = bounded; bounded != before {
		w.Places, w.Unsure = bounded, bounded
	}
	t.Mu.Unlock()
	if bounded && !before {
		t.GiveBack(errBounded)
	}
}

// bounded reports whether the topic has limits, as far as is known.
func (t *Topic) bounded() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Workers.Bounded
}

// setFar notes that the limits of the topic were far away, as the reply to a take that was sent at
// that time says.
func (t *Topic) setFar(sent time.Time) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Workers.Far = t.Workers.Far || !sent.Before(t.Workers.near)
}

// setNear notes that the limits of the topic are not far away. When they come near, jobs taken
// ahead go back: they use up starts and places that others may need. For a tenth of a tick, none
// are taken then, so that this does not alternate.
func (t *Topic) setNear() {
	t.Mu.Lock()
	came := t.comeNearLocked(t.Server.Config.Tick / 10)
	t.Mu.Unlock()
	if came {
		t.GiveBack(errBounded)
	}
}

// comeNearLocked notes that limits are not far away, whatever replies to takes say that are sent
// before d from now. It reports whether they were far away before. If not, only 0 has an effect.
func (t *Topic) comeNearLocked(d time.Duration) (came bool) {
	w := &t.Workers
	if came = w.Far; came || d == 0 {
		if near := time.Now().Add(d); near.After(w.near) {
			w.near = near
		}
	}
	w.Far = false
	return came
}

// recheckFar gives back the jobs of a take that have no worker, if limits have come near, or were
// set, since it was executed. What gave back the others may have come before they were admitted.
func (t *Topic) recheckFar() {
	t.Mu.Lock()
	w := &t.Workers
	near := w.Bounded && !w.Far && len(w.Next) > max(0, w.Idle()-len(w.Later))*w.Seat()
	t.Mu.Unlock()
	if near {
		t.GiveBack(errBounded)
	}
}

// noteBounds notes what the reply to a take of jobs says of limits. It returns when the jobs must
// have started; zero: at any time. The reply to a repeated request does not say what ended the
// take, or whether it parked keys, so what was known before it counts.
func (k *taker) noteBounds(r script.Reply, sent time.Time, repeated bool) (by time.Time) {
	t, bound := k.topic, r.Text(9)
	if bound != "rate" && r.Number(10) > 0 {
		by = k.asked.Add(k.ahead)
	}
	if bound != "" || !repeated {
		t.setBounded(bound != "")
		if bound == "far" {
			t.setFar(sent)
		} else {
			t.setNear()
		}
		t.setKeysLimited(r.Number(11), true)
	} else {
		t.doubtLimits()
		t.wake()
	}
	return by
}

// spaced reports whether the server starts each job of a take at the time that its rates name. A
// batch starts as one. A worker of a pool must not wait while another topic needs it. With a clock
// of Redis that does not move by itself, no time comes.
func (t *Topic) spaced() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Workers.PerCall == 0 && t.Workers.Member == nil && !t.Server.Config.Stepped
}

// ripenLocked queues the jobs whose time has come, and sets the timer to the next one.
func (t *Topic) ripenLocked() {
	w := &t.Workers
	if len(w.Later) == 0 {
		return
	}
	now := time.Now()
	next := w.Ripen(now)
	switch {
	case next.IsZero():
	case w.later == nil:
		w.later = time.AfterFunc(next.Sub(now), func() {
			t.Mu.Lock()
			defer t.unlock()
			t.ripenLocked()
			t.startWorkerLocked()
		})
	default:
		w.later.Reset(next.Sub(now))
	}
}

// errBounded is the reason why a job taken ahead is given back when its topic gets limits.
var errBounded = errors.New("the topic has limits")

// doubtLimits notes that the topic may have other limits than those known.
func (t *Topic) doubtLimits() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.doubtLimitsLocked()
}

func (t *Topic) doubtLimitsLocked() {
	w := &t.Workers
	w.KeysLimited, w.Places, w.Unsure = true, true, true // until they are known
}

// lookUpPlaces finds out whether the topic has a limit of running jobs, after its limits may have
// changed. Takes do not say: one that gets all that it asks for can have used the last place.
// Without a reply, there may be one. Only the take loop calls it.
func (t *Topic) lookUpPlaces(ctx context.Context) {
	t.Mu.Lock()
	ask := t.Workers.Unsure
	t.Workers.Unsure = false
	t.Mu.Unlock()
	if !ask {
		return
	}
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	flow, err := t.Server.Calls.HGet(call, t.Keys.Meta, "flow").Result()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	running, _, _ := strings.Cut(flow, " ")
	t.Mu.Lock()
	defer t.Mu.Unlock()
	switch {
	case err != nil:
		t.Workers.Unsure = true
	case !t.Workers.Unsure: // no other change meanwhile
		t.Workers.Places = strings.Trim(running, "0") != ""
	}
}

// hasPlaces reports whether there may be a limit of running jobs.
func (t *Topic) hasPlaces() bool {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return t.Workers.Places
}

// placeFreed makes the first taker ask again, because a running job of the topic has ended: if it
// waits for that, or for jobs. Another server may have been refused a job that waits for this
// place, and nobody else is told of it.
func (t *Topic) placeFreed() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if t.latches.place.give() {
		t.Loops.take.Wake()
	}
}

// passPlaces wakes the other servers, because a running job of the topic has ended and this server
// cannot take another one: it is stopping, or has no worker for it. It reports whether it has done
// so.
func (t *Topic) passPlaces(ctx context.Context) bool {
	t.Mu.Lock()
	w := &t.Workers
	// While limits are far away and jobs taken ahead use its places, hardly anybody is refused one.
	now := time.Now()
	rarely := w.Far && len(w.Next) > 0 && now.Before(w.passed.Add(t.Server.Config.Tick/10))
	pass := w.Bounded && w.Stopping || w.Places && !w.CanTake() && !rarely
	if pass {
		w.passed = now
	}
	t.Mu.Unlock()
	if pass {
		t.tellPlaces(ctx)
	}
	return pass
}

// aPlace, where other messages have a fence, says that a resume is about a place only: limits,
// pauses and holds are as they were. Otherwise a server that gets it would look up the limits, take
// them for changed meanwhile, and send another one.
const aPlace = "1"

// tellPlaces makes all takers of the topic ask again, those of this server too. A lost message
// costs them a tick.
func (t *Topic) tellPlaces(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	_ = t.Server.Calls.Publish(call, script.ControlChannel(t.Keys.Prefix()), record.Message{Verb: "resume", Fence: aPlace, Topic: t.Keys.Topic}.Encode()).Err()
}

// restForPlace makes the loop rest until a running job of the topic has ended.
func (k *taker) restForPlace() {
	k.placed, k.rest = true, k.topic.Server.Config.Tick
	k.topic.Mu.Lock()
	k.topic.Workers.Places, k.topic.Workers.Unsure = true, false
	k.topic.Mu.Unlock()
}

// restForStart makes the loop rest until the time when Redis has told the server to take again, or
// until an earlier one that it has told before: the answer to a request that came too early can
// name a later one.
//
// Redis computed the wait at least the travel time of the reply earlier. The next request arrives
// at least its own travel time after it is sent. So a request that is sent at the end of the wait,
// less the shortest round trip, does not come too early, and is not late by the length of the link.
func (k *taker) restForStart(us int64) {
	start := k.replied.Add(time.Duration(us)*time.Microsecond - k.trip)
	if !k.start.After(k.replied) || start.Before(k.start) {
		k.start = start
	}
	k.rated = true
	k.rest = min(max(k.start.Sub(k.replied), 0), k.topic.Server.Config.Tick)
}
