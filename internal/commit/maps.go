package commit

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// errClosed is the error of a new job that no partition takes: Redis has lost the latest map of the
// topic, as a failover can do. Servers of the topic make it anew.
var errClosed = errors.New("no partition of the topic takes new jobs: Redis has lost the latest ones, until a server of the topic restores them")

// mostMaps is the number of topics whose maps a client keeps.
const mostMaps = 10_000

// mapServes is for how long a map with several generations is used. Each job costs a call for each
// of them, also for those that have left the map meanwhile.
const mapServes = time.Minute

// mapped holds the maps of the partitioned topics that a client uses. A client learns a map when a
// place says that it is closed, so that it costs nothing as long as no topic is partitioned.
type mapped struct {
	mu  sync.Mutex
	all atomic.Pointer[map[string]*knownMap] // replaced as a whole
}

// A knownMap is a map that was read, or that this client has made.
type knownMap struct {
	part.Map
	asked atomic.Pointer[time.Time] // when it was last read, or a reading of it began
}

// of returns the map of a topic, as far as is known. It is nil if the topic has no partitions, and
// empty but not nil if the known one is too old, so that the caller must read it.
func (m *mapped) of(topic string) part.Map {
	known := m.known(topic)
	switch {
	case known == nil:
		return nil
	case len(known.Map) > 1 && time.Since(*known.asked.Load()) > mapServes:
		return part.Map{}
	}
	return known.Map
}

func (m *mapped) known(topic string) *knownMap {
	if all := m.all.Load(); all != nil {
		return (*all)[topic]
	}
	return nil
}

// reads notes that the map of a topic is being read. The known one serves others meanwhile, and if
// it cannot be read for as long as a new one would: an old map is as true, and only costs more.
func (m *mapped) reads(topic string) {
	if known := m.known(topic); known != nil {
		now := time.Now()
		known.asked.Store(&now)
	}
}

// set remembers a map.
func (m *mapped) set(topic string, now part.Map) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[string]*knownMap)
	if all := m.all.Load(); all != nil && len(*all) < mostMaps {
		next = maps.Clone(*all)
	}
	if now == nil {
		delete(next, topic)
	} else {
		known, at := &knownMap{Map: now}, time.Now()
		known.asked.Store(&at)
		next[topic] = known
	}
	m.all.Store(&next)
}

// ReadMap reads the map of a topic, and the highest number that a generation of it has had.
func ReadMap(ctx context.Context, scripts script.Caller, k *script.Keys) (m part.Map, last int, err error) {
	r, m, err := askMap(ctx, scripts, k)
	if err != nil {
		return nil, 0, err
	}
	last, _ = strconv.Atoi(r.Text(3))
	return m, max(last, m.Open().Number), nil
}

// askMap calls the script that reads the map of a topic.
func askMap(ctx context.Context, scripts script.Caller, k *script.Keys) (r script.Reply, m part.Map, err error) {
	if r, err = scripts.Exec(ctx, script.PartMap, k, "", 0); err == nil {
		m, err = part.ParseMap(r.Text(2))
	}
	return r, m, err
}

// ReadMap reads the map of a topic, and remembers it. That of a topic without partitions has the
// home alone.
func (c *Groups) ReadMap(ctx context.Context, topic string) (part.Map, error) {
	m, _, err := c.readMap(ctx, topic)
	if err == nil && m == nil {
		m = part.Map{m.Open()}
	}
	return m, err
}

func (c *Groups) readMap(ctx context.Context, topic string) (m part.Map, last int, err error) {
	c.maps.reads(topic)
	if m, last, err = ReadMap(ctx, c.Scripts, script.NewKeys(c.Prefix, topic)); err == nil {
		c.maps.set(topic, m)
	}
	return m, last, err
}

// pastOfPlans is for how long a generation that has left the map is asked by plans: longer than the
// receipts of their calls are kept. Redis remembers it for longer.
const pastOfPlans = RowsReceipt + 24*time.Hour

// readPast reads all generations of a topic that there have been while the receipts of plans are
// kept, without the home, the oldest first.
func (c *Groups) readPast(ctx context.Context, topic string) (part.Map, error) {
	r, m, err := askMap(ctx, c.Scripts, script.NewKeys(c.Prefix, topic))
	if err != nil {
		return nil, err
	}
	words := slices.DeleteFunc(strings.Fields(r.Text(4)), func(word string) bool {
		_, at, _ := strings.Cut(word, "@")
		left, err := strconv.ParseInt(at, 10, 64)
		return err == nil && left < r.Now()-pastOfPlans.Milliseconds()
	})
	past, err := part.ParsePast(strings.Join(words, " "))
	if err != nil {
		return nil, err
	}
	c.maps.set(topic, m)
	all := slices.DeleteFunc(append(past, m...), func(g part.Generation) bool { return g.Number == part.Home })
	slices.SortFunc(all, func(a, b part.Generation) int { return a.Number - b.Number })
	return all, nil
}
