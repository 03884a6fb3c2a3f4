package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A waiter whose messages are lost learns of each end at its next look, within ten seconds, and
// when it hears again at once.
func TestWaitWithoutMessages(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		client := delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix))
		var ws []*waiting
		for i := range 3 {
			b.Enqueue("t", fmt.Sprint(i), delayq.ProcessIn(time.Hour))
			ws = append(ws, await(b.T, client, "t", fmt.Sprint(i)))
		}
		b.Pass(time.Second)
		cancel := func(i int) time.Time {
			require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", fmt.Sprint(i))))
			return time.Now()
		}
		began := cancel(0)
		end := ws[0].get()
		require.ErrorIs(b, end.err, delayq.ErrCancelled)
		require.Zero(b, end.at.Sub(began), "the message has come")

		w.Deafen()
		b.Pass(time.Second)
		began = cancel(1)
		end = ws[1].get()
		require.ErrorIs(b, end.err, delayq.ErrCancelled)
		require.Positive(b, end.at.Sub(began))
		require.LessOrEqual(b, end.at.Sub(began), 10*time.Second)

		b.Pass(10 * time.Second)
		cancel(2)
		w.Heal()
		began = time.Now()
		end = ws[2].get()
		require.ErrorIs(b, end.err, delayq.ErrCancelled)
		require.LessOrEqual(b, end.at.Sub(began), 2*time.Second, "it looks when it has subscribed")
	})
}

// While Redis is away the waits go on. Afterwards each learns what has happened meanwhile.
func TestWaitWhileRedisIsAway(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		client := delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix))
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		b.Enqueue("t", "y", delayq.ProcessIn(time.Hour))
		x, y := await(b.T, client, "t", "x"), await(b.T, client, "t", "y")
		b.Pass(time.Second)
		w.Cut()
		late := await(b.T, client, "t", "x")
		ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
		defer cancel()
		_, err := client.Wait(ctx, "t", "x")
		require.ErrorIs(b, err, context.DeadlineExceeded)
		require.ErrorContains(b, err, "no route to host")
		require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
		b.Pass(20 * time.Second)
		require.False(b, x.over() || y.over() || late.over())
		w.Mend()
		began := time.Now()
		end := x.get()
		require.ErrorIs(b, end.err, delayq.ErrCancelled)
		require.Less(b, end.at.Sub(began), 5*time.Second)
		require.ErrorIs(b, late.get().err, delayq.ErrNotFound, "it has not seen the job")
		b.Pass(20 * time.Second)
		require.False(b, y.over())
		require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "y")))
		require.ErrorIs(b, y.get().err, delayq.ErrCancelled)
	})
}

// A failover that loses the registration costs nothing: the client registers again with its next
// look. One that loses the job ends the wait.
func TestWaitAfterAFailover(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		b.Enqueue("t", "lost", delayq.ProcessIn(time.Hour))
		x, lost := await(b.T, b.Client, "t", "x"), await(b.T, b.Client, "t", "lost")
		b.Pass(time.Second)
		require.NoError(b, b.RDB.Del(b.Context(), notesKey("t")).Err())
		b.Pass(10 * time.Second)
		require.True(b, b.RDB.HExists(b.Context(), notesKey("t"), "wx").Val())
		require.NoError(b, b.RDB.HDel(b.Context(), queuetest.PoolKey("t"), "lost").Err())
		require.NoError(b, b.RDB.ZRem(b.Context(), queuetest.Prefix+":{t}:bucket", "lost").Err())
		began := time.Now()
		end := lost.get()
		require.ErrorIs(b, end.err, delayq.ErrUnknownOutcome)
		require.EqualError(b, end.err, `wait topic "t" job "lost": delayq: outcome unknown: the job is gone, and nothing says how it has ended`)
		require.LessOrEqual(b, end.at.Sub(began), 10*time.Second)
		began = time.Now()
		require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
		end = x.get()
		require.ErrorIs(b, end.err, delayq.ErrCancelled)
		require.Zero(b, end.at.Sub(began))
	})
}

// A thousand jobs end at their times, and eight clients wait for each of them. Some clients cannot
// subscribe for a while, the connections of others are cut, and a failover loses who waits. Nobody
// misses an end, or learns of it later than ten seconds after it.
func TestEightWaitersEach(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		jobs := redistest.Size(1000)
		const clients, lasts = 8, 40 * time.Second
		b.Serve("t", func(_ context.Context, job *delayq.Job) error { return job.SetOutput([]byte(job.ID)) }, delayq.Concurrency(100))
		var fresh []delayq.NewJob
		for i := range jobs {
			due := time.Second + lasts*time.Duration(i)/time.Duration(jobs)
			fresh = append(fresh, delayq.NewJob{Topic: "t", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(due), delayq.Retention(time.Minute)}})
		}
		require.NoError(b, queuetest.ErrOf(b.Client.EnqueueBatch(b.Context(), fresh)))
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
		defer cancel()
		var wires []*queuetest.Wire
		var all sync.WaitGroup
		var mu sync.Mutex
		known, atOnce, latest := 0, 0, time.Duration(0)
		for range clients {
			w := queuetest.NewWire(b.Redis)
			wires = append(wires, w)
			client := delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix))
			for i := range jobs {
				all.Go(func() {
					result, err := client.Wait(ctx, "t", fmt.Sprint(i))
					mu.Lock()
					defer mu.Unlock()
					if err != nil || string(result.Output) != fmt.Sprint(i) {
						b.Errorf("job %d: %v", i, err)
						return
					}
					after := time.Since(result.FinishedAt)
					known, latest = known+1, max(latest, after)
					if after < 10*time.Millisecond {
						atOnce++
					}
				})
			}
		}
		b.Pass(5 * time.Second)
		for _, w := range wires[:3] {
			w.Deafen()
		}
		for range 3 {
			for _, w := range wires[3:6] {
				w.Cut()
				b.Pass(100 * time.Millisecond)
				w.Mend()
			}
			b.Pass(3 * time.Second)
		}
		fields, err := b.RDB.HKeys(b.Context(), notesKey("t")).Result()
		require.NoError(b, err)
		fields = slices.DeleteFunc(fields, func(field string) bool { return field[0] != 'w' })
		require.NotEmpty(b, fields)
		require.NoError(b, b.RDB.HDel(b.Context(), notesKey("t"), fields...).Err())
		b.Pass(15 * time.Second)
		for _, w := range wires[:3] {
			w.Heal()
		}
		all.Wait()
		require.Equal(b, jobs*clients, known)
		require.Greater(b, atOnce, known/4, "by messages")
		require.Greater(b, latest, time.Second, "by looks")
		require.LessOrEqual(b, latest, 10*time.Second)
	})
}

// A registration lasts as long as the wait, and a minute longer if the client has died. An outcome
// lasts a minute.
func TestLongWaitIsNotForgotten(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", queuetest.Nothing)
		b.Enqueue("t", "x", delayq.ProcessIn(25*time.Minute))
		w := await(b.T, b.Client, "t", "x")
		for range 4 {
			b.Pass(5 * time.Minute)
			require.True(b, b.RDB.HExists(b.Context(), notesKey("t"), "wx").Val())
		}
		began := time.Now()
		end := w.get()
		require.NoError(b, end.err)
		require.InDelta(b, (5 * time.Minute).Seconds(), end.at.Sub(began).Seconds(), 1)
	})
}

// Eight clients are told of the end of a job. Those beyond them look each second.
func TestMoreThanEightWaiters(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		var ws []*waiting
		for range 12 {
			ws = append(ws, await(b.T, delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix)), "t", "x"))
		}
		b.Pass(30 * time.Second)
		began := time.Now()
		require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
		told := 0
		for _, w := range ws {
			end := w.get()
			require.ErrorIs(b, end.err, delayq.ErrCancelled)
			if end.at.Equal(began) {
				told++
			}
			require.LessOrEqual(b, end.at.Sub(began), time.Second)
		}
		require.GreaterOrEqual(b, told, 8)
		require.Less(b, told, 12)
	})
}

// A client has no more than 10,000 waits, and they cost few calls: one for each hundred jobs in ten
// seconds.
func TestTenThousandWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("10,000 jobs")
	}
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 2_000 // with five waits each
		var fresh []delayq.NewJob
		for i := range jobs {
			fresh = append(fresh, delayq.NewJob{Topic: "t", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}})
		}
		require.NoError(b, queuetest.ErrOf(b.Client.EnqueueBatch(b.Context(), fresh)))
		var calls, rows atomic.Int64
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name == "wait" {
				calls.Add(1)
				rows.Add(int64(e.Jobs))
			}
		})))
		ctx, stop := context.WithTimeout(b.Context(), 24*time.Hour)
		var all sync.WaitGroup
		var cancelled atomic.Int64
		for i := range 10_000 {
			all.Go(func() {
				_, err := client.Wait(ctx, "t", fmt.Sprint(i%jobs))
				if errors.Is(err, delayq.ErrCancelled) {
					cancelled.Add(1)
				}
			})
		}
		b.Pass(20 * time.Second)
		require.ErrorIs(b, queuetest.ErrOf(client.Wait(ctx, "t", "0")), delayq.ErrInvalid)
		require.ErrorContains(b, queuetest.ErrOf(client.Call(ctx, "t", "another", nil)), "at most 10000 are allowed")
		require.ErrorIs(b, queuetest.ErrOf(b.Client.Get(ctx, "t", "another")), delayq.ErrNotFound)
		calls.Store(0)
		rows.Store(0)
		b.Pass(100 * time.Second)
		require.LessOrEqual(b, calls.Load(), int64(12*(jobs/100+8)))
		require.LessOrEqual(b, rows.Load(), int64(12*jobs))
		require.GreaterOrEqual(b, rows.Load(), int64(9*jobs))

		var ids []delayq.JobRef
		for i := range jobs / 2 {
			ids = append(ids, delayq.JobRef{Topic: "t", ID: fmt.Sprint(i)})
		}
		require.NoError(b, queuetest.ErrOf(b.Client.CancelBatch(b.Context(), ids)))
		synctest.Wait()
		require.EqualValues(b, 5*jobs/2, cancelled.Load(), "all at once")
		stop()
		all.Wait()
		b.Pass(time.Second)
		left, err := b.RDB.HKeys(b.Context(), notesKey("t")).Result()
		require.NoError(b, err)
		require.False(b, slices.ContainsFunc(left, func(field string) bool { return field[0] == 'w' }), "all have left")
	})
}

// stacks returns the goroutines of package await that do not belong to a caller.
func stacks() (list []string) {
	buf := make([]byte, 16<<20)
	for one := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(one, "internal/await.(*subscription)") || strings.Contains(one, "internal/await.(*Waits)") {
			list = append(list, one)
		}
	}
	return list
}

// The subscription lasts ten seconds longer than the last wait, and ends with the go-redis client.
func TestWaitLeavesNothingBehind(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		channels := func() int {
			list, err := b.RDB.PubSubChannels(b.Context(), queuetest.Prefix+":control:*").Result()
			require.NoError(b, err)
			return len(list)
		}
		opts := b.Redis.Options()
		rdb := redis.NewClient(opts)
		client := delayq.NewClient(rdb, delayq.Prefix(queuetest.Prefix))
		require.Zero(b, channels())
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		w := await(b.T, client, "t", "x")
		b.Pass(time.Minute)
		require.Equal(b, 1, channels())
		w.stop()
		b.Pass(9 * time.Second)
		require.Equal(b, 1, channels())
		w = await(b.T, client, "t", "x")
		b.Pass(9 * time.Second)
		require.Equal(b, 1, channels(), "another wait has come")
		w.stop()
		b.Pass(11 * time.Second)
		require.Zero(b, channels())

		w = await(b.T, client, "t", "x")
		b.Pass(time.Second)
		require.Equal(b, 1, channels(), "it can begin again")
		require.NoError(b, rdb.Close())
		began := time.Now()
		end := w.get()
		require.ErrorIs(b, end.err, redis.ErrClosed)
		require.Less(b, end.at.Sub(began), time.Second)
		require.ErrorIs(b, await(b.T, client, "t", "x").get().err, redis.ErrClosed)
		b.Pass(time.Second)
		require.Zero(b, channels())
		for _, one := range stacks() {
			require.NotContains(b, one, fmt.Sprintf("%p", client), "of this client")
		}
	})
}

// crashingHook is a hook of a go-redis client that panics, or ends its goroutine, at calls of a
// script.
type crashingHook struct {
	digest string
	how    func()
	on     *atomic.Bool
}

func (c crashingHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c crashingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c crashingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.on.Load() && len(cmd.Args()) > 1 && cmd.Args()[1] == c.digest {
			c.how()
		}
		return next(ctx, cmd)
	}
}

// A hook of the caller's go-redis client that panics or ends its goroutine ends the waits of that
// look with an error, and nothing else.
func TestWaitWithAHookThatCrashes(t *testing.T) {
	for name, how := range map[string]func(){"panic": func() { panic("hook") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				rdb := redis.NewClient(b.Redis.Options())
				defer func() { require.NoError(b, rdb.Close()) }()
				var on atomic.Bool
				rdb.AddHook(crashingHook{queuetest.Digest("wait"), how, &on})
				client := delayq.NewClient(rdb, delayq.Prefix(queuetest.Prefix))
				b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
				w := await(b.T, client, "t", "x")
				b.Pass(time.Second)
				on.Store(true)
				require.Error(b, await(b.T, client, "t", "x").get().err)
				require.Error(b, call(b.T, client, "y").get().err)
				require.ErrorIs(b, queuetest.ErrOf(b.Client.Get(b.Context(), "t", "y")), delayq.ErrNotFound)
				on.Store(false)
				require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
				require.ErrorIs(b, w.get().err, delayq.ErrCancelled)
			})
		})
	}
}

// A user who may not subscribe looks each second. One who may not use the key is refused at once.
func TestWaitWithoutRights(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin, prefix := rs.Client(t), redistest.Prefix(t)
	f := queuetest.NewFixture(t, admin)
	_ = prefix
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	user := func(name string, rules ...any) *delayq.Client {
		words := append([]any{"ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all"}, rules...)
		require.NoError(t, admin.Do(ctx, words...).Err())
		opts := rs.Options()
		opts.Username, opts.Password = name, "secret"
		rdb := redis.NewClient(opts)
		t.Cleanup(func() { _ = rdb.Close() })
		return delayq.NewClient(rdb, delayq.Prefix(f.Prefix))
	}
	deaf, blind := user("deaf", "-subscribe"), user("blind", "resetkeys", "%R~*")
	queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(_ context.Context, job *delayq.Job) error { return job.SetOutput([]byte(job.ID)) })
	result, err := deaf.Call(ctx, "topic", "x", nil, delayq.ProcessIn(50*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, "x", string(result.Output))
	_, err = blind.Wait(ctx, "topic", "x")
	require.ErrorContains(t, err, "NOPERM")
}

// A client hears of an end in a Cluster, whichever nodes it is subscribed at and the topic is on.
func TestClusterWait(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	f := queuetest.NewFixture(t, rdb)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	server := queuetest.NewServer(rdb, f.Prefix)
	for _, topic := range queuetest.TopicsOnAllNodes() {
		server.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error { return job.SetOutput([]byte(job.Topic + job.ID)) })
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	var all sync.WaitGroup
	for range 6 { // the channel of each client has a slot of its own
		client := delayq.NewClient(rdb, delayq.Prefix(f.Prefix))
		for _, topic := range queuetest.TopicsOnAllNodes() {
			all.Go(func() {
				result, err := client.Call(ctx, topic, "", nil, delayq.ProcessIn(100*time.Millisecond))
				if err != nil || !strings.HasPrefix(string(result.Output), topic) {
					t.Errorf("%s: %v", topic, err)
				}
			})
		}
	}
	all.Wait()
	stop()
	require.NoError(t, <-ended)
}
