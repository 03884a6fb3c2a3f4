package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delayq/delayq"
)

// A state turns what a look has found into series. It remembers which topics are folded, and what
// has been counted.
type state struct {
	folding
	topics map[string]*counted      // by topic
	totals map[string]map[key]int64 // by label
}

// counted is what a topic had in its counters at the last look.
type counted struct {
	label  string
	values map[delayq.Counter]int64
}

// key is a counter of the queue and the labels that it has beside the topic.
type key struct {
	family *family
	value  string
}

// counters says which counters of Redis are exported as what.
var counters = map[delayq.Counter]key{
	delayq.CounterEnqueued:        {jobEventsTotal, "enqueued"},
	delayq.CounterTaken:           {jobEventsTotal, "taken"},
	delayq.CounterAcked:           {jobEventsTotal, "acked"},
	delayq.CounterAgain:           {jobEventsTotal, "again"},
	delayq.CounterRetried:         {jobEventsTotal, "retried"},
	delayq.CounterSnoozed:         {jobEventsTotal, "snoozed"},
	delayq.CounterBuried:          {jobEventsTotal, "buried"},
	delayq.CounterCancelled:       {jobEventsTotal, "cancelled"},
	delayq.CounterExpired:         {jobEventsTotal, "expired"},
	delayq.CounterReturned:        {jobEventsTotal, "returned"},
	delayq.CounterHeld:            {jobEventsTotal, "held"},
	delayq.CounterRevived:         {jobEventsTotal, "revived"},
	delayq.CounterDeleted:         {jobEventsTotal, "deleted"},
	delayq.CounterTombed:          {jobEventsTotal, "tombed"},
	delayq.CounterDebounced:       {jobEventsTotal, "debounced"},
	delayq.CounterAwaited:         {jobEventsTotal, "awaited"},
	delayq.CounterUndelivered:     {jobEventsTotal, "undelivered"},
	delayq.CounterFlows:           {jobEventsTotal, "flows"},
	delayq.CounterFlowsFailed:     {jobEventsTotal, "flows_failed"},
	delayq.CounterFlowStepsFailed: {jobEventsTotal, "flow_steps_failed"},
	delayq.CounterReclaimed:       {leasesReclaimedTotal, ""},
	delayq.CounterDropped:         {leasesDroppedTotal, ""},
	delayq.CounterPrunedDead:      {prunedJobsTotal, "dead"},
	delayq.CounterPrunedDone:      {prunedJobsTotal, "done"},
	delayq.CounterRepaired:        {repairsTotal, ""},
	delayq.CounterFired:           {scheduleSlotsTotal, "fired"},
	delayq.CounterSkipped:         {scheduleSlotsTotal, "skipped"},
	delayq.CounterMissed:          {scheduleSlotsTotal, "missed"},
}

// A group is the topics of one label.
type group struct {
	topics []*seen
	unread bool // one of them could not be read
}

// metrics returns the series of all topics.
func (s *state) metrics(make func(f *family, v float64, labels ...string) prometheus.Metric, list []seen) (all []prometheus.Metric) {
	groups, order, folded := s.group(list)
	for _, label := range order {
		g := groups[label]
		if g.unread {
			continue
		}
		g.gauges(func(f *family, v float64, labels ...string) {
			all = append(all, make(f, v, append([]string{label}, labels...)...))
		})
	}
	s.count(groups)
	for _, label := range order {
		if groups[label].unread {
			continue
		}
		for k, n := range s.totals[label] {
			labels := []string{label}
			if k.value != "" {
				labels = append(labels, k.value)
			}
			all = append(all, make(k.family, float64(n), labels...))
		}
	}
	return append(all, make(foldedTopics, float64(folded)))
}

// group groups topics by label, and returns the labels in their order. A label keeps its series as
// long as it has a topic: only then can the counters of Other not fall.
func (s *state) group(list []seen) (groups map[string]*group, order []string, folded int) {
	names := make([]string, len(list))
	used := make(map[string]bool)
	for i := range list {
		names[i] = s.name(list[i].topic)
		used[names[i]] = true
	}
	s.release(used)
	groups = make(map[string]*group)
	for i := range list {
		label := s.claim(names[i])
		if label == Other {
			folded++
		}
		g := groups[label]
		if g == nil {
			g = new(group)
			groups[label] = g
			order = append(order, label)
		}
		g.topics = append(g.topics, &list[i])
		g.unread = g.unread || list[i].stats == nil
	}
	return groups, order, folded
}

// gauges makes the gauges of a label. Most are sums. It is paused if all of its topics are, because
// else an alert about the others would be silenced. Its servers are those of the topic that has the
// fewest, among topics with overdue jobs if there are any.
func (g *group) gauges(set func(f *family, v float64, labels ...string)) {
	var sum delayq.TopicStats
	due := make([]int64, len(horizons))
	isPaused, servers, waits, alone := true, -1, false, false
	var oldest, oldestHanded time.Duration
	unknown := false
	parts, closing := 0, 0
	for _, one := range g.topics {
		t := one.stats
		sum.Scheduled += t.Scheduled
		sum.Ready += t.Ready
		sum.Running += t.Running
		sum.Dead += t.Dead
		sum.Done += t.Done
		sum.Retrying += t.Retrying
		sum.Overdue += t.Overdue
		sum.Capacity += t.Capacity
		sum.Keyed += t.Keyed
		sum.Keys += t.Keys
		sum.Parcels += t.Parcels
		sum.Flows += t.Flows
		sum.FlowsAtRisk += t.FlowsAtRisk
		for i, n := range one.due {
			due[i] += n
		}
		if p := t.Partitions; p != nil {
			parts, closing = parts+p.Count, closing+len(p.Closing)
		}
		isPaused = isPaused && t.Paused
		alone = alone || one.alone
		if fewer := servers < 0 || t.Servers < servers; t.Overdue > 0 && !waits || t.Overdue > 0 == waits && fewer {
			servers, waits = t.Servers, t.Overdue > 0
		}
		switch {
		case t.Overdue == 0:
		case t.OldestOverdue.IsZero():
			unknown = true
		default:
			oldest = max(oldest, t.At.Sub(t.OldestOverdue))
		}
		if !t.OldestParcel.IsZero() {
			oldestHanded = max(oldestHanded, t.At.Sub(t.OldestParcel))
		}
		if !t.NextSlot.IsZero() && (sum.NextSlot.IsZero() || t.NextSlot.Before(sum.NextSlot)) {
			sum.NextSlot = t.NextSlot
		}
	}
	for _, n := range []struct {
		state delayq.State
		jobs  int64
	}{
		{delayq.StateScheduled, sum.Scheduled}, {delayq.StateReady, sum.Ready}, {delayq.StateRunning, sum.Running},
		{delayq.StateDead, sum.Dead}, {delayq.StateDone, sum.Done},
	} {
		set(jobs, float64(n.jobs), string(n.state))
	}
	set(retryingJobs, float64(sum.Retrying))
	set(overdueJobs, float64(sum.Overdue))
	if !unknown || oldest > 0 {
		set(oldestOverdue, oldest.Seconds())
	}
	for i, h := range horizons {
		set(dueJobs, float64(due[i]), h.label)
	}
	set(keyedJobs, float64(sum.Keyed))
	set(laneKeys, float64(sum.Keys))
	set(parcels, float64(sum.Parcels))
	set(oldestParcel, oldestHanded.Seconds())
	set(flows, float64(sum.Flows))
	set(flowsAtRisk, float64(sum.FlowsAtRisk))
	set(partitions, float64(parts))
	set(closingGenerations, float64(closing))
	set(paused, number(isPaused))
	if !alone {
		set(liveServers, float64(servers))
		set(workers, float64(sum.Capacity))
	}
	if !sum.NextSlot.IsZero() {
		set(scheduleNext, float64(sum.NextSlot.UnixMilli())/1000)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// risen returns by how much a counter has risen. One that has fallen by less than half has fallen
// back with Redis, which has lost the last seconds. One that has fallen further has begun anew.
func risen(before, now int64) int64 {
	switch {
	case now >= before:
		return now - before
	case now > before/2:
		return 0
	}
	return now
}

// count adds what has happened since the last look to the totals of the labels. The totals are not
// sums of the counters, because the removal of one of several topics would let such a sum fall, and
// Prometheus would take that for a restart from zero.
func (s *state) count(groups map[string]*group) {
	before := s.topics
	s.topics = make(map[string]*counted, len(before))
	totals := make(map[string]map[key]int64, len(groups))
	for label, g := range groups {
		total := s.totals[label]
		if total == nil {
			total = make(map[key]int64, len(counters))
		}
		totals[label] = total
		for _, one := range g.topics {
			old := before[one.topic]
			if one.stats == nil {
				if old != nil {
					s.topics[one.topic] = old
				}
				continue
			}
			if old == nil || old.label != label {
				old = &counted{}
			}
			for name, k := range counters {
				now := one.stats.Counters[name]
				total[k] += risen(old.values[name], now)
			}
			s.topics[one.topic] = &counted{label, one.stats.Counters}
		}
	}
	s.totals = totals
}
