package tests

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// hookOf is a hook of go-redis that does something before each command.
type hookOf func(ctx context.Context, cmd redis.Cmder) (context.Context, error)

func (h hookOf) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hookOf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h hookOf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, err := h(ctx, cmd)
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// A request that was never written to a connection was not carried out: its error is the plain
// cause.
func TestRequestsThatAreNeverSent(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	ctx := t.Context()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all").Err())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := free.Addr().String()
	require.NoError(t, free.Close())
	open := func(change func(o *redis.Options)) *redis.Client {
		o := *rs.Options()
		o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff, o.DialerRetries = 1, time.Millisecond, time.Millisecond, 1
		change(&o)
		rdb := redis.NewClient(&o)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}

	noTLS := func(o *redis.Options) {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		o.DialTimeout = 200 * time.Millisecond // the handshake has no answer
	}
	full := open(func(o *redis.Options) { o.PoolSize, o.PoolTimeout, o.MaxRetries = 1, time.Millisecond, -1 })
	held := full.Conn()
	require.NoError(t, held.Ping(ctx).Err())
	defer func() { require.NoError(t, held.Close()) }()
	ended := open(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	ended.AddHook(hookOf(func(ctx context.Context, _ redis.Cmder) (context.Context, error) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx, nil
	}))
	refused := open(func(*redis.Options) {})
	refused.AddHook(hookOf(func(ctx context.Context, _ redis.Cmder) (context.Context, error) { return ctx, errTest }))
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nobody}, MaxRedirects: 1, DialerRetries: 1})
	defer func() { require.NoError(t, cluster.Close()) }()

	for what, c := range map[string]struct {
		rdb  redis.UniversalClient
		says string
		is   error
	}{
		"connection refused": {open(func(o *redis.Options) { o.Addr = nobody }), "connection refused", nil},
		"no such cluster":    {cluster, "connection refused", nil},
		"wrong password":     {open(func(o *redis.Options) { o.Username, o.Password = "app", "wrong" }), "WRONGPASS", nil},
		"no TLS there":       {open(noTLS), "", nil},
		"pool timeout":       {full, "pool timeout", redis.ErrPoolTimeout},
		"context":            {ended, "canceled", context.Canceled},
		"a hook says no":     {refused, errTest.Error(), errTest},
	} {
		sent := &seriesLog{}
		c.rdb.AddHook(sent)
		for how, client := range map[string]*delayq.Client{"alone": delayq.NewClient(c.rdb), "with replicas": delayq.NewClient(c.rdb, delayq.WaitReplicas(1, time.Millisecond))} {
			if how == "with replicas" && (what == "a hook says no" || what == "context" || what == "pool timeout") {
				continue // go-redis has other hooks and a pool of its own for pipelines
			}
			before := sent.calls()
			var errs [4]error
			_, errs[0] = client.Enqueue(ctx, "topic", "x", nil)
			_, errs[1] = client.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "topic", ID: "x"}})
			_, errs[2] = client.Dequeue(ctx, "topic", "x")
			errs[3] = client.Pause(ctx, "topic", delayq.Pause{})
			for i, err := range errs {
				require.Error(t, err, "%s, %s, %d", what, how, i)
				require.NotErrorIs(t, err, delayq.ErrUnknownOutcome, "%s, %s, %d", what, how, i)
				require.ErrorContains(t, err, c.says, "%s, %s, %d", what, how, i)
				if c.is != nil {
					require.ErrorIs(t, err, c.is, "%s, %s, %d", what, how, i)
				}
			}
			require.Less(t, len(sent.since(before)), len(errs),
				"%s, %s: nothing of a call can still arrive, so a later one uses its series", what, how)
		}
	}
	require.Zero(t, admin.Exists(ctx, "delayq:{topic}:pool").Val())
}

// A seriesLog notes the receipts of the calls of scripts.
type seriesLog struct{ series []string }

func (l *seriesLog) calls() int { return len(l.series) }

// since returns the series of the calls after the first n.
func (l *seriesLog) since(n int) map[string]bool {
	found := make(map[string]bool)
	for _, one := range l.series[n:] {
		found[one] = true
	}
	return found
}

func (l *seriesLog) note(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		for _, word := range cmd.Args() {
			if key, ok := word.(string); ok && strings.HasPrefix(key, "delayq:{topic}:receipt:") {
				l.series = append(l.series, key)
			}
		}
	}
}

func (*seriesLog) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *seriesLog) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.note(cmd)
		return next(ctx, cmd)
	}
}

func (l *seriesLog) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		l.note(cmds...)
		return next(ctx, cmds)
	}
}

var errTest = errors.New("not today")

// A Redis that wants a password says so in a way that few understand: the hint is in the error.
func TestRedisThatWantsAPassword(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", "secret").Err())
	rdb := redis.NewClient(rs.Options())
	defer func() { require.NoError(t, rdb.Close()) }()
	client := delayq.NewClient(rdb)
	_, err := client.Enqueue(t.Context(), "topic", "x", nil)
	_, inspected := delayq.NewInspector(rdb).Stats(t.Context(), "topic")
	server := delayq.NewServer(rdb, delayq.FailFast(time.Second), delayq.Logger(slog.New(slog.DiscardHandler)))
	for i := range 20 { // SADD has more than ten words
		server.HandlerFunc(fmt.Sprint("topic", i), func(context.Context, *delayq.Job) error { return nil })
	}
	served := server.Run(t.Context())
	require.ErrorIs(t, served, delayq.ErrRedisAway)
	for _, err := range []error{err, inspected, served} {
		require.ErrorContains(t, err, "set Password")
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", "").Err())
	_, err = client.Get(t.Context(), "topic", "x")
	require.ErrorIs(t, err, delayq.ErrNotFound)
}

// One that was written, and whose repetition by go-redis could not be, may have been carried out.
func TestRequestsThatAreSentOnce(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
		var down atomic.Bool
		f := &redistest.Fault{What: "first", Lose: true, After: func() { down.Store(true) }}
		o := redistest.Faulty(rdb, f)
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, errTest
			}
			return dial(ctx, network, addr)
		}
		o.MaxRetries = 3
		mine := redis.NewClient(o)
		defer func() { require.NoError(t, mine.Close()) }()
		client := delayq.NewClient(mine)
		job, err := client.Enqueue(t.Context(), "topic", "first", nil)
		require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
		require.ErrorIs(t, err, errTest)
		require.Equal(t, "first", job.ID)
		_, err = client.Enqueue(t.Context(), "topic", "second", nil)
		require.ErrorIs(t, err, errTest)
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
		down.Store(false)
		for id, want := range map[string]error{"first": nil, "second": delayq.ErrNotFound} {
			_, err := client.Get(t.Context(), "topic", id)
			require.Truef(t, errors.Is(err, want), "%s: %v", id, err)
		}
	})
}

// The error of a request that was not sent says nothing of the same request before it: jobs whose
// end may be known to Redis are told with the same number until there is an answer.
func TestUnsentRepetitionKeepsItsNumber(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
		var down atomic.Bool
		f := &redistest.Fault{What: fmt.Sprint(script.Ack.Digest), Lose: true, After: func() { down.Store(true) }}
		o := redistest.Faulty(rdb, f)
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, errTest
			}
			return dial(ctx, network, addr)
		}
		mine := redis.NewClient(o)
		defer func() { require.NoError(t, mine.Close()) }()
		var log queuetest.Logbook
		var told endings
		stop := serving(t, mine, &log, func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(&told))
		time.Sleep(time.Second)
		_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "topic", "x", nil)
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.True(t, f.Happened())
		down.Store(false)
		time.Sleep(5 * time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, 1, told.done.Load(), "Redis had taken it, and nobody has cancelled it")
		require.Zero(t, told.lost.Load())
	})
}

type endings struct{ done, lost atomic.Int64 }

func (o *endings) Done(delayq.RunEvent) { o.done.Add(1) }

func (o *endings) Cancelled(delayq.RunEvent) { o.lost.Add(1) }

func (o *endings) LeaseLost(delayq.RunEvent) { o.lost.Add(1) }
