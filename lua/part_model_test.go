package lua_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
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
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/settle"
)

// A partGame plays the clients, servers and operators of a topic that is divided into partitions,
// again and again, while calls are under way. Everybody can have an old map, and dies half way now
// and then.
type partGame struct {
	game
	partPlay
	rng   *rand.Rand
	rdb   redis.UniversalClient
	topic string
	names map[string]*hand.Hand // of all places that there ever were
	ids   []string

	now    int      // the number of the last call
	epoch  int      // a failover loses what was written in the present one
	truth  part.Map // what is in Redis
	made   map[int]part.Generation
	maps   [4]part.Map    // of clients
	served part.Map       // of the server
	tasks  []func() bool  // calls of several steps, which report whether they are over
	held   []partRun      // what the server runs
	closed map[string]int // place → the epoch of its closing
	seals  int
	has    map[string]partAt // place → what it has

	// The numbers of the last calls after which an ID was live, absent, closed by a tomb, and not.
	lastLive, lastAbsent, lastShut, lastFree map[string]int

	tally  map[string]int
	broken string // the first promise that was not kept
}

// A partPlay says how a game is played.
type partPlay struct {
	moves  int
	byKey  bool   // all generations are by key
	falls  bool   // places lose their last writes. An ID can be live twice then, but is never lost
	mutant string // a rule that is broken; empty: none
}

// Mutants.
const (
	newestFirst = "newest generation first"
	noNewMap    = "no new map before an ID is not found"
	reopened    = "a place that is retired is open again"
	oneLook     = "a generation is retired when it was seen empty once"
	unsealed    = "a place that was open between two looks is not noticed"
	allLeave    = "keys do not stay in a closed place"
	notLooked   = "which keys have jobs is not looked at"
)

type partRun struct {
	place string
	held  hand.Held
}

// A partAt is what a place has: IDs of unfinished jobs, those with a tomb, and the keys that stay.
// all says that all of them do.
type partAt struct {
	jobs, tombs, keys []string
	all               bool
}

func (g *partGame) pick(n int) int { return g.rng.IntN(n) }

// judge notes a promise that is not kept.
func (g *partGame) judge(kept bool, format string, args ...any) {
	if !kept && g.broken == "" && (!g.falls || strings.HasPrefix(format, "unserved")) {
		g.broken = fmt.Sprintf(format, args...)
		g.note("BROKEN: %s", g.broken)
	}
}

// hand makes the calls in a place.
func (g *partGame) hand(place string) *hand.Hand {
	if g.names[place] == nil {
		g.names[place] = hand.New(g.t, g.rdb, g.prefix(), place)
	}
	return g.names[place]
}

func (g *partGame) home() *hand.Hand { return g.names[g.topic] }
func (g *partGame) prefix() string   { return g.home().Prefix() }

// keyOf is the key of the jobs with an ID: some have none.
func (g *partGame) keyOf(id string) string {
	if n := atoi(strings.TrimPrefix(id, "j")); n%3 > 0 {
		return "k" + strconv.Itoa(n%5)
	}
	return ""
}

// placesOf lists the places that have an unfinished job with an ID.
func (g *partGame) placesOf(id string) (list []string) {
	for place, at := range g.has {
		if slices.Contains(at.jobs, id) {
			list = append(list, place)
		}
	}
	return list
}

// placesOfKey lists the places that have an unfinished job with a key.
func (g *partGame) placesOfKey(key string) (list []string) {
	for place, at := range g.has {
		if slices.ContainsFunc(at.jobs, func(id string) bool { return g.keyOf(id) == key }) {
			list = append(list, place)
		}
	}
	return list
}

// look reads what a place has after a call there.
func (g *partGame) look(place string) {
	g.now++
	ctx, k := g.t.Context(), g.hand(place).Keys
	pipe := g.rdb.Pipeline()
	pool, next, tombs := pipe.HKeys(ctx, k.Pool), pipe.HKeys(ctx, k.Next), pipe.ZRange(ctx, k.Tombs, 0, -1)
	keys, first := pipe.ZRange(ctx, k.Staying, 0, -1), pipe.ZRangeByScore(ctx, k.Staying, &redis.ZRangeBy{Min: "1", Max: "1"})
	_, err := pipe.Exec(ctx)
	require.NoError(g.t, err)
	at := partAt{append(pool.Val(), next.Val()...), tombs.Val(), keys.Val(), slices.Contains(first.Val(), "")}
	g.has[place] = at
	if g.closed[place] > 0 && !slices.Contains(at.tombs, "") {
		delete(g.closed, place)
	}
	g.judge(len(at.jobs) == 0 || g.isServed(place, g.truth), "unserved: %v in %s, the map is %s", at.jobs, place, g.truth)
	for _, id := range g.ids {
		places := g.placesOf(id)
		g.judge(len(places) <= 1, "%s is live in %v", id, places)
		if len(places) > 0 {
			g.lastLive[id] = g.now
		} else {
			g.lastAbsent[id] = g.now
		}
		if key := g.keyOf(id); g.byKey && key != "" {
			where := g.placesOfKey(key)
			g.judge(len(where) <= 1, "%s has jobs in %v", key, where)
		}
		shut, last := false, g.storesAt(id)
		for place, at := range g.has {
			_, number, _, _ := part.Split(place)
			shut = shut || number <= last && slices.Contains(at.tombs, id) && g.takes(place, id)
		}
		if shut {
			g.lastShut[id] = g.now
		} else {
			g.lastFree[id] = g.now
		}
	}
}

// storesAt returns the number of the generation that would store a new job with an ID. Tombs in
// later ones are not met.
func (g *partGame) storesAt(id string) int {
	for _, number := range slices.Sorted(maps.Keys(g.made)) {
		x := g.made[number]
		at := g.has[x.Names(g.topic)[x.Index(id, g.keyOf(id))]]
		key := g.keyOf(id)
		if !slices.Contains(at.tombs, "") || key != "" && (at.all || slices.Contains(at.keys, key)) {
			return number
		}
	}
	return math.MaxInt
}

// takes reports whether a place is the one of its generation that a new job with an ID belongs to.
func (g *partGame) takes(place, id string) bool {
	_, number, index, _ := part.Split(place)
	return g.made[number].Index(id, g.keyOf(id)) == index
}

// isServed reports whether servers with a map serve a place. The home is always served.
func (g *partGame) isServed(place string, m part.Map) bool {
	return slices.Contains(m.Places(g.topic), place)
}

// read reads the map.
func (g *partGame) read() part.Map { return must(part.ParseMap(g.home().Map())) }

// begin begins a call of a client.
func (g *partGame) begin() {
	w := &partWalk{game: g, client: g.pick(len(g.maps)), start: g.now, verb: oneOf(g, partVerbs...)}
	if g.pick(5) > 1 {
		w.verb = oneOf(g, partStores...)
	}
	for range 1 + g.pick(2)*g.pick(4) {
		if id := oneOf(g, g.ids...); !slices.Contains(w.ids, id) && (w.verb != "reschedule" || len(w.ids) == 0) {
			w.ids = append(w.ids, id)
		}
	}
	w.begin()
	g.tasks = append(g.tasks, w.step)
}

// resize makes another generation, and then closes those before it.
func (g *partGame) resize() {
	before := g.read()
	next := slices.Clone(before)
	if len(next) == 0 {
		next = part.Map{{Parts: 1}}
	}
	last := atoi(must(g.home().TryMap()).Text(3))
	next = append(next, part.Generation{Number: last + 1, Parts: 1 + g.pick(4), ByKey: g.byKey || g.pick(2) == 0})
	steps := []func(){func() {
		r, err := g.home().TryPartition(before.String(), next.String(), "")
		require.NoError(g.t, err)
		g.note("partition %s to %s: %s", before, next, r.Text(2))
		if r.Text(2) == "made" {
			g.truth, g.made[last+1] = next, next.Open()
			g.tally["resizes"]++
		}
	}}
	for _, x := range next[:len(next)-1] {
		for _, place := range x.Names(g.topic) {
			steps = append(steps, func() {
				if open := g.truth.Open(); len(g.truth) > 0 && open.Number > x.Number {
					g.shut(place, g.truth.KeysStay(x.Number))
				}
			})
		}
	}
	g.tasks = append(g.tasks, inSteps(steps))
}

// inSteps takes one step at a time.
func inSteps(steps []func()) func() bool {
	return func() bool {
		steps[0]()
		steps = steps[1:]
		return len(steps) == 0
	}
}

// shut closes a place, and reports whether it was open.
func (g *partGame) shut(place string, keysStay bool) bool {
	shut := g.hand(place).Close
	if keysStay && (g.mutant == "" || g.mutant == notLooked) { // all other mutants show sooner without
		shut = g.hand(place).CloseByKey
	}
	was := shut()
	if was {
		g.closed[place] = g.epoch
		g.note("%d: %s is closed", g.now+1, place)
		g.tally["closings"]++
	}
	g.look(place)
	return was
}

// upkeep closes the places of a generation that is not the last, and retires it if they are empty
// and have been closed since they were sealed.
func (g *partGame) upkeep() {
	m := g.read()
	if len(m) < 2 {
		return
	}
	x, seen, seals, seal := m[g.pick(len(m)-1)], true, map[string]bool{}, ""
	var steps, more []func()
	for _, place := range x.Names(g.topic) {
		steps = append(steps, func() {
			r := must(g.hand(place).TryEmpty())
			closed := r.Number(2) == 1
			if seen = seen && closed && r.Number(4) == 0; !closed {
				g.shut(place, m.KeysStay(x.Number))
			} else if r.Number(7) == 1 {
				g.lookForKeys(place)
			}
			seals[r.Text(5)] = true
		})
		more = append(more, func() {
			if seen && seal != "" {
				if seen = must(g.hand(place).TrySeal(seal)).Number(2) == 0; !seen {
					g.closed[place] = g.epoch
				}
				g.look(place)
			}
		})
	}
	steps = append(steps, func() {
		if g.mutant != unsealed && (len(seals) > 1 || seals[""]) {
			g.seals++
			seal = strconv.Itoa(g.seals)
		}
	})
	steps = append(append(steps, more...), func() {
		for one := range seals {
			seal = cmp.Or(seal, one)
		}
		g.retire(m, x, seen, seal)
	})
	g.tasks = append(g.tasks, inSteps(steps))
}

// lookForKeys looks which keys stay in a place, for a part of a pass or a few.
func (g *partGame) lookForKeys(place string) {
	h := g.hand(place)
	for range 1 + g.pick(10) {
		answer, err := h.TryKeys(1)
		require.NoError(g.t, err)
		g.tally["looks "+answer]++
		ctx, field := g.t.Context(), h.RDB.HGet(g.t.Context(), h.Keys.Parts, "keys").Val()
		if rest, is := strings.CutPrefix(field, "2 "); is && g.mutant == notLooked {
			require.NoError(g.t, h.RDB.HSet(ctx, h.Keys.Parts, "keys", "3 "+rest).Err())
		}
	}
	g.look(place)
	g.note("%d: %s has the keys %v", g.now, place, h.RDB.ZRangeWithScores(g.t.Context(), h.Keys.Staying, 0, -1).Val())
}

func (g *partGame) retire(m part.Map, x part.Generation, seen bool, seal string) {
	apart, times := time.Second, 1
	if g.mutant == oneLook {
		apart, times = 0, 2
	}
	for range times {
		r, err := g.home().TryLeave(m.String(), x.Number, seen, apart, seal, "")
		require.NoError(g.t, err)
		g.note("retire %s of %s, %v: %s", x, m, seen, r.Text(2))
		if now := must(part.ParseMap(r.Text(2))); len(now) < len(g.truth) {
			g.truth = now
			g.tally["retired"]++
			for _, place := range x.Names(g.topic) {
				if g.mutant == reopened {
					require.NoError(g.t, g.rdb.ZRem(g.t.Context(), g.hand(place).Keys.Tombs, "").Err())
				}
				g.look(place)
			}
		}
	}
}

// fall lets a place lose that it was closed, and its seal, if nothing else was written there since.
func (g *partGame) fall() {
	places := slices.Sorted(maps.Keys(g.closed))
	g.rng.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	for _, place := range places {
		at := g.has[place]
		if g.closed[place] == g.epoch && place != g.topic && len(at.jobs) == 0 && len(at.tombs) == 1 {
			g.note("%s falls back", place)
			g.tally["falls"]++
			k := g.hand(place).Keys
			require.NoError(g.t, g.rdb.Del(g.t.Context(), k.Tombs, k.Parts, k.Staying).Err())
			g.look(place)
			return
		}
	}
}

// serve takes some jobs of a place of an old map, or ends a run.
func (g *partGame) serve() {
	if len(g.held) > 3 || len(g.held) > 0 && g.pick(2) == 0 {
		i := g.pick(len(g.held))
		run := g.held[i]
		g.held = slices.Delete(g.held, i, i+1)
		h, letters := g.hand(run.place), ""
		switch g.pick(10) {
		case 0:
			letters = h.Retry(0, run.held)
		case 1:
			letters = h.Return(run.held)
		case 2:
			if key := g.keyOf(run.held.ID); key != "" {
				head, tail := keyedRecord(g.t, key)
				h.Renewals = map[string]*settle.Renewal{run.held.ID: {When: "+0", Head: head, Tail: tail}}
			}
			letters = h.Again(0, run.held)
		case 3:
			letters = h.Bury(run.held)
		default:
			letters = h.Ack(run.held)
		}
		g.note("%d: %s of %s ends: %s", g.now+1, run.held.ID, run.place, letters)
		g.look(run.place)
		return
	}
	g.takeAt(oneOf(g, g.served.Places(g.topic)...))
}

func (g *partGame) takeAt(place string) (some bool) {
	h := g.hand(place)
	h.Promote()
	for _, held := range h.Take(2, time.Hour) {
		g.held = append(g.held, partRun{place, held})
		some = true
	}
	g.look(place)
	return some
}

// step plays one move.
func (g *partGame) step() {
	switch n := g.pick(100); {
	case n < 5 && g.falls:
		g.fall()
	case n < 30 && len(g.tasks) < 7:
		g.begin()
	case n < 75 && len(g.tasks) > 0:
		i := g.pick(len(g.tasks))
		if g.pick(60) == 0 || g.tasks[i]() { // some die half way
			g.tasks = slices.Delete(g.tasks, i, i+1)
		}
	case n < 88:
		g.serve()
	case n < 90:
		g.served = g.read()
	case n < 91:
		g.maps[g.pick(len(g.maps))] = g.read()
	case n < 93 && len(g.truth) < 4:
		g.resize()
	case n < 98:
		g.upkeep()
	case !g.falls || g.pick(8) == 0: // time passes
		g.epoch++
		g.home().HastenParts(2 * time.Second)
	}
}

// finish plays to the end: all calls end, all jobs run, and the old generations are retired.
func (g *partGame) finish() {
	for len(g.tasks) > 0 && g.broken == "" {
		if g.tasks[0]() {
			g.tasks = g.tasks[1:]
		}
	}
	for rounds := 0; g.broken == ""; rounds++ {
		require.Less(g.t, rounds, 100, "there is always more to do")
		for _, run := range g.held {
			g.hand(run.place).Ack(run.held)
			g.look(run.place)
		}
		g.held = nil
		quiet := true
		for _, place := range g.truth.Places(g.topic) {
			h := g.hand(place)
			h.Hasten(2 * time.Hour)
			quiet = !g.takeAt(place) && quiet
			for _, id := range h.RDB.ZRange(g.t.Context(), h.Keys.Dead, 0, -1).Val() {
				_, err := h.TryCancel(id)
				require.NoError(g.t, err)
			}
			require.NoError(g.t, h.RDB.ZRemRangeByScore(g.t.Context(), h.Keys.Tombs, "-inf", "9999999999999").Err()) // they are over
			g.look(place)
		}
		g.epoch++
		g.home().HastenParts(2 * time.Second)
		for range 2 * len(g.truth) {
			g.upkeep()
		}
		for len(g.tasks) > 0 && g.broken == "" {
			if g.tasks[0]() {
				g.tasks = g.tasks[1:]
			}
		}
		if quiet && len(g.held) == 0 && len(g.truth) < 2 {
			break
		}
	}
	for place, at := range g.has {
		g.judge(len(at.jobs) == 0, "unserved: %v in %s in the end", at.jobs, place)
	}
}

// playParts plays a game, and returns what was broken.
func playParts(t *testing.T, rdb redis.UniversalClient, seed uint64, play partPlay) *partGame {
	g := &partGame{
		game: game{t: t}, partPlay: play, rng: rand.New(rand.NewPCG(seed, 3)), rdb: rdb, topic: "m",
		names: map[string]*hand.Hand{"m": hand.New(t, rdb, redistest.Prefix(t), "m")}, epoch: 1,
		made: map[int]part.Generation{part.Home: {Parts: 1}}, closed: map[string]int{}, has: map[string]partAt{}, tally: map[string]int{},
		lastLive: map[string]int{}, lastAbsent: map[string]int{}, lastShut: map[string]int{}, lastFree: map[string]int{},
	}
	for i := range 15 {
		g.ids = append(g.ids, "j"+strconv.Itoa(i))
	}
	g.look(g.topic)
	defer g.tell(300)
	for range play.moves {
		if g.step(); g.broken != "" {
			return g
		}
	}
	g.finish()
	return g
}

// eachPartGame plays games until one of them breaks a promise, and returns what was broken, and how
// often things have happened.
func eachPartGame(t *testing.T, rdb redis.UniversalClient, games int, play partPlay) (broken string, tally map[string]int) {
	first, tally := uint64(0), map[string]int{}
	if seed, err := strconv.ParseUint(os.Getenv("DELAYQ_SEED"), 10, 64); err == nil {
		first = seed
	}
	for seed := first; seed < first+uint64(games); seed++ {
		g := playParts(t, rdb, seed, play)
		for what, n := range g.tally {
			tally[what] += n
		}
		if g.broken != "" {
			if play.mutant == "" {
				t.Errorf("seed %d: %s", seed, g.broken)
				g.tell(300)
			}
			return g.broken, tally
		}
	}
	return "", tally
}

// Whatever happens to calls, maps, closings and generations: an ID is never live twice, no call
// finds an ID that was absent or misses one that was live, and each job is served.
func TestPartModel(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		games := redistest.Size(150)
		if strings.HasSuffix(t.Name(), "/miniredis") {
			games = redistest.Size(40)
		}
		broken, tally := eachPartGame(t, rdb, games, partPlay{moves: 1000})
		require.Empty(t, broken)
		for _, what := range []string{"stored", "merged", "found", "tombs", "not found", "resizes", "closings", "retired"} {
			require.GreaterOrEqual(t, tally[what], games, "%s: %v", what, tally)
		}
	})
}

// If all generations are by key, the unfinished jobs of a key are in one place, however often the
// topic is divided, and keys go when they have none.
func TestPartModelByKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		games := redistest.Size(150)
		if strings.HasSuffix(t.Name(), "/miniredis") {
			games = redistest.Size(40)
		}
		broken, tally := eachPartGame(t, rdb, games, partPlay{moves: 1000, byKey: true})
		require.Empty(t, broken)
		for _, what := range []string{"stored", "merged", "found", "resizes", "closings", "retired", "looks over", "looks none"} {
			require.GreaterOrEqual(t, tally[what], games, "%s: %v", what, tally)
		}
	})
}

// Places that forget that they are closed lose no job.
func TestPartModelWithFailovers(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	games := redistest.Size(100)
	broken, tally := eachPartGame(t, redistest.Shared(t), games, partPlay{moves: 1000, falls: true})
	require.Empty(t, broken)
	require.GreaterOrEqual(t, tally["falls"], games, "%v", tally)
}

// The model finds out when a rule is broken.
func TestPartModelFindsMutants(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	for mutant, play := range map[string]partPlay{
		newestFirst: {}, noNewMap: {}, reopened: {}, oneLook: {falls: true}, unsealed: {falls: true}, allLeave: {byKey: true}, notLooked: {byKey: true},
	} {
		t.Run(mutant, func(t *testing.T) {
			play.moves, play.mutant = 1000, mutant
			broken, _ := eachPartGame(t, redistest.Shared(t), 100, play)
			require.NotEmpty(t, broken, "nobody has noticed")
			t.Log(broken)
		})
	}
}
