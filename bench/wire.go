package main

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
)

// traffic counts what the clients under test send to Redis and receive from
// it. It counts on the wire, below the client library, for two reasons: every
// connection is seen, also one that a library opens for itself from the
// options of ours, and a command counts once however it was sent (alone, in a
// pipeline, in a transaction). What a script calls inside Redis is not sent
// by anybody and so is not counted; INFO commandstats could not tell the two
// apart.
type traffic struct {
	commands atomic.Int64
	sent     atomic.Int64
	received atomic.Int64
}

// bytes is the volume in both directions.
func (t *traffic) bytes() int64 { return t.sent.Load() + t.received.Load() }

// dial is open with connections that are counted. Set it as the Dialer of the
// options of a client.
func (t *traffic) dial(open dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := open(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		counted := &countedConn{Conn: conn, traffic: t}
		if tcp, ok := conn.(*net.TCPConn); ok {
			// go-redis looks at the bare socket of a connection before it
			// uses it again. Keep that check (and its cost) as it is without us.
			return &countedTCPConn{countedConn: counted, tcp: tcp}, nil
		}
		return counted, nil
	}
}

// countedConn is a connection whose traffic is counted.
type countedConn struct {
	net.Conn
	traffic  *traffic
	requests requestCounter // used by Write only: a connection has one writer
}

// Read implements net.Conn.
func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.traffic.received.Add(int64(n))
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.traffic.sent.Add(int64(n))
	c.traffic.commands.Add(c.requests.feed(p[:n]))
	return n, err
}

// countedTCPConn is a countedConn that lets its user reach the socket.
type countedTCPConn struct {
	*countedConn
	tcp *net.TCPConn
}

// SyscallConn implements syscall.Conn.
func (c *countedTCPConn) SyscallConn() (syscall.RawConn, error) { return c.tcp.SyscallConn() }

// requestCounter counts the commands in a stream of RESP requests, which are
// arrays of bulk strings: *2 $4 LLEN $3 key. The stream may be cut anywhere.
type requestCounter struct {
	kind byte // of the header line being read: '*' or '$'
	num  int  // its number as far as read
	args int  // arguments of the command that are still to come
	skip int  // bytes of the argument that are still to come, with its CRLF
}

// feed takes the next bytes of the stream and returns how many commands were
// completed by them.
func (c *requestCounter) feed(p []byte) (commands int64) {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			c.skip -= n
			p = p[n:]
			if c.skip == 0 {
				if c.args--; c.args == 0 {
					commands++
				}
			}
			continue
		}
		b := p[0]
		p = p[1:]
		switch {
		case b == '*' || b == '$':
			c.kind, c.num = b, 0
		case b >= '0' && b <= '9':
			c.num = c.num*10 + int(b-'0')
		case b == '\n' && c.kind == '*':
			c.args = c.num
		case b == '\n':
			c.skip = c.num + len("\r\n")
		}
	}
	return commands
}
