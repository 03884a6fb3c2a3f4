package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// KeyLimits are what [Client.SetKeyLimits] sets for a key: see [Key].
type KeyLimits struct {
	// Weight is the share of the starts that the key gets, relative to the other keys with ready
	// jobs: from 1 to 1,000. 0 is the default, 1. The jobs without a key have the weight 1.
	Weight int
}

const (
	mostWeight = 1000
	// mostKeyLimits is the maximum number of keys of a topic that can have limits.
	mostKeyLimits = 10_000
)

// check returns an error if the limits are invalid.
func (l KeyLimits) check() error {
	if l.Weight < 0 || l.Weight > mostWeight {
		return fmt.Errorf("KeyLimits.Weight(%d): must be from 0 to %d", l.Weight, mostWeight)
	}
	return nil
}

// SetKeyLimits sets the limits of a key of a topic, whether it has jobs or not. They replace those
// that it has. The zero KeyLimits removes them. They apply from the next take on, on all servers.
//
// At most 10,000 keys of a topic can have limits that are not the default: beyond that the error is
// [ErrInvalid]. [Inspector.Keys] shows the weight of each key with ready jobs. [Client.RemoveTopic]
// removes the limits.
//
// Errors: [ErrInvalid], [ErrUnknownOutcome], the error of the context, or that of Redis. Cost: one
// call to Redis, O(1).
func (c *Client) SetKeyLimits(ctx context.Context, topic, key string, l KeyLimits) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "set key limits", Topic: topic})
	place := located{call: "set key limits", topic: topic}
	var errs []error
	if n := len(key); n < 1 || n > maxTopicLen {
		errs = append(errs, fmt.Errorf("key of %d bytes: must have 1 to %d", n, maxTopicLen))
	}
	if err := l.check(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.at(err))
	}
	weight := ""
	if l.Weight > 1 {
		weight = strconv.Itoa(l.Weight)
	}
	k := newKeys(c.o.prefix, topic)
	series := c.series.get()
	r, err := c.scripts.exec(ctx, keyLimitsScript, k, k.receipt(series.id), 0, series.next(), key, weight, mostKeyLimits)
	c.series.put(series, err)
	switch {
	case err != nil:
		err = place.at(c.unsure(err))
	case r.text(2) == "full":
		err = place.at(fmt.Errorf("%w: %d keys of the topic have limits, which is the maximum", ErrInvalid, mostKeyLimits))
	}
	return end.err(c.acted(ctx, place, fmt.Sprintf("key %q, weight %d", key, max(1, l.Weight)), err))
}
