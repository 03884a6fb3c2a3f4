package web_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/web"
)

// BenchmarkFirstPage measures how long a page about a topic with a million scheduled jobs takes for
// its first viewer, who finds nothing that others have read. Redis is a server of its own.
func BenchmarkFirstPage(b *testing.B) {
	redistest.Need(b)
	server, err := redistest.StartE("")
	require.NoError(b, err)
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	const jobs, batch = 1_000_000, 1000
	client := delayq.NewClient(rdb)
	list := make([]delayq.NewJob, batch)
	for i := 0; i < jobs; i += batch {
		for n := range list {
			list[n] = delayq.NewJob{
				Topic: "order:cancel", ID: fmt.Sprintf("order-%07d", i+n), Payload: make([]byte, 100),
				Options: []delayq.JobOption{delayq.ProcessIn(time.Hour + time.Duration(i+n)*time.Second)},
			}
		}
		_, err := client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
	}
	inspector := delayq.NewInspector(rdb)
	for _, target := range []struct{ name, link string }{
		{"topics", "/topics"},
		{"topic", link("topic", "topic", "order:cancel")},
		{"jobs", link("jobs", "topic", "order:cancel", "state", "scheduled")},
		{"search", link("jobs", "topic", "order:cancel", "state", "scheduled", "prefix", "order-05")},
		{"job", link("job", "topic", "order:cancel", "id", "order-0500000")},
	} {
		b.Run(target.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				h, err := web.New(inspector, web.Actions(client))
				require.NoError(b, err)
				began := time.Now()
				require.Equal(b, http.StatusOK, get(b, h, target.link).Code)
				took = append(took, time.Since(began))
				h.Close()
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
			b.ReportMetric(took[len(took)-1].Seconds()*1e3, "max-ms")
		})
	}
}
