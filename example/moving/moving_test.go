// Package moving_test runs programs on other queues, and the same programs on delayq, and compares
// what they do. docs/moving shows parts of them.
package moving_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // of sqltest
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
)

// outcome builds and runs a program, and returns the lines that it prints, sorted: what happens at
// the same time is printed in any order.
func outcome(t *testing.T, folder string, env ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	built, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./"+folder).CombinedOutput()
	require.NoError(t, err, string(built))
	return lines(t, exec.CommandContext(t.Context(), program), env...)
}

// lines runs a command and returns what it prints, sorted.
func lines(t *testing.T, cmd *exec.Cmd, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	bounded := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	bounded.Dir, bounded.Env = cmd.Dir, append(os.Environ(), env...)
	var errs strings.Builder
	bounded.Stderr = &errs
	out, err := bounded.Output()
	require.NoError(t, err, "%s\n%s", out, errs.String())
	list := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// onRedis returns the address of a Redis for one program: keys of other queues have no prefix.
func onRedis(t *testing.T) string { return "REDIS_URL=redis://" + redistest.Start(t).Addr() + "/0" }

// onPostgres returns the address of a database for one program.
func onPostgres(t *testing.T) string {
	dsn, stop, err := sqltest.Postgres()
	if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(stop)
	return "DATABASE_URL=" + fmt.Sprintf(dsn, "postgres")
}

func TestAsynq(t *testing.T) {
	t.Parallel()
	const want = `3 notes for anna
digest for anna
digest stored: true, false
failed: mail:welcome
failed: mail:welcome
given up: welcome-bob
order-1 is cancelled
report
reported: mail:welcome
reported: mail:welcome
welcome, anna
welcome, bob`
	require.Equal(t, want, outcome(t, "asynq/before", onRedis(t)))
	require.Equal(t, want, outcome(t, "asynq/after", onRedis(t)))
}

// shopped is what each small shop does.
const shopped = `order-1 is cancelled
order-2 is paid
the mail to anna failed
welcome, anna`

func TestAfter(t *testing.T) {
	t.Parallel()
	require.Equal(t, shopped, outcome(t, "after", onRedis(t)))
}

func TestTable(t *testing.T) {
	t.Parallel()
	require.Equal(t, shopped, outcome(t, "table", onPostgres(t)))
}

func TestRiver(t *testing.T) {
	t.Parallel()
	require.Equal(t, shopped, outcome(t, "river", onPostgres(t)))
}

func TestGocraft(t *testing.T) {
	t.Parallel()
	require.Equal(t, shopped, outcome(t, "gocraft", onRedis(t)))
}

func TestGoQueue(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("beanstalkd"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	list := beanstalkd(t) + "," + beanstalkd(t)
	require.Equal(t, shopped, outcome(t, "goqueue", onRedis(t), "BEANSTALKS="+list))
}

// beanstalkd starts a server of it, which ends with the test.
func beanstalkd(t *testing.T) (addr string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = listener.Addr().String()
	require.NoError(t, listener.Close())
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	server := exec.Command("beanstalkd", "-l", "127.0.0.1", "-p", port)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		require.NoError(t, server.Process.Kill())
		_ = server.Wait() // it was killed
	})
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, time.Minute, 5*time.Millisecond)
	return addr
}

func TestBullMQ(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil && os.Getenv("CI") == "" {
			t.Skip(err)
		}
	}
	version, err := exec.CommandContext(t.Context(), "node", "--version").Output()
	require.NoError(t, err)
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	n, err := strconv.Atoi(major)
	require.NoError(t, err)
	if n < 20 {
		t.Skip("BullMQ needs Node 20, and this is", string(version)) // Debian 12 has 18
	}
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("bullmq")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
	npm.Dir = dir
	text, err := npm.CombinedOutput()
	require.NoError(t, err, string(text))
	node := exec.CommandContext(t.Context(), "node", "shop.mjs")
	node.Dir = dir
	require.Equal(t, shopped, lines(t, node, onRedis(t)))
}
