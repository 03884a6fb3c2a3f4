package lua_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A flowCall is a call of a script of flows, made in a topic that has the flow, an open group and a
// running step. f is the flow, and g the group.
type flowCall func(h *Hand, f, g *hand.Flow) (script.Reply, error)

// flowCalls are the calls of all scripts of flows, by the name of the script and what is special.
var flowCalls = map[string]flowCall{
	"flow_start": func(h *Hand, _, _ *hand.Flow) (script.Reply, error) {
		other := newFlow([]string{"a"}, nil, []int{0})
		other.ID, other.Name = "other", "another."
		return h.TryStart(other)
	},
	"flow_add": func(h *Hand, _, g *hand.Flow) (script.Reply, error) {
		return h.TryAdd(g, false, hand.FlowStep{Topic: "a", ID: "more"}, hand.FlowStep{Topic: "a", ID: "in it"})
	},
	"flow_add that closes": func(h *Hand, _, g *hand.Flow) (script.Reply, error) { return h.TryAdd(g, true) },
	"enqueue_linked": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) {
		return h.TryLinked("1000000000009", h.Keys.Receipt("linked"), h.Row(f, 1))
	},
	"arrive": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) {
		return h.TryArrive("1000000000009", h.Keys.Receipt("arrive"), arrived(f, 0, "o2:{}out"))
	},
	"arrive of a failure": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) {
		return h.TryArrive("1000000000009", h.Keys.Receipt("arrive"), arrived(f, 3, "dwhy"))
	},
	"flow_cancel": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) {
		return h.TryCancelSteps("1000000000009", h.Keys.Receipt("cancel"), [2]string{"stepa", f.Name + "00000000"}, [2]string{"none", f.Name + "00000001"})
	},
	"flow_release": func(h *Hand, f, g *hand.Flow) (script.Reply, error) {
		return h.TryRelease("1000000000009", h.Keys.Receipt("release"), [2]string{f.ID, f.Name}, [2]string{g.ID, g.Name})
	},
	"flow_sweep of a failed one":  func(h *Hand, f, _ *hand.Flow) (script.Reply, error) { return h.TrySweep(f.ID, f.Name, "f", 0) },
	"flow_sweep of a dead one":    func(h *Hand, f, _ *hand.Flow) (script.Reply, error) { return h.TrySweep(f.ID, f.Name, "d", 0) },
	"flow_sweep of one that ends": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) { return h.TrySweep(f.ID, f.Name, "e", 0) },
	"flow_begin":                  func(h *Hand, f, _ *hand.Flow) (script.Reply, error) { return h.Run(script.FlowBegin, f.ID, f.Name) },
	"flow_read":                   func(h *Hand, f, _ *hand.Flow) (script.Reply, error) { return h.Run(script.FlowRead, f.ID, 0, 10) },
	"flow_inputs": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) {
		return h.Run(script.FlowInputs, f.ID, f.Name, 3, 0)
	},
	"flow_look": func(h *Hand, _, _ *hand.Flow) (script.Reply, error) { return h.Run(script.FlowLook, "0") },
	"flow_started": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) {
		return h.Run(script.FlowStarted, f.ID, f.Name, 0, 0)
	},
	"flow_lost": func(h *Hand, f, _ *hand.Flow) (script.Reply, error) {
		return h.Run(script.FlowLost, "topic", "stepa", f.Name+"00000000", "none", f.Name+"00000001")
	},
}

// stageFlows has a flow and a group whose home is the topic, and a step of the flow in it.
func stageFlows(h *Hand) (f, g *hand.Flow) {
	h.T.Helper()
	f = newFlow([]string{"topic", "a"}, nil, []int{0}, []int{0}, nil)
	require.NoError(h.T, just(h.TryStart(f)))
	g = &hand.Flow{ID: "group", Name: "a group.", Flags: "g", Deadline: "+3600000"}
	require.NoError(h.T, just(h.TryStart(g)))
	require.NoError(h.T, just(h.TryAdd(g, false, hand.FlowStep{Topic: "a", ID: "in it"})))
	require.NoError(h.T, just(h.TryLinked("1000000000001", h.Keys.Receipt("stage"), h.Row(f, 0))))
	return f, g
}

// Every script of flows that is sent again answers as it did, and changes nothing more.
func TestFlowScriptsSentTwice(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, name := range slices.Sorted(maps.Keys(flowCalls)) {
			t.Run(name, func(t *testing.T) {
				h := NewHand(t, rdb, redistest.Prefix(t), "topic")
				f, g := stageFlows(h)
				first, err := flowCalls[name](h, f, g)
				require.NoError(t, err)
				again := h.Last
				for range 2 {
					before := redistest.Dump(t, rdb, h.Prefix())
					got, err := again()
					require.NoError(t, err)
					require.Equal(t, first[2:], got[2:])
					require.Equal(t, before, redistest.Dump(t, rdb, h.Prefix()))
					other := NewHand(t, rdb, h.Prefix(), "topic")
					other.Take(10, time.Hour)
				}
			})
		}
	})
}

// A script of flows that meets a key of a wrong type says so and has written nothing, or works
// without it. Those that store jobs can have written their places, which are nothing without the
// records, and a flow without a last step, which the guard deletes. When the key is mended and the
// call is sent again, all is as if nothing had been wrong.
func TestFlowScriptsMeetAWrongType(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, name := range slices.Sorted(maps.Keys(flowCalls)) {
			good := NewHand(t, rdb, redistest.Prefix(t), "topic")
			f, g := stageFlows(good)
			require.NoError(t, just(flowCalls[name](good, f, g)), name)
			want := sizesOf(t, good)
			for _, key := range keysIn(t, scriptOf(name)) {
				t.Run(name+"/"+key, func(t *testing.T) {
					h := NewHand(t, rdb, redistest.Prefix(t), "topic")
					f, g := stageFlows(h)
					before := redistest.Dump(t, rdb, h.Prefix())
					mend := h.Deface(key)
					_, err := flowCalls[name](h, f, g)
					again := h.Last
					mend()
					if err == nil {
						return
					}
					require.ErrorContains(t, err, "WRONGTYPE")
					if stores := name == "flow_start" || name == "enqueue_linked"; !stores {
						require.Equal(t, before, redistest.Dump(t, rdb, h.Prefix()), "something was written")
					}
					require.NoError(t, just(again()))
					require.Equal(t, want, sizesOf(t, h))
				})
			}
		}
	})
}

// sizesOf tells how many elements the keys of a topic have, without ready.
func sizesOf(t *testing.T, h *Hand) map[string]int {
	t.Helper()
	sizes := make(map[string]int)
	for name, content := range redistest.Dump(t, h.RDB, h.Prefix()) {
		if name == h.Keys.Ready { // an ID can be there twice
			continue
		}
		name = name[len(h.Prefix()):]
		switch c := content.(type) {
		case map[string]string:
			sizes[name] = len(c)
		case []redis.Z:
			sizes[name] = len(c)
		case []string:
			sizes[name] = len(c)
		default:
			sizes[name] = 1
		}
	}
	return sizes
}

// The work of a script of flows does not grow with the number of other flows and of their steps.
// flow_look reads a page of about a hundred.
func TestFlowScriptsAreBounded(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	cost := map[int]map[string]map[string]string{}
	for _, many := range []int{200, 5000} {
		cost[many] = make(map[string]map[string]string)
		for _, name := range slices.Sorted(maps.Keys(flowCalls)) {
			for range 2 { // so that Redis knows the scripts
				h := NewHand(t, rdb, redistest.Prefix(t)+strconv.Itoa(many)+strings.ReplaceAll(name, " ", "-"), "topic")
				f, g := stageFlows(h)
				var flows, steps []string
				for i := range many {
					flows = append(flows, "other"+strconv.Itoa(i), fmt.Sprintf("%08do - 1 1 0 0 1000 -", i))
					steps = append(steps, fmt.Sprintf("%08d00000000", i), f.Definition(0), fmt.Sprintf("%08d00000000s", i), "s 1000")
				}
				require.NoError(t, rdb.HSet(t.Context(), h.Keys.Flows, flows).Err())
				require.NoError(t, rdb.HSet(t.Context(), h.Keys.Steps, steps).Err())
				require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
				require.NoError(t, just(flowCalls[name](h, f, g)), name)
				cost[many][name] = commandsOf(t, rdb)
				require.NoError(t, rdb.FlushAll(t.Context()).Err())
			}
		}
		looked, err := strconv.Atoi(cost[many]["flow_look"]["hexists"])
		require.NoError(t, err)
		require.Less(t, looked, 250)
		delete(cost[many], "flow_look")
	}
	require.Equal(t, "4", cost[200]["flow_begin"]["hget"], "the test looks for the wrong thing: %v", cost[200]["flow_begin"])
	for name := range cost[200] {
		require.Equal(t, cost[200][name], cost[5000][name], name)
	}
}

// A group can have 100,000 steps, and every call about it does as much as the first one of its
// kind, by its commands: adding, ending and sweeping.
func TestGroupOfManySteps(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	const part = 500
	most := redistest.Size(100_000)
	// grow makes calls about all steps, part after part, and holds their work to that of the
	// second.
	grow := func(what string, call func(from int)) {
		t.Helper()
		var want map[string]string
		for from := 0; from < most; from += part {
			require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
			call(from)
			if got := commandsOf(t, rdb); from == part {
				want = got
			} else if from > part && from < most-part {
				require.Equal(t, want, got, "%s from %d", what, from)
			}
		}
	}
	step := func(n int) hand.FlowStep { return hand.FlowStep{Topic: "a", ID: strconv.Itoa(n)} }
	start := func(id string) *hand.Flow {
		g := &hand.Flow{ID: id, Name: "name of" + id, Flags: "g", Deadline: "+3600000"}
		require.NoError(t, just(h.TryStart(g)))
		grow("add", func(from int) {
			args := []any{h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic, g.ID, g.Name, 0}
			one := &hand.Flow{ID: g.ID, Name: g.Name}
			for n := range part {
				one.Steps = []hand.FlowStep{step(from + n)}
				args = append(args, one.Definition(0), h.Row(one, 0))
			}
			r, err := h.Run(script.FlowAdd, args...)
			require.NoError(t, err)
			require.Equal(t, part, len(r.Text(2)))
			require.NotContains(t, r.Text(2), "v")
		})
		return g
	}
	g := start("a")
	r, err := h.TryAdd(&hand.Flow{ID: g.ID, Name: g.Name}, false, step(0))
	require.NoError(t, err)
	require.Equal(t, "r", r.Text(2), "it is there already")
	r, err = h.TryAdd(&hand.Flow{ID: g.ID, Name: g.Name}, false, step(most))
	require.NoError(t, err)
	require.Equal(t, most == 100_000, r.Text(2) == "v", "a group has 100,000 steps at most")
	left := most
	if most != 100_000 {
		left++
		require.NoError(t, just(h.TryArrive("1", h.Keys.Receipt("over"), arrived(g, most, "o2:{}"))))
	}
	require.NoError(t, just(h.TryAdd(&hand.Flow{ID: g.ID, Name: g.Name}, true)))
	released := 0
	grow("arrive", func(from int) {
		var ends []string
		for n := range part {
			ends = append(ends, arrived(g, from+n, "o2:{}"))
		}
		r, err := h.TryArrive(strconv.Itoa(1000+from), h.Keys.Receipt("arrive"), ends...)
		require.NoError(t, err)
		require.EqualValues(t, part, r.Number(3))
		released += len(r.List(2).Texts())
	})
	require.Equal(t, 1, released, "the last end releases it")
	state, _, err := h.TryBegin(g.ID, g.Name)
	require.NoError(t, err)
	require.Equal(t, "r -", state)
	sweep := func(mode string) (calls int) {
		for next := int64(0); next >= 0; calls++ {
			require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
			r, err := h.TrySweep(g.ID, g.Name, mode, next)
			require.NoError(t, err)
			next = r.Number(2)
			total := 0
			for _, n := range commandsOf(t, rdb) {
				some, err := strconv.Atoi(n)
				require.NoError(t, err)
				total += some
			}
			require.Less(t, total, 300, "of %d commands at most each is about a step", total)
			require.LessOrEqual(t, calls, left/250+1)
		}
		return calls
	}
	require.Equal(t, left/250+min(1, left%250), sweep("e"))
	require.Zero(t, rdb.Exists(t.Context(), h.Key("steps"), h.Keys.Flows).Val())
	g = start("b") // one that is cancelled with all of its steps started
	left = most
	require.Positive(t, sweep("d"))
	read, err := h.Run(script.FlowRead, g.ID, 0, 1)
	require.NoError(t, err)
	require.Contains(t, read.Text(2), fmt.Sprintf("d g %d 0 %d ", most, most), "all are cancelled")
}
