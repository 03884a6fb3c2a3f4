package web

import (
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// A settingRow is a value that holds in the runs of a job, and who has set it.
type settingRow struct {
	Name  string               `json:"name"`
	Value string               `json:"value"`
	By    delayq.SettingSource `json:"by"`
}

// set puts what holds in the runs of a job into its page. Of the retries that are left, JSON has
// the fewest, if the servers of the topic differ.
func (p *jobPage) set(e *delayq.Explanation) {
	for _, s := range e.Settings {
		p.Settings = append(p.Settings, settingRow(s))
	}
	if p.left = library.RetriesLeft(e); len(p.left) > 0 {
		p.Job.RetriesLeft = p.left[0]
	}
}

// A fact is a value on the page of a job.
type fact struct{ Name, Value, Note string }

// setBy has the keys of the words for who has set a value.
var setBy = map[delayq.SettingSource]string{
	delayq.SetByJob: "setby.job", delayq.SetByHandler: "setby.handler", delayq.SetByDefault: "setby.default", delayq.SetUnlessByHandler: "setby.unless",
}

// Runs returns what holds in the runs of a job. Of a done job it is what the job was given.
func (v *view) Runs(p *jobPage) (list []fact) {
	for _, s := range p.Settings {
		value := s.Value
		if first, limit, two := strings.Cut(value, " to "); two {
			value = v.T("setting.range", first, limit)
		} else if value == "unlimited" {
			value = v.T("unlimited")
		} else if value == "none" {
			value = v.T("setting.none")
		}
		note := string(s.By)
		if key := setBy[s.By]; key != "" {
			note = v.T(key)
		}
		list = append(list, fact{"setting." + s.Name, value, note})
	}
	if j := p.Job; len(list) == 0 && j.Undecodable == "" {
		list = append(list, fact{"setting.retries", v.retries(j.Retries), ""})
		if len(j.Backoff) == 2 {
			list = append(list, fact{"setting.backoff", v.T("setting.range", lasts(j.Backoff[0]), lasts(j.Backoff[1])), ""})
		}
		if j.TimeoutSec > 0 {
			list = append(list, fact{"setting.timeout", lasts(j.TimeoutSec), ""})
		}
		if j.Retention > 0 {
			list = append(list, fact{"setting.retention", lasts(j.Retention), ""})
		}
	}
	if len(p.left) == 0 {
		return list
	}
	var left []string
	for _, n := range p.left {
		left = append(left, v.retries(n))
	}
	return append(list, fact{"fact.left", strings.Join(left, " / "), ""})
}

// Head writes a priority.
func (v *view) Head(head *float64) string {
	switch {
	case *head > 0:
		return v.T("priority.ahead", lasts(*head))
	case *head < 0:
		return v.T("priority.behind", lasts(-*head))
	}
	return v.T("setting.none")
}

// retries writes a number of retries.
func (v *view) retries(n int) string {
	if n < 0 {
		return v.T("unlimited")
	}
	return number(n)
}

// lasts writes a duration.
func lasts(n float64) string { return time.Duration(n * float64(time.Second)).String() }
