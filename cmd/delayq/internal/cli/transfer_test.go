package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/record"
)

func TestGoldenTransfer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.show("export", "order:cancel")
		w.show("export", "mail:welcome", "--state", "dead")
		w.show("export", "order:cancel", "--id-prefix", "order-1")
		w.show("export", "order:cancel", "-o", "json")
		w.show("export", "bad{topic}")
		w.stdin = w.ok("export", "order:cancel") + "\n" + w.ok("export", "mail:welcome", "--state", "dead") + w.ok("export", "mail:welcome", "--state", "done")
		w.show("import", "--dry-run", "--topic", "copy")
		for _, format := range formats {
			w.show("import", "-", "--topic", "copy-"+format, "-o", format)
		}
		w.show("import", "--topic", "copy-table") // all are there
		w.show("import", "--topic", "revived", "--revive")
		require.Equal(w, w.Get("order:cancel", "\xff\x00raw").Headers, w.Get("copy-table", "\xff\x00raw").Headers)
		require.Equal(w, delayq.StateReady, w.State("revived", "dead-1"))
		for _, line := range []string{
			"{", `{"schema":"delayq.job/1"}`, `{"schema":"delayq.export/1","topic":"t"}`, `{"schema":"delayq.export/1","topic":"t","id":"x","state":"asleep"}`,
			`{"schema":"delayq.export/1","topic":"t","id":"x","state":"ready","backoff":[1]}`,
			`{"schema":"delayq.export/1","topic":"t","id":"x","state":"ready","headers_base64":{"%":""}}`,
			`{"schema":"delayq.export/1","topic":"bad{}","id":"x","state":"ready"}`, `{"schema":"delayq.export/1","topic":"t","id":"x","state":"ready","due":"soon"}`,
		} {
			w.stdin = "\n" + line + "\n"
			w.show("import")
		}
		w.stdin = `{"schema":"delayq.export/1","topic":"unread","id":"x","state":"ready","undecodable":"format version 9"}`
		require.Contains(w, w.ok("import"), "0 jobs stored, 0 duplicates, 1 skipped", "what export could not read")
		require.Empty(w, w.State("unread", "x"))
		w.show("import", "no-such-file")
		file := filepath.Join(w.TempDir(), "empty")
		require.NoError(w, os.WriteFile(file, nil, 0o600))
		require.Contains(w, w.ok("import", file), "0 jobs stored")
		w.golden("transfer")
	})
}

// Import gives a job every option that it had. A new one is in one of the two lists.
func TestImportMakesTheSameJob(t *testing.T) {
	set := record.Options{
		DueAt: time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC).UnixMilli(), Retry: 7, BackoffMin: 1500, BackoffMax: 60_000, Timeout: 2500,
		ExpireAt: time.Date(2000, 1, 4, 0, 0, 0, 0, time.UTC).UnixMilli(), Retention: 90_000, Headers: map[string]string{"a": "b"},
		Key: "tenant\xff", HeadStart: -4500,
	}
	made := map[string]bool{"DueIn": true, "ExpireIn": true, "Scheduled": true, "Plan": true, "Flow": true} // of the time of the enqueueing, of a schedule or a flow, or in a test of its own
	for field, value := range reflect.ValueOf(set).Fields() {
		require.True(t, !field.IsExported() || made[field.Name] || !value.IsZero(), "the test does not set %s", field.Name)
	}
	inWorld(t, func(w *world) {
		ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
		_, err := w.Client.Enqueue(w.Context(), "from", "x", []byte("p"), delayq.ProcessAt(time.UnixMilli(set.DueAt)), delayq.Retry(set.Retry),
			delayq.Backoff(ms(set.BackoffMin), ms(set.BackoffMax)), delayq.Timeout(ms(set.Timeout)), delayq.ExpireAt(time.UnixMilli(set.ExpireAt)),
			delayq.Retention(ms(set.Retention)), delayq.Header("a", "b"), delayq.Key(set.Key), delayq.Priority(ms(set.HeadStart)))
		require.NoError(w, err)
		w.stdin = w.ok("export", "from")
		require.Contains(w, w.ok("import", "--topic", "to"), "1 job stored")
		require.Equal(w, set, library.Given(w.Get("to", "x")))
		require.Equal(w, ms(set.HeadStart), w.Get("to", "x").Priority)
	})
}

// Jobs that a bulk selects are those that jobs lists.
func TestGoldenFilters(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, flags := range [][]string{
			{"order:cancel", "--since", "+1h", "--until", "+3h"}, {"order:cancel", "--since", "2000-01-02"}, {"order:cancel", "--latest", "--limit", "1"},
			{"order:cancel", "--id-prefix", "order-"}, {"order:cancel", "--id-prefix", "base64:/w=="}, {"order:cancel", "--header", "tenant=7"},
			{"order:cancel", "--payload", "order-2"}, {"mail:welcome", "--state", "dead", "--error", "mailbox 2"}, {"mail:welcome", "--attempt", ">1"},
			{"mail:welcome", "--attempt", ">=3"}, {"order:cancel", "--header", "tenant=8"}, {"order:cancel", "--until", "30m"},
		} {
			w.show(append([]string{"jobs"}, flags...)...)
		}
		key := strings.Fields(w.ok("failures", "mail:welcome", "-o", "id"))[0]
		require.Equal(w, 2, strings.Count(w.ok("jobs", "mail:welcome", "--state", "dead", "--failure", key, "-o", "id"), "\n"))
		w.golden("filters")
	})
}
