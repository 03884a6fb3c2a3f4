package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// A KeyInfo describes the ready jobs of one key: see [Key]. [Inspector.Keys] returns it.
type KeyInfo struct {
	Key     string
	Waiting int64  // ready jobs of the key
	Weight  int    // its share of the starts, relative to the other keys
	First   string // the ID of the job that is the next one of the key to start
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
	place := located{call: "keys", topic: topic}
	var bad []error
	if limit < 1 || limit > maxKeys {
		bad = append(bad, fmt.Errorf("limit %d: must be from 1 to %d", limit, maxKeys))
	}
	if len(after) > maxTopicLen {
		bad = append(bad, fmt.Errorf("key of %d bytes, at most %d are allowed", len(after), maxTopicLen))
	}
	if err := errors.Join(i.validate(ctx, topic, ""), invalid(bad)); err != nil {
		return nil, place.at(err)
	}
	r, err := i.exec(ctx, keysScript, newKeys(i.o.prefix, topic), limit, after, limit)
	if err != nil {
		return nil, place.at(err)
	}
	list := make([]KeyInfo, len(r.list(2)))
	for at := range list {
		list[at] = KeyInfo{
			Key: r.list(2).text(at), Waiting: r.list(3).number(at), First: r.list(4).text(at), Weight: weightOf(r.list(5).text(at)),
		}
	}
	return list, nil
}

// weightOf reads the weight of a key from what is set for it.
// Without one, and if it cannot be read, it is 1.
func weightOf(rule string) int {
	n, err := strconv.Atoi(rule)
	if err != nil || n < 1 {
		return 1
	}
	return n
}
