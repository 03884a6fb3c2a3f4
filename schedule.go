package delayq

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"strconv"
)

// Schedule creates a schedule, or puts another one in the place of the one with this name. From then on the servers of the topic enqueue a
// job of this payload at every slot of the spec: exactly one for each slot, however many servers there are. The ID of the job is the
// name, an @ and the slot in Unix ms; Job.Schedule and Job.Slot have the two. All clocks are Redis's. A topic that nobody handles takes schedules too:
// its slots are missed until somebody does.
//
// The same schedule again is left as it is, so a program may call Schedule at every start. A change keeps the counts, the history, a pause and
// the last job, and takes effect at the first slot after it; a slot that waited (QueueOne, CatchUp) is skipped.
//
// What [Client.EditSchedule] has changed stays as it was edited, and only the rest is changed, unless [Overwrite] is
// given. With [IfAbsent] nothing of a schedule that is there is changed. The client's [Defaults] are part of what is given.
//
// Names are bounded like topics and unique in their topic. Errors: ErrInvalid, also for a spec that has no slot any more, and for a schedule
// that together with the edits is none; ErrUnknownOutcome, after which the same call again is safe; or what Redis answered.
func (c *Client) Schedule(ctx context.Context, topic, name string, spec Spec, payload []byte, opts ...ScheduleOption) error {
	defaults := scheduleOption(func(d *definition) { d.job, _ = c.defaults().with(nil) }) // NewClient has checked them
	d := newDefinition(spec, payload, append([]ScheduleOption{defaults}, opts...))
	err := c.validateSchedule(ctx, topic, name)
	if err != nil {
		err = errors.Join(err, d.validate(math.MaxInt))
	} else {
		err = d.validate(c.o.maxPayload)
	}
	if err == nil {
		err = c.define(ctx, topic, name, func(old *definition, bad error, _ int64) (*definition, error) {
			switch {
			case errors.Is(bad, ErrNotFound) || d.onto == ontoEdited:
				return d, nil
			case d.onto == ontoNothing:
				return nil, nil
			case bad != nil || old.edit.parts == "":
				return d, nil
			}
			merged := *d
			merged.keep(old)
			if err := merged.validate(max(c.o.maxPayload, len(old.payload))); err != nil {
				return nil, fmt.Errorf("with %s as edited by %q: %w", old.edit.parts, old.edit.by, err)
			}
			return &merged, nil
		})
	}
	if err != nil {
		return located{call: "schedule", topic: topic, schedule: name}.at(err)
	}
	g := c.commit(topic)
	defer g.done()
	g.record(ctx, false)
	return nil
}

// define puts a definition in the place of the one that a schedule has. next makes it of that one, or of what is wrong
// with it (ErrNotFound: there is none), and of Redis's time; it gives nil if nothing is to be done. If the schedule is
// changed in between, next is asked again.
func (c *Client) define(
	ctx context.Context, topic, name string, next func(old *definition, bad error, now int64) (*definition, error),
) error {
	for range defineTries {
		r, err := c.readSchedules(ctx, topic, -1, name)
		if err != nil {
			return err
		}
		raw := r.list(2).text(0)
		old, bad := decodeDefinition(raw, true)
		if raw == "" {
			bad = ErrNotFound
		}
		d, err := next(old, bad, r.now())
		if err != nil || d == nil {
			return err
		}
		fresh, err := d.encode()
		if err != nil {
			return err
		}
		if len(raw) > nonceLen && raw[nonceLen:] == fresh[nonceLen:] {
			return nil // it may even have ended
		}
		slot, err := d.firstSlot(r.now())
		if err != nil {
			return err
		}
		state, err := c.one(ctx, scheduleSetScript, located{topic: topic, schedule: name}, fresh, hex.EncodeToString([]byte(raw[:min(len(raw), nonceLen)])), slot, maxTick.Milliseconds(), controlChannel(c.o.prefix), topic)
		if err != nil || state != "changed" {
			return err
		}
	}
	return errChanging
}

// defineTries is how often a call begins anew because others change the schedule meanwhile: each time one of them has got on.
const defineTries = 100

// errChanging says that others never ceased to change a schedule.
var errChanging = fmt.Errorf("the schedule was changed %d times meanwhile", defineTries)

// readySchedule joins what is wrong with the client, the topic and the name of a schedule.
func (c *Client) validateSchedule(ctx context.Context, topic, name string) error {
	if err := checkName("schedule name", name); err != nil {
		return errors.Join(c.validate(ctx, topic, ""), invalid([]error{err}))
	}
	return c.validate(ctx, topic, "")
}

// Unschedule removes a schedule, its counts and its history. When it has returned no slot is fired any more, and the job of the last slot is
// cancelled if it waits, backs off or snoozes. One that is running goes on, and other jobs of the schedule are jobs like any other: those of
// Trigger, and with Allow those of earlier slots. ErrNotFound if there is no such schedule.
func (c *Client) Unschedule(ctx context.Context, topic, name string) error {
	err := c.validateSchedule(ctx, topic, name)
	if err == nil {
		_, err = c.one(ctx, scheduleRemoveScript, located{topic: topic, schedule: name})
	}
	return located{call: "unschedule", topic: topic, schedule: name}.at(err)
}

// PauseSchedule stops the firing of a schedule until ResumeSchedule. A job it has fired goes on; a slot that waits is skipped. Pausing it
// again changes nothing, and there is one pause whoever made it: it has no end of its own. ErrNotFound if there is no such schedule.
// Pause is for a whole topic.
func (c *Client) PauseSchedule(ctx context.Context, topic, name string) error {
	return c.suspend(ctx, topic, name, "pause")
}

// ResumeSchedule ends the pause of a schedule. Its next slot is the first one from now on: those during the pause are neither run nor missed. A
// schedule that is not paused is left as it is. ErrNotFound if there is no such schedule.
func (c *Client) ResumeSchedule(ctx context.Context, topic, name string) error {
	return c.suspend(ctx, topic, name, "resume")
}

func (c *Client) suspend(ctx context.Context, topic, name, verb string) error {
	err := c.upToDate(ctx, topic, name, verb == "resume", func(d *definition, now int64) (State, error) {
		nonce, next := "", ""
		if d != nil {
			nonce = d.nonce
			slot, err := d.firstSlot(now)
			if err != nil && !errors.Is(err, ErrInvalid) {
				return "", err
			}
			if err == nil {
				next = strconv.FormatInt(slot, 10)
			}
		}
		return c.one(ctx, schedulePauseScript, located{topic: topic, schedule: name}, verb, nonce, next, maxTick.Milliseconds(), controlChannel(c.o.prefix), topic)
	})
	return located{call: verb, topic: topic, schedule: name}.at(err)
}

// Trigger enqueues a job of a schedule now, beside its rhythm: whatever its policies, also while it is paused or after it has ended. It counts
// neither as a slot nor for MaxRuns. The ID that is returned is the name, an exclamation mark and the time in Unix ms; from the second job of
// one ms on, a dot and a number follow. Each call makes one job, also if go-redis sends it twice, and any number may be triggered at a time. ErrNotFound if there is no such schedule.
func (c *Client) Trigger(ctx context.Context, topic, name string) (id string, err error) {
	err = c.upToDate(ctx, topic, name, true, func(d *definition, _ int64) (State, error) {
		var nonce [nonceLen]byte
		binary.LittleEndian.PutUint64(nonce[:], mathrand.Uint64())
		d.job.scheduled = true
		head, tail, err := encodeRecord(nonce, &d.job, d.payload)
		if err != nil {
			return "", err
		}
		state, err := c.one(ctx, scheduleTriggerScript, located{topic: topic, schedule: name}, d.nonce, head, tail, d.job.dueIn, maxTick.Milliseconds(), controlChannel(c.o.prefix), topic)
		id = string(state)
		return state, err
	})
	if err != nil {
		return "", located{call: "trigger", topic: topic, schedule: name}.at(err)
	}
	return id, nil
}

// upToDate reads the definition of a schedule, if that is needed, and does something by it; once more, if the schedule is changed in between.
func (c *Client) upToDate(ctx context.Context, topic, name string, read bool, do func(d *definition, now int64) (State, error)) error {
	if err := c.validateSchedule(ctx, topic, name); err != nil {
		return err
	}
	for range defineTries {
		var d *definition
		var now int64
		if read {
			r, err := c.readSchedules(ctx, topic, -1, name)
			if err != nil {
				return err
			}
			raw := r.list(2).text(0)
			if raw == "" {
				return ErrNotFound
			}
			if d, err = decodeDefinition(raw, true); err != nil {
				return err
			}
			if err := d.compile(nil); err != nil && !errors.Is(err, errNoCalendar) {
				return err
			}
			now = r.now()
		}
		if state, err := do(d, now); err != nil || state != "changed" {
			return err
		}
	}
	return errChanging
}

// describe is one call of the describe script. It tells of the first of those that are asked for, of as many as can be read in a moment.
func (c *Client) readSchedules(ctx context.Context, topic string, size int, which ...string) (reply, error) {
	k := newKeys(c.o.prefix, topic)
	args := make([]any, 2, 2+len(which))
	args[0], args[1] = size, callBytes
	for _, name := range which {
		args = append(args, name)
	}
	return c.scripts.exec(ctx, scheduleInfoScript, k, "", 0, args...)
}
