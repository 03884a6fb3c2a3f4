package rig

import (
	"context"
	"errors"
	"time"

	"github.com/delayq/delayq"
)

// What those who wait for a job are told, beside the names of errors.
const (
	ToldDone    = "done"
	ToldUnknown = "unknown"
	ToldNothing = "nothing" // the end of their context came first
	ToldOther   = "other"   // the job was cancelled or replaced, or has expired
)

// Await enqueues a task and waits for its end. It notes the call as one that enqueues, and what it
// was told: see OpTold. Its error is one that a caller of Call must not get.
func (c *Client) Await(ctx context.Context, t *Task) error {
	e, payload, opts, err := t.prepare(OpEnqueue)
	if err != nil {
		return err
	}
	told := Event{Op: OpTold, Topic: t.Topic, ID: t.ID, Inc: t.Inc}
	var failed error
	_ = c.call(e, func() (string, error) { // its error is told apart below: told and failed
		r, err := c.Call(ctx, t.Topic, t.ID, payload, opts...)
		now := time.Now() // Redis is on this machine
		var dead *delayq.DeadError
		switch {
		case err == nil:
			told.Result, told.Sum, told.Delay = ToldDone, string(r.Output), now.Sub(r.FinishedAt).Milliseconds()
		case errors.As(err, &dead):
			told.Result, told.Delay = documented(err), now.Sub(dead.BuriedAt).Milliseconds()
		case errors.Is(err, context.DeadlineExceeded): // the job can have been stored
			told.Result = ToldNothing
			return "", errors.Join(delayq.ErrUnknownOutcome, err)
		case errors.Is(err, delayq.ErrUnknownOutcome):
			told.Result, told.Err = ToldUnknown, err.Error()
			return "", err
		case errors.Is(err, delayq.ErrCancelled), errors.Is(err, delayq.ErrReplaced), errors.Is(err, delayq.ErrExpired):
			told.Result, told.Err = ToldOther, err.Error()
		default:
			told.Result = documented(err)
			failed = err
			return "", err
		}
		return "", nil
	})
	c.rec.Record(told)
	if told.Result == "network" || told.Result == "redis" { // it was never sent
		return nil
	}
	return failed
}
