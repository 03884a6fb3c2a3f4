package delayq

import (
	"sync/atomic"
	"time"
)

// A clock is Redis's clock as far as a server knows it: what the last answer said, and how long that is ago by the local monotonic
// clock. The answer was made between the sending of the call and its arrival, so there are two readings.
type clock struct{ last atomic.Pointer[reading] }

type reading struct {
	ms             int64
	sent, received time.Time
}

// read notes an answer.
func (c *clock) read(ms int64, sent, received time.Time) {
	c.last.Store(&reading{ms, sent, received})
}

// at is Redis's time at a local instant: it can be behind by the time an answer travels, never ahead.
func (c *clock) at(local time.Time) time.Time {
	r := c.last.Load()
	if r == nil {
		return local
	}
	return msTime(r.ms).Add(max(0, local.Sub(r.received)))
}

// latest is the latest that Redis's time can be at a local instant, in ms.
func (c *clock) latest(local time.Time) int64 {
	r := c.last.Load()
	if r == nil {
		return local.UnixMilli()
	}
	return r.ms + local.Sub(r.sent).Milliseconds() + 1
}
