package tests

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A retiring does by hand what servers do with a generation that has nothing left.
type retiring struct {
	*testing.T
	home   *hand.Hand
	places []*hand.Hand
}

// look seals the places, or reads their seal and their counters, and tells the home.
func (r *retiring) look(known part.Map, generation int, seal string) part.Map {
	r.Helper()
	sums := make(map[string]int64)
	for _, h := range r.places {
		if seal != "" {
			reply, err := h.TrySeal(seal)
			require.NoError(r, err)
			require.Zero(r, reply.Number(2), "it was closed")
			continue
		}
		reply, err := h.TryEmpty()
		require.NoError(r, err)
		require.EqualValues(r, 1, reply.Number(2))
		require.Zero(r, reply.Number(4))
		for i, words := 0, reply.List(6); i < len(words); i += 2 {
			n, err := strconv.ParseInt(words.Text(i+1), 10, 64)
			require.NoError(r, err)
			sums[words.Text(i)] += n
		}
	}
	if seal == "" {
		reply, err := r.places[0].TryEmpty()
		require.NoError(r, err)
		seal = reply.Text(5)
	}
	var words []string
	for name, n := range sums {
		words = append(words, name, fmt.Sprint(n))
	}
	reply, err := r.home.TryLeave(known.String(), generation, true, time.Second, seal, strings.Join(words, " "))
	require.NoError(r, err)
	now, err := part.ParseMap(reply.Text(2))
	require.NoError(r, err)
	return now
}

// The counters of a topic never fall: not when it is divided, nor divided again, nor when
// partitions are given up, however often a server says so. Its history and its undelivered jobs
// stay, too.
func TestCountersOutlivePartitions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		c := delayq.NewClient(rdb, delayq.Prefix(prefix))
		insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
		before := make(map[delayq.Counter]int64)
		look := func() map[delayq.Counter]int64 {
			t.Helper()
			list, err := insp.Stats(ctx, "mail")
			require.NoError(t, err)
			for name, n := range list[0].Counters {
				require.GreaterOrEqual(t, n, before[name], name)
				before[name] = n
			}
			return list[0].Counters
		}
		run := func(name string, places ...*hand.Hand) {
			for n := range 30 {
				_, err := c.Enqueue(ctx, "mail", fmt.Sprint(name, n), nil)
				require.NoError(t, err)
			}
			for i, h := range places {
				held := h.Take(30, time.Hour)
				h.Ack(held...)
				require.NoError(t, rdb.LPush(ctx, h.Keys.Undelivered, fmt.Sprintf(`{"at":%d,"from":"x","topic":"y","id":"%s%d"}`, i+1, name, i)).Err())
				_, err := h.Run(script.Chronicle, h.Series.Next(), fmt.Sprint(record.OutcomeAcked, " ", len(held)))
				require.NoError(t, err)
			}
			look()
		}
		hands := func(g part.Generation) (list []*hand.Hand) {
			for _, name := range g.Names("mail") {
				list = append(list, hand.New(t, rdb, prefix, name))
			}
			return list
		}
		home := hand.New(t, rdb, prefix, "mail")
		run("a", home)
		require.NoError(t, c.Partition(ctx, "mail", 3))
		look()
		first := part.Generation{Number: 1, Parts: 3}
		run("b", hands(first)...)
		require.NoError(t, c.Partition(ctx, "mail", 2, delayq.ByKey()))
		second := part.Generation{Number: 2, Parts: 2, ByKey: true}
		run("c", hands(second)...)
		total := look()
		require.EqualValues(t, 90, total[delayq.CounterEnqueued])
		require.EqualValues(t, 90, total[delayq.CounterAcked])

		known, err := part.ParseMap(home.Map())
		require.NoError(t, err)
		r := &retiring{t, home, hands(first)}
		require.Equal(t, known, r.look(known, 1, "seal"))
		require.Equal(t, total, look())
		home.HastenParts(time.Minute)
		now := r.look(known, 1, "")
		require.Equal(t, "0:1 2:2k", now.String())
		require.Equal(t, total, look())
		for _, m := range []part.Map{known, now} { // by servers that do not know it yet
			again := &retiring{t, hand.New(t, rdb, prefix, "mail"), hands(first)}
			for range 2 {
				require.Equal(t, now, again.look(m, 1, ""))
				home.HastenParts(time.Minute)
			}
		}
		require.Equal(t, total, look())
		list, err := insp.Undelivered(ctx, "mail")
		require.NoError(t, err)
		require.Len(t, list, 1+3+2)
		clock := rdb.Time(ctx).Val()
		history, err := insp.History(ctx, "mail", clock.Add(-2*time.Hour), clock.Add(time.Hour), time.Hour)
		require.NoError(t, err)
		n := int64(0)
		for _, step := range history.Steps {
			for _, one := range step.Outcomes {
				n += one
			}
		}
		require.EqualValues(t, 90, n)
	})
}

// A between lets something happen between two commands of pipelines.
type between struct {
	seen  int // commands so far
	trips int
	act   func(seen int) // is told before each command how many have been sent
}

func (b *between) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *between) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (b *between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (failed error) {
		if name := cmds[0].Name(); name == "hello" || name == "client" {
			return next(ctx, cmds) // a new connection is introduced
		}
		b.trips++
		for i := range cmds {
			b.act(b.seen)
			b.seen++
			failed = cmp.Or(failed, next(ctx, cmds[i:i+1]))
		}
		return failed
	}
}

// The counters are the same between whichever commands of Stats a generation is given up.
func TestCountersWhilePartitionsLeave(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
	ctx, prefix, hook := t.Context(), redistest.Prefix(t), new(between)
	c := delayq.NewClient(rdb, delayq.Prefix(prefix))
	hooked := redis.NewClient(rdb.Options())
	defer func() { require.NoError(t, hooked.Close()) }()
	hooked.AddHook(hook)
	insp := delayq.NewInspector(hooked, delayq.Prefix(prefix))
	look := func(topic string, act func(seen int)) (counters map[delayq.Counter]int64, commands int) {
		*hook = between{act: act}
		list, err := insp.Stats(ctx, topic)
		require.NoError(t, err)
		return list[0].Counters, hook.seen
	}
	commands := 1
	for at := 0; at < commands; at++ {
		topic := fmt.Sprint("t", at)
		enqueue := func(id string) {
			_, err := c.Enqueue(ctx, topic, id, nil)
			require.NoError(t, err)
			_, err = c.Dequeue(ctx, topic, id)
			require.NoError(t, err)
		}
		enqueue("home")
		require.NoError(t, c.Partition(ctx, topic, 2))
		for n := range 5 {
			enqueue(fmt.Sprint(n))
		}
		require.NoError(t, c.Partition(ctx, topic, 1))
		enqueue("last")
		r := &retiring{t, hand.New(t, rdb, prefix, topic), nil}
		for _, name := range (part.Generation{Number: 1, Parts: 2}).Names(topic) {
			r.places = append(r.places, hand.New(t, rdb, prefix, name))
		}
		known, err := part.ParseMap(r.home.Map())
		require.NoError(t, err)
		r.look(known, 1, "seal")
		r.home.HastenParts(time.Minute)

		var want map[delayq.Counter]int64
		want, commands = look(topic, func(int) {})
		require.EqualValues(t, 7, want[delayq.CounterEnqueued])
		require.EqualValues(t, 7, want[delayq.CounterCancelled])
		got, _ := look(topic, func(seen int) {
			if seen == at {
				require.Equal(t, "0:1 2:1", r.look(known, 1, "").String())
			}
		})
		require.Equal(t, want, got, "before command %d", at)
		got, _ = look(topic, func(int) {})
		require.Equal(t, want, got)
	}
	require.Greater(t, commands, 17*4)
}

// Stats reads a topic no more often than 4 times, even if its partitions change each time.
func TestStatsOfRestlessPartitions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
	ctx, prefix, hook := t.Context(), redistest.Prefix(t), new(between)
	c := delayq.NewClient(rdb, delayq.Prefix(prefix))
	require.NoError(t, c.Partition(ctx, "restless", 2))
	require.NoError(t, c.Partition(ctx, "steady", 2))
	hooked := redis.NewClient(rdb.Options())
	defer func() { require.NoError(t, hooked.Close()) }()
	hooked.AddHook(hook)
	home := hand.New(t, rdb, prefix, "restless")
	for changes, trips := range []int{2, 4, 6, 8, 8} {
		last := 0
		*hook = between{act: func(int) {
			if hook.trips == last || hook.trips%2 == 1 || hook.trips/2 > changes {
				return
			}
			last = hook.trips
			m := "0:1 1:2"
			if home.Map() == m {
				m = "1:2"
			}
			require.NoError(t, rdb.HSet(ctx, home.Keys.Parts, "map", m).Err())
		}}
		list, err := delayq.NewInspector(hooked, delayq.Prefix(prefix)).Stats(ctx, "restless", "steady")
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, trips, hook.trips, "%d changes", changes)
		require.Equal(t, 2, list[0].Partitions.Count)
	}
}
