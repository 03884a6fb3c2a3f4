package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// probe asks the handler of a server, and returns the status and the body.
func probe(t testing.TB, s *delayq.Server, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	delayq.HealthHandler(s).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// requireProbe requires the status of a probe, and a text in its body.
func requireProbe(t testing.TB, s *delayq.Server, path string, status int, text string) {
	t.Helper()
	code, body := probe(t, s, path)
	require.Equal(t, status, code, "%s: %s", path, body)
	require.Contains(t, body, text)
}

// A freezer stops the goroutine that calls it with the name that it is set to. It is a hook, the
// handler of a logger and a dialer.
type freezer struct {
	mu   sync.Mutex
	name string
	hold chan struct{}
}

func (f *freezer) freeze(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.name, f.hold = name, make(chan struct{})
}

// frozen reports whether the freezer has stopped somebody since freeze.
func (f *freezer) frozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.name == "" && f.hold != nil
}

func (f *freezer) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hold != nil {
		close(f.hold)
	}
	f.name, f.hold = "", nil
}

func (f *freezer) pass(name string) {
	f.mu.Lock()
	if f.name != name {
		f.mu.Unlock()
		return
	}
	f.name = ""
	hold := f.hold
	f.mu.Unlock()
	<-hold
}

func (f *freezer) Script(e delayq.ScriptEvent)   { f.pass("script " + e.Name) }
func (f *freezer) Pruned(delayq.PruneEvent)      { f.pass("pruned") }
func (f *freezer) Buried(delayq.RunEvent)        { f.pass("buried") }
func (f *freezer) Next(at time.Time) time.Time   { f.pass("calendar"); return at.Add(time.Second) }
func (f *freezer) WithGroup(string) slog.Handler { return f }

func (f *freezer) WithAttrs([]slog.Attr) slog.Handler       { return f }
func (f *freezer) Enabled(context.Context, slog.Level) bool { return true }
func (f *freezer) Handle(_ context.Context, r slog.Record) error {
	f.pass("log " + r.Message)
	return nil
}

// Each loop is frozen once, while it runs code of the user. Livez is 503 from then on, within three
// ticks, and names the loop. It is 200 again when the loop goes on.
func TestLivezSeesEachLoop(t *testing.T) {
	for _, c := range []struct {
		at, loop string
		topics   int
		patience time.Duration // until the loop comes there
		call     time.Duration // the call in which it hangs has that long, besides
		prepare  func(b *queuetest.Bubble, w *queuetest.Wire)
	}{
		{at: "script promote", loop: `promote of topic "t0"`, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) { b.Enqueue("t0", "1", delayq.ProcessIn(time.Second/2)) }, patience: time.Second},
		{at: "script take", loop: `take of topic "t0"`, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) { b.Enqueue("t0", "1") }},
		{at: "script ack", loop: `settle of topic "t0"`, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) { b.Enqueue("t0", "1") }},
		{at: "buried", loop: `settle of topic "t0"`, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) { b.Enqueue("t0", "bad") }},
		{at: "script extend", loop: `extend of topic "t0"`, patience: 11 * time.Second, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) { b.Enqueue("t0", "long") }},
		{at: "log wait failed", loop: `wait of topic "t0"`, patience: 5 * time.Second, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) {
			require.NoError(b, b.RDB.Set(b.Context(), queuetest.Prefix+":{t0}:ready", "x", 0).Err())
		}},
		{at: "script heartbeat", loop: "heartbeat", patience: 6 * time.Second},
		{at: "script watch", loop: "watch", patience: 3 * time.Second},
		{at: "script survey", loop: "survey", topics: 5, patience: 12 * time.Second},
		{at: "script part_empty", loop: "parts", prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) {
			require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":{t0}:all:parts", "map", "0:1 1:2", "last", 1).Err())
			require.NoError(b, b.RDB.Publish(b.Context(), queuetest.Prefix+":control", "parts 0 2 t0").Err())
		}},
		{at: "script check", loop: "check", patience: 16 * time.Second},
		{at: "script mend", loop: "check", patience: 30 * time.Second, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) { // the alarm
			require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("t0"), "lost", "x").Err())
		}},
		{at: "log topics not served", loop: "follow", patience: 6 * time.Second, prepare: func(b *queuetest.Bubble, _ *queuetest.Wire) {
			b.Enqueue("many.1", "1")
			b.Enqueue("many.2", "1")
		}},
		// A dial and a call have 8 s together.
		{at: "dial", loop: "control", patience: time.Second, call: 8 * time.Second, prepare: func(_ *queuetest.Bubble, w *queuetest.Wire) { w.Deafen() }},
	} {
		t.Run(c.at, func(t *testing.T) {
			if c.at == "log wait failed" {
				queuetest.NeedsPop(t)
			}
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var f freezer
				wire := queuetest.NewWire(b.Redis)
				opts := wire.Client(b.T).Options()
				dial := opts.Dialer
				opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					f.pass("dial")
					return dial(ctx, network, addr)
				}
				rdb := redis.NewClient(opts)
				b.Cleanup(func() { _ = rdb.Close() })
				s := queuetest.ServeMany(b.T, rdb, queuetest.Prefix, func(s *delayq.Server) {
					for i := range max(1, c.topics) {
						s.HandlerFunc(fmt.Sprint("t", i), func(ctx context.Context, job *delayq.Job) error {
							if job.ID == "long" {
								<-ctx.Done()
							} else if job.ID == "bad" {
								return delayq.Permanent(queuetest.ErrTest)
							}
							return nil
						})
					}
					s.HandlerFunc("many.*", queuetest.Nothing, delayq.MaxTopics(1))
				}, delayq.Hooks(&f), delayq.Logger(slog.New(&f)))
				b.Cleanup(f.thaw)
				b.Pass(time.Second)
				requireProbe(b, s.Server, "/livez", 200, "ok")

				f.freeze(c.at)
				if c.prepare != nil {
					c.prepare(b, wire)
				}
				for end := b.At() + c.patience; !f.frozen(); b.Pass(time.Millisecond) {
					requireProbe(b, s.Server, "/livez", 200, "ok")
					require.LessOrEqual(b, b.At(), end, "nobody came there")
				}
				b.Pass(2900 * time.Millisecond)
				requireProbe(b, s.Server, "/livez", 200, "ok")
				b.Pass(c.call + 200*time.Millisecond)
				requireProbe(b, s.Server, "/livez", 503, c.loop+" for 3.")
				require.Len(b, s.Health().Late, 1)
				requireProbe(b, s.Server, "/readyz", 200, "ok")

				f.thaw()
				b.Pass(time.Millisecond)
				requireProbe(b, s.Server, "/livez", 200, "ok")
			})
		})
	}
}

// An outage of Redis is no reason to restart a server: a cut connection, a Redis that is silent,
// and one that answers late.
func TestProbesDuringAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		begin, end func(w *queuetest.Wire)
		ready      bool
	}{
		"cut":    {begin: (*queuetest.Wire).Cut, end: (*queuetest.Wire).Mend},
		"silent": {begin: (*queuetest.Wire).Freeze, end: (*queuetest.Wire).Thaw},
		"slow": {
			begin: func(w *queuetest.Wire) {
				w.Jitter(func() time.Duration { return 300 * time.Millisecond }) // each way
			},
			end: func(w *queuetest.Wire) { w.Jitter(nil) }, ready: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts() // the wire holds up each 4 KiB of a request, and so the texts of scripts
				wire := queuetest.NewWire(b.Redis)
				s := queuetest.ServeMany(b.T, wire.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
					for i := range 8 {
						s.HandlerFunc(fmt.Sprint("t", i), func(ctx context.Context, job *delayq.Job) error {
							if job.ID == "long" {
								<-ctx.Done()
							}
							return nil
						})
					}
				})
				b.Enqueue("t0", "long")
				b.Pass(3 * time.Second)
				requireProbe(b, s.Server, "/readyz", 200, "ok")

				c.begin(wire)
				for i := range 40 { // more than three minutes
					b.Enqueue("t1", fmt.Sprint(i))
					b.Pass(5 * time.Second)
					requireProbe(b, s.Server, "/livez", 200, "ok")
					if c.ready {
						requireProbe(b, s.Server, "/readyz", 200, "ok")
						continue
					}
					began := b.At()
					requireProbe(b, s.Server, "/readyz", 503, "Redis does not answer: ")
					require.LessOrEqual(b, b.At()-began, 2*time.Second)
					h := s.Health()
					require.Error(b, h.Redis.Err)
					require.False(b, h.Redis.AwaySince.IsZero())
					require.WithinDuration(b, b.Began.Add(3*time.Second), h.Redis.AwaySince, 8*time.Second)
					require.WithinDuration(b, time.Now(), h.Redis.FailedAt, 10*time.Second)
					require.WithinDuration(b, b.Began.Add(3*time.Second), h.Redis.AnsweredAt, time.Second)
				}
				c.end(wire)
				b.Pass(10 * time.Second)
				requireProbe(b, s.Server, "/livez", 200, "ok")
				requireProbe(b, s.Server, "/readyz", 200, "ok")
				h := s.Health()
				require.True(b, h.Redis.AwaySince.IsZero())
				require.WithinDuration(b, time.Now(), h.Redis.AnsweredAt, 6*time.Second)
				require.Equal(b, !c.ready, h.Redis.Err != nil, "the last error remains: %v", h.Redis.Err)
				b.Pass(10 * time.Second)
				require.Empty(b, b.State("t1", "39"))
			})
		})
	}
}

// The states of a server, and what the probes say in each.
func TestProbesFromStartToStop(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		wire := queuetest.NewWire(b.Redis)
		s := queuetest.NewServer(wire.Client(b.T), queuetest.Prefix, delayq.Drain(5*time.Second))
		leave := make(chan struct{})
		s.HandlerFunc("t", func(context.Context, *delayq.Job) error { <-leave; return nil })
		isReady := func() bool {
			select {
			case <-s.Ready():
				return true
			default:
				return false
			}
		}
		expect := func(state delayq.ServerState, since time.Time, live int, why string) {
			b.Helper()
			h := s.Health()
			require.Equal(b, state, h.State)
			require.Equal(b, since.UnixMilli(), h.Since.UnixMilli())
			require.Equal(b, s.ID(), h.ID)
			requireProbe(b, s, "/livez", live, "")
			status := 503
			if why == "ok" {
				status = 200
			}
			requireProbe(b, s, "/readyz", status, why)
			requireProbe(b, s, "/healthz", status, fmt.Sprintf("%q", state))
		}
		expect(delayq.ServerNew, b.Began, 200, "the server has not been started")

		wire.Cut()
		b.Pass(time.Second)
		ctx, end := context.WithCancel(b.Context())
		defer end()
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- s.Run(ctx) }()
		b.Pass(time.Minute)
		require.False(b, isReady())
		expect(delayq.ServerStarting, began, 200, "the server waits for Redis: ")
		require.Contains(b, s.Health().Redis.Err.Error(), "no route to host")

		wire.Mend()
		b.Pass(3 * time.Second)
		require.True(b, isReady())
		b.Enqueue("t", "1")
		b.Pass(time.Second)
		h := s.Health()
		require.Equal(b, delayq.ServerRunning, h.State)
		require.Equal(b, []delayq.TopicHealth{
			{Topic: "t", Workers: 10, Running: 1, Held: 1, Oldest: delayq.RunningJob{ID: "1", Running: time.Second}},
		}, h.Topics)
		expect(delayq.ServerRunning, h.Since, 200, "ok")

		stopped := time.Now()
		end()
		b.Pass(time.Second)
		expect(delayq.ServerDraining, stopped, 200, "the server is draining")
		close(leave)
		require.NoError(b, <-done)
		expect(delayq.ServerStopped, time.Now(), 503, "the server has stopped")
		require.True(b, isReady(), "it was")
	})
}

// A Run that fails leaves a server that is not live and was never ready.
func TestProbesOfAServerThatCannotRun(t *testing.T) {
	t.Parallel()
	bad := queuetest.NewServer(redistest.Unused(t), queuetest.Prefix, delayq.Concurrency(0))
	require.ErrorIs(t, bad.Run(t.Context()), delayq.ErrInvalid)
	requireProbe(t, bad, "/livez", 503, "the server has stopped")
	for _, s := range []*delayq.Server{bad, {}, nil} {
		select {
		case <-s.Ready():
			require.Fail(t, "ready")
		default:
		}
	}
	for _, s := range []*delayq.Server{{}, nil} {
		require.Zero(t, s.Health())
		for _, path := range []string{"/livez", "/readyz", "/healthz"} {
			requireProbe(t, s, path, 503, "there is no server")
		}
	}
}

// FailFast bounds how long Run waits for Redis, whatever keeps Redis from being used.
func TestFailFast(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(w *queuetest.Wire)
		want  string
	}{
		"cut":    {(*queuetest.Wire).Cut, "no route to host"},
		"silent": {(*queuetest.Wire).Freeze, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				wire := queuetest.NewWire(b.Redis)
				s := queuetest.NewServer(wire.Client(b.T), queuetest.Prefix, delayq.FailFast(20*time.Second))
				s.HandlerFunc("t", queuetest.Nothing)
				c.begin(wire)
				err := s.Run(b.Context())
				require.ErrorIs(b, err, delayq.ErrRedisAway)
				require.ErrorContains(b, err, c.want)
				require.ErrorContains(b, err, "FailFast(20s)")
				require.Equal(b, 20*time.Second, b.At().Truncate(time.Second))
				require.Equal(b, delayq.ServerStopped, s.Health().State)
				wire.Heal()
			})
		})
	}
	t.Run("first call", func(t *testing.T) { // before it has an error of its own
		queuetest.InBubble(t, func(b *queuetest.Bubble) {
			wire := queuetest.NewWire(b.Redis)
			s := queuetest.NewServer(wire.Client(b.T), queuetest.Prefix, delayq.FailFast(time.Second))
			s.HandlerFunc("t", queuetest.Nothing)
			wire.Freeze()
			err := s.Run(b.Context())
			require.ErrorIs(b, err, delayq.ErrRedisAway)
			require.ErrorContains(b, err, "it does not answer")
			require.Equal(b, time.Second, b.At().Truncate(100*time.Millisecond))
			wire.Heal()
		})
	})
	t.Run("in time", func(t *testing.T) { // an outage later is none of its business
		queuetest.InBubble(t, func(b *queuetest.Bubble) {
			wire := queuetest.NewWire(b.Redis)
			wire.Cut()
			s := b.ServeOn(wire, "t", queuetest.Nothing, delayq.FailFast(5*time.Second))
			b.Pass(2 * time.Second)
			wire.Mend()
			b.Pass(2 * time.Second)
			<-s.Ready()
			wire.Cut()
			b.Pass(time.Minute)
			require.Equal(b, delayq.ServerRunning, s.Health().State)
			wire.Mend()
			b.Pass(2 * time.Second)
			require.NoError(b, s.Stop())
		})
	})
	t.Run("stopped", func(t *testing.T) { // before it is over
		queuetest.InBubble(t, func(b *queuetest.Bubble) {
			wire := queuetest.NewWire(b.Redis)
			wire.Cut()
			s := b.ServeOn(wire, "t", queuetest.Nothing, delayq.FailFast(5*time.Second))
			b.Pass(2 * time.Second)
			require.NoError(b, s.Stop())
		})
	})
}

// A server of many topics is never late: neither idle, nor when Redis needs a second for each reply
// and all loops wait for a few goroutines. With a short tick, a loop is late after a second, and
// each reply takes longer than that.
func TestManyTopicsAreNotLate(t *testing.T) {
	for name, c := range map[string]struct{ tick, way time.Duration }{
		"idle": {time.Second, 0}, "slow": {time.Second, time.Second / 2}, "short tick": {100 * time.Millisecond, 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				wire := queuetest.NewWire(b.Redis)
				s := queuetest.ServeMany(b.T, wire.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
					for i := range redistest.Size(1000) {
						s.HandlerFunc(fmt.Sprint("t", i), queuetest.Nothing)
					}
				}, delayq.Tick(c.tick))
				<-s.Ready()
				b.Pass(5 * time.Second)
				if c.way > 0 {
					wire.Jitter(func() time.Duration { return c.way })
				}
				for range 150 {
					b.Pass(2 * time.Second)
					require.Empty(b, s.Health().Late)
				}
				wire.Jitter(nil)
			})
		})
	}
}

// A loop is not late while it reports one outcome after the other to a hook that is not fast.
func TestSlowHooksOfManyJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var jobs []delayq.NewJob
		for i := range 200 {
			jobs = append(jobs, delayq.NewJob{Topic: "t", ID: fmt.Sprint(i)})
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		s := b.Serve("t", queuetest.Nothing, delayq.Hooks(slowHook{}))
		for range 110 { // 200 hooks of half a second
			b.Pass(time.Second)
			require.Empty(b, s.Health().Late)
		}
		require.Zero(b, s.Health().Topics[0].Held)
	})
}

type slowHook struct{}

func (slowHook) Done(delayq.RunEvent) { time.Sleep(time.Second / 2) }

// The pause after a crash of a loop is a rest.
func TestLoopsThatCrashAreNotLate(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := b.Serve("t", queuetest.Nothing, delayq.Hooks(crashHook{}))
		for range 60 {
			b.Pass(time.Second)
			require.Empty(b, s.Health().Late)
		}
	})
}

type crashHook struct{}

func (crashHook) Script(delayq.ScriptEvent) { panic("no") }

// However many probes there are, Redis gets one PING in two seconds.
func TestProbesShareOnePing(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var pings atomic.Int64
		opts := b.Redis.Options()
		dial := opts.Dialer
		opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return pingCounter{conn, &pings}, err
		}
		rdb := redis.NewClient(opts)
		b.Cleanup(func() { _ = rdb.Close() })
		s := queuetest.Serve(b.T, rdb, queuetest.Prefix, "t", queuetest.Nothing)
		b.Pass(time.Second)
		require.Zero(b, pings.Load())
		var group sync.WaitGroup
		for range 20 {
			for range 50 {
				group.Go(func() { requireProbe(b, s.Server, "/readyz", 200, "ok") })
				group.Go(func() { requireProbe(b, s.Server, "/livez", 200, "ok") })
			}
			b.Pass(500 * time.Millisecond)
		}
		group.Wait()
		require.EqualValues(b, 5, pings.Load(), "in ten seconds")
	})
}

type pingCounter struct {
	net.Conn
	count *atomic.Int64
}

func (c pingCounter) Write(p []byte) (int, error) {
	c.count.Add(int64(bytes.Count(p, []byte("\r\nping\r\n"))))
	return c.Conn.Write(p)
}

// An answer of Redis counts even if it is an error, unless it says that Redis cannot be used.
func TestReadyzJudgesAnswers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := b.Serve("t", queuetest.Nothing)
		for _, c := range []struct {
			says   string
			status int
		}{
			{"NOPERM this user has no permissions to run the 'ping' command", 200},
			{"LOADING Redis is loading the dataset in memory", 503},
			{"NOAUTH Authentication required.", 503},
			{"", 200},
		} {
			b.Redis.SetError(c.says)
			b.Pass(3 * time.Second)
			requireProbe(b, s.Server, "/readyz", c.status, "")
			requireProbe(b, s.Server, "/livez", 200, "ok")
		}
	})
}

// A probe that gives up does not wait for Redis, and the next one gets the answer.
func TestReadyzGivesUp(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		wire := queuetest.NewWire(b.Redis)
		s := b.ServeOn(wire, "t", queuetest.Nothing)
		b.Pass(time.Second)
		wire.Freeze()
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		w := httptest.NewRecorder()
		began := b.At()
		delayq.HealthHandler(s.Server).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
		require.Equal(b, 503, w.Code)
		require.Equal(b, "Redis has not answered yet\n", w.Body.String())
		require.Equal(b, time.Second, b.At()-began)
		wire.Thaw()
		b.Pass(time.Millisecond)
		requireProbe(b, s.Server, "/readyz", 200, "ok")
	})
}

// The paths and methods of the handler, and that nothing is cached.
func TestHealthHandlerPaths(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := b.Serve("t", queuetest.Nothing)
		mux := http.NewServeMux()
		handler := delayq.HealthHandler(s.Server)
		mux.Handle("/", handler)
		mux.Handle("/internal/delayq/", http.StripPrefix("/internal/delayq", handler))
		for path, status := range map[string]int{
			"/livez": 200, "/readyz": 200, "/healthz": 200, "/deep/down/livez": 200, "/internal/delayq/readyz": 200, "/healthz?verbose": 200, "/livez/": 200,
			"/": 404, "/live": 404, "/livez/x": 404, "/internal/delayq/": 404,
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), method, path, nil))
				want := status
				if status == 200 && method != http.MethodGet && method != http.MethodHead {
					want = http.StatusMethodNotAllowed
					require.Equal(b, "GET, HEAD", w.Header().Get("Allow"))
				}
				require.Equal(b, want, w.Code, "%s %s", method, path)
				if status == 200 {
					require.Equal(b, "no-store", w.Header().Get("Cache-Control"))
				}
			}
		}
	})
}

// Health sees a call that Redis answers with an error.
func TestHealthHasCallsThatFail(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		key := queuetest.Prefix + ":{t}:ready"
		require.NoError(b, b.RDB.Set(b.Context(), key, "x", 0).Err())
		s := b.Serve("t", queuetest.Nothing)
		b.Pass(3 * time.Second)
		require.Contains(b, s.Health().Topics[0].Failing["take"], "WRONGTYPE")
		requireProbe(b, s.Server, "/livez", 200, "ok")
		requireProbe(b, s.Server, "/healthz", 200, "WRONGTYPE")
		require.NoError(b, b.RDB.Del(b.Context(), key).Err())
		b.Pass(20 * time.Second)
		require.Nil(b, s.Health().Topics[0].Failing)
	})
}

// What healthz says, on a real Redis too, and that it says no password.
func TestHealthz(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := queuetest.NewFixture(t, rdb)
		started, leave := make(chan struct{}), make(chan struct{})
		s := queuetest.Serve(t, rdb, f.Prefix, "topic", func(context.Context, *delayq.Job) error {
			close(started)
			<-leave
			return nil
		})
		<-s.Ready()
		f.Enqueue("<1>")
		queuetest.Receive(t, started)
		status, body := probe(t, s.Server, "/healthz")
		require.Equal(t, 200, status, body)
		var said struct {
			Schema   string `json:"schema"`
			OK       bool
			Server   string
			State    string
			Redis    map[string]any
			Warnings []string
			Loops    []struct {
				Name  string
				Count int
				Age   *float64
			}
			Workers, Running, Held int
			Count                  int `json:"topic_count"`
			Topics                 []struct {
				Topic  string
				Oldest struct {
					ID  string
					For *float64
				}
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &said), body)
		require.Equal(t, "delayq.health/1", said.Schema)
		require.True(t, said.OK)
		require.Equal(t, s.ID(), said.Server)
		require.Equal(t, "running", said.State)
		require.Positive(t, said.Redis["round_trip"])
		if _, real := rdb.(*redis.Client); real && said.Redis["version"] != nil {
			require.Equal(t, "master", said.Redis["role"])
		}
		require.Equal(t, []int{10, 1, 1, 1}, []int{said.Workers, said.Running, said.Held, said.Count})
		require.Equal(t, "<1>", said.Topics[0].Oldest.ID)
		require.NotNil(t, said.Topics[0].Oldest.For)
		count := map[string]int{}
		for _, l := range said.Loops {
			count[l.Name] = l.Count
			require.NotNil(t, l.Age)
		}
		delete(count, "wait") // only while the topic blocks
		require.Equal(t, map[string]int{
			"promote": 1, "take": 2, "settle": 2, "extend": 1, "control": 1, "heartbeat": 1, "watch": 1, "survey": 1, "parts": 1, "history": 1, "check": 2, "guard": 1,
		}, count)
		close(leave)
	})
}

// Healthz warns of a Redis that evicts keys and of servers of different versions.
func TestHealthzWarns(t *testing.T) {
	r := onRedis(t, redistest.NoRoles...)
	ctx := t.Context()
	require.NoError(t, r.rdb.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	now := time.Now().UnixMilli()
	for id, beat := range map[string]string{
		"one": fmt.Sprint(now, ` {"version":"v1.0.0"}`), "two": fmt.Sprint(now-1, ` {"version":"v1.1.0"}`),
		"gone": fmt.Sprint(now-time.Hour.Milliseconds(), ` {"version":"v0.9.0"}`),
	} {
		require.NoError(t, r.rdb.HSet(ctx, "delayq:servers", id, beat).Err())
	}
	s := r.serve(r.rdb)
	<-s.Ready()
	_, body := probe(t, s.Server, "/healthz")
	require.Contains(t, body, "maxmemory-policy is allkeys-lru")
	require.Contains(t, body, "servers of different versions: ")
	require.Contains(t, body, "v1.0.0, v1.1.0\"")
	require.NotContains(t, body, "clock of")
}

// Healthz warns of clocks that are far apart. It has no more than the topics that matter.
func TestHealthzOfManyTopics(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Redis.SetTime(time.Now().Add(time.Hour))
		leave := make(chan struct{})
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			for i := range 150 {
				s.HandlerFunc(fmt.Sprint("t", i), func(context.Context, *delayq.Job) error { <-leave; return nil })
			}
		})
		require.NoError(b, b.RDB.Set(b.Context(), queuetest.Prefix+":{t149}:ready", "x", 0).Err())
		b.Enqueue("t148", "1")
		b.Pass(3 * time.Second)
		_, body := probe(b, s.Server, "/healthz")
		require.Contains(b, body, "the clock of Redis is 5")
		var said struct {
			Count  int `json:"topic_count"`
			Topics []struct{ Topic string }
		}
		require.NoError(b, json.Unmarshal([]byte(body), &said))
		require.Equal(b, 150, said.Count)
		require.Len(b, said.Topics, 100)
		require.Equal(b, "t149", said.Topics[0].Topic, "its calls fail")
		require.Equal(b, "t148", said.Topics[1].Topic, "it has a job")
		close(leave)
	})
}

// A password is in no body, whatever Redis says about it.
func TestProbesHaveNoPassword(t *testing.T) {
	r := onRedis(t, redistest.NoRoles...)
	require.NoError(t, r.rdb.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all").Err())
	opts := r.redis.Options()
	opts.Username, opts.Password = "app", "s3cret"
	s := queuetest.NewServer(clientOf(t, opts), "delayq", delayq.FailFast(time.Hour))
	s.HandlerFunc("a", queuetest.Nothing)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	queuetest.Until(t, func() bool { return s.Health().Redis.Err != nil })
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		_, body := probe(t, s, path)
		require.NotContains(t, body, "s3cret")
	}
	requireProbe(t, s, "/readyz", 503, "WRONGPASS")
	end()
	require.NoError(t, <-done)
}
