package record

import "encoding/json"

// Done is what is kept of a done job beside its record: the run that completed it. The hash results
// holds it as JSON in a netstring, followed by the record.
type Done struct {
	Attempt int    `json:"attempt"`
	Start   int64  `json:"start"`
	End     int64  `json:"end"`
	Server  string `json:"server"`
	Snoozes int    `json:"snoozes,omitempty"`
}

// Encode returns the part of the value that precedes the record, which the script appends.
func (d Done) Encode() string {
	raw, err := json.Marshal(d)
	if err != nil { // cannot be: numbers and a plain string
		raw = []byte("{}")
	}
	return Netstring(string(raw))
}

// DecodeDone reads a value of the hash results. raw is the record. ok reports whether the part
// before it could be read.
func DecodeDone(value string) (d Done, raw string, ok bool) {
	about, raw, _ := CutNetstring(value)
	return d, raw, json.Unmarshal([]byte(about), &d) == nil
}
