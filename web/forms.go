package web

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq"
)

type formPage struct {
	Schema string `json:"schema"`
	Topic  string `json:"topic,omitempty"`
	Name   string `json:"name,omitempty"` // of a schedule
	Do     string `json:"do,omitempty"`
}

// form shows an empty form.
func (h *Handler) form(v *view) (any, error) {
	p := &formPage{Schema: "delayq.web.form/1", Topic: v.Topic, Name: v.query.Get("name"), Do: v.query.Get("do")}
	if v.Page == "edit-schedule" && !slices.Contains(scheduleActs, p.Do) {
		return nil, errNoPage
	}
	return p, nil
}

// scheduleActs lists what editSchedule does.
var scheduleActs = []string{"trigger", "pause", "resume", "remove"}

// typed reports whether the topic was typed: as it is, or as the page shows it.
func (v *view) typed() bool {
	text := v.form("typed")
	return text == v.Topic || text == visible(v.Topic)
}

func (h *Handler) pause(v *view) (any, error) {
	p := delayq.Pause{By: v.Actor(), Reason: v.form("because")}
	if text := v.form("for"); text != "" {
		d, err := span(text)
		if err != nil {
			return nil, &refusal{http.StatusBadRequest, "for: " + err.Error()}
		}
		p.For = d
	}
	defer h.shared.forget()
	if err := h.o.client.Pause(v.acting(), v.Topic, p); err != nil {
		return nil, err
	}
	return redirect(v.Link("topic", "topic", v.Topic, "did", "pause")), nil
}

// resume ends all pauses of a topic, whoever began them.
func (h *Handler) resume(v *view) (any, error) {
	defer h.shared.forget()
	if err := h.o.client.ResumeAll(v.acting(), v.Topic); err != nil {
		return nil, err
	}
	return redirect(v.Link("topic", "topic", v.Topic, "did", "resume")), nil
}

// jobOptions reads the fields that jobs and the jobs of schedules have in common.
func (v *view) jobOptions() (list []delayq.JobOption, err error) {
	if text := v.form("retries"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, &refusal{http.StatusBadRequest, "retries: " + strconv.Quote(text)}
		}
		list = append(list, delayq.Retry(n))
	}
	for line := range strings.Lines(v.form("headers")) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, &refusal{http.StatusBadRequest, "headers: " + strconv.Quote(line) + ": name=value"}
		}
		list = append(list, delayq.Header(name, value))
	}
	return list, nil
}

// target returns the topic of a form, which may be in the form or in the link.
func (h *Handler) target(v *view, right Right) (string, error) {
	topic := v.form("topic")
	if topic == "" {
		topic = v.Topic
	}
	if topic == "" {
		return "", &refusal{http.StatusBadRequest, v.T("error.topic")}
	}
	return topic, h.may(v, right, topic)
}

func (h *Handler) enqueue(v *view) (any, error) {
	topic, err := h.target(v, RightEnqueue)
	if err != nil {
		return nil, err
	}
	payload, err := v.body()
	if err != nil {
		return nil, err
	}
	options, err := v.jobOptions()
	if err != nil {
		return nil, err
	}
	due, err := v.due()
	if err != nil {
		return nil, err
	}
	if due != nil {
		options = append(options, *due)
	}
	defer h.shared.forget()
	job, err := h.o.client.Enqueue(v.acting(), topic, v.form("id"), payload, options...)
	if errors.Is(err, delayq.ErrDuplicate) {
		return nil, &refusal{http.StatusConflict, v.T("error.duplicate")}
	}
	if err != nil {
		return nil, err
	}
	return redirect(v.Link("job", "topic", topic, "id", job.ID, "did", "enqueue")), nil
}

func (h *Handler) newSchedule(v *view) (any, error) {
	topic, err := h.target(v, RightSchedule)
	if err != nil {
		return nil, err
	}
	var spec delayq.Spec
	if text := v.form("every"); text != "" {
		d, err := span(text)
		if err != nil {
			return nil, &refusal{http.StatusBadRequest, "every: " + err.Error()}
		}
		spec = delayq.Every(d)
	} else {
		spec = delayq.Cron(v.form("cron"), v.form("zone"))
	}
	payload, err := v.body()
	if err != nil {
		return nil, err
	}
	options, err := v.jobOptions()
	if err != nil {
		return nil, err
	}
	list := []delayq.ScheduleOption{delayq.IfAbsent()} // a page never replaces what a program defines
	for _, o := range options {
		list = append(list, o)
	}
	name := v.form("name")
	if _, err := h.insp.Schedule(v.Request.Context(), topic, name); err == nil {
		return nil, &refusal{http.StatusConflict, v.T("error.schedule")}
	}
	defer h.shared.forget()
	if err := h.o.client.Schedule(v.acting(), topic, name, spec, payload, list...); err != nil {
		return nil, err
	}
	return redirect(v.Link("schedule", "topic", topic, "name", name, "did", "schedule")), nil
}

// editSchedule pauses, resumes, triggers or removes a schedule.
func (h *Handler) editSchedule(v *view) (any, error) {
	name, do := v.query.Get("name"), v.query.Get("do")
	ctx, c := v.acting(), h.o.client
	defer h.shared.forget()
	var err error
	to := v.Link("schedule", "topic", v.Topic, "name", name, "did", "schedule-"+do)
	switch do {
	case "pause":
		err = c.PauseSchedule(ctx, v.Topic, name)
	case "resume":
		err = c.ResumeSchedule(ctx, v.Topic, name)
	case "trigger":
		_, err = c.Trigger(ctx, v.Topic, name)
	case "remove":
		if !v.typed() {
			return nil, &refusal{http.StatusBadRequest, v.T("error.typed", visible(v.Topic))}
		}
		err = c.Unschedule(ctx, v.Topic, name)
		to = v.Link("schedules", "topic", v.Topic, "did", "schedule-"+do)
	default:
		return nil, errNoPage
	}
	if err != nil {
		return nil, err
	}
	return redirect(to), nil
}
