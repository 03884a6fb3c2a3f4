package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// The states of a topic. The web page has the same ones, by the same rules.
const (
	topicRunning  = "running" // jobs run
	topicIdle     = "idle"    // none runs, and none is late
	topicBehind   = "behind"
	topicPaused   = "paused"
	topicHeld     = "held"
	topicNoServer = "no_server"
)

// behindAfter is how long due jobs have waited in a topic that is behind.
const behindAfter = 10 * time.Second

// topicOf returns the record of a topic.
func topicOf(s *delayq.TopicStats) *topicRecord {
	r := &topicRecord{
		Topic: s.Topic, At: stamp(s.At), Scheduled: s.Scheduled, Ready: s.Ready, Running: s.Running, Retrying: s.Retrying,
		Dead: s.Dead, Done: s.Done, Keyed: s.Keyed, Keys: s.Keys, Overdue: s.Overdue, OldestOverdue: stamp(s.OldestOverdue), NextDue: stamp(s.NextDue),
		Servers: s.Servers, Workers: s.Workers, Schedules: s.Schedules, WaitingSlots: s.WaitingSlots, Counters: s.Counters,
		Parcels: s.Parcels, OldestParcel: stamp(s.OldestParcel),
	}
	if s.Capacity != s.Workers {
		r.Capacity = s.Capacity
	}
	if s.NextSlot.Unix() > 0 { // otherwise a server has yet to compute it
		r.NextSlot = stamp(s.NextSlot)
	}
	if !s.OldestOverdue.IsZero() {
		r.OverdueAge = seconds(s.At.Sub(s.OldestOverdue))
	}
	for _, p := range s.Pauses {
		r.Pauses = append(r.Pauses, pauseRecord{p.By, p.Reason, stamp(p.Since), stamp(p.Until)})
	}
	r.Limits, r.NextStart, r.Hold = limitsOf(s.Limits), stamp(s.NextStart), holdOf(s)
	r.Partitions = partitionsOf(s.Partitions)
	switch {
	case s.Paused:
		r.State = topicPaused
	case s.Servers == 0 && s.Overdue > 0:
		r.State = topicNoServer
	case r.Hold != nil:
		r.State = topicHeld
	case time.Duration(r.OverdueAge) >= behindAfter:
		r.State = topicBehind
	case s.Running > 0:
		r.State = topicRunning
	default:
		r.State = topicIdle
	}
	return r
}

// stateText writes the state of a topic for people, and its hold.
func (a *app) stateText(r *topicRecord) string {
	text := r.State
	switch {
	case r.State == topicHeld:
		return a.holdText(r.Hold)
	case r.State == topicNoServer:
		text = "NO SERVER"
	case r.State == topicPaused && len(r.Pauses) > 0:
		text = a.pauseText(r.Pauses)
	}
	if r.Hold != nil {
		text += " · " + a.holdText(r.Hold)
	}
	return text
}

func (a *app) pauseText(pauses []pauseRecord) string {
	p := pauses[0]
	text := topicPaused
	if p.By != "" {
		text += " by " + p.By
	}
	if !p.Until.IsZero() {
		text += " until " + a.when(time.Time(p.Until))
	}
	if p.Reason != "" {
		text += " " + strconv.Quote(p.Reason)
	}
	if n := len(pauses) - 1; n > 0 {
		text += fmt.Sprintf(" and %s", count(n, "other pause"))
	}
	return text
}

func (a *app) topicsView() view[*topicRecord] {
	return view[*topicRecord]{schemaTopic, schemaTopics, "topics", []column[*topicRecord]{
		{head: "TOPIC", cell: func(r *topicRecord) string { return r.Topic }},
		{head: "SCHEDULED", cell: func(r *topicRecord) string { return number(r.Scheduled) }, right: true},
		{head: "READY", cell: func(r *topicRecord) string { return number(r.Ready) }, right: true},
		{head: "RUNNING", cell: func(r *topicRecord) string { return number(r.Running) }, right: true},
		{head: "RETRYING", cell: func(r *topicRecord) string { return number(r.Retrying) }, right: true, minor: true},
		{head: "DEAD", cell: func(r *topicRecord) string { return number(r.Dead) }, right: true},
		{head: "DONE", cell: func(r *topicRecord) string { return number(r.Done) }, right: true, wide: true},
		{head: "OVERDUE", cell: func(r *topicRecord) string { return number(r.Overdue) }, right: true},
		{head: "OLDEST", cell: oldest, right: true},
		{head: "NEXT DUE", cell: nextDue, right: true, minor: true},
		{head: "SERVERS", cell: func(r *topicRecord) string { return strconv.Itoa(r.Servers) }, right: true, minor: true},
		{head: "WORKERS", cell: func(r *topicRecord) string { return strconv.Itoa(r.Workers) }, right: true, wide: true},
		{head: "SCHEDULES", cell: func(r *topicRecord) string { return number(r.Schedules) }, right: true, wide: true},
		{head: "HANDED OVER", cell: parcelsCell, wide: true},
		{head: "LIMITS", cell: limitsCell, wide: true},
		{head: "STATE", cell: a.stateText},
	}, func(r *topicRecord) string { return r.Topic }, nil}
}

func limitsCell(r *topicRecord) string {
	if r.Limits == nil {
		return "-"
	}
	return limitsText(r.Limits)
}

// parcelsCell writes how many jobs that its runs have handed over are on their way.
func parcelsCell(r *topicRecord) string {
	if r.Parcels == 0 {
		return "-"
	}
	text := number(r.Parcels) + " on their way"
	if !r.OldestParcel.IsZero() {
		text += ", oldest " + span(time.Time(r.At).Sub(time.Time(r.OldestParcel)))
	}
	return text
}

func oldest(r *topicRecord) string {
	if r.OldestOverdue.IsZero() {
		return "-"
	}
	return span(time.Duration(r.OverdueAge))
}

func nextDue(r *topicRecord) string {
	switch d := time.Time(r.NextDue).Sub(time.Time(r.At)); {
	case r.NextDue.IsZero():
		return "-"
	case d <= 0:
		return "now"
	default:
		return span(d)
	}
}

// stats returns the records of topics, or of all if none is named. If some of them cannot be read,
// it returns the others along with the error.
func (a *app) stats(ctx context.Context, topics []string) ([]*topicRecord, error) {
	insp, err := a.inspector()
	if err != nil {
		return nil, err
	}
	found, err := insp.Stats(ctx, topics...)
	list := make([]*topicRecord, len(found))
	for i := range found {
		list[i] = topicOf(&found[i])
	}
	if len(list) > 0 {
		a.setClock(time.Time(list[0].At))
	}
	return list, err
}

func (a *app) topicsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "topics",
		Short: "List all topics with their numbers",
		Long: `List all topics with the numbers of their jobs. OVERDUE are jobs that are due and have
not started; OLDEST is how long the first of them has waited. STATE is running, idle
(no job runs, and none is late), behind (jobs have waited for 10s or more), paused, held
or NO SERVER (jobs are due, and no live server handles the topic).`,
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.stats(cmd.Context(), nil)
			if err != nil && len(list) == 0 {
				return err
			}
			for _, r := range list {
				r.Counters = nil // of the command stats
			}
			if err := all(a, a.topicsView(), list, nil); err != nil {
				return err
			}
			if len(list) == 0 && a.tabular() {
				a.say("no topics with the prefix %q", a.prefix)
			}
			return err
		},
	}
}
