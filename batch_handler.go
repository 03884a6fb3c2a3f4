package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// A BatchHandlerFunc runs several jobs of a topic in one call, for example to write them to a
// database in one statement. [Server.HandleBatch] sets it.
//
// [Job.Fail], [Job.Snooze] and [Job.Permanent] give one job an outcome of its own. The returned
// value decides what happens to all others, as that of a [Handler] does to its job: after nil they
// are done, after [Hold] they go back to ready, and so on. So do a panic and runtime.Goexit, which
// leave the outcomes that were given before. Each job has its own attempts, retries and backoff.
//
// ctx is that of the whole batch. Its deadline is the earliest end of the [Timeout] of any of the
// jobs. When a job is cancelled or replaced, or loses its lease, its outcome is dropped, and
// [Job.Err] says so. ctx is cancelled when that has happened to all of them, with the cause of the
// last one, and when the server stops, with [ErrShutdown].
type BatchHandlerFunc func(ctx context.Context, jobs []*Job) error

// BatchMiddleware wraps a [BatchHandlerFunc] in another one.
type BatchMiddleware func(BatchHandlerFunc) BatchHandlerFunc

// HandleBatch sets a handler that runs several jobs of a topic at a time. How many that are at most
// is its [BatchSize].
//
// A batch begins as soon as a worker is idle and a job is ready. It has all ready jobs that it has
// room for, so it is full if there is a backlog, and has a single job if there is no other. A job
// does not wait for others to come, unless [Gather] says so. [Concurrency] is the number of batches
// that run at the same time.
//
// In every other respect HandleBatch is like [Server.Handle]: the topic can be a pattern, and the
// errors are the same. A topic has one handler, of either kind. [BatchSize] times [Concurrency] is
// at most 100,000.
func (s *Server) HandleBatch(topic string, f BatchHandlerFunc, opts ...HandlerOption) error {
	return s.handleTopic(topic, &batchHandler{handle: f}, opts)
}

// UseBatch adds middleware around the batch handlers of all topics. It is for [Server.HandleBatch]
// what [Server.Use] is for [Server.Handle]. Neither applies to the handlers of the other.
func (s *Server) UseBatch(middleware ...BatchMiddleware) {
	if !s.made("use batch") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range middleware {
		switch {
		case s.used:
			s.log.Error("middleware not added", "err", errTooLate)
		case m == nil:
			s.errs = append(s.errs, fmt.Errorf("%w: nil batch middleware", ErrInvalid))
		default:
			s.around = append(s.around, m)
		}
	}
}

// A batchHandler takes the place of a Handler in a topic whose jobs run in batches.
type batchHandler struct {
	handle BatchHandlerFunc
	size   int
	window GatherWindow // zero: jobs are not gathered
}

// Handle runs a batch of one job.
func (h *batchHandler) Handle(ctx context.Context, job *Job) error {
	return h.handle(ctx, []*Job{job})
}

// sizeBatches returns the handler of a topic, with the size of its batches if it has any.
func (o *handlerOptions) sizeBatches(h Handler, workers int) Handler {
	batches, ok := h.(*batchHandler)
	switch {
	case !ok && o.sized:
		o.errs = append(o.errs, errors.New("BatchSize is for HandleBatch"))
	case !ok && o.window != nil:
		o.errs = append(o.errs, errors.New("Gather is for HandleBatch"))
	case ok && batches.handle == nil:
		o.errs = append(o.errs, errors.New("nil handler"))
	case ok && o.batchSize <= mostBatchSize && o.batchSize*workers > mostBatched:
		o.errs = append(o.errs, fmt.Errorf("BatchSize(%d) and Concurrency(%d): at most %d jobs at a time are allowed", o.batchSize, workers, mostBatched))
	}
	if !ok {
		return h
	}
	return &batchHandler{batches.handle, o.batchSize, o.gather()}
}

// wrapBatchLocked wraps a batch handler in the middleware of the server. Server.mu must be held.
func (s *Server) wrapBatchLocked(h *handling, batches *batchHandler) error {
	f := batches.handle
	for _, m := range slices.Backward(s.around) {
		if f = m(f); f == nil {
			return fmt.Errorf("%w: topic %q: a batch middleware returned a nil handler", ErrInvalid, h.topic)
		}
	}
	h.handler = &batchHandler{f, batches.size, batches.window}
	return nil
}

// Fail gives a job of a batch an outcome of its own. It decides what happens to the job as if a
// [Handler] had returned err at the time of the call: the job is retried or buried, [RetryIn] and
// [Again] have their effects, and after Fail(nil) the job is done, whatever the batch handler
// returns. The outcome is recorded when the batch handler has returned. The last call counts.
//
// Fail returns [ErrInvalid] if the job is not in a batch, or if the batch handler has returned.
// Then it has no effect.
func (j *Job) Fail(err error) error { return j.end("fail", err) }

// Snooze is [Job.Fail] with [Snooze]: the job runs again after d, and uses up no attempt.
func (j *Job) Snooze(d time.Duration) error { return j.end("snooze", Snooze(d)) }

// Permanent is [Job.Fail] with [Permanent]: the job is buried.
func (j *Job) Permanent(err error) error { return j.end("bury", Permanent(err)) }

// Err returns why a job of a batch no longer belongs to it: [ErrCancelled], [ErrReplaced] or
// [ErrLeaseLost]. Its outcome will be dropped, so a batch handler can pass over the job. Err
// returns nil for all other jobs, and outside a batch.
func (j *Job) Err() error {
	if j == nil || j.part == nil {
		return nil
	}
	return j.part.Gone()
}

// Context returns the context of one job of a batch. It is a child of that of the batch, which ends
// earlier if [Job.Err] is no longer nil. It has the values that each [RunHook] has added for this
// job, such as its span. Use it for calls that are about this job alone. Outside a batch it is
// [context.Background], because there the handler has the context of its job.
func (j *Job) Context() context.Context {
	if j == nil || j.part == nil {
		return context.Background()
	}
	return j.part.Ctx
}

// end sets the outcome of a job of a batch.
func (j *Job) end(call string, err error) error {
	switch {
	case j == nil:
		return fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	case j.part == nil:
		return script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(fmt.Errorf("%w: the job is not in a batch", ErrInvalid))
	case !j.part.Set(err):
		return script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(fmt.Errorf("%w: the batch handler has returned", ErrInvalid))
	}
	return nil
}

// runBatch calls a batch handler without a server, and returns the outcome of each job.
func runBatch(ctx context.Context, f BatchHandlerFunc, jobs []*Job) []error {
	parts, errs := make([]run.Part, len(jobs)), make([]error, len(jobs))
	if ctx == nil || f == nil || slices.Contains(jobs, nil) {
		for i := range errs {
			errs[i] = fmt.Errorf("run batch: %w: nil context, handler or job", ErrInvalid)
		}
		return errs
	}
	for i, job := range jobs {
		parts[i].Ctx, job.part = ctx, &parts[i]
	}
	var err error
	defer func() {
		for i := range parts {
			errs[i], _ = parts[i].Close(err, nil)
		}
	}()
	err = f(ctx, slices.Clone(jobs))
	return errs
}
