package rig

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/delayq/delayq"
)

// SnoozeBit is how long a task of the step snooze sleeps at a time.
const SnoozeBit = 100 * time.Millisecond

// handler carries out tasks and writes down what happens to them.
type handler struct {
	rec    *Recorder
	client *Client // for tasks that enqueue
	oneKey bool    // a batch has the jobs of one key
}

// began notes the start of a run, and returns what its other events have in common.
func (h handler) began(job *delayq.Job) (e Event, w work) {
	e = Event{
		Topic: job.Topic, ID: job.ID, Key: job.Key, Attempt: job.Attempt, Fence: job.Fence(), Nonce: hex.EncodeToString([]byte(job.Nonce())),
		Started: job.StartedAt.UnixMicro(), Due: job.Due.UnixMilli(), Sum: sum(job.Payload),
		Made: job.EnqueuedAt.UnixMilli(),
	}
	w, err := workOf(job)
	if err != nil {
		e.Err = "payload: " + err.Error()
	}
	e.Inc = w.Inc
	start := e
	start.Op = OpStart
	h.rec.Record(start)
	return e, w
}

// ended notes the end of a run.
func (h handler) ended(job *delayq.Job, e Event, result string, step string) {
	e.Op, e.Result, e.Fence = OpEnd, result, job.Fence()
	if verb, arg, _ := strings.Cut(step, ":"); result == verb && (verb == "hold" || verb == "holdkey") {
		d, _ := time.ParseDuration(arg) // step has parsed it
		e.Delay = d.Milliseconds()
	}
	h.rec.Record(e)
}

// HandleBatch runs one attempt of each of several tasks, one after the other. A panic is that of
// all that have not ended.
func (h handler) HandleBatch(ctx context.Context, jobs []*delayq.Job) error {
	events, todo := make([]Event, len(jobs)), make([]work, len(jobs))
	for i, job := range jobs {
		events[i], todo[i] = h.began(job)
		if h.oneKey && job.Key != jobs[0].Key {
			mixed := events[i]
			mixed.Op, mixed.Err = OpMixed, fmt.Sprintf("in a batch with a job of key %q", jobs[0].Key)
			h.rec.Record(mixed)
		}
	}
	done, result := 0, "goexit"
	defer func() {
		p := recover()
		if p != nil {
			result = "panic"
		}
		for i := done; i < len(jobs); i++ {
			h.ended(jobs[i], events[i], result, "")
		}
		if p != nil {
			panic(p)
		}
	}()
	for i, job := range jobs {
		step := todo[i].step(job.Attempt)
		how, err := h.step(ctx, job, todo[i], step)
		if lost := cmp.Or(job.Err(), context.Cause(ctx)); lost != nil {
			e := events[i]
			e.Op, e.Result = OpLost, cause(lost)
			h.rec.Record(e)
		}
		h.ended(job, events[i], how, step)
		done = i + 1
		if err := job.Fail(err); err != nil {
			return err
		}
	}
	return nil
}

// Handle runs one attempt of a task.
func (h handler) Handle(ctx context.Context, job *delayq.Job) (err error) {
	e, w := h.began(job)
	step := w.step(job.Attempt)

	watch := context.AfterFunc(ctx, func() {
		lost := e
		lost.Op, lost.Result = OpLost, cause(context.Cause(ctx))
		h.rec.Record(lost)
	})
	result := "goexit"
	defer func() {
		p := recover()
		if p != nil {
			result = "panic"
		}
		watch()
		h.ended(job, e, result, step)
		if p != nil {
			panic(p)
		}
	}()
	result, err = h.step(ctx, job, w, step)
	return err
}

// errTask is the failure of a task that is told to fail.
var errTask = errors.New("told to fail")

func (h handler) step(ctx context.Context, job *delayq.Job, w work, step string) (result string, err error) {
	verb, arg, _ := strings.Cut(step, ":")
	d, err := time.ParseDuration(arg)
	if arg != "" && err != nil {
		return "err", err
	}
	if w.Then != nil {
		if err := h.handOver(job, w); err != nil {
			return "err", err
		}
		w.dieAt(job, AfterThen)
	}
	switch verb {
	case "ok":
		return "ok", nil
	case "err":
		return "err", errTask
	case "perm":
		return "perm", delayq.Permanent(errTask)
	case "panic":
		panic("told to panic")
	case "goexit":
		runtime.Goexit()
	case "exit":
		os.Exit(3)
	case "hang":
		select {
		case <-time.After(d):
			return "ok", nil
		case <-ctx.Done():
			return "err", context.Cause(ctx)
		}
	case "deaf":
		time.Sleep(d) // the point of it: nothing else ends this
		return "ok", nil
	case "snooze":
		if job.StartedAt.Before(job.EnqueuedAt.Add(d)) {
			return "snooze", delayq.Snooze(SnoozeBit)
		}
		return "ok", nil
	case "steps", "half":
		return h.steps(ctx, job, w, d, verb == "half")
	case "hold", "holdkey":
		switch { // the microseconds of the take are as good as any number
		case job.Fence()%3 == 0:
			return "ok", nil
		case verb == "hold":
			return verb, delayq.Hold(d)
		}
		return verb, delayq.HoldKey(d)
	case "renew", "again":
		if w.Left == 0 {
			return "ok", nil
		}
		next := &Task{Topic: job.Topic, ID: job.ID, Steps: w.Steps, Left: w.Left - 1, Then: w.Then, Pad: w.Pad, Empty: w.Empty, Delay: d, Retries: job.Retries}
		if job.Key != "" {
			next.Options = append(next.Options, delayq.Key(job.Key))
		}
		if verb == "again" {
			return h.again(job, w, next)
		}
		if err := h.client.Put(ctx, next, true); err != nil {
			return "err", err
		}
		return "ok", nil
	}
	return "err", fmt.Errorf("unknown step %q", step)
}

// mostSteps is how many steps a task of steps makes.
const mostSteps = 4

// steps makes the steps of a task, or the first half of them. The result of each is the nonce.
func (h handler) steps(ctx context.Context, job *delayq.Job, w work, d time.Duration, half bool) (result string, err error) {
	nonce := hex.EncodeToString([]byte(job.Nonce()))
	for i := int64(1); i <= mostSteps; i++ {
		if half && i > mostSteps/2 {
			return "err", errTask
		}
		if err := job.Progress(i-1, mostSteps, ""); err != nil {
			return "err", err
		}
		e := Event{
			Op: OpStep, Type: OK, Result: StepKnown, Topic: job.Topic, ID: job.ID, Inc: w.Inc, Attempt: job.Attempt,
			Started: job.StartedAt.UnixMicro(), Nonce: nonce, Count: i,
		}
		if i == 2 {
			w.dieAt(job, BeforeStep)
		}
		got, err := delayq.Step(ctx, job, fmt.Sprint("step ", i), func(ctx context.Context, key string) (string, error) {
			e.Type, e.Result, e.Sum = Invoke, "", key
			h.rec.Record(e)
			if i == 2 {
				w.dieAt(job, InStep)
			}
			select {
			case <-time.After(d / mostSteps):
				return nonce, nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		})
		if err != nil {
			return "err", err
		}
		if e.Type = OK; got != nonce {
			e.Err = fmt.Sprintf("its result is %q", got)
		}
		h.rec.Record(e)
		if i == 2 {
			w.dieAt(job, AfterStep)
		}
	}
	return "ok", job.SetOutput([]byte(nonce))
}

// dieAt kills the process if this is the line at which the first attempt is to do so.
func (w work) dieAt(job *delayq.Job, line string) {
	if w.Die == line && job.Attempt == 1 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal comes
	}
}

// handOver notes the task that a run hands over, and hands it over.
func (h handler) handOver(job *delayq.Job, w work) error {
	next := &Task{Topic: cmp.Or(w.Then.Topic, job.Topic), Inc: calls.Add(1), Delay: w.Then.Delay, Retries: -1}
	next.ID = fmt.Sprintf("%s>%d", job.ID, next.Inc)
	if w.Then.Hops > 0 {
		next.Then = &Hand{Topic: w.Then.Topic, Delay: w.Then.Delay, Hops: w.Then.Hops - 1}
	}
	e, payload, opts, err := next.prepare(OpThen)
	if err != nil {
		return err
	}
	h.rec.Record(Event{
		Op: OpThen, Topic: job.Topic, ID: job.ID, Inc: w.Inc, Attempt: job.Attempt, Started: job.StartedAt.UnixMicro(),
		Next: &Next{e.Topic, e.ID, e.Inc, e.Delay, e.Sum},
	})
	return job.Then(next.Topic, next.ID, payload, opts...)
}

// again notes the task that is to follow, and asks for it.
func (h handler) again(job *delayq.Job, w work, next *Task) (result string, err error) {
	next.Inc = calls.Add(1)
	payload, opts, err := next.payload()
	if err != nil {
		return "err", err
	}
	h.rec.Record(Event{
		Op: OpAgain, Topic: job.Topic, ID: job.ID, Inc: next.Inc, Of: w.Inc, Attempt: job.Attempt, Started: job.StartedAt.UnixMicro(),
		Delay: next.Delay.Milliseconds(), Retries: next.Retries, Sum: sum(payload),
	})
	return "again", delayq.Again(payload, append(append(opts, next.Options...), delayq.ProcessIn(next.Delay))...)
}

// cause names the cause of a context's end.
func cause(err error) string {
	for _, known := range []struct {
		err  error
		name string
	}{
		{delayq.ErrReplaced, "replaced"}, {delayq.ErrLeaseLost, "lease_lost"}, {delayq.ErrCancelled, "cancelled"}, {delayq.ErrShutdown, "shutdown"}, {delayq.ErrTimeout, "timeout"},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return "end"
}

// hooks write down what becomes of runs.
type hooks struct{ rec *Recorder }

func (h hooks) settled(e delayq.RunEvent) {
	inc, _ := strconv.ParseInt(e.Headers[incHeader], 10, 64) // 0: not a task of ours
	event := Event{
		Op: OpSettled, Topic: e.Topic, ID: e.ID, Inc: inc, Attempt: e.Attempt, Started: e.StartedAt.UnixMicro(), Result: string(e.Outcome),
		Made: e.EnqueuedAt.UnixMilli(),
	}
	if !e.NextDue.IsZero() {
		event.Due = e.NextDue.UnixMilli()
	}
	h.rec.Record(event)
}

// The hooks of all outcomes.
func (h hooks) Done(e delayq.RunEvent)      { h.settled(e) }
func (h hooks) Again(e delayq.RunEvent)     { h.settled(e) }
func (h hooks) Retried(e delayq.RunEvent)   { h.settled(e) }
func (h hooks) Snoozed(e delayq.RunEvent)   { h.settled(e) }
func (h hooks) Buried(e delayq.RunEvent)    { h.settled(e) }
func (h hooks) Cancelled(e delayq.RunEvent) { h.settled(e) }
func (h hooks) Replaced(e delayq.RunEvent)  { h.settled(e) }
func (h hooks) LeaseLost(e delayq.RunEvent) { h.settled(e) }
func (h hooks) Expired(e delayq.RunEvent)   { h.settled(e) }
func (h hooks) Returned(e delayq.RunEvent)  { h.settled(e) }
func (h hooks) Held(e delayq.RunEvent)      { h.settled(e) }

// Pruned notes how many dead jobs a server has removed.
func (h hooks) Pruned(e delayq.PruneEvent) {
	h.rec.Record(Event{Op: OpPruned, Topic: e.Topic, Count: int64(e.Dead)})
}
