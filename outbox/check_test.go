package outbox_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// kinds returns the tables and the kinds of what a check finds.
func (w *world) kinds() (list []string) {
	w.Helper()
	report, err := w.ob.Check(w.Context(), w.db, time.Minute)
	require.NoError(w, err)
	for _, f := range report.Findings {
		require.NotEmpty(w, f.Text)
		list = append(list, f.Table+": "+string(f.Kind))
	}
	return list
}

func TestCheckFindsWhatHoldsRowsUp(t *testing.T) {
	eachWorld(t, func(w *world) {
		require.Equal(w, []string{"delayq_outbox_shards: no_relay"}, w.kinds(), "no relay has run")
		stop := w.relay(outbox.Horizon(time.Hour))
		w.enqueue(w.db, "twin")
		w.enqueue(w.db, "far", delayq.ProcessIn(48*time.Hour))
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 1 })
		require.Empty(w, w.kinds())

		w.enqueue(w.db, "twin")
		w.left(func(s outbox.Stats) bool { return s.Dead == 1 })
		report, err := w.ob.Check(w.Context(), w.db, time.Minute)
		require.NoError(w, err)
		require.Equal(w, outbox.Stats{Dead: 1, Later: 1}, report.Stats)
		require.Equal(w, []outbox.Finding{{Kind: outbox.FindingDeadRows, Table: "delayq_outbox_dead", Text: "rows that Redis has refused: 1"}}, report.Findings)
		stop()

		w.enqueue(w.db, "waits")
		require.Equal(w, []string{"delayq_outbox_shards: no_relay", "delayq_outbox_dead: dead_rows"}, w.kinds())
		_, err = w.db.Exec("UPDATE delayq_outbox SET made = made - 61000")
		require.NoError(w, err)
		require.Equal(w, []string{"delayq_outbox_shards: no_relay", "delayq_outbox: old_row", "delayq_outbox_dead: dead_rows"}, w.kinds())
		_, err = w.db.Exec("UPDATE delayq_outbox SET shard = 2")
		require.NoError(w, err)
		_, err = w.db.Exec("UPDATE delayq_outbox_shards SET version = 9")
		require.NoError(w, err)
		require.Equal(w, []string{
			"delayq_outbox_shards: version", "delayq_outbox_shards: no_relay", "delayq_outbox: lost_shard", "delayq_outbox: old_row", "delayq_outbox_dead: dead_rows",
		}, w.kinds())
	})
}

// Each missing table has the statements that create it, also if the outbox has a schema.
func TestCheckSaysWhatToRun(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.relay()
		w.enqueue(w.db, "x")
		w.drained()
		tables := []string{
			"delayq_outbox", "delayq_outbox_shards", "delayq_outbox_dead", "delayq_outbox_inbox", "delayq_outbox_later", "delayq_outbox_sent", "delayq_outbox_resend",
		}
		empty, _ := w.open(w)
		for _, table := range tables {
			_, err := empty.Exec("DROP TABLE " + table)
			require.NoError(w, err)
		}
		report, err := w.ob.Check(w.Context(), empty, time.Minute)
		require.NoError(w, err)
		require.Len(w, report.Findings, len(tables))
		schema := ""
		for i, f := range report.Findings {
			require.Equal(w, outbox.FindingNoTable, f.Kind)
			require.Equal(w, tables[i], f.Table)
			schema += f.Statement + "\n"
			for statement := range strings.SplitSeq(strings.TrimSuffix(f.Statement, ";"), ";\n") {
				_, err := empty.Exec(statement)
				require.NoError(w, err)
			}
		}
		require.Equal(w, w.ob.Schema(), strings.ReplaceAll(schema, ";\n", ";\n\n")[:len(w.ob.Schema())])
		report, err = w.ob.Check(w.Context(), empty, time.Minute)
		require.NoError(w, err)
		require.Len(w, report.Findings, 1, "no relay has run")

		for _, column := range []string{"slot", "began"} {
			_, err = empty.Exec("ALTER TABLE delayq_outbox_sent DROP COLUMN " + column)
			require.NoError(w, err)
		}
		report, err = w.ob.Check(w.Context(), empty, time.Minute)
		require.NoError(w, err)
		require.Equal(w, outbox.Finding{Kind: outbox.FindingNoColumn, Table: "delayq_outbox_sent", Text: "the table lacks columns of this release: began, slot"}, report.Findings[0])
		require.Empty(w, w.kinds(), "the other database is as it was")
	})
}

func TestCheckWithoutADatabase(t *testing.T) {
	ob, err := outbox.New(outbox.SQLite)
	require.NoError(t, err)
	_, err = ob.Check(t.Context(), nil, time.Minute)
	require.ErrorIs(t, err, outbox.ErrInvalid)
	db, err := sql.Open("sqlite", "file:/nothing/at/all")
	require.NoError(t, err)
	defer db.Close()
	_, err = ob.Check(t.Context(), db, 0)
	require.ErrorIs(t, err, outbox.ErrInvalid)
	report, err := ob.Check(t.Context(), db, time.Minute)
	require.Error(t, err)
	require.NotErrorIs(t, err, outbox.ErrSchema)
	require.Equal(t, &outbox.CheckReport{}, report)
}
