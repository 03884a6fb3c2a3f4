// Package prom exposes a delayq queue to Prometheus.
//
// [Metrics] counts what the clients and servers of this process do: runs by outcome, lateness, run
// times, enqueues, script calls. It is a hook and never calls Redis. [Collector] reads the state of
// the queue with an [delayq.Inspector]: jobs by state, overdue jobs, what falls due within the next
// hour, servers, schedules. Each works without the other. [OutboxCollector] reads the state of an
// outbox.
//
//	metrics := prom.NewMetrics()
//	client := delayq.NewClient(rdb, delayq.Hooks(metrics))
//	server := delayq.NewServer(rdb, delayq.Hooks(metrics))
//	prometheus.MustRegister(metrics, prom.NewCollector(delayq.NewInspector(rdb)))
//
// docs/metrics.md of delayq lists all metrics.
//
// No label can have an unlimited number of values. IDs, error texts, servers and schedules are
// never labels. Topics are, up to [MaxTopics] of them. The others share the value [Other].
package prom
