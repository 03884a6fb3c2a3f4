package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// EnqueueBatch stores any number of jobs of any topics and options. Jobs of one topic are sent in
// chunks, in their order. Each chunk is stored as a whole or not at all. Results are in the order
// of jobs; each has its own error, as from [Client.Enqueue]. The returned error is non-nil if any
// job failed, and joins the first ten failures. When ctx is done, jobs not yet sent get its error.
//
// After a chunk that Redis does not answer, no other is sent. The jobs of that chunk have
// [ErrUnknownOutcome]. Later jobs have another error: they are not stored, and can be sent again in
// another batch.
//
// EnqueueBatch holds about 400 bytes for each result until it returns, and the records of at most a
// few thousand jobs at a time.
func (c *Client) EnqueueBatch(ctx context.Context, jobs []NewJob) ([]EnqueueResult, error) {
	b := &batch{
		client: c, ctx: ctx, results: make([]EnqueueResult, len(jobs)), waiting: make(map[string]*parcel), out: c.newOutbox(ctx, len(jobs)),
	}
	defer b.out.close()
	for i := range jobs {
		b.add(i, jobs[i])
	}
	b.sendAll()
	b.out.close()
	b.collect(0)
	if b.failed == 0 {
		return b.results, nil
	}
	return b.results, fmt.Errorf("enqueue batch: %d of %d jobs failed: %w", b.failed, len(jobs), errors.Join(b.first...))
}

const (
	// parcelsHeld and parcelsBytes bound the jobs that wait for others of their topics to share a
	// call.
	parcelsHeld  = 10 * chunkJobs
	parcelsBytes = 4 * chunkBytes

	// parcelsSent is the maximum number of parcels in the outbox: one in progress and the next one.
	// Earlier ones are done.
	parcelsSent = 2
)

// A batch is one EnqueueBatch.
type batch struct {
	client  *Client
	ctx     context.Context
	results []EnqueueResult
	waiting map[string]*parcel // by topic
	queued  int                // jobs in them
	bytes   int                // of their records
	out     *outbox
	sent    []*parcel // whose outcome is not in results yet
	failed  int
	first   []error // some of them
}

// A parcel is jobs of one topic that are sent together.
type parcel struct {
	list  []*enqueueing
	fresh []NewJob // as the hooks have changed them
	index []int    // of the results
	bytes int
}

// add prepares a job, and sends parcels that are complete.
func (b *batch) add(i int, job NewJob) {
	job.Options = slices.Clip(job.Options)
	e, err := b.client.prepare(b.ctx, &job)
	if err != nil {
		err = fmt.Errorf("job %d of the batch: %w", i, err)
		b.outcome(i, &job, nil, located{call: "enqueue", topic: job.Topic, job: job.ID}.at(err))
		return
	}
	p := b.waiting[e.topic]
	if p == nil {
		p = &parcel{}
		b.waiting[e.topic] = p
	}
	size := len(e.tail)
	p.list, p.fresh, p.index = append(p.list, e), append(p.fresh, job), append(p.index, i)
	p.bytes, b.queued, b.bytes = p.bytes+size, b.queued+1, b.bytes+size
	switch {
	case len(p.list) == chunkJobs, p.bytes >= chunkBytes:
		b.send(p)
	case b.queued >= parcelsHeld, b.bytes >= parcelsBytes:
		b.sendAll()
	}
}

// sendAll sends all waiting parcels.
func (b *batch) sendAll() {
	for _, p := range b.waiting {
		b.send(p)
	}
}

func (b *batch) send(p *parcel) {
	delete(b.waiting, p.list[0].topic)
	b.queued, b.bytes = b.queued-len(p.list), b.bytes-p.bytes
	b.sent = append(b.sent, p)
	b.out.send(p.list)
	b.collect(parcelsSent)
}

// collect reads the outcomes of the sent parcels, except the last but parcels, and drops their
// records.
func (b *batch) collect(but int) {
	for len(b.sent) > but {
		p := b.sent[0]
		b.sent = slices.Delete(b.sent, 0, 1)
		for n, e := range p.list {
			e.own.stored(e.err)
			b.outcome(p.index[n], &p.fresh[n], e, e.err)
		}
	}
}

// outcome records the outcome of a job. e is nil if it was not sent.
func (b *batch) outcome(i int, job *NewJob, e *enqueueing, err error) {
	b.results[i].Err = err
	if e != nil && maybeStored(err) {
		b.results[i].Job = e.job()
	}
	b.client.enqueued(b.ctx, job, e, err)
	if err == nil {
		return
	}
	if b.failed++; b.failed <= 10 {
		b.first = append(b.first, err)
	}
}

// errCutOff is the outcome of jobs whose call has ended its goroutine, as a hook of the caller's
// go-redis client can.
var errCutOff = fmt.Errorf("%w: the call was cut off", ErrUnknownOutcome)

// An outbox sends the jobs of a batch while the next ones are prepared. It has its own goroutine,
// unless there are few jobs.
type outbox struct {
	client *Client
	ctx    context.Context    // of the batch
	lists  chan []*enqueueing // nil: there is no goroutine
	done   chan struct{}      // closed when the goroutine has exited
	close  func()             // waits until all jobs are sent
	silent error              // why no more jobs are sent
}

func (c *Client) newOutbox(ctx context.Context, jobs int) *outbox {
	o := &outbox{client: c, ctx: ctx, close: func() {}}
	if jobs <= chunkJobs {
		return o
	}
	o.lists, o.done = make(chan []*enqueueing, 1), make(chan struct{})
	o.close = sync.OnceFunc(func() {
		close(o.lists)
		<-o.done
	})
	o.start()
	return o
}

// start starts the goroutine of an outbox. If a hook of the caller's go-redis client ends it, the
// jobs in progress get an error, and another goroutine continues with the next ones.
func (o *outbox) start() {
	var list []*enqueueing
	launch(nil, func() {
		for list = range o.lists {
			o.forward(list)
		}
		close(o.done)
	}, func(c *crash) {
		cut(list, c)
		o.start()
	})
}

// send stores jobs of one topic. Their outcomes are set after close.
func (o *outbox) send(list []*enqueueing) {
	for _, e := range list {
		e.err = errCutOff
	}
	if o.lists == nil {
		o.forward(list)
		return
	}
	o.lists <- list
}

// forward stores jobs of one topic, unless Redis failed to answer an earlier call.
func (o *outbox) forward(list []*enqueueing) {
	g := o.client.commit(list[0].topic)
	defer g.done()
	o.silent = g.enqueueAll(o.ctx, list, o.silent)
}

// enqueueAll stores the jobs of a batch, chunk by chunk, on its own series. After a chunk that
// Redis does not answer it sends no other, because each would wait as long. silent is the error of
// such a chunk earlier in the batch; enqueueAll returns its new value.
func (g *commit) enqueueAll(ctx context.Context, list []*enqueueing, silent error) error {
	series := g.client.series.get()
	for len(list) > 0 {
		cause := context.Cause(ctx)
		if cause == nil && silent != nil {
			cause = silent
		}
		if cause != nil {
			for _, e := range list {
				e.err = g.at(e, cause)
			}
			break
		}
		n := chunkLen(list)
		if err := g.send(ctx, series, list[:n]); err != nil && away(err) {
			silent = fmt.Errorf("not sent, because Redis did not answer an earlier chunk: %w", err)
			if !certain(err) {
				series = newSeries()
			}
		}
		list = list[n:]
	}
	g.client.series.put(series, nil)
	return silent
}
