package serve

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// taken gives runs of jobs that have just been taken, with room reserved for them.
func (t *Topic) taken(n int) (runs []*run.Run) {
	t.Workers.Coming += n
	for i := range n {
		r := &run.Run{ID: fmt.Sprint(i), Fence: record.ParseFence("1"), Until: time.Now().Add(time.Hour)}
		r.Options.Retry = -1
		runs = append(runs, r)
	}
	return runs
}

// admitted takes jobs over as admit does, and starts no slot for them until letGo.
func (t *Topic) admitted(n int) []*run.Run {
	t.Workers.Starting = true
	runs := t.taken(n)
	for _, r := range runs {
		t.admit(r, nil)
	}
	return runs
}

func (t *Topic) letGo() {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.Workers.Starting = false
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
		a := topicOf(t, 5, func(_ context.Context, job *run.Run) error {
			mu.Lock()
			started = append(started, job.ID)
			mu.Unlock()
			<-release
			return nil
		}, into(cancelled))
		for _, r := range a.taken(8) {
			a.admit(r, nil)
		}
		synctest.Wait()
		require.ElementsMatch(t, []string{"0", "1", "2", "3", "4"}, started)
		require.Zero(t, a.Workers.Coming)
		require.False(t, a.hasIdleWorker())
		a.cancelRun("6", "1", run.ErrCancelled)
		for i, id := range []string{"5", "7"} {
			release <- struct{}{}
			synctest.Wait()
			require.Equal(t, id, started[5+i])
		}
		close(release)
		a.Server.ending.running.Wait()
		require.Len(t, started, 7)
		require.Len(t, a.Outcomes.Rows, 7)
		require.Equal(t, "6", <-cancelled)
		require.Zero(t, a.Workers.Busy)
		require.True(t, a.hasIdleWorker())
	})
}

// into is an observer that puts the IDs of cancelled jobs into a channel.
func into(c chan<- string) told {
	return func(r settle.Row) {
		if r.Outcome() == record.OutcomeCancelled {
			c <- r.Run.ID
		}
	}
}

// A job that is cancelled between its take and its start is not started. The hooks are told, and
// the room it leaves is taken.
func TestCancelledBeforeTheStart(t *testing.T) {
	t.Parallel()
	cancelled := make(chan string, 2)
	a := topicOf(t, 1, func(context.Context, *run.Run) error { panic("started") }, into(cancelled))
	for _, r := range a.admitted(2) {
		a.cancelRun(r.ID, "1", run.ErrCancelled)
	}
	require.True(t, a.expectRoom())
	require.Zero(t, a.roomLocked(), "the slot has not looked yet")
	a.letGo()
	a.Server.ending.running.Wait()
	require.ElementsMatch(t, []string{"0", "1"}, []string{<-cancelled, <-cancelled})
	require.True(t, a.expectRoom())
	require.Equal(t, 1, a.roomLocked())
	require.Empty(t, a.Outcomes.Rows)
}

// What waits too long for a slot to become free is given back: not what has a free slot that is
// being started, unless the server stops. Those that were cancelled meanwhile count as that.
func TestGiveBackLeavesWhatHasAFreeSlot(t *testing.T) {
	t.Parallel()
	cancelled := make(chan string, 2)
	a := topicOf(t, 3, func(context.Context, *run.Run) error { return nil }, into(cancelled))
	a.Workers.Busy = 1
	a.admitted(6)
	all := a.Workers.Next
	a.cancelRun("0", "1", run.ErrCancelled)
	a.cancelRun("4", "1", run.ErrCancelled)
	ids := func() (ids []string) {
		for _, r := range a.Outcomes.Rows {
			require.Equal(t, settle.Return, r.Verb)
			ids = append(ids, r.Run.ID)
		}
		return ids
	}
	a.GiveBack(errSlow)
	require.Equal(t, []string{"3", "5"}, ids())
	require.Equal(t, []string{"0", "4"}, []string{<-cancelled, <-cancelled})
	require.Len(t, a.Workers.Next, 2)
	for _, r := range all[2:] {
		require.Nil(t, r, "it is not kept in memory")
	}
	a.GiveBack(run.ErrShutdown)
	require.Equal(t, []string{"3", "5", "1", "2"}, ids())
	require.Empty(t, a.Workers.Next)
}

// A job that has waited for longer than its start was counted for goes back, although a worker is
// free for it. The next one, which may start, does.
func TestLateStartsGoBack(t *testing.T) {
	t.Parallel()
	a := topicOf(t, 3, func(context.Context, *run.Run) error { return nil }, nil)
	a.admitted(3)
	now := time.Now()
	a.Workers.Next[0].By = now.Add(-time.Microsecond)
	a.Workers.Next[1].By = now
	a.Mu.Lock()
	defer a.Mu.Unlock()
	require.Equal(t, "1", a.popLocked(now).ID)
	require.Len(t, a.Outcomes.Rows, 1)
	require.Equal(t, settle.Return, a.Outcomes.Rows[0].Verb)
	require.Equal(t, "0", a.Outcomes.Rows[0].Run.ID)
	require.Equal(t, "2", a.popLocked(now).ID)
}

// Once there is a slot for every job that was taken, others may be taken ahead, and the taker is
// told so.
func TestStartedSlotsMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		a := topicOf(t, 10, func(context.Context, *run.Run) error {
			<-release
			return nil
		}, nil)
		a.Workers.HandlerTime = 5 * time.Millisecond
		a.admitted(10)
		require.Zero(t, a.roomLocked())
		a.letGo()
		synctest.Wait()
		require.Equal(t, 10, a.Workers.Busy)
		require.Equal(t, a.Workers.Ahead(), a.roomLocked())
		require.True(t, a.expectRoom())
		close(release)
		a.Server.ending.running.Wait()
	})
}

// A hook that is told of a job lost before its start does not hold up the job behind it, whose
// Timeout runs already.
func TestHooksOfLostJobsHoldUpNoStart(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	heard := false
	a := topicOf(t, 1, func(context.Context, *run.Run) error {
		close(started)
		return nil
	}, func(r settle.Row) {
		<-started
		heard = true
	})
	a.admitted(2)
	a.cancelRun("0", "1", run.ErrCancelled)
	a.letGo()
	a.Server.ending.running.Wait()
	require.True(t, heard)
	require.Len(t, a.Outcomes.Rows, 1)
}

// A take was executed while limits were far away, and its reply arrives after they have come near,
// as a reply to the other taker has said, or after a message that they have changed. The jobs that
// have no worker go back.
func TestFarRepliesThatArriveLateKeepNothing(t *testing.T) {
	t.Parallel()
	const jobs = 150 // admitted concurrently
	for name, nears := range map[string]func(a *Topic){
		"reply":   func(a *Topic) { a.setNear() },
		"message": func(a *Topic) { a.resume(false) },
	} {
		t.Run(name, func(t *testing.T) {
			a := topicOf(t, 3, func(context.Context, *run.Run) error { return nil }, nil)
			a.Workers.Starting, a.Workers.Bounded, a.Workers.Far = true, true, true
			a.Workers.Coming = jobs
			var ids, records []any
			for i := range jobs {
				ids, records = append(ids, strconv.Itoa(i)), append(records, "a record")
			}
			sent := time.Now().Add(-time.Millisecond)
			k := a.newTaker("taken")
			k.number, k.since, k.n, k.free = 1, 1, jobs, 3
			nears(a)
			k.admit(t.Context(), script.Reply{"ok", int64(1000), "31000.000", ids, records, nil, nil, int64(0), int64(0), "far"}, sent, jobs, true)
			k.admitting.Wait()
			require.False(t, a.Workers.Far)
			require.Len(t, a.Workers.Next, 3)
			require.Len(t, a.Outcomes.Rows, jobs-3)
		})
	}
}

// A server that is far from its limits and uses its places seldom tells the others of them. If it
// has no job for a place, it always does.
func TestPlacesArePassedRarelyWhileTheyAreUsed(t *testing.T) {
	t.Parallel()
	a := topicOf(t, 1, func(context.Context, *run.Run) error { return nil }, nil)
	a.Workers.Bounded, a.Workers.Places, a.Workers.Far, a.Workers.Busy = true, true, true, 1
	a.admitted(2)
	require.True(t, a.passPlaces(t.Context()))
	a.Workers.passed = time.Now().Add(time.Second)
	require.False(t, a.passPlaces(t.Context()))
	a.Workers.passed = time.Now().Add(-a.Server.Config.Tick / 10)
	require.True(t, a.passPlaces(t.Context()))
	a.Workers.passed = time.Now().Add(time.Second)
	a.GiveBack(errBounded)
	require.True(t, a.passPlaces(t.Context()))
}

// A topic on demand starts a job for each that was asked for. A job that is wanted no more, or not
// yet, goes back at once.
func TestOnDemand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var started atomic.Int32
		a := topicOf(t, 5, func(context.Context, *run.Run) error {
			started.Add(1)
			<-release
			return nil
		}, nil)
		a.Workers.OnDemand, a.Workers.Cautious, a.Workers.Count = true, true, 0
		demand := func(n, room int) {
			t.Helper()
			a.Server.Demand("a", n)
			synctest.Wait()
			a.Mu.Lock()
			defer a.Mu.Unlock()
			require.Equal(t, room, a.roomLocked())
		}
		demand(2, 2)
		require.True(t, a.hasIdleWorker())
		for _, r := range a.taken(2) {
			a.admit(r, nil)
		}
		synctest.Wait()
		require.EqualValues(t, 2, started.Load())
		require.False(t, a.hasIdleWorker())
		demand(1, 1)
		late := a.taken(1)[0]
		late.ID = "late"
		a.Workers.Starting = true
		a.admit(late, nil)
		demand(-1, 0) // before its worker has started
		require.Len(t, a.Outcomes.Rows, 1)
		require.Equal(t, settle.Return, a.Outcomes.Rows[0].Verb)
		a.letGo()
		release <- struct{}{}
		release <- struct{}{}
		synctest.Wait()
		require.EqualValues(t, 2, started.Load())
		require.Len(t, a.Outcomes.Rows, 3)
		require.Zero(t, a.Workers.Count)
		a.Server.Demand("b", 1) // which is not served
	})
}
