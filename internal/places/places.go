package places

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A Ref names a place of a topic: a partition, by its generation and its number. The zero Ref is
// the home.
type Ref struct{ Generation, Index int }

// RefOf returns the place that has a name.
func RefOf(name string) Ref {
	_, generation, index, _ := part.Split(name)
	return Ref{generation, index}
}

// Compare sorts places: the home first, and then the oldest partitions.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Generation, o.Generation), cmp.Compare(r.Index, o.Index))
}

// text and readRef write a place as cursors have it.
func (r Ref) text() string { return fmt.Sprintf("#%d.%d", r.Generation, r.Index) }

func readRef(text string) (r Ref, ok bool) {
	generation, index, dotted := strings.Cut(strings.TrimPrefix(text, "#"), ".")
	r.Generation, _ = strconv.Atoi(generation)
	r.Index, _ = strconv.Atoi(index)
	return r, dotted && r.text() == text && r.Generation >= 0 && r.Index >= 0
}

// In says of which partition an error is. The errors of a home stay as they are.
func In(k *script.Keys, err error) error {
	if r := RefOf(k.Topic); err != nil && r != (Ref{}) {
		return fmt.Errorf("partition %d of generation %d: %w", r.Index, r.Generation, err)
	}
	return err
}

// An Asked is the command that reads the map of a topic, to be sent along with others.
type Asked struct {
	*redis.SliceCmd
	keys *script.Keys
}

// AskMap returns the command for a topic.
func AskMap(ctx context.Context, k *script.Keys) Asked {
	return Asked{redis.NewSliceCmd(ctx, "hmget", k.Parts, "map", "past"), k}
}

// Map returns the map. It is nil if the topic has no partitions.
func (a Asked) Map(ctx context.Context, scripts script.Caller) (part.Map, error) {
	if err := a.Err(); err != nil {
		return nil, scripts.Blame(ctx, err, a.keys.Parts)
	}
	return part.ParseMap(script.Reply(a.Val()).Text(0))
}

// Ever is Map with the generations that have left the map and that Redis remembers. They have no
// jobs, but a past.
func (a Asked) Ever(ctx context.Context, scripts script.Caller) (part.Map, error) {
	m, err := a.Map(ctx, scripts)
	if err != nil || len(m) == 0 {
		return nil, err
	}
	past, err := part.ParsePast(script.Reply(a.Val()).Text(1))
	return append(past, m...), err
}

// ReadMap reads the map of a topic.
func ReadMap(ctx context.Context, scripts script.Caller, k *script.Keys) (part.Map, error) {
	asked := AskMap(ctx, k)
	scripts.Send(ctx, nil, []redis.Cmder{asked.SliceCmd})
	return asked.Map(ctx, scripts)
}

// All returns the places of a topic, the home first.
func All(prefix, topic string, m part.Map) []*script.Keys {
	names := m.Places(topic)
	list := make([]*script.Keys, len(names))
	for i, name := range names {
		list[i] = script.NewKeys(prefix, name)
	}
	return list
}

// Partitions returns the places of a topic without the home.
func Partitions(prefix, topic string, m part.Map) []*script.Keys { return All(prefix, topic, m)[1:] }

// OfJob returns the places in which a job with an ID can be, without the home: one of each
// generation, and all of those by key.
func OfJob(prefix, topic string, m part.Map, id string) (list []*script.Keys) {
	return pick(prefix, topic, m, func(g part.Generation) (index int, one bool) { return g.Index(id, ""), !g.ByKey })
}

// ofKey returns the places in which jobs of a key can be, without the home: all of those that are
// by ID.
func ofKey(prefix, topic string, m part.Map, key string) (list []*script.Keys) {
	return pick(prefix, topic, m, func(g part.Generation) (index int, one bool) { return g.Index("", key), g.ByKey })
}

func pick(prefix, topic string, m part.Map, choose func(g part.Generation) (index int, one bool)) (list []*script.Keys) {
	for _, g := range m {
		if g.Number == part.Home {
			continue
		}
		names := g.Names(topic)
		if index, one := choose(g); one {
			names = names[index : index+1]
		}
		for _, name := range names {
			list = append(list, script.NewKeys(prefix, name))
		}
	}
	return list
}

// abreast is how many scripts are called in one pipeline.
const abreast = 200

// Call calls a script in places, in a few round trips. The error is the first one, and says of
// which partition it is.
func Call(ctx context.Context, scripts script.Caller, s *script.Script, at []*script.Keys, jobs int, args ...any) ([]script.Reply, error) {
	calls := make([]*script.Call, len(at))
	for i, k := range at {
		calls[i] = script.NewCall(s, k.Topic, jobs, k.Of(s, ""), args)
	}
	return Replies(ctx, scripts, at, calls)
}

// Replies makes a call for each of some places, as Call does.
func Replies(ctx context.Context, scripts script.Caller, at []*script.Keys, calls []*script.Call) ([]script.Reply, error) {
	replies := make([]script.Reply, 0, len(calls))
	for some := range slices.Chunk(calls, abreast) {
		scripts.DoWith(ctx, some)
		for _, call := range some {
			if call.Err != nil {
				return nil, In(at[len(replies)], call.Err)
			}
			replies = append(replies, call.Reply)
		}
	}
	return replies, nil
}
