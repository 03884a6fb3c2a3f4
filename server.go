package delayq

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
	"github.com/delayq/delayq/internal/settle"
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
	o      serverOptions
	engine *serve.Server // that serves the topics; nil: NewServer has not made the server
	pings  recent[ping]
	looks  recent[redisLook]

	mu         sync.Mutex
	errs       []error // errors in the handlers, calendars and options of the server
	used       bool    // Run has begun
	log        *slog.Logger
	calendars  schedule.Calendars
	handlers   []*handling // set before Run
	middleware []Middleware
	around     []BatchMiddleware // batch handlers
	carrier    *Client           // that delivers what runs hand over; nil: Run has not begun
}

// NewServer returns a server for the queue in rdb, which is a [redis.Client] (for a standalone
// Redis or a Sentinel) or a [redis.ClusterClient]. The caller owns rdb and closes it after
// [Server.Run] has returned. The server opens its own connections with the options of rdb, so
// closing rdb does not stop it. If rdb or an option is invalid, Run returns that error.
func NewServer(rdb redis.UniversalClient, opts ...ServerOption) *Server {
	s := &Server{calendars: make(schedule.Calendars)}
	var err error
	if s.o, err = newServerOptions(opts); err != nil {
		s.errs = append(s.errs, err)
	}
	if err = checkRedis(rdb); err != nil {
		s.errs = append(s.errs, err)
	}
	id := rand.Text()
	config := s.o.config(id, s.calendars)
	config.Deliver = s.deliver
	s.engine = serve.New(rdb, config)
	for _, l := range s.o.hooks.lookers {
		l.Attach(s.engine)
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
	return s.engine != nil
}

// valid returns an error for a server that NewServer has not made.
func (s *Server) valid() error {
	switch {
	case s == nil:
		return errNilServer
	case s.engine == nil:
		return errZeroServer
	}
	return nil
}

var (
	errNilServer  = fmt.Errorf("%w: nil Server", ErrInvalid)
	errZeroServer = fmt.Errorf("%w: zero Server: use NewServer", ErrInvalid)

	// errTooLate is the reason why a middleware or a calendar is rejected after Run.
	errTooLate = errors.New("too late: the server is running or has run; set it before Run")
)

// ID returns the server's name in Redis. It is random, and different for every Server.
func (s *Server) ID() string {
	if s == nil || s.engine == nil {
		return ""
	}
	return s.engine.Config.ID
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
	if err := s.valid(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used {
		return ErrServerUsed
	}
	if s.engine.HandlesNone() && len(s.errs) == 0 && !s.o.bare {
		s.errs = append(s.errs, fmt.Errorf("%w: no handlers registered", ErrInvalid))
	}
	if err := errors.Join(s.errs...); err != nil {
		return err
	}
	slices.SortStableFunc(s.handlers, (*handling).before)
	for _, h := range s.handlers {
		if err := s.wrapLocked(h); err != nil {
			s.errs = append(s.errs, err)
			return err
		}
	}
	s.used = true
	s.log = contain.Logger(cmp.Or(s.o.logger, slog.Default()))
	s.o.hooks.trouble = func(why *contain.Crash) { logHook(s.log, why) }
	s.engine.Begin(s.log)
	s.carrier = s.newCarrier()
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
		if s != nil && s.engine != nil && !errors.Is(err, ErrServerUsed) {
			s.engine.Enter(serve.StateStopped) // it will never run
		}
		return fmt.Errorf("run: %w", err)
	}
	return s.engine.Run(ctx)
}

// A witness tells hooks what happens in the server with that ID.
type witness struct {
	*hooks
	server string
}

// Begun calls the hooks of a run that begins, and returns the context for its handler.
func (w witness) Begun(ctx context.Context, r *run.Run) context.Context {
	if len(w.run)+len(w.started) == 0 {
		return ctx
	}
	event := w.event(run.Ended{Run: r})
	for _, hook := range w.run {
		w.guard(func() {
			within, end := hook.Run(ctx, event)
			if within != nil {
				ctx = within
			}
			if end != nil {
				r.AddEnd(func(e run.Ended) { end(w.event(e)) })
			}
		})
	}
	for _, f := range w.started {
		w.guard(func() { f(event) })
	}
	return ctx
}

// Ended tells the hooks the outcomes of runs, in a goroutine of their own. If one of them ends it,
// another goroutine continues with the next hook.
func (w witness) Ended(rows []settle.Row, log func(settle.Row), alive func()) {
	if len(w.outcome)+len(w.run) == 0 {
		for _, r := range rows {
			log(r)
		}
		return
	}
	var now run.Ended
	var event RunEvent
	var fire []func(RunEvent) // what is still to be called with the event
	var ends *run.End         // what is to be called after that
	for len(rows) > 0 || len(fire) > 0 || ends != nil {
		w.apart(func() {
			for {
				for len(fire) > 0 || ends != nil {
					alive()
					if len(fire) > 0 {
						f := fire[0]
						fire = fire[1:]
						w.guard(func() { f(event) })
					} else {
						f := ends.Call
						ends = ends.Before
						w.guard(func() { f(now) })
					}
				}
				if len(rows) == 0 {
					return
				}
				r := rows[0]
				rows = rows[1:]
				log(r)
				fire, ends = w.outcome[Outcome(r.Outcome())], r.Run.TakeEnds()
				if len(fire) > 0 || ends != nil {
					now = r.Ended()
					event = w.event(now)
				}
			}
		})
	}
}

// Late tells the hooks that a handler has returned after the drain.
func (w witness) Late(r settle.Row) {
	e := r.Ended()
	for end := r.Run.TakeEnds(); end != nil; end = end.Before { // of a hook that was running then
		w.apart(func() { end.Call(e) })
	}
	e.Outcome = ""
	for _, f := range w.late {
		w.apart(func() { f(w.event(e)) })
	}
}

// Unsettled ends a run whose outcome Redis did not receive.
func (w witness) Unsettled(r settle.Row) {
	for end := r.Run.TakeEnds(); end != nil; end = end.Before {
		e := r.Ended()
		e.Outcome = ""
		w.apart(func() { end.Call(e) })
	}
}

// Pruned tells the hooks how many dead and done jobs of a topic were deleted.
func (w witness) Pruned(topic string, dead, done int) {
	for _, x := range w.pruned {
		w.apart(func() { x.Pruned(PruneEvent{Topic: topic, Dead: dead, Done: done}) })
	}
}

// event returns the event of a run.
func (w witness) event(e run.Ended) RunEvent {
	r := e.Run
	return RunEvent{
		Topic: r.Topic, ID: r.ID, Attempt: r.Attempt, EnqueuedAt: r.Enqueued, Due: r.Due, StartedAt: r.Start, FinishedAt: e.Finished,
		Outcome: Outcome(e.Outcome), Server: w.server, Err: e.Err, Stack: e.Stack, Output: e.Output, NextDue: e.Next,
		PayloadSize: int(r.Size), Headers: r.Options.Headers,
	}
}

// AlwaysRing makes a server that has not been run wait for rings, however few topics it has.
func (friends) AlwaysRing(s *Server) { s.engine.AlwaysRing() }

// NewJob returns the job that a handler would receive in the first run of fresh. The lease began at
// now, or when the job was due if that is later.
func (friends) NewJob(fresh NewJob, now time.Time) (*Job, error) {
	var errs []error
	if err := script.CheckName("topic", fresh.Topic); err != nil {
		errs = append(errs, err)
	}
	if len(fresh.ID) > script.MaxIDLen {
		errs = append(errs, fmt.Errorf("ID of %d bytes, at most %d are allowed", len(fresh.ID), script.MaxIDLen))
	}
	o, err := newJobOptions(fresh.Options)
	if err := errors.Join(invalid(errs), err); err != nil {
		return nil, err
	}
	o.Fill(&defaultRun)
	enqueued := now.UnixMilli()
	due := o.Due(enqueued)
	job := &Job{
		Topic: fresh.Topic, ID: fresh.ID, Payload: slices.Clone(fresh.Payload), Headers: o.Headers, Key: o.Key,
		Attempt: 1, Retries: o.Retries(), EnqueuedAt: msTime(enqueued), Due: msTime(due), StartedAt: msTime(due),
		nonce: string(binary.LittleEndian.AppendUint64(nil, mathrand.Uint64())),
	}
	job.staged(o.Plan)
	if job.ID == "" {
		job.ID = newID()
	}
	job.lend()
	return job, nil
}

// lend gives a job the fence of a lease that begins with its run, and no output.
func (j *Job) lend() {
	j.fence = new(atomic.Int64)
	j.fence.Store(j.StartedAt.Add(defaultServer.lease).UnixMicro())
	j.output, j.noted = new(run.Output), new(run.Noted)
	j.hands = &handing{sealer: sealer(defaultServer.prefix), ctx: context.Background(), run: new(run.Handover)}
}

// NextRun returns the job of the next run, which begins when the lease of this run has expired.
func (friends) NextRun(j *Job) *Job {
	own := *j
	own.part = nil
	own.Payload, own.Headers = slices.Clone(j.Payload), maps.Clone(j.Headers)
	own.Attempt++
	own.StartedAt = j.StartedAt.Add(defaultServer.lease)
	own.lend()
	own.hands.inputs = j.hands.inputs
	own.noted = j.noted.Next()
	return &own
}

// Given returns what the job was given.
func (friends) Given(info *JobInfo) record.Options { return info.options }

// ServerInfo describes a server. Each server writes it to Redis every five seconds.
type ServerInfo struct {
	ID        string
	SeenAt    time.Time // time of the last heartbeat, by Redis's clock
	Host      string
	PID       int
	StartedAt time.Time // by the server's clock
	Version   string    // of delayq, from the build information
	// State is that of the last heartbeat. A server that begins to drain sends a heartbeat
	// immediately.
	State      ServerState
	Topics     map[string]TopicStatus
	partitions bool // it serves those of its topics
}

// A ServerState is the state of a server.
type ServerState string

// The states of a server. A heartbeat has only [ServerRunning] and [ServerDraining].
const (
	ServerNew      ServerState = "new"      // Run has not been called
	ServerStarting ServerState = "starting" // Run waits for Redis to answer
	ServerRunning  ServerState = "running"
	ServerDraining ServerState = "draining" // its running handlers continue up to its Drain
	ServerStopped  ServerState = "stopped"  // Run has returned, or returned an error at once
)

// TopicStatus describes what a server does for one topic.
type TopicStatus struct {
	Workers int // its Concurrency; in a pool, the most workers that the topic can have
	Running int // number of running handlers; a batch is one
	// BatchSize is that of a handler of [Server.HandleBatch], else 0.
	BatchSize int
	// Found reports that the server serves the topic because a pattern matches it: see
	// [Server.Handle]. It stops serving the topic when [Client.RemoveTopic] has removed it.
	Found   bool
	Longest []RunningJob

	// Pool is the [Pool] whose workers the topic shares with others of the server, PoolSize the
	// number of these workers, and Weight that of the topic. Of the pool's workers, as many are
	// busy as handlers of all its topics run. They are empty for a topic without a pool.
	Pool     string
	PoolSize int
	Weight   int

	// Defaults are the values for jobs that do not set them. They are nil if the server is of a
	// release that does not tell them.
	Defaults *HandlerDefaults

	// Taken is the number of jobs that the server took during Within, which ends at the heartbeat
	// and is a minute or shorter. Both are zero in the first heartbeat, and in those of releases
	// that do not count.
	Taken  int64
	Within time.Duration

	// Loops holds the time since the last iteration of each loop. In a healthy server it is below
	// the tick for promote, below 4 s (a blocking pop) for take, and below a third of the lease for
	// extend.
	Loops map[string]time.Duration
}

// capacity returns how many jobs the server can run at a time.
func (s TopicStatus) capacity() int { return s.Workers * max(1, s.BatchSize) }

// readServers returns what all servers of a prefix say of themselves, by ID.
func readServers(ctx context.Context, rdb redis.Cmdable, prefix string) ([]ServerInfo, error) {
	found, err := script.Heartbeats(ctx, rdb, prefix)
	return serverInfos(found), err
}

// allServers is readServers with the first call of its scan.
func allServers(ctx context.Context, rdb redis.Cmdable, prefix string, page *redis.ScanCmd) ([]ServerInfo, error) {
	found, err := script.RestOfHeartbeats(ctx, rdb, prefix, page)
	return serverInfos(found), err
}

// serverInfos returns what heartbeats say, by ID.
func serverInfos(found map[string]string) []ServerInfo {
	if found == nil {
		return nil
	}
	list := make([]ServerInfo, 0, len(found))
	for id, text := range found {
		list = append(list, serverInfo(id, text))
	}
	slices.SortFunc(list, func(a, b ServerInfo) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// serverInfo returns what a heartbeat says.
func serverInfo(id, heartbeat string) ServerInfo {
	h, at := record.DecodeHeartbeat(heartbeat)
	info := ServerInfo{
		ID: id, SeenAt: orZero(at), Host: h.Host, PID: h.PID, StartedAt: h.Started, Version: h.Version, State: ServerState(h.State), partitions: h.Partitions,
	}
	info.Topics = make(map[string]TopicStatus, len(h.Topics))
	for topic, does := range h.Topics {
		status := TopicStatus{
			Workers: does.Workers, BatchSize: does.Batch, Found: does.Found, Running: does.Running, Loops: does.Loops, Taken: does.Taken, Within: does.Within,
			Pool: does.Pool, PoolSize: does.Size, Weight: does.Weight,
		}
		if d := does.Defaults; d != nil {
			status.Defaults = &HandlerDefaults{d.Retry, d.BackoffMin, d.BackoffMax, d.Timeout, d.Retention}
		}
		for _, job := range does.Longest {
			status.Longest = append(status.Longest, RunningJob{ID: job.ID, Running: job.Running})
		}
		info.Topics[topic] = status
	}
	return info
}
