package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

func (a *app) pauseCommand() *cobra.Command {
	var length time.Duration
	var reason string
	cmd := &cobra.Command{
		Use:   "pause TOPIC…",
		Short: "Stop servers from taking jobs of topics",
		Long: `Stop all servers from taking jobs of topics. Running jobs continue, and jobs are still
stored. The pause has the name in --actor; a second one with the same name replaces it.`,
		Example:           `  delayq pause mail:welcome --for 1h --because "bank is down"`,
		Args:              counted(1, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.queue()
			if err != nil {
				return err
			}
			for _, topic := range args {
				if err := client.Pause(a.act(cmd.Context()), topic, delayq.Pause{By: a.actor, Reason: reason, For: length}); err != nil {
					return err
				}
			}
			return a.showTopics(cmd, args)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&duration{&length}, "for", "end of the pause; without it: until it is resumed")
	cmd.Flags().StringVar(&reason, "because", "", "the reason, at most 1 KiB")
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	var by string
	var everyone bool
	cmd := &cobra.Command{
		Use:   "resume TOPIC…",
		Short: "End the pause of topics",
		Long: `End the pause of topics that has the name in --actor. A topic remains paused while
others have paused it.`,
		Args:              counted(1, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.queue()
			if err != nil {
				return err
			}
			switch given := cmd.Flags().Changed("by"); {
			case given && everyone:
				return usage("--by and --everyone: only one of them can be given")
			case !given:
				by = a.actor
			}
			for _, topic := range args {
				if everyone {
					err = client.ResumeAll(a.act(cmd.Context()), topic)
				} else {
					err = client.Resume(a.act(cmd.Context()), topic, by)
				}
				if err != nil {
					return err
				}
			}
			return a.showTopics(cmd, args)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&by, "by", "", "end the pause with this `name`")
	cmd.Flags().BoolVar(&everyone, "everyone", false, "end all pauses")
	return cmd
}

// showTopics writes the topics as they are after an act, and says which of them are paused.
func (a *app) showTopics(cmd *cobra.Command, topics []string) error {
	list, err := a.stats(cmd.Context(), topics)
	if err != nil {
		return err
	}
	for _, r := range list {
		r.Counters = nil
		if r.State == topicPaused && cmd.Name() == "resume" {
			a.say("%s is still %s", r.Topic, a.pauseText(r.Pauses))
		}
	}
	return all(a, a.topicsView(), list, nil)
}
