package serve

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// waitForRoom makes the loop wait until there is room for jobs. Jobs taken ahead that find no idle
// worker in time are given back.
func (k *taker) waitForRoom() loop.Next {
	k.topic.keen(true)
	if k.topic.expectRoom() {
		return loop.Again
	}
	patience := k.topic.patience()
	k.patience = time.Now().Add(patience)
	return loop.RestFor(patience)
}

// stillWaits reports whether the loop still waits for room, and how long.
func (k *taker) stillWaits() (wait loop.Next, waits bool) {
	t := k.topic
	if !t.waitsForRoom() {
		k.patience = time.Time{}
		return loop.Next{}, false
	}
	switch left := time.Until(k.patience); {
	case k.patience.IsZero():
		return loop.Woken, true
	case left > 0:
		return loop.RestFor(left), true
	}
	k.patience = time.Time{}
	t.GiveBack(errSlow)
	return loop.Woken, true
}

// errSlow is the reason why a job taken ahead is given back.
var errSlow = errors.New("no slot became free in time")

// waitForJobs makes the loop wait until ready is not empty: until the server is rung, or until a
// blocking pop returns.
func (k *taker) waitForJobs(ctx context.Context) loop.Next {
	t := k.topic
	if k.name != "" { // if it is not among those that wait, the watch finds that out
		return loop.Woken
	}
	if t.taking.wait.popping.Swap(true) {
		return loop.Woken
	}
	ctx = loop.Signed(ctx, &t.taking.wait.sign) // not the taker's, which has other things to do meanwhile
	popped := func(err error) {
		if err != nil {
			loop.Sleep(ctx, t.taking.wait.slow.Next())
		} else {
			t.taking.wait.slow.Reset()
		}
		t.taking.wait.sign.Wait()
		t.taking.wait.popping.Store(false)
		t.Loops.take.Wake()
	}
	t.taking.wait.sign.Turn()
	contain.Launch(&t.taking.wait.pops, func() { popped(t.pop(ctx)) }, func(c *contain.Crash) {
		t.Server.loops.Crashed("wait", c)
		popped(c)
	})
	return loop.Woken
}

// A waiting is the blocking pop of a topic.
type waiting struct {
	popping atomic.Bool    // one is in flight
	pops    sync.WaitGroup // goroutines that make them
	held    atomic.Bool    // handoff may have an ID of this server that no take has seen
	sign    loop.Sign      // of that goroutine
	slow    loop.Pace
}

// pop blocks until ready is not empty or ctx is done. It moves the ID to handoff, which every take
// empties first. So the ID is not lost if this process dies between the two. One ID wakes one
// server.
func (t *Topic) pop(ctx context.Context) error {
	s := t.Server
	for {
		t.turn(turnTake)
		t.taking.wait.sign.Turn()
		// Not a child of ctx: a deadline of ctx would look like a dead connection. A stop closes
		// the connection, and cancels the call so that a cluster's client does not repeat it.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), WaitTimeout+WaitMargin)
		stopped := context.AfterFunc(ctx, cancel)
		began := time.Now()
		err := s.blocking.BLMove(call, t.Keys.Ready, t.Keys.Handoff, "LEFT", "RIGHT", WaitTimeout).Err()
		err = s.pulse.Feel(t.Keys.Ready, began, err)
		err = s.Scripts.Blame(call, err, t.Keys.Ready, t.Keys.Handoff)
		stopped()
		cancel()
		if err == nil {
			t.taking.wait.held.Store(true)
		}
		if ctx.Err() != nil {
			t.taking.wait.held.Store(true) // Redis may have moved an ID before it noticed the stop
			t.handBack(ctx, CallTimeout)
			return nil
		}
		if errors.Is(err, redis.Nil) {
			t.taking.wait.slow.Reset()
			t.trouble.note("wait", nil)
			if !t.blocks() {
				return nil
			}
			continue
		}
		t.trouble.note("wait", err)
		return err
	}
}

// handBack puts an ID that a pop of this server may have moved to handoff back into ready. There it
// wakes a server that blocks. One that stays in handoff waits for a tick, because no take of this
// server follows at once. If it is an ID of another server, the take of that server finds it too.
func (t *Topic) handBack(ctx context.Context, timeout time.Duration) {
	if !t.taking.wait.held.Swap(false) {
		return
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	_ = t.Server.Calls.LMove(call, t.Keys.Handoff, t.Keys.Ready, "RIGHT", "LEFT").Err()
}

// cleared reports whether a take has looked at what was in handoff before it. One that Redis has
// executed before returns the jobs of that time. One that is used up by keys leaves the rest alone.
func (k *taker) cleared(r script.Reply) bool {
	if r.Status() != "ok" || k.since != k.number {
		return r.Status() == "empty"
	}
	return !slices.ContainsFunc(r.List(4).Texts(), record.HasKey)
}

// notePause logs when the topic is first found paused, and when it no longer is. Partitions are
// paused with their home, which says so. Only the take loop calls it.
func (t *Topic) notePause(ctx context.Context, did afterTake, paused bool) {
	switch {
	case t.config.home != nil:
	case did == takeRest && paused && !t.taking.paused:
		t.taking.paused = true
		var who []string
		call, cancel := context.WithTimeout(ctx, CallTimeout)
		defer cancel()
		// Without the names, the log only says that the topic is paused.
		if text, err := t.Server.Calls.HGet(call, t.Keys.Meta, "pauses").Result(); err == nil {
			for _, p := range record.DecodePauses(text, t.clock.At(time.Now()).UnixMilli()) {
				who = append(who, p.By+": "+p.Reason)
			}
		}
		t.trouble.log.Info("topic paused", "by", strings.Join(who, ", "))
	case did != takeFailed && !paused && t.taking.paused:
		t.taking.paused = false
		t.trouble.log.Info("topic resumed")
	}
}
