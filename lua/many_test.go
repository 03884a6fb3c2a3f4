package lua_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A take that a single job is missing to looks through the left-overs behind in large steps, and
// not once for each of them.
func TestLeftOversCostATakeLittle(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	for _, limit := range []int{7, 8, 500} {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		leased := hand.Numbered("leased", 1000)
		h.Put("+0", leased...)
		eachOf(t, 1000, 500, func(n int) { require.Len(t, h.Take(n, time.Hour), n) })
		h.Put("+0", hand.Numbered("fresh", limit-1)...)
		h.Push(h.Keys.Ready, leased...)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		require.Len(t, h.Take(limit, time.Hour), limit-1)
		cost := commandsOf(t, rdb)
		reads, err := strconv.Atoi(cost["hmget"])
		require.NoError(t, err)
		require.Less(t, reads, 20, "%d: %v", limit, cost)
	}
}

// A leased left-over of limited retries waits for no slot.
func TestLeftOverOfLimitedRetriesIsNotInTheWay(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		c := newCrowd(h, 0)
		c.pool["leased"], c.pool["fresh"] = limitedJob, unlimitedJob
		c.leases["leased"], c.ready = 5, []string{"leased", "fresh"}
		c.store(t)
		require.Equal(t, []string{"fresh"}, idsOf(c.take(t, 8, 0)))
	})
}

// Whatever stands in the lists, and however many jobs are taken or settled in one call: what
// happens is what looking at one after the other would do.
func TestManyAreWhatOneAfterTheOtherWouldBe(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) { playCrowds(t, h, redistest.Size(50), func(string) {}) })
}

// A Redis at its maxmemory takes and settles as any other.
func TestManyWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	playCrowds(t, NewHand(t, rdb, redistest.Prefix(t), "topic"), redistest.Size(50), func(maxmemory string) {
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", maxmemory).Err())
	})
}

// playCrowds plays with n crowds. limit sets the memory that Redis may use before each call of a
// script, and after it.
func playCrowds(t *testing.T, h *Hand, n int, limit func(maxmemory string)) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(n) {
		c := newCrowd(NewHand(t, h.RDB, h.Prefix(), fmt.Sprint("topic", i)), seed+i)
		c.limit = limit
		c.fill()
		c.store(t)
		for range 3 {
			held := c.take(t, c.one(1, 5, 7, 8, 9, 30, 1000), c.one(0, 1, 8, 1000))
			c.settle(t, held)
		}
	}
}

const (
	limitedJob   = "nonce...\x01\x01"
	unlimitedJob = "nonce...\x01\x00"
)

// A crowd is what a topic holds, and does with it by the book what take and the settling scripts
// are to do.
type crowd struct {
	*rand.Rand
	h                    *Hand
	pool                 map[string]string
	leases, bucket, dead map[string]float64
	handoff, ready       []string
	limit                func(maxmemory string)
}

func newCrowd(h *Hand, seed uint64) *crowd {
	return &crowd{Rand: rand.New(rand.NewPCG(seed, 0)), h: h, pool: map[string]string{},
		leases: map[string]float64{}, bucket: map[string]float64{}, dead: map[string]float64{},
		limit: func(string) {}}
}

func (c *crowd) one(of ...int) int { return of[c.IntN(len(of))] }

// fill makes jobs in all states, most of them ready, and left-overs of all.
func (c *crowd) fill() {
	push := func(id string) {
		if c.IntN(5) == 0 {
			c.handoff = append(c.handoff, id)
		} else {
			c.ready = append(c.ready, id)
		}
	}
	others, limited := c.one(0, 5, 50), c.one(0, 5, 50) // percent
	for i := range c.one(3, 20, 100) {
		id := strconv.Itoa(i)
		c.pool[id] = unlimitedJob
		if c.IntN(100) < limited {
			c.pool[id] = limitedJob
		}
		push(id)
		if c.IntN(100) < others {
			switch c.IntN(6) {
			case 0:
				delete(c.pool, id)
			case 1:
				c.bucket[id] = 5
			case 2:
				c.dead[id] = 5
			case 3:
				c.leases[id] = float64(c.IntN(3)) + 0.125
			default:
				c.pool[id] = unlimitedJob
			}
			push(id)
		}
	}
	c.Shuffle(len(c.ready), func(i, j int) { c.ready[i], c.ready[j] = c.ready[j], c.ready[i] })
}

func (c *crowd) store(t *testing.T) {
	k, ctx := c.h.Keys, t.Context()
	_, err := c.h.RDB.Pipelined(ctx, func(p redis.Pipeliner) error {
		for id, record := range c.pool {
			p.HSet(ctx, k.Pool, id, record)
		}
		for key, zset := range map[string]map[string]float64{k.Leases: c.leases, k.Bucket: c.bucket, k.Dead: c.dead} {
			for id, score := range zset {
				p.ZAdd(ctx, key, redis.Z{Member: id, Score: score})
			}
		}
		for key, list := range map[string][]string{k.Handoff: c.handoff, k.Ready: c.ready} {
			for _, id := range list {
				p.RPush(ctx, key, id)
			}
		}
		return nil
	})
	require.NoError(t, err)
}

// take takes jobs, and then what the same call answers when it is sent again.
func (c *crowd) take(t *testing.T, limit, free int) []hand.Held {
	t.Helper()
	var want []string
	var looked int
	status := "empty"
	for _, id := range slices.Concat(c.handoff, c.ready) {
		record := c.pool[id]
		if len(want) == limit {
			break
		}
		if record != "" && c.leases[id]+c.bucket[id]+c.dead[id] == 0 && !slices.Contains(want, id) {
			if len(want) >= free && record == limitedJob {
				status = "busy"
				break
			}
			want = append(want, id)
		}
		looked++
	}
	if looked > 0 {
		status = "ok"
	}
	handed := min(looked, len(c.handoff))
	c.handoff, c.ready = c.handoff[handed:], c.ready[looked-handed:]
	call := func() (script.Reply, error) { return c.h.TryTakeAhead("", limit, free, time.Hour) }
	var held []hand.Held
	for range 2 {
		c.limit("1")
		r, err := call()
		c.limit("0")
		require.NoError(t, err)
		require.Equal(t, status, r.Status(), "%d of %d", limit, free)
		if status != "ok" {
			break
		}
		held = hand.HeldOf(r)
		require.Equal(t, append([]string{}, want...), idsOf(held))
		if call = c.h.Last; len(want) == 0 { // nothing to repeat
			break
		}
	}
	for _, one := range held {
		c.leases[one.ID] = float64(record.ParseLeaseEnd(one.Fence).Micros()) / 1000
	}
	c.same(t)
	return held
}

// settle ends the runs of some jobs, of which some are not there any more or have another lease, in
// one call.
func (c *crowd) settle(t *testing.T, held []hand.Held) {
	t.Helper()
	k, ctx := c.h.Keys, t.Context()
	for id, end := range c.leases {
		if c.IntN(2) == 0 { // that of another take, or once more with another fence
			held = append(held, hand.Held{ID: id, Fence: fmt.Sprint(end)})
		}
	}
	slices.SortFunc(held, func(a, b hand.Held) int { return strings.Compare(a.Fence+a.ID, b.Fence+b.ID) })
	from, to := c.IntN(len(held)+1), c.IntN(len(held)+1)
	held = slices.Clone(held[min(from, to):max(from, to)])
	if len(held) == 0 {
		return
	}
	verb := c.IntN(7)
	if verb == 1 || verb == 6 { // else it would stand in ready twice, and of limited retries end a take sooner than by the book
		seen := map[string]bool{}
		held = slices.DeleteFunc(held, func(one hand.Held) bool {
			twice := seen[one.ID]
			seen[one.ID] = true
			return twice
		})
	}
	odd := c.one(0, 5, 50) // percent
	for i := range held {
		if c.IntN(100) >= odd {
			continue
		}
		switch id := held[i].ID; c.IntN(5) {
		case 0:
			held[i].Fence = "1 " + held[i].Fence + " 2"
		case 1:
			held[i].Fence = "5"
		case 2:
			require.NoError(t, c.h.RDB.ZAdd(ctx, k.Leases, redis.Z{Member: id, Score: 5}).Err())
			c.leases[id] = 5
		default:
			require.NoError(t, c.h.RDB.ZRem(ctx, k.Leases, id).Err())
			delete(c.leases, id)
			if c.IntN(2) == 0 {
				require.NoError(t, c.h.RDB.HDel(ctx, k.Pool, id).Err())
				delete(c.pool, id)
			}
		}
	}
	if c.IntN(4) == 0 {
		for i := range held {
			held[i].Fence = "1 " + held[i].Fence
		}
	}
	var want strings.Builder
	var ours []string
	for _, one := range held {
		end, leased := c.leases[one.ID]
		names := func(fence string) bool { return record.ParseLeaseEnd(fence).Micros() == int64(math.Round(1000*end)) }
		switch {
		case leased && slices.ContainsFunc(strings.Fields(one.Fence), names):
			want.WriteByte('o')
			ours = append(ours, one.ID)
		case c.pool[one.ID] != "":
			want.WriteByte('l')
		default:
			want.WriteByte('g')
		}
	}
	c.limit("1")
	letters := []func() string{
		func() string { return c.h.Ack(held...) },
		func() string { return c.h.Return(held...) },
		func() string { return c.h.Bury(held...) },
		func() string { return c.h.Retry(time.Hour, held...) },
		func() string { return c.h.Snooze(time.Hour, held...) },
		func() string { return c.h.Again(time.Hour, held...) },
		func() string { return c.h.Again(0, held...) },
	}[verb]()
	c.limit("0")
	require.Equal(t, want.String(), letters)
	if verb == 1 {
		c.ready = append(slices.Clone(ours), c.ready...)
	}
	for _, id := range ours {
		delete(c.leases, id)
		switch verb {
		case 0:
			delete(c.pool, id)
		case 2:
			c.dead[id] = 5
		case 3, 4:
			c.bucket[id] = 5
		case 5:
			c.pool[id], c.bucket[id] = unlimitedJob, 5
		case 6:
			c.pool[id] = unlimitedJob
			c.ready = append(c.ready, id)
		}
	}
	c.same(t)
}

// same compares what the topic holds with what it should hold; of the bucket and of dead just the
// IDs.
func (c *crowd) same(t *testing.T) {
	t.Helper()
	k, ctx := c.h.Keys, t.Context()
	require.Equal(t, append([]string{}, c.handoff...), c.h.List(k.Handoff))
	require.Equal(t, append([]string{}, c.ready...), c.h.List(k.Ready))
	leases := map[string]float64{}
	for _, z := range c.h.RDB.ZRangeWithScores(ctx, k.Leases, 0, -1).Val() {
		if id := z.Member.(string); len(id) <= script.MaxIDLen { // not the anchor
			leases[id] = z.Score
		}
	}
	require.InDeltaMapValues(t, c.leases, leases, 0.0004)
	for key, zset := range map[string]map[string]float64{k.Bucket: c.bucket, k.Dead: c.dead} {
		require.ElementsMatch(t, slices.Collect(maps.Keys(zset)), c.h.RDB.ZRange(ctx, key, 0, -1).Val())
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(c.pool)), c.h.RDB.HKeys(ctx, k.Pool).Val())
}

// One call about many jobs leaves what one call for each of them leaves, and it answers in the
// letters of their states.
func TestCancelOfManyJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		stage(h)
		r, err := h.TryCancel("nobody", "ready", "scheduled", "running", "dead", "back")
		require.NoError(t, err)
		require.Equal(t, "grsuds", r.Text(2))
		for _, id := range []string{"ready", "scheduled", "running", "dead", "back"} {
			require.Empty(t, h.Traces(id))
		}
		again, err := h.Last()
		require.NoError(t, err)
		require.Equal(t, r[2:], again[2:])
		cancelled, err := h.RDB.HGet(t.Context(), h.Keys.Stats, "cancelled").Int()
		require.NoError(t, err)
		require.Equal(t, 5, cancelled)
	})
}

// A call removes at most a hundred entries of ready, and leaves the other jobs as they are.
func TestCancelOfManyReadyJobsIsBounded(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ids := hand.Numbered("job", 250)
		h.Put("+0", ids...)
		r, err := h.TryCancel(ids...)
		require.NoError(t, err)
		require.Len(t, r.Text(2), 100)
		require.EqualValues(t, 150, h.RDB.LLen(t.Context(), h.Keys.Ready).Val())
		require.EqualValues(t, 150, h.RDB.HLen(t.Context(), h.Keys.Pool).Val())
	})
}
