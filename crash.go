package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// newCrash returns a crash for the value of a panic. A nil value means runtime.Goexit.
func newCrash(value any) *crash {
	if value == nil { // recover returns an error for panic(nil)
		return &crash{kind: crashGoexit, value: "runtime.Goexit was called", stack: debug.Stack()}
	}
	return &crash{kind: crashPanic, value: value, stack: debug.Stack()}
}

// launch calls f in a goroutine of its own, which belongs to the group if that is not nil. If f
// panics or calls runtime.Goexit, launch calls crashed in that goroutine with the reason. Neither
// propagates.
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

// apart calls f in a goroutine of its own and waits for it. The error can be a crash.
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

// alone is apart for a function that returns only an error.
func alone(f func() error) error {
	_, err := apart(func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// A keeper starts the loops of a server, and restarts a loop that a crash has ended.
type keeper struct {
	log *slog.Logger

	mu     sync.Mutex
	logged map[string]time.Time // when a crash was last logged, by its loop and its message
	kept   map[*keptLoop]bool
}

// A keptLoop is a loop with a goroutine of its own.
type keptLoop struct {
	name string
	sign sign
}

// crashEvery is the shortest time between two log lines about the same crash.
const crashEvery = time.Minute

// keep calls a loop in a goroutine of its own until it returns. After a crash it calls the loop
// again after a pause, unless ctx is done. All state except the loop's own variables is preserved.
// The context of the loop has its sign.
func (k *keeper) keep(ctx context.Context, group *sync.WaitGroup, name string, loop func(ctx context.Context)) {
	one := &keptLoop{name: name}
	one.sign.turn()
	ctx = signed(ctx, &one.sign)
	k.mu.Lock()
	if k.kept == nil {
		k.kept = make(map[*keptLoop]bool)
	}
	k.kept[one] = true
	k.mu.Unlock()
	var slow retryPace
	var start func(wait time.Duration)
	start = func(wait time.Duration) {
		began := time.Now()
		launch(group, func() {
			if wait == 0 || sleep(ctx, wait) {
				loop(ctx)
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.kept, one)
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
		k.log.Error(name+" crashed", "err", c, "stack", string(c.stack))
	}
}

// A crash is a panic or a runtime.Goexit.
type crash struct {
	kind  string // crashPanic or crashGoexit
	value any
	stack []byte
}

// The kinds of a crash.
const (
	crashPanic  = "panic"
	crashGoexit = "goexit"
)

func (c *crash) Error() string { return fmt.Sprintf("%s: %v", c.kind, c.value) }

func (c *crash) Unwrap() error {
	err, _ := c.value.(error)
	return err
}
