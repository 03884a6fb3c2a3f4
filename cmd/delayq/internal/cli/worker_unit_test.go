//go:build unix

package cli

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/queuetest"
)

// restarted reports whether systemd starts a service again whose process has ended like that, by
// the settings of its unit: see the table of Restart= in systemd.service(5).
func restarted(t *testing.T, unit string, end *os.ProcessState) bool {
	t.Helper()
	settings := map[string]string{}
	for line := range strings.Lines(unit) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(name, "#") {
			settings[name] = value
		}
	}
	require.Equal(t, "on-failure", settings["Restart"])
	status := end.Sys().(syscall.WaitStatus)
	for _, code := range strings.Fields(settings["RestartPreventExitStatus"]) {
		n, err := strconv.Atoi(code)
		require.NoError(t, err)
		if status.Exited() && status.ExitStatus() == n {
			return false
		}
	}
	if status.Signaled() {
		switch status.Signal() {
		case syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE: // a clean end
			return false
		}
		return true
	}
	return status.ExitStatus() != 0
}

// crashEnv makes the process crash, by a panic, when it gets SIGUSR1.
const crashEnv = "DELAYQ_TEST_CRASH"

func init() {
	if os.Getenv(crashEnv) == "" {
		return
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		<-asked
		panic("a crash")
	}()
}

// By the unit that is shipped, a worker that has crashed is started again, and one with a mistake
// in its file or one that was stopped is not.
func TestUnitRestartsWhatHasCrashed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../deploy/delayq-worker.service")
	require.NoError(t, err)
	unit := string(text)
	const good = "topics: {backup: {command: {argv: [cat]}}}"
	for name, end := range map[string]struct {
		do   func(b *bench) error
		want bool
	}{
		"crash": {func(b *bench) error { return b.cmd.Process.Signal(syscall.SIGUSR1) }, true},
		// The runtime of Go writes all stacks, also of goroutines that still run. It ends with the
		// code 2, or by SIGSEGV if one of them changes its stack meanwhile.
		"quit":    {func(b *bench) error { return b.cmd.Process.Signal(syscall.SIGQUIT) }, true},
		"killed":  {func(b *bench) error { return b.cmd.Process.Kill() }, true}, // for example for want of memory
		"stopped": {func(b *bench) error { return b.cmd.Process.Signal(syscall.SIGTERM) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, good)
			b.env = append(b.env, crashEnv+"=1")
			b.start()
			require.NoError(t, end.do(b))
			queuetest.Receive(t, b.done)
			_ = b.cmd.Wait() // its state says it
			require.Equal(t, end.want, restarted(t, unit, b.cmd.ProcessState), b.cmd.ProcessState)
			if name == "crash" {
				require.Equal(t, 2, b.cmd.ProcessState.ExitCode(), "the code of a crash in Go")
				require.Contains(t, b.logged(), "panic: a crash\n\ngoroutine ")
			}
		})
	}
	b := newBench(t, "topics: {backup: {comand: {}}}")
	for _, args := range [][]string{{"worker", "--config", b.path()}, {"worker", "--config", b.path(), "--check"}, {"worker", "--config", b.path() + ".gone"}} {
		cmd := b.command(args...)
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Run(), &exit, args)
		require.Equal(t, exitConfig, exit.ExitCode(), args)
		require.False(t, restarted(t, unit, exit.ProcessState), args)
	}
}
