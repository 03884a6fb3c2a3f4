package loop

// A Turn says when a loop last began a turn, and by when it must move on. Both are in nanos.
type Turn struct {
	Name        string
	Turned, Due int64 // turned is 0 before the first turn
}

func (g *Sign) TurnOf(name string) Turn { return Turn{name, g.turned.Load(), g.due()} }

// Turns returns the turns of loops in lists, without those that are over. A loop that waits in
// the queue of its pool is not late before a goroutine of the pool must move on: these may all wait
// for Redis.
func (ls *Group) Turns(lists [][]*Loop) [][]Turn {
	until := make(map[*Pool]int64)
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
	all := make([][]Turn, len(lists))
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
func (l *Loop) turnLocked(until map[*Pool]int64) (t Turn, over bool) {
	t = Turn{l.Name, l.sign.turned.Load(), Never}
	switch l.state {
	case loopIsOver:
		return t, true
	case loopRuns:
		t.Due = l.sign.due()
	case loopQueued:
		t.Due = max(l.sign.due(), l.on.popped)
		if by, runs := until[l.on]; runs {
			t.Due = max(t.Due, by)
		}
	default:
		if l.index >= 0 {
			t.Due = nanosOf(l.at)
		}
	}
	return t, false
}

// KeptTurns returns the turns of the loops that have goroutines of their own.
func (k *keeper) KeptTurns() []Turn {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]Turn, 0, len(k.kept))
	for one := range k.kept {
		list = append(list, one.sign.TurnOf(one.name))
	}
	return list
}
