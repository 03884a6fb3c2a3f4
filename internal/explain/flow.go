package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Flow is what is known of the flow that the job is a step of.
type Flow struct {
	Topic, ID   string // of the last step
	Step        int    // number of the job
	Last        bool   // the job is the last step; otherwise the rest is not known
	Open        bool   // it waits for others
	Group       bool   // jobs can still be added
	Total, Left int    // steps, and those that have not ended
	Missing     []Missing
}

// A Missing is a step that has started and not ended.
type Missing struct {
	Topic, ID string
	How       string // as Brief says it
}

// MostMissing is how many missing steps a verdict names.
const MostMissing = 3

// Brief returns the state of the job and what is in its way, in a few words.
func (f *Facts) Brief() string {
	if f.Job == nil {
		return "on its way"
	}
	state, reasons := strings.ToLower(f.heading()), f.reasons()
	if f.is(stateReady) || f.is(stateScheduled) {
		state = f.Job.State
	}
	if len(reasons) == 0 || string(reasons[0].Code) == f.Job.State {
		return state
	}
	why := strings.ReplaceAll(string(reasons[0].Code), "_", " ")
	if first := &reasons[0]; first.Code == TopicPaused && first.By != "" {
		why += " by " + strconv.Quote(first.By)
	}
	return state + "; " + why
}

// waitsForSteps returns that the job is a last step that waits for others; nil: it is not.
func (f *Facts) waitsForSteps() *Reason {
	if f.Flow == nil || !f.Flow.Last || !f.Flow.Open || !f.is(stateScheduled) {
		return nil
	}
	r := &Reason{Code: FlowOpen, Until: f.Job.Due, Ahead: int64(f.Flow.Left), Limit: int64(f.Flow.Total), More: f.Flow.Group}
	var names []string
	for _, m := range f.Flow.Missing {
		names = append(names, fmt.Sprintf("%q (%s)", m.Topic+"/"+m.ID, m.How))
	}
	if r.Missing = strings.Join(names, ", "); len(names) > 0 && len(names) < f.Flow.Left {
		r.Missing += " and others"
	}
	return r
}

// waits returns for which steps a last step waits.
func (r *Reason) waits(now time.Time) string {
	text := fmt.Sprintf("it waits for %s of %s steps of its flow", grouped(r.Ahead), grouped(r.Limit))
	if r.Missing != "" {
		text += ": " + r.Missing
	}
	if r.More {
		text += "; the group is open, and others can be added"
	}
	return fmt.Sprintf("%s; the deadline is at %s, in %s", text, moment(r.Until), span(r.Until.Sub(now)))
}

// member returns of which flow the job is a step, as a clause behind a semicolon.
func (f *Facts) member() string {
	if f.Flow == nil || f.Flow.Last {
		return ""
	}
	return fmt.Sprintf("; it is step %d of the flow %q", f.Flow.Step, f.Flow.Topic+"/"+f.Flow.ID)
}
