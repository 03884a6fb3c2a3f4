package lua_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// A rationing is what a [laneGame] knows of limits of keys.
type rationing struct {
	topic  delayq.Limits
	own    map[string]delayq.KeyLimits
	late   []keyEnd            // ends of runs that no unpark has been sent for
	silent map[string]bool     // parked keys of such runs: they wait until the time in parked
	counts map[string][]string // entries that holders may have, by key: IDs of jobs that have run

	// Handlers of jobs that were cancelled or replaced while they ran, until unpark is sent for
	// them.
	stragglers []straggler
}

// A keyEnd is the end of a run. fence is that of a job that was cancelled or replaced.
type keyEnd struct{ key, id, fence string }

// A straggler counts until the end of its lease for the topic, and if counts is set for its key.
type straggler struct {
	keyEnd
	till   float64
	counts bool
}

// alive reports whether a straggler still counts.
func (s straggler) alive(now int64) bool { return s.till > float64(now) }

// entry is the member of holders that counts for the topic.
func (s straggler) entry() string {
	return fmt.Sprintf("\x001%017.3f%s%s%s", s.till, []byte{byte(len(s.key))}, s.key, s.id)
}

// limited reports whether any limit is set.
func (l *rationing) limited() bool { return l.topic != (delayq.Limits{}) || l.limitedKeys() > 0 }

// limitedKeys returns how many keys have limits of their own.
func (l *rationing) limitedKeys() (n int) {
	for _, own := range l.own {
		if own.Running > 0 || own.Rate != (delayq.Rate{}) {
			n++
		}
	}
	return n
}

// uncount forgets the places in the limits of keys, if no key has a limit of running jobs any more.
func (l *rationing) uncount() {
	if l.topic.RunningPerKey == 0 && !l.topic.Ordered && l.limitedKeys() == 0 {
		for i := range l.stragglers {
			l.stragglers[i].counts = false
		}
	}
}

// of returns the limits that are in force for a key.
func (l *rationing) of(key string) delayq.KeyLimits {
	own := l.own[key]
	switch {
	case l.topic.Ordered:
		own.Running = 1
	case own.Running == 0:
		own.Running = l.topic.RunningPerKey
	}
	if own.Rate == (delayq.Rate{}) {
		own.Rate = l.topic.RatePerKey
	}
	return own
}

// changeLimits sets or removes the limits of each key, or of one of them.
func (g *laneGame) changeLimits(h *Hand) {
	running := oneOf(g, 0, 1, 1, 2, 3)
	rate := oneOf(g, delayq.Rate{}, delayq.Rate{}, delayq.Per(6, time.Minute).Burst(2), delayq.Per(3, time.Hour))
	if g.rand.IntN(2) == 0 {
		g.limits.topic = delayq.Limits{RunningPerKey: running, RatePerKey: rate}
		if g.rand.IntN(2) == 0 {
			g.limits.topic = delayq.Limits{Ordered: true, RatePerKey: rate, OnDead: oneOf(g, delayq.ContinueKey, delayq.HaltKey)}
		}
		g.calls(h, fmt.Sprintf("limits %v", g.limits.topic), func() (script.Reply, error) { return h.tryLimits(g.limits.topic) })
		r, err := h.tryUnpark()
		require.NoError(g.t, err)
		require.Zero(g.t, r.Number(2))
		require.Empty(g.t, h.parkedKeys(), "each key may go on")
		g.limits.uncount()
		return
	}
	key, own := oneOf(g, laneKeys...), delayq.KeyLimits{Weight: oneOf(g, 1, 1, 5), Running: running, Rate: rate}
	rule := ruleOf(g.t, own)
	g.calls(h, fmt.Sprintf("limits of key %.8q: %v", key, own), func() (script.Reply, error) {
		return h.Run(script.KeyLimits, h.Series.Next(), key, rule, mostKeyLimits, script.ControlChannel(h.Prefix()), h.Keys.Topic)
	})
	before := g.limits.limitedKeys()
	delete(g.limits.own, key)
	if rule != "" {
		g.limits.own[key] = own
	}
	require.NotContains(g.t, h.parkedKeys(), key, "it may go on")
	limited := g.limits.limitedKeys()
	if limited != before {
		g.limits.uncount()
	}
	require.Equal(g.t, limited, atoi(h.RDB.HGet(context.Background(), h.Keys.Meta, "limited").Val()), "keys with limits")
}

// ends notes that a job may no longer be running. Its server, if it has one, says so later.
func (g *laneGame) ends(id string) {
	j := g.jobs[id]
	if !g.rationed || j == nil || j.in != inLeases || j.key == "" {
		return
	}
	g.limits.late = append(g.limits.late, keyEnd{key: j.key, id: id})
	g.limits.silent[j.key] = true
}

// cuts notes that a job that may be running is cancelled or replaced. Where there are limits, its
// handler keeps its place.
func (g *laneGame) cuts(id string, now int64) {
	j := g.jobs[id]
	if !g.rationed || j == nil || j.in != inLeases {
		return
	}
	s := straggler{keyEnd{j.key, id, j.fence}, g.seen.leases[id], j.key != ""}
	if !g.limits.limited() || !s.alive(now) {
		g.ends(id)
		return
	}
	g.limits.stragglers = append(g.limits.stragglers, s)
}

// report sends unpark for all runs that have ended. Some of the jobs can be running again.
func (g *laneGame) report(h *Hand) {
	g.limits.stragglers = slices.DeleteFunc(g.limits.stragglers, func(s straggler) bool {
		returns := g.rand.IntN(2) == 0
		if returns {
			g.limits.late = append(g.limits.late, s.keyEnd)
		}
		return returns
	})
	if len(g.limits.late) == 0 {
		return
	}
	var freed []string
	for _, e := range g.limits.late {
		if j := g.jobs[e.id]; e.key != "" && (e.fence != "" || j == nil || j.in != inLeases || j.key != e.key) {
			freed = append(freed, e.key)
		}
	}
	late := g.limits.late
	g.note("unpark %q", late)
	g.limits.late = nil
	for range 1 + g.rand.IntN(2) { // it is safe to send it twice
		r, err := h.tryEnds(late...)
		require.NoError(g.t, err)
		parked := h.parkedKeys()
		require.EqualValues(g.t, len(parked), r.Number(2))
		for _, key := range freed {
			require.NotContains(g.t, parked, key, "a job of it has ended")
			delete(g.limits.silent, key)
		}
	}
}

// repair is the repair of a check. It finds nothing in what limits need, and leaves only holders
// that run.
func (g *laneGame) repair(h *Hand) {
	g.note("a check repairs")
	found, _ := h.look(true)
	for kind, list := range found {
		for _, one := range list {
			for _, key := range []string{h.Keys.Parked, h.Keys.Holders, h.Keys.Rates, h.Keys.Rules, h.Keys.Turn, h.Keys.Lane, h.Keys.Blockers} {
				require.False(g.t, strings.HasPrefix(one, key+" "), "%v: %q", kind, one)
			}
		}
	}
	for key, ids := range g.read().holders {
		for _, id := range ids {
			j := g.jobs[id]
			require.True(g.t, j != nil && j.key == key && j.in == inLeases, "%q of key %q is in holders, and does not run", id, key)
		}
	}
}

// running counts the leases of the jobs of a key, and its stragglers.
func (g *laneGame) running(key string) (n int) {
	for _, s := range g.limits.stragglers {
		if s.key == key && s.counts && s.alive(time.Now().UnixMilli()) {
			n++
		}
	}
	for _, j := range g.jobs {
		if j.key == key && j.in == inLeases {
			n++
		}
	}
	return n
}

// judge checks a take: what it has started of each key, what it has written of that, and which keys
// it has parked until when. had is the number of running jobs of each key before it.
func (g *laneGame) judge(had map[string]int, now int64, got []string) {
	before, after := g.seen, g.read()
	took := map[string]int{}
	for _, id := range got {
		key := g.jobs[id].key
		took[key]++
		if !slices.Contains(g.limits.counts[key], id) {
			g.limits.counts[key] = append(g.limits.counts[key], id)
		}
	}
	first, last := float64(now*1000), float64(now*1000+999) // the take was between these µs
	for _, key := range laneKeys {
		own := g.limits.of(key)
		if took[key] > 0 && own.Running > 0 {
			require.LessOrEqual(g.t, had[key]+took[key], own.Running, "running jobs of key %q", key)
		}
		next := 0.0 // the next start by the rate, µs
		if emit, burst := float64(emitOf(g.t, own.Rate)), float64(own.Rate.MaxBurst()); own.Rate != (delayq.Rate{}) {
			was := min(before.rates[key], last+burst*emit)
			room := math.Floor((last + burst*emit - max(last, was)) / emit)
			require.LessOrEqual(g.t, float64(took[key]), room, "starts of key %q", key)
			if took[key] > 0 {
				spent := float64(took[key]) * emit
				require.GreaterOrEqual(g.t, after.rates[key], max(first, min(was, first+burst*emit))+spent, "tat of key %q", key)
				require.LessOrEqual(g.t, after.rates[key], max(last, was)+spent, "tat of key %q", key)
			}
			next = after.rates[key] - (burst-1)*emit
		}
		till, is := after.parked[key]
		if was, before := before.parked[key]; !is || before && was == till {
			continue
		}
		end := math.Inf(1)
		for id, j := range g.jobs {
			if j.key == key && j.in == inLeases {
				end = min(end, after.leases[id])
			}
		}
		for _, s := range g.limits.stragglers {
			if s.key == key && s.counts && s.alive(now) {
				end = min(end, s.till)
			}
		}
		full := own.Running > 0 && had[key]+took[key] >= own.Running && till == math.Ceil(end)
		require.True(g.t, next > first && math.Abs(till-next/1000) < 0.001 || next <= last && (full || g.blocks(key, till, now)),
			"key %q is parked until %.3f at %d. %d of its jobs run, the first until %f, with limits %v, and the next start is at %f",
			key, till, now, had[key]+took[key], end, own, next)
		delete(g.limits.silent, key)
	}
}

// before reports whether a job comes before another one of its key.
func (j *laneJob) before(other *laneJob) bool {
	return cmp.Or(cmp.Compare(j.front, other.front), cmp.Compare(j.number, other.number)) < 0
}

// blocker returns the first job that j must wait for, or nil.
func (g *laneGame) blocker(j *laneJob) (first *laneJob) {
	if j.key == "" || !g.limits.topic.Ordered {
		return nil
	}
	for _, other := range g.jobs {
		waits := other.in == inBucket || other.in == inDead && g.limits.topic.OnDead == delayq.HaltKey
		if other.key == j.key && other.blocks && waits && other.before(j) && (first == nil || other.before(first)) {
			first = other
		}
	}
	return first
}

// blocks reports whether a key is parked until a time because its first job must wait for another
// one.
func (g *laneGame) blocks(key string, till float64, now int64) bool {
	line := g.lines()[key]
	if len(line) == 0 {
		return true // nobody waits
	}
	first := g.blocker(g.jobs[line[0]])
	if first == nil {
		return false
	}
	return first.in == inBucket && till == float64(first.score) || first.in == inDead && till <= float64(now+600_000)
}

// compareLimits holds the state of limits to the model.
func (g *laneGame) compareLimits(now laneState, turns map[string]bool, after []string) {
	var want []string
	for id, j := range g.jobs {
		if entry := now.keyed[id] + id; j.blocks {
			// A take drops those of dead jobs that halt their keys no longer.
			if j.in == inDead && g.limits.topic.OnDead != delayq.HaltKey && !slices.Contains(now.blockers, entry) {
				j.blocks = false
				continue
			}
			want = append(want, entry)
		}
	}
	slices.Sort(want)
	require.Equal(g.t, want, now.blockers, "blockers after %q", after)
	for key := range g.limits.silent {
		if _, parked := now.parked[key]; !parked {
			delete(g.limits.silent, key)
		}
	}
	for id, j := range g.jobs {
		if j.in == inLeases && j.key != "" && g.limits.of(j.key).Running > 0 {
			require.Contains(g.t, now.holders[j.key], id, "%q of key %q runs, and does not count, after %q", id, j.key, after)
		}
	}
	for key, ids := range now.holders {
		require.Subset(g.t, g.limits.counts[key], ids, "holders of key %q that have never run, after %q", key, after)
	}
	var stragglers []string
	for _, s := range g.limits.stragglers {
		if s.alive(time.Now().UnixMilli()) {
			stragglers = append(stragglers, s.entry())
		}
	}
	slices.Sort(stragglers)
	require.Equal(g.t, stragglers, now.stragglers, "stragglers after %q", after)
	for key := range g.lines() {
		till, parked := now.parked[key]
		if !parked || turns[key] || g.keys[key] > 0 || float64(time.Now().UnixMilli()) >= till || g.limits.silent[key] {
			continue
		}
		own := g.limits.of(key)
		full := own.Running > 0 && g.running(key) >= own.Running
		next := now.rates[key] - float64(own.Rate.MaxBurst()-1)*float64(emitOf(g.t, own.Rate))
		early := own.Rate != (delayq.Rate{}) && till <= math.Ceil(next/1000)
		require.True(g.t, full || early || g.blocks(key, till, time.Now().UnixMilli()), "key %q waits until %f without a reason, with limits %v and %d running, after %q", key, till, own, g.running(key), after)
	}
}

// holdersOf reads the entries of holders: the length of the key, the key, 0 and the ID. Others are
// of stragglers; it returns those that count for the topic.
func (g *laneGame) holdersOf(list []redis.Z) (all map[string][]string, stragglers []string) {
	all = map[string][]string{}
	for _, z := range list {
		entry := z.Member.(string)
		require.NotEmpty(g.t, entry)
		key, rest := entry[1:1+int(entry[0])], entry[1+int(entry[0]):]
		switch {
		case key == "":
			stragglers = append(stragglers, entry)
		case strings.HasPrefix(rest, "0"):
			all[key] = append(all[key], rest[1:])
		default:
			require.True(g.t, strings.HasPrefix(rest, "1"), "%q", entry)
		}
	}
	return all, stragglers
}
