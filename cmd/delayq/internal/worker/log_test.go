package worker

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// logLines has the level of each message that a worker logs, as an operator reads it.
var logLines = map[string]string{
	"mistake in the file": "ERROR",
	"the file was not loaded, and everything goes on as before": "ERROR",
	"the file was loaded": "INFO",
	"redis and server have changed, which needs a restart; the rest of the file takes effect": "WARN",
	"topic not changed":                        "ERROR",
	"the schedules are those of the file":      "INFO",
	"schedules not written; it is tried again": "ERROR",
	"schedule removed":                         "INFO",
	"tables not created; it is tried again":    "ERROR",
	"old records of the inbox not deleted":     "WARN",
	"the limits of a topic are not those of the file, because others were set before; delayq limits changes them": "WARN",
}

// calls returns the texts with which the files of this package call methods of these names, and how
// often.
func calls(t *testing.T, methods ...string) map[string]int {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if of, is := call.Fun.(*ast.SelectorExpr); is && slices.Contains(methods, of.Sel.Name) {
				for _, arg := range call.Args[:min(2, len(call.Args))] {
					if text, is := arg.(*ast.BasicLit); is && text.Kind == token.STRING {
						s, err := strconv.Unquote(text.Value)
						require.NoError(t, err)
						found[s]++
						break
					}
				}
			}
			return true
		})
	}
	return found
}

// Every message of a worker is what logLines says, and says what to do about it.
func TestLogOfAWorker(t *testing.T) {
	d := &databaseConfig{
		name: "shop", dialect: outbox.SQLite, address: "file:" + t.TempDir() + "/none/x.db", connections: 1, migrate: true, keep: time.Hour, migrated: new(atomic.Bool),
	}
	limited := func(r *rig, n int) *Topic {
		topic := r.topic("a", &stub{name: "a", opens: d}, tick("s", time.Hour))
		topic.settings.limits = delayq.Limits{Running: n}
		return topic
	}
	inRig(t, func(r *rig) *File { return fileOf(limited(r, 3), r.topic("b", &stub{name: "b"}, tick("t", time.Hour))) }, func(r *rig) {
		r.load(nil) // it has mistakes
		r.load(fileOf(r.topic("b", &stub{name: "c", broken: errors.New("no such file")})))
		bad := r.topic("b", &stub{name: "b"})
		bad.settings.concurrency = -1
		later := fileOf(limited(r, 5), bad)
		later.Server.Lease = time.Minute
		r.load(later)
		r.Redis.SetError("LOADING Redis is loading the dataset in memory")
		r.load(fileOf(limited(r, 5)))
		r.Pass(time.Minute)
		r.Redis.SetError("")
		r.Pass(mostPause)
		for text, level := range logLines {
			require.NotEmpty(t, r.log.With("level="+level+" msg="+strconv.Quote(text)), text)
		}
	})
	for text := range calls(t, "Info", "Warn", "Error") {
		require.Contains(t, logLines, text, "a message that no test has seen")
	}
}
