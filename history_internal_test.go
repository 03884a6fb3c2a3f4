package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
	"github.com/delayq/delayq/internal/settle"
)

// tryChronicle is one call of the chronicle script.
func (h *Hand) tryChronicle(number, sums string) error {
	_, err := h.try(script.Chronicle, h.keys.Of(script.Chronicle, h.keys.Receipt("history")), number, sums)
	return err
}

// lastHour is the history of the last minutes, as one step.
func lastHour(t *testing.T, i *Inspector, topic string, now time.Time) HistoryStep {
	t.Helper()
	var both []HistoryStep
	for _, step := range []time.Duration{time.Minute, time.Hour} {
		got, err := i.History(t.Context(), topic, now.Add(-time.Hour), now.Add(time.Hour), step)
		require.NoError(t, err)
		sum := HistoryStep{Outcomes: map[Outcome]int64{}}
		for _, one := range got.Steps {
			for outcome, n := range one.Outcomes {
				sum.Outcomes[outcome] += n
			}
			sum.Lateness, sum.RunTime = sum.Lateness.with(one.Lateness), sum.RunTime.with(one.RunTime)
		}
		both = append(both, sum)
	}
	require.Equal(t, both[0], both[1], "minutes and hours")
	return both[0]
}

func (h Histogram) with(other Histogram) Histogram {
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
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		read := func() HistoryStep {
			now, err := h.rdb.Time(ctx).Result()
			require.NoError(t, err)
			return lastHour(t, inspectorOf(h.client()), h.keys.Topic, now)
		}
		require.Empty(t, read().Outcomes)
		require.NoError(t, h.tryChronicle("1", "acked 7 late0 5 late18 2 ran3 7"))
		require.NoError(t, h.tryChronicle("1", "acked 7 late0 5 late18 2 ran3 7"))
		require.NoError(t, h.tryChronicle("2", "acked 1 retried 2 later 3"))
		require.NoError(t, h.tryChronicle("1", "acked 9"), "a call that was abandoned arrives late")
		got := read()
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 8, OutcomeRetried: 2}, got.Outcomes)
		require.Equal(t, []int64{5, 2}, []int64{got.Lateness.Counts[0], got.Lateness.Counts[18]})
		require.EqualValues(t, 7, got.Lateness.Count())
		require.EqualValues(t, 7, got.RunTime.Counts[3])

		for key, most := range map[string]time.Duration{h.keys.Minutes: 7 * time.Hour, h.keys.Hours: 31 * 24 * time.Hour} {
			ttl, err := h.rdb.PTTL(ctx, key).Result()
			require.NoError(t, err)
			require.Greater(t, ttl, most-time.Hour)
			require.LessOrEqual(t, ttl, most)
			fields, err := h.rdb.HGetAll(ctx, key).Result()
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
		h := NewHand(t, rdb, script.DefaultPrefix, "topic")
		at := time.UnixMilli(1_700_000_000_000)
		r.SetTime(at)
		minute, hour := at.UnixMilli()/60_000, at.UnixMilli()/3_600_000
		for i, c := range []struct{ before, after string }{
			{"", "acked 5"}, {"no", "acked 5"}, {fmt.Sprint(minute-360, " acked 3"), "acked 5"}, {fmt.Sprint(hour-720, " acked 3"), "acked 5"},
			{"%d0 acked 3", "acked 5"}, {"%d acked 3 held 2", "acked 8 held 2"}, {"%d", "acked 5"}, {"%d acked x retried 1", "retried 1 acked 5"},
			{"%d acked -4", "acked 5"}, {"%d acked 9007199254740990", "acked 9007199254740991"},
		} {
			for key, number := range map[string]int64{h.keys.Minutes: minute, h.keys.Hours: hour} {
				most := map[string]int64{h.keys.Minutes: record.HistoryMinutes, h.keys.Hours: record.HistoryHours}[key]
				text := strings.ReplaceAll(c.before, "%d", fmt.Sprint(number))
				require.NoError(t, rdb.HSet(t.Context(), key, number%most, text).Err())
			}
			require.NoError(t, h.tryChronicle(fmt.Sprint(i+1), "acked 5"))
			for key, number := range map[string]int64{h.keys.Minutes: minute, h.keys.Hours: hour} {
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
		require.NoError(t, h.tryChronicle("100", strings.TrimSpace(many.String())))
		require.Len(t, strings.Fields(rdb.HVals(t.Context(), h.keys.Minutes).Val()[0]), 1+2*64)
	})
}

// The numbers are added to both keys or to none.
func TestChronicleOfAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for i, name := range []string{"minutes", "hours"} {
			mend := h.deface(name)
			err := h.tryChronicle(fmt.Sprint(i+1), "acked 1")
			require.ErrorContains(t, err, fmt.Sprintf("key %q is a string and not a hash", h.Key(name)))
			report, err := inspectorOf(h.client()).Check(t.Context(), h.keys.Topic)
			require.NoError(t, err)
			require.Equal(t, []Finding{{Key: name, Kind: FindingWrongType}}, report.Findings)
			mend()
		}
		require.Zero(t, h.rdb.Exists(t.Context(), h.keys.Minutes, h.keys.Hours).Val())
		require.NoError(t, h.tryChronicle("3", "acked 1"))
		report, err := inspectorOf(h.client()).Check(t.Context(), h.keys.Topic)
		require.NoError(t, err)
		require.Empty(t, report.Findings)
		require.NoError(t, h.client().RemoveTopic(t.Context(), h.keys.Topic))
		require.Zero(t, h.rdb.Exists(t.Context(), h.keys.Minutes, h.keys.Hours).Val())
	})
}

// Every outcome and every bucket has a series, and the names are those of the protocol.
func TestSeriesOfAHistory(t *testing.T) {
	t.Parallel()
	require.Len(t, record.SeriesNames, record.SeriesCount)
	require.Len(t, outcomeNames, record.OutcomeCount)
	require.Equal(t, "late0", record.SeriesNames[record.FirstLate])
	require.Equal(t, "ran0", record.SeriesNames[record.FirstRan])
	require.Equal(t, "ran17", record.SeriesNames[record.SeriesCount-1])
	require.Less(t, record.SeriesCount, 64)
	for _, bounds := range [][]time.Duration{record.LatenessBounds, record.RunTimeBounds} {
		require.True(t, slices.IsSorted(bounds))
		for i, bound := range bounds {
			require.Equal(t, i, record.BucketOf(bounds, bound))
			require.Equal(t, i+1, record.BucketOf(bounds, bound+1))
		}
		require.Equal(t, 0, record.BucketOf(bounds, -time.Hour), "too early is not late")
	}
	text := strings.Join(strings.Fields(proseFile(t, "docs/protocol.md")), " ")
	words := func(bounds []time.Duration) string {
		list := ""
		for _, bound := range bounds {
			list += " " + bound.String()
		}
		return list
	}
	require.Equal(t, " 1ms 2ms 5ms 10ms 25ms 50ms 100ms 250ms 500ms 1s 2.5s 5s 10s 30s 1m0s 5m0s 15m0s 1h0m0s", words(record.LatenessBounds))
	require.Contains(t, text, "are 1, 2, 5, 10, 25, 50, 100, 250 and 500 ms, 1, 2.5, 5, 10 and 30 s, 1, 5 and 15 min and 1 h. "+
		"Those of `ran0` to `ran16` are the same without 2 ms.")
	require.Equal(t, strings.Replace(words(record.LatenessBounds), " 2ms", "", 1), words(record.RunTimeBounds))
	quoted := make([]string, len(outcomeNames))
	for i, name := range outcomeNames {
		quoted[i] = "`" + string(name) + "`"
	}
	require.Contains(t, text, "| "+strings.Join(quoted, ", ")+" | runs that ended in this way |")
}

func TestSumsThereAndBack(t *testing.T) {
	t.Parallel()
	var s serve.Sums
	require.Empty(t, record.EncodeSums(record.SeriesNames, s[:]))
	for i := range s {
		s[i] = int64(i * 1_000_000_007 % 97)
	}
	got := map[string]int64{}
	record.DecodeSums("12 "+record.EncodeSums(record.SeriesNames, s[:]), 12, func(name string, n int64) { got[name] = n })
	want := map[string]int64{}
	for i, n := range s {
		if n > 0 {
			want[record.SeriesNames[i]] = n
		}
	}
	require.Equal(t, want, got)
	for _, damaged := range []string{"", "x", "13 acked 1", "012 acked 1", "12acked 1", "12 acked", "12 acked -1", "12 acked 1e3", "12 acked "} {
		record.DecodeSums(damaged, 12, func(name string, n int64) { t.Errorf("%q: %s %d", damaged, name, n) })
	}
}

func FuzzDecodeSums(f *testing.F) {
	for _, seed := range []string{"", "12", "12 acked 1", "12 acked 1 late0 2", "12 acked x", "12  3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, field string) {
		record.DecodeSums(field, 12, func(_ string, n int64) { require.GreaterOrEqual(t, n, int64(0)) })
		var step HistoryStep
		step.read(field, 12, time.Minute, record.LatenessBounds, record.RunTimeBounds)
		_ = step.Lateness.Quantile(0.99)
	})
}

// inHistory serves the topic in a bubble. Jobs whose ID begins with bad fail.
func inHistory(t *testing.T, rdb redis.UniversalClient, log *lines, opts ...ServerOption) (insp *Inspector, enqueue func(ids ...string), stop func()) {
	client := NewClient(rdb)
	end := serving(t, rdb, log, func(_ context.Context, job *Job) error {
		time.Sleep(20 * time.Millisecond)
		job.Due = time.Time{} // the history has its own
		if strings.HasPrefix(job.ID, "bad") {
			return Permanent(errTest)
		}
		return nil
	}, opts...)
	return inspectorOf(client), func(ids ...string) {
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
		var log lines
		insp, enqueue, stop := inHistory(t, rdb, &log)
		enqueue("a", "b", "bad")
		time.Sleep(5 * time.Second)
		require.Empty(t, lastHour(t, insp, "topic", time.Now()).Outcomes, "not yet")
		time.Sleep(6*time.Second + time.Second/2)
		got := lastHour(t, insp, "topic", time.Now())
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 2, OutcomeBuried: 1}, got.Outcomes)
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
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 2}, lastHour(t, insp, "topic", time.Now()).Outcomes)
		require.Empty(t, log.with("history"))
	})
}

// A lost reply makes the server send the numbers again, and they count once.
func TestHistoryCountsOnce(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, LoadScripts(t.Context(), rdb))
		f := &redistest.Fault{What: fmt.Sprint(script.Chronicle.Digest), Lose: true}
		o := redistest.Faulty(rdb, f)
		o.MaxRetries = -1
		mine := redis.NewClient(o)
		defer func() { require.NoError(t, mine.Close()) }()
		var log lines
		insp, enqueue, stop := inHistory(t, mine, &log)
		enqueue("a")
		time.Sleep(12 * time.Second)
		require.True(t, f.Happened())
		enqueue("b")
		time.Sleep(30 * time.Second)
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 2}, lastHour(t, insp, "topic", time.Now()).Outcomes)
		stop()
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 2}, lastHour(t, insp, "topic", time.Now()).Outcomes)
	})
}

// Numbers that nobody has confirmed for as long as a receipt is sure to be there are given up.
func TestHistoryIsGivenUp(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, LoadScripts(t.Context(), rdb))
		mine := redis.NewClient(rdb.Options())
		defer func() { require.NoError(t, mine.Close()) }()
		s := NewServer(mine)
		s.HandlerFunc("topic", func(context.Context, *Job) error { return nil })
		require.NoError(t, s.begin())
		defer s.engine.Close()
		topic, sent := s.engine.Topics.Get("topic"), 0
		lost := errors.New("i/o timeout")
		s.engine.Scripts.RDB = processing(func(ctx context.Context, cmd redis.Cmder) error {
			sent++
			if sent < 4 {
				require.NoError(t, s.engine.Calls.Process(ctx, cmd), "Redis has it")
				cmd.SetErr(lost)
				return lost
			}
			return s.engine.Calls.Process(ctx, cmd)
		})
		count := func(n int) {
			topic.Mu.Lock()
			defer topic.Mu.Unlock()
			for range n {
				topic.CountLocked(&settle.Row{Run: &run.Run{}, Verb: settle.Ack})
			}
		}
		send := func() error {
			_, err := s.engine.SendHistory(t.Context())
			return err
		}
		insp := NewInspector(rdb)
		acked := func() int64 { return lastHour(t, insp, "topic", time.Now()).Outcomes[OutcomeAcked] }
		count(5)
		require.ErrorIs(t, send(), lost)
		count(2)
		time.Sleep(serve.HistoryPatience)
		require.ErrorIs(t, send(), lost, "the receipt is still there")
		require.EqualValues(t, 5, acked())
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, send(), lost, "with the next numbers: those before are given up")
		require.EqualValues(t, 7, acked())
		time.Sleep(time.Minute)
		require.NoError(t, send())
		require.EqualValues(t, 7, acked())
		calls, err := s.engine.SendHistory(t.Context())
		require.NoError(t, err)
		require.Zero(t, calls)
	})
}

// processing is a processor.
type processing func(ctx context.Context, cmd redis.Cmder) error

func (f processing) Process(ctx context.Context, cmd redis.Cmder) error { return f(ctx, cmd) }

// A history that cannot be written costs no job, one line when it begins and one when it ends, and
// no number.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		var log lines
		k := script.NewKeys(script.DefaultPrefix, "topic")
		require.NoError(t, rdb.Set(t.Context(), k.Hours, "a slip", 0).Err())
		insp, enqueue, stop := inHistory(t, rdb, &log)
		for i := range 10 {
			enqueue(fmt.Sprint("a", i))
			time.Sleep(10 * time.Second)
		}
		stats, err := insp.Stats(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 10, stats[0].Counters[CounterAcked])
		require.Len(t, log.with("history failed"), 1)
		require.Len(t, log.with("history failed", "is a string and not a hash"), 1)
		require.NoError(t, rdb.Del(t.Context(), k.Hours).Err())
		time.Sleep(12 * time.Second)
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 10}, lastHour(t, insp, "topic", time.Now()).Outcomes)
		require.Len(t, log.with("history works again"), 1)
		stop()
	})
}

// A server without a history writes none.
func TestServerWithoutAHistory(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		var log lines
		insp, enqueue, stop := inHistory(t, rdb, &log, KeepHistory(false))
		enqueue("a")
		time.Sleep(20 * time.Second)
		stop()
		stats, err := insp.Stats(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 1, stats[0].Counters[CounterAcked])
		k := script.NewKeys(script.DefaultPrefix, "topic")
		require.Zero(t, rdb.Exists(t.Context(), k.Minutes, k.Hours).Val())
	})
}

// The last numbers of a topic that a server no longer serves are sent too.
func TestHistoryOfARemovedTopic(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		ctx, client := t.Context(), NewClient(rdb)
		s := NewServer(rdb)
		done := make(chan string, 1)
		s.HandlerFunc("topic", func(_ context.Context, job *Job) error { done <- job.ID; return nil })
		s.HandlerFunc("other", func(context.Context, *Job) error { return nil })
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
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 1}, lastHour(t, inspectorOf(client), "topic", time.Now()).Outcomes)
		require.Empty(t, s.engine.TakeLeft())
		for range 2 * serve.HistoryLeft {
			s.engine.Leave(s.engine.Topics.Get("other"))
		}
		require.Len(t, s.engine.TakeLeft(), serve.HistoryLeft)
		stop()
		require.NoError(t, <-ended)
	})
}

// A Redis that does not answer the last call does not hold up the end of a server.
func TestHistoryDoesNotHoldUpAStop(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, LoadScripts(t.Context(), rdb))
		released := make(chan struct{})
		f := &redistest.Fault{What: fmt.Sprint(script.Chronicle.Digest), After: func() { <-released }}
		mine := redis.NewClient(redistest.Faulty(rdb, f))
		defer func() { require.NoError(t, mine.Close()) }()
		var log lines
		_, enqueue, stop := inHistory(t, mine, &log)
		enqueue("a")
		time.Sleep(time.Second)
		began := time.Now()
		time.AfterFunc(serve.FarewellTime+time.Second, func() { close(released) })
		stop()
		require.True(t, f.Happened())
		require.LessOrEqual(t, time.Since(began), serve.FarewellTime+2*time.Second)
		require.Empty(t, log.with("not deleted"))
	})
}

// Counting a run allocates nothing.
func TestCountingAllocatesNothing(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer func() { require.NoError(t, rdb.Close()) }()
	s := NewServer(rdb)
	s.HandlerFunc("topic", func(context.Context, *Job) error { return nil })
	topic := s.engine.Topics.Get("topic")
	r := settle.Row{Run: &run.Run{Start: time.Unix(1, 0), Lateness: time.Second}, Verb: settle.Ack, End: time.Unix(2, 0)}
	require.Zero(t, testing.AllocsPerRun(100, func() { topic.CountLocked(&r) }))
	require.Positive(t, topic.History.Sums[record.FirstRan+record.BucketOf(record.RunTimeBounds, time.Second)])
}

// The steps of a history, and the complaints about its arguments.
func TestHistorySteps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		insp, ctx := inspectorOf(h.client()), t.Context()
		at := time.Date(2030, 1, 2, 3, 4, 0, 0, time.UTC)
		minute, hour := at.UnixMilli()/60_000, at.UnixMilli()/3_600_000
		require.NoError(t, h.rdb.HSet(ctx, h.keys.Minutes, minute%360, fmt.Sprint(minute, " acked 3 late2 2 newer 5"),
			(minute+1)%360, fmt.Sprint(minute+1-360, " acked 9"), (minute+2)%360, fmt.Sprint(minute+2, " buried 1 acked x")).Err())
		require.NoError(t, h.rdb.HSet(ctx, h.keys.Hours, hour%720, fmt.Sprint(hour, " lease_lost 4 ran17 4")).Err())
		got, err := insp.History(ctx, "topic", at.Add(time.Second), at.Add(2*time.Minute+1), time.Minute)
		require.NoError(t, err)
		require.Equal(t, "topic", got.Topic)
		require.Equal(t, time.Minute, got.Step)
		require.Len(t, got.Steps, 3)
		for i, want := range []map[Outcome]int64{{OutcomeAcked: 3}, {}, {OutcomeBuried: 1}} {
			require.Equal(t, want, got.Steps[i].Outcomes)
			require.True(t, got.Steps[i].At.Equal(at.Add(time.Duration(i)*time.Minute)))
		}
		require.EqualValues(t, 2, got.Steps[0].Lateness.Counts[2])
		require.Len(t, got.Steps[1].Lateness.Counts, len(record.LatenessBounds)+1)
		got, err = insp.History(ctx, "topic", at, at.Add(time.Nanosecond), time.Hour)
		require.NoError(t, err)
		require.Len(t, got.Steps, 1)
		require.Equal(t, map[Outcome]int64{OutcomeLeaseLost: 4}, got.Steps[0].Outcomes)
		require.EqualValues(t, 4, got.Steps[0].RunTime.Counts[17])
		require.Equal(t, time.Hour, got.Steps[0].RunTime.Quantile(0.5), "above the last bound")
		got, err = insp.History(ctx, "topic", at.Add(-6*time.Hour+time.Second), at.Add(time.Second), time.Minute)
		require.NoError(t, err)
		require.Len(t, got.Steps, 360, "the first one has the field of the last one")
		require.True(t, got.Steps[359].At.Equal(at))
		require.Equal(t, map[Outcome]int64{OutcomeAcked: 3}, got.Steps[359].Outcomes)
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
			require.ErrorIs(t, err, ErrInvalid, says)
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, `history topic "topic"`)
		}
		require.NoError(t, h.rdb.Set(ctx, h.keys.Hours, "a slip", 0).Err())
		_, err = insp.History(ctx, "topic", at, at.Add(time.Hour), time.Hour)
		require.ErrorContains(t, err, "is a string and not a hash")
	})
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	h := Histogram{Bounds: []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}, Counts: []int64{2, 4, 0, 2}}
	require.EqualValues(t, 8, h.Count())
	for q, want := range map[float64]time.Duration{
		-1: 0, 0: 0, 0.125: time.Second / 2, 0.25: time.Second, 0.5: 2 * time.Second, 0.75: 3 * time.Second, 0.76: 10 * time.Second, 2: 10 * time.Second,
	} {
		require.Equal(t, want, h.Quantile(q), q)
	}
	for _, empty := range []Histogram{{}, {Bounds: h.Bounds}, {Bounds: h.Bounds, Counts: make([]int64, 4)}, {Counts: []int64{3}}} {
		require.Zero(t, empty.Quantile(0.5))
	}
	require.Equal(t, 10*time.Second, Histogram{Bounds: h.Bounds, Counts: []int64{0, 0, 0, 5}}.Quantile(0.1))
}
