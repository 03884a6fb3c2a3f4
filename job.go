package delayq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// A Job is a payload with an ID that is unique in its topic. [Client.Enqueue] returns it and a
// [Handler] receives it. All times are by Redis's clock. A Job can be copied; the copy shares the
// Fence, the output, the progress and the steps of the run, and its outcome in a batch.
type Job struct {
	Topic   string
	ID      string
	Payload []byte            // nil and empty are the same
	Headers map[string]string // nil if there are none
	Key     string            // see the option [Key]; empty: the job has none

	// Attempt is the number of this run, starting at 1. Runs interrupted by a crash count; snoozed
	// runs do not. It never decreases, even after Revive: see [Job.RetriesLeft].
	Attempt int
	// Retries is the number of retries after the first failure, or [Unlimited] (-1). In a handler
	// it includes the handler's Defaults. Elsewhere -1 can also mean that the job does not set it,
	// and that the handler's Defaults decide: see [JobInfo.Settings]. Revive and Snooze restore the
	// full number of retries.
	Retries int
	// Snoozes is the number of times the job has been snoozed since its Enqueue.
	Snoozes int

	// Stage is the number of the due time of [ProcessAtEach] that the run belongs to, from 1 to
	// Stages. Both are 0 for a job that has one due time.
	Stage, Stages int

	EnqueuedAt time.Time // when the job was enqueued; at most 1 s before Redis stored it, or 100 ms after
	Due        time.Time // the current due time: retries, Snooze and Reschedule change it
	StartedAt  time.Time // when this run started; zero outside a handler

	// Schedule is the name of the schedule that the job belongs to. Slot is the slot for which the
	// job was enqueued or, for a triggered job, the time of the Trigger call. For all other jobs,
	// Schedule is empty and Slot is zero.
	Schedule string
	Slot     time.Time

	// Flow is the last step of the [Flow] that the job is a step of, which can be the job itself.
	// It is empty if the job is no step.
	Flow JobRef

	nonce string
	spent int           // finished attempts that no longer count against Retries
	fence *atomic.Int64 // of the run, shared by copies of the job; nil: there is no lease
	part  *run.Part     // of the batch that the job runs in; nil: none
	// Of the run, shared by copies of the job; nil: there is no run, or no output of a done one.
	output *run.Output
	noted  *run.Noted // of the run, shared by copies of the job; nil: there is no run
	hands  *handing   // what Then needs; nil: there is no run
}

// Nonce identifies one incarnation of the job: eight random bytes that change with every accepted
// Enqueue of the ID. Successive jobs of the same ID have different nonces. All attempts of one job
// have the same nonce.
func (j *Job) Nonce() string { return j.nonce }

// Fence is the end of the lease, in Unix µs. It grows with every extension and every new lease of
// this job. A database that stores the highest fence it has seen of a job can refuse the writes of
// a worker that lost its lease without noticing. It never refuses a worker that has the lease.
//
// This requires that all servers of the topic have the same [Lease]. Redis's clock must not be set
// back, even by a failover to a machine whose clock is behind. The clocks of Redis and of the
// servers must run at the same rate to within a thousandth. The latency of calls does not matter.
// Read Fence when you write, because it grows while the handler runs.
func (j *Job) Fence() int64 {
	if j.fence == nil {
		return 0
	}
	return j.fence.Load()
}

// RetriesLeft is the number of retries that remain if this run fails: -1 if they are unlimited, 0
// on the last attempt. After Revive or Snooze it is Retries again. For a [JobInfo], "this run" is
// the one that its Attempt names.
func (j *Job) RetriesLeft() int {
	if j.Retries < 0 {
		return Unlimited
	}
	return max(0, j.Retries-max(0, j.Attempt-1-j.spent))
}

// LastAttempt reports whether a failure of this run buries the job. It is false if retries are
// unlimited.
func (j *Job) LastAttempt() bool { return j.RetriesLeft() == 0 }

// scheduledFor sets the fields that follow from the ID of a schedule's job.
func (j *Job) scheduledFor(id string) {
	if s, ok := record.DecodeSlotID(id); ok {
		j.Schedule, j.Slot = s.Schedule, msTime(s.Slot)
	}
}

// Lateness is the time from Due to StartedAt, by Redis's clock. In a handler it is never below
// zero.
func (j *Job) Lateness() time.Duration { return j.StartedAt.Sub(j.Due) }

// storedJob returns the Job for the caller of an enqueue of payload that may be stored. If the
// outcome is unknown, the operation may still be on its way and be settled later.
func storedJob(o *commit.Op, payload []byte, err error) *Job {
	e := o.Fresh
	job := &Job{
		Topic: o.Topic, ID: o.ID, Payload: payload, Headers: e.Opts.Headers, Key: e.Opts.Key, Attempt: 1, Retries: e.Opts.Retries(),
		nonce: string(e.Nonce[:]),
	}
	job.staged(e.Opts.Plan)
	job.memberOf(e.Opts.Flow)
	if !errors.Is(err, ErrUnknownOutcome) {
		job.EnqueuedAt, job.Due = msTime(o.EnqueuedAt), msTime(o.DueTime())
	}
	return job
}

// A NewJob is a job for [Client.EnqueueBatch].
type NewJob struct {
	Topic   string
	ID      string // empty: one is generated
	Payload []byte
	Options []JobOption
}

// An EnqueueResult is the outcome of one job of a [Client.EnqueueBatch] call. Err is nil if the job
// was stored.
type EnqueueResult struct {
	Job *Job // nil if Err is not nil, except for ErrNotReplicated and ErrUnknownOutcome
	Err error
}

// A State is the state of a job.
type State string

// The states of a job. A job that is backing off or snoozed is scheduled.
const (
	StateScheduled State = "scheduled" // not due yet
	StateReady     State = "ready"     // due, waiting for a free worker
	StateRunning   State = "running"   // leased to a worker
	StateDead      State = "dead"      // buried: it does not run unless revived
	StateDone      State = "done"      // completed and kept for its Retention
)

// A DueReason is the reason why the due time of a job has changed since its Enqueue.
type DueReason string

// The reasons for a changed due time.
const (
	DueRetry      DueReason = "retry"
	DueSnooze     DueReason = "snooze"
	DueReschedule DueReason = "reschedule"
	DueRevive     DueReason = "revive"
	DueDebounce   DueReason = "debounce" // a burst of calls with Debounce puts it off
	DueLatest     DueReason = "latest"   // a call with Latest has given it another payload
	DueJoin       DueReason = "join"     // of the last step of a [Flow]: the other steps have ended, or it has failed
	DueBury       DueReason = "bury"     // dead by Client.Bury or Apply: when it would have been due
)

// JobInfo describes a job. [Client.Get] and [Inspector.Jobs] return it.
type JobInfo struct {
	Job   // Attempt is the current, next or last run; StartedAt is zero unless the job is done
	State State
	// DueReason is the reason why Due differs from the due time of the Enqueue. It is empty if Due
	// does not differ.
	DueReason             DueReason
	BurstBegan, BurstEnds time.Time      // of calls with [Debounce] that put the job off: the first, and the latest end
	LeaseEnd              time.Time      // of a running job
	BuriedAt              time.Time      // of a dead job
	FinishedAt            time.Time      // of a done job
	KeptUntil             time.Time      // of a done job
	Plan                  []PlanStage    // of a job with [ProcessAtEach]: all its stages
	PayloadSize           int            // of the payload, which [Inspector.Jobs] does not read
	Errors                []AttemptError // the first and the newest ten, oldest first

	// Progress is how far the job has come, as its runs have said with [Job.Progress], and Steps
	// are the names of the steps that are over: see [Step]. A job that is retried, snoozed, buried
	// or revived keeps both. They are nil if there are none, and of a done job.
	Progress *Progress
	Steps    []string

	// If the job does not set one of these or Retries, the field has the built-in default, which is
	// -1 for Retries. The Defaults of the topic's handler take precedence over that value: Settings
	// returns what holds. Options returns only what the job sets.
	BackoffFirst, BackoffLimit time.Duration // 2 s and 4096 s if the job does not set them
	Timeout                    time.Duration // 0: none, or the job does not set it
	ExpireAt                   time.Time     // zero: none
	Retention                  time.Duration // 0: none, or the job does not set it

	// Priority is the head start of a job with a Key: see the option [Priority] and
	// [Client.SetPriority]. Negative: it goes behind. 0: none, or the job has no Key.
	Priority time.Duration

	// Partial is set if [Inspector.Jobs] has not read the record because it has more than 16 KiB,
	// of a done job with its output. Then PayloadSize is the size of the whole record, with that
	// output. What only the record has is not set: Headers, Retries, EnqueuedAt, Schedule, Slot,
	// the fields above, Progress and Steps; Due if the job is not scheduled and was never moved;
	// Attempt, StartedAt and FinishedAt of a done job.
	Partial bool

	// Undecodable is set if the record cannot be read, because a later release wrote it or because
	// it is damaged. Then Raw holds the record, or its first 48 KiB if it is from [Inspector.Jobs].
	// If a later release wrote it, the error says its format version. Then, and if a record is
	// damaged behind them, EnqueuedAt, Key, Schedule and Slot are set.
	Undecodable error
	Raw         []byte

	options record.Options // as the record has them
	seen    seen
	place   string // partition that has the job; empty: the topic itself
}

// Options returns the options that enqueue a copy of the job, for example in another topic: pass
// them to [Client.Enqueue] with the payload of info. The copy is due at info.Due, expires at
// info.ExpireAt, and has the same retries, backoff, timeout, retention, headers, key and priority.
// Attempts, errors and the schedule are not copied.
//
// Enqueue rejects the options with [ErrInvalid] if info has no payload because [Inspector.Jobs] did
// not read it, or if the record could not be read.
func (info *JobInfo) Options() []JobOption {
	switch {
	case info.Undecodable != nil:
		return []JobOption{refusedOption("info.Options: the record of the job could not be read")}
	case info.Payload == nil && info.PayloadSize > 0:
		return []JobOption{refusedOption("info.Options: the payload was not read; Get reads it")}
	}
	o := info.options
	o.DueAt, o.DueIn, o.HeadStart = info.Due.UnixMilli(), 0, info.Priority.Milliseconds()
	if o.Plan != nil {
		o.Plan = o.Plan.Again()
	}
	if !info.ExpireAt.IsZero() {
		o.ExpireAt, o.ExpireIn = info.ExpireAt.UnixMilli(), 0
	}
	return jobOptionsOf(&o)
}

// newJob returns the job of a run that begins. Its fields belong to the handler.
func newJob(r *run.Run) *Job {
	job := &Job{
		Topic: r.Topic, ID: r.ID, Payload: r.Payload, Headers: r.Options.Headers, Key: r.Options.Key, Attempt: r.Attempt,
		Retries: r.Options.Retries(), Snoozes: r.Past.Snoozes, EnqueuedAt: r.Enqueued, Due: r.Due, StartedAt: r.Start,
		nonce: r.Nonce, spent: r.Past.Spent, fence: &r.Lease, output: &r.Output, noted: &r.Noted,
	}
	if r.Options.Scheduled {
		job.scheduledFor(r.ID)
	}
	job.memberOf(r.Options.Flow)
	if p := r.Options.Plan; p != nil { // the next stage gets them too, whatever the handler does to these
		job.staged(p)
		job.Payload, job.Headers = bytes.Clone(r.Payload), maps.Clone(job.Headers)
	}
	return job
}

// A PlanStage is a due time of a job with [ProcessAtEach]: see [JobInfo.Plan].
type PlanStage struct {
	Due  time.Time // as ProcessAtEach was given it
	Over bool      // it has had its turn
	// FailedAt is when the stage failed for good; zero: it has not, or was revived and succeeded.
	// Then Attempt, Kind and Message are those of its last attempt.
	FailedAt time.Time
	Attempt  int
	Kind     ErrorKind
	Message  string // cut to 100 bytes
}

// planStages returns the stages of a plan.
func planStages(p *record.Plan) (list []PlanStage) {
	if p == nil {
		return nil
	}
	left := len(p.Rest())
	for i, at := range p.Times {
		s := PlanStage{Due: msTime(at), Over: i < p.Stage || left == 0 && i > p.Stage}
		if f := p.FailedOf(i); f != nil {
			s.Over, s.FailedAt, s.Attempt, s.Kind, s.Message = true, msTime(f.At), f.Attempt, ErrorKind(f.Kind), f.Message
		}
		list = append(list, s)
	}
	return list
}

// staged sets which stage of a plan the job is in.
func (j *Job) staged(p *record.Plan) {
	if p != nil {
		j.Stage, j.Stages = p.Stage+1, len(p.Times)
	}
}

// MaxOutput is the most bytes that [Job.SetOutput] accepts: 64 KiB.
const MaxOutput = record.MaxOutput

// SetOutput attaches an output to this run: its result for those who wait for the job, or text for
// people, such as the last lines that a command printed. The last call counts, and nil removes the
// output. It is kept when the handler has returned:
//
//   - for 60 s for the clients that wait for the job, if the run has completed it: see
//     [Client.Wait];
//   - with a done job that has a [Retention]: [Client.Get] and [Inspector.Job] return it, until the
//     retention is over;
//   - in the history of the schedule that the job belongs to: [Inspector.Runs] returns its last
//     1 KiB, also if the run failed.
//
// Of all other runs it is dropped. [RunEvent] has it in every case. Until the handler returns, only
// [Job.Output] has it.
//
// SetOutput copies the output, which has at most [MaxOutput] bytes, and calls nothing. It is safe
// for concurrent use. It returns [ErrInvalid], and leaves the output as it was, if output is
// longer, if the handler has returned, and outside a handler.
func (j *Job) SetOutput(output []byte) error {
	const call = "set output"
	if j == nil {
		return fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	}
	err := j.attach(output)
	return script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(err)
}

func (j *Job) attach(output []byte) error {
	switch n := len(output); {
	case n > MaxOutput:
		return fmt.Errorf("%w: output of %d bytes, at most %d are allowed", ErrInvalid, n, MaxOutput)
	case j.output == nil:
		return fmt.Errorf("%w: the job is not that of a handler", ErrInvalid)
	case !j.output.Set(output):
		return fmt.Errorf("%w: %w", ErrInvalid, run.ErrReturned)
	}
	return nil
}

// Output returns what [Job.SetOutput] has attached to this run, so that middleware can see it. For
// the [JobInfo] of a done job it is the output of the run that completed the job; [Inspector.Jobs]
// does not read it. Output returns nil if there is none. The caller may change the bytes.
func (j *Job) Output() []byte {
	if j == nil || j.output == nil {
		return nil
	}
	return bytes.Clone(j.output.Get())
}

// jobInfos looks up jobs, and skips those that do not exist. It reads cut bytes of each record, or
// the whole record if cut is -1. One call reads a bounded number of bytes, to keep Redis
// responsive, so large jobs take several.
func jobInfos(ctx context.Context, c script.Caller, k *script.Keys, cut int, ids []string) ([]*JobInfo, error) {
	var list []*JobInfo
	for ask := listJobs; len(ids) > 0; {
		some := ids[:min(len(ids), ask)]
		r, err := script.LookUp(ctx, c, k, script.CallBytes, cut, some)
		if err != nil {
			return nil, err
		}
		covered := min(len(r.List(2)), len(some))
		if covered == 0 {
			return nil, fmt.Errorf("get topic %q: %w", k.Topic, script.ErrReply)
		}
		for i, id := range some[:covered] {
			at := func(column int) string { return r.List(2 + column).Text(i) }
			if info := readJobInfo(k.Topic, id, cut, at); info != nil {
				list = append(list, info)
			}
		}
		ids = ids[covered:]
		ask = 2 * covered // IDs that the reply has no room for are sent in vain
	}
	return list, nil
}

// readJobInfo returns the JobInfo of one line of the reply of get.lua, or nil if there is no such
// job. It leaves out the payload of a record that was cut, even if the whole payload is there.
func readJobInfo(topic, id string, cut int, at func(column int) string) *JobInfo {
	raw := at(script.ColumnRecord)
	info := newJobInfo(topic, id)
	attempts, _ := strconv.Atoi(at(script.ColumnAttempts)) // "" is none
	info.Attempt = attempts + 1
	var done record.Done
	var known bool
	switch {
	case raw != "":
		info.State = StateReady
		info.Errors = attemptErrors(at(script.ColumnErrors))
	case at(script.ColumnResult) != "" && at(script.ColumnDone) != "":
		info.State = StateDone
		info.KeptUntil = scoreTime(at(script.ColumnDone))
		done, raw, known = record.DecodeDone(at(script.ColumnResult))
		if cut < 0 || len(raw) < cut { // else it may lack its end
			var output string
			if raw, output = done.Split(raw); cut < 0 && output != "" {
				info.output = run.FinalOutput(output)
			}
		}
	default:
		return nil
	}
	info.nonce = record.NonceOf(raw)
	info.look(cut, at)
	decode := record.Decode
	if cut >= 0 && len(raw) >= cut {
		decode = record.DecodeMeta
	}
	if rec, err := decode(raw); err != nil {
		info.Undecodable, info.Raw = err, []byte(raw)
		info.stored(&rec) // of a job of a later release
	} else {
		info.recorded(&rec)
		if cut < 0 {
			info.Payload = rec.Payload
		}
	}
	if info.State == StateDone {
		if known {
			info.Attempt, info.StartedAt, info.FinishedAt = done.Attempt, msTime(done.Start), msTime(done.End)
			info.Snoozes = done.Snoozes
		}
		return info
	}
	info.placed(attempts, at)
	return info
}

// placed sets what the places of an unfinished job say.
func (info *JobInfo) placed(attempts int, at func(column int) string) {
	if m, ok := record.DecodeMoved(at(script.ColumnMoved)); ok {
		info.noteMoved(&m)
		info.Snoozes, info.spent = m.Snoozes, m.Spent
	}
	if head, ok := record.PlaceHead(at(script.ColumnPlace), info.nonce); ok {
		info.Priority = ofMS(head)
	}
	if score := at(script.ColumnBucket); score != "" {
		info.State, info.Due = StateScheduled, scoreTime(score)
	}
	if score := at(script.ColumnLease); score != "" {
		info.State, info.LeaseEnd = StateRunning, scoreTime(score)
		info.fence = new(atomic.Int64)
		info.fence.Store(record.ParseLeaseEnd(score).Micros())
	}
	if score := at(script.ColumnDead); score != "" {
		info.State, info.BuriedAt = StateDead, scoreTime(score)
		info.Attempt = max(attempts, 1)
	}
	if note, _, ok := record.DecodeNote(at(script.ColumnNote), info.nonce); ok {
		info.Progress, info.Steps = progressOf(&note), note.Steps
	}
}

// progressOf returns the progress of a note; nil if there is none.
func progressOf(n *record.Note) *Progress {
	if n.At == 0 {
		return nil
	}
	return &Progress{Done: n.Done, Total: n.Total, Text: n.Text, At: msTime(n.At)}
}

// recorded sets what the record of the job holds, except the payload.
func (info *JobInfo) recorded(rec *record.Job) {
	info.options = rec.Options
	o := rec.Options
	o.Fill(&defaultRun)
	info.Headers, info.Retries, info.PayloadSize, info.Due = o.Headers, o.Retries(), rec.Size, msTime(rec.Due())
	info.BackoffFirst, info.BackoffLimit = ofMS(o.BackoffMin), ofMS(o.BackoffMax)
	info.staged(o.Plan)
	info.memberOf(o.Flow)
	info.Plan = planStages(o.Plan)
	info.Timeout, info.Retention, info.ExpireAt, info.Priority = ofMS(o.Timeout), ofMS(o.Retention), orZero(rec.Expires()), ofMS(o.HeadStart)
	info.stored(rec)
}

// stored sets what records of all releases have.
func (info *JobInfo) stored(rec *record.Job) {
	info.Key, info.EnqueuedAt = rec.Options.Key, orZero(rec.EnqueuedAt)
	if rec.Options.Scheduled {
		info.scheduledFor(info.ID)
	}
}

// scoreTime reads the score of a zset, in Unix ms.
func scoreTime(score string) time.Time {
	ms, _ := strconv.ParseFloat(score, 64) // Redis wrote it
	return msTime(int64(ms))
}
