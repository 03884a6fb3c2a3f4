package serve

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// extendLimit is the most leases that one call extends.
const extendLimit = 500

// extendMost is the longest interval between two extensions, however long the leases are.
const extendMost = 10 * time.Second

// extendStep is a step of the loop that keeps the leases of a topic. It extends all leases that the
// server holds every third of a lease, and at least every 10 s. It also cancels handlers whose
// lease is over. When the server has subscribed to the control channel, the loop checks all leases
// immediately, because a cancel message may have been missed.
func (t *Topic) extendStep(ctx context.Context) loop.Next {
	k := &t.extender
	if ctx.Err() != nil {
		return loop.Over
	}
	every := min(t.Server.Config.Lease/3, extendMost)
	if k.at.IsZero() {
		k.at = time.Now().Add(every)
	}
	k.look = t.extender.unsure.Swap(false) || k.look
	if wait := time.Until(k.at); wait > 0 && !k.look {
		return loop.RestFor(wait)
	}
	err := t.extendAll(ctx, k.look)
	if err != nil {
		wait := min(every/4, k.slow.Next())
		k.at = time.Now().Add(wait)
		return loop.PauseFor(wait)
	}
	k.look = false
	// Even if there was nothing to ask for: otherwise a failed call that is not repeated would keep
	// the outage open.
	t.Server.outage.Answered(t.trouble.name + "/extend")
	k.slow.Reset()
	k.at = time.Now().Add(every)
	return loop.RestFor(every)
}

// An extender is the state of that loop.
type extender struct {
	unsure atomic.Bool // a cancel message may have been missed
	at     time.Time   // of the next extension; zero: one interval after the start
	look   bool        // it also checks leases that cannot be extended yet
	slow   loop.Pace

	audited int64 // takes at the last audit of restore, which alone uses it
}

// doubt makes the topic check all its leases.
func (t *Topic) doubt() {
	t.extender.unsure.Store(true)
	t.Loops.extend.Wake()
}

// extendAll extends the leases of one topic. With look, it also checks those that cannot be
// extended yet.
func (t *Topic) extendAll(ctx context.Context, look bool) error {
	t.turn(turnExtend)
	t.Mu.Lock()
	list := t.owned.Extendable(time.Now())
	t.Mu.Unlock()
	for some := range slices.Chunk(list, extendLimit) {
		rest, err := t.extend(ctx, some)
		if err != nil {
			return err
		}
		if look && len(rest) > 0 {
			if err := t.checkLeases(ctx, rest); err != nil {
				return err
			}
		}
	}
	return nil
}

// extend extends leases in one call and returns the runs whose leases it leaves alone. The new end
// is chosen here. Until the reply arrives, the lease is known to end at one of two times, and every
// call that settles the job names both.
//
// The end is less than one lease after Redis's present time, because extend uses the earliest time
// that Redis's clock can show. So leases that are given later end later, and fences grow.
func (t *Topic) extend(ctx context.Context, list []*run.Run) (rest []*run.Run, err error) {
	sent := time.Now()
	now, latest, sets := t.clock.Earliest(sent), t.clock.Latest(sent), t.clock.SetsBack()
	t.Mu.Lock()
	end := t.owned.Propose(now, t.Server.Config.Lease.Milliseconds())
	e := run.Extension{
		End: record.LeaseEndAt(end), Until: sent.Add(time.Duration(end-latest) * time.Millisecond), SetBacks: sets,
	}
	asked, rest, fences := run.Ask(list, e)
	t.Mu.Unlock()
	if len(asked) == 0 {
		return rest, nil
	}
	return rest, t.askExtend(ctx, e, asked, fences)
}

// checkLeases detects lost leases. It extends none.
func (t *Topic) checkLeases(ctx context.Context, list []*run.Run) error {
	fences := make([]string, len(list))
	t.Mu.Lock()
	for i, r := range list {
		fences[i] = r.Fence.String()
	}
	t.Mu.Unlock()
	return t.askExtend(ctx, run.Extension{}, list, fences)
}

// askExtend is one call of the extend script. With the zero extension the leases stay unchanged,
// and the call only detects lost ones.
func (t *Topic) askExtend(ctx context.Context, e run.Extension, asked []*run.Run, fences []string) error {
	look := e == run.Extension{}
	args := make([]any, 1, 1+2*len(asked))
	args[0] = e.End.String()
	for i, r := range asked {
		args = append(args, r.ID, fences[i])
	}

	// While this call hangs, no other lease of the topic is extended.
	sent := time.Now()
	reply, err := t.exec(ctx, topicCall{
		script: script.Extend, jobs: len(asked), timeout: min(CallTimeout, t.Server.Config.Lease/3),
	}, args...)
	if err != nil {
		return err
	}
	e.SetBacks = t.clock.SetsBack()
	letters := t.examine(ctx, reply.Text(2))
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if !look {
		t.owned.Proposed = 0
	}
	if reply.Status() != "ok" {
		return errLate
	}
	for i, r := range asked {
		switch {
		case i >= len(letters):
			return script.ErrReply
		case letters[i] == script.LetterOurs && look:
		case letters[i] == script.LetterOurs:
			r.Confirm(e)
		default:
			t.owned.Lose(r, r.Why(letters[i], sent), time.Now())
		}
	}
	return nil
}

// errLate means that Redis's clock was ahead of the estimate. The reply has already corrected it.
var errLate = errors.New("lease end in the past")

func (t *Topic) count() int {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	return len(t.owned.Runs)
}

// cancelRun ends the run of a job that a control message reports as cancelled or replaced, if the
// run has the lease with that end.
func (t *Topic) cancelRun(id, end string, cause error) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.owned.Hear(run.Loss{ID: id, End: record.ParseLeaseEnd(end), Cause: cause, At: time.Now()})
}

// cancelAll cancels the contexts of all running handlers.
func (t *Topic) cancelAll(cause error) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.owned.CancelAll(cause)
}

// abandonAll gives back the jobs of handlers that do not return, and returns their number.
func (t *Topic) abandonAll() (n int) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for r := range t.owned.Running {
		n++
		t.Outcomes.Add(settle.Row{Run: r, Verb: settle.Return, Runs: true, Err: run.ErrShutdown, Cause: run.ErrShutdown})
	}
	return n
}
