package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/faults/rig"
)

// A Limit is a limit of running jobs and a rate of starts. 0 is no limit.
type Limit struct {
	Running int
	Starts  int // in a period
	Period  time.Duration
	Burst   int // how many starts can be made at once
}

// Limits are those of a topic, which are in force from its first job to its last one.
type Limits struct {
	Topic Limit
	Key   Limit            // of each key
	Keys  map[string]Limit // of some keys, in the place of Key

	Ordered bool // the jobs of each key run in their order
	Halt    bool // with Ordered: a dead job halts its key
}

// of gives the limit of a key.
func (l Limits) of(key string) Limit {
	own, every := l.Keys[key], l.Key
	if own.Running > 0 {
		every.Running = own.Running
	}
	if own.Starts > 0 {
		every.Starts, every.Period, every.Burst = own.Starts, own.Period, own.Burst
	}
	return every
}

// unlimited tells whether the jobs of a topic start as soon as they are due.
func (c *checker) unlimited(topic string) bool {
	_, limited := c.o.Limits[topic]
	return !limited
}

// settling is how long the effects of a damage last after its repair: jobs that were started too
// many run on, and nobody knows when the last start was.
const settling = 10 * time.Second

// damaged tells whether something was changed behind the back of a topic whose effects last until
// between two times, or beyond.
func (c *checker) damaged(topic string, from, to int64) bool {
	return slices.ContainsFunc(c.damages[topic], func(w window) bool {
		return w.from <= to && (w.to == forever || w.to+int64(settling) >= from)
	})
}

// taken is when a run's lease was given, by Redis's clock in µs. An extension makes that look
// later, and so does a take that is repeated because Redis did not answer: then it is not known.
func (c *checker) taken(r *run) (at int64, known bool) {
	at = r.Fence - c.o.Lease.Microseconds()
	return at, r.Started-at < heldSlack.Microseconds() && r.Started >= at && !c.stood(r.Topic, r.Mono-int64(c.o.Lease), r.Mono)
}

// stillness is how long no sample has to be taken until Redis, or the machine, is thought to have
// stood still.
const stillness = 300 * time.Millisecond

// stood tells whether samples of a topic ceased for some time between two times.
func (c *checker) stood(topic string, from, to int64) bool {
	list := c.samples[topic]
	i, _ := slices.BinarySearchFunc(list, from, func(e rig.Event, at int64) int { return cmp.Compare(e.Mono, at) })
	for i = max(i, 1); i < len(list) && list[i-1].Mono <= to; i++ {
		if list[i].Mono-list[i-1].Mono > int64(stillness) {
			return true
		}
	}
	return false
}

// holding tells whether a run had its lease from its start to its end: its outcome was accepted.
func (r *run) holding() bool {
	return r.end != nil && r.settled != nil &&
		slices.Contains([]string{"acked", "again", "retried", "snoozed", "buried", "returned", "held"}, r.settled.Result)
}

// limits holds all runs of a topic to its limits.
func (c *checker) limits(topic string, l Limits) {
	var runs []*run
	for _, at := range slices.SortedFunc(maps.Keys(c.jobs), comparePlaces) {
		if at.topic != topic {
			continue
		}
		for _, j := range c.jobs[at] {
			runs = append(runs, j.runs...)
		}
	}
	c.together(topic, "", l.Topic.Running, runs)
	c.starts(topic, "", l.Topic, runs)
	byKey := map[string][]*run{}
	for _, r := range runs {
		if r.Key != "" {
			byKey[r.Key] = append(byKey[r.Key], r)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		c.together(topic, key, l.of(key).Running, byKey[key])
		c.starts(topic, key, l.of(key), byKey[key])
	}
	if l.Ordered {
		c.order(topic, l)
	}
	for _, e := range c.samples[topic] {
		if c.damaged(topic, e.Mono, e.Mono) {
			continue
		}
		c.Limited.Samples++
		if most := l.Topic.Running; most > 0 && e.Count > int64(most) {
			c.broke("I23", topic, "", "%d jobs had leases at %d, and %d are allowed", e.Count, e.Wall, most)
		}
		for key, n := range e.Keys {
			if most := l.of(key).Running; key != "" && most > 0 && n > int64(most) {
				c.broke("I23", topic, "", "%d jobs of the key %q had leases at %d, and %d are allowed", n, key, e.Wall, most)
			}
		}
	}
}

func (c *checker) broke(rule, topic, id, format string, args ...any) {
	c.Violations = append(c.Violations, Violation{Rule: rule, Topic: topic, ID: id, Text: fmt.Sprintf(format, args...)})
}

// together checks how many runs went on at the same time. Only those count that had their leases
// for certain.
func (c *checker) together(topic, key string, most int, runs []*run) {
	if most == 0 {
		return
	}
	type step struct {
		at int64
		by int // 1: a run begins, -1: it ends
		r  *run
	}
	var steps []step
	for _, r := range runs {
		if r.holding() {
			steps = append(steps, step{r.Mono, 1, r}, step{r.end.Mono, -1, r})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	n := 0
	for _, s := range steps {
		n += s.by
		if s.by < 0 {
			continue
		}
		c.Limited.Together = max(c.Limited.Together, n)
		if n > most && !c.damaged(topic, s.at, s.at) {
			c.broke("I23", topic, s.r.ID, "%d jobs%s ran at the same time, and %d are allowed", n, ofKey(key), most)
		}
	}
}

func ofKey(key string) string {
	if key == "" {
		return ""
	}
	return fmt.Sprintf(" of the key %q", key)
}

// starts checks how many runs began in every period. That is so for all periods if it is so by the
// generic cell rate algorithm, computed here from the side of who looks on. Runs whose take is not
// known for certain are left out, which only makes fewer of them.
func (c *checker) starts(topic, key string, l Limit, runs []*run) {
	if l.Starts == 0 {
		return
	}
	emit := l.Period.Microseconds() / int64(l.Starts)
	type start struct {
		at int64
		r  *run
	}
	var list []start
	for _, r := range runs {
		if at, known := c.taken(r); known && !c.broken(r.Mono-int64(c.o.Lease), r.Mono, r.Proc) {
			list = append(list, start{at, r})
		}
	}
	slices.SortFunc(list, func(a, b start) int { return cmp.Compare(a.at, b.at) })
	full, before := int64(0), int64(0) // when the bucket would be empty, and the last start
	for _, s := range list {
		if before > 0 && c.damaged(topic, before, s.r.Mono) {
			full = 0
		}
		before = s.r.Mono
		c.Limited.Starts++
		if full = max(full, s.at) + emit; full > s.at+int64(l.Burst)*emit {
			c.broke("I24", topic, s.r.ID, "was started%s %d µs too early for %d in %v with a burst of %d", ofKey(key),
				full-s.at-int64(l.Burst)*emit, l.Starts, l.Period, l.Burst)
			full = 0
		}
	}
}

// heldKey notes the calls that hold a key and let it go. Those about one key follow each other.
func (c *checker) heldKey(e rig.Event, open map[int64]*call) {
	switch {
	case e.Type == rig.Invoke:
		if e.Op == rig.OpReleaseKey {
			for _, h := range c.keyHolds[e.Topic] {
				if h.key == e.Key {
					h.to = min(h.to, e.Wall)
				}
			}
		}
		k := &call{Event: e, outcome: rig.Info, done: forever}
		open[e.Call] = k
		if e.Op == rig.OpReleaseKey {
			c.released[e.Topic] = append(c.released[e.Topic], k)
		}
	case e.Op == rig.OpReleaseKey && open[e.Call] != nil:
		open[e.Call].done = e.Mono
		if e.Type == rig.Info { // it may come later, but not much
			open[e.Call].done += int64(30 * time.Second)
		}
	case e.Type == rig.OK && e.Op == rig.OpHoldKey && open[e.Call] != nil:
		to := forever
		if e.Delay > 0 {
			to = open[e.Call].Wall + e.Delay
		}
		c.Limited.KeyHolds++
		c.keyHolds[e.Topic] = append(c.keyHolds[e.Topic], &keyHold{e.Key, "a call", e.Wall, to})
	}
}

// A keyHold is a time during which a key, or with an empty one the topic, was held for certain, by
// a call or by a handler, Unix ms.
type keyHold struct {
	key, by  string
	from, to int64
}

// asksHold notes that a handler has held its topic or its key. A later call can have let the key
// go.
func (c *checker) asksHold(r *run) {
	if r.end == nil || r.settled == nil || r.settled.Result != "held" || r.end.Delay == 0 {
		return
	}
	h := &keyHold{"", "a handler", r.settled.Wall, r.end.Wall + r.end.Delay}
	if r.end.Result == "holdkey" {
		if h.key = r.Key; h.key == "" {
			return
		}
		for _, k := range c.released[r.Topic] {
			if k.Key == h.key && k.Wall <= h.to && k.done >= r.end.Mono {
				return
			}
		}
	}
	c.Limited.Holds++
	c.keyHolds[r.Topic] = append(c.keyHolds[r.Topic], h)
}

// whileKeyHeld checks that a run was not taken while its key or its topic was held.
func (c *checker) whileKeyHeld(j *job, r *run) {
	at, known := c.taken(r)
	if !known || len(c.keyHolds[j.topic]) == 0 || c.damaged(j.topic, r.Mono, r.Mono) || c.broken(r.Mono-int64(c.o.Lease), r.Mono, r.Proc) {
		return
	}
	at /= 1000
	for _, h := range c.keyHolds[j.topic] {
		if (h.key == "" || h.key == r.Key) && at > h.from+tick.Milliseconds() && at < h.to-tick.Milliseconds() {
			c.bad("I25", j, "was taken %d ms after %s had held%s", at-h.from, h.by, cmp.Or(ofKey(h.key), " the topic"))
		}
	}
}

// Running reads how many jobs of a topic have leases, and how many of each key.
func Running(ctx context.Context, rdb redis.UniversalClient, prefix, topic string) (jobs int64, byKey map[string]int64, err error) {
	root := prefix + ":{" + topic + "}:"
	list, err := rdb.Eval(ctx, running, []string{root + "leases", root + "keyed"}, anchorLen).StringSlice()
	if err != nil {
		return 0, nil, err
	}
	byKey = map[string]int64{}
	for _, place := range list {
		jobs++
		if key := keyOf(place); key != "" {
			byKey[key]++
		}
	}
	return jobs, byKey, nil
}

// running returns the place of each job with a lease, empty if it has none: all at one moment.
const running = `
local ids = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if #id < tonumber(ARGV[1]) then ids[#ids + 1] = id end
end
if #ids == 0 then return ids end
local places = redis.call('HMGET', KEYS[2], unpack(ids))
for i = 1, #ids do places[i] = places[i] or '' end
return places
`
