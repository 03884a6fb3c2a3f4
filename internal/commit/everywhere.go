package commit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A Place is a topic that has jobs of a topic: the home, or a partition.
type Place struct {
	Keys      *script.Keys
	Index, Of int  // its number among the places that share the limits
	ByID      bool // a partition that can have any key
}

// mostFailures is how many failed places an error names.
const mostFailures = 10

// Places returns the places of a topic, the home first. They share the limits of the topic. So does
// a home that has left the map: the jobs of schedules run there.
func Places(prefix, topic string, m part.Map) []Place {
	list := []Place{{Keys: script.NewKeys(prefix, topic)}}
	for _, g := range m {
		if g.Number == part.Home {
			continue
		}
		for _, name := range g.Names(topic) {
			list = append(list, Place{Keys: script.NewKeys(prefix, name), Index: len(list), ByID: !g.ByKey && g.Parts > 1})
		}
	}
	for i := range list {
		list[i].Of = len(list)
	}
	return list
}

// Everywhere calls act for each place of a topic, several at a time, unless one of them does not
// fit: then it returns that error. Partitions that are added meanwhile follow: with afresh, because
// the number of places matters, together with all others. The error of act says which places have
// failed.
func (c *Groups) Everywhere(
	ctx context.Context, topic string, afresh bool, fits func(p Place) error, act func(ctx context.Context, p Place) error,
) error {
	m, err := c.ReadMap(ctx, topic)
	if err != nil {
		return err
	}
	acted := make(map[string]bool)
	for {
		var list []Place
		for _, p := range Places(c.Prefix, topic, m) {
			if err := fits(p); err != nil {
				return err
			}
			if !acted[p.Keys.Topic] {
				acted[p.Keys.Topic] = true
				list = append(list, p)
			}
		}
		if err := eachPlace(ctx, list, act); err != nil {
			return err
		}
		now, err := c.ReadMap(ctx, topic)
		if err != nil {
			return c.unsure(err) // there may be places in which nothing was done
		}
		if now.String() == m.String() {
			return nil
		}
		if m = now; afresh {
			clear(acted)
		}
	}
}

// eachPlace calls act for places, several at a time.
func eachPlace(ctx context.Context, list []Place, act func(ctx context.Context, p Place) error) error {
	if len(list) == 1 {
		return placed(list[0].Keys.Topic, act(ctx, list[0]))
	}
	failed := make([]error, len(list))
	var group sync.WaitGroup
	room := make(chan struct{}, abreast)
	for i, p := range list {
		room <- struct{}{}
		contain.Launch(&group, func() {
			defer func() { <-room }()
			failed[i] = act(ctx, p)
		}, func(c *contain.Crash) { failed[i] = fmt.Errorf("%w: %w", script.ErrCut, c) })
	}
	group.Wait()
	var first []error
	n := 0
	for i, err := range failed {
		if err == nil {
			continue
		}
		if n++; n <= mostFailures {
			first = append(first, placed(list[i].Keys.Topic, err))
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d partitions: %w", n, len(list), errors.Join(first...))
}

// placed says of which partition an error is, if it does not say so itself.
func placed(place string, err error) error {
	var at *script.Place
	if errors.As(err, &at) && at.Topic == place {
		return err
	}
	if _, g, i, ok := part.Split(place); ok && err != nil {
		return fmt.Errorf("partition %d of generation %d: %w", i, g, err)
	}
	return err
}

// Call makes a call of a script with a receipt.
func (c *Groups) Call(ctx context.Context, s *script.Script, k *script.Keys, args ...any) (script.Reply, error) {
	series := c.Series.Get()
	r, err := c.Scripts.Exec(ctx, s, k, k.Receipt(series.ID), 0, append([]any{series.Next()}, args...)...)
	c.Series.Put(series, err)
	if err != nil {
		return nil, c.unsure(err)
	}
	return r, nil
}
