package lua_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// followed asks about a chain of incarnations from one on, and returns how the last one has ended,
// or "" and the nonce of the one that lives.
func (e *ear) followed(id, nonce string) (outcome, last string) {
	e.h.T.Helper()
	for {
		outcome := e.outcome(id, nonce)
		next, follows := strings.CutPrefix(outcome, "f ")
		if !follows {
			return outcome, nonce
		}
		nonce = next
	}
}

// heirNonce is the nonce of the successor that waits.
func (h *Hand) heirNonce(id string) string {
	h.T.Helper()
	entry := h.RDB.HGet(h.T.Context(), h.Keys.Next, id).Val()
	parts := strings.SplitN(entry, " ", 3)
	require.Len(h.T, parts, 3)
	return parts[2][:8]
}

// Who waits for a job that its handler has enqueued again, and again, is told of the end of the
// last one.
func TestWaitersFollowAgain(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		me := h.ear("me")
		h.Put("+0", "a")
		nonce := me.waits("a")
		for range 5 {
			held := h.TakeOne("a")
			h.noted(held)
			require.Equal(t, []string{"a"}, me.heard(), "of the progress")
			require.Equal(t, "o", h.Again(0, held))
			require.Empty(t, me.heard())
			require.NotContains(t, h.notes(), "pa", "the next run begins anew")
		}
		outcome, last := me.followed("a", nonce)
		require.Empty(t, outcome)
		require.Equal(t, "l"+last, h.Wait("me", "a", last, hand.Look)[:9])
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		require.Equal(t, []string{"a"}, me.heard())
		outcome, end := me.followed("a", nonce)
		require.Equal(t, last, end)
		require.Regexp(t, `^o `, outcome)
		require.EqualValues(t, 1, h.counted("awaited"))
	})
}

// A running job has a successor, and one client waits for each of them.
func TestWaitersOfAJobAndOfItsSuccessor(t *testing.T) {
	t.Parallel()
	bury := settle.Row{Verb: settle.Bury, Attempts: 1, Failure: hand.Failed}
	for name, test := range map[string]struct {
		do       func(t *testing.T, h *Hand, held hand.Held)
		old, new string // outcomes as patterns; "": it lives
	}{
		"ack":              {settling(settle.Row{Verb: settle.Ack}), `o .*`, ``},
		"expire":           {settling(settle.Row{Verb: settle.Expire}), `x `, ``},
		"bury":             {settling(bury), `d .*`, ``},
		"again":            {settling(settle.Row{Verb: settle.Again}), `o .*`, ``},
		"a stage fails":    {settling(settle.Row{Verb: settle.Pass}), `d .*`, ``},
		"retry":            {settling(settle.Row{Verb: settle.Retry, Failure: hand.Failed}), `f heir`, ``},
		"snooze":           {settling(settle.Row{Verb: settle.Snooze}), `f heir`, ``},
		"give back":        {settling(settle.Row{Verb: settle.Return}), ``, ``},
		"cancel":           {func(t *testing.T, h *Hand, _ hand.Held) { require.Equal(t, "u", must(h.TryCancel("a")).Text(2)) }, `c `, `c `},
		"replace":          {sending("r+0"), `r `, `r `},
		"a newer one":      {sending("b+1000/5000"), ``, `(?s)f .+`},
		"the newest state": {sending("l+1000"), ``, `(?s)f .+`},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				me, other := h.ear("me"), h.ear("other")
				h.Put("+0", "a")
				nonce, held := me.waits("a"), h.TakeOne("a")
				h.follow("a")
				heir := h.heirNonce("a")
				require.Equal(t, "l"+heir+"s", h.Wait("other", "a", heir, hand.Register), "it waits, scheduled")
				require.Equal(t, "l"+nonce+"u", h.Wait("me", "a", nonce, hand.Register))

				test.do(t, h, held)
				told := func(pattern string) (ids []string) {
					if pattern != "" && !strings.Contains(pattern, "f ") {
						ids = []string{"a"}
					}
					return ids
				}
				require.Equal(t, told(test.old), me.heard())
				require.Equal(t, told(test.new), other.heard())
				require.Regexp(t, `^(?s)`+test.old+`$`, strings.Replace(me.outcome("a", nonce), heir, "heir", 1))
				require.Regexp(t, `^(?s)`+test.new+`$`, other.outcome("a", heir))
				if test.new == `c ` || test.new == `r ` {
					return
				}

				// What goes on ends: then all that wait for it are told.
				_, last := other.followed("a", heir)
				require.Equal(t, "o", h.ends("a"))
				for range 2 { // it, and the successor that it may have
					if len(other.heard()) > 0 {
						break
					}
					require.Equal(t, "o", h.ends("a"))
				}
				outcome, _ := other.followed("a", last)
				require.Regexp(t, `^o `, outcome)
				outcome, _ = me.followed("a", nonce)
				require.NotEmpty(t, outcome)
				require.NotContains(t, h.notes(), "wa")
			})
		})
	}
}

// ends runs a job and acks it.
func (h *Hand) ends(id string) string {
	h.T.Helper()
	h.Hasten(time.Hour)
	for range 3 { // a lapsed lease, the backoff after it, and the job
		h.Promote()
		if held := h.Take(1, time.Minute); len(held) == 1 {
			require.Equal(h.T, id, held[0].ID)
			return h.Ack(held[0])
		}
		h.Hasten(time.Hour)
	}
	return "none"
}

// A caller can wait for a job before the job is there, and before another one with its ID has
// ended.
func TestWaitBeforeTheJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		me := h.ear("me")
		head, tail := h.Record("+0", 0)
		nonce := head[:8]
		require.Equal(t, "g", h.Wait("me", "a", "", hand.Register))
		require.Empty(t, h.notes(), "there is nothing to wait for")
		require.Equal(t, "p", h.Wait("me", "a", nonce, hand.Look))
		require.Empty(t, h.notes(), "a look registers nobody")
		require.Equal(t, "p", h.Wait("me", "a", nonce, hand.Register))
		require.Equal(t, []string{"wa"}, h.notes())
		h.Put("+0", "a") // of somebody else
		require.Equal(t, "h", h.Wait("me", "a", nonce, hand.Register))
		other := h.ear("other")
		others := other.waits("a")
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		require.Empty(t, me.heard(), "another job has ended")
		require.Equal(t, []string{"a"}, other.heard())
		require.Regexp(t, `^o `, other.outcome("a", others))
		require.Equal(t, "p", h.Wait("me", "a", nonce, hand.Look))

		require.Empty(t, must(h.TrySend(false, []any{"a", head, tail, "+0"})).Text(2))
		require.Equal(t, "l"+nonce+"r", h.Wait("me", "a", nonce, hand.Look))
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		require.Equal(t, []string{"a"}, me.heard())
		require.Regexp(t, `^o `, me.outcome("a", nonce))
		require.Regexp(t, `^o `, other.outcome("a", others), "each incarnation has its own")
		require.ElementsMatch(t, []string{"e", "e"}, h.notes())
	})
}

// Eight clients wait for an ID, and a ninth asks again.
func TestEightWaiters(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		var ears []*ear
		var nonce string
		for _, name := range named("client", 8) {
			ears = append(ears, h.ear(name))
			nonce = ears[len(ears)-1].waits("a")
		}
		ninth := h.ear("ninth")
		require.Equal(t, "v"+nonce+"r", h.Wait("ninth", "a", "", hand.Register))
		require.Equal(t, "l"+nonce+"r", h.Wait("client 00003", "a", nonce, hand.Register), "again")
		require.Empty(t, h.Wait("client 00003", "a", nonce, hand.Leave))
		require.Empty(t, h.Wait("client 00003", "a", nonce, hand.Leave), "sent twice")
		require.Equal(t, "l"+nonce+"r", h.Wait("ninth", "a", nonce, hand.Register))
		require.Equal(t, "v"+nonce+"r", h.Wait("client 00003", "a", nonce, hand.Register))

		// The registration of a client that is gone is over after a minute.
		h.aged(-time.Minute-time.Second, "client 00005")
		require.Equal(t, "l"+nonce+"r", h.Wait("client 00003", "a", nonce, hand.Register))
		require.Equal(t, "v"+nonce+"r", h.Wait("client 00005", "a", nonce, hand.Register))
		// One that looks is renewed.
		h.aged(-21*time.Second, "client 00001")
		before := h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val()
		h.Wait("client 00002", "a", nonce, hand.Register)
		require.Equal(t, before, h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val(), "that is new enough")
		h.Wait("client 00001", "a", nonce, hand.Register)
		require.NotEqual(t, before, h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val())
		h.aged(-59*time.Second, "client 00001")

		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		for i, e := range append(ears, ninth) {
			want := []string{"a"}
			if i == 5 {
				want = nil
			}
			require.Equal(t, want, e.heard(), e.name)
		}
		require.EqualValues(t, 8, h.counted("awaited"))
	})
}

// aged makes a registration for the job "a" older.
func (h *Hand) aged(d time.Duration, name string) {
	h.T.Helper()
	value := h.RDB.HGet(h.T.Context(), h.Keys.Notes, "wa").Val()
	at := strings.Index(value, name) - 13
	require.Greater(h.T, at, 0)
	since := h.RDB.Time(h.T.Context()).Val().Add(d).UnixMilli()
	value = value[:at] + itoa13(since) + value[at+13:]
	require.NoError(h.T, h.RDB.HSet(h.T.Context(), h.Keys.Notes, "wa", value).Err())
}

func itoa13(ms int64) string {
	digits := []byte("0000000000000")
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] += byte(ms % 10)
		ms /= 10
	}
	return string(digits)
}

// A dead job that is revived lives, and its end is told.
func TestWaitForARevivedJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		me := h.ear("me")
		h.Put("+0", "a")
		nonce := me.waits("a")
		held := h.TakeOne("a")
		h.noted(held)
		require.Len(t, me.heard(), 1)
		require.Equal(t, "o", h.Bury(held))
		require.Equal(t, []string{"a"}, me.heard())
		require.Regexp(t, `^d `, me.outcome("a", nonce))
		require.Regexp(t, `^d `, me.outcome("a", ""))
		require.Equal(t, "d", must(h.TryRevive("a")).Text(2))
		require.Equal(t, "l", h.Wait("me", "a", nonce, hand.Register)[:1])
		require.Equal(t, "l", h.Wait("me", "a", "", hand.Register)[:1])
		held = h.TakeOne("a")
		r, err := h.TryRecall(held, script.CallBytes)
		require.NoError(t, err)
		require.Equal(t, []string{"42", ""}, r.List(3).Texts(), "it goes on with its steps")
		require.Equal(t, "o", h.Ack(held))
		require.Equal(t, []string{"a"}, me.heard())
		require.Regexp(t, `^o `, me.outcome("a", nonce))
		require.Equal(t, []string{"e"}, h.notes())
	})
}

// Between its death and a minute later, a job is revived and ends again. Nobody waits for that, and
// the new outcome is the one that counts.
func TestOutcomeOfARevivedJob(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do      func(h *Hand)
		outcome string // as a pattern
	}{
		"done":            {func(h *Hand) { require.Equal(h.T, "o", h.Ack(h.TakeOne("a"))) }, `o .*`},
		"done and kept":   {func(h *Hand) { acking("acked", 60000, aRun, "")(h.T.(*testing.T), h, h.TakeOne("a")) }, `o \d+:{"output":3.*}out`},
		"cancelled":       {func(h *Hand) { require.Equal(h.T, "r", must(h.TryCancel("a")).Text(2)) }, `c `},
		"enqueued again":  {func(h *Hand) { require.Equal(h.T, "o", h.Again(0, h.TakeOne("a"))) }, `(?s)f .+`},
		"running":         {func(h *Hand) { h.TakeOne("a") }, ``},
		"buried again":    {func(h *Hand) { require.Equal(h.T, "o", h.Bury(h.TakeOne("a"))) }, `d .*`},
		"dead, cancelled": {func(h *Hand) { h.Bury(h.TakeOne("a")); _ = must(h.TryCancel("a")) }, `d .*`},
		"dead, replaced":  {func(h *Hand) { h.Bury(h.TakeOne("a")); _ = must(h.TryEnqueue(false, [2]string{"a", "d+0"})) }, `d .*`},
		"dead, pruned":    {func(h *Hand) { h.Bury(h.TakeOne("a")); _ = must(h.TryPrune(0, time.Hour, 10)) }, `d .*`},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.T = t
				me := h.ear("me")
				h.Put("+0", "a")
				nonce := me.waits("a")
				require.Equal(t, "o", h.Bury(h.TakeOne("a")))
				require.Equal(t, []string{"a"}, me.heard())
				require.Regexp(t, `^d `, me.outcome("a", nonce))
				require.Zero(t, must(h.client().insp.Explain(t.Context(), h.Keys.Topic, "a")).Waiters)
				require.Equal(t, "d", must(h.TryRevive("a")).Text(2))
				require.Zero(t, must(h.client().insp.Explain(t.Context(), h.Keys.Topic, "a")).Waiters)
				test.do(h)
				require.Empty(t, me.heard(), "it does not wait any more")
				require.EqualValues(t, 1, h.counted("awaited"))
				require.Regexp(t, `^(?s)`+test.outcome+`$`, me.outcome("a", nonce))
			})
		})
	}
}

// A job that dies often leaves one mark of it. The mark takes no place from those who wait.
func TestJobThatDiesOften(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for range 3 {
			require.NoError(t, just(h.TryEnqueue(false, [2]string{"a", "d+0"})))
			h.ear("me").waits("a")
			require.Equal(t, "o", h.Bury(h.TakeOne("a")))
			require.Len(t, h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val(), len("21:")+21)
		}
		require.Equal(t, "d", must(h.TryRevive("a")).Text(2))
		for _, name := range named("client", 8) {
			h.ear(name).waits("a")
		}
		require.Equal(t, "v", h.Wait("ninth", "a", "", hand.Register)[:1])
	})
}

// Whoever asks for a job that was done before is told what is kept of it.
func TestWaitForADoneJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		held := h.TakeOne("a")
		acking("acked", 60000, aRun, "")(t, h, held)
		require.Empty(t, h.notes())
		me := h.ear("me")
		require.Equal(t, "o "+aRun, me.outcome("a", ""))
		require.Equal(t, "o "+aRun, me.outcome("a", held.Nonce()))
		require.Equal(t, "p", h.Wait("me", "a", "12345678", hand.Look), "of another incarnation nothing is known")
		h.Put("+0", "a")
		require.Equal(t, "l", h.Wait("me", "a", "", hand.Look)[:1], "the job that has the ID")
		require.Equal(t, "o "+aRun, me.outcome("a", held.Nonce()))
	})
}

// What is sent twice is done once.
func TestEndsSentTwiceAreToldOnce(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for name, e := range endings {
			if e.silent || e.due == "slot" {
				continue
			}
			h := NewHand(t, h.RDB, redistest.Prefix(t), "topic")
			me := h.ear("me")
			_, held := stageEnding(t, h, e)
			nonce := me.waits("a")
			e.do(t, h, held)
			require.Equal(t, []string{"a"}, me.heard(), name)
			before := redistest.Dump(t, h.RDB, h.Prefix())
			_, err := h.Last()
			require.NoError(t, err)
			require.Empty(t, me.heard(), name)
			require.Equal(t, before[h.Keys.Notes], redistest.Dump(t, h.RDB, h.Prefix())[h.Keys.Notes], name)
			require.Regexp(t, `^(?s)`+e.outcome+`$`, me.outcome("a", nonce))
		}
	})
}

// Producers and operators have the rights that a client needs to wait.
func TestWaitNeedsNoOtherRights(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Hand.Put("+0", "dead")
		require.Equal(t, "o", f.Hand.Bury(f.Hand.TakeOne("dead")))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 2 { // they take turns
			_, err := f.Client.Wait(ctx, "topic", "dead")
			require.ErrorIs(t, err, delayq.ErrDead)
		}
	})
}

// All who may read jobs may read flows.
func TestFlowsAreReadWithoutOtherRights(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		flow := delayq.NewFlow("topic", "last", nil).Deadline(time.Hour)
		flow.AddJob("topic", "first", nil)
		_, err := f.Client.Start(t.Context(), flow)
		require.NoError(t, err)
		for range 3 { // they take turns
			info, err := f.Inspector.Flow(t.Context(), "topic", "last")
			require.NoError(t, err)
			require.Len(t, info.Steps, 1)
			info, err = f.Inspector.FlowFrom(t.Context(), "topic", "last", 1)
			require.NoError(t, err)
			require.Empty(t, info.Steps)
		}
	})
}
