package delayq

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// wakeAhead is how far ahead a timer may sleep: a job that is due sooner wakes the timers.
const wakeAhead = script.MaxTick

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
	outcome string
	delays  bool // the job is due again after a delay
	nudges  bool // the script can wake the timers
	words   []any
}{
	verbAck:     {script.Ack, record.OutcomeAcked, false, false, []any{record.OutcomeAcked}},
	verbExpire:  {script.Ack, record.OutcomeExpired, false, false, []any{record.OutcomeExpired}},
	verbAgain:   {script.Again, record.OutcomeAgain, false, true, nil},
	verbRetry:   {script.Retry, record.OutcomeRetried, true, false, nil},
	verbSnooze:  {script.Snooze, record.OutcomeSnoozed, true, false, nil},
	verbReturn:  {script.GiveBack, record.OutcomeReturned, false, false, nil},
	verbHold:    {script.GiveBack, record.OutcomeHeld, false, false, nil},
	verbHoldKey: {script.GiveBack, record.OutcomeHeld, false, false, nil},
	verbBury:    {script.Bury, record.OutcomeBuried, false, false, nil},
}

// open appends the arguments that precede the rows of a settling script.
func (v verb) open(args []any, k *script.Keys, number string, list []row) []any {
	args = append(args, number)
	if verbs[v].nudges {
		return append(args, wakeAhead.Milliseconds(), script.ControlChannel(k.Prefix()), k.Topic)
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
	return []any{longest.delay.Milliseconds(), "job " + longest.run.ID, contain.Message(longest.err)}
}

// returns reports whether the jobs go back to the head of ready.
func (v verb) returns() bool { return v == verbReturn || v == verbHold || v == verbHoldKey }

// A row is one job for a settling script.
type row struct {
	run      *run.Run
	verb     verb
	end      time.Time     // of the handler
	delay    time.Duration // of retry, snooze and hold, whole ms
	past     record.Tally  // of retry and snooze: for the moved entry
	entry    string        // for the error log
	attempts int           // finished attempts that bury adds
	renewal  *renewal      // of again
	err      error         // returned by the handler, for the hooks and the log
	bare     bool          // err says nothing but the verb
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
		if keep := r.run.Options.Retention; keep > 0 && r.verb == verbAck {
			return []any{keep, r.done(server), note}
		}
		if note != "" {
			return []any{0, "", note}
		}
	case verbAgain:
		about, keep, n := "", r.run.Options.Retention, r.renewal
		if keep > 0 {
			about = r.done(server)
		}
		if r.bare {
			r.err = nil
		}
		return []any{keep, about, r.history(record.OutcomeAgain, server), &n.head, &n.tail, &n.when}
	case verbRetry:
		return []any{r.delay.Milliseconds(), r.past.Encode(), r.entry, r.history(record.OutcomeRetried, server)}
	case verbSnooze:
		return []any{r.delay.Milliseconds(), r.past.Encode()}
	case verbHoldKey:
		return []any{r.delay.Milliseconds(), r.run.Options.Key}
	case verbBury:
		note := ""
		if r.attempts > 0 || r.entry != "" { // else promote has noted that the run was cut off
			note = r.history(record.OutcomeBuried, server)
		}
		return []any{r.attempts, r.entry, note}
	}
	return nil
}

// done returns what is kept of a completed job beside its record.
func (r row) done(server string) string {
	return record.Done{
		Attempt: r.run.Attempt, Start: r.run.Start.UnixMilli(), End: r.end.UnixMilli(), Server: server, Snoozes: r.run.Past.Snoozes,
	}.Encode(r.output)
}

// history returns the entry in the history of the job's schedule. It is empty if the job does not
// belong to one.
func (r row) history(outcome string, server string) string {
	if !r.run.Options.Scheduled {
		return ""
	}
	e := record.Run{Job: r.run.ID, Attempt: r.run.Attempt, Server: server, Outcome: outcome}
	e.Attach(r.output)
	if !r.run.Start.IsZero() {
		e.Start, e.End = r.run.Start.UnixMilli(), r.end.UnixMilli()
	}
	if r.err != nil {
		e.Error = contain.Message(r.err)
	}
	return e.Encode()
}

// A renewal is the new job that a row of again enqueues.
type renewal struct {
	head, tail string // of the record
	when       string // due time for the script
	due        time.Time
}

// bytes is the length of the record.
func (n *renewal) bytes() int { return len(n.head) + record.StampLen + len(n.tail) }

// outcome returns the outcome of the run.
func (r row) outcome() string {
	if r.lost != nil {
		return lostOutcome(r.lost)
	}
	return verbs[r.verb].outcome
}

// lostOutcome returns the outcome of a run that has lost its job.
func lostOutcome(lost error) string {
	switch {
	case errors.Is(lost, run.ErrCancelled):
		return record.OutcomeCancelled
	case errors.Is(lost, run.ErrReplaced):
		return record.OutcomeReplaced
	}
	return record.OutcomeLeaseLost
}

// ended returns what is known of the run, once it has ended.
func (r row) ended() run.Ended {
	err, why := r.err, r.lost
	if why == nil && r.verb == verbReturn {
		why = r.cause
	}
	switch {
	case why == nil || why == err:
	case err == nil:
		err = why
	default:
		err = fmt.Errorf("%w: %w", why, err)
	}
	e := run.Ended{Run: r.run, Outcome: r.outcome(), Finished: r.end, Err: err, Output: r.output}
	switch e.Outcome {
	case record.OutcomeRetried, record.OutcomeSnoozed, record.OutcomeHeld:
		e.Next = r.end.Add(r.delay)
	case record.OutcomeAgain:
		e.Next = r.renewal.due
	}
	var c *contain.Crash
	if contain.As(r.err, &c) {
		e.Stack = string(c.Stack)
	}
	return e
}

// weight estimates how many bytes the script moves for the job: the kept record, the new record,
// the output and the error log. It assumes that all entries of the log are as long as the new one.
func (r *row) weight() int {
	weight := len(r.output) + len(r.entry)*min(r.run.Attempt, record.MaxFailures)
	if (r.verb == verbAck || r.verb == verbAgain) && r.run.Options.Retention > 0 {
		weight += int(r.run.Stored)
	}
	if r.renewal != nil {
		weight += r.renewal.bytes()
	}
	return weight
}

// appendRows appends rows in the form that the scripts read. A group consists of a fence, the
// number of values, the number of jobs, and the ID and values of each job. Jobs that were taken
// together mostly finish together, so the groups are large. The leases are not extended until the
// reply arrives. The caller guards the runs.
func appendRows(args []any, list []row, server string) []any {
	fence, width, count, jobs := "", -1, 0, 0
	for i := range list {
		r := list[i].run
		r.Settling = true
		tail := list[i].tail(server)
		if f := r.Fence.String(); f != fence || len(tail) != width {
			fence, width, jobs = f, len(tail), 0
			args = append(args, fence, width, 0)
			count = len(args) - 1
		}
		jobs++
		args[count] = jobs
		args = append(append(args, &r.ID), tail...)
	}
	return args
}
