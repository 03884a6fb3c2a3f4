package cli

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

func init() {
	writers = append(writers, [][]string{
		{"cancel", "T", "j"}, {"run", "T", "j"}, {"reschedule", "T", "j", "--in", "1h"}, {"bury", "T", "j"}, {"revive", "T", "d"}, {"purge", "T", "d"},
		{"cancel", "T", "--state", "scheduled", "--all", "--yes"},
	}...)
}

// IDs go from one command to another through a pipe.
func TestIDsThroughAPipe(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "many", 20)
	ids := cli.ok("jobs", "many", "--state", "ready", "--limit", "10", "-o", "id")
	require.Equal(t, exitUsage, cli.do(ids, "cancel", "many", "-").code)
	require.Equal(t, exitUsage, cli.do(ids, "cancel", "many", "-", "--yes", "--at-most", "9").code)
	require.Equal(t, ids, cli.do(ids, "cancel", "many", "-", "--yes", "-o", "id").out)
	require.Equal(t, exitNotFound, cli.do(ids, "cancel", "many", "-", "--yes").code)
}

// An interrupt in a bulk: the exit code is 130, and the cursor that is printed goes on.
func TestInterruptedBulk(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "many", 3000)
	left := func() int {
		n, err := strconv.Atoi(regexp.MustCompile(`"ready":(\d+)`).FindStringSubmatch(cli.ok("topics", "-o", "jsonl"))[1])
		require.NoError(t, err)
		return n
	}
	var out, errs bytes.Buffer
	cmd := cli.command("cancel", "many", "--state", "ready", "--all", "--yes", "--pace", "1000", "-o", "json")
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Start())
	queuetest.Until(t, func() bool { return left() < 3000 })
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), errs.String())
	done, err := strconv.Atoi(regexp.MustCompile(`"done": (\d+)`).FindStringSubmatch(out.String())[1])
	require.NoError(t, err)
	require.Equal(t, 3000-done, left())
	cursor := regexp.MustCompile(`--cursor (\S+)\n`).FindStringSubmatch(errs.String())
	require.NotNil(t, cursor, errs.String())
	require.Contains(t, cli.ok("cancel", "many", "--state", "ready", "--all", "--yes", "--cursor", cursor[1]), number(3000-done)+" jobs cancelled")
	require.Zero(t, left())
}

// Redis goes away in the middle of a bulk: what was done is reported, and the exit code is 6.
func TestBulkWithoutRedis(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	server := redistest.Start(t)
	client := delayq.NewClient(server.Client(t))
	fill(t, client, "many", 3000)
	cli := newTool(t, server.Addr(), "delayq", "DELAYQ_TIMEOUT=1s")
	var out, errs bytes.Buffer
	cmd := cli.command("cancel", "many", "--state", "ready", "--all", "--yes", "--pace", "1000", "-o", "json")
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Start())
	queuetest.Until(t, func() bool { return !strings.Contains(cli.ok("topics", "-o", "jsonl"), `"ready":3000`) })
	require.NoError(t, server.Kill())
	require.Error(t, cmd.Wait())
	require.Equal(t, exitUnreachable, cmd.ProcessState.ExitCode(), errs.String())
	require.Regexp(t, `"done": \d+`, out.String())
	require.Regexp(t, `--cursor \S+\n`, errs.String())
}
