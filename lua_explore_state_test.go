package delayq

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// next makes the state after another, to be worked on.
func (w *world) next(what string) *world {
	n := *w
	n.m, n.gone, n.taken = w.m.clone(), maps.Clone(w.gone), maps.Clone(w.taken)
	n.said = maps.Clone(w.said)
	n.m.us += 1000
	n.depth, n.before, n.step = w.depth+1, w, what
	for i := range n.servers {
		n.servers[i].held = slices.Clone(n.servers[i].held)
	}
	return &n
}

func (m *model) clone() *model {
	n := *m
	n.jobs = make(map[string]*modelJob, len(m.jobs))
	for id, j := range m.jobs {
		own := *j
		own.log = slices.Clone(j.log)
		n.jobs[id] = &own
	}
	n.ready, n.handoff = slices.Clone(m.ready), slices.Clone(m.handoff)
	n.done, n.stats, n.pauses = maps.Clone(m.done), maps.Clone(m.stats), maps.Clone(m.pauses)
	return &n
}

// key tells what a state is, without what makes no difference: absolute times and numbers, and
// which of the servers is which.
func (w *world) key() string {
	var b strings.Builder
	ticks := func(us int64) int64 {
		return max(0, (us-w.m.us+exploreTick.Microseconds()-1)/exploreTick.Microseconds())
	}
	for _, id := range exploredIDs {
		j := w.m.jobs[id]
		if j == nil {
			b.WriteString("-;")
			continue
		}
		fmt.Fprint(&b, j.in, ticks(j.score*1000), j.attempts, j.log)
		if m, ok := record.DecodeMoved(j.moved); ok {
			fmt.Fprint(&b, ticks(m.Due*1000), m.Why, m.Spent, m.Revived) // how often it was snoozed makes no difference
		}
		rec, _ := record.Decode(j.record) // the model made it
		fmt.Fprint(&b, ticks(rec.Due()*1000), ";")
	}
	fmt.Fprint(&b, w.m.sorted(inBucket), w.m.sorted(inLeases), w.m.sorted(inDead), w.m.ready, w.m.handoff, w.left, w.once("enqueue a"), w.once("enqueue b"))
	for _, by := range w.m.paused() {
		fmt.Fprint(&b, " ", by, ticks(w.m.pauses[by]*1000))
	}
	mine := func(l lease) bool {
		j := w.m.jobs[l.ID]
		return j != nil && j.in == inLeases && j.lease == l.number
	}
	minds := make([]string, 0, 3)
	for i, mind := range append(w.servers[:], w.client) {
		var s strings.Builder
		for _, l := range mind.held {
			fmt.Fprint(&s, l.ID, mine(l.lease), ticks(l.until), w.gone[l.nonce], ",")
		}
		for _, c := range []*call{mind.waiting, mind.late} {
			if c == nil {
				s.WriteString("-")
				continue
			}
			fmt.Fprint(&s, c.what)
			if c.known(w) {
				fmt.Fprint(&s, " known ", c.expect(w))
			}
			for _, l := range c.about {
				fmt.Fprint(&s, mine(l))
			}
		}
		if i == 2 {
			slices.Sort(minds)
		}
		minds = append(minds, s.String())
	}
	b.WriteString(strings.Join(minds, "|"))
	return b.String()
}

// save and restore copy all that miniredis holds.
func (x *explorer) save() snapshot {
	s := snapshot{map[string]map[string]string{}, map[string]map[string]float64{}, map[string][]string{}, map[string]string{}}
	for _, key := range x.r.Keys() {
		switch x.r.Type(key) {
		case "hash":
			all := map[string]string{}
			fields, err := x.r.HKeys(key)
			require.NoError(x.t, err)
			for _, f := range fields {
				all[f] = x.r.HGet(key, f)
			}
			s.hashes[key] = all
		case "zset":
			all, err := x.r.SortedSet(key)
			require.NoError(x.t, err)
			s.zsets[key] = maps.Clone(all)
		case "list":
			all, err := x.r.List(key)
			require.NoError(x.t, err)
			s.lists[key] = slices.Clone(all)
		case "string":
			text, err := x.r.Get(key)
			require.NoError(x.t, err)
			s.strings[key] = text
		}
	}
	return s
}

func (x *explorer) restore(w *world) { x.fill(w.m.us, w.before.redis) }

func (x *explorer) fill(us int64, s snapshot) {
	x.r.FlushAll()
	x.r.SetTime(time.UnixMicro(us))
	for key, all := range s.hashes {
		for f, v := range all {
			x.r.HSet(key, f, v)
		}
	}
	for key, all := range s.zsets {
		for id, score := range all {
			_, err := x.r.ZAdd(key, score, id)
			require.NoError(x.t, err)
		}
	}
	for key, all := range s.lists {
		_, err := x.r.Push(key, all...)
		require.NoError(x.t, err)
	}
	for key, text := range s.strings {
		require.NoError(x.t, x.r.Set(key, text))
	}
}
