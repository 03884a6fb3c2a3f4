package web

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq"
)

// A jobKey is the key of a job in JSON.
type jobKey struct {
	Key       string `json:"key,omitempty"`
	KeyBase64 string `json:"key_base64,omitempty"` // if the key is not UTF-8
	exact     string
}

func jobKeyOf(key string) jobKey {
	k := jobKey{Key: key, exact: key}
	if !utf8.ValidString(key) {
		k.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(key))
	}
	return k
}

// ExactKey returns the key itself, or "" if the job has none.
func (k jobKey) ExactKey() string { return k.exact }

// A waitingKey is a key of a topic and its ready jobs.
type waitingKey struct {
	jobKey
	Waiting     int64     `json:"waiting"`
	Weight      int       `json:"weight"`
	First       string    `json:"first"` // the ID of the job that is the next one of the key to start; empty: none is ready
	FirstBase64 string    `json:"first_base64,omitempty"`
	Paused      bool      `json:"paused,omitempty"`
	HeldUntil   time.Time `json:"held_until,omitzero"` // the end of the hold of the key
	Running     int64     `json:"running,omitempty"`   // its running jobs, if they are limited
	LimitRun    int       `json:"limit_running,omitempty"`
	LimitRate   string    `json:"limit_rate,omitempty"`
	Limited     time.Time `json:"limited_until,omitzero"` // when it gets a turn again, because a limit is reached
	Blocker     string    `json:"waits_for,omitempty"`    // the ID of a job that has failed or is dead, and that its jobs wait for
	Blocked     time.Time `json:"waits_until,omitzero"`   // when that one is due; zero: it is dead
	OwnRun      bool      `json:"own_limit_running,omitempty"`
	OwnRate     bool      `json:"own_limit_rate,omitempty"` // the limit is that of the key, and not that of each key of the topic
	first       string
}

// FullOf reports whether the key waits because as many of its jobs run as may.
func (k waitingKey) FullOf() bool { return k.LimitRun > 0 && k.Running >= int64(k.LimitRun) }

// rateText returns a rate as text, empty if there is none.
func rateText(r delayq.Rate) string {
	if r == (delayq.Rate{}) {
		return ""
	}
	return r.String()
}

// waitingKeyOf returns a key for JSON and templates, with the limits of each key of its topic.
func waitingKeyOf(k *delayq.KeyInfo, each delayq.Limits) waitingKey {
	one := waitingKey{
		jobKey: jobKeyOf(k.Key), Waiting: k.Waiting, Weight: k.Weight, First: k.First, Paused: k.Paused, HeldUntil: utc(k.HeldUntil),
		Running: k.Running, Limited: utc(k.LimitedUntil), first: k.First, Blocker: k.Blocker, Blocked: utc(k.BlockedUntil),
	}
	one.limit(k.Limits, each)
	if !utf8.ValidString(k.First) {
		one.FirstBase64 = base64.StdEncoding.EncodeToString([]byte(k.First))
	}
	return one
}

// limit notes the limits that are in force for a key, its own before those of each key. In an order
// one job runs at a time, whatever the key has.
func (k *waitingKey) limit(own delayq.KeyLimits, each delayq.Limits) {
	k.LimitRun, k.LimitRate = each.RunningPerKey, rateText(each.RatePerKey)
	if own.Running > 0 && !each.Ordered {
		k.LimitRun, k.OwnRun = own.Running, true
	}
	if text := rateText(own.Rate); text != "" {
		k.LimitRate, k.OwnRate = text, true
	}
}

// ExactFirst returns the ID of the first job itself.
func (k waitingKey) ExactFirst() string { return k.first }

type keysPage struct {
	Schema string         `json:"schema"`
	At     time.Time      `json:"at"`
	Topic  string         `json:"topic"`
	Ready  int64          `json:"ready"`    // jobs of the topic
	Keyed  int64          `json:"with_key"` // those of them that have a key
	Keys   []waitingKey   `json:"keys"`
	Limits bool           `json:"-"` // one of them has a limit
	Next   string         `json:"next,omitempty"`
	Row    *topicRow      `json:"-"`
	Tabs   []delayq.State `json:"-"`
	More   string         `json:"-"` // the link to the next page
	First  string         `json:"-"` // and to the first one
}

// Plain returns the number of ready jobs without a key, which take turns as one more key.
func (p *keysPage) Plain() int64 { return max(p.Ready-p.Keyed, 0) }

// keys shows the keys of a topic that have ready jobs. A cursor is the last key of the page before,
// in base64, because a key has any bytes.
func (h *Handler) keys(v *view) (any, error) {
	refuse := func(text string) error { return &refusal{status: http.StatusBadRequest, text: text} }
	after, err := base64.RawURLEncoding.DecodeString(v.query.Get("cursor"))
	if err != nil {
		return nil, refuse(v.T("error.cursor"))
	}
	limit := previewRows
	if text := v.query.Get("rows"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil {
			return nil, refuse("rows: " + strconv.Quote(text) + " is not a number")
		}
	}
	row, err := h.known(v)
	if err != nil {
		return nil, err
	}
	list, err := read(h, v.Request.Context(), "keys\x00"+v.Topic+"\x00"+strconv.Itoa(limit)+"\x00"+string(after),
		func(ctx context.Context) ([]delayq.KeyInfo, error) {
			return h.insp.Keys(ctx, v.Topic, string(after), limit)
		})
	if err != nil {
		return nil, err
	}
	p := &keysPage{
		Schema: "delayq.web.keys/1", At: utc(row.at), Topic: v.Topic, Ready: row.Ready, Keyed: row.Keyed, Keys: []waitingKey{}, Row: row, Tabs: states,
	}
	for i := range list {
		one := waitingKeyOf(&list[i], row.perKey)
		p.Limits = p.Limits || one.LimitRun > 0 || one.LimitRate != ""
		p.Keys = append(p.Keys, one)
	}
	rows := v.query.Get("rows")
	p.First = v.Link("keys", "topic", v.Topic, "rows", rows)
	if len(list) == limit {
		p.Next = base64.RawURLEncoding.EncodeToString([]byte(list[limit-1].Key))
		p.More = v.Link("keys", "topic", v.Topic, "rows", rows, "cursor", p.Next)
	}
	return p, nil
}
