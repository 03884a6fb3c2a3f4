// Package bridge lets delayqtest create jobs as a handler receives them, with a nonce and a fence,
// and run batches of them. It lets tests make a server wait for rings, and lets the command line
// compare and copy exactly what was given to jobs and schedules. It lets the outbox encode calls of
// a client and carry them out later.
// Package delayq sets its variables, and so exports nothing for tests.
package bridge

import (
	"context"
	"time"
)

var (
	// NewJob returns the *delayq.Job of a delayq.NewJob, as a handler receives it the first time.
	// The lease began at now, or when the job was due if that is later.
	NewJob func(fresh any, now time.Time) (job any, err error)

	// NextRun returns the *delayq.Job of the next run of a job of NewJob or NextRun, with a later
	// lease.
	NextRun func(job any) (next any)

	// RunBatch calls a delayq.BatchHandlerFunc with a context.Context and a []*delayq.Job, and
	// returns the outcomes.
	RunBatch func(ctx, f, jobs any) []error

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

	// NewSealer returns what validates and encodes calls as a client of the
	// []delayq.ClientOption does. It needs no Redis.
	NewSealer func(opts any) (sealer any, err error)

	// SealEnqueue returns the row of an enqueue of a delayq.NewJob, and its *delayq.Job without
	// times. Its errors are those of Client.Enqueue for the same arguments.
	SealEnqueue func(ctx context.Context, sealer, fresh any) (row Row, job any, err error)

	// SealCancel returns the row of a Client.Dequeue.
	SealCancel func(ctx context.Context, sealer any, topic, id string) (Row, error)

	// SealReschedule returns the row of a Client.Reschedule to a delayq.DueOption.
	SealReschedule func(ctx context.Context, sealer any, topic, id string, due any) (Row, error)

	// SendRows carries out rows of one topic in their order, by a *delayq.Client, and returns an
	// outcome for each. If Redis has not answered or has refused a call as a whole, it also returns
	// an error, and the outcome of rows that were not sent, or of which nothing is known, is
	// ErrOpen. Then call it again with the same plan and the same rows: what was carried out is not
	// repeated, and its outcomes are as they were. After ErrPassed that is not possible.
	SendRows func(ctx context.Context, client any, plan Plan, rows []Row) (outcomes []error, err error)

	// FateOf says what an error of SendRows means.
	FateOf func(err error) Fate

	// Answers returns nil if Redis answers to a *delayq.Client.
	Answers func(ctx context.Context, client any) error
)

// A Fate is what an error of SendRows means.
type Fate int

// The fates.
const (
	FateAway    Fate = iota // Redis does not answer or serve, or replicas are missing
	FateFull                // Redis has no memory for new jobs, but carries out cancels
	FateRefused             // Redis has refused a call for another reason, and has done nothing
	FatePassed              // the error wraps ErrPassed
)

// A Row is a call of a client that a table holds until it is sent.
type Row struct {
	Kind    RowKind
	Topic   string
	ID      string
	Replace string // letter of an enqueue: which jobs it replaces
	Record  string // of an enqueue: the record of the job, with 0 as the time of enqueueing
	DueAt   int64  // Unix ms; 0: DueIn applies
	DueIn   int64  // ms after the row was made
	Age     int64  // ms since the row was made
}

// Size returns how many bytes count towards those of a call.
func (r *Row) Size() int { return len(r.Record) }

// A RowKind says which call a row is. The numbers are stored.
type RowKind int

// The kinds of rows.
const (
	RowEnqueue    RowKind = 1
	RowCancel     RowKind = 2
	RowReschedule RowKind = 3
)

// A Plan names rows that are sent together, so that a call that is sent again is recognized.
type Plan struct {
	Series string // of the sender of all plans
	Number uint64 // of the plan; greater than that of every earlier one
	Tag    string // random, of letters and digits; empty: an earlier release has made the plan
	First  int    // index of the first call
	Probe  bool   // the receipt is needed for a minute only
}

var (
	// ErrOpen is the outcome of a row that was not sent, or of which nothing is known.
	ErrOpen error

	// ErrPassed is in the error of SendRows if the series of the plan has been used for a later
	// plan, or for another one with the same number. The calls of rows without an outcome may have
	// been carried out or not.
	ErrPassed error
)
