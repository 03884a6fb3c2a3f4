package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// A scheduleFile is the file of schedule sync: YAML, or JSON.
type scheduleFile struct {
	Topic     string          `yaml:"topic"`  // of schedules without one
	Topics    []string        `yaml:"topics"` // whose other schedules are removed, besides those below
	Schedules []scheduleEntry `yaml:"schedules"`
}

// A scheduleEntry is a schedule in a file.
type scheduleEntry struct {
	Topic    string    `yaml:"topic"`
	Name     string    `yaml:"name"`
	Every    fileSpan  `yaml:"every"`
	Cron     string    `yaml:"cron"`
	Zone     string    `yaml:"zone"`
	Calendar string    `yaml:"calendar"`
	StartAt  time.Time `yaml:"start_at"`
	EndAt    time.Time `yaml:"end_at"`
	MaxRuns  int       `yaml:"max_runs"`
	Jitter   fileSpan  `yaml:"jitter"`
	Overlap  string    `yaml:"overlap"`
	Missed   string    `yaml:"missed"`

	Payload       string            `yaml:"payload"`
	PayloadBase64 string            `yaml:"payload_base64"`
	Headers       map[string]string `yaml:"headers"`
	In            fileSpan          `yaml:"in"`
	Retry         string            `yaml:"retry"`
	Backoff       []fileSpan        `yaml:"backoff"`
	Timeout       fileSpan          `yaml:"timeout"`
	ExpireIn      fileSpan          `yaml:"expire_in"`
	ExpireAt      time.Time         `yaml:"expire_at"`
	Retention     fileSpan          `yaml:"retention"`
}

// A fileSpan is a duration such as 3d12h; nil stands for none.
type fileSpan struct{ d *time.Duration }

// UnmarshalText reads a duration.
func (s *fileSpan) UnmarshalText(text []byte) error {
	d, err := values.ParseSpan(string(text))
	s.d = &d
	return err
}

// readSchedules reads a file.
func readSchedules(text []byte) (*scheduleFile, error) {
	if json.Valid(text) { // JSON is YAML, except for some escapes and tabs
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		var v any
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		var err error
		if text, err = marshal(v); err != nil {
			return nil, err
		}
	}
	file := new(scheduleFile)
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(file); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is empty; to remove all schedules of topics, list them in topics")
		}
		return nil, errors.New(goTypes.Replace(err.Error()))
	}
	return file, nil
}

// goTypes replaces what errors of the YAML package say to programmers.
var goTypes = strings.NewReplacer(
	"not found in type cli.scheduleEntry", "is not known", "not found in type cli.scheduleFile", "is not known",
	"into []cli.scheduleEntry", "as a list of schedules", "into cli.scheduleEntry", "as a schedule", "into cli.scheduleFile", "as a file of schedules",
	"yaml: unmarshal errors:\n  ", "", "yaml: ", "",
)

// arguments returns the arguments of Client.Schedule for an entry.
func (e *scheduleEntry) arguments(discard bool) (spec delayq.Spec, payload []byte, opts []delayq.ScheduleOption, err error) {
	var errs []error
	rules := 0
	if e.Every.d != nil {
		spec = delayq.Every(*e.Every.d)
		rules++
	}
	if e.Cron != "" {
		spec = delayq.Cron(e.Cron, e.Zone)
		rules++
	} else if e.Zone != "" {
		errs = append(errs, errors.New("zone is for cron rules"))
	}
	if e.Calendar != "" {
		spec = delayq.OnCalendar(e.Calendar)
		rules++
	}
	if rules != 1 {
		errs = append(errs, errors.New("exactly one of every, cron and calendar is needed"))
	}
	payload = []byte(e.Payload)
	if e.PayloadBase64 != "" {
		if e.Payload != "" {
			errs = append(errs, errors.New("payload and payload_base64: only one of them can be given"))
		}
		var c content
		if err := json.Unmarshal([]byte(`{"payload_base64":`+strconv.Quote(e.PayloadBase64)+`}`), &c); err != nil {
			errs = append(errs, fmt.Errorf("payload_base64: %w", err))
		}
		payload = c.PayloadBase64
	}
	at := func(t time.Time, option func(time.Time) delayq.ScheduleOption) {
		if !t.IsZero() {
			opts = append(opts, option(t))
		}
	}
	at(e.StartAt, delayq.StartAt)
	at(e.EndAt, delayq.EndAt)
	at(e.ExpireAt, func(t time.Time) delayq.ScheduleOption { return delayq.ExpireAt(t) })
	last := func(d fileSpan, option func(time.Duration) delayq.ScheduleOption) {
		if d.d != nil {
			opts = append(opts, option(*d.d))
		}
	}
	last(e.Jitter, delayq.Jitter)
	last(e.In, func(d time.Duration) delayq.ScheduleOption { return delayq.ProcessIn(d) })
	last(e.Timeout, func(d time.Duration) delayq.ScheduleOption { return delayq.Timeout(d) })
	last(e.ExpireIn, func(d time.Duration) delayq.ScheduleOption { return delayq.ExpireIn(d) })
	last(e.Retention, func(d time.Duration) delayq.ScheduleOption { return delayq.Retention(d) })
	if e.MaxRuns != 0 {
		opts = append(opts, delayq.MaxRuns(e.MaxRuns))
	}
	if e.Overlap != "" {
		p, err := values.ParseOverlap(e.Overlap)
		if err != nil {
			errs = append(errs, fmt.Errorf("overlap %w", err))
		}
		opts = append(opts, p)
	}
	if e.Missed != "" {
		p, err := values.ParseMissed(e.Missed)
		if err != nil {
			errs = append(errs, fmt.Errorf("missed %w", err))
		}
		opts = append(opts, p)
	}
	if e.Retry != "" {
		n, err := values.ParseRetry(e.Retry)
		if err != nil {
			errs = append(errs, fmt.Errorf("retry %w", err))
		}
		opts = append(opts, delayq.Retry(n))
	}
	if e.Backoff != nil {
		if len(e.Backoff) == 2 && e.Backoff[0].d != nil && e.Backoff[1].d != nil {
			opts = append(opts, delayq.Backoff(*e.Backoff[0].d, *e.Backoff[1].d))
		} else {
			errs = append(errs, errors.New("backoff needs two durations: the first delay and the largest"))
		}
	}
	for key, value := range e.Headers {
		opts = append(opts, delayq.Header(key, value))
	}
	if discard {
		opts = append(opts, delayq.DiscardEdits())
	}
	return spec, payload, opts, errors.Join(errs...)
}

const (
	schemaSync  = "delayq.sync-step/1"
	schemaSyncs = "delayq.sync/1"
)

// A syncRecord is what schedule sync does to a schedule.
type syncRecord struct {
	Topic  string   `json:"topic"`
	Name   string   `json:"name"`
	Step   string   `json:"step"` // add, change or remove
	Parts  []string `json:"parts,omitempty"`
	Was    string   `json:"was,omitempty"` // the spec before
	Spec   string   `json:"spec,omitempty"`
	Done   bool     `json:"done"`
	Error  string   `json:"error,omitempty"`
	remove func(ctx context.Context, c *delayq.Client) error
	set    delayq.NewSchedule // if remove is nil
}

// The steps of a sync.
const (
	stepAdd    = "add"
	stepChange = "change"
	stepRemove = "remove"
)

func (a *app) scheduleSyncCommand() *cobra.Command {
	var dryRun, yes, keep, discard bool
	cmd := &cobra.Command{
		Use:   "sync FILE",
		Short: "Make the schedules of topics those of a file",
		Long: `Make the schedules of the topics in a file those that the file lists: add those that
are missing, change those that differ, and remove all others of these topics. What
is about to be done is shown first, and you are asked. Without a terminal --yes is
needed. A schedule that does not change keeps its counts and its next slot. Parts
that somebody has edited remain, unless --discard-edits is given.

FILE is YAML or JSON; "-" is stdin. Each schedule has a name, a topic, and one of
every, cron (with zone) and calendar. It can have payload, payload_base64, headers,
in, retry, backoff, timeout, expire_in, expire_at, retention, start_at, end_at,
max_runs, jitter, overlap and missed. A topic beside the list is that of schedules
without one. Topics in the list topics lose their schedules if the file has none.`,
		Example: `  delayq schedule sync crons.yaml --dry-run

  # crons.yaml
  topic: report:weekly
  schedules:
    - name: tenant-7
      cron: 0 9 * * 1
      zone: Europe/Berlin
      payload: '{"tenant":7}'
      retry: 5`,
		Args:              counted(1, 1, "a file"),
		ValidArgsFunction: a.completeArgs(nil, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.readFile(args[0])
			if err != nil {
				return err
			}
			file, err := readSchedules(text)
			if err != nil {
				return usage("%s: %v", args[0], err)
			}
			steps, same, err := a.planSync(cmd.Context(), file, keep, discard)
			if err != nil {
				return err
			}
			sums := map[string]int64{}
			for _, s := range steps {
				sums[s.Step]++
			}
			question := fmt.Sprintf("add %s, change %s, remove %s, and leave %s as they are?",
				number(sums[stepAdd]), number(sums[stepChange]), number(sums[stepRemove]), number(same))
			if dryRun || len(steps) == 0 {
				if err := all(a, a.syncView(), steps, nil); err != nil {
					return err
				}
				a.say("%s", strings.TrimSuffix(question, "?")+map[bool]string{true: " (dry run)"}[dryRun])
				return nil
			}
			if a.in.terminal && !yes {
				for _, s := range steps {
					a.say("%s", s.text())
				}
			}
			if err := a.confirm(cmd.Context(), yes, question, "sync", 1, true); err != nil {
				return err
			}
			return a.performSync(cmd.Context(), steps)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&dryRun, "dry-run", false, "show what would be done, and do nothing")
	f.BoolVar(&keep, "keep-others", false, "remove no schedules")
	f.BoolVar(&discard, "discard-edits", false, "change edited parts too")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// text writes a step on one line.
func (s *syncRecord) text() string {
	text := fmt.Sprintf("%-6s  %s  %s", s.Step, s.Topic, s.Name)
	if d := s.detail(); d != "" {
		text += "  " + d
	}
	return text
}

// detail writes what a step changes.
func (s *syncRecord) detail() string {
	switch {
	case s.Step == stepChange && s.Was != s.Spec:
		return strings.Join(s.Parts, " ") + ": " + s.Was + " → " + s.Spec
	case s.Step == stepChange:
		return strings.Join(s.Parts, " ")
	case s.Step == stepRemove:
		return s.Was
	}
	return s.Spec
}

func (a *app) syncView() view[*syncRecord] {
	return view[*syncRecord]{schemaSync, schemaSyncs, "steps", []column[*syncRecord]{
		{head: "STEP", cell: func(s *syncRecord) string { return s.Step }},
		{head: "TOPIC", cell: func(s *syncRecord) string { return s.Topic }},
		{head: "NAME", cell: func(s *syncRecord) string { return s.Name }},
		{head: "CHANGES", cell: func(s *syncRecord) string { return s.detail() }},
		{head: "ERROR", cell: func(s *syncRecord) string { return s.Error }},
	}, func(s *syncRecord) string { return s.Name }, func(s *syncRecord) string { return s.Topic }}
}

// planSync compares a file with what Redis has. same is the number of schedules that stay as they
// are.
func (a *app) planSync(ctx context.Context, file *scheduleFile, keep, discard bool) (steps []*syncRecord, same int, err error) {
	insp, err := a.inspector()
	if err != nil {
		return nil, 0, err
	}
	topics := file.Topics
	wanted := map[[2]string]bool{}
	var errs []error
	for i := range file.Schedules {
		e := &file.Schedules[i]
		if e.Topic == "" {
			e.Topic = file.Topic
		}
		key := [2]string{e.Topic, e.Name}
		switch {
		case e.Name == "" || e.Topic == "":
			errs = append(errs, fmt.Errorf("schedule %d: a name and a topic are needed", i+1))
		case wanted[key]:
			errs = append(errs, fmt.Errorf("schedule %d: %q of topic %q is there twice", i+1, e.Name, e.Topic))
		}
		wanted[key] = true
		topics = append(topics, e.Topic)
	}
	if len(errs) > 0 {
		return nil, 0, usage("%v", errors.Join(errs...))
	}
	slices.Sort(topics)
	existing := map[[2]string]*delayq.ScheduleInfo{}
	for _, topic := range slices.Compact(topics) {
		list, err := insp.Schedules(ctx, topic)
		if err != nil {
			return nil, 0, err
		}
		for _, s := range list {
			existing[[2]string{topic, s.Name}] = s
			if !wanted[[2]string{topic, s.Name}] && !keep {
				steps = append(steps, &syncRecord{Topic: topic, Name: s.Name, Step: stepRemove, Was: s.Spec.String(),
					remove: func(ctx context.Context, c *delayq.Client) error {
						err := c.Unschedule(ctx, topic, s.Name)
						if errors.Is(err, delayq.ErrNotFound) {
							return nil // it is gone
						}
						return err
					}})
			}
		}
	}
	// The list has no payloads, so each schedule of the file is read. Calls side by side make that
	// a matter of milliseconds.
	found := make([]*syncRecord, len(file.Schedules))
	fails := side(len(file.Schedules), func(i int) error {
		e := &file.Schedules[i]
		var info *delayq.ScheduleInfo
		if existing[[2]string{e.Topic, e.Name}] != nil {
			var err error
			if info, err = insp.Schedule(ctx, e.Topic, e.Name); err != nil && !errors.Is(err, delayq.ErrNotFound) {
				return err
			}
		}
		step, err := e.step(info, discard)
		if err != nil {
			return usage("schedule %d, %q of topic %q: %s", i+1, e.Name, e.Topic, errorText(err))
		}
		found[i] = step
		return nil
	})
	if err := errors.Join(fails...); err != nil {
		return nil, 0, firstOf(fails)
	}
	for _, s := range found {
		if s == nil {
			same++
		} else {
			steps = append(steps, s)
		}
	}
	slices.SortStableFunc(steps, func(x, y *syncRecord) int {
		order := []string{stepRemove, stepChange, stepAdd}
		return slices.Index(order, x.Step) - slices.Index(order, y.Step)
	})
	return steps, same, nil
}

// firstOf joins up to ten errors under the exit code of the first one.
func firstOf(errs []error) error {
	var list []error
	for _, err := range errs {
		if err != nil && len(list) < 10 {
			list = append(list, err)
		}
	}
	return &exitCode{codeOf(list[0]), errorText(errors.Join(list...))}
}

// step returns what makes the schedule that of the entry, or nil if it is so already.
func (e *scheduleEntry) step(info *delayq.ScheduleInfo, discard bool) (*syncRecord, error) {
	spec, payload, opts, err := e.arguments(discard)
	if err != nil {
		return nil, err
	}
	parts, err := library.Changes(info, spec, payload, opts)
	if err != nil {
		return nil, err
	}
	s := &syncRecord{Topic: e.Topic, Name: e.Name, Step: stepAdd, Spec: spec.String(), Parts: parts}
	s.set = delayq.NewSchedule{Topic: e.Topic, Name: e.Name, Spec: spec, Payload: payload, Options: opts}
	if info != nil {
		s.Step, s.Was = stepChange, info.Spec.String()
		if slices.Contains(info.Edited, "Spec") && !discard {
			s.Spec = s.Was
		}
		if len(parts) == 0 {
			return nil, nil
		}
	}
	return s, nil
}

// performSync carries out the steps, and writes how each has ended.
func (a *app) performSync(ctx context.Context, steps []*syncRecord) error {
	client, err := a.queue()
	if err != nil {
		return err
	}
	act := a.act(ctx)
	errs := side(len(steps), func(i int) error {
		if err := ctx.Err(); err != nil || steps[i].remove == nil {
			return err
		}
		return steps[i].remove(act, client)
	})
	var batch []delayq.NewSchedule
	var of []int // the steps
	for i, s := range steps {
		if s.remove == nil && errs[i] == nil {
			batch, of = append(batch, s.set), append(of, i)
		}
	}
	results, err := client.ScheduleBatch(act, batch)
	_ = a.acted(unaudited(err)) // the results have the other errors
	for i, r := range results {
		errs[of[i]] = r.Err
	}
	var sum tally
	for i, s := range steps {
		errs[i] = a.acted(errs[i])
		s.Done, s.Error = errs[i] == nil, errorText(errs[i])
		if sum.add(errs[i]); s.Error != "" && !a.tabular() {
			a.say("%s: %s", s.text(), s.Error)
		}
	}
	if err := all(a, a.syncView(), steps, nil); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return sum.result()
}
