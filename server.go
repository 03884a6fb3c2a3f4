package delayq

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
)

// A Handler runs jobs. The value that Handle returns decides what happens to the job:
//
//	nil                      the job is done: deleted, or kept for its Retention
//	a panic, runtime.Goexit  handled like any other error; the stack is kept
//	Permanent(err)           the job is buried immediately
//	Again(payload, opts…)    the job is done, and its ID is enqueued again with payload
//	Snooze(d)                the job is due again in d; the attempt is not used up, and the count
//	                         of failures starts again at zero
//	Hold(d), HoldKey(d)      the job is ready again, and its topic or its key waits for d; the
//	                         attempt is not used up
//	RetryIn(d, err)          the job is retried in d, or buried if no retry is left
//	any other error          the job is retried after its backoff, or buried if no retry is left
//
// An error that wraps one of these or is joined with it has the same effect. If an error contains
// several of them, the first in this order counts.
//
// When the run must stop, ctx is cancelled. Its cause ([context.Cause]) is [ErrCancelled],
// [ErrReplaced], [ErrLeaseLost], [ErrTimeout] or [ErrShutdown]. After the first three the job no
// longer belongs to the run. The value that Handle returns then decides nothing, but an error or a
// panic is logged and passed to hooks.
//
// A job can run more than once, because the process can crash after the handler's last line but
// before the job is marked done. Handlers must be idempotent.
type Handler interface {
	Handle(ctx context.Context, job *Job) error
}

// HandlerFunc is a function that implements [Handler].
type HandlerFunc func(ctx context.Context, job *Job) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, job *Job) error { return f(ctx, job) }

// Middleware wraps a [Handler] in another one.
type Middleware func(Handler) Handler

// A Server runs due jobs of the topics it has handlers for. It opens connections of its own, with
// the options of the go-redis client that it is given. All topics share them, so a server of 1,000
// topics has a few dozen. A Server can be run only once.
type Server struct {
	rdb         redis.UniversalClient
	o           serverOptions
	id          string
	log         *slog.Logger
	scripts     script.Caller
	takeScripts script.Caller // with their own connections

	calls         redis.UniversalClient // for calls that Redis answers immediately
	takes         redis.UniversalClient // for takes, whose replies can be large
	blocking      redis.UniversalClient // for blocking pops
	dials         [3]*link.Conns        // the connections of these three
	pulse         link.Pulse
	answerTimeout time.Duration
	dialTimeout   time.Duration
	outage        *outage
	life          atomic.Pointer[life] // nil: NewServer has not made the server
	ready         chan struct{}        // closed when Run takes jobs
	pings         recent[ping]
	looks         recent[redisLook]
	loops         loop.Group
	nodes         nodes
	leaveBy       func() time.Time  // when takes without a reply are given up, after a stop
	alarms        chan *topicServer // topics that have lost jobs
	watch         watch
	blocked       blockedTopics
	pools         map[string]*workerPool // by name
	alwaysRings   bool                   // even with few topics
	topics        topicSet
	settled       chan struct{} // closed when the last job is settled

	mu         sync.Mutex
	errs       []error // errors in the handlers, calendars and options of the server
	used       bool    // Run has begun
	stopped    bool    // Run is about to end
	started    time.Time
	patterns   []*pattern // fixed by Run
	lifetime   *lifetime  // nil: before and after Run
	calendars  schedule.Calendars
	middleware []Middleware
	around     []BatchMiddleware // batch handlers
	running    sync.WaitGroup    // handlers
	left       []*topicServer    // removed, and their last numbers are not in the history yet
}

// NewServer returns a server for the queue in rdb, which is a [redis.Client] (for a standalone
// Redis or a Sentinel) or a [redis.ClusterClient]. The caller owns rdb and closes it after
// [Server.Run] has returned. The server opens its own connections with the options of rdb, so
// closing rdb does not stop it. If rdb or an option is invalid, Run returns that error.
func NewServer(rdb redis.UniversalClient, opts ...ServerOption) *Server {
	s := &Server{
		rdb: rdb, id: rand.Text(), alarms: make(chan *topicServer, 16), calendars: make(schedule.Calendars),
	}
	s.ready, s.settled = make(chan struct{}), make(chan struct{})
	s.enter(ServerNew)
	s.watch.now = make(chan struct{}, 1)
	s.nodes.all = make(map[redis.UniversalClient]*node)
	s.leaveBy = sync.OnceValue(func() time.Time { return time.Now().Add(2 * stopPatience) })
	var err error
	if s.o, err = newServerOptions(opts); err != nil {
		s.errs = append(s.errs, err)
	}
	if err = checkRedis(rdb); err != nil {
		s.errs = append(s.errs, err)
	}
	s.pools = make(map[string]*workerPool, len(s.o.pools))
	for name, size := range s.o.pools {
		s.pools[name] = newWorkerPool(name, size)
	}
	return s
}

// made reports whether NewServer returned s. For a nil Server it logs an error. For a zero Server
// it does not, because Run returns one.
func (s *Server) made(call string) bool {
	if s == nil {
		slog.Error(call+" failed", "err", errNilServer)
		return false
	}
	return s.id != ""
}

var (
	errNilServer  = fmt.Errorf("%w: nil Server", ErrInvalid)
	errZeroServer = fmt.Errorf("%w: zero Server: use NewServer", ErrInvalid)

	// errTooLate is the reason why a middleware or a calendar is rejected after Run.
	errTooLate = errors.New("too late: the server is running or has run; set it before Run")
)

// ID returns the server's name in Redis. It is random, and different for every Server.
func (s *Server) ID() string {
	if s == nil {
		return ""
	}
	return s.id
}

// Use adds middleware around the handlers of all topics. The first one is the outermost. A nil
// middleware makes [Server.Run] return an error. Calls after Run has started are ignored and
// logged as errors. Batch handlers have middleware of their own: see [Server.UseBatch].
func (s *Server) Use(middleware ...Middleware) {
	if !s.made("use") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range middleware {
		switch {
		case s.used:
			s.log.Error("middleware not added", "err", errTooLate)
		case m == nil:
			s.errs = append(s.errs, fmt.Errorf("%w: nil middleware", ErrInvalid))
		default:
			s.middleware = append(s.middleware, m)
		}
	}
}

// begin validates the server's configuration and fixes it.
func (s *Server) begin() error {
	switch {
	case s == nil:
		return errNilServer
	case s.id == "":
		return errZeroServer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used {
		return ErrServerUsed
	}
	if s.topics.len()+len(s.patterns) == 0 && len(s.errs) == 0 {
		s.errs = append(s.errs, fmt.Errorf("%w: no handlers registered", ErrInvalid))
	}
	if err := errors.Join(s.errs...); err != nil {
		return err
	}
	for _, t := range s.topics.all() {
		h, err := s.wrapLocked(t.keys.Topic, t.handler)
		if err != nil {
			s.errs = append(s.errs, err)
			return err
		}
		t.handler = h
	}
	for _, p := range s.patterns {
		h, err := s.wrapLocked(p.like.topic, p.like.handler)
		if err != nil {
			s.errs = append(s.errs, err)
			return err
		}
		p.like.handler = h
	}
	s.used = true
	s.started = time.Now()
	s.log = contain.Logger(cmp.Or(s.o.logger, slog.Default()))
	s.loops.Log = s.log
	s.o.hooks.trouble = func(why *contain.Crash) { logHook(s.log, why) }
	// The connection pools have room for as many calls as there can be at a time. When there is
	// little to do, most of the connections are closed: see trim.
	s.nodes.topics = s.topics.len()
	for _, p := range s.patterns {
		s.nodes.topics += p.most
	}
	n, many, all := s.nodes.topics, 1000, link.NewGroup()
	own := func(size, idle int, answer time.Duration) (redis.UniversalClient, *link.Conns) {
		return link.New(s.rdb, all, link.Options{
			PoolSize: size, Idle: idle, Answer: answer, Client: contain.Options, Cluster: contain.ClusterOptions,
		})
	}
	s.calls, s.dials[0] = own(mostCalls(many)+otherCalls, restingCalls(n), 0)
	s.takes, s.dials[1] = own(mostTakes(many), restingTakes(n), takeTimeoutMost)
	s.blocking, s.dials[2] = own(2*mostBlocked, 0, 0)
	for _, rdb := range []redis.UniversalClient{s.calls, s.takes, s.blocking} {
		rdb.AddHook(loop.SignHook{})
	}
	s.answerTimeout, s.dialTimeout = link.AnswerTimeout(s.rdb), link.DialTimeout(s.rdb)
	_, s.pulse.Cluster = s.rdb.(*redis.ClusterClient)
	s.scripts = script.Caller{RDB: script.NewFelt(s.calls, &s.pulse), Hooks: &s.o.hooks}
	s.takeScripts = script.Caller{RDB: script.NewFelt(s.takes, &s.pulse), Hooks: &s.o.hooks}
	s.outage = &outage{log: s.log, lost: func(error) {
		for _, rdb := range []redis.UniversalClient{s.calls, s.takes, s.blocking} {
			link.Reload(rdb)
		}
	}}
	for _, t := range s.topics.all() {
		t.init()
	}
	return nil
}

// Run processes jobs until ctx is done, then shuts down gracefully. It stops taking jobs and gives
// running handlers up to the [Drain] timeout. Then it cancels the remaining contexts with cause
// [ErrShutdown] and puts unfinished jobs back. It returns once all its goroutines have exited.
// Only a handler that ignores its context can outlive Run, and this is logged.
//
// Run returns nil after a shutdown by ctx. Before it starts, it returns [ErrInvalid] for invalid
// handlers or options, and [ErrServerUsed] if it was called before. It returns [ErrRedisVersion] if
// Redis is too old. While Redis is unreachable, even at the start, Run waits for it, unless
// [FailFast] bounds that. [Server.Ready] says when Run takes jobs, and [Server.Health] what it
// does.
func (s *Server) Run(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	if err := s.begin(); err != nil {
		if s != nil && !errors.Is(err, ErrServerUsed) && !errors.Is(err, errZeroServer) {
			s.enter(ServerStopped) // it will never run
		}
		return fmt.Errorf("run: %w", err)
	}
	s.enter(ServerStarting)
	defer s.enter(ServerStopped)
	defer s.close()
	defer s.serve(nil)
	if err := s.awaitRedis(ctx); err != nil || ctx.Err() != nil {
		return err
	}

	s.log.Info("server started", "server", s.id, "count", s.topics.len())
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	fetch, endFetch := context.WithCancel(ctx)
	defer endFetch()
	var fetching, taking, working, beating, counting sync.WaitGroup
	s.serve(&lifetime{fetch, work, &fetching, &taking, &working})
	s.loops.Keep(work, &working, "control", s.controlLoop)
	beat, endBeating := context.WithCancel(work)
	defer endBeating()
	s.loops.Keep(beat, &beating, "heartbeat", func(ctx context.Context) { s.heartbeatLoop(ctx, fetch) })
	beaten := s.whenDone(&beating)
	if s.o.history {
		s.loops.Keep(work, &counting, "history", s.historyLoop)
	}
	counted := s.whenDone(&counting)
	s.loops.Keep(fetch, &working, "watch", s.watchLoop)
	s.loops.Keep(fetch, &working, "survey", s.surveyLoop)
	if len(s.patterns) > 0 {
		s.loops.Keep(fetch, &working, "follow", s.followLoop)
	}
	s.loops.Keep(fetch, &working, "check", s.checkLoop)
	s.loops.Keep(fetch, &working, "check", s.alarmLoop)
	s.enter(ServerRunning)
	close(s.ready)

	<-ctx.Done()
	s.enter(ServerDraining)
	// ctx is cancelled before fetch: if a pop were closed in between, it would be logged as an
	// outage.
	endFetch()
	s.serve(nil)
	for _, t := range s.topics.all() {
		t.stop()
	}
	s.log.Info("server draining", "count", s.owned())
	s.closeWaits()
	// Replies that take long to arrive are not awaited, because their jobs would only be put back.
	late := time.AfterFunc(stopPatience, s.dials[1].HangUp)
	defer late.Stop()
	s.drain(s.whenDone(&s.running), s.whenDone(&taking, &fetching))
	close(s.settled)
	endBeating()
	parting := time.NewTimer(farewellTime)
	defer parting.Stop()
	s.farewell(beaten)
	select {
	case <-counted:
	case <-parting.C:
	}
	endWork()
	s.close() // ends every call that still waits for a reply
	working.Wait()
	<-beaten
	<-counted
	taking.Wait()
	fetching.Wait()
	for _, t := range s.topics.all() {
		t.waits.Wait()
		t.reportUnsettled()
	}
	s.nodes.close()
	return nil
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
	fetching := time.NewTimer(max(shutdownGrace, min(s.o.drain, callTimeout)))
	defer fetching.Stop()
	deadline := time.NewTimer(s.o.drain)
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
			s.log.Warn("take unanswered", "err", "Redis did not answer the last takes before the server stopped")
		}
	}
	patience := settleGrace
	if early {
		patience = max(patience, s.o.drain-time.Since(begun))
	}
	s.flush(patience)
}

// cutOff cancels the contexts of all handlers, and puts back the jobs of those that do not return.
func (s *Server) cutOff(handled <-chan struct{}) {
	for _, t := range s.topics.all() {
		t.cancelAll(ErrShutdown)
	}
	grace := time.NewTimer(shutdownGrace)
	defer grace.Stop()
	select {
	case <-handled:
		return
	case <-grace.C:
	}
	abandoned := 0
	for _, t := range s.topics.all() {
		abandoned += t.abandonAll()
	}
	s.log.Warn("handlers abandoned", "count", abandoned, "err", "they did not return when their contexts were cancelled")
}

// flush waits until all results are recorded in Redis, for at most d.
func (s *Server) flush(d time.Duration) {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for _, t := range s.topics.all() {
		select {
		case <-t.settled():
		case <-deadline.C:
			s.log.Error("jobs not settled", "count", s.owned(), "err", "could not record results in Redis; these jobs run again when their leases expire")
			return
		}
	}
}

// owned returns the number of jobs that belong to this server.
func (s *Server) owned() (n int) {
	for _, t := range s.topics.all() {
		n += t.count()
	}
	return n
}

// closeWaits ends the blocking pops.
func (s *Server) closeWaits() { hangUp(s.blocking, s.dials[2]) }

func (s *Server) close() {
	s.closeWaits()
	hangUp(s.calls, s.dials[0])
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
