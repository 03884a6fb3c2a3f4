package outbox

import (
	"fmt"
	"strings"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
)

// replaces reports whether the row of an enqueue has a letter. A longest and a window can follow
// it.
func (s *stored) replaces(which commit.Replacing) bool {
	return strings.HasPrefix(s.Replace, string(which))
}

// decides reports whether the state of a job with the ID decides what becomes of the row of an
// enqueue. So it is not kept beyond a horizon.
func (s *stored) decides() bool {
	return s.Kind == commit.RowEnqueue &&
		(s.replaces(commit.ReplaceWaiting) || s.replaces(commit.ReplaceLatest) || s.replaces(commit.ReplaceDebounce))
}

// needs reports whether a call needs to know more of the later row of its job than that there is
// one.
func (s *stored) needs() bool {
	return s.Kind == commit.RowReschedule || s.Kind == commit.RowEnqueue && s.replaces(commit.ReplaceLatest)
}

// meetTwin refuses a row whose ID is that of a later row, or drops it.
func (s *sieve) meetTwin(r *stored, drop bool) {
	if drop {
		s.gone = append(s.gone, *r)
		return
	}
	s.refuse(r, &delayq.DuplicateError{Topic: r.Topic, ID: r.ID, State: delayq.StateScheduled})
}

// makes reports whether the row makes a job: its own, or the last step of a flow.
func (s *stored) makes() bool { return s.Kind == commit.RowEnqueue || s.Kind == commit.RowFlow }

// meet does to the later row of a job what an enqueue does to a scheduled job, and reports whether
// the enqueue has to be sent.
func (s *sieve) meet(r, far *stored) (left bool) {
	if !r.replaces(commit.ReplaceLatest) {
		s.drop(name{r.Topic, r.ID})
		return true
	}
	if err := far.take(r); err != nil {
		s.refuse(r, err)
		return false
	}
	s.changed[far] = true
	s.gone = append(s.gone, *r)
	return false
}

// take gives a row the record of another one. Its due time stays. If the job would expire by then,
// or if its record is damaged, the error is ErrInvalid.
func (s *stored) take(r *stored) error {
	job, err := record.Decode(r.Record)
	if err != nil {
		return fmt.Errorf("%w: job %q: %w", ErrInvalid, r.ID, err)
	}
	due := s.due()
	if expires := job.Options.Expires(r.made); expires > 0 && due >= expires {
		return fmt.Errorf("%w: job %q expires before it is due", ErrInvalid, r.ID)
	}
	job.Options.DueAt, job.Options.DueIn = due, 0
	if job.Options.ExpireIn > 0 { // it counts from the call
		job.Options.ExpireIn += max(0, r.made-s.made)
	}
	var nonce record.Nonce
	copy(nonce[:], job.Nonce)
	head, tail, err := record.Encode(nonce, &job.Options, job.Payload)
	if err != nil {
		return fmt.Errorf("%w: job %q: %w", ErrInvalid, r.ID, err)
	}
	s.DueAt, s.DueIn, s.Record = due, 0, record.Join(head, 0, tail)
	s.size = int64(len(s.Record))
	return nil
}
