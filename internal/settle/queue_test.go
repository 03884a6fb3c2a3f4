package settle

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
)

// quietOutcomes are outcomes without loops.
func quietOutcomes() Queue { return Queue{Ready: func() {}, Pile: func() {}} }

// A call settles jobs of one verb only: an ack that carries a job to be returned would lose it. (It
// did, when the rows that stay were moved to the front while the first one's verb was still being
// compared with.)
func TestGatherNeverMixesVerbs(t *testing.T) {
	verbs := []Verb{Ack, Return, Ack, Return, Retry, Return, Ack, Bury, Retry}
	queue := quietOutcomes()
	for _, v := range verbs {
		queue.Rows = append(queue.Rows, Row{Run: &run.Run{}, Verb: v})
	}
	var got []Verb
	for list := queue.Gather(nil, 1); len(list) > 0; list = queue.Gather(list[:0], 1) {
		for _, r := range list {
			require.Equal(t, list[0].Verb, r.Verb)
			got = append(got, r.Verb)
		}
	}
	slices.Sort(verbs)
	slices.Sort(got)
	require.Equal(t, verbs, got)
}

// Jobs that hand others over have calls of their own, also if their successors follow them. What
// only a later verb can hand over does not matter.
func TestGatherNeverMixesWhatHandsOver(t *testing.T) {
	hands := run.Parcels{Text: "x", Jobs: 1}
	queue := quietOutcomes()
	queue.Rows = []Row{
		{Verb: Ack}, {Verb: Ack, Parcels: hands}, {Verb: Ack}, {Verb: Ack, Heir: true, Parcels: hands}, {Verb: Ack, Heir: true},
		{Verb: Again, Parcels: hands}, {Verb: Again}, {Verb: Retry, Parcels: hands}, {Verb: Retry},
	}
	for i := range queue.Rows {
		queue.Rows[i].Run = &run.Run{}
	}
	var calls []int
	for list := queue.Gather(nil, 1); len(list) > 0; list = queue.Gather(list[:0], 1) {
		for i := range list {
			require.Equal(t, HandsOver(list), list[i].handedOver() != "")
		}
		calls = append(calls, len(list))
	}
	require.Equal(t, []int{2, 1, 1, 1, 1, 1, 2}, calls)
}

// Rows whose call has failed let all others go first that are queued by then, and then have their
// turn, though there are more by that time.
func TestFailedRowsGiveWay(t *testing.T) {
	queue := quietOutcomes()
	queue.Rows = []Row{{Run: &run.Run{}, Verb: Bury, Attempts: 1}, {Run: &run.Run{}, Verb: Bury, Attempts: 2}}
	queue.Failed(queue.Gather(nil, 1))
	list := queue.Gather(nil, 1)
	require.Len(t, list, 2, "there are no others")
	queue.Failed(list)
	var calls []Verb
	for range 6 {
		queue.Add(Row{Run: &run.Run{}, Verb: Ack})
		queue.Add(Row{Run: &run.Run{}, Verb: Retry})
		list = queue.Gather(list[:0], 1)
		if calls = append(calls, list[0].Verb); list[0].Verb == Bury {
			require.Equal(t, []int{1, 2}, []int{list[0].Attempts, list[1].Attempts})
			queue.Failed(list)
		}
	}
	require.Equal(t, []Verb{Ack, Retry, Bury, Ack, Retry, Bury}, calls)
}

// Jobs that are given back keep their order when a call fails.
func TestFailedReturnsKeepTheirOrder(t *testing.T) {
	queue := quietOutcomes()
	queue.Rows = []Row{{Run: &run.Run{}, Verb: Return, Attempts: 1}}
	queue.Failed(queue.Gather(nil, 1))
	queue.Add(Row{Run: &run.Run{}, Verb: Return, Attempts: 2})
	list := queue.Gather(nil, 1)
	require.Equal(t, []int{1, 2}, []int{list[0].Attempts, list[1].Attempts})
}

// What a call that was not carried out has left is told by the first loop: the second one does not
// come back for a few.
func TestWhatIsPutBackIsTold(t *testing.T) {
	queue, woken := quietOutcomes(), 0
	queue.Ready = func() { woken++ }
	queue.PutBack([]Row{{Run: &run.Run{}, Verb: Ack}})
	require.Equal(t, 1, woken)
	require.Empty(t, queue.Gather(nil, Pile))
	require.Len(t, queue.Gather(nil, 1), 1)
}

// Jobs that are given back go to the head of ready, one call after the other: the last ones first.
func TestGatherGivesBackFromTheEnd(t *testing.T) {
	const jobs = 2*Limit + 7
	queue := quietOutcomes()
	for i := range jobs {
		queue.Rows = append(queue.Rows, Row{Run: &run.Run{}, Verb: Return, Attempts: i}, Row{Run: &run.Run{}, Verb: Ack})
	}
	require.Empty(t, queue.Gather(nil, Pile), "for the first loop alone")
	want := jobs
	for len(queue.Rows) > 0 {
		list := queue.Gather(nil, 1)
		if list[0].Verb != Return {
			continue
		}
		want -= len(list)
		for i, r := range list {
			require.Equal(t, want+i, r.Attempts)
		}
	}
	require.Zero(t, want)
}

// A call moves about script.CallBytes beyond its first job, however many jobs there are to be told.
func TestGatherIsBoundedInBytes(t *testing.T) {
	entry := strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		row  Row
		want []int // jobs of each call
	}{
		"nothing is kept": {Row{Run: &run.Run{Stored: 64 << 20}}, []int{30}},
		"kept, small": {
			Row{Run: &run.Run{Stored: 1000, Options: record.Options{Retention: 1}}}, []int{30},
		},
		"kept, of 100 KiB": {
			Row{Run: &run.Run{Stored: 100 << 10, Options: record.Options{Retention: 1}}}, []int{11, 11, 8},
		},
		"kept, as large as can be": {
			Row{Run: &run.Run{Stored: 64 << 20, Options: record.Options{Retention: 1}}}, slices.Repeat([]int{1}, 30),
		},
		"expired, so not kept": {
			Row{Run: &run.Run{Stored: 1 << 20, Options: record.Options{Retention: 1}}, Verb: Expire}, []int{30},
		},
		"a first stack": {Row{Run: &run.Run{Attempt: 1}, Verb: Retry, Failure: entry}, []int{30}},
		"a log of stacks": {
			Row{Run: &run.Run{Attempt: 99}, Verb: Retry, Failure: entry}, []int{20, 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			queue := Queue{Rows: slices.Repeat([]Row{c.row}, 30)}
			var got []int
			for list := queue.Gather(nil, 1); len(list) > 0; list = queue.Gather(nil, 1) {
				got = append(got, len(list))
			}
			require.Equal(t, c.want, got)
		})
	}
}

// What does not fit stays, in its order, and small jobs do not overtake it.
func TestGatherKeepsTheOrder(t *testing.T) {
	queue := quietOutcomes()
	for i, stored := range []int32{1, 1 << 20, 600 << 10, 1, 64 << 20, 1} {
		r := Row{Run: &run.Run{Stored: stored, Options: record.Options{Retention: 1}}, Attempts: i}
		queue.Rows = append(queue.Rows, r, Row{Run: &run.Run{}, Verb: Snooze})
	}
	var calls [][]int
	for list := queue.Gather(nil, 1); len(list) > 0; list = queue.Gather(nil, 1) {
		var got []int
		for _, r := range list {
			got = append(got, r.Attempts)
		}
		if list[0].Verb == Ack {
			calls = append(calls, got)
		}
	}
	require.Equal(t, [][]int{{0, 1}, {2, 3}, {4, 5}}, calls)
}

// Of a job that is kept and of its new record both count for what a call moves.
func TestGatherWeighsRenewals(t *testing.T) {
	n := &Renewal{Tail: string(make([]byte, 300<<10))}
	kept := Row{Run: &run.Run{Stored: 300 << 10, Options: record.Options{Retention: 1}}, Verb: Again, Renewal: n}
	require.InDelta(t, 600<<10, kept.Weight(), 100)
	kept.Run.Options.Retention = 0
	require.InDelta(t, 300<<10, kept.Weight(), 100)
}
