package prom

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/delayq/delayq"
)

// A MetricsOption configures [Metrics]: [MaxTopics] or [TopicLabel].
type MetricsOption interface{ applyMetrics(*options) }

// A CollectorOption configures a [Collector]: [MaxTopics], [TopicLabel], [MinInterval], [Timeout]
// or [Logger]. The last three also configure an [OutboxCollector].
type CollectorOption interface{ applyCollector(*options) }

// An Option configures both.
type Option interface {
	MetricsOption
	CollectorOption
}

type options struct {
	maxTopics int
	label     func(string) string
	interval  time.Duration
	timeout   time.Duration
	log       *slog.Logger // nil: slog.Default when it is needed
	errs      []error
}

var defaults = options{maxTopics: 200, interval: 5 * time.Second, timeout: 2 * time.Second}

func (o *options) refuse(format string, args ...any) {
	o.errs = append(o.errs, fmt.Errorf(format, args...))
}

// err joins the complaints.
func (o *options) err() error {
	if len(o.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", delayq.ErrInvalid, errors.Join(o.errs...))
}

type both func(*options)

func (f both) applyMetrics(o *options)   { f(o) }
func (f both) applyCollector(o *options) { f(o) }

type collectorOption func(*options)

func (f collectorOption) applyCollector(o *options) { f(o) }

// MaxTopics is how many values the label topic has at most, [Other] excepted. Topics beyond it are
// added up under Other. Topics that have series of their own keep them as long as they exist.
// Range: 1 to 10,000. Default: 200.
//
// A topic has up to 70 series in [Metrics], and 52 in a [Collector].
func MaxTopics(n int) Option {
	return both(func(o *options) {
		if o.maxTopics = n; n < 1 || n > 10_000 {
			o.refuse("MaxTopics(%d): must be from 1 to 10000", n)
		}
	})
}

// TopicLabel sets the function that returns the value of the label topic for a topic, for example
// "tenant" for "tenant.123". Topics with the same label share its series. Without it the label is
// the topic. An empty label stands for [Other], and so does a panic of the function. Bytes that are
// not valid UTF-8 are replaced.
//
// The function is called by several goroutines at the same time. [Metrics] remembers the labels of
// some thousands of topics.
func TopicLabel(f func(topic string) string) Option {
	return both(func(o *options) {
		if o.label = f; f == nil {
			o.refuse("TopicLabel(nil): must be a function")
		}
	})
}

// MinInterval is the shortest time between two looks at the queue or the outbox. A scrape that
// comes earlier gets what the last look has found. Range: 0 to 1 h. Default: 5 s.
func MinInterval(d time.Duration) CollectorOption {
	return collectorOption(func(o *options) {
		if o.interval = d; d < 0 || d > time.Hour {
			o.refuse("MinInterval(%v): must be from 0s to 1h", d)
		}
	})
}

// Timeout is how long a scrape waits for Redis or the database at most. Then it goes without the
// state of the queue or the outbox. Range: 1 ms to 1 min. Default: 2 s.
func Timeout(d time.Duration) CollectorOption {
	return collectorOption(func(o *options) {
		if o.timeout = d; d < time.Millisecond || d > time.Minute {
			o.refuse("Timeout(%v): must be from 1ms to 1m", d)
		}
	})
}

// Logger sets the logger of a collector. It logs "look failed" with the error when looks begin to
// fail, and "look works again" when they succeed again. Default: slog.Default().
func Logger(log *slog.Logger) CollectorOption {
	return collectorOption(func(o *options) {
		if o.log = log; log == nil {
			o.refuse("Logger(nil): must be a logger")
		}
	})
}
