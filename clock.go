package delayq

import (
	"sync"
	"time"
)

// A clock is what a server knows of Redis's clock. An answer says what that was at some moment between
// the sending of the call and the arrival of the answer. So each gives two bounds: Redis's clock has
// shown at least that when the answer arrived, and at most that when the call was sent. Of all answers
// those are kept whose bounds are the closest, because an answer may be long on its way. An answer that
// contradicts them shows that Redis's clock was set, and takes their place.
type clock struct {
	mu       sync.Mutex
	low      reading // the best lower bound: counted from when its answer arrived
	high     reading // the best upper bound: counted from when its call was sent
	setBacks int     // how often Redis's clock was set back
}

type reading struct {
	ms int64
	at time.Time // by the local monotonic clock; zero: there is none
}

// rateError is by how much two clocks may differ in their rates: by one part in so many.
const rateError = 1000

// least and most are what Redis's clock shows at least, or at most, at another local instant.
func (r reading) least(local time.Time) time.Time { return r.on(local, -1) }
func (r reading) most(local time.Time) time.Time  { return r.on(local, 1) }

func (r reading) on(local time.Time, sign time.Duration) time.Time {
	d := local.Sub(r.at)
	return msTime(r.ms).Add(d + sign*d.Abs()/rateError)
}

// read notes an answer.
func (c *clock) read(ms int64, sent, received time.Time) {
	low, high, said := reading{ms, received}, reading{ms, sent}, msTime(ms)
	c.mu.Lock()
	defer c.mu.Unlock()
	back := c.low.least(sent).Sub(said) > time.Millisecond // more than what is cut off
	switch {
	case c.low.at.IsZero(), said.Sub(c.high.most(received)) > time.Millisecond, back:
		if !c.low.at.IsZero() && back {
			c.setBacks++
		}
		c.low, c.high = low, high
	default:
		if !c.low.least(received).After(said) {
			c.low = low
		}
		if !c.high.most(sent).Before(said) {
			c.high = high
		}
	}
}

// at is Redis's time at a local instant: it can be behind by the time an answer travels, never ahead.
func (c *clock) at(local time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.low.at.IsZero() {
		return local
	}
	return msTime(c.low.ms).Add(max(0, local.Sub(c.low.at)))
}

// earliest is a time in ms that Redis's clock has passed for sure at a local instant, also if the two
// clocks do not go at quite the same rate. Without a step of Redis's clock it never falls.
func (c *clock) earliest(local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.low.at.IsZero() {
		return local.UnixMilli()
	}
	return c.low.least(local).UnixMilli() - 1
}

// latest is the latest that Redis's time can be at a local instant, in ms.
func (c *clock) latest(local time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.high.at.IsZero() {
		return local.UnixMilli()
	}
	return c.high.most(local).UnixMilli() + 1
}

// sets tells how often Redis's clock was set back.
func (c *clock) sets() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setBacks
}
