package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// fill stores n jobs of the topic with these options, with IDs that begin with name.
func fill(t *testing.T, f *queuetest.Fixture, name string, n int, opts ...delayq.JobOption) {
	t.Helper()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprintf("%s%05d", name, i), Options: opts}
	}
	_, err := f.Client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
}

// killed stores n jobs and buries them.
func killed(t *testing.T, f *queuetest.Fixture, name string, n int, opts ...delayq.JobOption) {
	t.Helper()
	fill(t, f, name, n, append(opts, delayq.ProcessIn(time.Hour))...)
	sum, err := f.Client.Apply(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateScheduled, IDPrefix: name}, delayq.Bury("for the test"))
	require.NoError(t, err)
	require.EqualValues(t, n, sum.Done)
}

// finished stores n jobs and runs them, so that they are done.
func finished(t *testing.T, f *queuetest.Fixture, name string, n int) {
	t.Helper()
	var wait sync.WaitGroup
	wait.Add(n)
	s := queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(context.Context, *delayq.Job) error { return nil }, delayq.Hooks(doneFunc(wait.Done)))
	fill(t, f, name, n, delayq.Retention(time.Hour))
	wait.Wait()
	require.NoError(t, s.Stop())
}

type doneFunc func()

func (d doneFunc) Done(delayq.RunEvent) { d() }

func query(s delayq.State) delayq.Query { return delayq.Query{Topic: "topic", State: s} }

// Each action, for the states that it fits: it acts on all that match and on nothing else.
func TestApplyActsOnAllThatMatch(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, c := t.Context(), f.Client
		const n = 1203 // three steps
		others := func() {
			f.Enqueue("other ready")
			f.Enqueue("other later", delayq.ProcessIn(2*time.Hour))
			f.Enqueue("other dead")
			require.NoError(t, c.Bury(ctx, "topic", "other dead", ""))
		}
		count := func(s delayq.State) int64 {
			n, exact, err := f.Inspector.Count(ctx, query(s))
			require.NoError(t, err)
			require.True(t, exact)
			return n
		}
		later, none := delayq.ProcessIn(time.Hour), delayq.ProcessIn(0)
		for _, test := range []struct {
			name   string
			state  delayq.State
			stage  func()
			action delayq.Action
			want   delayq.State // in which the jobs are then; "": they are gone
		}{
			{"cancel scheduled", delayq.StateScheduled, func() { fill(t, f, "a", n, later) }, delayq.Cancel(), ""},
			{"cancel ready", delayq.StateReady, func() { fill(t, f, "a", n, none) }, delayq.Cancel(), ""},
			{"cancel dead", delayq.StateDead, func() { killed(t, f, "a", n) }, delayq.Cancel(), ""},
			{"run now", delayq.StateScheduled, func() { fill(t, f, "a", n, later) }, delayq.RunNow(), delayq.StateReady},
			{"delay ready", delayq.StateReady, func() { fill(t, f, "a", n, none) }, delayq.Reschedule(delayq.ProcessIn(3 * time.Hour)), delayq.StateScheduled},
			{"delay scheduled", delayq.StateScheduled, func() { fill(t, f, "a", n, later) }, delayq.Reschedule(delayq.ProcessIn(3 * time.Hour)), delayq.StateScheduled},
			{"hasten scheduled", delayq.StateScheduled, func() { fill(t, f, "a", n, later) }, delayq.Reschedule(none), delayq.StateReady},
			{"revive", delayq.StateDead, func() { killed(t, f, "a", n) }, delayq.Revive(), delayq.StateReady},
			{"bury scheduled", delayq.StateScheduled, func() { fill(t, f, "a", n, later) }, delayq.Bury("why"), delayq.StateDead},
			{"bury ready", delayq.StateReady, func() { fill(t, f, "a", n, none) }, delayq.Bury("why"), delayq.StateDead},
			{"delete dead", delayq.StateDead, func() { killed(t, f, "a", n) }, delayq.Delete(), ""},
			{"delete done", delayq.StateDone, func() { finished(t, f, "a", n) }, delayq.Delete(), ""},
		} {
			test.stage()
			others()
			before := map[delayq.State]int64{}
			for _, s := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead, delayq.StateDone} {
				before[s] = count(s)
			}
			q := query(test.state)
			q.IDPrefix = "a"
			var steps []delayq.Applied
			sum, err := c.Apply(ctx, q, test.action, delayq.OnProgress(func(a delayq.Applied) { steps = append(steps, a) }))
			require.NoError(t, err, test.name)
			require.Equal(t, delayq.Applied{Matched: n, Done: n, Examined: sum.Examined}, *sum, test.name)
			require.GreaterOrEqual(t, sum.Examined, int64(n), test.name)
			require.GreaterOrEqual(t, len(steps), 3, test.name)
			require.Equal(t, *sum, steps[len(steps)-1], test.name)
			require.NotEmpty(t, steps[0].Next, test.name)

			before[test.state] -= n
			if test.want != "" {
				before[test.want] += n
			}
			for s, want := range before {
				require.Equal(t, want, count(s), "%s: %s", test.name, s)
			}
			if test.want != "" {
				info := f.Get("a00600")
				require.Equal(t, test.want, info.State, test.name)
				if strings.HasPrefix(test.name, "bury") {
					require.Equal(t, "why", info.Errors[0].Message)
				}
			}
			for _, id := range []string{"other ready", "other later", "other dead"} {
				require.NotEmpty(t, f.Get(id), test.name)
			}
			for _, s := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead} {
				_, err := c.Apply(ctx, query(s), delayq.Cancel())
				require.NoError(t, err)
			}
		}
		report, err := f.Client.Repair(ctx, "topic")
		require.NoError(t, err)
		require.Empty(t, report.Findings)
	})
}

// Running jobs are cancelled as by Dequeue.
func TestApplyCancelsRunningJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		b.Serve("t", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, delayq.Concurrency(20), delayq.Hooks(&hooks))
		for i := range 20 {
			b.Enqueue("t", fmt.Sprint(i))
		}
		b.Pass(time.Second)
		sum, err := b.Client.Apply(b.Context(), delayq.Query{Topic: "t", State: delayq.StateRunning, IDPrefix: "1"}, delayq.Cancel())
		require.NoError(b, err)
		require.EqualValues(b, 11, sum.Done)
		b.Pass(time.Second)
		require.Equal(b, 11, hooks.Total("Cancelled"))
	})
}

// A job that has moved on between the page and the script is skipped, whatever has become of it.
func TestApplySkipsWhatHasMovedOn(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		fates := map[string]func(id string) error{
			"moved":  func(id string) error { return f.Client.Reschedule(ctx, "topic", id, delayq.ProcessIn(3*time.Hour)) },
			"ready":  func(id string) error { return f.Client.Reschedule(ctx, "topic", id, delayq.ProcessIn(0)) },
			"gone":   func(id string) error { _, err := f.Client.Dequeue(ctx, "topic", id); return err },
			"buried": func(id string) error { return f.Client.Bury(ctx, "topic", id, "") },
			"replaced": func(id string) error {
				_, err := f.Client.Enqueue(ctx, "topic", id, nil, delayq.ProcessIn(2*time.Hour), delayq.Replace())
				return err
			},
		}
		dead := map[string]func(id string) error{
			"revived": func(id string) error { return f.Client.Revive(ctx, "topic", id) },
			"gone":    fates["gone"],
			"again": func(id string) error {
				return errors.Join(f.Client.Revive(ctx, "topic", id), eventually(t, f), f.Client.Bury(ctx, "topic", id, ""))
			},
		}
		for _, test := range []struct {
			name   string
			state  delayq.State
			action delayq.Action
			fates  map[string]func(id string) error
		}{
			{"cancel", delayq.StateScheduled, delayq.Cancel(), fates},
			{"run now", delayq.StateScheduled, delayq.RunNow(), fates},
			{"reschedule", delayq.StateScheduled, delayq.Reschedule(delayq.ProcessIn(time.Minute)), fates},
			{"bury", delayq.StateScheduled, delayq.Bury("why"), fates},
			{"cancel dead", delayq.StateDead, delayq.Cancel(), dead},
			{"revive", delayq.StateDead, delayq.Revive(), dead},
			{"delete dead", delayq.StateDead, delayq.Delete(), dead},
		} {
			for fate := range test.fates {
				f.Enqueue(fate, delayq.ProcessIn(time.Hour))
			}
			f.Enqueue("stays", delayq.ProcessIn(time.Hour))
			if test.state == delayq.StateDead {
				_, err := f.Client.Apply(ctx, query(delayq.StateScheduled), delayq.Bury(""))
				require.NoError(t, err)
				require.NoError(t, eventually(t, f))
			}
			var between sync.Once
			after := map[string]any{}
			c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(scriptHook(func(e delayq.ScriptEvent) {
				if e.Name == "page" {
					between.Do(func() {
						for fate, meet := range test.fates {
							require.NoError(t, meet(fate), fate)
						}
						after = pick(f.Dump(), test.fates)
					})
				}
			})))
			sum, err := c.Apply(ctx, query(test.state), test.action)
			require.NoError(t, err, test.name)
			require.Equal(t, delayq.Applied{
				Matched: int64(len(test.fates)) + 1, Done: 1, Skipped: int64(len(test.fates)), Examined: sum.Examined,
			}, *sum, test.name)
			require.Equal(t, after, pick(f.Dump(), test.fates), "%s: what has moved on is as it was", test.name)
			for _, s := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead} {
				_, err := f.Client.Apply(ctx, query(s), delayq.Cancel())
				require.NoError(t, err)
			}
		}
	})
}

// eventually waits until Redis's clock shows another millisecond.
func eventually(t *testing.T, f *queuetest.Fixture) error {
	began, err := f.RDB.Time(t.Context()).Result()
	for now := began; err == nil && now.UnixMilli() == began.UnixMilli(); {
		now, err = f.RDB.Time(t.Context()).Result()
	}
	return err
}

// pick returns what a dump says about jobs.
func pick[T any](dump map[string]any, ids map[string]T) map[string]any {
	some := map[string]any{}
	for key, content := range dump {
		hash, ok := content.(map[string]string)
		if !ok || strings.HasSuffix(key, ":stats") {
			continue
		}
		for id := range ids {
			if value, there := hash[id]; there {
				some[key+" "+id] = value
			}
		}
	}
	return some
}

// While servers run, an Apply to ready jobs hits none that was taken: each job runs to its end or
// is cancelled, and never both.
func TestApplyWhileServersRun(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		n := redistest.Size(2000)
		var mu sync.Mutex
		ended, cut := map[string]int{}, map[string]int{}
		for range 2 {
			queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(ctx context.Context, job *delayq.Job) error {
				mu.Lock()
				defer mu.Unlock()
				ended[job.ID]++
				return nil
			}, delayq.Concurrency(5), delayq.Hooks(cancelledHook(func(e delayq.RunEvent) {
				mu.Lock()
				defer mu.Unlock()
				cut[e.ID]++
			})))
		}
		fill(t, f, "a", n)
		sum, err := f.Client.Apply(t.Context(), query(delayq.StateReady), delayq.Cancel())
		require.NoError(t, err)
		require.Equal(t, sum.Matched, sum.Done+sum.Skipped)
		queuetest.Until(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(ended)+int(sum.Done) == n
		})
		stats := f.Stats()
		require.Zero(t, stats.Ready+stats.Scheduled+stats.Dead)
		require.Empty(t, cut, "a running job was hit")
		require.Equal(t, sum.Done, stats.Counters[delayq.CounterCancelled])
	})
}

type cancelledHook func(delayq.RunEvent)

func (f cancelledHook) Cancelled(e delayq.RunEvent) { f(e) }

// An Apply that was cancelled half-way says what it has done, and goes on from its cursor.
func TestApplyGoesOnFromItsCursor(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateDead} {
			const n = 1000
			switch state {
			case delayq.StateDead:
				killed(t, f, "a", n)
			case delayq.StateReady:
				fill(t, f, "a", n)
			default:
				fill(t, f, "a", n, delayq.ProcessIn(time.Hour))
			}
			q := query(state)
			q.Limit = 100
			q.IDPrefix = "a"
			total := int64(0)
			for total < n {
				ctx, cancel := context.WithCancelCause(t.Context())
				tired := errors.New("tired")
				var last delayq.Applied
				sum, err := f.Client.Apply(ctx, q, delayq.Cancel(), delayq.OnProgress(func(a delayq.Applied) {
					if last = a; a.Done >= 300 {
						cancel(tired)
					}
				}))
				cancel(nil)
				require.Equal(t, last, *sum)
				total += sum.Done
				if total < n {
					require.ErrorIs(t, err, tired)
					require.ErrorContains(t, err, `apply cancel topic "topic": tired`)
					require.NotEmpty(t, sum.Next)
				}
				q.Cursor = sum.Next
				if sum.Next == "" {
					break
				}
			}
			require.EqualValues(t, n, total)
			other := query(state)
			require.Zero(t, must(f.Client.Apply(t.Context(), other, delayq.Cancel())).Matched)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// AtMost ends after exactly that many, and the next Apply goes on.
func TestApplyAtMost(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		fill(t, f, "a", 1100, delayq.ProcessIn(time.Hour))
		q := query(delayq.StateScheduled)
		for _, want := range []int64{700, 400} {
			sum, err := f.Client.Apply(t.Context(), q, delayq.Cancel(), delayq.AtMost(700))
			require.NoError(t, err)
			require.Equal(t, want, sum.Done)
			q.Cursor = sum.Next
		}
		require.Empty(t, q.Cursor)
	})
}

// A dry run counts what matches, and writes nothing: MONITOR shows no command that does.
func TestApplyDryRunWritesNothing(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		fill(t, f, "a", 1500, delayq.ProcessIn(time.Hour))
		fill(t, f, "b", 300, delayq.ProcessIn(time.Hour))
		killed(t, f, "c", 200)
		before := f.Dump()
		var scripts []string
		c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(scriptHook(func(e delayq.ScriptEvent) { scripts = append(scripts, e.Name) })))
		ctx := delayq.WithActor(t.Context(), "alice")
		for _, test := range []struct {
			q      delayq.Query
			action delayq.Action
			want   int64
			opts   []delayq.ApplyOption
			calls  int
		}{
			{query(delayq.StateScheduled), delayq.Cancel(), 1800, nil, 1},
			{delayq.Query{Topic: "topic", State: delayq.StateScheduled, IDPrefix: "b"}, delayq.Bury("x"), 300, nil, 2},
			{query(delayq.StateScheduled), delayq.RunNow(), 1234, []delayq.ApplyOption{delayq.AtMost(1234)}, 2},
			{query(delayq.StateDead), delayq.Revive(), 200, []delayq.ApplyOption{delayq.Spread(time.Hour), delayq.Pace(1)}, 1},
			{query(delayq.StateDone), delayq.Delete(), 0, nil, 1},
		} {
			scripts = nil
			sum, err := c.Apply(ctx, test.q, test.action, append(test.opts, delayq.DryRun())...)
			require.NoError(t, err)
			require.Equal(t, delayq.Applied{Matched: test.want, Examined: sum.Examined, Next: sum.Next}, *sum)
			require.Len(t, scripts, test.calls)
			require.Equal(t, []string{"page"}, slices.Compact(scripts))
		}
		require.Equal(t, before, f.Dump())
		require.Empty(t, acts(t, f.RDB, f.Prefix))
	})
}

// Due times are spread evenly, within 5 % of each twentieth of the time.
func TestApplySpreadsEvenly(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		const n, over = 4000, 10 * time.Minute
		even := func(what string, began time.Time) {
			t.Helper()
			var dues []time.Duration
			for info, err := range f.Inspector.All(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateScheduled, Limit: 1000}) {
				require.NoError(t, err)
				dues = append(dues, info.Due.Sub(began))
			}
			for info, err := range f.Inspector.All(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateReady, Limit: 1000}) {
				require.NoError(t, err)
				dues = append(dues, max(0, info.Due.Sub(began)))
			}
			require.Len(t, dues, n, what)
			bins := make([]float64, 20)
			for _, due := range dues {
				require.Less(t, due, over+queuetest.Patience, what)
				bins[min(19, int(due*20/over))]++
			}
			for _, bin := range bins {
				require.InEpsilon(t, n/20, bin, 0.05, "%s: %v", what, bins)
			}
		}
		killed(t, f, "a", n)
		began := must(f.RDB.Time(t.Context()).Result())
		sum, err := f.Client.Apply(t.Context(), query(delayq.StateDead), delayq.Revive(), delayq.Spread(over))
		require.NoError(t, err)
		require.EqualValues(t, n, sum.Done)
		even("revived", began)

		from := began.Add(5 * time.Hour).Truncate(time.Millisecond)
		for range 2 { // the second time each of them is where it is to be
			sum, err = f.Client.Apply(t.Context(), query(delayq.StateScheduled), delayq.Reschedule(delayq.ProcessAt(from)), delayq.Spread(over))
			require.NoError(t, err)
			require.Equal(t, sum.Matched, sum.Done)
		}
		_, err = f.Client.Apply(t.Context(), query(delayq.StateReady), delayq.Reschedule(delayq.ProcessAt(from)), delayq.Spread(over))
		require.NoError(t, err)
		even("rescheduled", from)

		began = must(f.RDB.Time(t.Context()).Result())
		_, err = f.Client.Apply(t.Context(), query(delayq.StateScheduled), delayq.RunNow(), delayq.Spread(over))
		require.NoError(t, err)
		even("run now", began)
	})
}

// Jobs that are due before their share of the time are not delayed by RunNow.
func TestApplyRunNowDelaysNothing(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		fill(t, f, "a", 100, delayq.ProcessIn(time.Minute))
		due := f.Get("a00000").Due
		sum, err := f.Client.Apply(t.Context(), query(delayq.StateScheduled), delayq.RunNow(), delayq.Spread(time.Hour))
		require.NoError(t, err)
		require.EqualValues(t, 100, sum.Matched)
		require.Greater(t, sum.Skipped, int64(90))
		for info, err := range f.Inspector.All(t.Context(), query(delayq.StateScheduled)) {
			require.NoError(t, err)
			require.False(t, info.Due.After(due.Add(queuetest.Patience)))
		}
	})
}

// A delay moves each job once, although the moved ones are met again behind the cursor.
func TestApplyReschedulesEachJobOnce(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for i := range 30 {
			fill(t, f, fmt.Sprint("a", i, "-"), 50, delayq.ProcessIn(time.Duration(i+1)*time.Minute))
		}
		q := query(delayq.StateScheduled)
		q.Limit = 100
		sum, err := f.Client.Apply(t.Context(), q, delayq.Reschedule(delayq.ProcessIn(15*time.Minute)))
		require.NoError(t, err)
		require.EqualValues(t, 1500, sum.Done)
		require.EqualValues(t, 1500, sum.Matched)
		first := f.Get("a0-00000").Due
		for info, err := range f.Inspector.All(t.Context(), q) {
			require.NoError(t, err)
			require.Equal(t, first, info.Due, "all have the same due time")
		}
	})
}

// Jobs that would expire by their new due time fail, and the others are moved.
func TestApplyTellsWhatExpires(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		fill(t, f, "a", 30, delayq.ProcessIn(time.Minute), delayq.ExpireIn(10*time.Minute))
		fill(t, f, "b", 20, delayq.ProcessIn(time.Minute), delayq.ExpireIn(10*time.Hour))
		sum, err := f.Client.Apply(t.Context(), query(delayq.StateScheduled), delayq.Reschedule(delayq.ProcessIn(time.Hour)))
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorContains(t, err, `apply reschedule topic "topic": 30 of 50 jobs failed: `)
		require.EqualValues(t, 20, sum.Done)
		require.EqualValues(t, 30, sum.Failed)
		require.Len(t, sum.Errs, 10)
		require.ErrorContains(t, sum.Errs[0], `reschedule topic "topic" job "a0`)
		require.Empty(t, sum.Next, "it has gone on to the end")
	})
}

// Pace bounds how many jobs a second are acted on.
func TestApplyPace(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for i := range 300 {
			b.Enqueue("t", fmt.Sprint(i), delayq.ProcessIn(time.Hour))
		}
		began := b.At()
		var last time.Duration
		sum, err := b.Client.Apply(b.Context(), delayq.Query{Topic: "t", State: delayq.StateScheduled}, delayq.Cancel(), delayq.Pace(100),
			delayq.OnProgress(func(a delayq.Applied) {
				last = b.At() - began
				require.LessOrEqual(b, float64(a.Done), 100*last.Seconds()+10.001)
			}))
		require.NoError(b, err)
		require.EqualValues(b, 300, sum.Done)
		require.InDelta(b, 2.9, last.Seconds(), 0.01)

		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		b.Enqueue("t", "y", delayq.ProcessIn(time.Hour))
		ctx, cancel := context.WithTimeout(b.Context(), 500*time.Millisecond)
		defer cancel()
		sum, err = b.Client.Apply(ctx, delayq.Query{Topic: "t", State: delayq.StateScheduled}, delayq.Cancel(), delayq.Pace(1))
		require.ErrorIs(b, err, context.DeadlineExceeded, "it does not wait for its turn")
		require.EqualValues(b, 1, sum.Done)
	})
}

// Time that is lost is not made up for: after a search that finds nothing for a long time, or a
// slow step, no burst follows.
func TestApplyPaceMakesUpForNothing(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for i := range 300 {
			b.Enqueue("t", fmt.Sprint(i), delayq.ProcessIn(time.Hour))
		}
		began, step := b.At(), 0
		_, err := b.Client.Apply(b.Context(), delayq.Query{Topic: "t", State: delayq.StateScheduled}, delayq.Cancel(), delayq.Pace(100),
			delayq.OnProgress(func(delayq.Applied) {
				if step++; step == 1 {
					time.Sleep(10 * time.Second)
					began = b.At()
				}
			}))
		require.NoError(b, err)
		require.Equal(b, 30, step)
		require.InDelta(b, 2.8, (b.At() - began).Seconds(), 0.01)
	})
}

// Jobs that die again while Apply runs are left dead, so that it ends.
func TestApplyRevivesEachJobOnce(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		const n = 300
		killed(t, f, "a", n)
		require.NoError(t, eventually(t, f))
		q := query(delayq.StateDead)
		for _, q.Latest = range []bool{false, true} {
			q.Limit = 100
			steps := 0
			ctx, cancel := context.WithCancel(t.Context())
			sum, err := f.Client.Apply(ctx, q, delayq.Revive(), delayq.OnProgress(func(delayq.Applied) {
				_, err := f.Client.Apply(t.Context(), query(delayq.StateReady), delayq.Bury("again"))
				require.NoError(t, errors.Join(err, eventually(t, f)))
				if steps++; steps == 10 {
					cancel()
				}
			}))
			cancel()
			require.NoError(t, err)
			require.EqualValues(t, n, sum.Done)
			require.EqualValues(t, n, sum.Matched)
			require.Empty(t, sum.Next)
			require.EqualValues(t, n, f.Stats().Dead)
		}
	})
}

// Ready jobs that were delayed and are ready again while Apply runs have been moved already.
func TestApplyDelaysReadyJobsOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const n = 300
		for i := range n {
			b.Enqueue("t", fmt.Sprint(i))
		}
		b.Serve("t", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Concurrency(1))
		b.Pass(time.Second)
		ready := b.Stats("t").Ready
		require.Greater(b, ready, int64(n/2))
		sum, err := b.Client.Apply(b.Context(), delayq.Query{Topic: "t", State: delayq.StateReady, Limit: 100}, delayq.Reschedule(delayq.ProcessIn(time.Second)),
			delayq.OnProgress(func(a delayq.Applied) {
				if a.Done == 100 {
					b.Pass(5 * time.Second) // the first are ready again, behind the others
				}
			}))
		require.NoError(b, err)
		require.Equal(b, ready, sum.Done)
		require.Equal(b, ready, sum.Matched)
		require.Greater(b, sum.Examined, sum.Matched)
	})
}

// A panic in the function of OnProgress ends an Apply, and what it has done is recorded.
func TestApplyThatPanicsIsAudited(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		fill(t, f, "a", 100, delayq.ProcessIn(time.Hour))
		q := query(delayq.StateScheduled)
		q.Limit = 10
		require.PanicsWithValue(t, "no", func() {
			_, _ = f.Client.Apply(delayq.WithActor(t.Context(), "alice"), q, delayq.Cancel(), delayq.OnProgress(func(a delayq.Applied) {
				if a.Done == 30 {
					panic("no")
				}
			}))
		})
		require.Equal(t, []string{"apply cancel|topic||state scheduled|30"}, acts(t, f.RDB, f.Prefix))
	})
}

// Redis goes away in the middle: what was done is told, and the rest is done from the cursor.
func TestApplyWhenRedisGoesAway(t *testing.T) {
	const n, step = 1000, 100
	cancel := delayq.Scripts()["cancel"]
	for name, test := range map[string]struct {
		hurt   func(w *queuetest.Wire) // after four steps
		failed int64                   // jobs of the fifth step with an unknown outcome
	}{
		"before a page":     {func(w *queuetest.Wire) { w.Cut() }, 0},
		"before the act":    {func(w *queuetest.Wire) { w.Die(cancel, true) }, step},
		"before its answer": {func(w *queuetest.Wire) { w.Die(cancel, false) }, step},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				for i := range n {
					b.Enqueue("t", fmt.Sprintf("%04d", i), delayq.ProcessIn(time.Hour))
				}
				w := queuetest.NewWire(b.Redis)
				c := delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix))
				q := delayq.Query{Topic: "t", State: delayq.StateScheduled, Limit: step}
				ctx := delayq.WithActor(b.Context(), "alice")
				sum, err := c.Apply(ctx, q, delayq.Cancel(), delayq.OnProgress(func(a delayq.Applied) {
					if a.Done == 4*step && a.Failed == 0 {
						test.hurt(w)
					}
				}))
				require.Error(b, err)
				require.Equal(b, test.failed > 0, errors.Is(err, delayq.ErrUnknownOutcome))
				require.Len(b, sum.Errs, min(10, int(test.failed)))
				require.EqualValues(b, 4*step, sum.Done)
				require.Equal(b, test.failed, sum.Failed)
				require.Equal(b, sum.Done+sum.Failed, sum.Matched)
				require.NotEmpty(b, sum.Next)
				b.Pass(time.Second) // until the wire is cut
				w.Heal()
				for range 30 { // connections have broken
					if err == nil {
						break
					}
					b.Pass(2 * time.Second) // go-redis looks once a second whether it can dial again
					q.Cursor = sum.Next
					sum, err = c.Apply(ctx, q, delayq.Cancel())
				}
				require.NoError(b, err)
				require.Empty(b, sum.Next)
				require.EqualValues(b, n, b.Counter("t", delayq.CounterCancelled))
				require.Zero(b, must(b.RDB.HLen(ctx, queuetest.PoolKey("t")).Result()))
				all := acts(b.T, b.RDB, queuetest.Prefix)
				require.Equal(b, fmt.Sprintf("apply cancel|t||state scheduled, continued|%d", sum.Done), all[len(all)-1])
			})
		})
	}
}

// The recipe of docs/operations.md revives the jobs that died of one error and no other.
func TestRecipeForManyJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for id, reason := range map[string]string{"a": "550 no such user", "b": "550 mailbox is full", "c": "421 try later"} {
			_, err := f.Client.Enqueue(t.Context(), "mail", id, nil)
			require.NoError(t, err)
			require.NoError(t, f.Client.Bury(t.Context(), "mail", id, reason))
		}
		require.NoError(t, reviveBounced(t.Context(), f.Client))
		for id, want := range map[string]bool{"a": true, "b": true, "c": false} {
			require.Equal(t, want, queuetest.StateOf(t, f.Client, "mail", id) != delayq.StateDead, id)
		}
		require.Len(t, acts(t, f.RDB, f.Prefix), 1)
	})
}

func reviveBounced(ctx context.Context, client *delayq.Client) error {
	ctx = delayq.WithActor(ctx, "alice") // for the audit
	q := delayq.Query{Topic: "mail", State: delayq.StateDead, Error: "550"}
	would, err := client.Apply(ctx, q, delayq.Revive(), delayq.DryRun())
	if err != nil || would.Matched == 0 {
		return err
	}
	sum, err := client.Apply(ctx, q, delayq.Revive(), delayq.AtMost(would.Matched),
		delayq.Spread(10*time.Minute))
	fmt.Println(sum.Done, sum.Skipped, sum.Failed)
	return err
}

// One Apply is one act of the audit, with its query and its arguments.
func TestApplyIsAudited(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "alice")
		fill(t, f, "a", 700, delayq.ProcessIn(time.Hour), delayq.Header("tenant", "42"))
		from := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
		to := from.AddDate(100, 0, 0)
		for _, test := range []struct {
			q      delayq.Query
			action delayq.Action
			opts   []delayq.ApplyOption
			want   string
		}{
			{
				delayq.Query{State: delayq.StateScheduled, From: from, To: to, Latest: true, IDPrefix: "a00"}, delayq.Bury("the \"bank\""), nil,
				`apply bury|topic||state scheduled, from 2020-01-02T03:04:05Z, to 2120-01-02T03:04:05Z, latest first, ID prefix "a00", reason "the \"bank\""|700`,
			},
			{
				delayq.Query{State: delayq.StateDead, MinAttempt: 1, Error: "bank"}, delayq.Revive(),
				[]delayq.ApplyOption{delayq.Spread(time.Hour), delayq.AtMost(600)},
				`apply revive|topic||state dead, min attempt 1, error "bank", spread over 1h0m0s, at most 600|600`,
			},
			{
				delayq.Query{State: delayq.StateScheduled, Headers: map[string]string{"tenant": "42"}}, delayq.Reschedule(delayq.ProcessIn(time.Hour)), nil,
				`apply reschedule|topic||state scheduled, header "tenant": "42", due in 1h0m0s|`,
			},
			{delayq.Query{State: delayq.StateDone}, delayq.Delete(), nil, ""},
		} {
			before := acts(t, f.RDB, f.Prefix)
			test.q.Topic = "topic"
			_, err := f.Client.Apply(ctx, test.q, test.action, test.opts...)
			require.NoError(t, err)
			after := acts(t, f.RDB, f.Prefix)
			if test.want == "" {
				require.Equal(t, before, after)
				continue
			}
			require.Len(t, after, len(before)+1)
			require.Contains(t, after[len(before)], test.want)
		}

		require.NoError(t, f.RDB.Del(ctx, f.Prefix+":audit").Err())
		require.NoError(t, f.RDB.Set(ctx, f.Prefix+":audit", "a slip", 0).Err())
		sum, err := f.Client.Apply(ctx, query(delayq.StateScheduled), delayq.Cancel())
		require.ErrorIs(t, err, delayq.ErrNotAudited)
		require.NotZero(t, sum.Done)
		require.Empty(t, sum.Next)
	})
}

// What is invalid is named, and nothing is written.
func TestApplyValidates(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		f.Enqueue("a", delayq.ProcessIn(time.Hour))
		f.Enqueue("b")
		before := f.Dump()
		scheduled, ready, dead, done := query(delayq.StateScheduled), query(delayq.StateReady), query(delayq.StateDead), query(delayq.StateDone)
		bad := scheduled
		bad.Limit = 1001
		cursor := scheduled
		cursor.Cursor = "x"
		later := delayq.Reschedule(delayq.ProcessIn(time.Hour))
		for _, test := range []struct {
			q      delayq.Query
			action delayq.Action
			opts   []delayq.ApplyOption
			want   string
		}{
			{scheduled, delayq.Action{}, nil, "zero Action: must be Cancel, RunNow, Reschedule, Revive, Bury or Delete"},
			{done, delayq.Cancel(), nil, `state "done": must be scheduled or ready or running or dead to cancel jobs`},
			{ready, delayq.RunNow(), nil, `state "ready": must be scheduled to run now jobs`},
			{query(delayq.StateRunning), later, nil, `state "running": must be scheduled or ready to reschedule jobs`},
			{dead, later, nil, `state "dead": must be scheduled or ready to reschedule jobs`},
			{scheduled, delayq.Revive(), nil, `state "scheduled": must be dead to revive jobs`},
			{query(delayq.StateRunning), delayq.Bury(""), nil, `state "running": must be scheduled or ready to bury jobs`},
			{scheduled, delayq.Delete(), nil, `state "scheduled": must be dead or done to delete jobs`},
			{query("no"), delayq.Cancel(), nil, `state "no": must be`},
			{delayq.Query{State: delayq.StateReady}, delayq.Cancel(), nil, "empty topic"},
			{bad, delayq.Cancel(), nil, "limit 1001: must be from 1 to 1000"},
			{cursor, delayq.Cancel(), nil, "cursor"},
			{scheduled, delayq.Reschedule(nil), nil, "nil"},
			{scheduled, delayq.Reschedule(delayq.ProcessIn(101 * 365 * 24 * time.Hour)), nil, "ProcessIn"},
			{scheduled, delayq.Bury(strings.Repeat("x", 1025)), nil, "reason of 1025 bytes, at most 1024 are allowed"},
			{scheduled, delayq.Cancel(), []delayq.ApplyOption{nil}, "an apply option is nil"},
			{scheduled, delayq.Cancel(), []delayq.ApplyOption{delayq.AtMost(0), delayq.Pace(0)}, "AtMost(0): must be at least 1"},
			{scheduled, delayq.Cancel(), []delayq.ApplyOption{delayq.AtMost(0), delayq.Pace(0)}, "Pace(0): must be from 1 to 1000000"},
			{scheduled, delayq.Cancel(), []delayq.ApplyOption{delayq.Pace(1_000_001)}, "Pace(1000001)"},
			{scheduled, delayq.Reschedule(delayq.ProcessAt(time.UnixMilli(9_999_999_999_000))), []delayq.ApplyOption{delayq.Spread(time.Second)},
				"Spread(1s): would end after 2286-11-20 17:46:39.999"},
			{scheduled, delayq.RunNow(), []delayq.ApplyOption{delayq.Spread(0)}, "Spread(0s): must be from 1ms to "},
			{scheduled, delayq.RunNow(), []delayq.ApplyOption{delayq.Spread(time.Microsecond)}, "Spread(1µs)"},
			{scheduled, delayq.Cancel(), []delayq.ApplyOption{delayq.Spread(time.Hour)}, "Spread: only RunNow, Reschedule and Revive have due times"},
			{scheduled, delayq.Cancel(), []delayq.ApplyOption{delayq.OnProgress(nil)}, "OnProgress: f is nil"},
		} {
			for _, opts := range [][]delayq.ApplyOption{test.opts, append(slices.Clone(test.opts), delayq.DryRun())} {
				sum, err := f.Client.Apply(ctx, test.q, test.action, opts...)
				require.ErrorIs(t, err, delayq.ErrInvalid, test.want)
				require.ErrorContains(t, err, test.want)
				require.Equal(t, delayq.Applied{Next: test.q.Cursor}, *sum)
			}
		}
		var none context.Context
		_, err := f.Client.Apply(none, scheduled, delayq.Cancel())
		require.ErrorContains(t, err, "nil context")
		var c *delayq.Client
		_, err = c.Apply(ctx, scheduled, delayq.Cancel())
		require.ErrorContains(t, err, "nil Client")
		require.Equal(t, before, f.Dump())
	})
}
