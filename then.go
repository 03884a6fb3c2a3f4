package delayq

import (
	"context"
	"errors"
	"fmt"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// A handing is what [Job.Then] needs of a run. Copies of its job share it.
type handing struct {
	sealer *Client
	ctx    context.Context
	run    *run.Handover
}

// Then hands a job over: it is enqueued if, and only if, this run completes its own job, because
// the handler returns nil or [Again]. After any other end of the run it is not: after an error, a
// panic, a retry, [Snooze], a cancellation, a replacement or a lost lease. If the handler is called
// again, it hands over again. The job is enqueued once, however often servers, Redis or the network
// fail in between. It can be of any topic, in any slot of a Cluster.
//
// The call checks the arguments as [Client.Enqueue] does, and sends nothing. The job is stored in
// Redis in the step that completes the own job, and a server of the own topic then passes it on to
// its topic, mostly within a few milliseconds. Times such as those of [ProcessIn] and [ExpireIn]
// count from that step. An empty id is replaced by a generated one.
//
// By default the job replaces a dead job with its ID, as with [ReplaceDead]. [Replace], [Latest],
// [Debounce] and [UniqueFor] have their effects when it is enqueued. If it cannot be enqueued, for
// example because an unfinished job has its ID, it is dropped: the server logs a warning and counts
// it as undelivered. The options of the client and its hooks do not apply.
//
// A run can hand over 1,000 jobs, with 1 MiB together. Then returns [ErrInvalid], and nothing is
// handed over, for a larger number, for invalid arguments, after the handler has returned, and
// outside a handler. It returns the error of the context if the run must stop. It is safe for
// concurrent use.
func (j *Job) Then(topic, id string, payload []byte, opts ...JobOption) error {
	const call = "then"
	if j == nil {
		return fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	}
	err := j.handOver(NewJob{Topic: topic, ID: id, Payload: payload, Options: opts})
	return script.Place{Call: call, Topic: topic, Job: id}.At(err)
}

// Then is [Job.Then] with a value as the payload: it hands a job of the topic over. A value that
// cannot be encoded is an [ErrInvalid].
func (t *Topic[T]) Then(job *Job, id string, value T, opts ...JobOption) error {
	fresh, err := t.Job(id, value, opts...)
	if err != nil {
		return script.Place{Call: "then", Topic: t.Name(), Job: id}.At(err)
	}
	return job.Then(fresh.Topic, fresh.ID, fresh.Payload, fresh.Options...)
}

func (j *Job) handOver(fresh NewJob) error {
	if j.hands == nil {
		return fmt.Errorf("%w: the job is not that of a handler", ErrInvalid)
	}
	if j.hands.run.Over() { // its context is over too, which says less
		return fmt.Errorf("%w: %s", ErrInvalid, run.Returned)
	}
	fresh.Options = append([]JobOption{ReplaceDead()}, fresh.Options...)
	e := &enqueueing{job: fresh}
	if err := errors.Join(j.hands.sealer.seal(j.hands.ctx, e), e.opts.guard.outside()); err != nil {
		return err
	}
	parcel := commit.Parcel{From: j.ID, Row: commit.Row{
		ID: e.op.ID, Replace: replacesText(&e.opts), Record: string(e.fresh.Draft), DueAt: e.opts.DueAt, DueIn: e.opts.DueIn,
	}}
	if refused := j.hands.run.Add(e.op.Topic, parcel.Encode()); refused != "" {
		return fmt.Errorf("%w: %s", ErrInvalid, refused)
	}
	return nil
}

// sealer returns a client that encodes jobs, and never sends.
func sealer(prefix string) *Client {
	c := &Client{rdb: noRedis{}, o: defaultClient}
	c.o.prefix = prefix
	return c
}

// sealer returns the client that encodes what runs of the server hand over.
func (s *Server) sealer() *Client {
	if s == nil {
		return nil
	}
	return sealer(s.o.prefix)
}

// newCarrier returns the client that delivers what runs hand over, by connections of the server.
func (s *Server) newCarrier() *Client {
	c := &Client{rdb: s.engine.Calls, o: defaultClient}
	c.o.prefix = s.o.prefix
	c.scripts = s.engine.Scripts
	c.commits = commit.New(commit.Wire{
		Redis: c.rdb, Scripts: c.scripts, Series: &c.series, Prefix: c.o.prefix, Tick: maxTick,
	}, max(1, poolSize(c.rdb)/2))
	return c
}

// deliver carries out a plan.
func (s *Server) deliver(ctx context.Context, plan commit.Plan, rows []commit.Row) ([]error, error) {
	outcomes, _, err := friends{}.SendRows(ctx, s.carrier, plan, rows)
	return outcomes, err
}
