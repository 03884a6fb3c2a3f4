package commit

import (
	"context"
	"errors"
	"fmt"

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
// already if the open generation is like that. shares returns the limits that a place gets of those
// of the topic, or an error if they cannot be divided.
func (c *Groups) Resize(ctx context.Context, topic string, g part.Generation, most Settings) (Resized, error) {
	for range mostResized {
		m, last, err := c.readMap(ctx, topic)
		if err != nil {
			return Resized{}, err
		}
		if open := m.Open(); len(m) > 0 && open.Parts == g.Parts && open.ByKey == g.ByKey && open.Number != part.Home {
			return Resized{m, m}, c.CloseOld(ctx, topic, m)
		}
		if len(m) == part.MostGenerations || len(m) == 0 && g.Number+1 == part.MostGenerations {
			return Resized{}, fmt.Errorf("%w: %v", ErrGenerations, m)
		}
		next := append(part.Map{}, m...)
		if len(m) == 0 {
			next = append(next, part.Generation{Number: part.Home, Parts: 1})
		}
		g.Number = last + 1
		next = append(next, g)
		if made, err := c.open(ctx, topic, m, next, most); err != nil {
			return Resized{}, err
		} else if made {
			return Resized{m, next}, c.CloseOld(ctx, topic, next)
		}
	}
	return Resized{}, errUnsteady
}

// open prepares the last generation of a map, and makes the map that of the topic. It reports
// whether it has: others can have changed the map or the settings.
func (c *Groups) open(ctx context.Context, topic string, m, next part.Map, most Settings) (made bool, err error) {
	changes, err := c.copySettings(ctx, topic, next.Open(), most)
	if err != nil {
		return false, err
	}
	if err := c.divide(ctx, topic, next); err != nil {
		return false, err
	}
	home := script.NewKeys(c.Prefix, topic)
	r, err := c.Call(ctx, script.Partition, home, m.String(), next.String(), changes, script.ControlChannel(c.Prefix), topic)
	if err != nil {
		return false, err
	}
	if r.Text(2) != "made" {
		return false, nil
	}
	c.maps.set(topic, next)
	return true, nil
}

// divide gives each place of a map its share of the limits of the topic.
func (c *Groups) divide(ctx context.Context, topic string, m part.Map) error {
	home := script.NewKeys(c.Prefix, topic)
	fields, err := c.Redis.HMGet(ctx, home.Meta, "shared", "flow").Result()
	if err != nil {
		return c.Scripts.Blame(ctx, err, home.Meta)
	}
	whole, _ := fields[0].(string)
	if whole == "" {
		whole, _ = fields[1].(string)
	}
	if whole == "" {
		return nil
	}
	open := m.Open().Number
	return eachPlace(ctx, Places(c.Prefix, topic, m), func(ctx context.Context, p Place) error {
		if p.Of == 0 { // a home that is out of use
			return nil
		}
		// A call that has failed can have left other limits in the new partitions.
		_, g, _, _ := part.Split(p.Keys.Topic)
		_, err := c.SetShare(ctx, p, whole, g != open)
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
	var old []Place
	for _, p := range Places(c.Prefix, topic, m) {
		if _, g, _, _ := part.Split(p.Keys.Topic); g != open {
			old = append(old, p)
		}
	}
	if len(old) == 0 {
		return nil
	}
	err := eachPlace(ctx, old, func(ctx context.Context, p Place) error {
		return c.unsure(ClosePlace(ctx, c.Scripts, p.Keys))
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errOpenYet, err)
	}
	return nil
}

// ClosePlace closes a place, if it is open.
func ClosePlace(ctx context.Context, scripts script.Caller, k *script.Keys) error {
	series := script.NewSeries() // several places are closed at the same time
	_, err := scripts.Exec(ctx, script.PartClose, k, k.Receipt(series.ID), 0, series.Next())
	return err
}
