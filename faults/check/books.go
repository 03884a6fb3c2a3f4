package check

import (
	"slices"
	"time"

	"github.com/delayq/delayq/faults/rig"
)

// Every slot of a rhythm is fired, skipped or missed, and counted as that when the schedule goes on
// to another slot. So between two looks at the books of a schedule the counters grow by the number
// of slots that its place has passed over. What may have come in between is at most one call, and
// some calls leave a choice: it is not seen from outside where the schedule had its place at that
// moment.

// at is the slot that a schedule has come to; 0: it is paused, or a server is still to work that
// out.
func at(b *rig.Books) int64 {
	if b.Waits != 0 {
		return b.Waits
	}
	return b.Next
}

func counted(b *rig.Books) int64 { return b.Fired + b.Skipped + b.Missed }

// passed tells how many slots are from one to before another. The first may be one of the rhythm
// before.
func passed(p *rig.Plan, from, to int64) int64 {
	if to <= from {
		return 0
	}
	return 1 + p.Count(from+1, to)
}

// A look is one reading of the books, and what had been asked for since the one before.
type look struct {
	*call
	*rig.Books
	def    *call
	before *rig.Books
	first  *call // the call that made the schedule, if there was no look before
	since  []*call
}

// books follows a schedule from look to look, as long as the outcome of each call is known.
func (c *checker) books(s *schedule) {
	if c.o.Failover {
		return
	}
	var def, first *call
	var before *rig.Books
	var since []*call
	for _, k := range s.calls {
		switch {
		case k.Op == rig.OpTrigger || k.Op == rig.OpRuns || k.outcome == rig.Fail:
		case k.Op == rig.OpRead:
			if k.outcome != rig.OK || k.answer.Books == nil || def == nil {
				continue
			}
			l := &look{k, k.answer.Books, def, before, first, since}
			c.totals(s, l)
			if at(l.Books) == 0 && l.Paused == 0 {
				continue // not worked out yet
			}
			c.look(s, l)
			before, first, since = l.Books, nil, nil
		case k.outcome == rig.Info:
			return
		case k.Op == rig.OpUnschedule:
			def, first, before, since = nil, nil, nil, nil
		case k.Op == rig.OpSchedule && def == nil:
			def, first = k, k
		default:
			if k.Op == rig.OpSchedule {
				if k.Inc == def.Inc {
					continue
				}
			}
			since = append(since, k)
			if k.Op == rig.OpSchedule {
				def = k
			}
		}
	}
}

// look judges what has been counted since the look before.
func (c *checker) look(s *schedule, l *look) {
	plan := l.def.Plan
	grown := counted(l.Books)
	if l.before != nil {
		b := l.before
		grown -= counted(b)
		if l.Fired < b.Fired || l.Skipped < b.Skipped || l.Missed < b.Missed || l.Runs < b.Runs || l.Created != b.Created {
			c.wrong("I19", s, s.id, "a counter went back: %+v, then %+v", *b, *l.Books)
			return
		}
	}
	choice := []int64{}
	switch {
	case l.before == nil && l.first != nil && len(l.since) == 0 && l.Paused == 0:
		choice = append(choice, passed(plan, plan.Slot(l.Created), at(l.Books)))
	case l.before == nil || len(l.since) > 1:
		return
	case len(l.since) == 0 || l.since[0].Op == rig.OpResume && l.before.Paused == 0:
		if l.before.Paused != 0 || l.Paused != 0 {
			if l.before.Paused != l.Paused {
				c.wrong("I18", s, s.id, "it was paused at %d, then at %d, and nobody has asked for that", l.before.Paused, l.Paused)
				return
			}
			choice = append(choice, 0)
			break
		}
		if at(l.Books) < at(l.before) {
			c.wrong("I19", s, s.id, "it went back from slot %d to %d", at(l.before), at(l.Books))
			return
		}
		choice = append(choice, passed(plan, at(l.before), at(l.Books)))
		if grown == choice[0] {
			c.reasons(s, l)
		}
	case l.before.Paused != 0:
		if l.since[0].Op != rig.OpResume {
			choice = append(choice, 0)
			break
		}
		// The time of the resumption is not told.
		for slot := plan.Slot(l.since[0].Wall); ; slot = plan.Slot(slot) {
			choice = append(choice, passed(plan, slot, at(l.Books)))
			if slot > l.since[0].doneWall() {
				break
			}
		}
	default:
		choice = c.choices(l)
	}
	if !slices.Contains(choice, grown) {
		c.wrong("I19", s, s.id, "%d slots were counted since the look before, instead of %v; calls since %v, %+v, then at %d %+v; the plan is %+v",
			grown, compact(choice), ops(l.since), l.before, l.Wall, *l.Books, *plan)
		return
	}
	c.Slots.Spans++
}

func ops(list []*call) (names []string) {
	for _, k := range list {
		names = append(names, k.Op)
	}
	return names
}

func compact(list []int64) []int64 {
	slices.Sort(list)
	return slices.Compact(list)
}

// choices lists what may have been counted if one call has changed or paused the schedule. The slot
// it had its place at then is carried over by a change if it was due, one that waited is skipped,
// and what else was due is forgotten by a pause.
func (c *checker) choices(l *look) (choice []int64) {
	old, k, s := l.def.Plan, l.since[0], c.schedules[place{l.Topic, l.ID}]
	moment := l.Paused
	if k.Op == rig.OpSchedule {
		moment = l.Changed
		old = s.planBefore(k)
	}
	fired := int64(0) // it had gone on from these
	for _, j := range s.jobs {
		if j.made > 0 && j.made < k.Wall {
			fired = max(fired, j.slot)
		}
	}
	may := old.Overlap == "queue" || old.Missed == "catch up" && old.Overlap == "skip"
	for n, slot := int64(0), at(l.before); ; n, slot = n+1, old.Slot(slot) {
		switch {
		case slot <= fired:
			continue
		case slot == l.before.Waits: // it waits still
		case k.Op == rig.OpPause:
			choice = append(choice, n)
		case slot <= moment:
			choice = append(choice, n+passed(l.def.Plan, slot, at(l.Books)))
		default:
			choice = append(choice, n+passed(l.def.Plan, l.def.Plan.Slot(moment), at(l.Books)))
		}
		if slot > moment {
			return choice
		}
		if may && k.Op == rig.OpPause {
			choice = append(choice, n+1)
		} else if may {
			choice = append(choice, n+1+passed(l.def.Plan, l.def.Plan.Slot(moment), at(l.Books)))
		}
	}
}

// planBefore is the plan that a change has replaced.
func (s *schedule) planBefore(change *call) *rig.Plan {
	var plan *rig.Plan
	for _, k := range s.calls {
		if k == change {
			break
		}
		if k.Op == rig.OpSchedule && k.outcome == rig.OK {
			plan = k.Plan
		}
	}
	return plan
}

// reasons judges why slots made no job between two looks.
func (c *checker) reasons(s *schedule, l *look) {
	plan, b := l.def.Plan, l.before
	n := counted(l.Books) - counted(b)
	fired, skipped, missed := l.Fired-b.Fired, l.Skipped-b.Skipped, l.Missed-b.Missed
	if skipped > 0 && (plan.Overlap == "allow" || plan.Overlap == "cancel") {
		c.wrong("I20", s, s.id, "%d slots were skipped until %d, and the policy is %s", skipped, at(l.Books), plan.Overlap)
	}
	// Those that are caught up with wait for each other, so more were due than have gone by.
	due := passed(plan, at(b), l.Wall+(l.done-l.Mono)/int64(time.Millisecond)+1)
	if missed > 0 && plan.Missed == "catch up" && plan.Overlap != "cancel" && max(n, due) <= int64(plan.CatchUp) {
		c.wrong("I20", s, s.id, "%d of %d slots were missed until %d, and the policy is to catch up with %d", missed, n, at(l.Books), plan.CatchUp)
	}
	if missed > 0 && !c.broken(l.Mono-(l.Wall-at(b))*int64(time.Millisecond), l.done, "") {
		c.Slots.MissedQuietly += missed
	}
	if missed > 0 || skipped == 0 || plan.Overlap == "allow" {
		return
	}
	made := map[int64]bool{}
	for _, j := range s.jobs {
		if j.slot >= at(b) && j.slot < at(l.Books) {
			made[j.slot] = true
		}
	}
	if int64(len(made)) != fired {
		return // some were cancelled before they began: it is not known which
	}
	for slot := at(b); slot < at(l.Books); slot = plan.Slot(slot) {
		if !made[slot] && !slices.ContainsFunc(s.jobs, func(j *job) bool { return j.slot < slot && j.last() >= slot }) {
			c.wrong("I20", s, s.id, "slot %d was skipped, and no job was going", slot)
		}
	}
}

// last tells until when a job may have been going, Unix ms.
func (j *job) last() int64 {
	if j.expired != 0 {
		return j.expired
	}
	if n := len(j.runs); n > 0 {
		if e := j.runs[n-1].settled; e != nil && (e.Result == "acked" || e.Result == "buried") {
			return e.Wall
		}
	}
	return forever
}

// totals holds what a schedule says it has fired and run against what was seen.
func (c *checker) totals(s *schedule, l *look) {
	until := at(l.Books)
	if l.Paused != 0 {
		until = l.Paused + 1
	}
	if until == 0 {
		return
	}
	var seen, ended int64
	lastSeen := false
	for _, j := range s.jobs {
		if j.slot > l.Created && j.slot < until && j.made <= l.doneWall() {
			seen++
			lastSeen = lastSeen || j.slot == l.Last
		}
	}
	if c.state != nil && c.state.Topics[s.topic] != nil {
		for id := range c.state.Topics[s.topic].Dead {
			if slot, ok := s.slotOf(id); ok && slot > l.Created && slot < until && len(c.jobs[place{s.topic, id}]) == 0 {
				seen++
			}
		}
	}
	for _, j := range slices.Concat(s.jobs, s.triggered) {
		for _, r := range j.runs {
			if r.settled != nil && r.settled.Mono < l.Mono && j.made > l.Created &&
				slices.Contains([]string{"acked", "retried", "buried", "expired"}, r.settled.Result) {
				ended++
			}
		}
	}
	if l.Fired < seen {
		c.wrong("I19", s, s.id, "%d slots were fired until %d, and %d of them had a job", l.Fired, until, seen)
	}
	if ended > l.Runs {
		c.wrong("I19", s, s.id, "%d runs have ended at %d, by the history %d", ended, l.Wall, l.Runs)
	}
	spare := int64(0) // of the last job the schedule may have been rid
	cancels := c.mayExpire(s)
	for _, k := range s.calls {
		if k.Op == rig.OpUnschedule && k.outcome != rig.Fail && k.done > l.Mono && !lastSeen {
			spare = 1
		}
		cancels = cancels || k.Op == rig.OpSchedule && k.Plan.Overlap == "cancel"
	}
	if !cancels && l.Fired > seen+spare {
		c.wrong("I19", s, s.id, "%d slots were fired until %d, and only %d of them had a job", l.Fired, until, seen)
	}
}
