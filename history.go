package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/places"
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
	history := History{Topic: topic, Step: step, Steps: make([]HistoryStep, n)}
	late, ran := slices.Clone(record.LatenessBounds), slices.Clone(record.RunTimeBounds)
	for at := range history.Steps {
		history.Steps[at] = newHistoryStep(first+int64(at), step, late, ran)
	}
	errs := i.sumUp(ctx, []string{topic}, func(k *script.Keys) []redis.Cmder {
		return []redis.Cmder{redis.NewSliceCmd(ctx, historyFields(k, first, n, step)...)}
	}, func(_ int, k *script.Keys, cmds []redis.Cmder) error {
		fields, err := cmds[0].(*redis.SliceCmd).Result()
		if err != nil {
			return script.Hinted(i.scripts.Blame(ctx, err, k.Minutes, k.Hours))
		}
		for at := range min(len(fields), len(history.Steps)) {
			field, _ := fields[at].(string)
			history.Steps[at].add(field, first+int64(at))
		}
		return nil
	})
	if errs != nil {
		return History{}, place.At(errs[0])
	}
	return history, nil
}

// historyFields returns the command that reads some steps of a topic or a partition.
func historyFields(k *script.Keys, first, n int64, step time.Duration) []any {
	key, kept := k.Minutes, int64(record.HistoryMinutes)
	if step == time.Hour {
		key, kept = k.Hours, record.HistoryHours
	}
	words := make([]any, 0, 2+n)
	words = append(words, "hmget", key)
	for at := range n {
		words = append(words, (first+at)%kept)
	}
	return words
}

// mostCommands is about how many commands travel in one pipeline.
const mostCommands = 20_000

// A reading is what is asked about a place of a topic, the one at an index.
type reading struct {
	at   int
	keys *script.Keys
	cmds []redis.Cmder
	m    *places.Asked // the map; nil: the place is a partition
}

// sumUp reads numbers of topics: those of their homes, and in another round trip those of their
// partitions, also of those that were given up lately. ask returns the commands for a place, and
// add adds its replies to the numbers of the topic at an index. sumUp returns the first error of
// each topic, or nil if there is none at all.
func (i *Inspector) sumUp(
	ctx context.Context, topics []string, ask func(k *script.Keys) []redis.Cmder, add func(at int, k *script.Keys, cmds []redis.Cmder) error,
) (errs []error) {
	fail := func(at int, err error) {
		if err != nil && errs == nil {
			errs = make([]error, len(topics))
		}
		if err != nil {
			errs[at] = cmp.Or(errs[at], err)
		}
	}
	list := make([]reading, len(topics))
	for at, topic := range topics {
		list[at] = reading{at: at, keys: script.NewKeys(i.o.prefix, topic)}
		asked := places.AskMap(ctx, list[at].keys)
		list[at].m = &asked
	}
	for len(list) > 0 {
		var parts []reading
		for len(list) > 0 {
			n, cmds := 0, []redis.Cmder(nil)
			for ; n < min(len(list), statsTopics) && len(cmds) < mostCommands; n++ {
				list[n].cmds = ask(list[n].keys)
				if cmds = append(cmds, list[n].cmds...); list[n].m != nil {
					cmds = append(cmds, list[n].m.SliceCmd)
				}
			}
			i.scripts.Send(ctx, nil, cmds)
			for _, r := range list[:n] {
				fail(r.at, places.In(r.keys, add(r.at, r.keys, r.cmds)))
				if r.m == nil {
					continue
				}
				m, err := r.m.Ever(ctx, i.scripts)
				fail(r.at, err)
				for _, k := range places.Partitions(i.o.prefix, topics[r.at], m) {
					parts = append(parts, reading{at: r.at, keys: k})
				}
			}
			list = list[n:]
		}
		list = parts
	}
	return errs
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

// newHistoryStep returns a step in which nothing has ended.
func newHistoryStep(number int64, step time.Duration, late, ran []time.Duration) HistoryStep {
	return HistoryStep{
		At: msTime(number * step.Milliseconds()), Outcomes: make(map[Outcome]int64),
		Lateness: Histogram{late, make([]int64, len(late)+1)}, RunTime: Histogram{ran, make([]int64, len(ran)+1)},
	}
}

// add adds the field of a step. The numbers of another minute or hour, which has the same field,
// are not its own.
func (s *HistoryStep) add(field string, number int64) {
	record.DecodeSums(field, number, func(name string, n int64) {
		switch i := slices.Index(record.SeriesNames, name); {
		case i < 0: // of another release
		case i < record.FirstLate:
			s.Outcomes[outcomeNames[i]] += n
		case i < record.FirstRan:
			s.Lateness.Counts[i-record.FirstLate] += n
		default:
			s.RunTime.Counts[i-record.FirstRan] += n
		}
	})
}

// Bounds of Forecast: the most steps, and how many of them travel in one pipeline.
const (
	mostSteps     = 10_000
	forecastSteps = 1000
)

// Forecast returns how many jobs fall due in each of n steps from a time on: in the first one those
// due at from or later and before from plus step, and so on. It counts jobs that are scheduled now.
// It does not count those that a schedule will make, and those that are ready already. Times are
// rounded up to the millisecond. Range: steps from 1 ms on, and from 1 to 10,000 of them; all must
// be between 1970 and 2286.
//
// Forecast sends 1,000 steps at a time, in one round trip. Cost: O(log N) for each step, with N
// scheduled jobs.
func (i *Inspector) Forecast(ctx context.Context, topic string, from time.Time, step time.Duration, n int) ([]int64, error) {
	place := script.Place{Call: "forecast", Topic: topic}
	err := errors.Join(i.validate(ctx, topic, ""), checkSteps(from, step, n))
	if err != nil {
		return nil, place.At(err)
	}
	edge := func(at int) string { // of the beginning of a step
		ms, _ := record.Millis(from.Add(time.Duration(at) * step)) // checkSteps has tried the last one
		return strconv.FormatInt(ms, 10)
	}
	counts := make([]int64, 0, n)
	for len(counts) < n {
		var bounds [][2]string
		for at := len(counts); at < min(n, len(counts)+forecastSteps); at++ {
			bounds = append(bounds, [2]string{edge(at), "(" + edge(at+1)})
		}
		some, err := i.dueIn(ctx, []string{topic}, bounds)
		if err != nil {
			return nil, place.At(err[0])
		}
		counts = append(counts, some[0]...)
	}
	return counts, nil
}

// dueIn returns how many jobs of each topic are due within each of some bounds, and the error of
// each topic, whose counts are nil then. There are no errors at all if no topic has one.
func (i *Inspector) dueIn(ctx context.Context, topics []string, bounds [][2]string) (counts [][]int64, errs []error) {
	counts = make([][]int64, len(topics))
	errs = i.sumUp(ctx, topics, func(k *script.Keys) []redis.Cmder {
		cmds := make([]redis.Cmder, len(bounds))
		for n, b := range bounds {
			cmds[n] = redis.NewIntCmd(ctx, "zcount", k.Bucket, b[0], b[1])
		}
		return cmds
	}, func(at int, k *script.Keys, cmds []redis.Cmder) error {
		if counts[at] == nil {
			counts[at] = make([]int64, len(bounds))
		}
		for n, cmd := range cmds {
			due, err := cmd.(*redis.IntCmd).Result()
			if err != nil {
				return i.scripts.Blame(ctx, err, k.Bucket)
			}
			counts[at][n] += due
		}
		return nil
	})
	for at, err := range errs {
		if err != nil {
			counts[at] = nil
		}
	}
	return counts, errs
}

// mostSpans is the maximum number of durations of one DueWithin.
const mostSpans = 10

// DueWithin returns how many jobs of each topic fall due within each of some durations from a time
// on, in the order of topics and of within. It counts as [Inspector.Forecast] does: for a duration
// d, the scheduled jobs that are due at from or later and before from plus d. Range: from 1 to 10
// durations of 1 ms to 100 years; all must end between 1970 and 2286.
//
// If some topics cannot be read, their counts are nil, and DueWithin returns the others along with
// the error.
//
// DueWithin sends 1,000 topics at a time, in one round trip to each node of a Cluster. Cost: O(log
// N) for each topic and duration, with N scheduled jobs.
func (i *Inspector) DueWithin(ctx context.Context, from time.Time, within []time.Duration, topics ...string) ([][]int64, error) {
	errs := []error{i.usable(ctx), checkSpans(from, within)}
	for _, topic := range topics {
		errs = append(errs, invalidTopic(topic))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, script.Place{Call: "due within"}.At(err)
	}
	edge := func(at time.Time) string {
		ms, _ := record.Millis(at) // checkSpans has tried it
		return strconv.FormatInt(ms, 10)
	}
	bounds := make([][2]string, len(within))
	for n, d := range within {
		bounds[n] = [2]string{edge(from), "(" + edge(from.Add(d))}
	}
	list, errs := i.dueIn(ctx, topics, bounds)
	var failed topicErrors
	for at, err := range errs {
		if err != nil {
			failed = append(failed, script.Place{Call: "due within", Topic: topics[at]}.At(err))
		}
	}
	return list, failed.join()
}

// checkSteps returns the complaints about the steps of a forecast.
func checkSteps(from time.Time, step time.Duration, n int) error {
	_, err := instant("from", from)
	errs := []error{err, notTiny("step", step)}
	switch {
	case step <= 0:
		errs = append(errs, fmt.Errorf("step(%v): at least 1ms", step))
	case n < 1 || n > mostSteps:
		errs = append(errs, fmt.Errorf("n(%d): must be from 1 to %d", n, mostSteps))
	case step > maxDelay/time.Duration(n):
		errs = append(errs, fmt.Errorf("step(%v): %d of them are more than %v (100 years)", step, n, maxDelay))
	case err == nil:
		_, err := instant("the end of the last step", from.Add(time.Duration(n)*step))
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return invalid([]error{err})
	}
	return nil
}

// Failures are the jobs with errors of a topic, in groups.
type Failures struct {
	Groups   []FailureGroup // the largest first
	Examined int            // how many jobs were looked at
	Total    int64          // how many jobs are in that state, with or without errors
}

// A FailureGroup is a set of jobs whose last errors differ only in details.
//
// Errors are in one group if they have the same type and the same message, after everything that
// changes from job to job is replaced by #: the ID of the job, numbers and durations, hexadecimal
// numbers, UUIDs, IP addresses, and texts in quotation marks.
type FailureGroup struct {
	Key         string // for Query.Failure: 12 hexadecimal digits, the same in every process
	Sample      string // the message of one of the newest errors, unchanged
	Count       int64  // number of jobs that were found
	First, Last time.Time
	IDs         []string // of up to five jobs
}

const (
	failuresBudget = 2_000
	failureIDs     = 5
)

// Failures groups the jobs of a topic in one state by their last error: dead jobs, or jobs that
// were or will be retried, which are scheduled, ready or running. It looks at up to budget jobs. It
// begins with the dead jobs that were buried last, with the scheduled and ready jobs that run next,
// and with the first running jobs by ID. A budget of 0 is 2,000; the most is 50,000.
// [Failures.Examined] and [Failures.Total] tell whether that was all. [Inspector.Jobs] lists the
// jobs of a group, with Query.Failure.
//
// Done jobs have no errors: for [StateDone] Failures returns [ErrInvalid].
//
// Cost: as [Inspector.Jobs] with a filter, for that many jobs.
func (i *Inspector) Failures(ctx context.Context, topic string, s State, budget int) (*Failures, error) {
	if budget == 0 {
		budget = failuresBudget
	}
	q := Query{Topic: topic, State: s, Latest: s == StateDead, Limit: maxLimit, Budget: budget}
	var l *listing
	var err error
	if s == StateDone {
		err = fmt.Errorf("%w: state %q: must be scheduled, ready, running or dead; done jobs have no errors", ErrInvalid, s)
	}
	if err == nil {
		l, err = i.newListing(ctx, q, false)
	}
	groups := make(map[string]*FailureGroup)
	for err == nil && !l.Ended && l.Page.Examined < budget {
		if err = l.said(l.Step(ctx)); err == nil {
			group(groups, l.Page.Jobs)
			l.Page.Jobs = nil
		}
	}
	if err != nil {
		return nil, script.Place{Call: "failures", Topic: topic}.At(err)
	}
	f := &Failures{Examined: l.Page.Examined, Total: l.Page.Total}
	for _, g := range groups {
		f.Groups = append(f.Groups, *g)
	}
	slices.SortFunc(f.Groups, func(a, b FailureGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last), cmp.Compare(a.Key, b.Key))
	})
	return f, nil
}

// group adds jobs to the groups of their last errors.
func group(groups map[string]*FailureGroup, jobs []*JobInfo) {
	for _, info := range jobs {
		if len(info.Errors) == 0 {
			continue
		}
		last := &info.Errors[len(info.Errors)-1]
		key := failureKey(last, info.ID)
		g := groups[key]
		if g == nil {
			g = &FailureGroup{Key: key, First: last.At, Last: last.At, Sample: last.Message}
			groups[key] = g
		}
		g.Count++
		if len(g.IDs) < failureIDs {
			g.IDs = append(g.IDs, info.ID)
		}
		if last.At.Before(g.First) {
			g.First = last.At
		}
		if last.At.After(g.Last) {
			g.Last, g.Sample = last.At, last.Message
		}
	}
}

// failureKey returns the key of the group of an error of a job.
func failureKey(e *AttemptError, id string) string {
	return record.FailureKey(string(e.Kind), e.Type, e.Message, id)
}
