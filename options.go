package delayq

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// Bounds of times. In Redis a due time has 13 digits, in Unix milliseconds.
const (
	// of ProcessIn, ExpireIn, Retention, Snooze and the backoff
	maxDelay = record.MaxDelay * time.Millisecond // 100 years

	maxHeadStart = record.MaxHeadStart * time.Millisecond // 24 hours
	maxDueMS     = record.MaxTime
	maxRetry     = math.MaxInt32
)

// mostPayload is the upper bound of MaxPayload, in bytes.
const mostPayload = 64 << 20

// invalid joins complaints under ErrInvalid.
func invalid(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalid, errors.Join(errs...))
}

func atMost(option string, d time.Duration) error {
	if d > maxDelay {
		return fmt.Errorf("%s(%v): at most %v (100 years)", option, d, maxDelay)
	}
	return nil
}

// notTiny rejects durations above zero and below a millisecond, because nobody means nanoseconds.
func notTiny(option string, d time.Duration) error {
	if d > 0 && d < time.Millisecond {
		return fmt.Errorf("%s(%v): at least 1ms; were seconds meant, %d*time.Second?", option, d, d.Nanoseconds())
	}
	return nil
}

func positive(option string, d time.Duration) error {
	if err := notTiny(option, d); err != nil {
		return err
	}
	if d < time.Millisecond {
		return fmt.Errorf("%s(%v): at least 1ms", option, d)
	}
	return atMost(option, d)
}

// instant returns t in Unix ms, rounded up so that nothing is ever early.
func instant(option string, t time.Time) (int64, error) {
	if t.IsZero() {
		return 0, fmt.Errorf("%s: the zero time", option)
	}
	ms, ok := record.Millis(t)
	if !ok {
		return 0, fmt.Errorf("%s(%v): must be from 1970 to %v", option, t, time.UnixMilli(maxDueMS).UTC())
	}
	return ms, nil
}

// msTime returns the time of a number of Unix milliseconds.
func msTime(ms int64) time.Time { return time.UnixMilli(ms) }

// orZero returns the time of a number of Unix milliseconds, or the zero time for 0.
func orZero(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return msTime(ms)
}

// ofMS returns a duration of ms milliseconds.
func ofMS(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// ceilMS returns d in milliseconds, rounded up.
func ceilMS(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > 0 && d%time.Millisecond != 0 {
		ms++
	}
	return ms
}

// A ClientOption configures a [Client].
type ClientOption interface{ applyClient(*clientOptions) }

// A ServerOption configures a [Server].
type ServerOption interface{ applyServer(*serverOptions) }

// A HandlerOption configures one topic of a [Server].
type HandlerOption interface{ applyHandler(*handlerOptions) }

type clientOptions struct {
	prefix      string
	maxPayload  int
	replicas    int
	replicaWait time.Duration
	tombs       int64 // most of a topic
	hooks       hooks
	job         jobOptions // of all jobs
	errs        []error
}

var defaultClient = clientOptions{prefix: script.DefaultPrefix, maxPayload: 1 << 20, tombs: defaultTombs, job: defaultJob}

type serverOptions struct {
	prefix      string
	concurrency int
	own         bool           // Concurrency is given
	pools       map[string]int // sizes of the pools, by name
	pool        string         // of all topics
	pooled      bool           // InPool is given
	lease       time.Duration
	drain       time.Duration
	tick        time.Duration
	deadCount   int
	deadAge     time.Duration
	failFast    time.Duration // 0: never
	history     bool          // what happens in the topics is counted
	bare        bool          // it may run without a handler
	job         jobOptions    // of all runs
	logger      *slog.Logger
	hooks       hooks
	errs        []error
}

// maxTick is the longest Tick.
const maxTick = script.MaxTick

var defaultServer = serverOptions{
	prefix:      script.DefaultPrefix,
	concurrency: 10,
	lease:       30 * time.Second,
	drain:       20 * time.Second,
	tick:        maxTick,
	deadCount:   1_000_000,
	deadAge:     90 * 24 * time.Hour,
	history:     true,
	job:         defaultJob,
}

type handlerOptions struct {
	topic       string
	classes     []class
	above       *handlerOptions // of the topic of which this is a class; nil: it is none
	poolSize    int             // of a pool for the topic and its classes; 0: another
	concurrency int             // 0: the server's
	job         jobOptions      // of all runs
	topics      int             // of a pattern
	bounded     bool            // MaxTopics is given
	limits      *Limits         // by default; nil: none
	batchSize   int
	sized       bool // BatchSize is given
	window      *GatherWindow
	pool        string
	pooled      bool // InPool is given
	weight      int  // 0: not given
	onDemand    bool // it takes the jobs that Demand asks for
	errs        []error
}

type clientOption func(*clientOptions)

func (f clientOption) applyClient(o *clientOptions) { f(o) }

type serverOption func(*serverOptions)

func (f serverOption) applyServer(o *serverOptions) { f(o) }

type handlerOption func(*handlerOptions)

func (f handlerOption) applyHandler(o *handlerOptions) { f(o) }

// PrefixOption is the type of [Prefix]: an option of clients, servers and inspectors.
type PrefixOption string

// Prefix sets the first part of all keys and channels, so that several applications or tests can
// share one Redis. It is also the only pattern that an ACL needs. Clients, servers and inspectors
// must have the same prefix. The bounds are those of a topic's name. Default: "delayq".
func Prefix(prefix string) PrefixOption { return PrefixOption(prefix) }

func (p PrefixOption) applyClient(o *clientOptions) { o.prefix = string(p) }
func (p PrefixOption) applyServer(o *serverOptions) { o.prefix = string(p) }

// HooksOption is the type of [Hooks]: an option of clients, servers and inspectors.
type HooksOption []Hook

// Hooks adds hooks; see [Hook]. If it is given several times, all its hooks are added.
func Hooks(hooks ...Hook) HooksOption { return hooks }

func (h HooksOption) applyClient(o *clientOptions) {
	o.errs = append(o.errs, o.hooks.add(h, clientSide)...)
}

func (h HooksOption) applyServer(o *serverOptions) {
	o.errs = append(o.errs, o.hooks.add(h, serverSide)...)
}

// MaxPayload sets the largest payload that a client enqueues, in bytes. Redis holds every payload
// in memory and copies it while other calls wait. Default: 1 MiB. Range: 1 byte to 64 MiB.
func MaxPayload(bytes int) ClientOption {
	return clientOption(func(o *clientOptions) {
		if bytes < 1 || bytes > mostPayload {
			o.errs = append(o.errs, fmt.Errorf("MaxPayload(%d): must be from 1 to %d", bytes, mostPayload))
		}
		o.maxPayload = bytes
	})
}

// WaitReplicas makes Enqueue return only after n replicas have confirmed the job. If they do not
// confirm it within timeout, Enqueue returns [ErrNotReplicated]. The timeout must be shorter than
// the ReadTimeout of the go-redis client. See docs/operations.md for what a failover can lose
// without this option. Default: no waiting. Range: 1 to 64 replicas, 1 ms to 3 s.
func WaitReplicas(n int, timeout time.Duration) ClientOption {
	return clientOption(func(o *clientOptions) {
		if n < 1 || n > 64 || timeout < time.Millisecond || timeout > 3*time.Second {
			o.errs = append(o.errs, fmt.Errorf("WaitReplicas(%d, %v): must be 1 to 64 replicas and 1ms to 3s", n, timeout))
		}
		o.replicas, o.replicaWait = n, timeout
	})
}

// ConcurrencyOption is the type of [Concurrency]: an option of servers and of single handlers.
type ConcurrencyOption int

// Concurrency sets the number of workers of a topic in this server, which is how many of its
// handlers run simultaneously. Passed to [NewServer] it applies to every topic, passed to
// [Server.Handle] to that one. Topics do not share workers, so a slow topic never delays another.
// Topics with [InPool] do share them, and Concurrency is then the most workers of the pool that a
// topic has at a time. A worker of [Server.HandleBatch] runs a batch, so Concurrency(4) means four
// batches. Default: 10, in a pool its size. Range: 1 to 10,000.
func Concurrency(n int) ConcurrencyOption { return ConcurrencyOption(n) }

func (n ConcurrencyOption) check() error {
	if n < 1 || n > mostWorkers {
		return fmt.Errorf("Concurrency(%d): must be from 1 to %d", int(n), mostWorkers)
	}
	return nil
}

// mostWorkers is the most workers of a topic and of a pool.
const mostWorkers = 10_000

func (n ConcurrencyOption) applyServer(o *serverOptions) {
	o.concurrency, o.own = int(n), true
	if err := n.check(); err != nil {
		o.errs = append(o.errs, err)
	}
}

func (n ConcurrencyOption) applyHandler(o *handlerOptions) {
	o.concurrency = int(n)
	if err := n.check(); err != nil {
		o.errs = append(o.errs, err)
	}
}

// duration returns a server option that is a duration between two bounds.
func duration(name string, d, least, most time.Duration, set func(*serverOptions)) ServerOption {
	return serverOption(func(o *serverOptions) {
		if err := notTiny(name, d); err != nil {
			o.errs = append(o.errs, err)
		} else if d < least || d > most {
			o.errs = append(o.errs, fmt.Errorf("%s(%v): must be from %v to %v", name, d, least, most))
		}
		set(o)
	})
}

// Lease sets how long a job stays with its worker after the last extension. Servers extend the
// leases of running handlers every third of this period, so handlers can run much longer.
//
// Jobs of a crashed server run again after at most this time. If they failed or were interrupted
// before, a backoff of 2 s to 64 s is added. If the lease is too short, a pause of Redis or of the
// process makes jobs run twice. If it is too long, jobs of a crashed server wait longer. Default:
// 30 s. Range: 100 ms to 24 h.
func Lease(d time.Duration) ServerOption {
	return duration("Lease", d, 100*time.Millisecond, 24*time.Hour, func(o *serverOptions) { o.lease = d })
}

// Drain sets how long running handlers may continue after the server is stopped. Then their
// contexts are cancelled with cause [ErrShutdown], and unfinished jobs go back to ready without
// using up an attempt. Keep it below the grace period of the process manager. Default: 20 s. Range:
// 0 to 24 h.
func Drain(d time.Duration) ServerOption {
	return duration("Drain", d, 0, 24*time.Hour, func(o *serverOptions) { o.drain = d })
}

// Tick sets how often a server checks an idle topic, to recover from lost wake-ups and crashed
// servers. A shorter tick costs Redis more idle calls and gains nothing on a healthy system.
// Default: 1 s. Range: 10 ms to 1 s.
func Tick(d time.Duration) ServerOption {
	return duration("Tick", d, 10*time.Millisecond, maxTick, func(o *serverOptions) { o.tick = d })
}

// FailFast makes [Server.Run] return [ErrRedisAway] if Redis cannot be used within d of the start,
// because it does not answer, rejects the password, loads its data or is a replica. Without it, Run
// waits for Redis. Once the server is running, it waits for Redis in any case. Use it where
// whatever started the process should see such an error, for example in a test of a deployment.
// Default: Run waits without a limit. Range: 100 ms to 24 h.
func FailFast(d time.Duration) ServerOption {
	return duration("FailFast", d, 100*time.Millisecond, 24*time.Hour, func(o *serverOptions) { o.failFast = d })
}

// DeadLimit sets how many dead jobs of a topic are kept, and for how long. Jobs over the limit are
// deleted for good, oldest first. The server logs a warning with their number, counts them
// ([CounterPrunedDead]) and reports them to a [PrunedHook]. Every server of a topic deletes what
// exceeds its own limit, so the strictest server wins. Default: 1,000,000 and 90 days. Range: 0 to
// 10,000,000 jobs, 1 s to 100 years.
func DeadLimit(count int, age time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) {
		if count < 0 || count > 10_000_000 || age < time.Second || age > maxDelay {
			o.errs = append(o.errs, fmt.Errorf("DeadLimit(%d, %v): must be 0 to 10000000 jobs and 1s to %v", count, age, maxDelay))
		}
		o.deadCount, o.deadAge = count, age
	})
}

// KeepHistory sets whether the server counts the runs of its topics for [Inspector.History]: their
// outcomes, lateness and run time by minutes and hours. Every 10 s it sends the numbers of each
// topic that has changed, in a call of its own, and the last ones within 200 ms of the end of its
// drain. If such a call fails, it costs a line in the log and no job. A busy topic takes about 0.2
// MB of Redis's memory, and at most 0.9 MB, for up to 31 days after its last run. Default: true.
func KeepHistory(keep bool) ServerOption {
	return serverOption(func(o *serverOptions) { o.history = keep })
}

// MaxTopics sets how many topics of a pattern a server serves: see [Server.Handle]. If more match,
// the others are not served by this server, which logs an error. Each topic costs the server about
// 20 KB, and has its own Concurrency. Default: 1,000. Range: 1 to 10,000.
func MaxTopics(n int) HandlerOption {
	return handlerOption(func(o *handlerOptions) {
		if n < 1 || n > 10_000 {
			o.errs = append(o.errs, fmt.Errorf("MaxTopics(%d): must be 1 to 10000", n))
		}
		o.topics, o.bounded = n, true
	})
}

const defaultMaxTopics = 1000

// Bounds of batches: the jobs of one, and those of all batches of a topic in a server.
const (
	mostBatchSize    = 1000
	mostBatched      = 100_000
	defaultBatchSize = 100
)

// BatchSize sets the most jobs in a batch of a handler that [Server.HandleBatch] sets. A batch can
// have fewer. Redis returns at most 1 MiB of records in one reply, so batches of large jobs need
// several takes. Default: 100. Range: 1 to 1,000.
func BatchSize(n int) HandlerOption {
	return handlerOption(func(o *handlerOptions) {
		if n < 1 || n > mostBatchSize {
			o.errs = append(o.errs, fmt.Errorf("BatchSize(%d): must be from 1 to %d", n, mostBatchSize))
		}
		o.batchSize, o.sized = n, true
	})
}

// Logger sets the logger of the server. Payloads are never logged. Default: slog.Default() when Run
// is called.
func Logger(l *slog.Logger) ServerOption {
	return serverOption(func(o *serverOptions) {
		if l == nil {
			o.errs = append(o.errs, errors.New("Logger(nil)"))
		}
		o.logger = l
	})
}

func newClientOptions(opts []ClientOption) (clientOptions, error) {
	o := defaultClient
	for _, opt := range opts {
		if opt == nil {
			o.errs = append(o.errs, errors.New("a client option is nil"))
			continue
		}
		opt.applyClient(&o)
	}
	if err := script.CheckName("prefix", o.prefix); err != nil {
		o.errs = append(o.errs, err)
	}
	return o, invalid(o.errs)
}

func newServerOptions(opts []ServerOption) (serverOptions, error) {
	o := defaultServer
	for _, opt := range opts {
		if opt == nil {
			o.errs = append(o.errs, errors.New("a server option is nil"))
			continue
		}
		opt.applyServer(&o)
	}
	if o.pooled && o.pools[o.pool] == 0 {
		o.errs = append(o.errs, fmt.Errorf("InPool(%q): the server has no such Pool", o.pool))
	}
	if err := script.CheckName("prefix", o.prefix); err != nil {
		o.errs = append(o.errs, err)
	}
	return o, invalid(o.errs)
}

// config returns what the engine of the server with that ID is told.
func (o *serverOptions) config(id string, calendars schedule.Calendars) serve.Config {
	return serve.Config{
		ID: id, Prefix: o.prefix, Lease: o.lease, Drain: o.drain, Tick: o.tick, DeadCount: o.deadCount, DeadAge: o.deadAge,
		FailFast: o.failFast, History: o.history, Stepped: len(o.hooks.lookers) > 0, Concurrency: o.concurrency, Own: o.own, Pools: o.pools,
		Calendars: calendars,
		Judge:     policy{id}, Observer: witness{&o.hooks, id}, Listener: &o.hooks,
	}
}

// Pool declares a pool of workers that topics of the server share, with the number of its workers.
// A topic joins it with [InPool]. At most size handlers of its topics run at the same time in this
// server.
//
// A worker that becomes idle goes to the topic that needs one and has the fewest workers for its
// [Weight]. So no topic starves, and a topic that is alone uses all of them. A running handler
// keeps its worker: a topic that was idle waits until a handler of another one ends. So the
// handlers of a topic can delay the other topics of its pool, but none outside it.
//
// The name has the bounds of a topic's name. It exists in this server only. Range: 1 to 10,000
// workers. A pool that is declared twice is an [ErrInvalid]. Default: no pools, and every topic has
// workers of its own.
func Pool(name string, size int) ServerOption {
	return serverOption(func(o *serverOptions) {
		switch err := script.CheckName("worker pool", name); {
		case err != nil:
			o.errs = append(o.errs, err)
		case size < 1 || size > mostWorkers:
			o.errs = append(o.errs, fmt.Errorf("Pool(%q, %d): the size must be from 1 to %d", name, size, mostWorkers))
		case o.pools[name] != 0:
			o.errs = append(o.errs, fmt.Errorf("Pool(%q, %d): already declared with %d workers", name, size, o.pools[name]))
		default:
			if o.pools == nil {
				o.pools = make(map[string]int)
			}
			o.pools[name] = size
		}
	})
}

// InPoolOption is the type of [InPool]: an option of servers and of single handlers.
type InPoolOption string

// InPool makes a topic use the workers of a [Pool] of the server. Passed to [NewServer] it applies
// to every topic, passed to [Server.Handle] to that one. So this server runs at most 50 handlers,
// of whatever topics:
//
//	delayq.NewServer(rdb, delayq.Pool("all", 50), delayq.InPool("all"))
//
// With [Concurrency], a topic has at most that many workers of its pool. Every topic of a pattern
// is in the pool by itself, with the Weight of the pattern. A pool that is not declared is an
// [ErrInvalid].
func InPool(name string) InPoolOption { return InPoolOption(name) }

func (n InPoolOption) applyServer(o *serverOptions)   { o.pool, o.pooled = string(n), true }
func (n InPoolOption) applyHandler(o *handlerOptions) { o.pool, o.pooled = string(n), true }

// Weight sets the share of a topic in its pool: while both have jobs, a topic of weight 6 has twice
// as many workers as one of weight 3. A Weight of a topic without a pool is an [ErrInvalid].
// Default: 1. Range: 1 to 1,000.
func Weight(n int) HandlerOption {
	return handlerOption(func(o *handlerOptions) {
		if n < 1 || n > 1000 {
			o.errs = append(o.errs, fmt.Errorf("Weight(%d): must be from 1 to 1000", n))
		}
		o.weight = n
	})
}
