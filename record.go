package delayq

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// A record is the value of a job in the pool, written once at enqueue:
//
//	nonce (8 random bytes) · format version (1 byte) · flags (1 byte) · msgpack array
//
// The array has the metadata first and the payload last, so that a list needs only the first bytes
// of each record:
//
//	enqueued at (13 digits, Unix ms) · due at, in · retry · backoff min, max · timeout ·
//	expire at, in · retention · headers · payload size · payload
//
// The script that enqueues inserts the time, because it is Redis's. It receives the head (up to the
// array's first byte) and the tail (from due at on). docs/protocol.md describes the format for
// other languages.
const (
	recordVersion = 1
	recordFields  = 13
	nonceLen      = 8
	headLen       = nonceLen + 3
	stampLen      = 14 // 0xad and 13 digits
	flagLimited   = 1  // the job's retries are limited: take.lua reads it
	flagSchedule  = 2  // the job belongs to a schedule: its ID holds the schedule and the slot
	flagExpires   = 4  // the job has an expiry: reschedule.lua reads it
)

// ofSchedule reports whether a record is that of a schedule's job.
func ofSchedule(raw string) bool { return len(raw) > nonceLen+1 && raw[nonceLen+1]&flagSchedule != 0 }

// errNewerRecord is the error for a record that a later release of delayq wrote. The record is left
// for a server that can read it.
var errNewerRecord = errors.New("record of a newer format version")

// record is a decoded record.
type record struct {
	nonce      string
	enqueuedAt int64
	due        int64
	opts       jobOptions
	size       int
	payload    []byte
}

var (
	buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	readers = sync.Pool{New: func() any { return new(bytes.Reader) }}
)

// encodeRecord returns the head and the tail of a record.
func encodeRecord(nonce [nonceLen]byte, o *jobOptions, payload []byte) (head, tail string, err error) {
	buf := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	buf.Reset()
	buf.Write(nonce[:])
	buf.WriteByte(recordVersion)
	flags := byte(0)
	if o.retry >= 0 {
		flags |= flagLimited
	}
	if o.scheduled {
		flags |= flagSchedule
	}
	if o.expireAt > 0 || o.expireIn > 0 {
		flags |= flagExpires
	}
	buf.WriteByte(flags)

	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(buf)
	enc.UseCompactInts(true)
	if err := enc.EncodeArrayLen(recordFields); err != nil {
		return "", "", err
	}
	if err := encodeOptions(enc, o, len(payload)); err != nil {
		return "", "", err
	}
	buf.Write(payload)
	whole := buf.String()
	return whole[:headLen], whole[headLen:], nil
}

// encodeOptions writes the part of a record after the enqueue time, except the payload's own bytes.
func encodeOptions(enc *msgpack.Encoder, o *jobOptions, size int) error {
	for _, n := range [...]int64{
		o.dueAt, o.dueIn, int64(o.retry), o.backoffMin, o.backoffMax, o.timeout, o.expireAt, o.expireIn, o.retention,
	} {
		if err := enc.EncodeInt(n); err != nil {
			return err
		}
	}
	if err := encodeHeaders(enc, o.headers); err != nil {
		return err
	}
	if err := enc.EncodeInt(int64(size)); err != nil {
		return err
	}
	return enc.EncodeBytesLen(size)
}

func encodeHeaders(enc *msgpack.Encoder, headers map[string]string) error {
	if len(headers) == 0 {
		return enc.EncodeNil()
	}
	if err := enc.EncodeMapLen(len(headers)); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(headers)) {
		// the same headers result in the same bytes
		if err := enc.EncodeString(k); err != nil {
			return err
		}
		if err := enc.EncodeString(headers[k]); err != nil {
			return err
		}
	}
	return nil
}

// nonceOf returns the nonce of a record, or "" if there is none.
func nonceOf(raw string) string {
	if len(raw) < nonceLen {
		return ""
	}
	return strings.Clone(raw[:nonceLen]) // so that the whole record can be freed
}

// decodeRecord reads a record. It returns an error for invalid bytes and never panics.
func decodeRecord(raw string) (record, error) { return decodeHead(raw, true) }

// decodeHead reads a record. Unless whole is set, it reads only the part before the payload.
func decodeHead(raw string, whole bool) (r record, err error) {
	if len(raw) < headLen+stampLen {
		return r, fmt.Errorf("record of %d bytes is too short", len(raw))
	}
	switch version := raw[nonceLen]; {
	case version > recordVersion:
		return r, fmt.Errorf("%w: %d, this release reads up to %d", errNewerRecord, version, recordVersion)
	case version < 1:
		return r, fmt.Errorf("invalid record format version %d", version)
	}
	if first := raw[headLen-1]; first != 0x90|recordFields {
		return r, fmt.Errorf("record does not begin with an array of %d fields but with 0x%02x", recordFields, first)
	}
	r.nonce = nonceOf(raw)
	if r.enqueuedAt, err = decodeStamp(raw[headLen:]); err != nil {
		return r, err
	}
	if err := r.decodeTail(raw[headLen+stampLen:], whole); err != nil {
		return r, fmt.Errorf("decode record: %w", err)
	}
	r.due = r.opts.due(r.enqueuedAt)
	return r, nil
}

func decodeStamp(s string) (int64, error) {
	if s[0] != 0xad {
		return 0, fmt.Errorf("enqueue time is not a 13-digit string but begins with 0x%02x", s[0])
	}
	ms, err := strconv.ParseInt(s[1:stampLen], 10, 64)
	if err != nil {
		// err would show them: any bytes, perhaps of a payload
		return 0, errors.New("enqueue time is not a 13-digit number")
	}
	return ms, nil
}

func (r *record) decodeTail(tail string, whole bool) error {
	raw := []byte(tail)
	in := readers.Get().(*bytes.Reader)
	defer readers.Put(in)
	in.Reset(raw)
	defer in.Reset(nil)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(in)
	var err error
	if r.size, err = decodeOptions(dec, &r.opts); err != nil {
		return err
	}
	if whole {
		n, err := dec.DecodeBytesLen()
		if err != nil {
			return fmt.Errorf("payload: %w", err)
		}
		if n != in.Len() || n != r.size {
			return fmt.Errorf("payload of %d bytes, %d announced", in.Len(), n)
		}
		r.payload = raw[len(raw)-n:]
	}
	given := r.opts.backoffMin != 0 || r.opts.backoffMax != 0
	if given && (r.opts.backoffMin < 1 || r.opts.backoffMax < r.opts.backoffMin || r.opts.backoffMax > ceilMS(maxDelay)) {
		return fmt.Errorf("invalid backoff of %d to %d ms", r.opts.backoffMin, r.opts.backoffMax)
	}
	return nil
}

// decodeOptions reads everything up to the payload, and returns the payload's size.
func decodeOptions(dec *msgpack.Decoder, o *jobOptions) (size int, err error) {
	var retry int64
	for _, field := range [...]*int64{
		&o.dueAt, &o.dueIn, &retry, &o.backoffMin, &o.backoffMax, &o.timeout, &o.expireAt, &o.expireIn, &o.retention,
	} {
		if *field, err = dec.DecodeInt64(); err != nil {
			return 0, err
		}
	}
	o.retry = int(retry)
	if o.headers, err = decodeHeaders(dec); err != nil {
		return 0, fmt.Errorf("headers: %w", err)
	}
	if size, err = dec.DecodeInt(); err != nil {
		return 0, fmt.Errorf("payload size: %w", err)
	}
	return size, nil
}

func decodeHeaders(dec *msgpack.Decoder) (map[string]string, error) {
	n, err := dec.DecodeMapLen()
	if err != nil || n <= 0 {
		return nil, err
	}
	if n > maxHeaderLen {
		return nil, fmt.Errorf("%d headers are too many", n)
	}
	headers := make(map[string]string)
	for range n {
		k, err := dec.DecodeString()
		if err != nil {
			return nil, err
		}
		if headers[k], err = dec.DecodeString(); err != nil {
			return nil, err
		}
	}
	return headers, nil
}

// expires returns the time from which the job is dropped instead of started, 0 for never.
func (r *record) expires() int64 { return r.opts.expires(r.enqueuedAt) }

// moved is a job's entry in the hash of that name: its present due time, the reason for it, and its
// tally.
type moved struct {
	due int64
	why string
	tally
}

// A tally is the history of a job in its moved entry. Every write of the entry carries it over.
type tally struct {
	spent   int  // finished attempts that no longer count against the retries
	snoozes int  // number of snoozes since the enqueueing
	revived bool // the job was revived: its expiry no longer applies
}

func (y tally) encode() string {
	revived := 0
	if y.revived {
		revived = 1
	}
	return fmt.Sprintf("%d %d %d", y.spent, y.snoozes, revived)
}

// snoozed returns the tally of a job after its handler snoozes it, with that many finished
// attempts.
func (y tally) snoozed(finished int) tally {
	y.spent, y.snoozes = finished, y.snoozes+1
	return y
}

// parseMoved reads an entry. It rejects numbers of more than 13 digits; check.lua removes such an
// entry.
func parseMoved(s string) (m moved, ok bool) {
	field := strings.Fields(s)
	if len(field) != 5 || field[4] != "0" && field[4] != "1" {
		return m, false
	}
	var err1, err2, err3 error
	m.due, err1 = strconv.ParseInt(field[0], 10, 64)
	m.spent, err2 = strconv.Atoi(field[2])
	m.snoozes, err3 = strconv.Atoi(field[3])
	m.why, m.revived = field[1], field[4] == "1"
	fits := func(n int64) bool { return n >= 0 && n <= maxDueMS }
	return m, errors.Join(err1, err2, err3) == nil && fits(m.due) && fits(int64(m.spent)) && fits(int64(m.snoozes))
}

func msTime(ms int64) time.Time { return time.UnixMilli(ms) }
