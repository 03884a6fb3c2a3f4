package delayq

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// MaxOutput is the most bytes that [Job.SetOutput] accepts: 4 KiB.
const MaxOutput = record.MaxOutput

// SetOutput attaches an output to this run: text or bytes for people, such as the last lines that a
// command printed, or the number of rows that were deleted. The last call counts, and nil removes
// the output. It is kept when the handler has returned:
//
//   - with a done job that has a [Retention]: [Client.Get] and [Inspector.Job] return it, until the
//     retention is over;
//   - in the history of the schedule that the job belongs to: [Inspector.Runs] returns its last
//     1 KiB, also if the run failed.
//
// Of all other runs it is dropped. [RunEvent] has it in every case. Until the handler returns, only
// [Job.Output] has it.
//
// SetOutput copies the output, which has at most [MaxOutput] bytes, and calls nothing. It is safe
// for concurrent use. It returns [ErrInvalid], and leaves the output as it was, if output is
// longer, if the handler has returned, and outside a handler.
func (j *Job) SetOutput(output []byte) error {
	const call = "set output"
	if j == nil {
		return fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	}
	err := j.attach(output)
	return script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(err)
}

func (j *Job) attach(output []byte) error {
	switch n := len(output); {
	case n > MaxOutput:
		return fmt.Errorf("%w: output of %d bytes, at most %d are allowed", ErrInvalid, n, MaxOutput)
	case j.output == nil:
		return fmt.Errorf("%w: the job is not that of a handler", ErrInvalid)
	case !j.output.set(output):
		return fmt.Errorf("%w: the handler has returned", ErrInvalid)
	}
	return nil
}

// Output returns what [Job.SetOutput] has attached to this run, so that middleware can see it. For
// the [JobInfo] of a done job it is the output of the run that completed the job; [Inspector.Jobs]
// does not read it. Output returns nil if there is none. The caller may change the bytes.
func (j *Job) Output() []byte {
	if j == nil || j.output == nil {
		return nil
	}
	return bytes.Clone(j.output.get())
}

// An attachment holds the output of a run. Copies of its job share it.
type attachment struct {
	held atomic.Pointer[attached] // nil: none yet
}

// An attached is a state of an attachment. It does not change.
type attached struct {
	output []byte
	final  bool // the handler has returned
}

// nothing is the final state without an output.
var nothing = &attached{final: true}

// newAttachment returns the final output of a run that has ended.
func newAttachment(output string) *attachment {
	a := new(attachment)
	a.held.Store(&attached{[]byte(output), true})
	return a
}

func (a *attachment) get() []byte {
	if held := a.held.Load(); held != nil && len(held.output) > 0 {
		return held.output
	}
	return nil
}

// set keeps a copy of an output. It returns false if it is too late.
func (a *attachment) set(output []byte) bool {
	fresh := &attached{output: bytes.Clone(output)}
	for {
		held := a.held.Load()
		if held != nil && held.final {
			return false
		}
		if a.held.CompareAndSwap(held, fresh) {
			return true
		}
	}
}

// end makes the output final and returns it.
func (a *attachment) end() []byte {
	for {
		held, last := a.held.Load(), nothing
		if held != nil {
			last = &attached{held.output, true}
		}
		if a.held.CompareAndSwap(held, last) {
			return a.get()
		}
	}
}
