package delayq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/bridge"
)

func init() {
	bridge.NewJob = func(fresh any, now time.Time) (any, error) { return runOf(fresh.(NewJob), now) }
	bridge.NextRun = func(job any) any { return job.(*Job).next() }
	bridge.AlwaysRing = func(server any) { server.(*Server).alwaysRings = true }
}

// runOf returns the job that a handler would receive in the first run of fresh.
func runOf(fresh NewJob, now time.Time) (*Job, error) {
	var errs []error
	if err := checkName("topic", fresh.Topic); err != nil {
		errs = append(errs, err)
	}
	if len(fresh.ID) > maxIDLen {
		errs = append(errs, fmt.Errorf("ID of %d bytes, at most %d are allowed", len(fresh.ID), maxIDLen))
	}
	o, err := newJobOptions(fresh.Options)
	if err := errors.Join(invalid(errs), err); err != nil {
		return nil, err
	}
	o.Fill(&defaultRun)
	enqueued := now.UnixMilli()
	due := o.Due(enqueued)
	job := &Job{
		Topic: fresh.Topic, ID: fresh.ID, Payload: slices.Clone(fresh.Payload), Headers: o.Headers,
		Attempt: 1, Retries: o.Retries(), EnqueuedAt: msTime(enqueued), Due: msTime(due), StartedAt: msTime(due),
		nonce: string(binary.LittleEndian.AppendUint64(nil, mathrand.Uint64())),
	}
	if job.ID == "" {
		job.ID = newID()
	}
	job.lend()
	return job, nil
}

// lend gives a job the fence of a lease that begins with its run.
func (j *Job) lend() {
	j.fence = new(atomic.Int64)
	j.fence.Store(j.StartedAt.Add(defaultServer.lease).UnixMicro())
}

// next returns the job of the next run, which begins when the lease of this run has expired.
func (j *Job) next() *Job {
	own := *j
	own.Payload, own.Headers = slices.Clone(j.Payload), maps.Clone(j.Headers)
	own.Attempt++
	own.StartedAt = j.StartedAt.Add(defaultServer.lease)
	own.lend()
	return &own
}
