package delayq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/bridge"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

func init() {
	bridge.NewJob = func(fresh any, now time.Time) (any, error) { return runOf(fresh.(NewJob), now) }
	bridge.RunBatch = func(ctx, f, jobs any) []error {
		within, _ := ctx.(context.Context)
		return runBatch(within, f.(BatchHandlerFunc), jobs.([]*Job))
	}
	bridge.NextRun = func(job any) any { return job.(*Job).next() }
	bridge.AlwaysRing = func(server any) { server.(*Server).engine.AlwaysRing() }
	bridge.Given = func(info any) any { return info.(*JobInfo).options }
	bridge.Changes = func(info, spec any, payload []byte, opts any) ([]string, error) {
		return info.(*ScheduleInfo).changes(spec.(Spec), payload, opts.([]ScheduleOption))
	}
	bridge.Unset = func(part string) any { return unset(part) }
	bridge.NewSealer = func(opts any) (any, error) { return newSealer(opts.([]ClientOption)) }
	bridge.SealEnqueue = func(ctx context.Context, sealer, fresh any) (bridge.Row, any, error) {
		return sealer.(*Client).sealEnqueue(ctx, fresh.(NewJob))
	}
	bridge.SealCancel = func(ctx context.Context, sealer any, topic, id string) (bridge.Row, error) {
		return sealer.(*Client).sealCancel(ctx, topic, id)
	}
	bridge.SealReschedule = func(ctx context.Context, sealer any, topic, id string, due any) (bridge.Row, error) {
		return sealer.(*Client).sealReschedule(ctx, topic, id, due.(DueOption))
	}
	bridge.SendRows = func(ctx context.Context, client any, plan bridge.Plan, rows []bridge.Row) ([]error, error) {
		return client.(*Client).sendRows(ctx, plan, rows)
	}
	bridge.FateOf = fateOf
	bridge.Answers = func(ctx context.Context, client any) error { return client.(*Client).answers(ctx) }
}

// changes returns the names of the parts that [Client.Schedule] would change with these arguments.
// A nil info is a schedule that does not exist, so everything is new.
func (info *ScheduleInfo) changes(spec Spec, payload []byte, opts []ScheduleOption) ([]string, error) {
	d := newDefinition(spec, payload, opts)
	if err := d.validate(mostPayload); err != nil || info == nil {
		return nil, err
	}
	if info.definition == nil {
		return nil, info.Undecodable
	}
	if d.onto == ontoGiven {
		keep(&d.Definition, info.definition)
	}
	return differences(&d.Definition, info.definition), nil
}

// unset returns an option that gives a part of a definition the value that it has by default.
func unset(name string) ScheduleOption {
	return scheduleOption(func(d *definition) {
		for _, part := range parts {
			if part.name != name {
				continue
			}
			blank := record.Definition{Job: defaultJob.Options}
			to := part.fields(&d.Definition)
			for i, field := range part.fields(&blank) {
				reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(field).Elem())
			}
			return
		}
		d.fail(fmt.Errorf("a schedule has no %s", name))
	})
}

// runOf returns the job that a handler would receive in the first run of fresh.
func runOf(fresh NewJob, now time.Time) (*Job, error) {
	var errs []error
	if err := script.CheckName("topic", fresh.Topic); err != nil {
		errs = append(errs, err)
	}
	if len(fresh.ID) > script.MaxIDLen {
		errs = append(errs, fmt.Errorf("ID of %d bytes, at most %d are allowed", len(fresh.ID), script.MaxIDLen))
	}
	o, err := newJobOptions(fresh.Options)
	if err := errors.Join(invalid(errs), err); err != nil {
		return nil, err
	}
	o.Fill(&defaultRun)
	enqueued := now.UnixMilli()
	due := o.Due(enqueued)
	job := &Job{
		Topic: fresh.Topic, ID: fresh.ID, Payload: slices.Clone(fresh.Payload), Headers: o.Headers, Key: o.Key,
		Attempt: 1, Retries: o.Retries(), EnqueuedAt: msTime(enqueued), Due: msTime(due), StartedAt: msTime(due),
		nonce: string(binary.LittleEndian.AppendUint64(nil, mathrand.Uint64())),
	}
	if job.ID == "" {
		job.ID = newID()
	}
	job.lend()
	return job, nil
}

// lend gives a job the fence of a lease that begins with its run, and no output.
func (j *Job) lend() {
	j.fence = new(atomic.Int64)
	j.fence.Store(j.StartedAt.Add(defaultServer.lease).UnixMicro())
	j.output = new(run.Output)
}

// next returns the job of the next run, which begins when the lease of this run has expired.
func (j *Job) next() *Job {
	own := *j
	own.part = nil
	own.Payload, own.Headers = slices.Clone(j.Payload), maps.Clone(j.Headers)
	own.Attempt++
	own.StartedAt = j.StartedAt.Add(defaultServer.lease)
	own.lend()
	return &own
}
