package delayqtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// drain is how long handlers may continue after a server of Serve is stopped.
const drain = time.Second

// A served is a server that Serve runs.
type served struct {
	server *delayq.Server
	watch  watch
	topics []string // topics that it handles
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // what Run returned; read it after done
	once   sync.Once     // of the stop
}

// Serve starts a server in the background and returns when it is up. setup registers the handlers
// and middleware. The options are those of [delayq.NewServer], except the Prefix, which is that of
// the queue; Drain is 1 s by default. Several servers can run simultaneously. Advance runs only
// jobs of topics that servers of Serve handle.
//
// stop stops the server as the end of Run's context does, waits for it, and returns the error of
// Run. A second call does nothing. Close stops all servers that are still running. The error of
// Serve is that of Run, for example [delayq.ErrInvalid] for a server without handlers.
func (q *Queue) Serve(setup func(*delayq.Server), opts ...delayq.ServerOption) (stop func() error, err error) {
	if setup == nil {
		return nil, errors.New("delayqtest: serve: nil function")
	}
	s := &served{watch: watch{queue: q}, done: make(chan struct{})}
	opts = slices.Concat([]delayq.ServerOption{delayq.Drain(drain)}, opts,
		// the watch comes after all hooks of the caller
		[]delayq.ServerOption{delayq.Prefix(q.Prefix), delayq.Hooks(&s.watch)})
	s.server = delayq.NewServer(q.Redis, opts...)
	setup(s.server)

	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	if err := q.add(s); err != nil {
		s.cancel()
		return nil, err
	}
	go func() {
		defer close(s.done)
		s.err = s.server.Run(ctx)
	}()
	if err := q.awaitUp(s); err != nil {
		return nil, cmp.Or(q.stop(s), fmt.Errorf("delayqtest: serve: %w", err))
	}
	return func() error { return q.stop(s) }, nil
}

func (q *Queue) add(s *served) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errors.New("delayqtest: serve: the queue is closed")
	}
	q.servers = append(q.servers, s)
	return nil
}

// awaitUp waits until a server listens to the control channel and has sent a heartbeat, and records
// which topics it handles.
func (q *Queue) awaitUp(s *served) error {
	ctx, cancel := context.WithTimeout(context.Background(), q.Limit)
	defer cancel()
	for p := new(pace); ; {
		select {
		case <-s.done:
			return errors.New("the server has stopped") // stop returns the reason
		default:
		}
		all, err := q.Inspector.Servers(ctx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(all, func(info delayq.ServerInfo) bool { return info.ID == s.server.ID() })
		if at >= 0 && q.listeners() >= q.running() {
			q.mu.Lock()
			defer q.mu.Unlock()
			s.topics = slices.Collect(maps.Keys(all[at].Topics))
			return nil
		}
		if !p.wait(ctx, nil) {
			return fmt.Errorf("the server is not up after %v", q.Limit)
		}
	}
}

// listeners returns the number of subscribers of the control channel: one for every running server.
func (q *Queue) listeners() int {
	channel := script.ControlChannel(q.Prefix)
	return q.Miniredis.PubSubNumSub(channel)[channel]
}

func (q *Queue) running() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.servers)
}

// stop stops a server and removes it. Only the first call returns the server's error.
func (q *Queue) stop(s *served) (err error) {
	s.once.Do(func() {
		s.cancel()
		<-s.done
		if s.err != nil {
			err = fmt.Errorf("delayqtest: server: %w", s.err)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		q.servers = slices.DeleteFunc(q.servers, func(other *served) bool { return other == s })
	})
	return err
}

// A watch is the hook that tells a queue when the handlers of a server have returned and all other
// hooks have received it.
type watch struct {
	queue   *Queue
	engine  *serve.Server
	running int // runs that started and have no outcome yet; guarded by the queue's mu
}

// Attach implements [serve.Looker].
func (w *watch) Attach(s *serve.Server) { w.engine = s }

// Started and the other methods are the hooks.
func (w *watch) Started(delayq.RunEvent) {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	w.running++
}

func (w *watch) Done(e delayq.RunEvent)      { w.ended(e) }
func (w *watch) Again(e delayq.RunEvent)     { w.ended(e) }
func (w *watch) Retried(e delayq.RunEvent)   { w.ended(e) }
func (w *watch) Snoozed(e delayq.RunEvent)   { w.ended(e) }
func (w *watch) Buried(e delayq.RunEvent)    { w.ended(e) }
func (w *watch) Expired(e delayq.RunEvent)   { w.ended(e) }
func (w *watch) Returned(e delayq.RunEvent)  { w.ended(e) }
func (w *watch) Held(e delayq.RunEvent)      { w.ended(e) }
func (w *watch) Cancelled(e delayq.RunEvent) { w.ended(e) }
func (w *watch) Replaced(e delayq.RunEvent)  { w.ended(e) }
func (w *watch) LeaseLost(e delayq.RunEvent) { w.ended(e) }

func (w *watch) ended(e delayq.RunEvent) {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	if !e.StartedAt.IsZero() { // otherwise it never started: it had expired, for example
		w.running--
	}
	counter := delayq.Counter(e.Outcome)
	if e.Outcome == delayq.OutcomeAgain {
		counter = delayq.CounterAcked // it counts as both
	}
	w.queue.told[outcome{e.Topic, counter}]++
	select {
	case w.queue.ended <- struct{}{}:
	default:
	}
}
