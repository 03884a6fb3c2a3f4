// Package bridge lets delayqtest create jobs as a handler receives them, with a nonce and a fence,
// and run batches of them. It lets tests make a server wait for rings, and lets the command line
// compare and copy exactly what was given to jobs and schedules. It lets the outbox encode calls of
// a client and carry them out later.
// Package delayq sets its variables, and so exports nothing for tests.
package bridge

import (
	"context"
	"time"

	"github.com/delayq/delayq/internal/commit"
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
	SealEnqueue func(ctx context.Context, sealer, fresh any) (row commit.Row, job any, err error)

	// SealCancel returns the row of a Client.Dequeue.
	SealCancel func(ctx context.Context, sealer any, topic, id string) (commit.Row, error)

	// SealReschedule returns the row of a Client.Reschedule to a delayq.DueOption.
	SealReschedule func(ctx context.Context, sealer any, topic, id string, due any) (commit.Row, error)

	// SendRows carries out rows of one topic in their order, by a *delayq.Client, and returns an
	// outcome for each. If Redis has not answered or has refused a call as a whole, it also returns
	// an error, and the outcome of rows that were not sent, or of which nothing is known, is
	// commit.ErrOpen. Then call it again with the same plan and the same rows: what was carried out
	// is not repeated, and its outcomes are as they were. After commit.ErrPassed that is not
	// possible.
	SendRows func(
		ctx context.Context, client any, plan commit.Plan, rows []commit.Row,
	) (outcomes []error, err error)

	// Answers returns nil if Redis answers to a *delayq.Client.
	Answers func(ctx context.Context, client any) error
)
