package record

import (
	"fmt"
	"strconv"
	"strings"
)

// Bounds of a note, and of what a step saves.
const (
	MaxProgressText = 256
	MaxSteps        = 100
	MaxStepName     = 100
	MaxStepResult   = 64 << 10
)

// A Note is what the runs of a job have said of it, as the note script stores it.
type Note struct {
	Nonce       string   // of the incarnation
	Steps       []string // the names of those that are over, in the order of their ends
	At          int64    // of the progress, Unix ms; 0: there is none
	Done, Total int64    // the progress; a Total of 0 is unknown
	Run, Number int64    // the run that has reported it, and how many reports of it there were by then
	Text        string
}

// A NoteDamage says which parts of a note cannot be read.
type NoteDamage struct {
	Steps    bool // the names of some steps, or of all
	Progress bool
}

// DecodeNote reads a note. It has only what counts for the incarnation with that nonce: what is
// noted of another one is not read. A damaged part does not hide the others.
func DecodeNote(value, nonce string) (n Note, damage NoteDamage, ok bool) {
	if len(value) <= NonceLen || len(nonce) != NonceLen || value[:NonceLen] != nonce {
		return n, damage, false
	}
	n.Nonce = nonce
	steps, rest, whole := CutNetstring(value[NonceLen:])
	for whole && steps != "" {
		var step string
		if step, steps, whole = CutNetstring(steps); whole {
			n.Steps = append(n.Steps, step)
		}
	}
	if !whole || rest != "" && rest[0] != ' ' {
		return n, NoteDamage{Steps: true, Progress: true}, true
	}
	damage.Progress = rest != "" && !n.progress(rest[1:])
	return n, damage, true
}

// progress reads the progress of a note, and reports whether it can be read.
func (n *Note) progress(text string) bool {
	field := strings.SplitN(text, " ", 6)
	if len(field) < 6 || len(field[5]) > MaxProgressText {
		return false
	}
	var number [5]int64
	for i := range number {
		var err error
		if number[i], err = strconv.ParseInt(field[i], 10, 64); err != nil || number[i] < 0 {
			return false
		}
	}
	if number[0] == 0 || number[0] > MaxTime {
		return false
	}
	n.At, n.Done, n.Total, n.Run, n.Number, n.Text = number[0], number[1], number[2], number[3], number[4], field[5]
	return true
}

// Encode returns the note as the scripts store it.
func (n *Note) Encode() string {
	var steps strings.Builder
	for _, step := range n.Steps {
		steps.WriteString(Netstring(step))
	}
	note := n.Nonce + Netstring(steps.String())
	if n.At == 0 {
		return note
	}
	return note + " " + strconv.FormatInt(n.At, 10) + " " + NoteReport(n.Done, n.Total, n.Run, n.Number, n.Text)
}

// NoteReport returns progress as the note script reads it.
func NoteReport(done, total, run, number int64, text string) string {
	return fmt.Sprintf("%d %d %d %d %s", done, total, run, number, text)
}
