package commit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/record"
)

// A Parcel is what one topic sends to another: something that the target is to do.
type Parcel struct {
	Format Format
	From   string // formats 1 and 2: ID of the job whose run hands the job over, or of the last step
	At     int64  // when it was posted, Unix ms
	Row    Row    // formats 1 and 2: an enqueue, without Topic and Age
	Link   string // format 2: of the step, without the nonce
	End    End    // the other formats
}

// A Format says what a parcel is for. A later release has other ones.
type Format byte

// The formats.
const (
	FormatJob     Format = '1' // a job that a run hands over
	FormatStep    Format = '2' // a step of a flow that is to start
	FormatArrival Format = '3' // a step has ended; the target is the home of its flow
	FormatCancel  Format = '4' // a step that is to be cancelled
	FormatSweep   Format = '5' // the flow is over; the target is its home

	formatBundle Format = '6' // several parcels of the other formats
)

// An End is what a parcel says of a step of a flow.
type End struct {
	ID      string // of the last step; in a cancel: of the step
	Name    string // of the flow
	Step    int    // its number; of a sweep it is that of the last step
	Outcome byte   // of an arrival: the letter of how the step has ended; of a sweep: its mode
	Rest    string // of an arrival: what is said of the end
}

// SweepAll is the mode of a sweep that keeps nothing of the flow. Only scripts write others.
const SweepAll = 'e'

// Body returns what scripts read of the end of a step.
func (e *End) Body() string {
	return record.Netstring(e.ID) + e.Name + record.StepHex(e.Step) + string(e.Outcome) + e.Rest
}

// ErrLaterParcel is the error for a parcel that a later release has written.
var ErrLaterParcel = errors.New("delayq: a later release has written this parcel")

// atLen is the length of the time that the script writes before a parcel.
const atLen = 13

// Encode returns the parcel without its time, which the script adds. Format 0 stands for FormatJob.
func (p *Parcel) Encode() string {
	switch p.Format {
	case FormatArrival:
		return string(p.Format) + p.End.Body()
	case FormatCancel:
		return string(p.Format) + record.Netstring(p.End.ID) + p.End.Name + record.StepHex(p.End.Step)
	case FormatSweep:
		return string(p.Format) + record.Netstring(p.End.ID) + p.End.Name + string(p.End.Outcome)
	}
	r := &p.Row
	format, link := FormatJob, ""
	if p.Format == FormatStep {
		format, link = FormatStep, record.Netstring(p.Link)
	}
	return string(format) + record.Netstring(p.From) + record.Netstring(r.ID) + record.Netstring(r.Replace) + link +
		strconv.FormatInt(r.DueAt, 10) + " " + strconv.FormatInt(r.DueIn, 10) + " " + r.Record
}

// countLen is the length of the number of parcels in a bundle.
const countLen = 3

// A bundle has at most so many parcels, and less bytes but for the last of them.
const (
	bundled     = 100
	bundleBytes = 32 << 10
)

// bundle puts parcels for one target together, without their times, as prelude/post.lua does.
func bundle(list []string) (bundles []string) {
	var parts strings.Builder
	n, bytes := 0, 0
	for i, text := range list {
		parts.WriteString(record.Netstring(text))
		n, bytes = n+1, bytes+len(text)
		if n < bundled && bytes < bundleBytes && i < len(list)-1 {
			continue
		}
		if n > 1 {
			text = fmt.Sprintf("%c%0*x%s", formatBundle, countLen, n, parts.String())
		}
		bundles = append(bundles, text)
		parts.Reset()
		n, bytes = 0, 0
	}
	return bundles
}

// SplitParcel returns the parcels that a member of the key has, as DecodeParcel reads them: those
// of a bundle, or the only one. What cannot be read of a bundle counts as one that is damaged.
func SplitParcel(text string) (list []string) {
	if len(text) <= atLen || Format(text[atLen]) != formatBundle {
		return []string{text}
	}
	at, rest := text[:atLen], text[min(len(text), atLen+1+countLen):]
	for rest != "" {
		one, behind, ok := record.CutNetstring(rest)
		if !ok {
			return append(list, at)
		}
		list, rest = append(list, at+one), behind
	}
	return list
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
	p.Format, text = Format(text[0]), text[1:]
	ok := false
	switch p.Format {
	case FormatJob:
		ok = p.decodeJob(text, &p.From, &p.Row.ID, &p.Row.Replace)
	case FormatStep:
		ok = p.decodeJob(text, &p.From, &p.Row.ID, &p.Row.Replace, &p.Link)
	case FormatArrival, FormatCancel, FormatSweep:
		ok = p.End.decode(p.Format, text)
	default:
		return p, fmt.Errorf("%w: format %q", ErrLaterParcel, string(p.Format))
	}
	if !ok {
		return p, errParcel
	}
	return p, nil
}

// decodeJob reads an enqueue, whose first fields are netstrings.
func (p *Parcel) decodeJob(text string, fields ...*string) (ok bool) {
	for _, field := range fields {
		if *field, text, ok = record.CutNetstring(text); !ok {
			return false
		}
	}
	for _, field := range []*int64{&p.Row.DueAt, &p.Row.DueIn} {
		number, rest, ok := strings.Cut(text, " ")
		if !ok {
			return false
		}
		var err error
		if *field, err = strconv.ParseInt(number, 10, 64); err != nil {
			return false
		}
		text = rest
	}
	p.Row.Record = text
	return true
}

// stepLen is the length of the number of a step.
const stepLen = 8

func (e *End) decode(format Format, text string) bool {
	var ok bool
	if e.ID, text, ok = record.CutNetstring(text); !ok || len(text) < record.FlowNameLen {
		return false
	}
	e.Name, text = text[:record.FlowNameLen], text[record.FlowNameLen:]
	if e.Step = record.LastStep; format != FormatSweep {
		if len(text) < stepLen {
			return false
		}
		step, err := strconv.ParseUint(text[:stepLen], 16, 32)
		if err != nil {
			return false
		}
		e.Step, text = int(int32(step)), text[stepLen:]
	}
	switch {
	case format == FormatCancel:
		return text == ""
	case text == "":
		return false
	}
	e.Outcome, e.Rest = text[0], text[1:]
	return format == FormatArrival || e.Rest == ""
}

var errParcel = errors.New("delayq: the parcel is damaged")
