package prom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// always looks with each scrape.
var always = MinInterval(0)

// The state of a queue after a day of all kinds of jobs, on a fake clock.
func TestCollectorOfALife(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		c := NewCollector(b.Inspector, always)
		require.Equal(b, map[string]float64{
			"delayq_redis_up{prefix=q}": 1, "delayq_folded_topics{prefix=q}": 0, "delayq_collector_errors_total{prefix=q}": 0,
			"delayq_collector_duration_seconds{prefix=q}": 0, "delayq_collector_last_success_timestamp_seconds{prefix=q}": float64(b.Began.Unix()),
		}, map[string]float64(scrapeOf(b, c)), "of an empty queue")

		for id, in := range map[string]time.Duration{"a": 30 * time.Second, "b": time.Minute, "c": 5 * time.Minute, "d": time.Hour, "e": 3 * time.Hour, "f": 48 * time.Hour} {
			b.Enqueue("mail", id, delayq.ProcessIn(in), delayq.Retention(100*time.Hour))
		}
		b.Enqueue("alone", "x", delayq.ProcessIn(time.Minute))
		b.AddSchedule("s", delayq.Every(10*time.Minute))
		require.NoError(b, b.Client.Pause(ctx, "t", delayq.Pause{By: "me"}))
		s := b.Serve("mail", func(_ context.Context, job *delayq.Job) error {
			switch job.ID {
			case "a":
				return delayq.RetryIn(time.Hour, errors.New("later"))
			case "b":
				return delayq.Permanent(errors.New("never"))
			}
			return nil
		}, delayq.Concurrency(7))
		got := scrapeOf(b, c)
		require.Equal(b, map[string]float64{
			"1m,": 2, "10m,": 3, "1h,": 4, "24h,": 5,
		}, map[string]float64(scrape(got.of("delayq_due_jobs{prefix=q,topic=mail,within=")).cut("}", ",")))
		b.Pass(6 * time.Minute)

		got = scrapeOf(b, c)
		require.Equal(b, scrape{
			"delayq_jobs{prefix=q,state=scheduled,": 4, "delayq_jobs{prefix=q,state=dead,": 1, "delayq_jobs{prefix=q,state=done,": 1,
			"delayq_retrying_jobs{prefix=q,": 1, "delayq_servers{prefix=q,": 1, "delayq_workers{prefix=q,": 7,
			"delayq_job_events_total{event=enqueued,prefix=q,": 6, "delayq_job_events_total{event=taken,prefix=q,": 3,
			"delayq_job_events_total{event=acked,prefix=q,": 1, "delayq_job_events_total{event=retried,prefix=q,": 1,
			"delayq_job_events_total{event=buried,prefix=q,": 1,
		}, scrape(scrape(got.of("delayq_")).having("topic=mail}")).cut("topic=mail}", ""))
		require.Equal(b, scrape{
			"delayq_jobs{prefix=q,state=scheduled,": 1, "delayq_overdue_jobs{prefix=q,": 1, "delayq_oldest_overdue_seconds{prefix=q,": 300,
			"delayq_job_events_total{event=enqueued,prefix=q,": 1,
		}, scrape(scrape(got.of("delayq_")).having("topic=alone}")).cut("topic=alone}", ""), "due, with nobody to promote it")
		require.EqualValues(b, 1, got["delayq_paused{prefix=q,topic=t}"])
		require.Zero(b, got["delayq_paused{prefix=q,topic=mail}"])
		require.Contains(b, got, "delayq_servers{prefix=q,topic=alone}")
		require.Zero(b, got["delayq_servers{prefix=q,topic=alone}"])
		require.Contains(b, got, "delayq_oldest_overdue_seconds{prefix=q,topic=mail}")
		require.Empty(b, got.of("delayq_due_jobs{prefix=q,topic=alone"), "an overdue job is not one to come")
		require.Equal(b, map[string]float64{"10m": 0, "1h": 2, "24h": 3, "1m": 0}, within(got, "mail"))
		require.EqualValues(b, b.Began.Add(10*time.Minute).Unix(), got["delayq_schedule_next_timestamp_seconds{prefix=q,topic=t}"])
		require.NotContains(b, got, "delayq_schedule_next_timestamp_seconds{prefix=q,topic=mail}")
		require.Equal(b, namesOf(queueFamilies...), got.names())

		require.NoError(b, b.Client.ResumeAll(ctx, "t"))
		second := b.Serve("t", queuetest.Nothing)
		b.Pass(25 * time.Minute)
		got = scrapeOf(b, c)
		next := b.ScheduleInfo("s").NextSlot
		require.EqualValues(b, next.Unix(), got["delayq_schedule_next_timestamp_seconds{prefix=q,topic=t}"])
		require.EqualValues(b, b.Stats("t").Counters[delayq.CounterFired], got["delayq_schedule_slots_total{prefix=q,result=fired,topic=t}"])
		require.NotZero(b, got["delayq_schedule_slots_total{prefix=q,result=fired,topic=t}"])
		require.NoError(b, s.Stop())
		require.NoError(b, second.Stop())
		require.Zero(b, scrapeOf(b, c)["delayq_servers{prefix=q,topic=mail}"])
	})
}

// having returns the series that end in a label.
func (s scrape) having(suffix string) scrape {
	some := scrape{}
	for name, v := range s {
		if strings.HasSuffix(name, suffix) {
			some["delayq_"+name] = v
		}
	}
	return some
}

// within returns what falls due in a topic.
func within(s scrape, topic string) map[string]float64 {
	some := map[string]float64{}
	for _, h := range horizons {
		some[h.label] = s["delayq_due_jobs{prefix=q,topic="+topic+",within="+h.label+"}"]
	}
	return some
}

// promlint has nothing to say, on an embedded Redis and on a real one.
func TestCollectorIsLinted(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		live(t, f)
		c := NewCollector(f.Inspector)
		problems, err := testutil.CollectAndLint(c)
		require.NoError(t, err)
		require.Empty(t, problems)
		got := scrapeOf(t, c)
		require.Equal(t, namesOf(queueFamilies...), got.names())
		require.EqualValues(t, 1, got["delayq_redis_up{prefix="+f.Prefix+"}"])
		require.EqualValues(t, 1, got["delayq_jobs{prefix="+f.Prefix+",state=done,topic=topic}"])
		require.EqualValues(t, 1, got["delayq_jobs{prefix="+f.Prefix+",state=scheduled,topic=topic}"])
		require.EqualValues(t, 1, got["delayq_due_jobs{prefix="+f.Prefix+",topic=topic,within=24h}"])
		require.EqualValues(t, 1, got["delayq_job_events_total{event=cancelled,prefix="+f.Prefix+",topic=topic}"])
		require.EqualValues(t, 10, got["delayq_workers{prefix="+f.Prefix+",topic=topic}"])
	})
}

// A program's own test sees the metrics of its jobs with delayqtest.
func TestCollectorInAUsersTest(t *testing.T) {
	t.Parallel()
	q := delayqtest.Start(t)
	m := NewMetrics()
	q.Serve(func(s *delayq.Server) { s.HandlerFunc("mail", queuetest.Nothing) }, delayq.Hooks(m))
	_, err := q.Client.Enqueue(t.Context(), "mail", "x", nil, delayq.ProcessIn(30*24*time.Hour))
	require.NoError(t, err)
	c := NewCollector(q.Inspector, always)
	require.EqualValues(t, 1, scrapeOf(t, c)["delayq_jobs{prefix=delayq,state=scheduled,topic=mail}"])
	q.Advance(30 * 24 * time.Hour)
	require.EqualValues(t, 1, scrapeOf(t, c)["delayq_job_events_total{event=acked,prefix=delayq,topic=mail}"])
	require.EqualValues(t, 1, scrapeOf(t, m)["delayq_runs_total{outcome=acked,topic=mail}"])
}

// looks counts the looks that reach a client of Redis, and can let calls of a kind fail.
type looks struct {
	n    atomic.Int64
	fail atomic.Value // string: the name of the command
}

func (l *looks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *looks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "sscan" {
			l.n.Add(1)
		}
		if l.fail.Load() == cmd.Name() {
			cmd.SetErr(errors.New("not today"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (l *looks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if l.fail.Load() == cmd.Name() {
				cmd.SetErr(errors.New("not today"))
				err = cmd.Err()
			}
		}
		return err
	}
}

// Any number of scrapers cost Redis one look in each interval.
func TestScrapersShareALook(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		count := new(looks)
		b.RDB.AddHook(count)
		b.Enqueue("mail", "x")
		c := NewCollector(b.Inspector)
		scrapeAll := func() {
			var group sync.WaitGroup
			for range 50 {
				group.Go(func() { require.EqualValues(b, 1, scrapeOf(b, c)["delayq_jobs{prefix=q,state=ready,topic=mail}"]) })
			}
			group.Wait()
		}
		scrapeAll()
		b.Pass(5*time.Second - time.Millisecond)
		scrapeAll()
		require.EqualValues(b, 1, count.n.Load())
		b.Pass(time.Millisecond)
		scrapeAll()
		require.EqualValues(b, 2, count.n.Load())
	})
}

// While Redis does not answer, its state is absent and not old: 50 scrapers wait no longer than the
// timeout, and for one look. What the collector says about itself remains.
func TestCollectorWithoutRedis(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var logged bytes.Buffer
		c := NewCollector(delayq.NewInspector(w.Client(b.T), delayq.Prefix(queuetest.Prefix)), Logger(slog.New(slog.NewTextHandler(&logged, nil))))
		b.Enqueue("mail", "x")
		require.EqualValues(b, 1, scrapeOf(b, c)["delayq_jobs{prefix=q,state=ready,topic=mail}"])
		good := b.Began
		w.Freeze()
		for round := 1; round <= 2; round++ {
			b.Pass(time.Minute)
			began := b.At()
			var group sync.WaitGroup
			for range 50 {
				group.Go(func() {
					got := scrapeOf(b, c)
					delete(got, "delayq_collector_duration_seconds{prefix=q}")
					require.Equal(b, scrape{
						"delayq_redis_up{prefix=q}": 0, "delayq_collector_errors_total{prefix=q}": float64(round),
						"delayq_collector_last_success_timestamp_seconds{prefix=q}": float64(good.Unix()),
					}, got)
				})
			}
			group.Wait()
			require.Equal(b, 2*time.Second, b.At()-began)
		}
		w.Thaw()
		b.Pass(time.Minute)
		got := scrapeOf(b, c)
		require.EqualValues(b, 1, got["delayq_jobs{prefix=q,state=ready,topic=mail}"])
		require.EqualValues(b, 1, got["delayq_redis_up{prefix=q}"])
		require.EqualValues(b, 2, got["delayq_collector_errors_total{prefix=q}"])
		require.Equal(b, 1, strings.Count(logged.String(), "look failed"), logged.String())
		require.Equal(b, 1, strings.Count(logged.String(), "look works again"), logged.String())
	})
}

// A real Redis that is frozen is noticed by the next scrape, even if the client does not follow
// contexts, and its end too. The look that hung leaves nothing behind.
func TestCollectorOfAFrozenRedis(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	opt := rs.Options()
	opt.ContextTimeoutEnabled = false
	rdb := redis.NewClient(opt)
	defer func() { require.NoError(t, rdb.Close()) }()
	_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "mail", "x", nil)
	require.NoError(t, err)
	c := NewCollector(delayq.NewInspector(rdb), always, Timeout(100*time.Millisecond), Logger(slog.New(slog.DiscardHandler)))
	const ready = "delayq_jobs{prefix=delayq,state=ready,topic=mail}"
	var before float64 // of a scrape whose look has ended: on a busy machine some take longer
	queuetest.Until(t, func() bool {
		got := scrapeOf(t, c)
		before = got["delayq_collector_errors_total{prefix=delayq}"]
		return got[ready] == 1
	})
	require.NoError(t, rs.Stop())
	for range 3 {
		got := scrapeOf(t, c)
		require.NotContains(t, got, ready)
		require.Zero(t, got["delayq_redis_up{prefix=delayq}"])
		require.Equal(t, before+1, got["delayq_collector_errors_total{prefix=delayq}"], "one look, three scrapes")
	}
	require.NoError(t, rs.Cont())
	queuetest.Until(t, func() bool { return scrapeOf(t, c)[ready] == 1 })
}

// A topic that cannot be read has no series; the others have. Without the servers there is no word
// about servers, because 0 of them would be an alert.
func TestCollectorReadsWhatItCan(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		hook := new(looks)
		f.RDB.AddHook(hook)
		for _, topic := range []string{"good", "topic"} {
			_, err := f.Client.Enqueue(ctx, topic, "x", nil, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
		}
		var logged bytes.Buffer
		c := NewCollector(f.Inspector, always, Logger(slog.New(slog.NewTextHandler(&logged, nil))))
		require.Equal(t, []string{"good", "topic"}, scrapeOf(t, c).topics())
		require.NoError(t, f.RDB.Del(ctx, f.Key("bucket")).Err())
		require.NoError(t, f.RDB.Set(ctx, f.Key("bucket"), "a slip", 0).Err())
		got := scrapeOf(t, c)
		require.Equal(t, []string{"good"}, got.topics())
		require.EqualValues(t, 1, got["delayq_redis_up{prefix="+f.Prefix+"}"])
		require.EqualValues(t, 1, got["delayq_collector_errors_total{prefix="+f.Prefix+"}"])
		require.Contains(t, got, "delayq_servers{prefix="+f.Prefix+",topic=good}")
		require.Contains(t, logged.String(), "is a string and not a zset")
		require.NoError(t, f.RDB.Del(ctx, f.Key("bucket")).Err())

		hook.fail.Store("hscan")
		got = scrapeOf(t, c)
		require.Equal(t, []string{"good", "topic"}, got.topics())
		require.NotContains(t, got.names(), "delayq_servers")
		require.NotContains(t, got.names(), "delayq_workers")
		hook.fail.Store("zcount")
		require.Empty(t, scrapeOf(t, c).topics())
		hook.fail.Store("sscan")
		require.Zero(t, scrapeOf(t, c)["delayq_redis_up{prefix="+f.Prefix+"}"])
		hook.fail.Store("")
		require.Contains(t, scrapeOf(t, c).names(), "delayq_servers")
	})
}

// What panics in a look or ends its goroutine is a failed look, and the next one is not affected.
func TestCollectorSurvivesCallbacks(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var act atomic.Value
		insp := delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix))
		f.RDB.AddHook(callback(func() {
			if f, ok := act.Load().(func()); ok {
				f()
			}
		}))
		c := NewCollector(insp, always, Logger(slog.New(slog.DiscardHandler)))
		up := "delayq_redis_up{prefix=" + f.Prefix + "}"
		require.EqualValues(t, 1, scrapeOf(t, c)[up])
		for i, f := range []func(){func() { panic("!") }, runtime.Goexit} {
			act.Store(f)
			got := scrapeOf(t, c)
			require.Zero(t, got[up])
			require.EqualValues(t, i+1, got[strings.Replace(up, "redis_up", "collector_errors_total", 1)])
		}
		act.Store(func() {})
		require.EqualValues(t, 1, scrapeOf(t, c)[up])
	})
}

// callback is called before each single command.
type callback func()

func (f callback) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f callback) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f()
		return next(ctx, cmd)
	}
}

func (f callback) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// 10,000 topics have as many series as MaxTopics and Other. Nothing is lost: sums stay sums.
func TestCollectorFolds(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		topics, most := 10_000, 200
		if strings.HasSuffix(t.Name(), "miniredis") { // which is slow
			topics, most = 50, 20
		}
		list := make([]delayq.NewJob, topics)
		for i := range list {
			list[i] = delayq.NewJob{Topic: topicName(i), ID: "x", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
		}
		_, err := f.Client.EnqueueBatch(t.Context(), list)
		require.NoError(t, err)
		opts := []CollectorOption{Timeout(time.Minute)}
		if most != defaults.maxTopics {
			opts = append(opts, MaxTopics(most))
		}
		got := scrapeOf(t, NewCollector(f.Inspector, opts...))
		require.Len(t, got.topics(), most+1)
		require.LessOrEqual(t, len(got), (most+1)*51+5)
		require.EqualValues(t, topics-most, got["delayq_folded_topics{prefix="+f.Prefix+"}"])
		require.EqualValues(t, topics-most, got["delayq_jobs{prefix="+f.Prefix+",state=scheduled,topic=_other}"])
		require.EqualValues(t, topics-most, got["delayq_job_events_total{event=enqueued,prefix="+f.Prefix+",topic=_other}"])
		require.EqualValues(t, 1, got["delayq_due_jobs{prefix="+f.Prefix+",topic=t00000,within=24h}"])

		labels := NewCollector(f.Inspector, Timeout(time.Minute), TopicLabel(func(topic string) string { return topic[:1] }))
		require.EqualValues(t, topics, scrapeOf(t, labels)["delayq_jobs{prefix="+f.Prefix+",state=scheduled,topic=t}"])
		none := NewCollector(f.Inspector, Timeout(time.Minute), TopicLabel(func(string) string { panic("!") }))
		require.Equal(t, []string{Other}, scrapeOf(t, none).topics())
	})
}

// Who reads metrics needs no more rights than the inspector of the ACL file has.
func TestCollectorNeedsOnlyAnInspector(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin, ctx := rs.Client(t), t.Context()
	_, err := delayq.NewClient(admin).Enqueue(ctx, "mail", "x", nil)
	require.NoError(t, err)
	user := []any{"ACL", "SETUSER"}
	for line := range strings.Lines(file(t, "../docs/acl/delayq.acl")) {
		if words := strings.Fields(line); words[1] == "delayq-inspector" {
			for _, word := range words[1:] {
				user = append(user, word)
			}
		}
	}
	require.NoError(t, admin.Do(ctx, user...).Err())
	opt := rs.Options()
	opt.Username, opt.Password = "delayq-inspector", "change-me-inspector"
	rdb := redis.NewClient(opt)
	defer func() { require.NoError(t, rdb.Close()) }()
	got := scrapeOf(t, NewCollector(delayq.NewInspector(rdb)))
	require.EqualValues(t, 1, got["delayq_jobs{prefix=delayq,state=ready,topic=mail}"])
	require.Zero(t, got["delayq_collector_errors_total{prefix=delayq}"])
}

// A queue as a look finds it, by hand.
func look1(topics map[string]delayq.TopicStats) (list []seen) {
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		stats := topics[topic]
		stats.Topic = topic
		list = append(list, seen{topic: topic, stats: &stats, due: []int64{1, 2, 3, 4}})
	}
	return list
}

// Topics with one label are added up so that no alert is hidden and none is false.
func TestSeriesOfSeveralTopics(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(4_000_000_000_000)
	c := NewCollector(delayq.NewInspector(nil), TopicLabel(func(topic string) string { return topic[:1] }))
	of := func(topics map[string]delayq.TopicStats) scrape {
		return scrapeOf(t, fixed(c.state.metrics(c.constant, look1(topics)))).cut("{prefix=delayq,topic=a", "{")
	}
	got := of(map[string]delayq.TopicStats{
		"a1": {At: now, Ready: 2, Overdue: 2, OldestOverdue: now.Add(-time.Second), Servers: 3, Workers: 3, Capacity: 30, Paused: true, Parcels: 2, OldestParcel: now.Add(-time.Second), Flows: 5, FlowsAtRisk: 1, Partitions: &delayq.PartitionStats{Count: 12, Closing: make([]delayq.ClosingPartitions, 2)}},
		"a2": {At: now, Ready: 5, Overdue: 5, OldestOverdue: now.Add(-time.Minute), Servers: 2, Workers: 20, Capacity: 20, NextSlot: now.Add(time.Hour), Parcels: 1, OldestParcel: now.Add(-time.Hour), Flows: 4, FlowsAtRisk: 2},
		"a3": {At: now, Scheduled: 1, NextSlot: now.Add(time.Minute), Partitions: &delayq.PartitionStats{Count: 1, Closing: make([]delayq.ClosingPartitions, 1)}},
	})
	require.EqualValues(t, 7, got["delayq_overdue_jobs{}"])
	require.EqualValues(t, 60, got["delayq_oldest_overdue_seconds{}"])
	require.EqualValues(t, 3, got["delayq_parcels{}"])
	require.EqualValues(t, 9, got["delayq_flows{}"])
	require.EqualValues(t, 3, got["delayq_flows_at_risk{}"])
	require.EqualValues(t, 13, got["delayq_partitions{}"])
	require.EqualValues(t, 3, got["delayq_closing_generations{}"])
	require.EqualValues(t, 3600, got["delayq_oldest_parcel_seconds{}"])
	require.EqualValues(t, 50, got["delayq_workers{}"])
	require.EqualValues(t, 2, got["delayq_servers{}"], "of the topics that wait for a server")
	require.Zero(t, got["delayq_paused{}"], "one of three")
	require.EqualValues(t, now.Add(time.Minute).Unix(), got["delayq_schedule_next_timestamp_seconds{}"])
	require.EqualValues(t, 12, got["delayq_due_jobs{,within=24h}"])

	got = of(map[string]delayq.TopicStats{"a1": {At: now, Paused: true, Servers: 1}, "a2": {At: now, Paused: true}})
	require.EqualValues(t, 1, got["delayq_paused{}"])
	require.Zero(t, got["delayq_servers{}"])
	require.Contains(t, got, "delayq_oldest_parcel_seconds{}")
	require.Zero(t, got["delayq_oldest_parcel_seconds{}"])
	require.Contains(t, got, "delayq_partitions{}")
	require.Zero(t, got["delayq_partitions{}"], "of topics that are not divided")
	require.Contains(t, got, "delayq_closing_generations{}")
	require.Zero(t, got["delayq_closing_generations{}"])
	got = of(map[string]delayq.TopicStats{"a1": {At: now, Servers: 1}, "a2": {At: now, Overdue: 1}})
	require.Zero(t, got["delayq_servers{}"])
	require.NotContains(t, got, "delayq_oldest_overdue_seconds{}", "nobody knows since when")
	got = of(map[string]delayq.TopicStats{"a1": {At: now, Servers: 1, Overdue: 1}, "a2": {At: now}})
	require.EqualValues(t, 1, got["delayq_servers{}"], "nothing waits where there is none")
}

// Counters never fall as long as their series lives, whatever happens to topics, so that
// Prometheus sees no restart where there is none.
func TestTotalsNeverFall(t *testing.T) {
	t.Parallel()
	c := NewCollector(delayq.NewInspector(nil), MaxTopics(1))
	acked := func(topics map[string]int64) map[string]float64 {
		all := map[string]delayq.TopicStats{}
		for topic, n := range topics {
			all[topic] = delayq.TopicStats{Counters: map[delayq.Counter]int64{delayq.CounterAcked: n}}
		}
		list := look1(all)
		for i := range list {
			if topics[list[i].topic] < 0 {
				list[i].stats = nil
			}
		}
		s := scrapeOf(t, fixed(c.state.metrics(c.constant, list)))
		return s.of("delayq_job_events_total{event=acked,prefix=delayq,topic=")
	}
	type all = map[string]int64
	type want = map[string]float64
	require.Equal(t, want{"b}": 1}, acked(all{"b": 1}))
	require.Equal(t, want{"b}": 2, "_other}": 30}, acked(all{"a": 10, "b": 2, "c": 20}), "b was there first")
	require.Equal(t, want{"b}": 2, "_other}": 31}, acked(all{"b": 2, "c": 21}), "a is removed")
	require.Equal(t, want{"b}": 2, "_other}": 36}, acked(all{"a": 5, "b": 2, "c": 21}), "and is back")
	require.Equal(t, want{"b}": 2}, acked(all{"a": -1, "b": 2, "c": 22}), "part of a sum is none")
	require.Equal(t, want{"b}": 2, "_other}": 38}, acked(all{"a": 6, "b": 2, "c": 22}))
	require.Equal(t, want{"b}": 3, "_other}": 39}, acked(all{"a": 6, "b": 1, "c": 1}), "Redis has lost data")
	require.Equal(t, want{"a}": 6, "_other}": 39}, acked(all{"a": 6, "c": 1}), "there is room again")
	require.Equal(t, want{"a}": 6, "_other}": 40}, acked(all{"a": 6, "c": 2}))
	require.Equal(t, want{"a}": 7}, acked(all{"a": 7}))
	require.Equal(t, want{"a}": 7, "_other}": 2}, acked(all{"a": 7, "c": 2}), "a new series")
}

// fixed is a collector of given series.
type fixed []prometheus.Metric

func (f fixed) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }
func (f fixed) Collect(ch chan<- prometheus.Metric) {
	for _, m := range f {
		ch <- m
	}
}

// A label that is no text cannot break a scrape.
func TestLabelsAreText(t *testing.T) {
	t.Parallel()
	c := NewCollector(delayq.NewInspector(nil), TopicLabel(func(topic string) string { return topic + "\xff\x00\n\"" }))
	got := scrapeOf(t, fixed(c.state.metrics(c.constant, look1(map[string]delayq.TopicStats{"a": {}, "b": {}}))))
	require.Len(t, got.topics(), 2)
	require.True(t, strings.Contains(fmt.Sprint(got.topics()), "a\uFFFD\x00\n\""))
}

// BenchmarkScrape makes a look at 100 topics.
func BenchmarkScrape(b *testing.B) {
	rs := redistest.Start(b, redistest.NoRoles...)
	rdb := rs.Client(b)
	list := make([]delayq.NewJob, 0, 100_000)
	for i := range cap(list) {
		list = append(list, delayq.NewJob{Topic: topicName(i % 100), Options: []delayq.JobOption{delayq.ProcessIn(time.Duration(i) * time.Second)}})
	}
	_, err := delayq.NewClient(rdb).EnqueueBatch(context.Background(), list)
	require.NoError(b, err)
	c := NewCollector(delayq.NewInspector(rdb), always)
	before, n := busy(b, rdb), 0
	for b.Loop() {
		ch := make(chan prometheus.Metric, 10_000)
		c.Collect(ch)
		n++
	}
	b.ReportMetric(float64((busy(b, rdb)-before).Microseconds())/float64(n), "redis-µs/op")
}
