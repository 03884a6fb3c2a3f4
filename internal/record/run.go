package record

import (
	"encoding/json"
	"strconv"
	"strings"
)

// A Run is one entry in the history of a schedule: how one run of one of its jobs ended. The hash
// runs holds it as the time when it was written, a space and JSON. promote.lua and
// prelude/withdraw.lua write some of its fields.
type Run struct {
	Job     string `json:"job"` // ID
	Attempt int    `json:"attempt"`
	Start   int64  `json:"start,omitempty"` // 0: no handler was called, or its server died
	End     int64  `json:"end"`
	Server  string `json:"server,omitempty"`
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"` // at most 256 bytes

	Output     []byte `json:"output,omitempty"` // its last bytes, at most 1 KiB, in base64
	OutputSize int    `json:"size,omitempty"`   // of the whole output, in bytes; 0: Output is all of it
}

// MaxRunError and MaxRunOutput are how many bytes of an error and of an output a history keeps.
// They are copied at every run.
const (
	MaxRunError  = 256
	MaxRunOutput = 1 << 10
)

// Attach sets the output of the run.
func (r *Run) Attach(output []byte) {
	if n := len(output); n > MaxRunOutput {
		r.Output, r.OutputSize = output[n-MaxRunOutput:], n
		return
	}
	r.Output = output
}

// Encode returns the JSON of the entry. The script writes the time in front of it.
func (r Run) Encode() string {
	r.Error = clip(r.Error, MaxRunError)
	raw, err := json.Marshal(r)
	if err != nil { // impossible, since there are only strings and numbers
		return "{}"
	}
	return string(raw)
}

// DecodeRun reads an entry. An End of 0 is replaced by the time when the entry was written.
func DecodeRun(entry string) (r Run, ok bool) {
	at, text, found := strings.Cut(entry, " ")
	if !found || json.Unmarshal([]byte(text), &r) != nil {
		return Run{}, false
	}
	if r.End == 0 {
		r.End, _ = strconv.ParseInt(at, 10, 64) // a script wrote it
	}
	return r, true
}

// CutRunCounts reads the counts of a history: the runs that have ended, and those that failed. rest
// is what follows them in s, for example the last entry.
func CutRunCounts(s string) (ended, failed int64, rest string) {
	first, rest, _ := strings.Cut(s, " ")
	second, rest, _ := strings.Cut(rest, " ")
	ended, _ = strconv.ParseInt(first, 10, 64) // scripts wrote them
	failed, _ = strconv.ParseInt(second, 10, 64)
	return ended, failed, rest
}
