package cli

import (
	"encoding/base64"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/record"
)

// The records of JSON. schema.json describes them, and a test holds both together. Times are in
// UTC, durations in seconds. A field without a value is left out.

// A jobRef is how records name a job.
type jobRef struct {
	Topic    string `json:"topic"`
	ID       string `json:"id"`                  // with U+FFFD for what is not UTF-8
	IDBase64 []byte `json:"id_base64,omitempty"` // only if ID is not exact
}

func refOf(topic, id string) jobRef {
	ref := jobRef{Topic: topic, ID: id}
	if !utf8.ValidString(id) {
		ref.IDBase64 = []byte(id)
	}
	return ref
}

// exact returns the ID itself.
func (r *jobRef) exact() string {
	if r.IDBase64 != nil {
		return string(r.IDBase64)
	}
	return r.ID
}

// A jobKey is the key of a job.
type jobKey struct {
	Key       string `json:"key,omitempty"`        // with U+FFFD for what is not UTF-8
	KeyBase64 []byte `json:"key_base64,omitempty"` // only if Key is not exact
}

func jobKeyOf(key string) jobKey {
	k := jobKey{Key: key}
	if !utf8.ValidString(key) {
		k.KeyBase64 = []byte(key)
	}
	return k
}

// exactKey returns the key itself.
func (k *jobKey) exactKey() string {
	if k.KeyBase64 != nil {
		return string(k.KeyBase64)
	}
	return k.Key
}

// A content is a payload and its headers. What is not UTF-8 is in base64.
type content struct {
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	// HeadersBase64 has keys and values in base64. It is used for all headers if one is not UTF-8.
	HeadersBase64 map[string]string `json:"headers_base64,omitempty"`
}

func (c *content) setPayload(payload []byte) {
	if !utf8.Valid(payload) {
		c.PayloadBase64 = payload
		return
	}
	text := string(payload)
	c.Payload = &text
}

func (c *content) setHeaders(headers map[string]string) {
	exact := true
	for key, value := range headers {
		exact = exact && utf8.ValidString(key) && utf8.ValidString(value)
	}
	if exact {
		c.Headers = headers
		return
	}
	c.HeadersBase64 = make(map[string]string, len(headers))
	for key, value := range headers {
		c.HeadersBase64[base64.StdEncoding.EncodeToString([]byte(key))] = base64.StdEncoding.EncodeToString([]byte(value))
	}
}

// payload returns the payload itself.
func (c *content) payload() []byte {
	if c.Payload != nil {
		return []byte(*c.Payload)
	}
	return c.PayloadBase64
}

// headers returns the headers themselves.
func (c *content) headers() (map[string]string, error) {
	if c.HeadersBase64 == nil {
		return c.Headers, nil
	}
	headers := make(map[string]string, len(c.HeadersBase64))
	for k, v := range c.HeadersBase64 {
		key, err := base64.StdEncoding.DecodeString(k)
		if err != nil {
			return nil, usage("headers_base64: key %q: %v", k, err)
		}
		value, err := base64.StdEncoding.DecodeString(v)
		if err != nil {
			return nil, usage("headers_base64: value of %q: %v", k, err)
		}
		headers[string(key)] = string(value)
	}
	return headers, nil
}

// A runOutput is what a handler has attached to a run. What is not UTF-8 is in base64.
type runOutput struct {
	Output       string `json:"output,omitempty"`
	OutputBase64 []byte `json:"output_base64,omitempty"`
	OutputSize   int    `json:"output_size,omitempty"` // of all of it, if Output is only its end
}

// outputOf returns the record of an output of that size, or of the end of it.
func outputOf(text []byte, size int) (o runOutput) {
	if size > len(text) {
		o.OutputSize = size
		for i := 0; i < utf8.UTFMax-1 && len(text) > 0 && !utf8.RuneStart(text[0]); i++ { // cut in half
			text = text[1:]
		}
	}
	if !utf8.Valid(text) {
		o.OutputBase64 = text
		return o
	}
	o.Output = string(text)
	return o
}

// text returns the output for people.
func (o *runOutput) text() string {
	text := strings.TrimSpace(o.Output)
	if o.OutputBase64 != nil {
		text = strings.ToValidUTF8(strings.TrimSpace(string(o.OutputBase64)), "\uFFFD")
	}
	if o.OutputSize > 0 {
		return "…" + text
	}
	return text
}

// lastLine returns the last line of the output.
func (o *runOutput) lastLine() string {
	text := o.text()
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

const (
	schemaJob  = "delayq.job/1"
	schemaJobs = "delayq.jobs/1"
)

// A jobRecord is a job.
type jobRecord struct {
	jobRef
	jobKey
	Priority    *seconds         `json:"priority,omitempty"` // of a job with a key; negative: it goes behind
	State       delayq.State     `json:"state"`
	DueReason   delayq.DueReason `json:"due_reason,omitempty"`
	BurstBegan  stamp            `json:"burst_began,omitzero"`
	BurstEnds   stamp            `json:"burst_ends,omitzero"`
	Due         stamp            `json:"due,omitzero"`
	Enqueued    stamp            `json:"enqueued,omitzero"`
	Started     stamp            `json:"started,omitzero"`
	LeaseEnd    stamp            `json:"lease_end,omitzero"`
	Buried      stamp            `json:"buried,omitzero"`
	Finished    stamp            `json:"finished,omitzero"`
	KeptUntil   stamp            `json:"kept_until,omitzero"`
	ExpireAt    stamp            `json:"expire_at,omitzero"`
	Attempt     int              `json:"attempt"`
	Retries     int              `json:"retries"`      // -1: unlimited, or set by the handler
	RetriesLeft int              `json:"retries_left"` // of Retries
	Snoozes     int              `json:"snoozes,omitempty"`
	planRecord
	notedRecord
	Backoff     []seconds `json:"backoff,omitempty"` // the first delay and the limit
	Timeout     seconds   `json:"timeout,omitempty"`
	Retention   seconds   `json:"retention,omitempty"`
	Schedule    string    `json:"schedule,omitempty"`
	Slot        stamp     `json:"slot,omitzero"`
	PayloadSize int       `json:"payload_size"`
	content
	runOutput                   // of a done job
	Errors      []attemptRecord `json:"errors,omitempty"`
	Partial     bool            `json:"partial,omitempty"`     // the record is large, and only job reads it
	Undecodable string          `json:"undecodable,omitempty"` // why the record cannot be read
	RawBase64   []byte          `json:"raw_base64,omitempty"`  // that record

	unset bool // the job does not set its retries
}

// A planRecord is what a job with several due times has besides.
type planRecord struct {
	Stage  int           `json:"stage,omitempty"` // from 1 to stages
	Stages int           `json:"stages,omitempty"`
	Plan   []stageRecord `json:"plan,omitempty"`
}

// A stageRecord is a due time of a job that has several.
type stageRecord struct {
	Due     stamp            `json:"due"`
	Over    bool             `json:"over,omitempty"`    // it has had its turn
	Failed  stamp            `json:"failed,omitzero"`   // when it failed for good
	Attempt int              `json:"attempt,omitempty"` // that failed last
	Kind    delayq.ErrorKind `json:"kind,omitempty"`
	Message string           `json:"message,omitempty"`
}

func planOf(info *delayq.JobInfo) planRecord {
	r := planRecord{Stage: info.Stage, Stages: info.Stages}
	for _, s := range info.Plan {
		r.Plan = append(r.Plan, stageRecord{stamp(s.Due), s.Over, stamp(s.FailedAt), s.Attempt, s.Kind, s.Message})
	}
	return r
}

// option returns what gives a copy of the job its plan, nil if it has none.
func (r *planRecord) option(due time.Time) (delayq.JobOption, error) {
	if len(r.Plan) == 0 {
		return nil, nil
	}
	p := &record.Plan{Stage: r.Stage - 1}
	for i, s := range r.Plan {
		p.Times = append(p.Times, time.Time(s.Due).UnixMilli())
		if !s.Failed.IsZero() {
			p.Failed = append(p.Failed, record.FailedStage{
				Stage: i, At: time.Time(s.Failed).UnixMilli(), Attempt: s.Attempt, Kind: string(s.Kind), Message: s.Message,
			})
		}
	}
	return library.PlanOption(p, due)
}

// An attemptRecord is a failed attempt.
type attemptRecord struct {
	Attempt     int              `json:"attempt"`
	At          stamp            `json:"at,omitzero"`
	Duration    seconds          `json:"duration,omitempty"`
	Server      string           `json:"server,omitempty"`
	Kind        delayq.ErrorKind `json:"kind,omitempty"`
	Type        string           `json:"type,omitempty"`
	Message     string           `json:"message"`
	Stack       string           `json:"stack,omitempty"`
	NextDue     stamp            `json:"next_due,omitzero"`
	TraceParent string           `json:"trace_parent,omitempty"`
}

// jobOf returns the record of a job, with its payload if whole is set.
func jobOf(info *delayq.JobInfo, whole bool) *jobRecord {
	r := &jobRecord{
		jobRef: refOf(info.Topic, info.ID), jobKey: jobKeyOf(info.Key), State: info.State, DueReason: info.DueReason,
		BurstBegan: stamp(info.BurstBegan), BurstEnds: stamp(info.BurstEnds),
		Due: stamp(info.Due), Enqueued: stamp(info.EnqueuedAt), Started: stamp(info.StartedAt),
		LeaseEnd: stamp(info.LeaseEnd), Buried: stamp(info.BuriedAt), Finished: stamp(info.FinishedAt),
		KeptUntil: stamp(info.KeptUntil), ExpireAt: stamp(info.ExpireAt),
		Attempt: info.Attempt, Retries: info.Retries, RetriesLeft: info.RetriesLeft(), Snoozes: info.Snoozes,
		Backoff: []seconds{seconds(info.BackoffFirst), seconds(info.BackoffLimit)},
		Timeout: seconds(info.Timeout), Retention: seconds(info.Retention),
		Schedule: info.Schedule, Slot: stamp(info.Slot), PayloadSize: info.PayloadSize, Partial: info.Partial,
		unset: library.Given(info).Retry == record.NotSet, planRecord: planOf(info), notedRecord: notedOf(info),
	}
	if info.Key != "" && info.Undecodable == nil {
		head := seconds(info.Priority)
		r.Priority = &head
	}
	if info.Partial && !whole {
		r.Backoff = nil
	}
	r.setHeaders(info.Headers)
	r.runOutput = outputOf(info.Output(), 0)
	for i := range info.Errors {
		r.Errors = append(r.Errors, attemptOf(&info.Errors[i]))
	}
	if info.Undecodable != nil {
		r.Undecodable, r.RawBase64, r.Backoff = errorText(info.Undecodable), info.Raw, nil
	} else if whole {
		r.setPayload(info.Payload)
	}
	return r
}

func attemptOf(e *delayq.AttemptError) attemptRecord {
	return attemptRecord{
		Attempt: e.Attempt, At: stamp(e.At), Duration: seconds(e.Duration), Server: e.Server, Kind: e.Kind, Type: e.Type,
		Message: e.Message, Stack: e.Stack, NextDue: stamp(e.NextDue), TraceParent: e.TraceParent,
	}
}

// lastError returns why the record cannot be read, or the message of the last failed attempt.
func (r *jobRecord) lastError() string {
	if r.Undecodable != "" || len(r.Errors) == 0 {
		return r.Undecodable
	}
	return r.Errors[len(r.Errors)-1].Message
}

// since returns the time that matters in the state of the job.
func (r *jobRecord) since() time.Time {
	switch r.State {
	case delayq.StateDead:
		return time.Time(r.Buried)
	case delayq.StateDone:
		return time.Time(r.Finished)
	case delayq.StateRunning:
		return time.Time(r.LeaseEnd)
	}
	return time.Time(r.Due)
}

const (
	schemaTopic  = "delayq.topic/1"
	schemaTopics = "delayq.topics/1"
)

// A topicRecord holds the numbers of a topic.
type topicRecord struct {
	Topic         string                   `json:"topic"`
	At            stamp                    `json:"at,omitzero"`
	State         string                   `json:"state"` // running, behind, paused, held, no_server or idle
	Scheduled     int64                    `json:"scheduled"`
	Ready         int64                    `json:"ready"`
	Running       int64                    `json:"running"`
	Retrying      int64                    `json:"retrying"`
	Dead          int64                    `json:"dead"`
	Done          int64                    `json:"done"`
	Keyed         int64                    `json:"ready_with_key,omitempty"` // ready jobs that have a key
	Keys          int64                    `json:"keys,omitempty"`           // that take turns
	Overdue       int64                    `json:"overdue"`
	OldestOverdue stamp                    `json:"oldest_overdue,omitzero"`
	OverdueAge    seconds                  `json:"overdue_age,omitempty"` // of the oldest one
	Parcels       int64                    `json:"parcels,omitempty"`     // handed over by its runs, on their way
	OldestParcel  stamp                    `json:"oldest_parcel,omitzero"`
	NextDue       stamp                    `json:"next_due,omitzero"`
	Servers       int                      `json:"servers"`
	Workers       int                      `json:"workers"`
	Capacity      int                      `json:"capacity,omitempty"` // jobs at a time; left out: as many as workers
	Schedules     int64                    `json:"schedules"`
	WaitingSlots  int64                    `json:"waiting_slots,omitempty"`
	NextSlot      stamp                    `json:"next_slot,omitzero"`
	Pauses        []pauseRecord            `json:"pauses,omitempty"`
	Hold          *holdRecord              `json:"hold,omitempty"`
	Limits        *limitsRecord            `json:"limits,omitempty"`
	NextStart     stamp                    `json:"next_start,omitzero"` // left out: now, or there is no rate
	Partitions    *partitionsRecord        `json:"partitions,omitempty"`
	Counters      map[delayq.Counter]int64 `json:"counters,omitempty"`
	Rates         *ratesRecord             `json:"rates,omitempty"` // since the sample before
	Forecast      []forecastRecord         `json:"forecast,omitempty"`
}

// capacity returns how many jobs can run at a time.
func (r *topicRecord) capacity() int { return max(r.Workers, r.Capacity) }

// A forecastRecord is the number of jobs that fall due before a time, and after the one before.
type forecastRecord struct {
	Until stamp `json:"until"`
	Due   int64 `json:"due"`
}

// A pauseRecord is a pause of a topic.
type pauseRecord struct {
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
	Since  stamp  `json:"since,omitzero"`
	Until  stamp  `json:"until,omitzero"` // left out: until it is resumed
}
