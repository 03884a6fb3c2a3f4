package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// flowOf reads a flow.
func flowOf(b *queuetest.Bubble, id string) *delayq.FlowInfo {
	b.Helper()
	info, err := b.Inspector.Flow(b.Context(), "home", id)
	require.NoError(b, err)
	return info
}

// briefly returns the states of the steps of a flow, with what belongs to them.
func briefly(info *delayq.FlowInfo) string {
	var list []string
	for _, s := range info.Steps {
		text := fmt.Sprintf("%s %s", s.ID, s.State)
		switch {
		case s.State == delayq.StepWaits:
			text += fmt.Sprint(" ", s.Left)
		case s.State == delayq.StepSkipped:
			text += fmt.Sprint(" ", s.Cause)
		case s.Error != "":
			text += " (" + s.Error + ")"
		}
		list = append(list, text)
	}
	return fmt.Sprintf("%s %d/%d, %d failed: %s", info.State, info.Left, info.Total, info.Failed, strings.Join(list, ", "))
}

// A flow is seen whole while it goes on, and its failed steps are seen by those that ignore them.
func TestFlowIsSeenWhole(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r flowRun
		r.serve(b, "a", "home")
		f := delayq.NewFlow("home", "last", nil).Deadline(time.Hour)
		fetch := f.AddJob("a", "fetch", []byte("abc"), delayq.ProcessIn(time.Minute))
		bad := f.AddJob("a", "bad", []byte("fail"), delayq.ProcessIn(time.Minute)).After(fetch)
		next := f.AddJob("a", "next", nil).After(bad)
		undo := f.AddJob("a", "undo", nil, delayq.ProcessIn(time.Minute)).After(fetch, bad, next).IgnoreFailures()
		f.AddJob("a", "end", nil).After(undo)
		_, err := b.Client.Start(b.Context(), f)
		require.NoError(b, err)
		synctest.Wait()

		info := flowOf(b, "last")
		require.Equal(b, "open 5/5, 0 failed: fetch started, bad waits 1, next waits 1, undo waits 3, end waits 1", briefly(info))
		require.Equal(b, delayq.JobRef{Topic: "home", ID: "last"}, b.Get("a", "fetch").Flow)
		e, err := b.Inspector.Explain(b.Context(), "a", "fetch")
		require.NoError(b, err)
		require.Equal(b, `Scheduled: it is due at 2000-01-01 00:01:00.000 UTC, in 1m; it is step 0 of the flow "home/last".`, e.Verdict)
		require.Equal(b, []int{0, 1, 2}, info.Steps[3].After)
		require.Equal(b, []int{4}, info.Steps[3].Before)
		require.True(b, info.Steps[3].IgnoreFailures)
		require.True(b, info.StartedAt.Equal(b.Began))
		require.Equal(b, delayq.StateScheduled, info.Last.State)
		require.Equal(b, -1, info.Cause)
		require.Zero(b, info.Next)
		for i, s := range info.Steps {
			require.Equal(b, i, s.Number)
			require.Equal(b, i == 0, !s.StartedAt.IsZero(), s.ID)
		}

		b.Pass(time.Minute)
		require.Equal(b, "open 4/5, 0 failed: fetch done, bad started, next waits 1, undo waits 2, end waits 1", briefly(flowOf(b, "last")))
		done := flowOf(b, "last").Steps[0]
		require.Equal(b, 1, done.Attempt)
		require.Equal(b, 3, done.OutputSize)
		require.True(b, done.EndedAt.Equal(b.Began.Add(time.Minute)), done.EndedAt)
		require.NotEmpty(b, done.Server)

		b.Pass(time.Minute)
		require.Equal(b, "open 2/5, 2 failed: fetch done, bad dead (does not work), next skipped 1, undo started, end waits 1", briefly(flowOf(b, "last")))
		from, err := b.Inspector.FlowFrom(b.Context(), "home", "last", 3)
		require.NoError(b, err)
		require.Equal(b, "open 2/5, 2 failed: undo started, end waits 1", briefly(from))
		b.Pass(time.Minute)
		require.Equal(b, []string{"fetch", "bad", "undo", "end", "last"}, r.all())
		require.Equal(b, []string{"fetch done abc", "bad dead does not work", "next skipped "}, r.inputs["undo"])
		require.Equal(b, []string{"fetch done abc", "bad dead does not work", "next skipped ", "undo done ", "end done "}, r.inputs["last"])
		_, err = b.Inspector.Flow(b.Context(), "home", "last")
		require.ErrorIs(b, err, delayq.ErrNotFound)
	})
}

// A flow that has failed is seen as long as its last step is dead, and a revive runs that with what
// there is.
func TestFailedFlowIsSeenAndRevived(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r flowRun
		r.serve(b, "a", "home")
		f := delayq.NewFlow("home", "last", nil).Deadline(time.Hour)
		f.AddJob("a", "good", []byte("x"))
		f.AddJob("a", "slow", nil, delayq.ProcessIn(time.Minute))
		f.AddJob("a", "bad", []byte("fail"))
		_, err := b.Client.Start(b.Context(), f)
		require.NoError(b, err)
		b.Pass(time.Second)
		info := flowOf(b, "last")
		require.Equal(b, delayq.FlowOver, info.State)
		require.Equal(b, 2, info.Cause)
		require.Equal(b, delayq.StateDead, info.Last.State)
		require.Equal(b, delayq.KindDependency, info.Last.Errors[0].Kind)
		require.Equal(b, delayq.StepCancelled, info.Steps[1].State)
		require.NoError(b, b.Client.Revive(b.Context(), "home", "last"))
		b.Pass(time.Second)
		require.Equal(b, []string{"good", "bad", "last"}, r.all())
		require.Equal(b, "good done x", r.inputs["last"][0])
		require.Equal(b, "bad dead does not work", r.inputs["last"][2])
		require.Empty(b, b.State("home", "last"))
	})
}

// Explain says of which flow a job is a step.
func TestExplainNamesTheFlow(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		g, err := f.Client.OpenGroup(t.Context(), delayq.NewFlow("topic", "last", nil).Deadline(time.Hour))
		require.NoError(t, err)
		require.NoError(t, g.Add(t.Context(), delayq.NewJob{Topic: "other", ID: "1"}))
		e, err := f.Inspector.Explain(t.Context(), "topic", "last")
		require.NoError(t, err)
		require.Regexp(t, `^Scheduled: it waits for 1 of 1 steps of its flow: "other/1" \(on its way\); the group is open, and others can be added; the deadline is at .*, in (1h|59m\d+s)\.$`, e.Verdict)
		require.True(t, e.Reasons[0].More)
		require.Equal(t, delayq.ReasonNoServer, e.Reasons[1].Code)
	})
}

// Inputs are those of a handler of a step, and no other job has any.
func TestInputsOutsideAFlow(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var kept *delayq.Job
		var during []delayq.Input
		var failed error
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			kept = job
			during, failed = job.Inputs(ctx)
			return failed
		}, delayq.Concurrency(1))
		job := b.Enqueue("a", "1")
		synctest.Wait()
		require.NoError(b, failed)
		require.Empty(b, during)
		for _, one := range []*delayq.Job{nil, job, kept} {
			_, err := one.Inputs(b.Context())
			require.ErrorIs(b, err, delayq.ErrInvalid)
		}
		var none context.Context
		_, err := kept.Inputs(none)
		require.ErrorIs(b, err, delayq.ErrInvalid)
	})
}

// A group runs its last step when it is closed and all have ended. What is added twice is one step.
func TestGroup(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r flowRun
		r.serve(b, "a", "b", "home")
		g, err := b.Client.OpenGroup(b.Context(), delayq.NewFlow("home", "last", nil).Deadline(time.Hour))
		require.NoError(b, err)
		typed := delayq.NewTopic[int]("b", delayq.JSON)
		third, err := typed.Job("3", 3)
		require.NoError(b, err)
		jobs := []delayq.NewJob{{Topic: "a", ID: "1", Payload: []byte("x")}, {Topic: "a", ID: "2"}, third}
		require.NoError(b, g.Add(b.Context(), jobs...))
		synctest.Wait()
		require.ElementsMatch(b, []string{"1", "2", "3"}, r.all())
		require.NoError(b, g.Add(b.Context(), jobs...))
		require.NoError(b, g.Add(b.Context()))
		b.Pass(time.Minute)
		info := flowOf(b, "last")
		require.Equal(b, "open 0/3, 0 failed: 1 done, 2 done, 3 done", briefly(info))
		require.True(b, info.Group)

		other := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix)).Group("home", "last")
		require.NoError(b, other.Add(b.Context(), delayq.NewJob{Topic: "a", ID: "4", Payload: []byte("y"), Options: []delayq.JobOption{delayq.ProcessIn(time.Minute)}}))
		require.NoError(b, g.Close(b.Context()))
		require.NoError(b, other.Close(b.Context()))
		require.ErrorIs(b, g.Add(b.Context(), delayq.NewJob{Topic: "a", ID: "5"}), delayq.ErrGroupClosed)
		require.ErrorIs(b, other.Add(b.Context(), jobs...), delayq.ErrGroupClosed)
		require.NotContains(b, r.all(), "last")
		b.Pass(time.Minute)
		require.Equal(b, "last", r.all()[4])
		require.Equal(b, []string{"1 done x", "2 done ", "3 done 3", "4 done y"}, r.inputs["last"])
		require.NoError(b, g.Close(b.Context()), "it is closed")
		require.ErrorIs(b, g.Add(b.Context(), jobs...), delayq.ErrGroupClosed)
		require.ErrorIs(b, b.Client.Group("home", "last").Close(b.Context()), delayq.ErrNotFound)
		require.ErrorIs(b, b.Client.Group("home", "last").Add(b.Context(), jobs...), delayq.ErrNotFound)
	})
}

// A group without jobs runs its last step when it is closed. One that nobody closes ends at its
// deadline.
func TestGroupWithoutJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r flowRun
		r.serve(b, "home")
		g, err := b.Client.OpenGroup(b.Context(), delayq.NewFlow("home", "closed", nil).Deadline(time.Hour))
		require.NoError(b, err)
		require.NoError(b, g.Close(b.Context()))
		_, err = b.Client.OpenGroup(b.Context(), delayq.NewFlow("home", "open", nil).Deadline(time.Minute))
		require.NoError(b, err)
		b.Pass(2 * time.Minute)
		require.Equal(b, []string{"closed"}, r.all())
		require.Equal(b, delayq.StateDead, b.State("home", "open"))
	})
}

// What cannot be a group, or a job of one, is refused, and none of the jobs is added.
func TestGroupsThatAreRefused(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		refused := func(err error, parts ...string) {
			t.Helper()
			require.ErrorIs(t, err, delayq.ErrInvalid)
			for _, part := range parts {
				require.ErrorContains(t, err, part)
			}
		}
		steps := delayq.NewFlow("topic", "last", nil).Deadline(time.Hour)
		steps.Add("topic", nil)
		_, err := f.Client.OpenGroup(ctx, steps)
		refused(err, "a group is opened without steps; Group.Add adds them")
		_, err = f.Client.OpenGroup(ctx, delayq.NewFlow("topic", "last", nil))
		refused(err, "a group needs a Deadline")
		_, err = f.Client.OpenGroup(ctx, nil)
		refused(err, "nil Flow")
		var none *delayq.Group
		refused(none.Add(ctx))
		refused((&delayq.Group{}).Close(ctx))
		refused(f.Client.Group("a{", "x").Close(ctx), `close group topic "a{" job "x"`)

		g, err := f.Client.OpenGroup(ctx, delayq.NewFlow("topic", "last", nil).Deadline(time.Hour))
		require.NoError(t, err)
		before := f.Dump()
		refused(g.Add(ctx, delayq.NewJob{Topic: "topic", ID: "1"}, delayq.NewJob{Topic: "topic"}), `add to group topic "topic" job "last": job 1, topic "topic" job ""`, "empty ID")
		refused(g.Add(ctx, delayq.NewJob{Topic: "topic", ID: "1", Options: []delayq.JobOption{delayq.ProcessAtEach(time.Now())}}), "ProcessAtEach")
		refused(g.Add(ctx, delayq.NewJob{Topic: "topic", ID: "last"}), "it is the last step itself")
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, g.Add(cancelled, delayq.NewJob{Topic: "topic", ID: "1"}), context.Canceled)
		require.Equal(t, before, f.Dump())
		require.ErrorIs(t, f.Client.Group("topic", "other").Add(ctx, delayq.NewJob{Topic: "topic", ID: "1"}), delayq.ErrNotFound)
		require.Equal(t, delayq.StateScheduled, f.Dequeue("last"))
		require.ErrorIs(t, f.Client.Group("topic", "last").Close(ctx), delayq.ErrNotFound)

		_, err = f.Client.Start(ctx, delayq.NewFlow("topic", "plain", nil).Deadline(time.Hour))
		require.ErrorIs(t, err, delayq.ErrInvalid)
		plain := delayq.NewFlow("topic", "plain", nil).Deadline(time.Hour)
		plain.Add("topic", nil)
		_, err = f.Client.Start(ctx, plain)
		require.NoError(t, err)
		require.ErrorIs(t, f.Client.Group("topic", "plain").Add(ctx, delayq.NewJob{Topic: "topic", ID: "1"}), delayq.ErrGroupClosed, "it is no group")
	})
}

// A group takes more jobs than a call, and is read in parts.
func TestGroupOfManyJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		g, err := f.Client.OpenGroup(t.Context(), delayq.NewFlow("topic", "last", nil).Deadline(time.Hour))
		require.NoError(t, err)
		jobs := make([]delayq.NewJob, 1203)
		for n := range jobs {
			jobs[n] = delayq.NewJob{Topic: fmt.Sprint("t", n%3), ID: fmt.Sprint(n)}
		}
		jobs[7].Payload = make([]byte, 1<<20) // it has a call of its own
		require.NoError(t, g.Add(t.Context(), jobs...))
		insp := delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix))
		info, err := insp.Flow(t.Context(), "topic", "last")
		require.NoError(t, err)
		require.Len(t, info.Steps, 1000)
		require.Equal(t, []int{1203, 1203, 1000}, []int{info.Total, info.Left, info.Next})
		require.True(t, info.Group)
		rest, err := insp.FlowFrom(t.Context(), "topic", "last", info.Next)
		require.NoError(t, err)
		require.Len(t, rest.Steps, 203)
		require.Zero(t, rest.Next)
		for n, s := range append(info.Steps, rest.Steps...) {
			require.Equal(t, []any{n, jobs[n].Topic, jobs[n].ID, delayq.StepStarted}, []any{s.Number, s.Topic, s.ID, s.State})
		}
		_, err = insp.FlowFrom(t.Context(), "topic", "last", -1)
		require.ErrorIs(t, err, delayq.ErrInvalid)
	})
}

// losesOne returns a client that does not get the answer to the first call of a script.
func losesOne(f *queuetest.Fixture, which string) (*delayq.Client, *redistest.Fault) {
	fault := &redistest.Fault{What: delayq.Scripts()[which], Lose: true}
	o := redistest.Faulty(f.RDB, fault)
	o.MaxRetries = -1
	rdb := redis.NewClient(o)
	f.T.Cleanup(func() { _ = rdb.Close() })
	redistest.InRoles(f.T, rdb)
	return delayq.NewClient(rdb, delayq.Prefix(f.Prefix)), fault
}

// newFlow returns a flow of one step.
func newFlow(id string) *delayq.Flow {
	flow := delayq.NewFlow("topic", id, nil).Deadline(time.Hour)
	flow.AddJob("topic", id+"-1", nil)
	return flow
}

// A Start whose answer is lost and that is repeated starts the flow once.
func TestFlowWhoseStartHasNoAnswer(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		_, err := f.Client.Start(t.Context(), newFlow("first")) // Redis knows the script
		require.NoError(t, err)
		client, fault := losesOne(f, "flow_start")
		flow := newFlow("last")
		job, err := client.Start(t.Context(), flow)
		require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
		require.Equal(t, "last", job.ID)
		require.True(t, fault.Happened())
		before := f.Dump()
		again, err := client.Start(t.Context(), flow)
		require.NoError(t, err)
		require.Equal(t, job.Nonce(), again.Nonce())
		require.False(t, again.Due.IsZero())
		require.Equal(t, before, f.Dump())
	})
}

// If the caller of Close dies before the last step is released, another Close releases it.
func TestGroupIsClosedByTwo(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		g, err := f.Client.OpenGroup(t.Context(), delayq.NewFlow("topic", "last", nil).Deadline(time.Hour))
		require.NoError(t, err)
		require.NoError(t, g.Add(t.Context()), "nothing is sent")
		client, fault := losesOne(f, "flow_add")
		require.NoError(t, queuetest.LoadScripts(t.Context(), f.RDB))
		require.ErrorIs(t, client.Group("topic", "last").Close(t.Context()), delayq.ErrUnknownOutcome)
		require.True(t, fault.Happened())
		require.Equal(t, delayq.StateScheduled, f.Get("last").State, "it is closed and not released")
		require.NoError(t, g.Close(t.Context()))
		require.Equal(t, delayq.StateReady, f.Get("last").State)
	})
}

// A flow with a failed step whose failure does not count is at risk from half of its time on.
func TestStatsCountFlowsAtRisk(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := delayq.NewFlow("home", "f", nil).Deadline(time.Hour).IgnoreFailures()
		f.AddJob("a", "bad", nil)
		f.AddJob("b", "slow", nil, delayq.ProcessIn(50*time.Minute))
		s.fails("bad")
		s.start(f)
		s.Pass(29 * time.Minute)
		stats := s.Stats("home")
		require.EqualValues(s, 1, stats.Flows)
		require.Zero(s, stats.FlowsAtRisk)
		s.Pass(2 * time.Minute)
		require.EqualValues(s, 1, s.Stats("home").FlowsAtRisk)
		s.Pass(30 * time.Minute)
		require.Zero(s, s.Stats("home").FlowsAtRisk)
	})
}
