package serve

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

const (
	// aside is the number of jobs from which they are admitted concurrently with the next take.
	// Admitting that many takes as long as Redis needs for a take.
	aside = 100

	// hugeRecord is the size of a record, in bytes, beyond which Redis needs about 20 ms for it.
	// Larger records are taken one at a time, by one taker.
	hugeRecord = 4 * script.CallBytes

	// takeTimeoutMost is the longest that a take waits for its reply.
	takeTimeoutMost = time.Minute

	// stopPatience is how long the takes of a stopped server wait for their replies.
	stopPatience = time.Second

	// WaitTimeout is how long a blocking pop waits. waitMargin is how much later its reply can
	// arrive before the connection counts as dead.
	WaitTimeout = 4 * time.Second
	WaitMargin  = 2 * time.Second
)

// A taker makes takes, one after the other, in a loop. A topic has two takers, each with a receipt
// of its own. The second one works beside the first while many more jobs are ready than one call
// takes. So Redis has work while a server reads the reply to the other take. Huge records have one
// taker.
//
// A take without a reply may have been executed, or its reply may be too large for the link. So the
// taker repeats it for half of the jobs and bytes, and with twice the timeout if Redis replies to
// other calls. The script returns as many of the taken jobs, with new leases, and puts the others
// back. This continues down to one job. So as long as the server reaches Redis, no job's lease runs
// out because its record has not arrived. Fast replies make the takes grow again.
type taker struct {
	topic   *Topic
	receipt string
	number  uint64 // of the last call
	since   uint64 // of the first call without a reply; 0: none
	// n is the number of jobs that room is kept for, and free how many of them can start
	// immediately.
	n, free int
	halved  int           // how often the share of a call is halved
	timeout time.Duration // how long the next call waits for its reply
	// Of a topic that is paused, held or limited: how long after the reply it may run again, at
	// most until it is looked at again.
	rest    time.Duration
	replied time.Time     // when the last reply arrived
	trip    time.Duration // of the fastest takes of late
	paused  bool
	start   time.Time // of a limited topic: when this server was told to take again
	rated   bool      // the rate of the topic made it rest
	placed  bool      // its limit of running jobs did
	next    int64     // by Redis's clock in µs: when the topic may run again, by the last reply; 0: unknown
	// When the call since was sent, and how long its jobs may wait for a worker.
	asked time.Time
	ahead time.Duration
	// of the first taker of a topic that is rung: the name under which it waits for jobs
	name      string
	waits     bool // by the last reply, the server is among those that wait
	got       int  // jobs in the last reply
	slow      loop.Pace
	patience  time.Time      // when jobs taken ahead are given back; zero: not
	admitting sync.WaitGroup // the jobs of the last call, if they are many
}

func (t *Topic) newTaker(receipt string) *taker {
	k := &taker{topic: t, receipt: receipt}
	k.timeout = k.least()
	return k
}

// least and most bound the timeout of a call. The leases in a later reply are nearly over.
func (k *taker) least() time.Duration {
	s := k.topic.Server
	return min(s.answerTimeout, s.Config.Lease/3)
}

func (k *taker) most() time.Duration {
	return max(k.least(), min(takeTimeoutMost, 2*k.topic.Server.Config.Lease/3))
}

// afterTake is what a taker does after a take.
type afterTake int

const (
	takeAgain  afterTake = iota // take again: there may be more
	takeWait                    // wait for a job
	takeRoom                    // wait for an idle worker
	takeRest                    // the topic is paused or held
	takeBound                   // the limits of the topic are reached
	takeFailed                  // the call was not executed
)

// takeStep is a step of the first taker's loop. It takes jobs as long as there are idle workers.
// Otherwise it waits for a job, for an idle worker or for the end of a pause. After the end of ctx,
// jobs that are not running are given back.
func (t *Topic) takeStep(ctx, work context.Context, first *taker) loop.Next {
	t.turn(turnTake)
	if ctx.Err() != nil {
		over := first.leave(work)
		if over.Over {
			t.stopWaiting(work, first.name)
		}
		return over
	}
	rung, sought := t.taking.ring.rung.Swap(false), t.taking.ring.sought.Swap(false)
	asked := t.taking.look.take()
	if wait, rests := first.stillRests(); rests && len(asked) == 0 {
		return wait
	}
	t.rested()
	if !t.setDefaultLimits(work) {
		t.keepRing(rung)
		t.taking.look.keep(asked)
		return loop.PauseFor(first.slow.Next())
	}
	if wait, waits := first.stillWaits(); waits {
		answer(asked, sight{busy: true})
		t.passOn(ctx, rung)
		return wait
	}
	first.name = t.waitingName()
	t.taking.ring.used.Store(first.name != "")
	did, pause := first.take(work, false)
	if did == takeFailed {
		t.taking.look.keep(asked)
	} else {
		answer(asked, sight{busy: first.got > 0 || did == takeAgain || did == takeRoom, next: first.next})
	}
	t.notePause(ctx, did, first.paused)
	if did != takeFailed {
		t.lookUpPlaces(work)
	}
	switch blocks := sought && first.got > 0 && !t.gathersAll() && t.noteBypass(); {
	case did == takeFailed:
		t.keepRing(rung)
		t.unclaim()
		return loop.PauseFor(pause)
	case did == takeWait && blocks:
		return loop.Again
	}
	return first.waitAfter(ctx, did, rung)
}

// waitAfter is what the first taker does after a take that was executed: it takes again, or waits
// for what the take has found missing. rung says that the server was rung before it.
func (k *taker) waitAfter(ctx context.Context, did afterTake, rung bool) loop.Next {
	t := k.topic
	switch {
	case did == takeWait && t.hasIdleWorker():
		switch unlisted := k.name != "" && !k.waits && k.got >= k.free; {
		case unlisted && k.free == 0: // all workers of the pool are busy
			return k.waitForRoom()
		case unlisted:
			return loop.Again // a worker has become idle since the take, which would not be rung
		}
		t.keen(false)
		if t.expectChange(t.hasPlaces()) {
			return loop.Again
		}
		return k.waitForJobs(ctx)
	// A server without an idle worker must not be woken for a job.
	case did == takeWait, did == takeRoom:
		t.passOn(ctx, rung && did == takeRoom)
		return k.waitForRoom()
	case did == takeRest, did == takeBound:
		t.keen(false)
		if k.rated && k.got >= k.free { // the rate may allow another server a start before that
			t.passOn(ctx, rung)
		}
		if t.expectChange(k.placed) {
			return loop.Again
		}
		return k.restLeft()
	}
	return loop.Again
}

// stillRests reports whether the topic still waits for the next start of its rate, and how long.
// Jobs that become ready meanwhile, and ended ones, change nothing. Only other limits do.
func (k *taker) stillRests() (wait loop.Next, rests bool) {
	if !k.rated || !k.topic.waitsForResume() || time.Since(k.replied) >= k.rest {
		return loop.Next{}, false
	}
	return k.restLeft(), true
}

// restLeft makes the loop rest for as long as the last reply said. Redis computed that before the
// reply arrived, and other calls may have followed.
func (k *taker) restLeft() loop.Next {
	if k.rest == loop.Forever {
		return loop.Woken
	}
	return loop.RestFor(max(0, k.rest-time.Since(k.replied)))
}

// takeMoreStep is a step of the second taker's loop. It starts after a full take, makes only full
// takes, and continues until there is no room for one or little left to take. It never waits for a
// job. A single worker never uses it, because that worker takes its jobs in their order.
func (t *Topic) takeMoreStep(ctx, work context.Context, second *taker) loop.Next {
	if ctx.Err() != nil {
		return second.leave(work)
	}
	did, pause := second.take(work, true)
	switch {
	case did == takeFailed:
		t.unclaim()
		return loop.PauseFor(pause)
	case second.since > 0:
		return loop.Again
	}
	// The first taker may have found the room reserved, and may wait for it.
	t.freed()
	return loop.Woken
}

// take makes a take if there is room for a job, or with full for a full take. A take without a
// reply is repeated the next time, with the room that is still kept for it. After a failure, take
// returns how long to wait.
func (k *taker) take(work context.Context, full bool) (afterTake, time.Duration) {
	t := k.topic
	k.got, k.next = 0, 0
	if k.since == 0 {
		if k.n, k.free = t.reserve(full); k.n == 0 {
			return takeRoom, 0
		}
	}
	k.paused = false
	did, err := k.call(work)
	if err == nil {
		k.since = 0
		k.slow.Reset()
		return did, 0
	}
	pause := k.slow.Next()
	switch {
	case script.Certain(err) && k.since == k.number: // otherwise an earlier one may have been executed
		k.since = 0
		t.expect(k.n, 0, false)
	case link.Slowly(err):
		return k.slower(work), 0
	default:
		k.halved++
		pause = min(pause, t.Server.Config.Lease/10)
	}
	return takeFailed, pause
}

// slower handles a take that Redis has not answered in time, although it answers other calls.
func (k *taker) slower(work context.Context) afterTake {
	t := k.topic
	if limit, _ := k.share(); limit > 1 || k.timeout < k.most() {
		k.halved++
		k.timeout = min(2*k.timeout, k.most())
		return takeFailed
	}
	// Not even one job arrives. It must not hold up the others.
	r, _, err := k.send(work, 0, 0, "tail", k.least())
	if err != nil {
		return takeFailed
	}
	for _, id := range r.List(2).Texts() {
		t.trouble.log.Error("job does not arrive", "job", id, "delay", k.timeout,
			"err", "its record did not arrive in time; the job moved to the end of the ready list")
	}
	k.since, k.timeout = 0, k.least()
	t.expect(k.n, 0, false)
	return takeAgain
}

// leave ends the loop of a taker. It gives back the jobs of takes without a reply, and those that
// no worker has started.
func (k *taker) leave(work context.Context) loop.Next {
	t, end := k.topic, k.topic.leaveBy()
	if k.since > 0 {
		left := time.Until(end)
		_, _, err := k.send(work, 0, 0, "head", max(left, time.Millisecond))
		switch {
		case err == nil:
		case time.Until(end) >= loop.PaceFirst && work.Err() == nil:
			return loop.PauseFor(loop.PaceFirst)
		default:
			t.trouble.log.Warn("take unanswered", "err",
				"Redis did not answer before the server stopped; jobs that were taken run again when their leases expire")
		}
		t.expect(k.n, 0, false)
		k.since = 0
	}
	k.admitting.Wait()
	t.GiveBack(run.ErrShutdown)
	return loop.Over
}

// share returns the jobs, and the bytes of their records, that the next call asks for.
func (k *taker) share() (limit, bytes int) {
	halved := min(k.halved, 30)
	return max(1, k.n>>halved), max(1, script.CallBytes>>halved)
}

// send makes one call of the take script.
func (k *taker) send(work context.Context, limit, bytes int, place string, timeout time.Duration) (script.Reply, time.Time, error) {
	k.number++
	t, listed, sent := k.topic, 0, time.Now()
	if k.since == 0 {
		k.since, k.asked, k.ahead = k.number, sent, t.delay().Truncate(time.Millisecond)
	}
	if k.name != "" && t.taking.ring.listed.Load() {
		listed = 1
	}
	args := []any{
		strconv.FormatUint(k.number, 10), strconv.FormatUint(k.since, 10), limit, bytes, t.Server.Config.Lease.Milliseconds(), k.free, place,
		k.name, listed,
	}
	args = append(args, t.gatherArgs(k.n, k.free)...)
	spaced := 0
	if t.spaced() {
		spaced = 1
	}
	r, err := t.exec(work, topicCall{
		script: script.Take, jobs: limit, receipt: k.receipt, timeout: timeout, caller: &t.Server.takeScripts,
	}, append(args, spaced, k.ahead.Milliseconds())...)
	return r, sent, err
}

// call makes a take and passes on its jobs. It returns the next step.
func (k *taker) call(work context.Context) (afterTake, error) {
	limit, bytes := k.share()
	held := k.topic.taking.wait.held.Swap(false)
	r, sent, err := k.send(work, limit, bytes, "head", k.timeout)
	if held && !k.cleared(r) {
		k.topic.taking.wait.held.Store(true)
	}
	if err != nil {
		return takeFailed, err
	}
	k.replied = time.Now()
	took := k.replied.Sub(sent)
	k.rated, k.placed = false, false
	k.noteTrip(took)
	soon := k.adapt(took)
	k.topic.noteTook(took, len(r.List(3)))
	if r.Status() == "ok" {
		return k.admit(work, r, sent, limit, soon), nil
	}
	k.topic.expect(k.n, 0, false)
	return k.noJobs(r), nil
}

// noJobs notes why a take has returned no jobs, and returns the next step.
func (k *taker) noJobs(r script.Reply) afterTake {
	t := k.topic
	switch r.Status() {
	case "empty", "busy":
		t.setKeysLimited(r.Number(3), false)
		k.noteWaits(r.Number(2) == 1)
		if r.Status() == "busy" {
			t.setNear()
			return takeRoom
		}
		return takeWait
	case "limit":
		t.setNear()
		t.setBounded(true)
		k.noteWaits(false)
		k.restForPlace()
		return takeBound
	case "rate":
		t.setNear()
		t.setBounded(true)
		k.noteWaits(false)
		k.restForStart(r.Number(2))
		k.next = 1000*r.Now() + r.Number(2)
		return takeBound
	case "gather":
		k.next = 1000 * (r.Now() + max(1, r.Number(2)))
		k.noteWaits(r.Number(3) == 1)
		k.rest = max(time.Millisecond, time.Duration(r.Number(2))*time.Millisecond)
		if !k.waits { // nobody rings this server
			k.rest = min(k.rest, t.Server.Config.Tick)
		}
		return takeBound
	}
	// paused or held, or a status of a later release of the script
	t.setNear()
	k.paused = r.Status() == "paused"
	k.rest = k.restOfPause()
	// in whole ms, so the reply can be up to 1 ms too early
	if until := r.Number(2); until > 0 {
		k.next = 1000 * until
		k.rest = min(k.rest, max(time.Millisecond, time.Duration(until-r.Now())*time.Millisecond))
	}
	return takeRest
}

// admit passes on the jobs of a take that was for so many, and returns the next step. soon says
// that the reply came soon.
func (k *taker) admit(work context.Context, r script.Reply, sent time.Time, limit int, soon bool) afterTake {
	t, ids := k.topic, r.List(3)
	more := r.Number(7) == 1
	k.got = len(ids)
	k.noteWaits(r.Number(8) == 1)
	bound, repeated := r.Text(9), k.since < k.number
	by := k.noteBounds(r, sent, repeated)
	// Two takes in succession must not delay Redis's other clients by two of the largest payloads.
	huge := len(ids) == 1 && len(r.List(4).Text(0)) > hugeRecord
	// A second taker of a topic whose rate is used up would be told a time at which nobody comes.
	t.expect(k.n, len(ids), bound != "rate" && (len(ids) == run.TakeLimit || more && soon && !huge))
	k.admitting.Wait()
	replied, ahead := k.replied, k.n > k.free
	admitAll := func() {
		t.admitAll(work, r, sent, replied, by)
		if ahead {
			t.recheckFar()
		}
	}
	if len(ids) < aside {
		admitAll()
	} else {
		contain.Launch(&k.admitting, func() {
			admitAll()
			t.freed() // none of them may have been started
		}, func(c *contain.Crash) { t.Server.loops.Crashed("take", c) })
	}
	switch bound {
	case "free":
		return takeRoom
	case "limit":
		k.restForPlace()
		return takeBound
	case "rate":
		k.restForStart(r.Number(10))
		return takeBound
	}
	// There may be more: leftovers came first, or these are many and others follow, or limits ended
	// the take whose reply was lost.
	if len(ids) == 0 || more || repeated || len(ids) >= min(limit, aside) {
		return takeAgain
	}
	return takeWait
}

// noteTrip notes how long a take was on its way. The shortest time of late grows slowly when the
// link becomes longer.
func (k *taker) noteTrip(took time.Duration) {
	if k.trip == 0 || took < k.trip {
		k.trip = took
	} else {
		k.trip += (took - k.trip) / 512
	}
}

// adapt enlarges the next takes if a reply came soon, and reports whether it did. After a late
// reply it raises their timeout, because the next reply may be somewhat larger.
func (k *taker) adapt(took time.Duration) (soon bool) {
	switch soon = took < k.timeout/4; {
	case soon:
		k.halved = max(0, min(k.halved, 30)-1)
		k.timeout = max(k.least(), k.timeout/2)
	case took > k.timeout/2:
		k.timeout = min(2*k.timeout, k.most())
	}
	return soon
}
