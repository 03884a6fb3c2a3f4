package commit

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A failover of the master of a home can lose the latest map. Then no call at home knows the latest
// partitions, and another Partition call could give its own the same numbers: those that are there
// would have jobs, and nobody would serve them. So each call tells its map to the witnesses of the
// topic before it stores that at home, and reads theirs before that. The witnesses are three places
// that have no jobs, in three parts of the slots, so hardly all of them are lost at a time.

// witnesses is the number of them.
const witnesses = 3

// witnessesOf returns the witnesses of a topic: the places "<topic>#0.<i>.<x>", where x is the
// lowest whole number, in base 36, for which the slot is in the i-th of three parts.
func witnessesOf(prefix, topic string) []*script.Keys {
	list := make([]*script.Keys, witnesses)
	for i := range list {
		for x := int64(0); list[i] == nil; x++ {
			name := topic + "#0." + strconv.Itoa(i) + "." + strconv.FormatInt(x, 36)
			if part.Range(name, witnesses) == i {
				list[i] = script.NewKeys(prefix, name)
			}
		}
	}
	return list
}

// A testimony is what the witnesses of a topic say.
type testimony struct {
	keys []*script.Keys
	maps []part.Map
	last int // the highest number of a generation
}

// witnessed asks the witnesses of a topic.
func (c *Groups) witnessed(ctx context.Context, topic string) (*testimony, error) {
	all := &testimony{keys: witnessesOf(c.Prefix, topic)}
	for _, k := range all.keys {
		m, last, err := ReadMap(ctx, c.Scripts, k)
		if err != nil {
			return nil, err
		}
		all.maps, all.last = append(all.maps, m), max(all.last, last)
	}
	return all, nil
}

// beyond returns the generations that are later than those of the map at home, the oldest first.
// Each is of a call that has failed before it stored its map, or of one whose map is lost.
func (t *testimony) beyond(m part.Map) (list []part.Generation) {
	for _, g := range slices.Concat(t.maps...) {
		known := slices.ContainsFunc(list, func(o part.Generation) bool { return o.Number == g.Number })
		if g.Number > m.Open().Number && !known {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b part.Generation) int { return a.Number - b.Number })
	return list
}

// bearWitness tells the witnesses a map. It reports whether it has: another call can have told them
// another one meanwhile.
func (c *Groups) bearWitness(ctx context.Context, seen *testimony, m part.Map) (is bool, err error) {
	for i, k := range seen.keys {
		r, err := c.setMap(ctx, k, seen.maps[i], m, "", "set", "")
		if err != nil || r.Text(2) != made {
			return false, err
		}
	}
	return true, nil
}

// settle finds out which of some generations were in use, and returns them. It closes all of them,
// so that the others remain unused. What these have been set to is deleted. The number that the
// caller has claimed keeps the call that has made a generation from storing its map from now on.
func (c *Groups) settle(ctx context.Context, topic string, list []part.Generation) (used []part.Generation, err error) {
	for _, g := range list {
		places := c.placesOf(topic, g)
		err := eachPlace(ctx, places, func(ctx context.Context, p Place) error {
			return c.unsure(ClosePlace(ctx, c.Scripts, p.Keys, false))
		})
		if err != nil {
			return nil, err
		}
		is, err := c.anyOf(ctx, places, c.wasUsed)
		if err != nil {
			return nil, err
		}
		if is {
			used = append(used, g)
			continue
		}
		err = eachPlace(ctx, places, func(ctx context.Context, p Place) error {
			_, err := c.RemoveKeys(ctx, p.Keys)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return used, nil
}

// placesOf returns the places of a generation.
func (c *Groups) placesOf(topic string, g part.Generation) (list []Place) {
	for _, name := range g.Names(topic) {
		list = append(list, Place{Keys: script.NewKeys(c.Prefix, name)})
	}
	return list
}

// anyOf reports whether something is true of one of some places.
func (c *Groups) anyOf(ctx context.Context, list []Place, is func(ctx context.Context, k *script.Keys) (bool, error)) (bool, error) {
	var found atomic.Bool
	err := eachPlace(ctx, list, func(ctx context.Context, p Place) error {
		yes, err := is(ctx, p.Keys)
		if yes {
			found.Store(true)
		}
		return err
	})
	return found.Load(), err
}

// wasUsed reports whether a job was ever stored in a place.
func (c *Groups) wasUsed(ctx context.Context, k *script.Keys) (bool, error) {
	n, err := c.Redis.Exists(ctx, k.Pool, k.Done, k.Stats).Result()
	return n > 0, c.Scripts.Blame(ctx, err, k.Pool)
}

// RemoveKeys deletes the keys of a place that has no jobs: see the remove_topic script.
func (c *Groups) RemoveKeys(ctx context.Context, k *script.Keys) (script.Reply, error) {
	return c.Call(ctx, script.RemoveTopic, k)
}
