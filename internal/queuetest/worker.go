package queuetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// workerEnv makes the test binary a worker: a server in a process of its own, so that it can be
// killed and stopped. It reports what its handlers and hooks see on its standard output, a line
// each: "start 7 1" (job and attempt), "done 7", "lost 7". Its handlers end with the first line on
// its standard input, and the process with the end of that input.
const workerEnv = "DELAYQ_TEST_WORKER"

type WorkerConfig struct {
	Addr, Username, Password string // with no name it is the default user
	Prefix, Topic            string
	Lease                    time.Duration
	Concurrency              int
}

type workerHooks struct {
	say func(word, id string, more ...any)
}

func (h workerHooks) Done(e delayq.RunEvent)      { h.say("done", e.ID) }
func (h workerHooks) LeaseLost(e delayq.RunEvent) { h.say("lost", e.ID) }

func workerMain() {
	var c WorkerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &c); err != nil {
		panic(err)
	}
	var mu sync.Mutex
	say := func(word, id string, more ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(append([]any{word, id}, more...)...)
	}
	finish := make(chan struct{})
	go func() {
		in := bufio.NewReader(os.Stdin)
		if _, err := in.ReadString('\n'); err == nil {
			close(finish)
			_, _ = io.Copy(io.Discard, in)
		}
		os.Exit(0)
	}()
	rdb := redis.NewClient(&redis.Options{Addr: c.Addr, Username: c.Username, Password: c.Password})
	s := delayq.NewServer(rdb, delayq.Prefix(c.Prefix), delayq.Lease(c.Lease), delayq.Concurrency(c.Concurrency),
		delayq.Logger(slog.New(slog.DiscardHandler)), delayq.Hooks(workerHooks{say}))
	s.HandlerFunc(c.Topic, func(_ context.Context, job *delayq.Job) error {
		say("start", job.ID, job.Attempt)
		<-finish
		return nil
	})
	fmt.Fprintln(os.Stderr, s.Run(context.Background()))
	os.Exit(1)
}

// A worker is a server in a process of its own.
type worker struct {
	Cmd   *exec.Cmd
	In    io.WriteCloser
	Lines chan []string // fields of what it says; closed when it has ended
}

// StartWorker starts a worker. It ends with the test at the latest.
func StartWorker(t *testing.T, c WorkerConfig) *worker {
	t.Helper()
	c.Username, c.Password = redistest.Account(t, c.Addr, "worker", c.Prefix)
	config, err := json.Marshal(c)
	require.NoError(t, err)
	w := &worker{Cmd: exec.Command(os.Args[0]), Lines: make(chan []string, 1000)}
	w.Cmd.Env = append(os.Environ(), workerEnv+"="+string(config))
	w.Cmd.Stderr = os.Stderr
	w.In, err = w.Cmd.StdinPipe()
	require.NoError(t, err)
	out, err := w.Cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, w.Cmd.Start())
	go func() {
		defer close(w.Lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			w.Lines <- strings.Fields(in.Text())
		}
	}()
	t.Cleanup(func() {
		_ = w.Cmd.Process.Kill()
		for range w.Lines { // all of it has been read before Wait closes the pipe
		}
		_ = w.Cmd.Wait()
	})
	return w
}
