package check

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/faults/rig"
)

// plans of the stories below.
var (
	second = rig.Plan{Every: 1000, Overlap: "skip", Missed: "once"}
	seven  = rig.Plan{Every: 700, Overlap: "skip", Missed: "once"}
)

// ask is a call about the schedule s, answered a millisecond later if outcome is not empty.
func (s *story) ask(ms int64, e rig.Event, outcome, result string) *story {
	s.calls++
	e.Call, e.Type = s.calls, rig.Invoke
	if e.ID == "" {
		e.ID = "s"
	}
	if e.Op == rig.OpSchedule {
		e.Sum, e.Retries = "s", -1
	}
	s.timed(ms, e)
	if outcome != "" {
		e.Type, e.Result = outcome, result
		s.timed(ms+1, e)
	}
	return s
}

// timed is at with the time of day.
func (s *story) timed(ms int64, e rig.Event) *story {
	e.Wall = ms
	return s.at(ms, e)
}

func (s *story) set(ms, inc int64, p rig.Plan) *story {
	return s.ask(ms, rig.Event{Op: rig.OpSchedule, Inc: inc, Plan: &p}, rig.OK, "")
}

func (s *story) read(ms int64, b rig.Books) *story {
	return s.ask(ms, rig.Event{Op: rig.OpRead, Books: &b}, rig.OK, "")
}

// ran is a run of a slot's job from one time to another.
func (s *story) ran(slot, inc, made, from, to int64, settled string) *story {
	return s.runOf(fmt.Sprint("s@", slot), inc, made, from, to, settled)
}

func (s *story) runOf(id string, inc, made, from, to int64, settled string) *story {
	e := rig.Event{
		Op: rig.OpStart, Proc: "a", ID: id, Inc: inc, Attempt: 1, Started: from * 1000, Sum: "s", Nonce: fmt.Sprint("n", inc), Fence: from, Made: made,
	}
	s.timed(from, e)
	e.Op, e.Result = rig.OpEnd, map[string]string{"acked": "ok", "lease_lost": "ok"}[settled]
	s.timed(to, e)
	if settled != "" {
		e.Op, e.Result = rig.OpSettled, settled
		s.timed(to, e)
	}
	return s
}

// without leaves out what is told of an ID.
func (s *story) without(id string) *story {
	s.events = slices.DeleteFunc(s.events, func(e rig.Event) bool { return e.ID == id })
	return s
}

// books changes what was read at a time.
func (s *story) books(ms int64, change func(b *rig.Books)) *story {
	for _, e := range s.events {
		if e.Op == rig.OpRead && e.Wall == ms {
			change(e.Books)
			break // the answer has the same
		}
	}
	return s
}

// rhythm is a schedule that keeps every promise: it fires, pauses, goes on, is triggered, changed
// and removed.
func rhythm() *story {
	s := &story{}
	s.set(100, 1, second).read(102, rig.Books{Next: 1000, Created: 100, Changed: 100})
	s.ran(1000, 1, 1000, 1001, 1005, "acked").ran(2000, 1, 2001, 2002, 2005, "acked")
	s.read(2500, rig.Books{Next: 3000, Fired: 2, Runs: 2, Created: 100, Changed: 100, Last: 2000})
	s.ask(2600, rig.Event{Op: rig.OpPause}, rig.OK, "")
	s.read(2602, rig.Books{Fired: 2, Runs: 2, Created: 100, Changed: 100, Last: 2000, Paused: 2600})
	s.read(4602, rig.Books{Fired: 2, Runs: 2, Created: 100, Changed: 100, Last: 2000, Paused: 2600})
	s.ask(5000, rig.Event{Op: rig.OpResume}, rig.OK, "")
	s.read(5002, rig.Books{Next: 6000, Fired: 2, Runs: 2, Created: 100, Changed: 100, Last: 2000})
	s.ask(5100, rig.Event{Op: rig.OpTrigger}, rig.OK, "s!5100")
	s.runOf("s!5100", 1, 5100, 5101, 5102, "acked").ran(6000, 1, 6000, 6001, 6002, "acked")
	s.set(6500, 2, seven).read(6502, rig.Books{Next: 7000, Fired: 3, Runs: 4, Created: 100, Changed: 6500, Last: 6000})
	s.ran(7000, 2, 7000, 7001, 7005, "acked")
	s.ask(7100, rig.Event{Op: rig.OpRuns, Ran: []rig.Ran{{Job: "s@7000", Attempt: 1, Outcome: "acked"}}}, rig.OK, "")
	return s.ask(7200, rig.Event{Op: rig.OpUnschedule}, rig.OK, "")
}

func (s *story) judge(state *State) *Report {
	slices.SortStableFunc(s.events, func(a, b rig.Event) int { return cmp.Compare(a.Mono, b.Mono) })
	return Check(s.events, state, options)
}

// TestCheckAcceptsSchedules shows schedules that keep every promise.
func TestCheckAcceptsSchedules(t *testing.T) {
	allow, queue, catchUp := second, second, second
	allow.Overlap, queue.Overlap, catchUp.Missed, catchUp.CatchUp = "allow", "queue", "catch up", 2
	line := catchUp // each waits for the one before
	catchUp.Overlap = "allow"
	for name, c := range map[string]struct {
		s     *story
		spans int
	}{
		"all that can be asked for": {rhythm(), 6},
		"again after it was gone": {rhythm().set(8000, 3, second).read(8002, rig.Books{Next: 9000, Created: 8000, Changed: 8000}).
			ran(9000, 3, 9000, 9001, 9002, "acked").read(9500, rig.Books{Next: 10_000, Fired: 1, Runs: 1, Created: 8000, Changed: 8000, Last: 9000}), 8},
		"the same again": {rhythm().set(2502, 1, second), 6},
		"seconds of a minute": {(&story{}).set(100, 1, rig.Plan{Seconds: []int{1, 3}, Overlap: "skip", Missed: "once"}).
			read(102, rig.Books{Next: 1000, Created: 100}).ran(1000, 1, 1000, 1001, 1002, "acked").ran(3000, 1, 3000, 3001, 3002, "acked").
			read(3500, rig.Books{Next: 61_000, Fired: 2, Runs: 2, Created: 100, Last: 3000}), 2},
		"slots are missed in an outage": {(&story{}).set(100, 1, second).fault(200, "redis kill", "").ran(4000, 1, 4700, 4701, 4702, "acked").
			read(4900, rig.Books{Next: 5000, Fired: 1, Missed: 3, Runs: 1, Created: 100, Last: 4000}), 1},
		"all but the missed ones are made up for": {(&story{}).set(100, 1, catchUp).fault(200, "redis kill", "").
			ran(2000, 1, 4700, 4701, 4702, "acked").ran(3000, 1, 4700, 4701, 4702, "acked").ran(4000, 1, 4700, 4701, 4702, "acked").
			read(102, rig.Books{Next: 1000, Created: 100}).
			read(4900, rig.Books{Next: 5000, Fired: 3, Missed: 1, Runs: 3, Created: 100, Last: 4000}), 2},
		"what was due is more than has gone by": {(&story{}).set(100, 1, line).fault(200, "redis kill", "").
			read(102, rig.Books{Next: 1000, Created: 100}).ran(2000, 1, 4100, 4101, 4900, "acked").
			read(4200, rig.Books{Waits: 3000, Fired: 1, Missed: 1, Created: 100, Last: 2000}), 2},
		"slots are skipped while a job runs": {(&story{}).set(100, 1, second).read(102, rig.Books{Next: 1000, Created: 100}).
			ran(1000, 1, 1000, 1001, 2999, "acked").ran(3000, 1, 3000, 3001, 3002, "acked").
			read(3500, rig.Books{Next: 4000, Fired: 2, Skipped: 1, Runs: 2, Created: 100, Last: 3000}), 2},
		"slots are skipped while a job waits to be dropped": {dropping((&story{}).set(100, 1, second)).read(102, rig.Books{Next: 1000, Created: 100}).
			timed(2100, rig.Event{Op: rig.OpSettled, Proc: "a", ID: "s@1000", Inc: 1, Made: 1000, Result: "expired"}).
			read(2500, rig.Books{Next: 3000, Fired: 1, Skipped: 1, Runs: 1, Created: 100, Last: 1000}), 2},
		"a slot waits, and is skipped by the pause": {(&story{}).set(100, 1, queue).ran(1000, 1, 1000, 1001, 3500, "acked").
			read(2500, rig.Books{Waits: 2000, Fired: 1, Created: 100, Last: 1000}).ask(2600, rig.Event{Op: rig.OpPause}, rig.OK, "").
			read(2602, rig.Books{Fired: 1, Skipped: 1, Created: 100, Last: 1000, Paused: 2600}), 2},
		"a slot that waits is fired": {(&story{}).set(100, 1, queue).ran(1000, 1, 1000, 1001, 3500, "acked").
			read(2500, rig.Books{Waits: 2000, Fired: 1, Created: 100, Last: 1000}).ran(2000, 1, 3501, 3502, 3503, "acked").
			read(3600, rig.Books{Next: 4000, Fired: 2, Skipped: 1, Runs: 2, Created: 100, Last: 2000}), 2},
		"a slot that was due is fired by the definition that comes": {(&story{}).set(100, 1, second).read(102, rig.Books{Next: 1000, Created: 100}).
			set(1005, 2, seven).ran(1000, 2, 1010, 1011, 1012, "acked").
			read(1020, rig.Books{Next: 1400, Fired: 1, Runs: 1, Created: 100, Changed: 1005, Last: 1000}), 2},
		"jobs run side by side": {(&story{}).set(100, 1, allow).ran(1000, 1, 1000, 1001, 2500, "acked").ran(2000, 1, 2000, 2001, 2002, "acked"), 0},
		"a pause that may not have come": {(&story{}).set(100, 1, second).ask(200, rig.Event{Op: rig.OpPause}, rig.Info, "").
			ran(1000, 1, 1000, 1001, 1002, "acked").read(1500, rig.Books{Paused: 1400, Fired: 1, Created: 100}), 0},
		"a removal that may not have come": {(&story{}).set(100, 1, second).ask(200, rig.Event{Op: rig.OpUnschedule}, rig.Info, "").
			ran(1000, 1, 1000, 1001, 1002, "acked").ask(1100, rig.Event{Op: rig.OpUnschedule}, rig.OK, "").
			ran(2000, 1, 2000, 2001, 2002, "acked"), 0},
		"a change that may come late": {(&story{}).set(100, 1, second).ask(200, rig.Event{Op: rig.OpSchedule, Inc: 2, Plan: &seven}, rig.Info, "").
			ran(1000, 1, 1000, 1001, 1002, "acked").ran(1400, 2, 1400, 1401, 1402, "acked"), 0},
		"a trigger that may have come": {rhythm().ask(5200, rig.Event{Op: rig.OpTrigger}, rig.Info, "").runOf("s!5203", 1, 5203, 5204, 5205, "acked").
			books(6502, func(b *rig.Books) { b.Runs = 5 }), 0},
		"a last job that goes with its schedule": {rhythm().without("s@7000").without("s@6000").ran(6000, 1, 6000, 6001, 6002, "acked").
			books(6502, func(b *rig.Books) { b.Last = 6000 }), 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.s.judge(&State{})
			r.Violations = slices.DeleteFunc(r.Violations, func(v Violation) bool {
				return name == "a last job that goes with its schedule" && v.ID == "s@7000" // its history is told all the same
			})
			require.Empty(t, r.Violations, r.String())
			if c.spans > 0 {
				require.Equal(t, c.spans, r.Slots.Spans)
			}
		})
	}
}

// TestCheckFindsPlantedFaultsOfSchedules breaks each promise about schedules once.
func TestCheckFindsPlantedFaultsOfSchedules(t *testing.T) {
	cancel, allow, queue, catchUp := second, second, second, second
	queue.Overlap = "queue"
	cancel.Overlap, allow.Overlap, catchUp.Missed, catchUp.CatchUp = "cancel", "allow", "catch up", 5
	broken := (&story{}).set(100, 1, catchUp).read(102, rig.Books{Next: 1000, Created: 100}).ran(3000, 1, 3500, 3501, 3502, "acked").
		read(3600, rig.Books{Next: 4000, Fired: 1, Missed: 2, Runs: 1, Created: 100, Last: 3000})
	for name, c := range map[string]struct {
		s    *story
		rule string
	}{
		"a slot has two jobs":                      {rhythm().ran(6000, 2, 6501, 6502, 6503, "acked"), "I17"},
		"a slot has its job twice":                 {rhythm().ran(6000, 1, 6100, 6101, 6102, "acked"), "I5"},
		"a slot has another job of its definition": {again(rhythm().ran(6000, 1, 6100, 6101, 6102, "acked")), "I2"},
		"a job that is of no slot":                 {rhythm().ran(1500, 1, 1500, 1501, 1502, "acked"), "I17"},
		"a job is made before its slot":            {rhythm().ran(2000, 1, 1998, 2001, 2002, "acked").without("s@2000").ran(2000, 1, 1998, 2001, 2002, "acked"), "I17"},
		"a job starts before its slot":             {rhythm().without("s@2000").ran(2000, 1, 2000, 1990, 1995, "acked"), "I3"},
		"fired while it is paused":                 {rhythm().ran(3000, 1, 3000, 3001, 3002, "acked"), "I18"},
		"fired after it was gone":                  {rhythm().ran(7700, 2, 7700, 7701, 7702, "acked"), "I18"},
		"fired by the old definition":              {rhythm().without("s@7000").ran(7000, 1, 7000, 7001, 7002, "acked"), "I18"},
		"fired before it was there":                {rhythm().ran(0, 1, 50, 201, 202, "acked"), "I18"},
		"it is not found":                          {rhythm().ask(5200, rig.Event{Op: rig.OpRead}, rig.Fail, "not found"), "I18"},
		"it is not listed":                         {rhythm().ask(5200, rig.Event{Op: rig.OpRead}, rig.OK, ""), "I18"},
		"it is found after it was gone":            {rhythm().read(7300, rig.Books{Next: 7700}), "I18"},
		"it is paused, and nobody asked":           {rhythm().books(2500, func(b *rig.Books) { b.Paused, b.Next = 2400, 0 }), "I18"},
		"a slot is not counted":                    {rhythm().books(2500, func(b *rig.Books) { b.Next = 4000 }), "I19"},
		"a slot is counted twice":                  {rhythm().books(2500, func(b *rig.Books) { b.Skipped = 1 }), "I19"},
		"it goes back":                             {rhythm().read(2510, rig.Books{Next: 2000, Fired: 2, Runs: 2, Created: 100, Last: 2000}), "I19"},
		"a counter goes back":                      {rhythm().books(6502, func(b *rig.Books) { b.Fired = 1 }), "I19"},
		"slots of a pause are missed":              {rhythm().books(5002, func(b *rig.Books) { b.Missed = 3 }), "I19"},
		"slots are counted while it is paused":     {rhythm().books(4602, func(b *rig.Books) { b.Skipped = 1 }), "I19"},
		"a change counts a slot":                   {rhythm().books(6502, func(b *rig.Books) { b.Missed = 1 }), "I19"},
		"a pause counts a slot":                    {rhythm().books(2602, func(b *rig.Books) { b.Skipped = 1 }), "I19"},
		"the first slot is not counted":            {rhythm().books(102, func(b *rig.Books) { b.Next = 2000 }), "I19"},
		"a slot is fired without a job":            {rhythm().without("s@2000"), "I19"},
		"a job is not counted":                     {rhythm().books(2500, func(b *rig.Books) { b.Fired, b.Missed = 1, 1 }), "I19"},
		"a run is not in the history":              {rhythm().books(2500, func(b *rig.Books) { b.Runs = 1 }), "I19"},
		"the history has a run of another":         {rhythm().ask(7101, rig.Event{Op: rig.OpRuns, Ran: []rig.Ran{{Job: "r@7000", Attempt: 1, Outcome: "retried"}}}, rig.OK, ""), "I19"},
		"the history has a run that was not":       {rhythm().ask(7101, rig.Event{Op: rig.OpRuns, Ran: []rig.Ran{{Job: "s@7000", Attempt: 2, Outcome: "acked"}}}, rig.OK, ""), "I19"},
		"fired while the last job runs":            {rhythm().without("s@1000").ran(1000, 1, 1000, 1001, 2100, "acked"), "I20"},
		"fired while the last job backs off":       {rhythm().without("s@1000").ran(1000, 1, 1000, 1001, 2100, "retried"), "I20"},
		"the cancelled job starts":                 {(&story{}).set(100, 1, cancel).ran(2000, 1, 2000, 2001, 2002, "acked").ran(1000, 1, 1000, 3100, 3101, "lease_lost"), "I20"},
		"skipped, and the policy allows both":      {(&story{}).set(100, 1, allow).read(102, rig.Books{Next: 1000, Created: 100}).read(1500, rig.Books{Next: 2000, Skipped: 1, Created: 100}), "I20"},
		"missed, and the policy is to catch up":    {broken, "I20"},
		"skipped, and no job was going":            {rhythm().without("s@2000").books(2500, func(b *rig.Books) { b.Fired, b.Skipped, b.Last, b.Runs = 1, 1, 1000, 1 }), "I20"},
		"a triggered job never runs":               {rhythm().without("s!5100"), "I1"},
		"a job that nobody triggered":              {rhythm().runOf("s!5300", 1, 5300, 5301, 5302, "acked"), "I2"},
		"two triggers make one job":                {rhythm().ask(5200, rig.Event{Op: rig.OpTrigger}, rig.OK, "s!5100"), "I17"},
		"a slot's job is lost after a failure":     {rhythm().without("s@2000").ran(2000, 1, 2001, 2002, 2005, "retried"), "I1"},
		"a job of no definition":                   {rhythm().ran(2000, 9, 2001, 2002, 2005, "acked"), "I2"},
		"the last job starts after it was gone":    {rhythm().without("s@7000").ran(7000, 2, 7000, 9000, 9001, "acked"), "I8"},
		"a waiting job starts though it was gone":  {backsOff(7300), "I8"},
		"a slot that waits is not skipped by a pause": {(&story{}).set(100, 1, queue).ran(1000, 1, 1000, 1001, 3500, "acked").
			read(1990, rig.Books{Next: 2000, Fired: 1, Created: 100, Last: 1000}).
			read(2500, rig.Books{Waits: 2000, Fired: 1, Created: 100, Last: 1000}).ask(2600, rig.Event{Op: rig.OpPause}, rig.OK, "").
			read(2602, rig.Books{Fired: 1, Created: 100, Last: 1000, Paused: 2600}), "I19"},
		"an error of an undocumented kind":            {rhythm().ask(5200, rig.Event{Op: rig.OpPause}, rig.Fail, ""), "I16"},
		"a check finds something on a healthy system": {rhythm().ask(5200, rig.Event{Op: rig.OpCheck, Err: "no_place"}, rig.OK, ""), "I12"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.s.judge(&State{})
			require.NotZero(t, r.Count(c.rule), "%s is not found: %v", c.rule, r.Violations)
		})
	}
	t.Run("another payload", func(t *testing.T) {
		s := rhythm()
		for i := range s.events {
			if s.events[i].ID == "s@2000" {
				s.events[i].Sum = "other"
			}
		}
		require.NotZero(t, s.judge(&State{}).Count("I2"))
	})
}

// again gives the last run of a story another nonce.
func again(s *story) *story {
	for i := range s.events[len(s.events)-3:] {
		s.events[len(s.events)-3+i].Nonce = "other"
	}
	return s
}

// backsOff is a schedule whose last job has failed when it is removed, and runs again at a time.
func backsOff(at int64) *story {
	s := rhythm().without("s@7000").ran(7000, 2, 7000, 7001, 7005, "retried").ran(7000, 2, 7000, at, at+1, "acked")
	for i := range s.events {
		if e := &s.events[i]; e.ID == "s@7000" && e.Wall >= at {
			e.Attempt, e.Due = 2, at
		}
	}
	return s
}

// dropping makes the jobs of a schedule expire.
func dropping(s *story) *story {
	for i := range s.events {
		s.events[i].Expires = true
	}
	return s
}

// TestPlan holds the rhythms of the checker against times worked out by hand.
func TestPlan(t *testing.T) {
	every := rig.Plan{Every: 700}
	require.EqualValues(t, 700, every.Slot(0))
	require.EqualValues(t, 1400, every.Slot(700))
	require.True(t, every.Has(1400))
	require.False(t, every.Has(1401))
	require.EqualValues(t, 2, every.Count(700, 2100))
	require.Zero(t, every.Count(701, 1400))
	seconds := rig.Plan{Seconds: []int{0, 59}}
	minute := time.Minute.Milliseconds()
	require.EqualValues(t, 59_000, seconds.Slot(0))
	require.EqualValues(t, minute, seconds.Slot(59_000))
	require.True(t, seconds.Has(minute))
	require.False(t, seconds.Has(minute+1))
	require.EqualValues(t, 3, seconds.Count(59_000, 2*minute))
}
