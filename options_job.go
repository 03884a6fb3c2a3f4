package delayq

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"
)

// A JobOption says how one job is to be run. Of two that contradict each other the last one wins.
type JobOption func(*jobOptions)

// jobOptions is what the job options say. Durations are whole milliseconds, rounded up.
type jobOptions struct {
	dueAt      int64 // Unix ms; 0: dueIn counts
	dueIn      int64 // ms from now by the Redis clock
	retry      int   // retries after the first failure; notGiven; else unlimited below 0
	backoffMin int64 // 0: not given
	backoffMax int64
	timeout    int64
	expireAt   int64 // Unix ms; 0: expireIn counts
	expireIn   int64 // ms after the enqueueing; 0: never
	retention  int64
	replace    replacing
	headers    map[string]string
	scheduled  bool // the job is one of a schedule
	errs       []error
}

// notGiven is the retry of a job that did not say. Its handler's Defaults count then.
const notGiven = -2

// defaultJob is what a job says without any option.
var defaultJob = jobOptions{retry: notGiven}

// defaultRun is what counts for a run if neither the job nor the Defaults of its handler say: the one
// place where these defaults are written.
var defaultRun = jobOptions{
	retry:      Unlimited,
	backoffMin: (2 * time.Second).Milliseconds(),
	backoffMax: (4096 * time.Second).Milliseconds(),
}

// fill takes from d what a run is to know and o does not say.
func (o *jobOptions) fill(d *jobOptions) {
	if o.retry == notGiven {
		o.retry = d.retry
	}
	if o.backoffMax == 0 {
		o.backoffMin, o.backoffMax = d.backoffMin, d.backoffMax
	}
	if o.timeout == 0 {
		o.timeout = d.timeout
	}
	if o.retention == 0 {
		o.retention = d.retention
	}
}

// retries is Job.Retries.
func (o *jobOptions) retries() int { return max(o.retry, Unlimited) }

// DefaultsOption is what Defaults returns: an option of clients, of typed topics and of single
// handlers.
type DefaultsOption []JobOption

// Defaults sets what counts for jobs that do not say themselves. What a job says goes before the
// Defaults of its [Topic], these go before those of the client, and these before those of the
// handler. Given several times to one of them, the last one of each option counts.
//
// Given to [NewClient] they are for all jobs that the client makes: with Enqueue, EnqueueBatch and
// Schedule, also through typed topics. Given to [NewTopic] they are for the jobs of the topic's own
// Enqueue, Job and Schedule. All of these jobs carry them along, wherever they run. ProcessAt,
// ProcessIn, ExpireAt, Replace and ReplaceDead are said with each job: in Defaults they are errors.
//
// Given to [Server.Handle] they are for the runs of all jobs of the topic, whoever made them, and do
// not change what is stored. Only Retry, Backoff, Timeout and Retention may be among them. A
// handler with a default Retry takes no job before it has a free slot for it, because a crash counts
// as a failure of all jobs that were taken.
//
// Without any Defaults a job that always fails is retried for ever, and one that hangs holds its
// slot: Defaults(Retry(25), Timeout(time.Hour)) for a client is a good beginning.
func Defaults(opts ...JobOption) DefaultsOption { return opts }

// apply adds the options to o.
func (d DefaultsOption) apply(o *jobOptions) {
	for _, opt := range d {
		if opt == nil {
			o.fail(errors.New("a job option is nil"))
			continue
		}
		opt(o)
	}
}

// check tells what is wrong with Defaults. With run they are those of a handler.
func (d DefaultsOption) check(run bool) (errs []error) {
	o := defaultJob
	d.apply(&o)
	refuse := func(given bool, name, why string) {
		if given {
			o.fail(fmt.Errorf("%s: %s", name, why))
		}
	}
	const each, late = "is said with each job", "comes too late in a handler's"
	refuse(o.dueAt > 0, "ProcessAt", each)
	refuse(o.dueIn > 0, "ProcessIn", each)
	refuse(o.expireAt > 0, "ExpireAt", each)
	refuse(o.replace == replaceAny, "Replace", each)
	refuse(o.replace == replaceDead, "ReplaceDead", each)
	refuse(run && o.expireIn > 0, "ExpireIn", late)
	refuse(run && o.headers != nil, "Header", late)
	for _, err := range o.errs {
		errs = append(errs, fmt.Errorf("Defaults: %w", err))
	}
	return errs
}

func (d DefaultsOption) applyClient(o *clientOptions) {
	o.errs = append(o.errs, d.check(false)...)
	d.apply(&o.job)
	o.job.errs = nil // they are among the client's
}

func (d DefaultsOption) applyHandler(o *handlerOptions) {
	o.errs = append(o.errs, d.check(true)...)
	d.apply(&o.job)
}

func (d DefaultsOption) applyTopic(o *topicOptions) {
	o.errs = append(o.errs, d.check(false)...)
	o.defaults = append(o.defaults, d...)
}

// ProcessAt makes the job due at t by Redis's clock, rounded up to the millisecond. A time in the past means at once.
// From 1970 to 2286; the zero time is an error, as it is hardly ever meant.
func ProcessAt(t time.Time) JobOption {
	return func(o *jobOptions) {
		ms, err := instant("ProcessAt", t)
		o.fail(err)
		o.dueAt, o.dueIn = ms, 0
	}
}

// ProcessIn makes the job due d after Redis has stored it, by Redis's clock, rounded up to the millisecond. The clock of the
// caller does not matter. Zero, negative and no such option at all mean at once. Else from 1 ms to 100 years: ProcessIn(30)
// would be 30 nanoseconds, and is refused. For a delay that is the difference of two times, and may come out smaller,
// there is ProcessAt.
func ProcessIn(d time.Duration) JobOption {
	return func(o *jobOptions) {
		o.fail(notTiny("ProcessIn", d))
		o.fail(atMost("ProcessIn", d))
		o.dueAt, o.dueIn = 0, max(0, ceilMS(d))
	}
}

// Unlimited is the Retry of a job that is retried until it ends well.
const Unlimited = -1

// Retry limits the job to n retries after its first failure; 0 means that a failure buries it. A crash in mid-run counts as
// a failure of every job that the server had taken, also of one whose handler it had not called yet. [Snooze] and
// [Client.Revive] give all retries anew. Default: unlimited. Range: 0 to 2,147,483,647, or [Unlimited].
func Retry(n int) JobOption {
	return func(o *jobOptions) {
		if n < Unlimited || n > maxRetry {
			o.fail(fmt.Errorf("Retry(%d): must be from 0 to %d, or Unlimited", n, maxRetry))
		}
		o.retry = n
	}
}

// Backoff sets the delays between the attempts of the job: first after the first failure, doubled after each further one, at
// most limit, and each with up to a fifth added at random. [Snooze] and [Client.Revive] start it anew, and [RetryIn]
// chooses another delay. Defaults: 2 s and 4096 s. From 1 ms to 100 years, first ≤ limit.
func Backoff(first, limit time.Duration) JobOption {
	return func(o *jobOptions) {
		if first < time.Millisecond || limit < first || limit > maxDelay {
			o.fail(fmt.Errorf("Backoff(%v, %v): must be 1ms ≤ first ≤ limit ≤ %v", first, limit, maxDelay))
		}
		o.backoffMin, o.backoffMax = ceilMS(first), ceilMS(limit)
	}
}

// Timeout limits every run of the job to d: the handler's context then ends with the cause ErrTimeout. A handler that goes on
// all the same loses the lease within its length, and the job is run elsewhere. From 1 ms to 100 years; default: no limit.
func Timeout(d time.Duration) JobOption {
	return func(o *jobOptions) {
		o.fail(positive("Timeout", d))
		o.timeout = ceilMS(d)
	}
}

// ExpireAt drops the job if it has not been started by t, by Redis's clock: an ExpiredHook is told, no handler is.
// A retry after that time is dropped too. A job that would have expired before it is due is refused with [ErrInvalid], by
// Enqueue and by [Client.Reschedule]. A job that was revived does not expire. Bounds as for ProcessAt.
func ExpireAt(t time.Time) JobOption {
	return func(o *jobOptions) {
		ms, err := instant("ExpireAt", t)
		o.fail(err)
		o.expireAt, o.expireIn = ms, 0
	}
}

// ExpireIn is ExpireAt at d after the enqueueing, by Redis's clock. From 1 ms to 100 years.
func ExpireIn(d time.Duration) JobOption {
	return func(o *jobOptions) {
		o.fail(positive("ExpireIn", d))
		o.expireAt, o.expireIn = 0, ceilMS(d)
	}
}

// Retention keeps the job for d after its successful end, for Get and List to show as done. Its ID is free all the same.
// From 1 ms to 100 years; default: a finished job leaves nothing behind.
func Retention(d time.Duration) JobOption {
	return func(o *jobOptions) {
		o.fail(positive("Retention", d))
		o.retention = ceilMS(d)
	}
}

// Header adds a header that travels with the job. Key and value are arbitrary bytes; all of a job together take at most 16 KiB.
func Header(key, value string) JobOption {
	return func(o *jobOptions) {
		if o.headers == nil {
			o.headers = make(map[string]string)
		}
		o.headers[key] = value
	}
}

// replacing says which job of the same ID gives way to a new one, as the script is told it.
type replacing string

const (
	replaceNone replacing = ""
	replaceAny  replacing = "r"
	replaceDead replacing = "d"
)

// Replace makes an unfinished job with the same ID give way, whatever its state, in one step with the enqueueing. If that job is
// running, its worker loses the lease: the handler's context ends with [ErrReplaced].
//
// A handler may replace its own job, with a context that is its own or made of it. Then its context
// does not end, and it may go on; what it returns changes nothing for the new job, which may be
// running by then.
//
// A job that is due at once and replaces one that was ready takes its place in the order.
func Replace() JobOption { return func(o *jobOptions) { o.replace = replaceAny } }

// ReplaceDead makes a dead job with the same ID give way, in one step with the enqueueing: its errors and attempts are
// forgotten. A job in any other state is left alone, and the new one is refused with [ErrDuplicate]. Of Replace and
// ReplaceDead the last one given counts.
func ReplaceDead() JobOption { return func(o *jobOptions) { o.replace = replaceDead } }

// due is when a job that was enqueued at now is due, as enqueue.lua has it.
func (o *jobOptions) due(now int64) int64 {
	if o.dueAt > 0 {
		return max(o.dueAt, now)
	}
	return now + o.dueIn
}

// when is what enqueue.lua is told of the due time: what gives way, the time, and when the job expires if only the script can
// know whether it would be due before.
func (o *jobOptions) when() string {
	when := string(o.replace) + instantOr(o.dueAt, o.dueIn)
	if o.expireAt > 0 || o.expireIn > 0 && o.dueAt > 0 {
		when += " " + instantOr(o.expireAt, o.expireIn)
	}
	return when
}

// instantOr is a time as the scripts read it: at in Unix ms, or in ms from now if at is 0.
func instantOr(at, in int64) string {
	if at > 0 {
		return strconv.FormatInt(at, 10)
	}
	return "+" + strconv.FormatInt(in, 10)
}

// expires is when a job that was enqueued at now is dropped if it has not been started; 0: never.
func (o *jobOptions) expires(now int64) int64 {
	if o.expireIn > 0 {
		return now + o.expireIn
	}
	return o.expireAt
}

// hopeless is the error of a job that would have expired before it is due.
func hopeless(expires, due int64) error {
	return fmt.Errorf("%w: expires at %v and would be due at %v: it could never run", ErrInvalid, msTime(expires).UTC(), msTime(due).UTC())
}

func (o *jobOptions) fail(err error) {
	if err != nil {
		o.errs = append(o.errs, err)
	}
}

// newJobOptions applies opts and joins all complaints.
func newJobOptions(opts []JobOption) (jobOptions, error) { return defaultJob.with(opts) }

// with is o after opts, and what is wrong with that.
func (o jobOptions) with(opts []JobOption) (jobOptions, error) {
	o.headers = maps.Clone(o.headers)
	DefaultsOption(opts).apply(&o)
	return o, o.validate()
}

// check tells what is wrong with the options as a whole.
func (o *jobOptions) validate() error {
	size := 0
	for k, v := range o.headers {
		size += len(k) + len(v)
	}
	if size > maxHeaderLen {
		o.fail(fmt.Errorf("headers of %d bytes, at most %d are allowed", size, maxHeaderLen))
	}
	switch {
	case o.expireAt > 0 && o.dueAt >= o.expireAt:
		o.fail(fmt.Errorf("ExpireAt(%v) must be after ProcessAt(%v)", msTime(o.expireAt).UTC(), msTime(o.dueAt).UTC()))
	case o.expireIn > 0 && o.dueIn >= o.expireIn:
		o.fail(fmt.Errorf("ExpireIn(%v) must be longer than ProcessIn(%v)", ofMS(o.expireIn), ofMS(o.dueIn)))
	}
	return invalid(o.errs)
}
