package delayq

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/workers"
)

// A topicLike is what is to be known of a topic that is served.
type topicLike struct {
	topic       string // or a pattern
	task        task
	concurrency int            // 0: the server's
	defaults    record.Options // of its jobs
	limits      string         // by default, as they are stored; empty: none
	perCall     int            // jobs of a batch at most; 0: they run one by one
	window      workers.Window
	pool        string // empty: workers of its own
	weight      int
	found       bool // by a pattern
}

// Errors of handle and remove. Their caller says of which topic they are.
var (
	errHandled   = errors.New("handler already set")
	errLateMatch = errors.New("a pattern must be set before Run")
	errNoHandler = errors.New("the topic has no handler")
	errLeaving   = errors.New("the topic is being removed")
)

// handle makes the engine serve a topic, or with a * all topics that match, at most that many.
func (s *engine) handle(like topicLike, most int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.Contains(like.topic, "*") {
		return s.addPatternLocked(&pattern{like: like, most: most})
	}
	_, err := s.addTopicLocked(like)
	return err
}

// handles reports whether the engine serves a topic.
func (s *engine) handles(topic string) bool { return s.topics.get(topic) != nil }

// hasStopped reports whether no more topics can be added.
func (s *engine) hasStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// addTopicLocked adds a topic, and starts it if the engine is running. engine.mu must be held.
func (s *engine) addTopicLocked(like topicLike) (*topicServer, error) {
	if s.topics.get(like.topic) != nil {
		return nil, errHandled
	}
	t := &topicServer{
		server: s, keys: script.NewKeys(s.config.prefix, like.topic), task: like.task,
		workers: workers.Workers{Count: like.concurrency, PerCall: like.perCall, Window: like.window}, defaults: like.defaults, limits: like.limits,
	}
	if pool := s.pools[like.pool]; pool != nil {
		t.workers.Member = &workers.Member{Pool: pool, Receive: t.receive, Weight: like.weight}
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

// A lifetime is what the loops of a running server's topics belong to.
type lifetime struct {
	fetch, work               context.Context
	fetching, taking, working *sync.WaitGroup
}

// serve starts the topics of a server, or with nil ends the time in which topics can be added.
func (s *engine) serve(as *lifetime) {
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

// remove ends the work for a topic, and returns when Redis has the outcomes of its jobs or when ctx
// is done. Before run, it only forgets the topic.
func (s *engine) remove(ctx context.Context, topic string) error {
	s.mu.Lock()
	t := s.topics.get(topic)
	running := s.lifetime != nil
	var err error
	switch {
	case s.stopped:
		err = errUsed // the drain needs the topic
	case t == nil:
		err = errNoHandler
	case t.leaving:
		err = errLeaving
	case running:
		t.leaving = true
	default:
		s.topics.remove(topic)
	}
	s.mu.Unlock()
	if err == nil && running {
		err = t.remove(ctx)
	}
	return err
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
		t.cancelAll(run.ErrShutdown)
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
