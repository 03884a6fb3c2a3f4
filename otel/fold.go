package delayqotel

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/delayq/delayq"
)

// A fold turns what a look has found into series, as the Prometheus module does. It remembers which
// labels have series of their own, and what has been counted.
type fold struct {
	own    map[string]bool
	topics map[string]counted              // by topic
	totals map[string]map[counting]float64 // by label
}

// counted is what a topic had in its counters at the last look.
type counted struct {
	label  string
	values map[delayq.Counter]int64
}

// A counting is a counter of a label, and the attribute that it has beside the topic.
type counting struct {
	family     *family
	key, value string
}

// countings says which counters of Redis are observed as what.
var countings = map[delayq.Counter]counting{
	delayq.CounterEnqueued:        {jobEvents, "event", "enqueued"},
	delayq.CounterTaken:           {jobEvents, "event", "taken"},
	delayq.CounterAcked:           {jobEvents, "event", "acked"},
	delayq.CounterAgain:           {jobEvents, "event", "again"},
	delayq.CounterRetried:         {jobEvents, "event", "retried"},
	delayq.CounterSnoozed:         {jobEvents, "event", "snoozed"},
	delayq.CounterBuried:          {jobEvents, "event", "buried"},
	delayq.CounterCancelled:       {jobEvents, "event", "cancelled"},
	delayq.CounterExpired:         {jobEvents, "event", "expired"},
	delayq.CounterReturned:        {jobEvents, "event", "returned"},
	delayq.CounterHeld:            {jobEvents, "event", "held"},
	delayq.CounterRevived:         {jobEvents, "event", "revived"},
	delayq.CounterDeleted:         {jobEvents, "event", "deleted"},
	delayq.CounterTombed:          {jobEvents, "event", "tombed"},
	delayq.CounterDebounced:       {jobEvents, "event", "debounced"},
	delayq.CounterAwaited:         {jobEvents, "event", "awaited"},
	delayq.CounterUndelivered:     {jobEvents, "event", "undelivered"},
	delayq.CounterFlows:           {jobEvents, "event", "flows"},
	delayq.CounterFlowsFailed:     {jobEvents, "event", "flows_failed"},
	delayq.CounterFlowStepsFailed: {jobEvents, "event", "flow_steps_failed"},
	delayq.CounterReclaimed:       {family: reclaimed},
	delayq.CounterDropped:         {family: dropped},
	delayq.CounterPrunedDead:      {prunedJobs, "state", "dead"},
	delayq.CounterPrunedDone:      {prunedJobs, "state", "done"},
	delayq.CounterRepaired:        {family: repairs},
	delayq.CounterFired:           {scheduleSlots, "result", "fired"},
	delayq.CounterSkipped:         {scheduleSlots, "result", "skipped"},
	delayq.CounterMissed:          {scheduleSlots, "result", "missed"},
}

// A put takes a value.
type put = func(f *family, value float64, attrs ...attribute.KeyValue)

// A group is the topics of one label.
type group struct {
	topics []*seen
	unread bool // one of them could not be read
}

// put gives all series of the topics.
func (s *fold) put(o *metricsOptions, list []seen, put put) {
	groups, folded := s.group(o, list)
	s.count(groups)
	for label, g := range groups {
		if g.unread {
			continue
		}
		topic := keyTopic.String(label)
		g.gauges(func(f *family, value float64, attrs ...attribute.KeyValue) { put(f, value, append(attrs, topic)...) })
		for c, total := range s.totals[label] {
			attrs := []attribute.KeyValue{topic}
			if c.key != "" {
				attrs = append(attrs, attribute.String(c.key, c.value))
			}
			put(c.family, total, attrs...)
		}
	}
	put(foldedTopics, float64(folded))
}

// group groups topics by label. A label keeps its series as long as it has a topic: only then can
// the counters of Other not fall.
func (s *fold) group(o *metricsOptions, list []seen) (groups map[string]*group, folded int) {
	names, own := make([]string, len(list)), make(map[string]bool)
	for i := range list {
		names[i] = o.name(list[i].topic)
		if s.own[names[i]] {
			own[names[i]] = true
		}
	}
	groups = make(map[string]*group)
	for i, label := range names {
		switch {
		case own[label]:
		case label == Other, len(own) >= o.topics:
			label = Other
			folded++
		default:
			own[label] = true
		}
		g := groups[label]
		if g == nil {
			g = &group{}
			groups[label] = g
		}
		g.topics, g.unread = append(g.topics, &list[i]), g.unread || list[i].stats == nil
	}
	s.own = own
	return groups, folded
}

// gauges gives the gauges of a label. Most are sums. It is paused if all of its topics are, because
// else an alert about the others would be silenced. Its servers are those of the topic that has the
// fewest, among topics with overdue jobs if there are any.
func (g *group) gauges(put put) {
	var sum delayq.TopicStats
	due := make([]int64, len(horizons))
	isPaused, servers, waits, alone, unknown := 1.0, -1, false, false, false
	var oldest, oldestHanded time.Duration
	parts, generations := 0, 0
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
			parts, generations = parts+p.Count, generations+len(p.Closing)
		}
		if !t.Paused {
			isPaused = 0
		}
		alone = alone || one.alone
		if late := t.Overdue > 0; late && !waits || late == waits && (servers < 0 || t.Servers < servers) {
			servers, waits = t.Servers, late
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
	for state, n := range map[delayq.State]int64{
		delayq.StateScheduled: sum.Scheduled, delayq.StateReady: sum.Ready, delayq.StateRunning: sum.Running,
		delayq.StateDead: sum.Dead, delayq.StateDone: sum.Done,
	} {
		put(jobs, float64(n), keyState.String(string(state)))
	}
	put(retryingJobs, float64(sum.Retrying))
	put(overdueJobs, float64(sum.Overdue))
	if !unknown || oldest > 0 {
		put(oldestOverdue, oldest.Seconds())
	}
	for i, h := range horizons {
		put(dueJobs, float64(due[i]), keyWithin.String(h.label))
	}
	put(keyedJobs, float64(sum.Keyed))
	put(laneKeys, float64(sum.Keys))
	put(parcels, float64(sum.Parcels))
	put(oldestParcel, oldestHanded.Seconds())
	put(flows, float64(sum.Flows))
	put(flowsAtRisk, float64(sum.FlowsAtRisk))
	put(partitions, float64(parts))
	put(closing, float64(generations))
	put(paused, isPaused)
	if !alone {
		put(liveServers, float64(servers))
		put(workers, float64(sum.Capacity))
	}
	if !sum.NextSlot.IsZero() {
		put(scheduleNext, float64(sum.NextSlot.UnixMilli())/1000)
	}
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
// a backend would take that for a restart from zero.
func (s *fold) count(groups map[string]*group) {
	topics, totals := make(map[string]counted), make(map[string]map[counting]float64, len(groups))
	for label, g := range groups {
		total := s.totals[label]
		if total == nil {
			total = make(map[counting]float64, len(countings))
		}
		totals[label] = total
		for _, one := range g.topics {
			old, known := s.topics[one.topic]
			if one.stats == nil {
				if known {
					topics[one.topic] = old
				}
				continue
			}
			if old.label != label {
				old = counted{}
			}
			for name, c := range countings {
				now := one.stats.Counters[name]
				total[c] += float64(risen(old.values[name], now))
			}
			topics[one.topic] = counted{label, one.stats.Counters}
		}
	}
	s.topics, s.totals = topics, totals
}
