package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
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
		state, since string
		budget       int
	)
	cmd := &cobra.Command{
		Use:   "failures [TOPIC…]",
		Short: "Group failed jobs of topics, or of all, by their error",
		Long: `Group failed jobs of topics, or of all topics, by their last error, in which numbers, IDs
and quoted words do not count. The key of a group selects its jobs: --failure of jobs,
revive and others. --since leaves out jobs that were buried earlier, or with --state
scheduled those that are due earlier.`,
		Example: `  delayq failures --since "yesterday 18:00"
  delayq failures mail:welcome
  delayq revive mail:welcome --failure 3f9c2a71`,
		Args:              counted(0, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			q := delayq.Query{State: delayq.State(state)}
			if since != "" {
				if q.From, err = a.instant(cmd.Context(), "since", since); err != nil {
					return err
				}
			}
			if _, err := a.now(cmd.Context()); a.timeStyle == timeRelative && err != nil {
				return err
			}
			one := len(args) == 1
			if len(args) == 0 {
				if args, err = insp.Topics(cmd.Context()); err != nil {
					return err
				}
			}
			f := &failureList{state: state}
			for _, topic := range args {
				q.Topic = topic
				if err := f.add(cmd.Context(), insp, q, budget); err != nil {
					return err
				}
			}
			return a.showFailures(f, one)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&state, "state", string(delayq.StateDead), "`state` of the jobs: dead, or scheduled for those that back off")
	cmd.Flags().StringVar(&since, "since", "", "buried, or due, at this `time` or later: 24h (ago), or a date")
	cmd.Flags().IntVar(&budget, "budget", 2000, "most jobs of a topic to look at, the newest ones")
	a.choices(cmd, "state", []string{string(delayq.StateDead), string(delayq.StateScheduled)})
	return cmd
}

// A failureList collects the groups of topics.
type failureList struct {
	state    string
	list     []*failureRecord
	examined int
	total    int64
	cut      []string // topics that have more jobs than were looked at
}

// add adds the groups of a topic. q has the topic, the state and the earliest time.
func (f *failureList) add(ctx context.Context, insp *delayq.Inspector, q delayq.Query, budget int) error {
	found, err := insp.Failures(ctx, q.Topic, q.State, budget)
	if err != nil {
		return err
	}
	f.examined, f.total = f.examined+found.Examined, f.total+found.Total
	if int64(found.Examined) < found.Total {
		f.cut = append(f.cut, q.Topic)
	}
	for _, g := range found.Groups {
		r := &failureRecord{Topic: q.Topic, Key: g.Key, Count: g.Count, First: stamp(g.First), Last: stamp(g.Last), Sample: g.Sample}
		if !q.From.IsZero() { // the groups do not know which of their jobs are that new
			q.Failure, q.Limit = g.Key, 5
			page, err := insp.Jobs(ctx, q)
			if err != nil {
				return err
			}
			if len(page.Jobs) == 0 {
				continue
			}
			if r.Count, _, err = insp.Count(ctx, q); err != nil {
				return err
			}
			g.IDs = nil
			for _, job := range page.Jobs {
				g.IDs = append(g.IDs, job.ID)
			}
			if g.First.Before(q.From) {
				r.First = stamp{} // it is not known
			}
		}
		for _, id := range g.IDs {
			r.Jobs = append(r.Jobs, refOf(q.Topic, id))
		}
		f.list = append(f.list, r)
	}
	return nil
}

// showFailures writes the groups of one topic or of several.
func (a *app) showFailures(f *failureList, one bool) error {
	list, state := f.list, f.state
	slices.SortStableFunc(list, func(x, y *failureRecord) int { return cmp.Compare(y.Count, x.Count) })
	v := view[*failureRecord]{schemaFailure, schemaFailures, "failures", []column[*failureRecord]{
		{head: "KEY", cell: func(r *failureRecord) string { return r.Key }},
		{head: "JOBS", cell: func(r *failureRecord) string { return number(r.Count) }, right: true},
		{head: "FIRST", cell: func(r *failureRecord) string { return a.when(time.Time(r.First)) }, wide: true},
		{head: "LAST", cell: func(r *failureRecord) string { return a.when(time.Time(r.Last)) }},
		{head: "FOR EXAMPLE", cell: func(r *failureRecord) string { return idText(r.Jobs[0].exact()) }, wide: true},
		{head: "ERROR", cell: func(r *failureRecord) string { return r.Sample }},
	}, func(r *failureRecord) string { return r.Key }, nil}
	if !one {
		v.columns = slices.Insert(v.columns, 0, column[*failureRecord]{head: "TOPIC", cell: func(r *failureRecord) string { return r.Topic }})
		v.in = func(r *failureRecord) string { return r.Topic }
	}
	err := all(a, v, list, struct {
		Examined int   `json:"examined"`
		Total    int64 `json:"total"`
	}{f.examined, f.total})
	if err != nil || !a.tabular() {
		return err
	}
	switch {
	case len(list) == 0:
		a.say("no failures among %s %s jobs", number(f.examined), state)
	case one && len(f.cut) > 0:
		a.say("of the newest %s of %s %s jobs; look at more with --budget", number(f.examined), number(f.total), state)
	case len(f.cut) > 0:
		a.say("not all %s jobs were looked at of %s; look at more with --budget", state, strings.Join(f.cut, ", "))
	}
	if len(list) > 0 && state == string(delayq.StateDead) {
		if err := a.flush(); err != nil {
			return err
		}
		a.say("run a group again: delayq revive %s --failure %s", quoted(list[0].Topic), list[0].Key)
	}
	return nil
}
