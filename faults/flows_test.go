package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
)

// A stormFlow is a flow of the storm.
type stormFlow struct {
	topic, id string
	steps     []stormStep
	fails     bool // a step that nothing makes good
}

// A stormStep is a step of it.
type stormStep struct {
	topic, id string
	after     []int
	ends      string // what its handler does: see rig.Task
	ignores   bool
	runs      bool // it is started, unless its flow has failed before
}

// stormFlows makes flows of 2 to 12 steps.
func stormFlows(n int) []stormFlow {
	rng := rand.New(rand.NewPCG(7, 11))
	list := make([]stormFlow, n)
	for i := range list {
		f := stormFlow{topic: fmt.Sprint("last", i%3), id: fmt.Sprint("f", i)}
		steps := 2 + rng.IntN(11)
		waited, good := make([]bool, steps), make([]bool, steps)
		for s := range steps {
			step := stormStep{topic: fmt.Sprint("step", rng.IntN(6)), id: fmt.Sprintf("%s-%d", f.id, s), ends: "ok", runs: true}
			for range rng.IntN(3) {
				if before := rng.IntN(s + 1); before < s && !waited[before] {
					step.after, waited[before] = append(step.after, before), true
				}
			}
			step.ignores = rng.IntN(4) == 0
			for _, before := range step.after {
				step.runs = step.runs && (good[before] || step.ignores)
			}
			switch rng.IntN(40) {
			case 0:
				step.ends = "perm"
			case 1:
				step.ends = "hang:100ms"
			}
			good[s] = step.runs && step.ends != "perm"
			f.steps = append(f.steps, step)
		}
		for s := range steps {
			f.fails = f.fails || !waited[s] && !good[s]
		}
		list[i] = f
	}
	return list
}

// start starts it.
func (f *stormFlow) start(ctx context.Context, client *delayq.Client) error {
	payload := func(ends string) []byte { return fmt.Appendf(nil, `{"inc":1,"steps":[%q]}`, ends) }
	flow := delayq.NewFlow(f.topic, f.id, payload("ok")).Deadline(time.Hour)
	made := make([]*delayq.FlowStep, len(f.steps))
	for i, s := range f.steps {
		made[i] = flow.AddJob(s.topic, s.id, payload(s.ends), delayq.Backoff(50*time.Millisecond, time.Second))
		for _, before := range s.after {
			made[i].After(made[before])
		}
		if s.ignores {
			made[i].IgnoreFailures()
		}
	}
	_, err := client.Start(ctx, flow)
	return err
}

// Three workers are killed again and again while flows run over the three nodes of a Cluster. Each
// flow comes to its end, none waits for ever, and no step starts before what it waits for.
func TestKilledWorkersFinishEachFlow(t *testing.T) {
	b := newBench(t)
	cluster := redistest.StartCluster(t, 3, 0)
	access := rig.Redis{Cluster: cluster.Addrs()}
	rdb := access.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	b.client, b.cluster = b.newClient(rdb), rdb
	var topics []string
	for i := range 6 {
		topics = append(topics, fmt.Sprint("step", i))
	}
	for i := range 3 {
		topics = append(topics, fmt.Sprint("last", i))
	}
	var workers []*rig.Worker
	for i := range 3 {
		workers = append(workers, b.worker(fmt.Sprint("w", i), func(c *rig.WorkerConfig) { c.Redis, c.Topics = access, topics }))
	}
	flows, kills := 300, 12
	if testing.Short() {
		flows, kills = 120, 6
	}
	list := stormFlows(flows)
	perKill := max(flows/kills, 1)
	for i := range list {
		require.NoError(t, list[i].start(t.Context(), b.client.Client))
		if i%perKill != perKill-1 {
			continue
		}
		w, from := workers[i/perKill%len(workers)], rig.Mono()
		b.awaitN(1, "start", func(e rig.Event) bool {
			return e.Op == rig.OpStart && e.Proc == w.Name() && e.Mono > from-time.Second.Nanoseconds()
		})
		require.NoError(t, w.Kill())
		require.NoError(t, w.Start())
	}
	settled := func(events []rig.Event, result string) map[string]bool {
		ids := map[string]bool{}
		for _, e := range events {
			if e.Op == rig.OpSettled && e.Result == result {
				ids[e.Topic+" "+e.ID] = true
			}
		}
		return ids
	}
	b.await("all flows are over", 5*time.Minute, func(events []rig.Event) bool {
		// A worker that is killed between an end and its record leaves none, so Redis is asked too.
		done, dead := settled(events, "done"), settled(events, "buried")
		for _, f := range list {
			if id := f.topic + " " + f.id; !done[id] && !dead[id] && !b.isOver(f) {
				return false
			}
		}
		return true
	})
	b.flowsAreAsExpected(list)
}

// isOver reports whether the last step of a flow is gone or dead.
func (b *bench) isOver(f stormFlow) bool {
	info, err := b.client.Client.Get(context.Background(), f.topic, f.id)
	return err == nil && (info == nil || info.State == delayq.StateDead) || err != nil && errors.Is(err, delayq.ErrNotFound)
}

// flowsAreAsExpected looks at how flows have ended, and in which order.
func (b *bench) flowsAreAsExpected(list []stormFlow) {
	b.t.Helper()
	first, ended := map[string]int64{}, map[string]int64{} // the first start, and the last good end
	for _, e := range b.events(func(e rig.Event) bool { return e.Op == rig.OpStart || e.Op == rig.OpEnd }) {
		id := e.Topic + " " + e.ID
		switch {
		case e.Op == rig.OpStart && (first[id] == 0 || e.Mono < first[id]):
			first[id] = e.Mono
		case e.Op == rig.OpEnd && (ended[id] == 0 || e.Mono < ended[id]):
			ended[id] = e.Mono
		}
	}
	dead := 0
	for _, f := range list {
		last := f.topic + " " + f.id
		if f.fails {
			dead++
			require.Zero(b.t, first[last], "%s has run", last)
			info, err := b.client.Client.Get(b.t.Context(), f.topic, f.id)
			require.NoError(b.t, err)
			require.Equal(b.t, delayq.StateDead, info.State, last)
			continue
		}
		require.NotZero(b.t, first[last], "%s has not run", last)
		for _, s := range f.steps {
			id := s.topic + " " + s.id
			require.Equal(b.t, s.runs, first[id] != 0, id)
			if !s.runs {
				continue
			}
			require.Less(b.t, ended[id], first[last], "%s began before %s had ended", last, id)
			for _, before := range s.after {
				if w := f.steps[before]; w.runs {
					require.Less(b.t, ended[w.topic+" "+w.id], first[id], "%s began before what it waits for", id)
				}
			}
		}
	}
	require.NotZero(b.t, dead, "some flows fail")
}
