package serve

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// settleStep is a step of a loop that reports outcomes to Redis. Rows that gather during one call
// go with the next. The second loop of a topic makes no call for fewer than least rows. A loop
// continues until every outcome is reported. Only the end of ctx, after the drain, makes it give
// up. Then the leases run out and the jobs run again.
func (t *Topic) settleStep(ctx context.Context, k *settler, least int) loop.Next {
	if k.number == "" {
		clear(k.list) // do not retain settled jobs
		t.Mu.Lock()
		k.list = t.Outcomes.Gather(k.list[:0], least)
		k.flying = len(k.list)
		t.ended.settling += k.flying
		t.Mu.Unlock()
		switch {
		case len(k.list) > 0:
			k.number = k.series.Next()
		case ctx.Err() != nil:
			return loop.Over
		case t.unpark(ctx) != nil:
			return loop.PauseFor(k.slow.Next())
		default:
			return loop.Woken
		}
	}
	t.noteLast(ctx, k.list)
	doubt := k.doubt
	k.doubt = true // even if the call ends this goroutine
	err := t.settle(ctx, k)
	if err == nil {
		k.slow.Reset()
		k.number, k.doubt = "", false
		return loop.Again
	}
	// If the call was not executed, other rows need not wait for it. If a repeated call was not
	// executed, the call before it may have been.
	k.doubt = !script.Certain(err) || doubt && script.Away(err)
	if stopped := ctx.Err() != nil; stopped || !k.doubt {
		t.Mu.Lock()
		t.Outcomes.Failed(k.list)
		t.landLocked(k)
		t.Mu.Unlock()
		k.number, k.doubt = "", false
		if stopped {
			return loop.Over
		}
	}
	return loop.PauseFor(k.slow.Next())
}

// noteEnds remembers that the handlers of these runs have returned, but for those that are given
// back while they run. letters say which jobs were not theirs any more: the message about that may
// have been lost.
func (t *Topic) noteEnds(list []settle.Row, letters string) {
	if settle.HandsOver(list) || slices.ContainsFunc(list, func(r settle.Row) bool { return r.Run.Options.Flow != nil }) {
		t.wakeRelay() // their scripts have posted parcels
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for i, r := range list {
		if r.Runs {
			if r.Run.GivenBack = true; r.Run.Over {
				t.noteStragglerLocked(r.Run)
			}
			continue // else endLocked notes it
		}
		if i < len(letters) && letters[i] != script.LetterOurs {
			t.noteStragglerLocked(r.Run)
		}
		t.noteEndLocked(r.Run)
	}
}

// A settler is the state of such a loop: the call that is in flight or must be repeated.
type settler struct {
	series *script.Series
	number string // of the call; empty: none
	list   []settle.Row
	doubt  bool // it may have been executed
	flying int  // rows of it that nobody knows the end of
	slow   loop.Pace
}

// landLocked notes that the rows of a call are no longer in flight. It can be called again: a hook
// can end the goroutine of the loop, and then the call is repeated.
func (t *Topic) landLocked(k *settler) {
	t.ended.settling -= k.flying
	k.flying = 0
}

// leave queues the rows again that a call has left for another one, and returns the others with
// their letters.
func (t *Topic) leave(list []settle.Row, letters string) (rest []settle.Row, ours string) {
	if !strings.ContainsAny(letters, string([]byte{script.LetterNext, script.LetterHeir})) {
		return list, letters
	}
	var left []settle.Row
	said := make([]byte, 0, len(letters))
	for i, r := range list {
		switch letter := letters[i]; letter {
		case script.LetterNext:
			left = append(left, r.Left())
			continue
		case script.LetterHeir:
			r, said = r.Followed(), append(said, script.LetterOurs)
		default:
			said = append(said, letter)
		}
		rest = append(rest, r)
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for _, r := range left {
		r.Run.Settling = false
	}
	if len(left) > 0 {
		t.Outcomes.PutBack(left)
	}
	return rest, string(said)
}

// settle makes the call of a loop to a settling script. The outcomes are final if it returns nil.
func (t *Topic) settle(ctx context.Context, k *settler) error {
	series, number, list := k.series.ID, k.number, k.list
	v := list[0].Verb
	args := make([]any, 0, 8+3*len(list))
	args = v.Open(args, t.Keys, number, list)
	t.Mu.Lock()
	args = settle.AppendRows(args, list, t.Server.Config.ID)
	t.Mu.Unlock()

	reply, err := t.exec(ctx, topicCall{script: settle.ScriptOf(list), jobs: len(list), receipt: t.Keys.Receipt(series)}, args...)

	letters, ended, told := t.examine(ctx, reply.Text(2)), false, false
	if err == nil {
		list, letters = t.leave(list, letters)
		t.noteEnds(list, letters)
		// before the jobs are dropped, after which the server can end
		_ = t.unpark(ctx)
		told = t.passPlaces(ctx)
	}
	t.Mu.Lock()
	if err == nil {
		t.landLocked(k)
	}
	for i := range list {
		r := list[i].Run
		r.Settling = false
		if err != nil {
			continue
		}
		if i < len(letters) && letters[i] != script.LetterOurs {
			if r.Lost == nil {
				r.Lost = r.Why(letters[i], time.Now())
			}
			list[i].Lost = r.Lost
		}
		t.countLocked(&list[i])
		t.owned.Drop(r)
		ended = r.Options.Scheduled && t.ended.schedules.Note(r.ID) || ended
	}
	t.Mu.Unlock()
	if err != nil {
		return err
	}
	soon := false
	for _, r := range list {
		soon = soon || r.Delay < t.Server.Config.Tick
	}
	if !told {
		t.passPlaces(ctx) // the stop may have begun meanwhile
	}
	t.placeFreed()
	t.outside(t.Loops.settle, func() { t.reportAll(list, loop.SignOf(ctx)) })
	if ended { // a slot can wait for one of these runs, put there by another server
		t.wakeForEnded()
	}
	if v.Delays() && soon { // the timer may sleep beyond a retry
		t.wake()
	}
	return nil
}
