package worker

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// A Topic is what the file says about a topic.
type Topic struct {
	Name   string
	Kind   string // sql, command, mail or webhook
	Detail string // what it does, for people, such as "2 statements of shop"

	kind      kind
	settings  settings
	schedules []*schedule
}

// Concurrency returns how many jobs run at a time.
func (t *Topic) Concurrency() int { return t.settings.concurrency }

// Schedules returns the number of schedules.
func (t *Topic) Schedules() int { return len(t.schedules) }

// A kind is what a topic does with its jobs.
type kind interface {
	// same returns what is equal (reflect.DeepEqual) for kinds that do the same.
	same() any
	// handler makes the handler. The client holds keys. open returns a database.
	handler(client *delayq.Client, open func(*databaseConfig) (*pool, error)) (delayq.Handler, error)
	// databases are those that the handler needs.
	databases() []*databaseConfig
	// task names what a payload asks for, such as clean-zombies. It is empty if the topic does only
	// one thing.
	task(payload []byte) string
	// complaint says why a payload asks for nothing that the topic does. It is empty if it does.
	complaint(payload []byte) string
}

// The settings of a topic that a running server cannot change without taking the topic anew.
type settings struct {
	concurrency int
	limits      delayq.Limits
	job         jobSettings
}

// A jobSettings is what topics and schedules can say about runs.
type jobSettings struct {
	retry                                int
	timeout, retention                   time.Duration
	backoffFirst, backoffLimit           time.Duration
	retries, timed, retained, backingOff bool // what is set
}

// options returns the options of delayq.
func (s *jobSettings) options() (list []delayq.JobOption) {
	if s.retries {
		list = append(list, delayq.Retry(s.retry))
	}
	if s.timed {
		list = append(list, delayq.Timeout(s.timeout))
	}
	if s.backingOff {
		list = append(list, delayq.Backoff(s.backoffFirst, s.backoffLimit))
	}
	if s.retained {
		list = append(list, delayq.Retention(s.retention))
	}
	return list
}

// choose returns the complaint about a payload that must name one of several things.
func choose[V any](payload []byte, field string, among map[string]V) string {
	name := named(payload, field)
	if _, found := among[name]; found && name != "" {
		return ""
	}
	return fmt.Sprintf("payload: there is no %s %s in this topic; expected {%s: …} with one of %s", field, shown(name), field,
		strings.Join(slices.Sorted(maps.Keys(among)), ", "))
}

// options returns the options of Server.Handle.
func (s *settings) options() []delayq.HandlerOption {
	list := []delayq.HandlerOption{delayq.Concurrency(s.concurrency), delayq.Defaults(s.job.options()...)}
	if s.limits != (delayq.Limits{}) {
		list = append(list, delayq.DefaultLimits(s.limits))
	}
	return list
}

// kinds are the fields of a topic that say what it does.
var kinds = []string{"sql", "command", "mail", "webhook"}

// topic reads a topic.
func (l *loader) topic(name string, key *yaml.Node, o *object) *Topic {
	t := &Topic{Name: name}
	if strings.Contains(name, "*") {
		l.at(key, "topic %s: a pattern; expected the name of one topic", shown(name))
	} else {
		l.check.name(l.reader, key, "topic", name)
	}
	readers := map[string]func(*object) (kind, string){"sql": l.sql, "command": l.command, "mail": l.mail, "webhook": l.webhook}
	for _, k := range kinds {
		of := o.object(k)
		switch {
		case of == nil && o.has(k):
			t.Kind = k // it has no value, which has been noted
		case of == nil:
		case t.Kind != "":
			l.at(o.key(k), "%s: the topic has %s already; expected one of them", k, t.Kind)
		default:
			t.Kind = k
			t.kind, t.Detail = readers[k](of)
		}
	}
	if t.Kind == "" && o.isMapping() {
		l.at(key, "topic %s: does nothing; expected one of %s", shown(name), strings.Join(kinds, ", "))
	}
	before := len(l.mistakes)
	t.settings = settings{concurrency: o.number("concurrency", 1, 10_000, 10), limits: l.limits(o.object("limits")), job: l.job(o)}
	if len(l.mistakes) == before {
		h := delayq.HandlerFunc(func(context.Context, *delayq.Job) error { return nil })
		for _, text := range complaints(l.check.server.Handle("x"+fmt.Sprint(len(name), key.Line), h, t.settings.options()...)) {
			l.at(key, "topic %s: %s", shown(name), text)
		}
	}
	o.each("schedules", func(name string, key, value *yaml.Node) {
		t.schedules = append(t.schedules, l.schedule(t, name, key, l.mapping(value, shown(name))))
	})
	o.end()
	return t
}

// job reads the settings of runs.
func (l *loader) job(o *object) (s jobSettings) {
	if n := o.get("retry"); n != nil {
		if text, ok := l.scalar(n, "retry"); ok {
			retry, err := values.ParseRetry(text)
			if err != nil || text != "unlimited" && retry < 0 || retry > math.MaxInt32 {
				l.at(n, "retry: %s; expected a number from 0 to %d, or unlimited", shown(text), math.MaxInt32)
			}
			s.retry, s.retries = retry, true
		}
	}
	s.timed, s.retained, s.backingOff = o.has("timeout"), o.has("retention"), o.has("backoff")
	s.timeout = o.span("timeout", time.Millisecond, forever, 0)
	s.retention = o.span("retention", time.Millisecond, forever, 0)
	switch list := o.list("backoff"); {
	case len(list) == 2:
		first, ok := l.spanAt(list[0], "backoff", time.Millisecond, forever)
		limit, too := l.spanAt(list[1], "backoff", time.Millisecond, forever)
		if ok && too && first > limit {
			l.at(list[0], "backoff: the first delay %s is longer than the largest one, %s", spanText(first), spanText(limit))
		}
		s.backoffFirst, s.backoffLimit = first, limit
	case len(list) > 0:
		l.at(o.fields["backoff"].value, "backoff: %d values; expected two durations, the first delay and the largest one", len(list))
	}
	return s
}

// limits reads limits.
func (l *loader) limits(o *object) (limits delayq.Limits) {
	if o == nil {
		return limits
	}
	limits.Running = o.number("running", 1, 1_000_000, 0)
	limits.RunningPerKey = o.number("running_per_key", 1, 1000, 0)
	starts, rate := l.rate(o, "rate")
	if burst := o.number("burst", 1, 1_000_000, 0); burst > 0 && starts > 0 {
		if burst > starts {
			l.at(o.fields["burst"].value, "burst: %d; expected 1 to %d, the starts of the rate", burst, starts)
		} else {
			rate = rate.Burst(burst)
		}
	}
	if o.flag("strict") {
		if rate = rate.Strict(); starts > 1 && rate.MaxBurst() == starts {
			l.at(o.fields["strict"].value, "strict: needs a burst below %d, the starts of the rate", starts)
		}
	}
	for _, name := range []string{"burst", "strict"} {
		if o.has(name) && !o.has("rate") {
			l.at(o.key(name), "%s: needs a rate", name)
		}
	}
	_, perKey := l.rate(o, "rate_per_key")
	if starts > 0 {
		limits.Rate = rate
	}
	limits.RatePerKey = perKey
	o.end()
	return limits
}

// The bounds of a rate.
const (
	mostStarts  = 1_000_000
	longestRate = 366 * 24 * time.Hour
)

// rate reads a rate. Without one it returns 0 starts.
func (l *loader) rate(o *object, name string) (int, delayq.Rate) {
	text, ok := l.scalar(o.get(name), name)
	if !ok {
		return 0, delayq.Rate{}
	}
	starts, period, err := values.ParseRate(text)
	switch n := o.fields[name].value; {
	case err != nil:
		l.at(n, "%s: %s is no rate; expected starts/period, such as 100/1m", name, shown(text))
		return 0, delayq.Rate{}
	case starts > mostStarts:
		l.at(n, "%s: %d starts; expected 1 to %d", name, starts, mostStarts)
		return 0, delayq.Rate{}
	case period > longestRate || period < time.Duration(starts)*time.Microsecond:
		l.at(n, "%s: a period of %s; expected %s (1µs for each start) to %s", name, spanText(period), time.Duration(starts)*time.Microsecond, spanText(longestRate))
		return 0, delayq.Rate{}
	}
	return starts, delayq.Per(starts, period)
}
