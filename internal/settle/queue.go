package settle

import (
	"slices"

	"github.com/delayq/delayq/internal/script"
)

// Limit is the most jobs that one call settles. From Pile jobs on, a second call runs
// beside the first, so that Redis has work while a reply is on its way.
const (
	Limit = 500
	Pile  = 250
)

// A Queue holds the rows that Redis has not received yet. It makes no calls. The mutex of the topic
// guards it.
type Queue struct {
	Rows  []Row
	Ready func() // called when there are rows
	Pile  func() // called when there are enough rows for a second call
}

// Add queues a row for the settle loops.
func (q *Queue) Add(r Row) {
	r.Run.Returned = true
	q.Rows = append(q.Rows, r)
	q.Ready()
	if len(q.Rows) >= Pile {
		q.Pile()
	}
}

// Gather moves the next rows into list, unless fewer than least are queued. They are of the kind of
// the first row, keep their order, and weigh at most about 1 MiB beyond the first. Jobs that are
// given back go to the head of ready. So if they need more than one call, the last ones go first,
// and the second loop leaves them to the first.
func (q *Queue) Gather(list []Row, least int) []Row {
	if len(q.Rows) < least {
		return list
	}
	q.giveWay()
	if least > 1 && q.Rows[0].Verb.returns() {
		return list
	}
	kind, skip := q.Rows[0].kind(), 0
	if kind.verb.returns() {
		skip = -Limit
		for i := range q.Rows {
			if q.Rows[i].kind() == kind {
				skip++
			}
		}
	}
	rest, beyond, full := q.Rows[:0], 0, false
	for i := range q.Rows {
		r := &q.Rows[i]
		other := r.kind() != kind
		if !other && len(list) > 0 {
			beyond += r.Weight()
			full = full || len(list) == Limit || beyond > script.CallBytes
		}
		switch {
		case other || full:
			rest = append(rest, *r)
		case skip > 0:
			skip--
			rest = append(rest, *r)
		default:
			list = append(list, *r)
		}
	}
	clear(q.Rows[len(rest):])
	q.Rows = rest
	return list
}

// A kind is what the rows of a call have in common. Jobs that hand others over need keys that the
// others do not need: what is wrong with these keys must not keep the others from ending.
type kind struct {
	verb        Verb
	heir, hands bool
}

func (r *Row) kind() kind { return kind{r.Verb, r.Heir, r.handedOver() != ""} }

// giveWay puts the rows at the head whose calls have failed behind all others, if there are others.
// They do so once for each failure, so that they have their turns however many follow.
func (q *Queue) giveWay() {
	first := slices.IndexFunc(q.Rows, func(r Row) bool { return !r.failed })
	if first < 0 {
		return
	}
	failed := slices.Clone(q.Rows[:first])
	copy(q.Rows, q.Rows[first:])
	copy(q.Rows[len(q.Rows)-first:], failed)
	for i := range q.Rows {
		q.Rows[i].failed = false
	}
}

// Failed queues rows again whose call has failed, and was not executed. The rows of other kinds
// that are queued by the next call go first. Jobs that are given back keep their order.
func (q *Queue) Failed(list []Row) {
	for i := range list {
		list[i].failed = !list[i].Verb.returns()
	}
	q.PutBack(list)
}

// PutBack queues rows again that a call has left.
func (q *Queue) PutBack(list []Row) {
	q.Rows = append(q.Rows, list...)
	q.Ready() // they may be too few for the second loop
}

// TakeAll removes all rows.
func (q *Queue) TakeAll() []Row {
	rows := q.Rows
	q.Rows = nil
	return rows
}
