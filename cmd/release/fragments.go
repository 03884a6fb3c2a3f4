package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// A fragment is a block of Go in a document.
type fragment struct {
	where string // file:line
	code  string
}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// fragments returns the blocks of a document.
func fragments(name, text string) (list []fragment) {
	for _, at := range goBlock.FindAllStringSubmatchIndex(text, -1) {
		list = append(list, fragment{fmt.Sprintf("%s:%d", name, 1+strings.Count(text[:at[2]], "\n")), text[at[2]:at[3]]})
	}
	return list
}

// imports are the packages that fragments of the documents use, by name.
var imports = map[string]string{
	"command": root + "/handlers/command", "delayq": root, "delayqtest": root + "/delayqtest", "mail": root + "/handlers/mail",
	"outbox": root + "/outbox", "pgxoutbox": root + "/outbox/pgxoutbox", "statement": root + "/handlers/statement", "web": root + "/web",
	"webhook": root + "/handlers/webhook", "prom": root + "/prom", "otel": root + "/otel",

	"pgx": "github.com/jackc/pgx/v5", "pgxpool": "github.com/jackc/pgx/v5/pgxpool", "prometheus": "github.com/prometheus/client_golang/prometheus",
	"promhttp": "github.com/prometheus/client_golang/prometheus/promhttp", "redis": "github.com/redis/go-redis/v9",
	"require": "github.com/stretchr/testify/require",

	"context": "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "json": "encoding/json", "log": "log",
	"net": "net", "os": "os", "rand": "math/rand/v2", "signal": "os/signal", "slog": "log/slog", "sql": "database/sql",
	"strconv": "strconv", "strings": "strings", "syscall": "syscall", "testing": "testing", "time": "time",
}

// usual are the variables that fragments use without declaring them, and their types.
var usual = map[string]string{
	"ctx": "context.Context", "rdb": "*redis.Client", "client": "*delayq.Client", "server": "*delayq.Server",
	"inspector": "*delayq.Inspector", "job": "*delayq.Job", "payload": "[]byte", "id": "string", "db": "*sql.DB", "err": "error",
}

// checkFragment reports what the compiler would say of a fragment in its program. It does not know
// the rest of that program: a name that is declared nowhere is a value of any type.
func checkFragment(f fragment, from types.Importer) error {
	file, fset, err := parseFragment(f)
	if err != nil {
		return err
	}
	var errs []error
	conf := types.Config{Importer: from, Error: func(err error) {
		var one types.Error
		if errors.As(err, &one) && !one.Soft && !elsewhere.MatchString(one.Msg) {
			at := fset.Position(one.Pos)
			errs = append(errs, fmt.Errorf("%s: line %d: %s", f.where, at.Line, one.Msg))
		}
	}}
	_, _ = conf.Check("fragment", fset, []*ast.File{file}, nil) // the errors are those above
	return errors.Join(errs...)
}

// elsewhere are errors about what a fragment leaves out: other declarations, and the results and
// the last return of the function that it is from.
var elsewhere = regexp.MustCompile(`^(undefined: \w+$|missing return|too many return values|not enough return values|.* redeclared in this block|	other declaration of )`)

var (
	whole       = regexp.MustCompile(`(?m)^package `)
	importLines = regexp.MustCompile(`^(import .+\n+)+`)
)

// parseFragment returns a fragment as a file: a whole one, declarations, or statements. It can
// begin with import lines.
func parseFragment(f fragment) (*ast.File, *token.FileSet, error) {
	if whole.MatchString(f.code) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, f.where, f.code, 0)
		return file, fset, err
	}
	var first error
	own := importLines.FindString(f.code)
	for _, form := range []string{"%s", "func _() {\n%s}"} {
		fset := token.NewFileSet()
		body := fmt.Sprintf("//line "+f.where+"\n"+form, strings.TrimPrefix(f.code, own))
		if _, err := parser.ParseFile(fset, "", "package fragment\n"+body, 0); err != nil {
			first = errors.Join(first, err)
			continue
		}
		body = variablesOf(f.code) + body
		text := "package fragment\n" + own + importsOf(body) + body
		fset = token.NewFileSet()
		file, err := parser.ParseFile(fset, f.where, text, 0)
		return file, fset, err
	}
	return nil, nil, fmt.Errorf("%s: neither declarations nor statements: %w", f.where, first)
}

// importsOf returns the import lines of a text that has none.
func importsOf(text string) string {
	var lines []string
	for name, path := range imports {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(text) {
			lines = append(lines, fmt.Sprintf("import %s %q\n", name, path))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// variablesOf returns declarations of the usual variables that a text has.
func variablesOf(text string) string {
	var lines []string
	for name, of := range usual {
		if regexp.MustCompile(`\b` + name + `\b`).MatchString(text) {
			lines = append(lines, "var "+name+" "+of+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
