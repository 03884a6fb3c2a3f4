package serve

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// A handler is a task whose jobs run one by one.
type handler func(ctx context.Context, r *run.Run) error

func (h handler) Run(ctx context.Context, r *run.Run) error { return h(ctx, r) }

func (h handler) RunBatch(context.Context, *run.Batch, func(*run.Run) context.Context) error {
	panic("no batches")
}

// lenient is a judge for which a job is done whatever its handler returns.
type lenient struct{}

func (lenient) Verdict(r *run.Run, cause, err error, ran time.Duration) settle.Row {
	return settle.Row{Run: r, Verb: settle.Ack, End: r.Start.Add(ran), Err: err}
}

func (lenient) Refusal(*run.Run, error, int64, *slog.Logger) *settle.Row { return nil }

func (lenient) Joined(*run.Run, *flow.Progress, int64) *settle.Row { return nil }

func (lenient) Steers(error) bool { return false }

// told is an observer that calls a function with each outcome; nil: it ignores them.
type told func(settle.Row)

func (told) Begun(ctx context.Context, _ *run.Run) context.Context { return ctx }

func (f told) Ended(list []settle.Row, log func(settle.Row), alive func()) {
	for _, r := range list {
		if log(r); f != nil {
			alive()
			f(r)
		}
	}
}

func (told) Late(settle.Row) {}

func (told) Unsettled(settle.Row) {}

func (told) Pruned(string, int, int) {}

// topicOf returns a topic with its workers and none of its loops.
func topicOf(t *testing.T, concurrency int, h handler, observer told) *Topic {
	t.Helper()
	own := embedded.New()
	t.Cleanup(own.Close)
	rdb := own.Client()
	s := New(rdb, Config{
		ID: "me", Prefix: "p", Lease: 30 * time.Second, Tick: time.Second, Concurrency: concurrency, Judge: lenient{}, Observer: observer,
	})
	like := TopicConfig{Topic: "a", Task: h}
	like.Defaults.Retry = -1
	require.NoError(t, s.Handle(0, Offer{TopicConfig: like}))
	s.Begin(slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, rdb.Close())
	})
	a := s.Topics.Get("a")
	a.stay.base = t.Context()
	return a
}
