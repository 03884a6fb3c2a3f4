package lua_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/settle"
)

// costsBefore are the commands of calls in a topic without notes. They are those of the release
// before there were any, but for the look of promote at what runs have handed over.
var costsBefore = map[string]int{
	"ack": 12, "ack after a failure": 18, "ack beside a successor": 17, "again": 22,
	"again with a successor": 27, "bury": 16, "bury_waiting": 17, "cancel": 13,
	"cancel a running job": 18, "cancel in a topic with keys": 21, "debounce": 30, "enqueue": 9,
	"enqueue two": 9, "enqueue_now": 8, "promote": 20, "replace": 27, "replace nobody": 10,
	"retry": 18, "retry with a successor": 24, "snooze": 14, "take": 18,
}

// A topic in which nobody waits pays nothing: its calls are as many commands as before.
func TestCallsWithoutNotesAreAsBefore(t *testing.T) {
	if redistest.Roles() {
		t.Skip("other clients make the calls then")
	}
	t.Parallel()
	own := redistest.Start(t)
	rdb, m := own.Client(t), newWorkMeter(t, own)
	rdb.AddHook(m)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	running := func() hand.Held {
		h.Put("+0", "a")
		return h.TakeOne("a")
	}
	follow := func(id string) { _ = must(h.TryEnqueue(false, [2]string{id, "b+60000/600000"})) }
	ends := func(like settle.Row) func() {
		return func() {
			like.Failure = hand.Failed
			h.Letters([]hand.Held{running()}, like)
		}
	}
	costs := map[string]int{}
	for _, call := range []struct {
		name, script string
		do           func()
	}{
		{"enqueue", "enqueue", func() { h.Put("+0", "a") }},
		{"enqueue two", "enqueue", func() { h.Put("+60000", "a", "b") }},
		{"enqueue_now", "enqueue_now", func() { _ = must(h.TryEnqueueLone("a", "+0")) }},
		{"replace", "replace", func() { h.Put("+0", "a"); _ = must(h.TryEnqueue(true, [2]string{"a", "+0"})) }},
		{"replace nobody", "replace", func() { _ = must(h.TryEnqueue(true, [2]string{"a", "+0"})) }},
		{"debounce", "replace", func() { h.Put("+60000", "a"); follow("a") }},
		{"ack", "ack", ends(settle.Row{Verb: settle.Ack})},
		{"ack after a failure", "ack", func() {
			h.Retry(0, running())
			h.Promote()
			h.Ack(h.TakeOne("a"))
		}},
		{"ack beside a successor", "ack", func() {
			h.Put("+0", "b")
			h.TakeOne("b")
			follow("b")
			h.Ack(running())
		}},
		{"again", "again", ends(settle.Row{Verb: settle.Again})},
		{"again with a successor", "again", func() {
			held := running()
			follow("a")
			h.Ack(held)
		}},
		{"retry", "retry", ends(settle.Row{Verb: settle.Retry})},
		{"retry with a successor", "retry", func() {
			held := running()
			follow("a")
			h.Retry(0, held)
		}},
		{"snooze", "snooze", ends(settle.Row{Verb: settle.Snooze})},
		{"bury", "bury", ends(settle.Row{Verb: settle.Bury, Attempts: 1})},
		{"bury_waiting", "bury_waiting", func() { h.Put("+60000", "a"); _ = must(h.TryBury("a")) }},
		{"cancel", "cancel", func() { h.Put("+60000", "a"); _ = must(h.TryCancel("a")) }},
		{"cancel a running job", "cancel", func() { running(); _ = must(h.TryCancel("a")) }},
		{"cancel in a topic with keys", "cancel", func() {
			h.putKeyed("key", "k")
			h.Put("+60000", "a")
			_ = must(h.TryCancel("a"))
		}},
		{"take", "take", func() { running() }},
		{"promote", "promote", func() { h.Put("+1", "a"); h.Hasten(time.Minute); h.Promote() }},
	} {
		for range 2 { // the first time, Redis does not know the script
			require.NoError(t, rdb.FlushAll(t.Context()).Err())
			call.do()
		}
		list := m.costs[call.script]
		require.NotEmpty(t, list, call.name)
		costs[call.name] = list[len(list)-1].commands
	}
	require.Equal(t, costsBefore, costs)
}
