package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

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
	d, err := c.definitionOf(ctx, topic, name, spec, payload, opts)
	place := script.Place{Call: "schedule", Topic: topic, Schedule: name}
	var done *revision
	if err == nil {
		done, err = c.announced(ctx, topic, name, func(old *definition, bad error, _ int64) (*definition, error) {
			return c.onto(d, old, bad)
		})
	}
	if err == nil && done == nil {
		return end.err(nil)
	}
	now, was := done.texts()
	return end.err(c.acted(ctx, place, now, was, place.At(err)))
}

// definitionOf returns the definition that the arguments of Schedule describe, if they are valid.
func (c *Client) definitionOf(ctx context.Context, topic, name string, spec Spec, payload []byte, opts []ScheduleOption) (*definition, error) {
	// NewClient has validated the defaults.
	defaults := scheduleOption(func(d *definition) {
		d.set(func(o *jobOptions) { *o, _ = c.defaults().with(nil) })
	})
	d := newDefinition(spec, payload, append([]ScheduleOption{defaults}, opts...))
	if err := c.validateSchedule(ctx, topic, name); err != nil {
		return nil, errors.Join(err, d.validate(math.MaxInt))
	}
	if err := d.validate(c.o.maxPayload); err != nil {
		return nil, err
	}
	return d, nil
}

// onto returns what a schedule becomes when d is put onto the existing definition, or nil if it
// stays as it is. bad is the error of decoding the existing one, ErrNotFound if there is none.
func (c *Client) onto(d, old *definition, bad error) (*definition, error) {
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
}

// announced is define for a schedule that may be the first thing in its topic.
func (c *Client) announced(
	ctx context.Context, topic, name string, next func(old *definition, bad error, now int64) (*definition, error),
) (done *revision, err error) {
	g := c.commits.For(topic, commit.Enqueue)
	defer g.Release()
	if err = g.Announce(ctx); err != nil {
		return nil, err
	}
	done, err = c.define(ctx, topic, name, next)
	if done != nil || errors.Is(err, ErrUnknownOutcome) {
		g.Confirm(ctx) // another client may have removed the topic since this one announced it
	}
	return done, err
}

// define replaces the definition of a schedule. next returns the new definition. It receives the
// old one or the error of decoding it (ErrNotFound if there is none), and Redis's time. A nil
// definition means that nothing changes. If somebody else changes the schedule in between, next is
// called again. define returns the change, or nil if there is none.
func (c *Client) define(
	ctx context.Context, topic, name string, next func(old *definition, bad error, now int64) (*definition, error),
) (*revision, error) {
	for range defineTries {
		r, err := readSchedules(ctx, c.scripts, script.NewKeys(c.o.prefix, topic), -1, name)
		if err != nil {
			return nil, err
		}
		raw := r.List(2).Text(0)
		old, bad := decodeDefinition(raw)
		if raw == "" {
			bad = ErrNotFound
		}
		d, err := next(old, bad, r.Now())
		if err != nil || d == nil {
			return nil, err
		}
		fresh, err := d.Encode()
		if err != nil {
			return nil, err
		}
		if record.SameDefinition(raw, fresh) {
			return nil, nil // even if the schedule has ended
		}
		slot, err := d.slotWord(r.Now())
		if err != nil {
			return nil, err
		}
		words, _, err := c.setSchedules(ctx, script.NewKeys(c.o.prefix, topic), 1, []any{name, fresh, record.HexNonceOf(raw), slot})
		switch {
		case err != nil:
			return nil, c.unsure(err)
		case words[0] != "changed":
			return &revision{raw, old, d}, nil
		}
	}
	return nil, errChanging
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
	was := ""
	if err == nil {
		_, was, err = c.one(ctx, script.ScheduleRemove, script.Place{Topic: topic, Schedule: name}, script.ControlChannel(c.o.prefix), topic)
	}
	place := script.Place{Call: "unschedule", Topic: topic, Schedule: name}
	return end.err(c.acted(ctx, place, "", removedText(was), place.At(err)))
}

// PauseSchedule stops a schedule from firing until [Client.ResumeSchedule]. Jobs that were already
// enqueued remain, and a slot that waits is skipped. A schedule has at most one pause, whoever made
// it, and the pause does not expire. Pausing a paused schedule changes nothing. PauseSchedule
// returns [ErrNotFound] if there is no such schedule. To pause a whole topic, use [Client.Pause].
// docs/howto/stopping.md compares all calls that stop jobs.
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
	since := ""
	err := c.upToDate(ctx, topic, name, verb == "resume", func(d *definition, now int64) (state State, err error) {
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
		state, since, err = c.one(ctx, script.SchedulePause, script.Place{Topic: topic, Schedule: name}, verb, nonce, next, maxTick.Milliseconds(), script.ControlChannel(c.o.prefix), topic)
		return state, err
	})
	err = script.Place{Call: verb, Topic: topic, Schedule: name}.At(err)
	return end.err(c.acted(ctx, script.Place{Call: verb + " schedule", Topic: topic, Schedule: name}, "", scheduleText(since), err))
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
		state, _, err := c.one(ctx, script.ScheduleTrigger, script.Place{Topic: topic, Schedule: name}, d.Nonce, head, tail, d.Job.DueIn, maxTick.Milliseconds(), script.ControlChannel(c.o.prefix), topic)
		id = string(state)
		return state, err
	})
	if err != nil {
		id = ""
	}
	place := script.Place{Call: "trigger", Topic: topic, Schedule: name}
	return id, end.with(CallResult{ID: id, Err: c.acted(ctx, place, "", "", place.At(err))})
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

// A ScheduleDefinition is what [Client.EditSchedule] changes: the arguments of [Client.Schedule]
// that define a schedule.
type ScheduleDefinition struct {
	Spec    Spec
	Payload []byte
	// Options holds the options that were given. If two of them contradict each other, the last
	// one wins.
	Options []ScheduleOption
	// EditedBy is the name of the person or program that makes the edit, at most 1 KiB. When edit
	// is called it is the actor of the context ([WithActor]), and edit can set another name.
	// [ScheduleInfo.EditedBy] reports the name of the last edit. The audit has the actor.
	EditedBy string
}

// EditSchedule changes parts of a schedule. edit receives the definition and changes it in place.
// edit can be called several times, because somebody else may change the schedule at the same time.
//
// The change has all effects of a change by [Client.Schedule]. In addition, [ScheduleInfo.Edited]
// lists the changed parts. From then on Schedule leaves these parts as they are, unless
// [DiscardEdits] is given. So a program that starts does not undo the changes of an operator. If
// edit changes nothing, nothing is written.
//
// EditSchedule returns [ErrNotFound] if there is no such schedule, [ErrInvalid] if the new
// definition is invalid, the error of edit, [ErrUnknownOutcome], or an error of
// Redis.
func (c *Client) EditSchedule(ctx context.Context, topic, name string, edit func(*ScheduleDefinition) error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "edit schedule", Topic: topic})
	done, err := c.editSchedule(ctx, topic, name, edit)
	err = script.Place{Call: "edit", Topic: topic, Schedule: name}.At(err)
	if err == nil && done == nil {
		return end.err(nil)
	}
	now, was := done.texts()
	return end.err(c.acted(ctx, script.Place{Call: "edit schedule", Topic: topic, Schedule: name}, now, was, err))
}

func (c *Client) editSchedule(ctx context.Context, topic, name string, edit func(*ScheduleDefinition) error) (*revision, error) {
	err := c.validateSchedule(ctx, topic, name)
	if edit == nil {
		err = errors.Join(err, fmt.Errorf("%w: edit is nil", ErrInvalid))
	}
	if err != nil {
		return nil, err
	}
	return c.define(ctx, topic, name, func(old *definition, bad error, now int64) (*definition, error) {
		if bad != nil {
			return nil, bad
		}
		def := ScheduleDefinition{Spec: Spec{rule: old.Spec}, Payload: slices.Clone(old.Payload), Options: scheduleOptionsOf(&old.Definition)}
		def.EditedBy = actorOf(ctx)
		if err := edit(&def); err != nil {
			return nil, err
		}
		d := newDefinition(def.Spec, def.Payload, def.Options)
		if d.onto != ontoGiven || d.start {
			d.fail(errors.New("IfAbsent, DiscardEdits and RunOnStart are options of Schedule only"))
		}
		if by := len(def.EditedBy); by > script.MaxIDLen {
			d.fail(fmt.Errorf("EditedBy of %d bytes, at most %d are allowed", by, script.MaxIDLen))
		}
		changed := differences(&d.Definition, &old.Definition)
		if err := d.validate(max(c.o.maxPayload, len(old.Payload))); err != nil || len(changed) == 0 {
			return nil, err
		}
		d.Edit = after(old.Edit, now, def.EditedBy, changed)
		return d, nil
	})
}

// after returns the edit that follows e.
func after(e record.Edit, at int64, by string, changed []string) record.Edit {
	names := append(e.Names(), changed...)
	slices.Sort(names)
	return record.Edit{At: at, By: by, Parts: strings.Join(slices.Compact(names), " ")}
}

// parts lists the parts of a definition that can be edited.
var parts = []struct {
	name   string
	fields func(*record.Definition) []any  // pointers
	text   func(*record.Definition) string // for the audit; empty: not set
}{
	{"Spec", func(d *record.Definition) []any { return []any{&d.Spec} }, func(d *record.Definition) string { return strconv.Quote(d.Spec.String()) }},
	{"Payload", func(d *record.Definition) []any { return []any{&d.Payload, &d.Size} }, payloadText},
	{"StartAt", func(d *record.Definition) []any { return []any{&d.First} }, func(d *record.Definition) string { return momentText(d.First) }},
	{"EndAt", func(d *record.Definition) []any { return []any{&d.Last} }, func(d *record.Definition) string { return momentText(d.Last) }},
	{"MaxRuns", func(d *record.Definition) []any { return []any{&d.Most} }, maxRunsText},
	{"Jitter", func(d *record.Definition) []any { return []any{&d.Jitter} }, func(d *record.Definition) string { return spanText(d.Jitter) }},
	{"OnOverlap", func(d *record.Definition) []any { return []any{&d.Overlap} }, func(d *record.Definition) string { return d.Overlap.String() }},
	{"OnMissed", func(d *record.Definition) []any { return []any{&d.Missed} }, func(d *record.Definition) string { return d.Missed.String() }},
	{"ProcessIn", func(d *record.Definition) []any { return []any{&d.Job.DueIn} }, func(d *record.Definition) string { return spanText(d.Job.DueIn) }},
	{"Retry", func(d *record.Definition) []any { return []any{&d.Job.Retry} }, retryText},
	{"Backoff", func(d *record.Definition) []any { return []any{&d.Job.BackoffMin, &d.Job.BackoffMax} }, backoffText},
	{"Timeout", func(d *record.Definition) []any { return []any{&d.Job.Timeout} }, func(d *record.Definition) string { return spanText(d.Job.Timeout) }},
	{"Expire", func(d *record.Definition) []any { return []any{&d.Job.ExpireAt, &d.Job.ExpireIn} }, func(d *record.Definition) string {
		return cmp.Or(spanText(d.Job.ExpireIn), momentText(d.Job.ExpireAt))
	}},
	{"Retention", func(d *record.Definition) []any { return []any{&d.Job.Retention} }, func(d *record.Definition) string { return spanText(d.Job.Retention) }},
	{"Headers", func(d *record.Definition) []any { return []any{&d.Job.Headers} }, headersText},
	{"Key", func(d *record.Definition) []any { return []any{&d.Job.Key, &d.Job.HeadStart} }, keyText},
}

// differences returns the names of the parts in which two definitions differ.
func differences(d, from *record.Definition) (names []string) {
	for _, part := range parts {
		a, b := part.fields(d), part.fields(from)
		for i := range a {
			x, y := reflect.ValueOf(a[i]).Elem(), reflect.ValueOf(b[i]).Elem()
			none := x.Kind() == reflect.Slice || x.Kind() == reflect.Map
			if none && x.Len()+y.Len() == 0 {
				continue // nil and empty are the same
			}
			if !reflect.DeepEqual(a[i], b[i]) {
				names = append(names, part.name)
				break
			}
		}
	}
	return names
}

// keep copies the edited parts of another definition to d.
func keep(d, from *record.Definition) {
	d.Edit = from.Edit
	for _, part := range parts {
		if !slices.Contains(from.Edit.Names(), part.name) {
			continue
		}
		to := part.fields(d)
		for i, field := range part.fields(from) {
			reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(field).Elem())
		}
	}
}

// scheduleOptionsOf returns the options that produce d, besides its spec and payload.
func scheduleOptionsOf(d *record.Definition) (list []ScheduleOption) {
	if d.First > 0 {
		list = append(list, StartAt(msTime(d.First)))
	}
	if d.Last > 0 {
		list = append(list, EndAt(msTime(d.Last)))
	}
	if d.Most > 0 {
		list = append(list, MaxRuns(int(d.Most)))
	}
	if d.Jitter > 0 {
		list = append(list, Jitter(ofMS(d.Jitter)))
	}
	list = append(list, OverlapPolicy(d.Overlap), MissedPolicy(d.Missed))
	for _, opt := range jobOptionsOf(&d.Job) {
		list = append(list, opt)
	}
	return list
}

// jobOptionsOf returns the options that were given to produce o.
func jobOptionsOf(o *record.Options) (list []JobOption) {
	add := func(given bool, opt func() JobOption) {
		if given {
			list = append(list, opt())
		}
	}
	add(o.Plan != nil, func() JobOption { return planOption(o.Plan, o.DueAt) })
	add(o.Plan == nil && o.DueAt > 0, func() JobOption { return ProcessAt(msTime(o.DueAt)) })
	add(o.DueAt == 0 && o.DueIn > 0, func() JobOption { return ProcessIn(ofMS(o.DueIn)) })
	add(o.Retry != defaultJob.Retry, func() JobOption { return Retry(o.Retry) })
	add(o.BackoffMin != defaultJob.BackoffMin || o.BackoffMax != defaultJob.BackoffMax, func() JobOption {
		return Backoff(ofMS(o.BackoffMin), ofMS(o.BackoffMax))
	})
	add(o.Timeout > 0, func() JobOption { return Timeout(ofMS(o.Timeout)) })
	add(o.ExpireIn > 0, func() JobOption { return ExpireIn(ofMS(o.ExpireIn)) })
	add(o.ExpireIn == 0 && o.ExpireAt > 0, func() JobOption { return ExpireAt(msTime(o.ExpireAt)) })
	add(o.Retention > 0, func() JobOption { return Retention(ofMS(o.Retention)) })
	add(o.Key != "", func() JobOption { return Key(o.Key) })
	add(o.HeadStart != 0, func() JobOption { return Priority(ofMS(o.HeadStart)) })
	for _, key := range slices.Sorted(maps.Keys(o.Headers)) {
		list = append(list, Header(key, o.Headers[key]))
	}
	return list
}
