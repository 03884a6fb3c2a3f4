package prom

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A day of all kinds of jobs, on a fake clock: each is counted once, in the right place.
func TestMetricsOfALife(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		m := NewMetrics()
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(m))
		enqueue := func(id string, opts ...delayq.JobOption) {
			b.Helper()
			_, err := client.Enqueue(ctx, "mail", id, nil, opts...)
			require.NoError(b, err)
		}
		server := b.Serve("mail", func(ctx context.Context, job *delayq.Job) error {
			time.Sleep(3 * time.Second)
			switch first := job.Attempt == 1; {
			case job.ID == "fails" && first:
				return delayq.RetryIn(time.Minute, errors.New("once"))
			case job.ID == "panics" && first:
				panic("once")
			case job.ID == "snoozes" && job.Snoozes == 0:
				return delayq.Snooze(time.Minute)
			case job.ID == "dies":
				return delayq.Permanent(errors.New("for good"))
			case job.ID == "goes on" && len(job.Payload) == 0:
				return delayq.Again([]byte("x"), delayq.ProcessIn(time.Minute))
			case job.ID == "cancelled", job.ID == "stopped":
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, delayq.Hooks(m), delayq.Concurrency(20))
		for _, id := range []string{"fine", "fails", "panics", "snoozes", "dies", "goes on", "cancelled"} {
			enqueue(id, delayq.ProcessIn(time.Hour))
		}
		enqueue("never", delayq.ProcessIn(2*time.Hour))
		require.NoError(b, client.Pause(ctx, "late", delayq.Pause{}))
		b.Pass(time.Hour + time.Second)
		now := scrapeOf(b, m)
		require.EqualValues(b, 7, now["delayq_running_jobs{topic=mail}"])
		require.EqualValues(b, 7, now["delayq_lateness_seconds_count{topic=mail}"], "as soon as the handler starts")
		require.Zero(b, now["delayq_run_duration_seconds_count{topic=mail}"])

		_, err := client.Dequeue(ctx, "mail", "cancelled")
		require.NoError(b, err)
		_, err = client.Dequeue(ctx, "mail", "never")
		require.NoError(b, err)
		_, err = client.Dequeue(ctx, "mail", "never")
		require.ErrorIs(b, err, delayq.ErrNotFound)
		_, err = client.Enqueue(ctx, "mail", "fine", nil)
		require.ErrorIs(b, err, delayq.ErrDuplicate)
		_, err = client.Enqueue(ctx, "no{topic}", "x", nil)
		require.ErrorIs(b, err, delayq.ErrInvalid)
		b.Pass(time.Hour)

		enqueue("stopped")
		b.Pass(4 * time.Second)
		require.NoError(b, server.Stop())
		enqueue("too late", delayq.ExpireIn(time.Minute))
		b.Pass(time.Hour)
		second := b.Serve("mail", queuetest.Nothing, delayq.Hooks(m))
		b.Pass(time.Second)
		require.NoError(b, second.Stop())

		got := scrapeOf(b, m)
		require.Equal(b, scrape{
			"acked}": 6, "retried}": 2, "snoozed}": 1, "buried}": 1, "again}": 1, "cancelled}": 1, "returned}": 1, "expired}": 1,
		}, scrape(got.of("delayq_runs_total{outcome=")).cut(",topic=mail", ""))
		require.Zero(b, got["delayq_running_jobs{topic=mail}"])
		require.Equal(b, map[string]float64{"": 1}, got.of("delayq_panics_total{topic=mail}"))
		require.Empty(b, got.of("delayq_early_runs_total"))
		require.Contains(b, got, "delayq_early_runs_total{topic=mail}")
		require.Equal(b, map[string]float64{
			"{result=stored,topic=mail}": 10, "{result=duplicate,topic=mail}": 1, "{result=invalid,topic=_other}": 1,
		}, got.of("delayq_enqueues_total"))
		require.Equal(b, map[string]float64{
			"{result=running,topic=mail}": 1, "{result=scheduled,topic=mail}": 1, "{result=not_found,topic=mail}": 1,
		}, got.of("delayq_cancels_total"))
		require.EqualValues(b, 13, got["delayq_run_duration_seconds_count{topic=mail}"])
		require.InDelta(b, 11*3+5, got["delayq_run_duration_seconds_sum{topic=mail}"], 0.001)
		require.EqualValues(b, 13, got["delayq_lateness_seconds_count{topic=mail}"])
		require.EqualValues(b, 12, got["delayq_client_call_duration_seconds_count{call=enqueue}"])
		require.EqualValues(b, 3, got["delayq_client_call_duration_seconds_count{call=cancel}"])
		require.EqualValues(b, 1, got["delayq_client_call_duration_seconds_count{call=pause}"])
		require.NotZero(b, got["delayq_redis_call_duration_seconds_count{script=enqueue}"])
		require.NotZero(b, got["delayq_redis_call_duration_seconds_count{script=take}"])
		require.Empty(b, got.of("delayq_redis_errors_total"))
		require.Equal(b, namesOf(processFamilies...), got.names())
		require.Equal(b, []string{Other, "mail"}, got.topics(), "an invalid topic has no series of its own")
	})
}

// What hardly happens is counted right too: a run before its time, an outcome that is not recorded.
func TestMetricsOfRunsByHand(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	due := time.UnixMilli(4_000_000_000_000)
	run := func(e delayq.RunEvent) func(delayq.RunEvent) {
		ctx, end := m.Run(t.Context(), e)
		require.Nil(t, ctx)
		return end
	}
	early := delayq.RunEvent{Topic: "t", Due: due, StartedAt: due.Add(-time.Millisecond)}
	end := run(early)
	require.Equal(t, map[string]float64{"": 1}, scrapeOf(t, m).of("delayq_early_runs_total{topic=t}"))
	early.FinishedAt, early.Outcome = due, delayq.OutcomeLeaseLost
	m.Ended(early)
	end(early)

	late := delayq.RunEvent{Topic: "t", Due: due, StartedAt: due.Add(90 * time.Second)}
	end = run(late)
	require.EqualValues(t, 1, scrapeOf(t, m)["delayq_running_jobs{topic=t}"])
	end(late) // without an outcome and without an end, as of a server that stops without Redis
	got := scrapeOf(t, m)
	require.Equal(t, map[string]float64{"": 1}, got.of("delayq_early_runs_total{topic=t}"))
	require.Equal(t, map[string]float64{"{outcome=lease_lost,topic=t}": 1}, got.of("delayq_runs_total"))
	require.EqualValues(t, 2, got["delayq_lateness_seconds_count{topic=t}"])
	require.EqualValues(t, 90, got["delayq_lateness_seconds_sum{topic=t}"], "a run that is early is 0 late")
	require.EqualValues(t, 1, got["delayq_run_duration_seconds_count{topic=t}"])
	require.Zero(t, got["delayq_running_jobs{topic=t}"])

	m.Ended(delayq.RunEvent{Topic: "t", Outcome: delayq.OutcomeExpired})
	m.Ended(delayq.RunEvent{Topic: "t", Outcome: "of a later release"})
	require.Equal(t, map[string]float64{"{outcome=lease_lost,topic=t}": 1, "{outcome=expired,topic=t}": 1}, scrapeOf(t, m).of("delayq_runs_total"))

	for word, err := range map[string]error{
		"stored": delayq.ErrNotReplicated, "duplicate": &delayq.DuplicateError{}, "unknown": fmt.Errorf("x: %w", delayq.ErrUnknownOutcome),
		"error": errors.New("x"), "invalid": delayq.ErrCursor, "changed": delayq.ErrChanged,
	} {
		m.Enqueued(t.Context(), delayq.EnqueueEvent{Topic: "t", Err: errors.New("x")}) // now "t" is known
		before := scrapeOf(t, m)["delayq_enqueues_total{result="+word+",topic=t}"]
		m.Enqueued(t.Context(), delayq.EnqueueEvent{Topic: "t", Err: err})
		require.EqualValues(t, before+1, scrapeOf(t, m)["delayq_enqueues_total{result="+word+",topic=t}"], word)
	}
	for word, err := range map[string]error{
		"ready": delayq.ErrNotAudited, "not_found": delayq.ErrNotFound, "changed": delayq.ErrChanged, "unknown": delayq.ErrUnknownOutcome, "error": context.Canceled,
	} {
		m.Dequeued(t.Context(), delayq.DequeueEvent{Topic: "t", State: delayq.StateReady, Err: err})
		require.EqualValues(t, 1, scrapeOf(t, m)["delayq_cancels_total{result="+word+",topic=t}"], word)
	}
	m.Script(delayq.ScriptEvent{Name: "take", Duration: time.Second, Err: errors.New("x")})
	m.Script(delayq.ScriptEvent{Name: "take", Duration: time.Second, Err: fmt.Errorf("x: %w", context.Canceled)})
	got = scrapeOf(t, m)
	require.EqualValues(t, 1, got["delayq_redis_errors_total{script=take}"])
	require.EqualValues(t, 1, got["delayq_redis_call_duration_seconds_count{script=take}"], "a call that was given up says nothing")
}

// All histograms have classic and native buckets.
func TestHistogramsAreClassicAndNative(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	_, end := m.Run(t.Context(), delayq.RunEvent{Topic: "t", Due: time.UnixMilli(1000), StartedAt: time.UnixMilli(1017)})
	end(delayq.RunEvent{StartedAt: time.UnixMilli(1000), FinishedAt: time.UnixMilli(1700)})
	_, done := m.Call(t.Context(), delayq.CallEvent{Name: "enqueue"})
	done(delayq.CallResult{})
	m.Script(delayq.ScriptEvent{Name: "ack", Duration: time.Millisecond})
	found := 0
	for _, f := range gather(t, m) {
		for _, one := range f.Metric {
			if h := one.Histogram; h != nil {
				found++
				require.Len(t, h.Bucket, map[string]int{lateness.name: len(latenessBounds), runDuration.name: len(durationBounds)}[f.GetName()]+
					map[string]int{callDuration.name: len(callBounds), redisCallDuration.name: len(callBounds)}[f.GetName()])
				require.EqualValues(t, 3, h.GetSchema(), "2^(1/8) is at most 1.1")
				require.Len(t, append(h.PositiveSpan, h.NegativeSpan...), 1)
			}
		}
	}
	require.Equal(t, 4, found)
	require.LessOrEqual(t, math.Pow(2, 1./8), 1.1)
}

// promlint has nothing to say, and Metrics has a scrape for every client and server of a process.
func TestMetricsAreLinted(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		m := NewMetrics()
		live(t, f, m)
		problems, err := testutil.CollectAndLint(m)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Equal(t, namesOf(processFamilies...), scrapeOf(t, m).names())
	})
}

// live lets a job run and another be cancelled.
func live(t *testing.T, f *queuetest.Fixture, hooks ...delayq.Hook) {
	ctx := t.Context()
	client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(hooks...))
	_, err := client.Enqueue(ctx, "topic", "run", nil, delayq.Retention(time.Hour))
	require.NoError(t, err)
	_, err = client.Enqueue(ctx, "topic", "cancelled", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	_, err = client.Dequeue(ctx, "topic", "cancelled")
	require.NoError(t, err)
	_, err = client.Enqueue(ctx, "topic", "scheduled", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, client.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil))
	s := queuetest.Serve(t, f.RDB, f.Prefix, "topic", queuetest.Nothing, delayq.Hooks(hooks...))
	queuetest.Until(t, func() bool { return f.Stats().Counters[delayq.CounterAcked] == 1 && f.Stats().Servers == 1 })
	t.Cleanup(func() { _ = s.Stop() })
}

// Any number of topics, whatever they are called, has at most MaxTopics series and those of Other.
func TestMetricsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []MetricsOption
		want int
	}{
		"default":   {nil, 201},
		"MaxTopics": {[]MetricsOption{MaxTopics(3)}, 4},
		"TopicLabel": {[]MetricsOption{MaxTopics(3), TopicLabel(func(topic string) string {
			return topic[:1]
		})}, 2},
		"TopicLabel of nothing": {[]MetricsOption{TopicLabel(func(string) string { return "" })}, 1},
		"TopicLabel of no text": {[]MetricsOption{TopicLabel(func(string) string { return "\xff\xfe" })}, 2},
		"TopicLabel panics":     {[]MetricsOption{TopicLabel(func(string) string { panic("!") })}, 1},
	} {
		m := NewMetrics(c.opts...)
		for i := range 10_000 {
			e := delayq.RunEvent{Topic: topicName(i), StartedAt: time.UnixMilli(1), FinishedAt: time.UnixMilli(2), Outcome: delayq.OutcomeAcked}
			_, end := m.Run(t.Context(), e)
			end(e)
			m.Enqueued(t.Context(), delayq.EnqueueEvent{Topic: e.Topic})
			m.Enqueued(t.Context(), delayq.EnqueueEvent{Topic: "{" + e.Topic, Err: delayq.ErrInvalid})
			m.Dequeued(t.Context(), delayq.DequeueEvent{Topic: e.Topic, State: delayq.StateReady})
		}
		got := scrapeOf(t, m)
		topics := got.topics()
		require.Len(t, topics, c.want, name)
		require.Contains(t, topics, Other, name)
		sum := 0.0
		for _, n := range got.of("delayq_runs_total{outcome=acked") {
			sum += n
		}
		require.EqualValues(t, 10_000, sum, "%s: nothing is lost", name)
		require.LessOrEqual(t, len(got), 60*len(topics)+100, name)
	}
}

// Hooks are called by many goroutines, also while topics are new.
func TestMetricsAreSafe(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MaxTopics(5), TopicLabel(func(topic string) string { return topic[len(topic)-1:] }))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range 1000 {
				e := delayq.RunEvent{Topic: topicName(i), StartedAt: time.UnixMilli(1), Outcome: delayq.OutcomeAcked}
				_, end := m.Run(t.Context(), e)
				end(e)
				m.Script(delayq.ScriptEvent{Name: topicName(i % 10)})
			}
		})
	}
	group.Go(func() { scrapeOf(t, m) })
	group.Wait()
	got := scrapeOf(t, m)
	require.Len(t, got.topics(), 6)
	require.EqualValues(t, 4000, got["delayq_runs_total{outcome=acked,topic="+Other+"}"])
}

// Each mistake in options is reported by Register, and breaks nothing else.
func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	insp := delayq.NewInspector(nil)
	for says, c := range map[string]prometheus.Collector{
		"MaxTopics(0): must be from 1 to 10000":       NewMetrics(MaxTopics(0)),
		"MaxTopics(10001): must be from 1 to 10000":   NewCollector(insp, MaxTopics(10_001)),
		"TopicLabel(nil): must be a function":         NewMetrics(TopicLabel(nil)),
		"an option of NewMetrics is nil":              NewMetrics(nil),
		"an option of NewCollector is nil":            NewCollector(insp, nil),
		"the inspector is nil":                        NewCollector(nil),
		"MinInterval(-1ns): must be from 0s to 1h":    NewCollector(insp, MinInterval(-1)),
		"MinInterval(1h0m1s): must be from 0s to 1h":  NewCollector(insp, MinInterval(time.Hour+time.Second)),
		"Timeout(0s): must be from 1ms to 1m":         NewCollector(insp, Timeout(0)),
		"Timeout(2m0s): must be from 1ms to 1m":       NewCollector(insp, Timeout(2*time.Minute)),
		"Logger(nil): must be a logger":               NewCollector(insp, Logger(nil)),
		"MaxTopics(-1): must be from 1 to 10000\nTop": NewCollector(insp, MaxTopics(-1), TopicLabel(nil)),
	} {
		err := prometheus.NewRegistry().Register(c)
		require.ErrorIs(t, err, delayq.ErrInvalid, says)
		require.ErrorContains(t, err, says)
		testutil.CollectAndCount(prometheus.CollectorFunc(c.Collect)) // does not panic
	}
	m := NewMetrics(MaxTopics(0))
	_, end := m.Run(t.Context(), delayq.RunEvent{Topic: "t"})
	end(delayq.RunEvent{})
}

// Both can be given to everything that calls hooks, and metrics of two prefixes have one registry.
func TestMetricsAreAHook(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	m := NewMetrics()
	prefix := delayq.Prefix(redistest.Prefix(t))
	_, err := delayq.NewClient(rdb, prefix, delayq.Hooks(m)).Enqueue(t.Context(), "topic", "x", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	_, err = delayq.NewInspector(rdb, prefix, delayq.Hooks(m)).Job(t.Context(), "topic", "x")
	require.NoError(t, err)
	require.EqualValues(t, 1, scrapeOf(t, m)["delayq_redis_call_duration_seconds_count{script=get}"])

	reg := prometheus.NewPedanticRegistry()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"prefix": name}, reg).Register(NewMetrics()))
		require.NoError(t, reg.Register(NewCollector(delayq.NewInspector(rdb, delayq.Prefix(redistest.Prefix(t))))))
	}
	_, err = reg.Gather()
	require.NoError(t, err)
}

// BenchmarkRun makes the calls of one run.
func BenchmarkRun(b *testing.B) {
	m := NewMetrics()
	ctx := context.Background()
	events := make([]delayq.RunEvent, 100)
	for i := range events {
		due := time.UnixMilli(4_000_000_000_000)
		start := due.Add(time.Duration(i*i) * 10 * time.Microsecond)
		events[i] = delayq.RunEvent{
			Topic: strings.Clone(topicName(i % 4)), Due: due, StartedAt: start, FinishedAt: start.Add(time.Duration(i) * 100 * time.Microsecond),
			Outcome: delayq.OutcomeAcked,
		}
	}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for i := 0; p.Next(); i++ {
			e := events[i%len(events)]
			_, end := m.Run(ctx, e)
			m.Ended(e)
			end(e)
		}
	})
}

// BenchmarkEnqueue makes the calls of one Enqueue.
func BenchmarkEnqueue(b *testing.B) {
	m := NewMetrics()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_, end := m.Call(ctx, delayq.CallEvent{Name: "enqueue", Topic: "t00001", Jobs: 1})
		m.Enqueued(ctx, delayq.EnqueueEvent{Topic: "t00001"})
		end(delayq.CallResult{})
	}
}
