package run

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// Errors of steps, and of reports after the end of the run.
var (
	ErrReturned  = errors.New("the handler has returned")
	ErrManySteps = errors.New("the job has " + strconv.Itoa(record.MaxSteps) + " steps, and no more are allowed")
	ErrDamaged   = errors.New("the note of the job in Redis is damaged, and which steps are over cannot be read")
	ErrNoResult  = errors.New("the step is over, but Redis has lost its result")
	ErrNoMemory  = errors.New("its result is not saved: the memory of Redis is full (OOM)")
)

// Noted is what a run says of its job: how far it has come, and which of its steps are over. Copies
// of the job share it. The zero value belongs to no server, and remembers all.
type Noted struct {
	run  *Run
	to   Noter
	mark int64 // names the run among those of the job

	mu     sync.Mutex
	said   int64         // reports
	over   bool          // the handler has returned
	report string        // that Redis is not known to have, as the note script reads it; empty: none
	queued bool          // the Noter knows of it
	known  bool          // the names of the steps that earlier runs have made have been read
	reads  chan struct{} // held during a read; nil: there was none yet
	steps  map[string]*made
	kept   int // bytes of the results in steps
}

// A made is a step of the job that is over, or that runs.
type made struct {
	busy   chan struct{} // closed when the step no longer runs; nil: it does not
	here   bool          // result is what it has saved
	result string
}

// keptResults is how many bytes of results a run remembers. It reads others again.
const keptResults = script.CallBytes

// A Noter tells Redis what runs note, and reads it.
type Noter interface {
	// Report is told that a run has a report to send. It does not wait for Redis.
	Report(r *Run)
	// Save saves the result of a step, and returns when Redis has it.
	Save(ctx context.Context, r *Run, step, result string) error
	// Recall reads the names of all steps and the results of the first ones, or the results of some
	// steps. A step that nothing is known of is not in them.
	Recall(ctx context.Context, r *Run, some ...string) (names []string, results map[string]string, err error)
}

// of makes it that of a run.
func (n *Noted) of(r *Run, to Noter) { n.run, n.to, n.mark = r, to, r.Lease.Load() }

// Report notes how far the run has come. It returns false if that is too late.
func (n *Noted) Report(done, total int64, text string) bool {
	n.mu.Lock()
	if n.over {
		n.mu.Unlock()
		return false
	}
	n.said++
	n.report = record.NoteReport(done, total, n.mark, n.said, text)
	tells := n.to != nil && !n.queued
	n.queued = n.queued || tells
	n.mu.Unlock()
	if tells {
		n.to.Report(n.run)
	}
	return true
}

// Take returns the report that is to be sent while the handler runs, or "" if there is none. From
// now on a new one is told to the Noter again.
func (n *Noted) Take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queued = false
	if n.over {
		return ""
	}
	return n.report
}

// Again reports whether a report that Take has returned, and that may not have arrived, must be
// taken again. It is the caller who takes it then.
func (n *Noted) Again() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over || n.queued || n.report == "" {
		return false
	}
	n.queued = true
	return true
}

// Arrived notes that Redis has a report.
func (n *Noted) Arrived(report string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.report == report {
		n.report = ""
	}
}

// End notes that the handler has returned.
func (n *Noted) End() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
}

// Last returns the report that Redis is not known to have, also after the end of the handler.
func (n *Noted) Last() (report string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.report
}

// ended returns a channel that is closed when the job no longer belongs to the run, or must not go
// on.
func (n *Noted) ended() <-chan struct{} {
	if n.run == nil || n.run.Ctx.Context == nil {
		return nil
	}
	return n.run.Ctx.Done()
}

// why returns the reason why no step can begin any more, or nil.
func (n *Noted) why(ctx context.Context) error {
	n.mu.Lock()
	over := n.over
	n.mu.Unlock()
	if over {
		return ErrReturned
	}
	if n.run != nil && n.run.Ctx.Context != nil {
		if cause := context.Cause(&n.run.Ctx); cause != nil {
			return cause
		}
	}
	return context.Cause(ctx)
}

// Begin begins a step. If it is over already, saved is set, and the result is what it has saved.
// Otherwise the caller makes the step and calls Save or Leave. Begin waits for a step of that name
// that runs.
func (n *Noted) Begin(ctx context.Context, name string) (result string, saved bool, err error) {
	for {
		if err := n.why(ctx); err != nil {
			return "", false, err
		}
		wait, read, done := n.look(name)
		switch {
		case done != nil:
			return done.result, done.saved, done.err
		case read:
			if result, saved, err = n.recall(ctx, name); saved || err != nil {
				return result, saved, err
			}
		default:
			select {
			case <-wait:
			case <-ctx.Done():
			case <-n.ended():
			}
		}
	}
}

// A begun is what Begin returns.
type begun struct {
	result string
	saved  bool
	err    error
}

// look begins a step if nothing must be waited for or read before.
func (n *Noted) look(name string) (wait <-chan struct{}, read bool, done *begun) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.steps == nil {
		n.steps = make(map[string]*made)
	}
	switch s := n.steps[name]; {
	case n.over:
		return nil, false, &begun{err: ErrReturned}
	case !n.known && n.to != nil:
		return nil, true, nil
	case s == nil && len(n.steps) >= record.MaxSteps:
		return nil, false, &begun{err: ErrManySteps}
	case s == nil:
		n.steps[name] = &made{busy: make(chan struct{})}
		return nil, false, &begun{}
	case s.busy != nil:
		return s.busy, false, nil
	case s.here:
		return nil, false, &begun{result: s.result, saved: true}
	}
	return nil, true, nil
}

// recall reads the steps of the job, or only one of them if their names are known. saved says that
// the result of that one was read.
func (n *Noted) recall(ctx context.Context, name string) (result string, saved bool, err error) {
	n.mu.Lock()
	if n.reads == nil {
		n.reads = make(chan struct{}, 1)
	}
	n.mu.Unlock()
	select {
	case n.reads <- struct{}{}:
	case <-ctx.Done():
		return "", false, n.why(ctx)
	case <-n.ended():
		return "", false, n.why(ctx)
	}
	defer func() { <-n.reads }()

	n.mu.Lock()
	var some []string
	if s := n.steps[name]; n.known {
		if s == nil || s.busy != nil || s.here { // another call has read it
			n.mu.Unlock()
			return "", false, nil
		}
		some = []string{name}
	}
	n.mu.Unlock()
	names, results, err := n.to.Recall(ctx, n.run, some...)
	if err != nil {
		return "", false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if some == nil {
		n.known = true
		for _, one := range names {
			n.steps[one] = &made{}
		}
	} else if _, there := results[name]; !there {
		if slices.Contains(names, name) {
			return "", false, ErrNoResult
		}
		delete(n.steps, name) // it is not saved after all
	}
	for one, result := range results {
		n.keepLocked(one, result)
	}
	result, saved = results[name]
	return result, saved, nil
}

// keepLocked remembers the result of a step, if there is room.
func (n *Noted) keepLocked(name, result string) {
	s := &made{}
	n.steps[name] = s
	if n.to == nil || n.kept+len(result) <= keptResults {
		s.here, s.result = true, result
		n.kept += len(result)
	}
}

// Save saves the result of a step that Begin has begun, and ends it.
func (n *Noted) Save(ctx context.Context, name, result string) (err error) {
	n.mu.Lock()
	over := n.over
	n.mu.Unlock()
	sent := false
	switch {
	case over:
		err = ErrReturned
	case n.to != nil:
		sent = true
		err = n.to.Save(ctx, n.run, name, result)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	busy := n.steps[name].busy
	switch {
	case err == nil:
		n.keepLocked(name, result)
	case sent && !errors.Is(err, ErrManySteps) && !errors.Is(err, ErrNoMemory):
		n.steps[name] = &made{} // Redis may have it
	default:
		delete(n.steps, name)
	}
	close(busy)
	return err
}

// Leave ends a step that Begin has begun, and that has failed.
func (n *Noted) Leave(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.steps[name].busy)
	delete(n.steps, name)
}

// Next returns what the next run of a job finds that belongs to no server.
func (n *Noted) Next() *Noted {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := &Noted{steps: make(map[string]*made)}
	for name, s := range n.steps {
		if s.busy == nil {
			next.steps[name] = s
		}
	}
	return next
}
