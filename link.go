package delayq

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// callTimeout bounds one call of a server to Redis. Longer than a slow call takes, short enough to notice a dead connection.
const callTimeout = 5 * time.Second

// ownClient makes a client like rdb with connections of its own, so that what a server waits for can never eat the pool of the
// application, nor the other way round. A client of an unknown kind is used as it is: own is false then.
func ownClient(rdb redis.UniversalClient, connections int) (client redis.UniversalClient, own bool) {
	switch c := rdb.(type) {
	case *redis.Client:
		o := *c.Options()
		o.MaxRetries = -1 // the loops of the server repeat by themselves
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = connections, 0, 0, 0
		o.PoolTimeout = callTimeout
		o.DialerRetries = 1
		o.PushNotificationProcessor = nil // the handlers in it are those of rdb's own connections
		o.ReadTimeout, o.WriteTimeout = restored(o.ReadTimeout), restored(o.WriteTimeout)
		return redis.NewClient(&o), true
	case *redis.ClusterClient:
		o := *c.Options()
		o.ContextTimeoutEnabled = true
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = connections, 0, 0, 0
		o.PoolTimeout = callTimeout
		o.PushNotificationProcessor = nil
		o.ReadTimeout, o.WriteTimeout = restored(o.ReadTimeout), restored(o.WriteTimeout)
		return redis.NewClusterClient(&o), true
	}
	return rdb, false
}

// restored undoes what go-redis makes of a timeout when it reads the options: given again, 0 would mean the default and not none.
func restored(timeout time.Duration) time.Duration {
	if timeout == 0 {
		return -1
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

// An outage watches the answers of Redis for a server, so that trouble is logged once when it begins and once when it ends.
type outage struct {
	log  *slog.Logger
	lost func() // called with every failure

	mu    sync.Mutex
	since time.Time // zero: Redis answers
}

// failed notes that Redis did not answer or said that it cannot serve.
func (o *outage) failed(err error) {
	o.lost()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = time.Now()
		o.log.Error("redis away", "err", err)
	}
}

// ended notes an answer.
func (o *outage) ended() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() {
		o.log.Info("redis back", "delay", time.Since(o.since))
		o.since = time.Time{}
	}
}

// A trouble watches the calls of one topic. What concerns Redis as a whole is for the outage; anything else, like a key of a wrong type or a
// right that is missing, is logged once when it begins, for each kind of call, and once when it ends.
type trouble struct {
	log    *slog.Logger
	outage *outage

	mu   sync.Mutex
	open map[string]string // call → what was logged
}

// note takes the outcome of a call.
func (tr *trouble) note(call string, err error) {
	if err != nil && away(err) {
		tr.outage.failed(err)
		return
	}
	tr.outage.ended()
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
