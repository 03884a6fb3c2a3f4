package serve

import (
	"cmp"
	"maps"
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
	StateStopped  state = "stopped"  // it will not run again
)

// A health is what delayq.Health says, by the same names.
type health struct {
	State     state
	Since     time.Time
	Answered  time.Time
	AwaySince time.Time
	Cause     error
	Failed    time.Time
	Topics    []topicHealth
	Loops     []loopHealth
	Late      []lateLoop
}

// A topicHealth is what delayq.TopicHealth says. oldest is the ID of the job that runs longest.
type topicHealth struct {
	Topic                  string
	Workers, Running, Held int
	Pool                   string
	Oldest                 string
	Ran                    time.Duration
	Failing                map[string]string
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

// Health returns how the server is doing. It makes no call, and waits for none.
func (s *Server) Health() health {
	now := s.life.Load()
	h := health{State: now.state, Since: now.since}
	if now.state == stateNew || !now.begun {
		return h
	}
	h.Answered = s.pulse.Latest()
	if news := s.outage.known.Load(); news != nil {
		h.Cause, h.Failed, h.AwaySince = news.cause, news.at, news.since
	}
	if now.state != stateRunning && now.state != stateDraining {
		return h
	}
	topics := s.Topics.all()
	h.Topics = make([]topicHealth, 0, len(topics))
	at := make(map[*Topic]int)
	for _, t := range topics { // a topic comes before its partitions
		one := t.health(time.Now())
		if i, known := at[t.config.home]; known {
			h.Topics[i].add(one)
			continue
		}
		at[t] = len(h.Topics)
		h.Topics = append(h.Topics, one)
	}
	h.Loops, h.Late = s.turning(topics)
	return h
}

// ClockOffset returns how far Redis's clock is ahead of the local one, as the replies of the last
// topic that has any show. It can be too small by the travel time of a reply.
func (s *Server) ClockOffset() (ahead time.Duration) {
	for _, t := range s.Topics.all() {
		if now := time.Now(); t.clock.Known() {
			return t.clock.At(now).Sub(now)
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

// Enter notes that the server enters a state.
func (s *Server) Enter(state state) {
	was := s.life.Load()
	begun := state == stateStarting || was != nil && was.begun
	s.life.Store(&life{state, time.Now(), begun})
}

// health describes what the server does for the topic.
func (t *Topic) health(now time.Time) topicHealth {
	h := topicHealth{Topic: t.called(), Failing: t.trouble.failing()}
	at := t.clock.At(now)
	t.Mu.Lock()
	defer t.Mu.Unlock()
	h.Workers, h.Running, h.Held = t.Workers.Count, t.Workers.Busy, len(t.owned.Runs)
	if m := t.Workers.Member; m != nil {
		h.Pool = m.Pool.Name
	}
	if t.Workers.OnDemand && t.Workers.shared != nil {
		h.Workers = t.Workers.shared.Total()
	}
	for r := range t.owned.Running {
		if ran := at.Sub(r.Start); h.Oldest == "" || ran > h.Ran {
			h.Oldest, h.Ran = strings.ToValidUTF8(r.ID, "\uFFFD"), ran
		}
	}
	return h
}

// add adds what the server does for a partition of the topic.
func (h *topicHealth) add(p topicHealth) {
	h.Running, h.Held = h.Running+p.Running, h.Held+p.Held
	if p.Ran > h.Ran || h.Oldest == "" {
		h.Oldest, h.Ran = p.Oldest, p.Ran
	}
	if len(p.Failing) > 0 {
		failing := maps.Clone(p.Failing)
		maps.Copy(failing, h.Failing)
		h.Failing = failing
	}
}

// All returns the loops of a topic.
func (l *topicLoops) All() []*loop.Loop {
	return []*loop.Loop{l.promote, l.take, l.takeMore, l.extend, l.settle, l.settleMore}
}

// slack returns how late a loop can be before it counts as late.
func (s *Server) slack() time.Duration { return max(3*s.Config.Tick, time.Second) }

// turning describes the loops of a running server.
func (s *Server) turning(topics []*Topic) (all []loopHealth, late []lateLoop) {
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
		lists[i] = t.Loops.All()
	}
	for i, turns := range s.loops.Turns(lists) {
		topic := topics[i].called()
		for _, one := range turns {
			note(topic, one)
		}
		if topics[i].taking.wait.popping.Load() {
			note(topic, topics[i].taking.wait.sign.TurnOf("wait"))
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
