package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// With --state, a named job is acted on only in that state, also in a dry run.
func TestActOnNamedInAState(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, args := range [][]string{
			{"cancel", "order:cancel", "order-1", "--state", "dead"},
			{"cancel", "order:cancel", "order-1", "--state", "dead", "--dry-run"},
			{"cancel", "mail:welcome", "dead-1", "--state", "scheduled"},
			{"purge", "mail:welcome", "dead-1", "--state", "done"},
			{"purge", "order:cancel", "order-1"},
			{"reschedule", "order:cancel", "order-1", "--in", "1m", "--state", "ready"},
		} {
			r := w.do(args...)
			require.Equal(w, exitConflict, r.code, "%v: %s", args, r.err)
			require.Regexp(w, `the job is (scheduled|dead)`, r.out+r.err, args)
		}
		require.Equal(w, delayq.StateScheduled, w.State("order:cancel", "order-1"))
		require.Equal(w, delayq.StateDead, w.State("mail:welcome", "dead-1"))
		r := w.do("cancel", "order:cancel", "nobody", "--state", "dead")
		require.Equal(w, exitNotFound, r.code, r.err)
		r = w.do("reschedule", "order:cancel", "order-1", "--by", "1h", "--state", "scheduled")
		require.Equal(w, exitUsage, r.code, r.err)

		for _, args := range [][]string{
			{"cancel", "order:cancel", "order-1", "--state", "scheduled"},
			{"cancel", "mail:welcome", "dead-1", "--state", "dead"},
			{"purge", "mail:welcome", "dead-2", "--state", "dead"},
			{"revive", "mail:welcome", "dead-2", "--state", "dead"},
		} {
			r := w.do(args...)
			if args[0] == "revive" { // it is gone
				require.Equal(w, exitNotFound, r.code, r.err)
				continue
			}
			require.Zero(w, r.code, "%v: %s%s", args, r.out, r.err)
			_, err := w.Client.Get(w.Context(), args[1], args[2])
			require.ErrorIs(w, err, delayq.ErrNotFound, args)
		}
	})
}

// What operators store is in the audit, with its due time: by enqueue, by a task and by an import.
func TestAuditHasWhatOperatorsStore(t *testing.T) {
	inWorld(t, func(w *world) {
		newest := func() delayq.AuditEntry {
			list, err := w.Inspector.Audit(w.Context(), 1)
			require.NoError(w, err)
			require.Len(w, list, 1)
			return list[0]
		}
		w.ok("enqueue", "mail:welcome", "--id", "new", "--in", "1h")
		e := newest()
		require.Equal(w, "alice enqueue mail:welcome new", e.Actor+" "+e.Action+" "+e.Topic+" "+e.ID)
		info, err := w.Client.Get(w.Context(), "mail:welcome", "new")
		require.NoError(w, err)
		require.Equal(w, "due "+info.Due.UTC().Format(time.RFC3339Nano), e.Filter)
		r := w.do("enqueue", "mail:welcome", "--id", "new", "--in", "1h")
		require.Equal(w, exitConflict, r.code)
		require.Equal(w, e, newest(), "it was not stored")

		w.ok("task", "add", "once", "--in", "1h", "--command", "report")
		require.Equal(w, "enqueue command once", newest().Action+" "+newest().Topic+" "+newest().ID)

		w.stdin = w.ok("export", "order:cancel")
		w.ok("import", "--topic", "other", "--dry-run")
		require.Equal(w, "enqueue", newest().Action, "a dry run stores nothing")
		w.ok("import", "--topic", "other")
		e = newest()
		require.Equal(w, "import other", e.Action+" "+e.Topic)
		require.Equal(w, int64(4), e.Count)
		w.ok("import", "--topic", "other")
		require.Equal(w, e, newest(), "all are duplicates")
	})
}

// What an act has changed, and how it was, is one row of the audit, as text and as JSON.
func TestAuditHasWhatWasBefore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.ok("limits", "order:cancel", "--running", "5")
		w.ok("limits", "order:cancel", "--running", "7")
		w.ok("reschedule", "order:cancel", "order-1", "--in", "2h")
		text := w.ok("audit")
		require.Regexp(w, `set limits +order:cancel +1 +running 7 +running 5\n`, text)
		require.Regexp(w, `set limits +order:cancel +1 +running 5 +none\n`, text)
		require.Regexp(w, `reschedule +order:cancel +1 +"order-1" due in 2h0m0s +"order-1" scheduled, due 20\S+\n`, text)
		require.Contains(w, w.ok("audit", "-o", "jsonl"), `"filter":"running 7","was":"running 5"`)
	})
}
