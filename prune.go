package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// surveyLoop finds the topics that need a prune, and makes them prune. With few topics it makes all
// of them prune.
func (s *engine) surveyLoop(ctx context.Context) {
	asked := trouble{name: "survey", log: s.log, outage: s.outage}
	var all time.Time
	for {
		topics := s.topics.all()
		switch {
		case len(topics) <= mostBlocked, s.watch.off.Load(), time.Since(all) > pruneAll:
			all = time.Now()
			for _, t := range topics {
				t.askPrune()
			}
		default:
			by := make(map[*node][]watched)
			for _, t := range topics {
				if n := t.node.Load(); n != nil {
					by[n] = append(by[n], watched{topic: t})
				}
			}
			_, err := s.eachNode(ctx, by, s.survey)
			if ctx.Err() == nil {
				asked.note("survey", err)
			}
		}
		// not in step with other servers
		if !loop.Sleep(ctx, pruneEvery+rand.N(s.config.tick).Truncate(time.Millisecond)) {
			return
		}
	}
}

// survey is one call of the survey script.
func (s *engine) survey(ctx context.Context, n *node, some []watched) error {
	keys := make([]any, 0, 10*len(some))
	for _, one := range some {
		k := one.topic.keys
		keys = append(keys, k.Pool, k.Bucket, k.Leases, k.Ready, k.Handoff, k.Dead, k.Done, k.Idle, k.Results, k.Lane)
	}
	r, err := s.askNode(ctx, n, script.Survey, keys, s.config.deadCount, s.config.deadAge.Milliseconds())
	marks := r.Text(2)
	if err == nil && len(marks) != len(some) {
		err = fmt.Errorf("survey: %w", script.ErrReply)
	}
	if err != nil {
		return err
	}
	for i, one := range some {
		if marks[i] != markNone || one.topic.pruneOpen.Load() {
			one.topic.askPrune()
		}
	}
	return nil
}

// askPrune makes the topic prune.
func (t *topicServer) askPrune() {
	t.prunes.Store(true)
	t.loops.promote.Wake()
}

// pruneDue prunes if the topic needs it, and reports whether there is more to prune.
func (t *topicServer) pruneDue(ctx context.Context) (more bool) {
	if !t.prunes.Swap(false) {
		return false
	}
	dead, full, err := t.prune(ctx)
	if more = err == nil && full; more {
		t.prunes.Store(true) // a failure is in the log; the next survey is soon enough
	}
	t.pruneOpen.Store(t.pruner.number != "")
	t.pruner.note(t.trouble.log, dead, more)
	return more
}

// A pruner is the state of a topic between two calls of the prune script. Only the promote loop
// uses it.
type pruner struct {
	series *script.Series
	// Of a call without a reply. The call is repeated until it has one, because it may have removed
	// dead jobs.
	number string

	dead   int       // removed jobs that are not in the log yet
	since  time.Time // when the first of them was removed
	warned time.Time // the last line in the log
}

// note receives the number of dead jobs that a call has removed, and logs it. It writes one line
// for all jobs of one interval, at most once a minute.
func (p *pruner) note(log *slog.Logger, dead int, more bool) {
	now := time.Now()
	if dead > 0 && p.dead == 0 {
		p.since = now
	}
	p.dead += dead
	if now.Sub(p.warned) >= prunedEvery && (!more || now.Sub(p.since) >= prunedEvery) {
		p.warn(log)
	}
}

// warn logs the number of dead jobs removed since the last line.
func (p *pruner) warn(log *slog.Logger) {
	if p.dead > 0 {
		log.Warn("dead jobs pruned", "count", p.dead)
		p.dead, p.warned = 0, time.Now()
	}
}

// prune is one call of the prune script. It returns the number of dead jobs removed, and whether
// the call removed as many of one kind as it may.
func (t *topicServer) prune(ctx context.Context) (dead int, full bool, err error) {
	k, o, p := t.keys, &t.server.config, &t.pruner
	if p.series == nil {
		p.series = script.NewSeries()
	}
	if p.number == "" {
		p.number = p.series.Next()
	}
	r, err := t.exec(ctx, topicCall{
		script: script.Prune, jobs: pruneLimit, receipt: k.Receipt(p.series.ID), outlives: true, within: prunedWrongTypes,
	}, p.number, o.deadCount, o.deadAge.Milliseconds(), pruneLimit)
	if err == nil || script.Certain(err) {
		p.number = ""
	}
	dead = int(r.Number(2))
	done := int(r.Number(3))
	if dead+done > 0 {
		t.outside(t.loops.promote, func() { t.server.config.observer.Pruned(k.Topic, dead, done) })
	}
	full = max(dead, done, int(r.Number(6))) >= pruneLimit
	if missing := r.Number(4); missing > 0 {
		t.server.alarm(t)
	}
	return dead, full, err
}

// prunedWrongTypes returns the error of a prune that left out keys of a wrong type.
func prunedWrongTypes(ctx context.Context, c script.Caller, topic string, r script.Reply) error {
	wrong := r.List(5).Texts()
	if len(wrong) == 0 {
		return nil
	}
	keys := make([]any, len(wrong))
	for i, key := range wrong {
		keys[i] = key
	}
	return script.Place{Call: "prune", Topic: topic}.At(c.Blame(ctx, script.WrongKeys(wrong), keys...))
}
