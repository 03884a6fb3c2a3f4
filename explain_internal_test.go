package delayq

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/explain"
)

// A reason keeps all that an explanation says of it.
func TestReasonsAreWhole(t *testing.T) {
	t.Parallel()
	for _, code := range []ReasonCode{ReasonTopicRate, ReasonKeyRate} {
		var r explain.Reason
		of := reflect.ValueOf(&r).Elem()
		for i := range of.NumField() {
			switch field := of.Field(i); field.Interface().(type) {
			case time.Time:
				field.Set(reflect.ValueOf(time.Unix(1, 0)))
			case string, explain.Code:
				field.SetString("x")
			case int, int64, time.Duration:
				field.SetInt(1)
			case float64:
				field.SetFloat(1)
			case bool:
				field.SetBool(true)
			case *explain.Failure:
				field.Set(reflect.ValueOf(&explain.Failure{}))
			default:
				t.Fatal(field.Type())
			}
		}
		r.Code = explain.Code(code)
		c := &circumstances{info: &JobInfo{Errors: []AttemptError{{Attempt: 1}, {Attempt: 2}}}, rate: Per(1, time.Second), keyRate: Per(2, time.Second)}
		got := c.reason(&r)
		for i := range reflect.TypeFor[Reason]().NumField() {
			require.False(t, reflect.ValueOf(got).Field(i).IsZero(), reflect.TypeFor[Reason]().Field(i).Name)
		}
		require.Same(t, &c.info.Errors[1], got.Error)
		require.Equal(t, reflect.TypeFor[explain.Reason]().NumField(), reflect.TypeFor[Reason]().NumField())
	}
}

// The codes of internal/explain are the exported ones.
func TestReasonCodesAreTheExportedOnes(t *testing.T) {
	t.Parallel()
	codes := func(path, of string) (list []string) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == of {
					list = append(list, spec.Values[0].(*ast.BasicLit).Value)
				}
			}
			return true
		})
		slices.Sort(list)
		return list
	}
	exported := codes("explain.go", "ReasonCode")
	require.Greater(t, len(exported), 20)
	require.Equal(t, exported, codes("internal/explain/facts.go", "Code"))

	// It decides by these words too.
	words := []string{
		string(StateScheduled), string(StateReady), string(StateRunning), string(StateDead), string(StateDone),
		string(DueRetry), string(DueSnooze), string(FindingNoRecord),
	}
	require.Equal(t, []string{"scheduled", "ready", "running", "dead", "done", "retry", "snooze", "no_record"}, words)
}
