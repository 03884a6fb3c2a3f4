package delayqotel

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/delayq/delayq"
)

// previousTimeout bounds the call of LinkRetries, because the handler waits for it.
const previousTimeout = time.Second

// Run starts the span of a run. It is the [delayq.RunHook].
func (t *Tracing) Run(ctx context.Context, event delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	ctx, span, label := t.start(t.withBaggage(withRun(ctx, event), event.Headers), event, t.previous(ctx, event), time.Now())
	began := time.Now()
	if span.SpanContext().IsValid() {
		var c carrier
		w3c.Inject(ctx, &c)
		_ = delayq.SetTraceParent(ctx, c.parent) // it is short, and ctx is that of a run
	}
	return ctx, func(event delayq.RunEvent) {
		ended := time.Now()
		if ran := event.FinishedAt.Sub(event.StartedAt); !event.FinishedAt.IsZero() && !event.StartedAt.IsZero() {
			if at := began.Add(ran); at.Before(ended) {
				ended = at
			}
		}
		t.end(ctx, span, event, ended)
		if t.o.settles && settled(event.Outcome) {
			t.settle(ctx, event, label, ended)
		}
	}
}

// Ended makes the span of a job that was dropped or buried without a run. It is the
// [delayq.EndedHook].
func (t *Tracing) Ended(event delayq.RunEvent) {
	if !event.StartedAt.IsZero() || event.Outcome != delayq.OutcomeExpired && event.Outcome != delayq.OutcomeBuried {
		return
	}
	ctx, now := context.Background(), time.Now()
	ctx, span, _ := t.start(ctx, event, t.previous(ctx, event), now)
	t.end(ctx, span, event, now)
}

// start starts the span of a run.
func (t *Tracing) start(
	ctx context.Context, event delayq.RunEvent, previous trace.SpanContext, at time.Time,
) (context.Context, trace.Span, string) {
	attrs, label := t.o.destination(event.Topic)
	attrs = append(attrs, semconv.MessagingOperationName(opProcess), semconv.MessagingOperationTypeProcess,
		semconv.MessagingMessageID(valid(event.ID)), AttemptKey.Int(event.Attempt), DueKey.Int64(event.Due.UnixMilli()))
	if event.Server != "" {
		attrs = append(attrs, semconv.MessagingClientID(event.Server))
	}
	if !event.StartedAt.IsZero() {
		attrs = append(attrs, LatenessKey.Float64(event.Lateness().Seconds()))
	}
	if t.o.sizes {
		attrs = append(attrs, semconv.MessagingMessageBodySize(event.PayloadSize))
	}
	made, rel := creation(event.Headers), t.relation(event)
	opts := make([]trace.SpanStartOption, 0, 5)
	opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(at))
	if made.IsValid() && rel != Unrelated {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: made, Attributes: []attribute.KeyValue{LinkKey.String(linkCreation)}}))
	}
	if previous.IsValid() && !previous.Equal(made) {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: previous, Attributes: []attribute.KeyValue{LinkKey.String(linkPrevious)}}))
	}
	if made.IsValid() && rel == Child {
		ctx = trace.ContextWithRemoteSpanContext(ctx, made)
	} else {
		opts = append(opts, trace.WithNewRoot())
	}
	ctx, span := t.tracer.Start(ctx, name(opProcess, label), append(opts, trace.WithAttributes(attrs...))...)
	return ctx, span, label
}

// relation returns how a run relates to the creation context of its job.
func (t *Tracing) relation(event delayq.RunEvent) Rel {
	switch {
	case t.o.relation != nil:
		return t.o.relation(event)
	case t.o.within > 0 && event.Due.Sub(event.EnqueuedAt) <= t.o.within:
		return Child
	}
	return Linked
}

// previous returns the span context of the run before a retry. It is invalid if that is unknown.
func (t *Tracing) previous(ctx context.Context, event delayq.RunEvent) trace.SpanContext {
	if t.o.inspector == nil || event.Attempt < 2 {
		return trace.SpanContext{}
	}
	ctx, cancel := context.WithTimeout(ctx, previousTimeout)
	defer cancel()
	info, err := t.o.inspector.Job(ctx, event.Topic, event.ID)
	if err != nil {
		return trace.SpanContext{}
	}
	for _, e := range slices.Backward(info.Errors) {
		if e.Attempt == event.Attempt-1 {
			return creation(map[string]string{headerTrace: e.TraceParent})
		}
	}
	return trace.SpanContext{}
}

// end ends the span of a run.
func (t *Tracing) end(ctx context.Context, span trace.Span, event delayq.RunEvent, at time.Time) {
	defer span.End(trace.WithTimestamp(at))
	if !span.IsRecording() {
		return
	}
	attrs := make([]attribute.KeyValue, 0, 3)
	if event.Outcome != "" {
		attrs = append(attrs, OutcomeKey.String(string(event.Outcome)))
	}
	if !event.NextDue.IsZero() && !event.FinishedAt.IsZero() {
		attrs = append(attrs, RetryDelayKey.Float64(max(0, event.NextDue.Sub(event.FinishedAt)).Seconds()))
	}
	if kind := failure(ctx, event); kind != "" {
		attrs = append(attrs, semconv.ErrorTypeKey.String(kind))
		span.SetStatus(codes.Error, t.text(event.Err))
		if event.Stack != "" && !t.o.noText {
			span.AddEvent(semconv.ExceptionEventName, trace.WithTimestamp(at), trace.WithAttributes(
				semconv.ExceptionType(valid(errorType(event.Err))), semconv.ExceptionMessage(t.text(event.Err)),
				semconv.ExceptionStacktrace(valid(event.Stack))))
		}
	}
	span.SetAttributes(attrs...)
}

// settled reports whether a server tells Redis of the outcome. Of the others it learns from Redis.
func settled(outcome delayq.Outcome) bool {
	switch outcome {
	case "", delayq.OutcomeCancelled, delayq.OutcomeReplaced, delayq.OutcomeLeaseLost:
		return false
	}
	return true
}

// settle makes the span of SettleSpans. The name of its operation is the outcome.
func (t *Tracing) settle(ctx context.Context, event delayq.RunEvent, label string, ended time.Time) {
	attrs, _ := t.o.destination(event.Topic)
	attrs = append(attrs, semconv.MessagingOperationName(opSettle), semconv.MessagingOperationTypeSettle,
		semconv.MessagingMessageID(valid(event.ID)), OutcomeKey.String(string(event.Outcome)))
	_, span := t.tracer.Start(ctx, name(opSettle, label), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithTimestamp(ended), trace.WithAttributes(attrs...))
	span.End()
}
