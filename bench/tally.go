package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// tally keeps book of the jobs that handlers were given: each of n jobs must
// come, and which came twice is counted. Its cost per job is a few atomic
// operations and no allocation.
type tally struct {
	n       int
	seen    []atomic.Uint64 // one bit per job
	handled atomic.Int64    // different jobs seen
	doubled atomic.Int64    // deliveries of a job seen before
	strange atomic.Int64    // deliveries that are none of the n jobs
	last    atomic.Int64    // when the n-th job was handled, Unix ns
	done    chan struct{}   // closed then
}

// newTally expects the jobs 0 to n-1.
func newTally(n int) *tally {
	return &tally{n: n, seen: make([]atomic.Uint64, (n+63)/64), done: make(chan struct{})}
}

// handle is a handler that does nothing but note the job.
func (t *tally) handle(d delivery) { t.note(payloadIndex(d.payload)) }

// note records that the job was handled.
func (t *tally) note(index int) {
	if index < 0 || index >= t.n {
		t.strange.Add(1)
		return
	}
	bit := uint64(1) << (index % 64)
	if t.seen[index/64].Or(bit)&bit != 0 {
		t.doubled.Add(1)
		return
	}
	if t.handled.Add(1) == int64(t.n) {
		t.last.Store(time.Now().UnixNano())
		close(t.done)
	}
}

// patience is how long a tally waits for the next job before it calls the
// rest lost. Longer than any lease or poll interval of the peers.
const patience = 90 * time.Second

// wait blocks until every job was handled and returns when the last one was.
func (t *tally) wait(ctx context.Context) (time.Time, error) {
	ticker := time.NewTicker(patience)
	defer ticker.Stop()
	before := int64(-1)
	for {
		select {
		case <-t.done:
			return time.Unix(0, t.last.Load()), nil
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-ticker.C:
			now := t.handled.Load()
			if now == before {
				return time.Time{}, fmt.Errorf("%d of %d jobs lost: no handler call for %s", int64(t.n)-now, t.n, patience)
			}
			before = now
		}
	}
}

// check returns an error unless every job came exactly once. Both peers
// promise at least once only, but without a fault nothing should come twice.
func (t *tally) check() error {
	if d, s := t.doubled.Load(), t.strange.Load(); d > 0 || s > 0 {
		return fmt.Errorf("%d jobs came twice, %d deliveries were of no job of this row", d, s)
	}
	return nil
}

// stopwatch adds up the time that handlers run.
type stopwatch struct {
	first atomic.Int64 // start of the first, Unix ns
	sum   atomic.Int64 // ns
}

// wrap returns handle with its time added up.
func (w *stopwatch) wrap(handle func(delivery)) func(delivery) {
	return func(d delivery) {
		start := time.Now()
		w.first.CompareAndSwap(0, start.UnixNano())
		handle(d)
		w.sum.Add(int64(time.Since(start)))
	}
}

// busy is the share of slots that were busy from the first start to end.
func (w *stopwatch) busy(end time.Time, slots int) float64 {
	wall := end.UnixNano() - w.first.Load()
	return float64(w.sum.Load()) / float64(wall) / float64(slots)
}
