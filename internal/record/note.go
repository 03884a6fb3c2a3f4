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
	Nonce       string // of the incarnation
	At          int64  // of the progress, Unix ms; 0: there is none
	Done, Total int64  // the progress; a Total of 0 is unknown
	Text        string
	Steps       []string // the names of those that are over, in the order of their ends
}

// DecodeNote reads a note. It has only what counts for the incarnation with that nonce: what is
// noted of another one is not read.
func DecodeNote(value, nonce string) (n Note, ok bool) {
	if len(value) <= NonceLen || len(nonce) != NonceLen || value[:NonceLen] != nonce || value[NonceLen] != ' ' {
		return n, false
	}
	field := strings.SplitN(value[NonceLen+1:], " ", 4)
	if len(field) < 4 {
		return n, false
	}
	n.Nonce = nonce
	for i, to := range []*int64{&n.At, &n.Done, &n.Total} {
		number, err := strconv.ParseInt(field[i], 10, 64)
		if err != nil || number < 0 {
			return Note{}, false
		}
		*to = number
	}
	if n.At > MaxTime {
		return Note{}, false
	}
	text, rest, ok := CutNetstring(field[3])
	for n.Text = text; ok && rest != ""; {
		var step string
		if step, rest, ok = CutNetstring(rest); ok {
			n.Steps = append(n.Steps, step)
		}
	}
	if !ok {
		return Note{}, false
	}
	return n, true
}

// Encode returns the note as the scripts store it.
func (n *Note) Encode() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %d %d %s", n.Nonce, n.At, n.Done, n.Total, Netstring(n.Text))
	for _, step := range n.Steps {
		b.WriteString(Netstring(step))
	}
	return b.String()
}
