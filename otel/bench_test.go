package delayqotel_test

import (
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/delayq/delayq"
	delayqotel "github.com/delayq/delayq/otel"
)

// around is a hook of both clients and servers.
type around interface {
	delayq.CallHook
	delayq.EnqueuedHook
	delayq.RunHook
	delayq.EndedHook
}

// BenchmarkJob measures what a hook costs for each job: one enqueue and one run.
func BenchmarkJob(b *testing.B) {
	provider := func(s sdktrace.Sampler) delayqotel.TracingOption {
		return delayqotel.TracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(s)))
	}
	for name, hook := range map[string]around{
		"tracing/noop":    delayqotel.NewTracing(delayqotel.TracerProvider(noop.NewTracerProvider())),
		"tracing/dropped": delayqotel.NewTracing(provider(sdktrace.NeverSample())),
		"tracing/sampled": delayqotel.NewTracing(provider(sdktrace.AlwaysSample())),
		"metrics": delayqotel.NewMetrics(delayqotel.MeterProvider(
			sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			at := time.Now()
			for b.Loop() {
				ctx, ended := hook.Call(b.Context(), delayq.CallEvent{Name: "enqueue", Topic: "mail", ID: "id", Jobs: 1})
				if ctx == nil {
					ctx = b.Context()
				}
				job := &delayq.NewJob{Topic: "mail", ID: "id"}
				if h, ok := hook.(delayq.EnqueueHook); ok {
					h.Enqueue(ctx, job)
				}
				hook.Enqueued(ctx, delayq.EnqueueEvent{Topic: "mail", ID: "id", Due: at})
				ended(delayq.CallResult{ID: "id"})
				e := delayq.RunEvent{Topic: "mail", ID: "id", Attempt: 1, EnqueuedAt: at, Due: at, StartedAt: at, Server: "server", Headers: map[string]string{
					"traceparent": "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01",
				}}
				_, done := hook.Run(b.Context(), e)
				e.FinishedAt, e.Outcome = at, delayq.OutcomeAcked
				hook.Ended(e)
				done(e)
			}
		})
	}
}
