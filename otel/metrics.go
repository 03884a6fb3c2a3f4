package delayqotel

import (
	"cmp"
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
	keyEvent   = attribute.Key("event")
	keyWithin  = attribute.Key("within")
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
	topics folding
	sets   sync.Map // setKey → metric.MeasurementOption

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
// provider. Errors of the provider go to the global error handler of OpenTelemetry.
func NewMetrics(opts ...MetricsOption) *Metrics {
	m := &Metrics{o: newMetricsOptions(opts)}
	m.topics = folding{place: &m.o.place, most: m.o.topics}
	meter := m.o.meter()
	var errs []error
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

// set returns the attributes of a measurement, which are made once.
func (m *Metrics) set(k setKey) metric.MeasurementOption {
	if made, ok := m.sets.Load(k); ok {
		return made.(metric.MeasurementOption)
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
	made, _ := m.sets.LoadOrStore(k, metric.WithAttributeSet(attribute.NewSet(attrs...)))
	return made.(metric.MeasurementOption)
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

func (m *Metrics) counted(key attribute.Key, value string) metric.MeasurementOption {
	return m.set(setKey{name: string(key), value: value})
}

// Call measures a call of a client. It is the [delayq.CallHook].
func (m *Metrics) Call(ctx context.Context, event delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	began := time.Now()
	return nil, func(r delayq.CallResult) {
		took := time.Since(began).Seconds()
		m.callTime.Record(ctx, took, m.counted(keyCall, event.Name))
		operation, _ := strings.CutSuffix(event.Name, " batch")
		k := setKey{kind: operation, failure: callFailure(r.Err)}
		if event.Topic != "" {
			k.topic = m.topics.label(event.Topic)
		}
		m.operation.Inst().Record(ctx, took, m.set(k))
	}
}

// callFailure returns the error.type of a call; empty if it has not failed.
func callFailure(err error) string {
	if err == nil || refusal(err) != "" {
		return ""
	}
	return errorType(err)
}

// resultOf returns the result of an enqueue or a cancellation that has failed.
func resultOf(err error) string {
	switch {
	case isError(err, delayq.ErrDuplicate), isError(err, delayq.ErrNotFound):
		return refusal(err)
	case isError(err, delayq.ErrInvalid):
		return "invalid"
	case isError(err, delayq.ErrUnknownOutcome):
		return "unknown"
	}
	return "error"
}

// Enqueued counts a job. It is the [delayq.EnqueuedHook].
func (m *Metrics) Enqueued(ctx context.Context, event delayq.EnqueueEvent) {
	topic, result := m.topics.label(event.Topic), "stored"
	if event.Err != nil && !isError(event.Err, delayq.ErrNotReplicated) {
		result = resultOf(event.Err)
	}
	m.enqueues.Add(ctx, 1, m.set(setKey{topic: topic, name: string(keyResult), value: result}))
	m.sent.Inst().Add(ctx, 1, m.set(setKey{kind: opEnqueue, topic: topic, failure: callFailure(event.Err)}))
}

// Dequeued counts a cancelled job. It is the [delayq.DequeuedHook].
func (m *Metrics) Dequeued(ctx context.Context, event delayq.DequeueEvent) {
	result := string(event.State)
	if event.Err != nil {
		result = resultOf(event.Err)
	}
	m.cancels.Add(ctx, 1, m.set(setKey{topic: m.topics.label(event.Topic), name: string(keyResult), value: result}))
}

// Run measures a run. It is the [delayq.RunHook].
func (m *Metrics) Run(ctx context.Context, event delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	topic := m.topics.label(event.Topic)
	of := m.set(setKey{topic: topic})
	early := int64(0)
	if event.Lateness() < 0 {
		early = 1
	}
	m.early.Add(ctx, early, of)
	m.lateness.Record(ctx, event.Lateness().Seconds(), of)
	m.running.Add(ctx, 1, of)
	m.consumed.Inst().Add(ctx, 1, m.set(setKey{kind: opProcess, topic: topic}))
	return withRun(ctx, event), func(event delayq.RunEvent) {
		m.running.Add(ctx, -1, of)
		if event.Stack != "" {
			m.panics.Add(ctx, 1, of)
		}
		if event.FinishedAt.IsZero() {
			return
		}
		took := event.FinishedAt.Sub(event.StartedAt).Seconds()
		m.runTime.Record(ctx, took, of)
		m.process.Inst().Record(ctx, took, m.set(setKey{kind: opProcess, topic: topic, failure: failure(ctx, event)}))
	}
}

// Ended counts an outcome. It is the [delayq.EndedHook].
func (m *Metrics) Ended(event delayq.RunEvent) {
	m.runs.Add(context.Background(), 1, m.set(setKey{
		topic: m.topics.label(event.Topic), name: string(keyOutcome), value: string(event.Outcome),
	}))
}

// Script measures a call to Redis. It is the [delayq.ScriptHook].
func (m *Metrics) Script(event delayq.ScriptEvent) {
	ctx, of := context.Background(), m.counted(keyScript, event.Name)
	m.redisTime.Record(ctx, event.Duration.Seconds(), of)
	if event.Err != nil && !isError(event.Err, context.Canceled) {
		m.redisErrors.Add(ctx, 1, of)
	}
}

// A folding decides which topics have series of their own. It is safe for concurrent use.
type folding struct {
	place *place
	most  int

	mu     sync.Mutex
	own    map[string]bool
	labels map[string]string // by topic, of at most mostLabels topics
}

// mostLabels is how many topics are remembered with their labels.
const mostLabels = 10_000

// label returns the label under which a topic is counted.
func (f *folding) label(topic string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if label, known := f.labels[topic]; known {
		return label
	}
	if f.labels == nil {
		f.labels, f.own = make(map[string]string), make(map[string]bool)
	}
	label := cmp.Or(valid(f.place.of(topic)), Other)
	switch {
	case label == Other, f.own[label]:
	case len(f.own) >= f.most:
		label = Other
	default:
		f.own[label] = true
	}
	if len(f.labels) < mostLabels {
		f.labels[topic] = label
	}
	return label
}
