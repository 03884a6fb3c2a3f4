package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
)

// An explained job is one in a situation that has been produced, with what Explain must return.
// Times are the time since the beginning of the bubble. S stands for each server's ID, H for its
// host.
type explained struct {
	id      string
	verdict string
	want    []delayq.Reason
}

// explain returns an explanation without what differs from run to run.
func explain(b *queuetest.Bubble, id string) *delayq.Explanation {
	b.Helper()
	ids, err := b.RDB.HGetAll(b.Context(), queuetest.Prefix+":servers").Result()
	require.NoError(b, err)
	e, err := b.Inspector.Explain(b.Context(), "t", id)
	require.NoError(b, err)
	require.True(b, e.At.Equal(time.Now()))
	anonymous := func(text, host string) string {
		for server := range ids {
			text = strings.ReplaceAll(text, server, "S")
		}
		if host != "" {
			text = strings.ReplaceAll(text, host, "H")
		}
		return text
	}
	host := ""
	for n := range e.Reasons {
		if r := &e.Reasons[n]; r.Host != "" {
			host = r.Host
			r.Host = "H"
		}
	}
	e.Verdict = anonymous(e.Verdict, host)
	for n := range e.Reasons {
		r := &e.Reasons[n]
		r.Server, r.Text = anonymous(r.Server, ""), anonymous(r.Text, host)
		for _, at := range []*time.Time{&r.Since, &r.Until, &r.Latest} {
			if !at.IsZero() {
				*at = at.UTC()
			}
		}
		if r.Error != nil {
			r.Error = &delayq.AttemptError{Attempt: r.Error.Attempt, Message: r.Error.Message}
		}
	}
	return e
}

// requireExplained compares an explanation, and its texts with its verdict.
func requireExplained(b *queuetest.Bubble, x explained) {
	b.Helper()
	e := explain(b, x.id)
	require.Equal(b, x.verdict, e.Verdict)
	for n := range e.Reasons {
		text := e.Reasons[n].Text
		require.Regexp(b, `^[A-Z0-9"].*\.$`, text)
		require.NotContains(b, text, "\n")
		if n == 0 && e.Reasons[0].Code != delayq.ReasonAllBusy {
			require.Equal(b, text[1:], e.Verdict[strings.Index(e.Verdict, ": ")+3:])
		}
		e.Reasons[n].Text = ""
	}
	require.Equal(b, x.want, e.Reasons)
	if e.Job != nil {
		require.Nil(b, e.Job.Payload)
		require.Equal(b, x.id, e.Job.ID)
	}
}

// stay is a handler that goes on for a while when the job "first" is cut off.
func stay(ctx context.Context, job *delayq.Job) error {
	<-ctx.Done()
	if job.ID == "first" {
		time.Sleep(1500 * time.Millisecond)
	}
	return nil
}

// block is a handler that never returns by itself.
func block(ctx context.Context, _ *delayq.Job) error {
	<-ctx.Done()
	return ctx.Err()
}

// refuse is a handler that fails.
func refuse(context.Context, *delayq.Job) error { return errors.New("dial tcp: \"refused\"") }

// idle serves another topic, so that a server is live.
func idle(b *queuetest.Bubble) { b.Serve("other", block) }

// by is a context with an actor.
func by(b *queuetest.Bubble) context.Context { return delayq.WithActor(b.Context(), "ann") }

// after is a time since the beginning, as Redis tells it.
func after(b *queuetest.Bubble, d time.Duration) time.Time { return b.Began.Round(0).Add(d).UTC() }

// round rounds a duration as texts do.
func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

const nobody = "no job has this ID; it was never enqueued, has finished, or was cancelled or dropped"

// scenes produce the situations. Each ends with the clock at the time of the call.
var scenes = map[string]func(b *queuetest.Bubble) explained{
	"never enqueued": func(*queuetest.Bubble) explained {
		return explained{"x", "Not found: " + nobody + ".", []delayq.Reason{{Code: delayq.ReasonNotFound}}}
	},
	"finished": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.Client.Reschedule(by(b), "t", "x", delayq.ProcessIn(0)))
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil })
		b.Pass(time.Second)
		return explained{
			"x", "Not found: " + nobody + `; the last act on record is "reschedule" by "ann" at 2000-01-01 00:00:00.000 UTC.`,
			[]delayq.Reason{{Code: delayq.ReasonNotFound, By: "ann", Action: "reschedule", Since: after(b, 0)}},
		}
	},
	"cancelled": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		b.Pass(time.Minute)
		_, err := b.Client.Dequeue(by(b), "t", "x")
		require.NoError(b, err)
		require.NoError(b, b.Client.Pause(by(b), "t", delayq.Pause{})) // an act about something else
		require.NoError(b, b.Client.Schedule(by(b), "t", "x", delayq.Every(time.Hour), nil))
		b.Pass(90 * time.Second)
		return cancelled(b, time.Minute)
	},
	"cancelled in a batch": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x")
		b.Enqueue("u", ", \"x")
		_, err := b.Client.CancelBatch(by(b), []delayq.JobRef{{Topic: "u", ID: ", \"x"}, {Topic: "t", ID: "x"}})
		require.NoError(b, err)
		b.Pass(90 * time.Second)
		return cancelled(b, 0)
	},
	"perhaps cancelled": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x")
		b.Enqueue("u", "x")
		b.Enqueue("t", "y")
		b.Enqueue("v", "x")
		_, err := b.Client.Dequeue(by(b), "v", "x")
		require.NoError(b, err)
		// A batch about others, and one that has not cancelled all of its jobs.
		_, err = b.Client.CancelBatch(by(b), []delayq.JobRef{{Topic: "u", ID: "x"}, {Topic: "t", ID: "y"}})
		require.NoError(b, err)
		_, err = b.Client.CancelBatch(by(b), []delayq.JobRef{{Topic: "t", ID: "x"}, {Topic: "t", ID: "gone"}})
		require.ErrorIs(b, err, delayq.ErrNotFound)
		return explained{"x", "Not found: " + nobody + ".", []delayq.Reason{{Code: delayq.ReasonNotFound}}}
	},
	"a cancel of unknown outcome": func(b *queuetest.Bubble) explained {
		act := record.AuditEntry{Actor: "ann", Action: "cancel", Topic: "t", ID: "x"}
		require.NoError(b, b.RDB.LPush(b.Context(), queuetest.Prefix+":audit", fmt.Sprint(b.Began.UnixMilli(), " nonce ", act.Encode())).Err())
		return explained{
			"x", "Not found: " + nobody + `; the last act on record is "cancel" by "ann" at 2000-01-01 00:00:00.000 UTC.`,
			[]delayq.Reason{{Code: delayq.ReasonNotFound, By: "ann", Action: "cancel", Since: after(b, 0)}},
		}
	},
	"closed": func(b *queuetest.Bubble) explained {
		_, err := b.Client.Dequeue(b.Context(), "t", "x", delayq.Tombstone(time.Hour))
		require.ErrorIs(b, err, delayq.ErrNotFound)
		b.Pass(time.Minute)
		return explained{
			"x", "Not found: its ID is closed until 2000-01-01 01:00:00.000 UTC, for 59m more, and no job with it is stored.",
			[]delayq.Reason{{Code: delayq.ReasonTomb, Until: after(b, time.Hour)}, {Code: delayq.ReasonNotFound}},
		}
	},
	"closed no more": func(b *queuetest.Bubble) explained {
		_, err := b.Client.Dequeue(b.Context(), "t", "x", delayq.Tombstone(time.Minute))
		require.ErrorIs(b, err, delayq.ErrNotFound)
		b.Pass(time.Minute)
		return explained{"x", "Not found: " + nobody + ".", []delayq.Reason{{Code: delayq.ReasonNotFound}}}
	},
	"due later": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		b.Enqueue("t", "x", delayq.ProcessIn(3*time.Hour+2*time.Minute+1500*time.Millisecond))
		return explained{
			"x", "Scheduled: it is due at 2000-01-01 03:02:01.500 UTC, in 3h2m2s.",
			[]delayq.Reason{{Code: delayq.ReasonDueLater, Until: after(b, 3*time.Hour+2*time.Minute+1500*time.Millisecond)}},
		}
	},
	"due later, rescheduled, and nobody is there": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x")
		require.NoError(b, b.Client.Reschedule(b.Context(), "t", "x", delayq.ProcessIn(2*time.Hour)))
		return explained{
			"x", "Scheduled: it is due at 2000-01-01 02:00:00.000 UTC, in 2h.",
			[]delayq.Reason{{Code: delayq.ReasonDueLater, Until: after(b, 2*time.Hour)}, {Code: delayq.ReasonNoServer}},
		}
	},
	"backing off": func(b *queuetest.Bubble) explained {
		b.Serve("t", refuse)
		b.Enqueue("t", "x", delayq.Backoff(time.Minute, time.Minute))
		b.Pass(12 * time.Second)
		due := b.Get("t", "x").Due // it has a jitter
		return explained{
			"x", fmt.Sprintf(`Scheduled: attempt 1 failed 12s ago ("dial tcp: \"refused\""), and the next one is due at %s, in %s.`,
				due.UTC().Format("2006-01-02 15:04:05.000 UTC"), strings.Replace(round(time.Until(due)).String(), "m0s", "m", 1)),
			[]delayq.Reason{{
				Code: delayq.ReasonBackingOff, Attempt: 1, Since: after(b, 0), Until: due.UTC(),
				Error: &delayq.AttemptError{Attempt: 1, Message: `dial tcp: "refused"`},
			}},
		}
	},
	"snoozed": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { return delayq.Snooze(time.Minute) })
		b.Enqueue("t", "x")
		b.Pass(3 * time.Minute)
		return explained{
			"x", "Scheduled: its handler has snoozed it, 4 times, and it is due at 2000-01-01 00:04:00.000 UTC, in 1m.",
			[]delayq.Reason{{Code: delayq.ReasonSnoozed, Snoozes: 4, Until: after(b, 4*time.Minute)}},
		}
	},
	"a last step that waits for others": func(b *queuetest.Bubble) explained {
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			for _, topic := range []string{"t", "u", "v"} {
				require.NoError(b, s.HandlerFunc(topic, block))
			}
		})
		f := delayq.NewFlow("t", "x", nil).Deadline(time.Hour)
		f.AddJob("u", "1", nil)
		f.AddJob("v", "2", nil).After(f.AddJob("v", "3", nil))
		f.AddJob("w", "4", nil, delayq.ProcessIn(time.Minute))
		require.NoError(b, b.Client.Pause(b.Context(), "v", delayq.Pause{By: "ann"}))
		require.NoError(b, queuetest.ErrOf(b.Client.Start(b.Context(), f)))
		b.Pass(time.Second)
		const missing = `"u/1" (running), "v/3" (ready; topic paused by "ann"), "w/4" (scheduled; due later) and others`
		return explained{
			"x", `Scheduled: it waits for 4 of 4 steps of its flow: ` + missing + `; the deadline is at 2000-01-01 01:00:00.000 UTC, in 59m59s.`,
			[]delayq.Reason{{Code: delayq.ReasonFlowOpen, Until: after(b, time.Hour), Ahead: 4, Limit: 4, Missing: missing}},
		}
	},
	"debounced": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		b.Enqueue("t", "x", delayq.Debounce(5*time.Second, 31*time.Second))
		b.Pass(2 * time.Second)
		b.Enqueue("t", "x", delayq.Debounce(5*time.Second, 31*time.Second))
		b.Pass(time.Second)
		return explained{
			"x", "Scheduled: it waits for 5s of silence, and it is due at 2000-01-01 00:00:07.000 UTC, in 4s, at the latest at 2000-01-01 00:00:31.000 UTC.",
			[]delayq.Reason{{
				Code: delayq.ReasonDebounced, Until: after(b, 7*time.Second), Wait: 5 * time.Second, Since: after(b, 0), Latest: after(b, 31*time.Second),
			}},
		}
	},
	"debounced to the end of the burst": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		b.Enqueue("t", "x", delayq.Debounce(5*time.Second, 6*time.Second))
		b.Pass(2 * time.Second)
		b.Enqueue("t", "x", delayq.Debounce(5*time.Second, 6*time.Second))
		return explained{
			"x", "Scheduled: calls put it off no longer, and it is due at 2000-01-01 00:00:06.000 UTC, in 4s.",
			[]delayq.Reason{{
				Code: delayq.ReasonDebounced, Until: after(b, 6*time.Second), Wait: 5 * time.Second, Since: after(b, 0), Latest: after(b, 6*time.Second),
			}},
		}
	},
	"running, with a successor": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		b.Enqueue("t", "x")
		b.Pass(6 * time.Second)
		b.Enqueue("t", "x", delayq.Debounce(5*time.Second, time.Minute))
		b.Pass(time.Second)
		e := explain(b, "x")
		require.Regexp(b, `^A successor waits, and it is due at 2000-01-01 00:00:11.000 UTC, in 4s \(\d\d bytes\).$`, e.Reasons[1].Text)
		return explained{"x", e.Verdict, []delayq.Reason{
			{Code: delayq.ReasonRunning, Attempt: 1, Since: after(b, 0), Server: "S", Host: "H", Until: b.Get("t", "x").LeaseEnd.UTC()},
			{Code: delayq.ReasonSuccessor, Until: after(b, 11*time.Second), Used: e.Reasons[1].Used},
		}}
	},
	"expired": func(b *queuetest.Bubble) explained {
		idle(b)
		b.Enqueue("t", "x", delayq.ExpireIn(time.Minute))
		b.Pass(65 * time.Second)
		return explained{
			"x", "Ready, but not running: it will be dropped, because it expired at 2000-01-01 00:01:00.000 UTC, 5s ago.",
			[]delayq.Reason{{Code: delayq.ReasonExpired, Since: after(b, time.Minute)}, {Code: delayq.ReasonNoServer, Others: 1}},
		}
	},
	"about to expire": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { return delayq.Snooze(time.Hour) })
		b.Enqueue("t", "x", delayq.ExpireIn(time.Minute))
		b.Pass(0)
		return explained{
			"x", "Scheduled: it will be dropped, because it expires at 2000-01-01 00:01:00.000 UTC, before it is due.",
			[]delayq.Reason{
				{Code: delayq.ReasonExpired, Since: after(b, time.Minute)},
				{Code: delayq.ReasonSnoozed, Snoozes: 1, Until: after(b, time.Hour)},
			},
		}
	},
	"no longer expires": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x", delayq.ExpireIn(time.Minute), delayq.Retry(0))
		require.NoError(b, b.Client.Bury(b.Context(), "t", "x", "for a while"))
		require.NoError(b, b.Client.Revive(b.Context(), "t", "x"))
		b.Pass(2 * time.Minute)
		return explained{"x", "Ready, but not running: no live server handles the topic.", []delayq.Reason{{Code: delayq.ReasonNoServer}}}
	},
	"without a place": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.RDB.ZRem(b.Context(), queuetest.Prefix+":{t}:bucket", "x").Err())
		return explained{
			"x", "Ready, but not running: the topic has a record of the job and no place for it (Repair makes it ready).",
			[]delayq.Reason{{Code: delayq.ReasonOrphan, Finding: delayq.FindingNoPlace}},
		}
	},
	"without a record": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.RDB.HDel(b.Context(), queuetest.PoolKey("t"), "x").Err())
		return explained{
			"x", "Not found: the topic has a place for this ID and no record (Repair removes it).",
			[]delayq.Reason{{Code: delayq.ReasonOrphan, Finding: delayq.FindingNoRecord}, {Code: delayq.ReasonNotFound}},
		}
	},
	"paused": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		b.Enqueue("t", "x", delayq.ProcessIn(time.Minute))
		require.NoError(b, b.Client.Pause(b.Context(), "t", delayq.Pause{By: "ann", Reason: "bank is\ndown", For: time.Hour}))
		b.Pass(time.Second)
		require.NoError(b, b.Client.Pause(b.Context(), "t", delayq.Pause{}))
		require.NoError(b, b.Client.Pause(b.Context(), "t", delayq.Pause{By: "over", For: time.Second}))
		b.Pass(2 * time.Minute)
		return explained{
			"x", `Ready, but not running: the topic is paused by "ann" since 2000-01-01 00:00:00.000 UTC until 2000-01-01 01:00:00.000 UTC ("bank is\ndown").`,
			[]delayq.Reason{
				{Code: delayq.ReasonTopicPaused, By: "ann", Because: "bank is\ndown", Since: after(b, 0), Until: after(b, time.Hour)},
				{Code: delayq.ReasonTopicPaused, Since: after(b, time.Second)},
			},
		}
	},
	"paused without a name": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		require.NoError(b, b.Client.Pause(b.Context(), "t", delayq.Pause{}))
		b.Enqueue("t", "x")
		return explained{
			"x", "Ready, but not running: the topic is paused since 2000-01-01 00:00:00.000 UTC until somebody resumes it.",
			[]delayq.Reason{{Code: delayq.ReasonTopicPaused, Since: after(b, 0)}},
		}
	},
	"the only server is gone": func(b *queuetest.Bubble) explained {
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", block)
		b.Pass(time.Second)
		w.Cut()
		b.Enqueue("t", "x")
		b.Pass(4 * time.Minute)
		idle(b)
		b.Serve("another", block)
		return explained{
			"x", "Ready, but not running: no live server handles the topic; server S of host H was last seen at " +
				"2000-01-01 00:00:00.000 UTC, 4m1s ago; 2 servers of other topics are live.",
			[]delayq.Reason{{Code: delayq.ReasonNoServer, Server: "S", Host: "H", Since: after(b, 0), Others: 2}},
		}
	},
	"the only server has stopped": func(b *queuetest.Bubble) explained {
		require.NoError(b, b.Serve("t", block).Stop())
		idle(b)
		b.Enqueue("t", "x")
		return explained{
			"x", "Ready, but not running: no live server handles the topic; 1 server of other topics is live.",
			[]delayq.Reason{{Code: delayq.ReasonNoServer, Others: 1}},
		}
	},
	"all servers stop": func(b *queuetest.Bubble) explained {
		var servers []*queuetest.Running
		for i := range 2 {
			servers = append(servers, b.Serve("t", block, delayq.Drain(time.Minute), delayq.Concurrency(1)))
			b.Enqueue("t", fmt.Sprint("held", i))
			b.Pass(time.Second)
		}
		for _, s := range servers {
			s.End()
		}
		b.Pass(0)
		b.Enqueue("t", "x")
		return explained{
			"x", "Ready, but not running: all 2 servers of the topic are stopping and take no more jobs.",
			[]delayq.Reason{{Code: delayq.ReasonDraining, Servers: 2}},
		}
	},
	"the only server stops": func(b *queuetest.Bubble) explained {
		s := b.Serve("t", block, delayq.Drain(time.Minute))
		b.Enqueue("t", "held")
		b.Pass(time.Second)
		s.End()
		b.Pass(0)
		b.Enqueue("t", "x", delayq.ProcessIn(time.Minute))
		return explained{
			"x", "Scheduled: it is due at 2000-01-01 00:01:01.000 UTC, in 1m.",
			[]delayq.Reason{{Code: delayq.ReasonDueLater, Until: after(b, 61*time.Second)}, {Code: delayq.ReasonDraining, Servers: 1}},
		}
	},
	"no server promotes": func(b *queuetest.Bubble) explained {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", block)
		b.Enqueue("t", "before", delayq.ProcessIn(9*time.Second))
		b.Enqueue("t", "x", delayq.ProcessIn(10*time.Second))
		b.Pass(3 * time.Second)
		w.Stall(delayq.Scripts()["promote"])
		b.Pass(16 * time.Second)
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		age := servers[0].Topics["t"].Loops["promote"] + time.Since(servers[0].SeenAt)
		require.Positive(b, age)
		return explained{
			"x", "Due, but not ready: it was due at 2000-01-01 00:00:10.000 UTC, 9s ago, and no server has made it ready; " +
				"1 job is due before it; a server last tried to promote " + round(age).String() + " ago.",
			[]delayq.Reason{{Code: delayq.ReasonNotPromoted, Since: after(b, 10*time.Second), Ahead: 1, LoopAge: age}},
		}
	},
	"nobody promotes": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Second))
		b.Pass(time.Minute)
		return explained{
			"x", "Due, but not ready: no live server handles the topic.",
			[]delayq.Reason{{Code: delayq.ReasonNoServer}, {Code: delayq.ReasonNotPromoted, Since: after(b, time.Second)}},
		}
	},
	"all are busy": func(b *queuetest.Bubble) explained {
		b.Serve("t", block, delayq.Concurrency(2))
		b.Serve("t", block, delayq.Concurrency(1))
		b.Enqueue("t", "oldest")
		b.Pass(time.Minute)
		b.Enqueue("t", "old")
		b.Enqueue("t", "young")
		b.Pass(7 * time.Second)
		b.Enqueue("t", "x")
		return explained{
			"x", `Ready, but not running: 3 of 3 workers are busy, the longest of them for 1m5s with job "oldest" on server S of host H.`,
			[]delayq.Reason{{
				Code: delayq.ReasonAllBusy, Running: 3, Workers: 3, Servers: 2, Job: "oldest", For: 65 * time.Second, Server: "S", Host: "H",
			}},
		}
	},
	"behind": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { time.Sleep(300 * time.Millisecond); return nil }, delayq.Concurrency(1))
		jobs := make([]delayq.NewJob, 3000)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "t", ID: fmt.Sprint(i)}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		b.Enqueue("t", "x")
		b.Pass(65*time.Second + 50*time.Millisecond)
		return explained{
			"x", "Ready, but not running: 1 of 1 workers are busy, and 2,783 jobs are in front of it; at 3.3 jobs/s it starts in about 13m55s.",
			[]delayq.Reason{
				{Code: delayq.ReasonAllBusy, Running: 1, Workers: 1, Servers: 1, Job: "216", For: 200 * time.Millisecond, Server: "S", Host: "H"},
				{Code: delayq.ReasonBehind, Ahead: 2783, PerSecond: 200. / 60, Wait: 834900 * time.Millisecond},
			},
		}
	},
	"behind, and one server is new": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { time.Sleep(300 * time.Millisecond); return nil }, delayq.Concurrency(1))
		for i := range 100 {
			b.Enqueue("t", fmt.Sprint(i))
		}
		b.Enqueue("t", "x")
		b.Pass(6*time.Second + 50*time.Millisecond)
		b.Serve("t", block, delayq.Concurrency(1))
		b.Pass(0)
		return explained{
			"x", "Ready, but not running: 2 of 2 workers are busy, and 78 jobs are in front of it.",
			[]delayq.Reason{
				{Code: delayq.ReasonAllBusy, Running: 2, Workers: 2, Servers: 2, Job: "16", For: 200 * time.Millisecond, Server: "S", Host: "H"},
				{Code: delayq.ReasonBehind, Ahead: 78},
			},
		}
	},
	"behind jobs with the same key": func(b *queuetest.Bubble) explained {
		b.Serve("t", block, delayq.Concurrency(1))
		for _, id := range []string{"running", "first", "second", "x"} {
			b.Enqueue("t", id, delayq.Key("k"))
		}
		b.Enqueue("t", "of another", delayq.Key("another"))
		b.Pass(6 * time.Second)
		return explained{
			"x", "Ready, but not running: 1 of 1 workers are busy, and 2 jobs are in front of it with the same key, and 2 keys take turns; the servers take 0.2 jobs/s.",
			[]delayq.Reason{
				{Code: delayq.ReasonAllBusy, Running: 1, Workers: 1, Servers: 1, Job: "running", For: 5 * time.Second, Server: "S", Host: "H"},
				{Code: delayq.ReasonKeyBehind, Ahead: 2, Keys: 2, PerSecond: 0.2},
			},
		}
	},
	"its key is paused": func(b *queuetest.Bubble) explained {
		b.Serve("t", block)
		require.NoError(b, b.Client.PauseKey(b.Context(), "t", "k"))
		b.Enqueue("t", "x", delayq.Key("k"))
		b.Enqueue("t", "of another", delayq.Key("another"))
		b.Pass(time.Second)
		require.Equal(b, delayq.StateRunning, b.Get("t", "of another").State)
		return explained{"x", "Ready, but not running: its key is paused.", []delayq.Reason{{Code: delayq.ReasonKeyPaused}}}
	},
	"its key waits for a job that has failed": func(b *queuetest.Bubble) explained {
		require.NoError(b, b.Client.SetLimits(b.Context(), "t", delayq.Limits{Ordered: true}))
		b.Serve("t", func(context.Context, *delayq.Job) error { return delayq.RetryIn(time.Hour, queuetest.ErrTest) })
		b.Enqueue("t", "first", delayq.Key("k"))
		b.Pass(time.Second)
		b.Enqueue("t", "x", delayq.Key("k"))
		b.Pass(time.Second)
		return explained{
			"x", `Ready, but not running: job "first" of its key has failed and comes first; it is due at 2000-01-01 01:00:00.000 UTC, in 59m58s.`,
			[]delayq.Reason{{Code: delayq.ReasonKeyBlocked, Job: "first", Until: after(b, time.Hour)}},
		}
	},
	"its key waits for the handler of a cancelled job": func(b *queuetest.Bubble) explained {
		require.NoError(b, b.Client.SetLimits(b.Context(), "t", delayq.Limits{Ordered: true}))
		b.Serve("t", stay)
		b.Enqueue("t", "first", delayq.Key("k"))
		b.Pass(time.Second)
		b.Enqueue("t", "x", delayq.Key("k"))
		_, err := b.Client.Dequeue(b.Context(), "t", "first")
		require.NoError(b, err)
		b.Pass(time.Second)
		return explained{
			"x", "Ready, but not running: its key waits for the handler of a cancelled job, which may still run.",
			[]delayq.Reason{{Code: delayq.ReasonKeyLimit, Running: 1, Stragglers: 1, Limit: 1}},
		}
	},
	"the topic waits for the handler of a cancelled job": func(b *queuetest.Bubble) explained {
		require.NoError(b, b.Client.SetLimits(b.Context(), "t", delayq.Limits{Running: 2}))
		b.Serve("t", stay)
		b.Enqueue("t", "first")
		b.Enqueue("t", "second")
		b.Pass(time.Second)
		b.Enqueue("t", "x")
		_, err := b.Client.Dequeue(b.Context(), "t", "first")
		require.NoError(b, err)
		b.Pass(time.Second)
		return explained{
			"x", "Ready, but not running: 2 jobs are running, and the limit of the topic is 2; 1 of them is cancelled, and its handler may still run.",
			[]delayq.Reason{{Code: delayq.ReasonTopicLimit, Running: 2, Stragglers: 1, Limit: 2}},
		}
	},
	"its key is halted": func(b *queuetest.Bubble) explained {
		require.NoError(b, b.Client.SetLimits(b.Context(), "t", delayq.Limits{Ordered: true, OnDead: delayq.HaltKey}))
		b.Serve("t", refuse)
		b.Enqueue("t", "first", delayq.Key("k"), delayq.Retry(0))
		b.Pass(time.Second)
		b.Enqueue("t", "x", delayq.Key("k"))
		b.Pass(time.Second)
		return explained{
			"x", `Ready, but not running: job "first" of its key is dead and halts the key.`,
			[]delayq.Reason{{Code: delayq.ReasonKeyBlocked, Job: "first"}},
		}
	},
	"put off for a later release": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil })
		b.Enqueue("t", "x", delayq.ProcessIn(time.Second))
		raw := b.RDB.HGet(b.Context(), queuetest.PoolKey("t"), "x").Val()
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("t"), "x", raw[:8]+"\x07"+raw[9:]).Err())
		b.Pass(1500 * time.Millisecond)
		return explained{
			"x", "Scheduled: a later release of delayq has stored it (format version 7); servers of that release run it, and others put it off.",
			[]delayq.Reason{{Code: delayq.ReasonLaterRelease, Version: 7}, {Code: delayq.ReasonDueLater, Until: after(b, 2*time.Second)}},
		}
	},
	"its key is held": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { return delayq.HoldKey(time.Minute) })
		b.Enqueue("t", "first", delayq.Key("k"))
		b.Enqueue("t", "x", delayq.Key("k"))
		b.Pass(time.Second)
		return explained{
			"x", "Ready, but not running: its key is held until 2000-01-01 00:01:00.000 UTC, in 59s.",
			[]delayq.Reason{{Code: delayq.ReasonKeyHeld, Until: after(b, time.Minute)}, {Code: delayq.ReasonKeyBehind, Ahead: 1}},
		}
	},
	"behind a pause": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil })
		b.Pass(time.Second)
		b.Enqueue("t", "done")
		b.Pass(4 * time.Second)
		require.NoError(b, b.Client.Pause(b.Context(), "t", delayq.Pause{By: "ann"}))
		b.Enqueue("t", "front")
		b.Enqueue("t", "x")
		return explained{
			"x", `Ready, but not running: the topic is paused by "ann" since 2000-01-01 00:00:05.000 UTC until somebody resumes it.`,
			[]delayq.Reason{
				{Code: delayq.ReasonTopicPaused, By: "ann", Since: after(b, 5*time.Second)},
				{Code: delayq.ReasonBehind, Ahead: 1, PerSecond: 0.2},
			},
		}
	},
	"next": func(b *queuetest.Bubble) explained {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", block, delayq.Concurrency(7))
		b.Enqueue("t", "held")
		b.Pass(time.Second)
		w.Stall(delayq.Scripts()["take"])
		b.Enqueue("t", "x")
		b.Pass(time.Second)
		return explained{"x", "Ready: it is next, and 6 of 7 workers are free.", nil}
	},
	"running": func(b *queuetest.Bubble) explained {
		b.Enqueue("t", "x", delayq.Backoff(time.Minute, time.Minute))
		s := b.Serve("t", refuse)
		b.Pass(time.Second)
		require.NoError(b, s.Stop())
		require.NoError(b, b.Client.Reschedule(b.Context(), "t", "x", delayq.ProcessIn(time.Second)))
		b.Serve("t", block)
		b.Pass(8 * time.Second) // since 2 s
		return explained{
			"x", "Running: attempt 2 is running on server S of host H since 2000-01-01 00:00:02.000 UTC, for 7s; " +
				"its lease lasts until " + b.Get("t", "x").LeaseEnd.UTC().Format("2006-01-02 15:04:05.000 UTC") + " unless extended.",
			[]delayq.Reason{{
				Code: delayq.ReasonRunning, Attempt: 2, Since: after(b, 2*time.Second), Server: "S", Host: "H",
				Until: b.Get("t", "x").LeaseEnd.UTC(),
			}},
		}
	},
	"running, known from an old heartbeat": func(b *queuetest.Bubble) explained {
		end := make(chan struct{})
		b.Serve("t", func(ctx context.Context, job *delayq.Job) error {
			if job.Snoozes > 0 {
				return block(ctx, job)
			}
			<-end
			return delayq.Snooze(time.Second)
		})
		b.Enqueue("t", "x")
		b.Pass(6 * time.Second) // a heartbeat names this run
		close(end)
		b.Pass(2 * time.Second) // and not the next one
		lease := b.Get("t", "x").LeaseEnd.UTC()
		return explained{
			"x", "Running: attempt 1 is running; its lease lasts until " + lease.Format("2006-01-02 15:04:05.000 UTC") + " unless extended.",
			[]delayq.Reason{{Code: delayq.ReasonRunning, Attempt: 1, Until: lease}},
		}
	},
	"lease over": func(b *queuetest.Bubble) explained {
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", block, delayq.Lease(10*time.Second))
		b.Enqueue("t", "x")
		b.Pass(0)
		w.Cut()
		b.Pass(30 * time.Second)
		return explained{
			"x", "No longer running: the lease of attempt 1 ended at 2000-01-01 00:00:10.000 UTC, 20s ago, and no server has taken the job back.",
			[]delayq.Reason{
				{Code: delayq.ReasonLeaseOver, Attempt: 1, Since: after(b, 10*time.Second)},
				{Code: delayq.ReasonServerSilent, Servers: 1, Server: "S", Host: "H", Since: after(b, 0)},
			},
		}
	},
	"the handler of a cancelled job occupies the worker": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(ctx context.Context, _ *delayq.Job) error { <-ctx.Done(); time.Sleep(3 * time.Second); return nil }, delayq.Concurrency(1))
		b.Enqueue("t", "first")
		b.Pass(6 * time.Second)
		_, err := b.Client.Dequeue(b.Context(), "t", "first")
		require.NoError(b, err)
		b.Enqueue("t", "x")
		b.Pass(2 * time.Second)
		return explained{
			"x", `Ready, but not running: 1 of 1 workers are busy, the longest of them for 5s with job "first" on server S of host H.`,
			[]delayq.Reason{{Code: delayq.ReasonAllBusy, Running: 1, Workers: 1, Servers: 1, Job: "first", For: 5 * time.Second, Server: "S", Host: "H"}},
		}
	},
	"without a key, between keys": func(b *queuetest.Bubble) explained {
		b.Serve("t", block, delayq.Concurrency(1))
		b.Enqueue("t", "running")
		b.Pass(0)
		for i := range 6 {
			b.Enqueue("t", fmt.Sprint("of a key ", i), delayq.Key(fmt.Sprint(i%3)))
		}
		b.Enqueue("t", "x")
		b.Pass(6 * time.Second)
		return explained{
			"x", "Ready, but not running: 1 of 1 workers are busy, and 4 keys take turns, with the jobs without a key as one of them; " +
				"the servers take 0.2 jobs/s.",
			[]delayq.Reason{
				{Code: delayq.ReasonAllBusy, Running: 1, Workers: 1, Servers: 1, Job: "running", For: 5 * time.Second, Server: "S", Host: "H"},
				{Code: delayq.ReasonBehind, Keys: 4, PerSecond: 0.2},
			},
		}
	},
	"killed, a moment ago": func(b *queuetest.Bubble) explained {
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", block, delayq.Concurrency(4))
		b.Pass(time.Second)
		w.Cut()
		b.Enqueue("t", "x")
		b.Pass(2 * time.Second)
		return explained{
			"x", "Ready, but not running: it was due at 2000-01-01 00:00:01.000 UTC, 2s ago, nothing is in front of it now, and no server has taken it; " +
				"4 of 4 workers seemed free, and the newest heartbeat, of server S of host H, is 3s old.",
			[]delayq.Reason{{
				Code: delayq.ReasonNotTaken, Since: after(b, time.Second), Servers: 1, Workers: 4, Server: "S", Host: "H", LoopAge: 3 * time.Second,
			}},
		}
	},
	"killed": func(b *queuetest.Bubble) explained {
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", block, delayq.Concurrency(4))
		b.Pass(time.Second)
		w.Cut()
		b.Enqueue("t", "front")
		b.Enqueue("t", "x")
		b.Pass(24 * time.Second)
		return explained{
			"x", "Ready, but not running: the only server of the topic has sent no heartbeat lately, and may be dead; " +
				"server S of host H was last seen at 2000-01-01 00:00:00.000 UTC, 25s ago.",
			[]delayq.Reason{
				{Code: delayq.ReasonServerSilent, Servers: 1, Server: "S", Host: "H", Since: after(b, 0)},
				{Code: delayq.ReasonBehind, Ahead: 1},
			},
		}
	},
	"dead": func(b *queuetest.Bubble) explained {
		b.Serve("t", refuse)
		b.Enqueue("t", "x", delayq.Retry(0))
		b.Pass(10 * time.Minute)
		return explained{
			"x", `Dead: it was buried at 2000-01-01 00:00:00.000 UTC, 10m ago, after attempt 1 ("dial tcp: \"refused\""), and does not run unless revived.`,
			[]delayq.Reason{{
				Code: delayq.ReasonDead, Attempt: 1, Since: after(b, 0), Error: &delayq.AttemptError{Attempt: 1, Message: `dial tcp: "refused"`},
			}},
		}
	},
	"done": func(b *queuetest.Bubble) explained {
		b.Serve("t", func(context.Context, *delayq.Job) error { time.Sleep(1234 * time.Millisecond); return nil })
		b.Enqueue("t", "x", delayq.Retention(time.Hour))
		b.Pass(2 * time.Second)
		return explained{
			"x", "Done: attempt 1 completed it at 2000-01-01 00:00:01.234 UTC, 766ms ago; it is kept until 2000-01-01 01:00:01.234 UTC.",
			[]delayq.Reason{{Code: delayq.ReasonDone, Attempt: 1, Since: after(b, 1234*time.Millisecond), Until: after(b, time.Hour+1234*time.Millisecond)}},
		}
	},
}

// cancelled is what is known about a job that ann has cancelled, 90 s later.
func cancelled(b *queuetest.Bubble, when time.Duration) explained {
	at := after(b, when)
	return explained{
		"x", fmt.Sprintf(`Not found: "ann" cancelled it at %s, 1m30s ago.`, at.Format("2006-01-02 15:04:05.000 UTC")),
		[]delayq.Reason{
			{Code: delayq.ReasonCancelled, By: "ann", Since: at},
			{Code: delayq.ReasonNotFound, By: "ann", Action: "cancel", Since: at},
		},
	}
}

// Each situation has its verdict and its reasons, with their numbers.
func TestExplain(t *testing.T) {
	t.Parallel()
	for name, scene := range scenes {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) { requireExplained(b, scene(b)) })
		})
	}
}

// The last act about a job is known, also if it was one of a batch.
func TestExplainKnowsARescheduleOfABatch(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		_, err := b.Client.Dequeue(by(b), "t", "x")
		require.NoError(b, err)
		b.Pass(time.Minute)
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		b.Enqueue("other", "y", delayq.ProcessIn(time.Hour))
		_, err = b.Client.RescheduleBatch(by(b), []delayq.NewDue{
			{Topic: "t", ID: "x", Due: delayq.ProcessIn(0)}, {Topic: "other", ID: "y", Due: delayq.ProcessAt(time.Now())},
		})
		require.NoError(b, err)
		b.Serve("t", queuetest.Nothing)
		b.Pass(time.Second)
		e, err := b.Inspector.Explain(b.Context(), "t", "x")
		require.NoError(b, err)
		require.Equal(b, "reschedule", e.Reasons[0].Action)
	})
}

// Up to 10,000 entries in front of the job are counted, on both backends.
func TestExplainCountsWhatIsAhead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		enqueueMany(f, 10_001, "x")
		for id, want := range map[string]delayq.Reason{
			"x1":     {Code: delayq.ReasonBehind, Ahead: 1, Text: "1 job is in front of it."},
			"x9999":  {Code: delayq.ReasonBehind, Ahead: 9_999, Text: "9,999 jobs are in front of it."},
			"x10000": {Code: delayq.ReasonBehind, Ahead: 10_000, More: true, Text: "More than 10,000 jobs are in front of it."},
		} {
			e, err := f.Inspector.Explain(t.Context(), "topic", id)
			require.NoError(t, err)
			require.Len(t, e.Reasons, 2, id)
			require.Equal(t, delayq.ReasonNoServer, e.Reasons[0].Code)
			require.Equal(t, want, e.Reasons[1])
		}
		first, err := f.Inspector.Explain(t.Context(), "topic", "x0")
		require.NoError(t, err)
		require.Len(t, first.Reasons, 1)

		// A job between a server's wait and its take is in front of all.
		require.NoError(t, f.RDB.LMove(t.Context(), f.Key("ready"), f.Key("handoff"), "RIGHT", "LEFT").Err())
		for id, ahead := range map[string]int64{"x10000": 0, "x5": 6} {
			e, err := f.Inspector.Explain(t.Context(), "topic", id)
			require.NoError(t, err)
			if ahead == 0 {
				require.Len(t, e.Reasons, 1)
				continue
			}
			require.Equal(t, ahead, e.Reasons[1].Ahead)
		}
		// A job that is among the first 10,000 in neither list may be further back.
		require.NoError(t, f.RDB.LPush(t.Context(), f.Key("ready"), "another").Err())
		require.NoError(t, f.RDB.LRem(t.Context(), f.Key("ready"), 1, "x7").Err())
		e, err := f.Inspector.Explain(t.Context(), "topic", "x7")
		require.NoError(t, err)
		require.Equal(t, delayq.ReasonOrphan, e.Reasons[0].Code, "both lists have been searched to their ends")
	})
}

// The states of jobs on a real Redis.
func TestExplainOnRedis(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "ann")
		started := make(chan string)
		f.Enqueue("running")
		f.Enqueue("dead", delayq.Retry(0))
		f.Enqueue("done", delayq.Retention(time.Hour))
		f.Enqueue("failed", delayq.Backoff(time.Hour, time.Hour))
		f.Enqueue("snoozed")
		queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(ctx context.Context, job *delayq.Job) error {
			switch job.ID {
			case "dead", "failed":
				return errors.New("no")
			case "snoozed":
				return delayq.Snooze(time.Hour)
			case "done":
				return nil
			}
			started <- job.ID
			return block(ctx, job)
		})
		queuetest.Receive(t, started)
		queuetest.AwaitServer(t, f.Inspector)
		for id, state := range map[string]delayq.State{
			"dead": delayq.StateDead, "done": delayq.StateDone, "failed": delayq.StateScheduled, "snoozed": delayq.StateScheduled,
		} {
			queuetest.Until(t, func() bool { return queuetest.StateOf(t, f.Client, "topic", id) == state })
		}
		f.Enqueue("later", delayq.ProcessIn(time.Hour))
		f.Enqueue("cancelled", delayq.ProcessIn(time.Hour))
		_, err := f.Client.Dequeue(ctx, "topic", "cancelled")
		require.NoError(t, err)
		require.NoError(t, f.Client.Pause(ctx, "topic", delayq.Pause{By: "ann", Reason: "bank is down"}))
		f.Enqueue("paused")
		f.Enqueue("behind")
		for id, want := range map[string]struct {
			verdict string
			codes   []delayq.ReasonCode
		}{
			"none":      {"^Not found: no job has this ID", []delayq.ReasonCode{delayq.ReasonNotFound}},
			"cancelled": {`^Not found: "ann" cancelled it`, []delayq.ReasonCode{delayq.ReasonCancelled, delayq.ReasonNotFound}},
			"running":   {"^Running: attempt 1 ", []delayq.ReasonCode{delayq.ReasonRunning}},
			"dead":      {`^Dead: .*"no"`, []delayq.ReasonCode{delayq.ReasonDead}},
			"done":      {"^Done: attempt 1 ", []delayq.ReasonCode{delayq.ReasonDone}},
			"failed":    {`^Scheduled: attempt 1 failed .*"no"`, []delayq.ReasonCode{delayq.ReasonBackingOff, delayq.ReasonTopicPaused}},
			"snoozed":   {"^Scheduled: its handler has snoozed it, once, ", []delayq.ReasonCode{delayq.ReasonSnoozed, delayq.ReasonTopicPaused}},
			"later":     {`^Scheduled: it is due at .* in (1h|59m\d+s)`, []delayq.ReasonCode{delayq.ReasonDueLater, delayq.ReasonTopicPaused}},
			"paused":    {`^Ready, .*paused by "ann".*"bank is down"`, []delayq.ReasonCode{delayq.ReasonTopicPaused}},
			"behind":    {`^Ready, .*paused by "ann".*"bank is down"`, []delayq.ReasonCode{delayq.ReasonTopicPaused, delayq.ReasonBehind}},
		} {
			e, err := f.Inspector.Explain(t.Context(), "topic", id)
			require.NoError(t, err, id)
			require.Regexp(t, want.verdict, e.Verdict)
			var codes []delayq.ReasonCode
			for _, r := range e.Reasons {
				codes = append(codes, r.Code)
			}
			require.Equal(t, want.codes, codes, id)
			require.Equal(t, codes[len(codes)-1] == delayq.ReasonNotFound, e.Job == nil)
			require.WithinDuration(t, queuetest.ClockOf(t, f.RDB), e.At, time.Minute)
		}
	})
}

// What INFO tells of a Redis that refuses writes.
func TestExplainWhenRedisCannotWrite(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	why := func(f *queuetest.Fixture, id string) (codes []delayq.ReasonCode, refusal delayq.Reason) {
		t.Helper()
		e, err := f.Inspector.Explain(ctx, "topic", id)
		require.NoError(t, err)
		for _, r := range e.Reasons {
			codes = append(codes, r.Code)
			if r.Code == delayq.ReasonRedisCannotWrite {
				require.Zero(t, refusal.Code, "one reason")
				refusal = r
			}
		}
		return codes, refusal
	}
	cannot, nobody := delayq.ReasonRedisCannotWrite, delayq.ReasonNoServer

	// It is full.
	full := redistest.Start(t, append(redistest.NoRoles, "--save", "")...)
	f := queuetest.NewFixture(t, full.Client(t))
	f.Enqueue("x")
	f.Enqueue("later", delayq.ProcessIn(time.Hour))
	codes, _ := why(f, "x")
	require.Equal(t, []delayq.ReasonCode{nobody}, codes)
	require.NoError(t, f.RDB.ConfigSet(ctx, "maxmemory", "100kb").Err())
	codes, r := why(f, "x")
	require.Equal(t, []delayq.ReasonCode{cannot, nobody}, codes)
	require.Equal(t, "OOM", r.Refusal)
	require.EqualValues(t, 100<<10, r.Limit)
	require.Greater(t, r.Used, r.Limit)
	require.Regexp(t, `^Redis is full \([\d,]+ of 102,400 bytes\) and refuses new jobs and the heartbeats of servers\.$`, r.Text)
	codes, _ = why(f, "none")
	require.Equal(t, []delayq.ReasonCode{delayq.ReasonNotFound, cannot}, codes)
	codes, _ = why(f, "later")
	require.Equal(t, []delayq.ReasonCode{delayq.ReasonDueLater, nobody}, codes)
	require.NoError(t, f.RDB.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	codes, _ = why(f, "later")
	require.Equal(t, []delayq.ReasonCode{delayq.ReasonNotFound}, codes, "it is evicted, and Redis takes writes")

	// Too few replicas follow.
	alone := redistest.Start(t, append(redistest.NoRoles, "--save", "")...)
	f = queuetest.NewFixture(t, alone.Client(t))
	f.Enqueue("x")
	require.NoError(t, f.RDB.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
	_, r = why(f, "x")
	require.Equal(t, "NOREPLICAS", r.Refusal)
	require.Equal(t, "Too few replicas follow this Redis, so it refuses writes.", r.Text)
	_, err := f.Client.Enqueue(ctx, "topic", "y", nil)
	require.ErrorContains(t, err, "NOREPLICAS")

	// It cannot save its data.
	unsaved := redistest.Start(t, append(redistest.NoRoles, "--save", "3600 1", "--dbfilename", "full.rdb")...)
	f = queuetest.NewFixture(t, unsaved.Client(t))
	f.Enqueue("x")
	require.NoError(t, os.Mkdir(filepath.Join(unsaved.Dir(), "full.rdb"), 0o700)) // in the way of the snapshot
	require.Error(t, f.RDB.Save(ctx).Err())
	_ = f.RDB.BgSave(ctx)
	queuetest.Until(t, func() bool {
		_, r = why(f, "x")
		return r.Refusal == "MISCONF"
	})
	require.Equal(t, "Redis could not save its data to disk, and refuses writes unless it is configured not to.", r.Text)
	_, err = f.Client.Enqueue(ctx, "topic", "y", nil)
	require.ErrorContains(t, err, "MISCONF")
}

// What Redis refuses to tell a user is left out.
func TestExplainWithoutRights(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rs := redistest.Start(t, append(redistest.NoRoles, "--save", "")...)
	f := queuetest.NewFixture(t, rs.Client(t))
	f.Enqueue("x")
	f.Enqueue("cancelled")
	_, err := f.Client.Dequeue(delayq.WithActor(ctx, "ann"), "topic", "cancelled")
	require.NoError(t, err)
	require.NoError(t, f.RDB.ConfigSet(ctx, "maxmemory", "100kb").Err())
	for without, want := range map[string][]delayq.ReasonCode{
		"":       {delayq.ReasonCancelled, delayq.ReasonNotFound, delayq.ReasonRedisCannotWrite},
		"-info":  {delayq.ReasonCancelled, delayq.ReasonNotFound},
		"-audit": {delayq.ReasonNotFound, delayq.ReasonRedisCannotWrite},
	} {
		words := []any{"ACL", "SETUSER", "viewer", "reset", "on", "nopass", "+@all", "~" + f.Prefix + ":{*}:*", "~" + f.Prefix + ":servers"}
		if without != "-audit" {
			words = append(words, "~"+f.Prefix+":audit")
		}
		if without == "-info" {
			words = append(words, without)
		}
		require.NoError(t, f.RDB.Do(ctx, words...).Err())
		opt := rs.Options()
		opt.Username, opt.Password = "viewer", "any"
		rdb := redis.NewClient(opt)
		e, err := delayq.NewInspector(rdb, delayq.Prefix(f.Prefix)).Explain(ctx, "topic", "cancelled")
		require.NoError(t, rdb.Close())
		require.NoError(t, err)
		var codes []delayq.ReasonCode
		for _, r := range e.Reasons {
			codes = append(codes, r.Code)
		}
		require.Equal(t, want, codes, "without %q", without)
	}
	// The audit is of a wrong type: that is an error, and names the key.
	require.NoError(t, f.RDB.ConfigSet(ctx, "maxmemory", "0").Err())
	require.NoError(t, f.RDB.Set(ctx, f.Prefix+":audit", "a slip", 0).Err())
	_, err = f.Inspector.Explain(ctx, "topic", "none")
	require.ErrorContains(t, err, `explain topic "topic" job "none": audit of `)
	require.ErrorContains(t, err, "is a string and not a list")
}

// A replica gives the same reasons, as long as a server writes to its master.
func TestExplainOnAReplica(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	master := redistest.Start(t, redistest.NoRoles...)
	f := queuetest.NewFixture(t, master.Client(t))
	started := make(chan struct{})
	queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(ctx context.Context, job *delayq.Job) error {
		close(started)
		return block(ctx, job)
	}, delayq.Concurrency(1))
	f.Enqueue("held")
	queuetest.Receive(t, started)
	queuetest.AwaitServer(t, f.Inspector)
	f.Enqueue("x")
	replica := redistest.Replica(t, master, redistest.NoRoles...)
	require.NoError(t, f.RDB.Do(ctx, "WAIT", 1, 60_000).Err())
	rdb := replica.Client(t)
	e, err := delayq.NewInspector(rdb, delayq.Prefix(f.Prefix)).Explain(ctx, "topic", "x")
	require.NoError(t, err)
	require.Len(t, e.Reasons, 1)
	require.Equal(t, delayq.ReasonAllBusy, e.Reasons[0].Code)

	// Nobody writes: perhaps the servers are connected to it.
	require.NoError(t, rdb.Do(ctx, "REPLICAOF", "127.0.0.1", "1").Err())
	require.NoError(t, rdb.ConfigSet(ctx, "replica-read-only", "no").Err())
	require.NoError(t, rdb.Del(ctx, f.Prefix+":servers").Err())
	require.NoError(t, rdb.ConfigSet(ctx, "replica-read-only", "yes").Err())
	e, err = delayq.NewInspector(rdb, delayq.Prefix(f.Prefix)).Explain(ctx, "topic", "x")
	require.NoError(t, err)
	require.Len(t, e.Reasons, 2)
	require.Equal(t, "READONLY", e.Reasons[0].Refusal)
	require.Equal(t, "Ready, but not running: this Redis is a replica, which refuses writes, and no server is live.", e.Verdict)
	require.Equal(t, delayq.ReasonNoServer, e.Reasons[1].Code)
}

// Explain refuses what no job can have, before it asks Redis.
func TestExplainRefuses(t *testing.T) {
	t.Parallel()
	var calls queuetest.CountScripts
	rdb := redistest.Shared(t)
	insp := delayq.NewInspector(rdb, delayq.Hooks(&calls))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		insp      *delayq.Inspector
		ctx       context.Context
		topic, id string
		want      string
	}{
		{insp, t.Context(), "", "x", "empty topic"},
		{insp, t.Context(), "a{b", "x", `topic "a{b"`},
		{insp, t.Context(), strings.Repeat("t", 256), "x", "topic of 256 bytes, at most 255 are allowed"},
		{insp, t.Context(), "t", strings.Repeat("x", 1025), "ID of 1025 bytes, at most 1024 are allowed"},
		{insp, nil, "t", "x", "nil context"},
		{nil, t.Context(), "t", "x", "nil Inspector"},
		{&delayq.Inspector{}, t.Context(), "t", "x", "zero Inspector"},
		{delayq.NewInspector(nil), t.Context(), "t", "x", "nil"},
	} {
		e, err := c.insp.Explain(c.ctx, c.topic, c.id)
		require.Nil(t, e)
		require.ErrorIs(t, err, delayq.ErrInvalid, c.want)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "explain")
	}
	require.Empty(t, calls)
	_, err := insp.Explain(done, "t", "x")
	require.ErrorIs(t, err, context.Canceled)
}

// A job whose topic has idle workers waits nevertheless while another topic uses the whole pool.
func TestExplainPoolBusy(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		release := make(chan struct{})
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("long", func(context.Context, *delayq.Job) error { <-release; return nil })
			s.HandlerFunc("short", queuetest.Nothing)
		}, delayq.Pool("p", 2), delayq.InPool("p"))
		b.Pass(time.Second)
		b.Enqueue("long", "a")
		b.Enqueue("long", "b")
		b.Pass(10 * time.Second)
		b.Enqueue("short", "c")
		b.Pass(time.Second)
		e, err := b.Inspector.Explain(b.Context(), "short", "c")
		require.NoError(b, err)
		require.Len(b, e.Reasons, 1)
		require.Equal(b, delayq.ReasonPoolBusy, e.Reasons[0].Code)
		require.Equal(b, []int{2, 2, 1}, []int{e.Reasons[0].Running, e.Reasons[0].Workers, e.Reasons[0].Servers})
		require.Contains(b, e.Verdict, "all 2 workers of the topic's pool are busy")
		close(release)
		b.Pass(time.Second)
		require.EqualValues(b, 0, b.Stats("short").Ready)
	})
}
