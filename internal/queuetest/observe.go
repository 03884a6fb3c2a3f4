package queuetest

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq"
)

type OnScript func(delayq.ScriptEvent)

func (f OnScript) Script(e delayq.ScriptEvent) { f(e) }

// CountScripts is a hook that counts the calls of scripts.
type CountScripts map[string]int

func (c *CountScripts) Script(e delayq.ScriptEvent) {
	if *c == nil {
		*c = CountScripts{}
	}
	(*c)[e.Name]++
}

// A Start is one call of a handler.
type Start struct {
	ID      string
	Attempt int
	At      time.Time // by the local clock
	Started time.Time // by Redis's clock
	Due     time.Time
	Payload string
}

// A Recorder records the calls of handlers.
type Recorder struct {
	mu   sync.Mutex
	list []Start
}

// Then returns a handler that records its call and calls f. If f is nil, it succeeds.
func (r *Recorder) Then(f delayq.HandlerFunc) delayq.HandlerFunc {
	return func(ctx context.Context, job *delayq.Job) error {
		r.mu.Lock()
		r.list = append(r.list, Start{job.ID, job.Attempt, time.Now(), job.StartedAt, job.Due, string(job.Payload)})
		r.mu.Unlock()
		if f == nil {
			return nil
		}
		return f(ctx, job)
	}
}

func (r *Recorder) All() []Start {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func (r *Recorder) IDs() []string {
	var ids []string
	for _, s := range r.All() {
		ids = append(ids, s.ID)
	}
	return ids
}

func (r *Recorder) Of(id string) []Start {
	return slices.DeleteFunc(r.All(), func(s Start) bool { return s.ID != id })
}

// Times returns how often each job was started.
func (r *Recorder) Times() map[string]int {
	n := make(map[string]int)
	for _, id := range r.IDs() {
		n[id]++
	}
	return n
}

// A Logbook keeps what is logged, a line for each record.
type Logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *Logbook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

// To returns the option of a server that logs to the Logbook.
func (l *Logbook) To() delayq.ServerOption {
	return delayq.Logger(slog.New(slog.NewTextHandler(l, nil)))
}

// With returns the lines that contain all the parts.
func (l *Logbook) With(parts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

// A HookLog implements every hook interface. It keeps the events that it receives, by the names of
// the methods.
type HookLog struct {
	Mu      sync.Mutex
	runs    map[string][]delayq.RunEvent
	Scripts []delayq.ScriptEvent
	prunes  []delayq.PruneEvent
}

func (h *HookLog) note(name string, e delayq.RunEvent) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.runs == nil {
		h.runs = make(map[string][]delayq.RunEvent)
	}
	h.runs[name] = append(h.runs[name], e)
}

func (h *HookLog) Started(e delayq.RunEvent)   { h.note("Started", e) }
func (h *HookLog) Done(e delayq.RunEvent)      { h.note("Done", e) }
func (h *HookLog) Again(e delayq.RunEvent)     { h.note("Again", e) }
func (h *HookLog) Retried(e delayq.RunEvent)   { h.note("Retried", e) }
func (h *HookLog) Snoozed(e delayq.RunEvent)   { h.note("Snoozed", e) }
func (h *HookLog) Buried(e delayq.RunEvent)    { h.note("Buried", e) }
func (h *HookLog) Cancelled(e delayq.RunEvent) { h.note("Cancelled", e) }
func (h *HookLog) Replaced(e delayq.RunEvent)  { h.note("Replaced", e) }
func (h *HookLog) LeaseLost(e delayq.RunEvent) { h.note("LeaseLost", e) }
func (h *HookLog) Expired(e delayq.RunEvent)   { h.note("Expired", e) }
func (h *HookLog) Returned(e delayq.RunEvent)  { h.note("Returned", e) }
func (h *HookLog) Held(e delayq.RunEvent)      { h.note("Held", e) }
func (h *HookLog) Late(e delayq.RunEvent)      { h.note("Late", e) }

func (h *HookLog) Pruned(e delayq.PruneEvent) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.prunes = append(h.prunes, e)
}

// AllPruned returns the sum of the events of Pruned.
func (h *HookLog) AllPruned() (sum delayq.PruneEvent) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, e := range h.prunes {
		sum.Topic, sum.Dead, sum.Done = e.Topic, sum.Dead+e.Dead, sum.Done+e.Done
	}
	return sum
}

func (h *HookLog) Script(e delayq.ScriptEvent) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Scripts = append(h.Scripts, e)
}

// Of returns the events of one kind, for all jobs or for those with the given IDs.
func (h *HookLog) Of(name string, ids ...string) []delayq.RunEvent {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.runs[name]), func(e delayq.RunEvent) bool {
		return len(ids) > 0 && !slices.Contains(ids, e.ID)
	})
}

// Total returns the number of events of a kind. For thousands of events it is faster than Of, which
// copies them.
func (h *HookLog) Total(name string) int {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return len(h.runs[name])
}

// Kinds returns the number of events of each kind for a job.
func (h *HookLog) Kinds(id string) map[string]int {
	h.Mu.Lock()
	names := slices.Collect(maps.Keys(h.runs))
	h.Mu.Unlock()
	n := make(map[string]int)
	for _, name := range names {
		if k := len(h.Of(name, id)); k > 0 {
			n[name] = k
		}
	}
	return n
}

// Calls returns the number of calls of a script, for all topics or for the given ones.
func (h *HookLog) Calls(script string, topics ...string) (n int) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, e := range h.Scripts {
		if e.Name == script && (len(topics) == 0 || slices.Contains(topics, e.Topic)) {
			n++
		}
	}
	return n
}
