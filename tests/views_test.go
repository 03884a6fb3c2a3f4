package tests

import (
	"errors"
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

// All views of a topic show the same jobs in each state, after any history of calls: Get, Stats,
// Count, Jobs page by page, All, and the dry run of Apply. Apply then acts on just those.
func TestViewsAgree(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for range redistest.Size(20) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			h := &history{Fixture: f, t: t, rng: rand.New(rand.NewPCG(seed, 0)), topic: fmt.Sprint("t", seed)}
			for step := range 80 {
				h.step()
				if step%20 == 19 {
					h.compare()
				}
			}
			h.finish()
		}
	})
}

// A history is a random one of a topic without servers.
type history struct {
	*queuetest.Fixture
	t     *testing.T
	rng   *rand.Rand
	topic string
	log   []string
}

// ids are the IDs of a history, few of them, so that they come again and again.
func (h *history) id() string { return fmt.Sprint("j", h.rng.IntN(20)) }

func (h *history) step() {
	ctx, id := h.t.Context(), h.id()
	var opts []delayq.JobOption
	if h.rng.IntN(2) == 0 {
		opts = append(opts, delayq.ProcessIn(time.Hour))
	}
	if h.rng.IntN(3) == 0 {
		opts = append(opts, delayq.Key(fmt.Sprint("k", h.rng.IntN(3))))
		if h.rng.IntN(2) == 0 {
			opts = append(opts, delayq.Priority(time.Minute))
		}
	}
	what, err := "", error(nil)
	switch h.rng.IntN(10) {
	case 0, 1, 2:
		what = "enqueue"
		_, err = h.Client.Enqueue(ctx, h.topic, id, nil, opts...)
	case 3:
		what = "replace"
		_, err = h.Client.Enqueue(ctx, h.topic, id, nil, append(opts, delayq.Replace())...)
	case 4, 5:
		what = "cancel"
		_, err = h.Client.Dequeue(ctx, h.topic, id)
	case 6:
		what = "move away"
		err = h.Client.Reschedule(ctx, h.topic, id, delayq.ProcessIn(time.Hour))
	case 7:
		what = "move back"
		err = h.Client.Reschedule(ctx, h.topic, id, delayq.ProcessIn(0))
	case 8:
		what = "bury"
		if err = h.Client.Bury(ctx, h.topic, id, "test"); errors.Is(err, delayq.ErrDead) {
			what = "revive"
			err = h.Client.Revive(ctx, h.topic, id)
		}
	case 9:
		what = "priority"
		if err = h.Client.SetPriority(ctx, h.topic, id, time.Minute); errors.Is(err, delayq.ErrInvalid) {
			err = nil // it has no key
		}
	}
	h.log = append(h.log, fmt.Sprint(what, " ", id, " ", err))
	for _, usual := range []error{delayq.ErrDuplicate, delayq.ErrNotFound, delayq.ErrDead} {
		if errors.Is(err, usual) {
			err = nil
		}
	}
	require.NoError(h.t, err, h.log)
}

// viewedStates are those of a topic without servers.
var viewedStates = []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead}

// truth returns the jobs in each state, as Get says.
func (h *history) truth() map[delayq.State][]string {
	truth := map[delayq.State][]string{}
	for n := range 20 {
		id := fmt.Sprint("j", n)
		if info, err := h.Client.Get(h.t.Context(), h.topic, id); err == nil {
			truth[info.State] = append(truth[info.State], id)
		}
	}
	return truth
}

func (h *history) compare() {
	ctx, t := h.t.Context(), h.t
	truth := h.truth()
	stats := queuetest.StatsOf(t, h.Inspector, h.topic)
	numbers := map[delayq.State]int64{
		delayq.StateScheduled: stats.Scheduled, delayq.StateReady: stats.Ready, delayq.StateDead: stats.Dead,
	}
	for _, state := range viewedStates {
		want := truth[state]
		say := fmt.Sprint(state, " after ", h.log)
		require.EqualValues(t, len(want), numbers[state], "Stats: %s", say)
		// With a filter that all jobs match, the jobs are looked at one by one.
		for _, q := range []delayq.Query{{Topic: h.topic, State: state}, {Topic: h.topic, State: state, IDPrefix: "j"}} {
			n, exact, err := h.Inspector.Count(ctx, q)
			require.NoError(t, err)
			require.True(t, exact)
			require.EqualValues(t, len(want), n, "Count: %s", say)
			sum, err := h.Client.Apply(ctx, q, delayq.Cancel(), delayq.DryRun())
			require.NoError(t, err)
			require.EqualValues(t, len(want), sum.Matched, "DryRun: %s", say)
			for _, q.Latest = range []bool{false, true} {
				q.Limit = 1 + h.rng.IntN(4)
				var all, paged []string
				for info, err := range h.Inspector.All(ctx, q) {
					require.NoError(t, err)
					all = append(all, info.ID)
				}
				for page := (&delayq.Page{Next: q.Cursor}); ; {
					q.Cursor = page.Next
					page, err = h.Inspector.Jobs(ctx, q)
					require.NoError(t, err)
					for _, info := range page.Jobs {
						require.Equal(t, state, info.State)
						paged = append(paged, info.ID)
					}
					if page.Next == "" {
						break
					}
				}
				q.Cursor = ""
				require.ElementsMatch(t, want, all, "All: %s", say)
				require.Equal(t, all, paged, "Jobs: %s", say)
			}
		}
	}
}

// finish cancels all jobs, state by state.
func (h *history) finish() {
	for _, state := range viewedStates {
		want := h.truth()[state]
		q := delayq.Query{Topic: h.topic, State: state}
		dry, err := h.Client.Apply(h.t.Context(), q, delayq.Cancel(), delayq.DryRun())
		require.NoError(h.t, err)
		did, err := h.Client.Apply(h.t.Context(), q, delayq.Cancel())
		require.NoError(h.t, err)
		require.EqualValues(h.t, len(want), did.Done, "Apply: %s after %s", state, h.log)
		require.Equal(h.t, dry.Matched, did.Done)
		require.Zero(h.t, did.Skipped+did.Failed)
		for _, left := range h.truth() {
			require.Empty(h.t, slices.DeleteFunc(left, func(id string) bool { return !slices.Contains(want, id) }))
		}
	}
}
