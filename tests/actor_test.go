package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
)

// acts returns what the audit of a prefix says, oldest first: action, topic, ID, filter, count.
func acts(t *testing.T, rdb redis.UniversalClient, prefix string) (list []string) {
	t.Helper()
	raw, err := rdb.LRange(t.Context(), prefix+":audit", 0, -1).Result()
	require.NoError(t, err)
	for _, one := range raw {
		a, ok := record.DecodeAudit(one)
		require.True(t, ok, one)
		require.Equal(t, "alice", a.Actor)
		list = append([]string{fmt.Sprintf("%s|%s|%s|%s|%d", a.Action, a.Topic, a.ID, a.Filter, a.Count)}, list...)
	}
	return list
}

// Each act of an actor is in the audit, with what it was about, and no call without an actor, or
// that changed nothing, is.
func TestAuditHasEachAct(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		c := f.Client
		now, err := f.RDB.Time(t.Context()).Result()
		require.NoError(t, err)
		at := now.Add(time.Hour).Truncate(time.Second)
		for _, test := range []struct {
			call func(ctx context.Context) error
			want string // "": nothing is recorded
		}{
			{func(ctx context.Context) error { _, err := c.Enqueue(ctx, "topic", "a", nil); return err }, ""},
			{func(ctx context.Context) error { return c.Reschedule(ctx, "topic", "a", delayq.ProcessIn(time.Hour)) }, "reschedule|topic|a|due in 1h0m0s|1"},
			{func(ctx context.Context) error { return c.Reschedule(ctx, "topic", "a", delayq.ProcessAt(at)) }, "reschedule|topic|a|due " + at.UTC().Format(time.RFC3339) + "|1"},
			{func(ctx context.Context) error { _, err := c.Get(ctx, "topic", "a"); return err }, ""},
			{func(ctx context.Context) error { _, err := c.Dequeue(ctx, "topic", "a"); return err }, "cancel|topic|a||1"},
			{func(ctx context.Context) error { _, err := c.Dequeue(ctx, "topic", "a"); return missing(err) }, ""},
			{func(ctx context.Context) error { f.Enqueue("b"); return c.Bury(ctx, "topic", "b", "why \xff") }, "bury|topic|b|reason \"why \uFFFD\"|1"},
			{func(ctx context.Context) error { return missing(c.Bury(ctx, "topic", "none", "why")) }, ""},
			{func(ctx context.Context) error { _, err := c.Dequeue(t.Context(), "topic", "b"); return err }, ""},
			{func(ctx context.Context) error { return missing(c.Revive(ctx, "topic", "a")) }, ""},
			{func(ctx context.Context) error { return missing(c.Delete(ctx, "topic", "a")) }, ""},
			{func(ctx context.Context) error {
				return c.Pause(ctx, "topic", delayq.Pause{By: "ops", Reason: "bank\nis down", For: time.Minute})
			}, `pause|topic||by "ops", reason "bank\nis down", for 1m0s|1`},
			{func(ctx context.Context) error { return c.Resume(ctx, "topic", "ops") }, `resume|topic||by "ops"|1`},
			{func(ctx context.Context) error { return c.ResumeAll(ctx, "topic") }, "resume all|topic|||1"},
			{func(ctx context.Context) error { return c.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil) }, `schedule|topic|s|Spec "every 1h0m0s"|1`},
			{func(ctx context.Context) error { return c.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil) }, ""},
			{func(ctx context.Context) error {
				return c.EditSchedule(ctx, "topic", "s", func(d *delayq.ScheduleDefinition) error { d.Payload = []byte("x"); return nil })
			}, "edit schedule|topic|s|Payload of 1 bytes, SHA-256 2d711642|1"},
			{func(ctx context.Context) error {
				return c.EditSchedule(ctx, "topic", "s", func(*delayq.ScheduleDefinition) error { return nil })
			}, ""},
			{func(ctx context.Context) error { return c.PauseSchedule(ctx, "topic", "s") }, "pause schedule|topic|s||1"},
			{func(ctx context.Context) error { return c.ResumeSchedule(ctx, "topic", "s") }, "resume schedule|topic|s||1"},
			{func(ctx context.Context) error { _, err := c.Trigger(ctx, "topic", "s"); return err }, "trigger|topic|s||1"},
			{func(ctx context.Context) error { return c.Unschedule(ctx, "topic", "s") }, "unschedule|topic|s||1"},
			{func(ctx context.Context) error { return missing(c.Unschedule(ctx, "topic", "s")) }, ""},
			{func(ctx context.Context) error { _, err := c.Repair(ctx, "topic"); return err }, ""},
			{func(ctx context.Context) error {
				f.Enqueue("lost", delayq.ProcessIn(time.Hour))
				require.NoError(t, f.RDB.ZRem(ctx, f.Key("bucket"), "lost").Err())
				_, err := f.Inspector.Check(ctx, "topic")
				return err
			}, ""},
			{func(ctx context.Context) error { _, err := c.Repair(ctx, "topic"); return err }, "repair|topic|||1"},
			{func(ctx context.Context) error {
				f.Enqueue("b")
				f.Enqueue("\xff,\"")
				_, err := c.RescheduleBatch(ctx, []delayq.NewDue{
					{Topic: "topic", ID: "b", Due: delayq.ProcessIn(time.Hour)}, {Topic: "topic", ID: "none", Due: delayq.ProcessIn(time.Hour)},
				})
				return missing(err)
			}, `reschedule|topic||"b" due in 1h0m0s, "none" due in 1h0m0s|1`},
			{func(ctx context.Context) error {
				_, err := c.CancelBatch(ctx, refs("b", "\xff,\""))
				return err
			}, `cancel|topic||"b", "\xff,\""|2`},
			{func(ctx context.Context) error { _, err := c.CancelBatch(ctx, refs("b", "c")); return missing(err) }, ""},
			{func(ctx context.Context) error { _, err := c.CancelBatch(ctx, nil); return err }, ""},
			{func(ctx context.Context) error {
				_, err := c.Enqueue(ctx, "other", "x", nil)
				require.NoError(t, err)
				_, err = c.CancelBatch(ctx, append(refs("b"), delayq.JobRef{Topic: "other", ID: "x"}))
				return missing(err)
			}, `cancel|||"topic" "b", "other" "x"|1`},
		} {
			before := acts(t, f.RDB, f.Prefix)
			require.NoError(t, test.call(delayq.WithActor(t.Context(), "alice")))
			if test.want != "" {
				before = append(before, test.want)
			}
			require.Equal(t, before, acts(t, f.RDB, f.Prefix))
		}

		before := acts(t, f.RDB, f.Prefix)
		f.Enqueue("a")
		_, err = c.Dequeue(t.Context(), "topic", "a")
		require.NoError(t, err)
		f.Enqueue("a")
		_, err = c.Dequeue(delayq.WithActor(delayq.WithActor(t.Context(), "bob"), ""), "topic", "a")
		require.NoError(t, err)
		require.Equal(t, before, acts(t, f.RDB, f.Prefix), "without an actor")

		raw, err := f.RDB.LIndex(t.Context(), f.Prefix+":audit", 0).Result()
		require.NoError(t, err)
		a, ok := record.DecodeAudit(raw)
		require.True(t, ok)
		require.WithinDuration(t, now, time.UnixMilli(a.At), queuetest.Patience, "by Redis's clock")
	})
}

// missing drops the error of a call about something that does not exist.
func missing(err error) error {
	if errors.Is(err, delayq.ErrNotFound) {
		return nil
	}
	return err
}

// The acts about dead and done jobs.
func TestAuditOfDeadAndDoneJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			if job.ID == "dead" {
				return delayq.Permanent(errors.New("no"))
			}
			return nil
		})
		b.Enqueue("t", "dead")
		b.Enqueue("t", "done", delayq.Retention(time.Hour))
		b.Pass(time.Second)
		require.NoError(b, s.Stop())
		ctx := delayq.WithActor(b.Context(), "alice")
		require.NoError(b, b.Client.Revive(ctx, "t", "dead"))
		require.NoError(b, b.Client.Delete(ctx, "t", "done"))
		require.Equal(b, []string{"revive|t|dead||1", "delete|t|done||1"}, acts(b.T, b.RDB, queuetest.Prefix))
	})
}

// A batch whose last job has an unknown outcome is recorded, although its error joins those of
// other jobs.
func TestAuditOfABatchWithAnUnknownOutcome(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
		rdb.AddHook(&breaker{2, func() { panic("oh") }})
		jobs := make([]delayq.JobRef, 500, 501)
		for i := range jobs {
			jobs[i] = delayq.JobRef{Topic: "t", ID: fmt.Sprint("none", i)}
		}
		c := delayq.NewClient(rdb)
		results, err := c.CancelBatch(delayq.WithActor(t.Context(), "alice"), append(jobs, delayq.JobRef{Topic: "t", ID: "a"}))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
		require.ErrorIs(t, results[500].Err, delayq.ErrUnknownOutcome)
		all := acts(t, rdb, "delayq")
		require.Len(t, all, 1)
		require.True(t, strings.HasPrefix(all[0], `cancel|t||"none0", `), all[0])
		require.True(t, strings.HasSuffix(all[0], "|0"), all[0])
	})
}

// Only the newest 1,000 acts are kept, each within its bounds.
func TestAuditIsBounded(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "alice")
		for i := range 1005 {
			require.NoError(t, f.Client.Resume(ctx, "topic", fmt.Sprint(i)))
		}
		all := acts(t, f.RDB, f.Prefix)
		require.Len(t, all, 1000)
		require.Equal(t, `resume|topic||by "5"|1`, all[0])
		require.Equal(t, `resume|topic||by "1004"|1`, all[999])

		ids := make([]string, 3)
		for i := range ids {
			ids[i] = fmt.Sprint(i) + strings.Repeat("\x00", 1023)
			f.Enqueue(ids[i])
		}
		_, err := f.Client.CancelBatch(ctx, refs(ids...))
		require.NoError(t, err)
		all = acts(t, f.RDB, f.Prefix)
		require.Len(t, all, 1000)
		require.Less(t, len(all[999]), 2100)
	})
}

// A name that is too long is refused by every call, and nothing is written.
func TestActorIsValidated(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("a")
		before := f.Dump()
		ctx := delayq.WithActor(t.Context(), strings.Repeat("x", 1025))
		for _, call := range []func() error{
			func() error { _, err := f.Client.Dequeue(ctx, "topic", "a"); return err },
			func() error { _, err := f.Client.CancelBatch(ctx, refs("a")); return err },
			func() error { return f.Client.Pause(ctx, "topic", delayq.Pause{}) },
			func() error { return f.Client.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil) },
			func() error { _, err := f.Client.Repair(ctx, "topic"); return err },
		} {
			err := call()
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, "actor of 1025 bytes, at most 1024 are allowed")
		}
		require.Equal(t, before, f.Dump())
		_, err := f.Client.Dequeue(delayq.WithActor(t.Context(), strings.Repeat("x", 1024)), "topic", "a")
		require.NoError(t, err)
		var none context.Context
		_, err = f.Client.Dequeue(delayq.WithActor(none, "alice"), "topic", "a")
		require.ErrorContains(t, err, "nil context")
	})
}

// An act that could not be recorded is done, its other results are returned, and the error says
// that. (A Redis user without the right to the audit, or a key of a wrong type.)
func TestAuditThatIsNotWritten(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "alice")
		require.NoError(t, f.RDB.Set(ctx, f.Prefix+":audit", "a slip", 0).Err())
		f.Enqueue("a")
		state, err := f.Client.Dequeue(ctx, "topic", "a")
		require.ErrorIs(t, err, delayq.ErrNotAudited)
		require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
		require.ErrorContains(t, err, `cancel topic "topic" job "a": delayq: done, but not recorded in the audit: audit: key "`+f.Prefix+`:audit" is a string and not a list: `)
		require.Equal(t, delayq.StateReady, state)
		_, err = f.Client.Get(ctx, "topic", "a")
		require.ErrorIs(t, err, delayq.ErrNotFound, "it is done")

		f.Enqueue("b")
		results, err := f.Client.CancelBatch(ctx, refs("b", "none"))
		require.ErrorIs(t, err, delayq.ErrNotAudited)
		require.ErrorIs(t, err, delayq.ErrNotFound, "the error of the batch comes with it")
		require.NoError(t, results[0].Err)
		require.Equal(t, delayq.StateReady, results[0].State)

		err = f.Client.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil)
		require.ErrorIs(t, err, delayq.ErrNotAudited)
		require.ErrorContains(t, err, `schedule topic "topic" schedule "s": `)
		id, err := f.Client.Trigger(ctx, "topic", "s")
		require.ErrorIs(t, err, delayq.ErrNotAudited)
		require.Equal(t, delayq.StateReady, f.Get(id).State)
	})
}

// The end of its context does not keep an act from being recorded, and neither does a Redis that
// takes no writes but those of scripts that delete first.
func TestAuditOutlivesTheContext(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("a")
		ctx, cancel := context.WithCancel(delayq.WithActor(t.Context(), "alice"))
		c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(scriptHook(func(e delayq.ScriptEvent) {
			if e.Name == "cancel" {
				cancel() // between the act and its entry
			}
		})))
		_, err := c.Dequeue(ctx, "topic", "a")
		require.NoError(t, err)
		require.Equal(t, []string{"cancel|topic|a||1"}, acts(t, f.RDB, f.Prefix))
	})
}

// At maxmemory an operator cancels, and it is recorded.
func TestAuditAtMaxmemory(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t)
	f := queuetest.NewFixture(t, rs.Client(t))
	f.Enqueue("a")
	f.Enqueue("b")
	ctx := delayq.WithActor(t.Context(), "alice")
	_, err := f.Client.Dequeue(ctx, "topic", "a")
	require.NoError(t, err)
	require.NoError(t, f.RDB.ConfigSet(ctx, "maxmemory", "1").Err())
	_, err = f.Client.Enqueue(ctx, "topic", "c", nil)
	require.ErrorContains(t, err, "OOM")
	_, err = f.Client.Dequeue(ctx, "topic", "b")
	require.NoError(t, err)
	require.Equal(t, []string{"cancel|topic|a||1", "cancel|topic|b||1"}, acts(t, f.RDB, f.Prefix))
}

// On a Cluster the audit is in another slot than the topics.
func TestAuditOnACluster(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.SharedCluster(t).Client(t))
	ctx := delayq.WithActor(t.Context(), "alice")
	for i := range 10 {
		require.NoError(t, f.Client.Resume(ctx, fmt.Sprint("topic", i), "ops"))
	}
	require.Len(t, acts(t, f.RDB, f.Prefix), 10)
}
