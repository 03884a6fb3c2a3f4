package main

import (
	"context"
	"errors"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/delayq/delayq"
	delayqotel "github.com/delayq/delayq/otel"
	"github.com/delayq/delayq/prom"
)

// hookRow is work/64 with the hooks of this repository and without any. The
// jobs are stored with the same hook, so with tracing each carries the context
// of its creation.
func hookRow() row {
	return row{
		id: "hooks", title: "work off a ready backlog, concurrency 64, with hooks",
		sides: []side{
			hooked("prom", promHook),
			hooked("no hook", nil),
			hooked("otel dropped", traceHook(sdktrace.NeverSample())),
			hooked("otel sampled", traceHook(sdktrace.AlwaysSample())),
		},
		targets: []target{timesAtLeast(figRate, 0.95)},
	}
}

// hooked measures delayq with a hook in its clients and servers, or none if
// open is nil. open makes the hook, and says how to end what it needs.
func hooked(label string, open func() (hook delayq.Hook, end func() error)) side {
	measure := workBacklog(64, func(s sizes) int { return s.hooks })
	return side{label: label, measure: func(ctx context.Context, b *bench) (_ sample, err error) {
		var hooks []delayq.Hook
		if open != nil {
			hook, end := open()
			defer func() { err = errors.Join(err, end()) }()
			hooks = append(hooks, hook)
		}
		p := product{label, func(s *store) peer { return openDelayq(s, hooks...) }}
		return p.on(measure).measure(ctx, b)
	}}
}

// promHook counts for Prometheus.
func promHook() (delayq.Hook, func() error) {
	return prom.NewMetrics(), func() error { return nil }
}

// traceHook makes spans with the SDK of OpenTelemetry. Those that the sampler
// keeps are collected in batches for an exporter that does nothing.
func traceHook(s sdktrace.Sampler) func() (delayq.Hook, func() error) {
	return func() (delayq.Hook, func() error) {
		provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(s), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
		end := func() error { return provider.Shutdown(context.Background()) }
		return delayqotel.NewTracing(delayqotel.TracerProvider(provider)), end
	}
}
