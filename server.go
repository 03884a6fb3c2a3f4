package delayq

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Handler runs jobs. What Handle returns decides what becomes of the job:
//
//	nil                      it is done and gone (or kept for its Retention)
//	a panic, runtime.Goexit  like any other error, with the stack kept
//	Permanent(err)           it is buried at once
//	Again(payload, opts…)    it is done like with nil, and its ID is enqueued anew with that payload
//	Snooze(d)                it is due again in d; no attempt is used up, and the count of failures starts anew
//	RetryIn(d, err)          it is retried in d, or buried if no retry is left
//	any other error          it is retried after its backoff, or buried if no retry is left
//
// An error that wraps one of these, or is joined with it, asks for the same. Of several the first in this order counts.
//
// ctx ends with a cause (context.Cause) when the run is to stop: [ErrCancelled], [ErrReplaced],
// [ErrLeaseLost], [ErrTimeout] or [ErrShutdown]. After the first three the job is not the run's any
// more: what Handle returns decides nothing then, but an error or a panic is logged, and hooks get
// it. A job can run more than once, because a crash can come between the last line of a handler and
// the note that the job is done: handlers must be idempotent.
type Handler interface {
	Handle(ctx context.Context, job *Job) error
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, job *Job) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, job *Job) error { return f(ctx, job) }

// Middleware wraps a Handler in another.
type Middleware func(Handler) Handler

// A Server takes due jobs of the topics it has handlers for, and runs them. It uses connections of its own, made with the options of the
// go-redis client it is given: up to seven for each topic, and a few more. It runs once.
type Server struct {
	rdb         redis.UniversalClient
	o           serverOptions
	id          string
	log         *slog.Logger
	scripts     caller
	takeScripts caller // on connections of their own

	calls         redis.UniversalClient // for everything that Redis answers at once
	takes         redis.UniversalClient // for takes, whose answers may be large
	blocking      redis.UniversalClient // for blocking pops
	dials         [3]*dialed            // their connections
	pulse         pulse
	answerTimeout time.Duration
	outage        *outage
	loops         keeper
	alarms        chan *topicServer // topics that have lost jobs
	watch         watch

	mu         sync.Mutex
	errs       []error // what is wrong with what the server was given
	used       bool
	started    time.Time
	topics     map[string]*topicServer
	calendars  map[string]*calendar
	middleware []Middleware
	running    sync.WaitGroup // handlers
}

// NewServer makes a server for the queue that rdb holds: a *redis.Client (also of a Sentinel) or a *redis.ClusterClient. The caller owns rdb
// and closes it after Run has returned. The server works with connections of its own, made with the options of rdb: closing rdb does not
// stop it. What is wrong with rdb or the options is the error of Run.
func NewServer(rdb redis.UniversalClient, opts ...ServerOption) *Server {
	s := &Server{
		rdb: rdb, id: rand.Text(), topics: make(map[string]*topicServer), alarms: make(chan *topicServer, 16), calendars: make(map[string]*calendar),
	}
	var err error
	if s.o, err = newServerOptions(opts); err != nil {
		s.errs = append(s.errs, err)
	}
	if err = checkRedis(rdb); err != nil {
		s.errs = append(s.errs, err)
	}
	return s
}

// made reports whether NewServer made the server. Of the zero Server Run says that it did not; a nil one is in the log.
func (s *Server) made(call string) bool {
	if s == nil {
		slog.Error(call, "err", errNilServer)
		return false
	}
	return s.topics != nil
}

var (
	errNilServer  = fmt.Errorf("%w: nil Server", ErrInvalid)
	errZeroServer = fmt.Errorf("%w: zero Server: NewServer makes one", ErrInvalid)

	// errTooLate says why a handler, a middleware or a calendar is not taken any more.
	errTooLate = errors.New("too late: the server is running or has run; set it before Run")
)

// ID is the server's name in Redis: random, another for every Server.
func (s *Server) ID() string {
	if s == nil {
		return ""
	}
	return s.id
}

// Handle sets the handler of a topic. Setting one twice, an illegal topic and a nil handler, also a nil pointer, are errors of
// Run. After Run has begun nothing can be set any more: that is logged.
func (s *Server) Handle(topic string, h Handler, opts ...HandlerOption) {
	if !s.made("handle") {
		return
	}
	o := handlerOptions{job: defaultJob}
	for _, opt := range opts {
		if opt == nil {
			o.errs = append(o.errs, errors.New("a handler option is nil"))
			continue
		}
		opt.applyHandler(&o)
	}
	if err := checkName("topic", topic); err != nil {
		o.errs = append(o.errs, err)
	}
	if isNil(h) {
		o.errs = append(o.errs, errors.New("nil handler"))
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[topic] != nil {
		o.errs = append(o.errs, errors.New("a second handler"))
	}
	if s.refuseLocked(topic, o.errs...) {
		return
	}
	s.topics[topic] = &topicServer{
		server: s, keys: newKeys(s.o.prefix, topic), handler: h, concurrency: o.concurrency, defaults: o.job,
	}
}

// refuse notes what is wrong with the handler of a topic.
func (s *Server) refuse(topic string, errs ...error) {
	if !s.made("handle") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseLocked(topic, errs...)
}

func (s *Server) refuseLocked(topic string, errs ...error) bool {
	if s.used {
		s.log.Error("handle", "topic", topic, "err", errors.Join(append(errs, errTooLate)...))
		return true
	}
	if len(errs) > 0 {
		s.errs = append(s.errs, fmt.Errorf("handler of topic %q: %w", topic, invalid(errs)))
		return true
	}
	return false
}

// HandlerFunc sets the handler of a topic; see Handle.
func (s *Server) HandlerFunc(topic string, f HandlerFunc, opts ...HandlerOption) {
	s.Handle(topic, f, opts...)
}

// Use adds middleware around the handlers of all topics; the first one given is outermost.
func (s *Server) Use(middleware ...Middleware) {
	if !s.made("use") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range middleware {
		switch {
		case s.used:
			s.log.Error("use", "err", errTooLate)
		case m == nil:
			s.errs = append(s.errs, fmt.Errorf("%w: nil middleware", ErrInvalid))
		default:
			s.middleware = append(s.middleware, m)
		}
	}
}

// begin checks what the server was given and fixes it.
func (s *Server) begin() error {
	switch {
	case s == nil:
		return errNilServer
	case s.topics == nil:
		return errZeroServer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used {
		return ErrServerUsed
	}
	if len(s.topics) == 0 && len(s.errs) == 0 {
		s.errs = append(s.errs, fmt.Errorf("%w: a server with no handler", ErrInvalid))
	}
	if err := errors.Join(s.errs...); err != nil {
		return err
	}
	for _, t := range s.topics {
		for _, m := range slices.Backward(s.middleware) {
			if t.handler = m(t.handler); isNil(t.handler) {
				s.errs = append(s.errs, fmt.Errorf("%w: topic %q: a middleware returned a nil handler", ErrInvalid, t.keys.topic))
				return errors.Join(s.errs...)
			}
		}
	}
	s.used = true
	s.started = time.Now()
	s.log = contained(cmp.Or(s.o.logger, slog.Default()))
	s.loops.log = s.log
	s.o.hooks.trouble = func(why *crash) { logHook(s.log, why) }
	// As many connections as there can be calls at once: promote, two settles and extend of each topic, and the server's own; two takes of
	// each topic; a pop of each topic. When little is to be done, most of the first two kinds are given back.
	n := len(s.topics)
	idle, all := max(idleConns, n/4), &dialedGroup{began: time.Now()}
	s.calls, s.dials[0] = ownClient(s.rdb, all, 4*n+4, idle, 0)
	s.takes, s.dials[1] = ownClient(s.rdb, all, 2*n, idle, takeTimeoutMost)
	s.blocking, s.dials[2] = ownClient(s.rdb, all, n, 0, 0)
	s.answerTimeout = answerTimeout(s.rdb)
	_, s.pulse.cluster = s.rdb.(*redis.ClusterClient)
	s.scripts = caller{felt{s.calls, &s.pulse}, &s.o.hooks}
	s.takeScripts = caller{felt{s.takes, &s.pulse}, &s.o.hooks}
	s.outage = &outage{log: s.log, lost: func(error) {
		for _, rdb := range []redis.UniversalClient{s.calls, s.takes, s.blocking} {
			reload(rdb)
		}
	}}
	for _, t := range s.topics {
		t.init()
	}
	return nil
}

// Run serves until ctx ends and then drains: it takes no more jobs, lets the running handlers finish within the Drain timeout, ends their
// contexts with ErrShutdown, gives back what still runs, and returns when everything the server started has ended. Only a handler
// that ignores its context can outlive Run; that is logged.
//
// Run returns nil after a stop by ctx. Before it begins it returns ErrInvalid for unusable handlers or options, and ErrServerUsed the second
// time. ErrRedisVersion if Redis is too old. While Redis cannot be reached, also at the start, Run waits for it.
func (s *Server) Run(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	if err := s.begin(); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	defer s.close()
	if err := s.awaitRedis(ctx); err != nil || ctx.Err() != nil {
		return err
	}

	s.log.Info("start", "server", s.id, "count", len(s.topics))
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	fetch, endFetch := context.WithCancel(ctx)
	defer endFetch()
	var fetching, taking, working, beating sync.WaitGroup
	for _, t := range s.topics {
		t.base = work
		first := t.newTaker(t.keys.taken(s.id))
		second := t.newTaker(t.keys.taken(s.id + "+"))
		one, more := &settler{series: newSeries()}, &settler{series: newSeries()}
		s.loops.keep(fetch, &fetching, "promote", func() { t.promoteLoop(fetch) })
		s.loops.keep(fetch, &taking, "take", func() { t.takeLoop(fetch, work, first) })
		s.loops.keep(fetch, &taking, "take", func() { t.takeMoreLoop(fetch, work, second) })
		s.loops.keep(work, &working, "settle", func() { t.settleLoop(work, one, t.settleReady, 1) })
		s.loops.keep(work, &working, "settle", func() { t.settleLoop(work, more, t.pile, settlePile) })
		s.loops.keep(work, &working, "extend", func() { t.extendLoop(work) })
	}
	s.loops.keep(work, &working, "control", func() { s.controlLoop(work) })
	beat, endBeating := context.WithCancel(work)
	defer endBeating()
	s.loops.keep(beat, &beating, "heartbeat", func() { s.heartbeatLoop(beat, fetch) })
	beaten := s.whenDone(&beating)
	s.loops.keep(fetch, &working, "watch", func() { s.watchLoop(fetch) })
	s.loops.keep(fetch, &working, "check", func() { s.checkLoop(fetch) })
	s.loops.keep(fetch, &working, "check", func() { s.alarmLoop(fetch) })

	<-ctx.Done()
	endFetch() // ctx ends before fetch does: a pop that is closed between the two would be logged as an outage
	for _, t := range s.topics {
		t.stop()
	}
	s.log.Info("drain", "count", s.owned())
	s.closeWaits()
	// Answers that are long on their way are not waited for: what they bring would only be given back.
	hangUp := time.AfterFunc(stopPatience, s.dials[1].hangUp)
	defer hangUp.Stop()
	s.drain(s.whenDone(&s.running), s.whenDone(&taking, &fetching))
	endBeating()
	s.farewell(beaten)
	endWork()
	s.close() // ends whatever call still waits for an answer
	working.Wait()
	<-beaten
	taking.Wait()
	fetching.Wait()
	for _, t := range s.topics {
		t.tellUnsettled()
	}
	return nil
}

// ended gives a channel that is closed when all in the groups has ended.
func (s *Server) whenDone(groups ...*sync.WaitGroup) <-chan struct{} {
	c := make(chan struct{})
	launch(nil, func() {
		defer close(c)
		for _, g := range groups {
			g.Wait()
		}
	}, func(why *crash) { s.loops.crashed("drain", why) })
	return c
}

// Times of the end of a drain: what they add up to is how much longer than the Drain timeout Run may take.
const (
	shutdownGrace = 100 * time.Millisecond // for handlers to return once their contexts have ended
	settleGrace   = 200 * time.Millisecond // for Redis to be told
)

// drain lets handlers finish, then cuts them off. Takes end by themselves soon after the stop, also if
// Redis does not answer: handled is closed when there is no handler left, and fetched when nothing takes
// or promotes any more.
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
		s.log.Warn("take", "err", "Redis did not answer the last calls before the end")
	}
	patience := settleGrace
	if early {
		patience = max(patience, s.o.drain-time.Since(begun))
	}
	s.flush(patience)
}

// cutOff ends the contexts of all handlers, and gives back the jobs of those that do not end with them.
func (s *Server) cutOff(handled <-chan struct{}) {
	for _, t := range s.topics {
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
	for _, t := range s.topics {
		abandoned += t.abandonAll()
	}
	s.log.Warn("return", "count", abandoned, "err", "handlers did not end with their contexts")
}

// flush waits until Redis knows how every job ended, for at most d.
func (s *Server) flush(d time.Duration) {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for _, t := range s.topics {
		select {
		case <-t.settled():
		case <-deadline.C:
			s.log.Error("settle", "count", s.owned(), "err", "Redis did not take the outcomes; the leases will run out")
			return
		}
	}
}

// held is the number of jobs that belong to this server.
func (s *Server) owned() (n int) {
	for _, t := range s.topics {
		n += t.count()
	}
	return n
}

// closeWaits ends the blocking pops.
func (s *Server) closeWaits() {
	closeQuietly(s.blocking)
	s.dials[2].close()
}

func (s *Server) close() {
	s.closeWaits()
	closeQuietly(s.calls)
	s.dials[0].close()
	closeQuietly(s.takes)
	s.dials[1].close()
}

// closeQuietly closes a client that may be closed already, which is the only error there is.
func closeQuietly(rdb redis.UniversalClient) { _ = rdb.Close() }
