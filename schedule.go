package delayq

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
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
func (p MissedPolicy) most() int          { return int(p >> 2) }

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

// A definition is what a schedule is to do. It never changes: Schedule puts another one in its place. In Redis it is
//
//	nonce (8 random bytes) · format version (1 byte) · msgpack array
//
// with the fields of fields(), then what a record has behind its enqueueing time. docs/protocol.md has the format.
type definition struct {
	spec    Spec
	first   int64 // the earliest slot, Unix ms; 0: any
	last    int64 // the latest one; 0: none
	most    int64 // jobs; 0: no limit
	jitter  int64 // ms
	overlap OverlapPolicy
	missed  MissedPolicy
	job     jobOptions
	payload []byte
	size    int // of the payload
	edit    edit

	onto   onto
	nonce  string // hexadecimal
	next   rhythm
	walked int // how many slots due has looked at
}

const (
	definitionVersion = 1
	definitionFields  = 13 + recordFields - 1
)

func (d *definition) numbers() []*int64 {
	return []*int64{(*int64)(&d.spec.kind), &d.spec.every, &d.first, &d.last, &d.most, &d.jitter}
}

func (d *definition) texts() []*string {
	return []*string{&d.spec.text, &d.spec.zone, &d.edit.by, &d.edit.parts}
}

// encode gives the definition with a new nonce.
func (d *definition) encode() (string, error) {
	var buf bytes.Buffer
	buf.Write(binary.LittleEndian.AppendUint64(nil, mathrand.Uint64()))
	buf.WriteByte(definitionVersion)
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.UseCompactInts(true)
	err := enc.EncodeArrayLen(definitionFields)
	for _, n := range d.numbers() {
		err = errors.Join(err, enc.EncodeInt(*n))
	}
	err = errors.Join(err, enc.EncodeInt(int64(d.overlap)), enc.EncodeInt(int64(d.missed)), enc.EncodeInt(d.edit.at))
	for _, text := range d.texts() {
		err = errors.Join(err, enc.EncodeString(*text))
	}
	err = errors.Join(err, encodeOptions(enc, &d.job, len(d.payload)))
	buf.Write(d.payload)
	return buf.String(), err
}

// decodeDefinition reads a definition, or the beginning of one: then without its payload.
func decodeDefinition(raw string, whole bool) (*definition, error) {
	if len(raw) <= nonceLen+1 {
		return nil, fmt.Errorf("definition of %d bytes is too short", len(raw))
	}
	if version := raw[nonceLen]; version != definitionVersion {
		return nil, fmt.Errorf("definition of format version %d, this release reads %d", version, definitionVersion)
	}
	d := &definition{nonce: hex.EncodeToString([]byte(raw[:nonceLen]))}
	body := []byte(raw[nonceLen+1:])
	in := bytes.NewReader(body)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(in)
	n, err := dec.DecodeArrayLen()
	if err == nil && n != definitionFields {
		err = fmt.Errorf("%d fields instead of %d", n, definitionFields)
	}
	var overlap, missed int64
	for _, field := range append(d.numbers(), &overlap, &missed, &d.edit.at) {
		if err == nil {
			*field, err = dec.DecodeInt64()
		}
	}
	d.overlap, d.missed = OverlapPolicy(overlap), MissedPolicy(missed)
	for _, field := range d.texts() {
		if err == nil {
			*field, err = dec.DecodeString()
		}
	}
	if err == nil {
		d.size, err = decodeOptions(dec, &d.job)
	}
	if err != nil {
		return nil, fmt.Errorf("decode definition: %w", err)
	}
	if !whole {
		return d, nil
	}
	n, err = dec.DecodeBytesLen()
	if err == nil && (n != in.Len() || n != d.size) {
		err = fmt.Errorf("payload of %d bytes, %d announced", in.Len(), n)
	}
	if err == nil && (d.spec.kind == specInterval && d.spec.every < 1 || !d.overlap.known() || !d.missed.known()) {
		err = fmt.Errorf("spec %q, %v, %v", d.spec, d.overlap, d.missed)
	}
	if err != nil {
		return nil, fmt.Errorf("decode definition: %w", err)
	}
	d.payload = body[len(body)-n:]
	return d, nil
}

// compile makes the rhythm of the definition.
func (d *definition) compile(calendars map[string]*calendar) error {
	next, err := d.spec.rhythm(d.first, calendars)
	if err != nil {
		return err
	}
	d.next = func(after int64) (int64, error) {
		slot, err := next(after)
		if d.last > 0 && slot > d.last {
			slot = 0
		}
		return slot, err
	}
	return nil
}

// check tells what is wrong with a definition as a whole.
func (d *definition) check(maxPayload int) error {
	if d.job.dueAt > 0 {
		d.job.fail(errors.New("ProcessAt: the jobs of a schedule are due at their slots; StartAt sets the first"))
	}
	if d.job.replace != replaceNone {
		d.job.fail(errors.New("Replace and ReplaceDead: the ID of each job of a schedule is a new one"))
	}
	if d.last > 0 && d.first > d.last {
		d.job.fail(errors.New("EndAt is before StartAt"))
	}
	if ms := time.Millisecond; d.jitter > 0 && d.job.dueIn <= d.job.expireIn && d.job.dueIn+d.jitter >= d.job.expireIn && d.job.expireIn > 0 {
		d.job.fail(fmt.Errorf("Jitter(%v): some jobs would expire before they are due; with ExpireIn of %v and ProcessIn of %v it must be below %v",
			time.Duration(d.jitter)*ms, time.Duration(d.job.expireIn)*ms, time.Duration(d.job.dueIn)*ms, time.Duration(d.job.expireIn-d.job.dueIn)*ms))
	}
	if n := len(d.payload); n > maxPayload {
		d.job.fail(fmt.Errorf("payload of %d bytes, at most %d are allowed", n, maxPayload))
	}
	if err := d.compile(nil); err != nil && !errors.Is(err, errNoCalendar) {
		d.job.fail(err)
	}
	return d.job.check()
}

// firstSlot is the first slot after now: 0 for a calendar, which only servers know.
func (d *definition) firstSlot(now int64) (slot int64, err error) {
	if d.spec.kind == specCalendar {
		return 0, nil
	}
	slot, err = d.next(now)
	if err == nil && slot == 0 {
		err = fmt.Errorf("%w: %v has no slot any more", ErrInvalid, d.spec)
	}
	return slot, err
}

// jobAt makes the record of a slot's job, and tells its nonce and when it is due. The nonce follows from definition and slot, so that a
// call that got half way and its repetition make the same job.
func (d *definition) jobAt(name string, slot int64) (mark, head, tail string, due int64, err error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(d.nonce + " " + name + " " + strconv.FormatInt(slot, 10))) // never fails
	sum := mix(h.Sum64())
	o := d.job
	o.scheduled = true
	due = slot + o.dueIn
	if d.jitter > 0 {
		due += int64(mix(sum) % uint64(d.jitter+1))
	}
	o.dueAt, o.dueIn = min(due, maxDueMS), 0
	nonce := [nonceLen]byte(binary.LittleEndian.AppendUint64(nil, sum))
	head, tail, err = encodeRecord(nonce, &o, d.payload)
	return hex.EncodeToString(nonce[:]), head, tail, o.dueAt, err
}

// mix spreads a hash over all 64 bits: the last step of SplitMix64 (Steele, Lea and Flood).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// slotOf reads the ID of a schedule's job: name, @ and slot in Unix ms; or, if it was triggered, name, ! and the time, and
// a dot and a number behind it if it was not the first one of that ms.
func slotOf(id string) (name string, slot int64, triggered, ok bool) {
	at := strings.LastIndexAny(id, "@!")
	if at < 1 {
		return "", 0, false, false
	}
	triggered = id[at] == '!'
	ms, more, found := strings.Cut(id[at+1:], ".")
	slot, err := strconv.ParseInt(ms, 10, 64)
	if found {
		_, bad := strconv.ParseUint(more, 10, 64)
		ok = triggered && bad == nil
	} else {
		ok = true
	}
	return id[:at], slot, triggered, ok && err == nil
}

// Schedule creates a schedule, or puts another one in the place of the one with this name. From then on the servers of the topic enqueue a
// job of this payload at every slot of the spec: exactly one for each slot, however many servers there are. The ID of the job is the
// name, an @ and the slot in Unix ms; Job.Schedule and Job.Slot have the two. All clocks are Redis's. A topic that nobody handles takes schedules too:
// its slots are missed until somebody does.
//
// The same schedule again is left as it is, so a program may call Schedule at every start. A change keeps the counts, the history, a pause and
// the last job, and takes effect at the first slot after it; a slot that waited (QueueOne, CatchUp) is skipped.
//
// What [Client.EditSchedule] has changed stays as it was edited, and only the rest is changed, unless [Overwrite] is
// given. With [IfAbsent] nothing of a schedule that is there is changed. The client's [Defaults] are part of what is given.
//
// Names are bounded like topics and unique in their topic. Errors: ErrInvalid, also for a spec that has no slot any more, and for a schedule
// that together with the edits is none; ErrUnknownOutcome, after which the same call again is safe; or what Redis answered.
func (c *Client) Schedule(ctx context.Context, topic, name string, spec Spec, payload []byte, opts ...ScheduleOption) error {
	defaults := scheduleOption(func(d *definition) { d.job, _ = c.defaults().with(nil) }) // NewClient has checked them
	d := newDefinition(spec, payload, append([]ScheduleOption{defaults}, opts...))
	err := c.readySchedule(ctx, topic, name)
	if err != nil {
		err = errors.Join(err, d.check(math.MaxInt))
	} else {
		err = d.check(c.o.maxPayload)
	}
	if err == nil {
		err = c.define(ctx, topic, name, func(old *definition, bad error, _ int64) (*definition, error) {
			switch {
			case errors.Is(bad, ErrNotFound) || d.onto == ontoEdited:
				return d, nil
			case d.onto == ontoNothing:
				return nil, nil
			case bad != nil || old.edit.parts == "":
				return d, nil
			}
			merged := *d
			merged.keep(old)
			if err := merged.check(max(c.o.maxPayload, len(old.payload))); err != nil {
				return nil, fmt.Errorf("with %s as edited by %q: %w", old.edit.parts, old.edit.by, err)
			}
			return &merged, nil
		})
	}
	if err != nil {
		return located{call: "schedule", topic: topic, schedule: name}.at(err)
	}
	g := c.commit(topic)
	defer g.done()
	g.record(ctx, false)
	return nil
}

// newDefinition makes the definition of what Schedule is given.
func newDefinition(spec Spec, payload []byte, opts []ScheduleOption) *definition {
	d := &definition{spec: spec, job: defaultJob, payload: payload, size: len(payload)}
	for _, opt := range opts {
		if opt == nil {
			d.job.fail(errors.New("an option is nil"))
			continue
		}
		opt.applySchedule(d)
	}
	return d
}

// define puts a definition in the place of the one that a schedule has. next makes it of that one, or of what is wrong
// with it (ErrNotFound: there is none), and of Redis's time; it gives nil if nothing is to be done. If the schedule is
// changed in between, next is asked again.
func (c *Client) define(
	ctx context.Context, topic, name string, next func(old *definition, bad error, now int64) (*definition, error),
) error {
	for range defineTries {
		r, err := c.describe(ctx, topic, -1, name)
		if err != nil {
			return err
		}
		raw := r.list(2).text(0)
		old, bad := decodeDefinition(raw, true)
		if raw == "" {
			bad = ErrNotFound
		}
		d, err := next(old, bad, r.now())
		if err != nil || d == nil {
			return err
		}
		fresh, err := d.encode()
		if err != nil {
			return err
		}
		if len(raw) > nonceLen && raw[nonceLen:] == fresh[nonceLen:] {
			return nil // it may even have ended
		}
		slot, err := d.firstSlot(r.now())
		if err != nil {
			return err
		}
		state, err := c.one(ctx, scheduleScript, located{topic: topic, schedule: name}, func(k *keys, receipt string) []any {
			return names(k.schedules, k.slots, k.waiting, k.fired, k.runs, receipt)
		}, fresh, hex.EncodeToString([]byte(raw[:min(len(raw), nonceLen)])), slot, maxTick.Milliseconds(), controlChannel(c.o.prefix), topic)
		if err != nil || state != "changed" {
			return err
		}
	}
	return errChanging
}

// defineTries is how often a call begins anew because others change the schedule meanwhile: each time one of them has got on.
const defineTries = 100

// errChanging says that others never ceased to change a schedule.
var errChanging = fmt.Errorf("the schedule was changed %d times meanwhile", defineTries)

// readySchedule joins what is wrong with the client, the topic and the name of a schedule.
func (c *Client) readySchedule(ctx context.Context, topic, name string) error {
	if err := checkName("schedule name", name); err != nil {
		return errors.Join(c.ready(ctx, topic, ""), invalid([]error{err}))
	}
	return c.ready(ctx, topic, "")
}

// Unschedule removes a schedule, its counts and its history. When it has returned no slot is fired any more, and the job of the last slot is
// cancelled if it waits, backs off or snoozes. One that is running goes on, and other jobs of the schedule are jobs like any other: those of
// Trigger, and with Allow those of earlier slots. ErrNotFound if there is no such schedule.
func (c *Client) Unschedule(ctx context.Context, topic, name string) error {
	err := c.readySchedule(ctx, topic, name)
	if err == nil {
		_, err = c.one(ctx, unscheduleScript, located{topic: topic, schedule: name}, func(k *keys, receipt string) []any {
			return names(
				k.schedules, k.slots, k.waiting, k.fired, k.runs, receipt, k.pool, k.bucket, k.leases, k.dead, k.attempts, k.errors, k.moved, k.stats,
				k.ready,
			)
		})
	}
	return located{call: unscheduleScript.name, topic: topic, schedule: name}.at(err)
}

// PauseSchedule stops the firing of a schedule until ResumeSchedule. A job it has fired goes on; a slot that waits is skipped. Pausing it
// again changes nothing, and there is one pause whoever made it: it has no end of its own. ErrNotFound if there is no such schedule.
// Pause is for a whole topic.
func (c *Client) PauseSchedule(ctx context.Context, topic, name string) error {
	return c.suspend(ctx, topic, name, "pause")
}

// ResumeSchedule ends the pause of a schedule. Its next slot is the first one from now on: those during the pause are neither run nor missed. A
// schedule that is not paused is left as it is. ErrNotFound if there is no such schedule.
func (c *Client) ResumeSchedule(ctx context.Context, topic, name string) error {
	return c.suspend(ctx, topic, name, "resume")
}

func (c *Client) suspend(ctx context.Context, topic, name, verb string) error {
	err := c.upToDate(ctx, topic, name, verb == "resume", func(d *definition, now int64) (State, error) {
		nonce, next := "", ""
		if d != nil {
			nonce = d.nonce
			slot, err := d.firstSlot(now)
			if err != nil && !errors.Is(err, ErrInvalid) {
				return "", err
			}
			if err == nil {
				next = strconv.FormatInt(slot, 10)
			}
		}
		return c.one(ctx, suspendScript, located{topic: topic, schedule: name}, func(k *keys, receipt string) []any {
			return names(k.slots, k.waiting, k.fired, receipt, k.operator)
		}, verb, nonce, next, maxTick.Milliseconds(), controlChannel(c.o.prefix), topic)
	})
	return located{call: verb, topic: topic, schedule: name}.at(err)
}

// Trigger enqueues a job of a schedule now, beside its rhythm: whatever its policies, also while it is paused or after it has ended. It counts
// neither as a slot nor for MaxRuns. The ID that is returned is the name, an exclamation mark and the time in Unix ms; from the second job of
// one ms on, a dot and a number follow. Each call makes one job, also if go-redis sends it twice, and any number may be triggered at a time. ErrNotFound if there is no such schedule.
func (c *Client) Trigger(ctx context.Context, topic, name string) (id string, err error) {
	err = c.upToDate(ctx, topic, name, true, func(d *definition, _ int64) (State, error) {
		var nonce [nonceLen]byte
		binary.LittleEndian.PutUint64(nonce[:], mathrand.Uint64())
		d.job.scheduled = true
		head, tail, err := encodeRecord(nonce, &d.job, d.payload)
		if err != nil {
			return "", err
		}
		state, err := c.one(ctx, triggerScript, located{topic: topic, schedule: name}, func(k *keys, receipt string) []any {
			return names(k.fired, k.pool, k.bucket, k.ready, k.stats, k.sizes, receipt)
		}, d.nonce, head, tail, d.job.dueIn, maxTick.Milliseconds(), controlChannel(c.o.prefix), topic)
		id = string(state)
		return state, err
	})
	if err != nil {
		return "", located{call: triggerScript.name, topic: topic, schedule: name}.at(err)
	}
	return id, nil
}

// upToDate reads the definition of a schedule, if that is needed, and does something by it; once more, if the schedule is changed in between.
func (c *Client) upToDate(ctx context.Context, topic, name string, read bool, do func(d *definition, now int64) (State, error)) error {
	if err := c.readySchedule(ctx, topic, name); err != nil {
		return err
	}
	for range defineTries {
		var d *definition
		var now int64
		if read {
			r, err := c.describe(ctx, topic, -1, name)
			if err != nil {
				return err
			}
			raw := r.list(2).text(0)
			if raw == "" {
				return ErrNotFound
			}
			if d, err = decodeDefinition(raw, true); err != nil {
				return err
			}
			if err := d.compile(nil); err != nil && !errors.Is(err, errNoCalendar) {
				return err
			}
			now = r.now()
		}
		if state, err := do(d, now); err != nil || state != "changed" {
			return err
		}
	}
	return errChanging
}

// describe is one call of the describe script. It tells of the first of those that are asked for, of as many as can be read in a moment.
func (c *Client) describe(ctx context.Context, topic string, size int, which ...string) (reply, error) {
	k := newKeys(c.o.prefix, topic)
	args := make([]any, 2, 2+len(which))
	args[0], args[1] = size, callBytes
	for _, name := range which {
		args = append(args, name)
	}
	return c.scripts.call(ctx, describeScript, topic, 0, names(
		k.schedules, k.slots, k.waiting, k.fired, k.runs, k.pool, k.leases, k.dead,
	), args...)
}
