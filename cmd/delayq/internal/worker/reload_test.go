package worker

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/outbox"
)

// nowhere connects to no database.
type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("nowhere") }
func (nowhere) Driver() driver.Driver                        { return nil }

// However often a file is loaded while jobs start, no job has a database that is closed already,
// and all that are closed are gone in the end.
func TestReloadsTakeNoDatabaseFromAJob(t *testing.T) {
	all := &pools{open: map[poolKey]*pool{}}
	closed := errors.New("the database is closed")
	made := 0
	load := func() *version {
		made++
		p := &pool{db: sql.OpenDB(nowhere{}), key: poolKey{address: fmt.Sprint(made)}, of: all, uses: 1}
		all.mu.Lock()
		all.open[p.key] = p
		all.mu.Unlock()
		return &version{uses: 1, pools: []*pool{p}, redact: newRedactor(nil), handler: delayq.HandlerFunc(func(context.Context, *delayq.Job) error {
			all.mu.Lock()
			defer all.mu.Unlock()
			if p.uses == 0 {
				return closed
			}
			return nil
		})}
	}
	c := &current{version: load()}
	var jobs sync.WaitGroup
	stop := make(chan struct{})
	errs := make(chan error, 8)
	for range cap(errs) {
		job := delayqtest.NewJob(t, delayq.NewJob{Topic: "a", ID: "1"})
		jobs.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := c.Handle(context.Background(), job); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range 20_000 {
		c.set(load())
	}
	close(stop)
	jobs.Wait()
	require.Empty(t, errs)
	c.set(nil)
	require.Empty(t, all.open)
}

// A file that is loaded several times while Redis is away leaves what the last one says: a topic
// that has left takes its schedules with it, and one that came back keeps them.
func TestReloadsWhileRedisIsAway(t *testing.T) {
	inRig(t, func(r *rig) *File {
		return fileOf(r.topic("a", &stub{name: "a"}, tick("s", time.Hour)), r.topic("b", &stub{name: "b"}, tick("s", time.Hour)), r.topic("c", &stub{name: "c"}, tick("s", time.Hour), tick("t", time.Hour)),
			r.topic("d", &stub{name: "d"}, tick("s", time.Hour), tick("t", time.Hour)))
	}, func(r *rig) {
		require.NoError(t, r.Client.Schedule(r.Context(), "a", "mine", delayq.Every(time.Hour), nil, delayq.Header(HeaderFrom, FromCommand)))
		r.Redis.SetError("LOADING Redis is loading the dataset in memory")
		b, c := r.topic("b", &stub{name: "b"}, tick("s", time.Hour)), r.topic("c", &stub{name: "c"}, tick("s", time.Minute))
		r.load(fileOf(b, r.topic("c", &stub{name: "c"}, tick("s", time.Hour)))) // a and d leave, and a schedule of c
		r.load(fileOf(c))                                                       // b leaves
		r.load(nil)                                                             // a mistake
		b = r.topic("b", &stub{name: "b"}, tick("u", time.Hour))
		r.load(fileOf(b, c, r.topic("d", &stub{name: "d"}, tick("s", time.Hour)))) // b comes back with another one, and d with one of two
		r.Pass(time.Minute)
		require.NotEmpty(t, r.log.With("schedules not written"))
		r.Redis.SetError("")
		r.Pass(mostPause)
		require.Equal(t, []string{"mine every 1h0m0s"}, r.names("a"))
		require.Equal(t, []string{"u every 1h0m0s"}, r.names("b"))
		require.Equal(t, []string{"s every 1m0s"}, r.names("c"))
		require.Equal(t, []string{"s every 1h0m0s"}, r.names("d"))
		require.Len(t, r.log.With("the file was not loaded, and everything goes on as before"), 1)

		// The topics of the last file are served.
		r.told()
		r.Enqueue("b", "1")
		r.Enqueue("a", "1")
		r.Pass(time.Second)
		require.Equal(t, []string{"1 by b", "1 ended"}, r.told())
		require.Equal(t, delayq.StateReady, r.State("a", "1"))
	})
}

// A topic that could not be changed, by one file, is changed by the next.
func TestReloadAfterATopicThatFailed(t *testing.T) {
	inRig(t, func(r *rig) *File { return fileOf(r.topic("a", &stub{name: "a"})) }, func(r *rig) {
		for range 2 {
			bad := r.topic("b", &stub{name: "b"})
			bad.settings.concurrency = -1
			r.load(fileOf(r.topic("a", &stub{name: "a"}), bad))
		}
		require.Len(t, r.log.With("topic not changed", "topic=b"), 2)
		r.load(fileOf(r.topic("a", &stub{name: "a"}), r.topic("b", &stub{name: "b"})))
		r.Enqueue("a", "1")
		r.Enqueue("b", "2")
		r.Pass(time.Second)
		require.ElementsMatch(t, []string{"1 by a", "1 ended", "2 by b", "2 ended"}, r.told())
	})
}

// If a handler cannot be made, nothing of its file takes effect, and the databases that it and the
// handlers before it have opened are closed.
func TestReloadGivesBackWhatItOpened(t *testing.T) {
	inRig(t, func(r *rig) *File { return fileOf(r.topic("a", &stub{name: "a"})) }, func(r *rig) {
		d := &databaseConfig{name: "shop", dialect: outbox.SQLite, address: "file:" + r.TempDir() + "/x.db", connections: 1}
		r.load(fileOf(r.topic("b", &stub{name: "b", opens: d}), r.topic("c", &stub{name: "c", broken: errors.New("no such file")})))
		require.Len(t, r.log.With("the file was not loaded", "no such file"), 1)
		require.Empty(t, r.worker.pools.open)
		r.load(fileOf(r.topic("b", &stub{name: "b", opens: d, broken: errors.New("no such statement")})))
		require.Len(t, r.log.With("the file was not loaded", "no such statement"), 1)
		require.Empty(t, r.worker.pools.open, "nor what it has opened itself")
		r.Enqueue("a", "1")
		r.Pass(time.Second)
		require.Equal(t, []string{"1 by a", "1 ended"}, r.told())
	})
}

// Schedules of a topic that leave the file while those that left it before are being removed are
// removed too, whether the topic was back meanwhile or not.
func TestSchedulesThatLeaveDuringARemoval(t *testing.T) {
	for name, now := range map[string][]string{"one more": {"s", "t"}, "another one": {"t"}} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) *File {
				return fileOf(r.topic("a", &stub{name: "a"}, tick("s", time.Hour), tick("t", time.Hour)), r.topic("b", &stub{name: "b"}))
			}, func(r *rig) {
				w, left := r.worker, fileOf(r.topic("b", &stub{name: "b"}))
				w.mu.Lock()
				w.file, w.gone["a"] = left, []string{"s"}
				w.mu.Unlock()
				r.RDB.AddHook(&afterScript{digest: delayq.Scripts()["schedule_info"], then: func() {
					w.mu.Lock()
					w.gone["a"] = now
					w.mu.Unlock()
					signal(w.synced)
				}})
				signal(w.synced)
				r.Pass(5 * time.Second)
				require.Empty(t, r.names("a"))
				w.mu.Lock()
				defer w.mu.Unlock()
				require.Empty(t, w.gone)
			})
		})
	}
}

// The tables of a database that a new file needs, and that is away when the file is loaded, are
// created when the database is back, as those of the first file are.
func TestTablesAreCreatedLater(t *testing.T) {
	check := func(t *testing.T, load func(r *rig, d *databaseConfig)) {
		dir := t.TempDir() + "/later"
		d := &databaseConfig{
			name: "shop", dialect: outbox.SQLite, address: "file:" + dir + "/x.db", connections: 1, migrate: true, keep: time.Hour, migrated: new(atomic.Bool),
		}
		inRig(t, func(r *rig) *File {
			if load == nil {
				return fileOf(r.topic("b", &stub{name: "b", opens: d}))
			}
			return fileOf(r.topic("a", &stub{name: "a"}))
		}, func(r *rig) {
			if load != nil {
				load(r, d)
			}
			require.NotEmpty(t, r.log.With("tables not created; it is tried again"))
			require.False(t, d.migrated.Load())
			require.NoError(t, os.Mkdir(dir, 0o700))
			r.Pass(2 * dbPause)
			require.True(t, d.migrated.Load())
		})
	}
	t.Run("first", func(t *testing.T) { check(t, nil) })
	t.Run("loaded", func(t *testing.T) {
		check(t, func(r *rig, d *databaseConfig) { r.load(fileOf(r.topic("b", &stub{name: "b", opens: d}))) })
	})
}

// Of two workers that load the same file, one finds a schedule removed already. That is no error.
func TestTwoWorkersRemoveASchedule(t *testing.T) {
	inRig(t, func(r *rig) *File {
		return fileOf(r.topic("a", &stub{name: "a"}, tick("s", time.Hour), tick("t", time.Hour)))
	}, func(r *rig) {
		other := delayq.NewClient(r.Redis.Client(), delayq.Prefix(queuetest.Prefix))
		gone := errors.New("it was not called")
		r.RDB.AddHook(&afterScript{digest: delayq.Scripts()["schedule_info"], then: func() { gone = other.Unschedule(r.Context(), "a", "t") }})
		r.load(fileOf(r.topic("a", &stub{name: "a"}, tick("s", time.Hour))))
		require.NoError(t, gone)
		require.Equal(t, []string{"s every 1h0m0s"}, r.names("a"))
		require.Empty(t, r.log.With("schedules not written"))
	})
}

// An afterScript calls a function once, after a script.
type afterScript struct {
	digest string
	then   func()
}

func (a *afterScript) DialHook(next redis.DialHook) redis.DialHook { return next }
func (a *afterScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (a *afterScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if then := a.then; err == nil && then != nil && len(cmd.Args()) > 1 && cmd.Args()[1] == a.digest {
			a.then = nil
			then()
		}
		return err
	}
}
