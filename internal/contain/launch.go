package contain

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// NewCrash returns a crash for the value of a panic. A nil value means runtime.Goexit.
func NewCrash(value any) *Crash {
	if value == nil { // recover returns an error for panic(nil)
		return &Crash{Kind: Goexit, Value: "runtime.Goexit was called", Stack: debug.Stack()}
	}
	return &Crash{Kind: Panic, Value: value, Stack: debug.Stack()}
}

// Launch calls f in a goroutine of its own, which belongs to the group if that is not nil. If f
// panics or calls runtime.Goexit, Launch calls crashed in that goroutine with the reason. Neither
// propagates.
func Launch(group *sync.WaitGroup, f func(), crashed func(*Crash)) {
	if group != nil {
		group.Add(1)
	}
	go func() {
		returned := false
		defer func() {
			if group != nil {
				defer group.Done()
			}
			if value := recover(); !returned {
				crashed(NewCrash(value))
			}
		}()
		f()
		returned = true
	}()
}

// apart calls f in a goroutine of its own and waits for it. The error can be a crash.
func apart[T any](f func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	Launch(nil, func() {
		v, err = f()
		close(done)
	}, func(c *Crash) {
		err = c
		close(done)
	})
	<-done
	return v, err
}

// Alone is apart for a function that returns only an error.
func Alone(f func() error) error {
	_, err := apart(func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// A Crash is a panic or a runtime.Goexit.
type Crash struct {
	Kind  string // Panic or Goexit
	Value any
	Stack []byte
}

// The kinds of a crash.
const (
	Panic  = "panic"
	Goexit = "goexit"
)

func (c *Crash) Error() string { return fmt.Sprintf("%s: %v", c.Kind, c.Value) }

func (c *Crash) Unwrap() error {
	err, _ := c.Value.(error)
	return err
}
