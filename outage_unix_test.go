//go:build unix

package delayq_test

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
	"github.com/delayq/delayq/internal/redistest"
)

// A process that runs a hundred jobs is killed while another one is up. All hundred run again
// there, by themselves, once the leases are over. (A1, A19, C3, C5)
func TestKilledWorkerLosesNothing(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	const jobs, lease = 100, 3 * time.Second
	w := startWorker(t, workerConfig{Addr: rdb.Options().Addr, Prefix: prefix, Topic: "a", Lease: lease, Concurrency: jobs})
	for i := range jobs {
		_, err := client.Enqueue(t.Context(), "a", fmt.Sprint(i), fmt.Appendf(nil, "payload %d", i))
		require.NoError(t, err)
	}
	for range jobs {
		require.Equal(t, "start", receive(t, w.lines)[0])
	}
	var rec recorder
	serve(t, rdb, prefix, "a", rec.then(nil), delayq.Concurrency(10))
	until(t, func() bool {
		servers, err := client.Servers(t.Context())
		return err == nil && len(servers) == 2
	})
	require.Empty(t, rec.all())
	ends := make(map[string]time.Time)
	for i := range jobs {
		info, err := client.Get(t.Context(), "a", fmt.Sprint(i))
		require.NoError(t, err)
		require.Equal(t, delayq.StateRunning, info.State)
		ends[info.ID] = info.LeaseEnd
	}
	require.NoError(t, w.cmd.Process.Kill())

	until(t, func() bool { return len(rec.times()) == jobs })
	for _, s := range rec.all() {
		require.Equal(t, 2, s.attempt, "job %s", s.id)
		require.Equal(t, "payload "+s.id, s.payload)
		require.False(t, s.started.Before(ends[s.id]), "job %s was taken from a worker that held its lease", s.id)
	}
	until(t, func() bool { return counterOf(t, client, "a", "acked") == jobs })
	require.EqualValues(t, jobs, counterOf(t, client, "a", "reclaimed"))
	require.Len(t, rec.all(), jobs)
}

// A process sleeps through its lease, as a laptop that is closed or a virtual machine that is
// moved. When it wakes up it still believes that the job is its own, and its ack is refused. (B7)
func TestStoppedWorkerIsRefused(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	const lease = time.Second
	w := startWorker(t, workerConfig{Addr: rdb.Options().Addr, Prefix: prefix, Topic: "a", Lease: lease, Concurrency: 1})
	_, err := client.Enqueue(t.Context(), "a", "1", nil)
	require.NoError(t, err)
	require.Equal(t, []string{"start", "1", "1"}, receive(t, w.lines))
	require.NoError(t, w.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus // a signal takes its time
	_, err = syscall.Wait4(w.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	stopped := rdb.Time(t.Context()).Val()
	_, err = io.WriteString(w.in, "the handler is to end at once when it wakes up\n")
	require.NoError(t, err)

	var rec recorder
	finish := make(chan struct{})
	free := sync.OnceFunc(func() { close(finish) })
	defer free()
	serve(t, rdb, prefix, "a", rec.then(func(context.Context, *delayq.Job) error {
		<-finish
		return nil
	}))
	until(t, func() bool { return len(rec.all()) == 1 })
	until(t, func() bool { return rdb.Time(t.Context()).Val().Sub(stopped) > 3*lease })
	require.NoError(t, w.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, []string{"lost", "1"}, receive(t, w.lines))
	info, err := client.Get(t.Context(), "a", "1")
	require.NoError(t, err)
	require.Equal(t, delayq.StateRunning, info.State, "the other one has it")
	require.Equal(t, 2, info.Attempt)
	require.Zero(t, counterOf(t, client, "a", "acked"))
	free()
	until(t, func() bool { return stateOf(t, client, "a", "1") == "" })
	require.EqualValues(t, 1, counterOf(t, client, "a", "acked"))
	require.Len(t, rec.all(), 1)
}
