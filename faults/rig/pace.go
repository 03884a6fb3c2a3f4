package rig

import (
	"net"
	"sync"
	"time"
)

// Bandwidths of links, in bytes a second of payload: what is left of the nominal figure when the
// frames of Ethernet, IP and TCP have had their share.
const (
	Mbit100 = 12_500_000 * 94 / 100
	Gbit1   = 125_000_000 * 94 / 100
)

// How a link of limited bandwidth carries bytes: in pieces, so that connections share it, and with
// a little credit for the time by which a sleep is longer than it was to be.
const (
	piece  = 16 << 10
	credit = 2 * time.Millisecond
)

// A lane is one direction of a link: all connections share its bandwidth.
type lane struct {
	mu   sync.Mutex
	rate int64     // bytes a second; 0: as fast as it goes
	free time.Time // when all that was accepted has been carried
}

func (l *lane) narrow(rate int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = rate
}

// accept tells how long n bytes take until they are through, counting what was accepted before.
func (l *lane) accept(n int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate == 0 {
		return 0
	}
	now := time.Now()
	if earliest := now.Add(-credit); l.free.Before(earliest) {
		l.free = earliest
	}
	l.free = l.free.Add(time.Duration(int64(n) * int64(time.Second) / l.rate))
	return l.free.Sub(now)
}

// A paced is the far end of a connection that is reached over a lane.
type paced struct {
	net.Conn
	lane *lane
	over <-chan struct{}
}

func (c *paced) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), piece)]
		if wait := c.lane.accept(len(part)); wait > 0 {
			select {
			case <-time.After(wait):
			case <-c.over:
				return n, errOver
			}
		}
		k, err := c.Conn.Write(part)
		if n += k; err != nil {
			return n, err
		}
		p = p[len(part):]
	}
	return n, nil
}
