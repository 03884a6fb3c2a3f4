package delayq

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// quietOutcomes are outcomes without loops.
func quietOutcomes() settle.Queue { return settle.Queue{Ready: func() {}, Pile: func() {}} }

// A call settles jobs of one verb only: an ack that carries a job to be returned would lose it. (It
// did, when the rows that stay were moved to the front while the first one's verb was still being
// compared with.)
func TestGatherNeverMixesVerbs(t *testing.T) {
	verbs := []settle.Verb{settle.Ack, settle.Return, settle.Ack, settle.Return, settle.Retry, settle.Return, settle.Ack, settle.Bury, settle.Retry}
	queue := quietOutcomes()
	for _, v := range verbs {
		queue.Rows = append(queue.Rows, settle.Row{Run: &run.Run{}, Verb: v})
	}
	var got []settle.Verb
	for list := queue.Gather(nil, 1); len(list) > 0; list = queue.Gather(list[:0], 1) {
		for _, r := range list {
			require.Equal(t, list[0].Verb, r.Verb)
			got = append(got, r.Verb)
		}
	}
	slices.Sort(verbs)
	slices.Sort(got)
	require.Equal(t, verbs, got)
}

// What a call that was not carried out has left is told by the first loop: the second one does not
// come back for a few.
func TestWhatIsPutBackIsTold(t *testing.T) {
	queue, woken := quietOutcomes(), 0
	queue.Ready = func() { woken++ }
	queue.PutBack([]settle.Row{{Run: &run.Run{}, Verb: settle.Ack}})
	require.Equal(t, 1, woken)
	require.Empty(t, queue.Gather(nil, settle.Pile))
	require.Len(t, queue.Gather(nil, 1), 1)
}

// Jobs that are given back go to the head of ready, one call after the other: the last ones first.
func TestGatherGivesBackFromTheEnd(t *testing.T) {
	const jobs = 2*settle.Limit + 7
	queue := quietOutcomes()
	for i := range jobs {
		queue.Rows = append(queue.Rows, settle.Row{Run: &run.Run{}, Verb: settle.Return, Attempts: i}, settle.Row{Run: &run.Run{}, Verb: settle.Ack})
	}
	require.Empty(t, queue.Gather(nil, settle.Pile), "for the first loop alone")
	want := jobs
	for len(queue.Rows) > 0 {
		list := queue.Gather(nil, 1)
		if list[0].Verb != settle.Return {
			continue
		}
		want -= len(list)
		for i, r := range list {
			require.Equal(t, want+i, r.Attempts)
		}
	}
	require.Zero(t, want)
}

// A call moves about script.CallBytes beyond its first job, however many jobs there are to be told.
func TestGatherIsBoundedInBytes(t *testing.T) {
	entry := strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		row  settle.Row
		want []int // jobs of each call
	}{
		"nothing is kept": {settle.Row{Run: &run.Run{Stored: 64 << 20}}, []int{30}},
		"kept, small": {
			settle.Row{Run: &run.Run{Stored: 1000, Options: record.Options{Retention: 1}}}, []int{30},
		},
		"kept, of 100 KiB": {
			settle.Row{Run: &run.Run{Stored: 100 << 10, Options: record.Options{Retention: 1}}}, []int{11, 11, 8},
		},
		"kept, as large as can be": {
			settle.Row{Run: &run.Run{Stored: 64 << 20, Options: record.Options{Retention: 1}}}, slices.Repeat([]int{1}, 30),
		},
		"expired, so not kept": {
			settle.Row{Run: &run.Run{Stored: 1 << 20, Options: record.Options{Retention: 1}}, Verb: settle.Expire}, []int{30},
		},
		"a first stack": {settle.Row{Run: &run.Run{Attempt: 1}, Verb: settle.Retry, Failure: entry}, []int{30}},
		"a log of stacks": {
			settle.Row{Run: &run.Run{Attempt: 99}, Verb: settle.Retry, Failure: entry}, []int{20, 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			queue := settle.Queue{Rows: slices.Repeat([]settle.Row{c.row}, 30)}
			var got []int
			for list := queue.Gather(nil, 1); len(list) > 0; list = queue.Gather(nil, 1) {
				got = append(got, len(list))
			}
			require.Equal(t, c.want, got)
		})
	}
}

// What does not fit stays, in its order, and small jobs do not overtake it.
func TestGatherKeepsTheOrder(t *testing.T) {
	queue := quietOutcomes()
	for i, stored := range []int32{1, 1 << 20, 600 << 10, 1, 64 << 20, 1} {
		r := settle.Row{Run: &run.Run{Stored: stored, Options: record.Options{Retention: 1}}, Attempts: i}
		queue.Rows = append(queue.Rows, r, settle.Row{Run: &run.Run{}, Verb: settle.Snooze})
	}
	var calls [][]int
	for list := queue.Gather(nil, 1); len(list) > 0; list = queue.Gather(nil, 1) {
		var got []int
		for _, r := range list {
			got = append(got, r.Attempts)
		}
		if list[0].Verb == settle.Ack {
			calls = append(calls, got)
		}
	}
	require.Equal(t, [][]int{{0, 1}, {2, 3}, {4, 5}}, calls)
}

// Options that Again is not given are those of the ended job, but for its due time and an ExpireAt.
func encoded(t *testing.T, o *jobOptions, payload []byte) string {
	t.Helper()
	head, tail, err := record.Encode(record.Nonce{1, 2, 3, 4, 5, 6, 7, 8}, &o.Options, payload)
	require.NoError(t, err)
	return record.Join(head, 1_700_000_000_001, tail)
}

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

// Of a job that is kept and of its new record both count for what a call moves.
func TestGatherWeighsRenewals(t *testing.T) {
	n := &settle.Renewal{Tail: string(make([]byte, 300<<10))}
	kept := settle.Row{Run: &run.Run{Stored: 300 << 10, Options: record.Options{Retention: 1}}, Verb: settle.Again, Renewal: n}
	require.InDelta(t, 600<<10, kept.Weight(), 100)
	kept.Run.Options.Retention = 0
	require.InDelta(t, 300<<10, kept.Weight(), 100)
}

// Of the jobs of one call the first that is due wakes the timers, wherever it is among them.
func TestAgainWakesTheTimersForTheFirst(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		sub := h.rdb.Subscribe(ctx, script.ControlChannel(h.prefix()))
		defer func() { require.NoError(t, sub.Close()) }()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		for _, whens := range [][]string{{"+300", "+3600000"}, {"+3600000", "+300"}} {
			h.put("+0", "1", "2")
			h.renewals = map[string]*settle.Renewal{"1": h.renewal(whens[0], 0), "2": h.renewal(whens[1], 0)}
			require.Equal(t, "oo", h.Again(0, h.Take(2, time.Minute)...))
			m, err := sub.ReceiveTimeout(ctx, 10*time.Second)
			require.NoError(t, err, "%v", whens)
			require.IsType(t, &redis.Message{}, m)
			require.Regexp(t, "^wake ", m.(*redis.Message).Payload)
			require.NoError(t, h.rdb.Del(ctx, h.keys.Bucket, h.keys.Pool).Err())
		}
	})
}

// (M1)
func TestBackoffTable(t *testing.T) {
	// The table of the doc comment of backoff.
	for attempt, want := range map[int]time.Duration{
		1: 2 * time.Second, 2: 4 * time.Second, 3: 8 * time.Second, 4: 16 * time.Second, 5: 32 * time.Second, 6: 64 * time.Second,
		7: 128 * time.Second, 8: 256 * time.Second, 9: 512 * time.Second, 10: 1024 * time.Second, 11: 2048 * time.Second,
		12: 4096 * time.Second, 13: 4096 * time.Second, 1000: 4096 * time.Second, math.MaxInt32: 4096 * time.Second,
	} {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range 500 {
			d := loop.Backoff(attempt, defaultRun.BackoffMin, defaultRun.BackoffMax)
			least, most = min(least, d), max(most, d)
		}
		require.GreaterOrEqual(t, least, want, "attempt %d", attempt)
		require.LessOrEqual(t, most, want+want/5, "attempt %d", attempt)
		// With 500 draws the ends are met to within a tenth of the jitter, but for once in 10^22
		// runs.
		require.Less(t, least, want+want/50, "attempt %d", attempt)
		require.Greater(t, most, want+want/5-want/50, "attempt %d", attempt)
	}
}

// Whatever the attempt and the bounds: base ≤ d ≤ 1.2 × limit, the steps never fall, and nothing
// overflows. (M1)
func TestBackoffProperty(t *testing.T) {
	longest := ceilMS(maxDelay)
	for range 20_000 {
		limit := 1 + rand.Int64N(longest)
		if rand.IntN(2) == 0 {
			limit = 1 + rand.Int64N(100_000)
		}
		first := 1 + rand.Int64N(limit)
		attempt := 1 + rand.IntN(80)
		if rand.IntN(4) == 0 {
			attempt = 1 + rand.IntN(1<<31)
		}
		d := loop.Backoff(attempt, first, limit)
		require.GreaterOrEqual(t, d.Milliseconds(), first, "backoff(%d, %d, %d)", attempt, first, limit)
		require.LessOrEqual(t, float64(d.Milliseconds()), 1.2*float64(limit), "backoff(%d, %d, %d)", attempt, first, limit)

		// Without its jitter a step is the least of what can come out: that of the next attempt is
		// no smaller, and up to the limit it doubles.
		step := func(attempt int) int64 {
			least := int64(math.MaxInt64)
			for range 3 {
				d := loop.Backoff(attempt, first, limit).Milliseconds()
				least = min(least, d)
			}
			return least
		}
		require.GreaterOrEqual(t, step(attempt+1)*6, step(attempt)*5, "backoff(%d…, %d, %d)", attempt, first, limit)
	}
	for _, attempt := range []int{62, 63, 64, 65, 127, 128, math.MaxInt32, math.MaxInt32 + 1} {
		require.Equal(t, time.Millisecond, loop.Backoff(attempt, 1, 1))
		require.GreaterOrEqual(t, loop.Backoff(attempt, longest, longest), maxDelay)
	}
	// What can only come from a record that was not written by Enqueue.
	for _, attempt := range []int{math.MinInt, -1, 0} {
		require.GreaterOrEqual(t, loop.Backoff(attempt, 100, 1000), 100*time.Millisecond)
	}
}

func TestPace(t *testing.T) {
	var p loop.Pace
	for _, want := range []time.Duration{50, 100, 200, 400, 800, 1000, 1000, 1000} {
		got := p.Next()
		require.GreaterOrEqual(t, got, want*time.Millisecond)
		require.LessOrEqual(t, got, want*time.Millisecond*6/5)
	}
	p.Reset()
	require.LessOrEqual(t, p.Next(), 60*time.Millisecond)
}
