package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// AOF are the arguments for a server that loses no write that it has answered, even after Kill.
var AOF = []string{"--appendonly", "yes", "--appendfsync", "always"}

// errPortTaken is returned by up when another process has taken the port first.
var errPortTaken = errors.New("port is taken")

// Server is a redis-server process with a fixed port and a fixed directory.
//
// It is safe for concurrent use. Methods that change the process (Kill, Restart, Stop, Cont,
// Shutdown, Close) run one at a time and return when the change is complete. If such a call fails
// on a server of Start, the test fails too, so a test need not check the error.
type Server struct {
	t       testing.TB // of Start; otherwise nil
	port    int
	dir     string
	ownsDir bool
	bin     string
	args    []string

	mu   sync.Mutex // held while the process changes
	proc *process

	cluster bool
	aclFile string // empty: it has no users, see Roles
	grants  sync.Mutex
	granted map[string]bool // prefixes for which the users exist
}

// Start starts a server without persistence that ends with the test.
//
// The arguments are those of redis-server, and override the usual ones: Start(t, redistest.AOF...).
// Do not set a password with them; use ACL SETUSER on the running server. Calls Need.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	Need(t)
	s, err := StartE(t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	s.until(t)
	return s
}

// StartE is Start without a test. The caller calls Close.
//
// The server works in dir and leaves it there. If dir is empty, it creates its own directory, which
// Close removes.
func StartE(dir string, args ...string) (*Server, error) {
	return start(dir, func(port int, dir string) ([]string, error) {
		usual := []string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
			"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
		}
		return append(append(usual, debugArgs()...), args...), nil
	})
}

// start starts a server whose arguments depend on its port and its directory.
func start(dir string, args func(port int, dir string) ([]string, error)) (_ *Server, err error) {
	s := &Server{dir: dir}
	if s.bin, err = binary(); err != nil {
		return nil, err
	}
	if dir == "" {
		s.ownsDir = true
		if s.dir, err = ownDir(); err != nil {
			return nil, err
		}
	}
	for range 10 {
		if s.port, err = freePort(); err != nil {
			break
		}
		if s.args, err = args(s.port, s.dir); err != nil {
			break
		}
		if s.args, err = s.withUsers(s.args); err != nil {
			break
		}
		if err = s.up(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.aclFile != "" {
		servers.Store(s.Addr(), s)
	}
	return s, nil
}

// until ties a server to a test: it is closed at the end, and if the test fails, the end of its log
// is shown.
func (s *Server) until(t testing.TB) {
	s.t = t
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("redis-server %s:\n%s", s.Addr(), s.log(0))
		}
		_ = s.Close() // fails the test by itself
	})
}

// up runs the process and waits until it answers.
func (s *Server) up() error {
	var before int64
	if info, err := os.Stat(s.logFile()); err == nil {
		before = info.Size()
	}
	cmd := exec.Command(s.bin, s.args...)
	cmd.Dir = s.dir
	p, err := launch(s.logFile(), cmd)
	if err != nil {
		return err
	}
	s.proc = p
	err = poll(startLimit, func() error {
		if p.gone() {
			return nil
		}
		return s.answers(cmd.Process.Pid)
	})
	if !p.gone() {
		return err
	}
	log := s.log(before)
	if bytes.Contains(log, []byte("already in use")) {
		return fmt.Errorf("start redis-server on %s: %w", s.Addr(), errPortTaken)
	}
	return fmt.Errorf("start redis-server on %s: it ended at once:\n%s", s.Addr(), log)
}

// answers returns nil if the process pid answers on the port. Another server may have taken the
// port first.
func (s *Server) answers(pid int) error {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "PING\r\nINFO server\r\n"); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || line != "+PONG\r\n" {
		return errors.Join(fmt.Errorf("PING of %s: %q", s.Addr(), line), err)
	}
	var size int
	if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
		return fmt.Errorf("INFO of %s: %w", s.Addr(), err)
	}
	info := make([]byte, size)
	if _, err := io.ReadFull(r, info); err != nil {
		return fmt.Errorf("INFO of %s: %w", s.Addr(), err)
	}
	if !bytes.Contains(info, fmt.Appendf(nil, "\r\nprocess_id:%d\r\n", pid)) {
		return fmt.Errorf("another server answers on %s", s.Addr())
	}
	return nil
}

// Addr returns the address, host and port.
func (s *Server) Addr() string {
	return local(s.port)
}

// Dir returns the directory in which the server works and stores its files.
func (s *Server) Dir() string {
	return s.dir
}

// Options returns new options for a client of this server.
func (s *Server) Options() *redis.Options {
	return &redis.Options{
		Addr:                     s.Addr(),
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Client returns a new client that is closed at the end of the test.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(s.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	if s.aclFile != "" {
		InRoles(t, rdb)
	}
	return rdb
}

// Kill ends the process with SIGKILL, like a crash. If the server is down, it does nothing.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report(errors.Join(s.denied(), s.kill()))
}

func (s *Server) kill() error {
	if s.proc == nil {
		return nil
	}
	return s.proc.end(os.Kill)
}

// Restart starts the server again on its port, with its directory and arguments, and waits until it
// answers.
//
// A server that still runs is killed first.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(s.denied(), s.kill()); err != nil {
		return s.report(err)
	}
	for deadline := time.Now().Add(startLimit); ; {
		err := s.up()
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return s.report(err)
		}
		// another process is testing the port and releases it soon
		time.Sleep(100 * time.Millisecond)
	}
}

// Shutdown ends the process in order, with SIGTERM, so that it first writes its data.
func (s *Server) Shutdown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	return s.report(errors.Join(s.proc.signal(sigCont), s.denied(), s.proc.end(syscall.SIGTERM)))
}

// Stop freezes the process with SIGSTOP: it keeps its port and its connections, and answers
// nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.gone() {
		return s.report(fmt.Errorf("stop redis-server on %s: it is down", s.Addr()))
	}
	err := s.proc.signal(sigStop)
	if err == nil {
		err = poll(startLimit, func() error { return frozen(s.proc.cmd.Process.Pid) })
	}
	return s.report(err)
}

// Cont resumes a process that Stop has frozen.
func (s *Server) Cont() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.gone() {
		return s.report(fmt.Errorf("cont redis-server on %s: it is down", s.Addr()))
	}
	return s.report(s.proc.signal(sigCont))
}

// Close kills the process, and removes the directory if the server created it.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.Join(s.denied(), s.kill())
	servers.CompareAndDelete(s.Addr(), s)
	if s.ownsDir {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return s.report(err)
}

// report returns err, and fails the test to which the server belongs.
func (s *Server) report(err error) error {
	if err != nil && s.t != nil {
		s.t.Error(err)
	}
	return err
}

func (s *Server) logFile() string {
	return filepath.Join(s.dir, "redis.log")
}

// log returns the log from an offset on, at most the last 4 KiB.
func (s *Server) log(from int64) []byte {
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return nil // nothing was written
	}
	return log[max(int(from), len(log)-4096):]
}

// binary returns the path of redis-server.
func binary() (string, error) {
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	return exec.LookPath(name)
}

// major returns the major version of redis-server; 0 if it is unknown.
var major = sync.OnceValue(func() int {
	bin, err := binary()
	if err != nil {
		return 0 // start reports it
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return 0 // start reports it
	}
	if v := regexp.MustCompile(`v=(\d+)\.`).FindSubmatch(out); v != nil {
		n, _ := strconv.Atoi(string(v[1])) // only digits
		return n
	}
	return 0
})

// Major returns the major version of the redis-server that tests start. It skips the test if there
// is none.
func Major(t testing.TB) int {
	t.Helper()
	Need(t)
	return major()
}

// speaksTLS reports whether redis-server was built with TLS. Then it ends because it misses its
// certificate, and otherwise because it does not know what to do with the port.
var speaksTLS = sync.OnceValue(func() bool {
	bin, err := binary()
	if err != nil {
		return false // Need reports it
	}
	port, err := freePort()
	if err != nil {
		return false
	}
	out, _ := exec.Command(bin, "--port", "0", "--tls-port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "").CombinedOutput()
	return bytes.Contains(out, []byte("tls-cert-file"))
})

// debugArgs allows the command DEBUG. Before Redis 7 it was always allowed and the argument did not
// exist.
func debugArgs() []string {
	if major() < 7 {
		return nil
	}
	return []string{"--enable-debug-command", "yes"}
}
