package webhook

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The figures of docs/handlers.md about webhooks are those of the handler.
func TestFiguresOfTheManual(t *testing.T) {
	text, err := os.ReadFile("../../docs/handlers.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Webhooks\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	section = strings.Join(strings.Fields(section), " ")
	h, err := newHandler(nil)
	require.NoError(t, err)
	short := func(d time.Duration) string {
		switch {
		case d%time.Hour == 0:
			return fmt.Sprintf("%d h", d/time.Hour)
		case d%time.Minute == 0:
			return fmt.Sprintf("%d min", d/time.Minute)
		}
		return fmt.Sprintf("%d s", d/time.Second)
	}
	var delays []string
	for i, d := range h.delays {
		one := short(d)
		if i+1 < len(h.delays) && strings.HasSuffix(one, " h") { // a unit is written once for several
			one = strings.TrimSuffix(one, " h")
		}
		delays = append(delays, one)
	}
	last := len(delays) - 1
	list := strings.Join(delays[:last], ", ") + " and " + delays[last]
	for _, want := range []string{
		"no answer within " + short(h.timeout) + " (`Timeout`)", "from a second to " + short(h.mostHold) + " (`MostHold`)", short(h.patience) + " after its due time (`Patience`)",
		"retried after " + list + " (`Delays`)", fmt.Sprintf("`Retry(%d)` uses each delay once", len(h.delays)), "holds its key for " + fmt.Sprint(busyHold.Milliseconds()) + " ms",
		"never answers can occupy all workers, each for " + short(h.timeout), "at most five minutes away",
	} {
		require.Contains(t, section, want)
	}
	require.Equal(t, 5*time.Minute, tolerance)
	require.Contains(t, string(text), fmt.Sprintf("the status and the first %s of the answer", map[int]string{1 << 10: "KiB"}[maxShown]))
}
