package serve

import (
	"context"
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

// A keyEnd is a job with a key that is no longer running.
type keyEnd struct{ Key, ID string }

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
	if r.Options.Key != "" && t.Workers.KeysLimited && len(t.ended.keys) < mostEnds {
		t.ended.keys = append(t.ended.keys, keyEnd{r.Options.Key, r.ID})
	}
}

// unpark gives the keys of ended jobs their turns. If a call fails, their jobs are kept for the
// next one, and meanwhile the ends of leases bound how long the keys wait.
func (t *Topic) unpark(ctx context.Context) error {
	for {
		t.Mu.Lock()
		some := t.ended.keys[:min(len(t.ended.keys), unparkLimit)]
		t.ended.keys = slices.Clip(t.ended.keys[len(some):])
		t.Mu.Unlock()
		if len(some) == 0 {
			return nil
		}
		args := make([]any, 0, 3+2*len(some))
		args = append(args, script.ControlChannel(t.Keys.Prefix()), t.Keys.Topic, unparkKeys)
		for _, e := range some {
			args = append(args, e.Key, e.ID)
		}
		if _, err := t.exec(ctx, topicCall{script: unparking.script, jobs: len(some)}, args...); err != nil {
			t.Mu.Lock()
			t.ended.keys = slices.Concat(some, t.ended.keys) // a call of another loop may use the rest of the array
			t.Mu.Unlock()
			return err
		}
	}
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
