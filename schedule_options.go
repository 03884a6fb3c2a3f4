package delayq

import (
	"errors"
	"fmt"
	"time"
)

// A ScheduleOption configures a schedule. Every JobOption is one too, for the jobs of the schedule; only ProcessAt, Replace and ReplaceDead make no sense
// there and are errors. ProcessIn counts from the slot.
type ScheduleOption interface{ applySchedule(*definition) }

type scheduleOption func(*definition)

func (f scheduleOption) applySchedule(d *definition) { f(d) }

func (f JobOption) applySchedule(d *definition) {
	if f == nil {
		d.job.fail(errors.New("a job option is nil"))
		return
	}
	f(&d.job)
}

// StartAt sets the first time a slot may be at. The slots of Every count from it. Bounds as for ProcessAt; default: none.
func StartAt(t time.Time) ScheduleOption {
	return scheduleOption(func(d *definition) {
		ms, err := instant("StartAt", t)
		d.job.fail(err)
		d.first = ms
	})
}

// EndAt sets the last time a slot may be at. Then the schedule has ended, and stays to be seen until Unschedule. Bounds as for ProcessAt;
// default: none.
func EndAt(t time.Time) ScheduleOption {
	return scheduleOption(func(d *definition) {
		ms, err := instant("EndAt", t)
		d.job.fail(err)
		if err == nil && t.Nanosecond()%int(time.Millisecond) != 0 {
			ms-- // instant rounds up
		}
		d.last = ms
	})
}

// MaxRuns ends the schedule after n jobs, counted from the last change of the schedule; retries, triggered jobs, skipped and missed slots do not
// count. From 1 to 2,147,483,647; default: no limit.
func MaxRuns(n int) ScheduleOption {
	return scheduleOption(func(d *definition) {
		if n < 1 || n > maxRetry {
			d.job.fail(fmt.Errorf("MaxRuns(%d): must be from 1 to %d", n, maxRetry))
		}
		d.most = int64(n)
	})
}

// Jitter makes each job due by up to d later than its slot, so that schedules of the same rhythm do not all run at once. How much later follows
// from name and slot, so it differs from slot to slot and is the same on every server. From 1 ms to 100 years, and with ExpireIn below that, less
// ProcessIn: else jobs would expire before they are due. Default: none.
func Jitter(d time.Duration) ScheduleOption {
	return scheduleOption(func(def *definition) {
		def.job.fail(positive("Jitter", d))
		def.jitter = ceilMS(d)
	})
}

// An OverlapPolicy says what becomes of a slot while the job of the slot before is still going: its record is there and it is not dead, so it
// waits, runs, backs off or snoozes. It is an option of Schedule. Triggered jobs count for nothing here.
type OverlapPolicy int

// The overlap policies.
const (
	SkipOverlap    OverlapPolicy = iota // the slot is skipped; the default
	Allow                               // its job runs beside the other
	QueueOne                            // its job comes when the other has ended, at once or at the tick; further slots until then are skipped
	CancelPrevious                      // the other is cancelled, as by Dequeue, and the slot's job comes at once
)

var overlapNames = []string{"SkipOverlap", "Allow", "QueueOne", "CancelPrevious"}

func (p OverlapPolicy) known() bool { return p >= 0 && int(p) < len(overlapNames) }

// String is the policy's name.
func (p OverlapPolicy) String() string {
	if p.known() {
		return overlapNames[p]
	}
	return fmt.Sprintf("OverlapPolicy(%d)", int(p))
}

func (p OverlapPolicy) applySchedule(d *definition) {
	if !p.known() {
		d.job.fail(fmt.Errorf("%v: no such policy", p))
	}
	d.overlap = p
}

// A MissedPolicy says what becomes of slots that nobody could fire in time: because no server was up, because Redis was away, or because they are
// closer together than the looks of a server (see [Every]). A slot is missed if the one after it has come meanwhile, or if it is more than a
// minute late. It is an option of Schedule.
type MissedPolicy int

// The missed policies, beside CatchUp.
const (
	RunOnce MissedPolicy = iota // one job for all of them, that of the latest slot; the default
	Skip                        // none; a slot that is late by up to a minute and is the latest is fired all the same
	catchUp
	missedKinds = 4 // CatchUp is a number times this, and catchUp
)

// maxCatchUp is the most slots that CatchUp makes up for.
const maxCatchUp = 1000

// CatchUp makes up for the latest slots that were missed, at most so many, from 1 to 1,000; older ones stay missed. With Allow their jobs come
// all at once; with CancelPrevious only that of the latest slot comes. With SkipOverlap and QueueOne they come one after the other, each when the
// one before has ended; slots that fall due before the job of the last one has been made are up to the overlap policy, as if one job had been going
// all the time: they are skipped, but for the first of them with QueueOne. So it comes to an end also if a run takes longer than the interval.
func CatchUp(most int) MissedPolicy { return MissedPolicy(most)*missedKinds + catchUp }

func (p MissedPolicy) kind() MissedPolicy { return p & (missedKinds - 1) }

func (p MissedPolicy) most() int { return int(p >> 2) }

func (p MissedPolicy) known() bool {
	return p == RunOnce || p == Skip || p.kind() == catchUp && p.most() >= 1 && p.most() <= maxCatchUp
}

// String is the policy as it is written: RunOnce, Skip, CatchUp(3).
func (p MissedPolicy) String() string {
	switch {
	case p == RunOnce:
		return "RunOnce"
	case p == Skip:
		return "Skip"
	case p.kind() == catchUp:
		return fmt.Sprintf("CatchUp(%d)", p.most())
	}
	return fmt.Sprintf("MissedPolicy(%d)", int(p))
}

func (p MissedPolicy) applySchedule(d *definition) {
	if !p.known() {
		d.job.fail(fmt.Errorf("%v: no such policy; CatchUp takes from 1 to %d slots", p, maxCatchUp))
	}
	d.missed = p
}

// IfAbsent makes Schedule create the schedule if there is none of this name, and leave one that is there as it is,
// whatever it says. So old and new versions of a program that run side by side do not change it to and fro.
func IfAbsent() ScheduleOption {
	return scheduleOption(func(d *definition) { d.onto = ontoNothing })
}

// Overwrite makes Schedule put aside what [Client.EditSchedule] has changed. Without it an edit stays.
func Overwrite() ScheduleOption {
	return scheduleOption(func(d *definition) { d.onto = ontoEdited })
}

// An onto says in the place of what a definition may be put.
type onto int

const (
	ontoGiven   onto = iota // of what Schedule gave: edits stay
	ontoNothing             // IfAbsent
	ontoEdited              // Overwrite
)
