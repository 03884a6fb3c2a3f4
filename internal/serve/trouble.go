package serve

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// An outage watches Redis's replies for a server. It logs trouble once when it begins, and once
// when it ends. Trouble ends when every failed call has been answered again.
type outage struct {
	Log  *slog.Logger
	Lost func(error) // called with every failure

	mu sync.Mutex
	// the last failure, except errors of connections that were closed here
	cause error
	at    time.Time // when it happened
	since time.Time
	away  map[string]time.Time // unanswered calls, and when each last failed

	// What the above says, for Health, which must not wait for a log that mu waits for.
	known atomic.Pointer[outageNews]
}

// outageNews say what is known about an outage, or about the last one.
type outageNews struct {
	cause error     // nil: none is known
	at    time.Time // of the cause
	since time.Time // zero: the outage is over
}

// CallTimeout bounds one call of a server to Redis.
const CallTimeout = link.CallTimeout

// outageMemory is longer than a failing call takes until it fails again.
const outageMemory = CallTimeout + 3*loop.PaceLimit/2

// Failed notes that a call was not answered, or that Redis cannot serve.
func (o *outage) Failed(call string, err error) {
	defer o.Lost(err) // makes other calls fail, whose errors say less
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	switch {
	case !errors.Is(err, net.ErrClosed):
		o.cause, o.at = err, now
	case o.cause != nil && now.Sub(o.at) < outageMemory:
		err = o.cause
	}
	began := len(o.away) == 0
	if began {
		o.since = now
		o.away = make(map[string]time.Time)
	}
	o.away[call] = now
	o.known.Store(&outageNews{o.cause, o.at, o.since})
	if began {
		o.Log.Error("redis away", "err", err)
	}
}

// Answered notes a reply.
func (o *outage) Answered(call string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.away) == 0 {
		return
	}
	delete(o.away, call)
	for other, last := range o.away {
		if time.Since(last) > outageMemory { // it is not repeated
			delete(o.away, other)
		}
	}
	if len(o.away) == 0 {
		o.known.Store(&outageNews{o.cause, o.at, time.Time{}})
		o.Log.Info("redis back", "delay", time.Since(o.since))
	}
}

// A trouble watches the calls of one topic. Errors of Redis as a whole go to the outage. Any other
// error, such as a key of a wrong type or a missing permission, is logged for each kind of call:
// once when it begins, and once when it ends.
type trouble struct {
	name   string // of the topic, or of another caller
	log    *slog.Logger
	outage *outage

	mu    sync.Mutex
	open  map[string]string                 // call → logged error
	known atomic.Pointer[map[string]string] // a copy of it, for Health; see outage
}

// note receives the result of a call.
func (tr *trouble) note(call string, err error) {
	if errors.Is(err, link.ErrSuspected) && link.Slowly(err) {
		return // the unanswered call is reported instead
	}
	if err != nil && script.Away(err) && !link.Slowly(err) {
		tr.outage.Failed(tr.name+"/"+call, err)
		return
	}
	tr.outage.Answered(tr.name + "/" + call)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch was, open := tr.open[call]; {
	case err == nil && open:
		delete(tr.open, call)
		tr.publishLocked()
		tr.log.Info(call+" works again", "err", was)
	case err != nil && was != err.Error():
		if tr.open == nil {
			tr.open = make(map[string]string)
		}
		tr.open[call] = err.Error()
		tr.publishLocked()
		tr.log.Error(call+" failed", "err", err)
	}
}

func (tr *trouble) publishLocked() {
	open := maps.Clone(tr.open)
	tr.known.Store(&open)
}

// failing returns the calls that Redis answers with an error, and the errors. The caller must not
// change it.
func (tr *trouble) failing() map[string]string {
	if open := tr.known.Load(); open != nil && len(*open) > 0 {
		return *open
	}
	return nil
}
