package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/delayq/delayq"
)

// A takeRequest asks for jobs.
type takeRequest struct {
	Max    *int  `json:"max,omitempty"`
	Wait   *span `json:"wait,omitempty"`
	Lease  *span `json:"lease,omitempty"`
	Base64 bool  `json:"base64,omitempty"`
}

// usedWait is how long a take waits that does not say it.
const usedWait = 20 * time.Second

// quiet is how long a take that has got a job waits for others that are on their way.
const quiet = 2 * time.Millisecond

// A takeAnswer has the jobs of a take.
type takeAnswer struct {
	Jobs []takenJob `json:"jobs"`
}

// A takenJob is a job for a consumer.
type takenJob struct {
	ID            string            `json:"id"`
	IDBase64      []byte            `json:"id_base64,omitempty"`
	Lease         string            `json:"lease"`
	LeaseEnd      moment            `json:"lease_end"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Key           string            `json:"key,omitempty"`
	Attempt       int               `json:"attempt"`
	Retries       int               `json:"retries"`
	Snoozes       int               `json:"snoozes,omitempty"`
	Stage         int               `json:"stage,omitempty"`
	Stages        int               `json:"stages,omitempty"`
	EnqueuedAt    moment            `json:"enqueued_at,omitzero"`
	Due           moment            `json:"due,omitzero"`
	Schedule      string            `json:"schedule,omitempty"`
	Slot          moment            `json:"slot,omitzero"`
	Flow          *jobName          `json:"flow,omitempty"`
}

// take gives jobs to a consumer. It answers as soon as it has one and no other is on its way.
func (g *Gateway) take(c *call) error {
	var t takeRequest
	if err := g.read(c, &t); err != nil {
		return err
	}
	k := &taker{who: c.who.name, want: 1, lease: usedLease, more: make(chan struct{}, 1)}
	wait := usedWait
	if t.Max != nil {
		k.want = *t.Max
	}
	if t.Lease != nil {
		k.lease = time.Duration(*t.Lease)
	}
	if t.Wait != nil {
		wait = time.Duration(*t.Wait)
	}
	switch {
	case k.want < 1 || k.want > mostTake:
		return wrong("max", "%d: from 1 to %d are allowed", k.want, mostTake)
	case wait < 0 || wait > mostWait:
		return wrong("wait", "%v: from 0 to %v are allowed", wait, mostWait)
	case k.lease < leastLease || k.lease > mostLease:
		return wrong("lease", "%v: from %v to %v are allowed", k.lease, leastLease, mostLease)
	}
	if g.over.Err() != nil {
		return newProblem(stopping, "the gateway is stopping")
	}
	c.patient(wait)
	limited, cancel := context.WithTimeout(c.ctx, max(wait, leastWait))
	defer cancel()
	for joined := false; !joined; {
		err := g.serve(limited, c.topic, c.who.name)
		if err == nil {
			joined, err = g.join(c.topic, k)
		}
		if err != nil {
			return blamed("topic", err)
		}
	}
	got := g.collect(limited, c.topic, k)
	if c.ctx.Err() != nil { // the consumer has hung up
		g.giveBack(got)
		return c.ctx.Err()
	}
	if len(got) == 0 && !g.server.Health().Redis.AwaySince.IsZero() {
		return newProblem(away, "Redis does not answer: nobody knows whether there are jobs")
	}
	err := c.answer(http.StatusOK, g.answerTake(got, t.Base64))
	if err == nil {
		err = c.control.Flush()
	}
	if err != nil {
		g.giveBack(got)
	}
	return err
}

// collect waits for the jobs of a taker.
func (g *Gateway) collect(ctx context.Context, name string, k *taker) []*lease {
	var patience <-chan time.Time
	for {
		select {
		case <-k.more:
			g.mu.Lock()
			done := k.want == 0
			g.mu.Unlock()
			if done {
				return g.leave(name, k)
			}
			patience = time.After(quiet)
			continue
		case <-patience:
		case <-ctx.Done():
		case <-g.over.Done():
		}
		return g.leave(name, k)
	}
}

// answerTake returns the answer to a take.
func (g *Gateway) answerTake(got []*lease, base64 bool) takeAnswer {
	a := takeAnswer{Jobs: make([]takenJob, len(got))}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, l := range got {
		job := l.job
		a.Jobs[i] = takenJob{
			ID: job.ID, IDBase64: exact(job.ID), Lease: l.token, LeaseEnd: moment(l.until), Headers: job.Headers, Key: job.Key, Attempt: job.Attempt,
			Retries: job.Retries, Snoozes: job.Snoozes, Stage: job.Stage, Stages: job.Stages, EnqueuedAt: moment(job.EnqueuedAt), Due: moment(job.Due),
			Schedule: job.Schedule, Slot: moment(job.Slot), Flow: flowOf(job),
		}
		a.Jobs[i].Payload, a.Jobs[i].PayloadBase64 = data(job.Payload, base64)
	}
	return a
}

// An extendRequest is a lease that is to last longer.
type extendRequest struct {
	ID       text      `json:"id,omitempty"`
	Lease    string    `json:"lease"`
	For      *span     `json:"for,omitempty"`
	Progress *progress `json:"progress,omitempty"`
}

// extend makes leases last longer, and notes how far jobs have come.
func (g *Gateway) extend(c *call) error {
	var all []extendRequest
	if err := g.read(c, &all); err != nil {
		return err
	}
	if n := len(all); n < 1 || n > mostTake {
		return wrong("", "%d leases: from 1 to %d are allowed", n, mostTake)
	}
	list := make([]itemAnswer, len(all))
	for i := range all {
		list[i] = g.extendOne(c.topic, &all[i])
	}
	return c.items(http.StatusOK, list)
}

func (g *Gateway) extendOne(name string, e *extendRequest) (a itemAnswer) {
	a = itemAnswer{stored: &stored{Topic: name, ID: string(e.ID)}, Lease: e.Lease}
	if e.For != nil && (time.Duration(*e.For) < leastLease || time.Duration(*e.For) > mostLease) {
		a.Problem = wrong("for", "%v: from %v to %v are allowed", time.Duration(*e.For), leastLease, mostLease)
		return a
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l, end, p := g.foundLocked(name, e.ID, e.Lease)
	switch {
	case p != nil:
		a.Problem = p
	case l == nil || l.settled != "" || l.lost != "":
		a.ID, a.IDBase64, a.Problem = end.id, exact(end.id), end.refusal(l)
	default:
		a.ID, a.IDBase64 = end.id, exact(end.id)
		if e.Progress != nil {
			if err := l.job.Progress(e.Progress.Done, e.Progress.Total, e.Progress.Text); err != nil {
				a.Problem = blamed("progress", err)
				return a
			}
		}
		if e.For != nil {
			l.length = time.Duration(*e.For)
		}
		l.until = time.Now().Add(l.length)
		a.LeaseEnd = moment(l.until)
		l.signal()
	}
	return a
}

// refusal is the problem of a call about a lease that is over, or that is being settled. Gateway.mu
// must be held.
func (e *ended) refusal(l *lease) *problem {
	settledAs, lost := e.settled, e.lost
	if l != nil {
		settledAs, lost = l.settled, l.lost
	}
	if lost != "" {
		return lostProblem(lost)
	}
	p := newProblem(settled, "the job was settled with %q", settledAs)
	p.Reason = settledAs
	return p
}

// An inputsRequest asks what a step of a flow has waited for.
type inputsRequest struct {
	ID     text   `json:"id,omitempty"`
	Lease  string `json:"lease"`
	Base64 bool   `json:"base64,omitempty"`
}

// inputsAnswer has the steps that a step of a flow has waited for.
type inputsAnswer struct {
	Inputs []input `json:"inputs"`
}

type input struct {
	Topic        string          `json:"topic"`
	ID           string          `json:"id"`
	State        string          `json:"state"`
	Output       json.RawMessage `json:"output,omitempty"`
	OutputBase64 []byte          `json:"output_base64,omitempty"`
}

// inputs returns what a step of a flow has waited for.
func (g *Gateway) inputs(c *call) error {
	var r inputsRequest
	if err := g.read(c, &r); err != nil {
		return err
	}
	g.mu.Lock()
	l, end, p := g.foundLocked(c.topic, r.ID, r.Lease)
	if p == nil && (l == nil || l.settled != "" || l.lost != "") {
		p = end.refusal(l)
	}
	g.mu.Unlock()
	if p != nil {
		return p
	}
	list, err := l.job.Inputs(c.ctx)
	if errors.Is(err, delayq.ErrInvalid) { // the handler has returned meanwhile
		return lostProblem(lostLeases)
	}
	if err != nil {
		return err
	}
	a := inputsAnswer{Inputs: make([]input, len(list))}
	for i, one := range list {
		a.Inputs[i] = input{Topic: one.Topic, ID: one.ID, State: string(one.State)}
		a.Inputs[i].Output, a.Inputs[i].OutputBase64 = data(one.Output, r.Base64)
	}
	return c.answer(http.StatusOK, a)
}
