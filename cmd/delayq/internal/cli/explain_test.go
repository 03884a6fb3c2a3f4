package cli

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// The verdict and the reasons for jobs in each state.
func TestGoldenExplain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("explain", "mail:welcome", "wait-1")
		for _, id := range []string{"dead-1", "retry-1", "done-1", "long-1"} {
			w.show("explain", "mail:welcome", id)
		}
		w.show("explain", "order:cancel", "base64:/wByYXc=")
		w.show("explain", "refund:poll", "refund-9")
		w.Enqueue("report:weekly", "paused-1")
		w.every("explain", "report:weekly", "paused-1")
		w.every("explain", "mail:welcome", "nobody")
		w.show("explain", "mail:welcome")
		w.golden("explain")
	})
}

// The retries that are left are those of what holds in the runs: of the job, or of its handler. If
// its servers differ, each number is there.
func TestExplainSaysWhatRetriesAreLeft(t *testing.T) {
	inWorld(t, func(w *world) {
		fails := func(context.Context, *delayq.Job) error { return delayq.RetryIn(time.Hour, errors.New("no")) }
		w.Serve("a", fails, delayq.Defaults(delayq.Retry(25)))
		w.Enqueue("a", "own", delayq.Retry(5))
		w.Enqueue("a", "handler")
		w.Enqueue("a", "endless", delayq.Retry(delayq.Unlimited))
		w.Enqueue("none", "open")
		w.Pass(10 * time.Second)
		left := func(topic, id string) (text string, number int) {
			found := regexp.MustCompile(`(?m)^  attempt +(.+)$`).FindStringSubmatch(w.ok("explain", topic, id))
			require.NotEmpty(w, found, id)
			var answer struct {
				Job struct {
					Left int `json:"retries_left"`
				}
			}
			require.NoError(w, json.Unmarshal([]byte(w.ok("explain", topic, id, "-o", "json")), &answer))
			return found[1], answer.Job.Left
		}
		for id, want := range map[string]struct {
			text   string
			number int
		}{"own": {"2, retries left: 4", 4}, "handler": {"2, retries left: 24", 24}, "endless": {"2, retries left: unlimited", -1}} {
			text, number := left("a", id)
			require.Equal(w, want.text, text, id)
			require.Equal(w, want.number, number, id)
		}
		text, number := left("none", "open")
		require.Equal(w, "1, retries left: unlimited", text)
		require.Equal(w, -1, number)
		w.Serve("a", fails, delayq.Defaults(delayq.Retry(9)))
		w.Pass(10 * time.Second)
		text, number = left("a", "handler")
		require.Equal(w, "2, retries left: 8 or 24", text)
		require.Equal(w, 8, number)
		text, _ = left("a", "own")
		require.Equal(w, "2, retries left: 4", text)
		text, _ = left("mail:welcome", "done-1")
		require.Equal(w, "1", text, "it is done")
	})
}
