package commit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A Row is a call of a client that a table of an outbox holds until it is sent.
type Row struct {
	Kind    RowKind
	Topic   string
	ID      string
	Replace string // the Replacing of an enqueue
	Record  string // of an enqueue: the record of the job, with 0 as the time of enqueueing; of a start: see FlowRow
	DueAt   int64  // Unix ms; 0: DueIn applies
	DueIn   int64  // ms after the row was made
	Age     int64  // ms since the row was made
	Told    bool   // hooks know its outcome
	Link    string // of a step that starts or is to be cancelled: what ties it to its flow
	End     End    // of an arrival, whose body is the record, or of a sweep
}

// Size returns how many bytes count towards those of a call.
func (r *Row) Size() int { return len(r.Record) }

// A RowKind says which call a row is. The numbers of the first four are stored. A relay of a
// release that does not know a kind moves the row to the dead rows, as it is.
type RowKind int

// The kinds of rows.
const (
	RowEnqueue    RowKind = 1
	RowCancel     RowKind = 2
	RowReschedule RowKind = 3
	RowFlow       RowKind = 4 // a flow starts; the job is its last step

	// The rows that only parcels of flows become.
	RowLinked     RowKind = 101 // a step starts
	RowArrival    RowKind = 102 // a step has ended
	RowFlowCancel RowKind = 103 // a step is to be cancelled
	RowSweep      RowKind = 104 // a flow is over
	RowRelease    RowKind = 105 // a flow is complete or has failed
)

// The due times of the row of a cancel that say what becomes of the tomb of its ID. Another cancel
// has the length of its tomb as the delay. A release that does not know them makes no tomb.
const (
	freed = 1 // there is none any more

	// Yields is that of a cancel whose job gives way to one that is sent later. The ID of that job
	// is free then.
	Yields = 2
)

// CancelRow returns the row of a cancel.
func CancelRow(topic, id string, tomb *Tomb) Row {
	row := Row{Kind: RowCancel, Topic: topic, ID: id}
	switch {
	case tomb == nil:
	case tomb.For == 0:
		row.DueAt = freed
	default:
		row.DueIn = tomb.For
	}
	return row
}

// FlowRow makes the row of an enqueue of a last step that of the start of its flow. words is what
// the script reads behind the job. Its record is then that of the job, and the words.
func FlowRow(row Row, words []any) Row {
	var text strings.Builder
	text.WriteString(record.Netstring(row.Record))
	for _, word := range words {
		text.WriteString(record.Netstring(fmt.Sprint(word)))
	}
	row.Kind, row.Record = RowFlow, text.String()
	return row
}

// errFlowRow is the error of the row of a start that cannot be read.
var errFlowRow = errors.New("delayq: the row of the start of a flow is damaged")

// CutRow returns the record of the job of an enqueue or of a start, and what follows it in the row.
func (r *Row) CutRow() (job, rest string, err error) {
	if r.Kind != RowFlow {
		return r.Record, "", nil
	}
	job, rest, ok := record.CutNetstring(r.Record)
	if !ok {
		return "", "", errFlowRow
	}
	return job, rest, nil
}

// SetJob gives the row of an enqueue or of a start another record of its job. rest is that of
// CutRow.
func (r *Row) SetJob(job, rest string) {
	if r.Kind == RowFlow {
		job = record.Netstring(job) + rest
	}
	r.Record = job
}

// FlowWords reads what follows the job in the row of a start: what the script reads behind the job.
func FlowWords(rest string) (words []any, err error) {
	for rest != "" {
		word, after, ok := record.CutNetstring(rest)
		if !ok {
			return nil, errFlowRow
		}
		words, rest = append(words, word), after
	}
	return words, nil
}

// Tomb returns the tomb of a cancel as it is now: its time counts from when the row was made. most
// is how many tombs the topic may have.
func (r *Row) Tomb(most int64) *Tomb {
	switch {
	case r.DueAt == freed:
		return &Tomb{Most: most}
	case r.DueAt == Yields:
		return &Tomb{}
	case r.DueIn > r.Age:
		return &Tomb{For: r.DueIn - max(0, r.Age), Most: most}
	}
	return nil
}

// A Fate is what an error of SendPlan means for the plan.
type Fate int

// The fates.
const (
	FateAway    Fate = iota // Redis does not answer or serve, or replicas are missing
	FateFull                // Redis has no memory for new jobs, but carries out cancels
	FateRefused             // Redis has refused a call for another reason, and has done nothing
	FatePassed              // the error wraps ErrPassed
)

// FateOf says what an error of SendPlan means.
func FateOf(err error) Fate {
	switch {
	case errors.Is(err, ErrPassed):
		return FatePassed
	case errors.Is(err, ErrUnconfirmed): // even if Redis has refused the WAIT
		return FateAway
	case script.Code(err) == script.CodeFull:
		return FateFull
	case script.Answered(err) && !script.Away(err):
		return FateRefused
	}
	return FateAway
}
