package faults_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
)

func TestMain(m *testing.M) {
	rig.WorkerMain()
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given { // the tests wait most of the time
		_ = flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))) // a number
	}
	os.Exit(m.Run())
}

// Times of most tests. The lease is short, so that what a crash leaves behind comes back soon.
const (
	lease   = time.Second
	patient = 20 * time.Second // how long to wait for what should come at once, on a machine that is busy
)

// A bench is what a test works on: a Redis of its own that keeps what it has answered, a proxy in
// front of it, and a history.
type bench struct {
	t       *testing.T
	server  *redistest.Server
	proxy   *rig.Proxy
	direct  *redis.Client         // past the proxy
	cluster redis.UniversalClient // all nodes; nil: there is no Cluster
	rec     *rig.Recorder
	history *rig.History
	prefix  string
	client  *rig.Client // past the proxy
	options check.Options
}

// newBench starts it all. args are further ones of redis-server. The test runs in parallel with
// others from here on.
func newBench(t *testing.T, args ...string) *bench {
	t.Helper()
	t.Parallel()
	return newLoneBench(t, args...)
}

// newLoneBench is newBench for a test that runs alone.
func newLoneBench(t *testing.T, args ...string) *bench {
	t.Helper()
	b := &bench{
		t: t, server: redistest.Start(t, slices.Concat(redistest.AOF, args)...), prefix: redistest.Prefix(t),
		history: rig.NewHistory(t.TempDir()), options: check.Options{Lease: lease},
	}
	b.direct = b.server.Client(t)
	b.proxy = b.newProxy(b.server.Addr())
	var err error
	b.rec, err = rig.NewRecorder(b.history.Dir(), "test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.rec.Close()) })
	b.client = b.newClient(b.direct)
	return b
}

func (b *bench) newProxy(target string) *rig.Proxy {
	b.t.Helper()
	p, err := rig.NewProxy(target)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = p.Close() })
	return p
}

func (b *bench) newClient(rdb redis.UniversalClient) *rig.Client {
	return rig.NewClient(rdb, b.rec, delayq.Prefix(b.prefix))
}

// through is a client of Redis that goes through a proxy.
func (b *bench) through(p *rig.Proxy, change ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{
		Addr: p.Addr(), DialTimeout: time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, f := range change {
		f(o)
	}
	rdb := redis.NewClient(o)
	b.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// config is that of a worker on the topic t that reaches Redis through the proxy.
func (b *bench) config(name string) rig.WorkerConfig {
	return rig.WorkerConfig{
		Name: name, Dir: b.history.Dir(), Redis: rig.Redis{Addr: b.proxy.Addr()}, Prefix: b.prefix, Topics: []string{"t"},
		Slots: 10, Lease: lease, Drain: 500 * time.Millisecond,
	}
}

// worker starts a worker process, which ends with the test.
func (b *bench) worker(name string, change ...func(*rig.WorkerConfig)) *rig.Worker {
	b.t.Helper()
	c := b.config(name)
	for _, f := range change {
		f(&c)
	}
	w, err := rig.StartWorker(c, b.rec)
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("%s:\n%s", name, w.Tail(4000))
		}
		_ = w.Cont()
		_ = w.Kill()
		if crash := w.Crashes(); crash != "" {
			b.t.Errorf("%s crashed:\n%s", name, crash)
		}
	})
	return w
}

// A running is a server in this process.
type running struct {
	*delayq.Server
	log  *lockedBuffer
	stop context.CancelFunc
	err  chan error
}

// serve runs a server in this process, which ends with the test.
func (b *bench) serve(rdb redis.UniversalClient, setup func(*delayq.Server), opts ...delayq.ServerOption) *running {
	log := &lockedBuffer{}
	opts = append([]delayq.ServerOption{
		delayq.Prefix(b.prefix), delayq.Lease(lease), delayq.Drain(500 * time.Millisecond),
		delayq.Logger(slog.New(slog.NewTextHandler(log, nil))),
	}, opts...)
	ctx, stop := context.WithCancel(context.Background())
	r := &running{delayq.NewServer(rdb, opts...), log, stop, make(chan error, 1)}
	setup(r.Server)
	go func() { r.err <- r.Run(ctx) }()
	b.t.Cleanup(func() {
		stop()
		if b.t.Failed() {
			b.t.Logf("log of the server:\n%s", log.String())
		}
	})
	return r
}

// end stops a server and tells how long that took.
func (r *running) end(t *testing.T) time.Duration {
	t.Helper()
	begin := time.Now()
	r.stop()
	select {
	case err := <-r.err:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Run does not return")
	}
	return time.Since(begin)
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// put enqueues tasks "0", "1" … of one kind.
func (b *bench) put(n int, t rig.Task) []*rig.Task {
	b.t.Helper()
	if t.Topic == "" {
		t.Topic = "t"
	}
	list := make([]*rig.Task, n)
	var wg sync.WaitGroup
	for i := range n {
		task := t
		if task.ID == "" || n > 1 {
			task.ID = fmt.Sprintf("%s%d", t.ID, i)
		}
		list[i] = &task
		wg.Go(func() {
			if err := b.client.Put(context.Background(), &task, false); err != nil {
				b.t.Errorf("put: %v", err)
			}
		})
	}
	wg.Wait()
	return list
}

// await waits for something in the history.
func (b *bench) await(what string, limit time.Duration, holds func(events []rig.Event) bool) {
	b.t.Helper()
	ok, err := b.history.Await(limit, holds)
	require.NoError(b.t, err)
	require.True(b.t, ok, "%s: not within %v", what, limit)
}

// events returns those that match.
func (b *bench) events(match func(e rig.Event) bool) []rig.Event {
	b.t.Helper()
	all, err := b.history.Events()
	require.NoError(b.t, err)
	return filter(all, match)
}

func filter(all []rig.Event, match func(e rig.Event) bool) (found []rig.Event) {
	for _, e := range all {
		if match(e) {
			found = append(found, e)
		}
	}
	return found
}

// awaitN waits until so many events match.
func (b *bench) awaitN(n int, what string, match func(e rig.Event) bool) []rig.Event {
	b.t.Helper()
	var found []rig.Event
	b.await(fmt.Sprintf("%d × %s", n, what), patient, func(events []rig.Event) bool {
		found = filter(events, match)
		return len(found) >= n
	})
	return found
}

// busy waits until so many events of one of the workers match since from, and returns that worker,
// the first one if there are several. Which of them has jobs is up to the machine.
func (b *bench) busy(workers []*rig.Worker, n int, what string, from int64, match func(e rig.Event) bool) (found *rig.Worker) {
	b.t.Helper()
	b.await(fmt.Sprintf("%d × %s of one worker", n, what), patient, func(events []rig.Event) bool {
		for _, found = range workers {
			mine := by(found.Name(), match)
			if len(filter(events, func(e rig.Event) bool { return e.Mono > from && mine(e) })) >= n {
				return true
			}
		}
		return false
	})
	return found
}

// is matches events.
func is(op, result string) func(e rig.Event) bool {
	return func(e rig.Event) bool { return e.Op == op && (result == "" || e.Result == result) }
}

// by matches events of a process.
func by(proc string, match func(rig.Event) bool) func(e rig.Event) bool {
	return func(e rig.Event) bool { return e.Proc == proc && match(e) }
}

// fault notes what a test does to the network, so that the check knows of it. heal ends it.
func (b *bench) fault(kind string) (heal func()) {
	b.rec.Record(rig.Event{Op: rig.OpFault, Result: kind})
	return func() { b.rec.Record(rig.Event{Op: rig.OpHeal, Result: kind}) }
}

// eventually waits until a question that costs Redis something is answered with yes.
func eventually(t *testing.T, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	if !within(limit, holds) {
		t.Fatalf("%s: not within %v", what, limit)
	}
}

// within is eventually for a goroutine that must not end the test: it reports whether the answer
// was yes in time.
func within(limit time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// state reads all that Redis holds of the queue.
func (b *bench) state() (*check.State, error) {
	if b.cluster != nil {
		return check.Read(context.Background(), b.cluster, b.prefix)
	}
	return check.Read(context.Background(), b.direct, b.prefix)
}

// drained waits until no job is left but dead ones.
func (b *bench) drained(limit time.Duration) {
	b.t.Helper()
	var left []check.Violation
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		state, err := b.state()
		require.NoError(b.t, err)
		if left = check.Empty(state); len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	b.t.Fatalf("not drained within %v: %v", limit, left[:min(len(left), 5)])
}

// judge drains the queue and holds the whole history to all promises.
func (b *bench) judge() *check.Report {
	b.t.Helper()
	b.drained(patient)
	state, err := b.state()
	require.NoError(b.t, err)
	events, err := b.history.Events()
	require.NoError(b.t, err)
	report := check.Check(events, state, b.options)
	for i, v := range report.Violations {
		if i == 10 {
			break
		}
		b.t.Error(v)
	}
	b.t.Log(report)
	return report
}

// errorsIn counts lines of a log that have all the words.
func errorsIn(log string, words ...string) (n int) {
lines:
	for line := range strings.Lines(log) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		n++
	}
	return n
}
