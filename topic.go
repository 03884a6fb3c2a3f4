package delayq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/places"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// A Codec encodes values as payloads and decodes payloads. It must be safe for concurrent use.
type Codec interface {
	Encode(v any) ([]byte, error)
	Decode(payload []byte, v any) error // v is a pointer
}

// MsgPack is the default codec of typed topics: compact, and it keeps the field names of a struct.
var MsgPack = WithCodec(codec{msgpack.Marshal, msgpack.Unmarshal})

// JSON is the codec to choose when people or programs in other languages read the payloads.
var JSON = WithCodec(codec{json.Marshal, json.Unmarshal})

// A TopicOption configures a typed topic.
type TopicOption interface{ applyTopic(*topicOptions) }

type topicOptions struct {
	codec    Codec
	defaults []JobOption
	errs     []error
}

// CodecOption is the type of [WithCodec]: an option of typed topics.
type CodecOption struct{ Codec }

// WithCodec sets your own codec for the payloads of a typed topic. The last one given applies.
func WithCodec(c Codec) CodecOption {
	if o, ok := c.(CodecOption); ok {
		return o
	}
	return CodecOption{c}
}

func (c CodecOption) applyTopic(o *topicOptions) { o.codec = c.Codec }

type codec struct {
	encode func(any) ([]byte, error)
	decode func([]byte, any) error
}

func (c codec) Encode(v any) ([]byte, error)       { return c.encode(v) }
func (c codec) Decode(payload []byte, v any) error { return c.decode(payload, v) }

// A Topic is a topic whose payloads are values of type T. It is safe for concurrent use.
type Topic[T any] struct {
	name string
	o    topicOptions
}

// NewTopic returns a typed topic. Its options are a codec ([MsgPack], [JSON] or [WithCodec]) and
// the [Defaults] of its jobs. If the name or an option is invalid, every call returns that error.
// Default: MsgPack.
func NewTopic[T any](name string, opts ...TopicOption) *Topic[T] {
	t := &Topic[T]{name: name, o: topicOptions{codec: MsgPack}}
	for _, opt := range opts {
		if contain.IsNil(opt) {
			t.o.errs = append(t.o.errs, errors.New("a topic option is nil"))
			continue
		}
		opt.applyTopic(&t.o)
	}
	return t
}

// validate returns the complaints about the topic itself.
func (t *Topic[T]) validate() error {
	switch {
	case t == nil:
		return errors.New("nil Topic")
	case t.o.codec == nil && t.name == "":
		return errors.New("zero Topic: use NewTopic")
	case contain.IsNil(t.o.codec):
		return errors.Join(append(t.o.errs, errors.New("nil codec"))...)
	}
	return errors.Join(t.o.errs...)
}

// Name returns the topic's name.
func (t *Topic[T]) Name() string {
	if t == nil {
		return ""
	}
	return t.name
}

// An Enqueuer stores jobs. A [Client] is one, and so is a type that wraps a Client.
type Enqueuer interface {
	Enqueue(ctx context.Context, topic, id string, payload []byte, opts ...JobOption) (*Job, error)
}

// A Scheduler stores schedules. A [Client] is one, and so is a type that wraps a Client.
type Scheduler interface {
	Schedule(ctx context.Context, topic, name string, spec Spec, payload []byte, opts ...ScheduleOption) error
}

// Enqueue is [Client.Enqueue] with a value as the payload. A value that cannot be encoded is an
// [ErrInvalid].
func (t *Topic[T]) Enqueue(ctx context.Context, client Enqueuer, id string, value T, opts ...JobOption) (*Job, error) {
	job, err := t.Job(id, value, opts...)
	if err == nil && client == nil {
		err = fmt.Errorf("%w: nil Enqueuer", ErrInvalid)
	}
	if err != nil {
		return nil, script.Place{Call: "enqueue", Topic: t.Name(), Job: id}.At(err)
	}
	return client.Enqueue(ctx, job.Topic, job.ID, job.Payload, job.Options...)
}

// Job returns a job for [Client.EnqueueBatch]. A value that cannot be encoded is an [ErrInvalid].
func (t *Topic[T]) Job(id string, value T, opts ...JobOption) (NewJob, error) {
	if err := t.validate(); err != nil {
		return NewJob{}, invalid([]error{err})
	}
	payload, err := t.o.codec.Encode(value)
	if err != nil {
		return NewJob{}, fmt.Errorf("%w: encode %T: %w", ErrInvalid, value, err)
	}
	if len(t.o.defaults) > 0 {
		opts = slices.Concat(t.o.defaults, opts)
	}
	return NewJob{Topic: t.name, ID: id, Payload: payload, Options: opts}, nil
}

// Again is the function [Again] with a value as the payload. If the value cannot be encoded, the
// run is a failed attempt, with an [ErrInvalid].
func (t *Topic[T]) Again(value T, opts ...JobOption) error {
	job, err := t.Job("", value)
	if err != nil {
		return fmt.Errorf("again: %w", err)
	}
	return Again(job.Payload, opts...)
}

// Schedule is [Client.Schedule] with a value as the payload. A value that cannot be encoded is an
// [ErrInvalid].
func (t *Topic[T]) Schedule(ctx context.Context, client Scheduler, name string, spec Spec, value T, opts ...ScheduleOption) error {
	one, err := t.NewSchedule(name, spec, value, opts...)
	if err == nil && client == nil {
		err = fmt.Errorf("%w: nil Scheduler", ErrInvalid)
	}
	if err != nil {
		return script.Place{Call: "schedule", Topic: t.Name(), Schedule: name}.At(err)
	}
	return client.Schedule(ctx, one.Topic, one.Name, one.Spec, one.Payload, one.Options...)
}

// NewSchedule returns a schedule for [Client.ScheduleBatch]. A value that cannot be encoded is an
// [ErrInvalid].
func (t *Topic[T]) NewSchedule(name string, spec Spec, value T, opts ...ScheduleOption) (NewSchedule, error) {
	job, err := t.Job("", value)
	if err != nil {
		return NewSchedule{}, err
	}
	given := make([]ScheduleOption, 0, len(job.Options)+len(opts))
	for _, opt := range job.Options {
		given = append(given, opt)
	}
	return NewSchedule{Topic: t.name, Name: name, Spec: spec, Payload: job.Payload, Options: append(given, opts...)}, nil
}

// NewFlow is the function [NewFlow] with a value as the payload of the last step. If the value
// cannot be encoded, [Client.Start] returns an [ErrInvalid].
func (t *Topic[T]) NewFlow(id string, value T, opts ...JobOption) *Flow {
	job, err := t.Job(id, value, opts...)
	f := NewFlow(t.Name(), id, job.Payload, job.Options...)
	if err != nil {
		f.fail(err)
	}
	return f
}

// Add is [Flow.Add] with a value as the payload. If the value cannot be encoded, [Client.Start]
// returns an [ErrInvalid].
func (t *Topic[T]) Add(f *Flow, value T, opts ...JobOption) *FlowStep {
	job, err := t.Job("", value, opts...)
	return f.Add(t.Name(), job.Payload, job.Options...).encoded(err)
}

// AddJob is [Flow.AddJob] with a value as the payload, as [Topic.Add].
func (t *Topic[T]) AddJob(f *Flow, id string, value T, opts ...JobOption) *FlowStep {
	job, err := t.Job(id, value, opts...)
	return f.AddJob(t.Name(), id, job.Payload, job.Options...).encoded(err)
}

// encoded notes that the payload of a step could not be encoded.
func (s *FlowStep) encoded(err error) *FlowStep {
	if err != nil && s.flow != nil {
		s.flow.fail(fmt.Errorf("step %d: %w", s.number, err))
	}
	return s
}

// Decode returns the value of a job, for example of one from [Client.Get].
func (t *Topic[T]) Decode(job *Job) (T, error) {
	var value T
	if err := t.validate(); err != nil {
		return value, invalid([]error{err})
	}
	if job == nil {
		return value, fmt.Errorf("%w: nil job", ErrInvalid)
	}
	if err := t.o.codec.Decode(job.Payload, &value); err != nil {
		return value, fmt.Errorf("decode %T: %w", value, err)
	}
	return value, nil
}

// decodeAttempts is how often a typed topic tries to decode a payload. With the default backoff the
// attempts are 2 s to 2,048 s apart, 68 minutes from the first to the last one, and up to a fifth
// longer.
const decodeAttempts = 12

// undecodable returns the error of a handler for a job whose payload cannot be decoded.
func undecodable(job *Job, err error) error {
	if finished := job.Attempt - 1 - job.spent; finished+1 >= decodeAttempts {
		return Permanent(err)
	}
	return err
}

// Handle is [Server.Handle] with a function that receives the value.
//
// If the payload of a job cannot be decoded, f is not called, and the attempt fails. While servers
// of two releases run side by side, another one may be able to decode the payload, so the job is
// retried. After 12 attempts it is buried, or earlier if its [Retry] says so. With the default
// [Backoff] that is 68 minutes after the first attempt, and up to a fifth later. [Client.Revive]
// gives it 12 more.
func (t *Topic[T]) Handle(server *Server, f func(ctx context.Context, job *Job, value T) error, opts ...HandlerOption) error {
	if err := t.validate(); err != nil {
		return server.register(t.Name(), []error{err}, nil)
	}
	if f == nil {
		return server.Handle(t.name, nil, opts...)
	}
	return server.HandlerFunc(t.name, func(ctx context.Context, job *Job) error {
		value, err := t.Decode(job)
		if err != nil {
			return undecodable(job, err)
		}
		return f(ctx, job, value)
	}, opts...)
}

// HandleBatch is [Server.HandleBatch] with a function that receives the values: values[i] is that
// of jobs[i]. A job whose payload cannot be decoded is left out, and retried or buried as
// [Topic.Handle] does. If that is all of them, f is not called.
func (t *Topic[T]) HandleBatch(server *Server, f func(ctx context.Context, jobs []*Job, values []T) error, opts ...HandlerOption) error {
	if err := t.validate(); err != nil {
		return server.register(t.Name(), []error{err}, nil)
	}
	if f == nil {
		return server.HandleBatch(t.name, nil, opts...)
	}
	return server.HandleBatch(t.name, func(ctx context.Context, jobs []*Job) error {
		good, values := make([]*Job, 0, len(jobs)), make([]T, 0, len(jobs))
		for _, job := range jobs {
			value, err := t.Decode(job)
			if err != nil {
				_ = job.Fail(undecodable(job, err)) // the handler has not returned
				continue
			}
			good, values = append(good, job), append(values, value)
		}
		if len(good) == 0 {
			return nil
		}
		return f(ctx, good, values)
	}, opts...)
}

// A class is a topic with less urgent jobs for the handler of another topic.
type class struct {
	topic string
	opts  []HandlerOption
}

// classWeight is the Weight of a topic that has classes, if none is given.
const classWeight = 1000

// Class makes a handler also run the jobs of another topic. These are less urgent, and have a topic
// of their own so that urgent ones never queue behind them.
//
//	server.Handle("mail", h, delayq.Class("mail:bulk"))
//
// While jobs of mail wait for a worker, one start of 1,001 is that of a bulk job, so bulk jobs do
// not starve. While none wait, bulk jobs can use all the workers. In each topic the keys take turns
// ([Key]). A running handler keeps its worker: an urgent job that comes while all workers are busy
// gets the next one that becomes free.
//
// The topic and its classes share a pool. It is that of [InPool], or else one with the name of the
// topic and as many workers as its [Concurrency]. The [Weight] of the topic is 1,000 by default,
// and that of a class is 1. With Weight(10) for the topic, one start of 11 is that of a bulk job.
// If the pool has another topic that is no class and has no worker, that topic gets the next one,
// as in any pool.
//
// The options of the topic apply to its classes, and opts come after them: a Concurrency for a
// class leaves the rest of the pool to the others. Give Class once for each class. It is for
// topics, not for patterns, and a class has no classes. Everywhere else each class is a topic: it
// has IDs, [Limits], pauses and counters of its own, and [Server.Remove] removes only one of them.
func Class(topic string, opts ...HandlerOption) HandlerOption {
	return handlerOption(func(o *handlerOptions) { o.classes = append(o.classes, class{topic, opts}) })
}

// newHandlerOptions returns the options of a topic.
func newHandlerOptions(topic string, opts []HandlerOption) *handlerOptions {
	o := &handlerOptions{topic: topic, job: defaultJob, topics: defaultMaxTopics, batchSize: defaultBatchSize}
	o.apply(opts)
	return o
}

func (o *handlerOptions) apply(opts []HandlerOption) {
	for _, opt := range opts {
		if opt == nil {
			o.errs = append(o.errs, errors.New("a handler option is nil"))
			continue
		}
		opt.applyHandler(o)
	}
}

// withClasses returns the options of a topic and those of its classes. opts are those of the topic.
func (o *handlerOptions) withClasses(opts []HandlerOption) []*handlerOptions {
	all := []*handlerOptions{o}
	if len(o.classes) > 0 && strings.Contains(o.topic, "*") {
		o.errs = append(o.errs, errors.New("Class is for topics, and the topic is a pattern"))
	}
	for _, class := range o.classes {
		c := newHandlerOptions(class.topic, opts)
		c.above, c.classes, c.weight, c.errs = o, nil, 0, nil
		c.apply(class.opts)
		fail := func(text string) { c.errs = append(c.errs, errors.New(text)) }
		switch {
		case strings.Contains(class.topic, "*"):
			fail("it is a pattern")
		case slices.ContainsFunc(all, func(other *handlerOptions) bool { return other.topic == class.topic }):
			fail("the topic is given twice")
		case len(c.classes) > 0:
			fail("a class has no classes")
		case c.pool != o.pool:
			fail("it is in the pool of its topic")
		}
		all = append(all, c)
	}
	return all
}

// complaints returns what is wrong with the options of a topic or of a class.
func (o *handlerOptions) complaints() []error {
	if o.above == nil || len(o.errs) == 0 {
		return o.errs
	}
	return []error{fmt.Errorf("Class(%q): %w", o.topic, errors.Join(o.errs...))}
}

// joinPool checks what a handler says of its pool, and sets what it leaves to the server. A topic
// with classes gets a pool of its own if it has none, and its classes are in the pool of the topic.
func (o *serverOptions) joinPool(h *handlerOptions) (errs []error) {
	pooled, weight := h.pooled || o.pooled, 1
	if !h.pooled {
		h.pool = o.pool
	}
	if len(h.classes) > 0 {
		weight = classWeight
	}
	if pooled && h.window != nil && h.window.ByKey {
		errs = append(errs, errors.New("GatherWindow.ByKey and InPool: only one of them can be given"))
	}
	switch {
	case h.above != nil:
		h.pool, h.pooled = h.above.pool, true
	case pooled && o.pools[h.pool] == 0:
		errs = append(errs, fmt.Errorf("InPool(%q): the server has no such Pool", h.pool))
	case pooled:
	case len(h.classes) > 0 && o.pools[h.topic] != 0:
		errs = append(errs, fmt.Errorf("Class: the server has a Pool(%q), and the topic is not in it", h.topic))
	case len(h.classes) > 0:
		h.pool, h.pooled, h.poolSize = h.topic, true, cmp.Or(h.concurrency, o.concurrency)
	case h.weight != 0:
		errs = append(errs, errors.New("Weight is for topics with InPool, and the topic has no pool"))
	}
	h.weight = cmp.Or(h.weight, weight)
	return errs
}

// RemoveTopic removes an empty topic: its counters, its pauses, all its other keys, and its name
// from [Inspector.Topics]. All IDs that a [Tombstone] or [UniqueFor] has closed are free then. It
// returns [ErrNotEmpty] and removes nothing if the topic has jobs, even dead or done ones, or
// schedules, or if a live server has a handler for it. A topic that does not exist is removed
// again. If a job or a schedule is stored at the same time, it is kept, and so is the topic.
//
// Servers whose patterns match the topic ([Server.Handle]) end the work for it, within a minute and
// mostly within 5 s. If a job is stored before that, they continue. They may then log that the
// topic has lost data, because its counters have begun anew.
//
// Servers are asked by their heartbeats, so a server that started within the last seconds may not
// be noticed. It continues to handle the topic, and records its name again. Receipts of earlier
// calls expire by themselves within 3 minutes, and a server's list of taken jobs expires with their
// leases.
//
// Of a topic with partitions, all of them must be empty, and all are removed. It keeps its map: the
// next job goes to a partition.
//
// If ctx ends when the keys are deleted already, RemoveTopic still looks for new jobs and removes
// the name.
//
// Cost: O(servers), with one call for 100 of them, and a few calls of O(1), also for each
// partition.
func (c *Client) RemoveTopic(ctx context.Context, topic string) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "remove topic", Topic: topic})
	place := script.Place{Call: "remove", Topic: topic}
	err := c.validate(ctx, topic, "")
	if err == nil {
		err = c.removeTopic(ctx, topic)
	}
	return end.err(c.acted(ctx, script.Place{Call: "remove topic", Topic: topic}, "", "", place.At(err)))
}

func (c *Client) removeTopic(ctx context.Context, topic string) error {
	servers, err := c.inspector().Servers(ctx)
	if err != nil {
		return err
	}
	for _, s := range servers {
		if does, handles := s.Topics[topic]; handles && !does.Found {
			return fmt.Errorf("%w: the server %s handles it", ErrNotEmpty, s.ID)
		}
	}
	m, err := places.ReadMap(ctx, c.scripts, script.NewKeys(c.o.prefix, topic))
	if err != nil {
		return err
	}
	keys := places.All(c.o.prefix, topic, m)
	has := places.Content{}
	if len(m) > 0 { // none is removed unless all are empty
		has, err = places.Contents(ctx, c.scripts, c.o.prefix, topic, m)
	}
	for i := len(keys) - 1; i >= 0 && err == nil && has == (places.Content{}); i-- {
		var r script.Reply
		r, err = c.commits.RemoveKeys(ctx, keys[i])
		has, err = places.ReadContent(r.Text(2)), places.In(keys[i], err)
	}
	switch {
	case err != nil:
		return err
	case has != places.Content{}:
		return fmt.Errorf("%w: %v", ErrNotEmpty, has)
	}
	return c.removeName(ctx, keys)
}

// removeName removes a topic whose keys are deleted from the set of topics. The name is in another
// slot: whoever stores a job in the meantime adds the name again, but perhaps before it is removed
// here. So removeName looks again, even if ctx has ended, and adds the name if it cannot.
func (c *Client) removeName(ctx context.Context, all []*script.Keys) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), serve.CallTimeout)
	defer cancel()
	names, topic := script.TopicsKey(c.o.prefix), all[0].Topic
	err := c.scripts.Blame(call, c.rdb.SRem(call, names, topic).Err(), names)
	c.commits.Forget(topic)
	used := false
	if err == nil {
		used, err = places.Used(call, c.scripts, all)
	}
	if err != nil || used {
		g := c.commits.For(topic, commit.Enqueue)
		defer g.Release()
		g.Confirm(ctx)
	}
	return c.unsure(err)
}
