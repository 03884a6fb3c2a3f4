package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delayq/delayq/internal/redistest"
)

// BenchmarkGateway measures jobs per second and latencies of 16 clients over loopback, with
// payloads of 120 bytes. docs/howto/gateway.md has the figures.
func BenchmarkGateway(b *testing.B) {
	rdb := redistest.Shared(b)
	w := newWorld(b, rdb, redistest.Prefix(b), func(c *Config) { c.MaxLeases = 2000 })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server, bounded := w.HTTPServer(l, slog.New(slog.DiscardHandler))
	go func() { _ = server.Serve(bounded) }()
	defer func() { _ = server.Close() }()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	post := func(path, body string, into any) {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://"+l.Addr().String()+"/v1/topics/bench/"+path, strings.NewReader(body))
		if err != nil {
			b.Error(err)
			return
		}
		r.Header.Set("Authorization", "Bearer "+w.tokens["all"])
		r.Header.Set("Content-Type", "application/json")
		a, err := client.Do(r)
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = a.Body.Close() }()
		raw, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode > 201 {
			b.Errorf("%s: %d, %v: %s", path, a.StatusCode, err, raw)
			return
		}
		if into != nil {
			if err := json.Unmarshal(raw, into); err != nil {
				b.Error(err)
			}
		}
	}
	job := `{"payload":"` + strings.Repeat("x", 118) + `"}`
	batch := "[" + strings.Repeat(job+",", 99) + job + "]"
	consume := func(n int) func() int {
		return func() int {
			var t takeAnswer
			post("take", fmt.Sprintf(`{"max":%d,"wait":5,"lease":60}`, n), &t)
			if len(t.Jobs) == 0 {
				return 0
			}
			var body bytes.Buffer
			for i, j := range t.Jobs {
				fmt.Fprintf(&body, `%c{"lease":%q,"outcome":"ack"}`, "[,"[min(i, 1)], j.Lease)
			}
			body.WriteByte(']')
			post("settle", body.String(), nil)
			return len(t.Jobs)
		}
	}
	for _, c := range []struct {
		name string
		fill bool
		call func() int
	}{
		{"enqueue", false, func() int { post("jobs", job, nil); return 1 }},
		{"enqueue100", false, func() int { post("jobs", batch, nil); return 100 }},
		{"take1", true, consume(1)},
		{"take100", true, consume(100)},
	} {
		b.Run(c.name, func(b *testing.B) {
			for n := 0; c.fill && n < b.N+1600; n += 100 {
				post("jobs", batch, nil)
			}
			var done atomic.Int64
			var clients sync.WaitGroup
			times := make([][]time.Duration, 16)
			b.ResetTimer()
			began := time.Now()
			for i := range times {
				clients.Go(func() {
					for done.Load() < int64(b.N) {
						sent := time.Now()
						done.Add(int64(c.call()))
						times[i] = append(times[i], time.Since(sent))
					}
				})
			}
			clients.Wait()
			b.StopTimer()
			all := slices.Sorted(slices.Values(slices.Concat(times...)))
			b.ReportMetric(float64(done.Load())/time.Since(began).Seconds(), "jobs/s")
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-p50")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms-p99")
		})
	}
}
