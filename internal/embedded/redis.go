// Package embedded is a Redis inside the process: miniredis with connections that never leave
// memory.
//
// It opens no port and uses no socket, so it works inside a testing/synctest bubble. There TIME,
// the expiry of keys, the timeouts of blocking commands and the deadlines of the client all follow
// the fake clock of the bubble. It must then be created, used and closed inside the bubble. Outside
// a bubble it works too, and follows the wall clock.
package embedded

import (
	"context"
	"net"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// poolSize keeps a client from ever waiting for a free connection. go-redis times such a wait with
// a timer from a pool of the whole process. A timer that was created in one synctest bubble ends
// the process when another bubble uses it. A connection here is cheap, and none is opened before it
// is needed.
const poolSize = 1024

// Redis is a miniredis that can be reached only through Dial, Options and Client.
//
// The methods of miniredis for looking inside (Keys, Dump, SetTime, SetError, FastForward and so
// on) are available too. Do not call its Start or Restart, because they open a port. Redis is safe
// for concurrent use.
type Redis struct {
	*miniredis.Miniredis
	srv *server.Server

	mu   sync.Mutex
	down error // why Dial fails; nil while the server is up
}

// New returns a running, empty Redis whose keys expire by the clock.
//
// It must be closed with Close.
func New() *Redis {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	// Dialing is the only way to start a miniredis that listens nowhere. This connection is not
	// kept.
	first, err := m.Dial()
	if err == nil {
		err = first.Close()
	}
	return &Redis{Miniredis: m, srv: m.Server(), down: err}
}

// Dial returns a new connection to the server.
//
// After Close it fails like a dial to a port where nobody listens. Unlike those of miniredis's
// Dial, its connections have buffers, as sockets have.
func (r *Redis) Dial() (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: endpoint{}, Err: r.down}
	}
	client, served := pipe()
	r.srv.ServeConn(served)
	return client, nil
}

// Options returns new options for a client of this server.
//
// The caller may change them. In a synctest bubble leave PoolSize alone: a wait for a free
// connection in two bubbles of one process ends the process.
func (r *Redis) Options() *redis.Options {
	return &redis.Options{
		Addr: "127.0.0.1:6379", // never dialed; a literal address is never looked up either
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			return r.Dial()
		},
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		PoolSize:                 poolSize,
		// go-redis dials in the background, even for a caller that has gone. It would sleep there
		// between two attempts, and leak a goroutine if the bubble ends in the meantime. Commands
		// are still repeated.
		DialerRetries: 1,
	}
}

// Client returns a new client of this server.
//
// The caller closes it.
func (r *Redis) Client() *redis.Client {
	return redis.NewClient(r.Options())
}

// Close stops the server, all its connections and all its goroutines.
//
// Clients of blocking commands and subscriptions receive an error. The data can still be read
// through the methods of miniredis. A second call does nothing.
func (r *Redis) Close() {
	r.mu.Lock()
	r.down = net.ErrClosed
	r.mu.Unlock()

	// Blocking commands check this context whenever they wake. miniredis wakes them without its
	// lock, so a wake-up between the check and the sleep is lost. Any change of data wakes them
	// again, under the lock.
	r.CtxCancel()
	r.Del("")
	// Before the Close of miniredis, which takes the server away from scripts that are still
	// running.
	r.srv.Close()
	r.Miniredis.Close()
}
