package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A Progress is how far a flow has come when its last step is taken. What is said of its steps can
// be missing.
type Progress struct {
	State   byte // 0: there is no such flow
	Ignore  bool // the last step runs in any case
	Cause   End  // because of which the flow has failed
	Left    int  // how many steps are missing
	Missing []Member
}

// A Member is a step, as a Progress names it.
type Member struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
}

// An End is a step that has ended badly.
type End struct {
	Member
	Outcome string `json:"outcome"` // a letter
	Text    string `json:"text"`
}

var errProgress = errors.New("delayq: what Redis says of the flow cannot be read")

// ReadProgress reads what flow_begin says of a flow. With an error too, the state is known.
func ReadProgress(state, text string) (p Progress, err error) {
	letter, flags, _ := strings.Cut(state, " ")
	if len(letter) == 1 && letter != "-" {
		p.State = letter[0]
	}
	p.Ignore = strings.Contains(flags, flagIgnore)
	var said struct {
		End
		Left    int      `json:"left"`
		Missing []Member `json:"missing"`
	}
	if text != "" && json.Unmarshal([]byte(text), &said) != nil {
		err = errProgress
	}
	p.Cause, p.Left, p.Missing = said.End, said.Left, said.Missing
	return p, err
}

// ends say how a step has ended badly.
var ends = map[string]string{
	string(Expired): "has expired", string(Dead): "is dead", string(Cancelled): "was cancelled", string(Replaced): "was replaced",
	string(Refused): "was refused by its topic", string(Lost): "is lost", string(Skipped): "was skipped",
}

// Failure says which step has made the flow fail, and why.
func (p *Progress) Failure() string {
	s := &p.Cause
	if s.ID == "" {
		return "a step of the flow has failed; what is known of it cannot be read"
	}
	end := ends[s.Outcome]
	if end == "" {
		end = "has not ended well"
	}
	text := fmt.Sprintf("step %q of the topic %q %s", s.ID, s.Topic, end)
	if s.Text != "" {
		text += ": " + s.Text
	}
	return text
}

// Unfinished says which steps have not ended by the deadline.
func (p *Progress) Unfinished() string {
	if p.Left <= 0 {
		return "the group was not closed by its deadline"
	}
	var names []string
	for _, m := range p.Missing {
		names = append(names, fmt.Sprintf("%q of the topic %q", m.ID, m.Topic))
	}
	if len(names) > 0 && p.Left > len(names) {
		names = append(names, "and others")
	}
	steps := "steps have"
	if p.Left == 1 {
		steps = "step has"
	}
	text := fmt.Sprintf("%d %s not ended by the deadline", p.Left, steps)
	if len(names) > 0 {
		text += ": " + strings.Join(names, ", ")
	}
	return text
}
