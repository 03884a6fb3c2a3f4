package check

import (
	"fmt"
	"slices"
	"strconv"
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
	c.gaveWay(j)
	c.heirs(j)
	c.handsOn(j)
	if j.told != nil {
		c.told(j, *j.told)
	}
	for _, r := range j.runs {
		c.whileHeld(j, r)
		c.whileKeyHeld(j, r)
	}
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
	finished = finished || slices.ContainsFunc(j.heirs, (*job).stored)
	switch {
	case finished:
		c.Finished++
	case dead:
		c.Dead++
	case j.enqueue.outcome != rig.OK, len(j.ended)+len(j.gaveWay) > 0, j.unknown, j.expires:
	case c.prunable(j):
		c.Pruned++
		c.missing[j.topic]++
	case c.o.Failover && len(j.runs) == 0:
		c.LostInFailover++
	case j.by != nil && len(j.runs) == 0:
		c.bad("I30", j, "was handed over by %s, which was told that it had completed its job, and did not run", j.by.ID)
	default:
		c.bad("I1", j, "was acknowledged, and neither finished nor is it dead (%d runs)", len(j.runs))
	}
}

// prunable tells whether a job may have been buried, and then removed because there were too many
// dead ones.
func (c *checker) prunable(j *job) bool {
	if c.o.DeadLimit == 0 {
		return false
	}
	return j.buriedUnrun > 0 || len(j.runs) > 0 && j.buriable(j.runs[len(j.runs)-1])
}

// buriable tells whether a job may be dead after a run.
func (j *job) buriable(r *run) bool {
	if r.settled != nil && r.settled.Result != "lease_lost" {
		return r.settled.Result == "buried"
	}
	return r.end != nil && r.end.Result == "perm" || j.retries >= 0 && r.Attempt > j.retries // nobody lived to tell
}

// stored tells whether a job is known to have been in the queue.
func (j *job) stored() bool { return j.enqueue.outcome == rig.OK || len(j.runs) > 0 }

// done tells whether a run was told that it was the last one of its job.
func (r *run) done() bool {
	return r.settled != nil && (r.settled.Result == "acked" || r.settled.Result == "again")
}

// gaveWay checks that a job that had to be dead to give way was not alive.
func (c *checker) gaveWay(j *job) {
	for _, k := range j.gaveWay {
		over := j.unknown || j.expires || len(j.ended) > 0 || j.buriedUnrun > 0 && j.buriedUnrun <= k.done
		for _, r := range j.runs {
			if r.Mono <= k.done && j.buriable(r) {
				c.GaveWay++
			}
			over = over || r.Mono <= k.done && (j.buriable(r) || r.end != nil && r.end.Mono <= k.done && (r.end.Result == "ok" || r.end.Result == "again"))
		}
		if !over {
			c.bad("I8", j, "gave way to another one, and was not dead")
		}
	}
}

// heirs checks that a job was enqueued again once, however many of its runs have asked for that.
func (c *checker) heirs(j *job) {
	stored := 0
	for _, heir := range j.heirs {
		if heir.stored() {
			stored++
		}
	}
	if stored > 1 {
		c.bad("I7", j, "was enqueued again %d times by its runs", stored)
	}
}

// A hold is a time during which somebody has paused a topic for certain, Unix ms.
type hold struct {
	by       string
	from, to int64
}

// held notes the calls that pause and resume a topic. Those of one name follow each other.
func (c *checker) held(e rig.Event, open map[int64]*call) {
	switch {
	case e.Type == rig.Invoke:
		for _, h := range c.holds[e.Topic] {
			if h.by == e.ID {
				h.to = min(h.to, e.Wall)
			}
		}
		open[e.Call] = &call{Event: e, outcome: rig.Info, done: forever}
	case e.Type == rig.OK && e.Op == rig.OpHold && open[e.Call] != nil:
		c.Holds++
		to := forever
		if e.Delay > 0 {
			to = open[e.Call].Wall + e.Delay
		}
		c.holds[e.Topic] = append(c.holds[e.Topic], &hold{e.ID, e.Wall, to})
	}
}

// paused tells whether a topic was paused at any time between two.
func (c *checker) paused(topic string, from, to int64) bool {
	return slices.ContainsFunc(c.holds[topic], func(h *hold) bool { return h.from <= to && h.to >= from })
}

// heldSlack is how long after its take a job is started at most, unless its process stands still:
// an extension meanwhile makes the take look later than it was.
const heldSlack = 100 * time.Millisecond

// whileHeld checks that a run was not taken while somebody had paused its topic. A take whose
// answer was lost may have been carried out before, and is answered later, with a lease that begins
// then.
func (c *checker) whileHeld(j *job, r *run) {
	taken := r.Fence/1000 - c.o.Lease.Milliseconds()
	for _, h := range c.holds[j.topic] {
		if taken > h.from+heldSlack.Milliseconds() && taken < h.to && !c.broken(r.Mono-int64(c.o.Lease), r.Mono, r.Proc) {
			c.bad("I22", j, "was taken by %s %d ms after %s had paused the topic", r.Proc, taken-h.from, h.by)
		}
	}
}

// pruned checks that no dead job is missing that was not counted as removed, and that what was
// removed was told and was too much.
func (c *checker) pruned() {
	for name, t := range c.state.Topics {
		counted, _ := strconv.ParseInt(t.Hashes["stats"]["pruned_dead"], 10, 64) // none is 0
		bad := func(format string, args ...any) {
			c.Violations = append(c.Violations, Violation{Rule: "I21", Topic: name, Text: fmt.Sprintf(format, args...)})
		}
		if n := int64(c.missing[name]); n > counted {
			bad("%d dead jobs are gone, and %d were counted as pruned", n, counted)
		}
		if n := c.toldPruned[name]; n > counted {
			bad("%d dead jobs were told of as pruned, and %d counted", n, counted)
		}
		if c.o.DeadLimit > 0 && len(t.Dead) > c.o.DeadLimit {
			bad("%d jobs are dead, and %d are to be kept", len(t.Dead), c.o.DeadLimit)
		}
		if c.o.DeadLimit == 0 && counted > 0 {
			bad("%d dead jobs were pruned, and there was no limit", counted)
		}
		if buried, _ := strconv.ParseInt(t.Hashes["stats"]["buried"], 10, 64); int64(len(t.Dead))+counted > buried {
			bad("%d jobs are dead and %d were pruned, and only %d were buried", len(t.Dead), counted, buried)
		}
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
			case m.done <= r.Mono && m.Mono > from && m.Row: // it may have come too late to count
				if later := m.Mono - from + (m.Delay-delay)*int64(time.Millisecond); later < 0 {
					from, delay = m.Mono, m.Delay
				}
				if sure = i == 0 || why != ""; sure {
					why = "it was enqueued or rescheduled"
				}
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
		if i == 0 && why == "it was enqueued" && j.schedule == nil && j.by == nil && j.enqueue.outcome == rig.OK && !c.broken(from, r.Mono, "") && !c.paused(j.topic, j.enqueue.Wall, r.Wall) && c.unlimited(j.topic) {
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
			// A worker that had taken the job may be about to start it: until its lease is over, or
			// as long as it stood still.
			held := k.Op == rig.OpReplace || k.result == "running" || k.Row || c.stopped(k, r.Proc)
			if held && (r.Mono-k.done < int64(c.o.Lease) || c.broken(k.Mono-int64(c.o.Lease), r.Mono, r.Proc)) {
				continue
			}
			c.bad("I8", j, "attempt %d began %v after the %s that took it out (%s)", r.Attempt, time.Duration(r.Mono-k.done), k.Op, k.result)
		}
	}
}

// stopped tells whether a process stood still during a call: it may have held the job long enough
// for others to give it up.
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
	case prev.done():
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
		if p != prev && p.done() && !c.o.Failover {
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

// broken tells whether anything was broken between two times that may concern a process, or with
// proc empty any.
func (c *checker) broken(from, to int64, proc string) bool {
	for _, w := range c.windows {
		if w.from <= to && w.to+int64(2*c.o.Lease) >= from && (w.proc == "" || proc == "" || w.proc == proc) || w.to == forever && w.from <= to {
			return true
		}
	}
	return false
}

// attempts checks the numbers of the runs: how each ended tells which number the next one has. A
// lease that ran out before its handler began uses up an attempt too; that takes a fault.
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
			case prev.settled != nil && (prev.settled.Result == "snoozed" || prev.settled.Result == "returned" || prev.settled.Result == "held"):
			default:
				known = false // the lease ran out, or the end of the story is missing
			}
		}
		if r.Attempt < least || known && r.Attempt != number && !c.broken(from, r.Mono, "") {
			c.bad("I10", j, "run %d is attempt %d instead of %d", i+1, r.Attempt, number)
		}
	}
}
