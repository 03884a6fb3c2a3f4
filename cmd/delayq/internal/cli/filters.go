package cli

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/delayq/delayq"
)

// filters are the flags that select jobs of a topic.
type filters struct {
	state        string
	since, until string
	idPrefix     string
	key          string
	attempt      string
	failed       string
	group        string
	payload      string
	headers      []string
	cursor       string
	budget       int
}

var states = []string{
	string(delayq.StateScheduled), string(delayq.StateReady), string(delayq.StateRunning), string(delayq.StateDead), string(delayq.StateDone),
}

// flags adds the flags. allowed holds the states that make sense; the first one is the default
// unless there is none.
func (f *filters) flags(set *pflag.FlagSet, state string, allowed ...string) {
	set.StringVar(&f.state, "state", state, "`state` of the jobs: "+strings.Join(allowed, ", "))
	set.StringVar(&f.since, "since", "", "due, started, buried or finished at this `time` or later: 24h (ago), +1h, or a date")
	set.StringVar(&f.until, "until", "", "the same before this `time`")
	set.StringVar(&f.idPrefix, "id-prefix", "", "ID begins with this `text`")
	set.StringVar(&f.key, "key", "", "has this `key`")
	set.StringVar(&f.attempt, "attempt", "", "number of the attempt: '>`N`' or '>=N'")
	set.StringVar(&f.failed, "error", "", "last error contains this `text`")
	set.StringVar(&f.group, "failure", "", "belongs to this group of the command failures, a `key`")
	set.StringArrayVar(&f.headers, "header", nil, "has the header `key=value`; can be repeated")
	set.StringVar(&f.payload, "payload", "", "payload contains this `text`")
	set.IntVar(&f.budget, "budget", 0, "most jobs to look at in one call, up to 50,000; 0: 5,000")
	set.StringVar(&f.cursor, "cursor", "", "go on where an earlier call has stopped")
}

// narrow reports whether jobs are examined one by one, so that the number of all jobs in the state
// says nothing about how many match.
func (f *filters) narrow() bool {
	return f.idPrefix != "" || f.key != "" || f.attempt != "" || f.failed != "" || f.group != "" || f.payload != "" || len(f.headers) > 0
}

var attemptForm = regexp.MustCompile(`^>(=?)\s*([0-9]{1,9})$`)

// query returns the query for a topic.
func (f *filters) query(cmd *cobra.Command, a *app, topic string) (q delayq.Query, err error) {
	q = delayq.Query{
		Topic: topic, State: delayq.State(f.state), IDPrefix: f.idPrefix, Error: f.failed, Failure: f.group, Budget: f.budget,
		Cursor: delayq.Cursor(f.cursor),
	}
	if f.payload != "" {
		q.Payload = []byte(f.payload)
	}
	if q.IDPrefix, err = idOf(f.idPrefix); err != nil {
		return q, err
	}
	if q.Key, err = idOf(f.key); err != nil {
		return q, err
	}
	if f.since != "" {
		if q.From, err = a.instant(cmd.Context(), "since", f.since); err != nil {
			return q, err
		}
	}
	if f.until != "" {
		if q.To, err = a.instant(cmd.Context(), "until", f.until); err != nil {
			return q, err
		}
	}
	if f.attempt != "" {
		m := attemptForm.FindStringSubmatch(f.attempt)
		if m == nil {
			return q, usage("--attempt %q: allowed are '>N' and '>=N'", f.attempt)
		}
		if q.MinAttempt, err = strconv.Atoi(m[2]); m[1] == "" {
			q.MinAttempt++
		}
		if err != nil {
			return q, err
		}
	}
	q.Headers, err = headerPairs(f.headers)
	return q, err
}

// text describes the selection in words, for a question.
func (f *filters) text() string {
	var list []string
	add := func(value, words string) {
		if value != "" {
			list = append(list, words+" "+strconv.Quote(value))
		}
	}
	add(f.since, "since")
	add(f.until, "until")
	add(f.idPrefix, "ID begins with")
	add(f.key, "key")
	add(f.attempt, "attempt")
	add(f.failed, "last error contains")
	add(f.group, "failure")
	for _, h := range f.headers {
		add(h, "header")
	}
	add(f.payload, "payload contains")
	if len(list) == 0 {
		return ""
	}
	return ", " + strings.Join(list, ", ")
}
