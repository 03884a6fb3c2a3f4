package main

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
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
		evil := "\x1b]0;owned\x07\r\n\u202e"
		w.Enqueue("evil", evil, delayq.Header("h", evil), delayq.ProcessIn(time.Hour))
		require.NoError(w, w.Client.Pause(w.Context(), "evil", delayq.Pause{By: evil, Reason: evil}))
		require.NoError(w, w.Client.Hold(delayq.WithActor(w.Context(), evil), "evil", time.Hour, evil))
		for _, args := range [][]string{
			{"topics"}, {"topic", "evil"}, {"limits", "evil"}, {"hold", "evil", "--for", "1s"}, {"jobs", "evil", "-o", "wide"}, {"job", "evil", idText(evil)}, {"jobs", "evil", "-o", "id"},
			{"schedule", "remove", "evil", evil}, {"job", "evil", evil},
		} {
			r := w.do(args...)
			require.NotContains(w, r.out+r.err, "\x1b", args)
			require.NotContains(w, r.out+r.err, "\r", args)
			require.NotContains(w, r.out+r.err, "\u202e", args)
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
