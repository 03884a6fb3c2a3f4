package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/script"
)

// The tests in this file hold prose to what it speaks of: comments and documents to code.

// The comment of an option names its default; docs/operations.md repeats it. (M6)
func TestProseDefaultsAreTheRealOnes(t *testing.T) {
	ms := func(name string) time.Duration { return time.Duration(number(t, name)) * time.Millisecond }
	require.EqualValues(t, delayq.Unlimited, number(t, "defaultRun.Retry"))
	plain := stored(t)
	require.Zero(t, plain.Timeout|plain.ExpireAt|plain.ExpireIn|plain.Retention|plain.DueAt|plain.DueIn)
	defaults := map[string]string{
		"Retry":        "unlimited",
		"Backoff":      proseDuration(ms("defaultRun.BackoffMin")) + " and " + strconv.FormatInt(number(t, "defaultRun.BackoffMax")/1000, 10) + " s",
		"Timeout":      "no limit",
		"Retention":    "a completed job is deleted",
		"Prefix":       strconv.Quote(script.DefaultPrefix),
		"MaxPayload":   fmt.Sprintf("%d MiB", number(t, "defaultClient.maxPayload")>>20),
		"WaitReplicas": "no waiting",
		"Concurrency":  strconv.FormatInt(number(t, "defaultServer.concurrency"), 10),
		"BatchSize":    strconv.FormatInt(number(t, "defaultBatchSize"), 10),
		"Lease":        proseDuration(span(t, "defaultServer.lease")),
		"Drain":        proseDuration(span(t, "defaultServer.drain")),
		"Tick":         proseDuration(span(t, "defaultServer.tick")),
		"DeadLimit":    fmt.Sprintf("%s and %d days", thousands(int(number(t, "defaultServer.deadCount"))), span(t, "defaultServer.deadAge")/(24*time.Hour)),
		"KeepHistory":  fieldText(t, "defaultServer", "history"),
		"Logger":       "slog.Default()",
	}
	for _, options := range []string{"defaultClient", "defaultServer"} {
		require.Equal(t, "script.DefaultPrefix", fieldText(t, options, "prefix"))
	}
	operations := proseFile(t, "docs/operations.md")
	for option, value := range defaults {
		doc := proseDoc(t, option)
		require.Regexp(t, `(?i)default(s)?(:| and|)? ?`+regexp.QuoteMeta(value), strings.Join(strings.Fields(doc), " "), option)
		if option != "Logger" && option != "WaitReplicas" && option != "Timeout" && option != "Retention" {
			require.Regexp(t, "(?m)^`"+option+"`\\. Default: "+regexp.QuoteMeta(value)+"\\.$", operations, "options in docs/operations.md")
		}
	}
}

// thousands writes a number the way the documents do: 1,000,000.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// Limits that several documents name.
func TestProseLimitsAreTheRealOnes(t *testing.T) {
	features := proseFile(t, "docs/features.md")
	for what, words := range map[string]string{
		"ID":      fmt.Sprintf("%d KiB", script.MaxIDLen>>10),
		"topic":   fmt.Sprintf("%d bytes", script.MaxTopicLen),
		"headers": fmt.Sprintf("%d KiB", script.MaxHeaderLen>>10),
		"payload": fmt.Sprintf("%d MiB", number(t, "defaultClient.maxPayload")>>20),
		"delay":   fmt.Sprintf("%.0f years", span(t, "maxDelay").Hours()/24/365),
		"due":     strconv.Itoa(time.UnixMilli(number(t, "maxDueMS")).UTC().Year()),
		"retries": strings.ReplaceAll(fmt.Sprint(math.MaxInt32), "2147483647", "2,147,483,647"),
	} {
		require.Contains(t, features, words, what)
	}
	require.EqualValues(t, math.MaxInt32, number(t, "maxRetry"))
}

// The program in README.md is example/readme, which is built and vetted with everything else.
// TestReadmeProgram in example/ builds and runs the text of the README itself.
func TestProseReadmeCodeIsTheExample(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "README.md"), "\n```go\n")
	block, _, found := strings.Cut(after, "```\n")
	require.True(t, found)
	require.Equal(t, proseFile(t, "example/readme/main.go"), block)
	_, body, _ := strings.Cut(block, "\nfunc main() {\n")
	require.LessOrEqual(t, strings.Count(body, "\n"), 26, "lines of main, with its closing brace")
}

// The table in docs/howto/why-is-it-not-running.md has the codes of Explain in their order, with
// the fields that their comments name. A test produces each of them.
func TestProseReasonsAreTheConstants(t *testing.T) {
	fields := reflect.TypeFor[delayq.Reason]()
	named := func(text string) (names []string) {
		for _, word := range regexp.MustCompile(`\b[A-Z]\w+`).FindAllString(text, -1) {
			if _, ok := fields.FieldByName(word); ok && !slices.Contains(names, word) {
				names = append(names, word)
			}
		}
		slices.Sort(names)
		return names
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| [^|]+ \\| ([^|]+) \\| [^|]+ \\|$").FindAllStringSubmatch(proseFile(t, "docs/howto/why-is-it-not-running.md"), -1)
	tested := proseFile(t, "tests/explain_test.go") + proseFile(t, "tests/limits_test.go") + proseFile(t, "tests/gather_test.go")
	for _, spec := range constantsOf(t, "ReasonCode") {
		code := must(strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value))
		require.NotEmpty(t, rows, code)
		require.Equal(t, rows[0][1], code)
		require.Equal(t, named(spec.Doc.Text()), named(rows[0][2]), code)
		require.Contains(t, tested, "delayq."+spec.Names[0].Name, "no test")
		rows = rows[1:]
	}
	require.Empty(t, rows)
}

// internal/explain decides by words that are exported: the codes of reasons and findings, and the
// names of states and of kinds of due times.
func TestReasonCodesAreTheExportedOnes(t *testing.T) {
	t.Parallel()
	exported := wordsOf(t, "ReasonCode")
	require.Greater(t, len(exported), 20)
	var codes []string
	for _, spec := range specs(proseLibrary(t)["internal/explain/facts.go"]) {
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			codes = append(codes, must(strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)))
		}
	}
	require.ElementsMatch(t, exported, codes)

	words := []string{
		string(delayq.StateScheduled), string(delayq.StateReady), string(delayq.StateRunning), string(delayq.StateDead), string(delayq.StateDone),
		string(delayq.DueRetry), string(delayq.DueSnooze), string(delayq.FindingNoRecord),
	}
	require.Equal(t, []string{"scheduled", "ready", "running", "dead", "done", "retry", "snooze", "no_record"}, words)
}

// The picture in README.md shows every state of a job.
func TestProsePictureHasEveryState(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "README.md"), "\n## A job's life\n")
	_, after, _ = strings.Cut(after, "\n```text\n")
	picture, _, found := strings.Cut(after, "\n```\n")
	require.True(t, found)
	for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone} {
		require.Contains(t, picture, string(state))
	}
}

// The files that documents name exist.
func TestProseFilesExist(t *testing.T) {
	placeholder := regexp.MustCompile(`(^|_|/)x_`)
	named := regexp.MustCompile("`([\\w/]+\\.(?:go|lua|acl))`")
	for document, dir := range map[string]string{
		"README.md": "", "CONTRIBUTING.md": "", "docs/features.md": "", "docs/delivery.md": "", "docs/design.md": "", "docs/protocol.md": "",
		"docs/reliability.md": "", "bench/README.md": "bench",
	} {
		for _, m := range named.FindAllStringSubmatch(proseFile(t, document), -1) {
			if m[1] != "main.go" && !placeholder.MatchString(m[1]) { // the reader's own, and patterns
				require.FileExists(t, filepath.Join(dir, m[1]), document)
			}
		}
	}
}

// The helpers in the tables of CONTRIBUTING.md exist.
func TestProseHelpersExist(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "CONTRIBUTING.md"), "\n## Which test helper do I use?\n")
	section, _, found := strings.Cut(after, "\n## ")
	require.True(t, found)
	declared := map[string]string{} // qualifier → sources
	for qualifier, patterns := range map[string][]string{
		"":           {"*_test.go", "internal/*/*.go", "lua/*_test.go", "tests/*.go"},
		"redistest":  {"internal/redistest/*.go"},
		"queuetest":  {"internal/queuetest/*.go"},
		"hand":       {"internal/hand/*.go"},
		"delayqtest": {"delayqtest/*.go"},
	} {
		for _, pattern := range patterns {
			files, err := filepath.Glob(pattern)
			require.NoError(t, err)
			for _, file := range files {
				declared[qualifier] += proseFile(t, file)
			}
		}
	}
	helpers := 0
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]+ \| ([^|]+) \|`).FindAllStringSubmatch(section, -1) {
		for _, m := range regexp.MustCompile("`(?:(\\w+)\\.)?(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			sources, name := declared[m[1]], `(?m)^(func|type) `+m[2]+`[ (\[]`
			if sources == "" { // m[1] is a type
				sources, name = declared[""], `(?m)^func \(\w+ \*?`+m[1]+`\) `+m[2]+`\(`
			}
			require.Regexp(t, name, sources, "helper %s", m[0])
			helpers++
		}
	}
	require.Greater(t, helpers, 20)
}

// What a document links to as an example on pkg.go.dev is one here.
func TestProseExamplesExist(t *testing.T) {
	link := regexp.MustCompile(`https://pkg\.go\.dev/github\.com/delayq/delayq(/\w+)?#example-([\w.-]+)`)
	examples := map[string]string{}
	for _, dir := range []string{"", "/delayqtest"} {
		files, err := filepath.Glob("." + dir + "/*_test.go")
		require.NoError(t, err)
		for _, file := range files {
			examples[dir] += proseFile(t, file)
		}
	}
	found := 0
	for _, file := range []string{"README.md", "docs/README.md", "docs/features.md", "CONTRIBUTING.md"} {
		for _, m := range link.FindAllStringSubmatch(proseFile(t, file), -1) {
			found++
			name := "func Example" + strings.NewReplacer(".", "_", "-", "_").Replace(m[2]) + "()"
			if m[2] == "package" {
				name = "func Example()"
			}
			require.Contains(t, examples[m[1]], "\n"+name, "%s links to %s", file, m[0])
		}
	}
	require.NotZero(t, found)
}

// What documents for users name in code is exported: delayq.X by the package itself, other names by
// it, by delayqtest, otel, web or a ready-made handler, and as methods and fields too.
func TestProseNamesAreExported(t *testing.T) {
	top, all := map[string]bool{}, map[string]bool{}
	for _, tree := range proseGo(t) {
		exportedNames(tree, top, all)
	}
	for _, dir := range []string{"delayqtest", "otel", "web", "handlers/webhook", "handlers/command", "handlers/statement", "handlers/mail"} {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, file := range files {
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			require.NoError(t, err)
			exportedNames(tree, all, all)
		}
	}
	others := []string{
		"CancelProcessing", "DeleteTask", "JobCancel", // of other projects
		"PlaceOrder", "PayOrder", "Register", // of the tutorial
		"ReadTimeout", "SentinelPassword", "SentinelUsername", // options of go-redis
	}

	files, err := filepath.Glob("docs/howto/*.md")
	require.NoError(t, err)
	found := 0
	removed := regexp.MustCompile(`(?ms)^### Removed\n(.*?)^##`).FindString(proseFile(t, "CHANGELOG.md"))
	for _, file := range append(files, "README.md", "CHANGELOG.md", "docs/features.md", "docs/delivery.md", "docs/tutorial.md", "docs/operations.md") {
		text := proseFile(t, file)
		for _, m := range regexp.MustCompile(`\bdelayq\.([A-Z]\w*)`).FindAllStringSubmatch(text, -1) {
			require.True(t, top[m[1]], "%s names %s", file, m[0])
		}
		for _, m := range regexp.MustCompile("`((?:[A-Z]\\w*\\.)?[A-Z]\\w*[a-z]\\w*)(?:\\([^`]*)?`").FindAllStringSubmatch(text, -1) {
			if slices.Contains(others, m[1]) {
				continue
			}
			for _, name := range strings.Split(m[1], ".") {
				require.True(t, all[name] || file == "CHANGELOG.md" && strings.Contains(removed, m[0]), "%s names %s", file, m[0])
				found++
			}
		}
	}
	require.Greater(t, found, 100)
}

// exportedNames notes what a file declares at its top, and all with methods and fields.
func exportedNames(tree *ast.File, top, all map[string]bool) {
	note := func(into map[string]bool, names ...*ast.Ident) {
		for _, name := range names {
			if name.IsExported() {
				into[name.Name], all[name.Name] = true, true
			}
		}
	}
	for _, decl := range tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				note(top, d.Name)
			}
			note(all, d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					note(top, s.Name)
				case *ast.ValueSpec:
					note(top, s.Names...)
				}
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok {
			note(all, field.Names...)
		}
		return true
	})
}

// What docs/operations.md says about acting on many jobs is what TestRecipeForManyJobs runs.
func TestProseRecipeIsTheTest(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "docs/operations.md"), "\n### Acting on many jobs\n")
	_, after, _ = strings.Cut(after, "\n```go\n")
	block, _, found := strings.Cut(after, "\n```\n")
	require.True(t, found)
	_, after, _ = strings.Cut(proseFile(t, "tests/apply_test.go"), "\nfunc reviveBounced(")
	_, after, _ = strings.Cut(after, ") error {\n")
	body, _, found := strings.Cut(after, "\n}\n")
	require.True(t, found)
	require.Equal(t, regexp.MustCompile(`(?m)^\t`).ReplaceAllString(body, ""), block)
}

// The programs that docs/tutorial.md asks its reader to paste are those of example/tutorial, which is
// compiled and tested.
func TestProseTutorialIsTheExample(t *testing.T) {
	text := proseFile(t, "docs/tutorial.md")
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)\n```go\n(.*?)```\n").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	require.Equal(t, []string{
		proseFile(t, "example/tutorial/main.go"), proseFile(t, "example/tutorial/main_test.go"),
	}, blocks)
}

// The oldest Go and go-redis that the documents name are those of go.mod.
func TestProseNamesTheOldestVersions(t *testing.T) {
	mod := proseFile(t, "go.mod")
	goes := regexp.MustCompile(`(?m)^go (\d+\.\d+)\.0$`).FindStringSubmatch(mod)
	client := regexp.MustCompile(`go-redis/v9 v(\d+\.\d+)\.0\n`).FindStringSubmatch(mod)
	require.NotNil(t, goes)
	require.NotNil(t, client)
	readme := proseFile(t, "README.md")
	require.Contains(t, readme, "You need Go "+goes[1]+" or newer")
	require.Contains(t, readme, "[go-redis](https://github.com/redis/go-redis) v"+client[1]+" or newer")
	require.Contains(t, proseFile(t, "docs/tutorial.md"), "You need Go "+goes[1]+" or newer")
	require.Contains(t, proseFile(t, ".ci/run"), "oldest=go"+goes[1]+".")
}

func TestProseRootDependsOnFourModules(t *testing.T) {
	_, after, _ := strings.Cut(proseFile(t, "go.mod"), "require (")
	block, _, _ := strings.Cut(after, "\n)")
	var direct []string
	for line := range strings.Lines(block) {
		if f := strings.Fields(line); len(f) == 2 {
			direct = append(direct, f[0])
		}
	}
	require.Equal(t, []string{
		"github.com/alicebob/miniredis/v2", // of delayqtest
		"github.com/redis/go-redis/v9",
		"github.com/stretchr/testify", // of the tests
		"github.com/vmihailenco/msgpack/v5",
	}, direct)
	for file, tree := range proseLibrary(t) {
		for _, spec := range tree.Imports {
			path := must(strconv.Unquote(spec.Path.Value))
			require.NotContains(t, path, "miniredis", file)
			require.NotContains(t, path, "testify", file)
			if _, part, _ := strings.Cut(path, "delayq/delayq/"); !slices.Contains(proseParts(), part) {
				require.NotContains(t, path, "delayq/internal", file) // the helpers of tests stay out of programs
			}
		}
	}
}

// The library ends no process, handles no signal and has no panic of its own. (K6)
func TestProseLibraryLeavesTheProcessAlone(t *testing.T) {
	for file, tree := range proseLibrary(t) {
		for _, spec := range tree.Imports {
			if file != "internal/link/conns.go" { // it needs the name of a type
				require.NotEqual(t, `"syscall"`, spec.Path.Value, file)
			}
			require.NotContains(t, []string{`"log"`, `"os/signal"`}, spec.Path.Value, file)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch f := call.Fun.(type) {
			case *ast.Ident:
				require.NotEqual(t, "panic", f.Name, file)
			case *ast.SelectorExpr:
				if of, ok := f.X.(*ast.Ident); ok {
					require.NotEqual(t, "syscall", of.Name, file)
				}
				require.NotEqual(t, "Exit", f.Sel.Name, file)
				require.NotContains(t, f.Sel.Name, "Fatal", file)
			}
			return true
		})
	}
}

// Every goroutine of the library is started by launch, which lets none of them end the process.
func TestGoroutinesAreAllContained(t *testing.T) {
	t.Parallel()
	started := 0
	for path, file := range proseLibrary(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				require.Equal(t, "internal/contain/launch.go", path, "a goroutine that launch has not started")
				started++
			case *ast.SelectorExpr:
				require.NotEqual(t, "Go", n.Sel.Name, "%s: a goroutine that launch has not started", path)
			}
			return true
		})
	}
	require.Equal(t, 1, started)
}

// The table of cases in faults/README.md names tests that exist and that say which case they show,
// and counts its rows.
func TestProseCasesNameTests(t *testing.T) {
	tests := map[string]string{} // name → comment and text
	for _, pattern := range []string{"*_test.go", "tests/*_test.go", "internal/*/*_test.go", "lua/*_test.go", "docs/*_test.go", "faults/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text := proseFile(t, file)
			for _, m := range regexp.MustCompile(`(?ms)^((?://[^\n]*\n)*)func ((?:Test|Fuzz)\w+)\(.*?^}$`).FindAllStringSubmatch(text, -1) {
				tests[m[2]] += m[0]
			}
		}
	}
	table := proseFile(t, "faults/README.md")
	count, seen := map[string]int{}, map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-O]\d+) \| [^|]+ \| ([^|]+) \|$`).FindAllStringSubmatch(table, -1) {
		id, shown := row[1], row[2]
		require.False(t, seen[id], "%s stands twice", id)
		seen[id] = true
		kind := "shown"
		if word, _, found := strings.Cut(shown, ": "); found && (word == "open" || word == "does not apply") {
			kind = word
		}
		count[kind]++
		names := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(shown, -1)
		require.True(t, kind != "shown" || len(names) > 0, "%s names no test", id)
		for _, name := range names {
			require.Regexp(t, `\b`+id+`\b`, tests[name[1]], "%s names %s: it exists and cites the case", id, name[1])
		}
	}
	require.Contains(t, table, fmt.Sprintf("\n%d cases: %d shown by a test, %d do not apply, %d open",
		len(seen), count["shown"], count["does not apply"], count["open"]))
}

var (
	proseLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	proseHeading = regexp.MustCompile("(?m)^#+ (.+)$")
	proseFence   = regexp.MustCompile("(?s)\n```.*?\n```\n")
	proseCode    = regexp.MustCompile("`[^`\n]*`")
)

func TestProseLinksResolve(t *testing.T) {
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		for _, m := range proseLink.FindAllStringSubmatch(proseCode.ReplaceAllString(proseFence.ReplaceAllString(proseFile(t, path), "\n"), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := filepath.Join(filepath.Dir(path), file)
			if file == "" {
				target = path
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", path, m[1])
			if anchor != "" {
				require.Contains(t, proseAnchors(proseFile(t, target)), anchor, "%s links to %s", path, m[1])
			}
		}
		return nil
	}))
}

// A document links a name of the API to the package documentation by a definition at its end, which
// names something that exists. Every definition is used.
func TestProseDocLinksNameTheAPI(t *testing.T) {
	exported := map[string]bool{}
	for _, tree := range proseGo(t) {
		for _, decl := range tree.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					typ := d.Recv.List[0].Type
					if star, ok := typ.(*ast.StarExpr); ok {
						typ = star.X
					}
					if id, ok := typ.(*ast.Ident); ok {
						name = id.Name + "." + name
					}
				}
				exported[name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						exported[spec.Name.Name] = true
					case *ast.ValueSpec:
						for _, id := range spec.Names {
							exported[id.Name] = true
						}
					}
				}
			}
		}
	}
	definition := regexp.MustCompile(`(?m)^\[(\w+)\]: https://pkg\.go\.dev/github\.com/delayq/delayq#(\S+)$`)
	files, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	found := 0
	for _, file := range append(files, "README.md", "bench/README.md", "faults/README.md") {
		text := proseFile(t, file)
		for _, m := range definition.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[2], "example-") {
				continue // see TestProseExamplesExist
			}
			require.True(t, exported[m[2]], "%s links to %s", file, m[2])
			require.Contains(t, text, "]["+m[1]+"]", "%s defines a link that it does not use", file)
			found++
		}
	}
	require.Positive(t, found) // or this test looks for the wrong thing
}

// proseAnchors are the names under which the headings of a document can be linked to.
func proseAnchors(text string) (list []string) {
	for _, m := range proseHeading.FindAllStringSubmatch(proseFence.ReplaceAllString(text, "\n"), -1) {
		words := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(words, " ", "-"))
	}
	return list
}

// The table of log messages in docs/operations.md is that of the code.
func TestProseLogMessagesAreListed(t *testing.T) {
	text := proseFile(t, "docs/operations.md")
	_, section, found := strings.Cut(text, "\n### The log\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n### ")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (?:INFO|WARN|ERROR) \\|").FindAllStringSubmatch(section, -1) {
		require.False(t, listed[m[1]], m[1])
		listed[m[1]] = true
	}
	logged := map[string]bool{}
	for _, tree := range proseLibrary(t) {
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			to, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			at := map[string]int{"Info": 0, "Warn": 0, "Error": 0, "remark": 1}
			n0, known := at[to.Sel.Name]
			if !known || n0 >= len(call.Args) {
				return true
			}
			switch arg := call.Args[n0].(type) {
			case *ast.BasicLit:
				logged[must(strconv.Unquote(arg.Value))] = true
			case *ast.BinaryExpr:
				if end, ok := arg.Y.(*ast.BasicLit); ok {
					logged["…"+must(strconv.Unquote(end.Value))] = true
				}
			}
			return true
		})
	}
	require.Greater(t, len(logged), 30) // or this test looks for the wrong thing
	for message := range logged {
		if len(message) < 40 { // the longer ones are sentences that need no explanation
			require.Contains(t, section, "`"+message+"`", "a message that is not documented")
		}
	}
	for message := range listed {
		require.Contains(t, logged, message, "a message that is never logged")
	}
}

// Comments and prose have at most 100 columns; a tab counts as four. Tables and code may be wider.
func TestProseFitsItsColumns(t *testing.T) {
	const most = 100
	files := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); name != "." && strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
			return nil
		}
		comment := map[string]string{".go": "//", ".lua": "--", ".md": ""}
		mark, known := comment[filepath.Ext(path)]
		if !known {
			return nil
		}
		files++
		fenced, quoted := false, false
		for n, line := range strings.Split(proseFile(t, path), "\n") {
			text := strings.TrimSpace(line)
			switch {
			case mark == "" && strings.HasPrefix(text, "```"):
				fenced = !fenced
			case mark == "//" && strings.Count(strings.ReplaceAll(line, "'`'", ""), "`")%2 == 1:
				quoted = !quoted
			}
			if fenced || quoted || !strings.HasPrefix(text, mark) || strings.HasPrefix(text, "//go:") ||
				mark == "" && strings.HasPrefix(line, "    ") {
				continue
			}
			width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			if width <= most || strings.HasPrefix(text, "|") && mark == "" || !strings.Contains(text[:min(len(text), most)], " ") {
				continue
			}
			if mark == "" && regexp.MustCompile(`^\[[^]]+\]: \S+$`).MatchString(text) {
				continue // the definition of a link
			}
			t.Errorf("%s:%d: %d columns", path, n+1, width)
		}
		return nil
	}))
	require.Greater(t, files, 200)
}
