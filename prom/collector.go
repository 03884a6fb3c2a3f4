package prom

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delayq/delayq"
)

// A Collector is a [prometheus.Collector] that reads the state of a queue. It is safe for
// concurrent use and starts nothing before the first scrape.
//
// A scrape looks at the queue only if the last look began [MinInterval] ago or earlier, and only
// one look is under way at a time, so any number of scrapers costs Redis what one costs. A look
// takes about 10 µs of Redis's time for each topic or partition, and twice that if it has ready or
// due jobs.
//
// If Redis does not answer within the [Timeout], the series about its state are absent, and
// delayq_collector_errors_total goes up. If some topics cannot be read, theirs are absent. The next
// look tries again.
//
// Collectors of one queue in several processes return the same values. In queries, use max by
// (prefix, topic).
type Collector struct {
	insp  *delayq.Inspector
	o     options
	err   error // why an option is invalid
	descs map[*family]*prometheus.Desc

	watch watch
	state state // belongs to the look that is under way
}

// NewCollector returns a collector of the queue that insp reads. insp may read from a replica. If
// insp is nil or an option is invalid, Register returns an error that wraps [delayq.ErrInvalid].
//
// The label prefix has the prefix of insp, so collectors of several prefixes can be registered
// together.
func NewCollector(insp *delayq.Inspector, opts ...CollectorOption) *Collector {
	c := &Collector{insp: insp, o: defaults, descs: make(map[*family]*prometheus.Desc)}
	if insp == nil {
		c.o.refuse("the inspector is nil")
	}
	for _, opt := range opts {
		if opt == nil {
			c.o.refuse("an option of NewCollector is nil")
			continue
		}
		opt.applyCollector(&c.o)
	}
	c.err = c.o.err()
	c.watch = watch{o: &c.o, whose: []any{"prefix", insp.Prefix()}, at: "Redis", read: c.series, about: c.about}
	c.state.folding = folding{most: c.o.maxTopics, rename: c.o.label}
	prefix := prometheus.Labels{"prefix": insp.Prefix()}
	for _, f := range queueFamilies {
		c.descs[f] = prometheus.NewDesc(f.name, f.help, f.labels, prefix)
	}
	return c
}

// Describe is that of [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	if c.err != nil {
		ch <- prometheus.NewInvalidDesc(fmt.Errorf("prom: NewCollector: %w", c.err))
		return
	}
	for _, f := range queueFamilies {
		ch <- c.descs[f]
	}
}

// Collect is that of [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	if c.err != nil {
		return // it cannot be registered
	}
	c.watch.collect(ch)
}

// about returns what a look says about itself.
func (c *Collector) about(l *look, up float64) []prometheus.Metric {
	list := []prometheus.Metric{
		c.constant(redisUp, up), c.constant(lookDuration, time.Since(l.began).Seconds()), c.constant(lookErrorsTotal, float64(c.watch.failed)),
	}
	if !c.watch.good.IsZero() {
		list = append(list, c.constant(lastSuccess, float64(c.watch.good.UnixMilli())/1000))
	}
	return list
}

// constant makes a series of a family.
func (c *Collector) constant(f *family, v float64, labels ...string) prometheus.Metric {
	return constant(c.descs[f], f, v, labels...)
}

// horizons are the values of the label within.
var horizons = []struct {
	label string
	span  time.Duration
}{{"1m", time.Minute}, {"10m", 10 * time.Minute}, {"1h", time.Hour}, {"24h", 24 * time.Hour}}

// A seen topic is what a look has found in it.
type seen struct {
	topic string
	stats *delayq.TopicStats // nil: it could not be read
	due   []int64            // within each of the horizons
	alone bool               // the servers could not be read
}

// series looks at the queue and returns what makes the series of all topics.
func (c *Collector) series(ctx context.Context) (func() []prometheus.Metric, error) {
	list, err := c.read(ctx)
	if err != nil && len(list) == 0 {
		return nil, err
	}
	return func() []prometheus.Metric { return c.state.metrics(c.constant, list) }, err
}

// read looks at all topics. If some cannot be read, it returns the others along with the error.
func (c *Collector) read(ctx context.Context) ([]seen, error) {
	topics, err := c.insp.Topics(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]seen, len(topics))
	at := make(map[string]int, len(topics))
	for i, topic := range topics {
		list[i].topic, at[topic] = topic, i
	}
	if len(topics) == 0 {
		return list, nil
	}
	stats, err := c.insp.Stats(ctx, topics...)
	if len(stats) == 0 {
		return nil, err
	}
	for i := range stats {
		list[at[stats[i].Topic]].stats = &stats[i]
	}
	if err != nil { // of topics, or of the servers
		_, lost := c.insp.Servers(ctx)
		for i := range list {
			list[i].alone = lost != nil
		}
	}
	spans := make([]time.Duration, len(horizons))
	for i, h := range horizons {
		spans[i] = h.span
	}
	due, failed := c.insp.DueWithin(ctx, stats[0].At.Add(time.Millisecond), spans, topics...)
	for i := range due {
		if list[i].due = due[i]; due[i] == nil {
			list[i].stats = nil
		}
	}
	return list, errors.Join(err, failed)
}
