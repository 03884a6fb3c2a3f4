package delayq

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// takeLimit is the most jobs that one call takes.
	takeLimit = 500

	// aside is from how many jobs on they are admitted while the next take is under way: getting them ready costs as long as Redis needs for a take.
	aside = 100

	// waitTimeout is how long a blocking pop waits, and waitMargin how much longer its answer may take before the connection counts as
	// dead.
	waitTimeout = 4 * time.Second
	waitMargin  = 2 * time.Second

	// newerRecordDelay is how long a record of a newer release is left alone before the next look.
	newerRecordDelay = 30 * time.Second
)

// A taker makes takes one after the other. A topic has two, each with a receipt of its own: the second one goes beside the first while there are many more
// jobs ready than a call takes, so that Redis has work while the answer to the other is read.
type taker struct {
	topic     *topicServer
	receipt   string
	number    uint64
	n, free   int           // of the last call: the jobs it asks for, which room is kept for, and how many of them can be started at once
	repeat    bool          // it may have been carried out, so it is made again as it was
	rest      time.Duration // of a paused topic: how long until it may run again, at most a tick
	slow      pace
	admitting sync.WaitGroup // the jobs of the last call, if they are many
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
	var slow pace
	for {
		t.turn(loopTake)
		next := first.take(ctx, work, 1)
		if next == takeWait && !t.idle() {
			next = takeRoom // who has no slot must not be woken for a job
		}
		switch next {
		case takeAgain, takeFailed:
		case takeWait:
			t.wait(ctx, &slow)
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
		for again := true; again; again = second.repeat {
			if second.take(ctx, work, takeLimit) == takeEnd {
				return
			}
		}
		nudge(t.freed) // the first one may have found the slots reserved, and wait for them
	}
}

// end gives back what a taker has taken and nobody has started.
func (k *taker) end() {
	k.admitting.Wait()
	k.topic.giveBack(ErrShutdown)
}

// take makes a take if there is room for that many jobs. One without an answer is made again the next time, with the room that is still kept for it.
func (k *taker) take(ctx, work context.Context, least int) afterTake {
	t := k.topic
	if !k.repeat {
		if k.n, k.free = t.reserve(least); k.n == 0 {
			return takeRoom
		}
		if ctx.Err() != nil {
			t.expect(k.n, 0)
			return takeEnd
		}
		k.number++
	}
	doubt := k.repeat
	k.repeat = true // also if the call ends this goroutine
	status, got, err := k.call(work)
	// That a repetition was not carried out does not say that the call before it was not.
	if k.repeat = err != nil && (!certain(err) || doubt && away(err)); err != nil {
		if !k.repeat {
			t.expect(k.n, 0)
		}
		if !sleep(work, k.slow.next()) {
			return takeEnd
		}
		return takeFailed
	}
	k.slow.reset()
	switch {
	case status == "ok" && (got == 0 || got >= min(k.n, aside)): // there may be more: left-overs came first, or they are many and others follow
		return takeAgain
	case status == "ok", status == "empty":
		return takeWait
	case status == "full":
		return takeRoom
	default: // paused, or what a later release of the script may say
		return takeRest
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

// call is one call of the take script. One whose answer was lost is made again with its number and gives the same jobs.
func (k *taker) call(work context.Context) (status string, got int, err error) {
	call, cancel := context.WithTimeout(work, callTimeout)
	defer cancel()
	t := k.topic
	key, s := t.keys, t.server
	sent := time.Now()
	r, err := s.call.call(call, takeScript, key.topic, k.n, names(
		key.ready, key.handoff, key.pool, key.bucket, key.leases, key.dead, key.attempts, key.moved, key.meta, k.receipt, key.stats,
	), strconv.FormatUint(k.number, 10), k.n, s.o.lease.Milliseconds(), k.free)
	t.note(work, "take", err)
	if err != nil {
		return "", 0, err
	}
	t.clock.read(r.now(), sent, time.Now())
	if r.status() != "ok" {
		t.expect(k.n, 0)
		k.rest = s.o.tick
		if until := r.number(2); until > 0 { // in ms, so the answer may be up to one before its time
			k.rest = min(k.rest, max(time.Millisecond, time.Duration(until-r.now())*time.Millisecond))
		}
		return r.status(), 0, nil
	}
	fence, ids, records, tried, moved := r.text(2), r.list(3), r.list(4), r.list(5), r.list(6)
	leaseEnd := parseEnd(fence)
	// Not the length of the lease: the jobs may be those of an earlier call whose answer was lost.
	until := sent.Add(time.Duration(leaseEnd-r.now()*1000) * time.Microsecond)
	admit := func() {
		for i := range ids {
			run, err := t.newRun(ids.text(i), records.text(i), fence, leaseEnd, until, tried.text(i), moved.text(i))
			run.taken = msTime(r.now())
			t.admit(run, t.refusal(run, err, r.now()))
		}
	}
	t.expect(k.n, len(ids))
	k.admitting.Wait()
	if len(ids) < aside {
		admit()
		return "ok", len(ids), nil
	}
	launch(&k.admitting, func() {
		admit()
		nudge(t.freed) // none of them may have been started
	}, func(c *crash) { s.loops.crashed("take", c) })
	return "ok", len(ids), nil
}

// refusal is what Redis is to be told of a taken job that is not to run; nil: it is.
func (t *topicServer) refusal(r *run, undecodable error, now int64) *row {
	switch job := r.job; {
	case errors.Is(undecodable, errNewerRecord):
		t.trouble.log.Error("snooze", "job", job.ID, "err", undecodable, "delay", newerRecordDelay)
		return &row{run: r, verb: verbSnooze, end: msTime(now), delay: newerRecordDelay, past: r.past, err: undecodable}
	case undecodable != nil:
		entry := AttemptError{Attempt: job.Attempt, At: msTime(now), Server: t.server.id, Kind: KindUndecodable, Message: undecodable.Error()}
		return &row{run: r, verb: verbBury, entry: entry.encode(), err: undecodable}
	case job.Due.After(msTime(now)) && job.Due.After(job.EnqueuedAt): // its entry in the bucket was lost, and a left-over of its ID was in ready
		t.trouble.log.Warn("snooze", "job", job.ID, "err", errNotDue, "delay", job.Due.Sub(msTime(now)))
		return &row{run: r, verb: verbSnooze, end: msTime(now), delay: job.Due.Sub(msTime(now)), past: r.past, err: errNotDue}
	case r.expires > 0 && now >= r.expires:
		return &row{run: r, verb: verbExpire}
	case r.opts.retry >= 0 && r.attempt-1-r.past.spent > r.opts.retry:
		return &row{run: r, verb: verbBury, err: ErrLeaseLost} // its last run was cut off: promote has put that on record
	}
	return nil
}

// errNotDue is why a job is put back that was taken before its time.
var errNotDue = errors.New("not due yet")

// wait waits until there is something in ready. The pop moves the ID to handoff, which every take empties first: if this process dies
// between the two, the ID is not lost. One ID wakes one server.
func (t *topicServer) wait(ctx context.Context, slow *pace) {
	s := t.server
	for {
		t.turn(loopTake)
		// Not a child of ctx: a deadline of that would look like a dead connection. The stop closes the connection.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitTimeout+waitMargin)
		err := s.waits.BLMove(call, t.keys.ready, t.keys.handoff, "LEFT", "RIGHT", waitTimeout).Err()
		err = s.call.blame(call, err, t.keys.ready, t.keys.handoff)
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
