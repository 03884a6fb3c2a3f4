package check

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/faults/rig"
)

// again is a handler that ends with Again: the run of inc enqueues the incarnation heir.
func (s *story) again(ms int64, proc string, inc int64, attempt int, heir, delay int64, settled string) *story {
	s.at(ms, rig.Event{
		Op: rig.OpAgain, Proc: proc, ID: "j", Inc: heir, Of: inc, Attempt: attempt, Started: int64(attempt), Delay: delay, Retries: 3, Sum: "s",
	})
	return s.end(ms, proc, inc, attempt, "again", settled)
}

// hold is a pause of the topic by somebody, and release its end.
func (s *story) hold(ms int64, by string, period int64, outcome string) *story {
	return s.pause(ms, rig.OpHold, by, period, outcome)
}

func (s *story) release(ms int64, by, outcome string) *story {
	return s.pause(ms, rig.OpRelease, by, 0, outcome)
}

func (s *story) pause(ms int64, op, by string, period int64, outcome string) *story {
	s.calls++
	e := rig.Event{Op: op, ID: by, Delay: period, Call: s.calls, Type: rig.Invoke, Wall: wall + ms}
	s.at(ms, e)
	e.Type, e.Wall = outcome, wall+ms+1
	return s.at(ms+1, e)
}

// wall is the time at which stories with pauses begin, Unix ms.
const wall = 1_750_000_000_000

// taken is a start of a job that was taken just before, by Redis's clock.
func (s *story) taken(ms int64, proc string, inc int64, attempt int) *story {
	return s.held(ms, proc, inc, attempt, (wall+ms+options.Lease.Milliseconds())*1000)
}

// stall notes that a process stood still for some milliseconds.
func (s *story) stall(ms, length int64, proc string) *story {
	return s.at(ms, rig.Event{Op: rig.OpFault, Result: rig.Stall, ID: proc, Delay: length}).at(ms, rig.Event{Op: rig.OpHeal, Result: rig.Stall, ID: proc})
}

// stats is the state of a topic with nothing but counters and dead jobs.
func stats(counters map[string]string, dead ...string) *State {
	topic := newTopic()
	topic.Hashes["stats"] = maps.Clone(counters)
	for _, id := range dead {
		topic.Dead[id], topic.Pool[id] = 1, "r"
	}
	return &State{Topics: map[string]*Topic{"t": topic}}
}

func enqueued(delay int64) *story { return (&story{}).call(0, rig.OpEnqueue, 1, delay, rig.OK, "") }

// buried is a job that is dead.
func buried() *story { return enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "perm", "buried") }

// TestCheckKnowsRenewals shows jobs that are put in the place of others by handlers and by who
// knows that those are dead, and pauses: what is right, and each promise broken once.
func TestCheckKnowsRenewals(t *testing.T) {
	limited := options
	limited.DeadLimit = 1
	for name, c := range map[string]struct {
		s     *story
		state *State
		rule  string // that is broken; empty: all is well
		all   bool   // dead jobs are kept, without a limit
	}{
		"a handler replaces its job": {s: enqueued(0).start(5, "a", 1, 1).call(6, rig.OpReplace, 2, 10, rig.OK, "").end(8, "a", 1, 1, "ok", "replaced").
			start(20, "b", 2, 1).end(21, "b", 2, 1, "ok", "acked")},
		"the new one is lost": {s: enqueued(0).start(5, "a", 1, 1).call(6, rig.OpReplace, 2, 10, rig.OK, "").end(8, "a", 1, 1, "ok", "replaced"), rule: "I1"},
		"the new one is early": {s: enqueued(0).start(5, "a", 1, 1).call(6, rig.OpReplace, 2, 10, rig.OK, "").end(8, "a", 1, 1, "ok", "replaced").
			start(12, "b", 2, 1).end(21, "b", 2, 1, "ok", "acked"), rule: "I3"},
		"two handlers of one job replace it at the same time": {s: enqueued(0).start(5, "a", 1, 1).start(6, "b", 1, 2).fault(1, "stop", "a").
			slow(10, 5, rig.OpReplace, 2, 0).slow(11, 2, rig.OpReplace, 3, 0).
			end(20, "a", 1, 1, "ok", "lease_lost").end(20, "b", 1, 2, "ok", "replaced").start(22, "a", 2, 1).end(23, "a", 2, 1, "ok", "acked")},
		"a replacement whose outcome nobody knows comes late": {s: enqueued(0).start(5, "a", 1, 1).call(6, rig.OpReplace, 2, 0, rig.Info, "").end(8, "a", 1, 1, "err", "retried").
			start(2010, "a", 1, 2).call(2011, rig.OpReplace, 3, 0, rig.OK, "").end(2015, "a", 1, 2, "ok", "replaced").
			start(2020, "a", 2, 1).end(2021, "a", 2, 1, "ok", "acked")},

		"again": {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 10, "again").start(20, "b", 2, 1).end(21, "b", 2, 1, "ok", "acked")},
		"again, and nobody was told": {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 10, "").fault(7, "kill", "a").
			start(20, "b", 2, 1).end(21, "b", 2, 1, "ok", "acked")},
		"again did not arrive": {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 10, "").fault(7, "kill", "a").
			start(1100, "b", 1, 2).again(1101, "b", 1, 2, 3, 0, "again").start(1110, "b", 3, 1).end(1111, "b", 3, 1, "ok", "acked")},
		"again is lost":                    {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 10, "again"), rule: "I1"},
		"again is lost, nobody was told":   {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 10, ""), rule: "I1"},
		"again is early":                   {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 10, "again").start(12, "b", 2, 1).end(21, "b", 2, 1, "ok", "acked"), rule: "I3"},
		"again counts on":                  {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 10, "again").start(20, "b", 2, 2).end(21, "b", 2, 2, "ok", "acked"), rule: "I10"},
		"the old one runs after again":     {s: enqueued(0).start(5, "a", 1, 1).again(6, "a", 1, 1, 2, 0, "again").start(9, "b", 1, 1).end(10, "b", 1, 1, "ok", "acked").start(20, "b", 2, 1).end(21, "b", 2, 1, "ok", "acked"), rule: "I5"},
		"two runs enqueue their job again": {s: enqueued(0).start(5, "a", 1, 1).fault(6, "stop", "a").start(1100, "b", 1, 2).again(1101, "b", 1, 2, 2, 0, "again").again(1102, "a", 1, 1, 3, 0, "lease_lost").start(1103, "b", 2, 1).end(1104, "b", 2, 1, "ok", "acked").start(1105, "b", 3, 1).end(1106, "b", 3, 1, "ok", "acked"), rule: "I7"},

		"a dead job gives way":            {s: buried().call(10, rig.OpGiveWay, 2, 0, rig.OK, "").start(12, "a", 2, 1).end(13, "a", 2, 1, "ok", "acked"), state: stats(map[string]string{"buried": "1"})},
		"a job that is done is in no way": {s: enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "ok", "acked").call(10, rig.OpGiveWay, 2, 0, rig.OK, "").start(12, "a", 2, 1).end(13, "a", 2, 1, "ok", "acked")},
		"a live job does not give way":    {s: enqueued(100).call(10, rig.OpGiveWay, 2, 0, rig.Fail, "duplicate").start(101, "a", 1, 1).end(102, "a", 1, 1, "ok", "acked")},
		"a live job gives way":            {s: enqueued(100).call(10, rig.OpGiveWay, 2, 0, rig.OK, "").start(12, "a", 2, 1).end(13, "a", 2, 1, "ok", "acked"), rule: "I8"},
		"a job that backs off gives way":  {s: enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried").call(10, rig.OpGiveWay, 2, 0, rig.OK, "").start(12, "a", 2, 1).end(13, "a", 2, 1, "ok", "acked"), rule: "I8"},
		"one is dead":                     {s: buried(), state: stats(map[string]string{"buried": "1"}, "j")},
		"one was pruned":                  {s: buried().at(7, rig.Event{Op: rig.OpPruned, Count: 1}), state: stats(map[string]string{"buried": "1", "pruned_dead": "1"})},
		"one was pruned, nobody was told": {s: buried(), state: stats(map[string]string{"buried": "1", "pruned_dead": "1"})},
		"one is gone":                     {s: buried(), state: stats(map[string]string{"buried": "1"}), rule: "I21"},
		"one is gone, without a limit":    {s: buried(), state: stats(map[string]string{"buried": "1"}), rule: "I1", all: true},
		"one was pruned, without a limit": {s: buried(), state: stats(map[string]string{"buried": "1", "pruned_dead": "1"}), rule: "I1", all: true},
		"what was told was not counted":   {s: buried().at(7, rig.Event{Op: rig.OpPruned, Count: 2}), state: stats(map[string]string{"buried": "1", "pruned_dead": "1"}), rule: "I21"},
		"more pruned than buried":         {s: buried(), state: stats(map[string]string{"buried": "1", "pruned_dead": "2"}), rule: "I21"},
		"too many are dead":               {s: buried(), state: stats(map[string]string{"buried": "2"}, "j", "k"), rule: "I21"},
		"one was buried unrun, and pruned": {
			s: enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried").
				at(1100, rig.Event{Op: rig.OpSettled, Proc: "a", ID: "j", Inc: 1, Attempt: 3, Result: "buried"}),
			state: stats(map[string]string{"buried": "1", "pruned_dead": "1"}),
		},
		"a job buried unrun gives way": {
			s: enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried").
				at(1100, rig.Event{Op: rig.OpSettled, Proc: "a", ID: "j", Inc: 1, Attempt: 3, Result: "buried"}).
				call(1110, rig.OpGiveWay, 2, 0, rig.OK, "").start(1112, "a", 2, 1).end(1113, "a", 2, 1, "ok", "acked"),
			state: stats(map[string]string{"buried": "1"}),
		},
		"a job that backs off is not dead": {s: enqueued(0).start(5, "a", 1, 1).end(6, "a", 1, 1, "err", "retried"), state: stats(map[string]string{"buried": "1", "pruned_dead": "1"}), rule: "I1"},

		"taken before the pause":  {s: enqueued(0).taken(5, "a", 1, 1).hold(6, "ops", 0, rig.OK).end(3000, "a", 1, 1, "ok", "acked")},
		"taken after the pause":   {s: enqueued(0).hold(6, "ops", 1000, rig.OK).taken(1007, "a", 1, 1).end(3000, "a", 1, 1, "ok", "acked")},
		"taken after the resume":  {s: enqueued(0).hold(6, "ops", 0, rig.OK).release(500, "ops", rig.OK).taken(501, "a", 1, 1).end(3000, "a", 1, 1, "ok", "acked")},
		"a pause that may not be": {s: enqueued(0).hold(6, "ops", 0, rig.Info).taken(501, "a", 1, 1).end(3000, "a", 1, 1, "ok", "acked")},
		"a resume that may not be": {s: enqueued(0).hold(6, "ops", 0, rig.OK).release(500, "ops", rig.Info).taken(501, "a", 1, 1).
			end(3000, "a", 1, 1, "ok", "acked")},
		"taken during the pause":                   {s: enqueued(0).hold(6, "ops", 0, rig.OK).taken(501, "a", 1, 1).end(3000, "a", 1, 1, "ok", "acked"), rule: "I22"},
		"the process stood still during the pause": {s: enqueued(0).hold(6, "ops", 0, rig.OK).stall(505, 500, "a").taken(506, "a", 1, 1).end(3000, "a", 1, 1, "ok", "acked")},
		"it stood still long before": {s: enqueued(0).stall(1, 500, "a").hold(6, "ops", 0, rig.OK).taken(6501, "a", 1, 1).
			end(9000, "a", 1, 1, "ok", "acked"), rule: "I22"},
		"another one stood still": {s: enqueued(0).hold(6, "ops", 0, rig.OK).stall(505, 500, "b").taken(506, "a", 1, 1).end(3000, "a", 1, 1, "ok", "acked"), rule: "I22"},
		"another's resume ends it": {s: enqueued(0).hold(6, "ops", 0, rig.OK).hold(10, "app", 100, rig.OK).release(50, "app", rig.OK).taken(501, "a", 1, 1).
			end(3000, "a", 1, 1, "ok", "acked"), rule: "I22"},
		"another's pause shortens it": {s: enqueued(0).hold(6, "ops", 2000, rig.OK).hold(10, "app", 100, rig.OK).taken(501, "a", 1, 1).
			end(3000, "a", 1, 1, "ok", "acked"), rule: "I22"},
	} {
		t.Run(name, func(t *testing.T) {
			state, o := c.state, limited
			if state == nil {
				state = &State{}
			}
			if c.all {
				o = options
			}
			for i := 1; i < len(c.s.events); i++ { // some stories tell of several places at once
				for k := i; k > 0 && c.s.events[k].Mono < c.s.events[k-1].Mono; k-- {
					c.s.events[k], c.s.events[k-1] = c.s.events[k-1], c.s.events[k]
				}
			}
			r := Check(c.s.events, state, o)
			if c.rule == "" {
				require.Empty(t, r.Violations, r.String())
			} else {
				require.NotZero(t, r.Count(c.rule), "%s is not found: %v", c.rule, r.Violations)
			}
		})
	}
}
