package commit

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/delayq/delayq/internal/script"
)

const (
	// RowsReceipt is how long the receipts of a plan are kept. A plan that is sent again later than
	// that can make a job twice.
	RowsReceipt = 7 * 24 * time.Hour

	// rowsJobs and rowsBytes bound a call. A plan that is sent again must be divided as before, so
	// these numbers belong to the format of a plan.
	rowsJobs  = 500
	rowsBytes = 1 << 20
)

// SendPlan carries out the operations of one topic that a plan holds. size returns how many bytes
// of an operation count. It returns an error if a call has failed: then the plan is sent again.
//
// A call has a series of its own, which its place in the plan names, and the number of the plan. If
// the plan is sent again, each call finds its receipt, gets its first reply, and so leads to the
// same next call.
func (c *Groups) SendPlan(ctx context.Context, series string, number uint64, list []*Op, size func(i int) int) error {
	sizes := make(map[*Op]int, len(list))
	for i, o := range list {
		sizes[o] = size(i)
	}
	g := c.For(list[0].Topic, Enqueue)
	defer g.Release()
	calls := 0
	for waiting := list; len(waiting) > 0; {
		var next []*Op
		next, waiting = nextRows(waiting, sizes)
		for len(next) > 0 {
			pool := &script.SeriesPool{
				Base: series + "." + strconv.Itoa(calls) + ".", Floor: number - 1,
				Kept: "/" + strconv.FormatInt(RowsReceipt.Milliseconds(), 10),
			}
			calls++
			if failed, _ := g.send(ctx, pool, next); failed != nil && script.Code(failed) != script.CodeWrongType {
				return c.unsure(failed)
			}
			next = slices.DeleteFunc(next, func(o *Op) bool { return o.settled })
		}
	}
	return nil
}

// nextRows takes the operations of the next call out of a list: those of one kind, each about
// another ID that no operation before it is about.
func nextRows(list []*Op, sizes map[*Op]int) (next, rest []*Op) {
	seen, bytes := make(map[string]bool), 0
	kind := (*Kind)(nil)
	for _, o := range list {
		if o.settled { // it cannot be sent
			continue
		}
		if kind == nil {
			kind = o.Kind
		}
		if o.Kind != kind || seen[o.ID] || len(next) == rowsJobs || len(next) > 0 && bytes+sizes[o] > rowsBytes {
			seen[o.ID] = true
			rest = append(rest, o)
			continue
		}
		seen[o.ID] = true
		next, bytes = append(next, o), bytes+sizes[o]
	}
	return next, rest
}
