package check

import (
	"fmt"
	"slices"

	"github.com/delayq/delayq/faults/rig"
)

// handsOver notes that a run hands a job over. Nobody knows whether it will be enqueued until that
// run has ended.
func (c *checker) handsOver(e rig.Event, r *run) {
	c.Operations++
	at := place{e.Next.Topic, e.Next.ID}
	fresh := e
	fresh.Topic, fresh.ID, fresh.Inc = e.Next.Topic, e.Next.ID, e.Next.Inc
	fresh.Delay, fresh.Sum, fresh.Retries, fresh.Attempt = e.Next.Delay, e.Next.Sum, -1, 0
	c.invoked(at, fresh)
	next := c.jobs[at][fresh.Inc]
	next.enqueue.outcome = rig.Info
	if next.by = r; r != nil {
		r.handed = append(r.handed, next)
	}
}

// handed notes that a run was told that it was the last one of its job.
func (c *checker) handed(r *run, last map[place]*job) {
	if !r.done() {
		return
	}
	for _, next := range r.handed {
		c.Handed++
		next.enqueue.outcome, next.enqueue.done = rig.OK, r.settled.Mono
		last[next.place] = next
	}
}

// handsOn checks what the runs of a job have handed over. The run that has completed the job is the
// last one: what it has handed over has run, and nothing that the others have. What is known to be
// handed over and has not run is found as lost.
func (c *checker) handsOn(j *job) {
	for i, r := range j.runs {
		acked := i == len(j.runs)-1 && (r.settled == nil || r.done() || r.settled.Result == "lease_lost")
		for _, next := range r.handed {
			switch ran := len(next.runs) > 0; {
			case c.o.Failover:
			case ran && !acked:
				c.bad("I30", next, "ran, and attempt %d of %q, which handed it over, has not completed that job", r.Attempt, j.id)
			case !ran && acked && !r.done() && c.completed(j, r):
				c.bad("I30", next, "did not run, and attempt %d of %q, which handed it over, has completed that job", r.Attempt, j.id)
			}
		}
	}
}

// completed tells whether the last run of a job must have completed it, though it was not told so:
// nothing else can have ended the job.
func (c *checker) completed(j *job, last *run) bool {
	if last.end == nil || last.end.Result != "ok" && last.end.Result != "again" || last.lost != "" {
		return false
	}
	if c.state == nil {
		return false
	}
	if t := c.state.Topics[j.topic]; t != nil && t.Pool[j.id] != "" {
		return false
	}
	return j.retries < 0 && !j.unknown && !j.expires && j.enqueue.outcome == rig.OK && len(j.ended)+len(j.gaveWay) == 0
}

// refused finds parcels that their targets have refused: none does.
func (c *checker) refused() {
	for name, t := range c.state.Topics {
		n := len(t.Refused)
		if counted := t.Hashes["stats"]["undelivered"]; n > 0 || counted != "" && counted != "0" {
			text := fmt.Sprintf("parcels were refused: %q counted, kept %q", counted, slices.Compact(t.Refused))
			c.Violations = append(c.Violations, Violation{Rule: "I30", Topic: name, Text: text})
		}
	}
}
