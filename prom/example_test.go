package prom_test

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/prom"
)

// A process counts what its client and its server do.
func ExampleNewMetrics() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})

	metrics := prom.NewMetrics()
	client := delayq.NewClient(rdb, delayq.Hooks(metrics))
	server := delayq.NewServer(rdb, delayq.Hooks(metrics))
	prometheus.MustRegister(metrics)
	http.Handle("/metrics", promhttp.Handler())

	_, _ = client, server
}

// One process shows the state of the whole queue.
func ExampleNewCollector() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})

	prometheus.MustRegister(prom.NewCollector(delayq.NewInspector(rdb)))
}

// A process shows the state of an outbox, here with a stand-in for the module outbox.
func ExampleNewOutboxCollector() {
	var db *sql.DB
	var ob standIn // *outbox.Outbox

	stats := func(ctx context.Context) (prom.OutboxStats, error) {
		s, err := ob.Stats(ctx, db)
		return prom.OutboxStats(s), err
	}
	prometheus.MustRegister(prom.NewOutboxCollector("delayq_outbox", stats))
}

type standIn struct{}

func (standIn) Stats(context.Context, *sql.DB) (s struct {
	Rows        int64
	Oldest      time.Duration
	Dead, Later int64
}, err error) {
	return s, nil
}
