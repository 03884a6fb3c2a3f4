// What the acts on jobs are called, and what each does with jobs that are named.

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// A verb is a command that acts on jobs: on those that are named, or on all that match.
type verb struct {
	name    string
	past    string // "cancelled"
	short   string
	long    string
	example string
	states  []delayq.State // of the jobs it can act on; the first one is the default unless named
	named   bool           // --state has to be given
	flags   func(cmd *cobra.Command)
	ready   func(cmd *cobra.Command) error // reads its own flags
	action  func() delayq.Action
	// shift is how much later the due times become, with --by; nil or 0: they do not.
	shift *time.Duration
	// batch acts on jobs and returns the error of each, and one about the audit.
	batch func(ctx context.Context, c *delayq.Client, topic string, ids []string) ([]error, error)
}

func (v *verb) stateNames() (list []string) {
	for _, s := range v.states {
		list = append(list, string(s))
	}
	return list
}

// unaudited returns what the error of a batch says about the audit. Each job has its own errors.
func unaudited(err error) error {
	_, silent := unrecorded(err)
	return silent
}

// each makes calls about single jobs side by side, so that they travel together.
func each(ids []string, call func(id string) error) []error {
	return side(len(ids), func(i int) error { return call(ids[i]) })
}

func (a *app) verbs() []*verb {
	var due dueFlags
	var when delayq.DueOption
	var by time.Duration
	var reason string
	var tomb time.Duration
	var tombs []delayq.DequeueOption
	reschedule := func(due func() delayq.DueOption) func(context.Context, *delayq.Client, string, []string) ([]error, error) {
		return func(ctx context.Context, c *delayq.Client, topic string, ids []string) ([]error, error) {
			jobs := make([]delayq.NewDue, len(ids))
			for i, id := range ids {
				jobs[i] = delayq.NewDue{Topic: topic, ID: id, Due: due()}
			}
			results, err := c.RescheduleBatch(ctx, jobs)
			errs := make([]error, len(ids))
			for i, r := range results {
				errs[i] = r.Err
			}
			return errs, unaudited(err)
		}
	}
	now := func() delayq.DueOption { return delayq.ProcessIn(0) }
	return []*verb{{
		name: "cancel", past: "cancelled", short: "Cancel jobs",
		long: `Cancel jobs, so that they do not run. The context of a running job is cancelled. A dead
job is deleted. With --tombstone, no job with these IDs can be enqueued for a while, and
the IDs are closed also if there are no such jobs.`,
		example: `  delayq cancel order:cancel order-42
  delayq cancel order:cancel order-43 --tombstone 1h
  delayq cancel mail:welcome --state scheduled --header tenant=7 --dry-run`,
		states: []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead}, named: true,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().Var(&duration{&tomb}, "tombstone", "close the IDs that are named for this time; 0s: free them")
		},
		ready: func(cmd *cobra.Command) error {
			if tombs = nil; cmd.Flags().Changed("tombstone") {
				tombs = append(tombs, delayq.Tombstone(tomb))
			}
			return nil
		},
		action: delayq.Cancel,
		batch: func(ctx context.Context, c *delayq.Client, topic string, ids []string) ([]error, error) {
			jobs := make([]delayq.JobRef, len(ids))
			for i, id := range ids {
				jobs[i] = delayq.JobRef{Topic: topic, ID: id}
			}
			results, err := c.CancelBatch(ctx, jobs, tombs...)
			errs := make([]error, len(ids))
			for i, r := range results {
				errs[i] = r.Err
			}
			return errs, unaudited(err)
		},
	}, {
		name: "run", past: "made due", short: "Make scheduled jobs due now",
		long: "Make scheduled jobs due now, also those that back off or snooze.",
		example: `  delayq run order:cancel order-42
  delayq run mail:welcome --error "connection refused" --spread 10m`,
		states: []delayq.State{delayq.StateScheduled},
		action: delayq.RunNow, batch: reschedule(now),
	}, {
		name: "reschedule", past: "rescheduled", short: "Give jobs another due time",
		long: `Give scheduled or ready jobs another due time: the same one with --in or --at, or each its
own and --by more. A negative --by makes jobs due earlier. --by reads the jobs first.
A job that then leaves its state, or is scheduled and gets another due time, is left
alone, and the output says so.`,
		example: `  delayq reschedule order:cancel order-42 --in 30m
  delayq reschedule mail:welcome --state ready --all --in 1h --spread 10m
  delayq reschedule mail:welcome --until "tomorrow 0:00" --by +24h`,
		states: []delayq.State{delayq.StateScheduled, delayq.StateReady},
		flags: func(cmd *cobra.Command) {
			due.flags(cmd.Flags())
			cmd.Flags().Var(&signed{duration{&by}}, "by", "move each due time by this `duration`: +24h later, or -1h earlier")
		},
		ready: func(cmd *cobra.Command) (err error) {
			given := cmd.Flags().Changed
			if when, err = due.option(cmd, a); err != nil {
				return err
			}
			switch {
			case when != nil && given("by"):
				return usage("--by excludes --in and --at")
			case when == nil && !given("by"):
				return usage("reschedule needs --in, --at or --by")
			case given("by") && by == 0:
				return usage("--by 0s: must be a duration such as +24h or -1h")
			case given("by") && given("spread"):
				return usage("--by keeps the distances of the due times, and excludes --spread")
			case when == nil:
				when = delayq.ProcessIn(0) // to count
			}
			return nil
		},
		shift:  &by,
		action: func() delayq.Action { return delayq.Reschedule(when) },
		batch: func(ctx context.Context, c *delayq.Client, topic string, ids []string) ([]error, error) {
			if by != 0 {
				return shiftNamed(ctx, c, topic, ids, by), nil
			}
			return reschedule(func() delayq.DueOption { return when })(ctx, c, topic, ids)
		},
	}, {
		name: "bury", past: "buried", short: "Bury jobs: they do not run unless they are revived",
		long:    "Bury scheduled or ready jobs, with --because as their last error. They do not run\nunless they are revived.",
		example: "  delayq bury mail:welcome u-77812 --because 'address is a trap'",
		states:  []delayq.State{delayq.StateScheduled, delayq.StateReady},
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "because", "", "the reason, at most 1 KiB")
		},
		action: func() delayq.Action { return delayq.Bury(reason) },
		batch: func(ctx context.Context, c *delayq.Client, topic string, ids []string) ([]error, error) {
			return each(ids, func(id string) error { return c.Bury(ctx, topic, id, reason) }), nil
		},
	}, {
		name: "revive", past: "revived", short: "Run dead jobs again",
		long: "Run dead jobs again, with their full number of retries. With --spread they do not start\nall at once.",
		example: `  delayq revive mail:welcome u-77812
  delayq revive mail:welcome --failure 3f9c2a71 --spread 10m`,
		states: []delayq.State{delayq.StateDead},
		action: delayq.Revive,
		batch: func(ctx context.Context, c *delayq.Client, topic string, ids []string) ([]error, error) {
			return each(ids, func(id string) error { return revive(ctx, c, topic, id) }), nil
		},
	}, {
		name: "purge", past: "purged", short: "Delete dead or done jobs for good",
		long:    "Delete dead or done jobs, and everything that is kept of them.",
		example: "  delayq purge mail:welcome --state dead --until 30d",
		states:  []delayq.State{delayq.StateDead, delayq.StateDone}, named: true,
		action: delayq.Delete,
		batch: func(ctx context.Context, c *delayq.Client, topic string, ids []string) ([]error, error) {
			v := &verb{action: delayq.Delete}
			return v.inStates(ctx, c, topic, ids, []delayq.State{delayq.StateDead, delayq.StateDone}), nil
		},
	}}
}

// revive runs a dead job again. It tells a job in another state from one that does not exist.
func revive(ctx context.Context, c *delayq.Client, topic, id string) error {
	err := c.Revive(ctx, topic, id)
	if !errors.Is(err, delayq.ErrNotFound) {
		return err
	}
	if info, other := c.Get(ctx, topic, id); other == nil {
		return &exitCode{exitConflict, fmt.Sprintf("the job is %s", info.State)}
	}
	return err
}

// inStates acts on jobs that are in one of the states. A job that leaves its state before the act
// reaches it is left alone.
func (v *verb) inStates(ctx context.Context, c *delayq.Client, topic string, ids []string, states []delayq.State) []error {
	jobs := make([]delayq.JobRef, len(ids))
	for i, id := range ids {
		jobs[i] = delayq.JobRef{Topic: topic, ID: id}
	}
	results, _ := c.GetBatch(ctx, jobs) // each result has its error
	return side(len(ids), func(i int) error {
		r := results[i]
		if r.Err != nil {
			return r.Err
		}
		if !slices.Contains(states, r.Job.State) {
			return &exitCode{exitConflict, fmt.Sprintf("the job is %s and not %s", r.Job.State, either(states))}
		}
		return actAsRead(ctx, c, r.Job, v.action())
	})
}

// actAsRead acts on a job that was read, unless it has changed since.
func actAsRead(ctx context.Context, c *delayq.Client, info *delayq.JobInfo, action delayq.Action) error {
	err := library.ActOn(ctx, c, info, action)
	if !errors.Is(err, delayq.ErrNotFound) {
		return err
	}
	if now, other := c.Get(ctx, info.Topic, info.ID); other == nil {
		return &exitCode{exitConflict, fmt.Sprintf("the job was %s, has changed meanwhile and is %s", info.State, now.State)}
	}
	return err
}

// either lists states.
func either(states []delayq.State) string {
	var names []string
	for _, s := range states {
		names = append(names, string(s))
	}
	return strings.Join(names, " or ")
}
