package delayq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/script"
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

// beginBatch makes runs those of a batch that is running. Its context is a child of parent. at is
// now by Redis's clock.
func beginBatch(parent context.Context, mu *sync.Mutex, k *script.Keys, runs []*run, now, at time.Time) *batchRun {
	b := &batchRun{runs: runs, parts: make([]part, len(runs)), began: now, left: len(runs), stop: func() {}}
	b.ctx.batch = b
	b.ctx.Context, b.cancel = context.WithCancelCause(parent)
	var deadline time.Time
	for _, r := range runs {
		if limit := r.opts.Timeout; limit > 0 {
			if by := now.Add(time.Duration(limit) * time.Millisecond); deadline.IsZero() || by.Before(deadline) {
				deadline = by
			}
		}
	}
	if !deadline.IsZero() {
		b.ctx.Context, b.stop = context.WithDeadlineCause(b.ctx.Context, deadline, errTimeout)
	}
	for i, r := range runs {
		r.begin(&b.ctx, mu, k, now, at)
		r.deadline, r.batch = deadline, b
		p, cancel := &b.parts[i], r.cancel
		r.cancel = func(cause error) {
			cancel(cause)
			b.lose(p, cause)
		}
		p.ctx = &r.ctx
	}
	return b
}

// end releases the contexts of a batch whose handler has returned.
func (b *batchRun) end() {
	b.cancel(nil)
	b.stop()
}

// lose notes that the context of one run was cancelled. topicServer.mu must be held.
func (b *batchRun) lose(p *part, cause error) {
	if errors.Is(cause, errShutdown) { // it concerns all of them
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

// A part is what a batch has of one of its jobs. Copies of the job share it.
type part struct {
	ctx context.Context // of the job

	mu      sync.Mutex
	over    bool  // the handler has returned
	decided bool  // the job has an outcome of its own
	err     error // which follows from this
	cause   error // of the end of ctx, if that came before
	lost    error // why the job no longer belongs to the batch
}

// gone returns why the job no longer belongs to the batch, or nil.
func (p *part) gone() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// set sets the outcome of the job. It returns false if it is too late.
func (p *part) set(err error) bool {
	cause := context.Cause(p.ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.decided, p.err, p.cause = true, err, cause
	return true
}

// close ends the time in which an outcome can be set. It returns the outcome, which is that of the
// batch if the job has none of its own.
func (p *part) close(err, cause error) (own, ended error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.decided {
		return p.err, p.cause
	}
	return err, cause
}
