package prom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A watch takes the looks of a collector: one at a time, and none earlier than [MinInterval] after
// the last one began.
type watch struct {
	o     *options
	whose []any  // an attribute for the log
	at    string // what is asked

	// read returns what makes the series of what it has found, nil if it could read nothing. That
	// function is called with mu held.
	read func(ctx context.Context) (found func() []prometheus.Metric, err error)
	// about returns the series about the look itself. It is called with mu held.
	about func(l *look, up float64) []prometheus.Metric

	mu     sync.Mutex
	last   *look // nil before the first scrape
	failed int   // looks
	good   time.Time
	bad    bool // the last look failed
}

// A look is one look at a queue or an outbox.
type look struct {
	began time.Time
	done  chan struct{} // closed at the end
	late  bool          // the end came after the Timeout, or has not come yet; guarded by mu
	found []prometheus.Metric
}

// collect gives a scrape the results of a look.
func (w *watch) collect(ch chan<- prometheus.Metric) {
	l := w.look()
	timer := time.NewTimer(time.Until(l.began.Add(w.o.timeout)))
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
		w.giveUp(l)
	}
	for _, m := range w.results(l) {
		ch <- m
	}
}

// look returns the look whose results a scrape gets, and begins a new one if it is time.
func (w *watch) look() *look {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.last; l != nil {
		select {
		case <-l.done:
			if time.Since(l.began) < w.o.interval {
				return l
			}
		default:
			return l
		}
	}
	l := &look{began: time.Now(), done: make(chan struct{})}
	w.last = l
	go w.take(l)
	return l
}

// take carries out a look. It ends after the Timeout, or when the timeouts of the client of Redis
// are over if that does not follow contexts.
func (w *watch) take(l *look) {
	ctx, cancel := context.WithTimeout(context.Background(), w.o.timeout)
	defer cancel()
	err := errors.New("the look was ended by a callback of the client")
	var found func() []prometheus.Metric
	defer func() { // also if the client or a hook has panicked, or ended the goroutine
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		w.end(l, found, err)
	}()
	found, err = w.read(ctx)
	if err == nil {
		err = ctx.Err()
	}
}

// end keeps the results of a look, unless it was given up.
func (w *watch) end(l *look, found func() []prometheus.Metric, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(l.done)
	if l.late {
		return
	}
	w.note(err)
	up := 0.0
	if found != nil {
		up = 1
		l.found = found()
	}
	l.found = append(l.found, w.about(l, up)...)
}

// giveUp ends a look that takes too long.
func (w *watch) giveUp(l *look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-l.done:
	default:
		if !l.late {
			l.late = true
			w.note(fmt.Errorf("no answer from %s within %v: %w", w.at, w.o.timeout, context.DeadlineExceeded))
			l.found = w.about(l, 0)
		}
	}
}

func (w *watch) results(l *look) []prometheus.Metric {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.found
}

// note counts the end of a look. Trouble is logged when it begins and when it ends.
func (w *watch) note(err error) {
	log := w.o.log
	if log == nil {
		log = slog.Default()
	}
	switch {
	case err == nil:
		w.good = time.Now()
		if w.bad {
			log.Info("look works again", w.whose...)
		}
	case !w.bad:
		log.Error("look failed", append(w.whose[:len(w.whose):len(w.whose)], "err", err)...)
	}
	if w.bad = err != nil; w.bad {
		w.failed++
	}
}

// constant makes a series of a family.
func constant(desc *prometheus.Desc, f *family, v float64, labels ...string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if f.kind == counter {
		kind = prometheus.CounterValue
	}
	m, err := prometheus.NewConstMetric(desc, kind, v, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}
