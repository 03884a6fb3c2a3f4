package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Options holds the values of the options of a job. A schedule has them too, for its jobs.
type Options struct {
	DueAt      int64 // Unix ms; 0: DueIn applies
	DueIn      int64 // ms after the enqueueing
	Retry      int   // retries after the first failure; [NotSet]; otherwise below 0: unlimited
	BackoffMin int64 // 0: not set
	BackoffMax int64
	Timeout    int64 // 0: not set
	ExpireAt   int64 // Unix ms; 0: ExpireIn applies
	ExpireIn   int64 // ms after the enqueueing; 0: never
	Retention  int64 // 0: not set
	Headers    map[string]string
	Key        string // of the lane; empty: none
	HeadStart  int64  // ms, from -MaxHeadStart to MaxHeadStart; 0 without a key

	// Plan has the stages of a job with several due times: DueAt is that of its stage. Nil: it has
	// one. A schedule has none.
	Plan *Plan

	// Flow says of which flow the job is a step. Nil: of none. A schedule has none.
	Flow *Flow

	// Scheduled is set if a schedule made the job. It is a flag of a job, and not part of the
	// definition of a schedule.
	Scheduled bool

	filled filled
}

// filled has a bit for each value that Fill has taken from the defaults.
type filled uint8

const (
	filledRetry filled = 1 << iota
	filledBackoff
	filledTimeout
	filledRetention
)

// NotSet is the Retry of a job that leaves it to the defaults of its handler.
const NotSet = -2

// Due returns the due time of a job that was enqueued at now, as enqueue.lua computes it.
func (o *Options) Due(now int64) int64 {
	if o.DueAt > 0 {
		return max(o.DueAt, now)
	}
	return now + o.DueIn
}

// Expires returns the time at which a job that was enqueued at now is dropped if it has not
// started; 0: never.
func (o *Options) Expires(now int64) int64 {
	if o.ExpireIn > 0 {
		return now + o.ExpireIn
	}
	return o.ExpireAt
}

// Fill takes from defaults the values that a run needs and o does not set.
func (o *Options) Fill(defaults *Options) {
	if o.Retry == NotSet {
		o.Retry = defaults.Retry
		o.filled |= filledRetry
	}
	if o.BackoffMax == 0 {
		o.BackoffMin, o.BackoffMax = defaults.BackoffMin, defaults.BackoffMax
		o.filled |= filledBackoff
	}
	if o.Timeout == 0 {
		o.Timeout = defaults.Timeout
		o.filled |= filledTimeout
	}
	if o.Retention == 0 {
		o.Retention = defaults.Retention
		o.filled |= filledRetention
	}
}

// Given returns the options without the values that Fill has taken from defaults. A copy of the
// options from before Fill would make every run a seventh larger.
func (o Options) Given() Options {
	if o.filled&filledRetry != 0 {
		o.Retry = NotSet
	}
	if o.filled&filledBackoff != 0 {
		o.BackoffMin, o.BackoffMax = 0, 0
	}
	if o.filled&filledTimeout != 0 {
		o.Timeout = 0
	}
	if o.filled&filledRetention != 0 {
		o.Retention = 0
	}
	o.filled = 0
	return o
}

// Retries returns the number of retries after the first failure, -1 if it is unlimited or not set.
func (o *Options) Retries() int { return max(o.Retry, -1) }

// encode writes the part of a job after the enqueue time, except the payload's own bytes.
func (o *Options) encode(enc *msgpack.Encoder, size int) error {
	for _, n := range [...]int64{
		o.DueAt, o.DueIn, int64(o.Retry), o.BackoffMin, o.BackoffMax, o.Timeout, o.ExpireAt, o.ExpireIn, o.Retention,
	} {
		if err := enc.EncodeInt(n); err != nil {
			return err
		}
	}
	if err := o.encodeMore(enc); err != nil {
		return err
	}
	if err := enc.EncodeInt(int64(size)); err != nil {
		return err
	}
	return enc.EncodeBytesLen(size)
}

// encodeMore writes the headers, in an array with the plan or the flow if there is one.
func (o *Options) encodeMore(enc *msgpack.Encoder) error {
	switch {
	case o.Plan != nil:
		return errors.Join(enc.EncodeArrayLen(1+planFields), encodeHeaders(enc, o.Headers), o.Plan.encode(enc))
	case o.Flow != nil:
		return errors.Join(enc.EncodeArrayLen(2), encodeHeaders(enc, o.Headers), o.Flow.encode(enc))
	}
	return encodeHeaders(enc, o.Headers)
}

// MaxHeadStart is the largest head start, in ms.
const MaxHeadStart = 24 * 3600 * 1000

const (
	codeKey       = 0xc4 // msgpack's bin 8
	codeHeadStart = 0xd2 // msgpack's int 32
)

// encodeKey writes the key and the head start.
func (o *Options) encodeKey(buf *bytes.Buffer) {
	buf.WriteByte(codeKey)
	buf.WriteByte(byte(len(o.Key)))
	buf.WriteString(o.Key)
	buf.WriteByte(codeHeadStart)
	buf.Write(binary.BigEndian.AppendUint32(buf.AvailableBuffer(), uint32(int32(o.HeadStart))))
}

// decodeKey reads the key and the head start.
func (o *Options) decodeKey(dec *msgpack.Decoder) error {
	key, err := dec.DecodeBytes()
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if len(key) < 1 || len(key) > MaxName {
		return fmt.Errorf("key of %d bytes, must be 1 to %d", len(key), MaxName)
	}
	o.Key = string(key)
	if o.HeadStart, err = dec.DecodeInt64(); err != nil {
		return fmt.Errorf("head start: %w", err)
	}
	if o.HeadStart < -MaxHeadStart || o.HeadStart > MaxHeadStart {
		return fmt.Errorf("head start of %d ms, at most %d are allowed", o.HeadStart, MaxHeadStart)
	}
	return nil
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

// decode reads everything up to the payload, and returns the payload's size. more says what the
// options have beside their headers.
func (o *Options) decode(dec *msgpack.Decoder, more byte) (size int, err error) {
	var retry int64
	for _, field := range [...]*int64{
		&o.DueAt, &o.DueIn, &retry, &o.BackoffMin, &o.BackoffMax, &o.Timeout, &o.ExpireAt, &o.ExpireIn, &o.Retention,
	} {
		if *field, err = dec.DecodeInt64(); err != nil {
			return 0, err
		}
	}
	o.Retry = int(retry)
	if err = o.decodeMore(dec, more); err != nil {
		return 0, err
	}
	if size, err = dec.DecodeInt(); err != nil {
		return 0, fmt.Errorf("payload size: %w", err)
	}
	return size, nil
}

// decodeMore reads what encodeMore has written.
func (o *Options) decodeMore(dec *msgpack.Decoder, more byte) (err error) {
	name, fields := "", 1
	switch more {
	case planVersions:
		name, fields = "plan", 1+planFields
	case flowVersions:
		name, fields = "flow", 2
	}
	if fields > 1 {
		if n, err := dec.DecodeArrayLen(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		} else if n != fields {
			return fmt.Errorf("%s of %d values, must be %d", name, n, fields)
		}
	}
	if o.Headers, err = decodeHeaders(dec); err != nil {
		return fmt.Errorf("headers: %w", err)
	}
	switch more {
	case planVersions:
		o.Plan, err = decodePlan(dec)
	case flowVersions:
		o.Flow, err = decodeFlow(dec)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func decodeHeaders(dec *msgpack.Decoder) (map[string]string, error) {
	n, err := dec.DecodeMapLen()
	if err != nil || n <= 0 {
		return nil, err
	}
	if n > MaxHeaders {
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
