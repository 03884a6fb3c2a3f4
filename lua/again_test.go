package lua_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// Of the jobs of one call the first that is due wakes the timers, wherever it is among them.
func TestAgainWakesTheTimersForTheFirst(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		sub := h.RDB.Subscribe(ctx, script.ControlChannel(h.Prefix()))
		defer func() { require.NoError(t, sub.Close()) }()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		for _, whens := range [][]string{{"+300", "+3600000"}, {"+3600000", "+300"}} {
			h.Put("+0", "1", "2")
			h.Renewals = map[string]*settle.Renewal{"1": h.Renewal(whens[0], 0), "2": h.Renewal(whens[1], 0)}
			require.Equal(t, "oo", h.Again(0, h.Take(2, time.Minute)...))
			m, err := sub.ReceiveTimeout(ctx, 10*time.Second)
			require.NoError(t, err, "%v", whens)
			require.IsType(t, &redis.Message{}, m)
			require.Regexp(t, "^wake ", m.(*redis.Message).Payload)
			require.NoError(t, h.RDB.Del(ctx, h.Keys.Bucket, h.Keys.Pool).Err())
		}
	})
}
