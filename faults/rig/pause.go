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

// HoldTheKey holds a key for a time, or pauses it if that is 0.
func (c *Client) HoldTheKey(ctx context.Context, topic, key string, period time.Duration) error {
	return c.call(Event{Op: OpHoldKey, Topic: topic, Key: key, Delay: period.Milliseconds()}, func() (string, error) {
		if period == 0 {
			return "", c.PauseKey(ctx, topic, key)
		}
		return "", c.HoldKey(ctx, topic, key, period)
	})
}

// ReleaseTheKey ends the hold and the pause of a key.
func (c *Client) ReleaseTheKey(ctx context.Context, topic, key string) error {
	return c.call(Event{Op: OpReleaseKey, Topic: topic, Key: key}, func() (string, error) {
		return "", c.ResumeKey(ctx, topic, key)
	})
}

// Release ends a pause.
func (c *Client) Release(ctx context.Context, topic, by string) error {
	return c.call(Event{Op: OpRelease, Topic: topic, ID: by}, func() (string, error) {
		return "", c.Resume(ctx, topic, by)
	})
}
