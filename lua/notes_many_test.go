package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
)

// nobodyAsks makes the entry of the clients that are not registered as old as if they were gone.
func (h *Hand) nobodyAsks() {
	h.T.Helper()
	value := h.RDB.HGet(h.T.Context(), h.Keys.Notes, "wa").Val()
	at := strings.Index(value, "********") + 8
	require.Greater(h.T, at, 8)
	since := h.RDB.Time(h.T.Context()).Val().Add(-time.Minute - time.Second).UnixMilli()
	require.NoError(h.T, h.RDB.HSet(h.T.Context(), h.Keys.Notes, "wa", value[:at]+itoa13(since)+value[at+13:]).Err())
}

// Clients are about to enqueue a job with the same ID, each an incarnation of its own. Whichever is
// stored, its client learns how it has ended: from the 65th on without a message.
func TestManyClientsBeforeTheJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, name := range named("client", 64) {
			head, _ := h.Record("+0", 0)
			require.Equal(t, "p", h.Wait(name, "a", head[:8], hand.Register))
		}
		last := h.ear("last")
		head, tail := h.Record("+0", 0)
		nonce := head[:8]
		require.Equal(t, "p", h.Wait(last.name, "a", nonce, hand.Look), "it has not asked for it")
		require.Equal(t, "P", h.Wait(last.name, "a", nonce, hand.Register))
		size := len(h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val())
		for i := range 10 {
			require.Equal(t, "P", h.Wait(last.name, "a", fmt.Sprintf("%08d", i), hand.Register))
		}
		require.Len(t, h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val(), size, "one entry for all of them")
		require.Empty(t, must(h.TrySend(false, []any{"a", head, tail, "+0"})).Text(2))
		require.Equal(t, "H", h.Wait(last.name, "a", "12345678", hand.Register))
		require.Equal(t, "v"+nonce+"r", h.Wait(last.name, "a", nonce, hand.Register))
		held := h.TakeOne("a")
		require.Zero(t, must(h.client().insp.Explain(t.Context(), h.Keys.Topic, "a")).Waiters)
		require.Equal(t, "o", h.Again(0, held))
		require.Regexp(t, `(?s)^f `, last.outcome("a", nonce))
		held = h.TakeOne("a")
		require.Equal(t, "o", h.Ack(held))
		require.Regexp(t, `^o `, last.outcome("a", held.Nonce()), "of each incarnation until they are all gone")
		require.Empty(t, last.heard())

		// Without them, no outcomes are kept any more.
		h.nobodyAsks()
		h.Put("+0", "a")
		held = h.TakeOne("a")
		require.Equal(t, "o", h.Ack(held))
		require.Empty(t, last.outcome("a", held.Nonce()))
		require.NotContains(t, h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val(), "********")
	})
}

// A ninth client that waits for an incarnation is not registered. It learns how each end of it was,
// of a dead job that is revived too.
func TestNinthWaiterLearnsTheEnd(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		for _, name := range named("client", 8) {
			h.ear(name).waits("a")
		}
		ninth := h.ear("ninth")
		nonce := h.Wait(ninth.name, "a", "", hand.Register)[1:9]
		for _, name := range named("client", 8) {
			require.Empty(t, h.Wait(name, "a", nonce, hand.Leave))
		}
		require.Equal(t, "o", h.Bury(h.TakeOne("a")))
		require.Regexp(t, `^d `, ninth.outcome("a", nonce))
		require.Equal(t, "d", must(h.TryRevive("a")).Text(2))
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		require.Regexp(t, `^o `, ninth.outcome("a", nonce))
		require.Empty(t, ninth.heard())
		waiters := h.RDB.HGet(t.Context(), h.Keys.Notes, "wa").Val()
		require.Equal(t, 1, strings.Count(waiters, ":"), "%q", waiters)
		h.nobodyAsks()
		h.pruneNotes()
		require.Equal(t, []string{"e"}, h.notes())
	})
}

// What a client waits for under an ID takes the places of that incarnation alone.
func TestEightWaitersOfEachIncarnation(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		for i := range 20 { // calls of one client that are to be refused
			require.Equal(t, "h", h.Wait("me", "a", fmt.Sprintf("%08d", i), hand.Register))
		}
		nonce := h.ear("me").waits("a")
		for _, name := range named("client", 7) {
			require.Equal(t, nonce, h.ear(name).waits("a"))
		}
		require.Equal(t, "v", h.Wait("ninth", "a", "", hand.Register)[:1])
	})
}
