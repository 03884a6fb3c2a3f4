package prom

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/delayq/delayq"
)

// Metrics counts what the clients and servers of this process do. It is a hook for [delayq.Hooks]
// and a [prometheus.Collector]; both need the same Metrics. It never calls Redis, and is safe for
// concurrent use. Several clients, servers and inspectors can share one.
//
// The metrics have no label prefix. If a process has queues of several prefixes, make Metrics for
// each and register them with [prometheus.WrapRegistererWith].
type Metrics struct {
	err    error // why an option is invalid
	labels sharedFolding

	runs     table[runSeries]
	enqueues table[resultSeries]
	cancels  table[resultSeries]
	calls    table[callSeries]
	scripts  table[scriptSeries]

	all []prometheus.Collector
}

// remembered is how many topics Metrics remembers at least if they share labels.
const remembered = 4096

// NewMetrics returns metrics of this process. If an option is invalid, Register returns an error
// that wraps [delayq.ErrInvalid], and the hook counts nothing that anybody can see.
func NewMetrics(opts ...MetricsOption) *Metrics {
	o := defaults
	for _, opt := range opts {
		if opt == nil {
			o.refuse("an option of NewMetrics is nil")
			continue
		}
		opt.applyMetrics(&o)
	}
	m := &Metrics{err: o.err()}
	if m.err != nil {
		o.maxTopics = 1
	}
	m.labels.folding = folding{most: o.maxTopics, rename: o.label}
	most := o.maxTopics
	if o.label != nil {
		most = max(most, remembered)
	}
	m.makeRuns(most)
	m.enqueues = results(m, enqueuesTotal, most, enqueueResults)
	m.cancels = results(m, cancelsTotal, most, cancelResults)
	m.makeCalls()
	build := buildInfo.gauges()
	build.WithLabelValues(version()).Set(1)
	m.all = append(m.all, build)
	return m
}

// Describe is that of [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	if m.err != nil {
		ch <- prometheus.NewInvalidDesc(fmt.Errorf("prom: NewMetrics: %w", m.err))
		return
	}
	for _, c := range m.all {
		c.Describe(ch)
	}
}

// Collect is that of [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

// runSeries are the series of a topic that are about runs.
type runSeries struct {
	running         prometheus.Gauge
	lateness, took  prometheus.Observer
	early, panicked prometheus.Counter
	outcomes        map[delayq.Outcome]prometheus.Counter
	ended           func(delayq.RunEvent) // the method end, made once
}

var outcomes = []delayq.Outcome{
	delayq.OutcomeAcked, delayq.OutcomeAgain, delayq.OutcomeRetried, delayq.OutcomeSnoozed, delayq.OutcomeBuried, delayq.OutcomeExpired,
	delayq.OutcomeReturned, delayq.OutcomeCancelled, delayq.OutcomeReplaced, delayq.OutcomeLeaseLost, delayq.OutcomeHeld,
}

func (m *Metrics) makeRuns(most int) {
	total, late, early := runsTotal.counters(), lateness.histograms(latenessBounds), earlyRunsTotal.counters()
	took, running, panicked := runDuration.histograms(durationBounds), runningJobs.gauges(), panicsTotal.counters()
	m.all = append(m.all, total, late, early, took, running, panicked)
	m.runs.label, m.runs.most = m.labels.label, most
	m.runs.create = func(label string) *runSeries {
		s := &runSeries{
			running: running.WithLabelValues(label), lateness: late.WithLabelValues(label), took: took.WithLabelValues(label),
			early: early.WithLabelValues(label), panicked: panicked.WithLabelValues(label),
			outcomes: make(map[delayq.Outcome]prometheus.Counter, len(outcomes)),
		}
		for _, outcome := range outcomes {
			s.outcomes[outcome] = total.WithLabelValues(label, string(outcome))
		}
		s.ended = s.end
		return s
	}
}

// Run is that of [delayq.RunHook].
func (m *Metrics) Run(_ context.Context, event delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	s := m.runs.get(event.Topic)
	s.running.Inc()
	late := event.Lateness()
	if late < 0 {
		s.early.Inc()
		late = 0
	}
	s.lateness.Observe(late.Seconds())
	return nil, s.ended
}

// end is called when a run has ended. If its outcome was not recorded, nothing counts it.
func (s *runSeries) end(event delayq.RunEvent) {
	s.running.Dec()
	if !event.FinishedAt.IsZero() {
		s.took.Observe(max(0, event.FinishedAt.Sub(event.StartedAt)).Seconds())
	}
	if event.Stack != "" {
		s.panicked.Inc()
	}
	s.count(event.Outcome)
}

// Ended is that of [delayq.EndedHook].
func (m *Metrics) Ended(event delayq.RunEvent) {
	if event.StartedAt.IsZero() { // else end counts it
		m.runs.get(event.Topic).count(event.Outcome)
	}
}

func (s *runSeries) count(outcome delayq.Outcome) {
	if c := s.outcomes[outcome]; c != nil {
		c.Inc()
	}
}

// resultSeries count results of calls about the jobs of a topic.
type resultSeries map[string]prometheus.Counter

// The results of an enqueue and of a cancel. That of a cancel is the state in which the job was.
var (
	enqueueResults = []string{"stored", "duplicate", "changed", "invalid", "unknown", "error"}
	cancelResults  = []string{
		string(delayq.StateScheduled), string(delayq.StateReady), string(delayq.StateRunning), string(delayq.StateDead),
		"not_found", "changed", "invalid", "unknown", "error",
	}
)

func results(m *Metrics, f *family, most int, words []string) table[resultSeries] {
	total := f.counters()
	m.all = append(m.all, total)
	return table[resultSeries]{label: m.labels.label, most: most, create: func(label string) *resultSeries {
		s := make(resultSeries, len(words))
		for _, word := range words {
			s[word] = total.WithLabelValues(label, word)
		}
		return &s
	}}
}

// count counts a result. An invalid topic gets no series of its own, because anything can be one.
func count(t *table[resultSeries], topic, word string) {
	s := t.peek
	if word != "invalid" {
		s = t.get
	}
	if c := (*s(topic))[word]; c != nil {
		c.Inc()
	}
}

// resultOf returns the word for the result of a call. done is that of a call that was carried out.
func resultOf(err error, done string) string {
	switch {
	case err == nil, errors.Is(err, delayq.ErrNotAudited), errors.Is(err, delayq.ErrNotReplicated):
		return done
	case errors.Is(err, delayq.ErrDuplicate):
		return "duplicate"
	case errors.Is(err, delayq.ErrNotFound):
		return "not_found"
	case errors.Is(err, delayq.ErrChanged):
		return "changed"
	case errors.Is(err, delayq.ErrInvalid):
		return "invalid"
	case errors.Is(err, delayq.ErrUnknownOutcome):
		return "unknown"
	}
	return "error"
}

// Enqueued is that of [delayq.EnqueuedHook].
func (m *Metrics) Enqueued(_ context.Context, event delayq.EnqueueEvent) {
	count(&m.enqueues, event.Topic, resultOf(event.Err, "stored"))
}

// Dequeued is that of [delayq.DequeuedHook].
func (m *Metrics) Dequeued(_ context.Context, event delayq.DequeueEvent) {
	count(&m.cancels, event.Topic, resultOf(event.Err, string(event.State)))
}

// callSeries are the series of a kind of call.
type callSeries struct{ took prometheus.Observer }

// scriptSeries are the series of a script.
type scriptSeries struct {
	took   prometheus.Observer
	failed prometheus.Counter
}

// names is more than delayq has of calls and of scripts.
const names = 100

func (m *Metrics) makeCalls() {
	calls, scripts, failed := callDuration.histograms(callBounds), redisCallDuration.histograms(callBounds), redisErrorsTotal.counters()
	m.all = append(m.all, calls, scripts, failed)
	same := func(name string) string { return name }
	m.calls = table[callSeries]{label: same, most: names, create: func(call string) *callSeries {
		return &callSeries{calls.WithLabelValues(call)}
	}}
	m.scripts = table[scriptSeries]{label: same, most: names, create: func(script string) *scriptSeries {
		return &scriptSeries{scripts.WithLabelValues(script), failed.WithLabelValues(script)}
	}}
}

// Call is that of [delayq.CallHook].
func (m *Metrics) Call(_ context.Context, call delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	s, began := m.calls.get(call.Name), time.Now()
	return nil, func(delayq.CallResult) { s.took.Observe(time.Since(began).Seconds()) }
}

// Script is that of [delayq.ScriptHook]. A call that was given up, as a server does when it stops,
// is not counted.
func (m *Metrics) Script(event delayq.ScriptEvent) {
	if errors.Is(event.Err, context.Canceled) {
		return
	}
	s := m.scripts.get(event.Name)
	s.took.Observe(event.Duration.Seconds())
	if event.Err != nil {
		s.failed.Inc()
	}
}

// module is the path of delayq in the build information.
const module = "github.com/delayq/delayq"

// version returns the version of delayq in this program.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			if m.Replace != nil {
				m = m.Replace
			}
			if v := strings.ToValidUTF8(m.Version, ""); v != "" {
				return v
			}
		}
	}
	return "unknown"
}
