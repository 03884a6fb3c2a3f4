package web

import (
	"context"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

type actRow struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Action string    `json:"action"`
	Topic  string    `json:"topic,omitempty"`
	ID     string    `json:"id,omitempty"`
	Filter string    `json:"filter,omitempty"`
	Count  int64     `json:"count"`
}

// Schedule reports whether the ID is the name of a schedule.
func (a actRow) Schedule() bool {
	return strings.HasSuffix(a.Action, "schedule") && a.Action != "reschedule" || a.Action == "trigger"
}

type auditPage struct {
	Schema string   `json:"schema"`
	Acts   []actRow `json:"acts"`
}

func (h *Handler) audit(v *view) (any, error) {
	list, err := read(h, v.Request.Context(), "audit", func(ctx context.Context) ([]delayq.AuditEntry, error) {
		return h.insp.Audit(ctx, auditShown)
	})
	if err != nil {
		return nil, err
	}
	p := &auditPage{Schema: "delayq.web.audit/1", Acts: []actRow{}}
	for _, a := range list {
		if h.o.visible == nil || a.Topic != "" && h.sees(v, a.Topic) {
			p.Acts = append(p.Acts, actRow{utc(a.At), a.Actor, a.Action, a.Topic, a.ID, a.Filter, a.Count})
		}
	}
	return p, nil
}
