package redistest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A Fault happens once, to the next request that contains What: Redis carries it out, and then
// After is called. If Lose is set, the reply is thrown away and the connection is cut.
type Fault struct {
	What  string
	Lose  bool
	After func() // may be nil

	mu   sync.Mutex
	Done bool // it has happened
}

// Again makes it happen once more.
func (f *Fault) Again(what string, after func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.What, f.After, f.Done = what, after, false
}

// Happened reports whether the fault has been met.
func (f *Fault) Happened() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Done
}

func (f *Fault) meets(request []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Done || !bytes.Contains(request, []byte(f.What)) {
		return false
	}
	f.Done = true
	return true
}

// Faulty returns the options of a client like rdb whose connections meet a fault.
func Faulty(rdb redis.UniversalClient, f *Fault) *redis.Options {
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
	fault *Fault
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
	after := c.fault.After
	c.fault.mu.Unlock()
	if after != nil {
		after()
	}
	if c.fault.Lose {
		_ = c.Conn.Close() // what it says is not of interest: it is over
		return 0, io.EOF
	}
	return n, nil
}
