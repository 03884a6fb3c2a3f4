package check

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/faults/rig"
)

// story writes a history by hand, in ms.
type story struct {
	events []rig.Event
	calls  int64
}

func (s *story) at(ms int64, e rig.Event) *story {
	e.Mono, e.Topic = ms*int64(time.Millisecond), "t"
	s.events = append(s.events, e)
	return s
}

func (s *story) call(ms int64, op string, inc, delay int64, outcome, result string) *story {
	s.calls++
	e := rig.Event{Op: op, ID: "j", Inc: inc, Delay: delay, Retries: 3, Sum: "s", Call: s.calls, Type: rig.Invoke}
	s.at(ms, e)
	if outcome != "" {
		e.Type, e.Result = outcome, result
		s.at(ms+1, e)
	}
	return s
}

// slow is a call that takes its time.
func (s *story) slow(ms, took int64, op string, inc, delay int64) *story {
	s.call(ms, op, inc, delay, rig.OK, "")
	s.events[len(s.events)-1].Mono += took * int64(time.Millisecond)
	return s
}

func (s *story) start(ms int64, proc string, inc int64, attempt int) *story {
	return s.at(ms, rig.Event{
		Op: rig.OpStart, Proc: proc, ID: "j", Inc: inc, Attempt: attempt, Started: int64(attempt), Sum: "s", Nonce: "n", Fence: ms,
	})
}

// held is a start long after its lease, which ends at fence, was given.
func (s *story) held(ms int64, proc string, inc int64, attempt int, fence int64) *story {
	s.start(ms, proc, inc, attempt)
	s.events[len(s.events)-1].Fence = fence
	return s
}

func (s *story) end(ms int64, proc string, inc int64, attempt int, result, settled string) *story {
	e := rig.Event{Op: rig.OpEnd, Proc: proc, ID: "j", Inc: inc, Attempt: attempt, Started: int64(attempt), Result: result}
	s.at(ms, e)
	if settled != "" {
		e.Op, e.Result = rig.OpSettled, settled
		s.at(ms+1, e)
	}
	return s
}

func (s *story) fault(ms int64, kind, proc string) *story {
	return s.at(ms, rig.Event{Op: rig.OpFault, Result: kind, ID: proc})
}

// step is what a run says of a step of its job.
func (s *story) step(ms int64, proc string, attempt int, kind, key string) *story {
	return s.at(ms, rig.Event{
		Op: rig.OpStep, Type: kind, Proc: proc, ID: "j", Inc: 1, Attempt: attempt, Started: int64(attempt), Nonce: "n", Count: 1, Sum: key,
	})
}

// told is what somebody is told who waits for the job.
func (s *story) told(ms int64, result, nonce string, late int64) *story {
	return s.at(ms, rig.Event{Op: rig.OpTold, ID: "j", Inc: 1, Result: result, Sum: nonce, Delay: late})
}

// then is that a run hands over a job with the ID k. next is the run of that job.
func (s *story) then(ms int64, proc string, attempt int, inc int64) *story {
	return s.at(ms, rig.Event{
		Op: rig.OpThen, Proc: proc, ID: "j", Inc: 1, Attempt: attempt, Started: int64(attempt), Next: &rig.Next{Topic: "t", ID: "k", Inc: inc, Sum: "s"},
	})
}

func (s *story) next(ms, inc int64) *story {
	s.start(ms, "b", inc, 1).end(ms+1, "b", inc, 1, "ok", "acked")
	for i := len(s.events) - 3; i < len(s.events); i++ {
		s.events[i].ID = "k"
	}
	return s
}

// handing is a job that fails once, and both of whose runs hand a job over: 2 and 3.
func handing() *story {
	s := &story{}
	return s.call(0, rig.OpEnqueue, 1, 100, rig.OK, "").
		start(101, "a", 1, 1).then(102, "a", 1, 2).end(110, "a", 1, 1, "err", "retried").
		start(2111, "b", 1, 2).then(2112, "b", 2, 3).end(2115, "b", 1, 2, "ok", "acked")
}

// untold is one whose last run is not told what becomes of it, because its process is killed.
func untold() *story {
	s := handing()
	s.events = s.events[:len(s.events)-1]
	s.fault(2116, "kill", "b")
	for i, e := range s.events {
		if e.Op == rig.OpEnqueue {
			s.events[i].Retries = -1
		}
	}
	return s
}

// good is a job that fails once and then ends well.
func good() *story {
	s := &story{}
	return s.call(0, rig.OpEnqueue, 1, 100, rig.OK, "").
		start(101, "a", 1, 1).end(110, "a", 1, 1, "err", "retried").
		start(2111, "b", 1, 2).end(2115, "b", 1, 2, "ok", "acked")
}

var options = Options{Lease: time.Second, BackoffMin: 2 * time.Second, Snooze: 100 * time.Millisecond}

// TestCheckAcceptsWhatIsRight shows stories that keep every promise.
func TestCheckAcceptsWhatIsRight(t *testing.T) {
	for name, s := range map[string]*story{
		"a retry": good(),
		"a run again because its process was killed": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.OK, "").
			start(5, "a", 1, 1).fault(10, "kill", "a").start(1100, "b", 1, 2).end(1101, "b", 1, 2, "ok", "acked"),
		"a run again because its process stood still": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.OK, "").
			start(5, "a", 1, 1).fault(10, "stop", "a").start(1100, "b", 1, 2).end(1101, "b", 1, 2, "ok", "acked").
			end(3000, "a", 1, 1, "ok", "lease_lost"),
		"a handler that does not hear its timeout": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.OK, "").
			start(5, "a", 1, 1).at(10, rig.Event{Op: rig.OpLost, Proc: "a", ID: "j", Inc: 1, Attempt: 1, Started: 1, Result: "timeout"}).
			start(1100, "b", 1, 2).end(1101, "b", 1, 2, "ok", "acked").end(3000, "a", 1, 1, "ok", "lease_lost"),
		"a process that stood still before its handler began": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.OK, "").
			fault(3, "stop", "a").start(1100, "b", 1, 2).end(1101, "b", 1, 2, "ok", "acked").
			at(2000, rig.Event{Op: rig.OpHeal, Result: "stop", ID: "a"}).held(2001, "a", 1, 1, 1002).end(2002, "a", 1, 1, "ok", "lease_lost"),
		"a rescheduling that may have come after a failure": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.OK, "").
			start(5, "a", 1, 1).slow(6, 200, rig.OpReschedule, 1, 10).end(7, "a", 1, 1, "err", "retried").
			start(300, "a", 1, 2).end(301, "a", 1, 2, "ok", "acked"),
		"a step that is made again because its process was killed": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.OK, "").
			start(5, "a", 1, 1).step(6, "a", 1, rig.Invoke, "k").fault(10, "kill", "a").
			start(1100, "b", 1, 2).step(1101, "b", 2, rig.Invoke, "k").step(1102, "b", 2, rig.OK, "k").end(1103, "b", 1, 2, "ok", "acked"),
		"a step of a process that stood still, which another one has saved": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.OK, "").
			start(5, "a", 1, 1).fault(10, "stop", "a").start(1100, "b", 1, 2).
			step(1101, "b", 2, rig.Invoke, "k").step(1102, "b", 2, rig.OK, "k").end(1103, "b", 1, 2, "ok", "acked").
			step(3000, "a", 1, rig.Invoke, "k").end(3001, "a", 1, 1, "ok", "lease_lost"),
		"a result in time":                                   good().told(2120, rig.ToldDone, "n", 5),
		"a result that came late after a fault":              good().fault(2110, "cut", "enqueuers").told(20_000, rig.ToldDone, "n", 17_885),
		"a job that is handed over":                          handing().next(2120, 3),
		"a job that is handed over by a run that was killed": untold().next(2120, 3),
		"an unknown enqueueing that ran": (&story{}).call(0, rig.OpEnqueue, 1, 0, rig.Info, "").
			start(5, "a", 1, 1).end(6, "a", 1, 1, "ok", "acked"),
		"an unknown enqueueing that did not": (&story{}).call(0, rig.OpEnqueue, 1, 0, "", ""),
		"a cancel in time":                   (&story{}).call(0, rig.OpEnqueue, 1, 1000, rig.OK, "").call(5, rig.OpCancel, 1, 0, rig.OK, "scheduled"),
		"a cancel and the same ID again": (&story{}).call(0, rig.OpEnqueue, 1, 1000, rig.OK, "").call(5, rig.OpCancel, 1, 0, rig.OK, "scheduled").
			call(10, rig.OpEnqueue, 2, 5, rig.OK, "").start(16, "a", 2, 1).end(20, "a", 2, 1, "ok", "acked"),
		"a rescheduling": (&story{}).call(0, rig.OpEnqueue, 1, 5000, rig.OK, "").call(5, rig.OpReschedule, 1, 10, rig.OK, "").
			start(17, "a", 1, 1).end(20, "a", 1, 1, "ok", "acked"),
	} {
		t.Run(name, func(t *testing.T) {
			r := Check(s.events, &State{}, options)
			require.Empty(t, r.Violations, r.String())
		})
	}
}

// stepped is good with a step, which the first run saves.
func stepped() *story {
	return good().step(106, "a", 1, rig.Invoke, "k").step(107, "a", 1, rig.OK, "k")
}

// TestCheckFindsPlantedFaults breaks each promise once. A checker that has never failed proves
// nothing.
func TestCheckFindsPlantedFaults(t *testing.T) {
	enqueued := func(delay int64) *story { return (&story{}).call(0, rig.OpEnqueue, 1, delay, rig.OK, "") }
	for name, c := range map[string]struct {
		s    *story
		rule string
	}{
		"lost before the first run":                 {enqueued(0), "I1"},
		"lost after a failure":                      {enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried"), "I1"},
		"run of what nobody enqueued":               {good().start(3000, "a", 7, 1), "I2"},
		"early by two milliseconds":                 {enqueued(100).start(98, "a", 1, 1).end(99, "a", 1, 1, "ok", "acked"), "I3"},
		"early after a failure":                     {enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried").start(1000, "a", 1, 2).end(1001, "a", 1, 2, "ok", "acked"), "I3"},
		"early after a rescheduling":                {enqueued(10).call(3, rig.OpReschedule, 1, 500, rig.OK, "").start(300, "a", 1, 1).end(301, "a", 1, 1, "ok", "acked"), "I3"},
		"run after the ack":                         {enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "ok", "acked").start(50, "b", 1, 1).end(51, "b", 1, 1, "ok", "acked"), "I5"},
		"run again for no reason":                   {enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "ok", "").start(50, "b", 1, 1).end(51, "b", 1, 1, "ok", "acked"), "I5"},
		"two runs at once":                          {enqueued(0).start(5, "a", 1, 1).start(50, "b", 1, 2).end(60, "a", 1, 1, "ok", "").end(70, "b", 1, 2, "ok", "acked"), "I5"},
		"the fault hit another process":             {enqueued(0).fault(1, "stop", "c").start(5, "a", 1, 1).start(50, "b", 1, 2).end(51, "b", 1, 2, "ok", "acked"), "I5"},
		"an old lease may acknowledge":              {enqueued(0).start(5, "a", 1, 1).fault(6, "stop", "a").start(1100, "b", 1, 2).end(1200, "a", 1, 1, "ok", "acked").end(1300, "b", 1, 2, "ok", "lease_lost"), "I7"},
		"run after the cancel":                      {enqueued(10).call(3, rig.OpCancel, 1, 0, rig.OK, "scheduled").start(12, "a", 1, 1).end(13, "a", 1, 1, "ok", "acked"), "I8"},
		"new lease after the cancel":                {enqueued(0).start(2, "a", 1, 1).call(3, rig.OpCancel, 1, 0, rig.OK, "running").start(2000, "b", 1, 2).end(2001, "b", 1, 2, "ok", "acked"), "I8"},
		"cancel finds nothing":                      {enqueued(1000).call(3, rig.OpCancel, 1, 0, rig.Fail, "not found").start(1001, "a", 1, 1).end(1002, "a", 1, 1, "ok", "acked"), "I8"},
		"the old incarnation runs":                  {enqueued(10).call(3, rig.OpReplace, 2, 5000, rig.OK, "").start(5010, "a", 1, 1).end(5011, "a", 1, 1, "ok", "acked").start(5012, "a", 2, 1).end(5013, "a", 2, 1, "ok", "acked"), "I8"},
		"an attempt is skipped":                     {enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried").start(2010, "a", 1, 3).end(2011, "a", 1, 3, "ok", "acked"), "I10"},
		"an attempt is not counted":                 {enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried").start(2010, "b", 1, 1).end(2011, "b", 1, 1, "ok", "acked"), "I10"},
		"a snooze uses an attempt":                  {enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "snooze", "snoozed").start(2010, "b", 1, 2).end(2011, "b", 1, 2, "ok", "acked"), "I10"},
		"more attempts than allowed":                {enqueued(0).start(5, "a", 1, 5).end(6, "a", 1, 5, "ok", "acked"), "I10"},
		"a saved step is made again":                {stepped().step(2112, "b", 2, rig.Invoke, "k"), "I28"},
		"a step is made twice in a run":             {stepped().step(8, "a", 1, rig.Invoke, "k"), "I28"},
		"a step has another key":                    {good().step(106, "a", 1, rig.Invoke, "k").step(2112, "b", 2, rig.Invoke, "other"), "I28"},
		"a result is told late":                     {good().told(20_000, rig.ToldDone, "n", 17_885), "I29"},
		"a result is that of another job":           {good().told(2120, rig.ToldDone, "other", 5), "I29"},
		"a done job is told to be dead":             {good().told(2120, "dead", "", 5), "I29"},
		"a done job is told to be cancelled":        {good().told(2120, rig.ToldOther, "", 0), "I29"},
		"an end is not told":                        {good().told(20_000, rig.ToldNothing, "", 0), "I29"},
		"an end is said to be unknown":              {good().told(2120, rig.ToldUnknown, "", 0), "I29"},
		"what a failed run hands over runs":         {handing().next(112, 2).next(2120, 3), "I30"},
		"what is handed over does not run":          {handing(), "I30"},
		"what a killed run hands over does not run": {untold(), "I30"},
		"a refused job runs":                        {(&story{}).call(0, rig.OpEnqueue, 1, 0, rig.Fail, "redis").start(5, "a", 1, 1).end(6, "a", 1, 1, "ok", "acked"), "I16"},
		"an error of an undocumented kind":          {good().call(3000, rig.OpCancel, 1, 0, rig.Fail, ""), "I16"},
		"first attempt begins with the second":      {enqueued(0).start(5, "a", 1, 2).end(6, "a", 1, 2, "ok", "acked"), "I10"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Check(c.s.events, &State{}, options)
			require.NotZero(t, r.Count(c.rule), "%s is not found: %v", c.rule, r.Violations)
		})
	}
	t.Run("another payload", func(t *testing.T) {
		s := good()
		s.events[2].Sum = "other"
		require.NotZero(t, Check(s.events, &State{}, options).Count("I2"))
	})
	t.Run("two nonces", func(t *testing.T) {
		s := good()
		for i := range s.events {
			if s.events[i].Op == rig.OpStart && s.events[i].Attempt == 2 {
				s.events[i].Nonce = "other"
			}
		}
		require.NotZero(t, Check(s.events, &State{}, options).Count("I2"))
	})
}
