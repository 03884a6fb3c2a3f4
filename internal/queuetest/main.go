package queuetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/redistest"
)

// Main runs the tests of a package, or the worker that some of them start as a process of its own.
// A goroutine that is left in the end fails the whole, because tests close what they open. With
// DELAYQ_ROLES, a call that was denied fails it too, and check is called after all tests.
func Main(m *testing.M, check func() error) {
	if os.Getenv(workerEnv) != "" {
		workerMain()
		return
	}
	redis.SetLogger(noLog{}) // go-redis reports every connection that fails
	slog.SetDefault(slog.New(slog.NewTextHandler(&defaultLog, nil)))
	debug.SetGCPercent(400) // the embedded Redis makes a Lua state for every call
	redistest.SideBySide()
	if redistest.RoleOf == nil {
		redistest.RoleOf = redistest.MethodRole
	}
	code := m.Run()
	if redistest.Roles() {
		err := redistest.Denied()
		report()
		if flag.Lookup("test.run").Value.String() == "" && !testing.Short() {
			err = errors.Join(err, check())
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "as the users of the ACL file:\n%v\n", err)
			code = 1
		}
	}
	if left := leftGoroutines(Patience); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines are left after all tests:\n\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// report says how many calls each role has made.
func report() {
	for role, tally := range redistest.Tallies() {
		tests := map[string]bool{}
		for test := range tally.Tests {
			name, _, _ := strings.Cut(test, "/")
			tests[name] = true
		}
		fmt.Printf("as the %s: %d calls in %d tests, %d with subtests: %v\n", role, tally.Calls, len(tests), len(tally.Tests), tally.Did)
	}
}

// defaultLog has what is logged without a Logger.
var defaultLog Logbook

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// leftGoroutines waits until only goroutines are there that may stay, and returns the stacks of the
// others.
func leftGoroutines(limit time.Duration) string {
	mayStay := []string{
		"queuetest.leftGoroutines",
		"internal/redistest.", // the servers that all tests share end with the process
		"os/signal.", "os/exec.(*Cmd)", "testing.(*F).", "runtime.ReadTrace",
	}
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 16<<20)
		stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
		stacks = slices.DeleteFunc(stacks, func(stack string) bool {
			return slices.ContainsFunc(mayStay, func(name string) bool { return strings.Contains(stack, name) })
		})
		if len(stacks) == 0 || time.Now().After(deadline) {
			return strings.Join(stacks, "\n\n")
		}
	}
}
