package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
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
	"github.com/delayq/delayq/internal/script"
)

// The key of the leases is deleted while handlers run. They lose their leases, and within half a
// minute the server has put the jobs back by itself, for the numbers tell: nobody has to call
// Check.
func TestServerMendsLostLeases(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var starts queuetest.Recorder
		var log queuetest.Logbook
		b.Serve("t", starts.Then(func(ctx context.Context, job *delayq.Job) error {
			if len(starts.Of(job.ID)) == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		}), log.To())
		for i := range 5 {
			b.Enqueue("t", fmt.Sprint("job", i))
		}
		b.Pass(90 * time.Second)
		require.Len(b, starts.All(), 5)
		require.NoError(b, b.RDB.Del(b.Context(), queuetest.Prefix+":{t}:leases").Err())
		b.Pass(30 * time.Second)
		for i := range 5 {
			require.Len(b, starts.Of(fmt.Sprint("job", i)), 2)
			require.Empty(b, b.State("t", fmt.Sprint("job", i)))
		}
		require.Len(b, log.With(`msg="topic repaired"`, "topic=t", "count=5", `found="no_place: 5"`), 1)
		require.EqualValues(b, 5, b.Counter("t", "mended"))
	})
}

// What the numbers do not tell, since something else hides it, the regular check finds.
func TestServerMendsWhatNumbersHide(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var starts queuetest.Recorder
		b.Serve("t", starts.Then(nil))
		b.Pass(20 * time.Second)
		b.Enqueue("t", "lost", delayq.ProcessIn(time.Minute))
		require.NoError(b, b.RDB.ZRem(b.Context(), queuetest.Prefix+":{t}:bucket", "lost").Err())
		require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{t}:bucket", queuetest.ZMember("nobody", time.Now().Add(time.Hour))).Err())
		b.Pass(90 * time.Second)
		require.Empty(b, starts.All(), "as many places as records")
		b.Pass(2 * time.Minute)
		require.Equal(b, []string{"lost"}, starts.IDs())
		require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{t}:bucket").Val())
	})
}

// What cannot be mended is looked at once a minute and not more often.
func TestServerDoesNotTryTooOften(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var calls queuetest.HookLog
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(&calls))
		newer := "nonce456" + "\x7f" + strings.Repeat("x", 50)
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":{t}:pool", "newer", newer).Err())
		b.Pass(10 * time.Minute)
		// Six calls each time: all, the pool, and ready and handoff twice.
		require.InDelta(b, 6*(10+3), calls.Calls("check"), 18)
		require.Equal(b, delayq.StateReady, b.State("t", "newer"))
	})
}

// A job whose entry in the bucket was lost, while a left-over of its ID was in ready, is taken and
// put back: it does not run early.
func TestTakenTooEarlyIsPutBack(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "a")
		require.NoError(b, b.Client.Reschedule(b.Context(), "t", "a", delayq.ProcessIn(time.Minute)))
		require.NoError(b, b.RDB.Del(b.Context(), queuetest.Prefix+":{t}:bucket").Err())
		var starts queuetest.Recorder
		b.Serve("t", starts.Then(nil))
		b.Pass(time.Minute - time.Millisecond)
		require.Empty(b, starts.All())
		require.Equal(b, delayq.StateScheduled, b.State("t", "a"))
		b.Pass(time.Millisecond)
		require.Len(b, starts.All(), 1)
		require.Equal(b, 1, starts.All()[0].Attempt)
		require.Equal(b, time.Minute, b.At())
	})
}

// A counter key of a wrong type stops neither prune nor check, and the log names it. (J11)
func TestServerNamesAWrongTypeAndGoesOn(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		stats := queuetest.Prefix + ":{t}:stats"
		require.NoError(b, b.RDB.Set(b.Context(), stats, "a slip", 0).Err())
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil }, log.To())
		b.Enqueue("t", "lost", delayq.ProcessIn(time.Minute))
		require.NoError(b, b.RDB.ZRem(b.Context(), queuetest.Prefix+":{t}:bucket", "lost").Err())
		b.Pass(2 * time.Minute)
		require.Empty(b, b.State("t", "lost"))
		require.Len(b, log.With(`msg="prune failed"`, "level=ERROR", stats), 1)
		require.NotEmpty(b, log.With(`msg="topic repaired"`, "no_place: 1", "wrong_type: 1", stats+" is not a hash"))
		require.NoError(b, b.RDB.Del(b.Context(), stats).Err())
		b.Pass(11 * time.Second)
		require.Len(b, log.With("msg=\"prune works again\""), 1)
	})
}

// A set of topics that is another thing stops no server, and the log names its key.
func TestServerNamesAWrongSetOfTopics(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		var rec queuetest.Recorder
		b.Enqueue("t", "id")
		key := queuetest.Prefix + ":topics"
		require.NoError(b, b.RDB.Set(b.Context(), key, "a slip", 0).Err())
		b.Serve("t", rec.Then(nil), log.To())
		b.Pass(time.Second)
		require.Equal(b, []string{"id"}, rec.IDs())
		require.Len(b, log.With(`msg="topics not recorded"`, key, "is a string and not a set: WRONGTYPE"), 1)
	})
}

// However many servers a topic has, one of them checks it, every three minutes.
func TestServersTakeTurnsToCheck(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var calls queuetest.HookLog
		for range 3 {
			b.Serve("t", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(&calls))
			b.Pass(7 * time.Second)
		}
		b.Pass(15 * time.Minute)
		require.InDelta(b, 5, calls.Calls("check"), 1)
		require.Zero(b, calls.Calls("mend"))
	})
}

// Ten idle topics cost Redis at most two commands a second, the checks included. (G11)
func TestTenIdleTopicsAreQuiet(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		b.LoadScripts()
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			for i := range 10 {
				s.HandlerFunc(fmt.Sprint("t", i), func(context.Context, *delayq.Job) error { return nil })
			}
		})
		b.Pass(time.Minute)
		before := w.Requests()
		b.Pass(10 * time.Minute)
		perSecond := float64(w.Requests()-before) / 600
		require.LessOrEqual(b, perSecond, 2.0)
		require.Greater(b, perSecond, 1.0, "or this test counts the wrong thing")
	})
}

// A thousand idle topics cost Redis at most ten requests a second, the checks included, also after
// jobs have run in all of them.
func TestThousandIdleTopicsAreQuiet(t *testing.T) {
	topics := redistest.Size(1000)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		b.LoadScripts()
		queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			for i := range topics {
				s.HandlerFunc(fmt.Sprint("t", i), func(context.Context, *delayq.Job) error { return nil })
			}
		})
		b.Pass(time.Second)
		for i := range topics {
			b.Enqueue(fmt.Sprint("t", i), "1")
		}
		b.Pass(time.Minute)
		before := w.Requests()
		b.Pass(5 * time.Minute) // of 17, in which each topic is checked once
		perSecond := float64(w.Requests()-before) / 300
		require.LessOrEqual(b, perSecond, 10.0)
		require.Greater(b, perSecond, float64(topics)/200, "or this test counts the wrong thing")
	})
}

// An idle topic that nobody wakes, since the message was lost, finds its job within a tick.
func TestIdleTopicFindsAJobWithinATick(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		other := delayq.NewClient(b.RDB, delayq.Prefix("other"))
		var starts queuetest.Recorder
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			for i := range 3 {
				s.HandlerFunc(fmt.Sprint("t", i), starts.Then(nil))
			}
		})
		for i := range 20 {
			b.Pass(7*time.Second + time.Duration(i)*77*time.Millisecond)
			id, delay := strconv.Itoa(i), time.Duration(1+i%4)*400*time.Millisecond
			job, err := other.Enqueue(b.Context(), "t1", id, nil, delayq.ProcessIn(delay)) // its messages go elsewhere
			require.NoError(b, err)
			record := b.RDB.HGet(b.Context(), "other:{t1}:pool", id).Val()
			enqueued := time.Now()
			require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{t1}:bucket", queuetest.ZMember(id, job.Due)).Err())
			require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":{t1}:pool", id, record).Err())
			b.Pass(4 * time.Second)
			require.Len(b, starts.Of(id), 1)
			require.LessOrEqual(b, starts.Of(id)[0].At.Sub(enqueued), max(delay, time.Second))
		}
	})
}

// An ID that a server left in handoff when it died is taken by another one within a tick, also
// where that one has been idle.
func TestIdleTopicFindsAHandoffWithinATick(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		other := delayq.NewClient(b.RDB, delayq.Prefix("other"))
		var starts queuetest.Recorder
		b.Serve("t", starts.Then(nil))
		for i := range 20 {
			b.Pass(3*time.Second + time.Duration(i)*77*time.Millisecond)
			id := strconv.Itoa(i)
			_, err := other.Enqueue(b.Context(), "t", id, nil)
			require.NoError(b, err)
			// It comes just after a promote that has found none.
			require.NoError(b, b.RDB.Publish(b.Context(), script.ControlChannel(queuetest.Prefix), "wake 0 1 t").Err())
			synctest.Wait()
			enqueued := time.Now()
			require.NoError(b, b.RDB.HSet(b.Context(), queuetest.Prefix+":{t}:pool", id, b.RDB.HGet(b.Context(), "other:{t}:pool", id).Val()).Err())
			require.NoError(b, b.RDB.RPush(b.Context(), queuetest.Prefix+":{t}:handoff", id).Err())
			b.Pass(4 * time.Second)
			require.Len(b, starts.Of(id), 1)
			require.LessOrEqual(b, starts.Of(id)[0].At.Sub(enqueued), time.Second)
		}
	})
}

// Where Redis refuses a command about several topics, each topic has its own tick, and nobody is
// told of an error.
func TestIdleTopicsOfARefusedWatch(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t, "--cluster-enabled", "yes")
	rdb := own.Client(t)                  // not a cluster's client
	slots := []any{"CLUSTER", "ADDSLOTS"} // ADDSLOTSRANGE is of Redis 7.0
	for slot := range 16384 {
		slots = append(slots, slot)
	}
	require.NoError(t, rdb.Do(t.Context(), slots...).Err())
	queuetest.Until(t, func() bool { return rdb.Set(t.Context(), "x", 1, 0).Err() == nil })
	var log queuetest.Logbook
	promotes := make(chan string, 1000)
	s := queuetest.ServeMany(t, rdb, "delayq", func(s *delayq.Server) {
		for i := range 3 {
			s.HandlerFunc(fmt.Sprint("t", i), queuetest.Nothing)
		}
	}, log.To(), delayq.Tick(20*time.Millisecond), delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
		if e.Name == "promote" {
			promotes <- e.Topic
		}
	})))
	for seen := map[string]int{}; seen["t0"] < 5 || seen["t1"] < 5 || seen["t2"] < 5; {
		seen[queuetest.Receive(t, promotes)]++
	}
	require.NoError(t, s.Stop())
	require.Empty(t, log.With("CROSSSLOT"))
}

// Whatever happens to a queue while it is checked and mended without pause, nothing is lost, early
// or doubled. In half of the games keys are damaged as well: then a job may run twice, for its
// lease may be what was lost.
func TestCheckUnderLoad(t *testing.T) {
	t.Parallel()
	for _, damage := range []bool{false, true} {
		t.Run(map[bool]string{false: "healthy", true: "damaged"}[damage], func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) { checkUnderLoad(t, rdb, damage) })
		})
	}
}

func checkUnderLoad(t *testing.T, rdb redis.UniversalClient, damage bool) {
	const jobs = 600
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, prefix := t.Context(), redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
	key := func(name string) string { return prefix + ":{t}:" + name }

	var mu sync.Mutex
	running, done, cancelled, slept := map[string]int{}, map[string]int{}, map[string]bool{}, map[string]bool{}
	var wrong []string
	chance := func(job *delayq.Job) *rand.Rand {
		number, _ := strconv.ParseUint(job.ID, 10, 64) // written below
		return rand.New(rand.NewPCG(seed, uint64(job.Attempt)*1000+number))
	}
	handler := func(ctx context.Context, job *delayq.Job) error {
		mu.Lock()
		running[job.ID]++
		if job.Lateness() < 0 {
			wrong = append(wrong, job.ID+" was early")
		}
		if !damage && cancelled[job.ID] {
			wrong = append(wrong, job.ID+" runs though it was cancelled")
		}
		if !damage && (running[job.ID] > 1 || done[job.ID] > 0) {
			wrong = append(wrong, job.ID+" runs twice")
		}
		first := !slept[job.ID]
		slept[job.ID] = true
		mu.Unlock()
		r := chance(job)
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			running[job.ID]--
		}()
		switch n := r.IntN(10); {
		case n < 2 && job.Attempt < 4:
			return errors.New("once more")
		case n == 2 && first:
			return delayq.Snooze(time.Duration(r.IntN(30)) * time.Millisecond)
		case n == 3:
			timer := time.NewTimer(time.Duration(r.IntN(40)) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		mu.Lock()
		defer mu.Unlock()
		done[job.ID]++
		return nil
	}
	lease := time.Minute // without damage none runs out, however slow the machine is
	if damage {
		lease = 200 * time.Millisecond
	}
	for range 2 {
		queuetest.Serve(t, rdb, prefix, "t", handler, delayq.Lease(lease), delayq.Tick(20*time.Millisecond))
	}

	stop, checked := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				checked <- n
				return
			default:
			}
			report, err := client.Repair(context.WithoutCancel(ctx), "t")
			if err != nil || !damage && len(report.Found) > 0 {
				mu.Lock()
				wrong = append(wrong, fmt.Sprint("check: ", err, report.Findings))
				mu.Unlock()
			}
		}
	}()

	called := map[string]bool{} // cancelled, in whatever state
	r := rand.New(rand.NewPCG(seed, 1))
	lost := []string{"bucket", "ready", "leases", "handoff", "attempts", "moved", "errors"}
	for i := range jobs {
		id := strconv.Itoa(i)
		_, err := client.Enqueue(ctx, "t", id, nil, delayq.ProcessIn(time.Duration(r.IntN(60))*time.Millisecond),
			delayq.Backoff(time.Millisecond, 10*time.Millisecond))
		require.NoError(t, err)
		switch n := r.IntN(20); {
		case n < 2:
			state, err := client.Dequeue(ctx, "t", id)
			require.True(t, err == nil || errors.Is(err, delayq.ErrNotFound), err)
			mu.Lock()
			cancelled[id] = err == nil && state != delayq.StateRunning
			called[id] = err == nil
			mu.Unlock()
		case n < 4:
			err := client.Reschedule(ctx, "t", strconv.Itoa(r.IntN(i+1)), delayq.ProcessIn(time.Duration(r.IntN(50))*time.Millisecond))
			require.True(t, err == nil || errors.Is(err, delayq.ErrNotFound) || errors.Is(err, delayq.ErrRunning), err)
		case n == 4 && damage:
			require.NoError(t, rdb.Del(ctx, key(lost[r.IntN(len(lost))])).Err())
		}
	}
	queuetest.Until(t, func() bool { return rdb.HLen(ctx, key("pool")).Val() == 0 }, "all jobs come to their end")
	close(stop)
	require.Greater(t, <-checked, 5)
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, wrong)
	for i := range jobs {
		id := strconv.Itoa(i)
		require.True(t, done[id] > 0 || called[id], "%s is lost", id)
	}
	if damage {
		info := queuetest.StatsOf(t, insp, "t")
		require.Positive(t, info.Counters["mended"])
	}
}
