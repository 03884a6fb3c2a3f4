package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// diamond is a flow of four steps of the topics a, b and c, with the last step called id.
func diamond(id string) *delayq.Flow {
	f := delayq.NewFlow("home", id, nil).Deadline(time.Hour)
	top := f.AddJob("a", id+"-top", nil)
	left := f.AddJob("b", id+"-left", nil).After(top)
	right := f.AddJob("c", id+"-right", nil, delayq.ProcessIn(time.Second)).After(top)
	f.AddJob("a", id+"-bottom", nil).After(left, right)
	return f
}

// flowFaults are ways in which one call of a server can go wrong.
var flowFaults = map[string]func(w *queuetest.Wire, text string){
	"the reply is lost":       func(w *queuetest.Wire, text string) { w.Lose(text) },
	"it dies after the call":  func(w *queuetest.Wire, text string) { w.Die(text, false) },
	"it dies before the call": func(w *queuetest.Wire, text string) { w.Die(text, true) },
}

// A process can die at each call by which a flow goes on, before or after Redis has carried it out,
// or the reply can be lost. Another server goes on, and each step is done once.
func TestFlowOverFaults(t *testing.T) {
	for _, s := range []*script.Script{
		script.Take, script.Ack, script.ParcelPlan, script.EnqueueLinked, script.ParcelDone, script.Arrive, script.FlowRelease, script.FlowBegin,
	} {
		for how, fault := range flowFaults {
			t.Run(s.Name+", "+how, func(t *testing.T) {
				onFaultyStage(t, s, fault, func(s *flowStage) {
					s.start(diamond("last"))
					s.await()
					require.Equal(s, int64(1), s.Counter("home", "acked"))
					require.Equal(s, int64(2), s.Counter("a", "acked"))
					require.Equal(s, int64(1), s.Counter("b", "acked"))
					require.Equal(s, int64(1), s.Counter("c", "acked"))
					for _, topic := range flowTopics[1:] {
						require.Equal(s, s.Counter(topic, "acked"), s.Counter(topic, "enqueued"), topic)
					}
					s.over()
				})
			})
		}
	}
}

// The same with a flow that fails: what has started is cancelled, and the last step is buried.
func TestFlowFailsOverFaults(t *testing.T) {
	for _, s := range []*script.Script{script.Bury, script.Arrive, script.FlowRelease, script.FlowBegin, script.FlowSweep, script.FlowCancel} {
		for how, fault := range flowFaults {
			t.Run(s.Name+", "+how, func(t *testing.T) {
				onFaultyStage(t, s, fault, func(s *flowStage) {
					s.fails("last-left")
					f := diamond("last")
					f.AddJob("c", "long", nil, delayq.ProcessIn(50*time.Minute))
					s.start(f)
					s.await()
					s.buried(delayq.KindDependency, `"last-left"`, "is broken")
					require.Empty(s, s.State("c", "long"))
					require.Empty(s, s.State("a", "last-bottom"))
				})
			})
		}
	}
}

// onFaultyStage runs a test on a flowStage whose server has a network of its own, on which a call
// of a script goes wrong.
func onFaultyStage(t *testing.T, at *script.Script, fault func(w *queuetest.Wire, text string), test func(s *flowStage)) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		s := &flowStage{Bubble: b, does: make(map[string]delayq.HandlerFunc)}
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, s.setup)
		synctest.Wait()
		fault(w, at.Digest.(string))
		s.wire = w
		test(s)
	})
}

// await starts another server, and waits until both have had the time to do all that is left.
func (s *flowStage) await() {
	s.Pass(100 * time.Millisecond)
	s.serve()
	s.Pass(time.Minute)
	s.wire.Heal()
	s.Pass(10 * time.Second)
}

// A server that stops while it passes steps on says nothing about that, and the next one goes on.
func TestFlowAtAStop(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		s := &flowStage{Bubble: b, does: make(map[string]delayq.HandlerFunc)}
		first := queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, s.setup, s.log.To())
		synctest.Wait()
		w.Stall(script.EnqueueLinked.Digest.(string))
		s.start(diamond("last"))
		s.Pass(10 * time.Millisecond)
		require.NoError(s, first.Stop())
		require.Empty(s, s.log.With("relay to"))
		s.serve()
		s.Pass(2 * time.Second)
		s.order("last-top", "last-left", "last-right", "last-bottom", "last")
		s.over()
	})
}

// Servers that find the same parcels carry them out once, whoever is faster at each call.
func TestFlowsOfManyServers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		s := &flowStage{Bubble: b, does: make(map[string]delayq.HandlerFunc)}
		for i := range 3 {
			w := queuetest.NewWire(b.Redis)
			n := 0
			w.Jitter(func() time.Duration { n++; return time.Duration((n*(7+i))%13) * time.Millisecond })
			queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, s.setup)
		}
		synctest.Wait()
		const flows = 30
		for i := range flows {
			s.start(diamond(fmt.Sprint(i)))
			s.Pass(3 * time.Millisecond)
		}
		s.Pass(time.Minute)
		times := s.ran.Times()
		require.Len(s, times, 5*flows)
		for id, n := range times {
			require.Equal(s, 1, n, id)
		}
		s.over()
	})
}

// A flow can have more steps than one call takes, and one end can start as many.
func TestFlowOfManySteps(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		top := f.AddJob("a", "top", nil)
		const steps = 999
		for i := range steps {
			f.AddJob(flowTopics[1+i%3], fmt.Sprint(i), nil).After(top)
		}
		s.start(f)
		s.Pass(time.Second)
		ids := s.ran.IDs()
		require.Len(s, ids, steps+2)
		require.Equal(s, "top", ids[0])
		require.Equal(s, "last", ids[len(ids)-1])
		s.over()
	})
}

// All started steps of a flow that fails are cancelled, however many.
func TestFlowOfManyStepsFails(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		s.fails("bad")
		f := newLast()
		f.AddJob("a", "bad", nil, delayq.ProcessIn(time.Second))
		for i := range 900 {
			f.AddJob("b", fmt.Sprint(i), nil, delayq.ProcessIn(time.Minute))
		}
		s.start(f)
		require.Equal(s, int64(900), s.Stats("b").Scheduled)
		s.Pass(2 * time.Second)
		s.buried(delayq.KindDependency, `"bad"`)
		require.Zero(s, s.Stats("b").Scheduled)
		_, err := s.Client.Dequeue(s.Context(), "home", "last")
		require.NoError(s, err)
		s.Pass(time.Second)
		leftOfFlows(s.Bubble)
	})
}

// lose deletes what Redis has of a topic, as a failover does that loses the last writes.
func (s *flowStage) lose(topic string) {
	keys, err := s.RDB.Keys(s.Context(), queuetest.Prefix+":{"+topic+"}:*").Result()
	require.NoError(s, err)
	require.NotEmpty(s, keys)
	require.NoError(s, s.RDB.Del(s.Context(), keys...).Err())
}

// A step whose job Redis has lost ends as lost.
func TestFlowWhoseStepIsLost(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast().Deadline(24 * time.Hour)
		for i := range 3 {
			f.AddJob("a", fmt.Sprint(i), nil, delayq.ProcessIn(23*time.Hour))
			f.AddJob("b", fmt.Sprint(i), nil, delayq.ProcessIn(23*time.Hour))
		}
		s.start(f)
		s.Pass(time.Minute)
		s.lose("a")
		s.Pass(serve.GuardAge - time.Minute)
		require.Equal(s, delayq.StateScheduled, s.State("home", "last"))
		s.Pass(4 * serve.GuardEvery)
		s.buried(delayq.KindDependency, `of the topic "a" is lost`, "the job is not there")
		require.Zero(s, s.Stats("b").Scheduled, "cancelled")
		require.Len(s, s.log.With("steps of flows lost", "count=3", "job=last"), 1)
	})
}

// Steps that are there are left alone, however long they take, and also if nothing runs them.
func TestFlowIsGuardedForNothing(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast().Deadline(24 * time.Hour)
		f.AddJob("a", "1", nil, delayq.ProcessIn(3*time.Hour))
		f.AddJob("unserved", "2", nil)
		f.AddJob("b", "snoozed", nil)
		s.on("snoozed", func(context.Context, *delayq.Job) error { return delayq.Snooze(20 * time.Minute) })
		s.start(f)
		s.Pass(2 * serve.GuardAge)
		require.Equal(s, delayq.StateScheduled, s.State("home", "last"))
		require.Empty(s, s.log.With("lost"))
	})
}

// If the last step is gone, so is the flow. Its steps are cancelled.
func TestFlowWithoutItsLastStep(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		f.AddJob("a", "1", nil, delayq.ProcessIn(9*time.Minute))
		s.start(f)
		root := queuetest.Prefix + ":{home}:"
		require.NoError(s, s.RDB.HDel(s.Context(), root+"pool", "last").Err())
		require.NoError(s, s.RDB.ZRem(s.Context(), root+"bucket", "last").Err())
		require.NoError(s, s.RDB.HDel(s.Context(), root+"all:notes", "llast").Err())
		s.Pass(2 * serve.GuardEvery)
		require.Empty(s, s.State("a", "1"))
		s.over()
		require.Len(s, s.log.With("flows without their last steps", "count=1"), 1)
	})
}

// If the data of the flow is gone, the last step is buried at the deadline, because nobody knows
// whether it may run.
func TestFlowWithoutItsData(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		f.AddJob("a", "1", nil, delayq.ProcessIn(time.Minute))
		s.start(f)
		root := queuetest.Prefix + ":{home}:all:"
		require.NoError(s, s.RDB.Del(s.Context(), root+"flows", root+"steps").Err())
		s.Pass(10*time.Minute + time.Second)
		s.order("1")
		last := s.Get("home", "last")
		require.Equal(s, delayq.StateDead, last.State)
		require.Equal(s, delayq.KindLostFlow, last.Errors[0].Kind)
		require.NoError(s, s.Client.Revive(s.Context(), "home", "last"))
		s.Pass(time.Second)
		s.order("1", "last")
		s.over()
	})
}

// While Redis refuses to say how flows have come, last steps are put off, and other jobs run.
func TestFlowWhoseStateCannotBeRead(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		f.AddJob("a", "1", nil, delayq.ProcessIn(time.Minute))
		s.start(f)
		key := queuetest.Prefix + ":{home}:all:flows"
		require.NoError(s, s.RDB.Rename(s.Context(), key, "kept").Err())
		require.NoError(s, s.RDB.Set(s.Context(), key, "x", 0).Err())
		require.NoError(s, s.Client.Reschedule(s.Context(), "home", "last", delayq.ProcessIn(time.Second)))
		s.Enqueue("home", "other", delayq.ProcessIn(2*time.Second))
		s.Pass(3 * time.Second)
		s.order("other")
		require.Len(s, s.log.With("flow_begin failed"), 1)
		require.Equal(s, delayq.StateScheduled, s.State("home", "last"))
		require.NoError(s, s.RDB.Rename(s.Context(), "kept", key).Err())
		s.Pass(time.Minute)
		last := s.Get("home", "last")
		require.Equal(s, delayq.StateDead, last.State)
		require.Equal(s, delayq.KindDeadline, last.Errors[0].Kind)
	})
}

// On a Cluster steps can be jobs of topics on all nodes.
func TestFlowOnACluster(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.SharedCluster(t).Client(t))
	topics := queuetest.TopicsOnAllNodes()
	var ran queuetest.Recorder
	queuetest.ServeMany(t, f.RDB, f.Prefix, func(s *delayq.Server) {
		s.Handle("home", ran.Then(nil))
		for _, topic := range topics {
			s.Handle(topic, ran.Then(func(_ context.Context, job *delayq.Job) error {
				if string(job.Payload) == "bad" {
					return delayq.Permanent(errors.New("broken"))
				}
				return nil
			}))
		}
	})
	const flows = 20
	for i := range flows {
		payload := "good"
		if i == 0 {
			payload = "bad"
		}
		flow := delayq.NewFlow("home", fmt.Sprint(i), nil).Deadline(time.Hour)
		var before []*delayq.FlowStep
		for _, topic := range topics {
			before = append(before, flow.Add(topic, []byte(payload)))
		}
		flow.Add(topics[0], nil).After(before...)
		_, err := f.Client.Start(t.Context(), flow)
		require.NoError(t, err)
	}
	queuetest.Until(t, func() bool {
		s := queuetest.StatsOf(t, f.Inspector, "home")
		return s.Scheduled+s.Ready+s.Running+s.Parcels == 0
	})
	require.Equal(t, int64(flows-1), queuetest.CounterOf(t, f.Inspector, "home", "acked"))
	require.Equal(t, delayq.StateDead, queuetest.StateOf(t, f.Client, "home", "0"))
	require.Len(t, ran.All(), (flows-1)*(len(topics)+2)+len(topics))
}
