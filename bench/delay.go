package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
)

// A Redis that is far away is a near one whose replies are handed over a round
// trip after they have come. That happens inside the connection of the client:
// no process between takes a core, and each byte costs both peers the same. It
// holds bytes up and does not limit their rate.

// Bounds of what is on its way: what has been read of all connections, the
// bytes of one of them that have not been handed over, and the bytes of a read.
const (
	wayArrivals = 1 << 16
	mostHeld    = 4 << 20
	readBytes   = 32 << 10
)

// dialer opens connections.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// distance hands over what its connections receive a round trip later.
type distance struct {
	trip  time.Duration
	pause func(time.Duration) // blocks for exactly that long
	queue chan arrival        // in the order of due, because the trip is the same for all
	gone  chan struct{}       // closed: nothing arrives any more
	ended chan struct{}       // closed when the clock has ended
}

// arrival is what one read of a connection gave.
type arrival struct {
	due  time.Time // when it is handed over
	conn *farConn
	size int
	end  bool // with what was read, the connection has failed or has ended
}

// newDistance starts the clock of a distance. Its owner calls close.
func newDistance(trip time.Duration, pause func(time.Duration)) *distance {
	d := &distance{
		trip: trip, pause: pause,
		queue: make(chan arrival, wayArrivals), gone: make(chan struct{}), ended: make(chan struct{}),
	}
	go d.clock()
	return d
}

// close ends the clock. Connections that are still open receive nothing more.
func (d *distance) close() {
	close(d.gone)
	<-d.ended
}

// clock hands everything over when it is due. It has a thread of its own,
// because Go's timers may be a millisecond late on an idle machine.
func (d *distance) clock() {
	defer close(d.ended)
	runtime.LockOSThread() // the thread ends with this goroutine
	exactPauses()
	for {
		select {
		case a := <-d.queue:
			if wait := time.Until(a.due); wait > 0 {
				d.pause(wait)
			}
			a.conn.handOver(a)
		case <-d.gone:
			return
		}
	}
}

// dial is open with connections that are that far away.
func (d *distance) dial(open dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := open(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return d.conn(conn), nil
	}
}

// conn is near from far away.
func (d *distance) conn(near net.Conn) *farConn {
	c := &farConn{
		Conn: near, way: d,
		changed: make(chan struct{}, 1), room: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	go c.receive()
	return c
}

// farConn is a connection whose other end is far away. What is written goes at
// once; what is read is held back for the whole round trip. It does not let its
// user reach the socket, because what can be read there has not arrived yet. So
// go-redis cannot check an idle connection before it uses it, for either peer.
type farConn struct {
	net.Conn
	way     *distance
	changed chan struct{} // has an element if a Read that waits must look again
	room    chan struct{} // has an element if receive must look again
	closed  chan struct{}
	once    sync.Once
	reading sync.Mutex // held by Read
	timer   *time.Timer

	mu       sync.Mutex
	held     bytes.Buffer // what has been read
	due      int          // bytes of held that may be handed over
	err      error        // of the connection, after the bytes
	ended    bool         // err may be handed over
	deadline time.Time    // of Read
}

// notify puts an element into signal unless it has one.
func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// receive reads from the connection until it ends.
func (c *farConn) receive() {
	buf := make([]byte, readBytes)
	for end := false; !end; {
		n, err := c.Conn.Read(buf)
		end = err != nil
		a := arrival{time.Now().Add(c.way.trip), c, n, end}
		c.mu.Lock()
		c.held.Write(buf[:n])
		c.err = err
		c.mu.Unlock()
		select {
		case c.way.queue <- a:
		case <-c.way.gone:
			return
		}
		for c.full() {
			select {
			case <-c.room:
			case <-c.closed:
				return
			case <-c.way.gone:
				return
			}
		}
	}
}

// full reports whether receive must wait until something was handed over.
func (c *farConn) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held.Len() >= mostHeld
}

// handOver lets Read have what has arrived.
func (c *farConn) handOver(a arrival) {
	c.mu.Lock()
	c.due += a.size
	c.ended = a.end
	c.mu.Unlock()
	notify(c.changed)
}

// Read implements net.Conn.
func (c *farConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		n, wait, err := c.take(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		var late <-chan time.Time
		if wait > 0 {
			if c.timer == nil {
				c.timer = time.NewTimer(wait)
			} else {
				c.timer.Reset(wait)
			}
			late = c.timer.C
		}
		select {
		case <-c.changed:
		case <-c.closed:
		case <-late:
		}
		if late != nil {
			c.timer.Stop()
		}
	}
}

// take hands over what is due. If there is nothing, wait is the time until the
// deadline; 0: there is none.
func (c *farConn) take(p []byte) (n int, wait time.Duration, err error) {
	select {
	case <-c.closed:
		return 0, 0, net.ErrClosed
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadline.IsZero() {
		if wait = time.Until(c.deadline); wait <= 0 {
			return 0, 0, os.ErrDeadlineExceeded
		}
	}
	switch {
	case c.due > 0:
		n, _ = c.held.Read(p[:min(len(p), c.due)]) // has bytes, so no error
		c.due -= n
		notify(c.room)
	case c.ended:
		err = c.err
	}
	return n, wait, err
}

// SetReadDeadline implements net.Conn. It is about what is handed over; what
// comes from the other end is read at any time.
func (c *farConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	notify(c.changed)
	return nil
}

// SetDeadline implements net.Conn.
func (c *farConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t) // has no error
	return c.SetWriteDeadline(t)
}

// Close implements net.Conn.
func (c *farConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
