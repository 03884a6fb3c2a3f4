package cli

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
)

// noted gives a job a note and two clients that wait for it.
func (w *world) noted(topic, id string, note record.Note) {
	w.Helper()
	note.Nonce, note.At = w.Get(topic, id).Nonce(), time.Now().Add(-2*time.Second).UnixMilli()
	var waiters string
	for _, name := range []string{"a", "b"} {
		waiters += record.Netstring(fmt.Sprintf("%s%013d%s", note.Nonce, time.Now().UnixMilli(), name))
	}
	require.NoError(w, w.RDB.HSet(w.Context(), fmt.Sprintf("%s:{%s}:all:notes", queuetest.Prefix, topic), "p"+id, note.Encode(), "w"+id, waiters).Err())
}

// What shows how far a job has come, in every output. A terminal does not get what it may take for
// a command.
func TestGoldenNoted(t *testing.T) {
	inWorld(t, func(w *world) {
		w.noted("mail:welcome", "long-1", record.Note{Done: 1040, Total: 2100, Text: "page 40\x1b[2J\nof 84", Steps: []string{"charge", "mail"}})
		w.noted("mail:welcome", "dead-1", record.Note{Done: 7})
		w.every("job", "mail:welcome", "long-1")
		w.every("jobs", "mail:welcome", "--state", "running")
		w.show("jobs", "mail:welcome", "--state", "dead", "-o", "wide")
		w.show("find", "long-1", "-o", "wide")
		w.every("explain", "mail:welcome", "long-1")
		w.show("explain", "mail:welcome", "dead-1")
		require.NotContains(w, w.ok("export", "mail:welcome", "--state", "running"), "charge", "it is no option of the job")
		w.golden("noted")

		d := w.drive(120, 24)
		d.press("/", "text:mail", "enter", "enter", "t")
		require.Contains(w, plain(t, d.m), `PROGRESS`)
		require.Contains(w, plain(t, d.m), `1,040/2,100 page 40\x1b`)
		d.press("enter")
		require.Regexp(w, `steps +charge, mail`, plain(t, d.m))
	})
}
