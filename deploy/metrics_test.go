package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/prom"
)

// labels are those of a metric, with their values.
type labels map[string][]string

// metrics are what a process exports after a life that has everything: the names as queries use
// them, so a histogram has three.
func metrics(t *testing.T) map[string]labels {
	t.Helper()
	families, err := life(t)
	require.NoError(t, err)
	known := map[string]labels{}
	note := func(metric, label, value string) {
		if known[metric] == nil {
			known[metric] = labels{}
		}
		if label != "" {
			known[metric][label] = append(known[metric][label], value)
		}
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			names := []string{family.GetName()}
			if h := m.GetHistogram(); h != nil {
				bucket := family.GetName() + "_bucket"
				names = []string{bucket, family.GetName() + "_sum", family.GetName() + "_count"}
				for _, b := range h.GetBucket() {
					le := strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)
					note(bucket, "le", le)
					if _, err := strconv.Atoi(le); err == nil {
						note(bucket, "le", le+".0") // as Prometheus 3 writes it
					}
				}
			}
			for _, name := range names {
				note(name, "", "")
				for _, label := range m.GetLabel() {
					note(name, label.GetName(), label.GetValue())
				}
			}
		}
	}
	return known
}

// life runs jobs that end in many ways, a schedule, and a call that fails. It returns all metrics.
var life = func() func(*testing.T) ([]*dto.MetricFamily, error) {
	var once sync.Once
	var families []*dto.MetricFamily
	var err error
	return func(t *testing.T) ([]*dto.MetricFamily, error) {
		once.Do(func() { families, err = live(t) })
		return families, err
	}
}()

func live(t *testing.T) ([]*dto.MetricFamily, error) {
	m := prom.NewMetrics()
	q := delayqtest.Start(t, delayq.Hooks(m))
	ctx := t.Context()
	q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
			switch {
			case job.ID == "panics":
				panic("on purpose")
			case job.ID == "fails":
				return delayq.Permanent(errors.New("550"))
			case job.ID == "retries" && job.Attempt < 2:
				return errors.New("421")
			case job.ID == "waits" && job.Snoozes == 0:
				return delayq.Snooze(time.Second)
			}
			return nil
		})
	}, delayq.Hooks(m))
	for _, id := range []string{"runs", "fails", "retries", "waits", "panics", "cancelled"} {
		_, err := q.Client.Enqueue(ctx, "mail", id, nil, delayq.ProcessIn(time.Minute), delayq.Retry(1))
		require.NoError(t, err)
	}
	_, err := q.Client.Dequeue(ctx, "mail", "cancelled")
	require.NoError(t, err)
	require.NoError(t, q.Client.Schedule(ctx, "mail", "daily", delayq.Every(24*time.Hour), nil))
	q.Advance(2 * time.Hour)
	q.Miniredis.SetError("LOADING on purpose")
	_, err = q.Client.Get(ctx, "mail", "runs")
	require.Error(t, err)
	q.Miniredis.SetError("")

	box := prom.NewOutboxCollector("delayq_outbox", func(context.Context) (prom.OutboxStats, error) { return prom.OutboxStats{}, nil })
	registry := prometheus.NewRegistry()
	if err := errors.Join(registry.Register(m), registry.Register(prom.NewCollector(q.Inspector)), registry.Register(box)); err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	return registry.Gather()
}
