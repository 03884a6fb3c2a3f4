package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// A Flow is a last step and the steps before it: jobs of any topics, of which each starts when
// others have ended. [NewFlow] makes one, [Flow.Add] and [FlowStep.After] build it, and
// [Client.Start] sends it. Calls of the methods of one Flow and of its steps must not run at the
// same time.
type Flow struct {
	last     NewJob
	name     string // random
	steps    []*FlowStep
	ignore   bool
	deadline time.Duration // 0: none
	errs     []error       // of building
	sealed   *sealedFlow   // once it was sent; nil: it was not
}

// A FlowStep is a step of a [Flow].
type FlowStep struct {
	flow   *Flow
	number int
	job    NewJob
	after  []int
	ignore bool
}

// NewFlow returns a flow whose last step is a job of a topic. The last step runs once, when all
// steps have ended well: see [Flow.IgnoreFailures] for the rest. Its topic is the home of the flow,
// and its ID is the ID of the flow: [Inspector.Flow] shows it, [Client.Dequeue] of the last step
// cancels the whole flow, and [Client.Revive] runs a last step that was buried. An empty ID is
// replaced by a generated one.
//
//	f := delayq.NewFlow("album:done", "album-7", nil).Deadline(time.Hour)
//	for _, image := range images {
//		f.Add("thumbnail", image, delayq.Retry(3))
//	}
//	job, err := client.Start(ctx, f)
//
// The options are those of the last step. [ProcessAt], [ProcessIn], [ProcessAtEach], [ExpireAt],
// [ExpireIn], [Replace], [UnlessRunning], [Latest], [Debounce], [UniqueFor] and [IfUnchanged] are
// errors, which [Client.Start] returns. The other options and the [Defaults] of the client apply,
// without ExpireIn.
func NewFlow(topic, id string, payload []byte, opts ...JobOption) *Flow {
	if id == "" {
		id = newID()
	}
	name := record.NewNonce()
	return &Flow{last: NewJob{Topic: topic, ID: id, Payload: payload, Options: slices.Clip(opts)}, name: string(name[:])}
}

// Add adds a job of any topic as a step. Its ID is that of the flow, a slash, the number of the
// step from 0, and eight digits of the flow, so that the ID of a finished flow can be used again.
func (f *Flow) Add(topic string, payload []byte, opts ...JobOption) *FlowStep {
	id := ""
	if f != nil && f.name != "" {
		id = fmt.Sprintf("%s/%d~%.4x", f.last.ID, len(f.steps), f.name)
	}
	return f.AddJob(topic, id, payload, opts...)
}

// AddJob is [Flow.Add] with an ID. An empty ID is an error. No two steps can be the same job.
//
// A step waits for nothing, unless [FlowStep.After] says so. It is enqueued in the moment it
// starts: the times of [ProcessIn] and [ExpireIn] count from then. All other options mean what they
// mean for [Client.Enqueue], and [Defaults] of the client apply. By default the job replaces a dead
// job with its ID, as with [ReplaceDead]. If it is refused, because an unfinished job has its ID,
// the step has failed. [ProcessAtEach], [Latest], [Debounce] and [IfUnchanged] are errors, which
// [Client.Start] returns.
//
// A step ends when its job is done, or when it is buried, dropped, cancelled or replaced. A job
// that is retried or snoozed, or that returns [Again], goes on, and so does the step. It takes the
// payload of no other call: one with [Latest] or [Debounce] and its ID gets [ErrDuplicate].
func (f *Flow) AddJob(topic, id string, payload []byte, opts ...JobOption) *FlowStep {
	s := &FlowStep{flow: f, job: NewJob{Topic: topic, ID: id, Payload: payload, Options: slices.Clip(opts)}}
	if f == nil {
		return s
	}
	s.number = len(f.steps)
	f.steps = append(f.steps, s)
	f.unsent("Add")
	return s
}

// unsent notes that a flow was changed although it was sent.
func (f *Flow) unsent(call string) {
	if f.sealed != nil {
		f.fail(fmt.Errorf("%s: the flow was started already; make another with NewFlow", call))
	}
}

func (f *Flow) fail(err error) { f.errs = append(f.errs, err) }

// Deadline sets when the flow is given up: d after its start. Then the last step is buried with the
// kind [KindDeadline], and its error says which steps are missing. Steps that have started are
// cancelled, and the others are skipped. With [Flow.IgnoreFailures] the last step is run instead.
//
// A flow needs a Deadline, or a [Retry] of each step that is not [Unlimited]: otherwise a step that
// always fails would hold it up for ever. Default: 30 days. Range: 1 s to 100 years.
func (f *Flow) Deadline(d time.Duration) *Flow {
	if f == nil {
		return f
	}
	if d < time.Second || d > maxDelay {
		f.fail(fmt.Errorf("Deadline(%v): must be from 1s to %v", d, maxDelay))
	}
	f.deadline = d
	f.unsent("Deadline")
	return f
}

// IgnoreFailures makes the last step run when all steps have ended, however they have. Its handler
// sees by [Job.Inputs] which have failed.
//
// Without it, the flow fails as soon as a step has ended badly, or was skipped, that no other step
// waits for. Then steps that have started are cancelled, the others are skipped, and the last step
// is buried with the kind [KindDependency] and the name and the error of that step.
func (f *Flow) IgnoreFailures() *Flow {
	if f != nil {
		f.ignore = true
		f.unsent("IgnoreFailures")
	}
	return f
}

// Job returns the topic and the ID of the last step.
func (f *Flow) Job() JobRef {
	if f == nil {
		return JobRef{}
	}
	return JobRef{f.last.Topic, f.last.ID}
}

// After makes the step wait for other steps of its flow: it starts when all of them are done. If
// one of them ends badly or is skipped, the step is skipped: see [FlowStep.IgnoreFailures]. Steps
// that wait for each other are an error, which [Client.Start] returns.
func (s *FlowStep) After(steps ...*FlowStep) *FlowStep {
	if s == nil || s.flow == nil {
		return s
	}
	for i, before := range steps {
		switch {
		case before == nil:
			s.flow.fail(fmt.Errorf("step %d: After: argument %d is nil", s.number, i))
		case before.flow != s.flow:
			s.flow.fail(fmt.Errorf("step %d: After: argument %d, topic %q job %q, is a step of another flow", s.number, i, before.job.Topic, before.job.ID))
		default:
			s.after = append(s.after, before.number)
		}
	}
	s.flow.unsent("After")
	return s
}

// IgnoreFailures makes the step start when all steps have ended that it waits for, however they
// have. So it can undo what they did, or go on without them: their failures stop here, and the flow
// does not fail because of them. [Job.Inputs] tells its handler what has become of them.
func (s *FlowStep) IgnoreFailures() *FlowStep {
	if s != nil && s.flow != nil {
		s.ignore = true
		s.flow.unsent("IgnoreFailures")
	}
	return s
}

// Job returns the topic and the ID of the step.
func (s *FlowStep) Job() JobRef {
	if s == nil {
		return JobRef{}
	}
	return JobRef{s.job.Topic, s.job.ID}
}

// Start starts a flow: all of it, or nothing. The last step is stored as a scheduled job that is
// due at the [Flow.Deadline]. The steps that wait for nothing are passed on to their topics by
// servers of the home topic, mostly within milliseconds. So the home topic needs a server with a
// handler.
//
// A flow has 1 to 1,000 steps with 4 MiB together, and its steps wait for others 20,000 times in
// all. A [Group] can have 100,000 steps.
//
// If the outcome is unknown, call Start again with the same Flow: within 3 minutes it starts the
// flow once, and returns the job if the first call has started it. After that, and with another
// Flow of the same ID, it returns an [ErrDuplicate] as long as the last step is unfinished.
//
// Errors: as those of [Client.Enqueue] for the last step. [ErrInvalid] lists what is wrong with the
// flow and with which steps; nothing was written. An [EnqueueHook] is called for each step and for
// the last one when the flow is first sent, and an [EnqueuedHook] for the last one.
func (c *Client) Start(ctx context.Context, f *Flow) (*Job, error) { return c.start(ctx, f, false) }

func (c *Client) start(ctx context.Context, f *Flow, group bool) (*Job, error) {
	place := script.Place{Call: commit.FlowStart.Name, Topic: f.Job().Topic, Job: f.Job().ID}
	call := CallEvent{Name: place.Call, Topic: place.Topic, ID: place.Job, Jobs: 1}
	if f != nil {
		call.Jobs += len(f.steps)
	}
	ctx, end := c.begin(ctx, call)
	err := f.sealBy(ctx, c, group)
	if err != nil {
		if f != nil {
			c.enqueued(ctx, f.last.event(place.At(err)), nil)
		}
		return nil, end.err(place.At(err))
	}
	s := f.sealed
	o := s.last.op
	o.Kind, o.Flow = commit.FlowStart, &commit.FlowPart{Words: s.words}
	err = outcomeOf(&o, c.commits.Start(ctx, &o, fmt.Sprintf("f%x.", f.name)))
	c.enqueued(ctx, s.last.job.event(err), &o)
	if err = end.err(err); !maybeStored(err) {
		return nil, err
	}
	return storedJob(&o, s.last.job.Payload, err), err
}

// A sealedFlow is a flow as it is sent. It is sent again as it was.
type sealedFlow struct {
	group bool
	last  enqueueing
	words []any // of the script, behind those of the last step
}

// sealBy checks and encodes a flow, unless that was done before.
func (f *Flow) sealBy(ctx context.Context, c *Client, group bool) error {
	if err := errors.Join(c.usable(ctx), f.check()); err != nil {
		return err
	}
	switch {
	case f.sealed != nil && f.sealed.group != group:
		return fmt.Errorf("%w: the flow was sent with Start and OpenGroup: it is either a group or not", ErrInvalid)
	case f.sealed != nil:
		return ctx.Err()
	}
	s := &sealedFlow{group: group, last: enqueueing{job: f.last, joins: &joining{f.member("", "", record.LastStep), f.deadline}}}
	if f.deadline == 0 {
		s.last.joins.deadline = defaultDeadline
	}
	if err := c.seal(ctx, &s.last); err != nil {
		return err
	}
	steps, err := f.sealSteps(ctx, c, flow.Name{Topic: s.last.op.Topic, ID: s.last.op.ID}, group)
	if err != nil {
		return err
	}
	s.words = append([]any{f.name, flow.Flags(f.ignore, group)}, steps...)
	f.sealed = s
	return nil
}

// member returns what is stored with a step of the flow.
func (f *Flow) member(topic, id string, step int) record.Flow {
	return record.Flow{Topic: topic, ID: id, Name: f.name, Step: step}
}

// defaultDeadline is that of a flow without one, whose steps all have limited retries.
const defaultDeadline = 30 * 24 * time.Hour

// check returns the complaints of building.
func (f *Flow) check() error {
	switch {
	case f == nil:
		return fmt.Errorf("%w: nil Flow", ErrInvalid)
	case f.name == "":
		return fmt.Errorf("%w: zero Flow: use NewFlow", ErrInvalid)
	}
	return invalid(few(f.errs))
}

// sealSteps returns the words about the steps of a flow.
func (f *Flow) sealSteps(ctx context.Context, c *Client, home flow.Name, group bool) (words []any, err error) {
	var unfit, errs []error // of single steps, and of the flow
	list, rows, size := make([]flow.Step, len(f.steps)), make([]string, len(f.steps)), 0
	for n, step := range f.steps {
		e := &enqueueing{job: step.job, joins: &joining{f.member(home.Topic, home.ID, n), f.deadline}}
		if rows[n], err = c.sealStep(ctx, e); err != nil {
			unfit = append(unfit, fmt.Errorf("step %d, topic %q job %q: %w", n, e.job.Topic, e.job.ID, err))
		}
		list[n] = flow.Step{Name: flow.Name{Topic: e.job.Topic, ID: e.job.ID}, Ignore: step.ignore, After: slices.Clone(step.after)}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	flow.Link(list)
	switch {
	case !group:
		errs = flow.Check(home, list)
	case len(list) > 0:
		errs = append(errs, errors.New("a group is opened without steps; Group.Add adds them"))
	case f.deadline == 0:
		errs = append(errs, errors.New("a group needs a Deadline"))
	}
	all := make([]commit.StartedStep, len(list))
	for n := range list {
		all[n] = commit.StartedStep{Topic: list[n].Topic, Definition: list[n].Definition(), Waits: len(list[n].After), Parcel: rows[n]}
		size += len(all[n].Definition) + len(rows[n])
	}
	if size > flow.MaxBytes {
		errs = append(errs, fmt.Errorf("the steps have %d bytes together, at most %d are allowed", size, flow.MaxBytes))
	}
	return commit.StartWords(all), errors.Join(errors.Join(few(unfit)...), invalid(few(errs)))
}

// sealStep encodes a step as the parcel that starts it, without its time.
func (c *Client) sealStep(ctx context.Context, e *enqueueing) (string, error) {
	e.job.Options = append([]JobOption{ReplaceDead()}, e.job.Options...)
	if err := c.seal(ctx, e); err != nil {
		return "", err
	}
	p := commit.Parcel{Format: commit.FormatStep, From: e.joins.ID, Link: e.joins.Link(), Row: commit.Row{
		ID: e.op.ID, Replace: replacesText(&e.opts), Record: string(e.fresh.Draft), DueAt: e.opts.DueAt, DueIn: e.opts.DueIn,
	}}
	return p.Encode(), nil
}

// A Group is a flow whose steps wait for nothing and are added while it is open: a batch of jobs
// with a last step that runs when all have ended. Make one with [Client.OpenGroup]. It is safe for
// concurrent use.
type Group struct {
	client *Client
	last   JobRef
	mu     sync.Mutex
	name   string // of the flow; empty: not known yet
	place  string // topic or partition that has it
}

// OpenGroup starts a flow without steps, as [Client.Start] does. It needs a [Flow.Deadline]. Add
// jobs with [Group.Add], from any process. When [Group.Close] has been called, and all jobs have
// ended, the last step runs. If nobody closes the group, the deadline ends it.
//
// Errors: as those of Start. If the group may be open, it is returned along with the error.
func (c *Client) OpenGroup(ctx context.Context, f *Flow) (*Group, error) {
	job, err := c.start(ctx, f, true)
	if job == nil {
		return nil, err
	}
	return &Group{client: c, last: JobRef{job.Topic, job.ID}}, err
}

// Group returns a group that was opened by another process or earlier, by the topic and the ID of
// its last step. It calls nothing.
func (c *Client) Group(topic, id string) *Group { return &Group{client: c, last: JobRef{topic, id}} }

// Add adds jobs of any topics to the group: they are enqueued at once. It has the options and the
// defaults of [Flow.AddJob]. Each needs an ID, because the same topic and ID is the same step,
// however often it is added. So after any error you can add the same jobs again.
//
// If a job is invalid, none is added. Otherwise jobs are sent in their order, in calls of up to 500
// jobs and 1 MiB. A group has at most 100,000 jobs.
//
// Errors: [ErrGroupClosed], [ErrInvalid], [ErrUnknownOutcome], the error of the context, or that of
// Redis.
func (g *Group) Add(ctx context.Context, jobs ...NewJob) error {
	return g.call(ctx, "add to group", len(jobs), func(f *Flow, place string) error {
		words, sizes, unfit := make([]any, 0, 2*len(jobs)), make([]int, len(jobs)), []error(nil)
		for n, job := range jobs {
			job.Options = slices.Clip(job.Options)
			e := &enqueueing{job: job, joins: &joining{f.member(place, g.last.ID, 0), maxDelay}}
			row, err := g.client.sealStep(ctx, e)
			if err == nil && (JobRef{e.job.Topic, e.job.ID}) == g.last {
				err = fmt.Errorf("%w: it is the last step itself", ErrInvalid)
			}
			if err != nil {
				unfit = append(unfit, fmt.Errorf("job %d, topic %q job %q: %w", n, e.job.Topic, e.job.ID, err))
			}
			one := flow.Step{Name: flow.Name{Topic: e.job.Topic, ID: e.job.ID}}
			words = append(words, one.Definition(), row)
			sizes[n] = len(row)
		}
		if err := errors.Join(few(unfit)...); err != nil {
			return err
		}
		for from := 0; from < len(jobs); {
			to, bytes := from+1, sizes[from]
			for to < len(jobs) && to-from < flow.MaxAdded && bytes+sizes[to] <= script.CallBytes {
				bytes += sizes[to]
				to++
			}
			if err := g.send(ctx, place, to-from, false, words[2*from:2*to]); err != nil {
				return err
			}
			from = to
		}
		return nil
	})
}

// Close closes the group: no more jobs can be added, and the last step runs when all have ended. A
// group that is closed can be closed again, for example after an [ErrUnknownOutcome]. Errors:
// [ErrNotFound] if there is no such group, and those of [Group.Add].
func (g *Group) Close(ctx context.Context) error {
	return g.call(ctx, "close group", 0, func(_ *Flow, place string) error { return g.send(ctx, place, 0, true, nil) })
}

// call validates a call about the group, and calls do with its flow.
func (g *Group) call(ctx context.Context, name string, jobs int, do func(f *Flow, place string) error) error {
	if g == nil || g.client == nil {
		return fmt.Errorf("%s: %w: the Group is not one of OpenGroup or Client.Group", name, ErrInvalid)
	}
	ctx, end := g.client.begin(ctx, CallEvent{Name: name, Topic: g.last.Topic, ID: g.last.ID, Jobs: jobs})
	of, place, err := &Flow{}, "", g.client.validate(ctx, g.last.Topic, g.last.ID)
	if err == nil {
		of.name, place, err = g.lookUp(ctx)
	}
	if err == nil {
		err = do(of, place)
	}
	return end.err(script.Place{Call: name, Topic: g.last.Topic, Job: g.last.ID}.At(err))
}

// lookUp returns the name of the flow and where it is, and reads them unless they are known.
func (g *Group) lookUp(ctx context.Context) (name, place string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.name != "" {
		return g.name, g.place, nil
	}
	read, err := g.client.inspector().readFlow(ctx, g.last.Topic, g.last.ID, 0, 0)
	if err == nil && read.last == nil { // and servers of the topic will sweep the flow
		err = ErrNotFound
	}
	if err == nil {
		g.name, g.place = read.Name, read.place
	}
	return g.name, g.place, err
}

// send sends one call, and releases the last step if the group is complete then.
func (g *Group) send(ctx context.Context, place string, jobs int, closes bool, words []any) error {
	c, k := g.client, script.NewKeys(g.client.o.prefix, place)
	exec := func(s *script.Script, n int, words ...any) (script.Reply, error) {
		series := c.series.Get()
		r, err := c.scripts.Exec(ctx, s, k, k.Receipt(series.ID), n, append([]any{series.Next()}, words...)...)
		c.series.Put(series, err)
		return r, c.unsure(err)
	}
	closing := 0
	if closes {
		closing = 1
	}
	channel := script.ControlChannel(c.o.prefix)
	r, err := exec(script.FlowAdd, jobs, append([]any{channel, place, g.last.ID, g.name, closing}, words...)...)
	if err != nil {
		return err
	}
	switch letters := r.Text(2); {
	case strings.Contains(letters, string(script.LetterFull)):
		return fmt.Errorf("%w: more than %d jobs in the group", ErrInvalid, flow.MaxGroupSteps)
	case letters == string(script.LetterGone) && !closes:
		return ErrGroupClosed
	case letters == string(script.LetterGone): // whoever has closed it may not have released it
	case r.Number(3) == 0:
		return nil
	}
	err = c.carryOut(ctx, commit.ReleaseOp(place, g.last.ID, g.name))
	if slices.ContainsFunc([]error{ErrChanged, ErrNotFound, ErrRunning, ErrDead}, func(fine error) bool { return errors.Is(err, fine) }) {
		return nil // it was released meanwhile
	}
	return err
}
