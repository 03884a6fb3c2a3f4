package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// A topKey is a key that does something now, and what the last line says about it.
type topKey struct {
	key   string
	label string
	do    func() tea.Cmd
}

// The keys of the verbs that act on a job.
var verbKeys = map[string]string{"cancel": "X", "run": "N", "bury": "B", "revive": "V", "purge": "D"}

const topHelp = `Look
  ↑ ↓ k j       move; PgUp, PgDn, Home and End too
  enter         open what is selected
  e             why the job is not running
  esc           go back
  t Tab         the next tab, or the next state of the jobs
  1 to 5        jobs that are scheduled, ready, running, dead or done
  ← →           the page of jobs before, and after
  o             the latest jobs first, or last
  s             sort topics by trouble, name, READY, DEAD or OUT/s
  /             filter: a part of the row; of jobs: how the ID begins, or
                flags of "delayq jobs" such as --error 550 --header tenant=7
  q Ctrl-C      quit

Act, after a question
  p P           pause or resume a topic or a schedule
  X N B V D     cancel a job, run it now, bury it, revive it, delete it
  V             revive the jobs of a group of failures
  T             trigger a schedule

Topics
  RUN           jobs that run, of those that all servers can run at a time
  OLDEST        how long the first of the due jobs has waited
  FAIL%         runs that failed, of those that ended since the last tick
  DUE IN 1h     scheduled jobs in 12 steps of 5 minutes, and their number
  dead +3       so many jobs have died within the last minute`

// press does what a key does.
func (m *top) press(key tea.Key) tea.Cmd {
	name := key.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case name == "ctrl+z":
		return tea.Suspend
	case m.question != nil:
		q := m.question
		m.question = nil
		if name != "y" && name != "Y" {
			m.say("nothing was done")
			return nil
		}
		m.say("…")
		return m.do(func(ctx context.Context) tea.Msg {
			done, err := q.act(m.a.act(ctx))
			return topActed{done, err}
		})
	case m.input != nil:
		return m.edit(name, key.Text)
	}
	m.said = ""
	for _, k := range m.keys() {
		if k.key == name {
			return k.do()
		}
	}
	return m.move(name)
}

// keys returns the keys of the screen as it is now, except those that move the selection.
func (m *top) keys() []topKey {
	s := m.screen()
	var list []topKey
	add := func(key, label string, do func() tea.Cmd) { list = append(list, topKey{key, label, do}) }
	rows := m.rows(s)
	var row topRow
	if s.index < len(rows) {
		row = rows[s.index]
	}
	if row.open != nil {
		add("enter", "⏎ open", func() tea.Cmd { return m.open(row.open()) })
	}
	if len(m.stack) > 0 {
		back := func() tea.Cmd { m.back(); return m.reload(m.screen()) }
		add("esc", "esc back", back)
		add("backspace", "", back)
	}
	job := row.job
	if s.kind == textScreen && !s.explains {
		job = s.job
	}
	if job != nil {
		add("e", "e explain", func() tea.Cmd { return m.open(m.explainText(job.Topic, job.exact())) })
	}
	if !m.readOnly && !m.replica() {
		list = append(list, m.acts(s, row)...)
	}
	switch s.kind {
	case jobsScreen:
		for i, state := range states {
			add(fmt.Sprint(i+1), "", func() tea.Cmd { return m.turnTo(s, delayq.State(state)) })
		}
		next := func() tea.Cmd {
			return m.turnTo(s, delayq.State(states[(slices.Index(states, string(s.query.State))+1)%len(states)]))
		}
		add("t", "t state", next)
		add("tab", "", next)
	case textScreen:
	default:
		add("t", "t tab", func() tea.Cmd { return m.turn(1) })
		add("tab", "", func() tea.Cmd { return m.turn(1) })
		add("shift+tab", "", func() tea.Cmd { return m.turn(-1) })
	}
	if s.kind == topicsScreen {
		add("s", "s sort", func() tea.Cmd { m.sorting = (m.sorting + 1) % sortings; return nil })
	}
	if s.kind != textScreen {
		add("/", "/ filter", func() tea.Cmd { m.filter(s); return nil })
	}
	if s.kind == jobsScreen {
		add("o", "o order", func() tea.Cmd { s.query.Latest = !s.query.Latest; return m.restart(s) })
		if s.next != "" {
			add("right", "→ next", func() tea.Cmd { return m.nextPage(s) })
		}
		if len(s.pages) > 0 {
			add("left", "← before", func() tea.Cmd { return m.pageBefore(s) })
		}
	}
	add("?", "? help", func() tea.Cmd {
		return m.open(&topScreen{kind: textScreen, title: "keys", show: writeText(topHelp), read: func(context.Context) (topShow, *jobRecord, error) {
			return writeText(topHelp), nil, nil
		}})
	})
	add("q", "q quit", func() tea.Cmd { return tea.Quit })
	return list
}

// replica reports whether Redis is one, so that it refuses every act.
func (m *top) replica() bool { return m.redis != nil && m.redis.Role == "slave" }

// acts returns the keys that act on what is selected.
func (m *top) acts(s *topScreen, row topRow) []topKey {
	var list []topKey
	ask := func(key, label, text string, act func(ctx context.Context) (string, error)) {
		list = append(list, topKey{key, key + " " + label, func() tea.Cmd {
			m.question = &topQuestion{text, act}
			return nil
		}})
	}
	topic, job, schedule, failure := row.topic, row.job, row.schedule, row.failure
	if s.kind == textScreen || s.kind == jobsScreen {
		topic = ""
	}
	if s.kind == textScreen {
		job = s.job
	}
	switch {
	case job != nil:
		id := job.exact()
		for _, v := range m.a.verbs() {
			if key := verbKeys[v.name]; key != "" && slices.Contains(v.states, job.State) {
				ask(key, v.name, fmt.Sprintf("%s %s of %s, which is %s?", v.name, idText(id), job.Topic, job.State), func(ctx context.Context) (string, error) {
					errs, err := v.batch(ctx, m.client, job.Topic, []string{id})
					return idText(id) + ": " + v.past, errors.Join(errs[0], err)
				})
			}
		}
	case schedule != nil:
		name := schedule.Topic + " " + schedule.Name
		act := func(key, label, past string, call func(ctx context.Context, topic, name string) error) {
			ask(key, label, label+" the schedule "+name+"?", func(ctx context.Context) (string, error) {
				return name + ": " + past, call(ctx, schedule.Topic, schedule.Name)
			})
		}
		if schedule.State == delayq.SchedulePaused {
			act("P", "resume", "resumed", m.client.ResumeSchedule)
		} else {
			act("p", "pause", "paused", m.client.PauseSchedule)
		}
		act("T", "trigger", "triggered", func(ctx context.Context, topic, name string) error {
			_, err := m.client.Trigger(ctx, topic, name)
			return err
		})
	case failure != nil && failure.state == delayq.StateDead:
		text := fmt.Sprintf("revive %s of %s with this error?", count(failure.Count, "dead job"), failure.topic)
		ask("V", "revive", text, func(ctx context.Context) (string, error) {
			q := delayq.Query{Topic: failure.topic, State: delayq.StateDead, Failure: failure.Key, Latest: true}
			done, err := m.client.Apply(ctx, q, delayq.Revive(), delayq.AtMost(failure.Count))
			if done == nil {
				done = new(delayq.Applied)
			}
			return fmt.Sprintf("%s: %s revived", failure.topic, count(done.Done, "job")), err
		})
	case topic != "" && m.topics[topic] != nil && failure == nil:
		pauses := m.topics[topic].Pauses
		own := slices.ContainsFunc(pauses, func(p pauseRecord) bool { return p.By == m.a.actor })
		if !own {
			ask("p", "pause", "pause "+topic+"? Running jobs continue, and no others start.", func(ctx context.Context) (string, error) {
				return topic + ": paused", m.client.Pause(ctx, topic, delayq.Pause{By: m.a.actor})
			})
		}
		switch {
		case own:
			ask("P", "resume", "end the pause of "+topic+"?", func(ctx context.Context) (string, error) {
				return topic + ": your pause has ended", m.client.Resume(ctx, topic, m.a.actor)
			})
		case len(pauses) > 0:
			ask("P", "resume", "end all pauses of "+topic+", which is "+m.a.pauseText(pauses)+"?", func(ctx context.Context) (string, error) {
				return topic + ": resumed", m.client.ResumeAll(ctx, topic)
			})
		}
	}
	return list
}

// turn shows another tab.
func (m *top) turn(by int) tea.Cmd {
	m.tab = (m.tab + by + len(m.tabs)) % len(m.tabs)
	return m.reload(m.screen())
}

// turnTo shows the jobs in another state.
func (m *top) turnTo(s *topScreen, state delayq.State) tea.Cmd {
	s.query.State = state
	return m.restart(s)
}

// restart shows the first page of a query.
func (m *top) restart(s *topScreen) tea.Cmd {
	s.pages, s.query.Cursor = nil, ""
	return m.page(s)
}

func (m *top) nextPage(s *topScreen) tea.Cmd {
	s.pages, s.query.Cursor = append(s.pages, s.query.Cursor), s.next
	return m.page(s)
}

func (m *top) pageBefore(s *topScreen) tea.Cmd {
	last := len(s.pages) - 1
	s.query.Cursor, s.pages = s.pages[last], s.pages[:last]
	return m.page(s)
}

// page reads the page that the query is about now.
func (m *top) page(s *topScreen) tea.Cmd {
	s.jobs, s.next, s.index, s.key, s.loaded, s.loading, s.err = nil, "", 0, "", time.Time{}, false, nil
	return m.reload(s)
}

// move moves the selection, or the text.
func (m *top) move(name string) tea.Cmd {
	s := m.screen()
	page := max(1, m.bodyHeight()-1)
	by, found := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "pgdown": page, "home": -1 << 30, "end": 1 << 30,
	}[name]
	if !found {
		return nil
	}
	if s.kind == textScreen {
		s.first += by
		return nil
	}
	rows := m.rows(s)
	if s.kind == jobsScreen && abs(by) < 1<<30 { // a page of Redis is a page of the screen
		switch {
		case by > 0 && s.index == len(rows)-1 && s.next != "":
			return m.nextPage(s)
		case by < 0 && s.index == 0 && len(s.pages) > 0:
			return m.pageBefore(s)
		}
	}
	if s.index = max(0, min(s.index+by, len(rows)-1)); len(rows) > 0 {
		s.key = rows[s.index].key
	}
	return nil
}

func abs(n int) int { return max(n, -n) }

// filter begins to ask for the rows that are wanted.
func (m *top) filter(s *topScreen) {
	before := s.filter
	if s.kind != jobsScreen {
		set := func(text string) { s.filter = text }
		m.input = &topInput{text: before, live: set, done: func(string) error { return nil }}
		return
	}
	m.input = &topInput{text: before, live: func(string) {}, done: func(text string) error {
		q, err := m.jobQuery(s.query, text)
		if err == nil {
			s.query, s.filter = q, text
		}
		return err
	}}
}

// edit changes the line that is typed.
func (m *top) edit(name, text string) tea.Cmd {
	in, s := m.input, m.screen()
	switch name {
	case "esc":
		in.text = ""
		fallthrough
	case "enter":
		in.live(in.text)
		if err := in.done(in.text); err != nil {
			m.say(errorText(bare(err)))
			return nil
		}
		if m.input, m.said = nil, ""; s.kind == jobsScreen {
			return m.restart(s)
		}
	case "backspace":
		if runes := []rune(in.text); len(runes) > 0 {
			in.text = string(runes[:len(runes)-1])
		}
	case "ctrl+u":
		in.text = ""
	default:
		in.text += text
	}
	in.live(in.text)
	return nil
}

// typed adds what was pasted to the line that is typed.
func (m *top) typed(text string) {
	if m.input != nil {
		m.input.text += strings.Join(strings.Fields(text), " ")
		m.input.live(m.input.text)
	}
}

var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s"']+`)

// jobQuery returns a query with the filter that was typed: the beginning of an ID, or flags of the
// command jobs.
func (m *top) jobQuery(q delayq.Query, text string) (delayq.Query, error) {
	var args []string
	for part := range strings.SplitSeq(word.ReplaceAllStringFunc(text, func(w string) string {
		return strings.ReplaceAll(strings.Trim(w, `'"`), " ", "\x00")
	}), " ") {
		if part != "" {
			args = append(args, strings.ReplaceAll(part, "\x00", " "))
		}
	}
	var f filters
	cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	cmd.SetContext(m.ctx)
	f.flags(cmd.Flags(), string(q.State), states...)
	if err := cmd.Flags().Parse(args); err != nil {
		return q, usage("%v", err)
	}
	rest := cmd.Flags().Args()
	switch {
	case len(rest) > 1 || len(rest) == 1 && f.idPrefix != "":
		return q, usage("a filter is the beginning of one ID, or flags such as --error TEXT")
	case len(rest) == 1:
		f.idPrefix = rest[0]
	}
	for _, name := range []string{"state", "cursor", "budget"} {
		if cmd.Flags().Changed(name) {
			return q, usage("--%s is no filter", name)
		}
	}
	fresh, err := f.query(cmd, m.a, q.Topic)
	fresh.Latest, fresh.Limit = q.Latest, q.Limit
	return fresh, err
}
