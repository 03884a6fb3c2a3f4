package serve

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// surveyLoop finds the topics that need a prune, and makes them prune. With few topics it makes all
// of them prune.
func (s *Server) surveyLoop(ctx context.Context) {
	asked := trouble{name: "survey", log: s.Log, outage: s.outage}
	var all time.Time
	for {
		topics := s.Topics.all()
		switch {
		case len(topics) <= MostBlocked, s.watch.off.Load(), time.Since(all) > PruneAll:
			all = time.Now()
			for _, t := range topics {
				t.askPrune()
			}
		default:
			by := make(map[*Node][]watched)
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
		if !loop.Sleep(ctx, PruneEvery+rand.N(s.Config.Tick).Truncate(time.Millisecond)) {
			return
		}
	}
}

// survey is one call of the survey script.
func (s *Server) survey(ctx context.Context, n *Node, some []watched) error {
	keys := make([]any, 0, 12*len(some))
	for _, one := range some {
		k := one.topic.Keys
		keys = append(keys, k.Pool, k.Bucket, k.Leases, k.Ready, k.Handoff, k.Dead, k.Done, k.Idle, k.Results, k.Lane, k.Tombs, k.Notes)
	}
	r, err := s.askNode(ctx, n, script.Survey, keys, s.Config.DeadCount, s.Config.DeadAge.Milliseconds())
	marks := r.Text(2)
	if err == nil && len(marks) != len(some) {
		err = fmt.Errorf("survey: %w", script.ErrReply)
	}
	if err != nil {
		return err
	}
	for i, one := range some {
		if marks[i] != markNone || one.topic.promoting.pruner.open.Load() {
			one.topic.askPrune()
		}
	}
	return nil
}

// askPrune makes the topic prune.
func (t *Topic) askPrune() {
	t.promoting.pruner.due.Store(true)
	t.Loops.promote.Wake()
}

// pruneDue prunes if the topic needs it, and reports whether there is more to prune.
func (t *Topic) pruneDue(ctx context.Context) (more bool) {
	if !t.promoting.pruner.due.Swap(false) {
		return false
	}
	dead, full, err := t.prune(ctx)
	if more = err == nil && full; more {
		t.promoting.pruner.due.Store(true) // a failure is in the log; the next survey is soon enough
	}
	t.promoting.pruner.open.Store(t.promoting.pruner.number != "")
	t.promoting.pruner.note(t.trouble.log, dead, more)
	return more
}

// A pruner is the state of a topic between two calls of the prune script. Only the promote loop
// uses it.
type pruner struct {
	due    atomic.Bool // the topic needs a prune
	open   atomic.Bool // the last prune had no reply
	series *script.Series
	// Of a call without a reply. The call is repeated until it has one, because it may have removed
	// dead jobs.
	number string
	from   int64 // the rank of the dead job at which the next call goes on
	vain   int   // calls in a row that went on and removed no dead job

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
// there may be more to remove.
func (t *Topic) prune(ctx context.Context) (dead int, full bool, err error) {
	k, o, p := t.Keys, &t.Server.Config, &t.promoting.pruner
	if p.series == nil {
		p.series = script.NewSeries()
	}
	if p.number == "" {
		p.number = p.series.Next()
	}
	r, err := t.exec(ctx, topicCall{
		script: script.Prune, jobs: PruneLimit, receipt: k.Receipt(p.series.ID), outlives: true, within: prunedWrongTypes,
	}, p.number, o.DeadCount, o.DeadAge.Milliseconds(), PruneLimit, p.from, script.ControlChannel(k.Prefix()), k.Topic)
	if err == nil || script.Certain(err) {
		p.number = ""
	}
	dead = int(r.Number(2))
	done := int(r.Number(3))
	if dead+done > 0 {
		t.outside(t.Loops.promote, func() { t.Server.Config.Observer.Pruned(t.called(), dead, done) })
	}
	full = max(dead, done, int(r.Number(6)), int(r.Number(9))) >= PruneLimit || r.Number(10) == 1
	if err == nil {
		p.from = r.Number(8)
		full = p.goesOn(dead, r.Number(7) == 1) || full
	}
	if missing := r.Number(4); missing > 0 {
		t.Server.alarm(t)
	}
	return dead, full, err
}

// goesOn reports whether the walk through the dead jobs goes on at once. After many calls that
// found only jobs of a later release, it goes on with the next survey.
func (p *pruner) goesOn(dead int, more bool) bool {
	p.vain++
	if !more || dead > 0 {
		p.vain = 0
	}
	if p.vain == prunedInVain {
		more, p.vain = false, 0
	}
	return more
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
