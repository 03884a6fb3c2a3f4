package commit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// An Op is one call of a client about one job, an operation on its way to Redis.
type Op struct {
	Kind      *Kind
	Topic, ID string
	Fresh     *Fresh // of an enqueue
	Move      *Move  // of a reschedule
	Known     string // how the caller knows the job, as lua/prelude/expect.lua reads it; empty: any job
	Reads     int    // bytes of the record that the script reads for that, at most
	When      string // of a revive: due time for the script; empty: now
	Reason    string // of a bury
	Tomb      *Tomb  // of a cancel; nil: it leaves tombs alone
	Flow      *FlowPart

	done  chan struct{} // receives one value when the operation is settled; nil: nobody waits
	sent  bool          // guarded by Group.mu: it is too late to take it out of pending
	moved bool          // of a start: its steps say that the last one is in a partition
	left  bool          // guarded by Group.mu: its caller does not wait any more

	settled     bool     // the rest is the outcome, for the caller once its call has returned
	Err         error    // why Redis has not said how the call has ended
	Now         int64    // Redis's clock when it was carried out
	EnqueuedAt  int64    // of an enqueue: the time in the record, Unix ms
	Letter      byte     // what the script says of the job
	Since       int64    // of a job that is dead and has the ID of an enqueue: when it was buried; of a closed ID: when it is free; Unix ms
	Full        bool     // of a cancel: the ID is not closed, because the topic has too many tombs
	Row         []string // of a get: the columns of the job
	Due         int64    // of an enqueue that a job can take over: when the job is due, Unix ms; 0: not known
	Was         int64    // of a reschedule: when the scheduled job was due, Unix ms; 0: not known
	Unconfirmed error    // of an enqueue: too few replicas have confirmed it
	At          string   // the topic or partition that has answered
}

// Fresh is the job that an enqueue stores.
type Fresh struct {
	Nonce   record.Nonce
	Draft   record.Draft
	When    string // due time for the script, and what the job replaces
	Opts    *record.Options
	Replace Replacing
	Unique  bool // no other job has the ID, because it was generated

	stamp int64 // the time of enqueueing in the draft, if it is sent whole; else 0
}

// plain reports whether a script for a lone job can store the job. An ID that the caller has named
// may be that of another job, about which only lua/enqueue.lua can say something.
func (f *Fresh) plain() bool {
	return f.Unique && f.Replace == ReplaceNone && f.Opts.Key == "" && !strings.ContainsAny(f.When, " !")
}

// DueTime returns when the job of an enqueue is due, Unix ms.
func (o *Op) DueTime() int64 {
	if o.Due > 0 {
		return o.Due
	}
	return o.Fresh.Opts.Due(o.EnqueuedAt)
}

// A Tomb closes an ID.
type Tomb struct {
	For  int64 // ms; 0: the ID is free
	Most int64 // tombs that the topic may have; 0, with For: the ID is free only if a job had it
}

// Word returns what follows the due time of a job that closes its ID, or how the caller of a cancel
// knows the job.
func (t *Tomb) Word() string {
	return "!" + strconv.FormatInt(t.For, 10) + "/" + strconv.FormatInt(t.Most, 10)
}

// known returns how the caller of a cancel knows the job, as the script reads it.
func (o *Op) known() any {
	if o.Tomb == nil {
		return &o.Known
	}
	return o.Known + o.Tomb.Word()
}

// A Move is what a reschedule changes.
type Move struct {
	When  string // due time for the script
	Due   record.Options
	Known record.Job // of a job that can expire: what the script has returned
	asked int        // how often it has returned that
}

// Place returns where an error of the operation occurred.
func (o *Op) Place() script.Place {
	return script.Place{Call: o.Kind.Name, Topic: o.Topic, Job: o.ID}
}

// again makes an operation one that is not settled, for another place. What a closed place has said
// of its tombs stays: it closes the ID too, for the keys that stay there.
func (o *Op) again() {
	full := o.Full && o.elsewhere()
	o.sent, o.left, o.settled = false, false, false
	o.Err, o.Letter, o.Since, o.Full, o.Row, o.Due, o.Was, o.Unconfirmed = nil, 0, 0, full, nil, 0, 0, nil
}

// Settled reports whether the outcome is known.
func (o *Op) Settled() bool { return o.settled }

// Settle ends an operation with an error.
func (o *Op) Settle(err error) { o.Err, o.settled = o.Place().At(err), true }

// answer ends an operation with what the script says of its job.
func (o *Op) answer(now int64, letter byte) {
	o.Now, o.Letter, o.settled = now, letter, true
}

// unsure returns the error of an operation that was sent and that Redis has not answered.
func (o *Op) unsure(cause error) error {
	if o.Kind.reads {
		return cause
	}
	return fmt.Errorf("%w: %w", script.ErrUnknown, cause)
}

// size returns how many bytes count towards those of a call.
func (o *Op) size() int {
	if o.Fresh == nil {
		return len(o.Reason) + o.Reads
	}
	return len(o.Fresh.Draft) + o.Reads
}
