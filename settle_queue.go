package delayq

import "github.com/delayq/delayq/internal/script"

// settleLimit is the most jobs that one call settles. From settlePile jobs on, a second call runs
// beside the first, so that Redis has work while a reply is on its way.
const (
	settleLimit = 500
	settlePile  = 250
)

// outcomes are the rows that Redis has not received yet. They make no calls. topicServer.mu guards
// them.
type outcomes struct {
	rows  []row
	ready func() // called when there are rows
	pile  func() // called when there are enough rows for a second call
}

// add queues a row for the settle loops.
func (o *outcomes) add(r row) {
	r.run.Returned = true
	o.rows = append(o.rows, r)
	o.ready()
	if len(o.rows) >= settlePile {
		o.pile()
	}
}

// gather moves the next rows into list, unless fewer than least are queued. They have the verb of
// the first row, keep their order, and weigh at most about 1 MiB beyond the first. Jobs that are
// given back go to the head of ready. So if they need more than one call, the last ones go first,
// and the second loop leaves them to the first.
func (o *outcomes) gather(list []row, least int) []row {
	if len(o.rows) < least || least > 1 && o.rows[0].verb.returns() {
		return list
	}
	verb, skip := o.rows[0].verb, 0
	if verb.returns() {
		skip = -settleLimit
		for _, r := range o.rows {
			if r.verb == verb {
				skip++
			}
		}
	}
	rest, beyond, full := o.rows[:0], 0, false
	for i := range o.rows {
		r := &o.rows[i]
		if r.verb == verb && len(list) > 0 {
			beyond += r.weight()
			full = full || len(list) == settleLimit || beyond > script.CallBytes
		}
		switch {
		case r.verb != verb || full:
			rest = append(rest, *r)
		case skip > 0:
			skip--
			rest = append(rest, *r)
		default:
			list = append(list, *r)
		}
	}
	clear(o.rows[len(rest):])
	o.rows = rest
	return list
}

// putBack queues rows again whose call was not executed.
func (o *outcomes) putBack(list []row) {
	o.rows = append(o.rows, list...)
	o.ready() // they may be too few for the second loop
}

// takeAll removes all rows.
func (o *outcomes) takeAll() []row {
	rows := o.rows
	o.rows = nil
	return rows
}
