package cli

import (
	"strconv"
	"strings"

	"github.com/delayq/delayq"
)

// A notedRecord is what the runs of a job have said of it, and its flow. It is no option: a copy of
// the job does not get it.
type notedRecord struct {
	Progress *progressRecord `json:"progress,omitempty"`
	Steps    []string        `json:"steps,omitempty"` // those that are over
	Flow     *jobRef         `json:"flow,omitempty"`  // the last step of the flow that it is a step of
}

// A progressRecord is how far a job has come.
type progressRecord struct {
	Done  int64  `json:"done"`
	Total int64  `json:"total,omitempty"` // left out: unknown
	Text  string `json:"text,omitempty"`
	At    stamp  `json:"at"`
}

func notedOf(info *delayq.JobInfo) notedRecord {
	r := notedRecord{Steps: info.Steps}
	if p := info.Progress; p != nil {
		r.Progress = &progressRecord{p.Done, p.Total, p.Text, stamp(p.At)}
	}
	if info.Flow != (delayq.JobRef{}) {
		ref := refOf(info.Flow.Topic, info.Flow.ID)
		r.Flow = &ref
	}
	return r
}

// flowText writes the topic and the ID of the flow; empty: it is a step of none.
func (r *notedRecord) flowText() string {
	if r.Flow == nil {
		return ""
	}
	return r.Flow.Topic + " " + idText(r.Flow.exact())
}

// doneText writes how far the job has come, in a few characters; empty: it has not said.
func (r *notedRecord) doneText() string {
	switch p := r.Progress; {
	case p == nil:
		return ""
	case p.Total > 0:
		return number(p.Done) + "/" + number(p.Total)
	default:
		return number(p.Done)
	}
}

// progressText writes how far the job has come, with the text of its handler.
func (r *notedRecord) progressText() string {
	text := r.doneText()
	if text != "" && r.Progress.Text != "" {
		text += " " + r.Progress.Text
	}
	return text
}

// stepsText writes the steps that are over.
func (r *notedRecord) stepsText() string { return strings.Join(r.Steps, ", ") }

// waitersText writes how many clients wait for a job; empty: none.
func waitersText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
