package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/delayq/delayq/internal/script"
)

// A KeyInfo describes one key and its ready jobs: see [Key]. [Inspector.Keys] and [Inspector.Key]
// return it.
type KeyInfo struct {
	Key     string
	Waiting int64  // ready jobs of the key
	Weight  int    // its share of the starts, relative to the other keys
	First   string // the ID of the job that is the next one of the key to start; empty: it has none
	// Paused reports whether the key is paused: see [Client.PauseKey].
	Paused bool
	// HeldUntil is the end of its hold, by Redis's clock: see [HoldKey]. It is zero if the key is
	// not held, or is paused.
	HeldUntil time.Time
	// Running is the number of its running jobs, if a limit of running jobs is in force for it.
	// Otherwise it is 0. Jobs that have just ended can be among them.
	Running int64
	// LimitedUntil is when the key gets a turn again, because one of its limits is reached, by
	// Redis's clock. With a limit of running jobs, it gets one as soon as one of them ends. It is
	// zero if none of its jobs waits for a limit.
	LimitedUntil time.Time
	// Blocker is the ID of a job that has failed or is dead, and that the jobs after it wait for:
	// see Ordered and OnDead in [Limits]. It is empty if there is none.
	Blocker string
	// BlockedUntil is the due time of that job. It is zero if there is none, or if it is dead.
	BlockedUntil time.Time
	// Limits are those of the key itself. Those that are zero are those of the topic.
	Limits KeyLimits
}

// maxKeys is the most keys that one call of Keys returns.
const maxKeys = 1000

// Keys returns the keys of a topic that have ready jobs: see [Key]. They are sorted by their length
// and then by their bytes. after is the last key of the page before, empty for the first page. A
// page with fewer than limit keys is the last one. Range of limit: 1 to 1,000.
//
// A key that has ready jobs throughout is on exactly one of the pages. Jobs whose places in lane
// have been lost are missing: see [Inspector.Check].
//
// Errors: [ErrInvalid], the error of the context, or that of Redis. Cost: one call to Redis,
// O(limit × log N) with N ready jobs.
func (i *Inspector) Keys(ctx context.Context, topic, after string, limit int) ([]KeyInfo, error) {
	place := script.Place{Call: "keys", Topic: topic}
	var bad []error
	if limit < 1 || limit > maxKeys {
		bad = append(bad, fmt.Errorf("limit %d: must be from 1 to %d", limit, maxKeys))
	}
	if len(after) > script.MaxTopicLen {
		bad = append(bad, fmt.Errorf("key of %d bytes, at most %d are allowed", len(after), script.MaxTopicLen))
	}
	if err := errors.Join(i.validate(ctx, topic, ""), invalid(bad)); err != nil {
		return nil, place.At(err)
	}
	list, err := i.keysOf(ctx, topic, after, limit)
	if err != nil {
		return nil, place.At(err)
	}
	return list, nil
}

// Key returns what is known of one key of a topic, whether it has ready jobs or not: see [Key].
//
// Errors: [ErrInvalid], the error of the context, or that of Redis. Cost: one call to Redis,
// O(log N) with N ready jobs.
func (i *Inspector) Key(ctx context.Context, topic, key string) (*KeyInfo, error) {
	place := script.Place{Call: "key", Topic: topic}
	if err := errors.Join(i.validate(ctx, topic, ""), invalid(checkKey(key))); err != nil {
		return nil, place.At(err)
	}
	list, err := i.keysOf(ctx, topic, key, 0)
	if err != nil {
		return nil, place.At(err)
	}
	if len(list) != 1 {
		return nil, place.At(fmt.Errorf("keys: %w", script.ErrReply))
	}
	return &list[0], nil
}

// keysOf calls the keys script.
func (i *Inspector) keysOf(ctx context.Context, topic, after string, limit int) ([]KeyInfo, error) {
	r, err := i.exec(ctx, script.ListKeys, script.NewKeys(i.o.prefix, topic), max(1, limit), after, limit)
	if err != nil {
		return nil, err
	}
	list := make([]KeyInfo, len(r.List(2)))
	for at := range list {
		list[at] = KeyInfo{
			Key: r.List(2).Text(at), Waiting: r.List(3).Number(at), First: r.List(4).Text(at), Limits: decodeKeyLimits(r.List(5).Text(at)),
			Running: r.List(8).Number(at), Blocker: r.List(9).Text(at),
		}
		list[at].Weight = max(1, list[at].Limits.Weight)
		if _, until := keyHold(r.List(7).Text(at)); list[at].Waiting > 0 {
			list[at].LimitedUntil = until
		}
		_, list[at].BlockedUntil = keyHold(r.List(10).Text(at))
		list[at].Paused, list[at].HeldUntil = keyHold(r.List(6).Text(at))
	}
	return list, nil
}

// keyPaused is the end of the hold of a paused key.
const keyPaused = 9_999_999_999_999

// keyHold reads the score of a key in held, empty if it is not held.
func keyHold(score string) (paused bool, until time.Time) {
	switch ms, err := strconv.ParseFloat(score, 64); {
	case err != nil || !(ms >= 0):
	case ms >= keyPaused:
		paused = true
	default:
		until = msTime(int64(ms))
	}
	return paused, until
}
