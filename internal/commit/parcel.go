package commit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/record"
)

// A Parcel is a job that a run hands over, from its ack until its target has it.
type Parcel struct {
	From string // ID of the job whose run hands it over
	At   int64  // when that run was acked, Unix ms
	Row  Row    // an enqueue, without Topic and Age
}

// parcelFormat precedes a parcel. A later release has another one.
const parcelFormat = "1"

// ErrLaterParcel is the error for a parcel that a later release has written.
var ErrLaterParcel = errors.New("delayq: a later release has written this parcel")

// atLen is the length of the time that the script writes before a parcel.
const atLen = 13

// Encode returns the parcel without its time, which the script adds.
func (p *Parcel) Encode() string {
	r := &p.Row
	return parcelFormat + record.Netstring(p.From) + record.Netstring(r.ID) + record.Netstring(r.Replace) +
		strconv.FormatInt(r.DueAt, 10) + " " + strconv.FormatInt(r.DueIn, 10) + " " + r.Record
}

// DecodeParcel reads a parcel, and leaves out what it cannot read.
func DecodeParcel(text string) (p Parcel, err error) {
	p.Row.Kind = RowEnqueue
	if len(text) <= atLen {
		return p, errParcel
	}
	if p.At, err = strconv.ParseInt(text[:atLen], 10, 64); err != nil {
		return p, errParcel
	}
	text = text[atLen:]
	if text[:1] != parcelFormat {
		return p, fmt.Errorf("%w: format %q", ErrLaterParcel, text[:1])
	}
	text = text[1:]
	for _, field := range []*string{&p.From, &p.Row.ID, &p.Row.Replace} {
		var ok bool
		if *field, text, ok = record.CutNetstring(text); !ok {
			return p, errParcel
		}
	}
	for _, field := range []*int64{&p.Row.DueAt, &p.Row.DueIn} {
		number, rest, ok := strings.Cut(text, " ")
		if !ok {
			return p, errParcel
		}
		if *field, err = strconv.ParseInt(number, 10, 64); err != nil {
			return p, errParcel
		}
		text = rest
	}
	p.Row.Record = text
	return p, nil
}

var errParcel = errors.New("delayq: the parcel is damaged")
