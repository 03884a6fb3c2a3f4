package delayq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/script"
)

// An Action is what [Client.Apply] does with each job: [Cancel], [RunNow], [Reschedule], [Revive],
// [Bury] or [Delete]. It has the name of the call that does the same with one job. For Cancel that
// is [Client.Dequeue], and for RunNow [Client.Reschedule].
type Action struct {
	name    string
	states  []State // of the jobs that it fits
	kind    *commit.Kind
	spreads bool // the jobs get due times
	due     DueOption
	reason  string
}

// Cancel removes scheduled, ready, running or dead jobs, as [Client.Dequeue] does.
func Cancel() Action {
	return Action{name: "cancel", kind: commit.Cancel, states: []State{StateScheduled, StateReady, StateRunning, StateDead}}
}

// RunNow makes scheduled jobs ready, as [Client.Reschedule] does with a due time of now. With
// [Spread], jobs that are due before their share of the time keep their due time and are skipped.
// Jobs that were rescheduled to a time in it before are passed over, as by [Reschedule].
func RunNow() Action {
	return Action{name: "run now", kind: commit.Reschedule, states: []State{StateScheduled}, spreads: true, due: ProcessIn(0)}
}

// Reschedule gives scheduled or ready jobs another due time, as [Client.Reschedule] does. A
// duration ([ProcessIn]) counts from the beginning of the Apply, so all jobs get the same due time,
// or with [Spread] one in the time after it. A job that was rescheduled to such a time before is
// passed over: it counts only in [Applied.Examined]. Jobs that would expire by then fail and are
// unchanged.
//
// If an Apply is continued from a [Cursor], use [ProcessAt]: a duration would count from the new
// beginning, and jobs that the first Apply has moved would be moved again.
func Reschedule(due DueOption) Action {
	return Action{name: "reschedule", kind: commit.Reschedule, states: []State{StateScheduled, StateReady}, spreads: true, due: due}
}

// Revive moves dead jobs back to ready, as [Client.Revive] does, or with [Spread] into the time
// after now. It leaves jobs dead that were buried after the Apply began.
func Revive() Action {
	return Action{name: "revive", kind: commit.Revive, states: []State{StateDead}, spreads: true, due: ProcessIn(0)}
}

// Bury moves scheduled or ready jobs to the dead, as [Client.Bury] does.
func Bury(reason string) Action {
	return Action{name: "bury", kind: commit.Bury, states: []State{StateScheduled, StateReady}, reason: reason}
}

// Delete deletes done jobs, as [Client.Delete] does, or dead ones, and everything that is kept of
// them.
func Delete() Action {
	return Action{name: "delete", kind: commit.Delete, states: []State{StateDead, StateDone}}
}

// An ApplyOption is an option of [Client.Apply].
type ApplyOption func(*applyOptions)

type applyOptions struct {
	dry      bool
	most     int64
	spread   time.Duration
	pace     int
	progress func(Applied)
	errs     []error
}

func (o *applyOptions) refuse(format string, args ...any) {
	o.errs = append(o.errs, fmt.Errorf(format, args...))
}

// DryRun makes [Client.Apply] only count the jobs that match, in [Applied.Matched]. It writes
// nothing. Without filters and without [AtMost], that is one call to Redis.
func DryRun() ApplyOption { return func(o *applyOptions) { o.dry = true } }

// AtMost ends [Client.Apply] when that many jobs are changed, at least 1. [Applied.Next] is the
// place from which another Apply continues. A job whose outcome is unknown counts as changed.
func AtMost(jobs int64) ApplyOption {
	return func(o *applyOptions) {
		if o.most = jobs; jobs < 1 {
			o.refuse("AtMost(%d): must be at least 1", jobs)
		}
	}
}

// Spread gives the jobs of [RunNow], [Reschedule] and [Revive] due times that are spread evenly
// over a time, from 1 ms to 100 years. It begins with the Apply, or with the due time of
// Reschedule, and must end by 20 November 2286. The order of the jobs does not matter to their due
// times. Jobs whose share has passed when their turn comes are due immediately.
func Spread(over time.Duration) ApplyOption {
	return func(o *applyOptions) {
		if o.spread = over; over < time.Millisecond || over > maxDelay {
			o.refuse("Spread(%v): must be from 1ms to %v", over, maxDelay)
		}
	}
}

// Pace makes [Client.Apply] act on at most that many jobs per second, from 1 to 1,000,000, in
// portions of a tenth of a second. Time that Apply has lost, for example to a slow Redis, is not
// made up for.
func Pace(perSecond int) ApplyOption {
	return func(o *applyOptions) {
		if o.pace = perSecond; perSecond < 1 || perSecond > 1_000_000 {
			o.refuse("Pace(%d): must be from 1 to 1000000", perSecond)
		}
	}
}

// OnProgress calls f after each step of [Client.Apply], on its goroutine.
func OnProgress(f func(Applied)) ApplyOption {
	return func(o *applyOptions) {
		if o.progress = f; f == nil {
			o.refuse("OnProgress: f is nil")
		}
	}
}

// Applied is what [Client.Apply] has done. Matched is the sum of Done, Skipped and Failed, except
// after a [DryRun].
type Applied struct {
	Matched  int64 // jobs that matched the query and have one of the outcomes below
	Done     int64 // jobs that were changed
	Skipped  int64 // jobs that had moved on when their turn came, or that have lost their record
	Failed   int64 // jobs whose outcome is unknown, or that would expire by their new due time
	Examined int64 // entries that were looked at, some twice if there are partitions: see [Page.Examined]

	// Next is the Query.Cursor for an Apply that continues. It is empty if there are no more jobs.
	Next Cursor
	Errs []error // of the first ten Failed jobs
}

const (
	applyJobs  = commit.ChunkJobs // the most jobs of a step
	keptErrors = 10               // of an Applied
)

// Apply acts on all jobs that a query selects, from Query.Cursor on, step by step: it reads a page
// of jobs as [Inspector.Jobs] does, and changes them in one call of a script. While scheduled, dead
// or done jobs are changed, it reads the next page, and without [OnProgress] it sends the call for
// that one too. With a [Pace] it does neither. The script looks at each job again. If the job is
// not in the state any more, or if its due time, its time of burial or the time until which it is
// kept is another one, it is skipped. So a job that a server has taken in the meantime is not hit
// by an Apply to ready jobs. A filter such as Query.Headers or Query.Error is not evaluated again.
// Jobs that enter the state while Apply runs may be found or not. So a job that has left the state
// and has come back may be changed again, for example one that has failed and backs off after
// [RunNow]. Only [Revive] leaves out all jobs that were buried after the Apply began, so that it
// ends even if all revived jobs die again.
//
// Query.Limit is the size of a step. Default and maximum: 500; larger values count as 500.
//
// Apply returns what it has done, also along with an error. It ends early when ctx is done, when a
// call fails, or at [AtMost]. Then [Applied.Next] is the place to continue from: put it into
// Query.Cursor of the same query. The jobs of a step that was cut off, and of one that was sent
// after it, are looked at again then, so none is left out. If only single jobs failed, Apply goes
// on to the end, and the error joins those of [Applied.Errs].
//
// Errors: [ErrInvalid] if an argument is invalid or the action does not fit the state, [ErrCursor],
// [ErrUnknownOutcome] after a call that Redis did not answer, [ErrNotAudited], the error of the
// context, or that of Redis.
//
// With an actor ([WithActor]) the end of an Apply is recorded as one act, with the query and the
// number of changed jobs.
//
// Cost: for each 500 jobs a page and one call of O(500 × log(jobs of the topic)). Ready jobs take
// one call for each 100 jobs. Apply holds the jobs of three pages in memory. It reads neither
// records nor errors of scheduled, dead and done jobs unless a filter needs them.
func (c *Client) Apply(ctx context.Context, q Query, a Action, opts ...ApplyOption) (*Applied, error) {
	ctx, end := c.begin(ctx, CallEvent{Name: "apply", Topic: q.Topic})
	r := &application{client: c, query: q, action: a, sum: Applied{Next: q.Cursor}}
	place := script.Place{Call: "apply", Topic: q.Topic}
	if a.name != "" {
		place.Call += " " + a.name
	}
	err := r.prepare(ctx, opts)
	switch {
	case err != nil:
		return &r.sum, end.err(place.At(err))
	case r.opts.dry:
		return &r.sum, end.err(place.At(r.count(ctx)))
	}
	ended := false
	defer func() {
		if !ended { // the function of OnProgress or a hook has panicked
			_ = c.audited(ctx, place, r.text(), "", r.sum.Done, nil)
		}
	}()
	err = r.run(ctx)
	if ended = true; err == nil && r.sum.Failed > 0 {
		err = fmt.Errorf("%d of %d jobs failed: %w", r.sum.Failed, r.sum.Matched, errors.Join(r.sum.Errs...))
	}
	return &r.sum, end.err(c.audited(ctx, place, r.text(), "", r.sum.Done, place.At(err)))
}

// An application is one Apply.
type application struct {
	client *Client
	query  Query
	action Action
	opts   applyOptions
	sum    Applied

	due   jobOptions // of the action
	began time.Time  // when the first page was read, by Redis's clock; zero: not yet
	base  int64      // when the time of Spread begins, Unix ms
	share uint64     // number of jobs that have got a share of it
	over  bool       // the next jobs were buried after began
}

// prepare validates the arguments.
func (r *application) prepare(ctx context.Context, opts []ApplyOption) error {
	for _, opt := range opts {
		if opt == nil {
			r.opts.refuse("an apply option is nil")
			continue
		}
		opt(&r.opts)
	}
	a := &r.action
	states := make([]string, len(a.states))
	for i, state := range a.states {
		states[i] = string(state)
	}
	switch {
	case a.name == "":
		r.opts.refuse("zero Action: must be Cancel, RunNow, Reschedule, Revive, Bury or Delete")
	case !slices.Contains(a.states, r.query.State):
		r.opts.refuse("state %q: must be %s to %s jobs", r.query.State, strings.Join(states, " or "), a.name)
	}
	if r.opts.spread != 0 && !a.spreads && a.name != "" {
		r.opts.refuse("Spread: only RunNow, Reschedule and Revive have due times")
	}
	errs := []error{r.client.validate(ctx, r.query.Topic, "")}
	if a.kind == commit.Bury {
		errs = append(errs, checkReason(a.reason))
		a.reason = strings.ToValidUTF8(a.reason, "\uFFFD")
	}
	if a.spreads {
		var err error
		r.due, err = newJobOptions([]JobOption{a.due})
		errs = append(errs, err)
		if at := r.due.DueAt; at > 0 && at+r.opts.spread.Milliseconds() > maxDueMS {
			r.opts.refuse("Spread(%v): would end after %v", r.opts.spread, msTime(maxDueMS).UTC())
		}
	}
	if r.query.Offset != 0 {
		r.opts.refuse("offset %d: Apply begins at Query.Cursor", r.query.Offset)
	}
	limit := r.query.Limit
	filled, err := r.query.filled()
	if r.query = filled; limit == 0 || limit > applyJobs {
		r.query.Limit = applyJobs
	}
	return errors.Join(append(errs, invalid(r.opts.errs), err)...)
}

// begin sends what is to be done with the jobs of a page.
func (r *application) begin(ctx context.Context, page *Page) *step {
	if r.began.IsZero() {
		r.began = page.At
		r.base = r.due.Due(page.At.UnixMilli())
	}
	list := make([]*commit.Op, 0, len(page.Jobs))
	for _, info := range page.Jobs {
		if o := r.operation(info); o != nil {
			list = append(list, o)
		}
	}
	s := &step{page: page, jobs: len(list), over: r.over}
	if len(list) == 0 {
		return s
	}
	s.batch = r.client.newBatch(ctx, list[0].Kind, len(list), func(_ int, o *commit.Op) error {
		o.Topic = r.query.Topic // not the partition
		err := outcomeOf(o, o.Err)
		if over := r.settled(err); s.stop == nil {
			s.stop = over
		}
		return err
	})
	s.batch.Detach()
	for i, o := range list {
		s.batch.Put(i, o)
	}
	s.batch.Send()
	return s
}

// finish waits until a step has ended, and counts its outcomes.
func (r *application) finish(s *step) {
	r.sum.Examined += int64(s.page.Examined)
	if s.batch != nil {
		defer s.batch.Close()
		_ = s.batch.Finish() // joins the errors of the jobs, which settled has seen
	}
}

// close waits until nothing of a step is on its way.
func (s *step) close() {
	if s.batch != nil {
		s.batch.Close()
	}
}

// operation returns the operation about a job of a page, or nil if there is nothing to do.
func (r *application) operation(info *JobInfo) *commit.Op {
	o := &commit.Op{Kind: r.action.kind, Topic: cmp.Or(info.place, info.Topic), ID: info.ID, Known: known(info), Reason: r.action.reason}
	switch {
	case o.Kind == commit.Revive && info.BuriedAt.After(r.began):
		r.over = !r.query.Latest // the next ones were buried later still
		return nil
	case o.Kind == commit.Delete && r.query.State == StateDead:
		o.Kind = commit.Cancel
	case o.Kind == commit.Revive && r.opts.spread > 0:
		o.When = strconv.FormatInt(r.nextShare(), 10)
	case o.Kind == commit.Reschedule:
		spread := r.opts.spread.Milliseconds()
		// A job that this Apply has moved is met again if it is due behind the cursor, or if it has
		// become ready again.
		if due := info.Due.UnixMilli(); info.DueReason == DueReschedule && r.base <= due && due <= r.base+spread {
			return nil
		}
		due, at := r.due, r.base
		if spread > 0 {
			at = r.nextShare()
		}
		if spread > 0 && r.action.name == RunNow().name && info.Due.UnixMilli() <= at {
			r.sum.Matched++
			r.sum.Skipped++
			return nil
		}
		if spread > 0 || due.DueIn > 0 {
			due.DueAt, due.DueIn = at, 0
		}
		o.Move = &commit.Move{When: due.when(), Due: due.Options}
	}
	return o
}

// nextShare returns the due time of the next job, of Spread. The multiples of the golden ratio,
// without their integral parts, are spread evenly however many there are.
func (r *application) nextShare() int64 {
	const golden = 0x9E3779B97F4A7C15 // of 1 << 64
	offset, _ := bits.Mul64(r.share*golden, uint64(r.opts.spread.Milliseconds()))
	r.share++
	return r.base + int64(offset)
}

// settled counts the outcome of a job. It returns an error if the next page must not be read.
func (r *application) settled(err error) (stop error) {
	switch {
	case err == nil:
		r.sum.Done++
	case errors.Is(err, ErrChanged), errors.Is(err, ErrNotFound), errors.Is(err, ErrRunning), errors.Is(err, ErrDead):
		r.sum.Skipped++
	case errors.Is(err, ErrUnknownOutcome):
		stop = err
		r.failed(err)
	case errors.Is(err, ErrInvalid): // it would expire
		r.failed(err)
	default: // of the call: nothing was done
		return err
	}
	r.sum.Matched++
	return stop
}

func (r *application) failed(err error) {
	if r.sum.Failed++; len(r.sum.Errs) < keptErrors {
		r.sum.Errs = append(r.sum.Errs, err)
	}
}

// count counts the jobs that match, for a DryRun.
func (r *application) count(ctx context.Context) error {
	q, most := r.query, r.opts.most
	if q.Cursor == "" && most == 0 && !q.filtered() {
		n, _, err := r.client.inspector().Count(ctx, q)
		r.sum.Matched = n
		return err
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		q.Limit, q.Cursor = maxLimit, r.sum.Next
		if most > 0 {
			q.Limit = int(min(maxLimit, most-r.sum.Matched))
		}
		page, err := r.read(ctx, q)
		if err != nil {
			return err
		}
		r.sum.Matched += int64(len(page.Jobs))
		r.sum.Examined += int64(page.Examined)
		r.sum.Next = page.Next
		r.report()
		if page.Next == "" || most > 0 && r.sum.Matched >= most {
			return nil
		}
	}
}

// A step is a page of jobs that Redis is acting on.
type step struct {
	page  *Page
	batch *commit.Batch // nil: there is nothing to do
	jobs  int           // in batch
	over  bool          // the jobs behind the page are to be left alone
	stop  error         // why the next page must not be acted on
}

// run acts on page after page. While Redis acts on the jobs of one, the next one is read, and its
// jobs are sent too.
func (r *application) run(ctx context.Context) error {
	reading, stop := context.WithCancel(ctx)
	next, acting := &ahead{}, []*step(nil) // acting: their outcomes are not counted yet
	defer func() {
		stop()
		_, _ = next.page()
		for _, s := range acting { // the function of OnProgress has panicked
			s.close()
		}
	}()
	var unread, stopped error
	var began time.Time // of the last step
	var acted int64     // before it
	for at, more := r.sum.Next, true; ; {
		if q := r.pageAt(at, acting); more && q.Limit > 0 && len(acting) < r.depth() {
			var page *Page
			if unread = r.wait(ctx, began, r.acted()-acted); unread == nil {
				page, unread = r.following(ctx, next, q)
			}
			if more = unread == nil; more {
				began, acted = time.Now(), r.acted()
				acting = append(acting, r.begin(ctx, page))
				at, more = page.Next, page.Next != "" && !r.over
				next = r.readAhead(reading, r.pageAt(at, acting), more)
			}
			continue
		}
		if len(acting) == 0 {
			return cmp.Or(stopped, unread)
		}
		s := acting[0]
		acting = acting[1:]
		r.finish(s)
		if stopped = cmp.Or(stopped, s.stop); stopped == nil {
			r.sum.Next = s.page.Next
			if s.over {
				r.sum.Next = ""
			}
		}
		more = more && stopped == nil
		r.report()
	}
}

// acted returns the number of jobs that have an outcome.
func (r *application) acted() int64 { return r.sum.Done + r.sum.Skipped + r.sum.Failed }

// wait waits until Pace allows another step after one that began then and acted on so many jobs.
// What a slow step or a long search has left unused is not made up for. wait returns the cause if
// ctx is done.
func (r *application) wait(ctx context.Context, began time.Time, acted int64) error {
	if r.opts.pace > 0 {
		timer := time.NewTimer(time.Until(began.Add(time.Duration(float64(acted) / float64(r.opts.pace) * float64(time.Second)))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// report calls OnProgress.
func (r *application) report() {
	if r.opts.progress != nil {
		sum := r.sum
		sum.Errs = slices.Clone(sum.Errs)
		r.opts.progress(sum)
	}
}
