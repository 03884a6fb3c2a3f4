package delayqotel

import (
	"context"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/delayq/delayq"
)

// A Tracing is a hook that makes spans. Give it to clients and to servers with [delayq.Hooks]. It
// is safe for concurrent use, and one value can serve any number of them.
//
// A client gets a span for each call:
//
//   - Enqueue and EnqueueBatch: "enqueue {topic}" of kind PRODUCER, the creation context of jobs
//   - with [CreateSpans], EnqueueBatch: of kind CLIENT, and "create {topic}" of kind PRODUCER for
//     each job
//   - every other call: for example "cancel {topic}" of kind CLIENT
//
// A batch of several topics has no topic in the name of its span. A call that is refused because of
// the state of a job, as with [delayq.ErrDuplicate], has the attribute [ResultKey] and no error
// status.
//
// A server gets a span for each run: "process {topic}" of kind CONSUMER. It begins a trace of its
// own and links to the creation context, unless [ParentWithin] or [Relation] says otherwise. It
// starts immediately before the handler and ends when the handler returns. It is exported when
// Redis has the outcome. A run that fails, panics or loses its lease has an error status; one that
// is snoozed, cancelled, replaced or put back has none. A job that expires, or is buried without a
// run, gets a span without a duration.
//
// A job that a run hands over ([delayq.Job.Then]) has the span of that run as its creation context.
// The span of its own run relates to it as to that of an Enqueue. The hand-over has no span.
//
// The server's own calls, such as take, extend and promote, have no spans.
type Tracing struct {
	o      tracingOptions
	tracer trace.Tracer
}

var (
	_ delayq.CallHook     = (*Tracing)(nil)
	_ delayq.EnqueueHook  = (*Tracing)(nil)
	_ delayq.EnqueuedHook = (*Tracing)(nil)
	_ delayq.RunHook      = (*Tracing)(nil)
	_ delayq.EndedHook    = (*Tracing)(nil)
)

// NewTracing returns a hook that makes spans. Without options, the spans go to the global provider.
// An invalid option has no effect. The error, a [delayq.ErrInvalid], goes to the global error
// handler of OpenTelemetry ([otel.SetErrorHandler]), which logs it by default.
func NewTracing(opts ...TracingOption) *Tracing {
	t := &Tracing{}
	for _, opt := range opts {
		if opt != nil {
			opt.applyTracing(&t.o)
		}
	}
	if err := t.o.err(); err != nil {
		otel.Handle(err)
	}
	if t.o.provider == nil {
		t.o.provider = otel.GetTracerProvider()
	}
	t.tracer = t.o.provider.Tracer(ScopeName, trace.WithInstrumentationVersion(version()), trace.WithSchemaURL(SchemaURL))
	return t
}

// name returns the name of a span.
func name(operation, label string) string {
	if label == "" {
		return operation
	}
	return operation + " " + label
}

// A call is a call of a client that has a span.
type call struct {
	span    trace.Span
	caller  context.Context // the context without the span
	creates bool            // each job has a creation context of its own
	batch   bool
	headers map[string]string // of the jobs, unless creates
	failed  atomic.Int64      // jobs of an EnqueueBatch that were not stored
	// the first error of these that is no refusal
	err atomic.Pointer[error]
}

type callKey struct{}

// Call starts the span of a call. It is the [delayq.CallHook].
func (t *Tracing) Call(ctx context.Context, event delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	operation, batch := strings.CutSuffix(event.Name, " batch")
	enqueues := operation == opEnqueue
	c := &call{caller: ctx, batch: batch, creates: enqueues && batch && t.o.creates}
	attrs, label := t.o.destination(event.Topic)
	attrs = append(attrs, semconv.MessagingOperationName(operation))
	kind := trace.SpanKindClient
	if enqueues {
		attrs = append(attrs, semconv.MessagingOperationTypeSend)
		if !c.creates {
			kind = trace.SpanKindProducer
		}
	}
	if batch {
		attrs = append(attrs, semconv.MessagingBatchMessageCount(event.Jobs))
	}
	if event.ID != "" {
		attrs = append(attrs, semconv.MessagingMessageID(valid(event.ID)))
	}
	ctx, c.span = t.tracer.Start(ctx, name(operation, label), trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
	if enqueues {
		if !c.creates {
			c.headers = t.headers(ctx)
		}
		ctx = context.WithValue(ctx, callKey{}, c)
	}
	return ctx, func(r delayq.CallResult) { t.returned(c, event, r) }
}

// returned ends the span of a call.
func (t *Tracing) returned(c *call, event delayq.CallEvent, r delayq.CallResult) {
	defer c.span.End()
	if !c.span.IsRecording() {
		return
	}
	if event.ID == "" && r.ID != "" {
		c.span.SetAttributes(semconv.MessagingMessageID(valid(r.ID)))
	}
	if r.State != "" {
		c.span.SetAttributes(StateKey.String(string(r.State)))
	}
	if failed := c.failed.Load(); failed > 0 {
		c.span.SetAttributes(FailedKey.Int64(failed))
	}
	// The error of a batch joins only the first few.
	err, result := r.Err, refusal(r.Err)
	if first := c.err.Load(); first != nil {
		err, result = *first, ""
	}
	switch {
	case err == nil:
	case result == "":
		c.span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
		c.span.SetStatus(codes.Error, t.text(r.Err))
	case !c.batch:
		c.span.SetAttributes(ResultKey.String(result))
	}
}

// Enqueue puts the creation context into the headers of a job. It is the [delayq.EnqueueHook]. That
// of a job which a run hands over is the span of the run.
func (t *Tracing) Enqueue(ctx context.Context, job *delayq.NewJob) {
	c, _ := ctx.Value(callKey{}).(*call)
	var headers map[string]string
	switch {
	case c == nil:
		headers = t.headers(ctx)
	case c.creates:
		headers = t.create(c, job)
	default:
		headers = c.headers
	}
	if len(headers) > 0 {
		job.Options = append(job.Options, delayq.OptionalHeaders(headers))
	}
}

// create makes the creation context of one job of a batch, and returns its headers.
func (t *Tracing) create(c *call, job *delayq.NewJob) map[string]string {
	attrs, label := t.o.destination(valid(job.Topic))
	attrs = append(attrs, semconv.MessagingOperationName(opCreate), semconv.MessagingOperationTypeCreate)
	if job.ID != "" {
		attrs = append(attrs, semconv.MessagingMessageID(valid(job.ID)))
	}
	if t.o.sizes {
		attrs = append(attrs, semconv.MessagingMessageBodySize(len(job.Payload)))
	}
	ctx, span := t.tracer.Start(c.caller, name(opCreate, label), trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attrs...))
	span.End()
	c.span.AddLink(trace.Link{SpanContext: span.SpanContext()})
	return t.headers(ctx)
}

// Enqueued adds what is known of a stored job to the span. It is the [delayq.EnqueuedHook].
func (t *Tracing) Enqueued(ctx context.Context, event delayq.EnqueueEvent) {
	c, _ := ctx.Value(callKey{}).(*call)
	switch {
	case c == nil:
	case c.batch:
		if event.Err != nil {
			c.failed.Add(1)
			if err := event.Err; refusal(err) == "" {
				c.err.CompareAndSwap(nil, &err)
			}
		}
	case c.span.IsRecording():
		attrs := make([]attribute.KeyValue, 0, 2)
		if !event.Due.IsZero() {
			attrs = append(attrs, DueKey.Int64(event.Due.UnixMilli()))
		}
		if t.o.sizes {
			attrs = append(attrs, semconv.MessagingMessageBodySize(event.PayloadSize))
		}
		c.span.SetAttributes(attrs...)
	}
}

// maxText is the most bytes of the text of an error.
const maxText = 1 << 10

// text returns the text of an error for a span.
func (t *Tracing) text(err error) string {
	if t.o.noText || err == nil {
		return ""
	}
	text := message(err)
	return valid(text[:min(len(text), maxText)])
}
