package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// Fifty servers move and run the same jobs, all due at one instant: no server asks Redis for a job
// in vain again and again. One request serves more than ten jobs. (G5)
func TestManyServersShareTheMoving(t *testing.T) {
	t.Parallel()
	jobs := max(14_000, redistest.Size(20_000))
	var mu sync.Mutex
	requests := make(map[int]int)
	run := func(b *queuetest.Bubble, servers int) {
		list := make([]delayq.NewJob, jobs)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(2 * time.Second)}}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		w := queuetest.NewWire(b.Redis)
		var rec queuetest.Recorder
		for range servers {
			b.ServeOn(w, "a", rec.Then(nil))
		}
		b.Pass(2*time.Second - time.Millisecond - b.At())
		before := w.Requests()
		b.Pass(100 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		requests[servers] = w.Requests() - before
		require.Len(b, rec.Times(), jobs)
		require.Len(b, rec.All(), jobs)
	}
	t.Run("each", func(t *testing.T) {
		for _, servers := range []int{1, 50} {
			t.Run(fmt.Sprint(servers), func(t *testing.T) { queuetest.InBubble(t, func(b *queuetest.Bubble) { run(b, servers) }) })
		}
	})
	t.Logf("requests for %d jobs, by the number of servers: %v", jobs, requests)
	require.Less(t, requests[50], jobs/10, "most of them find nothing left to do")
}

// Servers that were started at the same moment do not ask Redis in step for ever. (G10)
func TestTicksOfServersSpread(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const servers = 20
		var mu sync.Mutex
		last := map[string][]time.Time{"watch": make([]time.Time, servers), "promote": make([]time.Time, servers), "prune": make([]time.Time, servers)}
		for i := range servers {
			b.Serve("a", queuetest.Nothing, delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
				mu.Lock()
				defer mu.Unlock()
				if at := last[e.Name]; at != nil {
					at[i] = time.Now()
				}
			})))
		}
		spread := func(script string, within time.Duration) {
			b.Helper()
			mu.Lock()
			defer mu.Unlock()
			distinct := make(map[time.Time]bool)
			for _, at := range last[script] {
				require.WithinDuration(b, time.Now(), at, within)
				distinct[at.Truncate(time.Millisecond)] = true
			}
			require.GreaterOrEqual(b, len(distinct), servers*3/4)
		}
		b.Pass(2 * time.Minute)
		spread("prune", 11*time.Second)
		spread("watch", time.Second)
		// With something that waits each looks for itself at each tick. A message brings all of
		// them into step.
		require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{a}:waiting", queuetest.ZMember("nothing", time.Now())).Err())
		require.NoError(b, b.RDB.Publish(b.Context(), script.ControlChannel(queuetest.Prefix), "wake 0 1 a").Err())
		b.Pass(time.Minute)
		spread("promote", time.Second)
	})
}

// One server knows one topic, another one the other. Failing jobs are retried by the one that knows
// them, and the other never touches them. (H2)
func TestServersOfDifferentTopicsKeepToTheirOwn(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		recs := map[string]*queuetest.Recorder{"a": {}, "b": {}}
		wires := map[string]*queuetest.Wire{"a": queuetest.NewWire(b.Redis), "b": queuetest.NewWire(b.Redis)}
		for topic, rec := range recs {
			b.ServeOn(wires[topic], topic, rec.Then(func(_ context.Context, job *delayq.Job) error {
				if job.Topic != topic {
					b.Errorf("job of topic %s at the server of %s", job.Topic, topic)
				}
				return queuetest.ErrTest
			}))
			for i := range 5 {
				b.Enqueue(topic, fmt.Sprint(topic, i), delayq.Retry(3), delayq.Backoff(time.Second, time.Second))
			}
		}
		b.Pass(time.Minute)
		for topic, rec := range recs {
			require.Len(b, rec.All(), 5*4)
			require.EqualValues(b, 5*4, b.Counter(topic, "taken"))
			require.EqualValues(b, 5, b.Counter(topic, "buried"))
			require.Less(b, wires[topic].Requests(), 300, "to and fro")
		}
	})
}

// A topic with fifty thousand due jobs does not keep the one job of another topic from being run:
// when that starts, most of the many still wait. (H4)
func TestHugeTopicDelaysNoOther(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
	const jobs = 50_000
	list := make([]delayq.NewJob, 0, jobs+1)
	for i := range jobs {
		list = append(list, delayq.NewJob{Topic: "huge", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(time.Millisecond)}})
	}
	list = append(list, delayq.NewJob{Topic: "small", ID: "1", Options: []delayq.JobOption{delayq.ProcessIn(time.Millisecond)}})
	_, err := client.EnqueueBatch(t.Context(), list)
	require.NoError(t, err)
	waiting := make(chan int64, 1)
	queuetest.ServeMany(t, rdb, prefix, func(s *delayq.Server) {
		s.HandlerFunc("huge", queuetest.Nothing)
		s.HandlerFunc("small", func(ctx context.Context, _ *delayq.Job) error {
			list, err := insp.Stats(ctx, "huge")
			if err == nil {
				waiting <- list[0].Scheduled + list[0].Ready
			}
			return err
		})
	})
	require.Greater(t, queuetest.Receive(t, waiting), int64(jobs/2))
}
