package cli

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// after calls a function once, after the first reply to the command line that has a text.
func (w *world) after(text string, call func()) {
	var once sync.Once
	has := func(cmd redis.Cmder) bool {
		c, ok := cmd.(*redis.Cmd)
		return ok && strings.Contains(fmt.Sprintf("%s", c.Val()), text)
	}
	w.dialer = func(*connection) (redis.UniversalClient, error) {
		rdb := w.Redis.Client()
		rdb.AddHook(&interruption{has, func() { once.Do(call) }})
		return rdb, nil
	}
}

// --by acts on jobs as they were read: a job that is edited or replaced before its turn comes keeps
// what it has got.
func TestRescheduleByComparesJobs(t *testing.T) {
	for name, args := range map[string][]string{
		"named":      {"reschedule", "t", "edited", "replaced", "started", "same", "--by", "1h"},
		"all":        {"reschedule", "t", "--all", "--by", "1h", "--yes"},
		"all topics": {"reschedule", "--all-topics", "--state", "scheduled", "--all", "--by", "1h", "--yes"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				ctx := context.Background()
				for _, id := range []string{"edited", "replaced", "started", "same"} {
					_, err := w.Client.Enqueue(w.Context(), "t", id, []byte("a payload"), delayq.ProcessIn(time.Hour))
					require.NoError(w, err)
				}
				was := w.Get("t", "same").Due
				w.after("a payload", func() {
					require.NoError(w, w.Client.Reschedule(ctx, "t", "edited", delayq.ProcessIn(30*time.Hour)))
					_, err := w.Client.Enqueue(ctx, "t", "replaced", nil, delayq.ProcessIn(40*time.Hour), delayq.Replace())
					require.NoError(w, err)
					require.NoError(w, w.Client.Reschedule(ctx, "t", "started", delayq.ProcessIn(0)))
				})
				r := w.do(args...)
				now := time.Now() // of the bubble
				require.WithinDuration(w, now.Add(30*time.Hour), w.Get("t", "edited").Due, time.Second)
				require.WithinDuration(w, now.Add(40*time.Hour), w.Get("t", "replaced").Due, time.Second)
				require.WithinDuration(w, now, w.Get("t", "started").Due, time.Second)
				require.Equal(w, was.Add(time.Hour), w.Get("t", "same").Due)
				if name == "named" {
					require.Equal(w, exitPartly, r.code, r.err)
					require.Equal(w, 2, strings.Count(r.out, "the job was scheduled, has changed meanwhile and is scheduled"), r.out)
					require.Equal(w, 1, strings.Count(r.out, "the job was scheduled, has changed meanwhile and is ready"), r.out)
				} else {
					require.Zero(w, r.code, r.err)
					require.Contains(w, r.out+r.err, "3 skipped because they had moved on")
				}
			})
		})
	}
}

// The audit has one entry about the jobs that --by has moved together, with their due times as they
// were, and one about each that was named.
func TestAuditOfRescheduleBy(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, id := range []string{"a", "b"} {
			w.Enqueue("t", id, delayq.ProcessIn(time.Hour))
		}
		due := exactTime(w.Get("t", "a").Due)
		w.ok("reschedule", "t", "--all", "--by", "-30m", "--yes")
		list, err := w.Inspector.Audit(w.Context(), 1)
		require.NoError(w, err)
		e := list[0]
		require.Equal(w, "alice reschedule t ", e.Actor+" "+e.Action+" "+e.Topic+" "+e.ID)
		require.EqualValues(w, 2, e.Count)
		require.Equal(w, `by -30m0s, "a" was due `+due+`, "b" was due `+due, e.Filter)
		w.ok("reschedule", "t", "b", "a", "--by", "30m")
		list, err = w.Inspector.Audit(w.Context(), 3)
		require.NoError(w, err)
		require.ElementsMatch(w, []string{"a", "b", ""}, []string{list[0].ID, list[1].ID, list[2].ID})
		require.Equal(w, e, list[2])
		require.Contains(w, list[0].Was, "scheduled, due ")
	})
}

// A list does not read the due times of large ready jobs. They are moved like all others.
func TestRescheduleByOfLargeJobs(t *testing.T) {
	inWorld(t, func(w *world) {
		_, err := w.Client.Enqueue(w.Context(), "t", "large", make([]byte, 20_000))
		require.NoError(w, err)
		w.Enqueue("t", "small")
		was := map[string]time.Time{"large": w.Get("t", "large").Due, "small": w.Get("t", "small").Due}
		require.Contains(w, w.ok("reschedule", "t", "--state", "ready", "--all", "--by", "24h", "--yes"), "2 jobs rescheduled")
		for id, due := range was {
			require.Equal(w, due.Add(24*time.Hour), w.Get("t", id).Due, id)
		}
	})
}

// A job whose due time nobody can read is left alone.
func TestRescheduleByOfUnreadableJobs(t *testing.T) {
	for name, args := range map[string][]string{"named": {"bad", "good"}, "all": {"--state", "ready", "--all", "--yes"}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.Enqueue("t", "bad")
				w.Enqueue("t", "good")
				due := w.Get("t", "good").Due
				pool := w.env["DELAYQ_PREFIX"] + ":{t}:pool"
				raw, err := w.Redis.Client().HGet(w.Context(), pool, "bad").Result()
				require.NoError(w, err)
				require.NoError(w, w.Redis.Client().HSet(w.Context(), pool, "bad", raw[:9]+"\xff").Err())
				r := w.do(append([]string{"reschedule", "t", "--by", "24h"}, args...)...)
				require.Equal(w, exitPartly, r.code, r.err)
				require.Contains(w, r.out+r.err, "its due time cannot be read")
				require.Equal(w, delayq.StateReady, w.State("t", "bad"))
				require.Equal(w, due.Add(24*time.Hour), w.Get("t", "good").Due)
			})
		})
	}
}

// A job that is named twice is moved once, however many jobs are between.
func TestRescheduleByMovesAJobOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.Enqueue("t", "a", delayq.ProcessIn(time.Hour))
		w.Enqueue("t", "b", delayq.ProcessIn(time.Hour))
		was := w.Get("t", "a").Due
		require.Equal(w, "a\nb\n", w.ok("reschedule", "t", "a", "b", "a", "--by", "1h", "-o", "id"))
		require.Equal(w, was.Add(time.Hour), w.Get("t", "a").Due)
		w.stdin = "a\n" + strings.Repeat("none\n", chunk) + "a\n"
		r := w.do("reschedule", "t", "-", "--by", "1h", "--yes", "-o", "id")
		require.Equal(w, "a\n", r.out, r.err)
		require.Equal(w, was.Add(2*time.Hour), w.Get("t", "a").Due)
		w.stdin = "a\na\nb\n"
		require.Equal(w, exitUsage, w.do("reschedule", "t", "-", "--by", "1h", "--yes", "--at-most", "2").code, "no ID is left out silently")
		require.Equal(w, was.Add(2*time.Hour), w.Get("t", "a").Due)
	})
}

// moved returns how often each job of the topic t was moved by a minute.
func (w *world) moved(was map[string]time.Time) map[string]int {
	times := map[string]int{}
	for _, job := range allDue(w, "t") {
		times[job.ID] = int(job.Due.Sub(was[job.ID]) / time.Minute)
	}
	return times
}

// onward returns the flag that a command which has ended early says to go on with.
func onward(w *world, errs string) string {
	found := regexp.MustCompile(`(?m)^t: jobs are left; to go on without moving a job twice: --(?:until|since) (\S+)$`).FindStringSubmatch(errs)
	require.NotEmpty(w, found, errs)
	return found[1]
}

// four stores four jobs in the topic t, and returns when they are due. A minute is less than lies
// between them.
func (w *world) four() map[string]time.Time {
	was := map[string]time.Time{}
	for i, id := range []string{"d", "c", "b", "a"} {
		w.Enqueue("t", id, delayq.ProcessIn(time.Hour+time.Duration(i)*time.Second))
		was[id] = w.Get("t", id).Due
	}
	return was
}

// If Redis does not answer, nothing else is tried, the jobs of the step are named, and a second run
// with the flag that is named moves only the others.
func TestRescheduleByWithoutAnswer(t *testing.T) {
	for name, selected := range map[string][]string{
		"topic": {"t", "--all"}, "all topics": {"--all-topics", "--state", "scheduled", "--since", "+59m", "--until", "+61m"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				was := w.four()
				w.Enqueue("u", "z", delayq.ProcessIn(time.Hour))
				due := w.Get("u", "z").Due
				w.dialer = func(*connection) (redis.UniversalClient, error) {
					rdb := w.Redis.Client()
					rdb.AddHook(&lostAnswer{isScript("reschedule")})
					return rdb, nil
				}
				r := w.do(append([]string{"reschedule", "--by", "1m", "--yes", "--pace", "2"}, selected...)...)
				require.Equal(w, exitUnreachable, r.code, r.out+r.err)
				require.Contains(w, r.err, "error: Redis is not reachable: ")
				require.Regexp(w, `(?m)^t: moved or not: [ab]( [ab])?$`, r.err)
				require.Equal(w, due, w.Get("u", "z").Due)
				first := w.moved(was)
				require.Zero(w, first["c"]+first["d"])
				w.dialer = nil
				require.Contains(w, w.ok("reschedule", "t", "--by", "1m", "--yes", "--until", onward(w, r.err)), "2 jobs rescheduled")
				first["c"], first["d"] = 1, 1
				require.Equal(w, first, w.moved(was))
			})
		})
	}
}

// An interrupt says how to go on, also while --pace waits.
func TestInterruptedRescheduleBySaysHowToGoOn(t *testing.T) {
	for script, done := range map[string]int{"audit": 2, "page": 0} {
		t.Run(script, func(t *testing.T) {
			inWorld(t, func(w *world) {
				was := w.four()
				ctx, cancel := context.WithCancel(w.ctx)
				defer cancel()
				var out, errs bytes.Buffer
				p := w.process([]string{"reschedule", "t", "--all", "--by", "1m", "--yes", "--pace", "2"}, &out, &errs)
				p.dial = func(c *connection) (redis.UniversalClient, error) {
					rdb, err := w.dial(c)
					rdb.AddHook(&interruption{isScript(script), cancel})
					return rdb, err
				}
				require.Equal(w, exitInterrupted, run(ctx, p))
				require.Equal(w, fmt.Sprintf("%d jobs rescheduled\n", done), out.String())
				require.Contains(w, errs.String(), "\ninterrupted\n")
				require.NotRegexp(w, "moved or not|not moved", errs.String())
				w.ok("reschedule", "t", "--by", "1m", "--yes", "--until", onward(w, errs.String()))
				require.Equal(w, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}, w.moved(was))
			})
		})
	}
}

// A job that would expire by its new due time fails alone.
func TestRescheduleByOfJobsThatWouldExpire(t *testing.T) {
	inWorld(t, func(w *world) {
		was := w.four()
		w.Enqueue("t", "expires", delayq.ProcessIn(2*time.Hour), delayq.ExpireIn(2*time.Hour+time.Second))
		due := w.Get("t", "expires").Due
		r := w.do("reschedule", "t", "--all", "--by", "1m", "--yes", "--pace", "2")
		require.Equal(w, exitPartly, r.code, r.err)
		require.Equal(w, "4 jobs rescheduled, 1 failed\n", r.out)
		require.Contains(w, r.err, `error: 1 of 5 jobs failed: reschedule topic "t" job "expires": invalid: expires at `)
		require.NotContains(w, r.err, "jobs are left")
		require.Equal(w, due, w.Get("t", "expires").Due)
		was["expires"] = due
		require.Equal(w, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "expires": 0}, w.moved(was))
		r = w.do("reschedule", "--all-topics", "--id-prefix", "exp", "--by", "1m", "--yes")
		require.Equal(w, exitPartly, r.code)
		require.Contains(w, r.err, `scheduled jobs of t: 1 of 1 job failed: reschedule topic "t" job "expires"`)
	})
}

// A bound that is met after jobs of another topic were moved is no mistake without a consequence.
func TestRescheduleByOfAllTopicsIsDoneInPart(t *testing.T) {
	inWorld(t, func(w *world) {
		jobs := make([]delayq.NewJob, defaultAtMost)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "z", ID: fmt.Sprint("p", i), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
		}
		_, err := w.Client.EnqueueBatch(w.Context(), jobs)
		require.NoError(w, err)
		w.Enqueue("a", "p", delayq.ProcessIn(time.Hour))
		r := w.do("reschedule", "--all-topics", "--id-prefix", "p", "--by", "1h", "--yes")
		require.Equal(w, exitPartly, r.code, r.err)
		require.Contains(w, r.err, "1 job rescheduled")
		require.Contains(w, r.err, "give --at-most")
	})
}

// A job that --by has made ready is not met again among the ready ones.
func TestRescheduleByOfAllStatesMovesAJobOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.Enqueue("t", "p-1", delayq.ProcessIn(time.Hour))
		w.Enqueue("t", "p-2")
		r := w.do("reschedule", "--all-topics", "--id-prefix", "p-", "--by", "-2h", "--yes")
		require.Zero(w, r.code, r.err)
		require.Equal(w, "2 jobs rescheduled\n", r.err)
		require.Regexp(w, `(?m)^t +ready +1 +0 +0$`, r.out)
		require.Equal(w, delayq.StateReady, w.State("t", "p-1"))
	})
}
