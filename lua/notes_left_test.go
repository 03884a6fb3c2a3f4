package lua_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A release that knows no waiters ends a job: they find that it is gone, and nothing says how. What
// the run has noted does not count, and prune deletes it.
func TestEndsOfTheFirstRelease(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do     func(h *Hand, held hand.Held) (script.Reply, error)
		answer string
	}{
		"ack": {func(h *Hand, held hand.Held) (script.Reply, error) {
			return h.Run(ofFirst(script.Ack), h.Series.Next(), "acked", held.Fence, 0, 1, held.ID)
		}, "p"},
		"cancel": {func(h *Hand, _ hand.Held) (script.Reply, error) {
			return h.Run(ofFirst(script.Cancel), h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic, "a", "")
		}, "p"},
		"replace": {func(h *Hand, _ hand.Held) (script.Reply, error) {
			head, tail := h.Record("+0", 0)
			return h.Run(ofFirst(script.Replace), h.Series.Next(), 1000, script.ControlChannel(h.Prefix()), h.Keys.Topic, "a", head, tail, "r+0")
		}, "h"},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				me := h.ear("me")
				h.Put("+0", "a")
				nonce, held := me.waits("a"), h.TakeOne("a")
				h.noted(held)
				require.Len(t, me.heard(), 1)
				require.NoError(t, just(test.do(h, held)))
				require.Empty(t, me.heard())
				require.Equal(t, test.answer, h.Wait("me", "a", nonce, hand.Register), "unknown")
				if test.answer == "p" {
					require.Equal(t, "g", h.Wait("me", "a", "", hand.Look))
					h.Put("+0", "a")
				}
				require.Equal(t, "r", h.Wait("me", "a", "", hand.Look)[9:], "without the note")
				require.ElementsMatch(t, []string{"wa", "pa", "s pay1", "s pay2"}, h.notes())
				h.aged(-time.Hour, "me")
				h.pruneNotes()
				h.pruneNotes() // of the steps of notes that are gone by then
				require.Empty(t, h.notes())
				require.Equal(t, "o", h.Ack(h.TakeOne("a")))
			})
		})
	}
}

// pruneNotes calls prune until it has looked at all notes.
func (h *Hand) pruneNotes() (calls int) {
	h.T.Helper()
	for {
		r, err := h.TryPrune(1_000_000, time.Hour, 500)
		require.NoError(h.T, err)
		if calls++; h.RDB.HGet(h.T.Context(), h.Keys.Sizes, "notes").Val() == "" {
			require.Zero(h.T, r.Number(10))
			return calls
		}
		require.Less(h.T, calls, 10_000)
	}
}

// Prune deletes what is left over in the notes, and nothing else.
func TestPruneOfNotes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx, now := t.Context(), h.RDB.Time(t.Context()).Val().UnixMilli()
		h.Put("+0", "a", "b")
		me := h.ear("me")
		me.waits("a")
		held := h.Take(2, time.Hour)
		h.noted(held[0])
		require.Equal(t, "o", h.Note(held[0], hand.Note{Step: "1:a", Result: "x"}))
		require.Equal(t, "o", h.Note(held[1], hand.Note{Step: "step", Result: "x"}))
		require.Equal(t, "o", h.Bury(held[1]))
		kept := must(h.RDB.HGetAll(ctx, h.Keys.Notes).Result())
		kept["e55555555"] = fmt.Sprintf("c %d ", now+50_000)
		kept["e11111111"] = fmt.Sprintf("c %d ", now-50_000)
		kept["x later"] = "a field of a later release"
		entry := func(age int64, name string) string {
			e := "12345678" + itoa13(now-age) + name
			return fmt.Sprintf("%d:%s", len(e), e)
		}
		kept["wx"] = entry(90_000, "gone") + entry(10_000, "waits")
		nonce := held[0].Nonce()
		for field, value := range map[string]string{
			"e22222222": fmt.Sprintf("c %d ", now-70_000), "e33333333": "?", "wy": entry(90_000, "gone"), "wz": "?",
			"pnobody": "123456786:4:step", "s6:nobody12345678step": "x", "s1:a" + nonce + "unknown": "x", "s1:a12345678pay1": "x", "s": "x",
			"s1:b" + nonce + "step": "x",
			// Of a clock that was set back; and what looks like a step in a text or a name.
			"e44444444": fmt.Sprintf("c %d ", now+70_000), "wv": entry(-70_000, "ahead"),
			"s1:a" + nonce + "half": "x", "s1:a" + nonce + "a": "x",
		} {
			require.NoError(t, h.RDB.HSet(ctx, h.Keys.Notes, field, value).Err())
		}
		for field, value := range kept {
			require.NoError(t, h.RDB.HSet(ctx, h.Keys.Notes, field, value).Err())
		}
		h.pruneNotes()
		h.pruneNotes() // of the steps of notes that are gone by then
		require.Equal(t, kept, must(h.RDB.HGetAll(ctx, h.Keys.Notes).Result()))

		// A dead job takes its notes with it.
		_, err := h.TryPrune(0, time.Hour, 500)
		require.NoError(t, err)
		require.NotContains(t, h.notes(), "pb")
		require.NotContains(t, h.notes(), "s step")
		require.Contains(t, h.notes(), "pa")
	})
}

// However many notes there are, a call of prune looks at few, and asks to be called again only if
// many are left over.
func TestPruneOfManyNotes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		n, most := redistest.Size(5000), int64(1100)
		if strings.HasSuffix(t.Name(), "miniredis") {
			most = int64(n) // its HSCAN returns all fields at once, whatever the COUNT
		}
		now := h.RDB.Time(t.Context()).Val().UnixMilli()
		fill := func(kind string, at int64) {
			for some := range slices.Chunk(named(kind, n), 500) {
				var values []any
				for _, name := range some {
					values = append(values, "e"+name, fmt.Sprintf("c %d ", at))
				}
				require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, values...).Err())
			}
		}
		fill("old", now-100_000)
		left, asked := int64(n), 0
		for more := int64(1); more == 1; asked++ {
			r, err := h.TryPrune(100, time.Hour, 500)
			require.NoError(t, err)
			more = r.Number(10)
			after := h.RDB.HLen(t.Context(), h.Keys.Notes).Val()
			require.LessOrEqual(t, left-after, most, "of one call")
			left = after
		}
		require.Zero(t, left)
		require.GreaterOrEqual(t, asked, n/int(most))
		fill("new", now)
		r, err := h.TryPrune(100, time.Hour, 500)
		require.NoError(t, err)
		require.Zero(t, r.Number(10), "it is not in vain to wait for the next round")
		require.EqualValues(t, n, h.RDB.HLen(t.Context(), h.Keys.Notes).Val())
	})
}

// A check reports notes of no job, and a repair removes them.
func TestCheckOfNotes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b")
		me := h.ear("me")
		me.waits("a")
		held := h.Take(2, time.Hour)
		h.noted(held[0])
		found, _ := h.look(true)
		require.Empty(t, found)
		kept := h.notes()
		for field, value := range map[string]string{
			"pnobody": "123456780:", "s6:nobody12345678step": "x", "pb": "123456786:4:step",
		} {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, field, value).Err())
		}
		want := map[delayq.FindingKind][]string{delayq.FindingOrphan: {"all:notes b", "all:notes nobody", "all:notes nobody"}}
		found, mended := h.look(false)
		require.Equal(t, want, found)
		require.Zero(t, mended)
		found, mended = h.look(true)
		require.Equal(t, want, found)
		require.Equal(t, 3, mended)
		require.ElementsMatch(t, kept, h.notes())
		found, _ = h.look(true)
		require.Empty(t, found)
	})
}

// Reports of a run that come in another order change nothing, nor do those that come again. Those
// of another run count. A note whose steps cannot be read is left alone, by those who write, by
// prune and by a repair.
func TestNotesInDisorder(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		held := h.TakeOne("a")
		me := h.ear("me")
		me.waits("a")
		for _, c := range []struct {
			report, want string
			told         bool
		}{
			{"1 9 7 2 b", "1 9 7 2 b", true}, {"0 9 7 1 a", "1 9 7 2 b", false}, {"5 9 7 2 again", "1 9 7 2 b", false},
			{"2 9 7 10 c", "2 9 7 10 c", true}, {"3 9 7 9 d", "2 9 7 10 c", false}, {"0 0 6 1 ", "0 0 6 1 ", true},
		} {
			require.Equal(t, "oo", h.Note(held, hand.Note{Progress: c.report}, hand.Note{Step: "pays", Result: "42"}))
			note := h.RDB.HGet(t.Context(), h.Keys.Notes, "pa").Val()
			require.Regexp(t, `^6:4:pays \d{13} `+c.want+`$`, note[8:])
			require.Equal(t, c.told, len(me.heard()) > 0, c.report)
		}
		damaged := held.Nonce() + "x:4:pays 1 2 3 4 5 six"
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, "pa", damaged, "s1:a"+held.Nonce()+"more", "x").Err())
		require.Equal(t, "DD", h.Note(held, hand.Note{Progress: "9 9 7 11 e"}, hand.Note{Step: "pays", Result: "43"}))
		want := map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"all:notes a"}}
		for range 2 {
			found, mended := h.look(true)
			require.Equal(t, want, found)
			require.Zero(t, mended)
			h.pruneNotes()
		}
		require.Equal(t, damaged, h.RDB.HGet(t.Context(), h.Keys.Notes, "pa").Val())
		require.ElementsMatch(t, []string{"wa", "pa", "s pays", "s more"}, h.notes())
		for _, rest := range []string{" ", " 1 2 3 4 5", " 1 2 x 4 5 six", " 1 2 3 4 5 " + strings.Repeat("x", 257)} {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, "pa", held.Nonce()+"12:4:pays4:more "+rest[1:]).Err())
			found, mended := h.look(true)
			require.Equal(t, want, found)
			require.Equal(t, 1, mended)
			require.Equal(t, held.Nonce()+"12:4:pays4:more", h.RDB.HGet(t.Context(), h.Keys.Notes, "pa").Val())
		}
	})
}

// The note of a job whose record is gone goes when its lease runs out. RemoveTopic leaves nothing.
func TestNotesOfLostJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		held := h.TakeOne("a")
		h.noted(held)
		require.NoError(t, h.RDB.HDel(t.Context(), h.Keys.Pool, "a").Err())
		h.Hasten(time.Hour)
		h.Promote()
		require.Empty(t, h.notes())
		h.Put("+0", "a")
		me := h.ear("me")
		me.waits("a")
		require.Equal(t, "o", h.Ack(h.TakeOne("a")))
		require.NotEmpty(t, h.notes())
		require.NoError(t, h.client().RemoveTopic(t.Context(), h.Keys.Topic))
		require.Empty(t, h.notes())
	})
}

// A key of a wrong type in place of the notes keeps no job from ending.
func TestEndsWithoutNotes(t *testing.T) {
	t.Parallel()
	for name, e := range endings {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				id, held := stageEnding(t, h, e)
				mend := h.Deface("all:notes")
				e.do(t, h, held)
				require.NoError(t, just(h.TryPrune(0, time.Hour, 10)))
				mend()
				if !e.keeps {
					require.NotEqual(t, held.Record, h.RDB.HGet(t.Context(), h.Keys.Pool, id).Val(), "it has ended")
				}
			})
		})
	}
}

// Whoever has a job's lease notes what it likes, and nobody else.
func TestNotesOfARun(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		held := h.TakeOne("a")
		foreign := held
		foreign.Fence = "1"
		require.Equal(t, "l", h.Note(foreign, hand.Note{Step: "no"}))
		later := held
		later.Fence += " 1"
		require.Equal(t, "o", h.Note(later, hand.Note{Progress: "3 0 1 1 5:a\nb"}), "with an extension that is not confirmed")
		names := named("step", 101)
		for _, name := range names[:100] {
			require.Equal(t, "o", h.Note(held, hand.Note{Step: name, Result: name + "!"}))
		}
		require.Equal(t, "v", h.Note(held, hand.Note{Step: names[100], Result: "too many"}))
		require.Equal(t, "o", h.Note(held, hand.Note{Step: names[7], Result: "again"}))
		recall := func(bytes int, names ...string) (string, []string) {
			r, err := h.TryRecall(held, bytes, names...)
			require.NoError(t, err)
			return r.Text(2), r.List(3).Texts()
		}
		note, results := recall(script.CallBytes)
		require.Regexp(t, `^1300:10:step 0000010:step 00001.* \d{13} 3 0 1 1 5:a\nb$`, note[8:])
		require.Len(t, results, 100)
		require.Equal(t, "step 00000!", results[0])
		require.Equal(t, "again", results[7])
		_, results = recall(script.CallBytes, names[3], "unknown", names[4])
		require.Equal(t, []string{"step 00003!", "", "step 00004!"}, results)
		_, results = recall(1, names[3], names[4])
		require.Equal(t, []string{"step 00003!"}, results, "one in any case")
		_, results = recall(25)
		require.Len(t, results, 2)

		letter := func(held hand.Held) string {
			r, err := h.TryRecall(held, script.CallBytes)
			require.NoError(t, err)
			return r.Text(4)
		}
		require.Equal(t, "o", letter(held))
		require.Equal(t, "o", letter(foreign), "there is a note")

		// A job with the same ID begins anew.
		require.Equal(t, "o", h.Letters([]hand.Held{held}, settle.Row{Verb: settle.Ack}))
		require.Equal(t, "l", h.Note(held, hand.Note{Progress: "4 4 1 2 "}))
		require.Empty(t, h.notes())
		require.Equal(t, "l", letter(held), "it is gone")
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Notes, "pa", note, "s1:a"+held.Nonce()+names[0], "x").Err()) // by v0.1.0
		h.Put("+0", "a")
		held = h.TakeOne("a")
		note, results = recall(script.CallBytes)
		require.Empty(t, note)
		require.Empty(t, results)
		require.Equal(t, "o", letter(held), "it has noted nothing")
		foreign = held
		foreign.Fence = "1"
		require.Equal(t, "l", letter(foreign), "another run has it")
		require.Equal(t, "o", h.Note(held, hand.Note{Step: "first", Result: "1"}))
		note, results = recall(script.CallBytes)
		require.Equal(t, held.Nonce()+"7:5:first", note)
		require.Equal(t, []string{"1"}, results)
		require.ElementsMatch(t, []string{"pa", "s irst"}, h.notes())
	})
}
