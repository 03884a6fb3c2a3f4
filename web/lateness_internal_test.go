package web

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

func TestLatenessOf(t *testing.T) {
	due := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	job := func(late time.Duration) *delayq.JobInfo {
		return &delayq.JobInfo{Job: delayq.Job{Due: due, StartedAt: due.Add(late)}}
	}
	require.Nil(t, latenessOf(nil))
	require.Nil(t, latenessOf([]*delayq.JobInfo{{Partial: true}}), "its start was not read")
	require.Equal(t, &lateness{Jobs: 1, Since: due.Add(time.Second), P50: 1, P99: 1, Max: 1}, latenessOf([]*delayq.JobInfo{job(time.Second), {Partial: true}}))

	var many []*delayq.JobInfo
	for i := 200; i >= 1; i-- {
		many = append(many, job(time.Duration(i)*time.Millisecond))
	}
	l := latenessOf(many)
	require.Equal(t, &lateness{Jobs: 200, Since: due.Add(time.Millisecond), P50: 0.1, P99: 0.198, Max: 0.2}, l)
	require.Equal(t, 198*time.Millisecond, l.Most())
}
