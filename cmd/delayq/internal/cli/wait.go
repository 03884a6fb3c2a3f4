package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/delayq/delayq"
)

const schemaOutcome = "delayq.outcome/1"

// The outcomes of jobs, as records have them.
const (
	outcomeDone      = "done"
	outcomeDead      = "dead"
	outcomeCancelled = "cancelled"
	outcomeReplaced  = "replaced"
	outcomeExpired   = "expired"
)

// An outcomeRecord is how a job has ended.
type outcomeRecord struct {
	jobRef
	Outcome   string          `json:"outcome"`
	Attempt   int             `json:"attempt,omitempty"` // of a done job
	Started   stamp           `json:"started,omitzero"`
	Finished  stamp           `json:"finished,omitzero"`
	Server    string          `json:"server,omitempty"`
	runOutput                 // of a done job
	Buried    stamp           `json:"buried,omitzero"`
	Errors    []attemptRecord `json:"errors,omitempty"` // of a dead job
}

// outcomeOf returns how a wait has ended; nil if it has not learned how the job has.
func outcomeOf(topic, id string, result *delayq.Result, err error) *outcomeRecord {
	r := &outcomeRecord{jobRef: refOf(topic, id)}
	var dead *delayq.DeadError
	switch {
	case err == nil:
		r.Outcome, r.Attempt, r.Server = outcomeDone, result.Attempt, result.Server
		r.Started, r.Finished = stamp(result.StartedAt), stamp(result.FinishedAt)
		r.runOutput = outputOf(result.Output, len(result.Output))
	case errors.As(err, &dead):
		r.Outcome, r.Buried = outcomeDead, stamp(dead.BuriedAt)
		for i := range dead.Errors {
			r.Errors = append(r.Errors, attemptOf(&dead.Errors[i]))
		}
	case errors.Is(err, delayq.ErrReplaced):
		r.Outcome = outcomeReplaced
	case errors.Is(err, delayq.ErrCancelled):
		r.Outcome = outcomeCancelled
	case errors.Is(err, delayq.ErrExpired):
		r.Outcome = outcomeExpired
	default:
		return nil
	}
	return r
}

// code returns the exit code of an outcome.
func (r *outcomeRecord) code() int {
	switch r.Outcome {
	case outcomeDone:
		return exitDone
	case outcomeDead:
		return exitError
	}
	return exitConflict
}

// waitFlags are the flags of a wait.
type waitFlags struct {
	wait     bool // of enqueue
	most     time.Duration
	progress bool
	raw      bool

	said sync.Mutex // held by who writes to stderr while the wait lasts
}

const (
	mostWait = 100 * 365 * 24 * time.Hour
	usedWait = 10 * time.Minute
)

func (w *waitFlags) flags(f *pflag.FlagSet, most string) {
	w.most = usedWait
	f.Var(&duration{&w.most}, most, "how long to wait at most")
	f.BoolVar(&w.progress, "progress", false, "write to stderr how far the job has come, a line for each change")
	f.BoolVar(&w.raw, "raw", false, "write the output of the job alone: byte for byte, and with escapes on a terminal")
}

// limited returns the context of a wait.
func (w *waitFlags) limited(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if w.most < time.Millisecond || w.most > mostWait {
		return nil, nil, usage("%v is no time to wait: must be from 1ms to 100 years", w.most)
	}
	limited, cancel := context.WithTimeout(ctx, w.most)
	return limited, cancel, nil
}

// told returns what is called with the progress of a job.
func (w *waitFlags) told(a *app) func(delayq.Progress) {
	return func(p delayq.Progress) {
		w.said.Lock()
		defer w.said.Unlock()
		r := notedOf(&delayq.JobInfo{Progress: &p})
		a.say("%s", safe(r.progressText(), false))
	}
}

// ended writes how a wait has ended. limited is its context.
func (w *waitFlags) ended(a *app, limited context.Context, topic, id string, result *delayq.Result, err error) error {
	r := outcomeOf(topic, id, result, err)
	if r == nil {
		if errors.Is(err, context.DeadlineExceeded) && errors.Is(limited.Err(), context.DeadlineExceeded) {
			return &exitCode{exitPartly, fmt.Sprintf("the job has not ended within %v; it goes on", w.most)}
		}
		var network net.Error
		if errors.Is(err, delayq.ErrUnknownOutcome) && !errors.As(err, &network) { // Redis has answered
			return &exitCode{exitConflict, errorText(err)}
		}
		return err
	}
	if w.raw && err == nil {
		return a.writePayload(result.Output)
	}
	if !w.raw {
		if err := object(a, schemaOutcome, r, id, func(out io.Writer) error { return a.showOutcome(out, r) }); err != nil {
			return err
		}
	}
	if code := r.code(); code != exitDone {
		return &exitCode{code, errorText(err)}
	}
	return nil
}

// showOutcome writes an outcome for people.
func (a *app) showOutcome(w io.Writer, r *outcomeRecord) error {
	when := func(s stamp) string { return a.when(time.Time(s)) }
	attempt := ""
	if r.Attempt > 0 {
		attempt = strconv.Itoa(r.Attempt)
	}
	err := a.fields(w, "topic", r.Topic, "id", idText(r.exact()), "outcome", r.Outcome, "attempt", attempt,
		"started", when(r.Started), "finished", when(r.Finished), "buried", when(r.Buried), "server", r.Server)
	if err == nil {
		err = showOutput(w, "output", &r.runOutput)
	}
	if err != nil || len(r.Errors) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return a.showErrors(w, r.Errors)
}

func (a *app) waitCommand() *cobra.Command {
	var w waitFlags
	cmd := &cobra.Command{
		Use:   "wait TOPIC ID",
		Short: "Wait until a job has ended, and say how",
		Long: `Wait until a job has ended, and say how: with the output of a done job, and the errors of a
dead one. A job that is enqueued again, or has several due times, has ended with the last
of its runs. A done job is found only while it is kept: see --retention of enqueue, and
enqueue --wait, which needs none.

The exit code is 0 if the job is done, 1 if it is dead, 3 if there is no such job, 4 if it
was cancelled, was replaced or has expired, or if nobody knows, and 5 if it has not ended
in time. An interrupt ends the wait. The job goes on in both cases.`,
		Example: `  delayq wait report:build r-17
  delayq wait report:build r-17 --for 1h --progress --raw > report.csv`,
		Args:              counted(2, 2, "a topic and an ID"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.jobIDs(everyState...), nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.queue()
			if err != nil {
				return err
			}
			limited, cancel, err := w.limited(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			var opts []delayq.WaitOption
			if w.progress {
				opts = append(opts, delayq.OnJobProgress(w.told(a)))
			}
			result, err := client.Wait(limited, args[0], args[1], opts...)
			return w.ended(a, limited, args[0], args[1], result, err)
		},
	}
	cmd.Flags().SortFlags = false
	w.flags(cmd.Flags(), "for")
	return cmd
}

// ofEnqueue are the flags of a wait that enqueue has.
func (w *waitFlags) ofEnqueue(f *pflag.FlagSet) {
	f.BoolVar(&w.wait, "wait", false, "wait until the job has ended, and say how, as the command wait does")
	w.flags(f, "wait-for")
}

// check refuses flags of a wait without one.
func (w *waitFlags) check(cmd *cobra.Command) error {
	for _, name := range []string{"wait-for", "progress", "raw"} {
		if !w.wait && cmd.Flags().Changed(name) {
			return usage("--%s needs --wait", name)
		}
	}
	return nil
}

// An enqueuedHook is called when the job of a call is stored.
type enqueuedHook func(delayq.EnqueueEvent)

func (f enqueuedHook) Enqueued(_ context.Context, event delayq.EnqueueEvent) { f(event) }

// call stores a job, and waits until it has ended. The audit has the act before the job has ended.
func (w *waitFlags) call(cmd *cobra.Command, a *app, topic, id string, payload []byte, opts []delayq.JobOption) error {
	stored := make(chan delayq.EnqueueEvent, 1)
	client, err := a.queue(delayq.Hooks(enqueuedHook(func(e delayq.EnqueueEvent) {
		select {
		case stored <- e:
		default: // there is one enqueue
		}
	})))
	if err != nil {
		return err
	}
	limited, cancel, err := w.limited(a.act(cmd.Context()))
	if err != nil {
		return err
	}
	defer cancel()
	if w.progress {
		opts = append(opts, delayq.OnJobProgress(w.told(a)))
	}
	var result *delayq.Result
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result, err = client.Call(limited, topic, id, payload, opts...)
	}()
	var noted error
	select {
	case e := <-stored:
		if id = e.ID; e.Err == nil {
			w.said.Lock()
			noted = a.note(a.act(cmd.Context()), client, "enqueue", topic, id, "due "+exactTime(e.Due), 1)
			w.said.Unlock()
		}
		<-ended
	case <-ended: // it was not stored
	}
	return errors.Join(noted, w.ended(a, limited, topic, id, result, err))
}
