package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// slots gives a topic with its slots and none of its loops.
func slots(t *testing.T, concurrency int, h HandlerFunc, opts ...ServerOption) *topicServer {
	t.Helper()
	own := embedded.New()
	t.Cleanup(own.Close)
	rdb := own.Client()
	s := NewServer(rdb, append(opts, Concurrency(concurrency), Logger(slog.New(slog.DiscardHandler)))...)
	s.HandlerFunc("a", h)
	require.NoError(t, s.begin())
	t.Cleanup(func() {
		s.engine.close()
		require.NoError(t, rdb.Close())
	})
	a := s.engine.topics.get("a")
	a.base = t.Context()
	return a
}

// taken gives runs of jobs that have just been taken, with room reserved for them.
func (t *topicServer) taken(n int) (runs []*run.Run) {
	t.workers.Coming += n
	for i := range n {
		r := &run.Run{ID: fmt.Sprint(i), Fence: record.ParseFence("1"), Until: time.Now().Add(time.Hour)}
		r.Options.Retry = -1
		runs = append(runs, r)
	}
	return runs
}

// admitted takes jobs over as admit does, and starts no slot for them until letGo.
func (t *topicServer) admitted(n int) []*run.Run {
	t.workers.Starting = true
	runs := t.taken(n)
	for _, r := range runs {
		t.admit(r, nil)
	}
	return runs
}

func (t *topicServer) letGo() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers.Starting = false
	t.startWorkerLocked()
}

// All slots are used, though each is started by the one before, and the jobs are started in their
// order, but for one that is cancelled before that.
func TestSlotsStartEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var started []string
		release := make(chan struct{})
		cancelled := make(chan string, 1)
		a := slots(t, 5, func(_ context.Context, job *Job) error {
			mu.Lock()
			started = append(started, job.ID)
			mu.Unlock()
			<-release
			return nil
		}, Hooks(into(cancelled)))
		for _, r := range a.taken(8) {
			a.admit(r, nil)
		}
		synctest.Wait()
		require.ElementsMatch(t, []string{"0", "1", "2", "3", "4"}, started)
		require.Zero(t, a.workers.Coming)
		require.False(t, a.hasIdleWorker())
		a.cancelRun("6", "1", ErrCancelled)
		for i, id := range []string{"5", "7"} {
			release <- struct{}{}
			synctest.Wait()
			require.Equal(t, id, started[5+i])
		}
		close(release)
		a.server.running.Wait()
		require.Len(t, started, 7)
		require.Len(t, a.outcomes.Rows, 7)
		require.Equal(t, "6", <-cancelled)
		require.Zero(t, a.workers.Busy)
		require.True(t, a.hasIdleWorker())
	})
}

// onCancelled is a hook.
type onCancelled func(id string)

func (f onCancelled) Cancelled(e RunEvent) { f(e.ID) }

// into makes a hook that puts the IDs into a channel.
func into(c chan<- string) onCancelled { return func(id string) { c <- id } }

// A job that is cancelled between its take and its start is not started. The hooks are told, and
// the room it leaves is taken.
func TestCancelledBeforeTheStart(t *testing.T) {
	t.Parallel()
	cancelled := make(chan string, 2)
	a := slots(t, 1, func(context.Context, *Job) error { panic("started") }, Hooks(into(cancelled)))
	for _, r := range a.admitted(2) {
		a.cancelRun(r.ID, "1", ErrCancelled)
	}
	require.True(t, a.expectRoom())
	require.Zero(t, a.roomLocked(), "the slot has not looked yet")
	a.letGo()
	a.server.running.Wait()
	require.ElementsMatch(t, []string{"0", "1"}, []string{<-cancelled, <-cancelled})
	require.True(t, a.expectRoom())
	require.Equal(t, 1, a.roomLocked())
	require.Empty(t, a.outcomes.Rows)
}

// What waits too long for a slot to become free is given back: not what has a free slot that is
// being started, unless the server stops. Those that were cancelled meanwhile count as that.
func TestGiveBackLeavesWhatHasAFreeSlot(t *testing.T) {
	t.Parallel()
	cancelled := make(chan string, 2)
	a := slots(t, 3, func(context.Context, *Job) error { return nil }, Hooks(into(cancelled)))
	a.workers.Busy = 1
	a.admitted(6)
	all := a.workers.Next
	a.cancelRun("0", "1", ErrCancelled)
	a.cancelRun("4", "1", ErrCancelled)
	ids := func() (ids []string) {
		for _, r := range a.outcomes.Rows {
			require.Equal(t, settle.Return, r.Verb)
			ids = append(ids, r.Run.ID)
		}
		return ids
	}
	a.giveBack(errSlow)
	require.Equal(t, []string{"3", "5"}, ids())
	require.Equal(t, []string{"0", "4"}, []string{<-cancelled, <-cancelled})
	require.Len(t, a.workers.Next, 2)
	for _, r := range all[2:] {
		require.Nil(t, r, "it is not kept in memory")
	}
	a.giveBack(ErrShutdown)
	require.Equal(t, []string{"3", "5", "1", "2"}, ids())
	require.Empty(t, a.workers.Next)
}

// Once there is a slot for every job that was taken, others may be taken ahead, and the taker is
// told so.
func TestStartedSlotsMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		a := slots(t, 10, func(context.Context, *Job) error {
			<-release
			return nil
		})
		a.workers.HandlerTime = 5 * time.Millisecond
		a.admitted(10)
		require.Zero(t, a.roomLocked())
		a.letGo()
		synctest.Wait()
		require.Equal(t, 10, a.workers.Busy)
		require.Equal(t, a.workers.Ahead(), a.roomLocked())
		require.True(t, a.expectRoom())
		close(release)
		a.server.running.Wait()
	})
}

// A hook that is told of a job lost before its start does not hold up the job behind it, whose
// Timeout runs already.
func TestHooksOfLostJobsHoldUpNoStart(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	told := false
	a := slots(t, 1, func(context.Context, *Job) error {
		close(started)
		return nil
	}, Hooks(onCancelled(func(string) {
		<-started
		told = true
	})))
	a.admitted(2)
	a.cancelRun("0", "1", ErrCancelled)
	a.letGo()
	a.server.running.Wait()
	require.True(t, told)
	require.Len(t, a.outcomes.Rows, 1)
}
