package serve

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/listen"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/workers"
)

// A Config is what a server is told when it is made.
type Config struct {
	ID, Prefix  string // ID is the name of the server in Redis
	Lease       time.Duration
	Drain       time.Duration
	Tick        time.Duration
	DeadCount   int
	DeadAge     time.Duration
	FailFast    time.Duration // 0: never
	History     bool          // what happens in the topics is counted
	Stepped     bool          // the clock of Redis may not move by itself
	Concurrency int           // workers of a topic that does not set it
	Own         bool          // also of a topic of a pool
	Pools       map[string]int
	Calendars   schedule.Calendars
	Judge       Judge
	Observer    Observer
	Listener    script.Listener
	Deliver     Deliver
}

// A Server serves topics: it promotes, takes, runs, extends, settles and prunes their jobs.
type Server struct {
	links
	Config  Config
	Log     *slog.Logger
	life    atomic.Pointer[life]
	loops   loop.Group
	nodes   nodes
	Topics  topicSet
	pools   map[string]*workers.Pool // by name
	watch   watch
	blocked blockedTopics
	alarms  chan *Topic // topics that have lost jobs
	looks   looks
	ending  ending

	mu       sync.Mutex // guards the rest
	phase    phase
	patterns []*pattern // fixed by Run
	left     []*Topic   // removed, and their last numbers are not in the history yet
}

// links are the connections of a server.
type links struct {
	Redis         redis.UniversalClient // what the server was given
	Calls         redis.UniversalClient // for calls that Redis answers immediately
	takes         redis.UniversalClient // for takes, whose replies can be large
	blocking      redis.UniversalClient // for blocking pops
	dials         [3]*link.Conns        // the connections of the last three
	Scripts       script.Caller
	takeScripts   script.Caller // by the connections for takes
	pulse         link.Pulse
	answerTimeout time.Duration
	dialTimeout   time.Duration
	outage        *outage
	recalls       chan struct{} // has one value for each call of Recall in flight
}

// ending is what the end of a server waits for.
type ending struct {
	ready   chan struct{}    // closed when Run takes jobs
	settled chan struct{}    // closed when the last job is settled
	leaveBy func() time.Time // when takes without a reply are given up, after a stop
	running sync.WaitGroup   // handlers
}

// A phase is how far a server has come.
type phase struct {
	used     bool // Run has begun
	stopped  bool // Run is about to end
	started  time.Time
	lifetime *lifetime // nil: before and after Run
}

// New returns a server without topics. It opens no connection.
func New(rdb redis.UniversalClient, c Config) *Server {
	s := &Server{links: links{Redis: rdb}, Config: c, alarms: make(chan *Topic, 16)}
	s.recalls = make(chan struct{}, mostRecalls)
	s.ending.ready, s.ending.settled = make(chan struct{}), make(chan struct{})
	s.Enter(stateNew)
	s.watch.now = make(chan struct{}, 1)
	for _, l := range []*lookout{&s.looks.follow, &s.looks.beat, &s.looks.parts} {
		l.woken = make(chan struct{}, 1)
	}
	s.nodes.all = make(map[redis.UniversalClient]*Node)
	s.ending.leaveBy = sync.OnceValue(func() time.Time { return time.Now().Add(2 * stopPatience) })
	s.pools = make(map[string]*workers.Pool, len(c.Pools))
	for name, size := range c.Pools {
		s.pools[name] = workers.NewPool(name, size)
	}
	return s
}

// Ready returns a channel that is closed when the server takes jobs.
func (s *Server) Ready() <-chan struct{} { return s.ending.ready }

// AlwaysRing makes the topics of a server that has not been run wait for rings, however few they
// are.
func (s *Server) AlwaysRing() { s.blocked.never = true }

// HandlesNone reports whether there is neither a topic nor a pattern.
func (s *Server) HandlesNone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Topics.len()+len(s.patterns) == 0
}

// Begin fixes the patterns, and opens the connections of the server.
func (s *Server) Begin(log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase.used = true
	s.phase.started = time.Now()
	s.Log = log
	s.loops.Log = s.Log
	s.connect()
	for _, t := range s.Topics.all() {
		t.init()
	}
}

// connect makes the clients of the server. Their pools have room for as many calls as there can be
// at a time. When there is little to do, most of the connections are closed: see trim.
func (s *Server) connect() {
	s.nodes.topics = s.Topics.len()
	for _, p := range s.patterns {
		s.nodes.topics += p.most
	}
	n, many, all := s.nodes.topics, 1000, link.NewGroup()
	own := func(size, idle int, answer time.Duration) (redis.UniversalClient, *link.Conns) {
		return link.New(s.Redis, all, link.Options{
			PoolSize: size, Idle: idle, Answer: answer, Client: contain.Options, Cluster: contain.ClusterOptions,
		})
	}
	s.Calls, s.dials[0] = own(MostCalls(many)+OtherCalls, restingCalls(n), 0)
	s.takes, s.dials[1] = own(MostTakes(many), restingTakes(n), takeTimeoutMost)
	s.blocking, s.dials[2] = own(2*MostBlocked, 0, 0)
	for _, rdb := range []redis.UniversalClient{s.Calls, s.takes, s.blocking} {
		rdb.AddHook(loop.SignHook{})
	}
	s.Calls.AddHook(listen.Hook{})
	s.answerTimeout, s.dialTimeout = link.AnswerTimeout(s.Redis), link.DialTimeout(s.Redis)
	_, s.pulse.Cluster = s.Redis.(*redis.ClusterClient)
	s.Scripts = script.Caller{RDB: script.NewFelt(s.Calls, &s.pulse), Hooks: s.Config.Listener}
	s.takeScripts = script.Caller{RDB: script.NewFelt(s.takes, &s.pulse), Hooks: s.Config.Listener}
	s.outage = &outage{Log: s.Log, Lost: func(error) {
		for _, rdb := range []redis.UniversalClient{s.Calls, s.takes, s.blocking} {
			link.Reload(rdb)
		}
	}}
}

// Run serves the topics until ctx is done, and then shuts down. begin must have returned nil.
func (s *Server) Run(ctx context.Context) error {
	s.Enter(stateStarting)
	defer s.Enter(StateStopped)
	defer s.Close()
	defer s.serve(nil)
	if err := s.awaitRedis(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	s.Log.Info("server started", "server", s.Config.ID, "count", s.Topics.len())
	o := s.start(ctx)
	defer o.endWork()
	defer o.endFetch()
	defer o.endBeating()
	s.Enter(stateRunning)
	close(s.ending.ready)
	<-ctx.Done()
	s.Enter(stateDraining)
	s.shutDown(o)
	return nil
}

// An operation is the goroutines of a running server.
type operation struct {
	lifetime
	endFetch, endWork, endBeating context.CancelFunc
	beaten, counted               <-chan struct{} // closed when there are no more heartbeats, and no history
}

// start starts the loops of the topics and of the server.
func (s *Server) start(ctx context.Context) *operation {
	o := &operation{lifetime: lifetime{fetching: new(sync.WaitGroup), taking: new(sync.WaitGroup), working: new(sync.WaitGroup)}}
	o.work, o.endWork = context.WithCancel(run.Serving(context.WithoutCancel(ctx), s.Config.Prefix, s.serves))
	o.fetch, o.endFetch = context.WithCancel(ctx)
	s.serve(&o.lifetime)
	s.loops.Keep(o.work, o.working, "control", s.controlLoop)
	var beating, counting sync.WaitGroup
	beat, endBeating := context.WithCancel(o.work)
	o.endBeating = endBeating
	s.loops.Keep(beat, &beating, "heartbeat", func(ctx context.Context) { s.heartbeatLoop(ctx, o.fetch) })
	o.beaten = s.whenDone(&beating)
	if s.Config.History {
		s.loops.Keep(o.work, &counting, "history", s.historyLoop)
	}
	o.counted = s.whenDone(&counting)
	s.loops.Keep(o.fetch, o.working, "watch", s.watchLoop)
	s.loops.Keep(o.fetch, o.working, "survey", s.surveyLoop)
	s.loops.Keep(o.fetch, o.working, "parts", s.partsLoop)
	if len(s.patterns) > 0 {
		s.loops.Keep(o.fetch, o.working, "follow", s.followLoop)
	}
	s.loops.Keep(o.fetch, o.working, "check", s.checkLoop)
	s.loops.Keep(o.fetch, o.working, "check", s.alarmLoop)
	s.loops.Keep(o.fetch, o.working, "guard", s.guardLoop)
	return o
}

// shutDown stops taking, drains, and returns when all goroutines have exited, except those of
// handlers that ignore their contexts.
func (s *Server) shutDown(o *operation) {
	// The context of Run is cancelled before fetch: if a pop were closed in between, it would be
	// logged as an outage.
	o.endFetch()
	s.serve(nil)
	for _, t := range s.Topics.all() {
		t.stop()
	}
	s.Log.Info("server draining", "count", s.owned())
	s.closeWaits()
	// Replies that take long to arrive are not awaited, because their jobs would only be put back.
	late := time.AfterFunc(stopPatience, s.dials[1].HangUp)
	defer late.Stop()
	s.drain(s.whenDone(&s.ending.running), s.whenDone(o.taking, o.fetching))
	close(s.ending.settled)
	o.endBeating()
	parting := time.NewTimer(FarewellTime)
	defer parting.Stop()
	s.farewell(o.beaten)
	select {
	case <-o.counted:
	case <-parting.C:
	}
	o.endWork()
	s.Close() // ends every call that still waits for a reply
	o.working.Wait()
	<-o.beaten
	<-o.counted
	o.taking.Wait()
	o.fetching.Wait()
	for _, t := range s.Topics.all() {
		t.taking.wait.pops.Wait()
		t.reportUnsettled()
	}
	s.nodes.close()
}

// whenDone returns a channel that is closed when all goroutines of the groups have exited.
func (s *Server) whenDone(groups ...*sync.WaitGroup) <-chan struct{} {
	c := make(chan struct{})
	contain.Launch(nil, func() {
		defer close(c)
		for _, g := range groups {
			g.Wait()
		}
	}, func(why *contain.Crash) { s.loops.Crashed("drain", why) })
	return c
}

// Timeouts at the end of a drain. Their sum is how long Run can take beyond the Drain timeout.
const (
	shutdownGrace = 100 * time.Millisecond // for handlers to return once cancelled
	settleGrace   = 200 * time.Millisecond // for results to be recorded in Redis
)

// drain lets handlers finish, then cuts them off. Takes exit soon after the stop by themselves,
// even if Redis does not answer. handled is closed when no handler is left, and fetched when
// nothing takes or promotes any more.
func (s *Server) drain(handled, fetched <-chan struct{}) {
	begun := time.Now()
	fetching := time.NewTimer(max(shutdownGrace, min(s.Config.Drain, CallTimeout)))
	defer fetching.Stop()
	deadline := time.NewTimer(s.Config.Drain)
	defer deadline.Stop()
	early := false
	select {
	case <-handled:
		early = true
	case <-deadline.C:
		s.cutOff(handled)
	}
	select {
	case <-fetched:
	case <-fetching.C:
		select {
		case <-fetched: // the handlers took longer than that, so both are ready
		default:
			s.Log.Warn("take unanswered", "err", "Redis did not answer the last takes before the server stopped")
		}
	}
	patience := settleGrace
	if early {
		patience = max(patience, s.Config.Drain-time.Since(begun))
	}
	s.flush(patience)
}

// cutOff cancels the contexts of all handlers, and puts back the jobs of those that do not return.
func (s *Server) cutOff(handled <-chan struct{}) {
	for _, t := range s.Topics.all() {
		t.cancelAll(run.ErrShutdown)
	}
	grace := time.NewTimer(shutdownGrace)
	defer grace.Stop()
	select {
	case <-handled:
		return
	case <-grace.C:
	}
	abandoned := 0
	for _, t := range s.Topics.all() {
		abandoned += t.abandonAll()
	}
	s.Log.Warn("handlers abandoned", "count", abandoned, "err", "they did not return when their contexts were cancelled")
}

// flush waits until all results are recorded in Redis, for at most d. Then it waits until Redis
// knows which handlers have returned, for at most the time of a call.
func (s *Server) flush(d time.Duration) {
	until := time.Now().Add(d)
	if !s.settled(false, d) {
		s.Log.Error("jobs not settled", "count", s.owned(), "err", "could not record results in Redis; these jobs run again when their leases expire")
		return
	}
	if !s.settled(true, min(max(time.Until(until), settleGrace), CallTimeout)) {
		s.Log.Warn("ends of runs not recorded", "err", "could not tell Redis which handlers have returned; jobs that wait for their places start when the leases are over")
	}
}

// settled waits until all topics are settled, for at most d. See [Topic.settled].
func (s *Server) settled(told bool, d time.Duration) bool {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for _, t := range s.Topics.all() {
		select {
		case <-t.settled(told):
		case <-deadline.C:
			return false
		}
	}
	return true
}

// owned returns the number of jobs that belong to this server.
func (s *Server) owned() (n int) {
	for _, t := range s.Topics.all() {
		n += t.count()
	}
	return n
}

// closeWaits ends the blocking pops.
func (s *Server) closeWaits() { hangUp(s.blocking, s.dials[2]) }

func (s *Server) Close() {
	s.closeWaits()
	hangUp(s.Calls, s.dials[0])
	hangUp(s.takes, s.dials[1])
}

// hangUp closes a client and its connections. Close alone waits for a connection on whose greeting
// Redis does not answer. Without connections first, go-redis would log that it cannot dial.
func hangUp(rdb redis.UniversalClient, conns *link.Conns) {
	closed := make(chan struct{})
	contain.Launch(nil, func() {
		defer close(closed)
		closeQuietly(rdb)
	}, func(*contain.Crash) {}) // only hooks of the user could, and Close calls none
	again := time.NewTicker(hangUpEvery)
	defer again.Stop()
	for waits := true; waits; {
		conns.HangUp()
		select {
		case <-closed:
			waits = false
		case <-again.C:
		}
	}
	conns.Close()
}

// hangUpEvery is how often connections are closed that are made while a client is being closed.
const hangUpEvery = 10 * time.Millisecond

// closeQuietly closes a client. The only possible error is that it is closed already.
func closeQuietly(rdb redis.UniversalClient) { _ = rdb.Close() }
