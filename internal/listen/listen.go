// Package listen reads the messages of Redis's channels, and notices a dead connection. It knows
// nothing of what the messages say.
package listen

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
)

// Silence is how long a connection can be silent before it is tested. If it stays silent for as
// long again, it is dead.
const Silence = 30 * time.Second

// Read subscribes to channels, and calls heard with everything that Redis sends, until something
// fails. Its error is of no interest if ctx is done. patience is how long one call takes at most,
// with the dial that it may need.
func Read(ctx context.Context, rdb redis.UniversalClient, channels []string, patience time.Duration, heard func(msg any)) error {
	g := loop.SignOf(ctx)
	g.Rest(patience)
	sub := rdb.Subscribe(ctx)
	// Close ends a pending read, whose error is about a connection that is no longer needed.
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	p := newPinger(context.WithValue(loop.Signed(ctx, nil), subscribedKey{}, true), sub)
	defer func() {
		if stop() {
			_ = sub.Close()
		}
		p.stop()
	}()
	if err := sub.Subscribe(ctx, channels...); err != nil {
		return err
	}
	reading := context.WithValue(ctx, subscribedKey{}, true)
	for {
		g.Rest(patience + 2*Silence)
		// The end of a read that is under way would tear a message. So the test of the connection
		// comes from outside, and only a dead one ends a read.
		msg, err := sub.ReceiveTimeout(reading, 2*Silence)
		g.Turn()
		if err != nil {
			return err
		}
		p.put()
		heard(msg)
	}
}

// subscribedKey is the key of true in the context of calls that need no new connection.
type subscribedKey struct{}

// errDead is the error of a dial that is not made.
var errDead = errors.New("the connection of the subscription is dead")

// Hook is a hook of go-redis for the clients of [Read]. When a connection breaks, go-redis makes
// another one before it says so, and meanwhile holds a lock for which all other calls about the
// subscription wait. The hook prevents that: whoever reads subscribes again.
type Hook struct{}

// DialHook implements [redis.Hook].
func (Hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if ctx.Value(subscribedKey{}) != nil {
			return nil, errDead
		}
		return next(ctx, network, addr)
	}
}

// ProcessHook implements [redis.Hook].
func (Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A pinger sends a ping after each Silence. It begins with the first message.
type pinger struct {
	ping  func()
	pings sync.WaitGroup

	mu      sync.Mutex
	timer   *time.Timer // nil: there was no message
	stopped bool
}

func newPinger(ctx context.Context, sub *redis.PubSub) *pinger {
	// A ping that fails closes the connection, which ends the read.
	return &pinger{ping: func() { _ = sub.Ping(ctx) }}
}

// launch sends a ping on a goroutine of its own, which can run the user's dialer.
func (p *pinger) launch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		contain.Launch(&p.pings, p.ping, func(*contain.Crash) {})
	}
}

// put puts off the next ping.
func (p *pinger) put() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer == nil {
		p.timer = time.AfterFunc(Silence, p.launch)
	} else {
		p.timer.Reset(Silence)
	}
}

// stop ends the pings, and waits for one that is under way.
func (p *pinger) stop() {
	p.mu.Lock()
	p.stopped = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.pings.Wait()
}
