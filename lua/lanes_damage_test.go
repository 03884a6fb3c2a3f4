package lua_test

import (
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/stretchr/testify/require"
)

// What is kept of keys stops no job of a topic that uses none, if it is of a wrong type: ready jobs
// and due ones run, and a server that waits is not kept busy.
func TestWrongTypeOfKeysStopsNoPlainJob(t *testing.T) {
	for _, name := range []string{"held", "turn", "parked", "keyed", "lane", "rules", "holders", "rates", "blockers"} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.Put("+0", "ready", "lapsed")
				h.Put("+3600000", "due")
				require.Len(t, h.Take(2, 0), 2)
				h.Hasten(2 * time.Hour)
				h.Deface(name)
				h.Promote()
				h.Put("+0", "new")
				ran := map[string]bool{}
				for range 3 {
					for _, one := range h.Take(10, time.Minute) {
						ran[one.ID] = true
						require.Equal(t, "o", h.Ack(one))
					}
				}
				require.Equal(t, map[string]bool{"ready": true, "lapsed": true, "due": true, "new": true}, ran)
				r, err := h.TryPromote(1000, 1)
				require.NoError(t, err)
				require.NotZero(t, r.Number(4), "nothing is due")
			})
		})
	}
}

// A damaged end of a pause does not end takes with an error: the topic stays paused until somebody
// resumes it.
func TestDamagedEndOfAPause(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		_, err := h.TryPause("pause", "me", time.Hour)
		require.NoError(t, err)
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, "until", "damaged").Err())
		r, err := h.TryTake("", 1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []any{"paused", int64(0)}, []any{r.Status(), r.Number(2)})
		_, err = h.TryPause("resume all", "me", 0)
		require.NoError(t, err)
		h.TakeOne("a")
	})
}

// More than 1,000 jobs of a key can run if limits are set late. Those behind the first 1,000 count
// too, whatever has become of the first ones.
func TestCensusOfManyRunningJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		h.putKeyed("a", hand.Numbered("runs ", 200)...)
		for got := 1; got > 0; { // as if they had been taken before there was a limit
			h.setLimits(delayq.Limits{})
			got = len(h.Take(200, time.Hour))
		}
		h.setLimits(delayq.Limits{RunningPerKey: 1})
		require.EqualValues(t, 200, h.RDB.ZCard(ctx, h.Keys.Holders).Val())
		var gone []string
		for _, id := range named("gone", 1000) { // they sort before the others
			gone = append(gone, "\x01a0"+id)
		}
		h.endless(h.Keys.Holders, 0, gone)
		h.putKeyed("a", "next")
		for i := range 3 {
			r, err := h.TryTake("", 5, time.Hour)
			require.NoError(t, err)
			if r.Status() == "ok" {
				require.Empty(t, r.List(3), "take %d: 200 jobs run, and the limit is 1", i)
			}
			_, err = h.tryUnpark()
			require.NoError(t, err)
		}
	})
}
