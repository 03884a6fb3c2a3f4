package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// unsettable are the values of --unset, with the names that ScheduleInfo.Edited uses.
var unsettable = []struct{ word, part string }{
	{"start-at", "StartAt"},
	{"end-at", "EndAt"},
	{"max-runs", "MaxRuns"},
	{"jitter", "Jitter"},
	{"in", "ProcessIn"},
	{"retry", "Retry"},
	{"backoff", "Backoff"},
	{"job-timeout", "Timeout"},
	{"expire", "Expire"},
	{"retention", "Retention"},
	{"header", "Headers"},
	{"key", "Key"},
	{"payload", "Payload"},
}

func unsetWords() (list []string) {
	for _, u := range unsettable {
		list = append(list, u.word)
	}
	return list
}

// scheduleFlags are the flags of what a schedule can be given.
type scheduleFlags struct {
	every                time.Duration
	cron, zone, calendar string
	payload, file        string
	startAt, endAt       string
	maxRuns              int
	jitter               time.Duration
	overlap, missed      string
	in, expireIn         time.Duration
	job                  jobFlags
	unset                []string
}

func (s *scheduleFlags) flags(f *pflag.FlagSet) {
	f.Var(&duration{&s.every}, "every", "interval of the slots")
	f.StringVar(&s.cron, "cron", "", "cron `rule` of 5 or 6 fields")
	f.StringVar(&s.zone, "zone", "", "time `zone` of the cron rule, for example Europe/Berlin or UTC")
	f.StringVar(&s.calendar, "calendar", "", "`name` of a calendar of the servers")
	f.StringVar(&s.payload, "payload", "", "payload as `text`; --payload-file /dev/null: an empty one")
	f.StringVar(&s.file, "payload-file", "", "payload from a `file`, or from stdin if it is -")
	f.StringVar(&s.startAt, "start-at", "", "earliest slot, a `time`")
	f.StringVar(&s.endAt, "end-at", "", "latest slot, a `time`")
	f.IntVar(&s.maxRuns, "max-runs", 0, "end after this many jobs")
	f.Var(&duration{&s.jitter}, "jitter", "make each job due up to this much later")
	f.StringVar(&s.overlap, "overlap", "", "`policy` while the last job is unfinished: "+strings.Join(values.Overlaps, ", "))
	f.StringVar(&s.missed, "missed", "", "`policy` for missed slots: "+values.Missed)
	f.Var(&duration{&s.in}, "in", "make each job due this much after its slot")
	s.job.flags(f)
	f.Var(&duration{&s.expireIn}, "expire-in", "drop a job that has not started after this time")
	f.StringArrayVar(&s.unset, "unset", nil, "remove a `part`: "+strings.Join(unsetWords(), ", ")+"; can be repeated")
}

// change returns the function that changes a definition as the flags say.
func (s *scheduleFlags) change(ctx context.Context, cmd *cobra.Command, a *app, topic, name string) (func(*delayq.ScheduleDefinition) error, error) {
	given := cmd.Flags().Changed
	var opts []delayq.ScheduleOption
	for _, word := range s.unset {
		part := ""
		for _, u := range unsettable {
			if u.word == word {
				part = u.part
			}
		}
		if part == "" {
			return nil, usage("--unset %q: allowed are %s", word, strings.Join(unsetWords(), ", "))
		}
		opts = append(opts, library.Unset(part))
	}
	for flag, option := range map[string]func(time.Time) delayq.ScheduleOption{"start-at": delayq.StartAt, "end-at": delayq.EndAt} {
		if given(flag) {
			t, err := a.instant(ctx, flag, cmd.Flag(flag).Value.String())
			if err != nil {
				return nil, err
			}
			opts = append(opts, option(t))
		}
	}
	if given("max-runs") {
		opts = append(opts, delayq.MaxRuns(s.maxRuns))
	}
	if given("jitter") {
		opts = append(opts, delayq.Jitter(s.jitter))
	}
	if given("overlap") {
		p, err := values.ParseOverlap(s.overlap)
		if err != nil {
			return nil, usage("--overlap %v", err)
		}
		opts = append(opts, p)
	}
	if given("missed") {
		p, err := values.ParseMissed(s.missed)
		if err != nil {
			return nil, usage("--missed %v", err)
		}
		opts = append(opts, p)
	}
	if given("in") {
		opts = append(opts, delayq.ProcessIn(s.in))
	}
	if given("expire-in") {
		opts = append(opts, delayq.ExpireIn(s.expireIn))
	}
	job, err := s.job.options(cmd, a)
	if err != nil {
		return nil, err
	}
	for _, opt := range job {
		opts = append(opts, opt)
	}
	spec, err := s.spec(ctx, cmd, a, topic, name)
	if err != nil {
		return nil, err
	}
	payload, err := s.newPayload(cmd, a)
	if err != nil {
		return nil, err
	}
	return func(d *delayq.ScheduleDefinition) error {
		d.EditedBy = a.actor
		d.Options = append(d.Options, opts...)
		if payload != nil {
			d.Payload = *payload
		}
		if spec != nil {
			return spec(d)
		}
		return nil
	}, nil
}

// newPayload returns the payload that was given, or nil.
func (s *scheduleFlags) newPayload(cmd *cobra.Command, a *app) (*[]byte, error) {
	text, file := cmd.Flags().Changed("payload"), cmd.Flags().Changed("payload-file")
	switch {
	case text && file:
		return nil, usage("--payload and --payload-file: only one of them can be given")
	case file:
		payload, err := a.readFile(s.file)
		return &payload, err
	case text:
		payload := []byte(s.payload)
		return &payload, nil
	}
	return nil, nil
}

// spec returns the function that changes the spec, or nil. A zone alone keeps the rule.
func (s *scheduleFlags) spec(ctx context.Context, cmd *cobra.Command, a *app, topic, name string) (func(*delayq.ScheduleDefinition) error, error) {
	given := cmd.Flags().Changed
	rules := 0
	for _, flag := range []string{"every", "cron", "calendar"} {
		if given(flag) {
			rules++
		}
	}
	set := func(spec delayq.Spec) (func(*delayq.ScheduleDefinition) error, error) {
		return func(d *delayq.ScheduleDefinition) error {
			d.Spec = spec
			return nil
		}, nil
	}
	switch {
	case rules > 1:
		return nil, usage("--every, --cron and --calendar: only one of them can be given")
	case given("zone") && rules == 1 && !given("cron"):
		return nil, usage("--zone is for cron rules")
	case given("every"):
		return set(delayq.Every(s.every))
	case given("calendar"):
		return set(delayq.OnCalendar(s.calendar))
	case !given("cron") && !given("zone"):
		return nil, nil
	case given("cron") && given("zone"):
		return set(delayq.Cron(s.cron, s.zone))
	}
	insp, err := a.inspector() // for the part that remains
	if err != nil {
		return nil, err
	}
	info, err := insp.Schedule(ctx, topic, name)
	if err != nil {
		return nil, err
	}
	rule, isCron := strings.CutPrefix(info.Spec.String(), "cron ")
	if !isCron && !given("cron") {
		return nil, usage("--zone is for cron rules, and the schedule is %q", info.Spec)
	}
	rule = strings.TrimSuffix(rule, " "+info.Zone)
	zone := info.Zone
	if given("cron") {
		rule = s.cron
	} else {
		zone = s.zone
	}
	return func(d *delayq.ScheduleDefinition) error {
		if d.Spec != info.Spec {
			return &exitCode{exitConflict, "somebody else has changed the schedule at the same time"}
		}
		d.Spec = delayq.Cron(rule, zone)
		return nil
	}, nil
}

func (a *app) scheduleEditCommand() *cobra.Command {
	var s scheduleFlags
	cmd := &cobra.Command{
		Use:   "edit TOPIC NAME",
		Short: "Change parts of a schedule, and keep the rest",
		Long: `Change the parts of a schedule that are given as flags, and keep the rest. Programs that
create the schedule when they start keep these parts too. --header adds a header or
changes one.`,
		Example: `  delayq schedule edit report:weekly tenant-7 --zone Europe/Berlin
  delayq schedule edit report:weekly tenant-7 --unset max-runs --retry 5`,
		Args:              counted(2, 2, "a topic and the name of a schedule"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.scheduleNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			changes := 0
			cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				if f.Changed {
					changes++
				}
			})
			if changes == 0 {
				return usage("schedule edit needs a flag that says what to change; see delayq schedule edit --help")
			}
			change, err := s.change(cmd.Context(), cmd, a, args[0], args[1])
			if err != nil {
				return err
			}
			client, err := a.queue()
			if err != nil {
				return err
			}
			if err := a.acted(client.EditSchedule(a.act(cmd.Context()), args[0], args[1], change)); err != nil {
				return err
			}
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			info, err := insp.Schedule(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			r := scheduleOf(info, true)
			return object(a, schemaSchedule, r, r.Name, func(w io.Writer) error { return a.showSchedule(w, r) })
		},
	}
	cmd.Flags().SortFlags = false
	s.flags(cmd.Flags())
	a.choices(cmd, "overlap", values.Overlaps)
	a.choices(cmd, "unset", unsetWords())
	return cmd
}
