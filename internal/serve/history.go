package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// The history of a topic is what happened in each of its last minutes and hours. Servers count the
// runs that end and send the numbers every HistoryEvery. These calls are apart from those that
// settle jobs. If one fails, its numbers go with a later one.
const (
	HistoryEvery = 10 * time.Second

	// HistoryPatience is how long a call without a reply is repeated. It is less than the time for
	// which its receipt is kept, so no number is added twice.
	HistoryPatience = 2 * time.Minute

	// historyLeft is the most topics without a handler any more whose numbers still wait.
	historyLeft = 100
)

// sums are the numbers of the series.
type sums [record.SeriesCount]int64

// add counts a run that has ended. A run without a handler's call has neither lateness nor run
// time.
func (s *sums) add(r *settle.Row) {
	outcome := r.Outcome()
	for i, name := range record.Outcomes {
		if name == outcome {
			s[i]++
			break
		}
	}
	if r.Run.Start.IsZero() {
		return
	}
	s[record.FirstLate+record.BucketOf(record.LatenessBounds, r.Run.Lateness)]++
	if !r.End.IsZero() {
		s[record.FirstRan+record.BucketOf(record.RunTimeBounds, r.End.Sub(r.Run.Start))]++
	}
}

// A chronicle counts the runs of a topic that have ended. Topic.Mu guards its first two
// fields. Only the history loop uses the others.
type chronicle struct {
	sums    sums // not sent yet
	changed bool

	series *script.Series
	number string    // of the call that must be repeated; empty: none
	sent   sums      // by that call
	since  time.Time // when it was first sent
	doubt  bool      // it may have been executed
}

// countLocked counts a run that has ended.
func (t *Topic) countLocked(r *settle.Row) {
	if !t.Server.Config.History {
		return
	}
	t.History.sums.add(r)
	t.History.changed = true
}

// historyLoop sends what was counted. It ends with ctx, or after a last call when the last job is
// settled.
func (s *Server) historyLoop(ctx context.Context) {
	asked := trouble{name: "history", log: s.Log, outage: s.outage}
	var slow loop.Pace
	var gone bool // Redis did not answer the last call
	for last := false; !last; {
		// not in step with other servers
		rest := HistoryEvery + rand.N(s.Config.Tick).Truncate(time.Millisecond)
		if gone { // an outage lasts until each failed call has been answered
			rest = slow.Next()
		}
		loop.SignOf(ctx).Rest(rest)
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-s.ending.settled:
			last = true
		case <-ctx.Done():
		}
		timer.Stop()
		loop.SignOf(ctx).Turn()
		if ctx.Err() != nil {
			return
		}
		calls, err := s.sendHistory(ctx)
		if calls > 0 && ctx.Err() == nil {
			asked.note("history", err)
		}
		if gone = err != nil && script.Away(err); !gone {
			slow.Reset()
		}
	}
}

// sendHistory sends what was counted in all topics, with one call for each that has changed. It
// returns the number of calls and the first error. It stops if Redis is away.
func (s *Server) sendHistory(ctx context.Context) (calls int, err error) {
	topics := s.Topics.all()
	gone := s.takeLeft()
	for i, t := range append(gone, topics...) {
		sent, failed := t.sendHistory(ctx)
		if sent {
			calls++
		}
		if failed != nil && err == nil {
			err = failed
		}
		if i < len(gone) && failed != nil {
			s.leave(t)
		}
		if failed != nil && (script.Away(failed) || ctx.Err() != nil) {
			s.leave(gone[min(i+1, len(gone)):]...)
			return calls, err
		}
	}
	return calls, err
}

// leave keeps topics that the server no longer serves until their numbers are sent.
func (s *Server) leave(gone ...*Topic) {
	if !s.Config.History {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, gone[:min(len(gone), historyLeft-len(s.left))]...)
}

func (s *Server) takeLeft() []*Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := s.left
	s.left = nil
	return gone
}

// sendHistory is one call of the chronicle script. It reports whether there was anything to send.
func (t *Topic) sendHistory(ctx context.Context) (sent bool, err error) {
	h := &t.History
	if time.Since(h.since) > HistoryPatience {
		h.number = "" // the numbers are lost, because nobody knows whether they were added
	}
	if h.number == "" {
		t.Mu.Lock()
		changed := h.changed
		h.sent, h.sums, h.changed = h.sums, sums{}, false
		t.Mu.Unlock()
		if !changed {
			return false, nil
		}
		if h.series == nil {
			h.series = script.NewSeries()
		}
		h.number, h.doubt = h.series.Next(), false
		h.since = time.Now().Round(0) // by the wall clock, which a suspended machine does not stop
	}
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	doubt := h.doubt
	h.doubt = true // even if the call ends this goroutine
	_, err = t.Server.Scripts.Exec(call, script.Chronicle, t.Keys, t.Keys.Receipt(h.series.ID), 0, h.number, record.EncodeSums(record.SeriesNames, h.sent[:]))
	if err == nil {
		h.number = ""
		return true, nil
	}
	// If a repeated call was not executed, the call before it may have been.
	h.doubt = !script.Certain(err) || doubt && script.Away(err)
	if !h.doubt {
		t.Mu.Lock()
		for i, n := range h.sent {
			h.sums[i] += n
		}
		h.changed = true
		t.Mu.Unlock()
		h.number = ""
	}
	return true, fmt.Errorf("history: %w", err)
}
