package tests

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// Apply to 100,000 scheduled jobs: jobs a second, and µs of Redis for each.
func BenchmarkApply(b *testing.B) {
	const jobs = 100_000
	own := redistest.Start(b)
	rdb := own.Client(b)
	client := delayq.NewClient(rdb)
	cpu := func() (us int) {
		for _, part := range regexp.MustCompile(`used_cpu_(?:user|sys):(\d+)\.(\d{6})`).FindAllStringSubmatch(rdb.Info(b.Context(), "cpu").Val(), -1) {
			n, _ := strconv.Atoi(part[1] + part[2])
			us += n
		}
		return us
	}
	for name, act := range map[string]delayq.Action{"cancel": delayq.Cancel(), "reschedule": delayq.Reschedule(delayq.ProcessIn(2 * time.Hour))} {
		b.Run(name, func(b *testing.B) {
			took, us := time.Duration(0), 0
			for range b.N {
				require.NoError(b, rdb.FlushAll(b.Context()).Err())
				list := make([]delayq.NewJob, jobs)
				for i := range list {
					list[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint("job-", i), Payload: make([]byte, 100), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
				}
				_, err := client.EnqueueBatch(b.Context(), list)
				require.NoError(b, err)
				began, before := time.Now(), cpu()
				sum, err := client.Apply(b.Context(), delayq.Query{Topic: "topic", State: delayq.StateScheduled}, act)
				took, us = took+time.Since(began), us+cpu()-before
				require.NoError(b, err)
				require.EqualValues(b, jobs, sum.Done)
			}
			b.ReportMetric(float64(b.N*jobs)/took.Seconds(), "jobs/s")
			b.ReportMetric(float64(us)/float64(b.N*jobs), "redis-us/job")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// Pages of 100 jobs by their numbers, among a million ready jobs without keys, or with a key each
// second: the time of a call, and µs of Redis for it.
func BenchmarkPageByNumber(b *testing.B) {
	const jobs = 1_000_000
	for _, keys := range []int{0, 1000} {
		own := redistest.Start(b)
		rdb := own.Client(b)
		client, inspector := delayq.NewClient(rdb), delayq.NewInspector(rdb)
		for at := 0; at < jobs; at += 50_000 {
			list := make([]delayq.NewJob, 50_000)
			for i := range list {
				list[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint("job-", at+i), Payload: make([]byte, 100)}
				if keys > 0 && i%2 == 0 {
					list[i].Options = []delayq.JobOption{delayq.Key(fmt.Sprint("key-", i%keys))}
				}
			}
			_, err := client.EnqueueBatch(b.Context(), list)
			require.NoError(b, err)
		}
		for _, at := range []int64{0, jobs / 4, jobs / 2, 3 * jobs / 4, jobs - 100} {
			b.Run(fmt.Sprintf("keys-%d/%d", keys, at), func(b *testing.B) {
				require.NoError(b, rdb.ConfigResetStat(b.Context()).Err())
				for b.Loop() {
					page, err := inspector.Jobs(b.Context(), delayq.Query{Topic: "topic", State: delayq.StateReady, Offset: at})
					require.NoError(b, err)
					require.Len(b, page.Jobs, 100)
				}
				us := regexp.MustCompile(`cmdstat_evalsha\S*:calls=\d+,usec=\d+,usec_per_call=([\d.]+)`).FindStringSubmatch(rdb.Info(b.Context(), "commandstats").Val())
				each, err := strconv.ParseFloat(us[1], 64)
				require.NoError(b, err)
				b.ReportMetric(each, "redis-us/page")
			})
		}
	}
}
