package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
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
	return delayqWith(t, "DELAYQ_TIMEOUT=1s", args...)
}

// delayqWith is delayq with one more variable of the environment.
func delayqWith(t *testing.T, variable string, args ...string) (code int, out, errs string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = []string{asProgram + "=1", "DELAYQ_REDIS=redis://127.0.0.1:1", "USER=alice", variable}
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
	for _, part := range []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5/stdlib", "github.com/go-sql-driver/mysql", "github.com/delayq/delayq/web"} {
		require.NotContains(t, light, "\n"+part+"\n")
		require.Contains(t, whole, "\n"+part+"\n")
	}
}

// The linker may leave out methods that nobody calls: nothing that is reachable asks for a method
// by a name that is not a constant. One such call, for example of a template, adds 9 MB.
func TestDelayqIsLinkedWithoutUnusedMethods(t *testing.T) {
	if testing.Short() && os.Getenv("CI") == "" { // in CI all tests of this module are short
		t.Skip("it links the program")
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -dumpdep", "-o", filepath.Join(t.TempDir(), "delayq"), ".").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "main.main -> ")
	for line := range strings.Lines(string(out)) {
		require.NotContains(t, line, "<ReflectMethod>")
	}
}

// What delayq does not have is refused with the name of the program that has it, whatever else is
// wrong. The code of the commands that run for ever is one after which no supervisor tries again.
func TestDelayqNamesDelayqd(t *testing.T) {
	const get = "delayqd: go install github.com/delayq/delayq/cmd/delayq/delayqd@latest\n"
	for _, args := range [][]string{
		{"web"}, {"web", "--help"}, {"help", "web"}, {"worker", "--config", "worker.yaml"}, {"help", "worker"}, {"relay", "--check"},
		{"relay", "--dsn", ""}, {"relay", ""}, {"-o", "json", "relay"},
	} {
		for _, env := range []string{"DELAYQ_TIMEOUT=1s", "DELAYQ_TIMEOUT=soon"} {
			code, out, errs := delayqWith(t, env, args...)
			require.Equal(t, 78, code, "%v: %s", args, errs)
			require.Empty(t, out)
			name := map[bool]string{true: args[0], false: args[len(args)-1]}[args[0][0] != '-' && args[0] != "help"]
			require.Equal(t, "error: "+name+" is a command of "+get, errs, args)
		}
	}
	code, out, errs := delayq(t, "demo", "--web", "127.0.0.1:0")
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Equal(t, "error: --web: the page is a part of "+get, errs)
	for _, args := range [][]string{{"help"}, {"help", "topics"}} { // the help of what it has
		code, out, errs = delayq(t, args...)
		require.Zero(t, code, errs)
		require.Contains(t, out, "Usage:")
	}
	code, _, errs = delayqWith(t, "DELAYQ_TIMEOUT=soon", "help", "topics")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "DELAYQ_TIMEOUT")
	code, out, _ = delayq(t, "--help")
	require.Zero(t, code)
	require.NotRegexp(t, `(?m)^  (web|worker|relay) `, out)
	require.Regexp(t, `(?m)^  demo `, out)
	code, _, errs = delayq(t, "topics") // it is the rest
	require.Equal(t, 6, code, errs)
}

// A task is checked with the file of a worker, and stored, without what delayqd has more: the file
// is only read.
func TestTasksAreCheckedWithoutDelayqd(t *testing.T) {
	rdb := redistest.Shared(t)
	at := []string{"--redis", "redis://" + rdb.Options().Addr, "--prefix", redistest.Prefix(t)}
	const file = `databases: {d: {dsn: "%s://db.example/shop", migrate: true}}
smtp: {s: {host: smtp.example}}
topics:
  sql:
    sql: {database: d, statements: {x: [SELECT 1]}}
  mail:
    mail: {server: s, from: a@b.example, templates: {x: {subject: x, text: x.txt}}}
  webhook:
    webhook: {hosts: [shop.example], secrets: [{from_file: secret}]}
`
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), 0o600))
	for _, database := range []string{"postgres", "mysql", "mariadb", "sqlite"} {
		path := filepath.Join(dir, database+".yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, file, database), 0o600))
		for kind, what := range map[string][]string{
			"sql": {"--sql", "x"}, "mail": {"--mail", "x", "--to", "a@b.example"}, "webhook": {"--webhook", "https://shop.example/hook"},
		} {
			add := append([]string{"task", "add", database, "--every", "1h", "--config", path}, at...)
			code, _, errs := delayq(t, append(add, what...)...)
			require.Zero(t, code, "%s %s: %s", database, kind, errs)
			code, out, errs := delayq(t, append([]string{"task", "list", kind}, at...)...)
			require.Zero(t, code, errs)
			require.Contains(t, out, database)

			what[1] = "other"
			code, _, errs = delayq(t, append(add, what...)...)
			require.Equal(t, 2, code, errs)
			require.Contains(t, errs, path+": ")
		}
	}
}

// The demo runs without its page, and says where the page is.
func TestDemoWithoutThePage(t *testing.T) {
	code, _, errs := delayq(t, "demo", "--for", "1s")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "and get its page, which delayqd demo has, with\n  go install ")
}
