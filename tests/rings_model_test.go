package tests

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What follows explores who is woken: two servers of one slot, two jobs, and every order in which
// the halves of their calls, rings, ticks, ends of handlers, a stop and faults can come. It is a
// model: its steps do what ring.lua, take.lua and watch.lua do, which TestPushesRing…,
// TestTakeRegisters… and TestWatchTells… hold to the scripts on their own. With the real scripts
// the states would be too many.
//
// From each settled state, in which nothing is on its way, ticks are played in all orders. A job is
// late by the rounds of ticks that pass until no job is ready while a living server has a free
// slot. A server is deaf by those that pass until it is in idle again.

// Lives of a server.
const (
	lifeUp = iota
	lifeFrozen
	lifeLeaving // it takes no more
	lifeGone
)

// States of a call of take.
const (
	callNone = iota
	callSent
	callAnswered // and the answer is on its way
)

// Places of a job; jobLeased + n is leased to the server n.
const (
	jobUnborn = iota
	jobReady
	jobDone
	jobLeased
)

// A ringServer is what there is of a server: what it believes, and what is on its way to or from
// it.
type ringServer struct {
	life       uint8
	runs       bool // its slot is taken
	wants      bool // it will take as soon as it can
	listed     bool // it may be in idle, as far as it knows
	left       bool // it has ended its wait for good
	call       uint8
	sentListed bool
	got, waits bool // the answer
	open       bool // a take whose answer was lost has leased a job
	rings      uint8
	passes     bool // a call that passes a ring on
	news       bool // a watch that says: take
	registers  bool // a call that only registers; in a mutant alone
}

// A ringWorld is a state of the exploration.
type ringWorld struct {
	jobs    [2]uint8
	idle    [2]int8 // numbers of servers, the longest waiting first; -1 at the end
	servers [2]ringServer
	faults  uint8 // how many there were
	stops   uint8
}

// A ringDesign says what is left out of the design.
type ringDesign struct {
	registersApart, watchesNoReady, watchesNoName, ringsIfEmpty, ringsNobody bool
	keepsName, passesNothing, stopsSilently, leavesSilently, leavesIfListed  bool
	passesLeaving                                                            bool
}

// A ringScope bounds an exploration.
type ringScope struct{ faults, stops uint8 }

func newRingWorld() ringWorld {
	w := ringWorld{idle: [2]int8{-1, -1}}
	for i := range w.servers {
		w.servers[i].wants = true
	}
	return w
}

func (w *ringWorld) waits(i int) bool { return slices.Contains(w.idle[:], int8(i)) }

func (w *ringWorld) add(i int) {
	if !w.waits(i) {
		w.idle[slices.Index(w.idle[:], -1)] = int8(i)
	}
}

func (w *ringWorld) remove(i int) {
	if w.idle[0] == int8(i) {
		w.idle[0], w.idle[1] = w.idle[1], -1
	} else if w.idle[1] == int8(i) {
		w.idle[1] = -1
	}
}

func (w *ringWorld) ready() (n int) {
	for _, job := range w.jobs {
		if job == jobReady {
			n++
		}
	}
	return n
}

// move puts a job from one place into another, and reports whether there was one.
func (w *ringWorld) move(from, to uint8) bool {
	i := slices.Index(w.jobs[:], from)
	if i >= 0 {
		w.jobs[i] = to
		slices.Sort(w.jobs[:]) // they are alike
	}
	return i >= 0
}

// ring is that of the prelude.
func (w *ringWorld) ring(jobs int) {
	for jobs > 0 && w.idle[0] >= 0 {
		i := w.idle[0]
		w.remove(int(i))
		if s := &w.servers[i]; s.life != lifeGone {
			s.rings++
			jobs--
		}
	}
}

// take is the take script, as the server i calls it for its one slot.
func (d ringDesign) take(w *ringWorld, i int) {
	s := &w.servers[i]
	listed := s.sentListed
	s.call, s.sentListed = callAnswered, false
	switch {
	case s.open: // its receipt
		s.open, s.got, s.waits = false, true, w.waits(i)
	case w.move(jobReady, jobLeased+uint8(i)):
		s.got = true
		if listed && !d.keepsName {
			w.remove(i)
		}
	case !d.registersApart:
		w.add(i)
		s.waits = true
	}
	if s.life == lifeGone {
		*s = ringServer{life: lifeGone}
	}
}

// answer is what a server does when the answer to its take arrives.
func (d ringDesign) answer(s *ringServer) {
	s.call, s.listed = callNone, s.waits
	switch {
	case s.got:
		s.runs = true
		s.passes = s.passes || s.wants && !d.passesNothing
		s.wants = false
	case d.registersApart:
		s.registers = true
	}
	s.got, s.waits = false, false // it has been read
}

// inner gives the states that come about without anybody else: what is on its way arrives.
func (d ringDesign) inner(w ringWorld) (list []ringWorld) {
	step := func(can bool, do func(n *ringWorld, s *ringServer), i int) {
		if can {
			n := w
			do(&n, &n.servers[i])
			list = append(list, n)
		}
	}
	for i, s := range w.servers {
		up, acts := s.life == lifeUp, s.life == lifeUp || s.life == lifeLeaving
		step(up && s.wants && !s.runs && s.call == callNone && !s.registers, func(_ *ringWorld, s *ringServer) {
			s.call, s.sentListed, s.wants = callSent, s.listed || s.open, false
		}, i)
		step(s.call == callSent, func(n *ringWorld, _ *ringServer) { d.take(n, i) }, i)
		step(acts && s.call == callAnswered, func(_ *ringWorld, s *ringServer) { d.answer(s) }, i)
		step(acts && s.rings > 0, func(_ *ringWorld, s *ringServer) {
			s.rings--
			switch s.listed = false; {
			case s.life == lifeLeaving:
			case s.runs:
				s.passes = !d.passesNothing
			default:
				s.wants = true
			}
		}, i)
		step(acts && s.passes, func(n *ringWorld, s *ringServer) {
			if s.passes = false; d.passesLeaving {
				n.remove(i)
			}
			n.ring(min(1, n.ready()))
		}, i)
		step(acts && s.news, func(_ *ringWorld, s *ringServer) {
			if s.news = false; s.life == lifeUp && !s.runs {
				s.wants, s.listed = true, true
			}
		}, i)
		step(s.registers, func(n *ringWorld, s *ringServer) {
			s.registers, s.listed = false, true
			n.add(i)
		}, i)
		leaving := s.life == lifeLeaving && s.call == callNone
		step(leaving && s.open, func(n *ringWorld, s *ringServer) { // a take with a limit of 0
			s.open = false
			n.move(jobLeased+uint8(i), jobReady)
		}, i)
		step(leaving && !s.open && !s.left, func(n *ringWorld, s *ringServer) {
			s.left = true
			if d.stopsSilently || d.leavesIfListed && !s.listed {
				return
			}
			n.remove(i)
			if !d.leavesSilently {
				n.ring(n.ready())
			}
		}, i)
		step(leaving && s.left && !s.runs && !s.passes, func(_ *ringWorld, s *ringServer) {
			*s = ringServer{life: lifeGone}
		}, i)
	}
	return list
}

// tick is the watch of a server.
func (d ringDesign) tick(w *ringWorld, i int) {
	w.servers[i].news = w.ready() > 0 && !d.watchesNoReady || !w.waits(i) && !d.watchesNoName
}

// outer gives the states that somebody or something else brings about.
func (d ringDesign) outer(w ringWorld, scope ringScope) (list []ringWorld) {
	step := func(can bool, do func(n *ringWorld)) {
		if can {
			n := w
			do(&n)
			list = append(list, n)
		}
	}
	step(slices.Contains(w.jobs[:], jobUnborn), func(n *ringWorld) {
		before := n.ready()
		n.move(jobUnborn, jobReady)
		if !d.ringsNobody && (before == 0 || !d.ringsIfEmpty) {
			n.ring(1)
		}
	})
	for i, s := range w.servers {
		acts := s.life == lifeUp || s.life == lifeLeaving
		step(acts && s.runs, func(n *ringWorld) {
			n.move(jobLeased+uint8(i), jobDone)
			n.servers[i].runs, n.servers[i].wants = false, s.life == lifeUp
		})
		step(s.life == lifeUp, func(n *ringWorld) { d.tick(n, i) })
		step(s.life == lifeUp && w.stops < scope.stops, func(n *ringWorld) {
			n.stops++
			n.servers[i].life, n.servers[i].wants = lifeLeaving, false
		})
		step(s.life == lifeFrozen, func(n *ringWorld) { n.servers[i].life = lifeUp })
		step(s.life == lifeGone && slices.Contains(w.jobs[:], jobLeased+uint8(i)), func(n *ringWorld) {
			n.move(jobLeased+uint8(i), jobReady) // promote
			n.ring(1)
		})
		fault := func(can bool, do func(n *ringWorld, s *ringServer)) {
			step(can && w.faults < scope.faults, func(n *ringWorld) { n.faults++; do(n, &n.servers[i]) })
		}
		fault(s.life != lifeGone, func(_ *ringWorld, s *ringServer) {
			call := s.call
			listed := s.sentListed
			if *s = (ringServer{life: lifeGone}); call == callSent {
				s.call, s.sentListed = callSent, listed // it arrives all the same
			}
		})
		fault(s.life == lifeUp, func(_ *ringWorld, s *ringServer) { s.life = lifeFrozen })
		fault(s.rings > 0, func(_ *ringWorld, s *ringServer) { s.rings-- })
		fault(acts && s.call == callAnswered, func(_ *ringWorld, s *ringServer) {
			s.call, s.open, s.listed, s.wants = callNone, s.got, true, s.life == lifeUp
			s.got, s.waits = false, false
		})
	}
	return list
}

// A ringExplorer visits all states of a scope.
type ringExplorer struct {
	ringDesign
	settled map[ringWorld][]ringWorld // where what is on its way leads to
}

// settle gives the settled states to which the steps of inner lead.
func (x *ringExplorer) settle(from ringWorld) (list []ringWorld) {
	if list, ok := x.settled[from]; ok {
		return list
	}
	seen, ends := map[ringWorld]bool{from: true}, map[ringWorld]bool{}
	for queue := []ringWorld{from}; len(queue) > 0; queue = queue[1:] {
		next := x.inner(queue[0])
		if len(next) == 0 {
			ends[queue[0]] = true
		}
		for _, n := range next {
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	for end := range ends {
		list = append(list, end)
	}
	x.settled[from] = list
	return list
}

// rounds counts the rounds of ticks until something is over, at worst; most means for ever.
func (x *ringExplorer) rounds(w ringWorld, is func(w *ringWorld) bool, most int) (worst int) {
	if most == 0 || !is(&w) {
		return 0
	}
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		states := []ringWorld{w}
		for _, i := range order {
			after := map[ringWorld]bool{}
			for _, s := range states {
				if s.servers[i].life == lifeUp {
					x.tick(&s, i)
				}
				for _, end := range x.settle(s) {
					after[end] = true
				}
			}
			states = states[:0:0]
			for s := range after {
				states = append(states, s)
			}
		}
		for _, s := range states {
			worst = max(worst, 1+x.rounds(s, is, most-1))
		}
	}
	return worst
}

// isLate reports whether a job is ready while a living server has a free slot.
func (w *ringWorld) isLate() bool {
	return w.ready() > 0 && slices.ContainsFunc(w.servers[:], func(s ringServer) bool { return s.life == lifeUp && !s.runs })
}

// isDeaf reports whether a living server with a free slot is not in idle.
func (w *ringWorld) isDeaf() bool {
	for i, s := range w.servers {
		if s.life == lifeUp && !s.runs && !w.waits(i) {
			return true
		}
	}
	return false
}

// A ringVerdict is the worst that an exploration has found, in rounds of ticks.
type ringVerdict struct {
	late, lateByFault, deaf, deafByFault int
	states                               int
}

// exploreRings visits the states of a scope until it has found enough, and judges the settled ones.
func exploreRings(d ringDesign, scope ringScope, enough func(v ringVerdict) bool) (v ringVerdict) {
	x := &ringExplorer{d, map[ringWorld][]ringWorld{}}
	start := newRingWorld()
	seen := map[ringWorld]bool{start: true}
	for queue := []ringWorld{start}; len(queue) > 0 && !enough(v); {
		w := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		next := x.inner(w)
		if len(next) == 0 {
			late, deaf := x.rounds(w, (*ringWorld).isLate, ringForever), x.rounds(w, (*ringWorld).isDeaf, ringForever)
			if w.faults == 0 {
				v.late, v.deaf = max(v.late, late), max(v.deaf, deaf)
			} else {
				v.lateByFault, v.deafByFault = max(v.lateByFault, late), max(v.deafByFault, deaf)
			}
		}
		for _, n := range append(next, x.outer(w, scope)...) {
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	v.states = len(seen)
	return v
}

// ringForever is a number of rounds after which something is not over and will never be.
const ringForever = 3

// Without a fault no job waits for a tick, and after faults for one, never for two.
// DELAYQ_EXPLORE=all explores more of them.
func TestExploreWhoIsWoken(t *testing.T) {
	t.Parallel()
	scopes := map[string]ringScope{"no fault": {0, 0}, "a stop": {0, 1}, "a fault": {1, 0}}
	if testing.Short() {
		delete(scopes, "a stop")
		delete(scopes, "a fault")
	}
	if os.Getenv("DELAYQ_EXPLORE") == "all" {
		maps.Copy(scopes, map[string]ringScope{
			"two stops": {0, 2}, "a fault and a stop": {1, 1}, "two faults": {2, 0}, "two faults and a stop": {2, 1}, "three faults": {3, 0},
		})
	}
	for name, scope := range scopes {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			v := exploreRings(ringDesign{}, scope, func(ringVerdict) bool { return false })
			t.Logf("%+v in %v", v, time.Since(began).Round(time.Millisecond))
			require.Zero(t, v.late, "without a fault a job waits for a tick")
			require.Zero(t, v.deaf, "without a fault a server with a free slot is not in idle")
			require.LessOrEqual(t, v.lateByFault, 1)
			require.LessOrEqual(t, v.deafByFault, 1)
			require.Greater(t, v.states, 500)
		})
	}
}

// Each part of the design is needed: the exploration finds what breaks without it.
func TestExploreFindsWhatWakesNobody(t *testing.T) {
	t.Parallel()
	late := func(v ringVerdict) bool { return v.late > 0 }
	for name, c := range map[string]struct {
		design ringDesign
		scope  ringScope
		found  func(v ringVerdict) bool
	}{
		"take registers in a call of its own": {ringDesign{registersApart: true}, ringScope{0, 0}, late},
		"a push rings only into empty ready":  {ringDesign{ringsIfEmpty: true}, ringScope{0, 0}, late},
		"a push rings nobody":                 {ringDesign{ringsNobody: true}, ringScope{0, 0}, late},
		"full servers stay, and pass nothing": {ringDesign{keepsName: true, passesNothing: true}, ringScope{0, 0}, late},
		"a stop without leaving":              {ringDesign{stopsSilently: true}, ringScope{0, 1}, late},
		"a stop that rings nobody":            {ringDesign{leavesSilently: true}, ringScope{0, 1}, late},
		"a stop that leaves only if listed":   {ringDesign{leavesIfListed: true}, ringScope{0, 1}, late},
		"who passes a ring on leaves":         {ringDesign{passesLeaving: true}, ringScope{0, 0}, func(v ringVerdict) bool { return v.deaf > 0 }},
		"the watch does not look at ready": {ringDesign{watchesNoReady: true}, ringScope{1, 0},
			func(v ringVerdict) bool { return v.lateByFault == ringForever }},
		"the watch does not look at idle": {ringDesign{watchesNoName: true}, ringScope{1, 0},
			func(v ringVerdict) bool { return v.deafByFault == ringForever }},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && c.scope != (ringScope{}) {
				t.Skip("many states")
			}
			v := exploreRings(c.design, c.scope, c.found)
			require.True(t, c.found(v), "not found: %+v", v)
		})
	}
}
