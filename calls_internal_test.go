package delayq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// (J13)
func TestJudgeOfRedis(t *testing.T) {
	const good = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n"
	for name, c := range map[string]struct {
		info    string
		refused bool
		level   string // of the one line that is logged; none if empty
		says    string
	}{
		"good":           {info: good},
		"says nothing":   {info: ""},
		"6.2.0":          {info: strings.Replace(good, "7.0.15", "6.2.0", 1)},
		"6.10.1":         {info: strings.Replace(good, "7.0.15", "6.10.1", 1)},
		"10.0.0":         {info: strings.Replace(good, "7.0.15", "10.0.0", 1)},
		"dev":            {info: strings.Replace(good, "7.0.15", "255.255.255", 1)},
		"valkey":         {info: strings.Replace(good, "redis_version:7.0.15", "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1", 1)},
		"6.1.9":          {info: strings.Replace(good, "7.0.15", "6.1.9", 1), refused: true},
		"6.0.16":         {info: strings.Replace(good, "7.0.15", "6.0.16", 1), refused: true},
		"5.0.7":          {info: strings.Replace(good, "7.0.15", "5.0.7", 1), refused: true},
		"2.8":            {info: strings.Replace(good, "7.0.15", "2.8", 1), refused: true},
		"odd":            {info: strings.Replace(good, "7.0.15", "six.two", 1), refused: true},
		"evicts":         {info: strings.Replace(good, "noeviction", "allkeys-lru", 1), level: "ERROR", says: "allkeys-lru"},
		"evicts some":    {info: strings.Replace(good, "noeviction", "volatile-ttl", 1), level: "ERROR", says: "volatile-ttl"},
		"no persistence": {info: strings.Replace(good, "aof_enabled:1", "aof_enabled:0", 1), level: "WARN", says: "append-only"},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			s := &serve.Server{Log: slog.New(slog.NewTextHandler(&log, nil))}
			err := s.Judge(script.ParseInfo(c.info))
			if c.refused {
				require.ErrorIs(t, err, ErrRedisVersion)
				return
			}
			require.NoError(t, err)
			if c.level == "" {
				require.Empty(t, log.String())
				return
			}
			require.Equal(t, 1, strings.Count(log.String(), "\n"))
			require.Contains(t, log.String(), "level="+c.level)
			require.Contains(t, log.String(), c.says)
		})
	}
}

// stepped is the same instant on a machine whose wall clock was set forward by so many seconds, or
// back: its monotonic reading is left alone. It writes into the first word of a time.Time: a flag,
// 33 bits of seconds, 30 bits of nanoseconds.
func stepped(t time.Time, seconds int64) time.Time {
	word := (*uint64)(unsafe.Pointer(&t))
	*word += uint64(seconds) << 30
	return t
}

// Somebody sets the wall clock of the machine while a server runs, by an hour or by years: what it
// takes for Redis's time, and for the ends of its leases, stays as it was. (E3, E4)
func TestStepOfTheLocalClockChangesNothing(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	received := sent.Add(10 * time.Millisecond)
	const ms = 1_700_000_000_000
	for _, step := range []int64{-3600, 3600, 24 * 3600, -400 * 24 * 3600} {
		later := received.Add(5 * time.Second)
		wrong := stepped(later, step)
		require.Equal(t, step, wrong.Unix()-later.Unix(), "the wall clock is stepped")
		require.Zero(t, wrong.Sub(later), "the monotonic one is not")

		var c serve.Clock
		c.Read(ms, sent, received)
		require.True(t, msTime(ms+5000).Equal(c.At(wrong)), "jobs would be early or late by the step")
		require.EqualValues(t, ms+5010+5+1, c.Latest(wrong), "counted from the sending")
		require.EqualValues(t, ms+5000-5-1, c.Earliest(wrong), "counted from the arrival")

		// A lease of 8 s that was asked for at sent.
		held := &run.Holdings{}
		r := &run.Run{ID: "x", Until: sent.Add(8 * time.Second)}
		held.Add(r, sent)
		require.Equal(t, []*run.Run{r}, held.Extendable(wrong), "given up too early")
		require.NoError(t, r.Lost)
		require.Empty(t, held.Extendable(stepped(sent.Add(8*time.Second), step)), "kept too long")
		require.ErrorIs(t, r.Lost, ErrLeaseLost)
	}
}

// What a clock says of Redis's is true: whatever the delays on the way, though the two do not go at
// quite the same rate, and after Redis's was set. The lower bound never falls unless Redis's clock
// was set back.
func TestClockBounds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	begin := time.Now()
	for game := range 200 {
		rate := 1 + (2*r.Float64()-1)/serve.RateError
		offset := time.Duration(r.Int64N(int64(time.Hour)))
		local := time.Duration(0)
		redis := func(local time.Duration) time.Duration { return offset + time.Duration(float64(local)*rate) }
		var c serve.Clock
		var last int64
		slow := time.Duration(1 + r.Int64N(int64(500*time.Millisecond)))
		for range 300 {
			sent := local
			asked := sent + time.Duration(r.Int64N(int64(slow)))
			received := asked + time.Duration(r.Int64N(int64(slow)))
			c.Read(redis(asked).Milliseconds(), begin.Add(sent), begin.Add(received))
			local = received + time.Duration(r.Int64N(int64(2*time.Second)))
			at, truth := begin.Add(local), redis(local).Milliseconds()
			require.LessOrEqual(t, c.Earliest(at), truth, "game %d", game)
			require.GreaterOrEqual(t, c.Latest(at), truth, "game %d", game)
			require.GreaterOrEqual(t, c.Earliest(at), last, "game %d: it falls", game)
			require.LessOrEqual(t, c.Latest(at)-c.Earliest(at), 4*slow.Milliseconds()+20, "game %d: of no use", game)
			last = c.Earliest(at)
		}
		require.Zero(t, c.Sets())
		for _, step := range []time.Duration{-time.Minute, time.Minute} {
			offset += step
			c.Read(redis(local).Milliseconds(), begin.Add(local), begin.Add(local+slow))
			local += slow
			truth := redis(local).Milliseconds()
			require.LessOrEqual(t, c.Earliest(begin.Add(local)), truth, "after a step of %v", step)
			require.GreaterOrEqual(t, c.Latest(begin.Add(local)), truth, "after a step of %v", step)
			require.InDelta(t, truth, c.At(begin.Add(local)).UnixMilli(), float64(slow.Milliseconds())+2)
		}
		require.Equal(t, 1, c.Sets(), "set back once")
	}
}

func TestWaitReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	rdb, copied := master.Client(t), replica.Client(t)
	ctx := t.Context()
	h := NewHand(t, rdb, "delayq", "topic")
	client := NewClient(rdb, WaitReplicas(1, 2*time.Second))
	onReplica := func(id string) bool { return copied.HExists(ctx, h.keys.Pool, id).Val() }

	for i := range 20 {
		id := fmt.Sprint(i)
		_, err := client.Enqueue(ctx, "topic", id, nil, ProcessIn(time.Hour))
		require.NoError(t, err)
		require.True(t, onReplica(id), "at the moment when Enqueue returns")
	}
	_, err := client.Enqueue(ctx, "topic", "0", nil)
	require.ErrorIs(t, err, ErrDuplicate)
	require.NotErrorIs(t, err, ErrNotReplicated)
	job, err := client.Enqueue(ctx, "topic", "0", []byte("new"), Replace())
	require.NoError(t, err)
	require.Contains(t, copied.HGet(ctx, h.keys.Pool, "0").Val(), job.Nonce())

	// The script is sent anew when Redis has forgotten it, with the waiting behind it.
	require.NoError(t, rdb.ScriptFlush(ctx).Err())
	_, err = client.Enqueue(ctx, "topic", "after the flush", nil)
	require.NoError(t, err)
	require.True(t, onReplica("after the flush"))

	// A replica that is behind confirms nothing. The job is stored all the same, and the caller
	// gets both.
	require.NoError(t, replica.Stop())
	hasty := NewClient(rdb, WaitReplicas(1, time.Millisecond))
	job, err = hasty.Enqueue(ctx, "topic", "unconfirmed", nil)
	require.ErrorIs(t, err, ErrNotReplicated)
	require.ErrorContains(t, err, "0 of 1 within 1ms")
	require.NotErrorIs(t, err, ErrUnknownOutcome)
	require.Equal(t, job.Nonce(), h.info("unconfirmed").Nonce())
	results, err := hasty.EnqueueBatch(ctx, []NewJob{{Topic: "topic", ID: "a"}, {Topic: "topic", ID: "unconfirmed"}, {Topic: ""}})
	require.ErrorIs(t, err, ErrNotReplicated)
	require.ErrorIs(t, results[0].Err, ErrNotReplicated)
	require.Equal(t, "a", results[0].Job.ID)
	require.ErrorIs(t, results[1].Err, ErrDuplicate)
	require.Nil(t, results[1].Job)
	require.ErrorIs(t, results[2].Err, ErrInvalid)
	require.NoError(t, replica.Cont())
	_, err = client.Enqueue(ctx, "topic", "back", nil)
	require.NoError(t, err)
	require.True(t, onReplica("back"))
}

func TestWaitForMoreReplicasThanThereAre(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.Replica(t, master)
	rdb := master.Client(t)
	job, err := NewClient(rdb, WaitReplicas(2, 50*time.Millisecond)).Enqueue(t.Context(), "topic", "x", nil)
	require.ErrorIs(t, err, ErrNotReplicated)
	require.Regexp(t, `[01] of 2 within 50ms`, err.Error())
	require.Equal(t, "x", job.ID)
}

// Asking which key has a wrong type waits for no replica. (J11)
func TestWaitReplicasAndAWrongType(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	require.NoError(t, rdb.Set(t.Context(), h.keys.Bucket, "text", 0).Err())
	counted := redistest.As(t, rdb, "producer", h.prefix(), true)
	var waits waitCount
	counted.AddHook(&waits)
	_, err := NewClient(counted, Prefix(h.prefix()), WaitReplicas(1, time.Millisecond)).Enqueue(t.Context(), "topic", "x", nil, ProcessIn(time.Hour))
	require.ErrorContains(t, err, h.keys.Bucket)
	require.LessOrEqual(t, waits.n, 2, "one for the digest and one for the text of the script")
}

// A waitCount counts the WAITs that are sent.
type waitCount struct{ n int }

func (*waitCount) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*waitCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (w *waitCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "wait" {
				w.n++
			}
		}
		return next(ctx, cmds)
	}
}

// A scriptLog is a hook that notes the calls of scripts.
type scriptLog struct {
	mu     sync.Mutex
	events []ScriptEvent
}

func (l *scriptLog) Script(e ScriptEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// stored gives how many jobs each call of enqueue or replace was about.
func (l *scriptLog) stored() (list []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Name == script.Enqueue.Name || e.Name == script.Replace.Name {
			list = append(list, e.Jobs)
		}
	}
	return list
}

func TestWaitReplicasWithoutAny(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	var log scriptLog
	client := NewClient(rdb, Prefix(h.prefix()), WaitReplicas(1, time.Millisecond), Hooks(&log))
	for range 2 {
		_, err := client.Enqueue(t.Context(), "topic", "x", nil, Replace())
		require.ErrorIs(t, err, ErrNotReplicated)
	}
	require.Equal(t, []int{1, 1}, log.stored(), "not sent again: it is stored")
	h.TakeOne("x")
}

// The reply is lost after the script and the waiting were done.
func TestWaitReplicasWithALostReply(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.Replica(t, master)
	rdb := master.Client(t)
	h := NewHand(t, rdb, "delayq", "topic")
	f := &redistest.Fault{Lose: true, What: "lossy-id", After: func() { require.Equal(t, "o", h.Ack(h.TakeOne("lossy-id"))) }}
	require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(script.Enqueue.Text)).Err())
	bad := redis.NewClient(redistest.Faulty(rdb, f))
	defer func() { require.NoError(t, bad.Close()) }()
	redistest.InRoles(t, bad)
	_, err := NewClient(bad, WaitReplicas(1, 2*time.Second)).Enqueue(t.Context(), "topic", "lossy-id", nil)
	require.NoError(t, err)
	require.True(t, f.Happened())
	require.Empty(t, h.Take(10, time.Minute), "it runs once")
}

// A Redis that does not let the client WAIT confirms nothing, and the error says why.
func TestWaitReplicasWithoutTheRight(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	admin := master.Client(t)
	ctx := t.Context()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-wait").Err())
	o := master.Options()
	o.Username, o.Password = "limited", "any"
	rdb := redis.NewClient(o)
	defer func() { require.NoError(t, rdb.Close()) }()
	job, err := NewClient(rdb, WaitReplicas(1, time.Millisecond)).Enqueue(ctx, "topic", "x", nil)
	require.ErrorIs(t, err, ErrNotReplicated)
	require.ErrorContains(t, err, "NOPERM")
	require.Equal(t, "x", job.ID)
}

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
		for how, client := range map[string]*Client{"alone": NewClient(c.rdb), "with replicas": NewClient(c.rdb, WaitReplicas(1, time.Millisecond))} {
			if how == "with replicas" && (what == "a hook says no" || what == "context" || what == "pool timeout") {
				continue // go-redis has other hooks and a pool of its own for pipelines
			}
			var errs [4]error
			_, errs[0] = client.Enqueue(ctx, "topic", "x", nil)
			_, errs[1] = client.EnqueueBatch(ctx, []NewJob{{Topic: "topic", ID: "x"}})
			_, errs[2] = client.Dequeue(ctx, "topic", "x")
			errs[3] = client.Pause(ctx, "topic", Pause{})
			for i, err := range errs {
				require.Error(t, err, "%s, %s, %d", what, how, i)
				require.NotErrorIs(t, err, ErrUnknownOutcome, "%s, %s, %d", what, how, i)
				require.ErrorContains(t, err, c.says, "%s, %s, %d", what, how, i)
				if c.is != nil {
					require.ErrorIs(t, err, c.is, "%s, %s, %d", what, how, i)
				}
			}
			require.NotEmpty(t, client.series.Free, "%s, %s: nothing of the call can still arrive", what, how)
		}
	}
	require.Zero(t, admin.Exists(ctx, "delayq:{topic}:pool").Val())
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
	client := NewClient(rdb)
	_, err := client.Enqueue(t.Context(), "topic", "x", nil)
	_, inspected := inspectorOf(client).Stats(t.Context(), "topic")
	server := NewServer(rdb, FailFast(time.Second), Logger(slog.New(slog.DiscardHandler)))
	for i := range 20 { // SADD has more than ten words
		server.HandlerFunc(fmt.Sprint("topic", i), func(context.Context, *Job) error { return nil })
	}
	served := server.Run(t.Context())
	require.ErrorIs(t, served, ErrRedisAway)
	for _, err := range []error{err, inspected, served} {
		require.ErrorContains(t, err, "set Password")
		require.NotErrorIs(t, err, ErrUnknownOutcome)
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", "").Err())
	_, err = client.Get(t.Context(), "topic", "x")
	require.ErrorIs(t, err, ErrNotFound)
}

// One that was written, and whose repetition by go-redis could not be, may have been carried out.
func TestRequestsThatAreSentOnce(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, LoadScripts(t.Context(), rdb))
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
		client := NewClient(mine)
		job, err := client.Enqueue(t.Context(), "topic", "first", nil)
		require.ErrorIs(t, err, ErrUnknownOutcome)
		require.ErrorIs(t, err, errTest)
		require.Equal(t, "first", job.ID)
		_, err = client.Enqueue(t.Context(), "topic", "second", nil)
		require.ErrorIs(t, err, errTest)
		require.NotErrorIs(t, err, ErrUnknownOutcome)
		down.Store(false)
		for id, want := range map[string]error{"first": nil, "second": ErrNotFound} {
			_, err := client.Get(t.Context(), "topic", id)
			require.Truef(t, errors.Is(err, want), "%s: %v", id, err)
		}
	})
}

// A script that Redis does not know was not carried out, so only its text counts. After two
// writings of its digest one of them may have been.
func TestRequestCountsItsWritings(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	for n, want := range map[int]bool{0: true, 1: true, 2: false} {
		r := &script.Request{Keys: 7}
		for range n {
			word, err := r.MarshalBinary()
			require.NoError(t, err)
			require.Equal(t, "7", string(word))
		}
		r.Answered() // NOSCRIPT
		require.Equal(t, want, script.IsUndone(r.Judge(refused)), "%d writings", n)
	}
	require.Equal(t, "7", fmt.Sprint(&script.Request{Keys: 7}))
}

// The error of a request that was not sent says nothing of the same request before it: jobs whose
// end may be known to Redis are told with the same number until there is an answer.
func TestUnsentRepetitionKeepsItsNumber(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, LoadScripts(t.Context(), rdb))
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
		var log lines
		var told endings
		stop := serving(t, mine, &log, func(context.Context, *Job) error { return nil }, Hooks(&told))
		time.Sleep(time.Second)
		_, err := NewClient(rdb).Enqueue(t.Context(), "topic", "x", nil)
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

func (o *endings) Done(RunEvent)      { o.done.Add(1) }
func (o *endings) Cancelled(RunEvent) { o.lost.Add(1) }
func (o *endings) LeaseLost(RunEvent) { o.lost.Add(1) }

// A server on a Cluster remembers its connections to all nodes, and closes them when it stops.
func TestConnectionsToAClusterAreRemembered(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	require.Nil(t, rdb.Options().Dialer)
	s := NewServer(rdb, Prefix(redistest.Prefix(t)))
	s.HandlerFunc("a", func(context.Context, *Job) error { return nil })
	require.NoError(t, s.begin())
	defer s.engine.Close()
	calls, ok := s.engine.Calls.(*redis.ClusterClient)
	require.True(t, ok)
	require.NoError(t, calls.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.Ping(ctx).Err()
	}))
	require.GreaterOrEqual(t, len(s.engine.Dials[0].Open()), 3)
	s.engine.Close()
	require.Empty(t, s.engine.Dials[0].Open())
}

// What became of a call that was answered too late is unknown.
func TestSlowAnswerIsUncertain(t *testing.T) {
	t.Parallel()
	var p link.Pulse
	began := time.Now()
	require.NoError(t, p.Feel("q:{a}:ready", began, nil))
	slow := p.Feel("q:{a}:pool", began, context.DeadlineExceeded)
	require.True(t, link.Slowly(slow))
	require.False(t, script.Certain(slow))
}

// The first cause of an outage is the one that is logged, and not the closing of connections that
// it led to.
func TestFirstCauseOfAnOutage(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	lines := func(parts ...string) (n int) {
		for line := range strings.Lines(log.String()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				n++
			}
		}
		return n
	}
	cause, closed := errors.New("does not work"), fmt.Errorf("read tcp: %w", net.ErrClosed)
	o := &serve.Outage{Log: slog.New(slog.NewTextHandler(&log, nil)), Lost: func(error) {}}
	o.Failed("take", cause)
	o.Failed("promote", closed)
	o.Answered("take")
	o.Answered("promote")
	require.Equal(t, 1, lines("redis back"))
	o.Failed("extend", closed) // what was closed then is met only now
	require.Equal(t, 2, lines("redis away"))
	require.Equal(t, 2, lines("redis away", cause.Error()))
	o.Answered("extend")

	// The line is there before connections are closed.
	o = &serve.Outage{Log: slog.New(slog.NewTextHandler(&log, nil)), Lost: func(error) { require.Equal(t, 3, lines("redis away")) }}
	o.Failed("take", cause)
}
