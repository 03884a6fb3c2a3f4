package places

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A Read is the commands that read the numbers of a topic or a partition. They travel in one
// pipeline.
type Read struct {
	Keys                                                           *script.Keys
	Pool, Bucket, Leases, Dead, Done, Attempts, Schedules, Waiting *redis.IntCmd
	Lane, Turn, Parcels, Flows                                     *redis.IntCmd
	Head, Slot                                                     *redis.ZSliceCmd
	Meta, Counters                                                 *redis.SliceCmd
	cmds                                                           []redis.Cmder
	Failed                                                         error

	asked Asked // the map, before anything else is read; zero: it is a partition
	Map   part.Map
	Parts []*Read       // the partitions
	later *Read         // what is read of the topic together with these: its map again, too
	Tombs *redis.IntCmd // of a topic with partitions, and of these

	Due     bool         // whether something can be
	Inspect *script.Call // nil: nothing is due, and there are no parcels and no flows
}

// newRead returns the commands. Plain commands cost Redis less than half of what a script that
// calls them does.
func newRead(ctx context.Context, k *script.Keys, counters []any) *Read {
	r := &Read{Keys: k}
	number := func(words ...any) *redis.IntCmd {
		cmd := redis.NewIntCmd(ctx, words...)
		r.cmds = append(r.cmds, cmd)
		return cmd
	}
	fields := func(words ...any) *redis.SliceCmd {
		cmd := redis.NewSliceCmd(ctx, words...)
		r.cmds = append(r.cmds, cmd)
		return cmd
	}
	first := func(zset string) *redis.ZSliceCmd {
		cmd := redis.NewZSliceCmd(ctx, "zrange", zset, 0, 0, "withscores")
		r.cmds = append(r.cmds, cmd)
		return cmd
	}
	r.Pool, r.Bucket = number("hlen", k.Pool), number("zcard", k.Bucket)
	r.Leases = number("zcount", k.Leases, 0, record.MaxTime) // not the anchor
	r.Dead, r.Done, r.Attempts = number("zcard", k.Dead), number("zcard", k.Done), number("hlen", k.Attempts)
	r.Head = first(k.Bucket)
	r.Meta = fields("hmget", k.Meta, "paused", "until", "pauses", "hold", "holdby", "holdwhy", "flow", "tat", "gather", "ahead", "shared")
	r.Counters = fields(append([]any{"hmget", k.Stats}, counters...)...)
	r.Schedules, r.Waiting, r.Slot = number("hlen", k.Schedules), number("zcard", k.Waiting), first(k.Slots)
	r.Lane, r.Turn = number("zcard", k.Lane), number("zcard", k.Turn)
	r.Parcels, r.Flows = number("zcard", k.Parcels), number("hlen", k.Flows)
	return r
}

// Err returns the error of the first command.
func (r *Read) Err() error { return r.cmds[0].Err() }

// Error returns why the topic or the partition could not be read.
func (r *Read) Error() error {
	if r.Failed == nil && r.Inspect != nil && r.Inspect.Err != nil {
		return script.Place{Call: "inspect", Topic: part.HomeOf(r.Keys.Topic)}.At(In(r.Keys, r.Inspect.Err))
	}
	return r.Failed
}

// Ready returns the number of ready jobs.
func (r *Read) Ready() int64 {
	return max(0, r.Pool.Val()-r.Bucket.Val()-r.Leases.Val()-r.Dead.Val())
}

// readMost is the most topics and partitions that are read in one pipeline.
const readMost = 1000

// mostReadAgain is how often a topic is read again because its map has changed meanwhile.
const mostReadAgain = 3

// ReadTopics reads topics, in one round trip together with other commands, and in others the
// partitions of those that have some.
//
// When a generation leaves the map, its counters are added to those of the topic at the same time.
// If that happens between the reading of the two, they would be missing or count twice. So the map
// is read first, and again after the counters of the topic. If it has changed, the topic is read
// again.
func ReadTopics(ctx context.Context, scripts script.Caller, prefix string, topics []string, counters []any, others ...redis.Cmder) []*Read {
	list := make([]*Read, len(topics))
	for at, topic := range topics {
		list[at] = newTopic(ctx, script.NewKeys(prefix, topic), counters)
	}
	sendReads(ctx, scripts, list, others...)
	changed := readParts(ctx, scripts, prefix, list, counters)
	for again := 0; len(changed) > 0 && again < mostReadAgain; again++ {
		for _, r := range changed {
			*r = *newTopic(ctx, r.Keys, counters)
		}
		sendReads(ctx, scripts, changed)
		changed = readParts(ctx, scripts, prefix, changed, counters)
	}
	return list
}

// newTopic returns the commands for a topic.
func newTopic(ctx context.Context, k *script.Keys, counters []any) *Read {
	r := newRead(ctx, k, counters)
	r.asked = AskMap(ctx, k)
	r.cmds = slices.Insert(r.cmds, 0, redis.Cmder(r.asked.SliceCmd))
	return r
}

// readParts reads the partitions of topics, and returns those topics whose maps have changed since
// they were read.
func readParts(ctx context.Context, scripts script.Caller, prefix string, topics []*Read, counters []any) (changed []*Read) {
	var parts []*Read
	for _, r := range topics {
		if r.Failed != nil {
			continue
		}
		if r.Map, r.Failed = r.asked.Map(ctx, scripts); len(r.Map) > 0 {
			parts = append(parts, r.divide(ctx, prefix, counters)...)
		}
	}
	for some := range slices.Chunk(parts, readMost) {
		sendReads(ctx, scripts, some)
	}
	for _, r := range topics {
		if r.later == nil {
			continue
		}
		if r.Failed = r.later.Failed; r.Failed == nil && mapText(r.later) != mapText(r) {
			changed = append(changed, r)
		}
	}
	return changed
}

// mapText returns the map of a topic as Redis has it.
func mapText(r *Read) string { return script.Reply(r.asked.Val()).Text(0) }

// divide adds the partitions of a topic, and returns what is read beside the topic.
func (r *Read) divide(ctx context.Context, prefix string, counters []any) (list []*Read) {
	r.later = &Read{Keys: r.Keys, asked: AskMap(ctx, r.Keys)}
	r.later.cmds = append(r.later.cmds, r.later.asked.SliceCmd)
	list = append(list, r.later)
	for _, k := range Partitions(prefix, r.Keys.Topic, r.Map) {
		list = append(list, newRead(ctx, k, counters))
	}
	for _, one := range list {
		one.Tombs = redis.NewIntCmd(ctx, "zcard", one.Keys.Tombs)
		one.cmds = append(one.cmds, one.Tombs)
	}
	r.Tombs, r.Parts = r.later.Tombs, list[1:]
	return list
}

// sendReads sends the commands of topics and partitions, and others along with them.
func sendReads(ctx context.Context, scripts script.Caller, list []*Read, others ...redis.Cmder) {
	var cmds []redis.Cmder
	for _, r := range list {
		cmds = append(cmds, r.cmds...)
	}
	scripts.Send(ctx, nil, append(cmds, others...))
	for _, r := range list {
		for _, cmd := range r.cmds {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
				k := r.Keys
				err = In(k, scripts.Blame(ctx, err, k.Pool, k.Bucket, k.Leases, k.Dead, k.Done, k.Attempts, k.Meta, k.Stats,
					k.Schedules, k.Waiting, k.Slots, k.Lane, k.Turn, k.Parcels, k.Flows, k.Parts, k.Tombs))
				r.Failed = script.Place{Call: "inspect", Topic: part.HomeOf(k.Topic)}.At(err)
				break
			}
		}
	}
}

// ReadOverdue reads what is due in those topics in which something can be, the age of parcels, and
// which flows are at risk.
func ReadOverdue(ctx context.Context, scripts script.Caller, topics []*Read, now time.Time) {
	var calls []*script.Call
	look := func(r *Read) {
		if r.Failed != nil {
			return
		}
		if r.Due = r.Ready() > 0 || isPast(r.Head, now); r.Due || r.Parcels.Val() > 0 || r.Flows.Val() > 0 {
			r.Inspect = script.NewCall(script.Inspect, r.Keys.Topic, 0, r.Keys.Of(script.Inspect, ""), nil)
			calls = append(calls, r.Inspect)
		}
	}
	for _, r := range topics {
		look(r)
		for _, one := range r.Parts {
			look(one)
		}
	}
	if len(calls) > 0 {
		scripts.DoWith(ctx, calls)
	}
}

// isPast reports whether the first entry of a zset is due.
func isPast(head *redis.ZSliceCmd, now time.Time) bool {
	list := head.Val()
	return len(list) > 0 && int64(list[0].Score) <= now.UnixMilli()
}
