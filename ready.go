// What keeps a ready job from being taken: pauses, holds, and the priority of others. The taking
// itself is in internal/serve/take.go and lua/take.lua.

package delayq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// maxPauses is the maximum number of simultaneous pauses of a topic.
const maxPauses = 16

// A Pause is the argument of [Client.Pause]. Every person or program that pauses a topic has its
// own pause there, and the topic is paused while any of them is in effect. So a program neither
// shortens nor ends the pause of a person.
type Pause struct {
	By     string        // a person or a program, at most 1 KiB; "" is a name like any other
	Reason string        // the reason, for people who inspect the topic; at most 1 KiB
	For    time.Duration // duration. 0: until Resume. Range: 1 ms to 100 years
}

// PauseInfo is a pause of a topic, as [Inspector.Stats] returns it.
type PauseInfo struct {
	By     string
	Reason string
	Since  time.Time
	Until  time.Time // zero: until Resume
}

// Pause stops all servers from taking jobs of a topic. Jobs are still enqueued and become due, and
// running jobs continue. By and Reason (up to 1 KiB each) are reported by [Inspector.Stats]. A
// second Pause with the same By replaces the first, for example to change its end or its reason.
// Other pauses are unchanged. A topic can have 16 pauses simultaneously; a further one returns
// [ErrTooManyPauses]. When the last pause ends, by itself or by [Client.Resume], servers
// immediately take jobs again. docs/howto/stopping.md compares all calls that stop jobs.
func (c *Client) Pause(ctx context.Context, topic string, p Pause) error {
	var errs []error
	if err := notTiny("Pause.For", p.For); err != nil {
		errs = append(errs, err)
	} else if p.For < 0 || p.For > maxDelay {
		errs = append(errs, fmt.Errorf("Pause.For(%v): must be 0 or from 1ms to %v", p.For, maxDelay))
	}
	if len(p.By) > script.MaxIDLen || len(p.Reason) > script.MaxIDLen {
		errs = append(errs, fmt.Errorf("by and reason of %d and %d bytes, at most %d are allowed", len(p.By), len(p.Reason), script.MaxIDLen))
	}
	return c.pause(ctx, "pause", topic, p, errs)
}

// Resume ends the pause of by. The topic remains paused while pauses of others are in effect;
// [Inspector.Stats] shows them. If by has no pause there, nothing happens.
func (c *Client) Resume(ctx context.Context, topic, by string) error {
	return c.pause(ctx, "resume", topic, Pause{By: by}, nil)
}

// ResumeAll ends all pauses of a topic, whoever made them.
func (c *Client) ResumeAll(ctx context.Context, topic string) error {
	return c.pause(ctx, "resume all", topic, Pause{}, nil)
}

func (c *Client) pause(ctx context.Context, verb, topic string, p Pause, errs []error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: verb, Topic: topic})
	place := script.Place{Call: verb, Topic: topic}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	k := script.NewKeys(c.o.prefix, topic)
	series := c.series.Get()
	r, err := c.scripts.Exec(ctx, script.Pause, k, k.Receipt(series.ID), 0,
		series.Next(), verb, p.By, ceilMS(p.For), p.Reason, maxPauses, script.ControlChannel(c.o.prefix), topic)
	c.series.Put(series, err)
	switch {
	case err != nil:
		err = place.At(c.unsure(err))
	case r.Text(2) == "too_many":
		return end.err(place.At(fmt.Errorf("by %q: %w", p.By, ErrTooManyPauses)))
	}
	return end.err(c.acted(ctx, place, p.text(verb), pausesText(r.Text(3), r.Now()), err))
}

// text describes a pause for the audit.
func (p Pause) text(verb string) string {
	var text string
	if verb != "resume all" {
		text = fmt.Sprintf("by %q", p.By)
	}
	if p.Reason != "" {
		text += fmt.Sprintf(", reason %q", p.Reason)
	}
	if p.For > 0 {
		text += fmt.Sprintf(", for %v", p.For)
	}
	return text
}

// Hold keeps servers from taking jobs of a topic for a time, as [Hold] of a handler does. Running
// jobs continue. A hold prolongs another one and never shortens it. It is apart from pauses: it
// changes none, and [Client.Resume] does not end it. The reason has at most 1 KiB, and the actor of
// ctx ([WithActor]) is kept with it: see [TopicStats].
//
// Range of d: 1 ms to 100 years. docs/howto/stopping.md compares all calls that stop jobs.
func (c *Client) Hold(ctx context.Context, topic string, d time.Duration, reason string) error {
	var errs []error
	if err := notTiny("d", d); err != nil {
		errs = append(errs, err)
	} else if d < time.Millisecond || d > maxDelay {
		errs = append(errs, fmt.Errorf("d(%v): must be from 1ms to %v", d, maxDelay))
	}
	if n := len(reason); n > record.MaxMessage {
		errs = append(errs, fmt.Errorf("reason of %d bytes, at most %d are allowed", n, record.MaxMessage))
	}
	text := fmt.Sprintf("for %v", d)
	if reason != "" {
		text += fmt.Sprintf(", reason %q", reason)
	}
	return c.hold(ctx, "hold", topic, ceilMS(d), strings.ToValidUTF8(reason, "\uFFFD"), text, errs)
}

// EndHold ends the hold of a topic, whoever made it. If it has none, nothing happens.
func (c *Client) EndHold(ctx context.Context, topic string) error {
	return c.hold(ctx, "end hold", topic, 0, "", "", nil)
}

func (c *Client) hold(ctx context.Context, verb, topic string, ms int64, reason, text string, errs []error) error {
	ctx, end := c.begin(ctx, CallEvent{Name: verb, Topic: topic})
	place := script.Place{Call: verb, Topic: topic}
	if err := errors.Join(c.validate(ctx, topic, ""), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	k := script.NewKeys(c.o.prefix, topic)
	series := c.series.Get()
	r, err := c.scripts.Exec(ctx, script.Hold, k, k.Receipt(series.ID), 0,
		series.Next(), ms, actorOf(ctx), reason, script.ControlChannel(c.o.prefix), topic)
	c.series.Put(series, err)
	if err != nil {
		err = place.At(c.unsure(err))
	}
	return end.err(c.acted(ctx, place, text, pausesText(r.Text(3), r.Now()), err))
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
// call to Redis, O(log N). docs/howto/stopping.md compares all calls that stop jobs.
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
// docs/howto/stopping.md compares all calls that stop jobs.
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
	return end.err(c.acted(ctx, place, fmt.Sprintf("key %q%s", key, text), keyHoldText(r.Text(3), r.Now()), err))
}

// SetPriority gives a job that has a [Key] another [Priority]. A ready job gets another place among
// the jobs of its key at once. A scheduled, running or dead job has the priority when it is ready
// again. The due time stays. A job that replaces this one has a priority of its own.
//
// Range of d: -24 to 24 hours, rounded towards 0 to the millisecond.
//
// Errors: [ErrNotFound] if there is no such job, [ErrInvalid] if it has no key,
// [ErrUnknownOutcome], the error of the context, or that of Redis. Cost: one call to Redis,
// O(log N).
func (c *Client) SetPriority(ctx context.Context, topic, id string, d time.Duration) error {
	ctx, end := c.begin(ctx, CallEvent{Name: "set priority", Topic: topic, ID: id, Jobs: 1})
	place := script.Place{Call: "set priority", Topic: topic, Job: id}
	var errs []error
	if d < -maxHeadStart || d > maxHeadStart {
		errs = append(errs, fmt.Errorf("d(%v): must be from %v to %v", d, -maxHeadStart, maxHeadStart))
	}
	if err := errors.Join(c.validate(ctx, topic, id), invalid(errs)); err != nil {
		return end.err(place.At(err))
	}
	k := script.NewKeys(c.o.prefix, topic)
	series := c.series.Get()
	r, err := c.scripts.Exec(ctx, script.SetPriority, k, k.Receipt(series.ID), 0,
		series.Next(), id, d.Milliseconds()+1<<31, script.ControlChannel(c.o.prefix), topic)
	c.series.Put(series, err)
	switch {
	case err != nil:
		err = place.At(c.unsure(err))
	case r.Text(2) == "gone":
		err = place.At(ErrNotFound)
	case r.Text(2) == "plain":
		err = place.At(fmt.Errorf("%w: the job has no Key", ErrInvalid))
	case r.Text(2) == "lost":
		err = place.At(errors.New("the job has lost its place: Client.Repair gives it one"))
	}
	return end.err(c.acted(ctx, place, fmt.Sprintf("priority %v", d), priorityText(r.Text(3)), err))
}
