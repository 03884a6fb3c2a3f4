package web

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

type jobsPage struct {
	Schema   string         `json:"schema"`
	At       time.Time      `json:"at"`
	Topic    string         `json:"topic"`
	State    delayq.State   `json:"state"`
	Total    int64          `json:"total"`
	Examined int            `json:"examined"`
	Jobs     []jobRecord    `json:"jobs"`
	Next     delayq.Cursor  `json:"next,omitempty"`
	Row      *topicRow      `json:"-"`
	Filter   *filter        `json:"-"`
	Tabs     []delayq.State `json:"-"`
	NextURL  string         `json:"-"`
	FirstURL string         `json:"-"`
	Acts     []string       `json:"-"`
	Wrong    bool           `json:"-"` // a field of the filter has a mistake, so there is no list
	Opens    bool           `json:"-"` // the request may search in payloads and headers
}

// CountOf returns the number of jobs in a state.
func (t *topicRow) CountOf(s delayq.State) int64 {
	return map[delayq.State]int64{
		delayq.StateScheduled: t.Scheduled, delayq.StateReady: t.Ready, delayq.StateRunning: t.Running,
		delayq.StateDead: t.Dead, delayq.StateDone: t.Done,
	}[s]
}

func (h *Handler) jobs(v *view) (any, error) {
	row, err := h.row(v)
	if err != nil {
		return nil, err
	}
	f, err := v.filter()
	if no, ok := errors.AsType[*refusal](err); ok && no.field != "" && !v.json {
		return h.wrongFilter(v, row, no.field, no.text), nil
	}
	if err != nil {
		return nil, err
	}
	type listed struct { // the filter has the absolute times to which the cursor belongs
		*delayq.Page
		filter *filter
	}
	page, err := read(h, v.Request.Context(), "jobs\x00"+f.key(), func(ctx context.Context) (listed, error) {
		page, err := h.insp.Jobs(ctx, f.query)
		return listed{page, f}, err
	})
	if errors.Is(err, delayq.ErrInvalid) && !v.json { // which does not say of which field
		_, text := v.explain(err)
		return h.wrongFilter(v, row, "", text), nil
	}
	if err != nil {
		return nil, err
	}
	v.Now = page.At
	p := &jobsPage{
		Schema: "delayq.web.jobs/1", At: utc(page.At), Topic: v.Topic, State: f.query.State, Total: page.Total, Examined: page.Examined,
		Jobs: []jobRecord{}, Next: page.Next, Row: row, Filter: f, Tabs: states,
	}
	p.Opens = h.opens(v, v.Topic)
	for _, j := range page.Jobs {
		p.Jobs = append(p.Jobs, record(j, p.Opens))
	}
	if err := h.fillColumns(v.Request.Context(), f, page.Jobs, p.Jobs); err != nil {
		return nil, err
	}
	p.FirstURL = "jobs?" + f.values().Encode()
	if page.Next != "" {
		next := page.filter.values()
		next.Set("cursor", string(page.Next))
		p.NextURL = "jobs?" + next.Encode()
	}
	for _, act := range actNames {
		if acts[act].offers(p.State, p.Keyed()) && v.Can(string(acts[act].right)) {
			p.Acts = append(p.Acts, act)
		}
	}
	return p, nil
}

// wrongFilter returns a page with the filter as it was typed and its mistake, and without a list.
func (h *Handler) wrongFilter(v *view, row *topicRow, field, text string) *jobsPage {
	v.Status, v.mistakes = http.StatusBadRequest, map[string]string{field: text}
	f := v.typedFilter()
	return &jobsPage{Topic: v.Topic, State: f.query.State, Row: row, Filter: f, Tabs: states, Wrong: true, Opens: h.opens(v, v.Topic)}
}

type reasonRow struct {
	Code delayq.ReasonCode `json:"code"`
	Text string            `json:"text"`
	// The numbers are those of the partition of the job. Its share of a limit is Share, and the
	// limit of the topic is Whole.
	Part  bool  `json:"in_partition,omitempty"`
	Share int64 `json:"share,omitempty"`
	Whole int64 `json:"limit_of_topic,omitempty"`
}

type jobPage struct {
	Schema  string        `json:"schema"`
	At      time.Time     `json:"at"`
	Verdict string        `json:"verdict"`
	Reasons []reasonRow   `json:"reasons"`
	Job     *jobRecord    `json:"job"`                 // null if there is none
	Part    *partRef      `json:"partition,omitempty"` // that has the job; none: the topic itself
	Payload *shownPayload `json:"payload,omitempty"`
	Output  *shownOutput  `json:"output,omitempty"` // of a done job
	Links   []Link        `json:"links,omitempty"`
	// What holds in the runs of the job, if it is not done.
	Settings []settingRow `json:"settings,omitempty"`
	Waiters  int          `json:"waiters,omitempty"` // clients that wait for the job
	ID       string       `json:"-"`
	Show     string       `json:"-"` // how the payload is shown: decoded, raw or hex
	Acts     []string     `json:"-"`
	Seen     string       `json:"-"` // how the job is, for acts on it
	Copies   bool         `json:"-"` // the page may offer to enqueue a copy
	Headers  []string     `json:"-"` // their names, sorted
	left     []int        // the retries that are left, by Settings
}

// A look is what is read about a job.
type look struct {
	explained *delayq.Explanation
	detail    *detail // nil if there is no such job
}

// A detail is what changes only with the state of a job, and is large to read.
type detail struct {
	payload *shownPayload // nil if it cannot be decoded
	output  *shownOutput
	links   []Link
}

// detailEvery is the age at which the details of a job that has not moved on are read again.
const detailEvery = time.Minute

// errGone is the outcome of a look at a job that has gone since.
var errGone = errors.New("gone")

// look reads a job, and if it is opened, its payload and output.
func (h *Handler) look(ctx context.Context, topic, id string, opened bool) (*look, error) {
	e, err := read(h, ctx, "job\x00"+topic+"\x00"+id, func(ctx context.Context) (*delayq.Explanation, error) {
		return h.insp.Explain(ctx, topic, id)
	})
	if err != nil || e.Job == nil {
		return &look{explained: e}, err
	}
	j := e.Job
	if !opened {
		outside := *j // that of an explanation has neither payload nor output
		outside.Headers, outside.Raw = nil, nil
		return &look{e, &detail{links: h.links(&outside)}}, nil
	}
	key := fmt.Sprint("detail\x00", topic, "\x00", id, "\x00", j.Nonce(), "\x00", j.State, j.Attempt, j.Snoozes, j.Due.UnixMilli(), len(j.Errors))
	d, err := readFor(h, ctx, detailEvery, key, func(ctx context.Context) (*detail, error) {
		info, err := h.insp.Job(ctx, topic, id)
		if errors.Is(err, delayq.ErrNotFound) {
			return nil, errGone
		}
		if err != nil {
			return nil, err
		}
		return h.detail(info, *j), nil
	})
	if errors.Is(err, errGone) {
		d, err = nil, nil
	}
	return &look{e, d}, err
}

// detail returns what is kept of a job. explained is the job as an explanation has it.
func (h *Handler) detail(info *delayq.JobInfo, explained delayq.JobInfo) *detail {
	rule, d := h.o.rule(info.Topic), &detail{}
	if info.Undecodable == nil {
		shown := rule.show(info.Topic, info.Payload)
		d.payload = &shown
	}
	if rule.redacted {
		explained.Headers, explained.Raw = nil, nil
		d.links = h.links(&explained)
		return d
	}
	d.output, d.links = showOutput(info.Output(), len(info.Output())), h.links(info)
	return d
}

// links returns the links of a job.
func (h *Handler) links(info *delayq.JobInfo) []Link {
	if h.o.links == nil {
		return nil
	}
	list := h.o.links(info)
	return list[:min(len(list), 10)]
}

func (h *Handler) job(v *view) (any, error) {
	id := v.query.Get("id")
	opened := h.may(v, RightPayload, v.Topic) == nil
	l, err := h.look(v.Request.Context(), v.Topic, id, opened)
	if err != nil {
		return nil, err
	}
	return h.jobPage(v, id, l, opened), nil
}

// jobPage returns the page of a job that was read.
func (h *Handler) jobPage(v *view, id string, l *look, opened bool) *jobPage {
	v.Now = l.explained.At
	p := &jobPage{Schema: "delayq.web.job/1", At: utc(l.explained.At), Verdict: l.explained.Verdict, Reasons: []reasonRow{}, ID: id, Show: "decoded"}
	for _, r := range l.explained.Reasons {
		p.Reasons = append(p.Reasons, reasonOf(&r))
	}
	info := l.explained.Job
	if info == nil {
		v.Status = http.StatusNotFound
		return p
	}
	rule := h.o.rule(v.Topic)
	job := record(info, opened && !rule.redacted)
	p.Job, p.Seen, p.Waiters = &job, library.Seen(info), l.explained.Waiters
	p.Part = placeOf(l.explained.Partition)
	p.set(l.explained)
	p.Copies = info.Undecodable == nil && v.Can(string(RightEnqueue))
	for name := range job.Headers {
		p.Headers = append(p.Headers, name)
	}
	slices.Sort(p.Headers)
	if d := l.detail; d != nil {
		p.Payload, p.Output, p.Links = d.payload, d.output, d.links
	}
	if show := v.query.Get("show"); show == "raw" || show == "hex" {
		p.Show = show
	}
	for _, act := range actNames {
		if acts[act].offers(info.State, info.Key != "") && v.Can(string(acts[act].right)) {
			p.Acts = append(p.Acts, act)
		}
	}
	return p
}

// Hex returns the stored bytes in hexadecimal.
func (p *shownPayload) Hex() string { return hex.Dump(p.Raw) }

// RawText returns the stored bytes as text.
func (p *shownPayload) RawText() string { return strings.ToValidUTF8(string(p.Raw), "\uFFFD") }

// payload sends all of a payload as a file.
func (h *Handler) payload(v *view) (any, error) {
	if h.o.rule(v.Topic).redacted {
		return nil, &refusal{status: http.StatusForbidden, text: v.T("error.redacted")}
	}
	info, err := h.insp.Job(v.Request.Context(), v.Topic, v.query.Get("id"))
	if err != nil {
		return nil, err
	}
	return download{"payload.bin", info.Payload}, nil
}

type findPage struct {
	Schema string      `json:"schema"`
	ID     string      `json:"id"`
	Jobs   []jobRecord `json:"jobs"`
	Asked  bool        `json:"-"`
}

func (h *Handler) find(v *view) (any, error) {
	id := v.query.Get("id")
	p := &findPage{Schema: "delayq.web.find/1", ID: id, Jobs: []jobRecord{}, Asked: v.query.Has("id")}
	if !p.Asked {
		return p, nil
	}
	list, err := read(h, v.Request.Context(), "find\x00"+id, func(ctx context.Context) ([]*delayq.JobInfo, error) {
		return h.insp.Find(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	for _, j := range list {
		if h.may(v, RightView, j.Topic) == nil {
			p.Jobs = append(p.Jobs, record(j, false))
		}
	}
	if len(p.Jobs) == 1 && !v.json {
		return redirect(v.Link("job", "topic", p.Jobs[0].Topic, "id", id)), nil
	}
	return p, nil
}
