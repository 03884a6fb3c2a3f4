package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	_ "github.com/delayq/delayq/cmd/delayq/internal/part/all"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/outbox"
)

// A stub is a kind for tests. Its jobs are noted, and wait until they are let go.
type stub struct {
	name   string
	of     *rig
	blocks bool
	broken error // of handler
	opens  *databaseConfig
}

func (s *stub) same() any { return [2]any{s.name, s.blocks} }
func (s *stub) databases() []*databaseConfig {
	if s.opens == nil {
		return nil
	}
	return []*databaseConfig{s.opens}
}
func (s *stub) task([]byte) string      { return "" }
func (s *stub) complaint([]byte) string { return "" }

func (s *stub) handler(_ *delayq.Client, open func(*databaseConfig) (*pool, error)) (delayq.Handler, error) {
	if s.opens != nil {
		if _, err := open(s.opens); err != nil {
			return nil, err
		}
	}
	if s.broken != nil {
		return nil, s.broken
	}
	return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
		s.of.note(job.ID + " by " + s.name)
		if s.blocks {
			select {
			case <-s.of.let:
			case <-ctx.Done():
				s.of.note(job.ID + " cancelled")
				return ctx.Err()
			}
		}
		s.of.note(job.ID + " ended")
		return nil
	}), nil
}

// A rig is a worker in a bubble.
type rig struct {
	*queuetest.Bubble
	worker *Worker
	next   atomic.Pointer[File] // what is loaded; nil: a mistake
	reload chan struct{}
	let    chan struct{} // lets a job go on
	log    queuetest.Logbook
	end    context.CancelFunc
	done   chan error

	mu    sync.Mutex
	notes []string
}

func (r *rig) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, text)
}

// told returns the notes since the last call.
func (r *rig) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.notes
	r.notes = nil
	return list
}

func (r *rig) topic(name string, does *stub, schedules ...*schedule) *Topic {
	does.of = r
	return &Topic{Name: name, kind: does, settings: settings{concurrency: 10}, schedules: schedules}
}

func tick(name string, every time.Duration) *schedule {
	return &schedule{name: name, spec: delayq.Every(every), options: []delayq.ScheduleOption{delayq.Header(HeaderFrom, FromFile)}}
}

func fileOf(topics ...*Topic) *File { return &File{Topics: topics, redact: newRedactor(nil)} }

// inRig runs a worker with a file in a bubble.
func inRig(t *testing.T, first func(r *rig) *File, test func(r *rig)) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := &rig{Bubble: b, reload: make(chan struct{}), let: make(chan struct{}), done: make(chan error, 1)}
		r.worker = &Worker{Client: b.Client, Inspector: b.Inspector, Log: slog.New(slog.NewTextHandler(&r.log, nil)), Load: func() (*File, []Mistake) {
			if f := r.next.Load(); f != nil {
				return f, nil
			}
			return nil, []Mistake{{"worker.yaml", 3, 5, "retry: x"}, {"worker.yaml", 4, 5, "unknown"}}
		}}
		require.NoError(t, r.worker.Start(queuetest.NewServer(b.RDB, queuetest.Prefix, delayq.Drain(time.Hour)), first(r)))
		var ctx context.Context
		ctx, r.end = context.WithCancel(context.WithoutCancel(b.Context()))
		go func() { r.done <- r.worker.Run(ctx, r.reload) }()
		defer func() {
			r.end()
			require.NoError(t, <-r.done)
			require.Empty(t, r.worker.pools.open)
		}()
		r.Pass(time.Second)
		test(r)
	})
}

// load loads a file anew.
func (r *rig) load(f *File) {
	r.next.Store(f)
	r.reload <- struct{}{}
	r.Pass(5 * time.Second)
}

// names returns the schedules of a topic.
func (r *rig) names(topic string) (list []string) {
	found, err := r.Inspector.Schedules(r.Context(), topic)
	require.NoError(r, err)
	for _, s := range found {
		list = append(list, s.Name+" "+s.Spec.String())
	}
	slices.Sort(list)
	return list
}

// Topics of a new file are served, and those that it lacks are not. A running job has its handler
// still.
func TestReload(t *testing.T) {
	inRig(t, func(r *rig) *File {
		return fileOf(r.topic("a", &stub{name: "one", blocks: true}), r.topic("b", &stub{name: "b"}))
	}, func(r *rig) {
		r.Enqueue("a", "1")
		r.Enqueue("b", "2")
		r.Pass(time.Second)
		require.ElementsMatch(t, []string{"1 by one", "2 by b", "2 ended"}, r.told())

		r.load(fileOf(r.topic("a", &stub{name: "two"}), r.topic("c", &stub{name: "c"})))
		r.Enqueue("a", "3")
		r.Enqueue("b", "4")
		r.Enqueue("c", "5")
		r.Pass(time.Second)
		require.ElementsMatch(t, []string{"3 by two", "3 ended", "5 by c", "5 ended"}, r.told())
		require.Equal(t, delayq.StateReady, r.State("b", "4"))
		require.Equal(t, delayq.StateRunning, r.State("a", "1"))
		r.let <- struct{}{}
		r.Pass(time.Second)
		require.Equal(t, []string{"1 ended"}, r.told())

		r.load(fileOf(r.topic("a", &stub{name: "two"}), r.topic("b", &stub{name: "b"})))
		require.Equal(t, []string{"4 by b", "4 ended"}, r.told())
	})
}

// Settings of a topic change when its running jobs have ended. Other topics, and the handler of the
// topic, do not wait for that. Of several changes meanwhile, the last one counts.
func TestReloadOfSettings(t *testing.T) {
	inRig(t, func(r *rig) *File { return fileOf(r.topic("a", &stub{name: "one", blocks: true})) }, func(r *rig) {
		r.Enqueue("a", "1")
		r.Pass(time.Second)
		for n, retry := range []int{5, 0, 7} {
			changed := r.topic("a", &stub{name: "two"})
			changed.settings.concurrency, changed.settings.job = n+1, jobSettings{retries: true, retry: retry}
			topics := []*Topic{changed, r.topic("b", &stub{name: "b"})}
			if n == 1 {
				topics = topics[1:] // it is even removed
			}
			r.load(fileOf(topics...))
		}
		r.Enqueue("a", "2")
		r.Enqueue("b", "3")
		r.Pass(time.Second)
		require.Equal(t, []string{"1 by one", "3 by b", "3 ended"}, r.told())
		r.let <- struct{}{}
		r.Pass(time.Second)
		require.Equal(t, []string{"1 ended", "2 by two", "2 ended"}, r.told())
		r.Pass(time.Minute) // for a heartbeat
		servers, err := r.Inspector.Servers(r.Context())
		require.NoError(t, err)
		require.Equal(t, 3, servers[0].Topics["a"].Workers)
	})
}

// A bad file changes nothing, and the log has each mistake with its place.
func TestBadFile(t *testing.T) {
	inRig(t, func(r *rig) *File { return fileOf(r.topic("a", &stub{name: "one"}, tick("s", time.Hour))) }, func(r *rig) {
		r.load(nil)
		require.Len(t, r.log.With("mistake in the file", `at="worker.yaml:3:5: retry: x"`), 1)
		require.Len(t, r.log.With("mistake in the file", "worker.yaml:4:5"), 1)
		require.Len(t, r.log.With("everything goes on as before", "mistakes=2"), 1)
		// So does one whose handler cannot be made.
		r.load(fileOf(r.topic("a", &stub{name: "two"}), r.topic("b", &stub{name: "b", broken: errors.New("no such file")})))
		require.Len(t, r.log.With("everything goes on as before", "no such file"), 1)
		r.Enqueue("a", "1")
		r.Pass(time.Second)
		require.Equal(t, []string{"1 by one", "1 ended"}, r.told())
		require.Equal(t, []string{"s every 1h0m0s"}, r.names("a"))

		later := fileOf(r.topic("a", &stub{name: "two"}))
		later.Server.Lease = time.Minute
		r.load(later)
		require.Len(t, r.log.With("needs a restart"), 1)
	})
}

// The schedules in Redis are those of the file. Others remain.
func TestSchedulesOfTheFile(t *testing.T) {
	inRig(t, func(r *rig) *File {
		require.NoError(t, r.Client.Schedule(r.Context(), "a", "mine", delayq.Every(time.Hour), nil, delayq.Header(HeaderFrom, FromCommand)))
		require.NoError(t, r.Client.Schedule(r.Context(), "a", "program", delayq.Every(time.Hour), nil))
		require.NoError(t, r.Client.Schedule(r.Context(), "a", "old", delayq.Every(time.Hour), nil, delayq.Header(HeaderFrom, FromFile)))
		return fileOf(r.topic("a", &stub{name: "one"}, tick("s", time.Hour), tick("gone", time.Hour)), r.topic("b", &stub{name: "b"}, tick("b", time.Hour)))
	}, func(r *rig) {
		require.NoError(t, r.Client.Schedule(r.Context(), "b", "task", delayq.Every(time.Hour), nil, delayq.Header(HeaderFrom, FromCommand)))
		require.Equal(t, []string{"gone every 1h0m0s", "mine every 1h0m0s", "program every 1h0m0s", "s every 1h0m0s"}, r.names("a"))
		require.NoError(t, r.Client.PauseSchedule(r.Context(), "a", "s"))
		r.load(fileOf(r.topic("a", &stub{name: "one"}, tick("s", time.Minute))))
		require.Equal(t, []string{"mine every 1h0m0s", "program every 1h0m0s", "s every 1m0s"}, r.names("a"))
		require.Equal(t, []string{"task every 1h0m0s"}, r.names("b"))
		info, err := r.Inspector.Schedule(r.Context(), "a", "s")
		require.NoError(t, err)
		require.Equal(t, delayq.SchedulePaused, info.State)
	})
}

// Limits that somebody has set remain, and the log says so.
func TestLimitsThatWereSet(t *testing.T) {
	limited := func(r *rig, n int) *File {
		topic := r.topic("a", &stub{name: "one"})
		topic.settings.limits = delayq.Limits{Running: n}
		return fileOf(topic)
	}
	inRig(t, func(r *rig) *File { return limited(r, 3) }, func(r *rig) {
		require.Equal(t, 3, r.Stats("a").Limits.Running)
		require.Empty(t, r.log.With("limits"))
		r.load(limited(r, 5))
		require.Equal(t, 3, r.Stats("a").Limits.Running)
		require.Len(t, r.log.With("others were set before", "topic=a", `limits="running 3"`, `file="running 5"`), 1)
	})
}

// Without Redis, schedules are written later, and the log says it once.
func TestSchedulesWithoutRedis(t *testing.T) {
	inRig(t, func(r *rig) *File { return fileOf(r.topic("a", &stub{name: "one"})) }, func(r *rig) {
		r.Redis.SetError("LOADING Redis is loading the dataset in memory")
		r.load(fileOf(r.topic("a", &stub{name: "one"}, tick("s", time.Hour))))
		r.Pass(time.Minute)
		require.Len(t, r.log.With("schedules not written"), 1)
		r.Redis.SetError("")
		r.Pass(mostPause)
		require.Equal(t, []string{"s every 1h0m0s"}, r.names("a"))
	})
}

// At the end running jobs have the time that the file says.
func TestDrain(t *testing.T) {
	inRig(t, func(r *rig) *File { return fileOf(r.topic("a", &stub{name: "one", blocks: true})) }, func(r *rig) {
		r.Enqueue("a", "1")
		r.Enqueue("a", "2")
		r.Pass(time.Second)
		r.load(fileOf()) // the topic is being removed
		r.end()
		r.Pass(time.Minute)
		r.let <- struct{}{}
		r.Pass(time.Hour)
		require.ElementsMatch(t, []string{"1 by one", "2 by one"}, r.told()[:2])
		require.Contains(t, []delayq.State{r.State("a", "1"), r.State("a", "2")}, delayq.StateReady)
		synctest.Wait()
	})
}

// A pool is shared by topics with the same database. It is closed when no topic has it and no job
// uses it.
func TestPools(t *testing.T) {
	var all pools
	one := &databaseConfig{name: "one", dialect: outbox.SQLite, address: "file:" + t.TempDir() + "/x.db", connections: 3}
	two := *one
	two.name = "two"
	p, err := all.get(one)
	require.NoError(t, err)
	same, err := all.get(&two)
	require.NoError(t, err)
	require.Same(t, p, same)

	v := &version{handler: delayq.HandlerFunc(func(ctx context.Context, _ *delayq.Job) error { return p.db.PingContext(ctx) }), uses: 1, pools: []*pool{p}, redact: newRedactor(nil)}
	c := &current{version: v}
	v.enter() // a job
	c.set(nil)
	same.done()
	require.NoError(t, p.db.PingContext(t.Context()))
	v.leave()
	require.ErrorContains(t, p.db.PingContext(t.Context()), "database is closed")
	require.Empty(t, all.open)
	again, err := all.get(one)
	require.NoError(t, err)
	require.NotSame(t, p, again)
	again.done()
}
