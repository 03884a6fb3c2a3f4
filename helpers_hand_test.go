package delayq

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
	"github.com/delayq/delayq/internal/settle"
)

// A Hand does by hand what the servers of one topic do, one script call at a time and only when the
// test says so. It and the functions below are for the tests of this package and of delayq_test.
type Hand struct {
	t      testing.TB
	rdb    redis.UniversalClient
	keys   *script.Keys
	series *script.Series
	ts     *serve.Topic // writes the rows
	last   func() (script.Reply, error)

	waits  string // the name under which its takes wait; "": they do not
	listed int    // 1: the name may be in idle

	renewals map[string]*settle.Renewal // by ID: what Again asks for, if the test wants to know it
}

// A Held is a job that a Hand has taken, with its lease.
type Held struct {
	ID, Fence, Record, Attempts, Moved string
}

// fence is the end of the lease, in ms, rounded up.
func (one Held) fence() int64 {
	return (record.ParseLeaseEnd(one.Fence).Micros() + 999) / 1000
}

// NewHand makes a Hand for a topic.
func NewHand(t testing.TB, rdb redis.UniversalClient, prefix, topic string) *Hand {
	h := &Hand{t: t, rdb: rdb, keys: script.NewKeys(prefix, topic), series: script.NewSeries()}
	h.ts = &serve.Topic{Server: &serve.Server{Config: serve.Config{ID: "by-hand"}}, Keys: h.keys}
	return h
}

// prefix is that of the Hand's keys.
func (h *Hand) prefix() string { return h.keys.Prefix() }

// Key is the name of one of the topic's keys, like pool.
func (h *Hand) Key(name string) string { return h.keys.Root + name }

// try calls a script and notes the call for Again.
func (h *Hand) try(s *script.Script, keys []any, args ...any) (script.Reply, error) {
	h.last = func() (script.Reply, error) {
		return script.Caller{RDB: h.rdb, Hooks: &hooks{}}.Call(context.Background(), s, h.keys.Topic, 0, keys, args...)
	}
	return h.last()
}

// run is try with the keys that the script's header names, and the receipt of the Hand's series.
func (h *Hand) run(s *script.Script, args ...any) (script.Reply, error) {
	return h.try(s, h.keys.Of(s, h.keys.Receipt(h.series.ID)), args...)
}

// tryPromote promotes at most limit jobs of each kind.
func (h *Hand) tryPromote(limit, heal int) (script.Reply, error) {
	return h.run(script.Promote, limit, heal, script.ControlChannel(h.prefix()), h.keys.Topic)
}

// Promote promotes all that is due, and tells how many jobs were due and how many leases had run
// out.
func (h *Hand) Promote() (moved, reclaimed int) {
	h.t.Helper()
	for {
		r, err := h.tryPromote(1000, 1)
		require.NoError(h.t, err)
		moved, reclaimed = moved+int(r.Number(2)), reclaimed+int(r.Number(3))
		if max(r.Number(2), r.Number(3)) < 1000 {
			return moved, reclaimed
		}
	}
}

// tryTake is one call of the take script; number "" is the next one.
func (h *Hand) tryTake(number string, limit int, lease time.Duration) (script.Reply, error) {
	return h.tryTakeAhead(number, limit, limit, lease)
}

// tryTakeAhead is tryTake for a server that starts free of the jobs at once.
func (h *Hand) tryTakeAhead(number string, limit, free int, lease time.Duration) (script.Reply, error) {
	return h.tryTakeSince(number, "", limit, script.CallBytes, free, lease, "head")
}

// tryTakeSince is one call of the take script of a server that has had no answer to the takes from
// since on; "": it has had all.
func (h *Hand) tryTakeSince(number, since string, limit, bytes, free int, lease time.Duration, place string) (script.Reply, error) {
	if number == "" {
		number = h.series.Next()
	}
	if lease == 0 {
		lease = -time.Millisecond // the end has microseconds, the clock that it is compared with has not
	}
	return h.try(script.Take, h.keys.Of(script.Take, h.keys.Taken(h.series.ID)), number, cmp.Or(since, number), limit, bytes, lease.Milliseconds(), free, place, h.waits, h.listed, 0, 0, 0, 0)
}

// heldOf reads what take answered.
func heldOf(r script.Reply) (list []Held) {
	for i := range r.List(3) {
		list = append(list, Held{
			ID: r.List(3).Text(i), Fence: r.Text(2), Record: r.List(4).Text(i),
			Attempts: r.List(5).Text(i), Moved: r.List(6).Text(i),
		})
	}
	return list
}

// Take takes jobs from ready. A lease of 0 has run out at once.
func (h *Hand) Take(limit int, lease time.Duration) []Held {
	h.t.Helper()
	r, err := h.tryTake("", limit, lease)
	require.NoError(h.t, err)
	return heldOf(r)
}

// TakeOne takes the job that is to be the next one.
func (h *Hand) TakeOne(id string) Held {
	h.t.Helper()
	held := h.Take(1, time.Minute)
	require.Len(h.t, held, 1, "taken")
	require.Equal(h.t, id, held[0].ID)
	return held[0]
}

// settle tells Redis how runs have ended.
func (h *Hand) settle(held []Held, like settle.Row) (script.Reply, error) {
	v := like.Verb
	list := make([]settle.Row, len(held))
	for i, one := range held {
		list[i] = like
		rec, _ := record.Decode(one.Record) // of one that cannot be read nothing is needed
		m, _ := record.DecodeMoved(one.Moved)
		finished, _ := strconv.Atoi(one.Attempts) // "" is none
		list[i].Run = &run.Run{
			ID: one.ID, Fence: record.ParseFence(one.Fence), Options: rec.Options, Past: m.Tally, Attempt: finished + 1, Start: msTime(rec.EnqueuedAt),
		}
		list[i].End, list[i].Tally = msTime(rec.EnqueuedAt+5), m.Tally
		if like.Verb == settle.Snooze {
			list[i].Tally = m.Snoozed(finished)
		}
		if n := h.renewals[one.ID]; n != nil && like.Verb == settle.Again {
			list[i].Renewal = n
		} else if like.Verb == settle.Again {
			list[i].Renewal = h.renewal(ceilWhen(like.Delay), 0)
		}
		list[i].Failure = strings.Replace(like.Failure, `"attempt":1,`, `"attempt":`+strconv.Itoa(finished+1)+",", 1)
	}
	args := settle.AppendRows(like.Verb.Open(nil, h.keys, h.series.Next(), list), list, "by-hand")
	return h.run(v.Script(), args...)
}

// letters gives one letter for every job that was settled: o or l.
func (h *Hand) letters(held []Held, like settle.Row) string {
	h.t.Helper()
	r, err := h.settle(held, like)
	require.NoError(h.t, err)
	if letters := r.Text(2); letters != "" {
		return letters
	}
	return strings.Repeat("o", len(held))
}

// Ack, Expire, Retry, Snooze, Bury and Return settle jobs and give a letter for each: o if the
// lease was ours, l if it was lost, g if the job is gone.
func (h *Hand) Ack(held ...Held) string    { return h.letters(held, settle.Row{Verb: settle.Ack}) }
func (h *Hand) Expire(held ...Held) string { return h.letters(held, settle.Row{Verb: settle.Expire}) }
func (h *Hand) Return(held ...Held) string { return h.letters(held, settle.Row{Verb: settle.Return}) }
func (h *Hand) Retry(delay time.Duration, held ...Held) string {
	return h.letters(held, settle.Row{Verb: settle.Retry, Delay: delay, Failure: byHand})
}

func (h *Hand) Snooze(delay time.Duration, held ...Held) string {
	return h.letters(held, settle.Row{Verb: settle.Snooze, Delay: delay})
}

// Again ends jobs and enqueues them anew, due after a delay.
func (h *Hand) Again(delay time.Duration, held ...Held) string {
	return h.letters(held, settle.Row{Verb: settle.Again, Delay: delay})
}

func (h *Hand) Bury(held ...Held) string {
	return h.letters(held, settle.Row{Verb: settle.Bury, Attempts: 1, Failure: byHand})
}

// byHand is what stands in the error log of a job that a Hand has failed.
const byHand = `{"attempt":1,"at":9999999999999,"kind":"error","message":"by hand"}`

// tryExtend asks for another end of leases.
func (h *Hand) tryExtend(ending int64, held ...Held) (script.Reply, error) {
	args := []any{ending}
	for _, one := range held {
		args = append(args, one.ID, one.Fence)
	}
	return h.run(script.Extend, args...)
}

// tryPrune is one call of the prune script.
func (h *Hand) tryPrune(most int, age time.Duration, limit int) (script.Reply, error) {
	return h.run(script.Prune, h.series.Next(), most, age.Milliseconds(), limit)
}

// tryEnqueue, tryCancel, tryReschedule and tryRevive make the calls of a Client. A job is an ID and
// its due time as the script reads it.
func (h *Hand) tryEnqueue(replace bool, jobs ...[2]string) (script.Reply, error) {
	var args []any
	for _, job := range jobs {
		head, tail := h.record(job[1], 0)
		args = append(args, job[0], head, tail, job[1])
	}
	return h.trySend(replace, args)
}

// trySend is one call of the enqueue script, or of the replace script if any job says what it
// replaces. With replace all give way.
func (h *Hand) trySend(replace bool, jobs []any) (script.Reply, error) {
	which := script.Enqueue
	jobs = slices.Clone(jobs)
	for i := 3; i < len(jobs); i += 4 {
		if replace {
			jobs[i] = string(commit.ReplaceAny) + jobs[i].(string)
		}
		switch keyed := jobs[i-2].(string)[record.NonceLen] > 1; {
		case strings.ContainsAny(jobs[i].(string), "rd"):
			which = script.Replace
		case keyed && which == script.Enqueue:
			which = script.EnqueueKeyed
		}
	}
	words := []any{h.series.Next(), maxTick.Milliseconds(), script.ControlChannel(h.prefix()), h.keys.Topic}
	return h.run(which, append(words, jobs...)...)
}

// nonces are those of the records that Hands have made.
var nonces atomic.Uint64

// record makes the head and the tail of a record that no other call makes.
func (h *Hand) record(when string, retention int64) (head, tail string) {
	n := nonces.Add(1)
	var nonce record.Nonce
	binary.BigEndian.PutUint64(nonce[:], n)
	o := defaultJob
	o.Retention = retention
	due, till, _ := strings.Cut(strings.TrimLeft(when, "rd"), " ")
	for text, field := range map[string][2]*int64{due: {&o.DueAt, &o.DueIn}, till: {&o.ExpireAt, &o.ExpireIn}} {
		if text == "" {
			continue
		}
		ms, err := strconv.ParseInt(text, 10, 64)
		require.NoError(h.t, err)
		if text[0] == '+' {
			*field[1] = ms
		} else {
			*field[0] = ms
		}
	}
	head, tail, err := record.Encode(nonce, &o.Options, []byte(fmt.Sprintf("payload %012d", n)))
	require.NoError(h.t, err)
	return head, tail
}

// ceilWhen is a delay as enqueue.lua reads it.
func ceilWhen(d time.Duration) string { return "+" + strconv.FormatInt(ceilMS(d), 10) }

// renewal is what a handler's Again asks for.
func (h *Hand) renewal(when string, retention int64) *settle.Renewal {
	n := &settle.Renewal{When: when}
	n.Head, n.Tail = h.record(when, retention)
	return n
}

func (h *Hand) tryCancel(ids ...string) (script.Reply, error) {
	args := []any{h.series.Next(), script.ControlChannel(h.prefix()), h.keys.Topic}
	for _, id := range ids {
		args = append(args, id, "")
	}
	return h.run(script.Cancel, args...)
}

// tryCancelKnown is tryCancel by a caller that knows how the job was.
func (h *Hand) tryCancelKnown(id, known string) (script.Reply, error) {
	return h.run(script.Cancel, h.series.Next(), script.ControlChannel(h.prefix()), h.keys.Topic, id, known)
}

func (h *Hand) tryReschedule(id, due string) (script.Reply, error) {
	r, err := h.tryRescheduleKnown(id, due, record.Job{})
	if r.Text(2) == string(script.LetterExpires) {
		known, err := record.DecodeMeta(r.List(3).Text(0))
		require.NoError(h.t, err)
		return h.tryRescheduleKnown(id, due, known)
	}
	return r, err
}

// tryRescheduleKnown is tryReschedule by a caller that knows when the job expires.
func (h *Hand) tryRescheduleKnown(id, due string, known record.Job) (script.Reply, error) {
	return h.run(script.Reschedule, h.series.Next(), maxTick.Milliseconds(), script.ControlChannel(h.prefix()), h.keys.Topic, id, due, known.Nonce, known.Expires(), "")
}

func (h *Hand) tryRevive(id string) (script.Reply, error) {
	return h.tryReviveAt(id, "+0")
}

// tryReviveAt is tryRevive with a due time.
func (h *Hand) tryReviveAt(id, due string) (script.Reply, error) {
	return h.run(script.Revive, h.series.Next(), maxTick.Milliseconds(), script.ControlChannel(h.prefix()), h.keys.Topic, id, due, "")
}

// tryBury is one call of the bury_waiting script.
func (h *Hand) tryBury(id string) (script.Reply, error) {
	return h.run(script.BuryWaiting, h.series.Next(), id, "why", "")
}

// letterOf gives the letter of a state in a reply.
func letterOf(state string) string {
	for letter, named := range states {
		if state == string(named) {
			return string(letter)
		}
	}
	return map[string]string{"none": string(script.LetterGone), "beyond": string(script.LetterBeyond)}[state]
}

// tryPause is one call of the pause script.
func (h *Hand) tryPause(verb, by string, period time.Duration) (script.Reply, error) {
	return h.run(script.Pause, h.series.Next(), verb, by, period.Milliseconds(), "why", maxPauses, script.ControlChannel(h.prefix()), h.keys.Topic)
}

// tryLimits is one call of the limits script.
func (h *Hand) tryLimits(l Limits) (script.Reply, error) {
	return h.run(script.Limits, h.series.Next(), l.encode(), script.ControlChannel(h.prefix()), h.keys.Topic)
}

// tryHold is one call of the hold script; a period of 0 ends the hold.
func (h *Hand) tryHold(period time.Duration) (script.Reply, error) {
	return h.run(script.Hold, h.series.Next(), period.Milliseconds(), "me", "why", script.ControlChannel(h.prefix()), h.keys.Topic)
}

// tryPriority gives a job another head start, in ms.
func (h *Hand) tryPriority(id string, head int64) (script.Reply, error) {
	return h.run(script.SetPriority, h.series.Next(), id, head+1<<31)
}

// tryKeyHold holds a key for some ms: -1 pauses it, and 0 resumes it.
func (h *Hand) tryKeyHold(key string, ms int64, most int) (script.Reply, error) {
	return h.run(script.KeyHold, h.series.Next(), key, ms, most, script.ControlChannel(h.prefix()), h.keys.Topic)
}

// Hasten makes all due times, lease ends and ends of holds come earlier: what the passing of time
// does, without the waiting.
func (h *Hand) Hasten(d time.Duration) {
	h.t.Helper()
	ctx := context.Background()
	most := map[string]string{h.keys.Bucket: "+inf", h.keys.Leases: "+inf", h.keys.Held: strconv.Itoa(keyPaused)}
	for key, most := range most {
		all, err := h.rdb.ZRangeByScoreWithScores(ctx, key, &redis.ZRangeBy{Min: "-inf", Max: "(" + most}).Result()
		require.NoError(h.t, err)
		for _, z := range all {
			require.NoError(h.t, h.rdb.ZIncrBy(ctx, key, -float64(d.Milliseconds()), z.Member.(string)).Err())
		}
	}
}

// Dump is [redistest.Dump].
func Dump(t testing.TB, rdb redis.UniversalClient, prefix string) map[string]any {
	t.Helper()
	return redistest.Dump(t, rdb, prefix)
}

// Traces lists the keys of the topic in which an ID stands.
func (h *Hand) Traces(id string) (keys []string) {
	h.t.Helper()
	for key, content := range Dump(h.t, h.rdb, h.prefix()) {
		name, ours := strings.CutPrefix(key, h.keys.Root)
		found := false
		switch c := content.(type) {
		case map[string]string:
			_, found = c[id]
		case []redis.Z:
			found = slices.ContainsFunc(c, func(z redis.Z) bool { return z.Member == id })
		case []string:
			found = slices.Contains(c, id)
		}
		if found && ours {
			keys = append(keys, name)
		}
	}
	slices.Sort(keys)
	return keys
}

// LoadScripts makes Redis know all scripts.
func LoadScripts(ctx context.Context, rdb redis.Scripter) error {
	for _, s := range script.All {
		if err := rdb.ScriptLoad(ctx, fmt.Sprint(s.Text)).Err(); err != nil {
			return err
		}
	}
	return nil
}

// inspectorOf returns an inspector of the queue of a client.
func inspectorOf(c *Client) *Inspector { return NewInspector(c.rdb, Prefix(c.o.prefix)) }

// statsOf returns the numbers of a topic.
func statsOf(t testing.TB, c *Client, topic string) TopicStats {
	t.Helper()
	list, err := inspectorOf(c).Stats(context.Background(), topic)
	require.NoError(t, err)
	require.Len(t, list, 1)
	return list[0]
}

// A handTimer promotes and fires when the test says so, as the promote loop of a topic does.
type handTimer struct {
	Scripts script.Caller
	Firer   *fire.Firer
	keys    *script.Keys
}

// newHandTimer returns the handTimer of a topic. It is the worker, if the client is divided among
// the roles.
func newHandTimer(rdb redis.UniversalClient, k *script.Keys, log *slog.Logger) *handTimer {
	h := &hooks{}
	if worker, test := redistest.Worker(rdb, k.Prefix()); test != "" {
		rdb = worker
		h.script = append(h.script, workerCalls{test})
	}
	t := &handTimer{Scripts: script.Caller{RDB: rdb, Hooks: h}, keys: k}
	t.Firer = fire.New(k, time.Second, nil, log, func(ctx context.Context, s *script.Script, jobs int, args ...any) (script.Reply, error) {
		return t.Scripts.Exec(ctx, s, k, "", jobs, args...)
	})
	return t
}

// promoted is what promote says of schedules.
type promoted struct{ Due, Waiting int }

// Promote is one call of the promote script.
func (t *handTimer) Promote(ctx context.Context, _ bool) (promoted, error) {
	r, err := t.Scripts.Exec(ctx, script.Promote, t.keys, "", 250, 250, 0, script.ControlChannel(t.keys.Prefix()), t.keys.Topic)
	return promoted{int(r.Number(5)), int(r.Number(6))}, err
}
