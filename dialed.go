package delayq

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A dialed holds the connections that were made with its dialer and are open, also one that go-redis is
// still greeting Redis on: that one it closes neither at the end of a context nor with the client.
type dialed struct {
	group *dialedGroup

	mu     sync.Mutex
	conns  map[*conn]bool
	closed bool
}

// A dialedGroup is those of some clients of one Redis: what is found out on a connection of one of them
// goes for those of the others too.
type dialedGroup struct {
	began time.Time
	all   []*dialed
}

// add makes one more. All must be made before the first connection.
func (g *dialedGroup) add() *dialed {
	d := &dialed{group: g, conns: make(map[*conn]bool)}
	g.all = append(g.all, d)
	return d
}

// now is the present, counted from the making of the group by the monotonic clock.
func (g *dialedGroup) now() time.Duration { return time.Since(g.began) }

// A conn is a connection that knows when it was used, in the group's time.
type conn struct {
	net.Conn
	of        *dialed
	addr      string
	made      time.Duration
	asked     atomic.Int64 // when the last request was sent
	heard     atomic.Int64 // when the last part of an answer came
	suspected atomic.Bool
}

// tcpConn and unixConn are conns of which go-redis can see whether the other side has closed them.
type tcpConn struct {
	*net.TCPConn
	own *conn
}

type unixConn struct {
	*net.UnixConn
	own *conn
}

func (c tcpConn) Read(p []byte) (int, error)   { return c.own.Read(p) }
func (c tcpConn) Write(p []byte) (int, error)  { return c.own.Write(p) }
func (c tcpConn) Close() error                 { return c.own.Close() }
func (c unixConn) Read(p []byte) (int, error)  { return c.own.Read(p) }
func (c unixConn) Write(p []byte) (int, error) { return c.own.Write(p) }
func (c unixConn) Close() error                { return c.own.Close() }

// errSuspected is met by who uses a connection that was closed because another one is dead.
var errSuspected = errors.New("connection given up, because Redis did not answer on another one")

// A dialer makes connections, as that of go-redis's options.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// wrap makes a dialer whose connections are remembered.
func (d *dialed) wrap(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closed {
			_ = raw.Close() // unused
			return nil, net.ErrClosed
		}
		c := &conn{Conn: raw, of: d, addr: addr, made: d.group.now()}
		c.heard.Store(int64(c.made) - 1) // nothing yet
		c.asked.Store(int64(c.made) - 1)
		d.conns[c] = true
		switch raw := raw.(type) {
		case *net.TCPConn:
			return tcpConn{raw, c}, nil
		case *net.UnixConn:
			return unixConn{raw, c}, nil
		}
		return c, nil
	}
}

func (c *conn) Write(p []byte) (int, error) {
	c.asked.Store(int64(c.of.group.now()))
	n, err := c.Conn.Write(p)
	return n, c.blame(err)
}

// Read notes that something was heard. A firewall that has forgotten connections does not tell: each would
// be found dead by a call that waits out its timeout, one after the other, and a blocking pop waits
// longest. So a request without a single byte of an answer makes others suspect, too.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(int64(c.of.group.now()))
	}
	if asked := c.asked.Load(); err != nil && isTimeout(err) && c.heard.Load() < asked {
		for _, d := range c.of.group.all {
			d.suspect(c.addr, time.Duration(asked))
		}
		return n, err // the cause itself
	}
	return n, c.blame(err)
}

// blame puts the cause in the place of an error that is only its consequence.
func (c *conn) blame(err error) error {
	if err != nil && c.suspected.Load() {
		return errSuspected
	}
	return err
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// close closes all connections for good.
func (d *dialed) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.hangUp()
}

// suspect closes the connections to an address that were there at some time, and on which nothing was
// heard since.
func (d *dialed) suspect(addr string, since time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		if c.addr == addr && c.made <= since && time.Duration(c.heard.Load()) < since {
			c.suspected.Store(true)
			_ = c.Conn.Close() // its user meets errSuspected
			delete(d.conns, c)
		}
	}
}

// hangUp closes all connections there are, and so ends the calls that wait for answers. New ones can be
// made.
func (d *dialed) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.Conn.Close() // its user meets an error
	}
	clear(d.conns)
}
