package delayq

import (
	"cmp"
	"fmt"
	"strings"
)

// A located error says where it happened: in which call, in which topic, and with which job or schedule. Its text is
//
//	cancel topic "mail" job "welcome/anna": …
//
// without what is not known or what the call is not about.
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
			_, _ = fmt.Fprintf(&text, " %s %q", part.what, part.name) // a Builder takes everything
		}
	}
	return text.String() + ": " + e.err.Error()
}

func (e *located) Unwrap() error { return e.err }

// at says where err happened. An err that says so already is not wrapped twice: what the place leaves open is
// taken from it. Nil stays nil.
func (place located) at(err error) error {
	if err == nil {
		return nil // a call in which all goes well allocates nothing
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

// beneath puts a sentinel in front of err, behind the place that err names.
func beneath(sentinel, err error) error {
	if known, ok := err.(*located); ok {
		place := *known
		place.err = fmt.Errorf("%w: %w", sentinel, known.err)
		return &place
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}
