package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

func (a *app) findCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "find ID",
		Short:             "Find the jobs with an ID in all topics",
		Args:              counted(1, 1, "an ID"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			if a.tabular() && a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			found, err := insp.Find(cmd.Context(), id)
			if err != nil {
				return err
			}
			list := make([]*jobRecord, len(found))
			for i, info := range found {
				list[i] = jobOf(info, false)
			}
			if err := all(a, a.jobsView("", true), list, nil); err != nil {
				return err
			}
			if len(list) == 0 {
				return &exitCode{exitNotFound, fmt.Sprintf("no topic has a job with the ID %q", idText(id))}
			}
			return nil
		},
	}
}

const (
	schemaFailure  = "delayq.failure/1"
	schemaFailures = "delayq.failures/1"
)

// A failureRecord is a group of jobs with the same error.
type failureRecord struct {
	Topic  string   `json:"topic"`
	Key    string   `json:"key"`
	Count  int64    `json:"count"`
	First  stamp    `json:"first,omitzero"`
	Last   stamp    `json:"last,omitzero"`
	Sample string   `json:"sample"`
	Jobs   []jobRef `json:"jobs"` // some of them
}

func (a *app) failuresCommand() *cobra.Command {
	var (
		state  string
		budget int
	)
	cmd := &cobra.Command{
		Use:   "failures TOPIC",
		Short: "Group failed jobs by their error",
		Long: `Group failed jobs by their last error, in which numbers, IDs and quoted words do not
count. The key of a group selects its jobs: --failure of jobs, revive and others.`,
		Example: `  delayq failures mail:welcome
  delayq revive mail:welcome --failure 3f9c2a71`,
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			found, err := insp.Failures(cmd.Context(), args[0], delayq.State(state), budget)
			if err != nil {
				return err
			}
			if _, err := a.now(cmd.Context()); a.timeStyle == timeRelative && err != nil {
				return err
			}
			return a.showFailures(args[0], state, found)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&state, "state", string(delayq.StateDead), "`state` of the jobs: dead, or scheduled for those that back off")
	cmd.Flags().IntVar(&budget, "budget", 2000, "most jobs to look at, the newest ones")
	a.choices(cmd, "state", []string{string(delayq.StateDead), string(delayq.StateScheduled)})
	return cmd
}

func (a *app) showFailures(topic, state string, found *delayq.Failures) error {
	var list []*failureRecord
	for _, g := range found.Groups {
		r := &failureRecord{Topic: topic, Key: g.Key, Count: g.Count, First: stamp(g.First), Last: stamp(g.Last), Sample: g.Sample}
		for _, id := range g.IDs {
			r.Jobs = append(r.Jobs, refOf(topic, id))
		}
		list = append(list, r)
	}
	err := all(a, view[*failureRecord]{schemaFailure, schemaFailures, "failures", []column[*failureRecord]{
		{head: "KEY", cell: func(r *failureRecord) string { return r.Key }},
		{head: "JOBS", cell: func(r *failureRecord) string { return number(r.Count) }, right: true},
		{head: "FIRST", cell: func(r *failureRecord) string { return a.when(time.Time(r.First)) }, wide: true},
		{head: "LAST", cell: func(r *failureRecord) string { return a.when(time.Time(r.Last)) }},
		{head: "FOR EXAMPLE", cell: func(r *failureRecord) string { return idText(r.Jobs[0].exact()) }, wide: true},
		{head: "ERROR", cell: func(r *failureRecord) string { return r.Sample }},
	}, func(r *failureRecord) string { return r.Key }, nil}, list, struct {
		Examined int   `json:"examined"`
		Total    int64 `json:"total"`
	}{found.Examined, found.Total})
	if err != nil || !a.tabular() {
		return err
	}
	switch {
	case len(list) == 0:
		a.say("no failures among %s %s jobs", number(found.Examined), state)
	case int64(found.Examined) < found.Total:
		a.say("of the newest %s of %s %s jobs; look at more with --budget", number(found.Examined), number(found.Total), state)
	}
	if len(list) > 0 && state == string(delayq.StateDead) {
		if err := a.flush(); err != nil {
			return err
		}
		a.say("run a group again: delayq revive %s --failure %s", quoted(topic), list[0].Key)
	}
	return nil
}
