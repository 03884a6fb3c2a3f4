package web

import (
	"context"
	"errors"
	"slices"
	"time"
	"unicode/utf8"
)

const (
	maxOutboxes   = 20
	maxOutboxName = 100
	outboxEvery   = 10 * time.Second // how often an outbox is read at most
	outboxTimeout = 2 * time.Second
	outboxOld     = time.Minute // rows that wait for so long are a trouble
)

// OutboxStats says how far the relays of an outbox are behind. A value of the type Stats of the
// module outbox can be converted to it.
type OutboxStats struct {
	Rows   int64         // that wait
	Oldest time.Duration // how long the oldest one has waited; 0: none waits
	Dead   int64         // that Redis has refused
	Later  int64         // that are due beyond the horizon
}

// Outbox shows the state of an outbox: its rows on the page of Redis, and on the overview what is
// wrong with it. That is a row that has waited for a minute, a dead row, or no answer within 2 s.
// The name tells outboxes apart: 1 to 100 bytes of UTF-8. It is shown to all who may view the page,
// and its numbers are about all topics.
//
//	stats := func(ctx context.Context) (web.OutboxStats, error) {
//		s, err := ob.Stats(ctx, db)
//		return web.OutboxStats(s), err
//	}
//	page, err := web.New(inspector, web.Outbox("orders", stats))
//
// All viewers share what was read, and stats is called once in 10 s at most. It must return when
// its context is done. What an error says is not shown. A page can have 20 outboxes.
func Outbox(name string, stats func(context.Context) (OutboxStats, error)) Option {
	return func(o *options) {
		switch {
		case name == "" || len(name) > maxOutboxName || !utf8.ValidString(name):
			o.refuse("Outbox(%q): the name must be UTF-8 of 1 to %d bytes", name, maxOutboxName)
		case stats == nil:
			o.refuse("Outbox(%q): the function is nil", name)
		case slices.ContainsFunc(o.outboxes, func(b outbox) bool { return b.name == name }):
			o.refuse("Outbox(%q): the name is given twice", name)
		case len(o.outboxes) == maxOutboxes:
			o.refuse("Outbox(%q): there are %d already, which is the maximum", name, maxOutboxes)
		default:
			o.outboxes = append(o.outboxes, outbox{name, stats})
		}
	}
}

// An outbox is what the option has.
type outbox struct {
	name  string
	stats func(context.Context) (OutboxStats, error)
}

// An outboxRow is an outbox on a page.
type outboxRow struct {
	Name    string  `json:"name"`
	Rows    int64   `json:"rows"`
	Seconds float64 `json:"oldest_seconds"`
	Dead    int64   `json:"dead"`
	Later   int64   `json:"later"`
	Down    bool    `json:"down,omitempty"` // its database does not answer
}

// Oldest returns how long the oldest row has waited.
func (r *outboxRow) Oldest() time.Duration { return time.Duration(r.Seconds * float64(time.Second)) }

// outboxes reads the outboxes side by side. It fails only if the request is over.
func (h *Handler) outboxes(ctx context.Context) ([]outboxRow, error) {
	list := make([]outboxRow, len(h.o.outboxes))
	done := make(chan int, len(list))
	for i, b := range h.o.outboxes {
		go func() {
			defer func() { done <- i }()
			s, err := readFor(h, ctx, outboxEvery, "outbox\x00"+b.name, func(ctx context.Context) (OutboxStats, error) { return b.read(ctx) })
			list[i] = outboxRow{b.name, s.Rows, s.Oldest.Seconds(), s.Dead, s.Later, err != nil}
		}()
	}
	for range list {
		<-done
	}
	return list, ctx.Err()
}

var errOutbox = errors.New("the function has panicked")

// read calls the function, which is code of the user.
func (b outbox) read(ctx context.Context) (s OutboxStats, err error) {
	call, cancel := context.WithTimeout(ctx, outboxTimeout)
	defer cancel()
	defer func() {
		if recover() != nil {
			err = errOutbox
		}
	}()
	return b.stats(call)
}

// outboxTrouble returns what is wrong with outboxes.
func (v *view) outboxTrouble(rows []outboxRow) (list []trouble) {
	for _, r := range rows {
		switch {
		case r.Down:
			list = append(list, trouble{Code: "outbox", Text: v.T("trouble.outbox_down", r.Name)})
		case r.Oldest() >= outboxOld:
			list = append(list, trouble{Code: "outbox", Text: v.T("trouble.outbox_old", r.Name, number(r.Rows), short(r.Oldest()))})
		}
		if r.Dead > 0 {
			list = append(list, trouble{Code: "outbox", Text: v.T("trouble.outbox_dead", r.Name, number(r.Dead))})
		}
	}
	return list
}
