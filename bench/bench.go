package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// topic is where the jobs of a row go.
const topic = "bench"

// bench is what the rows are measured with.
type bench struct {
	store *store
	sizes sizes
	notes io.Writer // for remarks on how a measurement went
	noted map[string]bool
	// rtt is the measured round trip of a Redis that is far away, else 0.
	rtt time.Duration
	// postgres is nil until a row needs it.
	postgres *postgres
	// node is where BullMQ is installed, nil until a side needs it.
	node *nodeHome
}

// database returns the PostgreSQL of the run, which it starts when the first
// row needs it.
func (b *bench) database(ctx context.Context) (*postgres, error) {
	if b.postgres == nil {
		db, err := openPostgres(ctx)
		if err != nil {
			return nil, fmt.Errorf("start PostgreSQL: %w", err)
		}
		b.postgres = db
	}
	return b.postgres, nil
}

// close ends and removes what rows have needed.
func (b *bench) close(ctx context.Context) error {
	var errs []error
	if b.postgres != nil {
		errs = append(errs, b.postgres.close(ctx))
	}
	if b.node != nil && b.node.dir != "" {
		errs = append(errs, os.RemoveAll(b.node.dir))
	}
	return errors.Join(errs...)
}

// notef leaves a remark for the person at the terminal.
func (b *bench) notef(format string, args ...any) {
	fmt.Fprintf(b.notes, "\n"+format+"\n", args...)
}

// noteOnce leaves a remark unless it has been left before.
func (b *bench) noteOnce(remark string) {
	if !b.noted[remark] {
		if b.noted == nil {
			b.noted = map[string]bool{}
		}
		b.noted[remark] = true
		b.notef("%s", remark)
	}
}

// product is a queue that can be measured.
type product struct {
	label string
	open  func(*store) peer
}

// on measures with a newly connected peer on an empty Redis, and leaves it
// empty.
func (p product) on(measure func(context.Context, *bench, peer) (sample, error)) side {
	return side{label: p.label, measure: func(ctx context.Context, b *bench) (_ sample, err error) {
		if err := b.store.flush(ctx); err != nil {
			return nil, err
		}
		q := p.open(b.store)
		defer func() {
			err = errors.Join(err, q.close(), b.store.flush(context.WithoutCancel(ctx)))
		}()
		return measure(ctx, b, q)
	}}
}

// both measures ours and the peer in the same way.
func both(measure func(context.Context, *bench, peer) (sample, error)) []side {
	return []side{delayqProduct.on(measure), asynqProduct.on(measure)}
}

// reset empties Redis after a warm-up. Connections and scripts stay.
func (b *bench) reset(ctx context.Context, p peer) error {
	if err := b.store.flush(ctx); err != nil {
		return err
	}
	return p.forget(ctx)
}

// fillChunk is how many jobs are built in memory at a time.
const fillChunk = 100_000

// fill stores the jobs from up to to-1 in the fastest way of the peer. when
// gives each its ID (may stay empty) and due time (may stay zero: at once).
func fill(ctx context.Context, p peer, topic string, from, to int, when func(i int) job) error {
	chunk := min(to-from, fillChunk)
	jobs := make([]job, chunk)
	payloads := make([]byte, chunk*payloadSize)
	for k := range chunk {
		copy(payloads[k*payloadSize:], newPayload())
	}
	for ; from < to; from += chunk {
		chunk = min(chunk, to-from)
		for k := range chunk {
			j := when(from + k)
			j.payload = payloads[k*payloadSize : (k+1)*payloadSize : (k+1)*payloadSize]
			due := j.at
			if due.IsZero() {
				due = time.Now().Add(j.in)
			}
			fillPayload(j.payload, from+k, due)
			jobs[k] = j
		}
		if err := p.enqueueAll(ctx, topic, jobs[:chunk]); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// ready is a job that is due at once.
func ready(int) job { return job{} }

// fillDue stores n jobs that fall due from a whole second on which is far
// enough away for all to be stored before it, and returns that second. How
// far is found by a try, which is the warm-up of the enqueue as well. If the
// jobs were not stored in time, it starts again with a longer time.
func (b *bench) fillDue(ctx context.Context, p peer, n int, when func(i int, second time.Time) time.Time) (time.Time, error) {
	return b.fillDueWith(ctx, p, n, func(i int, second time.Time) job { return job{at: when(i, second)} })
}

// fillDueWith is fillDue for jobs that differ in more than their due time.
func (b *bench) fillDueWith(ctx context.Context, p peer, n int, with func(i int, second time.Time) job) (time.Time, error) {
	return b.dueSecond(n, func(n int, second time.Time) error {
		if err := b.reset(ctx, p); err != nil {
			return err
		}
		return fill(ctx, p, topic, 0, n, func(i int) job { return with(i, second) })
	})
}

// dueSecond has store empty Redis and store n jobs that fall due from a second
// on, which it returns. See fillDue.
func (b *bench) dueSecond(n int, store func(n int, second time.Time) error) (time.Time, error) {
	const tries = 4
	probe := max(n/20, b.sizes.warm)
	start := time.Now()
	if err := store(probe, start.Add(delay)); err != nil {
		return time.Time{}, err
	}
	need := time.Since(start) * time.Duration(n) / time.Duration(probe) * 3 / 2
	for try := 1; ; try++ {
		start := time.Now()
		second := start.Add(need + 500*time.Millisecond).Truncate(time.Second).Add(time.Second)
		err := store(n, second)
		late := time.Since(second)
		if err != nil || late < 0 {
			return second, err
		}
		if try == tries {
			b.notef("storing %d jobs ended %s after they were due: do not trust this row", n, late.Round(time.Millisecond))
			return second, nil
		}
		need = 2 * time.Since(start)
	}
}

// until waits until t.
func until(ctx context.Context, t time.Time) error { return sleep(ctx, time.Until(t)) }

// settled waits until the topic has no unfinished job: after the last handler
// has returned, its end is still on the way to Redis.
func settled(ctx context.Context, p peer, topic string) error {
	return untilNone(ctx, topic, func() (int, error) { return p.left(ctx, topic) })
}

// untilNone waits until left says that the topic has no unfinished job.
func untilNone(ctx context.Context, topic string, left func() (int, error)) error {
	const pause = 2 * time.Millisecond
	deadline := time.Now().Add(patience)
	for {
		n, err := left()
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d jobs of topic %q are still unfinished %s after the last was handled", n, topic, patience)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}
