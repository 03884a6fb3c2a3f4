package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/faults/rig"
)

// A schedule is all that was asked of one name, whether or not it was gone in between. Calls about
// a name must follow each other; after one of unknown outcome no more is known than what the
// definitions allow.
type schedule struct {
	place
	calls     []*call
	defs      map[int64]*call // the calls that brought a definition, by incarnation
	jobs      []*job          // of slots, in their order
	triggered []*job
}

// A span is a time from one call to another, Unix ms.
type span struct{ from, to int64 }

func (k *call) doneWall() int64 {
	if k.answer.Wall == 0 {
		return forever
	}
	return k.answer.Wall
}

// asked notes a call about a schedule.
func (c *checker) asked(at place, k *call) {
	s := c.schedules[at]
	if s == nil {
		s = &schedule{place: at, defs: map[int64]*call{}}
		c.schedules[at] = s
		c.Slots.Schedules++
	}
	s.calls = append(s.calls, k)
	if k.Op != rig.OpRead && k.Op != rig.OpRuns {
		c.Operations++
		c.Slots.Calls++
	}
	if k.Op == rig.OpSchedule && s.defs[k.Inc] == nil {
		s.defs[k.Inc] = k
	}
}

// looked judges a check of a topic in which nothing may be found: no write is ever lost, unless by
// a failover.
func (c *checker) looked(e rig.Event) {
	switch {
	case e.Type != rig.OK:
	case e.Err == "":
		c.Slots.Checks++
	case !c.o.Failover && !c.damaged(e.Topic, e.Mono-int64(settling), e.Mono):
		c.Violations = append(c.Violations, Violation{"I12", e.Topic, "", 0, "a check found " + e.Err})
	}
}

// find gives the job that an event of a run is about. One of a schedule is known from here on.
func (c *checker) find(at place, e rig.Event) *job {
	if j := c.jobs[at][e.Inc]; j != nil {
		if j.made == 0 {
			j.made = e.Made
		}
		return j
	}
	cut := strings.LastIndexAny(at.id, "@!")
	if cut < 1 {
		return nil
	}
	s := c.schedules[place{at.topic, at.id[:cut]}]
	ms, _, _ := strings.Cut(at.id[cut+1:], ".") // behind it: which of the jobs triggered in that ms it is
	slot, err := strconv.ParseInt(ms, 10, 64)
	if s == nil || err != nil || s.defs[e.Inc] == nil {
		return nil
	}
	def := s.defs[e.Inc]
	j := &job{
		place: at, inc: e.Inc, retries: def.Retries, expires: def.Expires, sum: def.Sum,
		enqueue:  call{Event: rig.Event{Mono: e.Mono - (e.Wall-slot)*int64(time.Millisecond), Delay: def.Delay}, outcome: rig.OK},
		schedule: s, slot: slot, triggered: at.id[cut] == '!', made: e.Made,
	}
	if c.jobs[at] == nil {
		c.jobs[at] = map[int64]*job{}
	}
	c.jobs[at][e.Inc] = j
	if j.triggered {
		s.triggered = append(s.triggered, j)
		c.Slots.Triggered++
	} else {
		s.jobs = append(s.jobs, j)
	}
	return j
}

// mono is the time of the histories' clock that a time of Redis's is, Unix ms: both are of this
// machine.
func (j *job) mono(wall int64) int64 {
	return j.enqueue.Mono + (wall-j.slot)*int64(time.Millisecond)
}

// endings notes which jobs of a schedule may have been taken out: those that OverlapCancelPrevious
// or Unschedule may have met.
func (c *checker) endings(s *schedule) {
	slices.SortStableFunc(s.jobs, func(a, b *job) int { return cmp.Compare(a.slot, b.slot) })
	for i, j := range s.jobs {
		for _, k := range s.calls {
			switch {
			case k.outcome == rig.Fail:
			case k.Op == rig.OpSchedule && k.Plan.Overlap == "cancel" && k.doneWall() >= j.made:
				j.unknown = true
			case k.Op == rig.OpSchedule && k.Plan.Overlap == "cancel" && k.Inc == j.inc:
				j.unknown = true
			case k.Op == rig.OpUnschedule && k.doneWall() >= j.made && (i == len(s.jobs)-1 || s.jobs[i+1].made >= k.Wall):
				j.unknown = true // the last one
			}
		}
	}
}

// judgeSchedule holds a schedule to the promises.
func (c *checker) judgeSchedule(s *schedule) {
	c.slots(s)
	c.silence(s)
	c.triggers(s)
	c.overlaps(s)
	c.books(s)
	for _, k := range s.calls {
		if k.outcome == rig.Fail && k.result == "" {
			c.wrong("I16", s, s.id, "%s gave an error of no documented kind: %s", k.Op, k.err)
		}
		if k.Op == rig.OpRuns && k.outcome == rig.OK {
			c.history(s, k)
		}
	}
}

func (c *checker) wrong(rule string, s *schedule, id, format string, args ...any) {
	c.Violations = append(c.Violations, Violation{rule, s.topic, id, 0, fmt.Sprintf(format, args...)})
}

// slots checks that every job is of a slot of the definition it carries, or of a slot that was due
// and not fired when that definition came.
func (c *checker) slots(s *schedule) {
	for i, j := range s.jobs {
		def := s.defs[j.inc]
		if i > 0 && s.jobs[i-1].slot == j.slot {
			c.bad("I17", j, "the slot has another job, of definition %d", s.jobs[i-1].inc)
		}
		if j.made > 0 && j.made < j.slot {
			c.bad("I17", j, "was made %d ms before its slot", j.slot-j.made)
		}
		if waits := def.Plan.Overlap == "queue" || def.Plan.Missed == "catch up"; j.made > 0 && !waits && !c.broken(j.enqueue.Mono, j.mono(j.made), "") {
			c.Slots.Late = append(c.Slots.Late, time.Duration(j.made-j.slot)*time.Millisecond)
		}
		fits := def.Plan.Has(j.slot)
		for _, k := range s.calls {
			fits = fits || k.Op == rig.OpSchedule && k.outcome != rig.Fail && k.Mono < def.Mono && k.Plan.Has(j.slot) && j.slot <= def.doneWall()
		}
		if !fits {
			c.bad("I17", j, "is of no slot of %+v", *def.Plan)
		}
	}
}

// silence checks that slots are fired only while the definition counts: from the call of Schedule
// or ResumeSchedule to the return of what ends that. It also checks that calls find what is there,
// and only that.
func (c *checker) silence(s *schedule) {
	allowed := map[int64][]span{}
	var def *call
	exists, paused := false, false
	open := func(from int64) { allowed[def.Inc] = append(allowed[def.Inc], span{from, forever}) }
	shut := func(k *call) {
		if list := allowed[def.Inc]; len(list) > 0 && list[len(list)-1].to == forever {
			list[len(list)-1].to = k.doneWall()
		}
	}
walk:
	for _, k := range s.calls {
		if k.outcome == rig.Fail {
			if k.result == "not found" && exists {
				c.wrong("I18", s, s.id, "%s did not find the schedule, which had been made %v before", k.Op, time.Duration(k.Mono-def.done))
			}
			continue
		}
		if k.outcome == rig.OK && k.Op != rig.OpSchedule && !exists {
			c.wrong("I18", s, s.id, "%s found a schedule, and there was none", k.Op)
			break
		}
		if k.outcome == rig.OK && k.Op == rig.OpRead && k.answer.Books == nil {
			c.wrong("I18", s, s.id, "it was not listed")
		}
		if k.outcome != rig.OK {
			if k.Op == rig.OpRead || k.Op == rig.OpRuns || k.Op == rig.OpTrigger {
				continue
			}
			// From here on anything may count that was asked for and not refused.
			for _, later := range s.calls {
				if later.Op == rig.OpSchedule && later.outcome != rig.Fail && later.Mono >= k.Mono {
					allowed[later.Inc] = append(allowed[later.Inc], span{later.Wall, forever})
				}
			}
			if def != nil {
				open(k.Wall)
			}
			break walk
		}
		switch k.Op {
		case rig.OpSchedule:
			if exists && def.Inc == k.Inc {
				continue // the same
			}
			if exists {
				shut(k)
			}
			if def = k; !exists {
				exists, paused = true, false
			}
			if !paused {
				open(k.Wall)
			}
		case rig.OpUnschedule:
			shut(k)
			exists = false
			c.unscheduled(s, k)
		case rig.OpPause:
			shut(k)
			paused = true
		case rig.OpResume:
			if paused {
				open(k.Wall)
			}
			paused = false
		}
	}
	for _, j := range s.jobs {
		if j.made > 0 && !slices.ContainsFunc(allowed[j.inc], func(w span) bool { return w.from <= j.made && j.made <= w.to }) {
			c.bad("I18", j, "was made at %d, and its definition counted during %v only", j.made, allowed[j.inc])
		}
	}
}

// unscheduled checks that the last job of a schedule does not start any more after that is gone,
// unless it was running or taken. With Allow it is not known which job the last one was.
func (c *checker) unscheduled(s *schedule, k *call) {
	for i, j := range s.jobs {
		last := j.made > 0 && j.made <= k.Wall && (i == len(s.jobs)-1 || s.jobs[i+1].made > k.doneWall())
		if !last || s.defs[j.inc].Plan.Overlap == "allow" {
			continue
		}
		ran := slices.ContainsFunc(j.runs, func(r *run) bool { return r.Mono <= k.done+int64(c.o.Lease) && r.until() >= k.Mono })
		for i, r := range j.runs {
			if r.Mono <= k.done {
				continue
			}
			// It may have been taken, and not begun: unless it was due only later, and nothing had
			// happened to it since that was known.
			waited := r.Due > k.doneWall() && (i == 0 && r.Attempt == 1 || i > 0 && j.runs[i-1].settled != nil &&
				j.runs[i-1].settled.Mono < k.Mono && r.Attempt == j.runs[i-1].next())
			held := ran || r.Mono-k.done <= int64(c.o.Lease) || c.broken(k.Mono-int64(c.o.Lease), r.Mono, r.Proc)
			if waited || !held {
				c.bad("I8", j, "attempt %d began %v after its schedule was gone", r.Attempt, time.Duration(r.Mono-k.done))
			}
		}
	}
}

// next is the number of the attempt that follows a run, if all went in order; 0: none does.
func (r *run) next() int {
	switch {
	case r.settled != nil && r.settled.Result == "retried":
		return r.Attempt + 1
	case r.settled != nil && r.settled.Result == "snoozed":
		return r.Attempt
	}
	return 0
}

// triggers checks that each call of Trigger made one job.
func (c *checker) triggers(s *schedule) {
	told, unknown := map[string]bool{}, 0
	for _, k := range s.calls {
		switch {
		case k.Op != rig.OpTrigger:
		case k.outcome == rig.Info:
			unknown++
		case k.outcome == rig.OK && told[k.result]:
			c.wrong("I17", s, k.result, "two calls of Trigger have made the same job")
		case k.outcome == rig.OK:
			told[k.result] = true
			at := place{s.topic, k.result}
			if len(c.jobs[at]) == 0 && !c.isDead(at) && !c.mayExpire(s) && !c.o.Failover {
				c.wrong("I1", s, k.result, "was triggered, and never ran")
			}
		}
	}
	for _, j := range s.triggered {
		if told[j.id] {
			continue
		}
		if unknown--; unknown < 0 {
			c.bad("I2", j, "ran, and nobody triggered it")
		}
	}
}

func (c *checker) isDead(at place) bool {
	if c.state == nil || c.state.Topics[at.topic] == nil {
		return false
	}
	_, dead := c.state.Topics[at.topic].Dead[at.id]
	return dead
}

func (c *checker) mayExpire(s *schedule) bool {
	for _, def := range s.defs {
		if def.Expires {
			return true
		}
	}
	return false
}

// overlaps checks every job against the one before it of the same definition, if that does not
// allow both at once: when Redis stored the job, the one before must have ended or been cancelled.
// So no run that was acknowledged as the owner's may end later.
func (c *checker) overlaps(s *schedule) {
	for i, j := range s.jobs {
		if i == 0 || j.made == 0 || s.jobs[i-1].inc != j.inc {
			continue
		}
		prev, policy := s.jobs[i-1], s.defs[j.inc].Plan.Overlap
		if policy == "allow" {
			continue
		}
		for _, r := range prev.runs {
			if r.end != nil && r.settled != nil && r.end.Wall > j.made {
				switch r.settled.Result {
				case "acked", "retried", "buried", "snoozed":
					c.bad("I20", j, "was made %d ms before attempt %d of %s ended, as %s, and the policy is %s",
						r.end.Wall-j.made, r.Attempt, prev.id, r.settled.Result, policy)
				}
			}
			if late := r.Mono - j.mono(j.made); policy == "cancel" && late > int64(c.o.Lease) && !c.broken(j.mono(j.made)-int64(c.o.Lease), r.Mono, r.Proc) {
				c.bad("I20", j, "attempt %d of %s began %v after it had been cancelled for this one", r.Attempt, prev.id, time.Duration(late))
			}
		}
	}
}

// history checks that the runs a schedule tells of are runs that there were.
func (c *checker) history(s *schedule, k *call) {
	for _, e := range k.answer.Ran {
		if cut := strings.LastIndexAny(e.Job, "@!"); cut < 0 || e.Job[:cut] != s.id {
			c.wrong("I19", s, s.id, "the history has a run of %s", e.Job)
		}
		if e.Outcome != "acked" {
			continue
		}
		found := false
		for _, j := range c.jobs[place{s.topic, e.Job}] {
			found = found || slices.ContainsFunc(j.runs, func(r *run) bool {
				return r.Attempt == e.Attempt && r.end != nil && r.end.Result == "ok" && r.end.Mono < k.done
			})
		}
		if !found {
			c.wrong("I19", s, e.Job, "the history has attempt %d as acked, and it did not end well", e.Attempt)
		}
	}
}

// slotOf is the slot of a job of the schedule, by its ID.
func (s *schedule) slotOf(id string) (slot int64, ok bool) {
	text, ok := strings.CutPrefix(id, s.id+"@")
	slot, err := strconv.ParseInt(text, 10, 64)
	return slot, ok && err == nil
}
