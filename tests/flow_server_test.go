package tests

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A flowStage is a server of flows whose last steps are jobs of the topic home. Their steps are
// jobs of the topics a, b and c. It notes which jobs have run.
type flowStage struct {
	*queuetest.Bubble
	ran    queuetest.Recorder
	log    queuetest.Logbook
	server *queuetest.Running
	wire   *queuetest.Wire // of a server whose calls go wrong; nil: none

	mu   sync.Mutex
	does map[string]delayq.HandlerFunc // by job ID; others succeed
}

// flowTopics are the topics of a flowStage.
var flowTopics = []string{"home", "a", "b", "c"}

// onFlowStage runs a test in a bubble with a flowStage.
func onFlowStage(t *testing.T, test func(s *flowStage)) {
	t.Helper()
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := &flowStage{Bubble: b, does: make(map[string]delayq.HandlerFunc)}
		s.serve()
		test(s)
	})
}

func (s *flowStage) serve(opts ...delayq.ServerOption) {
	s.server = queuetest.ServeMany(s.T, s.RDB, queuetest.Prefix, s.setup, append(opts, s.log.To())...)
	synctest.Wait()
}

func (s *flowStage) setup(server *delayq.Server) {
	for _, topic := range flowTopics {
		server.Handle(topic, s.ran.Then(s.handle))
	}
}

func (s *flowStage) handle(ctx context.Context, job *delayq.Job) error {
	s.mu.Lock()
	f := s.does[job.ID]
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx, job)
}

// on says what the handler of a job does.
func (s *flowStage) on(id string, f delayq.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.does[id] = f
}

// fails makes a job fail for good.
func (s *flowStage) fails(id string) {
	s.on(id, func(context.Context, *delayq.Job) error { return delayq.Permanent(errors.New(id + " is broken")) })
}

// start starts a flow, and waits for what happens at once.
func (s *flowStage) start(f *delayq.Flow) {
	s.Helper()
	_, err := s.Client.Start(s.Context(), f)
	require.NoError(s, err)
	synctest.Wait()
}

// order expects that jobs have run, once each, in the order of these groups. Those of a group can
// have any order.
func (s *flowStage) order(groups ...string) {
	s.Helper()
	got := s.ran.IDs()
	for _, group := range groups {
		want := strings.Fields(group)
		require.GreaterOrEqual(s, len(got), len(want), "%v of %v", group, s.ran.IDs())
		require.ElementsMatch(s, want, got[:len(want)], "%v", s.ran.IDs())
		got = got[len(want):]
	}
	require.Empty(s, got, "more than that")
}

// over expects that nothing of flows is left, nor of their jobs.
func (s *flowStage) over() {
	s.Helper()
	leftOfFlows(s.Bubble)
	for _, topic := range flowTopics {
		n, err := s.RDB.HLen(s.Context(), queuetest.PoolKey(topic)).Result()
		require.NoError(s, err)
		require.Zero(s, n, "jobs of %s", topic)
	}
}

// leftOfFlows expects that Redis has no flows, no links and no parcels.
func leftOfFlows(b *queuetest.Bubble) {
	b.Helper()
	for _, topic := range flowTopics {
		root := queuetest.Prefix + ":{" + topic + "}:all:"
		for _, key := range []string{"flows", "steps", "parcels"} {
			n, err := b.RDB.Exists(b.Context(), root+key).Result()
			require.NoError(b, err)
			require.Zero(b, n, "%s of %s", key, topic)
		}
		fields, err := b.RDB.HKeys(b.Context(), root+"notes").Result()
		require.NoError(b, err)
		require.False(b, slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, "l") }), "links of %s: %q", topic, fields)
	}
}

// buried expects that the last step was buried without a run.
func (s *flowStage) buried(kind delayq.ErrorKind, parts ...string) {
	s.Helper()
	last := s.Get("home", "last")
	require.Equal(s, delayq.StateDead, last.State)
	require.Empty(s, s.ran.Of("last"))
	require.NotEmpty(s, last.Errors)
	why := last.Errors[len(last.Errors)-1] // its server may have died before
	require.Equal(s, kind, why.Kind)
	for _, part := range parts {
		require.Contains(s, why.Message, part)
	}
}

func newLast() *delayq.Flow {
	return delayq.NewFlow("home", "last", nil).Deadline(10 * time.Minute)
}

// Steps that wait for nothing start at once, and the last step runs when all have ended.
func TestFlowFansOutAndIn(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		for _, id := range []string{"1", "2", "3"} {
			f.AddJob("a", id, []byte(id))
			f.AddJob("b", id+"b", nil, delayq.ProcessIn(time.Second))
		}
		s.start(f)
		s.order("1 2 3")
		require.Equal(s, delayq.StateScheduled, s.State("home", "last"))
		s.Pass(time.Second)
		s.order("1 2 3", "1b 2b 3b", "last")
		s.over()
	})
}

func TestFlowPassesThroughADiamond(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		top := f.AddJob("a", "top", nil)
		left := f.AddJob("b", "left", nil, delayq.ProcessIn(time.Second)).After(top)
		right := f.AddJob("home", "right", nil).After(top) // a step can be a job of any topic
		f.AddJob("c", "bottom", nil).After(left, right)
		s.start(f)
		s.order("top", "right")
		s.Pass(time.Second)
		s.order("top", "right", "left", "bottom", "last")
		s.over()
	})
}

// A step that fails makes the steps behind it be skipped, and the flow fail. What has started is
// cancelled.
func TestFlowFails(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		s.fails("bad")
		f := newLast()
		bad := f.AddJob("a", "bad", nil, delayq.ProcessIn(time.Second))
		f.AddJob("b", "behind", nil).After(bad)
		f.AddJob("c", "later", nil, delayq.ProcessIn(time.Minute))
		s.start(f)
		require.Equal(s, delayq.StateScheduled, s.State("c", "later"))
		s.Pass(time.Second)
		s.order("bad")
		s.buried(delayq.KindDependency, `"bad"`, `"a"`, "is dead", "bad is broken")
		require.Empty(s, s.State("b", "behind"))
		require.Empty(s, s.State("c", "later"), "cancelled")
		require.Equal(s, delayq.StateDead, s.State("a", "bad"))
		require.Len(s, s.log.With("job buried", "job=last"), 1)

		// somebody looks at it, and lets the last step run with what there is
		require.NoError(s, s.Client.Revive(s.Context(), "home", "last"))
		s.Pass(time.Second)
		s.order("bad", "last")
		leftOfFlows(s.Bubble)
	})
}

// A child that ignores failures undoes what a step has done, and the flow goes on.
func TestFlowWhoseStepIgnoresFailures(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		s.fails("bad")
		f := newLast()
		bad := f.AddJob("a", "bad", nil)
		behind := f.AddJob("b", "behind", nil).After(bad)
		f.AddJob("c", "undo", nil).After(behind).IgnoreFailures()
		s.start(f)
		s.order("bad", "undo", "last")
		leftOfFlows(s.Bubble)
	})
}

func TestFlowThatIgnoresFailures(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		s.fails("bad")
		f := newLast().IgnoreFailures()
		f.AddJob("a", "bad", nil)
		f.AddJob("c", "later", nil, delayq.ProcessIn(time.Minute))
		s.start(f)
		s.order("bad")
		s.Pass(time.Minute)
		s.order("bad", "later", "last")
		leftOfFlows(s.Bubble)
	})
}

// At the deadline the last step is buried, and says what is missing.
func TestFlowAtItsDeadline(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		slow := f.AddJob("a", "slow", nil, delayq.ProcessIn(9*time.Minute))
		s.on("slow", func(context.Context, *delayq.Job) error { return delayq.Snooze(10 * time.Minute) })
		f.AddJob("b", "behind", nil).After(slow)
		s.start(f)
		s.Pass(10*time.Minute + time.Second)
		s.buried(delayq.KindDeadline, "2 steps have not ended by the deadline", `"slow" of the topic "a"`, `"behind" of the topic "b"`)
		require.Empty(s, s.State("a", "slow"), "cancelled")
		_, err := s.Client.Dequeue(s.Context(), "home", "last")
		require.NoError(s, err)
		s.Pass(time.Second)
		s.over()
	})
}

// With IgnoreFailures the last step runs at the deadline, and what is left is cancelled then.
func TestFlowThatIgnoresFailuresAtItsDeadline(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast().IgnoreFailures()
		f.AddJob("a", "slow", nil, delayq.ProcessIn(9*time.Minute))
		s.on("slow", func(context.Context, *delayq.Job) error { return delayq.Snooze(10 * time.Minute) })
		s.start(f)
		s.Pass(10*time.Minute + time.Second)
		s.order("slow", "last")
		s.over()
	})
}

// Dequeue of the last step cancels the flow.
func TestFlowIsCancelled(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		stopped := make(chan error, 1)
		s.on("running", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			stopped <- context.Cause(ctx)
			return ctx.Err()
		})
		f := newLast()
		first := f.AddJob("a", "running", nil)
		f.AddJob("b", "behind", nil).After(first)
		f.AddJob("c", "later", nil, delayq.ProcessIn(time.Minute))
		s.start(f)
		s.order("running")
		_, err := s.Client.Dequeue(s.Context(), "home", "last")
		require.NoError(s, err)
		require.ErrorIs(s, queuetest.Receive(s.T, stopped), delayq.ErrCancelled)
		s.Pass(time.Second)
		s.order("running")
		s.over()
	})
}

// A step whose job its topic does not take has failed.
func TestFlowWhoseStepIsRefused(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		s.Enqueue("a", "there", delayq.ProcessIn(2*time.Hour))
		f := newLast()
		first := f.AddJob("b", "first", nil)
		f.AddJob("a", "there", nil).After(first)
		s.start(f)
		s.order("first")
		s.buried(delayq.KindDependency, `"there"`, `"a"`, "was refused by its topic", "scheduled")
		require.Equal(s, delayq.StateScheduled, s.State("a", "there"), "not that of the flow")
		require.Zero(s, s.Counter("home", delayq.CounterUndelivered))
	})
}

// Ways in which a step ends that are no success.
func TestFlowWhoseStepEndsBadly(t *testing.T) {
	for what, c := range map[string]struct {
		opts []delayq.JobOption
		do   func(s *flowStage)
	}{
		"was cancelled": {do: func(s *flowStage) {
			_, err := s.Client.Dequeue(s.Context(), "a", "step")
			require.NoError(s, err)
		}},
		"was replaced": {do: func(s *flowStage) { s.Enqueue("a", "step", delayq.Replace()) }},
		"has expired": {
			opts: []delayq.JobOption{delayq.ExpireIn(2 * time.Minute)},
			do: func(s *flowStage) {
				require.NoError(s, s.Client.Pause(s.Context(), "a", delayq.Pause{By: "me"}))
				s.Pass(3 * time.Minute)
				require.NoError(s, s.Client.ResumeAll(s.Context(), "a"))
			},
		},
		"by hand": {do: func(s *flowStage) { require.NoError(s, s.Client.Bury(s.Context(), "a", "step", "by hand")) }},
	} {
		t.Run(what, func(t *testing.T) {
			onFlowStage(t, func(s *flowStage) {
				f := newLast()
				f.AddJob("a", "step", nil, append(c.opts, delayq.ProcessIn(time.Minute))...)
				s.start(f)
				c.do(s)
				s.Pass(time.Second)
				s.buried(delayq.KindDependency, `"step"`, what)
			})
		})
	}
}

// A step goes on as long as its job does.
func TestFlowWhoseStepsGoOn(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		times := make(map[string]int)
		count := func(job *delayq.Job) int { // runs of one job come one after the other
			s.mu.Lock()
			defer s.mu.Unlock()
			times[job.ID]++
			return times[job.ID]
		}
		s.on("again", func(_ context.Context, job *delayq.Job) error {
			if count(job) < 3 {
				return delayq.Again(nil, delayq.ProcessIn(time.Second))
			}
			return nil
		})
		s.on("snoozed", func(_ context.Context, job *delayq.Job) error {
			if count(job) < 3 {
				return delayq.Snooze(time.Second)
			}
			return nil
		})
		s.on("retried", func(_ context.Context, job *delayq.Job) error {
			if count(job) < 3 {
				return delayq.RetryIn(time.Second, errors.New("not yet"))
			}
			return nil
		})
		s.on("last", func(_ context.Context, job *delayq.Job) error {
			switch count(job) {
			case 1:
				return errors.New("once more")
			case 2:
				return delayq.Snooze(time.Minute)
			case 3:
				return delayq.Again(nil, delayq.ProcessIn(time.Minute))
			}
			return nil
		})
		f := newLast()
		for i, id := range []string{"again", "snoozed", "retried"} {
			f.AddJob(flowTopics[i+1], id, nil)
		}
		s.start(f)
		s.Pass(10 * time.Minute)
		require.Equal(s, map[string]int{"again": 3, "snoozed": 3, "retried": 3, "last": 4}, s.ran.Times())
		s.over()
	})
}

// Keys and limits apply to steps.
func TestFlowWithKeysAndLimits(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		require.NoError(s, s.Client.SetLimits(s.Context(), "b", delayq.Limits{Running: 1}))
		var most, now int
		slow := func(context.Context, *delayq.Job) error {
			s.mu.Lock()
			now++
			most = max(most, now)
			s.mu.Unlock()
			time.Sleep(time.Second)
			s.mu.Lock()
			now--
			s.mu.Unlock()
			return nil
		}
		f := newLast()
		for _, id := range []string{"1", "2", "3"} {
			s.on(id, slow)
			f.AddJob("b", id, nil, delayq.Key("k"))
		}
		s.start(f)
		s.Pass(3 * time.Second)
		s.order("1 2 3", "last")
		require.Equal(s, 1, most)
		s.over()
	})
}

// The server of a step's topic and that of the home need not know each other's topics.
func TestFlowOverSeveralServers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var ran queuetest.Recorder
		b.Serve("home", ran.Then(nil))
		b.Serve("a", ran.Then(nil))
		f := newLast()
		first := f.AddJob("a", "1", nil)
		f.AddJob("a", "2", nil).After(first)
		_, err := b.Client.Start(b.Context(), f)
		require.NoError(b, err)
		synctest.Wait()
		require.Equal(b, []string{"1", "2", "last"}, ran.IDs(), "without a tick")
		leftOfFlows(b)
	})
}
