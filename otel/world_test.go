package delayqotel_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

func TestMain(m *testing.M) { queuetest.Main(m, func() error { return nil }) }

var errTest = errors.New("out of stock")

// A recorder keeps the spans of a provider in memory.
type recorder struct {
	*tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
}

func record(opts ...sdktrace.TracerProviderOption) *recorder {
	r := &recorder{SpanRecorder: tracetest.NewSpanRecorder()}
	r.provider = sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(r))...)
	return r
}

// tracing returns a hook whose spans go to the recorder.
func (r *recorder) tracing(opts ...delayqotel.TracingOption) *delayqotel.Tracing {
	return delayqotel.NewTracing(append(opts, delayqotel.TracerProvider(r.provider))...)
}

// spans returns the ended spans by the time of their start.
func (r *recorder) spans() []sdktrace.ReadOnlySpan {
	list := r.Ended()
	slices.SortStableFunc(list, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	return list
}

// named returns the ended spans with a name.
func (r *recorder) named(name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(r.spans(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() != name })
}

// one returns the only ended span with a name.
func (r *recorder) one(t require.TestingT, name string) sdktrace.ReadOnlySpan {
	list := r.named(name)
	require.Len(t, list, 1, name)
	return list[0]
}

// of returns the spans of the runs of a job.
func (r *recorder) of(id string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(r.spans(), func(s sdktrace.ReadOnlySpan) bool {
		return s.SpanKind() != trace.SpanKindConsumer || attr(s, "messaging.message.id") != id
	})
}

// attr returns an attribute of a span as text; empty if it has none.
func attr(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

// table describes the ended spans, a line for each. A span is called by its place in the table, and
// a trace by a letter.
func (r *recorder) table(keys ...attribute.Key) string {
	list := r.spans()
	number := func(id trace.SpanID) string {
		at := slices.IndexFunc(list, func(s sdktrace.ReadOnlySpan) bool { return s.SpanContext().SpanID() == id })
		if at < 0 {
			return "?"
		}
		return fmt.Sprint(at + 1)
	}
	var traces []trace.TraceID
	var text strings.Builder
	for at, s := range list {
		if !slices.Contains(traces, s.SpanContext().TraceID()) {
			traces = append(traces, s.SpanContext().TraceID())
		}
		letter := 'A' + slices.Index(traces, s.SpanContext().TraceID())
		fmt.Fprintf(&text, "%d %c %s %s", at+1, letter, s.SpanKind(), s.Name())
		if s.Parent().IsValid() {
			fmt.Fprintf(&text, " below=%s", number(s.Parent().SpanID()))
		}
		for _, l := range s.Links() {
			what := "link"
			for _, a := range l.Attributes {
				what = a.Value.String()
			}
			fmt.Fprintf(&text, " %s=%s", what, number(l.SpanContext.SpanID()))
		}
		for _, key := range keys {
			if value := attr(s, key); value != "" {
				fmt.Fprintf(&text, " %s=%s", key[strings.LastIndexByte(string(key), '.')+1:], value)
			}
		}
		if s.Status().Code != codes.Unset {
			fmt.Fprintf(&text, " %s(%s)", s.Status().Code, s.Status().Description)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// serve returns a Bubble's server with hooks, and a client with them.
func serve(
	b *queuetest.Bubble, topic string, h delayq.HandlerFunc, hooks []delayq.Hook, opts ...delayq.ServerOption,
) (client *delayq.Client, stop func() error) {
	s := b.Serve(topic, h, append(opts, delayq.Hooks(hooks...))...)
	return delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(hooks...)), s.Stop
}

// enqueue enqueues a job that is expected to be stored.
func enqueue(t testing.TB, client *delayq.Client, topic, id string, opts ...delayq.JobOption) {
	t.Helper()
	_, err := client.Enqueue(t.Context(), topic, id, []byte("of "+id), opts...)
	require.NoError(t, err)
}

// ms returns a number of milliseconds.
func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }
