// Package docs_test holds the documents, and the layout of the code, to what they say.
package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/delayq/delayq"

var fset = token.NewFileSet()

// layers are the packages of the library, the lowest first. A package imports packages of earlier
// layers only, and those that stand before it in its own. A feature that does not fit changes the
// layers, and docs/design.md says why.
var layers = [][]string{
	{"internal/friend", "internal/link", "internal/part", "internal/record", "internal/flow", "internal/schedule"},
	{"internal/contain"},
	{"internal/loop", "lua"},
	{"internal/listen", "internal/script"},
	{"internal/await", "internal/commit", "internal/run"},
	{"internal/workers", "internal/settle", "internal/fire", "internal/doctor", "internal/explain", "internal/places"},
	{"internal/serve"},
	{""},
}

// helpers are the packages of the module that only tests import. They can import all layers.
var helpers = []string{"internal/embedded", "internal/hand", "internal/queuetest", "internal/redistest", "internal/sqltest"}

// packages returns the folders below the root that have Go files and belong to the library.
func packages(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob("internal/*")
	require.NoError(t, err)
	return append(folders, "lua")
}

// parsed returns the files of a folder, by name.
func parsed(t *testing.T, folder string, mode parser.Mode) map[string]*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	files := make(map[string]*ast.File)
	for _, name := range names {
		file, err := parser.ParseFile(fset, name, nil, mode)
		require.NoError(t, err)
		files[name] = file
	}
	return files
}

// ours returns the packages of this module that a file imports; the root is "".
func ours(file *ast.File) (list []string) {
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		if path == module {
			list = append(list, "")
		} else if rest, is := strings.CutPrefix(path, module+"/"); is {
			list = append(list, rest)
		}
	}
	return list
}

// TestImportsGoDown holds each package to its layer, and its own tests too. Only tests in a package
// x_test can import the root.
func TestImportsGoDown(t *testing.T) {
	below := make(map[string][]string) // package → those that it can import
	var lower []string
	for _, layer := range layers {
		for _, one := range layer {
			below[one] = slices.Clone(lower)
			lower = append(lower, one)
		}
	}
	for _, folder := range append(packages(t), "") {
		if slices.Contains(helpers, folder) {
			continue
		}
		allowed, known := below[folder]
		if !known {
			t.Errorf("%s is in no layer", folder)
		}
		for name, file := range parsed(t, folder, parser.ImportsOnly) {
			test := strings.HasSuffix(name, "_test.go")
			for _, path := range ours(file) {
				switch {
				case path == "" && folder != "" && !strings.HasSuffix(file.Name.Name, "_test"):
					t.Errorf("%s imports the root", name)
				case !test && known && folder != "" && !slices.Contains(allowed, path):
					t.Errorf("%s imports %s, which is not below it", name, path)
				}
			}
		}
	}
}

// unused are functions and values that internal packages export although no other package but its
// tests uses them, each with the reason.
var unused = map[string]string{
	"internal/fire.CallBytes":     "the model of schedules reads a page as a server does",
	"internal/fire.PageSlots":     "the model of schedules counts pages",
	"internal/fire.PlaceSlots":    "the model of schedules plans one schedule as a server does",
	"internal/record.DueHead":     "a test holds inspect.lua to it",
	"internal/script.LetterKept":  "the list of letters is complete, but nobody reads this one",
	"internal/script.LuaFile":     "tests of the exported API read scripts",
	"internal/serve.FarewellTime": "a test of the end of a server waits for as long",
	"internal/settle.Limit":       "a test fills a call of each script that settles",
}

// TestInternalNamesAreUsed holds the functions and untyped values that internal packages export to
// those that another package uses, or the tests that hold documents to them. A typed constant is a
// value of an enumeration, and a type is what a function or a field has.
func TestInternalNamesAreUsed(t *testing.T) {
	exported := make(map[string]bool)
	for _, folder := range packages(t) {
		if slices.Contains(helpers, folder) || folder == "lua" {
			continue
		}
		for name, file := range parsed(t, folder, parser.SkipObjectResolution) {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, decl := range file.Decls {
				switch d := decl.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil && d.Name.IsExported() {
						exported[folder+"."+d.Name.Name] = true
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						if s, is := spec.(*ast.ValueSpec); is && s.Type == nil && len(s.Values) > 0 {
							for _, id := range s.Names {
								if id.IsExported() {
									exported[folder+"."+id.Name] = true
								}
							}
						}
					}
				}
			}
		}
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		folder := filepath.Dir(path)
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") && folder != "docs" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		of := make(map[string]string) // name → package
		for _, path := range ours(file) {
			of[filepath.Base(path)] = path
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, is := n.(*ast.SelectorExpr); is {
				if id, is := sel.X.(*ast.Ident); is {
					delete(exported, of[id.Name]+"."+sel.Sel.Name)
				}
			}
			return true
		})
		return nil
	}))
	for name := range unused {
		require.Contains(t, exported, name, "it is used, or is not there")
		delete(exported, name)
	}
	require.Empty(t, slices.Sorted(maps.Keys(exported)), "no other package uses them")
}

// TestPackagesSayWhatTheyAre holds each package to a comment that says what it does.
func TestPackagesSayWhatTheyAre(t *testing.T) {
	for _, folder := range packages(t) {
		said := 0
		for name, file := range parsed(t, folder, parser.ParseComments|parser.PackageClauseOnly) {
			if text := file.Doc.Text(); strings.HasPrefix(text, "Package "+filepath.Base(folder)+" ") && !strings.HasSuffix(name, "_test.go") {
				said++
			}
		}
		if said != 1 {
			t.Errorf("%s has %d package comments", folder, said)
		}
	}
}

// TestNoInternalTypeIsExported holds the exported API of the root to types that a user can name: no
// alias of an internal type, and none in a signature or in an exported field.
func TestNoInternalTypeIsExported(t *testing.T) {
	for name, file := range parsed(t, "", parser.SkipObjectResolution) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		internal := make(map[string]bool) // names of imported internal packages
		for _, path := range ours(file) {
			if strings.HasPrefix(path, "internal/") {
				internal[filepath.Base(path)] = true
			}
		}
		check := func(what string, node ast.Node) {
			if node == nil {
				return
			}
			ast.Inspect(node, func(n ast.Node) bool {
				if field, is := n.(*ast.Field); is && len(field.Names) > 0 && !slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
					_, inStruct := node.(*ast.StructType)
					return !inStruct
				}
				if sel, is := n.(*ast.SelectorExpr); is {
					if id, is := sel.X.(*ast.Ident); is && internal[id.Name] {
						t.Errorf("%s: %s has the internal type %s.%s", name, what, id.Name, sel.Sel.Name)
					}
				}
				return true
			})
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) {
					check(d.Name.Name, d.Type)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, is := spec.(*ast.TypeSpec); is && s.Name.IsExported() {
						check(s.Name.Name, s.Type)
					}
				}
			}
		}
	}
}

// exportedReceiver reports whether a function has no receiver, or one that users can name.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	of := d.Recv.List[0].Type
	if star, is := of.(*ast.StarExpr); is {
		of = star.X
	}
	if generic, is := of.(*ast.IndexExpr); is {
		of = generic.X
	}
	id, is := of.(*ast.Ident)
	return is && id.IsExported()
}

// TestRootIsSmall holds the root to what can be read at a glance.
func TestRootIsSmall(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "--full-name", ":/").Output()
	if err != nil { // not in a checkout
		t.Skip("git ls-files: ", err)
	}
	rows := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "/")
		rows[name] = true
	}
	require.LessOrEqual(t, len(rows), rootRows, "a new name at the top has to take the place of another one: %v",
		slices.Sorted(maps.Keys(rows)))
}

// rootRows is the most names at the top of the repository.
const rootRows = 62

// Bounds of what is read at once. A feature that exceeds one changes the house, and says so, and
// not the bound.
const (
	mostFileLines     = 500
	mostLuaLines      = 300
	mostFunctionLines = 60
	mostFields        = 20
)

// tables are functions that are longer, because they are tables.
var tables = []string{"Reason.clause"}

// TestCodeIsInSmallParts holds files, functions and the two structs that each feature wants to grow
// to their bounds.
func TestCodeIsInSmallParts(t *testing.T) {
	counted := map[string]bool{"internal/serve.Topic": true, "internal/serve.Server": true, ".Server": true, ".Client": true}
	for _, folder := range append(packages(t), "") {
		if slices.Contains(helpers, folder) {
			continue
		}
		for name, file := range parsed(t, folder, parser.SkipObjectResolution) {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			lines := func(from, to token.Pos) int { return fset.Position(to).Line - fset.Position(from).Line + 1 }
			if n := lines(file.FileStart, file.FileEnd); n > mostFileLines+1 {
				t.Errorf("%s has %d lines, at most %d are allowed", name, n, mostFileLines)
			}
			for _, decl := range file.Decls {
				switch d := decl.(type) {
				case *ast.FuncDecl:
					if n := lines(d.Pos(), d.End()); n > mostFunctionLines && !slices.Contains(tables, nameOf(d)) {
						t.Errorf("%s: %s has %d lines, at most %d are allowed", name, nameOf(d), n, mostFunctionLines)
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						one, is := spec.(*ast.TypeSpec)
						if !is || !counted[folder+"."+one.Name.Name] {
							continue
						}
						delete(counted, folder+"."+one.Name.Name)
						if n := one.Type.(*ast.StructType).Fields.NumFields(); n > mostFields {
							t.Errorf("%s: %s has %d fields, at most %d are allowed", name, one.Name.Name, n, mostFields)
						}
					}
				}
			}
		}
	}
	require.Empty(t, counted, "structs that are not there")
	scripts, err := filepath.Glob("../lua/*.lua")
	require.NoError(t, err)
	parts, err := filepath.Glob("../lua/prelude/*.lua")
	require.NoError(t, err)
	for _, path := range append(scripts, parts...) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if n := strings.Count(string(text), "\n"); n > mostLuaLines {
			t.Errorf("%s has %d lines, at most %d are allowed", path, n, mostLuaLines)
		}
	}
}

// nameOf returns the name of a function, with the type of its receiver.
func nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	of := d.Recv.List[0].Type
	if star, is := of.(*ast.StarExpr); is {
		of = star.X
	}
	if id, is := of.(*ast.Ident); is {
		return id.Name + "." + d.Name.Name
	}
	return d.Name.Name
}
