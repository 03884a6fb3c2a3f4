package docs_test

import (
	"go/ast"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// secondCalls are the functions that write to Redis or to a database outside of the one script that
// makes a transition, or that drop the error of a call. Each says why no promise hangs on it.
var secondCalls = map[string]string{
	"commit.Groups.add":             "before a job is stored, or under a context of its own and again until it succeeds: see Announce and Confirm",
	"delayq.Client.removeName":      "under a context of its own, and the error is returned; a job that was stored meanwhile brings the name back",
	"delayq.Client.Apply":           "the error of the audit is dropped only if code of the user has panicked",
	"listen.newPinger":              "a ping that fails closes the connection, and the reader hears of that",
	"outbox.holding.release":        "the lease of the shard ends by itself",
	"serve.Server.farewell":         "the error is logged; other servers delete the heartbeat when it is stale",
	"serve.Server.isEmpty":          "the next look of the loop tries again: the topic stays served until then",
	"serve.Server.noteLate":         "its callers try again in the next promote or look",
	"serve.Server.noteTopics":       "it is repeated until it succeeds before Run serves, and once a minute",
	"serve.Server.sweep":            "the error is returned to the loop, which tries again in a minute",
	"delayq.healthz":                "a read; what it does not tell is left out of the page",
	"delayqtest.Queue.renewIn":      "it only queues; TxPipelined returns the error",
	"delayqtest.TestQueue.list":     "the results have the errors",
	"script.Pipeline":               "it only queues; Exec returns the error",
	"script.sendNodes":              "it sets the error of the call",
	"serve.Topic.forget":            "keys of a partition that is no longer served: one that is not told to expire takes some bytes",
	"serve.Topic.callRing":          "exec logs the error, and the jobs wait for a tick",
	"serve.Topic.pop":               "the move into handoff loses no job: every take looks there first",
	"serve.Topic.check":             "keys that say who checks and what was clean: without them the next check looks again; the error is logged",
	"serve.Topic.claimGuard":        "a key that says who looks at the flows: without it several servers do; the error is logged",
	"serve.Topic.claimUpkeep":       "a key that says who looks after partitions: without it several servers do; the error is logged",
	"serve.Topic.giveDefaultLimits": "repeated until Redis answers, before the first take; another error is logged",
	"serve.Topic.settle":            "unpark keeps what it did not say, and the next settle says it",
	"serve.Topic.handBack":          "an ID that stays in handoff costs a tick",
	"serve.Topic.tellPlaces":        "a lost message costs a tick",
	"serve.Server.endFound":         "the jobs of the topic are given back by the drain, or their leases end",
}

// What a promise hangs on is made by one script. A call beside it can fail unseen, or its caller's
// context can end before it, so each is listed with the reason why that does no harm.
func TestSecondCallsAreJustified(t *testing.T) {
	t.Parallel()
	trees := proseLibrary(t)
	for _, more := range []string{"outbox/*.go", "outbox/*/*.go", "delayqtest/*.go", "handlers/*/*.go"} {
		maps.Copy(trees, proseTrees(t, more))
	}
	writes := map[string]bool{}
	for _, name := range []string{
		"SAdd", "SRem", "HSet", "HSetNX", "HDel", "HIncrBy", "Set", "SetNX", "SetArgs", "Del", "Unlink", "Expire", "PExpire", "Persist",
		"ZAdd", "ZRem", "ZIncrBy", "LPush", "RPush", "LPop", "RPop", "LRem", "LMove", "BLMove", "Incr", "IncrBy", "Rename", "Publish",
	} {
		writes[name] = true
	}
	found := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(trees)) {
		for _, decl := range trees[path].Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			name := trees[path].Name.Name + "." + receiver(f) + f.Name.Name
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if to, ok := n.Fun.(*ast.SelectorExpr); ok && writes[to.Sel.Name] && takesContext(n) {
						found[name] = true
					}
				case *ast.AssignStmt:
					last, blank := n.Lhs[len(n.Lhs)-1].(*ast.Ident)
					call, calls := n.Rhs[len(n.Rhs)-1].(*ast.CallExpr)
					if blank && last.Name == "_" && calls && takesContext(call) {
						found[name] = true
					}
				}
				return true
			})
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(secondCalls)), slices.Sorted(maps.Keys(found)))
}

// receiver returns the name of the type of a method with a dot.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	return of.(*ast.Ident).Name + "."
}

// takesContext reports whether the first argument of a call, or of a call that it is made on, is a
// context.
func takesContext(call *ast.CallExpr) bool {
	if len(call.Args) > 0 {
		switch arg := call.Args[0].(type) {
		case *ast.Ident:
			if slices.Contains([]string{"ctx", "call", "within", "run"}, arg.Name) {
				return true
			}
		case *ast.SelectorExpr:
			if slices.Contains([]string{"ctx", "work", "fetch"}, arg.Sel.Name) {
				return true
			}
		}
	}
	if to, ok := call.Fun.(*ast.SelectorExpr); ok {
		if on, ok := to.X.(*ast.CallExpr); ok {
			return takesContext(on)
		}
	}
	return false
}
