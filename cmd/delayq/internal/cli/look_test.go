package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Every command that looks, in every output.
func TestGoldenLook(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("topics")
		w.every("topic", "order:cancel")
		w.show("topic", "report:weekly", "--step", "1d", "--steps", "3", "--over", "0s")
		w.every("jobs", "order:cancel")
		w.show("jobs", "order:cancel", "--time", "relative")
		w.show("jobs", "order:cancel", "--time", "unix")
		w.show("jobs", "order:cancel", "--limit", "2")
		for _, state := range states {
			w.show("jobs", "mail:welcome", "--state", state)
		}
		w.every("job", "order:cancel", "order-2")
		w.every("job", "order:cancel", "base64:/wByYXc=")
		w.every("job", "mail:welcome", "dead-1")
		w.show("job", "mail:welcome", "done-1")
		w.show("job", "mail:welcome", "dead-1", "--payload")
		w.every("find", "order-1")
		w.show("find", "nobody")
		w.every("stats", "order:cancel")
		w.golden("look")
	})
}

func TestGoldenFailures(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("failures", "mail:welcome")
		w.show("failures", "mail:welcome", "--state", "scheduled")
		w.show("failures", "order:cancel")
		w.Enqueue("order:cancel", "gone", delayq.ProcessIn(time.Hour))
		require.NoError(w, w.Client.Bury(w.Context(), "order:cancel", "gone", "the shop has closed"))
		w.every("failures")
		w.every("failures", "--since", "3s")
		w.show("failures", "--since", "64s", "-o", "wide")
		w.show("failures", "order:cancel", "mail:welcome", "--since", "+1h")
		w.show("failures", "--since", "whenever")
		w.golden("failures")
	})
}

func TestGoldenServers(t *testing.T) {
	inWorld(t, func(w *world) {
		require.NoError(w, w.second.Stop()) // the order of two is different in every execution
		w.every("servers")
		w.every("server", w.server)
		w.show("server", "nobody")
		w.golden("servers")
	})
}

func TestGoldenSchedules(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("schedules")
		w.every("schedules", "report:weekly")
		w.show("schedules", "order:cancel")
		w.every("schedule", "show", "report:weekly", "tenant-7")
		w.show("schedule", "show", "report:weekly", "nobody")
		w.show("schedule", "show", "report:daily", "sums")
		w.every("schedule", "runs", "report:daily", "sums", "--limit", "2")
		w.show("schedule", "runs", "report:weekly", "tick")

		// An earlier release has stored a rule that is refused today.
		require.NoError(w, w.Client.Schedule(w.Context(), "report:daily", "old", delayq.Cron("*/59 * * * *", ""), nil))
		all := queuetest.Prefix + ":{report:daily}:schedules"
		stored := w.RDB.HGet(w.Context(), all, "old").Val()
		require.NoError(w, w.RDB.HSet(w.Context(), all, "old", strings.Replace(stored, "*/59 ", "*/90 ", 1)).Err())
		w.show("schedules", "report:daily")
		w.every("schedule", "show", "report:daily", "old")
		w.golden("schedules")
	})
}
