package delayqotel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/delayq/delayq"
)

// lookTimeout bounds one look at the queue.
const lookTimeout = 2 * time.Second

// Observe registers metrics of what the queue holds: jobs by state, overdue jobs, what falls due,
// servers, pauses, schedules, and the counters that Redis keeps. They are read with inspector when
// a reader collects metrics, at most once per [MinInterval]. A look takes 2 s at most if the client
// of inspector was created with ContextTimeoutEnabled; otherwise its timeouts apply. While Redis
// does not answer, the metrics are absent, except delayq.redis_up and those of the looks
// themselves.
//
// It suffices to observe a queue in one process. If several do, each gives the same numbers.
//
// Unregister of the result ends it. Errors wrap [delayq.ErrInvalid] if inspector is nil or an
// option is invalid; others are those of the provider. Cost of a look: three calls, to
// [delayq.Inspector.Topics], [delayq.Inspector.Stats] and [delayq.Inspector.DueWithin].
func Observe(inspector *delayq.Inspector, opts ...MetricsOption) (metric.Registration, error) {
	q := &queue{inspector: inspector, o: newMetricsOptions(opts), instruments: make(map[*family]metric.Float64Observable)}
	if inspector == nil {
		q.o.refuse("the Inspector is nil")
	}
	if err := q.o.err(); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	meter := q.o.meter()
	all := make([]metric.Observable, 0, len(families))
	for _, f := range families {
		one, err := f.instrument(meter)
		if err != nil {
			return nil, fmt.Errorf("observe: %w", err)
		}
		q.instruments[f], all = one, append(all, one)
	}
	registered, err := meter.RegisterCallback(q.observe, all...)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	return registered, nil
}

// A family is one metric of a queue.
type family struct {
	name, unit, about string
	counts            bool // it is a counter
}

// instrument makes the instrument of a metric.
func (f *family) instrument(meter metric.Meter) (metric.Float64Observable, error) {
	if f.counts {
		return meter.Float64ObservableCounter(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.about))
	}
	return meter.Float64ObservableGauge(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.about))
}

var (
	jobs          = &family{"delayq.jobs", "{job}", "Jobs by state.", false}
	retryingJobs  = &family{"delayq.retrying_jobs", "{job}", "Unfinished jobs with a finished attempt, except dead ones.", false}
	overdueJobs   = &family{"delayq.overdue_jobs", "{job}", "Jobs that are due and have not started.", false}
	oldestOverdue = &family{"delayq.oldest_overdue", "s", "How long the oldest overdue job has been due. 0 if none is overdue.", false}
	dueJobs       = &family{"delayq.due_jobs", "{job}", "Scheduled jobs that will fall due within this time. Overdue jobs do not count.", false}
	keyedJobs     = &family{"delayq.keyed_jobs", "{job}", "Ready jobs that have a key.", false}
	laneKeys      = &family{"delayq.lane_keys", "{key}", "Keys that take turns.", false}
	parcels       = &family{"delayq.parcels", "{job}", "Jobs that runs of the topic have handed over and that are not passed on yet.", false}
	oldestParcel  = &family{"delayq.oldest_parcel", "s", "How long the oldest job that a run of the topic has handed over has waited to be passed on. 0 if none waits.", false}
	flows         = &family{"delayq.flows", "{flow}", "Flows whose last step is a job of the topic: open ones, and those whose last step is not over or is dead.", false}
	flowsAtRisk   = &family{"delayq.flows_at_risk", "{flow}", "Open flows, among about 500 of the topic, that have a step that has ended badly, although half of the time to their deadline has passed.", false}
	partitions    = &family{"delayq.partitions", "{partition}", "Partitions of the topic that take new jobs. 0 if it is not divided.", false}
	closing       = &family{"delayq.closing_generations", "{generation}", "Earlier generations of partitions that have something left. The topic before it was divided counts as one.", false}
	paused        = &family{"delayq.paused", "", "1 if the topic is paused.", false}
	liveServers   = &family{"delayq.servers", "{server}", "Live servers that take jobs of the topic.", false}
	workers       = &family{"delayq.workers", "{worker}", "Jobs that these servers can run at a time: their concurrency, times the batch size of batch handlers.", false}
	scheduleNext  = &family{"delayq.schedule_next_timestamp", "s", "Earliest next slot of the topic's schedules.", false}
	jobEvents     = &family{"delayq.job_events", "{job}", "What has happened to jobs in all processes, as Redis counts it.", true}
	reclaimed     = &family{"delayq.leases_reclaimed", "{lease}", "Leases that ran out.", true}
	dropped       = &family{"delayq.leases_dropped", "{lease}", "Leases without a job, because Redis has lost its record.", true}
	prunedJobs    = &family{"delayq.pruned_jobs", "{job}", "Dead jobs deleted by the DeadLimit of a server, and done jobs whose Retention is over.", true}
	repairs       = &family{"delayq.repairs", "{repair}", "Jobs and entries that servers and Repair have repaired.", true}
	scheduleSlots = &family{"delayq.schedule_slots", "{slot}", "Slots of schedules: fired, skipped because of the overlap policy, or missed.", true}
	foldedTopics  = &family{"delayq.folded_topics", "{topic}", "Topics that share the label value _other.", false}
	redisUp       = &family{"delayq.redis_up", "", "1 if the last look at the queue could read it.", false}
	lookDuration  = &family{"delayq.collector_duration", "s", "Duration of the last look at the queue.", false}
	lastSuccess   = &family{"delayq.collector_last_success_timestamp", "s", "When the last look without an error ended.", false}
	lookErrors    = &family{"delayq.collector_errors", "{look}", "Looks that failed, or could not read all topics.", true}
)

var families = []*family{
	jobs, retryingJobs, overdueJobs, oldestOverdue, dueJobs, keyedJobs, laneKeys, parcels, oldestParcel, flows, flowsAtRisk,
	partitions, closing, paused, liveServers, workers, scheduleNext, jobEvents, reclaimed, dropped,
	prunedJobs, repairs, scheduleSlots, foldedTopics, redisUp, lookDuration, lastSuccess, lookErrors,
}

// horizons are the values of the attribute within.
var horizons = []struct {
	label string
	span  time.Duration
}{{"1m", time.Minute}, {"10m", 10 * time.Minute}, {"1h", time.Hour}, {"24h", 24 * time.Hour}}

// A queue is what Observe observes.
type queue struct {
	inspector   *delayq.Inspector
	o           metricsOptions
	instruments map[*family]metric.Float64Observable

	mu     sync.Mutex
	began  time.Time // the last look; zero: there was none
	points []point
	failed int // looks
	good   time.Time
	fold   fold
}

// A point is a value of a metric.
type point struct {
	of    metric.Float64Observable
	value float64
	attrs metric.MeasurementOption
}

// observe gives a reader the numbers of the last look, or of a new one.
func (q *queue) observe(ctx context.Context, o metric.Observer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.began.IsZero() || time.Since(q.began) >= q.o.interval {
		q.look(ctx)
	}
	for _, p := range q.points {
		o.ObserveFloat64(p.of, p.value, p.attrs)
	}
	return nil
}

// look reads the queue.
func (q *queue) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	q.began, q.points = time.Now(), nil
	put := func(f *family, value float64, attrs ...attribute.KeyValue) {
		attrs = append(attrs, keyPrefix.String(q.inspector.Prefix()))
		q.points = append(q.points, point{q.instruments[f], value, metric.WithAttributes(attrs...)})
	}
	list, err := q.read(ctx)
	up := 0.0
	if err == nil || len(list) > 0 {
		up = 1
		q.fold.put(&q.o, list, put)
	}
	if err == nil {
		q.good = time.Now()
	} else {
		q.failed++
	}
	put(redisUp, up)
	put(lookDuration, time.Since(q.began).Seconds())
	put(lookErrors, float64(q.failed))
	if !q.good.IsZero() {
		put(lastSuccess, float64(q.good.UnixMilli())/1000)
	}
}

// A seen topic is what a look has found in it.
type seen struct {
	topic string
	stats *delayq.TopicStats // nil: it could not be read
	due   []int64            // within each of the horizons
	alone bool               // the servers could not be read
}

// read looks at all topics. If some cannot be read, it returns the others along with the error.
func (q *queue) read(ctx context.Context) ([]seen, error) {
	topics, err := q.inspector.Topics(ctx)
	if err != nil {
		return nil, err
	}
	list, at := make([]seen, len(topics)), make(map[string]int, len(topics))
	for i, topic := range topics {
		list[i].topic, at[topic] = topic, i
	}
	if len(topics) == 0 {
		return list, nil
	}
	stats, err := q.inspector.Stats(ctx, topics...)
	if len(stats) == 0 {
		return nil, err
	}
	for i := range stats {
		list[at[stats[i].Topic]].stats = &stats[i]
	}
	if err != nil { // of topics, or of the servers
		_, lost := q.inspector.Servers(ctx)
		for i := range list {
			list[i].alone = lost != nil
		}
	}
	spans := make([]time.Duration, len(horizons))
	for i, h := range horizons {
		spans[i] = h.span
	}
	// what is due at that very time is overdue
	due, failed := q.inspector.DueWithin(ctx, stats[0].At.Add(time.Millisecond), spans, topics...)
	for i := range list {
		if i >= len(due) || due[i] == nil {
			list[i].stats = nil
			continue
		}
		list[i].due = due[i]
	}
	return list, errors.Join(err, failed)
}
