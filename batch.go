package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
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
	ctx, end := c.beginBatch(ctx, "enqueue batch", len(jobs), func(i int) string { return jobs[i].Topic })
	b := c.newEnqueueBatch(ctx, len(jobs))
	defer b.out.close()
	for i := range jobs {
		b.add(i, jobs[i])
	}
	return b.results, end.err(b.finish())
}

// A JobRef names a job.
type JobRef struct {
	Topic, ID string
}

// A CancelResult is the outcome of one job of a [Client.CancelBatch] call.
type CancelResult struct {
	State State // of the job before; empty if Err is not nil
	Err   error
}

// CancelBatch cancels any number of jobs of any topics, as [Client.Dequeue] does one. Results are
// in the order of jobs. Each has its own error, as from Dequeue: [ErrNotFound] if there is no such
// job. The returned error is non-nil if any job failed, and joins the first ten failures.
//
// Jobs of one topic are sent in their order, up to 500 in a call. Each job is cancelled as a whole
// or not at all; the batch is not. When ctx is done, jobs not yet sent get its error. After a call
// that Redis does not answer, no other is sent: the jobs of that call have [ErrUnknownOutcome], and
// later ones another error, because they are unchanged.
//
// Cost: O(log(jobs of the topic)) for each job, however many are ready. Besides the results,
// CancelBatch holds the state of at most a few thousand jobs at a time.
func (c *Client) CancelBatch(ctx context.Context, jobs []JobRef) ([]CancelResult, error) {
	ctx, end := c.beginBatch(ctx, "cancel batch", len(jobs), func(i int) string { return jobs[i].Topic })
	results := make([]CancelResult, len(jobs))
	err := c.each(ctx, cancelKind, len(jobs), func(i int, o *operation) error {
		o.topic, o.id = jobs[i].Topic, jobs[i].ID
		return nil
	}, func(i int, o *operation) {
		if results[i].Err = o.err; o.err == nil {
			results[i].State = o.state
		}
		c.dequeued(ctx, o, o.err)
	})
	at := func(i int) (JobRef, error) { return jobs[i], results[i].Err }
	return results, end.err(c.auditBatch(ctx, cancelKind, len(jobs), at, err))
}

// A NewDue is a new due time of a job, for [Client.RescheduleBatch].
type NewDue struct {
	Topic, ID string
	Due       DueOption // [ProcessAt] or [ProcessIn]
}

// A RescheduleResult is the outcome of one job of a [Client.RescheduleBatch] call.
type RescheduleResult struct {
	Err error
}

// RescheduleBatch gives any number of jobs of any topics other due times, as [Client.Reschedule]
// does one. Results are in the order of jobs. Each has its own error, as from Reschedule:
// [ErrNotFound], [ErrRunning], [ErrDead], or [ErrInvalid] if the job would expire by the new time.
// The returned error is non-nil if any job failed, and joins the first ten failures.
//
// Jobs are sent, and calls without an answer are reported, as in [Client.CancelBatch]. Jobs that
// can expire take a second call. Cost: O(log(jobs of the topic)) for each job. Besides the results,
// RescheduleBatch holds the state of at most a few thousand jobs at a time.
func (c *Client) RescheduleBatch(ctx context.Context, jobs []NewDue) ([]RescheduleResult, error) {
	ctx, end := c.beginBatch(ctx, "reschedule batch", len(jobs), func(i int) string { return jobs[i].Topic })
	results := make([]RescheduleResult, len(jobs))
	err := c.each(ctx, rescheduleKind, len(jobs), func(i int, o *operation) error {
		o.topic, o.id = jobs[i].Topic, jobs[i].ID
		return o.moveTo(jobs[i].Due)
	}, func(i int, o *operation) { results[i].Err = o.err })
	at := func(i int) (JobRef, error) { return JobRef{jobs[i].Topic, jobs[i].ID}, results[i].Err }
	return results, end.err(c.auditBatch(ctx, rescheduleKind, len(jobs), at, err))
}

// A GetResult is the outcome of one job of a [Client.GetBatch] call.
type GetResult struct {
	Job *JobInfo // nil if Err is not nil
	Err error
}

// GetBatch returns everything that is known about any number of jobs of any topics, as [Client.Get]
// does about one. Results are in the order of jobs. Each has its own error, as from Get:
// [ErrNotFound] if there is no such job. The returned error is non-nil if any job failed, and joins
// the first ten failures.
//
// The jobs are not read at one instant: each call of up to 500 jobs and about 1 MiB, or one larger
// job, is. When ctx is done, or after a call that Redis does not answer, jobs not yet asked for get
// an error. All payloads are in memory at the same time, so ask for few jobs at a time if payloads
// can be large. Cost: O(1) for each job.
func (c *Client) GetBatch(ctx context.Context, jobs []JobRef) ([]GetResult, error) {
	ctx, end := c.beginBatch(ctx, "get batch", len(jobs), func(i int) string { return jobs[i].Topic })
	results := make([]GetResult, len(jobs))
	err := c.each(ctx, getKind, len(jobs), func(i int, o *operation) error {
		o.topic, o.id = jobs[i].Topic, jobs[i].ID
		return nil
	}, func(i int, o *operation) {
		if results[i].Err = o.err; o.err == nil {
			results[i].Job = o.info
		}
	})
	return results, end.err(err)
}

// each carries out operations of one kind, one for each of n jobs. set fills in an operation, and
// result reads its outcome.
func (c *Client) each(
	ctx context.Context, k *kind, n int, set func(i int, o *operation) error, result func(i int, o *operation),
) error {
	b := c.newBatch(ctx, k, n, result)
	defer b.out.close()
	for i := range n {
		o := &operation{kind: k}
		err := set(i, o)
		err = errors.Join(c.validate(ctx, o.topic, o.id), err)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			o.settle(fmt.Errorf("job %d of the batch: %w", i, err))
			b.outcome(i, o)
			continue
		}
		b.put(i, o)
	}
	return b.finish()
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

// A batch is one call about many jobs.
type batch struct {
	client  *Client
	kind    *kind
	jobs    int
	report  func(i int, o *operation) // reads an outcome into the results
	waiting map[string]*parcel        // by topic
	queued  int                       // jobs in them
	bytes   int                       // of their records
	out     *outbox
	sent    []*parcel // whose outcome is not in the results yet
	failed  int
	first   []error // some of them
}

// A parcel is jobs of one topic that are sent together.
type parcel struct {
	list  []*operation
	index []int // of the results
	bytes int
}

func (c *Client) newBatch(ctx context.Context, k *kind, jobs int, report func(int, *operation)) *batch {
	return &batch{client: c, kind: k, jobs: jobs, report: report, waiting: make(map[string]*parcel), out: c.newOutbox(ctx, jobs)}
}

// put adds an operation, and sends parcels that are complete.
func (b *batch) put(i int, o *operation) {
	p := b.waiting[o.topic]
	if p == nil {
		p = &parcel{}
		b.waiting[o.topic] = p
	}
	size := o.size()
	p.list, p.index = append(p.list, o), append(p.index, i)
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
		for n, o := range p.list {
			b.outcome(p.index[n], o)
		}
	}
}

// outcome records the outcome of an operation.
func (b *batch) outcome(i int, o *operation) {
	b.report(i, o)
	b.fail(o.err)
}

// fail counts a failed job, and keeps the first errors.
func (b *batch) fail(err error) {
	if err == nil {
		return
	}
	if b.failed++; b.failed <= 10 {
		b.first = append(b.first, err)
	}
}

// finish sends what waits and returns the error of the batch.
func (b *batch) finish() error {
	b.sendAll()
	b.out.close()
	b.collect(0)
	if b.failed == 0 {
		return nil
	}
	return fmt.Errorf("%s batch: %d of %d jobs failed: %w", b.kind.name, b.failed, b.jobs, errors.Join(b.first...))
}

// An enqueueBatch is one EnqueueBatch.
type enqueueBatch struct {
	*batch
	ctx     context.Context
	results []EnqueueResult
	sealed  []sealed // what is kept of each job until it has an outcome
}

// sealed is what a client keeps of a job that is on its way.
type sealed struct {
	fresh *NewJob      // as the hooks have changed it
	own   *run.Context // of the handler whose own job this one replaces; nil: none
}

func (c *Client) newEnqueueBatch(ctx context.Context, jobs int) *enqueueBatch {
	b := &enqueueBatch{ctx: ctx, results: make([]EnqueueResult, jobs), sealed: make([]sealed, jobs)}
	b.batch = c.newBatch(ctx, enqueueKind, jobs, func(i int, o *operation) {
		kept := b.sealed[i]
		b.sealed[i] = sealed{}
		kept.own.Stored(o.err, maybeStored(o.err))
		b.results[i].Err = o.err
		if maybeStored(o.err) {
			b.results[i].Job = o.job(o.err)
		}
		c.enqueued(ctx, kept.fresh, o, o.err)
	})
	return b
}

// add prepares a job, and sends parcels that are complete.
func (b *enqueueBatch) add(i int, job NewJob) {
	job.Options = slices.Clip(job.Options)
	o, own, err := b.client.prepare(b.ctx, &job)
	if err == nil {
		b.sealed[i] = sealed{&job, own}
		b.put(i, o)
		return
	}
	err = fmt.Errorf("job %d of the batch: %w", i, err)
	err = script.Place{Call: "enqueue", Topic: job.Topic, Job: job.ID}.At(err)
	b.results[i].Err = err
	b.client.enqueued(b.ctx, &job, nil, err)
	b.fail(err)
}

// An outbox sends the jobs of a batch while the next ones are prepared. It has its own goroutine,
// unless there are few jobs.
type outbox struct {
	client *Client
	ctx    context.Context   // of the batch
	lists  chan []*operation // nil: there is no goroutine
	done   chan struct{}     // closed when the goroutine has exited
	close  func()            // waits until all jobs are sent
	silent error             // why no more jobs are sent
}

func (c *Client) newOutbox(ctx context.Context, jobs int) *outbox {
	o := &outbox{client: c, ctx: ctx, close: func() {}}
	if jobs <= chunkJobs {
		return o
	}
	o.lists, o.done = make(chan []*operation, 1), make(chan struct{})
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
	var list []*operation
	contain.Launch(nil, func() {
		for list = range o.lists {
			o.forward(list)
		}
		close(o.done)
	}, func(c *contain.Crash) {
		cut(list, c)
		o.start()
	})
}

// send stores jobs of one topic. Their outcomes are set after close.
func (o *outbox) send(list []*operation) {
	if o.lists == nil {
		o.forward(list)
		return
	}
	o.lists <- list
}

// forward stores jobs of one topic, unless Redis failed to answer an earlier call.
func (o *outbox) forward(list []*operation) {
	g := o.client.commits.of(list[0].topic, list[0].kind)
	defer g.done()
	o.silent = g.doAll(o.ctx, list, o.silent)
}

// doAll carries out operations of a batch, chunk by chunk, on series of the client. After a chunk
// that Redis does not answer it sends no other, because each would wait as long. silent is the
// error of such a chunk earlier in the batch; doAll returns its new value.
func (g *commit) doAll(ctx context.Context, list []*operation, silent error) error {
	for len(list) > 0 {
		cause := context.Cause(ctx)
		if cause == nil && silent != nil {
			cause = silent
		}
		if cause != nil {
			for _, o := range list {
				o.settle(cause)
			}
			break
		}
		g.mu.Lock()
		n := chunkLen(list, g.gets)
		g.mu.Unlock()
		sent := list[:n]
		if err := g.send(ctx, g.all.series, sent); err != nil && script.Away(err) {
			silent = fmt.Errorf("not sent, because Redis did not answer an earlier chunk: %w", err)
		}
		list = list[n:]
		if open := slices.DeleteFunc(slices.Clone(sent), func(o *operation) bool { return o.settled }); len(open) > 0 {
			list = append(open, list...)
		}
	}
	return silent
}
