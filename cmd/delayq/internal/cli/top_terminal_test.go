//go:build unix

package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/term"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// The tests in this file run the live view in a real pseudo-terminal.

// What a terminal is told at the beginning of the view, and has to be told at its end.
const (
	otherScreen = "\x1b[?1049h"
	ownScreen   = "\x1b[?1049l"
	showCursor  = "\x1b[?25h"
)

// A session is a process in a terminal of its own.
type session struct {
	*testing.T
	keys   *os.File // what is written here is typed
	screen *os.File // the side of the process
	before *term.State
	cmd    *exec.Cmd

	mu  sync.Mutex
	out bytes.Buffer
}

// inTerminal starts a process in a terminal of 80×24.
func inTerminal(t *testing.T, cmd *exec.Cmd) *session {
	t.Helper()
	keys, screen, err := pty.Open()
	require.NoError(t, err)
	s := &session{T: t, keys: keys, screen: screen, cmd: cmd}
	require.NoError(t, pty.Setsize(keys, &pty.Winsize{Rows: 24, Cols: 80}))
	s.before, err = term.GetState(int(screen.Fd()))
	require.NoError(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = screen, screen, screen
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	var reading sync.WaitGroup
	reading.Go(func() {
		for part := make([]byte, 4096); ; {
			n, err := keys.Read(part)
			s.mu.Lock()
			s.out.Write(part[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		require.NoError(t, screen.Close())
		reading.Wait() // its other side is closed
		require.NoError(t, keys.Close())
	})
	require.NoError(t, cmd.Start())
	return s
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// until waits for a text on the screen.
func (s *session) until(text string) {
	s.Helper()
	queuetest.Until(s.T, func() bool { return strings.Contains(s.text(), text) })
}

// ends waits for the end of the process. Then the terminal has to be as it was.
func (s *session) ends(code int) {
	s.Helper()
	kill := time.AfterFunc(queuetest.Patience, func() { _ = s.cmd.Process.Kill() }) // it may have ended
	_ = s.cmd.Wait()                                                                // the exit code says it
	kill.Stop()
	queuetest.Until(s.T, func() bool { return strings.Contains(s.text(), ownScreen) })
	out := s.text()
	require.Equal(s, code, s.cmd.ProcessState.ExitCode(), out)
	require.Contains(s, out, otherScreen)
	require.Contains(s, out[strings.LastIndex(out, otherScreen):], ownScreen)
	require.Contains(s, out[strings.LastIndex(out, otherScreen):], showCursor)
	after, err := term.GetState(int(s.screen.Fd()))
	require.NoError(s, err)
	require.Equal(s, s.before, after, "the settings of the terminal")
}

// The terminal is as it was after q, Ctrl-C and signals.
func TestTopLeavesTheTerminalAsItWas(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "order:cancel", 3)
	for name, end := range map[string]struct {
		code int
		do   func(s *session) error
	}{
		"q":       {exitDone, func(s *session) error { _, err := s.keys.WriteString("q"); return err }},
		"Ctrl-C":  {exitDone, func(s *session) error { _, err := s.keys.WriteString("\x03"); return err }},
		"SIGTERM": {exitInterrupted, func(s *session) error { return s.cmd.Process.Signal(syscall.SIGTERM) }},
		"SIGINT":  {exitInterrupted, func(s *session) error { return s.cmd.Process.Signal(syscall.SIGINT) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := inTerminal(t, cli.command("top"))
			s.until("order:cancel")
			during, err := term.GetState(int(s.screen.Fd()))
			require.NoError(t, err)
			require.NotEqual(t, s.before, during, "otherwise this test cannot fail")
			require.NoError(t, end.do(s))
			s.ends(end.code)
		})
	}
}

// Without colors, none are sent to the terminal.
func TestTopInATerminalWithoutColors(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "order:cancel", 3)
	for env, want := range map[string]bool{"NO_COLOR=1": false, "NO_COLOR=": true} {
		cmd := cli.command("top")
		cmd.Env = append(cmd.Env, env)
		s := inTerminal(t, cmd)
		s.until("NO SERVER")
		_, err := s.keys.WriteString("q")
		require.NoError(t, err)
		s.ends(exitDone)
		require.Equal(t, want, strings.Contains(s.text(), "\x1b[31m"), env)
	}
}

// The view goes on when Redis comes back.
func TestTopInATerminalWithoutRedis(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	server := redistest.Start(t)
	client := delayq.NewClient(server.Client(t))
	fill(t, client, "order:cancel", 3)
	s := inTerminal(t, newTool(t, server.Addr(), "delayq").command("top"))
	s.until("order:cancel")
	require.NoError(t, server.Kill())
	s.until("OLD: these numbers are")
	require.NoError(t, server.Restart())
	_, err := client.Enqueue(t.Context(), "new:topic", "", nil)
	require.NoError(t, err)
	s.until("new:topic")
	_, err = s.keys.WriteString("q")
	require.NoError(t, err)
	s.ends(exitDone)
}

// The user of the ACL file that only reads sees everything. Its first act is refused, and the keys
// that act are gone.
func TestTopAsTheUserThatOnlyReads(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	server := redistest.Start(t, redistest.NoRoles...)
	rdb := server.Client(t)
	fill(t, delayq.NewClient(rdb), "order:cancel", 3)
	set := []any{"ACL", "SETUSER"}
	for _, word := range strings.Fields(aclLine("inspector", "delayq"))[1:] {
		set = append(set, strings.Replace(word, ">change-me-inspector", ">s3cret", 1))
	}
	require.NoError(t, rdb.Do(t.Context(), set...).Err())
	s := inTerminal(t, newTool(t, "delayq-inspector@"+server.Addr(), "delayq", "DELAYQ_PASSWORD=s3cret").command("top"))
	s.until("p pause")
	_, err := s.keys.WriteString("p")
	require.NoError(t, err)
	s.until("[y/N]")
	_, err = s.keys.WriteString("y")
	require.NoError(t, err)
	s.until("refused by Redis")
	_, err = s.keys.WriteString("q")
	require.NoError(t, err)
	s.ends(exitDone)
	require.NotContains(t, s.text(), "s3cret")
}

// panicEnv makes the test binary a live view that panics: in a call of Redis, or after the key t.
const panicEnv = "DELAYQ_TEST_PANIC"

func TestTopPanicInThisProcess(t *testing.T) {
	where := os.Getenv(panicEnv)
	if where == "" {
		t.Skip("TestTopLeavesTheTerminalAfterAPanic starts it")
	}
	p := system("delayq")
	p.getenv = func(string) string { return "" }
	if where == "call" {
		p.args = []string{"top"}
		p.dial = func(*connection) (redis.UniversalClient, error) {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			rdb.AddHook(panicking{})
			return rdb, nil
		}
		os.Exit(run(t.Context(), p))
	}
	a := &app{process: p, format: formatTable, connection: connection{timeout: time.Second, url: "redis://127.0.0.1:1"}}
	m := newTop(t.Context(), a, nil, nil, "")
	m.tabs[1] = nil // which the key t shows
	os.Exit(a.report(t.Context(), a.watch(m)))
}

// A panicking hook panics in every call.
type panicking struct{}

func (panicking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (panicking) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("broken on purpose") }
}

func (panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The terminal is as it was after a panic, and shows it.
func TestTopLeavesTheTerminalAfterAPanic(t *testing.T) {
	t.Parallel()
	for where, says := range map[string]string{"call": "broken on purpose", "key": "nil pointer dereference"} {
		t.Run(where, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestTopPanicInThisProcess$")
			cmd.Env = []string{panicEnv + "=" + where}
			s := inTerminal(t, cmd)
			if where == "key" {
				s.until("nil Inspector")
				_, err := s.keys.WriteString("t")
				require.NoError(t, err)
			}
			s.ends(exitError)
			s.until(says)
			require.Greater(t, strings.LastIndex(s.text(), says), strings.LastIndex(s.text(), ownScreen), "on the screen that remains")
			require.Contains(t, s.text(), "goroutine ")
		})
	}
}

// The demo draws the live view in a terminal.
func TestDemoInATerminal(t *testing.T) {
	t.Parallel()
	s := inTerminal(t, newTool(t, "127.0.0.1:1", "delayq").command("demo", "--for", "3s"))
	s.until(refundPoll)
	s.ends(exitDone)
	require.Contains(t, s.text(), "workers busy")
}
