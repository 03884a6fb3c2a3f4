package delayq

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// A call settles jobs of one verb only: an ack that carries a job to be returned would lose it. (It
// did, when the rows that stay were moved to the front while the first one's verb was still being
// compared with.)
func TestGatherNeverMixesVerbs(t *testing.T) {
	verbs := []verb{verbAck, verbReturn, verbAck, verbReturn, verbRetry, verbReturn, verbAck, verbBury, verbRetry}
	queue := newOutcomes()
	for _, v := range verbs {
		queue.rows = append(queue.rows, row{run: &run{}, verb: v})
	}
	var got []verb
	for list := queue.gather(nil, 1); len(list) > 0; list = queue.gather(list[:0], 1) {
		for _, r := range list {
			require.Equal(t, list[0].verb, r.verb)
			got = append(got, r.verb)
		}
	}
	slices.Sort(verbs)
	slices.Sort(got)
	require.Equal(t, verbs, got)
}

// What a call that was not carried out has left is told by the first loop: the second one does not
// come back for a few.
func TestWhatIsPutBackIsTold(t *testing.T) {
	queue := newOutcomes()
	queue.putBack([]row{{run: &run{}, verb: verbAck}})
	require.Len(t, queue.ready, 1)
	require.Empty(t, queue.gather(nil, settlePile))
	require.Len(t, queue.gather(nil, 1), 1)
}

// Jobs that are given back go to the head of ready, one call after the other: the last ones first.
func TestGatherGivesBackFromTheEnd(t *testing.T) {
	const jobs = 2*settleLimit + 7
	queue := newOutcomes()
	for i := range jobs {
		queue.rows = append(queue.rows, row{run: &run{}, verb: verbReturn, attempts: i}, row{run: &run{}, verb: verbAck})
	}
	require.Empty(t, queue.gather(nil, settlePile), "for the first loop alone")
	want := jobs
	for len(queue.rows) > 0 {
		list := queue.gather(nil, 1)
		if list[0].verb != verbReturn {
			continue
		}
		want -= len(list)
		for i, r := range list {
			require.Equal(t, want+i, r.attempts)
		}
	}
	require.Zero(t, want)
}

// A call moves about callBytes beyond its first job, however many jobs there are to be told.
func TestGatherIsBoundedInBytes(t *testing.T) {
	entry := strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		row  row
		want []int // jobs of each call
	}{
		"nothing is kept": {row{run: &run{stored: 64 << 20}}, []int{30}},
		"kept, small": {
			row{run: &run{stored: 1000, opts: record.Options{Retention: 1}}}, []int{30},
		},
		"kept, of 100 KiB": {
			row{run: &run{stored: 100 << 10, opts: record.Options{Retention: 1}}}, []int{11, 11, 8},
		},
		"kept, as large as can be": {
			row{run: &run{stored: 64 << 20, opts: record.Options{Retention: 1}}}, slices.Repeat([]int{1}, 30),
		},
		"expired, so not kept": {
			row{run: &run{stored: 1 << 20, opts: record.Options{Retention: 1}}, verb: verbExpire}, []int{30},
		},
		"a first stack": {row{run: &run{attempt: 1}, verb: verbRetry, entry: entry}, []int{30}},
		"a log of stacks": {
			row{run: &run{attempt: 99}, verb: verbRetry, entry: entry}, []int{20, 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			queue := outcomes{rows: slices.Repeat([]row{c.row}, 30)}
			var got []int
			for list := queue.gather(nil, 1); len(list) > 0; list = queue.gather(nil, 1) {
				got = append(got, len(list))
			}
			require.Equal(t, c.want, got)
		})
	}
}

// What does not fit stays, in its order, and small jobs do not overtake it.
func TestGatherKeepsTheOrder(t *testing.T) {
	queue := newOutcomes()
	for i, stored := range []int{1, 1 << 20, 600 << 10, 1, 64 << 20, 1} {
		r := row{run: &run{stored: stored, opts: record.Options{Retention: 1}}, attempts: i}
		queue.rows = append(queue.rows, r, row{run: &run{}, verb: verbSnooze})
	}
	var calls [][]int
	for list := queue.gather(nil, 1); len(list) > 0; list = queue.gather(nil, 1) {
		var got []int
		for _, r := range list {
			got = append(got, r.attempts)
		}
		if list[0].verb == verbAck {
			calls = append(calls, got)
		}
	}
	require.Equal(t, [][]int{{0, 1}, {2, 3}, {4, 5}}, calls)
}
