package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// Redis can come back without its data: restarted with an empty disk, flushed, or failed over to a
// replica that lagged. Then all records are gone, as after a cancel. The counter of takes shows
// the difference: it only grows, and it cannot be below the number of this server's own takes. It
// is read before a job without a record counts as cancelled, in all topics when the server's own
// heartbeat is gone, and once a minute in those from which the server has taken jobs since.

// errData is the reason why a job without a record does not count as cancelled.
const errData = "Redis has lost jobs of this topic: its counter of takes is %d and was at least %d"

// countTakes reads the counters of takes of topics.
func (s *Server) countTakes(ctx context.Context, topics []*Topic) ([]int64, error) {
	answers, keys := make([]*redis.StringCmd, len(topics)), make([]*script.Keys, len(topics))
	for i, t := range topics {
		keys[i] = t.Keys
	}
	err := s.onMasters(ctx, keys, func(ctx context.Context, i int, pipe redis.Pipeliner) {
		answers[i] = pipe.HGet(ctx, keys[i].Stats, "taken")
	})
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	counts := make([]int64, len(topics))
	for i, answer := range answers {
		n, err := answer.Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("audit topic %q: %w", topics[i].Keys.Topic, err)
		}
		counts[i] = n
	}
	return counts, nil
}

// onMasters sends commands about topics to their masters, a pipeline to each, because a replica can
// lag: go-redis can send the reads of a cluster's client to a replica. It calls ask for each topic,
// unless its master is not known. It returns the error of a master that is not known or does not
// answer. The commands of the others are executed.
func (s *Server) onMasters(ctx context.Context, keys []*script.Keys, ask func(ctx context.Context, i int, pipe redis.Pipeliner)) (failed error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	loop.SignOf(ctx).Call(call) // the clients of a cluster's nodes have no SignHook
	defer loop.SignOf(ctx).Called()
	pipes := make(map[redis.UniversalClient]redis.Pipeliner) // of each master
	for i, k := range keys {
		master := s.Calls
		if cluster, ok := s.Calls.(*redis.ClusterClient); ok {
			var err error
			if master, err = cluster.MasterForKey(call, k.Stats); err != nil {
				failed = err
				continue
			}
		}
		if pipes[master] == nil {
			pipes[master] = master.Pipeline()
		}
		ask(call, i, pipes[master])
	}
	for _, pipe := range pipes {
		if _, err := pipe.Exec(call); err != nil && !script.Answered(err) { // else each is read
			failed = err
		}
	}
	return failed
}

// audit detects whether Redis has lost the data of topics.
func (s *Server) audit(ctx context.Context, topics ...*Topic) error {
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

// takesAtLeast records that the counter of takes was at least n, and returns its known minimum.
func (t *Topic) takesAtLeast(n int64) int64 {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	t.owned.Taken = max(t.owned.Taken, n)
	return t.owned.Taken
}

// bereave records that Redis has lost data of the topic. Jobs that are running now and have no
// record were not cancelled.
func (t *Topic) bereave(found, least int64) {
	t.Mu.Lock()
	known := t.owned.Taken < least // another goroutine was first
	if !known {
		t.owned.Taken = found
		for _, r := range t.owned.Runs {
			r.Bereft = true
		}
	}
	t.Mu.Unlock()
	if !known {
		t.trouble.log.Error("topic lost data", "err", fmt.Sprintf(errData, found, least))
	}
}

// examine checks whether Redis has lost data if a letter of a reply says that a job is gone. If
// that cannot be determined, the job counts as lost and not as cancelled.
func (t *Topic) examine(ctx context.Context, letters string) string {
	if !strings.Contains(letters, "g") {
		return letters
	}
	if err := t.Server.audit(ctx, t); err != nil && script.Away(err) {
		return strings.ReplaceAll(letters, "g", "l")
	}
	return letters
}

// noteTopics records the topics of the server for [Inspector.Topics]. If there are none, it only
// asks whether Redis answers.
func (s *Server) noteTopics(ctx context.Context) error {
	topics := make([]any, 0, s.Topics.len())
	for _, t := range s.Topics.all() {
		if !t.stay.found && t.config.home == nil {
			topics = append(topics, t.Keys.Topic)
		}
	}
	if len(topics) == 0 {
		return s.Calls.Ping(ctx).Err()
	}
	key := script.TopicsKey(s.Config.Prefix)
	return s.Scripts.Blame(ctx, s.Calls.SAdd(ctx, key, topics...).Err(), key)
}

// noteLate records a topic that was added while the server was running. Without a reply, the next
// promote or restore tries again.
func (s *Server) noteLate(ctx context.Context, t *Topic) error {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	return s.Calls.SAdd(call, script.TopicsKey(s.Config.Prefix), t.Keys.Topic).Err()
}

// restore records the topics again, which Redis may have lost, and logs lost data. It runs once a
// minute, and with lost after a heartbeat that was missing in Redis.
func (s *Server) restore(ctx context.Context, lost bool) error {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if err := s.noteTopics(call); err != nil && script.Away(err) { // a full Redis cannot record them
		return fmt.Errorf("note topics: %w", err)
	}
	all := make([]*Topic, 0, s.Topics.len())
	for _, t := range s.Topics.all() {
		// If there were no takes, nothing can be below their number.
		if least := t.takesAtLeast(0); least > 0 && (lost || least > t.extender.audited) {
			all = append(all, t)
		}
	}
	err := s.audit(ctx, all...)
	for _, t := range all {
		if err == nil {
			t.extender.audited = t.takesAtLeast(0)
		}
	}
	return err
}
