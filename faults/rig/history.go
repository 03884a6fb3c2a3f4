package rig

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An Event is one line of a history. What does not apply is left out.
type Event struct {
	Mono int64  `json:"mono"` // CLOCK_MONOTONIC in ns: the same for all processes of a machine
	Wall int64  `json:"wall"` // Unix ms
	Proc string `json:"proc"`
	Op   string `json:"op"`
	Type string `json:"type,omitempty"` // of a call: invoke, then ok, fail (for certain not carried out) or info (unknown)
	Call int64  `json:"call,omitempty"` // ties the outcome of a call to its invocation
	Row  bool   `json:"row,omitempty"`  // the call is a row of an outbox: those about one ID are carried out in their order

	Topic   string `json:"topic,omitempty"`
	ID      string `json:"id,omitempty"`
	Key     string `json:"key,omitempty"`     // of a job that starts, or the key that a call is about
	Inc     int64  `json:"inc,omitempty"`     // the incarnation: unique for every enqueueing, carried in the payload
	Delay   int64  `json:"delay,omitempty"`   // ms
	Retries int    `json:"retries,omitempty"` // allowed after the first failure; below 0: any number
	Expires bool   `json:"expires,omitempty"` // the job may be dropped unrun
	Sum     string `json:"sum,omitempty"`     // of the payload

	Attempt int    `json:"attempt,omitempty"`
	Fence   int64  `json:"fence,omitempty"`
	Nonce   string `json:"nonce,omitempty"`   // hex
	Started int64  `json:"started,omitempty"` // of a run, Redis's clock in µs: with Proc and ID it names the run
	Due     int64  `json:"due,omitempty"`     // Unix ms
	Made    int64  `json:"made,omitempty"`    // of a run: when Redis stored the job, Unix ms
	Count   int64  `json:"count,omitempty"`
	Of      int64  `json:"of,omitempty"` // the incarnation whose handler enqueued this one
	Result  string `json:"result,omitempty"`
	Err     string `json:"err,omitempty"`

	Next  *Next  `json:"next,omitempty"`  // of OpThen
	Plan  *Plan  `json:"plan,omitempty"`  // of OpSchedule
	Books *Books `json:"books,omitempty"` // of OpRead
	Ran   []Ran  `json:"ran,omitempty"`   // of OpRuns

	Keys map[string]int64 `json:"keys,omitempty"` // of OpSample: running jobs by key
}

// A Next is a job that a run hands over.
type Next struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	Inc   int64  `json:"inc"`
	Delay int64  `json:"delay,omitempty"` // ms
	Sum   string `json:"sum"`             // of the payload
}

// Operations.
const (
	OpEnqueue    = "enqueue"
	OpReplace    = "replace"
	OpGiveWay    = "give way" // an enqueueing that only a dead job gives way to
	OpAgain      = "again"    // a handler returns Again: Inc is the new job's, Of its own
	OpThen       = "then"     // a run hands over the job Next
	OpHold       = "hold"     // a topic is paused, by ID, for Delay
	OpRelease    = "release"  // a topic is resumed, by ID
	OpHoldKey    = "hold key" // Key of a topic is held for Delay, or paused if that is 0
	OpReleaseKey = "release key"
	OpCancel     = "cancel"
	OpReschedule = "reschedule"
	OpSchedule   = "schedule" // ID is the name of the schedule, here and in the next ones
	OpUnschedule = "unschedule"
	OpPause      = "pause"
	OpResume     = "resume"
	OpTrigger    = "trigger" // Result is the ID of the job
	OpRead       = "read"    // Inspector.Schedule
	OpRuns       = "runs"
	OpCheck      = "check"   // Check without repair; Err lists what it found
	OpStart      = "start"   // a handler starts
	OpEnd        = "end"     // a handler ends; Result says how
	OpLost       = "lost"    // a handler's context ended; Result is the cause
	OpSettled    = "settled" // a hook says what became of a run; Result is the outcome
	OpPruned     = "pruned"  // a hook says that so many dead jobs were removed
	OpStep       = "step"    // Count is the number of a step of a job: Invoke when it begins, OK when it is saved; Result is StepKnown if an earlier run has saved it. Sum is its key; Err says what is wrong with its result
	OpTold       = "told"    // who waited for a job is told of its end: Result is how, Sum its output, Delay how long after the end
	OpMixed      = "mixed"   // a job in a batch of another key, of a topic that gathers by key
	OpSample     = "sample"  // Count jobs of a topic have leases in Redis
	OpFault      = "fault"   // a fault begins; Result is its kind, ID the process it hits, if it is one, or of Damage what it changes
	OpHeal       = "heal"    // it is over
	OpUp         = "up"      // a worker process runs
)

// StepKnown is the result of a step that an earlier run has saved.
const StepKnown = "known"

// Damage is the kind of a fault that changes what Redis holds of a topic behind its back.
const Damage = "damage"

// Types of calls.
const (
	Invoke = "invoke"
	OK     = "ok"
	Fail   = "fail"
	Info   = "info"
)

// Mono reads the clock of the histories.
func Mono() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no such clock: nothing here works
	}
	return ts.Nano()
}

// A Recorder appends events to a file of its own. Every line is handed to the system before Record
// returns, so that the death of the process loses none. Safe for concurrent use.
type Recorder struct {
	proc string

	mu   sync.Mutex
	file *os.File
	err  error
}

// NewRecorder opens the file of a process in a directory. If an earlier process of that name was
// killed within a line, the part of it is removed.
func NewRecorder(dir, proc string) (*Recorder, error) {
	f, err := os.OpenFile(filepath.Join(dir, proc+".jsonl"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	if err := cutToLines(f); err != nil {
		return nil, errors.Join(fmt.Errorf("history: %w", err), f.Close())
	}
	return &Recorder{proc: proc, file: f}, nil
}

// cutToLines removes what follows the last line feed of a file.
func cutToLines(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end, part := info.Size(), make([]byte, 4096)
	for end > 0 {
		from := max(0, end-int64(len(part)))
		n, err := f.ReadAt(part[:end-from], from)
		if err != nil {
			return err
		}
		if at := bytes.LastIndexByte(part[:n], '\n'); at >= 0 {
			end = from + int64(at) + 1
			break
		}
		end = from
	}
	if end == info.Size() {
		return nil
	}
	return f.Truncate(end)
}

// Record stamps an event and writes it.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Mono, e.Wall, e.Proc = Mono(), time.Now().UnixMilli(), r.proc
	raw, err := json.Marshal(e)
	if err == nil {
		_, err = r.file.Write(append(raw, '\n'))
	}
	if r.err == nil {
		r.err = err
	}
}

// Close closes the file and tells what went wrong with any event.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.file.Close()
	if r.err != nil {
		return r.err
	}
	return err
}

// A History follows the files of a directory while they grow.
type History struct {
	dir string

	mu     sync.Mutex
	read   map[string]int64
	events []Event
}

// NewHistory follows a directory.
func NewHistory(dir string) *History {
	return &History{dir: dir, read: make(map[string]int64)}
}

// Dir is the directory.
func (h *History) Dir() string { return h.dir }

// Events reads what is new and returns all events in the order of the clock. The last line of a
// process that was killed may be cut short; it is left out.
func (h *History) Events() ([]Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	files, err := filepath.Glob(filepath.Join(h.dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	before := len(h.events)
	for _, name := range files {
		if err := h.follow(name); err != nil {
			return nil, err
		}
	}
	if len(h.events) > before {
		slices.SortStableFunc(h.events, func(a, b Event) int {
			switch {
			case a.Mono < b.Mono:
				return -1
			case a.Mono > b.Mono:
				return 1
			}
			return 0
		})
	}
	return slices.Clone(h.events), nil
}

func (h *History) follow(name string) error {
	f, err := os.Open(name) //nolint:gosec // a file of our own directory
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	from := h.read[name]
	if info.Size() <= from {
		return nil
	}
	raw := make([]byte, info.Size()-from)
	if _, err := f.ReadAt(raw, from); err != nil {
		return err
	}
	end := bytes.LastIndexByte(raw, '\n') + 1
	h.read[name] = from + int64(end)
	for text := range bytes.Lines(raw[:end]) {
		var e Event
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("history %s: %w", name, err)
		}
		h.events = append(h.events, e)
	}
	return nil
}

// Each calls f for each event of each process, one process after the other. It holds none, so a
// history may be larger than memory. It reads the files from their start.
func (h *History) Each(f func(Event)) error {
	files, err := filepath.Glob(filepath.Join(h.dir, "*.jsonl"))
	if err != nil {
		return err
	}
	for _, name := range files {
		if err := each(name, f); err != nil {
			return fmt.Errorf("history %s: %w", name, err)
		}
	}
	return nil
}

func each(name string, f func(Event)) error {
	file, err := os.Open(name) //nolint:gosec // a file of our own directory
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewReader(file)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil { // a last line that was cut short is left out
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		var e Event
		if err := json.Unmarshal(text, &e); err != nil {
			return err
		}
		f(e)
	}
}

// Await reads until the condition holds, and tells whether that was within the limit.
func (h *History) Await(limit time.Duration, holds func([]Event) bool) (bool, error) {
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		events, err := h.Events()
		if err != nil || holds(events) {
			return err == nil, err
		}
		if time.Now().After(deadline) {
			return false, nil
		}
	}
}
