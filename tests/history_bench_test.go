package tests

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// usedCPU returns the CPU time of Redis, in µs.
func usedCPU(b *testing.B, rdb redis.UniversalClient) float64 {
	b.Helper()
	text, err := rdb.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if after, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				seconds, err := strconv.ParseFloat(after, 64)
				if err != nil {
					b.Fatal(err)
				}
				sum += seconds * 1e6
			}
		}
	}
	return sum
}

// busySums are the numbers of a busy minute: those of a topic whose jobs are mostly on time, or one
// for each series.
func busySums(every bool) (s [record.SeriesCount]int64) {
	for i := range s {
		s[i] = 100_000 + int64(i)
	}
	if !every {
		s = [record.SeriesCount]int64{0: 123_456, 1: 1234, 3: 56}
		for i, n := range []int64{98_765, 12_345, 1234, 345, 67} {
			s[record.FirstLate+i], s[record.FirstRan+3+i] = n, n
		}
	}
	return s
}

// fillHistory makes the history of a topic full: 360 minutes and 720 hours.
func fillHistory(b *testing.B, h *hand.Hand, s [record.SeriesCount]int64) {
	b.Helper()
	now, err := h.RDB.Time(b.Context()).Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, one := range []struct {
		key  string
		step time.Duration
		n    int64
	}{{h.Keys.Minutes, time.Minute, record.HistoryMinutes}, {h.Keys.Hours, time.Hour, record.HistoryHours}} {
		last := now.UnixMilli() / one.step.Milliseconds()
		var words []any
		for at := last - one.n + 1; at <= last; at++ {
			words = append(words, at%one.n, fmt.Sprint(at, " ", record.EncodeSums(record.SeriesNames, s[:])))
		}
		if err := h.RDB.HSet(b.Context(), one.key, words...).Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkChronicle is what a server sends every ten seconds for a topic whose history is full,
// and the reads of that history: the CPU time of Redis, and its memory.
func BenchmarkChronicle(b *testing.B) {
	for _, kind := range []string{"busy", "every-series"} {
		s := busySums(kind != "busy")
		text := record.EncodeSums(record.SeriesNames, s[:])
		for _, call := range []string{"send", "minutes", "hours"} {
			b.Run(kind+"/"+call, func(b *testing.B) {
				rdb := redistest.Start(b).Client(b)
				h := hand.New(b, rdb, script.DefaultPrefix, "topic")
				fillHistory(b, h, s)
				insp, keys := inspectorOf(h), h.Keys.Of(script.Chronicle, h.Keys.Receipt("history"))
				now := time.Now()
				before, n := usedCPU(b, rdb), 0
				for b.Loop() {
					var err error
					switch n++; call {
					case "send":
						_, err = h.Try(script.Chronicle, keys, strconv.Itoa(n), text)
					case "minutes":
						_, err = insp.History(b.Context(), "topic", now.Add(-6*time.Hour), now, time.Minute)
					case "hours":
						_, err = insp.History(b.Context(), "topic", now.Add(-30*24*time.Hour), now, time.Hour)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric((usedCPU(b, rdb)-before)/float64(n), "redis-µs/op")
				for unit, key := range map[string]string{"B-of-minutes": h.Keys.Minutes, "B-of-hours": h.Keys.Hours} {
					size, err := rdb.MemoryUsage(b.Context(), key, 0).Result()
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(size), unit)
				}
			})
		}
	}
}

// BenchmarkWorkHistory is the life of a job from ready to gone without and with a history. Run it
// with -benchtime 200000x -count 3.
func BenchmarkWorkHistory(b *testing.B) {
	for _, keep := range []bool{false, true} {
		b.Run(strconv.FormatBool(keep), func(b *testing.B) {
			rdb := redistest.Start(b).Client(b)
			jobs := make([]delayq.NewJob, b.N)
			for i := range jobs {
				jobs[i] = delayq.NewJob{Topic: "bench", Payload: make([]byte, 100)}
			}
			if _, err := delayq.NewClient(rdb).EnqueueBatch(b.Context(), jobs); err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			server := delayq.NewServer(rdb, delayq.Concurrency(64), delayq.KeepHistory(keep), delayq.Logger(slog.New(slog.DiscardHandler)))
			var left atomic.Int64
			left.Store(int64(b.N))
			server.HandlerFunc("bench", func(context.Context, *delayq.Job) error {
				if left.Add(-1) == 0 {
					stop()
				}
				return nil
			})
			b.ReportAllocs()
			before := usedCPU(b, rdb)
			b.ResetTimer()
			if err := server.Run(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric((usedCPU(b, rdb)-before)/float64(b.N), "redis-µs/op")
		})
	}
}
