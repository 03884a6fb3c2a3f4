package cli

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// On a terminal a table fits its width. In a pipe nothing is cut.
func TestTableFitsTheTerminal(t *testing.T) {
	inWorld(t, func(w *world) {
		id := strings.Repeat("漢字", 60)
		w.Enqueue("order:cancel", id, delayq.ProcessIn(time.Minute))
		whole := w.ok("jobs", "order:cancel", "-o", "wide")
		require.Contains(w, whole, id)
		require.NotContains(w, whole, "…")
		w.terminal = true
		for _, width := range []int{40, 80, 132} {
			w.width = width
			for _, args := range [][]string{
				{"jobs", "order:cancel", "-o", "wide"}, {"topics", "-o", "wide"}, {"schedules"}, {"jobs", "mail:welcome", "--state", "dead", "--no-color"},
			} {
				out := w.ok(args...)
				for line := range strings.Lines(out) {
					plain := strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(strings.TrimSuffix(line, "\n"))
					require.LessOrEqual(w, runewidth.StringWidth(plain), width, "%v: %q", args, plain)
				}
			}
		}
		w.width = 80
		w.show("jobs", "order:cancel")
		w.show("topics", "--no-color")
		w.show("jobs", "mail:welcome", "--state", "dead", "-o", "json") // JSON is never cut
		w.golden("width80")
	})
}

// Colors are for terminals, and can be switched off.
func TestColors(t *testing.T) {
	inWorld(t, func(w *world) {
		require.NotContains(w, w.ok("topics"), "\x1b")
		w.terminal, w.width = true, 200
		require.Contains(w, w.ok("topics"), "\x1b[31mNO SERVER\x1b[0m")
		require.NotContains(w, w.ok("topics", "--no-color"), "\x1b")
		require.NotContains(w, w.ok("topics", "-o", "json"), "\x1b")
		for _, name := range []string{"NO_COLOR", "DELAYQ_NO_COLOR"} {
			w.env[name] = "1"
			require.NotContains(w, w.ok("topics"), "\x1b", name)
			delete(w.env, name)
		}
		w.env["TERM"] = "dumb"
		require.NotContains(w, w.ok("topics"), "\x1b")
	})
}

// What is in Redis cannot command a terminal.
func TestNothingFromRedisCommandsTheTerminal(t *testing.T) {
	inWorld(t, func(w *world) {
		evil := "\x1b]0;owned\x07\r\n\u202e\u009b2J\u007f\U000e0041"
		w.Enqueue("evil", evil, delayq.Header("h", evil), delayq.Key(evil))
		_, err := w.Client.Enqueue(w.Context(), "evil", "payload", []byte(evil), delayq.ProcessIn(time.Hour))
		require.NoError(w, err)
		require.NoError(w, w.Client.Bury(w.Context(), "evil", "payload", evil))
		require.NoError(w, w.Client.Pause(w.Context(), "evil", delayq.Pause{By: evil, Reason: evil}))
		require.NoError(w, w.Client.Hold(delayq.WithActor(w.Context(), evil), "evil", time.Hour, evil))
		w.refused("evil", map[string]any{"at": time.Now().UnixMilli(), "from": evil, "topic": evil, "id": evil, "reason": evil})
		require.NoError(w, w.RDB.LPush(w.Context(), "q:{evil}:all:undelivered", evil).Err())
		require.NoError(w, w.RDB.ZAdd(w.Context(), "q:{evil}:all:parcels", redis.Z{Member: evil}).Err())
		w.terminal, w.width, w.env["NO_COLOR"] = true, 400, "1"
		for _, args := range [][]string{
			{"topics"}, {"topic", "evil"}, {"limits", "evil"}, {"hold", "evil", "--for", "1s"}, {"jobs", "evil", "--state", "ready"}, {"job", "evil", idText(evil)},
			{"schedule", "remove", "evil", evil}, {"job", "evil", evil}, {"job", "evil", "payload"}, {"job", "evil", "payload", "--payload"}, {"explain", "evil", idText(evil)},
			{"explain", "evil", "payload"}, {"keys", "evil"}, {"undelivered", "evil"}, {"key", "evil", idText(evil)}, {"failures", "evil"}, {"export", "evil", "--state", "dead"}, {"find", "payload"}, {"audit"},
			{"cancel", "evil", evil, "--dry-run"}, {"cancel", "evil", "--state", "ready", "--key", evil, "--error", evil, "--dry-run"}, {"check"}, {"doctor"}, {"stats"},
		} {
			for _, format := range formats {
				if args[0] != "export" {
					args = append(args[:len(args):len(args)], "-o", format)
				}
				r := w.do(args...)
				for _, bad := range []string{"\x1b", "\r\n", "\u202e", "\u009b", "\x9b", "\x7f", "\x07", "\U000e0041"} {
					require.NotContains(w, r.out+r.err, bad, args)
				}
			}
		}
		w.terminal = false
		require.Equal(w, evil, w.do("job", "evil", "payload", "--payload").out, "byte for byte in a pipe")
		var record struct {
			Headers map[string]string `json:"headers"`
		}
		require.NoError(w, json.Unmarshal([]byte(w.do("job", "evil", idText(evil), "-o", "json").out), &record))
		require.Equal(w, evil, record.Headers["h"], "JSON has it whole")
	})
}

// What -o id writes is one word for a shell and for xargs, and no flag. It is read back as an
// argument and from stdin.
func TestIDsAreWordsForTheShell(t *testing.T) {
	plain := regexp.MustCompile(`^[\p{L}\p{Nd}_@%+=:,./-]+$`)
	names := []string{"--all", "-y", "$(x)", "`x`", "a b", "a'b", `a"b`, `a\b`, "a;b", "a|b", "a&b", "a>b", "a?b", "a[b]", "~a", "!a", "=a", "%1", "base64:eA==", "訂單-3", "u@x.example"}
	for _, name := range names {
		word := shellWord(name)
		require.Regexp(t, plain, word)
		require.NotContains(t, "-=%~", word[:1])
		back, err := idOf(word)
		require.NoError(t, err)
		require.Equal(t, name, back)
	}
	require.Equal(t, "訂單-3", shellWord("訂單-3"))
	require.Equal(t, "u@x.example", shellWord("u@x.example"))
	inWorld(t, func(w *world) {
		for _, name := range names {
			w.Enqueue("odd", name, delayq.ProcessIn(time.Hour))
			w.Enqueue(name, "j", delayq.ProcessIn(time.Hour))
			require.NoError(w, w.Client.Schedule(w.Context(), "odd", name, delayq.Every(time.Hour), nil, delayq.Header("task", "sql x")))
		}
		lines := func(args ...string) []string {
			return strings.Split(strings.TrimSpace(w.ok(append(args, "-o", "id")...)), "\n")
		}
		for _, args := range [][]string{{"topics"}, {"jobs", "odd", "--all"}, {"schedules", "odd"}, {"schedules"}, {"task", "list"}} {
			for _, line := range lines(args...) {
				for word := range strings.SplitSeq(line, "\t") {
					require.Regexp(w, plain, word, args)
					require.NotContains(w, "-=%~", word[:1], args)
				}
			}
		}
		for _, topic := range lines("topics") {
			w.ok("topic", topic, "--over", "0s")
			w.ok("jobs", topic)
		}
		for _, id := range lines("jobs", "odd", "--all") {
			w.ok("job", "odd", id)
		}
		for _, name := range lines("schedules", "odd") {
			w.ok("schedule", "show", "odd", name)
		}
		w.stdin = w.ok("jobs", "odd", "--all", "-o", "id")
		w.ok("cancel", "odd", "-", "--yes")
		require.Empty(w, w.ok("jobs", "odd", "-o", "id"))
		for _, args := range [][]string{{"jobs", ""}, {"topic", ""}, {"schedule", "show", "odd", ""}, {"task", "remove", ""}} {
			found := w.complete(args...)
			require.NotEmpty(w, found, args)
			for _, word := range found {
				require.Regexp(w, plain, word, args)
			}
		}
	})
}

// -o id writes IDs that the command line reads, whatever their bytes are.
func TestIDsAreReadBack(t *testing.T) {
	for _, id := range []string{"order-1", "訂單", "\xff\x00", "base64:eA==", " blank", "line\n", "-dash", "\u202e", "\ufffd", "a b"} {
		text := idText(id)
		require.NotContains(t, text, "\n")
		back, err := idOf(text)
		require.NoError(t, err)
		require.Equal(t, id, back)
	}
	require.Equal(t, "訂單", idText("訂單"))
	require.Equal(t, "a b", idText("a b"))
}

// A reader that goes away ends the command without noise.
func TestPipeClosedEarly(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 3000 {
			w.Enqueue("many", "job-"+number(i))
		}
		for _, format := range formats {
			var errs strings.Builder
			p := &process{
				name: "delayq",
				args: []string{"jobs", "many", "--state", "ready", "--all", "-o", format}, in: &input{Reader: strings.NewReader("")},
				out: &output{Writer: &closedPipe{room: 100}}, err: &output{Writer: &errs}, dial: w.dial,
				getenv: func(name string) string { return w.env[name] },
			}
			require.Zero(w, run(w.Context(), p), format)
			require.Empty(w, errs.String(), format)
		}
	})
}

// A closedPipe is a pipe whose reader goes away after some bytes.
type closedPipe struct{ room int }

func (p *closedPipe) Write(b []byte) (int, error) {
	if p.room -= len(b); p.room < 0 {
		return 0, syscall.EPIPE
	}
	return len(b), nil
}

// stats samples until it is interrupted.
func TestStatsIsInterrupted(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, interrupt := context.WithCancel(w.Context())
		w.ctx = ctx
		done := make(chan result, 1)
		go func() { done <- w.do("stats", "order:cancel", "--every", "2s", "-o", "jsonl") }()
		w.Pass(3 * time.Second)
		w.Enqueue("order:cancel", "new-1")
		w.Enqueue("order:cancel", "new-2")
		w.Pass(2 * time.Second)
		interrupt()
		r := <-done
		require.Equal(w, exitInterrupted, r.code)
		require.Equal(w, "interrupted\n", r.err)
		require.Equal(w, 3, strings.Count(r.out, "\n"))
		require.Contains(w, r.out, `"rates":{"enqueued":1,"finished":0,"failed":0}`)
	})
}

// The flags of stats are checked.
func TestGoldenStats(t *testing.T) {
	inWorld(t, func(w *world) {
		w.show("stats", "order:cancel", "--every", "2s", "--samples", "2")
		w.show("stats", "order:cancel", "--every", "2s", "--samples", "2", "-o", "wide")
		w.show("stats", "order:cancel", "--every", "2s", "--samples", "2", "-o", "jsonl")
		w.show("stats", "order:cancel", "--every", "2s", "--samples", "2", "-o", "id")
		w.show("stats", "--every", "2s", "-o", "json")
		w.show("stats", "--every", "1ms")
		w.show("stats", "--samples", "-1")
		w.golden("stats")
	})
}
