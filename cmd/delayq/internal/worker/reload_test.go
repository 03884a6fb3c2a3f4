package worker

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
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
		return fileOf(r.topic("a", &stub{name: "a"}, tick("s", time.Hour)), r.topic("b", &stub{name: "b"}, tick("s", time.Hour)), r.topic("c", &stub{name: "c"}, tick("s", time.Hour), tick("t", time.Hour)))
	}, func(r *rig) {
		require.NoError(t, r.Client.Schedule(r.Context(), "a", "mine", delayq.Every(time.Hour), nil, delayq.Header(HeaderFrom, FromCommand)))
		r.Redis.SetError("LOADING Redis is loading the dataset in memory")
		r.load(fileOf(r.topic("b", &stub{name: "b"}, tick("s", time.Hour)), r.topic("c", &stub{name: "c"}, tick("s", time.Hour))))   // a leaves, and a schedule of c
		r.load(fileOf(r.topic("c", &stub{name: "c"}, tick("s", time.Minute))))                                                       // b leaves
		r.load(nil)                                                                                                                  // a mistake
		r.load(fileOf(r.topic("b", &stub{name: "b"}, tick("u", time.Hour)), r.topic("c", &stub{name: "c"}, tick("s", time.Minute)))) // b comes back with another one
		r.Pass(time.Minute)
		require.NotEmpty(t, r.log.With("schedules not written"))
		r.Redis.SetError("")
		r.Pass(mostPause)
		require.Equal(t, []string{"mine every 1h0m0s"}, r.names("a"))
		require.Equal(t, []string{"u every 1h0m0s"}, r.names("b"))
		require.Equal(t, []string{"s every 1m0s"}, r.names("c"))
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
