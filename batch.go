package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// EnqueueBatch stores any number of jobs of any topics and options. Jobs of one topic go in chunks, in their order, each of which is
// stored as a whole or not at all. The results stand in the order of jobs: each job has its own outcome, with the errors of
// Enqueue. The error is not nil if any job's is, and joins the first few of them. When ctx ends, jobs not yet sent get its error.
//
// After a chunk that Redis does not answer no other is sent. The jobs of that chunk have ErrUnknownOutcome, those behind
// it another error: they are not stored, and can be given to a batch again.
//
// It holds about 400 bytes for each result until it returns, and the records of no more than a few thousand jobs at a time.
func (c *Client) EnqueueBatch(ctx context.Context, jobs []NewJob) ([]Result, error) {
	b := &batch{
		client: c, ctx: ctx, results: make([]Result, len(jobs)), waiting: make(map[string]*parcel), out: c.newOutbox(ctx, len(jobs)),
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
	// parcelsHeld and parcelsBytes bound how many jobs wait for others of their topics, which go in the same call.
	parcelsHeld  = 10 * chunkJobs
	parcelsBytes = 4 * chunkBytes

	// parcelsSent is how many parcels the outbox has at most: one under way and one that comes next. What was sent before is done.
	parcelsSent = 2
)

// A batch is one EnqueueBatch.
type batch struct {
	client  *Client
	ctx     context.Context
	results []Result
	waiting map[string]*parcel // by topic
	held    int                // jobs in them
	bytes   int                // of their records
	out     *outbox
	sent    []*parcel // whose outcome is not in results yet
	failed  int
	first   []error // some of them
}

// A parcel is jobs of one topic that go together.
type parcel struct {
	list  []*enqueueing
	fresh []NewJob // as the hooks have left them
	index []int    // of the results
	bytes int
}

// add gets a job ready, and sends what is complete.
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
	p.bytes, b.held, b.bytes = p.bytes+size, b.held+1, b.bytes+size
	switch {
	case len(p.list) == chunkJobs, p.bytes >= chunkBytes:
		b.send(p)
	case b.held >= parcelsHeld, b.bytes >= parcelsBytes:
		b.sendAll()
	}
}

// sendAll sends all that waits.
func (b *batch) sendAll() {
	for _, p := range b.waiting {
		b.send(p)
	}
}

func (b *batch) send(p *parcel) {
	delete(b.waiting, p.list[0].topic)
	b.held, b.bytes = b.held-len(p.list), b.bytes-p.bytes
	b.sent = append(b.sent, p)
	b.out.send(p.list)
	b.collect(parcelsSent)
}

// collect takes the outcomes of what was sent, but for that many parcels, and forgets the records.
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

// outcome notes what has become of a job. e is nil if it was not sent.
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

// errCutOff is the outcome of jobs whose call has ended its goroutine, as a hook of the caller's go-redis client may.
var errCutOff = fmt.Errorf("%w: the call was cut off", ErrUnknownOutcome)

// An outbox sends the jobs of a batch while those that come after them are got ready: a goroutine of its own, unless they are few.
type outbox struct {
	client *Client
	ctx    context.Context    // of the batch
	lists  chan []*enqueueing // nil: there is no goroutine
	done   chan struct{}      // closed when it has ended
	close  func()             // waits for what has been sent
	silent error              // why nothing more is sent
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

// run starts the goroutine of an outbox. What a hook of the caller's go-redis client does to it is an
// error of the jobs under way: another goroutine goes on with those that follow.
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

// send stores jobs of one topic. Their outcomes are there after close.
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

// forward stores jobs of one topic, unless Redis has not answered before.
func (o *outbox) forward(list []*enqueueing) {
	g := o.client.commit(list[0].topic)
	defer g.done()
	o.silent = g.enqueueAll(o.ctx, list, o.silent)
}

// enqueueAll stores the jobs of a batch, chunk by chunk, on a series of its own. After a chunk that Redis has not answered no other
// is sent: each would wait as long. silent says that there was one before; what it is afterwards is returned.
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
			silent = fmt.Errorf("not sent, because Redis did not answer what was sent before: %w", err)
			if !certain(err) {
				series = newSeries()
			}
		}
		list = list[n:]
	}
	g.client.series.put(series, nil)
	return silent
}
