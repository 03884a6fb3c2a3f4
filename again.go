package delayq

import (
	"fmt"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// Again continues a job under the same ID. If a handler returns it, the job is completed and, in
// the same step, a new job with the same ID and this payload is enqueued. No crash can separate the
// two: either the old job runs again, or the new one exists.
//
//	return delayq.Again(state, delayq.ProcessIn(24*time.Hour))
//
// The completed job is treated as if its handler had returned nil: it counts as acked and is kept
// for its [Retention]. While the new job exists, Get and List show the new one. The new job counts
// as enqueued, has another nonce, starts with attempt 1 and has no errors and no snoozes. Unless
// opts say otherwise, it has the options of the completed one: [Retry], [Backoff], [Timeout],
// Retention, the headers, and an [ExpireIn] that starts again. Without [ProcessIn] or [ProcessAt]
// it is due immediately. It does not inherit an [ExpireAt] or the [Defaults] of the handler.
// [Replace] and [ReplaceDead] have no effect here.
//
// If the completed job belongs to a schedule, so does the new one, with the same slot. For the
// schedule's overlap policy, the run continues until a handler ends the job without Again.
//
// Nothing is enqueued if the job was cancelled, replaced or lost in the meantime. If opts are
// invalid or the payload has more than 64 MiB, the run is a failed attempt, with an [ErrInvalid]
// that names the fault. [WaitReplicas] and the bound of [MaxPayload] belong to clients and do not
// apply.
//
// An error that wraps an Again or is joined with it has the same effect, unless it contains a
// [Permanent]: see [Handler]. An error that is joined with it is logged and is in the event of
// [AgainHook].
func Again(payload []byte, opts ...JobOption) error { return &againError{payload, opts} }

type againError struct {
	payload []byte
	opts    []JobOption
}

func (e *againError) Error() string { return "delayq: again" }

// IsAgain reports whether returning err from a handler enqueues the job again. Use it in
// middleware. If a [Permanent] takes precedence over the [Again], it reports false.
func IsAgain(err error) bool { return wishOf(err).again != nil }

// renew returns the job that follows the one of a run that has ended at end.
func renew(r *run.Run, again *againError, end time.Time) (*settle.Renewal, error) {
	if n := len(again.payload); n > mostPayload {
		return nil, fmt.Errorf("again: %w: payload of %d bytes, at most %d are allowed", ErrInvalid, n, mostPayload)
	}
	o := jobOptions{Options: r.Options.Given()}
	o.DueAt, o.DueIn, o.ExpireAt = 0, 0, 0
	o, err := o.with(again.opts)
	if err != nil {
		return nil, fmt.Errorf("again: %w", err)
	}
	now := end.UnixMilli()
	n := &settle.Renewal{When: instantOr(o.DueAt, o.DueIn), Due: msTime(o.Due(now))}
	if expires := o.Expires(now); expires > 0 && o.Due(now) >= expires {
		return nil, fmt.Errorf("again: %w", hopeless(expires, o.Due(now)))
	}
	if n.Head, n.Tail, err = record.Encode(record.NewNonce(), &o.Options, again.payload); err != nil {
		return nil, fmt.Errorf("again: %w", err)
	}
	return n, nil
}

// badAgain returns the error of an attempt whose Again is invalid, joined with the handler's other
// errors.
func badAgain(err, bad error) error {
	if _, bare := err.(*againError); bare {
		return bad
	}
	return fmt.Errorf("%w: %w", bad, err)
}
