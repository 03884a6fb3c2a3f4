package delayq

// An Outcome is how a run of a job ended: of [RunEvent] and of [Run], and the label to count runs by. An Outcome that
// ends a job or puts it back is the name of a [Counter] too.
type Outcome string

// The outcomes of a run.
const (
	OutcomeAcked     Outcome = "acked"      // the handler returned nil: the job is done
	OutcomeRetried   Outcome = "retried"    // the run failed: the job is due again after its backoff
	OutcomeSnoozed   Outcome = "snoozed"    // the handler returned Snooze: the job is due again
	OutcomeBuried    Outcome = "buried"     // the run failed for good: the job is dead
	OutcomeExpired   Outcome = "expired"    // the job was dropped because its expiry had passed before it could start
	OutcomeReturned  Outcome = "returned"   // the server stopped: the job is back in ready
	OutcomeCancelled Outcome = "cancelled"  // Dequeue took the job from its run
	OutcomeReplaced  Outcome = "replaced"   // an Enqueue with Replace took the job from its run
	OutcomeLeaseLost Outcome = "lease_lost" // the lease ran out before the run ended
	OutcomeAgain     Outcome = "again"      // the handler returned Again: the job has ended and was enqueued anew
)

// An ErrorKind is what made an attempt fail: that of an [AttemptError].
type ErrorKind string

// The kinds of failure.
const (
	KindError       ErrorKind = "error"       // the handler returned an error
	KindPanic       ErrorKind = "panic"       // the handler panicked
	KindGoexit      ErrorKind = "goexit"      // the handler called runtime.Goexit
	KindTimeout     ErrorKind = "timeout"     // the handler returned an error after its Timeout
	KindLeaseLost   ErrorKind = "lease_lost"  // the lease ran out before the run ended: a crash, mostly
	KindUndecodable ErrorKind = "undecodable" // the job's record cannot be read
)

// A Counter names what [Client.Inspect] counts.
type Counter string

// The counters of a topic. Those of runs have the names of their outcomes.
const (
	CounterEnqueued   Counter = "enqueued"
	CounterTaken      Counter = "taken"
	CounterAcked      Counter = "acked"
	CounterAgain      Counter = "again" // acked jobs that were enqueued anew, which counts as enqueued
	CounterRetried    Counter = "retried"
	CounterSnoozed    Counter = "snoozed"
	CounterBuried     Counter = "buried"
	CounterCancelled  Counter = "cancelled"
	CounterExpired    Counter = "expired"
	CounterReclaimed  Counter = "reclaimed" // leases that ran out
	CounterReturned   Counter = "returned"
	CounterRevived    Counter = "revived"
	CounterDropped    Counter = "dropped"     // leases without a job
	CounterPrunedDead Counter = "pruned_dead" // dead jobs deleted by the [DeadLimit] of a server
	CounterPrunedDone Counter = "pruned_done" // done jobs whose [Retention] is over
	CounterDeleted    Counter = "deleted"     // done jobs removed by Delete
	CounterMended     Counter = "mended"      // what Check has repaired
	CounterFired      Counter = "fired"       // jobs made by schedules
	CounterSkipped    Counter = "skipped"     // slots of schedules that were not fired because of the Overlap
	CounterMissed     Counter = "missed"      // slots of schedules that were not fired because of Missed
)
