package prom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// The metrics of a topic are the same with partitions as without. No label names a partition,
// whatever the jobs do, and the counters do not fall while the topic is divided again.
func TestPartitionsHaveNoLabels(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		m := NewMetrics()
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(m))
		c := NewCollector(delayq.NewInspector(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(m)), always)
		look := func() scrape {
			b.Helper()
			all := scrapeOf(b, m, c)
			for name := range all {
				require.NotContains(b, name, "#")
			}
			require.Subset(b, []string{Other, "later", "mail"}, all.topics())
			return all
		}
		handler := func(ctx context.Context, job *delayq.Job) error {
			switch kind, _, _ := strings.Cut(job.ID, "-"); {
			case kind == "fails" && job.Attempt == 1:
				return delayq.RetryIn(time.Minute, errors.New("once"))
			case kind == "dies":
				return delayq.Permanent(errors.New("for good"))
			case kind == "panics" && job.Attempt == 1:
				panic("once")
			case kind == "snoozes" && job.Snoozes == 0:
				return delayq.Snooze(time.Minute)
			case kind == "hands":
				return job.Then("later", "of "+job.ID, nil, delayq.ProcessIn(1000*time.Hour))
			case kind == "hangs":
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		server := b.Serve("mail", handler, delayq.Hooks(m), delayq.Concurrency(40))
		kinds := []string{"runs", "fails", "dies", "panics", "snoozes", "hands", "hangs"}
		each := func(kind string, round int, do func(id string)) {
			for i := range 4 { // in several partitions
				do(fmt.Sprint(kind, "-", round, "-", i))
			}
		}
		for round, parts := range []int{0, 3, 5} {
			if parts > 0 {
				require.NoError(b, client.Partition(ctx, "mail", parts))
			}
			var list []delayq.NewJob
			for _, kind := range kinds {
				each(kind, round, func(id string) { list = append(list, delayq.NewJob{Topic: "mail", ID: id}) })
			}
			_, err := client.EnqueueBatch(ctx, list)
			require.NoError(b, err)
			each("scheduled", round, func(id string) {
				_, err := client.Enqueue(ctx, "mail", id, nil, delayq.ProcessIn(10*time.Minute), delayq.Retention(time.Minute))
				require.NoError(b, err)
				_, err = client.Enqueue(ctx, "mail", id, nil)
				require.ErrorIs(b, err, delayq.ErrDuplicate)
			})
			b.Pass(3 * time.Second)
			each("hangs", round, func(id string) {
				_, err := client.Dequeue(ctx, "mail", id)
				require.NoError(b, err)
			})
			got := look()
			require.EqualValues(b, parts, got["delayq_partitions{prefix=q,topic=mail}"])
			require.EqualValues(b, round, got["delayq_closing_generations{prefix=q,topic=mail}"])
			require.Contains(b, got, "delayq_partitions{prefix=q,topic=later}")
			require.Zero(b, got["delayq_partitions{prefix=q,topic=later}"])
			require.EqualValues(b, 4*(round+1), got["delayq_jobs{prefix=q,state=scheduled,topic=mail}"]-8, "with two retries of each")
			b.Pass(2 * time.Minute)
		}
		got := look()
		require.Equal(b, scrape{
			"acked}": 60, "retried}": 24, "snoozed}": 12, "buried}": 12, "cancelled}": 12,
		}, scrape(got.of("delayq_runs_total{outcome=")).cut(",topic=mail", ""))
		require.EqualValues(b, 12, got["delayq_panics_total{topic=mail}"])
		require.Equal(b, map[string]float64{"{result=duplicate,topic=mail}": 12, "{result=stored,topic=mail}": 96}, got.of("delayq_enqueues_total"))
		require.Equal(b, map[string]float64{"{result=running,topic=mail}": 12}, got.of("delayq_cancels_total"))
		require.EqualValues(b, 1, got["delayq_servers{prefix=q,topic=mail}"])
		require.EqualValues(b, 40, got["delayq_workers{prefix=q,topic=mail}"])
		require.EqualValues(b, 12, got["delayq_jobs{prefix=q,state=dead,topic=mail}"])
		require.EqualValues(b, 2, got["delayq_closing_generations{prefix=q,topic=mail}"], "which have dead jobs")

		for _, dead := range queuetest.JobsOf(b.T, b.Inspector, "mail", delayq.StateDead) {
			_, err := client.Dequeue(ctx, "mail", dead.ID)
			require.NoError(b, err)
		}
		b.Pass(15 * time.Minute)
		before := got.of("delayq_job_events_total")
		got = look()
		require.EqualValues(b, 5, got["delayq_partitions{prefix=q,topic=mail}"])
		require.Zero(b, got["delayq_closing_generations{prefix=q,topic=mail}"], "nothing is left")
		after := got.of("delayq_job_events_total")
		for name, n := range before {
			require.GreaterOrEqual(b, after[name], n, name)
		}
		require.EqualValues(b, 96, after["{event=enqueued,prefix=q,topic=mail}"])
		require.EqualValues(b, 72, after["{event=acked,prefix=q,topic=mail}"])
		require.NoError(b, server.Stop())
		look()
	})
}
