package delayqtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/friend"
)

// library has what delayq does for its friends.
var library = friend.Of(new(delayq.Client))

// NewJob returns the job that a handler receives at the first run of fresh, without a queue, for a
// unit test that calls the handler itself. It has its own nonce, as after an Enqueue, and the fence
// of a lease of 30 s. It was enqueued now and started when it was due. Options that fresh does not
// set have their values without [delayq.Defaults]; an empty ID is generated.
//
// Output of the job returns what the handler has attached with SetOutput, also after its return.
// Steps ([delayq.Step]) remember their results in the job, and Progress only checks its arguments.
//
// All exported fields can be changed afterwards: Attempt for a later run, Started for a late one,
// Schedule and Slot for the job of a schedule. Options that [delayq.Client.Enqueue] would reject
// fail the test.
func NewJob(t T, fresh delayq.NewJob) *delayq.Job {
	t.Helper()
	job, err := library.NewJob(fresh, time.Now())
	if err != nil {
		t.Fatalf("delayqtest: new job: %v", err)
		return nil // not reached in a test
	}
	return job
}

// NextRun returns the job that the handler receives at the run after that of job, and does not
// change job. The next run is another attempt with the same nonce. It begins 30 s after the first,
// as if the lease of that had run out, and its fence is higher. With it a test can show that a
// stale worker is refused. Steps that job has made are not repeated.
func NextRun(job *delayq.Job) *delayq.Job {
	return library.NextRun(job)
}

// HandedOver returns the jobs that a handler has handed over with [delayq.Job.Then], in the order
// of its calls, as their own handlers would receive them if job had been done when it began. So a
// test can call the next handler with them. job is that of [NewJob] or [NextRun], or of a handler
// that has not returned. Whether the jobs are enqueued depends on what the handler returns: they
// are if it returns nil or [delayq.Again].
func HandedOver(job *delayq.Job) []*delayq.Job {
	return library.HandedOver(job)
}

// AssertThen fails the test unless a handler has handed over a job with this topic and ID (see
// [HandedOver]), and returns the last one. An empty ID stands for any. The message says what was
// handed over instead; then the test continues, and AssertThen returns nil.
func AssertThen(t T, job *delayq.Job, topic, id string) (next *delayq.Job) {
	t.Helper()
	var others []string
	for _, one := range HandedOver(job) {
		if one.Topic == topic && (id == "" || one.ID == id) {
			next = one
		}
		if len(others) < 10 {
			others = append(others, fmt.Sprintf("topic %q job %q", one.Topic, one.ID))
		}
	}
	switch {
	case next != nil:
	case len(others) == 0:
		t.Errorf("delayqtest: want topic %q job %q handed over, but no job is", topic, id)
	default:
		t.Errorf("delayqtest: want topic %q job %q handed over, but there are: %s", topic, id, strings.Join(others, ", "))
	}
	return next
}

// RunBatch calls a batch handler with jobs of [NewJob] and returns the outcome of each: the error
// of its own ([delayq.Job.Fail] and the like), else the one that the handler returned, and nil if
// the job is done. A panic of the handler is not recovered. ctx is the context of the batch, and
// that of each job ([delayq.Job.Context]). No job is ever lost.
func RunBatch(ctx context.Context, handler delayq.BatchHandlerFunc, jobs ...*delayq.Job) []error {
	return library.RunBatch(ctx, handler, jobs)
}
