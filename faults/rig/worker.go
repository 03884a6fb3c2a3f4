package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/delayq/delayq"
)

// MaxPayload is the largest payload of tasks, in bytes.
const MaxPayload = 5 << 20

// A WorkerConfig says what a worker process does.
type WorkerConfig struct {
	Name   string // of the process in the history
	Dir    string // of the history
	Redis  Redis
	Prefix string
	Topics []string                       // and patterns
	Batch  map[string]int                 // topics whose jobs run in batches of at most so many
	Gather map[string]delayq.GatherWindow // of topics with batches
	Slots  int                            // for each topic
	Lease  time.Duration                  // 0: the default
	Drain  time.Duration                  // 0: the default
	Dead   int                            // how many dead jobs of a topic are kept; 0: the default
	Box    *BoxConfig                     // the process is a relay of this outbox, and serves no topic
}

// Redis says how to reach Redis: one server, the Sentinels of one, or the nodes of a cluster.
type Redis struct {
	Addr      string
	Sentinels []string
	Master    string
	Cluster   []string
	PoolSize  int
	User      string
	Password  string
}

// Client makes a client, which the caller closes.
func (r Redis) Client() redis.UniversalClient {
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch {
	case len(r.Cluster) > 0:
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: r.Cluster, PoolSize: r.PoolSize, MaintNotificationsConfig: off})
	case len(r.Sentinels) > 0:
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: r.Master, SentinelAddrs: r.Sentinels, PoolSize: r.PoolSize})
	}
	return redis.NewClient(&redis.Options{
		Addr: r.Addr, PoolSize: r.PoolSize, Username: r.User, Password: r.Password, MaintNotificationsConfig: off,
	})
}

// workerEnv is the variable that makes a process a worker.
const workerEnv = "DELAYQ_FAULTS_WORKER"

// WorkerMain makes this process a worker, if it was started as one, and ends it when its server has
// ended. Call it first in main or TestMain.
func WorkerMain() {
	text := os.Getenv(workerEnv)
	if text == "" {
		return
	}
	if err := runWorker(text); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runWorker(text string) error {
	var c WorkerConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	rec, err := NewRecorder(c.Dir, c.Name)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		// The parent holds the other end and never writes: this returns when the parent is gone.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	rdb := c.Redis.Client()
	defer func() { _ = rdb.Close() }()
	rec.Record(Event{Op: OpUp})
	watch, end := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { rec.Stalls(watch, c.Name, nil) })
	if c.Box != nil {
		err = c.Box.relay(ctx, rdb, c.Prefix)
	} else {
		err = c.Server(rdb, rec).Run(ctx)
	}
	end()
	watching.Wait()
	return errors.Join(err, rec.Close())
}

// Server makes the server of a worker, for use in this process. The log goes to standard error.
func (c WorkerConfig) Server(rdb redis.UniversalClient, rec *Recorder) *delayq.Server {
	opts := []delayq.ServerOption{
		delayq.Prefix(c.Prefix), delayq.Hooks(hooks{rec}), delayq.Concurrency(max(c.Slots, 1)),
		delayq.Logger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
	}
	if c.Lease > 0 {
		opts = append(opts, delayq.Lease(c.Lease))
	}
	if c.Drain > 0 {
		opts = append(opts, delayq.Drain(c.Drain))
	}
	if c.Dead > 0 {
		opts = append(opts, delayq.DeadLimit(c.Dead, time.Hour))
	}
	server, client := delayq.NewServer(rdb, opts...), NewClient(rdb, rec, delayq.Prefix(c.Prefix), delayq.MaxPayload(MaxPayload))
	for _, topic := range c.Topics {
		if size := c.Batch[topic]; size > 0 {
			window, gathers := c.Gather[topic]
			opts := []delayq.HandlerOption{delayq.BatchSize(size)}
			if gathers {
				opts = append(opts, delayq.Gather(window))
			}
			server.HandleBatch(topic, handler{rec, client, window.ByKey}.HandleBatch, opts...)
			continue
		}
		server.Handle(topic, handler{rec, client, false})
	}
	return server
}

// A Worker is a worker process. Its methods may be called from several goroutines.
type Worker struct {
	c     WorkerConfig
	rec   *Recorder // of the parent: faults are written there
	ended chan struct{}

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.Closer
	out   string
}

// StartWorker starts a worker process; rec notes the faults that are done to it.
func StartWorker(c WorkerConfig, rec *Recorder) (*Worker, error) {
	w := &Worker{c: c, rec: rec}
	return w, w.Start()
}

// Name is the name of the process in the history.
func (w *Worker) Name() string { return w.c.Name }

// Start starts the process again after its end.
func (w *Worker) Start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, err := json.Marshal(w.c)
	if err != nil {
		return err
	}
	w.out = filepath.Join(w.c.Dir, w.c.Name+".log")
	out, err := os.OpenFile(w.out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self) //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = out, out
	if w.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start worker %s: %w", w.c.Name, err)
	}
	w.cmd = cmd
	ended := make(chan struct{})
	w.ended = ended
	go func() {
		_ = cmd.Wait() // how it ended is for the caller to judge
		close(ended)
	}()
	return nil
}

// Ended is closed when the process is gone.
func (w *Worker) Ended() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// Code is the exit code of a process that has ended, -1 if a signal ended it.
func (w *Worker) Code() int {
	<-w.Ended()
	return w.cmd.ProcessState.ExitCode()
}

// signal sends a signal to a process that may be gone.
func (w *Worker) signal(sig os.Signal) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal worker %s: %w", w.c.Name, err)
	}
	return nil
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (w *Worker) Kill() error {
	w.rec.Record(Event{Op: OpFault, Result: "kill", ID: w.c.Name})
	if err := w.signal(os.Kill); err != nil {
		return err
	}
	<-w.Ended()
	w.rec.Record(Event{Op: OpHeal, Result: "kill", ID: w.c.Name})
	return nil
}

// Stop freezes the process with SIGSTOP.
func (w *Worker) Stop() error {
	w.rec.Record(Event{Op: OpFault, Result: "stop", ID: w.c.Name})
	return w.signal(syscall.SIGSTOP)
}

// Cont lets a frozen process go on.
func (w *Worker) Cont() error {
	err := w.signal(syscall.SIGCONT)
	w.rec.Record(Event{Op: OpHeal, Result: "stop", ID: w.c.Name})
	return err
}

// Term asks the process to stop with SIGTERM; AwaitEnd waits for that.
func (w *Worker) Term() error {
	w.rec.Record(Event{Op: OpFault, Result: "term", ID: w.c.Name})
	err := w.signal(syscall.SIGTERM)
	return err
}

// AwaitEnd waits until the process has ended by itself.
func (w *Worker) AwaitEnd(limit time.Duration) error {
	select {
	case <-w.Ended():
		w.rec.Record(Event{Op: OpHeal, Result: "term", ID: w.c.Name})
		return nil
	case <-time.After(limit):
		return fmt.Errorf("worker %s still runs after %v", w.c.Name, limit)
	}
}

// Log is what the process wrote to standard output and error.
func (w *Worker) Log() string {
	raw, err := os.ReadFile(w.out)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Tail is the last n bytes of Log.
func (w *Worker) Tail(n int) string {
	log := w.Log()
	return log[max(0, len(log)-n):]
}

var crashed = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE|goroutine \d+ \[)`)

// Crashes finds in the log of a process what no log line is: the traces of a panic that was not
// caught, or of a race.
func (w *Worker) Crashes() string {
	log := []byte(w.Log())
	if at := crashed.FindIndex(log); at != nil {
		return string(bytes.TrimSpace(log[at[0]:min(len(log), at[0]+2000)]))
	}
	return ""
}
