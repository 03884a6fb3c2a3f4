package delayq

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A verb is a way to settle a job.
type verb int

const (
	verbAck verb = iota
	verbExpire
	verbRetry
	verbSnooze
	verbReturn
	verbBury
	verbAgain
	verbHold
	verbHoldKey
)

// verbs holds, for each verb, its script, the arguments before the rows, and the name of the
// outcome.
var verbs = [...]struct {
	script  *script.Script
	outcome Outcome
	delays  bool // the job is due again after a delay
	nudges  bool // the script can wake the timers
	words   []any
}{
	verbAck:     {script.Ack, OutcomeAcked, false, false, []any{string(OutcomeAcked)}},
	verbExpire:  {script.Ack, OutcomeExpired, false, false, []any{string(OutcomeExpired)}},
	verbAgain:   {script.Again, OutcomeAgain, false, true, nil},
	verbRetry:   {script.Retry, OutcomeRetried, true, false, nil},
	verbSnooze:  {script.Snooze, OutcomeSnoozed, true, false, nil},
	verbReturn:  {script.GiveBack, OutcomeReturned, false, false, nil},
	verbHold:    {script.GiveBack, OutcomeHeld, false, false, nil},
	verbHoldKey: {script.GiveBack, OutcomeHeld, false, false, nil},
	verbBury:    {script.Bury, OutcomeBuried, false, false, nil},
}

// open appends the arguments that precede the rows of a settling script.
func (v verb) open(args []any, k *script.Keys, number string, list []row) []any {
	args = append(args, number)
	if verbs[v].nudges {
		return append(args, maxTick.Milliseconds(), script.ControlChannel(k.Prefix()), k.Topic)
	}
	if v.returns() {
		return append(append(args, script.ControlChannel(k.Prefix()), k.Topic), v.hold(list)...)
	}
	return append(args, verbs[v].words...)
}

// hold returns the longest hold of these rows in ms, who holds the topic, and why. Rows that hold
// keys have their own times.
func (v verb) hold(list []row) []any {
	switch v {
	case verbHold:
	case verbHoldKey:
		return []any{"keys", "", ""}
	default:
		return []any{0, "", ""}
	}
	longest := slices.MaxFunc(list, func(a, b row) int { return cmp.Compare(a.delay, b.delay) })
	return []any{longest.delay.Milliseconds(), "job " + longest.run.id, contain.Message(longest.err)}
}

// returns reports whether the jobs go back to the head of ready.
func (v verb) returns() bool { return v == verbReturn || v == verbHold || v == verbHoldKey }

// A row is one job for a settling script.
type row struct {
	run      *run
	verb     verb
	end      time.Time     // of the handler
	delay    time.Duration // of retry, snooze and hold, whole ms
	past     record.Tally  // of retry and snooze: for the moved entry
	entry    string        // for the error log
	attempts int           // finished attempts that bury adds
	renewal  *renewal      // of again
	err      error         // returned by the handler, for the hooks and the log
	output   []byte        // of the run; nil: none
	cause    error         // cause of the cancelled context; nil: it was not cancelled
	// Why the run lost the job; the outcome of that replaces the verb's.
	lost error
}

// as returns the row of a run that has lost its job.
func (r row) as(lost error) row {
	r.lost = lost
	return r
}

// tail returns the values of the job that follow its ID in the call.
func (r row) tail(server string) []any {
	switch r.verb {
	case verbAck, verbExpire:
		note := r.history(verbs[r.verb].outcome, server)
		if keep := r.run.opts.Retention; keep > 0 && r.verb == verbAck {
			return []any{keep, r.done(server), note}
		}
		if note != "" {
			return []any{0, "", note}
		}
	case verbAgain:
		about, keep, n := "", r.run.opts.Retention, r.renewal
		if keep > 0 {
			about = r.done(server)
		}
		if _, bare := r.err.(*againError); bare {
			r.err = nil
		}
		return []any{keep, about, r.history(OutcomeAgain, server), &n.head, &n.tail, &n.when}
	case verbRetry:
		return []any{r.delay.Milliseconds(), r.past.Encode(), r.entry, r.history(OutcomeRetried, server)}
	case verbSnooze:
		return []any{r.delay.Milliseconds(), r.past.Encode()}
	case verbHoldKey:
		return []any{r.delay.Milliseconds(), r.run.opts.Key}
	case verbBury:
		note := ""
		if r.attempts > 0 || r.entry != "" { // else promote has noted that the run was cut off
			note = r.history(OutcomeBuried, server)
		}
		return []any{r.attempts, r.entry, note}
	}
	return nil
}

// done returns what is kept of a completed job beside its record.
func (r row) done(server string) string {
	return record.Done{
		Attempt: r.run.attempt, Start: r.run.start.UnixMilli(), End: r.end.UnixMilli(), Server: server, Snoozes: r.run.past.Snoozes,
	}.Encode(r.output)
}

// history returns the entry in the history of the job's schedule. It is empty if the job does not
// belong to one.
func (r row) history(outcome Outcome, server string) string {
	if !r.run.opts.Scheduled {
		return ""
	}
	e := record.Run{Job: r.run.id, Attempt: r.run.attempt, Server: server, Outcome: string(outcome)}
	e.Attach(r.output)
	if !r.run.start.IsZero() {
		e.Start, e.End = r.run.start.UnixMilli(), r.end.UnixMilli()
	}
	if r.err != nil {
		e.Error = contain.Message(r.err)
	}
	return e.Encode()
}

// settleLimit is the most jobs that one call settles. From settlePile jobs on, a second call runs
// beside the first, so that Redis has work while a reply is on its way.
const (
	settleLimit = 500
	settlePile  = 250
)

// weight estimates how many bytes the script moves for the job: the kept record, the new record,
// the output and the error log. It assumes that all entries of the log are as long as the new one.
func (r *row) weight() int {
	weight := len(r.output) + len(r.entry)*min(r.run.attempt, record.MaxFailures)
	if (r.verb == verbAck || r.verb == verbAgain) && r.run.opts.Retention > 0 {
		weight += int(r.run.stored)
	}
	if r.renewal != nil {
		weight += r.renewal.bytes()
	}
	return weight
}

// callBytes is about how many bytes one call can read, write or return, beyond those of its first
// job. Redis serves no other client during that time.
const callBytes = 1 << 20

// settleStep is a step of a loop that reports outcomes to Redis. Rows that gather during one call
// go with the next. The second loop of a topic makes no call for fewer than least rows. A loop
// continues until every outcome is reported. Only the end of ctx, after the drain, makes it give
// up. Then the leases run out and the jobs run again.
func (t *topicServer) settleStep(ctx context.Context, k *settler, least int) loop.Next {
	if k.number == "" {
		clear(k.list) // do not retain settled jobs
		t.mu.Lock()
		k.list = t.outcomes.gather(k.list[:0], least)
		t.mu.Unlock()
		switch {
		case len(k.list) > 0:
			k.number = k.series.Next()
		case ctx.Err() != nil:
			return loop.Over
		case t.unpark(ctx) != nil:
			return loop.PauseFor(k.slow.Next())
		default:
			return loop.Woken
		}
	}
	doubt := k.doubt
	k.doubt = true // even if the call ends this goroutine
	err := t.settle(ctx, k.series.ID, k.number, k.list)
	if err == nil {
		k.slow.Reset()
		k.number, k.doubt = "", false
		return loop.Again
	}
	// If the call was not executed, other rows need not wait for it. If a repeated call was not
	// executed, the call before it may have been.
	k.doubt = !script.Certain(err) || doubt && script.Away(err)
	if stopped := ctx.Err() != nil; stopped || !k.doubt {
		t.mu.Lock()
		t.outcomes.putBack(k.list)
		t.mu.Unlock()
		k.number, k.doubt = "", false
		if stopped {
			return loop.Over
		}
	}
	return loop.PauseFor(k.slow.Next())
}

// A settler is the state of such a loop: the call that is in flight or must be repeated.
type settler struct {
	series *script.Series
	number string // of the call; empty: none
	list   []row
	doubt  bool // it may have been executed
	slow   loop.Pace
}

// outcomes are the rows that Redis has not received yet. They make no calls. topicServer.mu guards
// them.
type outcomes struct {
	rows  []row
	ready func() // called when there are rows
	pile  func() // called when there are enough rows for a second call
	// schedules whose runs have finished since the last promote
	endedSchedules []string
}

// add queues a row for the settle loops.
func (o *outcomes) add(r row) {
	r.run.returned = true
	o.rows = append(o.rows, r)
	o.ready()
	if len(o.rows) >= settlePile {
		o.pile()
	}
}

// gather moves the next rows into list, unless fewer than least are queued. They have the verb of
// the first row, keep their order, and weigh at most callBytes beyond the first. Jobs that are
// given back go to the head of ready. So if they need more than one call, the last ones go first,
// and the second loop leaves them to the first.
func (o *outcomes) gather(list []row, least int) []row {
	if len(o.rows) < least || least > 1 && o.rows[0].verb.returns() {
		return list
	}
	verb, skip := o.rows[0].verb, 0
	if verb.returns() {
		skip = -settleLimit
		for _, r := range o.rows {
			if r.verb == verb {
				skip++
			}
		}
	}
	rest, beyond, full := o.rows[:0], 0, false
	for i := range o.rows {
		r := &o.rows[i]
		if r.verb == verb && len(list) > 0 {
			beyond += r.weight()
			full = full || len(list) == settleLimit || beyond > callBytes
		}
		switch {
		case r.verb != verb || full:
			rest = append(rest, *r)
		case skip > 0:
			skip--
			rest = append(rest, *r)
		default:
			list = append(list, *r)
		}
	}
	clear(o.rows[len(rest):])
	o.rows = rest
	return list
}

// putBack queues rows again whose call was not executed.
func (o *outcomes) putBack(list []row) {
	o.rows = append(o.rows, list...)
	o.ready() // they may be too few for the second loop
}

// takeAll removes all rows.
func (o *outcomes) takeAll() []row {
	rows := o.rows
	o.rows = nil
	return rows
}

// takeEnded removes the schedules whose runs have ended.
func (o *outcomes) takeEnded() []string {
	ended := o.endedSchedules
	o.endedSchedules = nil
	return ended
}

// noteEnded notes that a run of a schedule has ended, and reports whether it did. If there are
// maxEnded already, the look of each tick finds the schedule.
func (o *outcomes) noteEnded(r *run) bool {
	s, _ := record.DecodeSlotID(r.id)
	if !r.opts.Scheduled || s.Triggered || len(o.endedSchedules) >= fire.MaxEnded {
		return false
	}
	o.endedSchedules = append(o.endedSchedules, s.Schedule)
	return true
}

// settle is one call of a settling script. The outcomes are final if it returns nil.
func (t *topicServer) settle(ctx context.Context, series, number string, list []row) error {
	v := verbs[list[0].verb]
	args := make([]any, 0, 8+3*len(list))
	args = list[0].verb.open(args, t.keys, number, list)
	t.mu.Lock()
	args = t.group(args, list)
	t.mu.Unlock()

	reply, err := t.exec(ctx, topicCall{script: v.script, jobs: len(list), receipt: t.keys.Receipt(series)}, args...)

	letters, ended, told := t.examine(ctx, reply.Text(2)), false, false
	if err == nil {
		t.mu.Lock()
		for i := range list {
			t.noteEndLocked(list[i].run)
		}
		t.mu.Unlock()
		// before the jobs are dropped, after which the server can end
		_ = t.unpark(ctx)
		told = t.passPlaces(ctx)
	}
	t.mu.Lock()
	for i := range list {
		r := list[i].run
		r.settling = false
		if err != nil {
			continue
		}
		if i < len(letters) && letters[i] != script.LetterOurs {
			if r.lost == nil {
				r.lost = r.why(letters[i], time.Now())
			}
			list[i].lost = r.lost
		}
		t.countLocked(&list[i])
		t.owned.drop(r)
		ended = t.outcomes.noteEnded(r) || ended
	}
	t.mu.Unlock()
	if err != nil {
		return err
	}
	soon := false
	for _, r := range list {
		soon = soon || r.delay < t.server.o.tick
	}
	if !told && !t.passPlaces(ctx) {
		t.placeFreed()
	}
	t.outside(t.loops.settle, func() { t.reportAll(list, loop.SignOf(ctx)) })
	if ended && t.firer.Awaits() {
		t.wake()
	}
	if v.delays && soon {
		t.wake() // the timer sleeps until the next tick
	}
	return nil
}

// group appends rows in the form that the scripts read. A group consists of a fence, the number of
// values, the number of jobs, and the ID and values of each job. Jobs that were taken together
// mostly finish together, so the groups are large. The leases are not extended until the reply
// arrives.
func (t *topicServer) group(args []any, list []row) []any {
	fence, width, count, jobs := "", -1, 0, 0
	for i := range list {
		r := list[i].run
		r.settling = true
		tail := list[i].tail(t.server.id)
		if f := r.fence.String(); f != fence || len(tail) != width {
			fence, width, jobs = f, len(tail), 0
			args = append(args, fence, width, 0)
			count = len(args) - 1
		}
		jobs++
		args[count] = jobs
		args = append(append(args, &r.id), tail...)
	}
	return args
}
