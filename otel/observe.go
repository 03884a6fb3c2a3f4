package delayqotel

import (
	"cmp"
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

// Observe registers metrics of what the queue holds: jobs by state, overdue jobs, servers, pauses,
// schedules, and the counters that Redis keeps. They are read with inspector when a reader collects
// metrics, at most once per [MinInterval], and a look takes at most 2 s. While Redis does not
// answer, they are absent, except delayq.redis_up and the metrics of the looks themselves.
//
// It suffices to observe a queue in one process. If several do, each gives the same numbers.
//
// Unregister of the result ends it. Errors are [delayq.ErrInvalid] for a nil inspector, and those
// of the provider. Cost of a look: that of [delayq.Inspector.Stats] and [delayq.Inspector.Topics].
func Observe(inspector *delayq.Inspector, opts ...MetricsOption) (metric.Registration, error) {
	if inspector == nil {
		return nil, fmt.Errorf("delayqotel: observe: %w: nil Inspector", delayq.ErrInvalid)
	}
	q := &queue{inspector: inspector, o: newMetricsOptions(opts)}
	meter := q.o.meter()
	var errs []error
	var all []metric.Observable
	instrument := func(s state) metric.Float64Observable {
		one, err := s.instrument(meter)
		errs, all = append(errs, err), append(all, one)
		return one
	}
	for _, s := range states {
		q.states = append(q.states, instrument(s))
	}
	q.due, q.folded, q.up = instrument(dueState), instrument(foldedState), instrument(upState)
	q.took, q.success, q.failures = instrument(tookState), instrument(successState), instrument(failuresState)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("delayqotel: observe: %w", err)
	}
	registered, err := meter.RegisterCallback(q.observe, all...)
	if err != nil {
		return nil, fmt.Errorf("delayqotel: observe: %w", err)
	}
	return registered, nil
}

// A state is one metric of a queue.
type state struct {
	name, unit, about string
	counts            bool // it is a counter
	// join joins the values of topics that share a label. Default: their sum.
	join func(a, b float64) float64
	read func(s *delayq.TopicStats, put put)
}

// put takes a value of a topic, with the attribute that it has beside the topic, if any.
type put = func(value float64, attrs ...attribute.KeyValue)

// instrument makes the instrument of a metric.
func (s *state) instrument(meter metric.Meter) (metric.Float64Observable, error) {
	if s.counts {
		return meter.Float64ObservableCounter(s.name, metric.WithUnit(s.unit), metric.WithDescription(s.about))
	}
	return meter.Float64ObservableGauge(s.name, metric.WithUnit(s.unit), metric.WithDescription(s.about))
}

// counter returns the read of a metric that is one counter.
func counter(name delayq.Counter) func(*delayq.TopicStats, put) {
	return func(s *delayq.TopicStats, put put) { put(float64(s.Counters[name])) }
}

// counters returns the read of a metric that is several counters, told apart by an attribute.
func counters(key attribute.Key, list map[string]delayq.Counter) func(*delayq.TopicStats, put) {
	return func(s *delayq.TopicStats, put put) {
		for value, name := range list {
			put(float64(s.Counters[name]), key.String(value))
		}
	}
}

func largest(a, b float64) float64  { return max(a, b) }
func smallest(a, b float64) float64 { return min(a, b) }

// The metrics that are not read from [delayq.TopicStats].
var (
	dueState = state{name: "delayq.due_jobs", unit: "{job}",
		about: "Scheduled jobs that will fall due within this time. Overdue jobs do not count."}
	foldedState  = state{name: "delayq.folded_topics", unit: "{topic}", about: "Topics that share the value _other."}
	upState      = state{name: "delayq.redis_up", about: "1 if the last look at the queue could read it."}
	tookState    = state{name: "delayq.collector_duration", unit: "s", about: "Duration of the last look at the queue."}
	successState = state{name: "delayq.collector_last_success_timestamp", unit: "s",
		about: "When the last look without an error ended."}
	failuresState = state{name: "delayq.collector_errors", unit: "{look}", counts: true,
		about: "Looks that failed, or could not read all topics."}
)

// The durations of delayq.due_jobs.
var (
	spans     = []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour}
	spanNames = []string{"1m", "10m", "1h", "24h"}
)

var states = []state{
	{name: "delayq.jobs", unit: "{job}", about: "Jobs by state.", read: func(s *delayq.TopicStats, put put) {
		for state, n := range map[delayq.State]int64{
			delayq.StateScheduled: s.Scheduled, delayq.StateReady: s.Ready, delayq.StateRunning: s.Running,
			delayq.StateDead: s.Dead, delayq.StateDone: s.Done,
		} {
			put(float64(n), keyState.String(string(state)))
		}
	}},
	{name: "delayq.retrying_jobs", unit: "{job}", about: "Unfinished jobs with a finished attempt, except dead ones.",
		read: func(s *delayq.TopicStats, put put) { put(float64(s.Retrying)) }},
	{name: "delayq.overdue_jobs", unit: "{job}", about: "Jobs that are due and have not started.",
		read: func(s *delayq.TopicStats, put put) { put(float64(s.Overdue)) }},
	{name: "delayq.oldest_overdue", unit: "s", about: "How long the oldest overdue job has been due. 0 if none is overdue.",
		join: largest, read: func(s *delayq.TopicStats, put put) {
			age := time.Duration(0)
			if !s.OldestOverdue.IsZero() {
				age = max(0, s.At.Sub(s.OldestOverdue))
			}
			put(age.Seconds())
		}},
	{name: "delayq.paused", about: "1 if the topic is paused.", join: largest, read: func(s *delayq.TopicStats, put put) {
		if s.Paused {
			put(1)
		} else {
			put(0)
		}
	}},
	{name: "delayq.servers", unit: "{server}", about: "Live servers that take jobs of the topic.",
		read: func(s *delayq.TopicStats, put put) { put(float64(s.Servers)) }},
	{name: "delayq.workers", unit: "{worker}", about: "Sum of the concurrency of these servers for the topic.",
		read: func(s *delayq.TopicStats, put put) { put(float64(s.Workers)) }},
	{name: "delayq.schedule_next_timestamp", unit: "s", about: "Earliest next slot of the topic's schedules.",
		join: smallest, read: func(s *delayq.TopicStats, put put) {
			if !s.NextSlot.IsZero() {
				put(float64(s.NextSlot.UnixMilli()) / 1000)
			}
		}},
	{name: "delayq.job_events", unit: "{job}", about: "What has happened to jobs in all processes, as Redis counts it.", counts: true,
		read: counters(keyEvent, map[string]delayq.Counter{
			"enqueued": delayq.CounterEnqueued, "taken": delayq.CounterTaken, "acked": delayq.CounterAcked, "again": delayq.CounterAgain,
			"retried": delayq.CounterRetried, "snoozed": delayq.CounterSnoozed, "buried": delayq.CounterBuried,
			"cancelled": delayq.CounterCancelled, "expired": delayq.CounterExpired, "returned": delayq.CounterReturned,
			"revived": delayq.CounterRevived, "deleted": delayq.CounterDeleted,
		})},
	{name: "delayq.leases_reclaimed", unit: "{lease}", about: "Leases that ran out.", counts: true, read: counter(delayq.CounterReclaimed)},
	{name: "delayq.leases_dropped", unit: "{lease}", about: "Leases without a job, because Redis has lost its record.", counts: true,
		read: counter(delayq.CounterDropped)},
	{name: "delayq.pruned_jobs", unit: "{job}", counts: true,
		about: "Dead jobs deleted by the DeadLimit of a server, and done jobs whose Retention is over.",
		read:  counters(keyState, map[string]delayq.Counter{"dead": delayq.CounterPrunedDead, "done": delayq.CounterPrunedDone})},
	{name: "delayq.repairs", unit: "{repair}", about: "Jobs and entries that servers and Repair have repaired.", counts: true,
		read: counter(delayq.CounterRepaired)},
	{name: "delayq.schedule_slots", unit: "{slot}", counts: true,
		about: "Slots of schedules: fired, skipped because of the overlap policy, or missed.",
		read: counters(keyResult, map[string]delayq.Counter{
			"fired": delayq.CounterFired, "skipped": delayq.CounterSkipped, "missed": delayq.CounterMissed,
		})},
}

// A queue is what Observe observes.
type queue struct {
	inspector *delayq.Inspector
	o         metricsOptions
	states    []metric.Float64Observable

	due, folded, up, took, success, failures metric.Float64Observable

	mu      sync.Mutex
	looked  time.Time // when the last look ended; zero: never
	points  []point
	own     map[string]bool // labels that have series of their own
	failed  int             // looks
	succeed time.Time
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
	if q.looked.IsZero() || time.Since(q.looked) >= q.o.interval {
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
	began := time.Now()
	sums, err := q.read(ctx)
	q.looked = time.Now()
	prefix := keyPrefix.String(q.inspector.Prefix())
	all := metric.WithAttributes(prefix)
	q.points = q.points[:0]
	for key, value := range sums {
		attrs := []attribute.KeyValue{prefix}
		for _, a := range []attribute.KeyValue{keyTopic.String(key.topic), key.attr} {
			if a.Valid() && a.Value.AsString() != "" {
				attrs = append(attrs, a)
			}
		}
		q.points = append(q.points, point{key.of, value, metric.WithAttributes(attrs...)})
	}
	up := 1.0
	switch {
	case err == nil:
		q.succeed = q.looked
	default:
		q.failed++
		if sums == nil {
			up = 0
		}
	}
	q.points = append(q.points, point{q.up, up, all}, point{q.took, q.looked.Sub(began).Seconds(), all},
		point{q.failures, float64(q.failed), all})
	if !q.succeed.IsZero() {
		q.points = append(q.points, point{q.success, float64(q.succeed.UnixMilli()) / 1000, all})
	}
}

// A sumKey names a series.
type sumKey struct {
	of    metric.Float64Observable
	topic string
	attr  attribute.KeyValue
}

// read reads the numbers of all topics. They are nil if nothing could be read.
func (q *queue) read(ctx context.Context) (map[sumKey]float64, error) {
	topics, err := q.inspector.Topics(ctx)
	if err != nil {
		return nil, err
	}
	sums := make(map[sumKey]float64)
	labels, folded := q.fold(topics)
	sums[sumKey{of: q.folded}] = float64(folded)
	if len(topics) == 0 {
		return sums, nil
	}
	list, err := q.inspector.Stats(ctx, topics...)
	if len(list) == 0 {
		return nil, err
	}
	for i := range list {
		s := &list[i]
		for at := range states {
			states[at].read(s, func(value float64, attrs ...attribute.KeyValue) {
				key := sumKey{of: q.states[at], topic: labels[s.Topic]}
				if len(attrs) > 0 {
					key.attr = attrs[0]
				}
				before, twice := sums[key]
				switch join := states[at].join; {
				case !twice:
				case join == nil:
					value += before
				default:
					value = join(before, value)
				}
				sums[key] = value
			})
		}
	}
	ahead, failed := q.inspector.DueWithin(ctx, list[0].At, spans, topics...)
	for i, counts := range ahead {
		for at, n := range counts {
			sums[sumKey{of: q.due, topic: labels[topics[i]], attr: keyWithin.String(spanNames[at])}] += float64(n)
		}
	}
	return sums, errors.Join(err, failed)
}

// fold returns the labels of topics, and how many topics share Other. A label keeps its series as
// long as one of its topics is there.
func (q *queue) fold(topics []string) (labels map[string]string, folded int) {
	labels = make(map[string]string, len(topics))
	own := make(map[string]bool, q.o.topics)
	for _, topic := range topics {
		label := cmp.Or(q.o.of(topic), Other)
		labels[topic] = label
		if q.own[label] {
			own[label] = true
		}
	}
	for _, topic := range topics {
		switch label := labels[topic]; {
		case own[label]:
		case label == Other, len(own) >= q.o.topics:
			labels[topic] = Other
			folded++
		default:
			own[label] = true
		}
	}
	q.own = own
	return labels, folded
}
