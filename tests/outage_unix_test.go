//go:build unix

package tests

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A process that runs a hundred jobs is killed while another one is up. All hundred run again
// there, by themselves, once the leases are over. (A1, A19, C3, C5)
func TestKilledWorkerLosesNothing(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
	const jobs, lease = 100, 3 * time.Second
	w := queuetest.StartWorker(t, queuetest.WorkerConfig{Addr: rdb.Options().Addr, Prefix: prefix, Topic: "a", Lease: lease, Concurrency: jobs})
	for i := range jobs {
		_, err := client.Enqueue(t.Context(), "a", fmt.Sprint(i), fmt.Appendf(nil, "payload %d", i))
		require.NoError(t, err)
	}
	for range jobs {
		require.Equal(t, "start", queuetest.Receive(t, w.Lines)[0])
	}
	var rec queuetest.Recorder
	queuetest.Serve(t, rdb, prefix, "a", rec.Then(nil), delayq.Concurrency(10))
	queuetest.Until(t, func() bool {
		servers, err := insp.Servers(t.Context())
		return err == nil && len(servers) == 2
	})
	require.Empty(t, rec.All())
	ends := make(map[string]time.Time)
	for i := range jobs {
		info, err := client.Get(t.Context(), "a", fmt.Sprint(i))
		require.NoError(t, err)
		require.Equal(t, delayq.StateRunning, info.State)
		ends[info.ID] = info.LeaseEnd
	}
	require.NoError(t, w.Cmd.Process.Kill())

	queuetest.Until(t, func() bool { return len(rec.Times()) == jobs })
	for _, s := range rec.All() {
		require.Equal(t, 2, s.Attempt, "job %s", s.ID)
		require.Equal(t, "payload "+s.ID, s.Payload)
		require.False(t, s.Started.Before(ends[s.ID]), "job %s was taken from a worker that held its lease", s.ID)
	}
	queuetest.Until(t, func() bool { return queuetest.CounterOf(t, insp, "a", "acked") == jobs })
	require.EqualValues(t, jobs, queuetest.CounterOf(t, insp, "a", "reclaimed"))
	require.Len(t, rec.All(), jobs)
}

// A process sleeps through its lease, as a laptop that is closed or a virtual machine that is
// moved. When it wakes up it still believes that the job is its own, and its ack is refused. (B7)
func TestStoppedWorkerIsRefused(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
	const lease = time.Second
	w := queuetest.StartWorker(t, queuetest.WorkerConfig{Addr: rdb.Options().Addr, Prefix: prefix, Topic: "a", Lease: lease, Concurrency: 1})
	_, err := client.Enqueue(t.Context(), "a", "1", nil)
	require.NoError(t, err)
	require.Equal(t, []string{"start", "1", "1"}, queuetest.Receive(t, w.Lines))
	require.NoError(t, w.Cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus // a signal takes its time
	_, err = syscall.Wait4(w.Cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	stopped := rdb.Time(t.Context()).Val()
	_, err = io.WriteString(w.In, "the handler is to end at once when it wakes up\n")
	require.NoError(t, err)

	var rec queuetest.Recorder
	finish := make(chan struct{})
	free := sync.OnceFunc(func() { close(finish) })
	defer free()
	queuetest.Serve(t, rdb, prefix, "a", rec.Then(func(context.Context, *delayq.Job) error {
		<-finish
		return nil
	}))
	queuetest.Until(t, func() bool { return len(rec.All()) == 1 })
	queuetest.Until(t, func() bool { return rdb.Time(t.Context()).Val().Sub(stopped) > 3*lease })
	require.NoError(t, w.Cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, []string{"lost", "1"}, queuetest.Receive(t, w.Lines))
	info, err := client.Get(t.Context(), "a", "1")
	require.NoError(t, err)
	require.Equal(t, delayq.StateRunning, info.State, "the other one has it")
	require.Equal(t, 2, info.Attempt)
	require.Zero(t, queuetest.CounterOf(t, insp, "a", "acked"))
	free()
	queuetest.Until(t, func() bool { return queuetest.StateOf(t, client, "a", "1") == "" })
	require.EqualValues(t, 1, queuetest.CounterOf(t, insp, "a", "acked"))
	require.Len(t, rec.All(), 1)
}
