package record

import "encoding/json"

// Done is what is kept of a done job beside its record: the run that completed it. The hash results
// holds it as JSON in a netstring, followed by the record and the output of the run. The size of
// the output is the first value of the JSON, because prelude/retain.lua reads it.
type Done struct {
	Output  int    `json:"output,omitempty"` // size in bytes; 0: none
	Attempt int    `json:"attempt"`
	Start   int64  `json:"start"`
	End     int64  `json:"end"`
	Server  string `json:"server"`
	Snoozes int    `json:"snoozes,omitempty"`
}

// MaxOutput is how many bytes the output of a run can have.
const MaxOutput = 64 << 10

// Encode returns what the script gets: the part of the value that precedes the record, and the
// output of the run, which follows it.
func (d Done) Encode(output []byte) string {
	d.Output = len(output)
	raw, err := json.Marshal(d)
	if err != nil { // cannot be: numbers and a plain string
		raw = []byte("{}")
	}
	return Netstring(string(raw)) + string(output)
}

// Split divides what follows the part about the run into the record and the output.
func (d Done) Split(rest string) (raw, output string) {
	if d.Output < 0 || d.Output > len(rest) {
		return rest, ""
	}
	at := len(rest) - d.Output
	return rest[:at], rest[at:]
}

// DecodeDone reads a value of the hash results, or its beginning. raw is the record and the output
// of the run. ok reports whether the part before it could be read.
func DecodeDone(value string) (d Done, raw string, ok bool) {
	about, raw, _ := CutNetstring(value)
	return d, raw, json.Unmarshal([]byte(about), &d) == nil
}
