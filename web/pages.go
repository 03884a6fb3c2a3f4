package web

import (
	"context"
	"slices"
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
	Parcels   int64            `json:"parcels,omitempty"` // handed over by its runs, on their way
	Parcel    time.Time        `json:"oldest_parcel,omitzero"`
	NextDue   time.Time        `json:"next_due,omitzero"`
	Servers   int              `json:"servers"`
	Workers   int              `json:"workers"`
	Schedules int64            `json:"schedules"`
	Keyed     int64            `json:"ready_with_key,omitempty"`
	Keys      int64            `json:"keys,omitempty"` // that take turns; jobs without one are one more
	Pauses    []pauseRow       `json:"pauses,omitempty"`
	HeldUntil time.Time        `json:"held_until,omitzero"`
	HeldBy    string           `json:"held_by,omitempty"`
	HeldWhy   string           `json:"held_reason,omitempty"`
	LimitRun  int              `json:"limit_running,omitempty"`
	LimitRate string           `json:"limit_rate,omitempty"`
	KeyRun    int              `json:"limit_running_per_key,omitempty"`
	KeyRate   string           `json:"limit_rate_per_key,omitempty"`
	New       bool             `json:"new,omitempty"` // it is not among the topics yet
	DueHour   int64            `json:"due_within_hour"`
	Spark     []int64          `json:"due_by_6_minutes,omitempty"`
	In        *float64         `json:"enqueued_per_second,omitempty"` // nil: not known yet
	Out       *float64         `json:"finished_per_second,omitempty"`
	Failed    *float64         `json:"failed_per_second,omitempty"`
	DeadMore  int64            `json:"dead_more,omitempty"` // buried within the last minute of looking
	Counters  map[string]int64 `json:"counters,omitempty"`
	Parts     *partsRow        `json:"partitions,omitempty"` // none: the topic is not divided
	at        time.Time
	perKey    delayq.Limits // all limits of the topic
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

// visibleTopics returns the topics that the request may see.
func (h *Handler) visibleTopics(v *view) (*topicList, error) {
	all, err := h.topicList(v.Request.Context())
	if err != nil {
		return nil, err
	}
	list := &topicList{At: all.At}
	for _, t := range all.rows {
		if h.views(v, t.Topic) {
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
		Overdue: s.Overdue, Oldest: utc(s.OldestOverdue), Parcels: s.Parcels, Parcel: utc(s.OldestParcel), NextDue: utc(s.NextDue), Servers: s.Servers, Workers: s.Workers,
		Schedules: s.Schedules, Keyed: s.Keyed, Keys: s.Keys, HeldUntil: utc(s.HeldUntil), HeldBy: s.HeldBy, HeldWhy: s.HeldReason, LimitRun: s.Limits.Running,
		LimitRate: rateText(s.Limits.Rate), KeyRun: s.Limits.RunningPerKey, KeyRate: rateText(s.Limits.RatePerKey), perKey: s.Limits,
		Counters: make(map[string]int64), Parts: partsOf(s.Partitions), at: s.At,
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
