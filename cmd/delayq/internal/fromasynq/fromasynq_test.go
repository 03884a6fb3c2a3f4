package fromasynq_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/cmd/delayq/internal/fromasynq"
	"github.com/delayq/delayq/internal/redistest"
)

// begin returns a Redis of its own, because the keys of asynq have no prefix.
func begin(t *testing.T) (*redis.Client, *asynq.Client, *fromasynq.Reader) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	return rdb, asynq.NewClientFromRedisClient(rdb), fromasynq.New(rdb)
}

func add(t *testing.T, client *asynq.Client, id string, payload []byte, opts ...asynq.Option) {
	t.Helper()
	_, err := client.Enqueue(asynq.NewTask("work", payload), append(opts, asynq.TaskID(id))...)
	require.NoError(t, err)
}

// A task has all that asynq has written.
func TestTaskIsWhole(t *testing.T) {
	_, client, reader := begin(t)
	at, deadline := time.Now().Add(time.Hour).Truncate(time.Second), time.Now().Add(2*time.Hour).Truncate(time.Second)
	task := asynq.NewTaskWithHeaders("mail", []byte{0, 255}, map[string]string{"a": "b", "": "x"})
	_, err := client.Enqueue(task, asynq.TaskID("id"), asynq.Queue("q{1}"), asynq.ProcessAt(at), asynq.MaxRetry(7), asynq.Timeout(90*time.Second), asynq.Deadline(deadline),
		asynq.Retention(time.Hour), asynq.Unique(time.Minute), asynq.Group(""))
	require.Error(t, err, "an empty group")
	_, err = client.Enqueue(task, asynq.TaskID("id"), asynq.Queue("q{1}"), asynq.ProcessAt(at), asynq.MaxRetry(7), asynq.Timeout(90*time.Second), asynq.Deadline(deadline),
		asynq.Retention(time.Hour), asynq.Unique(time.Minute), asynq.Group("g"))
	require.NoError(t, err)
	queues, err := reader.Queues(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"q{1}"}, queues)
	require.NoError(t, reader.Each(t.Context(), "q{1}", fromasynq.Scheduled, "", false, func(tasks []*fromasynq.Task) (int, error) {
		require.Len(t, tasks, 1)
		got := *tasks[0]
		require.Contains(t, got.UniqueKey, "asynq:{q{1}}:unique:mail:")
		got.UniqueKey = ""
		require.Positive(t, got.Size)
		got.Size = 0
		require.True(t, deadline.Equal(got.Deadline))
		got.Deadline = time.Time{}
		require.Equal(t, fromasynq.Task{
			Queue: "q{1}", State: fromasynq.Scheduled, ID: "id", Type: "mail", Payload: []byte{0, 255}, Headers: map[string]string{"a": "b", "": "x"},
			MaxRetry: 7, Timeout: 90 * time.Second, Retention: time.Hour, Group: "g", Score: at.Unix(),
		}, got)
		done, err := reader.Delete(t.Context(), tasks, false)
		require.Equal(t, []bool{true}, done)
		return 1, err
	}))
	// With the task its lock is gone.
	_, err = client.Enqueue(task, asynq.Queue("q{1}"), asynq.Unique(time.Minute))
	require.NoError(t, err)
}

// Every task that stays pending is seen, while others come and go, with and without servers.
func TestPendingTasksChangeMeanwhile(t *testing.T) {
	rdb, client, reader := begin(t)
	for _, served := range []bool{false, true} {
		for _, deletes := range []bool{false, true} {
			require.NoError(t, rdb.FlushDB(t.Context()).Err())
			for n := range 450 {
				add(t, client, fmt.Sprint(n), nil)
			}
			seen, gone, came := map[string]int{}, 0, 0
			var order []string
			require.NoError(t, reader.Each(t.Context(), "default", fromasynq.Pending, "", served, func(tasks []*fromasynq.Task) (int, error) {
				for _, task := range tasks {
					seen[task.ID]++
					order = append(order, task.ID)
				}
				for range 3 {
					if came < 9 {
						add(t, client, fmt.Sprint("new-", came), nil)
						came++
					}
					if served {
						require.NoError(t, rdb.LMove(t.Context(), "asynq:{default}:pending", "asynq:{default}:active", "RIGHT", "LEFT").Err())
						gone++
					}
				}
				if !deletes {
					return 0, nil
				}
				done, err := reader.Delete(t.Context(), tasks, served)
				deleted := 0
				for _, d := range done {
					if d {
						deleted++
					}
				}
				return deleted, err
			}))
			for n := gone; n < 450; n++ {
				require.Positive(t, seen[fmt.Sprint(n)], "served %t, deletes %t: %d", served, deletes, n)
			}
			if !served {
				for n := range 450 {
					require.Equal(t, fmt.Sprint(n), order[n], "the oldest first")
				}
				require.Len(t, order, 459, "each of them once")
			}
			if deletes && !served {
				require.Zero(t, rdb.LLen(t.Context(), "asynq:{default}:pending").Val())
			}
		}
	}
}

// Deleting from a set while it is read leaves none out.
func TestSetsAreReadWhole(t *testing.T) {
	rdb, client, reader := begin(t)
	for n := range 700 {
		add(t, client, fmt.Sprint(n), nil, asynq.ProcessIn(time.Hour))
	}
	deleted := 0
	require.NoError(t, reader.Each(t.Context(), "default", fromasynq.Scheduled, "", false, func(tasks []*fromasynq.Task) (int, error) {
		require.LessOrEqual(t, len(tasks), 100)
		done, err := reader.Delete(t.Context(), tasks, false)
		deleted += len(done)
		return len(done), err
	}))
	require.Equal(t, 700, deleted)
	require.Equal(t, []string{"asynq:queues"}, rdb.Keys(t.Context(), "*").Val())
}

// What is in memory at a time is bounded, and a record that is not one of asynq breaks nothing.
func TestRecordsAreBounded(t *testing.T) {
	rdb, client, reader := begin(t)
	large := bytes.Repeat([]byte("x"), 3<<20)
	for n := range 7 {
		add(t, client, fmt.Sprint(n), large)
	}
	add(t, client, "strange", nil)
	require.NoError(t, rdb.HSet(t.Context(), "asynq:{default}:t:strange", "msg", "\xff\xff").Err())
	add(t, client, "huge", nil)
	require.NoError(t, rdb.HSet(t.Context(), "asynq:{default}:t:huge", "msg", string(bytes.Repeat(large, 22))).Err())
	add(t, client, "gone", nil)
	require.NoError(t, rdb.Del(t.Context(), "asynq:{default}:t:gone").Err())
	broken := map[string]string{}
	seen := 0
	require.NoError(t, reader.Each(t.Context(), "default", fromasynq.Pending, "", false, func(tasks []*fromasynq.Task) (int, error) {
		bytes := 0
		for _, task := range tasks {
			seen++
			bytes += len(task.Payload)
			if task.Broken != nil {
				broken[task.ID] = task.Broken.Error()
			}
		}
		require.LessOrEqual(t, bytes, 8<<20)
		return 0, nil
	}))
	require.Equal(t, 9, seen)
	require.Equal(t, map[string]string{
		"strange": "the record is not one of asynq", "huge": "the record has 69206016 bytes: at most 67108864 are read",
	}, broken)
}

// A server of asynq is known by the queues that it serves.
func TestServersOfQueues(t *testing.T) {
	rdb, _, reader := begin(t)
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Queues: map[string]int{"a": 1, "b": 2}, LogLevel: asynq.FatalLevel})
	require.NoError(t, server.Start(asynq.NewServeMux()))
	require.Eventually(t, func() bool {
		of, err := reader.Servers(t.Context())
		require.NoError(t, err)
		return of["a"] == 1 && of["b"] == 1 && len(of) == 2
	}, time.Minute, 5*time.Millisecond)
	server.Shutdown()
	of, err := reader.Servers(t.Context())
	require.NoError(t, err)
	require.Empty(t, of)
}
