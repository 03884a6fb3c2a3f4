package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// complete returns the words that complete a command line.
func (w *world) complete(args ...string) []string {
	r := w.do(append([]string{"__complete"}, args...)...)
	require.Zero(w, r.code, args)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	return lines[:len(lines)-1] // the last one is the directive
}

// Topics, IDs, servers and schedules are completed from Redis.
func TestCompletion(t *testing.T) {
	inWorld(t, func(w *world) {
		complete := w.complete
		require.Equal(w, []string{"order:cancel"}, complete("jobs", "or"))
		require.Len(w, complete("jobs", ""), 5)
		require.Empty(w, complete("jobs", "order:cancel", ""))
		require.Equal(w, []string{"order-1", "order-2"}, complete("job", "order:cancel", "order"))
		require.Equal(w, []string{"base64:/wByYXc="}, complete("job", "order:cancel", "base"))
		require.Contains(w, complete("server", ""), w.server)
		require.Equal(w, []string{"tenant-7", "tick"}, complete("schedule", "edit", "report:weekly", ""))
		require.Equal(w, []string{"table", "wide", "json", "jsonl", "id"}, complete("topics", "-o", ""))
		require.Equal(w, states, complete("jobs", "order:cancel", "--state", ""))
		require.Equal(w, []string{"producer"}, complete("acl", "pro"))

		require.Equal(w, []string{"order:cancel"}, complete("limits", "or"))
		require.Empty(w, complete("limits", "order:cancel", ""))
		require.Equal(w, []string{"order:cancel"}, complete("hold", "mail:welcome", "or"))

		// With a prefix in the environment or on the line.
		require.Empty(w, complete("--prefix", "other", "jobs", ""))

		// Redis away: nothing is offered, at once.
		w.down = true
		began := time.Now()
		require.Empty(w, complete("jobs", ""))
		require.LessOrEqual(w, time.Since(began), completionTimeout)
	})
}

// The scripts for shells are made.
func TestCompletionScripts(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
			require.Contains(w, w.ok("completion", shell), "delayq", shell)
		}
	})
}
