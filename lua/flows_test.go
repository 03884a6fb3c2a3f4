package lua_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// newFlow is a flow whose steps are in topics that take turns. after says for which others each
// waits.
func newFlow(topics []string, after ...[]int) *hand.Flow {
	f := &hand.Flow{ID: "last", Name: "12345678", Flags: "-", Deadline: "+3600000"}
	for i, list := range after {
		f.Steps = append(f.Steps, hand.FlowStep{Topic: topics[i%len(topics)], ID: "step" + string(rune('a'+i)), After: list})
	}
	return f
}

// relay delivers all parcels of a topic, and those that follow from them.
func relay(t *testing.T, all map[string]*Hand) (refused []string) {
	t.Helper()
	for some := true; some; {
		some = false
		for _, h := range all {
			r, err := h.TryPlan("", "", "", 0)
			require.NoError(t, err)
			for _, target := range r.List(2).Texts() {
				some = true
				plan, err := h.TryPlan(target, "tag", "", 0)
				require.NoError(t, err)
				delivery := all[target].Deliver(h.Hand, plan)
				require.NoError(t, delivery.All())
				refused = append(refused, delivery.Refused...)
			}
		}
	}
	return refused
}

func topicsOf(h *Hand, others ...string) map[string]*Hand {
	all := map[string]*Hand{h.Keys.Topic: h}
	for _, topic := range others {
		all[topic] = NewHand(h.T, h.RDB, h.Prefix(), topic)
	}
	return all
}

// A flow runs from its first steps to its last, and leaves nothing.
func TestFlowRuns(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		all := topicsOf(h, "a", "b")
		f := newFlow([]string{"a", "b"}, nil, []int{0}, []int{0}, []int{1, 2})
		r, err := h.TryStart(f)
		require.NoError(t, err)
		require.Empty(t, r.Text(2))
		for _, step := range []string{"a/stepa", "b/stepb a/stepc", "b/stepd"} {
			relay(t, all)
			_ = step
			for _, topic := range []string{"a", "b"} {
				for _, held := range all[topic].Take(10, time.Minute) {
					require.Contains(t, step, topic+"/"+held.ID)
					require.Equal(t, "o", all[topic].Ack(held))
				}
			}
			require.Empty(t, h.Take(1, time.Minute))
		}
		relay(t, all)
		state, _, err := h.TryBegin("last", f.Name)
		require.NoError(t, err)
		require.Equal(t, "r -", state)
		require.Equal(t, "o", h.Ack(h.TakeOne("last")))
		relay(t, all)
		for _, key := range []string{h.Keys.Flows, h.Keys.Steps, h.Keys.Notes, all["a"].Keys.Notes, all["b"].Keys.Notes} {
			require.Zero(t, h.RDB.Exists(t.Context(), key).Val(), key)
		}
	})
}

// arrived are the parcels of ends, as arrive reads them.
func arrived(f *hand.Flow, n int, outcome string) string {
	return fmt.Sprintf("%d:%s%s%08x%s", len(f.ID), f.ID, f.Name, n, outcome)
}

// A step whose flow fails in the same call does not start, and those that follow a bad end are
// skipped, but for those with the policy i.
func TestFlowFailsBeforeStepsStart(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := newFlow([]string{"a"}, nil, []int{0}, nil, []int{2}, []int{2}, []int{3})
		f.Steps[4].Lenient = true
		require.NoError(t, just(h.TryStart(f)))
		series := h.Keys.Receipt("ends")
		r, err := h.TryArrive("1000000001", series, arrived(f, 0, "o2:{}"), arrived(f, 2, "dwhy"))
		require.NoError(t, err)
		again, err := h.TryArrive("1000000001", series, arrived(f, 0, "o2:{}"), arrived(f, 2, "dwhy"))
		require.NoError(t, err)
		require.Equal(t, r[2:], again[2:])
		require.Equal(t, []string{"last"}, r.List(2).Texts())
		require.Equal(t, []string{f.Name}, r.List(4).Texts())
		require.EqualValues(t, 2, r.Number(3))
		read, err := h.Run(script.FlowRead, "last", 0, 10)
		require.NoError(t, err)
		require.Contains(t, read.Text(2), "f - 6 2 3 0 ")
		var states string
		for _, state := range read.List(4).Texts() {
			states += state[:1]
		}
		require.Equal(t, "owdkwk", states)
		state, text, err := h.TryBegin("last", f.Name)
		require.NoError(t, err)
		require.Equal(t, "f -", state)
		require.JSONEq(t, `{"step":2,"topic":"a","id":"stepc","outcome":"d","text":"why"}`, text)
	})
}

// An output is kept unless it or those of the flow are too large, and the steps that wait read it.
func TestFlowKeepsOutputs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := newFlow([]string{"a"}, nil, nil, []int{0, 1})
		require.NoError(t, just(h.TryStart(f)))
		large := strings.Repeat("x", 65537)
		_, err := h.TryArrive("1000000001", h.Keys.Receipt("ends"), arrived(f, 0, `o12:{"output":2}hi`), arrived(f, 1, "o2:{}"+large))
		require.NoError(t, err)
		r, err := h.Run(script.FlowInputs, "last", f.Name, 2, 0)
		require.NoError(t, err)
		require.Equal(t, []string{"hi", ""}, r.List(5).Texts())
		require.Contains(t, r.List(4).Text(0), ` {"output":2}`)
		require.Zero(t, r.Number(6))
		r, err = h.Run(script.FlowInputs, "last", f.Name, -1, 0)
		require.NoError(t, err)
		require.Len(t, r.List(2), 3)
		r, err = h.Run(script.FlowInputs, "last", "another1", -1, 0)
		require.NoError(t, err)
		require.EqualValues(t, -1, r.Number(6))
	})
}

// The message of a dead step arrives, cut to 500 bytes of whole characters; a step that an earlier
// release has ended is found by prune, and one whose link is lost by the guard.
func TestFlowHearsOfEachEnd(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		all := topicsOf(h, "a")
		f := newFlow([]string{"a"}, nil, nil, nil)
		f.Flags = "i"
		require.NoError(t, just(h.TryStart(f)))
		relay(t, all)
		a := all["a"]
		held := a.Take(10, time.Minute)
		require.Len(t, held, 3)
		entry := fmt.Sprintf(`{"attempt":1,"at":1,"kind":"error","message":%q}`, strings.Repeat("é", 400))
		require.Equal(t, "o", a.Letters(held[:1], settle.Row{Verb: settle.Bury, Attempts: 1, Failure: entry}))
		require.NoError(t, a.RDB.HDel(t.Context(), a.Keys.Pool, "stepb").Err())
		require.NoError(t, just(a.TryPrune(10, time.Hour, 100)))
		require.NoError(t, a.RDB.HDel(t.Context(), a.Keys.Pool, "stepc").Err())
		require.NoError(t, a.RDB.HDel(t.Context(), a.Keys.Notes, "lstepc").Err())
		require.Zero(t, h.Guard(map[string]*hand.Hand{"topic": h.Hand, "a": a.Hand}), "news are on the way")
		relay(t, all)
		require.Equal(t, 1, h.Guard(map[string]*hand.Hand{"topic": h.Hand, "a": a.Hand}))
		read, err := h.Run(script.FlowRead, "last", 0, 10)
		require.NoError(t, err)
		states := read.List(4).Texts()
		require.Regexp(t, `^d \d+ é{249}$`, states[0])
		require.Regexp(t, `^g \d+ the job is gone$`, states[1])
		require.Regexp(t, `^g \d+ lost$`, states[2])
		require.Contains(t, read.Text(2), "r i 3 0 3 0 ")
	})
}

// A group takes a step once, and none when it is closed.
func TestGroupTakesAStepOnce(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := &hand.Flow{ID: "last", Name: "12345678", Flags: "g", Deadline: "+3600000"}
		require.NoError(t, just(h.TryStart(f)))
		step := hand.FlowStep{Topic: "a", ID: "x"}
		for _, c := range []struct {
			closes bool
			steps  []hand.FlowStep
			want   string
		}{
			{false, []hand.FlowStep{step, {Topic: "b", ID: "x"}, step}, "nnr 0"}, {false, []hand.FlowStep{step}, "r 0"},
			{true, []hand.FlowStep{{Topic: "a", ID: "y"}}, "n 0"}, {false, []hand.FlowStep{step}, "g 0"}, {true, nil, " 0"},
		} {
			r, err := h.TryAdd(f, c.closes, c.steps...)
			require.NoError(t, err)
			again, err := h.Last()
			require.NoError(t, err)
			require.Equal(t, c.want, fmt.Sprint(r.Text(2), " ", r.Number(3)))
			require.Equal(t, r[2:], again[2:])
		}
		plan, err := h.TryPlan("a", "tag", "", 0)
		require.NoError(t, err)
		loads := hand.Loads(plan)
		require.Len(t, loads, 2)
		require.Contains(t, loads[0].Text, f.Name+"00000000")
		require.Contains(t, loads[1].Text, f.Name+"00000002", "the script writes the number into the link")
	})
}

// Parcels of flows are stored together, and a plan has at most 500 of them, in their order.
func TestPlansCountTheParcelsOfBundles(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := newFlow([]string{"a"}, make([][]int, 730)...)
		for n := range f.Steps {
			f.Steps[n].ID = "step" + strconv.Itoa(n)
		}
		require.NoError(t, just(h.TryStart(f)))
		require.EqualValues(t, 8, waiting(t, h))
		a, n := NewHand(t, h.RDB, h.Prefix(), "a"), 0
		for _, most := range []int{500, 230} {
			one := plan(t, h, "a", "tag")
			loads := hand.Loads(one)
			require.Len(t, loads, most)
			for _, l := range loads {
				require.Contains(t, l.Text, "step"+strconv.Itoa(n))
				n++
			}
			require.NoError(t, a.Deliver(h.Hand, one).All())
		}
		require.Zero(t, waiting(t, h))
		held := a.Take(730, time.Minute)
		require.Len(t, held, 730)
		require.Equal(t, strings.Repeat("o", 730), a.Ack(held...))
		require.LessOrEqual(t, waiting(t, a), int64(15))
		relay(t, map[string]*Hand{h.Keys.Topic: h, "a": a})
		state, _, err := h.TryBegin("last", f.Name)
		require.NoError(t, err)
		require.Equal(t, "r -", state)
	})
}

// Links of many members are in a hash that is not searched from its front: that took most of the
// time of an ack.
func TestLinksAreFound(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := newFlow([]string{"a"}, nil, nil)
		require.NoError(t, just(h.TryStart(f)))
		form, err := h.RDB.ObjectEncoding(t.Context(), h.Keys.Notes).Result()
		if err != nil {
			t.Skip("no Redis, which has several forms of a hash")
		}
		require.Equal(t, "hashtable", form)
		require.Equal(t, []string{"llast"}, h.RDB.HKeys(t.Context(), h.Keys.Notes).Val())
	})
}
