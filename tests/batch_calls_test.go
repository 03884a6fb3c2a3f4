package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// refs names jobs of the topic "topic".
func refs(ids ...string) (list []delayq.JobRef) {
	for _, id := range ids {
		list = append(list, delayq.JobRef{Topic: "topic", ID: id})
	}
	return list
}

func TestCancelBatchHasAnOutcomePerJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("ready")
		f.Enqueue("later", delayq.ProcessIn(time.Hour))
		_, err := f.Client.Enqueue(t.Context(), "other", "ready", nil)
		require.NoError(t, err)
		jobs := append(refs("later", "nobody", "ready", "ready", strings.Repeat("i", 1025)),
			delayq.JobRef{Topic: "other", ID: "ready"}, delayq.JobRef{Topic: "bad{topic", ID: "x"})
		results, err := f.Client.CancelBatch(t.Context(), jobs)
		require.ErrorContains(t, err, "cancel batch: 4 of 7 jobs failed: ")
		wants := []error{nil, delayq.ErrNotFound, nil, delayq.ErrNotFound, delayq.ErrInvalid, nil, delayq.ErrInvalid}
		states := []delayq.State{delayq.StateScheduled, "", delayq.StateReady, "", "", delayq.StateReady, ""}
		require.Len(t, results, len(jobs))
		for i, r := range results {
			require.Equal(t, states[i], r.State, i)
			if wants[i] == nil {
				require.NoError(t, r.Err)
				continue
			}
			require.ErrorIs(t, r.Err, wants[i])
			require.ErrorIs(t, err, wants[i])
			require.ErrorContains(t, r.Err, fmt.Sprintf("cancel topic %q job %q: ", jobs[i].Topic, jobs[i].ID))
		}
		for _, topic := range []string{"topic", "other"} {
			info := queuetest.StatsOf(t, f.Inspector, topic)
			require.Zero(t, info.Ready+info.Scheduled)
		}
	})
}

func TestRescheduleBatchHasAnOutcomePerJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		job := f.Enqueue("ready")
		f.Enqueue("later", delayq.ProcessIn(time.Hour))
		f.Enqueue("expires", delayq.ExpireIn(time.Hour))
		f.Enqueue("expires early", delayq.ExpireIn(time.Minute))
		hour := delayq.ProcessAt(job.EnqueuedAt.Add(30 * time.Minute))
		results, err := f.Client.RescheduleBatch(t.Context(), []delayq.NewDue{
			{Topic: "topic", ID: "ready", Due: hour}, {Topic: "topic", ID: "later", Due: delayq.ProcessIn(0)}, {Topic: "topic", ID: "expires", Due: hour},
			{Topic: "topic", ID: "expires early", Due: hour}, {Topic: "topic", ID: "nobody", Due: hour}, {Topic: "topic", ID: "ready"},
		})
		require.ErrorContains(t, err, "reschedule batch: 3 of 6 jobs failed: ")
		for i, want := range []error{nil, nil, nil, delayq.ErrInvalid, delayq.ErrNotFound, delayq.ErrInvalid} {
			require.ErrorIs(t, results[i].Err, want, i)
		}
		for id, want := range map[string]delayq.State{
			"ready": delayq.StateScheduled, "later": delayq.StateReady, "expires": delayq.StateScheduled, "expires early": delayq.StateReady,
		} {
			require.Equal(t, want, f.Get(id).State, id)
		}
		require.Equal(t, job.EnqueuedAt.Add(30*time.Minute), f.Get("expires").Due)
	})
}

func TestGetBatchHasAnOutcomePerJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		const large = 700 << 10
		var ids []string
		for i := range 5 {
			ids = append(ids, fmt.Sprint(i))
			_, err := f.Client.Enqueue(t.Context(), "topic", ids[i], make([]byte, large+i))
			require.NoError(t, err)
		}
		results, err := f.Client.GetBatch(t.Context(), refs(append(ids, "nobody", "3")...))
		require.ErrorContains(t, err, "get batch: 1 of 7 jobs failed: ")
		for i, r := range results {
			if i == 5 {
				require.ErrorIs(t, r.Err, delayq.ErrNotFound)
				require.Nil(t, r.Job)
				continue
			}
			require.NoError(t, r.Err)
			require.Len(t, r.Job.Payload, large+map[bool]int{false: i, true: 3}[i == 6])
		}
	})
}

// Any number of jobs: each of them once, and nothing is left of them.
func TestBatchesOfManyJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		const jobs, topics = 2500, 3
		var fresh []delayq.NewJob
		var all []delayq.JobRef
		var moves []delayq.NewDue
		for i := range jobs {
			topic, id := fmt.Sprint("topic", i%topics), fmt.Sprint(i)
			fresh = append(fresh, delayq.NewJob{Topic: topic, ID: id})
			all = append(all, delayq.JobRef{Topic: topic, ID: id})
			moves = append(moves, delayq.NewDue{Topic: topic, ID: id, Due: delayq.ProcessIn(time.Duration(i%2) * time.Hour)})
		}
		_, err := f.Client.EnqueueBatch(t.Context(), fresh)
		require.NoError(t, err)
		_, err = f.Client.RescheduleBatch(t.Context(), moves)
		require.NoError(t, err)
		infos, err := f.Client.GetBatch(t.Context(), all)
		require.NoError(t, err)
		results, err := f.Client.CancelBatch(t.Context(), all)
		require.NoError(t, err)
		for i := range jobs {
			want := []delayq.State{delayq.StateReady, delayq.StateScheduled}[i%2]
			require.Equal(t, all[i].ID, infos[i].Job.ID)
			require.Equal(t, want, infos[i].Job.State)
			require.Equal(t, want, results[i].State)
		}
		for i := range topics {
			key := fmt.Sprintf("%s:{topic%d}:", f.Prefix, i)
			for _, name := range []string{"pool", "bucket", "ready", "moved"} {
				require.Zero(t, f.RDB.Exists(t.Context(), key+name).Val(), name)
			}
		}
	})
}

// A batch whose context is done touches nothing.
func TestBatchesOfADoneContext(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		results, err := f.Client.CancelBatch(ctx, refs("x", "x"))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, results[1].Err, context.Canceled)
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
		require.Equal(t, delayq.StateReady, f.Get("x").State)
		results, err = f.Client.CancelBatch(ctx, nil)
		require.NoError(t, err)
		require.Empty(t, results)
	})
}

// What is fine is left out of the error of a batch, and nothing else.
func TestErrorsExcept(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("there")
		there, gone, bad := delayq.JobRef{Topic: "topic", ID: "there"}, delayq.JobRef{Topic: "topic", ID: "gone"}, delayq.JobRef{Topic: "a{b", ID: "x"}
		results, err := f.Client.CancelBatch(t.Context(), []delayq.JobRef{there, gone})
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.NoError(t, delayq.ErrorsExcept(results, err, delayq.ErrNotFound))
		require.ErrorIs(t, delayq.ErrorsExcept(results, err), delayq.ErrNotFound)
		require.ErrorIs(t, delayq.ErrorsExcept(results, err, delayq.ErrDead, delayq.ErrRunning), delayq.ErrNotFound)

		results, err = f.Client.CancelBatch(t.Context(), append(slices.Repeat([]delayq.JobRef{gone}, 20), bad))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		err = delayq.ErrorsExcept(results, err, delayq.ErrNotFound)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.NotErrorIs(t, err, delayq.ErrNotFound)
		require.ErrorContains(t, err, "1 of 21 jobs failed: ")

		stored, err := f.Client.EnqueueBatch(t.Context(), []delayq.NewJob{{Topic: "topic", ID: "a"}, {Topic: "topic", ID: "a"}})
		require.Error(t, err)
		require.NoError(t, delayq.ErrorsExcept(stored, err, delayq.ErrDuplicate))
		moved, err := f.Client.RescheduleBatch(t.Context(), []delayq.NewDue{{Topic: "topic", ID: "gone", Due: delayq.ProcessIn(0)}})
		require.NoError(t, delayq.ErrorsExcept(moved, err, delayq.ErrNotFound))
		got, err := f.Client.GetBatch(t.Context(), []delayq.JobRef{gone})
		require.NoError(t, delayq.ErrorsExcept(got, err, delayq.ErrNotFound))

		// An act that was done and not recorded is still one.
		require.NoError(t, f.RDB.Set(t.Context(), f.Prefix+":audit", "of the wrong type", 0).Err())
		results, err = f.Client.CancelBatch(delayq.WithActor(t.Context(), "ann"), []delayq.JobRef{{Topic: "topic", ID: "a"}, gone})
		require.ErrorIs(t, err, delayq.ErrNotAudited)
		left := delayq.ErrorsExcept(results, fmt.Errorf("clean up: %w", err), delayq.ErrNotFound)
		require.ErrorIs(t, left, delayq.ErrNotAudited)
		require.NotErrorIs(t, left, delayq.ErrNotFound)
		require.Regexp(t, `^cancel topic "topic": `+delayq.ErrNotAudited.Error()+`: audit: key .* is a string and not a list: .*WRONGTYPE`, left)
		require.ErrorIs(t, delayq.ErrorsExcept(results, delayq.ErrNotAudited, delayq.ErrNotFound), delayq.ErrNotAudited)
		none := delayq.ErrorsExcept([]delayq.CancelResult{}, err, delayq.ErrNotFound)
		require.Equal(t, err.Error(), none.Error(), "not twice")
	})
}
