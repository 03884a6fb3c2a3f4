package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/await"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// A Result is what is known of a job that is done.
type Result struct {
	Output     []byte // what the handler has attached with [Job.SetOutput]; nil: nothing
	Attempt    int    // the number of the run that has completed the job, from 1
	StartedAt  time.Time
	FinishedAt time.Time
	Server     string // ID of the server
}

// A WaitOption is an option of [Client.Wait] and [Client.Call]. It is a [JobOption], so that Call
// takes it among those of the job. In every other place for a JobOption it is an [ErrInvalid].
type WaitOption struct {
	name  string
	apply func(*waitOptions)
}

type waitOptions struct {
	progress func(Progress)
	nested   bool
	errs     []error
}

func (w WaitOption) applyJob(o *jobOptions)      { o.fail(w.misplaced()) }
func (w WaitOption) applySchedule(d *definition) { d.fail(w.misplaced()) }
func (w WaitOption) misplaced() error            { return fmt.Errorf("%s: only for Wait and Call", w.orZero()) }
func (w WaitOption) orZero() string {
	if w.apply == nil {
		return "zero WaitOption"
	}
	return w.name
}

// OnJobProgress calls f for what the handler has said with [Job.Progress], in the goroutine of the
// caller of [Client.Wait] or [Client.Call]. Of several that come at the same time, or during a call
// of f, f gets the last one. The handler's server sends at most one a second.
func OnJobProgress(f func(Progress)) WaitOption {
	return WaitOption{"OnJobProgress", func(o *waitOptions) {
		if o.progress = f; f == nil {
			o.errs = append(o.errs, errors.New("OnJobProgress: f is nil"))
		}
	}}
}

// AllowNested allows a [Client.Wait] or [Client.Call] with the context of a handler whose server
// serves the topic of the job. Without it that is an [ErrInvalid]: if all workers wait for jobs
// that need a worker, none of these jobs can begin until the contexts end. Use it if the job has
// workers that do not wait, for example in a pool of its own ([InPool]).
func AllowNested() WaitOption {
	return WaitOption{"AllowNested", func(o *waitOptions) { o.nested = true }}
}

// add applies an option.
func (o *waitOptions) add(w WaitOption) {
	if w.apply == nil {
		o.errs = append(o.errs, errors.New(w.orZero()))
		return
	}
	w.apply(o)
}

// check returns the complaints about the options, and about a context for a wait in a topic.
func (o *waitOptions) check(ctx context.Context, prefix, topic string) error {
	errs := o.errs
	if _, bounded := ctx.Deadline(); !bounded {
		errs = append(errs, errors.New("context without a deadline: it bounds the wait"))
	}
	if !o.nested && run.Served(ctx, prefix, topic) {
		errs = append(errs, errors.New("context of a handler whose server serves the topic too: the job may need the worker that waits for it; AllowNested allows it"))
	}
	return invalid(errs)
}

// Wait waits until a job has ended, and returns the result of one that is done. It does not matter
// who has enqueued the job. Wait looks first: if the job is dead, or if it is done and kept for its
// [Retention], Wait returns at once. From the look on it waits for this incarnation of the job,
// which lasts from its Enqueue to its end. The ID can be reused meanwhile.
//
// [Again], the next stage of [ProcessAtEach], and a call with [Debounce] or [Latest] that takes the
// place of the job, are not its end: Wait waits for what follows. A job that is retried, snoozed or
// put back has not ended either.
//
// ctx must have a deadline. When ctx ends, the job goes on; to cancel it, call [Client.Dequeue].
//
// Redis tells the client of the end of the job by a message, so Wait returns within milliseconds.
// If the message is lost, the client learns of the end within 10 s: it looks at all jobs that it
// waits for at least that often, in calls of up to 100 jobs of a topic. How a job has ended is
// known for 60 s. While Redis cannot be reached, Wait goes on, and returns the error of Redis with
// that of ctx if it lasts that long.
//
// A client has one subscription for all its waits: a connection and a goroutine, from its first
// wait until 10 s after the last one. If the Redis user may not subscribe, if eight other clients
// wait for the same job, or if clients wait 64 times for its ID, it looks each second instead. It
// can have 10,000 waits at a time.
//
// Wait returns
//   - [ErrNotFound] if there is no such job: it never existed, or it has ended before Wait looked
//     and is not kept;
//   - a [DeadError] if the job is dead. It wraps [ErrDead];
//   - [ErrCancelled], [ErrReplaced] or [ErrExpired] if the job has ended in that way while Wait
//     waited;
//   - an error that wraps that of ctx if ctx has ended first;
//   - [ErrUnknownOutcome] if the job is gone and nothing says how it has ended: a failover has lost
//     it, Redis could not be reached for 60 s, or a server or client of release 0.1.0 has ended it;
//   - [ErrInvalid] if an argument is invalid, if ctx has no deadline, if the client already has
//     10,000 waits, and in a handler without [AllowNested]. Redis was not asked;
//   - the error of Redis if it refuses the call.
func (c *Client) Wait(ctx context.Context, topic, id string, opts ...WaitOption) (*Result, error) {
	const call = "wait"
	ctx, end := c.begin(ctx, CallEvent{Name: call, Topic: topic, ID: id, Jobs: 1})
	var o waitOptions
	for _, opt := range opts {
		o.add(opt)
	}
	result, err := c.wait(ctx, topic, id, &o)
	if err != nil {
		return nil, end.err(script.Place{Call: call, Topic: topic, Job: id}.At(err))
	}
	return result, end.err(nil)
}

func (c *Client) wait(ctx context.Context, topic, id string, o *waitOptions) (*Result, error) {
	if err := c.validate(ctx, topic, id); err != nil {
		return nil, errors.Join(err, invalid(o.errs))
	}
	if id == "" {
		o.errs = append(o.errs, errors.New("empty job ID"))
	}
	if err := o.check(ctx, c.o.prefix, topic); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var result, kept *Result
	found, err := c.commits.Walk(ctx, topic, id, func(ctx context.Context, k *script.Keys) (commit.Answer, error) {
		w, err := c.waits.Begin(k.Topic, id, o.progress != nil)
		if err != nil {
			return commit.Here, invalid([]error{err})
		}
		defer w.End()
		r, err := awaited(ctx, w, topic, id, o)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, errElsewhere):
			if r != nil && (kept == nil || k.Topic != topic) { // the latest one, not that of the home
				kept = r
			}
			return commit.Elsewhere, nil
		case errors.Is(err, ErrNotFound):
			return commit.Gone, nil
		}
		result = r
		return commit.Here, err
	})
	switch {
	case err != nil || found == commit.Here:
		return result, err
	case kept != nil:
		return kept, nil
	}
	return nil, ErrNotFound
}

// errElsewhere is the error of a wait in a place that does not have the job. Along with a result,
// it is that of a done job that is kept: another partition can have a later job with the ID.
var errElsewhere = errors.New("the job is in another partition")

// awaited waits for the end of a job.
func awaited(ctx context.Context, w *await.Waiter, topic, id string, o *waitOptions) (*Result, error) {
	var last record.Note
	for {
		a, err := w.Next(ctx)
		switch {
		case ctx.Err() != nil && err != nil && a.Err == nil:
			return nil, stillOn(ctx, w)
		case err != nil:
			return nil, err
		}
		switch a.Kind {
		case await.Ended:
			return resultOf(topic, id, &a)
		case await.None:
			return nil, ErrNotFound
		case await.Elsewhere:
			return nil, errElsewhere
		case await.Kept:
			r, err := resultOf(topic, id, &a)
			return r, cmp.Or(err, errElsewhere)
		case await.Gone:
			return nil, errGone
		case await.Lives:
			note, _, ok := record.DecodeNote(a.Note, a.Nonce)
			if ok && note.At > 0 && (note.At != last.At || note.Done != last.Done || note.Total != last.Total || note.Text != last.Text) {
				last = note
				o.progress(Progress{Done: note.Done, Total: note.Total, Text: note.Text, At: msTime(note.At)})
			}
		}
	}
}

// stillOn returns the error of a wait whose context has ended.
func stillOn(ctx context.Context, w *await.Waiter) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	state, trouble := w.Seen()
	switch is := states[state]; {
	case trouble != nil:
		return fmt.Errorf("%w, and the last look at the job has failed: %w", err, trouble)
	case is != "":
		return fmt.Errorf("%w: the job goes on, it is %s", err, is)
	}
	return fmt.Errorf("%w: nothing is known of the job yet", err)
}

// resultOf returns what a caller is told of a job that has ended.
func resultOf(topic, id string, a *await.Answer) (*Result, error) {
	switch a.Outcome {
	case await.Done:
		done, output, ok := record.DecodeDone(a.Rest)
		if !ok {
			return nil, script.ErrReply
		}
		r := &Result{Attempt: done.Attempt, StartedAt: orZero(done.Start), FinishedAt: msTime(a.At), Server: done.Server}
		if output != "" {
			r.Output = []byte(output)
		}
		return r, nil
	case await.Dead:
		return nil, &DeadError{Topic: topic, ID: id, BuriedAt: msTime(a.At), Errors: attemptErrors(a.Rest)}
	case await.Cancelled:
		return nil, ErrCancelled
	case await.Expired:
		return nil, ErrExpired
	case await.Replaced:
		return nil, ErrReplaced
	}
	return nil, script.ErrReply
}

// Call enqueues a job, as [Client.Enqueue] does, and waits for its end, as [Client.Wait] does. The
// client is registered as one that waits before the job exists, so no end is missed, however fast
// the job is, and the job needs no [Retention]. Options of the wait ([OnJobProgress],
// [AllowNested]) stand among those of the job. If id is empty, one is generated.
//
// The job is an ordinary one: it is retried as its options say, and the wait lasts until it is done
// or dead. Limit it with ctx, whose deadline Call needs, or with [Retry], [Timeout] and [ExpireIn].
// When ctx ends, the job goes on.
//
// Errors: those of Enqueue, after which nobody waits and no job was stored; if the enqueue had no
// answer, Call looks for the job and waits for it, and returns [ErrUnknownOutcome] if there is
// none. And those of Wait, except [ErrNotFound]. If too few replicas have confirmed the job
// ([WaitReplicas]), Call waits all the same; then an ErrUnknownOutcome or the end of ctx also wraps
// [ErrNotReplicated].
func (c *Client) Call(ctx context.Context, topic, id string, payload []byte, opts ...JobOption) (*Result, error) {
	const call = "call"
	ctx, end := c.begin(ctx, CallEvent{Name: call, Topic: topic, ID: id, Jobs: 1})
	one := calling{client: c, e: &enqueueing{job: NewJob{Topic: topic, ID: id, Payload: payload}}}
	for _, opt := range opts {
		if w, is := opt.(WaitOption); is {
			one.o.add(w)
		} else {
			one.e.job.Options = append(one.e.job.Options, opt)
		}
	}
	result, err := one.do(ctx)
	id = cmp.Or(one.e.op.ID, one.e.job.ID)
	if err != nil {
		return nil, end.with(CallResult{ID: id, Err: script.Place{Call: call, Topic: topic, Job: id}.At(err)})
	}
	return result, end.with(CallResult{ID: id})
}

// A calling is a job that is enqueued and waited for.
type calling struct {
	client *Client
	e      *enqueueing
	o      waitOptions
	wait   *await.Waiter // nil: not yet
	place  string        // the topic or partition in which it waits
}

func (l *calling) do(ctx context.Context) (*Result, error) {
	c, op := l.client, &l.e.op
	err := errors.Join(c.usable(ctx), checkNames(l.e.job.Topic, l.e.job.ID))
	if err != nil {
		return nil, errors.Join(err, invalid(l.o.errs))
	}
	if err := l.o.check(ctx, c.o.prefix, l.e.job.Topic); err != nil {
		return nil, err
	}
	defer func() {
		if l.wait != nil {
			l.wait.End()
		}
	}()
	stored := c.enqueue(ctx, l.e, func() error { return l.begin(ctx) })
	if !maybeStored(stored) {
		return nil, stored
	}
	if err := l.follow(); err != nil {
		return nil, errors.Join(err, stored)
	}
	l.wait.Expect(errors.Is(stored, ErrUnknownOutcome))
	result, err := awaited(ctx, l.wait, op.Topic, op.ID, &l.o)
	if stored != nil && err != nil && !isEnd(err) {
		err = errors.Join(err, stored)
	}
	return result, err
}

// isEnd reports whether an error of a wait says how its job has ended.
func isEnd(err error) bool {
	is := func(end error) bool { return errors.Is(err, end) }
	return slices.ContainsFunc([]error{ErrDead, ErrCancelled, ErrReplaced, ErrExpired}, is)
}

// begin registers the client as one that waits for the job.
func (l *calling) begin(ctx context.Context) (err error) {
	op := &l.e.op
	if err := l.o.check(ctx, l.client.o.prefix, op.Topic); err != nil { // a hook may have changed it
		return err
	}
	_, err = l.client.commits.WalkNew(ctx, op, func(ctx context.Context, k *script.Keys) (commit.Answer, error) {
		return l.beginAt(ctx, k.Topic)
	})
	return err
}

// beginAt registers the client in one place.
func (l *calling) beginAt(ctx context.Context, place string) (commit.Answer, error) {
	if l.wait != nil {
		l.wait.End()
	}
	var err error
	op := &l.e.op
	l.place = place
	l.wait, err = l.client.waits.BeginEarly(place, op.ID, op.Fresh.Opts.Key, string(op.Fresh.Nonce[:]), l.o.progress != nil)
	if err != nil {
		return commit.Here, invalid([]error{err})
	}
	a, err := l.wait.Next(ctx)
	switch {
	case err != nil:
		return commit.Here, fmt.Errorf("not sent, because its end could not be told: %w", err)
	case a.Kind == await.Elsewhere:
		return commit.Elsewhere, nil
	}
	return commit.Here, nil
}

// follow goes to the place of the job if that is another one: the partitions of the topic have
// changed meanwhile, or its key has moved. A job that has ended there has an unknown outcome.
func (l *calling) follow() error {
	op := &l.e.op
	if op.At == "" || op.At == l.place {
		return nil
	}
	wait, err := l.client.waits.BeginUnsure(op.At, op.ID, string(op.Fresh.Nonce[:]), l.o.progress != nil)
	if err != nil {
		return l.client.unsure(err)
	}
	l.wait.End()
	l.wait, l.place = wait, op.At
	return nil
}

// CallTyped is [Client.Call] with values in place of payload and output: in is encoded, and the
// output is decoded, with the codec of the topic. Its handler attaches the output with
// [Topic.SetOutput]. opts come after the [Defaults] of the topic.
//
// Its errors are those of Call. It also returns an error if the job is done and its output cannot
// be decoded, or if it has none: the handler has not attached one, or its server is of release
// 0.1.0, which keeps outputs only with [Retention].
func CallTyped[Out, In any](ctx context.Context, client *Client, topic *Topic[In], id string, in In, opts ...JobOption) (Out, error) {
	var out Out
	place := script.Place{Call: "call", Topic: topic.Name(), Job: id}
	job, err := topic.Job(id, in, opts...)
	if err != nil {
		return out, place.At(err)
	}
	result, err := client.Call(ctx, job.Topic, job.ID, job.Payload, job.Options...)
	switch {
	case err != nil:
		return out, err
	case result.Output == nil:
		return out, place.At(fmt.Errorf("done, but decode %T: %w", out, errNoOutput))
	}
	if err := topic.o.codec.Decode(result.Output, &out); err != nil {
		return out, place.At(fmt.Errorf("done, but decode %T: %w", out, err))
	}
	return out, nil
}

// errNoOutput is the reason why CallTyped has nothing to decode.
var errNoOutput = errors.New("there is no output: the handler has attached none, or its server is of release 0.1.0")

// SetOutput is [Job.SetOutput] with a value, which is encoded with the codec of the topic. A value
// that cannot be encoded is an [ErrInvalid]. [CallTyped] decodes it.
func (t *Topic[T]) SetOutput(job *Job, out any) error {
	place := script.Place{Call: "set output", Topic: t.Name()}
	if job != nil {
		place.Job = job.ID
	}
	if err := t.validate(); err != nil {
		return place.At(invalid([]error{err}))
	}
	output, err := t.o.codec.Encode(out)
	if err != nil {
		return place.At(fmt.Errorf("%w: encode %T: %w", ErrInvalid, out, err))
	}
	return job.SetOutput(output)
}

// A DeadError says that the job of a [Client.Wait] or [Client.Call] is dead. It is an [ErrDead].
// The job can be revived ([Client.Revive]).
type DeadError struct {
	Topic, ID string
	BuriedAt  time.Time      // by Redis's clock
	Errors    []AttemptError // the first and the newest ten, oldest first
}

// Error returns a text with the last error of the job.
func (e *DeadError) Error() string {
	if n := len(e.Errors); n > 0 && e.Errors[n-1].Message != "" {
		return fmt.Sprintf("%v since %s: %s", ErrDead, e.BuriedAt.UTC().Format(time.RFC3339), e.Errors[n-1].Message)
	}
	return fmt.Sprintf("%v since %s", ErrDead, e.BuriedAt.UTC().Format(time.RFC3339))
}

// Is reports whether target is [ErrDead], for errors.Is.
func (e *DeadError) Is(target error) bool { return target == ErrDead }

// ErrExpired is returned by [Client.Wait] and [Client.Call] if the job has expired ([ExpireAt]).
var ErrExpired = errors.New("delayq: job expired")

// errGone is the error of a wait for a job of which nothing is known any more.
var errGone error = goneError{}

type goneError struct{}

func (goneError) Error() string {
	return "delayq: outcome unknown: the job is gone, and nothing says how it has ended"
}

// Is reports whether target is ErrUnknownOutcome, for errors.Is.
func (goneError) Is(target error) bool { return target == ErrUnknownOutcome }
