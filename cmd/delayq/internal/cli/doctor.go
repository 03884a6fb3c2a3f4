package cli

import (
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	schemaFinding = "delayq.finding/1"
	schemaDoctor  = "delayq.doctor/1"
)

// A findingRecord is an inconsistency.
type findingRecord struct {
	jobRef
	Key      string             `json:"key"`
	Kind     delayq.FindingKind `json:"kind"`
	Repaired bool               `json:"repaired"`
	// Partition has it. It is left out if the topic itself does.
	Partition *partitionRef `json:"partition,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "doctor [TOPIC…]",
		Short: "Scan topics for inconsistencies, and repair them",
		Long: `Scan topics, or all of them, for what normal operation never produces, such as a job that
would never run. A failover with lost writes, an eviction or a manual edit can be the
cause. The exit code is 1 if something was found that is not repaired.`,
		Args:              counted(0, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			client, err := a.queue()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				if args, err = insp.Topics(cmd.Context()); err != nil {
					return err
				}
			}
			p, err := lists(a, view[*findingRecord]{schemaFinding, schemaDoctor, "findings", []column[*findingRecord]{
				{head: "TOPIC", cell: func(r *findingRecord) string { return r.Topic }},
				{head: "KEY", cell: func(r *findingRecord) string { return r.Key }},
				{head: "ID", cell: func(r *findingRecord) string {
					if r.ID == "" {
						return "-"
					}
					return idText(r.exact())
				}},
				{head: "KIND", cell: func(r *findingRecord) string { return string(r.Kind) }},
				{head: "REPAIRED", cell: func(r *findingRecord) string { return map[bool]string{true: "yes", false: "no"}[r.Repaired] }},
				{head: "PARTITION", cell: func(r *findingRecord) string { return r.Partition.text() }, wide: true},
			}, (*findingRecord).exact, nil})
			if err != nil {
				return err
			}
			examine := insp.Check
			if repair {
				examine = client.Repair
			}
			var jobs int64
			found, repaired := 0, 0
			for _, topic := range args {
				report, err := examine(a.act(cmd.Context()), topic)
				if report != nil {
					jobs += report.Jobs
					repaired += report.Repaired
					listed := len(report.Findings)
					for _, f := range report.Findings {
						if err := p.row(&findingRecord{refOf(topic, f.ID), f.Key, f.Kind, f.Repaired, partitionOf(f.Partition)}); err != nil {
							return err
						}
					}
					total := 0
					for _, n := range report.Found {
						total += n
					}
					if found += total; total > listed {
						a.say("… %s more in %s", number(total-listed), topic)
					}
				}
				if err = a.acted(err); err != nil {
					_ = p.end(nil) // the error below is the one to report
					return err
				}
			}
			if err := p.end(struct {
				Jobs     int64 `json:"jobs"`
				Found    int   `json:"found"`
				Repaired int   `json:"repaired"`
			}{jobs, found, repaired}); err != nil {
				return err
			}
			if a.tabular() {
				a.say("%s in %s: %s, %s repaired", count(jobs, "job"), count(len(args), "topic"), count(found, "finding"), number(repaired))
			}
			if found > repaired {
				return &exitCode{code: exitError}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "repair what is found; no job is lost, and none starts before it is due")
	return cmd
}
