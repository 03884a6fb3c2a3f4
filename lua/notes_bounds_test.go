package lua_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// With as many notes as there can be, no call is long: a client looks for many jobs, a server ends
// many that somebody waits for, or notes the progress of many, and prune passes over all of them.
// The hash has more fields than a call looks at, which is what counts.
func TestCallsAboutNotesEndByTheirWork(t *testing.T) {
	if redistest.Roles() {
		t.Skip("other clients make the calls then")
	}
	t.Parallel()
	own := redistest.Start(t)
	h := NewHand(t, own.Client(t), redistest.Prefix(t), "topic")
	n := redistest.Size(20_000)
	at := h.RDB.Time(t.Context()).Val().Add(-2 * time.Minute).UnixMilli()
	for first := 0; first < n; first += 1000 { // of others
		values := make([]any, 0, 4000)
		for i := first; i < first+1000; i++ {
			values = append(values, fmt.Sprintf("e%08d", i), fmt.Sprintf("c %d ", at), fmt.Sprintf("pgone%08d", i), "123456786:4:step")
		}
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, values...).Err())
	}
	ids := named("job", 500)
	h.Put("+0", ids...)
	for _, one := range script.All { // what is measured knows them
		require.NoError(t, h.RDB.ScriptLoad(t.Context(), one.Text.(string)).Err())
	}

	m, rdb := newWorkMeter(t, own), own.Client(t)
	rdb.AddHook(m)
	h = NewHand(t, rdb, h.Prefix(), "topic")
	var rows [][3]string
	for _, id := range ids {
		rows = append(rows, [3]string{id, "", hand.Register})
	}
	answered := 0
	for answered < len(rows) {
		r, err := h.TryWait("me", rows[answered:]...)
		require.NoError(t, err)
		require.NotEmpty(t, r.List(2))
		answered += len(r.List(2))
	}
	held := h.Take(500, time.Hour)
	require.Len(t, held, 500)
	var args []any
	for _, one := range held {
		args = append(args, one.ID, one.Fence, one.Nonce(), "1 2 1 1 half", "", "")
	}
	r, err := h.Run(script.Note, args...)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("o", 500), r.Text(2))
	require.NotContains(t, h.Ack(held[:250]...), "l")
	_, err = h.TryCancel(idsOf(held[250:])...)
	require.NoError(t, err)
	for range 20 {
		_, err := h.TryPrune(0, time.Hour, serve.PruneLimit)
		require.NoError(t, err)
	}
	repair(t, h)
	for _, name := range []string{"wait", "note", "ack", "cancel", "prune", "check"} {
		require.NotEmpty(t, m.costs[name], name)
		most := slices.MaxFunc(m.costs[name], func(a, b workCost) int { return a.commands - b.commands })
		t.Logf("%s: at most %d commands", name, most.commands)
		require.LessOrEqual(t, most.commands, mostCommands, name)
	}
}

// Records and outcomes are read until a call has read enough, and one is read in any case.
func TestWaitReadsFewBytes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const bytes = 300_000
		h.store(bytes, "a", "b", "c", "d", "e")
		var rows [][3]string
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			rows = append(rows, [3]string{id, "", hand.Look})
		}
		r, err := h.TryWait("me", rows...)
		require.NoError(t, err)
		require.Len(t, r.List(2), script.CallBytes/bytes)
		h.store(script.CallBytes, "large")
		r, err = h.TryWait("me", [3]string{"large", "", hand.Look}, rows[0])
		require.NoError(t, err)
		require.Len(t, r.List(2), 1)
	})
}

// The results of many steps are deleted by several calls.
func TestManyStepsAreDeletedInParts(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ids := named("job", 30)
		h.Put("+0", ids...)
		held := h.Take(30, time.Hour)
		var values []any
		for _, one := range held {
			names := ""
			for _, step := range named("step", 100) {
				names += "10:" + step
				values = append(values, fmt.Sprintf("s%d:%s%s%s", len(one.ID), one.ID, one.Nonce(), step), "x")
			}
			values = append(values, "p"+one.ID, fmt.Sprintf("%s%d:%s", one.Nonce(), len(names), names))
		}
		for some := range slices.Chunk(values, 1000) {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, some...).Err())
		}
		require.NotContains(t, h.Ack(held...), "l")
		require.EqualValues(t, 1000, h.RDB.HLen(t.Context(), h.Keys.Notes).Val())
		h.pruneNotes()
		require.Empty(t, h.notes())
	})
}

// At maxmemory, clients are registered and ends are told. Notes are refused, also if there are
// others of an earlier job.
func TestNotesAtMaxmemory(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Start(t).Client(t)
	ctx := context.Background()
	for name, e := range endings {
		if e.due == "slot" || e.outcome == "" || name == "debounce" || name == "latest" || strings.HasPrefix(name, "replace") {
			continue // they are no ends, or store jobs
		}
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		id, held := stageEnding(t, h, e)
		me := h.ear("me")
		require.NoError(t, rdb.HSet(ctx, h.Keys.Notes, "p"+id, "123456785:3:old", "s1:a12345678old", "x").Err())
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		nonce := me.waits(id)
		require.Equal(t, "p", h.Wait("me", "none", "12345678", hand.Register), name)
		if e.running {
			fields := h.notes()
			require.Equal(t, "zz", h.Note(held, hand.Note{Progress: "1 2 1 1 "}, hand.Note{Step: "pay", Result: "42"}), name)
			require.Empty(t, me.heard())
			require.Equal(t, fields, h.notes())
		}
		e.do(t, h, held)
		if !e.silent {
			require.Equal(t, []string{id}, me.heard(), name)
		}
		require.Regexp(t, `^(?s)`+e.outcome+`$`, me.outcome(id, nonce), name)
		require.NoError(t, just(h.TryPrune(0, time.Hour, 10)))
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	}
}

// A call of note does about 1 MiB of work, and answers the first jobs: those of the others are sent
// again. One is done in any case.
func TestNoteDoesBoundedWork(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", named("job", 20)...)
		held := h.Take(20, time.Hour)
		steps := ""
		for _, name := range named("step", 99) {
			steps += record.Netstring(name + strings.Repeat("x", 100-len(name)))
		}
		call := func(n hand.Note) int {
			var args []any
			for _, one := range held {
				require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, "p"+one.ID, one.Nonce()+record.Netstring(steps)).Err())
			}
			for range 4 {
				for _, one := range held {
					args = append(args, one.ID, one.Fence, one.Nonce(), n.Progress, n.Step, n.Result)
				}
			}
			r, err := h.Run(script.Note, args...)
			require.NoError(t, err)
			require.Empty(t, strings.Trim(r.Text(2), "o"))
			return len(r.Text(2))
		}
		one := 2 * len(steps)
		require.InDelta(t, script.CallBytes/one, call(hand.Note{Progress: "1 2 1 1 "}), 2)
		require.InDelta(t, script.CallBytes/(one+99*200), call(hand.Note{Step: "last", Result: "x"}), 2)
		require.Equal(t, 1, call(hand.Note{Step: "last", Result: strings.Repeat("x", script.CallBytes)}))
	})
}

// What a call about notes asks of Redis does not depend on how many there are.
func TestCostOfNotesDoesNotGrow(t *testing.T) {
	if redistest.Roles() {
		t.Skip("other clients make the calls then")
	}
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	cost := map[int]map[string]map[string]string{} // backlog, call, command → times
	for _, backlog := range []int{20, 20_000} {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		eachOf(t, backlog, 500, func(n int) {
			values := make([]any, 0, 4*n)
			for i := range n {
				name := fmt.Sprintf("%08d", i+500*len(values))
				values = append(values, "e"+name, "c 1 ", "w"+name, "?")
			}
			require.NoError(t, rdb.HSet(t.Context(), h.Keys.Notes, values...).Err())
		})
		h.Put("+0", hand.Numbered("job", 20)...)
		held := h.Take(20, time.Hour)
		wait := func(verb string) func(i int) error {
			return func(i int) error { return just(h.TryWait("me", [3]string{held[i].ID, "", verb})) }
		}
		cost[backlog] = map[string]map[string]string{}
		for _, c := range []struct {
			name string
			call func(i int) error
		}{
			{"wait", wait(hand.Register)},
			{"look", wait(hand.Look)},
			{"note", func(i int) error {
				return just(h.TryNote(held[i], hand.Note{Progress: "1 2 0 0 ", Step: "step", Result: "x"}))
			}},
			{"recall", func(i int) error { return just(h.TryRecall(held[i], 1000)) }},
			{"get", func(i int) error { return just(h.client().Get(t.Context(), "topic", held[i].ID)) }},
			{"bury", func(i int) error { return just(h.TryBury(held[i].ID)) }},
			{"cancel", func(i int) error { return just(h.TryCancel(held[i].ID)) }},
			{"ack", func(i int) error { h.Ack(held[5+i]); return nil }},
			{"again", func(i int) error { h.Again(0, held[8+i]); return nil }},
			{"leave", wait(hand.Leave)},
		} {
			require.NoError(t, c.call(0), c.name) // so that Redis knows the script
			require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
			require.NoError(t, c.call(1), c.name)
			cost[backlog][c.name] = commandsOf(t, rdb)
		}
	}
	require.Equal(t, "2", cost[20]["cancel"]["publish"], "the test looks for the wrong thing: %v", cost[20]["cancel"])
	require.Equal(t, cost[20], cost[20_000])
}
