package settle

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

// A Verb is a way to settle a job.
type Verb int

// The verbs.
const (
	Ack Verb = iota
	Expire
	Retry
	Snooze
	Return
	Bury
	Again
	Hold
	HoldKey
	Pass // a stage of a plan has failed for good, and the next one follows
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
	Ack:     {script.Ack, record.OutcomeAcked, false, false, []any{record.OutcomeAcked}},
	Expire:  {script.Ack, record.OutcomeExpired, false, false, []any{record.OutcomeExpired}},
	Again:   {script.Again, record.OutcomeAgain, false, true, nil},
	Retry:   {script.Retry, record.OutcomeRetried, true, false, nil},
	Snooze:  {script.Snooze, record.OutcomeSnoozed, true, false, nil},
	Return:  {script.GiveBack, record.OutcomeReturned, false, false, nil},
	Hold:    {script.GiveBack, record.OutcomeHeld, false, false, nil},
	HoldKey: {script.GiveBack, record.OutcomeHeld, false, false, nil},
	Pass:    {script.Again, record.OutcomeRetried, false, true, nil},
	Bury:    {script.Bury, record.OutcomeBuried, false, false, nil},
}

// Script returns the script that settles jobs in this way.
func (v Verb) Script() *script.Script { return verbs[v].script }

// ScriptOf returns the script that settles jobs as the rows of a call say.
func ScriptOf(list []Row) *script.Script {
	hands := HandsOver(list)
	switch {
	case (list[0].Heir || list[0].Verb == Again) && hands:
		return script.HandOverAgain
	case list[0].Heir:
		return Again.Script()
	case hands:
		return script.HandOver
	}
	return list[0].Verb.Script()
}

// HandsOver reports whether a run of a call hands jobs over.
func HandsOver(list []Row) bool {
	return slices.ContainsFunc(list, func(r Row) bool { return r.handedOver() != "" })
}

// handedOver returns what the run of the job hands over, for the script. Only a run that is acked
// does.
func (r *Row) handedOver() string {
	if r.Verb == Ack || r.Verb == Again {
		return r.Parcels.Text
	}
	return ""
}

// handing is tail for a call in which runs hand jobs over.
func (r Row) handing(server string) []any {
	tail := r.tail(server)
	if len(tail) == 0 {
		tail = []any{0, "", ""}
	}
	return append(tail, r.handedOver())
}

// Outcome returns the outcome of a run whose job is settled in this way.
func (v Verb) Outcome() string { return verbs[v].outcome }

// Delays reports whether a job is due again after a delay.
func (v Verb) Delays() bool { return verbs[v].delays }

// Open appends the arguments that precede the rows of a settling script.
func (v Verb) Open(args []any, k *script.Keys, number string, list []Row) []any {
	args = append(args, number)
	if verbs[v].nudges || len(list) > 0 && list[0].Heir {
		return append(args, wakeAhead.Milliseconds(), script.ControlChannel(k.Prefix()), k.Topic)
	}
	if v.returns() {
		return append(append(args, script.ControlChannel(k.Prefix()), k.Topic), v.hold(list)...)
	}
	return append(args, verbs[v].words...)
}

// hold returns the longest hold of these rows in ms, who holds the topic, and why. Rows that hold
// keys have their own times.
func (v Verb) hold(list []Row) []any {
	switch v {
	case Hold:
	case HoldKey:
		return []any{"keys", "", ""}
	default:
		return []any{0, "", ""}
	}
	longest := slices.MaxFunc(list, func(a, b Row) int { return cmp.Compare(a.Delay, b.Delay) })
	return []any{longest.Delay.Milliseconds(), "job " + longest.Run.ID, contain.Message(longest.Err)}
}

// ends reports whether the verb ends jobs for good. Then a successor of the job is enqueued.
func (v Verb) ends() bool { return v == Ack || v == Expire || v == Bury }

// Stays reports whether the jobs stay what they are, so that what their runs have noted stays too.
func (v Verb) Stays() bool { return v.returns() || v == Retry || v == Snooze || v == Bury }

// returns reports whether the jobs go back to the head of ready.
func (v Verb) returns() bool { return v == Return || v == Hold || v == HoldKey }

// A Row is one job for a settling script.
type Row struct {
	Run      *run.Run
	Verb     Verb
	End      time.Time     // of the handler
	Delay    time.Duration // of retry, snooze and hold, whole ms
	Tally    record.Tally  // of retry and snooze: for the moved entry
	Later    bool          // of snooze: a later release has stored the job, and must run it
	Heir     bool          // of ack, expire and bury: the job has a successor, which the call enqueues
	Failure  string        // for the error log
	Attempts int           // finished attempts that bury adds
	Renewal  *Renewal      // of again and pass
	Parcels  run.Parcels   // jobs that the run hands over if it is acked
	Err      error         // returned by the handler, for the hooks and the log
	Bare     bool          // err says nothing but the verb
	Runs     bool          // of return: the handler is no longer waited for, and may still run
	Output   []byte        // of the run; nil: none
	Cause    error         // cause of the cancelled context; nil: it was not cancelled
	// Why the run lost the job; the outcome of that replaces the verb's.
	Lost   error
	failed bool // its last call has failed: see [Queue.Failed]
}

// As returns the row of a run that has lost its job.
func (r Row) As(lost error) Row {
	r.Lost = lost
	return r
}

// Left takes a job that a call has left for another one, because it has a successor or because
// there was too much to do.
func (r Row) Left() Row {
	r.Heir = r.Verb.ends() && !r.Heir
	return r
}

// Followed takes a job that its successor has followed, and not the one that its handler has asked
// for, or the next stage of a plan. A failed stage was the end of the plan.
func (r Row) Followed() Row {
	if r.Renewal = nil; r.Verb == Pass {
		r.Verb = Bury
		return r
	}
	r.Verb = Ack
	if r.Bare {
		r.Err = nil
	}
	return r
}

// heirTail is tail for a job whose successor the call enqueues.
func (r Row) heirTail(server string) []any {
	about, keep := r.about(server)
	if r.Verb == Bury {
		about = r.Failure
	}
	note := ""
	if r.Verb != Bury || r.Attempts > 0 || r.Failure != "" {
		note = r.history(r.Verb.Outcome(), server)
	}
	return []any{keep, about, note, "", "", r.Verb.Outcome()}
}

// tail returns the values of the job that follow its ID in the call.
func (r Row) tail(server string) []any {
	if r.Heir {
		return r.heirTail(server)
	}
	switch r.Verb {
	case Ack, Expire:
		note := r.history(r.Verb.Outcome(), server)
		if about, keep := r.about(server); about != "" || note != "" {
			return []any{keep, about, note}
		}
	case Again:
		about, keep := r.about(server)
		n := r.Renewal
		if r.Bare {
			r.Err = nil
		}
		return []any{keep, about, r.history(record.OutcomeAgain, server), &n.Head, &n.Tail, &n.When}
	case Pass:
		return []any{-1, "", r.history(record.OutcomeRetried, server), &r.Renewal.Head, &r.Renewal.Tail, &r.Renewal.When}
	case Retry:
		return []any{r.Delay.Milliseconds(), r.Tally.Encode(), r.Failure, r.history(record.OutcomeRetried, server)}
	case Snooze:
		later := 0
		if r.Later {
			later = 1
		}
		return []any{r.Delay.Milliseconds(), r.Tally.Encode(), later}
	case Return, Hold:
		runs := 0
		if r.Runs {
			runs = 1
		}
		return []any{r.due(), runs}
	case HoldKey:
		return []any{r.due(), r.Delay.Milliseconds(), r.Run.Options.Key}
	case Bury:
		note := ""
		if r.Attempts > 0 || r.Failure != "" { // else promote has noted that the run was cut off
			note = r.history(record.OutcomeBuried, server)
		}
		return []any{r.Attempts, r.Failure, note}
	}
	return nil
}

// due returns when the job was due, for the script.
func (r Row) due() any {
	if r.Run.Due.IsZero() {
		return "" // its record cannot be read
	}
	return r.Run.Due.UnixMilli()
}

// about returns what the scripts learn of the run of a completed job, and for how long in ms they
// keep it with the record; 0: not. Those who wait for the job learn it too, so it has each output.
func (r Row) about(server string) (about string, keep int64) {
	if r.Verb != Ack && r.Verb != Again {
		return "", 0
	}
	if keep = r.Run.Options.Retention; r.Renewal != nil && r.Renewal.Stage {
		keep = 0
	}
	if keep == 0 && len(r.Output) == 0 && r.Run.Options.Flow == nil { // the home of a flow keeps it
		return "", 0
	}
	return record.Done{
		Attempt: r.Run.Attempt, Start: r.Run.Start.UnixMilli(), End: r.End.UnixMilli(), Server: server, Snoozes: r.Run.Past.Snoozes,
	}.Encode(r.Output), keep
}

// history returns the entry in the history of the job's schedule. It is empty if the job does not
// belong to one.
func (r Row) history(outcome string, server string) string {
	if !r.Run.Options.Scheduled {
		return ""
	}
	e := record.Run{Job: r.Run.ID, Attempt: r.Run.Attempt, Server: server, Outcome: outcome}
	e.Attach(r.Output)
	if !r.Run.Start.IsZero() {
		e.Start, e.End = r.Run.Start.UnixMilli(), r.End.UnixMilli()
	}
	if r.Err != nil {
		e.Error = contain.Message(r.Err)
	}
	return e.Encode()
}

// A Renewal is the new job that a row of again or pass enqueues.
type Renewal struct {
	Head, Tail string // of the record
	When       string // due time for the script
	Due        time.Time
	Stage      bool // the same job goes on with another stage: the run that has ended is not kept
}

// Bytes is the length of the record.
func (n *Renewal) Bytes() int { return len(n.Head) + record.StampLen + len(n.Tail) }

// Outcome returns the outcome of the run.
func (r Row) Outcome() string {
	if r.Lost != nil {
		return lostOutcome(r.Lost)
	}
	return r.Verb.Outcome()
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

// Ended returns what is known of the run, once it has ended.
func (r Row) Ended() run.Ended {
	err, why := r.Err, r.Lost
	if why == nil && r.Verb == Return {
		why = r.Cause
	}
	switch {
	case why == nil || why == err:
	case err == nil:
		err = why
	default:
		err = fmt.Errorf("%w: %w", why, err)
	}
	e := run.Ended{Run: r.Run, Outcome: r.Outcome(), Finished: r.End, Err: err, Output: r.Output}
	switch e.Outcome {
	case record.OutcomeRetried, record.OutcomeSnoozed, record.OutcomeHeld:
		e.Next = r.End.Add(r.Delay)
	case record.OutcomeAgain:
		e.Next = r.Renewal.Due
	}
	var c *contain.Crash
	if contain.As(r.Err, &c) {
		e.Stack = string(c.Stack)
	}
	return e
}

// parcelWork is as many bytes of a record as storing a parcel is work.
const parcelWork = 512

// Weight estimates how many bytes the script moves for the job: the kept record, the new record,
// the output and the error log. It assumes that all entries of the log are as long as the new one.
func (r *Row) Weight() int {
	weight := len(r.Output) + len(r.Failure)*min(r.Run.Attempt, record.MaxFailures)
	if (r.Verb == Ack || r.Verb == Again) && r.Run.Options.Retention > 0 {
		weight += int(r.Run.Stored)
	}
	if r.Renewal != nil {
		weight += r.Renewal.Bytes()
	}
	return weight + len(r.Parcels.Text) + r.Parcels.Jobs*parcelWork
}

// AppendRows appends rows in the form that the scripts read. A group consists of a fence, the
// number of values, the number of jobs, and the ID and values of each job. Jobs that were taken
// together mostly finish together, so the groups are large. The leases are not extended until the
// reply arrives. The caller guards the runs.
func AppendRows(args []any, list []Row, server string) []any {
	fence, width, count, jobs := "", -1, 0, 0
	hands := HandsOver(list)
	for i := range list {
		r := list[i].Run
		r.Settling = true
		tail := []any(nil)
		if hands {
			tail = list[i].handing(server)
		} else {
			tail = list[i].tail(server)
		}
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
