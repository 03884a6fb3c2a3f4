package cli

import (
	"context"
	"fmt"
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
