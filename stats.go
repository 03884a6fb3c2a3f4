package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/places"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
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

	// Overdue is the number of jobs that are due and have not started: the ready ones, also those
	// of held keys (see [HoldKey]), and scheduled ones whose time has come. A topic that keeps up
	// has few, for milliseconds.
	Overdue int64
	// OldestOverdue is the earliest due time among the overdue jobs, as far as the first ready job,
	// the first of each of the next 20 keys and the first scheduled one show it. Jobs of held keys
	// do not count. Ready jobs whose records have more than 16 KiB are passed over. It is zero if
	// no job is overdue, or if all of these, and the first 20 entries of ready, are such jobs or
	// left over from cancelled ones.
	OldestOverdue time.Time

	NextDue time.Time // of the earliest scheduled job; zero if there is none

	Keyed int64 // ready jobs that have a key: see [Key]
	// Keys is the number of keys in the round: those of the Keyed jobs that are not held (see
	// [HoldKey]), the jobs without a key as one more, and until the next take keys that have been
	// held or whose jobs have been cancelled since the last one.
	Keys int64

	// Parcels is the number of jobs that runs of this topic have handed over with [Job.Then], and
	// that are not yet passed on to their topics. It is 0 within milliseconds unless a target
	// cannot be reached. What flows have to send counts too: of one call, up to 100 as one.
	Parcels int64
	// OldestParcel is when the run that has handed over the oldest of Parcels ended, as far as the
	// first job for each of 20 target topics shows it. These are fewer if their jobs exceed 1 MiB.
	// It is zero if there is none.
	OldestParcel time.Time

	// Flows is the number of flows whose last step is a job of this topic: those that are open, and
	// those whose last step has not ended or is dead. See [Flow].
	Flows int64
	// FlowsAtRisk is the number of those that are open and have a step that has ended badly, which
	// they ignore or others make good, although half of the time to their deadline has passed. It
	// is counted among about 500 flows of the topic.
	FlowsAtRisk int64

	Schedules    int64 // of the topic, including paused and ended ones
	WaitingSlots int64 // schedules with a slot that waits for the end of the last run
	// NextSlot is the earliest slot of all schedules. It is in 1970 if a server has yet to compute
	// it, and zero if there is none.
	NextSlot time.Time

	Servers int // live servers that take jobs of the topic; a server that drains takes none
	Workers int // the sum of their Concurrency for the topic
	// Capacity is the number of jobs that these servers can run at a time. It equals Workers unless
	// the topic has batch handlers, whose workers run up to [BatchSize] jobs each.
	Capacity int

	Paused bool // whether any of Pauses is in effect
	// PausedUntil is the latest end of Pauses. It is zero if one of them has no end, or if the
	// topic is not paused.
	PausedUntil time.Time
	Pauses      []PauseInfo // those in effect, the oldest first

	// Limits of the topic. NextStart is when its rate allows the next start; it is zero if that is
	// now, or if there is no rate.
	Limits    Limits
	NextStart time.Time
	// HeldUntil is the end of the hold that is in effect, or zero: see [Hold]. HeldBy is the actor,
	// or "job" and the ID of the job whose handler has returned it.
	HeldUntil  time.Time
	HeldBy     string
	HeldReason string

	// Partitions describes the partitions of the topic. It is nil if it has none: see
	// [Client.Partition]. All numbers of the topic include theirs.
	Partitions *PartitionStats

	// Counters has every [Counter].
	Counters map[Counter]int64
}

// PartitionStats describes the partitions of a topic in a few numbers, however many they are: see
// [Client.Partition].
type PartitionStats struct {
	Count int  // of the partitions that take new jobs
	ByKey bool // they are divided by [ByKey]
	// Least and Most are those of them that have the fewest and the most unfinished jobs. They
	// differ a lot if few keys have most of the jobs.
	Least, Most PartitionLoad
	// Closing are the partitions of earlier Partition calls that are still served, the oldest
	// first. They take no new jobs, and are given up when they have nothing left. There are at most
	// 7 such calls.
	Closing []ClosingPartitions
}

// A PartitionRef names a partition of a topic.
type PartitionRef struct {
	Generation int // of the call of [Client.Partition] that made it, from 1 on; 0: the topic itself
	Index      int // from 0 to the number of partitions less 1
}

// A PartitionLoad is the work of one partition.
type PartitionLoad struct {
	PartitionRef
	Jobs             int64 // unfinished: scheduled, ready, running and dead ones
	Overdue, Running int64
}

// ClosingPartitions are partitions that take no new jobs. Those of generation 0 are the topic as it
// was before its first Partition call.
type ClosingPartitions struct {
	Generation, Count int
	ByKey             bool
	Jobs              int64 // unfinished, dead ones too, of all of them
	// Kept is the number of done jobs, closed IDs, jobs of [Job.Then] on their way, and flows. The
	// partitions are served until these are gone, too.
	Kept int64
}

var counters = []Counter{
	CounterEnqueued, CounterTaken, CounterAcked, CounterAgain, CounterRetried, CounterSnoozed, CounterBuried, CounterCancelled,
	CounterExpired, CounterReclaimed, CounterReturned, CounterHeld, CounterRevived, CounterDropped, CounterPrunedDead, CounterPrunedDone, CounterDeleted, CounterRepaired,
	CounterFired, CounterSkipped, CounterMissed, CounterTombed, CounterDebounced, CounterUndelivered, CounterAwaited,
	CounterFlows, CounterFlowsFailed, CounterFlowStepsFailed,
}

var counterNames = func() []any {
	names := make([]any, len(counters))
	for i, name := range counters {
		names[i] = string(name)
	}
	return names
}()

// skew is how far the clocks of the nodes of a Cluster may differ. Stats has that of one of them.
const skew = time.Minute

// statsTopics is the maximum number of topics that travel in one pipeline.
const statsTopics = 1000

// Stats returns the numbers of jobs, the servers, the pauses and the counters of topics, in the
// order of topics. Without topics it returns those of [Inspector.Topics]. A topic that was never
// used has no jobs.
//
// The numbers of a topic are read one directly after the other. A job that moves meanwhile can be
// missing in one of them or counted in two.
//
// If some topics cannot be read, Stats returns the others along with the error.
//
// Stats sends 1,000 topics at a time, in one round trip to each node of a Cluster, and in another
// one for the topics that have ready or due jobs, or Parcels. If some have partitions, one more
// round trip reads these, 1,000 at a time. A topic whose partitions change meanwhile is read again,
// at most 3 times. Cost: O(log N) for each topic or partition with N jobs,
// and O(servers). That is about 7 µs of Redis's time for a topic, and twice that if it has such
// jobs.
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
	clock := redis.NewTimeCmd(ctx, "time")
	first := redis.NewScanCmd(ctx, nil, "hscan", script.ServersKey(i.o.prefix), 0, "count", script.HeartbeatsPage)
	others := []redis.Cmder{first, clock}
	for some := range slices.Chunk(topics, statsTopics) {
		reads := places.ReadTopics(ctx, i.scripts, i.o.prefix, some, counterNames, others...)
		if others != nil {
			if err := clock.Err(); err != nil {
				if said := reads[0].Err(); script.Locked(said) { // then Redis has hung up before the end
					err = said
				}
				return nil, fmt.Errorf("inspect: %w", script.Hinted(err))
			}
			found, err := i.serversAfter(ctx, first)
			if err != nil {
				failed = append(failed, fmt.Errorf("inspect: %w", err))
			}
			servers, others = found, nil
		}
		now := clock.Val()
		if _, cluster := i.rdb.(*redis.ClusterClient); cluster {
			now = now.Add(skew)
		}
		places.ReadOverdue(ctx, i.scripts, reads, now)
		for _, r := range reads {
			stats, err := wholeStats(r, clock.Val())
			if err != nil {
				failed = append(failed, err)
				continue
			}
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
	return list, i.scripts.Blame(ctx, err, script.ServersKey(i.o.prefix))
}

// invalidTopic returns an error if a topic is invalid.
func invalidTopic(topic string) error {
	if err := script.CheckName("topic", topic); err != nil {
		return invalid([]error{err})
	}
	return nil
}

// statsOf returns what was read of a topic or a partition at about now.
func statsOf(r *places.Read, now time.Time) (TopicStats, error) {
	now = now.Truncate(time.Millisecond)
	s := TopicStats{
		Topic: r.Keys.Topic, At: now, Scheduled: r.Bucket.Val(), Ready: r.Ready(), Running: r.Leases.Val(), Dead: r.Dead.Val(), Done: r.Done.Val(),
		Retrying: max(0, r.Attempts.Val()-r.Dead.Val()), NextDue: firstScore(r.Head),
		Schedules: r.Schedules.Val(), WaitingSlots: r.Waiting.Val(), NextSlot: firstScore(r.Slot),
		Keyed: r.Lane.Val(), Keys: r.Turn.Val(), Parcels: r.Parcels.Val(), Flows: r.Flows.Val(),
	}
	if err := r.Error(); err != nil {
		return s, err
	}
	s.Overdue = s.Ready
	if r.Inspect != nil {
		if r.Due {
			s.addOverdue(r.Inspect.Reply)
		}
		if s.Parcels > 0 {
			s.OldestParcel = orZero(r.Inspect.Reply.Number(5))
		}
		s.FlowsAtRisk = r.Inspect.Reply.Number(6)
	}
	pause := script.Reply(r.Meta.Val())
	for _, p := range record.DecodePauses(pause.Text(2), now.UnixMilli()) {
		s.Pauses = append(s.Pauses, PauseInfo{By: p.By, Reason: p.Reason, Since: msTime(p.Since), Until: orZero(p.Until)})
	}
	if until := pause.Text(1); pause.Text(0) != "" {
		s.Paused = until == "" || now.Before(scoreTime(until))
		if s.Paused && until != "" {
			s.PausedUntil = scoreTime(until)
		}
	}
	h := readHold(pause[min(3, len(pause)):], now.UnixMilli())
	s.HeldUntil, s.HeldBy, s.HeldReason, s.Limits, s.NextStart = h.until, h.by, h.reason, h.whole, h.next
	s.Counters = make(map[Counter]int64, len(counters))
	for i, name := range counters {
		s.Counters[name], _ = strconv.ParseInt(script.Reply(r.Counters.Val()).Text(i), 10, 64) // "" is none yet
	}
	return s, nil
}

// firstScore returns the score of the first entry of a zset as a time. It is zero if there is none.
func firstScore(head *redis.ZSliceCmd) time.Time {
	if list := head.Val(); len(list) > 0 {
		return msTime(int64(list[0].Score))
	}
	return time.Time{}
}

// wholeStats returns what was read of a topic and its partitions at about now.
func wholeStats(r *places.Read, now time.Time) (TopicStats, error) {
	s, err := statsOf(r, now)
	if err != nil || len(r.Map) == 0 {
		return s, err
	}
	var next []time.Time // starts of the partitions that take new jobs
	loads := []places.Load{loadOf(r, &s)}
	for _, one := range r.Parts {
		p, err := statsOf(one, now)
		if err != nil {
			return s, err
		}
		loads = append(loads, loadOf(one, &p))
		if s.add(&p); places.RefOf(one.Keys.Topic).Generation == r.Map.Open().Number {
			next = append(next, p.NextStart)
		}
	}
	if len(next) > 0 {
		s.NextStart = slices.MinFunc(next, time.Time.Compare) // zero: one of them can start a job now
	}
	s.Partitions = partitionStats(r.Map, loads)
	return s, nil
}

// partitionStats returns the summary of partitions.
func partitionStats(m part.Map, loads []places.Load) *PartitionStats {
	least, most, closing := places.Summary(m, loads)
	open := m.Open()
	p := &PartitionStats{Count: open.Parts, ByKey: open.ByKey, Least: loaded(least), Most: loaded(most)}
	for _, c := range closing {
		p.Closing = append(p.Closing, ClosingPartitions{c.Number, c.Parts, c.ByKey, c.Jobs, c.Kept})
	}
	return p
}

func loaded(l places.Load) PartitionLoad {
	return PartitionLoad{PartitionRef(l.Place), l.Jobs, l.Overdue, l.Running}
}

// loadOf returns what a summary needs of a place of a topic with partitions.
func loadOf(r *places.Read, s *TopicStats) places.Load {
	return places.Load{
		Place: places.RefOf(r.Keys.Topic), Jobs: r.Pool.Val(), Overdue: s.Overdue, Running: s.Running,
		Kept: s.Done + max(0, r.Tombs.Val()-1) + s.Parcels + s.Flows,
	}
}

// add adds the numbers of a partition.
func (s *TopicStats) add(p *TopicStats) {
	for to, n := range map[*int64]int64{
		&s.Scheduled: p.Scheduled, &s.Ready: p.Ready, &s.Running: p.Running, &s.Dead: p.Dead, &s.Done: p.Done, &s.Retrying: p.Retrying,
		&s.Overdue: p.Overdue, &s.Keyed: p.Keyed, &s.Keys: p.Keys, &s.Parcels: p.Parcels, &s.Flows: p.Flows, &s.FlowsAtRisk: p.FlowsAtRisk,
	} {
		*to += n
	}
	for to, at := range map[*time.Time]time.Time{&s.OldestOverdue: p.OldestOverdue, &s.NextDue: p.NextDue, &s.OldestParcel: p.OldestParcel} {
		if to.IsZero() || !at.IsZero() && at.Before(*to) {
			*to = at
		}
	}
	for name, n := range p.Counters {
		s.Counters[name] += n
	}
}

// addOverdue adds a reply of the inspect script.
func (s *TopicStats) addOverdue(r script.Reply) {
	if due := r.Number(2); due > 0 {
		s.Overdue += due
		s.OldestOverdue = s.NextDue
	}
	for _, head := range []script.Reply{r.List(3), r.List(4)} {
		if due := waitsSince(head); s.OldestOverdue.IsZero() || !due.IsZero() && due.Before(s.OldestOverdue) {
			s.OldestOverdue = due
		}
	}
}

// A restraint is what keeps a topic from running more jobs.
type restraint struct {
	until      time.Time // of the hold; zero: none
	by, reason string
	limits     Limits    // of a partition, its share of them
	whole      Limits    // of the topic
	next       time.Time // start; zero: now
}

// readHold reads the fields hold, holdby, holdwhy, flow, tat, gather, ahead and shared of meta. A
// hold that is the same as ahead is none: a take keeps it for servers of earlier releases.
func readHold(meta script.Reply, now int64) (h restraint) {
	if until := meta.Text(0); until != "" && until != meta.Text(6) {
		if end := scoreTime(until); end.UnixMilli() > now {
			h.until, h.by, h.reason = end, meta.Text(1), meta.Text(2)
		}
	}
	h.limits = decodeLimits(meta.Text(3))
	if h.whole = h.limits; meta.Text(7) != "" {
		h.whole = decodeLimits(meta.Text(7))
	}
	h.next = nextStart(meta.Text(3), meta.Text(4), now)
	return h
}

// nextStart returns when the next job of a topic or a partition may start by its limits, or zero if
// one may start now. flow and tat are those of meta.
func nextStart(flow, tat string, now int64) time.Time {
	full, err := strconv.ParseFloat(tat, 64)
	emit, burst := record.PaceOfLimits(flow)
	if err != nil || emit == 0 || math.IsNaN(full) {
		return time.Time{}
	}
	us := float64(now) * 1000        // the product can exceed an int64
	if full > us+burst*emit+15_000 { // as take does it
		full = us + burst*emit
	}
	if next := full - (burst-1)*emit; next > us {
		return time.UnixMicro(int64(next))
	}
	return time.Time{}
}

// waitsSince returns the due time of the first ready job. head holds its entry in moved and the
// beginning of its record, or nothing.
func waitsSince(head script.Reply) time.Time {
	if m, ok := record.DecodeMoved(head.Text(0)); ok {
		return msTime(m.Due)
	}
	return orZero(record.DueOf(head.Text(1)))
}

// served counts the servers that take jobs of the topic.
func (s *TopicStats) served(servers []ServerInfo) {
	for _, info := range servers {
		does, ok := info.Topics[s.Topic]
		if ok && info.live(s.At) && cmp.Or(info.State, ServerRunning) == ServerRunning {
			s.Servers++
			s.Workers += does.Workers
			s.Capacity += does.capacity()
		}
	}
}

// A Counter names a number that [Inspector.Stats] returns.
type Counter string

// The counters of a topic. A counter of runs has the name of their [Outcome].
const (
	CounterEnqueued    Counter = "enqueued"
	CounterTaken       Counter = "taken"
	CounterAcked       Counter = "acked"
	CounterAgain       Counter = "again" // jobs that were acked and enqueued again
	CounterRetried     Counter = "retried"
	CounterSnoozed     Counter = "snoozed"
	CounterBuried      Counter = "buried"
	CounterCancelled   Counter = "cancelled"
	CounterExpired     Counter = "expired"
	CounterReclaimed   Counter = "reclaimed" // leases that ran out
	CounterReturned    Counter = "returned"
	CounterHeld        Counter = "held" // jobs given back by handlers that held the topic
	CounterRevived     Counter = "revived"
	CounterDropped     Counter = "dropped"     // leases without a job
	CounterPrunedDead  Counter = "pruned_dead" // dead jobs deleted by the [DeadLimit] of a server
	CounterPrunedDone  Counter = "pruned_done" // done jobs whose [Retention] is over
	CounterDeleted     Counter = "deleted"     // done jobs removed by Delete
	CounterRepaired    Counter = "mended"      // repairs by servers and by Repair
	CounterFired       Counter = "fired"       // jobs made by schedules
	CounterSkipped     Counter = "skipped"     // slots not fired because of the [OverlapPolicy]
	CounterMissed      Counter = "missed"      // slots not fired because of the [MissedPolicy]
	CounterTombed      Counter = "tombed"      // jobs refused because their ID was closed: see [Tombstone]
	CounterDebounced   Counter = "debounced"   // calls whose payload went to a job that was there: see [Debounce] and [Latest]
	CounterAwaited     Counter = "awaited"     // outcomes of jobs that were told to waiting clients: see [Client.Wait]
	CounterUndelivered Counter = "undelivered" // jobs of [Job.Then] that their topics have refused, counted where they were handed over

	CounterFlows           Counter = "flows"             // flows started, counted at the topics of their last steps
	CounterFlowsFailed     Counter = "flows_failed"      // flows that have failed before their deadlines
	CounterFlowStepsFailed Counter = "flow_steps_failed" // steps of flows that have ended badly or were skipped
)
