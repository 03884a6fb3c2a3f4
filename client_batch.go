package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// EnqueueBatch stores any number of jobs of any topics and options. Jobs of one topic are sent in
// chunks, in their order, or if it is divided ([Client.Partition]) in that of each partition. Each
// chunk is stored as a whole or not at all. Results are in the order of jobs; each has its own
// error, as from [Client.Enqueue]. The returned error is non-nil if any job failed, and joins the
// first ten failures. When ctx is done, jobs not yet sent get its error.
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
	defer b.Close()
	for i := range jobs {
		b.add(i, jobs[i])
	}
	return b.results, end.err(b.Finish())
}

// A BatchResult is the outcome of one job or schedule of a call about many.
type BatchResult interface {
	EnqueueResult | CancelResult | RescheduleResult | GetResult | ScheduleResult
}

// ErrorsExcept returns the error of a call about many jobs or schedules without what is fine: nil
// if each has succeeded, or has failed with an error that wraps one of fine. results and err are
// those of the call.
//
// [errors.Is] does not tell that of err. It joins the failures, so it is one of them if any job has
// failed with it, whatever became of the others, and it has only the first ten:
//
//	results, err := client.CancelBatch(ctx, jobs)
//	if err = delayq.ErrorsExcept(results, err, delayq.ErrNotFound); err != nil {
//		return err // a job may still be there
//	}
//
// The returned error joins the first ten failures that are not fine. It wraps [ErrNotAudited] and
// its cause if err does.
func ErrorsExcept[R BatchResult](results []R, err error, fine ...error) error {
	failed, first := 0, []error(nil)
	for _, r := range results {
		one := errorOf(r)
		if one == nil || slices.ContainsFunc(fine, func(f error) bool { return errors.Is(one, f) }) {
			continue
		}
		if failed++; failed <= keptErrors {
			first = append(first, one)
		}
	}
	if failed > 0 {
		format := "%d of %d jobs failed: %w"
		if _, are := any(results).([]ScheduleResult); are {
			format = "%d of %d schedules failed: %w"
		}
		first = []error{fmt.Errorf(format, failed, len(results), errors.Join(first...))}
	}
	var own unaudited
	switch {
	case len(results) == 0:
		first = append(first, err)
	case errors.As(err, &own):
		first = append(first, own)
	case errors.Is(err, ErrNotAudited):
		first = append(first, ErrNotAudited)
	}
	return errors.Join(first...)
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
// job. The returned error is non-nil if any job failed, and joins the first ten failures. Use
// [ErrorsExcept] if a job that is gone is no failure. The options apply to each job. [IfUnchanged]
// has an info of each, and [ErrChanged] is the error of those that have changed.
//
// Jobs of one topic are sent in their order, or if it is divided in that of each partition, up to
// 500 in a call. Each cancel is atomic; the batch as a whole is not. When ctx is done, jobs not yet
// sent get its error. After a call that Redis does not answer, no other is sent: the jobs of that
// call have [ErrUnknownOutcome], and later ones another error, because they are unchanged.
//
// Cost: O(log(jobs of the topic)) for each job, however many are ready. Besides the results,
// CancelBatch holds the state of at most a few thousand jobs at a time.
func (c *Client) CancelBatch(ctx context.Context, jobs []JobRef, opts ...DequeueOption) ([]CancelResult, error) {
	topic := func(i int) string { return jobs[i].Topic }
	ctx, end := c.beginBatch(ctx, "cancel batch", len(jobs), topic)
	results, was := make([]CancelResult, len(jobs)), newPrevious(ctx, len(jobs), topic)
	how := c.cancelOf(opts)
	err := c.each(ctx, commit.Cancel, len(jobs), func(i int, o *commit.Op) error {
		o.Topic, o.ID, o.Tomb = jobs[i].Topic, jobs[i].ID, how.tomb
		return how.guard(o)
	}, func(i int, o *commit.Op) error {
		results[i].Err = outcomeOf(o, o.Err)
		if results[i].State = c.dequeued(ctx, o, results[i].Err); results[i].State != "" {
			was.add(i, o)
		}
		return results[i].Err
	})
	return results, end.err(c.auditCancels(ctx, jobs, results, how.tomb, was, err))
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
// [ErrNotFound], [ErrRunning], [ErrDead], [ErrChanged] with [IfUnchanged], or [ErrInvalid] if the
// job would expire by the new time. The returned error is non-nil if any job failed, and joins the
// first ten failures.
//
// Jobs are sent, and calls without an answer are reported, as in [Client.CancelBatch]. Jobs that
// can expire take a second call. Cost: O(log(jobs of the topic)) for each job. Besides the results,
// RescheduleBatch holds the state of at most a few thousand jobs at a time.
func (c *Client) RescheduleBatch(ctx context.Context, jobs []NewDue, opts ...EditOption) ([]RescheduleResult, error) {
	edit := newEdit(opts)
	topic := func(i int) string { return jobs[i].Topic }
	ctx, end := c.beginBatch(ctx, "reschedule batch", len(jobs), topic)
	results, was := make([]RescheduleResult, len(jobs)), newPrevious(ctx, len(jobs), topic)
	err := c.each(ctx, commit.Reschedule, len(jobs), func(i int, o *commit.Op) error {
		o.Topic, o.ID = jobs[i].Topic, jobs[i].ID
		var err error
		o.Move, err = moveTo(jobs[i].Due)
		return errors.Join(err, edit.guard(o))
	}, func(i int, o *commit.Op) error {
		err := outcomeOf(o, o.Err)
		if results[i].Err = err; err == nil {
			was.add(i, o)
		}
		return err
	})
	at := func(i int) (JobRef, error) { return JobRef{jobs[i].Topic, jobs[i].ID}, results[i].Err }
	set := func(i int) string {
		if move, bad := moveTo(jobs[i].Due); bad == nil {
			return " " + dueText(&move.Due)
		}
		return ""
	}
	return results, end.err(c.auditBatch(ctx, commit.Reschedule, len(jobs), at, set, was, err))
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
// Jobs are read in calls of up to 500 jobs and about 1 MiB; a larger job has a call of its own.
// Each call is atomic, the batch is not. When ctx is done, or after a call that Redis does not
// answer, jobs not yet asked for get an error. All payloads are in memory at the same time, so ask
// for few jobs at a time if payloads can be large. Cost: O(1) for each job.
func (c *Client) GetBatch(ctx context.Context, jobs []JobRef) ([]GetResult, error) {
	ctx, end := c.beginBatch(ctx, "get batch", len(jobs), func(i int) string { return jobs[i].Topic })
	results := make([]GetResult, len(jobs))
	err := c.each(ctx, commit.Get, len(jobs), func(i int, o *commit.Op) error {
		o.Topic, o.ID = jobs[i].Topic, jobs[i].ID
		return nil
	}, func(i int, o *commit.Op) error {
		if results[i].Err = outcomeOf(o, o.Err); results[i].Err == nil {
			results[i].Job, results[i].Err = gotten(o)
		}
		return results[i].Err
	})
	return results, end.err(err)
}

// newBatch returns a batch of calls of one kind. An invalid client has one too, whose jobs are all
// refused.
func (c *Client) newBatch(ctx context.Context, k *commit.Kind, jobs int, report func(i int, o *commit.Op) error) *commit.Batch {
	var all *commit.Groups
	if c != nil {
		all = c.commits
	}
	return all.NewBatch(ctx, k, jobs, report)
}

// each carries out operations of one kind, one for each of n jobs. set fills in an operation, and
// result reads its outcome.
func (c *Client) each(
	ctx context.Context, k *commit.Kind, n int, set, result func(i int, o *commit.Op) error,
) error {
	b := c.newBatch(ctx, k, n, result)
	defer b.Close()
	for i := range n {
		o := &commit.Op{Kind: k}
		err := set(i, o)
		err = errors.Join(c.validate(ctx, o.Topic, o.ID), err)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			b.Refuse(i, o, fmt.Errorf("job %d of the batch: %w", i, err))
			continue
		}
		b.Put(i, o)
	}
	return b.Finish()
}

// An enqueueBatch is one EnqueueBatch.
type enqueueBatch struct {
	*commit.Batch
	client  *Client
	ctx     context.Context
	results []EnqueueResult
	waiting []*enqueueing // the jobs that have no outcome yet
}

func (c *Client) newEnqueueBatch(ctx context.Context, jobs int) *enqueueBatch {
	b := &enqueueBatch{client: c, ctx: ctx, results: make([]EnqueueResult, jobs), waiting: make([]*enqueueing, jobs)}
	b.Batch = c.newBatch(ctx, commit.Enqueue, jobs, func(i int, o *commit.Op) error {
		e, err := b.waiting[i], outcomeOf(o, o.Err)
		b.waiting[i] = nil
		e.own.Stored(err, maybeStored(err))
		b.results[i].Err = err
		if maybeStored(err) {
			b.results[i].Job = storedJob(o, e.job.Payload, err)
		}
		c.enqueued(ctx, e.job.event(err), o)
		return err
	})
	return b
}

// add prepares a job, and sends parcels that are complete.
func (b *enqueueBatch) add(i int, job NewJob) {
	job.Options = slices.Clip(job.Options)
	e := &enqueueing{job: job}
	err := b.client.prepare(b.ctx, e)
	if err == nil {
		b.waiting[i] = e
		b.Put(i, &e.op)
		return
	}
	err = fmt.Errorf("job %d of the batch: %w", i, err)
	err = script.Place{Call: "enqueue", Topic: e.job.Topic, Job: e.job.ID}.At(err)
	b.results[i].Err = err
	b.client.enqueued(b.ctx, e.job.event(err), nil)
	b.Fail(err)
}

// An outbox validates and encodes calls in one process, and another sends them. This file has what
// both need of a client.

// NewSealer returns a client that validates and encodes, and never sends. It needs no Redis.
func (friends) NewSealer(opts []ClientOption) (*Client, error) {
	c := &Client{rdb: noRedis{}}
	c.o, c.err = newClientOptions(opts)
	c.o.hooks.trouble = func(why *contain.Crash) { logHook(contain.DefaultLogger(), why) }
	return c, c.err
}

// noRedis is the Redis of a client that never sends.
type noRedis struct{ redis.UniversalClient }

// SealEnqueue returns the row of an enqueue, and its job without times. Its errors are those of
// [Client.Enqueue] for the same arguments.
func (friends) SealEnqueue(ctx context.Context, c *Client, fresh NewJob) (commit.Row, *Job, error) {
	fresh.Options = slices.Clip(fresh.Options)
	e := &enqueueing{job: fresh}
	if err := errors.Join(c.seal(ctx, e), e.opts.guard.outside("an outbox")); err != nil {
		return commit.Row{}, nil, script.Place{Call: "enqueue", Topic: e.job.Topic, Job: e.job.ID}.At(err)
	}
	return commit.Row{
		Kind: commit.RowEnqueue, Topic: e.op.Topic, ID: e.op.ID, Replace: replacesText(&e.opts),
		Record: string(e.fresh.Draft), DueAt: e.opts.DueAt, DueIn: e.opts.DueIn,
	}, storedJob(&e.op, e.job.Payload, ErrUnknownOutcome), nil
}

// SealCancel returns the row of a [Client.Dequeue].
func (friends) SealCancel(ctx context.Context, c *Client, topic, id string, opts ...DequeueOption) (commit.Row, error) {
	how := c.cancelOf(opts)
	err := errors.Join(c.validate(ctx, topic, id), how.outside("an outbox"))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return commit.Row{}, script.Place{Call: commit.Cancel.Name, Topic: topic, Job: id}.At(err)
	}
	return commit.CancelRow(topic, id, how.tomb), nil
}

// SealReschedule returns the row of a [Client.Reschedule].
func (friends) SealReschedule(ctx context.Context, c *Client, topic, id string, due DueOption) (commit.Row, error) {
	move, err := moveTo(due)
	err = errors.Join(c.validate(ctx, topic, id), err)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return commit.Row{}, script.Place{Call: commit.Reschedule.Name, Topic: topic, Job: id}.At(err)
	}
	return commit.Row{
		Kind: commit.RowReschedule, Topic: topic, ID: id, DueAt: move.Due.DueAt, DueIn: move.Due.DueIn,
	}, nil
}

// SendRows carries out rows of one topic, and returns an outcome for each. Rows about one ID keep
// their order, and so do new jobs of one key. Others can change places.
//
// If Redis has not answered or has refused a call as a whole, SendRows also returns an error, and
// the rest is not sent. The outcome of rows that were not sent, or of which nothing is known, is
// commit.ErrOpen. Then call it again with the same plan and the same rows: what was carried out is
// not repeated, and its outcomes are as they were. After commit.ErrPassed that is not possible. If
// Redis may still carry out the call that has failed, lost is its name.
func (friends) SendRows(ctx context.Context, c *Client, plan commit.Plan, rows []commit.Row) (outcomes []error, lost string, err error) {
	outcomes = make([]error, len(rows))
	if err := c.usable(ctx); err != nil {
		for i := range rows {
			outcomes[i] = commit.ErrOpen
		}
		return outcomes, "", err
	}
	if len(rows) == 0 {
		return nil, "", nil
	}
	list := make([]*commit.Op, len(rows))
	for i := range rows {
		list[i] = c.operationOf(&rows[i])
	}
	size := func(i int) int { return rows[i].Size() } // a record changes as it grows older
	lost, failed := c.commits.SendPlan(ctx, plan, list, size)
	if errors.Is(failed, commit.ErrUnconfirmed) {
		failed = fmt.Errorf("%w: %w", ErrNotReplicated, failed)
	}
	for i, o := range list {
		if !o.Settled() {
			outcomes[i] = commit.ErrOpen
			continue
		}
		outcomes[i] = c.rowSent(ctx, &rows[i], o)
	}
	return outcomes, lost, failed
}

// Answers returns nil if Redis answers to the client.
func (friends) Answers(ctx context.Context, c *Client) error {
	err := c.usable(ctx)
	if err == nil {
		err = c.rdb.Time(ctx).Err()
	}
	if err == nil || script.Code(err) == script.CodeNoPerm {
		return nil
	}
	return fmt.Errorf("outbox: Redis does not answer: %w", c.unsure(err))
}

// checkRow returns an error if no release has written a row. Redis would refuse a call with such a
// row as a whole, and again each time.
func checkRow(r *commit.Row) error {
	var errs []error
	if err := checkNames(part.HomeOf(r.Topic), r.ID); err != nil {
		errs = append(errs, err)
	}
	if r.ID == "" {
		errs = append(errs, errors.New("empty ID"))
	}
	if r.DueAt < 0 || r.DueAt > maxDueMS || r.DueIn < 0 || r.DueIn > record.MaxDelay {
		errs = append(errs, fmt.Errorf("due at %d ms, or in %d ms", r.DueAt, r.DueIn))
	}
	if err := new(jobOptions).readReplaces(r.Replace); err != nil {
		errs = append(errs, err)
	}
	return invalid(errs)
}

// operationOf returns the operation of a row. One that cannot be sent is settled.
func (c *Client) operationOf(r *commit.Row) *commit.Op {
	o := &commit.Op{Topic: r.Topic, ID: r.ID}
	if err := checkRow(r); err != nil {
		o.Kind = commit.Enqueue
		o.Settle(err)
		return o
	}
	switch r.Kind {
	case commit.RowEnqueue, commit.RowLinked:
		o.Kind = commit.Enqueue
		if r.Kind == commit.RowLinked {
			o.Kind, o.Flow = commit.EnqueueLinked, &commit.FlowPart{Word: r.Link}
		}
		e, err := c.enqueueingOf(r)
		if err != nil {
			o.Settle(err)
		}
		o.Fresh = e
	case commit.RowFlow:
		if err := c.startOf(r, o); err != nil {
			o.Settle(err)
		}
	case commit.RowCancel:
		o.Kind, o.Tomb = commit.Cancel, r.Tomb(c.o.tombs)
	case commit.RowReschedule:
		o.Kind = commit.Reschedule
		opts := defaultJob
		opts.DueAt, opts.DueIn = r.DueAt, max(0, r.DueIn-r.Age)
		o.Move = &commit.Move{When: opts.when(), Due: opts.Options}
	default:
		if part := commit.FlowOp(r); part != nil {
			return part
		}
		o.Kind = commit.Enqueue
		o.Settle(fmt.Errorf("%w: row of the kind %d, this release knows up to %d", ErrInvalid, r.Kind, commit.RowFlow))
	}
	return o
}

// longAgo is when a job expires that had expired before it was sent, in Unix ms.
const longAgo = 1

// enqueueingOf returns the job of a row as it is now: its delay and its expiry count from when the
// row was made.
func (c *Client) enqueueingOf(r *commit.Row) (*commit.Fresh, error) {
	job, err := record.Decode(r.Record)
	if err != nil {
		return nil, err
	}
	o := &jobOptions{Options: job.Options}
	_ = o.readReplaces(r.Replace) // checkRow has read it
	e := &commit.Fresh{Replace: o.replace, Draft: record.Draft(r.Record)}
	copy(e.Nonce[:], job.Nonce)
	if o.DueIn > 0 || o.ExpireIn > 0 {
		o.age(r.Age)
		switch {
		case o.ExpireIn == 0:
		case o.ExpireIn > r.Age:
			o.ExpireIn -= r.Age
		default:
			o.ExpireAt, o.ExpireIn = longAgo, 0 // the script refuses it
		}
		if e.Draft, err = record.NewDraft(e.Nonce, &o.Options, job.Payload); err != nil {
			return nil, err
		}
	}
	e.Opts, e.When = &o.Options, o.when()+uniqueWord(o.window, c.o.tombs)
	return e, nil
}

// rowSent reports the outcome of a row to the hooks and returns its error.
func (c *Client) rowSent(ctx context.Context, r *commit.Row, o *commit.Op) error {
	err := outcomeOf(o, o.Err)
	if errors.Is(err, ErrInvalid) && o.Fresh != nil && o.Fresh.Opts.ExpireAt == longAgo {
		err = o.Place().At(fmt.Errorf("%w: the job had expired when its row was sent, %v after it was made", ErrInvalid, ofMS(r.Age)))
	}
	switch {
	case r.Told:
	case (o.Kind == commit.Enqueue || o.Kind == commit.FlowStart) && o.Fresh != nil:
		text, _, _ := r.CutRow()
		job, _ := record.DecodeMeta(text) // the whole record was read before it was sent
		c.enqueued(ctx, EnqueueEvent{Topic: r.Topic, ID: r.ID, PayloadSize: job.Size, Err: err}, o)
	case o.Kind == commit.Cancel:
		c.dequeued(ctx, o, err)
	}
	return err
}
