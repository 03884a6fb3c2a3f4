package delayqotel

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/delayq/delayq"
)

type runKey struct{}

// A running is what a log line says of a run.
type running struct {
	topic, id string
	attempt   int
}

// withRun returns a context that knows its run.
func withRun(ctx context.Context, event delayq.RunEvent) context.Context {
	return context.WithValue(ctx, runKey{}, running{event.Topic, event.ID, event.Attempt})
}

// LogHandler returns a handler that adds the trace and the job to what a handler of a job logs:
//
//	slog.SetDefault(slog.New(delayqotel.LogHandler(slog.NewJSONHandler(os.Stderr, nil))))
//
// A line that is logged with the context of a run, or one derived from it, gets the attributes
// topic, job and attempt, provided that its server has a [Tracing] or a [Metrics]. A line whose
// context has a span of any kind gets trace_id and span_id. Other lines are unchanged. A logger
// with groups (slog.Logger.WithGroup) has all of them in the innermost group.
func LogHandler(inner slog.Handler) slog.Handler { return logHandler{inner} }

type logHandler struct{ slog.Handler }

func (h logHandler) Handle(ctx context.Context, record slog.Record) error {
	span := trace.SpanContextFromContext(ctx)
	r, runs := ctx.Value(runKey{}).(running)
	if span.IsValid() || runs {
		record = record.Clone()
	}
	if span.IsValid() {
		record.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	if runs {
		record.AddAttrs(slog.String("topic", r.topic), slog.String("job", r.id), slog.Int("attempt", r.attempt))
	}
	return h.Handler.Handle(ctx, record)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

func (h logHandler) WithGroup(name string) slog.Handler { return logHandler{h.Handler.WithGroup(name)} }
