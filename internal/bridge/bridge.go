// Package bridge lets delayqtest make what a handler gets and nobody else can make: a job with a nonce and a fence.
// Package delayq sets its variables, and so exports nothing for tests.
package bridge

import "time"

var (
	// NewJob makes a *delayq.Job of a delayq.NewJob, as a handler gets it for the first time. The lease began at now,
	// or when the job was due if that is later.
	NewJob func(fresh any, now time.Time) (job any, err error)

	// NextRun makes the *delayq.Job of the next run of one that NewJob or NextRun has made, with a later lease.
	NextRun func(job any) (next any)
)
