package prom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delayq/delayq"
)

// A Collector is a [prometheus.Collector] that reads the state of a queue. It is safe for
// concurrent use and starts nothing before the first scrape.
//
// A scrape looks at the queue only if the last look began [MinInterval] ago or earlier, and only
// one look is under way at a time, so any number of scrapers costs Redis what one costs. A look
// takes about 10 µs of Redis's time for each topic, and twice that if it has ready or due jobs.
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

	mu     sync.Mutex
	last   *look // nil before the first scrape
	failed int   // looks
	good   time.Time
	bad    bool // the last look failed

	state state // belongs to the look that is under way
}

// A look is one look at the queue.
type look struct {
	began time.Time
	done  chan struct{} // closed at the end
	late  bool          // the end came after the Timeout, or has not come yet; guarded by mu
	found []prometheus.Metric
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
	l := c.look()
	timer := time.NewTimer(time.Until(l.began.Add(c.o.timeout)))
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
		c.giveUp(l)
	}
	for _, m := range c.results(l) {
		ch <- m
	}
}

// look returns the look whose results a scrape gets, and begins a new one if it is time.
func (c *Collector) look() *look {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.last; l != nil {
		select {
		case <-l.done:
			if time.Since(l.began) < c.o.interval {
				return l
			}
		default:
			return l
		}
	}
	l := &look{began: time.Now(), done: make(chan struct{})}
	c.last = l
	go c.take(l)
	return l
}

// take carries out a look. It ends after the Timeout, or when the timeouts of the client of Redis
// are over if that does not follow contexts.
func (c *Collector) take(l *look) {
	ctx, cancel := context.WithTimeout(context.Background(), c.o.timeout)
	defer cancel()
	err := errors.New("the look was ended by a callback of the client of Redis")
	var seen []seen
	defer func() { // also if the client of Redis or a hook has panicked, or ended the goroutine
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		c.end(l, seen, err)
	}()
	seen, err = c.read(ctx)
	if err == nil {
		err = ctx.Err()
	}
}

// end keeps the results of a look, unless it was given up.
func (c *Collector) end(l *look, list []seen, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(l.done)
	if l.late {
		return
	}
	c.note(err)
	up := 0.0
	if err == nil || len(list) > 0 {
		up = 1
		l.found = c.state.metrics(c.constant, list)
	}
	l.found = append(l.found, c.about(l, up)...)
}

// giveUp ends a look that takes too long.
func (c *Collector) giveUp(l *look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-l.done:
	default:
		if !l.late {
			l.late = true
			c.note(fmt.Errorf("no answer from Redis within %v: %w", c.o.timeout, context.DeadlineExceeded))
			l.found = c.about(l, 0)
		}
	}
}

func (c *Collector) results(l *look) []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.found
}

// note counts the end of a look. Trouble is logged when it begins and when it ends.
func (c *Collector) note(err error) {
	log := c.o.log
	if log == nil {
		log = slog.Default()
	}
	switch {
	case err == nil:
		c.good = time.Now()
		if c.bad {
			log.Info("look works again", "prefix", c.insp.Prefix())
		}
	case !c.bad:
		log.Error("look failed", "prefix", c.insp.Prefix(), "err", err)
	}
	if c.bad = err != nil; c.bad {
		c.failed++
	}
}

// about returns what a look says about itself.
func (c *Collector) about(l *look, up float64) []prometheus.Metric {
	list := []prometheus.Metric{
		c.constant(redisUp, up), c.constant(lookDuration, time.Since(l.began).Seconds()), c.constant(lookErrorsTotal, float64(c.failed)),
	}
	if !c.good.IsZero() {
		list = append(list, c.constant(lastSuccess, float64(c.good.UnixMilli())/1000))
	}
	return list
}

// constant makes a series of a family.
func (c *Collector) constant(f *family, v float64, labels ...string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if f.kind == counter {
		kind = prometheus.CounterValue
	}
	m, err := prometheus.NewConstMetric(c.descs[f], kind, v, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(c.descs[f], err)
	}
	return m
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
