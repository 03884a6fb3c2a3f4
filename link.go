package delayq

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// callTimeout bounds one call of a server to Redis. Longer than a slow call takes, short enough to notice a dead connection.
const callTimeout = 3 * time.Second

// ownClient makes a client like rdb with connections of its own, so that what a server waits for can never eat the pool of the
// application, nor the other way round.
func ownClient(rdb redis.UniversalClient, connections int) (redis.UniversalClient, *dialed) {
	d := &dialed{most: 2 * connections}
	switch c := rdb.(type) {
	case *redis.Client:
		o := *c.Options()
		containOptions(&o)
		o.MaxRetries = -1 // the loops of the server repeat by themselves
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = connections, 0, 0, 0
		o.PoolTimeout = callTimeout
		o.DialerRetries = 1
		o.PushNotificationProcessor = nil // the handlers in it are those of rdb's own connections
		o.ReadTimeout, o.WriteTimeout = bounded(o.ReadTimeout), bounded(o.WriteTimeout)
		o.Dialer = d.wrap(o.Dialer)
		return redis.NewClient(&o), d
	case *redis.ClusterClient:
		o := *c.Options()
		containClusterOptions(&o)
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = connections, 0, 0, 0
		o.PoolTimeout = callTimeout
		o.PushNotificationProcessor = nil
		o.ReadTimeout, o.WriteTimeout = bounded(o.ReadTimeout), bounded(o.WriteTimeout)
		if o.Dialer != nil {
			o.Dialer = d.wrap(o.Dialer)
		}
		return redis.NewClusterClient(&o), d
	}
	return nil, nil // checkRedis refuses it
}

// dialed remembers connections, to close them when the server stops: also one that go-redis is still greeting Redis on, which it closes
// neither at the end of a context nor with the client.
type dialed struct {
	most int // more are not open at once

	mu     sync.Mutex
	conns  []dialedConn
	closed bool
}

type dialedConn struct {
	net.Conn
	at time.Time
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

func (d *dialed) wrap(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closed {
			_ = conn.Close() // unused
			return nil, net.ErrClosed
		}
		d.conns = append(d.conns, dialedConn{conn, time.Now()})
		if len(d.conns) > d.most {
			d.conns = slices.Delete(d.conns, 0, 1)
		}
		return conn, nil
	}
}

func (d *dialed) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, conn := range d.conns {
		_ = conn.Close() // closed already, mostly
	}
	d.conns = nil
}

// suspect closes all connections that were there before a call that had no answer in time. A firewall that has forgotten them does not tell:
// each would be found dead by a call that waits out its timeout, one after the other, and a blocking pop waits longest.
func (d *dialed) suspect(err error) {
	var timeout net.Error
	if !errors.Is(err, context.DeadlineExceeded) && (!errors.As(err, &timeout) || !timeout.Timeout()) {
		return
	}
	before := time.Now().Add(-callTimeout)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = slices.DeleteFunc(d.conns, func(c dialedConn) bool {
		old := c.at.Before(before)
		if old {
			_ = c.Close() // its user meets an error that says so
		}
		return old
	})
}

// bounded is a timeout of the caller's client as one of ours: a server waits for no answer without end.
func bounded(timeout time.Duration) time.Duration {
	if timeout <= 0 || timeout > callTimeout {
		return callTimeout
	}
	return timeout
}

// reload makes a cluster's client ask who its nodes are: by itself it does so when a node says that a slot has moved, but not when a node
// is gone. It only starts the asking.
func reload(rdb redis.UniversalClient) {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.ReloadState(context.Background())
	}
}

// An outage watches the answers of Redis for a server, so that trouble is logged once when it begins and once when it ends: when every
// call that failed has been answered again.
type outage struct {
	log  *slog.Logger
	lost func(error) // called with every failure

	mu    sync.Mutex
	since time.Time
	away  map[string]time.Time // calls without an answer, and when they last had none
}

// outageMemory is longer than a call that fails takes until it fails again.
const outageMemory = callTimeout + 3*paceLimit/2

// failed notes that a call was not answered, or that Redis said that it cannot serve.
func (o *outage) failed(call string, err error) {
	o.lost(err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.away) == 0 {
		o.since = time.Now()
		o.away = make(map[string]time.Time)
		o.log.Error("redis away", "err", err)
	}
	o.away[call] = time.Now()
}

// ended notes an answer.
func (o *outage) ended(call string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.away) == 0 {
		return
	}
	delete(o.away, call)
	for other, last := range o.away {
		if time.Since(last) > outageMemory { // it is not made again
			delete(o.away, other)
		}
	}
	if len(o.away) == 0 {
		o.log.Info("redis back", "delay", time.Since(o.since))
	}
}

// A trouble watches the calls of one topic. What concerns Redis as a whole is for the outage; anything else, like a key of a wrong type or a
// right that is missing, is logged once when it begins, for each kind of call, and once when it ends.
type trouble struct {
	name   string // of the topic, or of what else calls
	log    *slog.Logger
	outage *outage

	mu   sync.Mutex
	open map[string]string // call → what was logged
}

// note takes the outcome of a call.
func (tr *trouble) note(call string, err error) {
	if err != nil && away(err) {
		tr.outage.failed(tr.name+"/"+call, err)
		return
	}
	tr.outage.ended(tr.name + "/" + call)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch was, open := tr.open[call]; {
	case err == nil && open:
		delete(tr.open, call)
		tr.log.Info(call+" works again", "err", was)
	case err != nil && was != err.Error():
		if tr.open == nil {
			tr.open = make(map[string]string)
		}
		tr.open[call] = err.Error()
		tr.log.Error(call, "err", err)
	}
}

// away tells whether err is about Redis as a whole (no answer, loading, a replica, a cluster that is down) and not about one call.
func away(err error) bool {
	if !answered(err) {
		return true
	}
	var said redis.Error
	if !errors.As(err, &said) {
		return true
	}
	text := said.Error()
	for _, prefix := range []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "NOREPLICAS", "MOVED", "ASK"} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return strings.Contains(text, "READONLY")
}

// sleep waits for d or the end of ctx, and tells whether it was d.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
