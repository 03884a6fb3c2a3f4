package commit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// Errors of Resize. The topic is as before.
var (
	ErrGenerations = errors.New("too many generations of partitions still have jobs")
	errUnsteady    = errors.New("the settings or the partitions of the topic are being changed by others: try again")
)

// errOpenYet is in the error of Resize if the new partitions are in use, and some of the old ones
// are not closed. Servers of the topic close them.
var errOpenYet = errors.New("the topic has the new partitions, and some of the old ones are not closed yet")

// mostResized is how often Resize begins anew.
const mostResized = 3

// A Resized is what Resize has done.
type Resized struct {
	Before, Now part.Map
}

// Resize gives a topic another generation of partitions, and closes those before it. It is done
// already if the open generation is like that.
func (c *Groups) Resize(ctx context.Context, topic string, g part.Generation, most Settings) (Resized, error) {
	for range mostResized {
		m, last, err := c.readMap(ctx, topic)
		if err != nil {
			return Resized{}, err
		}
		if is, err := c.isLike(ctx, topic, m, g); err != nil {
			return Resized{}, err
		} else if is {
			return Resized{m, m}, c.CloseOld(ctx, topic, m)
		}
		g.Number = last + 1
		if err := c.divisible(ctx, topic, after(m, g)); err != nil {
			return Resized{}, err
		}
		next, err := c.attempt(ctx, topic, m, g, most)
		if err != nil {
			return Resized{}, err
		} else if next != nil {
			return Resized{m, next}, c.CloseOld(ctx, topic, next)
		}
	}
	return Resized{}, errUnsteady
}

// isLike reports whether the open generation of a topic is like another one, and takes new jobs. If
// it is closed, a later one was lost, or another call has taken it for lost.
func (c *Groups) isLike(ctx context.Context, topic string, m part.Map, g part.Generation) (bool, error) {
	open := m.Open()
	if open.Number == part.Home || open.Parts != g.Parts || open.ByKey != g.ByKey {
		return false, nil
	}
	closed, err := c.anyOf(ctx, c.placesOf(topic, open), func(ctx context.Context, k *script.Keys) (bool, error) {
		err := c.Redis.ZScore(ctx, k.Tombs, "").Err()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		return err == nil, c.Scripts.Blame(ctx, err, k.Tombs)
	})
	return !closed, err
}

// after returns a map with other generations.
func after(m part.Map, others ...part.Generation) part.Map {
	next := append(part.Map{}, m...)
	if len(m) == 0 {
		next = append(next, part.Generation{Number: part.Home, Parts: 1})
	}
	return append(next, others...)
}

// attempt claims a number for a generation, prepares it, and makes the map that ends with it. It
// returns nil if others have changed the map or the settings meanwhile.
func (c *Groups) attempt(ctx context.Context, topic string, m part.Map, g part.Generation, most Settings) (part.Map, error) {
	seen, err := c.witnessed(ctx, topic)
	if err != nil {
		return nil, err
	}
	home := script.NewKeys(c.Prefix, topic)
	claimed, err := c.setMap(ctx, home, m, m, "", "claim", strconv.Itoa(seen.last))
	if err != nil || claimed.Text(2) != made {
		return nil, err
	}
	if g.Number, err = strconv.Atoi(claimed.Text(5)); err != nil {
		return nil, script.ErrReply
	}
	lost, err := c.settle(ctx, topic, seen.beyond(m))
	if err != nil {
		return nil, err
	}
	next := after(m, append(lost, g)...)
	if err := c.divisible(ctx, topic, next); err != nil {
		return nil, err
	}
	if is, err := c.bearWitness(ctx, seen, next); err != nil || !is {
		return nil, err
	}
	is, err := c.open(ctx, topic, m, next, most)
	if err != nil || !is {
		return nil, err
	}
	c.maps.set(topic, next)
	return next, nil
}

// open prepares the last generation of a map, and makes the map that of the topic. It reports
// whether it has: others can have changed the map or the settings.
func (c *Groups) open(ctx context.Context, topic string, m, next part.Map, most Settings) (is bool, err error) {
	changes, err := c.copySettings(ctx, topic, next.Open(), most)
	if err != nil {
		return false, err
	}
	if err := c.divide(ctx, topic, next); err != nil {
		return false, err
	}
	r, err := c.setMap(ctx, script.NewKeys(c.Prefix, topic), m, next, changes, "set", strconv.Itoa(next.Open().Number))
	return err == nil && r.Text(2) == made, err
}

// made is the answer of the partition script if it has done what it was to do.
const made = "made"

// setMap calls the partition script: see there.
func (c *Groups) setMap(ctx context.Context, k *script.Keys, m, next part.Map, changes, verb, floor string) (script.Reply, error) {
	return c.Call(ctx, script.Partition, k, m.String(), next.String(), changes, script.ControlChannel(c.Prefix), k.Topic, verb, floor)
}

// limitsOf returns the limits of all places of a topic together, or an empty text.
func (c *Groups) limitsOf(ctx context.Context, topic string) (whole string, err error) {
	home := script.NewKeys(c.Prefix, topic)
	fields, err := c.Redis.HMGet(ctx, home.Meta, "shared", "flow").Result()
	if err != nil {
		return "", c.Scripts.Blame(ctx, err, home.Meta)
	}
	shared, _ := fields[0].(string)
	flow, _ := fields[1].(string)
	return cmp.Or(shared, flow), nil
}

// divisible returns an error if a topic cannot have a map: it has too many generations, or the
// limits are too small for so many places.
func (c *Groups) divisible(ctx context.Context, topic string, m part.Map) error {
	if len(m) > part.MostGenerations {
		return fmt.Errorf("%w, and at most %d can", ErrGenerations, part.MostGenerations)
	}
	whole, err := c.limitsOf(ctx, topic)
	if err != nil || whole == "" {
		return err
	}
	for _, p := range Places(c.Prefix, topic, m) {
		if _, err := record.ShareOfLimits(whole, p.Index, p.Of); err != nil {
			return err
		}
	}
	return nil
}

// divide gives each place of a map its share of the limits of the topic.
func (c *Groups) divide(ctx context.Context, topic string, m part.Map) error {
	whole, err := c.limitsOf(ctx, topic)
	if err != nil || whole == "" {
		return err
	}
	return eachPlace(ctx, Places(c.Prefix, topic, m), func(ctx context.Context, p Place) error {
		_, err := c.SetShare(ctx, p, whole, true)
		return err
	})
}

// SetShare sets the limits of a place to its share of those of the topic. With held, only if those
// of the topic are still the same: somebody else has set the others everywhere. It returns the
// limits that the topic had.
func (c *Groups) SetShare(ctx context.Context, p Place, whole string, held bool) (before string, err error) {
	share, err := record.ShareOfLimits(whole, p.Index, p.Of)
	if err != nil {
		return "", err
	}
	shared, verb := whole, "set"
	if p.Of <= 1 {
		shared = ""
	}
	if held {
		verb = "share"
	}
	r, err := c.Call(ctx, script.Limits, p.Keys, share, script.ControlChannel(c.Prefix), p.Keys.Topic, shared, verb)
	if err != nil {
		return "", err
	}
	return r.Text(2), nil
}

// CloseOld closes the places of all generations of a map but the last.
func (c *Groups) CloseOld(ctx context.Context, topic string, m part.Map) error {
	open := m.Open().Number
	generation := func(p Place) int {
		_, number, _, _ := part.Split(p.Keys.Topic)
		return number
	}
	old := slices.DeleteFunc(Places(c.Prefix, topic, m), func(p Place) bool { return generation(p) == open })
	if len(old) == 0 {
		return nil
	}
	err := eachPlace(ctx, old, func(ctx context.Context, p Place) error {
		return c.unsure(ClosePlace(ctx, c.Scripts, p.Keys, m.KeysStay(generation(p))))
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errOpenYet, err)
	}
	return nil
}

// ClosePlace closes a place, if it is open. Whether keys stay says its map: see
// [part.Map.KeysStay].
func ClosePlace(ctx context.Context, scripts script.Caller, k *script.Keys, keysStay bool) error {
	_, err := SealPlace(ctx, scripts, k, "", keysStay)
	return err
}

// SealPlace is ClosePlace, and gives the place a seal, unless that is empty: see the part_close
// script. It reports whether the place was open.
func SealPlace(ctx context.Context, scripts script.Caller, k *script.Keys, seal string, keysStay bool) (open bool, err error) {
	series, byKey := script.NewSeries(), 0 // several places are closed at the same time
	if keysStay {
		byKey = 1
	}
	r, err := scripts.Exec(ctx, script.PartClose, k, k.Receipt(series.ID), 0, series.Next(), seal, byKey)
	return r.Number(2) == 1, err
}
