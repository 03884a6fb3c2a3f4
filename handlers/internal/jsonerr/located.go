// Package jsonerr describes errors of encoding/json.
package jsonerr

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Located adds to an error of encoding/json where in the payload it is. The error that it returns
// has no values of the payload.
func Located(err error, d *json.Decoder) error {
	if bad, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("byte %d: not JSON", bad.Offset)
	}
	if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(bad.Value, " ") // "number 12" has the value
		return fmt.Errorf("byte %d: %s is of the type %s", bad.Offset, cmp.Or(bad.Field, "the payload"), kind)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("ends too early")
	}
	return fmt.Errorf("byte %d: %w", d.InputOffset(), err)
}
