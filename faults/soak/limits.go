package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// limited, batched and ordered are the topics with limits, which all workers serve. The handlers of
// limited hold it and its keys now and then. Those of batched get up to four jobs at a time. The
// jobs of each key of ordered run in their order, also if handlers hold the key.
const (
	limited   = "limited"
	batched   = "batched"
	ordered   = "ordered"
	batchSize = 4
)

var bounded = []string{limited, batched, ordered}

// limits are those of the topics and of their keys. Beside what jobs need outside of faults they
// leave enough to work off in time what faults have delayed.
var limits = map[string]check.Limits{
	limited: {
		Topic: check.Limit{Running: 8, Starts: 60, Period: time.Second, Burst: 6},
		Key:   check.Limit{Running: 3, Starts: 20, Period: time.Second, Burst: 2},
		Keys:  map[string]check.Limit{"tenant-1": {Running: 1}, "tenant-2": {Starts: 8, Period: time.Second, Burst: 1}},
	},
	batched: {
		Keys: map[string]check.Limit{"tenant-1": {Running: 2}, "t": {Starts: 10, Period: time.Second, Burst: 3}},
	},
	ordered: {Key: check.Limit{Running: 1}, Ordered: true},
}

// weights are the shares of some keys. They change nothing that is promised.
var weights = map[string]int{"tenant-1": 5, "tenant-10": 2}

func rateOf(l check.Limit) delayq.Rate {
	if l.Starts == 0 {
		return delayq.Rate{}
	}
	return delayq.Per(l.Starts, l.Period).Burst(l.Burst)
}

// limit sets all limits of a topic.
func limit(ctx context.Context, client *delayq.Client, topic string) error {
	l := limits[topic]
	errs := []error{client.SetLimits(ctx, topic, delayq.Limits{
		Running: l.Topic.Running, Rate: rateOf(l.Topic), RunningPerKey: l.Key.Running, RatePerKey: rateOf(l.Key),
		Ordered: l.Ordered,
	})}
	for _, key := range keys {
		errs = append(errs, client.SetKeyLimits(ctx, topic, key, delayq.KeyLimits{
			Weight: weights[key], Running: l.Keys[key].Running, Rate: rateOf(l.Keys[key]),
		}))
	}
	return errors.Join(errs...)
}

// Times of what operators do to keys, and of samples.
const (
	betweenKeys  = 4 * time.Second // two holds of keys of one topic, at most
	keyHoldLimit = time.Second
	sampleEvery  = 50 * time.Millisecond
)

// holdKeys holds and pauses keys of a topic as an operator does, past all faults but those of
// Redis, and goes on asking until Redis has let go.
func (s *Soak) holdKeys(ctx context.Context, topic string, n uint64) error {
	r := rand.New(rand.NewPCG(s.Seed, 4000+n)) //nolint:gosec // not for secrets
	client := rig.NewClient(s.direct, s.rec, delayq.Prefix(prefix))
	for wait(ctx, time.Duration(r.Int64N(int64(betweenKeys)))) {
		key, period := keys[r.IntN(len(keys))], time.Duration(0)
		if r.IntN(2) == 0 {
			period = time.Duration(1+r.Int64N(int64(keyHoldLimit))) + time.Millisecond
		}
		call, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		_ = client.HoldTheKey(call, topic, key, period) // Redis may be away
		wait(ctx, time.Duration(r.Int64N(int64(keyHoldLimit))))
		err := client.ReleaseTheKey(call, topic, key)
		for ; err != nil && call.Err() == nil; err = client.ReleaseTheKey(call, topic, key) {
			wait(call, 100*time.Millisecond)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("resume key: %w", err)
		}
	}
	return nil
}

// sample notes again and again which jobs of the limited topics have leases.
func (s *Soak) sample(ctx context.Context) {
	for wait(ctx, sampleEvery) {
		for topic := range limits {
			call, cancel := context.WithTimeout(context.Background(), time.Second)
			n, byKey, err := check.Running(call, s.direct, prefix, topic)
			cancel()
			if err == nil { // Redis may be away
				s.rec.Record(rig.Event{Op: rig.OpSample, Topic: topic, Count: n, Keys: byKey})
			}
		}
	}
}

// A damage changes something that Redis holds of a topic. settings tells whether it concerns what
// an operator has set, which nobody can know afterwards.
type damage struct {
	what     string
	settings bool
	do       func(ctx context.Context, n *nemesis, root string) error
}

// deleted removes a key.
func deleted(part string, settings bool) damage {
	return damage{"no " + part, settings, func(ctx context.Context, n *nemesis, root string) error {
		return n.direct.Del(ctx, root+part).Err()
	}}
}

// scored gives all keys, and an impossible one, a score.
func scored(what, part string, score func(now time.Time) float64) damage {
	return damage{what, false, func(ctx context.Context, n *nemesis, root string) error {
		var list []redis.Z
		for _, key := range append([]string{strings.Repeat("k", 300)}, keys...) {
			list = append(list, redis.Z{Score: score(time.Now()), Member: key})
		}
		return n.direct.ZAdd(ctx, root+part, list...).Err()
	}}
}

// ghosts are entries of jobs that are not there, and of no key at all.
func ghosts(part, rest string) damage {
	return damage{"ghosts in " + part, false, func(ctx context.Context, n *nemesis, root string) error {
		list := []redis.Z{{Member: "x"}, {Member: "\xff"}}
		for i := range 5 {
			for _, key := range keys {
				list = append(list, redis.Z{Member: string(rune(len(key))) + key + rest + fmt.Sprintf("ghost-%d", i)})
			}
		}
		return n.direct.ZAdd(ctx, root+part, list...).Err()
	}}
}

var damages = []damage{
	deleted("turn", false), deleted("lane", false), deleted("keyed", false), deleted("held", false), deleted("parked", false),
	deleted("holders", false), deleted("rates", false), deleted("blockers", false), deleted("rules", true), deleted("meta", true),
	scored("impossible passes", "turn", func(time.Time) float64 { return 1e16 }),
	scored("impossible holds", "held", func(time.Time) float64 { return 1e15 }),
	scored("impossible waits", "parked", func(time.Time) float64 { return 1e15 }),
	scored("waits of a year", "parked", func(now time.Time) float64 { return float64(now.AddDate(1, 0, 0).UnixMilli()) }),
	scored("impossible tats", "rates", func(time.Time) float64 { return 1e17 }),
	scored("tats of a year", "rates", func(now time.Time) float64 { return float64(now.AddDate(1, 0, 0).UnixMicro()) }),
	ghosts("lane", strings.Repeat("0", 37)), ghosts("holders", "0"), ghosts("blockers", strings.Repeat("0", 37)),
	{"half of lane", false, func(ctx context.Context, n *nemesis, root string) error {
		entries, err := n.direct.ZRange(ctx, root+"lane", 0, -1).Result()
		for i := 0; i < len(entries) && err == nil; i += 2 {
			err = n.direct.ZRem(ctx, root+"lane", entries[i]).Err()
		}
		return err
	}},
	{"wrong places", false, func(ctx context.Context, n *nemesis, root string) error {
		ids, _, err := n.direct.HScan(ctx, root+"keyed", 0, "", 10).Result()
		values := []any{"ghost", "x", "ghost-2", "\x01k" + strings.Repeat("0", 37)}
		for i := 0; i+1 < len(ids); i += 4 {
			values = append(values, ids[i], "\x01k"+strings.Repeat("0", 37))
		}
		return errors.Join(err, n.direct.HSet(ctx, root+"keyed", values...).Err())
	}},
	{"rules of no form", true, func(ctx context.Context, n *nemesis, root string) error {
		return n.direct.HSet(ctx, root+"rules", keys[0], "x", keys[1], "-1 2", strings.Repeat("k", 300), "1").Err()
	}},
	{"settings of no form", true, func(ctx context.Context, n *nemesis, root string) error {
		return n.direct.HSet(ctx, root+"meta", "flow", "x 1 2", "tat", "x", "promise", "x", "hold", "x", "limited", "x").Err()
	}},
	{"times of a year", false, func(ctx context.Context, n *nemesis, root string) error {
		later := fmt.Sprint(time.Now().AddDate(1, 0, 0).UnixMicro())
		return n.direct.HSet(ctx, root+"meta", "tat", later, "promise", later).Err()
	}},
}

// damage changes something in a limited topic, lets the workers go on with that for a while,
// repairs the topic, and sets its limits again if they were lost.
func (n *nemesis) damage(ctx context.Context, d time.Duration) (err error) {
	topic := bounded[n.r.IntN(len(bounded))]
	harm := damages[n.r.IntN(len(damages))]
	e := rig.Event{Op: rig.OpFault, Result: rig.Damage, Topic: topic, ID: harm.what}
	n.rec.Record(e)
	call, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := harm.do(call, n, prefix+":{"+topic+"}:"); err != nil {
		return err
	}
	n.sleep(ctx, d)
	client := delayq.NewClient(n.direct, delayq.Prefix(prefix))
	report, err := client.Repair(call, topic)
	if err != nil {
		return fmt.Errorf("repair after %s: %w", harm.what, err)
	}
	if slices.ContainsFunc(report.Findings, func(f delayq.Finding) bool { return !f.Repaired && f.Kind != delayq.FindingTwoPlaces }) {
		return fmt.Errorf("repair after %s left %v", harm.what, report.Findings)
	}
	if harm.settings {
		err = limit(call, client, topic)
	}
	e.Op = rig.OpHeal
	n.rec.Record(e)
	return err
}
