package run

import (
	"fmt"
	"sync"

	"github.com/delayq/delayq/internal/record"
)

// Parcels are jobs that a run hands over when it is acked.
type Parcels struct {
	Text string // netstrings of target and job, for each
	Jobs int
}

// A Handover gathers the parcels of a run. Copies of its job share it. It is safe for concurrent
// use.
type Handover struct {
	mu    sync.Mutex
	text  []byte
	bytes int // of the jobs
	jobs  int
	over  bool // the handler has returned
}

// Bounds of what a run hands over.
const (
	mostParcels     = 1000
	mostParcelBytes = 1 << 20
)

// Returned is why nothing more can be handed over.
const Returned = "the handler has returned"

// Add takes a parcel for a target. It returns why it does not; empty: it does.
func (h *Handover) Add(target, parcel string) (refused string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
		return Returned
	case h.jobs == mostParcels:
		return fmt.Sprintf("the run hands over %d jobs already, more are not allowed", h.jobs)
	case h.bytes+len(parcel) > mostParcelBytes:
		return fmt.Sprintf("the jobs that the run hands over would have %d bytes, at most %d are allowed", h.bytes+len(parcel), mostParcelBytes)
	}
	h.text = append(append(h.text, record.Netstring(target)...), record.Netstring(parcel)...)
	h.jobs, h.bytes = h.jobs+1, h.bytes+len(parcel)
	return ""
}

// Over reports whether the handler has returned.
func (h *Handover) Over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// Get returns the parcels of the run so far.
func (h *Handover) Get() Parcels {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Parcels{string(h.text), h.jobs}
}

// End ends the time in which parcels can be added, and returns them.
func (h *Handover) End() Parcels {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	p := Parcels{string(h.text), h.jobs}
	h.text = nil
	return p
}
