package cli

import (
	"time"

	"github.com/spf13/cobra"
)

const (
	schemaUndeliveredJob = "delayq.undelivered-job/1"
	schemaUndelivered    = "delayq.undelivered/1"
)

// An undeliveredRecord is a job that a run has handed over and that its topic has refused.
type undeliveredRecord struct {
	At     stamp  `json:"at,omitzero"`
	From   string `json:"from"`  // ID of the job whose run has handed it over
	Topic  string `json:"topic"` // that has refused it
	ID     string `json:"id"`    // of the job that was not enqueued
	Reason string `json:"reason"`
}

func (a *app) undeliveredCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undelivered TOPIC",
		Short: "List jobs that runs have handed over in vain, the latest first",
		Long: `List jobs that runs of the topic have handed over (Job.Then) and that their own topics
have refused, the latest first: when, the job whose run has handed it over, the topic
that has refused it, its ID, and why. Redis keeps the newest 100 of a topic, and neither
payloads nor options. To run such a job, enqueue it again.`,
		Example: `  delayq undelivered video:encode
  delayq undelivered video:encode -o jsonl`,
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			found, err := insp.Undelivered(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			list := make([]*undeliveredRecord, len(found))
			for i, u := range found {
				list[i] = &undeliveredRecord{stamp(u.At), u.From, u.Topic, u.ID, u.Reason}
			}
			id := func(id string) string {
				if id == "" { // the entry is damaged
					return "-"
				}
				return idText(id)
			}
			err = all(a, view[*undeliveredRecord]{schemaUndeliveredJob, schemaUndelivered, "refusals", []column[*undeliveredRecord]{
				{head: "AT", cell: func(r *undeliveredRecord) string { return a.when(time.Time(r.At)) }},
				{head: "FROM", cell: func(r *undeliveredRecord) string { return id(r.From) }},
				{head: "TOPIC", cell: func(r *undeliveredRecord) string { return orDash(r.Topic) }},
				{head: "ID", cell: func(r *undeliveredRecord) string { return id(r.ID) }},
				{head: "REASON", cell: func(r *undeliveredRecord) string { return orDash(r.Reason) }},
			}, nil, nil}, list, nil)
			if err == nil && len(list) == 0 && a.tabular() {
				a.say("no job was refused")
			}
			return err
		},
	}
}
