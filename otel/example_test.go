package delayqotel_test

import (
	"log"
	"log/slog"
	"os"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/delayq/delayq"
	delayqotel "github.com/delayq/delayq/otel"
)

// Traces, metrics and logs of a program.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()

	base := sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01))
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(delayqotel.LinkSampler(base))))
	slog.SetDefault(slog.New(delayqotel.LogHandler(slog.NewJSONHandler(os.Stderr, nil))))

	inspector := delayq.NewInspector(rdb)
	tracing := delayqotel.NewTracing(delayqotel.LinkRetries(inspector))
	metrics := delayqotel.NewMetrics()
	client := delayq.NewClient(rdb, delayq.Hooks(tracing, metrics))
	server := delayq.NewServer(rdb, delayq.Hooks(tracing, metrics))
	if _, err := delayqotel.Observe(inspector); err != nil {
		log.Fatal(err)
	}
	_, _ = client, server
}

// Short delays of one topic stay in one trace.
func ExampleRelation() {
	tracing := delayqotel.NewTracing(delayqotel.Relation(func(e delayq.RunEvent) delayqotel.Rel {
		if e.Topic == "checkout" {
			return delayqotel.Child
		}
		return delayqotel.Linked
	}))
	_ = delayq.Hooks(tracing)
}

// A program traces its own commands with redisotel, and not those of delayq.
func ExampleQuiet() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	err := redisotel.InstrumentTracing(rdb,
		redisotel.WithCommandFilter(delayqotel.Quiet),
		redisotel.WithCommandsFilter(delayqotel.QuietPipeline))
	if err != nil {
		log.Print(err)
	}
}
