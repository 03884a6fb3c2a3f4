package record

import (
	"encoding/json"
	"fmt"
)

// A Failure is one entry of the error log of a job: the error of one failed attempt. The log in the
// hash errors is a sequence of netstrings. promote.lua writes entries of attempt, at, kind and
// next.
type Failure struct {
	Attempt int    `json:"attempt"`
	At      int64  `json:"at"`
	Ran     int64  `json:"ran,omitempty"` // how long the handler ran; 0: unknown
	Server  string `json:"server,omitempty"`
	Kind    string `json:"kind"`
	Type    string `json:"type,omitempty"`
	Message string `json:"message,omitempty"`
	Stack   string `json:"stack,omitempty"`
	NextDue int64  `json:"next,omitempty"`  // when the retry is due; 0: there is none
	Trace   string `json:"trace,omitempty"` // the job's header traceparent
}

// Bounds of an error log: how many entries it holds, which are the first and the newest ten, and
// the bytes of the texts of each.
const (
	MaxFailures = 11
	MaxMessage  = 1 << 10
	MaxStack    = 4 << 10
)

// Encode returns the entry, with its texts cut to their bounds. The script puts it into the log.
func (f Failure) Encode() string {
	f.Message, f.Stack, f.Trace = clip(f.Message, MaxMessage), clip(f.Stack, MaxStack), clip(f.Trace, MaxName)
	raw, err := json.Marshal(f)
	if err != nil { // cannot be: strings and numbers only
		return fmt.Sprintf(`{"attempt":%d,"at":%d,"kind":%q}`, f.Attempt, f.At, f.Kind)
	}
	return string(raw)
}

// DecodeFailures reads the error log of a job, the oldest entry first. It skips entries that it
// cannot read.
func DecodeFailures(log string) (list []Failure) {
	for log != "" {
		raw, rest, ok := CutNetstring(log)
		if !ok {
			break
		}
		log = rest
		var f Failure
		if json.Unmarshal([]byte(raw), &f) == nil {
			list = append(list, f)
		}
	}
	return list
}

// KindLeaseLost is the Kind of a run whose lease ran out.
const KindLeaseLost = "lease_lost"
