package delayq

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
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
	var slow retryPace
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
		t.server.outage.answered(t.trouble.name + "/extend")
		slow.reset()
	}
}

// extendAll extends the leases of one topic. With look it also asks after those that cannot be extended
// yet.
func (t *topicServer) extendAll(ctx context.Context, look bool) error {
	t.turn(loopExtend)
	for some := range slices.Chunk(t.extendable(time.Now()), extendLimit) {
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
func (t *topicServer) extendable(now time.Time) []*run {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*run
	for _, r := range t.leases {
		switch {
		case r.telling, r.returned && !now.Before(r.until):
		case !r.returned && !now.Before(r.until):
			t.loseLocked(r, r.why(letterLost, now))
		case !r.returned && !r.deadline.IsZero() && now.After(r.deadline):
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
	sent := time.Now()
	reply, err := t.exec(ctx, topicCall{
		script: extendScript, jobs: len(asked), timeout: min(callTimeout, t.server.o.lease/3),
	}, args...)
	if err != nil {
		return err
	}
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
		case letters[i] == letterOurs && ending == "":
		case letters[i] == letterOurs:
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

func (t *topicServer) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.leases)
}

// holdLocked notes a taken job as ours.
func (t *topicServer) holdLocked(r *run) {
	t.coming--
	if old := t.leases[r.id]; old != nil { // the same job again: the older lease must be over
		now := time.Now()
		cause := old.why(letterLost, now)
		if r.nonce != old.nonce && now.Before(old.until) {
			cause = ErrReplaced // the announcement is on its way
		}
		t.loseLocked(old, cause)
	}
	t.leases[r.id] = r
	t.takes++
	t.limited = r.opts.retry >= 0
	t.size += (r.stored - t.size) / 8
	for _, m := range t.unheard {
		if m.id == r.id && m.names(r) {
			t.loseLocked(r, m.cause)
		}
	}
}

// A loss says that the run of a job has lost its lease.
type loss struct {
	id, fence string
	cause     error
	at        time.Time
}

// names tells whether the loss is that of this run and no other one of the job.
func (m loss) names(r *run) bool {
	return slices.ContainsFunc(strings.Fields(r.fences()), func(end string) bool { return parseEnd(end) == parseEnd(m.fence) })
}

// lookLocked notes that the lease of a job that is to be started is over by our own clock: this process has stood still, and another server may
// have the job. It would be found out by the next extension, but by then many more would have been started.
func (t *topicServer) lookLocked(r *run, now time.Time) {
	if r.lost == nil && !now.Before(r.until) {
		t.loseLocked(r, ErrLeaseLost)
	}
}

// loseLocked notes that a job no longer belongs to this server and ends its handler's context,
// unless the handler has replaced the job itself.
func (t *topicServer) loseLocked(r *run, cause error) {
	if r.telling || t.leases[r.id] != r {
		return
	}
	r.lost = cause
	t.dropLocked(r)
	switch {
	case r.cancel == nil: // not started
	case errors.Is(cause, ErrReplaced) && r.ownDoing(time.Now()):
		if t.apart == nil {
			t.apart = make(map[*run]bool)
		}
		t.apart[r] = true
	default:
		r.cancel(cause)
	}
}

// dropLocked forgets a job.
func (t *topicServer) dropLocked(r *run) {
	if t.leases[r.id] == r {
		delete(t.leases, r.id)
	}
	if len(t.leases) == 0 {
		for _, c := range t.drained {
			close(c)
		}
		t.drained = nil
	}
	signal(t.freed)
}

// cancelRun ends the run of a job that a nudge says is cancelled or replaced, if it is the run of that lease.
func (t *topicServer) cancelRun(id, fence string, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := loss{id, fence, cause, time.Now()}
	if r := t.leases[id]; r != nil && m.names(r) {
		t.loseLocked(r, cause)
		return
	}
	t.unheard = slices.DeleteFunc(t.unheard, func(old loss) bool { return m.at.Sub(old.at) > time.Second })
	if len(t.unheard) < takeLimit { // more would cost more than the next extension, which finds out by itself
		t.unheard = append(t.unheard, m)
	}
}

// cancelAll ends the contexts of all running handlers.
func (t *topicServer) cancelAll(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.leases {
		if r.running() {
			r.cancel(cause)
		}
	}
	for r := range t.apart {
		r.cancel(cause)
	}
}

// abandonAll gives back the jobs of handlers that do not end, and tells how many those are.
func (t *topicServer) abandonAll() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.leases {
		if r.running() {
			n++
			t.tellLocked(row{run: r, verb: verbReturn, err: ErrShutdown, cause: ErrShutdown})
		}
	}
	return n
}

// settled gives a channel that is closed once nothing belongs to this server any more.
func (t *topicServer) settled() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := make(chan struct{})
	if len(t.leases) == 0 {
		close(c)
	} else {
		t.drained = append(t.drained, c)
	}
	return c
}
