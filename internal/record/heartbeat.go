package record

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// A Heartbeat is what a server says about itself in the hash servers, every few seconds. Redis
// holds its time, by Redis's clock, a space and JSON. Durations in it are in nanoseconds.
type Heartbeat struct {
	Host    string                    `json:"host"`
	PID     int                       `json:"pid"`
	Started time.Time                 `json:"started"` // by the server's clock
	Version string                    `json:"version"` // of delayq
	State   string                    `json:"state"`
	Topics  map[string]HeartbeatTopic `json:"topics"`

	Partitions bool `json:"partitions,omitempty"` // the server serves those of its topics
}

// A HeartbeatTopic is what a server does for one topic.
type HeartbeatTopic struct {
	Workers int            `json:"slots"`
	Batch   int            `json:"batch,omitempty"` // jobs of a handler call at most; 0: one
	Running int            `json:"running"`         // number of handlers
	Pool    string         `json:"pool,omitempty"`
	Size    int            `json:"size,omitempty"`   // of the pool
	Weight  int            `json:"weight,omitempty"` // of the topic in the pool
	Found   bool           `json:"found,omitempty"`  // a pattern matches the topic, which has no handler of its own
	Longest []HeartbeatJob `json:"longest,omitempty"`

	Taken  int64         `json:"taken,omitempty"`  // number of jobs, taken within the time Within
	Within time.Duration `json:"within,omitempty"` // until the heartbeat; 0: unknown

	// Defaults is what the runs of jobs get that do not say. Nil: an earlier release does not tell.
	Defaults *HeartbeatDefaults `json:"defaults,omitempty"`

	// Loops holds the time since the last turn of each loop: promote, take and extend.
	Loops map[string]time.Duration `json:"loops,omitempty"`
}

// HeartbeatDefaults are the values of runs that the handler of a topic decides about.
type HeartbeatDefaults struct {
	Retry      int           `json:"retry"` // below 0: unlimited
	BackoffMin time.Duration `json:"min"`
	BackoffMax time.Duration `json:"max"`
	Timeout    time.Duration `json:"timeout,omitempty"`
	Retention  time.Duration `json:"retention,omitempty"`
}

// NewHeartbeatDefaults returns the values that options have.
func NewHeartbeatDefaults(o *Options) *HeartbeatDefaults {
	const ms = time.Millisecond
	return &HeartbeatDefaults{
		Retry: o.Retries(), BackoffMin: time.Duration(o.BackoffMin) * ms, BackoffMax: time.Duration(o.BackoffMax) * ms,
		Timeout: time.Duration(o.Timeout) * ms, Retention: time.Duration(o.Retention) * ms,
	}
}

// A HeartbeatJob says how long a job has been running, by the server's clock.
type HeartbeatJob struct {
	ID      string        `json:"id"`
	Running time.Duration `json:"for"`
}

// Encode returns the JSON of the heartbeat. The script writes the time in front of it.
func (h *Heartbeat) Encode() ([]byte, error) { return json.Marshal(h) }

// DecodeHeartbeat reads a heartbeat and the time when it was written, 0 if that cannot be read.
// Names that a later release writes differently are left out.
func DecodeHeartbeat(value string) (h Heartbeat, at int64) {
	stamp, about, _ := strings.Cut(value, " ")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		at = 0
	}
	_ = json.Unmarshal([]byte(about), &h) // see above
	return h, at
}
