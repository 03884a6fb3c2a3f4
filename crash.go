package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// newCrash is what is known of a panic with this value; with nil it is a runtime.Goexit.
func newCrash(value any) *crash {
	if value == nil { // recover makes an error of a panic(nil)
		return &crash{kind: KindGoexit, value: "runtime.Goexit was called", stack: debug.Stack()}
	}
	return &crash{kind: KindPanic, value: value, stack: debug.Stack()}
}

// launch calls f in a goroutine of its own, which belongs to the group if that is not nil. If f panics or
// calls runtime.Goexit, crashed is called there, with the reason; neither goes any further.
func launch(group *sync.WaitGroup, f func(), crashed func(*crash)) {
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
				crashed(newCrash(value))
			}
		}()
		f()
		returned = true
	}()
}

// apart calls f in a goroutine of its own and waits for it. Its error may be a crash.
func apart[T any](f func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	launch(nil, func() {
		v, err = f()
		close(done)
	}, func(c *crash) {
		err = c
		close(done)
	})
	<-done
	return v, err
}

// alone is apart for what gives only an error.
func alone(f func() error) error {
	_, err := apart(func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// A keeper starts the loops of a server, and starts them anew when something has ended them that is not
// their own.
type keeper struct {
	log *slog.Logger

	mu     sync.Mutex
	logged map[string]time.Time // when a crash was logged last, by what crashed and how
}

// crashEvery is how often the same crash is logged, at most.
const crashEvery = time.Minute

// keep calls a loop in a goroutine of its own until it returns. After a crash it is called anew, after a
// pause, unless ctx has ended. What the loop does not keep in variables of its own is as it was.
func (k *keeper) keep(ctx context.Context, group *sync.WaitGroup, name string, loop func()) {
	var slow retryPace
	var start func(wait time.Duration)
	start = func(wait time.Duration) {
		began := time.Now()
		launch(group, func() {
			if wait == 0 || sleep(ctx, wait) {
				loop()
			}
		}, func(c *crash) {
			k.crashed(name, c)
			if time.Since(began) > crashEvery {
				slow.reset()
			}
			start(slow.next())
		})
	}
	start(0)
}

// crashed logs a crash.
func (k *keeper) crashed(name string, c *crash) {
	which := name + " " + message(c)
	k.mu.Lock()
	if k.logged == nil {
		k.logged = make(map[string]time.Time)
	}
	again := !k.logged[which].IsZero() && time.Since(k.logged[which]) < crashEvery
	if !again {
		k.logged[which] = time.Now()
	}
	k.mu.Unlock()
	if !again {
		k.log.Error(name, "err", c, "stack", string(c.stack))
	}
}

// A crash is a panic or a Goexit of a handler.
type crash struct {
	kind  ErrorKind
	value any
	stack []byte
}

func (c *crash) Error() string { return fmt.Sprintf("%s: %v", c.kind, c.value) }

func (c *crash) Unwrap() error {
	err, _ := c.value.(error)
	return err
}
