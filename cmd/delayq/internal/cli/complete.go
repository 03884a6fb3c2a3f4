package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// Completion asks Redis, but a shell that waits is worse than one that does not know.
const (
	completionTimeout = time.Second
	completionIDs     = 50 // of each state
	completionBudget  = 2000
)

// names returns the words that can come next, given the arguments before it.
type names func(ctx context.Context, args []string, start string) ([]string, error)

// completeArgs completes each argument with the names at its position. rest is used for those that
// follow. Nil stands for a file.
func (a *app) completeArgs(list ...names) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		at := min(len(args), len(list)-1)
		if at < 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if list[at] == nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		if a.setUp(cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		a.timeout = min(a.timeout, completionTimeout)
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		if cmd.Context() != nil {
			cancel()
			ctx, cancel = context.WithTimeout(cmd.Context(), completionTimeout)
		}
		defer cancel()
		var found []string
		args, err := idsOf(args)
		if err == nil {
			found, err = list[at](ctx, args, start)
		}
		if err != nil {
			cobra.CompDebugln(errorText(err), false)
		}
		var out []string
		for _, name := range found {
			if name == "" {
				continue
			}
			// The scripts of the shells put words on the command line as they are, and evaluate it.
			if word := shellWord(name); strings.HasPrefix(word, start) {
				out = append(out, word)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// choices completes a flag with fixed words.
func (a *app) choices(cmd *cobra.Command, flag string, words []string) {
	complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag does not exist: every test would fail
	}
}

func nothing(context.Context, []string, string) ([]string, error) { return nil, nil }

// words completes with fixed words.
func words(list ...string) names {
	return func(context.Context, []string, string) ([]string, error) { return list, nil }
}

func (a *app) topicNames(ctx context.Context, _ []string, _ string) ([]string, error) {
	insp, err := a.inspector()
	if err != nil {
		return nil, err
	}
	return insp.Topics(ctx)
}

func (a *app) serverIDs(ctx context.Context, _ []string, _ string) (ids []string, err error) {
	insp, err := a.inspector()
	if err != nil {
		return nil, err
	}
	servers, err := insp.Servers(ctx)
	for _, s := range servers {
		ids = append(ids, s.ID)
	}
	return ids, err
}

// jobIDs returns the function for the jobs of the topic in the first argument.
func (a *app) jobIDs(states ...delayq.State) names {
	return func(ctx context.Context, args []string, start string) (ids []string, err error) {
		insp, err := a.inspector()
		if err != nil || len(args) == 0 {
			return nil, err
		}
		begin := start
		if strings.HasPrefix(start, encoded) || strings.HasPrefix(encoded, start) {
			begin = "" // an ID may be written in base64
		}
		for _, state := range states {
			page, err := insp.Jobs(ctx, delayq.Query{
				Topic: args[0], State: state, IDPrefix: begin, Limit: completionIDs, Budget: completionBudget,
			})
			if err != nil {
				return ids, err
			}
			for _, job := range page.Jobs {
				ids = append(ids, job.ID)
			}
		}
		return ids, nil
	}
}

// everyState is for commands that take a job in any state.
var everyState = []delayq.State{delayq.StateRunning, delayq.StateReady, delayq.StateScheduled, delayq.StateDead, delayq.StateDone}

// scheduleNames returns the schedules of the topic in the first argument.
func (a *app) scheduleNames(ctx context.Context, args []string, _ string) (list []string, err error) {
	insp, err := a.inspector()
	if err != nil || len(args) == 0 {
		return nil, err
	}
	schedules, err := insp.Schedules(ctx, args[0])
	for _, s := range schedules {
		list = append(list, s.Name)
	}
	return list, err
}
