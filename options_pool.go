package delayq

import (
	"errors"
	"fmt"

	"github.com/delayq/delayq/internal/script"
)

// Pool declares a pool of workers that topics of the server share, with the number of its workers.
// A topic joins it with [InPool]. At most size handlers of its topics run at the same time in this
// server.
//
// A worker that becomes idle goes to the topic that needs one and has the fewest workers for its
// [Weight]. So no topic starves, and a topic that is alone uses all of them. A running handler
// keeps its worker: a topic that was idle waits until a handler of another one ends. So the
// handlers of a topic can delay the other topics of its pool, but none outside it.
//
// The name has the bounds of a topic's name. It exists in this server only. Range: 1 to 10,000
// workers. A pool that is declared twice is an [ErrInvalid]. Default: no pools, and every topic has
// workers of its own.
func Pool(name string, size int) ServerOption {
	return serverOption(func(o *serverOptions) {
		switch err := script.CheckName("worker pool", name); {
		case err != nil:
			o.errs = append(o.errs, err)
		case size < 1 || size > mostWorkers:
			o.errs = append(o.errs, fmt.Errorf("Pool(%q, %d): the size must be from 1 to %d", name, size, mostWorkers))
		case o.pools[name] != 0:
			o.errs = append(o.errs, fmt.Errorf("Pool(%q, %d): already declared with %d workers", name, size, o.pools[name]))
		default:
			if o.pools == nil {
				o.pools = make(map[string]int)
			}
			o.pools[name] = size
		}
	})
}

// InPoolOption is the type of [InPool]: an option of servers and of single handlers.
type InPoolOption string

// InPool makes a topic use the workers of a [Pool] of the server. Passed to [NewServer] it applies
// to every topic, passed to [Server.Handle] to that one. So this server runs at most 50 handlers,
// of whatever topics:
//
//	delayq.NewServer(rdb, delayq.Pool("all", 50), delayq.InPool("all"))
//
// With [Concurrency], a topic has at most that many workers of its pool. Every topic of a pattern
// is in the pool by itself, with the Weight of the pattern. A pool that is not declared is an
// [ErrInvalid].
func InPool(name string) InPoolOption { return InPoolOption(name) }

func (n InPoolOption) applyServer(o *serverOptions)   { o.pool, o.pooled = string(n), true }
func (n InPoolOption) applyHandler(o *handlerOptions) { o.pool, o.pooled = string(n), true }

// Weight sets the share of a topic in its pool: while both have jobs, a topic of weight 6 has twice
// as many workers as one of weight 3. A Weight of a topic without a pool is an [ErrInvalid].
// Default: 1. Range: 1 to 1,000.
func Weight(n int) HandlerOption {
	return handlerOption(func(o *handlerOptions) {
		if n < 1 || n > 1000 {
			o.errs = append(o.errs, fmt.Errorf("Weight(%d): must be from 1 to 1000", n))
		}
		o.weight = n
	})
}

// joinPool checks what a handler says of its pool, and sets what it leaves to the server.
func (o *serverOptions) joinPool(h *handlerOptions) (errs []error) {
	pooled := h.pooled || o.pooled
	if !h.pooled {
		h.pool = o.pool
	}
	switch {
	case !pooled && h.weight != 0:
		errs = append(errs, errors.New("Weight is for topics with InPool, and the topic has no pool"))
	case pooled && o.pools[h.pool] == 0:
		errs = append(errs, fmt.Errorf("InPool(%q): the server has no such Pool", h.pool))
	}
	h.weight = max(h.weight, 1)
	return errs
}
