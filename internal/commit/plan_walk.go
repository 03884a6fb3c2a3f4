package commit

import (
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A plan can be sent again by another sender, with another map, and each of its calls must have the
// same operations then. So a plan always begins at home, and goes through all generations that
// there have been while its receipts are kept. Which operations a place gets depends only on what
// the places before it have said, and they say the same again.

// walk carries out operations that the home has sent elsewhere.
func (p *planned) walk(list []*Op) {
	topic := list[0].Topic
	w := walk{all: p.all, ctx: p.ctx, topic: topic, send: p.send, inTurn: true, asked: part.Home, home: true}
	for len(list) > 0 && p.err == nil {
		past, err := p.all.readPast(p.ctx, topic)
		if err != nil {
			p.err = err
			return
		}
		newer := false
		for _, g := range past {
			if g.Number <= w.asked || len(list) == 0 || p.err != nil {
				continue
			}
			newer = true
			w.ask(g, list)
			list = left(list)
		}
		if !newer {
			p.nowhere(list)
			return
		}
	}
}

// nowhere ends operations that no generation has answered. New jobs wait until there is one.
func (p *planned) nowhere(list []*Op) {
	for _, o := range list {
		if o.Fresh != nil {
			p.err = script.Unsent(errClosed)
			return
		}
	}
	for _, o := range list {
		o.Letter = script.LetterGone
	}
}
