package delayq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
)

// go-redis sends a request again when its reply is lost. First the scripts: sent twice, with other
// things in between, they answer as they did and change nothing more.

func TestScriptsSentTwice(t *testing.T) {
	settled := func(verb verb) func(h *Hand, running Held) (reply, error) {
		return func(h *Hand, running Held) (reply, error) {
			return h.settle([]Held{running, {ID: "gone", Fence: "1"}}, row{verb: verb, delay: time.Hour, attempts: 1, entry: byHand})
		}
	}
	calls := map[string]func(h *Hand, running Held) (reply, error){
		"enqueue duplicate": func(h *Hand, _ Held) (reply, error) {
			return h.tryEnqueue(false, [2]string{"ready", "+0"}, [2]string{"new", "+0"}, [2]string{"later", "+500"})
		},
		"replace all": func(h *Hand, _ Held) (reply, error) {
			return h.tryEnqueue(true, [2]string{"ready", "+0"}, [2]string{"running", "+500"}, [2]string{"dead", "+0"}, [2]string{"new", "+0"})
		},
		"cancel ready":       func(h *Hand, _ Held) (reply, error) { return h.tryCancel("ready") },
		"cancel none":        func(h *Hand, _ Held) (reply, error) { return h.tryCancel("nobody") },
		"reschedule running": func(h *Hand, _ Held) (reply, error) { return h.tryReschedule("running", "+0") },
		"reschedule dead":    func(h *Hand, _ Held) (reply, error) { return h.tryReschedule("dead", "+0") },
		"reschedule none":    func(h *Hand, _ Held) (reply, error) { return h.tryReschedule("nobody", "+0") },
		"revive none":        func(h *Hand, _ Held) (reply, error) { return h.tryRevive("ready") },
		"prune":              func(h *Hand, _ Held) (reply, error) { return h.tryPrune(0, time.Hour, 500) },
		"pause":              func(h *Hand, _ Held) (reply, error) { return h.tryPause("pause", "me", time.Hour) },
		"resume":             func(h *Hand, _ Held) (reply, error) { return h.tryPause("resume", "me", 0) },
		"prune none":         func(h *Hand, _ Held) (reply, error) { return h.tryPrune(1, time.Hour, 500) },
	}
	for name, call := range breakable {
		calls[name] = call
	}
	for name, verb := range map[string]verb{
		"ack": verbAck, "expire": verbExpire, "retry": verbRetry, "snooze": verbSnooze, "bury": verbBury, "return": verbReturn,
		"again": verbAgain,
	} {
		calls[name] = settled(verb)
	}
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				h := NewHand(t, rdb, redistest.Prefix(t), "topic")
				running, _ := stage(h)
				first, err := call(h, running)
				require.NoError(t, err)
				again := h.last
				for _, between := range []func(h *Hand){
					func(*Hand) {},
					func(h *Hand) { h.Promote() },
					func(h *Hand) { h.Take(100, time.Hour) },
					func(h *Hand) { h.finish() },
				} {
					if name == "promote" || name == "extend" || name == "take" || name == "pause" {
						between = func(*Hand) {} // their work depends on the time, a take on its leases, and in a pause nothing ends
					}
					other := NewHand(t, rdb, h.prefix(), "topic")
					between(other)
					before := Dump(t, rdb, h.prefix())
					got, err := again()
					require.NoError(t, err)
					require.Equal(t, first.status(), got.status())
					if name == "promote" {
						first[2], first[3], got[4] = int64(0), int64(0), first[4]
					}
					require.Equal(t, first[2:], got[2:])
					require.Equal(t, before, Dump(t, rdb, h.prefix()))
				}
			})
		}
	})
}

// A number is sent again by the one who had it: the next number of the series, or the same of
// another series, is another call.
func TestScriptsSentAnewAreDoneAnew(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "x")
		for range 2 {
			r, err := h.tryCancel("x")
			require.NoError(t, err)
			require.Contains(t, []string{"ready", "none"}, r.text(2))
		}
		r, err := h.tryCancel("x")
		require.NoError(t, err)
		require.Equal(t, "none", r.text(2))
		other := NewHand(t, h.rdb, h.prefix(), "topic")
		other.series.seq = h.series.seq - 3 // its next number is that of the first cancel
		h.put("+0", "x")
		r, err = other.tryCancel("x")
		require.NoError(t, err)
		require.Equal(t, "ready", r.text(2))
	})
}

// Then the client, on a connection that loses one reply.

// A lossy is a client that loses one reply, to a call of one script that has been made before.
type lossy struct {
	*fault
	t      *testing.T
	hand   *Hand
	client *Client
}

func eachLossy(t *testing.T, test func(t *testing.T, l *lossy)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := &lossy{fault: &fault{lose: true}, t: t, hand: NewHand(t, rdb, redistest.Prefix(t), "topic")}
		l.done = true
		for _, s := range allScripts { // so that no call is made twice for lack of the script
			require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(s.text)).Err())
		}
		bad := redis.NewClient(faulty(rdb, l.fault))
		t.Cleanup(func() { _ = bad.Close() })
		redistest.InRoles(t, bad)
		l.client = NewClient(bad, Prefix(l.hand.prefix()))
		test(t, l)
		require.True(t, l.happened(), "no reply was lost")
	})
}

// lose arms the fault: the next call of a script is carried out, and after that its reply is lost.
func (l *lossy) next(s *script, after func()) { l.again(fmt.Sprint(s.digest), after) }

// The job runs while the caller still waits: by the time the request is repeated nothing of it is
// left. (B2, B3, B4)
func TestEnqueueWithALostReplyRunsOnce(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		var runs atomic.Int64
		acked := make(chan struct{}, 10)
		server := AsWorker(NewServer(l.hand.rdb, Prefix(l.hand.prefix()), Hooks(doneHook(func() { acked <- struct{}{} })), Logger(slog.New(slog.DiscardHandler))))
		server.HandlerFunc("topic", func(context.Context, *Job) error {
			runs.Add(1)
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx) }()
		l.next(enqueueScript, func() { <-acked })
		job, err := l.client.Enqueue(t.Context(), "topic", "x", nil)
		require.NoError(t, err)
		require.Equal(t, "x", job.ID)
		_, err = l.client.Enqueue(t.Context(), "topic", "last", nil)
		require.NoError(t, err)
		<-acked
		stop()
		require.NoError(t, <-ended)
		require.EqualValues(t, 2, runs.Load(), "x and last")
		require.Empty(t, l.hand.Traces("x"))
	})
}

type doneHook func()

func (f doneHook) Done(RunEvent) { f() }

// (B3)
func TestEnqueueWithALostReply(t *testing.T) {
	for name, opts := range map[string][]JobOption{
		"now": nil, "later": {ProcessIn(time.Hour)}, "replace": {Replace()}, "replace later": {Replace(), ProcessIn(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			eachLossy(t, func(t *testing.T, l *lossy) {
				script := enqueueScript
				if o, _ := newJobOptions(opts); o.replace != replaceNone {
					script = replaceScript
					l.hand.put("+0", "x")
				}
				l.next(script, nil)
				job, err := l.client.Enqueue(t.Context(), "topic", "x", []byte("new"), opts...)
				require.NoError(t, err)
				info := l.hand.info("x")
				require.Equal(t, job.Nonce(), info.Nonce())
				l.hand.Hasten(time.Hour)
				l.hand.Promote()
				require.Equal(t, "o", l.hand.Ack(l.hand.TakeOne("x")))
				require.Empty(t, l.hand.Take(10, time.Minute))
			})
		})
	}
}

// The replaced job is being run already when the request comes a second time: its lease is left
// alone.
func TestReplaceWithALostReplyKeepsTheNewLease(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.put("+0", "x")
		var held Held
		l.next(replaceScript, func() { held = l.hand.TakeOne("x") })
		_, err := l.client.Enqueue(t.Context(), "topic", "x", []byte("new"), Replace())
		require.NoError(t, err)
		require.Equal(t, "o", l.hand.Ack(held))
		require.Empty(t, l.hand.Take(10, time.Minute))
	})
}

func TestDuplicateWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.put("+0", "x")
		l.next(enqueueScript, func() { require.Equal(t, "o", l.hand.Ack(l.hand.TakeOne("x"))) })
		_, err := l.client.Enqueue(t.Context(), "topic", "x", nil)
		require.ErrorIs(t, err, ErrDuplicate, "as it was when it was asked first")
		require.Empty(t, l.hand.Traces("x"))
	})
}

func TestBatchWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.put("+0", "1", "700")
		jobs := make([]NewJob, 1200)
		for i := range jobs {
			jobs[i] = NewJob{Topic: "topic", ID: fmt.Sprint(i)}
		}
		l.next(enqueueScript, func() { require.Len(t, l.hand.Take(1000, time.Minute), 2+499) })
		results, err := l.client.EnqueueBatch(t.Context(), jobs)
		require.ErrorContains(t, err, "2 of 1200")
		for i, r := range results {
			if i == 1 || i == 700 {
				require.ErrorIs(t, r.Err, ErrDuplicate, i)
				continue
			}
			require.NoError(t, r.Err, i)
		}
	})
}

// (Dequeue of a job that is gone by the repetition gives the state, not ErrNotFound.)
func TestDequeueWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.put("+3600000", "x")
		l.next(cancelScript, nil)
		state, err := l.client.Dequeue(t.Context(), "topic", "x")
		require.NoError(t, err)
		require.Equal(t, StateScheduled, state)
		require.Empty(t, l.hand.Traces("x"))
		_, err = l.client.Dequeue(t.Context(), "topic", "x")
		require.ErrorIs(t, err, ErrNotFound, "another call")
	})
}

// The ID is used again before the request comes a second time: the new job is left alone.
func TestDequeueWithALostReplyLeavesTheNextJobAlone(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.put("+0", "x")
		l.next(cancelScript, func() { l.hand.put("+3600000", "x") })
		state, err := l.client.Dequeue(t.Context(), "topic", "x")
		require.NoError(t, err)
		require.Equal(t, StateReady, state)
		require.Equal(t, StateScheduled, l.hand.info("x").State)
	})
}

func TestRescheduleWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.put("+3600000", "x")
		var held Held
		l.next(rescheduleScript, func() { held = l.hand.TakeOne("x") })
		err := l.client.Reschedule(t.Context(), "topic", "x", ProcessIn(0))
		require.NoError(t, err, "it was not running when it was asked first")
		require.Equal(t, "o", l.hand.Ack(held))
	})
}

func TestReviveWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.put("+0", "x")
		require.Equal(t, "o", l.hand.Bury(l.hand.TakeOne("x")))
		var held Held
		l.next(reviveScript, func() { held = l.hand.TakeOne("x") })
		require.NoError(t, l.client.Revive(t.Context(), "topic", "x"))
		require.Equal(t, "o", l.hand.Ack(held))
		require.Empty(t, l.hand.Take(10, time.Minute))
	})
}

// The ID is done again before the request comes a second time: that job is left alone.
func TestDeleteWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		run := func() {
			_, err := NewClient(l.hand.rdb, Prefix(l.hand.prefix())).Enqueue(t.Context(), "topic", "x", nil, Retention(time.Hour))
			require.NoError(t, err)
			require.Equal(t, "o", l.hand.Ack(l.hand.TakeOne("x")))
		}
		run()
		l.next(deleteScript, run)
		require.NoError(t, l.client.Delete(t.Context(), "topic", "x"))
		require.Equal(t, StateDone, l.hand.info("x").State)
	})
}

func TestPauseWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.next(pauseScript, nil)
		require.NoError(t, l.client.Pause(t.Context(), "topic", Pause{By: "me", Reason: "why"}))
		info, err := l.client.Inspect(t.Context(), "topic")
		require.NoError(t, err)
		require.True(t, info.Paused)
	})
}

// A pause that was refused is refused again, even if there is room for it by then.
func TestRefusedPauseWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		for i := range maxPauses {
			require.NoError(t, l.client.Pause(t.Context(), "topic", Pause{By: fmt.Sprint(i)}))
		}
		other := NewClient(l.hand.rdb, Prefix(l.hand.prefix()))
		l.next(pauseScript, func() { require.NoError(t, other.Resume(t.Context(), "topic", "0")) })
		require.ErrorIs(t, l.client.Pause(t.Context(), "topic", Pause{By: "me"}), ErrTooManyPauses)
		info, err := other.Inspect(t.Context(), "topic")
		require.NoError(t, err)
		require.Len(t, info.Pauses, maxPauses-1)
	})
}

// Without retries of go-redis the caller is told that the outcome is not known, and can find out.
func TestLostForGood(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx := t.Context()
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		for _, s := range allScripts {
			require.NoError(t, rdb.ScriptLoad(ctx, fmt.Sprint(s.text)).Err())
		}
		f := &fault{lose: true}
		o := faulty(rdb, f)
		o.MaxRetries = -1
		bad := redis.NewClient(o)
		t.Cleanup(func() { _ = bad.Close() })
		redistest.InRoles(t, bad)
		client := NewClient(bad, Prefix(h.prefix()))

		f.again(fmt.Sprint(enqueueScript.digest), nil)
		job, err := client.Enqueue(ctx, "topic", "x", nil)
		require.Equal(t, "x", job.ID, "to ask for it")
		require.True(t, job.Due.IsZero())
		require.ErrorIs(t, err, ErrUnknownOutcome)
		require.ErrorContains(t, err, `"topic"`)
		_, err = client.Enqueue(ctx, "topic", "x", nil)
		require.ErrorIs(t, err, ErrDuplicate, "so it had been stored")

		f.again(fmt.Sprint(cancelScript.digest), nil)
		_, err = client.Dequeue(ctx, "topic", "x")
		require.ErrorIs(t, err, ErrUnknownOutcome)
		_, err = client.Dequeue(ctx, "topic", "x")
		require.ErrorIs(t, err, ErrNotFound, "so it had been cancelled")

		f.again(fmt.Sprint(rescheduleScript.digest), nil)
		require.ErrorIs(t, client.Reschedule(ctx, "topic", "x", ProcessIn(0)), ErrUnknownOutcome)
		f.again(fmt.Sprint(reviveScript.digest), nil)
		require.ErrorIs(t, client.Revive(ctx, "topic", "x"), ErrUnknownOutcome)
		f.again(fmt.Sprint(pauseScript.digest), nil)
		require.ErrorIs(t, client.Pause(ctx, "topic", Pause{}), ErrUnknownOutcome)
		f.again(fmt.Sprint(enqueueScript.digest), nil)
		results, err := client.EnqueueBatch(ctx, []NewJob{{Topic: "topic", ID: "y"}, {Topic: "other", ID: "y"}})
		require.ErrorIs(t, err, ErrUnknownOutcome)
		unsure := 0
		for _, r := range results {
			require.Error(t, r.Err)
			if errors.Is(r.Err, ErrUnknownOutcome) {
				unsure++
				require.NotNil(t, r.Job)
				continue
			}
			require.ErrorContains(t, r.Err, "not sent")
			require.Nil(t, r.Job)
		}
		require.Equal(t, 1, unsure, "the other topic would be another call")
	})
}

// A take that a single job is missing to looks through the left-overs behind in large steps, and
// not once for each of them.
func TestLeftOversCostATakeLittle(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	for _, limit := range []int{7, 8, 500} {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		leased := numbered("leased", 1000)
		h.put("+0", leased...)
		eachOf(t, 1000, 500, func(n int) { require.Len(t, h.Take(n, time.Hour), n) })
		h.put("+0", numbered("fresh", limit-1)...)
		h.push(h.keys.ready, leased...)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		require.Len(t, h.Take(limit, time.Hour), limit-1)
		cost := commandsOf(t, rdb)
		reads, err := strconv.Atoi(cost["hmget"])
		require.NoError(t, err)
		require.Less(t, reads, 20, "%d: %v", limit, cost)
	}
}

// A leased left-over of limited retries waits for no slot.
func TestLeftOverOfLimitedRetriesIsNotInTheWay(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		c := newCrowd(h, 0)
		c.pool["leased"], c.pool["fresh"] = limitedJob, unlimitedJob
		c.leases["leased"], c.ready = 5, []string{"leased", "fresh"}
		c.store(t)
		require.Equal(t, []string{"fresh"}, idsOf(c.take(t, 8, 0)))
	})
}

// Whatever stands in the lists, and however many jobs are taken or settled in one call: what
// happens is what looking at one after the other would do.
func TestManyAreWhatOneAfterTheOtherWouldBe(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) { playCrowds(t, h, redistest.Size(50), func(string) {}) })
}

// A Redis at its maxmemory takes and settles as any other.
func TestManyWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	playCrowds(t, NewHand(t, rdb, redistest.Prefix(t), "topic"), redistest.Size(50), func(maxmemory string) {
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", maxmemory).Err())
	})
}

// playCrowds plays with n crowds. limit sets the memory that Redis may use before each call of a
// script, and after it.
func playCrowds(t *testing.T, h *Hand, n int, limit func(maxmemory string)) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(n) {
		c := newCrowd(NewHand(t, h.rdb, h.prefix(), fmt.Sprint("topic", i)), seed+i)
		c.limit = limit
		c.fill()
		c.store(t)
		for range 3 {
			held := c.take(t, c.one(1, 5, 7, 8, 9, 30, 1000), c.one(0, 1, 8, 1000))
			c.settle(t, held)
		}
	}
}

const (
	limitedJob   = "nonce...\x01\x01"
	unlimitedJob = "nonce...\x01\x00"
)

// A crowd is what a topic holds, and does with it by the book what take and the settling scripts
// are to do.
type crowd struct {
	*rand.Rand
	h                    *Hand
	pool                 map[string]string
	leases, bucket, dead map[string]float64
	handoff, ready       []string
	limit                func(maxmemory string)
}

func newCrowd(h *Hand, seed uint64) *crowd {
	return &crowd{Rand: rand.New(rand.NewPCG(seed, 0)), h: h, pool: map[string]string{},
		leases: map[string]float64{}, bucket: map[string]float64{}, dead: map[string]float64{},
		limit: func(string) {}}
}

func (c *crowd) one(of ...int) int { return of[c.IntN(len(of))] }

// fill makes jobs in all states, most of them ready, and left-overs of all.
func (c *crowd) fill() {
	push := func(id string) {
		if c.IntN(5) == 0 {
			c.handoff = append(c.handoff, id)
		} else {
			c.ready = append(c.ready, id)
		}
	}
	others, limited := c.one(0, 5, 50), c.one(0, 5, 50) // percent
	for i := range c.one(3, 20, 100) {
		id := strconv.Itoa(i)
		c.pool[id] = unlimitedJob
		if c.IntN(100) < limited {
			c.pool[id] = limitedJob
		}
		push(id)
		if c.IntN(100) < others {
			switch c.IntN(6) {
			case 0:
				delete(c.pool, id)
			case 1:
				c.bucket[id] = 5
			case 2:
				c.dead[id] = 5
			case 3:
				c.leases[id] = float64(c.IntN(3)) + 0.125
			default:
				c.pool[id] = unlimitedJob
			}
			push(id)
		}
	}
	c.Shuffle(len(c.ready), func(i, j int) { c.ready[i], c.ready[j] = c.ready[j], c.ready[i] })
}

func (c *crowd) store(t *testing.T) {
	k, ctx := c.h.keys, t.Context()
	_, err := c.h.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for id, record := range c.pool {
			p.HSet(ctx, k.pool, id, record)
		}
		for key, zset := range map[string]map[string]float64{k.leases: c.leases, k.bucket: c.bucket, k.dead: c.dead} {
			for id, score := range zset {
				p.ZAdd(ctx, key, redis.Z{Member: id, Score: score})
			}
		}
		for key, list := range map[string][]string{k.handoff: c.handoff, k.ready: c.ready} {
			for _, id := range list {
				p.RPush(ctx, key, id)
			}
		}
		return nil
	})
	require.NoError(t, err)
}

// take takes jobs, and then what the same call answers when it is sent again.
func (c *crowd) take(t *testing.T, limit, free int) []Held {
	t.Helper()
	var want []string
	var looked int
	status := "empty"
	for _, id := range slices.Concat(c.handoff, c.ready) {
		record := c.pool[id]
		if len(want) == limit {
			break
		}
		if record != "" && c.leases[id]+c.bucket[id]+c.dead[id] == 0 && !slices.Contains(want, id) {
			if len(want) >= free && record == limitedJob {
				status = "busy"
				break
			}
			want = append(want, id)
		}
		looked++
	}
	if looked > 0 {
		status = "ok"
	}
	handed := min(looked, len(c.handoff))
	c.handoff, c.ready = c.handoff[handed:], c.ready[looked-handed:]
	call := func() (reply, error) { return c.h.tryTakeAhead("", limit, free, time.Hour) }
	var held []Held
	for range 2 {
		c.limit("1")
		r, err := call()
		c.limit("0")
		require.NoError(t, err)
		require.Equal(t, status, r.status(), "%d of %d", limit, free)
		if status != "ok" {
			break
		}
		held = heldOf(r)
		require.Equal(t, append([]string{}, want...), idsOf(held))
		if call = c.h.last; len(want) == 0 { // nothing to repeat
			break
		}
	}
	for _, one := range held {
		c.leases[one.ID] = float64(record.ParseLeaseEnd(one.Fence).Micros()) / 1000
	}
	c.same(t)
	return held
}

// settle ends the runs of some jobs, of which some are not there any more or have another lease, in
// one call.
func (c *crowd) settle(t *testing.T, held []Held) {
	t.Helper()
	k, ctx := c.h.keys, t.Context()
	for id, end := range c.leases {
		if c.IntN(2) == 0 { // that of another take, or once more with another fence
			held = append(held, Held{ID: id, Fence: fmt.Sprint(end)})
		}
	}
	slices.SortFunc(held, func(a, b Held) int { return strings.Compare(a.Fence+a.ID, b.Fence+b.ID) })
	from, to := c.IntN(len(held)+1), c.IntN(len(held)+1)
	held = slices.Clone(held[min(from, to):max(from, to)])
	if len(held) == 0 {
		return
	}
	verb := c.IntN(7)
	if verb == 1 || verb == 6 { // else it would stand in ready twice, and of limited retries end a take sooner than by the book
		seen := map[string]bool{}
		held = slices.DeleteFunc(held, func(one Held) bool {
			twice := seen[one.ID]
			seen[one.ID] = true
			return twice
		})
	}
	odd := c.one(0, 5, 50) // percent
	for i := range held {
		if c.IntN(100) >= odd {
			continue
		}
		switch id := held[i].ID; c.IntN(5) {
		case 0:
			held[i].Fence = "1 " + held[i].Fence + " 2"
		case 1:
			held[i].Fence = "5"
		case 2:
			require.NoError(t, c.h.rdb.ZAdd(ctx, k.leases, redis.Z{Member: id, Score: 5}).Err())
			c.leases[id] = 5
		default:
			require.NoError(t, c.h.rdb.ZRem(ctx, k.leases, id).Err())
			delete(c.leases, id)
			if c.IntN(2) == 0 {
				require.NoError(t, c.h.rdb.HDel(ctx, k.pool, id).Err())
				delete(c.pool, id)
			}
		}
	}
	if c.IntN(4) == 0 {
		for i := range held {
			held[i].Fence = "1 " + held[i].Fence
		}
	}
	var want strings.Builder
	var ours []string
	for _, one := range held {
		end, leased := c.leases[one.ID]
		names := func(fence string) bool { return record.ParseLeaseEnd(fence).Micros() == int64(math.Round(1000*end)) }
		switch {
		case leased && slices.ContainsFunc(strings.Fields(one.Fence), names):
			want.WriteByte('o')
			ours = append(ours, one.ID)
		case c.pool[one.ID] != "":
			want.WriteByte('l')
		default:
			want.WriteByte('g')
		}
	}
	c.limit("1")
	letters := []func() string{
		func() string { return c.h.Ack(held...) },
		func() string { return c.h.Return(held...) },
		func() string { return c.h.Bury(held...) },
		func() string { return c.h.Retry(time.Hour, held...) },
		func() string { return c.h.Snooze(time.Hour, held...) },
		func() string { return c.h.Again(time.Hour, held...) },
		func() string { return c.h.Again(0, held...) },
	}[verb]()
	c.limit("0")
	require.Equal(t, want.String(), letters)
	if verb == 1 {
		c.ready = append(slices.Clone(ours), c.ready...)
	}
	for _, id := range ours {
		delete(c.leases, id)
		switch verb {
		case 0:
			delete(c.pool, id)
		case 2:
			c.dead[id] = 5
		case 3, 4:
			c.bucket[id] = 5
		case 5:
			c.pool[id], c.bucket[id] = unlimitedJob, 5
		case 6:
			c.pool[id] = unlimitedJob
			c.ready = append(c.ready, id)
		}
	}
	c.same(t)
}

// same compares what the topic holds with what it should hold; of the bucket and of dead just the
// IDs.
func (c *crowd) same(t *testing.T) {
	t.Helper()
	k, ctx := c.h.keys, t.Context()
	require.Equal(t, append([]string{}, c.handoff...), c.h.list(k.handoff))
	require.Equal(t, append([]string{}, c.ready...), c.h.list(k.ready))
	leases := map[string]float64{}
	for _, z := range c.h.rdb.ZRangeWithScores(ctx, k.leases, 0, -1).Val() {
		if id := z.Member.(string); len(id) <= maxIDLen { // not the anchor
			leases[id] = z.Score
		}
	}
	require.InDeltaMapValues(t, c.leases, leases, 0.0004)
	for key, zset := range map[string]map[string]float64{k.bucket: c.bucket, k.dead: c.dead} {
		require.ElementsMatch(t, slices.Collect(maps.Keys(zset)), c.h.rdb.ZRange(ctx, key, 0, -1).Val())
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(c.pool)), c.h.rdb.HKeys(ctx, k.pool).Val())
}
