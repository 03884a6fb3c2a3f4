package delayq

// An Outcome is the way a run of a job ended. [RunEvent] and [RunInfo] have it; use it as a label
// of metrics. An Outcome that ends a job or puts it back is also the name of a [Counter].
type Outcome string

// The outcomes of a run.
const (
	OutcomeAcked     Outcome = "acked"      // the handler returned nil: the job is completed
	OutcomeRetried   Outcome = "retried"    // the run failed: it is due again after its backoff
	OutcomeSnoozed   Outcome = "snoozed"    // the handler returned Snooze: the job is due again
	OutcomeBuried    Outcome = "buried"     // the run failed for good: the job is dead
	OutcomeExpired   Outcome = "expired"    // dropped, because its expiry passed before its start
	OutcomeReturned  Outcome = "returned"   // the server stopped: the job is back in ready
	OutcomeCancelled Outcome = "cancelled"  // Dequeue cancelled the job during its run
	OutcomeReplaced  Outcome = "replaced"   // an Enqueue with Replace replaced it during its run
	OutcomeLeaseLost Outcome = "lease_lost" // the lease ran out before the run ended
	OutcomeAgain     Outcome = "again"      // the handler returned Again: the job is enqueued again
	OutcomeHeld      Outcome = "held"       // the handler returned Hold or HoldKey: the job is ready again
)

// outcomeNames lists all outcomes.
var outcomeNames = []Outcome{
	OutcomeAcked, OutcomeRetried, OutcomeSnoozed, OutcomeBuried, OutcomeExpired, OutcomeReturned, OutcomeCancelled, OutcomeReplaced,
	OutcomeLeaseLost, OutcomeAgain, OutcomeHeld,
}

// An ErrorKind is the kind of failure of an attempt: see [AttemptError].
type ErrorKind string

// The kinds of failure.
const (
	KindError       ErrorKind = "error"       // the handler returned an error
	KindPanic       ErrorKind = "panic"       // the handler panicked
	KindGoexit      ErrorKind = "goexit"      // the handler called runtime.Goexit
	KindTimeout     ErrorKind = "timeout"     // the handler returned an error after its Timeout
	KindLeaseLost   ErrorKind = "lease_lost"  // the lease ran out first: mostly after a crash
	KindUndecodable ErrorKind = "undecodable" // the job's record cannot be read
	KindBuried      ErrorKind = "buried"      // no run: Bury or Apply buried the job, with a reason
)

// A Counter names a number that [Inspector.Stats] returns.
type Counter string

// The counters of a topic. A counter of runs has the name of their [Outcome].
const (
	CounterEnqueued   Counter = "enqueued"
	CounterTaken      Counter = "taken"
	CounterAcked      Counter = "acked"
	CounterAgain      Counter = "again" // jobs that were acked and enqueued again
	CounterRetried    Counter = "retried"
	CounterSnoozed    Counter = "snoozed"
	CounterBuried     Counter = "buried"
	CounterCancelled  Counter = "cancelled"
	CounterExpired    Counter = "expired"
	CounterReclaimed  Counter = "reclaimed" // leases that ran out
	CounterReturned   Counter = "returned"
	CounterHeld       Counter = "held" // jobs given back by handlers that held the topic
	CounterRevived    Counter = "revived"
	CounterDropped    Counter = "dropped"     // leases without a job
	CounterPrunedDead Counter = "pruned_dead" // dead jobs deleted by the [DeadLimit] of a server
	CounterPrunedDone Counter = "pruned_done" // done jobs whose [Retention] is over
	CounterDeleted    Counter = "deleted"     // done jobs removed by Delete
	CounterRepaired   Counter = "mended"      // repairs by servers and by Repair
	CounterFired      Counter = "fired"       // jobs made by schedules
	CounterSkipped    Counter = "skipped"     // slots not fired because of the [OverlapPolicy]
	CounterMissed     Counter = "missed"      // slots not fired because of the [MissedPolicy]
)
