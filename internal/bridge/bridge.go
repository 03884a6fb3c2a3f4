// Package bridge lets delayqtest create jobs as a handler receives them, with a nonce and a fence,
// lets tests make a server wait for rings, and lets the command line compare and copy exactly what
// was given to jobs and schedules.
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

	// Given returns the record.Options that the job of a *delayq.JobInfo was given.
	Given func(info any) any

	// Changes returns the names of the parts that Client.Schedule would change in the schedule of a
	// *delayq.ScheduleInfo, which may be nil, given a delayq.Spec, a payload and a
	// []delayq.ScheduleOption. It returns the error that Schedule would return for the arguments.
	Changes func(info, spec any, payload []byte, opts any) ([]string, error)

	// Unset returns a delayq.ScheduleOption that removes a part of a definition. The part has the
	// name that ScheduleInfo.Edited uses.
	Unset func(part string) any
)
