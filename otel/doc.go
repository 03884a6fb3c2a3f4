// Package delayqotel traces and measures a [delayq] queue with OpenTelemetry.
//
//	tracing := delayqotel.NewTracing()
//	metrics := delayqotel.NewMetrics()
//	client := delayq.NewClient(rdb, delayq.Hooks(tracing, metrics))
//	server := delayq.NewServer(rdb, delayq.Hooks(tracing, metrics))
//
// [Tracing] makes a span for each call of a client and for each run of a job. The span of an
// Enqueue is the creation context of its job. It travels with the job in the W3C headers
// traceparent and tracestate. The span of a run begins a trace of its own, because the run can be
// 30 days later, and links to the creation context.
//
// [Metrics] counts and measures what the hooks of this process see. [Observe] adds what the queue
// holds, and [ObserveOutbox] what waits in an outbox. [LogHandler] adds the trace and the job to
// what a handler logs. [Quiet] keeps the commands of delayq out of the traces of redisotel, and
// [LinkSampler] samples the runs of jobs whose enqueue was sampled.
//
// The spans and the metrics whose names begin with messaging follow the messaging conventions of
// [SchemaURL]. OpenTelemetry has not declared these stable. The attributes that they lack are below
// messaging.delayq, and the metrics that they lack are below delayq. The latter are those of the
// Prometheus module: a backend that translates names for Prometheus has the same series with the
// same values. docs/metrics.md lists them.
//
// Nothing here starts a goroutine. A nil provider means the global one.
//
// docs/howto/tracing.md shows the spans of a job's life.
package delayqotel
