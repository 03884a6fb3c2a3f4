// Package check judges the history of a queue: what was asked of it, what ran, and what Redis holds
// at the end.
//
// It knows nothing of how the queue works, only what it promises. Each rule has the name it has in
// docs/reliability.md:
//
//	I1  lost         an acknowledged job that was not cancelled or replaced has ended well or
//	    lies among the dead
//	I2  unexpected   every run is of a job that somebody enqueued, with its payload, and one
//	    incarnation has one nonce
//	I3  early        no run begins before its job is due
//	I5  duplicate    a job runs again only for a reason; never after it was acknowledged as done
//	I6  overlap      two runs of a job overlap only if the first one lost its lease
//	I7  fencing      a run that was acknowledged is the last one of its job
//	I8  cancel       a job that was cancelled while it waited does not start afterwards
//	I10 attempts     the attempts of a job count its failures, and never exceed what it may have
//	I11 ledger       nothing is left that should have run
//	I12 census       every record is in exactly one structure, and nothing is left behind
//	I16 errors       errors are of documented kinds, and a refused job never runs
//	I17 slots        a job of a schedule is of a slot of its rhythm, is not made before it, and
//	                 no slot has two jobs
//	I18 silence      a schedule fires nothing while it is paused, by an old definition, or after
//	                 it is gone; what is there is found
//	I19 books        fired, skipped and missed slots are all slots there are, each for a reason,
//	                 and each that was fired had a job
//	I20 policy       no slot is fired while the last job is going, other than by the schedule's
//	                 policy
//	I21 dead         dead jobs go only when there are too many, and are counted and told of then
//	I22 pause        nothing is taken from a topic while anybody holds it, whoever else has let
//	                 it go
//	I23 running      no more jobs of a topic or a key have leases at the same time than its limit
//	                 says
//	I24 rate         no more jobs of a topic or a key start in any period than its rate says
//	I25 hold         nothing is taken from a topic or a key that a handler or a call holds
//	I26 order        where the jobs of a key have an order, one of them has a lease at a time, and
//	                 none starts before one that precedes it has ended
//	I27 batch        a batch of a topic that gathers by key has the jobs of one key
//	I28 steps        no run that begins after a step was saved makes it again; the key of a step
//	                 is the same in all runs, and its result is that of the job
//	I29 told         who waits for a job is told how it has ended, with its own result, and not
//	                 much later
//	I30 handed over  what a run hands over runs if, and only if, that run has completed its job
package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/faults/rig"
)

// A Violation is a promise that was not kept.
type Violation struct {
	Rule  string
	Topic string
	ID    string
	Inc   int64
	Text  string
}

// String is a violation on one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s topic %q job %q inc %d: %s", v.Rule, v.Topic, v.ID, v.Inc, v.Text)
}

// Options say what the history cannot.
type Options struct {
	Lease      time.Duration // of the workers
	BackoffMin time.Duration // the first backoff of the jobs; 0: not checked
	Snooze     time.Duration // how long a snoozed job sleeps; 0: not checked
	DeadLimit  int           // how many dead jobs of a topic are kept; 0: all, as far as the history goes
	Limits     map[string]Limits
	Failover   bool // an asynchronous failover happened: jobs acknowledged shortly before may be lost, done ones may come back
}

// tick is how exactly times are checked: Redis keeps them in whole milliseconds.
const tick = time.Millisecond

// A Report is the outcome.
type Report struct {
	Violations []Violation

	Enqueued, Unknown, Refused int // enqueueings by outcome
	Replaced, Cancelled        int
	Rescheduled                int
	Runs, Finished, Dead       int
	Pruned                     int            // dead jobs that were too many
	Renewed                    int            // jobs whose handler has put a new one in their place
	GaveWay                    int            // dead jobs
	Holds                      int            // pauses of topics
	UnknownRan                 int            // of Unknown
	Duplicates                 map[string]int // further runs by reason
	Outcomes                   map[string]int // what the hooks told
	Faults                     map[string]int
	Rows                       map[string]int // of an outbox, by outcome and its kind
	Operations                 int
	LostInFailover             int
	Slots                      Slots
	Limited                    Limited
	Told                       int             // of those who waited for a job
	Handed                     int             // jobs, by runs that were told that they had completed theirs
	Steps, StepsKnown          int             // of jobs: saved, and found saved by a later run
	Late                       []time.Duration // start − due of first runs that no fault touched, sorted
}

// Slots are figures of schedules.
type Slots struct {
	Schedules, Calls       int             // calls that change something
	Triggered              int             // jobs
	Fired, Skipped, Missed int64           // slots, by the counters of the topics
	MissedQuietly          int64           // of the schedules' missed slots those near which no fault was
	Late                   []time.Duration // stored − slot of those that no fault touched and no policy made wait, sorted
	Spans                  int             // between two looks at the books of a schedule, that add up
	Checks                 int             // of topics, that found nothing
}

// Limited are figures of limits and holds.
type Limited struct {
	Samples  int // of the leases of topics
	Together int // most runs of a limited topic or key that went on at the same time
	Starts   int // of topics and keys with a rate, whose times are known
	Holds    int // by handlers
	KeyHolds int // by calls
	Damages  int // of what Redis holds
	Ordered  int // jobs that started after others that come before them in their key
}

// Count is how many violations of a rule there are.
func (r *Report) Count(rule string) (n int) {
	for _, v := range r.Violations {
		if v.Rule == rule {
			n++
		}
	}
	return n
}

// String is the report as lines of text.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "operations %d (enqueued %d, unknown %d of which %d ran, refused %d, cancelled %d, replaced %d, rescheduled %d), runs %d, finished %d, renewed %d, dead %d, pruned %d, gave way %d",
		r.Operations, r.Enqueued, r.Unknown, r.UnknownRan, r.Refused, r.Cancelled, r.Replaced, r.Rescheduled, r.Runs, r.Finished, r.Renewed, r.Dead, r.Pruned, r.GaveWay)
	fmt.Fprintf(&b, "; faults %d (%s)", total(r.Faults), list(r.Faults))
	fmt.Fprintf(&b, "; runs again %d (%s)", total(r.Duplicates), list(r.Duplicates))
	if n := len(r.Late); n > 0 {
		fmt.Fprintf(&b, "; late outside faults p50 %v p99 %v max %v", r.Late[n/2].Round(time.Microsecond*100), r.Late[n*99/100].Round(time.Microsecond*100), r.Late[n-1].Round(time.Microsecond*100))
	}
	if sl := r.Slots; sl.Schedules > 0 {
		fmt.Fprintf(&b, "; schedules %d (calls %d, triggered %d), slots: fired %d, skipped %d, missed %d (%d without a fault), books added up %d times",
			sl.Schedules, sl.Calls, sl.Triggered, sl.Fired, sl.Skipped, sl.Missed, sl.MissedQuietly, sl.Spans)
	}
	if late := r.Slots.Late; len(late) > 0 {
		fmt.Fprintf(&b, ", late outside faults p50 %v p99 %v max %v", late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
	}
	if r.Holds > 0 {
		fmt.Fprintf(&b, "; pauses %d", r.Holds)
	}
	if l := r.Limited; l.Samples > 0 {
		fmt.Fprintf(&b, "; limits: %d samples, %d together at most, %d timed starts, holds %d by handlers, %d of keys by calls, damages %d, in order %d",
			l.Samples, l.Together, l.Starts, l.Holds, l.KeyHolds, l.Damages, l.Ordered)
	}
	if r.Told > 0 {
		fmt.Fprintf(&b, "; told %d", r.Told)
	}
	if r.Handed > 0 {
		fmt.Fprintf(&b, "; handed over %d", r.Handed)
	}
	if r.Steps > 0 {
		fmt.Fprintf(&b, "; steps %d, not repeated %d", r.Steps, r.StepsKnown)
	}
	if len(r.Rows) > 0 {
		fmt.Fprintf(&b, "; rows %d (%s)", total(r.Rows), list(r.Rows))
	}
	if r.Slots.Checks > 0 {
		fmt.Fprintf(&b, "; checks %d", r.Slots.Checks)
	}
	for _, rule := range [][2]string{
		{"I1", "lost"}, {"I2", "unexpected"}, {"I3", "early"}, {"I5", "unexplained"}, {"I6", "overlap"}, {"I7", "fencing"}, {"I8", "cancel"},
		{"I10", "attempts"}, {"I11", "left"}, {"I12", "census"}, {"I16", "errors"},
		{"I17", "slots"}, {"I18", "silence"}, {"I19", "books"}, {"I20", "policy"}, {"I21", "pruned"}, {"I22", "paused"},
		{"I23", "running"}, {"I24", "rate"}, {"I25", "held"}, {"I26", "order"}, {"I27", "mixed"}, {"I28", "steps"}, {"I29", "told"},
		{"I30", "handed over"},
	} {
		fmt.Fprintf(&b, "; %s %d", rule[1], r.Count(rule[0]))
	}
	if r.LostInFailover > 0 {
		fmt.Fprintf(&b, "; lost by asynchronous replication %d", r.LostInFailover)
	}
	return b.String()
}

func total(m map[string]int) (n int) {
	for _, k := range m {
		n += k
	}
	return n
}

func list(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// place names an ID of a topic.
type place struct{ topic, id string }

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.id, b.id))
}

// A job is one incarnation.
type job struct {
	place
	inc         int64
	enqueue     call
	retries     int
	expires     bool
	sum         string
	runs        []*run     // in the order of their leases: a process that stood still may begin later than it took the job
	moves       []call     // reschedulings that were carried out
	ended       []call     // what ended it early: a cancel or the replacement by another
	unknown     bool       // a later call with unknown outcome may have ended it
	heirs       []*job     // what its runs have enqueued by Again
	from        *run       // of an heir: the run that enqueued it
	by          *run       // the run that has handed it over; nil: none has
	gaveWay     []call     // enqueueings that only a dead job gives way to
	expired     int64      // when it was dropped unrun, Unix ms; 0: it was not, as far as is known
	told        *rig.Event // what somebody was told who waited for its end; nil: nobody has
	buriedUnrun int64      // when it was buried because its last run was cut off, monotonic; 0: it was not

	schedule  *schedule // nil: somebody has enqueued it
	slot      int64     // Unix ms; of a triggered one the time
	triggered bool
	made      int64 // when Redis stored it, Unix ms; 0: not known
}

// A call is an operation with its outcome.
type call struct {
	rig.Event        // the invocation
	outcome   string // ok, fail, info; empty: no outcome was written
	overlaps  bool   // with another call about the same ID: nobody knows in which order they were carried out
	result    string
	err       string
	done      int64 // when; the end of time if there is no outcome
	answer    rig.Event
}

// A run is one call of a handler.
type run struct {
	rig.Event
	end     *rig.Event
	lost    string // why its context ended, if it was taken away
	settled *rig.Event
	handed  []*job
}

const forever = int64(1<<63 - 1)

func (r *run) until() int64 {
	if r.end != nil {
		return r.end.Mono
	}
	return forever
}

// Check judges a history with the state at the end, which should be that of a drained queue. Events
// must be in the order of the clock.
func Check(events []rig.Event, state *State, o Options) *Report {
	c := &checker{
		Report: &Report{Duplicates: map[string]int{}, Outcomes: map[string]int{}, Faults: map[string]int{}, Rows: map[string]int{}},
		o:      o, jobs: map[place]map[int64]*job{}, schedules: map[place]*schedule{}, state: state,
		asking: map[place][]*call{}, murky: map[place]bool{}, missing: map[string]int{}, toldPruned: map[string]int64{},
		holds: map[string][]*hold{}, keyHolds: map[string][]*keyHold{}, damages: map[string][]window{}, samples: map[string][]rig.Event{},
		released: map[string][]*call{}, steps: map[step]*made{},
	}
	c.gather(events)
	for _, incs := range c.jobs {
		for _, j := range incs {
			slices.SortStableFunc(j.runs, func(a, b *run) int { return cmp.Compare(a.Fence, b.Fence) })
		}
	}
	for _, incs := range c.jobs {
		for _, j := range incs {
			for _, r := range j.runs {
				c.asksHold(r)
			}
		}
	}
	for _, s := range c.schedules {
		c.endings(s)
	}
	for _, at := range slices.SortedFunc(maps.Keys(c.jobs), comparePlaces) {
		for _, inc := range slices.Sorted(maps.Keys(c.jobs[at])) {
			c.judge(c.jobs[at][inc])
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(c.schedules), comparePlaces) {
		c.judgeSchedule(c.schedules[at])
	}
	for _, topic := range slices.Sorted(maps.Keys(o.Limits)) {
		c.limits(topic, o.Limits[topic])
	}
	if state != nil {
		for _, t := range state.Topics {
			for counter, sum := range map[string]*int64{"fired": &c.Slots.Fired, "skipped": &c.Slots.Skipped, "missed": &c.Slots.Missed} {
				n, _ := strconv.ParseInt(t.Hashes["stats"][counter], 10, 64) // none is 0
				*sum += n
			}
		}
		c.pruned()
		c.refused()
		census, _ := Census(state)
		c.Violations = append(append(c.Violations, census...), Empty(state)...)
	}
	slices.Sort(c.Late)
	slices.Sort(c.Slots.Late)
	return c.Report
}
