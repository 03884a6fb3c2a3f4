package hand

import (
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// What a client asks for about a job: see wait.
const (
	Register = "+"
	Look     = "?"
	Leave    = "-"
)

// TryWait is one call of the wait script by the client with a name. A job is its ID, its nonce and
// what is asked for.
func (h *Hand) TryWait(name string, jobs ...[3]string) (script.Reply, error) {
	args := []any{name}
	for _, job := range jobs {
		args = append(args, job[0], job[1], job[2])
	}
	return h.Run(script.Wait, args...)
}

// Wait returns the answer about one job.
func (h *Hand) Wait(name, id, nonce, verb string) string {
	h.T.Helper()
	r, err := h.TryWait(name, [3]string{id, nonce, verb})
	require.NoError(h.T, err)
	require.Len(h.T, r.List(2), 1)
	return r.List(2).Text(0)
}

// A Note is what a run says of its job: how far it has come ("<done> <total> <text>"), or the name
// and the result of a step.
type Note struct {
	Progress, Step, Result string
}

// TryNote is one call of the note script.
func (h *Hand) TryNote(held Held, notes ...Note) (script.Reply, error) {
	var args []any
	for _, n := range notes {
		args = append(args, held.ID, held.Fence, held.Nonce(), n.Progress, n.Step, n.Result)
	}
	return h.Run(script.Note, args...)
}

// Note returns the letters of such a call.
func (h *Hand) Note(held Held, notes ...Note) string {
	h.T.Helper()
	r, err := h.TryNote(held, notes...)
	require.NoError(h.T, err)
	return r.Text(2)
}

// TryRecall is one call of the recall script.
func (h *Hand) TryRecall(held Held, bytes int, names ...string) (script.Reply, error) {
	args := []any{held.ID, held.Nonce(), bytes, held.Fence}
	for _, name := range names {
		args = append(args, name)
	}
	return h.Run(script.Recall, args...)
}

// Nonce is the nonce of the job's record.
func (one Held) Nonce() string { return one.Record[:8] }
