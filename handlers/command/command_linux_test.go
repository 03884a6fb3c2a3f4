package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/command"
)

// permanent reports whether err is a Permanent: its type is not exported.
func permanent(err error) bool { return fmt.Sprintf("%T", err) == "*delayq.permanentError" }

// sh returns a handler that runs a script of the shell.
func sh(t testing.TB, script string, opts ...command.Option) *command.Handler {
	t.Helper()
	h, err := command.New([]string{"sh", "-c", script}, opts...)
	require.NoError(t, err)
	return h
}

func job(t testing.TB, payload string) *delayq.Job {
	return delayqtest.NewJob(t, delayq.NewJob{Topic: "tasks", ID: "nightly 7", Payload: []byte(payload)})
}

// output runs a script and returns what it prints.
func output(t *testing.T, script, payload string, opts ...command.Option) string {
	t.Helper()
	var failed *command.Error
	require.ErrorAs(t, sh(t, script+"\nexit 1", opts...).Handle(t.Context(), job(t, payload)), &failed)
	require.Equal(t, 1, failed.Status)
	return string(failed.Output)
}

// gone waits until a process does not run. A zombie does not.
func gone(t *testing.T, pid string) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ")
	}, time.Minute, time.Millisecond)
}

// pidIn waits for a file with the ID of a process.
func pidIn(t *testing.T, file string) (pid string) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(file)
		pid = strings.TrimSpace(string(text))
		return err == nil && strings.HasSuffix(string(text), "\n")
	}, time.Minute, time.Millisecond)
	return pid
}

func TestEachExitStatus(t *testing.T) {
	for status := range 256 {
		err := sh(t, "exit "+strconv.Itoa(status)).Handle(t.Context(), job(t, ""))
		if status == 0 {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, status == 64, permanent(err), status)
		var failed *command.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, command.Error{Name: "sh", Status: status, Output: []byte{}}, *failed)
		require.EqualError(t, err, fmt.Sprintf("command: sh: exit status %d, no output", status))
	}
	err := sh(t, "kill -9 $$").Handle(t.Context(), job(t, ""))
	require.False(t, permanent(err))
	require.EqualError(t, err, "command: sh: ended by signal 9 (killed), no output")
}

func TestWhatACommandGets(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "x")
	j := job(t, "the payload")
	j.Attempt, j.Due = 3, time.Date(2026, 3, 1, 13, 0, 0, 5e8, time.FixedZone("", 3600))
	h, err := command.New([]string{"/bin/sh", "-c", `env | sort; cat; echo; echo "$0 $1"; exit 1`, "zero", "$(id); 'one'"},
		command.Env("B=2", "A=1", "A=3"))
	require.NoError(t, err)
	var failed *command.Error
	require.ErrorAs(t, h.Handle(t.Context(), j), &failed)
	lines := strings.Split(string(failed.Output), "\n")
	lines = lines[:len(lines):len(lines)]
	var kept []string
	for _, line := range lines {
		if !strings.HasPrefix(line, "PWD=") && !strings.HasPrefix(line, "_=") && !strings.HasPrefix(line, "SHLVL=") { // of the shell
			kept = append(kept, line)
		}
	}
	require.Equal(t, []string{
		"A=3", "B=2", "DELAYQ_ATTEMPT=3", "DELAYQ_DUE=2026-03-01T12:00:00.5Z", "DELAYQ_ID=nightly 7", "DELAYQ_TOPIC=tasks",
		"PATH=/usr/local/bin:/usr/bin:/bin", "the payload", "zero $(id); 'one'", "",
	}, kept)
	require.Equal(t, "/usr/bin:/x\n", output(t, "echo $PATH", "", command.Env("PATH=/usr/bin:/x")))

	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.Equal(t, dir+"\n", output(t, "pwd -P", "", command.Dir(dir)))
}

func TestAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		err := sh(t, "true", command.As(65534, 65534)).Handle(t.Context(), job(t, ""))
		require.ErrorIs(t, err, syscall.EPERM)
		return
	}
	require.Equal(t, "65534 65534 65534\n", output(t, "echo $(id -u) $(id -g) $(id -G)", "", command.As(65534, 65534)))
}

func TestPayloadsOfAnySize(t *testing.T) {
	big := strings.Repeat("x", 4<<20)
	require.Equal(t, strconv.Itoa(len(big))+"\n", output(t, "wc -c", big))
	require.NoError(t, sh(t, "exit 0").Handle(t.Context(), job(t, big)), "it need not read it")
	require.NoError(t, sh(t, "exec 0<&-; exit 0").Handle(t.Context(), job(t, big)))
}

func TestOutputIsTheLast(t *testing.T) {
	require.Equal(t, "out\nerr\nout\n", output(t, "echo out; echo err >&2; echo out", ""))
	for _, n := range []int{0, 1, 4095, 4096, 4097, 5000, 8192, 8193, 40000} {
		text := make([]byte, n)
		for i := range text {
			text[i] = "0123456789abc"[i%13]
		}
		require.Equal(t, string(text[max(0, n-4096):]), output(t, "cat", string(text)), n)
		require.Equal(t, string(text[max(0, n-4096):]), output(t, "dd bs=7 status=none", string(text)), n)
	}
	err := sh(t, `printf 'first\377'; head -c 2000 /dev/zero | tr '\0' x; printf '\377last\n'; exit 7`).Handle(t.Context(), job(t, ""))
	require.True(t, strings.HasSuffix(err.Error(), "x\uFFFDlast"), err)
	require.Less(t, len(err.Error()), 1<<10, "all of it fits into the errors of a job")
	require.NotContains(t, err.Error(), "first")
}

// The end of the output is attached to the run, however that ends.
func TestOutputIsAttached(t *testing.T) {
	for _, status := range []string{"0", "1"} {
		j := job(t, "")
		err := sh(t, `head -c 5000 /dev/zero; printf 'done\377\n'; exit `+status).Handle(t.Context(), j)
		require.Equal(t, status == "0", err == nil)
		require.Len(t, j.Output(), 4<<10)
		require.True(t, strings.HasSuffix(string(j.Output()), "\x00done\xff\n"))
	}
}

// A GiB of output takes no memory.
func TestOutputIsBounded(t *testing.T) {
	size := 1 << 30
	if testing.Short() {
		size = 64 << 20
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text := output(t, "head -c "+strconv.Itoa(size)+" /dev/zero; echo end", "")
	runtime.ReadMemStats(&after)
	require.True(t, strings.HasSuffix(text, "\x00end\n"))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

// What a command leaves in the background ends with it, and does not hold up its end.
func TestForksEnd(t *testing.T) {
	for _, script := range []string{
		"sleep 1000 & echo $!",
		"(trap '' TERM HUP INT; sleep 1000) & echo $!",
		"(sleep 1000 & echo $!) &\nwait",
		"sleep 1000 </dev/null >/dev/null 2>&1 & echo $!",
	} {
		gone(t, strings.TrimSpace(output(t, script, "")))
	}
	file := filepath.Join(t.TempDir(), "pid")
	require.NoError(t, sh(t, "sleep 1000 & echo $! >"+file).Handle(t.Context(), job(t, "")))
	gone(t, pidIn(t, file))
}

// A process that leaves the group keeps the output open. The run ends all the same.
func TestEscapedProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	require.NoError(t, sh(t, `setsid sh -c 'echo $$ >`+file+`; exec sleep 1000' & while ! [ -s `+file+` ]; do :; done`).Handle(t.Context(), job(t, "")))
	pid, err := strconv.Atoi(pidIn(t, file))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), "it is beyond the reach of the handler")
}

// cancelled cancels the run of a script when it has written its process ID to $FILE.
func cancelled(t *testing.T, script string, grace time.Duration) (pid string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	h := sh(t, script, command.Env("FILE="+file), command.Grace(grace))
	go func() { result <- h.Handle(ctx, job(t, "")) }()
	pid = pidIn(t, file)
	cancel(delayq.ErrTimeout)
	return pid, <-result
}

func TestCancelledCommands(t *testing.T) {
	var failed *command.Error

	pid, err := cancelled(t, `echo waits; echo $$ >$FILE; sleep 1000`, 10*time.Minute)
	require.ErrorIs(t, err, delayq.ErrTimeout)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, syscall.SIGTERM, failed.Signal)
	require.Equal(t, "waits\n", string(failed.Output))
	gone(t, pid)

	_, err = cancelled(t, `trap 'echo cleans up; exit 0' TERM; echo $$ >$FILE; sleep 1000 & wait`, 10*time.Minute)
	require.NoError(t, err, "it has ended well")

	_, err = cancelled(t, `trap 'exit 64' TERM; echo $$ >$FILE; sleep 1000 & wait`, 10*time.Minute)
	require.True(t, permanent(err))
	require.ErrorIs(t, err, delayq.ErrTimeout)

	pid, err = cancelled(t, `trap 'echo TERM' TERM; echo $$ >$FILE; while :; do sleep 0.01; done`, 100*time.Millisecond)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, syscall.SIGKILL, failed.Signal)
	require.Contains(t, string(failed.Output), "TERM", "it was asked first")
	gone(t, pid)

	pid, err = cancelled(t, `trap 'echo TERM' TERM; echo $$ >$FILE; while :; do sleep 0.01; done`, 0)
	require.ErrorAs(t, err, &failed)
	require.NotContains(t, string(failed.Output), "TERM")
	gone(t, pid)

	// the first process obeys, its child does not
	pid, err = cancelled(t, `(trap '' TERM; sh -c 'echo $PPID' >$FILE; while :; do sleep 0.01; done) & wait`, 10*time.Minute)
	require.ErrorAs(t, err, &failed)
	require.Equal(t, syscall.SIGTERM, failed.Signal)
	gone(t, pid)

	pid, err = cancelled(t, `echo $$ >$FILE; kill -STOP $$`, 100*time.Millisecond)
	require.Error(t, err)
	gone(t, pid)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(delayq.ErrShutdown)
	file := filepath.Join(t.TempDir(), "ran")
	require.ErrorIs(t, sh(t, "touch "+file).Handle(ctx, job(t, "")), delayq.ErrShutdown)
	require.NoFileExists(t, file)
}

func TestJobsThatDoNotFit(t *testing.T) {
	h := sh(t, "exit 0")
	for _, spoil := range []func(*delayq.Job){func(j *delayq.Job) { j.ID = "a\x00b" }, func(j *delayq.Job) { j.Topic = "a\x00b" }} {
		j := job(t, "")
		spoil(j)
		err := h.Handle(t.Context(), j)
		require.True(t, permanent(err))
		require.ErrorContains(t, err, "byte 2 of the")
	}
}

func TestFileThatGoesAway(t *testing.T) {
	file := filepath.Join(t.TempDir(), "task")
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\nexit 0\n"), 0o700))
	h, err := command.New([]string{file})
	require.NoError(t, err)
	require.NoError(t, h.Handle(t.Context(), job(t, "")))
	require.NoError(t, os.Remove(file))
	err = h.Handle(t.Context(), job(t, ""))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.False(t, permanent(err), "a deployment may bring it back")
}

func TestInvalidConfigurations(t *testing.T) {
	for want, opt := range map[string]command.Option{
		"Dir: empty": command.Dir(""), "variable 2: must be NAME=value": command.Env("A=1", "hidden"), "variable 1: must": command.Env("=hidden"),
		"variable 1: must be": command.Env("A=hidden\x00"), "DELAYQ_ID is reserved": command.Env("DELAYQ_ID=hidden"),
		"Grace(-1ns)": command.Grace(-1), "Grace(11m0s)": command.Grace(11 * time.Minute), "nil option": nil,
	} {
		_, err := command.New([]string{"/no/such/file", "x\x00"}, opt)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "argument 1 has a NUL")
		require.NotContains(t, err.Error(), "hidden")
	}
	for _, argv := range [][]string{nil, {""}, {t.TempDir()}, {"no-such-command"}} {
		_, err := command.New(argv)
		require.ErrorIs(t, err, delayq.ErrInvalid, argv)
	}
}

// The error of a command and its output are in the errors of the job.
func TestErrorsOfTheJob(t *testing.T) {
	q := delayqtest.Start(t)
	q.Serve(func(s *delayq.Server) {
		s.Handle("tasks", sh(t, `echo "attempt $DELAYQ_ATTEMPT of $DELAYQ_ID"; [ $DELAYQ_ATTEMPT = 1 ] && exit 75; exit 64`))
	})
	_, err := q.Client.Enqueue(t.Context(), "tasks", "a", nil)
	require.NoError(t, err)
	q.Advance(time.Hour)
	info, err := q.Client.Get(t.Context(), "tasks", "a")
	require.NoError(t, err)
	require.Equal(t, delayq.StateDead, info.State)
	require.Len(t, info.Errors, 2)
	require.Equal(t, "command: sh: exit status 75; its output ends with:\nattempt 1 of a", info.Errors[0].Message)
	require.Equal(t, "command: sh: exit status 64; its output ends with:\nattempt 2 of a", info.Errors[1].Message)
	require.Equal(t, "*command.Error", info.Errors[1].Type)
}

func Example() {
	report, err := command.New([]string{"sh", "-c", `echo "the report of $(cat) cannot be written"; exit 64`})
	if err != nil {
		panic(err)
	}
	job := &delayq.Job{Topic: "report", ID: "monday", Payload: []byte("Monday"), Attempt: 1}
	err = report.Handle(context.Background(), job)
	failed, _ := errors.AsType[*command.Error](err)
	fmt.Println(failed.Status == command.ExitPermanent)
	fmt.Println(err)
	// Output:
	// true
	// command: sh: exit status 64; its output ends with:
	// the report of Monday cannot be written
}
