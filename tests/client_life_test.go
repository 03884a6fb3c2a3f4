package tests

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
)

// Dequeue works in every state, tells it, and leaves nothing of the job behind. Whoever was running
// it can write nothing any more. (D2, D3, D7)
func TestDequeueInEveryState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, lease hand.Held) {
		before := f.Dump()
		got, err := f.Client.Dequeue(t.Context(), "topic", "x")
		if state == "" {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorContains(t, err, `"topic"`)
			require.Empty(t, got)
			require.Equal(t, before, f.Dump(), "nothing was written")
			return
		}
		require.NoError(t, err)
		require.Equal(t, state, got)
		_, err = f.Client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)

		if lease.ID != "" {
			for _, letter := range []string{
				f.Hand.Ack(lease), f.Hand.Retry(0, lease), f.Hand.Snooze(0, lease), f.Hand.Bury(lease), f.Hand.Return(lease),
			} {
				require.Equal(t, "g", letter, "lost, because it is gone")
			}
		}
		f.Hand.Hasten(24 * time.Hour)
		f.Hand.Promote()
		require.Empty(t, f.Hand.Take(10, time.Minute), "it ran")
		require.Empty(t, f.Hand.Traces("x"))
		for key := range f.Dump() {
			require.Equal(t, f.Key("stats"), key, "left over")
		}
		_, err = f.Client.Dequeue(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	})
}

func TestDequeueCountsOnce(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		f.Dequeue("x")
		_, err := f.Client.Dequeue(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		info := f.Stats()
		require.EqualValues(t, 1, info.Counters["cancelled"])
	})
}

func TestDequeueOfOneLeavesTheOthers(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for i := range 5 {
			f.Enqueue(fmt.Sprint("ready", i))
			f.Enqueue(fmt.Sprint("scheduled", i), delayq.ProcessIn(time.Hour))
		}
		f.Dequeue("ready2")
		f.Dequeue("scheduled2")
		f.Hand.Hasten(2 * time.Hour)
		f.Hand.Promote()
		var ids []string
		for _, held := range f.Hand.Take(100, time.Minute) {
			ids = append(ids, held.ID)
		}
		require.ElementsMatch(t, []string{
			"ready0", "ready1", "ready3", "ready4", "scheduled0", "scheduled1", "scheduled3", "scheduled4",
		}, ids)
	})
}

// Cancel races with the taking of a job: it runs if and only if the cancel says that it was
// running. (D1)
func TestDequeueRacesWithTake(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		const n = 200
		for i := range n {
			f.Enqueue(fmt.Sprint(i))
		}
		states := make([]delayq.State, n)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range n {
				state, err := f.Client.Dequeue(t.Context(), "topic", fmt.Sprint(n-1-i))
				if err != nil {
					t.Error(err)
				}
				states[n-1-i] = state
			}
		})
		taken := map[string]hand.Held{}
		for range n {
			for _, held := range f.Hand.Take(2, time.Minute) {
				taken[held.ID] = held
			}
		}
		wg.Wait()
		for i, state := range states {
			held, ran := taken[fmt.Sprint(i)]
			require.Equal(t, ran, state == delayq.StateRunning, "job %d was %s", i, state)
			require.Contains(t, []delayq.State{delayq.StateReady, delayq.StateRunning}, state)
			if ran {
				require.Equal(t, "g", f.Hand.Ack(held))
			}
		}
		require.Empty(t, f.Hand.Take(n, time.Minute))
	})
}

func TestDequeueAmongMany(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		jobs := make([]delayq.NewJob, 3000)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(i)}
			if i%2 == 0 {
				jobs[i].Options = []delayq.JobOption{delayq.ProcessIn(time.Hour)}
			}
		}
		_, err := f.Client.EnqueueBatch(t.Context(), jobs)
		require.NoError(t, err)
		require.Equal(t, delayq.StateScheduled, f.Dequeue("1500"))
		require.Equal(t, delayq.StateReady, f.Dequeue("1501"))
		info := f.Stats()
		require.EqualValues(t, 1499, info.Scheduled)
		require.EqualValues(t, 1499, info.Ready)
	})
}

// Delete removes all that is kept of a done job, and nothing else.
func TestDeleteOfADoneJob(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		before := f.Dump()
		err := f.Client.Delete(t.Context(), "topic", "x")
		if _, kept := before[f.Key("results")]; !kept {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorContains(t, err, `delete topic "topic" job "x": `)
			require.Equal(t, before, f.Dump())
			return
		}
		require.NoError(t, err)
		_, err = f.Client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.EqualValues(t, 1, queuetest.CounterOf(t, f.Inspector, "topic", "deleted"))
		for _, key := range []string{"done", "results"} {
			require.Zero(t, f.RDB.Exists(t.Context(), f.Key(key)).Val(), key)
		}
		require.ErrorIs(t, f.Client.Delete(t.Context(), "topic", "x"), delayq.ErrNotFound)
	})
}

// A live job of the same ID stays, in whatever state it is.
func TestDeleteLeavesALiveJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x", delayq.Retention(time.Hour))
		require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne("x")))
		f.Enqueue("x")
		require.NoError(t, f.Client.Delete(t.Context(), "topic", "x"))
		require.Equal(t, delayq.StateReady, f.Get("x").State)
		require.Equal(t, "payload of x", string(f.Get("x").Payload))
		require.Empty(t, queuetest.JobsOf(t, f.Inspector, "topic", delayq.StateDone))
		f.Hand.TakeOne("x")
	})
}

// What is left of a done job without its place is removed too: nobody could otherwise.
func TestDeleteOfWhatIsLeft(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, lost := range []string{"done", "results"} {
			f.Enqueue(lost, delayq.Retention(time.Hour))
			require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne(lost)))
			require.NoError(t, f.RDB.Del(t.Context(), f.Key(lost)).Err())
			require.NoError(t, f.Client.Delete(t.Context(), "topic", lost))
			for _, key := range []string{"done", "results"} {
				require.Zero(t, f.RDB.Exists(t.Context(), f.Key(key)).Val(), key)
			}
		}
		// With a key of a wrong type the call fails, and can be made again.
		f.Enqueue("x", delayq.Retention(time.Hour))
		require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne("x")))
		for _, key := range []string{"done", "results"} {
			require.NoError(t, f.RDB.Rename(t.Context(), f.Key(key), f.Key("aside")).Err())
			require.NoError(t, f.RDB.Set(t.Context(), f.Key(key), "", 0).Err())
			err := f.Client.Delete(t.Context(), "topic", "x")
			require.ErrorContains(t, err, "is a string and not a ")
			require.NoError(t, f.RDB.Rename(t.Context(), f.Key("aside"), f.Key(key)).Err())
			if key == "done" {
				require.NoError(t, f.Client.Delete(t.Context(), "topic", "x"))
				f.Enqueue("x", delayq.Retention(time.Hour))
				require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne("x")))
			}
		}
		require.NoError(t, f.Client.Delete(t.Context(), "topic", "x"))
	})
}

// A job that waits gets another due time; any other is left alone, and the error says why.
func TestRescheduleInEveryState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		before := f.Dump()
		err := f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(5*time.Hour))
		switch state {
		case delayq.StateScheduled, delayq.StateReady:
			require.NoError(t, err)
		default:
			want := map[delayq.State]error{
				"": delayq.ErrNotFound, delayq.StateRunning: delayq.ErrRunning, delayq.StateDead: delayq.ErrDead,
			}[state]
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, `"topic"`)
			require.Equal(t, before, f.Dump(), "nothing was written")
			return
		}
		info := f.Get("x")
		require.Equal(t, delayq.StateScheduled, info.State)
		require.Equal(t, delayq.DueReschedule, info.DueReason)
		require.InDelta(t, 5*time.Hour, info.Due.Sub(info.EnqueuedAt), float64(time.Minute))

		f.Hand.Hasten(4*time.Hour + 50*time.Minute)
		f.Hand.Promote()
		require.Empty(t, f.Hand.Take(10, time.Minute), "before its time")
		f.Hand.Hasten(10 * time.Minute)
		f.Hand.Promote()
		held := f.Hand.TakeOne("x")
		require.Empty(t, f.Hand.Take(10, time.Minute), "a second time")
		require.Equal(t, "o", f.Hand.Ack(held))
		require.Empty(t, f.Hand.Traces("x"))
	})
}

// To now is at once, and a job that is ready already stays so.
func TestRescheduleToNow(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		if state != delayq.StateScheduled && state != delayq.StateReady {
			return
		}
		for _, due := range []delayq.DueOption{
			delayq.ProcessIn(0), delayq.ProcessIn(-time.Hour), delayq.ProcessAt(time.Unix(1, 0)), delayq.ProcessIn(math.MinInt64),
		} {
			require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", due))
			require.Equal(t, delayq.StateReady, f.Get("x").State)
		}
		held := f.Hand.TakeOne("x")
		require.Empty(t, f.Hand.Take(10, time.Minute), "a second time")
		require.Equal(t, "o", f.Hand.Ack(held))
	})
}

func TestRescheduleTellsTheDueTime(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		at := time.UnixMilli(4_000_000_000_001)
		require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessAt(at.Add(-1))))
		require.True(t, f.Get("x").Due.Equal(at), "rounded up")
		score, err := f.RDB.ZScore(t.Context(), f.Key("bucket"), "x").Result()
		require.NoError(t, err)
		require.Equal(t, float64(at.UnixMilli()), score)
	})
}

// The attempts before the last revival stay on record, whatever comes later.
func TestRescheduleKeepsWhatARevivalHasGiven(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		f.Hand.Bury(f.Hand.TakeOne("x"))
		require.NoError(t, f.Client.Revive(t.Context(), "topic", "x"))
		require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(0)))
		require.Regexp(t, ` reschedule\.\d+ 1 0 1$`, f.Hand.TakeOne("x").Moved)
	})
}

func TestRescheduleRefusesAnInvalidDueTime(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		before := f.Dump()
		for _, opt := range []delayq.DueOption{nil, delayq.ProcessIn(math.MaxInt64), delayq.ProcessIn(30), delayq.ProcessAt(time.Time{})} {
			require.ErrorIs(t, f.Client.Reschedule(t.Context(), "topic", "x", opt), delayq.ErrInvalid)
		}
		require.Equal(t, before, f.Dump())
	})
}

// Revive brings a dead job back, and leaves any other alone.
func TestReviveInEveryState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		before := f.Dump()
		err := f.Client.Revive(t.Context(), "topic", "x")
		if state != delayq.StateDead {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.Equal(t, before, f.Dump(), "nothing was written")
			return
		}
		require.NoError(t, err)
		info := f.Get("x")
		require.Equal(t, delayq.StateReady, info.State)
		require.Equal(t, 2, info.Attempt, "its attempts go on counting")
		require.Len(t, info.Errors, 1, "what had happened is kept")
		require.Equal(t, delayq.DueRevive, info.DueReason)
		held := f.Hand.TakeOne("x")
		require.Regexp(t, ` revive 1 0 1$`, held.Moved, "all its retries are before it again")
		require.ErrorIs(t, f.Client.Revive(t.Context(), "topic", "x"), delayq.ErrNotFound)
		require.Equal(t, "o", f.Hand.Bury(held))
		require.NoError(t, f.Client.Revive(t.Context(), "topic", "x"))
		require.Regexp(t, ` revive\.\d+ 2 0 1$`, f.Hand.TakeOne("x").Moved)
	})
}

// An ID is taken as long as its job is unfinished, whatever has become of it, and free afterwards.
// (D10)
func TestEnqueueOfAnIDInEveryState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		before := f.Dump()
		job, err := f.Client.Enqueue(t.Context(), "topic", "x", []byte("new"), delayq.ProcessIn(time.Minute))
		if state == "" {
			require.NoError(t, err)
			info := f.Get("x")
			require.Equal(t, "new", string(info.Payload))
			require.Equal(t, job.Nonce(), info.Nonce())
			requireFresh(t, info)
			return
		}
		require.Nil(t, job)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.Equal(t, before, f.Dump(), "nothing was written")
		results, err := f.Client.EnqueueBatch(t.Context(), []delayq.NewJob{{Topic: "topic", ID: "x"}})
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.Nil(t, results[0].Job)
		require.Equal(t, before, f.Dump(), "nothing was written")
	})
}

// requireFresh looks for anything that a job can have inherited from one of the same ID before it.
func requireFresh(t *testing.T, info *delayq.JobInfo) {
	t.Helper()
	require.Equal(t, 1, info.Attempt)
	require.Empty(t, info.Errors)
	require.Empty(t, info.DueReason)
	require.Zero(t, info.Fence())
	require.Zero(t, info.LeaseEnd)
	require.Zero(t, info.BuriedAt)
	require.Zero(t, info.FinishedAt)
	require.Zero(t, info.KeptUntil)
	require.Zero(t, info.StartedAt)
}

// With Replace the old job gives way in every state, with all that was known of it; whoever was
// running it can write nothing any more. (D10)
func TestReplaceInEveryState(t *testing.T) {
	for name, due := range map[string]time.Duration{"later": time.Minute, "now": 0} {
		t.Run(name, func(t *testing.T) {
			queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, lease hand.Held) {
				job, err := f.Client.Enqueue(t.Context(), "topic", "x", []byte("new"), delayq.ProcessIn(due), delayq.Replace())
				require.NoError(t, err)
				want := delayq.StateScheduled
				if due == 0 {
					want = delayq.StateReady
				}
				info := f.Get("x")
				require.Equal(t, want, info.State)
				require.Equal(t, job.Nonce(), info.Nonce())
				require.Equal(t, "new", string(info.Payload))
				requireFresh(t, info)

				if lease.ID != "" {
					require.Equal(t, "l", f.Hand.Ack(lease))
					require.Equal(t, "l", f.Hand.Retry(0, lease))
					require.Equal(t, info, f.Get("x"), "the old worker wrote something")
				}
				// The new job runs once, at its own time.
				if due > 0 {
					f.Hand.Promote()
					require.Empty(t, f.Hand.Take(10, time.Minute), "before its time")
					f.Hand.Hasten(due)
				}
				f.Hand.Promote()
				held := f.Hand.TakeOne("x")
				require.Contains(t, held.Record, "new")
				require.Empty(t, f.Hand.Take(10, time.Minute), "a second time")
				require.Equal(t, "o", f.Hand.Ack(held))
				if state == "" {
					return // of a job kept as done something is left
				}
				require.Empty(t, f.Hand.Traces("x"))
			})
		})
	}
}

// A job that was cancelled while it was ready leaves its ID in ready. It must not start the next
// job of that ID early. (D15)
func TestCancelThenEnqueueTheSameIDForLater(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		require.Equal(t, delayq.StateReady, f.Dequeue("x"))
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		f.Hand.Promote()
		require.Empty(t, f.Hand.Take(10, time.Minute))
		require.Equal(t, delayq.StateScheduled, f.Get("x").State)
		f.Hand.Hasten(time.Hour)
		f.Hand.Promote()
		f.Hand.TakeOne("x")
		require.Empty(t, f.Hand.Take(10, time.Minute))
	})
}

// (D13)
func TestReplaceIsDoneByTheNewestOnly(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, payload := range []string{"one", "two", "three"} {
			_, err := f.Client.Enqueue(t.Context(), "topic", "x", []byte(payload), delayq.Replace())
			require.NoError(t, err)
		}
		require.Contains(t, f.Hand.TakeOne("x").Record, "three")
		require.Empty(t, f.Hand.Take(10, time.Minute))
		info := f.Stats()
		require.EqualValues(t, 3, info.Counters["enqueued"])
	})
}

// The error says what state the job is in that has the ID, and of a dead one since when and what to
// do.
func TestDuplicateErrorTellsOfTheJob(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		if state == "" {
			return
		}
		before := queuetest.ClockOf(t, f.RDB)
		for _, opt := range []delayq.JobOption{delayq.ProcessIn(0), delayq.ReplaceDead()} {
			if state == delayq.StateDead {
				opt = delayq.ProcessIn(time.Hour)
			}
			_, err := f.Client.Enqueue(t.Context(), "topic", "x", nil, opt)
			require.ErrorIs(t, err, delayq.ErrDuplicate)
			var twin *delayq.DuplicateError
			require.ErrorAs(t, err, &twin)
			require.Equal(t, []string{"topic", "x", string(state)}, []string{twin.Topic, twin.ID, string(twin.State)})
			text := `enqueue topic "topic" job "x": delayq: duplicate job ID: that job is ` + string(state)
			if state != delayq.StateDead {
				require.Zero(t, twin.Since)
				require.EqualError(t, err, text)
				continue
			}
			require.Equal(t, f.Get("x").BuriedAt, twin.Since)
			require.WithinDuration(t, before, twin.Since, time.Minute)
			text = strings.Replace(text, "is dead", "has been dead", 1)
			require.EqualError(t, err, text+" since "+twin.Since.UTC().Format(time.RFC3339)+
				"; Revive runs it again, Dequeue or ReplaceDead frees the ID")
		}
	})
}

// Of many duplicates in one call each has its own state and burial.
func TestDuplicateErrorsOfABatch(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, id := range []string{"dead1", "dead2", "running"} {
			f.Enqueue(id)
		}
		for _, held := range f.Hand.Take(3, time.Hour) {
			if held.ID != "running" {
				require.Equal(t, "o", f.Hand.Bury(held))
			}
		}
		at := float64(4_000_000_000_001)
		require.NoError(t, f.RDB.ZAdd(t.Context(), f.Key("dead"), redis.Z{Score: at, Member: "dead2"}).Err())
		f.Enqueue("ready")
		f.Enqueue("later", delayq.ProcessIn(time.Hour))
		ids := []string{"new", "dead2", "ready", "running", "later", "dead1", "also new"}
		jobs := make([]delayq.NewJob, len(ids))
		for i, id := range ids {
			jobs[i] = delayq.NewJob{Topic: "topic", ID: id}
		}
		results, _ := f.Client.EnqueueBatch(t.Context(), jobs)
		var states []string
		for i, r := range results {
			var twin *delayq.DuplicateError
			if !errors.As(r.Err, &twin) {
				require.NoError(t, r.Err)
				states = append(states, "")
				continue
			}
			require.Equal(t, ids[i], twin.ID)
			if states = append(states, string(twin.State)); twin.State == delayq.StateDead {
				require.Equal(t, f.Get(ids[i]).BuriedAt, twin.Since)
			}
		}
		require.Equal(t, []string{"", "dead", "ready", "running", "scheduled", "dead", ""}, states)
	})
}

// With ReplaceDead a dead job gives way, with all that was known of it, and any other is left
// alone.
func TestReplaceDeadInEveryState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		before := f.Dump()
		job, err := f.Client.Enqueue(t.Context(), "topic", "x", []byte("new"), delayq.ReplaceDead())
		if state != "" && state != delayq.StateDead {
			require.ErrorIs(t, err, delayq.ErrDuplicate)
			require.Equal(t, before, f.Dump(), "nothing was written")
			return
		}
		require.NoError(t, err)
		info := f.Get("x")
		require.Equal(t, delayq.StateReady, info.State)
		require.Equal(t, job.Nonce(), info.Nonce())
		requireFresh(t, info)
		held := f.Hand.TakeOne("x")
		require.Empty(t, f.Hand.Take(10, time.Minute), "a second time")
		require.Equal(t, "o", f.Hand.Ack(held))
	})
}

// Jobs that replace any, dead ones only or none travel together, and each does what it says.
func TestReplaceMixedInOneCall(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var jobs []delayq.NewJob
		want := map[string]bool{}
		for _, life := range []string{"dead", "ready", "scheduled", "none"} {
			for option, opts := range map[string][]delayq.JobOption{"plain": nil, "any": {delayq.Replace()}, "only": {delayq.ReplaceDead()}} {
				id := life + " " + option
				switch life {
				case "dead":
					f.Enqueue(id)
					require.Equal(t, "o", f.Hand.Bury(f.Hand.TakeOne(id)))
				case "scheduled":
					f.Enqueue(id, delayq.ProcessIn(time.Hour))
				}
				want[id] = life == "none" || option == "any" || option == "only" && life == "dead"
				jobs = append(jobs, delayq.NewJob{Topic: "topic", ID: id, Payload: []byte("new"), Options: opts})
			}
		}
		for id := range want {
			if id[:5] == "ready" {
				f.Enqueue(id)
			}
		}
		var calls queuetest.CountScripts
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(&calls))
		results, err := client.EnqueueBatch(t.Context(), jobs)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.Equal(t, queuetest.CountScripts{"replace": 1}, calls)
		for i, r := range results {
			id := jobs[i].ID
			if want[id] {
				require.NoError(t, r.Err, id)
			} else {
				require.ErrorIs(t, r.Err, delayq.ErrDuplicate, id)
			}
			require.Equal(t, want[id], string(f.Get(id).Payload) == "new", id)
		}
	})
}

// A job that is replaced while it is ready leaves its place in the list to the new one: the list
// does not grow.
func TestReplaceOfAReadyJobKeepsItsPlace(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ids := []string{"a", "b", "c"}
		for _, id := range ids {
			f.Enqueue(id)
		}
		for i := range 20 {
			_, err := f.Client.Enqueue(t.Context(), "topic", "b", []byte(strconv.Itoa(i)), delayq.Replace())
			require.NoError(t, err)
		}
		require.Equal(t, ids, readyList(f))
		// Also one that a server has popped, and has not taken yet.
		require.NoError(t, f.RDB.LMove(t.Context(), f.Key("ready"), f.Key("handoff"), "LEFT", "RIGHT").Err())
		require.NoError(t, f.RDB.LTrim(t.Context(), f.Key("ready"), 2, -1).Err()) // b and c have lost their places
		f.Enqueue("a", delayq.Replace())
		require.Empty(t, readyList(f))
		require.NoError(t, f.RDB.Del(t.Context(), f.Key("handoff")).Err())
		f.Enqueue("c", delayq.Replace())
		require.Equal(t, []string{"c"}, readyList(f), "in an empty list it cannot have one")
		f.Hand.TakeOne("c")
	})
}

// readyList is the list, with left-overs.
func readyList(f *queuetest.Fixture) []string {
	f.T.Helper()
	return f.RDB.LRange(f.T.Context(), f.Key("ready"), 0, -1).Val()
}

// A ready job that is cancelled, moved or replaced by a later one leaves no entry behind near the
// ends of the list.
func TestReadyJobsLeaveTheList(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, f *queuetest.Fixture, id string){
		"cancel": func(_ *testing.T, f *queuetest.Fixture, id string) {
			require.Equal(f.T, delayq.StateReady, f.Dequeue(id))
		},
		"reschedule": func(t *testing.T, f *queuetest.Fixture, id string) {
			require.NoError(t, f.Client.Reschedule(t.Context(), "topic", id, delayq.ProcessIn(time.Hour)))
		},
		"replace": func(_ *testing.T, f *queuetest.Fixture, id string) {
			f.Enqueue(id, delayq.Replace(), delayq.ProcessIn(time.Hour))
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
				const n = 2100
				jobs, want := make([]delayq.NewJob, n), make([]string, n)
				for i := range jobs {
					want[i] = fmt.Sprint("job", i)
					jobs[i] = delayq.NewJob{Topic: "topic", ID: want[i]}
				}
				_, err := f.Client.EnqueueBatch(t.Context(), jobs)
				require.NoError(t, err)
				for _, at := range []int{1100 - 1, 1000} { // in the middle
					leave(t, f, fmt.Sprint("job", at))
					require.Equal(t, want, readyList(f))
				}
				for _, id := range []string{"job0", "job999", "job1101", "job2099"} {
					leave(t, f, id)
					want = slices.DeleteFunc(want, func(other string) bool { return other == id })
					require.Equal(t, want, readyList(f))
				}
			})
		})
	}
}
