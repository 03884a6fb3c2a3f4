package web

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

type overviewPage struct {
	Schema  string     `json:"schema"`
	At      time.Time  `json:"at"`
	Trouble []trouble  `json:"trouble"`
	Sum     topicRow   `json:"totals"` // of the topics that are selected
	Topics  []topicRow `json:"topics"`
	Groups  []groupRow `json:"groups,omitempty"` // in place of the topics, if that is asked for
	More    int        `json:"more_topics,omitempty"`
	Has     string     `json:"-"` // what names of topics contain
	In      string     `json:"-"` // how they begin
	Sort    string     `json:"-"`
	Grouped bool       `json:"-"`
	All     int        `json:"-"` // topics, selected or not
}

// A groupRow is the sum of the topics whose names begin with the same word.
type groupRow struct {
	Prefix string `json:"prefix"` // with the character that ends the word; empty: the topic is one of its own
	Count  int    `json:"count"`  // of topics
	topicRow
}

// topicOrders are the columns by which topics can be sorted. Numbers have the largest first, and
// times the earliest.
var topicOrders = map[string]func(a, b *topicRow) int{
	"topic":     func(a, b *topicRow) int { return strings.Compare(a.Topic, b.Topic) },
	"status":    func(a, b *topicRow) int { return cmp.Compare(urgency(a.Status), urgency(b.Status)) },
	"scheduled": func(a, b *topicRow) int { return cmp.Compare(b.Scheduled, a.Scheduled) },
	"ready":     func(a, b *topicRow) int { return cmp.Compare(b.Ready, a.Ready) },
	"running":   func(a, b *topicRow) int { return cmp.Compare(b.Running, a.Running) },
	"retrying":  func(a, b *topicRow) int { return cmp.Compare(b.Retrying, a.Retrying) },
	"dead":      func(a, b *topicRow) int { return cmp.Compare(b.Dead, a.Dead) },
	"oldest":    func(a, b *topicRow) int { return cmp.Compare(b.OldestAge(), a.OldestAge()) },
	"hour":      func(a, b *topicRow) int { return cmp.Compare(b.DueHour, a.DueHour) },
	"next": func(a, b *topicRow) int {
		if a.NextDue.IsZero() != b.NextDue.IsZero() { // those without one are the last
			return cmp.Compare(b.NextDue.Unix(), a.NextDue.Unix())
		}
		return a.NextDue.Compare(b.NextDue)
	},
}

// urgencies lists the states of a topic, the most urgent first.
var urgencies = []string{topicNoServer, topicBehind, topicHeld, topicPaused, topicRunning, topicIdle}

func urgency(status string) int { return slices.Index(urgencies, status) }

// wordOf returns the first word of the name of a topic with the character that ends it, or "".
func wordOf(topic string) string {
	if i := strings.IndexAny(topic, ":./"); i > 0 && i < len(topic)-1 {
		return topic[:i+1]
	}
	return ""
}

func (h *Handler) overview(v *view) (any, error) {
	list, err := h.visibleTopics(v)
	if err != nil {
		return nil, err
	}
	p := &overviewPage{
		Schema: "delayq.web.topics/1", At: utc(list.At), Trouble: []trouble{}, Topics: []topicRow{}, All: len(list.rows),
		Has: v.query.Get("q"), In: v.query.Get("in"), Sort: cmp.Or(v.query.Get("sort"), "topic"), Grouped: v.query.Get("group") == "1",
	}
	column, reversed := strings.CutPrefix(p.Sort, "-")
	order := topicOrders[column]
	if order == nil {
		return nil, mistake("sort", "%q: must be one of %s", p.Sort, strings.Join(slices.Sorted(maps.Keys(topicOrders)), ", "))
	}
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
	has := strings.ToLower(p.Has)
	for _, t := range list.rows {
		if strings.Contains(strings.ToLower(t.Topic), has) && strings.HasPrefix(t.Topic, p.In) {
			p.Topics = append(p.Topics, t)
			p.Sum.add(&t)
		}
	}
	if len(p.Topics) > topicsShown && !p.Grouped {
		if column == "topic" { // the ones in trouble and the busiest stay
			slices.SortStableFunc(p.Topics, func(a, b topicRow) int {
				return cmp.Or(cmp.Compare(b.Overdue, a.Overdue), cmp.Compare(b.Dead, a.Dead), cmp.Compare(b.Scheduled, a.Scheduled))
			})
		} else {
			sortTopics(p.Topics, order, reversed)
		}
		p.Topics, p.More = p.Topics[:topicsShown], len(p.Topics)-topicsShown
	}
	if p.Grouped {
		p.Groups, p.Topics = groupsOf(p.Topics), []topicRow{}
		slices.SortStableFunc(p.Groups, func(a, b groupRow) int { return signed(order(&a.topicRow, &b.topicRow), reversed) })
		if len(p.Groups) > topicsShown {
			p.Groups, p.More = p.Groups[:topicsShown], len(p.Groups)-topicsShown
		}
	}
	sortTopics(p.Topics, order, reversed)
	return p, nil
}

func signed(n int, reversed bool) int {
	if reversed {
		return -n
	}
	return n
}

func sortTopics(list []topicRow, order func(a, b *topicRow) int, reversed bool) {
	slices.SortStableFunc(list, func(a, b topicRow) int { return signed(order(&a, &b), reversed) })
}

// groupsOf adds up topics by their first words. A word of one topic alone is no group.
func groupsOf(topics []topicRow) (list []groupRow) {
	size := make(map[string]int)
	for i := range topics {
		size[wordOf(topics[i].Topic)]++
	}
	at := make(map[string]int)
	for i := range topics {
		t := &topics[i]
		word := wordOf(t.Topic)
		if word == "" || size[word] == 1 {
			list = append(list, groupRow{"", 1, *t})
			continue
		}
		n, begun := at[word]
		if !begun {
			n, at[word] = len(list), len(list)
			list = append(list, groupRow{Prefix: word, topicRow: topicRow{Topic: word, Status: t.Status, at: t.at, Spark: make([]int64, len(t.Spark))}})
		}
		g := &list[n]
		g.Count++
		g.add(t)
		if urgency(t.Status) < urgency(g.Status) {
			g.Status = t.Status
		}
		if g.NextDue.IsZero() || !t.NextDue.IsZero() && t.NextDue.Before(g.NextDue) {
			g.NextDue = t.NextDue
		}
		if g.Oldest.IsZero() || !t.Oldest.IsZero() && t.Oldest.Before(g.Oldest) {
			g.Oldest = t.Oldest
		}
		for step := range min(len(g.Spark), len(t.Spark)) {
			g.Spark[step] += t.Spark[step]
		}
	}
	return list
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

// What follows is for templates.

// Rows returns the rows of the table: topics or groups.
func (p *overviewPage) Rows() []groupRow {
	if p.Grouped {
		return p.Groups
	}
	rows := make([]groupRow, len(p.Topics))
	for i, t := range p.Topics {
		rows[i] = groupRow{"", 1, t}
	}
	return rows
}

// Narrowed reports whether the page shows a part of the topics.
func (p *overviewPage) Narrowed() bool { return p.Has != "" || p.In != "" }

// A heading is that of a column by which topics can be sorted.
type heading struct {
	Name, URL, Text string
	Sorted          string // ascending or descending, as screen readers say it; empty: by another column
}

// Headings returns the columns of the table.
func (v *view) Headings(p *overviewPage) (list []heading) {
	for _, one := range []struct{ name, text string }{
		{"topic", "col.topic"}, {"status", "col.status"}, {"scheduled", "state.scheduled"}, {"ready", "state.ready"}, {"running", "state.running"},
		{"retrying", "col.retrying"}, {"dead", "state.dead"}, {"oldest", "col.oldest"}, {"next", "col.next"}, {"hour", "col.hour"},
	} {
		c := heading{Name: one.name, Text: v.Label(one.text)}
		to := one.name
		upward := one.name == "topic" || one.name == "status" || one.name == "next"
		if p.Sort == one.name || p.Sort == "-"+one.name {
			if p.Sort == one.name {
				to = "-" + one.name
			}
			c.Sorted = "descending"
			if upward == (p.Sort == one.name) {
				c.Sorted = "ascending"
			}
		}
		c.URL = v.SelfWith("sort", to)
		list = append(list, c)
	}
	return list
}

// GroupURL is the link that shows groups, or topics again.
func (v *view) GroupURL(p *overviewPage) string {
	q := v.changed("", "")
	if p.Grouped {
		delete(q, "group")
	} else {
		q = url.Values(maps.Clone(map[string][]string(q)))
		q.Set("group", "1")
		delete(q, "in")
	}
	if len(q) == 0 {
		return "topics"
	}
	return "topics?" + q.Encode()
}

// InURL is the link to the topics of a group.
func (v *view) InURL(prefix string) string {
	q := v.changed("in", prefix)
	delete(q, "group")
	return "topics?" + q.Encode()
}
