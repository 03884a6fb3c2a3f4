package web

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq"
)

// The states in the order in which pages show them.
var states = []delayq.State{
	delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone,
}

const (
	behindAfter  = 10 * time.Second // how late the oldest overdue job of a topic is when it is behind
	topicsShown  = 1000             // rows of the overview
	failureTopic = 20               // topics whose failures are shown together
	auditShown   = 1000
	runsShown    = 50
	previewRows  = 100
)

// sparkSteps are the windows of the small forecast of a topic: the next hour in ten parts.
var sparkSteps = func() (list []time.Duration) {
	for i := range 10 {
		list = append(list, time.Duration(i+1)*6*time.Minute)
	}
	return list
}()

// The state of a topic as a whole, by the most urgent thing.
const (
	topicNoServer = "no_server"
	topicBehind   = "behind"
	topicPaused   = "paused"
	topicHeld     = "held"
	topicRunning  = "running"
	topicIdle     = "idle"
)

// A topicRow is a topic in lists.
type topicRow struct {
	Topic     string           `json:"topic"`
	Status    string           `json:"status"`
	Scheduled int64            `json:"scheduled"`
	Ready     int64            `json:"ready"`
	Running   int64            `json:"running"`
	Dead      int64            `json:"dead"`
	Done      int64            `json:"done"`
	Retrying  int64            `json:"retrying"`
	Overdue   int64            `json:"overdue"`
	Oldest    time.Time        `json:"oldest_overdue,omitzero"`
	NextDue   time.Time        `json:"next_due,omitzero"`
	Servers   int              `json:"servers"`
	Workers   int              `json:"workers"`
	Schedules int64            `json:"schedules"`
	Laned     int64            `json:"ready_with_key,omitempty"`
	Keys      int64            `json:"keys,omitempty"` // that take turns; jobs without one are one more
	Pauses    []pauseRow       `json:"pauses,omitempty"`
	HeldUntil time.Time        `json:"held_until,omitzero"`
	HeldBy    string           `json:"held_by,omitempty"`
	HeldWhy   string           `json:"held_reason,omitempty"`
	LimitRun  int              `json:"limit_running,omitempty"`
	LimitRate string           `json:"limit_rate,omitempty"`
	DueHour   int64            `json:"due_within_hour"`
	Spark     []int64          `json:"due_by_6_minutes,omitempty"`
	In        *float64         `json:"enqueued_per_second,omitempty"` // nil: not known yet
	Out       *float64         `json:"finished_per_second,omitempty"`
	Failed    *float64         `json:"failed_per_second,omitempty"`
	DeadMore  int64            `json:"dead_more,omitempty"` // buried within the last minute of looking
	Counters  map[string]int64 `json:"counters,omitempty"`
	at        time.Time
}

// A pauseRow is a pause of a topic.
type pauseRow struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"`
}

// OldestAge returns for how long the oldest overdue job has been due.
func (t topicRow) OldestAge() time.Duration {
	if t.Oldest.IsZero() {
		return 0
	}
	return max(t.at.Sub(t.Oldest), 0)
}

// status returns the most urgent thing about a topic.
func (t topicRow) status() string {
	switch {
	case len(t.Pauses) > 0:
		return topicPaused
	case t.Overdue > 0 && t.Servers == 0:
		return topicNoServer
	case !t.HeldUntil.IsZero():
		return topicHeld
	case t.OldestAge() >= behindAfter:
		return topicBehind
	case t.Running > 0:
		return topicRunning
	}
	return topicIdle
}

// A topicList is what all pages about topics share.
type topicList struct {
	At   time.Time
	rows []topicRow
}

// topicList reads all topics, their forecasts and their rates.
func (h *Handler) topicList(ctx context.Context) (*topicList, error) {
	return read(h, ctx, "topics", func(ctx context.Context) (*topicList, error) {
		stats, err := h.insp.Stats(ctx)
		if err != nil {
			return nil, err
		}
		list := &topicList{At: time.Now()}
		names := make([]string, len(stats))
		for i := range stats {
			names[i] = stats[i].Topic
		}
		var due [][]int64
		if len(stats) > 0 {
			list.At = stats[0].At
			if due, err = h.insp.DueWithin(ctx, list.At, sparkSteps, names...); err != nil {
				return nil, err
			}
		}
		h.rates.add(list.At, stats)
		for i := range stats {
			t := h.rates.row(&stats[i])
			var before int64
			if i < len(due) {
				for _, n := range due[i] {
					t.Spark, before = append(t.Spark, n-before), n
				}
			}
			t.DueHour = before
			list.rows = append(list.rows, t)
		}
		return list, nil
	})
}

// visibleTopics returns the topics that the request may know of.
func (h *Handler) visibleTopics(v *view) (*topicList, error) {
	all, err := h.topicList(v.Request.Context())
	if err != nil {
		return nil, err
	}
	list := &topicList{At: all.At}
	for _, t := range all.rows {
		if h.sees(v, t.Topic) {
			list.rows = append(list.rows, t)
		}
	}
	return list, nil
}

// rates remembers counters for the last minute, to tell what happens per second.
type rates struct {
	mu      sync.Mutex
	samples []sample
}

type sample struct {
	at     time.Time
	counts map[string]map[delayq.Counter]int64
}

const (
	rateWindow  = time.Minute
	rateSamples = 12
)

func (r *rates) add(at time.Time, stats []delayq.TopicStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = slices.DeleteFunc(r.samples, func(s sample) bool { return at.Sub(s.at) > rateWindow || !s.at.Before(at) })
	if n := len(r.samples); n > 0 && at.Sub(r.samples[n-1].at) < rateWindow/rateSamples && n > 1 {
		return
	}
	s := sample{at, make(map[string]map[delayq.Counter]int64, len(stats))}
	for i := range stats {
		s.counts[stats[i].Topic] = stats[i].Counters
	}
	r.samples = append(r.samples, s)
}

// row returns the row of a topic.
func (r *rates) row(s *delayq.TopicStats) topicRow {
	t := topicRow{
		Topic: s.Topic, Scheduled: s.Scheduled, Ready: s.Ready, Running: s.Running, Dead: s.Dead, Done: s.Done, Retrying: s.Retrying,
		Overdue: s.Overdue, Oldest: utc(s.OldestOverdue), NextDue: utc(s.NextDue), Servers: s.Servers, Workers: s.Workers,
		Schedules: s.Schedules, Laned: s.Laned, Keys: s.Keys, HeldUntil: utc(s.HeldUntil), HeldBy: s.HeldBy, HeldWhy: s.HeldReason, LimitRun: s.Limits.Running,
		Counters: make(map[string]int64), at: s.At,
	}
	if s.Limits.Rate != (delayq.Rate{}) {
		t.LimitRate = s.Limits.Rate.String()
	}
	for _, p := range s.Pauses {
		t.Pauses = append(t.Pauses, pauseRow{p.By, p.Reason, utc(p.Since), utc(p.Until)})
	}
	for name, n := range s.Counters {
		t.Counters[string(name)] = n
	}
	t.Status = t.status()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) == 0 {
		return t
	}
	first := r.samples[0]
	before, known := first.counts[s.Topic]
	seconds := s.At.Sub(first.at).Seconds()
	if !known || seconds < 0.5 {
		return t
	}
	rate := func(names ...delayq.Counter) *float64 {
		var n int64
		for _, name := range names {
			n += s.Counters[name] - before[name]
		}
		per := float64(max(n, 0)) / seconds
		return &per
	}
	t.In = rate(delayq.CounterEnqueued)
	t.Out = rate(delayq.CounterAcked, delayq.CounterAgain)
	t.Failed = rate(delayq.CounterRetried, delayq.CounterBuried)
	t.DeadMore = max(s.Counters[delayq.CounterBuried]-before[delayq.CounterBuried], 0)
	return t
}

// A trouble is something that a person should look at.
type trouble struct {
	Code  string `json:"code"`
	Topic string `json:"topic,omitempty"`
	Text  string `json:"text"`
}

type overviewPage struct {
	Schema  string     `json:"schema"`
	At      time.Time  `json:"at"`
	Trouble []trouble  `json:"trouble"`
	Sum     topicRow   `json:"totals"`
	Topics  []topicRow `json:"topics"`
	More    int        `json:"more_topics,omitempty"`
}

func (h *Handler) overview(v *view) (any, error) {
	list, err := h.visibleTopics(v)
	if err != nil {
		return nil, err
	}
	p := &overviewPage{Schema: "delayq.web.topics/1", At: utc(list.At), Trouble: []trouble{}, Topics: []topicRow{}}
	v.Now = list.At
	for _, code := range []string{topicNoServer, topicBehind, "dead", topicHeld, topicPaused} { // the worst first
		for _, t := range list.rows {
			if text := v.trouble(code, &t); text != "" {
				p.Trouble = append(p.Trouble, trouble{code, t.Topic, text})
			}
		}
	}
	if info, err := h.redisInfo(v.Request.Context()); err == nil {
		for _, warning := range v.warnings(info) {
			p.Trouble = append(p.Trouble, trouble{Code: "redis", Text: warning})
		}
	}
	rows, err := h.outboxes(v.Request.Context())
	if err != nil {
		return nil, err
	}
	p.Trouble = append(p.Trouble, v.outboxTrouble(rows)...)
	for _, t := range list.rows {
		p.Sum.add(&t)
	}
	if p.Topics = append(p.Topics, list.rows...); len(p.Topics) > topicsShown {
		// The ones in trouble and the busiest stay.
		slices.SortStableFunc(p.Topics, func(a, b topicRow) int {
			return cmp.Or(cmp.Compare(b.Overdue, a.Overdue), cmp.Compare(b.Dead, a.Dead), cmp.Compare(b.Scheduled, a.Scheduled))
		})
		p.Topics, p.More = p.Topics[:topicsShown], len(p.Topics)-topicsShown
	}
	return p, nil
}

// trouble returns what is wrong with a topic in one way, or "".
func (v *view) trouble(code string, t *topicRow) string {
	switch {
	case code == "dead" && t.DeadMore > 0:
		return v.T("trouble.dead", number(t.DeadMore), number(t.Dead))
	case code != t.Status:
	case code == topicNoServer:
		return v.T("trouble.no_server", number(t.Overdue))
	case code == topicBehind:
		return v.T("trouble.behind", number(t.Overdue), short(t.OldestAge()), number(t.Running), number(t.Workers))
	case code == topicHeld:
		return v.T("trouble.held", short(t.HeldUntil.Sub(t.at)), visible(t.HeldBy))
	case code == topicPaused:
		first := t.Pauses[0]
		text := v.T("trouble.paused", visible(first.By), short(t.at.Sub(first.Since)))
		if first.Reason != "" {
			text += ": " + visible(first.Reason)
		}
		return text
	}
	return ""
}

// add adds a topic to a sum.
func (t *topicRow) add(o *topicRow) {
	t.Scheduled, t.Ready, t.Running, t.Dead, t.Done = t.Scheduled+o.Scheduled, t.Ready+o.Ready, t.Running+o.Running, t.Dead+o.Dead, t.Done+o.Done
	t.Retrying, t.Overdue, t.Workers, t.DueHour = t.Retrying+o.Retrying, t.Overdue+o.Overdue, t.Workers+o.Workers, t.DueHour+o.DueHour
	t.Schedules += o.Schedules
	for _, one := range []struct {
		sum **float64
		n   *float64
	}{{&t.In, o.In}, {&t.Out, o.Out}, {&t.Failed, o.Failed}} {
		if one.n == nil {
			continue
		}
		if *one.sum == nil {
			*one.sum = new(float64)
		}
		**one.sum += *one.n
	}
}

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
}

// CountOf returns the number of jobs in a state.
func (t *topicRow) CountOf(s delayq.State) int64 {
	return map[delayq.State]int64{
		delayq.StateScheduled: t.Scheduled, delayq.StateReady: t.Ready, delayq.StateRunning: t.Running,
		delayq.StateDead: t.Dead, delayq.StateDone: t.Done,
	}[s]
}

func (h *Handler) jobs(v *view) (any, error) {
	f, err := v.filter()
	if err != nil {
		return nil, err
	}
	row, err := h.row(v)
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
	if err != nil {
		return nil, err
	}
	v.Now = page.At
	p := &jobsPage{
		Schema: "delayq.web.jobs/1", At: utc(page.At), Topic: v.Topic, State: f.query.State, Total: page.Total, Examined: page.Examined,
		Jobs: []jobRecord{}, Next: page.Next, Row: row, Filter: f, Tabs: states,
	}
	headers := h.may(v, RightPayload, v.Topic) == nil && !h.o.rule(v.Topic).redacted
	for _, j := range page.Jobs {
		p.Jobs = append(p.Jobs, record(j, headers))
	}
	p.FirstURL = "jobs?" + f.values().Encode()
	if page.Next != "" {
		next := page.filter.values()
		next.Set("cursor", string(page.Next))
		p.NextURL = "jobs?" + next.Encode()
	}
	for _, act := range actNames {
		if slices.Contains(acts[act].states, p.State) && v.Can(string(acts[act].right)) {
			p.Acts = append(p.Acts, act)
		}
	}
	return p, nil
}

type reasonRow struct {
	Code delayq.ReasonCode `json:"code"`
	Text string            `json:"text"`
}

type jobPage struct {
	Schema  string        `json:"schema"`
	At      time.Time     `json:"at"`
	Verdict string        `json:"verdict"`
	Reasons []reasonRow   `json:"reasons"`
	Job     *jobRecord    `json:"job"` // null if there is none
	Payload *shownPayload `json:"payload,omitempty"`
	Links   []Link        `json:"links,omitempty"`
	ID      string        `json:"-"`
	Show    string        `json:"-"` // how the payload is shown: decoded, raw or hex
	Acts    []string      `json:"-"`
	Headers []string      `json:"-"` // their names, sorted
}

// A look is what is read about a job.
type look struct {
	explained *delayq.Explanation
	info      *delayq.JobInfo // with its payload; nil if there is none
}

func (h *Handler) look(ctx context.Context, topic, id string) (*look, error) {
	return read(h, ctx, "job\x00"+topic+"\x00"+id, func(ctx context.Context) (*look, error) {
		e, err := h.insp.Explain(ctx, topic, id)
		if err != nil || e.Job == nil {
			return &look{explained: e}, err
		}
		info, err := h.insp.Job(ctx, topic, id)
		if errors.Is(err, delayq.ErrNotFound) { // it has gone since
			info, err = nil, nil
		}
		return &look{e, info}, err
	})
}

func (h *Handler) job(v *view) (any, error) {
	id := v.query.Get("id")
	l, err := h.look(v.Request.Context(), v.Topic, id)
	if err != nil {
		return nil, err
	}
	v.Now = l.explained.At
	p := &jobPage{Schema: "delayq.web.job/1", At: utc(l.explained.At), Verdict: l.explained.Verdict, Reasons: []reasonRow{}, ID: id, Show: "decoded"}
	for _, r := range l.explained.Reasons {
		p.Reasons = append(p.Reasons, reasonRow{r.Code, r.Text})
	}
	info := cmp.Or(l.info, l.explained.Job)
	if info == nil {
		v.Status = http.StatusNotFound
		return p, nil
	}
	rule := h.o.rule(v.Topic)
	opened := h.may(v, RightPayload, v.Topic) == nil
	job := record(info, opened && !rule.redacted)
	p.Job = &job
	for name := range job.Headers {
		p.Headers = append(p.Headers, name)
	}
	slices.Sort(p.Headers)
	if opened && l.info != nil && info.Undecodable == nil {
		shown := rule.show(v.Topic, info.Payload)
		p.Payload = &shown
	}
	if show := v.query.Get("show"); show == "raw" || show == "hex" {
		p.Show = show
	}
	if h.o.links != nil {
		about := *info
		if !opened || rule.redacted {
			about.Payload, about.Headers, about.Raw = nil, nil, nil
		}
		p.Links = h.o.links(&about)
		p.Links = p.Links[:min(len(p.Links), 10)]
	}
	for _, act := range actNames {
		if slices.Contains(acts[act].states, info.State) && v.Can(string(acts[act].right)) {
			p.Acts = append(p.Acts, act)
		}
	}
	return p, nil
}

// RawText returns the stored bytes as text.
func (p *shownPayload) RawText() string { return strings.ToValidUTF8(string(p.Raw), "\uFFFD") }

// payload sends all of a payload as a file.
func (h *Handler) payload(v *view) (any, error) {
	if h.o.rule(v.Topic).redacted {
		return nil, &refusal{http.StatusForbidden, v.T("error.redacted")}
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
		if slices.Contains(acts[act].states, p.State) {
			p.Acts = append(p.Acts, act)
		}
	}
	v.Now = time.Now()
	return p, nil
}

type serverRow struct {
	ID      string             `json:"id"`
	Host    string             `json:"host"`
	PID     int                `json:"pid"`
	State   delayq.ServerState `json:"state"`
	Version string             `json:"version"`
	Started time.Time          `json:"started_at"`
	Seen    time.Time          `json:"seen_at"`
	Workers int                `json:"workers"`
	Running int                `json:"running"`
	Topics  []serverTopic      `json:"topics"`
}

type serverTopic struct {
	Topic   string       `json:"topic"`
	Workers int          `json:"workers"`
	Running int          `json:"running"`
	Taken   float64      `json:"taken_per_second"`
	Loops   []loopRow    `json:"loops"`
	Longest []longestRow `json:"longest,omitempty"`
}

type loopRow struct {
	Name string  `json:"name"`
	Age  float64 `json:"age_seconds"`
}

// Long returns the age of the last iteration.
func (l loopRow) Long() time.Duration { return time.Duration(l.Age * float64(time.Second)) }

type longestRow struct {
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
}

type serversPage struct {
	Schema  string      `json:"schema"`
	Servers []serverRow `json:"servers"`
	Mixed   bool        `json:"mixed_versions"`
}

func (h *Handler) servers(v *view) (any, error) {
	list, err := read(h, v.Request.Context(), "servers", func(ctx context.Context) ([]delayq.ServerInfo, error) {
		return h.insp.Servers(ctx)
	})
	if err != nil {
		return nil, err
	}
	p := &serversPage{Schema: "delayq.web.servers/1", Servers: []serverRow{}}
	versions := make(map[string]bool)
	for _, s := range list {
		r := serverRow{
			ID: s.ID, Host: s.Host, PID: s.PID, State: s.State, Version: s.Version, Started: utc(s.StartedAt), Seen: utc(s.SeenAt), Topics: []serverTopic{},
		}
		if s.SeenAt.After(v.Now) || len(p.Servers) == 0 {
			v.Now = s.SeenAt
		}
		versions[s.Version] = true
		for topic, status := range s.Topics {
			if !h.sees(v, topic) {
				continue
			}
			t := serverTopic{Topic: topic, Workers: status.Workers, Running: status.Running}
			if status.Within > 0 {
				t.Taken = float64(status.Taken) / status.Within.Seconds()
			}
			for name, age := range status.Loops {
				t.Loops = append(t.Loops, loopRow{name, age.Seconds()})
			}
			slices.SortFunc(t.Loops, func(a, b loopRow) int { return cmp.Compare(a.Name, b.Name) })
			for _, job := range status.Longest {
				t.Longest = append(t.Longest, longestRow{job.ID, utc(s.SeenAt.Add(-job.Running))})
			}
			r.Workers, r.Running = r.Workers+t.Workers, r.Running+t.Running
			r.Topics = append(r.Topics, t)
		}
		slices.SortFunc(r.Topics, func(a, b serverTopic) int { return cmp.Compare(a.Topic, b.Topic) })
		p.Servers = append(p.Servers, r)
	}
	slices.SortFunc(p.Servers, func(a, b serverRow) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID)) })
	p.Mixed = len(versions) > 1
	return p, nil
}

type scheduleRow struct {
	Topic     string               `json:"topic"`
	Name      string               `json:"name"`
	Spec      string               `json:"spec"`
	Zone      string               `json:"zone,omitempty"`
	State     delayq.ScheduleState `json:"state"`
	Next      time.Time            `json:"next_slot,omitzero"`
	Waiting   time.Time            `json:"waiting_slot,omitzero"`
	LastSlot  time.Time            `json:"last_slot,omitzero"`
	LastJob   string               `json:"last_job,omitempty"`
	Outcome   string               `json:"last_outcome,omitempty"`
	LastError string               `json:"last_error,omitempty"`
	Fired     int64                `json:"fired"`
	Skipped   int64                `json:"skipped"`
	Missed    int64                `json:"missed"`
	Attempts  int64                `json:"attempts"`
	Failures  int64                `json:"failures"`
	Overlap   string               `json:"on_overlap"`
	OnMissed  string               `json:"on_missed"`
	Created   time.Time            `json:"created_at,omitzero"`
	Changed   time.Time            `json:"changed_at,omitzero"`
	EditedBy  string               `json:"edited_by,omitempty"`
	Edited    []string             `json:"edited,omitempty"`
	Size      int                  `json:"payload_size"`
	Bad       string               `json:"undecodable,omitempty"`
}

func scheduleOf(s *delayq.ScheduleInfo) scheduleRow {
	r := scheduleRow{
		Topic: s.Topic, Name: s.Name, Spec: s.Spec.String(), Zone: s.Zone, State: s.State, Next: utc(s.NextSlot), Waiting: utc(s.WaitingSlot),
		LastSlot: utc(s.LastSlot), LastJob: s.LastJobID, Fired: s.Fired, Skipped: s.Skipped, Missed: s.Missed, Attempts: s.Attempts,
		Failures: s.Failures, Overlap: s.OnOverlap.String(), OnMissed: s.OnMissed.String(), Created: utc(s.CreatedAt), Changed: utc(s.ChangedAt),
		EditedBy: s.EditedBy, Edited: s.Edited, Size: s.PayloadSize,
	}
	if s.LastRun != nil {
		r.Outcome, r.LastError = string(s.LastRun.Outcome), s.LastRun.Error
	}
	if s.Undecodable != nil {
		r.Bad = s.Undecodable.Error()
	}
	return r
}

type schedulesPage struct {
	Schema    string        `json:"schema"`
	Topic     string        `json:"topic,omitempty"`
	Schedules []scheduleRow `json:"schedules"`
	Skipped   int           `json:"topics_left_out,omitempty"`
}

func (h *Handler) schedules(v *view) (any, error) {
	p := &schedulesPage{Schema: "delayq.web.schedules/1", Topic: v.Topic, Schedules: []scheduleRow{}}
	topics := []string{v.Topic}
	list, err := h.visibleTopics(v)
	if err != nil {
		return nil, err
	}
	v.Now = list.At
	if v.Topic == "" {
		topics = nil
		for _, t := range list.rows {
			if t.Schedules > 0 {
				topics = append(topics, t.Topic)
			}
		}
		if len(topics) > previewRows {
			topics, p.Skipped = topics[:previewRows], len(topics)-previewRows
		}
	}
	for _, topic := range topics {
		some, err := read(h, v.Request.Context(), "schedules\x00"+topic, func(ctx context.Context) ([]*delayq.ScheduleInfo, error) {
			return h.insp.Schedules(ctx, topic)
		})
		if err != nil {
			return nil, err
		}
		for _, s := range some {
			p.Schedules = append(p.Schedules, scheduleOf(s))
		}
	}
	return p, nil
}

type runRow struct {
	Slot      time.Time `json:"slot"`
	Triggered bool      `json:"triggered,omitempty"`
	JobID     string    `json:"job_id"`
	Attempt   int       `json:"attempt"`
	Started   time.Time `json:"started_at,omitzero"`
	Finished  time.Time `json:"finished_at,omitzero"`
	Server    string    `json:"server,omitempty"`
	Outcome   string    `json:"outcome"`
	Error     string    `json:"error,omitempty"`
}

type schedulePage struct {
	Schema  string        `json:"schema"`
	Row     scheduleRow   `json:"schedule"`
	Payload *shownPayload `json:"payload,omitempty"`
	Runs    []runRow      `json:"runs"`
}

func (h *Handler) schedule(v *view) (any, error) {
	name := v.query.Get("name")
	type both struct {
		info *delayq.ScheduleInfo
		runs []delayq.RunInfo
	}
	b, err := read(h, v.Request.Context(), "schedule\x00"+v.Topic+"\x00"+name, func(ctx context.Context) (b both, err error) {
		if b.info, err = h.insp.Schedule(ctx, v.Topic, name); err == nil {
			b.runs, err = h.insp.Runs(ctx, v.Topic, name, runsShown)
		}
		return b, err
	})
	if err != nil {
		return nil, err
	}
	p := &schedulePage{Schema: "delayq.web.schedule/1", Row: scheduleOf(b.info), Runs: []runRow{}}
	if h.may(v, RightPayload, v.Topic) == nil && b.info.Undecodable == nil {
		rule := h.o.rule(v.Topic)
		shown := rule.show(v.Topic, b.info.Payload)
		p.Payload = &shown
	}
	for _, r := range b.runs {
		p.Runs = append(p.Runs, runRow{utc(r.Slot), r.Triggered, r.JobID, r.Attempt, utc(r.StartedAt), utc(r.FinishedAt), r.Server, string(r.Outcome), r.Error})
	}
	return p, nil
}

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

type redisPage struct {
	Schema    string    `json:"schema"`
	Version   string    `json:"version"`
	Mode      string    `json:"mode"`
	Role      string    `json:"role"`
	Replicas  int       `json:"replicas"`
	Clients   int       `json:"clients"`
	Used      int64     `json:"used_memory_bytes"`
	Max       int64     `json:"max_memory_bytes"`
	Eviction  string    `json:"eviction"`
	AOF       bool      `json:"aof"`
	FSync     string    `json:"fsync,omitempty"`
	Snapshots string    `json:"snapshots,omitempty"`
	Last      time.Time `json:"last_snapshot,omitzero"`
	Time      time.Time `json:"time,omitzero"`
	Trip      float64   `json:"round_trip_seconds"`
	Missing   []string  `json:"missing,omitempty"`
	Warnings  []string  `json:"warnings"`

	Outboxes []outboxRow `json:"outboxes,omitempty"`
}

// RoundTrip returns the time of one small call.
func (p *redisPage) RoundTrip() time.Duration { return time.Duration(p.Trip * float64(time.Second)) }

// Knows reports whether Redis told a field of [delayq.RedisInfo].
func (p *redisPage) Knows(field string) bool { return !slices.Contains(p.Missing, field) }

// Memory returns bytes in MiB.
func (p *redisPage) Memory(n int64) string {
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
}

func (h *Handler) redisInfo(ctx context.Context) (*delayq.RedisInfo, error) {
	return read(h, ctx, "redis", func(ctx context.Context) (*delayq.RedisInfo, error) { return h.insp.Redis(ctx) })
}

func (h *Handler) redis(v *view) (any, error) {
	i, err := h.redisInfo(v.Request.Context())
	if err != nil {
		return nil, err
	}
	if !i.Time.IsZero() {
		v.Now = i.Time
	}
	rows, err := h.outboxes(v.Request.Context())
	if err != nil {
		return nil, err
	}
	return &redisPage{
		"delayq.web.redis/1", i.Version, i.Mode, i.Role, i.Replicas, i.Clients, i.UsedMemory, i.MaxMemory, i.Eviction, i.AOF, i.FSync,
		i.Snapshots, utc(i.LastSnapshot), utc(i.Time), i.RoundTrip.Seconds(), i.Missing, append([]string{}, v.warnings(i)...), rows,
	}, nil
}

// warnings returns what endangers the queue.
func (v *view) warnings(i *delayq.RedisInfo) (list []string) {
	if i.Eviction != "" && i.Eviction != "noeviction" {
		list = append(list, v.T("redis.evicts", i.Eviction))
	}
	if i.MaxMemory > 0 && i.UsedMemory > i.MaxMemory/10*9 {
		list = append(list, v.T("redis.full", number(i.UsedMemory*100/i.MaxMemory)))
	}
	if !i.AOF && i.Snapshots == "" && !slices.Contains(i.Missing, "AOF") && !slices.Contains(i.Missing, "Snapshots") {
		list = append(list, v.T("redis.forgets"))
	}
	return list
}

type helpPage struct {
	Schema string   `json:"schema"`
	Pages  []string `json:"pages"`
}

func (h *Handler) help(*view) (any, error) {
	p := &helpPage{Schema: "delayq.web.help/1"}
	for name, rt := range routes {
		if rt.show != nil && !rt.acts {
			p.Pages = append(p.Pages, name)
		}
	}
	slices.Sort(p.Pages)
	return p, nil
}
