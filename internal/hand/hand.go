// Package hand is a server by hand, for tests. A Hand makes the calls of the servers and clients of
// a topic, one script call at a time. A Timer promotes and fires when the test says so. The package
// knows the scripts and what is told them, and never imports the root package. The tests of the
// scripts and those of internal packages use it.
package hand

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// Settings of the library that the scripts are told.
const (
	KeyPaused  = 9_999_999_999_999 // the end of the hold of a paused key
	MostPauses = 16                // the most pauses of a topic
)

// A Hand does by hand what the servers of one topic do, one script call at a time and only when the
// test says so.
type Hand struct {
	T      testing.TB
	RDB    redis.UniversalClient
	Keys   *script.Keys
	Series *script.Series
	Last   func() (script.Reply, error) // sends the last call again

	Waits  string // the name under which its takes wait; "": they do not
	Listed int    // 1: the name may be in idle
	Spaced int    // 1: its takes are those of a server that starts each job at its time

	Patience int // ms, how long its jobs can wait for their start; 0: none may wait

	Old map[string]*script.Script // those of another release, by their names, which it calls instead

	Renewals map[string]*settle.Renewal // by ID: what Again asks for, if the test wants to know it
}

// A Held is a job that a Hand has taken, with its lease.
type Held struct {
	ID, Fence, Record, Attempts, Moved string
}

// LeaseEnd is the end of the lease, in ms, rounded up.
func (one Held) LeaseEnd() int64 {
	return (record.ParseLeaseEnd(one.Fence).Micros() + 999) / 1000
}

// New makes a Hand for a topic.
func New(t testing.TB, rdb redis.UniversalClient, prefix, topic string) *Hand {
	h := &Hand{T: t, RDB: rdb, Keys: script.NewKeys(prefix, topic), Series: script.NewSeries()}
	h.Series.Seq = 1_000_000_000 // the scripts for lone jobs need numbers of ten digits
	return h
}

// Prefix is that of the Hand's keys.
func (h *Hand) Prefix() string { return h.Keys.Prefix() }

// Key is the name of one of the topic's keys, like pool.
func (h *Hand) Key(name string) string { return h.Keys.Key(name) }

// Try calls a script and notes the call for Again.
func (h *Hand) Try(s *script.Script, keys []any, args ...any) (script.Reply, error) {
	h.Last = func() (script.Reply, error) {
		return script.Caller{RDB: h.RDB}.Call(context.Background(), s, h.Keys.Topic, 0, keys, args...)
	}
	return h.Last()
}

// Run is try with the keys that the script's header names, and the receipt of the Hand's series.
func (h *Hand) Run(s *script.Script, args ...any) (script.Reply, error) {
	s = cmp.Or(h.Old[s.Name], s)
	return h.Try(s, h.Keys.Of(s, h.Keys.Receipt(h.Series.ID)), args...)
}

// TryPromote promotes at most limit jobs of each kind.
func (h *Hand) TryPromote(limit, heal int) (script.Reply, error) {
	return h.Run(script.Promote, limit, heal, script.ControlChannel(h.Prefix()), h.Keys.Topic)
}

// Promote promotes all that is due, and tells how many jobs were due and how many leases had run
// out.
func (h *Hand) Promote() (moved, reclaimed int) {
	h.T.Helper()
	for {
		r, err := h.TryPromote(1000, 1)
		require.NoError(h.T, err)
		moved, reclaimed = moved+int(r.Number(2)), reclaimed+int(r.Number(3))
		if r.Number(2) < 1000 && (r.Number(3) == 0 || r.Number(4) != 0) {
			return moved, reclaimed
		}
	}
}

// TryTake is one call of the take script; number "" is the next one.
func (h *Hand) TryTake(number string, limit int, lease time.Duration) (script.Reply, error) {
	return h.TryTakeAhead(number, limit, limit, lease)
}

// TryTakeAhead is tryTake for a server that starts free of the jobs at once.
func (h *Hand) TryTakeAhead(number string, limit, free int, lease time.Duration) (script.Reply, error) {
	return h.TryTakeSince(number, "", limit, script.CallBytes, free, lease, "head")
}

// TryTakeSince is one call of the take script of a server that has had no answer to the takes from
// since on; "": it has had all.
func (h *Hand) TryTakeSince(number, since string, limit, bytes, free int, lease time.Duration, place string) (script.Reply, error) {
	if number == "" {
		number = h.Series.Next()
	}
	if lease == 0 {
		lease = -time.Millisecond // the end has microseconds, the clock that it is compared with has not
	}
	take := cmp.Or(h.Old[script.Take.Name], script.Take)
	return h.Try(take, h.Keys.Of(take, h.Keys.Taken(h.Series.ID)), number, cmp.Or(since, number), limit, bytes, lease.Milliseconds(), free, place, h.Waits, h.Listed, 0, 0, 0, 0, h.Spaced, h.Patience)
}

// HeldOf reads what take answered.
func HeldOf(r script.Reply) (list []Held) {
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
	h.T.Helper()
	r, err := h.TryTake("", limit, lease)
	require.NoError(h.T, err)
	return HeldOf(r)
}

// TakeOne takes the job that is to be the next one.
func (h *Hand) TakeOne(id string) Held {
	h.T.Helper()
	held := h.Take(1, time.Minute)
	require.Len(h.T, held, 1, "taken")
	require.Equal(h.T, id, held[0].ID)
	return held[0]
}

// Settle tells Redis how runs have ended.
func (h *Hand) Settle(held []Held, like settle.Row) (script.Reply, error) {
	renews := like.Verb == settle.Again || like.Verb == settle.Pass
	list := make([]settle.Row, len(held))
	for i, one := range held {
		list[i] = like
		rec, _ := record.Decode(one.Record) // of one that cannot be read nothing is needed
		m, _ := record.DecodeMoved(one.Moved)
		finished, _ := strconv.Atoi(one.Attempts) // "" is none
		list[i].Run = &run.Run{
			ID: one.ID, Fence: record.ParseFence(one.Fence), Options: rec.Options, Past: m.Tally, Attempt: finished + 1, Start: time.UnixMilli(rec.EnqueuedAt),
			Due: time.UnixMilli(cmp.Or(m.Due, rec.Due())),
		}
		list[i].End, list[i].Tally = time.UnixMilli(rec.EnqueuedAt+5), m.Tally
		if like.Verb == settle.Snooze && !like.Later {
			list[i].Tally = m.Snoozed(finished)
		}
		if n := h.Renewals[one.ID]; n != nil && renews {
			list[i].Renewal = n
		} else if renews {
			list[i].Renewal = h.Renewal(When(like.Delay), 0)
		}
		list[i].Failure = strings.Replace(like.Failure, `"attempt":1,`, `"attempt":`+strconv.Itoa(finished+1)+",", 1)
	}
	args := settle.AppendRows(like.Verb.Open(nil, h.Keys, h.Series.Next(), list), list, "by-hand")
	if len(list) == 0 {
		return h.Run(like.Verb.Script(), args...)
	}
	return h.Run(settle.ScriptOf(list), args...)
}

// Letters gives one letter for every job that was settled: o or l. Like a server, it makes another
// call for those that a call leaves.
func (h *Hand) Letters(held []Held, like settle.Row) string {
	h.T.Helper()
	r, err := h.Settle(held, like)
	require.NoError(h.T, err)
	letters := r.Text(2)
	if letters == "" {
		return strings.Repeat("o", len(held))
	}
	var left []Held
	for i := range letters {
		if letters[i] == script.LetterNext {
			left = append(left, held[i])
		}
	}
	if len(left) > 0 {
		for _, letter := range h.Letters(left, like.Left()) {
			letters = strings.Replace(letters, string(script.LetterNext), string(letter), 1)
		}
	}
	return letters
}

// Ack, Expire, Retry, Snooze, Bury and Return settle jobs and give a letter for each: o if the
// lease was ours, l if it was lost, g if the job is gone.
func (h *Hand) Ack(held ...Held) string    { return h.Letters(held, settle.Row{Verb: settle.Ack}) }
func (h *Hand) Expire(held ...Held) string { return h.Letters(held, settle.Row{Verb: settle.Expire}) }
func (h *Hand) Return(held ...Held) string { return h.Letters(held, settle.Row{Verb: settle.Return}) }
func (h *Hand) Retry(delay time.Duration, held ...Held) string {
	return h.Letters(held, settle.Row{Verb: settle.Retry, Delay: delay, Failure: Failed})
}

func (h *Hand) Snooze(delay time.Duration, held ...Held) string {
	return h.Letters(held, settle.Row{Verb: settle.Snooze, Delay: delay})
}

// Again ends jobs and enqueues them anew, due after a delay.
func (h *Hand) Again(delay time.Duration, held ...Held) string {
	return h.Letters(held, settle.Row{Verb: settle.Again, Delay: delay})
}

func (h *Hand) Bury(held ...Held) string {
	return h.Letters(held, settle.Row{Verb: settle.Bury, Attempts: 1, Failure: Failed})
}

// Failed is what stands in the error log of a job that a Hand has failed.
const Failed = `{"attempt":1,"at":9999999999999,"kind":"error","message":"by hand"}`

// TryExtend asks for another end of leases.
func (h *Hand) TryExtend(ending int64, held ...Held) (script.Reply, error) {
	args := []any{ending}
	for _, one := range held {
		args = append(args, one.ID, one.Fence)
	}
	return h.Run(script.Extend, args...)
}

// TryPrune is one call of the prune script that looks at the oldest dead jobs.
func (h *Hand) TryPrune(most int, age time.Duration, limit int) (script.Reply, error) {
	return h.TryPruneFrom(0, most, age, limit)
}

// TryPruneFrom is one call of the prune script that looks at the dead jobs from a rank on.
func (h *Hand) TryPruneFrom(from int64, most int, age time.Duration, limit int) (script.Reply, error) {
	return h.Run(script.Prune, h.Series.Next(), most, age.Milliseconds(), limit, from, script.ControlChannel(h.Prefix()), h.Keys.Topic)
}

// Each runs a test of the topic "topic" by hand on both backends, in parallel with other tests.
func Each(t *testing.T, test func(t *testing.T, h *Hand)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		test(t, New(t, rdb, redistest.Prefix(t), "topic"))
	})
}

// Numbered makes n IDs.
func Numbered(name string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%05d", name, i)
	}
	return ids
}
