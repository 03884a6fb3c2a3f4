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

// callTimeout bounds one call of a server to Redis. Longer than a slow call takes, short enough to notice a dead connection.
const callTimeout = 3 * time.Second

// idleConns is how many connections of each kind a server keeps that are not in use, and with many topics
// one for every four.
const idleConns = 32

// ownClient makes a client like rdb with connections of its own, so that what a server waits for can never eat the pool of the
// application, nor the other way round. It keeps up to idle connections that are not in use. With an
// answer of 0 it waits for answers as long as rdb does.
func ownClient(rdb redis.UniversalClient, all *dialedGroup, connections, idle int, answer time.Duration) (redis.UniversalClient, *dialed) {
	own := all.add()
	switch c := rdb.(type) {
	case *redis.Client:
		o := *c.Options()
		containOptions(&o)
		o.MaxRetries = -1 // the loops of the server repeat by themselves
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = connections, 0, idle, 0
		o.PoolTimeout = callTimeout
		o.DialerRetries = 1
		o.PushNotificationProcessor = nil // the handlers in it are those of rdb's own connections
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
		if o.Dialer == nil { // go-redis would make one for each node
			o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
		}
		o.Dialer = own.wrap(o.Dialer)
		return redis.NewClusterClient(&o), own
	}
	return nil, nil // checkRedis refuses it
}

// answerTimeout is how long a server waits for the answer to a call, if its size is bounded.
func answerTimeout(rdb redis.UniversalClient) time.Duration {
	switch c := rdb.(type) {
	case *redis.Client:
		return bounded(c.Options().ReadTimeout)
	case *redis.ClusterClient:
		return bounded(c.Options().ReadTimeout)
	}
	return callTimeout
}

// A pulse tells a slow answer from a silent Redis: it notes when Redis has answered last. On a cluster
// the answers about one topic say nothing of the nodes of others.
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

// feel notes the outcome of a call that began at some time, and names a timeout for what it is. The key
// is one of the call's.
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

// isTimeout reports whether err says that an answer did not come in time.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// isAnswer reports whether Redis itself has said err.
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
	if args := cmd.Args(); len(args) > 3 { // a script and the number of its keys come before the first one
		key, _ = args[3].(string)
	}
	return f.pulse.feel(key, began, err)
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
