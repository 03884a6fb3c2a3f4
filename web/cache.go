package web

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"
)

const (
	cacheEntries = 512              // results that are kept at most
	cacheBytes   = 32 << 20         // that they have at most, about
	fetchTimeout = 10 * time.Second // of what one entry reads
)

// A cache shares what was read from Redis among all viewers. It starts no goroutine: who finds an
// entry too old reads it again, and the others wait for that. What is too old is dropped when the
// next entry is added.
type cache struct {
	every time.Duration

	mu      sync.Mutex
	entries map[string]*entry
	bytes   int // of the results in entries
}

// An entry is one result. The fields from at on are set before done is closed. size is guarded by
// the mutex of the cache.
type entry struct {
	done  chan struct{}
	keep  time.Duration // it is young for that long, if that is longer than every
	size  int           // of the result; 0: it is under way
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
// no earlier than keep. Errors are results too, so that an outage is not made worse by many
// viewers.
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
			c.weigh(key, e)
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

// add adds an entry that is under way. It drops those that are too old. If there are still too
// many, it drops any.
func (c *cache) add(key string, e *entry) {
	if c.entries == nil {
		c.entries = make(map[string]*entry)
	}
	c.drop(key)
	for k, old := range c.entries {
		if !old.fresh(c.every) {
			c.drop(k)
		}
	}
	for k := range c.entries {
		if len(c.entries) < cacheEntries {
			break
		}
		c.drop(k)
	}
	c.entries[key] = e
}

// weigh notes the size of a result, and drops others if all are too large together. A result that
// is too large alone is for those who wait for it, and is not kept.
func (c *cache) weigh(key string, e *entry) {
	size := 1 + len(key) + sizeOf(e.value)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] != e { // it was dropped meanwhile
		return
	}
	e.size = size
	c.bytes += size
	if size > cacheBytes {
		c.drop(key)
	}
	for k, other := range c.entries {
		if c.bytes <= cacheBytes {
			break
		}
		if other != e && other.size > 0 {
			c.drop(k)
		}
	}
}

// drop drops an entry, if there is one.
func (c *cache) drop(key string) {
	if e := c.entries[key]; e != nil {
		c.bytes -= e.size
		delete(c.entries, key)
	}
}

// forget drops all results, after an act.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.bytes = 0
}

// sizeOf returns about how many bytes of memory a result has: what it and all that it leads to
// take. What two pointers lead to counts twice. Results have no cycles.
func sizeOf(value any) int {
	if value == nil {
		return 0
	}
	return sizeOfValue(reflect.ValueOf(value))
}

func sizeOfValue(v reflect.Value) int {
	return int(v.Type().Size()) + outsideOf(v)
}

// outsideOf returns the bytes of what a value refers to.
func outsideOf(v reflect.Value) (size int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() || v.Type() == zoneType {
			return 0
		}
		return sizeOfValue(v.Elem())
	case reflect.Slice:
		size = v.Cap() * int(v.Type().Elem().Size())
		if kind := v.Type().Elem().Kind(); kind == reflect.Uint8 || kind == reflect.Int64 {
			return size
		}
		for i := range v.Len() {
			size += outsideOf(v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			size += outsideOf(v.Index(i))
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			size += sizeOfValue(each.Key()) + sizeOfValue(each.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			size += outsideOf(v.Field(i))
		}
	}
	return size
}

// zoneType is that of time zones, which all times share.
var zoneType = reflect.TypeFor[*time.Location]()

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
