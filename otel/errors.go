package delayqotel

import (
	"context"
	"errors"
	"fmt"

	"github.com/delayq/delayq"
)

// refusals are the errors that say that a job was not in the state that the call needs. Programs
// expect them, for example when they enqueue an ID a second time.
var refusals = []struct {
	err    error
	result string
}{
	{delayq.ErrDuplicate, "duplicate"},
	{delayq.ErrNotFound, "not_found"},
	{delayq.ErrChanged, "changed"},
	{delayq.ErrRunning, "running"},
	{delayq.ErrDead, "dead"},
}

// refusal returns the result of a call that was refused because of the state of a job. It is empty
// for other errors. If err joins several, they must all be refusals, and the first one counts.
func refusal(err error) (result string) {
	defer func() {
		if recover() != nil {
			result = ""
		}
	}()
	for err != nil {
		switch x := err.(type) {
		case interface{ Unwrap() []error }:
			for _, one := range x.Unwrap() {
				said := refusal(one)
				if said == "" {
					return ""
				}
				if result == "" {
					result = said
				}
			}
			return result
		}
		for _, r := range refusals {
			if is, ok := err.(interface{ Is(error) bool }); err == r.err || ok && is.Is(r.err) {
				return r.result
			}
		}
		err = errors.Unwrap(err)
	}
	return ""
}

// known are the errors of delayq that have a word of their own as error.type.
var known = []struct {
	err  error
	word string
}{
	{delayq.ErrUnknownOutcome, "unknown_outcome"},
	{delayq.ErrNotReplicated, "not_replicated"},
	{delayq.ErrNotAudited, "not_audited"},
	{delayq.ErrInvalid, "invalid"},
	{delayq.ErrNotEmpty, "not_empty"},
	{delayq.ErrTooManyPauses, "too_many_pauses"},
}

// Words for error.type of a run.
const (
	errorPanic     = "panic"
	errorTimeout   = "timeout"
	errorLeaseLost = "lease_lost"
)

// failure returns the error.type of a run; empty if the run has not failed. ctx is the context of
// the handler.
func failure(ctx context.Context, event delayq.RunEvent) string {
	switch event.Outcome {
	case delayq.OutcomeLeaseLost:
		return errorLeaseLost
	case delayq.OutcomeRetried, delayq.OutcomeBuried, "":
	default:
		if event.Stack == "" {
			return ""
		}
	}
	switch {
	case event.Stack != "":
		return errorPanic
	case event.Err == nil:
		return ""
	case errors.Is(context.Cause(ctx), delayq.ErrTimeout):
		return errorTimeout
	case isError(event.Err, delayq.ErrLeaseLost):
		return errorLeaseLost
	}
	return errorType(event.Err)
}

// errorType returns a word of delayq for an error, or the Go type of its innermost cause.
func errorType(err error) string {
	for _, k := range known {
		if isError(err, k.err) {
			return k.word
		}
	}
	return fmt.Sprintf("%T", innermost(err))
}

// innermost returns the error that wraps no other. Of errors that are joined, it follows the first.
func innermost(err error) (inner error) {
	inner = err
	defer func() { _ = recover() }() // of an Unwrap on a nil pointer
	for {
		var next error
		switch x := inner.(type) {
		case interface{ Unwrap() error }:
			next = x.Unwrap()
		case interface{ Unwrap() []error }:
			for _, one := range x.Unwrap() {
				if one != nil {
					next = one
					break
				}
			}
		}
		if next == nil {
			return inner
		}
		inner = next
	}
}

// isError is errors.Is that survives an error whose methods panic.
func isError(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}

// message returns the text of an error, even of one whose Error method panics.
func message(err error) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T, whose Error method panics", err)
		}
	}()
	return err.Error()
}
