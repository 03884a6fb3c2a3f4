package tests

import (
	"cmp"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/serve"
)

// A lostChild is a row of the table in bench/README.md: what happens to the second of three steps,
// and what becomes of the last one.
type lostChild struct {
	in      time.Duration      // when the second step is due; 0: after a second
	opts    []delayq.JobOption // of the second step
	flow    func(f *delayq.Flow)
	do      func(s *flowStage, w *queuetest.Wire)
	buried  []string // parts of the reason; none: the last step runs
	repeats int      // runs of the second step
}

// dequeued removes the second step by hand.
func dequeued(s *flowStage, _ *queuetest.Wire) {
	_, err := s.Client.Dequeue(s.Context(), "b", "2")
	require.NoError(s, err)
	s.Pass(time.Second)
}

// forgotten lets Redis lose the record of the second step, and what else it has of it, and waits
// until servers have looked for it.
func forgotten(keys ...string) func(*flowStage, *queuetest.Wire) {
	return func(s *flowStage, _ *queuetest.Wire) {
		require.NoError(s, s.RDB.HDel(s.Context(), queuetest.PoolKey("b"), "2").Err())
		for _, key := range keys {
			require.NoError(s, s.RDB.ZRem(s.Context(), queuetest.Prefix+":{b}:"+key, "2").Err())
		}
		s.Pass(serve.GuardAge + 4*serve.GuardEvery)
	}
}

// loseWorkers cuts the worker of the second step off as often as it runs it, at most times.
func loseWorkers(times int) func(*flowStage, *queuetest.Wire) {
	return func(s *flowStage, w *queuetest.Wire) {
		s.on("2", func(ctx context.Context, _ *delayq.Job) error {
			if len(s.ran.Of("2")) > times {
				return nil
			}
			w.Cut()
			<-ctx.Done()
			return context.Cause(ctx)
		})
		for range times + 2 {
			s.Pass(5 * time.Minute)
			w.Mend()
			s.Pass(5 * time.Minute)
		}
	}
}

var lostChildren = map[string]lostChild{
	"removed by hand while it waits": {in: time.Hour, do: dequeued, buried: []string{`"2"`, "was cancelled"}},
	"removed by hand while it runs": {do: func(s *flowStage, w *queuetest.Wire) {
		told := make(chan error, 1)
		s.on("2", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			told <- context.Cause(ctx)
			return ctx.Err()
		})
		s.Pass(time.Second)
		dequeued(s, w)
		require.ErrorIs(s, queuetest.Receive(s.T, told), delayq.ErrCancelled)
	}, buried: []string{`"2"`, "was cancelled"}, repeats: 1},
	"fails for good": {do: func(s *flowStage, _ *queuetest.Wire) {
		s.fails("2")
		s.Pass(time.Second)
	}, buried: []string{`"2"`, "broken"}, repeats: 1},
	"fails for good, and the flow ignores that": {flow: func(f *delayq.Flow) { f.IgnoreFailures() }, do: func(s *flowStage, _ *queuetest.Wire) {
		s.fails("2")
		s.Pass(time.Second)
	}, repeats: 1},
	"its record is lost":                {in: time.Hour, do: forgotten(), buried: []string{`"2"`, "is lost"}},
	"its record and its entry are lost": {in: time.Hour, do: forgotten("bucket"), buried: []string{`"2"`, "is lost"}},
	"its topic is removed": {in: time.Hour, do: func(s *flowStage, w *queuetest.Wire) {
		require.Error(s, s.Client.RemoveTopic(s.Context(), "b"), "it has a job")
		dequeued(s, w)
	}, buried: []string{`"2"`, "was cancelled"}},
	"its worker is killed once":    {do: loseWorkers(1), repeats: 2},
	"its worker is killed 3 times": {do: loseWorkers(3), opts: []delayq.JobOption{delayq.Retry(2)}, buried: []string{`"2"`}, repeats: 3},
}

// Whatever becomes of a step, the last one runs or is buried with the reason. It never waits beyond
// its deadline.
func TestWhatBecomesOfALostChild(t *testing.T) {
	for what, c := range lostChildren {
		t.Run(what, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				w := queuetest.NewWire(b.Redis)
				s := &flowStage{Bubble: b, does: make(map[string]delayq.HandlerFunc)}
				queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, s.setup)
				synctest.Wait()
				f := newLast().Deadline(24 * time.Hour)
				if c.flow != nil {
					c.flow(f)
				}
				f.AddJob("a", "1", nil)
				f.AddJob("b", "2", nil, append(c.opts, delayq.ProcessIn(cmp.Or(c.in, time.Second)))...)
				f.AddJob("c", "3", nil)
				s.start(f)
				c.do(s, w)
				s.Pass(2 * time.Second)
				require.Len(s, s.ran.Of("2"), c.repeats)
				if c.buried != nil {
					s.buried(delayq.KindDependency, c.buried...)
					return
				}
				require.Len(s, s.ran.Of("last"), 1)
				leftOfFlows(s.Bubble)
			})
		})
	}
}
