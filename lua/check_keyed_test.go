package lua_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// A damaged entry of keyed is found and mended, in whatever state its job is. Afterwards the entry
// is of the job's own key, and the job runs as one of that key.
func TestDamagedPlaceOfAJob(t *testing.T) {
	states := map[string]func(h *Hand){
		"scheduled": func(h *Hand) {
			head, tail := h.keyedRecord("+3600000", "k", 0)
			_, err := h.TrySend(false, []any{"x", head, tail, "+3600000"})
			require.NoError(h.T, err)
		},
		"ready":   func(h *Hand) { h.putKeyed("k", "x") },
		"running": func(h *Hand) { h.putKeyed("k", "x"); h.TakeOne("x") },
		"dead": func(h *Hand) {
			h.putKeyed("k", "x")
			require.Equal(h.T, "o", h.Bury(h.TakeOne("x")))
		},
	}
	damages := map[string]func(place string) string{
		"malformed":         func(string) string { return "x" },
		"cut":               func(place string) string { return place[:len(place)-1] },
		"of a former job":   func(place string) string { return place[:len(place)-8] + "ABCDEFGH" },
		"of another key":    func(place string) string { return place[:1] + "j" + place[2:] },
		"of a longer key":   func(place string) string { return "\x02kk" + place[2:] },
		"of the empty key":  func(place string) string { return "\x00" + place[2:] },
		"beyond its length": func(place string) string { return "\xff" + place[1:] },
	}
	for state, bring := range states {
		for damage, spoil := range damages {
			t.Run(state+", "+damage, func(t *testing.T) {
				eachHand(t, func(t *testing.T, h *Hand) {
					ctx := t.Context()
					h.setLimits(delayq.Limits{RunningPerKey: 1})
					bring(h)
					place := h.RDB.HGet(ctx, h.Keys.Keyed, "x").Val()
					require.Equal(t, "\x01k", place[:2])
					require.NoError(t, h.RDB.HSet(ctx, h.Keys.Keyed, "x", spoil(place)).Err())
					found, _ := h.look(false)
					require.NotEmpty(t, found, "%q", spoil(place))
					for range 3 { // one repair can find what another has left for it
						h.look(true)
					}
					found, _ = h.look(false)
					require.Empty(t, found)
					if mended := h.RDB.HGet(ctx, h.Keys.Keyed, "x").Val(); state != "dead" || mended != "" {
						require.Equal(t, "\x01k", mended[:2], "%q", mended)
						require.Equal(t, place[len(place)-8:], mended[len(mended)-8:])
					}
					switch state {
					case "scheduled":
						require.NoError(t, h.RDB.ZIncrBy(ctx, h.Keys.Bucket, -7_200_000, "x").Err())
						h.Promote()
					case "running":
						require.NoError(t, h.RDB.ZIncrBy(ctx, h.Keys.Leases, -7_200_000, "x").Err())
						h.RDB.ZRem(ctx, h.Keys.Bucket, "x")
						h.Promote()
						require.NoError(t, h.RDB.ZIncrBy(ctx, h.Keys.Bucket, -float64(2*time.Hour.Milliseconds()), "x").Err())
						h.Promote()
					case "dead":
						_, err := h.TryRevive("x")
						require.NoError(t, err)
					}
					got := h.takeAll()
					require.Contains(t, got, "x", "it runs")
					h.ended("k", got["x"])
					require.Zero(t, h.RDB.Exists(ctx, h.Keys.Keyed, h.Keys.Lane, h.Keys.Pool).Val(), "nothing is left")
				})
			})
		}
	}
}
