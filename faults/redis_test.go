package faults_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// full fills Redis to its maxmemory; the function it returns ends that.
func (b *bench) full() (heal func()) {
	b.t.Helper()
	noted := b.fault("full")
	require.NoError(b.t, b.direct.ConfigSet(context.Background(), "maxmemory", "1mb").Err())
	return func() {
		b.t.Helper()
		require.NoError(b.t, b.direct.ConfigSet(context.Background(), "maxmemory", "0").Err())
		noted()
	}
}

// TestFullRedisDrains (J4, bull#416): at maxmemory Enqueue gives a definite error, and everything
// that empties the queue works: jobs fall due, run, are acknowledged, retried, snoozed, buried and
// cancelled. No lease is lost meanwhile, however long the handler.
func TestFullRedisDrains(t *testing.T) {
	b := newBench(t)
	w := b.worker("w")
	backoff := delayq.Backoff(50*time.Millisecond, 50*time.Millisecond)
	b.put(3, rig.Task{ID: "long", Steps: []string{"hang:4s"}, Retries: -1})
	b.awaitN(3, "start", is(rig.OpStart, ""))
	b.put(20, rig.Task{ID: "due", Delay: 500 * time.Millisecond, Retries: -1})
	b.put(5, rig.Task{ID: "retry", Delay: 500 * time.Millisecond, Steps: []string{"err", "panic", "ok"}, Retries: -1, Options: []delayq.JobOption{backoff}})
	b.put(5, rig.Task{ID: "snooze", Delay: 500 * time.Millisecond, Steps: []string{"snooze:700ms"}, Retries: -1})
	b.put(5, rig.Task{ID: "bury", Delay: 500 * time.Millisecond, Steps: []string{"perm"}, Retries: -1})
	cancel := b.put(1, rig.Task{ID: "cancel", Delay: time.Hour, Retries: -1})[0]
	heal := b.full()
	defer heal()
	err := b.client.Put(t.Context(), &rig.Task{Topic: "t", ID: "refused", Retries: -1}, false)
	require.ErrorContains(t, err, "OOM")
	require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
	_, err = b.client.Cancel(t.Context(), cancel)
	require.NoError(t, err)
	b.awaitN(33, "ack", is(rig.OpSettled, "acked"))
	report := b.judge()
	require.Equal(t, 33, report.Finished)
	require.Equal(t, 5, report.Dead)
	require.Zero(t, report.Outcomes["lease_lost"], "leases can be extended at maxmemory")
	require.Zero(t, report.Count("I16"))
	require.Zero(t, errorsIn(w.Log(), "level=ERROR", `msg="extend failed"`))
}

// TestServerStartsOnAFullRedis (J4): the servers that would empty a full Redis must be able to
// start.
func TestServerStartsOnAFullRedis(t *testing.T) {
	b := newBench(t)
	b.put(20, rig.Task{Retries: -1})
	heal := b.full()
	b.worker("w")
	b.awaitN(20, "ack", is(rig.OpSettled, "acked"))
	b.judge()
	heal()
}

// TestWrongTypeIsNamed (J11, A6, sidekiq#1322, bullmq#1207): each key of a topic in turn is of a
// wrong type. The error names what could not be done and the key, other topics go on, and when the
// key is right again the topic does too. A key that only serves bookkeeping stops nothing.
func TestWrongTypeIsNamed(t *testing.T) {
	bookkeeping := map[string]bool{"stats": true, "errors": true, "results": true, "done": true}
	for _, key := range []string{"pool", "bucket", "ready", "handoff", "leases", "dead", "attempts", "errors", "moved", "meta", "stats", "done", "results"} {
		t.Run(key, func(t *testing.T) {
			b := newBench(t)
			name := b.prefix + ":{bad}:" + key
			require.NoError(t, b.direct.Set(t.Context(), name, "x", 0).Err())
			w := b.worker("w", func(c *rig.WorkerConfig) { c.Topics = []string{"bad", "good"} })
			good := &rig.Task{Topic: "good", ID: "j", Retries: -1}
			require.NoError(t, b.client.Put(t.Context(), good, false))
			b.awaitN(1, "ack", func(e rig.Event) bool { return e.Topic == "good" && e.Result == "acked" })

			bad := &rig.Task{Topic: "bad", ID: "j", Steps: []string{"snooze:200ms"}, Delay: 10 * time.Millisecond, Retries: -1}
			err := b.client.Put(t.Context(), bad, false)
			if bookkeeping[key] {
				require.NoError(t, err)
				b.awaitN(1, "ack", func(e rig.Event) bool { return e.Topic == "bad" && e.Result == "acked" })
				return
			}
			eventually(t, "error in the log", patient, func() bool {
				return err != nil && strings.Contains(err.Error(), "WRONGTYPE") && strings.Contains(err.Error(), name) ||
					errorsIn(w.Log(), "WRONGTYPE", "topic=bad", name) > 0
			})
			require.NoError(t, b.direct.Del(t.Context(), name).Err())
			if err != nil {
				require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
				bad = &rig.Task{Topic: "bad", ID: "again", Retries: -1}
				require.NoError(t, b.client.Put(t.Context(), bad, false))
			}
			b.awaitN(1, "ack", func(e rig.Event) bool { return e.Topic == "bad" && e.Result == "acked" })
		})
	}
}

// TestBookkeepingThatIsForbidden (A6): the right to write the key of the counters is missing. Jobs
// run all the same, and the log says so.
func TestBookkeepingThatIsForbidden(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.direct.Set(t.Context(), b.prefix+":{t}:stats", "x", 0).Err())
	w := b.worker("w")
	b.put(10, rig.Task{Steps: []string{"err", "ok"}, Retries: -1, Options: []delayq.JobOption{delayq.Backoff(time.Millisecond, time.Millisecond)}})
	b.awaitN(10, "ack", is(rig.OpSettled, "acked"))
	require.Equal(t, 20, len(b.events(is(rig.OpStart, ""))))
	eventually(t, "a word about it", patient, func() bool { return errorsIn(w.Log(), "WRONGTYPE", b.prefix+":{t}:stats") > 0 })
}

// TestMissingRightIsNamed (J10, bull#2113): one command after the other is taken from the user of
// the server. Nothing is silent: the log has an error with NOPERM that names the command. For a
// command inside a script Redis 7.0 gives only the line, so the log names the script.
func TestMissingRightIsNamed(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	acl := []any{"ACL", "SETUSER", "worker", "on", ">secret", "~" + b.prefix + ":*", "&" + b.prefix + ":*", "+@all", "-@admin", "-@dangerous", "+info"}
	require.NoError(t, b.direct.Do(ctx, acl...).Err())
	login := func(o *redis.Options) { o.Username, o.Password = "worker", "secret" }
	var handled atomic.Int64
	n := 0
	try := func(t *testing.T, command string, want bool) {
		rdb := b.through(b.proxy, login)
		before := handled.Load()
		r := b.serve(rdb, func(s *delayq.Server) {
			s.HandlerFunc("t", func(context.Context, *delayq.Job) error { handled.Add(1); return nil })
		}, delayq.Prefix(b.prefix))
		n++
		_, err := b.client.Enqueue(ctx, "t", fmt.Sprint(command, n), nil, delayq.ProcessIn(20*time.Millisecond))
		require.NoError(t, err)
		said := func() bool {
			log := r.log.String()
			if errorsIn(log, "NOPERM", command) > 0 {
				return true
			}
			for _, refusal := range []string{"The user executing the script can't run this command", "ACL failure in script"} {
				if errorsIn(log, refusal, "topic=t") > 0 {
					return true
				}
			}
			select {
			case err := <-r.err:
				r.err <- err
				return err != nil && strings.Contains(err.Error(), "NOPERM")
			default:
				return false
			}
		}
		if want {
			eventually(t, "NOPERM and "+command, patient, said)
		} else {
			eventually(t, "a job is handled", patient, func() bool { return handled.Load() > before })
			require.False(t, said(), r.log.String())
		}
		r.stop()
		<-r.err
		require.NotContains(t, r.log.String(), "secret")
	}
	t.Run("none is missing", func(t *testing.T) { try(t, "none", false) })
	for _, command := range []string{"evalsha", "blmove", "hmget", "zrangebyscore", "lrange", "subscribe", "sadd", "time"} {
		t.Run(command, func(t *testing.T) {
			require.NoError(t, b.direct.Do(ctx, "ACL", "SETUSER", "worker", "-"+command).Err())
			try(t, command, true)
			require.NoError(t, b.direct.Do(ctx, "ACL", "SETUSER", "worker", "+"+command).Err())
		})
	}
}

// TestCommandsThatScanEverythingAreNotNeeded (G6): KEYS, SMEMBERS, HGETALL, SORT and FLUSH* are
// forbidden; everything works.
func TestCommandsThatScanEverythingAreNotNeeded(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.direct.Do(t.Context(), "ACL", "SETUSER", "default", "-keys", "-smembers", "-hgetall", "-sort", "-flushall", "-flushdb").Err())
	b.worker("w")
	b.put(30, rig.Task{Steps: []string{"err", "snooze:100ms"}, Retries: -1, Options: []delayq.JobOption{delayq.Backoff(time.Millisecond, time.Millisecond), delayq.Retention(time.Hour)}})
	b.awaitN(30, "ack", is(rig.OpSettled, "acked"))
	for _, state := range []delayq.State{delayq.StateDone, delayq.StateDead, delayq.StateReady, delayq.StateRunning, delayq.StateScheduled} {
		_, err := b.client.Inspector.Jobs(t.Context(), delayq.Query{Topic: "t", State: state})
		require.NoError(t, err)
	}
	_, err := b.client.Inspector.Servers(t.Context())
	require.NoError(t, err)
	stats, err := b.direct.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, command := range []string{"keys", "smembers", "hgetall", "sort", "flushall", "flushdb"} {
		require.NotContains(t, stats, "cmdstat_"+command+":")
	}
}

// TestNeverEarly (F1, E1, promise 2): 500 jobs; the time from before the call of Enqueue to the
// start of the handler, by a clock that is finer than Redis's milliseconds, is never a millisecond
// below the delay.
func TestNeverEarly(t *testing.T) {
	b := newBench(t)
	var early atomic.Int64
	begun := make([]atomic.Int64, 500)
	var handled atomic.Int64
	worst := atomic.Int64{}
	delay := 20 * time.Millisecond
	r := b.serve(b.direct, func(s *delayq.Server) {
		s.HandlerFunc("t", func(_ context.Context, job *delayq.Job) error {
			now := rig.Mono()
			i, _ := strconv.Atoi(job.ID)
			if gap := begun[i].Load() + int64(delay) - now; gap > 0 {
				early.Add(1)
				worst.Store(max(worst.Load(), gap))
			}
			handled.Add(1)
			return nil
		}, delayq.Concurrency(50))
	})
	for i := range begun {
		begun[i].Store(rig.Mono())
		_, err := b.client.Enqueue(t.Context(), "t", strconv.Itoa(i), nil, delayq.ProcessIn(delay))
		require.NoError(t, err)
		time.Sleep(time.Duration(100+i*7%900) * time.Microsecond) // so that the calls fall on all parts of a millisecond
	}
	eventually(t, "all handled", patient, func() bool { return handled.Load() == 500 })
	r.end(t)
	t.Logf("%d of 500 early by a part of a millisecond, the worst by %v", early.Load(), time.Duration(worst.Load()))
	require.Less(t, time.Duration(worst.Load()), time.Millisecond)
}
