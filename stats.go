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

	// Counters has every [Counter].
	Counters map[Counter]int64
}

var counters = []Counter{
	CounterEnqueued, CounterTaken, CounterAcked, CounterAgain, CounterRetried, CounterSnoozed, CounterBuried, CounterCancelled,
	CounterExpired, CounterReclaimed, CounterReturned, CounterHeld, CounterRevived, CounterDropped, CounterPrunedDead, CounterPrunedDone, CounterDeleted, CounterRepaired,
	CounterFired, CounterSkipped, CounterMissed, CounterTombed, CounterDebounced, CounterUndelivered, CounterAwaited,
	CounterFlows, CounterFlowsFailed, CounterFlowStepsFailed,
}

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
// one for the topics that have ready or due jobs, or Parcels. Cost: O(log N) for each topic with N
// jobs, and O(servers). That is about 7 µs of Redis's time for a topic, and twice that if it has
// such jobs.
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
		reads := i.read(ctx, some, others...)
		if others != nil {
			if err := clock.Err(); err != nil {
				if said := reads[0].pool.Err(); script.Locked(said) { // then Redis has hung up before the end
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
		i.readOverdue(ctx, reads, clock.Val())
		for _, r := range reads {
			stats, err := r.stats(clock.Val())
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

// A topicRead is the commands that read a topic. The first ones travel in one pipeline.
type topicRead struct {
	keys                                                           *script.Keys
	pool, bucket, leases, dead, done, attempts, schedules, waiting *redis.IntCmd
	lane, turn, parcels, flows                                     *redis.IntCmd
	head, slot                                                     *redis.ZSliceCmd
	pause, counters                                                *redis.SliceCmd
	err                                                            error

	due     bool         // whether something can be
	inspect *script.Call // nil: nothing is due, and there are no parcels
}

// read reads topics, and sends other commands along with them. Plain commands cost Redis less than
// half of what a script that calls them does.
func (i *Inspector) read(ctx context.Context, topics []string, others ...redis.Cmder) []*topicRead {
	var cmds []redis.Cmder
	reads := make([]*topicRead, len(topics))
	for at, topic := range topics {
		k := script.NewKeys(i.o.prefix, topic)
		number := func(words ...any) *redis.IntCmd {
			cmd := redis.NewIntCmd(ctx, words...)
			cmds = append(cmds, cmd)
			return cmd
		}
		fields := func(words ...any) *redis.SliceCmd {
			cmd := redis.NewSliceCmd(ctx, words...)
			cmds = append(cmds, cmd)
			return cmd
		}
		first := func(zset string) *redis.ZSliceCmd {
			cmd := redis.NewZSliceCmd(ctx, "zrange", zset, 0, 0, "withscores")
			cmds = append(cmds, cmd)
			return cmd
		}
		names := make([]any, 0, 2+len(counters))
		names = append(names, "hmget", k.Stats)
		for _, name := range counters {
			names = append(names, string(name))
		}
		settings := []any{"hmget", k.Meta, "paused", "until", "pauses", "hold", "holdby", "holdwhy", "flow", "tat", "gather", "ahead"}
		reads[at] = &topicRead{
			keys: k, pool: number("hlen", k.Pool), bucket: number("zcard", k.Bucket),
			leases: number("zcount", k.Leases, 0, record.MaxTime), // not the anchor
			dead:   number("zcard", k.Dead), done: number("zcard", k.Done), attempts: number("hlen", k.Attempts),
			head: first(k.Bucket), pause: fields(settings...), counters: fields(names...),
			schedules: number("hlen", k.Schedules), waiting: number("zcard", k.Waiting), slot: first(k.Slots),
			lane: number("zcard", k.Lane), turn: number("zcard", k.Turn), parcels: number("zcard", k.Parcels),
			flows: number("hlen", k.Flows),
		}
	}
	i.scripts.Send(ctx, nil, append(cmds, others...))
	for _, r := range reads {
		for _, cmd := range []redis.Cmder{
			r.pool, r.bucket, r.leases, r.dead, r.done, r.attempts, r.head, r.pause, r.counters, r.schedules, r.waiting, r.slot, r.lane, r.turn, r.parcels, r.flows,
		} {
			if err := cmd.Err(); err != nil {
				k := r.keys
				r.err = script.Place{Call: "inspect", Topic: k.Topic}.At(i.scripts.Blame(ctx, err,
					k.Pool, k.Bucket, k.Leases, k.Dead, k.Done, k.Attempts, k.Meta, k.Stats, k.Schedules, k.Waiting, k.Slots, k.Lane, k.Turn, k.Parcels, k.Flows))
				break
			}
		}
	}
	return reads
}

// skew is how far the clocks of the nodes of a Cluster may differ. Stats has that of one of them.
const skew = time.Minute

// readOverdue reads what is due in those topics in which something can be, the age of parcels, and
// which flows are at risk.
func (i *Inspector) readOverdue(ctx context.Context, reads []*topicRead, now time.Time) {
	if _, cluster := i.rdb.(*redis.ClusterClient); cluster {
		now = now.Add(skew)
	}
	var calls []*script.Call
	for _, r := range reads {
		if r.err != nil {
			continue
		}
		if r.due = r.ready() > 0 || isPast(r.head, now); r.due || r.parcels.Val() > 0 || r.flows.Val() > 0 {
			r.inspect = script.NewCall(script.Inspect, r.keys.Topic, 0, r.keys.Of(script.Inspect, ""), nil)
			calls = append(calls, r.inspect)
		}
	}
	if len(calls) > 0 {
		i.scripts.DoWith(ctx, calls)
	}
}

// isPast reports whether the first entry of a zset is due.
func isPast(head *redis.ZSliceCmd, now time.Time) bool {
	at := firstScore(head)
	return !at.IsZero() && !at.After(now)
}

// firstScore returns the score of the first entry of a zset as a time. It is zero if there is none.
func firstScore(head *redis.ZSliceCmd) time.Time {
	if list := head.Val(); len(list) > 0 {
		return msTime(int64(list[0].Score))
	}
	return time.Time{}
}

func (r *topicRead) ready() int64 {
	return max(0, r.pool.Val()-r.bucket.Val()-r.leases.Val()-r.dead.Val())
}

// stats returns what was read at about now.
func (r *topicRead) stats(now time.Time) (TopicStats, error) {
	now = now.Truncate(time.Millisecond)
	s := TopicStats{
		Topic: r.keys.Topic, At: now, Scheduled: r.bucket.Val(), Ready: r.ready(), Running: r.leases.Val(), Dead: r.dead.Val(), Done: r.done.Val(),
		Retrying: max(0, r.attempts.Val()-r.dead.Val()), NextDue: firstScore(r.head),
		Schedules: r.schedules.Val(), WaitingSlots: r.waiting.Val(), NextSlot: firstScore(r.slot),
		Keyed: r.lane.Val(), Keys: r.turn.Val(), Parcels: r.parcels.Val(), Flows: r.flows.Val(),
	}
	if r.err != nil {
		return s, r.err
	}
	s.Overdue = s.Ready
	if r.inspect != nil {
		if r.inspect.Err != nil {
			return s, r.inspect.Err
		}
		if r.due {
			s.addOverdue(r.inspect.Reply)
		}
		if s.Parcels > 0 {
			s.OldestParcel = orZero(r.inspect.Reply.Number(5))
		}
		s.FlowsAtRisk = r.inspect.Reply.Number(6)
	}
	pause := script.Reply(r.pause.Val())
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
	s.HeldUntil, s.HeldBy, s.HeldReason, s.Limits, s.NextStart = h.until, h.by, h.reason, h.limits, h.next
	s.Counters = make(map[Counter]int64, len(counters))
	for i, name := range counters {
		s.Counters[name], _ = strconv.ParseInt(script.Reply(r.counters.Val()).Text(i), 10, 64) // "" is none yet
	}
	return s, nil
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
	limits     Limits
	next       time.Time // start; zero: now
}

// readHold reads the fields hold, holdby, holdwhy, flow, tat, gather and ahead of meta. A hold that
// is the same as ahead is none: a take keeps it for servers of earlier releases.
func readHold(meta script.Reply, now int64) (h restraint) {
	if until := meta.Text(0); until != "" && until != meta.Text(6) {
		if end := scoreTime(until); end.UnixMilli() > now {
			h.until, h.by, h.reason = end, meta.Text(1), meta.Text(2)
		}
	}
	h.limits = decodeLimits(meta.Text(3))
	h.next = h.limits.nextStart(meta.Text(4), now)
	return h
}

// nextStart returns when the next job of a topic may start by its rate, or zero if one may start
// now. tat is that of meta.
func (l Limits) nextStart(tat string, now int64) time.Time {
	full, err := strconv.ParseFloat(tat, 64)
	if err != nil || l.Rate.starts == 0 || math.IsNaN(full) {
		return time.Time{}
	}
	// The product can exceed an int64.
	us, burst, emit := float64(now)*1000, float64(l.Rate.MaxBurst()), float64(l.Rate.emit())
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
	list := make([][]int64, 0, len(topics))
	var failed topicErrors
	for some := range slices.Chunk(topics, statsTopics) {
		cmds := make([]redis.Cmder, 0, len(some)*len(within))
		for _, topic := range some {
			key := script.NewKeys(i.o.prefix, topic).Bucket
			for _, d := range within {
				cmds = append(cmds, redis.NewIntCmd(ctx, "zcount", key, edge(from), "("+edge(from.Add(d))))
			}
		}
		i.scripts.Send(ctx, nil, cmds)
		for at, topic := range some {
			counts, err := counted(cmds[at*len(within) : (at+1)*len(within)])
			if err != nil {
				err = i.scripts.Blame(ctx, err, script.NewKeys(i.o.prefix, topic).Bucket)
				failed = append(failed, script.Place{Call: "due within", Topic: topic}.At(err))
			}
			list = append(list, counts)
		}
	}
	return list, failed.join()
}
