package tests

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A gathered batch is one call of a handler: when it came, since the beginning, and its jobs.
type gathered struct {
	at   time.Duration
	keys []string
	ids  []string
}

// A gatherer notes the batches of its handlers.
type gatherer struct {
	b  *queuetest.Bubble
	mu sync.Mutex
	of []gathered
}

func (g *gatherer) handle(_ context.Context, jobs []*delayq.Job) error {
	one := gathered{at: g.b.At()}
	for _, job := range jobs {
		one.ids = append(one.ids, job.ID)
		if !slices.Contains(one.keys, job.Key) {
			one.keys = append(one.keys, job.Key)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of = append(g.of, one)
	return nil
}

// batches returns the batches so far, and forgets them.
func (g *gatherer) batches() []gathered {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.of
	g.of = nil
	return list
}

// sizes returns the numbers of jobs of batches.
func sizes(list []gathered) (n []int) {
	for _, one := range list {
		n = append(n, len(one.ids))
	}
	return n
}

// serveGathered starts a server with a batch handler of topic a.
func serveGathered(b *queuetest.Bubble, f delayq.BatchHandlerFunc, opts ...delayq.HandlerOption) *queuetest.Running {
	b.Helper()
	return serveGatheredOn(b, b.RDB, f, opts...)
}

func serveGatheredOn(b *queuetest.Bubble, rdb redis.UniversalClient, f delayq.BatchHandlerFunc, opts ...delayq.HandlerOption) *queuetest.Running {
	b.Helper()
	return queuetest.ServeMany(b.T, rdb, queuetest.Prefix, func(s *delayq.Server) {
		require.NoError(b, s.HandleBatch("a", f, opts...))
	}, delayq.Lease(10*time.Second))
}

func enqueueSome(b *queuetest.Bubble, name string, n int, opts ...delayq.JobOption) {
	for i := range n {
		b.Enqueue("a", fmt.Sprintf("%s%02d", name, i), opts...)
	}
}

const few = 5 * time.Millisecond // the way to the handler

// Jobs without a key wait until there are enough, or for the time of the window, on all servers
// together.
func TestGather(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := &gatherer{b: b}
		window := delayq.Gather(delayq.GatherWindow{Size: 10, Wait: 3 * time.Second})
		for range 2 {
			serveGathered(b, g.handle, delayq.BatchSize(20), delayq.Concurrency(1), window)
		}
		b.Pass(10 * time.Second)

		began := b.At()
		enqueueSome(b, "few", 4)
		b.Pass(2900 * time.Millisecond)
		require.Empty(b, g.batches())
		b.Pass(200 * time.Millisecond)
		list := g.batches()
		require.Equal(b, []int{4}, sizes(list))
		require.InDelta(b, began+3*time.Second, list[0].at, float64(few))

		began = b.At()
		enqueueSome(b, "enough", 9)
		b.Pass(time.Second)
		require.Empty(b, g.batches())
		enqueueSome(b, "last", 1)
		b.Pass(few)
		list = g.batches()
		require.Equal(b, []int{10}, sizes(list))
		require.InDelta(b, began+time.Second, list[0].at, float64(few))

		enqueueSome(b, "later", 12, delayq.ProcessIn(2*time.Second))
		b.Pass(2*time.Second + few)
		require.Equal(b, []int{12}, sizes(g.batches()), "promoted together")

		b.Pass(time.Second)
		began = b.At()
		enqueueSome(b, "many", 45)
		b.Pass(10 * time.Second)
		list = g.batches()
		total := 0
		for i, one := range list {
			total += len(one.ids)
			require.LessOrEqual(b, len(one.ids), 20)
			if i < len(list)-1 {
				require.GreaterOrEqual(b, len(one.ids), 10)
			}
		}
		require.Equal(b, 45, total)
		require.LessOrEqual(b, list[len(list)-1].at, began+3*time.Second+few)

		e := b.Enqueue("a", "waits")
		b.Pass(time.Second)
		x, err := b.Inspector.Explain(b.Context(), "a", e.ID)
		require.NoError(b, err)
		require.Equal(b, delayq.ReasonGathering, x.Reasons[0].Code)
		require.Equal(b, 2*time.Second, x.Reasons[0].Until.Sub(x.At).Round(10*time.Millisecond))
	})
}

// The window of a job that is cancelled is over when it ends: the next job has one of its own.
func TestGatherAfterACancel(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := &gatherer{b: b}
		serveGathered(b, g.handle, delayq.Gather(delayq.GatherWindow{Size: 10, Wait: 3 * time.Second}))
		b.Pass(time.Second)
		enqueueSome(b, "x", 1)
		b.Pass(time.Second)
		_, err := b.Client.Dequeue(b.Context(), "a", "x00")
		require.NoError(b, err)
		b.Pass(10 * time.Second)
		require.Empty(b, g.batches())
		enqueueSome(b, "y", 1)
		b.Pass(2900 * time.Millisecond)
		require.Empty(b, g.batches())
		b.Pass(200 * time.Millisecond)
		require.Equal(b, []int{1}, sizes(g.batches()))
	})
}

// Each key gathers its own jobs, and a batch has those of one key.
func TestGatherByKey(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := &gatherer{b: b}
		window := delayq.Gather(delayq.GatherWindow{Size: 5, Wait: 3 * time.Second, ByKey: true})
		for range 2 {
			serveGathered(b, g.handle, delayq.BatchSize(8), delayq.Concurrency(2), window)
		}
		b.Pass(10 * time.Second)

		began := b.At()
		enqueueSome(b, "a", 3, delayq.Key("a"))
		b.Pass(time.Second)
		enqueueSome(b, "b", 4, delayq.Key("b"))
		b.Pass(time.Second)
		require.Empty(b, g.batches())
		enqueueSome(b, "bb", 1, delayq.Key("b")) // enough
		b.Pass(few)
		list := g.batches()
		require.Equal(b, []int{5}, sizes(list))
		require.Equal(b, []string{"b"}, list[0].keys)
		enqueueSome(b, "plain", 2) // are not gathered
		b.Pass(few)
		require.Equal(b, []string{""}, g.batches()[0].keys)
		x, err := b.Inspector.Explain(b.Context(), "a", "a01")
		require.NoError(b, err)
		require.Equal(b, delayq.ReasonGathering, x.Reasons[0].Code)
		b.Pass(time.Second)
		list = g.batches()
		require.Equal(b, []int{3}, sizes(list))
		require.InDelta(b, began+3*time.Second, list[0].at, float64(few))

		for i := range 6 { // more keys than workers, and more jobs than a batch
			enqueueSome(b, fmt.Sprintf("many%d-", i), 20, delayq.Key(fmt.Sprintf("many%d", i)))
		}
		b.Pass(5 * time.Second)
		total := 0
		for _, one := range g.batches() {
			require.Len(b, one.keys, 1, "%v", one.ids)
			require.LessOrEqual(b, len(one.ids), 8)
			total += len(one.ids)
		}
		require.Equal(b, 120, total)
	})
}

// What a crashed server has gathered runs again in one batch, as soon as its leases are over.
func TestGatherByKeyAfterACrash(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		window := delayq.Gather(delayq.GatherWindow{Size: 5, Wait: time.Hour, ByKey: true})
		w := queuetest.NewWire(b.Redis)
		serveGatheredOn(b, w.Client(b.T), func(ctx context.Context, _ []*delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}, window)
		enqueueSome(b, "x", 5, delayq.Key("k"))
		b.Pass(time.Second)
		w.Freeze()
		g := &gatherer{b: b}
		serveGathered(b, g.handle, window)
		b.Pass(5 * time.Second)
		require.Empty(b, g.batches())
		b.Pass(10 * time.Second)
		require.Equal(b, []int{5}, sizes(g.batches()))
	})
}

func TestGatherIsChecked(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer rdb.Close()
	for _, wrong := range []struct {
		opts []delayq.HandlerOption
		want string
	}{
		{[]delayq.HandlerOption{delayq.Gather(delayq.GatherWindow{Size: 101, Wait: time.Second})}, "GatherWindow.Size(101): must be from 1 to the BatchSize, 100"},
		{[]delayq.HandlerOption{delayq.Gather(delayq.GatherWindow{Size: -1, Wait: time.Second})}, "GatherWindow.Size(-1)"},
		{[]delayq.HandlerOption{delayq.Gather(delayq.GatherWindow{})}, "GatherWindow.Wait(0s): must be from 1ms to 24h0m0s"},
		{[]delayq.HandlerOption{delayq.Gather(delayq.GatherWindow{Wait: 25 * time.Hour})}, "GatherWindow.Wait(25h0m0s)"},
		{[]delayq.HandlerOption{delayq.BatchSize(251), delayq.Gather(delayq.GatherWindow{Wait: time.Second, ByKey: true})}, "BatchSize(251): must be at most 250 with GatherWindow.ByKey"},
		{[]delayq.HandlerOption{delayq.InPool("p"), delayq.Gather(delayq.GatherWindow{Wait: time.Second, ByKey: true})}, "GatherWindow.ByKey and InPool"},
	} {
		server := delayq.NewServer(rdb, delayq.Pool("p", 2))
		err := server.HandleBatch("a", func(context.Context, []*delayq.Job) error { return nil }, wrong.opts...)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorContains(t, err, wrong.want)
	}
	all := delayq.NewServer(rdb, delayq.Pool("p", 2), delayq.InPool("p"))
	err := all.HandleBatch("a", func(context.Context, []*delayq.Job) error { return nil }, delayq.Gather(delayq.GatherWindow{Wait: time.Second, ByKey: true}))
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.ErrorContains(t, err, "GatherWindow.ByKey and InPool")
	server := delayq.NewServer(rdb)
	err = server.HandlerFunc("a", queuetest.Nothing, delayq.Gather(delayq.GatherWindow{Wait: time.Second}))
	require.ErrorContains(t, err, "Gather is for HandleBatch")
}

// IDs that only wake servers are no jobs.
func TestGatherJobsOfKeysTogether(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := &gatherer{b: b}
		serveGathered(b, g.handle, delayq.BatchSize(20), delayq.Concurrency(1), delayq.Gather(delayq.GatherWindow{Size: 10, Wait: 3 * time.Second}))
		b.Pass(time.Second)
		var jobs []delayq.NewJob
		for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
			jobs = append(jobs, delayq.NewJob{Topic: "a", ID: id, Options: []delayq.JobOption{delayq.Key("k")}})
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		b.Pass(2900 * time.Millisecond)
		require.Empty(b, g.batches())
		b.Pass(200 * time.Millisecond)
		require.Equal(b, []int{6}, sizes(g.batches()))
	})
}

// Jobs that do not fill another batch wait for more of them.
func TestGatherLeavesTheRest(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := &gatherer{b: b}
		serveGathered(b, g.handle, delayq.BatchSize(20), delayq.Concurrency(3), delayq.Gather(delayq.GatherWindow{Size: 10, Wait: 3 * time.Second}))
		b.Pass(time.Second)
		enqueueSome(b, "later", 25, delayq.ProcessIn(2*time.Second))
		b.Pass(2*time.Second + 500*time.Millisecond)
		require.Equal(b, []int{20}, sizes(g.batches()))
		b.Pass(3 * time.Second)
		require.Equal(b, []int{5}, sizes(g.batches()))
	})
}

// Records that need several takes make one batch, and a smaller one when others are too large.
func TestGatherLargeJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g := &gatherer{b: b}
		serveGathered(b, g.handle, delayq.BatchSize(50), delayq.Concurrency(1), delayq.Gather(delayq.GatherWindow{Wait: 3 * time.Second}))
		b.Pass(time.Second)
		for i := range 20 {
			_, err := b.Client.Enqueue(b.Context(), "a", string(rune('a'+i)), make([]byte, 100<<10))
			require.NoError(b, err)
		}
		b.Pass(10 * time.Second)
		large := 0
		for _, n := range sizes(g.batches()) {
			large += n
		}
		require.Equal(b, 20, large)
		enqueueSome(b, "later", 50, delayq.ProcessIn(2*time.Second))
		b.Pass(2*time.Second + 500*time.Millisecond)
		require.Equal(b, []int{50}, sizes(g.batches()))
	})
}
