package delayq

import (
	"math/rand/v2"
	"time"
)

// backoff is the delay after the failed attempt (from 1) of a job: first × 2^(attempt-1), at most limit, and up to a fifth of that
// added at random so that jobs which failed together do not come back together. With the defaults:
//
//	attempt   1    2    3    4     5     6     7      8      9      10       11       from 12
//	delay     2 s  4 s  8 s  16 s  32 s  64 s  128 s  256 s  512 s  1,024 s  2,048 s  4,096 s
func backoff(attempt int, first, limit int64) time.Duration {
	step := limit
	if doublings := max(attempt, 1) - 1; doublings < 62 && first <= limit>>doublings {
		step = first << doublings
	}
	return time.Duration(step+rand.Int64N(step/5+1)) * time.Millisecond
}

// A pace is the waiting of a loop whose calls fail: 50 ms, then twice as long each time, at most 1 s, and each up to a fifth longer.
// It is the backoff of jobs with other numbers.
type pace struct{ failures int }

const (
	paceFirst = 50 * time.Millisecond
	paceLimit = time.Second
)

func (p *pace) next() time.Duration {
	p.failures++
	return backoff(p.failures, paceFirst.Milliseconds(), paceLimit.Milliseconds())
}

func (p *pace) reset() { p.failures = 0 }
