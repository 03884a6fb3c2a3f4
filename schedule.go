package delayq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
)

// Schedule creates a schedule, or replaces the one with this name. From then on the servers of the
// topic enqueue one job with this payload at every slot of spec, however many servers there are.
// The ID of the job is the name, an @ and the slot in Unix ms. [Job.Schedule] and [Job.Slot] hold
// both parts. All times are by Redis's clock. A topic without handlers accepts schedules too, but
// their slots are missed until it has one.
//
// Calling Schedule again with the same arguments changes nothing, so programs can call it on every
// start. A change keeps the counts, the history, a pause and the last job. The change takes effect
// at the first slot after the call. A slot that was waiting ([OverlapQueueOne], [MissedCatchUp]) is
// skipped.
//
// Changes made by [Client.EditSchedule] remain, and only the rest is changed, unless [DiscardEdits]
// is given. With [IfAbsent] an existing schedule is not changed at all. The client's [Defaults]
// are part of the arguments.
//
// Names have the same limits as topics and are unique in their topic. Schedule returns
// [ErrInvalid] for invalid arguments, for a spec without future slots, and for arguments that are
// invalid together with the edits. After [ErrUnknownOutcome] the call can safely be repeated.
// Other errors are those of Redis.
func (c *Client) Schedule(ctx context.Context, topic, name string, spec Spec, payload []byte, opts ...ScheduleOption) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "schedule", Topic: topic})
	// NewClient has validated the defaults.
	defaults := scheduleOption(func(d *definition) {
		d.set(func(o *jobOptions) { *o, _ = c.defaults().with(nil) })
	})
	d := newDefinition(spec, payload, append([]ScheduleOption{defaults}, opts...))
	err := c.validateSchedule(ctx, topic, name)
	if err != nil {
		err = errors.Join(err, d.validate(math.MaxInt))
	} else {
		err = d.validate(c.o.maxPayload)
	}
	place, changed := script.Place{Call: "schedule", Topic: topic, Schedule: name}, false
	if err == nil {
		changed, err = c.define(ctx, topic, name, func(old *definition, bad error, _ int64) (*definition, error) {
			switch {
			case errors.Is(bad, ErrNotFound) || d.onto == ontoEdited:
				return d, nil
			case d.onto == ontoNothing:
				return nil, nil
			case bad != nil || old.Edit.Parts == "":
				return d, nil
			}
			merged := *d
			keep(&merged.Definition, &old.Definition)
			if err := merged.validate(max(c.o.maxPayload, len(old.Payload))); err != nil {
				return nil, fmt.Errorf("with %s as edited by %q: %w", old.Edit.Parts, old.Edit.By, err)
			}
			return &merged, nil
		})
	}
	if err != nil {
		return end.err(c.acted(ctx, place, "", place.At(err)))
	}
	g := c.commits.For(topic, commit.Enqueue)
	defer g.Release()
	g.Record(ctx, changed) // another client may have removed the topic since this one recorded it
	if !changed {
		return end.err(nil)
	}
	return end.err(c.acted(ctx, place, "", nil))
}

// define replaces the definition of a schedule. next returns the new definition. It receives the
// old one or the error of decoding it (ErrNotFound if there is none), and Redis's time. A nil
// definition means that nothing changes. If somebody else changes the schedule in between, next is
// called again. define reports whether the schedule has changed.
func (c *Client) define(
	ctx context.Context, topic, name string, next func(old *definition, bad error, now int64) (*definition, error),
) (changed bool, err error) {
	for range defineTries {
		r, err := readSchedules(ctx, c.scripts, script.NewKeys(c.o.prefix, topic), -1, name)
		if err != nil {
			return false, err
		}
		raw := r.List(2).Text(0)
		old, bad := decodeDefinition(raw)
		if raw == "" {
			bad = ErrNotFound
		}
		d, err := next(old, bad, r.Now())
		if err != nil || d == nil {
			return false, err
		}
		fresh, err := d.Encode()
		if err != nil {
			return false, err
		}
		if record.SameDefinition(raw, fresh) {
			return false, nil // even if the schedule has ended
		}
		slot, err := d.firstSlot(r.Now())
		if err != nil {
			return false, err
		}
		state, err := c.one(ctx, script.ScheduleSet, script.Place{Topic: topic, Schedule: name}, fresh, record.HexNonceOf(raw), slot, maxTick.Milliseconds(), script.ControlChannel(c.o.prefix), topic)
		if err != nil || state != "changed" {
			return err == nil, err
		}
	}
	return false, errChanging
}

// defineTries is how often a call starts again because others change the schedule at the same
// time. Each time, one of the others has succeeded.
const defineTries = 100

// errChanging is returned when others kept changing a schedule.
var errChanging = fmt.Errorf("gave up after others changed the schedule %d times", defineTries)

// validateSchedule joins the errors of the client, the topic and the name of a schedule.
func (c *Client) validateSchedule(ctx context.Context, topic, name string) error {
	return errors.Join(c.validate(ctx, topic, ""), checkScheduleName(name))
}

// checkScheduleName returns an error if the name of a schedule is invalid.
func checkScheduleName(name string) error {
	if err := script.CheckName("schedule name", name); err != nil {
		return invalid([]error{err})
	}
	return nil
}

// Unschedule removes a schedule with its counts and its history. After it returns, no slot is
// fired. The job of the last slot is cancelled if it is scheduled or ready; if it is running, it
// continues. Other jobs of the schedule remain and are ordinary jobs: those of [Client.Trigger],
// and with [OverlapAllow] those of earlier slots. Unschedule returns [ErrNotFound] if there is no
// such schedule.
func (c *Client) Unschedule(ctx context.Context, topic, name string) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "unschedule", Topic: topic})
	err := c.validateSchedule(ctx, topic, name)
	if err == nil {
		_, err = c.one(ctx, script.ScheduleRemove, script.Place{Topic: topic, Schedule: name})
	}
	place := script.Place{Call: "unschedule", Topic: topic, Schedule: name}
	return end.err(c.acted(ctx, place, "", place.At(err)))
}

// PauseSchedule stops a schedule from firing until [Client.ResumeSchedule]. Jobs that were already
// enqueued remain, and a slot that waits is skipped. A schedule has at most one pause, whoever made
// it, and the pause does not expire. Pausing a paused schedule changes nothing. PauseSchedule
// returns [ErrNotFound] if there is no such schedule. To pause a whole topic, use [Client.Pause].
func (c *Client) PauseSchedule(ctx context.Context, topic, name string) error {
	return c.suspend(ctx, topic, name, "pause")
}

// ResumeSchedule ends the pause of a schedule. The next slot is the first one from now on. Slots
// during the pause are neither run nor missed. A schedule that is not paused does not change.
// ResumeSchedule returns [ErrNotFound] if there is no such schedule.
func (c *Client) ResumeSchedule(ctx context.Context, topic, name string) error {
	return c.suspend(ctx, topic, name, "resume")
}

func (c *Client) suspend(ctx context.Context, topic, name, verb string) error {
	ctx, end := c.begin(ctx, CallEvent{Name: verb + " schedule", Topic: topic})
	err := c.upToDate(ctx, topic, name, verb == "resume", func(d *definition, now int64) (State, error) {
		nonce, next := "", ""
		if d != nil {
			nonce = d.Nonce
			slot, err := d.firstSlot(now)
			if err != nil && !errors.Is(err, ErrInvalid) {
				return "", err
			}
			if err == nil {
				next = strconv.FormatInt(slot, 10)
			}
		}
		return c.one(ctx, script.SchedulePause, script.Place{Topic: topic, Schedule: name}, verb, nonce, next, maxTick.Milliseconds(), script.ControlChannel(c.o.prefix), topic)
	})
	err = script.Place{Call: verb, Topic: topic, Schedule: name}.At(err)
	return end.err(c.acted(ctx, script.Place{Call: verb + " schedule", Topic: topic, Schedule: name}, "", err))
}

// Trigger enqueues a job of a schedule now, in addition to those of its slots. It does so whatever
// the policies, and even if the schedule is paused or has ended. The job counts neither as a slot
// nor towards [MaxRuns].
//
// Trigger returns the job's ID: the name, an exclamation mark and the time in Unix ms. From the
// second job of the same millisecond on, a dot and a number follow. Each call enqueues one job,
// even if go-redis sends the call twice, and any number of calls can run simultaneously. Trigger
// returns [ErrNotFound] if there is no such schedule.
func (c *Client) Trigger(ctx context.Context, topic, name string) (id string, err error) {
	ctx, end := c.begin(ctx, CallEvent{Name: "trigger", Topic: topic, Jobs: 1})
	err = c.upToDate(ctx, topic, name, true, func(d *definition, _ int64) (State, error) {
		d.Job.Scheduled = true
		head, tail, err := record.Encode(record.NewNonce(), &d.Job, d.Payload)
		if err != nil {
			return "", err
		}
		state, err := c.one(ctx, script.ScheduleTrigger, script.Place{Topic: topic, Schedule: name}, d.Nonce, head, tail, d.Job.DueIn, maxTick.Milliseconds(), script.ControlChannel(c.o.prefix), topic)
		id = string(state)
		return state, err
	})
	if err != nil {
		id = ""
	}
	place := script.Place{Call: "trigger", Topic: topic, Schedule: name}
	return id, end.with(CallResult{ID: id, Err: c.acted(ctx, place, "", place.At(err))})
}

// upToDate reads the definition of a schedule if read is set, and calls do with it. It repeats
// both if somebody else changes the schedule in between.
func (c *Client) upToDate(ctx context.Context, topic, name string, read bool, do func(d *definition, now int64) (State, error)) error {
	if err := c.validateSchedule(ctx, topic, name); err != nil {
		return err
	}
	for range defineTries {
		var d *definition
		var now int64
		if read {
			r, err := readSchedules(ctx, c.scripts, script.NewKeys(c.o.prefix, topic), -1, name)
			if err != nil {
				return err
			}
			raw := r.List(2).Text(0)
			if raw == "" {
				return ErrNotFound
			}
			if d, err = decodeDefinition(raw); err != nil {
				return err
			}
			if err := d.compile(); err != nil && !errors.Is(err, schedule.ErrNoCalendar) {
				return err
			}
			now = r.Now()
		}
		if state, err := do(d, now); err != nil || state != "changed" {
			return err
		}
	}
	return errChanging
}
