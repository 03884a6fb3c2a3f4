package lua_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// hastenStragglers makes the time of stragglers come earlier.
func (h *Hand) hastenStragglers(d time.Duration) {
	ctx := h.T.Context()
	for _, entry := range h.RDB.ZRange(ctx, h.Keys.Holders, 0, -1).Val() {
		at := 1 + int(entry[0]) // behind the key
		if entry[at] != '1' {
			continue
		}
		till, err := strconv.ParseFloat(entry[at+1:at+18], 64)
		require.NoError(h.T, err)
		earlier := entry[:at+1] + fmt.Sprintf("%017.3f", till-float64(d.Milliseconds())) + entry[at+18:]
		require.NoError(h.T, h.RDB.ZRem(ctx, h.Keys.Holders, entry).Err())
		require.NoError(h.T, h.RDB.ZAdd(ctx, h.Keys.Holders, redis.Z{Member: earlier}).Err())
	}
}

// A job that is cancelled or replaced, or that is given back although its handler goes on, keeps
// its places in the topic and in its key until a server says that the handler has returned, or
// until its lease is over. The same ID can come again meanwhile.
func TestStragglersKeepTheirPlaces(t *testing.T) {
	cuts := map[string]func(h *Hand, one hand.Held){
		"cancel": func(h *Hand, one hand.Held) { h.cancel(one.ID) },
		"replace": func(h *Hand, one hand.Held) {
			head, tail := h.keyedRecord("+0", "a", 0)
			r, err := h.TrySend(false, []any{one.ID, head, tail, "r+0"})
			require.NoError(h.T, err)
			require.Empty(h.T, r.Text(2), "it is stored")
		},
		"return": func(h *Hand, one hand.Held) {
			require.Equal(h.T, "o", h.Letters([]hand.Held{one}, settle.Row{Verb: settle.Return, Runs: true}))
		},
	}
	for name, cut := range cuts {
		for place, limits := range map[string]delayq.Limits{"topic": {Running: 1}, "key": {RunningPerKey: 1}, "order": {Ordered: true}} {
			t.Run(name+", "+place, func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					h.setLimits(limits)
					for _, told := range []bool{true, false} {
						h.putKeyed("a", "a1", "a2")
						one := h.TakeOne("a1")
						cut(h, one)
						require.Empty(t, h.takeAll(), "the handler may still run")
						r, err := h.Run(script.RemoveTopic, h.Series.Next())
						require.NoError(t, err)
						require.Equal(t, "1", strings.Fields(r.Text(2))[1], "the topic cannot be removed: %q", r.Text(2))
						found, _ := h.look(true)
						require.Empty(t, found, "a straggler is no damage")
						require.Empty(t, h.takeAll(), "and no check ends it")
						if told {
							other := keyEnd{"a", "a1", fmt.Sprint(one.LeaseEnd()-1, ".000")}
							_, err = h.tryEnds(other)
							require.NoError(t, err)
							require.Empty(t, h.takeAll(), "the handler of another lease has returned")
							_, err = h.tryEnds(keyEnd{"a", "a1", "1.5 " + one.Fence})
							require.NoError(t, err)
						} else {
							h.hastenStragglers(2 * time.Minute)
							h.hastenRates(2 * time.Minute) // parked too
							h.Promote()
						}
						for range 2 {
							held := h.takeAll()
							for _, one := range held {
								h.ended("a", one)
							}
						}
						require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Holders, h.Keys.Pool).Val(), "nothing is left")
					}
				})
			})
		}
	}
}

// A straggler whose time is over counts nowhere any more, before a server has promoted: neither for
// a take, nor for what removes the topic, nor in what Explain says of the job that waits for it.
func TestStragglersCountUntilTheirTimeIsOver(t *testing.T) {
	for place, limits := range map[string]delayq.Limits{"topic": {Running: 1}, "key": {RunningPerKey: 1}, "both": {Running: 1, RunningPerKey: 1}} {
		t.Run(place, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.setLimits(limits)
				h.putKeyed("a", "a1", "a2")
				h.TakeOne("a1")
				h.cancel("a1")
				require.Empty(t, h.takeAll(), "the handler may still run")
				leased := func() string {
					r, err := h.Run(script.RemoveTopic, h.Series.Next())
					require.NoError(t, err)
					return strings.Fields(r.Text(2))[1]
				}
				stragglers := func() (n int) {
					e, err := h.client().insp.Explain(t.Context(), "topic", "a2")
					require.NoError(t, err)
					for _, r := range e.Reasons {
						n += r.Stragglers
					}
					return n
				}
				require.Equal(t, "1", leased())
				require.NotZero(t, stragglers())
				h.hastenStragglers(2 * time.Minute)
				require.Equal(t, "0", leased())
				require.Zero(t, stragglers())
				if place == "topic" { // otherwise the key is parked until a promote
					require.Contains(t, h.takeAll(), "a2")
				}
			})
		})
	}
}

// A replace at maxmemory keeps the place of the handler that it cuts off.
func TestStragglerOfAReplaceAtMaxmemory(t *testing.T) {
	redistest.Need(t)
	rdb := redistest.Start(t).Client(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	h.setLimits(delayq.Limits{Ordered: true})
	h.putKeyed("a", "a1", "a2")
	h.TakeOne("a1")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	head, tail := h.keyedRecord("+0", "a", 0)
	r, err := h.TrySend(false, []any{"a1", head, tail, "r+0"})
	require.NoError(t, err)
	require.Empty(t, r.Text(2), "it is stored")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.Empty(t, h.takeAll(), "the handler may still run")
}

// A check restores the note that a topic has limits.
func TestCheckRestoresTheNoteOfLimits(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{Running: 1})
		h.Put("+0", "a1", "a2")
		require.NoError(t, h.RDB.HDel(t.Context(), h.Keys.Sizes, "limits").Err())
		h.look(true)
		h.cancel(h.TakeOne("a1").ID)
		require.Empty(t, h.takeAll(), "the handler may still run")
	})
}

// Keys of a wrong type that only keyed jobs use keep no server from telling which runs of other
// jobs have ended.
func TestEndsBesideAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, key := range []string{h.Keys.Holders, h.Keys.Parked, h.Keys.Keyed, h.Keys.Turn} {
			require.NoError(t, h.RDB.Set(t.Context(), key, "x", 0).Err())
			_, err := h.tryEnds(keyEnd{"", "a", "1.5"})
			require.NoError(t, err, key)
			require.NoError(t, h.RDB.Del(t.Context(), key).Err())
		}
	})
}

// Holders of a wrong type hide nothing, and keep no server from telling which runs have ended.
func TestHoldersOfAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.Put("+0", "a")
		require.NoError(t, h.RDB.Set(ctx, h.Keys.Holders, "x", 0).Err())
		_, err := h.client().insp.Explain(ctx, "topic", "a")
		require.NoError(t, err)
		for _, key := range []string{"", "k"} {
			_, err = h.tryEnds(keyEnd{key, "a", "1.5"})
			require.NoError(t, err)
		}
		_, err = h.TryCancel("a")
		require.NoError(t, err)
		r, err := h.Run(script.RemoveTopic, h.Series.Next())
		require.NoError(t, err)
		require.Equal(t, "removed", r.Text(2))
	})
}

// A job that is cancelled after a take whose reply was lost has no handler. Its place is free as
// soon as its server asks again or gives the take up.
func TestStragglerOfALostTake(t *testing.T) {
	const bytes = 1 << 20
	asks := map[string]func(h *Hand) (script.Reply, error){
		"another take": func(h *Hand) (script.Reply, error) { return h.TryTakeSince("6", "5", 1, bytes, 9, time.Minute, "head") },
		"giving it up": func(h *Hand) (script.Reply, error) { return h.TryTakeSince("6", "5", 0, bytes, 9, time.Minute, "tail") },
	}
	for name, ask := range asks {
		for place, limits := range map[string]delayq.Limits{"topic": {Running: 1}, "key": {RunningPerKey: 1}, "order": {Ordered: true}} {
			t.Run(name+", "+place, func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					h.setLimits(limits)
					h.putKeyed("a", "a1", "a2")
					other := NewHand(t, h.RDB, h.Prefix(), "topic") // another server
					_, err := h.TryTakeSince("5", "5", 1, bytes, 9, time.Minute, "head")
					require.NoError(t, err) // and the reply is lost
					h.cancel("a1")
					require.Len(t, h.stragglers(), 2)
					require.Empty(t, other.takeAll(), "the server of the take may run a1")
					r, err := ask(h)
					require.NoError(t, err)
					require.Empty(t, h.stragglers(), "nobody runs a1")
					if name == "another take" {
						require.Equal(t, "a2", r.List(3).Text(0), "it takes the place itself")
						require.Empty(t, other.takeAll())
					} else {
						require.Contains(t, other.takeAll(), "a2")
					}
				})
			})
		}
	}
}

// A take that arrives twice frees no place: the reply to its other copy can have arrived.
func TestLateCopyOfATakeFreesNoPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{Running: 1})
		h.Put("+0", "a1", "a2")
		other := NewHand(t, h.RDB, h.Prefix(), "topic") // another server
		for copy := range 2 {
			_, err := h.TryTakeSince("5", "5", 1, 1<<20, 9, time.Minute, "head")
			require.NoError(t, err)
			if copy == 0 {
				h.cancel("a1")
			}
			require.Empty(t, other.takeAll(), "the handler of a1 may run")
		}
	})
}

// A lost take of a topic without keys is asked for again beside a parked of a wrong type.
func TestLostTakeBesideAParkedOfAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{Running: 1})
		h.Put("+0", "a1", "a2")
		_, err := h.TryTakeSince("5", "5", 1, 1<<20, 9, time.Minute, "head")
		require.NoError(t, err)
		h.cancel("a1")
		h.Deface("parked")
		r, err := h.TryTakeSince("6", "5", 1, 1<<20, 9, time.Minute, "head")
		require.NoError(t, err)
		require.Equal(t, "a2", r.List(3).Text(0))
	})
}

// A take whose reply was lost gives up the places of its own jobs alone: not that of a job that is
// still leased, nor that of a straggler of another take.
func TestALostTakeFreesItsOwnPlacesOnly(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.setLimits(delayq.Limits{Running: 3})
		h.putKeyed("a", "a1")
		h.putKeyed("b", "b1", "b2", "b3")
		other := NewHand(t, h.RDB, h.Prefix(), "topic") // another server
		one := other.TakeOne("a1")
		h.cancel("a1")
		_, err := h.TryTakeSince("5", "5", 2, 1<<20, 9, time.Minute, "head")
		require.NoError(t, err)
		h.cancel("b1")
		require.Len(t, h.stragglers(), 4)
		r, err := h.TryTakeSince("6", "5", 2, 1<<20, 9, time.Minute, "head")
		require.NoError(t, err)
		require.Equal(t, "b2", r.List(3).Text(0))
		require.Len(t, h.stragglers(), 2, "the handler of a1 may run")
		require.Contains(t, other.takeAll(), "b3")
		_, err = other.tryEnds(keyEnd{"a", "a1", one.Fence})
		require.NoError(t, err)
		require.Empty(t, h.stragglers())
	})
}

// stragglers returns the entries of stragglers in holders.
func (h *Hand) stragglers() (list []string) {
	for _, entry := range h.RDB.ZRange(h.T.Context(), h.Keys.Holders, 0, -1).Val() {
		if entry[1+int(entry[0])] == '1' {
			list = append(list, entry)
		}
	}
	return list
}

// Explain says of a job whose key is parked what it can, whatever is wrong with what only keys and
// limits use.
func TestExplainBesideAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		h.putKeyed("k", "first", "x")
		require.Contains(t, h.takeAll(), "first")
		h.Put("+0", "plain")
		codes := func(id string) (list []delayq.ReasonCode) {
			e, err := h.client().insp.Explain(ctx, "topic", id)
			require.NoError(t, err)
			for _, r := range e.Reasons {
				list = append(list, r.Code)
			}
			return list
		}
		require.Contains(t, codes("x"), delayq.ReasonKeyLimit)
		whole := codes("plain")
		for _, key := range []string{h.Keys.Holders, h.Keys.Held, h.Keys.Parked, h.Keys.Turn, h.Keys.Rules, h.Keys.Blockers, h.Keys.Keyed, h.Keys.Lane} {
			spare := key + "!"
			_ = h.RDB.Rename(ctx, key, spare).Err() // some of them do not exist
			require.NoError(t, h.RDB.Set(ctx, key, "x", 0).Err())
			require.Equal(t, whole, codes("plain"), key)
			switch key {
			case h.Keys.Keyed, h.Keys.Lane:
				_, err := h.client().insp.Explain(ctx, "topic", "x")
				require.ErrorContains(t, err, "is a string", "what the job itself needs")
			case h.Keys.Parked: // nobody knows that it is parked
				require.NotContains(t, codes("x"), delayq.ReasonGathering)
			default:
				require.Contains(t, codes("x"), delayq.ReasonKeyLimit, key)
			}
			require.NoError(t, h.RDB.Del(ctx, key).Err())
			_ = h.RDB.Rename(ctx, spare, key).Err()
		}
	})
}
