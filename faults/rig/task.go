package rig

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// A Task is a job whose payload tells the handler what to do, so that workers need no state.
//
// Steps has one step for each attempt, the last one for all further ones: ok, err, perm, panic,
// goexit, exit (the process ends), hang:<duration> (until then or the end of the context, and then
// its error), deaf:<duration> (ignores its context), snooze:<duration> (snoozed in bits until that
// long after the enqueueing, then ok), renew:<delay> (as often as Left says, the handler enqueues a
// task like this one under the same ID, with Replace; then ok), again:<delay> (the same by
// returning Again), hold:<duration> (two of three runs hold the topic for so long, the others are
// ok), holdkey:<duration> (the same with the key), steps:<duration> (four steps, which take so long
// together; the output is the nonce), half:<duration> (the first two of them, then an error).
type Task struct {
	Topic   string
	ID      string
	Inc     int64 // unique for every enqueueing; 0: the client gives one
	Steps   []string
	Left    int // generations that are to follow
	Then    *Hand
	Die     string // the line at which the first attempt kills its process: see the constants; empty: none
	Pad     int    // bytes that make the payload larger
	Empty   bool   // the payload has no byte: a header says what to do
	Delay   time.Duration
	Retries int // below 0: any number
	Expires time.Duration
	Options []delayq.JobOption // further ones
}

// work is what the handler is told of a Task: the first line of its payload, or a header.
type work struct {
	Inc   int64    `json:"inc"`
	Steps []string `json:"steps"`
	Left  int      `json:"left,omitempty"`
	Pad   int      `json:"pad,omitempty"`
	Empty bool     `json:"empty,omitempty"`
	Then  *Hand    `json:"then,omitempty"`
	Die   string   `json:"die,omitempty"`
}

// A Hand says what job each run of a task hands over. Its ID is new each time.
type Hand struct {
	Topic string        `json:"topic,omitempty"` // empty: the task's own
	Delay time.Duration `json:"delay,omitempty"`
	Hops  int           `json:"hops,omitempty"` // how many more jobs are handed over, each by the one before
}

// Lines at which a process is killed. A step is the second one of a task.
const (
	BeforeStep = "before a step"
	InStep     = "in a step"
	AfterStep  = "after a step"
	AfterThen  = "after Then"
)

// workOf reads what a handler is told.
func workOf(job *delayq.Job) (w work, err error) {
	text := []byte(job.Headers[workHeader])
	if len(job.Payload) > 0 {
		text, _, _ = bytes.Cut(job.Payload, []byte("\n"))
	}
	return w, json.Unmarshal(text, &w)
}

// step is what an attempt is to do.
func (w work) step(attempt int) string {
	if len(w.Steps) == 0 {
		return "ok"
	}
	return w.Steps[min(attempt, len(w.Steps))-1]
}

// incHeader is the header with the incarnation, for the hooks, and workHeader that with the work of
// a task without a payload.
const (
	incHeader  = "inc"
	workHeader = "work"
)

// payload makes payload and headers of a task.
func (t *Task) payload() (payload []byte, headers []delayq.JobOption, err error) {
	text, err := json.Marshal(work{t.Inc, t.Steps, t.Left, t.Pad, t.Empty, t.Then, t.Die})
	if err != nil {
		return nil, nil, err
	}
	headers = []delayq.JobOption{delayq.Header(incHeader, strconv.FormatInt(t.Inc, 10))}
	if t.Empty {
		return nil, append(headers, delayq.Header(workHeader, string(text))), nil
	}
	if t.Pad > 0 {
		text = append(append(text, '\n'), bytes.Repeat([]byte{byte(t.Inc)}, t.Pad)...)
	}
	return text, headers, nil
}

func sum(payload []byte) string {
	s := sha256.Sum256(payload)
	return hex.EncodeToString(s[:8])
}

// calls numbers calls and incarnations. It begins with the clock, so that several processes or runs
// do not meet.
var calls atomic.Int64

func init() { calls.Store(time.Now().UnixMicro() * 1000) }

// A Client is a delayq client that writes down every call before it is made and after.
type Client struct {
	*delayq.Client
	Inspector *delayq.Inspector // reads past the record, unless a method of Client does not

	rec *Recorder
}

// NewClient makes a client that records.
func NewClient(rdb redis.UniversalClient, rec *Recorder, opts ...delayq.ClientOption) *Client {
	var same []delayq.InspectorOption
	for _, opt := range opts {
		if prefix, ok := opt.(delayq.PrefixOption); ok {
			same = append(same, prefix)
		}
	}
	return &Client{delayq.NewClient(rdb, opts...), delayq.NewInspector(rdb, same...), rec}
}

// StatsOf reads the numbers of a topic.
func StatsOf(ctx context.Context, insp *delayq.Inspector, topic string) (delayq.TopicStats, error) {
	list, err := insp.Stats(ctx, topic)
	if err != nil {
		return delayq.TopicStats{}, err
	}
	return list[0], nil
}

// call records a call and its outcome.
func (c *Client) call(e Event, do func() (result string, err error)) error {
	return c.ask(e, func(e *Event) (err error) {
		e.Result, err = do()
		return err
	})
}

// ask is a call that fills in more of its outcome than the result.
func (c *Client) ask(e Event, do func(e *Event) error) error {
	e.Call, e.Type = calls.Add(1), Invoke
	c.rec.Record(e)
	err := do(&e)
	e.Type = OK
	switch {
	case err == nil:
	case errors.Is(err, delayq.ErrUnknownOutcome), errors.Is(err, delayq.ErrNotReplicated):
		e.Type, e.Err = Info, err.Error()
	default:
		e.Type, e.Err, e.Result = Fail, err.Error(), documented(err)
	}
	c.rec.Record(e)
	return err
}

// documented names the kind of an error that callers can tell from others, empty if there is none.
// An error of the network without ErrUnknownOutcome is that of a call that was never sent, or that
// only read.
func documented(err error) string {
	for _, known := range []struct {
		err  error
		name string
	}{
		{delayq.ErrDuplicate, "duplicate"}, {delayq.ErrNotFound, "not found"}, {delayq.ErrRunning, "running"}, {delayq.ErrDead, "dead"},
		{delayq.ErrInvalid, "invalid"}, {context.Canceled, "canceled"}, {context.DeadlineExceeded, "deadline"},
		{delayq.ErrLeaseLost, "lease lost"}, {delayq.ErrShutdown, "shutdown"},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	if said := redis.Error(nil); errors.As(err, &said) {
		return "redis"
	}
	if network := net.Error(nil); errors.As(err, &network) || errors.Is(err, io.EOF) {
		return "network"
	}
	return ""
}

// Put enqueues a task; with replace its ID may be taken.
func (c *Client) Put(ctx context.Context, t *Task, replace bool) error {
	if replace {
		return c.put(ctx, t, OpReplace, delayq.Replace())
	}
	return c.put(ctx, t, OpEnqueue)
}

// PutOverDead enqueues a task whose ID a dead job may have.
func (c *Client) PutOverDead(ctx context.Context, t *Task) error {
	return c.put(ctx, t, OpGiveWay, delayq.ReplaceDead())
}

// prepare makes the event, the payload and the options of an enqueueing.
func (t *Task) prepare(op string, way ...delayq.JobOption) (e Event, payload []byte, opts []delayq.JobOption, err error) {
	if t.Inc == 0 {
		t.Inc = calls.Add(1)
	}
	if payload, opts, err = t.payload(); err != nil {
		return Event{}, nil, nil, err
	}
	opts = slices.Concat(opts, []delayq.JobOption{delayq.ProcessIn(t.Delay)}, t.Options, way)
	e = Event{
		Op: op, Topic: t.Topic, ID: t.ID, Inc: t.Inc, Delay: t.Delay.Milliseconds(), Retries: t.Retries, Expires: t.Expires > 0,
		Sum: sum(payload),
	}
	if t.Retries >= 0 {
		opts = append(opts, delayq.Retry(t.Retries))
	}
	if t.Expires > 0 {
		opts = append(opts, delayq.ExpireIn(t.Expires))
	}
	return e, payload, opts, nil
}

func (c *Client) put(ctx context.Context, t *Task, op string, way ...delayq.JobOption) error {
	e, payload, opts, err := t.prepare(op, way...)
	if err != nil {
		return err
	}
	return c.call(e, func() (string, error) {
		job, err := c.Enqueue(ctx, t.Topic, t.ID, payload, opts...)
		if job != nil && job.ID != t.ID {
			return "", fmt.Errorf("enqueued as %q instead of %q", job.ID, t.ID)
		}
		return "", err
	})
}

// Cancel dequeues a task.
func (c *Client) Cancel(ctx context.Context, t *Task) (delayq.State, error) {
	var state delayq.State
	err := c.call(Event{Op: OpCancel, Topic: t.Topic, ID: t.ID, Inc: t.Inc}, func() (string, error) {
		var err error
		state, err = c.Dequeue(ctx, t.Topic, t.ID)
		return string(state), err
	})
	return state, err
}

// Move reschedules a task.
func (c *Client) Move(ctx context.Context, t *Task, delay time.Duration) error {
	e := Event{Op: OpReschedule, Topic: t.Topic, ID: t.ID, Inc: t.Inc, Delay: delay.Milliseconds()}
	return c.call(e, func() (string, error) {
		return "", c.Reschedule(ctx, t.Topic, t.ID, delayq.ProcessIn(delay))
	})
}
