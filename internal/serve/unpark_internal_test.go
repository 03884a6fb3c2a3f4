package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

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
