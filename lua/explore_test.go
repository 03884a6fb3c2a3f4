package lua_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// What follows explores the queue instead of playing games with it: two jobs, two servers and a
// client, and every order of their calls within the bounds of a scope. Each call can be answered,
// or be carried out without its answer arriving (and be sent again later), or be late: its server
// dies and the call arrives at some time after. A state is all that Redis holds (through the real
// scripts), the same by the model, and what the servers and the client think. From each state that
// was not met before every possible step is taken; after each, Redis is compared with the model in
// full, and the promises are checked: nothing early, no job with two servers whose leases live, no
// run of a job that was cancelled, replaced or done, and, from a part of the states, everything
// comes to its end and leaves nothing. From fewer still, after the loss of each key in turn, a
// check puts all of it right.

// Times of the exploration. Every step takes a millisecond, so that no two leases end at the same
// time; a tick takes a second and one.
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
	said    map[string]said    // series → the receipt of its last call but for takes
	taken   map[string]receipt // series → the receipt of its last take
	depth   int
	before  *world
	step    string
}

// A mind is what a server or the client knows.
type mind struct {
	lives   int // how often it died: each life has a series of its own
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
	since  uint64  // of a take: the first number without an answer
	again  func() (script.Reply, error)
	known  func(w *world) bool                         // a script would know it for one that was carried out
	expect func(w *world) string                       // what it answers then
	first  func(w *world) (got, want string)           // carries it out, on Redis and on the model
	answer func(x *explorer, w *world, r script.Reply) // the answer arrives
}

// A budget is how often what makes the number of states infinite may happen on one path.
type budget struct {
	ticks, failures, cancels, replaces, reschedules, revives, buries, extends, lost, dead, pops, pauses int
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
	begun bool // both jobs are enqueued already, and the client enqueues nothing
}

// scopes are what is explored. With their depths they take a few seconds; all but the last have an
// end, after some minutes.
var scopes = []scope{
	{"a server dies", budget{ticks: 4, dead: 1, pops: 1}, 5, true},
	{"an answer is lost", budget{ticks: 3, lost: 1, failures: 1}, 5, true},
	{"handlers fail", budget{ticks: 3, failures: 2, extends: 1}, 5, true},
	{"a client interferes", budget{ticks: 2, cancels: 1, replaces: 1}, 5, false},
	{"a call of the client is lost", budget{ticks: 1, cancels: 1, lost: 1}, 5, false},
	{"a program and an operator pause", budget{ticks: 2, pauses: 3, lost: 1}, 5, true},
	{"an operator buries", budget{ticks: 2, buries: 2, revives: 1, lost: 1}, 5, true},
	{"all at once", budget{ticks: 5, failures: 2, cancels: 1, replaces: 1, reschedules: 1, revives: 1, extends: 1, lost: 1, dead: 1, pops: 1}, 3, false},
}

// A finder is the testing.TB of an exploration that may fail on purpose: it keeps the first
// failure.
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

// explore visits all states of a scope. It gives what it has met, and the story of the first
// failure.
func explore(t testing.TB, s scope, mutant func(script string) string) (x *explorer, failure string) {
	x = &explorer{t: &finder{TB: t}, r: embedded.New(), seen: map[string]bool{}}
	defer x.r.Close()
	x.rdb = x.r.Client()
	defer func() { _ = x.rdb.Close() }()
	if mutant != nil {
		x.rdb.AddHook(mutation(mutant))
	}
	x.p = &player{game: game{t: x.t, trace: []string{"this step"}}, r: x.r}
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
	x.p.hands[0].Series = script.NewSeries()
	x.p.finish()
}

// hurt deletes each key in turn, and lets a check put everything right.
func (x *explorer) hurt(w *world) {
	k := x.p.hands[0].Keys
	for _, key := range []string{"", k.Bucket, k.Ready, k.Handoff, k.Leases, k.Dead} {
		x.fill(w.m.us, w.redis)
		x.p.m = w.m.clone()
		x.p.note("%s is deleted", key)
		there := x.r.Exists(key)
		x.r.Del(key)
		report, err := x.p.hands[0].client().Repair(context.Background(), k.Topic)
		require.NoError(x.t, err)
		if !there {
			require.Empty(x.t, report.Findings)
			continue
		}
		x.hurts++
		waiting := append(x.p.list(k.Ready), x.p.list(k.Handoff)...)
		places := map[place]map[string]float64{inBucket: x.p.zset(k.Bucket), inLeases: x.p.zset(k.Leases), inDead: x.p.zset(k.Dead)}
		for id, j := range w.m.jobs {
			score, there := places[j.in][id]
			switch {
			case j.in == inReady, j.in == inLeases && key == k.Leases, j.in == inBucket && !there: // a left-over of its ID is as good: a server puts it back
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

// check holds Redis to the model.
func (x *explorer) check(w *world) {
	x.p.m = w.m
	x.p.trace = []string{w.step}
	x.p.compare()
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
			i := slices.IndexFunc(script.All, func(s *script.Script) bool { return s.Digest == words[1] })
			words[0], words[1] = "eval", m(fmt.Sprint(script.All[i].Text))
		}
		return next(ctx, cmd)
	}
}

// DELAYQ_EXPLORE=all takes away the bounds of the depth, but for the last scope, which goes three
// steps further. Without DELAYQ_FULL, each goes one step less far.
func TestExplore(t *testing.T) {
	t.Parallel()
	for _, s := range scopes {
		t.Run(s.name, func(t *testing.T) {
			switch {
			case os.Getenv("DELAYQ_EXPLORE") == "all":
				if s.depth += 3; s.name != scopes[len(scopes)-1].name {
					s.depth = 0
				}
			case redistest.Size(10) < 10 && s.depth > 1:
				s.depth--
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
	defects := map[string]struct {
		script, right, wrong string
		scope                string
	}{
		"take does not look at the bucket":      {"take", "and not delayed[i] ", "", "all at once"},
		"take gives a lost batch twice":         {"take", "if last and last >= since then", "if false then", "an answer is lost"},
		"take asked anew keeps the old lease":   {"take", "redis.call('ZADD', leases, 'XX', unpack(grants))", "", "an answer is lost"},
		"take asked anew loses the others":      {"take", "redis.call('LPUSH', ready, unpack(reversed))", "", "an answer is lost"},
		"take that is late takes":               {"take", "if last and last > tonumber(number) then", "if false then", "an answer is lost"},
		"a fence of long ago is good":           {"ack", "if tonumber(lease_end) == tonumber(score) then", "if true then", "a server dies"},
		"retry forgets the place":               {"retry", "redis.call('ZADD', bucket, dues[i], id)", "", "handlers fail"},
		"snooze uses up an attempt":             {"snooze", "count(stats, 'snoozed', #ids)", "redis.call('HINCRBY', KEYS[3], ids[1] or '', 1)", "handlers fail"},
		"again forgets the place":               {"again", "redis.call('ZADD', bucket, unpack(later))", "", "handlers fail"},
		"again leaves the old record":           {"again", "redis.call('HSET', pool, unpack(records))", "", "handlers fail"},
		"again keeps the lease":                 {"again", "release(leases, ids)", "", "handlers fail"},
		"again keeps the attempts":              {"again", "close_books(attempts, errors, moved, ids)", "", "handlers fail"},
		"again is done again":                   {"again", "if told then", "if false then", "an answer is lost"},
		"return goes to the tail":               {"give_back", "'LPUSH'", "'RPUSH'", "handlers fail"},
		"bury keeps the lease":                  {"bury", "release(leases, ids)", "", "handlers fail"},
		"bury leaves the bucket":                {"bury_waiting", "redis.call('ZREM', bucket, unpack(waiting))", "", "an operator buries"},
		"bury hits a running job":               {"bury_waiting", "elseif leased[i] then", "elseif false then", "an operator buries"},
		"bury forgets the moved entry":          {"bury_waiting", "redis.pcall('HSET', moved, id, due .. ' ' .. traced('bury', known) .. ' ' .. tally)", "", "an operator buries"},
		"ack keeps the record":                  {"ack", "redis.call('HDEL', pool, unpack(ids))", "", "a server dies"},
		"promote leaves due jobs in the bucket": {"promote", "redis.call('ZREM', bucket, unpack(due))", "", "a server dies"},
		"promote drops lapsed jobs":             {"promote", "redis.call('LPUSH', ready, unpack(first))", "", "a server dies"},
		"promote does not count a crash":        {"promote", "failed(attempts, errors, id, 1,", "failed(attempts, errors, id, '0',", "a server dies"},
		"promote forgets handoff":               {"promote", "redis.call('LMOVE', handoff, ready, 'RIGHT', 'LEFT')", "redis.call('RPOP', handoff)", "a server dies"},
		"promote is early":                      {"promote", "ZRANGEBYSCORE', bucket, '-inf', now,", "ZRANGEBYSCORE', bucket, '-inf', now + 5000,", "a server dies"},
		"cancel leaves the lease":               {"cancel", "release(leases, running)", "", "a client interferes"},
		"cancel is carried out when it is late": {"cancel", "if last and (last == own or tonumber(last) > tonumber(own)) then", "if false then", "a call of the client is lost"},
		"enqueue stores a job again":            {"enqueue", "if told then", "if false then", "a call of the client is lost"},
		"resume ends the pauses of others":      {"pause", "and who ~= by then", "and verb ~= 'resume' and who ~= by then", "a program and an operator pause"},
		"the end of one pause ends the other":   {"pause", "endless or ending == 0", "ending == 0", "a program and an operator pause"},
		"pause is carried out when it is late":  {"pause", "local told = replay(receipt, number)", "local told", "a program and an operator pause"},
		"replace leaves the lease":              {"replace", "release(leases, running)", "", "a client interferes"},
		"extend gives leases to others":         {"extend", "if owns(scores[i], jobs[at + 1] .. ' ' .. ending) then", "if scores[i] then", "handlers fail"},
	}
	for i, name := range slices.Sorted(maps.Keys(defects)) {
		if i%4 > 0 && redistest.Size(4) < 4 {
			continue // DELAYQ_FULL=1 has all
		}
		mutant := defects[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := false
			n := slices.IndexFunc(script.All, func(s *script.Script) bool { return s.Name == mutant.script })
			source := fmt.Sprint(script.All[n].Text)
			i := slices.IndexFunc(scopes, func(s scope) bool { return s.name == mutant.scope })
			s := scopes[i]
			s.depth++ // some show only there; it ends with the first finding
			x, failure := explore(t, s, func(text string) string {
				if text != source {
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
		if m, ok := record.DecodeMoved(j.moved); ok && m.Why != record.WhySame { // which is as good as none
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
