package web

import (
	"context"
	"regexp"
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
	Was    string    `json:"was,omitempty"`
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
	all, err := h.viewsAll(v)
	if err != nil {
		return nil, err
	}
	p := &auditPage{Schema: "delayq.web.audit/1", Acts: []actRow{}}
	for _, a := range list {
		if a.Topic == "" && !all || a.Topic != "" && !h.views(v, a.Topic) {
			continue
		}
		if !h.opens(v, a.Topic) {
			a.Filter, a.Was = hideValues(a.Filter), hideValues(a.Was)
		}
		p.Acts = append(p.Acts, actRow{utc(a.At), a.Actor, a.Action, a.Topic, a.ID, a.Filter, a.Was, a.Count})
	}
	return p, nil
}

// searchedHeader matches a header in the arguments of an act, such as header "tenant": "42". An
// entry of the audit can be cut anywhere.
var searchedHeader = regexp.MustCompile(`header "(?:[^"\\]|\\.)*\\?"?(?:: ?(?:"(?:[^"\\]|\\.)*\\?"?)?)?`)

// digest matches the beginning of the hash of a payload, by which a payload can be guessed.
var digest = regexp.MustCompile(`, SHA-256 [0-9a-f]*`)

// hideValues returns the arguments of an act, or what was before it, without headers and without
// what could tell the payload.
func hideValues(text string) string {
	return digest.ReplaceAllString(searchedHeader.ReplaceAllString(text, "header •••"), "")
}
