package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Every call that reads a job has its priority as it is now: as it was given, or as SetPriority has
// changed it. A job that replaces it has its own, and a job without a key has none.
func TestPriorityIsRead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		put := func(id string, opts ...delayq.JobOption) {
			_, err := f.Client.Enqueue(ctx, "t", id, nil, append(opts, delayq.ProcessIn(time.Hour), delayq.Replace())...)
			require.NoError(t, err)
		}
		reads := func(id string, want time.Duration) {
			t.Helper()
			one, err := f.Client.Get(ctx, "t", id)
			require.NoError(t, err)
			other, err := f.Inspector.Job(ctx, "t", id)
			require.NoError(t, err)
			why, err := f.Inspector.Explain(ctx, "t", id)
			require.NoError(t, err)
			found, err := f.Inspector.Find(ctx, id)
			require.NoError(t, err)
			page, err := f.Inspector.Jobs(ctx, delayq.Query{Topic: "t", State: one.State, IDPrefix: id})
			require.NoError(t, err)
			for _, info := range []*delayq.JobInfo{one, other, why.Job, found[0], page.Jobs[0]} {
				require.Equal(t, want, info.Priority, id)
			}
		}
		put("given", delayq.Key("k"), delayq.Priority(time.Hour))
		put("behind", delayq.Key("k"), delayq.Priority(-time.Minute))
		put("none", delayq.Key("k"))
		put("plain")
		reads("given", time.Hour)
		reads("behind", -time.Minute)
		reads("none", 0)
		reads("plain", 0)
		for _, id := range []string{"given", "behind", "none"} {
			require.NoError(t, f.Client.SetPriority(ctx, "t", id, 10*time.Minute))
			reads(id, 10*time.Minute)
		}
		require.NoError(t, f.Client.SetPriority(ctx, "t", "given", 0))
		reads("given", 0)
		put("none", delayq.Key("k"), delayq.Priority(5*time.Second))
		reads("none", 5*time.Second)
		require.NoError(t, f.Client.Bury(ctx, "t", "behind", "a test"))
		reads("behind", 10*time.Minute)
		require.NoError(t, f.Client.Revive(ctx, "t", "behind"))
		reads("behind", 10*time.Minute)

		// A copy has it too.
		info, err := f.Client.Get(ctx, "t", "behind")
		require.NoError(t, err)
		_, err = f.Client.Enqueue(ctx, "other", "copy", nil, info.Options()...)
		require.NoError(t, err)
		copied, err := f.Client.Get(ctx, "other", "copy")
		require.NoError(t, err)
		require.Equal(t, 10*time.Minute, copied.Priority)

		// A plain job needs no places, so a key of a wrong type hides none.
		keyed := f.Prefix + ":{t}:keyed"
		require.NoError(t, f.RDB.Del(ctx, keyed).Err())
		require.NoError(t, f.RDB.Set(ctx, keyed, "a slip", 0).Err())
		reads("plain", 0)
	})
}
