package delayqtest

import (
	"context"
	"time"
)

// A pace is the waiting of a loop that looks until it sees what it wants: 1 ms, then twice as long each time, at most 8 ms.
type pace struct{ last time.Duration }

const (
	paceFirst = time.Millisecond
	paceLimit = 8 * time.Millisecond
)

// wait ends early when there is something in sooner. It tells whether there is time left.
func (p *pace) wait(ctx context.Context, sooner <-chan struct{}) bool {
	p.last = min(max(2*p.last, paceFirst), paceLimit)
	timer := time.NewTimer(p.last)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-sooner:
		return true
	case <-ctx.Done():
		return false
	}
}
