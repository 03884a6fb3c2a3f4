// When a job is due, what becomes of one with its ID, and for how long its ID is closed. The moving
// itself is in internal/serve/promote.go and lua/promote.lua.

package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
)

// A DueOption is the [JobOption] that sets the due time: [ProcessAt] or [ProcessIn].
type DueOption func(*jobOptions)

func (f DueOption) applyJob(o *jobOptions) {
	if f == nil {
		o.fail(errNilJobOption)
		return
	}
	f(o)
}

func (f DueOption) applySchedule(d *definition) { d.set(f.applyJob) }

// ProcessAt makes the job due at t by Redis's clock, rounded up to the millisecond. A time in the
// past makes it due immediately. The zero time is an error, because it is hardly ever intended.
// Range: 1970 to 2286.
func ProcessAt(t time.Time) DueOption {
	return func(o *jobOptions) {
		ms, err := instant("ProcessAt", t)
		o.fail(err)
		o.DueAt, o.DueIn, o.due = ms, 0, true
	}
}

// ProcessIn makes the job due d after Redis has stored it, by Redis's clock, rounded up to the
// millisecond. The clock of the caller does not matter. Zero or a negative d makes the job due
// immediately. A d below 1 ms is rejected, because ProcessIn(30) would be 30 nanoseconds. If the
// delay is the difference of two times and can get that small, use [ProcessAt]. Default: due
// immediately. Range: 1 ms to 100 years.
func ProcessIn(d time.Duration) DueOption {
	return func(o *jobOptions) {
		o.fail(notTiny("ProcessIn", d))
		o.fail(atMost("ProcessIn", d))
		o.DueAt, o.DueIn, o.due = 0, max(0, ceilMS(d)), true
	}
}

// ProcessAtEach makes the job a plan: it runs at each of these times, by Redis's clock, one after
// the other. Each time is a stage, and [Job.Stage] tells the handler which one it is. All stages
// are one job with one ID: one [Client.Dequeue] cancels those that are left, [Replace] replaces
// them, and [JobInfo.Plan] shows them.
//
//	delayq.ProcessAtEach(day(23), day(28), day(29), day(30)) // three reminders, and the end
//
// When a stage has succeeded, the next one is stored in the same step, with the same payload,
// options and key. So a crash skips no stage, and a stage does not run before the previous one has
// ended. If its time has passed by then, it runs at once. Each stage has the full number of retries
// and a nonce of its own.
//
// A stage that fails is retried. It fails for good if no retry is left, or by [Permanent]. Then the
// next stage still comes at its time: a reminder that cannot be sent does not keep the last stage
// from running. The failure is logged as an error, and JobInfo.Plan shows it. When all stages have
// had their turn and some have failed, the plan is dead, not done, so that somebody looks at it.
// [Client.Revive] then runs those that have failed, in order. A last stage that fails for good
// makes the plan dead at once.
//
// [Snooze], [Client.Reschedule] and [Again] move the present stage, but not those after it.
// [Client.Bury] stops the plan, and Revive continues it at the present stage. A priority of
// [Client.SetPriority] holds for the present stage. [Retention] keeps the run of the last stage.
// ProcessAtEach is an error together with [ProcessAt], [ProcessIn], [ExpireAt] or [ExpireIn], for a
// schedule and its jobs, and in [Defaults].
//
// Servers of v0.1.0 leave plans alone, so update the servers before the first client uses
// ProcessAtEach. docs/howto/plans.md has more. Range: 1 to 100 times, each as for ProcessAt and at
// least 1 ms after the one before it.
func ProcessAtEach(times ...time.Time) JobOption {
	return jobOption(func(o *jobOptions) {
		if n := len(times); n < 1 || n > record.MaxStages {
			o.fail(fmt.Errorf("ProcessAtEach: %d times, must be 1 to %d", n, record.MaxStages))
			return
		}
		p := &record.Plan{Times: make([]int64, len(times))}
		for i, t := range times {
			ms, err := instant(fmt.Sprintf("ProcessAtEach: time %d", i+1), t)
			if err == nil && i > 0 && ms <= p.Times[i-1] && p.Times[i-1] > 0 {
				err = fmt.Errorf("ProcessAtEach: time %d, %v, must be at least 1ms after time %d, %v", i+1, t, i, times[i-1])
			}
			o.fail(err)
			p.Times[i] = ms
		}
		planOption(p, p.Times[0]).applyJob(o)
	})
}

// planOption gives a job a plan whose present stage is due at a time.
func planOption(p *record.Plan, due int64) JobOption {
	return jobOption(func(o *jobOptions) { o.Plan, o.DueAt, o.DueIn = p, due, 0 })
}

// PlanOption is ProcessAtEach for a copy of a plan, whose present stage is due at a time; zero: at
// once.
func (friends) PlanOption(p *record.Plan, due time.Time) (JobOption, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	ms := int64(0)
	if !due.IsZero() {
		ms = due.UnixMilli()
	}
	return planOption(p.Again(), ms), nil
}

// when returns the time argument of enqueue.lua: what is replaced, the due time, and the expiry if
// only the script can know whether the job would expire before it is due.
func (o *jobOptions) when() string {
	when := string(o.replace)
	if o.replace == commit.ReplaceDebounce {
		when += instantOr(0, o.wait) + "/" + strconv.FormatInt(o.longest, 10)
	} else {
		when += instantOr(o.DueAt, o.DueIn)
	}
	if o.ExpireAt > 0 || o.ExpireIn > 0 && (o.DueAt > 0 || o.replace.Merges()) {
		when += " " + instantOr(o.ExpireAt, o.ExpireIn)
	}
	return when
}

// instantOr returns a time as the scripts read it: at in Unix ms, or in ms from now if at is 0.
func instantOr(at, in int64) string {
	if at > 0 {
		return strconv.FormatInt(at, 10)
	}
	return "+" + strconv.FormatInt(in, 10)
}

// hopeless returns the error of a job that would expire before it is due.
func hopeless(expires, due int64) error {
	return fmt.Errorf("%w: expires at %v and would be due at %v: it could never run", ErrInvalid, msTime(expires).UTC(), msTime(due).UTC())
}

// Reschedule gives a scheduled (first time, backing off or snoozed) or ready job another due time,
// by [ProcessAt] or [ProcessIn]. Reschedule returns [ErrRunning] if the job is running, [ErrDead]
// if it is dead, and [ErrNotFound] if there is no such job. If the job would expire by the new
// time, Reschedule returns [ErrInvalid] and changes nothing. With [IfUnchanged] it can return
// [ErrChanged].
func (c *Client) Reschedule(ctx context.Context, topic, id string, due DueOption, opts ...EditOption) error {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Reschedule.Name, Topic: topic, ID: id, Jobs: 1})
	o := &commit.Op{Kind: commit.Reschedule, Topic: topic, ID: id}
	var err error
	o.Move, err = moveTo(due)
	if err = errors.Join(err, newEdit(opts).guard(o)); err != nil {
		return end.err(o.Place().At(errors.Join(c.validate(ctx, topic, id), err)))
	}
	return end.err(c.audit(ctx, o, c.do(ctx, o)))
}

// moveTo returns what a reschedule changes.
func moveTo(due DueOption) (*commit.Move, error) {
	opts, err := newJobOptions([]JobOption{due})
	if err != nil {
		return nil, err
	}
	return &commit.Move{When: opts.when(), Due: opts.Options}, nil
}

// Debounce makes one job of many calls of [Client.Enqueue] with the same ID. The job runs once no
// call has come for wait, with the payload and the options of the last call. A burst of calls puts
// it off by at most longest, counted from the first call. So under endless calls it runs once per
// longest. All times are by Redis's clock, and each call counts with its own wait and longest. The
// resulting due time is [Job.Due].
//
// What a call does depends on the job that has the ID:
//
//   - If there is none, the job is stored, and a burst begins. The same holds if there is a dead
//     one, which is replaced.
//   - A scheduled job takes the payload and is put off.
//   - A job that is backing off or snoozed takes the payload too. It keeps its attempts, its errors
//     and its snoozes, and is not due earlier than before.
//   - A ready job takes the payload, and keeps its place.
//   - A running job continues. The new job is its successor: it is scheduled as soon as the run has
//     ended in whatever way, and is put off by its own burst. A running job has at most one
//     successor, and another call replaces it. If the run fails and is retried, or snoozes, the job
//     takes the payload of its successor instead. If its lease lapses, or if it is given back, it
//     runs again as it was, and the successor goes on waiting.
//
// If the handler returns [Again], the successor takes the place of the job that Again enqueues, and
// the run counts as acked. If the run buries the job, hooks are called for that, but no dead job
// stays.
//
// A burst ends when the job runs, is retried, is snoozed, or is moved by [Client.Reschedule] or
// [Client.Revive]. [Client.Dequeue] cancels a job and its successor, and Replace replaces both. If
// a call gives another [Key], the job moves to that key. An expiry counts from the call that gives
// it. Debounce sets the due time, so ProcessAt and ProcessIn beside it are errors. The ID must be
// given. Debounce is an error for a schedule, in [Again] and in [Defaults].
//
// A call that stores no new job counts as debounced, and not as enqueued. An [EnqueuedHook] is
// called for each call. Servers and clients of v0.1.0 do not know successors: docs/releases.md says
// what that means during an upgrade. Range: wait from 1 ms to 24 hours, longest from wait to 30
// days.
func Debounce(wait, longest time.Duration) JobOption {
	return jobOption(func(o *jobOptions) {
		if wait < time.Millisecond || wait > mostDebounce || longest < wait || longest > mostBurst {
			o.fail(fmt.Errorf("Debounce(%v, %v): must be 1ms ≤ wait ≤ %v and wait ≤ longest ≤ %v", wait, longest, mostDebounce, mostBurst))
		}
		o.replace, o.wait, o.longest = commit.ReplaceDebounce, ceilMS(wait), ceilMS(longest)
	})
}

// The bounds of Debounce.
const (
	mostDebounce = 24 * time.Hour
	mostBurst    = 30 * 24 * time.Hour
)

// Latest makes the last payload win and keeps the first due time: a waiting job takes the payload
// and the options of the new one, and stays due when it was. Others call this a throttle with a
// trailing edge: with ProcessIn(d), a job runs at most once per d, with the newest payload. A
// running job gets the new one as its successor. The first call during the run says when that is
// due. In everything else, Latest does what [Debounce] does.
func Latest() JobOption {
	return jobOption(func(o *jobOptions) { o.replace = commit.ReplaceLatest })
}

// needsID returns the error of a job whose ID must not be generated.
func (o *jobOptions) needsID() error {
	switch {
	case o.window > 0:
		return fmt.Errorf("%w: UniqueFor: the job needs an ID", ErrInvalid)
	case o.replace == commit.ReplaceDebounce:
		return fmt.Errorf("%w: Debounce: the job needs an ID", ErrInvalid)
	case o.replace == commit.ReplaceLatest:
		return fmt.Errorf("%w: Latest: the job needs an ID", ErrInvalid)
	}
	return nil
}

// settleReplacing makes one of the options that say what becomes of a job with the ID, and sets the
// due time of Debounce. It returns the complaints.
func (o *jobOptions) settleReplacing() {
	if o.unless && o.replace != commit.ReplaceAny && o.replace != commit.ReplaceWaiting {
		o.fail(errors.New("UnlessRunning: must be given with Replace"))
	} else if o.unless {
		o.replace = commit.ReplaceWaiting
	}
	if o.replace != commit.ReplaceDebounce {
		return
	}
	if o.DueAt > 0 || o.DueIn > 0 && o.DueIn != o.wait {
		o.fail(errors.New("Debounce: sets the due time, so neither ProcessAt nor ProcessIn can be given"))
	}
	o.DueAt, o.DueIn = 0, o.wait
}

// onlyEnqueue returns an error that says why if an option is given that only an enqueue can have.
func (o *jobOptions) onlyEnqueue(why string) error {
	switch {
	case o.window > 0:
		return errors.New("UniqueFor: " + why)
	case o.replace == commit.ReplaceDebounce:
		return errors.New("Debounce: " + why)
	case o.replace == commit.ReplaceLatest:
		return errors.New("Latest: " + why)
	}
	return nil
}

// noteMoved notes the present due time of a job, and why it is due then.
func (info *JobInfo) noteMoved(m *record.Moved) {
	info.Due, info.DueReason = msTime(m.Due), dueReason(m.Why)
	if m.First > 0 {
		info.BurstBegan, info.BurstEnds = msTime(m.First), msTime(m.Last)
	}
}

// UniqueFor closes the ID of the job for d from the moment in which Redis stores it, by Redis's
// clock: no other job with this ID is stored within d, neither while the job is unfinished nor
// after it has completed. A second [Client.Enqueue] returns [ErrDuplicate], with the state of the
// job while it is unfinished, and with [StateTomb] afterwards. So the job is run once within d,
// however often it is enqueued. It is still run at least once: after a failure or a lapsed lease it
// runs again.
//
// The ID must be given. Within d, [Replace] and [ReplaceDead] can replace the job while it is
// unfinished, but not after it has completed. Cancelling the job, or deleting it when it is done,
// leaves the ID closed: pass [Tombstone] of 0 to [Client.Dequeue] to free it. [Again], retries,
// [Client.Revive] and schedules do not ask whether an ID is closed. UniqueFor is an error for a
// schedule, in Again and in [Defaults].
//
// What closes an ID is called a tomb. Clients of v0.1.0 do not look at tombs. A failover that loses
// the newest writes loses their tombs too, unless [WaitReplicas] has confirmed them. A tomb with an
// ID of 20 bytes takes 126 bytes of Redis's memory until d is over. Errors: [ErrTooManyTombs].
// Default: an ID is free as soon as its job has ended. Range: 1 ms to 100 years.
func UniqueFor(d time.Duration) JobOption {
	return jobOption(func(o *jobOptions) {
		o.fail(positive("UniqueFor", d))
		o.window = ceilMS(d)
	})
}

// A DequeueOption is an option of [Client.Dequeue] and [Client.CancelBatch]: [Tombstone] or
// [IfUnchanged].
type DequeueOption interface{ applyDequeue(*dequeueOptions) }

type dequeueOptions struct {
	edit
	tomb *commit.Tomb
}

type dequeueOption func(*dequeueOptions)

func (f dequeueOption) applyDequeue(o *dequeueOptions) { f(o) }

// Tombstone closes the ID for d, by Redis's clock. Until then [Client.Enqueue] stores no job with
// the ID and returns [ErrDuplicate], with [StateTomb] and Until in the [DuplicateError]. It is for
// producers that come too late: an order can be paid before the job that cancels it is enqueued.
//
// The ID is closed whatever the state of the job, and also if there is none. Then Dequeue returns
// [ErrNotFound], but has closed the ID. If the ID is closed already, it gets the new end, even if
// that is earlier. A d of 0 frees the ID. A Dequeue without Tombstone does not change whether the
// ID is closed.
//
// [Replace] and [ReplaceDead] store no job with a closed ID, unless they replace an unfinished job.
// [Again], retries, [Client.Revive] and schedules do not ask whether an ID is closed, and neither
// do clients of v0.1.0. Errors: [ErrTooManyTombs]. Range: 0, and 1 ms to 100 years.
func Tombstone(d time.Duration) DequeueOption {
	return dequeueOption(func(o *dequeueOptions) {
		if d != 0 {
			if err := positive("Tombstone", d); err != nil {
				o.errs = append(o.errs, err)
			}
		}
		o.tomb = &commit.Tomb{For: ceilMS(d)}
	})
}

// cancelOf returns what opts say about cancelled jobs.
func (c *Client) cancelOf(opts []DequeueOption) (o dequeueOptions) {
	for _, opt := range opts {
		if contain.IsNil(opt) {
			o.errs = append(o.errs, errors.New("an option of a cancel is nil"))
			continue
		}
		opt.applyDequeue(&o)
	}
	if o.tomb != nil && c != nil {
		o.tomb.Most = c.o.tombs
	}
	return o
}

// TombLimitOption is the type of [TombLimit]: an option of clients.
type TombLimitOption int

// TombLimit bounds how many IDs of a topic can be closed at the same time: see [Tombstone] and
// [UniqueFor]. Calls that would exceed it return [ErrTooManyTombs]. UniqueFor of a day at 12 jobs a
// second has 1,036,800 tombs. Default: 10,000,000. Range: 1 to 1,000,000,000.
func TombLimit(n int) TombLimitOption { return TombLimitOption(n) }

func (n TombLimitOption) applyClient(o *clientOptions) {
	if n < 1 || n > mostTombs {
		o.errs = append(o.errs, fmt.Errorf("TombLimit(%d): must be from 1 to %d", int(n), mostTombs))
	}
	o.tombs = int64(n)
}

const (
	mostTombs    = 1_000_000_000
	defaultTombs = 10_000_000
)

// uniqueWord returns what follows the due time of a job that closes its ID, as the script reads it.
func uniqueWord(window, most int64) string {
	if window == 0 {
		return ""
	}
	return (&commit.Tomb{For: window, Most: most}).Word()
}

// tombText returns the arguments of a cancel that has ended with err for the audit.
func tombText(t *commit.Tomb, err error) string {
	if t == nil || errors.Is(err, ErrTooManyTombs) {
		return ""
	}
	return "tombstone " + ofMS(t.For).String()
}

// changed reports whether a cancel has certainly changed anything, although it has ended with err:
// the job was in a state, or the ID was closed or freed.
func changed(t *commit.Tomb, was State, err error) bool {
	return err == nil || was != "" || t != nil && errors.Is(err, ErrNotFound) && !errors.Is(err, ErrTooManyTombs)
}

// auditCancels records a batch of cancels, and returns its error.
func (c *Client) auditCancels(ctx context.Context, jobs []JobRef, results []CancelResult, t *commit.Tomb, p *previous, err error) error {
	at := func(i int) (JobRef, error) {
		if changed(t, results[i].State, results[i].Err) {
			return jobs[i], nil
		}
		return jobs[i], results[i].Err
	}
	set := func(i int) string { return strings.TrimRight(" "+tombText(t, results[i].Err), " ") }
	return c.auditBatch(ctx, commit.Cancel, len(jobs), at, set, p, err)
}

// auditCancel records a cancel that has ended with err, and returns the error of the call.
func (c *Client) auditCancel(ctx context.Context, o *commit.Op, was State, err error) error {
	count := int64(0)
	if changed(o.Tomb, was, err) {
		count = 1
		was = cmp.Or(was, "none")
	}
	return c.audited(ctx, o.Place(), tombText(o.Tomb, err), string(was), count, err)
}

// replacesText returns the column replaces of the row of a job in an outbox: the letter of what
// becomes of a job with the ID, after b a slash and the longest of the burst, and an exclamation
// mark and a window if there is one. A release that does not know them refuses such a job.
func replacesText(o *jobOptions) string {
	text := string(o.replace)
	if o.replace == commit.ReplaceDebounce {
		text += "/" + strconv.FormatInt(o.longest, 10)
	}
	if o.window > 0 {
		text += "!" + strconv.FormatInt(o.window, 10)
	}
	return text
}

// rowWord is that column: a letter, the longest of a burst, and a window.
var rowWord = regexp.MustCompile(`^([rwdlb]?)(?:/(\d{1,13}))?(?:!(\d{1,13}))?$`)

// readReplaces reads that column.
func (o *jobOptions) readReplaces(text string) error {
	m := rowWord.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("it replaces %q: unknown form", text)
	}
	o.replace = commit.Replacing(m[1])
	o.longest, _ = strconv.ParseInt(m[2], 10, 64)
	o.window, _ = strconv.ParseInt(m[3], 10, 64)
	burst := o.replace == commit.ReplaceDebounce
	fits := burst == (o.longest > 0) && o.longest <= mostBurst.Milliseconds() && (m[3] == "" || o.window > 0) && o.window <= record.MaxDelay
	if !fits {
		return fmt.Errorf("it replaces %q: out of range", text)
	}
	if burst && o.DueAt > 0 { // a Reschedule has ended its burst before it was sent
		o.replace = commit.ReplaceLatest
	}
	return nil
}

// age takes from the delay of a job how long its row has waited. The record of a burst keeps the
// wait that was given.
func (o *jobOptions) age(ms int64) {
	if o.replace == commit.ReplaceDebounce {
		o.wait = max(0, o.DueIn-ms)
	} else {
		o.DueIn = max(0, o.DueIn-ms)
	}
}

// checkSpans returns the complaints about the durations of DueWithin.
func checkSpans(from time.Time, within []time.Duration) error {
	_, err := instant("from", from)
	errs := []error{err}
	if n := len(within); n < 1 || n > mostSpans {
		errs = append(errs, fmt.Errorf("within has %d durations: must have from 1 to %d", n, mostSpans))
	}
	for _, d := range within {
		switch {
		case d < time.Millisecond || d > maxDelay:
			errs = append(errs, fmt.Errorf("within(%v): must be from 1ms to %v (100 years)", d, maxDelay))
		case err == nil:
			_, err := instant(fmt.Sprintf("the end of within(%v)", d), from.Add(d))
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return invalid([]error{err})
	}
	return nil
}
