package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A History is what happened in a topic, by minutes or hours: see [Inspector.History].
type History struct {
	Topic string
	Step  time.Duration // time.Minute or time.Hour
	Steps []HistoryStep // the earliest first, without gaps
}

// A HistoryStep holds the numbers of a minute or an hour of a topic: those of the runs that ended,
// and the runs themselves by their lateness and their time.
type HistoryStep struct {
	At       time.Time         // its beginning
	Outcomes map[Outcome]int64 // of the runs that ended; those that are 0 are missing
	// Lateness is the time from the due time of a job to its start, 0 for a start before that.
	// RunTime is the time that the handler took. A run whose handler was never called is in
	// neither.
	Lateness, RunTime Histogram
}

// A Histogram counts durations in buckets. Those of a [HistoryStep] have the bounds of the metrics
// of the module prom.
type Histogram struct {
	Bounds []time.Duration // upper bounds, ascending; a bound belongs to its bucket
	Counts []int64         // one for each bound, and one for what is above the last bound
}

// Count returns the number of durations.
func (h Histogram) Count() (n int64) {
	for _, one := range h.Counts {
		n += one
	}
	return n
}

// Quantile returns the duration below which a share q of the durations is, from 0 to 1; q beyond
// that counts as 0 or 1. It is exact only up to the width of a bucket: within one it is
// interpolated linearly, as histogram_quantile of Prometheus does, and above the last bound it is
// that bound. Quantile returns 0 if there are no durations.
func (h Histogram) Quantile(q float64) time.Duration {
	total := h.Count()
	if total == 0 || len(h.Bounds) == 0 {
		return 0
	}
	rank, below := min(max(q, 0), 1)*float64(total), 0.0
	for i, bound := range h.Bounds {
		n := 0.0
		if i < len(h.Counts) {
			n = float64(h.Counts[i])
		}
		if n > 0 && below+n >= rank {
			from := time.Duration(0)
			if i > 0 {
				from = h.Bounds[i-1]
			}
			return from + time.Duration(float64(bound-from)*(rank-below)/n)
		}
		below += n
	}
	return h.Bounds[len(h.Bounds)-1]
}

// History returns what happened in a topic from a time to another: the outcomes of its runs, their
// lateness and the time that they took, in steps of a minute or an hour. The first step is the one
// with from in it, the last one that before to, or with to in it. If these are a step more than are
// kept, the first one is left out. A History has the runs of all servers with [KeepHistory].
//
// The last 360 minutes and 720 hours (30 days) are kept, by Redis's clock. Steps before that, and
// those in which nothing ended, have zeros. Servers send their numbers every 10 s and when they
// stop, and a number counts for the minute in which it arrives. A server that crashes takes the
// numbers of its last seconds with it. For numbers that must be exact, use [TopicStats.Counters].
//
// Step is time.Minute or time.Hour. Range: up to 6 hours in steps of a minute, up to 30 days in
// steps of an hour, between 1970 and 2286.
//
// Cost: O(steps), one call. Its reply has about 200 bytes for a step, and at most 800.
func (i *Inspector) History(ctx context.Context, topic string, from, to time.Time, step time.Duration) (History, error) {
	place := script.Place{Call: "history", Topic: topic}
	first, n, err := historySteps(from, to, step)
	if err = errors.Join(i.validate(ctx, topic, ""), err); err != nil {
		return History{}, place.At(err)
	}
	k := script.NewKeys(i.o.prefix, topic)
	key, kept := k.Minutes, int64(record.HistoryMinutes)
	if step == time.Hour {
		key, kept = k.Hours, record.HistoryHours
	}
	words := make([]any, 0, 2+n)
	words = append(words, "hmget", key)
	for at := range n {
		words = append(words, (first+at)%kept)
	}
	cmd := redis.NewSliceCmd(ctx, words...)
	i.scripts.Send(ctx, nil, []redis.Cmder{cmd})
	fields, err := cmd.Result()
	if err != nil {
		return History{}, place.At(script.Hinted(i.scripts.Blame(ctx, err, key)))
	}
	history := History{Topic: topic, Step: step, Steps: make([]HistoryStep, n)}
	late, ran := slices.Clone(record.LatenessBounds), slices.Clone(record.RunTimeBounds)
	for at := range history.Steps {
		var field string
		if at < len(fields) {
			field, _ = fields[at].(string)
		}
		history.Steps[at].read(field, first+int64(at), step, late, ran)
	}
	return history, nil
}

// historySteps returns the first minute or hour since 1970 of a history, and how many there are.
func historySteps(from, to time.Time, step time.Duration) (first, n int64, err error) {
	var most int64
	switch step {
	case time.Minute:
		most = record.HistoryMinutes
	case time.Hour:
		most = record.HistoryHours
	default:
		return 0, 0, invalid([]error{fmt.Errorf("step(%v): must be %v or %v", step, time.Minute, time.Hour)})
	}
	_, err = instant("from", from)
	ended, failed := instant("to", to)
	if err = errors.Join(err, failed); err != nil {
		return 0, 0, invalid([]error{err})
	}
	if !from.Before(to) {
		return 0, 0, invalid([]error{fmt.Errorf("to(%v): must be after from(%v)", to, from)})
	}
	ms := step.Milliseconds()
	if d := to.Sub(from); d > time.Duration(most)*step {
		return 0, 0, invalid([]error{fmt.Errorf("from(%v) to(%v): %v, at most %v are kept by steps of %v", from, to, d, time.Duration(most)*step, step)})
	}
	last := (ended + ms - 1) / ms // the first one that is not included
	n = min(max(1, last-from.UnixMilli()/ms), most)
	return last - n, n, nil
}

// read reads the field of a step. The numbers of another minute or hour, which has the same field,
// are not its own.
func (s *HistoryStep) read(field string, number int64, step time.Duration, late, ran []time.Duration) {
	s.At = msTime(number * step.Milliseconds())
	s.Outcomes = make(map[Outcome]int64)
	s.Lateness = Histogram{late, make([]int64, len(late)+1)}
	s.RunTime = Histogram{ran, make([]int64, len(ran)+1)}
	record.DecodeSums(field, number, func(name string, n int64) {
		switch i := slices.Index(record.SeriesNames, name); {
		case i < 0: // of another release
		case i < record.FirstLate:
			s.Outcomes[outcomeNames[i]] = n
		case i < record.FirstRan:
			s.Lateness.Counts[i-record.FirstLate] = n
		default:
			s.RunTime.Counts[i-record.FirstRan] = n
		}
	})
}
