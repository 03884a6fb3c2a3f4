package delayq

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
)

// A Spec defines the slots of a schedule. Use [Every], [Cron] or [OnCalendar] to create one. Specs
// can be compared.
type Spec struct {
	rule record.Spec
	err  error // an invalid argument that could be detected immediately
}

// Every returns the spec of an interval. There is a slot at every multiple of d since the
// beginning of 1970 UTC by Redis's clock, or since [StartAt] if the schedule has one. So the slots
// depend neither on when the schedule was created nor on restarts. Time zones and daylight saving
// do not affect them.
//
// Each time a server looks, it fires only the latest slot that has come. It fires the slots of a
// topic that are up to 3 ms apart together, when the last of them has come. So if d is below about
// 5 ms plus a round trip, slots are missed even in normal operation. [OverlapAllow] with
// [MissedCatchUp] enqueues jobs for them. Range: 1 ms to 100 years, rounded up to whole
// milliseconds.
func Every(d time.Duration) Spec {
	return Spec{record.Spec{Kind: record.Interval, Every: ceilMS(d)}, positive("Every", d)}
}

// Cron returns the spec of a cron rule in a time zone. Rules are those of crontab(5), as Debian's
// cron reads them. A rule has 5 fields (minute, hour, day of month, month, day of week) or 6
// (second first). A field is *, a value, a range 1-5, a star or a range with a step, */15 or
// 10-50/10, or a list of these with commas. Months and days of the week can also be English names
// of three letters. Sunday is 0 and 7.
//
// If both day fields are restricted, a day needs to match only one of them. A day field that begins
// with * does not count as restricted, and then a day must match both: 0 9 13 * 5 comes every
// Friday and on each 13th, 0 9 1-7 * */7 on the first Sunday of a month.
//
// The words are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, and @every with
// a duration, which is [Every].
//
// Cron refuses rules that crontab(5) accepts but that cannot mean what they say: steps larger than
// their range (*/90 in the minutes would be every hour), ranges that go backwards, and days that no
// month has. The error lists all mistakes: the field, where it is, what is wrong, and what to write
// instead.
//
// The zone is an IANA name, like Europe/Berlin. An empty zone is UTC. "Local" is rejected because
// it differs between machines. The time zone database must be on the machines of the clients and
// servers that use the schedule; the package time/tzdata embeds it.
//
// When clocks are put forward, a slot in the hour that is left out moves to the time of the jump.
// Several such slots become one. When clocks are put back, a slot in the repeated hour comes only
// the first time. So a daily rule has one slot on each local day. If the end of a day is left out,
// as in America/Nuuk, its slot comes at midnight. A day that is left out as a whole has none.
//
// A rule for every hour of the day has a slot whenever the clocks show one of its times, and at no
// other time. So a slot that is left out does not move, and one that is repeated comes again: where
// clocks move by an hour, 45 * * * * comes once an hour all year. Where they move by half an hour
// (Australia/Lord_Howe), the minutes that they show decide. In autumn, 45 * * * * has a slot both
// times that the clocks show 1:45, half an hour apart, and 15 * * * * has none for an hour and a
// half. In spring 15 * * * * has none at 2:15, which the clocks leave out.
func Cron(rule, zone string) Spec {
	if fields := strings.Fields(rule); len(fields) > 1 && fields[0] == "@every" {
		text := strings.Join(fields[1:], " ")
		d, err := time.ParseDuration(text)
		if err != nil {
			at := strings.Index(rule, fields[0]) + len(fields[0])
			at += strings.Index(rule[at:], fields[1])
			err = fmt.Errorf("Cron(%.100q): invalid duration %.60q at byte %d: write it with h, m, s and ms, such as 90m or 1h30m", rule, text, at)
			return Spec{record.Spec{Kind: record.Interval}, errors.Join(err, schedule.CheckZone(zone))}
		}
		spec := Every(d)
		spec.err = errors.Join(spec.err, schedule.CheckZone(zone))
		return spec
	}
	return Spec{record.Spec{Kind: record.Cron, Text: strings.Join(strings.Fields(rule), " "), Zone: zone}, errors.Join(checkCron(rule), schedule.CheckZone(zone))}
}

func checkCron(rule string) error {
	if n := len(rule); n > schedule.MaxCronLen {
		return fmt.Errorf("Cron: rule of %d bytes, at most %d are allowed", n, schedule.MaxCronLen)
	}
	if err := schedule.CheckCron(rule); err != nil {
		return fmt.Errorf("Cron(%q): %w", rule, err)
	}
	return nil
}

// OnCalendar returns the spec of a [Calendar] that servers have registered under this name. Names
// have the same limits as topics. If no server of its topic has the calendar, the schedule waits
// for one.
func OnCalendar(name string) Spec {
	return Spec{record.Spec{Kind: record.Calendar, Text: name}, script.CheckName("calendar", name)}
}

// String describes the spec: "every 10s", "cron 0 9 * * 1-5 Europe/Berlin", "calendar bank-days".
func (s Spec) String() string { return s.rule.String() }

// A ScheduleOption configures a schedule. Every [JobOption] is one too and applies to the jobs of
// the schedule. [ProcessIn] counts from the slot. [ProcessAt], [Replace] and [ReplaceDead] are
// errors, because they make no sense for a schedule.
type ScheduleOption interface{ applySchedule(*definition) }

type scheduleOption func(*definition)

func (f scheduleOption) applySchedule(d *definition) { f(d) }

// StartAt sets the earliest slot. The slots of [Every] count from it. The bounds are those of
// [ProcessAt]. Default: none.
func StartAt(t time.Time) ScheduleOption {
	return scheduleOption(func(d *definition) {
		ms, err := instant("StartAt", t)
		d.fail(err)
		d.First = ms
	})
}

// EndAt sets the latest slot. After it the schedule is ended. It remains visible until
// [Client.Unschedule] removes it. The bounds are those of [ProcessAt]. Default: none.
func EndAt(t time.Time) ScheduleOption {
	return scheduleOption(func(d *definition) {
		ms, err := instant("EndAt", t)
		d.fail(err)
		if err == nil && t.Nanosecond()%int(time.Millisecond) != 0 {
			ms-- // instant rounds up
		}
		d.Last = ms
	})
}

// MaxRuns ends the schedule after n jobs, counted from the last change of the schedule. Retries,
// triggered jobs, and skipped and missed slots do not count. Default: no limit. Range: 1 to
// 2,147,483,647.
func MaxRuns(n int) ScheduleOption {
	return scheduleOption(func(d *definition) {
		if n < 1 || n > maxRetry {
			d.fail(fmt.Errorf("MaxRuns(%d): must be from 1 to %d", n, maxRetry))
		}
		d.Most = int64(n)
	})
}

// Jitter makes each job due up to d later than its slot, so that schedules with the same slots do
// not all run simultaneously. The delay is derived from the name and the slot. It differs from
// slot to slot and is the same on every server. With [ExpireIn], d must be below ExpireIn less
// [ProcessIn], because jobs would otherwise expire before they are due. Default: none. Range: 1 ms
// to 100 years.
func Jitter(d time.Duration) ScheduleOption {
	return scheduleOption(func(def *definition) {
		def.fail(positive("Jitter", d))
		def.Jitter = ceilMS(d)
	})
}

// An OverlapPolicy decides what happens to a slot that comes while the job of the previous slot is
// unfinished: scheduled, ready, running, backing off or snoozed. Triggered jobs are not
// considered. It is an option of [Client.Schedule].
type OverlapPolicy int

// The overlap policies.
const (
	// OverlapSkip skips the slot. It is the default.
	OverlapSkip OverlapPolicy = iota

	// OverlapAllow runs the slot's job beside the previous one.
	OverlapAllow

	// OverlapQueueOne makes the slot wait until the previous job has finished. Its job is then
	// enqueued immediately or at the next tick. Further slots in the meantime are skipped.
	OverlapQueueOne

	// OverlapCancelPrevious cancels the previous job, as [Client.Dequeue] does, and enqueues the
	// slot's job immediately.
	OverlapCancelPrevious
)

// String returns the name of the policy.
func (p OverlapPolicy) String() string { return record.Overlap(p).String() }

func (p OverlapPolicy) applySchedule(d *definition) {
	if !record.Overlap(p).Known() {
		d.fail(fmt.Errorf("%v: no such policy", p))
	}
	d.Overlap = record.Overlap(p)
}

// A MissedPolicy decides what happens to slots that no server could fire in time. This happens
// when no server was running, when Redis was unavailable, or when slots are closer together than a
// server can fire them (see [Every]). A slot is missed if the next one has come in the meantime,
// or if it is more than a minute late. A MissedPolicy is an option of [Client.Schedule].
type MissedPolicy int

// The missed policies besides [MissedCatchUp].
const (
	// MissedRunOnce enqueues one job for all missed slots, the job of the latest one. It is the
	// default.
	MissedRunOnce MissedPolicy = iota

	// MissedSkip enqueues no job for missed slots. The latest slot is still fired if it is at most
	// a minute late.
	MissedSkip
)

// MissedCatchUp runs the latest n missed slots. Older slots remain missed. Range: 1 to 1,000.
//
// With [OverlapAllow] the jobs of these slots are enqueued simultaneously. With
// [OverlapCancelPrevious] only the job of the latest slot is enqueued. With [OverlapSkip] and
// [OverlapQueueOne] these jobs run one after another, each when the previous one has finished.
//
// The overlap policy decides about slots that come due before the last of these jobs is enqueued,
// as if one job had been running all the time. They are skipped, except that with OverlapQueueOne
// the first of them waits. Catching up therefore ends even if a run takes longer than the interval.
func MissedCatchUp(n int) MissedPolicy { return MissedPolicy(record.MissedCatchUp(n)) }

// String returns the policy as it is written in Go: MissedRunOnce, MissedSkip, MissedCatchUp(3).
func (p MissedPolicy) String() string { return record.Missed(p).String() }

func (p MissedPolicy) applySchedule(d *definition) {
	if !record.Missed(p).Known() {
		d.fail(fmt.Errorf("%v: no such policy; MissedCatchUp takes from 1 to %d slots", p, record.MaxCatchUp))
	}
	d.Missed = record.Missed(p)
}

// IfAbsent makes [Client.Schedule] create the schedule only if there is none with this name. An
// existing one does not change, whatever its definition. So old and new versions of a program that
// run side by side do not keep changing it back.
func IfAbsent() ScheduleOption {
	return scheduleOption(func(d *definition) { d.onto = ontoNothing })
}

// DiscardEdits makes [Client.Schedule] discard the changes made by [Client.EditSchedule]. Without
// it they remain.
func DiscardEdits() ScheduleOption {
	return scheduleOption(func(d *definition) { d.onto = ontoEdited })
}

// RunOnStart makes the present time, by Redis's clock, the first slot of a schedule that this call
// of [Client.Schedule] creates or changes. So a program that sets its schedules when it starts gets
// the first run at once, and not after the first interval. It gets one run for each version of the
// schedule, however many processes set it. A call that changes nothing runs nothing, so a restart
// causes no run. The slots that follow are those of the spec.
//
// The slot is like any other: it counts towards [MaxRuns], and the [OverlapPolicy] and the
// [MissedPolicy] apply. A paused schedule does not run. RunOnStart is no part of the definition, so
// it alone changes no schedule. While old and new programs set different versions in turn, each
// change causes a run, unless they use [IfAbsent]. To run a job at each start of a process, call
// [Client.Trigger]. To run it once for a fleet that starts together, call [Client.Enqueue] with an
// ID. RunOnStart is an error together with [StartAt], and in EditSchedule.
func RunOnStart() ScheduleOption {
	return scheduleOption(func(d *definition) { d.start = true })
}

// An onto says what a definition can replace.
type onto int

const (
	ontoGiven   onto = iota // what Schedule gave: edits remain
	ontoNothing             // nothing: IfAbsent
	ontoEdited              // edits too: DiscardEdits
)

// A Calendar computes arbitrary slots, like the working days of a bank. Next returns the first
// slot after a time, or the zero time if there is none. Slots are rounded up to the millisecond.
//
// Next must depend only on its argument, return the same on every server, be fast, and be safe for
// concurrent use. The topic waits for the call. A call that takes longer than a second is logged.
// Next is then not called again for a minute, and not before that call has returned.
//
// The schedules of package github.com/robfig/cron are Calendars.
type Calendar interface {
	Next(after time.Time) time.Time
}

// Calendar registers a calendar for schedules with [OnCalendar] in all topics of this server. A
// second calendar with the same name, an invalid name or a nil calendar makes [Server.Run] return
// an error. Calls after Run has started are ignored and logged as errors.
func (s *Server) Calendar(name string, c Calendar) {
	if !s.made("calendar") {
		return
	}
	var errs []error
	if err := script.CheckName("calendar", name); err != nil {
		errs = append(errs, err)
	}
	if contain.IsNil(c) {
		errs = append(errs, fmt.Errorf("calendar %q is nil", name))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calendars[name] != nil {
		errs = append(errs, fmt.Errorf("calendar %q already registered", name))
	}
	switch {
	case s.used:
		s.log.Error("calendar not registered", "err", errors.Join(append(errs, errTooLate)...))
	case len(errs) > 0:
		s.errs = append(s.errs, invalid(errs))
	default:
		s.calendars[name] = &calendar{inner: c}
	}
}

// A calendar wraps a user's Calendar on a server. It is called on a goroutine of its own, because
// the timer of the topic waits for it.
type calendar struct {
	inner Calendar

	mu    sync.Mutex
	asked int       // calls that have not returned
	stuck bool      // one of these calls took too long
	until time.Time // no call before this time
}

const (
	calendarPatience = time.Second // how long a calendar can take to answer
	calendarRest     = time.Minute // how long a slow calendar is not called again
)

var errStuck = fmt.Errorf("no answer within %v; the next call follows after %v, and not before this one has returned", calendarPatience, calendarRest)

// Next returns the result of the user's Next if the calendar answers in time.
func (c *calendar) Next(after time.Time) (time.Time, error) {
	c.mu.Lock()
	if c.stuck || time.Now().Before(c.until) {
		c.mu.Unlock()
		return time.Time{}, errStuck
	}
	c.asked++
	c.mu.Unlock()
	type answer struct {
		at  time.Time
		err error
	}
	answers := make(chan answer, 1)
	contain.Launch(nil, func() {
		at := c.inner.Next(after)
		c.returned()
		answers <- answer{at: at}
	}, func(why *contain.Crash) {
		c.returned()
		answers <- answer{err: why}
	})
	patience := time.NewTimer(calendarPatience)
	defer patience.Stop()
	select {
	case a := <-answers:
		return a.at, a.err
	case <-patience.C:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stuck, c.until = c.asked > 0, time.Now().Add(calendarRest)
		return time.Time{}, errStuck
	}
}

func (c *calendar) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked--
	c.stuck = c.stuck && c.asked > 0
}

// A definition is what a schedule does: what Redis holds of it, and what [Client.Schedule] is given
// besides.
type definition struct {
	record.Definition
	specErr error
	replace commit.Replacing
	unless  bool  // UnlessRunning is given
	window  int64 // of UniqueFor
	errs    []error
	onto    onto
	start   bool // RunOnStart

	next schedule.Rhythm
}

// set applies an option of jobs to the definition.
func (d *definition) set(opt func(*jobOptions)) {
	o := jobOptions{Options: d.Job, replace: d.replace, unless: d.unless, window: d.window, errs: d.errs}
	opt(&o)
	d.Job, d.replace, d.unless, d.window, d.errs = o.Options, o.replace, o.unless, o.window, o.errs
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
	if d.Job.DueAt > 0 && d.Job.Plan == nil {
		d.fail(errors.New("ProcessAt: the jobs of a schedule are due at their slots; StartAt sets the first"))
	}
	if d.replace.Merges() {
		d.fail(errors.New("Debounce and Latest: each job of a schedule has a new ID"))
	} else if d.replace != commit.ReplaceNone || d.unless {
		d.fail(errors.New("Replace, UnlessRunning and ReplaceDead: each job of a schedule has a new ID"))
	}
	if d.window > 0 {
		d.fail(errors.New("UniqueFor: each job of a schedule has a new ID"))
	}
	if d.Job.Plan != nil {
		d.fail(errors.New("ProcessAtEach: the jobs of a schedule are due at their slots"))
		d.Job.Plan = nil
	}
	if d.start && d.First > 0 {
		d.fail(errors.New("RunOnStart: not with StartAt, which sets the earliest slot"))
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

// slotWord returns the first slot after now, as the schedule_set script reads it.
func (d *definition) slotWord(now int64) (string, error) {
	slot, err := d.firstSlot(now)
	if d.start {
		return "+", err
	}
	return strconv.FormatInt(slot, 10), err
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
