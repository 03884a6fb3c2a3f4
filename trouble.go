package delayq

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A pace is the waiting of a loop whose calls fail: 50 ms, then twice as long each time, at most 1 s, and each up to a fifth longer.
// It is the backoff of jobs with other numbers.
type retryPace struct{ failures int }

const (
	paceFirst = 50 * time.Millisecond
	paceLimit = time.Second
)

func (p *retryPace) next() time.Duration {
	p.failures++
	return backoff(p.failures, paceFirst.Milliseconds(), paceLimit.Milliseconds())
}

func (p *retryPace) reset() { p.failures = 0 }

// An outage watches the answers of Redis for a server, so that trouble is logged once when it begins and once when it ends: when every
// call that failed has been answered again.
type outage struct {
	log  *slog.Logger
	lost func(error) // called with every failure

	mu    sync.Mutex
	cause error     // the last failure that is not of a connection that was closed here
	at    time.Time // when that was
	since time.Time
	away  map[string]time.Time // calls without an answer, and when they last had none
}

// outageMemory is longer than a call that fails takes until it fails again.
const outageMemory = callTimeout + 3*paceLimit/2

// failed notes that a call was not answered, or that Redis said that it cannot serve.
func (o *outage) failed(call string, err error) {
	defer o.lost(err) // which makes other calls fail, whose errors tell less
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	switch {
	case !errors.Is(err, net.ErrClosed):
		o.cause, o.at = err, now
	case o.cause != nil && now.Sub(o.at) < outageMemory:
		err = o.cause
	}
	if len(o.away) == 0 {
		o.since = now
		o.away = make(map[string]time.Time)
		o.log.Error("redis away", "err", err)
	}
	o.away[call] = now
}

// ended notes an answer.
func (o *outage) answered(call string) {
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
	if errors.Is(err, errSuspected) && slowly(err) {
		return // it was another call that had no answer, and that is what is told of
	}
	if err != nil && away(err) && !slowly(err) {
		tr.outage.failed(tr.name+"/"+call, err)
		return
	}
	tr.outage.answered(tr.name + "/" + call)
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
		tr.log.Error(call+" failed", "err", err)
	}
}

// away tells whether err is about Redis as a whole (no answer, loading, a replica, a cluster that is down, a
// password that it does not take) and not about one call.
func away(err error) bool {
	if !answered(err) || isUndone(err) || locked(err) {
		return true
	}
	var said redis.Error
	if !errors.As(err, &said) {
		return true
	}
	text := said.Error()
	for _, prefix := range []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "NOREPLICAS", "MOVED", "ASK", "WRONGPASS", "ERR max number of clients"} {
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
