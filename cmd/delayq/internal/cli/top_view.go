package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/delayq/delayq"
)

// How a screen is divided: three lines, the heads of the columns, the rows, and two lines.
const (
	linesAbove = 4
	linesBelow = 2
	leastWidth = 40
)

func (m *top) bodyHeight() int { return max(1, m.height-linesAbove-linesBelow) }

// The attributes of text. They are not colors, so they remain without colors.
const (
	bold    = "1"
	faint   = "2"
	reverse = "7"
)

func styled(text, attribute string) string { return "\x1b[" + attribute + "m" + text + "\x1b[0m" }

// View draws the view.
func (m *top) View() tea.View {
	v := tea.NewView(m.frame())
	v.AltScreen = true
	return v
}

// frame returns the lines of the screen.
func (m *top) frame() string {
	if m.width == 0 || m.height == 0 { // not known yet
		return ""
	}
	if m.width < leastWidth || m.height < linesAbove+linesBelow+2 {
		return ansi.Truncate("the terminal is too small", m.width, "")
	}
	s := m.screen()
	lines := []string{m.headLine(), m.totalsLine(), m.rule(s)}
	if s.kind == textScreen {
		lines = append(lines, "")
		text := m.text(s)
		lines = append(lines, text[s.first:min(len(text), s.first+m.bodyHeight())]...)
	} else {
		lines = append(lines, m.table(s)...)
	}
	for len(lines) < m.height-linesBelow {
		lines = append(lines, "")
	}
	lines = append(lines, m.detailLine(s), m.lastLine())
	for i, line := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(line, m.width, "…"), " ")
	}
	return strings.Join(lines, "\n")
}

// both puts a text at each end of a line. The one on the right is left out if there is no room.
func (m *top) both(left, right string) string {
	blank := m.width - 1 - ansi.StringWidth(left) - ansi.StringWidth(right)
	if blank < 2 {
		return left
	}
	return left + strings.Repeat(" ", blank) + right
}

// headLine says which queue this is, and how Redis is. On a narrow terminal it says less.
func (m *top) headLine() string {
	clock := ""
	if !m.at.IsZero() {
		at := m.at.Local()
		if m.a.timeStyle == timeUTC {
			at = m.at.UTC()
		}
		clock = " · " + at.Format("15:04:05 MST")
	}
	busy := ""
	if n := len(m.totals); n > 0 {
		busy = fmt.Sprintf("%s/%s workers busy", number(m.totals[n-1].running), number(m.totals[n-1].capacity))
	}
	name := styled(safe(" delayq top · "+m.a.prefix+" @ "+m.place, false), bold)
	parts := m.redisParts()
	for {
		line := name + strings.Join(parts, "") + clock
		if whole := m.both(line, busy); whole != line || len(parts) == 0 {
			return whole
		}
		parts = parts[:len(parts)-1]
	}
}

// redisParts describes Redis, the most important part first.
func (m *top) redisParts() []string {
	r := m.redis
	if r == nil {
		return nil
	}
	var words, parts []string
	if r.Version != "" {
		words = append(words, r.Version)
	}
	if role := map[string]string{"master": "primary", "slave": "replica"}[r.Role]; role != "" {
		words = append(words, role)
	}
	if r.Mode == "cluster" {
		words = append(words, r.Mode)
	}
	if len(words) > 0 {
		parts = append(parts, safe(" ("+strings.Join(words, ", ")+")", false))
	}
	if r.RoundTrip > 0 {
		parts = append(parts, " · rtt "+fixed(r.RoundTrip.Seconds()*1000, 1)+"ms")
	}
	if r.UsedMemory > 0 {
		memory := " · mem " + bytesText(int(r.UsedMemory))
		if r.MaxMemory > 0 {
			memory += " of " + bytesText(int(r.MaxMemory))
		}
		parts = append(parts, safe(strings.TrimRight(memory+" "+r.Eviction, " "), false))
	}
	return parts
}

// totalsLine has the sums over all topics, or says why they are old.
func (m *top) totalsLine() string {
	switch {
	case m.answered.IsZero() && m.err != nil:
		return " " + styled(" Redis is not reachable: "+safe(errorText(m.err), false)+" ", reverse)
	case m.answered.IsZero():
		return " waiting for Redis …"
	case m.old():
		why := "Redis does not answer"
		if m.err != nil {
			why = safe(strings.ReplaceAll(errorText(m.err), "\n", "; "), false)
		}
		age := m.now.Sub(m.answered).Truncate(time.Second)
		return " " + styled(fmt.Sprintf(" OLD: these numbers are %s old: %s ", span(age), why), reverse)
	}
	sum := m.totals[len(m.totals)-1]
	died := ""
	if n := sum.dead - m.totals[0].dead; n > 0 {
		died = fmt.Sprintf(" (+%s in 1m)", short(n))
	}
	failed := "-"
	if ended := sum.Finished + sum.Failed; ended > 0 {
		failed = fixed(sum.Failed/ended*100, 1) + "%"
	}
	for _, bars := range []int{12, 8, 5, 0} {
		history := func(n func(topTotals) float64) string {
			if bars == 0 {
				return ""
			}
			var list []float64
			for _, t := range m.totals {
				if t.rated {
					list = append(list, n(t))
				}
			}
			list = list[max(0, len(list)-bars):]
			return " " + spark(list) + strings.Repeat(" ", bars-len(list))
		}
		line := fmt.Sprintf(" in %s/s%s  out %s/s%s  fail %s  overdue %s%s  dead %s%s",
			perSecond(sum.Enqueued), history(func(t topTotals) float64 { return t.Enqueued }),
			perSecond(sum.Finished), history(func(t topTotals) float64 { return t.Finished }), failed,
			short(sum.overdue), history(func(t topTotals) float64 { return float64(t.overdue) }), short(sum.dead), died)
		if bars == 0 || ansi.StringWidth(line) < m.width {
			return line
		}
	}
	return ""
}

// perSecond writes a rate.
func perSecond(rate float64) string {
	if rate < 10 && rate != float64(int64(rate)) {
		return fixed(rate, 1)
	}
	return short(int64(rate + 0.5))
}

// fixed writes a number with digits after the point.
func fixed(n float64, digits int) string { return strconv.FormatFloat(n, 'f', digits, 64) }

// rule is the line that says what is shown.
func (m *top) rule(s *topScreen) string {
	var words []string
	mark := func(name string, on bool) {
		if on {
			name = styled("["+name+"]", bold)
		}
		words = append(words, name)
	}
	switch s.kind {
	case jobsScreen:
		words = append(words, safe(s.topic, false))
		for _, state := range states {
			n := ""
			if t := m.topics[s.topic]; t != nil {
				n = " " + short(jobsIn(t.topicRecord, delayq.State(state)))
			}
			mark(state+n, state == string(s.query.State))
		}
		if s.query.Latest {
			words = append(words, "latest first")
		}
	case textScreen:
		words = append(words, safe(s.title, false))
	default:
		for i, name := range []string{"Topics", "Failures", "Servers", "Schedules"} {
			mark(name, i == m.tab)
		}
	}
	if s.filter != "" {
		words = append(words, "filter: "+safe(s.filter, false))
	}
	line := " " + strings.Join(words, "  ") + " "
	return line + strings.Repeat("─", max(0, m.width-1-ansi.StringWidth(line)))
}

// jobsIn returns how many jobs of a topic are in a state.
func jobsIn(r *topicRecord, state delayq.State) int64 {
	return map[delayq.State]int64{
		delayq.StateScheduled: r.Scheduled, delayq.StateReady: r.Ready, delayq.StateRunning: r.Running,
		delayq.StateDead: r.Dead, delayq.StateDone: r.Done,
	}[state]
}

// table returns the heads of the columns, and the rows that fit.
func (m *top) table(s *topScreen) []string {
	rows := m.rows(s)
	shown := rows[s.first:min(len(rows), s.first+m.bodyHeight())]
	columns := m.columns(s)
	g := newGrid(columns, shown, m.width-3)
	heads := make([]string, len(columns))
	for i, c := range columns {
		heads[i] = c.head
	}
	lines := []string{"  " + styled(g.line(heads, func(cell string) string { return cell }), bold)}
	for i, row := range shown {
		switch line := g.line(row.cells, m.a.paint); {
		case s.first+i == s.index:
			lines = append(lines, styled("▸ ", bold)+line)
		case m.old():
			lines = append(lines, "  "+styled(g.line(row.cells, func(cell string) string { return cell }), faint))
		default:
			lines = append(lines, "  "+line)
		}
	}
	if len(rows) == 0 {
		lines = append(lines, "  "+m.nothing(s))
	}
	return lines
}

// nothing says why there are no rows.
func (m *top) nothing(s *topScreen) string {
	switch {
	case s.err != nil:
		return safe(errorText(s.err), false)
	case m.answered.IsZero() || s.kind != topicsScreen && s.loaded.IsZero():
		return "…"
	case s.kind == jobsScreen && s.next != "":
		return "none of the first " + number(s.examined) + " jobs matches; → looks at more"
	case s.filter != "":
		return "nothing matches " + safe(s.filter, false)
	}
	return map[screenKind]string{
		topicsScreen: "no topics with the prefix " + m.a.prefix, failuresScreen: "no failures", serversScreen: "no live servers",
		schedulesScreen: "no schedules", jobsScreen: "no jobs",
	}[s.kind]
}

// text returns the lines of a text that was opened.
func (m *top) text(s *topScreen) []string {
	switch {
	case s.err != nil:
		return []string{"  " + safe(errorText(bare(s.err)), false)}
	case s.show == nil:
		return []string{"  …"}
	}
	var out bytes.Buffer
	inner := m.width - 4
	a := &app{
		process: &process{out: &output{Writer: &out, terminal: true, width: inner}, getenv: m.a.getenv},
		format:  formatWide, timeStyle: m.a.timeStyle, noColor: m.a.noColor, offset: m.a.offset,
	}
	err := s.show(a, a.stdout())
	if err == nil {
		err = a.flush()
	}
	if err != nil {
		return []string{"  " + errorText(err)}
	}
	lines := strings.Split(ansi.Wrap(strings.TrimRight(out.String(), "\n"), inner, ""), "\n")
	for i, line := range lines {
		lines[i] = "  " + line
	}
	return lines
}

// writeText returns what writes a text.
func writeText(text string) topShow {
	return func(_ *app, w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// detailLine says what a row has no room for.
func (m *top) detailLine(s *topScreen) string {
	rows := m.rows(s)
	if s.index >= len(rows) {
		return ""
	}
	row := rows[s.index]
	switch {
	case s.err != nil:
		return " " + safe(errorText(s.err), false)
	case s.kind == topicsScreen:
		t := m.topics[row.topic]
		cells := m.topicCells(t)
		line := fmt.Sprintf(" %s: %s", t.Topic, cells[11])
		if t.Rates != nil {
			line += fmt.Sprintf("  in %s/s  out %s/s", cells[6], cells[7])
		}
		if cells[10] != "" {
			line += "  due in 1h " + strings.Join(strings.Fields(cells[10]), " ")
		}
		return safe(line, false)
	case s.kind == failuresScreen && s.failures != nil:
		line := fmt.Sprintf(" delayq jobs %s --state %s --failure %s", quoted(row.topic), row.cells[1], row.cells[4])
		return m.both(line, s.note)
	case s.kind == jobsScreen:
		left := fmt.Sprintf(" page %d of %s jobs", len(s.pages)+1, number(s.total))
		return m.both(left, safe(row.cells[len(row.cells)-1], false))
	}
	return " " + s.note
}

// lastLine is what is typed, a question, a message, or the keys.
func (m *top) lastLine() string {
	switch {
	case m.question != nil:
		return " " + styled(safe(m.question.text, false)+" [y/N]", reverse)
	case m.input != nil && m.said != "":
		return " " + styled(safe(m.said, false), reverse) + " / " + safe(m.input.text, false) + "▏"
	case m.input != nil:
		return " / " + safe(m.input.text, false) + "▏"
	case m.said != "" && m.now.Sub(m.saidAt) < topSays:
		return " " + safe(m.said, false)
	}
	var labels []string
	for _, k := range m.keys() {
		if k.label != "" {
			labels = append(labels, k.label)
		}
	}
	line := " ↑↓ move  " + strings.Join(labels, "  ")
	for len(labels) > 2 && ansi.StringWidth(line) > m.width { // help and quit stay
		labels = slices.Delete(labels, len(labels)-3, len(labels)-2)
		line = " ↑↓ move  " + strings.Join(labels, "  ")
	}
	return line
}
