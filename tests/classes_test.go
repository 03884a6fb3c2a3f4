package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// addTenants stores n jobs of a topic, with the keys of that many tenants in turn.
func addTenants(b *queuetest.Bubble, topic string, n, tenants int) {
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: topic, ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.Key(fmt.Sprint("t", i%tenants))}}
	}
	_, err := b.Client.EnqueueBatch(b.Context(), jobs)
	require.NoError(b, err)
}

// classStarts are the starts of jobs of a topic and its classes, in their order.
type classStarts struct {
	mu   sync.Mutex
	list []*delayq.Job
}

// handler returns one whose runs take d and end one after the other. A worker that becomes idle
// while a take of its topic is in flight goes to the other topic, so the shares of ten that end in
// the same instant depend on the scheduler.
func (s *classStarts) handler(d time.Duration) delayq.HandlerFunc {
	return func(_ context.Context, job *delayq.Job) error {
		s.mu.Lock()
		s.list = append(s.list, job)
		apart := time.Duration(len(s.list)%100) * 10 * time.Microsecond
		s.mu.Unlock()
		time.Sleep(d + apart)
		return nil
	}
}

// taken returns the starts since the last call.
func (s *classStarts) taken() []*delayq.Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	s.list = nil
	return list
}

// requireTurns checks that the first n jobs of a topic are of its tenants in turn.
func requireTurns(b *queuetest.Bubble, list []*delayq.Job, topic string, n, tenants int) {
	count, left := map[string]int{}, n
	for _, job := range list {
		if job.Topic == topic && left > 0 {
			left--
			count[job.Key]++
		}
	}
	require.Zero(b, left, "too few starts")
	require.Len(b, count, tenants)
	for key, starts := range count {
		require.InDelta(b, n/tenants, starts, 1, "%s of %s: %v", key, topic, count)
	}
}

// Urgent jobs of any tenant go before bulk jobs of any tenant, whether the pool has one worker or
// ten. In both topics the tenants take turns, and the bulk jobs run in the end. With ten workers
// and a weight of 10, the share of the bulk jobs is 6 starts.
func TestClasses(t *testing.T) {
	for _, c := range []struct{ size, weight, least, most int }{{1, 1000, 0, 1}, {10, 1000, 0, 2}, {10, 10, 4, 6}, {2, 4, 13, 17}} {
		t.Run(fmt.Sprintf("%d workers, weight %d", c.size, c.weight), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const bulk, urgent = 200, 60
				var starts classStarts
				queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					require.NoError(b, s.Handle("mail", starts.handler(10*time.Millisecond), delayq.Concurrency(c.size),
						delayq.Weight(c.weight), delayq.Class("mail:bulk")))
				})
				b.Pass(time.Second)
				addTenants(b, "mail:bulk", bulk, 20)
				b.Pass(35 * time.Millisecond)
				before := starts.taken()
				require.Len(b, before, 4*c.size, "a class that is alone has all workers")
				addTenants(b, "mail", urgent, 10)
				b.Pass(15 * time.Second)
				list := append(before, starts.taken()...)
				require.Len(b, list, bulk+urgent)
				left, passed := urgent, 0
				for i := len(before); left > 0; i++ {
					if list[i].Topic == "mail" {
						left--
					} else {
						passed++
					}
				}
				require.GreaterOrEqual(b, passed, c.least, "bulk jobs before the last urgent one")
				require.LessOrEqual(b, passed, c.most, "bulk jobs before the last urgent one")
				requireTurns(b, list, "mail", 40, 10)
				requireTurns(b, list, "mail:bulk", 100, 20)
			})
		})
	}
}

// Options of a class replace those of its topic. A class that may not have all workers leaves the
// others idle for urgent jobs, which start at once.
func TestClassOptions(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var starts classStarts
		run := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.Handle("mail", starts.handler(time.Second), delayq.Concurrency(5), delayq.Defaults(delayq.Retry(3)),
				delayq.Class("mail:bulk", delayq.Weight(50), delayq.Concurrency(4)), delayq.Class("mail:rest", delayq.Defaults(delayq.Retry(7)))))
			require.NoError(b, s.Handle("other", starts.handler(0)))
		})
		b.Pass(time.Second)
		addTenants(b, "mail:bulk", 10, 10)
		b.Pass(500 * time.Millisecond)
		require.Len(b, starts.taken(), 4)
		b.Enqueue("mail", "urgent")
		b.Pass(time.Millisecond)
		list := starts.taken()
		require.Len(b, list, 1)
		require.Equal(b, "mail", list[0].Topic)
		require.Equal(b, 3, list[0].RetriesLeft())
		b.Enqueue("mail:rest", "rest")
		b.Pass(5 * time.Second)
		for _, job := range starts.taken() {
			require.Equal(b, map[string]int{"mail:bulk": 3, "mail:rest": 7}[job.Topic], job.RetriesLeft(), job.Topic)
		}
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		for topic, want := range map[string][]any{
			"mail": {"mail", 5, 1000, 5}, "mail:bulk": {"mail", 5, 50, 4}, "mail:rest": {"mail", 5, 1, 5}, "other": {"", 0, 0, 10},
		} {
			s := servers[0].Topics[topic]
			require.Equal(b, want, []any{s.Pool, s.PoolSize, s.Weight, s.Workers}, topic)
		}

		// Each is a topic of its own. A set that is added to a running server is a new pool.
		for _, topic := range []string{"mail", "mail:bulk"} {
			require.NoError(b, run.Server.Remove(b.Context(), topic))
		}
		handle := func() error {
			return run.Server.Handle("mail", starts.handler(time.Second), delayq.Concurrency(2), delayq.Class("mail:bulk"), delayq.Class("mail:rest"))
		}
		require.ErrorIs(b, handle(), delayq.ErrInvalid)
		b.Enqueue("mail", "nobody")
		b.Pass(5 * time.Second)
		require.Equal(b, delayq.StateReady, b.State("mail", "nobody"), "nothing was set")
		require.NoError(b, run.Server.Remove(b.Context(), "mail:rest"))
		require.NoError(b, handle())
		addTenants(b, "mail:bulk", 10, 10)
		b.Pass(500 * time.Millisecond)
		require.Len(b, starts.taken(), 2)
		b.Pass(20 * time.Second)
	})
}

// Batches and typed topics have classes, too.
func TestClassesOfOthers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var ran, sizes sync.Map
		typed, bulk := delayq.NewTopic[string]("typed"), delayq.NewTopic[string]("typed:bulk")
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, typed.Handle(s, func(_ context.Context, job *delayq.Job, value string) error {
				ran.Store(job.Topic, value)
				return nil
			}, delayq.Class("typed:bulk")))
			require.NoError(b, s.HandleBatch("batch", func(_ context.Context, jobs []*delayq.Job) error {
				sizes.Store(jobs[0].Topic, len(jobs))
				return nil
			}, delayq.BatchSize(5), delayq.Class("batch:bulk", delayq.BatchSize(20))))
		})
		addTenants(b, "batch", 5, 1)
		addTenants(b, "batch:bulk", 20, 1)
		for topic, value := range map[*delayq.Topic[string]]string{typed: "now", bulk: "later"} {
			_, err := topic.Enqueue(b.Context(), b.Client, "a", value)
			require.NoError(b, err)
		}
		b.Pass(time.Second)
		for of, want := range map[*sync.Map]map[string]any{
			&ran: {"typed": "now", "typed:bulk": "later"}, &sizes: {"batch": 5, "batch:bulk": 20},
		} {
			for topic, value := range want {
				got, _ := of.Load(topic)
				require.Equal(b, value, got, topic)
			}
		}
	})
}

// A job is cancelled by its ID in whichever class it is, and its ID is closed in all of them.
func TestCancelInClasses(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for i, topic := range []string{"mail", "mail:bulk"} {
			id := fmt.Sprint(i)
			_, err := f.Client.Enqueue(t.Context(), topic, id, nil, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
			refs := []delayq.JobRef{{Topic: "mail", ID: id}, {Topic: "mail:bulk", ID: id}}
			results, err := f.Client.CancelBatch(t.Context(), refs, delayq.Tombstone(time.Hour))
			require.NoError(t, delayq.ErrorsExcept(results, err, delayq.ErrNotFound))
			require.Equal(t, delayq.StateScheduled, results[i].State)
			for _, ref := range refs {
				_, err := f.Client.Enqueue(t.Context(), ref.Topic, ref.ID, nil)
				require.ErrorIs(t, err, delayq.ErrDuplicate)
			}
		}
	})
}

// What is wrong with classes is an error of Handle and of Run.
func TestClassMisuse(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never called
	defer rdb.Close()
	handle := func(topic string, opts ...delayq.HandlerOption) error {
		s := delayq.NewServer(rdb, delayq.Pool("p", 5), delayq.Pool("taken", 5))
		err := s.HandlerFunc(topic, queuetest.Nothing, opts...)
		if err != nil {
			require.ErrorIs(t, s.Run(t.Context()), delayq.ErrInvalid)
		}
		return err
	}
	for want, err := range map[string]error{
		`Class is for topics, and the topic is a pattern`:   handle("a*", delayq.Class("b")),
		`Class("b*"): it is a pattern`:                      handle("a", delayq.Class("b*")),
		`Class("a"): the topic is given twice`:              handle("a", delayq.Class("a")),
		`Class("b"): the topic is given twice`:              handle("a", delayq.Class("b"), delayq.Class("b")),
		`Class("b"): a class has no classes`:                handle("a", delayq.Class("b", delayq.Class("c"))),
		`Class("b"): it is in the pool of its topic`:        handle("a", delayq.Class("b", delayq.InPool("p"))),
		`Class("b"): Weight(0): must be from 1`:             handle("a", delayq.Class("b", delayq.Weight(0))),
		`Class("b"): a handler option is nil`:               handle("a", delayq.Class("b", nil)),
		`Class("{"): topic "{" has`:                         handle("a", delayq.Class("{")),
		`the server has a Pool("taken"), and the topic is `: handle("taken", delayq.Class("b")),
		`InPool("q"): the server has no such Pool`:          handle("a", delayq.InPool("q"), delayq.Class("b")),
	} {
		require.ErrorIs(t, err, delayq.ErrInvalid, want)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, handle("a", delayq.InPool("p"), delayq.Class("b", delayq.InPool("p"), delayq.Weight(7))))
}
