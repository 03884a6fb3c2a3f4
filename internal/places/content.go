package places

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A Content is what keeps a topic from being removed.
type Content struct{ Jobs, Leases, Done, Schedules, Parcels, Flows int64 }

// ReadContent reads the answer of the remove_topic script. It is the zero Content if the topic was
// removed.
func ReadContent(answer string) (c Content) {
	_, _ = fmt.Sscan(answer, &c.Jobs, &c.Leases, &c.Done, &c.Schedules, &c.Parcels, &c.Flows)
	return c
}

// String says what there is.
func (c Content) String() string {
	text := fmt.Sprintf("it has %d unfinished jobs, %d leases, %d done jobs and %d schedules", c.Jobs, c.Leases, c.Done, c.Schedules)
	if c.Parcels > 0 {
		text += fmt.Sprintf(", and %d jobs that its runs have handed over are not delivered yet", c.Parcels)
	}
	if c.Flows > 0 {
		text += fmt.Sprintf(", and %d flows", c.Flows)
	}
	return text
}

// Contents returns what all places of a topic have together.
func Contents(ctx context.Context, scripts script.Caller, prefix, topic string, m part.Map) (c Content, err error) {
	keys, cmds := All(prefix, topic, m), []redis.Cmder(nil)
	ask := func(words ...any) { cmds = append(cmds, redis.NewIntCmd(ctx, words...)) }
	for _, k := range keys {
		ask("hlen", k.Pool)
		ask("hlen", k.Next)
		ask("zcount", k.Leases, 0, record.MaxTime) // not the anchor
		ask("zcard", k.Done)
		ask("hlen", k.Results)
		ask("hlen", k.Schedules)
		ask("zcard", k.Parcels)
		ask("hlen", k.Flows)
	}
	scripts.Send(ctx, nil, cmds)
	each := len(cmds) / len(keys)
	for i, k := range keys {
		n := make([]int64, each)
		for at := range n {
			if n[at], err = cmds[i*each+at].(*redis.IntCmd).Result(); err != nil {
				return c, In(k, scripts.Blame(ctx, err, k.Pool, k.Next, k.Leases, k.Done, k.Results, k.Schedules, k.Parcels, k.Flows))
			}
		}
		c.Jobs, c.Leases, c.Done = c.Jobs+max(n[0], n[1]), c.Leases+n[2], c.Done+max(n[3], n[4])
		c.Schedules, c.Parcels, c.Flows = c.Schedules+n[5], c.Parcels+n[6], c.Flows+n[7]
	}
	return c, nil
}

// Used reports whether one of some places has counters or schedules.
func Used(ctx context.Context, scripts script.Caller, keys []*script.Keys) (used bool, err error) {
	var cmds []redis.Cmder
	for _, k := range keys {
		cmds = append(cmds, redis.NewIntCmd(ctx, "hlen", k.Stats), redis.NewIntCmd(ctx, "hlen", k.Schedules))
	}
	scripts.Send(ctx, nil, cmds)
	for _, cmd := range cmds {
		n, err := cmd.(*redis.IntCmd).Result()
		if err != nil {
			return false, err
		}
		used = used || n > 0
	}
	return used, nil
}
