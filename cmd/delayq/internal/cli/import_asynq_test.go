package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// asynqShop has tasks in all states in which a client and an inspector of asynq can put them.
func (w *world) asynqShop() (*asynq.Client, *asynq.Inspector) {
	client, insp := asynq.NewClientFromRedisClient(w.RDB), asynq.NewInspectorFromRedisClient(w.RDB)
	add := func(task *asynq.Task, id string, opts ...asynq.Option) {
		_, err := client.Enqueue(task, append(opts, asynq.TaskID(id))...)
		require.NoError(w, err, id)
	}
	add(asynq.NewTask("mail:send", []byte(`{"to":1}`)), "p-1", asynq.Unique(time.Hour))
	add(asynq.NewTaskWithHeaders("mail:send", []byte("\xff\x00"), map[string]string{"trace": "7"}), "p-2", asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Retention(time.Hour))
	add(asynq.NewTask("mail:send", nil), "late", asynq.Queue("low"), asynq.Deadline(time.Now().Add(-time.Minute)))
	add(asynq.NewTask("order:cancel", []byte("order-9")), "order-9", asynq.ProcessIn(30*time.Minute), asynq.MaxRetry(0), asynq.Deadline(time.Now().Add(time.Hour)), asynq.Timeout(0))
	add(asynq.NewTask("bad{type}", nil), "bad", asynq.Queue("low"))
	add(asynq.NewTask("note", []byte("a")), "n-1", asynq.Group("user-1"))
	add(asynq.NewTask("note", []byte("b")), "n-2", asynq.Group("user-1"))
	add(asynq.NewTask("order:cancel", []byte("order-1")), "order-1", asynq.Queue("low"))
	add(asynq.NewTask("mail:send", []byte("archived")), "old", asynq.MaxRetry(5))
	require.NoError(w, insp.ArchiveTask("default", "old"))
	return client, insp
}

func TestGoldenImportAsynq(t *testing.T) {
	inWorld(t, func(w *world) {
		_, insp := w.asynqShop()
		before := w.asynqKeys()
		w.every("import", "asynq")
		w.show("import", "asynq", "--queues", "low", "--types", "mail:*", "--topic", "mail:*={queue}.{type}")
		require.Equal(w, before, w.asynqKeys())
		require.Empty(w, w.State("mail:send", "p-1"))

		w.show("import", "asynq", "--yes")
		require.Equal(w, before, w.asynqKeys(), "without --delete nothing is changed there")
		w.sameAsInAsynq()

		w.show("import", "asynq") // what is there by now
		w.show("import", "asynq", "--yes", "--delete", "--topic", "bad{type}=good", "--groups", "-o", "json")
		require.Equal(w, "user-1", w.Get("note", "n-1").Key)
		require.Equal(w, []string{
			"asynq:queues", "asynq:{low}:pending", "asynq:{low}:t:late", "asynq:{low}:t:order-1",
		}, w.asynqKeys(), "what could not be moved, and what another job has the ID of")
		for _, queue := range []string{"default", "low"} {
			info, err := insp.GetQueueInfo(queue)
			require.NoError(w, err)
			require.Equal(w, map[string]int{"default": 0, "low": 2}[queue], info.Size)
		}
		w.show("import", "asynq", "--yes", "--delete")

		for _, args := range [][]string{
			{"--archived", "keep"}, {"--topic", "mail"}, {"--topic", "mail="}, {"--topic", "a={id}"}, {"--queues", "no"}, {"--queues", ""}, {"--remember", "-1h"},
			{"--from", "redis://u:secret@x"}, {"--from-password-file", "x"}, {"more"}, {"-o", "id"},
		} {
			w.show(append([]string{"import", "asynq"}, args...)...)
		}
		require.Regexp(w, `alice +import +3 +asynq: default, low `, w.ok("audit"))
		w.golden("import-asynq")
	})
}

// asynqKeys returns the keys of asynq, sorted.
func (w *world) asynqKeys() (list []string) {
	list, err := w.RDB.Keys(w.Context(), "asynq:*").Result()
	require.NoError(w, err)
	slices.Sort(list)
	return list
}

// sameAsInAsynq compares the jobs with the tasks.
func (w *world) sameAsInAsynq() {
	job := w.Get("mail:send", "p-1")
	require.Equal(w, `{"to":1}`, string(job.Payload))
	require.Equal(w, delayq.StateReady, job.State)
	require.Equal(w, map[string]string{"asynq-queue": "default"}, job.Headers)
	require.Equal(w, 25, job.Retries, "the default of asynq")
	require.Equal(w, 30*time.Minute, job.Timeout, "the default of asynq")

	job = w.Get("mail:send", "p-2")
	require.Equal(w, "\xff\x00", string(job.Payload))
	require.Equal(w, map[string]string{"asynq-queue": "default", "trace": "7"}, job.Headers)
	require.Equal(w, 3, job.Retries)
	require.Equal(w, time.Minute, job.Timeout)
	require.Equal(w, time.Hour, job.Retention)

	job = w.Get("order:cancel", "order-9")
	require.Equal(w, delayq.StateScheduled, job.State)
	require.WithinDuration(w, time.Now().Add(30*time.Minute), job.Due, time.Second)
	require.WithinDuration(w, time.Now().Add(time.Hour), job.ExpireAt, time.Second)
	require.Zero(w, job.Retries)
	require.Zero(w, job.Timeout)

	job = w.Get("mail:send", "old")
	require.Equal(w, delayq.StateDead, job.State)
	require.Equal(w, 5, job.Retries)
	require.Contains(w, job.Errors[len(job.Errors)-1].Message, "archived in asynq")
}

// A job that has run is not stored again while its ID is remembered.
func TestImportAsynqIsRemembered(t *testing.T) {
	inWorld(t, func(w *world) {
		client := asynq.NewClientFromRedisClient(w.RDB)
		for n := range 150 { // more than a page
			_, err := client.Enqueue(asynq.NewTask("work", []byte{byte(n)}))
			require.NoError(w, err)
		}
		_, err := client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID("own"))
		require.NoError(w, err)
		runs := map[string]int{}
		w.Serve("work", func(_ context.Context, job *delayq.Job) error { runs[job.ID]++; return nil }, delayq.Concurrency(1))
		require.Contains(w, w.do("import", "asynq", "--yes", "--remember", "1m").err, "151 jobs stored, 0 duplicates")
		w.Pass(5 * time.Second)
		require.Len(w, runs, 151)
		require.Contains(w, w.do("import", "asynq").err, "0 jobs would be stored, 151 duplicates")
		require.Contains(w, w.do("import", "asynq", "--yes", "--delete").err, "0 jobs stored, 151 duplicates, 150 deleted from asynq")
		w.Pass(5 * time.Second)
		for id, n := range runs {
			require.Equal(w, 1, n, id)
		}
		// Another queue could have had a task with this ID too.
		require.Contains(w, w.asynqKeys(), "asynq:{default}:t:own")
		require.Contains(w, w.do("import", "asynq", "--yes", "--remember", "1m").err, "0 jobs stored, 1 duplicate")
		w.Pass(2 * time.Minute)
		require.Contains(w, w.do("import", "asynq", "--yes", "--remember", "0s").err, "1 job stored", "nobody remembers it")
	})
}

// onEval lets a test act when the command line deletes tasks.
type onEval func() error

func (f onEval) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (f onEval) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (f onEval) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 0 && cmds[0].Name() == "eval" {
			if err := f(); err != nil {
				return err
			}
		}
		return next(ctx, cmds)
	}
}

func (w *world) beforeDeletes(f onEval) {
	w.dialer = func(*connection) (redis.UniversalClient, error) {
		rdb := w.Redis.Client()
		if f != nil {
			rdb.AddHook(f)
		}
		return rdb, nil
	}
}

// An execution that ends between the two steps leaves tasks in both, and the next one has the rest.
func TestImportAsynqGoesOn(t *testing.T) {
	inWorld(t, func(w *world) {
		client, insp := w.asynqShop()
		for n := range 80 {
			_, err := client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID(fmt.Sprint("w-", n)))
			require.NoError(w, err)
			require.NoError(w, insp.ArchiveTask("default", fmt.Sprint("w-", n)))
		}
		calls := 0
		w.beforeDeletes(func() error {
			if calls++; calls == 2 {
				return errors.New("the power is out")
			}
			return nil
		})
		r := w.do("import", "asynq", "--yes", "--delete")
		require.Equal(w, exitError, r.code)
		require.Contains(w, r.err, `queue "default": delete from asynq: the power is out; the command can be repeated`)
		w.beforeDeletes(nil)
		r = w.do("import", "asynq", "--yes", "--delete")
		require.Equal(w, exitPartly, r.code, "what cannot be moved")
		for n := range 80 {
			require.Equal(w, delayq.StateDead, w.State("work", fmt.Sprint("w-", n)))
		}
		info, err := insp.GetQueueInfo("default")
		require.NoError(w, err)
		require.Equal(w, 2, info.Size, "those of the group")
		require.Equal(w, 2, info.Aggregating)
	})
}

// A job whose burial was interrupted is buried by the next execution. One that was revived is not.
func TestImportAsynqBuries(t *testing.T) {
	inWorld(t, func(w *world) {
		client, insp := asynq.NewClientFromRedisClient(w.RDB), asynq.NewInspectorFromRedisClient(w.RDB)
		for _, id := range []string{"a", "b"} {
			_, err := client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID(id))
			require.NoError(w, err)
			require.NoError(w, insp.ArchiveTask("default", id))
		}
		_, err := w.Client.Enqueue(w.Context(), "work", "a", nil, delayq.ProcessIn(burialTime), delayq.Header(asynqHeader, "default"))
		require.NoError(w, err)
		w.ok("import", "asynq", "--yes")
		require.Equal(w, delayq.StateDead, w.State("work", "a"))
		require.NoError(w, w.Client.Revive(w.Context(), "work", "b"))
		require.Contains(w, w.do("import", "asynq", "--yes").err, "0 jobs stored, 2 duplicates")
		require.Equal(w, delayq.StateReady, w.State("work", "b"))
		w.ok("import", "asynq", "--yes", "--delete", "--archived", archivedRevive)
		require.Equal(w, delayq.StateDead, w.State("work", "a"), "its job is left alone")
	})
}

// A task that starts in asynq before it is deleted there runs there alone.
func TestImportAsynqTakesBack(t *testing.T) {
	inWorld(t, func(w *world) {
		client, insp := asynq.NewClientFromRedisClient(w.RDB), asynq.NewInspectorFromRedisClient(w.RDB)
		for _, id := range []string{"a", "b", "c"} {
			_, err := client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID(id))
			require.NoError(w, err)
		}
		w.beforeDeletes(func() error {
			ctx := w.Context()
			_, err := w.RDB.LMove(ctx, "asynq:{default}:pending", "asynq:{default}:active", "RIGHT", "LEFT").Result() // as its server does
			require.NoError(w, err)
			return w.RDB.HSet(ctx, "asynq:{default}:t:a", "state", "active").Err()
		})
		r := w.do("import", "asynq", "--yes", "--delete")
		require.Zero(w, r.code, r.err)
		require.Contains(w, r.err, "2 jobs stored, 0 duplicates, 1 started in asynq meanwhile, 2 deleted from asynq")
		require.Empty(w, w.State("work", "a"))
		require.Equal(w, delayq.StateReady, w.State("work", "b"))
		info, err := insp.GetTaskInfo("default", "a")
		require.NoError(w, err)
		require.Equal(w, asynq.TaskStateActive, info.State)
		w.Enqueue("work", "a") // its ID is free
	})
}

// The asynq that the command reads is the one that the flags name, and its password is no secret of
// the other Redis.
func TestImportAsynqFrom(t *testing.T) {
	inWorld(t, func(w *world) {
		var from []connection
		w.dialer = func(c *connection) (redis.UniversalClient, error) {
			from = append(from, *c)
			return w.Redis.Client(), nil
		}
		w.env["DELAYQ_PASSWORD"], w.env["DELAYQ_FROM_PASSWORD"] = "new", "old"
		w.env["DELAYQ_REDIS"] = "redis://new:6379"
		w.ok("import", "asynq", "--from", "rediss://old:6379/2", "--tls-ca", "/ca")
		require.Len(w, from, 2)
		require.Equal(w, "new", from[0].password)
		require.Equal(w, "old", from[1].password)
		require.Equal(w, "rediss://old:6379/2", from[1].url)
		require.Equal(w, "/ca", from[1].ca)
		require.Equal(w, from[0].timeout, from[1].timeout)

		w.dialer = dial // which connects later
		for wrong, said := range map[string]string{
			"http://x":     "--from: invalid URL scheme: http",
			"redis://u@x":  `--from: the URL names the user "u", and there is no password: use --from-password-file or DELAYQ_FROM_PASSWORD`,
			"redis://[x/y": "--from: ",
		} {
			w.env["DELAYQ_FROM_PASSWORD"] = ""
			r := w.do("import", "asynq", "--from", wrong)
			require.Equal(w, exitUsage, r.code, wrong)
			require.Contains(w, r.err, said)
		}
	})
}

// An import that the audit lacks is done, and says so. Who may only store jobs has no right to the
// audit.
func TestImportAsynqWithoutAudit(t *testing.T) {
	for code, cause := range auditCauses {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.asynqShop()
				w.deafAudit(cause)
				r := w.do("import", "asynq", "--yes", "--archived", "skip")
				said := "done, but not recorded in the audit: audit: " + cause.Error()
				if code == exitRefused {
					said = "it is not in the audit: this user of Redis has no right to that"
				}
				require.Contains(w, r.err, said)
				require.NotEmpty(w, w.State("mail:send", "p-1"), "it is done")
			})
		})
	}
}
