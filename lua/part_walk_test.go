package lua_test

import (
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A partWalk is a call of a client about some IDs, which is under way. It goes from one generation
// to the next as long as places say that they are closed and do not have an ID, the oldest first.
type partWalk struct {
	game   *partGame
	verb   string
	client int
	start  int               // the number of the call before it
	ids    []string          // those without an answer
	list   []part.Generation // still to be asked
	asked  int               // the last generation that was asked; -1: none
	fresh  bool              // the map was read since then
	home   bool              // the home was asked
	todo   []partAsk         // calls about the present generation that are left
	best   map[string]byte   // the best answers of its places
}

// A partAsk is a call about some IDs in a place.
type partAsk struct {
	place string
	ids   []string
}

func (w *partWalk) stores() bool { return slices.Contains(partStores, w.verb) }

// partStores are the verbs that store jobs, partVerbs the others.
var (
	partStores = []string{"enqueue", "later", "unique", "replace", "latest"}
	partVerbs  = []string{"cancel", "tomb", "free", "get", "reschedule"}
)

// begin reads the map of the client.
func (w *partWalk) begin() {
	w.asked = -1
	w.list = slices.Clone(w.game.maps[w.client])
	if len(w.list) == 0 {
		w.list = []part.Generation{{Parts: 1}}
	}
	if w.game.mutant == newestFirst {
		slices.Reverse(w.list)
	}
}

// step makes one call, and reports whether the walk is over.
func (w *partWalk) step() bool {
	g := w.game
	if len(w.todo) > 0 {
		one := w.todo[0]
		w.todo = w.todo[1:]
		w.call(one)
		if len(w.todo) > 0 {
			return false
		}
		w.settle()
		return len(w.ids) == 0
	}
	if len(w.list) > 0 {
		w.ask(w.list[0])
		w.list = w.list[1:]
		return w.step()
	}
	if !w.fresh && (g.mutant != noNewMap || w.stores()) {
		w.fresh = true
		g.maps[w.client] = g.read()
		for _, x := range g.maps[w.client] {
			if x.Number > w.asked {
				w.list = append(w.list, x)
			}
		}
		return false
	}
	if !w.home && !w.stores() { // a client that knows no partitions can have stored there
		w.ask(part.Generation{Parts: 1})
		return false
	}
	for _, id := range w.ids {
		g.judge(!w.stores(), "%s: no place takes %s", w.verb, id)
		w.absent(id)
	}
	return true
}

// ask prepares the calls about a generation. One that is by key has to be asked everywhere by those
// who know the ID alone.
func (w *partWalk) ask(x part.Generation) {
	w.asked, w.fresh, w.best = max(w.asked, x.Number), false, map[string]byte{}
	w.home = w.home || x.Number == part.Home
	names := x.Names(w.game.topic)
	by := map[string][]string{}
	for _, id := range w.ids {
		key := ""
		if w.stores() {
			key = w.game.keyOf(id)
		}
		if some := names; x.ByKey && !w.stores() {
			for _, place := range some {
				by[place] = append(by[place], id)
			}
			continue
		}
		place := names[x.Index(id, key)]
		by[place] = append(by[place], id)
	}
	for _, place := range names {
		if len(by[place]) > 0 {
			w.todo = append(w.todo, partAsk{place, by[place]})
		}
	}
}

// settle ends the walk for the IDs that a place of the generation has found, or that none has and
// one would take.
func (w *partWalk) settle() {
	var left []string
	for _, id := range w.ids {
		switch w.best[id] {
		case script.LetterElsewhere:
			left = append(left, id)
		case script.LetterGone:
			w.absent(id)
		}
	}
	w.ids = left
}

// absent is the answer that there is no such job.
func (w *partWalk) absent(id string) {
	w.game.tally["not found"]++
	w.game.judge(w.game.lastAbsent[id] >= w.start, "%s: %s is not found, and was live all the time in %v", w.verb, id, w.game.placesOf(id))
}

// call asks one place.
func (w *partWalk) call(one partAsk) {
	g := w.game
	before := map[string]bool{}
	for _, id := range one.ids {
		before[id] = len(g.placesOf(id)) > 0
	}
	letters := w.send(g.hand(one.place), one.ids)
	require.Len(g.t, letters, len(one.ids))
	g.note("%d: client %d: %s %v in %s: %s", g.now+1, w.client, w.verb, one.ids, one.place, letters)
	g.look(one.place)
	for i, id := range one.ids {
		letter := letters[i]
		w.heard(id, letter, before[id], one.place)
		if rankOf(letter) > rankOf(w.best[id]) {
			w.best[id] = letter
		}
	}
}

// rankOf orders the answers of places: one that has the job is right, and one that is closed says
// that the job can be in a later generation.
func rankOf(letter byte) int {
	if rank := strings.IndexByte("\x00ga", letter); rank >= 0 {
		return rank
	}
	return 3
}

// send makes the call, and returns a letter for each ID.
func (w *partWalk) send(h *hand.Hand, ids []string) string {
	g := w.game
	var r script.Reply
	var err error
	switch w.verb {
	case "get":
		r, err = h.TryGet(ids...)
		require.NoError(g.t, err)
		letters := make([]byte, len(ids))
		for i := range ids {
			switch {
			case r.List(2).Text(i) != "":
				letters[i] = script.LetterReady
			case r.Number(hand.Elsewhere) == 1:
				letters[i] = script.LetterElsewhere
			default:
				letters[i] = script.LetterGone
			}
		}
		return string(letters)
	case "reschedule":
		r, err = h.TryReschedule(ids[0], oneOf(g, "+0", "+3600000"))
	case "cancel", "tomb", "free":
		jobs := make([][2]string, len(ids))
		for i, id := range ids {
			jobs[i] = [2]string{id, map[string]string{"tomb": "!3600000/1000", "free": "!0/1000"}[w.verb]}
		}
		r, err = h.TryCancelEach(jobs...)
	default:
		var jobs []any
		when := map[string]string{"enqueue": "+0", "later": "+3600000", "unique": "+0!3600000/1000", "replace": "r+0", "latest": "l+0"}[w.verb]
		for _, id := range ids {
			head, tail := h.Record(when, 0)
			if key := g.keyOf(id); key != "" {
				head, tail = keyedRecord(g.t, key)
			}
			jobs = append(jobs, id, head, tail, when)
		}
		if r, err = h.TrySend(false, jobs); r.Text(2) == "" && err == nil {
			r[2] = string(slices.Repeat([]byte{script.LetterStored}, len(ids)))
		}
	}
	require.NoError(g.t, err)
	if g.pick(4) == 0 { // the reply was lost
		again, err := h.Last()
		require.NoError(g.t, err)
		if again.Text(2) != "" {
			require.Equal(g.t, r.Text(2), again.Text(2))
		}
	}
	return r.Text(2)
}

// heard judges an answer.
func (w *partWalk) heard(id string, letter byte, before bool, place string) {
	g := w.game
	switch letter {
	case script.LetterElsewhere, script.LetterGone:
		return
	case script.LetterScheduled, script.LetterReady, script.LetterRunning, script.LetterDead:
		g.judge(g.lastLive[id] >= w.start, "%s: %s is there (%c), and was absent all the time", w.verb, id, letter)
		g.tally["found"]++
	case script.LetterTomb:
		g.judge(g.lastShut[id] >= w.start, "%s: %s has a tomb, and was free all the time", w.verb, id)
		g.tally["tombs"]++
	case script.LetterStored:
		g.judge(before || g.lastFree[id] >= w.start, "%s: %s is stored, and had a tomb all the time", w.verb, id)
		g.judge(!before || w.verb == "replace" || w.verb == "latest" || w.verb == "dead", "%s: %s is stored in %s, and is in %v", w.verb, id, place, g.placesOf(id))
		g.tally["stored"]++
	default:
		require.True(g.t, script.Stored(letter), "%s %s: %c", w.verb, id, letter)
		g.tally["merged"]++
	}
}
