// Package flow is what is known of a flow without Redis: its steps, what each of them waits for,
// the checks of a flow that is to be started, and the values in which Redis holds it.
//
// It is pure: it calls neither Redis nor a clock, and knows nothing of jobs but their names.
// docs/protocol.md describes the values.
package flow
