package tests

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

const century = 100 * 365 * 24 * time.Hour

// (F4, F5)
func TestDueIn(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for d, want := range map[time.Duration]time.Duration{
			0: 0, -1: 0, -time.Hour: 0, math.MinInt64: 0,
			time.Millisecond: time.Millisecond, time.Millisecond + 1: 2 * time.Millisecond,
			1500 * time.Microsecond: 2 * time.Millisecond,
			// 2^31 and 2^32 ms, which other queues have run at once (F2, F3)
			25 * 24 * time.Hour: 25 * 24 * time.Hour, 50 * 24 * time.Hour: 50 * 24 * time.Hour,
			10 * 365 * 24 * time.Hour: 10 * 365 * 24 * time.Hour, century: century, century - 1: century,
		} {
			job, err := f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.ProcessIn(d), delayq.Replace())
			require.NoError(t, err, d)
			require.Equal(t, want, job.Due.Sub(job.EnqueuedAt), d)
			requireDue(f, job, want == 0)
		}
	})
}

// requireDue holds what Enqueue has told to what is stored.
func requireDue(f *queuetest.Fixture, job *delayq.Job, now bool) {
	f.T.Helper()
	info := f.Get(job.ID)
	require.Equal(f.T, job.Due, info.Due)
	require.Equal(f.T, job.EnqueuedAt, info.EnqueuedAt)
	score, err := f.RDB.ZScore(f.T.Context(), f.Key("bucket"), job.ID).Result()
	if now {
		require.Equal(f.T, delayq.StateReady, info.State)
		require.Error(f.T, err, "nothing in the bucket")
		return
	}
	require.NoError(f.T, err)
	require.Equal(f.T, float64(job.Due.UnixMilli()), score)
}

// (F5, F6)
func TestDueAt(t *testing.T) {
	last := time.UnixMilli(9_999_999_999_999)
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		now, err := f.RDB.Time(t.Context()).Result()
		require.NoError(t, err)
		for name, c := range map[string]struct{ at, want time.Time }{
			"whole ms":      {time.UnixMilli(4_000_000_000_000), time.UnixMilli(4_000_000_000_000)},
			"1 ns more":     {time.UnixMilli(4_000_000_000_000).Add(1), time.UnixMilli(4_000_000_000_001)},
			"1 ns less":     {time.UnixMilli(4_000_000_000_000).Add(-1), time.UnixMilli(4_000_000_000_000)},
			"another zone":  {time.UnixMilli(4_000_000_000_000).In(time.FixedZone("", -12*3600)), time.UnixMilli(4_000_000_000_000)},
			"the last":      {last, last},
			"1970":          {time.Unix(0, 0), time.Time{}},
			"1 ns in 1970":  {time.Unix(0, 1), time.Time{}},
			"just gone":     {now.Add(-time.Millisecond), time.Time{}},
			"an hour ago":   {now.Add(-time.Hour), time.Time{}},
			"with a reader": {time.Now().Add(-time.Minute), time.Time{}}, // a monotonic clock reading
		} {
			job, err := f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.ProcessAt(c.at), delayq.Replace())
			require.NoError(t, err, name)
			if c.want.IsZero() {
				require.Equal(t, job.EnqueuedAt, job.Due, name)
			} else {
				require.True(t, job.Due.Equal(c.want), "%s: %v", name, job.Due)
			}
			requireDue(f, job, c.want.IsZero())
		}
	})
}

func TestDueOfTheLastOptionWins(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		at := time.UnixMilli(4_000_000_000_000)
		job := f.Enqueue("a", delayq.ProcessIn(time.Hour), delayq.ProcessAt(at))
		require.True(t, job.Due.Equal(at), job.Due)
		job = f.Enqueue("b", delayq.ProcessAt(at), delayq.ProcessIn(time.Hour))
		require.Equal(t, time.Hour, job.Due.Sub(job.EnqueuedAt))
	})
}

// A property: a due time is the asked one, rounded up to the ms, by the clock that Redis had; and a
// longer delay is never due earlier. (F1, F4)
func TestDueIsNeverRoundedDown(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		jobs := make([]delayq.NewJob, 2000)
		delays, instants := make([]time.Duration, len(jobs)), make([]time.Time, len(jobs))
		for i := range jobs {
			d := time.Duration(random.Int64N(int64(century) >> random.IntN(62)))
			if i%2 == 1 && d < time.Millisecond {
				d = 0 // what lies between is refused
			}
			jobs[i] = delayq.NewJob{Topic: "topic", ID: strconv.Itoa(i), Options: []delayq.JobOption{delayq.ProcessIn(d)}}
			delays[i] = d
			if i%2 == 0 {
				instants[i] = time.Unix(4_000_000_000, 0).Add(d / 2)
				jobs[i].Options[0] = delayq.ProcessAt(instants[i])
			}
		}
		results, err := f.Client.EnqueueBatch(t.Context(), jobs)
		require.NoError(t, err)
		for i, r := range results {
			early := r.Job.Due.Sub(r.Job.EnqueuedAt) - delays[i]
			if i%2 == 0 {
				early = r.Job.Due.Sub(instants[i])
			}
			require.GreaterOrEqual(t, early, time.Duration(0), "job %d of %v %v", i, delays[i], instants[i])
			require.Less(t, early, time.Millisecond, "job %d of %v %v", i, delays[i], instants[i])
		}
		for i := range 50 {
			requireDue(f, results[i].Job, results[i].Job.Due.Equal(results[i].Job.EnqueuedAt))
		}
	})
}

// Clients and servers with wrong clocks change nothing: the one clock is that of Redis. (E1)
func TestDueByAnotherClockThanOurs(t *testing.T) {
	t.Parallel()
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer func() { require.NoError(t, rdb.Close()) }()
	for _, wrong := range []time.Duration{-24 * time.Hour, 24 * time.Hour, -20 * 365 * 24 * time.Hour} {
		f := queuetest.NewFixture(t, rdb)
		now := time.Now().Add(wrong).Truncate(time.Millisecond)
		r.SetTime(now)
		job := f.Enqueue("x", delayq.ProcessIn(time.Hour))
		require.True(t, job.EnqueuedAt.Equal(now), job.EnqueuedAt)
		require.True(t, job.Due.Equal(now.Add(time.Hour)), job.Due)
		job = f.Enqueue("y", delayq.ProcessAt(now.Add(time.Minute)))
		require.True(t, job.Due.Equal(now.Add(time.Minute)), job.Due)
	}
}

// The score of a zset is a float64: every ms up to the last one allowed has its own. (F7)
func TestDueTimesKeepTheirLastDigit(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	f := queuetest.NewFixture(t, redistest.Shared(t))
	for _, ms := range []int64{4_000_000_000_001, 9_007_199_254_741, 9_999_999_999_998, 9_999_999_999_999} {
		job := f.Enqueue(strconv.FormatInt(ms, 10), delayq.ProcessAt(time.UnixMilli(ms)))
		require.Equal(t, ms, job.Due.UnixMilli())
		requireDue(f, job, false)
	}
}
