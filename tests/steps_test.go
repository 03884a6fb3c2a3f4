package tests

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// A stepLog is what the functions of steps have seen.
type stepLog struct {
	mu   sync.Mutex
	ran  map[string]int             // how often, by the ID of the job and the name of the step
	keys map[string]map[string]bool // that they got
}

// do makes a step whose function notes that it runs, and returns what the step has returned.
func (l *stepLog) do(ctx context.Context, job *delayq.Job, name string) (string, error) {
	return delayq.Step(ctx, job, name, func(_ context.Context, key string) (string, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		which := job.ID + "/" + name
		if l.ran == nil {
			l.ran, l.keys = map[string]int{}, map[string]map[string]bool{}
		}
		if l.keys[which] == nil {
			l.keys[which] = map[string]bool{}
		}
		l.ran[which]++
		l.keys[which][key] = true
		return fmt.Sprint("run ", l.ran[which], " of ", which), nil
	})
}

// all makes steps, and expects that each has the result of its first run.
func (l *stepLog) all(t testing.TB, ctx context.Context, job *delayq.Job, names ...string) error {
	for _, name := range names {
		result, err := l.do(ctx, job, name)
		if err != nil {
			return err
		}
		if want := "run 1 of " + job.ID + "/" + name; result != want {
			t.Errorf("%q is returned, want %q", result, want)
		}
	}
	return nil
}

func (l *stepLog) runs() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.ran)
}

// keysOf returns the keys that the function of a step got.
func (l *stepLog) keysOf(which string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.keys[which]))
}

// However the first run of a job ends after two of its steps: the run that follows makes the third
// alone, and has the results of the others.
func TestStepsAreNotRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(ctx context.Context) error // of the first run
		other func(b *queuetest.Bubble)       // what makes the next run follow
		opts  []delayq.JobOption
		kinds map[string]int // that hooks see
	}{
		"an error": {end: func(context.Context) error { return queuetest.ErrTest }},
		"RetryIn":  {end: func(context.Context) error { return delayq.RetryIn(time.Second, queuetest.ErrTest) }},
		"a panic":  {end: func(context.Context) error { panic("oh no") }},
		"Goexit":   {end: func(context.Context) error { runtime.Goexit(); return nil }},
		"a snooze": {end: func(context.Context) error { return delayq.Snooze(time.Second) }},
		"a hold":   {end: func(context.Context) error { return delayq.Hold(time.Second) }},
		"a timeout": {
			end:  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			opts: []delayq.JobOption{delayq.Timeout(2 * time.Second)},
		},
		"burial": {
			end:   func(context.Context) error { return delayq.Permanent(queuetest.ErrTest) },
			other: func(b *queuetest.Bubble) { require.NoError(b, b.Client.Revive(b.Context(), "a", "1")) },
		},
		"retries that are used up": {
			end:   func(context.Context) error { return queuetest.ErrTest },
			opts:  []delayq.JobOption{delayq.Retry(0)},
			other: func(b *queuetest.Bubble) { require.NoError(b, b.Client.Revive(b.Context(), "a", "1")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var log stepLog
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					if job.Attempt == 1 && job.Snoozes == 0 && len(log.runs()) == 0 {
						require.NoError(b, log.all(b, ctx, job, "one", "two"))
						return c.end(ctx)
					}
					return log.all(b, ctx, job, "one", "two", "three")
				})
				job := b.Enqueue("a", "1", slices.Concat([]delayq.JobOption{delayq.Backoff(3*time.Second, 3*time.Second), delayq.Retention(time.Hour)}, c.opts)...)
				b.Pass(0)
				require.Equal(b, map[string]int{"1/one": 1, "1/two": 1}, log.runs())
				require.Equal(b, []string{"one", "two"}, b.Get("a", "1").Steps)
				b.Pass(2500 * time.Millisecond)
				if c.other != nil {
					require.Equal(b, delayq.StateDead, b.State("a", "1"))
					require.Equal(b, []string{"one", "two"}, b.Get("a", "1").Steps)
					c.other(b)
				}
				b.Pass(10 * time.Second)
				require.Equal(b, map[string]int{"1/one": 1, "1/two": 1, "1/three": 1}, log.runs())
				info := b.Get("a", "1")
				require.Equal(b, delayq.StateDone, info.State)
				require.Equal(b, job.Nonce(), info.Nonce())
				require.Empty(b, info.Steps, "they are deleted with the end of the job")
				require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
			})
		})
	}
}

// notesKey returns the key of the notes of a topic.
func notesKey(topic string) string { return queuetest.Prefix + ":{" + topic + "}:all:notes" }

// The server dies, stops or loses its lease in a run: another server goes on with the steps.
func TestStepsGoOnOnAnotherServer(t *testing.T) {
	const lease = 3 * time.Second
	for name, end := range map[string]func(b *queuetest.Bubble, w *queuetest.Wire, s *queuetest.Running){
		"it dies": func(_ *queuetest.Bubble, w *queuetest.Wire, _ *queuetest.Running) { w.Cut() },
		"it hangs": func(b *queuetest.Bubble, w *queuetest.Wire, _ *queuetest.Running) {
			w.Freeze()
			b.Pass(2 * lease)
			w.Thaw()
		},
		"it stops": func(b *queuetest.Bubble, _ *queuetest.Wire, s *queuetest.Running) { require.NoError(b, s.Stop()) },
		"it is told that the lease is lost": func(b *queuetest.Bubble, _ *queuetest.Wire, _ *queuetest.Running) {
			require.NoError(b, b.RDB.ZRem(b.Context(), queuetest.Prefix+":{a}:leases", "1").Err())
			require.NoError(b, b.RDB.RPush(b.Context(), queuetest.Prefix+":{a}:ready", "1").Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var log stepLog
				w := queuetest.NewWire(b.Redis)
				first := b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
					if err := log.all(b, ctx, job, "one", "two"); err != nil {
						return err
					}
					<-ctx.Done()
					_, err := log.do(ctx, job, "three")
					require.ErrorIs(b, err, context.Cause(ctx), "it does not begin")
					return err
				}, delayq.Lease(lease))
				b.Enqueue("a", "1")
				b.Pass(time.Second)
				require.Equal(b, map[string]int{"1/one": 1, "1/two": 1}, log.runs())
				first.End() // it takes no more
				go func() { end(b, w, first) }()
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					return log.all(b, ctx, job, "one", "two", "three")
				}, delayq.Lease(lease))
				b.Pass(30 * time.Second)
				require.Equal(b, map[string]int{"1/one": 1, "1/two": 1, "1/three": 1}, log.runs())
				require.Empty(b, b.State("a", "1"))
				require.Len(b, log.keysOf("1/one"), 1)
			})
		})
	}
}

// A job that begins anew, or that another one replaces, has no steps yet, and other keys.
func TestStepsBelongToOneIncarnation(t *testing.T) {
	for name, next := range map[string]func(b *queuetest.Bubble) error{ // returned by the first run
		"Again": func(*queuetest.Bubble) error { return delayq.Again(nil) },
		"Replace": func(b *queuetest.Bubble) error {
			b.Enqueue("a", "1", delayq.Replace())
			return nil
		},
		"cancelled and enqueued": func(b *queuetest.Bubble) error {
			_, err := b.Client.Dequeue(b.Context(), "a", "1")
			require.NoError(b, err)
			b.Enqueue("a", "1")
			return nil
		},
		"done and enqueued": func(b *queuetest.Bubble) error {
			time.AfterFunc(time.Second, func() { b.Enqueue("a", "1") })
			return nil
		},
		"buried and replaced": func(b *queuetest.Bubble) error {
			time.AfterFunc(time.Second, func() { b.Enqueue("a", "1", delayq.ReplaceDead()) })
			return delayq.Permanent(queuetest.ErrTest)
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var log stepLog
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					result, err := log.do(ctx, job, "one")
					require.NoError(b, err)
					if result == "run 1 of 1/one" {
						time.Sleep(time.Millisecond) // the clock of a bubble stands still: two leases would be the same
						return next(b)
					}
					require.Equal(b, "run 2 of 1/one", result)
					return nil
				}, delayq.Concurrency(2))
				b.Enqueue("a", "1")
				b.Pass(10 * time.Second)
				require.Equal(b, map[string]int{"1/one": 2}, log.runs())
				require.Len(b, log.keysOf("1/one"), 2)
				require.Empty(b, b.State("a", "1"))
				require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
			})
		})
	}
}

// Keys differ between jobs, topics and names, and are the same for copies of a job.
func TestKeysOfSteps(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		keys := map[string]string{}
		handler := func(ctx context.Context, job *delayq.Job) error {
			for _, name := range []string{"a", "b"} {
				_, err := delayq.Step(ctx, job, name, func(_ context.Context, key string) (struct{}, error) {
					mu.Lock()
					defer mu.Unlock()
					keys[job.Topic+"/"+job.ID+"/"+name] = key
					return struct{}{}, nil
				})
				require.NoError(b, err)
			}
			return nil
		}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("t", handler)
			s.HandlerFunc("t1", handler)
		})
		for _, ref := range [][2]string{{"t", "1"}, {"t", "11"}, {"t1", "1"}} {
			b.Enqueue(ref[0], ref[1])
		}
		b.Pass(time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Len(b, keys, 6)
		distinct := map[string]bool{}
		for _, key := range keys {
			require.Regexp(b, "^[0-9a-f]{32}$", key)
			distinct[key] = true
		}
		require.Len(b, distinct, len(keys))
	})
}

// Values of all types come back as they were, and bytes are not encoded.
func TestResultsOfSteps(t *testing.T) {
	type receipt struct {
		Number int
		At     time.Time
		Parts  []string
	}
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		full := bytes.Repeat([]byte{0, 0xff, '"', '\n'}, 16<<10)
		want := receipt{7, time.Unix(1, 0).UTC(), []string{"a"}}
		runs := 0
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			runs++
			require.Equal(b, want, stepped(b, ctx, job, "struct", want, runs))
			require.Equal(b, &want, stepped(b, ctx, job, "pointer", &want, runs))
			require.Nil(b, stepped(b, ctx, job, "nil pointer", (*receipt)(nil), runs))
			require.Equal(b, full, stepped(b, ctx, job, "bytes", full, runs))
			require.Empty(b, stepped(b, ctx, job, "no bytes", []byte(nil), runs))
			require.Equal(b, "text", stepped(b, ctx, job, "text", "text", runs))
			require.Equal(b, struct{}{}, stepped(b, ctx, job, "nothing", struct{}{}, runs))
			require.Equal(b, 1.5, stepped[any](b, ctx, job, strings.Repeat("ü", 50), 1.5, runs))
			if runs == 1 {
				require.Equal(b, full, []byte(savedStep(b, job, "bytes")))
				require.Equal(b, `"text"`, savedStep(b, job, "text"))
				return queuetest.ErrTest
			}
			return nil
		})
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Equal(b, 2, runs)
	})
}

// stepped makes a step that returns v, and expects that its function runs in the first run alone.
func stepped[T any](t testing.TB, ctx context.Context, job *delayq.Job, name string, v T, run int) T {
	ran := false
	got, err := delayq.Step(ctx, job, name, func(context.Context, string) (T, error) { ran = true; return v, nil })
	require.NoError(t, err)
	require.Equal(t, run == 1, ran, name)
	return got
}

// savedStep returns what Redis has of a step.
func savedStep(b *queuetest.Bubble, job *delayq.Job, name string) string {
	return b.RDB.HGet(b.Context(), notesKey(job.Topic), fmt.Sprintf("s%d:%s%s%s", len(job.ID), job.ID, job.Nonce(), name)).Val()
}

// A result that cannot be decoded any more buries the job, and the error names the step. The job
// can be revived with a handler that knows the type.
func TestSavedResultThatCannotBeDecoded(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		runs := 0
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			if runs++; runs == 2 {
				_, err := delayq.Step(ctx, job, "charge", func(context.Context, string) (int, error) { panic("not again") })
				return err
			}
			text, err := delayq.Step(ctx, job, "charge", func(context.Context, string) (string, error) { return "€", nil })
			require.NoError(b, err)
			require.Equal(b, "€", text)
			if runs == 1 {
				return queuetest.ErrTest
			}
			return nil
		})
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateDead, info.State)
		require.Equal(b, `step "charge" topic "a" job "1": its saved result cannot be decoded: `+
			`json: cannot unmarshal string into Go value of type int`, info.Errors[1].Message)
		require.NoError(b, b.Client.Revive(b.Context(), "a", "1"))
		b.Pass(time.Second)
		require.Equal(b, 3, runs)
		require.Empty(b, b.State("a", "1"))
	})
}

// What is damaged in the note of a job never makes a run repeat a step. Names survive damaged
// progress. If the names or a result cannot be read, the job is buried with an error that says so.
// Check finds the damage, and Repair removes damaged progress.
func TestStepsOfADamagedNote(t *testing.T) {
	for name, c := range map[string]struct {
		note     func(note string) string
		err      string // of the next run; empty: none
		found    delayq.FindingKind
		repaired bool
	}{
		"progress": {func(note string) string { return note + " 1 x 3 4 5 half" }, "", delayq.FindingUnreadable, true},
		"names": {
			func(note string) string { return note[:8] + "9" + note[9:] },
			"the note of the job in Redis is damaged, and which steps are over cannot be read", delayq.FindingUnreadable, false,
		},
		"a name":   {func(note string) string { return note[:10] + "x" + note[11:] }, "the note of the job in Redis is damaged", delayq.FindingUnreadable, false},
		"a result": {func(note string) string { return note }, "the step is over, but Redis has lost its result", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var log stepLog
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					if err := log.all(b, ctx, job, "one"); err != nil || job.Attempt > 1 {
						return err
					}
					return queuetest.ErrTest
				})
				job := b.Enqueue("a", "1", delayq.Backoff(time.Minute, time.Minute))
				b.Pass(time.Second)
				note := b.RDB.HGet(b.Context(), notesKey("a"), "p1").Val()
				require.NoError(b, b.RDB.HSet(b.Context(), notesKey("a"), "p1", c.note(note)).Err())
				if name == "a result" {
					require.NoError(b, b.RDB.HDel(b.Context(), notesKey("a"), fmt.Sprintf("s1:1%sone", job.Nonce())).Err())
				}
				for range 2 {
					report, err := b.Client.Repair(b.Context(), "a")
					require.NoError(b, err)
					if c.found == "" {
						require.Empty(b, report.Findings)
						break
					}
					require.Len(b, report.Findings, 1)
					require.Equal(b, c.found, report.Findings[0].Kind)
					require.Equal(b, "1", report.Findings[0].ID)
					if require.Equal(b, c.repaired, report.Findings[0].Repaired); c.repaired {
						break
					}
				}
				b.Pass(3 * time.Minute)
				require.Equal(b, map[string]int{"1/one": 1}, log.runs())
				if c.err == "" {
					require.Empty(b, b.State("a", "1"))
					return
				}
				info := b.Get("a", "1")
				require.Equal(b, delayq.StateDead, info.State)
				require.Contains(b, info.Errors[1].Message, `step "one" topic "a" job "1": `+c.err)
			})
		})
	}
}

// Steps that are refused: those that can be known before are refused before their functions run.
func TestStepsOutOfBounds(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var kept *delayq.Job
		never := func(context.Context, string) (int, error) { panic("it must not run") }
		refused := func(ctx context.Context, job *delayq.Job, name, want string) {
			b.Helper()
			n, err := delayq.Step(ctx, job, name, never)
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, want)
			require.Zero(b, n)
		}
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			kept = job
			//nolint:staticcheck // a nil context is what is tested
			refused(nil, job, "x", "nil context")
			refused(ctx, nil, "x", "nil job")
			refused(ctx, job, "", "empty name")
			refused(ctx, job, strings.Repeat("x", 101), "name of 101 bytes, at most 100 are allowed")
			refused(ctx, job, "a\nb", `name "a\nb", valid UTF-8 without control characters`)
			refused(ctx, job, "a\xff", "valid UTF-8")
			_, err := delayq.Step[int](ctx, job, "x", nil)
			require.EqualError(b, err, `step "x" topic "a" job "1": delayq: invalid: nil function`)
			_, err = delayq.Step(ctx, job, "large", func(context.Context, string) ([]byte, error) { return make([]byte, 64<<10+1), nil })
			require.EqualError(b, err, `step "large" topic "a" job "1": delayq: invalid: result of 65537 bytes, at most 65536 are allowed`)
			_, err = delayq.Step(ctx, job, "chan", func(context.Context, string) (chan int, error) { return nil, nil })
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, "its result cannot be encoded: json: unsupported type: chan int")
			_, err = delayq.Step(ctx, job, "outer", func(ctx context.Context, _ string) (int, error) {
				return delayq.Step(ctx, job, "inner", func(ctx context.Context, _ string) (int, error) {
					refused(ctx, job, "outer", "the step is called within itself")
					return 1, nil
				})
			})
			require.NoError(b, err)
			for i := range 98 {
				require.Equal(b, i, stepped(b, ctx, job, fmt.Sprint(i), i, 1))
			}
			require.Len(b, b.Get("a", "1").Steps, 100)
			refused(ctx, job, "one more", "the job has 100 steps, and no more are allowed")
			require.Equal(b, 5, stepped(b, ctx, job, "5", 6, 2), "those it has are there")
			return delayq.Snooze(time.Second)
		})
		job := b.Enqueue("a", "1")
		refused(b.Context(), job, "x", "the job is not that of a handler")
		b.Pass(100 * time.Millisecond)
		require.Equal(b, delayq.StateScheduled, b.State("a", "1"), "all of that held")
		refused(b.Context(), kept, "x", "the handler has returned")
		require.Len(b, b.Get("a", "1").Steps, 100)
	})
}

// What a function returns as its error is returned as it is. The step can be called again in the
// same run, and in the next one.
func TestStepThatFails(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		calls, runs := 0, 0
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			runs++
			f := func(context.Context, string) (int, error) {
				if calls++; calls < 4 {
					return calls, queuetest.ErrTest
				}
				return calls, nil
			}
			if runs == 1 {
				n, err := delayq.Step(ctx, job, "x", f)
				require.Zero(b, n)
				require.True(b, err == queuetest.ErrTest, "as it is: %v", err)
				require.Panics(b, func() { _, _ = delayq.Step(ctx, job, "x", func(context.Context, string) (int, error) { panic(1) }) })
				_, err = delayq.Step(ctx, job, "x", f)
				require.Error(b, err)
				require.Empty(b, b.Get("a", "1").Steps)
				return queuetest.ErrTest
			}
			n, err := delayq.Step(ctx, job, "x", f)
			if err == nil {
				require.Equal(b, 4, n)
			}
			return err
		})
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Equal(b, 4, calls)
		require.Equal(b, 3, runs)
		require.Empty(b, b.State("a", "1"))
	})
}

// Steps of one job run at the same time. Those of one name run one after the other, and the first
// that succeeds is the only one.
func TestConcurrentSteps(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		ran := map[string]int{}
		running, most := 0, 0
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			var all sync.WaitGroup
			for i := range 60 {
				all.Go(func() {
					name := fmt.Sprint(i % 20)
					got, err := delayq.Step(ctx, job, name, func(context.Context, string) (string, error) {
						mu.Lock()
						ran[name]++
						first := ran[name] == 1
						running++
						most = max(most, running)
						mu.Unlock()
						time.Sleep(time.Second)
						mu.Lock()
						defer mu.Unlock()
						if running--; first {
							return "", queuetest.ErrTest
						}
						return name, nil
					})
					if err == nil && got != name {
						b.Errorf("%q, want %q", got, name)
					}
				})
			}
			all.Wait()
			return nil
		}, delayq.Drain(time.Minute))
		b.Enqueue("a", "1", delayq.Retention(time.Hour))
		b.Pass(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(b, delayq.StateDone, b.State("a", "1"))
		require.Len(b, ran, 20)
		for name, n := range ran {
			require.Equal(b, 2, n, "%s: the first fails, and the third call has the result of the second", name)
		}
		require.Equal(b, 20, most)
	})
}

// The lease is lost while the function runs: what it has done is not saved, the error says why, and
// the next run makes the step anew.
func TestStepOfALostLease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var errs []error
		ran := 0
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			got, err := delayq.Step(ctx, job, "x", func(context.Context, string) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				if ran++; ran == 1 { // as if another server had it meanwhile, and nobody had said so
					require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{a}:leases",
						queuetest.ZMember("1", time.Now().Add(2*time.Second))).Err())
				}
				return ran, nil
			})
			mu.Lock()
			defer mu.Unlock()
			if errs = append(errs, err); err != nil {
				require.Zero(b, got)
			}
			return err
		}, delayq.Lease(5*time.Second))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.Empty(b, b.Get("a", "1").Steps, "it is not saved")
		b.Pass(30 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(b, 2, ran)
		require.Len(b, errs, 2)
		require.ErrorIs(b, errs[0], delayq.ErrLeaseLost)
		require.ErrorContains(b, errs[0], `step "x" topic "a" job "1": `)
		require.NoError(b, errs[1])
		require.EqualValues(b, 1, b.Counter("a", "acked"))
	})
}

// A cancelled job is known as that to a step that cannot be saved, even if the message was lost.
func TestStepOfACancelledJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var hooks queuetest.HookLog
		var failed error
		b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			_, failed = delayq.Step(ctx, job, "x", func(context.Context, string) (int, error) {
				w.Deafen()
				_, err := b.Client.Dequeue(b.Context(), "a", "1")
				return 1, err
			})
			return failed
		}, delayq.Hooks(&hooks))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.ErrorIs(b, failed, delayq.ErrCancelled)
		require.Equal(b, map[string]int{"Started": 1, "Cancelled": 1}, hooks.Kinds("1"))
		require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
		w.Heal()
	})
}

// The reply to a save is lost, or Redis is away for a while: the step waits and is saved once.
// While the call was on its way, the lease has been extended.
func TestSaveWithoutAReply(t *testing.T) {
	for name, fault := range map[string]func(w *queuetest.Wire){
		"lost":    func(w *queuetest.Wire) { w.Lose(queuetest.Digest("note")) },
		"stalled": func(w *queuetest.Wire) { w.Stall(queuetest.Digest("note")); time.AfterFunc(7*time.Second, w.Heal) },
		"delayed": func(w *queuetest.Wire) { w.Delay(queuetest.Digest("note")); time.AfterFunc(7*time.Second, w.Heal) },
		"cut":     func(w *queuetest.Wire) { w.Cut(); time.AfterFunc(3*time.Second, w.Mend) },
		"died":    func(w *queuetest.Wire) { w.Die(queuetest.Digest("note"), false); time.AfterFunc(3*time.Second, w.Mend) },
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				w := queuetest.NewWire(b.Redis)
				var log stepLog
				b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
					if err := log.all(b, ctx, job, "one"); err != nil {
						return err
					}
					fault(w)
					return log.all(b, ctx, job, "two", "three")
				}, delayq.Lease(12*time.Second))
				b.Enqueue("a", "1")
				b.Pass(30 * time.Second)
				require.Equal(b, map[string]int{"1/one": 1, "1/two": 1, "1/three": 1}, log.runs())
				require.EqualValues(b, 1, b.Counter("a", "acked"))
				require.EqualValues(b, 1, b.Counter("a", "taken"))
			})
		})
	}
}

// Redis is away when a run reads what earlier ones have noted: it waits for that.
func TestRecallWhileRedisIsAway(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var log stepLog
		b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			w.Cut()
			time.AfterFunc(4*time.Second, w.Mend)
			return log.all(b, ctx, job, "one")
		})
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Equal(b, map[string]int{"1/one": 1}, log.runs())
		require.EqualValues(b, 1, b.Counter("a", "taken"))
		require.EqualValues(b, 1, b.Counter("a", "acked"))
	})
}

// A job is gone when its run reads what earlier ones have noted, and the run has not been told yet.
// Its steps are not taken for new ones.
func TestRecallOfAJobThatIsGone(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log stepLog
		var failed error
		keys := script.NewKeys(queuetest.Prefix, "a")
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			if job.Attempt == 2 { // as a cancel does whose message is on its way
				require.NoError(b, b.RDB.HDel(b.Context(), keys.Pool, job.ID).Err())
				require.NoError(b, b.RDB.ZRem(b.Context(), keys.Leases, job.ID).Err())
				require.NoError(b, b.RDB.Del(b.Context(), keys.Notes).Err())
			}
			err := log.all(b, ctx, job, "one")
			if job.Attempt == 1 {
				return queuetest.ErrTest
			}
			failed = err
			return err
		}, delayq.Lease(12*time.Second))
		b.Enqueue("a", "1", delayq.Backoff(time.Second, time.Second))
		b.Pass(time.Minute)
		require.Equal(b, map[string]int{"1/one": 1}, log.runs())
		require.ErrorIs(b, failed, delayq.ErrCancelled)
	})
}

// Redis refuses to write, for example because its memory is full: the step gets that error at once.
func TestStepThatRedisRefuses(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var failed error
		runs := 0
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			if runs++; runs == 1 {
				require.NoError(b, b.RDB.Del(b.Context(), notesKey("a")).Err())
				_, failed = delayq.Step(ctx, job, "x", func(context.Context, string) (int, error) {
					return 1, b.RDB.Set(b.Context(), notesKey("a"), "not a hash", 0).Err()
				})
				require.NoError(b, b.RDB.Del(b.Context(), notesKey("a")).Err())
				return failed
			}
			_, err := delayq.Step(ctx, job, "x", func(context.Context, string) (int, error) { return 1, nil })
			return err
		})
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.ErrorContains(b, failed, `step "x" topic "a" job "1": `)
		require.ErrorContains(b, failed, "WRONGTYPE")
		require.NotErrorIs(b, failed, delayq.ErrLeaseLost)
		b.Pass(time.Minute)
		require.Equal(b, 2, runs)
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Empty(b, b.Stats("a").Running)
	})
}

// A job has more saved bytes than a run remembers: it reads each when it needs it.
func TestManyLargeResults(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var calls queuetest.CountScripts
		runs := 0
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			runs++
			for i := range 40 {
				want := bytes.Repeat([]byte{byte(i)}, 60<<10)
				require.Equal(b, want, stepped(b, ctx, job, fmt.Sprint(i), want, runs))
				require.Equal(b, want, stepped(b, ctx, job, fmt.Sprint(i), want, 2), "the same name again")
			}
			if runs == 1 {
				return queuetest.ErrTest
			}
			return nil
		}, delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name == "recall" || e.Name == "note" {
				calls.Script(e)
			}
		})))
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Equal(b, 2, runs)
		require.Equal(b, 40, calls["note"])
		kept := (1 << 20) / (60 << 10)
		require.Equal(b, 1+(40-kept)+1+2*(40-kept), calls["recall"])
		require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
	})
}

// Many jobs end steps at the same time: few calls save them, each of about 1 MiB beyond its first
// step.
func TestStepsShareCalls(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 200
		var mu sync.Mutex
		var rows []int
		go1 := make(chan struct{})
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			_, err := delayq.Step(ctx, job, "x", func(context.Context, string) ([]byte, error) {
				<-go1
				return make([]byte, 20<<10), nil
			})
			return err
		}, delayq.Concurrency(jobs), delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name == "note" {
				mu.Lock()
				defer mu.Unlock()
				rows = append(rows, e.Jobs)
			}
		})))
		for i := range jobs {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(time.Second)
		close(go1)
		b.Pass(time.Second)
		require.EqualValues(b, jobs, b.Counter("a", "acked"))
		mu.Lock()
		defer mu.Unlock()
		all := 0
		for _, n := range rows {
			require.LessOrEqual(b, n, 1+(1<<20)/(20<<10))
			all += n
		}
		require.Equal(b, jobs, all)
	})
}

// Each job of a batch has steps of its own.
func TestStepsOfABatch(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log stepLog
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandleBatch("a", func(ctx context.Context, jobs []*delayq.Job) error {
				for _, job := range jobs {
					if err := log.all(b, job.Context(), job, "one"); err != nil {
						return err
					}
					require.NoError(b, job.Progress(1, 2, "of "+job.ID))
					if job.ID == "0" && job.Attempt == 1 {
						job.Fail(queuetest.ErrTest)
					}
				}
				return nil
			}))
		})
		for i := range 3 {
			b.Enqueue("a", fmt.Sprint(i), delayq.Backoff(time.Minute, time.Minute))
		}
		b.Pass(time.Second)
		info := b.Get("a", "0")
		require.Equal(b, []string{"one"}, info.Steps)
		require.Equal(b, "of 0", info.Progress.Text)
		require.Empty(b, b.State("a", "1"))
		b.Pass(2 * time.Minute)
		require.Equal(b, map[string]int{"0/one": 1, "1/one": 1, "2/one": 1}, log.runs())
		require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
	})
}

// The server is killed at every call in turn, before it arrives and after it was carried out. Each
// step is saved once. The function of one that is saved never runs again, and that of another one
// only because the server was killed before the save.
func TestStepsOfAServerThatIsKilled(t *testing.T) {
	for _, call := range []string{"take", "recall", "note", "ack", "extend"} {
		for _, before := range []bool{true, false} {
			for nth := range 3 {
				t.Run(fmt.Sprintf("%s/before=%v/%d", call, before, nth), func(t *testing.T) {
					queuetest.InBubble(t, func(b *queuetest.Bubble) {
						b.LoadScripts()
						var mu sync.Mutex
						ran, saved := map[string]int{}, map[string]bool{}
						handler := func(ctx context.Context, job *delayq.Job) error {
							for _, name := range []string{"a", "b", "c"} {
								at := fmt.Sprintf("s%d:%s%s%s", len(job.ID), job.ID, job.Nonce(), name)
								_, err := delayq.Step(ctx, job, name, func(context.Context, string) (string, error) {
									is := b.RDB.HExists(b.Context(), notesKey("a"), at).Val()
									mu.Lock()
									ran[name]++
									if saved[name] || is {
										b.Errorf("step %s is saved and runs again", name)
									}
									mu.Unlock()
									time.Sleep(2 * time.Second) // so that leases are extended
									return name, nil
								})
								if err != nil {
									return err
								}
								mu.Lock()
								saved[name] = true
								mu.Unlock()
							}
							return nil
						}
						w := queuetest.NewWire(b.Redis)
						b.ServeOn(w, "a", handler, delayq.Lease(4*time.Second), delayq.Drain(0))
						die := func() { w.Die(queuetest.Digest(call), before) }
						if nth == 0 {
							die()
						} else {
							time.AfterFunc(time.Duration(nth)*2*time.Second-time.Millisecond, die)
						}
						b.Enqueue("a", "1")
						b.Pass(8 * time.Second)
						killed := !w.Alive()
						b.Serve("a", handler, delayq.Lease(4*time.Second))
						b.Pass(time.Minute)
						mu.Lock()
						defer mu.Unlock()
						require.Empty(b, b.State("a", "1"))
						twice := 0
						for _, name := range []string{"a", "b", "c"} {
							require.True(b, saved[name] || !before, name)
							twice += ran[name] - 1
						}
						require.LessOrEqual(b, twice, 1, "%v", ran)
						if !killed {
							require.Zero(b, twice)
						}
						require.EqualValues(b, 1, b.Counter("a", "acked"))
						require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
					})
				})
			}
		}
	}
}

// The type of a step decides how its result is saved, and not the value: an interface can hold
// bytes.
func TestStepOfAnInterface(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			v, err := delayq.Step(ctx, job, "one", func(context.Context, string) (any, error) { return []byte("hello"), nil })
			if err != nil {
				return err
			}
			if job.Attempt == 1 {
				return queuetest.ErrTest
			}
			return job.SetOutput([]byte(fmt.Sprint(v)))
		})
		b.Enqueue("a", "1", delayq.Backoff(time.Second, time.Second), delayq.Retention(time.Hour))
		b.Pass(time.Minute)
		require.Equal(b, "aGVsbG8=", string(b.Get("a", "1").Output()), "JSON")
	})
}

// A job that gets another payload while it waits to be retried begins without the steps of the old
// one.
func TestStepsOfAnotherPayload(t *testing.T) {
	for name, o := range map[string]delayq.JobOption{"latest": delayq.Latest(), "debounce": delayq.Debounce(time.Second, time.Minute)} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var log stepLog
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					if err := log.all(b, ctx, job, "pay "+string(job.Payload)); err != nil || string(job.Payload) == "new" {
						return err
					}
					return queuetest.ErrTest
				})
				b.Enqueue("a", "1", delayq.Backoff(10*time.Second, 10*time.Second))
				b.Pass(time.Second)
				require.Len(b, b.Get("a", "1").Steps, 1)
				_, err := b.Client.Enqueue(b.Context(), "a", "1", []byte("new"), o)
				require.NoError(b, err)
				require.Empty(b, b.Get("a", "1").Steps)
				b.Pass(time.Minute)
				require.Empty(b, b.State("a", "1"))
				require.Equal(b, map[string]int{"1/pay of 1": 1, "1/pay new": 1}, log.runs())
			})
		})
	}
}
