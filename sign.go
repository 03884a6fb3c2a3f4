package delayq

import (
	"context"
	"math"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/link"
)

// A sign is the sign of life of a loop: the time by which the loop must move on. It begins a turn:
// now. It calls Redis: when the call is over at the latest, so that a Redis that does not answer is
// not mistaken for a loop that does not turn. It rests: at the end of the rest. It waits to be
// woken: never. A loop is late if that time is long past; see [Server.Health].
//
// The calls find the sign of their loop in the context. A nil sign ignores all calls.
type sign struct {
	by     atomic.Int64            // in nanos
	turned atomic.Int64            // in nanos: when the latest turn began; 0: there was none
	parts  atomic.Pointer[[]*sign] // not nil: the loop waits for goroutines that have these signs
}

// never is the time of a loop that waits to be woken.
const never = math.MaxInt64

// epoch is the origin of nanos. They are counted by the monotonic clock, so nobody can set them.
var epoch = time.Now()

func nanos() int64                  { return int64(time.Since(epoch)) }
func nanosOf(at time.Time) int64    { return int64(at.Sub(epoch)) }
func laterBy(d time.Duration) int64 { return nanos() + int64(d) }

// turn notes that the loop begins a turn, after a rest.
func (g *sign) turn() {
	if g != nil {
		g.turnAt(nanos())
	}
}

func (g *sign) turnAt(now int64) {
	g.turned.Store(now)
	g.by.Store(now)
}

// rest notes that the loop rests for d.
func (g *sign) rest(d time.Duration) {
	if g != nil {
		g.by.Store(laterBy(d))
	}
}

// wait notes that the loop waits to be woken, or that there is nothing to do any more.
func (g *sign) wait() {
	if g != nil {
		g.by.Store(never)
	}
}

// call notes that the loop calls Redis, at most until the deadline of ctx.
func (g *sign) call(ctx context.Context) {
	if g == nil {
		return
	}
	if deadline, ok := ctx.Deadline(); ok {
		g.by.Store(nanosOf(deadline))
	} else {
		g.by.Store(laterBy(link.CallTimeout))
	}
}

// called notes that the call is over.
func (g *sign) called() {
	if g != nil {
		g.by.Store(nanos())
	}
}

// split gives goroutines that the loop waits for signs of their own. join ends that.
func (g *sign) split(n int) []*sign {
	parts := make([]*sign, n)
	for i := range parts {
		parts[i] = new(sign)
		parts[i].turn()
	}
	if g != nil {
		g.parts.Store(&parts)
	}
	return parts
}

func (g *sign) join() {
	if g != nil {
		g.called()
		g.parts.Store(nil)
	}
}

// due returns the time by which the loop must move on.
func (g *sign) due() int64 {
	parts := g.parts.Load()
	if parts == nil {
		return g.by.Load()
	}
	by := int64(never)
	for _, one := range *parts {
		by = min(by, one.by.Load())
	}
	return by
}

// signKey is the key of the sign in a context.
type signKey struct{}

// signed returns a context for the calls of the loop that has the sign.
func signed(ctx context.Context, g *sign) context.Context {
	return context.WithValue(ctx, signKey{}, g)
}

// signOf returns the sign of the loop to which a context belongs, or nil.
func signOf(ctx context.Context) *sign {
	g, _ := ctx.Value(signKey{}).(*sign)
	return g
}

// signHook is a hook of go-redis that notes the calls of a client in the signs of the loops that
// make them. go-redis also calls it for the greeting of a new connection, with the context of the
// call that needs the connection, and perhaps after the end of that call. So the context that it
// passes on has no sign.
type signHook struct{}

// DialHook implements [redis.Hook].
func (signHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements [redis.Hook].
func (signHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		g := signOf(ctx)
		if g == nil {
			return next(ctx, cmd)
		}
		g.call(ctx)
		err := next(signed(ctx, nil), cmd)
		g.called()
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (signHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g := signOf(ctx)
		if g == nil {
			return next(ctx, cmds)
		}
		g.call(ctx)
		err := next(signed(ctx, nil), cmds)
		g.called()
		return err
	}
}
