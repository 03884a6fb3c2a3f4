package delayq

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// What a call asks of Redis does not depend on how many jobs there are in each state: the same
// commands, as many times. Each of them is O(log n) or O(its arguments), see TestBoundedWork. (F12,
// G2, G3, G8)
func TestCostOfACallDoesNotGrow(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	cost := map[int]map[string]map[string]string{} // backlog, call, command → times
	for _, backlog := range []int{20, 20_000} {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		client := h.client()
		for range 2 { // in each role: the connections are there
			_, err := client.Get(t.Context(), "topic", "none")
			require.ErrorIs(t, err, ErrNotFound)
		}
		h.put("+0", numbered("dead", backlog)...)
		eachOf(t, backlog, 500, func(n int) { require.NotContains(t, h.Bury(h.Take(n, time.Hour)...), "l") })
		h.put("+0", numbered("leased", backlog)...)
		eachOf(t, backlog, 500, func(n int) { require.Len(t, h.Take(n, time.Hour), n) })
		h.put("+3600000", numbered("later", backlog)...)
		h.put("+0", "first")
		h.put("+0", numbered("ready", backlog)...)

		ctx := t.Context()
		var held []Held
		id := func(state string, i int) string { return fmt.Sprintf("%s%05d", state, i) }
		cost[backlog] = map[string]map[string]string{}
		for _, c := range []struct {
			name string
			call func(i int) error
		}{
			{"enqueue now", func(i int) error { _, err := h.tryEnqueue(false, [2]string{id("now", i), "+0"}); return err }},
			{"enqueue later", func(i int) error { _, err := h.tryEnqueue(false, [2]string{id("soon", i), "+50000"}); return err }},
			{"replace", func(i int) error { _, err := h.tryEnqueue(true, [2]string{id("later", i), "+50000"}); return err }},
			{"promote", func(int) error { _, err := h.tryPromote(1000, 1); return err }},
			{"take", func(int) error { held = append(held, h.Take(4, time.Hour)...); return nil }},
			{"extend", func(i int) error { _, err := h.tryExtend(held[i].fence()+1, held[i]); return err }},
			{"ack", func(i int) error { _, err := h.settle(held[2+i:3+i], row{verb: verbAck}); return err }},
			{"retry", func(i int) error { _, err := h.settle(held[4+i:5+i], row{verb: verbRetry, entry: byHand}); return err }},
			{"bury", func(i int) error { _, err := h.settle(held[6+i:7+i], row{verb: verbBury, entry: byHand}); return err }},
			{"cancel scheduled", func(i int) error { _, err := h.tryCancel(id("later", 2+i)); return err }},
			{"cancel ready", func(i int) error { _, err := h.tryCancel(id("ready", 15+i)); return err }},
			{"cancel running", func(i int) error { _, err := h.tryCancel(id("leased", i)); return err }},
			{"reschedule", func(i int) error { _, err := h.tryReschedule(id("later", 4+i), "+5000000"); return err }},
			{"revive", func(i int) error { _, err := h.tryRevive(id("dead", 10+i)); return err }},
			{"prune", func(i int) error { _, err := h.tryPrune(backlog-3-i, time.Hour, 500); return err }},
			{"get", func(int) error { _, err := client.Get(ctx, "topic", id("later", 6)); return err }},
			{"inspect", func(int) error { _, err := client.Inspect(ctx, "topic"); return err }},
			{"list", func(int) error {
				_, err := client.List(ctx, "topic", ListQuery{State: StateScheduled, Offset: 5, Limit: 10})
				return err
			}},
		} {
			require.NoError(t, c.call(0), c.name) // so that Redis knows the script
			require.NoError(t, rdb.ConfigResetStat(ctx).Err())
			require.NoError(t, c.call(1), c.name)
			cost[backlog][c.name] = commandsOf(t, rdb)
		}
	}
	require.Equal(t, "1", cost[20]["ack"]["zrem"], "the test looks for the wrong thing: %v", cost[20]["ack"])
	require.Equal(t, cost[20], cost[20_000])
}

// eachOf calls f with parts of total, the last one smaller.
func eachOf(t *testing.T, total, part int, f func(n int)) {
	t.Helper()
	for ; total > 0; total -= part {
		f(min(total, part))
	}
}

// commandsOf tells how often each command was called since the statistics were reset.
func commandsOf(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	times := map[string]string{}
	for _, m := range regexp.MustCompile(`cmdstat_(\S+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		if m[1] != "config|resetstat" && m[1] != "info" {
			times[m[1]] = m[2]
		}
	}
	return times
}

// Every script gets through more jobs than unpack takes values, in the portions that clients and
// servers ask for. (G4, G12)
func TestMoreJobsThanUnpackTakes(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Shared(t)
	for _, n := range []int{7_999, 8_000, redistest.Size(20_000)} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := NewHand(t, rdb, redistest.Prefix(t), "topic")
			jobs := make([]NewJob, n)
			for i := range jobs {
				jobs[i] = NewJob{Topic: "topic", ID: fmt.Sprint(i), Options: []JobOption{ProcessIn(time.Millisecond), Replace()}}
			}
			for range 2 { // stored, replaced
				_, err := h.client().EnqueueBatch(t.Context(), jobs)
				require.NoError(t, err)
			}
			later := func() { // by Redis's clock
				now := rdb.Time(t.Context()).Val()
				require.Eventually(t, func() bool { return rdb.Time(t.Context()).Val().Sub(now) > 3*time.Millisecond }, time.Minute, time.Millisecond)
			}
			later()
			moved, _ := h.Promote()
			require.Equal(t, n, moved)
			eachOf(t, n, settleLimit, func(k int) { require.Len(t, h.Take(k, 0), k) })
			later()
			_, reclaimed := h.Promote()
			require.Equal(t, n, reclaimed)
			eachOf(t, n, settleLimit, func(k int) { require.NotContains(t, h.Return(h.Take(k, time.Hour)...), "l") })
			eachOf(t, n, settleLimit, func(k int) { require.NotContains(t, h.Snooze(0, h.Take(k, time.Hour)...), "l") })
			later()
			h.Promote()
			eachOf(t, n, settleLimit, func(k int) { require.NotContains(t, h.Retry(0, h.Take(k, time.Hour)...), "l") })
			later()
			h.Promote()
			eachOf(t, n, settleLimit, func(k int) { require.NotContains(t, h.Bury(h.Take(k, time.Hour)...), "l") })

			// All of them are too old and too many: one more is buried like any other.
			h.put("+0", "one more")
			require.Equal(t, "o", h.Bury(h.TakeOne("one more")))
			require.Equal(t, StateDead, h.info("one more").State)
			eachOf(t, n+1, pruneLimit, func(k int) {
				r, err := h.tryPrune(0, time.Hour, pruneLimit)
				require.NoError(t, err)
				require.EqualValues(t, k, r.number(2))
			})
			require.Equal(t, []string{h.keys.stats}, keysOf(Dump(t, rdb, h.prefix())), "nothing else is left")
		})
	}
}

// Ten thousand jobs that fail together do not come back together: their delays are spread evenly
// over the fifth that is added. The bound of the χ² of 20 bins is exceeded by chance once in some
// 10^9 runs. (G10)
func TestRetriesOfOneMomentSpread(t *testing.T) {
	t.Parallel()
	const draws, bins = 10_000, 20
	for _, attempt := range []int{1, 5, 12, 40} {
		step := backoff(attempt, defaultRun.BackoffMin, defaultRun.BackoffMin<<11) // only its size
		base := min(defaultRun.BackoffMin<<min(attempt-1, 11), defaultRun.BackoffMax)
		require.GreaterOrEqual(t, step.Milliseconds(), base)
		var count [bins]float64
		for range draws {
			extra := backoff(attempt, defaultRun.BackoffMin, defaultRun.BackoffMax).Milliseconds() - base
			count[min(extra*bins/(base/5+1), bins-1)]++
		}
		chi := 0.0
		for _, n := range count {
			chi += (n - draws/bins) * (n - draws/bins) / (draws / bins)
		}
		require.Less(t, chi, 85.0, "attempt %d: %v", attempt, count)
	}
}
