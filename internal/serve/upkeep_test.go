package serve

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// closed returns the places of a topic that take no new IDs.
func (b *partsBench) closed(places ...string) (list []string) {
	for _, place := range places {
		if b.rdb.ZScore(b.Context(), b.at(place).Keys.Tombs, "").Val() == math.Inf(1) {
			list = append(list, place)
		}
	}
	return list
}

// Servers close what a dead Partition call has left open, and what a failover has opened again. A
// generation whose places are empty leaves the map, and they are no longer served.
func TestUpkeepClosesAndRetires(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 4}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		b.lasts(func(*run.Run) time.Duration { return time.Minute })
		places := b.partition("mail", "0:1 1:2")
		require.Equal(b, places[:1], b.closed(places...))
		b.at(places[1]).Put("+0", "a")
		b.at(places[2]).Put("+50000", "b")
		b.pass(5 * PruneEvery)
		require.Equal(b, "1:2", b.at("mail").Map(), "nothing was left at home")
		require.Equal(b, places, b.served(), "the home stays")

		places = b.partition("mail", "1:2 2:3k")
		require.Equal(b, places[:3], b.closed(places...))
		for _, place := range places[:2] {
			require.NoError(b, b.rdb.ZRem(b.Context(), b.at(place).Keys.Tombs, "").Err())
		}
		b.pass(2 * PruneEvery)
		require.Equal(b, places[:3], b.closed(places...), "closed again")
		b.pass(30 * time.Second)
		require.Len(b, b.started(), 2)
		require.Equal(b, "1:2 2:3k", b.at("mail").Map(), "a job is left")
		b.pass(time.Minute)
		require.Equal(b, "2:3k", b.at("mail").Map())
		require.Equal(b, []string{"mail", places[3], places[4], places[5]}, b.served())
		b.pass(time.Minute)
		require.Equal(b, "2:3k", b.at("mail").Map(), "the last generation stays")
		require.Equal(b, places[:3], b.closed(places...))
		b.stop()
		require.NotContains(b, b.logged(), "level=ERROR")
	})
}

// A generation that is empty once is not retired: a failover can have opened it meanwhile.
func TestUpkeepLooksTwice(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 4}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		b.partition("mail", "0:1 1:2")
		b.pass(PruneEvery + time.Second) // it is closed at first, and then seen empty
		require.Equal(b, "0:1 1:2", b.at("mail").Map())
		require.NoError(b, b.rdb.ZRem(b.Context(), b.at("mail").Keys.Tombs, "").Err())
		b.at("mail").Put("+3600000", "late")
		b.pass(4 * PruneEvery)
		require.Equal(b, "0:1 1:2", b.at("mail").Map())
		_, err := b.at("mail").TryCancel("late")
		require.NoError(b, err)
		b.pass(4 * PruneEvery)
		require.Equal(b, "1:2", b.at("mail").Map())
	})
}

// A place that was open between two looks is not retired, even if somebody has closed it again: it
// has lost its seal.
func TestUpkeepNeedsTheSeal(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 4}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		places := b.partition("mail", "0:1 1:2 2:3")
		seal := func(place string) string { return b.rdb.HGet(b.Context(), b.at(place).Keys.Parts, "seal").Val() }
		b.pass(PruneEvery + time.Second)
		first := seal(places[1])
		require.NotEmpty(b, first)
		require.Equal(b, first, seal(places[2]))
		require.NotEqual(b, first, seal("mail"), "the home is of another generation")
		lost := func() {
			k := b.at(places[2]).Keys
			require.NoError(b, b.rdb.Del(b.Context(), k.Parts, k.Tombs).Err())
			require.True(b, b.at(places[2]).Close())
		}
		for range 4 {
			lost()
			b.pass(PruneEvery + time.Second)
			require.NotEmpty(b, seal(places[2]))
			require.Contains(b, b.at("mail").Map(), "1:2 2:3")
		}
		require.Equal(b, "1:2 2:3", b.at("mail").Map(), "the home was closed all the time")
		require.NotEqual(b, first, seal(places[1]))
		b.pass(4 * PruneEvery)
		require.Equal(b, "2:3", b.at("mail").Map())
	})
}

// The counters of partitions that are retired are added to those of the home, whoever dies in
// between. What is left of them expires, but they stay closed.
func TestUpkeepKeepsTheCounters(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 4}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		ctx := b.Context()
		b.at("mail").Put("+0", hand.Numbered("h", 2)...)
		places := b.partition("mail", "0:1 1:3")
		for i, place := range places[1:] {
			b.at(place).Put("+0", hand.Numbered(string(rune('a'+i)), 2+i)...)
		}
		b.pass(time.Second)
		sum := func(name string, list ...string) (n int64) {
			for _, place := range list {
				one, _ := b.rdb.HGet(ctx, b.at(place).Keys.Stats, name).Int64()
				n += one
			}
			return n
		}
		require.EqualValues(b, 11, sum("acked", places...))
		require.EqualValues(b, 2, sum("acked", "mail"))
		b.partition("mail", "0:1 1:3 2:2")
		for range 10 {
			b.pass(PruneEvery)
			if b.at("mail").Map() != "0:1 1:3 2:2" {
				break
			}
			require.EqualValues(b, 11, sum("acked", places...))
		}
		b.pass(3 * PruneEvery)
		require.Equal(b, "2:2", b.at("mail").Map())
		for _, name := range []string{"enqueued", "taken", "acked"} {
			require.EqualValues(b, 11, sum(name, "mail"), name)
		}
		for _, place := range places[1:] {
			require.Greater(b, b.rdb.TTL(ctx, b.at(place).Keys.Stats).Val(), 30*24*time.Hour, place)
			require.Negative(b, b.rdb.TTL(ctx, b.at(place).Keys.Tombs).Val(), place)
		}
		require.Negative(b, b.rdb.TTL(ctx, b.at("mail").Keys.Stats).Val())
	})
}

// A map that a failover has cut, or that is gone, is made anew by a server that knows it. Until
// then and afterwards the server serves all places that may have jobs.
func TestUpkeepRestoresTheMap(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{"": "1:2k 2:3", "1:2k": "1:2k 2:3", "0:1 1:2k": "0:1 1:2k 2:3"} {
		inParts(t, Config{Concurrency: 4}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
			b.lasts(func(*run.Run) time.Duration { return time.Minute })
			h := b.at("mail")
			b.partition("mail", "1:2k 2:3")
			m, err := part.ParseMap(after)
			require.NoError(b, err)
			places := m.Places("mail")
			b.at(places[4]).Put("+40000", "a")
			b.at(places[5]).Put("+0", "b")
			if before == "" {
				require.NoError(b, b.rdb.Del(b.Context(), h.Keys.Parts).Err())
			} else {
				require.NoError(b, b.rdb.HSet(b.Context(), h.Keys.Parts, "map", before, "last", 1).Err())
			}
			b.pass(PruneEvery + time.Second)
			require.Equal(b, after, h.Map())
			require.Equal(b, "2", b.rdb.HGet(b.Context(), h.Keys.Parts, "last").Val())
			require.Equal(b, places, b.served())
			b.pass(2 * time.Minute)
			require.Len(b, b.started(), 2)
			require.Equal(b, "2:3", h.Map())
			b.stop()
			require.Contains(b, b.logged(), "map of partitions restored")
		})
	}
}

// A map that cannot be read is reported, and the partitions that are known stay.
func TestUpkeepOfADamagedMap(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 4}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		places := b.partition("mail", "1:2")
		h := b.at("mail")
		require.NoError(b, b.rdb.HSet(b.Context(), h.Keys.Parts, "map", "1:2:3").Err())
		b.pass(PruneEvery + time.Second)
		require.Equal(b, places, b.served())
		require.Contains(b, b.s.Health().Topics[0].Failing["parts"], "damaged")
		require.NoError(b, b.rdb.HSet(b.Context(), h.Keys.Parts, "map", "1:2").Err())
		b.pass(PruneEvery + time.Second)
		require.Empty(b, b.s.Health().Topics[0].Failing)
	})
}

// flows returns the limits of places.
func (b *partsBench) flows(places ...string) (list []string) {
	for _, place := range places {
		list = append(list, b.rdb.HGet(b.Context(), b.at(place).Keys.Meta, "flow").Val())
	}
	return list
}

// The limits of a topic are divided among its places whenever their number or the limits change.
func TestShares(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 20}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		b.lasts(func(*run.Run) time.Duration { return 20 * time.Second })
		h := b.at("mail")
		_, err := h.TryShare("10 0 0 0 0 0", "", "set")
		require.NoError(b, err)
		h.Put("+0", hand.Numbered("h", 3)...)
		b.pass(time.Second)
		places := b.partition("mail", "0:1 1:3")
		require.Equal(b, []string{"3 0 0 0 0 0", "3 0 0 0 0 0", "2 0 0 0 0 0", "2 0 0 0 0 0"}, b.flows(places...))
		for i, place := range places[1:] {
			require.Equal(b, "10 0 0 0 0 0", b.rdb.HGet(b.Context(), b.at(place).Keys.Meta, "shared").Val())
			require.Equal(b, "1", b.rdb.HGet(b.Context(), b.at(place).Keys.Sizes, "limits").Val())
			b.at(place).Put("+0", hand.Numbered(string(rune('a'+i)), 6)...)
		}
		b.busiest()
		b.pass(time.Second)
		require.Equal(b, 10, b.busiest())
		b.pass(90 * time.Second)
		require.Equal(b, 10, b.busiest())
		require.Equal(b, "1:3", h.Map())
		shares := []string{"3 0 0 0 0 0", "3 0 0 0 0 0", "2 0 0 0 0 0", "2 0 0 0 0 0"}
		require.Equal(b, shares, b.flows(places...), "the home has the jobs of schedules yet")

		_, err = h.TryShare("0 1000 32 100000 100000000 0", "", "set")
		require.NoError(b, err)
		b.pass(0)
		require.Equal(b, slices.Repeat([]string{"0 4000 8 100000 100000000 0"}, 4), b.flows(places...))
		_, err = h.TryShare("0 0 0 0 0 0", "", "set")
		require.NoError(b, err)
		b.pass(0)
		require.Equal(b, []string{"0 0 0 0 0 0", "0 0 0 0 0 0", "0 0 0 0 0 0", "0 0 0 0 0 0"}, b.flows(places...))
		b.stop()
		require.NotContains(b, b.logged(), "level=ERROR")
	})
}

// Limits that a client sets while a server divides those before them are not overwritten: not even
// those of a client that does not know the partitions yet, and dies before it does.
func TestSharesBesideNewLimits(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 20}, func(b *partsBench) {}, func(b *partsBench) {
		h, m := b.at("mail"), part.Map{{Number: part.Home, Parts: 1}, {Number: 1, Parts: 3}}
		home := &Topic{Server: b.s, Keys: h.Keys, trouble: trouble{log: b.s.Log, outage: b.s.outage}}
		places := m.Places("mail")
		for _, name := range []string{"it knows none", "it knows them"} {
			_, err := h.TryShare("8 0 0 0 0 0", "", "set")
			require.NoError(b, err)
			had, err := home.limitsHere(b.Context())
			require.NoError(b, err)
			shared := ""
			if name == "it knows them" {
				shared = "40 0 0 0 0 0"
			}
			_, err = h.TryShare("10 0 0 0 0 0", shared, "set")
			require.NoError(b, err)
			require.NoError(b, home.divide(b.Context(), m, had))
			require.Equal(b, "10 0 0 0 0 0", b.flows("mail")[0], name)
			had, err = home.limitsHere(b.Context())
			require.NoError(b, err)
			require.NoError(b, home.divide(b.Context(), m, had))
			want := "3 0 0 0 0 0"
			if shared != "" {
				want = "10 0 0 0 0 0"
			}
			require.Equal(b, want, b.flows(places...)[1], name)
			require.Equal(b, had.whole(), b.rdb.HGet(b.Context(), h.Keys.Meta, "shared").Val(), name)
		}
	})
}

// DefaultLimits are those of the topic: no place has all of them.
func TestSharesOfDefaultLimits(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 20}, func(b *partsBench) {
		require.NoError(b, b.rdb.HSet(b.Context(), "p:{mail}:all:parts", "map", "0:1 1:2", "last", 1).Err())
		b.handles(TopicConfig{Topic: "mail", Limits: "7 0 0 0 0 0"})
		b.handles(TopicConfig{Topic: "few", Limits: "2 0 0 0 0 0"})
	}, func(b *partsBench) {
		b.lasts(func(*run.Run) time.Duration { return time.Minute })
		m, err := part.ParseMap("0:1 1:2")
		require.NoError(b, err)
		places := m.Places("mail")
		require.Equal(b, []string{"3 0 0 0 0 0", "2 0 0 0 0 0", "2 0 0 0 0 0"}, b.flows(places...))
		require.Equal(b, "7 0 0 0 0 0", b.rdb.HGet(b.Context(), b.at("mail").Keys.Meta, "shared").Val())

		few := b.partition("few", "0:1 1:3")
		b.pass(PruneEvery + time.Second)
		require.Equal(b, []string{"1 0 0 0 0 0", "1 0 0 0 0 0", "1 0 0 0 0 0", "1 0 0 0 0 0"}, b.flows(few...))
		require.Contains(b, b.logged(), "2 running jobs, and 4 partitions")
	})
}

// The shares that a Partition call has set, and that has failed then, are undone.
func TestSharesOfNoPartitions(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 20}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		h := b.at("mail")
		_, err := h.TryShare("2 0 0 0 0 0", "10 0 0 0 0 0", "set")
		require.NoError(b, err)
		h.Put("+0", "a")
		b.pass(partsAll + PruneEvery + time.Second)
		require.Equal(b, []string{"10 0 0 0 0 0"}, b.flows("mail"))
	})
}

// A step whose job is in a partition of its topic is not lost.
func TestPartsKeepTheirSteps(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0:1 1:3", "1:2 2:3k"} {
		inParts(t, Config{Concurrency: 1}, func(b *partsBench) {}, func(b *partsBench) {
			m, err := part.ParseMap(text)
			require.NoError(b, err)
			require.NoError(b, b.rdb.HSet(b.Context(), "p:{mail}:all:parts", "map", text, "last", 2).Err())
			home := &Topic{Server: b.s, Keys: script.NewKeys("p", "album"), trouble: trouble{log: b.s.Log, outage: b.s.outage}}
			ref := flowRef{id: "f", name: "12345678"}
			var list []doubt
			for i, id := range hand.Numbered("step", 9) {
				list = append(list, doubt{flow: ref, number: i, target: "mail", job: id})
			}
			at := func(i int, place string) {
				link := "00000000" + ref.name + record.StepHex(i)
				require.NoError(b, b.rdb.HSet(b.Context(), b.at(place).Keys.Notes, "l"+list[i].job, link).Err())
			}
			at(0, "mail")
			for i := 1; i < 5; i++ {
				g := m[i%len(m)]
				at(i, g.Name("mail", g.Index(list[i].job, "")))
			}
			if open := m.Open(); open.ByKey {
				at(5, open.Name("mail", open.Index("", "some key")))
			}
			lost := home.missing(b.Context(), "mail", list)
			want := list[5:]
			if m.Open().ByKey {
				want = list[6:]
			}
			require.ElementsMatch(b, want, lost)
		})
	}
}
