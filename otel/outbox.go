package delayqotel

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

// OutboxStats is what a look at an outbox finds. It has the fields of outbox.Stats of the module
// delayq/outbox, so that a value of that can be converted. This module does not depend on that one.
type OutboxStats struct {
	Rows   int64         // that wait
	Oldest time.Duration // how long the oldest one has waited; 0: none waits
	Dead   int64         // that Redis has refused
	Later  int64         // that are due beyond the horizon
}

// ObserveOutbox registers metrics of an outbox: its rows, the age of the oldest one, dead rows, and
// rows beyond the horizon. The attribute outbox has the name, which should be that of its table,
// after that of the database if there are several. stats is called when a reader collects metrics,
// at most once per [MinInterval], by one goroutine at a time, and with 2 s left in its context. If
// it returns an error, the metrics are absent, except delayq.outbox_up, which is 0. The first such
// error in a row goes to the global error handler ([otel.SetErrorHandler]).
//
//	stats := func(ctx context.Context) (delayqotel.OutboxStats, error) {
//		s, err := ob.Stats(ctx, db)
//		return delayqotel.OutboxStats(s), err
//	}
//	_, err := delayqotel.ObserveOutbox("delayq_outbox", stats)
//
// It suffices to observe an outbox in one process. If several do, each gives the same numbers.
// [MeterProvider] and [MinInterval] apply. Unregister of the result ends it. Errors wrap
// [delayq.ErrInvalid] if the name is empty or not valid UTF-8, if stats is nil or if an option is
// invalid. Others are those of the provider.
func ObserveOutbox(name string, stats func(context.Context) (OutboxStats, error), opts ...MetricsOption) (metric.Registration, error) {
	b := &outbox{name: name, stats: stats, o: newMetricsOptions(opts), attrs: metric.WithAttributes(keyOutbox.String(name)), instruments: make(map[*family]metric.Float64Observable)}
	if name == "" || !utf8.ValidString(name) {
		b.o.refuse("ObserveOutbox(%q): the name must be text", name)
	}
	if stats == nil {
		b.o.refuse("ObserveOutbox: the function is nil")
	}
	if err := b.o.err(); err != nil {
		return nil, fmt.Errorf("observe outbox: %w", err)
	}
	meter := b.o.meter()
	all := make([]metric.Observable, 0, len(outboxFamilies))
	for _, f := range outboxFamilies {
		one, err := f.instrument(meter)
		if err != nil {
			return nil, fmt.Errorf("observe outbox: %w", err)
		}
		b.instruments[f], all = one, append(all, one)
	}
	registered, err := meter.RegisterCallback(b.observe, all...)
	if err != nil {
		return nil, fmt.Errorf("observe outbox: %w", err)
	}
	return registered, nil
}

var (
	outboxRows   = &family{"delayq.outbox_rows", "{row}", "Committed rows that wait for a relay. Counting ends at 10,000.", false}
	outboxOldest = &family{"delayq.outbox_oldest_row", "s", "How long the oldest row has waited, by the clock of the database. 0 if none waits.", false}
	outboxDead   = &family{"delayq.outbox_dead_rows", "{row}", "Rows that Redis has refused. Counting ends at 10,000.", false}
	outboxLater  = &family{"delayq.outbox_later_rows", "{row}", "Rows that are due beyond the horizon. Counting ends at 10,000.", false}
	outboxUp     = &family{"delayq.outbox_up", "", "1 if the last look at the outbox could read it.", false}
)

var outboxFamilies = []*family{outboxRows, outboxOldest, outboxDead, outboxLater, outboxUp}

// An outbox is what ObserveOutbox observes.
type outbox struct {
	name        string
	stats       func(context.Context) (OutboxStats, error)
	o           metricsOptions
	attrs       metric.MeasurementOption
	instruments map[*family]metric.Float64Observable

	mu    sync.Mutex
	began time.Time // the last look; zero: there was none
	last  OutboxStats
	err   error
}

// observe gives a reader the numbers of the last look, or of a new one.
func (b *outbox) observe(ctx context.Context, o metric.Observer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.began.IsZero() || time.Since(b.began) >= b.o.interval {
		b.look(ctx)
	}
	put := func(f *family, value float64) { o.ObserveFloat64(b.instruments[f], value, b.attrs) }
	if b.err != nil {
		put(outboxUp, 0)
		return nil // with an error, a reader would lose all other metrics too
	}
	put(outboxUp, 1)
	put(outboxRows, float64(b.last.Rows))
	put(outboxOldest, b.last.Oldest.Seconds())
	put(outboxDead, float64(b.last.Dead))
	put(outboxLater, float64(b.last.Later))
	return nil
}

// look reads the outbox.
func (b *outbox) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	b.began = time.Now()
	stats, err := b.stats(ctx)
	if err != nil && b.err == nil {
		otel.Handle(fmt.Errorf("delayqotel: look at outbox %q: %w", b.name, err))
	}
	b.last, b.err = stats, err
}
