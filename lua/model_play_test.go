package lua_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A game is what the players of random games have in common: two servers, dice, and the story of
// what was played. There are two kinds. A player knows what each call must do before it makes it,
// and so all that Redis holds, to the microsecond: it plays without keys, on a clock of its own. A
// laneGame reads from the replies which jobs Redis has chosen, and judges the choice: the turns of
// keys are too much for a model that is to be simpler than the scripts.
type game struct {
	t     testing.TB
	hands [2]*Hand
	trace []string
}

// A picker gives the next number below n.
type picker interface{ pick(n int) int }

// oneOf chooses from a list.
func oneOf[T any](p picker, list ...T) T { return list[p.pick(len(list))] }

func (g *game) note(format string, args ...any) {
	g.trace = append(g.trace, fmt.Sprintf(format, args...))
}

// tell logs the end of the story if the test has failed.
func (g *game) tell(steps int) {
	if g.t.Failed() {
		g.t.Logf("the game:\n%s", strings.Join(g.trace[max(0, len(g.trace)-steps):], "\n"))
	}
}

// draw takes one to three leases from those of a server, one of each job.
func draw[T any](p picker, held *[]T, id func(one T) string) (list []T) {
	for range 1 + p.pick(3) {
		if len(*held) == 0 {
			break
		}
		i := p.pick(len(*held))
		one := (*held)[i]
		*held = slices.Delete(*held, i, i+1)
		if !slices.ContainsFunc(list, func(other T) bool { return id(other) == id(one) }) {
			list = append(list, one)
		}
	}
	return list
}

// A player makes calls on Redis and on the model, as a string of bytes says. Two servers and a
// client take part.
type player struct {
	game
	r     *embedded.Redis
	m     *model
	held  [2][]lease // what the servers think is theirs; it may be lost
	last  [2]func(what string)
	bytes []byte
}

type lease struct {
	hand.Held
	number int // of the model
}

// playModel plays one game, with something else after each of its steps. In the end every job must
// come to its end.
func playModel(t testing.TB, bytes []byte, also ...func(p *player)) {
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer func() { _ = rdb.Close() }()
	p := &player{game: game{t: t}, r: r, bytes: bytes, m: newModel(1_763_712_345_678_000)}
	p.clock(0)
	for i := range p.hands {
		p.hands[i] = NewHand(t, rdb, "p", "model")
	}
	defer func() { p.tell(len(p.trace)) }()
	p.note("it begins")
	for len(p.bytes) > 0 {
		p.step()
		for _, f := range also {
			f(p)
		}
		p.compare()
	}
	p.compareClient(rdb)
	p.finish()
}

// pick takes the next byte of the game: a number below n.
func (p *player) pick(n int) int {
	if len(p.bytes) == 0 {
		return 0
	}
	b := int(p.bytes[0])
	p.bytes = p.bytes[1:]
	return b % n
}

func (p *player) note(format string, args ...any) {
	p.game.note("%d: %s", p.m.us, fmt.Sprintf(format, args...))
}

func (p *player) clock(us int64) {
	p.m.us += us - us%1000 // whole ms: scores of the model are integers, the end of a lease has the microseconds of its take
	p.r.SetTime(time.UnixMicro(p.m.us))
}

func (p *player) id() string {
	return oneOf(p, "a", "b", "c", "d:{}#", "\x00\xff\n", "f")
}

func (p *player) when() string {
	now := p.m.now()
	return oneOf(p, "+0", "+1", "+700", "+30000", strconv.FormatInt(now, 10), strconv.FormatInt(now-5, 10), strconv.FormatInt(now+900, 10), "1")
}

func (p *player) step() {
	n := p.pick(2)
	h := p.hands[n]
	switch p.pick(17) {
	case 0, 1:
		p.enqueue(n, h)
	case 2:
		id := p.id()
		known := oneOf(p, "", "", "", "s", "r", "u", "d", hand.LetterOf(p.m.state(id)))
		if j := p.m.jobs[id]; j != nil && (j.in == inBucket || j.in == inDead) && p.pick(2) == 0 {
			known = hand.LetterOf(p.m.state(id)) + strconv.FormatInt(j.score+oneOf[int64](p, 0, 0, 1), 10)
		}
		want := "g"
		if p.m.jobs[id] != nil {
			want = "c"
		}
		if p.m.as(id, known) {
			want = hand.LetterOf(p.m.cancel(id))
		}
		p.calls(n, "cancel "+id+" as "+known, want, func() (script.Reply, error) { return h.TryCancelKnown(id, known) })
	case 3:
		id, when := p.id(), p.when()
		p.calls(n, "reschedule "+id+" "+when, hand.LetterOf(p.m.reschedule(id, when)), func() (script.Reply, error) { return h.TryReschedule(id, when) })
	case 4:
		id, when := p.id(), oneOf(p, "+0", "+0", p.when())
		p.calls(n, "revive "+id+" "+when, hand.LetterOf(p.m.revive(id, when)), func() (script.Reply, error) { return h.TryReviveAt(id, when) })
	case 5:
		us := oneOf[int64](p, 1, 400, 999, 1000, 7000, 50_000, 999_000, 5_000_000, 31_000_000)
		p.note("%d µs pass", us)
		p.clock(us)
	case 6:
		if wait := p.m.wait(); wait > 0 {
			p.note("until the next event")
			p.clock(wait - int64(p.pick(2)))
		}
	case 7, 8:
		p.promote(h)
	case 9, 10:
		p.take(n, h)
	case 11:
		p.settle(n, h)
	case 12:
		p.extend(n, h)
	case 13:
		if p.last[n] != nil {
			p.last[n]("again")
		}
	case 14:
		p.stir(h)
	case 15:
		p.operate(n, h)
	case 16:
		id := p.id()
		p.calls(n, "bury "+id, hand.LetterOf(p.m.bury(id)), func() (script.Reply, error) { return h.TryBury(id) })
	}
}

// calls makes a numbered call that is to answer with a text, notes it for a repetition, and repeats
// it now and then at once.
func (p *player) calls(n int, what, want string, call func() (script.Reply, error)) {
	p.t.Helper()
	p.note("server %d: %s: %s", n, what, want)
	r, err := call()
	require.NoError(p.t, err, what)
	require.Equal(p.t, p.m.now(), r.Now())
	require.Equal(p.t, want, r.Text(2), what)
	again, until := p.hands[n].Last, p.m.us+50_000_000 // receipts last for a minute
	p.last[n] = func(how string) {
		if p.m.us > until {
			return
		}
		p.note("server %d: %s: %s", n, how, what)
		r, err := again()
		require.NoError(p.t, err)
		require.Equal(p.t, want, r.Text(2), "sent again: %s", what)
	}
	if p.pick(4) == 0 {
		p.last[n]("at once again")
	}
}

func (p *player) enqueue(n int, h *Hand) {
	jobs := make(map[string]bool)
	var args []any
	letters, what, plain := "", "enqueue", true
	for range 1 + p.pick(3) {
		id, keep := p.id(), oneOf(p, 0, 0, 9000)
		when := oneOf(p, "", "", "", "r", "r", "d") + p.when() + oneOf(p, "", "", "", "", " +600", " +40000", " "+strconv.FormatInt(p.m.now()+2, 10))
		if jobs[id] {
			continue
		}
		jobs[id] = true
		head, tail := h.Record(when, int64(keep))
		args = append(args, id, head, tail, when)
		letters += p.m.enqueue(id, when, record.Join(head, p.m.now(), tail), int64(keep))
		what += fmt.Sprintf(" %q %s", id, when)
		plain = plain && !strings.ContainsAny(when, "rd ")
	}
	if strings.Trim(letters, "n") == "" {
		letters = ""
	}
	if len(jobs) == 1 && plain && p.pick(2) == 0 {
		p.calls(n, what+" alone", letters, func() (script.Reply, error) {
			return h.TrySendLone(args[0].(string), args[1].(string), args[2].(string), args[3].(string))
		})
		return
	}
	// Records can arrive whole, with a guess of the time. One that is far from Redis's is replaced.
	for i, guess := 0, oneOf(p, 0, p.m.now(), 1, p.m.now()+5000); guess > 0 && i < len(args); i += 4 {
		args[i+1], args[i+2] = record.Join(args[i+1].(string), guess, args[i+2].(string)), ""
	}
	p.calls(n, what, letters, func() (script.Reply, error) { return h.TrySend(false, args) })
}

func (p *player) promote(h *Hand) {
	limit, heal := oneOf(p, 1000, 1, 2), p.pick(2)
	moved, reclaimed := p.m.promote(limit, heal == 1)
	p.note("promote %d, heal %d: %d moved, %d reclaimed", limit, heal, moved, reclaimed)
	r, err := h.TryPromote(limit, heal)
	require.NoError(p.t, err)
	require.Equal(p.t, []int64{int64(moved), int64(reclaimed), p.m.wait()}, []int64{r.Number(2), r.Number(3), r.Number(4)})
}

func (p *player) take(n int, h *Hand) {
	limit, ms := oneOf(p, 1, 2, 5, 8), oneOf[int64](p, 30_000, 5000, 100, 1)
	first := p.m.leases + 1
	status, ids := p.m.take(limit, ms)
	p.note("server %d: take %d for %d ms: %s %q", n, limit, ms, status, ids)
	length := time.Duration(ms) * time.Millisecond
	number := h.Series.Next()
	r, err := h.TryTake(number, limit, length)
	require.NoError(p.t, err)
	require.Equal(p.t, status, r.Status())
	require.Equal(p.t, p.m.now(), r.Now())
	got := hand.HeldOf(r)
	require.Equal(p.t, ids, idsOr(got))
	var taken []lease
	for i, one := range got {
		j := p.m.jobs[one.ID]
		require.Equal(p.t, j.record, one.Record)
		require.Equal(p.t, j.score, one.LeaseEnd())
		require.Equal(p.t, j.moved, one.Moved)
		require.Equal(p.t, j.attempts, atoi(one.Attempts))
		rec, err := record.Decode(one.Record)
		require.NoError(p.t, err)
		due := rec.Due()
		if m, ok := record.DecodeMoved(one.Moved); ok {
			due = m.Due
		}
		require.LessOrEqual(p.t, due, p.m.now(), "never early")
		taken = append(taken, lease{one, first + i})
	}
	p.held[n] = append(p.held[n], taken...)
	if len(taken) == 0 {
		return
	}
	end := p.m.us + ms*1000
	p.last[n] = func(string) {
		if p.m.us >= end { // the receipt goes with the lease
			return
		}
		var still []string
		for _, one := range taken {
			if j := p.m.jobs[one.ID]; j != nil && j.in == inLeases && j.score == one.LeaseEnd() {
				still = append(still, one.ID)
			}
		}
		if limit := oneOf(p, -1, -1, 0, 1, 3); limit >= 0 && len(still) > 0 {
			p.last[n] = nil
			p.takeAnew(n, h, number, still, limit, ms)
			return
		}
		p.note("server %d: take again: %q", n, still)
		r, err := h.TryTake(number, limit, length)
		require.NoError(p.t, err)
		require.Equal(p.t, still, idsOr(hand.HeldOf(r)))
	}
}

// takeAnew is a take of a server that has had no answer to the one with that number, of whose jobs
// some are left.
func (p *player) takeAnew(n int, h *Hand, since string, left []string, limit int, ms int64) {
	number := h.Series.Next()
	first := p.m.leases + 1
	kept := p.m.retake(left, limit, ms)
	p.note("server %d: take anew %d of %q", n, limit, left)
	length := time.Duration(ms) * time.Millisecond
	for range 2 {
		r, err := h.TryTakeSince(number, since, limit, script.CallBytes, limit, length, "head")
		require.NoError(p.t, err)
		if limit == 0 {
			require.Equal(p.t, "returned", r.Status())
			require.Equal(p.t, left, r.List(2).Texts())
			continue
		}
		require.Equal(p.t, "ok", r.Status())
		got := hand.HeldOf(r)
		require.Equal(p.t, kept, idsOr(got))
		for i, one := range got {
			require.Equal(p.t, p.m.jobs[one.ID].score, one.LeaseEnd())
			if first > 0 {
				p.held[n] = append(p.held[n], lease{one, first + i})
			}
		}
		first = 0 // the second answer is the same
	}
}

func idsOr(held []hand.Held) (ids []string) {
	for _, one := range held {
		ids = append(ids, one.ID)
	}
	return ids
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// some chooses leases of a server. One that was lost is left out if the job has another lease by
// now that ends at the same ms, or at the ms that it would be extended to: fences cannot tell those
// two apart. A server holds one lease of a job at a time.
func (p *player) some(n int, ending int64) (list []lease) {
	list = draw(p, &p.held[n], func(one lease) string { return one.ID })
	return slices.DeleteFunc(list, func(one lease) bool {
		j := p.m.jobs[one.ID]
		return j != nil && j.in == inLeases && j.lease != one.number && (j.score == one.LeaseEnd() || j.score == ending)
	})
}

func (p *player) settle(n int, h *Hand) {
	verb := oneOf(p, settle.Ack, settle.Ack, settle.Expire, settle.Retry, settle.Retry, settle.Snooze, settle.Return, settle.Bury, settle.Again, settle.Again)
	delay := oneOf[int64](p, 0, 3, 2000)
	list := p.some(n, 0)
	if len(list) == 0 {
		return
	}
	like := settle.Row{Verb: verb, Delay: time.Duration(delay) * time.Millisecond}
	if verb == settle.Retry || verb == settle.Bury {
		like.Failure, like.Attempts = hand.Failed, 1
	}
	var letters string
	var held []hand.Held
	var back []string
	h.Renewals = make(map[string]*settle.Renewal)
	for _, one := range list {
		letter := p.m.settle(one.ID, one.number, verb, delay)
		if verb == settle.Again {
			when, keep := p.when(), oneOf[int64](p, 0, 0, 9000)
			n := h.Renewal(when, keep)
			if h.Renewals[one.ID] = n; letter == "o" {
				require.Equal(p.t, "n", p.m.enqueue(one.ID, when, record.Join(n.Head, p.m.now(), n.Tail), keep))
			}
		}
		if letter == "o" {
			back = append(back, one.ID)
		}
		letters, held = letters+letter, append(held, one.Held)
	}
	if verb == settle.Return {
		p.m.giveBack(back)
	}
	if !strings.ContainsAny(letters, "gl") {
		letters = ""
	}
	p.calls(n, fmt.Sprint(verb.Outcome(), " ", idsOf(held)), letters, func() (script.Reply, error) { return h.Settle(held, like) })
}

func (p *player) extend(n int, h *Hand) {
	ending := p.m.now() + oneOf[int64](p, 5000, 40_000, 1, 0)
	list := p.some(n, ending)
	if len(list) == 0 {
		return
	}
	status, letters := "ok", ""
	var held []hand.Held
	for i := range list {
		if ending <= p.m.now() {
			status = "late"
			held = append(held, list[i].Held)
			continue
		}
		letter := p.m.extend(list[i].ID, list[i].number, ending)
		held, letters = append(held, list[i].Held), letters+letter
		if letter == "o" {
			list[i].Fence = strconv.FormatInt(ending, 10)
		}
	}
	p.held[n] = append(p.held[n], list...)
	p.note("server %d: extend %q to %d: %s %s", n, idsOf(held), ending, status, letters)
	for range 1 + p.pick(2) { // safe to send twice
		r, err := h.TryExtend(ending, held...)
		require.NoError(p.t, err)
		require.Equal(p.t, []string{status, letters}, []string{r.Status(), r.Text(2)})
	}
}

// stir does what must be harmless: pushes into ready, and servers that wait.
func (p *player) stir(h *Hand) {
	ctx := context.Background()
	if p.pick(2) == 0 && len(p.m.ready) > 0 {
		p.note("%q goes to handoff", p.m.ready[0])
		p.m.handoff, p.m.ready = append(p.m.handoff, p.m.ready[0]), p.m.ready[1:]
		require.NoError(p.t, h.RDB.LMove(ctx, h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err())
		return
	}
	id := oneOf(p, "", "no such job", p.id())
	p.note("%q is pushed to ready", id)
	p.m.ready = append(p.m.ready, id)
	require.NoError(p.t, h.RDB.RPush(ctx, h.Keys.Ready, id).Err())
}

// operate prunes, pauses or resumes.
func (p *player) operate(n int, h *Hand) {
	switch p.pick(4) {
	case 0, 1:
		verb, by := oneOf(p, "pause", "pause", "resume", "resume all"), oneOf(p, "program", "operator", "")
		period := oneOf[int64](p, 0, 2000, 500)
		p.calls(n, fmt.Sprintf("%s by %q for %d ms", verb, by, period), p.m.pause(verb, by, period),
			func() (script.Reply, error) { return h.TryPause(verb, by, time.Duration(period)*time.Millisecond) })
	default:
		most, age, limit := oneOf(p, 100, 1, 0), oneOf[int64](p, 1_000_000, 3000), oneOf(p, 500, 1)
		dead, done := p.m.prune(most, age, limit)
		p.note("prune to %d, %d ms, %d at once: %d dead, %d done", most, age, limit, dead, done)
		r, err := h.TryPrune(most, time.Duration(age)*time.Millisecond, limit)
		p.last[n] = nil // the series has gone on: what was called before cannot be sent again
		require.NoError(p.t, err)
		require.Equal(p.t, []int64{int64(dead), int64(done)}, []int64{r.Number(2), r.Number(3)})
		p.last[n] = nil // it had a number of the series: no call before it is made again
	}
}

// compare holds all that Redis has of the topic to the model, and to what must always be true.
func (p *player) compare() {
	p.t.Helper()
	k := p.hands[0].Keys
	want := map[string]any{}
	hashes := map[string]map[string]string{k.Pool: {}, k.Attempts: {}, k.Errors: {}, k.Moved: {}, k.Results: {}, k.Stats: {}}
	zsets := map[string]map[string]float64{k.Bucket: {}, k.Leases: {}, k.Dead: {}, k.Done: {}}
	for id, j := range p.m.jobs {
		hashes[k.Pool][id] = j.record
		if j.attempts > 0 {
			hashes[k.Attempts][id] = strconv.Itoa(j.attempts)
		}
		if len(j.log) > 0 {
			hashes[k.Errors][id] = strings.Join(j.log, ", ")
		}
		if j.moved != "" {
			hashes[k.Moved][id] = j.moved
		}
		if j.in != inReady {
			zsets[map[place]string{inBucket: k.Bucket, inLeases: k.Leases, inDead: k.Dead}[j.in]][id] = float64(j.score)
		}
	}
	for id, d := range p.m.done {
		hashes[k.Results][id], zsets[k.Done][id] = d.record, float64(d.until)
	}
	for name, n := range p.m.stats {
		if n > 0 {
			hashes[k.Stats][string(name)] = strconv.FormatInt(n, 10)
		}
	}
	got := map[string]any{}
	for key, hash := range hashes {
		want[key], got[key] = hash, p.hash(key)
	}
	for key, zset := range zsets {
		want[key], got[key] = zset, p.zset(key)
	}
	want[k.Ready], got[k.Ready] = append([]string{}, p.m.ready...), p.list(k.Ready)
	want[k.Handoff], got[k.Handoff] = append([]string{}, p.m.handoff...), p.list(k.Handoff)
	for key, content := range want {
		require.EqualValues(p.t, content, got[key], "%s after %s", key, p.trace[len(p.trace)-1])
	}
	p.comparePauses()
	p.census()
}

// comparePauses holds the pauses, and what take reads of them, to the model.
func (p *player) comparePauses() {
	meta, by := p.hash(p.hands[0].Keys.Meta), []string(nil)
	for _, pause := range record.DecodePauses(meta["pauses"], p.m.now()) {
		by = append(by, pause.By)
		require.Equal(p.t, p.m.pauses[pause.By], pause.Until)
	}
	slices.Sort(by)
	require.Equal(p.t, p.m.paused(), by, "paused after %s", p.trace[len(p.trace)-1])
	stands := meta["paused"] != "" && (meta["until"] == "" || p.m.now() < int64(atoi(meta["until"])))
	require.Equal(p.t, len(by) > 0, stands, "paused after %s", p.trace[len(p.trace)-1])
}

// census looks for every record in exactly one structure, and for a record of every ID that has a
// place.
func (p *player) census() {
	k := p.hands[0].Keys
	pool := p.hash(k.Pool)
	ready := append(p.list(k.Ready), p.list(k.Handoff)...)
	places := make(map[string]int)
	for _, key := range []string{k.Bucket, k.Leases, k.Dead} {
		for id := range p.zset(key) {
			places[id]++
			require.Contains(p.t, pool, id, "%s has an ID without a record", key)
		}
	}
	for id := range pool {
		if places[id] == 0 {
			require.Contains(p.t, ready, id, "this job is nowhere")
		} else {
			require.Equal(p.t, 1, places[id], "%q is in two places", id)
		}
	}
	for _, key := range []string{k.Attempts, k.Errors, k.Moved} {
		for id := range p.hash(key) {
			require.Contains(p.t, pool, id, "%s of no job", key)
		}
	}
}

// hash, zset and list read miniredis itself.
func (p *player) hash(key string) map[string]string {
	fields, _ := p.r.HKeys(key) // an error says that it is not there
	all := make(map[string]string)
	k := p.hands[0].Keys
	for _, f := range fields {
		v := p.r.HGet(key, f)
		switch key {
		case k.Errors:
			v = jobKinds(v)
		case k.Results:
			_, v, _ = record.CutNetstring(v)
		case k.Stats:
			if v == "0" {
				continue
			}
		}
		all[f] = v
	}
	return all
}

// kinds tells attempt and kind of the entries of an error log.
func jobKinds(log string) string {
	var list []string
	for _, e := range record.DecodeFailures(log) {
		list = append(list, fmt.Sprint(e.Attempt, " ", e.Kind))
	}
	return strings.Join(list, ", ")
}

func (p *player) zset(key string) map[string]float64 {
	inside, _ := p.r.SortedSet(key)
	all := maps.Clone(inside)
	if key == p.hands[0].Keys.Leases && len(all) > 0 {
		long := strings.Repeat("-", 1025)
		require.Contains(p.t, all, long, "the anchor")
		require.Greater(p.t, len(all), 1, "the anchor alone")
		delete(all, long)
	}
	if all == nil {
		return map[string]float64{}
	}
	return all
}

func (p *player) list(key string) []string {
	all, _ := p.r.List(key)
	return append([]string{}, all...)
}

// compareClient holds what a client is told to the model.
func (p *player) compareClient(rdb *redis.Client) {
	c, ctx := newClient(rdb, "p"), context.Background()
	info := queuetest.StatsOf(p.t, c.insp, "model")
	count := map[delayq.State]int64{
		delayq.StateScheduled: info.Scheduled, delayq.StateReady: info.Ready, delayq.StateRunning: info.Running, delayq.StateDead: info.Dead, delayq.StateDone: info.Done,
	}
	for id := range p.m.jobs {
		got, err := c.Get(ctx, "model", id)
		require.NoError(p.t, err)
		require.Equal(p.t, p.m.state(id), string(got.State))
		count[got.State]--
	}
	count[delayq.StateDone] -= int64(len(p.m.done))
	for state, left := range count {
		require.Zero(p.t, left, state)
	}
	for name, n := range p.m.stats {
		require.Equal(p.t, n, info.Counters[name], name)
	}
}

// finish lets all come to its end: each job that is not dead is taken once more, and none is left.
func (p *player) finish() {
	want := map[string]int{}
	for id, j := range p.m.jobs {
		if j.in != inDead {
			want[id] = 1
		}
	}
	h, got := p.hands[0], map[string]int{}
	_, err := h.TryPause("resume all", "", 0)
	require.NoError(p.t, err)
	p.clock(10 * 365 * 24 * 3600 * 1_000_000)
	h.Promote()
	p.clock(2 * 3600 * 1_000_000) // what had attempts backs off once more
	h.Promote()
	for {
		r, err := h.TryTake("", 3, time.Hour)
		require.NoError(p.t, err)
		if r.Status() != "ok" {
			require.Equal(p.t, "empty", r.Status())
			break
		}
		for _, one := range hand.HeldOf(r) {
			got[one.ID]++
			require.Equal(p.t, "o", h.Ack(one))
		}
	}
	require.Equal(p.t, want, got)
	require.Len(p.t, p.hash(h.Keys.Pool), len(p.m.sorted(inDead)))
	for _, key := range []string{h.Keys.Bucket, h.Keys.Leases, h.Keys.Ready, h.Keys.Handoff} {
		require.False(p.t, p.r.Exists(key), key)
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	games, length := 25, 400
	if testing.Short() {
		games = 10
	}
	for range games {
		seed := rand.Uint64()
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { playModel(t, gameOf(seed, length)) })
	}
}

// gameOf makes the game of a seed: the name of a failed subtest.
func gameOf(seed uint64, length int) []byte {
	game := make([]byte, length)
	src := rand.New(rand.NewPCG(seed, 0))
	for i := range game {
		game[i] = byte(src.Uint32())
	}
	return game
}

func FuzzModel(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(gameOf(seed, 200))
	}
	f.Fuzz(func(t *testing.T, game []byte) { playModel(t, game[:min(len(game), 1000)]) })
}

// The error log of a Hand must be one that can be read, or the model compares nothing.
func TestByHandIsAnEntry(t *testing.T) {
	t.Parallel()
	var e record.Failure
	require.NoError(t, json.Unmarshal([]byte(hand.Failed), &e))
	require.Equal(t, "1 error, 1 error", jobKinds(record.Netstring(hand.Failed)+record.Netstring(hand.Failed)))
}
