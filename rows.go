package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/bridge"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// An outbox validates and encodes calls in one process, and another sends them. This file has what
// both need of a client.

// newSealer returns a client that encodes and never sends.
func newSealer(opts []ClientOption) (*Client, error) {
	c := &Client{rdb: noRedis{}}
	c.o, c.err = newClientOptions(opts)
	c.o.hooks.trouble = func(why *contain.Crash) { logHook(contain.DefaultLogger(), why) }
	return c, c.err
}

// noRedis is the Redis of a client that never sends.
type noRedis struct{ redis.UniversalClient }

func (c *Client) sealEnqueue(ctx context.Context, fresh NewJob) (bridge.Row, *Job, error) {
	fresh.Options = slices.Clip(fresh.Options)
	e := &enqueueing{job: fresh}
	if err := c.seal(ctx, e); err != nil {
		return bridge.Row{}, nil, script.Place{Call: "enqueue", Topic: e.job.Topic, Job: e.job.ID}.At(err)
	}
	return bridge.Row{
		Kind: bridge.RowEnqueue, Topic: e.op.Topic, ID: e.op.ID, Replace: string(e.fresh.Replace),
		Record: record.Join(e.fresh.Head, 0, e.fresh.Tail), DueAt: e.opts.DueAt, DueIn: e.opts.DueIn,
	}, storedJob(&e.op, e.job.Payload, ErrUnknownOutcome), nil
}

func (c *Client) sealCancel(ctx context.Context, topic, id string) (bridge.Row, error) {
	err := c.validate(ctx, topic, id)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return bridge.Row{}, script.Place{Call: commit.Cancel.Name, Topic: topic, Job: id}.At(err)
	}
	return bridge.Row{Kind: bridge.RowCancel, Topic: topic, ID: id}, nil
}

func (c *Client) sealReschedule(ctx context.Context, topic, id string, due DueOption) (bridge.Row, error) {
	move, err := moveTo(due)
	err = errors.Join(c.validate(ctx, topic, id), err)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return bridge.Row{}, script.Place{Call: commit.Reschedule.Name, Topic: topic, Job: id}.At(err)
	}
	return bridge.Row{
		Kind: bridge.RowReschedule, Topic: topic, ID: id, DueAt: move.Due.DueAt, DueIn: move.Due.DueIn,
	}, nil
}

// sendRows carries out rows of one topic. Rows about one ID keep their order, and so do new jobs of
// one key. Others can change places. After an error of a call the rest is not sent.
func (c *Client) sendRows(ctx context.Context, plan bridge.Plan, rows []bridge.Row) ([]error, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, nil
	}
	list := make([]*commit.Op, len(rows))
	for i := range rows {
		list[i] = operationOf(&rows[i])
	}
	size := func(i int) int { return rows[i].Size() } // a record changes as it grows older
	failed := c.commits.SendPlan(ctx, commit.Plan(plan), list, size)
	if script.Code(failed) == script.CodePassed {
		failed = fmt.Errorf("%w: %w", bridge.ErrPassed, failed)
	}
	outcomes := make([]error, len(rows))
	for i, o := range list {
		if !o.Settled() {
			outcomes[i] = bridge.ErrOpen
			continue
		}
		outcomes[i] = c.rowSent(ctx, &rows[i], o)
	}
	return outcomes, failed
}

// fateOf says what an error of sendRows means.
func fateOf(err error) bridge.Fate {
	switch {
	case errors.Is(err, bridge.ErrPassed):
		return bridge.FatePassed
	case script.Code(err) == script.CodeFull:
		return bridge.FateFull
	case script.Answered(err) && !script.Away(err):
		return bridge.FateRefused
	}
	return bridge.FateAway
}

// answers returns nil if Redis answers to the client.
func (c *Client) answers(ctx context.Context) error {
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
func checkRow(r *bridge.Row) error {
	var errs []error
	if err := checkNames(r.Topic, r.ID); err != nil {
		errs = append(errs, err)
	}
	if r.ID == "" {
		errs = append(errs, errors.New("empty ID"))
	}
	if r.DueAt < 0 || r.DueAt > maxDueMS || r.DueIn < 0 || r.DueIn > record.MaxDelay {
		errs = append(errs, fmt.Errorf("due at %d ms, or in %d ms", r.DueAt, r.DueIn))
	}
	switch commit.Replacing(r.Replace) {
	case commit.ReplaceNone, commit.ReplaceAny, commit.ReplaceDead:
	default:
		errs = append(errs, fmt.Errorf("it replaces %q", r.Replace))
	}
	return invalid(errs)
}

// operationOf returns the operation of a row. One that cannot be sent is settled.
func operationOf(r *bridge.Row) *commit.Op {
	o := &commit.Op{Topic: r.Topic, ID: r.ID}
	if err := checkRow(r); err != nil {
		o.Kind = commit.Enqueue
		o.Settle(err)
		return o
	}
	switch r.Kind {
	case bridge.RowEnqueue:
		o.Kind = commit.Enqueue
		e, err := enqueueingOf(r)
		if err != nil {
			o.Settle(err)
		}
		o.Fresh = e
	case bridge.RowCancel:
		o.Kind = commit.Cancel
	case bridge.RowReschedule:
		o.Kind = commit.Reschedule
		opts := defaultJob
		opts.DueAt, opts.DueIn = r.DueAt, max(0, r.DueIn-r.Age)
		o.Move = &commit.Move{When: opts.when(), Due: opts.Options}
	default:
		o.Kind = commit.Enqueue
		o.Settle(fmt.Errorf("%w: row of the kind %d, this release knows up to %d", ErrInvalid, r.Kind, bridge.RowReschedule))
	}
	return o
}

// longAgo is when a job expires that had expired before it was sent, in Unix ms.
const longAgo = 1

// enqueueingOf returns the job of a row as it is now: its delay and its expiry count from when the
// row was made.
func enqueueingOf(r *bridge.Row) (*commit.Fresh, error) {
	job, err := record.Decode(r.Record)
	if err != nil {
		return nil, err
	}
	e := &commit.Fresh{Replace: commit.Replacing(r.Replace)}
	copy(e.Nonce[:], job.Nonce)
	e.Head, e.Tail = r.Record[:record.HeadLen], r.Record[record.HeadLen+record.StampLen:]
	o := &jobOptions{Options: job.Options, replace: e.Replace}
	if o.DueIn > 0 || o.ExpireIn > 0 {
		o.DueIn = max(0, o.DueIn-r.Age)
		switch {
		case o.ExpireIn == 0:
		case o.ExpireIn > r.Age:
			o.ExpireIn -= r.Age
		default:
			o.ExpireAt, o.ExpireIn = longAgo, 0 // the script refuses it
		}
		if e.Head, e.Tail, err = record.Encode(e.Nonce, &o.Options, job.Payload); err != nil {
			return nil, err
		}
	}
	e.Opts, e.When = &o.Options, o.when()
	return e, nil
}

// rowSent reports the outcome of a row to the hooks and returns its error.
func (c *Client) rowSent(ctx context.Context, r *bridge.Row, o *commit.Op) error {
	err := outcomeOf(o, o.Err)
	switch {
	case errors.Is(err, ErrNotReplicated):
		err = nil
	case errors.Is(err, ErrInvalid) && o.Fresh != nil && o.Fresh.Opts.ExpireAt == longAgo:
		err = o.Place().At(fmt.Errorf("%w: the job had expired when its row was sent, %v after it was made", ErrInvalid, ofMS(r.Age)))
	}
	switch {
	case o.Kind == commit.Enqueue && o.Fresh != nil:
		job, _ := record.DecodeMeta(r.Record) // the whole record was read before it was sent
		c.enqueued(ctx, EnqueueEvent{Topic: r.Topic, ID: r.ID, PayloadSize: job.Size, Err: err}, o)
	case o.Kind == commit.Cancel:
		c.dequeued(ctx, o, err)
	}
	return err
}
