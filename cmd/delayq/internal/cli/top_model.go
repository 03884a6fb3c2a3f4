package cli

import (
	"cmp"
	"context"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/delayq/delayq"
)

const (
	topEvery  = time.Second
	topOld    = 3 * time.Second // after which numbers are old
	topSays   = 6 * time.Second // how long a message is shown
	topMemory = 60              // samples that are remembered
)

// A top is the state of the live view.
type top struct {
	ctx    context.Context
	a      *app // for how times are written, and who acts
	insp   *delayq.Inspector
	client *delayq.Client
	place  string // of Redis

	width, height int
	readOnly      bool
	now           time.Time // by our clock, at the last tick or answer

	reading    bool      // a call for the numbers is in flight
	answered   time.Time // when Redis gave the numbers, by our clock
	at         time.Time // the same by Redis's clock
	err        error     // of the last call
	topics     map[string]*topTopic
	names      []string          // of topics, sorted
	totals     []topTotals       // the newest last
	redis      *delayq.RedisInfo // nil: not known yet
	forecasted time.Time         // when the last forecast began
	sorting    int

	tabs  []*topScreen
	tab   int
	stack []*topScreen // what has been opened, on top of the tab

	question *topQuestion
	input    *topInput
	said     string // the last message
	saidAt   time.Time

	tick  func() tea.Cmd // sends the next topTick; nil: somebody else does
	crash *topPanic
	end   error // why the view ends, unless a key ended it
}

// A topTopic is what the view knows about a topic.
type topTopic struct {
	*topicRecord
	dead []int64 // at the last samples
	due  []int64 // in the steps of the next hour; nil: not read
}

// died returns how many jobs have died since the oldest sample that is remembered, net of those
// that were revived.
func (t *topTopic) died() int64 { return max(0, t.Dead-t.dead[0]) }

// topTotals are sums over all topics.
type topTotals struct {
	ratesRecord
	rated                  bool // there was a sample before
	overdue, dead, running int64
	capacity               int
}

type screenKind int

const (
	topicsScreen screenKind = iota
	failuresScreen
	serversScreen
	schedulesScreen
	jobsScreen
	textScreen
)

// A topScreen is a tab, or what was opened from one.
type topScreen struct {
	kind   screenKind
	filter string

	key   string // of the selected row
	index int    // of the selected row
	first int    // row at the top

	loading bool
	loaded  time.Time // when Redis gave the rows; zero: not yet
	err     error
	note    string // what the rows leave out

	failures  []topFailure
	servers   []*serverRecord
	schedules []*scheduleRecord

	topic    string
	query    delayq.Query // of jobs; its cursor is that of the page
	pages    []delayq.Cursor
	next     delayq.Cursor
	jobs     []*jobRecord
	total    int64
	examined int

	title    string
	explains bool       // the text says why a job is not running
	job      *jobRecord // the one that a text is about; nil: none
	read     func(ctx context.Context) (topShow, *jobRecord, error)
	show     topShow
}

// A topShow writes a text.
type topShow func(a *app, w io.Writer) error

// A topFailure is a group of failed jobs of a topic.
type topFailure struct {
	topic string
	state delayq.State
	delayq.FailureGroup
}

// A topQuestion is asked before an act.
type topQuestion struct {
	text string
	act  func(ctx context.Context) (done string, err error)
}

// A topInput is a line that is typed.
type topInput struct {
	text string
	live func(text string) // called for each key
	done func(text string) error
}

// The messages.
type (
	topTick   time.Time
	topSample struct {
		stats []delayq.TopicStats
		err   error
		ended time.Time
	}
	topForecast struct {
		due   map[string][]int64
		redis *delayq.RedisInfo
	}
	topLoaded struct {
		screen *topScreen
		apply  func()
		err    error
		at     time.Time
	}
	topActed struct {
		text string
		err  error
	}
	topPanic struct {
		value any
		stack []byte
	}
	topEnd struct{ err error }
)

// Init is the first command of the program.
func (m *top) Init() tea.Cmd { return func() tea.Msg { return topTick(time.Now()) } }

// Update changes the view by a message. It returns what to do next.
func (m *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case topTick:
		m.now = time.Time(msg)
		cmd = m.readStats()
		if m.tick != nil {
			cmd = tea.Batch(m.tick(), cmd)
		}
	case topSample:
		m.sample(msg)
		cmd = tea.Batch(m.readForecast(), m.reload(m.screen()))
	case topForecast:
		if msg.redis != nil {
			m.redis = msg.redis
		}
		for name, due := range msg.due {
			if t := m.topics[name]; t != nil {
				t.due = due
			}
		}
	case topLoaded:
		m.load(msg)
	case topActed:
		m.acted(msg)
		m.screen().loaded = time.Time{}
		cmd = tea.Batch(m.readStats(), m.reload(m.screen()))
	case topPanic:
		m.crash, cmd = &msg, tea.Quit
	case topEnd:
		m.end, cmd = msg.err, tea.Quit
	case tea.PasteMsg:
		m.typed(msg.Content)
	case tea.KeyPressMsg:
		cmd = m.press(msg.Key())
	}
	m.settle()
	return m, cmd
}

// do returns a command that calls Redis. A panic in it ends the view, and is reported after the
// terminal was restored.
func (m *top) do(call func(ctx context.Context) tea.Msg) tea.Cmd {
	return func() (msg tea.Msg) {
		defer func() {
			if value := recover(); value != nil {
				msg = topPanic{value, debug.Stack()}
			}
		}()
		ctx, cancel := context.WithTimeout(m.ctx, m.a.timeout)
		defer cancel()
		return call(ctx)
	}
}

// sample takes the numbers of all topics. If only some could be read, the others remain as they
// are.
func (m *top) sample(msg topSample) {
	m.reading, m.now, m.err = false, msg.ended, msg.err
	if msg.err != nil && len(msg.stats) == 0 {
		return
	}
	m.answered = msg.ended
	m.at = time.Time{} // of no topics
	known := make(map[string]*topTopic, len(msg.stats))
	if msg.err != nil {
		known = m.topics
	}
	var sum topTotals
	for i := range msg.stats {
		r := topicOf(&msg.stats[i])
		m.at = time.Time(r.At)
		t := &topTopic{topicRecord: r}
		if old := m.topics[r.Topic]; old != nil {
			r.Rates, t.dead, t.due = ratesBetween(old.topicRecord, r), old.dead, old.due
		}
		t.dead = remember(t.dead, r.Dead)
		known[r.Topic] = t
		if r.Rates != nil {
			sum.rated = true
			sum.Enqueued += r.Rates.Enqueued
			sum.Finished += r.Rates.Finished
			sum.Failed += r.Rates.Failed
		}
		sum.overdue += r.Overdue
		sum.dead += r.Dead
		sum.running += r.Running
		sum.capacity += r.capacity()
	}
	if !m.at.IsZero() {
		m.a.setClock(m.at)
	}
	m.topics, m.totals = known, remember(m.totals, sum)
	m.names = m.names[:0]
	for name := range known {
		m.names = append(m.names, name)
	}
	slices.Sort(m.names)
}

// remember appends to the newest samples.
func remember[T any](list []T, newest T) []T {
	if len(list) == topMemory {
		list = slices.Clone(list[1:])
	}
	return append(list, newest)
}

func (m *top) load(msg topLoaded) {
	s := msg.screen
	s.loading, s.loaded, s.err = false, msg.at, msg.err
	if msg.err == nil {
		msg.apply()
	}
}

func (m *top) acted(msg topActed) {
	failed, silent := unrecorded(msg.err)
	text := msg.text
	if failed != nil {
		text = errorText(bare(failed))
	}
	if refused(orNil(failed)) {
		m.readOnly = true
		text = "refused by Redis, so the keys that act are left out from now on: " + text
	}
	if silent != nil {
		_, why, _ := strings.Cut(silent.Error(), delayq.ErrNotAudited.Error()+": ")
		text += ", but not recorded in the audit: " + why
	}
	m.say(text)
}

func (m *top) say(text string) { m.said, m.saidAt = text, m.now }

// old reports whether the numbers are not those of now.
func (m *top) old() bool {
	return !m.answered.IsZero() && (m.err != nil || m.now.Sub(m.answered) > topOld)
}

// screen returns what is shown.
func (m *top) screen() *topScreen {
	if n := len(m.stack); n > 0 {
		return m.stack[n-1]
	}
	return m.tabs[m.tab]
}

// open shows a screen on top of the others.
func (m *top) open(s *topScreen) tea.Cmd {
	m.stack = append(m.stack, s)
	return m.reload(s)
}

// back shows what was shown before. It reports whether there is such a thing.
func (m *top) back() bool {
	if len(m.stack) == 0 {
		return false
	}
	m.stack = m.stack[:len(m.stack)-1]
	return true
}

// sorted returns the topics that match the filter of a screen.
func (m *top) sorted(s *topScreen) []*topTopic {
	var list []*topTopic
	for _, name := range m.names {
		if strings.Contains(name, s.filter) {
			list = append(list, m.topics[name])
		}
	}
	rate := func(t *topTopic) float64 {
		if t.Rates == nil {
			return 0
		}
		return t.Rates.Finished
	}
	slices.SortStableFunc(list, func(x, y *topTopic) int {
		switch m.sorting {
		case byTrouble:
			return cmp.Compare(x.trouble(), y.trouble())
		case byOverdue:
			return cmp.Compare(y.Overdue, x.Overdue)
		case byDead:
			return cmp.Compare(y.Dead, x.Dead)
		case byRate:
			return cmp.Compare(rate(y), rate(x))
		}
		return 0 // they are sorted by name
	})
	return list
}

// settle keeps the selection on its row when rows have moved, and within the screen.
func (m *top) settle() {
	s := m.screen()
	height := m.bodyHeight()
	if s.kind == textScreen {
		s.first = max(0, min(s.first, len(m.text(s))-height))
		return
	}
	rows := m.rows(s)
	if at := slices.IndexFunc(rows, func(r topRow) bool { return r.key == s.key }); at >= 0 {
		s.index = at
	}
	s.index = max(0, min(s.index, len(rows)-1))
	if len(rows) > 0 {
		s.key = rows[s.index].key
	}
	s.first = max(0, min(s.first, s.index, len(rows)-height))
	s.first = max(s.first, s.index-height+1)
}
