package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// asProgram is a variable of the environment that makes this test binary the program delayq.
const asProgram = "DELAYQ_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// delayq runs the program, which cannot reach a Redis, and returns its exit code and its output.
func delayq(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = []string{asProgram + "=1", "DELAYQ_REDIS=redis://127.0.0.1:1", "USER=alice"}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); !exited {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// The program that operates has none of the parts that make delayqd large and slow to build.
func TestDelayqIsLight(t *testing.T) {
	list := func(program string) string {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", program).Output()
		require.NoError(t, err)
		return "\n" + string(out)
	}
	light, whole := list("."), list("./delayqd")
	for _, part := range []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5/stdlib", "github.com/delayq/delayq/web"} {
		require.NotContains(t, light, "\n"+part+"\n")
		require.Contains(t, whole, "\n"+part+"\n")
	}
}

// The linker may leave out methods that nobody calls: nothing that is reachable asks for a method
// by a name that is not a constant. One such call, for example of a template, adds 9 MB.
func TestDelayqIsLinkedWithoutUnusedMethods(t *testing.T) {
	if testing.Short() {
		t.Skip("it links the program")
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -dumpdep", "-o", filepath.Join(t.TempDir(), "delayq"), ".").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "main.main -> ")
	for line := range strings.Lines(string(out)) {
		require.NotContains(t, line, "<ReflectMethod>")
	}
}

// What delayq does not have is refused with the name of the program that has it.
func TestDelayqNamesDelayqd(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	sql := file("sql.yaml", "databases: {d: {dsn: sqlite://x.db}}\ntopics:\n  sql:\n    sql: {database: d, statements: {x: [SELECT 1]}}\n")
	mail := file("mail.yaml", "smtp: {s: {host: h}}\ntopics:\n  mail:\n    mail: {server: s, from: a@b.example, templates: {x: {subject: x, text: "+file("x.txt", "x")+"}}}\n")
	for _, args := range [][]string{
		{"web"}, {"web", "--help"}, {"worker", "--config", sql}, {"relay", "--check"}, {"demo", "--web", "127.0.0.1:0"},
		{"task", "add", "--every", "1h", "--sql", "x", "--config", sql, "n"},
		{"task", "add", "--every", "1h", "--mail", "x", "--to", "a@b.example", "--config", mail, "n"},
	} {
		code, out, errs := delayq(t, args...)
		require.Equal(t, 2, code, "%v: %s", args, errs)
		require.Empty(t, out)
		require.Contains(t, errs, "delayqd", args)
	}
	code, out, _ := delayq(t, "--help")
	require.Zero(t, code)
	require.NotRegexp(t, `(?m)^  (web|worker|relay) `, out)
	require.Regexp(t, `(?m)^  demo `, out)
	code, _, errs := delayq(t, "topics") // it is the rest
	require.Equal(t, 6, code, errs)
}

// The demo runs without its page, and says where the page is.
func TestDemoWithoutThePage(t *testing.T) {
	code, _, errs := delayq(t, "demo", "--for", "1s")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "and its page is in\n  delayqd demo (go install ")
}
