package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// payloadSize is the size of a payload in bytes, but for the rows about larger
// ones: two numbers that the harness needs, the rest filler.
const payloadSize = 100

// job is what a peer is asked to store.
type job struct {
	id      string        // empty: the peer generates one
	payload []byte        // made by fillPayload
	in      time.Duration // due that long after now; used when at is zero
	at      time.Time     // due at that time
	key     string        // of a lane, which only delayq has; empty: none
}

// fillPayload writes the number of the job and its due time into p.
func fillPayload(p []byte, index int, due time.Time) {
	binary.LittleEndian.PutUint64(p, uint64(index))
	binary.LittleEndian.PutUint64(p[8:], uint64(due.UnixNano()))
}

// newPayload returns a payload with random filler.
func newPayload() []byte { return randomBytes(payloadSize) }

// randomBytes returns n of them.
func randomBytes(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rand.UintN(256))
	}
	return p
}

// payloadIndex is the number of the job.
func payloadIndex(p []byte) int { return int(binary.LittleEndian.Uint64(p)) }

// payloadDue is the due time of the job.
func payloadDue(p []byte) time.Time {
	return time.Unix(0, int64(binary.LittleEndian.Uint64(p[8:])))
}

// delivery is a job in the hands of a handler.
type delivery struct {
	payload []byte
	late    time.Duration // start minus due, by the peer's clock of record; negative when it is early
}

// topicWork says how one topic is worked off.
type topicWork struct {
	topic       string
	concurrency int
	handle      func(delivery)
}

// workload says what the servers of a peer work off.
type workload struct {
	topics  []topicWork
	servers int // each with a client of its own; 0 means 1
	// plain keeps every interval at the peer's default. Without it a peer is
	// set up for the highest rate.
	plain bool
	// takes counts the calls that ask for jobs; nil if nobody wants to know.
	takes *atomic.Int64
}

// peer is a queue under test, connected to the store. It is used for one
// sample and then closed.
type peer interface {
	// enqueue stores one job, as a program would that has one to store.
	enqueue(ctx context.Context, topic string, j job) error
	// enqueueAll stores many jobs in the fastest way the peer has.
	enqueueAll(ctx context.Context, topic string, jobs []job) error
	// cancel takes back a job that is not yet due.
	cancel(ctx context.Context, topic, id string) error
	// work starts servers. The function it returns stops them, and returns
	// when they have settled what they had in hand.
	work(ctx context.Context, w workload) (stop func() error, err error)
	// left is the number of unfinished jobs of a topic, asked over the admin
	// client, so that it is not counted.
	left(ctx context.Context, topic string) (int, error)
	// forget drops what the peer has outside Redis, and what it remembers of a
	// Redis that was emptied.
	forget(ctx context.Context) error
	// close disconnects.
	close() error
}

// inParallel calls do for every number below n from that many goroutines,
// each with a block of the numbers, until one of the calls fails. Each
// goroutine has a payload of its own, which do may change.
func inParallel(ctx context.Context, goroutines, n int, do func(ctx context.Context, i int, payload []byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			payload := newPayload()
			for i := n * g / goroutines; i < n*(g+1)/goroutines; i++ {
				if err := do(ctx, i, payload); err != nil {
					errs[g] = fmt.Errorf("job %d: %w", i, err)
					cancel()
					return
				}
			}
		})
	}
	wg.Wait()
	return firstCause(errs)
}

// firstCause returns the first error that is not the cancellation which
// another of them led to.
func firstCause(errs []error) error {
	var first error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}
