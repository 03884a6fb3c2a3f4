package serve

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/workers"
)

// A TopicConfig is what is to be known of a topic that is served.
type TopicConfig struct {
	Topic       string // or a pattern
	Task        Task
	Concurrency int            // 0: the server's
	Defaults    record.Options // of its jobs
	Limits      string         // by default, as they are stored; empty: none
	PerCall     int            // jobs of a batch at most; 0: they run one by one
	Window      workers.Window
	Pool        string // empty: workers of its own
	PoolSize    int    // of a pool that is made for the topic and its classes; 0: the server has it
	Weight      int
	Lower       bool   // a lower class of its pool
	OnDemand    bool   // it takes as many jobs as Demand asks for; Concurrency is 0
	found       bool   // by a pattern
	home        *Topic // of which it is a partition; nil: it is none
}

// Errors of Handle and Remove. Their caller says of which topic they are.
var (
	ErrHandled   = errors.New("handler already set")
	errLateMatch = errors.New("a pattern must be set before Run")
	ErrNoHandler = errors.New("the topic has no handler")
	ErrLeaving   = errors.New("the topic is being removed")
	ErrOwn       = errors.New("a handler of the topic cannot wait for its own end: call Remove in a goroutine, with another context")
)

// An Offer is a topic that a server is to serve, and the client that ClientFor has returned for it.
type Offer struct {
	TopicConfig
	Client redis.UniversalClient
}

// Handle makes the server serve a topic and its classes, or with a * all topics that match, at most
// that many. It adds none if it returns an error: ErrUsed once the server has begun to stop.
func (s *Server) Handle(most int, offers ...Offer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase.stopped {
		return ErrUsed
	}
	if like := offers[0].TopicConfig; strings.Contains(like.Topic, "*") {
		return s.addPatternLocked(&pattern{like: like, most: most})
	}
	for _, o := range offers {
		if s.Topics.Get(o.Topic) != nil {
			return ErrHandled
		}
	}
	for _, o := range offers {
		if o.PoolSize > 0 {
			s.pools[o.Pool] = workers.NewPool(o.Pool, o.PoolSize)
		}
		if _, err := s.addTopicLocked(o.TopicConfig, o.Client); err != nil {
			return err
		}
	}
	return nil
}

// Handles reports whether the server serves a topic.
func (s *Server) Handles(topic string) bool { return s.Topics.Get(topic) != nil }

// Demand makes a topic that takes jobs on demand take so many more, or with a negative number so
// many fewer of those that it has not started yet. Jobs that nobody wants any more go back to ready
// at once.
func (s *Server) Demand(topic string, jobs int) {
	t := s.Topics.Get(topic)
	if t == nil {
		return
	}
	t.Mu.Lock()
	w := &t.Workers
	if w.shared != nil {
		w.given = w.shared.Demand(jobs, w.given)
		t.unlock()
		if jobs < 0 {
			for _, p := range t.places() {
				p.demanded()
			}
		}
		return
	}
	w.Count += jobs
	t.startWorkerLocked()
	if t.roomLocked() > 0 {
		t.freedLocked()
	}
	unwanted := t.unwantedLocked()
	t.unlock()
	if unwanted {
		t.GiveBack(errUnwanted)
	}
}

// demanded gives back the workers and the jobs of a place of a topic that nobody wants any more.
func (t *Topic) demanded() {
	t.Mu.Lock()
	t.Workers.Asked = -1
	t.adjustLocked(0)
	unwanted := t.unwantedLocked()
	t.unlock()
	if unwanted {
		t.GiveBack(errUnwanted)
	}
}

// unwantedLocked reports whether there are more jobs than workers for them.
func (t *Topic) unwantedLocked() bool {
	w := &t.Workers
	return len(w.Next)+len(w.Later) > max(0, w.Idle())
}

var errUnwanted = errors.New("nobody waits for the job any more")

// serves is Handles for a handler of the server. A topic that a pattern matches can be one that the
// server will find.
func (s *Server) serves(topic string) bool {
	if s.Handles(topic) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.patterns, func(p *pattern) bool { return matches(p.like.Topic, topic) })
}

// HasStopped reports whether no more topics can be added.
func (s *Server) HasStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase.stopped
}

// addTopicLocked adds a topic, and starts it if the server is running. The client is that of
// ClientFor. Server.mu must be held.
func (s *Server) addTopicLocked(like TopicConfig, client redis.UniversalClient) (*Topic, error) {
	if s.Topics.Get(like.Topic) != nil {
		return nil, ErrHandled
	}
	t := &Topic{Server: s, Keys: script.NewKeys(s.Config.Prefix, like.Topic), config: like, taking: taking{limits: like.Limits}}
	t.Workers.Workers = workers.Workers{
		Count: like.Concurrency, PerCall: like.PerCall, Window: like.Window, OnDemand: like.OnDemand,
	}
	switch pool := s.pools[like.Pool]; {
	case t.config.home != nil:
		pool, t.Workers.Count = t.config.home.shareWorkers()
		t.Workers.Member = &workers.Member{Pool: pool, Receive: t.receive, Weight: 1}
	case pool != nil:
		t.Workers.Member = &workers.Member{Pool: pool, Receive: t.receive, Weight: like.Weight, Lower: like.Lower}
	}
	if s.phase.used {
		t.init()
		t.stay.late, t.stay.found = t.config.home == nil, like.found
		s.nodes.grow(s.Topics.len() + 1)
	}
	if s.phase.lifetime != nil {
		t.build(s.phase.lifetime, client)
	}
	s.Topics.add(t)
	t.begin()
	if t.config.home == nil && s.phase.lifetime != nil {
		t.askParts()
	}
	return t, nil
}

// A lifetime is what the loops of a running server's topics belong to.
type lifetime struct {
	fetch, work               context.Context
	fetching, taking, working *sync.WaitGroup
}

// serve starts the topics of a server, or with nil ends the time in which topics can be added.
func (s *Server) serve(as *lifetime) {
	var clients map[*Topic]redis.UniversalClient
	if as != nil {
		clients = s.nodeClients(as.fetch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase.lifetime, s.phase.stopped = as, as == nil
	if as == nil {
		return
	}
	for _, t := range s.Topics.all() {
		t.build(as, clients[t])
		t.begin()
	}
}

// Remove ends the work for a topic, and returns when Redis has the outcomes of its jobs or when ctx
// is done. Before run, it only forgets the topic.
func (s *Server) Remove(ctx context.Context, topic string) error {
	s.mu.Lock()
	t := s.Topics.Get(topic)
	running := s.phase.lifetime != nil
	var all []*Topic
	var err error
	switch {
	case s.phase.stopped:
		err = ErrUsed // the drain needs the topic
	case t == nil || t.config.home != nil:
		err = ErrNoHandler
	case slices.ContainsFunc(t.places(), func(p *Topic) bool { return run.Guarded(ctx, &p.Mu) }):
		err = ErrOwn
	case t.stay.leaving:
		err = ErrLeaving
	case running:
		all = t.leavingLocked()
	default:
		s.Topics.remove(topic)
	}
	s.mu.Unlock()
	if err != nil || !running {
		return err
	}
	return s.removeAll(ctx, all)
}

// leavingLocked notes that a topic and its partitions are being removed. It returns those that were
// not yet. Server.mu must be held.
func (t *Topic) leavingLocked() (all []*Topic) {
	for _, p := range t.places() {
		if !p.stay.leaving {
			p.stay.leaving = true
			all = append(all, p)
		}
	}
	return all
}

// removeAll removes a topic and its partitions.
func (s *Server) removeAll(ctx context.Context, all []*Topic) error {
	var group sync.WaitGroup
	errs := make([]error, len(all))
	for i, p := range all[1:] {
		contain.Launch(&group, func() { errs[1+i] = p.remove(ctx) }, func(c *contain.Crash) { errs[1+i] = c })
	}
	errs[0] = all[0].remove(ctx)
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// remove ends the loops and handlers of a topic of a running server.
func (t *Topic) remove(ctx context.Context) (err error) {
	s := t.Server
	by := time.Now().Add(2 * stopPatience)
	t.stay.by.Store(&by)
	t.stay.endFetch()
	t.stop()
	fetched := s.whenDone(&t.stay.fetching)
	select {
	case <-fetched:
	case <-ctx.Done():
	}
	settled := t.settled(true)
	select {
	case <-settled:
	case <-t.stay.base.Done(): // the server has stopped, and given up
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
	t.stay.endWork()
	<-s.whenDone(&t.stay.working)
	<-fetched
	t.taking.wait.pops.Wait()
	s.blocked.remove(t)
	t.reportUnsettled()
	s.leave(t)
	s.Topics.remove(t.Keys.Topic)
	return err
}

// topicSet holds the topics that a server serves.
type topicSet struct {
	mu      sync.Mutex
	by      map[string]*Topic
	list    []*Topic // by name; nil: to be made
	removed int      // how many have been removed
}

// takerName returns the name of a new topic's takers in Redis. A topic that was removed and is
// added again has another one: its takes are numbered anew, and Redis would take them for late
// copies of those of the first one.
func (s *topicSet) takerName(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed == 0 {
		return id
	}
	return id + "r" + strconv.Itoa(s.removed)
}

func (s *topicSet) Get(topic string) *Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[topic]
}

// add adds a topic. It must not be in the set yet.
func (s *topicSet) add(t *Topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = make(map[string]*Topic)
	}
	s.by[t.Keys.Topic], s.list = t, nil
}

func (s *topicSet) remove(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, topic)
	s.list = nil
	s.removed++
}

func (s *topicSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by)
}

// all returns the topics by name. The caller must not change the list.
func (s *topicSet) all() []*Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = make([]*Topic, 0, len(s.by))
		for _, t := range s.by {
			s.list = append(s.list, t)
		}
		slices.SortFunc(s.list, func(a, b *Topic) int { return strings.Compare(a.Keys.Topic, b.Keys.Topic) })
	}
	return s.list
}
