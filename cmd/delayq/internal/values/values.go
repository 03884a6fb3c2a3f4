// Package values reads the values that the flags of the command line and the file of a worker have
// in common: durations, rates and the policies of schedules.
package values

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

var days = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)([wd])`)

// ParseSpan reads a duration: those of Go, and d for 24 hours and w for 7 days.
func ParseSpan(text string) (time.Duration, error) {
	hours := days.ReplaceAllStringFunc(text, func(part string) string {
		n, _ := strconv.ParseFloat(part[:len(part)-1], 64) // the pattern is that of a number
		if part[len(part)-1] == 'w' {
			n *= 7
		}
		return strconv.FormatFloat(n*24, 'f', -1, 64) + "h"
	})
	d, err := time.ParseDuration(hours)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration: allowed are numbers with ms, s, m, h, d or w, such as 90s or 3d12h", text)
	}
	return d, nil
}

// ParseRate reads a number of starts and a period, such as 100/1m.
func ParseRate(text string) (starts int, period time.Duration, err error) {
	count, rest, _ := strings.Cut(text, "/")
	starts, err = strconv.Atoi(count)
	period, wrong := ParseSpan(rest)
	if err != nil || wrong != nil || starts < 1 || period <= 0 {
		return 0, 0, fmt.Errorf("%q is no rate: allowed are starts/period, such as 100/1m", text)
	}
	return starts, period, nil
}

// ParseRetry reads a number of retries, or unlimited.
func ParseRetry(text string) (int, error) {
	if text == "unlimited" {
		return delayq.Unlimited, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%q: allowed are numbers and unlimited", text)
	}
	return n, nil
}

var overlaps = map[string]delayq.OverlapPolicy{
	"skip": delayq.OverlapSkip, "allow": delayq.OverlapAllow, "queue_one": delayq.OverlapQueueOne, "cancel_previous": delayq.OverlapCancelPrevious,
}

// Overlaps are the names of the overlap policies.
var Overlaps = []string{"skip", "allow", "queue_one", "cancel_previous"}

// Overlap returns the name of a policy.
func Overlap(p delayq.OverlapPolicy) string {
	for name, policy := range overlaps {
		if policy == p {
			return name
		}
	}
	return p.String()
}

// ParseOverlap reads the name of a policy.
func ParseOverlap(text string) (delayq.OverlapPolicy, error) {
	p, ok := overlaps[text]
	if !ok {
		return 0, fmt.Errorf("%q: allowed are %s", text, strings.Join(Overlaps, ", "))
	}
	return p, nil
}

// Missed are the names of the policies for missed slots.
const Missed = "run_once, skip, catch_up=N"

// MissedName returns the name of a policy.
func MissedName(p delayq.MissedPolicy) string {
	switch p {
	case delayq.MissedRunOnce:
		return "run_once"
	case delayq.MissedSkip:
		return "skip"
	}
	n := strings.TrimSuffix(strings.TrimPrefix(p.String(), "MissedCatchUp("), ")")
	return "catch_up=" + n
}

// ParseMissed reads the name of a policy.
func ParseMissed(text string) (delayq.MissedPolicy, error) {
	switch text {
	case "run_once":
		return delayq.MissedRunOnce, nil
	case "skip":
		return delayq.MissedSkip, nil
	}
	rest, ok := strings.CutPrefix(text, "catch_up=")
	n, err := strconv.Atoi(rest)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q: allowed are %s", text, Missed)
	}
	return delayq.MissedCatchUp(n), nil
}
