package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// A real is a queue on a real Redis that the test may do anything to.
type real struct {
	*testing.T
	redis  *redistest.Server
	rdb    *redis.Client // patient: it tries again until Redis is back
	client *delayq.Client
	look   *delayq.Client // reads what has become of the jobs
	insp   *delayq.Inspector
	rec    queuetest.Recorder
	hooks  queuetest.HookLog
	log    queuetest.Logbook
	finish chan struct{} // lets the handler of the job "running" go on
}

func onRedis(t *testing.T, args ...string) *real {
	t.Helper()
	t.Parallel()
	r := &real{T: t, redis: redistest.Start(t, args...), finish: make(chan struct{})}
	r.rdb = r.redis.Client(t)
	r.client = delayq.NewClient(r.rdb)
	r.look, r.insp = r.client, delayq.NewInspector(r.rdb)
	return r
}

// serve runs a server whose job "running" waits for finish and heeds nothing else.
func (r *real) serve(rdb redis.UniversalClient, opts ...delayq.ServerOption) *queuetest.Running {
	r.Helper()
	opts = append([]delayq.ServerOption{r.log.To(), delayq.Hooks(&r.hooks), delayq.Drain(0)}, opts...)
	return queuetest.Serve(r.T, rdb, "delayq", "a", r.rec.Then(func(_ context.Context, job *delayq.Job) error {
		if job.ID == "running" {
			<-r.finish
		}
		return nil
	}), opts...)
}

func (r *real) enqueue(id string, opts ...delayq.JobOption) {
	r.Helper()
	queuetest.Until(r.T, func() bool {
		_, err := r.client.Enqueue(r.Context(), "a", id, nil, opts...)
		return err == nil || errors.Is(err, delayq.ErrDuplicate) // of a try whose answer was lost
	})
}

func (r *real) started(id string) bool { return len(r.rec.Of(id)) > 0 }

// requireOnce waits until the jobs are done, and makes sure that each was run once and nothing is
// left of any.
func (r *real) requireOnce(ids ...string) {
	r.Helper()
	queuetest.Until(r.T, func() bool {
		for _, id := range ids {
			if len(r.hooks.Of("Done", id)) == 0 {
				return false
			}
		}
		return true
	}, "not all of %v are done: %v", ids, r.rec.IDs())
	for _, id := range ids {
		require.Len(r, r.rec.Of(id), 1, "%s\n%s", id, strings.Join(r.log.With(), "\n"))
		require.Equal(r, 1, r.rec.Of(id)[0].Attempt, id)
		require.Empty(r, queuetest.StateOf(r.T, r.look, "a", id), id)
	}
	require.Zero(r, queuetest.CounterOf(r.T, r.insp, "a", "reclaimed"))
}

// still makes Redis leave all writes waiting, until goOn is called, and waits until the replica has
// those of before. Otherwise the server could extend a lease of which the replica does not hear:
// after the failover that is lost, and its job runs once more.
func (r *real) still(replica *redis.Client) (goOn func()) {
	r.Helper()
	require.NoError(r, r.rdb.Do(r.Context(), "CLIENT", "PAUSE", queuetest.Patience.Milliseconds(), "WRITE").Err())
	offset := func(rdb *redis.Client, field string) (n int64) {
		_, rest, found := strings.Cut(rdb.Info(r.Context(), "replication").Val(), field+":")
		require.True(r, found, field)
		_, err := fmt.Sscan(rest, &n)
		require.NoError(r, err)
		return n
	}
	written := offset(r.rdb, "master_repl_offset")
	queuetest.Until(r.T, func() bool { return offset(replica, "slave_repl_offset") >= written })
	return func() { require.NoError(r, r.rdb.Do(r.Context(), "CLIENT", "UNPAUSE").Err()) }
}

// Redis is killed while a handler runs, which ends during the outage. Its job is acked when Redis
// is back, and was run once; what fell due meanwhile runs then.
func TestRedisIsKilledAndRestarted(t *testing.T) {
	r := onRedis(t, redistest.AOF...)
	r.serve(r.rdb)
	r.enqueue("running")
	r.enqueue("due", delayq.ProcessIn(500*time.Millisecond))
	r.enqueue("later", delayq.ProcessIn(time.Second))
	queuetest.Until(t, func() bool { return r.started("running") })
	require.NoError(t, r.redis.Kill())
	queuetest.Until(t, func() bool { return len(r.log.With("level=ERROR", `msg="redis away"`)) > 0 })
	close(r.finish)
	require.False(t, r.started("due"), "this machine is too slow for the test")
	require.NoError(t, r.redis.Restart())
	r.requireOnce("running", "due", "later")
	queuetest.Until(t, func() bool { return len(r.log.With("level=INFO", `msg="redis back"`)) > 0 })
	r.enqueue("new")
	r.requireOnce("new")
}

// A connection that nobody answers on any more, and that does not break.
func TestRedisIsFrozenForAWhile(t *testing.T) {
	r := onRedis(t)
	opts := r.redis.Options()
	opts.ReadTimeout = 200 * time.Millisecond // a user may have set it
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	redistest.InRoles(t, rdb)
	r.serve(rdb)
	r.enqueue("running")
	r.enqueue("due", delayq.ProcessIn(200*time.Millisecond))
	queuetest.Until(t, func() bool { return r.started("running") })
	require.NoError(t, r.redis.Stop())
	queuetest.Until(t, func() bool { return len(r.log.With("level=ERROR", `msg="redis away"`)) > 0 })
	close(r.finish)
	queuetest.Until(t, func() bool { // it goes on trying
		n := 0
		for _, name := range []string{"promote", "ack"} {
			r.hooks.Mu.Lock()
			for _, e := range r.hooks.Scripts {
				if e.Name == name && e.Err != nil {
					n++
				}
			}
			r.hooks.Mu.Unlock()
		}
		return n >= 4
	})
	require.NoError(t, r.redis.Cont())
	r.requireOnce("running", "due")
	r.enqueue("new")
	r.requireOnce("new")
}

// Scripts vanish from Redis all the time, as they do with every failover. (J1)
func TestScriptsAreFlushedUnderLoad(t *testing.T) {
	r := onRedis(t)
	var failed atomic.Int64
	queuetest.Serve(t, r.rdb, "delayq", "a", r.rec.Then(func(_ context.Context, job *delayq.Job) error {
		switch {
		case strings.HasPrefix(job.ID, "fail") && job.Attempt == 1:
			return queuetest.ErrTest
		case strings.HasPrefix(job.ID, "snooze") && job.Due.Equal(job.EnqueuedAt):
			return delayq.Snooze(time.Millisecond)
		}
		return nil
	}), r.log.To(), delayq.Hooks(&r.hooks), delayq.Tick(20*time.Millisecond))
	end := make(chan struct{})
	var flusher, load sync.WaitGroup
	flusher.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				if r.rdb.ScriptFlush(context.WithoutCancel(t.Context())).Err() != nil {
					failed.Add(1)
				}
			}
		}
	})
	const each = 50
	for _, kind := range []string{"plain", "fail", "snooze", "cancelled"} {
		load.Go(func() {
			for i := range each {
				id := fmt.Sprint(kind, i)
				opts := []delayq.JobOption{delayq.Backoff(time.Millisecond, time.Millisecond)}
				if kind == "cancelled" {
					opts = append(opts, delayq.ProcessIn(time.Hour))
				}
				if _, err := r.client.Enqueue(t.Context(), "a", id, nil, opts...); err != nil {
					t.Error(err)
				}
				if kind == "cancelled" {
					if _, err := r.client.Dequeue(t.Context(), "a", id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	load.Wait()
	queuetest.Until(t, func() bool { return len(r.hooks.Of("Done")) == 3*each })
	close(end)
	flusher.Wait()
	require.Zero(t, failed.Load())
	require.Empty(t, r.log.With("NOSCRIPT"))
	require.Empty(t, r.log.With("level=ERROR"))
	for id, n := range r.rec.Times() {
		want := 2
		if strings.HasPrefix(id, "plain") {
			want = 1
		}
		require.Equal(t, want, n, id)
	}
}

// All connections are closed again and again, those that wait and that of the control channel as
// well.
func TestConnectionsAreKilled(t *testing.T) {
	r := onRedis(t)
	r.serve(r.rdb)
	var ids []string
	for i := range 100 {
		id := fmt.Sprint(i)
		ids = append(ids, id)
		r.enqueue(id, delayq.ProcessIn(time.Duration(i)*10*time.Millisecond))
		if i%5 == 0 {
			for _, kind := range []string{"normal", "pubsub"} {
				require.NoError(t, r.rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes").Err())
			}
		}
	}
	r.requireOnce(ids...)
}

// The master becomes a replica and answers READONLY on the connections that are there; new ones go
// to the server that was promoted. (J6)
func TestFailoverToAReplica(t *testing.T) {
	r := onRedis(t)
	second := redistest.Replica(t, r.redis)
	var addr atomic.Value
	addr.Store(r.redis.Addr())
	opts := r.redis.Options()
	opts.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) { // as a name or a proxy does
		return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
	}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	redistest.InRoles(t, rdb)
	r.client = delayq.NewClient(rdb)
	r.serve(rdb)
	r.enqueue("running")
	r.enqueue("due", delayq.ProcessIn(time.Hour)) // for a moment there are two masters: what falls due then runs on both
	queuetest.Until(t, func() bool { return r.started("running") })
	next := second.Client(t)
	goOn := r.still(next)
	host, port, err := net.SplitHostPort(second.Addr())
	require.NoError(t, err)
	require.NoError(t, next.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	require.NoError(t, r.rdb.Do(t.Context(), "REPLICAOF", host, port).Err())
	addr.Store(second.Addr())
	goOn()
	r.look, r.insp = delayq.NewClient(next), delayq.NewInspector(next) // a connection to the old one that is only read from stays, and what it reads is behind
	require.NoError(t, r.look.Reschedule(t.Context(), "a", "due", delayq.ProcessIn(100*time.Millisecond)))
	close(r.finish)
	r.requireOnce("running", "due")
	r.enqueue("new")
	r.requireOnce("new")
	require.Equal(t, "3", next.HGet(t.Context(), "delayq:{a}:stats", "acked").Val(), "it is the promoted one that is asked")
}

// The master dies while a handler runs, and a Sentinel makes its replica the master: the client and
// the server find it by themselves. (A7)
func TestSentinelFailsOver(t *testing.T) {
	r := onRedis(t)
	second := redistest.Replica(t, r.redis)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterName,
		// One that is gone stands first. (J12)
		SentinelAddrs: append([]string{"127.0.0.1:1"}, redistest.Sentinels(t, r.redis, 3)...),
	})
	t.Cleanup(func() { _ = rdb.Close() })
	redistest.InRoles(t, rdb)
	r.client = delayq.NewClient(rdb)
	r.look, r.insp = r.client, delayq.NewInspector(rdb)
	r.serve(rdb)
	r.enqueue("running")
	r.enqueue("due", delayq.ProcessIn(time.Second))
	require.NoError(t, queuetest.ErrOf(r.client.Enqueue(t.Context(), "b", "x", nil, delayq.ProcessIn(time.Hour))))
	waits := await(t, r.client, "b", "x")
	waiter := func(rdb redis.Cmdable) func() bool {
		return func() bool { return rdb.HExists(t.Context(), "delayq:{b}:all:notes", "wx").Val() }
	}
	queuetest.Until(t, waiter(r.rdb))
	queuetest.Until(t, func() bool { return r.started("running") })
	r.still(second.Client(t)) // for ever

	require.NoError(t, r.redis.Kill())
	close(r.finish)
	r.requireOnce("running", "due")
	r.enqueue("new")
	r.requireOnce("new")

	// The failover can lose the registration of a waiter, which registers again.
	require.NoError(t, second.Client(t).HDel(t.Context(), "delayq:{b}:all:notes", "wx").Err())
	queuetest.Until(t, waiter(second.Client(t)))
	require.NoError(t, queuetest.ErrOf(r.client.Dequeue(t.Context(), "b", "x")))
	require.ErrorIs(t, waits.get().err, delayq.ErrCancelled)
	require.Equal(t, "3", second.Client(t).HGet(t.Context(), "delayq:{a}:stats", "acked").Val(), "it is the promoted one that is asked")
}

// While Redis reads its data after a restart it answers LOADING. (J2)
func TestRedisThatLoads(t *testing.T) {
	if redistest.Major(t) < 7 {
		t.Skip("this Redis answers nothing until it has loaded 2 MiB")
	}
	r := onRedis(t, append([]string{"--key-load-delay", "1500", "--loading-process-events-interval-bytes", "1024"}, redistest.AOF...)...)
	_, err := r.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 1000 {
			p.Set(t.Context(), fmt.Sprint("ballast-", i), strings.Repeat("x", 1024), 0)
		}
		return nil
	})
	require.NoError(t, err)
	// Redis answers while it loads the keys of a base file, and not between the commands of an
	// append-only one.
	require.NoError(t, r.rdb.BgRewriteAOF(t.Context()).Err())
	queuetest.Until(t, func() bool {
		return strings.Contains(r.rdb.Info(t.Context(), "persistence").Val(), "aof_rewrite_in_progress:0")
	})
	r.serve(r.rdb)
	r.enqueue("running")
	r.enqueue("due", delayq.ProcessIn(200*time.Millisecond))
	queuetest.Until(t, func() bool { return r.started("running") })
	require.NoError(t, r.redis.Kill())
	close(r.finish)
	require.NoError(t, r.redis.Restart())
	r.requireOnce("running", "due")
	loading := 0
	r.hooks.Mu.Lock()
	for _, e := range r.hooks.Scripts {
		if e.Err != nil && strings.Contains(e.Err.Error(), "LOADING") {
			loading++
		}
	}
	r.hooks.Mu.Unlock()
	if loading == 0 {
		t.Log("Redis was ready before anybody asked it: the test has shown less than it should")
	}
}

// Ten topics wait for jobs and none of them takes a connection from the application, whose pool has
// two. (J8)
func TestSmallPoolOfTheApplication(t *testing.T) {
	r := onRedis(t)
	opts := r.redis.Options()
	opts.PoolSize, opts.PoolTimeout, opts.ReadTimeout = 2, time.Second, 2*time.Second
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	redistest.InRoles(t, rdb)
	const topics, each = 10, 20
	block := make(chan struct{})
	queuetest.ServeMany(t, rdb, "delayq", func(s *delayq.Server) {
		for i := range topics {
			s.HandlerFunc(fmt.Sprint(i), func(ctx context.Context, job *delayq.Job) error {
				if job.ID == "0" { // keeps its lease for a few lengths
					select {
					case <-block:
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				return rdb.Ping(ctx).Err()
			})
		}
	}, delayq.Lease(3*time.Second), delayq.Hooks(&r.hooks), r.log.To())
	client := delayq.NewClient(rdb)
	var load sync.WaitGroup
	for i := range topics {
		load.Go(func() {
			for j := range each {
				if _, err := client.Enqueue(t.Context(), fmt.Sprint(i), fmt.Sprint(j), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	load.Wait()
	queuetest.Until(t, func() bool { return len(r.hooks.Of("Done")) == topics*(each-1) })
	queuetest.Until(t, func() bool { return r.hooks.Calls("extend") >= 4*topics })
	close(block)
	queuetest.Until(t, func() bool { return len(r.hooks.Of("Done")) == topics*each })
	require.Empty(t, r.hooks.Of("LeaseLost"))
	require.Empty(t, r.hooks.Of("Retried"))
	require.Empty(t, r.log.With("level=ERROR"))
}

// Everything in Redis is deleted. What was there is gone, and what comes is served.
func TestRedisIsFlushed(t *testing.T) {
	r := onRedis(t)
	cause := make(chan error, 1)
	queuetest.Serve(t, r.rdb, "delayq", "a", r.rec.Then(func(ctx context.Context, job *delayq.Job) error {
		if job.ID == "running" {
			<-ctx.Done()
			cause <- context.Cause(ctx)
		}
		return nil
	}), delayq.Hooks(&r.hooks), delayq.Lease(3*time.Second), r.log.To())
	r.enqueue("running")
	r.enqueue("later", delayq.ProcessIn(time.Hour))
	queuetest.Until(t, func() bool { return r.started("running") })
	require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
	require.Equal(t, delayq.ErrLeaseLost, queuetest.Receive(t, cause))
	queuetest.Until(t, func() bool {
		return len(r.log.With("level=ERROR", `msg="topic lost data"`, "topic=a", "Redis has lost jobs")) == 1
	})
	require.Empty(t, r.log.With(`msg="job cancelled"`))
	for i := range 10 {
		r.enqueue(fmt.Sprint(i))
		r.requireOnce(fmt.Sprint(i))
	}
	require.Empty(t, queuetest.StateOf(t, r.client, "a", "later"))
}

// Redis is full and refuses to store anything. Jobs that are there are carried to their end all the
// same.
func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]func(i int) []delayq.JobOption{
		"plain jobs": func(int) []delayq.JobOption { return nil },
		"jobs with keys, and plain ones": func(i int) []delayq.JobOption {
			if i%2 == 0 {
				return nil
			}
			return []delayq.JobOption{delayq.Key(fmt.Sprint(i % 5))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := onRedis(t)
			queuetest.Serve(t, r.rdb, "delayq", "a", r.rec.Then(func(_ context.Context, job *delayq.Job) error {
				kind, _, _ := strings.Cut(job.ID, "-")
				switch {
				case kind == "fail" && job.Attempt == 1:
					return queuetest.ErrTest
				case kind == "bury":
					return delayq.Permanent(queuetest.ErrTest)
				case kind == "snooze" && job.Due.Equal(job.EnqueuedAt):
					return delayq.Snooze(time.Millisecond)
				}
				return nil
			}), delayq.Hooks(&r.hooks), r.log.To())
			require.NoError(t, r.client.Pause(t.Context(), "a", delayq.Pause{}))
			for i := range 50 {
				for _, kind := range []string{"plain", "fail", "bury", "snooze"} {
					r.enqueue(fmt.Sprint(kind, "-", i), append(key(i), delayq.Backoff(time.Millisecond, time.Millisecond))...)
				}
				r.enqueue(fmt.Sprint("later-", i), append(key(i), delayq.ProcessIn(500*time.Millisecond))...)
			}
			require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "100kb").Err())
			_, err := r.client.Enqueue(t.Context(), "a", "refused", nil, key(1)...)
			require.ErrorContains(t, err, "OOM")
			require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
			require.NoError(t, r.client.Resume(t.Context(), "a", ""))
			queuetest.Until(t, func() bool { return len(r.hooks.Of("Done")) == 200 && len(r.hooks.Of("Buried")) == 50 })
			require.Empty(t, queuetest.StateOf(t, r.client, "a", "refused"))
			state, err := r.client.Dequeue(t.Context(), "a", "bury-7")
			require.NoError(t, err)
			require.Equal(t, delayq.StateDead, state)
			require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
			r.enqueue("refused")
			queuetest.Until(t, func() bool { return len(r.hooks.Of("Done", "refused")) == 1 })
		})
	}
}

func TestLeasesAreExtendedWhenRedisIsFull(t *testing.T) {
	r := onRedis(t)
	r.serve(r.rdb, delayq.Lease(3*time.Second))
	r.enqueue("running")
	queuetest.Until(t, func() bool { return r.started("running") })
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "100kb").Err())
	before := r.hooks.Calls("extend")
	queuetest.Until(t, func() bool { return r.hooks.Calls("extend") >= before+4 })
	close(r.finish)
	r.requireOnce("running")
}

// A step that Redis has no memory for fails with a clear error. Progress is dropped.
func TestStepWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	f := queuetest.NewFixture(t, rdb)
	limit := func(bytes string) { require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", bytes).Err()) }
	ended := make(chan error, 3)
	server := queuetest.NewServer(rdb, f.Prefix)
	server.HandlerFunc("topic", func(ctx context.Context, job *delayq.Job) error {
		step := func(name string) {
			_, err := delayq.Step(ctx, job, name, func(context.Context, string) (int, error) { return 1, nil })
			ended <- err
		}
		limit("1")
		require.NoError(t, job.Progress(1, 2, "half"))
		step("x")
		step("x")
		limit("0")
		step("x")
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- server.Run(ctx) }()
	f.Enqueue("1")
	for range 2 {
		require.ErrorContains(t, <-ended, `step "x" topic "topic" job "1": its result is not saved: the memory of Redis is full (OOM)`)
	}
	require.NoError(t, <-ended)
	stop()
	require.NoError(t, <-over)
}

func TestServerStartsWhenRedisIsFull(t *testing.T) {
	r := onRedis(t)
	r.enqueue("1")
	require.NoError(t, r.rdb.ConfigSet(t.Context(), "maxmemory", "100kb").Err())
	r.serve(r.rdb)
	queuetest.Until(t, func() bool { return len(r.hooks.Of("Done", "1")) == 1 })
}
