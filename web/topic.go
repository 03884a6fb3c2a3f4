package web

import (
	"context"
	"net/http"
	"time"

	"github.com/delayq/delayq"
)

type topicPage struct {
	Schema string    `json:"schema"`
	At     time.Time `json:"at"`
	topicRow
	Forecasts []forecast `json:"forecasts"`
	Lateness  *lateness  `json:"lateness,omitempty"` // of done jobs; none without them
	Histories []*history `json:"histories,omitempty"`
	Unread    string     `json:"histories_error,omitempty"` // why there are none
	Problem   string     `json:"problem,omitempty"`

	Undelivered []undeliveredRow `json:"undelivered,omitempty"`
	Unlisted    string           `json:"undelivered_error,omitempty"` // why there are none
}

// An undeliveredRow is a job that a run of the topic has handed over and that its topic has
// refused.
type undeliveredRow struct {
	At     time.Time `json:"at,omitzero"`
	From   string    `json:"from,omitempty"`
	Topic  string    `json:"topic,omitempty"`
	ID     string    `json:"id,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Linked bool      `json:"-"` // to its topic
}

// undelivered lists the refused jobs of the topic.
func (h *Handler) undelivered(v *view) ([]undeliveredRow, error) {
	list, err := read(h, v.Request.Context(), "undelivered\x00"+v.Topic, func(ctx context.Context) ([]delayq.UndeliveredJob, error) {
		return h.insp.Undelivered(ctx, v.Topic)
	})
	if err != nil {
		return nil, err
	}
	rows := make([]undeliveredRow, len(list))
	for i, u := range list {
		rows[i] = undeliveredRow{utc(u.At), u.From, u.Topic, u.ID, u.Reason, u.Topic != "" && h.views(v, u.Topic)}
	}
	return rows, nil
}

// A forecast is how many jobs fall due in each of some steps.
type forecast struct {
	Name  string    `json:"name"` // hour, day or month
	From  time.Time `json:"from"`
	Step  float64   `json:"step_seconds"`
	Due   []int64   `json:"due"`
	Total int64     `json:"total"`
}

// At returns when a step begins.
func (f forecast) At(i int) time.Time {
	return f.From.Add(time.Duration(f.Step * float64(i) * float64(time.Second)))
}

// row returns the row of the topic of a request. A topic that is not in the list is read: it can be
// new, or paused or limited before its first job. It is not there if it has nothing at all.
func (h *Handler) row(v *view) (*topicRow, error) {
	list, err := h.topicList(v.Request.Context())
	if err != nil {
		return nil, err
	}
	v.Now = list.At
	for _, t := range list.rows {
		if t.Topic == v.Topic {
			return &t, nil
		}
	}
	stats, err := read(h, v.Request.Context(), "new\x00"+v.Topic, func(ctx context.Context) ([]delayq.TopicStats, error) {
		return h.insp.Stats(ctx, v.Topic)
	})
	if err != nil {
		return nil, err
	}
	t := h.rates.row(&stats[0])
	t.New = true
	v.Now = t.at
	return &t, nil
}

// known is row for acts and pages that make no sense for a topic that has nothing at all.
func (h *Handler) known(v *view) (*topicRow, error) {
	t, err := h.row(v)
	if err == nil && t.New && t.isBlank() {
		return nil, &refusal{status: http.StatusNotFound, text: v.T("error.notopic", visible(v.Topic))}
	}
	return t, err
}

// Known reports whether there is anything about the topic.
func (t *topicRow) Known() bool { return !t.New || !t.isBlank() }

// Held reports whether the topic is held.
func (t *topicRow) Held() bool { return !t.HeldUntil.IsZero() }

// Ordered reports whether the jobs of each key run in order, and Halts whether a dead one halts it.
func (t *topicRow) Ordered() bool { return t.perKey.Ordered }
func (t *topicRow) Halts() bool   { return t.perKey.OnDead == delayq.HaltKey }

// isBlank reports whether the topic has nothing: no jobs, pauses, limits, schedules, partitions or
// past.
func (t *topicRow) isBlank() bool {
	past := int64(0)
	for _, n := range t.Counters {
		past += n
	}
	return t.Scheduled+t.Ready+t.Running+t.Dead+t.Done+t.Schedules+past == 0 && t.Servers == 0 && len(t.Pauses) == 0 &&
		t.HeldUntil.IsZero() && t.perKey == (delayq.Limits{}) && t.Parts == nil
}

func (h *Handler) topic(v *view) (any, error) {
	t, err := h.row(v)
	if err != nil {
		return nil, err
	}
	all, err := read(h, v.Request.Context(), "forecast\x00"+v.Topic, func(ctx context.Context) (list []forecast, err error) {
		for _, f := range []struct {
			name string
			step time.Duration
			n    int
		}{{"hour", time.Minute, 60}, {"day", time.Hour, 24}, {"month", 24 * time.Hour, 30}} {
			due, err := h.insp.Forecast(ctx, v.Topic, t.at, f.step, f.n)
			if err != nil {
				return nil, err
			}
			one := forecast{Name: f.name, From: utc(t.at), Step: f.step.Seconds(), Due: due}
			for _, n := range due {
				one.Total += n
			}
			list = append(list, one)
		}
		return list, nil
	})
	if err != nil {
		return nil, err
	}
	p := &topicPage{Schema: "delayq.web.topic/1", At: utc(t.at), topicRow: *t, Forecasts: all, Problem: v.trouble(t.Status, t)}
	if t.Done > 0 {
		if p.Lateness, err = h.lateness(v.Request.Context(), v.Topic); err != nil {
			return nil, err
		}
	}
	if p.Histories, err = h.histories(v.Request.Context(), v.Topic, t.at); err != nil {
		_, p.Unread = v.explain(err) // a user with the rights of an earlier release sees the rest
	}
	if t.Counters[string(delayq.CounterUndelivered)] > 0 {
		if p.Undelivered, err = h.undelivered(v); err != nil {
			_, p.Unlisted = v.explain(err)
		}
	}
	return p, nil
}

// ParcelAge is how long the oldest job that runs have handed over is on its way.
func (t *topicRow) ParcelAge() time.Duration {
	if t.Parcel.IsZero() {
		return 0
	}
	return t.at.Sub(t.Parcel)
}
