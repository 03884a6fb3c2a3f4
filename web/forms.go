package web

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq"
)

type formPage struct {
	Schema string `json:"schema"`
	Topic  string `json:"topic,omitempty"`
	Name   string `json:"name,omitempty"` // of a schedule
	Do     string `json:"do,omitempty"`
	New    bool   `json:"-"` // the topic to pause has nothing yet
}

// form shows an empty form.
func (h *Handler) form(v *view) (any, error) {
	p := &formPage{Schema: "delayq.web.form/1", Topic: v.Topic, Name: v.query.Get("name"), Do: v.query.Get("do")}
	if v.Page == "edit-schedule" && !slices.Contains(scheduleActs, p.Do) {
		return nil, errNoPage
	}
	if v.Page == "pause" {
		row, err := h.row(v)
		if err != nil {
			return nil, err
		}
		p.New = row.New && row.isBlank()
	}
	return p, nil
}

// scheduleActs lists what editSchedule does.
var scheduleActs = []string{"trigger", "pause", "resume", "remove"}

// typed reports whether the topic was typed: as it is, or as the page shows it.
func (v *view) typed() bool {
	text := v.form("typed")
	return text == v.Topic || text == visible(v.Topic)
}

// pause pauses a topic. For one that has nothing yet, that has to be confirmed: it can be a typo.
func (h *Handler) pause(v *view) (any, error) {
	p := delayq.Pause{By: v.Actor(), Reason: v.form("because")}
	if text := v.form("for"); text != "" {
		d, err := span(text)
		if err != nil {
			return nil, mistake("for", "%v", err)
		}
		p.For = d
	}
	row, err := h.row(v)
	if err != nil {
		return nil, err
	}
	if row.New && row.isBlank() && v.form("new") != "1" {
		return nil, mistake("new", "%s", v.T("error.newtopic", visible(v.Topic)))
	}
	defer h.shared.forget()
	if err := v.acted(h.o.client.Pause(v.acting(), v.Topic, p)); err != nil {
		return nil, err
	}
	return redirect(v.Link("topic", "topic", v.Topic, "did", "pause")), nil
}

// resume ends all pauses of a topic, whoever began them.
func (h *Handler) resume(v *view) (any, error) {
	if _, err := h.known(v); err != nil {
		return nil, err
	}
	defer h.shared.forget()
	if err := v.acted(h.o.client.ResumeAll(v.acting(), v.Topic)); err != nil {
		return nil, err
	}
	return redirect(v.Link("topic", "topic", v.Topic, "did", "resume")), nil
}

// topicActs has the right that each act of editTopic needs.
var topicActs = map[string]Right{"hold": RightPause, "release": RightPause, "limits": RightLimits}

// A topicForm is the form of a hold or of the limits of a topic.
type topicForm struct {
	Schema  string    `json:"schema"`
	Topic   string    `json:"topic"`
	Do      string    `json:"do"`
	Running int       `json:"running,omitempty"` // of limits: what the topic has
	All     typedRate `json:"all"`
	KeyRun  int       `json:"running_per_key,omitempty"`
	Key     typedRate `json:"per_key"`
	Ordered bool      `json:"ordered,omitempty"`
	Halt    bool      `json:"halt,omitempty"`
}

func (h *Handler) topicAct(v *view) (string, *topicRow, error) {
	do := v.query.Get("do")
	right, ok := topicActs[do]
	if !ok {
		return "", nil, errNoPage
	}
	if err := h.may(v, right, v.Topic); err != nil {
		return "", nil, err
	}
	row, err := h.known(v)
	return do, row, err
}

func (h *Handler) topicForm(v *view) (any, error) {
	do, row, err := h.topicAct(v)
	if err != nil {
		return nil, err
	}
	l := row.perKey
	return &topicForm{
		Schema: "delayq.web.form/1", Topic: v.Topic, Do: do, Running: l.Running, All: typedRateOf(l.Rate), KeyRun: l.RunningPerKey,
		Key: typedRateOf(l.RatePerKey), Ordered: l.Ordered, Halt: l.OnDead == delayq.HaltKey,
	}, nil
}

// editTopic holds a topic, ends its hold, or sets its limits.
func (h *Handler) editTopic(v *view) (any, error) {
	do, _, err := h.topicAct(v)
	if err != nil {
		return nil, err
	}
	ctx, c := v.acting(), h.o.client
	switch do {
	case "hold":
		d, err := v.hold()
		if err != nil {
			return nil, err
		}
		if err := v.acted(c.Hold(ctx, v.Topic, d, v.form("because"))); err != nil {
			return nil, err
		}
	case "release":
		if err := v.acted(c.EndHold(ctx, v.Topic)); err != nil {
			return nil, err
		}
	case "limits":
		l, err := v.limits()
		if err != nil {
			return nil, err
		}
		if err := v.acted(c.SetLimits(ctx, v.Topic, l)); err != nil {
			return nil, err
		}
	}
	h.shared.forget()
	return redirect(v.Link("topic", "topic", v.Topic, "did", "topic-"+do)), nil
}

// mostRunning is the highest limit of running jobs of a topic.
const mostRunning = 1_000_000

// limits reads the limits of a topic. An empty field is no limit.
func (v *view) limits() (l delayq.Limits, err error) {
	if l.Running, err = v.count("running", 0, mostRunning); err != nil {
		return l, err
	}
	if l.Rate, err = v.rate(""); err != nil {
		return l, err
	}
	if l.RunningPerKey, err = v.count("keyrunning", 0, mostOfKey); err != nil {
		return l, err
	}
	if l.RatePerKey, err = v.rate("key"); err != nil {
		return l, err
	}
	if l.Ordered = v.form("ordered") == "1"; l.Ordered && l.RunningPerKey > 1 {
		return l, mistake("keyrunning", "%s", v.T("keys.ordered"))
	}
	if v.form("halt") == "1" {
		if l.OnDead = delayq.HaltKey; !l.Ordered {
			return l, mistake("halt", "%s", v.T("error.halt"))
		}
	}
	return l, nil
}

// jobOptions reads the fields that jobs and the jobs of schedules have in common.
func (v *view) jobOptions() (list []delayq.JobOption, err error) {
	if text := v.form("retries"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, mistake("retries", "%q is not a number", text)
		}
		list = append(list, delayq.Retry(n))
	}
	for line := range strings.Lines(v.form("headers")) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, mistake("headers", "%q: name=value", line)
		}
		list = append(list, delayq.Header(name, value))
	}
	return list, nil
}

// target returns the topic of a form, which may be in the form or in the link.
func (h *Handler) target(v *view, right Right) (string, error) {
	topic := v.form("topic")
	if topic == "" {
		topic = v.Topic
	}
	if topic == "" {
		return "", mistake("topic", "%s", v.T("error.topic"))
	}
	return topic, h.may(v, right, topic)
}

// What a job without a backoff of its own has: then that of the handler counts.
const (
	usualFirst = 2 * time.Second
	usualLimit = 4096 * time.Second
)

// editableBytes is how long a payload can be that a form shows to be edited.
const editableBytes = shownBytes

// An enqueueForm is the form of a job. It can begin with what another job has.
type enqueueForm struct {
	Schema  string `json:"schema"`
	Topic   string `json:"topic,omitempty"`
	Copy    string `json:"copy,omitempty"` // the ID of the job that is copied
	ID      string `json:"id,omitempty"`
	Key     string `json:"key,omitempty"`
	Retries string `json:"retries,omitempty"`
	Headers string `json:"headers,omitempty"` // one a line
	Format  string `json:"format"`            // of Payload; copy: it stays on the server
	Payload string `json:"payload,omitempty"`
	Size    int    `json:"size,omitempty"` // of the payload of the job that is copied
	Closed  bool   `json:"closed,omitempty"`
}

// formats lists the formats in which a payload can be typed.
var formats = []string{"text", "json", "msgpack", "base64"}

// Formats lists the formats of payloads that the form offers.
func (p *enqueueForm) Formats() []string {
	if p.Copy != "" {
		return append(slices.Clone(formats), "copy")
	}
	return formats
}

// source returns the job that is copied, whether what it holds may be shown, or nil if none is.
func (h *Handler) source(v *view) (info *delayq.JobInfo, opened bool, err error) {
	if !v.query.Has("copy") {
		return nil, false, nil
	}
	if err := h.may(v, RightEnqueue, v.Topic); err != nil {
		return nil, false, err
	}
	info, err = h.insp.Job(v.Request.Context(), v.Topic, v.query.Get("copy"))
	if err == nil && info.Undecodable != nil {
		err = &refusal{status: http.StatusConflict, text: info.Undecodable.Error()}
	}
	return info, h.opens(v, v.Topic), err
}

// enqueueForm shows the form of a new job, or of a copy of a job.
func (h *Handler) enqueueForm(v *view) (any, error) {
	p := &enqueueForm{Schema: "delayq.web.form/1", Topic: v.Topic, Format: "text"}
	info, opened, err := h.source(v)
	if info == nil || err != nil {
		return p, err
	}
	p.Copy, p.Key, p.Size, p.Closed, p.Format = info.ID, info.Key, len(info.Payload), !opened, "copy"
	if info.State == delayq.StateDone {
		p.ID = info.ID // it is free
	}
	if info.Retries >= 0 {
		p.Retries = strconv.Itoa(info.Retries)
	}
	if !opened {
		return p, nil
	}
	for _, name := range sortedHeaders(info.Headers) {
		if canType(name, info.Headers[name]) {
			p.Headers += name + "=" + info.Headers[name] + "\n"
		}
	}
	p.Format, p.Payload = editable(info.Payload)
	return p, nil
}

// editable returns a payload as the field of a form, in the first format that gives the same bytes
// back. What is too long for a form, or for every format, is copied as it is.
func editable(payload []byte) (format, text string) {
	if len(payload) > editableBytes {
		return "copy", ""
	}
	typed := func(text string) bool { // browsers send line ends as CR LF, and body reads them as LF
		return utf8.ValidString(text) && !strings.ContainsAny(text, "\r\x00") && !strings.HasPrefix(text, "\n")
	}
	plain := string(payload)
	switch {
	case typed(plain) && json.Valid(payload):
		return "json", plain
	case typed(plain):
		return "text", plain
	}
	if text, err := msgpackText(payload, nil); err == nil && typed(text) {
		back, err := packJSON(text, func(err error) error { return err })
		if err == nil && string(back) == plain {
			return "msgpack", text
		}
	}
	return "base64", base64.StdEncoding.EncodeToString(payload)
}

// enqueue stores a job.
func (h *Handler) enqueue(v *view) (any, error) {
	topic, err := h.target(v, RightEnqueue)
	if err != nil {
		return nil, err
	}
	source, opened, err := h.source(v)
	if err != nil {
		return nil, err
	}
	options, err := v.jobOptions()
	if err != nil {
		return nil, err
	}
	var payload []byte
	switch as := v.form("format") == "copy"; {
	case as && source == nil:
		return nil, mistake("format", "%s", v.T("error.copy"))
	case as && !opened && topic != v.Topic: // there it could be seen
		return nil, mistake("topic", "%s", v.T("error.closed"))
	case as:
		payload = source.Payload
	default:
		if payload, err = v.body(); err != nil {
			return nil, err
		}
	}
	if source != nil { // what the form does not have
		for _, name := range sortedHeaders(source.Headers) {
			if value := source.Headers[name]; opened && !canType(name, value) || !opened && topic == v.Topic {
				options = append([]delayq.JobOption{delayq.Header(name, value)}, options...)
			}
		}
		if source.BackoffFirst != usualFirst || source.BackoffLimit != usualLimit {
			options = append(options, delayq.Backoff(source.BackoffFirst, source.BackoffLimit))
		}
		if source.Timeout > 0 {
			options = append(options, delayq.Timeout(source.Timeout))
		}
		if source.Retention > 0 {
			options = append(options, delayq.Retention(source.Retention))
		}
	}
	if key := v.form("key"); key != "" {
		options = append(options, delayq.Key(key))
	}
	due, err := v.due()
	if err != nil {
		return nil, err
	}
	if due != nil {
		options = append(options, *due)
	}
	defer h.shared.forget()
	ctx := v.acting()
	job, err := h.o.client.Enqueue(ctx, topic, v.form("id"), payload, options...)
	if errors.Is(err, delayq.ErrDuplicate) {
		return nil, &refusal{http.StatusConflict, v.T("error.duplicate"), "id"}
	}
	if err != nil {
		return nil, err
	}
	text := "due " + job.Due.UTC().Format(time.RFC3339Nano)
	if err := v.acted(library.Note(ctx, h.o.client, "enqueue", topic, job.ID, text, 1)); err != nil {
		return nil, err
	}
	return redirect(v.Link("job", "topic", topic, "id", job.ID, "did", "enqueue")), nil
}

// canType reports whether a header is what a line of the form says: name=value.
func canType(name, value string) bool {
	return utf8.ValidString(name+value) && !strings.ContainsAny(name, "=\r\n\x00") && !strings.ContainsAny(value, "\r\n\x00")
}

func sortedHeaders(headers map[string]string) (names []string) {
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (h *Handler) newSchedule(v *view) (any, error) {
	topic, err := h.target(v, RightSchedule)
	if err != nil {
		return nil, err
	}
	var spec delayq.Spec
	if text := v.form("every"); text != "" {
		d, err := span(text)
		if err != nil {
			return nil, mistake("every", "%v", err)
		}
		spec = delayq.Every(d)
	} else {
		spec = delayq.Cron(v.form("cron"), v.form("zone"))
	}
	payload, err := v.body()
	if err != nil {
		return nil, err
	}
	options, err := v.jobOptions()
	if err != nil {
		return nil, err
	}
	list := []delayq.ScheduleOption{delayq.IfAbsent()} // a page never replaces what a program defines
	for _, o := range options {
		list = append(list, o)
	}
	name := v.form("name")
	if _, err := h.insp.Schedule(v.Request.Context(), topic, name); err == nil {
		return nil, &refusal{http.StatusConflict, v.T("error.schedule"), "name"}
	}
	defer h.shared.forget()
	if err := v.acted(h.o.client.Schedule(v.acting(), topic, name, spec, payload, list...)); err != nil {
		return nil, err
	}
	return redirect(v.Link("schedule", "topic", topic, "name", name, "did", "schedule")), nil
}

// editSchedule pauses, resumes, triggers or removes a schedule.
func (h *Handler) editSchedule(v *view) (any, error) {
	name, do := v.query.Get("name"), v.query.Get("do")
	ctx, c := v.acting(), h.o.client
	defer h.shared.forget()
	var err error
	to := v.Link("schedule", "topic", v.Topic, "name", name, "did", "schedule-"+do)
	switch do {
	case "pause":
		err = c.PauseSchedule(ctx, v.Topic, name)
	case "resume":
		err = c.ResumeSchedule(ctx, v.Topic, name)
	case "trigger":
		_, err = c.Trigger(ctx, v.Topic, name)
	case "remove":
		if !v.typed() {
			return nil, mistake("typed", "%s", v.T("error.typed", visible(v.Topic)))
		}
		err = c.Unschedule(ctx, v.Topic, name)
		to = v.Link("schedules", "topic", v.Topic, "did", "schedule-"+do)
	default:
		return nil, errNoPage
	}
	if err := v.acted(err); err != nil {
		return nil, err
	}
	return redirect(to), nil
}
