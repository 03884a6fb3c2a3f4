package delayq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/explain"
	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// A FlowState is the state of a [Flow].
type FlowState string

// The states of a flow.
const (
	FlowOpen     FlowState = "open"     // steps have not ended, or the group is open
	FlowComplete FlowState = "complete" // all steps have ended, and the last step is due
	FlowFailed   FlowState = "failed"   // a step has failed, and the last step is due to be buried
	FlowOver     FlowState = "over"     // the last step is dead, and no other step goes on
)

var flowStates = map[byte]FlowState{flow.Open: FlowOpen, flow.Released: FlowComplete, flow.Failed: FlowFailed, flow.Over: FlowOver}

// A StepState is the state of a step of a [Flow]. All but the first two are ends, and all ends but
// [StepDone] are bad ones.
type StepState string

// The states of steps.
const (
	StepWaits     StepState = "waits"   // for other steps
	StepStarted   StepState = "started" // its job is enqueued, or on the way to its topic
	StepDone      StepState = "done"
	StepDead      StepState = "dead"      // its job was buried
	StepExpired   StepState = "expired"   // its job was dropped at its expiry
	StepCancelled StepState = "cancelled" // by [Client.Dequeue], or because the flow has failed
	StepReplaced  StepState = "replaced"  // by another job with its ID
	StepRefused   StepState = "refused"   // by its topic: an unfinished job has its ID
	StepLost      StepState = "lost"      // its job is gone, and nothing says how it has ended
	StepSkipped   StepState = "skipped"   // a step that it waits for has ended badly, or the flow is over
)

var stepStates = map[byte]StepState{
	flow.Waits: StepWaits, flow.Started: StepStarted, flow.Done: StepDone, flow.Dead: StepDead, flow.Expired: StepExpired,
	flow.Cancelled: StepCancelled, flow.Replaced: StepReplaced, flow.Refused: StepRefused, flow.Lost: StepLost, flow.Skipped: StepSkipped,
}

// Ended reports whether the step has ended.
func (s StepState) Ended() bool { return s != StepWaits && s != StepStarted }

// FlowInfo describes a [Flow]. [Inspector.Flow] returns it.
type FlowInfo struct {
	Topic, ID string // of the last step
	State     FlowState
	Group     bool // it is a [Group] that is open
	// IgnoreFailures reports whether the last step runs whatever becomes of the others.
	IgnoreFailures bool
	Total          int   // steps besides the last one
	Left           int   // of them: those that have not ended
	Failed         int   // of them: those that have ended badly, or were skipped
	Kept           int64 // bytes of the outputs of steps that are kept
	StartedAt      time.Time
	Cause          int      // number of the step because of which the flow has failed; -1: none
	Last           *JobInfo // the last step, without its payload; nil: it is gone

	// Steps are up to 1,000 steps in the order of their numbers. Next is the number of the step
	// with which [Inspector.FlowFrom] continues; 0: there are no more.
	Steps []FlowStepInfo
	Next  int
	At    time.Time // when the flow was read, by Redis's clock
}

// FlowStepInfo describes a step of a [Flow].
type FlowStepInfo struct {
	Number         int // from 0, in the order in which the steps were added
	Topic, ID      string
	After, Before  []int // numbers of the steps that it waits for, and of those that wait for it
	IgnoreFailures bool
	State          StepState
	Left           int       // of a step that waits: those of After that have not ended
	StartedAt      time.Time // zero: it has not started, or that is not known any more
	EndedAt        time.Time // zero: it has not ended
	Attempt        int       // of a step that is done: the number of the run that has completed it
	Server         string    // of a step that is done: the ID of the server
	OutputSize     int       // of a step that is done: bytes that [Job.SetOutput] has attached
	Error          string    // why it has ended badly, at most 500 bytes
	Cause          int       // of a skipped step: the number of the step because of which; -1: the flow was over
}

// setState sets what the state of a step says.
func (s *FlowStepInfo) setState(value string) error {
	state, err := flow.ReadState(value)
	if err == nil && stepStates[state.Letter] == "" {
		err = script.ErrReply
	}
	if err != nil {
		return err
	}
	s.State, s.Left, s.Error, s.Cause = stepStates[state.Letter], state.Left, state.Text, state.Cause
	switch {
	case state.Letter == flow.Started:
		s.StartedAt = msTime(state.At)
	case flow.Ended(state.Letter):
		s.EndedAt = msTime(state.At)
		s.StartedAt, s.Attempt, s.Server, s.OutputSize = orZero(state.Run.Start), state.Run.Attempt, state.Run.Server, state.Run.Output
	}
	return nil
}

// stepInfo returns what Redis holds of a step.
func stepInfo(n int, definition, state string) (s FlowStepInfo, err error) {
	defined, err := flow.ReadDefinition(definition)
	if err != nil {
		return s, err
	}
	s = FlowStepInfo{Number: n, Topic: defined.Topic, ID: defined.ID, After: defined.After, Before: defined.Before, IgnoreFailures: defined.Ignore}
	return s, s.setState(state)
}

// Flow returns a flow with its steps, by the topic and the ID of its last step: up to 1,000 steps,
// with the bounds of what one call of a script reads (about 1 MiB), so the flow of a [Client.Start]
// is one call, or some if its names are long. A flow can be read until its last step is done or
// deleted.
//
// Errors: [ErrNotFound] if there is no such flow, [ErrInvalid], the error of the context, or that
// of Redis. Cost: O(steps).
func (i *Inspector) Flow(ctx context.Context, topic, id string) (*FlowInfo, error) {
	return i.FlowFrom(ctx, topic, id, 0)
}

// FlowFrom is [Inspector.Flow] with up to 1,000 steps from that number on: FlowInfo.Next of the
// call before.
func (i *Inspector) FlowFrom(ctx context.Context, topic, id string, from int) (*FlowInfo, error) {
	place := script.Place{Call: "flow", Topic: topic, Job: id}
	err := i.validate(ctx, topic, id)
	if from < 0 {
		err = errors.Join(err, fmt.Errorf("%w: from %d: must be at least 0", ErrInvalid, from))
	}
	if err != nil {
		return nil, place.At(err)
	}
	info := &FlowInfo{Topic: topic, ID: id, Next: from}
	for name := ""; ; {
		left := flow.MaxSteps - len(info.Steps)
		read, err := i.readFlow(ctx, topic, id, info.Next, left)
		if err != nil {
			return nil, place.At(err)
		}
		if name == "" {
			name = read.Name
			info.set(read)
		}
		if info.Next = read.next; read.Name != name { // another one has its ID now
			return i.FlowFrom(ctx, topic, id, from)
		}
		info.Steps = append(info.Steps, read.steps...)
		if info.Next == 0 || len(info.Steps) >= flow.MaxSteps || len(read.steps) == 0 {
			return info, nil
		}
	}
}

func (info *FlowInfo) set(read *flowRead) {
	info.State, info.Group, info.IgnoreFailures = flowStates[read.State], read.Group, read.Ignore
	info.Total, info.Left, info.Failed, info.Kept, info.Cause = read.Total, read.Left, read.Flow.Failed, read.Bytes, read.Why
	info.StartedAt, info.At, info.Last = msTime(read.Started), msTime(read.now), read.last
}

// A flowRead is what one call has read of a flow.
type flowRead struct {
	flow.Flow
	now   int64
	steps []FlowStepInfo
	next  int
	last  *JobInfo
	place string // topic or partition that has the flow
}

// readFlow reads a flow, up to that many of its steps, and its last step, in one round trip.
func (i *Inspector) readFlow(ctx context.Context, topic, id string, from, count int) (read *flowRead, err error) {
	return read, i.inPlaces(ctx, topic, func(k *script.Keys) (found bool, err error) {
		read, err = i.readFlowIn(ctx, k, topic, id, from, count)
		return err == nil, err
	})
}

// readFlowIn is readFlow in one place of the topic.
func (i *Inspector) readFlowIn(ctx context.Context, k *script.Keys, topic, id string, from, count int) (*flowRead, error) {
	call := script.NewCall(script.FlowRead, topic, 1, k.Of(script.FlowRead, ""), []any{id, from, count})
	get := script.NewCall(commit.Get.Script, topic, 1, k.Of(commit.Get.Script, ""), []any{script.CallBytes, recordHead, id})
	i.scripts.DoWith(ctx, []*script.Call{call, get})
	if err := errors.Join(call.Err, get.Err); err != nil {
		return nil, err
	}
	r := call.Reply
	if r.Text(2) == "" {
		return nil, ErrNotFound
	}
	read := &flowRead{now: r.Now(), next: int(max(0, r.Number(5))), place: k.Topic}
	var err error
	if read.Flow, err = flow.Read(r.Text(2)); err != nil {
		return nil, err
	}
	defs, states := r.List(3), r.List(4)
	for n := range defs {
		step, err := stepInfo(from+n, defs.Text(n), states.Text(n))
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", from+n, err)
		}
		read.steps = append(read.steps, step)
	}
	read.last = readJobInfo(topic, id, recordHead, func(column int) string { return get.Reply.List(2 + column).Text(0) })
	return read, nil
}

// inPlaces calls look for the places of a topic, one after the other, until one has what it looks
// for. A topic without partitions is one place, after which its map is read only if that has
// nothing. The error is the last one: [ErrNotFound] of all of them.
func (i *Inspector) inPlaces(ctx context.Context, topic string, look func(k *script.Keys) (found bool, err error)) error {
	home := script.NewKeys(i.o.prefix, topic)
	found, err := look(home)
	if found || !errors.Is(err, ErrNotFound) || home.Topic != part.HomeOf(topic) {
		return err
	}
	m, _, bad := commit.ReadMap(ctx, i.scripts, home)
	if bad != nil {
		return bad
	}
	for _, p := range commit.Places(i.o.prefix, topic, m)[1:] {
		if found, err = look(p.Keys); found || !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return err
}

// An Input is a step that another step has waited for: see [Job.Inputs]. OutputSize is that of its
// output even if Output is nil.
type Input struct {
	FlowStepInfo
	// Output is what the handler of a step that is done has attached with [Job.SetOutput]. It is
	// nil if there is none, and if it was dropped, because the outputs of a flow have 1 MiB
	// together at most.
	Output []byte
}

// Inputs returns the steps that this step of a flow has waited for, in the order of their numbers,
// and their outputs. Of the last step these are all steps of the flow. If failures are ignored, or
// if the last step was revived, steps that have ended badly or that have not ended are among them:
// their State says so. A job that is no step of a flow, and a step that waits for nothing, have
// none.
//
// All outputs are in memory at the same time, up to 1 MiB together. Cost: a call to Redis for about
// 1 MiB, each time.
//
// Errors: [ErrInvalid] outside a handler and after it has returned, [ErrNotFound] if the flow is
// gone, because its last step was cancelled, the error of ctx, or that of Redis.
func (j *Job) Inputs(ctx context.Context) ([]Input, error) {
	const call = "inputs"
	if j == nil {
		return nil, fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	}
	list, err := j.readInputs(ctx)
	return list, script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(err)
}

func (j *Job) readInputs(ctx context.Context) ([]Input, error) {
	switch err := checkContext(ctx); {
	case err != nil:
		return nil, err
	case j.hands == nil:
		return nil, fmt.Errorf("%w: the job is not that of a handler", ErrInvalid)
	case j.hands.run.Over():
		return nil, fmt.Errorf("%w: %s", ErrInvalid, run.Returned)
	case j.hands.flow == nil || j.hands.server == nil:
		return j.hands.inputs, nil
	}
	return j.hands.server.inputs(ctx, j.hands.flow)
}

// inputs reads what a step has waited for.
func (s *Server) inputs(ctx context.Context, of *record.Flow) (list []Input, err error) {
	k := script.NewKeys(s.o.prefix, of.Topic)
	for from := int64(0); ; {
		r, err := s.engine.Scripts.Exec(ctx, script.FlowInputs, k, "", 1, of.ID, of.Name, of.Step, from)
		if err != nil {
			return nil, err
		}
		if from = r.Number(6); from < 0 {
			return nil, fmt.Errorf("%w: the flow is gone", ErrNotFound)
		}
		numbers, defs, states, outputs := r.List(2), r.List(3), r.List(4), r.List(5)
		for n := range numbers {
			step, err := stepInfo(int(numbers.Number(n)), defs.Text(n), states.Text(n))
			if err != nil {
				return nil, fmt.Errorf("step %d: %w", numbers.Number(n), err)
			}
			in := Input{FlowStepInfo: step}
			if text := outputs.Text(n); text != "" {
				in.Output = []byte(text)
			}
			list = append(list, in)
		}
		if from == 0 {
			return list, nil
		}
	}
}

// SetInputs sets what Inputs of a job without a server returns.
func (friends) SetInputs(j *Job, inputs []Input) {
	if j.hands != nil {
		j.hands.inputs = inputs
	}
}

// memberOf sets of which flow the job is a step.
func (j *Job) memberOf(f *record.Flow) {
	if f != nil {
		j.Flow = JobRef{part.HomeOf(f.Topic), f.ID}
	}
}

// explainFlow adds what is known of the flow that a job is a step of.
func (i *Inspector) explainFlow(ctx context.Context, c *circumstances) error {
	if c.info == nil || c.info.options.Flow == nil {
		return nil
	}
	of := c.info.options.Flow
	c.Flow = &explain.Flow{Topic: part.HomeOf(of.Topic), ID: of.ID, Step: of.Step, Last: of.Last()}
	if !of.Last() || c.info.State != StateScheduled {
		return nil
	}
	read, err := i.readFlow(ctx, of.Topic, of.ID, 0, flow.MaxSteps)
	if errors.Is(err, ErrNotFound) || err == nil && read.Name != of.Name {
		return nil
	}
	if err != nil {
		return err
	}
	c.Flow.Open, c.Flow.Group, c.Flow.Total, c.Flow.Left = read.State == flow.Open, read.Group, read.Total, read.Left
	for _, step := range read.steps {
		if step.State != StepStarted || len(c.Flow.Missing) == explain.MostMissing {
			continue
		}
		one, err := i.circumstances(ctx, step.Topic, step.ID)
		if err != nil {
			return err
		}
		c.Flow.Missing = append(c.Flow.Missing, explain.Missing{Topic: step.Topic, ID: step.ID, How: one.Brief()})
	}
	return nil
}

// SealFlow returns the row of a [Client.Start], and its last step without times. Its errors are
// those of Start for the same flow.
func (friends) SealFlow(ctx context.Context, c *Client, f *Flow) (commit.Row, *Job, error) {
	if err := f.sealBy(ctx, c, false); err != nil {
		return commit.Row{}, nil, script.Place{Call: commit.FlowStart.Name, Topic: f.Job().Topic, Job: f.Job().ID}.At(err)
	}
	e := &f.sealed.last
	row := commit.Row{
		Topic: e.op.Topic, ID: e.op.ID, Replace: replacesText(&e.opts), Record: string(e.fresh.Draft), DueIn: e.opts.DueIn,
	}
	return commit.FlowRow(row, f.sealed.words), storedJob(&e.op, e.job.Payload, ErrUnknownOutcome), nil
}

// startOf makes an operation that of the row of a start. The deadline counts from when the row was
// made.
func (c *Client) startOf(r *commit.Row, o *commit.Op) error {
	o.Kind = commit.FlowStart
	job, rest, err := r.CutRow()
	if err != nil {
		return err
	}
	words, err := commit.FlowWords(rest)
	if err != nil {
		return err
	}
	if err := flow.CheckWords(words); err != nil {
		return err
	}
	last := *r
	last.Record = job
	o.Fresh, err = c.enqueueingOf(&last)
	o.Flow = &commit.FlowPart{Words: words}
	return err
}

// A joining is how a job becomes a step of a flow.
type joining struct {
	record.Flow
	deadline time.Duration // of the flow; 0: it has none
}

// join makes a job a step of its flow, and returns what its options must not say.
func (e *enqueueing) join() error {
	own, _ := newJobOptions(e.job.Options) // without Defaults; seal has its complaints
	var errs []error
	refuse := func(given bool, name, why string) {
		if given {
			errs = append(errs, fmt.Errorf("%s: %s", name, why))
		}
	}
	refuse(own.guard != nil, "IfUnchanged", "a flow does not know what a job will be like")
	refuse(own.Plan != nil, "ProcessAtEach", "a step of a flow has one due time")
	refuse(own.replace == commit.ReplaceLatest, "Latest", "a step of a flow is a job of its own")
	refuse(own.replace == commit.ReplaceDebounce, "Debounce", "a step of a flow is a job of its own")
	if e.job.ID == "" {
		errs = append(errs, errors.New("empty ID"))
	}
	within := ceilMS(e.joins.deadline)
	e.opts.Flow = &e.joins.Flow
	if !e.joins.Last() {
		refuse(e.opts.Retry < 0 && within == 0, "Retry", "the retries are unlimited, and the flow has no Deadline: give it one, or limit the retries of each step")
		refuse(within > 0 && own.DueIn >= within, "ProcessIn", fmt.Sprintf("%v is not before the Deadline of the flow, %v", ofMS(own.DueIn), e.joins.deadline))
		return invalid(errs)
	}
	e.joins.Topic, e.joins.ID = e.job.Topic, e.job.ID // a hook can have changed them
	const due, only = "the last step is due when the other steps have ended", "the last step can have ReplaceDead only"
	refuse(own.due, "ProcessAt or ProcessIn", due)
	refuse(own.ExpireAt > 0 || own.ExpireIn > 0, "ExpireAt or ExpireIn", "the last step must not expire: the flow has a Deadline")
	refuse(own.replace == commit.ReplaceAny || own.replace == commit.ReplaceWaiting, "Replace", only)
	refuse(own.window > 0, "UniqueFor", "the last step cannot close its ID")
	e.opts.DueAt, e.opts.DueIn, e.opts.ExpireIn = 0, within, 0
	return invalid(errs)
}
