package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// A job that is given back while its handler runs is no end of a run, whatever Redis says of it:
// it may have been cancelled just before.
func TestReturnOfARunningHandlerIsNoEnd(t *testing.T) {
	t.Parallel()
	topic := &Topic{}
	gone := &run.Run{ID: "gone"}
	topic.noteEnds([]settle.Row{{Run: gone, Verb: settle.Return, Runs: true}}, "l")
	require.Empty(t, topic.ended.runs)
	topic.noteEnds([]settle.Row{{Run: gone, Verb: settle.Return}}, "l")
	require.Len(t, topic.ended.runs, 1)
}

// The handler of a job that is being given back can return before the call arrives. Redis hears of
// the end after the call, and not before: otherwise the call would keep a place for a handler that
// has returned, until the lease would be over. It hears of it once.
func TestEndOfAnAbandonedHandlerFollowsTheReturn(t *testing.T) {
	t.Parallel()
	abandoned := func() (*Topic, settle.Row) {
		r := &run.Run{ID: "a", Fence: record.ParseFence("1.5")}
		topic := topicOf(t, 1, nil, nil)
		row := settle.Row{Run: r, Verb: settle.Return, Runs: true}
		r.Returned = true // as Queue.Add says of a row
		return topic, row
	}
	for name, play := range map[string]func(topic *Topic, row settle.Row){
		"it returns first": func(topic *Topic, row settle.Row) {
			topic.endLocked(row)
			require.Empty(t, topic.ended.runs, "the job is not back yet")
			topic.noteEnds([]settle.Row{row}, "")
		},
		"the job is back first": func(topic *Topic, row settle.Row) {
			topic.noteEnds([]settle.Row{row}, "")
			require.Empty(t, topic.ended.runs, "the handler still runs")
			topic.endLocked(row)
		},
		"it was cancelled before": func(topic *Topic, row settle.Row) {
			row.Run.Lost = run.ErrCancelled
			topic.endLocked(row)
			topic.noteEnds([]settle.Row{row}, "g")
		},
	} {
		t.Run(name, func(t *testing.T) {
			topic, row := abandoned()
			play(topic, row)
			require.Equal(t, []runEnd{{"", "a", "1.5"}}, topic.ended.runs)
		})
	}
}
