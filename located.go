package delayq

import (
	"cmp"
	"fmt"
	"strings"
)

// A located error names the call, the topic, and the job or schedule where it occurred. Its text is
//
//	cancel topic "mail" job "welcome/anna": …
//
// It leaves out parts that are unknown or do not apply to the call.
type located struct {
	call     string
	topic    string
	job      string
	schedule string
	err      error
}

func (e *located) Error() string {
	var text strings.Builder
	text.WriteString(e.call)
	for _, part := range [...]struct{ what, name string }{
		{"topic", e.topic}, {"job", e.job}, {"schedule", e.schedule},
	} {
		if part.name != "" {
			_, _ = fmt.Fprintf(&text, " %s %q", part.what, part.name) // a Builder returns no error
		}
	}
	return text.String() + ": " + e.err.Error()
}

func (e *located) Unwrap() error { return e.err }

// at adds the place to err. An err that already has a place is not wrapped twice: the missing parts
// are taken from it. Nil stays nil.
func (place located) at(err error) error {
	if err == nil {
		return nil // a successful call allocates nothing
	}
	return place.wrap(err)
}

func (place located) wrap(err error) error {
	place.err = err
	if known, ok := err.(*located); ok {
		place.err = known.err
		place.call = cmp.Or(place.call, known.call)
		place.topic = cmp.Or(place.topic, known.topic)
		place.job = cmp.Or(place.job, known.job)
		place.schedule = cmp.Or(place.schedule, known.schedule)
	}
	return &place
}

// beneath wraps err in a sentinel, which comes after the place that err names.
func beneath(sentinel, err error) error {
	if known, ok := err.(*located); ok {
		place := *known
		place.err = fmt.Errorf("%w: %w", sentinel, known.err)
		return &place
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}
