package delayq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/delayq/delayq/internal/script"
)

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
	r, err := c.scripts.Exec(ctx, script.SetPriority, k, k.Receipt(series.ID), 0, series.Next(), id, d.Milliseconds()+1<<31)
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
	return end.err(c.acted(ctx, place, fmt.Sprintf("priority %v", d), err))
}
