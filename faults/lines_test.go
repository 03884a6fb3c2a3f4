package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/faults/rig"
)

// A line is where a worker is killed: a line of its handler, or a request before or after which it
// is killed. The job of each line has a topic of its own.
type line struct {
	name   string
	die    string // line of the handler; empty: a request
	match  rig.Match
	after  bool // Redis has carried it out, and the worker has not learned of it
	again  bool // the job is enqueued again once
	acked  bool // the job is completed when the worker is killed
	stored int  // how many parcels there are then
	sent   bool // what is handed over is in its topic then
	made   int  // how often the second step begins
}

// killAt enqueues a task to the topic of each line, and kills its worker at the line.
func (b *bench) killAt(lines []line, task func(i int, l line) rig.Task, then func(i int, l line)) {
	b.t.Helper()
	traps, workers := make([]*rig.Trap, len(lines)), make([]*rig.Worker, len(lines))
	proxies := make([]*rig.Proxy, len(lines))
	for i, l := range lines {
		proxies[i] = b.newProxy(b.server.Addr())
		switch {
		case l.match == nil:
		case l.after:
			traps[i] = proxies[i].HaltAfter(l.match)
		default:
			traps[i] = proxies[i].HaltBefore(l.match)
		}
		b.put(1, task(i, l))
		workers[i] = b.worker(fmt.Sprint("w", i), func(c *rig.WorkerConfig) {
			c.Redis.Addr, c.Topics = proxies[i].Addr(), []string{fmt.Sprint("t", i)}
		})
	}
	for i, l := range lines {
		if traps[i] == nil {
			<-workers[i].Ended() // it has killed itself
		} else {
			<-traps[i].Hit()
		}
		require.NoError(b.t, workers[i].Kill()) // noted in any case
		proxies[i].Reset()
		then(i, l)
	}
	b.worker("survivor", func(c *rig.WorkerConfig) { c.Topics = []string{"t*", "next*"} })
}

// behind matches what m matches after the first match of before.
func behind(before, m rig.Match) rig.Match {
	seen := false
	return func(words [][]byte) bool {
		seen = seen || before(words)
		return seen && m(words)
	}
}

// with matches what m matches and has such a word.
func with(m rig.Match, word func(string) bool) rig.Match {
	return func(words [][]byte) bool {
		return m(words) && slices.ContainsFunc(words, func(w []byte) bool { return word(string(w)) })
	}
}

// A worker is killed at each line of a hand-over. What its job hands over is enqueued once, if and
// only if a run completes the job: this one, or else the next one. No parcel stays.
func TestKillAtEachLineOfAHandOver(t *testing.T) {
	b := newBench(t)
	handOver, again := rig.Script("hand_over"), rig.Script("hand_over_again")
	plans := behind(handOver, rig.Script("parcel_plan"))
	sends := rig.Script("enqueue", "enqueue_keyed", "enqueue_later", "enqueue_now", "replace")
	lines := []line{
		{name: "after Then", die: rig.AfterThen},
		{name: "before hand_over", match: handOver},
		{name: "after hand_over", match: handOver, after: true, acked: true, stored: 1},
		{name: "before hand_over_again", match: again, again: true},
		{name: "after hand_over_again", match: again, again: true, after: true, acked: true, stored: 1},
		{name: "before the plan", match: plans, acked: true, stored: 1},
		{name: "after the plan", match: plans, after: true, acked: true, stored: 1},
		{name: "before the plan is sent", match: sends, acked: true, stored: 1},
		{name: "after the plan is sent", match: sends, after: true, acked: true, stored: 1, sent: true},
		{name: "before parcel_done", match: rig.Script("parcel_done"), acked: true, stored: 1, sent: true},
		{name: "after parcel_done", match: rig.Script("parcel_done"), after: true, acked: true, sent: true},
	}
	root := func(topic string, i int) string { return fmt.Sprintf("%s:{%s%d}:", b.prefix, topic, i) }
	b.killAt(lines, func(i int, l line) rig.Task {
		task := rig.Task{Topic: fmt.Sprint("t", i), ID: "j", Retries: -1, Then: &rig.Hand{Topic: fmt.Sprint("next", i)}, Die: l.die}
		if l.again {
			task.Steps, task.Left = []string{"again:0s"}, 1
		}
		return task
	}, func(i int, l line) {
		stored, err := b.direct.ZCard(t.Context(), root("t", i)+"all:parcels").Result()
		require.NoError(t, err)
		require.EqualValues(t, l.stored, stored, l.name)
		sent, err := b.direct.HLen(t.Context(), root("next", i)+"pool").Result()
		require.NoError(t, err)
		require.Equal(t, l.sent, sent == 1, l.name)
		lives, err := b.direct.ZCard(t.Context(), root("t", i)+"leases").Result()
		require.NoError(t, err)
		require.Equal(t, l.acked, lives == 0, l.name)
	})
	b.drained(time.Hour) // no bound: the machine can be busy
	b.judge()
	for i, l := range lines {
		runs := b.events(func(e rig.Event) bool { return e.Op == rig.OpStart && e.Topic == fmt.Sprint("t", i) })
		next := b.events(func(e rig.Event) bool { return e.Op == rig.OpStart && e.Topic == fmt.Sprint("next", i) })
		ends := map[bool]int{false: 1, true: 2}[l.again]
		require.Len(t, next, ends, l.name)
		if !l.acked {
			ends++
		}
		require.Len(t, runs, ends, l.name)
	}
}

// A worker is killed at each line of the second of four steps. No step that was saved is made
// again, and the one that was not is.
func TestKillAtEachLineOfAStep(t *testing.T) {
	b := newBench(t)
	saves := with(rig.Script("note"), func(word string) bool { return word == "step 2" })
	lines := []line{
		{name: "before the step", die: rig.BeforeStep, made: 1},
		{name: "in the step", die: rig.InStep, made: 2},
		{name: "before the save", match: saves, made: 2},
		{name: "after the save", match: saves, after: true, made: 1},
		{name: "after the step", die: rig.AfterStep, made: 1},
	}
	b.killAt(lines, func(i int, l line) rig.Task {
		return rig.Task{Topic: fmt.Sprint("t", i), ID: "j", Retries: -1, Steps: []string{"steps:20ms"}, Die: l.die}
	}, func(int, line) {})
	b.drained(time.Hour) // no bound: the machine can be busy
	b.judge()
	for i, l := range lines {
		made := map[int64]int{}
		for _, e := range b.events(is(rig.OpStep, "")) {
			if e.Topic == fmt.Sprint("t", i) && e.Type == rig.Invoke {
				made[e.Count]++
			}
		}
		require.Equal(t, map[int64]int{1: 1, 2: l.made, 3: 1, 4: 1}, made, l.name)
	}
}
