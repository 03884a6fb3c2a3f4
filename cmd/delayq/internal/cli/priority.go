package cli

import (
	"io"
	"time"

	"github.com/spf13/cobra"
)

const schemaPriority = "delayq.priority/1"

// A priorityRecord is the priority that a job has got.
type priorityRecord struct {
	jobRef
	Priority seconds `json:"priority"` // its head start; negative: it goes behind
}

func (a *app) priorityCommand() *cobra.Command {
	var ahead, behind time.Duration
	cmd := &cobra.Command{
		Use:   "priority TOPIC ID",
		Short: "Move a job ahead of or behind other jobs of its key",
		Long: `Give a job that has a key another priority: a head start over the other jobs of its
key, of at most 24 hours. With --ahead 10m a job runs before those that became due up
to 10 minutes earlier. The due time stays. A scheduled, running or dead job has the
priority when it is ready again. "--ahead 0s" takes the priority away.`,
		Example: `  delayq priority mail:welcome u-77812 --ahead 1h
  delayq priority mail:welcome u-77812 --behind 10m`,
		Args:              counted(2, 2, "a topic and an ID"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.jobIDs(everyState...), nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[1]
			given := cmd.Flags().Changed
			if given("ahead") == given("behind") {
				return usage("one of --ahead and --behind must be given")
			}
			for flag, length := range map[string]time.Duration{"ahead": ahead, "behind": behind} {
				if length < 0 || length > mostPriority {
					return usage("--%s %v: must be from 0s to 24h", flag, length)
				}
			}
			start := (ahead - behind).Truncate(time.Millisecond) // one of them is 0
			client, err := a.queue()
			if err != nil {
				return err
			}
			if err := a.acted(client.SetPriority(a.act(cmd.Context()), args[0], id, start)); err != nil {
				return err
			}
			r := &priorityRecord{refOf(args[0], id), seconds(start)}
			return object(a, schemaPriority, r, id, func(w io.Writer) error {
				return a.fields(w, "topic", args[0], "id", idText(id), "priority", headText(start))
			})
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	set.Var(&duration{&ahead}, "ahead", "head start, up to 24h")
	set.Var(&duration{&behind}, "behind", "how far the job goes behind, up to 24h")
	return cmd
}

// mostPriority is a bound that the library has too.
const mostPriority = 24 * time.Hour

// headText writes a head start.
func headText(d time.Duration) string {
	switch {
	case d > 0:
		return span(d) + " ahead"
	case d < 0:
		return span(-d) + " behind"
	}
	return "none"
}
