package prom_test

import (
	"net/http"

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
