package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/delayq/delayq/internal/contain"
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
	o := handlerOptions{job: defaultJob, topics: defaultMaxTopics, batchSize: defaultBatchSize}
	for _, opt := range opts {
		if opt == nil {
			o.errs = append(o.errs, errors.New("a handler option is nil"))
			continue
		}
		opt.applyHandler(&o)
	}
	follows := strings.Contains(topic, "*")
	if err := script.CheckName("topic", strings.ReplaceAll(topic, "*", "x")); err != nil {
		o.errs = append(o.errs, err)
	}
	if contain.IsNil(h) {
		o.errs = append(o.errs, errors.New("nil handler"))
	}
	if o.bounded && !follows {
		o.errs = append(o.errs, errors.New("MaxTopics is for patterns, and the topic has no *"))
	}
	if s != nil {
		o.errs = append(o.errs, s.o.joinPool(&o)...)
		most := cmp.Or(o.concurrency, s.o.concurrency)
		if size := s.o.pools[o.pool]; size > 0 && o.concurrency == 0 && !s.o.own {
			most = size
		}
		h = o.sizeBatches(h, most)
	}
	return s.register(topic, o.errs, func() error {
		doing := &handling{topic: topic, handler: h}
		if s.used && !follows && !s.engine.Handles(topic) {
			if err := s.wrapLocked(doing); err != nil {
				return err
			}
		}
		if err := s.engine.Handle(o.like(doing), o.topics); err != nil {
			return invalid([]error{err})
		}
		if !s.used {
			s.handlers = append(s.handlers, doing)
		}
		return nil
	})
}

// like returns what the engine must know of a handler.
func (o *handlerOptions) like(h *handling) serve.TopicConfig {
	like := serve.TopicConfig{
		Topic: h.topic, Task: h, Concurrency: o.concurrency, Defaults: o.job.Options, Pool: o.pool, Weight: o.weight,
	}
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
}

// Run calls the handler with the job of a run.
func (h *handling) Run(ctx context.Context, r *run.Run) error {
	return h.handler.Handle(ctx, newJob(r))
}

// RunBatch calls the batch handler with the jobs of a batch.
func (h *handling) RunBatch(ctx context.Context, b *run.Batch, each func(*run.Run) context.Context) error {
	jobs := make([]*Job, len(b.Runs))
	for i, r := range b.Runs {
		b.Parts[i].Ctx = each(r)
		jobs[i] = newJob(r)
		jobs[i].part = &b.Parts[i]
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
// Remove returns [ErrInvalid] for a topic without a handler, and [ErrServerUsed] once the server
// has begun to stop. A topic that a pattern has found is found again later.
func (s *Server) Remove(ctx context.Context, topic string) error {
	err := checkContext(ctx)
	if bad := s.valid(); bad != nil {
		err = bad
	}
	if err == nil {
		err = s.engine.Remove(ctx, topic)
		if errors.Is(err, serve.ErrNoHandler) || errors.Is(err, serve.ErrLeaving) {
			err = invalid([]error{err})
		}
	}
	if err != nil {
		return fmt.Errorf("remove topic %q: %w", topic, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.used {
		s.handlers = slices.DeleteFunc(s.handlers, func(h *handling) bool { return h.topic == topic })
	}
	return nil
}
