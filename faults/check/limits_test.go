package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
)

// whole is a whole job of its own, with a key or with none, that is taken and started at one time
// and ends at another one.
func (s *story) whole(from, to int64, key, result, settled string) *story {
	s.calls++
	id := fmt.Sprintf("j%d", s.calls)
	e := rig.Event{Op: rig.OpEnqueue, ID: id, Inc: s.calls, Retries: -1, Sum: "s", Call: s.calls, Type: rig.Invoke}
	s.at(0, e)
	e.Type = rig.OK
	s.at(0, e)
	at := (wall + from) * 1000
	run := rig.Event{
		Op: rig.OpStart, Proc: "a", ID: id, Inc: s.calls, Key: key, Attempt: 1, Started: at, Sum: "s", Nonce: "n",
		Fence: at + options.Lease.Microseconds(), Wall: wall + from,
	}
	s.at(from, run)
	run.Op, run.Result, run.Wall = rig.OpEnd, result, wall+to
	if settled == "held" {
		run.Delay = 100
	}
	s.at(to, run)
	run.Op, run.Result, run.Wall = rig.OpSettled, settled, wall+to+1
	return s.at(to+1, run)
}

func (s *story) ok(from, to int64, key string) *story { return s.whole(from, to, key, "ok", "acked") }

// holdKey is a hold of a key, and letKeyGo its end.
func (s *story) holdKey(ms int64, key string, period int64) *story {
	return s.ofKey(ms, rig.OpHoldKey, key, period, rig.OK)
}

func (s *story) letKeyGo(ms int64, key, outcome string) *story {
	return s.ofKey(ms, rig.OpReleaseKey, key, 0, outcome)
}

func (s *story) ofKey(ms int64, op, key string, period int64, outcome string) *story {
	s.calls++
	e := rig.Event{Op: op, Key: key, Delay: period, Call: s.calls, Type: rig.Invoke, Wall: wall + ms}
	s.at(ms, e)
	e.Type, e.Wall = outcome, wall+ms+1
	return s.at(ms+1, e)
}

func (s *story) sample(ms, n int64, keys map[string]int64) *story {
	return s.at(ms, rig.Event{Op: rig.OpSample, Count: n, Keys: keys})
}

func (s *story) damage(from, to int64) *story {
	return s.at(from, rig.Event{Op: rig.OpFault, Result: rig.Damage, ID: "meta"}).at(to, rig.Event{Op: rig.OpHeal, Result: rig.Damage, ID: "meta"})
}

// TestCheckKnowsLimits shows limits and holds that were kept, and each of them broken once.
func TestCheckKnowsLimits(t *testing.T) {
	o := options
	o.Limits = map[string]Limits{"t": {
		Topic: Limit{Running: 3, Starts: 10, Period: time.Second, Burst: 4},
		Key:   Limit{Running: 2, Starts: 10, Period: time.Second, Burst: 3},
		Keys:  map[string]Limit{"one": {Running: 1}, "slow": {Starts: 1, Period: time.Second, Burst: 1}},
	}}
	begin := func() *story { return &story{} }
	for name, c := range map[string]struct {
		s    *story
		rule string // that is broken; empty: all is well
	}{
		"three at the same time":         {s: begin().ok(10, 500, "").ok(20, 500, "").ok(30, 500, "")},
		"four at the same time":          {s: begin().ok(10, 500, "").ok(20, 500, "").ok(30, 500, "").ok(40, 500, ""), rule: "I23"},
		"the fourth after the first":     {s: begin().ok(10, 100, "").ok(20, 900, "").ok(30, 900, "").ok(101, 900, "")},
		"one had lost its lease":         {s: begin().whole(10, 500, "", "ok", "lease_lost").ok(120, 500, "").ok(130, 500, "").ok(230, 500, "").fault(9, "stop", "a")},
		"two of a key":                   {s: begin().ok(10, 500, "k").ok(20, 500, "k").ok(30, 500, "other")},
		"three of a key":                 {s: begin().ok(10, 500, "k").ok(20, 500, "k").ok(30, 500, "k"), rule: "I23"},
		"two of a key that may have one": {s: begin().ok(10, 500, "one").ok(20, 500, "one"), rule: "I23"},
		"four leases":                    {s: begin().sample(10, 4, nil), rule: "I23"},
		"three leases of a key":          {s: begin().sample(10, 3, map[string]int64{"k": 3}), rule: "I23"},
		"two leases of a key that may have one": {
			s: begin().sample(10, 2, map[string]int64{"one": 2}), rule: "I23",
		},
		"three leases, two of a key":         {s: begin().sample(10, 3, map[string]int64{"k": 2, "one": 1})},
		"four leases, and limits were lost":  {s: begin().damage(5, 6).sample(10, 4, nil)},
		"four leases, long after a damage":   {s: begin().damage(5, 6).sample(20_000, 4, nil), rule: "I23"},
		"four runs, and limits were lost":    {s: begin().damage(1, 2).ok(10, 500, "").ok(20, 500, "").ok(30, 500, "").ok(40, 500, "")},
		"a burst, and then one each 100 ms":  {s: begin().ok(10, 11, "").ok(12, 13, "").ok(14, 15, "").ok(16, 17, "").ok(110, 111, "").ok(210, 211, "")},
		"one more at once":                   {s: begin().ok(10, 11, "").ok(12, 13, "").ok(14, 15, "").ok(16, 17, "").ok(108, 109, ""), rule: "I24"},
		"one more in a period":               {s: begin().ok(10, 11, "").ok(12, 13, "").ok(14, 15, "").ok(16, 17, "").ok(110, 111, "").ok(208, 209, ""), rule: "I24"},
		"a key that starts once in a second": {s: begin().ok(10, 11, "slow").ok(1010, 1011, "slow")},
		"a key that starts twice":            {s: begin().ok(10, 11, "slow").ok(1008, 1009, "slow"), rule: "I24"},
		"four starts of a key":               {s: begin().ok(10, 11, "k").ok(12, 13, "k").ok(14, 15, "k").ok(16, 17, "k"), rule: "I24"},
		"one more, and Redis stood still":    {s: begin().ok(10, 11, "slow").sample(20, 0, nil).sample(450, 0, nil).ok(500, 501, "slow")},
		"one more, and Redis did not":        {s: begin().ok(10, 11, "slow").sample(220, 0, nil).sample(450, 0, nil).ok(500, 501, "slow"), rule: "I24"},
		"one more, and limits were lost":     {s: begin().ok(10, 11, "slow").damage(20, 30).ok(500, 501, "slow")},

		"taken after a handler's hold":   {s: begin().whole(10, 20, "", "hold", "held").again1(130)},
		"taken during a handler's hold":  {s: begin().whole(10, 20, "", "hold", "held").ok(60, 61, "").again1(130), rule: "I25"},
		"taken during a hold of the key": {s: begin().whole(10, 20, "k", "holdkey", "held").ok(60, 61, "k").again1(130), rule: "I25"},
		"another key's hold":             {s: begin().whole(10, 20, "k", "holdkey", "held").ok(60, 61, "other").again1(130)},
		"the key was let go":             {s: begin().whole(10, 20, "k", "holdkey", "held").letKeyGo(30, "k", rig.OK).ok(60, 61, "k").again1(130)},
		"the key was perhaps let go":     {s: begin().letKeyGo(5, "k", rig.Info).whole(10, 20, "k", "holdkey", "held").ok(60, 61, "k").again1(130)},
		"the key was let go before":      {s: begin().letKeyGo(5, "k", rig.OK).whole(10, 20, "k", "holdkey", "held").ok(60, 61, "k").again1(130), rule: "I25"},
		"taken from a paused key":        {s: begin().holdKey(10, "k", 0).ok(60, 61, "k"), rule: "I25"},
		"taken from a resumed key":       {s: begin().holdKey(10, "k", 0).letKeyGo(50, "k", rig.OK).ok(60, 61, "k")},
		"taken after a hold of a key":    {s: begin().holdKey(10, "k", 40).ok(60, 61, "k")},
		"a hold uses an attempt":         {s: begin().whole(10, 20, "", "hold", "held").again2(130), rule: "I10"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := 1; i < len(c.s.events); i++ {
				for k := i; k > 0 && c.s.events[k].Mono < c.s.events[k-1].Mono; k-- {
					c.s.events[k], c.s.events[k-1] = c.s.events[k-1], c.s.events[k]
				}
			}
			r := Check(c.s.events, &State{}, o)
			if c.rule == "" {
				require.Empty(t, r.Violations, r.String())
				return
			}
			require.NotZero(t, r.Count(c.rule), "%s is not found: %v", c.rule, r.Violations)
			require.Len(t, r.Violations, r.Count(c.rule), "of no other rule: %v", r.Violations)
		})
	}
}

// TestCheckKnowsTheOrder shows orders of the jobs of a key that were kept, and each way of breaking
// one.
func TestCheckKnowsTheOrder(t *testing.T) {
	begin := func() *story { return &story{} }
	const lease = 1000
	dead := func() *story { return begin().put(1, 10, 0).turn(1, 20, 30, "perm", "buried").put(2, 15, 0) }
	for name, c := range map[string]struct {
		s    *story
		rule string // that is broken; empty: all is well
		halt bool
	}{
		"one after the other":       {s: begin().put(1, 10, 0).put(2, 12, 0).turn(1, 20, 30, "ok", "acked").turn(2, 40, 50, "ok", "acked")},
		"the second one first":      {s: begin().put(1, 10, 0).put(2, 12, 0).turn(2, 20, 30, "ok", "acked").turn(1, 40, 50, "ok", "acked"), rule: "I26"},
		"a batch of two keys":       {s: begin().at(20, rig.Event{Op: rig.OpMixed}), rule: "I27"},
		"two at the same time":      {s: begin().put(1, 10, 0).put(2, 12, 0).turn(1, 20, 60, "ok", "acked").turn(2, 40, 50, "ok", "acked"), rule: "I26"},
		"asked for at one time":     {s: begin().put(1, 10, 0).put(2, 10, 0).turn(2, 20, 30, "ok", "acked").turn(1, 40, 50, "ok", "acked")},
		"a later due time":          {s: begin().put(1, 10, 100).put(2, 12, 0).turn(2, 20, 30, "ok", "acked").turn(1, 140, 150, "ok", "acked")},
		"by due time":               {s: begin().put(1, 10, 100).put(2, 12, 50).turn(2, 120, 130, "ok", "acked").turn(1, 140, 150, "ok", "acked")},
		"not by due time":           {s: begin().put(1, 10, 100).put(2, 12, 50).turn(1, 120, 130, "ok", "acked").turn(2, 140, 150, "ok", "acked"), rule: "I26"},
		"an arrival before the due": {s: begin().put(1, 10, 100).put(2, 12, 0).turn(1, 120, 130, "ok", "acked").turn(2, 140, 150, "ok", "acked"), rule: "I26"},
		"due and perhaps not moved": {s: begin().put(1, 10, 10).put(2, 30, 0).turn(2, 40, 50, "ok", "acked").turn(1, 60, 70, "ok", "acked")},
		"a failure keeps its turn": {
			s: begin().put(1, 10, 0).put(2, 12, 0).turn(1, 20, 30, "err", "retried").turn(1, 240, 250, "ok", "acked").turn(2, 260, 270, "ok", "acked"),
		},
		"overtaken after a failure": {
			s:    begin().put(1, 10, 0).put(2, 12, 0).turn(1, 20, 30, "err", "retried").turn(2, 40, 50, "ok", "acked").turn(1, 240, 250, "ok", "acked"),
			rule: "I26",
		},
		"a snooze gives up the turn": {
			s: begin().put(1, 10, 0).put(2, 12, 0).turn(1, 20, 30, "snooze", "snoozed").turn(2, 40, 50, "ok", "acked").turn(1, 240, 250, "ok", "acked"),
		},
		"a crash keeps the turn": {
			s: begin().put(1, 10, 0).put(2, 12, 0).fault(21, "kill", "a").turn(1, 20, 0, "", "").turn(1, 30+lease, 40+lease, "ok", "acked").
				turn(2, 50+lease, 60+lease, "ok", "acked"),
		},
		"taken before the lease of a crash is over": {
			s:    begin().put(1, 10, 0).put(2, 12, 0).fault(21, "kill", "a").turn(1, 20, 0, "", "").turn(1, lease, 40+lease, "ok", "acked").turn(2, 50+lease, 60+lease, "ok", "acked"),
			rule: "I26",
		},
		"overtaken after a crash": {
			s: begin().put(1, 10, 0).put(2, 12, 0).fault(21, "kill", "a").turn(1, 20, 0, "", "").turn(2, 30+lease, 40+lease, "ok", "acked").
				turn(1, 50+lease, 60+lease, "ok", "acked"),
			rule: "I26",
		},
		"a dead job lets the others run":       {s: dead().turn(2, 40, 50, "ok", "acked")},
		"a dead job halts its key":             {s: dead().cancelled(1, 60).turn(2, 70, 80, "ok", "acked"), halt: true},
		"taken while a dead job halts its key": {s: dead().turn(2, 40, 50, "ok", "acked").cancelled(1, 60), halt: true, rule: "I26"},
		"overtaken after a damage":             {s: begin().put(1, 10, 0).put(2, 12, 0).damage(14, 16).turn(2, 20, 30, "ok", "acked").turn(1, 40, 50, "ok", "acked")},
	} {
		t.Run(name, func(t *testing.T) {
			o := options
			o.Lease, o.BackoffMin, o.Snooze = lease*time.Millisecond, 0, 0
			o.Limits = map[string]Limits{"t": {Ordered: true, Halt: c.halt}}
			slices.SortStableFunc(c.s.events, func(a, b rig.Event) int { return cmp.Compare(a.Mono, b.Mono) })
			r := Check(c.s.events, nil, o)
			if c.rule == "" {
				require.Empty(t, r.Violations, r.String())
				return
			}
			require.NotZero(t, r.Count(c.rule), "%s is not found: %v", c.rule, r.Violations)
			require.Len(t, r.Violations, r.Count(c.rule), "of no other rule: %v", r.Violations)
		})
	}
}

// put is an enqueueing of one of several jobs, turn a run of it, whose end is 0 if it was cut off,
// and cancelled its cancel.
func (s *story) put(n, ms, delay int64) *story { return s.about(rig.OpEnqueue, n, ms, delay, "") }

func (s *story) cancelled(n, ms int64) *story { return s.about(rig.OpCancel, n, ms, 0, "dead") }

func (s *story) about(op string, n, ms, delay int64, result string) *story {
	s.calls++
	e := rig.Event{
		Op: op, ID: fmt.Sprintf("j%d", n), Inc: n, Delay: delay, Retries: -1, Sum: "s", Call: s.calls, Type: rig.Invoke, Wall: wall + ms,
	}
	s.at(ms, e)
	e.Type, e.Result = rig.OK, result
	return s.at(ms+1, e)
}

func (s *story) turn(n, from, to int64, result, settled string) *story {
	e := rig.Event{
		Op: rig.OpStart, Proc: "a", ID: fmt.Sprintf("j%d", n), Inc: n, Key: "k", Attempt: 1, Started: (wall + from) * 1000, Sum: "s",
		Nonce: "n", Wall: wall + from,
	}
	for _, before := range s.events {
		if before.Op == rig.OpStart && before.Inc == n {
			e.Attempt = before.Attempt + 1
		}
		if before.Result == "snoozed" && before.Inc == n {
			e.Attempt = before.Attempt
		}
	}
	e.Fence = e.Started + time.Second.Microseconds()
	s.at(from, e)
	if to == 0 {
		return s
	}
	e.Op, e.Result, e.Wall = rig.OpEnd, result, wall+to
	s.at(to, e)
	e.Op, e.Result = rig.OpSettled, settled
	return s.at(to+1, e)
}

// again1 runs the first job of a story again, as the same attempt, to its end, and again2 as the
// next one.
func (s *story) again1(ms int64) *story { return s.rerun(ms, 1) }
func (s *story) again2(ms int64) *story { return s.rerun(ms, 2) }

func (s *story) rerun(ms int64, attempt int) *story {
	for _, e := range s.events {
		if e.Op != rig.OpStart {
			continue
		}
		e.Attempt, e.Started = attempt, (wall+ms)*1000
		e.Fence, e.Wall = e.Started+options.Lease.Microseconds(), wall+ms
		s.at(ms, e)
		e.Op, e.Result = rig.OpEnd, "ok"
		s.at(ms+1, e)
		e.Op, e.Result = rig.OpSettled, "acked"
		return s.at(ms+2, e)
	}
	return s
}

// TestRunningReadsLeases shows that what the checker reads of running jobs is what runs.
func TestRunningReadsLeases(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	prefix := redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	jobs, byKey, err := Running(t.Context(), rdb, prefix, "t")
	require.NoError(t, err)
	require.Zero(t, jobs)
	require.Empty(t, byKey)
	for i := range 5 {
		var opts []delayq.JobOption
		if i > 1 {
			opts = append(opts, delayq.Key(fmt.Sprintf("k%d", i/4)))
		}
		_, err := client.Enqueue(t.Context(), "t", fmt.Sprint(i), nil, opts...)
		require.NoError(t, err)
	}
	worker := delayq.NewServer(rdb, delayq.Prefix(prefix))
	release, started := make(chan struct{}), make(chan struct{}, 5)
	require.NoError(t, worker.Handle("t", delayq.HandlerFunc(func(context.Context, *delayq.Job) error {
		started <- struct{}{}
		<-release
		return nil
	})))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx) }()
	defer func() {
		close(release)
		stop()
		require.NoError(t, <-ended)
	}()
	for range 5 {
		<-started
	}
	jobs, byKey, err = Running(t.Context(), rdb, prefix, "t")
	require.NoError(t, err)
	require.EqualValues(t, 5, jobs)
	require.Equal(t, map[string]int64{"k0": 2, "k1": 1}, byKey)
}
