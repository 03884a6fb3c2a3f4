package delayqtest_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// Advance passes on what runs hand over, and runs it, through several topics.
func TestAdvancePassesJobsOn(t *testing.T) {
	t.Parallel()
	q := delayqtest.Start(t)
	var ran []string
	step := func(next string) delayq.HandlerFunc {
		return func(_ context.Context, job *delayq.Job) error {
			ran = append(ran, job.Topic)
			if next == "" {
				return nil
			}
			return job.Then(next, job.ID, nil)
		}
	}
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("a", step("b"), delayq.Concurrency(1))
		s.HandlerFunc("b", step("c"), delayq.Concurrency(1))
		s.HandlerFunc("c", step(""), delayq.Concurrency(1))
	})
	enqueue(t, q, "a", "1", 0)
	q.Advance(0)
	require.Equal(t, []string{"a", "b", "c"}, ran)
}
