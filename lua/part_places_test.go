package lua_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// keyedRecord makes a record with a key.
func keyedRecord(t testing.TB, key string) (head, tail string) {
	t.Helper()
	head, tail, err := record.Encode(record.NewNonce(), &record.Options{Retry: record.NotSet, Key: key}, nil)
	require.NoError(t, err)
	return head, tail
}

// partEnqueues are the calls that store a job with an ID, if a place is open.
var partEnqueues = map[string]func(h *Hand, id string) (script.Reply, error){
	"enqueue":       func(h *Hand, id string) (script.Reply, error) { return h.TryEnqueue(false, [2]string{id, "+0"}) },
	"enqueue later": func(h *Hand, id string) (script.Reply, error) { return h.TryEnqueue(false, [2]string{id, "+9000"}) },
	"enqueue unique": func(h *Hand, id string) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{id, "+0!1000/10"})
	},
	"replace":      func(h *Hand, id string) (script.Reply, error) { return h.TryEnqueue(false, [2]string{id, "r+0"}) },
	"replace dead": func(h *Hand, id string) (script.Reply, error) { return h.TryEnqueue(false, [2]string{id, "d+9000"}) },
	"latest":       func(h *Hand, id string) (script.Reply, error) { return h.TryEnqueue(false, [2]string{id, "l+0"}) },
	"debounce": func(h *Hand, id string) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{id, "b+100/1000"})
	},
	"debounce unique": func(h *Hand, id string) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{id, "b+100/1000!1000/10"})
	},
	"enqueue keyed":  func(h *Hand, id string) (script.Reply, error) { return h.tryKeyed(id, "+0") },
	"replace keyed":  func(h *Hand, id string) (script.Reply, error) { return h.tryKeyed(id, "r+0") },
	"enqueue_linked": func(h *Hand, id string) (script.Reply, error) { return h.tryStep(id) },
	"flow_start":     func(h *Hand, id string) (script.Reply, error) { return h.TryStart(partFlow(id)) },
	"sent with others": func(h *Hand, id string) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{id, "+0"}, [2]string{id + " too", "+0"})
	},
}

func (h *Hand) tryKeyed(id, when string) (script.Reply, error) {
	head, tail := keyedRecord(h.T, "k")
	return h.TrySend(false, []any{id, head, tail, when})
}

func (h *Hand) tryStep(id string) (script.Reply, error) {
	f := &hand.Flow{ID: "last", Name: "12345678", Steps: []hand.FlowStep{{Topic: h.Keys.Topic, ID: id}}}
	return h.TryLinked(h.Series.Next(), h.Keys.Receipt(h.Series.ID), h.Row(f, 0))
}

func partFlow(id string) *hand.Flow {
	return &hand.Flow{ID: id, Name: "12345678", Flags: "-", Deadline: "+3600000", Steps: []hand.FlowStep{{Topic: "other", ID: "step"}}}
}

// A closed place stores no job that it does not have, and nothing of it. It counts nothing, and the
// call that is sent again gets the same letter.
func TestPartClosedPlaceTakesNoNewIDs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for name, enqueue := range partEnqueues {
			h := NewHand(t, h.RDB, redistest.Prefix(t), "topic")
			require.True(t, h.Close())
			before := redistest.Dump(t, h.RDB, h.Prefix())
			for range 2 {
				r, err := enqueue(h, "new")
				require.NoError(t, err)
				want := "a"
				if name == "sent with others" {
					want = "aa"
				}
				require.Equal(t, want, r.Text(2), name)
				require.Empty(t, r.Text(3), "%s: since", name)
				require.Empty(t, r.Text(4), "%s: no mark", name)
				again, err := h.Last()
				require.NoError(t, err)
				require.Equal(t, r[2:], again[2:], name)
				require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), name)
			}
		}
	})
}

// What a closed place has goes on as in an open one: the letters are the same.
func TestPartClosedPlaceKeepsItsJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for name, enqueue := range partEnqueues {
			open, closed := NewHand(t, h.RDB, h.Prefix(), name), NewHand(t, h.RDB, h.Prefix(), "closed "+name)
			for _, h := range []*Hand{open, closed} {
				stage(h)
				h.entomb("entombed")
			}
			require.True(t, closed.Close())
			for _, id := range []string{"scheduled", "ready", "running", "dead", "entombed"} {
				var letters [2]string
				for i, h := range []*Hand{open, closed} {
					r, err := enqueue(h, id)
					require.NoError(t, err)
					if letters[i] = r.Text(2); name == "sent with others" {
						require.Equal(t, []string{"n", "a"}[i], letters[i][1:])
						letters[i] = letters[i][:1]
					}
				}
				require.Equal(t, letters[0], letters[1], "%s of %s", name, id)
				require.NotEqual(t, "a", letters[1], "%s of %s", name, id)
				require.Equal(t, open.placesOf(id), closed.placesOf(id), "%s of %s", name, id)
				if id == "entombed" {
					require.Equal(t, "t", letters[1], "the tomb of an ID comes first")
				}
			}
		}
	})
}

// placesOf tells where an ID stands.
func (h *Hand) placesOf(id string) (list [4]bool) {
	h.T.Helper()
	ctx := h.T.Context()
	list[0] = h.RDB.HExists(ctx, h.Keys.Pool, id).Val()
	for i, key := range []string{h.Keys.Bucket, h.Keys.Leases, h.Keys.Dead} {
		list[i+1] = h.RDB.ZScore(ctx, key, id).Err() == nil
	}
	return list
}

// In one call, each job gets its own letter, and what counts is what was stored.
func TestPartBatchOfAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		stage(h)
		h.entomb("entombed")
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Tombs, redis.Z{Score: 1, Member: "free"}).Err())
		require.True(t, h.Close())
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Stats).Err())
		r, err := h.TryEnqueue(false, [2]string{"new", "+0"}, [2]string{"ready", "r+0"}, [2]string{"entombed", "+0"}, [2]string{"free", "+0"},
			[2]string{"running", "l+0"}, [2]string{"dead", "+0"}, [2]string{"hopeless", "+9 +8"}, [2]string{"later", "b+9/9"}, [2]string{"scheduled", "+0"})
		require.NoError(t, err)
		require.Equal(t, "antaUdxas", r.Text(2))
		require.Regexp(t, `^ \d+ \d+$`, r.Text(3), "when the dead one was buried, and when the tomb is over")
		require.Equal(t, map[string]string{"enqueued": "1", "debounced": "1", "tombed": "1"}, h.RDB.HGetAll(t.Context(), h.Keys.Stats).Val())
		for _, id := range []string{"new", "free", "later", "hopeless"} {
			require.NotContains(t, h.Traces(id), "pool")
			require.NotContains(t, h.Traces(id), "ready")
		}
	})
}

// A job that is to replace one as its caller knows it is elsewhere, too.
func TestPartReplaceOfAKnownJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		replace := func(id string) string {
			head, tail := h.Record("+0", 0)
			r, err := h.TrySend(false, []any{id, head, tail, "r+0?s"})
			require.NoError(t, err)
			return r.Text(2)
		}
		h.Put("+0", "ready")
		h.Put("+3600000", "scheduled")
		h.entomb("entombed")
		require.Equal(t, "r", replace("none"))
		require.True(t, h.Close())
		require.Equal(t, "a", replace("none"))
		require.Equal(t, "r", replace("entombed"), "as in an open place")
		require.Equal(t, "r", replace("ready"))
		require.Empty(t, replace("scheduled"))
	})
}

// partEdits are the calls about a job that is there, with the answer to one that is not.
var partEdits = map[string]struct {
	open, closed string
	edit         func(h *Hand, id string) (script.Reply, error)
}{
	"cancel":       {"g", "a", func(h *Hand, id string) (script.Reply, error) { return h.TryCancel(id) }},
	"cancel known": {"g", "a", func(h *Hand, id string) (script.Reply, error) { return h.TryCancelKnown(id, "s") }},
	"reschedule":   {"g", "a", func(h *Hand, id string) (script.Reply, error) { return h.TryReschedule(id, "+500") }},
	"revive":       {"g", "a", func(h *Hand, id string) (script.Reply, error) { return h.TryRevive(id) }},
	"bury_waiting": {"g", "a", func(h *Hand, id string) (script.Reply, error) { return h.TryBury(id) }},
	"delete":       {"g", "a", func(h *Hand, id string) (script.Reply, error) { return h.TryDelete(id) }},
	"priority":     {"gone", "elsewhere", func(h *Hand, id string) (script.Reply, error) { return h.TryPriority(id, 1000) }},
	"flow_cancel": {"g", "a", func(h *Hand, id string) (script.Reply, error) {
		return h.TryCancelSteps(h.Series.Next(), h.Keys.Receipt(h.Series.ID), [2]string{id, "1234567800000000"})
	}},
	"flow_release": {"g", "a", func(h *Hand, id string) (script.Reply, error) {
		return h.TryRelease(h.Series.Next(), h.Keys.Receipt(h.Series.ID), [2]string{id, "12345678"})
	}},
}

func TestPartEditsOfAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for name, e := range partEdits {
			open, closed := NewHand(t, h.RDB, h.Prefix(), name), NewHand(t, h.RDB, redistest.Prefix(t), "topic")
			stage(open)
			stage(closed)
			require.True(t, closed.Close())
			before := redistest.Dump(t, h.RDB, closed.Prefix())
			for h, want := range map[*Hand]string{open: e.open, closed: e.closed} {
				r, err := e.edit(h, "none")
				require.NoError(t, err)
				require.Equal(t, want, r.Text(2), name)
				again, err := h.Last()
				require.NoError(t, err)
				require.Equal(t, r[2:], again[2:], name)
			}
			require.Equal(t, before, redistest.Dump(t, h.RDB, closed.Prefix()), name)
			for _, id := range staged {
				r, err := e.edit(open, id)
				require.NoError(t, err)
				want := r.Text(2)
				if name == "delete" { // which is about done jobs
					want = e.closed
				}
				r, err = e.edit(closed, id)
				require.NoError(t, err)
				require.Equal(t, want, r.Text(2), "%s of %s", name, id)
			}
		}
	})
}

// A call about several jobs carries out what it can.
func TestPartEditsOfSeveralJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		stage(h)
		require.True(t, h.Close())
		r, err := h.TryCancelEach([2]string{"none", ""}, [2]string{"ready", ""}, [2]string{"nobody", ""}, [2]string{"scheduled", "d"})
		require.NoError(t, err)
		require.Equal(t, "arac", r.Text(2))
		require.Equal(t, "1", h.RDB.HGet(t.Context(), h.Keys.Stats, "cancelled").Val())
	})
}

// In a closed place that has no job with the ID, cancel makes no tomb, and frees the ID if it is
// asked to.
func TestPartTombsOfAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+3600000", "here")
		h.entomb("entombed", "entombed too")
		require.True(t, h.Close())
		tombs := func() []string { return h.RDB.ZRange(t.Context(), h.Keys.Tombs, 0, -1).Val() }
		r, err := h.TryCancelEach([2]string{"none", "!1000/2"}, [2]string{"entombed", "!0/9"}, [2]string{"entombed too", "!0/0"}, [2]string{"here", "!1000/2"})
		require.NoError(t, err)
		require.Equal(t, "aaas", r.Text(2))
		require.Empty(t, r.Text(3), "there is room for two, and the end of the place is no tomb")
		require.Equal(t, []string{"here", "entombed too", ""}, tombs())
		r, err = h.TryCancelEach([2]string{"none", "!0/9"}, [2]string{"entombed too", "!0/9"}, [2]string{"here", "!0/9"})
		require.NoError(t, err)
		require.Equal(t, "aaa", r.Text(2))
		require.Equal(t, []string{""}, tombs(), "the place stays closed")
	})
}

// The number of tombs that a topic may have is that of its IDs.
func TestPartClosedPlaceIsNoTomb(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+3600000", "1", "2", "3")
		require.True(t, h.Close())
		for _, id := range []string{"1", "2"} {
			r, err := h.TryEnqueue(false, [2]string{id, "r+0!3600000/2"})
			require.NoError(t, err)
			require.Empty(t, r.Text(2), "there is room for two")
		}
		r, err := h.TryCancelKnown("3", "!3600000/2")
		require.NoError(t, err)
		require.Equal(t, []any{"s", "v"}, answers(t, r, err))
		require.ElementsMatch(t, []string{"1", "2", ""}, h.RDB.ZRange(t.Context(), h.Keys.Tombs, 0, -1).Val())
	})
}

func TestPartGetOfAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		head, tail := h.Record("+0", 3_600_000)
		require.NoError(t, just(h.TrySend(false, []any{"done", head, tail, "+0"})))
		require.Equal(t, "o", h.Ack(h.TakeOne("done")))
		h.Put("+3600000", "here")
		elsewhere := func(ids ...string) int64 {
			t.Helper()
			r, err := h.TryGet(ids...)
			require.NoError(t, err)
			require.Len(t, r, hand.Elsewhere+1)
			require.Len(t, r.List(2), len(ids))
			return r.Number(hand.Elsewhere)
		}
		require.Zero(t, elsewhere("here", "none"))
		require.True(t, h.Close())
		require.Zero(t, elsewhere("here"))
		require.EqualValues(t, 1, elsewhere("here", "none"))
		require.EqualValues(t, 1, elsewhere("done"), "another job can have the ID by now")
		h.Deface("tombs")
		require.Zero(t, elsewhere("here", "none"), "what is there can be read")
	})
}

func TestPartWaitInAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+3600000", "here")
		require.Equal(t, "g", h.Wait("me", "none", "", hand.Register))
		require.True(t, h.Close())
		before := redistest.Dump(t, h.RDB, h.Prefix())
		for _, verb := range []string{hand.Register, hand.Look} {
			require.Equal(t, "a", h.Wait("me", "none", "", verb))
			require.Equal(t, "A", h.Wait("me", "none", "nonce---", verb), "it is not to be enqueued here")
			require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), "nobody is registered")
		}
		require.Equal(t, "h", h.Wait("me", "here", "nonce---", hand.Look), "the ID is not free here")
		require.Equal(t, "l", h.Wait("me", "here", "", hand.Register)[:1])
		require.NoError(t, just(h.TryCancel("here")))
		require.Equal(t, "a", h.Wait("me", "here", "", hand.Look))
	})
}

// A done job that is kept in a closed place has left its ID to later generations. Who waits for the
// incarnation itself learns of its end, and who gives no nonce learns that it is not all.
func TestPartWaitForADoneJobOfAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		head, tail := h.Record("+0", 3_600_000)
		require.NoError(t, just(h.TrySend(false, []any{"done", head, tail, "+0"})))
		require.Equal(t, "o", h.Ack(h.TakeOne("done")))
		open := h.Wait("me", "done", "", hand.Register)
		require.Equal(t, "e"+head[:8], open[:9])
		require.True(t, h.Close())
		before := redistest.Dump(t, h.RDB, h.Prefix())
		for _, verb := range []string{hand.Register, hand.Look} {
			require.Equal(t, "k"+open[1:], h.Wait("me", "done", "", verb))
			require.Equal(t, open, h.Wait("me", "done", head[:8], verb))
			require.Equal(t, "A", h.Wait("me", "done", "nonce---", verb))
		}
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), "nobody is registered")
	})
}

// Servers and inspectors do not see what closes a place, and leave it.
func TestPartViewsOfAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+3600000", "here")
		require.True(t, h.Close())
		require.NoError(t, just(h.TryPartition("", "0:1 1:3", "")))
		require.NoError(t, just(h.tryLimits(delayq.Limits{Running: 3})))
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, "shared", "6 0 0 0 0 0").Err())
		before := redistest.Dump(t, h.RDB, h.Prefix())
		require.Empty(t, h.checkAll())
		for range 2 {
			r, err := h.TryPrune(0, 0, 100)
			require.NoError(t, err)
			require.Zero(t, r.Number(9), "tombs that are over")
		}
		r, err := h.Run(script.Inspect)
		require.NoError(t, err)
		require.Zero(t, r.Number(2))
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Stats).Err())
		delete(before, h.Keys.Stats)
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
		require.Equal(t, "-", must(h.Try(script.Survey, surveyKeys(h), 1000, 3600000)).Text(2), "there is nothing to prune")
		require.False(t, h.Close(), "it is closed")
	})
}

func surveyKeys(h *Hand) (keys []any) {
	k := h.Keys
	for _, key := range []string{k.Pool, k.Bucket, k.Leases, k.Ready, k.Handoff, k.Dead, k.Done, k.Idle, k.Results, k.Lane, k.Tombs, k.Notes} {
		keys = append(keys, key)
	}
	return keys
}

// A map of a wrong type is found by a check.
func TestPartMapOfAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Deface("parts")
		require.Equal(t, []string{h.Keys.Parts}, h.checkAll())
	})
}

// checkAll repairs what shows without a scan, and gives the keys of the findings.
func (h *Hand) checkAll() []string {
	h.T.Helper()
	r, err := h.Run(script.Check, "all", "0", 1000, script.CallBytes, 1)
	require.NoError(h.T, err)
	return r.List(4).Texts()
}

// RemoveTopic leaves a place closed, and the map.
func TestPartRemoveTopicKeepsItClosed(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.NoError(t, just(h.TryPartition("", "0:1 1:3", "")))
		h.Put("+0", "a")
		h.entomb("entombed")
		require.True(t, h.Close())
		require.NoError(t, just(h.TryCancel("a")))
		r, err := h.Run(script.RemoveTopic, h.Series.Next())
		require.NoError(t, err)
		require.Equal(t, "removed", r.Text(2))
		require.Equal(t, []string{""}, h.RDB.ZRange(t.Context(), h.Keys.Tombs, 0, -1).Val())
		require.Equal(t, []string{h.Keys.Parts, h.Keys.Tombs}, keysOf(redistest.Dump(t, h.RDB, h.Prefix())))
		require.Equal(t, "0:1 1:3", h.Map())
		require.False(t, h.Close())
	})
}

// The runs of a closed place end as in any other: what they enqueue with their own ID stays there.
func TestPartRunsOfAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "again", "followed", "retried", "returned", "lapsed")
		held := h.Take(4, time.Minute)
		require.Len(t, h.Take(1, 0), 1)
		require.True(t, h.Close())
		h.follow("followed")
		require.Equal(t, "o", h.Again(time.Hour, held[0]))
		require.Equal(t, "o", h.Ack(held[1]))
		require.Equal(t, "o", h.Retry(time.Hour, held[2]))
		require.Equal(t, "o", h.Letters(held[3:], settle.Row{Verb: settle.Return}))
		h.Promote()
		for _, id := range []string{"again", "followed", "retried", "returned", "lapsed"} {
			require.Contains(t, h.Traces(id), "pool", id)
		}
		require.ElementsMatch(t, []string{"again", "followed", "retried", "returned", "lapsed"}, h.finish())
		require.True(t, h.Empty())
	})
}

// Schedules fire in a closed place: they stay at home.
func TestPartSchedulesFireInAClosedPlace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.True(t, h.Close())
		require.NoError(t, h.client().Schedule(t.Context(), "topic", "every", delayq.Every(time.Minute), nil))
		h.fireSlot(200)
		require.EqualValues(t, 1, h.RDB.HLen(t.Context(), h.Keys.Pool).Val())
		require.False(t, h.Empty())
	})
}
