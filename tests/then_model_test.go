package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Servers that die and come back run jobs of three topics, which hand jobs over to each other and
// end in every way, while clients cancel and replace some and a schedule enqueues others. One topic
// has a limit, and that of the parts keeps an order. What each run that was acked has handed
// over is enqueued exactly once, and nothing of the other runs.
func TestThenAgainstAModel(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				m := &thenModel{rng: rand.New(rand.NewPCG(seed, 1)), acked: make(map[string]bool), stored: make(map[string]int)}
				m.play(b)
			})
		})
	}
}

// A thenModel notes which parts should arrive. The ID of each part names its run.
type thenModel struct {
	mu     sync.Mutex
	rng    *rand.Rand
	run    int
	acked  map[string]bool // parts of runs that hooks say are acked
	stored map[string]int  // parts that have run
	ran    []string        // in this order
}

func (m *thenModel) n(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rng.IntN(n)
}

// note is called by the hooks for runs that were acked.
func (m *thenModel) note(e delayq.RunEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range strings.FieldsSeq(string(e.Output)) {
		m.acked[id] = true
	}
}

type thenHooks struct{ m *thenModel }

func (h thenHooks) Done(e delayq.RunEvent)  { h.m.note(e) }
func (h thenHooks) Again(e delayq.RunEvent) { h.m.note(e) }

// work hands over up to three parts, and ends in some way.
func (m *thenModel) work(b *queuetest.Bubble) delayq.HandlerFunc {
	return func(ctx context.Context, job *delayq.Job) error {
		m.mu.Lock()
		m.run++
		run := m.run
		m.mu.Unlock()
		var parts []string
		for i := range m.n(4) {
			id := fmt.Sprintf("part-%d-%d", run, i)
			opts := []delayq.JobOption{delayq.Key(fmt.Sprint("of ", run))}
			switch run % 3 { // else those of a run keep their order
			case 0:
				opts = []delayq.JobOption{delayq.ProcessIn(time.Duration(m.n(2000)) * time.Millisecond), delayq.Replace()}
			case 1:
				opts = append(opts, delayq.Replace())
			}
			if err := job.Then("parts", id, nil, opts...); err != nil {
				return err
			}
			parts = append(parts, id)
		}
		if err := job.SetOutput([]byte(strings.Join(parts, " "))); err != nil {
			return err
		}
		if m.n(3) == 0 {
			time.Sleep(time.Duration(m.n(50)) * time.Millisecond)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch m.n(8) {
		case 0:
			return queuetest.ErrTest
		case 1:
			return delayq.Snooze(time.Duration(m.n(1000)+1) * time.Millisecond)
		case 2:
			return delayq.Again(nil, delayq.ProcessIn(time.Duration(m.n(1000)+1)*time.Millisecond))
		case 3:
			return delayq.Permanent(queuetest.ErrTest)
		}
		return nil
	}
}

func (m *thenModel) play(b *queuetest.Bubble) {
	topics := []string{"t0", "t1", "t2"}
	b.Serve("parts", func(_ context.Context, job *delayq.Job) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.stored[job.ID]++
		m.ran = append(m.ran, job.ID)
		return nil
	})
	require.NoError(b, b.Client.SetLimits(b.Context(), "parts", delayq.Limits{Ordered: true, RunningPerKey: 1}))
	require.NoError(b, b.Client.SetLimits(b.Context(), "t1", delayq.Limits{Running: 2}))
	require.NoError(b, b.Client.Schedule(b.Context(), "t2", "often", delayq.Every(time.Second), nil, delayq.MaxRuns(10)))
	serve := func(w *queuetest.Wire) {
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			for _, topic := range topics {
				require.NoError(b, s.HandlerFunc(topic, m.work(b)))
			}
		}, delayq.Hooks(thenHooks{m}), delayq.Lease(2*time.Second))
	}
	wires := []*queuetest.Wire{queuetest.NewWire(b.Redis), queuetest.NewWire(b.Redis)}
	for _, w := range wires {
		w.Jitter(func() time.Duration { return time.Duration(m.n(4)) * time.Millisecond })
		serve(w)
	}
	for range 250 {
		topic, id := topics[m.n(3)], fmt.Sprint(m.n(30))
		switch w := wires[m.n(2)]; m.n(12) {
		case 0:
			_, _ = b.Client.Dequeue(b.Context(), topic, id) // it may not be there
		case 1:
			b.Enqueue(topic, id, delayq.Replace())
		case 2:
			_, _ = b.Client.Enqueue(b.Context(), topic, id, nil, delayq.Latest()) // it may be dead
		case 3:
			w.Cut()
			b.Pass(time.Duration(m.n(3000)) * time.Millisecond)
			w.Mend()
		case 4:
			w.Lose([]string{"parcels", "receipt"}[m.n(2)])
		default:
			_, _ = b.Client.Enqueue(b.Context(), topic, id, nil, delayq.Key(fmt.Sprint(m.n(3))), delayq.Backoff(100*time.Millisecond, time.Second), delayq.Retry(3)) // it may be there
		}
		b.Pass(time.Duration(m.n(40)) * time.Millisecond)
	}
	for _, w := range wires {
		w.Heal()
	}
	b.Pass(5 * time.Minute)
	m.mu.Lock()
	defer m.mu.Unlock()
	require.NotEmpty(b, m.acked)
	for id := range m.acked {
		require.Equal(b, 1, m.stored[id], id)
	}
	for id, times := range m.stored {
		require.Equal(b, 1, times, id)
		require.True(b, m.acked[id], "%s of a run that was not acked", id)
	}
	last := make(map[int]int) // by run, the last of its parts
	for _, id := range m.ran {
		var run, part int
		_, err := fmt.Sscanf(id, "part-%d-%d", &run, &part)
		require.NoError(b, err)
		if run%3 > 0 {
			require.GreaterOrEqual(b, part, last[run], "%s runs too late", id)
			last[run] = part
		}
	}
	for _, topic := range topics {
		n, err := b.RDB.ZCard(b.Context(), queuetest.Prefix+":{"+topic+"}:all:parcels").Result()
		require.NoError(b, err)
		require.Zero(b, n)
	}
}
