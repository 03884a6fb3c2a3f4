package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// tryChronicle is one call of the chronicle script.
func tryChronicle(h *hand.Hand, number, sums string) error {
	_, err := h.Try(script.Chronicle, h.Keys.Of(script.Chronicle, h.Keys.Receipt("history")), number, sums)
	return err
}

// inspectorOf returns an inspector of the queue that a Hand's topic is in.
func inspectorOf(h *hand.Hand) *delayq.Inspector {
	return delayq.NewInspector(h.RDB, delayq.Prefix(h.Prefix()))
}

// lastHour is the history of the last minutes, as one step.
func lastHour(t *testing.T, i *delayq.Inspector, topic string, now time.Time) delayq.HistoryStep {
	t.Helper()
	var both []delayq.HistoryStep
	for _, step := range []time.Duration{time.Minute, time.Hour} {
		got, err := i.History(t.Context(), topic, now.Add(-time.Hour), now.Add(time.Hour), step)
		require.NoError(t, err)
		sum := delayq.HistoryStep{Outcomes: map[delayq.Outcome]int64{}}
		for _, one := range got.Steps {
			for outcome, n := range one.Outcomes {
				sum.Outcomes[outcome] += n
			}
			sum.Lateness, sum.RunTime = withCounts(sum.Lateness, one.Lateness), withCounts(sum.RunTime, one.RunTime)
		}
		both = append(both, sum)
	}
	require.Equal(t, both[0], both[1], "minutes and hours")
	return both[0]
}

// withCounts adds the counts of two histograms with the same bounds.
func withCounts(h, other delayq.Histogram) delayq.Histogram {
	if h.Counts == nil {
		return other
	}
	h.Counts = slices.Clone(h.Counts)
	for i, n := range other.Counts {
		h.Counts[i] += n
	}
	return h
}

// A number that is sent twice counts once, and those of several servers add up.
func TestChronicle(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx := t.Context()
		read := func() delayq.HistoryStep {
			now, err := h.RDB.Time(ctx).Result()
			require.NoError(t, err)
			return lastHour(t, inspectorOf(h), h.Keys.Topic, now)
		}
		require.Empty(t, read().Outcomes)
		require.NoError(t, tryChronicle(h, "1", "acked 7 late0 5 late18 2 ran3 7"))
		require.NoError(t, tryChronicle(h, "1", "acked 7 late0 5 late18 2 ran3 7"))
		require.NoError(t, tryChronicle(h, "2", "acked 1 retried 2 later 3"))
		require.ErrorContains(t, tryChronicle(h, "1", "acked 9"), "PASSED", "a call that was abandoned arrives late")
		got := read()
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 8, delayq.OutcomeRetried: 2}, got.Outcomes)
		require.Equal(t, []int64{5, 2}, []int64{got.Lateness.Counts[0], got.Lateness.Counts[18]})
		require.EqualValues(t, 7, got.Lateness.Count())
		require.EqualValues(t, 7, got.RunTime.Counts[3])

		for key, most := range map[string]time.Duration{h.Keys.Minutes: 7 * time.Hour, h.Keys.Hours: 31 * 24 * time.Hour} {
			ttl, err := h.RDB.PTTL(ctx, key).Result()
			require.NoError(t, err)
			require.Greater(t, ttl, most-time.Hour)
			require.LessOrEqual(t, ttl, most)
			fields, err := h.RDB.HGetAll(ctx, key).Result()
			require.NoError(t, err)
			require.Len(t, fields, 1)
			for _, text := range fields {
				require.Regexp(t, `^\d+ acked 8 late0 5 late18 2 ran3 7 retried 2 later 3$`, text)
			}
		}
	})
}

// What is no number of this minute begins anew.
func TestChronicleReplacesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		h := hand.New(t, rdb, script.DefaultPrefix, "topic")
		at := time.UnixMilli(1_700_000_000_000)
		r.SetTime(at)
		minute, hour := at.UnixMilli()/60_000, at.UnixMilli()/3_600_000
		for i, c := range []struct{ before, after string }{
			{"", "acked 5"}, {"no", "acked 5"}, {fmt.Sprint(minute-360, " acked 3"), "acked 5"}, {fmt.Sprint(hour-720, " acked 3"), "acked 5"},
			{"%d0 acked 3", "acked 5"}, {"%d acked 3 held 2", "acked 8 held 2"}, {"%d", "acked 5"}, {"%d acked x retried 1", "retried 1 acked 5"},
			{"%d acked -4", "acked 5"}, {"%d acked 9007199254740990", "acked 9007199254740991"},
		} {
			for key, number := range map[string]int64{h.Keys.Minutes: minute, h.Keys.Hours: hour} {
				most := map[string]int64{h.Keys.Minutes: record.HistoryMinutes, h.Keys.Hours: record.HistoryHours}[key]
				text := strings.ReplaceAll(c.before, "%d", fmt.Sprint(number))
				require.NoError(t, rdb.HSet(t.Context(), key, number%most, text).Err())
			}
			require.NoError(t, tryChronicle(h, fmt.Sprint(i+1), "acked 5"))
			for key, number := range map[string]int64{h.Keys.Minutes: minute, h.Keys.Hours: hour} {
				got := rdb.HGetAll(t.Context(), key).Val()
				require.Len(t, got, 1)
				for _, text := range got {
					require.Equal(t, fmt.Sprint(number, " ", c.after), text, c.before)
				}
			}
		}
		var many strings.Builder
		for i := range 100 {
			fmt.Fprintf(&many, "s%d 1 ", i)
		}
		require.NoError(t, tryChronicle(h, "100", strings.TrimSpace(many.String())))
		require.Len(t, strings.Fields(rdb.HVals(t.Context(), h.Keys.Minutes).Val()[0]), 1+2*64)
	})
}

// The numbers are added to both keys or to none.
func TestChronicleOfAWrongType(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		for i, name := range []string{"minutes", "hours"} {
			mend := h.Deface(name)
			err := tryChronicle(h, fmt.Sprint(i+1), "acked 1")
			require.ErrorContains(t, err, fmt.Sprintf("key %q is a string and not a hash", h.Key(name)))
			report, err := inspectorOf(h).Check(t.Context(), h.Keys.Topic)
			require.NoError(t, err)
			require.Equal(t, []delayq.Finding{{Key: name, Kind: delayq.FindingWrongType}}, report.Findings)
			mend()
		}
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Minutes, h.Keys.Hours).Val())
		require.NoError(t, tryChronicle(h, "3", "acked 1"))
		report, err := inspectorOf(h).Check(t.Context(), h.Keys.Topic)
		require.NoError(t, err)
		require.Empty(t, report.Findings)
		require.NoError(t, delayq.NewClient(h.RDB, delayq.Prefix(h.Prefix())).RemoveTopic(t.Context(), h.Keys.Topic))
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Minutes, h.Keys.Hours).Val())
	})
}

// inHistory serves the topic in a bubble. Jobs whose ID begins with bad fail.
func inHistory(t *testing.T, rdb redis.UniversalClient, log *queuetest.Logbook, opts ...delayq.ServerOption) (insp *delayq.Inspector, enqueue func(ids ...string), stop func()) {
	client := delayq.NewClient(rdb)
	end := serving(t, rdb, log, func(_ context.Context, job *delayq.Job) error {
		time.Sleep(20 * time.Millisecond)
		job.Due = time.Time{} // the history has its own
		if strings.HasPrefix(job.ID, "bad") {
			return delayq.Permanent(errTest)
		}
		return nil
	}, opts...)
	return delayq.NewInspector(rdb), func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			_, err := client.Enqueue(t.Context(), "topic", id, nil)
			require.NoError(t, err)
		}
	}, func() { require.NoError(t, end()) }
}

// A server sends its numbers within ten seconds, and the last ones when it stops.
func TestServerKeepsAHistory(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		var log queuetest.Logbook
		insp, enqueue, stop := inHistory(t, rdb, &log)
		enqueue("a", "b", "bad")
		time.Sleep(5 * time.Second)
		require.Empty(t, lastHour(t, insp, "topic", time.Now()).Outcomes, "not yet")
		time.Sleep(6*time.Second + time.Second/2)
		got := lastHour(t, insp, "topic", time.Now())
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 2, delayq.OutcomeBuried: 1}, got.Outcomes)
		require.EqualValues(t, 3, got.RunTime.Counts[record.BucketOf(record.RunTimeBounds, 20*time.Millisecond)])
		require.EqualValues(t, 3, got.RunTime.Count())
		require.EqualValues(t, 3, got.Lateness.Count())
		require.Less(t, got.Lateness.Quantile(1), time.Minute)
		require.NoError(t, rdb.Del(t.Context(), script.NewKeys(script.DefaultPrefix, "topic").Minutes, script.NewKeys(script.DefaultPrefix, "topic").Hours).Err())
		time.Sleep(time.Minute)
		require.Empty(t, lastHour(t, insp, "topic", time.Now()).Outcomes, "nothing has changed, so nothing was sent")
		enqueue("c", "d")
		time.Sleep(time.Second)
		stop()
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 2}, lastHour(t, insp, "topic", time.Now()).Outcomes)
		require.Empty(t, log.With("history"))
	})
}

// A lost reply makes the server send the numbers again, and they count once.
func TestHistoryCountsOnce(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
		f := &redistest.Fault{What: fmt.Sprint(script.Chronicle.Digest), Lose: true}
		o := redistest.Faulty(rdb, f)
		o.MaxRetries = -1
		mine := redis.NewClient(o)
		defer func() { require.NoError(t, mine.Close()) }()
		var log queuetest.Logbook
		insp, enqueue, stop := inHistory(t, mine, &log)
		enqueue("a")
		time.Sleep(12 * time.Second)
		require.True(t, f.Happened())
		enqueue("b")
		time.Sleep(30 * time.Second)
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 2}, lastHour(t, insp, "topic", time.Now()).Outcomes)
		stop()
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 2}, lastHour(t, insp, "topic", time.Now()).Outcomes)
	})
}

// A history that cannot be written costs no job, one line when it begins and one when it ends, and
// no number.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		var log queuetest.Logbook
		k := script.NewKeys(script.DefaultPrefix, "topic")
		require.NoError(t, rdb.Set(t.Context(), k.Hours, "a slip", 0).Err())
		insp, enqueue, stop := inHistory(t, rdb, &log)
		for i := range 10 {
			enqueue(fmt.Sprint("a", i))
			time.Sleep(10 * time.Second)
		}
		stats, err := insp.Stats(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 10, stats[0].Counters[delayq.CounterAcked])
		require.Len(t, log.With("history failed"), 1)
		require.Len(t, log.With("history failed", "is a string and not a hash"), 1)
		require.NoError(t, rdb.Del(t.Context(), k.Hours).Err())
		time.Sleep(12 * time.Second)
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 10}, lastHour(t, insp, "topic", time.Now()).Outcomes)
		require.Len(t, log.With("history works again"), 1)
		stop()
	})
}

// A server without a history writes none.
func TestServerWithoutAHistory(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		var log queuetest.Logbook
		insp, enqueue, stop := inHistory(t, rdb, &log, delayq.KeepHistory(false))
		enqueue("a")
		time.Sleep(20 * time.Second)
		stop()
		stats, err := insp.Stats(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 1, stats[0].Counters[delayq.CounterAcked])
		k := script.NewKeys(script.DefaultPrefix, "topic")
		require.Zero(t, rdb.Exists(t.Context(), k.Minutes, k.Hours).Val())
	})
}

// The last numbers of a topic that a server no longer serves are sent too.
func TestHistoryOfARemovedTopic(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		ctx, client := t.Context(), delayq.NewClient(rdb)
		s := delayq.NewServer(rdb)
		done := make(chan string, 1)
		s.HandlerFunc("topic", func(_ context.Context, job *delayq.Job) error { done <- job.ID; return nil })
		s.HandlerFunc("other", func(context.Context, *delayq.Job) error { return nil })
		run, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(run) }()
		<-s.Ready()
		_, err := client.Enqueue(ctx, "topic", "a", nil)
		require.NoError(t, err)
		require.Equal(t, "a", <-done)
		require.NoError(t, s.Remove(ctx, "topic"))
		slip := script.NewKeys(script.DefaultPrefix, "topic").Minutes
		require.NoError(t, rdb.Set(ctx, slip, "a slip", 0).Err())
		time.Sleep(12 * time.Second)
		require.NoError(t, rdb.Del(ctx, slip).Err())
		time.Sleep(12 * time.Second)
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 1}, lastHour(t, delayq.NewInspector(rdb), "topic", time.Now()).Outcomes)
		stop()
		require.NoError(t, <-ended)
	})
}

// A Redis that does not answer the last call does not hold up the end of a server.
func TestHistoryDoesNotHoldUpAStop(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
		released := make(chan struct{})
		f := &redistest.Fault{What: fmt.Sprint(script.Chronicle.Digest), After: func() { <-released }}
		mine := redis.NewClient(redistest.Faulty(rdb, f))
		defer func() { require.NoError(t, mine.Close()) }()
		var log queuetest.Logbook
		_, enqueue, stop := inHistory(t, mine, &log)
		enqueue("a")
		time.Sleep(time.Second)
		began := time.Now()
		time.AfterFunc(serve.FarewellTime+time.Second, func() { close(released) })
		stop()
		require.True(t, f.Happened())
		require.LessOrEqual(t, time.Since(began), serve.FarewellTime+2*time.Second)
		require.Empty(t, log.With("not deleted"))
	})
}

// The steps of a history, and the complaints about its arguments.
func TestHistorySteps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := hand.New(t, rdb, redistest.Prefix(t), "topic")
		insp, ctx := inspectorOf(h), t.Context()
		at := time.Date(2030, 1, 2, 3, 4, 0, 0, time.UTC)
		minute, hour := at.UnixMilli()/60_000, at.UnixMilli()/3_600_000
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Minutes, minute%360, fmt.Sprint(minute, " acked 3 late2 2 newer 5"),
			(minute+1)%360, fmt.Sprint(minute+1-360, " acked 9"), (minute+2)%360, fmt.Sprint(minute+2, " buried 1 acked x")).Err())
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Hours, hour%720, fmt.Sprint(hour, " lease_lost 4 ran17 4")).Err())
		got, err := insp.History(ctx, "topic", at.Add(time.Second), at.Add(2*time.Minute+1), time.Minute)
		require.NoError(t, err)
		require.Equal(t, "topic", got.Topic)
		require.Equal(t, time.Minute, got.Step)
		require.Len(t, got.Steps, 3)
		for i, want := range []map[delayq.Outcome]int64{{delayq.OutcomeAcked: 3}, {}, {delayq.OutcomeBuried: 1}} {
			require.Equal(t, want, got.Steps[i].Outcomes)
			require.True(t, got.Steps[i].At.Equal(at.Add(time.Duration(i)*time.Minute)))
		}
		require.EqualValues(t, 2, got.Steps[0].Lateness.Counts[2])
		require.Len(t, got.Steps[1].Lateness.Counts, len(record.LatenessBounds)+1)
		got, err = insp.History(ctx, "topic", at, at.Add(time.Nanosecond), time.Hour)
		require.NoError(t, err)
		require.Len(t, got.Steps, 1)
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeLeaseLost: 4}, got.Steps[0].Outcomes)
		require.EqualValues(t, 4, got.Steps[0].RunTime.Counts[17])
		require.Equal(t, time.Hour, got.Steps[0].RunTime.Quantile(0.5), "above the last bound")
		got, err = insp.History(ctx, "topic", at.Add(-6*time.Hour+time.Second), at.Add(time.Second), time.Minute)
		require.NoError(t, err)
		require.Len(t, got.Steps, 360, "the first one has the field of the last one")
		require.True(t, got.Steps[359].At.Equal(at))
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 3}, got.Steps[359].Outcomes)
		got, err = insp.History(ctx, "unused", at, at.Add(720*time.Hour), time.Hour)
		require.NoError(t, err)
		require.LessOrEqual(t, len(got.Steps), 720)
		require.Zero(t, got.Steps[0].Lateness.Quantile(0.99))

		for says, bad := range map[string]struct {
			from, to time.Time
			step     time.Duration
		}{
			"step(1s): must be 1m0s or 1h0m0s":             {at, at.Add(time.Hour), time.Second},
			"from: the zero time":                          {time.Time{}, at, time.Minute},
			"to: the zero time":                            {at, time.Time{}, time.Minute},
			"must be after from(":                          {at, at, time.Minute},
			"6h0m0.001s, at most 6h0m0s are kept by steps": {at, at.Add(6*time.Hour + time.Millisecond), time.Minute},
			"at most 720h0m0s are kept by steps of 1h0m0s": {at, at.Add(721 * time.Hour), time.Hour},
		} {
			_, err := insp.History(ctx, "topic", bad.from, bad.to, bad.step)
			require.ErrorIs(t, err, delayq.ErrInvalid, says)
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, `history topic "topic"`)
		}
		require.NoError(t, h.RDB.Set(ctx, h.Keys.Hours, "a slip", 0).Err())
		_, err = insp.History(ctx, "topic", at, at.Add(time.Hour), time.Hour)
		require.ErrorContains(t, err, "is a string and not a hash")
	})
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	h := delayq.Histogram{Bounds: []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}, Counts: []int64{2, 4, 0, 2}}
	require.EqualValues(t, 8, h.Count())
	for q, want := range map[float64]time.Duration{
		-1: 0, 0: 0, 0.125: time.Second / 2, 0.25: time.Second, 0.5: 2 * time.Second, 0.75: 3 * time.Second, 0.76: 10 * time.Second, 2: 10 * time.Second,
	} {
		require.Equal(t, want, h.Quantile(q), q)
	}
	for _, empty := range []delayq.Histogram{{}, {Bounds: h.Bounds}, {Bounds: h.Bounds, Counts: make([]int64, 4)}, {Counts: []int64{3}}} {
		require.Zero(t, empty.Quantile(0.5))
	}
	require.Equal(t, 10*time.Second, delayq.Histogram{Bounds: h.Bounds, Counts: []int64{0, 0, 0, 5}}.Quantile(0.1))
}
