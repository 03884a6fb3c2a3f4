package cli

import (
	"github.com/spf13/cobra"
)

const (
	schemaRemoved  = "delayq.removed/1"
	schemaRemovals = "delayq.removals/1"
)

// A removedRecord is the outcome of removing a topic.
type removedRecord struct {
	Topic string `json:"topic"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

func (r *removedRecord) ended(problem string) { r.Done, r.Error = problem == "", problem }

func (a *app) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove TOPIC…",
		Short: "Remove empty topics",
		Long: `Remove topics without jobs, schedules and handlers in live servers, with their counters,
pauses and limits. Other topics are left alone.`,
		Args:              counted(1, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.queue()
			if err != nil {
				return err
			}
			p, err := lists(a, view[*removedRecord]{schemaRemoved, schemaRemovals, "topics", []column[*removedRecord]{
				{head: "TOPIC", cell: func(r *removedRecord) string { return r.Topic }},
				{head: "RESULT", cell: func(r *removedRecord) string {
					if r.Done {
						return "removed"
					}
					return "failed"
				}},
				{head: "ERROR", cell: func(r *removedRecord) string { return r.Error }},
			}, func(r *removedRecord) string { return r.Topic }, nil})
			if err != nil {
				return err
			}
			ctx := a.act(cmd.Context())
			return inTurn(ctx, p, "topic", args, func(topic string) (*removedRecord, error) {
				return &removedRecord{Topic: topic}, client.RemoveTopic(ctx, topic)
			})
		},
	}
}
