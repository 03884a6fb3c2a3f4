package delayq

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/loop"
)

// A state of a server.
type state string

const (
	stateNew      state = "new"      // run has not been called
	stateStarting state = "starting" // it waits for Redis to answer
	stateRunning  state = "running"
	stateDraining state = "draining" // its running handlers continue
	stateStopped  state = "stopped"  // it will not run again
)

// A health is what delayq.Health says, by the same names.
type health struct {
	state     state
	since     time.Time
	answered  time.Time
	awaySince time.Time
	cause     error
	failed    time.Time
	topics    []topicHealth
	loops     []loopHealth
	late      []lateLoop
}

// A topicHealth is what delayq.TopicHealth says. oldest is the ID of the job that runs longest.
type topicHealth struct {
	topic                  string
	workers, running, held int
	pool                   string
	oldest                 string
	ran                    time.Duration
	failing                map[string]string
}

// A loopHealth is a delayq.LoopHealth.
type loopHealth struct {
	Name  string
	Count int
	Late  int
	Age   time.Duration
}

// A lateLoop is a delayq.LateLoop.
type lateLoop struct {
	Name  string
	Topic string
	Late  time.Duration
}

// health returns how the server is doing. It makes no call, and waits for none.
func (s *engine) health() health {
	now := s.life.Load()
	h := health{state: now.state, since: now.since}
	if now.state == stateNew || !now.begun {
		return h
	}
	h.answered = s.pulse.Latest()
	if news := s.outage.known.Load(); news != nil {
		h.cause, h.failed, h.awaySince = news.cause, news.at, news.since
	}
	if now.state != stateRunning && now.state != stateDraining {
		return h
	}
	topics := s.topics.all()
	h.topics = make([]topicHealth, len(topics))
	for i, t := range topics {
		h.topics[i] = t.health(time.Now())
	}
	h.loops, h.late = s.turning(topics)
	return h
}

// clockOffset returns how far Redis's clock is ahead of the local one, as the replies of the last
// topic that has any show. It can be too small by the travel time of a reply.
func (s *engine) clockOffset() (ahead time.Duration) {
	for _, t := range s.topics.all() {
		if now := time.Now(); t.clock.known() {
			return t.clock.at(now).Sub(now)
		}
	}
	return 0
}

// A life is a state of a server.
type life struct {
	state state
	since time.Time
	begun bool // begin has returned nil
}

// enter notes that the server enters a state.
func (s *engine) enter(state state) {
	was := s.life.Load()
	begun := state == stateStarting || was != nil && was.begun
	s.life.Store(&life{state, time.Now(), begun})
}

// health describes what the server does for the topic.
func (t *topicServer) health(now time.Time) topicHealth {
	h := topicHealth{topic: t.keys.Topic, failing: t.trouble.failing()}
	at := t.clock.at(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	h.workers, h.running, h.held = t.workers.Count, t.workers.Busy, len(t.owned.Runs)
	if m := t.workers.Member; m != nil {
		h.pool = m.Pool.Name
	}
	for r := range t.owned.Running {
		if ran := at.Sub(r.Start); h.oldest == "" || ran > h.ran {
			h.oldest, h.ran = strings.ToValidUTF8(r.ID, "\uFFFD"), ran
		}
	}
	return h
}

// all returns the loops of a topic.
func (l *topicLoops) all() []*loop.Loop {
	return []*loop.Loop{l.promote, l.take, l.takeMore, l.extend, l.settle, l.settleMore}
}

// slack returns how late a loop can be before it counts as late.
func (s *engine) slack() time.Duration { return max(3*s.config.tick, time.Second) }

// turning describes the loops of a running server.
func (s *engine) turning(topics []*topicServer) (all []loopHealth, late []lateLoop) {
	now := loop.Nanos()
	by := make(map[string]*loopHealth)
	note := func(topic string, t loop.Turn) {
		l := by[t.Name]
		if l == nil {
			l = &loopHealth{Name: t.Name}
			by[t.Name] = l
		}
		l.Count++
		if t.Turned != 0 {
			l.Age = max(l.Age, time.Duration(now-t.Turned))
		}
		if t.Due == loop.Never || time.Duration(now-t.Due) <= s.slack() {
			return
		}
		l.Late++
		late = append(late, lateLoop{Name: t.Name, Topic: topic, Late: time.Duration(now - t.Due)})
	}
	lists := make([][]*loop.Loop, len(topics))
	for i, t := range topics {
		lists[i] = t.loops.all()
	}
	for i, turns := range s.loops.Turns(lists) {
		topic := topics[i].keys.Topic
		for _, one := range turns {
			note(topic, one)
		}
		if topics[i].popping.Load() {
			note(topic, topics[i].waitSign.TurnOf("wait"))
		}
	}
	for _, one := range s.loops.KeptTurns() {
		note("", one)
	}
	for _, l := range by {
		all = append(all, *l)
	}
	slices.SortFunc(all, func(a, b loopHealth) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(late, func(a, b lateLoop) int {
		return cmp.Or(cmp.Compare(b.Late, a.Late), strings.Compare(a.Topic, b.Topic), strings.Compare(a.Name, b.Name))
	})
	return all, late
}
