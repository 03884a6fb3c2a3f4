package delayq_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
)

// patience bounds what happens at once on a healthy system but not on a fake clock. It is only
// reached when something is broken.
const patience = 2 * time.Minute

// until polls on a real clock.
func until(t *testing.T, ok func() bool, what ...any) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, what...)
}

// receive takes a value from a channel on a real clock.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// A bubble is a queue on an embedded Redis in a synctest bubble. Every call to Redis takes no time
// there, so what a server does at once it does at the very same instant of the fake clock.
type bubble struct {
	*testing.T
	redis  *embedded.Redis
	rdb    *redis.Client
	client *delayq.Client
	began  time.Time
}

const bubblePrefix = "q"

func inBubble(t *testing.T, test func(b *bubble)) {
	t.Helper()
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		test(&bubble{T: t, redis: r, rdb: rdb, client: delayq.NewClient(rdb, delayq.Prefix(bubblePrefix)), began: time.Now()})
	})
}

// pass lets d go by, and then everything that is due at that instant.
func (b *bubble) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// at is the fake time since the beginning.
func (b *bubble) at() time.Duration { return time.Since(b.began) }

func (b *bubble) enqueue(topic, id string, opts ...delayq.JobOption) *delayq.Job {
	b.Helper()
	job, err := b.client.Enqueue(b.Context(), topic, id, []byte("of "+id), opts...)
	require.NoError(b, err)
	return job
}

// state is where a job stands, "" if there is no such job.
func (b *bubble) state(topic, id string) delayq.State {
	b.Helper()
	return stateOf(b.T, b.client, topic, id)
}

func stateOf(t *testing.T, client *delayq.Client, topic, id string) delayq.State {
	t.Helper()
	info, err := client.Get(t.Context(), topic, id)
	if err != nil {
		require.ErrorIs(t, err, delayq.ErrNotFound)
		return ""
	}
	return info.State
}

func (b *bubble) get(topic, id string) *delayq.JobInfo {
	b.Helper()
	info, err := b.client.Get(b.Context(), topic, id)
	require.NoError(b, err)
	return info
}

func (b *bubble) counter(topic string, name delayq.Counter) int64 {
	b.Helper()
	return counterOf(b.T, b.client, topic, name)
}

func counterOf(t *testing.T, client *delayq.Client, topic string, name delayq.Counter) int64 {
	t.Helper()
	info, err := client.Inspect(t.Context(), topic)
	require.NoError(t, err)
	n, known := info.Counters[name]
	require.True(t, known, name)
	return n
}

// loadScripts makes Redis know all scripts, so that requests name them by their digests only.
func (b *bubble) loadScripts() {
	b.Helper()
	require.NoError(b, delayq.LoadScripts(b.Context(), b.rdb))
}

// serve runs a server with one handler on the bubble's own client.
func (b *bubble) serve(topic string, h delayq.HandlerFunc, opts ...delayq.ServerOption) *served {
	b.Helper()
	s := serve(b.T, b.rdb, bubblePrefix, topic, h, opts...)
	synctest.Wait()
	return s
}

// serveOn is serve for a server that has a network of its own.
func (b *bubble) serveOn(w *wire, topic string, h delayq.HandlerFunc, opts ...delayq.ServerOption) *served {
	b.Helper()
	s := serve(b.T, w.client(b.T), bubblePrefix, topic, h, opts...)
	synctest.Wait()
	return s
}

// A served is a server that runs until the end of the test.
type served struct {
	*delayq.Server
	end  context.CancelFunc
	done chan struct{} // closed when Run has returned
	err  error         // what Run returned; read it after done
}

// stop ends the server, waits for it and returns the error of Run.
func (s *served) stop() error {
	s.end()
	<-s.done
	return s.err
}

// quiet keeps the log out of the way; options that follow override it.
func quiet(prefix string) []delayq.ServerOption {
	return []delayq.ServerOption{delayq.Prefix(prefix), delayq.Logger(slog.New(slog.DiscardHandler)), delayq.Drain(time.Second)}
}

func serve(t *testing.T, rdb redis.UniversalClient, prefix, topic string, h delayq.HandlerFunc, opts ...delayq.ServerOption) *served {
	t.Helper()
	return serveMany(t, rdb, prefix, func(s *delayq.Server) { s.HandlerFunc(topic, h) }, opts...)
}

// serveMany runs a server and, at the end of the test, stops it.
func serveMany(t *testing.T, rdb redis.UniversalClient, prefix string, setup func(*delayq.Server), opts ...delayq.ServerOption) *served {
	t.Helper()
	s := &served{Server: delayq.AsWorker(delayq.NewServer(rdb, append(quiet(prefix), opts...)...)), done: make(chan struct{})}
	setup(s.Server)
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(s.done)
		s.err = s.Run(ctx)
	}()
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

func zsetMember(id string, at time.Time) redis.Z {
	return redis.Z{Score: float64(at.UnixMilli()), Member: id}
}

// A start is one call of a handler.
type start struct {
	id      string
	attempt int
	at      time.Time // by the local clock
	started time.Time // by Redis's clock
	due     time.Time
	payload string
}

// A recorder notes the calls of handlers.
type recorder struct {
	mu   sync.Mutex
	list []start
}

// then makes a handler that notes its call and goes on with f; with nil it succeeds.
func (r *recorder) then(f delayq.HandlerFunc) delayq.HandlerFunc {
	return func(ctx context.Context, job *delayq.Job) error {
		r.mu.Lock()
		r.list = append(r.list, start{job.ID, job.Attempt, time.Now(), job.StartedAt, job.Due, string(job.Payload)})
		r.mu.Unlock()
		if f == nil {
			return nil
		}
		return f(ctx, job)
	}
}

func (r *recorder) all() []start {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func (r *recorder) ids() []string {
	var ids []string
	for _, s := range r.all() {
		ids = append(ids, s.id)
	}
	return ids
}

func (r *recorder) of(id string) []start {
	return slices.DeleteFunc(r.all(), func(s start) bool { return s.id != id })
}

// times tells how often each job was started.
func (r *recorder) times() map[string]int {
	n := make(map[string]int)
	for _, id := range r.ids() {
		n[id]++
	}
	return n
}

// A logbook keeps what is logged, a line for each record.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

// to makes the server write into the logbook.
func (l *logbook) to() delayq.ServerOption {
	return delayq.Logger(slog.New(slog.NewTextHandler(l, nil)))
}

// with gives the lines that have all the parts.
func (l *logbook) with(parts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

// A told is a value of all hook interfaces: it notes what it is told, under the name of the method.
type told struct {
	mu      sync.Mutex
	runs    map[string][]delayq.RunEvent
	scripts []delayq.ScriptEvent
	prunes  []delayq.PruneEvent
}

func (h *told) note(name string, e delayq.RunEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs == nil {
		h.runs = make(map[string][]delayq.RunEvent)
	}
	h.runs[name] = append(h.runs[name], e)
}

func (h *told) Started(e delayq.RunEvent)   { h.note("Started", e) }
func (h *told) Done(e delayq.RunEvent)      { h.note("Done", e) }
func (h *told) Again(e delayq.RunEvent)     { h.note("Again", e) }
func (h *told) Retried(e delayq.RunEvent)   { h.note("Retried", e) }
func (h *told) Snoozed(e delayq.RunEvent)   { h.note("Snoozed", e) }
func (h *told) Buried(e delayq.RunEvent)    { h.note("Buried", e) }
func (h *told) Cancelled(e delayq.RunEvent) { h.note("Cancelled", e) }
func (h *told) Replaced(e delayq.RunEvent)  { h.note("Replaced", e) }
func (h *told) LeaseLost(e delayq.RunEvent) { h.note("LeaseLost", e) }
func (h *told) Expired(e delayq.RunEvent)   { h.note("Expired", e) }
func (h *told) Returned(e delayq.RunEvent)  { h.note("Returned", e) }
func (h *told) Late(e delayq.RunEvent)      { h.note("Late", e) }

func (h *told) Pruned(e delayq.PruneEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prunes = append(h.prunes, e)
}

// pruned gives the events of Pruned, added up.
func (h *told) pruned() (sum delayq.PruneEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.prunes {
		sum.Topic, sum.Dead, sum.Done = e.Topic, sum.Dead+e.Dead, sum.Done+e.Done
	}
	return sum
}

func (h *told) Script(e delayq.ScriptEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scripts = append(h.scripts, e)
}

// of gives the events of one kind, of all jobs or of those named.
func (h *told) of(name string, ids ...string) []delayq.RunEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.runs[name]), func(e delayq.RunEvent) bool {
		return len(ids) > 0 && !slices.Contains(ids, e.ID)
	})
}

// total tells how many events of a kind there were: of gives a copy, and of thousands it holds up
// who has more to tell.
func (h *told) total(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.runs[name])
}

// kinds tells how many events of each kind there were for a job.
func (h *told) kinds(id string) map[string]int {
	h.mu.Lock()
	names := slices.Collect(maps.Keys(h.runs))
	h.mu.Unlock()
	n := make(map[string]int)
	for _, name := range names {
		if k := len(h.of(name, id)); k > 0 {
			n[name] = k
		}
	}
	return n
}

// calls tells how many calls of a script there were, for all topics or for those named.
func (h *told) calls(script string, topics ...string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.scripts {
		if e.Name == script && (len(topics) == 0 || slices.Contains(topics, e.Topic)) {
			n++
		}
	}
	return n
}
