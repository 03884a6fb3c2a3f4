package delayq

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// takeLimit is the most jobs that one call takes.
	takeLimit = 500

	// aside is from how many jobs on they are admitted while the next take is under way: getting them ready costs as long as Redis needs for a take.
	aside = 100

	// takeTimeoutMost is the longest that a take waits for its answer.
	takeTimeoutMost = time.Minute

	// stopPatience is how long after the stop of a server its takes wait for their answers.
	stopPatience = time.Second

	// waitTimeout is how long a blocking pop waits, and waitMargin how much longer its answer may take before the connection counts as
	// dead.
	waitTimeout = 4 * time.Second
	waitMargin  = 2 * time.Second

	// newerRecordDelay is how long a record of a newer release is left alone before the next look.
	newerRecordDelay = 30 * time.Second
)

// A taker makes takes one after the other. A topic has two, each with a receipt of its own: the second one goes beside the first while there are many more
// jobs ready than a call takes, so that Redis has work while the answer to the other is read.
//
// A take without an answer may have been carried out, or its answer may be too large for the link. So it
// is made again for half of the jobs and bytes, and while Redis answers others, with twice the time: the
// script answers as many of the jobs that were taken, with leases from anew, and puts the others back.
// This goes on down to one job. So as long as the server reaches Redis no lease of a job whose record
// has not arrived runs out. Answers that come soon make the takes grow again.
type taker struct {
	topic     *topicServer
	receipt   string
	number    uint64        // of the last call
	since     uint64        // of the first call without an answer; 0: all have been answered
	n, free   int           // the jobs that room is kept for, and how many of them can be started at once
	halved    int           // how often what a call asks for is halved
	timeout   time.Duration // how long the next call waits for its answer
	rest      time.Duration // of a paused topic: how long until it may run again, at most a tick
	slow      retryPace
	admitting sync.WaitGroup // the jobs of the last call, if they are many
}

func (t *topicServer) newTaker(receipt string) *taker {
	k := &taker{topic: t, receipt: receipt}
	k.timeout = k.least()
	return k
}

// least and most bound how long a call waits. An answer that comes later finds its leases nearly over.
func (k *taker) least() time.Duration {
	s := k.topic.server
	return min(s.answerTimeout, s.o.lease/3)
}

func (k *taker) most() time.Duration {
	return max(k.least(), min(takeTimeoutMost, 2*k.topic.server.o.lease/3))
}

// afterTake is what a taker is to do after a take.
type afterTake int

const (
	takeAgain  afterTake = iota // take again: there may be more
	takeWait                    // wait for a job
	takeRoom                    // wait for a free slot
	takeRest                    // the topic is paused
	takeFailed                  // the call was not carried out
	takeEnd
)

// takeLoop takes jobs as long as there are free slots, and waits when there are none of either. It ends with ctx; a take under way then
// is waited for, as long as work goes on, and what it brings is given back.
func (t *topicServer) takeLoop(ctx, work context.Context, first *taker) {
	defer first.end()
	var slow retryPace
	for {
		t.turn(loopTake)
		next := first.take(ctx, work, false)
		t.notePause(ctx, next)
		if next == takeWait && !t.hasIdleWorker() {
			next = takeRoom // who has no slot must not be woken for a job
		}
		switch next {
		case takeAgain, takeFailed:
		case takeWait:
			t.waitForJobs(ctx, &slow)
		case takeRoom:
			if !t.waitForRoom(ctx) {
				return
			}
		case takeRest:
			t.rest(ctx, first.rest)
		case takeEnd:
			return
		}
	}
}

// takeMoreLoop is that of the second taker: it begins after a take that was full, asks for full ones only, and goes on until there is no room for one or not
// much more to take. It never waits for a job, and does nothing for a single slot, which takes its jobs in their order.
func (t *topicServer) takeMoreLoop(ctx, work context.Context, second *taker) {
	defer second.end()
	for {
		select {
		case <-t.plenty:
		case <-ctx.Done():
			return
		}
		for again := true; again; again = second.since > 0 {
			if second.take(ctx, work, true) == takeEnd {
				return
			}
		}
		signal(t.freed) // the first one may have found the slots reserved, and wait for them
	}
}

// end gives back what a taker has taken and nobody has started.
func (k *taker) end() {
	k.admitting.Wait()
	k.topic.giveBack(ErrShutdown)
}

// take makes a take if there is room for a job, or for a full take. One without an answer is made again the next time, with the room that is still kept
// for it.
func (k *taker) take(ctx, work context.Context, full bool) afterTake {
	t := k.topic
	if ctx.Err() != nil {
		k.giveUp(work)
		return takeEnd
	}
	if k.since == 0 {
		if k.n, k.free = t.reserve(full); k.n == 0 {
			return takeRoom
		}
	}
	next, err := k.call(work)
	if err == nil {
		k.since = 0
		k.slow.reset()
		return next
	}
	pause := k.slow.next()
	switch {
	case certain(err) && k.since == k.number: // else one before it may have been carried out
		k.since = 0
		t.expect(k.n, 0, false)
	case slowly(err):
		return k.slower(work)
	default:
		k.halved++
		pause = min(pause, t.server.o.lease/10)
	}
	sleep(ctx, pause)
	return takeFailed
}

// slower follows a call that Redis has not answered in time, although it answers others.
func (k *taker) slower(work context.Context) afterTake {
	t := k.topic
	if limit, _ := k.share(); limit > 1 || k.timeout < k.most() {
		k.halved++
		k.timeout = min(2*k.timeout, k.most())
		return takeFailed
	}
	// Not even one job comes through. The others are not to wait for it.
	r, _, err := k.send(work, 0, 0, "tail", k.least())
	if err != nil {
		return takeFailed
	}
	for _, id := range r.list(2).texts() {
		t.trouble.log.Error("job does not arrive", "job", id, "delay", k.timeout,
			"err", "its record did not arrive in time; the job moved to the end of the ready list")
	}
	k.since, k.timeout = 0, k.least()
	t.expect(k.n, 0, false)
	return takeAgain
}

// giveUp gives back what calls without an answer have taken, after the stop of the server.
func (k *taker) giveUp(work context.Context) {
	t := k.topic
	if k.since == 0 {
		return
	}
	t.expect(k.n, 0, false)
	for end := time.Now().Add(stopPatience); ; {
		_, _, err := k.send(work, 0, 0, "head", time.Until(end))
		if err == nil {
			return
		}
		if time.Until(end) < paceFirst || !sleep(work, paceFirst) {
			t.trouble.log.Warn("take unanswered", "err",
				"Redis did not answer before the server stopped; jobs that were taken run again when their leases expire")
			return
		}
	}
}

// waitForRoom waits until jobs can be taken again, and tells whether that is before the end of ctx. Jobs that have been taken ahead and that
// no slot becomes free for are given back meanwhile.
func (t *topicServer) waitForRoom(ctx context.Context) bool {
	patience := time.NewTimer(aheadPatience)
	defer patience.Stop()
	select {
	case <-t.freed:
		return true
	case <-ctx.Done():
		return false
	case <-patience.C:
	}
	t.giveBack(errSlow)
	select {
	case <-t.freed:
		return true
	case <-ctx.Done():
		return false
	}
}

// errSlow is why a job taken ahead is given back.
var errSlow = errors.New("no slot became free in time")

// share is what the next call asks for: jobs, and bytes of their records.
func (k *taker) share() (limit, bytes int) {
	halved := min(k.halved, 30)
	return max(1, k.n>>halved), max(1, callBytes>>halved)
}

// send makes one call of the take script.
func (k *taker) send(work context.Context, limit, bytes int, place string, timeout time.Duration) (reply, time.Time, error) {
	k.number++
	if k.since == 0 {
		k.since = k.number
	}
	t := k.topic
	sent := time.Now()
	r, err := t.exec(work, topicCall{
		script: takeScript, jobs: limit, receipt: k.receipt, timeout: timeout, caller: &t.server.takeScripts,
	}, strconv.FormatUint(k.number, 10), strconv.FormatUint(k.since, 10), limit, bytes, t.server.o.lease.Milliseconds(), k.free, place)
	return r, sent, err
}

// call makes a take and hands on the jobs that it brings. It tells what to do next.
func (k *taker) call(work context.Context) (afterTake, error) {
	t := k.topic
	limit, bytes := k.share()
	r, sent, err := k.send(work, limit, bytes, "head", k.timeout)
	if err != nil {
		return takeFailed, err
	}
	soon := k.adapt(time.Since(sent))
	switch r.status() {
	case "ok":
	case "empty":
		t.expect(k.n, 0, false)
		return takeWait, nil
	case "full":
		t.expect(k.n, 0, false)
		return takeRoom, nil
	default: // paused, or what a later release of the script may say
		t.expect(k.n, 0, false)
		k.rest = t.server.o.tick
		if until := r.number(2); until > 0 { // in ms, so the answer may be up to one before its time
			k.rest = min(k.rest, max(time.Millisecond, time.Duration(until-r.now())*time.Millisecond))
		}
		return takeRest, nil
	}
	fence, ids, records, tried, moved := r.text(2), r.list(3), r.list(4), r.list(5), r.list(6)
	more := r.number(7) == 1
	leaseEnd := parseEnd(fence)
	// Not the length of the lease: the answer may be that to an earlier copy of the request.
	until := sent.Add(time.Duration(leaseEnd-r.now()*1000) * time.Microsecond)
	admit := func() {
		for i := range ids {
			run, err := t.newRun(ids.text(i), records.text(i), fence, leaseEnd, until, tried.text(i), moved.text(i))
			run.taken = msTime(r.now())
			t.admit(run, t.refusal(run, err, r.now()))
		}
	}
	t.expect(k.n, len(ids), len(ids) == takeLimit || more && soon)
	k.admitting.Wait()
	if len(ids) < aside {
		admit()
	} else {
		launch(&k.admitting, func() {
			admit()
			signal(t.freed) // none of them may have been started
		}, func(c *crash) { t.server.loops.crashed("take", c) })
	}
	if len(ids) == 0 || more || len(ids) >= min(limit, aside) { // there may be more: left-overs came first, or they are many and others follow
		return takeAgain, nil
	}
	return takeWait, nil
}

// adapt makes the takes that follow larger if an answer came soon, and reports whether it did. If it came
// late it gives them more time, because the next one may be somewhat larger.
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

// wait waits until there is something in ready. The pop moves the ID to handoff, which every take empties first: if this process dies
// between the two, the ID is not lost. One ID wakes one server.
func (t *topicServer) waitForJobs(ctx context.Context, slow *retryPace) {
	s := t.server
	for {
		t.turn(loopTake)
		// Not a child of ctx: a deadline of that would look like a dead connection. The stop closes the connection.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitTimeout+waitMargin)
		began := time.Now()
		err := s.blocking.BLMove(call, t.keys.ready, t.keys.handoff, "LEFT", "RIGHT", waitTimeout).Err()
		err = s.pulse.feel(t.keys.ready, began, err)
		err = s.scripts.blame(call, err, t.keys.ready, t.keys.handoff)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, redis.Nil) {
			slow.reset()
			t.trouble.note("wait", nil)
			continue
		}
		t.trouble.note("wait", err)
		if err != nil {
			sleep(ctx, slow.next())
		} else {
			slow.reset()
		}
		return
	}
}

// notePause logs when takes begin to find the topic paused, and when they do so no longer. Only the take
// loop calls it.
func (t *topicServer) notePause(ctx context.Context, next afterTake) {
	switch {
	case next == takeRest && !t.paused:
		t.paused = true
		var who []string
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if text, err := t.server.calls.HGet(call, t.keys.meta, "pauses").Result(); err == nil { // else the bare fact must do
			for _, p := range parsePauses(text, t.clock.at(time.Now()).UnixMilli()) {
				who = append(who, p.By+": "+p.Reason)
			}
		}
		t.trouble.log.Info("topic paused", "by", strings.Join(who, ", "))
	case (next == takeAgain || next == takeWait) && t.paused:
		t.paused = false
		t.trouble.log.Info("topic resumed")
	}
}

// rest waits for d, or until the topic is resumed.
func (t *topicServer) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.resume:
	case <-ctx.Done():
	}
}
