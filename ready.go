package delayq

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/record"
)

const (
	// takeLimit is the most jobs that one call takes.
	takeLimit = 500

	// aside is the number of jobs from which they are admitted concurrently with the next take.
	// Admitting that many takes as long as Redis needs for a take.
	aside = 100

	// hugeRecord is the size of a record, in bytes, beyond which Redis needs about 20 ms for it.
	// Larger records are taken one at a time, by one taker.
	hugeRecord = 4 * callBytes

	// takeTimeoutMost is the longest that a take waits for its reply.
	takeTimeoutMost = time.Minute

	// stopPatience is how long the takes of a stopped server wait for their replies.
	stopPatience = time.Second

	// waitTimeout is how long a blocking pop waits. waitMargin is how much later its reply can
	// arrive before the connection counts as dead.
	waitTimeout = 4 * time.Second
	waitMargin  = 2 * time.Second

	// newerRecordDelay is how long a record of a newer release is left alone before the next
	// attempt.
	newerRecordDelay = 30 * time.Second
)

// A taker makes takes, one after the other. A topic has two takers, each with a receipt of its own.
// The second one works beside the first while many more jobs are ready than one call takes. So
// Redis has work while a server reads the reply to the other take. Huge records have one taker.
//
// A take without a reply may have been executed, or its reply may be too large for the link. So the
// taker repeats it for half of the jobs and bytes, and with twice the timeout if Redis replies to
// other calls. The script returns as many of the taken jobs, with new leases, and puts the others
// back. This continues down to one job. So as long as the server reaches Redis, no job's lease runs
// out because its record has not arrived. Fast replies make the takes grow again.
type taker struct {
	topic   *topicServer
	receipt string
	number  uint64 // of the last call
	since   uint64 // of the first call without a reply; 0: none
	// n is the number of jobs that room is kept for, and free how many of them can start
	// immediately.
	n, free int
	halved  int           // how often the share of a call is halved
	timeout time.Duration // how long the next call waits for its reply
	// Of a paused topic: how long until it may run again, at most one tick.
	rest      time.Duration
	slow      retryPace
	admitting sync.WaitGroup // the jobs of the last call, if they are many
}

func (t *topicServer) newTaker(receipt string) *taker {
	k := &taker{topic: t, receipt: receipt}
	k.timeout = k.least()
	return k
}

// least and most bound the timeout of a call. The leases in a later reply are nearly over.
func (k *taker) least() time.Duration {
	s := k.topic.server
	return min(s.answerTimeout, s.o.lease/3)
}

func (k *taker) most() time.Duration {
	return max(k.least(), min(takeTimeoutMost, 2*k.topic.server.o.lease/3))
}

// afterTake is what a taker does after a take.
type afterTake int

const (
	takeAgain  afterTake = iota // take again: there may be more
	takeWait                    // wait for a job
	takeRoom                    // wait for an idle worker
	takeRest                    // the topic is paused
	takeFailed                  // the call was not executed
	takeEnd
)

// takeLoop takes jobs as long as there are idle workers, and waits when there are no jobs or no
// idle workers. It ends with ctx. A take in flight at that time is waited for until work is done,
// and its jobs are given back.
func (t *topicServer) takeLoop(ctx, work context.Context, first *taker) {
	defer first.end()
	var slow retryPace
	for {
		t.turn(loopTake)
		next := first.take(ctx, work, false)
		t.notePause(ctx, next)
		if next == takeWait && !t.hasIdleWorker() {
			next = takeRoom // a server without an idle worker must not be woken for a job
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

// takeMoreLoop is the loop of the second taker. It starts after a full take, makes only full takes,
// and continues until there is no room for one or little left to take. It never waits for a job. A
// single worker never uses it, because that worker takes its jobs in their order.
func (t *topicServer) takeMoreLoop(ctx, work context.Context, second *taker) {
	defer second.end()
	for {
		select {
		case <-t.wakeups.plenty:
		case <-ctx.Done():
			return
		}
		for again := true; again; again = second.since > 0 {
			if second.take(ctx, work, true) == takeEnd {
				return
			}
		}
		// The first taker may have found the room reserved, and may wait for it.
		signal(t.wakeups.freed)
	}
}

// end gives back the jobs that a taker has taken and no worker has started.
func (k *taker) end() {
	k.admitting.Wait()
	k.topic.giveBack(ErrShutdown)
}

// take makes a take if there is room for a job, or with full for a full take. A take without a
// reply is repeated the next time, with the room that is still kept for it.
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
	case certain(err) && k.since == k.number: // otherwise an earlier one may have been executed
		k.since = 0
		t.expect(k.n, 0, false)
	case link.Slowly(err):
		return k.slower(work)
	default:
		k.halved++
		pause = min(pause, t.server.o.lease/10)
	}
	sleep(ctx, pause)
	return takeFailed
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
	for _, id := range r.list(2).texts() {
		t.trouble.log.Error("job does not arrive", "job", id, "delay", k.timeout,
			"err", "its record did not arrive in time; the job moved to the end of the ready list")
	}
	k.since, k.timeout = 0, k.least()
	t.expect(k.n, 0, false)
	return takeAgain
}

// giveUp gives back the jobs of takes without a reply, after the server has been stopped.
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

// waitForRoom waits until jobs can be taken again. It reports whether that happened before ctx was
// done. Jobs taken ahead that find no idle worker in time are given back.
func (t *topicServer) waitForRoom(ctx context.Context) bool {
	patience := time.NewTimer(aheadPatience)
	defer patience.Stop()
	select {
	case <-t.wakeups.freed:
		return true
	case <-ctx.Done():
		return false
	case <-patience.C:
	}
	t.giveBack(errSlow)
	select {
	case <-t.wakeups.freed:
		return true
	case <-ctx.Done():
		return false
	}
}

// errSlow is the reason why a job taken ahead is given back.
var errSlow = errors.New("no slot became free in time")

// share returns the jobs, and the bytes of their records, that the next call asks for.
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

// call makes a take and passes on its jobs. It returns the next step.
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
	case "busy":
		t.expect(k.n, 0, false)
		return takeRoom, nil
	default: // paused, or a status of a later release of the script
		t.expect(k.n, 0, false)
		k.rest = t.server.o.tick
		// in whole ms, so the reply can be up to 1 ms too early
		if until := r.number(2); until > 0 {
			k.rest = min(k.rest, max(time.Millisecond, time.Duration(until-r.now())*time.Millisecond))
		}
		return takeRest, nil
	}
	end, ids, records, tried, moved := record.ParseLeaseEnd(r.text(2)), r.list(3), r.list(4), r.list(5), r.list(6)
	more := r.number(7) == 1
	// Not the length of the lease: the reply may be one to an earlier copy of the request.
	until := sent.Add(time.Duration(end.Micros()-r.now()*1000) * time.Microsecond)
	admit := func() {
		for i := range ids {
			run, err := t.newRun(ids.text(i), records.text(i), end, until, tried.text(i), moved.text(i))
			run.taken = msTime(r.now())
			t.admit(run, t.refusal(run, err, r.now()))
		}
	}
	// Two takes in succession must not delay Redis's other clients by two of the largest payloads.
	huge := len(ids) == 1 && len(records.text(0)) > hugeRecord
	t.expect(k.n, len(ids), len(ids) == takeLimit || more && soon && !huge)
	k.admitting.Wait()
	if len(ids) < aside {
		admit()
	} else {
		launch(&k.admitting, func() {
			admit()
			signal(t.wakeups.freed) // none of them may have been started
		}, func(c *crash) { t.server.loops.crashed("take", c) })
	}
	// There may be more: leftovers came first, or these are many and others follow.
	if len(ids) == 0 || more || len(ids) >= min(limit, aside) {
		return takeAgain, nil
	}
	return takeWait, nil
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

// waitForJobs waits until ready is not empty. The pop moves the ID to handoff, which every take
// empties first. So the ID is not lost if this process dies between the two. One ID wakes one
// server.
func (t *topicServer) waitForJobs(ctx context.Context, slow *retryPace) {
	s := t.server
	for {
		t.turn(loopTake)
		// Not a child of ctx: a deadline of ctx would look like a dead connection. A stop closes
		// the connection, and cancels the call so that a cluster's client does not repeat it.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitTimeout+waitMargin)
		stopped := context.AfterFunc(ctx, cancel)
		began := time.Now()
		err := s.blocking.BLMove(call, t.keys.ready, t.keys.handoff, "LEFT", "RIGHT", waitTimeout).Err()
		err = s.pulse.Feel(t.keys.ready, began, err)
		err = s.scripts.blame(call, err, t.keys.ready, t.keys.handoff)
		stopped()
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

// notePause logs when the topic is first found paused, and when it no longer is. Only the take loop
// calls it.
func (t *topicServer) notePause(ctx context.Context, next afterTake) {
	switch {
	case next == takeRest && !t.paused:
		t.paused = true
		var who []string
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		// Without the names, the log only says that the topic is paused.
		if text, err := t.server.calls.HGet(call, t.keys.meta, "pauses").Result(); err == nil {
			for _, p := range record.DecodePauses(text, t.clock.at(time.Now()).UnixMilli()) {
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
	case <-t.wakeups.resume:
	case <-ctx.Done():
	}
}
