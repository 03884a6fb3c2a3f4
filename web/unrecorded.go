package web

import (
	"errors"

	"github.com/delayq/delayq"
)

// acted returns what has failed of an act that has ended with err. An act that is done and not in
// the audit has not failed: the page that follows says so.
func (v *view) acted(err error) error {
	failed, silent := unrecorded(err)
	v.silent = v.silent || silent
	return failed
}

// unrecorded splits the error of an act into what has failed, and whether the act is done and not
// in the audit.
func unrecorded(err error) (failed error, silent bool) {
	if !errors.Is(err, delayq.ErrNotAudited) {
		return err, false
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok { // of an Apply, whose jobs can fail too
		var rest []error
		for _, one := range many.Unwrap() {
			if !errors.Is(one, delayq.ErrNotAudited) {
				rest = append(rest, one)
			}
		}
		failed = errors.Join(rest...)
	}
	return failed, true
}
