package workers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/run"
)

func membersOf(p *Pool, weights ...int) (list []*Member) {
	for _, w := range weights {
		list = append(list, &Member{Pool: p, Weight: w})
	}
	return list
}

// checkPool checks the sums of a pool against its members.
func checkPool(t require.TestingT, p *Pool, all []*Member) {
	sum, weight, waiting := p.idle, 0, 0
	for _, m := range all {
		require.GreaterOrEqual(t, m.has, 0)
		require.GreaterOrEqual(t, m.wants, 0)
		sum += m.has
		if m.active() {
			weight += m.Weight
		}
		if m.wants > 0 {
			require.Same(t, m, p.queue[m.index])
			waiting++
		}
	}
	require.Equal(t, p.Size, sum, "workers")
	require.Equal(t, weight, p.weight)
	require.Len(t, p.queue, waiting)
	require.True(t, p.idle == 0 || waiting == 0, "a worker is idle and a topic waits")
}

// Whatever its topics ask for, a pool has as many workers as it was made with, and none is idle
// while a topic waits. When no topic needs any, all are idle.
func TestPoolSum(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := NewPool("p", 1+rnd.IntN(8))
		all := membersOf(p, 6, 3, 1, 1+rnd.IntN(1000), 1)
		for range 300 {
			m := all[rnd.IntN(len(all))]
			before, finished := m.has, 0
			if m.has > 0 {
				finished = rnd.IntN(2)
			}
			needs := rnd.IntN(p.Size + 1)
			has, share, given := m.Adjust(needs, finished, nil)
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
			m.Adjust(0, 0, nil)
		}
		checkPool(t, p, all)
		require.Equal(t, p.Size, p.idle)
	}
}

// Topics that always have jobs start them by their weights if the pool has one worker. If it has
// more, their workers are in that proportion.
func TestPoolShares(t *testing.T) {
	p := NewPool("p", 1)
	all := membersOf(p, 6, 3, 1)
	for _, m := range all {
		m.Adjust(1, 0, nil)
	}
	starts := make([]int, 3)
	for range 1000 {
		i := slices.IndexFunc(all, func(m *Member) bool { return m.has == 1 })
		starts[i]++
		all[i].Adjust(1, 1, nil)
	}
	for i, want := range []int{600, 300, 100} {
		require.InDelta(t, want, starts[i], 1)
	}

	p = NewPool("p", 20)
	all = membersOf(p, 6, 3, 1)
	all[2].Adjust(20, 0, nil)
	require.Equal(t, 20, all[2].has, "idle workers are lent")
	all[0].Adjust(20, 0, nil)
	all[1].Adjust(20, 0, nil)
	require.Equal(t, 0, all[0].has+all[1].has, "no worker is taken away")
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		m := all[rnd.IntN(3)]
		if m.has > 0 {
			m.Adjust(20, 1, nil)
		}
	}
	require.Equal(t, []int{12, 6, 2}, []int{all[0].has, all[1].has, all[2].has})
}

// Time without jobs earns a topic nothing.
func TestPoolHasNoCredit(t *testing.T) {
	p := NewPool("p", 1)
	all := membersOf(p, 1, 1)
	all[0].Adjust(1, 0, nil)
	for range 100 {
		all[0].Adjust(1, 1, nil)
	}
	all[1].Adjust(1, 0, nil)
	order := ""
	for range 20 {
		i := slices.IndexFunc(all, func(m *Member) bool { return m.has == 1 })
		order += fmt.Sprint(i)
		all[i].Adjust(1, 1, nil)
	}
	require.Contains(t, []string{"01010101010101010101", "00101010101010101010", "01101010101010101010"}, order)
}

// A topic in a pool takes jobs ahead for its share of the pool, so that many topics with short
// handlers do not take more than the pool can start.
func TestPoolAhead(t *testing.T) {
	p := NewPool("p", 10)
	w := Workers{Member: membersOf(p, 1)[0], Count: 10, Share: 1, HandlerTime: AheadTime / aheadLimit}
	require.Equal(t, aheadLimit, w.Ahead())
	w.Share = 0.01
	require.Equal(t, aheadLimit/10, w.Ahead())
	w.HandlerTime, w.Share = AheadTime, 0.3
	require.Equal(t, 3, w.Ahead())
	w.HandlerTime = 0
	require.Equal(t, aheadLimit, w.Ahead())
}

// A topic with a batch handler needs a worker for each batch. While a batch is gathered, the jobs
// that are coming fill it. A topic that waits for room needs as many as it may have, and one that
// is stopping needs those that are running.
func TestPoolNeedsOfBatches(t *testing.T) {
	member := membersOf(NewPool("p", 8), 1)[0]
	for want, all := range map[int][]Workers{
		0: {{}, {PerCall: 10}, {Stopping: true, Keen: true, Claimed: 9}},
		1: {{PerCall: 10, Claimed: 1}, {PerCall: 10, Next: make([]*run.Run, 3), Claimed: 7}, {Next: make([]*run.Run, 1)},
			{Busy: 1, Stopping: true, Next: make([]*run.Run, 5), Keen: true}},
		2: {{PerCall: 10, Next: make([]*run.Run, 3), Claimed: 8}, {Busy: 1, PerCall: 10, Next: make([]*run.Run, 10)}, {Claimed: 2}},
		5: {{Keen: true}, {Busy: 2, Claimed: 40}, {PerCall: 10, Keen: true, Next: make([]*run.Run, 1)}},
		7: {{Busy: 7, Stopping: true}},
	} {
		for i, w := range all {
			w.Member, w.Count = member, 5
			require.Equal(t, want, w.Needs(), "%d, %d", want, i)
		}
	}

	// The first of the two batches takes ten jobs, and the second the rest.
	w := Workers{Member: member, Count: 5, PerCall: 10, Has: 2, Next: make([]*run.Run, 13)}
	require.Equal(t, 2, w.Needs())
	w.Busy, w.Next = 1, w.Next[10:]
	require.Equal(t, 2, w.Needs())
	w.Next = nil
	require.Equal(t, 1, w.Needs(), "the second worker is free for others")
}

// serve runs handlers of equal length, one worker after the other, and returns the starts of each
// topic. All of them always have jobs.
func serve(p *Pool, all []*Member, rounds int) (starts []int) {
	starts = make([]int, len(all))
	var running []int // topics, the oldest start first
	had := make([]int, len(all))
	look := func() {
		for i, m := range all {
			for ; had[i] < m.has; had[i]++ {
				starts[i]++
				running = append(running, i)
			}
		}
	}
	for range rounds {
		look()
		i := running[0]
		running = running[1:]
		had[i]--
		all[i].Adjust(p.Size, 1, nil)
	}
	return starts
}

// While all topics have jobs, a lower class gets the starts that its weight gives it, in a pool of
// any size, and no class starves. A lower class that is alone has all workers, and earns nothing
// and owes nothing by that.
func TestPoolOfClasses(t *testing.T) {
	for _, size := range []int{1, 2, 10, 100} {
		for _, weights := range [][]int{{1000, 1}, {10, 1}, {1000, 30, 1}} {
			p := NewPool("p", size)
			all := membersOf(p, weights...)
			sum := 0
			for i, m := range all {
				m.Lower = i > 0
				sum += m.Weight
			}
			all[1].Adjust(size, 0, nil)
			require.Equal(t, size, all[1].has, "an idle worker is lent")
			starts := serve(p, all[1:2], 5*size)
			require.Equal(t, []int{6*size - 1}, starts)
			all[0].Adjust(size, 0, nil)
			all[1].Adjust(size, 1, nil)
			require.Equal(t, 1, all[0].has, "the first worker that is free goes to the urgent topic")
			for _, m := range all {
				m.Adjust(size, 0, nil)
			}
			rounds := 20 * sum
			starts = serve(p, all, rounds)
			for i, m := range all {
				share := float64(rounds) * float64(m.Weight) / float64(sum)
				require.InDelta(t, share, starts[i], 0.1*share+2*float64(size), "size %d, weights %v: %v", size, weights, starts)
				require.Positive(t, starts[i])
			}
			checkPool(t, p, all)
		}
	}
}

// A lower class that may not start yet does not keep a worker idle, whatever else waits.
func TestPoolOfClassesSum(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		p := NewPool("p", 1+rnd.IntN(4))
		all := membersOf(p, 1000, 30, 1, 1, 1+rnd.IntN(1000))
		for _, m := range all[1:] {
			m.Lower = rnd.IntN(2) == 0
		}
		for range 300 {
			m := all[rnd.IntN(len(all))]
			finished := 0
			if m.has > 0 {
				finished = rnd.IntN(2)
			}
			m.Adjust(rnd.IntN(p.Size+1), finished, nil)
			checkPool(t, p, all)
		}
	}
}
