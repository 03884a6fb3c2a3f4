package gateway

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/delayq/delayq"
)

// A lease is a job that a consumer has, or is about to get. Gateway.mu guards it.
type lease struct {
	job     *delayq.Job
	topic   *topic
	who     string // the name of the token that has it
	token   string // empty: it is not given to a consumer yet
	length  time.Duration
	until   time.Time
	wake    chan struct{} // until or verdict has changed
	settled string        // the outcome that the consumer has asked for; empty: none
	verdict error         // what the handler returns for it
	lost    string        // why the job is not the consumer's any more; empty: it is
	ended   *ended
}

// ended is how a run has ended. What it says is there when done is closed.
type ended struct {
	topic, id string
	settled   string
	done      chan struct{}
	outcome   delayq.Outcome // as Redis has it; empty: not known
	lost      string
	err       error
}

// mostPast is how many leases are remembered that have ended, so that a settle can be repeated
// whose answer was lost.
const mostPast = 20_000

// past remembers leases that have ended, the newest ones.
type past struct {
	of   map[string]*ended
	ring []string
	next int
}

func (p *past) add(token string, e *ended) {
	if p.of == nil {
		p.of, p.ring = make(map[string]*ended), make([]string, mostPast)
	}
	delete(p.of, p.ring[p.next])
	p.of[token], p.ring[p.next] = e, token
	p.next = (p.next + 1) % mostPast
}

// runs is the hook that tells a gateway how the runs of its server have ended.
type runs struct{ g *Gateway }

type leaseKey struct{}

// Run gives a run its lease, and notes its end when Redis has it.
func (r runs) Run(ctx context.Context, _ delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	l := &lease{wake: make(chan struct{}, 1), ended: &ended{done: make(chan struct{})}}
	return context.WithValue(ctx, leaseKey{}, l), func(e delayq.RunEvent) { r.g.finished(l, e) }
}

// handle waits until the consumer of a job has settled it.
func (g *Gateway) handle(ctx context.Context, job *delayq.Job) error {
	l, ok := ctx.Value(leaseKey{}).(*lease)
	if !ok {
		return errors.New("gateway: the run has no lease") // the server calls every hook
	}
	l.job = job
	if !g.offer(l) {
		library.Demand(g.server, job.Topic, 1) // the taker has withdrawn what this run uses up
		return delayq.Hold(0)
	}
	timer := time.NewTimer(l.length)
	defer timer.Stop()
	for {
		select {
		case <-l.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		over, left, verdict := g.look(ctx, l)
		if over {
			return verdict
		}
		timer.Reset(left)
	}
}

// look reports whether a lease is over, and what the handler returns then.
func (g *Gateway) look(ctx context.Context, l *lease) (over bool, left time.Duration, verdict error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch left = time.Until(l.until); {
	case l.settled != "":
		return true, 0, l.verdict
	case ctx.Err() != nil:
		cause := context.Cause(ctx)
		l.lost = lossOf(cause)
		return true, 0, cause
	case left <= 0:
		l.lost = lostExpired
		return true, 0, delayq.RetryIn(0, fmt.Errorf("the consumer neither settled the job nor extended its lease of %v", l.length))
	}
	return false, left, nil
}

// Why a lease is over.
const (
	lostExpired   = "expired"
	lostCancelled = "cancelled"
	lostReplaced  = "replaced"
	lostTimeout   = "timeout"
	lostStopped   = "stopped"
	lostLeases    = "lease_lost"
	lostReturned  = "returned"
)

// lossOf returns why a lease is over whose run was cancelled.
func lossOf(cause error) string {
	switch {
	case errors.Is(cause, delayq.ErrCancelled):
		return lostCancelled
	case errors.Is(cause, delayq.ErrReplaced):
		return lostReplaced
	case errors.Is(cause, delayq.ErrTimeout):
		return lostTimeout
	case errors.Is(cause, delayq.ErrShutdown):
		return lostStopped
	}
	return lostLeases
}

// given notes that a consumer gets the job. Gateway.mu must be held.
func (l *lease) given(g *Gateway, t *topic, k *taker) {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // it never fails
	l.token = base64.RawURLEncoding.EncodeToString(append(g.instance[:len(g.instance):len(g.instance)], secret[:]...))
	l.topic, l.who, l.length, l.until = t, k.who, k.lease, time.Now().Add(k.lease)
	l.ended.topic, l.ended.id = l.job.Topic, l.job.ID
	g.leases[l.token] = l
	g.held++
	t.held++
}

// finished notes that Redis has the outcome of a run, or that the server could not tell it.
func (g *Gateway) finished(l *lease, e delayq.RunEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end := l.ended
	end.outcome, end.err, end.settled, end.lost = e.Outcome, e.Err, l.settled, l.lost
	if l.token != "" {
		delete(g.leases, l.token)
		g.past.add(l.token, end)
		g.held--
		g.shareOf(l.who).leases--
		g.freed(l.who)
		l.topic.held--
		l.topic.used = time.Now()
		g.Metrics.ended(l, e.Outcome)
	}
	close(end.done)
}

// found is what a token stands for: a lease that a consumer has, or one that is over.
func (g *Gateway) foundLocked(topicName string, id text, token string) (*lease, *ended, *problem) {
	l, end := g.leases[token], g.past.of[token]
	if l != nil {
		end = l.ended
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	switch {
	case end != nil && end.topic == topicName && (id == "" || string(id) == end.id):
		return l, end, nil
	case end != nil && end.topic == topicName:
		p := wrong("id", "the lease is not of job %q", id)
		return nil, nil, p
	case err == nil && len(raw) == len(g.instance)+16 && [8]byte(raw) != g.instance:
		p := newProblem(foreignLease, "another process of the gateway has given the lease; send the request there. Otherwise the job returns when the lease ends")
		p.Reason = "foreign"
		return nil, nil, p
	}
	p := newProblem(lostLease, "no job is leased with this token: it never was in this topic, or the lease is long over")
	p.Reason = "unknown"
	return nil, nil, p
}

// lostProblem is that of a lease which is over although the consumer has not settled the job.
func lostProblem(why string) *problem {
	p := newProblem(lostLease, "%s", map[string]string{
		lostExpired:   "it ended before the job was settled; the job is given to the next consumer",
		lostCancelled: "the job was cancelled",
		lostReplaced:  "the job was replaced",
		lostTimeout:   "the timeout of the job was over",
		lostStopped:   "the gateway was stopping; the job is ready again",
		lostLeases:    "Redis did not have the lease any more",
		lostReturned:  "the answer to the take could not be written; the job is ready again",
	}[why])
	p.Reason = why
	return p
}

// giveBack returns jobs that no consumer has got. They use up no attempt.
func (g *Gateway) giveBack(list []*lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range list {
		if l.settled == "" && l.lost == "" {
			l.settled, l.verdict, l.lost = "returned", delayq.Hold(0), lostReturned
			l.signal()
		}
	}
}

// signal wakes the handler of a lease.
func (l *lease) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // it has yet to look
	}
}
