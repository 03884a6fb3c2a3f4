// Package bridge lets delayqtest create jobs as a handler receives them, with a nonce and a fence,
// and lets tests make a server wait for rings.
// Package delayq sets its variables, and so exports nothing for tests.
package bridge

import "time"

var (
	// NewJob returns the *delayq.Job of a delayq.NewJob, as a handler receives it the first time.
	// The lease began at now, or when the job was due if that is later.
	NewJob func(fresh any, now time.Time) (job any, err error)

	// NextRun returns the *delayq.Job of the next run of a job of NewJob or NextRun, with a later
	// lease.
	NextRun func(job any) (next any)

	// AlwaysRing makes a *delayq.Server that has not been run wait for rings, however few topics it
	// has.
	AlwaysRing func(server any)
)
