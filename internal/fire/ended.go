package fire

import "github.com/delayq/delayq/internal/record"

// Ended holds the schedules whose runs have ended since the last promote. Their waiting slots can
// be fired. Its owner guards it.
type Ended struct{ names []string }

// Note notes that the job of a schedule has ended, and reports whether a slot of that schedule may
// wait for it. If it holds maxEnded names already, the look of each tick finds the schedule.
func (e *Ended) Note(id string) bool {
	s, _ := record.DecodeSlotID(id)
	if s.Triggered || len(e.names) >= maxEnded {
		return false
	}
	e.names = append(e.names, s.Schedule)
	return true
}

// Take removes and returns the names.
func (e *Ended) Take() []string {
	names := e.names
	e.names = nil
	return names
}
