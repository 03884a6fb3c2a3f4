package serve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/workers"
)

// A topic can have partitions, in other slots of a Cluster: see internal/part. They are topics like
// any other for Redis, and for the loops of a server. A server that serves the topic, their home,
// serves them too. They have its handler and its defaults, and share its workers. Users see only
// the home: their jobs, logs, hooks and numbers have its name.

// A family is what a topic knows of its partitions.
type family struct {
	due    atomic.Bool // the map or the limits may have changed
	upkeep upkeep

	mu  sync.Mutex // guards the rest
	now part.Map   // as far as is known; nil: the topic has no partitions
	all map[string]*Topic
}

// have returns the map.
func (f *family) have() part.Map {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// called returns the name by which users know a topic: that of its home.
func (t *Topic) called() string {
	if t.config.home != nil {
		return t.config.home.Keys.Topic
	}
	return t.Keys.Topic
}

// places returns a topic and its partitions, as far as the server serves them.
func (t *Topic) places() []*Topic {
	t.Loops.parts.mu.Lock()
	defer t.Loops.parts.mu.Unlock()
	list := make([]*Topic, 1, 1+len(t.Loops.parts.all))
	list[0] = t
	for _, p := range t.Loops.parts.all {
		list = append(list, p)
	}
	return list
}

// askParts makes the server read the map of a topic.
func (t *Topic) askParts() {
	t.Loops.parts.due.Store(true)
	t.Server.looks.parts.poke()
}

// partsAll is how often a server reads the maps of all its topics. It hears of changes, and reads
// them again after each subscription.
const partsAll = time.Minute

// partsLoop serves the partitions of topics as their maps say. It looks after the topics that have
// some every PruneEvery, and after those that have changed at once.
func (s *Server) partsLoop(ctx context.Context) {
	asked := trouble{name: "parts", log: s.Log, outage: s.outage}
	var slow loop.Pace
	var round, all time.Time // of the next look at those with partitions, and at all
	for ctx.Err() == nil {
		looks, now := s.looks.parts.take(), time.Now()
		every := len(looks) > 0 || !now.Before(all)
		err := s.learn(ctx, every, !now.Before(round))
		if ctx.Err() != nil {
			return
		}
		asked.note("parts", err)
		if err != nil {
			s.looks.parts.keep(looks)
			loop.Sleep(ctx, slow.Next())
			continue
		}
		slow.Reset()
		answer(looks, sight{})
		if every {
			all = now.Add(partsAll)
		}
		if !now.Before(round) { // not in step with other servers
			round = now.Add(PruneEvery + rand.N(s.Config.Tick).Truncate(time.Millisecond))
		}
		loop.SleepUntil(ctx, time.Until(round), s.looks.parts.woken)
	}
}

// learn reads the maps of topics, serves the partitions in them, and looks after them: of those
// that may have changed, and also of every topic or of those with partitions. It returns an error
// if some could not be read, and must be read soon.
func (s *Server) learn(ctx context.Context, every, parted bool) (failed error) {
	var homes []*Topic
	var keys []*script.Keys
	for _, t := range s.Topics.all() {
		if t.config.home != nil {
			continue
		}
		if t.Loops.parts.due.Swap(false) || every || parted && t.Loops.parts.have() != nil {
			homes, keys = append(homes, t), append(keys, t.Keys)
		}
	}
	texts, errs := s.readMaps(ctx, keys)
	tended := make(map[*Topic]part.Map)
	for i, t := range homes {
		read, err := mapOf(texts[i], errs[i])
		if err != nil && script.Away(err) {
			failed = err
			t.Loops.parts.due.Store(true)
			continue
		}
		if err == nil {
			if t.adopt(read); t.Loops.parts.have() != nil || t.bounded() {
				tended[t] = read
			}
		}
		t.trouble.note("parts", err)
	}
	for t, read := range tended {
		switch err := t.tend(ctx, read); {
		case ctx.Err() != nil:
			return nil
		case err != nil && script.Away(err):
			failed = err
			t.Loops.parts.due.Store(true)
		default:
			t.trouble.note("upkeep", err)
		}
	}
	return failed
}

// readMaps reads the maps of topics, and an error for each that cannot be read.
func (s *Server) readMaps(ctx context.Context, keys []*script.Keys) (texts []string, errs []error) {
	texts, errs = make([]string, len(keys)), make([]error, len(keys))
	if len(keys) == 0 {
		return texts, errs
	}
	answers := make([]*redis.StringCmd, len(keys))
	err := s.onMasters(ctx, keys, func(ctx context.Context, i int, pipe redis.Pipeliner) {
		answers[i] = pipe.HGet(ctx, keys[i].Parts, "map")
	})
	for i, answer := range answers {
		why := err // of a master that is not known
		if answer != nil {
			texts[i], why = answer.Result()
		}
		if why != nil && !errors.Is(why, redis.Nil) {
			errs[i] = fmt.Errorf("read the map of topic %q: %w", keys[i].Topic, why)
		}
	}
	return texts, errs
}

// mapOf reads what readMaps returns of a topic.
func mapOf(text string, err error) (part.Map, error) {
	if err != nil {
		return nil, err
	}
	m, err := part.ParseMap(text)
	if err != nil {
		err = found{err}
	}
	return m, err
}

// A found is an error of what is in Redis, which says nothing about Redis as a whole.
type found struct{ error }

// RedisError marks it as that: see [script.Away].
func (found) RedisError() {}

func (f found) Unwrap() error { return f.error }

// adopt makes the server serve the partitions that a map of the topic lists, and no others. A map
// that was read and is older than the known one is what a failover has left of it. Then partitions
// of both have jobs.
func (t *Topic) adopt(read part.Map) {
	now := read
	if t.cut(read) {
		now = union(t.Loops.parts.have(), read)
	}
	if now == nil {
		return
	}
	wanted := make(map[string]bool)
	for _, name := range now.Places(t.Keys.Topic)[1:] {
		wanted[name] = true
	}
	t.Loops.parts.mu.Lock()
	t.Loops.parts.now = now
	var gone []*Topic
	for name, p := range t.Loops.parts.all {
		if wanted[name] {
			delete(wanted, name)
			continue
		}
		gone = append(gone, p)
		delete(t.Loops.parts.all, name)
	}
	t.Loops.parts.mu.Unlock()
	for _, p := range gone {
		t.Server.endFound(p)
	}
	for name := range wanted {
		t.Server.addPart(t, name)
	}
}

// cut reports whether a map that was read lacks the latest generation that is known.
func (t *Topic) cut(read part.Map) bool {
	known := t.Loops.parts.have()
	return known != nil && known.Open().Number > read.Open().Number
}

// union returns the generations of two maps.
func union(known, read part.Map) part.Map {
	all := slices.Clone(known)
	for _, g := range read {
		if !slices.ContainsFunc(known, func(k part.Generation) bool { return k.Number == g.Number }) {
			all = append(all, g)
		}
	}
	if len(all) > part.MostGenerations {
		return known
	}
	slices.SortFunc(all, func(a, b part.Generation) int { return a.Number - b.Number })
	return all
}

// addPart starts a partition of a topic, unless the server or the topic is leaving, or the
// partition still is.
func (s *Server) addPart(home *Topic, name string) {
	client := s.ClientFor(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase.lifetime == nil || home.stay.leaving {
		return
	}
	like := home.config
	like.Topic, like.home = name, home
	p, err := s.addTopicLocked(like, client)
	if err != nil {
		return
	}
	home.Loops.parts.mu.Lock()
	defer home.Loops.parts.mu.Unlock()
	if home.Loops.parts.all == nil {
		home.Loops.parts.all = make(map[string]*Topic)
	}
	home.Loops.parts.all[name] = p
}

// onDemandMost is the most workers of one topic of a pool on demand.
const onDemandMost = 1 << 20

// shareWorkers makes the workers of a topic those of a pool that its partitions join, and returns
// it with the most workers of each of them. Handlers go on meanwhile.
func (t *Topic) shareWorkers() (pool *workers.Pool, most int) {
	t.Mu.Lock()
	defer t.unlock()
	w := &t.Workers
	if w.shared != nil {
		return w.shared, w.Count
	}
	switch {
	case w.OnDemand:
		w.shared, w.Count = workers.NewPoolOnDemand(w.Count), onDemandMost
	case w.Member != nil:
		w.shared = w.Member.Part()
	default:
		w.shared = workers.NewPool("", w.Count)
	}
	w.Member = &workers.Member{Pool: w.shared, Receive: t.receive, Weight: 1}
	w.Member.Join(w.Busy)
	w.Has, w.Asked = w.Busy, -1
	t.adjustLocked(0)
	return w.shared, w.Count
}
