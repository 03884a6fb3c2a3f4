package await

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/listen"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// deafFor is how long a client that may not subscribe waits until it asks again.
const deafFor = time.Minute

// A subscription is that of a client, from the first wait until linger after the last one.
type subscription struct {
	of   *Waits
	ctx  context.Context
	end  context.CancelFunc
	slow loop.Pace
	idle *time.Timer // ends it, if nobody waits
}

// listen makes sure that there is a subscription.
func (w *Waits) listen() {
	if w.sub != nil {
		if w.sub.idle != nil {
			w.sub.idle.Stop()
			w.sub.idle = nil
		}
		return
	}
	w.sub = &subscription{of: w}
	w.sub.ctx, w.sub.end = context.WithCancel(context.Background())
	w.sub.start(0)
}

// close ends a subscription if nobody waits.
func (s *subscription) close() {
	w := s.of
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == 0 && w.sub == s {
		w.sub, w.deaf = nil, false
		s.end()
	}
}

// start starts the goroutine of a subscription, and after a crash another one. Functions of the
// user run on it, such as a Dialer.
func (s *subscription) start(wait time.Duration) {
	contain.Launch(nil, func() {
		if wait == 0 || loop.Sleep(s.ctx, wait) {
			s.run()
		}
	}, func(*contain.Crash) { s.start(s.slow.Next()) })
}

// run listens until the subscription or the caller's client is closed.
func (s *subscription) run() {
	first := true
	for s.ctx.Err() == nil {
		began := time.Now()
		err := s.hear()
		if s.ctx.Err() != nil {
			return
		}
		if errors.Is(err, redis.ErrClosed) {
			s.closed(err)
			return
		}
		if time.Since(began) > loop.PaceLimit {
			s.slow.Reset()
			first = true
		}
		switch {
		case script.Code(err) == script.CodeNoPerm:
			s.refused()
			loop.Sleep(s.ctx, deafFor)
		case !first: // after the first failure it finds out at once whether the client is closed
			loop.Sleep(s.ctx, s.slow.Next())
		}
		first = false
	}
}

// hear subscribes, and reads messages until something fails.
func (s *subscription) hear() error {
	return listen.Read(s.ctx, s.of.Redis, []string{s.of.channel}, link.CallTimeout, func(msg any) {
		switch m := msg.(type) {
		case *redis.Message:
			s.of.told(m.Payload)
		case *redis.Subscription:
			s.subscribed()
		}
	})
}

// told looks at the jobs that a message is about.
func (w *Waits) told(text string) {
	m, ok := record.DecodeMessage(text)
	if !ok || m.Verb != "look" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.topics[m.Topic]; t != nil {
		for _, one := range t.targets[m.Job] {
			w.mark(one)
		}
	}
}

// subscribed looks at everything: messages until now were lost.
func (s *subscription) subscribed() {
	w := s.of
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == s {
		w.deaf = false
		w.each(w.mark)
	}
}

// refused makes the client look often, because it may not subscribe.
func (s *subscription) refused() {
	w := s.of
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub != s {
		return
	}
	w.deaf = true
	w.each(func(one *target) {
		if !one.due.IsZero() {
			w.rest(one, true)
		}
	})
}

// closed ends everything, because the caller has closed its go-redis client.
func (s *subscription) closed(err error) {
	w := s.of
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == s {
		w.sub = nil
		s.end()
		w.fail(err)
	}
}
