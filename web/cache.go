package web

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	cacheEntries = 512              // results that are kept at most
	fetchTimeout = 10 * time.Second // of what one entry reads
)

// A cache shares what was read from Redis among all viewers. It starts no goroutine: who finds an
// entry too old reads it again, and the others wait for that.
type cache struct {
	every time.Duration

	mu      sync.Mutex
	entries map[string]*entry
}

// An entry is one result. value, err and at are set before done is closed.
type entry struct {
	done  chan struct{}
	keep  time.Duration // it is young for that long, if that is longer than every
	at    time.Time
	value any
	err   error
}

// fresh reports whether an entry is under way or young enough.
func (e *entry) fresh(every time.Duration) bool {
	select {
	case <-e.done:
		return time.Since(e.at) < max(every, e.keep)
	default:
		return true
	}
}

// errFetch is what the others get if a read has panicked.
var errFetch = errors.New("the read was interrupted")

// get returns the result of a key, which fetch reads if there is none or if it is too old, which is
// no earlier than keep. Errors
// are results too, so that an outage is not made worse by many viewers.
func (c *cache) get(ctx context.Context, key string, keep time.Duration, fetch func(context.Context) (any, error)) (any, error) {
	c.mu.Lock()
	e := c.entries[key]
	if e == nil || !e.fresh(c.every) {
		e = &entry{done: make(chan struct{}), keep: keep, err: errFetch}
		c.add(key, e)
		c.mu.Unlock()
		defer func() {
			e.at = time.Now()
			close(e.done)
		}()
		// The first viewer may leave, and the others still wait.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		e.value, e.err = fetch(call)
		return e.value, e.err
	}
	c.mu.Unlock()
	select {
	case <-e.done:
		return e.value, e.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// add adds an entry. If there are too many, it drops old ones first, and then any.
func (c *cache) add(key string, e *entry) {
	if c.entries == nil {
		c.entries = make(map[string]*entry)
	}
	if len(c.entries) >= cacheEntries {
		for k, old := range c.entries {
			if !old.fresh(c.every) {
				delete(c.entries, k)
			}
		}
	}
	for k := range c.entries {
		if len(c.entries) < cacheEntries {
			break
		}
		delete(c.entries, k)
	}
	c.entries[key] = e
}

// forget drops all results, after an act.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
}

// read is get with the type of the result.
func read[T any](h *Handler, ctx context.Context, key string, fetch func(context.Context) (T, error)) (T, error) {
	return readFor(h, ctx, 0, key, fetch)
}

// readFor is read for what is kept longer, because it changes more slowly.
func readFor[T any](h *Handler, ctx context.Context, keep time.Duration, key string, fetch func(context.Context) (T, error)) (T, error) {
	value, err := h.shared.get(ctx, key, keep, func(ctx context.Context) (any, error) { return fetch(ctx) })
	if err != nil {
		var zero T
		return zero, err
	}
	return value.(T), nil
}
