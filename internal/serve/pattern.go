package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// FollowEvery is how often a server with patterns looks whether the number of topics has changed.
// followAll is how often it reads all topics even if not.
const (
	FollowEvery = 5 * time.Second
	FollowAll   = time.Minute
)

// A pattern is a handler for all topics whose names match. The follow loop uses it.
type pattern struct {
	like TopicConfig // of each topic; its topic is the pattern
	most int
	now  map[string]*Topic // the topics that it serves
	left int               // topics beyond most, at the last look
}

// addPatternLocked adds a pattern before Run. Server.mu must be held.
func (s *Server) addPatternLocked(p *pattern) error {
	switch {
	case s.phase.used:
		return errLateMatch
	case slices.ContainsFunc(s.patterns, func(other *pattern) bool { return other.like.Topic == p.like.Topic }):
		return ErrHandled
	}
	p.now = make(map[string]*Topic)
	s.patterns = append(s.patterns, p)
	// the longest first
	slices.SortFunc(s.patterns, func(a, b *pattern) int { return len(b.like.Topic) - len(a.like.Topic) })
	return nil
}

// matches reports whether a topic matches a pattern, in which * stands for any text.
func matches(pattern, topic string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(topic) < len(first)+len(last) || !strings.HasPrefix(topic, first) || !strings.HasSuffix(topic, last) {
		return false
	}
	topic = topic[len(first) : len(topic)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(topic, part)
		if !found {
			return false
		}
		topic = after
	}
	return true
}

// followLoop starts the topics that patterns match.
func (s *Server) followLoop(ctx context.Context) {
	asked := trouble{name: "follow", log: s.Log, outage: s.outage}
	var slow loop.Pace
	var count int64
	var read time.Time
	for ctx.Err() == nil {
		looks := s.looks.follow.take()
		if len(looks) > 0 {
			read = time.Time{}
		}
		call, cancel := context.WithTimeout(ctx, CallTimeout)
		now, err := s.Calls.SCard(call, script.TopicsKey(s.Config.Prefix)).Result()
		cancel()
		if err == nil && (now != count || time.Since(read) >= FollowAll) {
			var topics []string
			if topics, err = s.readTopics(ctx); err == nil {
				if count, read = now, time.Now(); !s.follow(ctx, topics) {
					count = -1 // look again soon
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		asked.note("follow", err)
		wait := FollowEvery
		if err == nil {
			slow.Reset()
			answer(looks, sight{})
		} else {
			wait = slow.Next()
			s.looks.follow.keep(looks)
		}
		loop.SleepUntil(ctx, wait, s.looks.follow.woken)
	}
}

// readTopics reads the set of topics.
func (s *Server) readTopics(ctx context.Context) (topics []string, err error) {
	for cursor := uint64(0); ; {
		call, cancel := context.WithTimeout(ctx, CallTimeout)
		some, next, err := s.Calls.SScan(call, script.TopicsKey(s.Config.Prefix), cursor, "", 1000).Result()
		cancel()
		if err != nil {
			return nil, fmt.Errorf("read topics: %w", err)
		}
		topics = append(topics, some...)
		if cursor = next; cursor == 0 {
			return topics, nil
		}
	}
}

// follow starts new topics, and ends those that are no longer in the set and have no jobs. It
// reports whether nothing is left to do.
func (s *Server) follow(ctx context.Context, topics []string) (done bool) {
	done = true
	slices.Sort(topics)
	topics = slices.Compact(topics) // SSCAN can return one twice
	for _, p := range s.patterns {
		for topic, t := range p.now {
			_, found := slices.BinarySearch(topics, topic)
			switch {
			case s.Topics.Get(topic) != t: // the user has removed it
				delete(p.now, topic)
			case !found && s.isEmpty(ctx, t):
				delete(p.now, topic)
				s.endFound(t)
			}
		}
	}
	left := make(map[*pattern]int)
	for _, topic := range topics {
		p := s.patternOf(topic)
		if p == nil || p.now[topic] != nil || script.CheckName("topic", topic) != nil {
			continue
		}
		if t := s.Topics.Get(topic); t != nil {
			done = done && !s.isLeaving(t)
			continue
		}
		if len(p.now) >= p.most {
			left[p]++
			continue
		}
		like := p.like
		like.Topic = topic
		if t := s.addFound(like); t != nil {
			p.now[topic] = t
		}
	}
	for _, p := range s.patterns {
		if n := left[p]; n > p.left {
			s.Log.Error("topics not served", "pattern", p.like.Topic, "count", n,
				"err", fmt.Sprintf("the pattern matches more than %d topics: see MaxTopics", p.most))
		}
		p.left = left[p]
	}
	return done
}

// isEmpty reports whether a topic that is not in the set of topics has no jobs and no schedules,
// nor have its partitions. Otherwise Redis has lost the set, and isEmpty adds the topic again.
//
// Clients add a name once a minute, and when Redis says that a job is the first one of its topic.
// So isEmpty makes the next job the first one. Otherwise a client that has added the name within
// the last minute, before somebody removed it, would store a job that no server finds. A job that
// is stored just before that is found here.
func (s *Server) isEmpty(ctx context.Context, t *Topic) bool {
	places := t.places()
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	n, err := s.have(call, places)
	if err == nil && n == 0 {
		for _, p := range places {
			err = errors.Join(err, s.Calls.HDel(call, p.Keys.Stats, "enqueued").Err())
		}
		if err == nil {
			n, err = s.have(call, places)
		}
	}
	if err == nil && n > 0 {
		err = s.noteLate(ctx, t)
	}
	return err == nil && n == 0
}

// have returns how many of some topics have jobs or schedules, up to one.
func (s *Server) have(ctx context.Context, topics []*Topic) (n int64, err error) {
	for _, t := range topics {
		if n, err = s.Calls.Exists(ctx, t.Keys.Pool, t.Keys.Schedules).Result(); err != nil || n > 0 {
			break
		}
	}
	return n, err
}

// isLeaving reports whether a topic is being removed.
func (s *Server) isLeaving(t *Topic) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.stay.leaving
}

// endFound removes a topic that a pattern has found, with its partitions, or a partition. It lets
// running handlers finish, until the end of the server's drain.
func (s *Server) endFound(t *Topic) {
	s.mu.Lock()
	as := s.phase.lifetime
	var all []*Topic
	if as != nil && !t.stay.leaving {
		all = t.leavingLocked()
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return
	}
	contain.Launch(as.working, func() { _ = s.removeAll(as.work, all) }, func(c *contain.Crash) { s.loops.Crashed("follow", c) })
}

// patternOf returns the longest pattern that matches a topic.
func (s *Server) patternOf(topic string) *pattern {
	for _, p := range s.patterns {
		if matches(p.like.Topic, topic) {
			return p
		}
	}
	return nil
}

// addFound starts a topic that a pattern matches. It returns nil if the topic has a handler of its
// own by now, or if the server is stopping.
func (s *Server) addFound(like TopicConfig) *Topic {
	client := s.ClientFor(like.Topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase.lifetime == nil {
		return nil
	}
	like.found = true
	t, err := s.addTopicLocked(like, client)
	if err != nil {
		return nil
	}
	return t
}
