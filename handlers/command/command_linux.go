package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/delayq/delayq"
)

// The exit statuses that have a meaning: EX_USAGE and EX_TEMPFAIL of sysexits.h.
const (
	ExitPermanent = 64
	ExitRetry     = 75
)

const (
	maxOutput = 4 << 10 // bytes of the output that are kept
	maxText   = 768     // bytes of these in the text of an error
	maxName   = 64      // bytes of the name of the command in the text of an error

	// pipePatience is how long output is read after the group has been killed: only a process that
	// has left the group can still write.
	pipePatience = time.Second
)

// A Handler runs a command. It is a [delayq.Handler] and safe for concurrent use.
type Handler struct {
	path  string
	argv  []string
	dir   string
	env   []string
	grace time.Duration
	as    *syscall.Credential
}

// An Error is the error of a run that failed.
type Error struct {
	Name   string         // of the file that was run, without its folder
	Status int            // exit status; -1: a signal ended it
	Signal syscall.Signal // 0: it exited
	Output []byte         // the last 4 KiB of standard output and standard error together
	Cause  error          // why the run was cancelled; nil: it was not
}

// Error returns the name, how the command ended, and the last 768 bytes of its output.
func (e *Error) Error() string {
	text := "command: " + e.Name[:min(len(e.Name), maxName)]
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	if e.Signal != 0 {
		text += fmt.Sprintf(": ended by signal %d (%v)", int(e.Signal), e.Signal)
	} else {
		text += fmt.Sprintf(": exit status %d", e.Status)
	}
	output := bytes.TrimSpace(e.Output[max(0, len(e.Output)-maxText):])
	if len(output) == 0 {
		return text + ", no output"
	}
	return strings.ToValidUTF8(text+"; its output ends with:\n"+string(output), "\uFFFD")
}

// Unwrap returns the cause of the cancellation.
func (e *Error) Unwrap() error { return e.Cause }

// An Option configures a [Handler].
type Option func(*Handler) error

// Dir is the working directory. Default: that of the server.
func Dir(path string) Option {
	return func(h *Handler) (err error) {
		if path == "" {
			return errors.New("Dir: empty path")
		}
		h.dir, err = filepath.Abs(path)
		return err
	}
}

// Env adds variables to the environment, each as NAME=value. The last one of a name counts. Names
// that begin with DELAYQ_ are reserved. A secret that a command needs is safer in a file.
func Env(variables ...string) Option {
	return func(h *Handler) error {
		for i, v := range variables {
			name, _, found := strings.Cut(v, "=")
			switch {
			case !found || name == "" || strings.Contains(v, "\x00"): // the text may be a secret
				return fmt.Errorf("Env: variable %d: must be NAME=value without NUL", i+1)
			case strings.HasPrefix(name, "DELAYQ_"):
				return fmt.Errorf("Env: %s is reserved", name)
			}
		}
		h.env = append(h.env, variables...)
		return nil
	}
}

// Grace is the time from SIGTERM to SIGKILL when a run is cancelled. It should be shorter than the
// [delayq.Drain] of the server and the lease of the topic. Default: 5 s. Range: 0, which sends no
// SIGTERM, to 10 minutes.
func Grace(d time.Duration) Option {
	return func(h *Handler) error {
		if h.grace = d; d < 0 || d > 10*time.Minute {
			return fmt.Errorf("Grace(%v): from 0s to 10m0s", d)
		}
		return nil
	}
}

// As runs the command as another user and group, without other groups. The server needs to be root
// for that. Otherwise a run fails. Default: those of the server.
func As(uid, gid uint32) Option {
	return func(h *Handler) error {
		h.as = &syscall.Credential{Uid: uid, Gid: gid}
		return nil
	}
}

// New returns a handler that runs argv. A name without a slash is looked up in the PATH of the
// server, now. It returns [delayq.ErrInvalid], with every complaint, for an invalid option, and for
// a file that does not exist or is not executable.
func New(argv []string, opts ...Option) (*Handler, error) {
	h := &Handler{grace: 5 * time.Second, env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}}
	var errs []error
	for _, opt := range opts {
		if opt == nil {
			errs = append(errs, errors.New("nil option"))
			continue
		}
		errs = append(errs, opt(h))
	}
	switch {
	case len(argv) == 0 || argv[0] == "":
		errs = append(errs, errors.New("argv: needs at least the name of a file"))
	default:
		path, err := exec.LookPath(argv[0])
		if err == nil {
			path, err = filepath.Abs(path)
		}
		h.path, h.argv = path, append([]string(nil), argv...)
		errs = append(errs, err)
	}
	for i, arg := range argv {
		if strings.Contains(arg, "\x00") {
			errs = append(errs, fmt.Errorf("argv: argument %d has a NUL", i))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("command: %w: %w", delayq.ErrInvalid, err)
	}
	return h, nil
}

// Handle runs the command: see the package documentation.
func (h *Handler) Handle(ctx context.Context, job *delayq.Job) error {
	name := filepath.Base(h.path)
	for what, value := range map[string]string{"topic": job.Topic, "ID": job.ID} {
		if at := strings.IndexByte(value, 0); at >= 0 {
			return delayq.Permanent(fmt.Errorf("command: %s: byte %d of the %s is NUL; expected none, because a variable cannot have one", name, at+1, what))
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("command: %s: not started: %w", name, context.Cause(ctx))
	}
	var output tail
	cmd := &exec.Cmd{
		Path: h.path, Args: h.argv, Dir: h.dir,
		Env: append(h.env[:len(h.env):len(h.env)], "DELAYQ_TOPIC="+job.Topic, "DELAYQ_ID="+job.ID,
			"DELAYQ_ATTEMPT="+strconv.Itoa(job.Attempt), "DELAYQ_DUE="+job.Due.UTC().Format(time.RFC3339Nano)),
		Stdin: bytes.NewReader(job.Payload), Stdout: &output, Stderr: &output, WaitDelay: pipePatience,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Credential: h.as},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("command: %s: start: %w", name, err)
	}
	pid := cmd.Process.Pid // and the ID of its group
	exited := make(chan struct{})
	go func() {
		awaitExit(pid)
		close(exited)
	}()
	var cause error
	select {
	case <-exited:
	case <-ctx.Done():
		cause = context.Cause(ctx)
		h.end(pid, exited)
	}
	// Until Wait has reaped it, the exited process keeps the ID of the group from being used again.
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	err := cmd.Wait()
	_ = job.SetOutput(output.bytes()) // it is short; a job without a run keeps none
	if cmd.ProcessState.Success() {
		return nil // an error is about the output then
	}
	if _, ended := errors.AsType[*exec.ExitError](err); !ended {
		return fmt.Errorf("command: %s: wait: %w", name, err)
	}
	failed := &Error{Name: name, Status: cmd.ProcessState.ExitCode(), Output: output.bytes(), Cause: cause}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		failed.Signal = status.Signal()
	}
	if failed.Status == ExitPermanent {
		return delayq.Permanent(failed)
	}
	return failed
}

// end stops a process group and returns when its first process has exited.
func (h *Handler) end(pid int, exited <-chan struct{}) {
	if h.grace > 0 {
		_ = syscall.Kill(-pid, syscall.SIGTERM)
		patience := time.NewTimer(h.grace)
		defer patience.Stop()
		select {
		case <-exited:
			return
		case <-patience.C:
		}
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	<-exited
}

// awaitExit returns when a child has exited, and leaves it to be reaped.
func awaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// A tail keeps the end of what is written to it. It is used by one goroutine at a time.
type tail struct {
	ring [maxOutput]byte
	n    int // bytes that were written
}

func (t *tail) Write(p []byte) (int, error) {
	all := len(p)
	if drop := all - maxOutput; drop > 0 {
		t.n, p = t.n+drop, p[drop:]
	}
	for len(p) > 0 {
		n := copy(t.ring[t.n%maxOutput:], p)
		t.n, p = t.n+n, p[n:]
	}
	return all, nil
}

// bytes returns the last bytes, in order.
func (t *tail) bytes() []byte {
	if t.n <= maxOutput {
		return t.ring[:t.n]
	}
	at := t.n % maxOutput
	return append(append(make([]byte, 0, maxOutput), t.ring[at:]...), t.ring[:at]...)
}
