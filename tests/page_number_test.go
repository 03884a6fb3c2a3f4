package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// The pages by their numbers, and the rest behind each of them, are what a walk with cursors finds.
func TestPagesByTheirNumbers(t *testing.T) {
	for _, state := range []delayq.State{
		delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone,
	} {
		for _, latest := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", state, latest), func(t *testing.T) {
				queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
					w := newWalker(f, state, rand.Uint64())
					w.add(90)
					if state == delayq.StateReady {
						for i := range 25 {
							f.Enqueue(fmt.Sprint("keyed ", i), delayq.Key(fmt.Sprint("key ", i%3)))
						}
					}
					q := delayq.Query{Topic: "topic", State: state, Latest: latest, Limit: 10}
					order := allOf(t, w.inspector, q)
					require.GreaterOrEqual(t, len(order), 90)
					for at := range len(order) + 25 {
						q.Offset = int64(at)
						page, err := w.inspector.Jobs(t.Context(), q)
						require.NoError(t, err)
						want := order[min(at, len(order)):min(at+10, len(order))]
						require.True(t, slices.Equal(want, queuetest.InfoIDs(page.Jobs)), "offset %d: %q", at, queuetest.InfoIDs(page.Jobs))
						if at+10 != len(order) { // there the walk need not know that it has ended
							require.Equal(t, at+10 < len(order), page.Next != "", "offset %d", at)
						}
						if at%17 == 0 {
							require.True(t, slices.Equal(order[min(at, len(order)):], allOf(t, w.inspector, q)), "the rest from offset %d", at)
						}
					}
				})
			})
		}
	}
}

// An offset counts from From to To, and with Latest from the end.
func TestPagesByNumberBetweenTimes(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, _ := inspect(f)
		start := time.UnixMilli(1_999_999_000_000)
		for n := range 10 {
			f.Enqueue(fmt.Sprint(n), delayq.ProcessAt(start.Add(time.Duration(n)*time.Minute)))
		}
		q := delayq.Query{Topic: "topic", State: delayq.StateScheduled, From: start.Add(2 * time.Minute), To: start.Add(8 * time.Minute), Limit: 2, Offset: 3}
		page, err := i.Jobs(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, []string{"5", "6"}, queuetest.InfoIDs(page.Jobs))
		require.EqualValues(t, 6, page.Total)
		require.Equal(t, []string{"5", "6", "7"}, allOf(t, i, q))
		q.Latest = true
		require.Equal(t, []string{"4", "3", "2"}, allOf(t, i, q))
		n, exact, err := i.Count(t.Context(), q)
		require.NoError(t, err)
		require.True(t, exact)
		require.EqualValues(t, 6, n, "Count ignores the offset")
		q.Cursor = page.Next
		_, err = i.Jobs(t.Context(), q)
		require.ErrorIs(t, err, delayq.ErrCursor, "of the other order")
		q.Latest, q.Offset = false, 0
		page, err = i.Jobs(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, []string{"7"}, queuetest.InfoIDs(page.Jobs), "a cursor holds without its offset")
	})
}

// A jump into many ready jobs is one call, which looks at no more than the page.
func TestPagesByNumberCostOneCall(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.Shared(t))
	jobs := redistest.Size(100_000)
	enqueueMany(f, jobs, "x")
	i, calls := inspect(f)
	for _, at := range []int{0, jobs / 2, jobs - 100, jobs} {
		clear(calls)
		page, err := i.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateReady, Offset: int64(at)})
		require.NoError(t, err)
		require.Equal(t, min(100, jobs-at), page.Examined)
		require.Equal(t, queuetest.CountScripts{"page": 1}, calls)
		for n, info := range page.Jobs {
			require.Equal(t, fmt.Sprint("x", at+n), info.ID)
		}
	}
}

// What an offset cannot count is refused.
func TestInvalidOffsets(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		i, calls := inspect(f)
		for message, q := range map[string]delayq.Query{
			"offset -1: must be from 0 to 1099511627776":               {State: delayq.StateReady, Offset: -1},
			"offset 1099511627777: must be from 0 to":                  {State: delayq.StateReady, Offset: 1<<40 + 1},
			"offset 1: no index counts what a filter selects":          {State: delayq.StateScheduled, Offset: 1, IDPrefix: "a"},
			"offset 2: no index counts what a filter selects; use a c": {State: delayq.StateReady, Offset: 2, From: time.Now()},
		} {
			q.Topic = "topic"
			_, err := i.Jobs(t.Context(), q)
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, message)
		}
		_, err := f.Client.Apply(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateReady, Offset: 1}, delayq.Cancel())
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorContains(t, err, "offset 1: Apply begins at Query.Cursor")
		require.Empty(t, calls)
	})
}

// Apply meets each job once, although it reads the next page while it acts on one.
func TestApplyReadsAhead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		fill(t, f, "x", 2300, delayq.ProcessIn(time.Hour))
		var sums []delayq.Applied
		sum, err := f.Client.Apply(t.Context(), query(delayq.StateScheduled), delayq.Cancel(), delayq.AtMost(1700),
			delayq.OnProgress(func(a delayq.Applied) { sums = append(sums, a) }))
		require.NoError(t, err)
		require.EqualValues(t, 1700, sum.Done)
		require.EqualValues(t, 1700, sum.Examined)
		require.Zero(t, sum.Skipped)
		require.True(t, slices.IsSortedFunc(sums, func(a, b delayq.Applied) int { return int(a.Done - b.Done) }))
		require.Len(t, sums, 4)
		q := query(delayq.StateScheduled)
		q.Cursor = sum.Next
		sum, err = f.Client.Apply(t.Context(), q, delayq.Cancel())
		require.NoError(t, err)
		require.EqualValues(t, 600, sum.Done)
		require.Empty(t, sum.Next)
	})
}

// A MinAttempt of 1 selects all jobs, also those of which Apply reads only the places.
func TestApplyFromTheFirstAttemptOn(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		q := query(delayq.StateScheduled)
		q.MinAttempt = 1
		for name, a := range map[string]delayq.Action{"x": delayq.Bury(""), "y": delayq.Cancel()} {
			fill(t, f, name, 10, delayq.ProcessIn(time.Hour))
			sum, err := f.Client.Apply(t.Context(), q, a)
			require.NoError(t, err)
			require.EqualValues(t, 10, sum.Done)
		}
	})
}

// A step fails while the next one is on its way: what was done is told, Next is the place of the
// first step without an outcome, and the rest is done from there.
func TestApplyFailsWithTwoStepsOnTheirWay(t *testing.T) {
	const n, step = 1000, 100
	cancel := delayq.Scripts()["cancel"]
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				for i := range n {
					b.Enqueue("t", fmt.Sprintf("%04d", i), delayq.ProcessIn(time.Hour))
				}
				w := queuetest.NewWire(b.Redis)
				c := delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix))
				q := delayq.Query{Topic: "t", State: delayq.StateScheduled, Limit: step}
				sum, err := c.Apply(b.Context(), q, delayq.Cancel(), delayq.AtMost(3*step))
				require.NoError(b, err)
				require.EqualValues(b, 3*step, sum.Done)
				q.Cursor = sum.Next
				w.Die(cancel, before)
				sum, err = c.Apply(b.Context(), q, delayq.Cancel())
				require.ErrorIs(b, err, delayq.ErrUnknownOutcome)
				require.Equal(b, q.Cursor, sum.Next)
				require.Contains(b, []int64{step, 2 * step}, sum.Failed)
				require.Len(b, sum.Errs, 10)
				require.Equal(b, sum.Done+sum.Failed, sum.Matched)
				b.Pass(time.Second) // until the wire is cut
				w.Heal()
				for range 30 { // connections have broken
					if err == nil {
						break
					}
					b.Pass(2 * time.Second) // go-redis looks once a second whether it can dial again
					q.Cursor = sum.Next
					sum, err = c.Apply(b.Context(), q, delayq.Cancel())
				}
				require.NoError(b, err)
				require.Empty(b, sum.Next)
				require.EqualValues(b, n, b.Counter("t", delayq.CounterCancelled))
				require.Zero(b, must(b.RDB.HLen(b.Context(), queuetest.PoolKey("t")).Result()))
			})
		})
	}
}

// The two steps on their way belong to what AtMost allows, also if jobs of them are skipped.
func TestApplyAtMostWithTwoStepsOnTheirWay(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		fill(t, f, "x", 1000, delayq.ProcessIn(time.Hour))
		q := query(delayq.StateScheduled)
		q.Limit = 100
		for _, most := range []int64{1, 99, 100, 150, 250, 400} {
			sum, err := f.Client.Apply(t.Context(), q, delayq.Cancel(), delayq.AtMost(most))
			require.NoError(t, err)
			require.Equal(t, most, sum.Done)
			require.Equal(t, most, sum.Examined)
			q.Cursor = sum.Next
		}
		left, _, err := f.Inspector.Count(t.Context(), query(delayq.StateScheduled))
		require.NoError(t, err)
		require.Zero(t, left)
	})
}
