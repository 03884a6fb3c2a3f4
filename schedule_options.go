package delayq

import (
	"fmt"
	"time"

	"github.com/delayq/delayq/internal/record"
)

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

// An onto says what a definition can replace.
type onto int

const (
	ontoGiven   onto = iota // what Schedule gave: edits remain
	ontoNothing             // nothing: IfAbsent
	ontoEdited              // edits too: DiscardEdits
)
