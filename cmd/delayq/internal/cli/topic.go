package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

func (a *app) topicCommand() *cobra.Command {
	var step, over time.Duration
	var steps int
	cmd := &cobra.Command{
		Use:   "topic TOPIC",
		Short: "Show a topic, and what falls due when",
		Long: `Show the numbers of a topic, its pauses, its hold and limits, its partitions, what has
happened in it since its first job, how fast jobs come and go, and how many scheduled
jobs fall due in each of the next steps. The rates are measured for --over, so the
command takes that long.

Of the partitions it shows how many there are, the ones with the fewest and the most
unfinished jobs, and what earlier ones have left, which close.`,
		Example: `  delayq topic order:cancel
  delayq topic order:cancel --step 1d --steps 30`,
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			if over < 0 {
				return usage("--over %v: must be at least 0s", over)
			}
			list, err := a.stats(cmd.Context(), args)
			if err != nil {
				return err
			}
			r := list[0]
			if over > 0 {
				if err := wait(cmd.Context(), over); err != nil {
					return err
				}
				if list, err = a.stats(cmd.Context(), args); err != nil {
					return err
				}
				list[0].Rates = ratesBetween(r, list[0])
				r = list[0]
			}
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			due, err := insp.Forecast(cmd.Context(), args[0], time.Time(r.At), step, steps)
			if err != nil {
				return err
			}
			for i, n := range due {
				r.Forecast = append(r.Forecast, forecastRecord{stamp(time.Time(r.At).Add(time.Duration(i+1) * step)), n})
			}
			return object(a, schemaTopic, r, r.Topic, func(w io.Writer) error { return a.showTopic(w, r) })
		},
	}
	step, over = 5*time.Minute, time.Second
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&duration{&step}, "step", "length of a step of the forecast")
	cmd.Flags().IntVar(&steps, "steps", 12, "number of steps")
	cmd.Flags().Var(&duration{&over}, "over", "measure the rates for this time; 0s: no rates")
	return cmd
}

// showTopic writes a topic for people.
func (a *app) showTopic(w io.Writer, r *topicRecord) error {
	slot := ""
	if r.Schedules > 0 {
		slot = a.when(time.Time(r.NextSlot))
	}
	oldestDue := ""
	if !r.OldestOverdue.IsZero() {
		oldestDue = fmt.Sprintf("due %s, %s ago", a.when(time.Time(r.OldestOverdue)), span(time.Duration(r.OverdueAge)))
	}
	pairs := []string{
		"topic", r.Topic, "state", a.stateText(r), "scheduled", number(r.Scheduled), "ready", number(r.Ready), "of keys", keysCell(r),
		"running", number(r.Running), "retrying", number(r.Retrying), "dead", number(r.Dead), "done", number(r.Done), "overdue", number(r.Overdue), "oldest", oldestDue, "handed over", parcelsCell(r),
		"next due", a.when(time.Time(r.NextDue)), "servers", strconv.Itoa(r.Servers), "workers", workersCell(r),
		"schedules", number(r.Schedules), "next slot", slot, "limits", limitsCell(r), "next start", a.when(time.Time(r.NextStart)),
	}
	if err := a.fields(w, slices.Concat(pairs, r.Partitions.pairs(), r.Partitions.closing())...); err != nil {
		return err
	}
	for _, p := range r.Pauses {
		fmt.Fprintf(w, "%s since %s\n", safe(a.pauseText([]pauseRecord{p}), false), a.when(time.Time(p.Since)))
	}
	fmt.Fprintln(w, "\nsince its first job:")
	var list []string
	for _, name := range counterOrder {
		if n := r.Counters[name]; n > 0 {
			list = append(list, fmt.Sprintf("%s %s", number(n), strings.ReplaceAll(string(name), "_", " ")))
		}
	}
	fmt.Fprintln(w, "  "+orDash(strings.Join(list, ", ")))
	if r.Rates != nil {
		rate := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
		fmt.Fprintf(w, "\nper second now:\n  %s enqueued, %s finished, %s failed\n", rate(r.Rates.Enqueued), rate(r.Rates.Finished), rate(r.Rates.Failed))
	}
	fmt.Fprintln(w, "\nscheduled jobs that fall due:")
	most := int64(1)
	for _, f := range r.Forecast {
		most = max(most, f.Due)
	}
	t := &table{a: a, heads: []string{"BEFORE", "JOBS", ""}, right: []bool{false, true, false}}
	for _, f := range r.Forecast {
		bar := strings.Repeat("█", int((f.Due*30+most-1)/most))
		if err := t.add([]string{a.when(time.Time(f.Until)), number(f.Due), bar}); err != nil {
			return err
		}
	}
	return t.end()
}

// keysCell writes how many of the ready jobs have a key.
func keysCell(r *topicRecord) string {
	if r.Keyed == 0 {
		return ""
	}
	return number(r.Keyed) + " of " + count(r.Keys, "key")
}

// counterOrder is the order in which the counters of a topic are shown.
var counterOrder = []delayq.Counter{
	delayq.CounterEnqueued, delayq.CounterTaken, delayq.CounterAcked, delayq.CounterAgain, delayq.CounterRetried, delayq.CounterSnoozed,
	delayq.CounterBuried, delayq.CounterCancelled, delayq.CounterExpired, delayq.CounterReclaimed, delayq.CounterReturned, delayq.CounterHeld, delayq.CounterRevived,
	delayq.CounterDropped, delayq.CounterPrunedDead, delayq.CounterPrunedDone, delayq.CounterDeleted, delayq.CounterRepaired,
	delayq.CounterFired, delayq.CounterSkipped, delayq.CounterMissed, delayq.CounterTombed, delayq.CounterDebounced, delayq.CounterUndelivered, delayq.CounterAwaited,
	delayq.CounterFlows, delayq.CounterFlowsFailed, delayq.CounterFlowStepsFailed,
}

// workersCell writes the workers of a topic, and how many jobs they run at a time if that is more.
func workersCell(r *topicRecord) string {
	if r.capacity() == r.Workers {
		return strconv.Itoa(r.Workers)
	}
	return fmt.Sprintf("%d, in batches: up to %s jobs", r.Workers, number(r.Capacity))
}
