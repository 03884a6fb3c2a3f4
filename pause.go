package delayq

import (
	"context"
	"errors"
	"fmt"
	"time"

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
// immediately take jobs again.
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
	return end.err(c.acted(ctx, place, p.text(verb), err))
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
