package commit

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// errClosed is the error of a new job that no partition takes: Redis has lost the latest map of the
// topic, as a failover can do. Servers of the topic make it anew.
var errClosed = errors.New("no partition of the topic takes new jobs: Redis has lost the latest ones, until a server of the topic restores them")

// mostMaps is the number of topics whose maps a client keeps.
const mostMaps = 10_000

// mapped holds the maps of the partitioned topics that a client uses. A client learns a map when a
// place says that it is closed, so that it costs nothing as long as no topic is partitioned.
type mapped struct {
	mu  sync.Mutex
	all atomic.Pointer[map[string]part.Map] // replaced as a whole
}

// of returns the map of a topic, as far as is known. It is nil if the topic has no partitions.
func (m *mapped) of(topic string) part.Map {
	if all := m.all.Load(); all != nil {
		return (*all)[topic]
	}
	return nil
}

// set remembers a map.
func (m *mapped) set(topic string, now part.Map) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[string]part.Map)
	if all := m.all.Load(); all != nil && len(*all) < mostMaps {
		next = maps.Clone(*all)
	}
	if now == nil {
		delete(next, topic)
	} else {
		next[topic] = now
	}
	m.all.Store(&next)
}

// ReadMap reads the map of a topic, and the highest number that a generation of it has had.
func ReadMap(ctx context.Context, scripts script.Caller, k *script.Keys) (m part.Map, last int, err error) {
	r, err := scripts.Exec(ctx, script.PartMap, k, "", 0)
	if err != nil {
		return nil, 0, err
	}
	if m, err = part.ParseMap(r.Text(2)); err != nil {
		return nil, 0, err
	}
	last, _ = strconv.Atoi(r.Text(3))
	return m, max(last, m.Open().Number), nil
}

// ReadMap reads the map of a topic, and remembers it.
func (c *Groups) ReadMap(ctx context.Context, topic string) (part.Map, error) {
	m, _, err := c.readMap(ctx, topic)
	return m, err
}

func (c *Groups) readMap(ctx context.Context, topic string) (m part.Map, last int, err error) {
	if m, last, err = ReadMap(ctx, c.Scripts, script.NewKeys(c.Prefix, topic)); err == nil {
		c.maps.set(topic, m)
	}
	return m, last, err
}

// readPast reads all generations of a topic that there have been while the receipts of plans are
// kept, without the home, the oldest first.
func (c *Groups) readPast(ctx context.Context, topic string) (part.Map, error) {
	r, err := c.Scripts.Exec(ctx, script.PartMap, script.NewKeys(c.Prefix, topic), "", 0)
	if err != nil {
		return nil, err
	}
	m, err := part.ParseMap(r.Text(2))
	if err != nil {
		return nil, err
	}
	past, err := part.ParsePast(r.Text(4))
	if err != nil {
		return nil, err
	}
	c.maps.set(topic, m)
	all := slices.DeleteFunc(append(past, m...), func(g part.Generation) bool { return g.Number == part.Home })
	slices.SortFunc(all, func(a, b part.Generation) int { return a.Number - b.Number })
	return all, nil
}
