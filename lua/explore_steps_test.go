package lua_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/hand"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

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
			for verb, what := range map[settle.Verb]string{settle.Ack: "acks", settle.Retry: "retries", settle.Snooze: "snoozes", settle.Bury: "buries", settle.Return: "returns", settle.Again: "carries on with"} {
				if verb != settle.Ack && w.left.failures == 0 {
					continue
				}
				calls(who, fmt.Sprintf(about, what), func(w *world, h *Hand) *call {
					if verb != settle.Ack {
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
			k := x.p.hands[0].Keys
			require.NoError(x.t, x.rdb.LMove(context.Background(), k.Ready, k.Handoff, "LEFT", "RIGHT").Err())
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
	if c := mind.waiting; c != nil && c.since > 0 {
		for _, limit := range []int{0, 1} {
			anew := func(w *world, late *call) {
				who(w).waiting = nil
				x.arrive(w, who(w), x.make(w, who(w), func(_ *world, h *Hand) *call { return x.takeSince(h, c.since, limit) }))
				who(w).late = late
			}
			name := fmt.Sprintf("%sasks anew for %d: %s", name, limit, c.what)
			add(name, func(w *world) { anew(w, who(w).late) })
			add(name+", and the first copy is late", func(w *world) { anew(w, c) })
			if w.left.lost > 0 {
				add(name+", and the answer is lost", func(w *world) {
					w.left.lost--
					again := x.make(w, who(w), func(_ *world, h *Hand) *call { return x.takeSince(h, c.since, limit) })
					x.carryOut(w, again)
					who(w).waiting = again
				})
			}
		}
	}
	if c := mind.late; c != nil {
		add("there arrives late: "+c.what, func(w *world) {
			who(w).late = nil
			x.carryOut(w, c)
		})
	}
}

func (x *explorer) clientCalls(w *world, who func(w *world) *mind, calls func(func(*world) *mind, string, func(*world, *Hand) *call)) {
	if w.left.pauses > 0 {
		for _, by := range []string{"program", "operator"} {
			for _, verb := range []string{"pause", "resume"} {
				if _, paused := w.m.pauses[by]; verb == "resume" && !paused {
					continue
				}
				calls(who, verb+" by the "+by, func(w *world, h *Hand) *call {
					w.left.pauses--
					period := time.Duration(0)
					if by == "program" {
						period = exploreTick
					}
					return x.simple(h, verb+" by the "+by, func(w *world) string { return w.m.pause(verb, by, period.Milliseconds()) },
						func() (script.Reply, error) { return h.TryPause(verb, by, period) })
				})
			}
		}
	}
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
					return hand.LetterOf(w.m.cancel(id))
				}, func() (script.Reply, error) { return h.TryCancel(id) })
			})
		}
		if w.left.reschedules > 0 {
			calls(who, "client reschedules "+id, func(w *world, h *Hand) *call {
				w.left.reschedules--
				return x.simple(h, "reschedule "+id, func(w *world) string { return hand.LetterOf(w.m.reschedule(id, "+1000")) },
					func() (script.Reply, error) {
						r, err := h.TryReschedule(id, "+1000")
						return r[:min(len(r), 3)], err // without records of jobs that expire: there is none
					})
			})
		}
		if w.left.buries > 0 {
			calls(who, "client buries "+id, func(w *world, h *Hand) *call {
				w.left.buries--
				return x.simple(h, "bury "+id, func(w *world) string { return hand.LetterOf(w.m.bury(id)) },
					func() (script.Reply, error) { return h.TryBury(id) })
			})
		}
		if w.left.revives > 0 && w.m.jobs[id].in == inDead {
			calls(who, "client revives "+id, func(w *world, h *Hand) *call {
				w.left.revives--
				return x.simple(h, "revive "+id, func(w *world) string { return hand.LetterOf(w.m.revive(id, "+0")) },
					func() (script.Reply, error) { return h.TryRevive(id) })
			})
		}
	}
}

func (w *world) once(what string) bool { return w.gone[what] != "" }

// end notes that the present incarnation of a job is to run no more.
func (w *world) end(id, why string) {
	if j := w.m.jobs[id]; j != nil {
		w.gone[record.NonceOf(j.record)] = why
	}
}

func (m *mind) die() { *m = mind{lives: m.lives + 1, late: m.late} }

// make makes a call of a mind, with the next number of its series.
func (x *explorer) make(w *world, who *mind, build func(w *world, h *Hand) *call) *call {
	h := x.p.hands[0]
	name := "client"
	for i := range w.servers {
		if who == &w.servers[i] {
			name = "server" + strconv.Itoa(i)
		}
	}
	h.Series = &script.Series{ID: fmt.Sprint(name, "-", who.lives), Seq: who.seq}
	c := build(w, h)
	who.seq++
	return c
}

// carryOut carries a call out, for the first time or again.
func (x *explorer) carryOut(w *world, c *call) script.Reply {
	if c.known(w) {
		want := c.expect(w)
		r, err := c.again()
		if want == script.CodePassed {
			require.ErrorContains(x.t, err, want+" ", "late: %s", c.what)
			return nil
		}
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
func answerOf(r script.Reply) string {
	if len(r) > 4 { // of take: the end of the lease is for the comparison of all there is
		return strings.Join(idsOr(hand.HeldOf(r)), " ")
	}
	return r.Text(2)
}

// simple is a call whose answer is a text and no news for the caller.
func (x *explorer) simple(h *Hand, what string, onModel func(w *world) string, send func() (script.Reply, error)) *call {
	c := &call{what: what}
	laneAt := *h.Series
	number := laneAt.Seq + 1
	c.again = func() (script.Reply, error) {
		own := laneAt
		h.Series = &own
		return send()
	}
	c.first = func(w *world) (got, want string) {
		want = onModel(w)
		r, err := c.again()
		require.NoError(x.t, err)
		w.said[laneAt.ID] = said{number, want}
		return r.Text(2), want
	}
	c.known = func(w *world) bool { return w.said[laneAt.ID].number >= number }
	c.expect = func(w *world) string {
		if last := w.said[laneAt.ID]; last.number == number {
			return last.text
		}
		return script.CodePassed // given up, and late: it does nothing
	}
	return c
}

var exploredIDs = []string{"a", "b"}

// enqueue stores a, which is due at once, or b, which is due in a second. What replaces a job is
// due in a second.
func (x *explorer) enqueue(h *Hand, id string, replace bool) *call {
	what, when := "enqueue "+id, "+1000"
	if replace {
		what, when = "replace "+id, "r+1000"
	} else if id == "a" {
		when = "+0"
	}
	head, tail := h.Record(when, 0)
	return x.simple(h, what, func(w *world) string {
		if replace {
			w.end(id, "replaced")
		}
		letters := w.m.enqueue(id, when, record.Join(head, w.m.now(), tail), 0)
		return strings.ReplaceAll(letters, "n", "")
	}, func() (script.Reply, error) { return h.TrySend(false, []any{id, head, tail, when}) })
}

func (x *explorer) settle(h *Hand, verb settle.Verb, who *mind, n int) *call {
	held := who.held[n]
	who.held = slices.Delete(slices.Clone(who.held), n, n+1)
	like := settle.Row{Verb: verb, Delay: exploreTick}
	switch verb {
	case settle.Retry:
		like.Failure = strings.Replace(hand.Failed, "{", `{"next":1,`, 1)
	case settle.Bury:
		like.Failure, like.Attempts = hand.Failed, 1
	}
	var fresh *settle.Renewal
	if verb == settle.Again {
		fresh = h.Renewal(hand.When(exploreTick), 0)
	}
	c := x.simple(h, verb.Outcome()+" "+held.ID, func(w *world) string {
		j := w.m.jobs[held.ID]
		letter := w.m.settle(held.ID, held.number, verb, exploreTick.Milliseconds())
		switch {
		case letter != "o":
			return letter
		case verb == settle.Return:
			w.m.giveBack([]string{held.ID})
		case verb == settle.Ack:
			w.gone[record.NonceOf(j.record)] = "done"
		case verb == settle.Again:
			w.gone[record.NonceOf(j.record)] = "done"
			w.m.enqueue(held.ID, fresh.When, record.Join(fresh.Head, w.m.now(), fresh.Tail), 0)
		}
		require.Equal(x.t, held.nonce, record.NonceOf(j.record), "settled a job of another incarnation")
		return ""
	}, func() (script.Reply, error) {
		h.Renewals = map[string]*settle.Renewal{held.ID: fresh}
		return h.Settle([]hand.Held{held.Held}, like)
	})
	c.about = []lease{held.lease}
	return c
}

func (x *explorer) take(_ *world, h *Hand) *call { return x.takeSince(h, h.Series.Seq+1, 2) }

// takeSince is a take of a server that has had no answer to those from a number on.
func (x *explorer) takeSince(h *Hand, since uint64, limit int) *call {
	c := &call{what: fmt.Sprint("take ", limit), since: since}
	laneAt := *h.Series
	number := laneAt.Seq + 1
	server := strings.Split(laneAt.ID, "-")[0]
	at := int(server[len(server)-1] - '0')
	c.again = func() (script.Reply, error) {
		own := laneAt
		h.Series = &own
		return h.TryTakeSince(fmt.Sprint(number), fmt.Sprint(since), limit, script.CallBytes, 2, exploreLease, "head")
	}
	c.first = func(w *world) (got, want string) {
		lease := w.m.leases
		var ids []string
		status := "ok"
		if last := w.taken[laneAt.ID]; since < number && last.number >= since {
			var left []string
			for _, l := range w.still(last) {
				left = append(left, l.ID)
			}
			ids = w.m.retake(left, limit, exploreLease.Milliseconds())
		}
		switch {
		case limit == 0:
			status = "returned"
		case len(ids) == 0:
			status, ids = w.m.take(limit, exploreLease.Milliseconds())
		}
		r, err := c.again()
		require.NoError(x.t, err)
		require.Equal(x.t, status, r.Status())
		receipt := receipt{number: number, sent: w.m.us}
		for _, id := range ids {
			j := w.m.jobs[id]
			require.Empty(x.t, w.gone[record.NonceOf(j.record)], "%s runs", id)
			lease++
			receipt.got = append(receipt.got, exploredLease{newLease(id, lease), record.NonceOf(j.record), w.m.us + exploreLease.Microseconds()})
		}
		if len(ids) > 0 || since < number {
			w.taken[laneAt.ID] = receipt
		}
		for _, one := range hand.HeldOf(r) {
			rec, err := record.Decode(one.Record)
			require.NoError(x.t, err)
			due := rec.Due()
			if m, ok := record.DecodeMoved(one.Moved); ok {
				due = m.Due
			}
			require.LessOrEqual(x.t, due, w.m.now(), "%s is early", one.ID)
			if j := w.m.jobs[one.ID]; j != nil {
				require.Equal(x.t, j.attempts, atoi(one.Attempts), "attempts of %s", one.ID)
			}
		}
		return strings.Join(idsOr(hand.HeldOf(r)), " "), strings.Join(ids, " ")
	}
	c.known = func(w *world) bool { return w.taken[laneAt.ID].number >= number }
	still := func(w *world) []exploredLease {
		if receipt := w.taken[laneAt.ID]; receipt.number == number {
			return w.still(receipt)
		}
		return nil
	}
	c.expect = func(w *world) string {
		var ids []string
		for _, l := range still(w) {
			ids = append(ids, l.ID)
		}
		return strings.Join(ids, " ")
	}
	c.answer = func(x *explorer, w *world, r script.Reply) {
		mind := &w.servers[at]
		known := still(w)
		for _, one := range hand.HeldOf(r) {
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

// still lists the leases of a receipt that are as they were given. One that was extended is not
// given again: its end is another.
func (w *world) still(r receipt) (list []exploredLease) {
	for _, l := range r.got {
		j := w.m.jobs[l.ID]
		if j != nil && j.in == inLeases && j.lease == l.number && j.score*1000 == l.until {
			list = append(list, l)
		}
	}
	return list
}

func newLease(id string, number int) lease { return lease{hand.Held{ID: id}, number} }

func (x *explorer) extend(w *world, l *exploredLease) {
	h := x.p.hands[0]
	ending := w.m.now() + exploreLease.Milliseconds()
	want := w.m.extend(l.ID, l.number, ending)
	for range 2 { // safe to send twice
		r, err := h.TryExtend(ending, l.Held)
		require.NoError(x.t, err)
		require.Equal(x.t, want, r.Text(2))
	}
	if want == "o" {
		l.Fence, l.until = strconv.FormatInt(ending, 10), w.m.us+exploreLease.Microseconds()
	} else {
		l.until = 0 // its handler is told
	}
}

func (x *explorer) promote(w *world) {
	moved, reclaimed := w.m.promote(1000, true)
	r, err := x.p.hands[0].TryPromote(1000, 1)
	require.NoError(x.t, err)
	require.Equal(x.t, []int64{int64(moved), int64(reclaimed), w.m.wait()}, []int64{r.Number(2), r.Number(3), r.Number(4)})
}

// expire removes the receipts of takes whose leases are over: miniredis lets no key expire when its
// clock is set.
func (x *explorer) expire(w *world) {
	maps.DeleteFunc(w.taken, func(_ string, r receipt) bool { return r.sent+exploreLease.Microseconds() <= w.m.us })
	for _, key := range x.r.Keys() {
		if _, series, ok := strings.Cut(key, "}:taken:"); ok && w.taken[series].number == 0 {
			x.r.Del(key)
		}
	}
}
