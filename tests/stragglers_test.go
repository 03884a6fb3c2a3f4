package tests

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A stubborn handler returns a while after the end of its context.
type stubborn struct {
	mu       sync.Mutex
	running  map[string]int
	most     map[string]int // the most handlers of each key that have run at a time
	started  map[string]time.Time
	returned map[string]time.Time
}

func newStubborn() *stubborn {
	return &stubborn{running: map[string]int{}, most: map[string]int{}, started: map[string]time.Time{}, returned: map[string]time.Time{}}
}

// handler returns a handler that ends a job whose ID is "first" only after ctx, and d later.
func (s *stubborn) handler(d time.Duration) delayq.HandlerFunc {
	return func(ctx context.Context, job *delayq.Job) error {
		s.mu.Lock()
		s.running[job.Key]++
		s.most[job.Key] = max(s.most[job.Key], s.running[job.Key])
		s.started[job.ID] = time.Now()
		s.mu.Unlock()
		if job.ID == "first" {
			<-ctx.Done()
			time.Sleep(d)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running[job.Key]--
		s.returned[job.ID] = time.Now()
		return nil
	}
}

// at returns when the handler of a job was called, and when that of the first one returned.
func (s *stubborn) at(id string) (started, returned time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started[id], s.returned["first"]
}

// cuts are the ways in which a job is taken from a handler that goes on.
var cuts = map[string]func(b *queuetest.Bubble, key []delayq.JobOption){
	"cancel": func(b *queuetest.Bubble, _ []delayq.JobOption) {
		found, err := b.Client.Dequeue(b.Context(), "a", "first")
		require.NoError(b, err)
		require.Equal(b, delayq.StateRunning, found)
	},
	"replace": func(b *queuetest.Bubble, key []delayq.JobOption) {
		b.Enqueue("a", "first", append(key, delayq.Replace(), delayq.ProcessIn(time.Hour))...)
	},
	"apply": func(b *queuetest.Bubble, _ []delayq.JobOption) {
		done, err := b.Client.Apply(b.Context(), delayq.Query{Topic: "a", State: delayq.StateRunning}, delayq.Cancel())
		require.NoError(b, err)
		require.EqualValues(b, 1, done.Done)
	},
}

var stragglerPlaces = map[string]delayq.Limits{
	"topic": {Running: 1}, "key": {RunningPerKey: 1}, "order": {Ordered: true},
}

// eachStraggler runs a job whose handler goes on after it was cut off, while another one waits for
// its place in the topic, in the limit of its key or in the order of its key.
func eachStraggler(t *testing.T, d time.Duration, test func(b *queuetest.Bubble, s *stubborn, first *queuetest.Wire, cut func())) {
	for name, cut := range cuts {
		for place, limits := range stragglerPlaces {
			for waiter, topics := range waiters {
				t.Run(fmt.Sprintf("%s, place of %s, %s", name, place, waiter), func(t *testing.T) {
					queuetest.InBubble(t, func(b *queuetest.Bubble) {
						require.NoError(b, b.Client.SetLimits(b.Context(), "a", limits))
						s, wire := newStubborn(), queuetest.NewWire(b.Redis)
						serve := func(w *queuetest.Wire) {
							queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(server *delayq.Server) {
								require.NoError(b, server.HandlerFunc("a", s.handler(d), delayq.Concurrency(5)))
								for i := range topics - 1 {
									require.NoError(b, server.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing))
								}
							}, delayq.Lease(10*time.Second), delayq.Drain(0))
						}
						serve(wire)
						b.Pass(100 * time.Millisecond)
						var key []delayq.JobOption
						if place != "topic" {
							key = append(key, delayq.Key("k"))
						}
						b.Enqueue("a", "first", key...)
						b.Pass(1400 * time.Millisecond)
						serve(queuetest.NewWire(b.Redis))
						b.Pass(1600 * time.Millisecond)
						b.Enqueue("a", "next", key...)
						b.Pass(370 * time.Millisecond)
						test(b, s, wire, func() { cut(b, key) })
					})
				})
			}
		}
	}
}

// The place of a job that was cancelled or replaced while it ran is free at the very moment at
// which its handler returns, and not before.
func TestStragglerKeepsItsPlace(t *testing.T) {
	const more = 3*time.Second + 730*time.Millisecond
	eachStraggler(t, more, func(b *queuetest.Bubble, s *stubborn, _ *queuetest.Wire, cut func()) {
		cut()
		began := time.Now()
		b.Pass(time.Second)
		started, _ := s.at("next")
		require.Zero(b, started, "the handler of the first job still runs")
		why, err := b.Inspector.Explain(b.Context(), "a", "next")
		require.NoError(b, err)
		require.Equal(b, 1, why.Reasons[0].Stragglers, why.Verdict)
		b.Pass(more)
		started, returned := s.at("next")
		require.WithinDuration(b, began.Add(more), returned, atOnce)
		require.WithinDuration(b, returned, started, atOnce)
		require.False(b, started.Before(returned))
		require.Equal(b, 1, max(s.most["k"], s.most[""]))
		b.Pass(time.Second)
		require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:holders").Val(), "nothing is left")
	})
}

// If the server of a straggler is cut off from Redis, its place is free when the lease would have
// been over.
func TestStragglerOfADeadServer(t *testing.T) {
	eachStraggler(t, time.Minute, func(b *queuetest.Bubble, s *stubborn, first *queuetest.Wire, cut func()) {
		end := b.RDB.ZScore(b.Context(), queuetest.Prefix+":{a}:leases", "first").Val()
		over := time.UnixMicro(int64(end * 1000))
		first.Freeze()
		cut()
		b.Pass(time.Until(over) - 10*time.Millisecond)
		started, _ := s.at("next")
		require.Zero(b, started)
		b.Pass(900 * time.Millisecond)
		started, _ = s.at("next")
		require.WithinDuration(b, over, started, atOnce)
		b.Pass(time.Second)
		require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:holders").Val(), "nothing is left")
		b.Pass(time.Minute) // the handler returns
	})
}

// A handler that outlives its server's drain keeps its place until the lease that its job had is
// over. In a topic without limits, the job that was given back runs at once.
func TestStragglerOfAStoppedServer(t *testing.T) {
	places := map[string]delayq.Limits{"none": {}}
	maps.Copy(places, stragglerPlaces)
	for place, limits := range places {
		t.Run(place, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", limits))
				s := newStubborn()
				first := b.Serve("a", s.handler(time.Minute), delayq.Lease(10*time.Second), delayq.Drain(0))
				b.Enqueue("a", "first", delayq.Key("k"))
				b.Pass(time.Second)
				b.Serve("a", s.handler(0), delayq.Lease(10*time.Second), delayq.Drain(0))
				end := b.RDB.ZScore(b.Context(), queuetest.Prefix+":{a}:leases", "first").Val()
				free := time.UnixMicro(int64(end * 1000))
				require.NoError(b, first.Stop())
				if place == "none" {
					free = time.Now()
				}
				b.Pass(time.Until(free) + 500*time.Millisecond)
				started, _ := s.at("first")
				require.WithinDuration(b, free, started, 10*time.Millisecond)
				b.Pass(time.Minute) // the first handler returns
			})
		})
	}
}

// serveOne serves a topic that gets a limit of one running job if it has no limits.
func serveOne(b *queuetest.Bubble, h delayq.HandlerFunc) {
	queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(server *delayq.Server) {
		require.NoError(b, server.HandlerFunc("a", h, delayq.DefaultLimits(delayq.Limits{Running: 1})))
	}, delayq.Lease(time.Hour))
}

// Limits that are set while a job runs count its handler once the job is cancelled. The place is
// free when the handler returns, also if its server does not know of the limits yet.
func TestStragglerUnderNewLimits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := newStubborn()
		b.Serve("a", s.handler(time.Second), delayq.Lease(time.Hour))
		b.Enqueue("a", "first")
		b.Pass(time.Second)
		serveOne(b, s.handler(0))
		b.Pass(time.Second)
		_, err := b.Client.Dequeue(b.Context(), "a", "first")
		require.NoError(b, err)
		b.Enqueue("a", "next")
		b.Pass(2 * time.Second)
		started, returned := s.at("next")
		require.WithinDuration(b, returned, started, time.Second)
		require.False(b, started.Before(returned))
		require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:holders").Val(), "nothing is left")
	})
}

// DefaultLimits beside limits that somebody has taken away make no straggler.
func TestNoStragglerWithoutLimits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{}))
		serveOne(b, newStubborn().handler(time.Second))
		b.Enqueue("a", "first")
		b.Pass(time.Second)
		_, err := b.Client.Dequeue(b.Context(), "a", "first")
		require.NoError(b, err)
		require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:holders").Val())
		b.Pass(2 * time.Second)
	})
}
