package delayq

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A batchRun is the runs of one call of a batch handler. Each of them is a run like any other for
// leases, control messages and outcomes.
type batchRun struct {
	runs   []*run
	parts  []part // of the runs, in their order
	began  time.Time
	ctx    batchContext
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // of the deadline
	left   int                // runs that have not lost their jobs; guarded by topicServer.mu
}

// A batchContext is the context of a batch handler. It identifies the runs.
type batchContext struct {
	context.Context
	batch *batchRun
}

func (c *batchContext) Value(key any) any {
	if key == (runKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// String keeps fmt from looking into the runs.
func (c *batchContext) String() string { return fmt.Sprintf("%v.BatchHandler", c.Context) }

// of returns the context of a job of the batch, or nil.
func (c *batchContext) of(id string) *runContext {
	for _, r := range c.batch.runs {
		if r.id == id {
			return &r.ctx
		}
	}
	return nil
}

// gatherLocked makes jobs wait a moment for others of their batch, which are on their way.
func (t *topicServer) gatherLocked() {
	var timer *time.Timer
	timer = time.AfterFunc(t.workers.patience(), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.gather == timer {
			t.gather = nil
			t.workers.hasty = t.workers.gathers()
			t.startWorkerLocked()
		}
	})
	t.gather = timer
}

// endGatherLocked ends that wait.
func (t *topicServer) endGatherLocked() {
	t.workers.hasty = false
	if t.gather != nil {
		t.gather.Stop()
		t.gather = nil
	}
}

// startBatchLocked makes a batch of a job and of those that follow it in the queue, and marks them
// as running.
func (t *topicServer) startBatchLocked(first *run, now time.Time) {
	t.endGatherLocked()
	b := &batchRun{runs: make([]*run, 1, 1+min(len(t.workers.next), t.workers.perCall-1)), began: now}
	b.runs[0] = first
	for len(b.runs) < t.workers.perCall && t.workers.follows(first) {
		r := t.workers.shift()
		if t.keepsLocked(r, now) {
			b.runs = append(b.runs, r)
		}
	}
	b.parts, b.left = make([]part, len(b.runs)), len(b.runs)
	b.ctx.batch = b
	b.ctx.Context, b.cancel = context.WithCancelCause(t.base)
	b.stop = func() {}
	var deadline time.Time
	for _, r := range b.runs {
		if limit := r.opts.Timeout; limit > 0 {
			if by := now.Add(ofMS(limit)); deadline.IsZero() || by.Before(deadline) {
				deadline = by
			}
		}
	}
	if !deadline.IsZero() {
		b.ctx.Context, b.stop = context.WithDeadlineCause(b.ctx.Context, deadline, ErrTimeout)
	}
	for i, r := range b.runs {
		t.startLocked(r, now, &b.ctx)
		r.deadline, r.batch = deadline, b
		p, cancel := &b.parts[i], r.cancel
		r.cancel = func(cause error) {
			cancel(cause)
			b.lose(p, cause)
		}
		p.ctx = &r.ctx
	}
}

// lose notes that the context of one run was cancelled. topicServer.mu must be held.
func (b *batchRun) lose(p *part, cause error) {
	if errors.Is(cause, ErrShutdown) { // it concerns all of them
		b.cancel(cause)
		return
	}
	p.mu.Lock()
	first := p.lost == nil
	if first {
		p.lost = cause
	}
	p.mu.Unlock()
	if first {
		if b.left--; b.left == 0 {
			b.cancel(cause)
		}
	}
}

// executeBatch is execute for a batch.
func (t *topicServer) executeBatch(b *batchRun) (next *run) {
	defer func() {
		b.cancel(nil)
		b.stop()
	}()
	return t.handle(func() error {
		jobs := make([]*Job, len(b.runs))
		for i, r := range b.runs {
			b.parts[i].ctx = t.begun(&r.ctx, r)
			jobs[i] = r.newJob()
			jobs[i].part = &b.parts[i]
		}
		return t.batches(&b.ctx, jobs)
	}, func(err error) *run { return t.finishBatch(b, context.Cause(&b.ctx), err, time.Now()) })
}

// finishBatch is finish for a batch whose handler has returned err.
func (t *topicServer) finishBatch(b *batchRun, cause, err error, now time.Time) (next *run) {
	ran := now.Sub(b.began)
	rows := make([]row, len(b.runs))
	for i, r := range b.runs {
		own, ended := b.parts[i].close(err, cause)
		rows[i] = t.verdict(r, ended, own, ran)
		rows[i].cause, rows[i].output = ended, r.output.end()
	}
	type end struct {
		abandoned bool
		lost      error
	}
	ends := make([]end, len(rows))
	t.mu.Lock()
	for i := range rows {
		ends[i].abandoned, ends[i].lost = t.endLocked(rows[i])
	}
	next = t.nextLocked(ran, now)
	t.unlock()
	for i, e := range ends {
		t.reportEnd(rows[i], e.abandoned, e.lost)
	}
	return next
}
