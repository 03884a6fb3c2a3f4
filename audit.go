package delayq

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Redis can come back without its data: restarted with an empty disk, flushed, failed over to a replica
// that was behind. Then all records are gone, as after a cancel. The counter of takes tells the two
// apart: it only grows, and it cannot be below what this server has taken itself. It is looked at before
// a job that is gone is called cancelled, whenever the server's own heartbeat is gone, and once a minute.

// errData is why a job whose record is gone was not cancelled.
const errData = "Redis has lost jobs of this topic: its counter of takes is %d and was at least %d"

// countTakes reads the counters of takes of topics, from the masters: a replica may be behind. go-redis may send the reads of
// a cluster's client to one.
func (s *Server) countTakes(ctx context.Context, topics []*topicServer) ([]int64, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answers := make([]*redis.StringCmd, len(topics))
	ask := func(i int, rdb redis.Cmdable) {
		answers[i] = rdb.HGet(call, topics[i].keys.stats, string(CounterTaken))
	}
	if cluster, ok := s.calls.(*redis.ClusterClient); ok {
		for i, t := range topics {
			node, err := cluster.MasterForKey(call, t.keys.stats)
			if err != nil {
				return nil, fmt.Errorf("audit topic %q: %w", t.keys.topic, err)
			}
			ask(i, node)
		}
	} else {
		pipe := s.calls.Pipeline()
		for i := range topics {
			ask(i, pipe)
		}
		if _, err := pipe.Exec(call); err != nil && !answered(err) { // else each is read below
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	counts := make([]int64, len(topics))
	for i, answer := range answers {
		n, err := answer.Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("audit topic %q: %w", topics[i].keys.topic, err)
		}
		counts[i] = n
	}
	return counts, nil
}

// audit looks whether Redis has lost the data of topics.
func (s *Server) audit(ctx context.Context, topics ...*topicServer) error {
	if len(topics) == 0 {
		return nil
	}
	least := make([]int64, len(topics))
	for i, t := range topics {
		least[i] = t.takesAtLeast(0)
	}
	counts, err := s.countTakes(ctx, topics)
	if err != nil {
		return err
	}
	for i, t := range topics {
		if counts[i] < least[i] {
			t.bereave(counts[i], least[i])
		} else {
			t.takesAtLeast(counts[i])
		}
	}
	return nil
}

// takesAtLeast notes what the counter of takes has been seen at, and gives the least that it must be.
func (t *topicServer) takesAtLeast(n int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.takes = max(t.takes, n)
	return t.takes
}

// bereave notes that Redis has lost data of the topic: jobs that run now and whose records are gone were
// not cancelled.
func (t *topicServer) bereave(found, least int64) {
	t.mu.Lock()
	known := t.takes < least // somebody else has found it out meanwhile
	if !known {
		t.takes = found
		for _, r := range t.leases {
			r.bereft = true
		}
	}
	t.mu.Unlock()
	if !known {
		t.trouble.log.Error("topic lost data", "err", fmt.Sprintf(errData, found, least))
	}
}

// examine looks, if one of the letters of a script says that a job is gone, whether Redis has lost it. As
// long as that is not known, it is taken for lost and not for cancelled.
func (t *topicServer) examine(ctx context.Context, letters string) string {
	if !strings.Contains(letters, "g") {
		return letters
	}
	if err := t.server.audit(ctx, t); err != nil && away(err) {
		return strings.ReplaceAll(letters, "g", "l")
	}
	return letters
}

// noteTopics puts the topics of the server on record, for Topics to list.
func (s *Server) noteTopics(ctx context.Context) error {
	topics := make([]any, 0, len(s.topics))
	for name := range s.topics {
		topics = append(topics, name)
	}
	return s.calls.SAdd(ctx, topicsKey(s.o.prefix), topics...).Err()
}

// restore follows a heartbeat that was gone, and comes once a minute: it puts on record what Redis may
// have lost, and says so if it has.
func (s *Server) restore(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.noteTopics(call); err != nil && away(err) { // a Redis that is full is not noted in
		return fmt.Errorf("note topics: %w", err)
	}
	all := make([]*topicServer, 0, len(s.topics))
	for _, t := range s.topics {
		if t.takesAtLeast(0) > 0 { // else there is nothing that it could be below
			all = append(all, t)
		}
	}
	return s.audit(ctx, all...)
}
