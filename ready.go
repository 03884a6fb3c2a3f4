// What keeps a ready job from being taken: pauses, holds, and the priority of others. The taking
// itself is in internal/serve/take.go and lua/take.lua.

package delayq

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// maxPauses is the maximum number of simultaneous pauses of a topic.
const maxPauses = 16

// A Pause is the argument of [Client.Pause]. Every person or program that pauses a topic has its
// own pause there, and the topic is paused while any of them is in effect. So a program neither
// shortens nor ends the pause of a person.
type Pause struct {
	By     string        // a person or a program, at most 1 KiB; "" is a name like any other
	Reason string        // the reason, for people who inspect the topic; at most 1 KiB
	For    time.Duration // duration. 0: until Resume. Range: 1 ms to 100 years
}

// PauseInfo is a pause of a topic, as [Inspector.Stats] returns it.
type PauseInfo struct {
	By     string
	Reason string
	Since  time.Time
	Until  time.Time // zero: until Resume
}

// Pause stops all servers from taking jobs of a topic. Jobs are still enqueued and become due, and
// running jobs continue. By and Reason (up to 1 KiB each) are reported by [Inspector.Stats]. A
// second Pause with the same By replaces the first, for example to change its end or its reason.
// Other pauses are unchanged. A topic can have 16 pauses simultaneously; a further one returns
// [ErrTooManyPauses]. When the last pause ends, by itself or by [Client.Resume], servers
// immediately take jobs again. docs/howto/stopping.md compares all calls that stop jobs.
func (c *Client) Pause(ctx context.Context, topic string, p Pause) error {
	var errs []error
	if err := notTiny("Pause.For", p.For); err != nil {
		errs = append(errs, err)
	} else if p.For < 0 || p.For > maxDelay {
		errs = append(errs, fmt.Errorf("Pause.For(%v): must be 0 or from 1ms to %v", p.For, maxDelay))
	}
	if len(p.By) > script.MaxIDLen || len(p.Reason) > script.MaxIDLen {
		errs = append(errs, fmt.Errorf("by and reason of %d and %d bytes, at most %d are allowed", len(p.By), len(p.Reason), script.MaxIDLen))
	}
	return c.pause(ctx, "pause", topic, p, errs)
}

// Resume ends the pause of by. The topic remains paused while pauses of others are in effect;
// [Inspector.Stats] shows them. If by has no pause there, nothing happens.
func (c *Client) Resume(ctx context.Context, topic, by string) error {
	return c.pause(ctx, "resume", topic, Pause{By: by}, nil)
}

// ResumeAll ends all pauses of a topic, whoever made them.
func (c *Client) ResumeAll(ctx context.Context, topic string) error {
	return c.pause(ctx, "resume all", topic, Pause{}, nil)
}

func (c *Client) pause(ctx context.Context, verb, topic string, p Pause, errs []error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: verb, Topic: topic})
	place := script.Place{Call: verb, Topic: topic}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	r, err := c.everywhere(ctx, topic, anyPlace, func(ctx context.Context, at commit.Place) (script.Reply, error) {
		r, err := c.commits.Pause(ctx, at.Keys, verb, p.By, ceilMS(p.For), p.Reason, maxPauses)
		if err == nil && r.Text(2) == "too_many" {
			err = fmt.Errorf("by %q: %w", p.By, ErrTooManyPauses)
		}
		return r, err
	})
	if err = place.At(err); errors.Is(err, ErrTooManyPauses) {
		return end.err(err)
	}
	return end.err(c.acted(ctx, place, p.text(verb), pausesText(r.Text(3), r.Now()), err))
}

// text describes a pause for the audit.
func (p Pause) text(verb string) string {
	var text string
	if verb != "resume all" {
		text = fmt.Sprintf("by %q", p.By)
	}
	if p.Reason != "" {
		text += fmt.Sprintf(", reason %q", p.Reason)
	}
	if p.For > 0 {
		text += fmt.Sprintf(", for %v", p.For)
	}
	return text
}

// Hold keeps servers from taking jobs of a topic for a time, as [Hold] of a handler does. Running
// jobs continue. A hold prolongs another one and never shortens it. It is apart from pauses: it
// changes none, and [Client.Resume] does not end it. The reason has at most 1 KiB, and the actor of
// ctx ([WithActor]) is kept with it: see [TopicStats].
//
// Range of d: 1 ms to 100 years. docs/howto/stopping.md compares all calls that stop jobs.
func (c *Client) Hold(ctx context.Context, topic string, d time.Duration, reason string) error {
	var errs []error
	if err := notTiny("d", d); err != nil {
		errs = append(errs, err)
	} else if d < time.Millisecond || d > maxDelay {
		errs = append(errs, fmt.Errorf("d(%v): must be from 1ms to %v", d, maxDelay))
	}
	if n := len(reason); n > record.MaxMessage {
		errs = append(errs, fmt.Errorf("reason of %d bytes, at most %d are allowed", n, record.MaxMessage))
	}
	text := fmt.Sprintf("for %v", d)
	if reason != "" {
		text += fmt.Sprintf(", reason %q", reason)
	}
	return c.hold(ctx, "hold", topic, ceilMS(d), strings.ToValidUTF8(reason, "\uFFFD"), text, errs)
}

// EndHold ends the hold of a topic, whoever made it. If it has none, nothing happens.
func (c *Client) EndHold(ctx context.Context, topic string) error {
	return c.hold(ctx, "end hold", topic, 0, "", "", nil)
}

func (c *Client) hold(ctx context.Context, verb, topic string, ms int64, reason, text string, errs []error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: verb, Topic: topic})
	place := script.Place{Call: verb, Topic: topic}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	r, err := c.everywhere(ctx, topic, anyPlace, func(ctx context.Context, at commit.Place) (script.Reply, error) {
		return c.commits.Hold(ctx, at.Keys, ms, actorOf(ctx), reason)
	})
	return end.err(c.acted(ctx, place, text, pausesText(r.Text(3), r.Now()), place.At(err)))
}

// HoldKey keeps servers from taking jobs of a key for a time, as [HoldKey] of a handler does,
// whether the key has jobs or not. Running jobs, jobs of other keys and jobs without a key
// continue. A hold prolongs another one and never shortens it, and it leaves a pause as it is.
// [Client.ResumeKey] ends it early.
//
// Range of d: 1 ms to 100 years. While 100,000 keys of a topic are held or paused, only handlers
// can hold another one, and the error here is [ErrInvalid].
//
// Errors: [ErrInvalid], [ErrUnknownOutcome], the error of the context, or that of Redis. Cost: one
// call to Redis, O(log N). docs/howto/stopping.md compares all calls that stop jobs.
func (c *Client) HoldKey(ctx context.Context, topic, key string, d time.Duration) error {
	errs := checkKey(key)
	if err := notTiny("d", d); err != nil {
		errs = append(errs, err)
	} else if d < time.Millisecond || d > maxDelay {
		errs = append(errs, fmt.Errorf("d(%v): must be from 1ms to %v", d, maxDelay))
	}
	return c.holdKey(ctx, "hold key", topic, key, ceilMS(d), fmt.Sprintf(" for %v", d), errs)
}

// PauseKey keeps servers from taking jobs of a key until [Client.ResumeKey] or
// [Client.RemoveTopic]. It is [Client.HoldKey] without an end. [Inspector.Key] shows it.
// docs/howto/stopping.md compares all calls that stop jobs.
func (c *Client) PauseKey(ctx context.Context, topic, key string) error {
	return c.holdKey(ctx, "pause key", topic, key, -1, "", checkKey(key))
}

// ResumeKey ends the pause and the hold of a key, whoever made them. If it has none, nothing
// happens. Servers that wait for jobs are woken. It changes no pause or hold of the topic.
//
// Errors and cost are those of [Client.HoldKey].
func (c *Client) ResumeKey(ctx context.Context, topic, key string) error {
	return c.holdKey(ctx, "resume key", topic, key, 0, "", checkKey(key))
}

// holdKey calls the key_hold script. The audit has text after the key.
func (c *Client) holdKey(ctx context.Context, verb, topic, key string, ms int64, text string, errs []error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: verb, Topic: topic})
	place := script.Place{Call: verb, Topic: topic}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	r, err := c.everywhere(ctx, topic, anyPlace, func(ctx context.Context, at commit.Place) (script.Reply, error) {
		r, err := c.commits.HoldKey(ctx, at.Keys, key, ms, mostHeldKeys)
		if err == nil && r.Text(2) == "full" {
			err = fmt.Errorf("%w: %d keys of the topic are held, which is the maximum", ErrInvalid, mostHeldKeys)
		}
		return r, err
	})
	return end.err(c.acted(ctx, place, fmt.Sprintf("key %q%s", key, text), keyHoldText(r.Text(3), r.Now()), place.At(err)))
}

// SetPriority gives a job that has a [Key] another [Priority]. A ready job gets another place among
// the jobs of its key at once. A scheduled, running or dead job has the priority when it is ready
// again. The due time stays. A job that replaces this one has a priority of its own.
//
// Range of d: -24 to 24 hours, rounded towards 0 to the millisecond.
//
// Errors: [ErrNotFound] if there is no such job, [ErrInvalid] if it has no key, [ErrChanged] with
// [IfUnchanged], [ErrUnknownOutcome], the error of the context, or that of Redis. Cost: one call to
// Redis, O(log N).
func (c *Client) SetPriority(ctx context.Context, topic, id string, d time.Duration, opts ...EditOption) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "set priority", Topic: topic, ID: id, Jobs: 1})
	place := script.Place{Call: "set priority", Topic: topic, Job: id}
	var errs []error
	if d < -maxHeadStart || d > maxHeadStart {
		errs = append(errs, fmt.Errorf("d(%v): must be from %v to %v", d, -maxHeadStart, maxHeadStart))
	}
	o := &commit.Op{Topic: topic, ID: id}
	if err := errors.Join(c.validate(ctx, topic, id), invalid(errs), newEdit(opts).guard(o)); err != nil {
		return end.err(place.At(err))
	}
	before, err := c.setPriority(ctx, o, d.Milliseconds()+1<<31)
	return end.err(c.acted(ctx, place, fmt.Sprintf("priority %v", d), priorityText(before), place.At(err)))
}

// setPriority gives the job of an operation a head start, in ms. It returns the one that it had.
func (c *Client) setPriority(ctx context.Context, o *commit.Op, start int64) (before string, err error) {
	answer, err := c.commits.Walk(ctx, o.Topic, o.ID, func(ctx context.Context, k *script.Keys) (commit.Answer, error) {
		r, err := c.commits.Call(ctx, script.SetPriority, k, o.ID, start, script.ControlChannel(c.o.prefix), k.Topic, o.Known)
		switch {
		case err != nil:
			return commit.Gone, err
		case r.Text(2) == "gone":
			return commit.Gone, nil
		case r.Text(2) == "elsewhere":
			return commit.Elsewhere, nil
		case r.Text(2) == "changed":
			return commit.Here, ErrChanged
		case r.Text(2) == "plain":
			return commit.Here, fmt.Errorf("%w: the job has no Key", ErrInvalid)
		case r.Text(2) == "lost":
			return commit.Here, errors.New("the job has lost its place: Client.Repair gives it one")
		}
		before = r.Text(3)
		return commit.Here, nil
	})
	if err == nil && answer != commit.Here {
		err = ErrNotFound
	}
	return before, err
}

// UnchangedOption is the type of [IfUnchanged]: an option of all calls that edit jobs.
type UnchangedOption struct{ infos []*JobInfo }

// IfUnchanged makes a call edit a job only if the job is still as it was when info was read.
// Otherwise the call returns [ErrChanged] and changes nothing. If several callers have read the
// same job, one of them succeeds, so no edit is overwritten unnoticed. A caller that gets
// ErrChanged reads the job again, and decides again:
//
//	for {
//		info, err := client.Get(ctx, "mail", "42")
//		if err != nil {
//			return err
//		}
//		due := delayq.ProcessAt(info.Due.Add(time.Hour))
//		err = client.Reschedule(ctx, "mail", "42", due, delayq.IfUnchanged(info))
//		if !errors.Is(err, delayq.ErrChanged) {
//			return err
//		}
//	}
//
// It is an option of [Client.Reschedule], [Client.Revive], [Client.Bury], [Client.Delete],
// [Client.SetPriority] and [Client.Dequeue], and of [Client.Enqueue] and [Client.EnqueueBatch]
// together with [Replace] or [ReplaceDead]. [Client.CancelBatch] and [Client.RescheduleBatch] need
// the info of each job. IfUnchanged is an error for schedules, in [Again], in [Defaults] and in an
// outbox.
//
// A job has changed if it is in another state, is due at another time, or was enqueued anew or
// replaced. It has also changed if it has failed, its lease has lapsed, or it was snoozed, held or
// given back since. An edit is a change even if the job looks as before. A running job has also
// changed if [Latest] or [Debounce] has given it a successor. The extension of a lease is no
// change. An edit by a client or server of v0.1.0 is not noticed if it changes nothing visible.
//
// info comes from [Client.Get], [Client.GetBatch], [Inspector.Job], [Inspector.Jobs] or an
// [Explanation]. It must be of the same topic and ID, and not [JobInfo.Partial]. Otherwise the call
// returns [ErrInvalid]. So does [Client.Revive] if the job was not dead when it was read, and
// [Client.Delete] if it was not done. If the job is gone, the call returns [ErrNotFound], and an
// Enqueue returns ErrChanged.
//
// Cost: Redis reads the record of the job. One call reads records of at most 1 MiB together, or one
// record.
func IfUnchanged(info ...*JobInfo) UnchangedOption { return UnchangedOption{infos: info} }

func (u UnchangedOption) applyEdit(o *edit)              { o.add(u) }
func (u UnchangedOption) applyDequeue(o *dequeueOptions) { o.add(u) }
func (u UnchangedOption) applyJob(o *jobOptions)         { o.guard = newEdit([]EditOption{u}) }
func (u UnchangedOption) applySchedule(d *definition) {
	d.fail(errors.New("IfUnchanged: each job of a schedule has a new ID"))
}

// An EditOption is an option of a call that edits a job: [IfUnchanged].
type EditOption interface{ applyEdit(*edit) }

// An edit is the options of a call that edits jobs.
type edit struct {
	guarded bool
	infos   map[JobRef]*JobInfo
	errs    []error
}

// newEdit returns what opts say.
func newEdit(opts []EditOption) *edit {
	e := &edit{}
	for _, opt := range opts {
		if contain.IsNil(opt) {
			e.errs = append(e.errs, errors.New("an option of an edit is nil"))
			continue
		}
		opt.applyEdit(e)
	}
	return e
}

func (e *edit) add(u UnchangedOption) {
	if e.guarded = true; e.infos == nil {
		e.infos = make(map[JobRef]*JobInfo, len(u.infos))
	}
	for _, info := range u.infos {
		if info == nil {
			e.errs = append(e.errs, errors.New("IfUnchanged: info is nil"))
			continue
		}
		e.infos[JobRef{info.Topic, info.ID}] = info
	}
}

// outside returns the complaints about the options of an edit that is sent later, by an outbox or
// another one.
func (e *edit) outside(who string) error {
	if e == nil {
		return nil
	}
	if e.guarded {
		e.errs = append(e.errs, fmt.Errorf("IfUnchanged: %s does not know what a job will be like; call the client", who))
	}
	return invalid(e.errs)
}

// guard makes an operation one on the job as it was read, if the options say so.
func (e *edit) guard(o *commit.Op) error {
	if err := invalid(e.errs); err != nil || !e.guarded {
		return err
	}
	info := e.infos[JobRef{o.Topic, o.ID}]
	var err error
	switch {
	case info == nil:
		return fmt.Errorf("%w: IfUnchanged: no info of this topic and ID", ErrInvalid)
	case o.Kind == commit.Revive && info.State != StateDead, o.Kind == commit.Delete && info.State != StateDone:
		return fmt.Errorf("%w: IfUnchanged: the job was %s when it was read", ErrInvalid, info.State)
	}
	o.Known, o.Reads, err = info.expectation()
	return err
}

// guard makes an enqueue replace the job as it was read.
func (e *enqueueing) guard() error {
	// Latest and Debounce store a job whatever the old one is like.
	if e.opts.replace == commit.ReplaceNone || e.opts.replace.Merges() {
		return fmt.Errorf("%w: IfUnchanged: the job needs Replace or ReplaceDead", ErrInvalid)
	}
	if err := e.opts.guard.guard(&e.op); err != nil {
		return err
	}
	if e.opts.replace == commit.ReplaceDead && e.op.Known[0] != script.LetterDead {
		return fmt.Errorf("%w: IfUnchanged: the job was not dead when it was read, and ReplaceDead was given", ErrInvalid)
	}
	e.fresh.When += "?" + e.op.Known
	return nil
}

// seen is what a [JobInfo] has for IfUnchanged beside its fields.
type seen struct {
	read            bool   // also the nonce
	bytes           int    // of the value that has the record; 0: not known
	attempts, moved string // the entries of the job
}

// look notes what one line of the reply of get.lua has for IfUnchanged.
func (info *JobInfo) look(cut int, at func(column int) string) {
	value := at(script.ColumnRecord)
	if info.State == StateDone {
		value = at(script.ColumnResult)
	} else {
		info.seen.attempts, info.seen.moved = at(script.ColumnAttempts), at(script.ColumnMoved)
	}
	if info.seen.read = true; cut < 0 || len(value) < cut {
		info.seen.bytes = len(value)
	}
}

// expectation returns how info knows the job, as lua/prelude/expect.lua reads it, and how many
// bytes of a record Redis reads for that.
func (info *JobInfo) expectation() (text string, reads int, err error) {
	s := &info.seen
	reads = s.bytes
	if reads == 0 { // and not more than that: a long value was cut
		reads = info.PayloadSize + recordHead + 2*MaxOutput
	}
	_, readable := record.DecodeMoved(s.moved)
	switch {
	case info.Partial:
		return "", 0, fmt.Errorf("%w: IfUnchanged: the record was not read; Get reads it", ErrInvalid)
	case !s.read || s.bytes == 0 && info.Undecodable != nil:
		return "", 0, fmt.Errorf("%w: IfUnchanged: the job was not read from Redis, or not as a whole", ErrInvalid)
	case s.moved != "" && !readable:
		return "", 0, fmt.Errorf("%w: IfUnchanged: the entry of the job in moved is damaged; Repair removes it", ErrInvalid)
	}
	return fmt.Sprintf("%s|%d|%x|%s|%s", known(info), reads, info.nonce, s.attempts, s.moved), reads, nil
}

// Seen returns a text of how a job was when it was read, which is another one as soon as the job is
// not as it was. It is empty if IfUnchanged would refuse info.
func (friends) Seen(info *JobInfo) string {
	text, _, err := info.expectation()
	if err != nil {
		return ""
	}
	words := strings.SplitN(text, "|", 3)
	sum := sha256.Sum256([]byte(words[0] + "|" + words[2])) // how long the record is does not matter
	return hex.EncodeToString(sum[:8])
}

// dueReason returns the reason for a due time that an entry of moved has.
func dueReason(why string) DueReason {
	if why == record.WhySame {
		return ""
	}
	return DueReason(why)
}

// ActOn acts on a job that was read, as the calls about single jobs do, but only if the job is
// still as it was then, as with [IfUnchanged]. Of a job whose record was not read, the state is
// compared, and the due time, time of burial or time until which it is kept. Otherwise nothing is
// changed, and the error is an [ErrNotFound] that says so.
func (friends) ActOn(ctx context.Context, c *Client, info *JobInfo, a Action) error {
	o := &commit.Op{Kind: a.kind, Topic: info.Topic, ID: info.ID, Known: known(info), Reason: a.reason}
	if text, reads, err := info.expectation(); err == nil {
		o.Known, o.Reads = text, reads
	}
	if a.kind == commit.Delete && info.State == StateDead {
		o.Kind = commit.Cancel
	}
	ctx, end := c.begin(ctx, CallEvent{Name: o.Kind.Name, Topic: o.Topic, ID: o.ID, Jobs: 1})
	var err error
	if o.Kind == commit.Reschedule {
		o.Move, err = moveTo(a.due)
	}
	if err == nil {
		err = c.do(ctx, o)
	}
	if errors.Is(err, ErrChanged) {
		err = o.Place().At(fmt.Errorf("%w as it was when it was read, %s", ErrNotFound, info.State))
	}
	if o.Kind == commit.Cancel {
		c.dequeued(ctx, o, err)
	}
	return end.err(c.acted(ctx, o.Place(), argumentsOf(o), stateText(info.State, info.Due), err))
}

// known returns how a page knows a job, as lua/prelude/expect.lua reads it.
func known(info *JobInfo) string {
	with := func(letter byte, at time.Time) string {
		return string(strconv.AppendInt([]byte{letter}, at.UnixMilli(), 10))
	}
	switch info.State {
	case StateScheduled:
		return with(script.LetterScheduled, info.Due)
	case StateDead:
		return with(script.LetterDead, info.BuriedAt)
	case StateDone:
		return with(script.LetterDone, info.KeptUntil)
	case StateRunning:
		return string(script.LetterRunning)
	}
	return string(script.LetterReady)
}
