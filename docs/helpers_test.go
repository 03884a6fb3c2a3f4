package docs_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// TestMain runs the tests in the root of the repository, because the paths in documents count from
// there.
func TestMain(m *testing.M) {
	if err := os.Chdir(redistest.Path()); err != nil {
		panic(err)
	}
	queuetest.Main(m, func() error { return nil })
}

// proseFile returns the text of a file. Its path counts from the root, and with wildcards it stands
// for all Go files that match and are no tests.
func proseFile(t *testing.T, path string) string {
	t.Helper()
	if !strings.Contains(path, "*") {
		return redistest.File(t, path)
	}
	var all strings.Builder
	for _, file := range slices.Sorted(maps.Keys(proseTrees(t, path))) {
		all.WriteString(redistest.File(t, file))
	}
	return all.String()
}

// proseGo parses the Go files of the package delayq that are no tests, by name.
func proseGo(t *testing.T) map[string]*ast.File {
	t.Helper()
	return proseTrees(t, "*.go")
}

// proseLibrary is proseGo with the files of the packages that the library consists of, by path.
func proseLibrary(t *testing.T) map[string]*ast.File {
	t.Helper()
	trees := proseGo(t)
	for _, dir := range proseParts() {
		maps.Copy(trees, proseTrees(t, dir+"/*.go"))
	}
	return trees
}

// proseParts are the packages that the library consists of, except the root.
func proseParts() []string {
	return slices.DeleteFunc(slices.Concat(layers...), func(folder string) bool { return !strings.HasPrefix(folder, "internal/") })
}

func proseTrees(t *testing.T, pattern string) map[string]*ast.File {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	trees := map[string]*ast.File{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, known := parsedOnce.Load(file)
		if !known {
			tree, err = parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			parsedOnce.Store(file, tree)
		}
		trees[file] = tree.(*ast.File)
	}
	require.NotEmpty(t, trees, pattern)
	return trees
}

// parsedOnce has the files that proseTrees has parsed.
var parsedOnce sync.Map

// declared returns the specifications of constants and variables in the root, in the order of the
// files and the lines.
func declared(t *testing.T) (list []*ast.ValueSpec) {
	t.Helper()
	trees := proseGo(t)
	for _, file := range slices.Sorted(maps.Keys(trees)) {
		list = append(list, specs(trees[file])...)
	}
	return list
}

func specs(file *ast.File) (list []*ast.ValueSpec) {
	for _, decl := range file.Decls {
		if d, ok := decl.(*ast.GenDecl); ok {
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.ValueSpec); ok {
					list = append(list, s)
				}
			}
		}
	}
	return list
}

// constantsOf returns the constants of a type in the root.
func constantsOf(t *testing.T, name string) (list []*ast.ValueSpec) {
	t.Helper()
	for _, spec := range declared(t) {
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == name && len(spec.Values) == 1 {
			list = append(list, spec)
		}
	}
	require.NotEmpty(t, list, name)
	return list
}

// wordsOf returns the values of the constants of a type in the root.
func wordsOf(t *testing.T, name string) (list []string) {
	t.Helper()
	for _, spec := range constantsOf(t, name) {
		lit, ok := spec.Values[0].(*ast.BasicLit)
		require.True(t, ok, spec.Names[0].Name)
		list = append(list, must(strconv.Unquote(lit.Value)))
	}
	return list
}

// wordsAt returns the values of the constants in the literal of a list of the root.
func wordsAt(t *testing.T, variable string) (list []string) {
	t.Helper()
	e := evaluator{t, "."}
	lit, ok := e.find(variable).(*ast.CompositeLit)
	require.True(t, ok, variable)
	for _, element := range lit.Elts {
		list = append(list, constant.StringVal(e.eval(element)))
	}
	return list
}

// number returns the value of a constant of the root that has no exported name, or that of a field
// in the literal of a variable: maxDelay, or defaultServer.lease.
func number(t *testing.T, name string) int64 {
	t.Helper()
	variable, field, _ := strings.Cut(name, ".")
	e := evaluator{t, "."}
	var expr ast.Expr
	if field == "" {
		expr = e.find(variable)
	} else {
		expr = fieldOf(t, variable, field)
	}
	n, exact := constant.Int64Val(constant.ToInt(e.eval(expr)))
	require.True(t, exact, name)
	return n
}

// fieldText returns how a field is written in the literal of a variable of the root.
func fieldText(t *testing.T, variable, field string) string {
	t.Helper()
	return types.ExprString(fieldOf(t, variable, field))
}

// fieldOf returns the expression of a field in the literal of a variable of the root.
func fieldOf(t *testing.T, variable, field string) ast.Expr {
	t.Helper()
	lit, ok := evaluator{t, "."}.find(variable).(*ast.CompositeLit)
	require.True(t, ok, variable)
	for _, element := range lit.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok && fmt.Sprint(pair.Key) == field {
			return pair.Value
		}
	}
	t.Fatalf("%s has no %s", variable, field)
	return nil
}

// span is number for a time.
func span(t *testing.T, name string) time.Duration {
	t.Helper()
	return time.Duration(number(t, name))
}

// An evaluator computes constants of one package.
type evaluator struct {
	t      *testing.T
	folder string
}

// durations are the constants of package time.
var durations = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
	"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// find returns the expression that a name of the package stands for.
func (e evaluator) find(name string) ast.Expr {
	e.t.Helper()
	for _, file := range proseTrees(e.t, path.Join(e.folder, "*.go")) {
		for _, spec := range specs(file) {
			for i, id := range spec.Names {
				if id.Name == name && i < len(spec.Values) {
					return spec.Values[i]
				}
			}
		}
	}
	e.t.Fatalf("%s has no %s", e.folder, name)
	return nil
}

func (e evaluator) eval(expr ast.Expr) constant.Value {
	e.t.Helper()
	switch x := expr.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(x.Value, x.Kind, 0)
	case *ast.ParenExpr:
		return e.eval(x.X)
	case *ast.UnaryExpr:
		return constant.UnaryOp(x.Op, e.eval(x.X), 0)
	case *ast.BinaryExpr:
		left, right := e.eval(x.X), e.eval(x.Y)
		switch x.Op {
		case token.SHL, token.SHR:
			n, _ := constant.Uint64Val(right)
			return constant.Shift(left, x.Op, uint(n))
		case token.QUO:
			return constant.BinaryOp(left, token.QUO_ASSIGN, right) // of integers
		}
		return constant.BinaryOp(left, x.Op, right)
	case *ast.Ident:
		return e.eval(e.find(x.Name))
	case *ast.CallExpr: // (2 * time.Second).Milliseconds()
		if f, ok := x.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Milliseconds" {
			return constant.BinaryOp(e.eval(f.X), token.QUO_ASSIGN, constant.MakeInt64(int64(time.Millisecond)))
		}
	case *ast.SelectorExpr:
		switch of := fmt.Sprint(x.X); {
		case of == "time":
			return constant.MakeInt64(int64(durations[x.Sel.Name]))
		case of == "math" && x.Sel.Name == "MaxInt32":
			return constant.MakeInt64(1<<31 - 1)
		case slices.Contains(proseParts(), "internal/"+of):
			from := evaluator{e.t, "internal/" + of}
			return from.eval(from.find(x.Sel.Name))
		}
	}
	e.t.Fatalf("%s: %T is no constant of this kind", e.folder, expr)
	return nil
}

// ownRedis returns a client of an embedded Redis of its own.
func ownRedis(t *testing.T) *redis.Client {
	t.Helper()
	server := embedded.New()
	t.Cleanup(server.Close)
	rdb := server.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// stored returns the options in the record of a job that is enqueued with options.
func stored(t *testing.T, opts ...delayq.JobOption) record.Options {
	t.Helper()
	rdb := ownRedis(t)
	_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "topic", "x", nil, opts...)
	require.NoError(t, err)
	job, err := record.Decode(rdb.HGet(t.Context(), script.NewKeys(script.DefaultPrefix, "topic").Pool, "x").Val())
	require.NoError(t, err)
	return job.Options
}

// proseDoc is the comment of an option.
func proseDoc(t *testing.T, name string) string {
	t.Helper()
	for _, file := range proseGo(t) {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return f.Doc.Text()
			}
		}
	}
	t.Fatalf("no option %s", name)
	return ""
}

// proseDuration writes a duration as comments do: 30 s.
func proseDuration(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
