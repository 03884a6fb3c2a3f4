package main

import (
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/delayq/delayq"
	delayqotel "github.com/delayq/delayq/otel"
	"github.com/delayq/delayq/prom"
)

// observe returns hooks that count and trace, for clients and servers. The registry has what they
// count and the state of the queue, and the exporter has the ended spans.
func observe(rdb *redis.Client, prefix delayq.PrefixOption) (delayq.HooksOption, *prometheus.Registry, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()                           // in a real program: otlptracehttp or the like
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)) // in a real program: WithBatcher
	inspector := delayq.NewInspector(rdb, prefix)
	tracing := delayqotel.NewTracing(delayqotel.TracerProvider(provider), delayqotel.LinkRetries(inspector))
	metrics, registry := prom.NewMetrics(), prometheus.NewRegistry()
	registry.MustRegister(metrics, prom.NewCollector(inspector))
	return delayq.Hooks(metrics, tracing), registry, spans
}

// serve shows the metrics and the health of a server over HTTP, until the function that it returns
// is called.
func serve(server *delayq.Server, registry *prometheus.Registry, address string, out io.Writer) (end func() error, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/", delayq.HealthHandler(server)) // livez, readyz and healthz
	fmt.Fprintf(out, "http://%[1]s/metrics\nhttp://%[1]s/livez\nhttp://%[1]s/readyz\n", listener.Addr())
	web := &http.Server{Handler: mux}
	go web.Serve(listener)
	return web.Close, nil
}
