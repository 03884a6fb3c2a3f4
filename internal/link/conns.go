package link

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Conns holds the open connections that its dialer has made. They include those on which
// go-redis has not finished its greeting. go-redis closes such a connection neither when a context
// ends nor when the client is closed.
type Conns struct {
	group *Group

	mu     sync.Mutex
	conns  map[*conn]bool
	closed bool
}

// A Group holds the connections of several clients of one Redis. A dead connection of one
// client raises suspicion against the connections of the others too.
type Group struct {
	began time.Time
	all   []*Conns
}

// NewGroup returns a group without connections.
func NewGroup() *Group { return &Group{began: time.Now()} }

// add adds the connections of one more client. Every call must precede the first connection.
func (g *Group) add() *Conns {
	d := &Conns{group: g, conns: make(map[*conn]bool)}
	g.all = append(g.all, d)
	return d
}

// now returns the time since the group was created, by the monotonic clock.
func (g *Group) now() time.Duration { return time.Since(g.began) }

// A conn is a connection that notes when it was used, in the group's time.
type conn struct {
	net.Conn
	of        *Conns
	addr      string
	made      time.Duration
	asked     atomic.Int64 // when the last request was sent
	heard     atomic.Int64 // when the last part of a reply arrived
	fetched   atomic.Int64 // when go-redis last took it out of its pool
	reads     atomic.Int32 // Read calls that wait
	suspected atomic.Bool
	trimmed   atomic.Bool
}

// tcpConn and unixConn let go-redis detect that one of the sides has closed the connection.
type tcpConn struct {
	*net.TCPConn
	own *conn
}

type unixConn struct {
	*net.UnixConn
	own *conn
}

func (c tcpConn) Read(p []byte) (int, error)     { return c.own.Read(p) }
func (c tcpConn) Write(p []byte) (int, error)    { return c.own.Write(p) }
func (c tcpConn) Close() error                   { return c.own.Close() }
func (c tcpConn) SetDeadline(t time.Time) error  { return c.own.SetDeadline(t) }
func (c unixConn) Read(p []byte) (int, error)    { return c.own.Read(p) }
func (c unixConn) Write(p []byte) (int, error)   { return c.own.Write(p) }
func (c unixConn) Close() error                  { return c.own.Close() }
func (c unixConn) SetDeadline(t time.Time) error { return c.own.SetDeadline(t) }

// SyscallConn lets go-redis detect that Trim has closed a connection of another kind, such as one
// with TLS. It cannot detect there that the other side has.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.trimmed.Load() {
		return nil, net.ErrClosed
	}
	return openConn{}, nil
}

// openConn is the RawConn of a connection that is open and has nothing to read, as far as is known.
type openConn struct{}

func (openConn) Control(func(uintptr)) error    { return nil }
func (openConn) Read(func(uintptr) bool) error  { return nil }
func (openConn) Write(func(uintptr) bool) error { return nil }

// SetDeadline is what go-redis calls first when it takes a connection out of its pool, before it
// checks whether the connection is open. See [Conns.Trim].
func (c *conn) SetDeadline(t time.Time) error {
	c.of.mu.Lock()
	c.fetched.Store(int64(c.of.group.now()))
	c.of.mu.Unlock()
	return c.Conn.SetDeadline(t)
}

// ErrSuspected is the error of a call on a connection that was closed because another one is dead.
var ErrSuspected = errors.New("connection given up, because Redis did not answer on another one")

// A Dialer makes connections, like the Dialer in go-redis's options.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// wrap returns a dialer whose connections are recorded.
func (cs *Conns) wrap(dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if cs.closed {
			_ = raw.Close()
			return raw, nil // go-redis would log an error
		}
		c := &conn{Conn: raw, of: cs, addr: addr, made: cs.group.now()}
		c.heard.Store(int64(c.made) - 1) // nothing yet
		c.asked.Store(int64(c.made) - 1)
		cs.conns[c] = true
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

// Read notes when data arrives. A firewall that has forgotten connections does not report it. Then
// a call would have to time out on each connection in turn, and a blocking pop waits longest. So
// after a request without a single byte of a reply, other connections are suspected too.
func (c *conn) Read(p []byte) (int, error) {
	c.reads.Add(1)
	n, err := c.Conn.Read(p)
	c.reads.Add(-1)
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

// blame replaces an error that is only a consequence by its cause.
func (c *conn) blame(err error) error {
	if err != nil && c.suspected.Load() {
		return ErrSuspected
	}
	return err
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Open returns how many connections to each address are open.
func (cs *Conns) Open() map[string]int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	open := make(map[string]int)
	for c := range cs.conns {
		open[c.addr]++
	}
	return open
}

// Trim closes connections to each address that nobody has used for a time. It keeps as many as keep
// says, those used last. A connection that waits for a reply or a message is in use.
//
// go-redis can limit the connections that it keeps only at all times. A busy client of it would
// close and open connections all the time, because it has few of them idle for a moment now and
// then. It finds the closed ones when it takes them out of its pool.
func (cs *Conns) Trim(keep int, after time.Duration) {
	if !checksConns {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	pooled := make(map[string][]*conn)
	for c := range cs.conns {
		if c.reads.Load() == 0 && c.heard.Load() >= c.asked.Load() {
			pooled[c.addr] = append(pooled[c.addr], c)
		}
	}
	for _, list := range pooled {
		slices.SortFunc(list, func(a, b *conn) int { return cmp.Compare(b.used(), a.used()) })
		for _, c := range list[min(keep, len(list)):] {
			if cs.group.now()-c.used() >= after {
				c.trimmed.Store(true)
				_ = c.Conn.Close() // nobody uses it
				delete(cs.conns, c)
			}
		}
	}
}

// used returns when the connection was last used, in the group's time.
func (c *conn) used() time.Duration {
	return time.Duration(max(int64(c.made), c.asked.Load(), c.heard.Load(), c.fetched.Load()))
}

// Close closes all connections permanently.
func (cs *Conns) Close() {
	cs.mu.Lock()
	cs.closed = true
	cs.mu.Unlock()
	cs.HangUp()
}

// suspect closes the connections to an address that were open at some time and have received
// nothing since.
func (cs *Conns) suspect(addr string, since time.Duration) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.conns {
		if c.addr == addr && c.made <= since && time.Duration(c.heard.Load()) < since {
			c.suspected.Store(true)
			_ = c.Conn.Close() // its user receives ErrSuspected
			delete(cs.conns, c)
		}
	}
}

// HangUp closes all open connections, which ends the calls that wait for replies. New connections
// can be made.
func (cs *Conns) HangUp() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.conns {
		_ = c.Conn.Close() // its user receives an error
	}
	clear(cs.conns)
}
