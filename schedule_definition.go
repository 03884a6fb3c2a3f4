package delayq

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// A definition holds what a schedule does. It never changes: [Client.Schedule] replaces it by
// another one. In Redis it is
//
//	nonce (8 random bytes) · format version (1 byte) · msgpack array
//
// with the numbers, the policies, the time of the edit and the texts, then the fields that follow
// the enqueue time in a record. docs/protocol.md describes the format.
type definition struct {
	spec    Spec
	first   int64 // the earliest slot, Unix ms; 0: any
	last    int64 // the latest slot, Unix ms; 0: none
	most    int64 // maximum number of jobs; 0: no limit
	jitter  int64 // ms
	overlap OverlapPolicy
	missed  MissedPolicy
	job     jobOptions
	payload []byte
	size    int // of the payload, in bytes
	edit    edit

	onto   onto
	nonce  string // hexadecimal
	next   rhythm
	walked int // how many slots due has computed
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

// encode returns the encoding of the definition with a new nonce.
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

// decodeDefinition decodes a definition. If whole is false, raw can be only the beginning of one,
// and the definition has no payload.
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
		err = fmt.Errorf("invalid values: spec %q, overlap %v, missed %v", d.spec, d.overlap, d.missed)
	}
	if err != nil {
		return nil, fmt.Errorf("decode definition: %w", err)
	}
	d.payload = body[len(body)-n:]
	return d, nil
}

// compile computes the rhythm of the definition.
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

// validate returns the errors of the whole definition.
func (d *definition) validate(maxPayload int) error {
	if d.job.dueAt > 0 {
		d.job.fail(errors.New("ProcessAt: the jobs of a schedule are due at their slots; StartAt sets the first"))
	}
	if d.job.replace != replaceNone {
		d.job.fail(errors.New("Replace and ReplaceDead: each job of a schedule has a new ID"))
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
	return d.job.validate()
}

// firstSlot returns the first slot after now. For a calendar it returns 0, because only servers
// know calendars.
func (d *definition) firstSlot(now int64) (slot int64, err error) {
	if d.spec.kind == specCalendar {
		return 0, nil
	}
	slot, err = d.next(now)
	if err == nil && slot == 0 {
		err = fmt.Errorf("%w: %v has no future slots", ErrInvalid, d.spec)
	}
	return slot, err
}

// jobAt returns the record of a slot's job with its nonce and its due time. The nonce is derived
// from the definition and the slot, so a call that was interrupted and its repetition store the
// same job.
func (d *definition) jobAt(name string, slot int64) (mark, head, tail string, due int64, err error) {
	h := fnv.New64a()
	// Write of a hash never fails.
	_, _ = h.Write([]byte(d.nonce + " " + name + " " + strconv.FormatInt(slot, 10)))
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

// mix spreads a hash over all 64 bits. It is the last step of SplitMix64 (Steele, Lea and Flood).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// slotOf parses the ID of a schedule's job: the name, an @ and the slot in Unix ms. The ID of a
// triggered job is the name, an exclamation mark and the time in Unix ms. A dot and a number
// follow it if the job was not the first one of that millisecond.
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

// newDefinition returns the definition for the arguments of Schedule.
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
