package lua_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/serve"
)

// A workMeter is a hook of a go-redis client that asks Redis what each call of a script has cost.
type workMeter struct {
	rdb   *redis.Client // another one
	names map[string]string
	costs map[string][]workCost // by the script
}

// A workCost is that of a call: the commands in it, and its time.
type workCost struct{ commands, us int }

func newWorkMeter(t testing.TB, own *redistest.Server) *workMeter {
	m := &workMeter{rdb: own.Client(t), names: map[string]string{}, costs: map[string][]workCost{}}
	for name, digest := range delayq.Scripts() {
		m.names[digest] = name
	}
	return m
}

var (
	workStats = regexp.MustCompile(`cmdstat_(\S+):calls=(\d+)`)
	workTimes = regexp.MustCompile(`used_cpu_(?:user|sys):(\d+)\.(\d{6})`)
)

// commands returns how many commands have been executed, scripts not counted.
func (m *workMeter) commands(ctx context.Context) (n int) {
	for _, s := range workStats.FindAllStringSubmatch(m.rdb.Info(ctx, "commandstats").Val(), -1) {
		if own := []string{"info", "hello", "client|setinfo", "auth", "select"}; !strings.HasPrefix(s[1], "eval") && !slices.Contains(own, s[1]) {
			calls, _ := strconv.Atoi(s[2])
			n += calls
		}
	}
	return n
}

// us returns how many microseconds of a processor Redis has used. Time in which others had the
// processor is not among them.
func (m *workMeter) us(ctx context.Context) (us int) {
	for _, s := range workTimes.FindAllStringSubmatch(m.rdb.Info(ctx, "cpu").Val(), -1) {
		part, _ := strconv.Atoi(s[1] + s[2])
		us += part
	}
	return us
}

func (*workMeter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *workMeter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return m.around(ctx, cmd, func() error { return next(ctx, cmd) })
	}
}

func (m *workMeter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 1 {
			return next(ctx, cmds)
		}
		return m.around(ctx, cmds[0], func() error { return next(ctx, cmds) })
	}
}

// around notes the cost of a command if it is a script.
func (m *workMeter) around(ctx context.Context, cmd redis.Cmder, call func() error) error {
	name := ""
	if strings.HasPrefix(cmd.Name(), "evalsha") {
		name = m.names[fmt.Sprint(cmd.Args()[1])]
	}
	if name == "" {
		return call()
	}
	commands, us := m.commands(ctx), m.us(ctx)
	err := call()
	us = m.us(ctx) - us
	if commands = m.commands(ctx) - commands; err == nil {
		m.costs[name] = append(m.costs[name], workCost{commands, us})
	}
	return err
}

// A burden is a topic with much of something, and calls that meet it.
type burden struct {
	fill func(t testing.TB, h *Hand)
	call func(t testing.TB, h *Hand)
}

// repair repairs the topic.
func repair(t testing.TB, h *Hand) {
	_, err := h.client().Repair(t.Context(), h.Keys.Topic)
	require.NoError(t, err)
}

// each calls f for each of n parts of some names.
func eachPart(n int, f func(ids []string)) {
	for some := range slices.Chunk(named("job", n), 500) {
		f(some)
	}
}

// keyJobs enqueues a job of each of n keys, and sets limits of the keys.
func keyJobs(t testing.TB, h *Hand, n int) {
	ctx := t.Context()
	keys := named("key", n)
	h.putEach("", keys...)
	for some := range slices.Chunk(keys, 500) {
		rules := make([]any, 0, 2*len(some))
		for _, key := range some {
			rules = append(rules, key, "1 5 0 0 0 0 0")
		}
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Rules, rules...).Err())
	}
	require.NoError(t, h.RDB.HSet(ctx, h.Keys.Meta, "limited", n).Err())
}

// burdens are what makes calls long.
var burdens = map[string]burden{
	"schedules": {
		fill: func(t testing.TB, h *Hand) {
			c := h.client()
			for _, name := range named("schedule", 10_000) {
				require.NoError(t, c.Schedule(t.Context(), h.Keys.Topic, name, delayq.Every(rare), make([]byte, 100)))
			}
		},
		call: func(t testing.TB, h *Hand) {
			repair(t, h)
			_, err := h.client().insp.Schedules(t.Context(), h.Keys.Topic)
			require.NoError(t, err)
		},
	},
	"keys": {
		fill: func(t testing.TB, h *Hand) {
			keyJobs(t, h, 10_000)
			h.endless(h.Keys.Held, 9e12, named("held", 10_000))
			h.endless(h.Keys.Parked, 8e12, named("key", 10_000))
			h.endless(h.Keys.Rates, 2e15, named("key", 10_000))
		},
		call: func(t testing.TB, h *Hand) {
			repair(t, h)
			held := h.Take(run.TakeLimit, time.Hour)
			for range 10 {
				held = append(held, h.Take(run.TakeLimit, time.Hour)...)
			}
			require.NotEmpty(t, held)
			repair(t, h)
			require.NoError(t, h.RDB.ZRemRangeByRank(t.Context(), h.Keys.Held, 0, -1).Err())
			h.endless(h.Keys.Held, 1, named("key", 10_000))
			promoteServed(t, h, 10)
		},
	},
	"one key": {
		fill: func(t testing.TB, h *Hand) { h.putKeyed("key", named("job", 10_000)...) },
		call: func(t testing.TB, h *Hand) {
			for range 10 {
				require.NotEmpty(t, h.Take(run.TakeLimit, time.Hour))
			}
			repair(t, h)
		},
	},
	"large records": {
		fill: func(t testing.TB, h *Hand) {
			for _, id := range named("job", 300) {
				_, err := h.client().Enqueue(t.Context(), h.Keys.Topic, id, make([]byte, 64<<10), delayq.ProcessIn(time.Hour))
				require.NoError(t, err)
			}
		},
		call: func(t testing.TB, h *Hand) {
			repair(t, h)
			require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Bucket).Err())
			repair(t, h)
		},
	},
	"jobs": {
		fill: func(t testing.TB, h *Hand) {
			h.Put("+0", named("buried", 5000)...)
			for range 10 {
				require.NotContains(t, h.Bury(h.Take(500, time.Hour)...), "l")
			}
			h.Put("+0", named("leased", 5000)...)
			for range 10 {
				h.Take(500, time.Hour)
			}
			h.Put("+3600000", named("later", 5000)...)
			h.Put("+0", named("ready", 10_000)...)
			eachPart(5000, func(ids []string) {
				var results []any
				for _, id := range ids {
					results = append(results, id, "x")
				}
				require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Results, results...).Err())
			})
			h.endless(h.Keys.Done, 9e12, named("job", 5000))
		},
		call: func(t testing.TB, h *Hand) {
			repair(t, h)
			require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
			repair(t, h)
			eachPart(5000, func(ids []string) { require.NoError(t, h.RDB.HDel(t.Context(), h.Keys.Results, ids...).Err()) })
			repair(t, h)
			for range 5 {
				_, err := h.TryPrune(0, time.Hour, serve.PruneLimit)
				require.NoError(t, err)
			}
		},
	},
	"held keys": {
		fill: func(t testing.TB, h *Hand) {
			h.putEach("", named("key", 5000)...)
			h.endless(h.Keys.Held, 9e12, named("key", 5000))
		},
		call: func(t testing.TB, h *Hand) {
			for range 5 {
				h.Take(run.TakeLimit, time.Hour)
			}
		},
	},
	"keys at their limits": {
		fill: func(t testing.TB, h *Hand) {
			h.setLimits(delayq.Limits{RunningPerKey: 1, RatePerKey: delayq.Per(1, time.Second), Ordered: true})
			stopped(h, 5000, func([]string) {})
		},
		call: func(t testing.TB, h *Hand) {
			for range 5 {
				h.Take(run.TakeLimit, time.Hour)
			}
		},
	},
	"leases that have run out": {
		fill: func(t testing.TB, h *Hand) {
			h.Put("+0", named("job", 2500)...)
			for range 5 {
				held := h.Take(500, 0)
				require.Len(t, held, 500)
				attempts := make([]any, 0, 2*len(held))
				for _, one := range held {
					attempts = append(attempts, one.ID, 1)
				}
				require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Attempts, attempts...).Err())
			}
		},
		call: func(t testing.TB, h *Hand) { promoteServed(t, h, 5) },
	},
	"jobs that fall due": {
		fill: func(t testing.TB, h *Hand) {
			for some := range slices.Chunk(named("key", 2500), 500) {
				var args []any
				for _, key := range some {
					head, tail := h.keyedRecord("+1", key, 0)
					args = append(args, key, head, tail, "+1")
				}
				_, err := h.TrySend(false, args)
				require.NoError(t, err)
			}
			h.Put("+1", named("plain", 2500)...)
		},
		call: func(t testing.TB, h *Hand) { promoteServed(t, h, 10) },
	},
}

// promoteServed promotes as a server does, some times.
func promoteServed(t testing.TB, h *Hand, times int) {
	for range times {
		_, err := h.TryPromote(promoteLimit, 1)
		require.NoError(t, err)
	}
}

// No call keeps the others waiting for long, however much there is: it ends by the work that it has
// done.
func TestCallsEndByTheirWork(t *testing.T) {
	if redistest.Roles() {
		t.Skip("other clients make the calls then")
	}
	t.Parallel()
	own := redistest.Start(t)
	for name, load := range burdens {
		h := NewHand(t, own.Client(t), redistest.Prefix(t), "topic")
		load.fill(t, h)
		m, rdb := newWorkMeter(t, own), own.Client(t)
		rdb.AddHook(m)
		h = NewHand(t, rdb, h.Prefix(), "topic")
		load.call(t, h)
		require.NotEmpty(t, m.costs, name)
		for _, called := range slices.Sorted(maps.Keys(m.costs)) {
			most := slices.MaxFunc(m.costs[called], func(a, b workCost) int { return a.commands - b.commands })
			t.Logf("%s: %s: %d calls, at most %d commands", name, called, len(m.costs[called]), most.commands)
			require.LessOrEqual(t, most.commands, mostCommands, "%s: %s", name, called)
		}
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
	}
}

// A take judges few keys, because each of them is much work.
func TestTakesJudgeFewKeys(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	for name, test := range map[string]struct{ turns, parked int64 }{"held keys": {340, 0}, "keys at their limits": {80, 80}} {
		h := NewHand(t, own.Client(t), redistest.Prefix(t), "topic")
		burdens[name].fill(t, h)
		count := func(key string) int64 { return h.RDB.ZCard(t.Context(), key).Val() }
		turns, parked, first := count(h.Keys.Turn), count(h.Keys.Parked), count(h.Keys.Turn)
		for calls := 0; count(h.Keys.Turn) > first/2; calls++ {
			require.Less(t, calls, 200, name)
			h.Take(run.TakeLimit, time.Hour)
			require.LessOrEqual(t, turns-count(h.Keys.Turn), test.turns, name)
			require.LessOrEqual(t, count(h.Keys.Parked)-parked, test.parked, name)
			turns, parked = count(h.Keys.Turn), count(h.Keys.Parked)
		}
	}
}

// mostCommands is about 2 ms of Redis.
const mostCommands = 1600

// The longest call of each script beside much of something, in µs of Redis.
func BenchmarkLongestCalls(b *testing.B) {
	own := redistest.Start(b)
	for _, name := range slices.Sorted(maps.Keys(burdens)) {
		b.Run(name, func(b *testing.B) {
			longest := map[string][]int{}
			for range b.N {
				h := NewHand(b, own.Client(b), redistest.Prefix(b), "topic")
				burdens[name].fill(b, h)
				m, rdb := newWorkMeter(b, own), own.Client(b)
				rdb.AddHook(m)
				burdens[name].call(b, NewHand(b, rdb, h.Prefix(), "topic"))
				for called, costs := range m.costs {
					longest[called] = append(longest[called], slices.MaxFunc(costs, func(a, b workCost) int { return a.us - b.us }).us)
				}
				require.NoError(b, rdb.FlushAll(b.Context()).Err())
			}
			for called, list := range longest {
				b.ReportMetric(float64(slices.Min(list)), "us/"+called) // others want the processor too
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// promoteLimit is that of a server.
const promoteLimit = 250
