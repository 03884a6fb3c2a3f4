package delayq

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A Job is a payload with an ID that is unique in its topic, as Enqueue made it and as a handler gets it. All times are
// Redis's. A Job can be copied; a copy has the Fence of the same run.
type Job struct {
	Topic   string
	ID      string
	Payload []byte            // nil and empty are the same
	Headers map[string]string // nil if there are none

	// Attempt is the how-many-th run this is, from 1. Runs that a crash cut off count, snoozed ones do not. It never
	// falls, also not by Revive: see RetriesLeft.
	Attempt int
	// Retries is the number of retries the job may have after its first failure; [Unlimited] is -1. In a handler the
	// handler's Defaults count; elsewhere -1 may also be a job that leaves it to them. Revive and Snooze give all
	// retries anew.
	Retries int
	// Snoozes is how often the job has been snoozed since its Enqueue.
	Snoozes int

	EnqueuedAt time.Time // when Redis stored the job
	Due        time.Time // its present due time: moved by retries, Snooze and Reschedule
	Started    time.Time // when this run was started; zero outside of a handler

	// Schedule is the name of the schedule that the job is of, and Slot the time it was fired for: by the schedule's rhythm, or, after Trigger, by that
	// call. Empty and zero for all other jobs.
	Schedule string
	Slot     time.Time

	nonce string
	spent int           // finished attempts that do not count against Retries any more
	fence *atomic.Int64 // of the run, which a copy of the job shares; nil: there is no lease
}

// Nonce is the job's incarnation: eight random bytes that change with every accepted Enqueue of the ID. Two jobs of the same ID
// that follow each other have different ones, two attempts of one job the same.
func (j *Job) Nonce() string { return j.nonce }

// Fence is the end of the lease, in Unix µs. It grows with every extension and every new lease of this job:
// a database that remembers the highest fence it has seen of a job can refuse the writes of a worker that
// lost its lease without knowing, and refuses no worker that has one.
//
// That is so as long as all servers of the topic have the same [Lease], Redis's clock is not set back, also
// not by a failover to a machine whose clock is behind, and the clocks of Redis and of the servers go at
// the same rate to within a thousandth. It does not depend on how long a call is on its way. Read it when
// you write, because it grows while the handler runs.
func (j *Job) Fence() int64 {
	if j.fence == nil {
		return 0
	}
	return j.fence.Load()
}

// RetriesLeft is the number of retries that the job may still have if this run fails: -1 if they are unlimited, 0 on the
// last attempt. After Revive or Snooze it is Retries again. Of a [JobInfo] the run is that of its Attempt.
func (j *Job) RetriesLeft() int {
	if j.Retries < 0 {
		return Unlimited
	}
	return max(0, j.Retries-max(0, j.Attempt-1-j.spent))
}

// LastAttempt reports whether a failure of this run buries the job. It is false if retries are unlimited.
func (j *Job) LastAttempt() bool { return j.RetriesLeft() == 0 }

// scheduledFor fills in what the ID of a schedule's job tells.
func (j *Job) scheduledFor(id string) {
	if name, slot, _, ok := slotOf(id); ok {
		j.Schedule, j.Slot = name, msTime(slot)
	}
}

// Lateness is the time from Due to Started by Redis's clock: never below zero.
func (j *Job) Lateness() time.Duration { return j.Started.Sub(j.Due) }

// A NewJob is a job for EnqueueBatch.
type NewJob struct {
	Topic   string
	ID      string // empty: one is generated
	Payload []byte
	Options []JobOption
}

// A Result is what became of one job of an EnqueueBatch: Err is nil if it is stored.
type Result struct {
	Job *Job // nil if Err is not nil, except for ErrNotReplicated and ErrUnknownOutcome
	Err error
}

// A State is where a job stands.
type State string

// The states of a job. A job that is backing off or snoozed is scheduled.
const (
	StateScheduled State = "scheduled" // waits for its due time
	StateReady     State = "ready"     // is due and waits for a free worker
	StateRunning   State = "running"   // is leased to a worker
	StateDead      State = "dead"      // is buried: will not run unless revived
	StateDone      State = "done"      // has ended well and is kept for its Retention
)

// JobInfo is what Get and List tell of a job.
type JobInfo struct {
	Job                        // Attempt is that of the present or next run; Started is zero
	State       State          //
	Moved       string         // why Due is not the due time of the Enqueue: retry, snooze, reschedule, revive, or empty
	LeaseEnd    time.Time      // of a running job
	BuriedAt    time.Time      // of a dead job
	FinishedAt  time.Time      // of a done job
	KeptUntil   time.Time      // of a done job
	PayloadSize int            // of the payload, which [Client.List] reads only [WithPayload]
	Errors      []AttemptError // the first and the newest ten, oldest first

	// What the job does not say is shown as it holds without Defaults of its handler, of which the client knows
	// nothing: these go before it. Options has only what the job says. Retries is -1 then.
	BackoffFirst, BackoffLimit time.Duration // 2 s and 4096 s if the job does not say
	Timeout                    time.Duration // 0: none, or the job does not say
	ExpireAt                   time.Time     // zero: none
	Retention                  time.Duration // 0: none, or the job does not say

	// Undecodable is set if the record cannot be read: by this release (it is a newer one's) or at all. Raw then holds
	// it, or the first 48 KiB of it if [Client.List] was to tell no payloads.
	Undecodable error
	Raw         []byte

	options jobOptions // as the record has them
}

// Options gives the options that make the same job again, with [Client.Enqueue] and the payload of info: in another
// topic, for example. It is due at info.Due, expires at info.ExpireAt, and has the same retries, backoff, timeout,
// retention and headers. Its attempts and errors, and of which schedule it is, do not go with it.
//
// Enqueue refuses the options with ErrInvalid if info has no payload because [Client.List] was not asked for it, or if
// the record could not be read.
func (info *JobInfo) Options() []JobOption {
	switch {
	case info.Undecodable != nil:
		return []JobOption{refusedOption("info.Options: the record of the job could not be read")}
	case info.Payload == nil && info.PayloadSize > 0:
		return []JobOption{refusedOption("info.Options: the payload was not read; Get reads it, and List WithPayload")}
	}
	o := info.options
	o.dueAt, o.dueIn = info.Due.UnixMilli(), 0
	if !info.ExpireAt.IsZero() {
		o.expireAt, o.expireIn = info.ExpireAt.UnixMilli(), 0
	}
	return o.options()
}

// An AttemptError is what is kept of one failed attempt.
type AttemptError struct {
	Attempt int
	At      time.Time
	Ran     time.Duration // how long the handler ran; 0 if that is not known
	Server  string        // ID of the server, empty if that is not known
	Kind    ErrorKind
	Type    string    // Go type of the error or of the panic's value
	Message string    // at most 1 KiB
	Stack   string    // of a panic or a goexit, at most 4 KiB
	NextDue time.Time // when the retry is due; zero if there is none
	Trace   string    // the header traceparent of the job
}

const (
	maxMessageLen = 1 << 10
	maxStackLen   = 4 << 10
	mostErrors    = 11 // the first and the newest ten
)

// errorEntry is an AttemptError as the errors hash holds it. promote.lua writes entries of attempt, at and kind.
type errorEntry struct {
	Attempt int       `json:"attempt"`
	At      int64     `json:"at"`
	Ran     int64     `json:"ran,omitempty"`
	Server  string    `json:"server,omitempty"`
	Kind    ErrorKind `json:"kind"`
	Type    string    `json:"type,omitempty"`
	Message string    `json:"message,omitempty"`
	Stack   string    `json:"stack,omitempty"`
	NextDue int64     `json:"next,omitempty"`
	Trace   string    `json:"trace,omitempty"`
}

func (e *AttemptError) encode() string {
	entry := errorEntry{
		Attempt: e.Attempt, At: e.At.UnixMilli(), Ran: e.Ran.Milliseconds(), Server: e.Server, Kind: e.Kind, Type: e.Type,
		Message: clip(e.Message, maxMessageLen), Stack: clip(e.Stack, maxStackLen), Trace: clip(e.Trace, maxTopicLen),
	}
	if !e.NextDue.IsZero() {
		entry.NextDue = e.NextDue.UnixMilli()
	}
	raw, err := json.Marshal(entry)
	if err != nil { // cannot be: strings and numbers only
		return fmt.Sprintf(`{"attempt":%d,"at":%d,"kind":%q}`, entry.Attempt, entry.At, entry.Kind)
	}
	return string(raw)
}

// clip cuts s to at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "…"
}

// decodeErrors reads what the errors hash holds of a job: netstrings of entries. What cannot be read is left out.
func decodeErrors(log string) []AttemptError {
	var list []AttemptError
	for log != "" {
		raw, rest, ok := cutNetstring(log)
		if !ok {
			break
		}
		log = rest
		var e errorEntry
		if json.Unmarshal([]byte(raw), &e) != nil {
			continue
		}
		a := AttemptError{
			Attempt: e.Attempt, At: msTime(e.At), Ran: time.Duration(e.Ran) * time.Millisecond, Server: e.Server, Kind: e.Kind,
			Type: e.Type, Message: e.Message, Stack: e.Stack, Trace: e.Trace,
		}
		if e.NextDue != 0 {
			a.NextDue = msTime(e.NextDue)
		}
		list = append(list, a)
	}
	return list
}

// netstring and cutNetstring write and read the format <length>:<bytes>, without the comma of D. J. Bernstein's original.
func netstring(s string) string { return strconv.Itoa(len(s)) + ":" + s }

func cutNetstring(s string) (first, rest string, ok bool) {
	size, after, found := strings.Cut(s, ":")
	n, err := strconv.Atoi(size)
	if !found || err != nil || n < 0 || n > len(after) {
		return "", s, false
	}
	return after[:n], after[n:], true
}
