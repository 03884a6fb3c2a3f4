package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// A plan is enqueued, looked at, explained, and exported and imported as it is.
func TestPlansByHand(t *testing.T) {
	inWorld(t, func(w *world) {
		w.ok("enqueue", "plans", "--id", "anna", "--at-each", "+23d,+28d", "--at-each", "+30d", "--retention", "1h")
		out := w.ok("job", "plans", "anna")
		require.Regexp(w, `(?m)^stage +1 of 3$`, out)
		require.Regexp(w, `(?m)^ +1 +\S+ \S+ +next `, out)
		require.Regexp(w, `(?m)^ +3 +\S+ \S+ +left `, out)
		require.Contains(w, w.ok("explain", "plans", "anna"), "stage 1 of 3 is due at")

		given := time.Now()
		_, err := w.Client.Enqueue(w.Context(), "plans", "late", nil, delayq.ProcessAtEach(given.Add(-time.Minute), given.Add(time.Hour)))
		require.NoError(w, err)
		line := `{"schema":"delayq.export/1","topic":"plans","id":"failed","state":"dead","due":"2000-01-01T00:00:00.000Z","enqueued":"2000-01-01T00:00:00.000Z","attempt":1,` +
			`"stage":1,"stages":2,"plan":[{"due":"2000-01-01T00:00:00.000Z","over":true,"failed":"2000-01-01T00:00:01.000Z","attempt":3,"kind":"error","message":"no"},{"due":"2000-01-02T00:00:00.000Z","over":true}]}`
		w.stdin = w.ok("export", "plans") + line + "\n"
		w.ok("import", "--topic", "copies", "--revive")
		for _, id := range []string{"anna", "failed"} {
			info, err := w.Client.Get(w.Context(), "copies", id)
			require.NoError(w, err)
			if id == "failed" {
				require.Equal(w, delayq.StateReady, info.State)
				require.Equal(w, "no", info.Plan[0].Message)
				continue
			}
			was, err := w.Client.Get(w.Context(), "plans", id)
			require.NoError(w, err)
			require.Equal(w, was.Plan, info.Plan)
			require.True(w, was.Due.Equal(info.Due))
		}
		r := w.do("enqueue", "plans", "--at-each", "+1d", "--in", "1h")
		require.Equal(w, exitUsage, r.code)
		require.Contains(w, r.err, "--at-each has all due times")
	})
}
