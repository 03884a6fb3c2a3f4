package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// hits returns how often a test kills a server in the middle of a job, and how often it stops one:
// 15 times each, with -short twice.
func hits() int {
	if testing.Short() {
		return 2
	}
	return 15
}

// TestKillsAndStopsKeepTheOrder kills and stops servers in the middle of jobs whose keys have an
// order, while other jobs fail and die. No job of a key has a lease while another one does, and the
// jobs of a key complete in the order in which they were enqueued. A dead job halts its key, or it
// does not.
func TestKillsAndStopsKeepTheOrder(t *testing.T) {
	for name, dead := range map[string]delayq.OnDead{"a dead job continues its key": delayq.ContinueKey, "a dead job halts its key": delayq.HaltKey} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.options.Limits = map[string]check.Limits{"t": {Key: check.Limit{Running: 1}, Ordered: true, Halt: dead == delayq.HaltKey}}
			require.NoError(t, b.client.SetLimits(t.Context(), "t", delayq.Limits{Ordered: true, OnDead: dead}))
			feeds := make([]orderedFeed, 6)
			all := []func(context.Context){func(ctx context.Context) { b.sample(ctx, "t") }}
			for i := range feeds {
				feeds[i] = orderedFeed{b: b, key: fmt.Sprintf("k%d", i)}
				all = append(all, feeds[i].run)
			}
			workers := []*rig.Worker{b.worker("w0"), b.worker("w1"), b.worker("w2")}
			stop := b.background(all...)
			defer stop()
			for i := range 2 * hits() {
				w := workers[i%len(workers)]
				if i%2 == 0 {
					b.interrupt(w, w.Kill, w.Start)
				} else {
					b.interrupt(w, w.Stop, w.Cont)
				}
			}
			stop()
			report := b.judge()
			require.Greater(t, report.Limited.Samples, 100)
			require.Greater(t, report.Limited.Ordered, 10*hits())
			require.NotZero(t, report.Outcomes["retried"])
			require.NotZero(t, report.Outcomes["buried"])
			require.GreaterOrEqual(t, report.Faults["kill"], hits())
			require.GreaterOrEqual(t, report.Faults["stop"], hits())
			events := b.events(func(rig.Event) bool { return true })
			for _, f := range feeds {
				require.Greater(t, len(f.completing), 5)
				require.Equal(t, f.completing, completions(events, f.key), f.key)
			}
		})
	}
}

// interrupt hits a worker until it does so in the middle of a job. Another worker has started this
// job when the worker goes on, and this job has ended when interrupt returns: otherwise the next
// call would hit it again and again, and its backoff grow. A job that ends all the same, before the
// signal has its effect, does not count.
func (b *bench) interrupt(w *rig.Worker, hit, mend func() error) {
	b.t.Helper()
	for found := false; !found; {
		b.await("a job of "+w.Name(), patient, func(events []rig.Event) bool { return len(inside(events, w.Name())) > 0 })
		require.NoError(b.t, hit())
		var lost []string
		for _, run := range inside(b.events(func(rig.Event) bool { return true }), w.Name()) {
			b.await(run.ID+" in another process", patient, func(events []rig.Event) bool {
				again := slices.ContainsFunc(events, func(e rig.Event) bool {
					return e.Op == rig.OpStart && e.Proc != w.Name() && e.ID == run.ID && e.Mono > run.Mono
				})
				if again {
					lost = append(lost, run.ID)
				}
				return again || !slices.ContainsFunc(inside(events, w.Name()), func(e rig.Event) bool { return e.ID == run.ID })
			})
		}
		require.NoError(b.t, mend())
		found = len(lost) > 0
		for _, id := range lost {
			b.await("the end of "+id, patient, func(events []rig.Event) bool {
				return slices.ContainsFunc(events, func(e rig.Event) bool {
					return e.Op == rig.OpSettled && e.ID == id && (e.Result == "acked" || e.Result == "buried")
				})
			})
		}
	}
}

// inside returns the starts of the handlers that run in the present process of a worker.
func inside(events []rig.Event, proc string) (open []rig.Event) {
	for _, e := range events {
		if e.Proc != proc {
			continue
		}
		switch e.Op {
		case rig.OpUp:
			open = nil
		case rig.OpStart:
			open = append(open, e)
		case rig.OpEnd:
			open = slices.DeleteFunc(open, func(start rig.Event) bool { return start.ID == e.ID })
		}
	}
	return open
}

// completions returns the jobs of a key in the order in which they have first completed.
func completions(events []rig.Event, key string) (ids []string) {
	seen := map[string]bool{}
	for _, e := range events {
		if e.Op == rig.OpEnd && e.Result == "ok" && e.Key == key && !seen[e.ID] {
			seen[e.ID] = true
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// orderedSteps are what the jobs of a key do, in turn. One of them dies.
var orderedSteps = [][]string{
	{"hang:100ms"}, {"err", "ok"}, {"deaf:150ms"}, {"ok"}, {"panic", "hang:50ms"}, {"hang:100ms"}, {"perm"}, {"deaf:100ms"},
}

// An orderedFeed keeps some jobs of a key ready.
type orderedFeed struct {
	b          *bench
	key        string
	completing []string // jobs that do not die, in the order in which they were enqueued
}

// run enqueues jobs until its context ends, and returns when all have ended. It cancels those that
// are dead.
func (f *orderedFeed) run(ctx context.Context) {
	var tasks []*rig.Task
	for i := 0; ctx.Err() == nil; i++ {
		steps := orderedSteps[i%len(orderedSteps)]
		task := &rig.Task{
			Topic: "t", ID: fmt.Sprintf("%s-%d", f.key, i), Steps: steps, Retries: -1,
			Options: []delayq.JobOption{delayq.Key(f.key), delayq.Backoff(50*time.Millisecond, 100*time.Millisecond)},
		}
		if err := f.b.client.Put(context.Background(), task, false); err != nil {
			f.b.t.Errorf("put: %v", err)
			return
		}
		if steps[0] != "perm" {
			f.completing = append(f.completing, task.ID)
		}
		if tasks = append(tasks, task); len(tasks) > 4 && !f.ended(tasks[0]) {
			return
		} else if len(tasks) > 4 {
			tasks = tasks[1:]
		}
	}
	for _, task := range tasks {
		if !f.ended(task) {
			return
		}
	}
}

// ended waits until a job has ended, and reports whether it has. If it is dead, the others of its
// key have had their time to overtake it.
func (f *orderedFeed) ended(task *rig.Task) bool {
	looks := 0 // at which it was dead
	gone := within(time.Minute, func() bool {
		info, err := f.b.client.Get(context.Background(), task.Topic, task.ID)
		if err == nil && info.State == delayq.StateDead {
			if looks++; looks == 10 {
				_, err = f.b.client.Cancel(context.Background(), task)
			}
		}
		if err != nil && !errors.Is(err, delayq.ErrNotFound) {
			f.b.t.Errorf("%s: %v", task.ID, err)
		}
		return errors.Is(err, delayq.ErrNotFound) || f.b.t.Failed()
	})
	if !gone {
		why, err := f.b.client.Inspector.Explain(context.Background(), task.Topic, task.ID)
		f.b.t.Errorf("%s has not ended within a minute: %v, %v", task.ID, why, err)
	}
	return gone && !f.b.t.Failed()
}
