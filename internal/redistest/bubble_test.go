package redistest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
)

func TestBubbleIsOnFakeTime(t *testing.T) {
	wall := time.Now()
	Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		begin := time.Now()
		err := rdb.BLMove(t.Context(), "ready", "handoff", "LEFT", "RIGHT", 90*time.Minute).Err()
		require.ErrorIs(t, err, redis.Nil)
		require.Equal(t, 90*time.Minute, time.Since(begin))
		at, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		require.True(t, at.Equal(time.Now()), at)
	})
	require.Less(t, time.Since(wall), 10*time.Second)
}

func TestBubbleHasPubSub(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		ctx := t.Context()
		sub := rdb.Subscribe(ctx, "control")
		defer func() { require.NoError(t, sub.Close()) }()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			time.Sleep(time.Hour)
			if err := rdb.Publish(ctx, "control", "wake").Err(); err != nil {
				t.Error(err)
			}
		})
		begin := time.Now()
		msg := <-sub.Channel()
		require.Equal(t, "wake", msg.Payload)
		require.Equal(t, time.Hour, time.Since(begin))
	})
}

func TestBubbleClosesAfterTheCleanups(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		t.Cleanup(func() {
			if err := rdb.Ping(context.WithoutCancel(t.Context())).Err(); err != nil {
				t.Error(err)
			}
		})
	})
}

// leakEnv names the kind of leak of the test below.
const leakEnv = "REDISTEST_LEAK"

func TestBubbleFailsOnALeak(t *testing.T) {
	leaks := map[string]func(rdb *redis.Client){
		"blocked": func(*redis.Client) { select {} },
		"ticking": func(*redis.Client) {
			for range time.Tick(time.Second) {
			}
		},
		"polling": func(rdb *redis.Client) {
			for {
				rdb.Ping(context.Background()) // the context of this test belongs to no bubble
				time.Sleep(time.Second)
			}
		},
	}
	if leak := leaks[os.Getenv(leakEnv)]; leak != nil {
		Bubble(t, func(_ *testing.T, _ *embedded.Redis, rdb *redis.Client) {
			go leak(rdb)
		})
		return
	}
	for name := range leaks {
		require.Contains(t, again(t, leakEnv+"="+name), "blocked goroutines remain", name)
	}
}
