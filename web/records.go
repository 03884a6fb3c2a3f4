package web

import (
	"cmp"
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq"
)

// A jobRecord is a job in JSON.
type jobRecord struct {
	Topic    string `json:"topic"`
	ID       string `json:"id"`
	IDBase64 string `json:"id_base64,omitempty"` // if the ID is not UTF-8
	jobKey
	Priority    *float64          `json:"priority_seconds,omitempty"` // of a job with a key; negative: it goes behind
	State       delayq.State      `json:"state"`
	DueReason   delayq.DueReason  `json:"due_reason,omitempty"`
	BurstBegan  time.Time         `json:"burst_began,omitzero"`
	BurstEnds   time.Time         `json:"burst_ends,omitzero"`
	EnqueuedAt  time.Time         `json:"enqueued_at,omitzero"`
	Due         time.Time         `json:"due,omitzero"`
	LeaseEnd    time.Time         `json:"lease_end,omitzero"`
	BuriedAt    time.Time         `json:"buried_at,omitzero"`
	StartedAt   time.Time         `json:"started_at,omitzero"`
	FinishedAt  time.Time         `json:"finished_at,omitzero"`
	KeptUntil   time.Time         `json:"kept_until,omitzero"`
	ExpireAt    time.Time         `json:"expire_at,omitzero"`
	Attempt     int               `json:"attempt"`
	Retries     int               `json:"retries"`      // -1: unlimited, or as the handler sets it
	RetriesLeft int               `json:"retries_left"` // of the page of a job: with what its handler sets
	Snoozes     int               `json:"snoozes,omitempty"`
	Stage       int               `json:"stage,omitempty"` // of a job with several due times, from 1
	Stages      int               `json:"stages,omitempty"`
	Plan        []stageEntry      `json:"plan,omitempty"`
	Progress    *progressEntry    `json:"progress,omitempty"`
	Steps       []string          `json:"steps,omitempty"`           // those that are over
	Backoff     []float64         `json:"backoff_seconds,omitempty"` // the first delay and the limit
	TimeoutSec  float64           `json:"timeout_seconds,omitempty"`
	Retention   float64           `json:"retention_seconds,omitempty"`
	Flow        *flowRef          `json:"flow,omitempty"`
	Schedule    string            `json:"schedule,omitempty"`
	Slot        time.Time         `json:"slot,omitzero"`
	PayloadSize int               `json:"payload_size"`
	Headers     map[string]string `json:"headers,omitempty"`
	Errors      []errorEntry      `json:"errors,omitempty"`
	Partial     bool              `json:"partial,omitempty"`
	Columns     map[string]string `json:"columns,omitempty"` // that were asked for: see filter
	Undecodable string            `json:"undecodable,omitempty"`
}

// A flowRef is the flow that a job is a step of, by its last step.
type flowRef struct {
	Topic    string `json:"topic"`
	ID       string `json:"id"`
	IDBase64 string `json:"id_base64,omitempty"` // if the ID is not UTF-8
}

// A progressEntry is how far a job has come, in JSON.
type progressEntry struct {
	Done  int64     `json:"done"`
	Total int64     `json:"total,omitempty"` // 0: unknown
	Text  string    `json:"text,omitempty"`
	At    time.Time `json:"at"`
}

// A stageEntry is one of the due times of a job in JSON.
type stageEntry struct {
	Due      time.Time        `json:"due"`
	Over     bool             `json:"over,omitempty"`
	FailedAt time.Time        `json:"failed_at,omitzero"`
	Attempt  int              `json:"attempt,omitempty"`
	Kind     delayq.ErrorKind `json:"kind,omitempty"`
	Message  string           `json:"message,omitempty"`
}

// An errorEntry is a failed attempt in JSON.
type errorEntry struct {
	Attempt     int              `json:"attempt"`
	At          time.Time        `json:"at"`
	Seconds     float64          `json:"seconds"`
	Server      string           `json:"server,omitempty"`
	Kind        delayq.ErrorKind `json:"kind"`
	Type        string           `json:"type,omitempty"`
	Message     string           `json:"message"`
	Stack       string           `json:"stack,omitempty"`
	NextDue     time.Time        `json:"next_due,omitzero"`
	TraceParent string           `json:"trace_parent,omitempty"`
}

// Took returns how long the attempt ran.
func (e errorEntry) Took() time.Duration { return time.Duration(e.Seconds * float64(time.Second)) }

// record returns a job for JSON and templates. Headers need the right to see payloads.
func record(j *delayq.JobInfo, headers bool) jobRecord {
	r := jobRecord{
		Topic: j.Topic, ID: j.ID, jobKey: jobKeyOf(j.Key), State: j.State, DueReason: j.DueReason, EnqueuedAt: utc(j.EnqueuedAt), Due: utc(j.Due),
		LeaseEnd: utc(j.LeaseEnd), BuriedAt: utc(j.BuriedAt), StartedAt: utc(j.StartedAt), FinishedAt: utc(j.FinishedAt),
		KeptUntil: utc(j.KeptUntil), ExpireAt: utc(j.ExpireAt), Attempt: j.Attempt, Retries: j.Retries, RetriesLeft: j.RetriesLeft(), Snoozes: j.Snoozes, Stage: j.Stage, Stages: j.Stages,
		TimeoutSec: j.Timeout.Seconds(), Retention: j.Retention.Seconds(), Schedule: j.Schedule, Slot: utc(j.Slot),
		PayloadSize: j.PayloadSize, Partial: j.Partial, Steps: j.Steps,
		BurstBegan: utc(j.BurstBegan), BurstEnds: utc(j.BurstEnds),
	}
	if j.Key != "" && j.Undecodable == nil {
		head := j.Priority.Seconds()
		r.Priority = &head
	}
	if f := j.Flow; f.Topic != "" {
		r.Flow = &flowRef{Topic: f.Topic, ID: f.ID}
		if !utf8.ValidString(f.ID) {
			r.Flow.IDBase64 = base64.StdEncoding.EncodeToString([]byte(f.ID))
		}
	}
	if p := j.Progress; p != nil {
		r.Progress = &progressEntry{p.Done, p.Total, p.Text, utc(p.At)}
	}
	if j.BackoffLimit > 0 {
		r.Backoff = []float64{j.BackoffFirst.Seconds(), j.BackoffLimit.Seconds()}
	}
	if !utf8.ValidString(j.ID) {
		r.IDBase64 = base64.StdEncoding.EncodeToString([]byte(j.ID))
	}
	if headers {
		r.Headers = j.Headers
	}
	if j.Undecodable != nil {
		r.Undecodable = j.Undecodable.Error()
	}
	for _, s := range j.Plan {
		r.Plan = append(r.Plan, stageEntry{utc(s.Due), s.Over, utc(s.FailedAt), s.Attempt, s.Kind, s.Message})
	}
	for _, e := range j.Errors {
		r.Errors = append(r.Errors, errorEntry{
			e.Attempt, utc(e.At), e.Duration.Seconds(), e.Server, e.Kind, e.Type, e.Message, e.Stack, utc(e.NextDue), e.TraceParent,
		})
	}
	return r
}

// NotStarted reports whether the job has never run. Then Attempt is the number of the run to come.
func (r jobRecord) NotStarted() bool {
	for _, e := range r.Errors {
		if e.Kind != delayq.KindBuried {
			return false
		}
	}
	waits := r.State == delayq.StateScheduled || r.State == delayq.StateReady || r.State == delayq.StateDead
	return waits && !r.Partial && r.Attempt <= 1 && r.Snoozes == 0
}

// LastError returns the message of the newest error.
func (r jobRecord) LastError() string {
	if len(r.Errors) == 0 {
		return ""
	}
	last := r.Errors[len(r.Errors)-1]
	return cmp.Or(last.Message, last.Type, string(last.Kind))
}

// When returns the time that goes with the state: see [delayq.Query].
func (r jobRecord) When() time.Time {
	switch r.State {
	case delayq.StateDead:
		return r.BuriedAt
	case delayq.StateDone:
		return r.FinishedAt
	}
	return r.Due
}

// index returns the time that From and To of a [delayq.Query] are about.
func (r jobRecord) index() time.Time {
	if r.State == delayq.StateDone {
		return r.KeptUntil
	}
	return r.When()
}

// utc returns a time in UTC, and the zero time as it is.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}
