package delayq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/script"
)

// Limits are limits of a topic. They hold for all servers together.
//
// Unless its limits are far away, a limited topic takes no jobs ahead: each take asks for as many
// jobs as can start at once. Jobs that must wait stay in ready and use up no attempt.
type Limits struct {
	// Running is the maximum number of jobs that run at the same time, up to 1,000,000. 0 is no
	// limit. Redis counts the leases. The place of a job is free when its handler has returned,
	// also if the job was cancelled or replaced meanwhile. At the latest it is free when the lease
	// is over: after a crash, or if the handler of such a job ignores its context for that long. A
	// handler that replaces its own job has that time, and its context is not cancelled.
	// The same holds for the places of keys, and for Ordered.
	Running int
	// Rate is the maximum rate of starts. The zero Rate is no limit.
	Rate Rate
	// RunningPerKey is the maximum number of jobs of each key that run at the same time, up to
	// 1,000: see [Key]. 0 is no limit. Jobs without a key are not limited by it.
	RunningPerKey int
	// RatePerKey is the maximum rate of starts of each key. The zero Rate is no limit.
	RatePerKey Rate
	// Ordered makes the jobs of each key run strictly one after the other, in the order of their
	// due times less their [Priority], and those of the same millisecond in the order in which they
	// came. A job that fails, that is given back, or whose lease expires, stays the first one: the
	// other jobs of its key wait for its backoff and its next run. A job that is snoozed or
	// rescheduled gives up its turn and gets the place of its new due time. Until a server has
	// moved a job whose delay is over, one that is enqueued without a delay can run before it. Jobs
	// without a key are in no order.
	//
	// The next job of a key waits for the handler of one that was cancelled or replaced while it
	// ran. No server runs two jobs of a key at a time, unless a handler goes on although its lease
	// is over.
	//
	// RunningPerKey must then be 0 or 1, and [KeyLimits].Running has no effect.
	Ordered bool
	// OnDead says what happens to the other jobs of a key when a job of it is buried. It has an
	// effect only with Ordered.
	OnDead OnDead
}

// OnDead is what a dead job means for its key: see [Limits].
type OnDead int

// A dead job.
const (
	// ContinueKey lets the other jobs of the key run. It is the default.
	ContinueKey OnDead = iota
	// HaltKey makes the jobs of the key that come after the dead one wait until it is revived,
	// cancelled, or deleted because of the [DeadLimit]. A revived job is the first one of its key.
	HaltKey
)

// String returns "continue" or "halt".
func (d OnDead) String() string {
	switch d {
	case ContinueKey:
		return "continue"
	case HaltKey:
		return "halt"
	}
	return fmt.Sprintf("OnDead(%d)", int(d))
}

// A Rate is a number of starts in a period, as [Per] returns it. A start is counted by Redis's
// clock, when a server takes the job or up to 15 ms later. The way to the handler adds its jitter.
// A start that is not used, because the server crashes or stops before the handler is called, is
// lost. When the burst is used up, a start can wait up to 10 ms for others.
type Rate struct {
	starts int
	per    time.Duration
	burst  int // 0: a tenth of starts
	strict bool
}

// Bounds of limits.
const (
	mostRunning = 1_000_000
	mostOfKey   = 1000 // running jobs of a key
	mostStarts  = 1_000_000
	longestRate = 366 * 24 * time.Hour
)

// Per returns a rate of starts in a period: from 1 to 1,000,000 starts in up to 366 days, and not
// more than one in a microsecond. Redis counts whole microseconds for a start, rounded up. A rate
// that would lose more than 3 % by that is refused. So any rate of up to 29,000 starts a second is
// accepted, and of faster ones those like Per(500_000, time.Second): 2 µs for a start.
//
// A bucket of tokens is filled at this rate (the generic cell rate algorithm of ITU-T I.371), and
// each start takes one. It holds a tenth of starts, at least 1: see [Rate.Burst]. So a period that
// follows a pause can have up to a tenth more starts: see [Rate.Strict].
func Per(starts int, period time.Duration) Rate { return Rate{starts: starts, per: period} }

// Burst sets how many starts can be made at once after a pause: from 1 to the number of starts.
func (r Rate) Burst(n int) Rate {
	if r.burst = n; n == 0 {
		r.burst = -1 // 0 is the default
	}
	return r
}

// Strict makes the rate an upper bound for every period, wherever it begins. The price is a mean
// rate that is lower by the burst. A strict rate of more than one start needs a burst below its
// number of starts.
func (r Rate) Strict() Rate {
	r.strict = true
	return r
}

// Starts returns the number of starts in a period. It is 0 for the zero Rate.
func (r Rate) Starts() int { return r.starts }

// Period returns the period.
func (r Rate) Period() time.Duration { return r.per }

// MaxBurst returns how many starts can be made at once.
func (r Rate) MaxBurst() int {
	if r.burst == 0 && r.starts > 0 {
		return max(1, r.starts/10)
	}
	return r.burst
}

// IsStrict reports whether the rate is [Rate.Strict].
func (r Rate) IsStrict() bool { return r.strict }

// String returns a text such as "100 per 1m0s, burst 10, strict".
func (r Rate) String() string {
	if r == (Rate{}) {
		return "none"
	}
	text := fmt.Sprintf("%d per %v, burst %d", r.starts, r.per, r.MaxBurst())
	if r.strict {
		text += ", strict"
	}
	return text
}

// emit returns the time of one start, in µs.
func (r Rate) emit() int64 {
	per, n := r.per.Microseconds(), r.mean()
	switch {
	case r == (Rate{}):
		return 0
	case r.strict && n == 1:
		return per + 1 // the ends of a period count as inside it
	}
	return (per + n - 1) / n
}

// mean returns the starts in a period in the long run.
func (r Rate) mean() int64 {
	if r.strict && r.starts > 1 {
		return int64(r.starts - r.MaxBurst())
	}
	return int64(r.starts)
}

// coarse reports whether more than 3 % of the rate is lost because the time of a start is in whole
// µs.
func (r Rate) coarse() bool {
	n := r.mean()
	return n > 1 && 100*(r.emit()*n-r.per.Microseconds()) > 3*r.per.Microseconds()
}

// check returns an error if the rate is invalid.
func (r Rate) check() error {
	call := fmt.Sprintf("Per(%d, %v)", r.starts, r.per)
	switch burst := r.MaxBurst(); {
	case r == (Rate{}):
	case r.starts < 1 || r.starts > mostStarts:
		return fmt.Errorf("%s: starts must be from 1 to %d", call, mostStarts)
	case r.per > longestRate || r.per < time.Duration(r.starts)*time.Microsecond:
		return fmt.Errorf("%s: the period must be from 1µs for each start to %v", call, longestRate)
	case r.coarse():
		e, text := r.emit(), ""
		if r.strict {
			text = ", not counting the burst"
		}
		return fmt.Errorf("%s: a start must take a whole number of µs, within 3 %%: that is %d or %d starts%s",
			call, r.per.Microseconds()/e, r.per.Microseconds()/(e-1), text)
	case burst < 1 || burst > r.starts:
		return fmt.Errorf("%s.Burst(%d): must be from 1 to %d", call, max(burst, 0), r.starts)
	case r.strict && r.starts > 1 && burst == r.starts:
		return fmt.Errorf("%s.Burst(%d).Strict(): a strict rate needs a burst of at most %d", call, burst, r.starts-1)
	}
	return nil
}

// check returns an error if the limits are invalid.
func (l Limits) check() error {
	err := errors.Join(l.Rate.check(), l.RatePerKey.check())
	if l.Running < 0 || l.Running > mostRunning {
		err = errors.Join(err, fmt.Errorf("Limits.Running(%d): must be from 0 to %d", l.Running, mostRunning))
	}
	if l.Ordered && l.RunningPerKey > 1 {
		err = errors.Join(err, fmt.Errorf("Limits.RunningPerKey(%d): must be 0 or 1 with Ordered", l.RunningPerKey))
	}
	if l.OnDead != ContinueKey && l.OnDead != HaltKey {
		err = errors.Join(err, fmt.Errorf("Limits.OnDead(%d): must be ContinueKey or HaltKey", int(l.OnDead)))
	} else if l.OnDead == HaltKey && !l.Ordered {
		err = errors.Join(err, errors.New("Limits.OnDead(HaltKey): needs Ordered"))
	}
	if l.RunningPerKey < 0 || l.RunningPerKey > mostOfKey {
		err = errors.Join(err, fmt.Errorf("Limits.RunningPerKey(%d): must be from 0 to %d", l.RunningPerKey, mostOfKey))
	}
	return err
}

// String returns a text such as "running 5, rate 100 per 1m0s, burst 10".
func (l Limits) String() string {
	var parts []string
	if l.Running > 0 {
		parts = append(parts, fmt.Sprintf("running %d", l.Running))
	}
	if l.Rate != (Rate{}) {
		parts = append(parts, "rate "+l.Rate.String())
	}
	if l.RunningPerKey > 0 && !l.Ordered {
		parts = append(parts, fmt.Sprintf("running per key %d", l.RunningPerKey))
	}
	if l.RatePerKey != (Rate{}) {
		parts = append(parts, "rate per key "+l.RatePerKey.String())
	}
	if l.Ordered {
		parts = append(parts, "ordered")
		if l.OnDead == HaltKey {
			parts = append(parts, "a dead job halts its key")
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// encode returns the field flow of meta: see limits.lua.
func (l Limits) encode() string {
	flow := encodeFlow(l.Running, l.Rate)
	if l.ofKeys() {
		running := l.RunningPerKey
		if l.Ordered {
			running = 1
		}
		flow += " " + encodeFlow(running, l.RatePerKey)
	}
	if l.Ordered {
		flow += fmt.Sprintf(" 1 %d", l.OnDead)
	}
	return flow
}

// ofKeys reports whether there are limits of each key.
func (l Limits) ofKeys() bool { return l.RunningPerKey > 0 || l.RatePerKey != (Rate{}) || l.Ordered }

// encodeFlow returns a limit of running jobs and a rate as six numbers.
func encodeFlow(running int, r Rate) string {
	strict := 0
	if r.strict {
		strict = 1
	}
	return fmt.Sprintf("%d %d %d %d %d %d", running, r.emit(), r.MaxBurst(), r.starts, r.per.Microseconds(), strict)
}

// decodeLimits reads the field flow of meta. What is missing or damaged is no limit.
func decodeLimits(flow string) (l Limits) {
	words := strings.Fields(flow)
	if len(words) < 6 {
		return Limits{}
	}
	l.Running, l.Rate = decodeFlow(words[:6])
	if len(words) >= 12 {
		l.RunningPerKey, l.RatePerKey = decodeFlow(words[6:12])
	}
	if len(words) >= 14 && words[12] == "1" { // a later release may write more
		l.Ordered = true
		if words[13] == "1" {
			l.OnDead = HaltKey
		}
	}
	return l
}

// decodeFlow reads six numbers of encodeFlow. If one is damaged, there is no limit.
func decodeFlow(words []string) (running int, r Rate) {
	var n [6]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(words[i], 10, 64); err != nil {
			return 0, Rate{}
		}
	}
	r.starts, r.per = int(n[3]), time.Duration(n[4])*time.Microsecond
	if r.starts > 0 {
		r.strict = n[5] == 1
		if r.burst = int(n[2]); r.burst == max(1, r.starts/10) {
			r.burst = 0
		}
	}
	return int(n[0]), r
}

// SetLimits sets the limits of a topic. They replace those it has, also those that servers have set
// by [DefaultLimits]. The zero Limits removes them.
//
// Running jobs continue if their number exceeds the new limit, and no other starts until it falls
// below it. With RunningPerKey, up to 1,000 running jobs that had no such limit count from then on,
// those whose leases end last. Servers of releases without limits ignore them.
//
// Cost: one call to Redis, and with limits of keys one more for each 1,000 keys that wait because
// of their limits.
func (c *Client) SetLimits(ctx context.Context, topic string, l Limits) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "set limits", Topic: topic})
	place := script.Place{Call: "set limits", Topic: topic}
	var errs []error
	if err := l.check(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	before, err := c.setLimits(ctx, topic, l)
	return end.err(c.acted(ctx, place, l.String(), decodeLimits(before).String(), place.At(err)))
}

// DefaultLimits are the limits that a topic gets when a server starts to handle it, unless limits
// were set before, by [Client.SetLimits] or by another server. To change them later, use SetLimits.
// A topic of a pattern gets them when it is found. If they are lost later, with the data of Redis,
// the topic has none until a server starts. Jobs that were running before do not count in limits of
// keys, nor does a key wait for one of them with Ordered. With SetLimits they do.
func DefaultLimits(l Limits) HandlerOption {
	return handlerOption(func(o *handlerOptions) {
		if err := l.check(); err != nil {
			o.errs = append(o.errs, err)
			return
		}
		o.limits = &l
	})
}

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
	fits := func(at commit.Place) error { return needsByKey(at, l.Running > 0 || l.Rate != (Rate{})) }
	r, err := c.everywhere(ctx, topic, fits, func(ctx context.Context, at commit.Place) (script.Reply, error) {
		r, err := c.commits.SetKey(ctx, at.Keys, key, l.encode(), mostKeyLimits)
		if err == nil && r.Text(2) == "full" {
			err = fmt.Errorf("%w: %d keys of the topic have limits, which is the maximum", ErrInvalid, mostKeyLimits)
		}
		return r, err
	})
	return end.err(c.acted(ctx, place, fmt.Sprintf("key %q, %v", key, l), decodeKeyLimits(r.Text(3)).String(), place.At(err)))
}

// checkKey returns an error if no job can have the key.
func checkKey(key string) []error {
	if n := len(key); n < 1 || n > script.MaxTopicLen {
		return []error{fmt.Errorf("key of %d bytes: must have 1 to %d", n, script.MaxTopicLen)}
	}
	return nil
}
