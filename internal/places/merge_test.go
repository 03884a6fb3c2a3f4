package places

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/part"
)

// A merge of lines that are read piece by piece returns all entries in their order, both ways. It
// never takes one while another place can have one that comes before it.
func TestMergeIsInOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		backward := seed%2 == 1
		direct := func(a, b Mark) int {
			if backward {
				return b.Compare(a)
			}
			return a.Compare(b)
		}
		places := make([][]Mark, 1+rng.IntN(5))
		var all []Mark
		for i := range places {
			for n := range rng.IntN(20) {
				m := newMark(strconv.Itoa(rng.IntN(10)), Ref{i / 2, i % 2}, fmt.Sprint(n))
				places[i], all = append(places[i], m), append(all, m)
			}
			slices.SortFunc(places[i], direct)
		}
		slices.SortFunc(all, direct)
		buffers, lines := make([][]Mark, len(places)), make([]Line, len(places))
		note := func(i int) {
			lines[i].Jobs, lines[i].Over = len(buffers[i]) > 0, len(buffers[i])+len(places[i]) == 0
			if lines[i].Jobs {
				lines[i].Head = buffers[i][0]
			}
		}
		read := func(i int) {
			n := min(1+rng.IntN(3), len(places[i]))
			for _, m := range places[i][:n] {
				if lines[i].Head = m; rng.IntN(4) > 0 { // a filter passes over the others
					buffers[i] = append(buffers[i], m)
				} else {
					all = slices.DeleteFunc(all, func(o Mark) bool { return o == m })
				}
			}
			places[i] = places[i][n:]
			note(i)
		}
		for i := range places {
			read(i)
		}
		var got []Mark
		for {
			i := nextLine(lines, backward)
			if i < 0 {
				break
			}
			if !lines[i].Jobs {
				read(i)
				continue
			}
			got = append(got, buffers[i][0])
			lines[i].Head, buffers[i] = buffers[i][0], buffers[i][1:]
			note(i)
		}
		require.Equal(t, all, got, "seed %d", seed)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	m, err := part.ParseMap("0:1 1:2k 3:3")
	require.NoError(t, err)
	least, most, closing := Summary(m, []Load{
		{Jobs: 5, Kept: 1}, {Place: Ref{1, 0}, Jobs: 2}, {Place: Ref{1, 1}, Jobs: 3, Kept: 4},
		{Place: Ref{3, 0}, Jobs: 7}, {Place: Ref{3, 1}, Jobs: 7, Overdue: 1}, {Place: Ref{3, 2}, Jobs: 9},
	})
	require.Equal(t, []Ref{{3, 0}, {3, 2}}, []Ref{least.Place, most.Place})
	require.Equal(t, []Closing{{part.Generation{Parts: 1}, 5, 1}, {part.Generation{Number: 1, Parts: 2, ByKey: true}, 5, 4}}, closing)
	m = m[2:]
	_, _, closing = Summary(m, []Load{{Jobs: 5}, {Place: Ref{3, 0}}})
	require.Empty(t, closing, "the home has only the jobs of schedules")
}

// A key that several places have is one, and waits only if it does so wherever it has jobs.
func TestMergeKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, []Key{
		{Name: "b", Waiting: 1, First: "1"},
		{Name: "aa", Waiting: 5, First: "3", Parked: "7", Running: 2, Blocker: "x", Blocked: "9", Rule: "2", Held: "8"},
		{Name: "cc", Waiting: 2},
	}, mergeKeys([]Key{
		{Name: "cc", Waiting: 1, Parked: "5"}, {Name: "aa", Waiting: 2, First: "3", Parked: "8", Running: 2}, {Name: "b", Waiting: 1, First: "1"},
		{Name: "aa", Waiting: 3, First: "4", Parked: "7", Blocker: "x", Blocked: "9", Rule: "2", Held: "8"}, {Name: "cc", Waiting: 1}, {Name: "aa", Parked: "1"},
	}))
}

func TestPlacesOfAJob(t *testing.T) {
	t.Parallel()
	m, err := part.ParseMap("0:1 1:4 2:3k")
	require.NoError(t, err)
	require.Len(t, All("p", "mail", m), 8)
	require.Len(t, Partitions("p", "mail", m), 7)
	one := OfJob("p", "mail", m, "x")
	require.Len(t, one, 4, "one of the first generation, and all of the second one")
	require.Equal(t, m[1].Name("mail", m[1].Index("x", "")), one[0].Topic)
	require.Len(t, ofKey("p", "mail", m, "k"), 5)
	require.Equal(t, Ref{1, m[1].Index("x", "")}, RefOf(one[0].Topic))
	require.Equal(t, Ref{}, RefOf("mail"))
	require.NoError(t, In(one[0], nil))
	require.EqualError(t, In(one[0], fmt.Errorf("no")), fmt.Sprintf("partition %d of generation 1: no", m[1].Index("x", "")))
}
