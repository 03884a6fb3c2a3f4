package web

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// A filter is the selection of jobs in the parameters of a page.
type filter struct {
	query delayq.Query
	text  map[string]string // the parameters as they were given
	set   bool              // something narrows the state
	named bool              // the state was given

	columns []string // headers that a list shows, and payloadColumn
	page    int64    // from 1; without a meaning beside a cursor
}

// filterFields are the parameters besides topic and state.
var filterFields = []string{"from", "to", "prefix", "key", "attempt", "error", "failure", "header", "payload"}

// rowChoices are the lengths of pages that a page offers. Each up to 1,000 is accepted.
var rowChoices = []int{25, 100, 500}

// filter reads the selection. The topic is that of the view.
func (v *view) filter() (*filter, error) {
	f := &filter{query: delayq.Query{Topic: v.Topic, State: delayq.State(v.query.Get("state"))}, text: make(map[string]string)}
	if f.named = f.query.State != ""; !f.named {
		f.query.State = delayq.StateScheduled
	}
	bad := func(name string, err error) error { return mistake(name, "%v", err) }
	for _, name := range filterFields {
		f.text[name] = v.query.Get(name)
		f.set = f.set || f.text[name] != ""
	}
	var err error
	if f.query.From, err = moment(f.text["from"], v.Now); err != nil {
		return nil, bad("from", err)
	}
	if f.query.To, err = moment(f.text["to"], v.Now); err != nil {
		return nil, bad("to", err)
	}
	if text := f.text["attempt"]; text != "" {
		if f.query.MinAttempt, err = strconv.Atoi(text); err != nil {
			return nil, bad("attempt", fmt.Errorf("%q is not a number", text))
		}
	}
	if text := f.text["header"]; text != "" {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, bad("header", fmt.Errorf("%q: must be name=value", text))
		}
		f.query.Headers = map[string]string{name: value}
	}
	f.query.IDPrefix, f.query.Key, f.query.Error, f.query.Failure = f.text["prefix"], f.text["key"], f.text["error"], f.text["failure"]
	f.query.Payload = []byte(f.text["payload"])
	if f.secret() {
		// A search would tell what is hidden.
		if err := v.h.may(v, RightPayload, v.Topic); err != nil {
			return nil, err
		}
		if v.h.o.rule(v.Topic).redacted {
			return nil, &refusal{status: http.StatusForbidden, text: v.T("error.redacted")}
		}
	}
	if err := v.columns(f); err != nil {
		return nil, err
	}
	f.query.Latest = v.query.Get("order") == "latest"
	f.query.Cursor = delayq.Cursor(v.query.Get("cursor"))
	f.page = 1
	if text := v.query.Get("rows"); text != "" {
		if f.query.Limit, err = strconv.Atoi(text); err != nil {
			return nil, bad("rows", fmt.Errorf("%q is not a number", text))
		}
	}
	if text := v.query.Get("page"); text != "" && f.query.Cursor == "" {
		if f.page, err = strconv.ParseInt(text, 10, 64); err != nil || f.page < 1 || f.page > mostPages {
			return nil, &refusal{status: http.StatusBadRequest, text: fmt.Sprintf("page: %q is not a number from 1 to %d", text, int64(mostPages))}
		}
		if f.page > 1 && !f.Paged() {
			return nil, &refusal{status: http.StatusBadRequest, text: "page: not with a filter that looks at each job"}
		}
		f.query.Offset = (f.page - 1) * int64(f.Rows())
	}
	if f.query.Limit > payloadRows && slices.Contains(f.columns, payloadColumn) {
		return nil, bad("columns", fmt.Errorf("%s is for at most %d rows", payloadColumn, payloadRows))
	}
	return f, nil
}

const (
	payloadColumn = "payload" // the column with the beginning of the payload; a header of that name is header:payload
	mostColumns   = 5
	payloadRows   = 100
)

// columns reads which columns a list has besides its own.
func (v *view) columns(f *filter) error {
	for name := range strings.SplitSeq(v.query.Get("columns"), ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(f.columns, name) {
			f.columns = append(f.columns, name)
		}
	}
	if len(f.columns) == 0 {
		return nil
	}
	if len(f.columns) > mostColumns {
		return mistake("columns", "at most %d", mostColumns)
	}
	if err := v.h.may(v, RightPayload, v.Topic); err != nil {
		return err
	}
	if v.h.o.rule(v.Topic).redacted {
		return &refusal{status: http.StatusForbidden, text: v.T("error.redacted")}
	}
	return nil
}

// admits reports whether a job is in the selection, apart from its group of failures.
func (f *filter) admits(info *delayq.JobInfo) bool {
	q := &f.query
	at := record(info, false).index()
	message := ""
	if n := len(info.Errors); n > 0 {
		message = info.Errors[n-1].Message
	}
	for name, value := range q.Headers {
		if has, ok := info.Headers[name]; !ok || has != value {
			return false
		}
	}
	return (!f.named || info.State == q.State) && (q.From.IsZero() || !at.Before(q.From)) && (q.To.IsZero() || at.Before(q.To)) &&
		(q.Key == "" || info.Key == q.Key) && strings.HasPrefix(info.ID, q.IDPrefix) && info.Attempt >= q.MinAttempt &&
		strings.Contains(message, q.Error) && bytes.Contains(info.Payload, q.Payload)
}

// typedFilter returns a selection as it was typed, with its mistakes.
func (v *view) typedFilter() *filter {
	f := &filter{query: delayq.Query{Topic: v.Topic, State: delayq.State(v.query.Get("state"))}, text: make(map[string]string), set: true}
	if !slices.Contains(states, f.query.State) {
		f.query.State = delayq.StateScheduled
	}
	for _, name := range filterFields {
		f.text[name] = v.query.Get(name)
	}
	f.columns = []string{v.query.Get("columns")}
	f.query.Latest = v.query.Get("order") == "latest"
	return f
}

// values returns the selection as parameters, with absolute times and without the cursor.
func (f *filter) values() url.Values {
	q := url.Values{"topic": {f.query.Topic}, "state": {string(f.query.State)}}
	for name, text := range f.text {
		if text != "" {
			q.Set(name, text)
		}
	}
	for name, at := range map[string]time.Time{"from": f.query.From, "to": f.query.To} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.query.Latest {
		q.Set("order", "latest")
	}
	if len(f.columns) > 0 {
		q.Set("columns", strings.Join(f.columns, ","))
	}
	if f.query.Limit != 0 {
		q.Set("rows", strconv.Itoa(f.query.Limit))
	}
	return q
}

// key identifies what was asked for, with relative times as they are.
func (f *filter) key() string {
	q := url.Values{
		"topic": {f.query.Topic}, "state": {string(f.query.State)}, "rows": {strconv.Itoa(f.query.Limit)},
		"latest": {strconv.FormatBool(f.query.Latest)}, "cursor": {string(f.query.Cursor)}, "page": {strconv.FormatInt(f.page, 10)},
	}
	for name, text := range f.text {
		q.Set(name, text)
	}
	return q.Encode()
}

// secret reports whether the selection is by something that only those who may see payloads know.
func (f *filter) secret() bool { return f.text["payload"] != "" || f.text["header"] != "" }

// Text returns a parameter as it was given.
func (f *filter) Text(name string) string { return f.text[name] }

// Set reports whether something narrows the state.
func (f *filter) Set() bool { return f.set }

// Open reports whether the fields are shown: one of them is used.
func (f *filter) Open() bool {
	return f.set || f.query.Latest || f.query.Limit != 0 || len(f.columns) > 0
}

// Columns returns the columns that were asked for.
func (f *filter) Columns() []string { return f.columns }

// ColumnText returns them as they are typed.
func (f *filter) ColumnText() string { return strings.Join(f.columns, ", ") }

// State returns the state.
func (f *filter) State() delayq.State { return f.query.State }

// Latest reports whether the order is reversed.
func (f *filter) Latest() bool { return f.query.Latest }

// Rows returns the length of a page.
func (f *filter) Rows() int {
	if f.query.Limit == 0 {
		return previewRows
	}
	return f.query.Limit
}

// mostPages is more than the pages of any state.
const mostPages = 1 << 30

// Paged reports whether the list has pages that can be found by their numbers: no filter looks at
// each job.
func (f *filter) Paged() bool {
	for name, text := range f.text {
		byTime := (name == "from" || name == "to") && f.query.State != delayq.StateReady && f.query.State != delayq.StateRunning
		if text != "" && !byTime {
			return false
		}
	}
	return true
}

// Page returns the number of the page.
func (f *filter) Page() int64 { return f.page }

// RowChoices returns the lengths of pages that the page offers.
func (f *filter) RowChoices() []int { return rowChoices }

// momentLayouts are the forms of an absolute time. Those without a zone are in UTC.
var momentLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly}

// moment reads a time: an absolute one, "now", or a distance from now such as -24h, 90m or 3d.
func moment(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	switch text {
	case "":
		return time.Time{}, nil
	case "now":
		return now, nil
	}
	for _, layout := range momentLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	if d, err := span(text); err == nil {
		return now.Add(d), nil
	}
	return time.Time{}, fmt.Errorf("%q: must be a time such as 2026-11-20 14:00 (UTC), or a distance from now such as -24h", text)
}

// span reads a duration as time.ParseDuration does, and days.
func span(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || !(n <= 40_000 && n >= -40_000) { // NaN is a number to ParseFloat
			return 0, fmt.Errorf("%q is not a duration", text)
		}
		return time.Duration(n * 24 * float64(time.Hour)), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 30s, 10m, 2h or 3d", text)
	}
	return d, nil
}
