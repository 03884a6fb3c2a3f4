package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// A settleRequest says what is to become of a job that a consumer has.
type settleRequest struct {
	ID           text            `json:"id,omitempty"`
	Lease        string          `json:"lease"`
	Outcome      string          `json:"outcome"`
	Output       json.RawMessage `json:"output,omitempty"`
	OutputBase64 []byte          `json:"output_base64,omitempty"`
	Error        string          `json:"error,omitempty"`
	Delay        *span           `json:"delay,omitempty"`
	Again        *jobRequest     `json:"again,omitempty"`
	Then         []jobRequest    `json:"then,omitempty"`
}

// The outcomes that a consumer can ask for.
const (
	wantAck     = "ack"
	wantFail    = "fail"
	wantBury    = "bury"
	wantSnooze  = "snooze"
	wantHold    = "hold"
	wantAgain   = "again"
	wantRelease = "release"
)

// wants are the outcomes, each with the fields that it may have and with those that it must have.
var wants = map[string]struct{ may, must string }{
	wantAck:     {may: "output output_base64 then"},
	wantFail:    {may: "output output_base64 error delay"},
	wantBury:    {may: "output output_base64 error"},
	wantSnooze:  {may: "delay", must: "delay"},
	wantHold:    {may: "delay error", must: "delay"},
	wantAgain:   {may: "output output_base64 again then"},
	wantRelease: {},
}

// settle tells Redis how jobs have ended, and answers when Redis has it.
func (g *Gateway) settle(c *call) error {
	var all []settleRequest
	if err := g.read(c, &all); err != nil {
		return err
	}
	if n := len(all); n < 1 || n > mostTake {
		return wrong("", "%d jobs: from 1 to %d are allowed", n, mostTake)
	}
	list, ends := make([]itemAnswer, len(all)), make([]*ended, len(all))
	for i := range all {
		list[i] = itemAnswer{stored: &stored{Topic: c.topic, ID: string(all[i].ID)}, Lease: all[i].Lease}
		if ends[i], list[i].Problem = g.settleOne(c, &all[i]); ends[i] != nil {
			list[i].ID, list[i].IDBase64 = ends[i].id, exact(ends[i].id)
		}
	}
	for i, end := range ends {
		if end != nil && list[i].Problem == nil {
			list[i].Outcome, list[i].Problem = g.outcome(c.ctx, end, &all[i])
		}
	}
	return c.items(http.StatusOK, list)
}

// settleOne gives the outcome of a job to its handler. It returns where the end of the run will be.
// The same request can be repeated: it has the answer of the first one.
func (g *Gateway) settleOne(c *call, s *settleRequest) (*ended, *problem) {
	if p := s.check(c); p != nil {
		return nil, p
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l, end, p := g.foundLocked(c.topic, s.ID, s.Lease)
	switch {
	case p != nil:
		return nil, p
	case l == nil && end.settled == s.Outcome, l != nil && l.settled == s.Outcome:
		return end, nil
	case l == nil || l.settled != "" || l.lost != "":
		return end, end.refusal(l)
	case time.Now().After(l.until): // its handler has yet to look
		return end, lostProblem(lostExpired)
	}
	p, verdict := s.verdict(l.job)
	l.settled, l.verdict = s.Outcome, verdict
	if p != nil { // the attempt fails
		l.settled = wantFail
	}
	l.signal()
	return end, p
}

// check returns the problem of a request that is wrong, whatever has become of the job.
func (s *settleRequest) check(c *call) *problem {
	want, known := wants[s.Outcome]
	if !known {
		return wrong("outcome", "%q: allowed are ack, fail, bury, snooze, hold, again and release", s.Outcome)
	}
	for field, given := range map[string]bool{
		"output": s.Output != nil, "output_base64": s.OutputBase64 != nil, "error": s.Error != "", "delay": s.Delay != nil,
		"again": s.Again != nil, "then": s.Then != nil,
	} {
		switch {
		case given && !slices.Contains(strings.Fields(want.may), field):
			return wrong(field, "does not go with the outcome %s", s.Outcome)
		case !given && slices.Contains(strings.Fields(want.must), field):
			return wrong(field, "is needed with the outcome %s", s.Outcome)
		}
	}
	switch n := max(len(s.Output), len(s.OutputBase64)); {
	case s.Output != nil && s.OutputBase64 != nil:
		return wrong("output", "only one of output and output_base64 can be given")
	case n > delayq.MaxOutput:
		return wrong("output", "%d bytes: at most %d are allowed", n, delayq.MaxOutput)
	case s.Delay != nil && *s.Delay < 0:
		return wrong("delay", "%v: must not be negative", time.Duration(*s.Delay))
	}
	return s.checkJobs(c)
}

// Then takes no more jobs of one run, with so many bytes together.
const (
	mostThen      = 1000
	mostThenBytes = 1 << 20
	recordBytes   = 512 // of a job without its payload, headers and key, at most
)

// checkJobs checks the jobs that are to follow.
func (s *settleRequest) checkJobs(c *call) *problem {
	if s.Again != nil {
		if s.Again.ID != "" || s.Again.Topic != "" || s.Again.IfMatch != "" || len(s.Again.meeting()) > 0 {
			return wrong("again", "it is the same job: it has neither an ID nor a topic, and replaces nothing")
		}
		if p := s.Again.check(c.topic); p != nil {
			return within("again", p)
		}
	}
	bytes := 0
	for i := range s.Then {
		j, name := &s.Then[i], fmt.Sprintf("then[%d]", i)
		topic := string(j.Topic)
		if topic == "" {
			topic = c.topic
		}
		switch {
		case j.IfMatch != "":
			return wrong(name+".if_match", "is for a single job")
		case !c.who.may(topic, Produce):
			p := newProblem(forbidden, "%q has no right to produce in topic %q", c.who.name, topic)
			p.Fields = []fieldError{{name + ".topic", p.Detail}}
			return p
		}
		if p := j.check(topic); p != nil {
			return within(name, p)
		}
		bytes += len(j.payload()) + len(j.ID) + len(topic) + recordBytes
		for key, value := range j.Headers {
			bytes += len(key) + len(value) + 2*recordBytes/64
		}
	}
	if len(s.Then) > mostThen || bytes > mostThenBytes {
		return wrong("then", "%d jobs with about %d bytes: at most %d with %d are allowed", len(s.Then), bytes, mostThen, mostThenBytes)
	}
	return nil
}

// within returns a problem whose fields are below another one.
func within(field string, p *problem) *problem {
	if len(p.Fields) == 0 {
		p.Fields = []fieldError{{field, p.Detail}}
		return p
	}
	for i := range p.Fields {
		p.Fields[i].Field = field + "." + p.Fields[i].Field
	}
	return p
}

// verdict returns what the handler of the job returns. With a problem, the job could not be settled
// as it was asked for, and fails: a part of what it hands over may be noted already.
func (s *settleRequest) verdict(job *delayq.Job) (p *problem, verdict error) {
	output := []byte(s.Output)
	if s.OutputBase64 != nil {
		output = s.OutputBase64
	}
	if output != nil {
		if err := job.SetOutput(output); err != nil {
			return blamed("output", err), err
		}
	}
	for i := range s.Then {
		j := &s.Then[i]
		topic := string(j.Topic)
		if topic == "" {
			topic = job.Topic
		}
		if err := job.Then(topic, string(j.ID), j.payload(), j.options()...); err != nil {
			return within(fmt.Sprintf("then[%d]", i), j.blame(topic, err)), err
		}
	}
	delay := time.Duration(0)
	if s.Delay != nil {
		delay = time.Duration(*s.Delay)
	}
	switch s.Outcome {
	case wantFail:
		if s.Delay != nil {
			return nil, delayq.RetryIn(delay, s.failure())
		}
		return nil, s.failure()
	case wantBury:
		return nil, delayq.Permanent(s.failure())
	case wantSnooze:
		return nil, delayq.Snooze(delay)
	case wantHold:
		if s.Error != "" {
			return nil, fmt.Errorf("%w: %w", delayq.Hold(delay), errors.New(s.Error))
		}
		return nil, delayq.Hold(delay)
	case wantRelease:
		return nil, delayq.Hold(0)
	case wantAgain:
		again := s.Again
		if again == nil {
			again = &jobRequest{}
		}
		payload := again.payload()
		if payload == nil {
			payload = job.Payload
		}
		return nil, delayq.Again(payload, again.options()...)
	}
	return nil, nil
}

// failure is the error of a job that has failed.
func (s *settleRequest) failure() error {
	if s.Error == "" {
		return errors.New("the consumer reported a failure")
	}
	return errors.New(s.Error)
}

// outcome waits until Redis has how a run has ended.
func (g *Gateway) outcome(ctx context.Context, end *ended, s *settleRequest) (string, *problem) {
	select {
	case <-end.done:
	case <-ctx.Done():
		return "", newProblem(unknown, "Redis has not confirmed it yet. The gateway goes on trying as long as the lease is in Redis: repeat the request to see what has become of it")
	}
	switch o := end.outcome; {
	case o == delayq.OutcomeCancelled:
		return "", lostProblem(lostCancelled)
	case o == delayq.OutcomeReplaced:
		return "", lostProblem(lostReplaced)
	case o == delayq.OutcomeLeaseLost:
		return "", lostProblem(lostLeases)
	case o == delayq.OutcomeReturned, end.lost == lostReturned:
		return "", lostProblem(lostStopped)
	case o == "":
		return "", newProblem(unknown, "the gateway stopped before Redis had confirmed it")
	case s.Outcome == wantAgain && (o == delayq.OutcomeRetried || o == delayq.OutcomeBuried):
		return "", within("again", problemOf(end.err))
	default:
		return string(o), nil
	}
}
