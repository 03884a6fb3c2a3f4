package tests

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
)

// entomb closes an ID beside whatever job has it.
func entomb(f *queuetest.Fixture, id string, d time.Duration) (until time.Time) {
	f.T.Helper()
	until = f.RDB.Time(f.T.Context()).Val().Add(d).Truncate(time.Millisecond)
	require.NoError(f.T, f.RDB.ZAdd(f.T.Context(), f.Key("all:tombs"), redis.Z{Score: float64(until.UnixMilli()), Member: id}).Err())
	return until
}

// refusedBy returns why an enqueue of the job x was refused; nil: it was stored.
func refusedBy(f *queuetest.Fixture, opts ...delayq.JobOption) *delayq.DuplicateError {
	f.T.Helper()
	_, err := f.Client.Enqueue(f.T.Context(), "topic", "x", nil, opts...)
	var twin *delayq.DuplicateError
	if errors.As(err, &twin) {
		require.ErrorIs(f.T, err, delayq.ErrDuplicate)
		return twin
	}
	require.NoError(f.T, err)
	return nil
}

// The table of docs/howto/unique.md: what an enqueue does whose ID is closed, for each state of the
// job and each option. A job that is there decides alone.
func TestEnqueueOfAClosedIDInEachState(t *testing.T) {
	type cell struct {
		name   string
		opts   []delayq.JobOption
		passes func(s delayq.State) bool // is a job in this state replaced?
	}
	never := func(delayq.State) bool { return false }
	for _, c := range []cell{
		{"plain", nil, never},
		{"later", []delayq.JobOption{delayq.ProcessIn(time.Hour)}, never},
		{"keyed", []delayq.JobOption{delayq.Key("k")}, never},
		{"unique", []delayq.JobOption{delayq.UniqueFor(time.Minute)}, never},
		{"replace", []delayq.JobOption{delayq.Replace()}, func(s delayq.State) bool { return s != "" }},
		{"replace dead", []delayq.JobOption{delayq.ReplaceDead()}, func(s delayq.State) bool { return s == delayq.StateDead }},
		{"replace, unique", []delayq.JobOption{delayq.Replace(), delayq.UniqueFor(time.Minute)}, func(s delayq.State) bool { return s != "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
				until := entomb(f, "x", time.Hour)
				before := f.Dump()
				twin := refusedBy(f, c.opts...)
				score := f.RDB.ZScore(t.Context(), f.Key("all:tombs"), "x").Val()
				require.EqualValues(t, until.UnixMilli(), score, "no window makes a tomb shorter")
				if c.passes(state) {
					require.Nil(t, twin)
					return
				}
				require.NotNil(t, twin)
				tombed := int64(0)
				if state == "" {
					require.Equal(t, delayq.StateTomb, twin.State)
					require.True(t, twin.Until.Equal(until), "%v and not %v", twin.Until, until)
					require.ErrorContains(t, twin, "the ID is closed until "+until.UTC().Format(time.RFC3339))
					tombed = 1
				} else {
					require.Equal(t, state, twin.State)
					require.True(t, twin.Until.IsZero())
				}
				require.Equal(t, state == delayq.StateDead, !twin.Since.IsZero())
				require.Equal(t, tombed, f.Stats().Counters[delayq.CounterTombed])
				after := f.Dump()
				delete(before, f.Key("stats"))
				delete(after, f.Key("stats"))
				require.Equal(t, before, after, "nothing else has changed")
			})
		})
	}
}

// A Tombstone closes the ID in every state, and if there is no job, until it ends or is lifted.
func TestTombstoneInEachState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		ctx := t.Context()
		from := f.RDB.Time(ctx).Val().Truncate(time.Millisecond)
		was, err := f.Client.Dequeue(ctx, "topic", "x", delayq.Tombstone(time.Hour))
		require.Equal(t, state, was)
		if state == "" {
			require.ErrorIs(t, err, delayq.ErrNotFound)
		} else {
			require.NoError(t, err)
		}
		for _, opts := range [][]delayq.JobOption{nil, {delayq.Replace()}, {delayq.ReplaceDead()}, {delayq.UniqueFor(time.Hour)}} {
			twin := refusedBy(f, opts...)
			require.NotNil(t, twin)
			require.Equal(t, delayq.StateTomb, twin.State)
			require.WithinRange(t, twin.Until, from.Add(time.Hour), from.Add(2*time.Hour))
		}
		e, err := f.Inspector.Explain(ctx, "topic", "x")
		require.NoError(t, err)
		if e.Job == nil {
			require.Equal(t, delayq.ReasonTomb, e.Reasons[0].Code)
			require.Contains(t, e.Verdict, "Not found: its ID is closed until ")
		}
		found, err := f.Inspector.Check(ctx, "topic")
		require.NoError(t, err)
		require.Empty(t, found.Findings)

		_, err = f.Client.Dequeue(ctx, "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.NotNil(t, refusedBy(f), "a cancel without an option leaves the tomb")
		_, err = f.Client.Dequeue(ctx, "topic", "x", delayq.Tombstone(time.Minute))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		twin := refusedBy(f)
		require.WithinRange(t, twin.Until, from.Add(time.Minute), from.Add(30*time.Minute), "the last call decides")
		_, err = f.Client.Dequeue(ctx, "topic", "x", delayq.Tombstone(0))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.Nil(t, refusedBy(f))
		require.NotContains(t, f.Dump(), f.Key("all:tombs"))
		require.Equal(t, delayq.StateReady, f.Dequeue("x"))
	})
}

// UniqueFor: one job within the window, whatever has become of it, and the next one after it.
func TestUniqueForInEachState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		unique := delayq.UniqueFor(time.Hour)
		ctx, first := t.Context(), refusedBy(f, unique)
		require.Equal(t, state != "", first != nil)
		if state != "" {
			require.Equal(t, state, first.State)
			require.NotContains(t, f.Dump(), f.Key("all:tombs"), "a job that is refused closes nothing")
			f.Dequeue("x")
			require.Nil(t, refusedBy(f, unique))
		}
		require.Equal(t, delayq.StateReady, refusedBy(f, unique).State)
		held := f.Hand.TakeOne("x")
		require.Equal(t, delayq.StateRunning, refusedBy(f, unique).State)
		require.Equal(t, "o", f.Hand.Ack(held))
		require.Equal(t, delayq.StateTomb, refusedBy(f, unique).State)
		require.Equal(t, delayq.StateTomb, refusedBy(f).State, "without the option too")

		entomb(f, "x", -time.Millisecond)
		require.Nil(t, refusedBy(f, unique, delayq.ProcessIn(time.Hour)))
		require.Equal(t, delayq.StateScheduled, f.Dequeue("x"))
		require.Equal(t, delayq.StateTomb, refusedBy(f).State, "a cancel alone does not free the ID")
		_, err := f.Client.Dequeue(ctx, "topic", "x", delayq.Tombstone(0))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.Nil(t, refusedBy(f, unique))
	})
}

// Replace passes the window of a job that is still there, and gives it a new one.
func TestUniqueForAndReplace(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		require.Nil(t, refusedBy(f, delayq.UniqueFor(time.Minute)))
		require.Nil(t, refusedBy(f, delayq.UniqueFor(time.Hour), delayq.Replace()))
		require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne("x")))
		twin := refusedBy(f, delayq.UniqueFor(time.Hour), delayq.Replace())
		require.Equal(t, delayq.StateTomb, twin.State)
		require.Greater(t, time.Until(twin.Until), 30*time.Minute)
	})
}

// Sixteen producers enqueue the same IDs over and over while a server runs them: each runs once.
func TestUniqueForAmongManyProducers(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		const ids, rounds = 5, 3
		var runs, stored [ids]atomic.Int32
		queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(_ context.Context, job *delayq.Job) error {
			n, _ := strconv.Atoi(job.ID)
			runs[n].Add(1)
			return nil
		})
		var group sync.WaitGroup
		for range 16 {
			client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix))
			group.Go(func() {
				for range rounds {
					for n := range ids {
						_, err := client.Enqueue(t.Context(), "topic", strconv.Itoa(n), nil, delayq.UniqueFor(time.Hour))
						if err == nil {
							stored[n].Add(1)
						} else if !errors.Is(err, delayq.ErrDuplicate) {
							t.Error(err)
						}
					}
				}
			})
		}
		group.Wait()
		queuetest.Until(t, func() bool { return f.Stats().Counters[delayq.CounterAcked] == ids })
		for n := range ids {
			require.EqualValues(t, 1, stored[n].Load(), n)
			require.EqualValues(t, 1, runs[n].Load(), n)
		}
	})
}

// A batch has an outcome for each job, with the times of each.
func TestTombsInBatches(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		var ends [4]time.Time
		for i := range ends {
			ends[i] = entomb(f, "tomb"+strconv.Itoa(i), time.Hour+time.Duration(i)*time.Second)
		}
		for _, id := range []string{"dead0", "dead1"} {
			f.Enqueue(id)
			require.Equal(t, "o", f.Hand.Bury(f.Hand.TakeOne(id)))
		}
		var jobs []delayq.NewJob
		for _, id := range []string{"tomb0", "dead0", "newer", "tomb1", "dead1", "tomb2", "unique", "tomb3"} {
			job := delayq.NewJob{Topic: "topic", ID: id}
			if id == "unique" || id == "tomb3" {
				job.Options = []delayq.JobOption{delayq.UniqueFor(time.Hour)}
			}
			jobs = append(jobs, job)
		}
		results, err := f.Client.EnqueueBatch(ctx, jobs)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		for i, r := range results {
			var twin *delayq.DuplicateError
			errors.As(r.Err, &twin)
			switch id := jobs[i].ID; id[:4] {
			case "tomb":
				require.Equal(t, delayq.StateTomb, twin.State)
				require.True(t, twin.Until.Equal(ends[id[4]-'0']), id)
			case "dead":
				require.Equal(t, delayq.StateDead, twin.State)
				require.True(t, twin.Since.Equal(f.Get(id).BuriedAt), id)
			default:
				require.NoError(t, r.Err)
			}
		}
		require.EqualValues(t, 4, f.Stats().Counters[delayq.CounterTombed])

		refs := []delayq.JobRef{{Topic: "topic", ID: "newer"}, {Topic: "topic", ID: "nobody"}, {Topic: "topic", ID: "dead0"}}
		gone, err := f.Client.CancelBatch(ctx, refs, delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.Equal(t, delayq.StateReady, gone[0].State)
		require.ErrorIs(t, gone[1].Err, delayq.ErrNotFound)
		require.Equal(t, delayq.StateDead, gone[2].State)
		for _, ref := range refs {
			_, err := f.Client.Enqueue(ctx, "topic", ref.ID, nil)
			require.ErrorIs(t, err, delayq.ErrDuplicate, ref.ID)
		}
	})
}

// At the limit a cancel still cancels and says that the ID is open, and a unique job is refused.
// Tombs that are over make room.
func TestTombLimit(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.TombLimit(2))
		for _, id := range []string{"a", "b", "c", "d"} {
			f.Enqueue(id)
		}
		_, err := c.Dequeue(ctx, "topic", "a", delayq.Tombstone(time.Hour))
		require.NoError(t, err)
		results, err := c.EnqueueBatch(ctx, []delayq.NewJob{
			{Topic: "topic", ID: "u1", Options: []delayq.JobOption{delayq.UniqueFor(time.Hour)}},
			{Topic: "topic", ID: "u2", Options: []delayq.JobOption{delayq.UniqueFor(time.Hour)}},
			{Topic: "topic", ID: "plain"},
		})
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		require.NoError(t, results[0].Err)
		require.ErrorIs(t, results[1].Err, delayq.ErrTooManyTombs)
		require.NoError(t, results[2].Err)
		_, err = c.Get(ctx, "topic", "u2")
		require.ErrorIs(t, err, delayq.ErrNotFound, "it is not stored")

		state, err := c.Dequeue(ctx, "topic", "b", delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		require.Equal(t, delayq.StateReady, state, "it is cancelled")
		_, err = c.Get(ctx, "topic", "b")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		_, err = c.Dequeue(ctx, "topic", "nobody", delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		require.ErrorIs(t, err, delayq.ErrNotFound)
		_, err = c.Dequeue(ctx, "topic", "a", delayq.Tombstone(2*time.Hour))
		require.Equal(t, errors.Is(err, delayq.ErrNotFound), !errors.Is(err, delayq.ErrTooManyTombs), "an ID that is closed can get another end")
		_, err = c.Enqueue(ctx, "topic", "u1", nil, delayq.UniqueFor(time.Hour), delayq.Replace())
		require.NoError(t, err, "what replaces a job is never lost")

		entomb(f, "a", -time.Second)
		_, err = c.Dequeue(ctx, "topic", "c", delayq.Tombstone(time.Hour))
		require.NoError(t, err)
		entomb(f, "c", -time.Second)
		_, err = c.Enqueue(ctx, "topic", "u3", nil, delayq.UniqueFor(time.Hour))
		require.NoError(t, err)
		require.EqualValues(t, 2, f.RDB.ZCard(ctx, f.Key("all:tombs")).Val())

		// The tomb of the first ID is over, and counts as little as one of another ID.
		f.RDB.Del(ctx, f.Key("all:tombs"))
		entomb(f, "a", -time.Second)
		entomb(f, "z", time.Hour)
		_, err = c.CancelBatch(ctx, []delayq.JobRef{{Topic: "topic", ID: "a"}, {Topic: "topic", ID: "b"}}, delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		require.ElementsMatch(t, []string{"a", "z"}, f.RDB.ZRange(ctx, f.Key("all:tombs"), 0, -1).Val())
	})
}

// A server removes tombs that are over, in a topic with jobs and in one without.
func TestTombsEnd(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx, key := b.Context(), queuetest.Prefix+":{t}:all:tombs"
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil })
		for i := range 5 {
			_, err := b.Client.Dequeue(ctx, "t", strconv.Itoa(i), delayq.Tombstone(time.Hour))
			require.ErrorIs(b, err, delayq.ErrNotFound)
		}
		_, err := b.Client.Enqueue(ctx, "t", "daily", nil, delayq.UniqueFor(2*time.Hour))
		require.NoError(b, err)
		b.Pass(time.Hour + 20*time.Second)
		require.Equal(b, []string{"daily"}, b.RDB.ZRange(ctx, key, 0, -1).Val())
		_, err = b.Client.Enqueue(ctx, "t", "0", nil)
		require.NoError(b, err)
		_, err = b.Client.Enqueue(ctx, "t", "daily", nil)
		require.ErrorIs(b, err, delayq.ErrDuplicate)
		b.Pass(time.Hour)
		require.Zero(b, b.RDB.Exists(ctx, key).Val())
		_, err = b.Client.Enqueue(ctx, "t", "daily", nil, delayq.UniqueFor(2*time.Hour))
		require.NoError(b, err)
	})
}

// Revive, Again, retries and schedules do not ask whether an ID is closed.
func TestTombsKeepNoJobFromGoingOn(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		for _, id := range []string{"dead", "back", "again"} {
			f.Enqueue(id, delayq.UniqueFor(time.Hour))
		}
		require.Equal(t, "o", f.Hand.Bury(f.Hand.TakeOne("dead")))
		require.Equal(t, "o", f.Hand.Retry(0, f.Hand.TakeOne("back")))
		require.NoError(t, f.Client.Revive(ctx, "topic", "dead"))
		require.Equal(t, delayq.StateReady, f.Get("dead").State)
		f.Hand.Promote()
		require.Equal(t, delayq.StateReady, f.Get("back").State)
		require.NoError(t, f.Client.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil))
	})
}

// A finding of a tomb that would never end, and its repair.
func TestCheckFindsATombWithoutEnd(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		require.NoError(t, f.RDB.ZAdd(ctx, f.Key("all:tombs"), redis.Z{Score: 1e15, Member: "x"}, redis.Z{Score: 9_999_999_999_999, Member: "y"}).Err())
		want := []delayq.Finding{{Key: "all:tombs", ID: "x", Kind: delayq.FindingBadTime}}
		report, err := f.Inspector.Check(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, want, report.Findings)
		want[0].Repaired = true
		report, err = f.Client.Repair(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, want, report.Findings)
		require.Nil(t, refusedBy(f))
		require.Equal(t, []string{"y"}, f.RDB.ZRange(ctx, f.Key("all:tombs"), 0, -1).Val())
	})
}

// Whoever acts is on record with the tomb.
func TestTombstonesAreOnRecord(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "ann")
		f.Enqueue("x")
		_, err := f.Client.Dequeue(ctx, "topic", "x", delayq.Tombstone(time.Hour))
		require.NoError(t, err)
		log, err := f.Inspector.Audit(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, "tombstone 1h0m0s", log[0].Filter)

		// An ID without a job is closed too. At the limit only the job is cancelled.
		full := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.TombLimit(2))
		_, err = full.Dequeue(ctx, "topic", "nobody", delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrNotFound)
		f.Enqueue("y")
		_, err = full.Dequeue(ctx, "topic", "y", delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		_, err = full.Dequeue(ctx, "topic", "z", delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		f.Enqueue("a")
		_, err = full.CancelBatch(ctx, []delayq.JobRef{{Topic: "topic", ID: "a"}, {Topic: "topic", ID: "b"}, {Topic: "topic", ID: "x"}}, delayq.Tombstone(time.Minute))
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		log, err = f.Inspector.Audit(ctx, 10)
		require.NoError(t, err)
		var acts []string
		for _, act := range log {
			acts = append(acts, fmt.Sprint(act.ID, " | ", act.Filter, " | ", act.Was, " | ", act.Count))
		}
		require.Equal(t, []string{
			` | "a", "b", "x" tombstone 1m0s | "a" ready | 2`,
			"y |  | ready | 1",
			"nobody | tombstone 1h0m0s | none | 1",
			"x | tombstone 1h0m0s | ready | 1",
		}, acts)
		e, err := f.Inspector.Explain(ctx, "topic", "nobody")
		require.NoError(t, err)
		require.Equal(t, delayq.ReasonTomb, e.Reasons[0].Code, "nothing was cancelled")
	})
}

// A done job can have a closed ID, and deleting it leaves the ID closed. RemoveTopic frees all.
func TestTombsOfDoneJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		f.Enqueue("x", delayq.UniqueFor(time.Hour), delayq.Retention(time.Hour))
		require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne("x")))
		e, err := f.Inspector.Explain(ctx, "topic", "x")
		require.NoError(t, err)
		require.Equal(t, delayq.ReasonDone, e.Reasons[0].Code)
		require.Equal(t, delayq.ReasonTomb, e.Reasons[1].Code)
		require.NoError(t, f.Client.Delete(ctx, "topic", "x"))
		require.Equal(t, delayq.StateTomb, refusedBy(f).State)
		require.NoError(t, f.Client.RemoveTopic(ctx, "topic"))
		require.Nil(t, refusedBy(f))
	})
}

// A call that cancels a hundred ready jobs ends. Its tombs are those of these jobs, and the next
// calls go on.
func TestCancelManyReadyJobsWithTombs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, key := t.Context(), f.Key("all:tombs")
		const jobs, most = 250, 170
		c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.TombLimit(most))
		refs := make([]delayq.JobRef, jobs)
		for i := range refs {
			refs[i] = delayq.JobRef{Topic: "topic", ID: strconv.Itoa(i)}
			f.Enqueue(refs[i].ID)
		}
		results, err := c.CancelBatch(ctx, refs, delayq.Tombstone(time.Hour))
		require.ErrorIs(t, err, delayq.ErrTooManyTombs)
		for i, r := range results {
			require.Equal(t, delayq.StateReady, r.State, i)
			require.Equal(t, i >= most, errors.Is(r.Err, delayq.ErrTooManyTombs), i)
			require.Equal(t, i < most, f.RDB.ZScore(ctx, key, refs[i].ID).Err() == nil, i)
		}
	})
}

func TestTombsRefuseBadArguments(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		before := f.Dump()
		for _, d := range []time.Duration{-time.Second, time.Microsecond, 101 * 366 * 24 * time.Hour} {
			_, err := f.Client.Dequeue(ctx, "topic", "x", delayq.Tombstone(d))
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, "Tombstone(")
			_, err = f.Client.CancelBatch(ctx, []delayq.JobRef{{Topic: "topic", ID: "x"}}, delayq.Tombstone(d))
			require.ErrorIs(t, err, delayq.ErrInvalid)
			_, err = f.Client.Enqueue(ctx, "topic", "x", nil, delayq.UniqueFor(d))
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, "UniqueFor(")
		}
		_, err := f.Client.Dequeue(ctx, "topic", "x", nil)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		_, err = f.Client.Enqueue(ctx, "topic", "", nil, delayq.UniqueFor(time.Hour))
		require.ErrorContains(t, err, "UniqueFor: the job needs an ID")
		err = f.Client.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil, delayq.UniqueFor(time.Hour))
		require.ErrorContains(t, err, "UniqueFor")
		_, err = delayq.NewClient(f.RDB, delayq.TombLimit(0)).Get(ctx, "topic", "x")
		require.ErrorContains(t, err, "TombLimit(0): must be from 1 to 1000000000")
		_, err = delayq.NewClient(f.RDB, delayq.Defaults(delayq.UniqueFor(time.Hour))).Get(ctx, "topic", "x")
		require.ErrorContains(t, err, "UniqueFor: must be given with each job")
		require.Equal(t, before, f.Dump())
	})
}
