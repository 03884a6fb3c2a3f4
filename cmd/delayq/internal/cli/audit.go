package cli

import (
	"time"

	"github.com/spf13/cobra"
)

const (
	schemaAuditEntry = "delayq.audit-entry/1"
	schemaAudit      = "delayq.audit/1"
)

// An auditRecord is an act of an operator.
type auditRecord struct {
	At       stamp  `json:"at"`
	Actor    string `json:"actor"`
	Action   string `json:"action"`
	Topic    string `json:"topic"`
	ID       string `json:"id,omitempty"`
	IDBase64 []byte `json:"id_base64,omitempty"`
	Filter   string `json:"filter,omitempty"`
	Was      string `json:"was,omitempty"`
	Count    int64  `json:"count"`
}

// which returns what the act was about, and its arguments.
func (r *auditRecord) which() string {
	if r.ID == "" {
		return orDash(r.Filter)
	}
	ref := jobRef{ID: r.ID, IDBase64: r.IDBase64}
	text := idText(ref.exact())
	if r.Filter != "" {
		text += ": " + r.Filter
	}
	return text
}

func (a *app) auditCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:               "audit",
		Short:             "List what operators have done, the latest first",
		Long:              "List what operators have done, the latest first. Redis keeps the last 1,000 acts of a\nprefix. Each has the name that was given with --actor, what was set, and what was there before:\nlimits, pauses, holds, due times, priorities and parts of schedules. Of payloads it has the size\nand the first 8 digits of the SHA-256. What was there before is - where it is not known.",
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			found, err := insp.Audit(cmd.Context(), limit)
			if err != nil {
				return err
			}
			if a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			list := make([]*auditRecord, len(found))
			for i, e := range found {
				ref := refOf(e.Topic, e.ID)
				list[i] = &auditRecord{stamp(e.At), e.Actor, e.Action, e.Topic, ref.ID, ref.IDBase64, e.Filter, e.Was, e.Count}
			}
			err = all(a, view[*auditRecord]{schemaAuditEntry, schemaAudit, "acts", []column[*auditRecord]{
				{head: "AT", cell: func(r *auditRecord) string { return a.when(time.Time(r.At)) }},
				{head: "ACTOR", cell: func(r *auditRecord) string { return orDash(r.Actor) }},
				{head: "ACTION", cell: func(r *auditRecord) string { return r.Action }},
				{head: "TOPIC", cell: func(r *auditRecord) string { return r.Topic }},
				{head: "JOBS", cell: func(r *auditRecord) string { return number(r.Count) }, right: true},
				{head: "WHICH", cell: (*auditRecord).which},
				{head: "WAS", cell: func(r *auditRecord) string { return orDash(r.Was) }},
			}, nil, nil}, list, nil)
			if err == nil && len(list) == 0 && a.tabular() {
				a.say("no acts yet")
			}
			return err
		},
	}
	cmd.Flags().IntVar(&limit, "limit", defaultLimit, "rows of the list, at most 1,000")
	return cmd
}
