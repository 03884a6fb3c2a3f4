package prom

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// The history that servers keep in Redis and the metrics of these servers count the same runs in
// the same buckets.
func TestHistoryAgreesWithTheMetrics(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, m := t.Context(), NewMetrics()
		for i := range 22 {
			f.Enqueue(fmt.Sprint(i), delayq.Retry(0))
		}
		s := queuetest.Serve(t, f.RDB, f.Prefix, "topic", func(_ context.Context, job *delayq.Job) error {
			switch {
			case job.ID == "3":
				return errors.New("no")
			case job.ID == "4" && job.Snoozes == 0:
				return delayq.Snooze(3 * time.Millisecond)
			}
			return nil
		}, delayq.Hooks(m))
		queuetest.Until(t, func() bool {
			c := f.Stats().Counters
			return c[delayq.CounterAcked] == 21 && c[delayq.CounterBuried] == 1
		})
		require.NoError(t, s.Stop())

		now, err := f.RDB.Time(ctx).Result()
		require.NoError(t, err)
		history, err := f.Inspector.History(ctx, "topic", now.Add(-time.Hour), now.Add(time.Minute), time.Minute)
		require.NoError(t, err)
		outcomes := map[delayq.Outcome]int64{}
		late, ran := make([]int64, len(latenessBounds)+1), make([]int64, len(durationBounds)+1)
		for _, step := range history.Steps {
			require.Equal(t, latenessBounds, inSeconds(step.Lateness.Bounds))
			require.Equal(t, durationBounds, inSeconds(step.RunTime.Bounds))
			for outcome, n := range step.Outcomes {
				outcomes[outcome] += n
			}
			for i, n := range step.Lateness.Counts {
				late[i] += n
			}
			for i, n := range step.RunTime.Counts {
				ran[i] += n
			}
		}
		require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 21, delayq.OutcomeBuried: 1, delayq.OutcomeSnoozed: 1}, outcomes)
		got := scrapeOf(t, m)
		for outcome, n := range outcomes {
			require.EqualValues(t, n, got[fmt.Sprintf("delayq_runs_total{outcome=%s,topic=topic}", outcome)], outcome)
		}
		for _, family := range gather(t, m) {
			counts := map[string][]int64{lateness.name: late, runDuration.name: ran}[family.GetName()]
			if counts == nil {
				continue
			}
			h, sum := family.Metric[0].Histogram, uint64(0)
			for i, bucket := range h.Bucket {
				sum += uint64(counts[i])
				require.Equal(t, bucket.GetCumulativeCount(), sum, "%s up to %v", family.GetName(), bucket.GetUpperBound())
			}
			require.EqualValues(t, 23, h.GetSampleCount())
		}
	})
}

func inSeconds(bounds []time.Duration) (list []float64) {
	for _, bound := range bounds {
		list = append(list, bound.Seconds())
	}
	return list
}
