package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// startLimit is the time limit for a server to start, to stop or to join others. It is generous,
// because it is reached only when something is broken.
const startLimit = 30 * time.Second

// process is one run of redis-server.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
}

// launch runs a command with its output added to the file log.
func launch(log string, cmd *exec.Cmd) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = attributes()
	err = errors.Join(spawn(cmd), out.Close())
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its log shows how it ended
		close(p.ended)
	}()
	if !diesWithThread {
		err = reap("pid", strconv.Itoa(cmd.Process.Pid))
	}
	return p, err
}

func (p *process) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// end sends a signal that ends the process, and waits until it has ended.
func (p *process) end(sig os.Signal) error {
	if err := p.signal(sig); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(startLimit):
		return fmt.Errorf("redis-server %d still runs %v after %v", p.cmd.Process.Pid, startLimit, sig)
	}
}

// signal sends a signal, unless the process has ended.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal redis-server %d: %w", p.cmd.Process.Pid, err)
	}
	return nil
}

type spawning struct {
	cmd *exec.Cmd
	err chan error
}

// spawner starts the goroutine that starts all processes. The kernel sends the death signal when
// the starting thread ends, and the Go runtime can end its threads at any time. This goroutine
// keeps its thread and never exits.
var spawner = sync.OnceValue(func() chan<- spawning {
	requests := make(chan spawning)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.err <- r.cmd.Start()
		}
	}()
	return requests
})

// spawn starts a command that ends with this process, however that ends.
func spawn(cmd *exec.Cmd) error {
	r := spawning{cmd: cmd, err: make(chan error)}
	spawner() <- r
	return <-r.err
}

// poll calls try until it returns nil. After the limit it returns the last error.
func poll(limit time.Duration, try func() error) error {
	for deadline := time.Now().Add(limit); ; {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
