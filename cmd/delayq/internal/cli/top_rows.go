package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// A topRow is a row of a screen, and what the keys act on.
type topRow struct {
	key      string // by which the selection finds it again
	cells    []string
	open     func() *topScreen // what enter opens; nil: nothing
	topic    string
	job      *jobRecord
	schedule *scheduleRecord
	failure  *topFailure
}

// columns returns the columns of a screen.
func (m *top) columns(s *topScreen) []topColumn {
	switch s.kind {
	case failuresScreen:
		return []topColumn{{head: "TOPIC", least: 12}, {head: "STATE", drop: 2}, {head: "JOBS", right: true, least: 6}, {head: "LAST", right: true, least: 6}, {head: "KEY", drop: 1}, {head: "ERROR", least: 20}}
	case serversScreen:
		return []topColumn{
			{head: "ID", least: 12}, {head: "HOST", drop: 1}, {head: "PID", right: true, drop: 4}, {head: "TOPICS", right: true, drop: 3},
			{head: "RUNNING", right: true, least: 7}, {head: "UP", right: true, least: 6}, {head: "SEEN", right: true, least: 6, drop: 2}, {head: "STATE"},
		}
	case schedulesScreen:
		return []topColumn{
			{head: "TOPIC", least: 12}, {head: "NAME", least: 10}, {head: "SPEC", least: 12}, {head: "NEXT IN", right: true, least: 7},
			{head: "LAST RUN", drop: 1}, {head: "FIRED", right: true, least: 6, drop: 2}, {head: "STATE", least: 8},
		}
	case jobsScreen:
		columns := []topColumn{
			{head: "ID", least: 16}, {head: jobHeads[s.query.State], right: true, least: 10}, {head: "ATTEMPT", right: true}, {head: "LEFT", right: true, least: 9, drop: 2},
			{head: "SIZE", right: true, least: 8, drop: 1}, {head: "WHY DUE", drop: 3}, {head: "LAST ERROR"},
		}
		if s.query.State == delayq.StateRunning {
			columns[5] = topColumn{head: "PROGRESS"}
		}
		return columns
	}
	columns := []topColumn{
		{head: "TOPIC", least: 16}, {head: "SCHED", right: true, least: 7}, {head: "READY", right: true, least: 7}, {head: "RUN", right: true, least: 6},
		{head: "RETRY", right: true, least: 6, drop: 4}, {head: "DEAD", right: true, least: 5}, {head: "IN/s", right: true, least: 5, drop: 2},
		{head: "OUT/s", right: true, least: 5}, {head: "FAIL%", right: true, drop: 3}, {head: "OLDEST", right: true}, {head: "DUE IN 1h", right: true, least: 18, drop: 5},
		{head: "STATE", least: 9},
	}
	for i := range columns {
		if columns[i].head == sortHeads[m.sorting] {
			columns[i].head += "▾"
		}
	}
	return columns
}

var jobHeads = map[delayq.State]string{
	delayq.StateScheduled: "DUE IN", delayq.StateReady: "DUE SINCE", delayq.StateRunning: "LEASE LEFT", delayq.StateDead: "DEAD SINCE",
	delayq.StateDone: "DONE SINCE",
}

// until writes how long it is from the last numbers to a time, and since the same to the past.
func (m *top) until(s stamp) string {
	if s.IsZero() {
		return "-"
	}
	return span(max(0, time.Time(s).Sub(m.at)).Truncate(time.Millisecond))
}

func (m *top) since(s stamp) string {
	if s.IsZero() {
		return "-"
	}
	return span(max(0, m.at.Sub(time.Time(s))).Truncate(time.Millisecond))
}

// rows returns all rows of a screen.
func (m *top) rows(s *topScreen) []topRow {
	var rows []topRow
	switch s.kind {
	case topicsScreen:
		for _, t := range m.sorted(s) {
			rows = append(rows, topRow{key: t.Topic, cells: m.topicCells(t), topic: t.Topic, open: func() *topScreen {
				return jobsOf(t.Topic, m.firstState(t), "", m.bodyHeight())
			}})
		}
	case failuresScreen:
		for _, f := range s.failures {
			cells := []string{f.topic, string(f.state), number(f.Count), m.since(stamp(f.Last)), f.Key, f.Sample}
			rows = append(rows, topRow{key: f.topic + "\n" + string(f.state) + "\n" + f.Key, cells: cells, topic: f.topic, failure: &f, open: func() *topScreen {
				return jobsOf(f.topic, f.state, f.Key, m.bodyHeight())
			}})
		}
	case serversScreen:
		for _, r := range s.servers {
			cells := []string{
				r.ID, orDash(r.Host), strconv.Itoa(r.PID), strconv.Itoa(len(r.Topics)), number(r.Running) + "/" + number(r.Workers),
				m.since(r.Started), m.since(r.Seen), string(r.State),
			}
			rows = append(rows, topRow{key: r.ID, cells: cells, open: func() *topScreen { return m.serverText(r.ID) }})
		}
	case schedulesScreen:
		for _, r := range s.schedules {
			last := "-"
			if r.LastRun != nil {
				last = string(r.LastRun.Outcome) + " " + m.since(r.LastRun.Finished) + " ago"
			}
			state := string(r.State)
			if r.Undecodable != "" {
				state = "unreadable"
			}
			cells := []string{r.Topic, r.Name, r.Spec, m.until(r.NextSlot), last, number(r.Fired), state}
			rows = append(rows, topRow{key: r.Topic + "\n" + r.Name, cells: cells, schedule: r, open: func() *topScreen { return m.scheduleText(r.Topic, r.Name) }})
		}
	case jobsScreen:
		for _, r := range s.jobs {
			id := r.exact()
			rows = append(rows, topRow{key: id, cells: m.jobCells(s, r), topic: s.topic, job: r, open: func() *topScreen { return m.jobText(s.topic, id) }})
		}
		return rows
	}
	if s.kind != topicsScreen && s.filter != "" {
		rows = slices.DeleteFunc(rows, func(r topRow) bool { return !strings.Contains(strings.Join(r.cells, "\n"), s.filter) })
	}
	return rows
}

// jobsOf returns the screen of the jobs of a topic in a state, and of one group of failures unless
// it is empty. A page has as many jobs as there is room for.
func jobsOf(topic string, state delayq.State, failure string, rows int) *topScreen {
	s := &topScreen{kind: jobsScreen, topic: topic, query: delayq.Query{Topic: topic, State: state, Failure: failure, Limit: rows}}
	if failure != "" {
		s.filter = "--failure " + failure
	}
	return s
}

// firstState returns the state of the jobs that are shown when a topic is opened.
func (m *top) firstState(t *topTopic) delayq.State {
	switch {
	case t.Ready > 0:
		return delayq.StateReady
	case t.Scheduled == 0 && t.Running > 0:
		return delayq.StateRunning
	case t.Scheduled == 0 && t.Dead > 0:
		return delayq.StateDead
	}
	return delayq.StateScheduled
}

func (m *top) topicCells(t *topTopic) []string {
	in, out, failed := "-", "-", "-"
	if t.Rates != nil {
		in, out = perSecond(t.Rates.Enqueued), perSecond(t.Rates.Finished)
		if ended := t.Rates.Finished + t.Rates.Failed; ended > 0 {
			failed = fixed(t.Rates.Failed/ended*100, 1)
		}
	}
	return []string{
		t.Topic, short(t.Scheduled), short(t.Ready), short(t.Running) + "/" + strconv.Itoa(t.capacity()), short(t.Retrying), short(t.Dead), in, out, failed,
		oldest(t.topicRecord), dueText(t.due), m.topicState(t),
	}
}

// dueText draws the jobs that fall due in the next hour, if there are any, and writes their number.
func dueText(due []int64) string {
	sum := int64(0)
	for _, n := range due {
		sum += n
	}
	if sum == 0 {
		return ""
	}
	return spark(due) + fmt.Sprintf("%7s", short(sum))
}

func (m *top) topicState(t *topTopic) string {
	text := m.a.stateText(t.topicRecord)
	if n := t.died(); n > 0 {
		if t.State == topicRunning || t.State == topicIdle {
			return "dead +" + short(n)
		}
		text += " · dead +" + short(n)
	}
	return text
}

func (m *top) jobCells(s *topScreen, r *jobRecord) []string {
	when, why := m.since, string(r.DueReason)
	if r.State == delayq.StateScheduled || r.State == delayq.StateRunning {
		when = m.until
	}
	if s.query.State == delayq.StateRunning { // why it was due no longer matters
		why = r.progressText()
	}
	return []string{
		idText(r.exact()), when(stamp(r.since())), strconv.Itoa(r.Attempt), r.leftText(), bytesText(r.PayloadSize), orDash(why),
		orDash(r.lastError()),
	}
}
