package delayqotel

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/delayq/delayq"
)

// A TracingOption configures a [Tracing].
type TracingOption interface{ applyTracing(*tracingOptions) }

// A MetricsOption configures a [Metrics], or what [Observe] or [ObserveOutbox] observes.
type MetricsOption interface{ applyMetrics(*metricsOptions) }

// An Option configures both traces and metrics.
type Option interface {
	TracingOption
	MetricsOption
}

// place is what spans and metrics have in common.
type place struct {
	label  func(topic string) string
	server []attribute.KeyValue
	errs   []error
}

// refuse notes that an option is invalid, and has no effect.
func (p *place) refuse(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

// err returns the complaints about the options.
func (p *place) err() error {
	if len(p.errs) == 0 {
		return nil
	}
	return fmt.Errorf("delayqotel: %w: %w", delayq.ErrInvalid, errors.Join(p.errs...))
}

type tracingOptions struct {
	place
	provider  trace.TracerProvider
	creates   bool
	settles   bool
	noText    bool
	sizes     bool
	within    time.Duration
	relation  func(delayq.RunEvent) Rel
	baggage   map[string]bool
	inspector *delayq.Inspector
}

type metricsOptions struct {
	place
	provider metric.MeterProvider
	topics   int
	interval time.Duration
}

type tracingOption func(*tracingOptions)

func (f tracingOption) applyTracing(o *tracingOptions) { f(o) }

type metricsOption func(*metricsOptions)

func (f metricsOption) applyMetrics(o *metricsOptions) { f(o) }

type option func(*place)

func (f option) applyTracing(o *tracingOptions) { f(&o.place) }
func (f option) applyMetrics(o *metricsOptions) { f(&o.place) }

// TracerProvider sets the provider of the spans. Default: the global one.
func TracerProvider(provider trace.TracerProvider) TracingOption {
	return tracingOption(func(o *tracingOptions) { o.provider = provider })
}

// MeterProvider sets the provider of the metrics. Default: the global one.
func MeterProvider(provider metric.MeterProvider) MetricsOption {
	return metricsOption(func(o *metricsOptions) { o.provider = provider })
}

// TopicLabel maps topics to labels where there are many topics, for example tenant.123 to tenant.
// The names of spans and the attributes of metrics then have the label, as
// messaging.destination.template where the conventions apply. The spans keep the topic in
// messaging.destination.name. f must be fast and safe for concurrent use. Default: the topic.
func TopicLabel(f func(topic string) string) Option {
	return option(func(p *place) {
		if f == nil {
			p.refuse("TopicLabel(nil): must be a function")
			return
		}
		p.label = f
	})
}

// ServerAddress adds the attributes server.address and server.port: the host name or the address of
// Redis, and its port. A port of 0 is left out. Default: neither.
func ServerAddress(host string, port int) Option {
	return option(func(p *place) {
		if host == "" || port < 0 || port > 65_535 {
			p.refuse("ServerAddress(%q, %d): must be a host and a port from 0 to 65535", host, port)
			return
		}
		p.server = []attribute.KeyValue{semconv.ServerAddress(valid(host))}
		if port > 0 {
			p.server = append(p.server, semconv.ServerPort(port))
		}
	})
}

// CreateSpans makes a span of kind PRODUCER for each job of an EnqueueBatch, which is the creation
// context of that job alone. The span of the call has the kind CLIENT and links to them. The SDK
// keeps the newest 128 links of a span, unless its SpanLimits say otherwise. Default: one span of
// kind PRODUCER, which is the creation context of all jobs of the batch.
func CreateSpans() TracingOption {
	return tracingOption(func(o *tracingOptions) { o.creates = true })
}

// SettleSpans makes a span of kind CLIENT below each run whose outcome is recorded in Redis. It
// lasts from the end of the handler until delayq knows that Redis has the outcome. Servers report
// outcomes together, so that includes the time that an outcome waits for others. Default: none; the
// outcome is on the span of the run.
func SettleSpans() TracingOption {
	return tracingOption(func(o *tracingOptions) { o.settles = true })
}

// NoErrorText keeps the texts of errors and the stacks of panics out of the spans. The attribute
// error.type stays. Default: a failed span has the text of its error as the description of its
// status, up to 1 KiB.
func NoErrorText() TracingOption {
	return tracingOption(func(o *tracingOptions) { o.noText = true })
}

// BodySize adds the attribute messaging.message.body.size: the size of the payload in bytes.
func BodySize() TracingOption {
	return tracingOption(func(o *tracingOptions) { o.sizes = true })
}

// Baggage names the members of W3C baggage that travel with a job, in its header baggage. A run has
// them in its context. Other members are neither stored nor read. Baggage can hold personal data,
// and what is stored stays in Redis until the job is gone. Default: none.
func Baggage(names ...string) TracingOption {
	return tracingOption(func(o *tracingOptions) {
		if o.baggage == nil {
			o.baggage = make(map[string]bool, len(names))
		}
		for _, name := range names {
			if name == "" {
				o.refuse("Baggage: a name is empty")
				continue
			}
			o.baggage[name] = true
		}
	})
}

// A Rel is how the span of a run relates to the creation context of its job.
type Rel int

// The relations of a run.
const (
	Linked    Rel = iota // a trace of its own, with a link
	Child                // in the trace of the creation context, and with a link
	Unrelated            // a trace of its own, without a link
)

// Relation chooses the relation of each run. It takes precedence over [ParentWithin]. f must be
// fast and safe for concurrent use. Default: [Linked].
func Relation(f func(delayq.RunEvent) Rel) TracingOption {
	return tracingOption(func(o *tracingOptions) {
		if f == nil {
			o.refuse("Relation(nil): must be a function")
		}
		o.relation = f
	})
}

// ParentWithin makes a run a [Child] if it was due at most d after the enqueue of its job. Other
// runs stay [Linked]. A retry is due later than the first run, so it can be linked where the first
// run is a child. Default: 0, which makes the first run of a job without a delay [Linked] too.
// Range: 0, or from 1 ms on.
func ParentWithin(d time.Duration) TracingOption {
	return tracingOption(func(o *tracingOptions) {
		if d < 0 || d > 0 && d < time.Millisecond {
			o.refuse("ParentWithin(%v): must be 0, or at least 1ms", d)
			return
		}
		o.within = d
	})
}

// LinkRetries makes each retry link to the run before it too. The trace of a failed run is kept in
// the job's errors, as [delayq.AttemptError].TraceParent, whether this option is given or not. The
// retry reads it from there with inspector. Cost: one call to Redis before each run from the second
// attempt on, which also reads the payload. If that fails or takes longer than a second, the run
// has the link to the creation context only. Contexts interrupt that call only if the client of
// inspector was created with ContextTimeoutEnabled. Default: the link to the creation context only.
func LinkRetries(inspector *delayq.Inspector) TracingOption {
	return tracingOption(func(o *tracingOptions) {
		if inspector == nil {
			o.refuse("LinkRetries(nil): must be an Inspector")
		}
		o.inspector = inspector
	})
}

// MaxTopics sets how many topics, or labels of [TopicLabel], the metrics tell apart. The others are
// added up as the topic _other, and delayq.folded_topics counts them. Default: 200. Range: 1 to
// 10,000.
func MaxTopics(n int) MetricsOption {
	return metricsOption(func(o *metricsOptions) {
		if n < 1 || n > 10_000 {
			o.refuse("MaxTopics(%d): must be from 1 to 10000", n)
			return
		}
		o.topics = n
	})
}

// MinInterval sets how often [Observe] or [ObserveOutbox] looks at most, however many readers
// collect the metrics. In between they get the numbers of the last look. Default: 5 s. Range: 0 to
// 1 h.
func MinInterval(d time.Duration) MetricsOption {
	return metricsOption(func(o *metricsOptions) {
		if d < 0 || d > time.Hour {
			o.refuse("MinInterval(%v): must be from 0s to 1h", d)
			return
		}
		o.interval = d
	})
}

// destination returns the attributes that all spans have, and the topic or its label.
func (p *place) destination(topic string) ([]attribute.KeyValue, string) {
	attrs := make([]attribute.KeyValue, 0, 16)
	attrs = append(append(attrs, semconv.MessagingSystemKey.String(system)), p.server...)
	if topic == "" {
		return attrs, ""
	}
	label := p.of(topic)
	if attrs = append(attrs, semconv.MessagingDestinationName(topic)); label != topic {
		attrs = append(attrs, semconv.MessagingDestinationTemplate(label))
	}
	return attrs, label
}

// of returns the label of a topic.
func (p *place) of(topic string) string {
	if p.label == nil || topic == "" {
		return topic
	}
	return valid(p.label(topic))
}

// name returns the topic of a metric: its label, or Other if that is empty or f panics.
func (p *place) name(topic string) (label string) {
	defer func() {
		if recover() != nil {
			label = Other
		}
	}()
	return cmp.Or(valid(p.of(topic)), Other)
}

// valid makes a text valid UTF-8. Job IDs and errors can be any bytes, and an exporter rejects
// everything that it sends together with an invalid text.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
