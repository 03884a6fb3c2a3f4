package record

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrShare is wrapped by the error of limits that cannot be divided.
var ErrShare = errors.New("the limits of the topic cannot be divided among its partitions")

// longestEmit is the longest time of a start, in µs.
const longestEmit = int64(366*24*time.Hour) / int64(time.Microsecond)

// ShareOfLimits returns the share of limits that place i of n gets, both as the field flow of meta
// has them. All places together start no more than the limits allow: the running jobs and the burst
// are divided, those of the first places are greater by one, and each start takes n times as long.
// A place can start one job at once at least, so the burst of all together is n if it was less. A
// strict rate is lower then. Limits of keys are not divided.
func ShareOfLimits(limits string, i, n int) (string, error) {
	words := strings.Fields(limits)
	if n < 2 || len(words) < 6 {
		return limits, nil
	}
	var flow [6]int64 // running, emit, burst, starts, period and strict
	for at := range flow {
		var err error
		if flow[at], err = strconv.ParseInt(words[at], 10, 64); err != nil {
			return limits, nil // it is no limit
		}
	}
	running, emit, burst, starts, period, strict := flow[0], flow[1], flow[2], flow[3], flow[4], flow[5] == 1
	parts := int64(n)
	part := func(all int64) int64 {
		share := all / parts
		if int64(i) < all%parts {
			share++
		}
		return share
	}
	if running > 0 {
		if running < parts {
			return "", fmt.Errorf("%w: %d running jobs, and %d partitions that have jobs", ErrShare, running, n)
		}
		running = part(running)
	}
	if emit > 0 {
		if burst < parts && strict {
			if starts <= parts {
				return "", fmt.Errorf("%w: a strict rate of %d starts, and %d partitions that have jobs", ErrShare, starts, n)
			}
			emit = (period + starts - parts - 1) / (starts - parts)
		}
		if emit > longestEmit/parts {
			return "", fmt.Errorf("%w: a start in %v, and %d partitions that have jobs", ErrShare, time.Duration(emit)*time.Microsecond, n)
		}
		emit, burst = emit*parts, max(1, part(burst))
	}
	words[0], words[1], words[2] = strconv.FormatInt(running, 10), strconv.FormatInt(emit, 10), strconv.FormatInt(burst, 10)
	return strings.Join(words, " "), nil
}
