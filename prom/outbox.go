package prom

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// OutboxStats is what a look at an outbox finds. It has the fields of outbox.Stats of the module
// delayq/outbox, so that a value of that can be converted. This module does not depend on that one.
type OutboxStats struct {
	Rows   int64         // that wait
	Oldest time.Duration // how long the oldest one has waited; 0: none waits
	Dead   int64         // that Redis has refused
	Later  int64         // that are due beyond the horizon
}

// An OutboxCollector is a [prometheus.Collector] that reads the state of an outbox. It is safe for
// concurrent use and starts nothing before the first scrape.
//
// It looks at the database no more often than [MinInterval], and waits for it up to the [Timeout],
// as a [Collector] does with Redis. If a look fails, all series are absent except delayq_outbox_up,
// which is 0, and the error is logged when that begins.
//
// Collectors of one outbox in several processes return the same values. In queries, use max by
// (outbox).
type OutboxCollector struct {
	o     options
	err   error // why an argument is invalid
	name  string
	stats func(context.Context) (OutboxStats, error)
	descs map[*family]*prometheus.Desc
	watch watch
}

// NewOutboxCollector returns a collector of an outbox. The label outbox has the name, which should
// be that of its table, after that of the database if there are several. stats is called in a
// goroutine of its own, by one at a time.
//
//	stats := func(ctx context.Context) (prom.OutboxStats, error) {
//		s, err := ob.Stats(ctx, db)
//		return prom.OutboxStats(s), err
//	}
//	prometheus.MustRegister(prom.NewOutboxCollector("delayq_outbox", stats))
//
// [MinInterval], [Timeout] and [Logger] apply. The options about topics have no effect. If the name
// is empty or not valid UTF-8, if stats is nil or if an option is invalid, Register returns an
// error that wraps [delayq.ErrInvalid].
func NewOutboxCollector(name string, stats func(context.Context) (OutboxStats, error), opts ...CollectorOption) *OutboxCollector {
	c := &OutboxCollector{o: defaults, name: name, stats: stats, descs: make(map[*family]*prometheus.Desc)}
	if name == "" || !utf8.ValidString(name) {
		c.o.refuse("NewOutboxCollector(%q): the name must be text", name)
	}
	if stats == nil {
		c.o.refuse("NewOutboxCollector: the function is nil")
	}
	for _, opt := range opts {
		if opt == nil {
			c.o.refuse("an option of NewOutboxCollector is nil")
			continue
		}
		opt.applyCollector(&c.o)
	}
	c.err = c.o.err()
	c.watch = watch{o: &c.o, whose: []any{"outbox", name}, at: "the database", read: c.read, about: c.about}
	for _, f := range outboxFamilies {
		c.descs[f] = prometheus.NewDesc(f.name, f.help, f.labels, prometheus.Labels{"outbox": name})
	}
	return c
}

// Describe is that of [prometheus.Collector].
func (c *OutboxCollector) Describe(ch chan<- *prometheus.Desc) {
	if c.err != nil {
		ch <- prometheus.NewInvalidDesc(fmt.Errorf("prom: %w", c.err))
		return
	}
	for _, f := range outboxFamilies {
		ch <- c.descs[f]
	}
}

// Collect is that of [prometheus.Collector].
func (c *OutboxCollector) Collect(ch chan<- prometheus.Metric) {
	if c.err != nil {
		return // it cannot be registered
	}
	c.watch.collect(ch)
}

// read looks at the outbox.
func (c *OutboxCollector) read(ctx context.Context) (func() []prometheus.Metric, error) {
	s, err := c.stats(ctx)
	if err != nil {
		return nil, err
	}
	return func() []prometheus.Metric {
		return []prometheus.Metric{
			c.constant(outboxRows, float64(s.Rows)), c.constant(outboxOldest, s.Oldest.Seconds()),
			c.constant(outboxDead, float64(s.Dead)), c.constant(outboxLater, float64(s.Later)),
		}
	}, nil
}

// about returns what a look says about itself.
func (c *OutboxCollector) about(_ *look, up float64) []prometheus.Metric {
	return []prometheus.Metric{c.constant(outboxUp, up)}
}

func (c *OutboxCollector) constant(f *family, v float64) prometheus.Metric {
	return constant(c.descs[f], f, v)
}
