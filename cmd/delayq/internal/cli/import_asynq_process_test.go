package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// The tests in this file move what asynq itself has stored in a real Redis. Its keys have no
// prefix, so each of them has a Redis of its own.

// asynqStates runs a server of asynq until tasks are in the states in which only a server puts
// them. Stop ends it.
func asynqStates(t *testing.T, opt asynq.RedisClientOpt, client *asynq.Client, insp *asynq.Inspector) (stop func()) {
	release := make(chan struct{})
	server := asynq.NewServer(opt, asynq.Config{
		Concurrency: 4, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc("mail:retry", func(context.Context, *asynq.Task) error { return errors.New("smtp: busy") })
	mux.HandleFunc("mail:bad", func(context.Context, *asynq.Task) error {
		return fmt.Errorf("smtp: no mailbox: %w", asynq.SkipRetry)
	})
	mux.HandleFunc("mail:done", func(context.Context, *asynq.Task) error { return nil })
	mux.HandleFunc("mail:long", func(ctx context.Context, _ *asynq.Task) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	})
	require.NoError(t, server.Start(mux))
	for _, kind := range []string{"retry", "bad", "done", "long"} {
		_, err := client.Enqueue(asynq.NewTask("mail:"+kind, []byte(kind)), asynq.TaskID(kind), asynq.Retention(time.Hour), asynq.MaxRetry(9))
		require.NoError(t, err)
	}
	queuetest.Until(t, func() bool {
		info, err := insp.GetQueueInfo("default")
		return err == nil && info.Retry == 1 && info.Archived == 1 && info.Completed == 1 && info.Active == 1
	})
	return func() {
		close(release)
		server.Shutdown()
	}
}

func TestImportAsynqFromItsServer(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	opt := asynq.RedisClientOpt{Addr: redis.Addr()}
	client, insp := asynq.NewClient(opt), asynq.NewInspector(opt)
	defer client.Close()
	defer insp.Close()
	stop := asynqStates(t, opt, client, insp)
	cli := newTool(t, redis.Addr(), "q")
	queue := delayq.NewClient(redis.Client(t), delayq.Prefix("q"))

	r := cli.do("", "import", "asynq")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "1 server of asynq runs on the queue default\n")
	require.Contains(t, r.err, "1 active task: left to the servers of asynq\n")
	require.Contains(t, r.err, "1 completed task with a result: not moved\n")
	r = cli.do("", "import", "asynq", "--yes")
	require.Equal(t, exitConflict, r.code)
	require.Contains(t, r.err, `1 server of asynq takes tasks from the queue "default", so what is copied would run twice`)
	_, err := queue.Get(t.Context(), "mail:retry", "retry")
	require.ErrorIs(t, err, delayq.ErrNotFound)

	require.NoError(t, insp.PauseQueue("default"))
	r = cli.do("", "import", "asynq", "--yes")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "which is paused\n")
	require.Contains(t, r.err, "2 jobs stored, 0 duplicates\n")
	r = cli.do("", "import", "asynq", "--yes", "--delete")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "0 jobs stored, 2 duplicates, 2 deleted from asynq\n")

	job, err := queue.Get(t.Context(), "mail:retry", "retry")
	require.NoError(t, err)
	require.Equal(t, delayq.StateScheduled, job.State)
	require.Equal(t, "retry", string(job.Payload))
	require.WithinDuration(t, time.Now().Add(time.Hour), job.Due, 2*time.Minute)
	require.Equal(t, 8, job.Retries, "the first of 9 is used up")
	require.Equal(t, time.Hour, job.Retention)
	job, err = queue.Get(t.Context(), "mail:bad", "bad")
	require.NoError(t, err)
	require.Equal(t, delayq.StateDead, job.State)
	require.Equal(t, "archived in asynq: smtp: no mailbox: skip retry for the task", job.Errors[len(job.Errors)-1].Message)

	info, err := insp.GetQueueInfo("default")
	require.NoError(t, err)
	require.Equal(t, []int{1, 1, 0, 0}, []int{info.Active, info.Completed, info.Retry, info.Archived})
	stop()
}

// An import that is killed is repeated, while servers of delayq run its jobs: each runs once.
func TestImportAsynqIsKilled(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"--delete"}, nil} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			t.Parallel()
			const tasks = 4000
			redis := redistest.Start(t)
			opt := asynq.RedisClientOpt{Addr: redis.Addr()}
			client, insp := asynq.NewClient(opt), asynq.NewInspector(opt)
			defer client.Close()
			defer insp.Close()
			for n := range tasks {
				after := time.Duration(n%2) * time.Hour // half of them are scheduled
				_, err := client.Enqueue(asynq.NewTask("work", []byte(strconv.Itoa(n))), asynq.ProcessIn(after))
				require.NoError(t, err)
			}
			rdb := redis.Client(t)
			runs := make([]atomic.Int32, tasks)
			queuetest.Serve(t, rdb, "q", "work", func(_ context.Context, job *delayq.Job) error {
				n, err := strconv.Atoi(string(job.Payload))
				if err == nil {
					runs[n].Add(1)
				}
				return err
			})
			inspector := delayq.NewInspector(rdb, delayq.Prefix("q"))
			cli := newTool(t, redis.Addr(), "q")
			args := append([]string{"import", "asynq", "--yes"}, flags...)

			first := cli.command(args...)
			require.NoError(t, first.Start())
			queuetest.Until(t, func() bool { return queuetest.CounterOf(t, inspector, "work", delayq.CounterEnqueued) > 0 })
			require.NoError(t, first.Process.Kill())
			require.Error(t, first.Wait())
			require.Less(t, queuetest.CounterOf(t, inspector, "work", delayq.CounterEnqueued), int64(tasks), "it was killed on its way")

			cli.ok(args...)
			require.EqualValues(t, tasks, queuetest.CounterOf(t, inspector, "work", delayq.CounterEnqueued))
			require.EqualValues(t, tasks/2, queuetest.StatsOf(t, inspector, "work").Scheduled)
			queuetest.Until(t, func() bool {
				return queuetest.CounterOf(t, inspector, "work", delayq.CounterAcked) == tasks/2
			})
			for n := range tasks {
				require.EqualValues(t, 1-n%2, runs[n].Load(), n)
			}
			info, err := insp.GetQueueInfo("default")
			require.NoError(t, err)
			require.Equal(t, map[bool]int{true: 0, false: tasks}[flags != nil], info.Size)
		})
	}
}
