package web

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

type failureRow struct {
	Topic  string       `json:"topic"`
	State  delayq.State `json:"state"`
	Key    string       `json:"key"`
	Sample string       `json:"sample"`
	Count  int64        `json:"count"`
	First  time.Time    `json:"first"`
	Last   time.Time    `json:"last"`
	IDs    []string     `json:"ids"`
}

type failuresPage struct {
	Schema   string         `json:"schema"`
	Topic    string         `json:"topic,omitempty"`
	State    delayq.State   `json:"state"`
	Examined int            `json:"examined"`
	Total    int64          `json:"total"`
	Groups   []failureRow   `json:"groups"`
	Skipped  int            `json:"topics_left_out,omitempty"`
	Tabs     []delayq.State `json:"-"`
	Acts     []string       `json:"-"`
}

func (h *Handler) failures(v *view) (any, error) {
	p := &failuresPage{Schema: "delayq.web.failures/1", Topic: v.Topic, State: delayq.StateDead, Groups: []failureRow{}, Tabs: states[:4]}
	if s := v.query.Get("state"); s != "" {
		p.State = delayq.State(s)
	}
	topics := []string{v.Topic}
	if v.Topic == "" {
		list, err := h.visibleTopics(v)
		if err != nil {
			return nil, err
		}
		topics = nil
		for _, t := range list.rows {
			if t.CountOf(p.State) > 0 {
				topics = append(topics, t.Topic)
			}
		}
		if len(topics) > failureTopic {
			topics, p.Skipped = topics[:failureTopic], len(topics)-failureTopic
		}
	}
	for _, topic := range topics {
		f, err := read(h, v.Request.Context(), "failures\x00"+topic+"\x00"+string(p.State), func(ctx context.Context) (*delayq.Failures, error) {
			return h.insp.Failures(ctx, topic, p.State, 0)
		})
		if err != nil {
			return nil, err
		}
		p.Examined, p.Total = p.Examined+f.Examined, p.Total+f.Total
		for _, g := range f.Groups {
			p.Groups = append(p.Groups, failureRow{topic, p.State, g.Key, g.Sample, g.Count, utc(g.First), utc(g.Last), g.IDs})
		}
	}
	slices.SortStableFunc(p.Groups, func(a, b failureRow) int { return cmp.Compare(b.Count, a.Count) })
	p.Groups = p.Groups[:min(len(p.Groups), 500)]
	for _, act := range actNames {
		if acts[act].action != nil && acts[act].offers(p.State, false) {
			p.Acts = append(p.Acts, act)
		}
	}
	v.Now = time.Now()
	return p, nil
}
