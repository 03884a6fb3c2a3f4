package delayq

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"
)

// extendLimit is the most leases that one call extends.
const extendLimit = 500

// extendMost is the longest that a server goes without looking at its leases, however long they are.
const extendMost = 10 * time.Second

// extendLoop keeps the leases of a topic: every third of a lease, and every ten seconds at least, it
// extends all that the server holds in one call, and takes the jobs from handlers whose lease is over.
// When the server has subscribed to the control channel it looks at all leases at once, because
// a cancel may have gone unheard. It is a loop for each topic, so that a node of a cluster that does not
// answer costs no other its leases.
func (t *topicServer) extendLoop(ctx context.Context) {
	every := min(t.server.o.lease/3, extendMost)
	var slow pace
	timer := time.NewTimer(every)
	defer timer.Stop()
	look := false
	for {
		select {
		case <-timer.C:
		case <-t.unsure:
			look = true
		case <-ctx.Done():
			return
		}
		wait := every
		err := t.extendAll(ctx, look)
		if err != nil {
			wait = min(every/4, slow.next())
		}
		timer.Reset(wait)
		if err != nil {
			continue
		}
		look = false
		// Also when there was nothing to ask for: else a call that failed, and is not made again, keeps the outage open.
		t.server.outage.ended(t.trouble.name + "/extend")
		slow.reset()
	}
}

// extendAll extends the leases of one topic. With look it also asks after those that cannot be extended
// yet.
func (t *topicServer) extendAll(ctx context.Context, look bool) error {
	t.turn(loopExtend)
	for some := range slices.Chunk(t.held(time.Now()), extendLimit) {
		rest, err := t.extend(ctx, some)
		if err != nil {
			return err
		}
		if look && len(rest) > 0 {
			if err := t.askExtend(ctx, "", rest, time.Time{}); err != nil {
				return err
			}
		}
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

// extend extends leases in one call and returns the runs whose leases it leaves alone. The new end is
// chosen here, so that until the answer is there the lease is known to end at one of two times, and
// whatever is told of the job meanwhile names both. An end that was not answered is proposed again as
// long as it is of use: so the ends that may be in Redis stay few however long Redis is away.
//
// The end is less than a lease after the present of Redis, whose clock it takes for as early as it can
// be: so each lease that is given later ends later, and fences grow. A lease that ends no earlier is left
// alone, unless Redis's clock was set back since it was given.
func (t *topicServer) extend(ctx context.Context, list []*run) (rest []*run, err error) {
	lease := t.server.o.lease.Milliseconds()
	sent := time.Now()
	now, latest, sets := t.clock.earliest(sent), t.clock.latest(sent), t.clock.sets()
	t.mu.Lock()
	if t.proposed < now+2*lease/3 || t.proposed > now+lease {
		t.proposed = now + lease
	}
	end := t.proposed
	until := sent.Add(time.Duration(end-latest) * time.Millisecond)
	ending := strconv.FormatInt(end, 10)
	asked := make([]*run, 0, len(list))
	for _, r := range list {
		if end*1000 <= r.ends && r.sets == sets || !r.until.Before(until) {
			rest = append(rest, r)
			continue
		}
		asked = append(asked, r)
	}
	t.mu.Unlock()
	if len(asked) == 0 {
		return rest, nil
	}
	return rest, t.askExtend(ctx, ending, asked, until)
}

// askExtend is one call of the extend script, about leases that are to end at ending, which is until by
// our own clock. With an empty ending they stay as they are, and those that were lost are found out.
func (t *topicServer) askExtend(ctx context.Context, ending string, asked []*run, until time.Time) error {
	args := make([]any, 1, 1+2*len(asked))
	args[0] = ending
	t.mu.Lock()
	for _, r := range asked {
		args = append(args, r.id, r.fences())
		if ending == "" {
			continue
		}
		if r.extended != "" && r.extended != ending {
			r.fence += " " + r.extended
		}
		r.extended = ending
	}
	t.mu.Unlock()

	// While this call hangs nobody looks at the other leases of the topic.
	call, cancel := context.WithTimeout(ctx, min(callTimeout, t.server.o.lease/3))
	defer cancel()
	k := t.keys
	sent := time.Now()
	reply, err := t.server.call.call(call, extendScript, k.topic, len(asked), names(k.leases, k.pool), args...)
	t.note(ctx, "extend", err)
	if err != nil {
		return err
	}
	t.clock.read(reply.now(), sent, time.Now())
	sets := t.clock.sets()
	letters := t.examine(ctx, reply.text(2))
	t.mu.Lock()
	defer t.mu.Unlock()
	if ending != "" {
		t.proposed = 0
	}
	if reply.status() != "ok" {
		return errLate
	}
	for i, r := range asked {
		switch {
		case i >= len(letters):
			return errReply
		case letters[i] == 'o' && ending == "":
		case letters[i] == 'o':
			r.fence, r.extended, r.until, r.sets = ending, "", until, sets
			r.ends = parseEnd(ending)
			r.lease.Store(r.ends)
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
