package delayqotel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// The runs of a job are sampled if its enqueue was, whatever the base decides about new traces.
func TestLinkSampler(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		never := sdktrace.ParentBased(sdktrace.NeverSample())
		producer, other := record(), record(sdktrace.WithSampler(never))
		consumer := record(sdktrace.WithSampler(delayqotel.LinkSampler(never)))
		server := consumer.tracing()
		var inner []bool
		b.Serve("mail", func(ctx context.Context, job *delayq.Job) error {
			_, span := consumer.provider.Tracer("program").Start(ctx, "send")
			inner = append(inner, span.SpanContext().IsSampled())
			span.End()
			if job.Attempt == 1 {
				return errTest
			}
			return nil
		}, delayq.Hooks(server), delayq.Concurrency(1))
		for id, r := range map[string]*recorder{"kept": producer, "dropped": other} {
			client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(r.tracing()))
			enqueue(b, client, "mail", id)
			b.Pass(10 * time.Second)
		}
		require.Len(b, consumer.of("kept"), 2)
		require.Empty(b, consumer.of("dropped"))
		require.ElementsMatch(b, []bool{true, true, false, false}, inner)
	})
}

// A span with a parent is left to the base, and a nil base is the default of the SDK.
func TestLinkSamplerWithAParent(t *testing.T) {
	r := record(sdktrace.WithSampler(sdktrace.NeverSample()))
	tracer := record().provider.Tracer("program")
	_, sampled := tracer.Start(t.Context(), "sampled")
	parent, _ := r.provider.Tracer("program").Start(t.Context(), "unsampled")
	s := record(sdktrace.WithSampler(delayqotel.LinkSampler(nil)))
	_, child := s.provider.Tracer("program").Start(parent, "child", link(sampled))
	require.False(t, child.SpanContext().IsSampled())
	_, root := s.provider.Tracer("program").Start(t.Context(), "root")
	require.True(t, root.SpanContext().IsSampled())
	require.Equal(t, "LinkSampler{AlwaysOffSampler}", delayqotel.LinkSampler(sdktrace.NeverSample()).Description())
}
