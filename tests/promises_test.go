package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// The promises of docs/reliability.md, each with a test of its name; TestNothingIsSilent is in
// trouble_test.go.

// TestAtLeastOnce lets a server die at every call it makes: before Redis has got the call, and
// after Redis has carried it out but before the answer is there. Another server is up all the time.
func TestAtLeastOnce(t *testing.T) {
	for _, name := range []string{"promote", "take", "extend", "ack", "retry", "snooze", "bury", "give_back"} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/before=%v", name, before), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) { dieAt(b, name, before) })
			})
		}
	}
}

func dieAt(b *queuetest.Bubble, name string, before bool) {
	b.LoadScripts()
	var mu sync.Mutex
	succeeded := make(map[string]int)
	snoozed := make(map[string]bool)
	first := func(id string) bool {
		mu.Lock()
		defer mu.Unlock()
		was := snoozed[id]
		snoozed[id] = true
		return !was
	}
	handler := func(w *queuetest.Wire) delayq.HandlerFunc {
		return func(ctx context.Context, job *delayq.Job) error {
			kind, _, _ := strings.Cut(job.ID, "-")
			switch {
			case kind == "fail" && job.Attempt == 1:
				return errors.New("not yet")
			case kind == "snooze" && first(job.ID):
				return delayq.Snooze(time.Second)
			case kind == "bury":
				return delayq.Permanent(errors.New("never"))
			case kind == "long":
				select {
				case <-time.After(5 * time.Second):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if w == nil || w.Alive() {
				mu.Lock()
				succeeded[job.ID]++
				mu.Unlock()
			}
			return nil
		}
	}
	opts := []delayq.ServerOption{delayq.Concurrency(2), delayq.Lease(3 * time.Second), delayq.Drain(0)}
	w := queuetest.NewWire(b.Redis)
	victim := b.ServeOn(w, "work", handler(w), opts...)
	w.Die(queuetest.Digest(name), before)

	var ids []string
	for i := range 4 {
		for _, kind := range []string{"plain", "fail", "snooze", "bury", "long"} {
			id := fmt.Sprintf("%s-%d", kind, i)
			b.Enqueue("work", id, delayq.Backoff(time.Second, 2*time.Second), delayq.ProcessIn(time.Duration(i)*700*time.Millisecond))
			ids = append(ids, id)
		}
	}
	b.Pass(50 * time.Millisecond)
	b.Serve("work", handler(nil), opts...)
	b.Pass(time.Second)
	require.NoError(b, victim.Stop()) // by now it is cut off, except if it is to die over return
	require.False(b, w.Alive(), "the server did not die")
	b.Pass(40 * time.Second)

	acked, dead := 0, 0
	for _, id := range ids {
		switch state := b.State("work", id); {
		case strings.HasPrefix(id, "bury"):
			require.Equal(b, delayq.StateDead, state, id)
			dead++
		default:
			require.Empty(b, state, id)
			require.NotZero(b, succeeded[id], id)
			acked++
		}
	}
	info := b.Stats("work")
	require.EqualValues(b, acked, info.Counters["acked"])
	require.EqualValues(b, dead, info.Counters["buried"])
	require.Zero(b, info.Scheduled+info.Ready+info.Running)
}

// TestNeverEarlyHardlyLate starts jobs that are due at odd times, on a fake clock, where lateness
// is what the design costs and not the machine, and on a real Redis, whose own clock is asked. (F1)
func TestNeverEarlyHardlyLate(t *testing.T) {
	t.Run("fake clock", func(t *testing.T) {
		queuetest.InBubble(t, func(b *queuetest.Bubble) {
			b.Pass(123456 * time.Nanosecond) // not on a whole millisecond
			var rec queuetest.Recorder
			b.Serve("a", rec.Then(nil))
			want := make(map[string]time.Time)
			for i := range 1000 {
				id := fmt.Sprint(i)
				in := time.Millisecond + rand.N(5*time.Second)
				want[id] = time.Now().Add(in)
				if i%2 == 0 {
					b.Enqueue("a", id, delayq.ProcessIn(in))
				} else {
					b.Enqueue("a", id, delayq.ProcessAt(want[id]))
				}
			}
			b.Pass(6 * time.Second)
			starts := rec.All()
			require.Len(b, starts, 1000)
			for _, s := range starts {
				late := s.At.Sub(want[s.ID])
				// ProcessIn counts from the millisecond in which Redis stores the job.
				require.Greater(b, late, -time.Millisecond, s.ID)
				require.Less(b, late, 2*time.Millisecond, s.ID)
				require.False(b, s.At.Before(s.Due), "job %s, due %v, was started at %v", s.ID, s.Due, s.At)
			}
		})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		var mu sync.Mutex
		early := make(map[string]time.Duration)
		started := make(chan string, 100)
		queuetest.Serve(t, rdb, prefix, "a", func(ctx context.Context, job *delayq.Job) error {
			now, err := rdb.Time(ctx).Result()
			if err != nil {
				return err
			}
			if before := job.Due.Sub(now); before > 0 || job.Lateness() < 0 {
				mu.Lock()
				early[job.ID] = before
				mu.Unlock()
			}
			started <- job.ID
			return nil
		})
		for i := range 100 {
			in := time.Millisecond + rand.N(700*time.Millisecond)
			_, err := client.Enqueue(t.Context(), "a", fmt.Sprint(i), nil, delayq.ProcessIn(in))
			require.NoError(t, err)
		}
		for range 100 {
			queuetest.Receive(t, started)
		}
		mu.Lock()
		defer mu.Unlock()
		require.Empty(t, early)
	})
}

// TestOneOwnerAtATime cuts a server off from Redis while it runs a job. It must learn that the
// lease is lost, another server runs the job then and not before, and what the first one says when
// it is back is refused. (C3)
func TestOneOwnerAtATime(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease = 6 * time.Second
		w := queuetest.NewWire(b.Redis)
		var hooks queuetest.HookLog
		lost := make(chan error, 1)
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			lost <- context.Cause(ctx)
			time.Sleep(20 * time.Second) // as one that does not look at its context
			return errors.New("no matter what")
		}, delayq.Lease(lease), delayq.Hooks(&hooks))
		b.Enqueue("a", "1")
		synctest.Wait()
		cutAt := b.At()
		w.Cut()

		var rec queuetest.Recorder
		finish := make(chan struct{})
		b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error { <-finish; return nil }), delayq.Lease(lease))
		b.Pass(lease - time.Millisecond)
		require.Empty(b, rec.All(), "two owners at a time")
		b.Pass(time.Millisecond)
		require.Len(b, rec.All(), 1)
		require.Equal(b, cutAt+lease, rec.All()[0].At.Sub(b.Began))
		require.Equal(b, 2, rec.All()[0].Attempt)

		b.Pass(lease) // the first one has noticed by now
		require.ErrorIs(b, <-lost, delayq.ErrLeaseLost)
		w.Mend()
		b.Pass(time.Minute)
		require.Equal(b, delayq.StateRunning, b.State("a", "1"), "the one that lost the lease has settled the job")
		require.Len(b, hooks.Of("LeaseLost", "1"), 1)
		require.Empty(b, hooks.Of("Retried"))
		close(finish)
		synctest.Wait()
		require.Empty(b, b.State("a", "1"))
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "retried"))
		require.Len(b, rec.All(), 1)
	})
}

// TestCancelMeansCancelled cancels jobs in every state, and in a race with their start. A job that
// Dequeue found waiting never runs, also if its ID is enqueued again. (D1, D7)
func TestCancelMeansCancelled(t *testing.T) {
	t.Run("every state", func(t *testing.T) {
		queuetest.InBubble(t, func(b *queuetest.Bubble) {
			var rec queuetest.Recorder
			b.Serve("a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
				switch {
				case string(job.Payload) == "new":
					return nil
				case job.ID == "running":
					<-ctx.Done()
					return nil
				case job.ID == "dead":
					return delayq.Permanent(errors.New("no"))
				case job.ID == "snoozed":
					return delayq.Snooze(time.Minute)
				}
				return errors.New("again")
			}))
			ready := delayq.StateReady
			states := map[string]delayq.State{
				"scheduled": delayq.StateScheduled, "failed": delayq.StateScheduled, "snoozed": delayq.StateScheduled,
				"running": delayq.StateRunning, "dead": delayq.StateDead, "ready": ready, "rescheduled": ready,
			}
			b.Enqueue("a", "scheduled", delayq.ProcessIn(time.Minute))
			for _, id := range []string{"failed", "snoozed", "running", "dead"} {
				b.Enqueue("a", id, delayq.Backoff(time.Minute, time.Minute))
			}
			synctest.Wait()
			require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{}))
			b.Enqueue("a", "ready")
			b.Enqueue("a", "rescheduled", delayq.ProcessIn(time.Minute))
			require.NoError(b, b.Client.Reschedule(b.Context(), "a", "rescheduled", delayq.ProcessIn(0)))
			b.Pass(time.Second)

			before := len(rec.All())
			for id, want := range states {
				state, err := b.Client.Dequeue(b.Context(), "a", id)
				require.NoError(b, err, id)
				require.Equal(b, want, state, id)
				_, err = b.Client.Dequeue(b.Context(), "a", id)
				require.ErrorIs(b, err, delayq.ErrNotFound, id)
				_, err = b.Client.Enqueue(b.Context(), "a", id, []byte("new"), delayq.ProcessIn(10*time.Minute))
				require.NoError(b, err, id)
			}
			again := b.At() + 10*time.Minute
			require.NoError(b, b.Client.Resume(b.Context(), "a", ""))
			b.Pass(10*time.Minute - time.Millisecond)
			require.Len(b, rec.All(), before, "a cancelled job has run, or a new one early")
			b.Pass(time.Millisecond)
			require.Len(b, rec.All(), before+len(states))
			for _, s := range rec.All()[before:] {
				require.Equal(b, "new", s.Payload, s.ID)
				require.Equal(b, 1, s.Attempt, s.ID)
				require.Equal(b, again, s.At.Sub(b.Began), s.ID)
			}
		})
	})
	t.Run("race", func(t *testing.T) {
		t.Parallel()
		rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		var rec queuetest.Recorder
		queuetest.Serve(t, rdb, prefix, "a", rec.Then(nil))
		const jobs = 400
		for i := range jobs {
			in := 100*time.Millisecond + time.Duration(i)*500*time.Microsecond
			_, err := client.Enqueue(t.Context(), "a", fmt.Sprint(i), nil, delayq.ProcessIn(in))
			require.NoError(t, err)
		}
		queuetest.Until(t, func() bool { return len(rec.All()) > 0 })
		var waiting, ran []string
		for i := range jobs { // about as fast as they fall due
			id := fmt.Sprint(i)
			state, err := client.Dequeue(t.Context(), "a", id)
			switch {
			case errors.Is(err, delayq.ErrNotFound):
				ran = append(ran, id)
			case state == delayq.StateRunning: // taken: its handler may have been called or not
			default:
				require.NoError(t, err)
				waiting = append(waiting, id)
			}
		}
		queuetest.Until(t, func() bool { return len(rec.Times()) >= len(ran) })
		_, err := client.Enqueue(t.Context(), "a", "last", nil, delayq.ProcessIn(400*time.Millisecond))
		require.NoError(t, err)
		queuetest.Until(t, func() bool { return len(rec.Of("last")) == 1 }) // all that were enqueued before were due before
		times := rec.Times()
		for _, id := range waiting {
			require.Zero(t, times[id], "job %s was cancelled and has run", id)
		}
		for _, id := range ran {
			require.Equal(t, 1, times[id], "job %s", id)
		}
	})
}

// TestBoundedWork watches what a real Redis is asked to do while jobs go through all transitions on
// top of a backlog. (G1, G3, G6, G8)
func TestBoundedWork(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	ctx := t.Context()
	client := delayq.NewClient(rdb)
	const backlog = 3000
	jobs := make([]delayq.NewJob, 0, 2*backlog)
	for i := range backlog {
		jobs = append(jobs, delayq.NewJob{Topic: "a", ID: fmt.Sprint("now-", i), Options: []delayq.JobOption{delayq.Backoff(time.Hour, time.Hour)}},
			delayq.NewJob{Topic: "idle", ID: fmt.Sprint("later-", i), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}})
	}
	_, err := client.EnqueueBatch(ctx, jobs)
	require.NoError(t, err)
	for i := range 1500 { // due before the server comes
		_, err := client.Enqueue(ctx, "a", fmt.Sprint("due-", i), nil, delayq.ProcessIn(time.Millisecond))
		require.NoError(t, err)
	}
	for _, id := range []string{"later-7", "later-8"} {
		_, err := client.Dequeue(ctx, "idle", id)
		require.NoError(t, err)
	}
	require.NoError(t, client.Reschedule(ctx, "idle", "later-9", delayq.ProcessIn(2*time.Hour)))

	var hooks queuetest.HookLog
	var rec queuetest.Recorder
	s := queuetest.Serve(t, rdb, "delayq", "a", rec.Then(func(_ context.Context, job *delayq.Job) error {
		switch {
		case job.ID == "now-1":
			return delayq.Permanent(errors.New("no"))
		case job.ID == "now-2" && job.Attempt == 1:
			return errors.New("again")
		}
		return nil
	}), delayq.Hooks(&hooks), delayq.Concurrency(64))
	queuetest.Until(t, func() bool {
		return hooks.Total("Buried") == 1 && hooks.Total("Done")+hooks.Total("Retried") >= 4499
	})
	require.NoError(t, client.Revive(ctx, "a", "now-1"))
	queuetest.Until(t, func() bool { return hooks.Total("Buried") == 2 })
	require.NoError(t, s.Stop())

	t.Run("jobs of one call", func(t *testing.T) {
		most := map[string]int{"promote": 1000, "take": 500, "ack": 500, "retry": 500, "bury": 500, "extend": 500, "prune": 500}
		hooks.Mu.Lock()
		defer hooks.Mu.Unlock()
		for _, e := range hooks.Scripts {
			if limit, ok := most[e.Name]; ok {
				require.LessOrEqual(t, e.Jobs, limit, e.Name)
			}
		}
	})
	t.Run("commands", func(t *testing.T) {
		// Each of these is O(log n) or O(its own arguments): no KEYS, SMEMBERS, HGETALL, HKEYS,
		// SORT, LREM, LINSERT, SCAN.
		allowed := strings.Fields(`auth blmove client config del eval evalsha exists expire get hdel hello hexists hget hincrby hlen hmget
			hset incr info lindex llen lmove lpop lpush lrange ltrim pexpire ping publish rpush sadd script set srem subscribe time unsubscribe
			zadd zcard zcount zmscore zrange zrangebylex zrangebyscore zrem zscore`)
		stats, err := rdb.Info(ctx, "commandstats").Result()
		require.NoError(t, err)
		used := regexp.MustCompile(`cmdstat_([a-z]+)`).FindAllStringSubmatch(stats, -1)
		require.NotEmpty(t, used)
		for _, command := range used {
			require.Contains(t, allowed, command[1])
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		_, err := client.Dequeue(ctx, "a", "now-1")
		require.NoError(t, err)
		_, err = client.Dequeue(ctx, "a", "now-2")
		require.NoError(t, err)
		requireOnlyDocumentedKeys(t, rdb, "delayq", "a")
	})
	t.Run("keys in scripts", func(t *testing.T) {
		files, err := filepath.Glob("../lua/*.lua")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, call := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)',? ?([^,)]*)`).FindAllStringSubmatch(string(text), -1) {
				if slices.Contains([]string{"TIME", "PUBLISH", "INFO"}, call[1]) {
					continue
				}
				require.Regexp(t, `^[a-z]+$`, call[2], "%s: %s on a key that is not just a name", file, call[1])
			}
		}
	})
}

// requireOnlyDocumentedKeys fails if a topic without unfinished jobs has left anything but counters
// and what expires by itself.
func requireOnlyDocumentedKeys(t *testing.T, rdb redis.UniversalClient, prefix, topic string) {
	t.Helper()
	root := prefix + ":{" + topic + "}:"
	left, err := redistest.Census(t.Context(), rdb, prefix+":*")
	require.NoError(t, err)
	for key := range left {
		name, ours := strings.CutPrefix(key, root)
		switch {
		case !ours || name == "stats" || name == "meta":
		case strings.HasPrefix(name, "receipt:") || strings.HasPrefix(name, "taken:") || name == "minutes" || name == "hours":
			ttl, err := rdb.PTTL(t.Context(), key).Result()
			require.NoError(t, err)
			require.NotEqual(t, time.Duration(-1), ttl, "%s never expires", key)
		default:
			require.Fail(t, "left behind", key)
		}
	}
}

// TestDamageIsRepaired takes the place of a job and that of a schedule away while their topic is
// in use: both are back without anybody's help, and neither runs or fires twice.
func TestDamageIsRepaired(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("t", rec.Then(nil))
		b.AddSchedule("s", delayq.Every(10*time.Second))
		b.Pass(20 * time.Second)
		b.Enqueue("t", "lost", delayq.ProcessIn(time.Minute))
		key := func(name string) string { return queuetest.Prefix + ":{t}:" + name }
		require.NoError(b, b.RDB.Del(b.Context(), key("bucket"), key("slots")).Err())
		b.Pass(10 * time.Minute)
		require.Len(b, rec.Of("lost"), 1)
		require.Empty(b, b.State("t", "lost"))
		for id, n := range rec.Times() {
			require.Equal(b, 1, n, id)
		}
		require.Contains(b, rec.IDs(), b.SlotID("s", 10*time.Minute))
	})
}
