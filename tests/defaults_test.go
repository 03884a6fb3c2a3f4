package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// What counts for a job: what it says itself, then the Defaults of its typed topic, then those of
// its client.
func TestDefaultsOfAClient(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix),
			delayq.Defaults(delayq.Retry(25), delayq.Timeout(time.Hour), delayq.Header("of", "client"), delayq.Header("env", "test")),
			delayq.Defaults(delayq.Backoff(time.Second, time.Minute), delayq.Timeout(2*time.Hour)))
		topic := delayq.NewTopic[string]("topic", delayq.JSON,
			delayq.Defaults(delayq.Retry(5), delayq.Retention(time.Hour), delayq.Header("of", "topic"), delayq.ExpireIn(24*time.Hour)))

		later := delayq.ProcessIn(time.Hour)
		job, err := client.Enqueue(ctx, "topic", "plain", nil, later)
		require.NoError(t, err)
		require.Equal(t, 25, job.Retries)
		require.Equal(t, map[string]string{"of": "client", "env": "test"}, job.Headers)
		job.Headers["of"] = "somebody" // a map of its own
		_, err = client.Enqueue(ctx, "topic", "own", nil, later, delayq.Retry(delayq.Unlimited), delayq.Timeout(time.Second), delayq.Header("of", "own"))
		require.NoError(t, err)
		_, err = topic.Enqueue(ctx, client, "typed", "x", later)
		require.NoError(t, err)
		fresh, err := topic.Job("batch", "x", later, delayq.Retry(7), delayq.ExpireAt(time.Now().Add(100*time.Hour)))
		require.NoError(t, err)
		_, err = client.EnqueueBatch(ctx, []delayq.NewJob{fresh, {Topic: "topic", ID: "batched", Options: []delayq.JobOption{later}}})
		require.NoError(t, err)
		other, err := f.Client.Enqueue(ctx, "topic", "other client", nil, later)
		require.NoError(t, err)
		require.Equal(t, []int{-1, -1}, []int{other.Retries, other.RetriesLeft()})

		type holds struct {
			retries         int
			first, limit    time.Duration
			timeout, keep   time.Duration
			of, env         string
			expires, chosen bool
		}
		second, minute := time.Second, time.Minute
		for id, want := range map[string]holds{
			"plain":        {25, second, minute, 2 * time.Hour, 0, "client", "test", false, true},
			"batched":      {25, second, minute, 2 * time.Hour, 0, "client", "test", false, true},
			"own":          {-1, second, minute, second, 0, "own", "test", false, true},
			"typed":        {5, second, minute, 2 * time.Hour, time.Hour, "topic", "test", true, true},
			"batch":        {7, second, minute, 2 * time.Hour, time.Hour, "topic", "test", true, true},
			"other client": {-1, 2 * second, 4096 * second, 0, 0, "", "", false, false},
		} {
			info := f.Get(id)
			got := holds{
				info.Retries, info.BackoffFirst, info.BackoffLimit, info.Timeout, info.Retention,
				info.Headers["of"], info.Headers["env"], !info.ExpireAt.IsZero(), len(info.Options()) > 1,
			}
			require.Equal(t, want, got, id)
		}
		require.WithinDuration(t, f.Get("typed").EnqueuedAt.Add(24*time.Hour), f.Get("typed").ExpireAt, 0)

		// A schedule and its jobs.
		require.NoError(t, topic.Schedule(ctx, client, "typed", delayq.Every(time.Hour), "x", delayq.Retry(1)))
		require.NoError(t, client.Schedule(ctx, "topic", "plain", delayq.Every(time.Hour), nil))
		for name, want := range map[string]holds{
			"plain": {25, second, minute, 2 * time.Hour, 0, "client", "test", false, false},
			"typed": {1, second, minute, 2 * time.Hour, time.Hour, "topic", "test", true, false},
		} {
			id, err := client.Trigger(ctx, "topic", name)
			require.NoError(t, err)
			info := f.Get(id)
			require.Equal(t, want, holds{
				info.Retries, info.BackoffFirst, info.BackoffLimit, info.Timeout, info.Retention,
				info.Headers["of"], info.Headers["env"], !info.ExpireAt.IsZero(), false,
			}, name)
		}
		before, err := f.Inspector.Schedule(ctx, "topic", "typed")
		require.NoError(t, err)
		require.NoError(t, topic.Schedule(ctx, client, "typed", delayq.Every(time.Hour), "x", delayq.Retry(1)))
		after, err := f.Inspector.Schedule(ctx, "topic", "typed")
		require.NoError(t, err)
		require.Equal(t, before.ChangedAt, after.ChangedAt, "the same again")
		require.NoError(t, client.EditSchedule(ctx, "topic", "typed", func(def *delayq.ScheduleDefinition) error {
			def.EditedBy = "me"
			def.Options = []delayq.ScheduleOption{delayq.Retry(9)}
			return nil
		}))
		after, err = f.Inspector.Schedule(ctx, "topic", "typed")
		require.NoError(t, err)
		require.Equal(t, []int{9, 0}, []int{after.Retries, int(after.Timeout)}, "an edit says all that is to be")
	})
}

// The Defaults of a handler are for the runs of jobs that do not say, whoever made them, and change
// nothing that is stored.
func TestDefaultsOfAHandler(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		type run struct {
			retries, left int
			last          bool
			timeout       time.Duration
		}
		runs := map[string][]run{}
		handler := rec.Then(func(ctx context.Context, job *delayq.Job) error {
			r := run{retries: job.Retries, left: job.RetriesLeft(), last: job.LastAttempt()}
			if deadline, ok := ctx.Deadline(); ok {
				r.timeout = time.Until(deadline)
			}
			runs[job.ID] = append(runs[job.ID], r)
			if job.ID == "kept" || job.ID == "kept by itself" {
				return nil
			}
			return queuetest.ErrTest
		})
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("a", handler, delayq.Concurrency(1), delayq.Defaults(
				delayq.Retry(1), delayq.Backoff(10*time.Second, 10*time.Second), delayq.Timeout(time.Minute), delayq.Retention(time.Hour)))
		})
		b.Enqueue("a", "plain")
		b.Enqueue("a", "never", delayq.Retry(0))
		b.Enqueue("a", "ever", delayq.Retry(delayq.Unlimited), delayq.Backoff(time.Second, time.Second), delayq.Timeout(time.Second))
		b.Enqueue("a", "kept")
		b.Enqueue("a", "kept by itself", delayq.Retention(time.Minute))
		b.Pass(59 * time.Second)
		require.Equal(b, []run{{1, 1, false, time.Minute}, {1, 0, true, time.Minute}}, runs["plain"])
		require.Equal(b, []run{{0, 0, true, time.Minute}}, runs["never"])
		require.Equal(b, run{-1, -1, false, time.Second}, runs["ever"][0])
		require.Greater(b, len(runs["ever"]), 40)
		at := rec.Of("plain")
		require.GreaterOrEqual(b, at[1].At.Sub(at[0].At), 10*time.Second)
		require.LessOrEqual(b, at[1].At.Sub(at[0].At), 12*time.Second)
		info := b.Get("a", "plain")
		require.Equal(b, delayq.StateDead, info.State)
		require.Equal(b, -1, info.Retries, "the client does not know the handler")
		require.Equal(b, 2*time.Second, info.BackoffFirst)
		require.Len(b, info.Options(), 1, "when it is due: it says nothing else")
		require.Equal(b, delayq.StateDead, b.State("a", "never"))
		require.Equal(b, delayq.StateDone, b.State("a", "kept"))
		require.Equal(b, time.Hour, b.Get("a", "kept").KeptUntil.Sub(b.Get("a", "kept").FinishedAt))
		require.Equal(b, time.Minute, b.Get("a", "kept by itself").KeptUntil.Sub(b.Get("a", "kept by itself").FinishedAt))
	})
}

// A crash counts as a failure also against retries that only the handler limits: a job without any
// left is not run again.
func TestDefaultRetryCountsCrashes(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		for range 2 {
			w := queuetest.NewWire(b.Redis)
			s := queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
				s.HandlerFunc("a", rec.Then(func(ctx context.Context, _ *delayq.Job) error {
					w.Cut()
					<-ctx.Done()
					return nil
				}), delayq.Defaults(delayq.Retry(0)))
			}, delayq.Drain(0))
			if len(rec.All()) == 0 {
				b.Enqueue("a", "1")
			}
			b.Pass(2 * time.Minute)
			w.Mend()
			require.NoError(b, s.Stop())
		}
		b.Pass(time.Minute)
		require.Len(b, rec.All(), 1)
		require.Equal(b, delayq.StateDead, b.State("a", "1"))
	})
}

// Which jobs have limited retries take.lua sees in their records. If the handler limits them, none
// is taken ahead.
func TestHandlerWithADefaultRetryTakesNothingAhead(t *testing.T) {
	for name, opts := range map[string][]delayq.HandlerOption{
		"a limit":  {delayq.Concurrency(1), delayq.Defaults(delayq.Retry(3))},
		"no limit": {delayq.Concurrency(1), delayq.Defaults(delayq.Retry(delayq.Unlimited))},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				release := make(chan struct{})
				defer close(release)
				queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					s.HandlerFunc("a", func(_ context.Context, job *delayq.Job) error {
						if job.ID == "slow" {
							<-release
						}
						return nil
					}, opts...)
				})
				for range 200 { // so that the server knows how short the handler is
					b.Enqueue("a", "short", delayq.Retry(delayq.Unlimited))
					synctest.Wait()
				}
				slow := delayq.NewJob{Topic: "a", ID: "slow", Options: []delayq.JobOption{delayq.Retry(delayq.Unlimited)}}
				_, err := b.Client.EnqueueBatch(b.Context(), []delayq.NewJob{slow, {Topic: "a", ID: "behind"}})
				require.NoError(b, err)
				synctest.Wait()
				want := delayq.StateRunning
				if name == "a limit" {
					want = delayq.StateReady
				}
				require.Equal(b, want, b.State("a", "behind"))
			})
		})
	}
}

// Options that are said with each job, or too late for a handler, are refused in Defaults.
func TestDefaultsThatCannotBe(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		for name, test := range map[string]struct {
			opt     delayq.JobOption
			handler bool // only a handler refuses it
			say     string
		}{
			"ProcessIn": {delayq.ProcessIn(time.Hour), false, "Defaults: ProcessIn: must be given with each job"},
			"ProcessAt": {delayq.ProcessAt(time.Now()), false, "Defaults: ProcessAt: must be given with each job"},
			"ExpireAt":  {delayq.ExpireAt(time.Now()), false, "Defaults: ExpireAt: must be given with each job"},
			"Replace":   {delayq.Replace(), false, "Defaults: Replace: must be given with each job"},
			"if dead":   {delayq.ReplaceDead(), false, "Defaults: ReplaceDead: must be given with each job"},
			"nil":       {nil, false, "Defaults: a job option is nil"},
			"Retry":     {delayq.Retry(-5), false, "Defaults: Retry(-5)"},
			"ExpireIn":  {delayq.ExpireIn(time.Hour), true, "Defaults: ExpireIn: has no effect in the Defaults of a handler"},
			"Header":    {delayq.Header("k", "v"), true, "Defaults: Header: has no effect in the Defaults of a handler"},
		} {
			defaults := delayq.Defaults(delayq.Timeout(time.Hour), test.opt)
			server := delayq.NewServer(f.RDB, queuetest.Quiet(f.Prefix)...)
			server.HandlerFunc("topic", func(context.Context, *delayq.Job) error { return nil }, defaults)
			whole := delayq.NewServer(f.RDB, append(queuetest.Quiet(f.Prefix), defaults)...)
			for _, err := range []error{server.Run(ctx), whole.Run(ctx)} {
				require.ErrorIs(t, err, delayq.ErrInvalid, name)
				require.ErrorContains(t, err, test.say, name)
			}

			topic := delayq.NewTopic[string]("topic", defaults)
			client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), defaults)
			_, byClient := client.Enqueue(ctx, "topic", "x", nil, delayq.Replace())
			_, byTopic := topic.Enqueue(ctx, f.Client, "x", "v", delayq.Replace())
			_, byJob := topic.Job("x", "v")
			for _, err := range []error{
				byClient, byTopic, byJob, topic.Schedule(ctx, f.Client, "s", delayq.Every(time.Hour), "v"),
				client.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil),
			} {
				if test.handler {
					require.NoError(t, err, name)
					continue
				}
				require.ErrorIs(t, err, delayq.ErrInvalid, name)
				require.ErrorContains(t, err, test.say, name)
			}
		}
	})
}

// The Defaults of a server are for the runs of all its topics, and those of a handler take
// precedence, one by one.
func TestDefaultsOfAServer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		opts := append(queuetest.Quiet(queuetest.Prefix),
			delayq.Defaults(delayq.Retry(1), delayq.Backoff(time.Minute, time.Minute), delayq.Timeout(time.Second)),
			delayq.Defaults(delayq.Retention(time.Hour)))
		server := delayq.NewServer(b.RDB, opts...)
		var mu sync.Mutex
		runs := map[string]int{}
		fails := func(ctx context.Context, job *delayq.Job) error {
			mu.Lock()
			runs[job.Topic]++
			mu.Unlock()
			if job.ID == "good" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		require.NoError(b, server.HandlerFunc("plain", fails, delayq.Concurrency(1)))
		require.NoError(b, server.HandlerFunc("own", fails, delayq.Concurrency(1), delayq.Defaults(delayq.Retry(3))))
		run, stop := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(run) }()
		b.Enqueue("plain", "good")
		b.Enqueue("plain", "x")
		b.Enqueue("own", "x")
		b.Pass(30 * time.Second)
		require.Equal(b, map[string]int{"plain": 2, "own": 1}, runs, "they back off")
		require.Equal(b, delayq.StateDone, b.State("plain", "good"))
		b.Pass(10 * time.Minute)
		stop()
		require.NoError(b, <-ended)
		require.Equal(b, map[string]int{"plain": 1 + 2, "own": 4}, runs)
		require.Equal(b, delayq.StateDead, b.State("plain", "x"))
	})
}

// The actor of a context is who has edited a schedule, unless the edit says another name.
func TestScheduleIsEditedByTheActor(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		require.NoError(t, f.Client.Schedule(t.Context(), "topic", "s", delayq.Every(time.Hour), nil))
		ctx := delayq.WithActor(t.Context(), "ann")
		for _, c := range []struct{ says, by string }{{"", "ann"}, {"deploy", "deploy"}} {
			require.NoError(t, f.Client.EditSchedule(ctx, "topic", "s", func(def *delayq.ScheduleDefinition) error {
				require.Equal(t, "ann", def.EditedBy)
				if c.says != "" {
					def.EditedBy = c.says
				}
				def.Payload = []byte(c.by)
				return nil
			}))
			info, err := f.Inspector.Schedule(ctx, "topic", "s")
			require.NoError(t, err)
			require.Equal(t, c.by, info.EditedBy)
		}
	})
}

// settings returns the settings of a job in words, from the heartbeats and as Explain has them.
func settings(b *queuetest.Bubble, topic, id string) (list []string) {
	b.Helper()
	servers, err := b.Inspector.Servers(b.Context())
	require.NoError(b, err)
	got := b.Get(topic, id).Settings(servers)
	e, err := b.Inspector.Explain(b.Context(), topic, id)
	require.NoError(b, err)
	require.Equal(b, got, e.Settings)
	for _, s := range got {
		list = append(list, s.String())
	}
	return list
}

// What a job does not set is up to its handler, and Explain and Settings say what that is.
func TestSettingsOfAJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		wait := func(ctx context.Context, _ *delayq.Job) error { return delayq.Snooze(time.Hour) }
		b.Enqueue("a", "open")
		b.Enqueue("a", "set", delayq.Retry(0), delayq.Backoff(time.Second, time.Minute), delayq.Timeout(time.Minute), delayq.Retention(24*time.Hour))
		b.Enqueue("a", "ever", delayq.Retry(delayq.Unlimited))
		require.Equal(b, []string{
			"retries: unlimited, unless its handler sets it", "backoff: 2s to 1h8m16s, unless its handler sets it",
			"timeout: none, unless its handler sets it", "retention: none, unless its handler sets it",
		}, settings(b, "a", "open"), "nobody serves the topic")
		own := []string{
			"retries: 0, by the job itself", "backoff: 1s to 1m0s, by the job itself", "timeout: 1m0s, by the job itself",
			"retention: 24h0m0s, by the job itself",
		}
		require.Equal(b, own, settings(b, "a", "set"))

		serve := func(topic string, server []delayq.ServerOption, handler ...delayq.HandlerOption) *queuetest.Running {
			return queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) { s.HandlerFunc(topic, wait, handler...) }, server...)
		}
		first := serve("a", []delayq.ServerOption{delayq.Defaults(delayq.Timeout(time.Hour), delayq.Retry(9))},
			delayq.Defaults(delayq.Retry(25), delayq.Retention(time.Minute)))
		serve("other", nil, delayq.Defaults(delayq.Retry(1)))
		b.Pass(time.Second)
		require.Equal(b, []string{
			"retries: 25, by its handler", "backoff: 2s to 1h8m16s, by default", "timeout: 1h0m0s, by its handler", "retention: 1m0s, by its handler",
		}, settings(b, "a", "open"))
		require.Equal(b, own, settings(b, "a", "set"), "the job has the last word")
		require.Equal(b, "retries: unlimited, by the job itself", settings(b, "a", "ever")[0])

		// Another release of the program is on its way: a name has a setting for each value.
		serve("*", nil, delayq.Defaults(delayq.Retry(3), delayq.Timeout(time.Hour)))
		serve("*", nil, delayq.Defaults(delayq.Retry(3), delayq.Timeout(time.Hour)))
		b.Pass(10 * time.Second)
		require.ElementsMatch(b, []string{
			"retries: 25, by its handler", "retries: 3, by its handler", "backoff: 2s to 1h8m16s, by default", "timeout: 1h0m0s, by its handler",
			"retention: 1m0s, by its handler", "retention: none, by default",
		}, settings(b, "a", "open"))
		require.NoError(b, first.Stop())
		require.Equal(b, []string{
			"retries: 3, by its handler", "backoff: 2s to 1h8m16s, by default", "timeout: 1h0m0s, by its handler", "retention: none, by default",
		}, settings(b, "a", "open"))
	})
}

// A server that is gone decides nothing any more, and a done job has no settings. A server of a
// release that does not tell its defaults leaves them open.
func TestSettingsThatNobodyKnows(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", func(context.Context, *delayq.Job) error { return nil }, delayq.Defaults(delayq.Retention(time.Hour)))
		b.Enqueue("a", "done")
		b.Pass(time.Second)
		require.Equal(b, delayq.StateDone, b.State("a", "done"))
		require.Empty(b, settings(b, "a", "done"))
		b.Enqueue("a", "open", delayq.ProcessIn(time.Hour))
		require.Equal(b, "retention: 1h0m0s, by its handler", settings(b, "a", "open")[3])
		w.Cut()
		b.Pass(30 * time.Second)
		require.Equal(b, "retention: none, unless its handler sets it", settings(b, "a", "open")[3])
		e, err := b.Inspector.Explain(b.Context(), "a", "nobody")
		require.NoError(b, err)
		require.Nil(b, e.Settings)

		beat := fmt.Sprint(time.Now().UnixMilli(), ` {"state":"running","topics":{"a":{"slots":1}}}`)
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":servers", "old", beat).Err())
		require.Equal(b, "retention: none, unless its handler sets it", settings(b, "a", "open")[3])
	})
}
