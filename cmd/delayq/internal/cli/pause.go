package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

func (a *app) pauseCommand() *cobra.Command {
	var length time.Duration
	var reason string
	var create bool
	cmd := &cobra.Command{
		Use:   "pause TOPIC…",
		Short: "Stop servers from taking jobs of topics",
		Long: `Stop all servers from taking jobs of topics. Running jobs continue, and jobs are still
stored. The pause has the name in --actor; a second one with the same name replaces it.`,
		Example:           `  delayq pause mail:welcome --for 1h --because "bank is down"`,
		Args:              counted(1, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.known(cmd.Context(), args, create); err != nil {
				return err
			}
			client, err := a.queue()
			if err != nil {
				return err
			}
			for _, topic := range args {
				pause := delayq.Pause{By: a.actor, Reason: reason, For: length}
				if err := a.acted(client.Pause(a.act(cmd.Context()), topic, pause)); err != nil {
					return err
				}
			}
			return a.showTopics(cmd, args)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&duration{&length}, "for", "end of the pause; without it: until it is resumed")
	cmd.Flags().StringVar(&reason, "because", "", "the reason, at most 1 KiB")
	cmd.Flags().BoolVar(&create, "create", false, "also for a topic that has no jobs, no schedules and no server yet")
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
			if err := a.known(cmd.Context(), args, false); err != nil {
				return err
			}
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
				if err = a.acted(err); err != nil {
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

// known checks that topics exist, so that a typo is no success. A topic exists if it has had a job
// or a schedule, if a server handles it, or if it is paused, held, limited or divided. With create
// every topic does.
func (a *app) known(ctx context.Context, topics []string, create bool) error {
	if create {
		return nil
	}
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	over, cancel := context.WithCancel(ctx)
	cancel() // before Redis is asked
	if _, err := insp.Stats(over, topics...); errors.Is(err, delayq.ErrInvalid) {
		return err
	}
	names, err := insp.Topics(ctx)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return slices.Contains(names, topic) })
	if len(missing) == 0 {
		return nil
	}
	servers, err := insp.Servers(ctx)
	if err != nil {
		return err
	}
	for _, s := range servers {
		missing = slices.DeleteFunc(missing, func(topic string) bool {
			_, handles := s.Topics[topic]
			return handles
		})
	}
	if len(missing) == 0 {
		return nil
	}
	stats, err := insp.Stats(ctx, missing...)
	if err != nil {
		return err
	}
	for _, s := range stats { // for --create has made it
		if len(s.Pauses) > 0 || !s.HeldUntil.IsZero() || s.Limits != (delayq.Limits{}) || s.Partitions != nil {
			missing = slices.DeleteFunc(missing, func(topic string) bool { return topic == s.Topic })
		}
	}
	if len(missing) == 0 {
		return nil
	}
	hint := "delayq topics lists those that there are; --create is for a topic that is yet to come"
	if near := nearest(missing[0], names); near != "" {
		hint = fmt.Sprintf("did you mean %q? %s", near, hint)
	}
	return &exitCode{exitNotFound, fmt.Sprintf("there is no topic %q, and nothing was done; %s", missing[0], hint)}
}

// nearest returns the name that begins like a wrong one for the longest time, or "" if none has
// half of it.
func nearest(wrong string, names []string) (near string) {
	longest := (len(wrong) + 1) / 2
	for _, name := range names {
		n := 0
		for n < min(len(name), len(wrong)) && name[n] == wrong[n] {
			n++
		}
		if n > longest {
			near, longest = name, n
		}
	}
	return near
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
