package delayq

import (
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"time"
)

// Again asks for the next run of a job that carries on by itself: a handler that returns it ends
// its job well, and in the same step enqueues a new one of the same ID, with this payload. No crash
// comes between the two: the old job runs again, or the new one is there.
//
//	return delayq.Again(state, delayq.ProcessIn(24*time.Hour))
//
// The ended job is as one whose handler returned nil: it counts as acked and is kept for its
// [Retention], but as long as the new one is there, Get and List tell of that. The new one counts
// as enqueued, has another nonce, begins with attempt 1 and has no errors and no snoozes. It has
// the options of the ended one ([Retry], [Backoff], [Timeout], Retention, the headers, and an
// [ExpireIn] that begins anew), unless opts say otherwise. It is due at once without [ProcessIn] or
// [ProcessAt], and it does not inherit an [ExpireAt], nor what the handler's [Defaults] say.
// [Replace] and [ReplaceDead] mean nothing here. A job of a schedule stays one: it has the same
// slot, and for the schedule's overlap policy its run goes on until a handler ends the job without
// Again.
//
// Nothing is enqueued if the job was cancelled, replaced or lost meanwhile. Options that are
// invalid and a payload of more than 64 MiB make a failed attempt of the run, with an ErrInvalid
// that says what is wrong. [WaitReplicas] and the bound of [MaxPayload] are a client's and do not
// count.
//
// An error that wraps an Again or is joined with it asks for the same, unless a [Permanent] is in
// it: see [Handler]. An error that is joined with it is logged and is in the event of [AgainHook].
func Again(payload []byte, opts ...JobOption) error { return &againError{payload, opts} }

type againError struct {
	payload []byte
	opts    []JobOption
}

func (e *againError) Error() string { return "delayq: again" }

// IsAgain reports whether a handler that returns err has its job enqueued anew. It is for
// middleware. An [Again] that a [Permanent] overrules is none.
func IsAgain(err error) bool { return wishOf(err).again != nil }

// A renewal is the new job that a row of again enqueues.
type renewal struct {
	head, tail string // of the record
	when       string // due time for the script
	due        time.Time
}

// bytes is how long the record will be.
func (n *renewal) bytes() int { return len(n.head) + stampLen + len(n.tail) }

// renew makes the job that takes the place of a run's own.
func (r *run) renew(again *againError, end time.Time) (*renewal, error) {
	if n := len(again.payload); n > mostPayload {
		return nil, fmt.Errorf("again: %w: payload of %d bytes, at most %d are allowed", ErrInvalid, n, mostPayload)
	}
	o := r.said
	o.dueAt, o.dueIn, o.expireAt, o.scheduled = 0, 0, 0, r.scheduled
	o, err := o.with(again.opts)
	if err != nil {
		return nil, fmt.Errorf("again: %w", err)
	}
	var nonce [nonceLen]byte
	binary.LittleEndian.PutUint64(nonce[:], mathrand.Uint64())
	now := end.UnixMilli()
	n := &renewal{when: instantOr(o.dueAt, o.dueIn), due: msTime(o.due(now))}
	if expires := o.expires(now); expires > 0 && o.due(now) >= expires {
		return nil, fmt.Errorf("again: %w", hopeless(expires, o.due(now)))
	}
	if n.head, n.tail, err = encodeRecord(nonce, &o, again.payload); err != nil {
		return nil, fmt.Errorf("again: %w", err)
	}
	return n, nil
}

// badAgain is the error of an attempt whose Again is bad: that, and what else the handler has said.
func badAgain(err, bad error) error {
	if _, bare := err.(*againError); bare {
		return bad
	}
	return fmt.Errorf("%w: %w", bad, err)
}
