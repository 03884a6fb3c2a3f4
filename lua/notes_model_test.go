package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/settle"
)

// A vigil plays at random with jobs and with clients that wait for them, and knows who must be told
// what: of each incarnation, by its nonce.
type vigil struct {
	*rand.Rand
	t        *testing.T
	h        *Hand
	ears     []*ear
	held     map[string]hand.Held         // running jobs
	waiters  map[string]map[*ear]bool     // nonce → who waits for it
	outcomes map[string]string            // nonce → letter, and after f the next nonce; of those that had waiters
	revived  map[string]bool              // nonce: it was dead, and those who waited were told
	ids      map[string]string            // nonce → ID
	due      map[*ear][]string            // messages that must have come
	told     map[string]map[*ear]struct{} // nonce → who was told
	last     string                       // what was done last
}

// nonces returns those of the job that has an ID and of its successor; "": none.
func (v *vigil) nonces(id string) (job, heir string) {
	if record := v.h.RDB.HGet(v.t.Context(), v.h.Keys.Pool, id).Val(); record != "" {
		job = record[:8]
		v.ids[job] = id
	}
	if entry := v.h.RDB.HGet(v.t.Context(), v.h.Keys.Next, id).Val(); entry != "" {
		heir = strings.SplitN(entry, " ", 3)[2][:8]
		v.ids[heir] = id
	}
	return job, heir
}

func (v *vigil) state(id string) string {
	ctx, k := v.t.Context(), v.h.Keys
	switch {
	case !v.h.RDB.HExists(ctx, k.Pool, id).Val():
		return ""
	case v.h.RDB.ZScore(ctx, k.Leases, id).Err() == nil:
		return "running"
	case v.h.RDB.ZScore(ctx, k.Dead, id).Err() == nil:
		return "dead"
	}
	return "waiting"
}

// ends notes that an incarnation has ended.
func (v *vigil) ends(nonce, letter string) {
	if len(v.waiters[nonce]) == 0 && !v.revived[nonce] {
		return
	}
	delete(v.revived, nonce)
	v.outcomes[nonce] = letter
	for e := range v.waiters[nonce] {
		v.due[e] = append(v.due[e], v.ids[nonce])
		require.NotContains(v.t, v.told[nonce], e, "told twice")
		if v.told[nonce] == nil {
			v.told[nonce] = map[*ear]struct{}{}
		}
		v.told[nonce][e] = struct{}{}
	}
	delete(v.waiters, nonce)
}

// follows notes that an incarnation goes on as another one.
func (v *vigil) follows(old, next string) {
	if len(v.waiters[old]) == 0 && !v.revived[old] {
		return
	}
	delete(v.revived, old)
	v.outcomes[old] = "f" + next
	for e := range v.waiters[old] {
		if v.waiters[next] == nil {
			v.waiters[next] = map[*ear]bool{}
		}
		v.waiters[next][e] = true
	}
	delete(v.waiters, old)
}

// store enqueues a job with a letter.
func (v *vigil) store(id string) {
	how := []string{"+0", "+60000", "r+0", "r+60000", "w+0", "d+0", "b+1000/5000", "l+1000", "b+1/1"}[v.IntN(9)]
	v.last = "enqueue " + how
	state := v.state(id)
	job, heir := v.nonces(id)
	r, err := v.h.TryEnqueue(false, [2]string{id, how})
	require.NoError(v.t, err)
	now, next := v.nonces(id)
	switch letter := r.Text(2); {
	case strings.Trim(letter, "nSRU") != "":
		require.Equal(v.t, job, now, "refused")
	case letter == "U":
		v.follows(heir, next)
	case letter == "S" || letter == "R":
		v.follows(job, now)
		v.follows(heir, now)
	case state != "":
		v.ends(job, "r")
		v.ends(heir, "r")
		delete(v.held, id)
	}
}

// settle ends a run.
func (v *vigil) settle(id string) {
	like := []settle.Row{
		{Verb: settle.Ack}, {Verb: settle.Ack}, {Verb: settle.Expire}, {Verb: settle.Again}, {Verb: settle.Pass, Delay: time.Minute},
		{Verb: settle.Bury, Attempts: 1}, {Verb: settle.Retry}, {Verb: settle.Snooze}, {Verb: settle.Return},
	}[v.IntN(9)]
	like.Failure = hand.Failed
	v.last = "settle " + like.Verb.Outcome()
	job, heir := v.nonces(id)
	letter := v.h.Letters([]hand.Held{v.held[id]}, like)
	delete(v.held, id)
	if letter == "l" || letter == "g" {
		return
	}
	now, _ := v.nonces(id)
	switch {
	case like.Verb == settle.Return:
	case like.Verb == settle.Retry || like.Verb == settle.Snooze:
		if heir != "" {
			v.follows(job, heir)
		}
	case like.Verb == settle.Pass && heir != "" || like.Verb == settle.Bury:
		v.ends(job, "d")
	case like.Verb == settle.Pass || like.Verb == settle.Again && heir == "":
		v.follows(job, now)
	case like.Verb == settle.Expire:
		v.ends(job, "x")
	default:
		v.ends(job, "o")
	}
}

// edit changes a job from outside.
func (v *vigil) edit(id string) {
	job, heir := v.nonces(id)
	switch v.IntN(4) {
	case 0:
		v.last = "cancel"
		require.NoError(v.t, just(v.h.TryCancel(id)))
		v.ends(job, "c")
		v.ends(heir, "c")
		delete(v.held, id)
	case 1:
		v.last = "bury"
		if strings.Contains("sr", must(v.h.TryBury(id)).Text(2)) {
			v.ends(job, "d")
		}
	case 2:
		v.last = "revive"
		if must(v.h.TryRevive(id)).Text(2) == "d" {
			v.revived[job] = v.revived[job] || v.outcomes[job] != ""
			delete(v.outcomes, job)
			delete(v.told, job)
		}
	default:
		v.last = "hasten"
		v.h.Hasten(time.Minute)
		v.h.Promote()
		for id := range v.held { // the lease has run out
			delete(v.held, id)
		}
	}
}

// wait makes a client wait for a job or for its successor.
func (v *vigil) wait(id string) {
	v.last = "wait"
	e := v.ears[v.IntN(len(v.ears))]
	state := v.state(id)
	nonce, heir := v.nonces(id)
	asked := []string{"", nonce, heir}[v.IntN(3)]
	answer := v.h.Wait(e.name, id, asked, hand.Register)
	switch {
	case asked != "" && asked == heir:
		require.Equal(v.t, "l"+heir, answer[:9])
		nonce = heir
	case nonce == "" && heir != "":
		nonce = heir
	case nonce == "":
		require.Equal(v.t, "g", answer)
		return
	case state == "dead":
		require.Equal(v.t, "e"+nonce+"d", answer[:10])
		return
	default:
		require.Equal(v.t, "l"+nonce, answer[:9])
	}
	if v.waiters[nonce] == nil {
		v.waiters[nonce] = map[*ear]bool{}
	}
	v.waiters[nonce][e] = true
}

// leave makes a client leave.
func (v *vigil) leave(id string) {
	v.last = "leave"
	e := v.ears[v.IntN(len(v.ears))]
	v.h.Wait(e.name, id, "", hand.Leave)
	for nonce, all := range v.waiters {
		if v.ids[nonce] == id {
			delete(all, e)
		}
	}
}

// check compares what the clients have heard, and what they are told if they ask.
func (v *vigil) check(step int) {
	v.t.Helper()
	for _, e := range v.ears {
		got, want := e.heard(), v.due[e]
		slices.Sort(got)
		slices.Sort(want)
		require.Equal(v.t, want, got, "%d: %s: %s", step, v.last, e.name)
		v.due[e] = nil
	}
	for nonce, want := range v.outcomes {
		answer := v.h.Wait("nobody", v.ids[nonce], nonce, hand.Look)
		require.Equal(v.t, "e"+nonce+want[:1], answer[:min(10, len(answer))], "%d: %s", step, v.last)
		if want[0] == 'f' {
			require.Equal(v.t, want[1:], answer[len(answer)-8:])
		}
	}
}

// Whatever happens to jobs and to those who wait for them, each is told how its incarnation has
// ended, once, and in the end nothing is left but outcomes.
func TestWaitersAgainstAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(redistest.Size(20)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) { playVigil(t, h, seed) })
		})
	}
}

func playVigil(t *testing.T, h *Hand, seed uint64) {
	v := &vigil{
		Rand: rand.New(rand.NewPCG(seed, 35)), t: t, h: h, held: map[string]hand.Held{}, waiters: map[string]map[*ear]bool{},
		outcomes: map[string]string{}, ids: map[string]string{}, revived: map[string]bool{}, due: map[*ear][]string{}, told: map[string]map[*ear]struct{}{},
	}
	for _, name := range []string{"x", "y", "z"} {
		v.ears = append(v.ears, h.ear(name))
	}
	ids := []string{"a", "b"}
	for step := range 150 {
		id := ids[v.IntN(len(ids))]
		_, running := v.held[id]
		switch n := v.IntN(20); {
		case n < 5:
			v.store(id)
		case n < 9:
			v.last = "take"
			for _, one := range h.Take(1, time.Second) {
				v.held[one.ID] = one
				h.noted(one) // its waiters are told of the progress
				for e := range v.waiters[one.Nonce()] {
					v.due[e] = append(v.due[e], one.ID)
				}
			}
		case n < 13 && running:
			v.settle(id)
		case n < 15:
			v.edit(id)
		case n < 19:
			v.wait(id)
		default:
			v.leave(id)
		}
		v.check(step)
	}
	for _, id := range ids {
		job, heir := v.nonces(id)
		require.NoError(t, just(h.TryCancel(id)))
		v.ends(job, "c")
		v.ends(heir, "c")
	}
	v.last = "the end"
	v.check(-1)
	for nonce, all := range v.waiters {
		require.Empty(t, all, "%x is told", nonce)
	}
	for _, field := range h.notes() {
		require.Equal(t, "e", field)
	}
}
