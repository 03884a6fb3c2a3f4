package check

import (
	"time"

	"github.com/delayq/delayq/faults/rig"
)

// judge holds one incarnation to the promises.
func (c *checker) judge(j *job) {
	if j.enqueue.outcome == rig.Fail {
		if len(j.runs) > 0 {
			c.bad("I16", j, "ran, though its enqueueing was refused: %s", j.enqueue.err)
		}
		return
	}
	if j.enqueue.outcome == rig.Info && len(j.runs) > 0 {
		c.UnknownRan++
	}
	c.content(j)
	c.lost(j)
	c.early(j)
	c.cancelled(j)
	for i, r := range j.runs {
		if i > 0 {
			c.again(j, j.runs[:i], r)
		}
	}
	c.attempts(j)
}

// content checks that what ran is what was enqueued.
func (c *checker) content(j *job) {
	nonce := ""
	for _, r := range j.runs {
		if r.Sum != j.sum {
			c.bad("I2", j, "ran with another payload: sum %s instead of %s", r.Sum, j.sum)
		}
		if nonce != "" && r.Nonce != nonce {
			c.bad("I2", j, "ran with the nonces %s and %s", nonce, r.Nonce)
		}
		nonce = r.Nonce
	}
}

// lost checks that the job came to an end.
func (c *checker) lost(j *job) {
	dead := len(j.runs) > 0 && j.runs[len(j.runs)-1].settled != nil && j.runs[len(j.runs)-1].settled.Result == "buried" && c.state == nil
	if c.state != nil {
		if t := c.state.Topics[j.topic]; t != nil {
			_, dead = t.Dead[j.id]
		}
	}
	finished := false
	for _, r := range j.runs {
		finished = finished || r.end != nil && r.end.Result == "ok"
	}
	switch {
	case finished:
		c.Finished++
	case dead:
		c.Dead++
	case j.enqueue.outcome != rig.OK, len(j.ended) > 0, j.unknown, j.expires:
	case c.o.Failover && len(j.runs) == 0:
		c.LostInFailover++
	default:
		c.bad("I1", j, "was acknowledged, and neither finished nor is it dead (%d runs)", len(j.runs))
	}
}

// early checks every start against the last thing that said when the job is due.
func (c *checker) early(j *job) {
	for i, r := range j.runs {
		from, delay, why := j.enqueue.Mono, j.enqueue.Delay, "it was enqueued"
		sure := true
		if i > 0 {
			prev := j.runs[i-1]
			from, delay, why = c.due(prev, r)
			sure = why != ""
		}
		for _, m := range j.moves {
			switch {
			case m.outcome != rig.OK, m.Mono <= r.Mono && m.done > r.Mono, m.Mono <= from && m.done > from:
				sure = false // it may have counted, or not
			case m.done <= r.Mono && m.Mono > from:
				from, delay, why, sure = m.Mono, m.Delay, "it was rescheduled", i == 0 || why != ""
			}
		}
		if !sure {
			continue
		}
		passed := time.Duration(r.Mono - from)
		due := time.Duration(delay) * time.Millisecond
		if passed < due-tick {
			c.bad("I3", j, "attempt %d began %v after %s, and was due after %v", r.Attempt, passed, why, due)
		}
		if i == 0 && why == "it was enqueued" && j.schedule == nil && j.enqueue.outcome == rig.OK && !c.broken(from, r.Mono, "") {
			c.Late = append(c.Late, max(0, passed-due))
		}
	}
}

// due tells from what time on, and how much later, the run after prev was due, if that is known.
func (c *checker) due(prev, next *run) (from, delay int64, why string) {
	if prev.settled == nil || prev.end == nil {
		return 0, 0, ""
	}
	switch {
	case prev.settled.Result == "retried" && next.Attempt == prev.Attempt+1 && c.o.BackoffMin > 0:
		return prev.end.Mono, c.o.BackoffMin.Milliseconds(), "its failure"
	case prev.settled.Result == "snoozed" && next.Attempt == prev.Attempt && c.o.Snooze > 0:
		return prev.end.Mono, c.o.Snooze.Milliseconds(), "its snooze"
	}
	return 0, 0, ""
}

// cancelled checks that a job that was taken out does not start any more.
func (c *checker) cancelled(j *job) {
	for _, k := range j.ended {
		for _, r := range j.runs {
			if r.Mono <= k.done {
				continue
			}
			// A worker that had taken the job may be about to start it: until its lease is over, or as long as it stood still.
			held := k.Op == rig.OpReplace || k.result == "running" || c.stopped(k, r.Proc)
			if held && (r.Mono-k.done < int64(c.o.Lease) || c.broken(k.Mono-int64(c.o.Lease), r.Mono, r.Proc)) {
				continue
			}
			c.bad("I8", j, "attempt %d began %v after the %s that took it out (%s)", r.Attempt, time.Duration(r.Mono-k.done), k.Op, k.result)
		}
	}
}

// stopped tells whether a process stood still during a call: it may have held the job long enough for others to give it up.
func (c *checker) stopped(k call, proc string) bool {
	for _, w := range c.windows {
		if w.kind == "stop" && w.proc == proc && w.from <= k.done && w.to >= k.Mono {
			return true
		}
	}
	return false
}

// again checks a further run of a job.
func (c *checker) again(j *job, before []*run, r *run) {
	prev := before[len(before)-1]
	why := ""
	switch {
	case prev.settled != nil && prev.settled.Result == "acked":
		if c.o.Failover {
			why = "failover"
			break
		}
		rule := "I5"
		if prev.settled.Mono > r.Mono {
			rule = "I7"
		}
		c.bad(rule, j, "ran again after attempt %d in %s was acknowledged as done", prev.Attempt, prev.Proc)
		return
	case prev.settled != nil && prev.settled.Result != "lease_lost" && prev.settled.Result != "cancelled":
		why = prev.settled.Result
	case prev.lost != "" && prev.lost != "timeout":
		why = prev.lost
	case prev.settled != nil:
		why = prev.settled.Result
	case prev.lost == "timeout" && prev.until() > r.Mono:
		why = "deaf to its timeout"
	case prev.end != nil && prev.end.Result != "ok":
		why = "failed"
	default:
		why = c.blame(prev, r)
	}
	if why == "" {
		c.bad("I5", j, "ran again as attempt %d in %s %v after attempt %d in %s, for no reason (it ended %v)",
			r.Attempt, r.Proc, time.Duration(r.Mono-prev.Mono), prev.Attempt, prev.Proc, prev.end)
		return
	}
	c.Duplicates[why]++
	for _, p := range before {
		if p.until() > r.Mono && p.lost != "lease_lost" && p.lost != "shutdown" && p.lost != "timeout" && p.lost != "cancelled" && c.blame(p, r) == "" {
			c.bad("I6", j, "attempt %d began in %s while attempt %d ran in %s", r.Attempt, r.Proc, p.Attempt, p.Proc)
		}
		if p != prev && p.settled != nil && p.settled.Result == "acked" && !c.o.Failover {
			c.bad("I7", j, "ran again after attempt %d in %s was acknowledged as done", p.Attempt, p.Proc)
		}
	}
}

// blame finds the fault because of which a run may have lost its lease before next began.
func (c *checker) blame(p, next *run) string {
	kind := ""
	for _, w := range c.windows {
		if w.from > next.Mono || w.to < p.Mono-int64(c.o.Lease) || w.proc != "" && w.proc != p.Proc {
			continue
		}
		if kind = w.kind; w.proc != "" {
			break // what hit this very process explains more
		}
	}
	return kind
}

// broken tells whether anything was broken between two times that may concern a process, or with proc empty any.
func (c *checker) broken(from, to int64, proc string) bool {
	for _, w := range c.windows {
		if w.from <= to && w.to+int64(2*c.o.Lease) >= from && (w.proc == "" || proc == "" || w.proc == proc) || w.to == forever && w.from <= to {
			return true
		}
	}
	return false
}

// attempts checks the numbers of the runs: how each ended tells which number the next one has. A lease that ran out before its handler
// began uses up an attempt too; that takes a fault.
func (c *checker) attempts(j *job) {
	for i, r := range j.runs {
		if j.retries >= 0 && r.Attempt > j.retries+1 {
			c.bad("I10", j, "attempt %d, and only %d retries are allowed", r.Attempt, j.retries)
		}
		least, number, from := 1, 1, j.enqueue.Mono
		known := true
		if i > 0 {
			prev := j.runs[i-1]
			from, number, least = prev.Mono, prev.Attempt, prev.Attempt
			switch {
			case prev.settled != nil && prev.settled.Result == "retried":
				number, least = number+1, number+1
			case prev.settled != nil && (prev.settled.Result == "snoozed" || prev.settled.Result == "returned"):
			default:
				known = false // the lease ran out, or the end of the story is missing
			}
		}
		if r.Attempt < least || known && r.Attempt != number && !c.broken(from, r.Mono, "") {
			c.bad("I10", j, "run %d is attempt %d instead of %d", i+1, r.Attempt, number)
		}
	}
}
