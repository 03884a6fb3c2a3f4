package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// An act is what a page can do with jobs.
type act struct {
	right       Right
	states      []delayq.State // in which a job must be
	destructive bool           // what it did cannot be undone
	spreads     bool
	when        bool // it needs a time
	why         bool // it takes a reason
	ahead       bool // it takes a head start, of jobs that have keys
	// action is nil for an act that is only for jobs that were chosen.
	action func(p *actInput) delayq.Action
	// one acts on a job that was read. nil: action, on the job as it was then.
	one func(ctx context.Context, h *Handler, info *delayq.JobInfo, p *actInput) error
}

// actNames lists the acts in the order in which pages show them.
var actNames = []string{"run", "reschedule", "priority", "revive", "bury", "cancel", "purge"}

var acts = map[string]*act{
	"run": {
		right: RightReschedule, states: []delayq.State{delayq.StateScheduled}, spreads: true,
		action: func(*actInput) delayq.Action { return delayq.RunNow() },
	},
	"reschedule": {
		right: RightReschedule, states: []delayq.State{delayq.StateScheduled, delayq.StateReady}, spreads: true, when: true,
		action: func(p *actInput) delayq.Action { return delayq.Reschedule(p.due) },
		one: func(ctx context.Context, h *Handler, info *delayq.JobInfo, p *actInput) error {
			due := p.due
			if p.by != 0 {
				due = delayq.ProcessAt(info.Due.Add(p.by))
			}
			return library.ActOn(ctx, h.o.client, info, delayq.Reschedule(due))
		},
	},
	"priority": {
		right: RightReschedule, states: []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead}, ahead: true,
		one: func(ctx context.Context, h *Handler, info *delayq.JobInfo, p *actInput) error {
			err := h.o.client.SetPriority(ctx, info.Topic, info.ID, p.start, delayq.IfUnchanged(info))
			if errors.Is(err, delayq.ErrChanged) {
				return fmt.Errorf("%w: %w", delayq.ErrNotFound, err) // as ActOn does
			}
			return err
		},
	},
	"revive": {
		right: RightRevive, states: []delayq.State{delayq.StateDead}, spreads: true,
		action: func(*actInput) delayq.Action { return delayq.Revive() },
	},
	"bury": {
		right: RightBury, states: []delayq.State{delayq.StateScheduled, delayq.StateReady}, why: true,
		action: func(p *actInput) delayq.Action { return delayq.Bury(p.because) },
	},
	"cancel": {
		right: RightCancel, destructive: true,
		states: []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning},
		action: func(*actInput) delayq.Action { return delayq.Cancel() },
	},
	"purge": {
		right: RightPurge, states: []delayq.State{delayq.StateDead, delayq.StateDone}, destructive: true,
		action: func(*actInput) delayq.Action { return delayq.Delete() },
	},
}

// offers reports whether the act can be offered for jobs in a state. keyed: they have keys.
func (a *act) offers(s delayq.State, keyed bool) bool {
	return slices.Contains(a.states, s) && (keyed || !a.ahead)
}

// actTries is how often an act looks at a job that changes meanwhile, and yet is what was chosen.
const actTries = 3

// actOn acts on a job that was chosen, if it is in a state of the act and what the page said about
// it. The act is on the job as it was read: the right to cancel is none to purge, and a job that
// changes in between is not hit.
func (h *Handler) actOn(ctx context.Context, p *actInput, id string) error {
	for try := 1; ; try++ {
		info, err := h.admitted(ctx, p, id)
		if err != nil {
			return err
		}
		if p.act.one != nil {
			err = p.act.one(ctx, h, info, p)
		} else {
			err = library.ActOn(ctx, h.o.client, info, p.act.action(p))
		}
		if try == actTries || !errors.Is(err, delayq.ErrNotFound) {
			return err
		}
	}
}

// exactly selects a scheduled, dead or done job, and those of the same millisecond whose IDs begin
// with its ID.
func exactly(topic, id string, info *delayq.JobInfo) delayq.Query {
	at := record(info, false).index()
	return delayq.Query{Topic: topic, State: info.State, From: at, To: at.Add(time.Millisecond), IDPrefix: id}
}

// admitted reads a job that was chosen. It returns an error unless the job is in a state of the
// act, and still what the page said about it: in the state and in the selection of the page, and as
// its own page has shown it.
func (h *Handler) admitted(ctx context.Context, p *actInput, id string) (*delayq.JobInfo, error) {
	f, topic := p.filter, p.filter.query.Topic
	info, err := h.o.client.Get(ctx, topic, id) // an inspector can read from a replica
	if err != nil {
		return nil, err
	}
	if !slices.Contains(p.act.states, info.State) || (f.named || f.set) && !f.admits(info) || p.seen != "" && p.seen != library.Seen(info) {
		return nil, delayq.ErrNotFound // it has moved on
	}
	if f.query.Failure == "" {
		return info, nil
	}
	q := delayq.Query{Topic: topic, State: info.State, IDPrefix: id} // only a list knows the groups of errors
	if info.State == delayq.StateScheduled || info.State == delayq.StateDead {
		q = exactly(topic, id, info)
	}
	q.Failure = f.query.Failure
	for one, err := range h.insp.All(ctx, q) {
		if err != nil {
			return nil, err
		}
		if one.ID == id {
			return info, nil
		}
	}
	return nil, delayq.ErrNotFound
}

const (
	maxChosen  = 1000 // jobs that are chosen one by one
	typedAbove = 1000 // jobs from which on the topic has to be typed for every act
)

// An actInput is what an act was asked to do.
type actInput struct {
	name    string
	act     *act
	ids     []string // the chosen jobs
	seen    string   // how the page has shown the one job; empty: it was not shown alone
	all     bool     // all that match instead
	filter  *filter
	due     delayq.DueOption
	by      time.Duration // how much later each chosen job becomes due; 0: due applies
	start   time.Duration // the head start of a job
	because string
	options []delayq.ApplyOption
	dry     bool
}

// input reads what confirm and act have in common.
func (h *Handler) input(v *view) (*actInput, error) {
	p := &actInput{name: v.query.Get("do")}
	if p.name == "" {
		p.name = v.form("do")
	}
	if p.act = acts[p.name]; p.act == nil {
		return nil, errNoPage
	}
	if err := h.may(v, p.act.right, v.Topic); err != nil {
		return nil, err
	}
	if v.query.Has("id") {
		p.ids = append(p.ids, v.query["id"]...)
	}
	for _, escaped := range v.Request.PostForm["ids"] {
		id, err := url.QueryUnescape(escaped)
		if err != nil {
			return nil, &refusal{status: http.StatusBadRequest, text: v.T("error.query")}
		}
		p.ids = append(p.ids, id)
	}
	slices.Sort(p.ids)
	p.ids = slices.Compact(p.ids)
	p.all = v.query.Get("all") == "1" || v.form("all") == "1"
	if p.all {
		p.ids = nil
	}
	if len(p.ids) == 1 {
		p.seen = v.query.Get("seen")
	}
	switch {
	case len(p.ids) > maxChosen:
		return nil, &refusal{status: http.StatusBadRequest, text: v.T("error.many", maxChosen)}
	case !p.all && len(p.ids) == 0:
		return nil, &refusal{status: http.StatusBadRequest, text: v.T("error.none")}
	}
	var err error
	if p.filter, err = v.filter(); err != nil {
		return nil, err
	}
	p.filter.query.Cursor, p.filter.query.Offset, p.filter.query.Limit = "", 0, 0 // it is about all that match
	if p.all && p.act.action == nil {
		return nil, &refusal{status: http.StatusBadRequest, text: v.T("error.chosen", v.T("act."+p.name))}
	}
	if p.all && !slices.Contains(p.act.states, p.filter.query.State) {
		return nil, &refusal{status: http.StatusBadRequest, text: v.T("error.state", v.T("act."+p.name), v.T("state."+string(p.filter.query.State)))}
	}
	return p, nil
}

type confirmPage struct {
	Schema string   `json:"schema"`
	Do     string   `json:"do"`
	Topic  string   `json:"topic"`
	Count  int64    `json:"count"`
	Exact  bool     `json:"exact"`
	IDs    []string `json:"ids,omitempty"`
	All    bool     `json:"all"`
	Filter *filter  `json:"-"`
	Type   bool     `json:"type_topic"` // the topic has to be typed
	URL    string   `json:"-"`
	Back   string   `json:"-"`
	Act    *actShow `json:"-"`
	Dry    bool     `json:"-"` // this is the answer of a dry run

	Sample []jobRecord `json:"sample,omitempty"` // the first of all that match
}

// actShow is what the form of an act asks for.
type actShow struct{ Spreads, When, Why, Ahead, Destructive bool }

// confirm asks before an act, and says how many jobs it is about.
func (h *Handler) confirm(v *view) (any, error) {
	p, err := h.input(v)
	if err != nil {
		return nil, err
	}
	return h.ask(v, p)
}

func (h *Handler) ask(v *view, p *actInput) (*confirmPage, error) {
	c := &confirmPage{
		Schema: "delayq.web.confirm/1", Do: p.name, Topic: v.Topic, IDs: p.ids, All: p.all, Filter: p.filter, Exact: true,
		Count: int64(len(p.ids)), Act: &actShow{p.act.spreads, p.act.when, p.act.why, p.act.ahead, p.act.destructive},
	}
	values := p.filter.values()
	c.Back = "jobs?" + values.Encode()
	if p.all {
		q := p.filter.query
		q.Budget = 50_000
		var err error
		if c.Count, c.Exact, err = h.insp.Count(v.Request.Context(), q); err != nil {
			return nil, err
		}
		q.Limit, q.Budget = fewIDs, 0
		page, err := h.insp.Jobs(v.Request.Context(), q)
		if err != nil {
			return nil, err
		}
		v.Now = page.At
		for _, j := range page.Jobs {
			c.Sample = append(c.Sample, record(j, false))
		}
		values.Set("all", "1")
	} else if len(p.ids) == 1 {
		c.Back = v.Link("job", "topic", v.Topic, "id", p.ids[0])
		if p.seen != "" {
			values.Set("seen", p.seen)
		}
	}
	values.Set("do", p.name)
	c.URL = "act?" + values.Encode()
	c.Type = c.typed()
	return c, nil
}

// typed reports whether the topic has to be typed.
func (c *confirmPage) typed() bool {
	return c.All && c.Act.Destructive || c.Count > typedAbove || !c.Exact || len(c.IDs) > 1 && c.Act.Destructive
}

// FilterTexts returns the fields that narrow the selection.
func (c *confirmPage) FilterTexts() (list []string) {
	for _, name := range filterFields {
		if c.Filter.text[name] != "" {
			list = append(list, name)
		}
	}
	return list
}

// perform does what was confirmed.
func (h *Handler) perform(v *view) (any, error) {
	p, err := h.input(v)
	if err != nil {
		return nil, err
	}
	if err := v.details(p); err != nil {
		return nil, err
	}
	c, err := h.ask(v, p) // the number may have grown since
	if err != nil {
		return nil, err
	}
	if p.dry {
		c.Dry, v.Page = true, "confirm"
		return c, nil
	}
	if c.Type && !v.typed() {
		return nil, mistake("typed", "%s", v.T("error.typed", visible(v.Topic)))
	}
	if p.all {
		run, err := h.runs.start(h, v, p, c.Count)
		if err != nil {
			return nil, err
		}
		return redirect("bulk?run=" + strconv.FormatInt(run, 10)), nil
	}
	defer h.shared.forget()
	done, open := 0, 0 // open: nobody knows
	var last error
	for _, id := range p.ids {
		err := v.acted(h.actOn(v.acting(), p, id))
		if err == nil {
			done++
			continue
		}
		last = err
		if errors.Is(err, delayq.ErrUnknownOutcome) {
			open++
		}
		if open > 0 || v.Request.Context().Err() != nil { // the others are left as they are
			break
		}
	}
	failed := len(p.ids) - done - open
	if len(p.ids) == 1 && last != nil {
		return nil, v.moved(last)
	}
	back := v.Link("jobs", "topic", v.Topic, "state", string(p.filter.query.State))
	if len(p.ids) == 1 {
		back = v.Link("job", "topic", v.Topic, "id", p.ids[0])
	}
	back += "&did=" + p.name + "&n=" + strconv.Itoa(done) + "&failed=" + strconv.Itoa(failed)
	if open > 0 {
		back += "&open=" + strconv.Itoa(open)
	}
	return redirect(back), nil
}

// moved says that a job has moved on, if that is what an error means.
func (v *view) moved(err error) error {
	if errors.Is(err, delayq.ErrNotFound) {
		return &refusal{status: http.StatusConflict, text: v.T("error.moved")}
	}
	return err
}

// details reads the fields of the form of an act.
func (v *view) details(p *actInput) error {
	p.dry = v.form("dry") == "1"
	p.because = v.form("because")
	if p.act.when {
		if err := v.move(p); err != nil {
			return err
		}
	}
	if p.act.ahead {
		var err error
		if p.start, err = span(v.form("ahead")); err != nil {
			return mistake("ahead", "%v", err)
		}
		if p.start < -mostAhead || p.start > mostAhead {
			return mistake("ahead", "%s", v.T("error.ahead", mostAhead))
		}
	}
	if text := v.form("spread"); text != "" && p.act.spreads {
		d, err := span(text)
		if err != nil {
			return mistake("spread", "%v", err)
		}
		p.options = append(p.options, delayq.Spread(d))
	}
	for _, one := range []struct {
		name   string
		option func(int) delayq.ApplyOption
	}{
		{"pace", delayq.Pace},
		{"most", func(n int) delayq.ApplyOption { return delayq.AtMost(int64(n)) }},
	} {
		text := v.form(one.name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return mistake(one.name, "%q must be a number of at least 1", text)
		}
		p.options = append(p.options, one.option(n))
	}
	return nil
}

// mostAhead is the longest head start, a bound that the library has too.
const mostAhead = 24 * time.Hour

// move reads when the jobs of an act are due: in, at, or by for those that were chosen.
func (v *view) move(p *actInput) error {
	due, err := v.due()
	if err != nil {
		return err
	}
	if text := v.form("by"); strings.TrimSpace(text) != "" {
		switch p.by, err = span(text); {
		case err != nil:
			return mistake("by", "%v", err)
		case p.by == 0:
			return mistake("by", "%s", v.T("error.when"))
		case p.all:
			return &refusal{status: http.StatusBadRequest, text: v.T("error.chosen", v.T("form.by"))} // its form has no such field
		case due != nil:
			return mistake("by", "%s", v.T("error.oneof"))
		}
		return nil
	}
	if due == nil && !p.dry {
		return mistake("in", "%s", v.T("error.when"))
	}
	p.due = delayq.ProcessIn(0)
	if due != nil {
		p.due = *due
	}
	return nil
}

// due reads a due time: in or at. It is nil if neither was given.
func (v *view) due() (*delayq.DueOption, error) {
	in, at := strings.TrimSpace(v.form("in")), strings.TrimSpace(v.form("at"))
	var due delayq.DueOption
	switch {
	case in != "" && at != "":
		return nil, mistake("at", "%s", v.T("error.both"))
	case in != "":
		d, err := span(in)
		if err != nil {
			return nil, mistake("in", "%v", err)
		}
		due = delayq.ProcessIn(d)
	case at != "":
		t, err := moment(at, time.Now())
		if err != nil {
			return nil, mistake("at", "%v", err)
		}
		due = delayq.ProcessAt(t)
	default:
		return nil, nil
	}
	return &due, nil
}

// acting returns the context of an act, which the audit names the actor of.
func (v *view) acting() context.Context {
	return delayq.WithActor(v.Request.Context(), v.Actor())
}

func addActRoutes(all map[string]*route) {
	all["confirm"] = &route{right: RightView, show: (*Handler).confirm, post: (*Handler).confirm, acts: true, plain: true, topic: true}
	all["act"] = &route{right: RightView, post: (*Handler).perform, form: (*Handler).confirm, page: "confirm", acts: true, plain: true, topic: true}
	all["bulk"] = &route{right: RightView, show: (*Handler).bulk, acts: true}
	all["bulks"] = &route{right: RightView, show: (*Handler).bulkRuns, acts: true}
	all["stop"] = &route{right: RightView, post: (*Handler).stopBulk, acts: true, plain: true}
	all["pause"] = &route{right: RightPause, show: (*Handler).form, post: (*Handler).pause, form: (*Handler).form, page: "pause", acts: true, plain: true, topic: true}
	all["resume"] = &route{right: RightPause, post: (*Handler).resume, acts: true, plain: true, topic: true}
	all["enqueue"] = &route{right: RightEnqueue, show: (*Handler).enqueueForm, post: (*Handler).enqueue, form: (*Handler).enqueueForm, page: "enqueue", acts: true, plain: true}
	all["new-schedule"] = &route{right: RightSchedule, show: (*Handler).form, post: (*Handler).newSchedule, form: (*Handler).form, page: "new-schedule", acts: true, plain: true}
	all["edit-key"] = &route{right: RightView, show: (*Handler).keyForm, post: (*Handler).editKey, form: (*Handler).keyForm, page: "edit-key", acts: true, plain: true, topic: true}
	all["edit-topic"] = &route{
		right: RightView, show: (*Handler).topicForm, post: (*Handler).editTopic, form: (*Handler).topicForm, page: "edit-topic", acts: true, plain: true, topic: true,
	}
	all["edit-schedule"] = &route{right: RightSchedule, show: (*Handler).form, post: (*Handler).editSchedule, form: (*Handler).form, page: "edit-schedule", acts: true, plain: true, topic: true}
}
