package delayq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/explain"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
)

const hundredYears = 100 * 365 * 24 * time.Hour

func TestJobOptionsChangeWhatTheySay(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(4_000_000_000_000)
	for name, c := range map[string]struct {
		opt  JobOption
		want func(o *jobOptions)
	}{
		"ProcessAt": {ProcessAt(at), func(o *jobOptions) { o.DueAt, o.due = 4_000_000_000_000, true }},
		"ProcessIn": {ProcessIn(time.Second), func(o *jobOptions) { o.DueIn, o.due = 1000, true }},
		"ProcessAtEach": {ProcessAtEach(at, at.Add(1)), func(o *jobOptions) {
			o.DueAt, o.Plan = 4_000_000_000_000, &record.Plan{Times: []int64{4_000_000_000_000, 4_000_000_000_001}}
		}},
		"Retry":       {Retry(7), func(o *jobOptions) { o.Retry = 7 }},
		"Retry(0)":    {Retry(0), func(o *jobOptions) { o.Retry = 0 }},
		"Backoff":     {Backoff(time.Second, time.Minute), func(o *jobOptions) { o.BackoffMin, o.BackoffMax = 1000, 60_000 }},
		"Timeout":     {Timeout(1500 * time.Microsecond), func(o *jobOptions) { o.Timeout = 2 }},
		"ExpireAt":    {ExpireAt(at), func(o *jobOptions) { o.ExpireAt = 4_000_000_000_000 }},
		"ExpireIn":    {ExpireIn(time.Second), func(o *jobOptions) { o.ExpireIn = 1000 }},
		"Retention":   {Retention(time.Second), func(o *jobOptions) { o.Retention = 1000 }},
		"Header":      {Header("k", "v"), func(o *jobOptions) { o.Headers = map[string]string{"k": "v"} }},
		"Replace":     {Replace(), func(o *jobOptions) { o.replace = commit.ReplaceAny }},
		"ReplaceDead": {ReplaceDead(), func(o *jobOptions) { o.replace = commit.ReplaceDead }},
		"Latest":      {Latest(), func(o *jobOptions) { o.replace = commit.ReplaceLatest }},
		"Debounce": {Debounce(time.Second, time.Minute), func(o *jobOptions) {
			o.replace, o.wait, o.longest, o.DueIn = commit.ReplaceDebounce, 1000, 60_000, 1000
		}},
		"UniqueFor": {UniqueFor(time.Minute), func(o *jobOptions) { o.window = 60_000 }},
	} {
		want := defaultJob
		c.want(&want)
		require.NotEqual(t, defaultJob, want, name)
		got, err := newJobOptions([]JobOption{c.opt})
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	got, err := newJobOptions(nil)
	require.NoError(t, err)
	require.Equal(t, defaultJob, got)
}

func TestLaterJobOptionsWin(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(4_000_000_000_000)
	for name, c := range map[string]struct{ list, same []JobOption }{
		"due":     {[]JobOption{ProcessIn(time.Hour), ProcessAt(at)}, []JobOption{ProcessAt(at)}},
		"due in":  {[]JobOption{ProcessAt(at), ProcessIn(time.Hour)}, []JobOption{ProcessIn(time.Hour)}},
		"expire":  {[]JobOption{ExpireIn(time.Hour), ExpireAt(at)}, []JobOption{ExpireAt(at)}},
		"retry":   {[]JobOption{Retry(1), Retry(2)}, []JobOption{Retry(2)}},
		"header":  {[]JobOption{Header("k", "1"), Header("k", "2")}, []JobOption{Header("k", "2")}},
		"backoff": {[]JobOption{Backoff(1e6, 1e9), Backoff(1e7, 1e8)}, []JobOption{Backoff(1e7, 1e8)}},
	} {
		got, err := newJobOptions(c.list)
		require.NoError(t, err, name)
		want, err := newJobOptions(c.same)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
}

// An option can be kept and given to many jobs. (L8)
func TestJobOptionsShareNothing(t *testing.T) {
	t.Parallel()
	shared := []JobOption{Header("k", "v"), Retry(1)}
	one, err := newJobOptions(shared)
	require.NoError(t, err)
	one.Headers["k"] = "changed"
	other, err := newJobOptions(shared)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"k": "v"}, other.Headers)
	require.Nil(t, defaultJob.Headers)
}

func TestBoundsOfJobOptions(t *testing.T) {
	t.Parallel()
	last := time.UnixMilli(maxDueMS)
	for name, c := range map[string]struct {
		good []JobOption
		bad  map[string][]JobOption // part of the error → options
	}{
		"ProcessIn": {
			[]JobOption{ProcessIn(hundredYears), ProcessIn(0), ProcessIn(-1), ProcessIn(math.MinInt64)},
			map[string][]JobOption{"100 years": {ProcessIn(hundredYears + 1), ProcessIn(math.MaxInt64)}},
		},
		"ProcessAt": {
			[]JobOption{ProcessAt(last), ProcessAt(time.Unix(0, 0)), ProcessAt(time.Unix(1, 1))},
			map[string][]JobOption{
				"1970":      {ProcessAt(last.Add(1)), ProcessAt(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)), ProcessAt(time.Unix(-1, 0)), ProcessAt(time.UnixMilli(-1)), ProcessAt(time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC))},
				"zero time": {ProcessAt(time.Time{}), ProcessAt(time.Time{}.In(time.FixedZone("x", 3600)))},
			},
		},
		"Retry": {
			[]JobOption{Retry(0), Retry(math.MaxInt32), Retry(Unlimited)},
			map[string][]JobOption{"from 0 to 2147483647": {Retry(-2), Retry(-5), Retry(math.MaxInt32 + 1), Retry(math.MinInt)}},
		},
		"Backoff": {
			[]JobOption{Backoff(time.Millisecond, time.Millisecond), Backoff(time.Second, hundredYears), Backoff(hundredYears, hundredYears)},
			map[string][]JobOption{"1ms ≤ first ≤ limit": {
				Backoff(0, time.Second), Backoff(-1, time.Second), Backoff(time.Millisecond-1, time.Second), Backoff(2*time.Second, time.Second),
				Backoff(time.Second, hundredYears+1), Backoff(math.MaxInt64, math.MaxInt64),
			}},
		},
		"Timeout":   durationBounds(Timeout),
		"ExpireIn":  durationBounds(ExpireIn),
		"Retention": durationBounds(Retention),
		"ExpireAt": {
			[]JobOption{ExpireAt(last)},
			map[string][]JobOption{"1970": {ExpireAt(last.Add(1)), ExpireAt(time.Unix(-1, 0))}, "zero time": {ExpireAt(time.Time{})}},
		},
		"headers": {
			[]JobOption{Header("", ""), Header("k", strings.Repeat("v", 16<<10-1)), Header(strings.Repeat("k", 16<<10), "")},
			map[string][]JobOption{"at most 16384": {Header("k", strings.Repeat("v", 16<<10)), Header(strings.Repeat("k", 16<<10), "v")}},
		},
		"option": {nil, map[string][]JobOption{"is nil": {nil}}},
	} {
		for i, opt := range c.good {
			_, err := newJobOptions([]JobOption{opt})
			require.NoError(t, err, "%s %d", name, i)
		}
		for bound, bad := range c.bad {
			for i, opt := range bad {
				_, err := newJobOptions([]JobOption{opt})
				require.ErrorIs(t, err, ErrInvalid, "%s %d", name, i)
				require.ErrorContains(t, err, name)
				require.ErrorContains(t, err, bound)
			}
		}
	}
}

func durationBounds(option func(time.Duration) JobOption) (c struct {
	good []JobOption
	bad  map[string][]JobOption
}) {
	c.good = []JobOption{option(time.Millisecond), option(hundredYears)}
	c.bad = map[string][]JobOption{
		"at least 1ms": {option(0), option(-time.Second), option(time.Millisecond - 1), option(math.MinInt64)},
		"100 years":    {option(hundredYears + 1), option(math.MaxInt64)},
	}
	return c
}

// Headers of a job are limited together, and all complaints come at once.
func TestJobOptionsComplainTogether(t *testing.T) {
	t.Parallel()
	_, err := newJobOptions([]JobOption{
		Retry(-5), nil, ProcessIn(math.MaxInt64), Timeout(-1), Header("a", strings.Repeat("v", 9000)), Header("b", strings.Repeat("v", 9000)),
	})
	for _, part := range []string{"Retry(-5)", "is nil", "ProcessIn(", "Timeout(", "headers of 18002 bytes"} {
		require.ErrorContains(t, err, part)
	}
	_, err = newJobOptions([]JobOption{ProcessIn(time.Hour), ExpireIn(time.Minute)})
	require.ErrorContains(t, err, "ExpireIn(1m0s) must be longer than ProcessIn(1h0m0s)")
	_, err = newJobOptions([]JobOption{ProcessAt(time.UnixMilli(5e12)), ExpireAt(time.UnixMilli(4e12))})
	require.ErrorContains(t, err, " must be after ProcessAt(")
}

// The documented defaults. docs/docs_test.go holds the documents to the same literals.
func TestDefaults(t *testing.T) {
	t.Parallel()
	job, err := newJobOptions(nil)
	require.NoError(t, err)
	require.Equal(t, record.Options{Retry: -2}, job.Options, "nothing is said")
	job.Fill(&defaultRun)
	want := record.Options{Retry: -2}
	want.Fill(&record.Options{Retry: -1, BackoffMin: 2000, BackoffMax: 4_096_000})
	require.Equal(t, want, job.Options)
	client, err := newClientOptions(nil)
	require.NoError(t, err)
	require.Equal(t, clientOptions{prefix: "delayq", maxPayload: 1 << 20, tombs: 10_000_000, job: jobOptions{Options: record.Options{Retry: -2}}}, client)
	server, err := newServerOptions(nil)
	require.NoError(t, err)
	require.Equal(t, serverOptions{
		prefix: "delayq", concurrency: 10, lease: 30 * time.Second, drain: 20 * time.Second, tick: time.Second,
		deadCount: 1_000_000, deadAge: 90 * 24 * time.Hour, history: true, job: defaultJob,
	}, server)
}

type nothingHook struct{}

func (nothingHook) Script(ScriptEvent)  {}
func (nothingHook) Done(event RunEvent) {}

func TestClientOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		good, bad []ClientOption
		bound     string
	}{
		"Prefix":       {[]ClientOption{Prefix("p"), Prefix("a:b c"), Prefix(strings.Repeat("p", 255))}, []ClientOption{Prefix(""), Prefix("a{b"), Prefix("a}"), Prefix("#"), Prefix("a\n"), Prefix("\xff"), Prefix(strings.Repeat("p", 256))}, "prefix"},
		"MaxPayload":   {[]ClientOption{MaxPayload(1), MaxPayload(64 << 20)}, []ClientOption{MaxPayload(0), MaxPayload(-1), MaxPayload(64<<20 + 1)}, "from 1 to 67108864"},
		"WaitReplicas": {[]ClientOption{WaitReplicas(1, time.Millisecond), WaitReplicas(64, 3*time.Second)}, []ClientOption{WaitReplicas(0, time.Second), WaitReplicas(65, time.Second), WaitReplicas(1, 0), WaitReplicas(1, 3*time.Second+1), WaitReplicas(-1, -1)}, "1 to 64 replicas and 1ms to 3s"},
		"Hooks":        {[]ClientOption{Hooks(nothingHook{})}, []ClientOption{Hooks(nil), Hooks(7), Hooks(nothingHook{}, "no hook")}, "hook"},
		"nil":          {nil, []ClientOption{nil}, "a client option is nil"},
	} {
		for i, opt := range c.good {
			o, err := newClientOptions([]ClientOption{opt})
			require.NoError(t, err, "%s %d", name, i)
			require.False(t, reflect.DeepEqual(defaultClient, o), "%s %d changes nothing", name, i)
		}
		for i, opt := range c.bad {
			_, err := newClientOptions([]ClientOption{opt})
			require.ErrorIs(t, err, ErrInvalid, "%s %d", name, i)
			require.ErrorContains(t, err, c.bound)
		}
	}
	_, err := newClientOptions([]ClientOption{Prefix(""), MaxPayload(0), nil})
	require.ErrorContains(t, err, "prefix")
	require.ErrorContains(t, err, "MaxPayload(0)")
	require.ErrorContains(t, err, "nil")
}

func TestServerOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		good, bad []ServerOption
		bound     string
	}{
		"Prefix":      {[]ServerOption{Prefix("p")}, []ServerOption{Prefix("")}, "prefix"},
		"Concurrency": {[]ServerOption{Concurrency(1), Concurrency(10_000)}, []ServerOption{Concurrency(0), Concurrency(-1), Concurrency(10_001)}, "from 1 to 10000"},
		"Lease":       {[]ServerOption{Lease(100 * time.Millisecond), Lease(24 * time.Hour)}, []ServerOption{Lease(0), Lease(100*time.Millisecond - 1), Lease(24*time.Hour + 1)}, "from 100ms to 24h0m0s"},
		"Drain":       {[]ServerOption{Drain(0), Drain(24 * time.Hour)}, []ServerOption{Drain(-1), Drain(24*time.Hour + 1)}, "from 0s to 24h0m0s"},
		"FailFast":    {[]ServerOption{FailFast(100 * time.Millisecond), FailFast(24 * time.Hour)}, []ServerOption{FailFast(0), FailFast(-1), FailFast(100*time.Millisecond - 1), FailFast(24*time.Hour + 1)}, "from 100ms to 24h0m0s"},
		"Tick":        {[]ServerOption{Tick(10 * time.Millisecond)}, []ServerOption{Tick(0), Tick(10*time.Millisecond - 1), Tick(time.Second + 1)}, "from 10ms to 1s"},
		"DeadLimit": {
			[]ServerOption{DeadLimit(0, time.Second), DeadLimit(10_000_000, hundredYears)},
			[]ServerOption{DeadLimit(-1, time.Hour), DeadLimit(10_000_001, time.Hour), DeadLimit(1, time.Second-1), DeadLimit(1, hundredYears+1)},
			"0 to 10000000 jobs",
		},
		"KeepHistory": {[]ServerOption{KeepHistory(false)}, nil, ""},
		"Logger":      {[]ServerOption{Logger(slog.New(slog.NewTextHandler(io.Discard, nil)))}, []ServerOption{Logger(nil)}, "Logger(nil)"},
		"Hooks":       {[]ServerOption{Hooks(nothingHook{})}, []ServerOption{Hooks(struct{}{})}, "hook"},
		"nil":         {nil, []ServerOption{nil}, "a server option is nil"},
	} {
		for i, opt := range c.good {
			o, err := newServerOptions([]ServerOption{opt})
			require.NoError(t, err, "%s %d", name, i)
			require.False(t, reflect.DeepEqual(defaultServer, o), "%s %d changes nothing", name, i)
		}
		for i, opt := range c.bad {
			_, err := newServerOptions([]ServerOption{opt})
			require.ErrorIs(t, err, ErrInvalid, "%s %d", name, i)
			require.ErrorContains(t, err, c.bound)
		}
	}
}

func TestHandlerOptions(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 10_000} {
		var o handlerOptions
		Concurrency(n).applyHandler(&o)
		require.Equal(t, handlerOptions{concurrency: n}, o)
	}
	for _, n := range []int{0, -1, 10_001} {
		var o handlerOptions
		Concurrency(n).applyHandler(&o)
		require.ErrorContains(t, invalid(o.errs), fmt.Sprintf("Concurrency(%d): must be from 1 to 10000", n))
	}
}

func TestBackoffGrowsToItsLimit(t *testing.T) {
	t.Parallel()
	const first, limit = 2000, 4_096_000
	for attempt, want := range map[int]int64{
		-1: 2000, 0: 2000, 1: 2000, 2: 4000, 3: 8000, 11: 2_048_000, 12: 4_096_000, 13: 4_096_000, 63: 4_096_000, 64: 4_096_000, math.MaxInt: 4_096_000,
	} {
		low, high := int64(math.MaxInt64), int64(0)
		for range 200 {
			ms := loop.Backoff(attempt, first, limit).Milliseconds()
			low, high = min(low, ms), max(high, ms)
		}
		require.GreaterOrEqual(t, low, want, attempt)
		require.LessOrEqual(t, high, want+want/5, attempt)
		require.Greater(t, high, low, "no jitter at attempt %d", attempt)
	}
	require.Equal(t, time.Millisecond, loop.Backoff(5, 1, 1))
	require.Positive(t, loop.Backoff(100, ceilMS(hundredYears), ceilMS(hundredYears)))
}

// Whatever the hashes of a topic hold for a job, Get makes something of it and does not panic. (I2)
func FuzzJobInfo(f *testing.F) {
	head, tail, err := record.Encode(record.Nonce{1}, &defaultJob.Options, []byte("payload"))
	require.NoError(f, err)
	good := record.Join(head, 1_700_000_000_001, tail)
	for _, seed := range []string{"", good, good[:20], good + "x", record.Netstring(hand.Failed) + good, "1 retry 3 4 0", "1e3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, e := range attemptErrors(raw) {
			_ = e.encode()
		}
		for _, cut := range []int{-1, 0, len(raw), recordHead} {
			readJobInfo("topic", "id", cut, func(int) string { return raw })
			readJobInfo("topic", "id", cut, func(column int) string {
				if column == script.ColumnRecord {
					return ""
				}
				return raw
			})
		}
		if rec, err := record.Decode(raw); err == nil {
			rec.Options.Fill(&defaultRun)
			for _, attempt := range []int{1, 2, 70, math.MaxInt} {
				require.Positive(t, loop.Backoff(attempt, rec.Options.BackoffMin, rec.Options.BackoffMax))
			}
		}
	})
}

func TestAttemptErrorRoundTrip(t *testing.T) {
	t.Parallel()
	want := []AttemptError{
		{
			Attempt: 1, At: msTime(1_700_000_000_000), Duration: 1500 * time.Millisecond, Server: "s", Kind: KindPanic, Type: "*errors.errorString",
			Message: "mess\"age\n🐢", Stack: "goroutine 1", NextDue: msTime(1_700_000_002_000), TraceParent: "00-1-2-3",
		},
		{Attempt: 2, At: msTime(1_700_000_002_000), Kind: KindTimeout},
	}
	require.Equal(t, want, attemptErrors(record.Netstring(want[0].encode())+record.Netstring(want[1].encode())))
}

// Any bytes are an ID and a payload. (B16, I8)
func FuzzID(f *testing.F) {
	r := embedded.New()
	f.Cleanup(r.Close)
	rdb := r.Client()
	f.Cleanup(func() { _ = rdb.Close() })
	client := NewClient(rdb)
	every := make([]byte, 256)
	binary.BigEndian.PutUint64(every[8:], math.MaxUint64)
	for i := range every {
		every[i] = byte(i)
	}
	for _, seed := range []string{
		"", "x", ":", "{}", "a{b}c", "a\nb", "\x00", "\xff\xfe", "🐢", string(every), strings.Repeat("-", 1024), strings.Repeat("i", 1025), "none", " 1 ",
	} {
		f.Add(seed, []byte(seed))
		f.Add(seed, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, id string, payload []byte) {
		ctx := context.Background()
		const topic = "fuzz"
		job, err := client.Enqueue(ctx, topic, id, payload, ProcessIn(time.Hour), Header(id, string(payload[:min(len(payload), 1000)])))
		if len(id) > script.MaxIDLen {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.NoError(t, err)
		if id != "" {
			require.Equal(t, id, job.ID)
		}
		id = job.ID
		_, err = client.Enqueue(ctx, topic, id, nil)
		require.ErrorIs(t, err, ErrDuplicate)
		info, err := client.Get(ctx, topic, id)
		require.NoError(t, err)
		require.NoError(t, info.Undecodable)
		require.Equal(t, id, info.ID)
		require.True(t, bytes.Equal(payload, info.Payload))
		require.Equal(t, job.Due, info.Due)
		require.NoError(t, client.Reschedule(ctx, topic, id, ProcessIn(0)))
		h := hand.New(t, rdb, script.DefaultPrefix, topic)
		held := h.TakeOne(id)
		require.Equal(t, "o", h.Return(held))
		state, err := client.Dequeue(ctx, topic, id)
		require.NoError(t, err)
		require.Equal(t, StateReady, state)
		require.Empty(t, h.Take(1, time.Minute), "it is cancelled")
		_, err = client.Dequeue(ctx, topic, id)
		require.True(t, errors.Is(err, ErrNotFound), err)
		for _, key := range []string{"pool", "bucket", "ready", "leases", "moved", "attempts"} {
			require.False(t, r.Exists(h.Key(key)), key)
		}
	})
}

// What can be wrong with a hook.
type (
	onlyDone     struct{}
	onlyEnqueue  struct{}
	onlyEnqueued struct{}
	bothSides    struct{ nothingHook }
	wrongKind    struct{ nothingHook }
	wrongAlone   struct{}
	byPointer    struct{ nothingHook }
	otherwise    struct{}
)

func (onlyDone) Done(RunEvent)                               {}
func (onlyEnqueue) Enqueue(context.Context, *NewJob)         {}
func (onlyEnqueued) Enqueued(context.Context, EnqueueEvent)  {}
func (bothSides) Enqueued(context.Context, EnqueueEvent)     {}
func (wrongKind) Started(*RunEvent)                          {}
func (wrongAlone) Enqueue(context.Context, NewJob) error     { return nil }
func (*byPointer) Buried(RunEvent)                           {}
func (otherwise) Close() error                               { return nil }
func (otherwise) Enqueues(context.Context, *NewJob)          {}
func (otherwise) Released(_ context.Context, _ EnqueueEvent) {}

// A hook that would never be called is refused by the side that would not call it, with what it
// should be.
func TestHooksThatWouldNotBeCalled(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, rdb.Close()) }()
	var none *byPointer
	for _, c := range []struct {
		hook           Hook
		client, server []string // what the complaint says; nil: the hook is fine there
	}{
		{hook: nothingHook{}},
		{hook: bothSides{}},
		{hook: &byPointer{}},
		{onlyDone{}, []string{"delayq.onlyDone", "no method that NewClient calls", "NewServer"}, nil},
		{hook: onlyEnqueue{}},
		{onlyEnqueued{}, nil, []string{"delayq.onlyEnqueued", "no method that NewServer calls", "NewClient"}},
		{
			wrongKind{}, []string{"delayq.wrongKind", "Started", "func(*delayq.RunEvent)", "func(delayq.RunEvent)"},
			[]string{"delayq.wrongKind", "Started", "func(*delayq.RunEvent)", "func(delayq.RunEvent)"},
		},
		{
			wrongAlone{}, []string{"delayq.wrongAlone", "Enqueue", "func(context.Context, delayq.NewJob) error", "func(context.Context, *delayq.NewJob)"},
			[]string{"delayq.wrongAlone", "Enqueue"},
		},
		{byPointer{}, []string{"delayq.byPointer", "Buried", "pass a pointer"}, []string{"delayq.byPointer", "Buried", "pass a pointer"}},
		{otherwise{}, []string{"delayq.otherwise", "none of the hook methods"}, []string{"delayq.otherwise", "none of the hook methods"}},
		{none, []string{"a hook is nil"}, []string{"a hook is nil"}},
	} {
		server := NewServer(rdb, Hooks(c.hook))
		server.HandlerFunc("t", func(context.Context, *Job) error { return nil })
		began := server.begin()
		if began == nil {
			server.engine.Close()
		}
		for side, got := range map[string]struct {
			err   error
			wants []string
		}{
			"client": {NewClient(rdb, Hooks(c.hook)).err, c.client},
			"server": {began, c.server},
		} {
			if got.wants == nil {
				require.NoError(t, got.err, "%T of a %s", c.hook, side)
				continue
			}
			require.ErrorIs(t, got.err, ErrInvalid, "%T of a %s", c.hook, side)
			for _, part := range got.wants {
				require.ErrorContains(t, got.err, part, "%T of a %s", c.hook, side)
			}
		}
	}
}

// Every exported interface whose name ends in Hook is one of those that are looked for, and has one
// method.
func TestHookKindsAreComplete(t *testing.T) {
	t.Parallel()
	declared := make(map[string]bool)
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.TYPE {
				continue
			}
			for _, spec := range group.Specs {
				one := spec.(*ast.TypeSpec)
				if _, is := one.Type.(*ast.InterfaceType); is && one.Name.IsExported() && strings.HasSuffix(one.Name.Name, "Hook") {
					declared[one.Name.Name] = true
				}
			}
		}
	}
	known := make(map[string]bool)
	for _, k := range hookKinds {
		known[k.kind().Name()] = true
		require.Equal(t, 1, k.kind().NumMethod(), k.kind().Name())
		method := k.kind().Method(0)
		require.Equal(t, method.Name, k.name())
		require.Equal(t, method.Type.String(), k.want(), k.name())
		none := reflect.New(k.kind()).Elem() // an interface without a value
		require.PanicsWithValue(t, "reflect: Method on nil interface value", func() { methodOf(none, k.name()) }, k.name())
	}
	require.Equal(t, slices.Sorted(maps.Keys(declared)), slices.Sorted(maps.Keys(known)))
}

// encoded makes a record of options and a payload.
func encoded(t *testing.T, o *jobOptions, payload []byte) string {
	t.Helper()
	head, tail, err := record.Encode(record.Nonce{1, 2, 3, 4, 5, 6, 7, 8}, &o.Options, payload)
	require.NoError(t, err)
	return record.Join(head, 1_700_000_000_001, tail)
}

// Options that Again is not given are those of the ended job, but for its due time and an ExpireAt.
func TestAgainInheritsOptions(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	all := []JobOption{
		Retry(3), Backoff(time.Minute, time.Hour), Timeout(time.Minute), Retention(time.Hour), ExpireIn(3 * time.Hour),
		Header("a", "1"), Header("b", "2"),
	}
	with := func(opts ...JobOption) []JobOption { return append(slices.Clone(all), opts...) }
	for name, c := range map[string]struct{ old, given, want []JobOption }{
		"none":              {nil, nil, nil},
		"all":               {all, nil, all},
		"others":            {all, []JobOption{Retry(9), Header("b", "3")}, with(Retry(9), Header("b", "3"))},
		"due in":            {[]JobOption{ProcessAt(at)}, []JobOption{ProcessIn(time.Hour)}, []JobOption{ProcessIn(time.Hour)}},
		"due at":            {[]JobOption{ProcessIn(time.Hour)}, []JobOption{ProcessAt(at)}, []JobOption{ProcessAt(at)}},
		"due at once":       {[]JobOption{ProcessIn(time.Hour)}, nil, nil},
		"expires at":        {[]JobOption{ExpireAt(at)}, nil, nil},
		"expires at anew":   {[]JobOption{ExpireAt(at)}, []JobOption{ExpireAt(at.Add(1))}, []JobOption{ExpireAt(at.Add(1))}},
		"expires otherwise": {all, []JobOption{ExpireAt(at.Add(1))}, with(ExpireAt(at.Add(1)))},
		"replaces":          {nil, []JobOption{Replace()}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			old, err := newJobOptions(c.old)
			require.NoError(t, err)
			rec, err := record.Decode(encoded(t, &old, []byte("old")))
			require.NoError(t, err)
			want, err := newJobOptions(c.want)
			require.NoError(t, err)
			r := &run.Run{Options: rec.Options}
			r.Options.Fill(&record.Options{Retry: 7, BackoffMin: 1, BackoffMax: 2, Timeout: 3, Retention: 4})
			filled := r.Options
			n, err := renew(r, &againError{[]byte("new"), c.given}, at)
			require.NoError(t, err)
			require.Equal(t, encoded(t, &want, []byte("new"))[record.HeadLen:], record.Join(n.Head, 1_700_000_000_001, n.Tail)[record.HeadLen:])
			require.Equal(t, len(encoded(t, &want, []byte("new"))), n.Bytes())
			require.NotEqual(t, record.NonceOf(encoded(t, &old, nil)), record.NonceOf(n.Head))
			other, err := renew(r, &againError{[]byte("new"), c.given}, at)
			require.NoError(t, err)
			require.NotEqual(t, n.Head[:record.NonceLen], other.Head[:record.NonceLen])
			require.Equal(t, filled, r.Options, "the present job's are as they were")
		})
	}
}

// The record of a schedule's job stays one.
func TestAgainKeepsTheSchedule(t *testing.T) {
	for _, scheduled := range []bool{true, false} {
		o := defaultJob
		o.Scheduled = scheduled
		n, err := renew(&run.Run{Options: o.Options}, &againError{}, time.Now())
		require.NoError(t, err)
		rec, err := record.Decode(record.Join(n.Head, 1_700_000_000_001, n.Tail))
		require.NoError(t, err)
		require.Equal(t, scheduled, rec.Options.Scheduled)
	}
}

// Handlers get their middleware by name, and those of patterns after all others, the longest first.
func TestHandlersGetTheirMiddlewareInOrder(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, rdb.Close()) }()
	s := NewServer(rdb)
	nop := func(context.Context, *Job) error { return nil }
	for _, topic := range []string{"b", "a.*", "z", "long.*", "a"} {
		require.NoError(t, s.HandlerFunc(topic, nop))
	}
	require.NoError(t, s.Remove(t.Context(), "z"))
	var order []string
	slices.SortStableFunc(s.handlers, (*handling).before)
	for _, h := range s.handlers {
		order = append(order, h.topic)
	}
	require.Equal(t, []string{"a", "b", "long.*", "a.*"}, order)
}

// runs runs a server with handlers until the end of the test.
func runs(t *testing.T, rdb redis.UniversalClient, topics ...string) *Server {
	t.Helper()
	s := NewServer(rdb, Logger(slog.New(slog.DiscardHandler)))
	for _, topic := range topics {
		require.NoError(t, s.HandlerFunc(topic, func(context.Context, *Job) error { return nil }))
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		end()
		require.NoError(t, <-done)
	})
	<-s.Ready()
	return s
}

// Each loop of a topic is late three ticks after it has stopped, and no longer once it goes on. The
// others are not.
func TestFrozenLoopsAreLate(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		s := runs(t, rdb, "a", "b")
		for _, one := range s.engine.Topics.Get("b").Loops.All() {
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Empty(t, s.Health().Late)
			thaw := one.Freeze()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			require.Empty(t, s.Health().Late, "it may just take long")
			time.Sleep(time.Millisecond)
			h := s.Health()
			require.Equal(t, []LateLoop{{one.Name, "b", 3*time.Second + time.Millisecond}}, h.Late)
			thaw()
			synctest.Wait()
			require.Empty(t, s.Health().Late)
		}
	})
}

// BenchmarkHealth is the cost of a probe of livez.
func BenchmarkHealth(b *testing.B) {
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer rdb.Close()
	s := NewServer(rdb, Logger(slog.New(slog.DiscardHandler)))
	for i := range 1000 {
		require.NoError(b, s.HandlerFunc(fmt.Sprint("t", i), func(context.Context, *Job) error { return nil }))
	}
	ctx, end := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	time.Sleep(2 * time.Second)
	for b.Loop() {
		_ = s.Health()
	}
	end()
	<-done
}

// The steps of a history are read from whatever a field holds.
func FuzzDecodeSums(f *testing.F) {
	for _, seed := range []string{"", "12", "12 acked 1", "12 acked 1 late0 2", "12 acked x", "12  3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, field string) {
		record.DecodeSums(field, 12, func(_ string, n int64) { require.GreaterOrEqual(t, n, int64(0)) })
		step := newHistoryStep(12, time.Minute, record.LatenessBounds, record.RunTimeBounds)
		step.add(field, 12)
		_ = step.Lateness.Quantile(0.99)
	})
}

// A reason keeps all that an explanation says of it.
func TestReasonsAreWhole(t *testing.T) {
	t.Parallel()
	for _, code := range []ReasonCode{ReasonTopicRate, ReasonKeyRate} {
		var r explain.Reason
		of := reflect.ValueOf(&r).Elem()
		for i := range of.NumField() {
			switch field := of.Field(i); field.Interface().(type) {
			case time.Time:
				field.Set(reflect.ValueOf(time.Unix(1, 0)))
			case string, explain.Code:
				field.SetString("x")
			case int, int64, time.Duration:
				field.SetInt(1)
			case float64:
				field.SetFloat(1)
			case bool:
				field.SetBool(true)
			case *explain.Failure:
				field.Set(reflect.ValueOf(&explain.Failure{}))
			default:
				t.Fatal(field.Type())
			}
		}
		r.Code = explain.Code(code)
		c := &circumstances{info: &JobInfo{Errors: []AttemptError{{Attempt: 1}, {Attempt: 2}}}, rate: Per(1, time.Second), keyRate: Per(2, time.Second)}
		got := c.reason(&r)
		for i := range reflect.TypeFor[Reason]().NumField() {
			require.False(t, reflect.ValueOf(got).Field(i).IsZero(), reflect.TypeFor[Reason]().Field(i).Name)
		}
		require.Same(t, &c.info.Errors[1], got.Error)
		require.Equal(t, reflect.TypeFor[explain.Reason]().NumField(), reflect.TypeFor[Reason]().NumField())
	}
}

// What selects jobs is in the audit of an Apply and in the cursors of a query, whichever field of
// Query it is. A new field is added here, and so to both.
func TestEveryFieldOfAQueryCounts(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000)
	base := Query{Topic: "topic", State: StateReady}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Query]()) {
		q, audited, identified := base, true, true
		switch field.Name {
		case "Topic": // an entry of the audit has a field for it
			q.Topic, audited = "other", false
		case "State":
			q.State = StateDead
		case "From":
			q.From = at
		case "To":
			q.To = at
		case "Latest":
			q.Latest = true
		case "Key":
			q.Key = "tenant-7"
		case "IDPrefix":
			q.IDPrefix = "order-"
		case "MinAttempt":
			q.MinAttempt = 3
		case "Headers":
			q.Headers = map[string]string{"tenant": "7"}
		case "Error":
			q.Error = "timeout"
		case "Failure":
			q.Failure = "0123456789ab"
		case "Payload":
			q.Payload = []byte("7")
		case "Limit", "Budget": // how much one call looks at
			q.Limit, q.Budget, audited, identified = 7, 7, false, false
		case "Cursor":
			q.Cursor, identified = "continued", false
		case "Offset": // Apply refuses it, and a page has a cursor of its own
			q.Offset, audited, identified = 7, false, false
		default:
			t.Errorf("Query.%s is not in this test", field.Name)
			continue
		}
		texts := func(q Query) string { return (&application{query: q, action: Cancel()}).text() }
		require.Equal(t, audited, texts(base) != texts(q), "Query.%s in the audit: %q", field.Name, texts(q))
		require.Equal(t, identified, base.id("delayq") != q.id("delayq"), "Query.%s in the cursor", field.Name)
	}
}

// compiled returns the rhythm of a schedule that is nothing but a spec.
func compiled(spec Spec) (schedule.Rhythm, error) {
	d := newDefinition(spec, nil, nil)
	err := d.compile()
	return d.next, err
}

func TestSpecsOfIntervals(t *testing.T) {
	t.Parallel()
	next, err := compiled(Every(time.Nanosecond * 1_000_001)) // rounded up
	require.NoError(t, err)
	require.EqualValues(t, 12, must(next(10)))
	next, err = compiled(Cron(" @every  1h", ""))
	require.NoError(t, err)
	at := time.Date(2026, 5, 13, 12, 34, 56, 0, time.UTC).UnixMilli()
	require.Equal(t, time.Date(2026, 5, 13, 13, 0, 0, 0, time.UTC), msTime(must(next(at))).UTC())
	require.Equal(t, Every(time.Hour), Cron("@every 1h", ""))
	for spec, want := range map[Spec]string{
		Every(10 * time.Second): "every 10s", Cron("0  9 * * 1-5", "Europe/Berlin"): "cron 0 9 * * 1-5 Europe/Berlin",
		OnCalendar("bank-days"): "calendar bank-days", {}: "none",
	} {
		require.Equal(t, want, spec.String())
	}
}

// The error says which field, where it is, and what is wrong with it.
func TestBadCronSaysWhere(t *testing.T) {
	t.Parallel()
	for rule, parts := range map[string][]string{
		"":                         {"want 5 or 6 fields, got 0"},
		"* * * *":                  {"got 4"},
		"* * * * * * *":            {"got 7"},
		"60 * * * *":               {`Cron("60 * * * *"): minute "60" at byte 0`, "from 0 to 59"},
		"  0  0   32 * *":          {`day of month "32" at byte 9`, "31"},
		"61 0 0 1 1 1":             {`second "61" at byte 0`},
		"*/90 25 0 foo 8":          {`minute "*/90" at byte 0`, "@every 90m", `hour "25" at byte 5`, `day of month "0" at byte 8`, `month "foo" at byte 10`, `day of week "8" at byte 14`},
		"0 0 30 2 *":               {`day of month "30" at byte 4`, "no future slots"},
		"@fortnightly":             {"@fortnightly"},
		"@every":                   {"@every"},
		"@every soon":              {`invalid duration "soon" at byte 7`, "90m"},
		" @every\te 5":             {`invalid duration "e 5" at byte 8`},
		"@every 10us":              {"at least 1ms"},
		"TZ=UTC":                   {"zone"},
		"CRON_TZ=UTC 0 0 * * *":    {"zone"},
		"0 0 * * \xff":             {"UTF-8"},
		string(make([]byte, 2000)): {"2000 bytes"},
	} {
		_, err := compiled(Cron(rule, "UTC"))
		require.Error(t, err, rule)
		for _, part := range parts {
			require.ErrorContains(t, err, part)
		}
	}
	for _, zone := range []string{"Europe/Atlantis", "Local", "../etc/passwd"} {
		_, err := compiled(Cron("* * * * *", zone))
		require.ErrorContains(t, err, zone)
		_, err = compiled(Cron("0 25 * * *", zone))
		require.ErrorContains(t, err, "hour")
		require.ErrorContains(t, err, zone)
	}
}

// Whatever is written into a rule, it is an error or has slots that go up.
func FuzzSpec(f *testing.F) {
	for _, rule := range []string{"* * * * *", "TZ=", "@every 1s", ", , , , ,", "*/9 1-5/2 ? jan-mar sun,mon", "0 0 30 2 *"} {
		f.Add(rule, "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, rule, zone string) {
		next, err := compiled(Cron(rule, zone))
		if err != nil {
			return
		}
		for at, i := int64(1_700_000_000_000), 0; i < 3; i++ {
			slot, err := next(at)
			require.NoError(t, err)
			if slot == 0 {
				return
			}
			require.Greater(t, slot, at)
			at = slot
		}
	})
}

// The start of a program leaves what an operator has changed, and changes the rest.
func TestProgramStartKeepsAnEdit(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		start := func(payload string, opts ...ScheduleOption) *ScheduleInfo {
			require.NoError(t, c.Schedule(ctx, "topic", "s", Cron("0 3 * * *", ""), []byte(payload), opts...))
			info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
			require.NoError(t, err)
			return info
		}
		info := start("one", Retry(3))
		require.Empty(t, info.Edited)

		before := time.Now().Add(-time.Minute)
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error {
			def.EditedBy = "ops:anna"
			require.Equal(t, Cron("0 3 * * *", ""), def.Spec)
			require.Equal(t, "one", string(def.Payload))
			def.Spec = Cron("0 5 * * *", "")
			return nil
		}))
		for _, payload := range []string{"one", "two", "one", "one"} {
			info = start(payload, Retry(3))
			require.Equal(t, Cron("0 5 * * *", ""), info.Spec)
			require.Equal(t, 5, info.NextSlot.UTC().Hour())
			require.Equal(t, payload, string(info.Payload))
			require.Equal(t, []string{"Spec"}, info.Edited)
			require.Equal(t, "ops:anna", info.EditedBy)
			require.True(t, info.EditedAt.After(before))
			require.Equal(t, 3, info.Retries)
		}
		list, err := inspectorOf(c).Schedules(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, []string{"Spec"}, list[0].Edited)

		// A second edit adds to the first one.
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error {
			def.EditedBy = "ops:ben"
			def.Options = append(def.Options, Retry(9), Header("k", "v"))
			return nil
		}))
		info = start("three", Retry(4), Jitter(time.Second))
		require.Equal(t, []string{"Headers", "Retry", "Spec"}, info.Edited)
		require.Equal(t, "ops:ben", info.EditedBy)
		require.Equal(t, []any{9, "v", time.Second, "three"}, []any{info.Retries, info.Headers["k"], info.Jitter, string(info.Payload)})

		info = start("three", Retry(4), DiscardEdits())
		require.Empty(t, info.Edited)
		require.Empty(t, info.EditedBy)
		require.True(t, info.EditedAt.IsZero())
		require.Equal(t, Cron("0 3 * * *", ""), info.Spec)
		require.Equal(t, 4, info.Retries)
		require.Empty(t, info.Headers)
		info = start("four", Retry(4))
		require.Equal(t, "four", string(info.Payload))
	})
}

// Two versions of a program that are restarted by turns do not change a schedule to and fro.
func TestIfAbsentChangesNothing(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), []byte("first"), IfAbsent()))
		first := redistest.Dump(t, h.RDB, h.Prefix())
		for i := range 4 {
			require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Duration(1+i)*time.Minute), nil, IfAbsent(), Retry(i)))
		}
		require.Equal(t, first, redistest.Dump(t, h.RDB, h.Prefix()))
		// Nor what this release cannot read.
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Schedules, "s", "12345678\x63of a newer release").Err())
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), nil, IfAbsent()))
		require.Equal(t, "12345678\x63of a newer release", h.RDB.HGet(ctx, h.Keys.Schedules, "s").Val())
		require.ErrorContains(t, c.EditSchedule(ctx, "topic", "s", func(*ScheduleDefinition) error { return nil }), "format version 99")
		require.NoError(t, c.Unschedule(ctx, "topic", "s"))
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Minute), nil, IfAbsent()))
		info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
		require.NoError(t, err)
		require.Equal(t, Every(time.Minute), info.Spec)
		for range 2 { // as each role that may
			runs, err := inspectorOf(c).Runs(ctx, "topic", "s", 10)
			require.NoError(t, err)
			require.Empty(t, runs)
		}
	})
}

// Edits at the same time, and starts of the program between them, lose nothing of each other.
func TestEditsAtTheSameTime(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		program := func(n int) error {
			return c.Schedule(ctx, "topic", "s", Every(time.Hour), []byte(fmt.Sprint(n)), Retry(n))
		}
		require.NoError(t, program(0))
		edits := []ScheduleOption{
			Jitter(time.Second), MaxRuns(3), Timeout(time.Minute), Retention(time.Hour), ExpireIn(time.Hour), OverlapQueueOne, MissedCatchUp(4),
			ProcessIn(time.Minute), Backoff(time.Minute, time.Hour), Header("k", "v"),
		}
		var all sync.WaitGroup
		errs := make(chan error, 100)
		for i, opt := range edits {
			all.Go(func() {
				errs <- c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error {
					def.EditedBy = fmt.Sprint(i)
					def.Options = append(def.Options, opt)
					return nil
				})
			})
			all.Go(func() { errs <- program(i) })
		}
		all.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		want := newDefinition(Every(time.Hour), []byte("77"), append(edits, Retry(77)))
		require.NoError(t, program(77))
		info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
		require.NoError(t, err)
		require.Empty(t, differences(info.definition, &want.Definition))
		require.Len(t, info.Edited, len(edits))
	})
}

func TestEditScheduleRefuses(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		nothing := func(*ScheduleDefinition) error { return nil }
		require.ErrorIs(t, c.EditSchedule(ctx, "topic", "s", nothing), ErrNotFound)
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), make([]byte, 100), ExpireIn(time.Hour)))
		before := redistest.Dump(t, h.RDB, h.Prefix())
		mine := errors.New("mine")
		require.ErrorIs(t, c.EditSchedule(ctx, "topic", "s", func(*ScheduleDefinition) error { return mine }), mine)
		for say, err := range map[string]error{
			"edit is nil":             c.EditSchedule(ctx, "topic", "s", nil),
			"EditedBy of 1025 bytes":  c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.EditedBy = strings.Repeat("x", 1025); return nil }),
			"nil context":             c.EditSchedule(nil, "topic", "s", nothing), //lint:ignore SA1012 that is the test
			"empty topic":             c.EditSchedule(ctx, "", "s", nothing),
			"empty schedule name":     c.EditSchedule(ctx, "topic", "", nothing),
			"options of Schedule":     c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, DiscardEdits()); return nil }),
			"use Every, Cron":         c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Spec = Spec{}; return nil }),
			"payload of 1048577":      c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Payload = make([]byte, 1<<20+1); return nil }),
			"some jobs would expire":  c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, Jitter(time.Hour)); return nil }),
			"has no future slots":     c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, EndAt(time.UnixMilli(1))); return nil }),
			"Retry(-7): must be from": c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, Retry(-7)); return nil }),
		} {
			require.ErrorIs(t, err, ErrInvalid, say)
			require.ErrorContains(t, err, say)
		}
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", nothing))
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.EditedBy = "me"; d.Payload[0] = 0; return nil }))
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), "an edit that changes nothing writes nothing")

		// What the program gives need not go together with an edit.
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error {
			d.EditedBy = "ops"
			d.Options = append(d.Options, ExpireIn(time.Minute))
			return nil
		}))
		err := c.Schedule(ctx, "topic", "s", Every(time.Hour), nil, ExpireIn(time.Hour), Jitter(2*time.Minute))
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, `schedule "s": with Expire as edited by "ops": `)
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), nil, ExpireIn(time.Hour), Jitter(2*time.Minute), DiscardEdits()))

		// A tool with a lower MaxPayload can edit all but the payload.
		small := NewClient(h.RDB, Prefix(h.Prefix()), MaxPayload(10))
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), make([]byte, 100)))
		require.NoError(t, small.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Spec = Every(time.Minute); return nil }))
	})
}

// given are the options of a schedule with another value than the default, by the name of the part
// they are of.
var given = map[string]ScheduleOption{
	"StartAt": StartAt(time.UnixMilli(maxDueMS - 1e9)), "EndAt": EndAt(time.UnixMilli(maxDueMS - 1e3)), "MaxRuns": MaxRuns(7),
	"Jitter": Jitter(time.Minute), "OnOverlap": OverlapQueueOne, "OnMissed": MissedCatchUp(3), "ProcessIn": ProcessIn(time.Minute), "Retry": Retry(0),
	"Backoff": Backoff(3*time.Second, time.Hour), "Timeout": Timeout(time.Second), "Expire": ExpireIn(time.Hour), "Retention": Retention(time.Hour),
	"Headers": Header("k", "v"), "Key": Key("k"),
}

// A part is edited alone, and a schedule of any options can be copied.
func TestEditAndCopyOfEachPart(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		read := func(name string) *ScheduleInfo {
			info, err := inspectorOf(c).Schedule(ctx, "topic", name)
			require.NoError(t, err)
			return info
		}
		copied := func(name string) {
			info := read(name)
			require.NoError(t, c.Schedule(ctx, "topic", "copy", info.Spec, info.Payload, append(info.Options(), DiscardEdits())...))
			twin := read("copy")
			require.Empty(t, differences(twin.definition, info.definition), name)
			require.Equal(t, []any{info.Spec, info.Payload, info.Headers}, []any{twin.Spec, twin.Payload, twin.Headers}, name)
		}
		var all []ScheduleOption
		for _, part := range parts {
			require.NoError(t, c.Schedule(ctx, "topic", part.name, Every(time.Hour), []byte("payload")))
			before := read(part.name)
			require.NoError(t, c.EditSchedule(ctx, "topic", part.name, func(def *ScheduleDefinition) error {
				def.EditedBy = "me"
				switch part.name {
				case "Spec":
					def.Spec = Cron("0 9 * * *", "Europe/Berlin")
				case "Payload":
					def.Payload = nil
				default:
					require.Contains(t, given, part.name)
					def.Options = append(def.Options, given[part.name])
					all = append(all, given[part.name])
				}
				return nil
			}))
			after := read(part.name)
			require.Equal(t, []string{part.name}, differences(after.definition, before.definition))
			require.Equal(t, []string{part.name}, after.Edited)
			copied(part.name)
		}
		require.NoError(t, c.Schedule(ctx, "topic", "all", Every(time.Hour), []byte("payload"), all...))
		copied("all")
		require.NoError(t, c.Schedule(ctx, "topic", "all", Every(time.Hour), nil, ExpireAt(time.UnixMilli(maxDueMS))))
		copied("all")

		list, err := inspectorOf(c).Schedules(ctx, "topic")
		require.NoError(t, err)
		for _, info := range list {
			err := c.Schedule(ctx, "topic", "twin", info.Spec, info.Payload, info.Options()...)
			require.Equal(t, info.PayloadSize > 0, errors.Is(err, ErrInvalid) && strings.Contains(err.Error(), "the payload was not read"), info.Name)
		}
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Schedules, "all", "garbage").Err())
		err = c.Schedule(ctx, "topic", "twin", Every(time.Hour), nil, read("all").Options()...)
		require.ErrorContains(t, err, "could not be read")
	})
}

// Whatever a definition has is a part of it, or needs none.
func TestPartsAreAllOfADefinition(t *testing.T) {
	t.Parallel()
	covered := map[uintptr]bool{}
	d := new(definition)
	for _, part := range parts {
		for _, field := range part.fields(&d.Definition) {
			covered[reflect.ValueOf(field).Pointer()] = true
		}
	}
	walk := func(v reflect.Value, but ...string) {
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; !slices.Contains(but, name) {
				require.True(t, covered[v.Field(i).Addr().Pointer()], "%s is of no part", name)
			}
		}
	}
	walk(reflect.ValueOf(d).Elem(), "Definition", "specErr", "replace", "unless", "window", "start", "errs", "onto", "next", "walked")
	walk(reflect.ValueOf(&d.Definition).Elem(), "Job", "Edit", "Nonce")
	walk(reflect.ValueOf(&d.Job).Elem(), "DueAt", "Plan", "Flow", "Scheduled", "filled")
}

// Of a job that is moved to another topic nothing is lost that its options gave.
func TestMoveLosesNothing(t *testing.T) {
	options := map[string][]JobOption{
		"none": nil, "ProcessIn": {ProcessIn(time.Hour)}, "ProcessAt": {ProcessAt(time.UnixMilli(maxDueMS))}, "Retry": {Retry(0)},
		"Backoff": {Backoff(3*time.Second, time.Hour)}, "Timeout": {Timeout(90 * time.Second)}, "ExpireAt": {ExpireAt(time.UnixMilli(maxDueMS - 1))},
		"ExpireIn": {ExpireIn(time.Hour)}, "Retention": {Retention(time.Minute)}, "Header": {Header("", "a"), Header("b", "\xff")},
		"all": {
			ProcessIn(time.Hour), Retry(7), Backoff(3*time.Second, time.Hour), Timeout(90 * time.Second), ExpireIn(2 * time.Hour), Retention(time.Minute),
			Header("k", "v"),
		},
	}
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		for name, opts := range options {
			_, err := c.Enqueue(ctx, "topic", name, []byte("payload of "+name), opts...)
			require.NoError(t, err)
			from, err := c.Get(ctx, "topic", name)
			require.NoError(t, err)
			_, err = c.Enqueue(ctx, "elsewhere", from.ID, from.Payload, from.Options()...)
			require.NoError(t, err)
			to, err := c.Get(ctx, "elsewhere", name)
			require.NoError(t, err)
			if from.State == StateReady {
				require.Equal(t, StateReady, to.State)
				to.Due = from.Due // both are due at once
			}
			require.Equal(t, told(from), told(to), name)

			page, err := inspectorOf(c).Jobs(ctx, Query{Topic: "topic", State: from.State, Limit: 1})
			require.NoError(t, err)
			_, err = c.Enqueue(ctx, "nowhere", name, nil, page.Jobs[0].Options()...)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, "the payload was not read")
		}
		// What has been moved since its enqueueing is due when it is due now.
		require.NoError(t, c.Reschedule(ctx, "topic", "all", ProcessIn(90*time.Minute)))
		from, err := c.Get(ctx, "topic", "all")
		require.NoError(t, err)
		job, err := c.Enqueue(ctx, "later", "all", from.Payload, from.Options()...)
		require.NoError(t, err)
		require.Equal(t, from.Due, job.Due)

		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Pool, "none", "garbage").Err())
		from, err = c.Get(ctx, "topic", "none")
		require.NoError(t, err)
		_, err = c.Enqueue(ctx, "later", "none", nil, from.Options()...)
		require.ErrorContains(t, err, "could not be read")
	})
}

// told is what the options of a job gave, as Get tells it.
func told(info *JobInfo) map[string]any {
	return map[string]any{
		"payload": string(info.Payload), "headers": info.Headers, "retries": info.Retries, "due": info.Due, "timeout": info.Timeout,
		"expires": info.ExpireAt, "retention": info.Retention, "backoff": []time.Duration{info.BackoffFirst, info.BackoffLimit},
	}
}

// Rules that an earlier release accepted and Cron refuses today, as that release stored them, and
// what their errors say.
var storedRules = map[string]string{
	"*/90 * * * *": "@every 90m", "5/15 * * * *": "write 5-59/15", "0 0 ? * 1": "write *", "0,,30 * * * *": "empty entry", "+5 * * * *": "plus sign",
}

// A stored rule that is refused today is kept and has slots, whatever is done with its schedule. A
// new one is refused wherever it comes from, and changes nothing.
func TestStoredRulesAreKept(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		for rule, say := range storedRules {
			stored := Spec{rule: Cron(rule, "Europe/Berlin").rule} // as an earlier release saw it
			require.NoError(t, c.Schedule(ctx, "topic", "s", stored, []byte("payload")))
			read := func() *ScheduleInfo {
				info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
				require.NoError(t, err)
				require.NoError(t, info.Undecodable)
				require.Equal(t, stored, info.Spec)
				require.ErrorContains(t, info.RuleError, "no longer accepted")
				require.ErrorContains(t, info.RuleError, say)
				return info
			}
			require.True(t, read().NextSlot.After(time.Now()))
			list, err := inspectorOf(c).Schedules(ctx, "topic")
			require.NoError(t, err)
			require.ErrorContains(t, list[0].RuleError, say)

			require.NoError(t, c.PauseSchedule(ctx, "topic", "s"))
			require.NoError(t, c.ResumeSchedule(ctx, "topic", "s"))
			require.NotEmpty(t, must(c.Trigger(ctx, "topic", "s")))
			require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error { def.Payload = []byte("new"); return nil }))
			info := read()
			require.Equal(t, "new", string(info.Payload))
			require.False(t, info.NextSlot.IsZero())

			before := redistest.Dump(t, h.RDB, h.Prefix())
			for _, err := range []error{
				c.Schedule(ctx, "topic", "s", Cron(rule, "Europe/Berlin"), []byte("other")),
				c.Schedule(ctx, "topic", "new", Cron(rule, ""), nil),
				c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error { def.Spec = Cron(rule, ""); return nil }),
			} {
				require.ErrorIs(t, err, ErrInvalid)
				require.ErrorContains(t, err, say)
				require.ErrorContains(t, err, " at byte ")
			}
			require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
			require.NoError(t, c.Schedule(ctx, "topic", "s", Cron("0 9 * * 1", ""), nil, DiscardEdits()))
			info, err = inspectorOf(c).Schedule(ctx, "topic", "s")
			require.NoError(t, err)
			require.NoError(t, info.RuleError)
		}
		newer := Spec{rule: record.Spec{Kind: record.Cron, Text: "0 0 L * *"}}
		_, err := compiled(newer)
		require.ErrorContains(t, err, "use a calendar")
	})
}

// clientOf returns a client of the queue that a Hand's topic is in.
func clientOf(h *hand.Hand) *Client { return NewClient(h.RDB, Prefix(h.Prefix())) }

// inspectorOf returns an inspector of the queue of a client.
func inspectorOf(c *Client) *Inspector { return NewInspector(c.rdb, Prefix(c.o.prefix)) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// The column of a row of an outbox says what becomes of a job with its ID. What no release has
// written is refused, because Redis would refuse a call with it as a whole.
func TestRowReplaces(t *testing.T) {
	for _, text := range []string{"", "r", "w", "d", "l", "b/60000", "b/2592000000!5", "r!5", "l!3153600000000", "!1"} {
		var o jobOptions
		require.NoError(t, o.readReplaces(text), text)
		require.Equal(t, text, replacesText(&o))
	}
	for _, text := range []string{
		"x", "rr", "b", "l/5", "b/0", "/5", "b/2592000001", "r!", "r!0", "r!3153600000001", "r!-1", "!5!5", "b!5/5", "r 5", "b/60000000000000000000",
	} {
		require.ErrorContains(t, new(jobOptions).readReplaces(text), "it replaces", text)
	}

	// A burst that a Reschedule has ended keeps its due time, and leaves a running job alone.
	o := jobOptions{Options: record.Options{DueAt: 5}}
	require.NoError(t, o.readReplaces("b/60000"))
	require.Equal(t, commit.ReplaceLatest, o.replace)
	require.Equal(t, "l5", o.when())

	// The wait counts from the call, and the record has it as it was given.
	o = jobOptions{Options: record.Options{DueIn: 5000}}
	require.NoError(t, o.readReplaces("b/60000"))
	o.age(1000)
	require.Equal(t, "b+4000/60000", o.when())
	require.EqualValues(t, 5000, o.DueIn)
	o.age(9000)
	require.Equal(t, "b+0/60000", o.when())
}
