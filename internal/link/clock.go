package link

import (
	"sync"
	"time"
)

// A Clock is an estimate of the clock of one Redis. A reply contains Redis's time at some moment
// between the sending of the call and the arrival of the reply. So each reply gives two bounds:
// Redis's clock showed at least that time when the reply arrived, and at most that time when the
// call was sent. A reply can be delayed on its way, so the clock keeps the closest bounds of all
// replies. A reply that contradicts them shows that Redis's clock was set, and replaces them.
type Clock struct {
	mu       sync.Mutex
	low      reading   // the best lower bound: counted from the arrival of its reply
	high     reading   // the best upper bound: counted from the sending of its call
	setBacks int       // how often Redis's clock was set back
	since    time.Time // when the first reply was asked for that contradicts no later one
	read     time.Time // when the latest reply arrived
}

type reading struct {
	ms int64
	at time.Time // by the local monotonic clock; zero: none
}

// rateError bounds by how much the rates of two clocks may differ: one part in that many.
const rateError = 1000

// least and most return the least, or the most, that Redis's clock shows at another local instant.
func (r reading) least(local time.Time) time.Time { return r.on(local, -1) }
func (r reading) most(local time.Time) time.Time  { return r.on(local, 1) }

func (r reading) on(local time.Time, sign time.Duration) time.Time {
	d := local.Sub(r.at)
	return time.UnixMilli(r.ms).Add(d + sign*d.Abs()/rateError)
}

// Read notes a reply.
func (c *Clock) Read(ms int64, sent, received time.Time) {
	low, high, said := reading{ms, received}, reading{ms, sent}, time.UnixMilli(ms)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = received
	back := c.low.least(sent).Sub(said) > time.Millisecond // more than the truncated part
	switch {
	case c.low.at.IsZero(), said.Sub(c.high.most(received)) > time.Millisecond, back:
		if !c.low.at.IsZero() && back {
			c.setBacks++
		}
		c.low, c.high, c.since = low, high, sent
	default:
		if !c.low.least(received).After(said) {
			c.low = low
		}
		if !c.high.most(sent).Before(said) {
			c.high = high
		}
	}
}

// At returns Redis's time at a local instant. It can lag by the travel time of a reply, but never
// runs ahead.
func (c *Clock) At(local time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.low.at.IsZero() {
		return local
	}
	return time.UnixMilli(c.low.ms).Add(max(0, local.Sub(c.low.at)))
}

// Known reports whether there has been a reply.
func (c *Clock) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.low.at.IsZero()
}

// Earliest returns a time in ms that Redis's clock has certainly passed at a local instant, even if
// the rates of the two clocks differ slightly. The result never falls unless Redis's clock is set.
func (c *Clock) Earliest(local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.low.at.IsZero() {
		return local.UnixMilli()
	}
	return c.low.least(local).UnixMilli() - 1
}

// Latest returns the latest time in ms that Redis's clock can show at a local instant.
func (c *Clock) Latest(local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.high.at.IsZero() {
		return local.UnixMilli()
	}
	return c.high.most(local).UnixMilli() + 1
}

// Bounds returns the least and the most that Redis's clock shows at a local instant, in whole ms,
// as if the two ran at the same rate. It reports whether they are of use: the latest reply is no
// older than fresh, and replies over a time of at least steady agree that Redis's clock runs. That
// of a test can stand still.
func (c *Clock) Bounds(local time.Time, fresh, steady time.Duration) (least, most int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.low.at.IsZero() || local.Sub(c.read) > fresh || c.read.Sub(c.since) < steady {
		return 0, 0, false
	}
	almost := time.Millisecond - 1
	return c.low.on(local, 0).UnixMilli(), c.high.on(local, 0).Add(almost).UnixMilli(), true
}

// SetsBack returns how often Redis's clock was set back.
func (c *Clock) SetsBack() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setBacks
}
