package workers

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkPart checks the sums of a pool that is part of another one.
func checkPart(t require.TestingT, p *Pool, all []*Member) {
	has, wants := 0, 0
	for _, m := range all {
		require.GreaterOrEqual(t, m.has, 0)
		has, wants = has+m.has, wants+m.wants
	}
	require.Equal(t, has, p.has)
	require.Equal(t, wants, p.wants)
	require.Equal(t, p.of.has, p.has+p.idle, "workers")
	require.Equal(t, p.of.wants, p.wants)
	require.Zero(t, p.idle, "a worker is idle that others of the pool could have")
}

// A topic whose workers become those of a pool keeps those that are busy. From then on its
// partitions share what it can have, whatever they and others ask for.
func TestPoolOfAPart(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		p := NewPool("p", 1+rnd.IntN(8))
		all := membersOf(p, 3, 1, 2)
		for _, m := range all {
			m.Adjust(rnd.IntN(p.Size+1), 0, nil)
		}
		busy := 0
		if all[0].has > 0 {
			busy = rnd.IntN(all[0].has + 1)
		}
		q := all[0].Part()
		parts := membersOf(q, 1, 1, 1, 1)
		parts[0].Join(busy)
		parts[0].Adjust(busy+rnd.IntN(2), 0, nil)
		require.GreaterOrEqual(t, parts[0].has, busy)
		checkPart(t, q, parts)
		for range 300 {
			m, finished := append(parts, all[1:]...)[rnd.IntN(6)], 0
			if m.has > 0 {
				finished = rnd.IntN(2)
			}
			needs := rnd.IntN(p.Size + 1)
			has, share, given := m.Adjust(needs, finished, nil)
			require.Equal(t, m.has, has)
			require.True(t, share > 0 && share <= 1, "%v", share)
			for _, other := range given { // as the topic does
				if other == all[0] {
					parts[0].Adjust(parts[0].has+parts[0].wants, 0, nil)
				}
			}
			checkPool(t, p, all)
			checkPart(t, q, parts)
		}
		for _, m := range append(parts, all[1:]...) {
			m.Adjust(0, 0, nil)
		}
		require.Equal(t, p.Size, p.idle)
	}
}

// While all are busy, a topic with many partitions starts as often as one without, and each of its
// partitions as often as the others.
func TestPoolSharesOfParts(t *testing.T) {
	for _, size := range []int{1, 2, 7, 24} {
		p := NewPool("p", size)
		all := membersOf(p, 1, 1)
		q := all[0].Part()
		list := append(membersOf(q, 1, 1, 1, 1), all[1])
		for _, m := range list {
			m.Adjust(size, 0, nil)
		}
		starts, had := make([]int, len(list)), make([]int, len(list))
		var running []int
		for range 4000 {
			list[0].Adjust(list[0].has+list[0].wants, 0, nil) // takes what the pool has given
			for i, m := range list {
				for ; had[i] < m.has; had[i]++ {
					starts[i]++
					running = append(running, i)
				}
			}
			i := running[0]
			running = running[1:]
			had[i]--
			list[i].Adjust(size, 1, nil)
		}
		require.InDelta(t, 2000, starts[4], float64(50+size), "size %d: %v", size, starts)
		for _, n := range starts[:4] {
			require.InDelta(t, 500, n, float64(20+size), "size %d: %v", size, starts)
		}
	}
}

// A pool on demand has a worker for each run that was asked for, also if more were withdrawn than
// were idle.
func TestPoolOnDemand(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		asked := 1 + rnd.IntN(4)
		p := NewPoolOnDemand(asked)
		all := membersOf(p, 1, 1, 1)
		busy := make([]int, len(all))
		for range 300 {
			i, finished := rnd.IntN(len(all)), 0
			switch rnd.IntN(3) {
			case 0:
				if n := rnd.IntN(4) - 2; asked+n >= busy[0]+busy[1]+busy[2] {
					asked += n
					p.Demand(n, nil)
				}
			case 1:
				if busy[i] > 0 {
					busy[i]--
					finished, asked = 1, asked-1
				}
			}
			needs := busy[i] + rnd.IntN(3)
			if p.Owes() {
				needs = busy[i]
			}
			all[i].Adjust(needs, finished, nil)
			for all[i].has > busy[i] && rnd.IntN(2) == 0 && !p.Owes() {
				busy[i]++
			}
			sum := 0
			for i, m := range all {
				sum += m.has
				require.GreaterOrEqual(t, m.has, busy[i])
			}
			require.Equal(t, asked, sum+p.idle)
			require.Equal(t, asked, p.Total())
		}
		for i, m := range all {
			m.Adjust(busy[i], 0, nil)
			m.Adjust(0, busy[i], nil)
		}
		require.Equal(t, asked-busy[0]-busy[1]-busy[2], p.idle)
		require.GreaterOrEqual(t, p.idle, 0)
	}
}
