package serve

import (
	"cmp"
	"context"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

const (
	// mostTended is the most places of a topic that are asked or told something at the same time.
	mostTended = 8

	// keysPage is how many jobs with keys of a closed place a call looks at. mostLooks is how many
	// calls there are in a round for all places of a generation, but leastLooks for each of them.
	keysPage, mostLooks, leastLooks = 1000, 400, 8

	// keptAfter is for how long what is left of the places of a generation is kept when it has left
	// the map: as long as the hours of their history, and longer than Redis remembers it.
	keptAfter = 31 * 24 * time.Hour

	// retireAfter is for how long the places of a generation must be closed and empty before it
	// leaves the map. A master that is cut off from the others of its Cluster goes on for 15 s by
	// default (cluster-node-timeout), and then loses what it has written. So one that answers after
	// retireAfter was not cut off before that, and its replicas have what it had then.
	retireAfter = 2*PruneEvery - 2*time.Second
)

// Upkeep is what must be done for a topic with partitions, whoever began it. All places but those
// of the last generation must be closed: an operator can have died before that, and a failover can
// open one again. A generation whose places are empty leaves the map, and its counters are added to
// those of the home: see the part_retire script. A map that a failover has cut
// is made anew by the servers that know it. Each place must have its share of the limits: a call
// that was to make partitions and has failed can have divided them in vain. One server does that in
// each round, and at once after a change.

// upkeep is the state of that. Only the parts loop uses it.
type upkeep struct{ series *script.Series }

// tend looks after the places of a topic, unless another server does. read is the map in Redis.
func (t *Topic) tend(ctx context.Context, read part.Map) error {
	m := t.Loops.parts.have()
	if t.cut(read) {
		_, err := t.retire(ctx, m, part.Generation{}, nil)
		if err == nil {
			t.trouble.log.Error("map of partitions restored", "err", "Redis has lost the latest one", "found", read.String(), "map", m.String())
		}
		return err
	}
	l, err := t.limitsHere(ctx)
	if err != nil || m == nil && l.whole() == l.flow {
		return err
	}
	if mine, err := t.claimUpkeep(ctx, m, l.whole()); err != nil || !mine {
		return err
	}
	return cmp.Or(t.closeOld(ctx, m), t.divide(ctx, m, l))
}

// claimUpkeep makes the other servers leave the topic to this one for half a round, as long as its
// map and its limits do not change. It reports whether none of them was faster.
func (t *Topic) claimUpkeep(ctx context.Context, m part.Map, limits string) (mine bool, err error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(m.String() + "\n" + limits))
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	turn := t.Keys.Shift("parts." + strconv.FormatUint(h.Sum64(), 36))
	return t.Server.Calls.SetNX(call, turn, t.Server.Config.ID, PruneEvery/2).Result()
}

// closeOld closes all places but those of the last generation, and retires the generations of
// places that are empty. The home stays closed when its generation is retired.
func (t *Topic) closeOld(ctx context.Context, m part.Map) error {
	if len(m) == 0 {
		return nil
	}
	if m[0].Number != part.Home {
		if _, err := t.closePlaces(ctx, part.Generation{Parts: 1}, false); err != nil {
			return err
		}
	}
	var failed error
	for _, g := range m[:len(m)-1] {
		keysStay := m.KeysStay(g.Number)
		over, err := t.closePlaces(ctx, g, keysStay)
		if err == nil && over != nil && over.seal == "" {
			over, err = t.sealPlaces(ctx, g, keysStay)
		}
		if err == nil {
			m, err = t.retire(ctx, m, g, over)
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// A vacancy is what the places of a generation have in common that are closed and empty.
type vacancy struct {
	seal string           // empty: not all have the same one
	sums map[string]int64 // counters of all of them together
}

// text returns the counters as the script is told them.
func (v *vacancy) text() string {
	words := make([]string, 0, 2*len(v.sums))
	for _, name := range slices.Sorted(maps.Keys(v.sums)) {
		words = append(words, name, strconv.FormatInt(v.sums[name], 10))
	}
	return strings.Join(words, " ")
}

// closePlaces closes the places of a generation that are open. It returns what they have in common
// if all of them were closed and empty, and otherwise nil. It looks which keys stay in the others.
func (t *Topic) closePlaces(ctx context.Context, g part.Generation, keysStay bool) (over *vacancy, err error) {
	looks := make([]script.Reply, g.Parts)
	err = t.eachOf(ctx, g, func(ctx context.Context, i int, k *script.Keys) (err error) {
		looks[i], err = t.call(ctx, script.PartEmpty, k)
		switch {
		case err != nil:
			return err
		case looks[i].Number(2) == 0:
			call, cancel := context.WithTimeout(ctx, CallTimeout)
			defer cancel()
			return commit.ClosePlace(call, t.Server.Scripts, k, keysStay)
		case looks[i].Number(7) == 1:
			return t.lookForKeys(ctx, k, max(leastLooks, mostLooks/g.Parts))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	over = &vacancy{seal: looks[0].Text(5), sums: make(map[string]int64)}
	for _, r := range looks {
		if closed, left := r.Number(2) == 1, r.Number(4); !closed || left > 0 {
			return nil, nil
		}
		if r.Text(5) != over.seal {
			over.seal = ""
		}
		if g.Number == part.Home {
			continue // its counters stay where they are
		}
		for name, n := range countersOf(r.List(6)) {
			over.sums[name] += n
		}
	}
	return over, nil
}

// countersOf reads names and numbers. A name can be there twice.
func countersOf(words script.Reply) map[string]int64 {
	list := make(map[string]int64)
	for i := 0; i+1 < len(words); i += 2 {
		if n, err := strconv.ParseInt(words.Text(i+1), 10, 64); err == nil && n > 0 {
			list[words.Text(i)] = n
		}
	}
	return list
}

// sealPlaces gives all places of a generation, which were closed and empty, a new seal. It returns
// nil if one of them was open.
func (t *Topic) sealPlaces(ctx context.Context, g part.Generation, keysStay bool) (*vacancy, error) {
	over, opened := &vacancy{seal: strconv.FormatUint(rand.Uint64(), 36)}, make([]bool, g.Parts)
	err := t.eachOf(ctx, g, func(ctx context.Context, i int, k *script.Keys) (err error) {
		call, cancel := context.WithTimeout(ctx, CallTimeout)
		defer cancel()
		opened[i], err = commit.SealPlace(call, t.Server.Scripts, k, over.seal, keysStay)
		return err
	})
	if err != nil || slices.Contains(opened, true) {
		return nil, err
	}
	return over, nil
}

// lookForKeys looks which keys stay in a closed place, until a pass has ended, in so many calls at
// most: see the part_keys script. The next round goes on.
func (t *Topic) lookForKeys(ctx context.Context, k *script.Keys, calls int) error {
	for range calls {
		r, err := t.call(ctx, script.PartKeys, k, keysPage)
		if err != nil || r.Text(2) != "more" {
			return err
		}
	}
	return nil
}

// call makes a call of a script that needs no receipt.
func (t *Topic) call(ctx context.Context, s *script.Script, k *script.Keys, args ...any) (script.Reply, error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	return t.Server.Scripts.Exec(call, s, k, "", 0, args...)
}

// eachOf makes calls for each place of a generation. It returns the first error.
func (t *Topic) eachOf(ctx context.Context, g part.Generation, call func(ctx context.Context, i int, k *script.Keys) error) error {
	names := g.Names(t.Keys.Topic)
	errs := make([]error, len(names))
	abreast(ctx, len(names), mostTended, func(ctx context.Context, i int) {
		errs[i] = call(ctx, i, script.NewKeys(t.Keys.Prefix(), names[i]))
	}, errs)
	return cmp.Or(errs...)
}

// retire tells the home that all places of a generation are closed and empty, or with nil that they
// are not. It returns the map.
func (t *Topic) retire(ctx context.Context, m part.Map, g part.Generation, over *vacancy) (part.Map, error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	u, k, verdict := &t.Loops.parts.upkeep, t.Keys, 0
	if over != nil {
		verdict = 1
	} else {
		over = &vacancy{}
	}
	if u.series == nil {
		u.series = script.NewSeries()
	}
	r, err := t.Server.Scripts.Exec(call, script.PartRetire, k, k.Receipt(u.series.ID), 0, u.series.Next(), m.String(), g.Number,
		verdict, retireAfter.Milliseconds(), script.ControlChannel(k.Prefix()), k.Topic, over.seal, over.text())
	if err != nil {
		return m, err
	}
	now, err := mapOf(r.Text(2), nil)
	if has := func(one part.Generation) bool { return one == g }; err == nil && slices.ContainsFunc(m, has) && !slices.ContainsFunc(now, has) {
		t.forget(ctx, g)
	}
	return now, err
}

// forget lets what is left of the places of a generation expire that has left the map, but not that
// they are closed. If that fails, it is left.
func (t *Topic) forget(ctx context.Context, g part.Generation) {
	if g.Number == part.Home {
		return
	}
	var keys []*script.Keys
	for _, name := range g.Names(t.Keys.Topic) {
		keys = append(keys, script.NewKeys(t.Keys.Prefix(), name))
	}
	_ = t.Server.onMasters(ctx, keys, func(ctx context.Context, i int, pipe redis.Pipeliner) {
		for _, key := range []string{keys[i].Stats, keys[i].Undelivered, keys[i].Meta, keys[i].Sizes} {
			pipe.PExpire(ctx, key, keptAfter)
		}
	})
}
