package tests

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// A randomFlow is a flow, and what is to become of it.
type randomFlow struct {
	flow *delayq.Flow
	runs map[string]bool // the steps that run if the flow does not fail
	bad  []string        // the steps whose handlers fail
	done bool            // the last step runs
}

// newRandomFlow makes a flow of some steps, each of which waits for some of those before it.
func newRandomFlow(random *rand.Rand) randomFlow {
	r := randomFlow{flow: newLast(), runs: make(map[string]bool), done: true}
	lenient := random.IntN(3) == 0
	if lenient {
		r.flow.IgnoreFailures()
	}
	var steps []*delayq.FlowStep
	var good, child []bool
	for i := range 2 + random.IntN(12) {
		id := fmt.Sprint("s", i)
		step := r.flow.AddJob(flowTopics[random.IntN(len(flowTopics))], id, nil)
		ignores, runs := random.IntN(4) == 0, true
		for n, other := range steps {
			if random.IntN(4) == 0 {
				step.After(other)
				child[n], runs = true, runs && good[n]
			}
		}
		if ignores {
			step.IgnoreFailures()
		}
		runs = runs || ignores
		fails := random.IntN(6) == 0
		if fails {
			r.bad = append(r.bad, id)
		}
		if runs {
			r.runs[id] = true
		}
		steps, good, child = append(steps, step), append(good, runs && !fails), append(child, false)
	}
	for n := range steps {
		r.done = r.done && (lenient || child[n] || good[n])
	}
	return r
}

// Whatever steps wait for, and whoever dies in between: steps run after those that they wait for,
// and the last step runs or is buried.
func TestAFlowEnds(t *testing.T) {
	calls := []*script.Script{
		script.Take, script.Ack, script.Bury, script.ParcelPlan, script.ParcelDone, script.EnqueueLinked, script.Arrive, script.FlowRelease,
		script.FlowBegin, script.FlowSweep, script.FlowCancel,
	}
	for n := range 40 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				random := rand.New(rand.NewPCG(uint64(n), 7))
				b.LoadScripts()
				w := queuetest.NewWire(b.Redis)
				s := &flowStage{Bubble: b, does: make(map[string]delayq.HandlerFunc), wire: w}
				queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, s.setup)
				synctest.Wait()
				f := newRandomFlow(random)
				for _, id := range f.bad {
					s.fails(id)
				}
				if n > 0 {
					w.Die(calls[random.IntN(len(calls))].Digest.(string), random.IntN(2) == 0)
				}
				s.start(f.flow)
				s.await()
				for id := range s.ran.Times() {
					require.True(s, id == "last" || f.runs[id], "%s ran", id)
				}
				if f.done {
					for id := range f.runs {
						require.NotEmpty(s, s.ran.Of(id), id)
					}
					require.NotEmpty(s, s.ran.Of("last"))
					ids := s.ran.IDs()
					require.Equal(s, "last", ids[len(ids)-1])
				} else {
					s.buried(delayq.KindDependency)
					_, err := s.Client.Dequeue(s.Context(), "home", "last")
					require.NoError(s, err)
					s.Pass(time.Second)
				}
				leftOfFlows(b)
			})
		})
	}
}
