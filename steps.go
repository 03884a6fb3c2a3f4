package delayq

import "time"

// Progress is how far a job has come, as its handler has said.
type Progress struct {
	Done, Total int64     // a Total of 0 is unknown
	Text        string    // at most 256 bytes
	At          time.Time // by Redis's clock
}
