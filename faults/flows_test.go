package faults_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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

// A stormSize is how large the storm is.
type stormSize struct {
	flows       int
	least, most int // steps of a flow: most flows are small
	running     int // flows at a time
	kills       int
	moves       int // of slots from node to node
	lease       time.Duration
}

// sizeOfStorm is small where other tests run beside it. With DELAYQ_FULL it takes half an hour:
//
//	DELAYQ_FULL=1 go test -run TestKilledWorkersFinishEachFlow -timeout 2h .
func sizeOfStorm() stormSize {
	switch {
	case os.Getenv("DELAYQ_FULL") != "":
		return stormSize{flows: 10_000, least: 10, most: 1000, running: 300, kills: 300, moves: 60, lease: 5 * time.Second}
	case testing.Short():
		return stormSize{flows: 120, least: 2, most: 12, running: 120, kills: 6, moves: 2, lease: lease}
	}
	return stormSize{flows: 300, least: 2, most: 12, running: 300, kills: 12, moves: 4, lease: lease}
}

// stormFlows makes the flows. In small ones a step of 40 ends badly. In large ones fewer do, so
// that most flows get far.
func stormFlows(size stormSize) []stormFlow {
	rng := rand.New(rand.NewPCG(7, 11))
	list := make([]stormFlow, size.flows)
	for i := range list {
		f := stormFlow{topic: fmt.Sprint("last", i%3), id: fmt.Sprint("f", i)}
		ratio := float64(size.most) / float64(size.least)
		steps := int(float64(size.least) * math.Pow(ratio, rng.Float64()))
		waited, good := make([]bool, steps), make([]bool, steps)
		for s := range steps {
			step := stormStep{topic: fmt.Sprint("step", rng.IntN(6)), id: fmt.Sprintf("%s-%d", f.id, s), ends: "ok", runs: true}
			for range rng.IntN(3) {
				if before := rng.IntN(s + 1); before < s && (!waited[before] || rng.IntN(8) == 0) && !slices.Contains(step.after, before) {
					step.after, waited[before] = append(step.after, before), true
				}
			}
			step.ignores = rng.IntN(4) == 0
			for _, before := range step.after {
				step.runs = step.runs && (good[before] || step.ignores)
			}
			switch {
			case rng.IntN(4*max(5*size.least, steps)) == 0:
				step.ends = "perm"
			case rng.IntN(20) == 0:
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

// start starts it, once it is possible: while a slot moves, it can be refused.
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
	var err error
	within(patientFailover, func() bool {
		_, err = client.Start(ctx, flow)
		return err == nil || errors.Is(err, delayq.ErrInvalid) || ctx.Err() != nil
	})
	return err
}

// Three workers are killed again and again, and slots are moved, while flows run over the three
// nodes of a Cluster. Each flow comes to its end, none waits for ever, no step starts before what
// it waits for, and only a fault makes a step run twice.
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
	size := sizeOfStorm()
	var workers []*rig.Worker
	for i := range 3 {
		workers = append(workers, b.worker(fmt.Sprint("w", i), func(c *rig.WorkerConfig) {
			c.Redis, c.Topics, c.Lease, c.Dead = access, topics, size.lease, 10*size.flows
		}))
	}
	list := stormFlows(size)
	slots := make(chan struct{}, size.running)
	stop := b.background(func(ctx context.Context) {
		for i := range list {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			if err := list[i].start(ctx, b.client.Client); err != nil && ctx.Err() == nil {
				b.t.Errorf("start %s: %v", list[i].id, err)
			}
		}
	})
	defer stop()
	perKill, perMove := size.flows/size.kills, size.flows/size.moves
	for i := range list { // they end in about the order of their starts
		eventually(t, list[i].id+" is over", 5*time.Minute, func() bool { return b.isOver(list[i]) })
		<-slots
		if i%perKill == perKill-1 {
			w := workers[i/perKill%len(workers)]
			require.NoError(t, w.Kill())
			require.NoError(t, w.Start())
		}
		if i%perMove == perMove-1 {
			topic := topics[i/perMove%len(topics)]
			b.rec.Record(rig.Event{Op: rig.OpFault, Result: "reshard", Topic: topic})
			b.slotMove(cluster, rdb.(*redis.ClusterClient), topic)()
			b.rec.Record(rig.Event{Op: rig.OpHeal, Result: "reshard", Topic: topic})
		}
	}
	b.flowsAreAsExpected(list)
}

// isOver reports whether the last step of a flow is gone or dead.
func (b *bench) isOver(f stormFlow) bool {
	info, err := b.client.Client.Get(context.Background(), f.topic, f.id)
	return err == nil && (info == nil || info.State == delayq.StateDead) || err != nil && errors.Is(err, delayq.ErrNotFound)
}

// A stepRun is the start of a run.
type stepRun struct {
	proc string
	at   int64 // by the clock of the histories
}

// A stormFault lasts from and until these times. It can make runs be repeated.
type stormFault struct {
	kind        string
	from, until int64
}

// stepRuns is what the history has of a step.
type stepRuns struct {
	starts []stepRun
	ended  int64 // first
}

// begun is when it began first, or 0.
func (r *stepRuns) begun() int64 {
	if r == nil || len(r.starts) == 0 {
		return 0
	}
	return slices.MinFunc(r.starts, func(a, b stepRun) int { return cmp.Compare(a.at, b.at) }).at
}

// runsOfFlows reads the history, which can be too long to be held: the runs by step, and the faults
// by worker or topic.
func (b *bench) runsOfFlows() (runs map[string]*stepRuns, faults map[string][]stormFault) {
	b.t.Helper()
	runs, faults = map[string]*stepRuns{}, map[string][]stormFault{}
	require.NoError(b.t, b.history.Each(func(e rig.Event) {
		switch at := e.ID + e.Topic; {
		case e.Op == rig.OpFault && e.Result == rig.Stall:
			faults[at] = append(faults[at], stormFault{e.Result, e.Mono - e.Delay*int64(time.Millisecond), e.Mono})
		case e.Op == rig.OpFault:
			faults[at] = append(faults[at], stormFault{e.Result, e.Mono, 0})
		case e.Op == rig.OpHeal && e.Result != rig.Stall:
			faults[at][len(faults[at])-1].until = e.Mono
		}
		if e.Op != rig.OpStart && e.Op != rig.OpEnd {
			return
		}
		r := runs[e.Topic+" "+e.ID]
		if r == nil {
			r = &stepRuns{}
			runs[e.Topic+" "+e.ID] = r
		}
		switch {
		case e.Op == rig.OpStart:
			r.starts = append(r.starts, stepRun{e.Proc, e.Mono})
		case r.ended == 0 || e.Mono < r.ended:
			r.ended = e.Mono
		}
	}))
	return runs, faults
}

// onlyFaultsRepeat looks whether each run that was followed by another one met a fault: its worker
// was killed or stood still, or the slot of its topic was on the move. It counts them by the fault.
func (b *bench) onlyFaultsRepeat(runs map[string]*stepRuns, faults map[string][]stormFault) (repeats map[string]int) {
	b.t.Helper()
	repeats = map[string]int{}
	for id, r := range runs {
		topic, _, _ := strings.Cut(id, " ")
		slices.SortFunc(r.starts, func(a, b stepRun) int { return cmp.Compare(a.at, b.at) })
		for i := 1; i < len(r.starts); i++ {
			before, then := r.starts[i-1], r.starts[i]
			met := slices.Concat(faults[before.proc], faults[topic])
			// The first line of a kill is written before the process is gone.
			at := slices.IndexFunc(met, func(f stormFault) bool { return f.from < then.at && f.until > before.at })
			require.GreaterOrEqual(b.t, at, 0, "%s has run twice without a fault, the first time by %s", id, before.proc)
			repeats[met[at].kind]++
		}
	}
	return repeats
}

// flowsAreAsExpected looks at how flows have ended, and in which order.
func (b *bench) flowsAreAsExpected(list []stormFlow) {
	b.t.Helper()
	runs, faults := b.runsOfFlows()
	dead, steps := 0, 0
	for _, f := range list {
		last := f.topic + " " + f.id
		begun := runs[last].begun()
		if f.fails {
			dead++
			require.Zero(b.t, begun, "%s has run", last)
			info, err := b.client.Client.Get(b.t.Context(), f.topic, f.id)
			require.NoError(b.t, err)
			require.Equal(b.t, delayq.StateDead, info.State, last)
			continue
		}
		require.NotZero(b.t, begun, "%s has not run", last)
		for _, s := range f.steps {
			id := s.topic + " " + s.id
			r := runs[id]
			require.Equal(b.t, s.runs, r.begun() != 0, id)
			if !s.runs {
				continue
			}
			steps++
			require.Less(b.t, r.ended, begun, "%s began before %s had ended", last, id)
			for _, before := range s.after {
				if w := f.steps[before]; w.runs {
					require.Less(b.t, runs[w.topic+" "+w.id].ended, r.begun(), "%s began before what it waits for", id)
				}
			}
		}
	}
	require.NotZero(b.t, dead, "some flows fail")
	b.t.Logf("%d flows, of which %d failed, as they must; %d steps of the others; runs that were repeated, by the fault that they met: %v",
		len(list), dead, steps, b.onlyFaultsRepeat(runs, faults))
}
