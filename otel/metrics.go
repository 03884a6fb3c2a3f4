package delayqotel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"

	"github.com/delayq/delayq"
)

// Other is the topic that stands for all topics beyond [MaxTopics].
const Other = "_other"

// Attributes of the metrics below delayq, which are the labels of the Prometheus module.
const (
	keyTopic   = attribute.Key("topic")
	keyOutcome = attribute.Key("outcome")
	keyResult  = attribute.Key("result")
	keyCall    = attribute.Key("call")
	keyScript  = attribute.Key("script")
	keyVersion = attribute.Key("version")
	keyPrefix  = attribute.Key("prefix")
	keyState   = attribute.Key("state")
	keyWithin  = attribute.Key("within")
	keyOutbox  = attribute.Key("outbox")
)

// Bounds of the histograms, in seconds.
var (
	conventionBounds = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
	latenessBounds   = []float64{.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	durationBounds   = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	callBounds       = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

// A Metrics is a hook that counts and measures what clients and servers of this process do. Give it
// to them with [delayq.Hooks]. It never calls Redis, and it is safe for concurrent use. One value
// can serve any number of clients, servers and inspectors.
//
// If it comes after a [Tracing] in the Hooks, exemplars name the spans of the runs.
type Metrics struct {
	o      metricsOptions
	topics sync.Map // topic → *series; at most mostTopics
	sets   sync.Map // setKey → *options

	mu     sync.Mutex
	known  int                // topics in topics
	labels map[string]*series // Other does not count towards MaxTopics

	sent      messagingconv.ClientSentMessages
	consumed  messagingconv.ClientConsumedMessages
	operation messagingconv.ClientOperationDuration
	process   messagingconv.ProcessDuration

	runs, early, panics, enqueues, cancels, redisErrors metric.Int64Counter
	lateness, runTime, callTime, redisTime              metric.Float64Histogram
	running                                             metric.Int64UpDownCounter
}

var (
	_ delayq.CallHook     = (*Metrics)(nil)
	_ delayq.EnqueuedHook = (*Metrics)(nil)
	_ delayq.DequeuedHook = (*Metrics)(nil)
	_ delayq.RunHook      = (*Metrics)(nil)
	_ delayq.EndedHook    = (*Metrics)(nil)
	_ delayq.ScriptHook   = (*Metrics)(nil)
)

// Bounds of MaxTopics and MinInterval.
const (
	defaultTopics   = 200
	defaultInterval = 5 * time.Second
)

func newMetricsOptions(opts []MetricsOption) metricsOptions {
	o := metricsOptions{topics: defaultTopics, interval: defaultInterval}
	for _, opt := range opts {
		if opt != nil {
			opt.applyMetrics(&o)
		}
	}
	if o.provider == nil {
		o.provider = otel.GetMeterProvider()
	}
	return o
}

// meter returns the meter of all metrics.
func (o *metricsOptions) meter() metric.Meter {
	return o.provider.Meter(ScopeName, metric.WithInstrumentationVersion(version()), metric.WithSchemaURL(SchemaURL))
}

// NewMetrics returns a hook that counts and measures. Without options, the metrics go to the global
// provider. An invalid option has no effect. Errors, also those of the provider, go to the global
// error handler of OpenTelemetry ([otel.SetErrorHandler]), which logs them by default.
func NewMetrics(opts ...MetricsOption) *Metrics {
	m := &Metrics{o: newMetricsOptions(opts), labels: make(map[string]*series)}
	meter := m.o.meter()
	errs := []error{m.o.err()}
	check := func(err error) { errs = append(errs, err) }
	var err error
	m.sent, err = messagingconv.NewClientSentMessages(meter)
	check(err)
	m.consumed, err = messagingconv.NewClientConsumedMessages(meter)
	check(err)
	m.operation, err = messagingconv.NewClientOperationDuration(meter, metric.WithExplicitBucketBoundaries(conventionBounds...))
	check(err)
	m.process, err = messagingconv.NewProcessDuration(meter, metric.WithExplicitBucketBoundaries(conventionBounds...))
	check(err)

	count := func(c *metric.Int64Counter, name, unit, about string) {
		*c, err = meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
		check(err)
	}
	count(&m.runs, "delayq.runs", "{run}", "Jobs taken by this process, by how that ended. Jobs whose handler was not called count too.")
	count(&m.early, "delayq.early_runs", "{run}", "Handlers that were started before their job was due. Always 0.")
	count(&m.panics, "delayq.panics", "{run}", "Handlers that panicked or called runtime.Goexit.")
	count(&m.enqueues, "delayq.enqueues", "{job}", "Jobs that clients of this process enqueued, by result.")
	count(&m.cancels, "delayq.cancels", "{job}", "Jobs that clients of this process cancelled, by the state in which the job was found.")
	count(&m.redisErrors, "delayq.redis_errors", "{call}", "Script calls that failed.")

	measure := func(h *metric.Float64Histogram, name, about string, bounds []float64) {
		*h, err = meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about), metric.WithExplicitBucketBoundaries(bounds...))
		check(err)
	}
	measure(&m.lateness, "delayq.lateness", "Time from the due time of a job to the start of its handler, by Redis's clock.", latenessBounds)
	measure(&m.runTime, "delayq.run_duration", "Run time of handlers.", durationBounds)
	measure(&m.callTime, "delayq.client_call_duration", "Duration of the calls of clients.", callBounds)
	measure(&m.redisTime, "delayq.redis_call_duration", "Duration of script calls, with the time in the network.", callBounds)

	m.running, err = meter.Int64UpDownCounter("delayq.running_jobs", metric.WithUnit("{job}"), metric.WithDescription("Handlers that are running in this process."))
	check(err)
	build, err := meter.Int64Gauge("delayq.build_info", metric.WithDescription("Version of the delayq module in this process. Always 1."))
	check(err)
	if err := errors.Join(errs...); err != nil {
		otel.Handle(err)
	}
	build.Record(context.Background(), 1, metric.WithAttributes(keyVersion.String(rootVersion())))
	return m
}

// A setKey names a set of attributes.
type setKey struct {
	kind        string // the operation of a convention's metric, else empty
	topic       string // the label
	name, value string
	failure     string // error.type
}

// options are the attributes of a measurement. Slices that are made once save an allocation each
// time.
type options struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// set returns the attributes of a measurement, which are made once.
func (m *Metrics) set(k setKey) *options {
	if made, ok := m.sets.Load(k); ok {
		return made.(*options)
	}
	var attrs []attribute.KeyValue
	if k.kind != "" {
		attrs = append(m.convention(k), m.o.server...)
	} else if k.topic != "" {
		attrs = append(attrs, keyTopic.String(k.topic))
	}
	if k.name != "" {
		attrs = append(attrs, attribute.String(k.name, k.value))
	}
	if k.failure != "" {
		attrs = append(attrs, semconv.ErrorTypeKey.String(k.failure))
	}
	of := metric.WithAttributeSet(attribute.NewSet(attrs...))
	made, _ := m.sets.LoadOrStore(k, &options{[]metric.AddOption{of}, []metric.RecordOption{of}})
	return made.(*options)
}

// convention returns the attributes of a convention's metric.
func (m *Metrics) convention(k setKey) []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(k.kind)}
	switch k.kind {
	case opEnqueue:
		attrs = append(attrs, semconv.MessagingOperationTypeSend)
	case opProcess:
		attrs = append(attrs, semconv.MessagingOperationTypeProcess)
	}
	switch {
	case k.topic == "":
	case k.topic == Other, m.o.label != nil:
		attrs = append(attrs, semconv.MessagingDestinationTemplate(k.topic))
	default:
		attrs = append(attrs, semconv.MessagingDestinationName(k.topic))
	}
	return attrs
}

func (m *Metrics) counted(key attribute.Key, value string) *options {
	return m.set(setKey{name: string(key), value: value})
}

// Call measures a call of a client. It is the [delayq.CallHook].
func (m *Metrics) Call(ctx context.Context, event delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	began := time.Now()
	return nil, func(r delayq.CallResult) {
		took := time.Since(began).Seconds()
		m.callTime.Record(ctx, took, m.counted(keyCall, event.Name).record...)
		operation, _ := strings.CutSuffix(event.Name, " batch")
		k := setKey{kind: operation, failure: callFailure(r.Err)}
		switch {
		case event.Topic == "":
		case resultOf(r.Err, "") == resultInvalid:
			k.topic = m.seen(event.Topic).label
		default:
			k.topic = m.of(event.Topic).label
		}
		m.operation.Inst().Record(ctx, took, m.set(k).record...)
	}
}

// callFailure returns the error.type of a call; empty if it has not failed.
func callFailure(err error) string {
	if err == nil || refusal(err) != "" {
		return ""
	}
	return errorType(err)
}

const resultInvalid = "invalid"

// resultOf returns the result of an enqueue or a cancellation. done is that of one that was carried
// out.
func resultOf(err error, done string) string {
	switch {
	case err == nil, isError(err, delayq.ErrNotAudited), isError(err, delayq.ErrNotReplicated):
		return done
	case isError(err, delayq.ErrDuplicate):
		return "duplicate"
	case isError(err, delayq.ErrNotFound):
		return "not_found"
	case isError(err, delayq.ErrChanged):
		return "changed"
	case isError(err, delayq.ErrInvalid):
		return resultInvalid
	case isError(err, delayq.ErrUnknownOutcome):
		return "unknown"
	}
	return "error"
}

// The values of attributes. A topic has series of all of them from its first event on, because the
// first increase of a series that is new is invisible.
var (
	outcomes = []string{
		string(delayq.OutcomeAcked), string(delayq.OutcomeAgain), string(delayq.OutcomeRetried), string(delayq.OutcomeSnoozed),
		string(delayq.OutcomeBuried), string(delayq.OutcomeExpired), string(delayq.OutcomeReturned), string(delayq.OutcomeCancelled),
		string(delayq.OutcomeReplaced), string(delayq.OutcomeLeaseLost), string(delayq.OutcomeHeld),
	}
	enqueueResults = []string{"stored", "duplicate", "changed", resultInvalid, "unknown", "error"}
	cancelResults  = []string{
		string(delayq.StateScheduled), string(delayq.StateReady), string(delayq.StateRunning), string(delayq.StateDead),
		"not_found", "changed", resultInvalid, "unknown", "error",
	}
)

// A series has the attributes of one topic, or of one label of several.
type series struct {
	label                                  string
	topic, sent, consumed, processed       *options
	outcomes, enqueues, cancels            map[string]*options
	begunRuns, begunEnqueues, begunCancels sync.Once
}

// begin makes the series of a counter.
func begin(counter metric.Int64Counter, of map[string]*options) {
	for _, one := range of {
		counter.Add(context.Background(), 0, one.add...)
	}
}

// newSeries returns the series of a label.
func (m *Metrics) newSeries(label string) *series {
	values := func(key attribute.Key, list []string) map[string]*options {
		all := make(map[string]*options, len(list))
		for _, value := range list {
			all[value] = m.set(setKey{topic: label, name: string(key), value: value})
		}
		return all
	}
	return &series{
		label: label, topic: m.set(setKey{topic: label}), sent: m.set(setKey{kind: opEnqueue, topic: label}),
		consumed: m.set(setKey{kind: opProcess, topic: label}), processed: m.set(setKey{kind: opProcess, topic: label}),
		outcomes: values(keyOutcome, outcomes), enqueues: values(keyResult, enqueueResults), cancels: values(keyResult, cancelResults),
	}
}

// mostTopics is how many topics are remembered with their series.
const mostTopics = 10_000

// of returns the series of a topic, and makes them if it is new.
func (m *Metrics) of(topic string) *series {
	if s, ok := m.topics.Load(topic); ok {
		return s.(*series)
	}
	label := m.o.name(topic)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.labels[label]
	if s == nil {
		s = m.claimLocked(label)
	}
	if m.known < mostTopics {
		if _, twice := m.topics.LoadOrStore(strings.Clone(topic), s); !twice {
			m.known++
		}
	}
	return s
}

// claimLocked returns new series for a label, or those of Other if there are too many.
func (m *Metrics) claimLocked(label string) *series {
	own := len(m.labels)
	other := m.labels[Other]
	if other != nil {
		own--
	}
	if label != Other && own >= m.o.topics {
		if label = Other; other != nil {
			return other
		}
	}
	s := m.newSeries(label)
	m.labels[label] = s
	return s
}

// seen returns the series of a topic, or those of Other if it has none. Anything can be an invalid
// topic, so none gets series of its own.
func (m *Metrics) seen(topic string) *series {
	if s, ok := m.topics.Load(topic); ok {
		return s.(*series)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.labels[Other]; s != nil {
		return s
	}
	return m.claimLocked(Other)
}

// result returns the series of a topic for the result of a call.
func (m *Metrics) result(topic, result string) *series {
	if result == resultInvalid {
		return m.seen(topic)
	}
	return m.of(topic)
}

// Enqueued counts a job. It is the [delayq.EnqueuedHook].
func (m *Metrics) Enqueued(ctx context.Context, event delayq.EnqueueEvent) {
	result := resultOf(event.Err, "stored")
	s := m.result(event.Topic, result)
	s.begunEnqueues.Do(func() { begin(m.enqueues, s.enqueues) })
	if of := s.enqueues[result]; of != nil {
		m.enqueues.Add(ctx, 1, of.add...)
	}
	sent := s.sent
	if failed := callFailure(event.Err); failed != "" {
		sent = m.set(setKey{kind: opEnqueue, topic: s.label, failure: failed})
	}
	m.sent.Inst().Add(ctx, 1, sent.add...)
}

// Dequeued counts a cancelled job. It is the [delayq.DequeuedHook].
func (m *Metrics) Dequeued(ctx context.Context, event delayq.DequeueEvent) {
	result := resultOf(event.Err, string(event.State))
	s := m.result(event.Topic, result)
	s.begunCancels.Do(func() { begin(m.cancels, s.cancels) })
	if of := s.cancels[result]; of != nil {
		m.cancels.Add(ctx, 1, of.add...)
	}
}

// Run measures a run. It is the [delayq.RunHook].
func (m *Metrics) Run(ctx context.Context, event delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	s := m.ran(event.Topic)
	late := event.Lateness()
	if late < 0 {
		m.early.Add(ctx, 1, s.topic.add...)
	}
	m.lateness.Record(ctx, max(0, late).Seconds(), s.topic.record...)
	m.running.Add(ctx, 1, s.topic.add...)
	m.consumed.Inst().Add(ctx, 1, s.consumed.add...)
	return withRun(ctx, event), func(event delayq.RunEvent) {
		m.running.Add(ctx, -1, s.topic.add...)
		if event.Stack != "" {
			m.panics.Add(ctx, 1, s.topic.add...)
		}
		if event.FinishedAt.IsZero() {
			return
		}
		took := max(0, event.FinishedAt.Sub(event.StartedAt)).Seconds()
		m.runTime.Record(ctx, took, s.topic.record...)
		processed := s.processed
		if failed := failure(ctx, event); failed != "" {
			processed = m.set(setKey{kind: opProcess, topic: s.label, failure: failed})
		}
		m.process.Inst().Record(ctx, took, processed.record...)
	}
}

// ran returns the series of a topic that has runs.
func (m *Metrics) ran(topic string) *series {
	s := m.of(topic)
	s.begunRuns.Do(func() {
		begin(m.runs, s.outcomes)
		m.early.Add(context.Background(), 0, s.topic.add...)
		m.panics.Add(context.Background(), 0, s.topic.add...)
		m.running.Add(context.Background(), 0, s.topic.add...)
	})
	return s
}

// Ended counts an outcome. It is the [delayq.EndedHook].
func (m *Metrics) Ended(event delayq.RunEvent) {
	s := m.ran(event.Topic)
	if of := s.outcomes[string(event.Outcome)]; of != nil {
		m.runs.Add(context.Background(), 1, of.add...)
	}
}

// Script measures a call to Redis. It is the [delayq.ScriptHook]. A call that was given up, as a
// server does when it stops, is not counted.
func (m *Metrics) Script(event delayq.ScriptEvent) {
	if isError(event.Err, context.Canceled) {
		return
	}
	ctx, of := context.Background(), m.counted(keyScript, event.Name)
	m.redisTime.Record(ctx, event.Duration.Seconds(), of.record...)
	failed := int64(0)
	if event.Err != nil {
		failed = 1
	}
	m.redisErrors.Add(ctx, failed, of.add...)
}
