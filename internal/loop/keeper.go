package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/contain"
)

// A keeper starts the loops of a server, and restarts a loop that a crash has ended.
type keeper struct {
	Log *slog.Logger

	mu     sync.Mutex
	logged map[string]time.Time // when a crash was last logged, by its loop and its message
	kept   map[*keptLoop]bool
}

// A keptLoop is a loop with a goroutine of its own.
type keptLoop struct {
	name string
	sign Sign
}

// crashEvery is the shortest time between two log lines about the same crash.
const crashEvery = time.Minute

// Keep calls a loop in a goroutine of its own until it returns. After a crash it calls the loop
// again after a pause, unless ctx is done. All state except the loop's own variables is preserved.
// The context of the loop has its sign.
func (k *keeper) Keep(ctx context.Context, group *sync.WaitGroup, name string, loop func(ctx context.Context)) {
	one := &keptLoop{name: name}
	one.sign.Turn()
	ctx = Signed(ctx, &one.sign)
	k.mu.Lock()
	if k.kept == nil {
		k.kept = make(map[*keptLoop]bool)
	}
	k.kept[one] = true
	k.mu.Unlock()
	var slow Pace
	var start func(wait time.Duration)
	start = func(wait time.Duration) {
		began := time.Now()
		contain.Launch(group, func() {
			if wait == 0 || Sleep(ctx, wait) {
				loop(ctx)
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.kept, one)
		}, func(c *contain.Crash) {
			k.Crashed(name, c)
			if time.Since(began) > crashEvery {
				slow.Reset()
			}
			start(slow.Next())
		})
	}
	start(0)
}

// Crashed logs a crash.
func (k *keeper) Crashed(name string, c *contain.Crash) {
	which := name + " " + contain.Message(c)
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
		k.Log.Error(name+" crashed", "err", c, "stack", string(c.Stack))
	}
}
