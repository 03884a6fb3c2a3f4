package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// A Task runs the jobs of a topic. The root makes one of a handler.
type Task interface {
	// Run runs a job, and returns what its handler returns.
	Run(ctx context.Context, r *run.Run) error
	// RunBatch runs the jobs of a batch. ctx is that of the batch, and each returns the context
	// of one of its jobs.
	RunBatch(ctx context.Context, b *run.Batch, each func(*run.Run) context.Context) error
}

// A Judge decides what happens to a job.
type Judge interface {
	// Verdict turns the result of a handler into the row that is sent to Redis. cause is that of
	// the end of the run's context; nil: it had not ended. ran is how long the handler ran.
	Verdict(r *run.Run, cause, err error, ran time.Duration) settle.Row
	// Refusal returns the row to send for a taken job that must not run, or nil if it must run. now
	// is Redis's clock in ms. It logs to the log of the topic.
	Refusal(r *run.Run, undecodable error, now int64, log *slog.Logger) *settle.Row
	// Joined returns the row to send for the last step of a flow that was taken, or nil if it must
	// run. now is as for Refusal.
	Joined(r *run.Run, p *flow.Progress, now int64) *settle.Row
	// Steers reports whether an error only says what is to happen to the job.
	Steers(err error) bool
}

// An Observer is told what happens. Its methods always return, even if code of the user that they
// call panics or exits its goroutine.
type Observer interface {
	// Begun is told that a run begins, and returns the context for its handler.
	Begun(ctx context.Context, r *run.Run) context.Context
	// Ended is told the outcomes of runs. It calls log with each row before it passes that on, and
	// alive before each call of the user's code.
	Ended(list []settle.Row, log func(settle.Row), alive func())
	// Late is told that a handler has returned after the drain.
	Late(r settle.Row)
	// Unsettled is told of an outcome that Redis did not receive.
	Unsettled(r settle.Row)
	// Pruned is told how many dead and done jobs of a topic were deleted.
	Pruned(topic string, dead, done int)
}
