package link

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Pulse distinguishes a slow reply from an unresponsive Redis: it notes the time of Redis's last
// reply. On a cluster, the replies about one topic say nothing about the nodes of other topics.
type Pulse struct {
	Cluster bool // the client is one of a cluster

	mu     sync.Mutex
	last   map[string]time.Time // by topic; without a cluster there is one entry
	latest time.Time
}

// Latest returns when Redis last replied. It is zero if Redis never has.
func (p *Pulse) Latest() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest
}

// slowAnswer is a call that was not answered in time while Redis answered others.
type slowAnswer struct{ error }

func (slowAnswer) Error() string   { return "no answer in time, though Redis answers others" }
func (s slowAnswer) Unwrap() error { return s.error }

// Slowly reports whether err is a slow answer.
func Slowly(err error) bool {
	var slow slowAnswer
	return errors.As(err, &slow)
}

// Feel notes the result of a call that started at began, and turns a timeout into a slowAnswer
// where it is one. key is one of the call's keys.
func (p *Pulse) Feel(key string, began time.Time, err error) error {
	topic := ""
	if p.Cluster {
		topic, _, _ = strings.Cut(key, "}")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil || isAnswer(err) {
		if p.last == nil {
			p.last = make(map[string]time.Time)
		}
		p.latest = time.Now()
		p.last[topic] = p.latest
		return err
	}
	if (isTimeout(err) || errors.Is(err, ErrSuspected)) && p.last[topic].After(began) {
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
