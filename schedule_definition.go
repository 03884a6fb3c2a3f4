package delayq

import (
	"errors"
	"fmt"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
)

// A definition is what a schedule does: what Redis holds of it, and what [Client.Schedule] is given
// besides.
type definition struct {
	record.Definition
	specErr error
	replace commit.Replacing
	errs    []error
	onto    onto

	next schedule.Rhythm
}

// set applies an option of jobs to the definition.
func (d *definition) set(opt func(*jobOptions)) {
	o := jobOptions{Options: d.Job, replace: d.replace, errs: d.errs}
	opt(&o)
	d.Job, d.replace, d.errs = o.Options, o.replace, o.errs
}

func (d *definition) fail(err error) {
	d.set(func(o *jobOptions) { o.fail(err) })
}

// decodeDefinition decodes a whole definition.
func decodeDefinition(raw string) (*definition, error) {
	stored, err := record.DecodeDefinition(raw)
	if err != nil {
		return nil, err
	}
	return &definition{Definition: *stored}, nil
}

// compile computes the rhythm of the definition. That of a calendar is only known to servers.
func (d *definition) compile() (err error) {
	if d.specErr != nil {
		return d.specErr
	}
	d.next, err = schedule.NewRhythm(&d.Definition, nil)
	return err
}

// validate returns the errors of the whole definition.
func (d *definition) validate(maxPayload int) error {
	if d.Job.DueAt > 0 {
		d.fail(errors.New("ProcessAt: the jobs of a schedule are due at their slots; StartAt sets the first"))
	}
	if d.replace != commit.ReplaceNone {
		d.fail(errors.New("Replace and ReplaceDead: each job of a schedule has a new ID"))
	}
	if d.Last > 0 && d.First > d.Last {
		d.fail(errors.New("EndAt is before StartAt"))
	}
	if ms := time.Millisecond; d.Jitter > 0 && d.Job.DueIn <= d.Job.ExpireIn && d.Job.DueIn+d.Jitter >= d.Job.ExpireIn && d.Job.ExpireIn > 0 {
		d.fail(fmt.Errorf("Jitter(%v): some jobs would expire before they are due; with ExpireIn of %v and ProcessIn of %v it must be below %v",
			time.Duration(d.Jitter)*ms, time.Duration(d.Job.ExpireIn)*ms, time.Duration(d.Job.DueIn)*ms, time.Duration(d.Job.ExpireIn-d.Job.DueIn)*ms))
	}
	if n := len(d.Payload); n > maxPayload {
		d.fail(fmt.Errorf("payload of %d bytes, at most %d are allowed", n, maxPayload))
	}
	if err := d.compile(); err != nil && !errors.Is(err, schedule.ErrNoCalendar) {
		d.fail(err)
	}
	o := jobOptions{Options: d.Job, errs: d.errs}
	return o.validate()
}

// firstSlot returns the first slot after now. For a calendar it returns 0, because only servers
// know calendars.
func (d *definition) firstSlot(now int64) (slot int64, err error) {
	if d.Spec.Kind == record.Calendar {
		return 0, nil
	}
	slot, err = d.next(now)
	if err == nil && slot == 0 {
		err = fmt.Errorf("%w: %v has no future slots", ErrInvalid, d.Spec)
	}
	return slot, err
}

// newDefinition returns the definition for the arguments of Schedule.
func newDefinition(spec Spec, payload []byte, opts []ScheduleOption) *definition {
	d := &definition{specErr: spec.err}
	d.Spec, d.Job, d.Payload, d.Size = spec.rule, defaultJob.Options, payload, len(payload)
	for _, opt := range opts {
		if opt == nil {
			d.fail(errors.New("an option is nil"))
			continue
		}
		opt.applySchedule(d)
	}
	return d
}
