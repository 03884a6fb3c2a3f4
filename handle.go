package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
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
	var pool *workerPool
	if s != nil {
		var err error
		if pool, o.weight, err = s.poolOf(&o); err != nil {
			o.errs = append(o.errs, err)
		}
		most := cmp.Or(o.concurrency, s.o.concurrency)
		if pool != nil && o.concurrency == 0 && !s.o.own {
			most = pool.size
		}
		h = o.sizeBatches(h, most)
	}
	return s.register(topic, o.errs, func() (err error) {
		like := topicLike{
			topic: topic, handler: h, concurrency: o.concurrency, defaults: o.job.Options, limits: o.limits, pool: pool, weight: o.weight,
		}
		if follows {
			return s.addPatternLocked(&pattern{like: like, most: o.topics})
		}
		if s.used && s.topics.get(topic) == nil {
			if like.handler, err = s.wrapLocked(topic, h); err != nil {
				return err
			}
		}
		_, err = s.addTopicLocked(like)
		return err
	})
}

// HandlerFunc sets a function as the handler of a topic. See [Server.Handle].
func (s *Server) HandlerFunc(topic string, f HandlerFunc, opts ...HandlerOption) error {
	return s.Handle(topic, f, opts...)
}

// register calls add under the server's mutex, unless there are errors already. It returns all of
// them, and keeps them for Run.
func (s *Server) register(topic string, errs []error, add func() error) error {
	switch {
	case s == nil:
		return errNilServer
	case s.id == "":
		return errZeroServer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := invalid(errs)
	switch {
	case s.stopped:
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

// A topicLike is what a caller of Handle has set.
type topicLike struct {
	topic       string // or a pattern
	handler     Handler
	concurrency int // 0: the server's
	defaults    record.Options
	limits      *Limits     // by default
	pool        *workerPool // nil: workers of its own
	weight      int
	found       bool // by a pattern
}

// addTopicLocked adds a topic, and starts it if the server is running. Server.mu must be held. If
// the server has begun, the handler has its middleware already.
func (s *Server) addTopicLocked(like topicLike) (*topicServer, error) {
	if s.topics.get(like.topic) != nil {
		return nil, invalid([]error{errors.New("handler already set")})
	}
	t := &topicServer{
		server: s, keys: script.NewKeys(s.o.prefix, like.topic), handler: like.handler,
		workers: workers{count: like.concurrency}, defaults: like.defaults, limits: like.limits,
	}
	if like.pool != nil {
		t.workers.member = &poolMember{pool: like.pool, topic: t, weight: like.weight}
	}
	if s.used {
		t.init()
		t.late, t.found = true, like.found
		s.nodes.grow(s.topics.len() + 1)
	}
	if s.lifetime != nil {
		t.build(s.lifetime)
	}
	s.topics.add(t)
	t.begin()
	return t, nil
}

// wrapLocked wraps a handler in the middleware of the server. Server.mu must be held.
func (s *Server) wrapLocked(topic string, h Handler) (Handler, error) {
	if batches, ok := h.(*batchHandler); ok {
		return s.wrapBatchLocked(topic, batches)
	}
	for _, m := range slices.Backward(s.middleware) {
		if h = m(h); contain.IsNil(h) {
			return nil, fmt.Errorf("%w: topic %q: a middleware returned a nil handler", ErrInvalid, topic)
		}
	}
	return h, nil
}

// A lifetime is what the loops of a running server's topics belong to.
type lifetime struct {
	fetch, work               context.Context
	fetching, taking, working *sync.WaitGroup
}

// serve starts the topics of a server, or with nil ends the time in which topics can be added.
func (s *Server) serve(as *lifetime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifetime, s.stopped = as, as == nil
	if as == nil {
		return
	}
	for _, t := range s.topics.all() {
		t.build(as)
		t.begin()
	}
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
	switch {
	case s == nil:
		err = errNilServer
	case s.id == "":
		err = errZeroServer
	}
	if err != nil {
		return fmt.Errorf("remove topic %q: %w", topic, err)
	}
	s.mu.Lock()
	t := s.topics.get(topic)
	running := s.lifetime != nil
	switch {
	case s.stopped:
		err = ErrServerUsed // the drain needs the topic
	case t == nil:
		err = invalid([]error{errors.New("the topic has no handler")})
	case t.leaving:
		err = invalid([]error{errors.New("the topic is being removed")})
	case running:
		t.leaving = true
	default:
		s.topics.remove(topic)
	}
	s.mu.Unlock()
	if err == nil && running {
		err = t.remove(ctx)
	}
	if err != nil {
		return fmt.Errorf("remove topic %q: %w", topic, err)
	}
	return nil
}

// remove ends the loops and handlers of a topic of a running server.
func (t *topicServer) remove(ctx context.Context) (err error) {
	s := t.server
	by := time.Now().Add(2 * stopPatience)
	t.removeBy.Store(&by)
	t.endFetch()
	t.stop()
	fetched := s.whenDone(&t.fetching)
	select {
	case <-fetched:
	case <-ctx.Done():
	}
	settled := t.settled()
	select {
	case <-settled:
	case <-t.base.Done(): // the server has stopped, and given up
	case <-ctx.Done():
		err = context.Cause(ctx)
		t.cancelAll(ErrShutdown)
		grace := time.NewTimer(shutdownGrace + settleGrace)
		defer grace.Stop()
		select {
		case <-settled:
		case <-grace.C:
			if n := t.abandonAll(); n > 0 {
				t.trouble.log.Warn("handlers abandoned", "count", n, "err", "they did not return when their contexts were cancelled")
			}
			grace.Reset(settleGrace)
			select {
			case <-settled:
			case <-grace.C:
			}
		}
	}
	t.endWork()
	<-s.whenDone(&t.working)
	<-fetched
	t.waits.Wait()
	s.blocked.remove(t)
	t.reportUnsettled()
	s.leave(t)
	s.topics.remove(t.keys.Topic)
	return err
}

// topicSet holds the topics that a server serves.
type topicSet struct {
	mu   sync.Mutex
	by   map[string]*topicServer
	list []*topicServer // by name; nil: to be made
}

func (s *topicSet) get(topic string) *topicServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[topic]
}

// add adds a topic. It must not be in the set yet.
func (s *topicSet) add(t *topicServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = make(map[string]*topicServer)
	}
	s.by[t.keys.Topic], s.list = t, nil
}

func (s *topicSet) remove(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, topic)
	s.list = nil
}

func (s *topicSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by)
}

// all returns the topics by name. The caller must not change the list.
func (s *topicSet) all() []*topicServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = make([]*topicServer, 0, len(s.by))
		for _, t := range s.by {
			s.list = append(s.list, t)
		}
		slices.SortFunc(s.list, func(a, b *topicServer) int { return strings.Compare(a.keys.Topic, b.keys.Topic) })
	}
	return s.list
}
