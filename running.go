package delayq

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/flow"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// Progress is how far a job has come, as its handler has said with [Job.Progress].
type Progress struct {
	Done, Total int64     // a Total of 0 is unknown
	Text        string    // at most 256 bytes
	At          time.Time // when Redis was told, by its clock
}

// Progress says how far the job has come: that done of total parts are done, and a text for people,
// such as the name of the part that is next. A total of 0 is unknown. done can exceed the total,
// which can be an estimate. [JobInfo] has the progress, and [OnJobProgress] passes it to clients
// that wait for the job.
//
// The last call counts. Progress does not wait for Redis, so a handler can call it as often as it
// likes. The first progress of a topic is sent at once, and then that of all its running jobs that
// have a new one, with one call a second. A call has at most 500 jobs; those of more wait for the
// next second. When a run ends and the job stays, because it is retried, snoozed, buried or given
// back, its last progress is sent before that. The job keeps it until its next run says another
// one. When a job is done or cancelled, its progress is deleted. If the server is killed, if Redis
// cannot be reached, or if its memory is full, the last progress can be missing.
//
// text has at most 256 bytes of valid UTF-8. Progress is safe for concurrent use. It returns
// [ErrInvalid], and leaves the progress as it was, if a number is negative, if the text is invalid,
// if the handler has returned, and outside a handler.
func (j *Job) Progress(done, total int64, text string) error {
	const call = "progress"
	if j == nil {
		return fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	}
	err := j.report(done, total, text)
	return script.Place{Call: call, Topic: j.Topic, Job: j.ID}.At(err)
}

func (j *Job) report(done, total int64, text string) error {
	var errs []error
	if done < 0 {
		errs = append(errs, fmt.Errorf("done of %d, at least 0 is allowed", done))
	}
	if total < 0 {
		errs = append(errs, fmt.Errorf("total of %d, at least 0 is allowed", total))
	}
	switch n := len(text); {
	case n > record.MaxProgressText:
		errs = append(errs, fmt.Errorf("text of %d bytes, at most %d are allowed", n, record.MaxProgressText))
	case !utf8.ValidString(text):
		errs = append(errs, fmt.Errorf("text %q is not valid UTF-8", text))
	}
	switch {
	case len(errs) > 0:
		return invalid(errs)
	case j.noted == nil:
		return fmt.Errorf("%w: the job is not that of a handler", ErrInvalid)
	case !j.noted.Report(done, total, text):
		return fmt.Errorf("%w: %w", ErrInvalid, run.ErrReturned)
	}
	return nil
}

// Step runs a named part of a handler once. It calls f, saves the result and returns it. If a run
// of the same job has saved a result under that name already, Step returns that one and does not
// call f. So a handler that charges a card, writes a file and sends a mail in three steps, and
// fails in the third, begins with the third when it is retried:
//
//	pay := func(ctx context.Context, key string) (Payment, error) {
//		return cards.Charge(ctx, order, key) // key: the idempotency key of the request
//	}
//	payment, err := delayq.Step(ctx, job, "pay", pay)
//	if err != nil {
//		return err
//	}
//
// A saved step is not repeated after an error, a panic, a timeout, a lost lease, a crash, a snooze
// or a shutdown, nor after [Client.Revive]. It belongs to the job with this nonce: [Again],
// [Replace], a call with [Latest] or [Debounce] that gives the job another payload, and an Enqueue
// after the end of the job begin without steps. The results are deleted when the job ends. A dead
// job keeps them.
//
// Step is at least once, as the handler is. If the server dies between the effect of f and the end
// of the save, the next run calls f again. For that, f gets key: 32 hexadecimal digits that are the
// same in all runs of the job, and others for another name, job or Enqueue. Pass it on as an
// idempotency key, or as a unique key of what is written.
//
// If f returns an error, Step returns it as it is, saves nothing, and the step can be called again.
// A result is saved as JSON, or as it is if T is []byte. It has at most 64 KiB. f's own value is
// returned, the decoded one in later runs, so they must mean the same.
//
// ctx is the context of the handler or derived from it; f gets one that is derived from it. The
// first Step of a run costs one call to Redis, which reads the note of the job, and each step that
// is not saved yet costs one. Steps of several jobs that end at the same time share calls. While
// Redis cannot be reached, Step waits, until ctx is done or the lease is lost.
//
// A job has at most 100 steps. A name has 1 to 100 bytes of valid UTF-8 without control
// characters. Within a run, the same name is the same step: the second call returns the result of
// the first, and waits for it. Steps of other names can run at the same time. In a batch handler,
// each job has steps of its own.
//
// Step returns
//   - [ErrInvalid] without calling f: if an argument is invalid, if the job has 100 steps, if f
//     calls a step of its own name with the ctx that it gets, after the handler has returned, and
//     outside a handler;
//   - [ErrInvalid] after calling f: if the result cannot be encoded or is too long. Nothing is
//     saved;
//   - an error that wraps [ErrLeaseLost] or [ErrCancelled] if the job no longer belongs to the run.
//     If f was called, its result is not saved, and is not returned;
//   - an error that wraps the cause of ctx if that is done before the result is saved. The save may
//     still be carried out: the next run finds out;
//   - a [Permanent] error with the name of the step if the saved result cannot be decoded into T,
//     if Redis has lost it, or if it has a damaged note of the job, which [Inspector.Check] finds;
//   - an error if the memory of Redis is full ("OOM"). If f was called, its result is not saved;
//   - the error of Redis if it refuses the call for another reason.
func Step[T any](ctx context.Context, job *Job, name string, f func(ctx context.Context, key string) (T, error)) (T, error) {
	s := stepOf{job: job, name: name}
	var none T
	if err := s.check(ctx, f == nil); err != nil {
		return none, err
	}
	saved, known, err := job.noted.Begin(ctx, name)
	switch {
	case errors.Is(err, run.ErrDamaged) || errors.Is(err, run.ErrNoResult):
		return none, Permanent(s.failed(err))
	case err != nil:
		return none, s.failed(err)
	case known:
		v, err := decodeStep[T](saved)
		if err != nil {
			return none, Permanent(s.failed(fmt.Errorf("its saved result cannot be decoded: %w", err)))
		}
		return v, nil
	}
	ended := false
	defer func() {
		if !ended { // f has failed, panicked or exited
			job.noted.Leave(name)
		}
	}()
	v, err := f(context.WithValue(ctx, stepKey{}, s.within(ctx)), s.key())
	if err != nil {
		return none, err
	}
	result, err := encodeStep(v)
	if err != nil {
		return none, s.failed(err)
	}
	ended = true
	if err := job.noted.Save(ctx, name, result); err != nil {
		return none, s.failed(err)
	}
	return v, nil
}

// A stepOf is a step of a job.
type stepOf struct {
	job  *Job
	name string
}

// stepKey is the key of the steps whose functions a context has been given to, the innermost first.
type stepKey struct{}

// An outerStep is such a step. It belongs to a job by its nonce and ID.
type outerStep struct {
	noted  *run.Noted
	name   string
	around *outerStep
}

func (s stepOf) within(ctx context.Context) *outerStep {
	around, _ := ctx.Value(stepKey{}).(*outerStep)
	return &outerStep{s.job.noted, s.name, around}
}

// check returns an error for a step that must not begin.
func (s stepOf) check(ctx context.Context, noFunction bool) error {
	var errs []error
	if err := checkContext(ctx); err != nil {
		errs = append(errs, err)
	}
	switch n := len(s.name); {
	case n == 0:
		errs = append(errs, errors.New("empty name"))
	case n > record.MaxStepName:
		errs = append(errs, fmt.Errorf("name of %d bytes, at most %d are allowed", n, record.MaxStepName))
	case !utf8.ValidString(s.name) || strings.ContainsFunc(s.name, unicode.IsControl):
		errs = append(errs, fmt.Errorf("name %q, valid UTF-8 without control characters is allowed", s.name))
	}
	if noFunction {
		errs = append(errs, errors.New("nil function"))
	}
	switch {
	case s.job == nil:
		errs = append(errs, errors.New("nil job"))
	case s.job.noted == nil:
		errs = append(errs, errors.New("the job is not that of a handler"))
	case ctx != nil:
		for outer, _ := ctx.Value(stepKey{}).(*outerStep); outer != nil; outer = outer.around {
			if outer.noted == s.job.noted && outer.name == s.name {
				errs = append(errs, errors.New("the step is called within itself"))
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return s.failed(invalid(errs))
}

// failed adds to an error which step it is about.
func (s stepOf) failed(err error) error {
	if errors.Is(err, run.ErrReturned) || errors.Is(err, run.ErrManySteps) {
		err = invalid([]error{err})
	}
	name := s.name
	if len(name) > record.MaxStepName {
		name = name[:record.MaxStepName] + "…"
	}
	place := script.Place{Call: fmt.Sprintf("step %q", name)}
	if s.job != nil {
		place.Topic, place.Job = s.job.Topic, s.job.ID
	}
	return place.At(err)
}

// key returns what f gets: the same in all runs of the job.
func (s stepOf) key() string {
	hash := sha256.New()
	for _, part := range []string{s.job.Topic, s.job.ID, s.job.nonce, s.name} {
		hash.Write([]byte(record.Netstring(part)))
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

// encodeStep returns what is saved of a result. T decides how, as in decodeStep: an interface can
// hold bytes, too.
func encodeStep[T any](v T) (string, error) {
	var raw []byte
	if plain, is := any(&v).(*[]byte); is {
		raw = *plain
	} else {
		var err error
		if raw, err = json.Marshal(v); err != nil {
			return "", fmt.Errorf("%w: its result cannot be encoded: %w", ErrInvalid, err)
		}
	}
	if n := len(raw); n > record.MaxStepResult {
		return "", fmt.Errorf("%w: result of %d bytes, at most %d are allowed", ErrInvalid, n, record.MaxStepResult)
	}
	return string(raw), nil
}

// decodeStep returns the result that a step has saved.
func decodeStep[T any](saved string) (v T, err error) {
	if raw, plain := any(&v).(*[]byte); plain {
		*raw = []byte(saved)
		return v, nil
	}
	return v, json.Unmarshal([]byte(saved), &v)
}

// A handing is what [Job.Then] and [Job.Inputs] need of a run. Copies of its job share it.
type handing struct {
	sealer *Client
	ctx    context.Context
	run    *run.Handover
	flow   *record.Flow // of which the job is a step; nil: none
	server *Server      // that reads its inputs; nil: they are inputs
	inputs []Input
}

// Then hands a job over: it is enqueued if, and only if, this run completes its own job, because
// the handler returns nil or [Again]. After any other end of the run it is not: after an error, a
// panic, a retry, [Snooze], a cancellation, a replacement or a lost lease. If the handler is called
// again, it hands over again. The job is enqueued once, however often servers, Redis or the network
// fail in between. It can be of any topic, in any slot of a Cluster.
//
// The call checks the arguments as [Client.Enqueue] does, and sends nothing. The job is stored in
// Redis in the step that completes the own job, and a server of the own topic then passes it on to
// its topic, mostly within a few milliseconds. Times such as those of [ProcessIn] and [ExpireIn]
// count from that step. An empty id is replaced by a generated one.
//
// By default the job replaces a dead job with its ID, as with [ReplaceDead]. [Replace], [Latest],
// [Debounce] and [UniqueFor] have their effects when it is enqueued. If it cannot be enqueued, for
// example because an unfinished job has its ID, it is dropped: the server counts it as undelivered,
// and logs a warning at most once a minute. Options and hooks of clients do not apply. The server
// calls its [EnqueueHook].
//
// A run can hand over 1,000 jobs, with 1 MiB together. Then returns [ErrInvalid], and nothing is
// handed over, for a larger number, for invalid arguments, after the handler has returned, and
// outside a handler. It returns the error of the context if the run must stop. It is safe for
// concurrent use.
func (j *Job) Then(topic, id string, payload []byte, opts ...JobOption) error {
	const call = "then"
	if j == nil {
		return fmt.Errorf("%s: %w: nil job", call, ErrInvalid)
	}
	err := j.handOver(NewJob{Topic: topic, ID: id, Payload: payload, Options: opts})
	return script.Place{Call: call, Topic: topic, Job: id}.At(err)
}

// Then is [Job.Then] with a value as the payload: it hands a job of the topic over. A value that
// cannot be encoded is an [ErrInvalid].
func (t *Topic[T]) Then(job *Job, id string, value T, opts ...JobOption) error {
	fresh, err := t.Job(id, value, opts...)
	if err != nil {
		return script.Place{Call: "then", Topic: t.Name(), Job: id}.At(err)
	}
	return job.Then(fresh.Topic, fresh.ID, fresh.Payload, fresh.Options...)
}

func (j *Job) handOver(fresh NewJob) error {
	if j.hands == nil {
		return fmt.Errorf("%w: the job is not that of a handler", ErrInvalid)
	}
	if j.hands.run.Over() { // its context is over too, which says less
		return fmt.Errorf("%w: %s", ErrInvalid, run.Returned)
	}
	fresh.Options = append([]JobOption{ReplaceDead()}, fresh.Options...)
	e := &enqueueing{job: fresh}
	if err := errors.Join(j.hands.sealer.seal(j.hands.ctx, e), e.opts.guard.outside("Then")); err != nil {
		return err
	}
	parcel := commit.Parcel{From: j.ID, Row: commit.Row{
		ID: e.op.ID, Replace: replacesText(&e.opts), Record: string(e.fresh.Draft), DueAt: e.opts.DueAt, DueIn: e.opts.DueIn,
	}}
	if refused := j.hands.run.Add(e.op.Topic, parcel.Encode()); refused != "" {
		return fmt.Errorf("%w: %s", ErrInvalid, refused)
	}
	return nil
}

// HandedOver returns the jobs that a handler has handed over so far, as their handlers would
// receive them if the run were acked when it began.
func (friends) HandedOver(j *Job) (jobs []*Job) {
	if j == nil || j.hands == nil {
		return nil
	}
	acked := j.StartedAt.UnixMilli()
	for rest := j.hands.run.Get().Text; rest != ""; {
		target, behind, _ := record.CutNetstring(rest) // as Add has written them
		text, behind, _ := record.CutNetstring(behind)
		rest = behind
		parcel, err := commit.DecodeParcel(fmt.Sprintf("%013d%s", acked, text))
		if err != nil {
			continue
		}
		stored, err := record.Decode(parcel.Row.Record)
		if err != nil {
			continue
		}
		opts := stored.Options
		opts.Fill(&defaultRun)
		due := msTime(opts.Due(acked))
		job := &Job{
			Topic: target, ID: parcel.Row.ID, Payload: stored.Payload, Headers: opts.Headers, Key: opts.Key,
			Attempt: 1, Retries: opts.Retries(), EnqueuedAt: msTime(acked), Due: due, StartedAt: due, nonce: stored.Nonce,
		}
		job.staged(opts.Plan)
		job.lend()
		jobs = append(jobs, job)
	}
	return jobs
}

// sealer returns a client that encodes jobs, and never sends.
func sealer(prefix string) *Client {
	c := &Client{rdb: noRedis{}, o: defaultClient}
	c.o.prefix = prefix
	return c
}

// sealer returns the client that encodes what runs of the server hand over.
func (s *Server) sealer() *Client {
	if s == nil {
		return nil
	}
	c := sealer(s.o.prefix)
	c.o.hooks.enqueue = s.o.hooks.enqueue
	c.o.hooks.trouble = func(why *contain.Crash) { s.o.hooks.report(why) }
	return c
}

// newCarrier returns the client that delivers what runs hand over, by connections of the server.
func (s *Server) newCarrier() *Client {
	c := &Client{rdb: s.engine.Calls, o: defaultClient}
	c.o.prefix = s.o.prefix
	c.scripts = s.engine.Scripts
	c.commits = commit.New(commit.Wire{
		Redis: c.rdb, Scripts: c.scripts, Series: &c.series, Prefix: c.o.prefix, Tick: maxTick,
	}, max(1, poolSize(c.rdb)/2))
	return c
}

// deliver carries out a plan.
func (s *Server) deliver(ctx context.Context, plan commit.Plan, rows []commit.Row) ([]error, error) {
	outcomes, _, err := friends{}.SendRows(ctx, s.carrier, plan, rows)
	return outcomes, err
}

// Joined returns the row to send for the last step of a flow that must not run, or nil if it must
// run.
func (p policy) Joined(r *run.Run, f *flow.Progress, now int64) *settle.Row {
	entry := AttemptError{Attempt: r.Attempt, At: msTime(now), Server: p.server}
	switch {
	case f.State == 0 && r.Past.Snoozes > 0: // it has run before
		return nil
	case f.State == 0:
		entry.Kind, entry.Message = KindLostFlow, "Redis has lost the data of the flow"
	case f.State == flow.Failed:
		entry.Kind, entry.Message = KindDependency, f.Failure()
	case f.State == flow.Open && !f.Ignore:
		entry.Kind, entry.Message = KindDeadline, f.Unfinished()
	default:
		return nil
	}
	return &settle.Row{Run: r, Verb: settle.Bury, End: msTime(now), Failure: entry.encode(), Err: errors.New(entry.Message)}
}
