package delayq

import (
	"context"
	"time"

	"github.com/delayq/delayq/internal/bridge"
	"github.com/delayq/delayq/internal/commit"
)

func init() {
	bridge.NewJob = func(fresh any, now time.Time) (any, error) { return runOf(fresh.(NewJob), now) }
	bridge.RunBatch = func(ctx, f, jobs any) []error {
		within, _ := ctx.(context.Context)
		return runBatch(within, f.(BatchHandlerFunc), jobs.([]*Job))
	}
	bridge.NextRun = func(job any) any { return job.(*Job).next() }
	bridge.AlwaysRing = func(server any) { server.(*Server).engine.AlwaysRing() }
	bridge.Given = func(info any) any { return info.(*JobInfo).options }
	bridge.Changes = func(info, spec any, payload []byte, opts any) ([]string, error) {
		return info.(*ScheduleInfo).changes(spec.(Spec), payload, opts.([]ScheduleOption))
	}
	bridge.Unset = func(part string) any { return unset(part) }
	bridge.NewSealer = func(opts any) (any, error) { return newSealer(opts.([]ClientOption)) }
	bridge.SealEnqueue = func(ctx context.Context, sealer, fresh any) (bridge.Row, any, error) {
		return sealer.(*Client).sealEnqueue(ctx, fresh.(NewJob))
	}
	bridge.SealCancel = func(ctx context.Context, sealer any, topic, id string) (bridge.Row, error) {
		return sealer.(*Client).sealCancel(ctx, topic, id)
	}
	bridge.SealReschedule = func(ctx context.Context, sealer any, topic, id string, due any) (bridge.Row, error) {
		return sealer.(*Client).sealReschedule(ctx, topic, id, due.(DueOption))
	}
	bridge.SendRows = func(ctx context.Context, client any, plan bridge.Plan, rows []bridge.Row) ([]error, error) {
		return client.(*Client).sendRows(ctx, plan, rows)
	}
	bridge.ErrOpen, bridge.ErrPassed = commit.ErrOpen, commit.ErrPassed
	bridge.FateOf = fateOf
	bridge.Answers = func(ctx context.Context, client any) error { return client.(*Client).answers(ctx) }
}
