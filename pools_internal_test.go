package delayq

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/delayq/delayq/internal/run"
	"github.com/stretchr/testify/require"
)

func membersOf(p *workerPool, weights ...int) (list []*poolMember) {
	for _, w := range weights {
		list = append(list, &poolMember{pool: p, weight: w})
	}
	return list
}

// checkPool checks the sums of a pool against its members.
func checkPool(t require.TestingT, p *workerPool, all []*poolMember) {
	sum, weight, waiting := p.idle, 0, 0
	for _, m := range all {
		require.GreaterOrEqual(t, m.has, 0)
		require.GreaterOrEqual(t, m.wants, 0)
		sum += m.has
		if m.active() {
			weight += m.weight
		}
		if m.wants > 0 {
			require.Same(t, m, p.queue[m.index])
			waiting++
		}
	}
	require.Equal(t, p.size, sum, "workers")
	require.Equal(t, weight, p.weight)
	require.Len(t, p.queue, waiting)
	require.True(t, p.idle == 0 || waiting == 0, "a worker is idle and a topic waits")
}

// Whatever its topics ask for, a pool has as many workers as it was made with, and none is idle
// while a topic waits. When no topic needs any, all are idle.
func TestPoolSum(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := newWorkerPool("p", 1+rnd.IntN(8))
		all := membersOf(p, 6, 3, 1, 1+rnd.IntN(1000), 1)
		for range 300 {
			m := all[rnd.IntN(len(all))]
			before, finished := m.has, 0
			if m.has > 0 {
				finished = rnd.IntN(2)
			}
			needs := rnd.IntN(p.size + 1)
			has, share, given := m.adjust(needs, finished, nil)
			require.Equal(t, m.has, has)
			require.LessOrEqual(t, has, max(needs, 0))
			require.True(t, share > 0 && share <= 1, "%v", share)
			require.False(t, slices.Contains(given, m))
			if needs >= before-finished {
				require.GreaterOrEqual(t, has, before-finished, "a worker that is needed was taken away")
			}
			checkPool(t, p, all)
		}
		for _, m := range all {
			m.adjust(0, 0, nil)
		}
		checkPool(t, p, all)
		require.Equal(t, p.size, p.idle)
	}
}

// Topics that always have jobs start them by their weights if the pool has one worker. If it has
// more, their workers are in that proportion.
func TestPoolShares(t *testing.T) {
	p := newWorkerPool("p", 1)
	all := membersOf(p, 6, 3, 1)
	for _, m := range all {
		m.adjust(1, 0, nil)
	}
	starts := make([]int, 3)
	for range 1000 {
		i := slices.IndexFunc(all, func(m *poolMember) bool { return m.has == 1 })
		starts[i]++
		all[i].adjust(1, 1, nil)
	}
	for i, want := range []int{600, 300, 100} {
		require.InDelta(t, want, starts[i], 1)
	}

	p = newWorkerPool("p", 20)
	all = membersOf(p, 6, 3, 1)
	all[2].adjust(20, 0, nil)
	require.Equal(t, 20, all[2].has, "idle workers are lent")
	all[0].adjust(20, 0, nil)
	all[1].adjust(20, 0, nil)
	require.Equal(t, 0, all[0].has+all[1].has, "no worker is taken away")
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		m := all[rnd.IntN(3)]
		if m.has > 0 {
			m.adjust(20, 1, nil)
		}
	}
	require.Equal(t, []int{12, 6, 2}, []int{all[0].has, all[1].has, all[2].has})
}

// Time without jobs earns a topic nothing.
func TestPoolHasNoCredit(t *testing.T) {
	p := newWorkerPool("p", 1)
	all := membersOf(p, 1, 1)
	all[0].adjust(1, 0, nil)
	for range 100 {
		all[0].adjust(1, 1, nil)
	}
	all[1].adjust(1, 0, nil)
	order := ""
	for range 20 {
		i := slices.IndexFunc(all, func(m *poolMember) bool { return m.has == 1 })
		order += fmt.Sprint(i)
		all[i].adjust(1, 1, nil)
	}
	require.Contains(t, []string{"01010101010101010101", "00101010101010101010", "01101010101010101010"}, order)
}

// A topic in a pool takes jobs ahead for its share of the pool, so that many topics with short
// handlers do not take more than the pool can start.
func TestPoolAhead(t *testing.T) {
	p := newWorkerPool("p", 10)
	w := workers{member: membersOf(p, 1)[0], count: 10, share: 1, handlerTime: aheadTime / aheadLimit}
	require.Equal(t, aheadLimit, w.ahead())
	w.share = 0.01
	require.Equal(t, aheadLimit/10, w.ahead())
	w.handlerTime, w.share = aheadTime, 0.3
	require.Equal(t, 3, w.ahead())
	w.handlerTime = 0
	require.Equal(t, aheadLimit, w.ahead())
}

// A topic with a batch handler needs a worker for each batch. While a batch is gathered, the jobs
// that are coming fill it. A topic that waits for room needs as many as it may have, and one that
// is stopping needs those that are running.
func TestPoolNeedsOfBatches(t *testing.T) {
	member := membersOf(newWorkerPool("p", 8), 1)[0]
	for want, all := range map[int][]workers{
		0: {{}, {perCall: 10}, {stopping: true, keen: true, claimed: 9}},
		1: {{perCall: 10, claimed: 1}, {perCall: 10, next: make([]*run.Run, 3), claimed: 7}, {next: make([]*run.Run, 1)},
			{busy: 1, stopping: true, next: make([]*run.Run, 5), keen: true}},
		2: {{perCall: 10, next: make([]*run.Run, 3), claimed: 8}, {busy: 1, perCall: 10, next: make([]*run.Run, 10)}, {claimed: 2}},
		5: {{keen: true}, {busy: 2, claimed: 40}, {perCall: 10, keen: true, next: make([]*run.Run, 1)}},
		7: {{busy: 7, stopping: true}},
	} {
		for i, w := range all {
			w.member, w.count = member, 5
			require.Equal(t, want, w.needs(), "%d, %d", want, i)
		}
	}

	// The first of the two batches takes ten jobs, and the second the rest.
	w := workers{member: member, count: 5, perCall: 10, has: 2, next: make([]*run.Run, 13)}
	require.Equal(t, 2, w.needs())
	w.busy, w.next = 1, w.next[10:]
	require.Equal(t, 2, w.needs())
	w.next = nil
	require.Equal(t, 1, w.needs(), "the second worker is free for others")
}
