package lua_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// go-redis sends a request again when its reply is lost. First the scripts: sent twice, with other
// things in between, they answer as they did and change nothing more.

func TestScriptsSentTwice(t *testing.T) {
	settled := func(verb settle.Verb) func(h *Hand, running hand.Held) (script.Reply, error) {
		return func(h *Hand, running hand.Held) (script.Reply, error) {
			return h.Settle([]hand.Held{running, {ID: "gone", Fence: "1"}}, settle.Row{Verb: verb, Delay: time.Hour, Attempts: 1, Failure: hand.Failed})
		}
	}
	calls := map[string]func(h *Hand, running hand.Held) (script.Reply, error){
		"enqueue duplicate": func(h *Hand, _ hand.Held) (script.Reply, error) {
			return h.TryEnqueue(false, [2]string{"ready", "+0"}, [2]string{"new", "+0"}, [2]string{"later", "+500"})
		},
		"replace all": func(h *Hand, _ hand.Held) (script.Reply, error) {
			return h.TryEnqueue(true, [2]string{"ready", "+0"}, [2]string{"running", "+500"}, [2]string{"dead", "+0"}, [2]string{"new", "+0"})
		},
		"merge all": func(h *Hand, _ hand.Held) (script.Reply, error) {
			return h.TryEnqueue(false, [2]string{"ready", "b+50/500"}, [2]string{"running", "b+50/500"}, [2]string{"dead", "l+9"}, [2]string{"new", "b+9/9"}, [2]string{"scheduled", "l+7 +8"})
		},
		"ack of one with a successor": func(h *Hand, running hand.Held) (script.Reply, error) {
			h.follow("running")
			return h.Settle([]hand.Held{running, {ID: "gone", Fence: "1"}}, settle.Row{Verb: settle.Ack})
		},
		"again for a successor": func(h *Hand, running hand.Held) (script.Reply, error) {
			h.follow("running")
			return h.Settle([]hand.Held{running, {ID: "gone", Fence: "1"}}, settle.Row{Verb: settle.Bury, Heir: true, Attempts: 1, Failure: hand.Failed})
		},
		"snooze of one with a successor": func(h *Hand, running hand.Held) (script.Reply, error) {
			h.follow("running")
			return h.Settle([]hand.Held{running, {ID: "gone", Fence: "1"}}, settle.Row{Verb: settle.Snooze, Delay: time.Hour})
		},
		"cancel ready": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryCancel("ready") },
		"enqueue closed": func(h *Hand, _ hand.Held) (script.Reply, error) {
			h.entomb("closed", "closed too")
			return h.TryEnqueue(false, [2]string{"closed", "+0"}, [2]string{"dead", "+0"}, [2]string{"closed too", "+0"}, [2]string{"new", "+0!3600000/9"})
		},
		"cancel and close too many": func(h *Hand, _ hand.Held) (script.Reply, error) {
			h.entomb("closed")
			return h.Run(script.Cancel, h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic, "ready", "!3600000/2", "nobody", "!3600000/2", "closed", "!0/2")
		},
		"cancel none":        func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryCancel("nobody") },
		"reschedule running": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryReschedule("running", "+0") },
		"reschedule dead":    func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryReschedule("dead", "+0") },
		"reschedule of one that expires": func(h *Hand, _ hand.Held) (script.Reply, error) {
			h.Put("+3600000 +7200000", "expires")
			return h.TryRescheduleKnown("expires", "+0", record.Job{}) // the caller does not know when
		},
		"reschedule none": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryReschedule("nobody", "+0") },
		"bury running":    func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryBury("running") },
		"cancel changed":  func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryCancelKnown("ready", "s") },
		"revive none":     func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryRevive("ready") },
		"prune":           func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryPrune(0, time.Hour, 500) },
		"pause":           func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryPause("pause", "me", time.Hour) },
		"resume":          func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryPause("resume", "me", 0) },
		"limits": func(h *Hand, _ hand.Held) (script.Reply, error) {
			return h.tryLimits(delayq.Limits{Running: 3, Rate: delayq.Per(2, time.Hour)})
		},
		"hold":       func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryHold(time.Hour) },
		"end hold":   func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryHold(0) },
		"key hold":   func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryKeyHold("k", 3600000, 10) },
		"resume key": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryKeyHold("k", 0, 10) },
		"priority":   func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryPriority("ready", 1000) },
		"key limits": func(h *Hand, _ hand.Held) (script.Reply, error) {
			return h.Run(script.KeyLimits, h.Series.Next(), "k", "3", 10, script.ControlChannel(h.Prefix()), h.Keys.Topic)
		},
		"prune none": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryPrune(1, time.Hour, 500) },
	}
	for name, call := range breakable {
		calls[name] = call
	}
	for name, verb := range map[string]settle.Verb{
		"ack": settle.Ack, "expire": settle.Expire, "retry": settle.Retry, "snooze": settle.Snooze, "bury": settle.Bury, "return": settle.Return, "return and hold": settle.Hold,
		"again": settle.Again, "pass": settle.Pass,
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
				again := h.Last
				for _, between := range []func(h *Hand){
					func(*Hand) {},
					func(h *Hand) { h.Promote() },
					func(h *Hand) { h.Take(100, time.Hour) },
					func(h *Hand) { h.finish() },
				} {
					if slices.Contains([]string{"promote", "extend", "take", "pause", "limits", "hold", "hold back", "return and hold", "reschedule of one that expires"}, name) {
						between = func(*Hand) {} // their work depends on the time, a take on its leases, in a pause nothing ends, and one reply has the record
					}
					other := NewHand(t, rdb, h.Prefix(), "topic")
					between(other)
					before := redistest.Dump(t, rdb, h.Prefix())
					got, err := again()
					require.NoError(t, err)
					require.Equal(t, first.Status(), got.Status())
					if name == "promote" {
						first[2], first[3], got[4], got[7] = int64(0), int64(0), first[4], first[7] // of the time
					}
					require.Equal(t, first[2:], got[2:])
					require.Equal(t, before, redistest.Dump(t, rdb, h.Prefix()))
				}
			})
		}
	})
}

// entomb closes IDs for an hour.
func (h *Hand) entomb(ids ...string) {
	h.T.Helper()
	for _, id := range ids {
		till := h.RDB.Time(h.T.Context()).Val().Add(time.Hour).UnixMilli()
		require.NoError(h.T, h.RDB.ZAdd(h.T.Context(), h.Keys.Tombs, redis.Z{Score: float64(till), Member: id}).Err())
	}
}

// A call that is sent again after its receipt is gone leaves the tomb of its job as it is, also one
// that was freed.
func TestUniqueSentAgainWithoutAReceipt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		ctx, head := t.Context(), "\x00\x00\x00\x00\x00\x00\x00\x07\x01"
		send := func() string {
			r, err := h.Run(script.Enqueue, h.Series.Next(), "1000", script.ControlChannel(h.Prefix()), h.Keys.Topic, "x", head, "\x80", "+0!3600000/9")
			require.NoError(t, err)
			return r.Text(2)
		}
		require.Empty(t, send())
		require.NoError(t, rdb.ZAdd(ctx, h.Keys.Tombs, redis.Z{Score: 2, Member: "x"}, redis.Z{Score: 1, Member: "over"}).Err())
		require.Empty(t, send(), "it is stored")
		require.EqualValues(t, 2, rdb.ZScore(ctx, h.Keys.Tombs, "x").Val())
		require.NoError(t, rdb.ZRem(ctx, h.Keys.Tombs, "x").Err())
		require.Empty(t, send())
		require.Equal(t, []string{"over"}, rdb.ZRange(ctx, h.Keys.Tombs, 0, -1).Val())
	})
}

// A number is sent again by the one who had it: the next number of the series, or the same of
// another series, is another call.
func TestScriptsSentAnewAreDoneAnew(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "x")
		for range 2 {
			r, err := h.TryCancel("x")
			require.NoError(t, err)
			require.Contains(t, []string{"r", "g"}, r.Text(2))
		}
		r, err := h.TryCancel("x")
		require.NoError(t, err)
		require.Equal(t, "g", r.Text(2))
		other := NewHand(t, h.RDB, h.Prefix(), "topic")
		other.Series.Seq = h.Series.Seq - 3 // its next number is that of the first cancel
		h.Put("+0", "x")
		r, err = other.TryCancel("x")
		require.NoError(t, err)
		require.Equal(t, "r", r.Text(2))
	})
}

// Then the client, on a connection that loses one reply.

// A lossy is a client that loses one reply, to a call of one script that has been made before.
type lossy struct {
	*redistest.Fault
	t      *testing.T
	hand   *Hand
	client *client
}

func eachLossy(t *testing.T, test func(t *testing.T, l *lossy)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := &lossy{Fault: &redistest.Fault{Lose: true}, t: t, hand: NewHand(t, rdb, redistest.Prefix(t), "topic")}
		l.Done = true
		for _, s := range script.All { // so that no call is made twice for lack of the script
			require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(s.Text)).Err())
		}
		bad := redis.NewClient(redistest.Faulty(rdb, l.Fault))
		t.Cleanup(func() { _ = bad.Close() })
		redistest.InRoles(t, bad)
		l.client = newClient(bad, l.hand.Prefix())
		test(t, l)
		require.True(t, l.Happened(), "no reply was lost")
	})
}

// lose arms the fault: the next call of a script is carried out, and after that its reply is lost.
func (l *lossy) next(s *script.Script, after func()) { l.Again(fmt.Sprint(s.Digest), after) }

// The job runs while the caller still waits: by the time the request is repeated nothing of it is
// left. (B2, B3, B4)
func TestEnqueueWithALostReplyRunsOnce(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		var runs atomic.Int64
		acked := make(chan struct{}, 10)
		server := queuetest.NewServer(l.hand.RDB, l.hand.Prefix(), delayq.Hooks(doneHook(func() { acked <- struct{}{} })))
		server.HandlerFunc("topic", func(context.Context, *delayq.Job) error {
			runs.Add(1)
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx) }()
		l.next(script.Enqueue, func() { <-acked })
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

func (f doneHook) Done(delayq.RunEvent) { f() }

// (B3)
func TestEnqueueWithALostReply(t *testing.T) {
	for name, opts := range map[string][]delayq.JobOption{
		"now": nil, "later": {delayq.ProcessIn(time.Hour)}, "replace": {delayq.Replace()}, "replace later": {delayq.Replace(), delayq.ProcessIn(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			eachLossy(t, func(t *testing.T, l *lossy) {
				which := script.Enqueue
				if strings.HasPrefix(name, "replace") {
					which = script.Replace
					l.hand.Put("+0", "x")
				}
				l.next(which, nil)
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
		l.hand.Put("+0", "x")
		var held hand.Held
		l.next(script.Replace, func() { held = l.hand.TakeOne("x") })
		_, err := l.client.Enqueue(t.Context(), "topic", "x", []byte("new"), delayq.Replace())
		require.NoError(t, err)
		require.Equal(t, "o", l.hand.Ack(held))
		require.Empty(t, l.hand.Take(10, time.Minute))
	})
}

func TestDuplicateWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.Put("+0", "x")
		l.next(script.Enqueue, func() { require.Equal(t, "o", l.hand.Ack(l.hand.TakeOne("x"))) })
		_, err := l.client.Enqueue(t.Context(), "topic", "x", nil)
		require.ErrorIs(t, err, delayq.ErrDuplicate, "as it was when it was asked first")
		require.Empty(t, l.hand.Traces("x"))
	})
}

func TestBatchWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.Put("+0", "1", "700")
		jobs := make([]delayq.NewJob, 1200)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(i)}
		}
		l.next(script.Enqueue, func() { require.Len(t, l.hand.Take(1000, time.Minute), 2+499) })
		results, err := l.client.EnqueueBatch(t.Context(), jobs)
		require.ErrorContains(t, err, "2 of 1200")
		for i, r := range results {
			if i == 1 || i == 700 {
				require.ErrorIs(t, r.Err, delayq.ErrDuplicate, i)
				continue
			}
			require.NoError(t, r.Err, i)
		}
	})
}

// (Dequeue of a job that is gone by the repetition gives the state, not ErrNotFound.)
func TestDequeueWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.Put("+3600000", "x")
		l.next(script.Cancel, nil)
		state, err := l.client.Dequeue(t.Context(), "topic", "x")
		require.NoError(t, err)
		require.Equal(t, delayq.StateScheduled, state)
		require.Empty(t, l.hand.Traces("x"))
		_, err = l.client.Dequeue(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound, "another call")
	})
}

// The ID is used again before the request comes a second time: the new job is left alone.
func TestDequeueWithALostReplyLeavesTheNextJobAlone(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.Put("+0", "x")
		l.next(script.Cancel, func() { l.hand.Put("+3600000", "x") })
		state, err := l.client.Dequeue(t.Context(), "topic", "x")
		require.NoError(t, err)
		require.Equal(t, delayq.StateReady, state)
		require.Equal(t, delayq.StateScheduled, l.hand.info("x").State)
	})
}

func TestRescheduleWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.Put("+3600000", "x")
		var held hand.Held
		l.next(script.Reschedule, func() { held = l.hand.TakeOne("x") })
		err := l.client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(0))
		require.NoError(t, err, "it was not running when it was asked first")
		require.Equal(t, "o", l.hand.Ack(held))
	})
}

func TestReviveWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.hand.Put("+0", "x")
		require.Equal(t, "o", l.hand.Bury(l.hand.TakeOne("x")))
		var held hand.Held
		l.next(script.Revive, func() { held = l.hand.TakeOne("x") })
		require.NoError(t, l.client.Revive(t.Context(), "topic", "x"))
		require.Equal(t, "o", l.hand.Ack(held))
		require.Empty(t, l.hand.Take(10, time.Minute))
	})
}

// The ID is done again before the request comes a second time: that job is left alone.
func TestDeleteWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		run := func() {
			_, err := newClient(l.hand.RDB, l.hand.Prefix()).Enqueue(t.Context(), "topic", "x", nil, delayq.Retention(time.Hour))
			require.NoError(t, err)
			require.Equal(t, "o", l.hand.Ack(l.hand.TakeOne("x")))
		}
		run()
		l.next(script.Delete, run)
		require.NoError(t, l.client.Delete(t.Context(), "topic", "x"))
		require.Equal(t, delayq.StateDone, l.hand.info("x").State)
	})
}

func TestPauseWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		l.next(script.Pause, nil)
		require.NoError(t, l.client.Pause(t.Context(), "topic", delayq.Pause{By: "me", Reason: "why"}))
		info := queuetest.StatsOf(t, l.client.insp, "topic")
		require.True(t, info.Paused)
	})
}

// A pause that was refused is refused again, even if there is room for it by then.
func TestRefusedPauseWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		for i := range hand.MostPauses {
			require.NoError(t, l.client.Pause(t.Context(), "topic", delayq.Pause{By: fmt.Sprint(i)}))
		}
		other := newClient(l.hand.RDB, l.hand.Prefix())
		l.next(script.Pause, func() { require.NoError(t, other.Resume(t.Context(), "topic", "0")) })
		require.ErrorIs(t, l.client.Pause(t.Context(), "topic", delayq.Pause{By: "me"}), delayq.ErrTooManyPauses)
		info := queuetest.StatsOf(t, other.insp, "topic")
		require.Len(t, info.Pauses, hand.MostPauses-1)
	})
}

// Without retries of go-redis the caller is told that the outcome is not known, and can find out.
func TestLostForGood(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx := t.Context()
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		for _, s := range script.All {
			require.NoError(t, rdb.ScriptLoad(ctx, fmt.Sprint(s.Text)).Err())
		}
		f := &redistest.Fault{Lose: true}
		o := redistest.Faulty(rdb, f)
		o.MaxRetries = -1
		bad := redis.NewClient(o)
		t.Cleanup(func() { _ = bad.Close() })
		redistest.InRoles(t, bad)
		client := newClient(bad, h.Prefix())

		f.Again(fmt.Sprint(script.Enqueue.Digest), nil)
		job, err := client.Enqueue(ctx, "topic", "x", nil)
		require.Equal(t, "x", job.ID, "to ask for it")
		require.True(t, job.Due.IsZero())
		require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
		require.ErrorContains(t, err, `"topic"`)
		_, err = client.Enqueue(ctx, "topic", "x", nil)
		require.ErrorIs(t, err, delayq.ErrDuplicate, "so it had been stored")

		f.Again(fmt.Sprint(script.Cancel.Digest), nil)
		_, err = client.Dequeue(ctx, "topic", "x")
		require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
		_, err = client.Dequeue(ctx, "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound, "so it had been cancelled")

		f.Again(fmt.Sprint(script.Reschedule.Digest), nil)
		require.ErrorIs(t, client.Reschedule(ctx, "topic", "x", delayq.ProcessIn(0)), delayq.ErrUnknownOutcome)
		f.Again(fmt.Sprint(script.Revive.Digest), nil)
		require.ErrorIs(t, client.Revive(ctx, "topic", "x"), delayq.ErrUnknownOutcome)
		f.Again(fmt.Sprint(script.Pause.Digest), nil)
		require.ErrorIs(t, client.Pause(ctx, "topic", delayq.Pause{}), delayq.ErrUnknownOutcome)
		f.Again(fmt.Sprint(script.Enqueue.Digest), nil)
		results, err := client.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "topic", ID: "y"}, {Topic: "other", ID: "y"}})
		require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
		unsure := 0
		for _, r := range results {
			require.Error(t, r.Err)
			if errors.Is(r.Err, delayq.ErrUnknownOutcome) {
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

// An act that is sent twice, or again after others, is recorded once.
func TestAuditSentTwice(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		send := func(nonce string) {
			_, err := h.Try(script.Audit, []any{script.AuditKey(h.Prefix())}, nonce, record.AuditEntry{Actor: nonce}.Encode(), record.MaxActs)
			require.NoError(t, err)
		}
		for i := range 50 {
			send(fmt.Sprintf("%02d", i))
			send("00")
		}
		all, err := h.RDB.LRange(t.Context(), script.AuditKey(h.Prefix()), 0, -1).Result()
		require.NoError(t, err)
		require.Len(t, all, 50)
	})
}

// What a take gives back of a lost one goes to the head of ready, or to its tail, in the order in
// which the jobs were: each time the place decides, whether the take keeps a job or none.
func TestALostTakeGivesBackToItsPlace(t *testing.T) {
	for place, want := range map[string]map[int][]string{
		"head": {0: {"a", "b", "c", "d", "e"}, 1: {"b", "c", "d", "e"}, 2: {"c", "d", "e"}},
		"tail": {0: {"d", "e", "a", "b", "c"}, 1: {"d", "e", "b", "c"}, 2: {"d", "e", "c"}},
	} {
		for limit, left := range want {
			t.Run(fmt.Sprintf("%s, %d", place, limit), func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					h.Put("+0", "a", "b", "c", "d", "e")
					_, err := h.TryTakeSince("5", "5", 3, script.CallBytes, 9, time.Minute, "head")
					require.NoError(t, err) // and the reply is lost
					r, err := h.TryTakeSince("6", "5", limit, script.CallBytes, 9, time.Minute, place)
					require.NoError(t, err)
					if limit > 0 {
						require.Equal(t, []string{"a", "b"}[:limit], r.List(3).Texts())
					}
					require.Equal(t, left, h.List(h.Keys.Ready))
				})
			})
		}
	}
}
