package serve

import (
	"cmp"
	"context"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

const (
	// mostTended is the most places of a topic that are asked or told something at the same time.
	mostTended = 8

	// retireAfter is for how long the places of a generation must be empty before it leaves the
	// map.
	retireAfter = time.Second
)

// Upkeep is what must be done for a topic with partitions, whoever began it. All places but those
// of the last generation must be closed: an operator can have died before that, and a failover can
// open one again. A generation whose places are empty leaves the map. A map that a failover has cut
// is made anew by the servers that know it. Each place must have its share of the limits: a call
// that was to make partitions and has failed can have divided them in vain. One server does that in
// each round, and at once after a change.

// upkeep is the state of that. Only the parts loop uses it.
type upkeep struct{ series *script.Series }

// tend looks after the places of a topic, unless another server does. read is the map in Redis.
func (t *Topic) tend(ctx context.Context, read part.Map) error {
	m := t.Loops.parts.have()
	if t.cut(read) {
		_, err := t.retire(ctx, m, part.Generation{}, false)
		if err == nil {
			t.trouble.log.Error("map of partitions restored", "err", "Redis has lost the latest one", "found", read.String(), "map", m.String())
		}
		return err
	}
	whole, flow, err := t.limitsNow(ctx)
	if err != nil || m == nil && whole == flow {
		return err
	}
	if mine, err := t.claimUpkeep(ctx, m, whole); err != nil || !mine {
		return err
	}
	return cmp.Or(t.closeOld(ctx, m), t.divide(ctx, m, whole, flow))
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
		if _, err := t.closePlaces(ctx, part.Generation{Parts: 1}); err != nil {
			return err
		}
	}
	var failed error
	for _, g := range m[:len(m)-1] {
		over, err := t.closePlaces(ctx, g)
		if err == nil {
			m, err = t.retire(ctx, m, g, over)
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// closePlaces closes the places of a generation that are open. It reports whether all of them were
// closed and empty.
func (t *Topic) closePlaces(ctx context.Context, g part.Generation) (over bool, err error) {
	names := g.Names(t.Keys.Topic)
	left, errs := make([]bool, len(names)), make([]error, len(names))
	abreast(ctx, len(names), mostTended, func(ctx context.Context, i int) {
		left[i], errs[i] = t.closePlace(ctx, script.NewKeys(t.Keys.Prefix(), names[i]))
	}, errs)
	over = true
	for i := range names {
		over = over && !left[i] && errs[i] == nil
		if err == nil {
			err = errs[i]
		}
	}
	return over, err
}

// closePlace closes a place if it is open. It reports whether it was, or has anything left.
func (t *Topic) closePlace(ctx context.Context, k *script.Keys) (left bool, err error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	r, err := t.Server.Scripts.Exec(call, script.PartEmpty, k, "", 0)
	if err != nil {
		return true, err
	}
	if closed := r.Number(2) == 1; closed {
		return r.Number(4) > 0, nil
	}
	return true, commit.ClosePlace(call, t.Server.Scripts, k)
}

// retire tells the home whether all places of a generation are empty. It returns the map.
func (t *Topic) retire(ctx context.Context, m part.Map, g part.Generation, over bool) (part.Map, error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	u, k, verdict := &t.Loops.parts.upkeep, t.Keys, 0
	if over {
		verdict = 1
	}
	if u.series == nil {
		u.series = script.NewSeries()
	}
	r, err := t.Server.Scripts.Exec(call, script.PartRetire, k, k.Receipt(u.series.ID), 0,
		u.series.Next(), m.String(), g.Number, verdict, retireAfter.Milliseconds(), script.ControlChannel(k.Prefix()), k.Topic)
	if err != nil {
		return m, err
	}
	return mapOf(r.Text(2), nil)
}
