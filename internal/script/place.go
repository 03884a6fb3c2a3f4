package script

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/delayq/delayq/internal/part"
)

// A Place error names the call, the topic, and the job or schedule where it occurred. Its text is
//
//	cancel topic "mail" job "welcome/anna": …
//
// It leaves out parts that are unknown or do not apply to the call. The text of a topic that is a
// partition is
//
//	cancel topic "mail" partition 3 of generation 1 job "welcome/anna": …
type Place struct {
	Call     string
	Topic    string
	Job      string
	Schedule string
	err      error
}

func (e *Place) Error() string {
	var text strings.Builder
	text.WriteString(e.Call)
	topic, generation, index, divided := part.Split(e.Topic)
	for _, word := range [...]struct{ what, name string }{
		{"topic", topic}, {"job", e.Job}, {"schedule", e.Schedule},
	} {
		if word.name != "" {
			_, _ = fmt.Fprintf(&text, " %s %q", word.what, word.name) // a Builder returns no error
		}
		if divided {
			_, _ = fmt.Fprintf(&text, " partition %d of generation %d", index, generation)
			divided = false
		}
	}
	return text.String() + ": " + e.err.Error()
}

func (e *Place) Unwrap() error { return e.err }

// At adds the place to err. An err that already has a place is not wrapped twice: the missing parts
// are taken from it. Nil stays nil.
func (place Place) At(err error) error {
	if err == nil {
		return nil // a successful call allocates nothing
	}
	return place.wrap(err)
}

func (place Place) wrap(err error) error {
	place.err = err
	if known, ok := err.(*Place); ok {
		place.err = known.err
		place.Call = cmp.Or(place.Call, known.Call)
		place.Topic = cmp.Or(place.Topic, known.Topic)
		place.Job = cmp.Or(place.Job, known.Job)
		place.Schedule = cmp.Or(place.Schedule, known.Schedule)
	}
	return &place
}

// beneath wraps err in a sentinel, which comes after the place that err names.
func beneath(sentinel, err error) error {
	if known, ok := err.(*Place); ok {
		place := *known
		place.err = fmt.Errorf("%w: %w", sentinel, known.err)
		return &place
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}
