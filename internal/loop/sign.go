package loop

import (
	"context"
	"math"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/link"
)

// A Sign is the sign of life of a loop: the time by which the loop must move on. It begins a turn:
// now. It calls Redis: when the call is over at the latest, so that a Redis that does not answer is
// not mistaken for a loop that does not turn. It rests: at the end of the rest. It waits to be
// woken: never. A loop is late if that time is long past; the health of a server says so.
//
// The calls find the sign of their loop in the context. A nil sign ignores all calls.
type Sign struct {
	by     atomic.Int64            // in nanos
	turned atomic.Int64            // in nanos: when the latest turn began; 0: there was none
	parts  atomic.Pointer[[]*Sign] // not nil: the loop waits for goroutines that have these signs
}

// Never is the time of a loop that waits to be woken.
const Never = math.MaxInt64

// epoch is the origin of nanos. They are counted by the monotonic clock, so nobody can set them.
var epoch = time.Now()

func Nanos() int64                  { return int64(time.Since(epoch)) }
func nanosOf(at time.Time) int64    { return int64(at.Sub(epoch)) }
func laterBy(d time.Duration) int64 { return Nanos() + int64(d) }

// Turn notes that the loop begins a turn, after a rest.
func (g *Sign) Turn() {
	if g != nil {
		g.turnAt(Nanos())
	}
}

func (g *Sign) turnAt(now int64) {
	g.turned.Store(now)
	g.by.Store(now)
}

// Rest notes that the loop rests for d.
func (g *Sign) Rest(d time.Duration) {
	if g != nil {
		g.by.Store(laterBy(d))
	}
}

// Wait notes that the loop waits to be woken, or that there is nothing to do any more.
func (g *Sign) Wait() {
	if g != nil {
		g.by.Store(Never)
	}
}

// Call notes that the loop calls Redis, at most until the deadline of ctx.
func (g *Sign) Call(ctx context.Context) {
	if g == nil {
		return
	}
	if deadline, ok := ctx.Deadline(); ok {
		g.by.Store(nanosOf(deadline))
	} else {
		g.by.Store(laterBy(link.CallTimeout))
	}
}

// Called notes that the call is over.
func (g *Sign) Called() {
	if g != nil {
		g.by.Store(Nanos())
	}
}

// Split gives goroutines that the loop waits for signs of their own. join ends that.
func (g *Sign) Split(n int) []*Sign {
	parts := make([]*Sign, n)
	for i := range parts {
		parts[i] = new(Sign)
		parts[i].Turn()
	}
	if g != nil {
		g.parts.Store(&parts)
	}
	return parts
}

func (g *Sign) Join() {
	if g != nil {
		g.Called()
		g.parts.Store(nil)
	}
}

// due returns the time by which the loop must move on.
func (g *Sign) due() int64 {
	parts := g.parts.Load()
	if parts == nil {
		return g.by.Load()
	}
	by := int64(Never)
	for _, one := range *parts {
		by = min(by, one.by.Load())
	}
	return by
}

// signKey is the key of the sign in a context.
type signKey struct{}

// Signed returns a context for the calls of the loop that has the sign.
func Signed(ctx context.Context, g *Sign) context.Context {
	return context.WithValue(ctx, signKey{}, g)
}

// SignOf returns the sign of the loop to which a context belongs, or nil.
func SignOf(ctx context.Context) *Sign {
	g, _ := ctx.Value(signKey{}).(*Sign)
	return g
}

// SignHook is a hook of go-redis that notes the calls of a client in the signs of the loops that
// make them. go-redis also calls it for the greeting of a new connection, with the context of the
// call that needs the connection, and perhaps after the end of that call. So the context that it
// passes on has no sign.
type SignHook struct{}

// DialHook implements [redis.Hook].
func (SignHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements [redis.Hook].
func (SignHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		g := SignOf(ctx)
		if g == nil {
			return next(ctx, cmd)
		}
		g.Call(ctx)
		err := next(Signed(ctx, nil), cmd)
		g.Called()
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (SignHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g := SignOf(ctx)
		if g == nil {
			return next(ctx, cmds)
		}
		g.Call(ctx)
		err := next(Signed(ctx, nil), cmds)
		g.Called()
		return err
	}
}
