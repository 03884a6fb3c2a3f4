package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	schemaMove  = "delayq.move/1"
	schemaMoves = "delayq.moves/1"
)

// A moveRecord is the outcome of moving one job.
type moveRecord struct {
	jobRef
	To    string `json:"to"`
	Done  bool   `json:"done"`
	Due   stamp  `json:"due,omitzero"`
	Error string `json:"error,omitempty"`
}

func (r *moveRecord) ended(problem string) { r.Done, r.Error = problem == "", problem }

func (a *app) moveCommand() *cobra.Command {
	var revive bool
	cmd := &cobra.Command{
		Use:   "move TOPIC ID… NEWTOPIC",
		Short: "Move jobs to another topic",
		Long: `Move scheduled or ready jobs to another topic. A job keeps its ID, payload, headers, due
time, expiry and everything else that it was given. Its attempts and errors are not
kept. A job is stored in the new topic before it is cancelled in the old one, so that
it is never lost. If it starts in between, it may run in both.`,
		Example:           "  delayq move mail:welcome u-77812 mail:bulk",
		Args:              counted(3, -1, "a topic, IDs and another topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.idsOrTopics),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, ids, to := args[0], args[1:len(args)-1], args[len(args)-1]
			if from == to {
				return usage("move: the topics are the same")
			}
			client, err := a.queue()
			if err != nil {
				return err
			}
			p, err := lists(a, view[*moveRecord]{schemaMove, schemaMoves, "jobs", []column[*moveRecord]{
				{head: "ID", cell: func(r *moveRecord) string { return idText(r.exact()) }},
				{head: "RESULT", cell: func(r *moveRecord) string {
					if r.Done {
						return "moved"
					}
					return "failed"
				}},
				{head: "ERROR", cell: func(r *moveRecord) string { return r.Error }},
			}, (*moveRecord).exact, nil})
			if err != nil {
				return err
			}
			ctx := a.act(cmd.Context())
			return inTurn(ctx, p, "job", ids, func(id string) (*moveRecord, error) {
				r := &moveRecord{jobRef: refOf(from, id), To: to}
				stored, err := a.move(ctx, client, from, id, to, revive)
				if err == nil {
					r.Due = stamp(stored.Due)
				}
				return r, err
			})
		},
	}
	cmd.Flags().BoolVar(&revive, "revive", false, "move dead jobs too; they run in the new topic")
	return cmd
}

// move moves a job. The order of its steps decides what a failure leaves: the job in both topics,
// but never in none.
func (a *app) move(ctx context.Context, c *delayq.Client, from, id, to string, revive bool) (*delayq.Job, error) {
	info, err := c.Get(ctx, from, id)
	switch {
	case err != nil:
		return nil, err
	case info.State == delayq.StateRunning:
		return nil, delayq.ErrRunning
	case info.State == delayq.StateDead && !revive:
		return nil, &exitCode{exitConflict, "the job is dead; --revive moves it and runs it"}
	case info.State == delayq.StateDone:
		return nil, &exitCode{exitConflict, "the job is done"}
	}
	stored, err := c.Enqueue(ctx, to, id, info.Payload, info.Options()...)
	if errors.Is(err, delayq.ErrUnknownOutcome) {
		return nil, fmt.Errorf("the job may be in both topics: %w", err)
	}
	if err != nil {
		return nil, err
	}
	err = a.acted(library.ActOn(ctx, c, info, delayq.Cancel()))
	switch {
	case err == nil:
		return stored, nil
	case errors.Is(err, delayq.ErrUnknownOutcome):
		return nil, fmt.Errorf("the job may be in both topics: %w", err)
	case !errors.Is(err, delayq.ErrNotFound):
		return nil, fmt.Errorf("the job is in both topics: %w", err)
	}
	// It has started, or somebody has acted on it.
	_, err = c.Dequeue(ctx, to, id)
	err = a.acted(err)
	switch {
	case errors.Is(err, delayq.ErrUnknownOutcome):
		return nil, fmt.Errorf("the job started or changed before it was moved, and its copy in %q may remain: %w", to, err)
	case err != nil && !errors.Is(err, delayq.ErrNotFound):
		return nil, fmt.Errorf("the job started or changed before it was moved, and its copy in %q remains: %w", to, err)
	}
	return nil, &exitCode{exitConflict, "the job started or changed before it was moved"}
}

// idsOrTopics completes jobs of the first topic, and from the second one on topics too.
func (a *app) idsOrTopics(ctx context.Context, args []string, start string) ([]string, error) {
	list, err := a.jobIDs(delayq.StateScheduled, delayq.StateReady)(ctx, args, start)
	if err != nil || len(args) < 2 {
		return list, err
	}
	topics, err := a.topicNames(ctx, args, start)
	return append(topics, list...), err
}
