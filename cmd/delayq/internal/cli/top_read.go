package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/delayq/delayq"
)

const (
	forecastEvery  = 10 * time.Second
	forecastSteps  = 12
	forecastStep   = 5 * time.Minute
	forecastTopics = 200 // topics at the top of the list that have a forecast

	failureTopics = 20    // topics with the most failures that are looked at
	failureBudget = 500   // jobs of each that are looked at
	scheduleRows  = 5_000 // schedules that are listed at most
)

// every is how often the rows of a screen are read while it is shown.
func (k screenKind) every() time.Duration {
	switch k {
	case topicsScreen:
		return 0 // they are the numbers of all topics
	case failuresScreen, schedulesScreen:
		return 10 * time.Second
	}
	return time.Second
}

// readStats reads the numbers of all topics, unless a call is in flight. It is the only call of
// each tick.
func (m *top) readStats() tea.Cmd {
	if m.reading {
		return nil
	}
	m.reading = true
	return m.do(func(ctx context.Context) tea.Msg {
		stats, err := m.insp.Stats(ctx)
		return topSample{stats, err, time.Now()}
	})
}

// readForecast reads how many jobs fall due in the next hour, for the topics at the top, and how
// Redis is.
func (m *top) readForecast() tea.Cmd {
	if m.err != nil || m.now.Sub(m.forecasted) < forecastEvery {
		return nil
	}
	var names []string
	due := map[string][]int64{}
	for _, t := range m.sorted(m.tabs[topicsScreen]) {
		if t.Scheduled == 0 {
			due[t.Topic] = make([]int64, forecastSteps)
		} else if len(names) < forecastTopics {
			names = append(names, t.Topic)
		}
	}
	m.forecasted = m.now
	at := m.at
	return m.do(func(ctx context.Context) tea.Msg {
		lists := make([][]int64, len(names))
		errs := side(len(names), func(i int) (err error) {
			lists[i], err = m.insp.Forecast(ctx, names[i], at, forecastStep, forecastSteps)
			return err
		})
		for i, name := range names {
			if errs[i] == nil { // otherwise the numbers of all topics have the same error
				due[name] = lists[i]
			}
		}
		info, err := m.insp.Redis(ctx)
		if err != nil {
			info = nil
		}
		return topForecast{due, info}
	})
}

// reload reads the rows of a screen if they are old.
func (m *top) reload(s *topScreen) tea.Cmd {
	if every := s.kind.every(); every == 0 || s.loading || m.err != nil || m.now.Sub(s.loaded) < every && !s.loaded.IsZero() {
		return nil
	}
	var read func(ctx context.Context) (apply func(), err error)
	switch s.kind {
	case failuresScreen:
		read = m.readFailures(s)
	case serversScreen:
		read = func(ctx context.Context) (func(), error) {
			found, err := m.insp.Servers(ctx)
			list := make([]*serverRecord, len(found))
			for i := range found {
				list[i] = serverOf(&found[i])
			}
			slices.SortFunc(list, func(x, y *serverRecord) int { // the oldest first
				return cmp.Or(time.Time(x.Started).Compare(time.Time(y.Started)), strings.Compare(x.ID, y.ID))
			})
			return func() { s.servers = list }, err
		}
	case schedulesScreen:
		read = m.readSchedules(s)
	case jobsScreen:
		q := s.query
		read = func(ctx context.Context) (func(), error) {
			page, err := m.insp.Jobs(ctx, q)
			if err != nil {
				return nil, err
			}
			list := make([]*jobRecord, len(page.Jobs))
			for i, info := range page.Jobs {
				list[i] = jobOf(info, false)
			}
			return func() {
				if s.query.Cursor == q.Cursor && s.query.State == q.State { // it still shows this page
					s.jobs, s.next, s.total, s.examined = list, page.Next, page.Total, page.Examined
				}
			}, nil
		}
	case textScreen:
		read = func(ctx context.Context) (func(), error) {
			show, job, err := s.read(ctx)
			return func() { s.show, s.job = show, job }, err
		}
	}
	s.loading = true
	return m.do(func(ctx context.Context) tea.Msg {
		apply, err := read(ctx)
		return topLoaded{s, apply, err, time.Now()}
	})
}

// readFailures groups the failed jobs of the topics that have the most.
func (m *top) readFailures(s *topScreen) func(context.Context) (func(), error) {
	type part struct {
		topic string
		state delayq.State
		jobs  int64
	}
	var parts []part
	for _, name := range m.names {
		t := m.topics[name]
		for _, p := range []part{{name, delayq.StateDead, t.Dead}, {name, delayq.StateScheduled, min(t.Retrying, t.Scheduled)}} {
			if p.jobs > 0 {
				parts = append(parts, p)
			}
		}
	}
	slices.SortStableFunc(parts, func(x, y part) int { return cmp.Compare(y.jobs, x.jobs) })
	parts = parts[:min(len(parts), failureTopics)]
	return func(ctx context.Context) (func(), error) {
		found := make([]*delayq.Failures, len(parts))
		errs := side(len(parts), func(i int) (err error) {
			found[i], err = m.insp.Failures(ctx, parts[i].topic, parts[i].state, failureBudget)
			return err
		})
		var list []topFailure
		note := ""
		for i, f := range found {
			if f == nil {
				continue
			}
			for _, g := range f.Groups {
				list = append(list, topFailure{parts[i].topic, parts[i].state, g})
			}
			if int64(f.Examined) < f.Total {
				note = "of up to " + number(failureBudget) + " jobs of a topic; delayq failures looks at more"
			}
		}
		slices.SortStableFunc(list, func(x, y topFailure) int { return cmp.Compare(y.Count, x.Count) })
		return func() { s.failures, s.note = list, note }, errors.Join(errs...)
	}
}

// readSchedules lists the schedules of all topics.
func (m *top) readSchedules(s *topScreen) func(context.Context) (func(), error) {
	var topics []string
	left, note := int64(scheduleRows), ""
	for _, name := range m.names {
		switch n := m.topics[name].Schedules; {
		case n == 0:
		case n > left:
			note = "not all topics; delayq schedules TOPIC lists the others"
		default:
			left -= n
			topics = append(topics, name)
		}
	}
	return func(ctx context.Context) (func(), error) {
		found := make([][]*delayq.ScheduleInfo, len(topics))
		errs := side(len(topics), func(i int) (err error) {
			found[i], err = m.insp.Schedules(ctx, topics[i])
			return err
		})
		var list []*scheduleRecord
		for _, infos := range found {
			for _, info := range infos {
				list = append(list, scheduleOf(info, false))
			}
		}
		return func() { s.schedules, s.note = list, note }, errors.Join(errs...)
	}
}

// jobText shows everything about a job.
func (m *top) jobText(topic, id string) *topScreen {
	return &topScreen{kind: textScreen, topic: topic, title: topic + " " + idText(id), read: func(ctx context.Context) (topShow, *jobRecord, error) {
		info, err := m.insp.Job(ctx, topic, id)
		if err != nil {
			return nil, nil, err
		}
		r := jobOf(info, true)
		return func(a *app, w io.Writer) error { return a.showJob(w, r) }, r, nil
	}}
}

// explainText says why a job is not running.
func (m *top) explainText(topic, id string) *topScreen {
	return &topScreen{kind: textScreen, explains: true, topic: topic, title: "explain " + topic + " " + idText(id), read: func(ctx context.Context) (topShow, *jobRecord, error) {
		found, err := m.insp.Explain(ctx, topic, id)
		if err != nil {
			return nil, nil, err
		}
		r := explanationOf(topic, id, found)
		return func(a *app, w io.Writer) error { return a.showExplanation(w, r) }, r.Job, nil
	}}
}

// serverText shows everything about a server.
func (m *top) serverText(id string) *topScreen {
	return &topScreen{kind: textScreen, title: "server " + id, read: func(ctx context.Context) (topShow, *jobRecord, error) {
		found, err := m.insp.Servers(ctx)
		if err != nil {
			return nil, nil, err
		}
		for i := range found {
			if found[i].ID == id {
				r := serverOf(&found[i])
				return func(a *app, w io.Writer) error { return a.showServer(w, r) }, nil, nil
			}
		}
		return nil, nil, delayq.ErrNotFound
	}}
}

// scheduleText shows everything about a schedule.
func (m *top) scheduleText(topic, name string) *topScreen {
	return &topScreen{kind: textScreen, title: topic + " " + name, read: func(ctx context.Context) (topShow, *jobRecord, error) {
		info, err := m.insp.Schedule(ctx, topic, name)
		if err != nil {
			return nil, nil, err
		}
		r := scheduleOf(info, true)
		return func(a *app, w io.Writer) error { return a.showSchedule(w, r) }, nil, nil
	}}
}
