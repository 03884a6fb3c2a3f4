package delayq

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A fault happens once, to the next request that contains what: Redis carries it out, and then
// after is called. If lose is set the reply is thrown away and the connection is cut.
type fault struct {
	what  string
	lose  bool
	after func() // may be nil

	mu   sync.Mutex
	done bool
}

// again makes a fault of it once more.
func (f *fault) again(what string, after func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.what, f.after, f.done = what, after, false
}

// happened tells whether the fault has been met.
func (f *fault) happened() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done
}

func (f *fault) meets(request []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done || !bytes.Contains(request, []byte(f.what)) {
		return false
	}
	f.done = true
	return true
}

// faulty gives the options of a client like rdb whose connections meet a fault.
func faulty(rdb redis.UniversalClient, f *fault) *redis.Options {
	o := *rdb.(*redis.Client).Options()
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &faultyConn{Conn: conn, fault: f}, err
	}
	return &o
}

type faultyConn struct {
	net.Conn
	fault *fault
	met   bool
}

func (c *faultyConn) Write(p []byte) (int, error) {
	if c.fault.meets(p) {
		c.met = true
	}
	return c.Conn.Write(p)
}

func (c *faultyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.met || err != nil {
		return n, err
	}
	c.met = false
	c.fault.mu.Lock()
	after := c.fault.after
	c.fault.mu.Unlock()
	if after != nil {
		after()
	}
	if c.fault.lose {
		_ = c.Conn.Close() // what it says is not of interest: it is over
		return 0, io.EOF
	}
	return n, nil
}
