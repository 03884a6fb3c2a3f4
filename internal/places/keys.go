package places

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A Key is what the keys script says of a key. The texts are as Redis has them, and empty if there
// is nothing.
type Key struct {
	Name, First, Rule, Held, Parked string
	Blocker, Blocked                string
	Waiting, Running                int64
}

// compareKeys sorts keys as lane has them: the shorter ones first.
func compareKeys(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }

func readKeys(r script.Reply) []Key {
	list := make([]Key, len(r.List(2)))
	for at := range list {
		list[at] = Key{
			Name: r.List(2).Text(at), Waiting: r.List(3).Number(at), First: r.List(4).Text(at), Rule: r.List(5).Text(at), Held: r.List(6).Text(at),
			Parked: r.List(7).Text(at), Running: r.List(8).Number(at), Blocker: r.List(9).Text(at), Blocked: r.List(10).Text(at),
		}
	}
	return list
}

// Keys returns keys of a topic as the keys script does: those after one, up to a limit; with a
// limit of 0 that one alone.
func Keys(ctx context.Context, scripts script.Caller, prefix, topic, after string, limit int) ([]Key, error) {
	home := script.NewKeys(prefix, topic)
	call := script.NewCall(script.ListKeys, topic, max(1, limit), home.Of(script.ListKeys, ""), []any{after, limit})
	asked := AskMap(ctx, home)
	scripts.DoWith(ctx, []*script.Call{call}, asked.SliceCmd)
	if call.Err != nil {
		return nil, call.Err
	}
	list := readKeys(call.Reply)
	m, err := asked.Map(ctx, scripts)
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(others(prefix, topic, m, after, limit), abreast) {
		replies, err := Call(ctx, scripts, script.ListKeys, some, max(1, limit), after, limit)
		if err != nil {
			return nil, err
		}
		for _, r := range replies {
			list = append(list, readKeys(r)...)
		}
		if list = mergeKeys(list); limit > 0 {
			list = list[:min(len(list), limit)] // the first ones of each place are among these
		}
	}
	return list, nil
}

// others returns the partitions in which the keys can be.
func others(prefix, topic string, m part.Map, key string, limit int) []*script.Keys {
	if limit == 0 {
		return ofKey(prefix, topic, m, key)
	}
	return Partitions(prefix, topic, m)
}

// mergeKeys sorts keys, and makes one of those that several places have.
func mergeKeys(list []Key) (merged []Key) {
	slices.SortStableFunc(list, func(a, b Key) int { return compareKeys(a.Name, b.Name) })
	for _, k := range list {
		if n := len(merged); n > 0 && merged[n-1].Name == k.Name {
			merged[n-1].add(&k)
		} else {
			merged = append(merged, k)
		}
	}
	return merged
}

// add adds what another place has of the key. Settings are the same in all of them. The key waits
// for its limits if it does so wherever it has jobs.
func (k *Key) add(o *Key) {
	switch {
	case o.Waiting == 0:
	case k.Waiting == 0, o.Parked == "", k.Parked != "" && scoreOf(o.Parked) < scoreOf(k.Parked):
		k.Parked = o.Parked
	}
	k.First, k.Rule, k.Held = cmp.Or(k.First, o.First), cmp.Or(k.Rule, o.Rule), cmp.Or(k.Held, o.Held)
	if k.Blocker == "" {
		k.Blocker, k.Blocked = o.Blocker, o.Blocked
	}
	k.Waiting, k.Running = k.Waiting+o.Waiting, k.Running+o.Running
}

func scoreOf(text string) float64 {
	f, _ := strconv.ParseFloat(text, 64) // Redis wrote it
	return f
}
