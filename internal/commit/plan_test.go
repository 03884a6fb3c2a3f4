package commit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// New jobs of a key keep their order, however a plan is divided.
func TestRowsOfAKeyKeepTheirOrder(t *testing.T) {
	large := func(key, id string) *Op {
		return &Op{Kind: Enqueue, ID: id, Fresh: &Fresh{Opts: &record.Options{Key: key}}}
	}
	for _, keyed := range []bool{false, true} {
		list := []*Op{large("k", "1"), large("k", "2"), large("k", "3"), large("other", "4"), large("", "5"), large("", "1"), large("other", "6")}
		sizes := map[*Op]int{list[0]: 600 << 10, list[1]: 600 << 10}
		var calls [][]string
		for rest := list; len(rest) > 0; {
			var next []*Op
			var ids []string
			next, rest = nextRows(rest, sizes, keyed)
			for _, o := range next {
				ids = append(ids, o.ID)
			}
			calls = append(calls, ids)
		}
		if keyed {
			require.Equal(t, [][]string{{"1", "4", "5", "6"}, {"2", "3", "1"}}, calls)
		} else { // as earlier releases divide their plans
			require.Equal(t, [][]string{{"1", "3", "4", "5", "6"}, {"2", "1"}}, calls)
		}
	}
}
