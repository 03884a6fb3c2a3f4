package rig

import (
	"context"
	"time"
)

// Stall is the kind of a fault that nobody has made: the machine was too busy to let a process, or
// Redis, go on. Delay is how long it stood still. It ends with its event.
const Stall = "stall"

// stallLimit is what a process may stand still without a note. stallTick is how often it looks.
const (
	stallLimit = 100 * time.Millisecond
	stallTick  = 20 * time.Millisecond
)

// Stalls notes each time that a process, or what it asks, stands still, until ctx ends. A busy
// machine breaks bounds in real time that no fault of the history explains. ask may be nil; proc is
// empty if what it asks concerns all.
func (r *Recorder) Stalls(ctx context.Context, proc string, ask func(context.Context)) {
	tick := time.NewTicker(stallTick)
	defer tick.Stop()
	for last := Mono(); ; last = Mono() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ask != nil {
			ask(ctx)
		}
		if gap := time.Duration(Mono() - last); gap > stallLimit && ctx.Err() == nil {
			r.Record(Event{Op: OpFault, Result: Stall, ID: proc, Delay: gap.Milliseconds()})
			r.Record(Event{Op: OpHeal, Result: Stall, ID: proc})
		}
	}
}
