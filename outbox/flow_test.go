package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// album returns a flow of two steps after one, with a deadline of two hours.
func album(id string) *delayq.Flow {
	f := delayq.NewFlow("home", id, []byte("album")).Deadline(2 * time.Hour)
	fetch := f.Add("step", []byte("fetch"), delayq.Retry(3))
	f.Add("step", []byte("small")).After(fetch)
	f.Add("other", []byte("large")).After(fetch)
	return f
}

// start writes a flow in a transaction.
func (w *world) start(f *delayq.Flow) {
	w.Helper()
	w.tx(func(tx *sql.Tx) {
		_, err := w.ob.Start(w.Context(), tx, f)
		require.NoError(w, err)
	})
}

// flow returns what is known of a flow.
func (w *world) flow(id string) *delayq.FlowInfo {
	w.Helper()
	info, err := delayq.NewInspector(w.rdb, delayq.Prefix(w.prefix)).Flow(w.Context(), "home", id)
	require.NoError(w, err)
	return info
}

// Runs counts the runs of each job.
type runs struct {
	mu   sync.Mutex
	of   map[string]int
	told chan struct{} // one value a run
}

// work runs jobs of flows on a Redis until the test ends.
func (w *world) work(most int) *runs {
	r := &runs{of: make(map[string]int), told: make(chan struct{}, most)}
	ctx, cancel := context.WithCancel(w.Context())
	server := delayq.NewServer(w.rdb, delayq.Prefix(w.prefix), delayq.Logger(slog.New(slog.DiscardHandler)))
	for _, topic := range []string{"home", "step", "other"} {
		require.NoError(w, server.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.of[job.ID]++
			r.told <- struct{}{}
			return nil
		}))
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		require.NoError(w, <-done)
	})
	return r
}

// times returns how often a job has run.
func (r *runs) times(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[id]
}

// A committed flow starts, with all of its steps. One that was rolled back does not.
func TestFlowThroughATable(t *testing.T) {
	eachWorld(t, func(w *world) {
		lost := album("lost")
		tx, err := w.db.Begin()
		require.NoError(w, err)
		_, err = w.ob.Start(w.Context(), tx, lost)
		require.NoError(w, err)
		require.NoError(w, tx.Rollback())
		w.tx(func(tx *sql.Tx) {
			job, err := w.ob.Start(w.Context(), tx, album("album"))
			require.NoError(w, err)
			require.Equal(w, delayq.JobRef{Topic: "home", ID: "album"}, delayq.JobRef{Topic: job.Topic, ID: job.ID})
			require.Equal(w, "album", string(job.Payload))
			require.True(w, job.EnqueuedAt.IsZero())
			require.NotEmpty(w, job.Nonce())
		})
		require.Empty(w, w.rdb.Keys(w.Context(), "*").Val())

		w.relay()
		w.drained()
		info := w.flow("album")
		require.Equal(w, 3, info.Total)
		require.WithinDuration(w, time.Now().Add(2*time.Hour), info.Last.Due, time.Minute)
		ran := w.work(10)
		for range 4 {
			<-ran.told
		}
		require.Equal(w, 1, ran.times("album"))
		for _, step := range info.Steps {
			require.Equal(w, 1, ran.times(step.ID), step.ID)
		}
		require.Zero(w, ran.times("lost"))
		require.Empty(w, w.dead())

		// After the rollback it can be written again.
		w.start(lost)
		for range 4 {
			<-ran.told
		}
		require.Equal(w, 1, ran.times("lost"))
	})
}

// What Client.Start refuses, Start refuses before it writes anything.
func TestFlowsThatAnOutboxRefuses(t *testing.T) {
	eachWorld(t, func(w *world) {
		large := album("large")
		large.Add("step", make([]byte, 2<<20))
		whole := album("whole")
		for range 5 {
			whole.Add("step", make([]byte, 1<<20))
		}
		for name, f := range map[string]*delayq.Flow{
			"nil":        nil,
			"zero":       new(delayq.Flow),
			"no steps":   delayq.NewFlow("home", "none", nil).Deadline(time.Hour),
			"large step": large,
			"large flow": whole,
			"no deadline": func() *delayq.Flow {
				f := delayq.NewFlow("home", "ever", nil)
				f.Add("step", nil, delayq.Retry(delayq.Unlimited))
				return f
			}(),
			"last step": func() *delayq.Flow {
				f := delayq.NewFlow("home", "r", nil, delayq.Replace())
				f.Add("step", nil)
				return f
			}(),
			"topic": func() *delayq.Flow { f := delayq.NewFlow("home", "t", nil); f.Add("ste{p", nil); return f }(),
		} {
			w.tx(func(tx *sql.Tx) {
				_, err := w.ob.Start(w.Context(), tx, f)
				require.ErrorIs(w, err, outbox.ErrInvalid, name)
			})
		}
		_, err := w.ob.Start(w.Context(), nil, album("a"))
		require.ErrorContains(w, err, "nil transaction")
		_, err = w.ob.Start(w.Context(), w.db, album("a"))
		require.ErrorIs(w, err, outbox.ErrInvalid)
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.Zero(w, s)
		_, err = w.ob.Start(w.Context(), outbox.Autocommit(w.db), album("a"))
		require.NoError(w, err)
	})
}

// The row of a flow whose last step has the ID of an unfinished job is dead, and nothing of the
// flow is started. So is a damaged one, and one of a later release. They hold up no other row.
func TestFlowRowsThatAreDead(t *testing.T) {
	eachWorld(t, func(w *world) {
		_, err := w.client.Enqueue(w.Context(), "home", "twin", nil)
		require.NoError(w, err)
		for _, id := range []string{"twin", "cut", "words", "later", "fine"} {
			w.start(album(id))
		}
		var record []byte
		require.NoError(w, w.db.QueryRow("SELECT record FROM delayq_outbox ORDER BY seq LIMIT 1").Scan(&record))
		for seq, value := range map[string][]byte{"2": record[:len(record)-1], "3": append(record, "1:x"...)} {
			_, err := w.db.Exec("UPDATE delayq_outbox SET record = "+map[outbox.Dialect]string{outbox.Postgres: "$1"}[w.dialect]+
				map[outbox.Dialect]string{outbox.MySQL: "?", outbox.SQLite: "?"}[w.dialect]+" WHERE seq = "+seq, value)
			require.NoError(w, err)
		}
		_, err = w.db.Exec("UPDATE delayq_outbox SET kind = 5 WHERE seq = 4")
		require.NoError(w, err)
		w.relay()
		w.drained()
		require.Equal(w, 3, w.flow("fine").Total)
		dead := w.dead()
		require.Len(w, dead, 4)
		for i, reason := range []string{delayq.ErrDuplicate.Error(), "the row of the start of a flow is damaged", "what is stored of a flow that is to be started is damaged", "row of the kind 5, this release knows up to 4"} {
			require.Contains(w, dead[i].Reason, reason)
		}
		require.Equal(w, []string{"start flow", ""}, []string{dead[0].Call, dead[3].Call})
		require.ElementsMatch(w, []string{"twin", "fine"}, w.jobs("home"))
		parcels := w.rdb.ZCard(w.Context(), w.prefix+":{home}:all:parcels").Val()
		require.EqualValues(w, 1, parcels, "the first step of the flow that has started")

		// What an older relay has left is sent again.
		_, err = w.client.Dequeue(w.Context(), "home", "twin")
		require.NoError(w, err)
		_, err = w.db.Exec("UPDATE delayq_outbox_dead SET kind = 4")
		require.NoError(w, err)
		w.tx(func(tx *sql.Tx) {
			for _, i := range []int{0, 3} {
				found, err := w.ob.Revive(w.Context(), tx, dead[i].Seq)
				require.NoError(w, err)
				require.True(w, found)
			}
		})
		w.drained()
		require.Equal(w, 3, w.flow("twin").Total)
		require.Equal(w, 3, w.flow("later").Total)
	})
}

// Rows about a last step keep their order with the row of its flow, beside a horizon too.
func TestFlowRowsAndOthers(t *testing.T) {
	eachWorld(t, func(w *world) {
		stop := w.relay(outbox.Horizon(time.Hour))
		_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "home", "far", nil, delayq.ProcessIn(48*time.Hour))
		require.NoError(w, err)
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 1 })
		w.start(album("far"))
		w.drained()
		dead := w.dead()
		require.Len(w, dead, 1)
		require.Contains(w, dead[0].Reason, delayq.ErrDuplicate.Error())
		require.Empty(w, w.jobs("home"))
		stop()

		w.tx(func(tx *sql.Tx) {
			require.NoError(w, w.ob.Dequeue(w.Context(), tx, "home", "far"))
			for _, id := range []string{"far", "cancelled", "moved"} {
				_, err := w.ob.Start(w.Context(), tx, album(id))
				require.NoError(w, err)
			}
			require.NoError(w, w.ob.Dequeue(w.Context(), tx, "home", "cancelled"))
			require.NoError(w, w.ob.Reschedule(w.Context(), tx, "home", "moved", delayq.ProcessIn(5*time.Hour)))
		})
		w.relay(outbox.Horizon(time.Hour), outbox.DropDuplicates()) // the deadline is beyond it
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		require.ElementsMatch(w, []string{"far", "moved"}, w.jobs("home"))
		moved := w.flow("moved")
		require.InDelta(w, 5*3600, moved.Last.Due.Sub(moved.At).Seconds(), 60)

		_, err = w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "home", "dropped", nil, delayq.ProcessIn(48*time.Hour))
		require.NoError(w, err)
		w.start(album("dropped"))
		w.drained()
		require.Len(w, w.dead(), 1)
	})
}

// A flow whose row is sent after its deadline is given up at once.
func TestFlowWhoseDeadlineHasPassed(t *testing.T) {
	eachWorld(t, func(w *world) {
		f := album("late")
		w.start(f)
		_, err := w.db.Exec("UPDATE delayq_outbox SET made = made - 10800000")
		require.NoError(w, err)
		w.relay()
		w.drained()
		info := w.flow("late")
		require.False(w, info.Last.Due.After(info.At))
		ran := w.work(10)
		require.Eventually(w, func() bool { return w.flow("late").Last.State == delayq.StateDead }, 10*time.Minute, time.Millisecond)
		require.Equal(w, delayq.KindDeadline, w.flow("late").Last.Errors[0].Kind)
		require.Zero(w, ran.times("late"))
	})
}

// Kept rows of flows that Redis has lost start their flows again. Those that it remembers do not.
func TestResendStartsFlowsAgain(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.onRedis()
		start := time.Now().Add(-time.Minute)
		w.tx(func(tx *sql.Tx) { // one plan
			for _, id := range []string{"ended", "moved", "cancelled"} {
				_, err := w.ob.Start(w.Context(), tx, album(id))
				require.NoError(w, err)
			}
		})
		w.relay(outbox.Keep(time.Hour))
		w.drained()
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "home", "moved", delayq.ProcessIn(5*time.Hour)))
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "home", "cancelled"))
		w.drained()
		before := w.dump()
		_, err := w.client.Dequeue(w.Context(), "home", "ended")
		require.NoError(w, err)
		w.resend(start)
		require.Equal(w, []string{"moved"}, w.jobs("home"))

		w.lose()
		w.resend(start)
		require.ElementsMatch(w, []string{"ended", "moved"}, w.jobs("home"))
		moved := w.flow("moved")
		require.InDelta(w, 5*3600, moved.Last.Due.Sub(moved.At).Seconds(), 60)
		require.Equal(w, 3, moved.Total)

		// It has fallen back to what it knew, which includes the jobs of the flows.
		w.restore(before)
		w.resend(start)
		require.ElementsMatch(w, []string{"ended", "moved"}, w.jobs("home"))
		require.Empty(w, w.dead())
	})
}

// Relays die one after another, each at another statement or call of Redis, while a server works.
// Each committed flow has run once in the end, and so has each of its steps.
func TestFlowsWhoseRelaysDie(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		driverName, dsn := d.fresh(t)
		db, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		defer db.Close()
		ob, err := outbox.New(d.dialect)
		require.NoError(t, err)
		require.NoError(t, ob.Migrate(t.Context(), db))
		rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
		w := &world{T: t, database: d, db: db, ob: ob, rdb: rdb, prefix: prefix, client: delayq.NewClient(rdb, delayq.Prefix(prefix))}
		rounds, kills := redistest.Size(400), 0
		ran := w.work(8 * rounds)
		for round := range rounds {
			w.tx(func(tx *sql.Tx) {
				for _, which := range []string{"a", "b"} {
					_, err := ob.Start(t.Context(), tx, album(which+strconv.Itoa(round)))
					require.NoError(t, err)
				}
			})
			_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0") // the lease of the last relay is over
			require.NoError(t, err)
			life := sqltest.NewLife(1+round%37, round/37%2 == 1)
			mortalDB := life.Open(db.Driver(), dsn)
			mortalRDB := redis.NewClient(rdb.Options())
			mortalRDB.AddHook(mortalHook{life})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			relay := ob.Relay(mortalDB, delayq.NewClient(mortalRDB, delayq.Prefix(prefix)), outbox.Poll(time.Millisecond), outbox.Logger(slog.New(slog.DiscardHandler)))
			go func() { done <- relay.Run(ctx) }()
			select {
			case <-life.Ended:
				kills++
			case <-time.After(20 * time.Second):
				t.Error("the relay did not use up its life")
			}
			cancel()
			require.NoError(t, <-done)
			require.NoError(t, mortalDB.Close())
			require.NoError(t, mortalRDB.Close())
		}
		_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(t, err)
		w.relay()
		w.drained()
		for range 8 * rounds {
			<-ran.told
		}
		ran.mu.Lock()
		defer ran.mu.Unlock()
		require.Len(t, ran.of, 8*rounds)
		for id, times := range ran.of {
			require.Equal(t, 1, times, id)
		}
		require.Empty(t, w.dead())
		t.Logf("%d relays died, %d flows", kills, 2*rounds)
	})
}

// ExampleOutbox_Start commits an album and the flow that makes its thumbnails.
func ExampleOutbox_Start() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // or each connection would have a database of its own
	ob, err := outbox.New(outbox.SQLite)
	if err == nil {
		err = ob.Migrate(ctx, db)
	}
	if err != nil {
		panic(err)
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer tx.Rollback()
	// … the album's own rows …
	f := delayq.NewFlow("album:publish", "album-7", nil).Deadline(time.Hour)
	for _, image := range []string{"a.jpg", "b.jpg"} {
		f.Add("thumbnail", []byte(image), delayq.Retry(3))
	}
	job, err := ob.Start(ctx, tx, f)
	if err == nil {
		err = tx.Commit()
	}
	fmt.Println(job.Topic, job.ID, err)
	// Output: album:publish album-7 <nil>
}
