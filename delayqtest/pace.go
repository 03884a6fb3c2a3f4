package delayqtest

import (
	"context"
	"time"
)

// A pace is the waiting time of a polling loop: 1 ms, then twice as long each time, at most 8 ms.
type pace struct{ last time.Duration }

const (
	paceFirst = time.Millisecond
	paceLimit = 8 * time.Millisecond
)

// wait returns early when it receives from sooner. It reports whether time is left.
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
