package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const schemaFlow = "delayq.flow/1"

// A flowRecord is a flow with its steps, or some of them.
type flowRecord struct {
	jobRef
	State          delayq.FlowState `json:"state"`
	Group          bool             `json:"group,omitempty"` // jobs can still be added
	IgnoreFailures bool             `json:"ignore_failures,omitempty"`
	Total          int              `json:"total"`
	Left           int              `json:"left"`   // that have not ended
	Failed         int              `json:"failed"` // that have ended badly, or were skipped
	Kept           int64            `json:"kept,omitempty"`
	Started        stamp            `json:"started,omitzero"`
	Cause          *int             `json:"cause,omitempty"` // number of the step that has made it fail
	Last           *jobRecord       `json:"last,omitempty"`  // the last step
	Steps          []flowStepRecord `json:"steps"`
	Next           int              `json:"next,omitempty"` // number of the step with which --from goes on
	At             stamp            `json:"at,omitzero"`
}

// A flowStepRecord is a step of a flow.
type flowStepRecord struct {
	Number int `json:"number"`
	jobRef
	After          []int            `json:"after"`  // numbers of the steps that it waits for
	Before         []int            `json:"before"` // numbers of those that wait for it
	IgnoreFailures bool             `json:"ignore_failures,omitempty"`
	State          delayq.StepState `json:"state"`
	Left           int              `json:"left,omitempty"` // of After: those that have not ended
	Started        stamp            `json:"started,omitzero"`
	Ended          stamp            `json:"ended,omitzero"`
	Attempt        int              `json:"attempt,omitempty"`
	Server         string           `json:"server,omitempty"`
	OutputSize     int              `json:"output_size,omitempty"`
	Error          string           `json:"error,omitempty"`
	Cause          *int             `json:"cause,omitempty"` // number of the step because of which it is skipped
}

// numberOrNil returns nil for the number of no step.
func numberOrNil(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

// flowOf returns the record of a flow.
func flowOf(f *delayq.FlowInfo) *flowRecord {
	r := &flowRecord{
		jobRef: refOf(f.Topic, f.ID), State: f.State, Group: f.Group, IgnoreFailures: f.IgnoreFailures, Total: f.Total, Left: f.Left, Failed: f.Failed,
		Kept: f.Kept, Started: stamp(f.StartedAt), Cause: numberOrNil(f.Cause), Steps: []flowStepRecord{}, Next: f.Next, At: stamp(f.At),
	}
	if f.Last != nil {
		r.Last = jobOf(f.Last, false)
	}
	for _, s := range f.Steps {
		one := flowStepRecord{
			Number: s.Number, jobRef: refOf(s.Topic, s.ID), After: append([]int{}, s.After...), Before: append([]int{}, s.Before...),
			IgnoreFailures: s.IgnoreFailures, State: s.State, Left: s.Left, Started: stamp(s.StartedAt), Ended: stamp(s.EndedAt),
			Attempt: s.Attempt, Server: s.Server, OutputSize: s.OutputSize, Error: s.Error,
		}
		if s.State == delayq.StepSkipped {
			one.Cause = numberOrNil(s.Cause)
		}
		r.Steps = append(r.Steps, one)
	}
	return r
}

func (a *app) flowCommand() *cobra.Command {
	var from int
	cmd := &cobra.Command{
		Use:   "flow TOPIC ID",
		Short: "Show a flow as a tree",
		Long: `Show a flow, by the topic and the ID of its last step, as a tree: below each step are the
steps that it waits for, with their states and times. A step for which several others wait
is shown once in full. Of a flow with more steps, such as a group, 1,000 are shown, from
the number --from. To cancel a flow, cancel its last step; to run a last step that is
dead, revive it.`,
		Example: `  delayq flow album:done album-7
  delayq flow album:done album-7 -o json | jq '.steps[] | select(.state == "dead")'`,
		Args:              counted(2, 2, "a topic and an ID"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.jobIDs(everyState...), nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			if from < 0 {
				return usage("--from %d: must be at least 0", from)
			}
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			found, err := insp.FlowFrom(cmd.Context(), args[0], args[1], from)
			if err != nil {
				return err
			}
			a.setClock(found.At)
			return object(a, schemaFlow, flowOf(found), args[1], func(w io.Writer) error { return a.showFlow(w, found) })
		},
	}
	cmd.Flags().IntVar(&from, "from", 0, "`number` of the first step")
	return cmd
}

// showFlow writes a flow for people.
func (a *app) showFlow(w io.Writer, f *delayq.FlowInfo) error {
	last := ""
	if f.Last != nil {
		last = string(f.Last.State)
		if f.Last.State == delayq.StateScheduled && f.State == delayq.FlowOpen {
			last = "deadline " + a.when(f.Last.Due)
		}
	}
	state := string(f.State)
	if f.Group {
		state += " group"
	}
	text := fmt.Sprintf("%s %s  %s, %d of %d steps left, %d failed, started %s", f.Topic, idText(f.ID), state, f.Left, f.Total, f.Failed, a.when(f.StartedAt))
	if last != "" {
		text += ", " + last
	}
	if _, err := fmt.Fprintln(w, safe(text, false)); err != nil {
		return err
	}
	t := &flowTree{a: a, w: w, steps: map[int]*delayq.FlowStepInfo{}, shown: map[int]bool{}}
	for i := range f.Steps {
		t.steps[f.Steps[i].Number] = &f.Steps[i]
	}
	var roots []int
	for _, s := range f.Steps {
		if len(s.Before) == 0 {
			roots = append(roots, s.Number)
		}
	}
	t.list(roots, "")
	if f.Next > 0 && t.err == nil {
		a.say("%d more steps: --from %d", f.Total-f.Next, f.Next)
	}
	return t.err
}

// A flowTree writes steps, each with those that it waits for below it.
type flowTree struct {
	a     *app
	w     io.Writer
	steps map[int]*delayq.FlowStepInfo
	shown map[int]bool
	err   error
}

func (t *flowTree) list(numbers []int, indent string) {
	for i, n := range numbers {
		s := t.steps[n]
		if s == nil || t.err != nil {
			continue
		}
		mark, below := "├─ ", "│  "
		if i == len(numbers)-1 {
			mark, below = "└─ ", "   "
		}
		text := fmt.Sprintf("%d %s %s  %s", n, s.Topic, idText(s.ID), t.a.stepText(s))
		again := t.shown[n] && len(s.After) > 0
		if again {
			text += " (see above)"
		}
		_, t.err = fmt.Fprintln(t.w, indent+mark+safe(text, false))
		if t.shown[n] = true; !again {
			t.list(s.After, indent+below)
		}
	}
}

// stepText writes the state of a step, and what belongs to it.
func (a *app) stepText(s *delayq.FlowStepInfo) string {
	text := string(s.State)
	switch s.State {
	case delayq.StepWaits:
		text += " for " + strconv.Itoa(s.Left)
	case delayq.StepStarted:
		text += " " + a.when(s.StartedAt)
	case delayq.StepDone:
		text += " " + a.when(s.EndedAt)
		if !s.StartedAt.IsZero() {
			text += ", ran " + span(max(0, s.EndedAt.Sub(s.StartedAt)).Round(time.Millisecond))
		}
		if s.Attempt > 1 {
			text += ", attempt " + strconv.Itoa(s.Attempt)
		}
	case delayq.StepSkipped:
		if text += " " + a.when(s.EndedAt); s.Cause >= 0 {
			text += ", because of step " + strconv.Itoa(s.Cause)
		}
	default:
		if text += " " + a.when(s.EndedAt); s.Error != "" {
			text += ": " + s.Error
		}
	}
	if s.IgnoreFailures {
		text += " (ignores failures)"
	}
	return text
}
