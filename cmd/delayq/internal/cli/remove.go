package cli

import (
	"fmt"

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
			var sum tally
			for _, topic := range args {
				err := client.RemoveTopic(a.act(cmd.Context()), topic)
				if unreachable(orNil(err)) || refused(orNil(err)) || cmd.Context().Err() != nil {
					_ = p.end(nil) // the error below is the one to report
					return fmt.Errorf("after %s: %w", count(sum.done, "topic"), err)
				}
				sum.add(err)
				if err != nil && !a.tabular() {
					a.say("%s: %s", topic, errorText(bare(err)))
				}
				if err != nil && a.format == formatID {
					continue
				}
				if err := p.row(&removedRecord{topic, err == nil, errorText(bare(err))}); err != nil {
					return err
				}
			}
			if err := p.end(nil); err != nil {
				return err
			}
			return sum.result()
		},
	}
}
