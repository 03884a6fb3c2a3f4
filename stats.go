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

	"github.com/delayq/delayq/internal/record"
)

// TopicStats holds the numbers of jobs in a topic, and what has happened in it since its first job.
type TopicStats struct {
	Topic string
	At    time.Time // when the numbers were read, by Redis's clock

	Scheduled, Ready, Running, Dead, Done int64

	// Retrying is the number of unfinished jobs with a finished attempt, except dead ones: they
	// wait for a retry, are ready again or are running again. It is computed as if every dead job
	// had a finished attempt.
	Retrying int64

	// Overdue is the number of jobs that are due and have not started: the ready ones, and
	// scheduled ones whose time has come. A topic that keeps up has few, for milliseconds.
	Overdue int64
	// OldestOverdue is the earliest due time among the overdue jobs, as far as the first ready job
	// and the first scheduled one show it. Ready jobs whose records have more than 16 KiB are
	// passed over. It is zero if no job is overdue, or if the first 20 entries of ready are such
	// jobs or left over from cancelled ones.
	OldestOverdue time.Time

	NextDue time.Time // of the earliest scheduled job; zero if there is none

	Schedules    int64 // of the topic, including paused and ended ones
	WaitingSlots int64 // schedules with a slot that waits for the end of the last run
	// NextSlot is the earliest slot of all schedules. It is in 1970 if a server has yet to compute
	// it, and zero if there is none.
	NextSlot time.Time

	Servers int // live servers that take jobs of the topic; a server that drains takes none
	Workers int // the sum of their Concurrency for the topic

	Paused bool // whether any of Pauses is in effect
	// PausedUntil is the latest end of Pauses. It is zero if one of them has no end, or if the
	// topic is not paused.
	PausedUntil time.Time
	Pauses      []PauseInfo // those in effect, the oldest first

	// Counters has every [Counter].
	Counters map[Counter]int64
}

var counters = []Counter{
	CounterEnqueued, CounterTaken, CounterAcked, CounterAgain, CounterRetried, CounterSnoozed, CounterBuried, CounterCancelled,
	CounterExpired, CounterReclaimed, CounterReturned, CounterRevived, CounterDropped, CounterPrunedDead, CounterPrunedDone, CounterDeleted, CounterRepaired,
	CounterFired, CounterSkipped, CounterMissed,
}

// statsTopics is the maximum number of topics that travel in one pipeline.
const statsTopics = 1000

// Stats returns the numbers of jobs, the servers, the pauses and the counters of topics, in the
// order of topics. Without topics it returns those of [Inspector.Topics]. The numbers of a topic
// are read at one instant, except Servers and Workers. A topic that was never used has no jobs.
//
// If some topics cannot be read, Stats returns the others along with the error.
//
// Stats sends 1,000 topics at a time, in one round trip to each node of a Cluster. Cost: O(log N)
// for each topic with N jobs, and O(servers).
func (i *Inspector) Stats(ctx context.Context, topics ...string) ([]TopicStats, error) {
	errs := []error{i.usable(ctx)}
	for _, topic := range topics {
		errs = append(errs, invalidTopic(topic))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	if len(topics) == 0 {
		all, err := i.Topics(ctx)
		if err != nil {
			return nil, fmt.Errorf("inspect: %w", err)
		}
		topics = all
	}
	var servers []ServerInfo
	var list []TopicStats
	var failed topicErrors
	first := redis.NewScanCmd(ctx, nil, "hscan", serversKey(i.o.prefix), 0, "count", serversPage)
	others := []redis.Cmder{first}
	for some := range slices.Chunk(topics, statsTopics) {
		calls := i.inspect(ctx, some, others...)
		if others != nil {
			found, err := i.serversAfter(ctx, first)
			if err != nil {
				failed = append(failed, fmt.Errorf("inspect: %w", err))
			}
			servers, others = found, nil
		}
		for _, call := range calls {
			if call.err != nil {
				failed = append(failed, call.err)
				continue
			}
			stats := topicStats(call.topic, call.reply)
			stats.served(servers)
			list = append(list, stats)
		}
	}
	return list, failed.join()
}

// serversAfter reads all heartbeats, after the first call of their scan.
func (i *Inspector) serversAfter(ctx context.Context, first *redis.ScanCmd) ([]ServerInfo, error) {
	cluster, ok := i.rdb.(*redis.ClusterClient)
	if _, next := first.Val(); next != 0 && ok && cluster.Options().ReadOnly {
		return i.servers(ctx) // nobody knows which node has answered
	}
	list, err := allServers(ctx, i.rdb, i.o.prefix, first)
	return list, i.scripts.blame(ctx, err, serversKey(i.o.prefix))
}

// invalidTopic returns an error if a topic is invalid.
func invalidTopic(topic string) error {
	if err := checkName("topic", topic); err != nil {
		return invalid([]error{err})
	}
	return nil
}

// inspect executes the inspect script once for each topic, and other commands along with them.
func (i *Inspector) inspect(ctx context.Context, topics []string, others ...redis.Cmder) []*scriptCall {
	args := make([]any, len(counters))
	for at, name := range counters {
		args[at] = string(name)
	}
	calls := make([]*scriptCall, len(topics))
	for at, topic := range topics {
		calls[at] = newScriptCall(inspectScript, topic, 0, newKeys(i.o.prefix, topic).of(inspectScript, ""), args)
	}
	i.scripts.doWith(ctx, calls, others...)
	return calls
}

// topicStats reads a reply of the inspect script.
func topicStats(topic string, r reply) TopicStats {
	s := TopicStats{
		Topic: topic, At: msTime(r.now()), Scheduled: r.number(3), Running: r.number(4), Dead: r.number(5), Done: r.number(6),
	}
	s.Ready = max(0, r.number(2)-s.Scheduled-s.Running-s.Dead)
	s.Retrying = max(0, r.number(13)-s.Dead)
	s.Overdue = s.Ready + r.number(14)
	if head := r.list(7); len(head) == 2 {
		s.NextDue = scoreTime(head.text(1))
	}
	if r.number(14) > 0 {
		s.OldestOverdue = s.NextDue
	}
	if due := waitsSince(r.list(15)); s.OldestOverdue.IsZero() || !due.IsZero() && due.Before(s.OldestOverdue) {
		s.OldestOverdue = due
	}
	s.Schedules, s.WaitingSlots = r.number(10), r.number(11)
	if head := r.list(12); len(head) == 2 {
		s.NextSlot = scoreTime(head.text(1))
	}
	pause := r.list(8)
	for _, p := range record.DecodePauses(pause.text(2), r.now()) {
		s.Pauses = append(s.Pauses, PauseInfo{By: p.By, Reason: p.Reason, Since: msTime(p.Since), Until: orZero(p.Until)})
	}
	if until := pause.text(1); pause.text(0) != "" {
		s.Paused = until == "" || r.now() < scoreTime(until).UnixMilli()
		if s.Paused && until != "" {
			s.PausedUntil = scoreTime(until)
		}
	}
	s.Counters = make(map[Counter]int64, len(counters))
	for i, name := range counters {
		s.Counters[name], _ = strconv.ParseInt(r.list(9).text(i), 10, 64) // "" is none yet
	}
	return s
}

// waitsSince returns the due time of the first ready job. head holds its entry in moved and the
// beginning of its record, or nothing.
func waitsSince(head reply) time.Time {
	if m, ok := record.DecodeMoved(head.text(0)); ok {
		return msTime(m.Due)
	}
	return orZero(record.DueOf(head.text(1)))
}

// served counts the servers that take jobs of the topic.
func (s *TopicStats) served(servers []ServerInfo) {
	for _, info := range servers {
		does, ok := info.Topics[s.Topic]
		if ok && info.live(s.At) && cmp.Or(info.State, ServerRunning) == ServerRunning {
			s.Servers++
			s.Workers += does.Workers
		}
	}
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
	place := located{call: "forecast", topic: topic}
	err := errors.Join(i.validate(ctx, topic, ""), checkSteps(from, step, n))
	if err != nil {
		return nil, place.at(err)
	}
	edge := func(at int) string { // of the beginning of a step
		ms, _ := record.Millis(from.Add(time.Duration(at) * step)) // checkSteps has tried the last one
		return strconv.FormatInt(ms, 10)
	}
	key := newKeys(i.o.prefix, topic).bucket
	counts := make([]int64, 0, n)
	for len(counts) < n {
		cmds := make([]redis.Cmder, 0, forecastSteps)
		for at := len(counts); at < min(n, len(counts)+forecastSteps); at++ {
			cmds = append(cmds, redis.NewIntCmd(ctx, "zcount", key, edge(at), "("+edge(at+1)))
		}
		i.scripts.send(ctx, nil, cmds)
		some, err := counted(cmds)
		if err != nil {
			return nil, place.at(i.scripts.blame(ctx, err, key))
		}
		counts = append(counts, some...)
	}
	return counts, nil
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
		return nil, located{call: "due within"}.at(err)
	}
	edge := func(at time.Time) string {
		ms, _ := record.Millis(at) // checkSpans has tried it
		return strconv.FormatInt(ms, 10)
	}
	list := make([][]int64, 0, len(topics))
	var failed topicErrors
	for some := range slices.Chunk(topics, statsTopics) {
		cmds := make([]redis.Cmder, 0, len(some)*len(within))
		for _, topic := range some {
			key := newKeys(i.o.prefix, topic).bucket
			for _, d := range within {
				cmds = append(cmds, redis.NewIntCmd(ctx, "zcount", key, edge(from), "("+edge(from.Add(d))))
			}
		}
		i.scripts.send(ctx, nil, cmds)
		for at, topic := range some {
			counts, err := counted(cmds[at*len(within) : (at+1)*len(within)])
			if err != nil {
				err = i.scripts.blame(ctx, err, newKeys(i.o.prefix, topic).bucket)
				failed = append(failed, located{call: "due within", topic: topic}.at(err))
			}
			list = append(list, counts)
		}
	}
	return list, failed.join()
}

// counted returns the replies to commands that count.
func counted(cmds []redis.Cmder) ([]int64, error) {
	counts := make([]int64, len(cmds))
	for at, cmd := range cmds {
		n, err := cmd.(*redis.IntCmd).Result()
		if err != nil {
			return nil, err
		}
		counts[at] = n
	}
	return counts, nil
}

// checkSpans returns the complaints about the durations of DueWithin.
func checkSpans(from time.Time, within []time.Duration) error {
	_, err := instant("from", from)
	errs := []error{err}
	if n := len(within); n < 1 || n > mostSpans {
		errs = append(errs, fmt.Errorf("within has %d durations: must have from 1 to %d", n, mostSpans))
	}
	for _, d := range within {
		switch {
		case d < time.Millisecond || d > maxDelay:
			errs = append(errs, fmt.Errorf("within(%v): must be from 1ms to %v (100 years)", d, maxDelay))
		case err == nil:
			_, err := instant(fmt.Sprintf("the end of within(%v)", d), from.Add(d))
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return invalid([]error{err})
	}
	return nil
}
