package delayq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A ScheduleDefinition is what [Client.EditSchedule] changes: the arguments of [Client.Schedule]
// that define a schedule.
type ScheduleDefinition struct {
	Spec    Spec
	Payload []byte
	// Options holds the options that were given. If two of them contradict each other, the last
	// one wins.
	Options []ScheduleOption
	// EditedBy is the name of the person or program that makes the edit, at most 1 KiB. It is empty
	// when edit is called, which can set it. [ScheduleInfo.EditedBy] reports the name of the last
	// edit.
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
	changed, err := c.editSchedule(ctx, topic, name, edit)
	err = script.Place{Call: "edit", Topic: topic, Schedule: name}.At(err)
	if err == nil && !changed {
		return end.err(nil)
	}
	return end.err(c.acted(ctx, script.Place{Call: "edit schedule", Topic: topic, Schedule: name}, "", err))
}

func (c *Client) editSchedule(ctx context.Context, topic, name string, edit func(*ScheduleDefinition) error) (changed bool, err error) {
	err = c.validateSchedule(ctx, topic, name)
	if edit == nil {
		err = errors.Join(err, fmt.Errorf("%w: edit is nil", ErrInvalid))
	}
	if err != nil {
		return false, err
	}
	return c.define(ctx, topic, name, func(old *definition, bad error, now int64) (*definition, error) {
		if bad != nil {
			return nil, bad
		}
		def := ScheduleDefinition{Spec: Spec{rule: old.Spec}, Payload: slices.Clone(old.Payload), Options: scheduleOptionsOf(&old.Definition)}
		if err := edit(&def); err != nil {
			return nil, err
		}
		d := newDefinition(def.Spec, def.Payload, def.Options)
		if d.onto != ontoGiven {
			d.fail(errors.New("IfAbsent and DiscardEdits are options of Schedule only"))
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
	fields func(*record.Definition) []any // pointers
}{
	{"Spec", func(d *record.Definition) []any { return []any{&d.Spec} }},
	{"Payload", func(d *record.Definition) []any { return []any{&d.Payload, &d.Size} }},
	{"StartAt", func(d *record.Definition) []any { return []any{&d.First} }},
	{"EndAt", func(d *record.Definition) []any { return []any{&d.Last} }},
	{"MaxRuns", func(d *record.Definition) []any { return []any{&d.Most} }},
	{"Jitter", func(d *record.Definition) []any { return []any{&d.Jitter} }},
	{"OnOverlap", func(d *record.Definition) []any { return []any{&d.Overlap} }},
	{"OnMissed", func(d *record.Definition) []any { return []any{&d.Missed} }},
	{"ProcessIn", func(d *record.Definition) []any { return []any{&d.Job.DueIn} }},
	{"Retry", func(d *record.Definition) []any { return []any{&d.Job.Retry} }},
	{"Backoff", func(d *record.Definition) []any { return []any{&d.Job.BackoffMin, &d.Job.BackoffMax} }},
	{"Timeout", func(d *record.Definition) []any { return []any{&d.Job.Timeout} }},
	{"Expire", func(d *record.Definition) []any { return []any{&d.Job.ExpireAt, &d.Job.ExpireIn} }},
	{"Retention", func(d *record.Definition) []any { return []any{&d.Job.Retention} }},
	{"Headers", func(d *record.Definition) []any { return []any{&d.Job.Headers} }},
	{"Key", func(d *record.Definition) []any { return []any{&d.Job.Key, &d.Job.HeadStart} }},
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
	add(o.DueAt > 0, func() JobOption { return ProcessAt(msTime(o.DueAt)) })
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
