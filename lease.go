package delayq

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"
)

// extendLimit is the most leases that one call extends.
const extendLimit = 500

// extendLoop keeps the leases of a topic: every third of a lease it extends all that the server holds in one call, and takes the jobs from
// handlers whose lease is over. It is a loop for each topic, so that a node of a cluster that does not answer costs no other its leases.
func (t *topicServer) extendLoop(ctx context.Context) {
	every := t.server.o.lease / 3
	var slow pace
	for wait := every; sleep(ctx, wait); {
		if err := t.extendAll(ctx); err != nil {
			wait = min(every, slow.next())
			continue
		}
		// Also when there was nothing to ask for: else a call that failed, and is not made again, keeps the outage open.
		t.server.outage.ended(t.trouble.name + "/extend")
		wait = every
		slow.reset()
	}
}

// extendAll extends the leases of one topic.
func (t *topicServer) extendAll(ctx context.Context) error {
	t.turn(loopExtend)
	held := t.held(time.Now())
	for len(held) > 0 {
		n := min(len(held), extendLimit)
		if err := t.extend(ctx, held[:n]); err != nil {
			return err
		}
		held = held[n:]
	}
	return nil
}

// held lists the runs whose leases are to be extended. A lease that is over by our own clock is lost: another server may have the job
// by now. Of one whose handler has returned only Redis can tell. A handler past its Timeout keeps its lease no longer.
func (t *topicServer) held(now time.Time) []*run {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*run
	for _, r := range t.leases {
		switch {
		case r.telling, r.ended && !now.Before(r.until):
		case !r.ended && !now.Before(r.until):
			t.loseLocked(r, r.why('l', now))
		case !r.ended && !r.deadline.IsZero() && now.After(r.deadline):
		default:
			list = append(list, r)
		}
	}
	return list
}

// extend is one call of the extend script. The new end is chosen here, so that until the answer is there the lease is known to end at one of
// two times, and whatever is told of the job meanwhile names both. An end that was not answered is proposed again as long as it is of
// use: so the ends that may be in Redis stay few however long Redis is away.
func (t *topicServer) extend(ctx context.Context, list []*run) error {
	lease := t.server.o.lease.Milliseconds()
	sent := time.Now()
	now := t.clock.latest(sent)
	t.mu.Lock()
	if t.proposed < now+2*lease/3 {
		t.proposed = now + lease
	}
	end := t.proposed
	until := sent.Add(time.Duration(end-now) * time.Millisecond)
	ending := strconv.FormatInt(end, 10)
	args := make([]any, 1, 1+2*len(list))
	args[0] = ending
	asked := list[:0]
	for _, r := range list {
		if !r.until.Before(until) {
			continue // taken after that end was first proposed; by our own clock, for Redis's may have been set back
		}
		asked = append(asked, r)
		args = append(args, r.id, r.fences())
		if r.extended != "" && r.extended != ending {
			r.fence += " " + r.extended
		}
		r.extended = ending
	}
	t.mu.Unlock()
	if len(asked) == 0 {
		return nil
	}

	// While this call hangs nobody looks at the other leases of the topic.
	call, cancel := context.WithTimeout(ctx, min(callTimeout, t.server.o.lease/3))
	defer cancel()
	k := t.keys
	reply, err := t.server.call.call(call, extendScript, k.topic, len(asked), names(k.leases, k.pool), args...)
	t.note(ctx, "extend", err)
	if err != nil {
		return err
	}
	t.clock.read(reply.now(), sent, time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.proposed = 0
	if reply.status() != "ok" {
		return errLate
	}
	letters := reply.text(2)
	for i, r := range asked {
		switch {
		case i >= len(letters):
			return errReply
		case letters[i] == 'o':
			r.fence, r.extended, r.until = ending, "", until
			r.lease.Store(end * 1000)
		default:
			t.loseLocked(r, r.why(letters[i], sent))
		}
	}
	return nil
}

// parseEnd reads the end of a lease, in ms with a fraction as Redis writes scores, in µs.
func parseEnd(score string) int64 {
	ms, _ := strconv.ParseFloat(score, 64) // Redis wrote it
	return int64(math.Round(ms * 1000))
}

// errLate says that Redis's clock was ahead of what we took it for. It has been read with the answer that says so.
var errLate = errors.New("lease end in the past")
