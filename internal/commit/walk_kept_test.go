package commit

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/script"
)

// A get asks the generations after a closed place that keeps a done job, and says what the latest
// one knows. An unfinished job comes before all done ones. If Redis has lost the latest map, or the
// home has left the map, the done job is found all the same.
func TestWalkPassesDoneJobs(t *testing.T) {
	eachParted(t, func(t *testing.T, rdb redis.UniversalClient, prefix string, resize func(n int, byKey bool)) {
		ctx, c := t.Context(), newCaller(rdb, prefix)
		home := script.NewKeys(prefix, "topic")
		keep := func(place string) {
			require.NoError(t, rdb.HSet(ctx, script.NewKeys(prefix, place).Results, "x", "kept in "+place).Err())
		}
		in := func(g part.Generation) string { return g.Names("topic")[g.Index("x", "")] }
		get := func(c *caller) (record, kept string) {
			t.Helper()
			list := []*Op{{Kind: Get, Topic: "topic", ID: "x"}, {Kind: Get, Topic: "topic", ID: "none"}}
			require.NoError(t, c.doAll(ctx, list, nil))
			require.True(t, noJob(list[1].Row))
			lone := &Op{Kind: Get, Topic: "topic", ID: "x"}
			require.NoError(t, c.Do(ctx, lone))
			require.Equal(t, list[0].Row, lone.Row)
			require.Zero(t, lone.Letter)
			return lone.Row[rowRecord], lone.Row[rowResult]
		}
		says := func(want string) {
			t.Helper()
			for _, c := range []*caller{c, newCaller(rdb, prefix)} {
				record, kept := get(c)
				require.Empty(t, record)
				require.Equal(t, want, kept)
			}
		}
		keep("topic")
		says("kept in topic")
		resize(3, true)
		says("kept in topic")
		first := part.Generation{Number: 1, Parts: 3, ByKey: true}
		keep(first.Names("topic")[2])
		says("kept in " + first.Names("topic")[2])
		resize(2, false)
		says("kept in " + first.Names("topic")[2])
		second := in(part.Generation{Number: 2, Parts: 2})
		keep(second)
		says("kept in " + second)

		before := len(c.log.calls())
		_, _ = get(c)
		require.NotContains(t, c.log.calls()[before:], "part_map 0", "the last generation is open")

		require.NoError(t, rdb.Del(ctx, script.NewKeys(prefix, second).Results).Err())
		require.NoError(t, c.Do(ctx, job{when: "+3600000"}.store(t, "topic", "x")))
		for _, c := range []*caller{c, newCaller(rdb, prefix)} {
			record, _ := get(c)
			require.NotEmpty(t, record)
		}
		require.NoError(t, rdb.Del(ctx, script.NewKeys(prefix, second).Pool).Err())
		require.NoError(t, rdb.HSet(ctx, home.Parts, "map", "2:2").Err())
		_, kept := get(newCaller(rdb, prefix))
		require.Equal(t, "kept in topic", kept)
		known := newCaller(rdb, prefix)
		_, err := known.ReadMap(ctx, "topic")
		require.NoError(t, err)
		_, kept = get(known)
		require.Equal(t, "kept in topic", kept, "the home has left the map")

		require.NoError(t, rdb.HSet(ctx, home.Parts, "map", "0:1 1:3k").Err())
		_, kept = get(newCaller(rdb, prefix))
		require.Equal(t, "kept in "+first.Names("topic")[2], kept, "the latest map is lost")
	})
}

// In a generation by key the unfinished job counts, and then a done one of an open place. If
// another place is closed to the ID, the get goes on.
func TestGetOfAllPlacesOfAGeneration(t *testing.T) {
	t.Parallel()
	const live, kept, none = "live", "kept", ""
	place := func(what string, letter byte) *Op {
		o := &Op{Kind: Get, Row: make([]string, rowColumns), Letter: letter, settled: true}
		switch what {
		case live:
			o.Row[rowRecord] = live
		case kept:
			o.Row[rowResult] = kept
		}
		return o
	}
	const closed = script.LetterElsewhere
	failed := place(none, 0)
	failed.Err = script.ErrReply
	for name, c := range map[string]struct {
		twins     []*Op
		want      string
		elsewhere bool
		err       error
	}{
		"live":                   {[]*Op{place(kept, 0), place(none, closed), place(live, 0), failed}, live, false, nil},
		"done":                   {[]*Op{place(none, 0), place(kept, 0), place(none, 0)}, kept, false, nil},
		"done and closed":        {[]*Op{place(none, 0), place(kept, 0), place(none, closed)}, kept, true, nil},
		"done in a closed place": {[]*Op{place(none, closed), place(kept, closed), place(none, 0)}, kept, true, nil},
		"failed":                 {[]*Op{place(kept, closed), failed, place(none, 0)}, none, false, script.ErrReply},
		"closed":                 {[]*Op{place(none, 0), place(none, closed)}, none, true, nil},
		"none":                   {[]*Op{place(none, 0), place(none, 0)}, none, false, nil},
	} {
		o := &Op{Kind: Get}
		o.join(c.twins)
		require.ErrorIs(t, o.Err, c.err, name)
		require.Equal(t, c.want, o.Row[rowRecord]+o.Row[rowResult], name)
		require.Equal(t, c.elsewhere, o.elsewhere(), name)
	}
}
