package web

import (
	"context"
	"net/http"
	"time"
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

// row returns the row of the topic of a request.
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
	return nil, &refusal{http.StatusNotFound, v.T("error.notopic", visible(v.Topic))}
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
	return p, nil
}
