package delayq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A ScheduleDefinition is what [Client.EditSchedule] changes: the arguments of [Client.Schedule]
// that define a schedule.
type ScheduleDefinition struct {
	Spec    Spec
	Payload []byte
	// Options holds the options that were given. If two of them contradict each other, the last
	// one wins.
	Options []ScheduleOption
	// EditedBy names who makes the edit, in at most 1 KiB. It is empty before. Afterwards
	// [ScheduleInfo.EditedBy] reports it.
	EditedBy string
}

// EditSchedule changes parts of a schedule. edit receives the definition and changes it in place.
// It can be called several times, because somebody else may change the schedule at the same time.
//
// The change has all effects of a change by [Client.Schedule]. In addition, the changed parts are
// marked and listed in [ScheduleInfo.Edited]. From then on Schedule leaves them as they are, unless
// [DiscardEdits] is given. So a program that starts does not undo the changes of an operator. If
// edit changes nothing, nothing is written.
//
// EditSchedule returns [ErrNotFound] if there is no such schedule, [ErrInvalid] if the new
// definition is invalid, the error of edit, [ErrUnknownOutcome], or an error of
// Redis.
func (c *Client) EditSchedule(ctx context.Context, topic, name string, edit func(*ScheduleDefinition) error) error {
	err := c.editSchedule(ctx, topic, name, edit)
	return located{call: "edit", topic: topic, schedule: name}.at(err)
}

func (c *Client) editSchedule(ctx context.Context, topic, name string, edit func(*ScheduleDefinition) error) error {
	err := c.validateSchedule(ctx, topic, name)
	if edit == nil {
		err = errors.Join(err, fmt.Errorf("%w: edit is nil", ErrInvalid))
	}
	if err != nil {
		return err
	}
	return c.define(ctx, topic, name, func(old *definition, bad error, now int64) (*definition, error) {
		if bad != nil {
			return nil, bad
		}
		def := ScheduleDefinition{Spec: old.spec, Payload: slices.Clone(old.payload), Options: old.options()}
		if err := edit(&def); err != nil {
			return nil, err
		}
		d := newDefinition(def.Spec, def.Payload, def.Options)
		if d.onto != ontoGiven {
			d.job.fail(errors.New("IfAbsent and DiscardEdits are options of Schedule only"))
		}
		if by := len(def.EditedBy); by > maxIDLen {
			d.job.fail(fmt.Errorf("EditedBy of %d bytes, at most %d are allowed", by, maxIDLen))
		}
		changed := d.differences(old)
		if err := d.validate(max(c.o.maxPayload, len(old.payload))); err != nil || len(changed) == 0 {
			return nil, err
		}
		d.edit = old.edit.and(now, def.EditedBy, changed)
		return d, nil
	})
}

// An edit says which parts of a definition EditSchedule has changed, and who changed it last. The
// zero edit means none.
type edit struct {
	at    int64 // Unix ms
	by    string
	parts string // names of parts, separated by spaces
}

func (e edit) names() []string { return strings.Fields(e.parts) }

// and returns the edit that follows e.
func (e edit) and(at int64, by string, changed []string) edit {
	names := append(e.names(), changed...)
	slices.Sort(names)
	return edit{at, by, strings.Join(slices.Compact(names), " ")}
}

// parts lists the parts of a definition that can be edited.
var parts = []struct {
	name   string
	fields func(*definition) []any // pointers
}{
	{"Spec", func(d *definition) []any { return []any{&d.spec} }},
	{"Payload", func(d *definition) []any { return []any{&d.payload, &d.size} }},
	{"StartAt", func(d *definition) []any { return []any{&d.first} }},
	{"EndAt", func(d *definition) []any { return []any{&d.last} }},
	{"MaxRuns", func(d *definition) []any { return []any{&d.most} }},
	{"Jitter", func(d *definition) []any { return []any{&d.jitter} }},
	{"OnOverlap", func(d *definition) []any { return []any{&d.overlap} }},
	{"OnMissed", func(d *definition) []any { return []any{&d.missed} }},
	{"ProcessIn", func(d *definition) []any { return []any{&d.job.dueIn} }},
	{"Retry", func(d *definition) []any { return []any{&d.job.retry} }},
	{"Backoff", func(d *definition) []any { return []any{&d.job.backoffMin, &d.job.backoffMax} }},
	{"Timeout", func(d *definition) []any { return []any{&d.job.timeout} }},
	{"Expire", func(d *definition) []any { return []any{&d.job.expireAt, &d.job.expireIn} }},
	{"Retention", func(d *definition) []any { return []any{&d.job.retention} }},
	{"Headers", func(d *definition) []any { return []any{&d.job.headers} }},
}

// differences returns the names of the parts in which two definitions differ.
func (d *definition) differences(from *definition) (names []string) {
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

// keep copies the edited parts of another definition.
func (d *definition) keep(from *definition) {
	d.edit = from.edit
	for _, part := range parts {
		if !slices.Contains(from.edit.names(), part.name) {
			continue
		}
		to := part.fields(d)
		for i, field := range part.fields(from) {
			reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(field).Elem())
		}
	}
}

// options returns the options that produce d, besides its spec and payload.
func (d *definition) options() (list []ScheduleOption) {
	if d.first > 0 {
		list = append(list, StartAt(msTime(d.first)))
	}
	if d.last > 0 {
		list = append(list, EndAt(msTime(d.last)))
	}
	if d.most > 0 {
		list = append(list, MaxRuns(int(d.most)))
	}
	if d.jitter > 0 {
		list = append(list, Jitter(inMS(d.jitter)))
	}
	list = append(list, d.overlap, d.missed)
	for _, opt := range d.job.options() {
		list = append(list, opt)
	}
	return list
}

// options returns the options that were given to produce o.
func (o *jobOptions) options() (list []JobOption) {
	add := func(given bool, opt func() JobOption) {
		if given {
			list = append(list, opt())
		}
	}
	add(o.dueAt > 0, func() JobOption { return ProcessAt(msTime(o.dueAt)) })
	add(o.dueAt == 0 && o.dueIn > 0, func() JobOption { return ProcessIn(inMS(o.dueIn)) })
	add(o.retry != defaultJob.retry, func() JobOption { return Retry(o.retry) })
	add(o.backoffMin != defaultJob.backoffMin || o.backoffMax != defaultJob.backoffMax, func() JobOption {
		return Backoff(inMS(o.backoffMin), inMS(o.backoffMax))
	})
	add(o.timeout > 0, func() JobOption { return Timeout(inMS(o.timeout)) })
	add(o.expireIn > 0, func() JobOption { return ExpireIn(inMS(o.expireIn)) })
	add(o.expireIn == 0 && o.expireAt > 0, func() JobOption { return ExpireAt(msTime(o.expireAt)) })
	add(o.retention > 0, func() JobOption { return Retention(inMS(o.retention)) })
	for _, key := range slices.Sorted(maps.Keys(o.headers)) {
		list = append(list, Header(key, o.headers[key]))
	}
	return list
}

// inMS converts milliseconds to a duration.
func inMS(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
