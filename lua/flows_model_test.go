package lua_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A flowGame plays flows over three topics. It knows what each step may do, and looks after each
// call at the jobs that there are.
type flowGame struct {
	game
	rng     *rand.Rand
	hands   map[string]*hand.Hand
	names   []string // of topics; the first one is the home
	flows   []*modelFlow
	held    []modelRun
	relays  []*modelRelay
	live    map[[2]string]string  // topic and ID → nonce of each job that is not dead
	steps   map[string]*modelStep // by the nonce of the present record
	revived map[string]bool
	acked   string // the nonce of the job that the call acks
	goes    string // the nonce under which a job goes on

	mixed bool // there are servers and clients of v0.1.0

	kept map[string]map[string]string // topic → what it had some moves ago, by key; nil: no failover is played
	fell bool                         // a topic has lost its last writes
}

type modelRun struct {
	topic string
	hand.Held
	old bool // by a server of v0.1.0
}

// A modelStep is a step as the game knows it.
type modelStep struct {
	flow *modelFlow
	n    int
	born bool
	end  byte // 0: none; g: good; b: bad
}

type modelFlow struct {
	*hand.Flow
	open     bool // a group that is not closed
	steps    []*modelStep
	deadline bool // it has come
	revived  bool
	over     bool // its last step has ended
	begun    int  // how often its last step has run well
}

func (g *flowGame) pick(n int) int { return g.rng.IntN(n) }

func (g *flowGame) home() *hand.Hand { return g.hands[g.names[0]] }

// before lists the steps that a step waits for.
func (s *modelStep) before() (list []*modelStep) {
	for _, i := range s.flow.Steps[s.n].After {
		list = append(list, s.flow.steps[i])
	}
	return list
}

// bad reports whether a step has ended badly, or is skipped or must be.
func (s *modelStep) bad() bool {
	if s.born || s.end != 0 {
		return s.end == 'b'
	}
	return !s.flow.Steps[s.n].Lenient && slices.ContainsFunc(s.before(), (*modelStep).bad)
}

// over reports whether a step has ended, or is skipped.
func (s *modelStep) over() bool { return s.end != 0 || s.bad() }

// failed reports whether a flow must fail.
func (f *modelFlow) failed() bool {
	if strings.Contains(f.Flags, "i") {
		return false
	}
	return slices.ContainsFunc(f.steps, func(s *modelStep) bool {
		leaf := !slices.ContainsFunc(f.Steps, func(other hand.FlowStep) bool { return slices.Contains(other.After, s.n) })
		return leaf && s.bad()
	})
}

// complete reports whether all of its steps are over.
func (f *modelFlow) complete() bool {
	return !f.open && !slices.ContainsFunc(f.steps, func(s *modelStep) bool { return !s.over() })
}

// look compares the jobs with those that were there before the call.
func (g *flowGame) look() {
	now := map[[2]string]string{}
	for _, topic := range g.names {
		k := g.hands[topic].Keys
		dead := g.home().RDB.ZRange(g.t.Context(), k.Dead, 0, -1).Val()
		for id, raw := range g.home().RDB.HGetAll(g.t.Context(), k.Pool).Val() {
			if !slices.Contains(dead, id) {
				now[[2]string{topic, id}] = raw[:record.NonceLen]
			}
		}
	}
	for at, old := range g.live {
		s := g.steps[old]
		switch fresh := now[at]; {
		case fresh == old || s == nil:
		case fresh != "" && fresh == g.goes:
			g.steps[fresh] = s
		case s.end == 0:
			s.end = 'b'
			if old == g.acked {
				s.end = 'g'
			}
			g.note("  %s/%s has ended: %c", at[0], at[1], s.end)
		}
	}
	for at, nonce := range now {
		s := g.steps[nonce]
		if s == nil || g.live[at] == nonce || nonce == g.goes {
			continue
		}
		g.note("  %s/%s is there", at[0], at[1])
		require.True(g.t, s.end == 0 || g.revived[nonce] || g.fell, "%v: a step starts once", at)
		if !s.born && !g.fell {
			for _, p := range s.before() {
				require.True(g.t, p.over(), "%v starts before %d has ended", at, p.n)
				require.True(g.t, !p.bad() || s.flow.Steps[s.n].Lenient, "%v starts though %d has ended badly", at, p.n)
			}
		}
		s.born = true
	}
	g.live, g.acked, g.goes = now, "", ""
}

// start starts a flow, or opens a group.
func (g *flowGame) start() {
	f := &modelFlow{Flow: &hand.Flow{
		ID: "last" + strconv.Itoa(len(g.flows)), Name: fmt.Sprintf("%08x", g.rng.Uint32()), Flags: oneOf(g, "-", "-", "i"), Deadline: "+3600000000",
	}}
	if f.open = g.pick(4) == 0; f.open {
		f.Flags = strings.TrimPrefix(f.Flags+"g", "-")
	}
	if before := len(g.flows); before > 0 && g.pick(3) == 0 { // in the place of a dead one, or refused
		f.ID = g.flows[g.pick(before)].ID
	}
	for i := range 1 + g.pick(12) {
		s := hand.FlowStep{Topic: oneOf(g, g.names...), ID: fmt.Sprint(f.ID, len(g.flows), "-", i), Lenient: g.pick(4) == 0, Replace: oneOf(g, "d", "d", "r")}
		if g.pick(12) == 0 {
			s.ID = "shared"
		}
		for j := range i {
			if g.pick(i+1) == 0 && !f.open {
				s.After = append(s.After, j)
			}
		}
		f.Steps = append(f.Steps, s)
	}
	steps := f.Steps
	if f.open {
		f.Steps = nil
	}
	g.note("start %s %+v %s", f.ID, f.Steps, f.Flags)
	r, err := g.home().TryStart(f.Flow)
	require.NoError(g.t, err)
	if g.pick(4) == 0 {
		_, err = g.home().Last()
		require.NoError(g.t, err)
	}
	if r.Text(2) != "" && r.Text(2) != "n" {
		return
	}
	for _, other := range g.flows {
		other.over = other.over || other.ID == f.ID
	}
	g.flows = append(g.flows, f)
	for n := range f.Steps {
		g.know(f, n)
	}
	if f.open {
		g.add(f, steps, false)
	}
}

func (g *flowGame) know(f *modelFlow, n int) {
	s := &modelStep{flow: f, n: n}
	f.steps = append(f.steps, s)
	g.steps[f.Steps[n].Nonce] = s
}

// add adds steps to a group, and closes it.
func (g *flowGame) add(f *modelFlow, steps []hand.FlowStep, closes bool) {
	before := len(f.Steps)
	r, err := g.home().TryAdd(f.Flow, closes, steps...)
	require.NoError(g.t, err)
	g.note("add to %s %+v: %s", f.ID, steps, r.Text(2))
	release := r.Number(3)
	if g.pick(4) == 0 {
		_, err = g.home().Last()
		require.NoError(g.t, err)
	}
	added := f.Steps[before:]
	f.Steps = f.Steps[:before:before]
	for i, s := range added {
		if r.Text(2) != "g" && r.Text(2)[i] == script.LetterStored {
			f.Steps = append(f.Steps, s)
			g.know(f, len(f.Steps)-1)
		}
	}
	if r.Text(2) != "g" && closes {
		f.open = false
	}
	if release == 1 {
		_, err := g.home().TryRelease(g.home().Series.Next(), g.home().Keys.Receipt(g.home().Series.ID), [2]string{f.ID, f.Name})
		require.NoError(g.t, err)
	}
}

// plan makes a relay read a plan.
func (g *flowGame) plan() bool {
	from := g.hands[oneOf(g, g.names...)]
	r, err := from.TryPlan("", "", "", 0)
	require.NoError(g.t, err)
	if len(r.List(2)) == 0 {
		return false
	}
	target := oneOf(g, r.List(2).Texts()...)
	g.deliver(from, target, "", 0)
	return true
}

// modelRelay is a relay that has a plan.
type modelRelay struct {
	*hand.Delivery
	from        *hand.Hand
	target, tag string
}

// deliver makes a relay read the plan for a target, or make it anew, because the target has refused
// the one with the tag passed.
func (g *flowGame) deliver(from *hand.Hand, target, passed string, floor uint64) {
	plan, err := from.TryPlan(target, "t"+strconv.Itoa(g.pick(1000)), passed, floor)
	require.NoError(g.t, err)
	if len(plan.List(2)) > 0 {
		g.note("relay from %s to %s: %q", from.Keys.Topic, target, plan.List(2).Texts())
		g.relays = append(g.relays, &modelRelay{g.hands[target].Deliver(from, plan), from, target, plan.Text(4)})
	}
}

// relay makes some calls of a relay, which can be late.
func (g *flowGame) relay(i, calls int) {
	d := g.relays[i]
	for range calls {
		seen := len(d.Refused)
		some, err := d.Next()
		if err != nil && strings.Contains(err.Error(), "PASSED") {
			g.note("  the plan is passed")
			floor, _ := strconv.ParseUint(err.Error()[strings.LastIndexByte(err.Error(), ' ')+1:], 10, 64)
			g.deliver(d.from, d.target, d.tag, floor)
			some, err = false, nil
		}
		require.NoError(g.t, err)
		for _, row := range d.Refused[seen:] {
			if s := g.steps[hand.NonceOf(row)]; s.end == 0 {
				g.note("  %s is refused", s.flow.Steps[s.n].ID)
				s.end = 'b'
			}
		}
		g.look()
		if !some {
			g.relays = slices.Delete(g.relays, i, i+1)
			return
		}
	}
	if g.pick(8) == 0 { // it dies
		g.relays = slices.Delete(g.relays, i, i+1)
	}
}

// firstOnFlows has the scripts of v0.1.0 that meet steps.
var firstOnFlows = allOfFirst(script.Take, script.Ack, script.Cancel, script.Replace)

// byFirst lets a program of v0.1.0 make a call, in some games and now and then.
func (g *flowGame) byFirst(topic string, call func(old bool)) {
	h, old := g.hands[topic], g.mixed && g.pick(3) == 0
	if old {
		g.note("by v0.1.0:")
		h.Old = firstOnFlows
	}
	call(old)
	h.Old = nil
}

// take takes jobs.
func (g *flowGame) take(topic string) (some bool) {
	g.byFirst(topic, func(old bool) {
		if some = g.takeSome(topic); old {
			g.leave(topic)
		}
	})
	return some
}

// leave lets a server of v0.1.0 return the steps that it has just taken, or crash: it cannot read
// their records.
func (g *flowGame) leave(topic string) {
	for i := len(g.held) - 1; i >= 0; i-- {
		run := g.held[i]
		if !run.old || run.topic != topic || run.Record[record.NonceLen] < 5 {
			continue
		}
		if g.pick(5) == 0 {
			g.note("  it crashes with %s", run.ID)
			g.held = slices.Delete(g.held, i, i+1)
		} else {
			g.settle(i, "return")
		}
	}
}

// takeSome takes jobs, and begins those that are last steps.
func (g *flowGame) takeSome(topic string) bool {
	h := g.hands[topic]
	_, _ = h.Promote()
	list := h.Take(1+g.pick(3), time.Minute)
	for _, one := range list {
		g.note("take %s/%s", topic, one.ID)
		run := modelRun{topic, one, h.Old != nil}
		if !run.old && strings.HasPrefix(one.ID, "last") && !strings.Contains(one.ID, "-") {
			g.begin(run)
		} else {
			g.held = append(g.held, run)
		}
	}
	return len(list) > 0
}

// begin runs the last step of a flow, or buries it.
func (g *flowGame) begin(run modelRun) {
	f := g.lastOf(run.ID)
	state, text, err := g.home().TryBegin(f.ID, f.Name)
	require.NoError(g.t, err)
	g.note("  begins: %s %s", state, text)
	runs := true
	if g.fell { // what the game knows is not what Redis knows
		g.held = append(g.held, run)
		g.look()
		return
	}
	switch state[0] {
	case 'r':
		require.True(g.t, f.complete(), "released before all have ended")
		require.False(g.t, f.failed(), "released though it has failed")
	case 'f':
		require.True(g.t, f.failed() || f.revived, "it has not failed")
		runs = f.revived
	case 'o':
		require.True(g.t, f.deadline || f.revived, "neither released nor due")
		runs = strings.Contains(f.Flags, "i") || f.revived
	case 'd':
		require.True(g.t, f.revived, "it was dead")
	default:
		require.Fail(g.t, "the flow is gone: "+state)
	}
	if !runs {
		require.Equal(g.t, "o", g.home().Bury(run.Held))
	} else {
		g.held = append(g.held, run)
	}
	g.look()
}

// lastOf is the flow that has the last step with an ID.
func (g *flowGame) lastOf(id string) *modelFlow {
	for _, f := range slices.Backward(g.flows) {
		if f.ID == id {
			return f
		}
	}
	require.Fail(g.t, "a last step of no flow: "+id)
	return nil
}

// settle ends a run.
func (g *flowGame) settle(i int, verb string) {
	run := g.held[i]
	g.held = slices.Delete(g.held, i, i+1)
	h, held := g.hands[run.topic], run.Held
	letters := ""
	switch verb {
	case "ack":
		g.acked = held.Nonce()
		if run.old { // of a job that is no step
			h.Old = firstOnFlows
		}
		letters = h.Ack(held)
		h.Old = nil
	case "expire":
		letters = h.Expire(held)
	case "bury":
		letters = h.Bury(held)
	case "retry":
		letters = h.Retry(time.Millisecond, held)
		g.goes = g.nonceOf(run)
	case "return":
		letters = h.Return(held)
	case "again":
		renewal := h.Renewal("+0", 0)
		renewal.Head = renewal.Head[:record.NonceLen] + run.Record[record.NonceLen:record.NonceLen+1] + renewal.Head[record.NonceLen+1:]
		h.Renewals = map[string]*settle.Renewal{held.ID: renewal}
		letters = h.Letters([]hand.Held{held}, settle.Row{Verb: settle.Again})
		h.Renewals = nil
		g.goes, g.acked = renewal.Head[:record.NonceLen], held.Nonce() // if a successor takes its place
	}
	g.note("%s %s/%s: %s", verb, run.topic, run.ID, letters)
	if g.pick(6) == 0 && verb != "ack" { // Ack makes several calls
		_, err := h.Last()
		require.NoError(g.t, err)
	}
	if f := g.isLast(run); f != nil && letters == "o" && verb != "retry" && verb != "return" && verb != "again" && verb != "bury" {
		f.begun++
		require.True(g.t, f.begun == 1 || g.fell, "the last step ends once")
		f.over = true
	}
	g.look()
}

func (g *flowGame) isLast(run modelRun) *modelFlow {
	if run.topic == g.names[0] && strings.HasPrefix(run.ID, "last") && !strings.Contains(run.ID, "-") {
		return g.lastOf(run.ID)
	}
	return nil
}

// nonceOf is the nonce of the job that has an ID now, unless it is the one that is known.
func (g *flowGame) nonceOf(run modelRun) string {
	raw := g.home().RDB.HGet(g.t.Context(), g.hands[run.topic].Keys.Pool, run.ID).Val()
	if len(raw) < record.NonceLen || raw[:record.NonceLen] == run.Nonce() {
		return ""
	}
	return raw[:record.NonceLen]
}

// meddle does to a job what clients and operators do.
func (g *flowGame) meddle() {
	at, ok := g.some()
	if !ok {
		return
	}
	topic, id := at[0], at[1]
	h, verb := g.hands[topic], oneOf(g, "cancel", "replace", "latest", "bury", "revive", "vanish", "again")
	last := g.isLast(modelRun{topic: topic, Held: hand.Held{ID: id}})
	if last != nil && verb != "cancel" && verb != "bury" && verb != "revive" {
		return
	}
	g.note("%s %s/%s", verb, topic, id)
	var err error
	switch verb {
	case "cancel":
		g.byFirst(topic, func(bool) { _, err = h.TryCancel(id) })
		if last != nil {
			last.over = true
		}
	case "replace":
		g.byFirst(topic, func(bool) { _, err = h.TryEnqueue(true, [2]string{id, "+0"}) })
	case "latest":
		var r script.Reply
		r, err = h.TryEnqueue(false, [2]string{id, "l+0"})
		if letter := r.Text(2); letter == "S" || letter == "R" {
			g.goes = g.nonceOf(modelRun{topic: topic, Held: hand.Held{ID: id, Record: "--------"}})
		}
	case "bury":
		_, err = h.TryBury(id)
	case "revive":
		nonce := g.nonceOf(modelRun{topic: topic, Held: hand.Held{ID: id, Record: "--------"}})
		var r script.Reply
		if r, err = h.TryRevive(id); r.Text(2) == string(script.LetterDead) {
			g.revived[nonce] = true
			if last != nil {
				last.revived = true
			}
		}
	case "vanish": // as if an earlier release had ended it
		pipe := h.RDB.TxPipeline()
		pipe.HDel(g.t.Context(), h.Keys.Pool, id)
		for _, key := range []string{h.Keys.Bucket, h.Keys.Leases, h.Keys.Dead} {
			pipe.ZRem(g.t.Context(), key, id)
		}
		pipe.LRem(g.t.Context(), h.Keys.Ready, 0, id)
		pipe.HDel(g.t.Context(), h.Keys.Next, id)
		_, err = pipe.Exec(g.t.Context())
	}
	require.NoError(g.t, err)
	g.look()
}

// some chooses a job, dead ones too.
func (g *flowGame) some() (at [2]string, ok bool) {
	topic := oneOf(g, g.names...)
	ids := g.home().RDB.HKeys(g.t.Context(), g.hands[topic].Keys.Pool).Val()
	if len(ids) == 0 {
		return at, false
	}
	slices.Sort(ids)
	return [2]string{topic, oneOf(g, ids...)}, true
}

// step plays one move.
func (g *flowGame) step() {
	switch n := g.pick(100); {
	case n < 30:
		g.plan()
	case n < 60 && len(g.relays) > 0:
		g.relay(g.pick(len(g.relays)), 1+g.pick(6))
	case n < 75:
		g.take(oneOf(g, g.names...))
	case n < 90 && len(g.held) > 0:
		g.settle(g.pick(len(g.held)), oneOf(g, "ack", "ack", "ack", "ack", "ack", "expire", "bury", "retry", "return", "again"))
	case n < 92 && len(g.flows) < 4:
		g.start()
		g.look()
	case n < 93:
		topic := oneOf(g, g.names...)
		g.note("hasten %s", topic)
		g.hands[topic].Hasten(2000 * time.Hour)
		for _, f := range g.flows {
			f.deadline = f.deadline || topic == g.names[0]
		}
		_, _ = g.hands[topic].Promote()
		g.look()
	case n < 95:
		g.close()
	case n < 96:
		g.tidy()
	case n < 98 && g.kept != nil:
		g.failOver()
	default:
		g.meddle()
	}
}

// failOver remembers what a topic has, or makes it fall back to that, as a replica does that has
// not received the last writes.
func (g *flowGame) failOver() {
	ctx, topic, rdb := g.t.Context(), oneOf(g, g.names...), g.home().RDB
	all := redistest.Dump(g.t, rdb, strings.TrimSuffix(g.hands[topic].Keys.Root, ":"))
	kept := g.kept[topic]
	if kept == nil || g.fell {
		g.kept[topic] = make(map[string]string)
		for key := range all {
			g.kept[topic][key] = rdb.Dump(ctx, key).Val()
		}
		return
	}
	g.note("%s falls back", topic)
	for key := range all {
		require.NoError(g.t, rdb.Del(ctx, key).Err())
	}
	for key, value := range kept {
		require.NoError(g.t, rdb.RestoreReplace(ctx, key, 0, value).Err())
	}
	g.fell = true
	g.look()
}

// close adds to a group and closes it.
func (g *flowGame) close() {
	for _, f := range g.flows {
		if f.open && !f.over {
			g.add(f, []hand.FlowStep{{Topic: oneOf(g, g.names...), ID: fmt.Sprint(f.ID, "-", g.pick(100))}}, g.pick(2) == 0)
			g.look()
			return
		}
	}
}

// tidy does what servers do in the background.
func (g *flowGame) tidy() (lost int) {
	for _, topic := range g.names {
		_, err := g.hands[topic].TryPrune(1000, time.Hour, 1000)
		require.NoError(g.t, err)
	}
	lost = g.home().Guard(g.hands)
	g.note("tidy: %d are lost", lost)
	g.look()
	return lost
}

// drain lets everything happen that still can, without the deadline.
func (g *flowGame) drain() {
	for quiet, rounds := 0, 0; quiet < 4; {
		quiet++
		rounds++
		require.Less(g.t, rounds, 1000, "there is always more to do")
		for len(g.relays) > 0 {
			quiet = 0
			g.relay(0, 100)
		}
		for range 6 {
			if g.plan() {
				quiet = 0
			}
		}
		for _, topic := range g.names {
			g.hands[topic].Hasten(time.Minute) // past backoffs
			for g.take(topic) {
				quiet = 0
			}
		}
		for len(g.held) > 0 {
			quiet = 0
			g.settle(0, "ack")
		}
		if g.tidy() > 0 {
			quiet = 0
		}
	}
}

// finish plays to the end: nothing hangs, and nothing is left.
func (g *flowGame) finish() {
	g.drain()
	for _, f := range g.flows {
		if f.open && !f.over {
			g.add(f, nil, true)
			g.look()
		}
	}
	g.drain()
	ctx, h := g.t.Context(), g.home()
	for _, f := range g.flows {
		waits := h.RDB.ZScore(ctx, h.Keys.Bucket, f.ID).Err() == nil
		require.False(g.t, waits && g.lastOf(f.ID) == f, "%s hangs", f.ID)
	}
	for _, topic := range g.names {
		for _, id := range h.RDB.HKeys(ctx, g.hands[topic].Keys.Pool).Val() {
			_, err := g.hands[topic].TryCancel(id) // they are dead
			require.NoError(g.t, err)
		}
	}
	g.look()
	g.drain()
	for _, topic := range g.names {
		k := g.hands[topic].Keys
		require.Empty(g.t, h.RDB.HGetAll(ctx, k.Flows).Val(), "flows of %s", topic)
		require.Empty(g.t, h.RDB.HGetAll(ctx, k.Steps).Val(), "steps of %s", topic)
		require.Empty(g.t, h.RDB.HGetAll(ctx, k.Notes).Val(), "notes of %s", topic)
		require.Empty(g.t, h.RDB.ZRange(ctx, k.Parcels, 0, -1).Val(), "parcels of %s", topic)
	}
}

// A flowPlay says what a game has beside jobs and relays.
type flowPlay struct {
	moves           int
	failover, mixed bool
}

func playFlows(t *testing.T, rdb redis.UniversalClient, seed uint64, play flowPlay) (fell bool) {
	g := &flowGame{
		game: game{t: t}, mixed: play.mixed, rng: rand.New(rand.NewPCG(seed, 1)), names: []string{"home", "a", "b"},
		hands: map[string]*hand.Hand{}, steps: map[string]*modelStep{}, revived: map[string]bool{},
	}
	if play.failover {
		g.kept = make(map[string]map[string]string)
	}
	prefix := redistest.Prefix(t)
	for _, name := range g.names {
		g.hands[name] = hand.New(t, rdb, prefix, name)
	}
	defer g.tell(400)
	g.start()
	g.look()
	for range play.moves {
		g.step()
	}
	g.finish()
	return g.fell
}

// Whatever happens to jobs and relays: each step starts once and in its turn, the last one is
// released when it may be, and in the end nothing is left.
func TestFlowsModel(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		games := redistest.Size(300)
		if strings.HasSuffix(t.Name(), "/miniredis") {
			games = redistest.Size(20)
		}
		first := uint64(0)
		if seed, err := strconv.ParseUint(os.Getenv("DELAYQ_SEED"), 10, 64); err == nil {
			first = seed
		}
		for seed := first; seed < first+uint64(games); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) { playFlows(t, rdb, seed, flowPlay{moves: 150, mixed: seed%3 == 2}) })
		}
	})
}

// After a failover that has lost the last writes of a topic, runs can be repeated. But nothing
// waits for ever, and nothing is left.
func TestFlowsModelWithAFailover(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Shared(t)
	fell := 0
	for seed := range uint64(redistest.Size(100)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if playFlows(t, rdb, seed, flowPlay{moves: 200, failover: true, mixed: seed%3 == 2}) {
				fell++
			}
		})
	}
	require.Greater(t, fell, redistest.Size(100)/3, "of the games have a failover")
}
