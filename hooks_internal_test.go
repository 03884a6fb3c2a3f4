package delayq

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What can be wrong with a hook.
type (
	onlyDone    struct{}
	onlyEnqueue struct{}
	bothSides   struct{ nothingHook }
	wrongKind   struct{ nothingHook }
	wrongAlone  struct{}
	byPointer   struct{ nothingHook }
	otherwise   struct{}
)

func (onlyDone) Done(RunEvent)                               {}
func (onlyEnqueue) Enqueue(context.Context, *NewJob)         {}
func (bothSides) Enqueued(context.Context, EnqueueEvent)     {}
func (wrongKind) Started(*RunEvent)                          {}
func (wrongAlone) Enqueue(context.Context, NewJob) error     { return nil }
func (*byPointer) Buried(RunEvent)                           {}
func (otherwise) Close() error                               { return nil }
func (otherwise) Enqueues(context.Context, *NewJob)          {}
func (otherwise) Released(_ context.Context, _ EnqueueEvent) {}

// A hook that would never be called is refused by the side that would not call it, with what it
// should be.
func TestHooksThatWouldNotBeCalled(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, rdb.Close()) }()
	var none *byPointer
	for _, c := range []struct {
		hook           Hook
		client, server []string // what the complaint says; nil: the hook is fine there
	}{
		{hook: nothingHook{}},
		{hook: bothSides{}},
		{hook: &byPointer{}},
		{onlyDone{}, []string{"delayq.onlyDone", "no method that NewClient calls", "NewServer"}, nil},
		{onlyEnqueue{}, nil, []string{"delayq.onlyEnqueue", "no method that NewServer calls", "NewClient"}},
		{
			wrongKind{}, []string{"delayq.wrongKind", "Started", "func(*delayq.RunEvent)", "func(delayq.RunEvent)"},
			[]string{"delayq.wrongKind", "Started", "func(*delayq.RunEvent)", "func(delayq.RunEvent)"},
		},
		{
			wrongAlone{}, []string{"delayq.wrongAlone", "Enqueue", "func(context.Context, delayq.NewJob) error", "func(context.Context, *delayq.NewJob)"},
			[]string{"delayq.wrongAlone", "Enqueue"},
		},
		{byPointer{}, []string{"delayq.byPointer", "Buried", "pass a pointer"}, []string{"delayq.byPointer", "Buried", "pass a pointer"}},
		{otherwise{}, []string{"delayq.otherwise", "none of the hook methods"}, []string{"delayq.otherwise", "none of the hook methods"}},
		{none, []string{"a hook is nil"}, []string{"a hook is nil"}},
	} {
		server := NewServer(rdb, Hooks(c.hook))
		server.HandlerFunc("t", func(context.Context, *Job) error { return nil })
		began := server.begin()
		if began == nil {
			server.close()
		}
		for side, got := range map[string]struct {
			err   error
			wants []string
		}{
			"client": {NewClient(rdb, Hooks(c.hook)).err, c.client},
			"server": {began, c.server},
		} {
			if got.wants == nil {
				require.NoError(t, got.err, "%T of a %s", c.hook, side)
				continue
			}
			require.ErrorIs(t, got.err, ErrInvalid, "%T of a %s", c.hook, side)
			for _, part := range got.wants {
				require.ErrorContains(t, got.err, part, "%T of a %s", c.hook, side)
			}
		}
	}
}

// Every exported interface whose name ends in Hook is one of those that are looked for, and has one
// method.
func TestHookKindsAreComplete(t *testing.T) {
	t.Parallel()
	declared := make(map[string]bool)
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.TYPE {
				continue
			}
			for _, spec := range group.Specs {
				one := spec.(*ast.TypeSpec)
				if _, is := one.Type.(*ast.InterfaceType); is && one.Name.IsExported() && strings.HasSuffix(one.Name.Name, "Hook") {
					declared[one.Name.Name] = true
				}
			}
		}
	}
	known := make(map[string]bool)
	for _, k := range hookKinds {
		known[k.kind.Name()] = true
		require.Equal(t, 1, k.kind.NumMethod(), k.kind.Name())
	}
	require.Equal(t, slices.Sorted(maps.Keys(declared)), slices.Sorted(maps.Keys(known)))
}
