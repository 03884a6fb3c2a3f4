package web

import (
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// This file has what templates compute from the data of their pages.

// Row returns the topic.
func (p *topicPage) Row() *topicRow { return &p.topicRow }

// Tabs returns the states.
func (p *topicPage) Tabs() []delayq.State { return states }

// A counterRow is a counter of a topic.
type counterRow struct {
	Name string
	N    int64
}

// counterNames lists the counters that pages show, in their order.
var counterNames = []delayq.Counter{
	delayq.CounterEnqueued, delayq.CounterTaken, delayq.CounterAcked, delayq.CounterAgain, delayq.CounterRetried, delayq.CounterSnoozed,
	delayq.CounterBuried, delayq.CounterRevived, delayq.CounterCancelled, delayq.CounterExpired, delayq.CounterReclaimed,
	delayq.CounterPrunedDead, delayq.CounterFired, delayq.CounterSkipped, delayq.CounterMissed, delayq.CounterTombed, delayq.CounterDebounced, delayq.CounterUndelivered, delayq.CounterRepaired, delayq.CounterAwaited,
	delayq.CounterFlows, delayq.CounterFlowsFailed, delayq.CounterFlowStepsFailed,
}

// CounterRows returns the counters.
func (p *topicPage) CounterRows() (list []counterRow) {
	for _, name := range counterNames {
		list = append(list, counterRow{string(name), p.Counters[string(name)]})
	}
	return list
}

// Chart returns a forecast as a bar chart.
func (v *view) Chart(f forecast) template.HTML {
	label := v.T("chart.due", v.T("forecast."+f.Name), number(f.Total), number(slices.Max(f.Due)))
	layout := "15:04"
	if f.Name == "month" {
		layout = time.DateOnly
	}
	return bars(f.Due, 360, 72, label, func(i int) string {
		return f.At(i).Format(layout) + " UTC: " + number(f.Due[i])
	})
}

// HasCursor reports whether the page is a later one.
func (v *view) HasCursor() bool { return v.query.Get("cursor") != "" }

// Sees reports whether the request may see a topic.
func (v *view) Sees(topic string) bool { return v.h.views(v, topic) }

// HasFrom reports whether the page of a flow begins with a later step.
func (v *view) HasFrom() bool { return v.query.Get("from") != "" }

// ConfirmURL is where the choice of jobs goes.
func (p *jobsPage) ConfirmURL() string {
	return "confirm?" + p.Filter.values().Encode()
}

// Keyed reports whether a job of the page has a key.
func (p *jobsPage) Keyed() bool {
	return slices.ContainsFunc(p.Jobs, func(j jobRecord) bool { return j.exact != "" })
}

// Progressed reports whether a job of the page has said how far it has come.
func (p *jobsPage) Progressed() bool {
	return slices.ContainsFunc(p.Jobs, func(j jobRecord) bool { return j.Progress != nil })
}

// mostOrdered is the most running jobs that have an order: see [delayq.Query].
const mostOrdered = 10_000

// Pages returns the number of pages, or 0 if they have no numbers.
func (p *jobsPage) Pages() int64 {
	if !p.Filter.Paged() || p.State == delayq.StateRunning && p.Total > mostOrdered {
		return 0
	}
	rows := int64(p.Filter.Rows())
	return (p.Total + rows - 1) / rows
}

// Hidden returns the selection as the hidden fields of a form.
func (p *jobsPage) Hidden() map[string]string {
	fields := map[string]string{}
	for name, values := range p.Filter.values() {
		fields[name] = values[0]
	}
	return fields
}

// Shown returns the number of rows.
func (p *jobsPage) Shown() int { return len(p.Jobs) }

// Shows lists the views of a payload.
func (p *jobPage) Shows() []string { return []string{"decoded", "raw", "hex"} }

// Verdict returns the verdict about a job in the language of the page.
func (v *view) Verdict(p *jobPage) string {
	if v.Lang == "en" {
		return p.Verdict
	}
	var reasons []string
	for _, r := range p.Reasons {
		reasons = append(reasons, v.Reason(r))
	}
	if p.Job == nil {
		return v.T("verdict.none")
	}
	if len(reasons) == 0 {
		return v.T("verdict.free", v.T("state."+string(p.Job.State)))
	}
	return v.T("verdict", v.T("state."+string(p.Job.State)), strings.Join(reasons, v.T("comma")))
}

// HasMoreReasons reports whether the reasons add to the verdict.
func (v *view) HasMoreReasons(reasons []reasonRow) bool {
	return len(reasons) > 1 || v.Lang != "en" && len(reasons) > 0
}

// RunningHint returns the hint of the limit of running jobs of a key.
func (v *view) RunningHint(ordered bool) string {
	if ordered {
		return v.T("form.running.hint") + " " + v.T("keys.ordered")
	}
	return v.T("form.running.hint")
}

// Exact returns the rate of the form.
func (p *keyForm) Exact() typedRate { return p.typedRate }

// Formats lists the formats of payloads that the form offers.
func (p *formPage) Formats() []string { return formats }

// Found returns the number of jobs.
func (p *findPage) Found() int { return len(p.Jobs) }

// CanDo reports whether the page may offer an act on jobs of a topic.
func (v *view) CanDo(name, topic string) bool { return v.CanOn(string(acts[name].right), topic) }

// Acts lists what can be done with the schedule.
func (p *schedulePage) Acts() []string {
	if p.Row.State == delayq.SchedulePaused {
		return []string{"trigger", "resume", "remove"}
	}
	return []string{"trigger", "pause", "remove"}
}

// fewIDs is how many jobs a confirmation lists.
const fewIDs = 10

// Few returns the first of the chosen jobs.
func (c *confirmPage) Few() []string { return c.IDs[:min(len(c.IDs), fewIDs)] }

// Rest returns how many more there are.
func (c *confirmPage) Rest() int { return len(c.IDs) - len(c.Few()) }

// ConfirmTitle returns the question of a confirmation.
func (v *view) ConfirmTitle() string {
	c, ok := v.Data.(*confirmPage)
	if !ok {
		return v.T("error.title")
	}
	n := number(c.Count)
	if !c.Exact {
		n = v.T("atleast", n)
	}
	return v.T("confirm.title", v.T("act."+c.Do), n, visible(c.Topic))
}

// Keep returns the text of the button of a confirmation that does nothing.
func (v *view) Keep(c *confirmPage) string {
	if c.Act.Destructive {
		return v.T("confirm.keep", number(c.Count))
	}
	return v.T("confirm.leave", number(c.Count))
}

// Others returns how many more match than are listed.
func (c *confirmPage) Others() int64 { return max(c.Count-int64(len(c.Sample)), 0) }

// CopyWord returns the text of the button that enqueues a copy of a job.
func (v *view) CopyWord(s delayq.State) string {
	if s == delayq.StateDone {
		return v.T("act.again")
	}
	return v.T("act.copy")
}

// Release returns the version of a server, or "" if it is none of a release.
func (v *view) Release(version string) string {
	if strings.HasPrefix(version, "v0.0.0-00010101000000-") {
		return ""
	}
	return version
}

// A keyRow is a shortcut and what it does.
type keyRow struct {
	Keys []string
	Text string
}

// Keys lists the shortcuts that app.js has.
func (v *view) Keys() []keyRow {
	return []keyRow{
		{[]string{"/"}, "key.find"}, {[]string{"g", "t"}, "key.topics"}, {[]string{"g", "f"}, "key.failures"},
		{[]string{"g", "s"}, "key.servers"}, {[]string{"j"}, "key.down"}, {[]string{"k"}, "key.up"}, {[]string{"x"}, "key.check"},
		{[]string{"Enter"}, "key.open"}, {[]string{"."}, "key.pause"}, {[]string{"?"}, "key.help"},
	}
}

// Words lists the words that the help explains.
func (v *view) Words() []string {
	return []string{
		"state.scheduled", "state.ready", "state.running", "state.dead", "state.done", "col.retrying", "figure.overdue", "word.lease",
		"word.snooze", "act.revive", "act.bury", "act.purge",
	}
}
