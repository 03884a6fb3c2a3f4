package serve

import (
	"context"
	"time"

	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// gathersAll reports whether jobs of all keys are gathered together.
func (t *Topic) gathersAll() bool {
	w := &t.Workers.Window // it never changes
	return w.Size > 0 && !w.ByKey
}

// gatherArgs returns the arguments of a take about gathering. The take is for n jobs, of which free
// can start.
func (t *Topic) gatherArgs(n, free int) []any {
	w, seat := &t.Workers.Window, t.Workers.Seat()
	groups, size := 0, w.Size
	switch {
	case w.ByKey:
		groups = max(1, free/seat)
	case size > 0:
		t.Mu.Lock()
		size -= t.Workers.Begun(n)
		t.Mu.Unlock()
	}
	return []any{max(0, size), w.Wait.Milliseconds(), groups, seat}
}

// gatherLocked makes jobs wait a moment for others of their batch, which are on their way.
func (t *Topic) gatherLocked() {
	var timer *time.Timer
	timer = time.AfterFunc(t.Workers.Patience(), func() {
		t.Mu.Lock()
		defer t.Mu.Unlock()
		if t.Workers.gather == timer {
			t.Workers.gather = nil
			t.Workers.Hasty = t.Workers.Gathers()
			t.startWorkerLocked()
		}
	})
	t.Workers.gather = timer
}

// endGatherLocked ends that wait.
func (t *Topic) endGatherLocked() {
	t.Workers.Hasty = false
	if t.Workers.gather != nil {
		t.Workers.gather.Stop()
		t.Workers.gather = nil
	}
}

// startBatchLocked makes a batch of a job and of those that follow it in the queue, and marks them
// as running.
func (t *Topic) startBatchLocked(first *run.Run, now time.Time) {
	t.endGatherLocked()
	runs := make([]*run.Run, 1, 1+min(len(t.Workers.Next), t.Workers.PerCall-1))
	runs[0] = first
	for len(runs) < t.Workers.PerCall && t.Workers.Follows(first) {
		r := t.Workers.Shift()
		if t.keepsLocked(r, now) {
			runs = append(runs, r)
		}
	}
	run.BeginBatch(t.stay.base, &t.Mu, t.Keys, runs, now, t.clock.At(now))
}

// executeBatch is execute for a batch.
func (t *Topic) executeBatch(b *run.Batch) (next *run.Run) {
	defer b.End()
	return t.handle(func() error {
		return t.config.Task.RunBatch(&b.Ctx, b, func(r *run.Run) context.Context { return t.Server.Config.Observer.Begun(&r.Ctx, r) })
	}, func(err error) *run.Run { return t.finishBatch(b, context.Cause(&b.Ctx), err, time.Now()) })
}

// finishBatch is finish for a batch whose handler has returned err.
func (t *Topic) finishBatch(b *run.Batch, cause, err error, now time.Time) (next *run.Run) {
	ran := now.Sub(b.Began)
	rows := make([]settle.Row, len(b.Runs))
	for i, r := range b.Runs {
		own, ended := b.Parts[i].Close(err, cause)
		rows[i] = t.Server.Config.Judge.Verdict(r, ended, own, ran)
		rows[i].Cause, rows[i].Output, rows[i].Parcels = ended, r.Output.End(), r.Hands.End()
		r.Noted.End()
	}
	type end struct {
		abandoned bool
		lost      error
	}
	ends, settles := make([]end, len(rows)), false
	t.Mu.Lock()
	for i := range rows {
		ends[i].abandoned, ends[i].lost = t.endLocked(rows[i])
		settles = settles || !ends[i].abandoned && ends[i].lost == nil
	}
	next = t.nextLocked(ran, now, settles)
	t.unlock()
	for i, e := range ends {
		t.reportEnd(rows[i], e.abandoned, e.lost)
	}
	return next
}
