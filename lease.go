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

// extendMost is the longest interval between two extensions, however long the leases are.
const extendMost = 10 * time.Second

// extendLoop keeps the leases of a topic. It extends all leases that the server holds every third
// of a lease, and at least every 10 s. It also cancels handlers whose lease is over. When the
// server has subscribed to the control channel, the loop checks all leases immediately, because a
// cancel message may have been missed. Each topic has a loop of its own, so that an unresponsive
// cluster node costs no other topic its leases.
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
		// Even if there was nothing to ask for: otherwise a failed call that is not repeated would
		// keep the outage open.
		t.server.outage.answered(t.trouble.name + "/extend")
		slow.reset()
	}
}

// extendAll extends the leases of one topic. With look, it also checks those that cannot be
// extended yet.
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

// extendable lists the runs whose leases can be extended. A lease that is over by the local clock
// is lost, because another server may have the job by now. If the handler has returned, only Redis
// knows whether the lease is lost. The lease of a handler past its Timeout is not extended.
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

// extend extends leases in one call and returns the runs whose leases it leaves alone. The new end
// is chosen here. Until the reply arrives, the lease is known to end at one of two times, and every
// call that settles the job names both. An unanswered end is proposed again as long as it is
// useful. So Redis can hold only a few different ends, however long it is unreachable.
//
// The end is less than one lease after Redis's present time, because extend uses the earliest time
// that Redis's clock can show. So leases that are given later end later, and fences grow. A lease
// that already ends as late is left alone, unless Redis's clock was set back since the lease was
// given.
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

// askExtend is one call of the extend script. The leases are to end at ending, which is until by
// the local clock. With an empty ending they stay unchanged, and the call only detects lost leases.
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

	// While this call hangs, no other lease of the topic is extended.
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

// parseEnd converts the end of a lease to µs. Redis writes scores in ms with a fraction.
func parseEnd(score string) int64 {
	ms, _ := strconv.ParseFloat(score, 64) // Redis wrote it
	return int64(math.Round(ms * 1000))
}

// errLate means that Redis's clock was ahead of the estimate. The reply has already corrected it.
var errLate = errors.New("lease end in the past")

func (t *topicServer) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.leases)
}

// holdLocked records that this server owns a taken job.
func (t *topicServer) holdLocked(r *run) {
	t.coming--
	// The same job again: the older lease must be over.
	if old := t.leases[r.id]; old != nil {
		now := time.Now()
		cause := old.why(letterLost, now)
		if r.nonce != old.nonce && now.Before(old.until) {
			cause = ErrReplaced // the control message has not arrived yet
		}
		t.loseLocked(old, cause)
	}
	t.leases[r.id] = r
	t.takes++
	t.limited = r.opts.Retry >= 0
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

// names reports whether the loss is that of this run, and not of another run of the job.
func (m loss) names(r *run) bool {
	return slices.ContainsFunc(strings.Fields(r.fences()), func(end string) bool { return parseEnd(end) == parseEnd(m.fence) })
}

// lookLocked marks a job as lost if its lease is over by the local clock before the job starts.
// Then this process has been suspended, and another server may have the job. The next extension
// would detect it, but by then many more would have started.
func (t *topicServer) lookLocked(r *run, now time.Time) {
	if r.lost == nil && !now.Before(r.until) {
		t.loseLocked(r, ErrLeaseLost)
	}
}

// loseLocked marks a job as lost and cancels its handler's context, unless the handler itself
// replaced the job.
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

// dropLocked removes a job from this server's leases.
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

// cancelRun ends the run of a job that a control message reports as cancelled or replaced, if the
// fence is that of the run.
func (t *topicServer) cancelRun(id, fence string, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := loss{id, fence, cause, time.Now()}
	if r := t.leases[id]; r != nil && m.names(r) {
		t.loseLocked(r, cause)
		return
	}
	t.unheard = slices.DeleteFunc(t.unheard, func(old loss) bool { return m.at.Sub(old.at) > time.Second })
	// More would cost more than the next extension, which detects lost leases itself.
	if len(t.unheard) < takeLimit {
		t.unheard = append(t.unheard, m)
	}
}

// cancelAll cancels the contexts of all running handlers.
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

// abandonAll gives back the jobs of handlers that do not return, and returns their number.
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

// settled returns a channel that is closed once this server owns no job of the topic.
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
