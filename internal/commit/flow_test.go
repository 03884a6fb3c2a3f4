package commit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

const flowName = "12345678"

func arrival(id string, step int) *Op {
	row := ArrivalRow(End{ID: id, Name: flowName, Step: step, Outcome: 'x'})
	return FlowOp(&row)
}

// Ends of many steps of a flow share a call, and sweeps have calls of their own.
func TestRowsOfFlowsAreDivided(t *testing.T) {
	t.Parallel()
	sweep := func(id string) *Op {
		return FlowOp(&Row{Kind: RowSweep, ID: id, End: End{ID: id, Name: flowName, Step: record.LastStep, Outcome: SweepAll}})
	}
	cancel := (&Parcel{Format: FormatCancel, End: End{ID: "f", Name: flowName, Step: 2}}).RowOf()
	list := []*Op{
		arrival("f", 0), sweep("f"), arrival("f", 1), FlowOp(&cancel), arrival("g", 0), sweep("g"), arrival("f", 1),
	}
	var calls [][]*Op
	for rest := list; len(rest) > 0; {
		var next []*Op
		next, rest = nextRows(rest, nil, true)
		calls = append(calls, next)
	}
	require.Equal(t, [][]*Op{{list[0], list[2], list[4]}, {list[1]}, {list[3]}, {list[5]}, {list[6]}}, calls)
	require.Equal(t, "f", list[3].ID)
	require.Equal(t, flowName+"00000002", list[3].Flow.Word)
	require.Equal(t, "1:f"+flowName+"00000001x", list[2].Flow.Word)
	require.Nil(t, FlowOp(&Row{Kind: RowCancel}))
}

// The reply says which arrivals were handled, and which flows are to be released: each once.
func TestArrivalsRelease(t *testing.T) {
	t.Parallel()
	list := []*Op{arrival("f", 0), arrival("f", 1), arrival("g", 0), arrival("f", 2)}
	readArrived(nil, list, script.Reply{"ok", int64(5), []any{"f"}, int64(3), []any{flowName}})
	require.True(t, list[2].Settled())
	require.False(t, list[3].Settled(), "left for another call")
	seen := make(map[[2]string]bool)
	next := releases(list[:3], seen)
	require.Len(t, next, 1)
	require.Equal(t, "f", next[0].ID)
	require.Equal(t, flowName, next[0].Flow.Word)
	require.Empty(t, releases(list[:3], seen))

	other := arrival("f", 0)
	readArrived(nil, []*Op{other}, script.Reply{"ok", int64(5), []any{"f"}, int64(1), []any{"another!"}})
	require.Empty(t, releases([]*Op{other}, map[[2]string]bool{}), "of another flow")
}

// A sweep goes on where its last call has ended. One that does not get on ends with an error.
func TestSweepGoesOn(t *testing.T) {
	t.Parallel()
	o := FlowOp(&Row{Kind: RowSweep, ID: "f", End: End{ID: "f", Name: flowName, Outcome: SweepAll}})
	for _, next := range []int64{250, 100} {
		readSwept(nil, []*Op{o}, script.Reply{"ok", int64(5), next})
		require.True(t, o.goesOn())
		require.False(t, o.goesOn())
		require.Equal(t, next, o.Flow.From)
	}
	readSwept(nil, []*Op{o}, script.Reply{"ok", int64(5), int64(100)})
	require.False(t, o.goesOn())
	require.False(t, o.Settled())
	readSwept(nil, []*Op{o}, script.Reply{"ok", int64(5), int64(-1)})
	require.True(t, o.Settled())
}

// The row of a start holds the record of the last step, which can be another one later, and what
// the script reads behind it.
func TestFlowRow(t *testing.T) {
	t.Parallel()
	row := FlowRow(Row{Topic: "t", ID: "f", Record: "1:record", DueIn: 7}, []any{"na:me", "-", 2})
	require.Equal(t, Row{Kind: RowFlow, Topic: "t", ID: "f", Record: "8:1:record5:na:me1:-1:2", DueIn: 7}, row)
	job, rest, err := row.CutRow()
	require.NoError(t, err)
	require.Equal(t, "1:record", job)
	words, err := FlowWords(rest)
	require.NoError(t, err)
	require.Equal(t, []any{"na:me", "-", "2"}, words)
	row.SetJob("other", rest)
	require.Equal(t, "5:other5:na:me1:-1:2", row.Record)
	_, err = FlowWords(rest[1:])
	require.ErrorIs(t, err, errFlowRow)
	row.Record = "9:short"
	_, _, err = row.CutRow()
	require.ErrorIs(t, err, errFlowRow)

	row = Row{Kind: RowEnqueue, Record: "1:record"}
	job, rest, err = row.CutRow()
	require.NoError(t, err)
	require.Equal(t, []string{"1:record", ""}, []string{job, rest})
	row.SetJob("other", rest)
	require.Equal(t, "other", row.Record)
}
