package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/faults/rig"
)

type checker struct {
	*Report
	o       Options
	state   *State
	jobs    map[place]map[int64]*job
	windows []window

	schedules map[place]*schedule // by topic and name

	asking     map[place][]*call // calls without an outcome so far
	murky      map[place]bool    // IDs about which a call had no outcome: it may still arrive
	missing    map[string]int    // by topic: buried jobs that are not among the dead
	toldPruned map[string]int64  // by topic: what the hooks told
	holds      map[string][]*hold

	keyHolds map[string][]*keyHold // of a topic, and of keys
	released map[string][]*call    // calls that let a key go
	steps    map[step]*made
	damages  map[string][]window // of what Redis holds of a topic
	samples  map[string][]rig.Event
}

// A window is a time during which something was broken.
type window struct {
	from, to int64
	kind     string
	proc     string // empty: it hits all
}

func (c *checker) bad(rule string, j *job, format string, args ...any) {
	c.Violations = append(c.Violations, Violation{rule, j.topic, j.id, j.inc, fmt.Sprintf(format, args...)})
}

// runKey names a run: a process runs a job of one incarnation once at a time of Redis's clock.
type runKey struct {
	proc    string
	place   place
	inc     int64
	attempt int
	started int64
}

// gather sorts the events by jobs.
func (c *checker) gather(events []rig.Event) {
	open := map[int64]*call{}
	last := map[place]*job{} // the newest incarnation of an ID that was asked for
	runs := map[runKey]*run{}
	faults := map[string]int{}
	for _, e := range events {
		at := place{e.Topic, e.ID}
		key := runKey{e.Proc, at, e.Inc, e.Attempt, e.Started}
		switch e.Op {
		case rig.OpEnqueue, rig.OpReplace, rig.OpGiveWay, rig.OpCancel, rig.OpReschedule:
			if e.Type == rig.Invoke {
				c.Operations++
				k := &call{Event: e, done: forever}
				open[e.Call] = k
				for _, other := range c.asking[at] {
					if !k.Row || !other.Row { // rows keep their order
						k.overlaps, other.overlaps = true, true
					}
				}
				c.asking[at] = append(c.asking[at], k)
				if e.Op != rig.OpCancel && e.Op != rig.OpReschedule {
					c.invoked(at, e)
				}
				continue
			}
			if k := open[e.Call]; k != nil {
				k.outcome, k.result, k.err, k.done = e.Type, e.Result, e.Err, e.Mono
				delete(open, e.Call)
				if e.Row {
					c.Rows[strings.TrimSpace(e.Type+" "+e.Result)]++
				}
				c.asking[at] = slices.DeleteFunc(c.asking[at], func(other *call) bool { return other == k })
				c.answered(at, k, last)
			}
		case rig.OpSchedule, rig.OpUnschedule, rig.OpPause, rig.OpResume, rig.OpTrigger, rig.OpRead, rig.OpRuns:
			if e.Type == rig.Invoke {
				k := &call{Event: e, outcome: rig.Info, done: forever}
				open[e.Call] = k
				c.asked(at, k)
			} else if k := open[e.Call]; k != nil {
				k.outcome, k.result, k.err, k.done, k.answer = e.Type, e.Result, e.Err, e.Mono, e
				delete(open, e.Call)
			}
		case rig.OpCheck:
			c.looked(e)
		case rig.OpStart:
			c.Runs++
			r := &run{Event: e}
			runs[key] = r
			j := c.find(at, e)
			if j == nil {
				c.Violations = append(c.Violations, Violation{"I2", e.Topic, e.ID, e.Inc, "ran, and nobody enqueued it: " + e.Err})
				continue
			}
			j.runs = append(j.runs, r)
		case rig.OpEnd:
			if r := runs[key]; r != nil {
				r.end = &e
			}
		case rig.OpStep:
			c.step(e, runs[key])
		case rig.OpTold:
			if j := c.find(at, e); j != nil {
				j.told = &e
			}
		case rig.OpMixed:
			c.Violations = append(c.Violations, Violation{"I27", e.Topic, e.ID, e.Inc, e.Err})
		case rig.OpLost:
			if r := runs[key]; r != nil {
				r.lost = e.Result
			}
		case rig.OpSettled:
			c.Outcomes[e.Result]++
			if r := runs[key]; r != nil {
				r.settled = &e
				c.inherited(r, c.find(at, e), last)
				c.handed(r, last)
			}
			if e.Result == "expired" {
				if j := c.find(at, e); j != nil {
					j.expired = e.Wall
				}
			}
			if e.Result == "buried" && runs[key] == nil {
				if j := c.find(at, e); j != nil {
					j.buriedUnrun = e.Mono
				}
			}
		case rig.OpAgain:
			c.Operations++
			c.invoked(at, e)
			heir := c.jobs[at][e.Inc]
			heir.enqueue.outcome = rig.Info // until somebody is told
			key.inc = e.Of
			if heir.from = runs[key]; heir.from != nil {
				if j := c.find(at, heir.from.Event); j != nil {
					j.heirs = append(j.heirs, heir)
				}
			}
		case rig.OpThen:
			c.handsOver(e, runs[key])
		case rig.OpHold, rig.OpRelease:
			c.held(e, open)
		case rig.OpHoldKey, rig.OpReleaseKey:
			c.heldKey(e, open)
		case rig.OpSample:
			c.samples[e.Topic] = append(c.samples[e.Topic], e)
		case rig.OpPruned:
			c.toldPruned[e.Topic] += e.Count
		case rig.OpFault, rig.OpHeal:
			if e.Result == rig.Damage {
				c.harm(e)
				continue
			}
			if e.Op == rig.OpHeal {
				if i, ok := faults[e.Result+" "+e.ID]; ok {
					c.windows[i].to = e.Mono
				}
				continue
			}
			c.Faults[e.Result]++
			faults[e.Result+" "+e.ID] = len(c.windows)
			began := e.Mono
			if e.Result == rig.Stall { // noted when it was over
				began -= e.Delay * int64(time.Millisecond)
			}
			c.windows = append(c.windows, window{began, forever, e.Result, e.ID})
		}
	}
	for _, k := range open { // the process ended, or the test
		if k.outcome == rig.Info {
			continue
		}
		k.outcome = rig.Info
		c.answered(place{k.Topic, k.ID}, k, last)
	}
}

// harm notes that something is changed behind the back of a topic, or that it was repaired.
func (c *checker) harm(e rig.Event) {
	list := c.damages[e.Topic]
	if e.Op == rig.OpHeal && len(list) > 0 {
		list[len(list)-1].to = e.Mono
		return
	}
	c.Limited.Damages++
	c.Faults[e.Result]++
	c.damages[e.Topic] = append(list, window{e.Mono, forever, e.Result, ""})
}

// inherited notes that a run was told that its job is enqueued again.
func (c *checker) inherited(r *run, j *job, last map[place]*job) {
	if j == nil || r.settled.Result != "again" {
		return
	}
	for _, heir := range j.heirs {
		if heir.from == r {
			c.Renewed++
			heir.enqueue.outcome, heir.enqueue.done = rig.OK, r.settled.Mono
			last[heir.place] = heir
		}
	}
}

// invoked notes an enqueueing: from here on the job may run.
func (c *checker) invoked(at place, e rig.Event) {
	if c.jobs[at] == nil {
		c.jobs[at] = map[int64]*job{}
	}
	c.jobs[at][e.Inc] = &job{
		place: at, inc: e.Inc, retries: e.Retries, expires: e.Expires, sum: e.Sum, enqueue: call{Event: e, done: forever},
	}
}

// answered notes the outcome of a call. Calls about one ID that overlap, or follow one of unknown
// outcome, as those of handlers may, can have been carried out in any order.
func (c *checker) answered(at place, k *call, last map[place]*job) {
	j := c.jobs[at][k.Inc]
	if j == nil {
		return
	}
	switch k.Op {
	case rig.OpEnqueue, rig.OpReplace, rig.OpGiveWay:
		j.enqueue = *k
		old := last[at]
		unsure := k.outcome == rig.Info || k.overlaps || c.murky[at]
		j.unknown = j.unknown || k.overlaps || c.murky[at]
		c.murky[at] = unsure
		if k.Op == rig.OpReplace && old != nil && old != j {
			switch {
			case k.outcome == rig.Fail && !unsure:
			case unsure:
				old.unknown = true
			default:
				c.Replaced++
				old.ended = append(old.ended, *k)
				if slices.ContainsFunc(old.runs, func(r *run) bool { return r.Proc == k.Proc && r.end == nil }) {
					c.Renewed++
				}
			}
		}
		if k.Op == rig.OpGiveWay && old != nil && old != j {
			switch {
			case k.outcome == rig.Fail && !unsure:
			case unsure:
				old.unknown = true
			default:
				old.gaveWay = append(old.gaveWay, *k)
			}
		}
		switch k.outcome {
		case rig.OK:
			c.Enqueued++
			last[at] = j
		case rig.Info:
			c.Unknown++
			last[at] = j
		default:
			c.Refused++
		}
		c.typed(j, k)
	case rig.OpCancel:
		switch k.outcome {
		case rig.OK:
			c.Cancelled++
			j.ended = append(j.ended, *k)
		case rig.Info:
			j.unknown = true
		case rig.Fail:
			if k.result == "not found" && !j.unknown && !j.expires && !c.finishedBy(j, k.done) && !c.prunable(j) && j.enqueue.outcome == rig.OK {
				c.bad("I8", j, "cancel found no such job, and it had not ended")
			}
		}
		c.typed(j, k)
	case rig.OpReschedule:
		if k.outcome != rig.Fail {
			if k.outcome == rig.OK {
				c.Rescheduled++
			}
			j.moves = append(j.moves, *k)
		}
		c.typed(j, k)
	}
}

// finishedBy tells whether a run of the job had ended well by then, or may have.
func (c *checker) finishedBy(j *job, when int64) bool {
	for _, r := range j.runs {
		if r.end != nil && r.end.Mono <= when && r.end.Result == "ok" {
			return true
		}
	}
	return len(j.ended) > 0
}

// typed checks that an error was of a documented kind.
func (c *checker) typed(j *job, k *call) {
	if k.outcome == rig.Fail && k.result == "" {
		c.bad("I16", j, "%s gave an error of no documented kind: %s", k.Op, k.err)
	}
}
