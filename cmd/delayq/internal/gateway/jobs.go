package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// A stored is what is said of a job that was enqueued.
type stored struct {
	Topic      string `json:"topic"`
	ID         string `json:"id"`
	IDBase64   []byte `json:"id_base64,omitempty"`
	EnqueuedAt moment `json:"enqueued_at,omitzero"`
	Due        moment `json:"due,omitzero"`
}

func storedOf(job *delayq.Job) *stored {
	return &stored{job.Topic, job.ID, exact(job.ID), moment(job.EnqueuedAt), moment(job.Due)}
}

// An itemAnswer is the answer to one item of a request with several.
type itemAnswer struct {
	*stored
	Lease    string   `json:"lease,omitempty"`
	LeaseEnd moment   `json:"lease_end,omitzero"`
	Outcome  string   `json:"outcome,omitempty"`
	Problem  *problem `json:"problem,omitempty"`
}

// several is the answer to a request with several items.
type several struct {
	Results []itemAnswer `json:"results"`
}

// items answers a request with several items: with good if all went well, with 207 if some did, and
// with the first problem if none did.
func (c *call) items(good int, list []itemAnswer) error {
	failed := 0
	var first *problem
	for i := range list {
		if p := list[i].Problem; p != nil {
			if failed++; first == nil {
				first = p
			}
		}
	}
	switch {
	case failed == 0:
	case failed < len(list):
		good = http.StatusMultiStatus
	default:
		p := *first
		p.Of = list
		return &p
	}
	return c.answer(good, several{list})
}

// enqueue stores one job, or those of an array.
func (g *Gateway) enqueue(c *call) error {
	raw := c.raw
	if bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("[")) {
		return g.enqueueAll(c, raw)
	}
	var j jobRequest
	if err := strictly(raw, &j); err != nil {
		return problemOfBody(err, g.MaxBody)
	}
	fresh, err := g.fresh(c.ctx, c.topic, &j)
	if err != nil {
		return err
	}
	job, err := g.Client.Enqueue(c.ctx, fresh.Topic, fresh.ID, fresh.Payload, fresh.Options...)
	if err != nil {
		return j.blame(c.topic, err)
	}
	c.w.Header().Set("Location", "/v1/topics/"+segment(job.Topic)+"/jobs/"+segment(job.ID))
	return c.answer(http.StatusCreated, storedOf(job))
}

// segment returns a text as a segment of a path. Clients take . and .. for something else.
func segment(text string) string {
	if text == "." || text == ".." {
		return strings.ReplaceAll(text, ".", "%2E")
	}
	return url.PathEscape(text)
}

// fresh returns the job of a request for a topic.
func (g *Gateway) fresh(ctx context.Context, topic string, j *jobRequest) (delayq.NewJob, error) {
	if j.Topic != "" && string(j.Topic) != topic {
		return delayq.NewJob{}, wrong("topic", "is %q, and the path says %q", j.Topic, topic)
	}
	if p := j.check(topic); p != nil {
		return delayq.NewJob{}, p
	}
	fresh := delayq.NewJob{Topic: topic, ID: string(j.ID), Payload: j.payload(), Options: j.options()}
	if j.IfMatch != "" {
		info, err := g.matched(ctx, topic, string(j.ID), j.IfMatch)
		if err != nil {
			return fresh, err
		}
		fresh.Options = append(fresh.Options, delayq.IfUnchanged(info))
	}
	return fresh, nil
}

// enqueueAll stores the jobs of an array. Each has an outcome of its own.
func (g *Gateway) enqueueAll(c *call, raw []byte) error {
	var all []json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return problemOfBody(err, g.MaxBody)
	}
	if n := len(all); n < 1 || n > mostJobs {
		return wrong("", "%d jobs: from 1 to %d are allowed", n, mostJobs)
	}
	list, jobs := make([]itemAnswer, len(all)), make([]delayq.NewJob, 0, len(all))
	requests, at := make([]jobRequest, len(all)), make([]int, 0, len(all))
	for i, one := range all {
		err := strictly(one, &requests[i])
		if err != nil {
			err = problemOfBody(err, g.MaxBody)
		} else if requests[i].IfMatch != "" {
			err = wrong("if_match", "is for a single job")
		}
		if err == nil {
			var fresh delayq.NewJob
			if fresh, err = g.fresh(c.ctx, c.topic, &requests[i]); err == nil {
				jobs, at = append(jobs, fresh), append(at, i)
				continue
			}
		}
		list[i] = itemAnswer{stored: &stored{Topic: c.topic, ID: string(requests[i].ID)}, Problem: problemOf(err)}
	}
	results, err := g.Client.EnqueueBatch(c.ctx, jobs)
	if err != nil && len(results) != len(jobs) {
		return err
	}
	for n, r := range results {
		i := at[n]
		list[i].stored = &stored{Topic: c.topic, ID: jobs[n].ID}
		if r.Job != nil {
			list[i].stored = storedOf(r.Job)
		}
		if r.Err != nil {
			list[i].Problem = requests[i].blame(c.topic, r.Err)
		}
	}
	return c.items(http.StatusCreated, list)
}

// etag returns the tag of a job as it was read: all that IfUnchanged compares.
func etag(info *delayq.JobInfo) string {
	seen := library.Seen(info)
	if seen == "" {
		return ""
	}
	return `"` + seen + `"`
}

// matched reads a job, and refuses one that is not as the tag says.
func (g *Gateway) matched(ctx context.Context, topic, id, tag string) (*delayq.JobInfo, error) {
	info, err := g.Client.Get(ctx, topic, id)
	switch {
	case err != nil:
		return nil, err
	case tag != etag(info):
		return nil, newProblem(changed, "the job is not as If-Match says: read it again")
	}
	return info, nil
}

// condition returns the job as If-Match says that it is; nil: there is no such header.
func (g *Gateway) condition(c *call) (*delayq.JobInfo, error) {
	tags := c.r.Header.Values("If-Match")
	switch {
	case len(tags) == 0:
		return nil, nil
	case len(tags) > 1:
		return nil, wrong("If-Match", "is there %d times", len(tags))
	}
	return g.matched(c.ctx, c.topic, c.id, tags[0])
}

// A jobAnswer is all that is known of a job.
type jobAnswer struct {
	Topic         string            `json:"topic"`
	ID            string            `json:"id"`
	IDBase64      []byte            `json:"id_base64,omitempty"`
	State         string            `json:"state"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Key           string            `json:"key,omitempty"`
	Priority      span              `json:"priority,omitempty"`
	Attempt       int               `json:"attempt"`
	Retries       int               `json:"retries"`
	Snoozes       int               `json:"snoozes,omitempty"`
	Stage         int               `json:"stage,omitempty"`
	Stages        int               `json:"stages,omitempty"`
	EnqueuedAt    moment            `json:"enqueued_at,omitzero"`
	Due           moment            `json:"due,omitzero"`
	DueReason     string            `json:"due_reason,omitempty"`
	LeaseEnd      moment            `json:"lease_end,omitzero"`
	BuriedAt      moment            `json:"buried_at,omitzero"`
	StartedAt     moment            `json:"started_at,omitzero"`
	FinishedAt    moment            `json:"finished_at,omitzero"`
	KeptUntil     moment            `json:"kept_until,omitzero"`
	ExpireAt      moment            `json:"expire_at,omitzero"`
	Timeout       span              `json:"timeout,omitempty"`
	Retention     span              `json:"retention,omitempty"`
	Backoff       backoff           `json:"backoff"`
	Schedule      string            `json:"schedule,omitempty"`
	Slot          moment            `json:"slot,omitzero"`
	Flow          *jobName          `json:"flow,omitempty"`
	Errors        []attemptError    `json:"errors,omitempty"`
	Progress      *progress         `json:"progress,omitempty"`
	Steps         []string          `json:"steps,omitempty"`
	Output        json.RawMessage   `json:"output,omitempty"`
	OutputBase64  []byte            `json:"output_base64,omitempty"`
}

type jobName struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
}

// flowOf returns the flow of a job; nil: it is no step.
func flowOf(job *delayq.Job) *jobName {
	if job.Flow == (delayq.JobRef{}) {
		return nil
	}
	return &jobName{job.Flow.Topic, job.Flow.ID}
}

type attemptError struct {
	Attempt  int    `json:"attempt"`
	At       moment `json:"at"`
	Duration span   `json:"duration,omitempty"`
	Kind     string `json:"kind"`
	Message  string `json:"message"`
	NextDue  moment `json:"next_due,omitzero"`
}

type progress struct {
	Done  int64  `json:"done"`
	Total int64  `json:"total,omitempty"`
	Text  string `json:"text,omitempty"`
	At    moment `json:"at,omitzero"`
}

func answerOf(info *delayq.JobInfo, base64 bool) *jobAnswer {
	a := &jobAnswer{
		Topic: info.Topic, ID: info.ID, IDBase64: exact(info.ID), State: string(info.State), Headers: info.Headers, Key: info.Key,
		Priority: span(info.Priority), Attempt: info.Attempt, Retries: info.Retries, Snoozes: info.Snoozes, Stage: info.Stage, Stages: info.Stages,
		EnqueuedAt: moment(info.EnqueuedAt), Due: moment(info.Due), DueReason: string(info.DueReason), LeaseEnd: moment(info.LeaseEnd),
		BuriedAt: moment(info.BuriedAt), StartedAt: moment(info.StartedAt), FinishedAt: moment(info.FinishedAt), KeptUntil: moment(info.KeptUntil),
		ExpireAt: moment(info.ExpireAt), Timeout: span(info.Timeout), Retention: span(info.Retention),
		Backoff: backoff{span(info.BackoffFirst), span(info.BackoffLimit)}, Schedule: info.Schedule, Slot: moment(info.Slot), Flow: flowOf(&info.Job),
		Steps: info.Steps,
	}
	a.Payload, a.PayloadBase64 = data(info.Payload, base64)
	a.Output, a.OutputBase64 = data(info.Output(), base64)
	for _, e := range info.Errors {
		a.Errors = append(a.Errors, attemptError{e.Attempt, moment(e.At), span(e.Duration), string(e.Kind), e.Message, moment(e.NextDue)})
	}
	if p := info.Progress; p != nil {
		a.Progress = &progress{p.Done, p.Total, p.Text, moment(p.At)}
	}
	return a
}

// get reads a job.
func (g *Gateway) get(c *call) error {
	base64, err := c.flag("base64")
	if err != nil {
		return err
	}
	info, err := g.Client.Get(c.ctx, c.topic, c.id)
	if err != nil {
		return err
	}
	if tag := etag(info); tag != "" {
		c.w.Header().Set("ETag", tag)
	}
	return c.answer(http.StatusOK, answerOf(info, base64))
}

// flag returns a parameter of the URL that is true or false.
func (c *call) flag(name string) (bool, error) {
	if !c.query.Has(name) {
		return false, nil
	}
	is, err := strconv.ParseBool(c.query.Get(name))
	if err != nil {
		return false, wrong(name, "%q: must be true or false", c.query.Get(name))
	}
	return is, nil
}

// span returns a parameter of the URL that is a duration: seconds, or a text such as 30s.
func (c *call) span(name string, otherwise time.Duration) (time.Duration, error) {
	if !c.query.Has(name) {
		return otherwise, nil
	}
	value := c.query.Get(name)
	if _, err := strconv.ParseFloat(value, 64); err == nil {
		value += "s"
	}
	d, err := values.ParseSpan(value)
	if err != nil {
		return 0, wrong(name, "%v", err)
	}
	return d, nil
}

// A patchRequest changes one thing of a job.
type patchRequest struct {
	ProcessAt *moment `json:"process_at,omitempty"`
	ProcessIn *span   `json:"process_in,omitempty"`
	Priority  *span   `json:"priority,omitempty"`
	Revive    bool    `json:"revive,omitempty"`
	Bury      *text   `json:"bury,omitempty"`
}

// acting returns the context of an act, which the audit has under the name of the token.
func (c *call) acting() context.Context { return delayq.WithActor(c.ctx, c.who.name) }

// patch moves a job, changes its priority, revives or buries it.
func (g *Gateway) patch(c *call) error {
	var p patchRequest
	if err := g.read(c, &p); err != nil {
		return err
	}
	n := 0
	for _, given := range []bool{p.ProcessAt != nil, p.ProcessIn != nil, p.Priority != nil, p.Revive, p.Bury != nil} {
		if given {
			n++
		}
	}
	if n != 1 {
		return wrong("", "exactly one of process_at, process_in, priority, revive and bury must be given")
	}
	if (p.Revive || p.Bury != nil) && !c.who.may(c.topic, Operate) {
		return newProblem(forbidden, "%q has no right to operate in topic %q: it may neither revive nor bury", c.who.name, c.topic)
	}
	info, err := g.condition(c)
	if err != nil {
		return err
	}
	var opts []delayq.EditOption
	if info != nil {
		opts = append(opts, delayq.IfUnchanged(info))
	}
	field := ""
	switch ctx := c.acting(); {
	case p.ProcessAt != nil:
		field, err = "process_at", g.Client.Reschedule(ctx, c.topic, c.id, delayq.ProcessAt(time.Time(*p.ProcessAt)), opts...)
	case p.ProcessIn != nil:
		field, err = "process_in", g.Client.Reschedule(ctx, c.topic, c.id, delayq.ProcessIn(time.Duration(*p.ProcessIn)), opts...)
	case p.Priority != nil:
		field, err = "priority", g.Client.SetPriority(ctx, c.topic, c.id, time.Duration(*p.Priority), opts...)
	case p.Revive:
		field, err = "revive", g.Client.Revive(ctx, c.topic, c.id, opts...)
	default:
		field, err = "bury", g.Client.Bury(ctx, c.topic, c.id, string(*p.Bury), opts...)
	}
	if err = g.audited(err); err != nil {
		return blamed(field, err)
	}
	return c.answer(http.StatusNoContent, nil)
}

// blamed returns the problem of an error, about a field if it is invalid.
func blamed(field string, err error) *problem {
	p := problemOf(err)
	if errors.Is(err, delayq.ErrInvalid) {
		p.Fields = []fieldError{{field, p.Detail}}
	}
	return p
}

// audited passes over an act that is done and not in the audit, which it logs.
func (g *Gateway) audited(err error) error {
	if errors.Is(err, delayq.ErrNotAudited) {
		g.refusals.warn("not in the audit", "err", err)
		return nil
	}
	return err
}

// A cancelAnswer says in which state the cancelled job was.
type cancelAnswer struct {
	State string `json:"state"`
}

// cancel cancels a job, or deletes a dead one.
func (g *Gateway) cancel(c *call) error {
	var opts []delayq.DequeueOption
	if c.query.Has("tombstone") {
		d, err := c.span("tombstone", 0)
		if err != nil {
			return err
		}
		opts = append(opts, delayq.Tombstone(d))
	}
	info, err := g.condition(c)
	if err != nil {
		return err
	}
	if info != nil {
		opts = append(opts, delayq.IfUnchanged(info))
	}
	state, err := g.Client.Dequeue(c.acting(), c.topic, c.id, opts...)
	if err = g.audited(err); err != nil {
		return blamed("tombstone", err)
	}
	return c.answer(http.StatusOK, cancelAnswer{string(state)})
}

// A resultAnswer is how a job has ended.
type resultAnswer struct {
	Ended        bool            `json:"ended"`
	Output       json.RawMessage `json:"output,omitempty"`
	OutputBase64 []byte          `json:"output_base64,omitempty"`
	Attempt      int             `json:"attempt,omitempty"`
	StartedAt    moment          `json:"started_at,omitzero"`
	FinishedAt   moment          `json:"finished_at,omitzero"`
}

// result waits for the end of a job.
func (g *Gateway) result(c *call) error {
	wait, err := c.span("wait", leastWait)
	if err != nil {
		return err
	}
	if wait < 0 || wait > mostWait {
		return wrong("wait", "%v: from 0 to %v are allowed", wait, mostWait)
	}
	base64, err := c.flag("base64")
	if err != nil {
		return err
	}
	c.patient(wait)
	ctx, cancel := context.WithTimeout(c.ctx, max(wait, leastWait))
	defer cancel()
	defer context.AfterFunc(g.over, cancel)()
	r, err := g.Client.Wait(ctx, c.topic, c.id)
	switch {
	case err == nil:
		a := resultAnswer{Ended: true, Attempt: r.Attempt, StartedAt: moment(r.StartedAt), FinishedAt: moment(r.FinishedAt)}
		a.Output, a.OutputBase64 = data(r.Output, base64)
		return c.answer(http.StatusOK, a)
	case errors.Is(err, delayq.ErrUnknownOutcome):
		return newProblem(gone, "the job is gone, and nothing says how it has ended")
	case onlyContext(err) && ctx.Err() != nil:
		return c.answer(http.StatusAccepted, resultAnswer{})
	}
	return err
}

// patient lets a request take as long as it waits. The deadline of reading, which was that of the
// body, would otherwise look like a client that has gone.
func (c *call) patient(wait time.Duration) {
	late := time.Now().Add(wait + writeTimeout)
	_ = c.control.SetReadDeadline(late) // or that of the server holds
	_ = c.control.SetWriteDeadline(late)
}

// onlyContext reports whether a wait has ended with its context, and not because Redis is away.
func onlyContext(err error) bool {
	var network *net.OpError
	var reply redis.Error
	return (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) && !errors.As(err, &network) && !errors.As(err, &reply)
}
