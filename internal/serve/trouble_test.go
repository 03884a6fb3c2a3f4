package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The first cause of an outage is the one that is logged, and not the closing of connections that
// it led to.
func TestFirstCauseOfAnOutage(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	lines := func(parts ...string) (n int) {
		for line := range strings.Lines(log.String()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				n++
			}
		}
		return n
	}
	cause, closed := errors.New("does not work"), fmt.Errorf("read tcp: %w", net.ErrClosed)
	o := &outage{Log: slog.New(slog.NewTextHandler(&log, nil)), Lost: func(error) {}}
	o.Failed("take", cause)
	o.Failed("promote", closed)
	o.Answered("take")
	o.Answered("promote")
	require.Equal(t, 1, lines("redis back"))
	o.Failed("extend", closed) // what was closed then is met only now
	require.Equal(t, 2, lines("redis away"))
	require.Equal(t, 2, lines("redis away", cause.Error()))
	o.Answered("extend")

	// The line is there before connections are closed.
	o = &outage{Log: slog.New(slog.NewTextHandler(&log, nil)), Lost: func(error) { require.Equal(t, 3, lines("redis away")) }}
	o.Failed("take", cause)
}
