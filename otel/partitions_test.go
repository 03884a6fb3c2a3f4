package delayqotel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	delayqotel "github.com/delayq/delayq/otel"
)

// Metrics and spans of a topic with partitions speak of the topic. Nothing names a partition.
func TestPartitionsAreTheirTopic(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		g, r := measure(), record()
		metrics := delayqotel.NewMetrics(delayqotel.MeterProvider(g.provider))
		hooks := []delayq.Hook{r.tracing(), metrics}
		inspector := delayq.NewInspector(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(metrics))
		_, err := delayqotel.Observe(inspector, delayqotel.MeterProvider(g.provider), delayqotel.MinInterval(0))
		require.NoError(b, err)
		client, stop := serve(b, "mail", func(ctx context.Context, job *delayq.Job) error {
			switch kind, _, _ := strings.Cut(job.ID, "-"); {
			case kind == "fails" && job.Attempt == 1:
				return delayq.RetryIn(time.Minute, errTest)
			case kind == "dies":
				return delayq.Permanent(errTest)
			case kind == "hands":
				return job.Then("later", "of "+job.ID, nil, delayq.ProcessIn(1000*time.Hour))
			case kind == "hangs":
				<-ctx.Done()
			}
			return nil
		}, hooks, delayq.Concurrency(20))
		for round, parts := range []int{0, 3, 5} {
			if parts > 0 {
				require.NoError(b, client.Partition(b.Context(), "mail", parts))
			}
			var list []delayq.NewJob
			for _, kind := range []string{"runs", "fails", "dies", "hands", "hangs"} {
				for i := range 4 { // in several partitions
					list = append(list, delayq.NewJob{Topic: "mail", ID: fmt.Sprint(kind, "-", round, "-", i)})
				}
			}
			_, err := client.EnqueueBatch(b.Context(), list)
			require.NoError(b, err)
			enqueue(b, client, "mail", fmt.Sprint("later-", round), delayq.ProcessIn(time.Hour))
			b.Pass(time.Second)
			for i := range 4 {
				_, err := client.Dequeue(b.Context(), "mail", fmt.Sprint("hangs-", round, "-", i))
				require.NoError(b, err)
			}
			b.Pass(2 * time.Minute)
			all := g.read(b)
			require.Equal(b, map[string]float64{
				"delayq.partitions{prefix=q topic=mail}": float64(parts), "delayq.partitions{prefix=q topic=later}": 0,
				"delayq.closing_generations{prefix=q topic=mail}": float64(round), "delayq.closing_generations{prefix=q topic=later}": 0,
			}, only(all, "delayq.partitions", "delayq.closing_generations"))
		}
		require.NoError(b, stop())
		all := g.read(b)
		for name := range all {
			require.NotContains(b, name, "#")
		}
		require.Equal(b, map[string]float64{
			"delayq.runs{outcome=acked topic=mail}": 36, "delayq.runs{outcome=retried topic=mail}": 12,
			"delayq.runs{outcome=buried topic=mail}": 12, "delayq.runs{outcome=cancelled topic=mail}": 12,
			"delayq.enqueues{result=stored topic=mail}": 63, "delayq.cancels{result=running topic=mail}": 12,
			"delayq.jobs{prefix=q state=dead topic=mail}": 12, "delayq.jobs{prefix=q state=scheduled topic=mail}": 3,
			"delayq.jobs{prefix=q state=scheduled topic=later}": 12,
		}, counted(all, "delayq.runs", "delayq.enqueues", "delayq.cancels", "delayq.jobs"))
		require.Len(b, r.of("fails-2-0"), 2, "spans of the runs in a partition")
		for _, s := range r.spans() {
			text := s.Name()
			for _, a := range s.Attributes() {
				text += " " + a.Value.String()
			}
			for _, e := range s.Events() {
				for _, a := range e.Attributes {
					text += " " + a.Value.String()
				}
			}
			require.NotContains(b, text, "#")
		}
	})
}
