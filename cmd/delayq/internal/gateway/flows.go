package gateway

import (
	"fmt"
	"net/http"
	"time"

	"github.com/delayq/delayq"
)

// mostSteps is how many steps a flow has at most.
const mostSteps = 1000

// A flowRequest is a flow: the fields of its last step, and its steps.
type flowRequest struct {
	jobRequest
	Steps          []stepRequest `json:"steps"`
	Deadline       *span         `json:"deadline,omitempty"`
	IgnoreFailures bool          `json:"ignore_failures,omitempty"`
}

// A stepRequest is a step of a flow. After has the numbers of the steps that it waits for, from 0.
type stepRequest struct {
	jobRequest
	After          []int `json:"after,omitempty"`
	IgnoreFailures bool  `json:"ignore_failures,omitempty"`
}

// A flowAnswer names the jobs of a flow.
type flowAnswer struct {
	stored
	Steps []jobName `json:"steps"`
}

// flow starts a flow.
func (g *Gateway) flow(c *call) error {
	var f flowRequest
	if err := g.read(c, &f); err != nil {
		return err
	}
	if n := len(f.Steps); n < 1 || n > mostSteps {
		return wrong("steps", "%d steps: from 1 to %d are allowed", n, mostSteps)
	}
	if p := c.mayStart(&f); p != nil {
		return p
	}
	whole := delayq.NewFlow(string(f.Topic), string(f.ID), f.payload(), f.options()...)
	if f.Deadline != nil {
		whole.Deadline(time.Duration(*f.Deadline))
	}
	if f.IgnoreFailures {
		whole.IgnoreFailures()
	}
	steps := make([]*delayq.FlowStep, len(f.Steps))
	for i := range f.Steps {
		s := &f.Steps[i]
		if s.ID == "" {
			steps[i] = whole.Add(string(s.Topic), s.payload(), s.options()...)
		} else {
			steps[i] = whole.AddJob(string(s.Topic), string(s.ID), s.payload(), s.options()...)
		}
		if s.IgnoreFailures {
			steps[i].IgnoreFailures()
		}
	}
	for i := range f.Steps {
		for _, n := range f.Steps[i].After {
			if n < 0 || n >= len(steps) {
				return wrong(fmt.Sprintf("steps[%d].after", i), "there is no step %d; the first one is 0", n)
			}
			steps[i].After(steps[n])
		}
	}
	job, err := g.Client.Start(c.ctx, whole)
	if err != nil {
		return err
	}
	a := flowAnswer{stored: *storedOf(job), Steps: make([]jobName, len(steps))}
	for i, s := range steps {
		a.Steps[i] = jobName{s.Job().Topic, s.Job().ID}
	}
	return c.answer(http.StatusCreated, a)
}

// mayStart returns the problem of a flow with jobs that are wrong, or that the token may not
// enqueue.
func (c *call) mayStart(f *flowRequest) *problem {
	check := func(field string, j *jobRequest) *problem {
		switch {
		case j.IfMatch != "":
			return wrong(field+"if_match", "is for a single job")
		case !c.who.may(string(j.Topic), Produce):
			p := newProblem(forbidden, "%q has no right to produce in topic %q", c.who.name, j.Topic)
			p.Fields = []fieldError{{field + "topic", p.Detail}}
			return p
		}
		p := j.check(string(j.Topic))
		for i := range fieldsOf(p) {
			p.Fields[i].Field = field + p.Fields[i].Field
		}
		return p
	}
	if p := check("", &f.jobRequest); p != nil {
		return p
	}
	for i := range f.Steps {
		if p := check(fmt.Sprintf("steps[%d].", i), &f.Steps[i].jobRequest); p != nil {
			return p
		}
	}
	return nil
}

func fieldsOf(p *problem) []fieldError {
	if p == nil {
		return nil
	}
	return p.Fields
}
