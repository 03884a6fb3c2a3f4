package record

import "fmt"

// An Overlap is the policy of a schedule for a slot that comes while its last job is unfinished.
type Overlap int64

// The overlap policies.
const (
	OverlapSkip           Overlap = iota // the slot is skipped
	OverlapAllow                         // the slot is fired
	OverlapQueueOne                      // the slot waits; only one slot can wait
	OverlapCancelPrevious                // the slot is fired, and the last job is cancelled
)

var overlapNames = []string{"OverlapSkip", "OverlapAllow", "OverlapQueueOne", "OverlapCancelPrevious"}

// Known reports whether this release knows the policy.
func (p Overlap) Known() bool { return p >= 0 && int(p) < len(overlapNames) }

// String returns the name of the policy.
func (p Overlap) String() string {
	if p.Known() {
		return overlapNames[p]
	}
	return fmt.Sprintf("OverlapPolicy(%d)", int64(p))
}

// A Missed is the policy of a schedule for slots that no server could fire in time.
type Missed int64

// The missed policies besides [MissedCatchUp].
const (
	MissedRunOnce Missed = iota // one job for all of them
	MissedSkip                  // no job

	missedCatchUp
	missedKinds = 4 // MissedCatchUp is most × missedKinds + missedCatchUp
)

// MaxCatchUp is the maximum of [MissedCatchUp].
const MaxCatchUp = 1000

// MissedCatchUp returns the policy of a job for each of the latest slots, up to most.
func MissedCatchUp(most int) Missed { return Missed(most)*missedKinds + missedCatchUp }

// CatchUp returns how many of the latest slots have a job each. ok is false for the other policies.
func (p Missed) CatchUp() (most int, ok bool) {
	return int(p >> 2), p&(missedKinds-1) == missedCatchUp
}

// Known reports whether this release knows the policy.
func (p Missed) Known() bool {
	if most, ok := p.CatchUp(); ok {
		return most >= 1 && most <= MaxCatchUp
	}
	return p == MissedRunOnce || p == MissedSkip
}

// String returns the policy as it is written in Go: MissedRunOnce, MissedSkip, MissedCatchUp(3).
func (p Missed) String() string {
	switch most, ok := p.CatchUp(); {
	case p == MissedRunOnce:
		return "MissedRunOnce"
	case p == MissedSkip:
		return "MissedSkip"
	case ok:
		return fmt.Sprintf("MissedCatchUp(%d)", most)
	}
	return fmt.Sprintf("MissedPolicy(%d)", int64(p))
}
