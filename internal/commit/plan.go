package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/part"
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

var (
	// ErrOpen is the outcome of an operation that was not sent, or of which nothing is known.
	ErrOpen = errors.New("delayq: the row was not sent, or its outcome is unknown")

	// ErrPassed is in the error of SendPlan if the series of the plan has been used for a later
	// plan, or for another one with the same number. The operations without an outcome may have
	// been carried out or not.
	ErrPassed = errors.New("delayq: Redis has had a later plan of this series")

	// ErrUnconfirmed is in the error of SendPlan if too few replicas have confirmed a call.
	ErrUnconfirmed = errors.New("delayq: a call of a plan was not confirmed by enough replicas")
)

// A Plan names the calls that carry out the rows of an outbox.
type Plan struct {
	Series string // of the sender of all plans
	Number uint64 // of the plan; greater than that of every earlier one
	Tag    string // random, of letters and digits; empty: an earlier release has made the plan
	Call   string // name of the only call; empty: the plan has any number
	Probe  bool   // the receipt is needed for a minute only
}

// SendPlan carries out the operations of one topic that a plan holds, until a call fails. Then it
// returns an error, and the operations whose outcomes are not known are not settled. If the call
// has no answer, so that Redis may still carry it out, lost is its name. size returns how many
// bytes of an operation count.
//
// A call has a series of its own, which its place in the plan names, and the number of the plan. If
// the plan is sent again, each call finds its receipt, gets its first reply, and so leads to the
// same next call. Operations about one ID keep their order, and so do new jobs of one key.
func (c *Groups) SendPlan(ctx context.Context, plan Plan, list []*Op, size func(i int) int) (lost string, err error) {
	sizes := make(map[*Op]int, len(list))
	for i, o := range list {
		sizes[o] = size(i)
	}
	p := planned{all: c, ctx: ctx, plan: plan, sizes: sizes}
	place := list[0].Topic
	if name, at, is := strings.Cut(plan.Call, atPlace); is {
		p.plan.Call, place = name, at
	}
	p.send(place, list)
	if rest := left(list); len(rest) > 0 && p.err == nil {
		p.walk(rest)
	}
	if p.err != nil {
		for _, o := range list {
			if o.elsewhere() { // it has to go on
				o.settled = false
			}
		}
	}
	return p.lost, p.err
}

// atPlace stands in the name of a call between its name and the partition that it is sent to.
const atPlace = "@"

// A planned is a plan while it is sent.
type planned struct {
	all   *Groups
	ctx   context.Context
	plan  Plan
	sizes map[*Op]int
	lost  string
	err   error
}

// send carries out operations in one place, unless a call has failed.
func (p *planned) send(place string, list []*Op) {
	if p.err != nil {
		return
	}
	if p.lost, p.err = p.sendAt(place, list); p.lost != "" && place != part.HomeOf(list[0].Topic) {
		p.lost += atPlace + place
	}
}

// sendAt carries out operations in one place.
func (p *planned) sendAt(place string, list []*Op) (lost string, err error) {
	c, plan := p.all, p.plan
	g := c.For(place, Enqueue)
	defer g.Release()
	keep := RowsReceipt
	if plan.Probe {
		keep = time.Minute
	}
	base, kept := plan.Series+".", "/"+strconv.FormatInt(keep.Milliseconds(), 10)
	if plan.Tag != "" {
		kept += "/" + plan.Tag
	}
	calls := callNames{sealed: plan.Tag != "", only: plan.Call}
	released := make(map[[2]string]bool)
	for waiting := list; len(waiting) > 0; {
		var next []*Op
		next, waiting = nextRows(waiting, p.sizes, plan.Tag != "")
		group := slices.Clone(next)
		for again := 0; len(next) > 0; again++ {
			name := calls.next(again)
			pool := &script.SeriesPool{Base: base + name + ".", Floor: plan.Number - 1, Kept: kept}
			failed, unconfirmed := g.send(p.ctx, pool, next, !plan.Probe)
			if failed == nil && unconfirmed != nil {
				failed = fmt.Errorf("%w: %w", ErrUnconfirmed, unconfirmed)
			}
			if failed != nil && !ofRow(failed, next) {
				for _, o := range next {
					o.settled = false
				}
				return c.failedCall(name, failed)
			}
			next = slices.DeleteFunc(next, func(o *Op) bool { return o.settled })
		}
		for _, o := range group {
			if o.Kind == FlowRelease && script.Code(o.Err) == script.CodeWrongType { // an operator can repair it
				return "", o.Err
			}
		}
		waiting = append(waiting, releases(group, released)...)
	}
	return "", nil
}

// failedCall returns the error of a call of a plan, and its name if it has no answer.
func (c *Groups) failedCall(name string, failed error) (lost string, err error) {
	switch {
	case errors.Is(failed, ErrUnconfirmed):
	case script.Code(failed) == script.CodeUnconfirmed:
		failed = fmt.Errorf("%w: %w", ErrUnconfirmed, failed)
	case script.Code(failed) == script.CodePassed:
		failed = fmt.Errorf("%w: %w", ErrPassed, failed)
	case !script.Certain(failed):
		lost = name
	}
	return lost, c.unsure(failed)
}

// callNames names the calls of a topic in a plan. Each group of rows has an index. A call for those
// that a reply has left has the index of its group, followed by r1, r2 and so on.
type callNames struct {
	sealed bool   // otherwise each call has an index, as in the plans of earlier releases
	only   string // the name that all have
	groups int    // that have begun
}

func (n *callNames) next(again int) string {
	switch {
	case n.only != "":
		return n.only
	case n.sealed && again > 0:
		return CallName(n.groups-1, true) + "r" + strconv.Itoa(again)
	}
	n.groups++
	return CallName(n.groups-1, n.sealed)
}

// CallName returns the name of the first call for a group of rows.
func CallName(index int, sealed bool) string {
	if sealed { // earlier releases divide plans in another way, so their receipts are others
		return "t" + strconv.Itoa(index)
	}
	return strconv.Itoa(index)
}

// ofRow reports whether an error of a call is the outcome of its operations for good: a key of the
// topic is damaged, or the only job of the call is larger than Redis allows.
func ofRow(err error, list []*Op) bool {
	if errors.Is(err, errUnrecorded) {
		return false
	}
	return script.Code(err) == script.CodeWrongType || len(list) == 1 && script.Answered(err) && strings.Contains(err.Error(), tooLong)
}

// tooLong is in the error of Redis for a word above its proto-max-bulk-len.
const tooLong = "invalid bulk length"

// nextRows takes the operations of the next call out of a list: those of one kind, each about
// another ID that no operation before it is about. A new job whose key has an earlier one that is
// not in the call is not in it either, unless the plan is that of an earlier release.
func nextRows(list []*Op, sizes map[*Op]int, keyed bool) (next, rest []*Op) {
	seen, bytes := make(map[string]bool), 0
	left := make(map[string]bool) // keys
	kind := (*Kind)(nil)
	for _, o := range list {
		if o.settled { // it cannot be sent
			continue
		}
		if kind == nil {
			kind = o.Kind
		}
		key := ""
		if keyed && o.Fresh != nil {
			key = o.Fresh.Opts.Key
		}
		full := len(next) == rowsJobs || len(next) > 0 && (kind.alone || bytes+sizes[o] > rowsBytes)
		if o.Kind != kind || seen[o.about()] || key != "" && left[key] || full {
			seen[o.about()], left[key] = true, true
			rest = append(rest, o)
			continue
		}
		seen[o.about()] = true
		next, bytes = append(next, o), bytes+sizes[o]
	}
	return next, rest
}
