package tests

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// parcelsKey is the key of what runs of the topic "a" have handed over.
const parcelsKey = queuetest.Prefix + ":{a}:all:parcels"

// noParcels expects that all is delivered.
func noParcels(b *queuetest.Bubble) {
	b.Helper()
	n, err := b.RDB.ZCard(b.Context(), parcelsKey).Result()
	require.NoError(b, err)
	require.Zero(b, n, "parcels")
}

// A process can die at each call of a hop, before or after Redis has carried it out, or the reply
// can be lost. Another server goes on, and the job is enqueued once.
func TestThenOverFaults(t *testing.T) {
	for name, s := range map[string]*script.Script{
		"ack": script.HandOver, "plan": script.ParcelPlan, "delivery": script.Replace, "done": script.ParcelDone,
	} {
		for how, fault := range map[string]func(w *queuetest.Wire, text string){
			"the reply is lost":       func(w *queuetest.Wire, text string) { w.Lose(text) },
			"it dies after the call":  func(w *queuetest.Wire, text string) { w.Die(text, false) },
			"it dies before the call": func(w *queuetest.Wire, text string) { w.Die(text, true) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					b.LoadScripts()
					w := queuetest.NewWire(b.Redis)
					work := func(_ context.Context, job *delayq.Job) error { return job.Then("b", "", []byte("from "+job.ID)) }
					b.ServeOn(w, "a", work)
					fault(w, s.Digest.(string))
					b.Enqueue("a", "1")
					b.Pass(100 * time.Millisecond)
					b.Serve("a", work)
					b.Pass(3 * time.Minute)
					w.Heal()
					b.Pass(time.Minute)
					require.Equal(b, int64(1), b.Stats("b").Ready)
					require.Equal(b, int64(1), b.Counter("b", delayq.CounterEnqueued))
					require.Empty(b, b.State("a", "1"))
					noParcels(b)
				})
			})
		}
	}
}

// Servers that find the same parcels deliver them once, whoever is faster at each call.
func TestThenOfManyServers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		for i := range 3 {
			w := queuetest.NewWire(b.Redis)
			n := 0
			w.Jitter(func() time.Duration { n++; return time.Duration((n*(7+i))%13) * time.Millisecond })
			b.ServeOn(w, "a", func(_ context.Context, job *delayq.Job) error {
				for k := range 5 {
					if err := job.Then("b", fmt.Sprint(job.ID, "-", k), nil); err != nil {
						return err
					}
				}
				return nil
			})
		}
		const jobs = 200
		for i := range jobs {
			b.Enqueue("a", strconv.Itoa(i), delayq.ProcessIn(time.Duration(i)*3*time.Millisecond))
		}
		b.Pass(time.Minute)
		require.Equal(b, int64(5*jobs), b.Stats("b").Ready)
		require.Equal(b, int64(5*jobs), b.Counter("b", delayq.CounterEnqueued))
		require.Zero(b, b.Counter("a", delayq.CounterUndelivered))
		noParcels(b)
	})
}

// What the target refuses is dropped, counted and logged; the rest of the plan is delivered. A dead
// job gives way.
func TestThenIsRefused(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("b", "there", delayq.ProcessIn(time.Hour))
		b.Enqueue("b", "dead", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.Client.Bury(b.Context(), "b", "dead", "x"))
		_, err := b.Client.Dequeue(b.Context(), "b", "closed", delayq.Tombstone(time.Hour))
		require.ErrorIs(b, err, delayq.ErrNotFound)
		var log queuetest.Logbook
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			for _, id := range []string{"there", "dead", "closed", "new"} {
				require.NoError(b, job.Then("b", id, []byte("2")))
			}
			return job.Then("b", "there", []byte("3"), delayq.Replace())
		}, log.To())
		b.Enqueue("a", "1")
		synctest.Wait()
		require.Equal(b, int64(2), b.Counter("a", delayq.CounterUndelivered))
		require.Len(b, log.With("jobs not handed over", "count=2", "target=b"), 1)
		require.Equal(b, "3", string(b.Get("b", "there").Payload))
		require.Equal(b, delayq.StateReady, b.State("b", "dead"))
		require.Equal(b, delayq.StateReady, b.State("b", "new"))
		n, err := b.RDB.LLen(b.Context(), queuetest.Prefix+":{a}:all:undelivered").Result()
		require.NoError(b, err)
		require.Equal(b, int64(2), n)
		noParcels(b)
	})
}

// Many refused jobs make one line a minute, and the last ones are told when the server stops.
func TestThenIsRefusedOften(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("b", "there", delayq.ProcessIn(time.Hour))
		var log queuetest.Logbook
		s := b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			return job.Then("b", "there", nil)
		}, log.To())
		for i := range 300 {
			b.Enqueue("a", strconv.Itoa(i), delayq.ProcessIn(time.Duration(i)*time.Second+time.Duration(min(i, 1))*10*time.Millisecond))
		}
		b.Pass(150 * time.Second)
		require.Len(b, log.With("jobs not handed over"), 3)
		require.Len(b, log.With("jobs not handed over", "count=60"), 1)
		b.Pass(4 * time.Minute)
		require.Len(b, log.With("jobs not handed over"), 6, "the last minute is told without another one")
		b.Enqueue("a", "x")
		b.Enqueue("a", "y", delayq.ProcessIn(time.Second))
		b.Pass(2 * time.Second)
		require.Len(b, log.With("jobs not handed over", "count=1"), 2)
		require.NoError(b, s.Stop())
		require.Len(b, log.With("jobs not handed over", "job=y"), 1)
		require.Equal(b, int64(302), b.Counter("a", delayq.CounterUndelivered))
	})
}

// A target that cannot be written to holds up no other one, and gets its jobs when it can. Check
// reports it, and the topic cannot be removed meanwhile.
func TestThenWaitsForItsTarget(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for i := range 25 {
			require.NoError(b, b.RDB.Set(b.Context(), queuetest.PoolKey(fmt.Sprint("bad", i)), "x", 0).Err())
		}
		var log queuetest.Logbook
		s := b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			for i := range 25 {
				require.NoError(b, job.Then(fmt.Sprint("bad", i), "", nil))
			}
			return job.Then("good", job.ID, nil)
		}, log.To())
		b.Enqueue("a", "1")
		b.Pass(10 * time.Millisecond)
		require.Equal(b, delayq.StateReady, b.State("good", "1"))
		b.Pass(3 * time.Minute)
		require.Equal(b, int64(25), b.Stats("a").Parcels)
		require.Len(b, log.With("relay to bad7 failed"), 1, "once for an outage")
		report, err := b.Inspector.Check(b.Context(), "a")
		require.NoError(b, err)
		require.Equal(b, 20, report.Found[delayq.FindingUndelivered])
		require.NoError(b, s.Stop())
		err = b.Client.RemoveTopic(b.Context(), "a")
		require.ErrorIs(b, err, delayq.ErrNotEmpty)
		require.ErrorContains(b, err, "25 jobs that its runs have handed over")

		b.Serve("a", queuetest.Nothing)
		for i := range 25 {
			require.NoError(b, b.RDB.Del(b.Context(), queuetest.PoolKey(fmt.Sprint("bad", i))).Err())
		}
		b.Pass(time.Minute)
		noParcels(b)
		for i := range 25 {
			require.Equal(b, int64(1), b.Stats(fmt.Sprint("bad", i)).Ready)
		}
	})
}

// A topic that was restored from a copy plans its parcels anew, with numbers that its targets have
// had: they are delivered all the same.
func TestThenAfterARestore(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		work := func(_ context.Context, job *delayq.Job) error { return job.Then("b", job.ID, nil) }
		s := b.Serve("a", work)
		b.Enqueue("a", "1")
		synctest.Wait()
		require.NoError(b, s.Stop())
		plans := queuetest.Prefix + ":{a}:all:plans"
		later := time.Now().Add(time.Hour).UnixMilli()
		require.NoError(b, b.RDB.HSet(b.Context(), plans, "##", later).Err())
		s = b.Serve("a", work)
		b.Enqueue("a", "2")
		synctest.Wait()
		require.NoError(b, s.Stop())
		require.NoError(b, b.RDB.Del(b.Context(), plans).Err(), "back to before")
		b.Serve("a", work)
		b.Enqueue("a", "3")
		b.Pass(10 * time.Second)
		for _, id := range []string{"1", "2", "3"} {
			require.Equal(b, delayq.StateReady, b.State("b", id), id)
		}
		noParcels(b)
	})
}

// The bounds of what a run hands over, and when it can.
func TestThenIsBounded(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var kept *delayq.Job
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			kept = job
			if job.ID == "bytes" {
				require.NoError(b, job.Then("b", "", make([]byte, 1<<20-1000)))
				err := job.Then("b", "", make([]byte, 1000))
				require.ErrorIs(b, err, delayq.ErrInvalid)
				require.ErrorContains(b, err, "bytes, at most 1048576 are allowed")
				return nil
			}
			for says, err := range map[string]error{
				`then job "x": delayq: invalid: empty topic`:              job.Then("", "x", nil),
				"at most 1024 are allowed":                                job.Then("b", string(make([]byte, 1025)), nil),
				`payload of 1048577 bytes`:                                job.Then("b", "x", make([]byte, 1<<20+1)),
				"IfUnchanged: Then does not know what a job will be like": job.Then("b", "x", nil, delayq.Replace(), delayq.IfUnchanged(&delayq.JobInfo{})),
				"Retry":   job.Then("b", "x", nil, delayq.Retry(-2)),
				"nil job": (*delayq.Job)(nil).Then("b", "x", nil),
				"Key":     job.Then("b", "x", nil, delayq.Key(string(make([]byte, 2000)))),
			} {
				require.ErrorIs(b, err, delayq.ErrInvalid, says)
				require.ErrorContains(b, err, says)
			}
			for range 1000 {
				require.NoError(b, job.Then("b", "", nil))
			}
			err := job.Then("b", "", nil)
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, "the run hands over 1000 jobs already, more are not allowed")
			return nil
		})
		b.Enqueue("a", "many")
		synctest.Wait()
		require.EqualError(b, kept.Then("b", "x", nil), `then topic "b" job "x": delayq: invalid: the handler has returned`)
		require.Equal(b, int64(1000), b.Stats("b").Ready)
		b.Enqueue("a", "bytes")
		b.Pass(time.Second)
		require.Equal(b, int64(1001), b.Stats("b").Ready)
		noParcels(b)
		other, err := b.Client.Enqueue(b.Context(), "c", "", nil)
		require.NoError(b, err)
		require.ErrorIs(b, other.Then("b", "x", nil), delayq.ErrInvalid)
	})
}

// Each job of a batch hands over for itself.
func TestThenInBatches(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		topic := delayq.NewTopic[int]("b", delayq.JSON)
		for i := range 4 {
			b.Enqueue("a", strconv.Itoa(i), delayq.Backoff(time.Hour, time.Hour))
		}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandleBatch("a", func(_ context.Context, jobs []*delayq.Job) error {
				for i, job := range jobs {
					require.NoError(b, topic.Then(job, job.ID, i))
				}
				return jobs[1].Fail(queuetest.ErrTest)
			}))
		})
		synctest.Wait()
		for i := range 4 {
			require.Equal(b, i != 1, b.State("b", strconv.Itoa(i)) == delayq.StateReady, i)
		}
		require.Equal(b, "3", string(b.Get("b", "3").Payload))
	})
}
