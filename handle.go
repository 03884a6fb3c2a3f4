package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
	"github.com/delayq/delayq/internal/workers"
)

// Handle sets the handler of a topic. If the server is running, it serves the topic from now on.
//
// A topic with a * is a pattern: tenant.* stands for all topics of the prefix, present and future,
// that begin with tenant. and for which no handler of their own is set. If several patterns match,
// the longest one counts. A server finds a new topic within a minute of its first job, and mostly
// within 5 s. It serves at most [MaxTopics] topics of a pattern. The Concurrency of a pattern is
// that of each topic. Patterns must be set before Run.
//
// Handle returns [ErrInvalid] for a second handler of the same topic, an invalid topic or option, a
// nil handler or a nil pointer as handler, and sets nothing. [Server.Run] returns the same error,
// so a program that sets its handlers before Run need not look at it. After the server has been
// stopped, Handle returns [ErrServerUsed].
func (s *Server) Handle(topic string, h Handler, opts ...HandlerOption) error {
	return s.handleTopic(topic, h, opts)
}

// handleTopic sets a Handler or a batchHandler.
func (s *Server) handleTopic(topic string, h Handler, opts []HandlerOption) error {
	all := newHandlerOptions(topic, opts).withClasses(opts)
	doing, offers, errs := make([]*handling, len(all)), make([]serve.Offer, len(all)), []error(nil)
	for i, o := range all {
		doing[i] = &handling{topic: o.topic, handler: s.fit(o, h), sealer: s.sealer(), server: s}
		if s.valid() == nil { // nothing may wait for Redis below
			offers[i] = serve.Offer{TopicConfig: o.like(doing[i], &s.o.job.Options), Client: s.engine.ClientFor(o.topic)}
		}
		errs = append(errs, o.complaints()...)
	}
	return s.register(topic, errs, func() error {
		for _, d := range doing {
			if !s.used || strings.Contains(d.topic, "*") {
				continue
			}
			if s.engine.Handles(d.topic) {
				return invalid([]error{serve.ErrHandled})
			}
			if err := s.wrapLocked(d); err != nil {
				return err
			}
		}
		switch err := s.engine.Handle(all[0].topics, offers...); {
		case errors.Is(err, ErrServerUsed): // it has begun to stop meanwhile
			return err
		case err != nil:
			return invalid([]error{err})
		}
		if !s.used {
			s.handlers = append(s.handlers, doing...)
		}
		return nil
	})
}

// fit checks the options of a topic and of its handler, and returns the handler with the size of
// its batches.
func (s *Server) fit(o *handlerOptions, h Handler) Handler {
	follows := strings.Contains(o.topic, "*")
	if err := script.CheckName("topic", strings.ReplaceAll(o.topic, "*", "x")); err != nil {
		o.errs = append(o.errs, err)
	}
	if contain.IsNil(h) {
		o.errs = append(o.errs, errors.New("nil handler"))
	}
	if o.bounded && !follows {
		o.errs = append(o.errs, errors.New("MaxTopics is for patterns, and the topic has no *"))
	}
	if s == nil {
		return h
	}
	o.errs = append(o.errs, s.o.joinPool(o)...)
	most := cmp.Or(o.concurrency, s.o.concurrency)
	if size := s.o.pools[o.pool]; size > 0 && o.concurrency == 0 && !s.o.own {
		most = size
	}
	return o.sizeBatches(h, most)
}

// like returns what the engine must know of a handler. Its Defaults take precedence over those of
// the server.
func (o *handlerOptions) like(h *handling, defaults *record.Options) serve.TopicConfig {
	like := serve.TopicConfig{
		Topic: h.topic, Task: h, Concurrency: o.concurrency, Defaults: o.job.Options, Pool: o.pool, Weight: o.weight,
		PoolSize: o.poolSize, Lower: o.above != nil, OnDemand: o.onDemand,
	}
	like.Defaults.Fill(defaults)
	like.Defaults.Fill(&defaultRun)
	if o.limits != nil {
		like.Limits = o.limits.encode()
	}
	if b, ok := h.handler.(*batchHandler); ok {
		like.PerCall, like.Window = b.size, workers.Window{
			Size: b.window.Size, Wait: ofMS(ceilMS(b.window.Wait)), ByKey: b.window.ByKey,
		}
	}
	return like
}

// A handling is a handler of a topic or of a pattern, as the engine calls it.
type handling struct {
	topic   string
	handler Handler
	sealer  *Client // that encodes the jobs that its runs hand over
	server  *Server
}

// before says whose handler gets its middleware first: topics by name, then patterns, the longest
// first.
func (h *handling) before(other *handling) int {
	rank := func(h *handling) int {
		if strings.Contains(h.topic, "*") {
			return -len(h.topic)
		}
		return math.MinInt
	}
	if by := cmp.Compare(rank(h), rank(other)); by != 0 || rank(h) != math.MinInt {
		return by
	}
	return strings.Compare(h.topic, other.topic)
}

// Run calls the handler with the job of a run.
func (h *handling) Run(ctx context.Context, r *run.Run) error {
	job := newJob(r)
	job.hands = h.hands(ctx, r)
	return h.handler.Handle(ctx, job)
}

// hands returns what the job of a run hands over, and reads.
func (h *handling) hands(ctx context.Context, r *run.Run) *handing {
	return &handing{sealer: h.sealer, ctx: ctx, run: &r.Hands, flow: r.Options.Flow, server: h.server}
}

// RunBatch calls the batch handler with the jobs of a batch.
func (h *handling) RunBatch(ctx context.Context, b *run.Batch, each func(*run.Run) context.Context) error {
	jobs := make([]*Job, len(b.Runs))
	for i, r := range b.Runs {
		b.Parts[i].Ctx = each(r)
		jobs[i] = newJob(r)
		jobs[i].part = &b.Parts[i]
		jobs[i].hands = h.hands(b.Parts[i].Ctx, r)
	}
	return h.handler.(*batchHandler).handle(ctx, jobs)
}

// HandlerFunc sets a function as the handler of a topic. See [Server.Handle].
func (s *Server) HandlerFunc(topic string, f HandlerFunc, opts ...HandlerOption) error {
	return s.Handle(topic, f, opts...)
}

// register calls add under the server's mutex, unless there are errors already. It returns all of
// them, and keeps them for Run.
func (s *Server) register(topic string, errs []error, add func() error) error {
	if err := s.valid(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := invalid(errs)
	switch {
	case s.engine.HasStopped():
		err = errors.Join(err, ErrServerUsed)
	case err == nil:
		err = add()
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("handler of topic %q: %w", topic, err)
	if !s.used {
		s.errs = append(s.errs, err)
	}
	return err
}

// wrapLocked wraps a handler in the middleware of the server. Server.mu must be held.
func (s *Server) wrapLocked(h *handling) error {
	if batches, ok := h.handler.(*batchHandler); ok {
		return s.wrapBatchLocked(h, batches)
	}
	inner := h.handler
	for _, m := range slices.Backward(s.middleware) {
		if inner = m(inner); contain.IsNil(inner) {
			return fmt.Errorf("%w: topic %q: a middleware returned a nil handler", ErrInvalid, h.topic)
		}
	}
	h.handler = inner
	return nil
}

// Remove ends the work of a server for a topic, and removes the handler. It stops taking jobs of
// the topic, lets running handlers finish and returns once Redis has their outcomes. When ctx is
// done before that, it cancels the contexts of the handlers with cause [ErrShutdown], puts their
// jobs back and returns an error that wraps the cause of ctx. The topic is removed in any case. Its
// jobs stay in Redis, and other servers run them. Before Run, Remove only removes the handler.
//
// Remove also waits for the reply to a take in flight, at most a minute. In a server of at most
// four topics that can be a wait for a job, of up to 4 s.
//
// A handler of the topic cannot wait for Remove, because Remove waits for that handler. It calls
// Remove in a goroutine, with a context that is not its own.
//
// Remove returns [ErrInvalid] for a topic without a handler, and with the context of a handler of
// the topic, or one that is derived from it; then nothing is removed. It returns [ErrServerUsed]
// once the server has begun to stop. A topic that a pattern has found is found again later.
func (s *Server) Remove(ctx context.Context, topic string) error {
	err := checkContext(ctx)
	if bad := s.valid(); bad != nil {
		err = bad
	}
	if err == nil {
		err = s.remove(ctx, topic)
	}
	if err != nil {
		return fmt.Errorf("remove topic %q: %w", topic, err)
	}
	return nil
}

// remove ends the work for a topic. Before Run, it also forgets the handler, in one step.
func (s *Server) remove(ctx context.Context, topic string) error {
	s.mu.Lock()
	if s.used {
		s.mu.Unlock()
		return refused(s.engine.Remove(ctx, topic))
	}
	defer s.mu.Unlock()
	if err := s.engine.Remove(ctx, topic); err != nil {
		return refused(err)
	}
	s.handlers = slices.DeleteFunc(s.handlers, func(h *handling) bool { return h.topic == topic })
	return nil
}

// refused makes an error about a topic that cannot be removed one about an argument.
func refused(err error) error {
	if errors.Is(err, serve.ErrNoHandler) || errors.Is(err, serve.ErrLeaving) || errors.Is(err, serve.ErrOwn) {
		return invalid([]error{err})
	}
	return err
}

// A BatchHandlerFunc runs several jobs of a topic in one call, for example to write them to a
// database in one statement. [Server.HandleBatch] sets it.
//
// [Job.Fail], [Job.Snooze] and [Job.Permanent] give one job an outcome of its own. The returned
// value decides what happens to all others, as that of a [Handler] does to its job: after nil they
// are done, after [Hold] they go back to ready, and so on. So do a panic and runtime.Goexit, which
// leave the outcomes that were given before. Each job has its own attempts, retries and backoff.
//
// ctx is that of the whole batch. Its deadline is the earliest end of the [Timeout] of any of the
// jobs. When a job is cancelled or replaced, or loses its lease, its outcome is dropped, and
// [Job.Err] says so. ctx is cancelled when that has happened to all of them, with the cause of the
// last one, and when the server stops, with [ErrShutdown].
type BatchHandlerFunc func(ctx context.Context, jobs []*Job) error

// BatchMiddleware wraps a [BatchHandlerFunc] in another one.
type BatchMiddleware func(BatchHandlerFunc) BatchHandlerFunc

// HandleBatch sets a handler that runs several jobs of a topic at a time. How many that are at most
// is its [BatchSize].
//
// A batch begins as soon as a worker is idle and a job is ready. It has all ready jobs that it has
// room for, so it is full if there is a backlog, and has a single job if there is no other. A job
// does not wait for others to come, unless [Gather] says so. [Concurrency] is the number of batches
// that run at the same time.
//
// In every other respect HandleBatch is like [Server.Handle]: the topic can be a pattern, and the
// errors are the same. A topic has one handler, of either kind. [BatchSize] times [Concurrency] is
// at most 100,000.
func (s *Server) HandleBatch(topic string, f BatchHandlerFunc, opts ...HandlerOption) error {
	return s.handleTopic(topic, &batchHandler{handle: f}, opts)
}

// UseBatch adds middleware around the batch handlers of all topics. It is for [Server.HandleBatch]
// what [Server.Use] is for [Server.Handle]. Neither applies to the handlers of the other.
func (s *Server) UseBatch(middleware ...BatchMiddleware) {
	if !s.made("use batch") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range middleware {
		switch {
		case s.used:
			s.log.Error("middleware not added", "err", errTooLate)
		case m == nil:
			s.errs = append(s.errs, fmt.Errorf("%w: nil batch middleware", ErrInvalid))
		default:
			s.around = append(s.around, m)
		}
	}
}

// A batchHandler takes the place of a Handler in a topic whose jobs run in batches.
type batchHandler struct {
	handle BatchHandlerFunc
	size   int
	window GatherWindow // zero: jobs are not gathered
}

// Handle runs a batch of one job.
func (h *batchHandler) Handle(ctx context.Context, job *Job) error {
	return h.handle(ctx, []*Job{job})
}

// sizeBatches returns the handler of a topic, with the size of its batches if it has any.
func (o *handlerOptions) sizeBatches(h Handler, workers int) Handler {
	batches, ok := h.(*batchHandler)
	switch {
	case !ok && o.sized:
		o.errs = append(o.errs, errors.New("BatchSize is for HandleBatch"))
	case !ok && o.window != nil:
		o.errs = append(o.errs, errors.New("Gather is for HandleBatch"))
	case ok && batches.handle == nil:
		o.errs = append(o.errs, errors.New("nil handler"))
	case ok && o.batchSize <= mostBatchSize && o.batchSize*workers > mostBatched:
		o.errs = append(o.errs, fmt.Errorf("BatchSize(%d) and Concurrency(%d): at most %d jobs at a time are allowed", o.batchSize, workers, mostBatched))
	}
	if !ok {
		return h
	}
	return &batchHandler{batches.handle, o.batchSize, o.gather()}
}

// wrapBatchLocked wraps a batch handler in the middleware of the server. Server.mu must be held.
func (s *Server) wrapBatchLocked(h *handling, batches *batchHandler) error {
	f := batches.handle
	for _, m := range slices.Backward(s.around) {
		if f = m(f); f == nil {
			return fmt.Errorf("%w: topic %q: a batch middleware returned a nil handler", ErrInvalid, h.topic)
		}
	}
	h.handler = &batchHandler{f, batches.size, batches.window}
	return nil
}

// OnDemand makes a handler run as many jobs as Demand has asked for, instead of those that its
// Concurrency allows. None is taken ahead.
func (friends) OnDemand() HandlerOption {
	return handlerOption(func(o *handlerOptions) { o.onDemand = true })
}

// Bare lets a server run without a handler: those of its topics come later.
func (friends) Bare(s *Server) { s.o.bare = true }

// Demand asks for so many more jobs of a topic whose handler is OnDemand. With a negative number it
// withdraws what it has asked for. A job that the handler is called with has used up one.
func (friends) Demand(s *Server, topic string, jobs int) { s.engine.Demand(topic, jobs) }

// Fail gives a job of a batch an outcome of its own. It decides what happens to the job as if a
// [Handler] had returned err at the time of the call: the job is retried or buried, [RetryIn] and
// [Again] have their effects, and after Fail(nil) the job is done, whatever the batch handler
// returns. The outcome is recorded when the batch handler has returned. The last call counts.
//
// Fail returns [ErrInvalid] if the job is not in a batch, or if the batch handler has returned.
// Then it has no effect.
func (j *Job) Fail(err error) error { return j.end("fail", err) }

// Snooze is [Job.Fail] with [Snooze]: the job runs again after d, and uses up no attempt.
func (j *Job) Snooze(d time.Duration) error { return j.end("snooze", Snooze(d)) }

// Permanent is [Job.Fail] with [Permanent]: the job is buried.
func (j *Job) Permanent(err error) error { return j.end("bury", Permanent(err)) }

// Err returns why a job of a batch no longer belongs to it: [ErrCancelled], [ErrReplaced] or
// [ErrLeaseLost]. Its outcome will be dropped, so a batch handler can pass over the job. Err
// returns nil for all other jobs, and outside a batch.
func (j *Job) Err() error {
	if j == nil || j.part == nil {
		return nil
	}
	return j.part.Gone()
}

// Context returns the context of one job of a batch. It is a child of that of the batch, which ends
// earlier if [Job.Err] is no longer nil. It has the values that each [RunHook] has added for this
// job, such as its span. Use it for calls that are about this job alone. Outside a batch it is
// [context.Background], because there the handler has the context of its job.
func (j *Job) Context() context.Context {
	if j == nil || j.part == nil {
		return context.Background()
	}
	return j.part.Ctx
}

// end sets the outcome of a job of a batch.
func (j *Job) end(call string, err error) error {
	switch {
	case j == nil:
		return fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	case j.part == nil:
		return script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(fmt.Errorf("%w: the job is not in a batch", ErrInvalid))
	case !j.part.Set(err):
		return script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(fmt.Errorf("%w: the batch handler has returned", ErrInvalid))
	}
	return nil
}

// RunBatch calls a batch handler without a server, and returns the outcome of each job.
func (friends) RunBatch(ctx context.Context, f BatchHandlerFunc, jobs []*Job) []error {
	parts, errs := make([]run.Part, len(jobs)), make([]error, len(jobs))
	if ctx == nil || f == nil || slices.Contains(jobs, nil) {
		for i := range errs {
			errs[i] = fmt.Errorf("run batch: %w: nil context, handler or job", ErrInvalid)
		}
		return errs
	}
	for i, job := range jobs {
		parts[i].Ctx, job.part = ctx, &parts[i]
	}
	var err error
	defer func() {
		for i := range parts {
			errs[i], _ = parts[i].Close(err, nil)
		}
	}()
	err = f(ctx, slices.Clone(jobs))
	return errs
}

// A GatherWindow says how long a batch handler gathers jobs: see [Gather].
type GatherWindow struct {
	// Size is the number of ready jobs that are enough for a batch: from 1 to the [BatchSize]. 0 is
	// the BatchSize.
	Size int
	// Wait is how long jobs are gathered at most if there are fewer: from 1 ms to 24 h.
	Wait time.Duration
	// ByKey gathers the jobs of each [Key] by themselves. A batch then has the jobs of one key. It
	// needs a BatchSize of at most 250, and cannot be combined with [InPool].
	ByKey bool
}

const (
	mostGathered  = 24 * time.Hour
	mostKeyBatch  = 250 // what a take of jobs with keys can return
	leastGathered = time.Millisecond
)

// Gather makes a handler of [Server.HandleBatch] wait for jobs until there are Size of them, or for
// as long as Wait, whichever comes first. The jobs stay in Redis meanwhile. So a crash loses none,
// no lease is held and no attempt used, and all servers of the topic gather together. Give all of
// them the same window.
//
// Without ByKey, Wait begins when a server finds the first job. With ByKey, it begins at the due
// time of the first job of the key, so the jobs of a crashed server run again at once. Jobs without
// a key are then a key of their own, and are not gathered.
//
// A batch can still have fewer jobs than Size: if some are cancelled at the last moment, if its
// records exceed 1 MiB, or if [Limits] let fewer start. It has more, up to the [BatchSize], if more
// are ready. Other servers that handle the topic without Gather take the jobs at once.
//
// While jobs are gathered, each job that becomes ready costs one more take.
func Gather(w GatherWindow) HandlerOption {
	return handlerOption(func(o *handlerOptions) { o.window = &w })
}

// gather returns the window of a batch handler, zero without one. It adds the errors.
func (o *handlerOptions) gather() GatherWindow {
	if o.window == nil {
		return GatherWindow{}
	}
	w := *o.window
	if w.Size == 0 {
		w.Size = o.batchSize
	}
	if w.Size < 1 || w.Size > o.batchSize {
		o.errs = append(o.errs, fmt.Errorf("GatherWindow.Size(%d): must be from 1 to the BatchSize, %d", w.Size, o.batchSize))
	}
	if w.Wait < leastGathered || w.Wait > mostGathered {
		o.errs = append(o.errs, fmt.Errorf("GatherWindow.Wait(%v): must be from %v to %v", w.Wait, leastGathered, mostGathered))
	}
	if w.ByKey && o.batchSize > mostKeyBatch {
		o.errs = append(o.errs, fmt.Errorf("BatchSize(%d): must be at most %d with GatherWindow.ByKey", o.batchSize, mostKeyBatch))
	}
	return w
}
