package delayq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
)

// What follows explores the queue instead of playing games with it: two jobs, two servers and a client, and every order of their calls within the
// bounds of a scope. Each call can be answered, or be carried out without its answer arriving (and be sent again later), or be late: its server dies
// and the call arrives at some time after. A state is all that Redis holds (through the real scripts), the same by the
// model, and what the servers and the client think. From each state that was not met before every possible step is taken; after each,
// Redis is compared with the model in full, and the promises are checked: nothing early, no job with two servers whose leases live, no run
// of a job that was cancelled, replaced or done, and, from a part of the states, everything comes to its end and leaves nothing. From fewer still, after the loss of each key in turn, a check puts all of it right.

// Times of the exploration. Every step takes a millisecond, so that no two leases end at the same time; a tick takes a second and one.
const (
	exploreTick  = time.Second
	exploreLease = 2 * time.Second
)

// A world is a state of the exploration.
type world struct {
	m       *model
	redis   snapshot
	servers [2]mind
	client  mind
	left    budget
	gone    map[string]string  // nonce → what has become of the job for good; and what the client did
	said    map[string]said    // lane → the receipt of its last call but for takes
	taken   map[string]receipt // lane → the receipt of its last take
	depth   int
	before  *world
	step    string
}

// A mind is what a server or the client knows.
type mind struct {
	lives   int // how often it died: each life has a lane of its own
	seq     uint64
	held    []exploredLease
	waiting *call // without an answer yet
	late    *call // of the life before, or a second copy of one that was answered
}

type exploredLease struct {
	lease
	nonce string
	until int64 // by its own clock, µs
}

// A receipt is what a take leaves behind until its leases are over.
type receipt struct {
	number uint64
	sent   int64 // µs
	got    []exploredLease
}

// A said is the receipt of a call.
type said struct {
	number uint64
	text   string
}

// A call may be carried out more than once.
type call struct {
	what   string
	about  []lease // the leases it is about
	again  func() (reply, error)
	known  func(w *world) bool                  // a script would know it for one that was carried out
	expect func(w *world) string                // what it answers then
	first  func(w *world) (got, want string)    // carries it out, on Redis and on the model
	answer func(x *explorer, w *world, r reply) // the answer arrives
}

// A budget is how often what makes the number of states infinite may happen on one path.
type budget struct {
	ticks, failures, cancels, replaces, reschedules, revives, extends, lost, dead, pops int
}

// A snapshot is all that miniredis holds.
type snapshot struct {
	hashes  map[string]map[string]string
	zsets   map[string]map[string]float64
	lists   map[string][]string
	strings map[string]string
}

// An explorer takes steps on an embedded Redis.
type explorer struct {
	t     *finder
	r     *embedded.Redis
	rdb   *redis.Client
	p     *player
	seen  map[string]bool
	steps int
	drawn int // states from which everything was let come to its end
	hurts int // keys that were deleted
}

// A scope bounds an exploration.
type scope struct {
	name  string
	left  budget
	depth int  // the most steps of a path; 0: as many as the budget allows, so that all there is within it is explored
	begun bool // both jobs are enqueued already, and the client does nothing
}

// scopes are what is explored. With their depths they take a few seconds; all but the last have an end, after some minutes.
var scopes = []scope{
	{"a server dies", budget{ticks: 4, dead: 1, pops: 1}, 6, true},
	{"an answer is lost", budget{ticks: 3, lost: 1, failures: 1}, 5, true},
	{"handlers fail", budget{ticks: 3, failures: 2, extends: 1}, 6, true},
	{"a client interferes", budget{ticks: 2, cancels: 1, replaces: 1}, 6, false},
	{"a call of the client is lost", budget{ticks: 1, cancels: 1, lost: 1}, 5, false},
	{"all at once", budget{ticks: 5, failures: 2, cancels: 1, replaces: 1, reschedules: 1, revives: 1, extends: 1, lost: 1, dead: 1, pops: 1}, 4, false},
}

// A finder is the testing.TB of an exploration that may fail on purpose: it keeps the first failure.
type finder struct {
	testing.TB
	failure string
}

var errFound = errors.New("found")

func (f *finder) Helper()      {}
func (f *finder) Failed() bool { return f.failure != "" }
func (f *finder) Errorf(format string, args ...any) {
	if f.failure == "" {
		f.failure = fmt.Sprintf(format, args...)
	}
}
func (f *finder) FailNow() { panic(errFound) }

// explore visits all states of a scope. It gives what it has met, and the story of the first failure.
func explore(t testing.TB, s scope, mutant func(script string) string) (x *explorer, failure string) {
	x = &explorer{t: &finder{TB: t}, r: embedded.New(), seen: map[string]bool{}}
	defer x.r.Close()
	x.rdb = x.r.Client()
	defer func() { _ = x.rdb.Close() }()
	if mutant != nil {
		x.rdb.AddHook(mutation(mutant))
	}
	x.p = &player{t: x.t, r: x.r, trace: []string{"this step"}}
	for i := range x.p.hands {
		x.p.hands[i] = NewHand(x.t, x.rdb, "p", "model")
	}
	at := &world{
		m: newModel(1_763_712_345_000_000), gone: map[string]string{}, taken: map[string]receipt{}, said: map[string]said{}, left: s.left,
	}
	defer func() {
		if p := recover(); p != nil {
			if p != errFound {
				panic(p)
			}
			failure = x.story(at)
		}
	}()
	x.r.SetTime(time.UnixMicro(at.m.us))
	if s.begun {
		for _, id := range exploredIDs {
			at.gone["enqueue "+id] = "done"
			x.arrive(at, &at.client, x.make(at, &at.client, func(_ *world, h *Hand) *call { return x.enqueue(h, id, false) }))
		}
	}
	at.redis = x.save()
	x.seen[at.key()] = true
	for queue := []*world{at}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		if s.depth > 0 && from.depth == s.depth {
			continue
		}
		for _, s := range x.possible(from) {
			at = from.next(s.what)
			x.restore(at)
			x.steps++
			s.take(at)
			x.check(at)
			if key := at.key(); !x.seen[key] {
				x.seen[key] = true
				at.redis = x.save()
				queue = append(queue, at)
				if len(x.seen)%10 == 0 {
					x.end(at)
				}
				if len(x.seen)%50 == 0 {
					x.hurt(at)
				}
			}
		}
		from.redis = snapshot{} // done with
	}
	return x, ""
}

// end lets everything come to its end.
func (x *explorer) end(w *world) {
	x.drawn++
	x.p.m = w.m.clone()
	x.p.hands[0].lane = newLane()
	x.p.finish()
}

// hurt deletes each key in turn, and lets a check put everything right.
func (x *explorer) hurt(w *world) {
	k := x.p.hands[0].keys
	for _, key := range []string{"", k.bucket, k.ready, k.handoff, k.leases, k.dead} {
		x.fill(w.m.us, w.redis)
		x.p.m = w.m.clone()
		x.p.note("%s is deleted", key)
		there := x.r.Exists(key)
		x.r.Del(key)
		report, err := x.p.hands[0].client().Check(context.Background(), k.topic, true)
		require.NoError(x.t, err)
		if !there {
			require.Empty(x.t, report.Findings)
			continue
		}
		x.hurts++
		waiting := append(x.p.list(k.ready), x.p.list(k.handoff)...)
		places := map[place]map[string]float64{inBucket: x.p.zset(k.bucket), inLeases: x.p.zset(k.leases), inDead: x.p.zset(k.dead)}
		for id, j := range w.m.jobs {
			score, there := places[j.in][id]
			switch {
			case j.in == inReady, j.in == inLeases && key == k.leases, j.in == inBucket && !there: // a left-over of its ID is as good: a server puts it back
				require.Contains(x.t, waiting, id)
			default:
				require.True(x.t, there, "%s was in %s", id, j.in)
				require.True(x.t, j.in == inDead || score == float64(j.score), "%s was in %s", id, j.in)
			}
		}
		x.p.census()
		x.end(w)
	}
}

// story tells how a state came about.
func (x *explorer) story(at *world) string {
	var steps []string
	for w := at; w != nil && w.step != ""; w = w.before {
		steps = append(steps, w.step)
	}
	slices.Reverse(steps)
	return strings.Join(steps, "\n") + "\n" + x.t.failure
}

// A step is one thing that can happen.
type step struct {
	what string
	take func(w *world)
}

// possible lists the steps from a state.
func (x *explorer) possible(w *world) (list []step) {
	add := func(what string, take func(w *world)) { list = append(list, step{what, take}) }
	// calls adds a call of a mind in the three ways it can go.
	calls := func(who func(w *world) *mind, name string, make func(w *world, h *Hand) *call) {
		add(name, func(w *world) {
			c := x.make(w, who(w), make)
			x.arrive(w, who(w), c)
		})
		if w.left.lost > 0 {
			add(name+", and the answer is lost", func(w *world) {
				w.left.lost--
				c := x.make(w, who(w), make)
				x.carryOut(w, c)
				who(w).waiting = c
			})
		}
		if w.left.dead > 0 {
			add(name+", and dies before the answer arrives", func(w *world) {
				w.left.dead--
				x.carryOut(w, x.make(w, who(w), make))
				who(w).die()
			})
			add(name+", and dies before the call arrives", func(w *world) {
				w.left.dead--
				c := x.make(w, who(w), make)
				who(w).die()
				who(w).late = c
			})
		}
	}
	for i := range w.servers {
		who := func(w *world) *mind { return &w.servers[i] }
		name := fmt.Sprintf("server %d ", i)
		mind := w.servers[i]
		x.common(w, name, who, add)
		if mind.waiting != nil {
			continue // one call at a time
		}
		if len(mind.held) == 0 || w.left.dead == 0 {
			calls(who, name+"takes", x.take)
		}
		for n, held := range mind.held {
			about := name + "%s " + held.ID
			for verb, what := range map[verb]string{verbAck: "acks", verbRetry: "retries", verbSnooze: "snoozes", verbBury: "buries", verbReturn: "returns"} {
				if verb != verbAck && w.left.failures == 0 {
					continue
				}
				calls(who, fmt.Sprintf(about, what), func(w *world, h *Hand) *call {
					if verb != verbAck {
						w.left.failures--
					}
					return x.settle(h, verb, who(w), n)
				})
			}
			if w.left.extends > 0 {
				add(fmt.Sprintf(about, "extends"), func(w *world) {
					w.left.extends--
					x.extend(w, &who(w).held[n])
				})
			}
		}
		if len(mind.held) > 0 && w.left.dead > 0 {
			add(name+"dies", func(w *world) { w.left.dead--; who(w).die() })
		}
	}
	who := func(w *world) *mind { return &w.client }
	x.common(w, "client ", who, add)
	if w.client.waiting == nil {
		x.clientCalls(w, who, calls)
	}
	add("promote", x.promote)
	if w.left.pops > 0 && len(w.m.ready) > 0 {
		add("a server pops an ID to handoff", func(w *world) {
			w.left.pops--
			w.m.handoff, w.m.ready = append(w.m.handoff, w.m.ready[0]), w.m.ready[1:]
			k := x.p.hands[0].keys
			require.NoError(x.t, x.rdb.LMove(context.Background(), k.ready, k.handoff, "LEFT", "RIGHT").Err())
		})
	}
	if w.left.ticks > 0 {
		add("a second passes", func(w *world) {
			w.left.ticks--
			w.m.us += exploreTick.Microseconds()
			x.expire(w)
		})
	}
	slices.SortStableFunc(list, func(a, b step) int { return strings.Compare(a.what, b.what) }) // the verbs come from a map
	return list
}

// common are the steps of a mind whose call was lost.
func (x *explorer) common(w *world, name string, who func(w *world) *mind, add func(string, func(*world))) {
	mind := who(w)
	if c := mind.waiting; c != nil {
		add(name+"sends again: "+c.what, func(w *world) {
			who(w).waiting = nil
			x.arrive(w, who(w), c)
		})
		add(name+"sends again, and the first copy is late: "+c.what, func(w *world) {
			who(w).waiting = nil
			x.arrive(w, who(w), c)
			who(w).late = c
		})
	}
	if c := mind.late; c != nil {
		add("there arrives late: "+c.what, func(w *world) {
			who(w).late = nil
			x.carryOut(w, c)
		})
	}
}

func (x *explorer) clientCalls(w *world, who func(w *world) *mind, calls func(func(*world) *mind, string, func(*world, *Hand) *call)) {
	for _, id := range exploredIDs {
		if w.m.jobs[id] == nil && !w.once("enqueue "+id) {
			calls(who, "client enqueues "+id, func(w *world, h *Hand) *call {
				w.gone["enqueue "+id] = "done"
				return x.enqueue(h, id, false)
			})
		}
		if w.m.jobs[id] == nil {
			continue
		}
		if w.left.replaces > 0 {
			calls(who, "client replaces "+id, func(w *world, h *Hand) *call {
				w.left.replaces--
				return x.enqueue(h, id, true)
			})
		}
		if w.left.cancels > 0 {
			calls(who, "client cancels "+id, func(w *world, h *Hand) *call {
				w.left.cancels--
				delete(w.gone, "enqueue "+id) // and may enqueue it anew
				return x.simple(h, "cancel "+id, func(w *world) string {
					w.end(id, "cancelled")
					return w.m.cancel(id)
				}, func() (reply, error) { return h.tryCancel(id) })
			})
		}
		if w.left.reschedules > 0 {
			calls(who, "client reschedules "+id, func(w *world, h *Hand) *call {
				w.left.reschedules--
				return x.simple(h, "reschedule "+id, func(w *world) string { return w.m.reschedule(id, "+1000") },
					func() (reply, error) { return h.tryReschedule(id, "+1000") })
			})
		}
		if w.left.revives > 0 && w.m.jobs[id].in == inDead {
			calls(who, "client revives "+id, func(w *world, h *Hand) *call {
				w.left.revives--
				return x.simple(h, "revive "+id, func(w *world) string { return w.m.revive(id) },
					func() (reply, error) { return h.tryRevive(id) })
			})
		}
	}
}

func (w *world) once(what string) bool { return w.gone[what] != "" }

// end notes that the present incarnation of a job is to run no more.
func (w *world) end(id, why string) {
	if j := w.m.jobs[id]; j != nil {
		w.gone[nonceOf(j.record)] = why
	}
}

func (m *mind) die() { *m = mind{lives: m.lives + 1, late: m.late} }

// make makes a call of a mind, with the next number of its lane.
func (x *explorer) make(w *world, who *mind, build func(w *world, h *Hand) *call) *call {
	h := x.p.hands[0]
	name := "client"
	for i := range w.servers {
		if who == &w.servers[i] {
			name = "server" + strconv.Itoa(i)
		}
	}
	h.lane = &lane{id: fmt.Sprint(name, "-", who.lives), seq: who.seq}
	c := build(w, h)
	who.seq++
	return c
}

// carryOut carries a call out, for the first time or again.
func (x *explorer) carryOut(w *world, c *call) reply {
	if c.known(w) {
		want := c.expect(w)
		r, err := c.again()
		require.NoError(x.t, err)
		require.Equal(x.t, want, answerOf(r), "sent again: %s", c.what)
		return r
	}
	got, want := c.first(w)
	require.Equal(x.t, want, got, c.what)
	r, err := c.again() // the same answer at once, and nothing done
	require.NoError(x.t, err)
	require.Equal(x.t, want, answerOf(r), "sent again at once: %s", c.what)
	return r
}

// arrive carries a call out and lets its answer arrive.
func (x *explorer) arrive(w *world, who *mind, c *call) {
	r := x.carryOut(w, c)
	if c.answer != nil {
		c.answer(x, w, r)
	}
}

// answerOf is the part of an answer that a repetition must give too.
func answerOf(r reply) string {
	if len(r) > 3 { // of take: the end of the lease is for the comparison of all there is
		return strings.Join(idsOr(heldOf(r)), " ")
	}
	return r.text(2)
}

// simple is a call whose answer is a text and no news for the caller.
func (x *explorer) simple(h *Hand, what string, onModel func(w *world) string, send func() (reply, error)) *call {
	c := &call{what: what}
	laneAt := *h.lane
	number := laneAt.seq + 1
	c.again = func() (reply, error) {
		own := laneAt
		h.lane = &own
		return send()
	}
	c.first = func(w *world) (got, want string) {
		want = onModel(w)
		r, err := c.again()
		require.NoError(x.t, err)
		w.said[laneAt.id] = said{number, want}
		return r.text(2), want
	}
	c.known = func(w *world) bool { return w.said[laneAt.id].number >= number }
	c.expect = func(w *world) string {
		if last := w.said[laneAt.id]; last.number == number {
			return last.text
		}
		return "" // given up, and late: it does nothing
	}
	return c
}

var exploredIDs = []string{"a", "b"}

// enqueue stores a, which is due at once, or b, which is due in a second. What replaces a job is due in a second.
func (x *explorer) enqueue(h *Hand, id string, replace bool) *call {
	what, when := "enqueue "+id, "+1000"
	if replace {
		what = "replace " + id
	} else if id == "a" {
		when = "+0"
	}
	head, tail := h.record(when, 0)
	return x.simple(h, what, func(w *world) string {
		if replace {
			w.end(id, "replaced")
		}
		letters := w.m.enqueue(id, when, whole(head, tail, w.m.now()), 0, replace)
		return strings.ReplaceAll(letters, "n", "")
	}, func() (reply, error) { return h.trySend(replace, []any{id, head, tail, when}) })
}

func (x *explorer) settle(h *Hand, verb verb, who *mind, n int) *call {
	held := who.held[n]
	who.held = slices.Delete(slices.Clone(who.held), n, n+1)
	like := row{verb: verb, delay: exploreTick}
	switch verb {
	case verbRetry:
		like.entry = strings.Replace(byHand, "{", `{"next":1,`, 1)
	case verbBury:
		like.entry, like.attempts = byHand, 1
	}
	c := x.simple(h, verbs[verb].outcome+" "+held.ID, func(w *world) string {
		j := w.m.jobs[held.ID]
		letter := w.m.settle(held.ID, held.number, verb, exploreTick.Milliseconds())
		switch {
		case letter != "o":
			return letter
		case verb == verbReturn:
			w.m.giveBack([]string{held.ID})
		case verb == verbAck:
			w.gone[nonceOf(j.record)] = "done"
		}
		require.Equal(x.t, held.nonce, nonceOf(j.record), "settled a job of another incarnation")
		return ""
	}, func() (reply, error) { return h.settle([]Held{held.Held}, like) })
	c.about = []lease{held.lease}
	return c
}

func (x *explorer) take(_ *world, h *Hand) *call {
	c := &call{what: "take"}
	laneAt := *h.lane
	number := strconv.FormatUint(laneAt.seq+1, 10)
	server := strings.Split(laneAt.id, "-")[0]
	at := int(server[len(server)-1] - '0')
	c.again = func() (reply, error) {
		own := laneAt
		h.lane = &own
		return h.tryTake(number, 2, exploreLease)
	}
	c.first = func(w *world) (got, want string) {
		lease := w.m.leases
		status, ids := w.m.take(2, exploreLease.Milliseconds())
		r, err := c.again()
		require.NoError(x.t, err)
		require.Equal(x.t, status, r.status())
		receipt := receipt{number: laneAt.seq + 1, sent: w.m.us}
		for _, id := range ids {
			j := w.m.jobs[id]
			require.Empty(x.t, w.gone[nonceOf(j.record)], "%s runs", id)
			lease++
			receipt.got = append(receipt.got, exploredLease{newLease(id, lease), nonceOf(j.record), w.m.us + exploreLease.Microseconds()})
		}
		if len(ids) > 0 {
			w.taken[laneAt.id] = receipt
		}
		for _, one := range heldOf(r) {
			rec, err := decodeRecord(one.Record)
			require.NoError(x.t, err)
			due := rec.due
			if m, ok := parseMoved(one.Moved); ok {
				due = m.due
			}
			require.LessOrEqual(x.t, due, w.m.now(), "%s is early", one.ID)
			if j := w.m.jobs[one.ID]; j != nil {
				require.Equal(x.t, j.attempts, atoi(one.Attempts), "attempts of %s", one.ID)
			}
		}
		return strings.Join(idsOr(heldOf(r)), " "), strings.Join(ids, " ")
	}
	c.known = func(w *world) bool { return w.taken[laneAt.id].number > laneAt.seq }
	still := func(w *world) (list []exploredLease) {
		receipt := w.taken[laneAt.id]
		for _, l := range receipt.got {
			j := w.m.jobs[l.ID]
			// One that was extended is not given again: its end is another.
			if receipt.number == laneAt.seq+1 && j != nil && j.in == inLeases && j.lease == l.number && j.score*1000 == l.until {
				list = append(list, l)
			}
		}
		return list
	}
	c.expect = func(w *world) string {
		var ids []string
		for _, l := range still(w) {
			ids = append(ids, l.ID)
		}
		return strings.Join(ids, " ")
	}
	c.answer = func(x *explorer, w *world, r reply) {
		mind := &w.servers[at]
		known := still(w)
		for _, one := range heldOf(r) {
			i := slices.IndexFunc(known, func(l exploredLease) bool { return l.ID == one.ID })
			require.GreaterOrEqual(x.t, i, 0, "an answer with %s", one.ID)
			l := known[i]
			l.Held = one
			for other := range w.servers {
				for _, theirs := range w.servers[other].held {
					require.False(x.t, theirs.nonce == l.nonce && theirs.until > w.m.us, "%s runs twice, and both leases live", one.ID)
				}
			}
			mind.held = append(slices.Clone(mind.held), l)
		}
	}
	return c
}

func newLease(id string, number int) lease { return lease{Held{ID: id}, number} }

func (x *explorer) extend(w *world, l *exploredLease) {
	h := x.p.hands[0]
	ending := w.m.now() + exploreLease.Milliseconds()
	want := w.m.extend(l.ID, l.number, ending)
	for range 2 { // safe to send twice
		r, err := h.tryExtend(ending, l.Held)
		require.NoError(x.t, err)
		require.Equal(x.t, want, r.text(2))
	}
	if want == "o" {
		l.Fence, l.until = strconv.FormatInt(ending, 10), w.m.us+exploreLease.Microseconds()
	} else {
		l.until = 0 // its handler is told
	}
}

func (x *explorer) promote(w *world) {
	moved, reclaimed := w.m.promote(1000, true)
	r, err := x.p.hands[0].tryPromote(1000, 1)
	require.NoError(x.t, err)
	require.Equal(x.t, []int64{int64(moved), int64(reclaimed), w.m.wait()}, []int64{r.number(2), r.number(3), r.number(4)})
}

// expire removes the receipts of takes whose leases are over: miniredis lets no key expire when its clock is set.
func (x *explorer) expire(w *world) {
	for _, key := range x.r.Keys() {
		if strings.Contains(key, "}:taken:") {
			list, err := x.r.List(key)
			require.NoError(x.t, err)
			if parseEnd(list[1]) <= w.m.us {
				x.r.Del(key)
			}
		}
	}
	maps.DeleteFunc(w.taken, func(_ string, r receipt) bool { return r.sent+exploreLease.Microseconds() <= w.m.us })
}

// check holds Redis to the model.
func (x *explorer) check(w *world) {
	x.p.m = w.m
	x.p.trace = []string{w.step}
	x.p.compare()
}

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
	n.done, n.stats = maps.Clone(m.done), maps.Clone(m.stats)
	return &n
}

// key tells what a state is, without what makes no difference: absolute times and numbers, and which of the servers is which.
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
		if m, ok := parseMoved(j.moved); ok {
			fmt.Fprint(&b, ticks(m.due*1000), m.why, m.spent)
		}
		rec, _ := decodeRecord(j.record) // the model made it
		fmt.Fprint(&b, ticks(rec.due*1000), ";")
	}
	fmt.Fprint(&b, w.m.sorted(inBucket), w.m.sorted(inLeases), w.m.sorted(inDead), w.m.ready, w.m.handoff, w.left, w.once("enqueue a"), w.once("enqueue b"))
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

// A mutation sends other scripts than it is told to.
type mutation func(script string) string

func (m mutation) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (m mutation) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (m mutation) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if words := cmd.Args(); words[0] == "evalsha" {
			i := slices.IndexFunc(allScripts, func(s *script) bool { return s.digest == words[1] })
			words[0], words[1] = "eval", m(fmt.Sprint(allScripts[i].text))
		}
		return next(ctx, cmd)
	}
}

// DELAYQ_EXPLORE=all takes away the bounds of the depth, but for the last scope, which goes two steps further.
func TestExplore(t *testing.T) {
	t.Parallel()
	for _, s := range scopes {
		t.Run(s.name, func(t *testing.T) {
			if os.Getenv("DELAYQ_EXPLORE") == "all" {
				if s.depth += 2; s.name != scopes[len(scopes)-1].name {
					s.depth = 0
				}
			}
			began := time.Now()
			x, failure := explore(t, s, nil)
			require.Empty(t, failure)
			t.Logf("%d states, %d steps between them, %d brought to an end, %d keys lost and mended, in %v", len(x.seen), x.steps, x.drawn, x.hurts, time.Since(began).Round(time.Millisecond))
		})
	}
}

// The exploration finds what is wrong with a script, and tells how to get there.
func TestExploreFindsDefects(t *testing.T) {
	t.Parallel()
	for name, mutant := range map[string]struct {
		script, right, wrong string
		scope                string
	}{
		"take does not look at the bucket":      {"take", "and not delayed[i] ", "", "a client interferes"},
		"take gives a lost batch twice":         {"take", "if last == number then", "if false then", "an answer is lost"},
		"a fence of long ago is good":           {"ack", "if tonumber(lease_end) == tonumber(score) then", "if true then", "a server dies"},
		"retry forgets the place":               {"retry", "redis.call('ZADD', bucket, now + jobs[where[i]], id)", "", "handlers fail"},
		"snooze uses up an attempt":             {"snooze", "count(stats, 'snoozed', #ids)", "redis.call('HINCRBY', KEYS[3], ids[1] or '', 1)", "handlers fail"},
		"return goes to the tail":               {"return", "'LPUSH'", "'RPUSH'", "handlers fail"},
		"bury keeps the lease":                  {"bury", "release(leases, ids)", "", "handlers fail"},
		"ack keeps the record":                  {"ack", "redis.call('HDEL', pool, unpack(ids))", "", "a server dies"},
		"promote leaves due jobs in the bucket": {"promote", "redis.call('ZREM', bucket, unpack(due))", "", "a server dies"},
		"promote drops lapsed jobs":             {"promote", "redis.call('LPUSH', ready, unpack(first))", "", "a server dies"},
		"promote does not count a crash":        {"promote", "failed(attempts, errors, id, 1,", "failed(attempts, errors, id, '0',", "a server dies"},
		"promote forgets handoff":               {"promote", "redis.call('LMOVE', handoff, ready, 'RIGHT', 'LEFT')", "redis.call('RPOP', handoff)", "a server dies"},
		"promote is early":                      {"promote", "ZRANGEBYSCORE', bucket, '-inf', now,", "ZRANGEBYSCORE', bucket, '-inf', now + 5000,", "a server dies"},
		"cancel leaves the lease":               {"cancel", "release(leases, {id})", "", "a client interferes"},
		"cancel is carried out when it is late": {"cancel", "and '' or nil", "and nil or nil", "a call of the client is lost"},
		"enqueue stores a job again":            {"enqueue", "if told then", "if false then", "a call of the client is lost"},
		"replace leaves the lease":              {"replace", "release(leases, old)", "", "a client interferes"},
		"extend gives leases to others":         {"extend", "if owns(scores[i], held[at + 1] .. ' ' .. ending) then", "if scores[i] then", "handlers fail"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := false
			i := slices.IndexFunc(scopes, func(s scope) bool { return s.name == mutant.scope })
			x, failure := explore(t, scopes[i], func(text string) string {
				if !strings.HasSuffix(text, readScript(t, mutant.script)) {
					return text
				}
				other := strings.Replace(text, mutant.right, mutant.wrong, 1)
				changed = changed || other != text
				return other
			})
			require.True(t, changed, "the defect was planted")
			require.NotEmpty(t, failure)
			t.Logf("found after %d steps:\n%.400s", x.steps, failure)
		})
	}
}

// readScript is the text of a script without the prelude.
func readScript(t *testing.T, name string) string {
	text := proseFile(t, "lua/"+name+".lua")
	if name == "replace" {
		text += proseFile(t, "lua/enqueue.lua")
	}
	return text
}
