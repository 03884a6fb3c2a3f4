package delayq

import (
	"bytes"
	"fmt"

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
	case !j.output.Set(output):
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
	return bytes.Clone(j.output.Get())
}
