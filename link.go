package delayq

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// callTimeout bounds one call of a server to Redis. It is longer than a slow call, and short enough
// to detect a dead connection soon.
const callTimeout = 3 * time.Second

// idleConns is how many idle connections of each kind a server keeps. With many topics it keeps one
// for every four topics.
const idleConns = 32

// ownClient returns a client like rdb with connections of its own. So blocking calls of a server
// never exhaust the application's pool, and the application never exhausts the server's. The client
// keeps up to idle connections that are not in use. With an answer of 0 it waits for replies as
// long as rdb does.
func ownClient(rdb redis.UniversalClient, all *dialedGroup, connections, idle int, answer time.Duration) (redis.UniversalClient, *dialed) {
	own := all.add()
	switch c := rdb.(type) {
	case *redis.Client:
		o := *c.Options()
		containOptions(&o)
		o.MaxRetries = -1 // the server's loops retry themselves
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = connections, 0, idle, 0
		o.PoolTimeout = callTimeout
		o.DialerRetries = 1
		o.PushNotificationProcessor = nil // its handlers belong to rdb's own connections
		o.ReadTimeout, o.WriteTimeout = cmp.Or(answer, bounded(o.ReadTimeout)), bounded(o.WriteTimeout)
		o.Dialer = own.wrap(o.Dialer)
		return redis.NewClient(&o), own
	case *redis.ClusterClient:
		o := *c.Options()
		containClusterOptions(&o)
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = connections, 0, idle, 0
		o.PoolTimeout = callTimeout
		o.PushNotificationProcessor = nil
		o.ReadTimeout, o.WriteTimeout = cmp.Or(answer, bounded(o.ReadTimeout)), bounded(o.WriteTimeout)
		if o.Dialer == nil { // go-redis would create one for each node
			o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
		}
		o.Dialer = own.wrap(o.Dialer)
		return redis.NewClusterClient(&o), own
	}
	return nil, nil // checkRedis rejects it
}

// answerTimeout returns how long a server waits for the reply to a call whose reply is bounded in
// size.
func answerTimeout(rdb redis.UniversalClient) time.Duration {
	switch c := rdb.(type) {
	case *redis.Client:
		return bounded(c.Options().ReadTimeout)
	case *redis.ClusterClient:
		return bounded(c.Options().ReadTimeout)
	}
	return callTimeout
}

// A pulse distinguishes a slow reply from an unresponsive Redis: it notes the time of Redis's last
// reply. On a cluster, the replies about one topic say nothing about the nodes of other topics.
type pulse struct {
	cluster bool

	mu   sync.Mutex
	last map[string]time.Time // by topic; without a cluster there is one entry
}

// slowAnswer is a call that was not answered in time while Redis answered others.
type slowAnswer struct{ error }

func (slowAnswer) Error() string   { return "no answer in time, though Redis answers others" }
func (s slowAnswer) Unwrap() error { return s.error }

// slowly reports whether err is a slow answer.
func slowly(err error) bool {
	var slow slowAnswer
	return errors.As(err, &slow)
}

// feel notes the result of a call that started at began, and turns a timeout into a slowAnswer
// where it is one. key is one of the call's keys.
func (p *pulse) feel(key string, began time.Time, err error) error {
	topic := ""
	if p.cluster {
		topic, _, _ = strings.Cut(key, "}")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil || isAnswer(err) {
		if p.last == nil {
			p.last = make(map[string]time.Time)
		}
		p.last[topic] = time.Now()
		return err
	}
	if (isTimeout(err) || errors.Is(err, errSuspected)) && p.last[topic].After(began) {
		return slowAnswer{err}
	}
	return err
}

// isTimeout reports whether err means that a reply did not arrive in time.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// isAnswer reports whether err is a reply of Redis itself.
func isAnswer(err error) bool {
	var said redis.Error
	return errors.As(err, &said)
}

// felt is a processor whose calls are noted in a pulse.
type felt struct {
	processor
	pulse *pulse
}

func (f felt) Process(ctx context.Context, cmd redis.Cmder) error {
	began := time.Now()
	err := f.processor.Process(ctx, cmd)
	key := ""
	if args := cmd.Args(); len(args) > 3 { // a script and its number of keys precede the first key
		key, _ = args[3].(string)
	}
	return f.pulse.feel(key, began, err)
}

// bounded limits a timeout of the caller's client for use by a server, which never waits
// indefinitely for a reply.
func bounded(timeout time.Duration) time.Duration {
	if timeout <= 0 || timeout > callTimeout {
		return callTimeout
	}
	return timeout
}

// reload makes a cluster client read the list of nodes again. By itself the client does so when a
// node reports that a slot has moved, but not when a node is unreachable. reload does not wait for
// the result.
func reload(rdb redis.UniversalClient) {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.ReloadState(context.Background())
	}
}
