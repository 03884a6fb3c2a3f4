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

// Hold makes the whole topic wait for d, for example because an API has answered "429 Too Many
// Requests". The job goes back to the head of ready, and its attempt is not used up. No server
// takes a job of the topic until d has passed. If several handlers return Hold, the latest end
// counts: a hold prolongs another one and never shortens it.
//
// Jobs that run already continue. Jobs that their server has taken ahead may still start; a topic
// with [Limits] has none.
//
// An error that wraps a Hold or is joined with it has the same effect, and its message is kept as
// the reason: see [TopicStats]. [Permanent], [Again] and [Snooze] take precedence: see [Handler].
// [Client.EndHold] ends a hold early. d is rounded up to the millisecond. A d of 0 or less only
// returns the job. Maximum: 100 years; a longer d counts as that.
func Hold(d time.Duration) error { return &holdError{d: d} }

// HoldUntil is [Hold] until a time, such as that of a Retry-After header.
func HoldUntil(t time.Time) error { return &holdError{until: t} }

// HoldKey makes the key of the job wait for d, for example because the API of one tenant has
// answered "429 Too Many Requests": see [Key]. The job goes back to its place among those of its
// key, and its attempt is not used up. No server takes a job of the key until d has passed. Jobs of
// other keys and jobs without a key continue. The rest is as for [Hold]: the latest end counts, and
// jobs that run or were taken ahead are not affected.
//
// A job without a key fails instead: it is retried after d, or buried if no retry is left. Of a
// Hold and a HoldKey in one error the first counts. [Client.ResumeKey] ends a hold early.
func HoldKey(d time.Duration) error { return &holdError{d: d, ofKey: true} }

// HoldKeyUntil is [HoldKey] until a time, such as that of a Retry-After header.
func HoldKeyUntil(t time.Time) error { return &holdError{until: t, ofKey: true} }

type holdError struct {
	d     time.Duration
	until time.Time // zero: d counts
	ofKey bool      // only the key of the job is held
}

func (e *holdError) Error() string {
	what := "hold"
	if e.ofKey {
		what = "hold the key"
	}
	if e.until.IsZero() {
		return fmt.Sprintf("delayq: %s for %v", what, e.d)
	}
	return fmt.Sprintf("delayq: %s until %v", what, e.until.UTC().Format(time.RFC3339Nano))
}

// delay returns how long the hold is, from now on by Redis's clock.
func (e *holdError) delay(now time.Time) time.Duration {
	d := e.d
	if !e.until.IsZero() {
		d = e.until.Sub(now)
	}
	return boundedDelay(d)
}

// AsHold reports whether returning err from a handler holds the topic, and until when. Use it in
// middleware. If a [Permanent], an [Again] or a [Snooze] takes precedence over the [Hold], it
// reports false. So it does for [HoldKey].
func AsHold(err error) (until time.Time, ok bool) {
	want := wishOf(err)
	if want.hold == nil || want.hold.ofKey {
		return time.Time{}, false
	}
	if want.hold.until.IsZero() {
		return time.Now().Add(want.hold.delay(time.Now())), true
	}
	return want.hold.until, true
}

// Hold keeps servers from taking jobs of a topic for a time, as [Hold] of a handler does. Running
// jobs continue. A hold prolongs another one and never shortens it. It is apart from pauses: it
// changes none, and [Client.Resume] does not end it. The reason has at most 1 KiB, and the actor of
// ctx ([WithActor]) is kept with it: see [TopicStats].
//
// Range of d: 1 ms to 100 years.
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
	_, err := c.scripts.Exec(ctx, script.Hold, k, k.Receipt(series.ID), 0,
		series.Next(), ms, actorOf(ctx), reason, script.ControlChannel(c.o.prefix), topic)
	c.series.Put(series, err)
	if err != nil {
		err = place.At(c.unsure(err))
	}
	return end.err(c.acted(ctx, place, text, err))
}
