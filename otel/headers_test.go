package delayqotel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

func link(span trace.Span) trace.SpanStartOption {
	return trace.WithLinks(trace.Link{SpanContext: span.SpanContext()})
}

// bag returns a context with baggage.
func bag(t require.TestingT, ctx context.Context, text string) context.Context {
	b, err := baggage.Parse(text)
	require.NoError(t, err)
	return baggage.ContextWithBaggage(ctx, b)
}

// A job gets the headers of the trace, unless the caller has set them or there is no room, and only
// the baggage that is named.
func TestHeaders(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client := func(opts ...delayqotel.TracingOption) *delayq.Client {
			return delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(r.tracing(opts...)))
		}
		plain, named := client(), client(delayqotel.Baggage("tenant"))
		state, err := trace.ParseTraceState("v=1,w=2")
		require.NoError(b, err)
		remote := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state}
		ctx := trace.ContextWithSpanContext(bag(b, b.Context(), "tenant=7,user=anna"), trace.NewSpanContext(remote))
		large, err := trace.ParseTraceState("v=" + strings.Repeat("x", 256) + ",w=" + strings.Repeat("x", 256))
		require.NoError(b, err)
		remote.TraceState = large
		largeCtx := trace.ContextWithSpanContext(b.Context(), trace.NewSpanContext(remote))
		parent := func(name string) string {
			sc := r.named(name)[0].SpanContext()
			return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
		}
		const most = 16 << 10
		for id, c := range map[string]struct {
			ctx    context.Context
			client *delayq.Client
			opts   []delayq.JobOption
			want   map[string]string // "TRACE" stands for the trace of the enqueue
		}{
			"plain":    {ctx, plain, nil, map[string]string{"traceparent": "TRACE", "tracestate": "v=1,w=2"}},
			"named":    {ctx, named, nil, map[string]string{"traceparent": "TRACE", "tracestate": "v=1,w=2", "baggage": "tenant=7"}},
			"no bag":   {b.Context(), named, nil, map[string]string{"traceparent": "TRACE"}},
			"own":      {ctx, named, []delayq.JobOption{delayq.Header("traceparent", "mine")}, map[string]string{"traceparent": "mine"}},
			"own bag":  {ctx, named, []delayq.JobOption{delayq.Header("baggage", "mine")}, map[string]string{"baggage": "mine"}},
			"beside":   {ctx, plain, []delayq.JobOption{delayq.Header("k", "v")}, map[string]string{"k": "v", "traceparent": "TRACE", "tracestate": "v=1,w=2"}},
			"no room":  {ctx, plain, []delayq.JobOption{delayq.Header("k", strings.Repeat("x", most-1))}, map[string]string{"k": strings.Repeat("x", most-1)}},
			"too long": {largeCtx, plain, nil, map[string]string{"traceparent": "TRACE"}},
		} {
			topic := strings.ReplaceAll(id, " ", "-")
			enqueueWith(b, c.ctx, c.client, topic, id, append(c.opts, delayq.ProcessIn(time.Hour))...)
			if c.want["traceparent"] == "TRACE" {
				c.want["traceparent"] = parent("enqueue " + topic)
			}
			require.Equal(b, c.want, b.Get(topic, id).Headers, id)
		}
	})
}

func enqueueWith(b *queuetest.Bubble, ctx context.Context, client *delayq.Client, topic, id string, opts ...delayq.JobOption) {
	b.Helper()
	_, err := client.Enqueue(ctx, topic, id, nil, opts...)
	require.NoError(b, err)
}

// A run has the baggage that is named, and nothing else of it.
func TestBaggageOfARun(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var got []string
		client, _ := serve(b, "mail", func(ctx context.Context, _ *delayq.Job) error {
			got = append(got, baggage.FromContext(ctx).String())
			return nil
		}, []delayq.Hook{record().tracing(delayqotel.Baggage("tenant", "region"))})
		enqueueWith(b, bag(b, b.Context(), "tenant=7,user=anna"), client, "mail", "a")
		b.Pass(time.Second)
		enqueueWith(b, b.Context(), client, "mail", "b", delayq.Header("baggage", "user=anna,region=eu"))
		b.Pass(time.Second)
		enqueueWith(b, b.Context(), client, "mail", "c", delayq.Header("baggage", strings.Repeat("=", 8<<10)))
		b.Pass(time.Second)
		require.Equal(b, []string{"tenant=7", "region=eu", ""}, got)
	})
}

// Headers that are broken or hostile make a run without a link, and nothing else.
func TestBrokenHeaders(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		r := record()
		client, _ := serve(b, "mail", func(_ context.Context, job *delayq.Job) error {
			if job.Attempt == 1 {
				return errTest
			}
			return nil
		}, []delayq.Hook{r.tracing(delayqotel.LinkRetries(b.Inspector), delayqotel.ParentWithin(time.Hour))})
		const good = "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"
		for at, header := range []string{
			"", "x", "\xff\x00", "00", good[:54], "ff" + good[2:], strings.Repeat("0", 8<<10), good + strings.Repeat("-", 8<<10),
			"00-00000000000000000000000000000000-0102030405060708-01", strings.ToUpper(good),
		} {
			enqueueWith(b, b.Context(), client, "mail", fmt.Sprint(at), delayq.Header("traceparent", header),
				delayq.Header("tracestate", strings.Repeat("\xff,", 3<<10)))
		}
		enqueueWith(b, b.Context(), client, "mail", "state", delayq.Header("traceparent", good), delayq.Header("tracestate", strings.Repeat("\xff,", 4<<10)))
		b.Pass(10 * time.Second)
		runs := r.named("process mail")
		require.Len(b, runs, 2*11)
		linked := 0
		for _, run := range runs {
			state := attr(run, "messaging.message.id") == "state"
			require.Equal(b, state, run.Parent().IsValid())
			for _, l := range run.Links() {
				linked++
				if l.SpanContext.SpanID().String() == "0102030405060708" {
					require.True(b, state)
					require.Empty(b, l.SpanContext.TraceState().String())
				}
			}
		}
		require.Equal(b, 11+2, linked) // each retry with its first run, and both runs of state with their creation
	})
}

// A provider that makes no spans passes the caller's trace on. A nil provider is the global one.
func TestProviders(t *testing.T) {
	r := record()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(r.provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	f := queuetest.NewFixture(t, open(t))
	enqueueBy := func(id string, opt delayqotel.TracingOption) string {
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(delayqotel.NewTracing(opt, nil)))
		ctx, span := record().provider.Tracer("program").Start(t.Context(), "request")
		defer span.End()
		_, err := client.Enqueue(ctx, "mail", id, nil)
		require.NoError(t, err)
		info, err := f.Inspector.Job(t.Context(), "mail", id)
		require.NoError(t, err)
		require.Contains(t, info.Headers["traceparent"], span.SpanContext().TraceID().String())
		if strings.Contains(info.Headers["traceparent"], span.SpanContext().SpanID().String()) {
			return "caller"
		}
		return "own"
	}
	require.Equal(t, "caller", enqueueBy("noop", delayqotel.TracerProvider(noop.NewTracerProvider())))
	require.Empty(t, r.spans())
	require.Equal(t, "own", enqueueBy("global", delayqotel.TracerProvider(nil)))
	require.Equal(t, delayqotel.ScopeName, r.one(t, "enqueue mail").InstrumentationScope().Name)
	require.Equal(t, delayqotel.SchemaURL, r.one(t, "enqueue mail").InstrumentationScope().SchemaURL)
	require.Equal(t, "own", enqueueBy("nothing", nil))
	require.Len(t, r.named("enqueue mail"), 2)
}
