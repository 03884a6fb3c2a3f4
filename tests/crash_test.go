package tests

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// crashes are the ways in which code of the user can end a goroutine of the library.
var crashes = map[string]func(){"panic": func() { panic("oh no") }, "goexit": runtime.Goexit}

// A crashing thing is something of the user's that crashes while it is on.
type crashing struct {
	on   atomic.Bool
	with func()
	n    atomic.Int64 // how often it has
}

func (c *crashing) here() {
	if c.on.Load() {
		c.n.Add(1)
		c.with()
	}
}

func (c *crashing) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *crashing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *crashing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.here()
		return next(ctx, cmd)
	}
}

// credentialsOf is a provider of streaming credentials.
type credentialsOf func()

func (f credentialsOf) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	f()
	return auth.NewBasicCredentials("", ""), func() error { return nil }, nil
}

// What go-redis calls to make a connection crashes for a while: the server takes it for a Redis
// that is away, says so once, and goes on as soon as it works.
func TestServerWhoseConnectionsCrash(t *testing.T) {
	for what, with := range crashes {
		for where, breaks := range map[string]func(o *redis.Options, broken *crashing){
			"dialer": func(o *redis.Options, broken *crashing) {
				dial := o.Dialer
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					broken.here()
					return dial(ctx, network, addr)
				}
			},
			"OnConnect": func(o *redis.Options, broken *crashing) {
				o.OnConnect = func(context.Context, *redis.Conn) error { broken.here(); return nil }
			},
			"credentials": func(o *redis.Options, broken *crashing) {
				o.CredentialsProvider = func() (string, string) { broken.here(); return "", "" }
			},
			"credentials with a context": func(o *redis.Options, broken *crashing) {
				o.CredentialsProviderContext = func(context.Context) (string, string, error) { broken.here(); return "", "", nil }
			},
			"streaming credentials": func(o *redis.Options, broken *crashing) {
				o.StreamingCredentialsProvider = credentialsOf(broken.here)
			},
		} {
			t.Run(where+"/"+what, func(t *testing.T) {
				t.Parallel()
				redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
					broken := &crashing{with: with}
					broken.on.Store(true)
					o := *rdb.Options()
					breaks(&o, broken)
					mine := redis.NewClient(&o)
					defer func() { require.NoError(t, mine.Close()) }()
					var log queuetest.Logbook
					ran := make(chan string, 10)
					stop := serving(t, mine, &log, func(_ context.Context, job *delayq.Job) error { ran <- job.ID; return nil })
					time.Sleep(10 * time.Second)
					require.Positive(t, broken.n.Load())
					require.Len(t, log.With("level=ERROR"), 1)
					require.Len(t, log.With("redis away", what+": "), 1)
					broken.on.Store(false)
					time.Sleep(5 * time.Second)
					require.Len(t, log.With("redis back"), 1)
					_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "topic", "x", nil)
					require.NoError(t, err)
					require.Equal(t, "x", <-ran)
					require.NoError(t, stop())
				})
			})
		}
	}
}

// limiter is a Limiter of go-redis, which is called on the goroutine that makes a call.
type limiter struct{ broken *crashing }

func (l limiter) Allow() error       { l.broken.here(); return nil }
func (l limiter) ReportResult(error) {}

// Something of the user's ends every loop of a server again and again. Each is started anew, says
// so once, and knows what it had under way: no job is taken twice, and none is settled twice.
func TestServerWhoseLoopsCrash(t *testing.T) {
	for what, with := range crashes {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
				broken := &crashing{with: with}
				o := *rdb.Options()
				o.Limiter = limiter{broken}
				mine := redis.NewClient(&o)
				defer func() { require.NoError(t, mine.Close()) }()
				var log queuetest.Logbook
				var mu sync.Mutex
				runs := make(map[string]int)
				enter, leave := make(chan struct{}, 100), make(chan struct{})
				stop := serving(t, mine, &log, func(ctx context.Context, job *delayq.Job) error {
					mu.Lock()
					runs[job.ID]++
					mu.Unlock()
					if job.ID == "held" {
						enter <- struct{}{}
						<-leave
					}
					return nil
				})
				time.Sleep(3 * time.Second)
				client := delayq.NewClient(rdb)
				enqueue := func(id string) {
					_, err := client.Enqueue(t.Context(), "topic", id, nil)
					require.NoError(t, err)
				}
				enqueue("held")
				<-enter
				broken.on.Store(true)
				close(leave) // its end cannot be told now
				enqueue("meanwhile")
				time.Sleep(8 * time.Second)
				require.Len(t, log.With(`msg="settle crashed"`, what+": ", "stack="), 1)
				require.Len(t, log.With(`msg="take crashed"`, what+": "), 1)
				require.Len(t, log.With(`msg="promote crashed"`, what+": "), 1)
				broken.on.Store(false)
				time.Sleep(8 * time.Second)
				enqueue("after")
				time.Sleep(time.Second)
				mu.Lock()
				require.Equal(t, map[string]int{"held": 1, "meanwhile": 1, "after": 1}, runs)
				mu.Unlock()
				info := queuetest.StatsOf(t, delayq.NewInspector(rdb), "topic")
				require.EqualValues(t, 3, info.Counters["acked"])
				require.Zero(t, info.Counters["reclaimed"])
				require.Zero(t, info.Running)
				require.NoError(t, stop())
			})
		})
	}
}

// brokenLog is the handler of a Logger.
type brokenLog struct{ *crashing }

func (l brokenLog) Enabled(context.Context, slog.Level) bool { return true }
func (l brokenLog) WithGroup(string) slog.Handler            { return l }
func (l brokenLog) WithAttrs([]slog.Attr) slog.Handler {
	if l.on.Load() {
		panic("no attributes")
	}
	return l
}

func (l brokenLog) Handle(context.Context, slog.Record) error {
	l.here()
	return errors.New("full")
}

// A log that crashes stops nothing.
func TestServerWhoseLogCrashes(t *testing.T) {
	for what, with := range crashes {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
				broken := &crashing{with: with}
				broken.on.Store(true)
				done := make(chan int, 10)
				server := delayq.NewServer(rdb, delayq.Logger(slog.New(brokenLog{broken})), delayq.Hooks(panickyDone{}))
				server.HandlerFunc("topic", func(_ context.Context, job *delayq.Job) error {
					if job.Attempt < 3 {
						return errors.New("once more")
					}
					done <- job.Attempt
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- server.Run(ctx) }()
				_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "topic", "x", nil)
				require.NoError(t, err)
				require.Equal(t, 3, <-done)
				cancel()
				require.NoError(t, <-ended)
				require.Greater(t, broken.n.Load(), int64(3))
			})
		})
	}
}

type panickyDone struct{}

func (panickyDone) Done(delayq.RunEvent) { panic("done") }

// serving runs a server with one handler until stop is called.
func serving(t *testing.T, rdb redis.UniversalClient, log *queuetest.Logbook, h delayq.HandlerFunc, opts ...delayq.ServerOption) (stop func() error) {
	t.Helper()
	server := delayq.NewServer(rdb, append([]delayq.ServerOption{delayq.Logger(slog.New(slog.NewTextHandler(log, nil)))}, opts...)...)
	server.HandlerFunc("topic", h)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// Something of the user's ends the loop that saves steps while a call is under way: the handlers
// that wait for it do not wait for ever, and each step is saved.
func TestStepsWhoseSavesCrash(t *testing.T) {
	for what, with := range crashes {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
				broken := &crashing{with: with}
				o := *rdb.Options()
				o.Limiter = limiter{broken}
				mine := redis.NewClient(&o)
				defer func() { require.NoError(t, mine.Close()) }()
				var log queuetest.Logbook
				var steps stepLog
				done := make(chan error, 1)
				stop := serving(t, mine, &log, func(ctx context.Context, job *delayq.Job) error {
					err := steps.all(t, ctx, job, "one")
					broken.on.Store(true)
					time.AfterFunc(3*time.Second, func() { broken.on.Store(false) })
					if err == nil {
						err = steps.all(t, ctx, job, "two", "three")
					}
					done <- err
					return err
				})
				_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "topic", "1", nil)
				require.NoError(t, err)
				require.NoError(t, <-done)
				require.Equal(t, map[string]int{"1/one": 1, "1/two": 1, "1/three": 1}, steps.runs())
				require.Positive(t, broken.n.Load())
				require.NotEmpty(t, log.With("note crashed"))
				time.Sleep(time.Minute)
				require.NoError(t, stop())
				_, err = delayq.NewClient(rdb).Get(t.Context(), "topic", "1")
				require.ErrorIs(t, err, delayq.ErrNotFound, "it is done")
			})
		})
	}
}
