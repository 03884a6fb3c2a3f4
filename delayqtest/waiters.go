package delayqtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/places"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

const (
	// A waiter that has not looked for a minute of Redis's clock is gone, and an outcome is kept
	// for that long. Advance lets an hour pass in microseconds. So it makes them younger.
	waiterAge = time.Minute

	// youngAge is by how much the clock moves at most without that.
	youngAge = waiterAge / 3

	// outcomeTime is for how much real time outcomes are made younger, at most. A client fetches
	// its outcome within milliseconds.
	outcomeTime = 10 * time.Second
)

// advanceTo moves the clock, and the waiters of the topics with it.
func (q *Queue) advanceTo(ctx context.Context, was, next time.Time) error {
	far := next.Sub(q.renewed) > youngAge
	if far {
		if err := q.renew(ctx, was, next); err != nil {
			return err
		}
		q.renewed = next
	}
	q.set(next)
	if !far {
		return nil
	}
	return q.renew(ctx, was, next) // who has registered in the meantime
}

// renew makes the waiters and the outcomes of all topics that are not too old at was as old as if
// they were of next.
func (q *Queue) renew(ctx context.Context, was, next time.Time) error {
	for name, seen := range q.outcomes {
		if time.Since(seen) > waiterAge { // by now it was removed
			delete(q.outcomes, name)
		}
	}
	topics, err := q.Inspector.Topics(ctx)
	if err != nil {
		return err
	}
	for _, topic := range topics {
		if err := q.renewTopic(ctx, topic, was, next); err != nil {
			return fmt.Errorf("topic %q: %w", topic, err)
		}
	}
	return nil
}

// renewTopic does that for a topic and its partitions.
func (q *Queue) renewTopic(ctx context.Context, topic string, was, next time.Time) error {
	m, err := places.ReadMap(ctx, script.Caller{RDB: q.Redis}, script.NewKeys(q.Prefix, topic))
	if err != nil {
		return err
	}
	for _, k := range places.All(q.Prefix, topic, m) {
		for q.Miniredis.Exists(k.Notes) {
			err := q.Redis.Watch(ctx, func(tx *redis.Tx) error { return q.renewIn(ctx, tx, k.Notes, was, next) }, k.Notes)
			if err == nil {
				break
			}
			if !errors.Is(err, redis.TxFailedErr) { // else somebody else has written to it
				return err
			}
		}
	}
	return nil
}

// renewIn does that for one key.
func (q *Queue) renewIn(ctx context.Context, tx *redis.Tx, key string, was, next time.Time) error {
	all, err := tx.HGetAll(ctx, key).Result()
	if err != nil {
		return err
	}
	var changes []any
	for field, value := range all {
		changed := value
		switch field[:min(1, len(field))] {
		case "w":
			changed = youngWaiters(value, was, next)
		case "e":
			if q.isFresh(key + field) {
				changed = youngOutcome(value, was, next)
			}
		}
		if changed != value {
			changes = append(changes, field, changed)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.HSet(ctx, key, changes...).Err() })
	return err
}

// isFresh reports whether an outcome was first seen a short while ago.
func (q *Queue) isFresh(name string) bool {
	now := time.Now()
	if _, known := q.outcomes[name]; !known {
		q.outcomes[name] = now
	}
	return now.Sub(q.outcomes[name]) < outcomeTime
}

// youngWaiters returns the waiters of an ID, each in a netstring, with later times.
func youngWaiters(value string, was, next time.Time) string {
	const end = record.NonceLen + 13
	var b strings.Builder
	for rest := value; rest != ""; {
		entry, after, ok := record.CutNetstring(rest)
		if !ok || len(entry) < end {
			return value
		}
		since, err := strconv.ParseInt(entry[record.NonceLen:end], 10, 64)
		if err == nil && was.Sub(time.UnixMilli(since)) <= waiterAge {
			entry = fmt.Sprintf("%s%013d%s", entry[:record.NonceLen], max(since, next.UnixMilli()), entry[end:])
		}
		b.WriteString(record.Netstring(entry))
		rest = after
	}
	return b.String()
}

// youngOutcome returns an outcome with a later time.
func youngOutcome(value string, was, next time.Time) string {
	field := strings.SplitN(value, " ", 3)
	if len(field) < 3 {
		return value
	}
	at, err := strconv.ParseInt(field[1], 10, 64)
	if err != nil || was.Sub(time.UnixMilli(at)) > waiterAge {
		return value
	}
	return field[0] + " " + strconv.FormatInt(max(at, next.UnixMilli()), 10) + " " + field[2]
}
