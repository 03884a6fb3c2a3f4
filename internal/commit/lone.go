package commit

import (
	"strconv"

	"github.com/delayq/delayq/internal/script"
)

// firstNumber is less than all numbers of the calls of a topic. So these have ten digits, and the
// scripts for lone jobs compare them as texts.
const (
	firstNumber = 1_000_000_000
	digits      = 10
)

// loneWords are the words of a script for a lone job that are made for the call, Unix ms.
type loneWords struct {
	at, due string
}

// loneScript returns the script that stores a job alone, if there is one, and when the job is due;
// 0: now.
func (n guess) loneScript(f *Fresh) (which *script.Script, due int64) {
	if n.least == 0 || !f.plain() {
		return nil, 0
	}
	switch due = f.Opts.Due(n.stamp(f)); {
	case due > n.most:
		return script.EnqueueLater, due
	case due <= n.least:
		return script.EnqueueNow, 0
	}
	return nil, 0
}

// fillLone makes the call of a script for a lone job, and reports whether there is one.
func (s *sending) fillLone(g *Group) bool {
	o := s.list[0]
	which, due := s.guess.loneScript(o.Fresh)
	if which == nil || len(s.number) != digits {
		return false
	}
	s.guess.stampAll(s.list, 0)
	var text [64]byte
	at := len(strconv.AppendInt(text[:0], o.Fresh.stamp, 10))
	both := string(strconv.AppendInt(text[:at], due, 10))
	s.lone = loneWords{both[:at], both[at:]}
	s.Set(g.listOf(which), s.series.Receipt(g.keys), 1, 5)
	s.Add(&s.number, &o.ID, (*wholeWord)(&o.Fresh.Draft), &s.lone.at)
	if due > 0 {
		s.Add(&s.lone.due)
	}
	return true
}

// refill makes the call of lua/enqueue.lua after a script for a lone job that has done nothing, and
// reports whether it had to. It is the same call in its series.
func (s *sending) refill(g *Group) bool {
	if s.lone.at == "" || s.Err != nil || s.Reply.Status() != script.StatusKnown {
		return false
	}
	s.Renew()
	s.lone = loneWords{}
	s.fill(g, s.kind.Script, s.kind.words(g))
	return true
}
