package delayq

// A turn says when a loop last began a turn, and by when it must move on. Both are in nanos.
type turn struct {
	name        string
	turned, due int64 // turned is 0 before the first turn
}

func (g *sign) turnOf(name string) turn { return turn{name, g.turned.Load(), g.due()} }

// turning returns the turns of loops in lists, without those that are over. A loop that waits in
// the queue of its pool is not late before a goroutine of the pool must move on: these may all wait
// for Redis.
func (ls *loops) turning(lists [][]*loop) [][]turn {
	until := make(map[*loopPool]int64)
	for _, list := range lists {
		ls.mu.Lock()
		for _, l := range list {
			if l.state != loopRuns {
				continue
			}
			if by, ok := until[l.on]; !ok || l.sign.due() > by {
				until[l.on] = l.sign.due()
			}
		}
		ls.mu.Unlock()
	}
	all := make([][]turn, len(lists))
	for i, list := range lists {
		ls.mu.Lock()
		for _, l := range list {
			if one, over := l.turnLocked(until); !over {
				all[i] = append(all[i], one)
			}
		}
		ls.mu.Unlock()
	}
	return all
}

// turnLocked returns the turn of a loop, and reports whether it is over. until has, for each pool,
// the latest time by which one of its goroutines must move on.
func (l *loop) turnLocked(until map[*loopPool]int64) (t turn, over bool) {
	t = turn{l.name, l.sign.turned.Load(), never}
	switch l.state {
	case loopIsOver:
		return t, true
	case loopRuns:
		t.due = l.sign.due()
	case loopQueued:
		t.due = max(l.sign.due(), l.on.popped)
		if by, runs := until[l.on]; runs {
			t.due = max(t.due, by)
		}
	default:
		if l.index >= 0 {
			t.due = nanosOf(l.at)
		}
	}
	return t, false
}

// keptTurns returns the turns of the loops that have goroutines of their own.
func (k *keeper) keptTurns() []turn {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]turn, 0, len(k.kept))
	for one := range k.kept {
		list = append(list, one.sign.turnOf(one.name))
	}
	return list
}
