package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// putKey enqueues a job with a key, and returns its letter: n if it is stored.
func (h *Hand) putKey(key, id, when string) string {
	h.T.Helper()
	head, tail := keyedRecord(h.T, key)
	r, err := h.TrySend(false, []any{id, head, tail, when})
	require.NoError(h.T, err)
	if r.Text(2) == "" {
		return "n"
	}
	return r.Text(2)
}

// staying returns the keys that stay, and the number of the pass.
func (h *Hand) staying() (keys []string, pass float64) {
	h.T.Helper()
	for _, z := range h.RDB.ZRangeWithScores(h.T.Context(), h.Keys.Staying, 0, -1).Val() {
		if z.Member == "" {
			pass = z.Score
		} else {
			keys = append(keys, z.Member.(string))
		}
	}
	return keys, pass
}

// A place that is closed by key takes the jobs of the keys that it has, until it has none. Jobs of
// other keys and those without one are elsewhere.
func TestPartKeysStayUntilTheyHaveNothing(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.Equal(t, "n", h.putKey("a", "a1", "+3600000"))
		require.Equal(t, "n", h.putKey("b", "b1", "+0"))
		require.True(t, h.CloseByKey())
		require.False(t, h.CloseByKey())
		require.Equal(t, "n", h.putKey("c", "c1", "+0"), "nobody has looked yet which keys there are")
		r, err := h.TryEnqueue(false, [2]string{"plain", "+0"})
		require.NoError(t, err)
		require.Equal(t, "a", r.Text(2))

		h.Pass()
		keys, pass := h.staying()
		require.ElementsMatch(t, []string{"a", "b", "c"}, keys)
		require.EqualValues(t, 2, pass)
		require.Equal(t, "a", h.putKey("d", "d1", "+0"))
		require.Equal(t, "n", h.putKey("a", "a2", "+0"))
		require.Equal(t, "n", h.putKey("b", "b2", "+3600000"))
		require.False(t, h.Empty())

		require.Equal(t, "ooo", h.Ack(h.Take(3, time.Hour)...), "b1, c1 and a2")
		h.Pass()
		h.Pass()
		require.Equal(t, "a", h.putKey("c", "c2", "+0"), "it has gone")
		require.Equal(t, "n", h.putKey("a", "a3", "+0"))
		require.Equal(t, "n", h.putKey("b", "b3", "+0"))

		h.Hasten(2 * time.Hour)
		h.Promote()
		require.Equal(t, "oooo", h.Ack(h.Take(9, time.Hour)...))
		h.Pass()
		h.Pass()
		keys, pass = h.staying()
		require.Empty(t, keys)
		require.Zero(t, pass)
		require.Equal(t, "a", h.putKey("a", "a4", "+0"))
		require.True(t, h.Empty())
		answer, err := h.TryKeys(1)
		require.NoError(t, err)
		require.Equal(t, "none", answer)
	})
}

// A place that has nothing of any key when it is closed keeps none.
func TestPartKeysOfNobody(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "plain")
		require.True(t, h.CloseByKey())
		require.Equal(t, "a", h.putKey("a", "a1", "+0"))
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Staying).Val())
	})
}

// What is left of a key beside its jobs keeps it: a successor with it, a run whose job was
// cancelled, and the starts that its rate counts. A hold alone does not: that of an operator is
// everywhere.
func TestPartKeysStayForWhatIsLeft(t *testing.T) {
	const hour = 3_600_000
	set := func(key func(h *Hand) string, member func() string, score float64) func(h *Hand) {
		return func(h *Hand) {
			require.NoError(h.T, h.RDB.ZAdd(h.T.Context(), key(h), redis.Z{Member: member(), Score: score}).Err())
		}
	}
	k := func() string { return "k" }
	rates, held := func(h *Hand) string { return h.Keys.Rates }, func(h *Hand) string { return h.Keys.Held }
	holders := func(h *Hand) string { return h.Keys.Holders }
	now := float64(time.Now().UnixMilli())
	straggler := func(till float64) func() string {
		return func() string { return "\x01k1" + fmt.Sprintf("%017.3f", till) + "id" }
	}
	for name, c := range map[string]struct {
		leave func(h *Hand)
		stays bool
	}{
		"successor": {func(h *Hand) {
			h.putKey("other", "id", "+0")
			h.Take(1, time.Hour)
			require.Equal(h.T, "U", h.putKey("k", "id", "l+0"))
		}, true},
		"rate":                 {set(rates, k, (now+hour)*1000), true},
		"rate of the past":     {set(rates, k, (now-hour)*1000), false},
		"hold":                 {set(held, k, now+hour), false},
		"run without a job":    {set(holders, straggler(now+hour), 0), true},
		"end of such a run":    {set(holders, straggler(now-hour), 0), false},
		"dead job":             {func(h *Hand) { h.putKey("k", "id", "+0"); h.Bury(h.Take(1, time.Hour)...) }, true},
		"job that waits again": {func(h *Hand) { h.putKey("k", "id", "+0"); h.Retry(time.Hour, h.Take(1, time.Hour)...) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				c.leave(h)
				require.True(t, h.CloseByKey())
				h.Pass()
				h.Pass()
				want := "a"
				if c.stays {
					want = "n"
				}
				require.Equal(t, want, h.putKey("k", "new", "+0"))
			})
		})
	}
}

// A key that has had a job when the place was closed stays as long as it has a hold that ends: the
// handler of that job can have asked for it, and then it is here alone.
func TestPartKeysStayForTheirHolds(t *testing.T) {
	now := float64(time.Now().UnixMilli())
	for name, c := range map[string]struct {
		till  float64
		stays bool
	}{"hold": {now + 3_600_000, true}, "hold of the past": {now - 3_600_000, false}, "pause": {hand.KeyPaused, false}} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.putKey("k", "id", "+0")
				require.True(t, h.CloseByKey())
				h.Pass()
				require.Equal(t, "o", h.Ack(h.Take(1, time.Hour)...))
				require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Held, redis.Z{Member: "k", Score: c.till}).Err())
				h.Pass()
				h.Pass()
				require.Equal(t, map[bool]string{true: "n", false: "a"}[c.stays], h.putKey("k", "new", "+0"))
			})
		})
	}
}

// A successor gets its key before it is live, and keeps it in the place when it is.
func TestPartKeysOfSuccessors(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.putKey("a", "id", "+0")
		h.putKey("b", "b1", "+3600000")
		require.True(t, h.CloseByKey())
		h.Pass()
		held := h.Take(1, time.Hour)
		require.Equal(t, "U", h.putKey("b", "id", "l+0"))
		require.Equal(t, "u", h.putKey("c", "id", "l+0"), "its key has no business here")
		r, err := h.TryCancel("b1")
		require.NoError(t, err)
		require.Equal(t, "s", r.Text(2))
		h.Pass()
		h.Pass()
		require.Equal(t, "n", h.putKey("b", "b2", "+3600000"))
		require.Equal(t, "o", h.Letters(held, settle.Row{Verb: settle.Ack, Heir: true}))
		h.Pass()
		h.Pass()
		require.Equal(t, "n", h.putKey("b", "b3", "+3600000"))
		require.Equal(t, "a", h.putKey("a", "a1", "+3600000"))
	})
}

// A job whose key has left the place does not replace one that has its ID and another key. It is
// refused like a duplicate, and changes nothing.
func TestPartKeysThatHaveLeftReplaceNothing(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.putKey("a", "id", "+3600000")
		require.True(t, h.CloseByKey())
		h.Pass()
		require.Equal(t, "s", h.putKey("a", "id", "+0"))
		before := redistest.Dump(t, h.RDB, h.Prefix())
		for _, when := range []string{"+0", "r+0", "w+0", "d+0", "l+0", "b+100/1000", "r+0!1000/10"} {
			require.Equal(t, "s", h.putKey("b", "id", when), when)
			require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), when)
		}
		require.Equal(t, "n", h.putKey("a", "id", "r+0"))
		require.Equal(t, "R", h.putKey("a", "id", "l+0"))
	})
}

// A job that is refused does not keep its key.
func TestPartKeysOfRefusedJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.Equal(t, "n", h.putKey("k", "x", "+0!3600000/10"))
		require.Equal(t, "n", h.putKey("j", "y", "+3600000"))
		require.True(t, h.CloseByKey())
		require.Equal(t, "o", h.Ack(h.Take(1, time.Hour)...))
		for range 3 {
			h.Pass()
			require.Equal(t, "t", h.putKey("k", "x", "+0"))
		}
		keys, _ := h.staying()
		require.Equal(t, []string{"j"}, keys)
	})
}

// A job of a schedule brings back no key that has left.
func TestPartKeysDoNotComeBack(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.putKey("a", "a1", "+3600000")
		require.True(t, h.CloseByKey())
		h.Pass()
		open := NewHand(t, h.RDB, h.Prefix(), "open")
		open.putKey("b", "b1", "+3600000")
		place := open.RDB.HGet(t.Context(), open.Keys.Keyed, "b1").Val()
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Keyed, "b1", place).Err())
		h.Pass()
		keys, _ := h.staying()
		require.Equal(t, []string{"a"}, keys)
		require.Equal(t, "a", h.putKey("b", "b2", "+0"))
	})
}

// Who closes an ID does not know its key. So a place closes it too as long as keys stay there, and
// says that the job can be elsewhere.
func TestPartKeysHaveTombs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		entomb := func(id, most string) (letters, full string) {
			r, err := h.TryCancelEach([2]string{id, "!3600000/" + most})
			require.NoError(t, err)
			return r.Text(2), r.Text(3)
		}
		h.putKey("a", "a1", "+0")
		require.True(t, h.CloseByKey())
		letters, full := entomb("a2", "1")
		require.Equal(t, "a", letters)
		require.Empty(t, full)
		require.Equal(t, "t", h.putKey("a", "a2", "+0"))
		require.Equal(t, "t", h.putKey("b", "a2", "+0"))
		letters, full = entomb("a3", "1")
		require.Equal(t, "a", letters)
		require.Equal(t, "v", full, "there is one already")
		h.Ack(h.Take(1, time.Hour)...)
		h.Pass()
		h.Pass()
		letters, _ = entomb("a4", "9")
		require.Equal(t, "a", letters)
		require.Equal(t, "a", h.putKey("a", "a4", "+0"), "no key stays")
		require.Equal(t, "t", h.putKey("a", "a2", "+0"))
	})
}

// Who waits for a job that is not enqueued yet, waits where its key is.
func TestPartKeysAreWaitedFor(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		wait := func(verb string) string {
			r, err := h.Run(script.Wait, "client", "new", "nonce--1", verb)
			require.NoError(t, err)
			return r.List(2).Text(0)
		}
		h.putKey("a", "a1", "+0")
		require.True(t, h.CloseByKey())
		require.Equal(t, "p", wait("+b"), "nobody has looked yet which keys there are")
		h.Pass()
		require.Equal(t, "A", wait("+b"))
		require.Equal(t, "A", wait("+"))
		require.Equal(t, "p", wait("+a"))
		h.Ack(h.Take(1, time.Hour)...)
		h.Pass()
		h.Pass()
		require.Equal(t, "A", wait("+a"))
	})
}

// leftKeys returns keys that an earlier pass has found.
func leftKeys(n int) (list []redis.Z) {
	for i := range n {
		list = append(list, redis.Z{Member: fmt.Sprint("gone", i)})
	}
	return list
}

// A job that is stored by replace keeps its key in the place even if the pass has been past its
// jobs. One that is to replace a job which is not there is refused as in an open place.
func TestPartKeysOfJobsThatReplace(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		open := NewHand(t, h.RDB, h.Prefix(), "open")
		for _, when := range []string{"r+0", "w+0", "d+0", "l+0", "b+100/1000"} {
			h := NewHand(t, h.RDB, h.Prefix(), "closed "+when)
			h.putKey("k", "old", "+0")
			require.True(t, h.CloseByKey())
			h.Pass()
			require.Equal(t, open.putKey("k", "none", when+"?s"), h.putKey("k", "none", when+"?s"), when)
			require.Equal(t, "o", h.Ack(h.Take(1, time.Hour)...))
			for range 5 {
				require.Equal(t, "more", must(h.TryKeys(1)))
			}
			require.Equal(t, "n", h.putKey("k", "new", when), when)
			h.Pass()
			keys, _ := h.staying()
			require.Equal(t, []string{"k"}, keys, when)
		}
	})
}

// Many jobs take many calls, and each looks at some. Whatever is stored meanwhile stays.
func TestPartKeysOfManyJobs(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	h := NewHand(t, redistest.Shared(t), redistest.Prefix(t), "topic")
	const jobs = 3000
	for at := 0; at < jobs; at += 500 {
		var rows []any
		for i := range 500 {
			head, tail := keyedRecord(t, fmt.Sprint("k", (at+i)%1500))
			rows = append(rows, fmt.Sprint("j", at+i), head, tail, "+3600000")
		}
		require.NoError(t, just(h.TrySend(false, rows)))
	}
	require.True(t, h.CloseByKey())
	calls := 0
	for answer := "more"; answer == "more"; calls++ {
		var err error
		before := h.RDB.ZCard(t.Context(), h.Keys.Staying).Val()
		answer, err = h.TryKeys(100)
		require.NoError(t, err)
		require.LessOrEqual(t, h.RDB.ZCard(t.Context(), h.Keys.Staying).Val()-before, int64(400), "a call looks at about 100 jobs")
		if answer == "more" {
			require.Equal(t, "n", h.putKey("k7", fmt.Sprint("more", calls), "+0"))
		}
	}
	require.Greater(t, calls, jobs/400)
	keys, _ := h.staying()
	require.Len(t, keys, 1500)
	require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Staying, leftKeys(700)...).Err()) // of which nothing is left
	h.Pass()
	keys, _ = h.staying()
	require.Len(t, keys, 1500, "they go in one pass, 100 a call")

	// Another run of Redis cannot go on with the cursor.
	require.Equal(t, "more", must(h.TryKeys(100)))
	require.Equal(t, "more", must(h.TryKeys(100)))
	field := h.RDB.HGet(t.Context(), h.Keys.Parts, "keys").Val()
	stage, rest, _ := strings.Cut(field, " ")
	cursor, run, _ := strings.Cut(rest, " ")
	require.Equal(t, "2", stage)
	require.NotEqual(t, "0", cursor)
	require.Len(t, run, 40)
	require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Parts, "keys", stage+" "+cursor+" "+strings.Repeat("0", 40)).Err())
	require.Equal(t, "more", must(h.TryKeys(100)))
	require.Equal(t, "2 0 "+run, h.RDB.HGet(t.Context(), h.Keys.Parts, "keys").Val(), "it began anew, with the successors")
}

// Who may not ask for the run of Redis never goes on with a cursor. Then a place with many jobs
// keeps its keys, also if Redis starts anew in the middle of a pass, and one with few does not.
func TestPartKeysWithoutInfo(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	s := redistest.Start(t)
	require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-info").Err())
	o := s.Options()
	o.Username, o.Password = "blind", "secret"
	rdb := redis.NewClient(o)
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	h := NewHand(t, rdb, "p", "many")
	var rows []any
	for i := range 900 {
		head, tail := keyedRecord(t, fmt.Sprint("k", i))
		rows = append(rows, fmt.Sprint("j", i), head, tail, "+3600000")
	}
	require.NoError(t, just(h.TrySend(false, rows)))
	require.True(t, h.CloseByKey())
	require.Equal(t, "more", must(h.TryKeys(100)), "no successors")
	for range 20 {
		require.Equal(t, "over", must(h.TryKeys(100)), "the server is not to go on in this round")
		require.Equal(t, "more", must(h.TryKeys(100)), "begun anew")
		_, pass := h.staying()
		require.EqualValues(t, 1, pass)
	}
	few := NewHand(t, rdb, "p", "few")
	few.putKey("k", "id", "+0")
	require.True(t, few.CloseByKey())
	few.Pass()
	require.Equal(t, "o", few.Ack(few.Take(1, time.Hour)...))
	few.Pass()
	few.Pass()
	require.Equal(t, "a", few.putKey("k", "new", "+0"))
}
