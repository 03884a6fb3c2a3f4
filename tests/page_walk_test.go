package tests

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A walker walks through the jobs of one state while other things happen to them. It writes to
// Redis what the transitions write, so that it decides what happens between two pages.
type walker struct {
	*queuetest.Fixture
	inspector *delayq.Inspector
	state     delayq.State
	random    *rand.Rand

	next    int             // number of the next new job
	in      []string        // the jobs in the state, in no order
	touched map[string]bool // the jobs that were not in the state all the time, with the same time
	start   time.Time
}

func newWalker(f *queuetest.Fixture, state delayq.State, seed uint64) *walker {
	return &walker{
		Fixture: f, inspector: delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix)), state: state,
		random: rand.New(rand.NewPCG(seed, 1)), touched: make(map[string]bool), start: time.Now().Add(time.Hour),
	}
}

// ms is one of a few times, so that many jobs have the same.
func (w *walker) ms() int64 { return w.start.UnixMilli() + w.random.Int64N(5) }

// add puts new jobs into the state.
func (w *walker) add(n int) {
	w.T.Helper()
	ctx := w.T.Context()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		// The order of numbers is not that of IDs. Some IDs are the beginning of others.
		id := strconv.Itoa(w.next * 7919 % 100_003)
		if w.next%3 == 0 {
			id += "\x00\xff" + id
		}
		w.next++
		jobs[i] = delayq.NewJob{Topic: "topic", ID: id, Payload: []byte(id), Options: []delayq.JobOption{delayq.ProcessAt(time.UnixMilli(w.ms()))}}
		if w.state != delayq.StateScheduled {
			jobs[i].Options = nil
		}
		w.in = append(w.in, id)
	}
	results, err := w.Client.EnqueueBatch(ctx, jobs)
	require.NoError(w.T, err)
	for i, r := range results {
		require.NoError(w.T, r.Err, "%q", jobs[i].ID)
	}
	key := map[delayq.State]string{delayq.StateRunning: "leases", delayq.StateDead: "dead", delayq.StateDone: "done"}[w.state]
	if key == "" {
		return
	}
	for _, job := range jobs {
		require.NoError(w.T, w.RDB.LRem(ctx, w.Key("ready"), 1, job.ID).Err())
		require.NoError(w.T, w.RDB.ZAdd(ctx, w.Key(key), redis.Z{Score: float64(w.ms()), Member: job.ID}).Err())
		if w.state == delayq.StateDone {
			record, err := w.RDB.HGet(ctx, w.Key("pool"), job.ID).Result()
			require.NoError(w.T, err)
			require.NoError(w.T, w.RDB.HSet(ctx, w.Key("results"), job.ID, `13:{"attempt":1}`+record).Err())
			require.NoError(w.T, w.RDB.HDel(ctx, w.Key("pool"), job.ID).Err())
		}
	}
}

// remove takes a job out of the state.
func (w *walker) remove(i int) {
	w.T.Helper()
	id := w.in[i]
	w.in[i] = w.in[len(w.in)-1]
	w.in = w.in[:len(w.in)-1]
	w.touched[id] = true
	if w.state == delayq.StateDone {
		require.NoError(w.T, w.Client.Delete(w.T.Context(), "topic", id))
		return
	}
	require.Equal(w.T, w.state, w.Dequeue(id), "%q", id)
}

// move gives a job another time, or in ready another place.
func (w *walker) move(i int) {
	w.T.Helper()
	ctx := w.T.Context()
	id := w.in[i]
	switch w.state {
	case delayq.StateScheduled:
		w.touched[id] = true
		require.NoError(w.T, w.Client.Reschedule(ctx, "topic", id, delayq.ProcessAt(time.UnixMilli(w.ms()))))
	case delayq.StateReady:
		w.touched[id] = true
		require.NoError(w.T, w.RDB.LRem(ctx, w.Key("ready"), 1, id).Err())
		require.NoError(w.T, w.RDB.RPush(ctx, w.Key("ready"), id).Err())
	case delayq.StateRunning: // an extension does not count: the job goes on running
		require.NoError(w.T, w.RDB.ZIncrBy(ctx, w.Key("leases"), 1+w.random.Float64()*3, id).Err())
	case delayq.StateDead, delayq.StateDone:
		w.touched[id] = true
		key := map[delayq.State]string{delayq.StateDead: "dead", delayq.StateDone: "done"}[w.state]
		require.NoError(w.T, w.RDB.ZAdd(ctx, w.Key(key), redis.Z{Score: float64(w.ms()), Member: id}).Err())
	}
}

// take takes jobs from the head of ready, and gives the last ones back.
func (w *walker) take(n, back int) {
	w.T.Helper()
	ctx := w.T.Context()
	ids, err := w.RDB.LPopCount(ctx, w.Key("ready"), n).Result()
	if err == redis.Nil {
		return
	}
	require.NoError(w.T, err)
	require.NoError(w.T, w.RDB.HIncrBy(ctx, w.Key("stats"), "taken", int64(len(ids))).Err())
	for i, id := range ids {
		w.touched[id] = true
		if i < len(ids)-back {
			w.in = slices.DeleteFunc(w.in, func(other string) bool { return other == id })
			require.NoError(w.T, w.RDB.ZAdd(ctx, w.Key("leases"), redis.Z{Score: float64(w.ms()), Member: id}).Err())
		}
	}
	for i := len(ids) - 1; i >= max(0, len(ids)-back); i-- {
		require.NoError(w.T, w.RDB.LPush(ctx, w.Key("ready"), ids[i]).Err())
		require.NoError(w.T, w.RDB.HIncrBy(ctx, w.Key("stats"), "returned", 1).Err())
	}
}

// walk reads all pages and checks that each job that stayed is on exactly one.
func (w *walker) walk(q delayq.Query, between func()) {
	w.T.Helper()
	ctx := w.T.Context()
	before := slices.Clone(w.in)
	clear(w.touched)
	times := make(map[string]int)
	var order []string
	for pages := 0; ; pages++ {
		q.Limit = 1 + w.random.IntN(40)
		page, err := w.inspector.Jobs(ctx, q)
		require.NoError(w.T, err)
		require.LessOrEqual(w.T, len(page.Jobs), q.Limit)
		for _, info := range page.Jobs {
			require.Equal(w.T, w.state, info.State)
			times[info.ID]++
			order = append(order, info.ID)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
		require.Less(w.T, pages, 10*len(before)+100, "the walk does not end")
		between()
	}
	var twice, missing []string
	for _, id := range before {
		if !w.touched[id] && times[id] == 0 {
			missing = append(missing, id)
		}
	}
	for id, n := range times {
		if !w.touched[id] && n > 1 {
			twice = append(twice, id)
		}
	}
	require.Empty(w.T, missing, "left out, of %d; order %q", len(before), order)
	require.Empty(w.T, twice, "on two pages; order %q", order)
}

// Every job that stays in its state while the pages are read is on exactly one of them, whatever
// happens to the others in the meantime.
func TestPagesShowEachJobOnce(t *testing.T) {
	for _, state := range []delayq.State{
		delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone,
	} {
		for _, latest := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", state, latest), func(t *testing.T) {
				queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
					for range redistest.Size(20) {
						seed := rand.Uint64()
						t.Logf("seed %d", seed)
						f := queuetest.NewFixture(t, f.RDB)
						w := newWalker(f, state, seed)
						w.add(30 + w.random.IntN(300))
						w.walk(delayq.Query{Topic: "topic", State: state, Latest: latest}, func() {
							for range w.random.IntN(8) {
								switch n := w.random.IntN(4); {
								case n == 0:
									w.add(1 + w.random.IntN(5))
								case len(w.in) == 0:
								case n == 1:
									w.remove(w.random.IntN(len(w.in)))
								case n == 2:
									w.move(w.random.IntN(len(w.in)))
								case state == delayq.StateReady:
									n := w.random.IntN(20)
									w.take(n, w.random.IntN(1+n/4))
								}
							}
						})
					}
				})
			})
		}
	}
}

// A place among 100,000 jobs of one millisecond is found again, also if its own job is gone.
func TestPagesOfTies(t *testing.T) {
	test := func(t *testing.T, f *queuetest.Fixture, n int) {
		w := newWalker(f, delayq.StateScheduled, 1)
		due := delayq.ProcessAt(w.start)
		enqueueMany(f, n, "x", due)
		for i := range n {
			w.in = append(w.in, fmt.Sprint("x", i))
		}
		for _, latest := range []bool{false, true} {
			seen, q := make(map[string]int), delayq.Query{Topic: "topic", State: delayq.StateScheduled, Latest: latest, Limit: 1000}
			gone := make(map[string]bool)
			for {
				page, err := w.inspector.Jobs(t.Context(), q)
				require.NoError(t, err)
				for i, info := range page.Jobs {
					seen[info.ID]++
					ascends := i == 0 || page.Jobs[i-1].ID < info.ID
					require.True(t, i == 0 || ascends != latest)
				}
				if q.Cursor = page.Next; q.Cursor == "" {
					break
				}
				last := page.Jobs[len(page.Jobs)-1].ID
				f.Dequeue(last) // the place itself
				gone[last] = true
			}
			for id, n := range seen {
				require.Equal(t, 1, n, id)
			}
			require.Len(t, seen, len(w.in))
			w.in = slices.DeleteFunc(w.in, func(id string) bool { return gone[id] })
		}
	}
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) { test(t, f, 3_000) })
	t.Run("100,000", func(t *testing.T) { test(t, queuetest.NewFixture(t, redistest.Shared(t)), 100_000) })
}

// Pages of ready jobs are read while a server takes them.
func TestPagesOfReadyJobsWhileAServerTakes(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.Shared(t))
	const jobs = 20_000
	// Jobs with limited retries are never taken ahead, so none is given back.
	enqueueMany(f, jobs, "x", delayq.Retry(3))
	permits := make(chan struct{}, jobs)
	server := queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(context.Context, *delayq.Job) error {
		<-permits
		return nil
	}, delayq.Concurrency(64))
	seen := make(map[string]int)
	q := delayq.Query{Topic: "topic", State: delayq.StateReady, Limit: 200}
	for {
		page, err := delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix)).Jobs(t.Context(), q)
		require.NoError(t, err)
		for _, info := range page.Jobs {
			seen[info.ID]++
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
		for range 70 {
			permits <- struct{}{}
		}
	}
	left, err := f.RDB.LRange(t.Context(), f.Key("ready"), 0, -1).Result()
	require.NoError(t, err)
	require.NotEmpty(t, left)
	require.Less(t, len(left), jobs-64, "the server has taken some")
	for _, id := range left {
		require.Equal(t, 1, seen[id], "%s stayed", id)
	}
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
	close(permits)
	require.NoError(t, server.Stop())
}

// Entries that cancelled jobs have left in ready are dropped without a count. The place is found
// again if there were fewer of them than the budget.
func TestPlaceInReadyIsFoundAgain(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, latest := range []bool{false, true} {
			f := queuetest.NewFixture(t, f.RDB)
			inspector := delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix))
			enqueueMany(f, 12_000, "x")
			seen := make(map[string]int)
			q := delayq.Query{Topic: "topic", State: delayq.StateReady, Latest: latest, Limit: 1000}
			pages := 0
			for ; ; pages++ {
				page, err := inspector.Jobs(t.Context(), q)
				require.NoError(t, err)
				for _, info := range page.Jobs {
					seen[info.ID]++
				}
				if q.Cursor = page.Next; q.Cursor == "" {
					break
				}
				if pages == 5 {
					require.NoError(t, f.RDB.LTrim(t.Context(), f.Key("ready"), 3500, -1).Err())
				}
			}
			for i := range 12_000 {
				id := fmt.Sprint("x", i)
				if i >= 3500 || !latest {
					require.Equal(t, 1, seen[id], "%s, latest %v", id, latest)
				} else {
					require.Zero(t, seen[id])
				}
			}
		}
	})
}

// A neighbour of a place in ready that was taken and pushed again at the tail does not move the
// place there.
func TestPlaceInReadyDoesNotFollowAJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		w := newWalker(f, delayq.StateReady, 1)
		enqueueMany(f, 40, "x")
		q := delayq.Query{Topic: "topic", State: delayq.StateReady, Limit: 2}
		page, err := f.Inspector.Jobs(t.Context(), q)
		require.NoError(t, err)
		w.take(9, 0) // the page, and all neighbours behind it but the last one
		require.NoError(t, f.RDB.LRem(t.Context(), f.Key("ready"), 1, "x9").Err())
		require.NoError(t, f.RDB.RPush(t.Context(), f.Key("ready"), "x9").Err())
		q.Cursor, q.Limit = page.Next, 100
		page, err = f.Inspector.Jobs(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, page.Jobs, 31)
		require.Equal(t, "x10", page.Jobs[0].ID)
	})
}

// Jobs that are cancelled in front of a place move it towards the head. A walk never begins again
// because of them.
func TestPlaceInReadyIsFoundAgainAfterCancels(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, c := range []struct {
			limit, from, n int // of the page, and of the jobs that are cancelled
			next           string
		}{
			{1000, 0, 600, "x1000"},
			{1000, 100, 600, "x1000"},
			{1000, 0, 1000, "x1000"},
			{300, 100, 200, "x300"},
			{500, 492, 16, "x516"}, // all neighbours: the 501st of those that are left
		} {
			f := queuetest.NewFixture(t, f.RDB)
			enqueueMany(f, 1200, "x")
			q := delayq.Query{Topic: "topic", State: delayq.StateReady, Limit: c.limit}
			page, err := f.Inspector.Jobs(t.Context(), q)
			require.NoError(t, err)
			refs := make([]delayq.JobRef, c.n)
			for i := range refs {
				refs[i] = delayq.JobRef{Topic: "topic", ID: fmt.Sprint("x", c.from+i)}
			}
			_, err = f.Client.CancelBatch(t.Context(), refs)
			require.NoError(t, err)
			q.Cursor = page.Next
			page, err = f.Inspector.Jobs(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, c.next, page.Jobs[0].ID, "%+v", c)
		}
	})
}

// If a place in ready cannot be found again, the walk goes on where it should be, and ends.
func TestPlaceInReadyIsEstimated(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		inspector := delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix))
		enqueueMany(f, 9_000, "x")
		q := delayq.Query{Topic: "topic", State: delayq.StateReady, Limit: 1000, Budget: 1000}
		for range 6 {
			page, err := inspector.Jobs(t.Context(), q)
			require.NoError(t, err)
			q.Cursor = page.Next
		}
		require.NoError(t, f.RDB.LTrim(t.Context(), f.Key("ready"), 2500, -1).Err())
		page, err := inspector.Jobs(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, "x8500", page.Jobs[0].ID, "the 6,000th")
		require.Len(t, page.Jobs, 500)
		require.Empty(t, page.Next)
	})
}

// More than 10,000 running jobs are read as Redis has them.
func TestPagesOfManyRunningJobs(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.Shared(t))
	const jobs = 10_500
	enqueueMany(f, jobs, "x")
	leases := []redis.Z{{Score: math.Inf(1), Member: strings.Repeat("-", 1025)}}
	for i := range jobs {
		leases = append(leases, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: fmt.Sprint("x", i)})
	}
	require.NoError(t, f.RDB.ZAdd(t.Context(), f.Key("leases"), leases...).Err())
	inspector := delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix))
	for _, prefix := range []string{"", "x1"} {
		seen := make(map[string]int)
		q := delayq.Query{Topic: "topic", State: delayq.StateRunning, Limit: 30, IDPrefix: prefix}
		pages := 0
		for ; ; pages++ {
			page, err := inspector.Jobs(t.Context(), q)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Jobs), 30)
			require.EqualValues(t, jobs, page.Total)
			for _, info := range page.Jobs {
				seen[info.ID]++
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
			require.Less(t, len(page.Next), 2000)
		}
		n := 0
		for i := range jobs {
			id := fmt.Sprint("x", i)
			if strings.HasPrefix(id, prefix) {
				n++
				require.Equal(t, 1, seen[id], id)
			}
		}
		require.Len(t, seen, n)
		require.GreaterOrEqual(t, pages+1, (n+29)/30)
	}
	n := 0
	for info, err := range inspector.All(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateRunning, Limit: 1000}) {
		require.NoError(t, err)
		require.Equal(t, delayq.StateRunning, info.State)
		n++
	}
	require.Equal(t, jobs, n)
}
