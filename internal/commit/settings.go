package commit

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// Settings are the bounds that the scripts of settings are told, and what decides whether a topic
// can be divided by ID.
type Settings struct {
	Pauses, KeyLimits, HeldKeys int

	// ByID returns an error if keys have limits, by the fields flow and limited of meta.
	ByID func(flow, limited string) error
}

// Pause calls the script for pauses of a place, with its verb. The time is in ms; 0: no end.
func (c *Groups) Pause(ctx context.Context, k *script.Keys, verb, by string, ms int64, reason string, most int) (script.Reply, error) {
	return c.Call(ctx, script.Pause, k, verb, by, ms, reason, most, script.ControlChannel(c.Prefix), k.Topic)
}

// Hold holds a place for some ms. With 0 it ends the hold.
func (c *Groups) Hold(ctx context.Context, k *script.Keys, ms int64, by, reason string) (script.Reply, error) {
	return c.Call(ctx, script.Hold, k, ms, by, reason, script.ControlChannel(c.Prefix), k.Topic)
}

// SetKey sets the rule of a key in a place: see key_limits.lua.
func (c *Groups) SetKey(ctx context.Context, k *script.Keys, key, rule string, most int) (script.Reply, error) {
	return c.Call(ctx, script.KeyLimits, k, key, rule, most, script.ControlChannel(c.Prefix), k.Topic)
}

// HoldKey holds a key in a place for some ms: see key_hold.lua.
func (c *Groups) HoldKey(ctx context.Context, k *script.Keys, key string, ms int64, most int) (script.Reply, error) {
	return c.Call(ctx, script.KeyHold, k, key, ms, most, script.ControlChannel(c.Prefix), k.Topic)
}

// pageOfKeys is how many keys of rules and held are read at a time.
const pageOfKeys = 1000

// copySettings gives the new partitions of a topic what operators have set for it: pauses, the
// hold, and the limits, holds and pauses of keys. It returns the number of changes of the settings
// before it read them, as the partition script is told it.
func (c *Groups) copySettings(ctx context.Context, topic string, g part.Generation, most Settings) (changes string, err error) {
	home := script.NewKeys(c.Prefix, topic)
	fields, err := c.Redis.HMGet(ctx, home.Meta, "changes", "pauses", "hold", "holdby", "holdwhy", "flow", "limited").Result()
	if err != nil {
		return "", c.Scripts.Blame(ctx, err, home.Meta)
	}
	text := func(i int) string { s, _ := fields[i].(string); return s }
	if !g.ByKey {
		if err := most.ByID(text(5), text(6)); err != nil { // they were set since it was asked first
			return "", err
		}
	}
	changes = cmp.Or(text(0), "0")         // nothing was ever set
	now, err := c.Redis.Time(ctx).Result() // a Cluster asks any node; clocks that differ make an end differ
	if err != nil {
		return "", err
	}
	at := now.UnixMilli()
	var list []Place
	for _, name := range g.Names(topic) {
		list = append(list, Place{Keys: script.NewKeys(c.Prefix, name)})
	}
	pauses := record.DecodePauses(text(1), at)
	hold, _ := strconv.ParseInt(text(2), 10, 64)
	err = eachPlace(ctx, list, func(ctx context.Context, p Place) error {
		for _, one := range pauses {
			left := int64(0)
			if one.Until > 0 {
				left = max(1, one.Until-at)
			}
			if _, err := c.Pause(ctx, p.Keys, "pause", one.By, left, one.Reason, most.Pauses); err != nil {
				return err
			}
		}
		if hold > at {
			_, err := c.Hold(ctx, p.Keys, hold-at, text(3), text(4))
			return err
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("copy the pauses: %w", err)
	}
	if err := c.copyKeys(ctx, topic, g, at, most); err != nil {
		return "", fmt.Errorf("copy the settings of keys: %w", err)
	}
	return changes, nil
}

// A keySetting is what is set for a key.
type keySetting struct {
	key, rule string
	held      int64 // until when, Unix ms; 0: it is not held
}

// copyKeys copies the limits and holds of keys.
func (c *Groups) copyKeys(ctx context.Context, topic string, g part.Generation, at int64, most Settings) error {
	home := script.NewKeys(c.Prefix, topic)
	for cursor := uint64(0); ; {
		words, next, err := c.Redis.HScan(ctx, home.Rules, cursor, "", pageOfKeys).Result()
		if err != nil {
			return c.Scripts.Blame(ctx, err, home.Rules)
		}
		var list []keySetting
		for i := 0; i+1 < len(words); i += 2 {
			list = append(list, keySetting{key: words[i], rule: words[i+1]})
		}
		if err := c.setKeys(ctx, topic, g, list, at, most); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	for cursor := uint64(0); ; {
		words, next, err := c.Redis.ZScan(ctx, home.Held, cursor, "", pageOfKeys).Result()
		if err != nil {
			return c.Scripts.Blame(ctx, err, home.Held)
		}
		var list []keySetting
		for i := 0; i+1 < len(words); i += 2 {
			end, _ := strconv.ParseFloat(strings.TrimSpace(words[i+1]), 64)
			list = append(list, keySetting{key: words[i], held: int64(end)})
		}
		if err := c.setKeys(ctx, topic, g, list, at, most); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// pausedKey is the end of the hold of a key that is paused.
const pausedKey = 9_999_999_999_999

// setKeys sets what is set for keys in the partitions that can have jobs of them.
func (c *Groups) setKeys(ctx context.Context, topic string, g part.Generation, list []keySetting, at int64, most Settings) error {
	var places []Place
	by := make(map[string][]keySetting)
	names := g.Names(topic)
	for _, one := range list {
		of := names
		if g.ByKey {
			i := g.Index("", one.key)
			of = names[i : i+1]
		}
		for _, name := range of {
			if by[name] == nil {
				places = append(places, Place{Keys: script.NewKeys(c.Prefix, name)})
			}
			by[name] = append(by[name], one)
		}
	}
	if len(places) == 0 {
		return nil
	}
	return eachPlace(ctx, places, func(ctx context.Context, p Place) error {
		for _, one := range by[p.Keys.Topic] {
			var err error
			switch {
			case one.rule != "":
				_, err = c.SetKey(ctx, p.Keys, one.key, one.rule, most.KeyLimits)
			case one.held == pausedKey:
				_, err = c.HoldKey(ctx, p.Keys, one.key, -1, most.HeldKeys)
			case one.held > at:
				_, err = c.HoldKey(ctx, p.Keys, one.key, one.held-at, most.HeldKeys)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
