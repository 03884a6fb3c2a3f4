package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// A Definition is what a schedule does. It never changes: another one replaces it. The hash
// schedules holds it as
//
//	nonce (8 random bytes) · format version (1 byte) · msgpack array
//
// with the numbers, the policies, the time of the edit and the texts, then the fields that follow
// the enqueue time in the record of a job. The format version is that of the records of its jobs.
type Definition struct {
	Nonce   string // hexadecimal; Encode makes a new one
	Spec    Spec
	First   int64 // the earliest slot; 0: any
	Last    int64 // the latest slot; 0: none
	Most    int64 // maximum number of jobs; 0: no limit
	Jitter  int64
	Overlap Overlap
	Missed  Missed
	Edit    Edit
	Job     Options
	Payload []byte
	Size    int // of the payload, in bytes
}

// A Spec is the rule for the slots of a schedule. Specs can be compared.
type Spec struct {
	Kind  SpecKind
	Every int64  // ms, of an interval
	Text  string // of a cron rule; the name of a calendar
	Zone  string // of a cron rule
}

// A SpecKind is the kind of a [Spec].
type SpecKind int64

// The kinds of specs.
const (
	Interval SpecKind = iota + 1
	Cron
	Calendar
)

// String describes the spec: "every 10s", "cron 0 9 * * 1-5 Europe/Berlin", "calendar bank-days".
func (s Spec) String() string {
	switch s.Kind {
	case Interval:
		return "every " + (time.Duration(s.Every) * time.Millisecond).String()
	case Cron:
		return strings.TrimSpace("cron " + s.Text + " " + s.Zone)
	case Calendar:
		return "calendar " + s.Text
	}
	return "none"
}

// An Edit says which parts of a definition an operator has changed, and who changed it last. The
// zero Edit means none.
type Edit struct {
	At    int64
	By    string
	Parts string // names of parts, separated by spaces
}

// Names returns the names of the parts.
func (e Edit) Names() []string { return strings.Fields(e.Parts) }

const definitionFields = 13 + jobFields - 1

// Encode returns the encoding of the definition with a new nonce.
func (d *Definition) Encode() (string, error) {
	var buf bytes.Buffer
	nonce := NewNonce()
	buf.Write(nonce[:])
	version, fields := byte(Version), definitionFields
	if d.Job.Key != "" {
		version, fields = VersionKeyed, definitionFields+keyFields
	}
	buf.WriteByte(version)
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.UseCompactInts(true)
	err := enc.EncodeArrayLen(fields)
	for _, n := range [...]int64{
		int64(d.Spec.Kind), d.Spec.Every, d.First, d.Last, d.Most, d.Jitter, int64(d.Overlap), int64(d.Missed), d.Edit.At,
	} {
		err = errors.Join(err, enc.EncodeInt(n))
	}
	for _, text := range [...]string{d.Spec.Text, d.Spec.Zone, d.Edit.By, d.Edit.Parts} {
		err = errors.Join(err, enc.EncodeString(text))
	}
	if d.Job.Key != "" {
		d.Job.encodeKey(&buf)
	}
	err = errors.Join(err, d.Job.encode(enc, len(d.Payload)))
	buf.Write(d.Payload)
	return buf.String(), err
}

// DecodeDefinition reads a definition.
func DecodeDefinition(raw string) (*Definition, error) { return decodeDefinition(raw, true) }

// DecodeDefinitionMeta reads the part of a definition before its payload. raw can end within the
// payload.
func DecodeDefinitionMeta(raw string) (*Definition, error) { return decodeDefinition(raw, false) }

func decodeDefinition(raw string, whole bool) (*Definition, error) {
	if len(raw) <= NonceLen+1 {
		return nil, fmt.Errorf("definition of %d bytes is too short", len(raw))
	}
	version := raw[NonceLen]
	if version < 1 || version > VersionKeyed {
		return nil, fmt.Errorf("definition of format version %d, this release reads 1 to %d", version, VersionKeyed)
	}
	d := &Definition{Nonce: HexNonceOf(raw)}
	if err := d.decode([]byte(raw[NonceLen+1:]), version == VersionKeyed, whole); err != nil {
		return nil, fmt.Errorf("decode definition: %w", err)
	}
	return d, nil
}

func (d *Definition) decode(body []byte, keyed, whole bool) error {
	in := bytes.NewReader(body)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(in)
	n, err := dec.DecodeArrayLen()
	fields := definitionFields
	if keyed {
		fields += keyFields
	}
	if err == nil && n != fields {
		err = fmt.Errorf("%d fields instead of %d", n, fields)
	}
	for _, field := range [...]*int64{
		(*int64)(&d.Spec.Kind), &d.Spec.Every, &d.First, &d.Last, &d.Most, &d.Jitter, (*int64)(&d.Overlap), (*int64)(&d.Missed), &d.Edit.At,
	} {
		if err == nil {
			*field, err = dec.DecodeInt64()
		}
	}
	for _, field := range [...]*string{&d.Spec.Text, &d.Spec.Zone, &d.Edit.By, &d.Edit.Parts} {
		if err == nil {
			*field, err = dec.DecodeString()
		}
	}
	if err == nil && keyed {
		err = d.Job.decodeKey(dec)
	}
	if err == nil {
		d.Size, err = d.Job.decode(dec, 0)
	}
	if err != nil || !whole {
		return err
	}
	if d.Payload, err = lastBytes(dec, in, body, d.Size); err != nil {
		return err
	}
	if d.Spec.Kind == Interval && d.Spec.Every < 1 || !d.Overlap.Known() || !d.Missed.Known() {
		return fmt.Errorf("invalid values: spec %q, overlap %v, missed %v", d.Spec, d.Overlap, d.Missed)
	}
	return nil
}

// SameDefinition reports whether two encodings differ in nothing but their nonces.
func SameDefinition(a, b string) bool {
	return len(a) > NonceLen && len(b) > NonceLen && a[NonceLen:] == b[NonceLen:]
}

// ScheduleState is the state of a schedule in the hash fired, as JSON. Only scripts write it.
type ScheduleState struct {
	Nonce   string `json:"nonce"`   // of the definition, hexadecimal
	Made    int64  `json:"made"`    // when the schedule was created
	Changed int64  `json:"changed"` // when it was last changed
	Fired   int64  `json:"fired"`   // number of jobs
	Since   int64  `json:"since"`   // Fired at the last change
	From    int64  `json:"from"`    // time of the last change or resume; only later slots count
	Skipped int64  `json:"skipped"` // number of slots
	Missed  int64  `json:"missed"`  // number of slots
	Slot    int64  `json:"slot"`    // the last slot that was fired
	At      int64  `json:"at"`      // when Slot was fired
	Job     string `json:"job"`     // ID of the job of Slot
	Paused  int64  `json:"paused"`  // when it was paused; 0: it is not
	Ended   bool   `json:"ended"`   // there are no further slots
	// Catching is set while a missed slot waits: the last slot of its gap. 0: the slot that waits
	// was not missed.
	Catching int64 `json:"catching"`
}

// DecodeScheduleState reads a state. With an error it returns what could be read.
func DecodeScheduleState(text string) (s ScheduleState, err error) {
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("state: %w", err)
	}
	return s, nil
}

// A SlotID is the content of the ID of a schedule's job: the name, an @ and the slot. The ID of a
// triggered job is the name, an exclamation mark and the time. A dot and a number follow it if the
// job was not the first one of that millisecond.
type SlotID struct {
	Schedule  string
	Slot      int64 // of a triggered job: when it was triggered
	Triggered bool
}

// DecodeSlotID reads the ID of a schedule's job.
func DecodeSlotID(id string) (s SlotID, ok bool) {
	at := strings.LastIndexAny(id, "@!")
	if at < 1 {
		return s, false
	}
	s.Schedule, s.Triggered = id[:at], id[at] == '!'
	ms, more, found := strings.Cut(id[at+1:], ".")
	slot, err := strconv.ParseInt(ms, 10, 64)
	if found {
		_, bad := strconv.ParseUint(more, 10, 64)
		ok = s.Triggered && bad == nil
	} else {
		ok = true
	}
	s.Slot = slot
	return s, ok && err == nil
}
