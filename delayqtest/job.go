package delayqtest

import (
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/bridge"
)

// NewJob makes the job that a handler gets at the first run of fresh, without a queue: for a unit test that calls the
// handler itself. It has a nonce of its own, as each Enqueue gives one, and the fence of a lease of 30 s. It was enqueued
// now and started when it was due. What fresh does not say is as it holds without any [delayq.Defaults]; an empty ID is
// generated.
//
// All exported fields may be changed afterwards: Attempt for a later run, Started for a late one, Schedule and Slot for
// the job of a schedule. Options that [delayq.Client.Enqueue] would refuse fail the test.
func NewJob(t T, fresh delayq.NewJob) *delayq.Job {
	t.Helper()
	job, err := bridge.NewJob(fresh, time.Now())
	if err != nil {
		t.Fatalf("delayqtest: new job: %v", err)
		return nil // not reached in a test
	}
	return job.(*delayq.Job)
}

// NextRun makes the job that the handler gets at the run after that of job, which stays as it is. The next run is another
// attempt of the same nonce. It begins 30 s after the other one, as if the lease of that had run out, and its fence is
// higher: so a test can show that a stale worker is refused.
func NextRun(job *delayq.Job) *delayq.Job {
	return bridge.NextRun(job).(*delayq.Job)
}
