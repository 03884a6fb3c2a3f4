package loop

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff returns the delay after the failed attempt (from 1) of a job: first × 2^(attempt-1), at
// most limit. Up to a fifth is added at random, so that jobs that failed together do not come back
// together. With the defaults:
//
//	attempt   1    2    3    4     5     6     7      8      9      10       11       from 12
//	delay     2 s  4 s  8 s  16 s  32 s  64 s  128 s  256 s  512 s  1,024 s  2,048 s  4,096 s
func Backoff(attempt int, first, limit int64) time.Duration {
	step := limit
	if doublings := max(attempt, 1) - 1; doublings < 62 && first <= limit>>doublings {
		step = first << doublings
	}
	return time.Duration(step+rand.Int64N(step/5+1)) * time.Millisecond
}

// A Pace is the backoff of a loop whose calls fail. It starts at 50 ms and doubles up to 1 s;
// up to a fifth is added at random. The formula is that of Backoff, with other bounds.
type Pace struct{ failures int }

const (
	PaceFirst = 50 * time.Millisecond
	PaceLimit = time.Second
)

func (p *Pace) Next() time.Duration {
	p.failures++
	return Backoff(p.failures, PaceFirst.Milliseconds(), PaceLimit.Milliseconds())
}

func (p *Pace) Reset() { p.failures = 0 }

// Sleep waits for d or until ctx is done, and reports whether it waited for d. For the loop to
// which ctx belongs it is a rest.
func Sleep(ctx context.Context, d time.Duration) bool { return SleepUntil(ctx, d, nil) }

// SleepUntil is Sleep, but a value from sooner ends it too.
func SleepUntil(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	g := SignOf(ctx)
	g.Rest(d)
	defer g.Turn()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-sooner:
		return true
	case <-ctx.Done():
		return false
	}
}
