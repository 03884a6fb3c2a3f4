// Package link gives a server connections of its own to the Redis of its user's client, and tells a
// slow reply from a Redis that is away. It knows nothing of jobs.
package link

import (
	"cmp"
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// CallTimeout bounds one call of a server to Redis. It is longer than a slow call, and short enough
// to detect a dead connection soon.
const CallTimeout = 3 * time.Second

// bufferSize is the most bytes of each of the two buffers of a connection. go-redis has 32 KiB for
// each, so a server's connections would need half of its memory.
const bufferSize = 16 << 10

// Options are the options of a client of [New].
type Options struct {
	PoolSize int           // most connections
	Idle     int           // most idle connections, on systems without [Conns.Trim]
	Answer   time.Duration // how long it waits for a reply; 0: as long as the user's client does

	// Client and Cluster change the options of the user's client, before the others are set.
	Client  func(*redis.Options)
	Cluster func(*redis.ClusterOptions)
}

// idle returns the most idle connections that go-redis keeps. 0 is no limit.
func (o Options) idle() int {
	if checksConns {
		return 0
	}
	return o.Idle
}

// New returns a client like rdb with connections of its own. So blocking calls of a server never
// exhaust the application's pool, and the application never exhausts the server's. Without a
// [redis.Client] or [redis.ClusterClient] it returns nil.
func New(rdb redis.UniversalClient, all *Group, want Options) (redis.UniversalClient, *Conns) {
	own := all.add()
	switch c := rdb.(type) {
	case *redis.Client:
		o := *c.Options()
		want.Client(&o)
		o.MaxRetries = -1 // the server's loops retry themselves
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = want.PoolSize, 0, want.idle(), 0
		o.PoolTimeout = CallTimeout
		o.ReadBufferSize, o.WriteBufferSize = min(o.ReadBufferSize, bufferSize), min(o.WriteBufferSize, bufferSize)
		o.DialerRetries = 1
		o.PushNotificationProcessor = nil // its handlers belong to rdb's own connections
		o.ReadTimeout, o.WriteTimeout = cmp.Or(want.Answer, bounded(o.ReadTimeout)), bounded(o.WriteTimeout)
		o.Dialer = own.wrap(o.Dialer)
		return redis.NewClient(&o), own
	case *redis.ClusterClient:
		o := *c.Options()
		want.Cluster(&o)
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = want.PoolSize, 0, want.idle(), 0
		o.PoolTimeout = CallTimeout
		o.ReadBufferSize, o.WriteBufferSize = min(o.ReadBufferSize, bufferSize), min(o.WriteBufferSize, bufferSize)
		o.PushNotificationProcessor = nil
		o.ReadTimeout, o.WriteTimeout = cmp.Or(want.Answer, bounded(o.ReadTimeout)), bounded(o.WriteTimeout)
		if o.Dialer == nil { // go-redis would create one for each node
			o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
		}
		o.Dialer = own.wrap(o.Dialer)
		return redis.NewClusterClient(&o), own
	}
	return nil, nil
}

// AnswerTimeout returns how long a server waits for the reply to a call whose reply is bounded in
// size.
func AnswerTimeout(rdb redis.UniversalClient) time.Duration {
	switch c := rdb.(type) {
	case *redis.Client:
		return bounded(c.Options().ReadTimeout)
	case *redis.ClusterClient:
		return bounded(c.Options().ReadTimeout)
	}
	return CallTimeout
}

// DialTimeout returns how long the user's client lets a connection take until it is made.
func DialTimeout(rdb redis.UniversalClient) time.Duration {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().DialTimeout
	case *redis.ClusterClient:
		return c.Options().DialTimeout
	}
	return 0
}

// bounded limits a timeout of the caller's client for use by a server, which never waits
// indefinitely for a reply.
func bounded(timeout time.Duration) time.Duration {
	if timeout <= 0 || timeout > CallTimeout {
		return CallTimeout
	}
	return timeout
}

// Reload makes a cluster client read the list of nodes again. By itself the client does so when a
// node reports that a slot has moved, but not when a node is unreachable. Reload does not wait for
// the result.
func Reload(rdb redis.UniversalClient) {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.ReloadState(context.Background())
	}
}
