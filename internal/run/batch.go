package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/script"
)

// A Batch is the runs of one call of a batch handler. Each of them is a run like any other for
// leases, control messages and outcomes.
type Batch struct {
	Runs   []*Run
	Parts  []Part // of the runs, in their order
	Began  time.Time
	Ctx    batchContext
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // of the deadline
	left   int                // runs that have not lost their jobs; guarded by the mutex of the topic
}

// A batchContext is the context of a batch handler. It identifies the runs.
type batchContext struct {
	context.Context
	batch *Batch
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
func (c *batchContext) of(id string) *Context {
	for _, r := range c.batch.Runs {
		if r.ID == id {
			return &r.Ctx
		}
	}
	return nil
}

// BeginBatch makes runs those of a batch that is running. Its context is a child of parent. at is
// now by Redis's clock.
func BeginBatch(parent context.Context, mu *sync.Mutex, k *script.Keys, runs []*Run, now, at time.Time) *Batch {
	b := &Batch{Runs: runs, Parts: make([]Part, len(runs)), Began: now, left: len(runs), stop: func() {}}
	b.Ctx.batch = b
	b.Ctx.Context, b.cancel = context.WithCancelCause(parent)
	var deadline time.Time
	for _, r := range runs {
		if limit := r.Options.Timeout; limit > 0 {
			if by := now.Add(time.Duration(limit) * time.Millisecond); deadline.IsZero() || by.Before(deadline) {
				deadline = by
			}
		}
	}
	if !deadline.IsZero() {
		b.Ctx.Context, b.stop = context.WithDeadlineCause(b.Ctx.Context, deadline, ErrTimeout)
	}
	for i, r := range runs {
		r.Begin(&b.Ctx, mu, k, now, at)
		r.Deadline, r.Batch = deadline, b
		p, cancel := &b.Parts[i], r.Cancel
		r.Cancel = func(cause error) {
			cancel(cause)
			b.lose(p, cause)
		}
		p.Ctx = &r.Ctx
	}
	return b
}

// End releases the contexts of a batch whose handler has returned.
func (b *Batch) End() {
	b.cancel(nil)
	b.stop()
}

// lose notes that the context of one run was cancelled. The mutex of the topic must be held.
func (b *Batch) lose(p *Part, cause error) {
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

// A Part is what a batch has of one of its jobs. Copies of the job share it.
type Part struct {
	Ctx context.Context // of the job

	mu      sync.Mutex
	over    bool  // the handler has returned
	decided bool  // the job has an outcome of its own
	err     error // which follows from this
	cause   error // of the end of ctx, if that came before
	lost    error // why the job no longer belongs to the batch
}

// Gone returns why the job no longer belongs to the batch, or nil.
func (p *Part) Gone() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Set sets the outcome of the job. It returns false if it is too late.
func (p *Part) Set(err error) bool {
	cause := context.Cause(p.Ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.decided, p.err, p.cause = true, err, cause
	return true
}

// Close ends the time in which an outcome can be set. It returns the outcome, which is that of the
// batch if the job has none of its own.
func (p *Part) Close(err, cause error) (own, ended error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.decided {
		return p.err, p.cause
	}
	return err, cause
}
