package prom

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// A database is asked once in an interval, however many scrape. While it does not answer, nothing
// is said about its rows.
func TestOutboxCollector(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looks, frozen := 0, make(chan struct{})
		var fail error
		var logged bytes.Buffer
		c := NewOutboxCollector("shop.delayq_outbox", func(ctx context.Context) (OutboxStats, error) {
			looks++
			if errors.Is(fail, context.DeadlineExceeded) { // a driver that does not follow contexts
				<-frozen
			}
			return OutboxStats{Rows: int64(looks), Oldest: 1500 * time.Millisecond, Dead: 3, Later: 4}, fail
		}, Logger(slog.New(slog.NewTextHandler(&logged, nil))))
		problems, err := testutil.CollectAndLint(c)
		require.NoError(t, err)
		require.Empty(t, problems)
		full := func(rows float64) scrape {
			return scrape{
				"delayq_outbox_rows{outbox=shop.delayq_outbox}": rows, "delayq_outbox_oldest_row_seconds{outbox=shop.delayq_outbox}": 1.5,
				"delayq_outbox_dead_rows{outbox=shop.delayq_outbox}": 3, "delayq_outbox_later_rows{outbox=shop.delayq_outbox}": 4,
				"delayq_outbox_up{outbox=shop.delayq_outbox}": 1,
			}
		}
		down := scrape{"delayq_outbox_up{outbox=shop.delayq_outbox}": 0}
		require.Equal(t, full(1), scrapeOf(t, c))
		require.Equal(t, namesOf(outboxFamilies...), scrapeOf(t, c).names())
		time.Sleep(4999 * time.Millisecond)
		require.Equal(t, full(1), scrapeOf(t, c))
		time.Sleep(time.Millisecond)
		require.Equal(t, full(2), scrapeOf(t, c))

		fail = errors.New("the tables are missing")
		time.Sleep(time.Minute)
		require.Equal(t, down, scrapeOf(t, c))
		fail = context.DeadlineExceeded
		time.Sleep(time.Minute)
		began := time.Now()
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() { require.Equal(t, down, scrapeOf(t, c)) })
		}
		group.Wait()
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, 4, looks)

		fail = nil
		close(frozen)
		synctest.Wait()
		time.Sleep(time.Minute)
		require.Equal(t, full(5), scrapeOf(t, c))
		require.Equal(t, 1, strings.Count(logged.String(), "look failed"), logged.String())
		require.Contains(t, logged.String(), "outbox=shop.delayq_outbox err=\"the tables are missing\"")
		require.Equal(t, 1, strings.Count(logged.String(), "look works again"), logged.String())
	})
}

func TestOutboxCollectorSurvivesCallbacks(t *testing.T) {
	t.Parallel()
	act := func() { panic("!") }
	c := NewOutboxCollector("o", func(context.Context) (OutboxStats, error) {
		act()
		return OutboxStats{}, nil
	}, always, Logger(slog.New(slog.DiscardHandler)))
	require.Equal(t, scrape{"delayq_outbox_up{outbox=o}": 0}, scrapeOf(t, c))
	act = runtime.Goexit
	require.Equal(t, scrape{"delayq_outbox_up{outbox=o}": 0}, scrapeOf(t, c))
	act = func() {}
	require.EqualValues(t, 1, scrapeOf(t, c)["delayq_outbox_up{outbox=o}"])
}

func TestInvalidOutboxCollectors(t *testing.T) {
	t.Parallel()
	stats := func(context.Context) (OutboxStats, error) { return OutboxStats{}, nil }
	for says, c := range map[string]prometheus.Collector{
		`NewOutboxCollector(""): the name must be text`:    NewOutboxCollector("", stats),
		`NewOutboxCollector("\xff"): the name must be tex`: NewOutboxCollector("\xff", stats),
		"the function is nil":                              NewOutboxCollector("o", nil),
		"an option of NewOutboxCollector is nil":           NewOutboxCollector("o", stats, nil),
		"Timeout(0s): must be from 1ms to 1m":              NewOutboxCollector("o", stats, Timeout(0)),
	} {
		err := prometheus.NewRegistry().Register(c)
		require.ErrorIs(t, err, delayq.ErrInvalid, says)
		require.ErrorContains(t, err, says)
		testutil.CollectAndCount(prometheus.CollectorFunc(c.Collect)) // does not panic
	}
}
