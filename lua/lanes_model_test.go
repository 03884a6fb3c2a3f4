package lua_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A laneGame makes random calls on a topic that has keyed jobs beside plain ones, and holds what
// Redis has to a model after each of them. Unlike a player it runs on any Redis: it reads the time
// from the replies, and time passes with Hasten.
type laneGame struct {
	game
	rand   *rand.Rand
	held   [2][]hand.Held // what the servers think is theirs; it may be lost
	jobs   map[string]*laneJob
	places int              // given so far
	mixed  bool             // clients and servers of the release before take part
	keys   map[string]int64 // held ones, by the end of their holds
	stale  map[string]bool  // entries of lane that a client of the release before has left behind
	astray map[string]bool  // keyed jobs that a server of the release before has put into ready
	seen   laneState        // after the step before

	rationed bool // there are limits of keys
	limits   rationing
}

// A laneJob is a job of the model.
type laneJob struct {
	nonce    string
	key      string // "": a plain job
	fence    string // of its last lease
	head     int64  // its head start, ms
	front    int64  // the time that its place in the lane has: the due time less the head start
	number   int    // of the place
	in       place
	score    int64 // in bucket
	attempts int
	blocks   bool // it is in blockers: its key waits for it
}

// A laneState is all that Redis holds of jobs and their places.
type laneState struct {
	pool, keyed, attempts map[string]string
	bucket, leases, dead  map[string]float64
	lane, turn, held      []redis.Z
	ready                 []string // handoff first
	parked, rates         map[string]float64
	holders               map[string][]string
	blockers              []string
	stragglers            []string // the entries of holders that count for the topic
}

// foremostFront is the front of a job that comes before all others of its key.
const foremostFront = math.MinInt64

// laneKeys are those of the game. One begins like another, and one has every kind of byte.
var laneKeys = []string{"a", "ab", "b", "\x00\xff\n:", strings.Repeat("k", 255), "0"}

// playLanes plays a game of that many steps. In the end every job must come to its end, and leave
// nothing.
func playLanes(t testing.TB, rdb redis.UniversalClient, prefix string, seed uint64, steps int, mixed, rationed bool) {
	g := &laneGame{
		game: game{t: t}, rand: rand.New(rand.NewPCG(seed, 0)), jobs: map[string]*laneJob{}, mixed: mixed,
		keys: map[string]int64{}, stale: map[string]bool{}, astray: map[string]bool{}, rationed: rationed,
		limits: rationing{own: map[string]delayq.KeyLimits{}, silent: map[string]bool{}, counts: map[string][]string{}},
	}
	for i := range g.hands {
		g.hands[i] = NewHand(t, rdb, prefix, "lanes")
	}
	defer g.tell(40)
	g.seen = g.read()
	for range steps {
		g.step()
		g.compare()
	}
	g.drain()
}

func (g *laneGame) pick(n int) int { return g.rand.IntN(n) }

func (g *laneGame) id() string { return "job-" + strconv.Itoa(g.rand.IntN(40)) }

// some chooses leases of a server.
func (g *laneGame) some(n int) []hand.Held {
	return draw(g, &g.held[n], func(one hand.Held) string { return one.ID })
}

func (g *laneGame) step() {
	n := g.rand.IntN(2)
	h := g.hands[n]
	kinds := 22
	if g.rationed {
		kinds = 26
	}
	switch g.rand.IntN(kinds) {
	case 0, 1, 2, 3:
		g.enqueue(h)
	case 4, 5, 6:
		g.take(n, h)
	case 7, 8, 9:
		g.settle(n, h)
	case 10, 11:
		g.promote(h)
	case 12:
		ms := oneOf[int64](g, 1, 50, 2500, 61_000)
		g.note("%d ms pass", ms)
		g.pass(ms)
	case 13:
		g.cancel(h)
	case 14:
		g.reschedule(h)
	case 15:
		g.revive(h)
	case 16:
		id := g.id()
		j, want := g.jobs[id], g.letter(id)
		r := g.calls(h, fmt.Sprintf("bury %q", id), func() (script.Reply, error) { return h.TryBury(id) })
		require.Equal(g.t, want, r.Text(2))
		if want == "s" || want == "r" {
			j.in = inDead
			j.blocks = j.key != "" && g.limits.topic.OnDead == delayq.HaltKey
			delete(g.astray, id)
		}
	case 17:
		verb := oneOf(g, "pause", "resume", "resume all")
		g.calls(h, verb, func() (script.Reply, error) { return h.TryPause(verb, "me", 0) })
	case 18:
		g.wander(h)
	case 19:
		if g.mixed {
			g.old(h)
		}
	case 20:
		g.hold(h)
	case 21:
		g.prioritize(h)
	case 22, 23:
		g.changeLimits(h)
	case 24:
		g.report(h)
	case 25:
		if g.rand.IntN(4) == 0 {
			g.repair(h)
		}
	}
}

// calls makes a numbered call, and sends it once more now and then: the reply must be the same.
func (g *laneGame) calls(h *Hand, what string, call func() (script.Reply, error)) script.Reply {
	g.t.Helper()
	r, err := call()
	require.NoError(g.t, err, what)
	g.note("%s: %s %q", what, r.Status(), r.Text(2))
	if g.rand.IntN(4) == 0 {
		again, err := h.Last()
		require.NoError(g.t, err, what)
		require.Equal(g.t, []string{r.Status(), r.Text(2)}, []string{again.Status(), again.Text(2)}, "sent again: %s", what)
	}
	return r
}

// letter is that of the state of a job.
func (g *laneGame) letter(id string) string {
	j := g.jobs[id]
	if j == nil {
		return "g"
	}
	return map[place]string{inReady: "r", inBucket: "s", inLeases: "u", inDead: "d"}[j.in]
}

// at gives a job a new place, for a due time.
func (g *laneGame) at(id string, j *laneJob, due, now int64) {
	g.places++
	j.front, j.number, j.score = due-j.head, g.places, due
	j.blocks = false
	g.put(id, j, now)
}

// foremost gives a job a place before all others of its key.
func (g *laneGame) foremost(j *laneJob) {
	g.places++
	j.front, j.number = foremostFront, g.places
}

// put puts a job where its score wants it.
func (g *laneGame) put(id string, j *laneJob, now int64) {
	j.in = inBucket
	if j.score <= now {
		j.in = inReady
	}
	delete(g.astray, id)
}

// pass makes due times come earlier.
func (g *laneGame) pass(ms int64) {
	h := g.hands[0]
	h.hastenRates(time.Duration(ms) * time.Millisecond)
	for key, end := range g.keys {
		if end < hand.KeyPaused {
			g.keys[key] = end - ms
			require.NoError(g.t, h.RDB.ZIncrBy(context.Background(), h.Keys.Held, -float64(ms), key).Err())
		}
	}
	for id, j := range g.jobs {
		if j.in == inBucket {
			j.score -= ms
			require.NoError(g.t, h.RDB.ZIncrBy(context.Background(), h.Keys.Bucket, -float64(ms), id).Err())
		}
	}
}

// keyedRecord is record for a job with a key: the bytes of docs/protocol.md.
func (h *Hand) keyedRecord(when, key string, headStart int64) (head, tail string) {
	head, tail = h.Record(when, 0)
	head = head[:record.NonceLen] + "\x02" + head[record.NonceLen+1:record.HeadLen-1] + "\x9f"
	start := binary.BigEndian.AppendUint32([]byte{0xd2}, uint32(int32(headStart)))
	return head, "\xc4" + string([]byte{byte(len(key))}) + key + string(start) + tail
}

// newJob makes a job and the words of it for a script.
func (g *laneGame) newJob(h *Hand, when string) (j *laneJob, head, tail string) {
	j = &laneJob{}
	if g.rand.IntN(4) > 0 {
		j.key, j.head = oneOf(g, laneKeys...), oneOf[int64](g, 0, 0, 0, 5000, -1000)
		head, tail = h.keyedRecord(when, j.key, j.head)
	} else {
		head, tail = h.Record(when, 0)
	}
	j.nonce = head[:record.NonceLen]
	return j, head, tail
}

func (g *laneGame) enqueue(h *Hand) {
	made := map[string]*laneJob{}
	var ids, whens, what []string
	var args []any
	for range 1 + g.rand.IntN(4) {
		id, how := g.id(), oneOf(g, "", "", "", "", "r", "d")
		when := oneOf(g, "+0", "+0", "+0", "+3", "+2000")
		if made[id] != nil {
			continue
		}
		j, head, tail := g.newJob(h, when)
		made[id] = j
		ids, whens = append(ids, id), append(whens, how+when)
		args = append(args, id, head, tail, how+when)
		what = append(what, fmt.Sprintf("%q key %.8q head start %d %s", id, j.key, j.head, how+when))
	}
	r := g.calls(h, "enqueue "+strings.Join(what, ", "), func() (script.Reply, error) { return h.TrySend(false, args) })
	letters := r.Text(2)
	for i, id := range ids {
		want := g.letter(id)
		if want == "g" || whens[i][0] == 'r' || whens[i][0] == 'd' && want == "d" {
			want = "n"
		}
		got := "n"
		if letters != "" {
			got = letters[i : i+1]
		}
		require.Equal(g.t, want, got, id)
		if want == "n" {
			delay, _ := strconv.ParseInt(strings.TrimLeft(whens[i], "rd+"), 10, 64)
			j, was := made[id], g.jobs[id]
			inLane := was != nil && was.in == inReady && was.key != "" && !g.astray[id]
			g.cuts(id, r.Now())
			g.jobs[id] = j
			g.at(id, j, r.Now()+delay, r.Now())
			if inLane && delay == 0 && was.key == j.key && was.head == j.head {
				j.front, j.number = was.front, was.number // it keeps its order
			}
			if g.mixed && was != nil && was.key == "" && was.in != inLeases && delay == 0 {
				g.inherit(id, j)
			}
		}
	}
}

// inherit gives a job that replaces a plain one the order of an entry that a client of the release
// before has left under its ID: replace takes it for that of the job, because it reads no record.
func (g *laneGame) inherit(id string, j *laneJob) {
	entry := g.seen.keyed[id] + id
	if !slices.ContainsFunc(g.seen.lane, func(z redis.Z) bool { return z.Member == entry }) {
		return
	}
	key, order, _, _ := cutPlace(g.t, entry)
	if head, err := strconv.ParseInt(order[21:], 16, 64); err == nil && key == j.key && head-1<<31 == j.head {
		front, _ := strconv.ParseInt(order[:11], 16, 64)
		number, _ := strconv.ParseInt(order[11:21], 16, 64)
		j.front, j.number = front, int(number)
	}
}

func (g *laneGame) cancel(h *Hand) {
	id := g.id()
	want := g.letter(id)
	r := g.calls(h, fmt.Sprintf("cancel %q", id), func() (script.Reply, error) { return h.TryCancel(id) })
	require.Equal(g.t, want, r.Text(2))
	g.cuts(id, r.Now())
	delete(g.jobs, id)
	delete(g.astray, id)
}

func (g *laneGame) reschedule(h *Hand) {
	id, when := g.id(), oneOf(g, "+0", "+0", "+3", "+2000")
	want := g.letter(id)
	r := g.calls(h, fmt.Sprintf("reschedule %q %s", id, when), func() (script.Reply, error) { return h.TryReschedule(id, when) })
	require.Equal(g.t, want, r.Text(2))
	if want == "s" || want == "r" {
		delay, _ := strconv.ParseInt(when[1:], 10, 64)
		g.at(id, g.jobs[id], r.Now()+delay, r.Now())
	}
}

func (g *laneGame) revive(h *Hand) {
	id := g.id()
	for other, j := range g.jobs { // most IDs are not dead
		if j.in == inDead && g.rand.IntN(2) == 0 {
			id = other
		}
	}
	when := oneOf(g, "+0", "+2000")
	want := g.letter(id)
	r := g.calls(h, fmt.Sprintf("revive %q %s", id, when), func() (script.Reply, error) { return h.TryReviveAt(id, when) })
	if want != "d" {
		require.Equal(g.t, "g", r.Text(2))
		return
	}
	require.Equal(g.t, "d", r.Text(2))
	delay, _ := strconv.ParseInt(when[1:], 10, 64)
	if j := g.jobs[id]; j.blocks { // it keeps its place
		j.score, j.blocks = r.Now()+delay, delay > 0
		g.put(id, j, r.Now())
	} else {
		g.at(id, j, r.Now()+delay, r.Now())
	}
}

// prioritize gives a job another head start, whatever its state.
func (g *laneGame) prioritize(h *Hand) {
	id, head := g.id(), oneOf[int64](g, 0, 5000, -1000, 86_400_000)
	r := g.calls(h, fmt.Sprintf("priority of %q: %d", id, head), func() (script.Reply, error) { return h.TryPriority(id, head) })
	j := g.jobs[id]
	switch {
	case j == nil:
		require.Equal(g.t, "gone", r.Text(2))
	case j.key == "":
		require.Equal(g.t, "plain", r.Text(2))
	default:
		require.Equal(g.t, "set", r.Text(2))
		if j.front != foremostFront {
			j.front += j.head - head
		}
		j.head = head
	}
}

// hold holds, pauses or resumes a key, whether it has jobs or not.
func (g *laneGame) hold(h *Hand) {
	key, ms := oneOf(g, laneKeys...), oneOf[int64](g, -1, 0, 0, 1, 50, 3000)
	r := g.calls(h, fmt.Sprintf("hold %.8q for %d", key, ms), func() (script.Reply, error) { return h.TryKeyHold(key, ms, mostHeldKeys) })
	if ms == 0 {
		require.Equal(g.t, "free", r.Text(2))
		delete(g.keys, key)
		return
	}
	require.Equal(g.t, "held", r.Text(2))
	end := r.Now() + ms
	if ms < 0 {
		end = hand.KeyPaused
	}
	g.keys[key] = max(g.keys[key], end)
}

func (g *laneGame) promote(h *Hand) {
	limit, heal := oneOf(g, 1000, 1000, 2), g.rand.IntN(2)
	before := g.seen
	r, err := h.TryPromote(limit, heal)
	require.NoError(g.t, err)
	now := r.Now()
	upTo := func(scores map[string]float64, in place) (ids []string) {
		for id, score := range scores {
			if g.jobs[id].in == in && score <= float64(now) {
				ids = append(ids, id)
			}
		}
		slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(scores[a], scores[b]), strings.Compare(a, b)) })
		return ids[:min(len(ids), limit)]
	}
	due, lapsed := upTo(before.bucket, inBucket), upTo(before.leases, inLeases)
	g.note("promote %d, heal %d: due %q, lapsed %q", limit, heal, due, lapsed)
	require.Equal(g.t, []int64{int64(len(due)), int64(len(lapsed))}, []int64{r.Number(2), r.Number(3)})
	after := g.read()
	overdue := func(parked map[string]float64) (n int) {
		for _, till := range parked {
			if till <= float64(now) {
				n++
			}
		}
		return n
	}
	require.Equal(g.t, max(0, overdue(before.parked)-limit), overdue(after.parked), "keys that wait although their time has come")
	for key, till := range after.parked {
		left := max(0, int64(math.Ceil(till*1000))-now*1000)
		require.True(g.t, r.Number(4) >= 0 && r.Number(4) <= left, "key %q gets a turn in %d µs, and the timer looks in %d", key, left, r.Number(4))
	}
	for range min(limit, len(g.keys)) {
		var first string
		for key, end := range g.keys {
			if end <= now && (first == "" || cmp.Or(cmp.Compare(end, g.keys[first]), strings.Compare(key, first)) < 0) {
				first = key
			}
		}
		delete(g.keys, first)
	}
	for _, id := range due {
		g.jobs[id].in, g.jobs[id].blocks = inReady, false
	}
	ordered := g.limits.topic.Ordered
	for _, id := range slices.Backward(lapsed) { // the scripts put one after the other at the head
		if j := g.jobs[id]; j.attempts == 0 && j.key != "" && ordered {
			g.foremost(j)
		}
	}
	for _, id := range lapsed {
		j := g.jobs[id]
		j.attempts++
		if j.attempts == 1 {
			j.in = inReady // at the place that it had
			continue
		}
		if j.key != "" && ordered {
			g.foremost(j)
			j.in, j.score, j.blocks = inBucket, int64(after.bucket[id]), true
			continue
		}
		require.Contains(g.t, after.bucket, id, "it backs off")
		g.at(id, j, int64(after.bucket[id]), now)
	}
}

// take takes jobs and holds the choice to the model. Now and then its reply is lost.
func (g *laneGame) take(n int, h *Hand) {
	limit, length := oneOf(g, 1, 2, 5, 8, 40), oneOf(g, time.Minute, time.Minute, 0)
	number := h.Series.Next()
	r, err := h.TryTake(number, limit, length)
	require.NoError(g.t, err)
	got := hand.HeldOf(r)
	g.note("server %d takes %d for %v: %s %q", n, limit, length, r.Status(), idsOf(got))
	if r.Status() == "paused" {
		return
	}
	had := map[string]int{}
	for _, key := range laneKeys {
		had[key] = g.running(key)
	}
	g.chosen(limit, r.Now(), idsOf(got))
	if g.rationed {
		g.judge(had, r.Now(), idsOf(got))
	}
	if len(got) > 0 && length > 0 && g.rand.IntN(4) == 0 {
		again, err := h.Last()
		require.NoError(g.t, err)
		require.Equal(g.t, got, hand.HeldOf(again), "the reply was lost")
	}
	if len(got) > 0 && length > 0 && g.rand.IntN(6) == 0 {
		keep := g.rand.IntN(len(got) + 1)
		g.note("it has had no reply, and takes %d of them", keep)
		r, err := h.TryTakeSince("", number, keep, script.CallBytes, keep, length, oneOf(g, "head", "tail"))
		require.NoError(g.t, err)
		for _, one := range got[keep:] {
			g.jobs[one.ID].in = inReady // at the place that it had
		}
		if got = got[:keep]; keep > 0 {
			require.Equal(g.t, idsOf(got), idsOf(hand.HeldOf(r)))
			got = hand.HeldOf(r)
		}
	}
	for _, one := range got {
		j := g.jobs[one.ID]
		require.Equal(g.t, j.nonce, one.Record[:record.NonceLen])
		require.Equal(g.t, j.attempts, atoi(one.Attempts))
		j.fence = one.Fence
	}
	g.held[n] = append(g.held[n], got...)
}

// chosen checks which jobs a take has taken, and takes them from the model: of each key those whose
// turn it is in its lane, and of the plain ones the first of ready.
func (g *laneGame) chosen(limit int, now int64, got []string) {
	lines := g.lines()
	for _, id := range got {
		j := g.jobs[id]
		require.NotNil(g.t, j, "%q does not exist", id)
		require.Equal(g.t, inReady, j.in, "%q does not wait", id)
		require.LessOrEqual(g.t, g.keys[j.key], now, "%q has a key that is held", id)
		line := lines[j.key]
		if g.astray[id] { // it goes to its lane, and can be its first
			line = slices.Insert(slices.Clone(line), 0, id)
			delete(g.astray, id)
		}
		if g.mixed && j.key == "" && !slices.Contains(line, id) {
			j.in = inLeases // take has found it in a lane, under the place of a former job
			continue
		}
		require.NotEmpty(g.t, line, id)
		require.Equal(g.t, line[0], id, "the first of key %q", j.key)
		lines[j.key] = line[1:]
		j.in = inLeases
		require.Nil(g.t, g.blocker(j), "%q is taken, and a job before it is not ready", id)
	}
}

// lines lists the waiting jobs of each key in the order in which they run; of the empty key the
// plain ones.
func (g *laneGame) lines() map[string][]string {
	lines := map[string][]string{}
	for id, j := range g.jobs {
		if j.in == inReady && j.key != "" && !g.astray[id] {
			lines[j.key] = append(lines[j.key], id)
		}
	}
	for _, line := range lines {
		slices.SortFunc(line, func(a, b string) int {
			x, y := g.jobs[a], g.jobs[b]
			return cmp.Or(cmp.Compare(x.front, y.front), cmp.Compare(x.number, y.number))
		})
	}
	for _, id := range g.seen.ready {
		if j := g.jobs[id]; j != nil && j.key == "" && j.in == inReady && !slices.Contains(lines[""], id) {
			lines[""] = append(lines[""], id)
		}
	}
	return lines
}

func (g *laneGame) settle(n int, h *Hand) {
	verb := oneOf(g, settle.Ack, settle.Ack, settle.Ack, settle.Expire, settle.Retry, settle.Retry, settle.Snooze, settle.Return, settle.Return, settle.Bury, settle.Again, settle.HoldKey)
	delay := oneOf[int64](g, 0, 3, 2000)
	list := g.some(n)
	if len(list) == 0 {
		return
	}
	if verb == settle.HoldKey && slices.ContainsFunc(list, func(one hand.Held) bool { return g.jobs[one.ID] != nil && g.jobs[one.ID].key == "" }) {
		verb = settle.Return // a server holds the keys of jobs that have one
	}
	like := settle.Row{Verb: verb, Delay: time.Duration(delay) * time.Millisecond}
	if verb == settle.Retry || verb == settle.Bury {
		like.Failure, like.Attempts = hand.Failed, 1
	}
	next := map[string]*laneJob{}
	h.Renewals = map[string]*settle.Renewal{}
	letters := ""
	for _, one := range list {
		j := g.jobs[one.ID]
		switch {
		case j == nil:
			letters += "g"
		case j.in != inLeases || j.fence != one.Fence:
			letters += "l"
		default:
			letters += "o"
		}
		made, head, tail := g.newJob(h, "+"+strconv.FormatInt(delay, 10))
		next[one.ID] = made
		h.Renewals[one.ID] = &settle.Renewal{When: "+" + strconv.FormatInt(delay, 10), Head: head, Tail: tail}
	}
	want := letters
	if !strings.ContainsAny(letters, "gl") {
		want = ""
	}
	r := g.calls(h, fmt.Sprintf("server %d: %s %q", n, verb.Outcome(), idsOf(list)), func() (script.Reply, error) { return h.Settle(list, like) })
	require.Equal(g.t, want, r.Text(2))
	for i, one := range list {
		if letters[i] != 'o' {
			continue
		}
		j := g.jobs[one.ID]
		g.ends(one.ID)
		switch verb {
		case settle.Ack, settle.Expire:
			delete(g.jobs, one.ID)
		case settle.Retry:
			j.attempts++
			if j.key != "" && g.limits.topic.Ordered {
				g.foremost(j)
				j.in, j.score, j.blocks = inBucket, r.Now()+delay, true
			} else {
				g.later(one.ID, j, r.Now()+delay)
			}
		case settle.Snooze:
			g.later(one.ID, j, r.Now()+delay)
		case settle.Return, settle.HoldKey:
			j.in = inReady // at the place that it had, or before all others
			if j.key != "" && g.limits.topic.Ordered {
				g.foremost(j)
			}
			if verb == settle.HoldKey && delay > 0 {
				g.keys[j.key] = max(g.keys[j.key], r.Now()+delay)
			}
		case settle.Bury:
			j.attempts++
			j.in = inDead
			if j.key != "" && g.limits.topic.OnDead == delayq.HaltKey {
				g.foremost(j)
				j.blocks = true
			}
		case settle.Again:
			g.jobs[one.ID] = next[one.ID]
			g.at(one.ID, next[one.ID], r.Now()+delay, r.Now())
		}
	}
	if g.rand.IntN(3) > 0 {
		g.report(h)
	}
}

// later puts a job into the bucket, even if it is due now.
func (g *laneGame) later(id string, j *laneJob, due int64) {
	g.at(id, j, due, 0)
	j.in = inBucket
}

// wander does what must be harmless: pushes into ready, and servers that wait with BLMOVE.
func (g *laneGame) wander(h *Hand) {
	if g.rand.IntN(2) == 0 {
		g.note("the head of ready goes to handoff")
		err := h.RDB.LMove(context.Background(), h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err()
		if err != redis.Nil {
			require.NoError(g.t, err)
		}
		return
	}
	id := oneOf(g, "", "no such job", g.id())
	g.note("%q is pushed to ready", id)
	require.NoError(g.t, h.RDB.RPush(context.Background(), h.Keys.Ready, id).Err())
}

// old does what programs of the release before do: their promote puts keyed jobs into ready, and
// their cancel leaves the entry in the lane.
func (g *laneGame) old(h *Hand) {
	ctx, k, id := context.Background(), h.Keys, g.id()
	j := g.jobs[id]
	if j == nil || j.key == "" {
		return
	}
	switch j.in {
	case inBucket:
		g.note("an old server promotes %q", id)
		require.NoError(g.t, h.RDB.RPush(ctx, k.Ready, id).Err())
		require.NoError(g.t, h.RDB.ZRem(ctx, k.Bucket, id).Err())
		j.in, g.astray[id] = inReady, true
	case inReady:
		g.note("an old client cancels %q", id)
		for _, key := range []string{k.Pool, k.Attempts, k.Errors, k.Moved} {
			require.NoError(g.t, h.RDB.HDel(ctx, key, id).Err())
		}
		if !g.astray[id] {
			g.stale[g.seen.keyed[id]+id] = true
		}
		delete(g.jobs, id)
		delete(g.astray, id)
	}
}

// read reads all that Redis holds of jobs and their places.
func (g *laneGame) read() (s laneState) {
	ctx, k := context.Background(), g.hands[0].Keys
	pipe := g.hands[0].RDB.Pipeline()
	pool, keyed, attempts := pipe.HGetAll(ctx, k.Pool), pipe.HGetAll(ctx, k.Keyed), pipe.HGetAll(ctx, k.Attempts)
	var zsets []*redis.ZSliceCmd
	for _, key := range []string{k.Bucket, k.Leases, k.Dead, k.Lane, k.Turn, k.Held, k.Parked, k.Rates, k.Holders, k.Blockers} {
		zsets = append(zsets, pipe.ZRangeWithScores(ctx, key, 0, -1))
	}
	handoff, ready := pipe.LRange(ctx, k.Handoff, 0, -1), pipe.LRange(ctx, k.Ready, 0, -1)
	_, err := pipe.Exec(ctx)
	require.NoError(g.t, err)
	scores := func(cmd *redis.ZSliceCmd) map[string]float64 {
		all := map[string]float64{}
		for _, z := range cmd.Val() {
			if len(z.Member.(string)) <= record.MaxID { // not the anchor
				all[z.Member.(string)] = z.Score
			}
		}
		return all
	}
	holders, stragglers := g.holdersOf(zsets[8].Val())
	return laneState{
		pool: pool.Val(), keyed: keyed.Val(), attempts: attempts.Val(), bucket: scores(zsets[0]), leases: scores(zsets[1]), dead: scores(zsets[2]),
		lane: zsets[3].Val(), turn: zsets[4].Val(), held: zsets[5].Val(), ready: append(handoff.Val(), ready.Val()...),
		parked: scores(zsets[6]), rates: scores(zsets[7]), holders: holders, stragglers: stragglers,
		blockers: slices.Sorted(maps.Keys(scores(zsets[9]))),
	}
}

// compare holds Redis to the model: each record has exactly one place, the lanes have exactly the
// waiting keyed jobs in their order, and each key with such a job is in turn.
func (g *laneGame) compare() {
	g.t.Helper()
	now, after := g.read(), g.trace[max(0, len(g.trace)-1):]
	g.seen = now
	for id := range g.astray {
		if laned := slices.ContainsFunc(now.lane, func(z redis.Z) bool { return z.Member == now.keyed[id]+id }); laned || !slices.Contains(now.ready, id) {
			delete(g.astray, id)
		}
	}
	nonces, want := map[string]string{}, map[string]string{}
	for id, j := range g.jobs {
		nonces[id] = j.nonce
	}
	for id, raw := range now.pool {
		want[id] = record.NonceOf(raw)
	}
	require.Equal(g.t, nonces, want, "records after %q", after)

	entries := map[string]string{} // of lane, by ID, without those that a release before has left
	all := map[string]bool{}
	for _, z := range now.lane {
		entry := z.Member.(string)
		require.Zero(g.t, z.Score, "lane is in the order of its members")
		_, _, nonce, id := cutPlace(g.t, entry)
		all[entry] = true
		if g.stale[entry] || g.mixed && nonces[id] != nonce {
			continue
		}
		require.NotContains(g.t, entries, id, "%q is in lane twice after %q", id, after)
		entries[id] = entry
	}
	for id, j := range g.jobs {
		require.Equal(g.t, j.attempts, atoi(now.attempts[id]), "attempts of %q after %q", id, after)
		_, delayed := now.bucket[id]
		_, leased := now.leases[id]
		_, buried := now.dead[id]
		_, laned := entries[id]
		waits := j.key == "" && j.in == inReady || g.astray[id]
		if waits && j.key == "" && g.mixed && all[now.keyed[id]+id] {
			continue // in lane under the place of a former job: take finds that
		}
		require.Equal(g.t, []bool{j.in == inBucket, j.in == inLeases, j.in == inDead, j.in == inReady && !waits},
			[]bool{delayed, leased, buried, laned}, "bucket, leases, dead and lane with %q, which is in %s, after %q", id, j.in, after)
		if waits {
			require.Contains(g.t, now.ready, id, "after %q", after)
		}
		if j.in == inBucket {
			require.Equal(g.t, float64(j.score), now.bucket[id], "%q is due after %q", id, after)
		}
		place, placed := now.keyed[id]
		if j.key == "" {
			require.True(g.t, !placed || g.mixed, "%q is plain, and in keyed after %q", id, after)
			continue
		}
		require.True(g.t, placed, "%q is not in keyed after %q", id, after)
		key, _, nonce, _ := cutPlace(g.t, place+id)
		require.Equal(g.t, []string{j.key, j.nonce}, []string{key, nonce}, "place of %q after %q", id, after)
		if laned {
			require.Equal(g.t, place+id, entries[id], "entry of %q after %q", id, after)
		}
	}
	for id := range entries {
		require.Contains(g.t, g.jobs, id, "lane has an entry of no job after %q", after)
	}
	for id := range now.keyed {
		require.True(g.t, g.jobs[id] != nil || g.mixed, "keyed has %q, which does not exist, after %q", id, after)
	}
	for _, places := range []map[string]float64{now.bucket, now.leases, now.dead} {
		for id := range places {
			require.Contains(g.t, g.jobs, id, "a place of no job after %q", after)
		}
	}
	held := map[string]int64{}
	for _, z := range now.held {
		held[z.Member.(string)] = int64(z.Score)
	}
	require.Equal(g.t, g.keys, held, "holds after %q", after)
	turns := map[string]bool{}
	for _, z := range now.turn {
		turns[z.Member.(string)] = true
	}
	for key, line := range g.lines() {
		if key == "" {
			continue
		}
		_, parked := now.parked[key]
		require.True(g.t, turns[key] || g.keys[key] > 0 || parked, "key %q has %q and no turn after %q", key, line, after)
		slices.SortFunc(line, func(a, b string) int { return strings.Compare(entries[a], entries[b]) })
		require.Equal(g.t, g.lines()[key], line, "the lane of key %q after %q", key, after)
	}
	if g.rationed {
		g.compareLimits(now, turns, after)
	}
}

// cutPlace reads an entry of lane: a place and the ID.
func cutPlace(t testing.TB, entry string) (key, order, nonce, id string) {
	const orders = 29
	require.NotEmpty(t, entry)
	size := int(entry[0])
	require.Greater(t, len(entry), 1+size+orders+record.NonceLen, "%q", entry)
	key, rest := entry[1:1+size], entry[1+size:]
	return key, rest[:orders], rest[orders : orders+record.NonceLen], rest[orders+record.NonceLen:]
}

// drain lets every job come to its end, and expects that nothing is left.
func (g *laneGame) drain() {
	h, k := g.hands[0], g.hands[0].Keys
	_, err := h.TryPause("resume all", "", 0)
	require.NoError(g.t, err)
	for key, end := range g.keys { // the other holds come to their ends
		if end == hand.KeyPaused {
			_, err := h.TryKeyHold(key, 0, mostHeldKeys)
			require.NoError(g.t, err)
		}
	}
	if g.rationed && g.rand.IntN(2) == 0 { // otherwise the drain keeps to the limits
		h.setLimits(delayq.Limits{})
		for key := range g.limits.own {
			h.setKeyLimits(key, delayq.KeyLimits{})
		}
	}
	for id, j := range g.jobs {
		if j.in == inDead && j.blocks { // its key goes on without it
			r, err := h.TryCancel(id)
			require.NoError(g.t, err)
			require.Equal(g.t, "d", r.Text(2))
			delete(g.jobs, id)
		}
	}
	for len(g.limits.stragglers) > 0 { // they return
		g.report(h)
	}
	ran := map[string]int{}
	for range 4 { // a job that was tried before backs off when its lease lapses
		h.Hasten(400 * 24 * time.Hour)
		h.Promote()
		for idle := 0; idle < 3; {
			got := h.Take(7, time.Minute)
			if idle++; len(got) > 0 {
				idle = 0
				require.NotContains(g.t, h.Ack(got...), "l")
			} else if g.rationed {
				h.hastenRates(400 * 24 * time.Hour)
				h.Promote()
			}
			for _, one := range got {
				ran[one.ID]++
				if j := g.jobs[one.ID]; g.rationed && j.key != "" {
					_, err := h.tryUnpark(j.key, one.ID)
					require.NoError(g.t, err)
				}
			}
		}
	}
	for id, j := range g.jobs {
		if j.in == inDead {
			require.Zero(g.t, ran[id], "%q is dead", id)
			r, err := h.TryCancel(id)
			require.NoError(g.t, err)
			require.Equal(g.t, "d", r.Text(2))
			continue
		}
		require.Equal(g.t, 1, ran[id], "runs of %q, which was in %s", id, j.in)
	}
	if g.rationed {
		h.hastenRates(400 * 24 * time.Hour)
		h.Promote()
		g.jobs = map[string]*laneJob{}
		g.repair(h)
	}
	left := []string{k.Pool, k.Bucket, k.Leases, k.Dead, k.Ready, k.Handoff, k.Lane, k.Turn, k.Held, k.Attempts, k.Moved, k.Parked, k.Holders, k.Rates, k.Blockers}
	if !g.mixed {
		left = append(left, k.Keyed)
	}
	for _, key := range left {
		n, err := h.RDB.Exists(context.Background(), key).Result()
		require.NoError(g.t, err)
		require.Zero(g.t, n, "%s is left", key)
	}
}

// TestLanesModel plays games on miniredis and on Redis.
func TestLanesModel(t *testing.T) {
	for _, kind := range []struct {
		name            string
		mixed, rationed bool
	}{{name: ""}, {name: "with programs of the release before", mixed: true}, {name: "with limits of keys", rationed: true}} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
				for range redistest.Size(10) {
					seed := rand.Uint64()
					t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
						playLanes(t, rdb, redistest.Prefix(t), seed, 300, kind.mixed, kind.rationed)
					})
				}
			})
		})
	}
}
