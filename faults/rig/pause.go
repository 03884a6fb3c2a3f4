package rig

import (
	"context"
	"time"

	"github.com/delayq/delayq"
)

// Hold pauses a topic in a name, for a time or without an end.
func (c *Client) Hold(ctx context.Context, topic, by string, period time.Duration) error {
	return c.call(Event{Op: OpHold, Topic: topic, ID: by, Delay: period.Milliseconds()}, func() (string, error) {
		return "", c.Pause(ctx, topic, delayq.Pause{By: by, Reason: "the soak", For: period})
	})
}

// Release ends a pause.
func (c *Client) Release(ctx context.Context, topic, by string) error {
	return c.call(Event{Op: OpRelease, Topic: topic, ID: by}, func() (string, error) {
		return "", c.Resume(ctx, topic, by)
	})
}
