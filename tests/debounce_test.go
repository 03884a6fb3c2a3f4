package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A cellLife is a way of the job x to a state, for the table of what an enqueue does.
type cellLife struct {
	name  string
	state delayq.State
	lead  func(f *queuetest.Fixture, enqueue func(opts ...delayq.JobOption)) hand.Held
}

var cellLives = []cellLife{
	{"none", "", func(*queuetest.Fixture, func(...delayq.JobOption)) (none hand.Held) { return none }},
	{"scheduled", delayq.StateScheduled, func(_ *queuetest.Fixture, enqueue func(...delayq.JobOption)) (none hand.Held) {
		enqueue(delayq.ProcessIn(time.Hour))
		return none
	}},
	{"rescheduled", delayq.StateScheduled, func(f *queuetest.Fixture, enqueue func(...delayq.JobOption)) (none hand.Held) {
		enqueue()
		require.NoError(f.T, f.Client.Reschedule(f.T.Context(), "topic", "x", delayq.ProcessIn(time.Hour)))
		return none
	}},
	{"backing off", delayq.StateScheduled, func(f *queuetest.Fixture, enqueue func(...delayq.JobOption)) hand.Held {
		enqueue()
		held := f.Hand.TakeOne("x")
		require.Equal(f.T, "o", f.Hand.Retry(time.Hour, held))
		return held
	}},
	{"snoozed", delayq.StateScheduled, func(f *queuetest.Fixture, enqueue func(...delayq.JobOption)) hand.Held {
		enqueue()
		held := f.Hand.TakeOne("x")
		require.Equal(f.T, "o", f.Hand.Snooze(time.Hour, held))
		return held
	}},
	{"ready", delayq.StateReady, func(_ *queuetest.Fixture, enqueue func(...delayq.JobOption)) (none hand.Held) {
		enqueue()
		return none
	}},
	{"lapsed", delayq.StateReady, func(f *queuetest.Fixture, enqueue func(...delayq.JobOption)) hand.Held {
		enqueue()
		held := f.Hand.Take(1, 0)
		require.Len(f.T, held, 1)
		_, reclaimed := f.Hand.Promote()
		require.Equal(f.T, 1, reclaimed)
		return held[0]
	}},
	{"running", delayq.StateRunning, func(f *queuetest.Fixture, enqueue func(...delayq.JobOption)) hand.Held {
		enqueue()
		return f.Hand.TakeOne("x")
	}},
	{"dead", delayq.StateDead, func(f *queuetest.Fixture, enqueue func(...delayq.JobOption)) hand.Held {
		enqueue()
		held := f.Hand.TakeOne("x")
		require.Equal(f.T, "o", f.Hand.Bury(held))
		return held
	}},
}

// A cellSort is a sort of topic and job: cells are the same for each.
type cellSort struct {
	name string
	opts []delayq.JobOption
	set  func(f *queuetest.Fixture)
}

var cellSorts = []cellSort{
	{"plain", nil, func(*queuetest.Fixture) {}},
	{"keyed", []delayq.JobOption{delayq.Key("k")}, func(*queuetest.Fixture) {}},
	{"ordered", []delayq.JobOption{delayq.Key("k")}, func(f *queuetest.Fixture) {
		require.NoError(f.T, f.Client.SetLimits(f.T.Context(), "topic", delayq.Limits{Ordered: true}))
	}},
}

// eachCell runs a test for each life of the job x and each sort, on both backends. enqueue enqueues
// x with another payload.
func eachCell(t *testing.T, test func(t *testing.T, f *queuetest.Fixture, life cellLife, held hand.Held, sort cellSort)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, sort := range cellSorts {
			for _, life := range cellLives {
				t.Run(strings.ReplaceAll(sort.name+"/"+life.name, " ", "_"), func(t *testing.T) {
					f := queuetest.NewFixture(t, rdb)
					sort.set(f)
					held := life.lead(f, func(opts ...delayq.JobOption) { f.Enqueue("x", append(opts, sort.opts...)...) })
					test(t, f, life, held, sort)
					checkSound(f)
				})
			}
		}
	})
}

// checkSound requires that a check finds nothing.
func checkSound(f *queuetest.Fixture) {
	f.T.Helper()
	found, err := f.Inspector.Check(f.T.Context(), "topic")
	require.NoError(f.T, err)
	require.Empty(f.T, found.Findings)
}

// send enqueues x with a payload, and returns the job, or the state of the one that refused it.
func send(f *queuetest.Fixture, payload string, opts ...delayq.JobOption) (*delayq.Job, delayq.State) {
	f.T.Helper()
	job, err := f.Client.Enqueue(f.T.Context(), "topic", "x", []byte(payload), opts...)
	var twin *delayq.DuplicateError
	if errors.As(err, &twin) {
		return nil, twin.State
	}
	require.NoError(f.T, err)
	return job, ""
}

// within requires that a time is d after from, and not more than a moment more.
func within(t *testing.T, from, at time.Time, d time.Duration) {
	t.Helper()
	require.WithinRange(t, at, from.Add(d), from.Add(d+time.Minute/2))
}

// hasRun reports whether a life has used up an attempt or a snooze.
func hasRun(life cellLife) bool { return life.name == "backing off" || life.name == "snoozed" }

// The rows Debounce and Latest of the table, cell by cell.
func TestMergingInEachState(t *testing.T) {
	for _, latest := range []bool{false, true} {
		t.Run(fmt.Sprintf("latest=%v", latest), func(t *testing.T) {
			eachCell(t, func(t *testing.T, f *queuetest.Fixture, life cellLife, held hand.Held, sort cellSort) {
				opts := append([]delayq.JobOption{delayq.Debounce(20*time.Minute, 50*time.Minute)}, sort.opts...)
				if latest {
					opts = append([]delayq.JobOption{delayq.Latest(), delayq.ProcessIn(20 * time.Minute)}, sort.opts...)
				}
				var before *delayq.JobInfo
				if life.state != "" {
					before = f.Get("x")
				}
				stats := f.Stats().Counters
				from := f.RDB.Time(t.Context()).Val().Truncate(time.Millisecond)
				job, refused := send(f, "new", opts...)
				require.Empty(t, refused)
				after := f.Get("x")
				merged := int64(1)
				switch life.state {
				case "", delayq.StateDead:
					merged = 0
					require.Equal(t, delayq.StateScheduled, after.State)
					require.Equal(t, "new", string(after.Payload))
					within(t, from, job.Due, 20*time.Minute)
					require.Equal(t, 1, after.Attempt)
					require.Empty(t, after.Errors)
				case delayq.StateScheduled:
					require.Equal(t, delayq.StateScheduled, after.State)
					require.Equal(t, "new", string(after.Payload))
					if latest || hasRun(life) {
						require.Equal(t, before.Due, job.Due)
					} else {
						within(t, from, job.Due, 20*time.Minute)
					}
				case delayq.StateReady:
					require.Equal(t, delayq.StateReady, after.State)
					require.Equal(t, "new", string(after.Payload))
					within(t, from, job.Due, 0)
				case delayq.StateRunning:
					for _, info := range []*delayq.JobInfo{before, after} {
						require.Equal(t, "payload of x", string(info.Payload), "the running job is as it was")
						require.Equal(t, []any{before.State, before.Due, before.DueReason, before.LeaseEnd, before.Attempt},
							[]any{info.State, info.Due, info.DueReason, info.LeaseEnd, info.Attempt})
					}
					within(t, from, job.Due, 20*time.Minute)
					require.Equal(t, "o", f.Hand.Ack(held))
					after = f.Get("x")
					require.Equal(t, delayq.StateScheduled, after.State)
					require.Equal(t, "new", string(after.Payload))
				}
				require.Equal(t, job.Due, after.Due, "the reply has the due time")
				if before != nil && life.state != delayq.StateDead && life.state != delayq.StateRunning {
					require.Equal(t, before.Attempt, after.Attempt)
					require.Equal(t, before.Errors, after.Errors)
					require.Equal(t, before.Snoozes, after.Snoozes)
				}
				got := f.Stats().Counters
				stored := 1 - merged
				if life.state == delayq.StateRunning {
					stored = 1 // at the end of the run
				}
				require.Equal(t, merged, got[delayq.CounterDebounced]-stats[delayq.CounterDebounced])
				require.Equal(t, stored, got[delayq.CounterEnqueued]-stats[delayq.CounterEnqueued])
				require.Equal(t, !latest, after.DueReason == delayq.DueDebounce, after.DueReason)
			})
		})
	}
}

// The row Replace with UnlessRunning, cell by cell.
func TestReplaceUnlessRunningInEachState(t *testing.T) {
	eachCell(t, func(t *testing.T, f *queuetest.Fixture, life cellLife, held hand.Held, sort cellSort) {
		before := f.Dump()
		job, refused := send(f, "new", append([]delayq.JobOption{delayq.Replace(), delayq.UnlessRunning()}, sort.opts...)...)
		if life.state == delayq.StateRunning {
			require.Equal(t, delayq.StateRunning, refused)
			require.Equal(t, before, f.Dump())
			require.Equal(t, "o", f.Hand.Ack(held))
			return
		}
		require.Empty(t, refused)
		require.NotNil(t, job)
		after := f.Get("x")
		require.Equal(t, delayq.StateReady, after.State)
		require.Equal(t, "new", string(after.Payload))
		require.Equal(t, 1, after.Attempt)
	})
}

// follow gives the running job x a successor, and returns it.
func follow(f *queuetest.Fixture, sort cellSort, payload string) *delayq.Job {
	f.T.Helper()
	job, refused := send(f, payload, append([]delayq.JobOption{delayq.Debounce(20*time.Minute, 50*time.Minute)}, sort.opts...)...)
	require.Empty(f.T, refused)
	return job
}

// What becomes of the successor of a running job when that ends, in each way that it can end.
func TestSuccessorAtTheEndOfARun(t *testing.T) {
	none := delayq.State("")
	for _, c := range []struct {
		name    string
		end     func(f *queuetest.Fixture, held hand.Held)
		state   delayq.State
		payload string
		attempt int
		then    string // the payload of the run after that; empty: there is none
	}{
		{"ack", func(f *queuetest.Fixture, held hand.Held) { require.Equal(f.T, "o", f.Hand.Ack(held)) }, delayq.StateScheduled, "new", 1, ""},
		{"expire", func(f *queuetest.Fixture, held hand.Held) { require.Equal(f.T, "o", f.Hand.Expire(held)) }, delayq.StateScheduled, "new", 1, ""},
		{"bury", func(f *queuetest.Fixture, held hand.Held) { require.Equal(f.T, "o", f.Hand.Bury(held)) }, delayq.StateScheduled, "new", 1, ""},
		{"again", func(f *queuetest.Fixture, held hand.Held) { require.Equal(f.T, "N", f.Hand.Again(time.Minute, held)) }, delayq.StateScheduled, "new", 1, ""},
		{"retry", func(f *queuetest.Fixture, held hand.Held) { require.Equal(f.T, "o", f.Hand.Retry(time.Second, held)) }, delayq.StateScheduled, "new", 2, ""},
		{"snooze", func(f *queuetest.Fixture, held hand.Held) { require.Equal(f.T, "o", f.Hand.Snooze(time.Second, held)) }, delayq.StateScheduled, "new", 1, ""},
		{"return", func(f *queuetest.Fixture, held hand.Held) { require.Equal(f.T, "o", f.Hand.Return(held)) }, delayq.StateReady, "payload of x", 1, "new"},
		{"lapse", func(f *queuetest.Fixture, held hand.Held) {
			f.Hand.Hasten(2 * time.Minute)
			_, reclaimed := f.Hand.Promote()
			require.Equal(f.T, 1, reclaimed)
		}, delayq.StateReady, "payload of x", 2, "new"},
		{"cancel", func(f *queuetest.Fixture, _ hand.Held) { require.Equal(f.T, delayq.StateRunning, f.Dequeue("x")) }, none, "", 0, ""},
		{"replace", func(f *queuetest.Fixture, _ hand.Held) { send(f, "other", delayq.Replace()) }, delayq.StateReady, "other", 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
				for _, sort := range cellSorts {
					t.Run(sort.name, func(t *testing.T) {
						f := queuetest.NewFixture(t, rdb)
						sort.set(f)
						f.Enqueue("x", sort.opts...)
						held := f.Hand.TakeOne("x")
						follow(f, sort, "old")
						job := follow(f, sort, "new")
						checkSound(f)
						c.end(f, held)
						checkSound(f)
						left := int64(0)
						if c.then != "" {
							left = 1
						}
						require.Equal(t, left, rdb.HLen(t.Context(), f.Key("all:next")).Val())
						if c.state == none {
							_, err := f.Client.Get(t.Context(), "topic", "x")
							require.ErrorIs(t, err, delayq.ErrNotFound)
							return
						}
						info := f.Get("x")
						require.Equal(t, c.state, info.State)
						require.Equal(t, c.payload, string(info.Payload))
						require.Equal(t, c.attempt, info.Attempt)
						if c.payload == "new" {
							require.Equal(t, job.Due, info.Due)
							require.Equal(t, delayq.DueDebounce, info.DueReason)
							require.WithinDuration(t, info.BurstBegan.Add(50*time.Minute), info.BurstEnds, 0)
						}
						if c.then != "" {
							require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne("x")))
							info = f.Get("x")
							require.Equal(t, c.then, string(info.Payload))
							require.Equal(t, 1, info.Attempt)
							checkSound(f)
						}
						s := f.Stats()
						c := s.Counters
						alive := c[delayq.CounterEnqueued] - c[delayq.CounterAcked] - c[delayq.CounterExpired] - c[delayq.CounterCancelled] - c[delayq.CounterBuried]
						if info.Payload[0] != 'o' { // Replace has a job less
							require.EqualValues(t, 1, alive)
						}
					})
				}
			})
		})
	}
}

// A further call on a job that waits again, and whose successor waits, is the last word.
func TestMergingIntoAJobWithASuccessor(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		held := f.Hand.TakeOne("x")
		follow(f, cellSorts[0], "first")
		require.Equal(t, "o", f.Hand.Return(held))
		job := follow(f, cellSorts[0], "second")
		info := f.Get("x")
		require.Equal(t, "second", string(info.Payload))
		require.Equal(t, job.Due, info.Due)
		require.Zero(t, f.RDB.Exists(t.Context(), f.Key("all:next")).Val())
		checkSound(f)

		// A server of v0.1.0 has snoozed it: the burst of the successor goes on.
		ctx := t.Context()
		f.Hand.TakeOne("x")
		follow(f, cellSorts[0], "third")
		why := strings.Fields(f.RDB.HGet(ctx, f.Key("all:next"), "x").Val())[1]
		require.NoError(t, f.RDB.Del(ctx, f.Key("leases"), f.Key("moved")).Err())
		require.NoError(t, f.RDB.ZAdd(ctx, f.Key("bucket"), redis.Z{Score: 9e12, Member: "x"}).Err())
		f.RDB.HSet(ctx, f.Key("all:next"), "x", strings.Replace(f.RDB.HGet(ctx, f.Key("all:next"), "x").Val(), why, "debounce:1-2", 1))
		follow(f, cellSorts[0], "fourth")
		require.EqualValues(t, 1, f.Get("x").BurstBegan.UnixMilli())
	})
}

// Handlers of a server meet successors as by hand: after the end of each run the last payload is
// run, once.
func TestServerRunsSuccessors(t *testing.T) {
	for name, outcome := range map[string]error{
		"ack": nil, "again": delayq.Again([]byte("again")), "bury": delayq.Permanent(errors.New("bad")),
		"retry": errors.New("bad"), "snooze": delayq.Snooze(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var mu sync.Mutex
				var ran []string
				b.Serve("t", func(ctx context.Context, job *delayq.Job) error {
					mu.Lock()
					ran = append(ran, fmt.Sprintf("%s at %v", job.Payload, b.At()))
					mu.Unlock()
					if string(job.Payload) != "first" {
						return nil
					}
					for _, payload := range []string{"second", "third"} {
						_, err := b.Client.Enqueue(ctx, "t", "x", []byte(payload), delayq.Debounce(10*time.Second, time.Minute))
						require.NoError(b, err)
						time.Sleep(time.Second)
					}
					return outcome
				})
				_, err := b.Client.Enqueue(b.Context(), "t", "x", []byte("first"))
				require.NoError(b, err)
				b.Pass(3 * time.Minute)
				mu.Lock()
				defer mu.Unlock()
				require.Equal(b, []string{"first at 0s", "third at 11s"}, ran)
			})
		})
	}
}

// Options that cannot be meant are refused, and nothing is written.
func TestMergingMisused(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		debounce := delayq.Debounce(time.Second, time.Minute)
		for text, opts := range map[string][]delayq.JobOption{
			"Debounce(999µs, 1m0s): must be 1ms ≤ wait": {delayq.Debounce(999*time.Microsecond, time.Minute)},
			"Debounce(24h0m0.001s, 240h0m0s): must be":  {delayq.Debounce(24*time.Hour+time.Millisecond, 240*time.Hour)},
			"Debounce(2s, 1s): must be":                 {delayq.Debounce(2*time.Second, time.Second)},
			"Debounce(1s, 720h0m0.001s): must be":       {delayq.Debounce(time.Second, 720*time.Hour+time.Millisecond)},
			"Debounce: sets the due time":               {debounce, delayq.ProcessIn(time.Hour)},
			"Debounce: sets the due time, so neither":   {delayq.ProcessAt(time.Now().Add(time.Hour)), debounce},
			"ExpireIn(1s) must be longer than the wait": {debounce, delayq.ExpireIn(time.Second)},
			"UnlessRunning: must be given with Replace": {delayq.UnlessRunning()},
			"UnlessRunning: must be given":              {delayq.UnlessRunning(), debounce},
		} {
			_, err := b.Client.Enqueue(ctx, "t", "x", nil, opts...)
			require.ErrorIs(b, err, delayq.ErrInvalid, text)
			require.ErrorContains(b, err, text)
		}
		for name, opt := range map[string]delayq.JobOption{"Debounce": debounce, "Latest": delayq.Latest()} {
			_, err := b.Client.Enqueue(ctx, "t", "", nil, opt)
			require.ErrorContains(b, err, name+": the job needs an ID")
			require.ErrorIs(b, err, delayq.ErrInvalid)
			err = b.Client.Schedule(ctx, "t", "daily", delayq.Every(time.Hour), nil, opt)
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, "Debounce and Latest: each job of a schedule has a new ID")
			_, err = delayq.NewClient(b.RDB, delayq.Defaults(opt)).Enqueue(ctx, "t", "x", nil)
			require.ErrorContains(b, err, "Defaults: "+name+": must be given with each job")
		}
		err := b.Client.Schedule(ctx, "t", "daily", delayq.Every(time.Hour), nil, delayq.UnlessRunning())
		require.ErrorContains(b, err, "Replace, UnlessRunning and ReplaceDead: each job of a schedule has a new ID")
		_, err = delayq.NewClient(b.RDB, delayq.Defaults(delayq.UnlessRunning())).Enqueue(ctx, "t", "x", nil)
		require.ErrorContains(b, err, "Defaults: UnlessRunning: must be given with each job")
		require.Empty(b, b.RDB.Keys(ctx, "*").Val())
	})
}

// A handler that returns Again with such an option has failed.
func TestMergingInAgain(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", func(context.Context, *delayq.Job) error {
			return delayq.Again(nil, delayq.Debounce(time.Second, time.Minute))
		})
		b.Enqueue("t", "x", delayq.Retry(0))
		b.Pass(time.Second)
		require.Contains(b, b.Get("t", "x").Errors[0].Message, "Debounce: not in Again, whose job has the ID already")
	})
}

// Of a batch, each job has its own due time and state, also of one ID twice, and hooks hear of it.
func TestMergingInBatches(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		var events []delayq.EnqueueEvent
		f := queuetest.NewFixture(t, rdb, delayq.Hooks(enqueuedHook(func(e delayq.EnqueueEvent) { events = append(events, e) })))
		f.Enqueue("running")
		held := f.Hand.TakeOne("running")
		f.Enqueue("scheduled", delayq.ProcessIn(time.Hour))
		f.Enqueue("ready")
		f.Enqueue("twin")
		events = nil
		var jobs []delayq.NewJob
		add := func(id string, opts ...delayq.JobOption) {
			jobs = append(jobs, delayq.NewJob{Topic: "topic", ID: id, Payload: []byte("new"), Options: opts})
		}
		debounce := delayq.Debounce(time.Minute, time.Hour)
		add("running", debounce)
		add("twin")
		add("scheduled", delayq.Latest())
		add("ready", debounce)
		add("fresh", debounce)
		add("fresh", delayq.Debounce(2*time.Minute, time.Hour))
		add("plain", delayq.ProcessIn(time.Minute))
		add("hopeless", debounce, delayq.ExpireAt(time.Now().Add(time.Second)))
		from := rdb.Time(t.Context()).Val().Truncate(time.Millisecond)
		results, err := f.Client.EnqueueBatch(t.Context(), jobs)
		require.Error(t, err)
		for n, want := range []struct {
			in     time.Duration
			merged delayq.State
			err    error
		}{
			{time.Minute, delayq.StateRunning, nil},
			{0, "", delayq.ErrDuplicate},
			{time.Hour, delayq.StateScheduled, nil},
			{0, delayq.StateReady, nil},
			{time.Minute, "", nil},
			{2 * time.Minute, delayq.StateScheduled, nil},
			{time.Minute, "", nil},
			{0, "", delayq.ErrInvalid},
		} {
			require.ErrorIs(t, results[n].Err, want.err, n)
			require.Equal(t, want.merged, events[n].Merged, n)
			if want.err == nil {
				require.WithinDuration(t, from.Add(want.in), results[n].Job.Due, time.Second*20, n)
				require.True(t, results[n].Job.Due.Equal(events[n].Due), n)
			}
		}
		require.Equal(t, "o", f.Hand.Ack(held))
		require.Equal(t, "new", string(f.Get("running").Payload))
		checkSound(f)
	})
}

// enqueuedHook is a hook of enqueues alone.
type enqueuedHook func(e delayq.EnqueueEvent)

func (f enqueuedHook) Enqueued(_ context.Context, e delayq.EnqueueEvent) { f(e) }

// A release without successors has ended the job, or buried it: promote enqueues its successor, and
// only then. A cancel before that removes it.
func TestPromoteEnqueuesLeftSuccessors(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, sort := range cellSorts {
			t.Run(sort.name, func(t *testing.T) {
				ctx := t.Context()
				f := queuetest.NewFixture(t, rdb)
				sort.set(f)
				f.Enqueue("x", sort.opts...)
				f.Hand.TakeOne("x")
				job := follow(f, sort, "new")
				f.Hand.Promote()
				require.Equal(t, delayq.StateRunning, f.Get("x").State, "it waits for the run")

				// ack of v0.1.0
				old := func() {
					for _, name := range []string{"pool", "keyed", "moved"} {
						require.NoError(t, rdb.HDel(ctx, f.Key(name), "x").Err())
					}
					require.NoError(t, rdb.Del(ctx, f.Key("leases")).Err())
				}
				old()
				f.Hand.Promote()
				info := f.Get("x")
				require.Equal(t, delayq.StateScheduled, info.State)
				require.Equal(t, "new", string(info.Payload))
				require.Equal(t, job.Due, info.Due)
				require.Zero(t, rdb.Exists(ctx, f.Key("all:next")).Val())
				checkSound(f)

				// bury of v0.1.0
				f.Hand.Hasten(time.Hour)
				require.NoError(t, f.Client.Reschedule(ctx, "topic", "x", delayq.ProcessIn(0)))
				f.Hand.Promote()
				f.Hand.TakeOne("x")
				follow(f, sort, "newer")
				require.NoError(t, rdb.ZAdd(ctx, f.Key("dead"), redis.Z{Score: 1, Member: "x"}).Err())
				require.NoError(t, rdb.Del(ctx, f.Key("leases")).Err())
				f.Hand.Promote()
				require.Equal(t, delayq.StateScheduled, f.Get("x").State)
				require.Equal(t, "newer", string(f.Get("x").Payload))
				checkSound(f)

				require.NoError(t, f.Client.Reschedule(ctx, "topic", "x", delayq.ProcessIn(0)))
				f.Hand.Promote()
				held := f.Hand.TakeOne("x")
				follow(f, sort, "cancelled")
				old()
				require.Equal(t, delayq.StateScheduled, f.Dequeue("x"))
				f.Hand.Promote()
				_, err := f.Client.Get(ctx, "topic", "x")
				require.ErrorIs(t, err, delayq.ErrNotFound)
				require.Equal(t, "g", f.Hand.Ack(held))
			})
		}
	})
}

// Settling jobs with large successors takes several calls, and none is forgotten.
func TestLargeSuccessorsTakeSeveralCalls(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		ran := map[string]int{}
		b.Serve("t", func(ctx context.Context, job *delayq.Job) error {
			mu.Lock()
			ran[job.ID]++
			times := ran[job.ID]
			mu.Unlock()
			if times > 1 {
				require.Len(b, job.Payload, 400<<10)
				return nil
			}
			_, err := b.Client.Enqueue(ctx, "t", job.ID, make([]byte, 400<<10), delayq.Debounce(time.Second, time.Minute))
			require.NoError(b, err)
			time.Sleep(time.Second)
			if job.ID > "5" {
				return delayq.RetryIn(time.Second, errors.New("later"))
			}
			return nil
		}, delayq.Concurrency(10))
		for n := range 10 {
			b.Enqueue("t", fmt.Sprint(n))
		}
		b.Pass(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Len(b, ran, 10)
		for id, times := range ran {
			require.Equal(b, 2, times, id)
		}
		require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{t}:all:next").Val())
	})
}
