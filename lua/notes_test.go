package lua_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// An ear is a client that waits for jobs, and hears the messages to it.
type ear struct {
	h    *Hand
	name string
	bell *bell
}

func (h *Hand) ear(name string) *ear { return &ear{h, name, h.listen(name)} }

// heard returns the IDs of the messages that have come until now.
func (e *ear) heard() (ids []string) {
	e.h.T.Helper()
	for _, text := range e.bell.heard() {
		id, ok := strings.CutPrefix(text, fmt.Sprintf("look 0 %d %s", len(e.h.Keys.Topic), e.h.Keys.Topic))
		require.True(e.h.T, ok, text)
		ids = append(ids, id)
	}
	return ids
}

// waits registers the client for a job, and returns the nonce of its incarnation.
func (e *ear) waits(id string) (nonce string) {
	e.h.T.Helper()
	answer := e.h.Wait(e.name, id, "", hand.Register)
	require.Equal(e.h.T, "l", answer[:1])
	require.Contains(e.h.T, "sru", answer[9:10])
	return answer[1:9]
}

// outcome is the answer about an incarnation that has ended, without its nonce and its time; ""
// if there is none.
func (e *ear) outcome(id, nonce string) string {
	e.h.T.Helper()
	answer := e.h.Wait(e.name, id, nonce, hand.Look)
	if answer[0] != 'e' {
		return ""
	}
	require.Equal(e.h.T, cmp.Or(nonce, answer[1:9]), answer[1:9])
	return regexp.MustCompile(`^([a-z]) \d{13} `).ReplaceAllString(answer[9:], "$1 ")
}

// notes lists the fields of the key with notes, without the nonces in their names.
func (h *Hand) notes() (fields []string) {
	h.T.Helper()
	all, err := h.RDB.HKeys(h.T.Context(), h.Keys.Notes).Result()
	require.NoError(h.T, err)
	for _, field := range all {
		switch field[0] {
		case 'e':
			field = "e"
		case 's':
			id := regexp.MustCompile(`^s\d+:`).ReplaceAllString(field, "")
			require.Greater(h.T, len(id), 9)
			field = "s " + field[len(field)-4:]
		}
		fields = append(fields, field)
	}
	return fields
}

// counted returns a counter of the topic.
func (h *Hand) counted(name string) int64 {
	n, _ := h.RDB.HGet(h.T.Context(), h.Keys.Stats, name).Int64() // 0 if there is none
	return n
}

// An ending ends the job "a" in some way.
type ending struct {
	running bool // it is taken before
	due     string
	do      func(t *testing.T, h *Hand, held hand.Held)
	outcome string // as a pattern
	keeps   bool   // its note
	silent  bool   // nobody is told
}

func settling(like settle.Row) func(*testing.T, *Hand, hand.Held) {
	return func(t *testing.T, h *Hand, held hand.Held) {
		require.Regexp(t, "^[oN]$", h.Letters([]hand.Held{held}, like))
	}
}

// sending stores a job with the ID "a" and a letter.
func sending(when string) func(*testing.T, *Hand, hand.Held) {
	return func(t *testing.T, h *Hand, _ hand.Held) {
		r, err := h.TryEnqueue(false, [2]string{"a", when})
		require.NoError(t, err)
		require.NotRegexp(t, "[rsudtxv]", r.Text(2), "it is stored")
	}
}

// acking ends a run as a server that says what of it.
func acking(counter string, values ...any) func(*testing.T, *Hand, hand.Held) {
	return func(t *testing.T, h *Hand, held hand.Held) {
		args := append([]any{h.Series.Next(), counter, held.Fence, len(values), 1, held.ID}, values...)
		r, err := h.Run(script.Ack, args...)
		require.NoError(t, err)
		require.Empty(t, r.Text(2))
	}
}

// aRun is what a server says of a run, and its output.
var aRun = record.Netstring(`{"output":3,"attempt":1,"start":5,"end":1700000000000,"server":"s"}`) + "out"

var endings = map[string]ending{
	"ack":                  {true, "+0", settling(settle.Row{Verb: settle.Ack}), `o \d+:{"attempt":1,"end":\d{13}}`, false, false},
	"ack without values":   {true, "+0", acking("acked"), `o \d+:{"attempt":1,"end":\d{13}}`, false, false},
	"ack with output":      {true, "+0", acking("acked", 0, aRun, ""), regexp.QuoteMeta("o " + aRun), false, false},
	"ack and keep":         {true, "+0", acking("acked", 60000, aRun, ""), regexp.QuoteMeta("o " + aRun), false, false},
	"expire":               {true, "+0", settling(settle.Row{Verb: settle.Expire}), `x `, false, false},
	"bury":                 {true, "+0", settling(settle.Row{Verb: settle.Bury, Attempts: 1, Failure: hand.Failed}), `d \d+:{"attempt":1,.*`, true, false},
	"bury without a word":  {true, "+0", settling(settle.Row{Verb: settle.Bury}), `d `, true, false},
	"bury a scheduled job": {false, "+60000", func(t *testing.T, h *Hand, _ hand.Held) { require.Equal(t, "s", must(h.TryBury("a")).Text(2)) }, `d \d+:{.*"why".*}`, true, false},
	"bury a ready job":     {false, "+0", func(t *testing.T, h *Hand, _ hand.Held) { require.Equal(t, "r", must(h.TryBury("a")).Text(2)) }, `d \d+:{.*"why".*}`, true, false},
	"cancel scheduled":     {false, "+60000", func(t *testing.T, h *Hand, _ hand.Held) { require.Equal(t, "s", must(h.TryCancel("a")).Text(2)) }, `c `, false, false},
	"cancel ready":         {false, "+0", func(t *testing.T, h *Hand, _ hand.Held) { require.Equal(t, "r", must(h.TryCancel("a")).Text(2)) }, `c `, false, false},
	"cancel running":       {true, "+0", func(t *testing.T, h *Hand, _ hand.Held) { require.Equal(t, "u", must(h.TryCancel("a")).Text(2)) }, `c `, false, false},
	"replace scheduled":    {false, "+60000", sending("r+0"), `r `, false, false},
	"replace running":      {true, "+0", sending("r+60000"), `r `, false, false},
	"replace ready":        {false, "+0", sending("w+0"), `r `, false, false},
	"again":                {true, "+0", settling(settle.Row{Verb: settle.Again}), `(?s)f .+`, false, true},
	"again later":          {true, "+0", settling(settle.Row{Verb: settle.Again, Delay: time.Minute}), `(?s)f .+`, false, true},
	"the next stage":       {true, "+0", settling(settle.Row{Verb: settle.Pass, Delay: time.Minute}), `(?s)f .+`, false, true},
	"debounce":             {false, "+60000", sending("b+1000/5000"), `(?s)f .+`, false, true},
	"latest":               {false, "+0", sending("l+1000"), `(?s)f .+`, false, true},
	"retry":                {true, "+0", settling(settle.Row{Verb: settle.Retry, Delay: time.Minute, Failure: hand.Failed}), ``, true, true},
	"snooze":               {true, "+0", settling(settle.Row{Verb: settle.Snooze, Delay: time.Minute}), ``, true, true},
	"give back":            {true, "+0", settling(settle.Row{Verb: settle.Return}), ``, true, true},
	"hold":                 {true, "+0", settling(settle.Row{Verb: settle.Hold, Delay: time.Hour, Err: errTest}), ``, true, true},
	"reschedule": {false, "+60000", func(t *testing.T, h *Hand, _ hand.Held) {
		require.Equal(t, "s", must(h.TryReschedule("a", "+0")).Text(2))
	}, ``, true, true},
	"lapse": {true, "+0", func(t *testing.T, h *Hand, _ hand.Held) {
		h.Hasten(time.Hour)
		_, reclaimed := h.Promote()
		require.Equal(t, 1, reclaimed)
	}, ``, true, true},
	"a schedule cancels it": {false, "slot", func(t *testing.T, h *Hand, _ hand.Held) {
		h.fireSlot(1)
	}, `c `, false, false},
	"its schedule is removed": {false, "slot", func(t *testing.T, h *Hand, _ hand.Held) {
		require.NoError(t, h.client().Unschedule(t.Context(), h.Keys.Topic, "every"))
	}, `c `, false, false},
}

// fireSlot fires a slot of the schedule "every" that came some ms ago.
func (h *Hand) fireSlot(ago int64) {
	h.T.Helper()
	slot := h.RDB.Time(h.T.Context()).Val().UnixMilli() - ago
	require.NoError(h.T, h.RDB.ZAdd(h.T.Context(), h.Keys.Slots, redis.Z{Score: float64(slot), Member: "every"}).Err())
	hand.NewTimer(h.RDB, h.Keys, slog.New(slog.DiscardHandler)).Firer.Fire(h.T.Context(), 1, 0)
}

// stageEnding makes the job that an ending ends, and returns its ID.
func stageEnding(t *testing.T, h *Hand, e ending) (id string, held hand.Held) {
	t.Helper()
	if e.due == "slot" {
		require.NoError(t, h.client().Schedule(t.Context(), h.Keys.Topic, "every", delayq.Every(time.Minute), nil, delayq.OverlapCancelPrevious))
		h.fireSlot(200)
		ids, err := h.RDB.HKeys(t.Context(), h.Keys.Pool).Result()
		require.NoError(t, err)
		require.Len(t, ids, 1, "it is fired")
		return ids[0], hand.Held{ID: ids[0], Record: h.RDB.HGet(t.Context(), h.Keys.Pool, ids[0]).Val()}
	}
	h.Put(e.due, "a")
	if e.running {
		return "a", h.TakeOne("a")
	}
	return "a", hand.Held{ID: "a", Record: h.RDB.HGet(t.Context(), h.Keys.Pool, "a").Val()}
}

// notedRuns numbers the runs that say how far they have come.
var notedRuns atomic.Int64

// noted gives a job a note with progress and two steps, as a run of its own.
func (h *Hand) noted(held hand.Held) {
	h.T.Helper()
	if held.Fence == "" { // it is not running now
		require.NoError(h.T, h.RDB.ZAdd(h.T.Context(), h.Keys.Leases, redis.Z{Score: 1, Member: held.ID}).Err())
		defer h.RDB.ZRem(h.T.Context(), h.Keys.Leases, held.ID)
		held.Fence = "1"
	}
	progress := fmt.Sprintf("1 2 %d 1 half", notedRuns.Add(1))
	require.Equal(h.T, "ooo", h.Note(held, hand.Note{Progress: progress}, hand.Note{Step: "pay1", Result: "42"}, hand.Note{Step: "pay2"}))
}

// Whatever ends an incarnation of a job, those who wait for it are told how, in time and once. What
// does not end it says nothing, and leaves its notes.
func TestEachEndTellsWhoWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, e := range endings {
			t.Run(name, func(t *testing.T) {
				h := NewHand(t, rdb, redistest.Prefix(t), "topic")
				id, held := stageEnding(t, h, e)
				me, other := h.ear("me"), h.ear("other")
				nonce := me.waits(id)
				require.Equal(t, nonce, other.waits(id))
				h.noted(held)
				require.Equal(t, []string{id}, me.heard(), "of the progress")
				require.ElementsMatch(t, []string{"w" + id, "p" + id, "s pay1", "s pay2"}, h.notes())
				require.Equal(t, []string{id}, other.heard())

				e.do(t, h, held)
				want, left := []string{id}, []string{"e"}
				if e.silent {
					want, left = nil, []string{"w" + id}
				}
				if e.silent && e.outcome != "" {
					left = append(left, "e")
				}
				if strings.HasPrefix(e.outcome, "d") {
					left = append(left, "w"+id) // it can be revived
				}
				if e.keeps {
					left = append(left, "p"+id, "s pay1", "s pay2")
				}
				require.Equal(t, want, me.heard(), "told")
				require.Equal(t, want, other.heard(), "told")
				require.Regexp(t, `^(?s)`+e.outcome+`$`, me.outcome(id, nonce))
				if !e.silent && strings.HasPrefix(e.outcome, "d") {
					require.Regexp(t, `^(?s)`+e.outcome+`$`, me.outcome(id, ""), "whoever asks now")
				}
				require.ElementsMatch(t, left, h.notes())
				require.EqualValues(t, 2*len(want), h.counted("awaited"))
			})
		}
	})
}
