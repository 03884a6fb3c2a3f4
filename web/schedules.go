package web

import (
	"context"
	"time"

	"github.com/delayq/delayq"
)

// taskHeader is the header of the jobs of a task that says what the command worker does, such as
// "sql clean-zombies".
const taskHeader = "task"

type scheduleRow struct {
	Topic     string               `json:"topic"`
	Name      string               `json:"name"`
	Task      string               `json:"task,omitempty"` // what a worker does: see taskHeader
	Spec      string               `json:"spec"`
	Zone      string               `json:"zone,omitempty"`
	State     delayq.ScheduleState `json:"state"`
	Next      time.Time            `json:"next_slot,omitzero"`
	Waiting   time.Time            `json:"waiting_slot,omitzero"`
	LastSlot  time.Time            `json:"last_slot,omitzero"`
	LastJob   string               `json:"last_job,omitempty"`
	Outcome   string               `json:"last_outcome,omitempty"`
	LastError string               `json:"last_error,omitempty"`
	Fired     int64                `json:"fired"`
	Skipped   int64                `json:"skipped"`
	Missed    int64                `json:"missed"`
	Attempts  int64                `json:"attempts"`
	Failures  int64                `json:"failures"`
	Overlap   string               `json:"on_overlap"`
	OnMissed  string               `json:"on_missed"`
	Created   time.Time            `json:"created_at,omitzero"`
	Changed   time.Time            `json:"changed_at,omitzero"`
	EditedBy  string               `json:"edited_by,omitempty"`
	Edited    []string             `json:"edited,omitempty"`
	Size      int                  `json:"payload_size"`
	Bad       string               `json:"undecodable,omitempty"`
	RuleError string               `json:"rule_error,omitempty"`
}

func scheduleOf(s *delayq.ScheduleInfo) scheduleRow {
	r := scheduleRow{
		Topic: s.Topic, Name: s.Name, Task: s.Headers[taskHeader], Spec: s.Spec.String(), Zone: s.Zone, State: s.State, Next: utc(s.NextSlot), Waiting: utc(s.WaitingSlot),
		LastSlot: utc(s.LastSlot), LastJob: s.LastJobID, Fired: s.Fired, Skipped: s.Skipped, Missed: s.Missed, Attempts: s.Attempts,
		Failures: s.Failures, Overlap: s.OnOverlap.String(), OnMissed: s.OnMissed.String(), Created: utc(s.CreatedAt), Changed: utc(s.ChangedAt),
		EditedBy: s.EditedBy, Edited: s.Edited, Size: s.PayloadSize,
	}
	if s.LastRun != nil {
		r.Outcome, r.LastError = string(s.LastRun.Outcome), s.LastRun.Error
	}
	if s.Undecodable != nil {
		r.Bad = s.Undecodable.Error()
	}
	if s.RuleError != nil {
		r.RuleError = s.RuleError.Error()
	}
	return r
}

type schedulesPage struct {
	Schema    string        `json:"schema"`
	Topic     string        `json:"topic,omitempty"`
	Schedules []scheduleRow `json:"schedules"`
	Skipped   int           `json:"topics_left_out,omitempty"`
}

func (h *Handler) schedules(v *view) (any, error) {
	p := &schedulesPage{Schema: "delayq.web.schedules/1", Topic: v.Topic, Schedules: []scheduleRow{}}
	topics := []string{v.Topic}
	list, err := h.visibleTopics(v)
	if err != nil {
		return nil, err
	}
	v.Now = list.At
	if v.Topic == "" {
		topics = nil
		for _, t := range list.rows {
			if t.Schedules > 0 {
				topics = append(topics, t.Topic)
			}
		}
		if len(topics) > previewRows {
			topics, p.Skipped = topics[:previewRows], len(topics)-previewRows
		}
	}
	for _, topic := range topics {
		some, err := read(h, v.Request.Context(), "schedules\x00"+topic, func(ctx context.Context) ([]*delayq.ScheduleInfo, error) {
			return h.insp.Schedules(ctx, topic)
		})
		if err != nil {
			return nil, err
		}
		for _, s := range some {
			p.Schedules = append(p.Schedules, scheduleOf(s))
		}
	}
	return p, nil
}

type runRow struct {
	Slot      time.Time `json:"slot"`
	Triggered bool      `json:"triggered,omitempty"`
	JobID     string    `json:"job_id"`
	Attempt   int       `json:"attempt"`
	Started   time.Time `json:"started_at,omitzero"`
	Finished  time.Time `json:"finished_at,omitzero"`
	Server    string    `json:"server,omitempty"`
	Outcome   string    `json:"outcome"`
	Error     string    `json:"error,omitempty"`

	Output *shownOutput `json:"output,omitempty"`
}

type schedulePage struct {
	Schema  string        `json:"schema"`
	Row     scheduleRow   `json:"schedule"`
	Payload *shownPayload `json:"payload,omitempty"`
	Runs    []runRow      `json:"runs"`
}

func (h *Handler) schedule(v *view) (any, error) {
	name := v.query.Get("name")
	type both struct {
		info *delayq.ScheduleInfo
		runs []delayq.RunInfo
	}
	b, err := read(h, v.Request.Context(), "schedule\x00"+v.Topic+"\x00"+name, func(ctx context.Context) (b both, err error) {
		if b.info, err = h.insp.Schedule(ctx, v.Topic, name); err == nil {
			b.runs, err = h.insp.Runs(ctx, v.Topic, name, runsShown)
		}
		return b, err
	})
	if err != nil {
		return nil, err
	}
	p := &schedulePage{Schema: "delayq.web.schedule/1", Row: scheduleOf(b.info), Runs: []runRow{}}
	rule := h.o.rule(v.Topic)
	opened := h.may(v, RightPayload, v.Topic) == nil
	if opened && b.info.Undecodable == nil {
		shown := rule.show(v.Topic, b.info.Payload)
		p.Payload = &shown
	}
	for _, r := range b.runs {
		row := runRow{utc(r.Slot), r.Triggered, r.JobID, r.Attempt, utc(r.StartedAt), utc(r.FinishedAt), r.Server, string(r.Outcome), r.Error, nil}
		if opened && !rule.redacted {
			row.Output = showOutput(r.Output, r.OutputSize)
		}
		p.Runs = append(p.Runs, row)
	}
	return p, nil
}
