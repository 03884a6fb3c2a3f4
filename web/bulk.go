package web

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/delayq/delayq"
)

const (
	bulkActive = 4  // bulk runs at the same time
	bulkKept   = 50 // bulk runs that pages can show
)

// bulks are the acts on all jobs that match, which run while people look on.
type bulks struct {
	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
	last   int64
	list   []*bulkRun // the newest last
}

// A bulkRun is one of them. Its bulks' mutex guards state.
type bulkRun struct {
	id       int64
	do       string
	topic    string
	filter   *filter
	actor    string
	began    time.Time
	expected int64
	stop     context.CancelFunc
	state    bulkState
}

type bulkState struct {
	sum     delayq.Applied
	ended   time.Time
	stopped bool
	by      string // who stopped it
	err     error
	silent  bool // the audit lacks it
}

func (b *bulks) init() { b.ctx, b.cancel = context.WithCancel(context.Background()) }

func (b *bulks) close() {
	b.cancel()
	b.wait.Wait()
}

// start begins a bulk run and returns its number.
func (b *bulks) start(h *Handler, v *view, p *actInput, expected int64) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	active := 0
	for _, r := range b.list {
		if r.state.ended.IsZero() {
			active++
		}
	}
	if active >= bulkActive || b.ctx.Err() != nil {
		return 0, &refusal{status: http.StatusTooManyRequests, text: v.T("error.bulks", bulkActive)}
	}
	ctx, stop := context.WithCancel(b.ctx)
	b.last++
	r := &bulkRun{
		id: b.last, do: p.name, topic: v.Topic, filter: p.filter, actor: v.Actor(), began: time.Now(), expected: expected, stop: stop,
	}
	b.list = append(b.list, r)
	if len(b.list) > bulkKept {
		// An active one stays: there are fewer of them.
		if i := slices.IndexFunc(b.list, func(r *bulkRun) bool { return !r.state.ended.IsZero() }); i >= 0 {
			b.list = slices.Delete(b.list, i, i+1)
		}
	}
	options := append(slices.Clone(p.options), delayq.OnProgress(func(sum delayq.Applied) {
		b.mu.Lock()
		defer b.mu.Unlock()
		r.state.sum = sum
	}))
	q, action := p.filter.query, p.act.action(p)
	b.wait.Go(func() {
		defer stop()
		sum, err := h.o.client.Apply(delayq.WithActor(ctx, r.actor), q, action, options...)
		b.mu.Lock()
		if sum != nil {
			r.state.sum = *sum
		}
		r.state.err, r.state.silent = unrecorded(err)
		r.state.ended, r.state.stopped = time.Now(), ctx.Err() != nil
		b.mu.Unlock()
		h.shared.forget()
	})
	return r.id, nil
}

// A bulkRow is a bulk run as a page shows it.
type bulkRow struct {
	Run      int64        `json:"run"`
	Do       string       `json:"do"`
	Topic    string       `json:"topic"`
	State    delayq.State `json:"state"`
	Actor    string       `json:"actor"`
	Began    time.Time    `json:"began_at"`
	Ended    time.Time    `json:"ended_at,omitzero"`
	Expected int64        `json:"expected"`
	Matched  int64        `json:"matched"`
	Done     int64        `json:"done"`
	Skipped  int64        `json:"skipped"`
	Failed   int64        `json:"failed"`
	Stopped  bool         `json:"stopped,omitempty"`
	By       string       `json:"stopped_by,omitempty"`
	Error    string       `json:"error,omitempty"`
	Silent   bool         `json:"unrecorded,omitempty"` // the audit lacks it
	More     bool         `json:"more,omitempty"`       // jobs are left
	URL      string       `json:"-"`                    // of the jobs; empty if it would tell what was searched for
	Again    string       `json:"-"`                    // of the confirmation to go on with them
	now      time.Time
}

// Active reports whether it is under way.
func (r bulkRow) Active() bool { return r.Ended.IsZero() }

// Percent returns how much of the expected number has had its turn.
func (r bulkRow) Percent() int64 {
	if r.Expected <= 0 {
		return 100
	}
	return min(r.Matched*100/r.Expected, 100)
}

// PerSecond returns the pace.
func (r bulkRow) PerSecond() float64 {
	end := r.Ended
	if end.IsZero() {
		end = r.now
	}
	return float64(r.Matched) / max(end.Sub(r.Began).Seconds(), 0.001)
}

// Left returns how long the rest takes at that pace, or 0 if that is unknown.
func (r bulkRow) Left() time.Duration {
	if !r.Active() || r.Matched == 0 || r.Matched >= r.Expected {
		return 0
	}
	return time.Duration(float64(r.Expected-r.Matched) / r.PerSecond() * float64(time.Second))
}

// rows returns the bulk runs that the request may know of, the newest first.
func (b *bulks) rows(v *view) (rows []bulkRow) {
	b.mu.Lock()
	list := make([]bulkRun, len(b.list))
	for i, r := range b.list {
		list[i] = *r
	}
	b.mu.Unlock()
	for _, r := range slices.Backward(list) {
		if !v.h.views(v, r.topic) {
			continue
		}
		s := r.state
		row := bulkRow{
			Run: r.id, Do: r.do, Topic: r.topic, State: r.filter.query.State, Actor: r.actor, Began: utc(r.began), Ended: utc(s.ended),
			Expected: r.expected, Matched: s.sum.Matched, Done: s.sum.Done, Skipped: s.sum.Skipped, Failed: s.sum.Failed, Stopped: s.stopped, By: s.by,
			Silent: s.silent, More: s.sum.Next != "" && !s.ended.IsZero(), now: time.Now(),
		}
		if !r.filter.secret() || v.h.opens(v, r.topic) {
			values := r.filter.values()
			row.URL = "jobs?" + values.Encode()
			values.Set("all", "1")
			values.Set("do", r.do)
			row.Again = "confirm?" + values.Encode()
		}
		if s.err != nil && !s.stopped {
			_, row.Error = v.explain(s.err)
		}
		rows = append(rows, row)
	}
	return rows
}

type bulkPage struct {
	Schema string  `json:"schema"`
	Run    bulkRow `json:"run"`
}

func (h *Handler) bulk(v *view) (any, error) {
	id, _ := strconv.ParseInt(v.query.Get("run"), 10, 64)
	for _, r := range h.runs.rows(v) {
		if r.Run == id {
			v.Topic = r.Topic
			return &bulkPage{"delayq.web.bulk/1", r}, nil
		}
	}
	return nil, errNoPage
}

type bulksPage struct {
	Schema string    `json:"schema"`
	Runs   []bulkRow `json:"runs"`
}

func (h *Handler) bulkRuns(v *view) (any, error) {
	return &bulksPage{"delayq.web.bulks/1", append([]bulkRow{}, h.runs.rows(v)...)}, nil
}

// stopBulk ends a bulk run after the step under way. It needs the right of the act.
func (h *Handler) stopBulk(v *view) (any, error) {
	id, _ := strconv.ParseInt(v.query.Get("run"), 10, 64)
	h.runs.mu.Lock()
	i := slices.IndexFunc(h.runs.list, func(r *bulkRun) bool { return r.id == id })
	var r *bulkRun
	if i >= 0 {
		r = h.runs.list[i]
	}
	h.runs.mu.Unlock()
	if r == nil {
		return nil, errNoPage
	}
	if err := h.may(v, acts[r.do].right, r.topic); err != nil {
		return nil, err
	}
	h.runs.mu.Lock()
	if r.state.by == "" && r.state.ended.IsZero() {
		r.state.by = v.Actor()
	}
	h.runs.mu.Unlock()
	r.stop()
	return redirect("bulk?run=" + strconv.FormatInt(id, 10)), nil
}
