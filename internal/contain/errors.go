package contain

import (
	"errors"
	"fmt"
	"reflect"
)

// As is errors.As that survives an error whose methods panic: a nil pointer in an error is a common
// mistake.
func As(err error, target any) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return errors.As(err, target)
}

// Message returns the text of an error, even of one whose Error method panics.
func Message(err error) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("%T, whose Error method panics", err)
		}
	}()
	return err.Error()
}

// IsNil reports whether v is nil, or a nil pointer or nil function of any type.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func:
		return r.IsNil()
	default:
		return false
	}
}
