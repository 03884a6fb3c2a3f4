package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/script"
)

// KeyLimits are what [Client.SetKeyLimits] sets for a key: see [Key].
type KeyLimits struct {
	// Weight is the share of the starts that the key gets, relative to the other keys with ready
	// jobs: from 1 to 1,000. 0 is the default, 1. The jobs without a key have the weight 1.
	Weight int
	// Running is the maximum number of jobs of the key that run at the same time, up to 1,000. 0 is
	// the RunningPerKey of the [Limits] of the topic. With Ordered in those, it is always 1.
	Running int
	// Rate is the maximum rate of starts of the key. The zero Rate is the RatePerKey of the topic.
	Rate Rate
}

const (
	mostWeight = 1000
	// mostKeyLimits is the maximum number of keys of a topic that can have limits.
	mostKeyLimits = 10_000
	// mostHeldKeys is the maximum number of keys of a topic that calls of clients hold.
	mostHeldKeys = 100_000
)

// check returns an error if the limits are invalid.
func (l KeyLimits) check() error {
	err := l.Rate.check()
	if l.Weight < 0 || l.Weight > mostWeight {
		err = errors.Join(err, fmt.Errorf("KeyLimits.Weight(%d): must be from 0 to %d", l.Weight, mostWeight))
	}
	if l.Running < 0 || l.Running > mostOfKey {
		err = errors.Join(err, fmt.Errorf("KeyLimits.Running(%d): must be from 0 to %d", l.Running, mostOfKey))
	}
	return err
}

// String returns a text such as "weight 3, running 5, rate 100 per 1m0s, burst 10".
func (l KeyLimits) String() string {
	text := fmt.Sprintf("weight %d", max(1, l.Weight))
	if more := (Limits{Running: l.Running, Rate: l.Rate}); more != (Limits{}) {
		text += ", " + more.String()
	}
	return text
}

// or returns the limits that are in force for the key in a topic with limits.
func (l KeyLimits) or(topic Limits) KeyLimits {
	switch {
	case topic.Ordered:
		l.Running = 1
	case l.Running == 0:
		l.Running = topic.RunningPerKey
	}
	if l.Rate == (Rate{}) {
		l.Rate = topic.RatePerKey
	}
	return l
}

// encode returns the rule of a key: see key_limits.lua. It is empty for the defaults.
func (l KeyLimits) encode() string {
	rule := strconv.Itoa(max(1, l.Weight))
	switch {
	case l.Running > 0 || l.Rate != (Rate{}):
		return rule + " " + encodeFlow(l.Running, l.Rate)
	case rule == "1":
		return ""
	}
	return rule
}

// decodeKeyLimits reads the rule of a key. What is missing or damaged is the default.
func decodeKeyLimits(rule string) (l KeyLimits) {
	words := strings.Fields(rule)
	if len(words) == 0 {
		return l
	}
	if n, err := strconv.Atoi(words[0]); err == nil && n > 1 {
		l.Weight = n
	}
	if len(words) >= 7 {
		l.Running, l.Rate = decodeFlow(words[1:7])
	}
	return l
}

// SetKeyLimits sets the limits of a key of a topic, whether it has jobs or not. They replace those
// that it has. The zero KeyLimits removes them. They apply from the next take on, on all servers.
// Running jobs continue. They count if they are among the 1,000 running jobs of the topic whose
// leases end last.
//
// At most 10,000 keys of a topic can have limits that are not the default: beyond that the error is
// [ErrInvalid]. [Inspector.Keys] shows the limits of each key with ready jobs. [Client.RemoveTopic]
// removes the limits.
//
// Errors: [ErrInvalid], [ErrUnknownOutcome], the error of the context, or that of Redis. Cost: one
// call to Redis, O(1).
func (c *Client) SetKeyLimits(ctx context.Context, topic, key string, l KeyLimits) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "set key limits", Topic: topic})
	place := script.Place{Call: "set key limits", Topic: topic}
	errs := checkKey(key)
	if err := l.check(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	k := script.NewKeys(c.o.prefix, topic)
	series := c.series.Get()
	r, err := c.scripts.Exec(ctx, script.KeyLimits, k, k.Receipt(series.ID), 0,
		series.Next(), key, l.encode(), mostKeyLimits, script.ControlChannel(c.o.prefix), topic)
	c.series.Put(series, err)
	switch {
	case err != nil:
		err = place.At(c.unsure(err))
	case r.Text(2) == "full":
		err = place.At(fmt.Errorf("%w: %d keys of the topic have limits, which is the maximum", ErrInvalid, mostKeyLimits))
	}
	return end.err(c.acted(ctx, place, fmt.Sprintf("key %q, %v", key, l), err))
}

// checkKey returns an error if no job can have the key.
func checkKey(key string) []error {
	if n := len(key); n < 1 || n > script.MaxTopicLen {
		return []error{fmt.Errorf("key of %d bytes: must have 1 to %d", n, script.MaxTopicLen)}
	}
	return nil
}

// HoldKey keeps servers from taking jobs of a key for a time, as [HoldKey] of a handler does,
// whether the key has jobs or not. Running jobs, jobs of other keys and jobs without a key
// continue. A hold prolongs another one and never shortens it, and it leaves a pause as it is.
// [Client.ResumeKey] ends it early.
//
// Range of d: 1 ms to 100 years. While 100,000 keys of a topic are held or paused, only handlers
// can hold another one, and the error here is [ErrInvalid].
//
// Errors: [ErrInvalid], [ErrUnknownOutcome], the error of the context, or that of Redis. Cost: one
// call to Redis, O(log N).
func (c *Client) HoldKey(ctx context.Context, topic, key string, d time.Duration) error {
	errs := checkKey(key)
	if err := notTiny("d", d); err != nil {
		errs = append(errs, err)
	} else if d < time.Millisecond || d > maxDelay {
		errs = append(errs, fmt.Errorf("d(%v): must be from 1ms to %v", d, maxDelay))
	}
	return c.holdKey(ctx, "hold key", topic, key, ceilMS(d), fmt.Sprintf(" for %v", d), errs)
}

// PauseKey keeps servers from taking jobs of a key until [Client.ResumeKey] or
// [Client.RemoveTopic]. It is [Client.HoldKey] without an end. [Inspector.Key] shows it.
func (c *Client) PauseKey(ctx context.Context, topic, key string) error {
	return c.holdKey(ctx, "pause key", topic, key, -1, "", checkKey(key))
}

// ResumeKey ends the pause and the hold of a key, whoever made them. If it has none, nothing
// happens. Servers that wait for jobs are woken. It changes no pause or hold of the topic.
//
// Errors and cost are those of [Client.HoldKey].
func (c *Client) ResumeKey(ctx context.Context, topic, key string) error {
	return c.holdKey(ctx, "resume key", topic, key, 0, "", checkKey(key))
}

// holdKey calls the key_hold script. The audit has text after the key.
func (c *Client) holdKey(ctx context.Context, verb, topic, key string, ms int64, text string, errs []error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: verb, Topic: topic})
	place := script.Place{Call: verb, Topic: topic}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	k := script.NewKeys(c.o.prefix, topic)
	series := c.series.Get()
	r, err := c.scripts.Exec(ctx, script.KeyHold, k, k.Receipt(series.ID), 0,
		series.Next(), key, ms, mostHeldKeys, script.ControlChannel(c.o.prefix), topic)
	c.series.Put(series, err)
	switch {
	case err != nil:
		err = place.At(c.unsure(err))
	case r.Text(2) == "full":
		err = place.At(fmt.Errorf("%w: %d keys of the topic are held, which is the maximum", ErrInvalid, mostHeldKeys))
	}
	return end.err(c.acted(ctx, place, fmt.Sprintf("key %q%s", key, text), err))
}
