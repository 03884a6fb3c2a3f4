package lua_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A topic that is removed leaves no key, whichever it had.
func TestRemoveTopicDeletesEachKey(t *testing.T) {
	keep := []string{"pool", "leases", "done", "results", "schedules", "next", "parcels", "flows", "parts"} // with one of these it is not removed; parts stays
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx, laid := t.Context(), 0
		for _, row := range reflect.VisibleFields(reflect.TypeFor[script.Keys]()) {
			name, kind, _ := strings.Cut(row.Tag.Get("redis"), ",")
			kind, _, _ = strings.Cut(kind, ",")
			if slices.Contains(keep, name) {
				continue
			}
			switch kind {
			case "hash":
				require.NoError(t, h.RDB.HSet(ctx, h.Key(name), "x", "1").Err())
			case "zset":
				require.NoError(t, h.RDB.ZAdd(ctx, h.Key(name), redis.Z{Score: 1, Member: "\x01k0x"}).Err())
			case "list":
				require.NoError(t, h.RDB.RPush(ctx, h.Key(name), "x").Err())
			default:
				continue
			}
			laid++
		}
		require.Greater(t, laid, 25)
		r, err := h.Run(script.RemoveTopic, h.Series.Next())
		require.NoError(t, err)
		require.Equal(t, "removed", r.Text(2))
		left, err := redistest.Census(ctx, h.RDB, h.Prefix()+":*")
		require.NoError(t, err)
		delete(left, h.Keys.Receipt(h.Series.ID))
		require.Empty(t, left)
	})
}
