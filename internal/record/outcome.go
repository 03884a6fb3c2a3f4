package record

// Outcomes of runs, as Redis has them: in counters, in the history of topics and of schedules.
const (
	OutcomeAcked     = "acked"
	OutcomeRetried   = "retried"
	OutcomeSnoozed   = "snoozed"
	OutcomeBuried    = "buried"
	OutcomeExpired   = "expired"
	OutcomeReturned  = "returned"
	OutcomeCancelled = "cancelled"
	OutcomeReplaced  = "replaced"
	OutcomeLeaseLost = "lease_lost"
	OutcomeAgain     = "again"
	OutcomeHeld      = "held"
)

// Outcomes lists all of them, in the order in which the history of a topic has them.
var Outcomes = []string{
	OutcomeAcked, OutcomeRetried, OutcomeSnoozed, OutcomeBuried, OutcomeExpired, OutcomeReturned, OutcomeCancelled, OutcomeReplaced,
	OutcomeLeaseLost, OutcomeAgain, OutcomeHeld,
}
