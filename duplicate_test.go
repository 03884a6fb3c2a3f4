package delayq_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// An ID is taken as long as its job is unfinished, whatever has become of it, and free afterwards.
// (D10)
func TestEnqueueOfAnIDInEveryState(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
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
			eachLife(t, func(t *testing.T, f *fixture, state delayq.State, lease delayq.Held) {
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
					require.Equal(t, "l", f.hand.Ack(lease))
					require.Equal(t, "l", f.hand.Retry(0, lease))
					require.Equal(t, info, f.Get("x"), "the old worker wrote something")
				}
				// The new job runs once, at its own time.
				if due > 0 {
					f.hand.Promote()
					require.Empty(t, f.hand.Take(10, time.Minute), "before its time")
					f.hand.Hasten(due)
				}
				f.hand.Promote()
				held := f.hand.TakeOne("x")
				require.Contains(t, held.Record, "new")
				require.Empty(t, f.hand.Take(10, time.Minute), "a second time")
				require.Equal(t, "o", f.hand.Ack(held))
				if state == "" {
					return // of a job kept as done something is left
				}
				require.Empty(t, f.hand.Traces("x"))
			})
		})
	}
}

// A job that was cancelled while it was ready leaves its ID in ready. It must not start the next
// job of that ID early. (D15)
func TestCancelThenEnqueueTheSameIDForLater(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.Enqueue("x")
		require.Equal(t, delayq.StateReady, f.Dequeue("x"))
		f.Enqueue("x", delayq.ProcessIn(time.Hour))
		f.hand.Promote()
		require.Empty(t, f.hand.Take(10, time.Minute))
		require.Equal(t, delayq.StateScheduled, f.Get("x").State)
		f.hand.Hasten(time.Hour)
		f.hand.Promote()
		f.hand.TakeOne("x")
		require.Empty(t, f.hand.Take(10, time.Minute))
	})
}

// (D13)
func TestReplaceIsDoneByTheNewestOnly(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		for _, payload := range []string{"one", "two", "three"} {
			_, err := f.Client.Enqueue(t.Context(), "topic", "x", []byte(payload), delayq.Replace())
			require.NoError(t, err)
		}
		require.Contains(t, f.hand.TakeOne("x").Record, "three")
		require.Empty(t, f.hand.Take(10, time.Minute))
		info, err := f.Client.Inspect(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 3, info.Counters["enqueued"])
	})
}

// The error says what state the job is in that has the ID, and of a dead one since when and what to
// do.
func TestDuplicateErrorTellsOfTheJob(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
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
	eachClient(t, func(t *testing.T, f *fixture) {
		for _, id := range []string{"dead1", "dead2", "running"} {
			f.Enqueue(id)
		}
		for _, held := range f.hand.Take(3, time.Hour) {
			if held.ID != "running" {
				require.Equal(t, "o", f.hand.Bury(held))
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
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
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
		held := f.hand.TakeOne("x")
		require.Empty(t, f.hand.Take(10, time.Minute), "a second time")
		require.Equal(t, "o", f.hand.Ack(held))
	})
}

// Jobs that replace any, dead ones only or none travel together, and each does what it says.
func TestReplaceMixedInOneCall(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		var jobs []delayq.NewJob
		want := map[string]bool{}
		for _, life := range []string{"dead", "ready", "scheduled", "none"} {
			for option, opts := range map[string][]delayq.JobOption{"plain": nil, "any": {delayq.Replace()}, "only": {delayq.ReplaceDead()}} {
				id := life + " " + option
				switch life {
				case "dead":
					f.Enqueue(id)
					require.Equal(t, "o", f.hand.Bury(f.hand.TakeOne(id)))
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
	eachClient(t, func(t *testing.T, f *fixture) {
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
		f.hand.TakeOne("c")
	})
}

// readyList is the list, with left-overs.
func readyList(f *fixture) []string {
	f.T.Helper()
	return f.RDB.LRange(f.T.Context(), f.Key("ready"), 0, -1).Val()
}

// A ready job that is cancelled, moved or replaced by a later one leaves no entry behind near the
// ends of the list.
func TestReadyJobsLeaveTheList(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, f *fixture, id string){
		"cancel": func(_ *testing.T, f *fixture, id string) { require.Equal(f.T, delayq.StateReady, f.Dequeue(id)) },
		"reschedule": func(t *testing.T, f *fixture, id string) {
			require.NoError(t, f.Client.Reschedule(t.Context(), "topic", id, delayq.ProcessIn(time.Hour)))
		},
		"replace": func(_ *testing.T, f *fixture, id string) {
			f.Enqueue(id, delayq.Replace(), delayq.ProcessIn(time.Hour))
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachClient(t, func(t *testing.T, f *fixture) {
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
