package settle

import "github.com/delayq/delayq/internal/script"

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

// Gather moves the next rows into list, unless fewer than least are queued. They have the verb of
// the first row, keep their order, and weigh at most about 1 MiB beyond the first. Jobs that are
// given back go to the head of ready. So if they need more than one call, the last ones go first,
// and the second loop leaves them to the first.
func (q *Queue) Gather(list []Row, least int) []Row {
	if len(q.Rows) < least || least > 1 && q.Rows[0].Verb.returns() {
		return list
	}
	verb, heir, skip := q.Rows[0].Verb, q.Rows[0].Heir, 0
	if verb.returns() {
		skip = -Limit
		for _, r := range q.Rows {
			if r.Verb == verb {
				skip++
			}
		}
	}
	rest, beyond, full := q.Rows[:0], 0, false
	for i := range q.Rows {
		r := &q.Rows[i]
		other := r.Verb != verb || r.Heir != heir
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

// PutBack queues rows again whose call was not executed.
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
