package queuetest

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/friend"
	"github.com/delayq/delayq/internal/redistest"
)

// Patience bounds waiting on a real clock for what a healthy system does immediately. The bound is
// reached only when something is broken.
const Patience = 2 * time.Minute

// Until waits on a real clock until ok returns true.
func Until(t *testing.T, ok func() bool, what ...any) {
	t.Helper()
	require.Eventually(t, ok, Patience, 5*time.Millisecond, what...)
}

// Receive returns a value from a channel. It waits on a real clock.
func Receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// AwaitServer waits for the first heartbeat of a server, because a run can start before it.
func AwaitServer(t *testing.T, insp *delayq.Inspector) {
	t.Helper()
	Until(t, func() bool {
		servers, err := insp.Servers(t.Context())
		require.NoError(t, err)
		return len(servers) > 0
	})
}

// StateOf returns the state of a job, or "" if there is no such job.
func StateOf(t *testing.T, client *delayq.Client, topic, id string) delayq.State {
	t.Helper()
	info, err := client.Get(t.Context(), topic, id)
	if err != nil {
		require.ErrorIs(t, err, delayq.ErrNotFound)
		return ""
	}
	return info.State
}

// CounterOf returns a counter of a topic.
func CounterOf(t *testing.T, insp *delayq.Inspector, topic string, name delayq.Counter) int64 {
	t.Helper()
	n, known := StatsOf(t, insp, topic).Counters[name]
	require.True(t, known, name)
	return n
}

// StatsOf returns the numbers of a topic.
func StatsOf(t testing.TB, insp *delayq.Inspector, topic string) delayq.TopicStats {
	t.Helper()
	list, err := insp.Stats(t.Context(), topic)
	require.NoError(t, err)
	require.Len(t, list, 1)
	return list[0]
}

// JobsOf returns the jobs of a topic in a state, at most 1,000.
func JobsOf(t testing.TB, insp *delayq.Inspector, topic string, state delayq.State) []*delayq.JobInfo {
	t.Helper()
	page, err := insp.Jobs(t.Context(), delayq.Query{Topic: topic, State: state, Limit: 1000})
	require.NoError(t, err)
	return page.Jobs
}

// A Running is a server that runs until the end of the test.
type Running struct {
	*delayq.Server
	End  context.CancelFunc
	Done chan struct{} // closed when Run has returned
	Err  error         // what Run returned; read it after Done
}

// Stop ends the server, waits for it and returns the error of Run.
func (s *Running) Stop() error {
	s.End()
	<-s.Done
	return s.Err
}

// Quiet returns the options of a server that logs nothing. Options that follow override them.
func Quiet(prefix string) []delayq.ServerOption {
	return []delayq.ServerOption{delayq.Prefix(prefix), delayq.Logger(slog.New(slog.DiscardHandler)), delayq.Drain(time.Second)}
}

// NewServer returns a quiet server. With DELAYQ_ROLES its calls are the worker's. With DELAYQ_RINGS
// it waits for rings, however few topics it has.
func NewServer(rdb redis.UniversalClient, prefix string, opts ...delayq.ServerOption) *delayq.Server {
	rdb, test := redistest.Worker(rdb, prefix)
	if test != "" {
		opts = append(opts, delayq.Hooks(workerCalls{test}))
	}
	s := delayq.NewServer(rdb, append(Quiet(prefix), opts...)...)
	if os.Getenv("DELAYQ_RINGS") != "" {
		friend.Of(new(delayq.Client)).AlwaysRing(s)
	}
	return s
}

// NeedsPop skips a test of servers that wait by a blocking pop, if they wait for rings: one in
// which jobs get into ready without a ring, or in which messages are lost.
func NeedsPop(t *testing.T) {
	if os.Getenv("DELAYQ_RINGS") != "" {
		t.Skip("the server waits for rings")
	}
}

// workerCalls counts the calls of servers.
type workerCalls struct{ test string }

func (w workerCalls) Script(e delayq.ScriptEvent) { redistest.Count("worker", e.Name, w.test) }

// Serve runs a server with one handler until the end of the test.
func Serve(t *testing.T, rdb redis.UniversalClient, prefix, topic string, h delayq.HandlerFunc, opts ...delayq.ServerOption) *Running {
	t.Helper()
	return ServeMany(t, rdb, prefix, func(s *delayq.Server) { s.HandlerFunc(topic, h) }, opts...)
}

// ServeMany runs a server with any handlers until the end of the test.
func ServeMany(t *testing.T, rdb redis.UniversalClient, prefix string, setup func(*delayq.Server), opts ...delayq.ServerOption) *Running {
	t.Helper()
	s := &Running{Server: NewServer(rdb, prefix, opts...), Done: make(chan struct{})}
	setup(s.Server)
	var ctx context.Context
	ctx, s.End = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(s.Done)
		s.Err = s.Run(ctx)
	}()
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}
