package gateway

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delayq/delayq"
)

// Metrics are what a gateway tells Prometheus about its requests and leases.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	leases   *prometheus.CounterVec
	all      []prometheus.Collector
}

func newMetrics() *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "delayq_gateway_requests_total", Help: "Requests that were answered, by route and status.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "delayq_gateway_request_seconds", Help: "How long requests took, with the time in which they waited for jobs.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
		}, []string{"route"}),
		leases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "delayq_gateway_leases_ended_total", Help: "Leases of consumers that have ended, by how.",
		}, []string{"end"}),
	}
	m.all = []prometheus.Collector{m.requests, m.duration, m.leases}
	return m
}

// of adds what a gateway has at the moment.
func (m *Metrics) of(g *Gateway) {
	gauge := func(name, help string, value func() int) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
	}
	locked := func(value *int) func() int {
		return func() int {
			g.mu.Lock()
			defer g.mu.Unlock()
			return *value
		}
	}
	gauge("delayq_gateway_leases", "Jobs that consumers have.", locked(&g.held))
	gauge("delayq_gateway_wanted", "Jobs that takes wait for.", locked(&g.wanted))
	gauge("delayq_gateway_waiting", "Takes and waits for results that are under way.", func() int { return len(g.waits) })
}

// Register adds the metrics to a registry.
func (m *Metrics) Register(reg prometheus.Registerer) error {
	for _, c := range m.all {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// note counts a request.
func (m *Metrics) note(route string, status int, took time.Duration) {
	code := "none" // the client had gone
	if status != 0 {
		code = strconv.Itoa(status)
	}
	m.requests.WithLabelValues(route, code).Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
}

// ended counts a lease that has ended.
func (m *Metrics) ended(l *lease, o delayq.Outcome) {
	end := string(o)
	switch {
	case l.lost != "":
		end = l.lost
	case end == "":
		end = "unknown"
	}
	m.leases.WithLabelValues(end).Inc()
}
