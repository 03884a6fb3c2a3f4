package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A State is all that Redis holds under a prefix. It is read with SCAN and its kin and taken apart
// by what docs/protocol.md says, not with the library, so that a mistake there cannot hide itself
// here.
type State struct {
	Topics map[string]*Topic
	Other  map[string]Key // what belongs to no topic, by name
}

// A Key is a key that is only counted.
type Key struct {
	Type string
	TTL  time.Duration // below 0: for ever
	Size int64
}

// A Topic is what Redis holds of one topic.
type Topic struct {
	Pool    map[string]string // ID → record
	Ready   []string
	Handoff []string
	Bucket  map[string]float64
	Leases  map[string]float64
	Dead    map[string]float64
	Done    map[string]float64
	Lane    map[string][]string          // ID → the places that lane has of it
	Turn    map[string]float64           // key → its pass
	Held    map[string]float64           // key → the end of its hold
	Parked  map[string]float64           // key → when it gets a turn
	Holders map[string]float64           // entries of running jobs whose key has a limit
	Rates   map[string]float64           // key → its tat
	Lags    map[string]float64           // key → how far it is behind
	Blocks  map[string]string            // ID → its place in blockers
	Slots   map[string]float64           // name of a schedule → its next slot
	Waiting map[string]float64           // name of a schedule → the slot that waits
	Parcels map[string]float64           // what runs have handed over
	Refused []string                     // parcels that their targets have refused
	Hashes  map[string]map[string]string // attempts, errors, moved, keyed, rules, results, meta, stats, schedules, fired, runs, all:notes, all:plans
	Keys    map[string]Key               // receipts and what is not known
	Types   map[string]string            // of the keys above
}

// anchorLen is the length of the member that keeps leases in its fast form: longer than any ID.
const anchorLen = 1025

func newTopic() *Topic {
	return &Topic{
		Pool: map[string]string{}, Bucket: map[string]float64{}, Leases: map[string]float64{}, Dead: map[string]float64{},
		Done: map[string]float64{}, Lane: map[string][]string{}, Turn: map[string]float64{}, Held: map[string]float64{}, Parked: map[string]float64{}, Holders: map[string]float64{}, Rates: map[string]float64{}, Lags: map[string]float64{}, Blocks: map[string]string{}, Slots: map[string]float64{}, Waiting: map[string]float64{}, Parcels: map[string]float64{}, Hashes: map[string]map[string]string{}, Keys: map[string]Key{}, Types: map[string]string{},
	}
}

// types are the documented keys of a topic.
var types = map[string]string{
	"pool": "hash", "bucket": "zset", "ready": "list", "handoff": "list", "leases": "zset", "attempts": "hash", "errors": "hash",
	"moved": "hash", "dead": "zset", "done": "zset", "results": "hash", "meta": "hash", "stats": "hash", "sizes": "hash",
	"schedules": "hash", "slots": "zset", "waiting": "zset", "fired": "hash", "runs": "hash",
	"idle": "zset", "keyed": "hash", "lane": "zset", "turn": "zset", "rules": "hash", "held": "zset",
	"parked": "zset", "holders": "zset", "rates": "zset", "blockers": "zset", "lags": "zset", "all:notes": "hash",
	"all:parcels": "zset", "all:plans": "hash", "all:undelivered": "list",
	"all:flows": "hash", "all:steps": "hash",
}

// Read reads the state. Nothing else should be going on.
func Read(ctx context.Context, rdb redis.UniversalClient, prefix string) (*State, error) {
	s := &State{Topics: map[string]*Topic{}, Other: map[string]Key{}}
	names, err := keys(ctx, rdb, prefix)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		kind, err := rdb.Type(ctx, name).Result()
		if err != nil {
			return nil, err
		}
		if kind == "none" { // expired meanwhile
			continue
		}
		rest := strings.TrimPrefix(name, prefix+":")
		topic, part, ok := strings.Cut(strings.TrimPrefix(rest, "{"), "}:")
		if !ok || !strings.HasPrefix(rest, "{") {
			if s.Other[rest], err = key(ctx, rdb, name, kind); err != nil {
				return nil, err
			}
			continue
		}
		t := s.Topics[topic]
		if t == nil {
			t = newTopic()
			s.Topics[topic] = t
		}
		if err := t.read(ctx, rdb, name, part, kind); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return s, nil
}

func keys(ctx context.Context, rdb redis.UniversalClient, prefix string) ([]string, error) {
	found := map[string]bool{}
	scan := func(ctx context.Context, node redis.UniversalClient) error {
		for cursor := uint64(0); ; {
			page, next, err := node.Scan(ctx, cursor, prefix+":*", 1000).Result()
			if err != nil {
				return err
			}
			for _, k := range page {
				found[k] = true
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	var err error
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		nodes := []*redis.Client{}
		// One after the other, as found is not safe for concurrent use.
		gather := make(chan *redis.Client, 64)
		if err = cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
			gather <- node
			return nil
		}); err != nil {
			return nil, err
		}
		close(gather)
		for node := range gather {
			nodes = append(nodes, node)
		}
		for _, node := range nodes {
			if err = scan(ctx, node); err != nil {
				return nil, err
			}
		}
	} else if err = scan(ctx, rdb); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(found))
	for k := range found {
		names = append(names, k)
	}
	slices.Sort(names)
	return names, nil
}

// gone is the answer of PTTL about a key that has expired since it was listed.
const gone = time.Duration(-2)

func key(ctx context.Context, rdb redis.UniversalClient, name, kind string) (Key, error) {
	k := Key{Type: kind}
	var err error
	if k.TTL, err = rdb.PTTL(ctx, name).Result(); err != nil {
		return k, err
	}
	switch kind {
	case "hash":
		k.Size, err = rdb.HLen(ctx, name).Result()
	case "set":
		k.Size, err = rdb.SCard(ctx, name).Result()
	}
	return k, err
}

func (t *Topic) read(ctx context.Context, rdb redis.UniversalClient, name, part, kind string) (err error) {
	want, known := types[part]
	if !known {
		k, err := key(ctx, rdb, name, kind)
		if err == nil && k.TTL != gone {
			t.Keys[part] = k
		}
		return err
	}
	t.Types[part] = kind
	if kind != want {
		return nil // the check complains
	}
	switch part {
	case "bucket":
		return zset(ctx, rdb, name, t.Bucket)
	case "leases":
		return zset(ctx, rdb, name, t.Leases)
	case "dead":
		return zset(ctx, rdb, name, t.Dead)
	case "done":
		return zset(ctx, rdb, name, t.Done)
	case "turn":
		return zset(ctx, rdb, name, t.Turn)
	case "held":
		return zset(ctx, rdb, name, t.Held)
	case "parked":
		return zset(ctx, rdb, name, t.Parked)
	case "holders":
		return zset(ctx, rdb, name, t.Holders)
	case "rates":
		return zset(ctx, rdb, name, t.Rates)
	case "lags":
		return zset(ctx, rdb, name, t.Lags)
	case "lane":
		entries := map[string]float64{}
		if err := zset(ctx, rdb, name, entries); err != nil {
			return err
		}
		for entry := range entries {
			place, id := cutEntry(entry)
			t.Lane[id] = append(t.Lane[id], place)
		}
	case "blockers":
		entries := map[string]float64{}
		if err := zset(ctx, rdb, name, entries); err != nil {
			return err
		}
		for entry := range entries {
			place, id := cutEntry(entry)
			t.Blocks[id] = place
		}
	case "slots":
		return zset(ctx, rdb, name, t.Slots)
	case "waiting":
		return zset(ctx, rdb, name, t.Waiting)
	case "all:parcels":
		return zset(ctx, rdb, name, t.Parcels)
	case "all:undelivered":
		t.Refused, err = ids(ctx, rdb, name)
	case "ready":
		t.Ready, err = ids(ctx, rdb, name)
	case "handoff":
		t.Handoff, err = ids(ctx, rdb, name)
	case "idle": // names of servers, of which some may be gone
		return nil
	case "pool":
		return hash(ctx, rdb, name, t.Pool)
	default:
		t.Hashes[part] = map[string]string{}
		return hash(ctx, rdb, name, t.Hashes[part])
	}
	return err
}

// cutEntry cuts an entry of lane into the place and the ID. A malformed one is all place.
func cutEntry(entry string) (place, id string) {
	const rest = 37 // what a place has after its key: due time, number, head start and nonce
	if entry == "" || len(entry) < 1+int(entry[0])+rest {
		return entry, ""
	}
	end := 1 + int(entry[0]) + rest
	return entry[:end], entry[end:]
}

// keyOf returns the key of a place.
func keyOf(place string) string {
	if place == "" || len(place) < 1+int(place[0]) {
		return ""
	}
	return place[1 : 1+int(place[0])]
}

func hash(ctx context.Context, rdb redis.UniversalClient, name string, into map[string]string) error {
	for cursor := uint64(0); ; {
		page, next, err := rdb.HScan(ctx, name, cursor, "", 1000).Result()
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(page); i += 2 {
			into[page[i]] = page[i+1]
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func zset(ctx context.Context, rdb redis.UniversalClient, name string, into map[string]float64) error {
	for from := int64(0); ; from += 1000 {
		page, err := rdb.ZRangeWithScores(ctx, name, from, from+999).Result()
		if err != nil {
			return err
		}
		for _, z := range page {
			if id, _ := z.Member.(string); len(id) < anchorLen {
				into[id] = z.Score
			}
		}
		if len(page) < 1000 {
			return nil
		}
	}
}

func ids(ctx context.Context, rdb redis.UniversalClient, name string) (all []string, err error) {
	for from := int64(0); ; from += 1000 {
		page, err := rdb.LRange(ctx, name, from, from+999).Result()
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < 1000 {
			return all, nil
		}
	}
}
