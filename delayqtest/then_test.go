package delayqtest_test

import (
	"context"
	"testing"
	"time"

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

// A unit test of a handler sees what it hands over, and calls the next handler with that.
func TestWhatAHandlerHandsOver(t *testing.T) {
	t.Parallel()
	topic := delayq.NewTopic[int]("b", delayq.JSON)
	job := delayqtest.NewJob(t, delayq.NewJob{Topic: "a", ID: "1"})
	require.Empty(t, delayqtest.HandedOver(job))
	require.NoError(t, job.Then("c", "x", []byte("first")))
	require.NoError(t, topic.Then(job, "", 7, delayq.ProcessIn(time.Hour), delayq.Key("k"), delayq.Header("a", "b"), delayq.Retry(3)))
	require.NoError(t, job.Then("c", "x", []byte("second"), delayq.Replace()))
	require.Error(t, job.Then("", "x", nil))

	all := delayqtest.HandedOver(job)
	require.Len(t, all, 3)
	require.Equal(t, "first", string(all[0].Payload))
	next := delayqtest.AssertThen(t, job, "b", "")
	require.Equal(t, all[1].ID, next.ID)
	require.NotEmpty(t, next.ID)
	n, err := topic.Decode(next)
	require.NoError(t, err)
	require.Equal(t, 7, n)
	require.Equal(t, job.StartedAt.Truncate(time.Millisecond).Add(time.Hour), next.Due)
	require.Equal(t, []any{"k", "b", 3}, []any{next.Key, next.Headers["a"], next.Retries})
	require.NoError(t, next.Then("d", "y", nil), "it is that of a handler")
	require.Equal(t, "second", string(delayqtest.AssertThen(t, job, "c", "x").Payload))
	require.Empty(t, delayqtest.HandedOver(delayqtest.NextRun(job)))

	var fake fakeT
	require.Equal(t, `error: delayqtest: want topic "b" job "2" handed over, but there are: topic "c" job "x", topic "b" job "`+next.ID+`", topic "c" job "x"`,
		fake.try(func() { require.Nil(t, delayqtest.AssertThen(&fake, job, "b", "2")) }))
	require.Equal(t, `error: delayqtest: want topic "b" job "2" handed over, but no job is`,
		fake.try(func() { delayqtest.AssertThen(&fake, nil, "b", "2") }))
}
