package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// A holdRecord is the hold of a topic.
type holdRecord struct {
	Until  stamp  `json:"until"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func holdOf(s *delayq.TopicStats) *holdRecord {
	if s.HeldUntil.IsZero() {
		return nil
	}
	return &holdRecord{stamp(s.HeldUntil), s.HeldBy, s.HeldReason}
}

func (a *app) holdText(h *holdRecord) string {
	text := "held until " + a.when(time.Time(h.Until))
	if h.By != "" {
		text += " by " + h.By
	}
	if h.Reason != "" {
		text += " " + strconv.Quote(h.Reason)
	}
	return text
}

func (a *app) holdCommand() *cobra.Command {
	var length time.Duration
	var reason string
	var end, create bool
	cmd := &cobra.Command{
		Use:   "hold TOPIC…",
		Short: "Make topics wait for a time",
		Long: `Keep servers from taking jobs of topics for a time, as a handler does that returns Hold,
for example because an API is overloaded. Running jobs continue, and jobs are still stored.
A hold prolongs another one and never shortens it; --end ends it, whoever made it. To stop
a topic until somebody resumes it, use delayq pause.`,
		Example: `  delayq hold invoice:send --for 30s --because "503 from the API"
  delayq hold invoice:send --end`,
		Args:              counted(1, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed
			switch {
			case end && given("for"):
				return usage("--for and --end: only one of them can be given")
			case end && given("because"):
				return usage("--because and --end: only one of them can be given")
			case !end && !given("for"):
				return usage("--for or --end is needed: how long the topics wait, such as --for 30s, or that they no longer do")
			case !end && (length < shortestHold || length > longestHold):
				return usage("--for %v: must be from 1ms to 100 years", length)
			}
			if err := a.known(cmd.Context(), args, create); err != nil {
				return err
			}
			client, err := a.queue()
			if err != nil {
				return err
			}
			for _, topic := range args {
				if end {
					err = client.EndHold(a.act(cmd.Context()), topic)
				} else {
					err = client.Hold(a.act(cmd.Context()), topic, length, reason)
				}
				if err = a.acted(err); err != nil {
					return err
				}
			}
			return a.showHeld(cmd, args, length)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&duration{&length}, "for", "how long the topics wait, from 1ms to 100 years")
	cmd.Flags().StringVar(&reason, "because", "", "the reason, at most 1 KiB")
	cmd.Flags().BoolVar(&end, "end", false, "end the hold")
	cmd.Flags().BoolVar(&create, "create", false, "also for a topic that has no jobs, no schedules and no server yet")
	return cmd
}

// showHeld writes the topics as they are after a hold of a length, 0 for its end. It says which of
// them an earlier hold makes wait for longer.
func (a *app) showHeld(cmd *cobra.Command, topics []string, length time.Duration) error {
	list, err := a.stats(cmd.Context(), topics)
	if err != nil {
		return err
	}
	for _, r := range list {
		r.Counters = nil
		// The numbers are from after the hold, and the hold is rounded up to the millisecond.
		if h := r.Hold; length > 0 && h != nil && time.Time(h.Until).Sub(time.Time(r.At)) > length+time.Millisecond {
			a.say("%s was already %s", r.Topic, a.holdText(h))
		}
	}
	return all(a, a.topicsView(), list, nil)
}
