package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// A Job is the value of a job in the pool, its record, which is written once at enqueue:
//
//	nonce (8 random bytes) · format version (1 byte) · flags (1 byte) · msgpack array
//
// The array has the metadata first and the payload last, so that a list needs only the first bytes
// of each record:
//
//	enqueued at (13 digits, Unix ms) · due at, in · retry · backoff min, max · timeout ·
//	expire at, in · retention · headers · payload size · payload
//
// The record of a job with a key has format version 2, and its array two more values, after the
// time: the key (bin 8) and the head start (int 32, ms). Both have fixed encodings, because scripts
// read them.
//
// A plan has format version 3, or 4 with a key. In the place of its headers is an array of five:
// the headers, the index of its stage, whether failed stages run again (0 or 1), the array of its
// due times, and an array with five values of each failed stage. Its due time is that of its stage.
//
// A step of a flow has format version 5, or 6 with a key. In the place of its headers is an array
// of two: the headers, and an array of four: the topic and the ID of the last step, the name of the
// flow, and the number of the step (int 32), -1 of the last one. No such job has a plan.
//
// Later releases may write other versions. Whatever these add, the nonce, the version, the flags,
// the time and, if the version is even, the key and the head start are where they are here.
//
// The time is Redis's. The script that enqueues receives the head (up to the array's first byte)
// and the tail (what follows the time), and inserts it. Or it receives all, with a guess.
type Job struct {
	Nonce      string
	EnqueuedAt int64
	Options    Options
	Size       int // of the payload, in bytes
	Payload    []byte
}

// The format versions of records: of jobs without a key and of those with one, and the same of
// plans and of steps of flows. MaxVersion is the last one that this release reads.
const (
	Version      = 1
	VersionKeyed = 2
	MaxVersion   = 6

	planVersions = 2 // what a plan adds to the version
	flowVersions = 4 // what a flow adds
)

// more says what a record has beside its headers, by what this adds to its format version.
func more(version byte) byte { return version - 1 - (version-1)%2 }

// HasKey reports whether a record is that of a job with a key, by its format version.
func HasKey(rec string) bool { return len(rec) > NonceLen && rec[NonceLen]%2 == 0 }

// Lengths in bytes: of the nonce, of the part before the enqueue time, and of the enqueue time.
const (
	NonceLen = 8
	HeadLen  = NonceLen + 3
	StampLen = 14 // 0xad and 13 digits
)

const (
	jobFields   = 13
	keyFields   = 2 // more of a job with a key
	flagLimited = 1 // the job's retries are limited: take.lua reads it
	flagSlot    = 2 // a schedule made the job: its ID holds the schedule and the slot
	flagExpires = 4 // the job has an expiry: reschedule.lua reads it
	flagLast    = 8 // the job is the last step of a flow
)

// A Nonce identifies one incarnation of a job or of a definition.
type Nonce [NonceLen]byte

// NewNonce returns a random nonce.
func NewNonce() (n Nonce) {
	binary.LittleEndian.PutUint64(n[:], rand.Uint64())
	return n
}

// NonceOf returns the nonce of a record, or "" if there is none.
func NonceOf(raw string) string {
	if len(raw) < NonceLen {
		return ""
	}
	return strings.Clone(raw[:NonceLen]) // so that the whole record can be freed
}

// HexNonceOf returns the nonce of a record or a definition in hexadecimal digits.
func HexNonceOf(raw string) string { return hex.EncodeToString([]byte(raw[:min(len(raw), NonceLen)])) }

// ErrNewer is the error for a record that a later release of delayq wrote. The record is left for a
// server that can decode it.
var ErrNewer = errors.New("record of a later release")

var (
	buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	readers = sync.Pool{New: func() any { return new(bytes.Reader) }}
)

// A Draft is a record whose enqueue time can still be set. It has 0 until then.
type Draft []byte

// NewDraft encodes a job.
func NewDraft(nonce Nonce, o *Options, payload []byte) (Draft, error) {
	buf := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	if err := encode(buf, nonce, o, len(payload)); err != nil {
		return nil, err
	}
	whole := make(Draft, 0, buf.Len()+len(payload))
	return append(append(whole, buf.Bytes()...), payload...), nil
}

// Enqueue sets the enqueue time, in Unix ms.
func (d Draft) Enqueue(at int64) {
	for i := HeadLen + StampLen - 1; i > HeadLen; i-- {
		d[i] = byte('0' + at%10)
		at /= 10
	}
}

// Head and Tail are the parts before and after the enqueue time.
func (d Draft) Head() []byte { return d[:HeadLen] }
func (d Draft) Tail() []byte { return d[HeadLen+StampLen:] }

// Encode returns the head and the tail of a record. The script inserts the enqueue time.
func Encode(nonce Nonce, o *Options, payload []byte) (head, tail string, err error) {
	buf := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	if err := encode(buf, nonce, o, len(payload)); err != nil {
		return "", "", err
	}
	var whole strings.Builder
	whole.Grow(buf.Len() + len(payload))
	whole.Write(buf.Bytes())
	whole.Write(payload)
	return whole.String()[:HeadLen], whole.String()[HeadLen+StampLen:], nil
}

// encode writes a record up to the bytes of its payload, with 0 as the enqueue time.
func encode(buf *bytes.Buffer, nonce Nonce, o *Options, size int) error {
	buf.Reset()
	buf.Write(nonce[:])
	version, fields := byte(Version), jobFields
	if o.Key != "" {
		version, fields = VersionKeyed, jobFields+keyFields
	}
	switch {
	case o.Plan != nil && o.Flow != nil:
		return errors.New("a step of a flow cannot have a plan")
	case o.Plan != nil:
		version += planVersions
	case o.Flow != nil:
		version += flowVersions
	}
	buf.WriteByte(version)
	buf.WriteByte(o.flags())

	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(buf)
	enc.UseCompactInts(true)
	if err := enc.EncodeArrayLen(fields); err != nil {
		return err
	}
	buf.WriteString(noStamp)
	if o.Key != "" {
		o.encodeKey(buf)
	}
	return o.encode(enc, size)
}

// flags returns the flags of a record.
func (o *Options) flags() byte {
	flags := byte(0)
	if o.Retry >= 0 {
		flags |= flagLimited
	}
	if o.Scheduled {
		flags |= flagSlot
	}
	if o.ExpireAt > 0 || o.ExpireIn > 0 {
		flags |= flagExpires
	}
	if o.Flow != nil && o.Flow.Last() {
		flags |= flagLast
	}
	return flags
}

// noStamp is the enqueue time 0.
const noStamp = "\xad0000000000000"

// Join returns the record of a head and a tail, as enqueue.lua stores it.
func Join(head string, enqueuedAt int64, tail string) string {
	return fmt.Sprintf("%s\xad%013d%s", head, enqueuedAt, tail)
}

// DueHead is how many bytes of a record are enough for DueOf.
const DueHead = HeadLen + StampLen + 2 + MaxName + 5 + 2*9 // key, head start, two integers of msgpack

// DueOf returns the due time in the first bytes of a record, or 0 if it cannot be decoded.
func DueOf(raw string) int64 {
	if len(raw) < HeadLen+StampLen || headOf(raw) != nil {
		return 0
	}
	at, err := decodeStamp(raw[HeadLen:])
	if err != nil {
		return 0
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(strings.NewReader(raw[HeadLen+StampLen:]))
	var o Options
	if HasKey(raw) && o.decodeKey(dec) != nil {
		return 0
	}
	if o.DueAt, err = dec.DecodeInt64(); err != nil {
		return 0
	}
	if o.DueIn, err = dec.DecodeInt64(); err != nil {
		return 0
	}
	return o.Due(at)
}

// Decode reads a record. With [ErrNewer], or if what follows its enqueue time is damaged, it
// returns what all versions have, as far as it can be read: the nonce, the enqueue time, the key,
// the head start and whether a schedule made the job. With any other error it returns the zero Job.
func Decode(raw string) (Job, error) { return decode(raw, true) }

// DecodeMeta reads the part of a record before its payload. raw can end within the payload.
func DecodeMeta(raw string) (Job, error) { return decode(raw, false) }

func decode(raw string, whole bool) (j Job, err error) {
	if len(raw) < HeadLen+StampLen {
		return Job{}, fmt.Errorf("record of %d bytes is too short", len(raw))
	}
	if err := headOf(raw); errors.Is(err, ErrNewer) {
		return decodeCommon(raw), err
	} else if err != nil {
		return Job{}, err
	}
	if j.EnqueuedAt, err = decodeStamp(raw[HeadLen:]); err != nil {
		return Job{}, err
	}
	j.Nonce = NonceOf(raw)
	if err := j.decodeTail(raw[HeadLen+StampLen:], HasKey(raw), more(raw[NonceLen]), whole); err != nil {
		return decodeCommon(raw), fmt.Errorf("decode record: %w", err)
	}
	j.Options.Scheduled = raw[NonceLen+1]&flagSlot != 0
	return j, nil
}

// decodeCommon reads what the records of all releases have in the same place.
func decodeCommon(raw string) (j Job) {
	j.Nonce = NonceOf(raw)
	j.Options.Scheduled = raw[NonceLen+1]&flagSlot != 0
	at, err := decodeStamp(raw[HeadLen:])
	if err != nil {
		return j
	}
	j.EnqueuedAt = at
	if HasKey(raw) {
		var o Options
		if o.decodeKey(msgpack.NewDecoder(strings.NewReader(raw[HeadLen+StampLen:]))) == nil {
			j.Options.Key, j.Options.HeadStart = o.Key, o.HeadStart
		}
	}
	return j
}

// headOf checks the head of a record, which must be complete.
func headOf(raw string) error {
	fields := jobFields
	switch version := raw[NonceLen]; {
	case version > MaxVersion:
		return fmt.Errorf("%w: format version %d, this one reads up to %d", ErrNewer, version, MaxVersion)
	case version < 1:
		return fmt.Errorf("invalid record format version %d", version)
	case HasKey(raw):
		fields += keyFields
	}
	if first := raw[HeadLen-1]; first != byte(0x90|fields) {
		return fmt.Errorf("record does not begin with an array of %d fields but with 0x%02x", fields, first)
	}
	return nil
}

func decodeStamp(s string) (int64, error) {
	if s[0] != 0xad {
		return 0, fmt.Errorf("enqueue time is not a 13-digit string but begins with 0x%02x", s[0])
	}
	ms, err := strconv.ParseInt(s[1:StampLen], 10, 64)
	if err != nil {
		// err would show them: any bytes, perhaps of a payload
		return 0, errors.New("enqueue time is not a 13-digit number")
	}
	return ms, nil
}

func (j *Job) decodeTail(tail string, keyed bool, more byte, whole bool) error {
	raw := []byte(tail)
	in := readers.Get().(*bytes.Reader)
	defer readers.Put(in)
	in.Reset(raw)
	defer in.Reset(nil)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(in)
	var err error
	if keyed {
		if err = j.Options.decodeKey(dec); err != nil {
			return err
		}
	}
	if j.Size, err = j.Options.decode(dec, more); err != nil {
		return err
	}
	if whole {
		if j.Payload, err = lastBytes(dec, in, raw, j.Size); err != nil {
			return err
		}
	}
	o := &j.Options
	given := o.BackoffMin != 0 || o.BackoffMax != 0
	if given && (o.BackoffMin < 1 || o.BackoffMax < o.BackoffMin || o.BackoffMax > MaxDelay) {
		return fmt.Errorf("invalid backoff of %d to %d ms", o.BackoffMin, o.BackoffMax)
	}
	return nil
}

// lastBytes returns the last value of raw, which in has not read yet: a payload of the given size.
func lastBytes(dec *msgpack.Decoder, in *bytes.Reader, raw []byte, size int) ([]byte, error) {
	n, err := dec.DecodeBytesLen()
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	if n != in.Len() || n != size {
		return nil, fmt.Errorf("payload of %d bytes, %d announced", in.Len(), n)
	}
	return raw[len(raw)-n:], nil
}

// Due returns the due time of the job by its record.
func (j *Job) Due() int64 { return j.Options.Due(j.EnqueuedAt) }

// Expires returns the time from which the job is dropped instead of started, 0 for never.
func (j *Job) Expires() int64 { return j.Options.Expires(j.EnqueuedAt) }
