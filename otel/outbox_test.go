package delayqotel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/delayq/delayq"
	delayqotel "github.com/delayq/delayq/otel"
	"github.com/delayq/delayq/prom"
)

// A database is asked once in an interval. While it does not answer, nothing is said about its
// rows. A backend that translates names for Prometheus has the series of the Prometheus module.
func TestObserveOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h handled
		otel.SetErrorHandler(&h)
		t.Cleanup(func() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) })
		looks := 0
		var fail error
		stats := func(ctx context.Context) (delayqotel.OutboxStats, error) {
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, 2*time.Second, time.Until(deadline))
			looks++
			return delayqotel.OutboxStats{Rows: 7, Oldest: 1500 * time.Millisecond, Dead: 3, Later: 4}, fail
		}
		g := measure()
		registration, err := delayqotel.ObserveOutbox("o", stats, delayqotel.MeterProvider(g.provider))
		require.NoError(t, err)
		full := map[string]float64{
			"delayq.outbox_rows{outbox=o}": 7, "delayq.outbox_oldest_row{outbox=o}": 1.5, "delayq.outbox_dead_rows{outbox=o}": 3,
			"delayq.outbox_later_rows{outbox=o}": 4, "delayq.outbox_up{outbox=o}": 1,
		}
		require.Equal(t, full, g.read(t))
		time.Sleep(4999 * time.Millisecond)
		require.Equal(t, full, g.read(t))
		require.Equal(t, 1, looks)
		fail = errors.New("the tables are missing")
		for range 3 {
			time.Sleep(5 * time.Second)
			require.Equal(t, map[string]float64{"delayq.outbox_up{outbox=o}": 0}, g.read(t))
		}
		require.Len(t, h.errs, 1)
		require.EqualError(t, h.errs[0], `delayqotel: look at outbox "o": the tables are missing`)
		fail = nil
		time.Sleep(5 * time.Second)
		require.Equal(t, full, g.read(t))
		require.Equal(t, 5, looks)
		require.NoError(t, registration.Unregister())
		require.Empty(t, g.read(t))
	})

	theirs, ours := prometheus.NewRegistry(), prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(ours), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	require.NoError(t, err)
	stats := func(context.Context) (delayqotel.OutboxStats, error) {
		return delayqotel.OutboxStats{Rows: 7, Oldest: 1500 * time.Millisecond, Dead: 3, Later: 4}, nil
	}
	_, err = delayqotel.ObserveOutbox("o", stats, delayqotel.MeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	require.NoError(t, err)
	require.NoError(t, theirs.Register(prom.NewOutboxCollector("o", func(ctx context.Context) (prom.OutboxStats, error) {
		s, err := stats(ctx)
		return prom.OutboxStats(s), err
	})))
	want := flat(t, theirs)
	require.Len(t, want, 5)
	require.Equal(t, want, flat(t, ours))
}

func TestInvalidOutboxes(t *testing.T) {
	stats := func(context.Context) (delayqotel.OutboxStats, error) { return delayqotel.OutboxStats{}, nil }
	for says, observe := range map[string]func() error{
		`ObserveOutbox(""): the name must be text`: func() error { _, err := delayqotel.ObserveOutbox("", stats); return err },
		`ObserveOutbox("\xff"): the name must be`:  func() error { _, err := delayqotel.ObserveOutbox("\xff", stats); return err },
		"the function is nil":                      func() error { _, err := delayqotel.ObserveOutbox("o", nil); return err },
		"MinInterval(-1s)": func() error {
			_, err := delayqotel.ObserveOutbox("o", stats, delayqotel.MinInterval(-time.Second))
			return err
		},
	} {
		err := observe()
		require.ErrorIs(t, err, delayq.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
}
