package serve

import (
	"encoding/json"

	"github.com/delayq/delayq/internal/record"
)

// MostUndelivered is how many entries of the key undelivered the scripts keep.
const MostUndelivered = 100

// Undelivered is what is kept of a parcel that its target has refused.
type Undelivered struct {
	At     int64  `json:"at"`     // Unix ms
	From   string `json:"from"`   // ID of the job whose run has handed it over
	Topic  string `json:"topic"`  // target
	ID     string `json:"id"`     // of the job that was not enqueued
	Reason string `json:"reason"` // cut to 500 bytes
}

// DecodeUndelivered reads an entry of the key undelivered. It leaves out what it cannot read. What
// is not a JSON object at all becomes the reason.
func DecodeUndelivered(text string) (u Undelivered) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil || fields == nil {
		u.Reason = clip("the entry is damaged: " + text)
		return u
	}
	read := func(name string) (value string) {
		_ = json.Unmarshal(fields[name], &value) // damaged: ""
		return value
	}
	u.From, u.Topic, u.ID, u.Reason = read("from"), read("topic"), read("id"), clip(read("reason"))
	var at float64
	if json.Unmarshal(fields["at"], &at) == nil && at >= 0 && at <= record.MaxTime {
		u.At = int64(at)
	}
	return u
}
