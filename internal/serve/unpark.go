package serve

import (
	"context"
	"errors"
	"slices"

	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

const (
	// unparkLimit is the most jobs that one call of the unpark script names, and unparkKeys the
	// most keys that a call without jobs looks at.
	unparkLimit = 400
	unparkKeys  = 1000

	// mostEnds is the most ended jobs that a topic remembers for later calls. The keys of others
	// get their turns when leases end.
	mostEnds = 10_000
)

// unparking is the call of both servers and clients.
var unparking = topicCall{script: script.Unpark}

// A runEnd is the end of a run that somebody may wait for.
type runEnd struct {
	key, id string // of the job; it can have no key
	// When the lease ended, as [record.Fence] writes it, if the job was cancelled or replaced while
	// the handler ran; else empty.
	fence string
}

// setKeysLimited notes whether limits of keys are in force, by the reply to a take. Only a reply
// with jobs says for sure that none are. If the take has parked keys, the timer has to know when
// they get turns.
func (t *Topic) setKeysLimited(limited int64, sure bool) {
	t.Mu.Lock()
	t.Workers.KeysLimited = limited == 1 || limited == 2 || !sure && t.Workers.KeysLimited
	t.Mu.Unlock()
	if limited >= 2 {
		t.wake()
	}
}

// noteEndLocked remembers that a job with a key is no longer running, if limits of keys are in
// force. Its key may wait for that.
func (t *Topic) noteEndLocked(r *run.Run) {
	if r.Options.Key != "" && t.Workers.KeysLimited {
		t.addEndLocked(runEnd{key: r.Options.Key, id: r.ID})
	}
}

// noteStragglerLocked remembers that the handler of a job that is no longer this server's has
// returned, or will not be called. If the job was cancelled or replaced, it keeps its places in the
// limits of the topic and of its key until Redis knows that. The limits can be newer than what this
// server knows of them.
func (t *Topic) noteStragglerLocked(r *run.Run) {
	t.addEndLocked(runEnd{r.Options.Key, r.ID, r.Fence.String()})
}

func (t *Topic) addEndLocked(e runEnd) {
	if len(t.ended.runs) < mostEnds {
		t.ended.runs = append(t.ended.runs, e)
	}
}

// lostLocked is Holdings.Lost. The place of a job that was cancelled or replaced is free when its
// handler has returned. Any other job has left its place.
func (t *Topic) lostLocked(r *run.Run) {
	switch {
	case r.Start.IsZero():
		t.noteStragglerLocked(r)
	case !errors.Is(r.Lost, run.ErrCancelled) && !errors.Is(r.Lost, run.ErrReplaced):
		t.noteEndLocked(r)
	}
	t.tellEndsLocked()
}

// tellEndsLocked makes a loop report the ends of runs, if there are any.
func (t *Topic) tellEndsLocked() {
	if len(t.ended.runs) > 0 {
		t.Loops.settle.Wake()
	}
}

// unpark gives the keys of ended runs their turns, and frees the places of stragglers, which are
// handlers of cancelled or replaced jobs. If a call fails, the ends are kept for the next one, and
// meanwhile the ends of leases bound how long the keys wait.
func (t *Topic) unpark(ctx context.Context) error {
	for {
		t.Mu.Lock()
		some := t.ended.runs[:min(len(t.ended.runs), unparkLimit)]
		t.ended.runs = slices.Clip(t.ended.runs[len(some):])
		t.ended.telling += len(some)
		t.Mu.Unlock()
		if len(some) == 0 {
			return nil
		}
		args := make([]any, 0, 3+3*len(some))
		args = append(args, script.ControlChannel(t.Keys.Prefix()), t.Keys.Topic, unparkKeys)
		for _, e := range some {
			args = append(args, e.key, e.id, e.fence)
		}
		_, err := t.exec(ctx, topicCall{script: unparking.script, jobs: len(some)}, args...)
		t.Mu.Lock()
		if t.ended.telling -= len(some); err != nil {
			t.ended.runs = slices.Concat(some, t.ended.runs) // a call of another loop may use the rest of the array
		}
		t.closeSettledLocked()
		t.Mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// A settledWait is somebody who waits for a topic to settle.
type settledWait struct {
	told bool          // Redis must also know of all runs that have ended
	over chan struct{} // closed then
}

// settled returns a channel that is closed once this server owns no job of the topic, and with told
// once Redis also knows of all runs that have ended.
func (t *Topic) settled(told bool) <-chan struct{} {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	w := settledWait{told, make(chan struct{})}
	t.ended.settled = append(t.ended.settled, w)
	t.closeSettledLocked()
	return w.over
}

func (t *Topic) closeSettledLocked() {
	if len(t.owned.Runs) > 0 {
		return
	}
	owed := len(t.ended.runs) + t.ended.telling + len(t.Outcomes.Rows) + t.ended.settling
	t.ended.settled = slices.DeleteFunc(t.ended.settled, func(w settledWait) bool {
		over := !w.told || owed == 0
		if over {
			close(w.over)
		}
		return over
	})
}

// UnparkAll gives a turn to every key of a topic that is parked by its limits. Takes park
// them again if the limits are still reached.
func UnparkAll(ctx context.Context, c script.Caller, k *script.Keys) error {
	for rest, first := int64(1), true; rest > 0; rest, first = rest-1, false {
		r, err := c.Exec(ctx, unparking.script, k, "", 0, script.ControlChannel(k.Prefix()), k.Topic, unparkKeys)
		if err != nil {
			return err
		}
		// Takes park keys meanwhile. So what the first call leaves bounds the number of calls.
		if left := (r.Number(2)+unparkKeys-1)/unparkKeys + 1; first || left < rest {
			rest = left
		}
	}
	return nil
}
