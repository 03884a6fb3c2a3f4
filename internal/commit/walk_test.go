package commit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

var fewSettings = Settings{Pauses: 16, KeyLimits: 100, HeldKeys: 100, ByID: func(string, string) error { return nil }}

// eachParted runs a test on each backend, with a function that gives the topic other partitions.
func eachParted(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient, prefix string, resize func(n int, byKey bool))) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		test(t, rdb, prefix, func(n int, byKey bool) {
			t.Helper()
			_, err := newCaller(rdb, prefix).Resize(t.Context(), "topic", part.Generation{Parts: n, ByKey: byKey}, fewSettings)
			require.NoError(t, err)
		})
	})
}

// A client that does not know the partitions learns them when it needs them, and then makes one
// call for each job.
func TestWalkLearnsTheMap(t *testing.T) {
	eachParted(t, func(t *testing.T, rdb redis.UniversalClient, prefix string, resize func(n int, byKey bool)) {
		ctx, c := t.Context(), newCaller(rdb, prefix)
		put := func(id string) (calls []string, letter byte) {
			before := len(c.log.calls())
			o := job{when: "+3600000"}.store(t, "topic", id)
			require.NoError(t, c.Do(ctx, o))
			return c.log.calls()[before:], o.Letter
		}
		calls, letter := put("a")
		require.Equal(t, []string{"enqueue 1"}, calls)
		require.EqualValues(t, script.LetterStored, letter)
		resize(3, false)
		calls, letter = put("b")
		require.Equal(t, []string{"enqueue 1", "part_map 0", "enqueue 1"}, calls)
		require.EqualValues(t, script.LetterStored, letter)
		calls, _ = put("c")
		require.Equal(t, []string{"enqueue 1", "enqueue 1"}, calls, "the home has a job yet")
		_, letter = put("a")
		require.EqualValues(t, script.LetterScheduled, letter, "where it is")

		require.NoError(t, c.Do(ctx, &Op{Kind: Cancel, Topic: "topic", ID: "a"}))
		home := script.NewKeys(prefix, "topic")
		require.NoError(t, rdb.HSet(ctx, home.Parts, "map", "1:3").Err())
		_, err := c.ReadMap(ctx, "topic")
		require.NoError(t, err)
		calls, _ = put("d")
		require.Equal(t, []string{"enqueue 1"}, calls)
	})
}

// A job that is nowhere is looked for at home at last, where an earlier release would have stored
// it. A new job has no place if Redis has lost the latest map.
func TestWalkEnds(t *testing.T) {
	eachParted(t, func(t *testing.T, rdb redis.UniversalClient, prefix string, resize func(n int, byKey bool)) {
		ctx, c := t.Context(), newCaller(rdb, prefix)
		resize(3, false)
		resize(2, false)
		home := script.NewKeys(prefix, "topic")
		require.NoError(t, rdb.HSet(ctx, home.Parts, "map", "1:3 2:2").Err())
		gone := &Op{Kind: Cancel, Topic: "topic", ID: "x"}
		require.NoError(t, c.Do(ctx, gone))
		require.EqualValues(t, script.LetterGone, gone.Letter)
		got := &Op{Kind: Get, Topic: "topic", ID: "x"}
		require.NoError(t, c.Do(ctx, got))
		require.True(t, noJob(got.Row))

		require.NoError(t, rdb.HSet(ctx, home.Parts, "map", "1:3").Err())
		lost := newCaller(rdb, prefix)
		require.ErrorIs(t, lost.Do(ctx, job{}.store(t, "topic", "y")), errClosed)
		gone = &Op{Kind: Cancel, Topic: "topic", ID: "x"}
		require.NoError(t, lost.Do(ctx, gone))
		require.EqualValues(t, script.LetterGone, gone.Letter)

		require.NoError(t, rdb.HSet(ctx, home.Parts, "map", "1:3 1:4").Err())
		require.ErrorContains(t, newCaller(rdb, prefix).Do(ctx, job{}.store(t, "topic", "y")), "damaged")
	})
}

// A call by ID alone asks all partitions of a generation by key, and finds the job in one.
func TestWalkAsksAllByKey(t *testing.T) {
	eachParted(t, func(t *testing.T, rdb redis.UniversalClient, prefix string, resize func(n int, byKey bool)) {
		ctx, c := t.Context(), newCaller(rdb, prefix)
		resize(5, true)
		for i := range 10 {
			o := job{when: "+3600000", opts: record.Options{Key: fmt.Sprint("k", i)}}.store(t, "topic", fmt.Sprint(i))
			require.NoError(t, c.Do(ctx, o))
		}
		list := make([]*Op, 10)
		for i := range list {
			list[i] = &Op{Kind: Get, Topic: "topic", ID: fmt.Sprint(i)}
		}
		require.NoError(t, c.doAll(ctx, list, nil))
		for _, o := range list {
			require.NoError(t, o.Err)
			require.NotEmpty(t, o.Row[rowRecord])
		}
		for i := range 10 {
			o := &Op{Kind: Cancel, Topic: "topic", ID: fmt.Sprint(i)}
			require.NoError(t, c.Do(ctx, o))
			require.EqualValues(t, script.LetterScheduled, o.Letter)
			require.NoError(t, c.Do(ctx, o.twin()))
		}
		place := ""
		found, err := c.Walk(ctx, "topic", "x", func(_ context.Context, k *script.Keys) (Answer, error) {
			return Gone, nil
		})
		require.NoError(t, err)
		require.Equal(t, Gone, found)
		require.Empty(t, place)
	})
}

// A plan that is sent again by another sender, after other Partition calls, says the same, and
// stores nothing twice.
func TestPlansOfPartitions(t *testing.T) {
	eachParted(t, func(t *testing.T, rdb redis.UniversalClient, prefix string, resize func(n int, byKey bool)) {
		ctx := t.Context()
		live := newCaller(rdb, prefix)
		require.NoError(t, live.Do(ctx, job{when: "+3600000"}.store(t, "topic", "j3")))
		resize(3, false)
		require.NoError(t, live.Do(ctx, job{when: "+3600000"}.store(t, "topic", "j4")))
		plan := Plan{Series: "series", Number: 7, Tag: "tag"}
		stored := make([]*Op, 20)
		for i := range stored {
			stored[i] = job{when: "+3600000"}.store(t, "topic", fmt.Sprint("j", i))
		}
		send := func(c *caller) (letters []byte) {
			list := make([]*Op, len(stored), len(stored)+1)
			for i, o := range stored {
				list[i] = o.twin()
				list[i].again()
			}
			list = append(list, &Op{Kind: Cancel, Topic: "topic", ID: "j5"}, &Op{Kind: Cancel, Topic: "topic", ID: "none"})
			lost, err := c.SendPlan(ctx, plan, list, func(int) int { return 10 })
			require.NoError(t, err)
			require.Empty(t, lost)
			for _, o := range list {
				require.NoError(t, o.Err)
				letters = append(letters, o.Letter)
			}
			return letters
		}
		letters := send(newCaller(rdb, prefix))
		require.Equal(t, "nnnssnnnnnnnnnnnnnnnsg", string(letters))
		for i := range 20 {
			if i != 5 {
				require.NoError(t, live.Do(ctx, &Op{Kind: Cancel, Topic: "topic", ID: fmt.Sprint("j", i)}))
			}
		}
		require.Equal(t, letters, send(newCaller(rdb, prefix)))
		resize(4, false)
		require.Equal(t, letters, send(newCaller(rdb, prefix)))
		home := script.NewKeys(prefix, "topic")
		require.NoError(t, rdb.HSet(ctx, home.Parts, "map", "2:4", "past", fmt.Sprintf("0:1@1 1:3@%d", time.Now().UnixMilli())).Err())
		require.Equal(t, letters, send(newCaller(rdb, prefix)))
		require.Equal(t, letters, send(live), "which knows an old map")
		m, err := live.ReadMap(ctx, "topic")
		require.NoError(t, err)
		for _, p := range append(Places(prefix, "topic", m), Places(prefix, "topic", part.Map{{Number: 1, Parts: 3}})...) {
			n, err := rdb.HLen(ctx, p.Keys.Pool).Result()
			require.NoError(t, err)
			require.Zero(t, n, p.Keys.Topic)
		}
	})
}

// The name of a lost call says to which partition it was sent, and a plan with that name goes there
// only.
func TestLostCallOfAPartition(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := t.Context(), redistest.Prefix(t)
		c := newCaller(rdb, prefix)
		place := part.Generation{Number: 1, Parts: 3}.Names("topic")[1]
		o := job{}.store(t, "topic", "a")
		lost, err := c.SendPlan(ctx, Plan{Series: "s", Number: 1, Tag: "x", Call: "t0" + atPlace + place}, []*Op{o}, func(int) int { return 1 })
		require.NoError(t, err)
		require.Empty(t, lost)
		n, err := rdb.HLen(ctx, script.NewKeys(prefix, place).Pool).Result()
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	})
}

// The places of a map share the limits, and so does the home.
func TestPlacesShare(t *testing.T) {
	m := part.Map{{Number: 0, Parts: 1}, {Number: 2, Parts: 2}, {Number: 3, Parts: 2, ByKey: true}}
	var got []string
	for _, p := range Places("p", "topic", m) {
		got = append(got, fmt.Sprint(p.Keys.Topic[len("topic"):min(len(p.Keys.Topic), len("topic#2.0"))], " ", p.Index, "/", p.Of, " ", p.ByID))
	}
	require.Equal(t, []string{" 0/5 false", "#2.0 1/5 true", "#2.1 2/5 true", "#3.0 3/5 false", "#3.1 4/5 false"}, got)
	require.Equal(t, 5, Places("p", "topic", m[1:])[0].Of, "it has the jobs of schedules")
	require.Equal(t, 1, Places("p", "topic", nil)[0].Of)
	require.True(t, slices.IsSortedFunc(Places("p", "topic", m), func(a, b Place) int { return cmp.Compare(a.Index, b.Index) }))
}

// All that a start says of its last step names the partition to which it is sent.
func TestStartsNameThePartition(t *testing.T) {
	t.Parallel()
	of := record.Flow{Topic: "topic", ID: "last", Name: flowName}
	step := func(n int) string {
		member := of
		member.Step = n
		draft, err := record.NewDraft(record.NewNonce(), &record.Options{Retry: -1, Flow: &member}, []byte("payload"))
		require.NoError(t, err)
		p := Parcel{Format: FormatStep, From: "last", Link: member.Link(), Row: Row{ID: fmt.Sprint("s", n), Record: string(draft)}}
		return p.Encode()
	}
	words := append([]any{flowName, "-"}, StartWords([]StartedStep{
		{Topic: "a", Definition: "d0", Parcel: step(0)}, {Topic: "a", Definition: "d1", Parcel: step(1)},
		{Topic: "b", Definition: "d2", Parcel: step(2)}, {Topic: "b", Definition: "d3", Waits: 1, Parcel: step(3)},
	})...)
	before := slices.Clone(words)
	now, err := readdressed(words, "topic#1.2.a")
	require.NoError(t, err)
	require.Equal(t, before, words, "the caller has them yet")
	require.Len(t, now, len(words))
	found := 0
	for i, word := range now {
		text, _ := word.(string)
		if was, _ := words[i].(string); text == was {
			continue
		}
		for _, one := range SplitParcel("0000000000001" + text) {
			p, err := DecodeParcel(one)
			require.NoError(t, err)
			link, err := record.DecodeLink(p.Link)
			require.NoError(t, err)
			job, err := record.Decode(p.Row.Record)
			require.NoError(t, err)
			require.Equal(t, "topic#1.2.a", link.Topic)
			require.Equal(t, link, job.Options.Flow)
			require.Equal(t, "payload", string(job.Payload))
			found++
		}
	}
	require.Equal(t, 4, found)
	for _, damaged := range [][]any{nil, {"a"}, {"a", "b", "c"}, append(slices.Clone(words[:len(words)-1]), 5)} {
		_, err := readdressed(damaged, "topic#1.2.a")
		require.ErrorIs(t, err, errStartWords)
	}
}

// A cancel is to close its ID in all places that can store it. If one of them has no room for the
// tomb, it says so.
func TestTombsOfAllPlaces(t *testing.T) {
	said := func(o *Op, letters, full string) {
		readCancelled(nil, []*Op{o}, script.Reply{"ok", int64(1), letters, full})
	}
	o := &Op{Kind: Cancel, Topic: "topic", ID: "x"}
	said(o, "a", "v")
	o.again()
	said(o, "g", "")
	require.True(t, o.Full)
	o.again()
	require.False(t, o.Full, "it is sent again")
	said(o, "a", "v")
	o.again()
	said(o, "g", "-")
	require.True(t, o.Full)

	o.again()
	twins := []*Op{o.twin(), o.twin(), o.twin()}
	said(twins[0], "g", "")
	said(twins[1], "g", "v")
	said(twins[2], "s", "")
	o.join(twins)
	require.Equal(t, byte(script.LetterScheduled), o.Letter)
	require.True(t, o.Full)
}
