package fire

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// firerOf returns a firer that calls exec instead of Redis, and logs to log.
func firerOf(log io.Writer, exec func(*script.Script) (script.Reply, error)) *Firer {
	return New(script.NewKeys("p", "topic"), time.Second, nil, slog.New(slog.NewTextHandler(log, nil)),
		func(_ context.Context, s *script.Script, _ int, _ ...any) (script.Reply, error) { return exec(s) })
}

// missedLines returns the lines of a log about missed slots.
func missedLines(log *bytes.Buffer) (lines []string) {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "slots missed") {
			lines = append(lines, line)
		}
	}
	return lines
}

// If promote counts due schedules that another server fires in the meantime, promote must run again
// once, to report the next slot. Schedules that cannot be fired here are looked at once a tick.
func TestFirerLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, found := 0, 0
		f := firerOf(io.Discard, func(s *script.Script) (script.Reply, error) {
			looks++
			require.Same(t, script.ScheduleDue, s)
			return script.Reply{"ok", int64(1), int64(found), []any{}, []any{}, []any{}, []any{}}, nil
		})
		require.False(t, f.Fire(t.Context(), 0, 0))
		require.Zero(t, looks, "nothing is due")
		require.True(t, f.Fire(t.Context(), 3, 0), "all three are gone: look again")
		require.False(t, f.Fire(t.Context(), 3, 0), "but only once")
		require.Equal(t, 2, looks)
		found = 3
		require.False(t, f.Fire(t.Context(), 3, 0))
		require.False(t, f.Fire(t.Context(), 3, 0))
		require.Equal(t, 3, looks, "the three cannot be fired here")
		require.True(t, f.Fire(t.Context(), 4, 0), "one more is due, and was gone")
		require.Equal(t, 4, looks)
		time.Sleep(time.Second)
		f.Fire(t.Context(), 3, 0)
		require.Equal(t, 5, looks, "a tick later")
	})
}

// After a call that failed, the firer leaves Redis alone for a while.
func TestFirerPausesAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f := firerOf(io.Discard, func(*script.Script) (script.Reply, error) {
			calls++
			return nil, context.DeadlineExceeded
		})
		require.False(t, f.Fire(t.Context(), 1, 0))
		require.False(t, f.Fire(t.Context(), 1, 0))
		require.Equal(t, 1, calls)
		time.Sleep(time.Minute)
		f.Fire(t.Context(), 1, 0)
		require.Equal(t, 2, calls)
	})
}

// Missed slots are logged in one line, at most once a minute, and at the end.
func TestFirerWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := firerOf(&log, func(*script.Script) (script.Reply, error) {
			return script.Reply{"ok", int64(1), int64(0), []any{}}, nil
		})
		f.warned = time.Now()
		f.missed["a"] = 3
		f.Fire(t.Context(), 0, 0)
		require.Empty(t, missedLines(&log))
		time.Sleep(MissedEvery)
		f.missed["b"] = 4
		f.Fire(t.Context(), 0, 0)
		require.Len(t, missedLines(&log), 1)
		require.Contains(t, log.String(), `msg="slots missed" schedule="2 schedules" count=7`)
		f.missed["a"] = 1
		f.Warn(false)
		require.Contains(t, log.String(), `msg="slots missed" schedule=a count=1`)
		f.Warn(false)
		require.Len(t, missedLines(&log), 2)
	})
}

// The firer remembers whose runs have ended, each once, and no more than it can look at.
func TestFirerRemembers(t *testing.T) {
	f := firerOf(io.Discard, nil)
	f.Remember([]string{"b", "a", "b"})
	f.Remember([]string{"c", "a"})
	require.Equal(t, []string{"a", "b", "c"}, f.Ended)
	f.Remember(make([]string, maxEnded))
	require.Len(t, f.Ended, 3, "the look of each tick finds the others")
}
