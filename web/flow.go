package web

import (
	"context"
	"encoding/base64"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq"
)

// flowRows is how many steps of a flow a page lists.
const flowRows = 200

// A flowStepRow is a step of a flow in JSON.
type flowStepRow struct {
	Number   int              `json:"number"`
	Topic    string           `json:"topic,omitempty"`
	ID       string           `json:"id,omitempty"`
	IDBase64 string           `json:"id_base64,omitempty"` // if the ID is not UTF-8
	Hidden   bool             `json:"hidden,omitempty"`    // its topic is not for this viewer
	After    []int            `json:"after,omitempty"`
	Ignores  bool             `json:"ignores_failures,omitempty"`
	State    delayq.StepState `json:"state"`
	Left     int              `json:"left,omitempty"` // of a step that waits
	Started  time.Time        `json:"started_at,omitzero"`
	Ended    time.Time        `json:"ended_at,omitzero"`
	Attempt  int              `json:"attempt,omitempty"`
	Output   int              `json:"output_bytes,omitempty"`
	Error    string           `json:"error,omitempty"`
}

// Took returns how long the step has taken, or 0 if that is not known.
func (r flowStepRow) Took() time.Duration {
	if r.Started.IsZero() || r.Ended.IsZero() {
		return 0
	}
	return max(r.Ended.Sub(r.Started), 0)
}

type flowPage struct {
	Schema   string           `json:"schema"`
	Topic    string           `json:"topic"`
	ID       string           `json:"id"`
	IDBase64 string           `json:"id_base64,omitempty"`
	State    delayq.FlowState `json:"state"`
	Group    bool             `json:"group,omitempty"` // more steps can be added
	Ignores  bool             `json:"ignores_failures,omitempty"`
	Total    int              `json:"total"`
	Left     int              `json:"left"`
	Failed   int              `json:"failed"`
	Started  time.Time        `json:"started_at"`
	Deadline time.Time        `json:"deadline,omitzero"` // of a flow that is open
	Cause    *int             `json:"cause,omitempty"`   // number of the step because of which it has failed
	Last     delayq.State     `json:"last_step,omitempty"`
	Steps    []flowStepRow    `json:"steps"`
	Next     int              `json:"next,omitempty"` // number of the first step that is not in Steps
	Drawing  template.HTML    `json:"-"`
}

// stepStates are the states of steps in the order in which pages count them.
var stepStates = []delayq.StepState{
	delayq.StepDead, delayq.StepExpired, delayq.StepRefused, delayq.StepLost, delayq.StepReplaced, delayq.StepCancelled,
	delayq.StepStarted, delayq.StepWaits, delayq.StepSkipped, delayq.StepDone,
}

// flow shows a flow, by the topic and the ID of its last step.
func (h *Handler) flow(v *view) (any, error) {
	id, from := v.query.Get("id"), 0
	if text := v.query.Get("from"); text != "" {
		var err error
		if from, err = strconv.Atoi(text); err != nil || from < 0 {
			return nil, &refusal{status: http.StatusBadRequest, text: v.T("flow.from"), field: "from"}
		}
	}
	topic := v.Topic
	info, err := read(h, v.Request.Context(), "flow\x00"+topic+"\x00"+id, func(ctx context.Context) (*delayq.FlowInfo, error) {
		return h.insp.Flow(ctx, topic, id)
	})
	if err != nil {
		return nil, err
	}
	steps, first := info.Steps, 0
	if from >= len(steps) && info.Next > 0 { // a large group
		more, err := read(h, v.Request.Context(), "flow\x00"+topic+"\x00"+id+"\x00"+strconv.Itoa(from), func(ctx context.Context) (*delayq.FlowInfo, error) {
			return h.insp.FlowFrom(ctx, topic, id, from)
		})
		if err != nil {
			return nil, err
		}
		steps, first = more.Steps, from
	}
	v.Now = info.At
	p := flowPageOf(info)
	rows := steps[min(max(from-first, 0), len(steps)):]
	rows = rows[:min(len(rows), flowRows)]
	for i := range rows {
		p.Steps = append(p.Steps, h.flowStep(v, &rows[i]))
	}
	if n := len(rows); n > 0 && rows[n-1].Number+1 < info.Total {
		p.Next = rows[n-1].Number + 1
	}
	if len(info.Steps) == info.Total && !v.json {
		p.Drawing = h.drawing(v, info)
	}
	return p, nil
}

func flowPageOf(info *delayq.FlowInfo) *flowPage {
	p := &flowPage{
		Schema: "delayq.web.flow/1", Topic: info.Topic, ID: info.ID, State: info.State, Group: info.Group, Ignores: info.IgnoreFailures,
		Total: info.Total, Left: info.Left, Failed: info.Failed, Started: utc(info.StartedAt), Steps: []flowStepRow{},
	}
	if !utf8.ValidString(info.ID) {
		p.IDBase64 = base64.StdEncoding.EncodeToString([]byte(info.ID))
	}
	if info.Cause >= 0 {
		p.Cause = &info.Cause
	}
	if info.Last != nil {
		p.Last = info.Last.State
		if info.State == delayq.FlowOpen {
			p.Deadline = utc(info.Last.Due)
		}
	}
	return p
}

// flowStep returns a step as the viewer may see it.
func (h *Handler) flowStep(v *view, s *delayq.FlowStepInfo) flowStepRow {
	r := flowStepRow{
		Number: s.Number, After: s.After, Ignores: s.IgnoreFailures, State: s.State, Left: s.Left,
		Started: utc(s.StartedAt), Ended: utc(s.EndedAt), Attempt: s.Attempt, Output: s.OutputSize,
	}
	if r.Hidden = !h.views(v, s.Topic); r.Hidden {
		return r
	}
	r.Topic, r.ID, r.Error = s.Topic, s.ID, s.Error
	if !utf8.ValidString(s.ID) {
		r.IDBase64 = base64.StdEncoding.EncodeToString([]byte(s.ID))
	}
	return r
}

// drawing returns the drawing of a flow, or "" if it would have too many boxes.
func (h *Handler) drawing(v *view, info *delayq.FlowInfo) template.HTML {
	topics, after := make([]string, len(info.Steps)), make([][]int, len(info.Steps))
	for i, s := range info.Steps {
		topics[i], after[i] = s.Topic, s.After
	}
	boxes := fold(topics, after)
	if len(boxes) > drawnBoxes {
		return ""
	}
	failed := info.State == delayq.FlowFailed || info.State == delayq.FlowOver
	for at := range boxes[:len(boxes)-1] {
		h.fillBox(v, &boxes[at], info.Steps)
	}
	last := &boxes[len(boxes)-1]
	last.title, last.state, last.note = visible(info.ID), "last "+string(info.State), v.T("flowstate."+string(info.State))
	last.href = v.Link("job", "topic", info.Topic, "id", info.ID)
	hold(boxes, func(b *box) bool {
		if b == last {
			return info.State != delayq.FlowComplete
		}
		return slices.ContainsFunc(b.steps, func(i int) bool {
			s := &info.Steps[i]
			return failed && (s.State == delayq.StepSkipped || s.Number == info.Cause) || !failed && !s.State.Ended()
		})
	})
	return draw(boxes, v.T("flow.drawing", number(info.Total), number(info.Left)))
}

// fillBox writes into a box what its steps are.
func (h *Handler) fillBox(v *view, b *box, steps []delayq.FlowStepInfo) {
	counts := make(map[delayq.StepState]int)
	for _, i := range b.steps {
		counts[steps[i].State]++
	}
	for _, state := range stepStates { // the first one counts
		if n := counts[state]; n > 0 {
			if b.state == "" {
				b.state = string(state)
			}
			if b.note != "" {
				b.note += ", "
			}
			if len(b.steps) > 1 {
				b.note += number(n) + " "
			}
			b.note += v.T("stepstate." + string(state))
		}
	}
	one := &steps[b.steps[0]]
	switch {
	case !h.views(v, one.Topic):
		b.title = v.T("flow.hidden")
	case len(b.steps) > 1:
		b.title = number(len(b.steps)) + " × " + visible(one.Topic)
	default:
		b.title, b.href = visible(one.Topic)+" "+visible(one.ID), v.Link("job", "topic", one.Topic, "id", one.ID)
	}
}

// AfterText returns the numbers of the steps that a step waits for, as a text.
func (r flowStepRow) AfterText() string {
	text := ""
	for i, n := range r.After[:min(len(r.After), 10)] {
		if i > 0 {
			text += ", "
		}
		text += strconv.Itoa(n)
	}
	if more := len(r.After) - 10; more > 0 {
		text += ", … +" + strconv.Itoa(more)
	}
	return text
}
