package moving_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A side is one of the two packages that docs/moving/asynq.md compares, with the variables that its
// code can use.
type side struct {
	path, scope string
	pkg         *types.Package
	importer    types.Importer
}

// guideHead begins each piece of code: names of the package stand without its name.
const guideHead = `package guide

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	. %q
)

type mail struct{ To string }

type common struct {
	addr, uri, topic, id, name, key, by, reason, text, pattern, cronspec, entryID string
	payload []byte
	rdb redis.UniversalClient
	n int
	done, total, offset int64
	t, from, to time.Time
	d, first, limit time.Duration
}

func _(ctx context.Context, err error, given common, %s) error {
	addr, uri, topic, id, name, key, by, reason := given.addr, given.uri, given.topic, given.id, given.name, given.key, given.by, given.reason
	text, pattern, cronspec, entryID, payload, rdb, n := given.text, given.pattern, given.cronspec, given.entryID, given.payload, given.rdb, given.n
	done, total, offset, t, from, to, d, first, limit := given.done, given.total, given.offset, given.t, given.from, given.to, given.d, given.first, given.limit
	{
		%s
	}
	panic(0)
}
`

// sides are asynq and delayq. Their code can use these variables, beside those of guideHead.
func sides(t *testing.T) [2]side {
	exports := map[string]string{}
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}",
		"github.com/hibiken/asynq", "github.com/delayq/delayq", "os/signal", "net/http", "log/slog")
	var errs bytes.Buffer
	list.Stderr = &errs
	out, err := list.Output()
	require.NoError(t, err, errs.String())
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[name] = file
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	loads := importer.ForCompiler(token.NewFileSet(), "gc", lookup)
	both := [2]side{
		{path: "github.com/hibiken/asynq", scope: "client *Client, mux *ServeMux, handler Handler, handle func(context.Context, *Task) error, " +
			"middleware MiddlewareFunc, task *Task, typename string, headers map[string]string, opts []Option, config Config, scheduler *Scheduler"},
		{path: "github.com/delayq/delayq", scope: "client *Client, server *Server, inspector *Inspector, job *Job, jobs []*Job, info *JobInfo, " +
			"handler Handler, handle func(context.Context, *Job) error, batch BatchHandlerFunc, middleware Middleware, batchMiddleware BatchMiddleware, " +
			"mails *Topic[mail], m mail, opts []JobOption, handlerOpts []HandlerOption, serverOpts []ServerOption, scheduleOpts []ScheduleOption, event RunEvent, query Query, page *Page, stats TopicStats, history History, " +
			"schedule *ScheduleInfo, spec Spec, applied *Applied, explanation *Explanation"},
	}
	for i := range both {
		pkg, err := loads.Import(both[i].path)
		require.NoError(t, err)
		both[i].pkg, both[i].importer = pkg, loads
	}
	return both
}

var namePath = regexp.MustCompile(`^[A-Z]\w*(\.[A-Z]\w*)*$`)

// member returns a field or method of a type, or nil.
func (s *side) member(of types.Type, name string) types.Object {
	found, _, _ := types.LookupFieldOrMethod(of, true, s.pkg, name)
	return found
}

// names reports whether a path such as Config.Queues names something of the package, or of one of
// its types.
func (s *side) names(path, within string) bool {
	parts := strings.Split(path, ".")
	if of := s.pkg.Scope().Lookup(within); of != nil && len(parts) == 1 && s.member(of.Type(), path) != nil {
		return true
	}
	found := s.pkg.Scope().Lookup(parts[0])
	for _, part := range parts[1:] {
		if found == nil {
			return false
		}
		found = s.member(found.Type(), part)
	}
	return found != nil
}

// compiles returns why a piece of code does not compile, as an expression, a type or statements.
func (s *side) compiles(code string) (first error) {
	tries := []string{code}
	if e, err := parser.ParseExpr(code); err == nil {
		tries = []string{"_ = " + code, "type _ = " + code}
		if _, call := e.(*ast.CallExpr); call {
			tries = append(tries, code)
		}
	}
	for _, try := range tries {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "guide.go", fmt.Sprintf(guideHead, s.path, s.scope, try), parser.SkipObjectResolution)
		if err == nil {
			var hard error
			c := types.Config{Importer: s.importer, Error: func(err error) {
				if e, ok := err.(types.Error); (!ok || !e.Soft) && hard == nil { // soft: something is not used
					hard = err
				}
			}}
			_, _ = c.Check("guide", fset, []*ast.File{file}, nil) // Error has its errors
			err = hard
		}
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

var (
	guideCode = regexp.MustCompile("`([^`]+)`")
	guideWord = regexp.MustCompile(`\w+`)
	headOfRow = regexp.MustCompile(`^asynq(?:\.(\w+))?$`)
)

// A guideTable is a table with a column for asynq.
type guideTable struct {
	of   [2]string // the types whose fields and methods the columns name; empty: of none
	head []string
	rows []guideRow
}

type guideRow struct {
	line  int
	cells []string
}

// guideTables returns the tables of a guide that begin with a column for asynq.
func guideTables(text string) (list []*guideTable) {
	var current *guideTable
	in, code, n := false, false, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		code = code != strings.HasPrefix(line, "```")
		if code || !strings.HasPrefix(line, "|") {
			current, in = nil, false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		m := headOfRow.FindStringSubmatch(cells[0])
		switch {
		case !in && m != nil && len(cells) > 1 && strings.HasPrefix(cells[1], "delayq"):
			_, other, _ := strings.Cut(cells[1], ".")
			current = &guideTable{of: [2]string{m[1], other}, head: cells}
			list = append(list, current)
		case in && current != nil && !strings.HasPrefix(cells[0], "---"):
			current.rows = append(current.rows, guideRow{n, cells})
		}
		in = true
	}
	return list
}

// Each row of docs/moving/asynq.md compiles, with the names that it has on both sides. What is no
// Go stands in no code of a table, but for commands of delayq.
func TestRowsOfTheGuideCompile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/moving/asynq.md")
	require.NoError(t, err)
	before, _, found := strings.Cut(string(text), "\n## Drain the old queue")
	require.True(t, found)
	both := sides(t)
	tables := guideTables(before)
	require.Greater(t, len(tables), 20)
	checked := 0
	for _, table := range tables {
		for _, row := range table.rows {
			require.Len(t, row.cells, len(table.head), "line %d", row.line)
			for i, cell := range row.cells {
				s, within := &both[min(i, 1)], table.of[min(i, 1)]
				for _, m := range guideCode.FindAllStringSubmatch(cell, -1) {
					code := m[1]
					switch {
					case table.head[i] == "command line" || strings.HasPrefix(code, "delayq "):
						continue
					case namePath.MatchString(code):
						if !s.names(code, within) {
							t.Errorf("docs/moving/asynq.md:%d: %s has no %s", row.line, s.path, code)
						}
					default:
						if err := s.compiles(code); err != nil {
							t.Errorf("docs/moving/asynq.md:%d: %s: %v", row.line, code, err)
						}
					}
					checked++
				}
			}
		}
	}
	require.Greater(t, checked, 300)
	require.Error(t, both[1].compiles("client.Bury(ctx, topic, id)"), "a missing argument is found")
	require.False(t, both[1].names("JobInfo.LastErr", ""), "a wrong field is found")
}

// The tables leave out nothing that asynq has: no function, no error, no state, no field of a type
// that heads a table, and no method of what a program calls.
func TestGuideIsWhole(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/moving/asynq.md")
	require.NoError(t, err)
	both := sides(t)
	s := &both[0]
	all := map[string]bool{}
	of := map[string]map[string]bool{}
	for _, table := range guideTables(string(text)) {
		for _, row := range table.rows {
			for _, m := range guideCode.FindAllStringSubmatch(row.cells[0], -1) {
				for _, word := range guideWord.FindAllString(m[1], -1) {
					all[word] = true
					if of[table.of[0]] == nil {
						of[table.of[0]] = map[string]bool{}
					}
					of[table.of[0]][word] = true
				}
			}
		}
	}
	for _, name := range s.pkg.Scope().Names() {
		object := s.pkg.Scope().Lookup(name)
		_, isFunc := object.(*types.Func)
		_, isVar := object.(*types.Var)
		if object.Exported() && (isFunc || isVar || strings.HasPrefix(name, "TaskState") && name != "TaskState") && !all[name] {
			t.Errorf("docs/moving/asynq.md has no row for %s", name)
		}
	}
	whole := map[string]map[string]bool{}
	for _, name := range []string{"Client", "Server", "ServeMux", "Scheduler", "PeriodicTaskManager", "Task", "ResultWriter"} {
		whole[name] = all
	}
	for name, words := range of {
		if name != "" {
			whole[name] = words
		}
	}
	require.Greater(t, len(whole), 15)
	for name, words := range whole {
		object := s.pkg.Scope().Lookup(name)
		require.NotNil(t, object, name)
		if fields, ok := object.Type().Underlying().(*types.Struct); ok {
			for f := range fields.Fields() {
				if f.Exported() && !words[f.Name()] {
					t.Errorf("docs/moving/asynq.md has no row for the field %s.%s", name, f.Name())
				}
			}
		}
		methods := types.NewMethodSet(types.NewPointer(object.Type()))
		for m := range methods.Methods() {
			if m.Obj().Exported() && !words[m.Obj().Name()] {
				t.Errorf("docs/moving/asynq.md has no row for the method %s.%s", name, m.Obj().Name())
			}
		}
	}
}
