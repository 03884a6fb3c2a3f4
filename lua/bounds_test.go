package lua_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
	"github.com/delayq/delayq/internal/settle"
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
			require.ErrorIs(t, err, delayq.ErrNotFound)
		}
		h.Put("+0", hand.Numbered("dead", backlog)...)
		eachOf(t, backlog, 500, func(n int) { require.NotContains(t, h.Bury(h.Take(n, time.Hour)...), "l") })
		h.Put("+0", hand.Numbered("leased", backlog)...)
		eachOf(t, backlog, 500, func(n int) { require.Len(t, h.Take(n, time.Hour), n) })
		h.Put("+3600000", hand.Numbered("later", backlog)...)
		h.entomb(hand.Numbered("closed", 100)...)
		h.Put("+0", "over0", "over1", "over2", "over3")
		over := h.Take(4, time.Hour)
		store(t, h, "aside", 10, upTo(backlog)...)
		var parcels script.Reply
		h.Put("+0", "first")
		h.Put("+0", hand.Numbered("ready", backlog)...)

		ctx := t.Context()
		var held []hand.Held
		id := func(state string, i int) string { return fmt.Sprintf("%s%05d", state, i) }
		cost[backlog] = map[string]map[string]string{}
		for _, c := range []struct {
			name string
			call func(i int) error
		}{
			{"enqueue now", func(i int) error { _, err := h.TryEnqueue(false, [2]string{id("now", i), "+0"}); return err }},
			{"enqueue later", func(i int) error { _, err := h.TryEnqueue(false, [2]string{id("soon", i), "+50000"}); return err }},
			{"enqueue_now", func(i int) error { _, err := h.TryEnqueueLone(id("now one", i), "+0"); return err }},
			{"enqueue_later", func(i int) error { _, err := h.TryEnqueueLone(id("soon one", i), "+50000"); return err }},
			{"replace", func(i int) error { _, err := h.TryEnqueue(true, [2]string{id("later", i), "+50000"}); return err }},
			{"promote", func(int) error { _, err := h.TryPromote(1000, 1); return err }},
			{"take", func(int) error { held = append(held, h.Take(4, time.Hour)...); return nil }},
			{"extend", func(i int) error { _, err := h.TryExtend(held[i].LeaseEnd()+1, held[i]); return err }},
			{"ack", func(i int) error { _, err := h.Settle(held[2+i:3+i], settle.Row{Verb: settle.Ack}); return err }},
			{"hand_over", func(i int) error {
				rows := settle.Row{Verb: settle.Ack, Parcels: h.Parcels("other", id("a", i), id("b", i))}
				_, err := h.Settle(over[i:i+1], rows)
				return err
			}},
			{"hand_over_again", func(i int) error {
				rows := settle.Row{Verb: settle.Again, Parcels: h.Parcels("third", id("a", i), id("b", i))}
				_, err := h.Settle(over[2+i:3+i], rows)
				return err
			}},
			{"parcel_plan", func(int) (err error) { parcels, err = h.TryPlan("other", "tag", "", 0); return err }},
			{"parcel_plan of all", func(int) error { _, err := h.TryPlan("", "", "", 0); return err }},
			{"parcel_done", func(int) error { _, err := h.TryDone("other", parcels, "{}"); return err }},
			{"retry", func(i int) error {
				_, err := h.Settle(held[4+i:5+i], settle.Row{Verb: settle.Retry, Failure: hand.Failed})
				return err
			}},
			{"bury", func(i int) error {
				_, err := h.Settle(held[6+i:7+i], settle.Row{Verb: settle.Bury, Failure: hand.Failed})
				return err
			}},
			{"cancel scheduled", func(i int) error { _, err := h.TryCancel(id("later", 2+i)); return err }},
			{"cancel ready", func(i int) error { _, err := h.TryCancel(id("ready", 15+i)); return err }},
			{"debounce scheduled", func(i int) error {
				_, err := h.TryEnqueue(false, [2]string{id("later", 14+i), "b+50000/100000"})
				return err
			}},
			{"debounce ready", func(i int) error {
				_, err := h.TryEnqueue(false, [2]string{id("ready", 10+i), "b+50000/100000"})
				return err
			}},
			{"debounce running", func(int) error {
				_, err := h.TryEnqueue(false, [2]string{id("leased", 5), "b+50000/100000"})
				return err
			}},
			{"enqueue unique", func(i int) error {
				_, err := h.TryEnqueue(false, [2]string{id("u", i), "+50000!1000/10000"})
				return err
			}},
			{"enqueue closed", func(int) error { _, err := h.TryEnqueue(false, [2]string{"closed00001", "+0"}); return err }},
			{"cancel and close", func(i int) error { _, err := h.TryCancelKnown(id("ready", 12+i), "!1000/10000"); return err }},
			{"cancel running", func(i int) error { _, err := h.TryCancel(id("leased", i)); return err }},
			{"reschedule", func(i int) error { _, err := h.TryReschedule(id("later", 4+i), "+5000000"); return err }},
			{"revive", func(i int) error { _, err := h.TryRevive(id("dead", 10+i)); return err }},
			{"bury_waiting", func(i int) error { _, err := h.TryBury(id("later", 8+i)); return err }},
			{"bury_waiting ready", func(i int) error { _, err := h.TryBury(id("ready", 17+i)); return err }},
			{"prune", func(i int) error { _, err := h.TryPrune(backlog-3-i, time.Hour, 500); return err }},
			{"get", func(int) error { _, err := client.Get(ctx, "topic", id("later", 6)); return err }},
			{"inspect", func(int) error { _, err := client.insp.Stats(ctx, "topic"); return err }},
			{"explain scheduled", func(int) error { _, err := client.insp.Explain(ctx, "topic", id("later", 6)); return err }},
			{"explain ready", func(int) error { _, err := client.insp.Explain(ctx, "topic", id("ready", 19)); return err }},
			{"explain none", func(int) error { _, err := client.insp.Explain(ctx, "topic", "none"); return err }},
			{"page of scheduled", nextPage(ctx, client, delayq.StateScheduled)},
			{"page of ready", nextPage(ctx, client, delayq.StateReady)},
			{"page of dead", nextPage(ctx, client, delayq.StateDead)},
		} {
			require.NoError(t, c.call(0), c.name) // so that Redis knows the script
			require.NoError(t, rdb.ConfigResetStat(ctx).Err())
			require.NoError(t, c.call(1), c.name)
			cost[backlog][c.name] = commandsOf(t, rdb)
		}
	}
	require.Equal(t, "1", cost[20]["ack"]["zrem"], "the test looks for the wrong thing: %v", cost[20]["ack"])
	for n := range cost[20] {
		require.Equal(t, cost[20][n], cost[20_000][n], n)
	}
	require.Equal(t, cost[20], cost[20_000])
}

// nextPage reads pages one after the other, each from the place where the last one ends.
func nextPage(ctx context.Context, client *client, state delayq.State) func(int) error {
	q := delayq.Query{Topic: "topic", State: state, Limit: 5}
	return func(int) error {
		page, err := client.insp.Jobs(ctx, q)
		if err == nil {
			q.Cursor = page.Next
		}
		return err
	}
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
		command, _, _ := strings.Cut(m[1], "|")
		if !slices.Contains([]string{"config", "info", "hello", "auth", "select", "client"}, command) { // of the test, and of a new connection
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
			jobs := make([]delayq.NewJob, n)
			for i := range jobs {
				jobs[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(i), Options: []delayq.JobOption{delayq.ProcessIn(time.Millisecond), delayq.Replace()}}
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
			eachOf(t, n, settle.Limit, func(k int) { require.Len(t, h.Take(k, 0), k) })
			later()
			_, reclaimed := h.Promote()
			require.Equal(t, n, reclaimed)
			eachOf(t, n, settle.Limit, func(k int) { require.NotContains(t, h.Return(h.Take(k, time.Hour)...), "l") })
			eachOf(t, n, settle.Limit, func(k int) { require.NotContains(t, h.Snooze(0, h.Take(k, time.Hour)...), "l") })
			later()
			h.Promote()
			eachOf(t, n, settle.Limit, func(k int) { require.NotContains(t, h.Retry(0, h.Take(k, time.Hour)...), "l") })
			later()
			h.Promote()
			eachOf(t, n, settle.Limit, func(k int) { require.NotContains(t, h.Bury(h.Take(k, time.Hour)...), "l") })

			// All of them are too old and too many: one more is buried like any other.
			h.Put("+0", "one more")
			require.Equal(t, "o", h.Bury(h.TakeOne("one more")))
			require.Equal(t, delayq.StateDead, h.info("one more").State)
			eachOf(t, n+1, serve.PruneLimit, func(k int) {
				r, err := h.TryPrune(0, time.Hour, serve.PruneLimit)
				require.NoError(t, err)
				require.EqualValues(t, k, r.Number(2))
			})
			require.Equal(t, []string{h.Keys.Stats}, keysOf(redistest.Dump(t, rdb, h.Prefix())), "nothing else is left")
		})
	}
}

// largest is what the topic has noted of its largest record, "" for nothing, beside the largest
// that there is.
func (h *Hand) largest() (noted string, there int) {
	h.T.Helper()
	noted = h.RDB.HGet(h.T.Context(), h.Keys.Sizes, "largest").Val()
	for _, record := range h.RDB.HGetAll(h.T.Context(), h.Keys.Pool).Val() {
		there = max(there, len(record))
	}
	return noted, there
}

// requireNoted holds what is noted to the records that there are.
func (h *Hand) requireNoted() {
	h.T.Helper()
	noted, there := h.largest()
	require.Greater(h.T, there, 2000)
	require.Equal(h.T, strconv.Itoa(there), noted)
}

// Whatever stores a record notes how large the largest one is, and only if it is large.
func TestSizesOfRecordsAreNoted(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx, c := t.Context(), h.client()
		enqueue := func(id string, payload int, opts ...delayq.JobOption) {
			t.Helper()
			_, err := c.Enqueue(ctx, "topic", id, make([]byte, payload), opts...)
			require.NoError(t, err)
		}
		enqueue("small", 1900)
		require.False(t, h.RDB.Exists(ctx, h.Keys.Sizes).Val() == 1, "nothing is noted of small ones")
		enqueue("a", 3000)
		h.requireNoted()
		enqueue("b", 2500, delayq.ProcessIn(time.Hour))
		h.requireNoted()
		enqueue("b", 5000, delayq.Replace())
		h.requireNoted()
		enqueue("b", 6000, delayq.Replace(), delayq.ProcessIn(time.Hour))
		h.requireNoted()
		_, err := c.EnqueueBatch(ctx, []delayq.NewJob{
			{Topic: "topic", ID: "1"}, {Topic: "topic", ID: "2", Payload: make([]byte, 9000)}, {Topic: "topic", ID: "3"},
		})
		require.NoError(t, err)
		h.requireNoted()
		held := h.TakeOne("small")
		h.Renewals = map[string]*settle.Renewal{}
		for id, when := range map[string]string{"small": "+0", "b": "+1000"} {
			head, tail, err := record.Encode(record.NewNonce(), &record.Options{Retry: record.NotSet}, make([]byte, 9500+10*len(id)))
			require.NoError(t, err)
			h.Renewals[id] = &settle.Renewal{When: when, Head: head, Tail: tail}
		}
		require.Equal(t, "o", h.Again(0, held))
		h.requireNoted()
		require.NoError(t, c.Schedule(ctx, "topic", "s", delayq.Every(10*365*24*time.Hour), make([]byte, 10_000)))
		_, err = c.Trigger(ctx, "topic", "s")
		require.NoError(t, err)
		h.requireNoted()
	})
}

// The note goes when the topic is empty, and not before.
func TestSizesGoWithTheLastRecord(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		_, err := h.client().Enqueue(t.Context(), "topic", "a", make([]byte, 3000))
		require.NoError(t, err)
		held := h.TakeOne("a")
		_, err = h.TryPrune(9, time.Hour, 500)
		require.NoError(t, err)
		h.requireNoted()
		require.Equal(t, "o", h.Ack(held))
		_, err = h.TryPrune(9, time.Hour, 500)
		require.NoError(t, err)
		require.Equal(t, []string{h.Keys.Stats}, keysOf(redistest.Dump(t, h.RDB, h.Prefix())))
	})
}

// A check notes the size again if the note was lost, and otherwise leaves it alone: it may be that
// of a record that is gone.
func TestCheckNotesTheLargestRecord(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		c := h.client()
		_, err := c.Enqueue(t.Context(), "topic", "a", make([]byte, 3000))
		require.NoError(t, err)
		h.Put("+0", "b")
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Sizes).Err())
		report, err := c.insp.Check(t.Context(), "topic")
		require.NoError(t, err)
		require.Empty(t, report.Findings)
		require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Sizes).Val(), "it was only to look")
		for range 2 {
			_, err = c.Repair(t.Context(), "topic")
			require.NoError(t, err)
			h.requireNoted()
		}
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		before, _ := h.largest()
		_, err = c.Repair(t.Context(), "topic")
		require.NoError(t, err)
		after, _ := h.largest()
		require.Equal(t, before, after)
	})
}

// The note decides nothing about a job.
func TestSizesOfAWrongTypeLoseNoJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Deface("sizes")
		job, err := h.client().Enqueue(t.Context(), "topic", "a", make([]byte, 3000))
		require.NoError(t, err)
		require.Equal(t, job.Nonce(), h.info("a").Nonce())
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
	})
}

// Looking for duplicates reads no payloads but where all of them together are small, or as long as
// those of the call.
func TestDuplicatesAreNotRead(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	rdb := rs.Client(t)
	for _, s := range script.All {
		require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(s.Text)).Err())
	}
	client := newClient(rdb, script.DefaultPrefix)
	enqueue := func(jobs, payload int, opts ...delayq.JobOption) {
		list := make([]delayq.NewJob, jobs)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(i), Payload: make([]byte, payload), Options: opts}
		}
		_, _ = client.EnqueueBatch(t.Context(), list) // most are duplicates
	}
	reads := func(enqueue func()) (hmget, hget int) {
		seen := watchCommands(t, rdb, rs.Addr())
		enqueue()
		for _, command := range seen() {
			switch command.name {
			case "hmget":
				hmget++
			case "hget":
				hget++
			}
		}
		return hmget, hget
	}
	type calls struct{ hmget, hget int }
	as := func(hmget, hget int) calls { return calls{hmget, hget} }
	enqueue(8, 100)
	require.Equal(t, calls{1, 1}, as(reads(func() { enqueue(8, 0) })), "small ones in one go")
	require.Equal(t, calls{0, 0}, as(reads(func() { enqueue(3, 0) })), "few")
	enqueue(8, 200_000, delayq.Replace())
	for _, opts := range [][]delayq.JobOption{nil, {delayq.Replace()}} {
		require.Equal(t, calls{0, 1}, as(reads(func() { enqueue(8, 0, opts...) })), "only their number")
		require.Equal(t, calls{0, 0}, as(reads(func() { enqueue(1, 9, opts...) })))
		enqueue(8, 200_000, delayq.Replace())
		hmget, hget := reads(func() { enqueue(8, 200_000) })
		require.Equal(t, 0, hmget)
		require.GreaterOrEqual(t, hget, 8, "as long as what was sent")
	}
}

// A call whose receipt is lost finds its own records, however it looks for them.
func TestEnqueueFindsItsOwnRecords(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, jobs := range []int{1, 3, 4, 9} {
			for _, payload := range []int{0, 300_000} {
				for _, replace := range []bool{false, true} {
					var args []any
					for i := range jobs {
						head, tail, err := record.Encode(record.Nonce{byte(i), byte(jobs)}, &record.Options{Retry: record.NotSet}, make([]byte, payload))
						require.NoError(t, err)
						args = append(args, fmt.Sprint(jobs, replace, payload, i), head, tail, "+0")
					}
					_, err := h.TrySend(replace, args)
					require.NoError(t, err)
					before := redistest.Dump(t, h.RDB, h.Prefix())
					r, err := NewHand(t, h.RDB, h.Prefix(), "topic").TrySend(replace, args)
					require.NoError(t, err)
					require.Empty(t, r.Text(2), "all are stored")
					require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
				}
			}
		}
	})
}

// A job that was cut off backs off for 2 s after its second attempt, twice as long after each
// further one, and never for more than 64 s. Jobs of one call get up to a fifth more.
func TestBackoffOfLostLeasesIsCapped(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		for finished, seconds := range map[int]int64{1: 2, 2: 4, 5: 32, 6: 64, 7: 64, 8: 64, 50: 64} {
			ids := hand.Numbered(fmt.Sprint("after-", finished, "-"), 20)
			h.Put("+0", ids...)
			require.Len(t, h.Take(len(ids), 0), len(ids))
			for _, id := range ids {
				require.NoError(t, h.RDB.HSet(ctx, h.Keys.Attempts, id, finished).Err())
			}
			r, err := h.TryPromote(1000, 0)
			require.NoError(t, err)
			require.EqualValues(t, len(ids), r.Number(3))
			var delays []int64
			for _, id := range ids {
				due, err := h.RDB.ZScore(ctx, h.Keys.Bucket, id).Result()
				require.NoError(t, err)
				delays = append(delays, int64(due)-r.Now())
			}
			require.Equal(t, seconds*1000, slices.Min(delays), "after %d attempts", finished)
			require.LessOrEqual(t, slices.Max(delays), seconds*1200, "after %d attempts", finished)
			require.NoError(t, h.RDB.Del(ctx, h.Keys.Bucket).Err())
		}
	})
}

// A lease whose record is gone is dropped, which is counted, and is not a job that was reclaimed.
func TestPromoteCountsWhatItDrops(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.Put("+0", "gone", "gone too", "here")
		require.Len(t, h.Take(3, 0), 3)
		require.NoError(t, h.RDB.HDel(ctx, h.Keys.Pool, "gone", "gone too").Err())
		_, reclaimed := h.Promote()
		require.Equal(t, 1, reclaimed)
		require.Equal(t, "2", h.RDB.HGet(ctx, h.Keys.Stats, "dropped").Val())
		require.Equal(t, "1", h.RDB.HGet(ctx, h.Keys.Stats, "reclaimed").Val())
		require.Empty(t, h.Traces("gone"))
		h.TakeOne("here")
	})
}

// A job that is on its way to a server, between ready and a lease, has a place.
func TestPruneCountsTheHandoff(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		missing := func() int64 {
			t.Helper()
			r, err := h.TryPrune(10, time.Hour, 500)
			require.NoError(t, err)
			return r.Number(4)
		}
		h.Put("+0", "a")
		require.NoError(t, h.RDB.LMove(ctx, h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err())
		require.Zero(t, missing())
		require.NoError(t, h.RDB.Del(ctx, h.Keys.Handoff).Err())
		require.EqualValues(t, 1, missing())
	})
}

// A job that expires in the very millisecond in which it is due could never run. In calls that say
// both as delays, or one as a delay, only the script can tell.
func TestExpiryAtTheVeryDueTimeIsRefused(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for words, letters := range map[string]string{"+5 +5": "x", "+5 +6": "", "+5 +4": "x", "+0 +0": "x", "+0 +1": ""} {
			due, _, _ := strings.Cut(words, " ")
			head, tail := h.Record(due, 0)
			r, err := h.TrySend(false, []any{words, head, tail, words})
			require.NoError(t, err)
			require.Equal(t, letters, r.Text(2), words)
			require.Equal(t, letters == "", h.RDB.HExists(t.Context(), h.Keys.Pool, words).Val(), words)
		}
	})
}

// A job that was ready, and is replaced by one that is due later or has a key, leaves no entry in
// ready.
func TestReplaceForElsewhereLeavesNothingInReady(t *testing.T) {
	for _, c := range []struct {
		name   string
		opt    delayq.JobOption
		traces []string
	}{
		{"later", delayq.ProcessIn(time.Hour), []string{"bucket", "pool"}},
		{"with a key", delayq.Key("k"), []string{"keyed", "pool"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.Put("+0", "before", "x", "after")
				_, err := h.client().Enqueue(t.Context(), "topic", "x", nil, delayq.Replace(), c.opt)
				require.NoError(t, err)
				left := slices.DeleteFunc(h.List(h.Keys.Ready), func(id string) bool { return id == "" }) // wake-ups
				require.Equal(t, []string{"before", "after"}, left)
				require.Equal(t, c.traces, h.Traces("x"))
			})
		})
	}
}

// A lease that runs out leaves the tally of its job as it was: the attempts that do not count any
// more, how often it was snoozed, and that it was revived.
func TestLapsedLeaseKeepsTheTally(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.Put("+0", "x")
		require.Len(t, h.Take(1, 0), 1)
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Attempts, "x", 3).Err())
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Moved, "x", "1750000000000 revive 2 5 1").Err())
		_, reclaimed := h.Promote()
		require.Equal(t, 1, reclaimed)
		require.Regexp(t, `^\d{13} retry 2 5 1$`, h.RDB.HGet(ctx, h.Keys.Moved, "x").Val())
	})
}

// A page of running jobs is of jobs: the anchor of the zset is none.
func TestPageOfRunningJobsLeavesTheAnchorOut(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "x")
		h.TakeOne("x")
		page, err := h.client().insp.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateRunning})
		require.NoError(t, err)
		require.EqualValues(t, 1, page.Total)
		require.Equal(t, 1, page.Examined)
		require.Len(t, page.Jobs, 1)
		require.Equal(t, "x", page.Jobs[0].ID)
	})
}

// A job that was buried without a run, because its record cannot be read, was at its first attempt.
func TestJobBuriedUnrunIsAtItsFirstAttempt(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "x")
		require.Equal(t, "o", h.Letters([]hand.Held{h.TakeOne("x")}, settle.Row{Verb: settle.Bury, Failure: hand.Failed}))
		info := h.info("x")
		require.Equal(t, delayq.StateDead, info.State)
		require.Equal(t, 1, info.Attempt)
	})
}

// What get reads counts towards the bytes of its reply: records, errors, and the results of done
// jobs.
func TestGetCountsAllThatItReads(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for name, key := range map[string]string{"records": h.Keys.Pool, "errors": h.Keys.Errors, "results": h.Keys.Results} {
			ids := []any{name + "/1", name + "/2", name + "/3"}
			for _, id := range ids {
				require.NoError(t, h.RDB.HSet(t.Context(), key, id, strings.Repeat("x", 600)).Err())
			}
			for bytes, jobs := range map[int]int{1: 1, 1199: 1, 1200: 2, 1800: 3} {
				r, err := h.Run(script.Get, append([]any{bytes, -1}, ids...)...)
				require.NoError(t, err)
				require.Len(t, r.List(2).Texts(), jobs, "%d bytes of %s", bytes, name)
			}
		}
	})
}
