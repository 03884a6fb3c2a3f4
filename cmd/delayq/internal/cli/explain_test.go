package cli

import "testing"

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
